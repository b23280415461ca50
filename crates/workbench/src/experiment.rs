//! Turns an experiment's TOML into scenarios: one for each point of its sweeps.

use std::ops::Range;

use toml::de::{DeTable, DeValue};
use toml::{Spanned, Table, Value};
use weir_lab::cpus::{Class, WEIGHT_USUAL};
use weir_lab::estimate;
use weir_lab::random::Distribution;
use weir_lab::scenario::{
    Calls, Endpoint, Guest, GuestPoll, Load, LoadKind, Scenario, ScenarioError, Thread, Uplink,
};
use weir_lab::topology::Topology;
use weir_limits::{LAB_EVENTS_MAX, LAB_FLOWS_MAX, LAB_RUNS_MAX, PORTS_MAX};
use weir_policy::dispatch::Aim;
use weir_policy::law::LAW;

use super::check;
use super::error::{LabError, Problem, Source};
use super::file::{
    Arrivals, At, DispatchFile, End, Execution, ExperimentFile, GuestsFile, TrafficFile,
};
use super::file::{doubled, realization};
use super::profile::Machine;

/// A checked experiment.
#[derive(Debug)]
pub struct Experiment {
    /// The name of the experiment or of its file.
    pub name: String,
    /// Content of the file.
    pub file: ExperimentFile,
    /// The machine, and the machines of a sweep.
    pub machines: Vec<Machine>,
    /// The points of the sweeps with their scenarios, for the first seed.
    pub points: Vec<(At, Scenario)>,
}

impl Experiment {
    /// Reads an experiment. `machine` returns the profile that it names.
    ///
    /// # Errors
    /// The first problem, with its place; or a length beyond the bounds.
    pub fn parse(
        source: Source<'_>,
        seed: Option<u64>,
        machine: impl Fn(&str) -> Result<Option<Machine>, LabError>,
    ) -> Result<Self, LabError> {
        let mut file: ExperimentFile =
            toml::from_str(source.text).map_err(|error| source.toml(&error))?;
        let root: Table = source.text.parse().map_err(|error| source.toml(&error))?;
        let place = |path: &str| span(source.text, path);
        if let Some(seed) = seed {
            file.seeds = vec![seed];
        }
        if file.seeds.is_empty() {
            return Err(source.invalid("there is no seed", place("seeds")));
        }
        let find = |name: &str, place: Option<Range<usize>>| {
            machine(name)?.ok_or_else(|| {
                let known: Vec<_> = weir_lab::scenarios::PROFILES.iter().map(|it| it.0).collect();
                let known = known.join(", ");
                let message = format!("unknown profile `{name}`, expected one of {known}");
                source.invalid(&message, place)
            })
        };
        let mut machines = vec![find(&file.profile, place("profile"))?];
        // The scenario is made without the sweeps first, so that a problem is shown at its own place.
        scenario(&file, &machines[0])
            .and_then(|scenario| scenario.check().map_err(Problem::from))
            .map_err(|problem| source.invalid(&problem.message, place(&problem.path)))?;
        let mut settings = vec![(At::new(), root)];
        for (at, sweep) in file.sweeps.iter().enumerate() {
            let here = || place(&format!("sweep.{at}"));
            if sweep.points.is_empty() {
                return Err(source.invalid("a sweep has at least one of `points`", here()));
            }
            let mut next = Vec::new();
            for (number, point) in sweep.points.iter().enumerate() {
                for (at, table) in &settings {
                    let (mut at, mut table) = (at.clone(), table.clone());
                    for (key, values) in &sweep.sweep {
                        let Some(value) =
                            values.get(number).filter(|_| values.len() == sweep.points.len())
                        else {
                            let message = format!(
                                "`{key}` has {} values, expected one for each of the {} `points`",
                                values.len(),
                                sweep.points.len()
                            );
                            return Err(source.invalid(&message, here()));
                        };
                        set(&mut table, key, value)
                            .map_err(|message| source.invalid(&message, here()))?;
                    }
                    at.insert(sweep.name.clone(), point.clone());
                    next.push((at, table));
                }
                if next.len() > LAB_RUNS_MAX {
                    return Err(too_many_runs(source, next.len()));
                }
            }
            settings = next;
        }
        let runs = settings.len().saturating_mul(file.seeds.len());
        if runs > LAB_RUNS_MAX {
            return Err(too_many_runs(source, runs));
        }
        check::sweeps(&file).map_err(|it| source.invalid(&it.message, place(&it.path)))?;
        let mut points = Vec::new();
        let mut each = Vec::new();
        for (at, table) in settings {
            let problem = |message: &str| {
                let first = file.sweeps.first().and_then(|_| place("sweep"));
                source.invalid(&format!("{}: {message}", name_of(&at)), first)
            };
            // As a text again: a second way to read the file's type is 200 kB of the program.
            let swept: ExperimentFile =
                toml::from_str(&table.to_string()).map_err(|error| problem(error.message()))?;
            let other = match swept.profile == file.profile {
                true => None,
                false => Some(find(&swept.profile, place("sweep"))?),
            };
            let scenario = scenario(&swept, other.as_ref().unwrap_or(&machines[0]))
                .and_then(|it| it.check().map_err(Problem::from).map(|()| it))
                .map_err(|error| problem(&error.message))?;
            if points.iter().any(|(other, _)| *other == at) {
                return Err(problem("two points, or two sweeps, have one name"));
            }
            points.push((at, scenario));
            if let Some(other) = other
                && machines.iter().all(|machine| machine.title != other.title)
            {
                machines.push(other);
            }
            each.push(swept);
        }
        check::effects(&file, &each).map_err(|it| source.invalid(&it.message, place(&it.path)))?;
        let experiment = Self { name: source.name.to_owned(), file, machines, points };
        check::names(&experiment).map_err(|it| source.invalid(&it.message, place(&it.path)))?;
        let events = experiment.events_expected();
        if events > LAB_EVENTS_MAX {
            return Err(LabError::TooLong {
                experiment: experiment.name,
                what: format!("{events} events"),
                max: LAB_EVENTS_MAX,
            });
        }
        Ok(experiment)
    }

    /// Returns the machines' titles.
    pub fn machine(&self) -> String {
        let titles: Vec<_> = self.machines.iter().map(|machine| machine.title.as_str()).collect();
        titles.join("; ")
    }

    /// Returns the number of runs: one per point and seed.
    pub fn runs(&self) -> usize {
        self.points.len() * self.file.seeds.len()
    }

    /// Returns the first `count` seeds: the file's, and those that follow the largest of them.
    pub fn seeds(&self, count: usize) -> Vec<u64> {
        let largest = self.file.seeds.iter().copied().max().unwrap_or(0);
        let further = (1..).map_while(|more| largest.checked_add(more));
        self.file.seeds.iter().copied().chain(further).take(count).collect()
    }

    /// Returns an upper bound of the events of all runs with the file's seeds.
    pub fn events_expected(&self) -> u64 {
        let of_one_seed = self.points.iter().map(|(_, scenario)| estimate::events(scenario));
        of_one_seed.fold(0, u64::saturating_add).saturating_mul(self.file.seeds.len() as u64)
    }
}

fn too_many_runs(source: Source<'_>, runs: usize) -> LabError {
    LabError::TooLong {
        experiment: source.name.to_owned(),
        what: format!("{runs} runs or more"),
        max: LAB_RUNS_MAX as u64,
    }
}

/// Describes a point.
pub fn name_of(at: &At) -> String {
    let each: Vec<_> = at.iter().map(|(sweep, point)| format!("{sweep} {point}")).collect();
    if each.is_empty() { "the only point".into() } else { each.join(", ") }
}

/// Sets the value at `path`: keys and numbers of elements, with dots between them.
fn set(table: &mut Table, path: &str, value: &Value) -> Result<(), String> {
    let nowhere = || format!("there is no `{path}`, expected a key such as \"guests.count\"");
    let (way, last) = path.rsplit_once('.').unwrap_or(("", path));
    let mut parent = table;
    let mut keys = way.split('.').filter(|key| !key.is_empty());
    while let Some(key) = keys.next() {
        parent = match parent.get_mut(key).ok_or_else(nowhere)? {
            Value::Table(table) => table,
            Value::Array(array) => {
                let number = keys.next().and_then(|key| key.parse::<usize>().ok());
                let element = number.and_then(|number| array.get_mut(number));
                element.and_then(Value::as_table_mut).ok_or_else(nowhere)?
            }
            _ => return Err(nowhere()),
        };
    }
    parent.insert(last.to_owned(), value.clone());
    Ok(())
}

/// Returns the range of a path's value in the text (bytes).
pub fn span(text: &str, path: &str) -> Option<Range<usize>> {
    let document = DeTable::parse(text).ok()?;
    let mut table = document.get_ref();
    let mut found: Option<&Spanned<DeValue<'_>>> = None;
    for key in path.split('.') {
        let element = match (found.map(Spanned::get_ref), key.parse::<usize>()) {
            (Some(DeValue::Array(array)), Ok(number)) => array.get(number)?,
            _ => table.get(key)?,
        };
        if let DeValue::Table(inner) = element.get_ref() {
            table = inner;
        }
        found = Some(element);
    }
    found.map(Spanned::span)
}

impl From<ScenarioError> for Problem {
    fn from(error: ScenarioError) -> Self {
        let path = match &error {
            ScenarioError::Cpus => "topology",
            ScenarioError::NoWorker => "worker",
            ScenarioError::Ports => "guests.count",
            ScenarioError::NoSuchCpu { thread, .. } if thread == "a worker" => "worker",
            ScenarioError::NoSuchCpu { thread, .. } if thread == "the interrupt controller" => {
                "realization.identifiers"
            }
            ScenarioError::NoSuchCpu { .. } => "guests.cpus",
            ScenarioError::NoSuchWorker { .. } => "first_worker",
            ScenarioError::AnyWorker { key, .. } => key,
            ScenarioError::Value { what: "`run_ns`", .. } => "run",
            ScenarioError::Value { what: "`warm_up_ns`", .. } => "warm_up",
            ScenarioError::Value { what: "`start_ns`", .. } => "start",
            ScenarioError::Value { of, .. } if of == "the profile" => "profile",
            ScenarioError::Value { of, .. } if of == UPLINK => UPLINK,
            ScenarioError::Value { of, .. } if of.starts_with(GUEST) => "guests",
            ScenarioError::Value { of, .. } if of == "the realization" => "realization",
            ScenarioError::Twins { .. } => "realization",
            ScenarioError::Value { .. }
            | ScenarioError::NoSuchEndpoint { .. }
            | ScenarioError::SameEndpoint { .. }
            | ScenarioError::Distribution { .. } => "load",
        };
        Self::new(path, error.to_string())
    }
}

/// The uplink's name in reports, and its key in the file.
const UPLINK: &str = "uplink";
/// Prefix of guests' names.
const GUEST: &str = "guest";

/// Returns the scenario of a file.
fn scenario(file: &ExperimentFile, machine: &Machine) -> Result<Scenario, Problem> {
    let topology = &file.topology;
    let guests = guests(&file.guests)?;
    let realization = realization(&file.realization)?;
    let twins = realization.twins;
    let uplinks = uplinks(file)?;
    let workers = workers(file, guests.len() + uplinks.len())?;
    let mut loads = Vec::new();
    for (number, load) in file.loads.iter().enumerate() {
        if load.flows.saturating_mul(guests.len()) > LAB_FLOWS_MAX - loads.len() {
            let message = format!("there are more than {LAB_FLOWS_MAX} flows of all guests");
            return Err(Problem::new(format!("load.{number}"), message));
        }
        let only = load.only.iter().flatten();
        if let Some(guest) = only.clone().find(|it| !(1..=guests.len()).contains(it)) {
            let message = format!("there is no guest {guest}, expected 1 to {}", guests.len());
            return Err(Problem::new(format!("load.{number}.only"), message));
        }
        for guest in (0..guests.len())
            .filter(|guest| load.only.as_ref().is_none_or(|only| only.contains(&(guest + 1))))
        {
            let end = |end, other| match end {
                End::Uplink => Endpoint::Peer(guest % uplinks.len().max(1)),
                // With a second host, the peer is that host's guest with the same number.
                End::Guests if other && twins => Endpoint::Guest(guest + guests.len()),
                End::Guests => Endpoint::Guest((guest + usize::from(other)) % guests.len()),
            };
            let (from, to) = (end(load.from, false), end(load.to, load.from == End::Guests));
            let kind = traffic(&load.traffic)
                .map_err(|message| Problem::new(format!("load.{number}.traffic"), message))?;
            loads.extend((0..load.flows).map(|flow| Load {
                name: format!("{} {}.{}", load.name, guest + 1, flow + 1),
                from,
                to,
                kind: kind.clone(),
            }));
        }
    }
    let one = Scenario {
        seed: file.seeds.first().copied().unwrap_or(1),
        topology: Topology {
            sockets: topology.sockets,
            llcs_per_socket: topology.llcs_per_socket,
            cores_per_llc: topology.cores_per_llc,
            threads_per_core: topology.threads_per_core,
        },
        profile: machine.profile,
        workers,
        first_worker: file.first_worker,
        dispatch: match file.dispatch {
            DispatchFile::None => None,
            DispatchFile::Spread => Some(Aim::Spread),
            DispatchFile::Pack => Some(Aim::Pack),
        },
        guests,
        uplinks,
        rivals: Vec::new(),
        realization,
        loads,
        start_ns: file.start.map_or(0, |start| start.0),
        warm_up_ns: file.warm_up.0,
        run_ns: file.run.0,
        law: &LAW,
        check_each_event: false,
    };
    Ok(if twins { doubled(one) } else { one })
}

/// Checks `count` against the largest number of ports.
fn count(key: &str, count: usize) -> Result<usize, Problem> {
    if (1..=PORTS_MAX).contains(&count) {
        return Ok(count);
    }
    let message = format!("`{key}` is {count}, expected 1 to {PORTS_MAX}");
    Err(Problem::new(key, message))
}

/// Returns the workers: one per port if the execution model is threads.
fn workers(file: &ExperimentFile, ports: usize) -> Result<Vec<Thread>, Problem> {
    /// Default priority of real-time threads.
    const PRIORITY: u8 = 1;
    let mut workers = Vec::new();
    for (number, worker) in file.workers.iter().enumerate() {
        let class = match (worker.priority, file.execution) {
            (_, Execution::Threads) => Class::Fair { weight: WEIGHT_USUAL },
            (Some(priority), _) => Class::Realtime { priority },
            (None, Execution::RtThreads) => Class::Realtime { priority: PRIORITY },
            (None, Execution::Tasklet) => Class::Fair { weight: WEIGHT_USUAL },
        };
        let count = count(&format!("worker.{number}.count"), worker.count)?;
        let own = count > 1 && file.execution == Execution::Tasklet;
        workers.extend((0..count).map(|at| {
            let cpu = worker.cpus.get(at % worker.cpus.len().max(1)).filter(|_| own);
            Thread { cpus: cpu.map_or_else(|| worker.cpus.clone(), |cpu| vec![*cpu]), class }
        }));
    }
    if file.execution != Execution::Tasklet {
        workers = workers.iter().cycle().take(ports).cloned().collect();
    }
    Ok(workers)
}

fn uplinks(file: &ExperimentFile) -> Result<Vec<Uplink>, Problem> {
    let Some(uplink) = &file.uplink else { return Ok(Vec::new()) };
    let one = Uplink {
        name: UPLINK.into(),
        bits_per_s: uplink.rate.0,
        delay_ns: uplink.delay.0,
        queue_max: uplink.queue,
        ring: uplink.ring,
        hold_ns: uplink.hold.0,
    };
    Ok(vec![one; count("uplink.count", uplink.count)?])
}

fn guests(file: &GuestsFile) -> Result<Vec<Guest>, Problem> {
    let count = count("guests.count", file.count)?;
    let calls = Calls {
        kind: file.moderation,
        latency_budget_ns: file.latency_budget.0,
        rx_ns: file.rx_usecs.map(|time| time.0),
        rx_frames: file.rx_frames,
    };
    let poll = file.poll.filter(|time| time.0 > 0);
    let poll = poll.map(|time| GuestPoll {
        interval_ns: time.0,
        empty_polls: file.empty_polls,
        periodic: file.poll_periodic,
    });
    let guest = |number: usize| {
        let cpus = file.cpus.get(number % file.cpus.len().max(1));
        let usual = Guest::new(
            &format!("{GUEST}{}", number + 1),
            cpus.map_or(&[], std::slice::from_ref),
            calls,
        );
        let rx_ring = file.rx_ring.unwrap_or(usual.rx_ring);
        let hypervisor_poll_ns = file.hypervisor_poll.map(|time| time.0);
        let tick_ns = file.tick.map(|time| time.0);
        Guest { rx_ring, poll, hypervisor_poll_ns, tick_ns, lro: file.lro, ..usual }
    };
    Ok((0..count).map(guest).collect())
}

/// Returns the traffic of a load.
pub fn traffic(file: &TrafficFile) -> Result<LoadKind, &'static str> {
    Ok(match file {
        TrafficFile::Datagrams { bytes, arrivals } => {
            let rate = match *arrivals {
                Arrivals::Buffer(buffer_bytes) => {
                    return Ok(LoadKind::Socket { bytes: *bytes, buffer_bytes });
                }
                Arrivals::Regular(rate) | Arrivals::Poisson(rate) => rate,
            };
            let mean = rate.gap_ns(*bytes).ok_or("a rate of packets is 1pps to 1000Mpps")?;
            LoadKind::Datagrams {
                bytes: Distribution::Constant((*bytes).into()),
                gap: match arrivals {
                    Arrivals::Poisson(_) => Distribution::Exponential { mean },
                    _ => Distribution::Constant(mean),
                },
                on_off: None,
            }
        }
        TrafficFile::Requests { clients, request, answer, think, think_max, serve } => {
            let think = match think_max {
                Some(max) => Distribution::Uniform { min: think.0, max: max.0 },
                None => Distribution::Constant(think.0),
            };
            LoadKind::Requests {
                outstanding: *clients,
                request_bytes: *request,
                answer_bytes: *answer,
                think,
                serve_ns: serve.0,
            }
        }
        TrafficFile::Stream { segment, window } => {
            LoadKind::Stream { segment_bytes: *segment, window: *window }
        }
    })
}
