//! A switch with built-in guests in this process, as a [`Setting`] describes it.
//!
//! Unlike [`weir_bench::rig`], it has any number of guests, and pins every thread as the experiment says.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use weir_bench::rig::{self, RigError, Role, pin};
use weir_config::{Config, PortName, SwitchConfig, VifConfig, WorkerCount, Workers};
use weir_switch::Switch;
use weir_switch::stats::{PortState, PortStats};
use weir_vif::load::{self, LoadSnapshot, Station};
use weir_vif::{Features, Options, PairCounters, PairStats, QueuePair, Vif};
use weir_wire::Mac;

use super::super::quiet::exact_timers;
use super::setting::{Flow, Setting};

/// Longest time until anything starts: on a busy machine threads wait.
const START_TIMEOUT: Duration = Duration::from_secs(20);
const START_POLL: Duration = Duration::from_millis(1);
/// UDP or TCP ports.
const PORTS: (u16, u16) = (40_000, 5_201);

/// Returns the time for which a thread of this process was ready without a CPU (ns), from `schedstat`.
fn waited_ns(thread: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).ok()?;
    text.split_whitespace().nth(1)?.parse().ok()
}

/// The switch and its guests. When dropped, the guests end first.
pub(crate) struct Host {
    guests: Vec<Guest>,
    switch: Arc<Switch>,
}

struct Guest {
    flow: Flow,
    end: rig::Guest,
    pair: Arc<PairCounters>,
}

/// A connected guest without traffic.
struct Idle {
    vif: Vif,
    pair: QueuePair,
    flow: Flow,
    role: Role,
    /// The flow as seen from this guest.
    addresses: load::Flow,
}

/// Counters at one moment.
#[derive(Clone)]
pub(crate) struct Counts {
    pub at: Instant,
    pub worker_cpu_ns: u64,
    /// Time for which the worker was ready without a CPU.
    pub worker_waited_ns: u64,
    pub wakeups: u64,
    /// Calls for received frames.
    pub calls: u64,
    /// Two entries per flow: first the end that begins it, then the other.
    pub guests: Vec<GuestCounts>,
    /// Latencies of the first load's flows (ns).
    pub latency: Option<Histogram<u64>>,
}

/// A guest's counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GuestCounts {
    pub cpu_ns: u64,
    pub load: LoadSnapshot,
    pub pair: PairStats,
}

fn name(number: usize) -> PortName {
    format!("guest{number}").parse().expect("a valid name by construction")
}

fn station(number: usize) -> Station {
    let [.., high, low] = number.to_be_bytes();
    Station { mac: Mac([0x52, 0x54, 0, 2, high, low]), ip: Ipv4Addr::new(10, 2, high, low) }
}

impl Host {
    /// Starts the switch and the guests, with sockets in `dir`.
    ///
    /// # Errors
    /// The switch or a guest is not available.
    pub fn start(setting: &Setting, dir: &Path) -> Result<Self, RigError> {
        let guests = 2 * setting.flows.len();
        let calls = setting.calls;
        let vif = |number| {
            let config = VifConfig::new(name(number), rig::socket(dir, &format!("guest{number}"))?);
            Ok::<_, RigError>(VifConfig {
                moderation: calls.moderation,
                rx_usecs: calls.rx_usecs,
                rx_frames: calls.rx_frames,
                ..config
            })
        };
        let vifs: Vec<_> = (0..guests).map(vif).collect::<Result<_, _>>()?;
        let config = SwitchConfig {
            workers: Workers::Count(WorkerCount::try_from(1).expect("one is possible")),
            latency_budget: setting.latency_budget,
            ..SwitchConfig::new(rig::socket(dir, "control")?)
        };
        let switch = Switch::start(&Config::of_vifs(config, vifs.clone()))?;
        for thread in switch.engine().worker_threads().into_iter().flatten() {
            pin(Some(thread), setting.worker_cpu);
        }
        let ends =
            setting.flows.iter().flat_map(|flow| [(flow, Role::Sender), (flow, Role::Receiver)]);
        let idle = ends.zip(&vifs).enumerate().map(|(number, ((flow, role), config))| {
            Idle::connect(number, *flow, role, setting.ring, config)
        });
        let idle: Vec<_> = idle.collect::<Result<_, _>>()?;
        let mut host = Self { guests: Vec::new(), switch };
        host.wait_for(|port| port.state == PortState::Running, |_| true)?;
        let (begin, answer): (Vec<_>, Vec<_>) =
            idle.into_iter().partition(|guest| guest.role == Role::Sender);
        let answer = answer.into_iter().map(Idle::start).collect::<Result<Vec<_>, _>>()?;
        // Frames to a station that has not sent yet are flooded.
        host.wait_for(|port| port.tx.frames > 0, |number| number % 2 == 1)?;
        for (begins, answers) in begin.into_iter().zip(answer) {
            host.guests.extend([begins.start()?, answers]);
        }
        Ok(host)
    }

    /// Waits until the ports whose numbers satisfy `meant` are `ready`.
    fn wait_for(
        &self,
        ready: fn(&PortStats) -> bool,
        meant: fn(usize) -> bool,
    ) -> Result<(), RigError> {
        let start = Instant::now();
        loop {
            let stats = self.switch.stats();
            let mut ports = stats.ports.iter().enumerate().filter(|(number, _)| meant(*number));
            let Some((_, port)) = ports.find(|(_, port)| !ready(port)) else { return Ok(()) };
            if port.state == PortState::Stopped || start.elapsed() > START_TIMEOUT {
                let reason = port.stopped_reason.clone();
                let reason = reason.unwrap_or_else(|| format!("the port is {}", port.state));
                return Err(RigError::NotReady { guest: "of an experiment", reason });
            }
            thread::sleep(START_POLL);
        }
    }

    /// Returns the present counters.
    pub fn counts(&self) -> Counts {
        let stats = self.switch.stats();
        let mut latency: Option<Histogram<u64>> = None;
        for guest in self.guests.iter().filter(|it| it.flow.first && it.measures_latency()) {
            let of_guest = guest.end.stats.latency();
            match &mut latency {
                // `add` cannot fail: all histograms have the same bounds.
                Some(all) => drop(all.add(&of_guest)),
                None => latency = Some(of_guest),
            }
        }
        let workers = self.switch.engine().worker_threads().into_iter().flatten();
        Counts {
            at: Instant::now(),
            worker_waited_ns: workers.filter_map(waited_ns).sum(),
            worker_cpu_ns: stats.workers.iter().map(|worker| worker.cpu_ns).sum(),
            wakeups: stats.workers.iter().map(|worker| worker.wakeups).sum(),
            calls: stats.ports.iter().map(|port| port.rx.calls).sum(),
            guests: self.guests.iter().map(Guest::counts).collect(),
            latency,
        }
    }

    /// Returns true if a guest has given up. [`finish`](Self::finish) returns the reason.
    pub fn has_failed(&self) -> bool {
        self.guests.iter().any(|it| it.end.has_failed())
    }

    /// Ends the guests and the switch.
    ///
    /// # Errors
    /// A guest has given up.
    pub fn finish(mut self) -> Result<(), RigError> {
        self.guests.iter().for_each(|guest| guest.end.stop());
        self.guests.drain(..).try_for_each(|guest| guest.end.finish())
    }
}

impl Idle {
    fn connect(
        number: usize,
        flow: Flow,
        role: Role,
        ring: u16,
        config: &VifConfig,
    ) -> Result<Self, RigError> {
        let (own, other) = (station(number), station(number ^ 1));
        let begins =
            load::Flow { local: own, remote: other, local_port: PORTS.0, remote_port: PORTS.1 };
        let addresses = match role {
            Role::Sender => begins,
            Role::Receiver => load::Flow { local_port: PORTS.1, remote_port: PORTS.0, ..begins },
        };
        let usual = Options::new(own.mac);
        let options = Options {
            queue_size: ring,
            // Segments of a stream are sent uncut, as in the lab.
            features: usual.features - Features::HOST_TSO4,
            ..usual
        };
        let mut vif = Vif::connect(config.socket.as_path(), &options)
            .map_err(|source| RigError::Connect { guest: "of an experiment", source })?;
        let pair = vif.queue_pairs().remove(0);
        Ok(Self { vif, pair, flow, role, addresses })
    }

    fn start(self) -> Result<Guest, RigError> {
        let Self { vif, pair: queues, flow, role, addresses } = self;
        let pair = queues.counters();
        let cpu = flow.cpus[usize::from(role == Role::Receiver)];
        let on_start = move || {
            pin(None, cpu);
            exact_timers();
        };
        let end = rig::Guest::start(flow.traffic, role, addresses, vif, queues, on_start)?;
        Ok(Guest { flow, end, pair })
    }
}

impl Guest {
    /// Returns true if this end of the flow measures the latency that the lab reports. For a stream, it is the time
    /// from a segment to its acknowledgement.
    fn measures_latency(&self) -> bool {
        !matches!(self.flow.traffic, rig::Load::Bulk(_))
            && self.flow.traffic.latency_at() == self.end.role
    }

    fn counts(&self) -> GuestCounts {
        GuestCounts {
            cpu_ns: self.end.cpu_ns(),
            load: self.end.stats.snapshot(),
            pair: self.pair.snapshot(),
        }
    }
}
