//! Frames of the shape that nearly all have, read in few instructions: IP without options or
//! extension headers, not in fragments, carrying UDP, or TCP in which ACK is the only flag that can
//! change a state. `packet.rs` reads all others.
//!
//! Words are read in the order of their bytes, the first one lowest, as keys have them.

use weir_limits::{BURST_MAX, HEAD_LEN};
use weir_wire::ethertype;
use weir_wire::layers::protocol;

use crate::packet::{Flags, KIND_AT, Key, NO_KEY, PROTOCOL_AT};
use crate::rules::Direction;

/// Shortest datagram inside IP that is read here: a header of TCP.
const INSIDE_LEN: usize = 20;
const V4_LEN: usize = 34 + INSIDE_LEN;
const V6_LEN: usize = 54 + INSIDE_LEN;

/// Flags of TCP that change a state.
const COUNTED: u16 = (Flags::FIN | Flags::SYN | Flags::RST | Flags::ACK) as u16;
/// Shortest header of TCP, as its first byte of length and flags has it.
const OFFSET_MIN: u16 = 5 << 12;

#[inline(always)]
fn word<const LEN: usize>(head: &[u8; LEN], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&head[at..at + 8]);
    u64::from_le_bytes(bytes)
}

#[inline(always)]
fn half<const LEN: usize>(head: &[u8; LEN], at: usize) -> u32 {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&head[at..at + 4]);
    u32::from_le_bytes(bytes)
}

#[inline(always)]
fn quarter<const LEN: usize>(head: &[u8; LEN], at: usize) -> u16 {
    u16::from_le_bytes([head[at], head[at + 1]])
}

/// A number as it is on the wire.
#[inline(always)]
fn short<const LEN: usize>(head: &[u8; LEN], at: usize) -> u16 {
    u16::from_be_bytes([head[at], head[at + 1]])
}

/// True if the length in a packet is at least `least` bytes, or 0: a guest may write 0 into a big packet.
#[inline(always)]
fn is_long_enough(said: u16, least: usize) -> bool {
    said.wrapping_sub(1) >= least as u16 - 1
}

/// True if TCP's offset and flags are those of a plain segment.
#[inline(always)]
fn is_plain_segment(control: u16) -> bool {
    control >= OFFSET_MIN && control & COUNTED == u16::from(Flags::ACK)
}

/// The ends of a packet of IPv4, source and destination, each as in a key, and the protocol as in a key's last word.
#[derive(Clone, Copy, Debug)]
struct EndsV4 {
    source: u64,
    destination: u64,
    of: u64,
}

impl EndsV4 {
    /// The first and the last word of the key. `vid` has the form that [`Key::vid_v4`] returns.
    #[inline(always)]
    fn first_and_last(self, direction: Direction, vid: u64) -> [u64; 2] {
        let (own, peer) = match direction {
            Direction::Out => (self.source, self.destination),
            Direction::In => (self.destination, self.source),
        };
        [own | vid, peer | self.of]
    }
}

/// The ends of a packet of IPv6.
#[derive(Clone, Copy, Debug, Default)]
struct EndsV6 {
    source: [u64; 2],
    destination: [u64; 2],
    ports: u32,
    protocol: u8,
}

impl EndsV6 {
    fn key(self, direction: Direction, vid: u16) -> Key {
        let Self { source, destination, ports, protocol } = self;
        match direction {
            Direction::Out => Key::v6(source, destination, ports, protocol, vid),
            Direction::In => Key::v6(destination, source, ports.rotate_left(16), protocol, vid),
        }
    }
}

/// Flag of more fragments, offset, and protocol in IPv4's half word from byte 20 on.
const V4_PART: u32 = u32::from_le_bytes([0x3f, 0xff, 0, 0xff]);
const V4_UDP: u32 = u32::from_le_bytes([0, 0, 0, protocol::UDP]);
const V4_TCP: u32 = u32::from_le_bytes([0, 0, 0, protocol::TCP]);
const _: () = assert!(V4_TCP >> 24 == protocol::TCP as u32);

/// The ends of a packet of IPv4 without options, not in fragments, if its protocol and the bytes where TCP has offset
/// and flags pass.
#[inline(always)]
fn ends_v4(head: &[u8; V4_LEN], passes: impl Fn(u32, u16) -> bool) -> Option<EndsV4> {
    let part = half(head, 20) & V4_PART;
    let is_plain = short(head, 12) == ethertype::IPV4
        && head[14] == 0x45
        && is_long_enough(short(head, 16), V4_LEN - 14)
        && passes(part, short(head, 46));
    let end = |address, port| u64::from(half(head, address)) | u64::from(quarter(head, port)) << 48;
    is_plain.then(|| EndsV4 {
        source: end(26, 34),
        destination: end(30, 36),
        of: u64::from(part) << (PROTOCOL_AT - 24),
    })
}

/// The ends of a packet of IPv6 without extension headers, if the number of its protocol and the bytes where TCP has
/// offset and flags pass.
#[inline(always)]
fn ends_v6(head: &[u8; V6_LEN], passes: impl Fn(u8, u16) -> bool) -> Option<EndsV6> {
    let is_plain = short(head, 12) == ethertype::IPV6
        && head[14] >> 4 == 6
        && is_long_enough(short(head, 18), INSIDE_LEN)
        && passes(head[20], short(head, 66));
    is_plain.then(|| EndsV6 {
        source: [word(head, 22), word(head, 30)],
        destination: [word(head, 38), word(head, 46)],
        ports: half(head, 54),
        protocol: head[20],
    })
}

/// The connection and the flags of a TCP segment in a frame of which only the flags are not plain.
#[inline]
pub(crate) fn segment(bytes: &[u8], direction: Direction, vid: u16) -> Option<(Key, Flags)> {
    let head: &[u8; V4_LEN] = bytes.first_chunk()?;
    let is_segment = |part, control| part == V4_TCP && control >= OFFSET_MIN;
    if let Some(ends) = ends_v4(head, is_segment) {
        let [first, last] = ends.first_and_last(direction, Key::vid_v4(vid));
        return Some((Key::v4(first, last), Flags(head[V4_LEN - INSIDE_LEN + 13])));
    }
    let head: &[u8; V6_LEN] = bytes.first_chunk()?;
    let is_segment = |number, control| number == protocol::TCP && control >= OFFSET_MIN;
    let ends = ends_v6(head, is_segment)?;
    Some((ends.key(direction, vid), Flags(head[V6_LEN - INSIDE_LEN + 13])))
}

/// The first frame of a row. Frames of one flow come in a row, and comparing them takes fewer
/// instructions than looking for their connection.
#[derive(Clone, Copy)]
struct First<'f> {
    head: &'f [u8; HEAD_LEN],
    vlans: Vlans,
    /// [`V4_UDP`] or [`V4_TCP`] of a plain frame of IPv4, otherwise one of those below.
    is: u32,
}

/// A value that the bits of [`V4_PART`] have in no frame, so that no frame of another kind is taken
/// for one of IPv4.
const IS_V6: u32 = !V4_PART & 1 << 16;
const IS_NOT_PLAIN: u32 = !V4_PART & 2 << 16;
const _: () = assert!(IS_V6 != 0 && IS_NOT_PLAIN != 0);

/// The VLANs of a frame, as its sender has it and as its receiver has it; 0 without a tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vlans(u64);

impl Vlans {
    /// The VLAN of a frame as its sender has it, and as its receiver has it.
    #[inline(always)]
    pub fn new(sent: u16, received: u16) -> Self {
        Self(u64::from(sent) << 32 | u64::from(received))
    }

    /// The VLAN at the interface for a frame that goes in this direction.
    #[inline(always)]
    pub fn of(self, direction: Direction) -> u16 {
        (self.in_key(direction) >> 32) as u16
    }

    /// The same VLAN, at its place in the first word of a key of IPv4.
    #[inline(always)]
    fn in_key(self, direction: Direction) -> u64 {
        match direction {
            Direction::In => self.0 << 32,
            Direction::Out => self.0 >> 32 << 32,
        }
    }
}

/// Ethertype, version and length of the header.
const V4_FIRST: u32 = u32::from_le_bytes([0xff, 0xff, 0xff, 0]);
/// Ethertype and version.
const V6_FIRST: u64 = u64::from_le_bytes([0xff, 0xff, 0xf0, 0, 0, 0, 0, 0]);
/// The next header.
const V6_SECOND: u64 = u64::from_le_bytes([0xff, 0, 0, 0, 0, 0, 0, 0]);
/// TCP's offset, and flags that count.
const CONTROL: u32 = u32::from_le_bytes([0, 0, 0xf0, COUNTED as u8]);

impl First<'_> {
    /// True if a frame of `len` bytes is plain and belongs to the same connection.
    #[inline(always)]
    fn is_like(&self, head: &[u8; HEAD_LEN], len: usize, vlans: Vlans) -> bool {
        // Ports and an address of IPv4, or half of an address of IPv6: flows that take turns differ here.
        if word(head, 30) != word(self.head, 30) {
            return false;
        }
        let before = self.head;
        if half(head, 20) & V4_PART != self.is {
            return self.is == IS_V6 && vlans == self.vlans && is_like_v6(head, len, before);
        }
        let differs = |at| half(head, at) ^ half(before, at);
        if vlans != self.vlans || differs(12) & V4_FIRST | differs(26) != 0 {
            return false;
        }
        if len < V4_LEN || quarter(head, 16) != quarter(before, 16) && !says_enough(head) {
            return false;
        }
        self.is != V4_TCP || controls_alike(head, before, 44)
    }
}

/// True if an IPv4 packet whose length differs from the previous packet's has room for TCP's header.
#[cold]
#[inline(never)]
fn says_enough(head: &[u8; HEAD_LEN]) -> bool {
    is_long_enough(short(head, 16), V4_LEN - 14)
}

#[inline(always)]
fn differs(head: &[u8; HEAD_LEN], before: &[u8; HEAD_LEN], at: usize) -> u64 {
    word(head, at) ^ word(before, at)
}

/// True if TCP has the same offset and flags, in the half word at this place.
#[inline(always)]
fn controls_alike(head: &[u8; HEAD_LEN], before: &[u8; HEAD_LEN], at: usize) -> bool {
    (half(head, at) ^ half(before, at)) & CONTROL == 0
}

/// Like [`First::is_like`], for a frame behind a plain frame of IPv6.
#[inline(never)]
fn is_like_v6(head: &[u8; HEAD_LEN], len: usize, before: &[u8; HEAD_LEN]) -> bool {
    let ends = [22, 30, 38, 46, 50].map(|at| differs(head, before, at));
    let rest = differs(head, before, 12) & V6_FIRST | differs(head, before, 20) & V6_SECOND;
    ends.into_iter().fold(rest, |all, differs| all | differs) == 0
        && len >= V6_LEN
        && is_long_enough(short(head, 18), INSIDE_LEN)
        && (head[20] != protocol::TCP || controls_alike(head, before, 64))
}

const _: () = assert!(BURST_MAX <= u64::BITS as usize);

/// First and last word of the key of a frame of IPv4, by direction; or two words that no connection has.
pub(crate) type RowEnds = [[u64; 2]; 2];

/// Words of a frame that is not plain, and of one of IPv6. A segment of TCP over IPv4 of which only the flags are not
/// plain has its ends, and in the last word [`NO_KEY`] and the flags from [`FLAGS_AT`] on.
const NOT_PLAIN: [u64; 2] = [0, NO_KEY];
const WIDE: [u64; 2] = [1, NO_KEY];

/// The first bit of a segment's flags, in the bits of the kind of a key.
const FLAGS_AT: u32 = KIND_AT;
/// The flags there, up to URG.
const FLAGS: u64 = 0x3f;
const _: () = assert!(NO_KEY & FLAGS << FLAGS_AT == 0 && FLAGS_AT + 8 == PROTOCOL_AT);

/// True if the words are those of a plain frame of IPv4.
#[inline(always)]
pub(crate) fn is_v4(ends: &RowEnds) -> bool {
    ends[0][1] & NO_KEY == 0
}

/// The frames of a list in rows: a frame that is not plain, or frames of one flow that follow each other, all of them
/// plain. They are compared and read once, for the tables of both ends. A worker keeps the memory.
#[derive(Clone, Debug)]
pub struct Rows {
    ends: [RowEnds; BURST_MAX],
    /// Places of the rows' first frames.
    starts: [usize; BURST_MAX],
    /// The ends of IPv6 rows, and their VLANs.
    wide: [(EndsV6, Vlans); BURST_MAX],
    count: usize,
    /// The number of frames.
    frames: usize,
}

impl Default for Rows {
    fn default() -> Self {
        Self {
            ends: [RowEnds::default(); BURST_MAX],
            starts: [0; BURST_MAX],
            wide: [Default::default(); BURST_MAX],
            count: 0,
            frames: 0,
        }
    }
}

impl Rows {
    /// Reads `frames` frames, at most [`BURST_MAX`]. For an index, `frame` returns a frame's first bytes, their number,
    /// and its VLANs.
    #[inline(never)]
    pub fn read<'f>(
        &mut self,
        frames: usize,
        frame: impl Fn(usize) -> (&'f [u8; HEAD_LEN], usize, Vlans),
    ) {
        let frames = frames.min(BURST_MAX);
        (self.count, self.frames) = (0, frames);
        if frames == 0 {
            return;
        }
        let (mut nth, mut count) = (0, 0);
        let (mut head, mut len, mut vlans) = frame(0);
        'rows: loop {
            let place = count % BURST_MAX;
            self.starts[place] = nth;
            let is = match begin_v4(head, len, vlans, &mut self.ends[place]) {
                true => half(head, 20) & V4_PART,
                false => self.begin_other(head, len, vlans, place),
            };
            count += 1;
            let first = First { head, vlans, is };
            loop {
                nth += 1;
                if nth == frames {
                    break 'rows;
                }
                (head, len, vlans) = frame(nth);
                if !first.is_like(head, len, vlans) {
                    break;
                }
            }
        }
        self.count = count;
    }

    /// Begins a row with a frame that is not a plain one of IPv4; returns what it [is](First::is).
    #[inline(never)]
    fn begin_other(
        &mut self,
        head: &[u8; HEAD_LEN],
        len: usize,
        vlans: Vlans,
        place: usize,
    ) -> u32 {
        let passes = |number, control| match number {
            protocol::TCP => is_plain_segment(control),
            number => number == protocol::UDP,
        };
        if len >= V4_LEN && begin_segment(head, vlans, &mut self.ends[place]) {
            return IS_NOT_PLAIN;
        }
        let front = head.first_chunk().filter(|_| len >= V6_LEN);
        let Some(ends) = front.and_then(|head| ends_v6(head, passes)) else {
            self.ends[place] = [NOT_PLAIN; 2];
            return IS_NOT_PLAIN;
        };
        (self.ends[place], self.wide[place]) = ([WIDE; 2], (ends, vlans));
        IS_V6
    }

    /// The rows by their ends.
    #[inline(always)]
    pub(crate) fn all(&self) -> &[RowEnds] {
        self.ends.get(..self.count).unwrap_or_default()
    }

    /// The places of a row's frames.
    pub(crate) fn frames_of(&self, place: usize) -> std::ops::Range<usize> {
        let start = |place| match place < self.count {
            true => self.starts.get(place).copied().unwrap_or(self.frames),
            false => self.frames,
        };
        start(place)..start(place + 1)
    }

    /// The connection that a row belongs to; `None` for a frame that is not plain.
    pub(crate) fn key_of(&self, place: usize, direction: Direction) -> Option<Key> {
        match self.ends.get(place)?[direction as usize] {
            NOT_PLAIN => None,
            WIDE => {
                let (ends, vlans) = self.wide.get(place)?;
                Some(ends.key(direction, vlans.of(direction)))
            }
            [_, last] if last & NO_KEY != 0 => None,
            [first, last] => Some(Key::v4(first, last)),
        }
    }

    /// The connection and the flags of a row that is a segment of TCP over IPv4 of which only the flags are not plain.
    #[inline(always)]
    pub(crate) fn segment(&self, place: usize, direction: Direction) -> Option<(Key, Flags)> {
        let [first, last] = self.ends.get(place)?[direction as usize];
        let is_segment = last & NO_KEY != 0 && last != NO_KEY;
        let key = Key::v4(first, last & !((NO_KEY >> FLAGS_AT | FLAGS) << FLAGS_AT));
        is_segment.then_some((key, Flags((last >> FLAGS_AT & FLAGS) as u8)))
    }
}

/// Begins a row with a frame if that is a plain one of IPv4.
#[inline(always)]
fn begin_v4(head: &[u8; HEAD_LEN], len: usize, vlans: Vlans, row: &mut RowEnds) -> bool {
    let passes = |part, control| part == V4_UDP || part == V4_TCP && is_plain_segment(control);
    let front = head.first_chunk().filter(|_| len >= V4_LEN);
    let Some(ends) = front.and_then(|head| ends_v4(head, passes)) else { return false };
    *row = [Direction::In, Direction::Out].map(|direction| ends.first_and_last(direction, 0));
    if vlans != Vlans::default() {
        add_vlans(row, vlans);
    }
    true
}

/// Begins a row with a frame if that is a segment of TCP over IPv4 of which only the flags are not plain.
#[inline(always)]
fn begin_segment(head: &[u8; HEAD_LEN], vlans: Vlans, row: &mut RowEnds) -> bool {
    let is_segment = |part, control| part == V4_TCP && control >= OFFSET_MIN;
    let front = head.first_chunk::<V4_LEN>();
    let Some(mut ends) = front.and_then(|head| ends_v4(head, is_segment)) else { return false };
    let flags = u64::from(head[V4_LEN - INSIDE_LEN + 13]) & FLAGS;
    ends.of |= NO_KEY | flags << FLAGS_AT;
    *row = [Direction::In, Direction::Out].map(|direction| ends.first_and_last(direction, 0));
    if vlans != Vlans::default() {
        add_vlans(row, vlans);
    }
    true
}

#[cold]
fn add_vlans(row: &mut RowEnds, vlans: Vlans) {
    for direction in [Direction::In, Direction::Out] {
        row[direction as usize][0] |= vlans.in_key(direction);
    }
}
