//! The Internet checksum (RFC 1071) over pieces, and the two places where weir stores a checksum.

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

/// The reason why a partial checksum cannot be completed.
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
mod tests {
    use std::net::Ipv6Addr;

    use etherparse::{Ipv4Header, Ipv6Header, TcpHeader};
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::layers::protocol;
    use crate::testing::{Spec, naive_sum, specs};

    /// The sum of the pseudo-header over IPv6 (RFC 8200 §8.1). `len` is the number of bytes of the
    /// transport header and its payload.
    fn pseudo_header_v6(src: Ipv6Addr, dst: Ipv6Addr, protocol: u8, len: u32) -> Sum {
        let mut sum = Sum::new();
        sum.add(&src.octets());
        sum.add(&dst.octets());
        sum.add_u32(len);
        sum.add_u32(u32::from(protocol));
        sum
    }

    #[test]
    fn rfc_1071_example() {
        let mut sum = Sum::new();
        sum.add(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
        assert_eq!(sum.folded(), 0xddf2);
        assert_eq!(sum.finish(), !0xddf2);
    }

    #[test]
    fn zeros_and_ones_keep_their_zero() {
        assert_eq!(Sum::new().finish(), 0xffff);
        assert_eq!(partial(&[0; 9]), 0);
        assert_eq!(partial(&[0xff; 4096]), 0xffff);
        assert_eq!(partial(&vec![0xff; 70_001]), naive_sum(&vec![0xff; 70_001]));
        assert_eq!((nonzero(0), nonzero(1)), (0xffff, 1));
    }

    #[test]
    fn fill_refuses_a_field_outside_the_head() {
        let head = Head::copy_of(&Spec::default().frame()[..60]);
        for csum in [
            CsumPartial { start: 34, offset: 25 },
            CsumPartial { start: 61, offset: 0 },
            CsumPartial { start: u16::MAX, offset: u16::MAX },
        ] {
            let mut filled = head;
            let error = FillError::OutsideHead { at: csum.field(), head_len: 60 };
            assert_eq!(fill_checksum(&mut filled, csum, Sum::new()), Err(error));
            assert_eq!(filled, head);
        }
        let mut filled = head;
        assert_eq!(
            fill_checksum(&mut filled, CsumPartial { start: 34, offset: 24 }, Sum::new()),
            Ok(())
        );
    }

    #[test]
    fn rfc_768_checksum_of_zero_is_sent_as_ones() {
        let mut bytes = [0; 40];
        bytes[38] = 0xff;
        bytes[39] = 0xff;
        let mut head = Head::copy_of(&bytes);
        fill_checksum(&mut head, CsumPartial { start: 34, offset: 0 }, Sum::new()).unwrap();
        assert_eq!(head.as_slice()[34..36], [0xff, 0xff]);
    }

    proptest! {
        #[test]
        fn any_split_sums_like_the_whole(pieces in vec(vec(any::<u8>(), 0..70), 0..12)) {
            let whole = pieces.concat();
            let mut sum = Sum::new();
            let mut foreign = Sum::new();
            for piece in &pieces {
                sum.add(piece);
                foreign.add_partial(naive_sum(piece), piece.len());
            }
            prop_assert_eq!(sum.folded(), naive_sum(&whole));
            prop_assert_eq!(foreign, sum);
            prop_assert_eq!(sum.finish(), !sum.folded());
        }

        #[test]
        fn fields_sum_like_their_bytes(before in vec(any::<u8>(), 0..4), two in any::<u16>(), four in any::<u32>()) {
            let mut sum = Sum::new();
            sum.add(&before);
            sum.add_u16(two);
            sum.add_u32(four);
            let bytes = [&before[..], &two.to_be_bytes(), &four.to_be_bytes()].concat();
            prop_assert_eq!(sum.folded(), naive_sum(&bytes));
        }

        #[test]
        fn native_words_fold_to_the_partial_sum(words in vec(any::<u64>(), 0..50)) {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            let end_around = words.iter().fold(0u64, |sum, word| {
                let (sum, carry) = sum.overflowing_add(*word);
                sum + u64::from(carry)
            });
            let halves = bytes.as_chunks::<2>().0.iter().map(|half| u64::from(u16::from_ne_bytes(*half)));
            prop_assert_eq!(fold_native(end_around), partial(&bytes));
            prop_assert_eq!(fold_native(halves.sum()), partial(&bytes));
        }

        #[test]
        fn pseudo_headers_are_those_of_etherparse(
            addresses in any::<[[u8; 16]; 2]>(),
            payload in vec(any::<u8>(), 0..100),
        ) {
            let [src, dst] = addresses;
            let tcp = TcpHeader::new(1, 2, 3, 4);
            let len = 20 + payload.len();
            let finish = |mut sum: Sum| {
                sum.add(&tcp.to_bytes());
                sum.add(&payload);
                sum.finish()
            };
            let v6 = Ipv6Header { source: src, destination: dst, ..Ipv6Header::default() };
            let sum = pseudo_header_v6(src.into(), dst.into(), protocol::TCP, len as u32);
            prop_assert_eq!(finish(sum), tcp.calc_checksum_ipv6(&v6, &payload).unwrap());

            let (src, dst) = ([src[0], src[1], src[2], src[3]], [dst[0], dst[1], dst[2], dst[3]]);
            let v4 = Ipv4Header { source: src, destination: dst, ..Ipv4Header::default() };
            let sum = pseudo_header_v4(src.into(), dst.into(), protocol::TCP, len as u16);
            prop_assert_eq!(finish(sum), tcp.calc_checksum_ipv4(&v4, &payload).unwrap());
        }

        #[test]
        fn ipv4_header_checksum_is_that_of_etherparse(spec in specs(1), stale in any::<[u8; 2]>()) {
            let mut frame = spec.frame();
            if let Ok((header, _)) = Ipv4Header::from_slice(&frame[spec.l3()..]) {
                let field = spec.l3() + 10;
                frame[field..field + 2].copy_from_slice(&stale);
                prop_assert_eq!(
                    ipv4_header_checksum(&frame[spec.l3()..spec.l4()]),
                    header.calc_header_checksum()
                );
            }
        }

        #[test]
        fn filled_checksum_is_the_same_however_much_is_in_the_head(spec in specs(300), cut in any::<u8>()) {
            let frame = spec.frame();
            let vnet = spec.vnet(0);
            let csum = CsumPartial { start: vnet.csum_start, offset: vnet.csum_offset };
            let mut expected = frame.clone();
            let checksum = nonzero(!naive_sum(&frame[spec.l4()..]));
            expected[csum.field()..csum.field() + 2].copy_from_slice(&checksum.to_be_bytes());

            let shortest = csum.field() + 2;
            let cut = (shortest + usize::from(cut)).min(frame.len());
            let mut head = Head::copy_of(&frame[..cut]);
            prop_assume!(head.len() >= shortest);
            let mut rest = Sum::new();
            rest.add(&frame[head.len()..]);
            prop_assert_eq!(fill_checksum(&mut head, csum, rest), Ok(()));
            prop_assert_eq!(head.as_slice(), &expected[..head.len()]);
        }
    }
}
