//! Copies of frames, from a worker's hand to the rings from which an observer reads them. A copy in such a ring is a
//! header of fixed length and the kept bytes.

use std::cell::Cell;
use std::sync::{Arc, Mutex, TryLockError};

use rtrb::{Consumer, Producer, RingBuffer};
use weir_fabric::EgressTag;
use weir_filter::{Outcome, Program};
use weir_limits::{CAPTURE_LANES_MAX, CAPTURE_RING_LEN, FRAME_LEN_MAX};
use weir_wire::vlan::TAG_LEN;
use weir_wire::{Head, Tci, VnetHdr};

use crate::frames::burst::{Burst, Frame};
use crate::frames::drop_reason::DropReason;
use crate::frames::port::Outgoing;
use crate::frames::stats::Counter;
use crate::switching::filter::Window;
use crate::threads::clock;

/// The frames of a port that are copied, and how much of each.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Copies frames that it sends.
    pub tx: bool,
    /// Copies frames that it receives.
    pub rx: bool,
    /// Copies frames that its drop counters count.
    pub drops: bool,
    /// Copies only frames that this program matches; it sees the frame as it would be written.
    pub filter: Option<Arc<Program>>,
    /// Most bytes of each frame.
    pub snap_len: u32,
}

impl Wanted {
    /// Every frame, whole, but no drops.
    pub const ALL: Self =
        Self { tx: true, rx: true, drops: false, filter: None, snap_len: u32::MAX };
}

/// The counts of a capture for one of its ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Frames that the capture asked for, before its filter.
    pub seen: u64,
    /// Seen frames that the filter matched.
    pub matched: u64,
    /// Matched frames that were not copied, since the reader was too slow.
    pub lost: u64,
    /// Drops of frames that no longer exist, by reason: only their number is known.
    pub unseen_drops: Vec<(DropReason, u64)>,
}

/// One port of a capture: which frames workers copy, and into which rings.
#[derive(Debug)]
pub(crate) struct Tap {
    wanted: Wanted,
    number: u16,
    lanes: Arc<Lanes>,
    seen: Counter,
    matched: Counter,
    lost: Counter,
    unseen: Box<[Counter]>,
}

/// The taps of a port.
pub(crate) type Taps = Arc<[Arc<Tap>]>;

/// A ring for each of the first workers; further workers share them.
#[derive(Debug)]
pub(crate) struct Lanes(Box<[Mutex<Lane>]>);

struct Lane {
    ring: Producer<u8>,
    /// The record that is being written.
    record: Vec<u8>,
    window: Window,
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lane").finish_non_exhaustive()
    }
}

thread_local! {
    /// The index of this thread's worker.
    static WORKER: Cell<usize> = const { Cell::new(0) };
}

/// Makes this thread worker `index`.
pub(crate) fn enter(index: usize) {
    WORKER.set(index);
}

impl Tap {
    pub(crate) fn new(wanted: Wanted, number: u16, lanes: Arc<Lanes>) -> Self {
        let (seen, matched, lost) = Default::default();
        let unseen = DropReason::all().map(|_| Counter::default()).collect();
        Self { wanted, number, lanes, seen, matched, lost, unseen }
    }

    /// True if the tap copies frames that come and go.
    pub(crate) fn copies(&self) -> bool {
        self.wanted.tx || self.wanted.rx
    }

    /// True if the tap copies dropped frames.
    pub(crate) fn copies_drops(&self) -> bool {
        self.wanted.drops
    }

    /// Copies frames that its port sends.
    pub(crate) fn sent(&self, burst: &Burst<'_>) {
        if self.wanted.tx {
            let frames = (0..).zip(burst.frames()).map(|(n, frame)| (n, frame.tag));
            self.copy(clock::now_ns(), burst, frames, Direction::Tx, None);
        }
    }

    /// Copies those of `frames` that its port received at `at_ns`: `is_delivered` tells which, by their index.
    pub(crate) fn received(
        &self,
        at_ns: u64,
        burst: &Burst<'_>,
        frames: &[Outgoing],
        is_delivered: impl Fn(usize) -> bool,
    ) {
        if self.wanted.rx {
            let frames = frames.iter().enumerate().filter(|(place, _)| is_delivered(*place));
            let frames = frames.map(|(_, outgoing)| match outgoing.tag {
                EgressTag::Untagged => (outgoing.frame, None),
                EgressTag::Tagged(tag) => (outgoing.frame, Some(tag)),
            });
            self.copy(at_ns, burst, frames, Direction::Rx, None);
        }
    }

    /// Copies the dropped frames of a burst (bit i: frame i), as their sender sent them.
    pub(crate) fn dropped(&self, burst: &Burst<'_>, frames: u64, reason: DropReason) {
        if self.wanted.drops {
            let direction = if reason.is_receivers() { Direction::Rx } else { Direction::Tx };
            let dropped = (0_u16..).zip(burst.frames()).filter(|(n, _)| frames >> n & 1 != 0);
            let dropped = dropped.map(|(n, frame)| (n, frame.tag));
            self.copy(clock::now_ns(), burst, dropped, direction, Some(reason));
        }
    }

    /// Counts drops of frames that no longer exist.
    pub(crate) fn dropped_unseen(&self, frames: u64, reason: DropReason) {
        if let (true, Some(counter)) = (self.wanted.drops, self.unseen.get(reason.index())) {
            counter.add(frames);
        }
    }

    fn copy(
        &self,
        at_ns: u64,
        burst: &Burst<'_>,
        frames: impl Iterator<Item = (u16, Option<Tci>)>,
        direction: Direction,
        dropped: Option<DropReason>,
    ) {
        let (mut seen, mut matched, mut lost) = (0, 0, 0);
        // If another thread holds the lane for the copies of its burst, this one does not wait.
        let mut lane = self.lanes.mine();
        for (number, tag) in frames {
            seen += 1;
            let Some(lane) = lane.as_deref_mut() else {
                // Without a lane there is no window for the filter either.
                matched += 1;
                lost += 1;
                continue;
            };
            let frame = &burst.frames()[usize::from(number)];
            let tagged;
            let (head, len) = match tag {
                None => (&frame.head, frame.len),
                Some(_) => {
                    tagged = on_port(frame, tag);
                    (&tagged.0, tagged.1)
                }
            };
            let program = self.wanted.filter.as_deref();
            if !matches(program, head.as_slice(), len, &mut lane.window, number, burst) {
                continue;
            }
            matched += 1;
            let offload = match len == frame.len {
                true => frame.offload,
                false => frame.offload.tag_inserted(),
            };
            let header = Header {
                vnet: offload.to_vnet(1).to_bytes(),
                at_ns,
                len,
                kept: len.min(self.wanted.snap_len),
                port: self.number,
                direction,
                csum_pending: frame.offload.csum().is_some(),
                gso: frame.offload.gso().is_some(),
                dropped,
            };
            lost += u64::from(!lane.push(header, head.as_slice(), frame, number, burst));
        }
        for (counter, n) in [(&self.seen, seen), (&self.matched, matched), (&self.lost, lost)] {
            counter.add(n);
        }
    }

    pub(crate) fn counted(&self) -> Counted {
        let unseen = DropReason::all().zip(&self.unseen).map(|(reason, n)| (reason, n.get()));
        // The counts are read in this order, since writers count a frame as seen last.
        let (lost, matched, seen) = (self.lost.get(), self.matched.get(), self.seen.get());
        Counted { seen, matched, lost, unseen_drops: unseen.filter(|(_, n)| *n > 0).collect() }
    }
}

/// The front and the length of a frame with the tag that it has on a port.
pub(crate) fn on_port(frame: &Frame, tag: Option<Tci>) -> (Head, u32) {
    let (mut head, mut len) = (frame.head, frame.len);
    if tag.is_some_and(|tag| head.insert_vlan(tag).is_ok()) {
        len += TAG_LEN as u32;
    }
    (head, len)
}

/// True if a frame is wanted. `front` is the part that is copied in any case.
pub(crate) fn matches(
    program: Option<&Program>,
    front: &[u8],
    len: u32,
    window: &mut Window,
    number: u16,
    burst: &Burst<'_>,
) -> bool {
    let Some(program) = program else { return true };
    match program.run(front, len) {
        Outcome::Match => true,
        Outcome::NoMatch => false,
        // If a program reads beyond even the window, the frame does not match, as with filters of ports.
        Outcome::Beyond => program.run(window.fill(front, number, burst), len) == Outcome::Match,
    }
}

impl Lanes {
    fn mine(&self) -> Option<std::sync::MutexGuard<'_, Lane>> {
        let lane = self.0.get(WORKER.get() % self.0.len().max(1))?;
        match lane.try_lock() {
            Ok(lane) => Some(lane),
            // A thread that panicked has pushed a whole record, or none.
            Err(TryLockError::Poisoned(lane)) => Some(lane.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl Lane {
    /// Copies a frame; `false` if the ring has no room for it.
    #[inline]
    fn push(
        &mut self,
        mut header: Header,
        head: &[u8],
        frame: &Frame,
        number: u16,
        burst: &Burst<'_>,
    ) -> bool {
        let kept = header.kept as usize;
        self.record.clear();
        self.record.extend_from_slice(&header.to_bytes());
        if let Some(front) = head.get(..kept) {
            // Nearly all frames are copied here. The reader's position is not read if there was enough room before.
            self.record.extend_from_slice(front);
            return self.ring.push_entire_slice(&self.record).is_ok();
        }
        // Bytes for which there is no room are not fetched.
        if self.ring.slots() < HEADER_LEN + kept {
            return false;
        }
        self.record.extend_from_slice(head);
        burst.fetch(1 << number);
        let is_lost = burst.lost() >> number & 1 != 0;
        for piece in burst.payload(frame) {
            let filled = self.record.len();
            let wanted = piece.len().min(HEADER_LEN + kept - filled);
            if wanted == 0 || is_lost {
                break;
            }
            self.record.resize(filled + wanted, 0);
            piece.read(&mut self.record[filled..]);
        }
        header.kept = (self.record.len() - HEADER_LEN) as u32; // a frame's length at most
        self.record[..HEADER_LEN].copy_from_slice(&header.to_bytes());
        self.ring.push_entire_slice(&self.record).is_ok()
    }
}

/// The other end of a ring, with the last header read from it.
pub(crate) struct Drain {
    ring: Consumer<u8>,
    next: Option<Header>,
}

impl Drain {
    /// The time of the next frame.
    pub(crate) fn peek(&mut self) -> Option<u64> {
        if self.next.is_none() {
            let mut bytes = [0; HEADER_LEN];
            self.ring.pop_entire_slice(&mut bytes).ok()?;
            self.next = Some(Header::from_bytes(&bytes));
        }
        self.next.map(|header| header.at_ns)
    }

    /// The next frame, after a [`peek`](Self::peek) has found it; its bytes go to `bytes`.
    pub(crate) fn pop(&mut self, bytes: &mut Vec<u8>) -> Option<Header> {
        let header = self.next.take()?;
        bytes.resize(header.kept as usize, 0);
        // A record is pushed as a whole.
        self.ring.pop_entire_slice(bytes).is_ok().then_some(header)
    }
}

/// Rings for `workers` workers, with their other ends.
pub(crate) fn lanes(workers: usize) -> (Arc<Lanes>, Vec<Drain>) {
    let count = workers.clamp(1, CAPTURE_LANES_MAX);
    let rings = (0..count).map(|_| RingBuffer::new(CAPTURE_RING_LEN));
    let (producers, consumers): (Vec<_>, Vec<_>) = rings.unzip();
    let lane = |ring| {
        let record = Vec::with_capacity(HEADER_LEN + FRAME_LEN_MAX as usize + TAG_LEN);
        Mutex::new(Lane { ring, record, window: Window::default() })
    };
    let drain = |ring| Drain { ring, next: None };
    let lanes = Arc::new(Lanes(producers.into_iter().map(lane).collect()));
    (lanes, consumers.into_iter().map(drain).collect())
}

/// Bytes of a [`Header`] in a ring.
pub(crate) const HEADER_LEN: usize = 24 + VNET_LEN;
const VNET_LEN: usize = VnetHdr::LEN;

const RX: u16 = 1;
const CSUM_PENDING: u16 = 1 << 1;
const GSO: u16 = 1 << 2;
const NOT_DROPPED: u16 = u16::MAX;

/// The direction of a frame, as its port's guest sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The port sent the frame into the switch.
    Tx,
    /// The switch delivered the frame to the port.
    Rx,
}

/// The data of a captured frame beside its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The time at which the frame's burst was taken or delivered (ns, [`clock`](crate::threads::clock)).
    pub at_ns: u64,
    /// The frame's length, with its VLAN tag.
    pub len: u32,
    /// The number of kept bytes.
    pub kept: u32,
    /// The number of the frame's port in the capture.
    pub port: u16,
    /// The frame's direction. For a dropped frame, it is the direction in which the frame was counted.
    pub direction: Direction,
    /// True if the checksum is left to the receiver: the field holds a part of the sum.
    pub csum_pending: bool,
    /// True if the frame stands for several frames on a wire.
    pub gso: bool,
    /// The reason of the drop, if the frame was dropped.
    pub dropped: Option<DropReason>,
    /// The offloads that are left to do, for the frame with its tag.
    pub vnet: [u8; VNET_LEN],
}

impl Header {
    pub(crate) fn to_bytes(self) -> [u8; HEADER_LEN] {
        let mut flags = 0;
        for (flag, is_set) in [
            (RX, self.direction == Direction::Rx),
            (CSUM_PENDING, self.csum_pending),
            (GSO, self.gso),
        ] {
            flags |= if is_set { flag } else { 0 };
        }
        let reason = self.dropped.map_or(NOT_DROPPED, |reason| reason.index() as u16); // some tens
        let mut bytes = [0; HEADER_LEN];
        bytes[..8].copy_from_slice(&self.at_ns.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.len.to_ne_bytes());
        bytes[12..16].copy_from_slice(&self.kept.to_ne_bytes());
        bytes[16..18].copy_from_slice(&self.port.to_ne_bytes());
        bytes[18..20].copy_from_slice(&flags.to_ne_bytes());
        bytes[20..22].copy_from_slice(&reason.to_ne_bytes());
        bytes[24..].copy_from_slice(&self.vnet);
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8; HEADER_LEN]) -> Self {
        let flags = u16::from_ne_bytes(part(bytes, 18));
        Self {
            at_ns: u64::from_ne_bytes(part(bytes, 0)),
            len: u32::from_ne_bytes(part(bytes, 8)),
            kept: u32::from_ne_bytes(part(bytes, 12)),
            port: u16::from_ne_bytes(part(bytes, 16)),
            direction: if flags & RX != 0 { Direction::Rx } else { Direction::Tx },
            csum_pending: flags & CSUM_PENDING != 0,
            gso: flags & GSO != 0,
            dropped: DropReason::all().nth(u16::from_ne_bytes(part(bytes, 20)).into()),
            vnet: part(bytes, 24),
        }
    }
}

fn part<const N: usize>(bytes: &[u8; HEADER_LEN], at: usize) -> [u8; N] {
    let mut part = [0; N];
    part.copy_from_slice(&bytes[at..at + N]);
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_comes_out_of_a_ring_as_it_went_in() {
        let plain = Header {
            at_ns: 0x0123_4567_89ab_cdef,
            len: 65_549,
            kept: 128,
            port: 3,
            direction: Direction::Tx,
            csum_pending: false,
            gso: false,
            dropped: None,
            vnet: [7; VNET_LEN],
        };
        let marked = Header { direction: Direction::Rx, csum_pending: true, gso: true, ..plain };
        let dropped = DropReason::all().map(|reason| {
            let mut header = plain;
            header.dropped = Some(reason);
            header
        });
        for header in [plain, marked].into_iter().chain(dropped) {
            assert_eq!(Header::from_bytes(&header.to_bytes()), header);
        }
    }
}
