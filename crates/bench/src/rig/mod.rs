//! A switch with two built-in guests and traffic between them, in this process, for `weir demo` and `weir bench`.
//!
//! Only the machines are simulated: the switch is that of `weir run`, the guests are [`weir_vif`] drivers, and they
//! connect by vhost-user sockets in a temporary directory.
//!
//! | file | contents |
//! |---|---|
//! | `guest.rs` | the kinds of traffic, and a guest with the thread that plays one end |

mod guest;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{io, thread};

use guest::IdleGuest;
pub use guest::{Guest, Load, Role};
use miette::Diagnostic;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use tempfile::TempDir;
use thiserror::Error;
use weir_config::{
    Change, Config, FilterRule, LatencyBudget, PortName, SocketPath, SwitchConfig, ValueError,
    VifChanges, VifConfig, Workers,
};
use weir_switch::control::{ControlHandler, Request, Response};
use weir_switch::stats::{CallSettings, PortState, PortStats, SwitchStats};
use weir_switch::{Switch, SwitchError};
use weir_vif::VifError;
use weir_vif::load::LoadError;

/// Longest time until a guest's interface runs, on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Interval of the checks for a running interface.
const START_POLL: Duration = Duration::from_millis(1);

/// Interval of the checks for an interruption.
const STOP_POLL: Duration = Duration::from_millis(20);

/// Waits for `time`, or until an interruption or a failure.
pub fn wait(time: Duration, stop: &AtomicBool, has_failed: impl Fn() -> bool) {
    let start = Instant::now();
    while !stop.load(Ordering::Relaxed) && !has_failed() {
        let left = time.saturating_sub(start.elapsed());
        if left.is_zero() {
            return;
        }
        thread::sleep(left.min(STOP_POLL));
    }
}

/// The reason why a rig could not start or has failed.
#[derive(Debug, Error, Diagnostic)]
pub enum RigError {
    /// The directory for the sockets could not be made.
    #[error("cannot make a temporary directory in {}", dir.display())]
    #[diagnostic(help("set TMPDIR to a directory that you may write to"))]
    TempDir {
        /// Parent of the directory.
        dir: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The directory cannot hold sockets.
    #[error("a socket cannot have the path {}", path.display())]
    #[diagnostic(help("set TMPDIR to a directory with a short path, such as /tmp"))]
    SocketPath {
        /// The path.
        path: PathBuf,
        /// The fault.
        source: ValueError,
    },
    /// The switch did not start.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Switch(#[from] SwitchError),
    /// A guest did not connect.
    #[error("the guest {guest} cannot connect to the switch")]
    Connect {
        /// The guest.
        guest: &'static str,
        /// The error.
        source: VifError,
    },
    /// A connected guest's interface passes no frames.
    #[error("the interface of the guest {guest} cannot start: {reason}")]
    NotReady {
        /// The guest.
        guest: &'static str,
        /// The port's state in the switch.
        reason: String,
    },
    /// The switch refuses other settings.
    #[error("cannot change when the guest {guest} is called: {message}")]
    Calls {
        /// The guest.
        guest: &'static str,
        /// The switch's answer.
        message: String,
    },
    /// A guest's thread could not start.
    #[error("cannot start a thread for the guest {guest}")]
    Thread {
        /// The guest.
        guest: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// A guest gave up.
    #[error("the guest {guest} gave up")]
    Load {
        /// The guest.
        guest: &'static str,
        /// The error.
        source: LoadError,
    },
    /// Signals cannot be caught.
    #[error("cannot catch signals")]
    Signals(#[source] io::Error),
}

/// Options of a rig.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setup {
    /// The traffic.
    pub load: Load,
    /// Policy of the guests' calls.
    pub calls: CallSettings,
    /// Policy of the sender's calls, if it differs.
    pub sender_calls: Option<CallSettings>,
    /// Longest hold of the guests' frames.
    pub latency_budget: LatencyBudget,
    /// Workers of the switch.
    pub workers: Workers,
    /// True if the guests use packed rings, false for split rings.
    pub packed: bool,
    /// True if the guests accept several frames in one buffer.
    pub containers: bool,
    /// The sender's filter rules.
    pub filter: &'static [&'static str],
    /// CPUs of guests and workers.
    pub places: Places,
}

/// A switch with two guests, and traffic between them.
pub struct Rig {
    // The fields are dropped in this order: guests disconnect before the switch ends.
    sender: Guest,
    receiver: Guest,
    switch: Arc<Switch>,
    started: Instant,
}

impl Rig {
    /// Starts everything, with sockets in `dir`.
    pub fn start(setup: &Setup, dir: &Path) -> Result<Self, RigError> {
        let cpus = setup.places.cpus();
        let switch = Switch::start(&config(setup, dir)?)?;
        if let Some(cpus) = cpus {
            for worker in switch.engine().worker_threads().into_iter().flatten() {
                pin(Some(worker), cpus.workers);
            }
        }
        let connect =
            |role: Role| IdleGuest::connect(role, setup, socket(dir, role.name())?.as_path());
        let sender = connect(Role::Sender)?;
        let receiver = connect(Role::Receiver)?;
        for role in [Role::Sender, Role::Receiver] {
            wait_until(&switch, role, |port| port.state == PortState::Running)?;
        }
        let receiver = receiver.start(setup.load, cpus.map(|cpus| cpus.receiver))?;
        if setup.load != Load::Silence {
            // Frames to the receiver are flooded until the switch knows its address, and flooded frames do not wait
            // for buffers.
            wait_until(&switch, Role::Receiver, |port| port.tx.frames > 0)?;
        }
        let sender = sender.start(setup.load, cpus.map(|cpus| cpus.sender))?;
        Ok(Self { sender, receiver, switch, started: Instant::now() })
    }

    /// Returns the time since the traffic began.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Returns true if a guest has given up. [`finish`](Self::finish) returns the reason.
    pub fn has_failed(&self) -> bool {
        self.guests().into_iter().any(Guest::has_failed)
    }

    /// Returns one of the guests.
    pub fn guest(&self, role: Role) -> &Guest {
        match role {
            Role::Sender => &self.sender,
            Role::Receiver => &self.receiver,
        }
    }

    /// Returns both guests.
    pub fn guests(&self) -> [&Guest; 2] {
        [&self.sender, &self.receiver]
    }

    /// Returns the switch's present counters.
    pub fn stats(&self) -> SwitchStats {
        self.switch.stats()
    }

    /// Changes the policy of the guests' calls from now on. The sender may have a different policy.
    pub fn set_calls(
        &self,
        calls: CallSettings,
        sender_calls: Option<CallSettings>,
    ) -> Result<(), RigError> {
        fn change<T>(value: Option<T>) -> Change<T> {
            value.map_or(Change::Clear, Change::Set)
        }
        for (role, calls) in
            [(Role::Sender, sender_calls.unwrap_or(calls)), (Role::Receiver, calls)]
        {
            let changes = VifChanges {
                moderation: Some(calls.moderation),
                rx_usecs: change(calls.rx_usecs),
                rx_frames: change(calls.rx_frames),
                container_bytes: change(calls.container_bytes),
                ..VifChanges::default()
            };
            let answer = self
                .switch
                .handle(Request::VifSet { name: port_name(role), changes: changes.into() });
            if let Response::Error { message, .. } = answer {
                return Err(RigError::Calls { guest: role.name(), message });
            }
        }
        Ok(())
    }

    /// Ends the traffic, the guests and the switch.
    ///
    /// # Errors
    /// [`RigError::Load`] if a guest had given up.
    pub fn finish(self) -> Result<(), RigError> {
        self.sender.stop();
        self.receiver.stop();
        self.sender.finish().and(self.receiver.finish())
    }
}

/// Returns the port of a guest in `stats`.
pub fn port(stats: &SwitchStats, role: Role) -> Option<&PortStats> {
    let mut ports = stats.ports.iter();
    ports.find(|port| port.name.as_str() == role.name())
}

/// Makes a directory for the sockets. It is removed when it is dropped.
pub fn temp_dir() -> Result<TempDir, RigError> {
    let parent = std::env::temp_dir();
    std::path::absolute(&parent)
        .and_then(|parent| tempfile::Builder::new().prefix("weir-").tempdir_in(parent))
        .map_err(|source| RigError::TempDir { dir: parent, source })
}

/// Returns a flag that SIGINT, SIGTERM and SIGHUP set, so that the results so far are shown and the sockets removed.
pub fn catch_signals() -> Result<Arc<AtomicBool>, RigError> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).map_err(RigError::Signals)?;
    }
    Ok(stop)
}

/// Returns a configuration as `weir run` reads it from a file.
fn config(setup: &Setup, dir: &Path) -> Result<Config, RigError> {
    let vif = |role: Role| {
        let mut vif = VifConfig::new(port_name(role), socket(dir, role.name())?);
        let calls = match role {
            Role::Sender => setup.sender_calls.unwrap_or(setup.calls),
            Role::Receiver => setup.calls,
        };
        let CallSettings { moderation, rx_usecs, rx_frames, container_bytes } = calls;
        vif = VifConfig { moderation, rx_usecs, rx_frames, container_bytes, ..vif };
        Ok::<_, RigError>(vif)
    };
    let mut sender = vif(Role::Sender)?;
    let rules = setup.filter.iter().map(|rule| rule.parse::<FilterRule>());
    sender.filter = rules.collect::<Result<_, _>>().expect("constants that are valid rules");
    let switch = SwitchConfig {
        workers: setup.workers,
        latency_budget: setup.latency_budget,
        ..SwitchConfig::new(socket(dir, "control")?)
    };
    Ok(Config::of_vifs(switch, vec![sender, vif(Role::Receiver)?]))
}

fn port_name(role: Role) -> PortName {
    let name = role.name().parse();
    name.expect("a constant that is a valid name")
}

/// Returns the socket of that name in `dir`.
pub fn socket(dir: &Path, name: &str) -> Result<SocketPath, RigError> {
    let path = dir.join(name).with_extension("sock");
    SocketPath::to_listen(&path).map_err(|source| RigError::SocketPath { path, source })
}

/// Waits until a guest's interface is `ready`. Earlier frames are lost, as with every booting machine.
fn wait_until(switch: &Switch, role: Role, ready: fn(&PortStats) -> bool) -> Result<(), RigError> {
    let start = Instant::now();
    loop {
        let stats = switch.stats();
        let port = port(&stats, role);
        if port.is_some_and(ready) {
            return Ok(());
        }
        let state = port.map(|port| port.state).unwrap_or_default();
        if state == PortState::Stopped || start.elapsed() > START_TIMEOUT {
            let reason = port.and_then(|port| port.stopped_reason.clone());
            return Err(RigError::NotReady {
                guest: role.name(),
                reason: reason.unwrap_or_else(|| format!("the port is {state}")),
            });
        }
        thread::sleep(START_POLL);
    }
}

/// Distribution of the threads if there are two CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Places {
    /// The scheduler decides. It distributes three threads over two CPUs differently each time.
    Anywhere,
    /// The guests share a CPU, and the workers have the other.
    GuestsTogether,
    /// The receiver has a CPU alone, so that its thread's CPU time does not include switches to the sender.
    ReceiverAlone,
}

/// CPU of each thread.
#[derive(Debug, Clone, Copy)]
struct Cpus {
    workers: usize,
    sender: usize,
    receiver: usize,
}

impl Places {
    /// Returns the CPUs; `None` if the scheduler decides, or there is only one CPU.
    fn cpus(self) -> Option<Cpus> {
        let [first, last] = two_cpus()?;
        match self {
            Self::Anywhere => None,
            Self::GuestsTogether => Some(Cpus { workers: last, sender: first, receiver: first }),
            Self::ReceiverAlone => Some(Cpus { workers: last, sender: last, receiver: first }),
        }
    }
}

/// Returns the CPUs on which this thread may run.
pub fn usable_cpus() -> Vec<usize> {
    let allowed = sched_getaffinity(None).unwrap_or_default();
    (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect()
}

/// Returns the first and the last usable CPU; `None` if there is only one.
pub fn two_cpus() -> Option<[usize; 2]> {
    match usable_cpus()[..] {
        [first, .., last] => Some([first, last]),
        _ => None,
    }
}

/// Pins a thread (`None`: this thread) to a CPU. A thread that may not be pinned runs anywhere.
pub fn pin(thread: Option<u32>, cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    let thread = thread.map(|id| i32::try_from(id).ok().and_then(Pid::from_raw));
    if !matches!(thread, Some(None)) {
        let _ = sched_setaffinity(thread.flatten(), &set);
    }
}

#[cfg(test)]
mod tests {
    //! Changes of policies under traffic, by requests like those of the control socket.

    use weir_config::{Moderation, Setting, VifChanges, WorkerCount};
    use weir_policy::moderation::Kind;
    use weir_switch::control::{ControlHandler, Request, Response};
    use weir_switch::explain::VifExplanation;
    use weir_vif::load::{bulk, mixed, pingpong, small};

    use super::*;

    const RECEIVER: Role = Role::Receiver;
    /// Time after which a test gives up.
    const PATIENCE: Duration = Duration::from_secs(60);

    fn rig(load: Load) -> (Rig, TempDir) {
        let dir = temp_dir().unwrap();
        let workers = Workers::Count(WorkerCount::try_from(1).unwrap());
        let setup = Setup {
            load,
            calls: CallSettings::default(),
            sender_calls: None,
            latency_budget: LatencyBudget::DEFAULT,
            workers,
            packed: false,
            containers: false,
            places: Places::Anywhere,
            filter: &[],
        };
        (Rig::start(&setup, dir.path()).unwrap(), dir)
    }

    fn set(rig: &Rig, settings: &[&str]) -> Response {
        let settings: Vec<Setting> = settings.iter().map(|text| text.parse().unwrap()).collect();
        let name = port_name(RECEIVER);
        let changes = VifChanges::from_settings(&name, &settings).unwrap();
        rig.switch.handle(Request::VifSet { name, changes: changes.into() })
    }

    fn explain(rig: &Rig) -> VifExplanation {
        match rig.switch.handle(Request::VifExplain { name: port_name(RECEIVER) }) {
            Response::Explained { explanation } => *explanation,
            other => panic!("{other:?}"),
        }
    }

    fn received(rig: &Rig) -> u64 {
        port(&rig.stats(), RECEIVER).unwrap().rx.frames
    }

    #[test]
    fn every_policy_can_take_over_while_traffic_flows() {
        let loads = [
            Load::Bulk(bulk::Options::default()),
            Load::Small(small::Options::default()),
            Load::RequestResponse(pingpong::Options::default()),
            Load::Mixed(mixed::Options::default()),
        ];
        for load in loads {
            let (rig, _dir) = rig(load);
            for &kind in Kind::ALL {
                assert_eq!(set(&rig, &[&format!("moderation={kind}")]), Response::Ok);
                let before = received(&rig);
                let start = Instant::now();
                while received(&rig) < before + 300 {
                    assert!(start.elapsed() < PATIENCE, "nothing moves under {kind}: {load:?}");
                    assert!(!rig.has_failed());
                    thread::sleep(START_POLL);
                }
                assert_eq!(explain(&rig).queues[0].moderation, Moderation(kind));
            }
            let stats = rig.stats();
            let breaches = &port(&stats, RECEIVER).unwrap().budget_breaches;
            assert_eq!(breaches.get("policy"), None, "a deadline past the budget");
            rig.finish().unwrap();
        }
    }

    #[test]
    fn settings_that_do_not_go_together_change_nothing() {
        let (rig, _dir) = rig(Load::Silence);
        assert_eq!(set(&rig, &["moderation=backend", "rx_usecs=150"]), Response::Ok);
        let before = explain(&rig);
        let queue = &before.queues[0];
        assert_eq!((queue.hold_ns, queue.reason.as_str()), (150_000, "rx-usecs"));
        assert_eq!(queue.hold_ns_max, 230_000, "timers have their share of 250 us");
        for refused in [
            &["latency_budget=100us"][..],
            &["rx_usecs=251"],
            &["moderation=immediate", "rx_usecs=1"],
        ] {
            assert!(matches!(set(&rig, refused), Response::Error { .. }), "{refused:?}");
        }
        // Time passes, and the share of the workers' time changes.
        let VifExplanation { sharing, receiving, traffic, .. } = before.clone();
        assert_eq!(VifExplanation { sharing, receiving, traffic, ..explain(&rig) }, before);
        assert_eq!(set(&rig, &["latency_budget=100us", "rx_usecs=none"]), Response::Ok);
        assert_eq!(explain(&rig).queues[0].hold_ns, 80_000);
        assert_eq!(set(&rig, &["latency_budget=0us"]), Response::Ok);
        assert_eq!(explain(&rig).queues[0].hold_ns, 0, "a budget of zero holds nothing");
        rig.finish().unwrap();
    }

    #[test]
    fn filters_can_be_replaced_while_traffic_flows() {
        let (rig, _dir) = rig(Load::Small(small::Options::default()));
        let filter = |role, rules: &[&str]| {
            let rules = rules.iter().map(|rule| rule.parse().unwrap()).collect();
            rig.switch.handle(Request::FilterSet { name: port_name(role), rules })
        };
        let drops = |role, reason| {
            port(&rig.stats(), role).unwrap().drops.get(reason).copied().unwrap_or(0)
        };
        let eventually = |what: &str, holds: &dyn Fn() -> bool| {
            let start = Instant::now();
            while !holds() {
                assert!(start.elapsed() < PATIENCE, "never happened: {what}");
                thread::sleep(START_POLL);
            }
        };
        for _ in 0..20 {
            let before = received(&rig);
            assert_eq!(filter(Role::Sender, &["tx accept udp", "tx drop"]), Response::Ok);
            eventually("packets pass and are counted", &|| {
                let stats = rig.stats();
                let rules = &port(&stats, Role::Sender).unwrap().filter;
                received(&rig) > before && rules[0].packets > 0 && rules[0].bytes >= 60
            });
            let dropped = drops(Role::Sender, "filtered_tx");
            assert_eq!(filter(Role::Sender, &["tx drop src net 10.0.0.0/8 and udp"]), Response::Ok);
            eventually("the sender's go nowhere", &|| drops(Role::Sender, "filtered_tx") > dropped);
            assert_eq!(filter(Role::Sender, &[]), Response::Ok);
            let dropped = drops(RECEIVER, "filtered_rx");
            assert_eq!(filter(RECEIVER, &["rx drop udp"]), Response::Ok);
            eventually("the receiver gets none", &|| drops(RECEIVER, "filtered_rx") > dropped);
            assert_eq!(explain(&rig).filter[0].rule.to_string(), "rx drop udp");
            assert_eq!(filter(RECEIVER, &[]), Response::Ok);
        }
        let nobody = Request::FilterSet { name: "nobody".parse().unwrap(), rules: Vec::new() };
        assert!(matches!(rig.switch.handle(nobody), Response::Error { .. }));
        rig.finish().unwrap();
    }
}
