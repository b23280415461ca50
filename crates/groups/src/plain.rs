//! Frames of the shape that nearly all have, read in few instructions: IP without options or extension headers, not in
//! fragments, with UDP, or with TCP whose only flag of those that change a state is ACK. `packet.rs` reads all others.

use weir_limits::{BURST_MAX, HEAD_LEN};
use weir_wire::ethertype;
use weir_wire::layers::protocol;

use crate::packet::{Flags, Key};
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
    u64::from_be_bytes(bytes)
}

#[inline(always)]
fn half<const LEN: usize>(head: &[u8; LEN], at: usize) -> u32 {
    u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]])
}

#[inline(always)]
fn short<const LEN: usize>(head: &[u8; LEN], at: usize) -> u16 {
    u16::from_be_bytes([head[at], head[at + 1]])
}

/// True if a packet says that it has `least` bytes, or says 0 as a big one of a guest may.
#[inline(always)]
fn is_long_enough(said: u16, least: usize) -> bool {
    said.wrapping_sub(1) >= least as u16 - 1
}

/// True if what a packet carries is plain; `control` is TCP's offset and flags.
#[inline(always)]
fn is_plain_inside(number: u8, control: u16) -> bool {
    match number {
        protocol::TCP => control >= OFFSET_MIN && control & COUNTED == u16::from(Flags::ACK),
        number => number == protocol::UDP,
    }
}

/// The connection that a plain frame belongs to; `None` of any other frame.
#[inline(always)]
pub(crate) fn key(bytes: &[u8], direction: Direction, vid: u16) -> Option<Key> {
    key_if(bytes, direction, vid, is_plain_inside)
}

/// The connection and the flags of a segment of TCP in a frame that is plain but for its flags.
#[inline]
pub(crate) fn segment(bytes: &[u8], direction: Direction, vid: u16) -> Option<(Key, Flags)> {
    let is_segment = |number, control| number == protocol::TCP && control >= OFFSET_MIN;
    let key = key_if(bytes, direction, vid, is_segment)?;
    let flags = bytes.get(if key.is_v6() { V6_LEN } else { V4_LEN } - INSIDE_LEN + 13)?;
    Some((key, Flags(*flags)))
}

/// The connection of an IP packet without options and extension headers, not in fragments, if the number of its
/// protocol and the bytes where TCP has offset and flags pass.
#[inline(always)]
fn key_if(
    bytes: &[u8],
    direction: Direction,
    vid: u16,
    passes: impl Fn(u8, u16) -> bool,
) -> Option<Key> {
    let head: &[u8; V4_LEN] = bytes.first_chunk()?;
    if short(head, 12) == ethertype::IPV4 {
        let is_plain = head[14] == 0x45
            && is_long_enough(short(head, 16), V4_LEN - 14)
            && half(head, 20) & V4_PART == 0
            && passes(head[23], short(head, 46));
        let turn = u32::from(direction == Direction::In);
        let addresses = word(head, 26).rotate_left(32 * turn);
        let ports = half(head, 34).rotate_left(16 * turn);
        return is_plain.then(|| Key::v4(addresses, ports, head[23], vid));
    }
    let head: &[u8; V6_LEN] = bytes.first_chunk()?;
    let is_plain = short(head, 12) == ethertype::IPV6
        && head[14] >> 4 == 6
        && is_long_enough(short(head, 18), INSIDE_LEN)
        && passes(head[20], short(head, 66));
    let source = [word(head, 22), word(head, 30)];
    let destination = [word(head, 38), word(head, 46)];
    let (own, peer, ports) = match direction {
        Direction::Out => (source, destination, half(head, 54)),
        Direction::In => (destination, source, half(head, 54).rotate_left(16)),
    };
    is_plain.then(|| Key::v6(own, peer, ports, head[20], vid))
}

/// True if a frame of `len` bytes belongs to the same connection as the plain one of `before`, and is plain as well.
/// Frames of one flow come in a row, and to compare them takes fewer instructions than to look for their connection.
#[inline(always)]
pub(crate) fn is_like(head: &[u8; HEAD_LEN], len: usize, before: &[u8; HEAD_LEN]) -> bool {
    let differ = |at, mask: u64| (word(head, at) ^ word(before, at)) & mask;
    let control = |at: usize| (short(head, at) ^ short(before, at)) & (0xf << 12 | COUNTED) == 0;
    // Ports and an address of IPv4, or half of an address of IPv6: flows that take turns differ here.
    if word(head, 30) != word(before, 30) {
        return false;
    }
    match short(before, 12) == ethertype::IPV4 {
        true => {
            (half(head, 12) ^ half(before, 12)) & V4_FIRST == 0
                && half(head, 20) & V4_PART == 0
                && differ(22, V4_SECOND) == 0
                && len >= V4_LEN
                && is_long_enough(short(head, 16), V4_LEN - 14)
                && (before[23] != protocol::TCP || control(46))
        }
        false => {
            let ends = differ(22, !0) | differ(38, !0) | differ(46, !0) | differ(50, !0);
            ends | differ(12, V6_FIRST) | differ(20, V6_SECOND) == 0
                && len >= V6_LEN
                && is_long_enough(short(head, 18), INSIDE_LEN)
                && (before[20] != protocol::TCP || control(66))
        }
    }
}

/// Ethertype, version and length of the header.
const V4_FIRST: u32 = 0xffff_ff00;
/// IPv4's flag of more fragments, and the offset.
const V4_PART: u32 = 0x3fff_0000;
/// Protocol and source.
const V4_SECOND: u64 = 0x00ff_0000_ffff_ffff;
/// Ethertype and version.
const V6_FIRST: u64 = 0xffff_f000_0000_0000;
/// The next header.
const V6_SECOND: u64 = 0xff00_0000_0000_0000;

const _: () = assert!(BURST_MAX <= u64::BITS as usize);

/// The frames of a list in rows: frames of one flow that follow each other are compared once, for the tables of both
/// ends. A row says nothing of a frame by itself: all of its frames go on if the first one does.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rows {
    /// Bit i: frame i belongs to the row of the frame before.
    follows: u64,
    /// Bit i: there is a frame i.
    all: u64,
}

impl Rows {
    /// The rows of at most [`BURST_MAX`] frames, each with its first bytes, their number, and what else the frames of a
    /// row have in common.
    #[inline(always)]
    pub fn of<'f, T: PartialEq>(
        frames: impl Iterator<Item = (&'f [u8; HEAD_LEN], usize, T)>,
    ) -> Self {
        let mut rows = Self::default();
        let mut first: Option<(&[u8; HEAD_LEN], T)> = None;
        for (nth, (head, len, common)) in frames.enumerate().take(BURST_MAX) {
            rows.all |= 1 << nth;
            match &first {
                Some((before, of)) if *of == common && is_like(head, len, before) => {
                    rows.follows |= 1 << nth;
                }
                _ => first = Some((head, common)),
            }
        }
        rows
    }

    /// Asks whether frames go on, in their order: of each row the first, and as long as none did, the next.
    #[inline(always)]
    pub fn ask(self, mut goes_on: impl FnMut(usize) -> bool) {
        let mut left = self.all;
        while left != 0 {
            let nth = left.trailing_zeros();
            left &= left - 1;
            if goes_on(nth as usize) {
                let behind = self.follows >> nth >> 1;
                if behind & 1 != 0 {
                    // A row may end with the last bit.
                    left &= u64::MAX.checked_shl(nth + 1 + behind.trailing_ones()).unwrap_or(0);
                }
            }
        }
    }
}
