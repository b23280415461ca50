//! Transmit queues: from a guest's ring into a burst, and back to the guest when it is forwarded.
//!
//! [`weir_engine::queue`] decides who takes when, which frames wait, and when the guest is notified.

use std::sync::Arc;

use weir_engine::burst::{Burst, FrameError, Pieces, TakenChain};
use weir_engine::queue::Source;
use weir_engine::{DropReason, PortCounters, Take};
use weir_guestmem::GuestMemory;
use weir_limits::{BURST_BYTES_MAX, BURST_MAX, PARKED_MAX};
use weir_ring::{DeviceRing, Direction, RingError, Taken, Token};

use crate::error::{Fault, StopReason};
use crate::port::VhostPort;
use crate::queue::{Holds, Queue, Ring};

pub(crate) type TxQueue = weir_engine::queue::TransmitQueue<Queue>;

/// One of a port's transmit queues.
pub(crate) struct Sending<'p> {
    pub(crate) port: &'p VhostPort,
    /// The queue pair.
    pub(crate) index: usize,
}

/// The things that a burst borrows.
pub(crate) struct Lent {
    memory: Arc<GuestMemory>,
    /// The chains of the burst were taken before, and kept.
    stayed: bool,
}

impl Sending<'_> {
    /// A fault of the ring, as the reason to stop.
    #[cold]
    fn broken(&self, broken: Broken, lent: &Lent) -> Fault {
        broken.at(2 * self.index + 1, &lent.memory).into()
    }
}

impl Source for Sending<'_> {
    type Ring = Queue;
    type Lent = Lent;
    type Error = Fault;

    #[inline]
    fn index(&self) -> usize {
        self.index
    }

    #[inline]
    fn counters(&self) -> &PortCounters {
        self.port.counters()
    }

    #[inline]
    fn has_failed(&self) -> bool {
        self.port.has_failed()
    }

    #[inline]
    fn parked_max(&self, queue: &Queue) -> usize {
        let size = queue.ring.as_ref().map_or(0, |ring| ring.device.config().size);
        PARKED_MAX.min(usize::from(size / 2))
    }

    #[inline]
    fn is_for_one(&self, queue: &Queue) -> bool {
        let left = queue.ring.as_ref().is_some_and(|ring| !ring.left_behind.is_empty());
        left || queue.injected.is_some() || !queue.enabled
    }

    /// A disabled ring is still drained: "must process and discard any TX packets".
    #[inline]
    fn is_drained(&self, queue: &Queue) -> bool {
        !queue.enabled
    }

    #[inline]
    fn lend(&self, queue: &mut Queue, what: Take) -> Option<Lent> {
        let ring = queue.ring.as_ref()?;
        if !ring.is_served() && !ring.has_only_waiting(what) {
            return None;
        }
        let stayed = what != Take::New || !ring.left_behind.is_empty();
        Some(Lent { memory: Arc::clone(&ring.memory), stayed })
    }

    #[inline(always)]
    fn fill<'m>(
        &'m self,
        queue: &mut Queue,
        lent: &'m Lent,
        now_ns: u64,
        burst: &mut Burst<'m>,
    ) -> Result<usize, Fault> {
        let Some(ring) = queue.ring.as_mut() else { return Ok(0) };
        let counters = self.port.counters();
        let filled = match lent.stayed {
            true => fill_left(ring, &lent.memory, burst, now_ns, counters),
            false => fill_new(ring, &lent.memory, burst, now_ns, counters),
        };
        let consumed = match filled {
            Ok(consumed) => consumed,
            Err(broken) => until_translated(ring, broken, lent, burst, now_ns, counters)
                .map_err(|broken| self.broken(broken, lent))?,
        };
        queue.injected.take_if(|injected| injected.add_to(burst, now_ns));
        Ok(consumed)
    }

    #[cold]
    fn fill_again<'m>(
        &'m self,
        queue: &mut Queue,
        lent: &'m Lent,
        token: u64,
        arrived_ns: u64,
        burst: &mut Burst<'m>,
    ) -> Result<(), Fault> {
        let Some(ring) = queue.ring.as_mut() else { return Ok(()) };
        let counters = self.port.counters();
        match retake(ring, &lent.memory, token.into(), burst, arrived_ns, counters) {
            Err(Broken::Ring(error)) if error.is_untranslated() => {
                counters.dropped(DropReason::TxStopped, 1);
                ring.device.complete_kept(token.into(), 0);
                Ok(())
            }
            result => result.map_err(|broken| self.broken(broken, lent)),
        }
    }

    #[inline(always)]
    fn settle(&self, queue: &mut Queue, lent: &Lent, burst: &Burst<'_>) -> u32 {
        let Some(ring) = queue.ring.as_mut() else { return 0 };
        let published = if burst.room.parked.is_empty() && !lent.stayed {
            ring.device.return_all(&burst.chains, |chain| chain.token.into())
        } else {
            settle_some(ring, lent.stayed, burst);
            ring.device.publish()
        };
        queue.signal_log();
        published.into()
    }

    #[cold]
    fn release(&self, queue: &mut Queue, token: u64, _why: DropReason) {
        if let Some(ring) = queue.ring.as_mut() {
            ring.device.complete_kept(token.into(), 0);
        }
    }

    #[inline]
    fn in_ring(&self, queue: &mut Queue, parked: usize) -> u32 {
        let available = queue.ring.as_ref().map_or(0, |ring| ring.device.available());
        u32::from(available) + parked as u32 // a ring's size
    }

    #[inline]
    fn has_more(&self, queue: &mut Queue) -> Result<bool, Fault> {
        let Some(ring) = queue.ring.as_mut() else { return Ok(false) };
        // A burst may have had no room for all injected frames. A ring that is no longer served lends nothing to the next
        // burst, after which its worker sleeps.
        let more = ring.has_more() || queue.injected.is_some();
        ring.check()?;
        Ok(more)
    }
}

/// Takes a ring out of service, with nothing in flight.
pub(crate) fn stop(queue: &TxQueue, source: &Sending<'_>) -> Option<Ring> {
    let (mut tx, _) = queue.stop(source, DropReason::TxStopped);
    (tx.queue.injected, tx.queue.late) = (None, None);
    let counters = source.port.counters();
    if let Some(ring) = tx.queue.ring.as_mut() {
        let left = std::mem::take(&mut ring.left_behind);
        counters.dropped(DropReason::TxStopped, left.len() as u64);
        for token in left {
            ring.device.complete_kept(token, 0);
        }
        ring.device.publish();
    }
    tx.flush(source.index, counters);
    tx.queue.ring.take()
}

/// Completes chains in the order in which they were taken, except those whose frames were parked.
#[cold]
fn settle_some(ring: &mut Ring, stayed: bool, burst: &Burst<'_>) {
    for (chain, stays) in burst.chains_and_stay() {
        let token = chain.token.into();
        match (stays, stayed) {
            (true, _) => ring.device.keep(token),
            (false, true) => ring.device.complete_kept(token, 0),
            (false, false) => ring.device.complete(token, 0),
        }
    }
}

/// A ring or frame error, before the ring is known.
enum Broken {
    Ring(RingError),
    Frame(FrameError),
}

impl Broken {
    fn at(self, ring: usize, memory: &GuestMemory) -> StopReason {
        let reason = match self {
            Self::Ring(error) => StopReason::Ring { ring, error },
            Self::Frame(error) => StopReason::Frame { ring, error },
        };
        reason.unless_truncated(memory)
    }
}

impl From<RingError> for Broken {
    fn from(error: RingError) -> Self {
        Self::Ring(error)
    }
}

/// Takes new frames from the ring and returns their chains. The function is kept out of line, so
/// that its loops have all registers.
#[inline(never)]
fn fill_new<'m>(
    ring: &mut Ring,
    memory: &'m GuestMemory,
    burst: &mut Burst<'m>,
    now_ns: u64,
    counters: &PortCounters,
) -> Result<usize, Broken> {
    let Ring { device, features, .. } = ring;
    device.suppress_kicks();
    let available = device.refill()?;
    let mut frames_max = burst.frames_max.min(BURST_MAX) as u16;
    let Burst { chains, pieces, .. } = burst;
    let mut bytes = 0;
    // A packed ring may have more available chains than this number.
    if available == 1
        && frames_max > 0
        && let Some((token, front)) = device.take_plain(Direction::Readable, memory)
    {
        let (token, len) = (token.into(), front.len() as u32); // a descriptor's
        chains.push(TakenChain { token, len, pieces: Pieces::Only(front) });
        bytes = len.into();
        frames_max = if device.has_more() { frames_max - 1 } else { 0 };
    }
    if frames_max > 0 {
        device.take_burst(Direction::Readable, frames_max, memory, pieces, chains, |taken| {
            bytes += u64::from(taken.chain.len);
            taken.front.prefetch();
            note(&taken)
        })?;
        if bytes > BURST_BYTES_MAX {
            give_back_rest(device, chains);
        }
    }
    burst.add_chains(features.vnet_len(), now_ns, |error| refused(error, counters))?;
    Ok(burst.chains.len())
}

/// Takes no more from a ring whose next frame cannot be translated yet, until it can. The frames before that one are
/// in the burst.
#[cold]
fn until_translated(
    ring: &mut Ring,
    broken: Broken,
    lent: &Lent,
    burst: &mut Burst<'_>,
    now_ns: u64,
    counters: &PortCounters,
) -> Result<usize, Broken> {
    let Broken::Ring(RingError::Untranslated { .. }) = broken else { return Err(broken) };
    ring.holds.set(Holds::TRANSLATION, true);
    if !lent.stayed {
        give_back_rest(&mut ring.device, &mut burst.chains);
        burst.add_chains(ring.features.vnet_len(), now_ns, |error| refused(error, counters))?;
    }
    Ok(burst.chains.len())
}

/// Leaves for the next burst the frames that would make this one too long.
#[cold]
fn give_back_rest(device: &mut DeviceRing, chains: &mut Vec<TakenChain<'_>>) {
    let mut bytes = 0;
    let within = chains.iter().take_while(|chain| {
        let room = bytes < BURST_BYTES_MAX;
        bytes += u64::from(chain.len);
        room
    });
    let kept = within.count();
    device.give_back(chains.drain(kept..).map(|chain| chain.token.into()));
}

/// Takes the frames that an earlier weir had taken, oldest first: nobody knows which receivers they waited for.
#[cold]
fn fill_left<'m>(
    ring: &mut Ring,
    memory: &'m GuestMemory,
    burst: &mut Burst<'m>,
    now_ns: u64,
    counters: &PortCounters,
) -> Result<usize, Broken> {
    while burst.chains.len() < BURST_MAX
        && let Some(token) = ring.left_behind.pop_front()
    {
        if let Err(broken) = retake(ring, memory, token, burst, now_ns, counters) {
            ring.left_behind.push_front(token);
            return Err(broken);
        }
    }
    Ok(burst.chains.len())
}

/// Takes a chain again that was kept, as a frame that arrived when it was first taken.
fn retake<'m>(
    ring: &mut Ring,
    memory: &'m GuestMemory,
    token: Token,
    burst: &mut Burst<'m>,
    arrived_ns: u64,
    counters: &PortCounters,
) -> Result<(), Broken> {
    let taken = ring.device.retake_readable(token, memory, &mut burst.pieces)?;
    let chain = note(&taken);
    burst.chains.push(chain);
    let added = burst.add(chain, ring.features.vnet_len(), arrived_ns);
    added.or_else(|error| refused(error, counters))
}

/// A chain as the burst knows it.
#[inline(always)]
fn note<'m>(taken: &Taken<'m>) -> TakenChain<'m> {
    let Taken { chain, front, pieces: (first, end) } = *taken;
    let pieces = if taken.is_plain() { Pieces::Only(front) } else { Pieces::Among(first, end) };
    TakenChain { token: chain.token.into(), len: chain.len, pieces }
}

/// Handles a frame that cannot be added: it is dropped and counted, or the port stops.
#[cold]
fn refused(error: FrameError, counters: &PortCounters) -> Result<(), Broken> {
    let reason = error.drop_reason().ok_or(Broken::Frame(error))?;
    counters.dropped(reason, 1);
    Ok(())
}
