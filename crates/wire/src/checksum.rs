//! The Internet checksum (RFC 1071) over pieces, and the two places weir stores one.

use std::net::Ipv4Addr;

use crate::bytes::{array_at, put};
use crate::head::Head;
use crate::offload::CsumPartial;

/// The offset of the checksum in an IPv4 header.
pub(crate) const IPV4_CSUM_OFFSET: usize = 10;

/// A ones'-complement sum of pieces added in the order they have in the packet. A piece may have an
/// odd length; the next one then starts in the middle of a 16-bit word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// Folded pieces; 2^48 of them fit.
    words: u64,
    /// True if an odd number of bytes was added.
    odd: bool,
}

impl Sum {
    /// The sum of nothing.
    pub const fn new() -> Sum {
        Sum { words: 0, odd: false }
    }

    /// Adds the next bytes.
    pub fn add(&mut self, piece: &[u8]) {
        self.add_partial(partial(piece), piece.len());
    }

    /// Adds the next `len` bytes, whose [`partial`] sum is `folded`; for memory this crate cannot read.
    pub fn add_partial(&mut self, folded: u16, len: usize) {
        // After an odd number of bytes the piece's high bytes are the packet's low bytes.
        let word = if self.odd { folded.swap_bytes() } else { folded };
        self.words += u64::from(word);
        self.odd ^= !len.is_multiple_of(2);
    }

    /// Adds a field of two bytes.
    pub fn add_u16(&mut self, field: u16) {
        self.add_partial(field, 2);
    }

    /// Adds a field of four bytes.
    pub fn add_u32(&mut self, field: u32) {
        let [a, b, c, d] = field.to_be_bytes();
        self.add_u16(u16::from_be_bytes([a, b]));
        self.add_u16(u16::from_be_bytes([c, d]));
    }

    /// The sum, folded, not complemented: the value of the checksum field of a frame with a partial checksum, if this
    /// is the pseudo-header's sum.
    pub const fn folded(&self) -> u16 {
        fold(self.words)
    }

    /// The checksum: the folded sum's complement, to be stored big-endian.
    pub const fn finish(&self) -> u16 {
        !self.folded()
    }
}

/// The folded, not complemented sum of one piece on its own, as if it started a packet.
pub fn partial(piece: &[u8]) -> u16 {
    // A sum of words in the machine's order is the byte-swapped sum in network order (RFC 1071 §2 B), and 32-bit
    // words fold to the same 16 bits (§2 C). 32-bit words in 64-bit lanes need no carry, so the compiler can use
    // vectors.
    let (words, rest) = piece.as_chunks::<4>();
    let mut sum: u64 = words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum();
    let mut last = [0; 4];
    for (padded, byte) in last.iter_mut().zip(rest) {
        *padded = *byte;
    }
    sum += u64::from(u32::from_ne_bytes(last));
    fold_native(sum)
}

/// The [`partial`] sum of a piece from `sum`, the sum of its words of 16, 32 or 64 bits in the machine's byte
/// order, the last padded with zero bytes. A carry out of 64 bits must have been added back in.
pub const fn fold_native(sum: u64) -> u16 {
    u16::from_be(fold(sum))
}

const fn fold(sum: u64) -> u16 {
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    sum as u16
}

/// The sum of TCP's and UDP's pseudo-header over IPv4 (RFC 9293 §3.1). `len` is the number of bytes of
/// the transport header and its payload.
pub fn pseudo_header_v4(src: Ipv4Addr, dst: Ipv4Addr, protocol: u8, len: u16) -> Sum {
    let mut sum = Sum::new();
    sum.add(&src.octets());
    sum.add(&dst.octets());
    sum.add_u16(u16::from(protocol));
    sum.add_u16(len);
    sum
}

/// The header checksum of an IPv4 header with its options; the value in its checksum field is ignored.
pub fn ipv4_header_checksum(header: &[u8]) -> u16 {
    let (front, rest) = header.split_at(header.len().min(IPV4_CSUM_OFFSET));
    let mut sum = Sum::new();
    sum.add(front);
    sum.add(rest.get(2..).unwrap_or_default());
    sum.finish()
}

/// The checksum with 0 replaced by 0xffff, the same number in ones' complement. In UDP, 0 means "no checksum" (RFC
/// 768); in TCP both mean the same.
pub const fn nonzero(checksum: u16) -> u16 {
    if checksum == 0 { 0xffff } else { checksum }
}

/// The reason for which a partial checksum cannot be completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FillError {
    /// The checksum field is not in the part of the frame that was copied out.
    #[error("the checksum at byte {at} lies outside the head of {head_len} bytes")]
    OutsideHead {
        /// The offset of the field, from the frame's first byte.
        at: usize,
        /// Bytes in the head.
        head_len: usize,
    },
}

/// Completes the partial checksum `csum` in `head`. `rest` is the sum of the frame's bytes after the head, from an even
/// position on its own; [`Sum::new`] if there are none.
///
/// # Errors
/// [`FillError::OutsideHead`], with no change, if the checksum field is not in the head.
pub fn fill_checksum(head: &mut Head, csum: CsumPartial, rest: Sum) -> Result<(), FillError> {
    let at = csum.field();
    let error = FillError::OutsideHead { at, head_len: head.len() };
    let covered = head.as_slice().get(usize::from(csum.start)..).ok_or(error)?;
    array_at::<2>(head.as_slice(), at).ok_or(error)?;
    // The field itself is summed too: it holds the pseudo-header's sum.
    let mut sum = Sum::new();
    sum.add(covered);
    sum.add_partial(rest.folded(), 0);
    put(head.as_mut_slice(), at, nonzero(sum.finish()).to_be_bytes()).ok_or(error)
}

#[cfg(test)]
mod tests;
