//! A guest: a vhost-user driver with a thread that is one end of the traffic.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use weir_limits::QUEUE_SIZE_SUGGESTED;
use weir_vif::load::{End, Flow, LoadError, LoadStats, Station, bulk, mixed, pingpong, small};
use weir_vif::{Features, Options, QueuePair, Vif, WaitFor};
use weir_wire::Mac;

use super::{RigError, Setup, pin};

/// A connected guest without traffic.
pub(super) struct IdleGuest {
    role: Role,
    vif: Vif,
    pair: QueuePair,
}

impl IdleGuest {
    /// Connects to the switch at `socket`, with an interface according to `setup`.
    pub(super) fn connect(role: Role, setup: &Setup, socket: &Path) -> Result<Self, RigError> {
        let mut options = Options {
            queue_size: QUEUE_SIZE_SUGGESTED,
            containers: setup.containers,
            ..Options::new(role.station().mac)
        };
        if setup.packed {
            options.features = options.features | Features::RING_PACKED;
            options.required = options.required | Features::RING_PACKED;
        }
        let connect_error = |source| RigError::Connect { guest: role.name(), source };
        let mut vif = Vif::connect(socket, &options).map_err(connect_error)?;
        let pair = vif.queue_pairs().remove(0);
        Ok(Self { role, vif, pair })
    }

    /// Starts the guest's end of the traffic, on `cpu` if there is one.
    pub(super) fn start(self, load: Load, cpu: Option<usize>) -> Result<Guest, RigError> {
        let Self { role, vif, pair } = self;
        let on_start = move || {
            if let Some(cpu) = cpu {
                pin(None, cpu);
            }
        };
        Guest::start(load, role, role.flow(), vif, pair, on_start)
    }
}

/// A guest at work. Dropping it ends its thread, then its session.
pub struct Guest {
    /// The guest's end of the traffic.
    pub role: Role,
    /// Measurements of the guest's end.
    pub stats: Arc<LoadStats>,
    stop: Arc<AtomicBool>,
    thread_id: Arc<AtomicU32>,
    thread: Option<JoinHandle<Result<(), LoadError>>>,
    _vif: Vif,
}

impl Guest {
    /// Starts a thread that calls `on_start` and then runs the end `role` of `load` over `flow`.
    pub fn start(
        load: Load,
        role: Role,
        flow: Flow,
        vif: Vif,
        mut pair: QueuePair,
        on_start: impl FnOnce() + Send + 'static,
    ) -> Result<Self, RigError> {
        let stats = Arc::new(LoadStats::default());
        let stop = Arc::new(AtomicBool::new(false));
        let thread_id = Arc::new(AtomicU32::new(0));
        let thread = thread::Builder::new().name(format!("guest-{}", role.name())).spawn({
            let (stats, stop) = (Arc::clone(&stats), Arc::clone(&stop));
            let thread_id = Arc::clone(&thread_id);
            move || {
                let tid = rustix::thread::gettid().as_raw_nonzero().get();
                thread_id.store(tid.unsigned_abs(), Ordering::Relaxed);
                on_start();
                load.run(role, End { pair: &mut pair, flow: &flow, stats: &stats, stop: &stop })
            }
        });
        let thread =
            Some(thread.map_err(|source| RigError::Thread { guest: role.name(), source })?);
        Ok(Self { role, stats, stop, thread_id, thread, _vif: vif })
    }

    /// Returns the CPU time of the guest's thread so far (ns); 0 if the kernel does not report it.
    pub fn cpu_ns(&self) -> u64 {
        let tid = self.thread_id.load(Ordering::Relaxed);
        weir_engine::thread_cpu_ns(tid).unwrap_or(0)
    }

    /// Returns true if the guest's thread has ended without a request.
    pub fn has_failed(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Requests the end of the guest's thread, without a wait.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Waits for the end of the guest's thread.
    pub fn finish(mut self) -> Result<(), RigError> {
        self.stop();
        match self.thread.take().map(JoinHandle::join) {
            None | Some(Ok(Ok(()))) => Ok(()),
            Some(Ok(Err(source))) => Err(RigError::Load { guest: self.role.name(), source }),
            Some(Err(panic)) => std::panic::resume_unwind(panic),
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.stop();
        // A caller that drops the guest without `finish` has another error to report.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// TCP or UDP port of the sender and of the receiver.
const PORTS: (u16, u16) = (40_000, 5_201);
/// Interval at which a silent guest checks for its end.
const STOP_POLL: Duration = Duration::from_millis(50);

/// An end of the traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Sends frames or requests.
    Sender,
    /// Receives frames or answers requests.
    Receiver,
}

impl Role {
    /// Returns the name of the guest and of its interface.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sender => "sender",
            Self::Receiver => "receiver",
        }
    }

    /// Returns the guest's addresses.
    pub(super) fn station(self) -> Station {
        let number = match self {
            Self::Sender => 1,
            Self::Receiver => 2,
        };
        Station { mac: Mac([0x52, 0x54, 0, 0, 0, number]), ip: Ipv4Addr::new(10, 0, 0, number) }
    }

    /// Returns the flow as seen from the guest.
    pub(super) fn flow(self) -> Flow {
        let flow = Flow {
            local: Self::Sender.station(),
            remote: Self::Receiver.station(),
            local_port: PORTS.0,
            remote_port: PORTS.1,
        };
        match self {
            Self::Sender => flow,
            Self::Receiver => flow.reversed(),
        }
    }
}

/// A kind of traffic, from one guest to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// A TCP-like stream.
    Bulk(bulk::Options),
    /// Small packets.
    Small(small::Options),
    /// One request at a time.
    RequestResponse(pingpong::Options),
    /// A stream and small packets on the same queues.
    Mixed(mixed::Options),
    /// No traffic.
    Silence,
}

impl Load {
    /// Returns the end that measures latencies: for a stream from a frame to its acknowledgement, for requests the
    /// round trip, and for small packets one way.
    pub fn latency_at(self) -> Role {
        match self {
            Self::Bulk(_) | Self::RequestResponse(_) => Role::Sender,
            Self::Small(_) | Self::Mixed(_) | Self::Silence => Role::Receiver,
        }
    }

    /// Runs one end of the traffic until `end.stop`.
    pub fn run(self, role: Role, end: End<'_>) -> Result<(), LoadError> {
        match (self, role) {
            (Self::Bulk(options), Role::Sender) => bulk::send(end, &options),
            (Self::Bulk(options), Role::Receiver) => bulk::receive(end, &options),
            (Self::Small(options), Role::Sender) => small::send(end, &options),
            (Self::Small(options), Role::Receiver) => small::receive(end, &options),
            (Self::RequestResponse(options), Role::Sender) => pingpong::request(end, &options),
            (Self::RequestResponse(_), Role::Receiver) => pingpong::respond(end),
            (Self::Mixed(options), Role::Sender) => mixed::send(end, &options),
            (Self::Mixed(options), Role::Receiver) => mixed::receive(end, &options),
            (Self::Silence, _) => {
                while !end.stop.load(Ordering::Relaxed) {
                    end.pair.wait(WaitFor::Receive, STOP_POLL)?;
                }
                Ok(())
            }
        }
    }
}
