//! Transmit queues: from a guest's ring into a burst, and back to the guest when it is forwarded.
//! When the guest is told that they are done with: [`weir_engine::guest`].

pub(crate) mod side_by_side;

use std::collections::VecDeque;
use std::sync::Arc;

use weir_engine::burst::{Burst, FrameError, Scratch, TakenChain};
use weir_engine::guest::{Asked, CallPolicy, Completed, Received, TransmitCalls};
use weir_engine::stages::{self, Stage};
use weir_engine::{DropReason, PortCounters, Take, Taken, UnderWay};
use weir_fabric::PortId;
use weir_guestmem::GuestMemory;
use weir_limits::{BURST_BYTES_MAX, BURST_MAX, PARKED_MAX, PARKED_NS_MAX};
use weir_ring::{Chain, DeviceRing, Pieces, RingError, Token};

use crate::error::StopReason;
use crate::queue::{Queue, Ring};

/// A frame that waits in the guest's own memory for a receiver that was full.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    /// Its descriptor chain: taken, not completed.
    token: Token,
    port: PortId,
    since_ns: u64,
}

/// A transmit queue.
#[derive(Debug, Default)]
pub(crate) struct TxQueue {
    pub(crate) queue: Queue,
    waiting: VecDeque<Waiting>,
    /// Where among them to go on trying: none before that went.
    try_from: usize,
    pub(crate) calls: TransmitCalls,
    /// A frame that weir sends in the guest's name (`SEND_RARP`); a later one replaces it.
    pub(crate) injected: Option<Box<[u8]>>,
    /// Several workers may send from it at a time.
    pub(crate) side_by_side: bool,
    /// Bursts that were taken so, and whether the ring is to stop.
    pub(crate) bursts: UnderWay,
}

impl TxQueue {
    pub(crate) fn new(calls: &CallPolicy) -> Self {
        Self { calls: TransmitCalls::new(calls), ..Self::default() }
    }

    /// See [`weir_engine::Port::take`]. `index` is the queue pair. Inlined, as if it had one caller: the other
    /// is no hot one.
    #[inline(always)]
    pub(crate) fn take(
        &mut self,
        index: usize,
        what: Take,
        now_ns: u64,
        counters: &PortCounters,
        scratch: &mut Scratch,
        forward: &mut dyn FnMut(&mut Burst<'_>),
    ) -> Result<Taken, StopReason> {
        let enabled = self.queue.enabled;
        let closing = self.bursts.is_closing();
        let Some(ring) = self.queue.ring.as_mut().filter(|ring| ring.is_served() && !closing)
        else {
            return Ok(Taken::default());
        };
        // The burst borrows the memory while the ring is completed below.
        let memory = Arc::clone(&ring.memory);
        let mut burst = scratch.lend();
        burst.waited = what != Take::New;
        // What waits behind those that are tried now.
        let mut later = VecDeque::new();
        // They stayed, and are completed as such.
        let stayed = what != Take::New || !ring.left_behind.is_empty();
        let filled = match what {
            Take::New if stayed => fill_left(ring, &memory, &mut burst, now_ns, counters),
            Take::New => fill_new(ring, &memory, &mut burst, now_ns, counters),
            Take::Parked(Some(receiver)) => {
                self.try_from = 0;
                let waiting = &mut self.waiting;
                fill_waiting_for(receiver, ring, &memory, waiting, &mut burst, now_ns, counters)
            }
            Take::Parked(None) => {
                later = self.waiting.split_off(self.try_from.min(self.waiting.len()));
                fill_waiting(ring, &memory, &mut later, &mut burst, now_ns, counters)
            }
        };
        let consumed = filled.map_err(|broken| broken.at(2 * index + 1, &memory))?;
        stages::lap(Stage::Take);
        if what == Take::New {
            self.injected.take_if(|frame| burst.add_own(frame, now_ns));
        }

        if enabled {
            let mut kept = self.waiting.len() + later.len();
            if let Take::Parked(Some(_)) = what {
                // They have their places among those that wait, and none that is older is left out.
                kept -= burst.chains.len();
            } else {
                burst.blocked.extend(self.waiting.iter().map(|waiting| waiting.port));
                burst.blocked.dedup();
            }
            burst.park_room = self.waiting_max().saturating_sub(kept);
            if !burst.frames().is_empty() {
                count(counters, index, &burst, what);
                forward(&mut burst);
            }
        } else {
            // A disabled ring is still drained: "must process and discard any TX packets".
            counters.dropped(DropReason::TxDisabled, burst.frames().len() as u64);
        }
        let hold_until = self.settle(index, what, stayed, &burst, now_ns, counters);
        let parked_more = match what {
            Take::New => false,
            Take::Parked(None) => self.go_on(&burst, later),
            // Where none of a whole burst went, the others would wait behind them.
            Take::Parked(Some(_)) => consumed == BURST_MAX && burst.parked.len() < BURST_MAX,
        };
        scratch.give_back(burst);
        self.taken(consumed, parked_more, hold_until)
    }

    /// Most frames that wait for receivers.
    #[inline]
    fn waiting_max(&self) -> usize {
        let size = self.queue.ring.as_ref().map_or(0, |ring| ring.device.config().size);
        PARKED_MAX.min(usize::from(size / 2))
    }

    /// What is to be said of a burst of `consumed` chains that is settled.
    #[inline(always)]
    pub(crate) fn taken(
        &mut self,
        consumed: usize,
        parked_more: bool,
        hold_until: Option<u64>,
    ) -> Result<Taken, StopReason> {
        let ring = self.queue.ring.as_mut();
        let (more, gone) =
            ring.map_or((false, false), |ring| (ring.has_more(), ring.memory_gone()));
        if gone {
            return Err(StopReason::MemoryTruncated);
        }
        Ok(Taken {
            frames: consumed,
            more,
            peek: true,
            parked: self.waiting.len(),
            parked_more,
            parked_until: self.waiting.front().map(|first| first.since_ns + PARKED_NS_MAX),
            hold_until,
        })
    }

    /// Puts back what waits `later` than those that were tried, and says whether to try at once again:
    /// from the front if some went, else from where they end, for another receiver's sake.
    fn go_on(&mut self, burst: &Burst<'_>, later: VecDeque<Waiting>) -> bool {
        let none_went = burst.parked.len() == burst.chains.len();
        let more = !later.is_empty();
        self.try_from = if none_went && more { self.waiting.len() } else { 0 };
        self.waiting.extend(later);
        if none_went { more } else { !self.waiting.is_empty() }
    }

    /// Completes what was forwarded or refused, and keeps what was parked. Says when to ask about the
    /// call, if it is held and a timer is to be set.
    #[inline(always)]
    fn settle(
        &mut self,
        index: usize,
        what: Take,
        stayed: bool,
        burst: &Burst<'_>,
        now_ns: u64,
        counters: &PortCounters,
    ) -> Option<u64> {
        self.calls.before_more(&mut self.queue);
        let ring = self.queue.ring.as_mut()?;
        if let Take::Parked(Some(_)) = what {
            settle_in_place(ring, &mut self.waiting, burst);
        } else if burst.parked.is_empty() && !stayed {
            for chain in &burst.chains {
                ring.device.complete(chain.token.into(), 0);
            }
        } else {
            settle_parked(ring, &mut self.waiting, what, stayed, burst, counters);
        }
        let published = ring.device.publish();
        stages::lap(Stage::Publish);
        let in_ring = u32::from(ring.device.available()) + self.waiting.len() as u32; // a ring's size
        let done = Completed { chains: published.into(), in_ring, now_ns };
        self.calls.complete(index, &mut self.queue, done, burst, counters)
    }

    /// See [`weir_engine::Port::expired`].
    pub(crate) fn expired(
        &mut self,
        index: usize,
        by_ns: u64,
        received: Received,
        counters: &PortCounters,
    ) -> Asked {
        self.calls.expired(index, &mut self.queue, by_ns, received, counters)
    }

    /// Gives a held call now, before the ring stops or the policy changes.
    pub(crate) fn flush(&mut self, index: usize, counters: &PortCounters) {
        self.calls.flush(index, &mut self.queue, counters);
    }

    /// Replaces the policy.
    pub(crate) fn set_policy(&mut self, index: usize, calls: &CallPolicy, counters: &PortCounters) {
        self.calls.set_policy(index, &mut self.queue, calls, counters);
    }

    /// Drops what waits, so that the ring can stop with nothing in flight.
    pub(crate) fn abandon_waiting(&mut self, counters: &PortCounters) {
        self.injected = None;
        self.try_from = 0;
        let waiting = std::mem::take(&mut self.waiting);
        if let Some(ring) = self.queue.ring.as_mut() {
            let left = std::mem::take(&mut ring.left_behind);
            counters.dropped(DropReason::TxStopped, (waiting.len() + left.len()) as u64);
            for token in waiting.into_iter().map(|frame| frame.token).chain(left) {
                ring.device.complete_kept(token, 0);
            }
            ring.device.publish();
        }
    }
}

/// Completes chains, in the order in which they were taken, but for those whose frames were parked.
#[cold]
fn settle_parked(
    ring: &mut Ring,
    waiting: &mut VecDeque<Waiting>,
    what: Take,
    stayed: bool,
    burst: &Burst<'_>,
    counters: &PortCounters,
) {
    let mut waits_for: [Option<PortId>; BURST_MAX] = [None; BURST_MAX];
    for parked in &burst.parked {
        waits_for[usize::from(parked.frame)] = Some(parked.port);
    }
    // Chains that were refused have no frame; the others have theirs in the same order.
    let mut frames = burst.frames().iter().zip(waits_for).peekable();
    for chain in &burst.chains {
        let token = chain.token.into();
        match frames.next_if(|(frame, _)| frame.token == chain.token) {
            Some((frame, Some(port))) => {
                ring.device.keep(token);
                waiting.push_back(Waiting { token, port, since_ns: frame.arrived_ns });
                counters.parked.add(u64::from(what == Take::New));
            }
            _ if stayed => ring.device.complete_kept(token, 0),
            _ => ring.device.complete(token, 0),
        }
    }
}

/// Completes chains of frames that wait, but for those which were parked again: these keep their places.
#[cold]
fn settle_in_place(ring: &mut Ring, waiting: &mut VecDeque<Waiting>, burst: &Burst<'_>) {
    let mut waits_for: [Option<PortId>; BURST_MAX] = [None; BURST_MAX];
    for parked in &burst.parked {
        waits_for[usize::from(parked.frame)] = Some(parked.port);
    }
    let mut chains = burst.chains.iter().peekable();
    let mut frames = burst.frames().iter().zip(waits_for).peekable();
    waiting.retain_mut(|waiting| {
        let Some(chain) = chains.next_if(|chain| waiting.token == chain.token.into()) else {
            return true;
        };
        let frame = frames.next_if(|(frame, _)| frame.token == chain.token);
        let Some(port) = frame.and_then(|(_, port)| port) else {
            ring.device.complete_kept(waiting.token, 0);
            return false;
        };
        ring.device.keep(waiting.token);
        waiting.port = port;
        true
    });
}

/// A ring or frame error, before it is known in which ring.
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

/// New frames from the ring. Says how many chains that took. By itself, so that its loops have the
/// processor's registers to themselves.
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
    device.refill()?;
    let frames_max = burst.frames_max.min(BURST_MAX) as u16;
    device.fetch_ahead(frames_max);
    let Burst { chains, pieces, .. } = burst;
    let mut bytes = 0;
    device.take_readable_burst(frames_max, memory, pieces, |chain, pieces| {
        bytes += u64::from(chain.len);
        chains.push(note(chain, pieces));
    })?;
    if bytes > BURST_BYTES_MAX {
        give_back_rest(device, chains);
    }
    burst.add_chains(features.vnet_len(), now_ns, |error| refused(error, counters))?;
    Ok(burst.chains.len())
}

/// Leaves for the next burst what would make this one too long.
#[cold]
fn give_back_rest(device: &mut DeviceRing, chains: &mut Vec<TakenChain>) {
    let mut bytes = 0;
    let within = chains.iter().take_while(|chain| {
        let room = bytes < BURST_BYTES_MAX;
        bytes += u64::from(chain.len);
        room
    });
    let kept = within.count();
    device.give_back(chains.drain(kept..).map(|chain| chain.token.into()));
}

/// Frames that a weir which is gone had taken, oldest first: nobody knows whom they waited for.
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
        retake(ring, memory, token, burst, now_ns, counters)?;
    }
    Ok(burst.chains.len())
}

/// Frames that waited, oldest first; those that waited too long are dropped.
fn fill_waiting<'m>(
    ring: &mut Ring,
    memory: &'m GuestMemory,
    waiting: &mut VecDeque<Waiting>,
    burst: &mut Burst<'m>,
    now_ns: u64,
    counters: &PortCounters,
) -> Result<usize, Broken> {
    while burst.chains.len() < BURST_MAX {
        let Some(frame) = waiting.pop_front() else { break };
        take_again(ring, memory, frame, burst, now_ns, counters)?;
    }
    Ok(burst.chains.len())
}

/// The same of those that wait for one receiver. They keep their places among the others.
fn fill_waiting_for<'m>(
    receiver: PortId,
    ring: &mut Ring,
    memory: &'m GuestMemory,
    waiting: &mut VecDeque<Waiting>,
    burst: &mut Burst<'m>,
    now_ns: u64,
    counters: &PortCounters,
) -> Result<usize, Broken> {
    let mut broken = None;
    waiting.retain(|frame| {
        let full = burst.chains.len() == BURST_MAX;
        if frame.port != receiver || full || broken.is_some() {
            return true;
        }
        take_again(ring, memory, *frame, burst, now_ns, counters).unwrap_or_else(|error| {
            broken = Some(error);
            true
        })
    });
    broken.map_or(Ok(burst.chains.len()), Err)
}

/// A frame that waited; `false` if it did so for too long, and is dropped.
fn take_again<'m>(
    ring: &mut Ring,
    memory: &'m GuestMemory,
    frame: Waiting,
    burst: &mut Burst<'m>,
    now_ns: u64,
    counters: &PortCounters,
) -> Result<bool, Broken> {
    if frame.since_ns + PARKED_NS_MAX <= now_ns {
        counters.dropped(DropReason::RxWaitedTooLong, 1);
        ring.device.complete_kept(frame.token, 0);
        return Ok(false);
    }
    retake(ring, memory, frame.token, burst, frame.since_ns, counters)?;
    Ok(true)
}

/// A chain that was taken before, and kept, as a frame that arrived then.
fn retake<'m>(
    ring: &mut Ring,
    memory: &'m GuestMemory,
    token: Token,
    burst: &mut Burst<'m>,
    arrived_ns: u64,
    counters: &PortCounters,
) -> Result<(), Broken> {
    let first = burst.pieces.len();
    let chain = ring.device.retake_readable(token, memory, &mut burst.pieces)?;
    let chain = note(chain, Pieces { first, all: &burst.pieces });
    burst.chains.push(chain);
    let added = burst.add(chain, ring.features.vnet_len(), arrived_ns);
    added.or_else(|error| refused(error, counters))
}

/// A chain as the burst knows it; its front is fetched.
#[inline]
fn note(chain: Chain, pieces: Pieces<'_, '_>) -> TakenChain {
    let Pieces { first, all } = pieces;
    if let Some(piece) = all.get(first) {
        piece.prefetch();
    }
    TakenChain {
        token: chain.token.into(),
        len: chain.len,
        pieces: (first as u32, all.len() as u32),
    }
}

/// A frame that cannot be added: dropped with a counter, or the port stops.
#[cold]
fn refused(error: FrameError, counters: &PortCounters) -> Result<(), Broken> {
    let reason = error.drop_reason().ok_or(Broken::Frame(error))?;
    counters.dropped(reason, 1);
    Ok(())
}

/// Counts frames once, when they are new.
fn count(counters: &PortCounters, index: usize, burst: &Burst<'_>, what: Take) {
    if what == Take::New {
        counters.tx[index].frames.add(burst.frames().len() as u64);
        counters.tx[index].bytes.add(burst.frames().iter().map(|f| u64::from(f.len)).sum());
    }
}
