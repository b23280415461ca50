use proptest::prelude::*;
use weir_guestmem::HostBuffer;
use weir_wire::{Gso, GsoKind, Layers, OffloadCaps, VnetHdr, ethertype, transport_csum, vnet};

use super::*;
use crate::frames::egress::{Emitted, Put, emit};
use weir_fabric::EgressTag;

/// Adds one frame of a driver, cut into pieces of `piece_len` bytes, and passes the burst to `body`.
fn add<T>(
    header: VnetHdr,
    frame: &[u8],
    piece_len: usize,
    body: impl FnOnce(Result<(), FrameError>, &Burst<'_>) -> T,
) -> T {
    let bytes = [&header.to_bytes(), frame].concat();
    let buffer = HostBuffer::new(bytes.len());
    let mut scratch = Scratch::default();
    let mut burst = scratch.lend();
    let mut at = 0;
    for piece in bytes.chunks(piece_len) {
        let slice = buffer.slice(at, piece.len()).unwrap();
        slice.write(piece);
        at += piece.len();
        burst.pieces.push(slice);
    }
    let len = bytes.len() as u32;
    let chain = match burst.pieces.as_slice() {
        [only] => TakenChain { token: 0, len, pieces: Pieces::Only(*only) },
        pieces => TakenChain { token: 0, len, pieces: Pieces::Among(0, pieces.len() as u32) },
    };
    let added = burst.add(chain, VnetHdr::LEN, 1);
    let result = body(added, &burst);
    let mut left = vec![0; bytes.len()];
    buffer.slice(0, bytes.len()).unwrap().read(&mut left);
    assert_eq!(left, bytes, "the sender's memory is only read");
    result
}

/// All bytes of the frame as its receivers get them.
fn bytes_of(burst: &Burst<'_>) -> Vec<u8> {
    let frame = &burst.frames()[0];
    let mut bytes = frame.head.as_slice().to_vec();
    for piece in burst.payload(frame) {
        let start = bytes.len();
        bytes.resize(start + piece.len(), 0);
        piece.read(&mut bytes[start..]);
    }
    assert_eq!(bytes.len() as u32, frame.len);
    bytes
}

#[test]
fn own_frames_wait_for_room_and_bytes_that_are_no_frame_are_skipped_at_once() {
    let mut scratch = Scratch::default();
    let mut burst = scratch.lend();
    let frame = [2_u8; 60];
    assert!(burst.add_own(&frame[..13], None, 1), "it is done");
    assert_eq!(burst.frames().len(), 0);
    for count in 1..=BURST_MAX {
        assert!(burst.add_own(&frame, None, 1));
        assert_eq!(burst.frames().len(), count);
    }
    assert!(!burst.add_own(&frame, None, 1), "it waits");
    assert_eq!(burst.frames().len(), BURST_MAX);
}

/// Completes the checksum as a device does (virtio 1.2 §5.1.6.2.2), word by word.
pub(crate) fn completed(frame: &[u8], start: usize, offset: usize) -> Vec<u8> {
    let mut sum = 0_u64;
    for pair in frame[start..].chunks(2) {
        sum += u64::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u64::from(*low));
    }
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    let checksum = match !(sum as u16) {
        0 => 0xffff,
        checksum => checksum,
    };
    let mut frame = frame.to_vec();
    frame[start + offset..][..2].copy_from_slice(&checksum.to_be_bytes());
    frame
}

pub(crate) fn asks(start: usize, offset: usize) -> VnetHdr {
    VnetHdr {
        flags: vnet::F_NEEDS_CSUM,
        csum_start: start as u16,
        csum_offset: offset as u16,
        ..VnetHdr::default()
    }
}

/// Bytes of the tag that is removed.
fn tag_len(frame: &[u8]) -> usize {
    if matches!(frame[12..14], [0x81, 0] | [0x88, 0xa8]) { TAG_LEN } else { 0 }
}

/// An Ethernet header with tags of these kinds, and the packet.
fn frame(tags: &[u16], ethertype: u16, packet: &[u8]) -> Vec<u8> {
    let tags = tags.iter().flat_map(|kind| [kind.to_be_bytes(), [0, 9]].concat());
    let front = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1].into_iter().chain(tags);
    front.chain(ethertype.to_be_bytes()).chain(packet.iter().copied()).collect()
}

fn ipv4(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let len = (20 + payload.len() as u16).to_be_bytes();
    let header = [0x45, 0, len[0], len[1], 0, 1, 0x40, 0, 64, protocol, 0, 0];
    [&header[..], &[10, 0, 0, 1, 10, 0, 0, 2], payload].concat()
}

/// TCP with `payload` behind a routing header of `routing` bytes.
fn routed_tcp(routing: usize, payload: usize) -> Vec<u8> {
    let len = (routing + 20 + payload) as u16;
    let mut packet = vec![0x60, 0, 0, 0, 0, 0, 43, 64];
    packet[4..6].copy_from_slice(&len.to_be_bytes());
    packet.extend([0xfd; 16].iter().chain(&[0xfe; 16]));
    packet.extend([6, (routing / 8 - 1) as u8, 4, 0]);
    packet.resize(40 + routing, 0);
    packet.extend([0x9c, 0x40, 0, 80, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 1, 0, 0x12, 0x34, 0, 0]);
    packet.extend((0..payload).map(|n| n as u8));
    packet
}

#[test]
fn checksums_in_every_header_that_a_guest_leaves_to_its_device_are_filled_in() {
    let data: Vec<u8> = (0..200).collect();
    let tcp = |payload: &[u8]| {
        [&[0, 7, 0, 80, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 1, 0, 0x12, 0x34, 0, 0][..], payload]
            .concat()
    };
    let gre = |payload: &[u8]| [&[0x80, 0, 0x65, 0x58, 0, 0, 0, 0][..], payload].concat();
    let udp = |to: u16, payload: &[u8]| {
        let [to, len] = [to, 8 + payload.len() as u16].map(u16::to_be_bytes);
        [&[0x30, 0][..], &to, &len, &[0, 0], payload].concat()
    };
    let inner = frame(&[], ethertype::IPV4, &ipv4(6, &tcp(&data)));
    let vxlan = [&[8, 0, 0, 0, 0, 0, 7, 0][..], &inner].concat();
    let plain = |protocol, payload: &[u8]| frame(&[], ethertype::IPV4, &ipv4(protocol, payload));
    for (what, bytes, start, offset) in [
        ("GRE", plain(47, &gre(&data)), 34, 4),
        ("GRE with Ethernet in it", plain(47, &gre(&inner)), 34, 4),
        ("TCP in GRE", plain(47, &gre(&inner)), 34 + 8 + 34, 16),
        ("TCP in VXLAN", plain(17, &udp(4789, &vxlan)), 34 + 16 + 34, 16),
        ("TCP in IPIP", plain(4, &ipv4(6, &tcp(&data))), 54, 16),
        ("SCTP", plain(132, &data), 34, 8),
        ("UDP-Lite", plain(136, &data), 34, 6),
        ("ICMPv6", frame(&[], ethertype::IPV6, &routed_tcp(8, 100)), 62, 2),
        ("TCP behind long headers", frame(&[], ethertype::IPV6, &routed_tcp(104, 200)), 158, 16),
        ("half of it behind the head", frame(&[], ethertype::IPV6, &routed_tcp(56, 200)), 110, 17),
        ("two tags", frame(&[0x8100, 0x8100], ethertype::IPV4, &ipv4(6, &tcp(&data))), 42, 16),
        ("802.1ad", frame(&[0x88a8, 0x8100], ethertype::IPV4, &ipv4(17, &udp(9, &data))), 42, 6),
    ] {
        let mut expected = completed(&bytes, start, offset);
        expected.drain(12..12 + tag_len(&bytes));
        for piece_len in [1, 7, 100, 130, 140, 1000] {
            add(asks(start, offset), &bytes, piece_len, |added, burst| {
                added.unwrap();
                assert!(burst.frames()[0].offload.is_none(), "{what}");
                assert_eq!(bytes_of(burst), expected, "{what} in pieces of {piece_len}");
            });
        }
    }
}

#[test]
fn a_gso_frame_may_have_headers_behind_its_head() {
    let frame = frame(&[], ethertype::IPV6, &routed_tcp(104, 3000));
    let header = VnetHdr {
        gso_type: vnet::GSO_TCPV6,
        gso_size: 1000,
        hdr_len: 178,
        ..asks(14 + 40 + 104, 16)
    };
    let with = |caps, header: VnetHdr| {
        add(header, &frame, 777, |added, burst| {
            added.map(|()| {
                assert_eq!(bytes_of(burst), frame);
                let mut got = Vec::new();
                let out = emit(burst, &burst.frames()[0], EgressTag::Untagged, caps, |packet| {
                    got.push(packet.offload.gso());
                    Put::Done
                });
                (out, got)
            })
        })
    };
    let gso = Gso { kind: GsoKind::Tcp6, ecn: false, size: 1000, hdr_len: 178 };
    let tso6 = OffloadCaps::CSUM | OffloadCaps::TSO6;
    assert_eq!(with(tso6, header), Ok((Ok(Emitted::Done { lost: 0 }), vec![Some(gso)])));
    let (out, got) = with(OffloadCaps::CSUM, header).unwrap();
    assert_eq!(
        (out, got),
        (Err(DropReason::OffloadUnsupported), vec![]),
        "which weir does not cut"
    );
    for wrong in [
        VnetHdr { gso_type: vnet::GSO_TCPV4, ..header },
        VnetHdr { csum_start: header.csum_start + 8, ..header },
        VnetHdr { csum_offset: 14, ..header },
    ] {
        assert!(with(tso6, wrong).is_err(), "{wrong:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    /// A driver cannot make weir overwrite anything that a filter or a guard has judged, and its request is fulfilled.
    #[test]
    fn a_checksum_is_of_the_frames_own_transport_header_or_complete_before_anybody_judges(
        kind in prop::sample::select(vec![0x0800, 0x86dd, 0x0806, 0x8847, 0x88a8]),
        is_tagged: bool,
        nearly in prop::sample::select(vec![0x45_u8, 0x46, 0x60, 0]),
        protocol in prop::sample::select(vec![6_u8, 17, 47, 58, 43, 0]),
        mut bytes in prop::collection::vec(any::<u8>(), 64..400),
        start in 14_usize..420,
        own_start: bool,
        offset in prop::sample::select(vec![0_usize, 2, 4, 6, 7, 16, 50, 120]),
        piece_len in prop::sample::select(vec![3_usize, 128, 140, 1000]),
    ) {
        bytes[0] = nearly;
        (bytes[6], bytes[7]) = (bytes[6] & 0x81, bytes[7] & 1);
        bytes[if kind == 0x86dd { 6 } else { 9 }] = protocol;
        let tags: &[u16] = if is_tagged { &[0x8100] } else { &[] };
        let frame = frame(tags, kind, &bytes);
        let own = 14 + tags.len() * TAG_LEN + if kind == 0x86dd { 40 } else { 20 };
        let start = if own_start { own } else { start };
        add(asks(start, offset), &frame, piece_len, |added, burst| -> Result<(), TestCaseError> {
            let Ok(()) = added else { return Ok(()) };
            let out = burst.frames()[0];
            let mut unchanged = frame.clone();
            unchanged.drain(12..12 + tag_len(&frame));
            match out.offload.csum() {
                Some(csum) => {
                    let layers = Layers::parse(out.head.as_slice()).unwrap();
                    prop_assert_eq!(transport_csum(&layers), Some(csum));
                    prop_assert_eq!(usize::from(csum.start) + tag_len(&frame), start);
                    prop_assert_eq!(bytes_of(burst), unchanged);
                }
                None => {
                    let mut expected = completed(&frame, start, offset);
                    expected.drain(12..12 + tag_len(&frame));
                    prop_assert_eq!(bytes_of(burst), expected);
                }
            }
            Ok(())
        })?;
    }
}
