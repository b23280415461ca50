//! What all uplinks' ports have in common: they are served from the start to the end of a switch, and
//! one that has lost its device does not come back.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, OnceLock};

use weir_engine::guest::{GuestRing, TransmitRing};
use weir_engine::{Engine, Port, QueueRef, Side, Watch};
use weir_fabric::PortId;

/// An uplink's state beside its device.
pub struct Service {
    name: String,
    failure: OnceLock<String>,
    watches: Mutex<Vec<Watch>>,
}

impl Service {
    /// Of the interface of that name.
    pub fn new(name: String) -> Self {
        Self { name, failure: OnceLock::new(), watches: Mutex::new(Vec::new()) }
    }

    /// The interface's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The port stops, for the first reason that is given.
    pub fn fail(&self, reason: &str) {
        if self.failure.set(reason.to_owned()).is_ok() {
            tracing::error!(interface = self.name, reason, "port stopped");
        }
    }

    /// It has stopped.
    pub fn has_failed(&self) -> bool {
        self.failure.get().is_some()
    }

    fn set_watches(&self, watches: Vec<Watch>) {
        *self.watches.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = watches;
    }
}

/// What is behind the lock of an uplink's transmit queue: nobody is told that its frames are done with.
#[derive(Debug)]
pub struct Uncalled<P>(pub P);

impl<P> GuestRing for Uncalled<P> {
    fn size(&mut self) -> u32 {
        0
    }

    fn call_if_wanted(&mut self) -> Option<bool> {
        None
    }
}

impl<P> TransmitRing for Uncalled<P> {
    fn wants_call(&mut self) -> bool {
        false
    }
}

/// A port to an interface of the host.
pub trait UplinkPort: Port {
    /// Its state.
    fn service(&self) -> &Service;

    /// One descriptor per queue, readable when a frame is there.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>>;

    /// Begins: the switch forwards to this port, which is number `id` of `engine`, and the engine
    /// serves its queues, until [`stop`](Self::stop) or the port's end.
    ///
    /// # Errors
    /// Of duplicating a descriptor or adding it to a worker's epoll set, or there is no port `id`. No
    /// queue is served then.
    fn start(&self, engine: &Engine, id: PortId) -> io::Result<()> {
        let watch = |(queue, fd): (usize, BorrowedFd<'_>)| {
            let queue = QueueRef { port: id, queue, side: Side::Tx };
            engine.watch(queue, fd.try_clone_to_owned()?)
        };
        // First: what a descriptor says as soon as it is watched must find the port active.
        engine.fabric().set_active(id, true).map_err(io::Error::other)?;
        let watches: io::Result<Vec<_>> =
            self.descriptors().into_iter().enumerate().map(watch).collect();
        match watches {
            Ok(watches) => self.service().set_watches(watches),
            Err(error) => {
                self.stop(engine, id);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Ends what [`start`](Self::start) began.
    fn stop(&self, engine: &Engine, id: PortId) {
        self.service().set_watches(Vec::new());
        // A port that has been removed is stopped already.
        let _ = engine.fabric().set_active(id, false);
    }

    /// Queues, each with both directions.
    fn queues(&self) -> usize {
        self.descriptors().len()
    }

    /// Why the port stopped, if it did.
    fn failure(&self) -> Option<&str> {
        self.service().failure.get().map(String::as_str)
    }
}
