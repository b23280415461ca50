//! Generic receive offload: a receiver with TSO gets a burst's TCP segments as a few large packets, each about as cheap
//! as a small one. [`weir_wire::gro`] decides which segments can merge; this module walks a receiver's list, verifies
//! checksums and gathers payloads.
//!
//! No frame waits: only segments of one burst merge, even with frames of other flows between them. No corrupt checksum
//! is hidden: a checksum is verified, unless the sender left it to be filled in or a device verified it. The
//! verification reads the payload shortly before the copy.

use std::cell::Cell;

use weir_fabric::EgressTag;
use weir_guestmem::{Slice, recycle};
use weir_limits::{BURST_MAX, GRO_FLOWS_BETWEEN_MAX, GRO_LONE_MAX, GRO_PIECES_MAX};
use weir_wire::{Fit, Merge, Next, OffloadCaps, TcpSegment};

use crate::frames::burst::{Burst, Frame};
use crate::frames::drop_reason::DropReason;
use crate::frames::egress::{Emitted, Packet, Put, emit, put_tagged, sum_of};
use crate::frames::port::{Delivered, Outgoing};
use crate::frames::stats::PortCounters;

/// A receiver's list of frames on its way out, one packet after the other.
#[derive(Clone, Copy, Debug)]
pub struct EgressList<'b> {
    burst: &'b Burst<'b>,
    /// The frames of the burst.
    slots: &'b [Frame],
    frames: &'b [Outgoing],
    caps: OffloadCaps,
    /// All frames before this index are done.
    next: usize,
    /// Bit i: `frames[i]` is done too, because it was merged into an earlier packet.
    ahead: u64,
    /// True if the list probably has segments to merge.
    merges: bool,
    /// Consecutive segments that could not be merged.
    lone: u8,
    merged: u64,
}

const _: () = assert!(BURST_MAX <= u64::BITS as usize && BURST_MAX <= u8::MAX as usize);

/// A frame that passes unchanged.
#[derive(Clone, Copy, Debug)]
pub struct Plain<'b> {
    /// The frame's front, length, and time of arrival.
    pub frame: &'b Frame,
    burst: &'b Burst<'b>,
}

impl<'b> Plain<'b> {
    /// The part of the frame behind its front, in the sender's memory.
    #[inline]
    pub fn body(&self) -> &'b [Slice<'b>] {
        self.burst.payload(self.frame)
    }
}

/// Iterator of [`EgressList::plain`].
#[derive(Clone, Debug)]
pub struct PlainFrames<'b> {
    burst: &'b Burst<'b>,
    slots: &'b [Frame],
    left: std::slice::Iter<'b, Outgoing>,
    /// No frame of the burst is special, and none can merge.
    is_usual: bool,
    special: u64,
    merges: bool,
}

/// Plain frames that follow each other in their burst.
#[derive(Clone, Copy, Debug)]
pub struct PlainRow<'b> {
    row: &'b [Frame],
    burst: &'b Burst<'b>,
}

impl<'b> PlainRow<'b> {
    /// All of `frames`, for a receiver with `caps`, if [a list](EgressList::new) of them would be
    /// [one row](EgressList::plain_in_a_row) and no payload is still with its sender. Most frames
    /// need no list.
    #[inline(always)]
    pub fn of(burst: &'b Burst<'b>, frames: &'b [Outgoing], caps: OffloadCaps) -> Option<Self> {
        if burst.remote().is_some() || merges(burst.frames(), frames, caps) {
            return None;
        }
        Self::of_plain(burst, frames)
    }

    /// All of `frames`, which do not merge.
    #[inline(always)]
    fn of_plain(burst: &'b Burst<'b>, frames: &'b [Outgoing]) -> Option<Self> {
        if !burst.is_untagged || burst.special() != 0 {
            return None;
        }
        let (first, last) = (frames.first()?.frame, frames.last()?.frame);
        let row = burst.frames().get(usize::from(first)..=usize::from(last))?;
        // A list names frames in their order, and each once.
        (row.len() == frames.len()).then_some(Self { row, burst })
    }

    /// The earliest time (ns) at which one of the first `count` frames was taken. Frames that have
    /// waited are not in the order of these times; others are.
    #[inline(always)]
    pub fn since_ns(self, count: usize) -> u64 {
        match self.row.first() {
            Some(first) if !self.burst.waited => first.arrived_ns,
            _ => waited_since_ns(self.iter().take(count)),
        }
    }

    /// The only frame, if all of it is in its front.
    #[inline(always)]
    pub fn only(self) -> Option<&'b Frame> {
        let [frame] = self.row else { return None };
        (frame.len as usize == frame.head.len()).then_some(frame)
    }

    /// The frames.
    #[inline(always)]
    pub fn iter(self) -> impl ExactSizeIterator<Item = Plain<'b>> + Clone {
        self.row.iter().map(move |frame| Plain { frame, burst: self.burst })
    }
}

impl<'b> Iterator for PlainFrames<'b> {
    type Item = Plain<'b>;

    #[inline(always)]
    fn next(&mut self) -> Option<Plain<'b>> {
        let outgoing = self.left.next()?;
        let frame = self.slots.get(usize::from(outgoing.frame))?;
        if outgoing.tag != EgressTag::Untagged
            || (!self.is_usual && self.is_unusual(outgoing, frame))
        {
            return None;
        }
        Some(Plain { frame, burst: self.burst })
    }
}

impl PlainFrames<'_> {
    /// True if this frame is special, or may merge.
    #[inline(always)]
    fn is_unusual(&self, outgoing: &Outgoing, frame: &Frame) -> bool {
        let is_special = self.special >> (outgoing.frame % BURST_MAX as u16) & 1 != 0;
        is_special || (self.merges && TcpSegment::is_likely(&frame.head, frame.len))
    }
}

/// The result for the next packet of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// The number of frames that the packet stands for.
    pub frames: u32,
    /// The time at which the first of these frames was taken (ns).
    pub arrived_ns: u64,
    /// The receiver's result, or the reason for the drop. After [`Emitted::Full`], this frame and all frames behind it
    /// remain.
    pub result: Result<Emitted, DropReason>,
}

impl Sent {
    /// Counts the packet's lost frames. Returns `false` if the receiver is full.
    #[inline]
    pub fn settle(&self, counters: &PortCounters) -> bool {
        match self.result {
            Ok(Emitted::Done { lost }) => counters.dropped(DropReason::RxRingFull, lost.into()),
            Ok(Emitted::Full) => return false,
            Err(reason) => counters.dropped(reason, self.frames.into()),
        }
        true
    }
}

impl<'b> EgressList<'b> {
    /// The frames of `burst` in `frames`, at most [`BURST_MAX`], for a receiver with `caps`.
    #[inline]
    pub fn new(burst: &'b Burst<'b>, frames: &'b [Outgoing], caps: OffloadCaps) -> Self {
        let frames = &frames[..frames.len().min(BURST_MAX)];
        let slots = burst.frames();
        let merges = merges(slots, frames, caps);
        let is_away = burst.remote().is_some();
        let ahead = if is_away { fetch(burst, frames, caps, merges) } else { 0 };
        Self { burst, slots, frames, caps, next: 0, ahead, merges, lone: 0, merged: 0 }
    }

    /// The frames from the next one on that pass unchanged: not merged, without tag and offload. With these, nearly all
    /// frames need no [`Packet`].
    #[inline(always)]
    pub fn plain(&self) -> PlainFrames<'b> {
        let Self { burst, slots, frames, merges, .. } = *self;
        let left = frames.get(self.next..).filter(|_| self.ahead == 0).unwrap_or_default();
        let special = burst.special();
        let is_usual = special == 0 && !merges;
        PlainFrames { burst, slots, left: left.iter(), is_usual, special, merges }
    }

    /// All frames from the next one on, if all of them are [plain](Self::plain) and follow each
    /// other in their burst, as most do. A loop over them need not read the list.
    #[inline(always)]
    pub fn plain_in_a_row(&self) -> Option<PlainRow<'b>> {
        if self.merges || self.ahead != 0 {
            return None;
        }
        PlainRow::of_plain(self.burst, self.frames.get(self.next..)?)
    }

    /// The earliest time (ns) at which one of the first `count` frames of [`plain`](Self::plain)
    /// was taken. Frames that did not wait were taken together; the first frame of their burst was
    /// taken first.
    #[inline(always)]
    pub fn plain_since_ns(&self, count: usize) -> u64 {
        match self.slots.first() {
            Some(first) if !self.burst.waited => first.arrived_ns,
            _ => waited_since_ns(self.plain().take(count)),
        }
    }

    /// Marks the first `count` frames of [`plain`](Self::plain) as done.
    #[inline(always)]
    pub fn plain_done(&mut self, count: usize) {
        self.next += count;
    }

    /// True if no frame is left.
    #[inline(always)]
    pub fn is_done(&self) -> bool {
        self.ahead == 0 && self.next >= self.frames.len()
    }

    /// Passes the next packet to `put` in the receiver's form, as [`emit`] does; `None` when all frames are done. If
    /// `put` has no room for a merged packet, it is called again with the first half of its frames, down to one: a
    /// receiver gets no less than without merging.
    #[inline]
    pub fn emit_next(&mut self, mut put: impl FnMut(Packet<'_, 'b>) -> Put) -> Option<Sent> {
        if self.ahead != 0 {
            self.next = self.first_left();
        }
        let outgoing = self.frames.get(self.next)?;
        let frame = &self.slots[usize::from(outgoing.frame)];
        if self.merges && TcpSegment::is_likely(&frame.head, frame.len) {
            if let Some(merged) = self.emit_merged(&mut put) {
                self.ahead |= merged.members;
                self.merged += u64::from(merged.accepted);
                self.lone = 0;
                return Some(merged.sent);
            }
            self.lone += 1;
            self.merges = self.lone < GRO_LONE_MAX;
        }
        let result = emit(self.burst, frame, outgoing.tag, self.caps, put);
        if result != Ok(Emitted::Full) {
            self.next += 1;
        }
        Some(Sent { frames: 1, arrived_ns: frame.arrived_ns, result })
    }

    /// The frames that are done.
    pub fn delivered(&self) -> Delivered {
        Delivered { frames: self.first_left(), ahead: self.ahead, ..Delivered::default() }
    }

    /// The next frame that was not merged into an earlier packet.
    fn first_left(&self) -> usize {
        // A mask shifted by its whole width leaves no bits.
        let ahead = self.ahead.checked_shr(self.next as u32).unwrap_or(0);
        self.next + ahead.trailing_ones() as usize
    }

    /// The number of merged packets that the receiver got.
    pub fn merged(&self) -> u64 {
        self.merged
    }

    /// Passes the packet that begins with the next frame to `put`; `None`, without a call, if no segment follows it or
    /// two do not fit.
    // The function is not inlined, and works on a copy of the list: the code for all other frames keeps its values in
    // registers.
    #[inline(never)]
    fn emit_merged(self, put: &mut dyn FnMut(Packet<'_, 'b>) -> Put) -> Option<Merged> {
        let run = self.gather(self.next)?;
        let mut pieces = recycle(PIECES.take());
        let all_fit = self.collect(&run, &mut pieces).is_some();
        let mut merged = None;
        let mut count = if all_fit { run.count } else { 0 };
        while merged.is_none() && count > 1 {
            merged = self.put_first(&run, count, &pieces, put);
            count /= 2;
        }
        PIECES.set(recycle(pieces));
        merged
    }

    /// Passes the packet of the run's first `count` segments to `put`; `None` if the receiver is full.
    fn put_first(
        &self,
        run: &Run<'b>,
        count: usize,
        pieces: &[Slice<'b>],
        put: &mut dyn FnMut(Packet<'_, 'b>) -> Put,
    ) -> Option<Merged> {
        let frames = count as u32; // a list is short
        let packet = run.merge.packet(frames);
        let packet = Packet {
            head: &packet.head,
            offload: &packet.offload,
            frames,
            body: pieces,
            body_skip: 0,
            body_len: packet.len as usize - packet.head.len(),
        };
        let put = put_tagged(packet, self.frames[self.next].tag, put);
        if put == Ok(Put::Full) {
            return None;
        }
        let first = || run.members[..count].iter().map(|index| usize::from(*index));
        let sent = Sent {
            frames,
            arrived_ns: first().map(|index| self.frame(index).arrived_ns).min().unwrap_or(0),
            result: put.map(|_| Emitted::Done { lost: 0 }),
        };
        let members = first().fold(0, |set, index| set | 1 << index);
        Some(Merged { sent, accepted: put == Ok(Put::Done), members })
    }

    #[inline]
    fn frame(&self, index: usize) -> &'b Frame {
        &self.slots[usize::from(self.frames[index].frame)]
    }

    /// The segment at `index` and the segments that follow it; `None` if there are none.
    fn gather(&self, index: usize) -> Option<Run<'b>> {
        let frame = self.frame(index);
        let first = TcpSegment::read(&frame.head, &frame.offload, frame.len)?;
        let merge = Merge::new(first);
        if !self.caps.takes(merge.kind()) {
            return None;
        }
        let mut run = Run { merge, members: [0; BURST_MAX], count: 1 };
        run.members[0] = index as u8; // a list is short
        let mut between = 0;
        let mut pieces = self.burst.payload(frame).len();
        for next in index + 1..self.frames.len() {
            if self.ahead & 1 << next != 0 {
                continue;
            }
            if run.merge.is_complete() || between > GRO_FLOWS_BETWEEN_MAX {
                break;
            }
            let frame = self.frame(next);
            let relation = match self.frames[next].tag == self.frames[index].tag {
                true => run.merge.next(&frame.head, &frame.offload, frame.len),
                false => Next::OtherFlow,
            };
            match relation {
                Next::OtherFlow => between += 1,
                Next::Ends => break,
                Next::Follows(segment) => {
                    between = 0;
                    // One more piece is counted for the part of the payload that is in the frame's head.
                    pieces += self.burst.payload(frame).len() + 1;
                    let first_is_sound = || run.count > 1 || self.is_sound(&first, index);
                    if pieces > GRO_PIECES_MAX
                        || !first_is_sound()
                        || !self.is_sound(&segment, next)
                    {
                        break;
                    }
                    run.merge.push(&segment);
                    run.members[run.count] = next as u8; // a list is short
                    run.count += 1;
                }
            }
        }
        (run.count > 1).then_some(run)
    }

    /// True if a segment's checksum is right. A sender that changes its memory between the sum and the copy damages
    /// only its own data.
    fn is_sound(&self, segment: &TcpSegment<'_>, index: usize) -> bool {
        if !segment.needs_verifying() {
            return true;
        }
        let payload = self.burst.payload(self.frame(index)).iter().copied();
        segment.verify(sum_of(payload))
    }

    /// Collects the payload of all segments, except the part in the head of the first.
    fn collect(&self, run: &Run<'b>, pieces: &mut Vec<Slice<'b>>) -> Option<()> {
        for (place, index) in run.members[..run.count].iter().enumerate() {
            let outgoing = self.frames.get(usize::from(*index))?;
            let frame = &self.slots[usize::from(outgoing.frame)];
            if place > 0 {
                let front = frame.head.as_slice().get(run.merge.first().hdr_len()..)?;
                pieces.push(self.burst.fronts.copy_of(outgoing.frame, front)?);
            }
            pieces.extend_from_slice(self.burst.payload(frame));
        }
        Some(())
    }
}

/// True if a receiver with `caps` probably gets segments among `frames` that merge.
#[inline(always)]
fn merges(slots: &[Frame], frames: &[Outgoing], caps: OffloadCaps) -> bool {
    let tso = caps.contains(OffloadCaps::TSO4) || caps.contains(OffloadCaps::TSO6);
    match frames {
        // Three frames stand for the whole list: a list without TCP is not checked frame by frame.
        [first, .., last] if tso => {
            [first, &frames[frames.len() / 2], last].iter().any(|outgoing| {
                let frame = &slots[usize::from(outgoing.frame)];
                TcpSegment::is_likely(&frame.head, frame.len)
            })
        }
        _ => false,
    }
}

#[cold]
fn waited_since_ns<'b>(frames: impl Iterator<Item = Plain<'b>>) -> u64 {
    frames.map(|plain| plain.frame.arrived_ns).min().unwrap_or(u64::MAX)
}

/// Fetches the payload that has to be read for a receiver with `caps`: for a checksum, segments, or merging. Returns
/// the frames of `frames` (by bit) that are done because their payload was lost.
#[cold]
fn fetch(burst: &Burst<'_>, frames: &[Outgoing], caps: OffloadCaps, merges: bool) -> u64 {
    let is_read = |frame: &Frame| {
        let unverified = frame.offload.csum().is_none() && !frame.offload.data_valid();
        caps.accepts(&frame.offload) != Fit::AsIs
            || (merges && unverified && TcpSegment::is_likely(&frame.head, frame.len))
    };
    let slots = burst.frames();
    let read = frames.iter().filter(|to| is_read(&slots[usize::from(to.frame)]));
    burst.fetch(read.fold(0, |bits, to| bits | 1 << to.frame));
    let lost = burst.lost();
    let gone = frames.iter().enumerate().map(|(place, to)| (lost >> to.frame & 1) << place);
    gone.fold(0, |all, one| all | one)
}

/// Frames that become one packet.
struct Run<'b> {
    merge: Merge<'b>,
    /// The members' indices in the list; the first `count` are valid.
    members: [u8; BURST_MAX],
    count: usize,
}

/// A merged packet that the receiver has accepted or refused.
struct Merged {
    sent: Sent,
    /// True if the receiver has the packet.
    accepted: bool,
    /// Bit i: `frames[i]` is part of the packet.
    members: u64,
}

thread_local! {
    /// Room for the pieces of one merged packet. It is kept, so a worker allocates it once.
    static PIECES: Cell<Vec<Slice<'static>>> = const { Cell::new(Vec::new()) };
}

#[cfg(test)]
mod tests;
