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
