//! The host: workers, guests and uplinks on one calendar and one set of CPUs.
//!
//! ```text
//! loads.rs   a frame is written ─▶ guest.rs: send, ring, kick ─▶ worker.rs: take a burst
//!                                ─▶ uplink.rs: link, interrupt ─▶        │
//! loads.rs   it is read ◀─ guest.rs: interrupt, poll ◀─ deliver.rs: place, publish, policy, call
//!                        ◀─ uplink.rs: link           ◀─        │
//! ```
//!
//! Ports are guests, then uplinks, as in weir's table of ports. Events of one time happen in the
//! order in which they were caused.

mod calls;
mod delays;
mod deliver;
mod guest;
mod loads;
mod manager;
mod parts;
mod signals;
mod threads;
mod trouble;
mod uplink;
mod vcpu;
mod watch;
mod worker;

use std::collections::VecDeque;

use weir_limits::LATENCY_BUDGET_NS_MAX;

use self::delays::Delays;
use self::guest::Guest;
use self::parts::{Demux, Dispatcher, Load, Manager, Place, Thief, Ticks, Uplink};
use self::parts::{Event, Owner, PortId};
use self::watch::Watch;
use self::worker::Worker;
use crate::calendar::Calendar;
use crate::cpus::{Cpus, ThreadId};
use crate::faults::{Fault, FaultError};
use crate::link::{DropReason, Frame, Way};
use crate::random::Random;
use crate::report::{Report, Violation};
use crate::scenario::{Endpoint, Scenario, ScenarioError};
use crate::stats::Times;

/// Reason why there is no report.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The scenario is invalid.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// A fault is invalid.
    #[error(transparent)]
    Fault(#[from] FaultError),
    /// An invariant was broken.
    #[error(transparent)]
    Violation(#[from] Violation),
    /// The run has reached its limit of events.
    #[error("the simulation has not ended after {events} events")]
    TooLong {
        /// The limit.
        events: u64,
    },
}

/// A host under way.
#[derive(Debug)]
struct Host<'s> {
    scenario: &'s Scenario,
    calendar: Calendar<Event>,
    cpus: Cpus,
    owners: Vec<Owner>,
    workers: Vec<Worker>,
    guests: Vec<Guest>,
    uplinks: Vec<Uplink>,
    loads: Vec<Load>,
    /// Interrupt controllers by host, if there are identifiers.
    demuxes: Vec<Demux>,
    ticks: Ticks,
    place: Option<Place>,
    dispatcher: Dispatcher,
    manager: Option<Manager>,
    delays: Delays,
    /// The shortest wait of frames that any guest allows (ns).
    wait_ns_max: u64,
    /// Frames of each port that wait for full receivers.
    waiting: Vec<VecDeque<Frame>>,
    dropped: [u64; DropReason::ALL.len()],
    faults: &'s [Fault],
    thieves: Vec<Thief>,
    /// Checks after every event.
    watch: Option<Box<Watch>>,
    /// The first broken invariant.
    violation: Option<Violation>,
}

/// Runs a scenario.
///
/// # Errors
/// The scenario is invalid, or the model or a policy broke an invariant.
pub fn run(scenario: &Scenario) -> Result<Report, Error> {
    run_within(scenario, u64::MAX)
}

/// Runs a scenario, with at most `events_max` events.
///
/// # Errors
/// As [`run`], and [`Error::TooLong`].
pub fn run_within(scenario: &Scenario, events_max: u64) -> Result<Report, Error> {
    run_with(scenario, &[], events_max)
}

/// Runs a scenario with faults, with at most `events_max` events.
///
/// # Errors
/// As [`run_within`], and [`Error::Fault`].
pub fn run_with(scenario: &Scenario, faults: &[Fault], events_max: u64) -> Result<Report, Error> {
    scenario.check()?;
    faults.iter().try_for_each(|fault| fault.check(scenario))?;
    let mut host = Host::new(scenario);
    host.expect_faults(faults);
    host.start();
    host.run_until(scenario.warm_up_ns, events_max)?;
    host.forget();
    let from = host.calendar.now_ns();
    host.run_until(from + scenario.run_ns, events_max)?;
    host.conserved()?;
    Ok(host.report(scenario.run_ns))
}

impl<'s> Host<'s> {
    fn new(scenario: &'s Scenario) -> Self {
        let mut cpus = Cpus::new(scenario.topology, scenario.profile.scheduling);
        let mut owners = Vec::new();
        let mut spawn = |owner, class, allowed: &[usize]| -> ThreadId {
            owners.push(owner);
            cpus.spawn(class, allowed)
        };
        let workers = scenario.workers.iter().enumerate();
        let workers = workers
            .map(|(at, spec)| {
                Worker::new(spawn(Owner::Worker(at), spec.class, &spec.cpus), scenario.law)
            })
            .collect();
        let guests = scenario.guests.iter().enumerate();
        let guests = guests
            .map(|(at, spec)| {
                Guest::new(spawn(Owner::Guest(at), spec.class, &spec.cpus), spec, scenario.law)
            })
            .collect();
        for rival in &scenario.rivals {
            spawn(Owner::Rival, rival.class, &rival.cpus);
        }
        let realization = &scenario.realization;
        let each = scenario.topology.cpus().unwrap_or(0) / realization.hosts();
        let mut demuxes = Vec::new();
        if let Some(identifiers) = realization.identifiers {
            for host in 0..realization.hosts() {
                owners.push(Owner::Demux(host));
                demuxes.push(Demux::new(&mut cpus, identifiers, host * each));
            }
        }
        let streams = 2 * scenario.loads.len() as u64; // two for each load
        let ticks = Ticks::new(&mut cpus, scenario, Random::stream(scenario.seed, streams + 2));
        owners.extend((0..ticks.len()).map(|_| Owner::Tick));
        if realization.cache_blind {
            cpus.ignore_caches(Random::stream(scenario.seed, streams));
        }
        let place = realization
            .placement
            .map(|spec| Place::new(spec, &scenario.topology, scenario.workers.len(), owners.len()));
        let loads = scenario.loads.iter().enumerate();
        let loads = loads.map(|(at, spec)| {
            let stream = 2 * at as u64;
            Load::new(spec, [stream, stream + 1].map(|it| Random::stream(scenario.seed, it)))
        });
        let waits = scenario.guests.iter().map(|guest| guest.calls.wait_ns_max());
        Self {
            scenario,
            demuxes,
            ticks,
            place,
            dispatcher: Dispatcher::new(scenario),
            manager: Manager::new(scenario),
            delays: Delays::new(scenario, Random::stream(scenario.seed, streams + 1)),
            wait_ns_max: waits.min().unwrap_or(LATENCY_BUDGET_NS_MAX),
            calendar: Calendar::default(),
            cpus,
            owners,
            workers,
            guests,
            uplinks: scenario
                .uplinks
                .iter()
                .map(|it| Uplink::new(it, realization.client_threads))
                .collect(),
            loads: loads.collect(),
            waiting: vec![VecDeque::new(); scenario.guests.len() + scenario.uplinks.len()],
            dropped: [0; DropReason::ALL.len()],
            faults: &[],
            thieves: Vec::new(),
            watch: scenario.check_each_event.then(|| Box::new(Watch::new(scenario))),
            violation: None,
        }
    }

    /// Returns the time (ns).
    fn now_ns(&self) -> u64 {
        self.calendar.now_ns()
    }

    fn start(&mut self) {
        for thread in 0..self.owners.len() {
            if let Owner::Rival = self.owners[thread] {
                self.cpus.wake(&mut self.calendar, thread, RIVAL_NS, 0);
            }
        }
        for worker in 0..self.workers.len() {
            self.start_worker(worker);
        }
        for load in 0..self.loads.len() {
            // Stream numbers that no load uses for itself.
            let mut random = Random::stream(self.scenario.seed, u64::MAX - load as u64);
            match random.below(self.scenario.start_ns) {
                0 => self.start_load(load),
                ns => self.calendar.after(ns, Event::Start(load)),
            }
        }
        (0..self.guests.len()).for_each(|guest| self.start_hypervisor(guest));
        (0..self.guests.len()).for_each(|guest| self.start_guest_tick(guest));
        let threads = self.scenario.realization.guests_are_threads;
        self.guests.iter_mut().for_each(|guest| guest.is_thread = threads);
        if self.scenario.realization.guests_poll {
            (0..self.guests.len()).for_each(|guest| self.spin(guest));
        }
        if let Some(placement) = &self.scenario.realization.placement {
            self.calendar.after(placement.look_ns, Event::Look);
        }
        self.start_dispatch();
        self.start_manager();
        self.start_ticks();
    }

    fn run_until(&mut self, until_ns: u64, events_max: u64) -> Result<(), Error> {
        while let Some(event) = self.calendar.next(until_ns) {
            if self.calendar.passed() > events_max {
                return Err(Error::TooLong { events: events_max });
            }
            self.happen(event);
            self.hold_good()?;
        }
        Ok(())
    }

    /// Checks the invariants of every event, if the scenario asks for it.
    fn hold_good(&mut self) -> Result<(), Violation> {
        if let Some(violation) = self.violation.take() {
            return Err(violation);
        }
        if let Some(mut watch) = self.watch.take() {
            self.conserved()?;
            watch.look(self)?;
            self.watch = Some(watch);
        }
        Ok(())
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Cpu(event) => {
                let Some(thread) = self.cpus.happen(&mut self.calendar, event) else { return };
                match self.owners[thread] {
                    Owner::Worker(worker) => self.worker_done(worker),
                    Owner::Guest(guest) => self.guest_done(guest),
                    Owner::Thief(thief) => self.thief_done(thief),
                    Owner::Demux(host) => self.demux_done(host),
                    Owner::Rival => self.cpus.go_on(&mut self.calendar, thread, RIVAL_NS),
                    Owner::Tick => self.cpus.block(&mut self.calendar, thread),
                }
            }
            Event::Start(load) => self.start_load(load),
            Event::Datagram(load) => self.datagram(load),
            Event::Request(load) => self.request(load),
            Event::Resend(load) => self.resend(load),
            Event::DelayedAck(load) => self.delayed_ack(load),
            Event::GuestTimer(guest, number) => self.guest_timer(guest, number),
            Event::GuestTick(guest) => self.guest_tick(guest),
            Event::HypervisorTimer(guest) => self.hypervisor_timer(guest),
            Event::WorkerTimer(worker, sleep) => self.worker_timer(worker, sleep),
            Event::Gathered(uplink) => self.gathered(uplink),
            Event::Served(uplink, direction) => self.link_served(uplink, direction),
            Event::Arrived(uplink, direction) => self.link_arrived(uplink, direction),
            Event::Fault(at) => self.fault(at),
            Event::FaultOver(at) => self.fault_over(at),
            Event::Look => self.look_at_places(),
            Event::Dispatch => self.dispatch(),
            Event::Budget => self.split_budget(),
            Event::Tick(cpu) => self.tick(cpu),
        }
    }

    fn start_ticks(&mut self) {
        (0..self.ticks.len()).for_each(|cpu| self.expect_tick(cpu));
    }

    fn expect_tick(&mut self, cpu: usize) {
        let ns = self.ticks.exponential_ns(self.scenario.profile.tick_every_ns);
        self.calendar.after(ns, Event::Tick(cpu));
    }

    fn tick(&mut self, cpu: usize) {
        self.expect_tick(cpu);
        let Some(&handler) = self.ticks.handlers.get(cpu) else { return };
        // A tick that is still running absorbs the next one.
        if self.cpus.sleeps(handler) {
            let ns = self.ticks.exponential_ns(self.scenario.profile.tick_ns);
            self.cpus.wake(&mut self.calendar, handler, ns, 0);
        }
    }

    fn port(&self, endpoint: Endpoint) -> PortId {
        match endpoint {
            Endpoint::Guest(guest) => guest,
            Endpoint::Peer(uplink) => self.guests.len() + uplink,
        }
    }

    fn receiver(&self, frame: &Frame) -> Endpoint {
        let load = &self.scenario.loads[frame.load];
        match frame.way {
            Way::Forth => load.to,
            Way::Back => load.from,
        }
    }

    fn drop_frame(&mut self, frame: &Frame, reason: DropReason) {
        self.loads[frame.load].dropped += 1;
        self.dropped[reason as usize] += 1;
    }

    fn violated(&mut self, violation: Violation) {
        self.violation.get_or_insert(violation);
    }

    /// Drops the measurements so far.
    fn forget(&mut self) {
        let now_ns = self.now_ns();
        self.dropped = [0; DropReason::ALL.len()];
        self.dispatcher.moved = 0;
        self.manager.iter_mut().for_each(|manager| manager.forget());
        self.loads.iter_mut().for_each(Load::forget);
        self.demuxes.iter_mut().for_each(|demux| demux.spent = Times::default());
        for guest in &mut self.guests {
            guest.forget(now_ns, self.cpus.busy_ns(now_ns, guest.thread));
        }
        for worker in &mut self.workers {
            worker.forget(self.cpus.busy_ns(now_ns, worker.thread));
        }
    }

    /// Checks that every sent frame is received, dropped or somewhere.
    fn conserved(&self) -> Result<(), Violation> {
        let mut in_flight = vec![0u64; self.loads.len()];
        let guests = self.guests.iter().flat_map(Guest::frames);
        let uplinks = self.uplinks.iter().flat_map(Uplink::frames);
        let workers = self.workers.iter().flat_map(Worker::frames);
        let waiting = self.waiting.iter().flatten();
        for frame in guests.chain(uplinks).chain(workers).chain(waiting) {
            in_flight[frame.load] += 1;
        }
        for ((load, spec), in_flight) in self.loads.iter().zip(&self.scenario.loads).zip(in_flight)
        {
            let Load { sent, received, dropped, .. } = *load;
            if sent != received + dropped + in_flight {
                let (now_ns, load) = (self.now_ns(), spec.name.clone());
                return Err(Violation::Frames { now_ns, load, sent, received, dropped, in_flight });
            }
        }
        Ok(())
    }

    fn report(&self, ns: u64) -> Report {
        let now_ns = self.now_ns();
        let loads = self.loads.iter().zip(&self.scenario.loads);
        let guests = self.guests.iter().zip(&self.scenario.guests);
        let dropped = DropReason::ALL.into_iter().zip(self.dropped);
        Report {
            ns,
            events: self.calendar.passed(),
            loads: loads.map(|(load, spec)| load.report(&spec.name)).collect(),
            guests: guests
                .map(|(guest, spec)| {
                    guest.report(&spec.name, now_ns, self.cpus.busy_ns(now_ns, guest.thread))
                })
                .collect(),
            workers: self
                .workers
                .iter()
                .map(|worker| {
                    let thread = worker.thread;
                    worker.report(self.cpus.busy_ns(now_ns, thread), self.cpus.last_cpu(thread))
                })
                .collect(),
            demux: self.demuxes.iter().fold(Times::default(), |mut all, demux| {
                all.merge(&demux.spent);
                all
            }),
            moves: self.dispatcher.moved,
            drops: dropped.filter(|(_, frames)| *frames > 0).collect(),
        }
    }
}

/// Unit of a rival's endless work (ns).
const RIVAL_NS: u64 = 1_000_000_000;
