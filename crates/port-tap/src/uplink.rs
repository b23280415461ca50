//! The common part of all uplinks' ports. They are served from the start to the end of a switch, and a port that has
//! lost its device does not come back.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, OnceLock};

use weir_engine::burst::{Burst, Scratch};
use weir_engine::guest::{GuestRing, TransmitRing};
use weir_engine::queue::{Source, TransmitQueue};
use weir_engine::{
    Ask, DropReason, Engine, Forward, Port, PortCounters, QueueRef, Side, Take, Taken, Watch,
    clock, lock, record_flows,
};
use weir_fabric::PortId;

/// An uplink's state besides its device.
pub struct Service {
    name: String,
    counters: Arc<PortCounters>,
    failure: OnceLock<String>,
    watches: Mutex<Vec<Watch>>,
}

impl Service {
    /// The state for the interface of that name, with these counters.
    pub fn new(name: String, counters: Arc<PortCounters>) -> Self {
        Self { name, counters, failure: OnceLock::new(), watches: Mutex::default() }
    }

    /// The interface's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The port's counters.
    pub fn counters(&self) -> &PortCounters {
        &self.counters
    }

    /// See [`Port::kicked`].
    pub fn kicked(&self, queue: usize, side: Side) {
        if let (Side::Tx, Some(tx)) = (side, self.counters.tx.get(queue)) {
            tx.kicks.add(1);
        }
    }

    /// Stops the port because its interface was removed, with `error` as the evidence.
    pub fn gone(&self, error: &dyn fmt::Display) {
        self.fail(&format!("interface `{}` is gone: {error}", self.name));
    }

    /// Stops the port. Only the first reason counts.
    pub fn fail(&self, reason: &str) {
        if self.failure.set(reason.to_owned()).is_ok() {
            tracing::error!(interface = self.name, reason, "port stopped");
        }
    }

    /// True if the port has stopped.
    pub fn has_failed(&self) -> bool {
        self.failure.get().is_some()
    }

    fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    fn set_watches(&self, watches: Vec<Watch>) {
        *lock(&self.watches) = watches;
    }
}

/// The state behind the lock of an uplink's transmit queue. Nobody is notified when its frames are
/// finished.
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

/// A transmit queue whose frames come from a device, a socket or weir itself: no guest's memory is lent, and nobody can
/// break a rule. [`FromDevice`] makes it a [`Source`].
pub trait DeviceFrames {
    /// The state behind the queue's lock.
    type Places;

    /// See [`Source::PEEK`].
    const PEEK: bool = false;
    /// See [`Source::FROM_DEVICE`].
    const FROM_DEVICE: bool = true;
    /// Most frames that wait for receivers.
    const PARKED_MAX: usize;

    /// The port's state, and the number of the queue.
    fn queue(&self) -> (&Service, usize);

    /// Takes new frames, and adds each to the burst or counts why not. Returns their number.
    fn read<'m>(&'m self, places: &mut Self::Places, now_ns: u64, burst: &mut Burst<'m>) -> usize;

    /// Adds a frame again after a wait, with its time of arrival.
    fn read_again<'m>(
        &'m self,
        places: &mut Self::Places,
        token: u64,
        arrived_ns: u64,
        burst: &mut Burst<'m>,
    );

    /// Frees the memory of frames.
    fn free(&self, places: &mut Self::Places, tokens: impl Iterator<Item = u64>);

    /// True if there may be a frame without a kick.
    fn has_more(&self, places: &Self::Places) -> bool;
}

/// Frames of a device as a [`Source`].
#[derive(Debug)]
pub struct FromDevice<Q>(pub Q);

impl<Q: DeviceFrames> Source for FromDevice<Q> {
    type Ring = Uncalled<Q::Places>;
    type Lent = ();
    type Error = Infallible;

    const PEEK: bool = Q::PEEK;
    const FROM_DEVICE: bool = Q::FROM_DEVICE;

    fn index(&self) -> usize {
        self.0.queue().1
    }

    fn counters(&self) -> &PortCounters {
        self.0.queue().0.counters()
    }

    fn has_failed(&self) -> bool {
        self.0.queue().0.has_failed()
    }

    fn parked_max(&self, _: &Self::Ring) -> usize {
        Q::PARKED_MAX
    }

    fn lend(&self, _: &mut Self::Ring, _: Take) -> Option<()> {
        Some(())
    }

    fn fill<'m>(
        &'m self,
        Uncalled(places): &mut Self::Ring,
        _: &'m (),
        now_ns: u64,
        burst: &mut Burst<'m>,
    ) -> Result<usize, Infallible> {
        Ok(self.0.read(places, now_ns, burst))
    }

    fn fill_again<'m>(
        &'m self,
        Uncalled(places): &mut Self::Ring,
        _: &'m (),
        token: u64,
        arrived_ns: u64,
        burst: &mut Burst<'m>,
    ) -> Result<(), Infallible> {
        self.0.read_again(places, token, arrived_ns, burst);
        Ok(())
    }

    fn settle(&self, Uncalled(places): &mut Self::Ring, _: &(), burst: &Burst<'_>) -> u32 {
        let gone = burst.chains_and_stay().filter(|(_, stays)| !stays);
        self.0.free(places, gone.map(|(chain, _)| chain.token));
        0
    }

    fn release(&self, Uncalled(places): &mut Self::Ring, token: u64, _: DropReason) {
        self.0.free(places, std::iter::once(token));
    }

    fn has_more(&self, Uncalled(places): &mut Self::Ring) -> Result<bool, Infallible> {
        Ok(self.0.has_more(places))
    }
}

/// A port to an interface of the host.
pub trait UplinkPort: Port {
    /// The port's state.
    fn service(&self) -> &Service;

    /// One descriptor per queue, readable when a frame is there.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>>;

    /// Starts the service: the switch forwards to this port, which has number `id` in `engine`, and the engine serves
    /// its queues until [`stop`](Self::stop) or the port's end.
    ///
    /// # Errors
    /// A descriptor cannot be duplicated or added to a worker's epoll set, or there is no port `id`. Then no queue is
    /// served.
    fn start(&self, engine: &Engine, id: PortId) -> io::Result<()> {
        // The port is activated first: a descriptor may be ready as soon as it is watched.
        engine.fabric().set_active(id, true).map_err(io::Error::other)?;
        self.serve(engine, id)
    }

    /// As [`start`](Self::start), for an uplink of a bond: the switch forwards to the bond.
    ///
    /// # Errors
    /// Those of [`start`](Self::start).
    fn serve(&self, engine: &Engine, id: PortId) -> io::Result<()> {
        let watch = |(queue, fd): (usize, BorrowedFd<'_>)| {
            let queue = QueueRef { port: id, queue, side: Side::Tx };
            engine.watch(queue, fd.try_clone_to_owned()?)
        };
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

    /// Ends the service that [`start`](Self::start) has begun.
    fn stop(&self, engine: &Engine, id: PortId) {
        self.service().set_watches(Vec::new());
        // A port that was removed is stopped already.
        let _ = engine.fabric().set_active(id, false);
    }

    /// [`Port::take`] for a queue, `tx`, whose frames are those of `source`. Replies of their flows go to the same
    /// queue.
    fn take_from<S: Source<Error = Infallible>>(
        &self,
        (tx, source): (&TransmitQueue<S::Ring>, &S),
        ask: Ask,
        scratch: &mut Scratch,
        forward: Forward<'_>,
    ) -> Taken
    where
        Self: Sized,
    {
        if self.service().has_failed() {
            tx.lock().abandon(source, DropReason::TxDisabled);
            return Taken::default();
        }
        let steering = self.steering().filter(|_| ask.what == Take::New && self.rx_queues() > 1);
        let mut record_and_forward = |burst: &mut Burst<'_>| {
            if let Some(steering) = steering {
                record_flows(steering, source.index(), burst, clock::secs(ask.now_ns), self);
            }
            forward(burst);
        };
        let Ok(taken) = tx.take(source, ask, scratch, &mut record_and_forward);
        taken
    }

    /// [`Port::arm_tx`] for such a queue.
    fn arm<S: Source>(&self, tx: &TransmitQueue<S::Ring>, source: &S) -> bool
    where
        Self: Sized,
    {
        !self.service().has_failed() && source.has_more(&mut tx.lock().queue).unwrap_or(false)
    }

    /// The number of queues, each with both directions.
    fn queues(&self) -> usize {
        self.descriptors().len()
    }

    /// The reason why the port stopped, if it did.
    fn failure(&self) -> Option<&str> {
        self.service().failure()
    }

    /// The reason why nothing passes at present: the port stopped, or its peer is away for now.
    fn trouble(&self) -> Option<String> {
        self.failure().map(str::to_owned)
    }
}
