//! Frames of one flow come in a row: what was decided of one holds for those behind it, as long as they say nothing
//! else about the connection. To compare them takes fewer instructions than to look for their connection.

use weir_limits::HEAD_LEN;
use weir_wire::ethertype;
use weir_wire::layers::protocol;

use crate::packet::Flags;

/// Shortest frames that are compared: with all of the header that is looked at.
const V4_LEN_MIN: usize = 54;
const V6_LEN_MIN: usize = 74;

/// A frame that passed, as far as the next one has to be like it.
#[derive(Clone, Copy, Debug)]
pub struct Memo {
    shape: Shape,
    /// Words of the header, with what may differ left out.
    words: [u64; 6],
    /// Where TCP's flags are; what of them counts, and what it has to be.
    flags: (usize, u8, u8),
    len_min: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    V4,
    V6,
}

#[inline(always)]
fn word(head: &[u8; HEAD_LEN], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&head[at..at + 8]);
    u64::from_be_bytes(bytes)
}

/// Ethertype, version and length of the header.
const V4_FIRST: u64 = 0xffff_ff00_0000_0000;
/// Fragment, protocol, and the source's first half.
const V4_SECOND: u64 = 0x3fff_00ff_0000_ffff;
/// Ethertype and version.
const V6_FIRST: u64 = 0xffff_f000_0000_0000;
/// The next header, and the source's first six bytes.
const V6_SECOND: u64 = 0xff00_ffff_ffff_ffff;

#[inline(always)]
fn v4(head: &[u8; HEAD_LEN]) -> [u64; 3] {
    let ports = word(head, 30);
    [word(head, 12) & V4_FIRST | ports & 0xffff, word(head, 20) & V4_SECOND, word(head, 28)]
}

#[inline(always)]
fn v6(head: &[u8; HEAD_LEN]) -> [u64; 6] {
    [
        word(head, 12) & V6_FIRST,
        word(head, 20) & V6_SECOND,
        word(head, 28),
        word(head, 36),
        word(head, 44),
        word(head, 50),
    ]
}

impl Memo {
    /// Remembers a frame of which [`steady`](crate::Judged::steady) was said; `None` of one with other headers than
    /// nearly all have.
    pub fn of(head: &[u8; HEAD_LEN], len: usize) -> Option<Self> {
        let (shape, number, transport, len_min) = match u16::from_be_bytes([head[12], head[13]]) {
            ethertype::IPV4 if head[14] == 0x45 => (Shape::V4, head[23], 34, V4_LEN_MIN),
            ethertype::IPV6 => (Shape::V6, head[20], 54, V6_LEN_MIN),
            _ => return None,
        };
        let flags = match number {
            protocol::TCP => {
                let counted = Flags::FIN | Flags::SYN | Flags::RST | Flags::ACK;
                (transport + 13, counted, Flags::ACK)
            }
            protocol::UDP => (0, 0, 0),
            _ => return None,
        };
        let words = match shape {
            Shape::V4 => {
                let [a, b, c] = v4(head);
                [a, b, c, 0, 0, 0]
            }
            Shape::V6 => v6(head),
        };
        let is_part = shape == Shape::V4 && words[1] >> 48 != 0;
        let memo = Self { shape, words, flags, len_min };
        (!is_part && memo.is_of(head, len)).then_some(memo)
    }

    /// Whether the same holds for this frame.
    #[inline(always)]
    pub fn is_of(&self, head: &[u8; HEAD_LEN], len: usize) -> bool {
        let (at, counted, wanted) = self.flags;
        let differs = match self.shape {
            Shape::V4 => {
                let [a, b, c] = v4(head);
                a ^ self.words[0] | b ^ self.words[1] | c ^ self.words[2]
            }
            Shape::V6 => {
                let words = v6(head);
                words.iter().zip(&self.words).fold(0, |differs, (a, b)| differs | a ^ b)
            }
        };
        let flags = head.get(at).copied().unwrap_or(0) & counted;
        differs == 0 && flags == wanted && len >= self.len_min
    }
}
