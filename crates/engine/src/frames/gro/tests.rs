use std::collections::BTreeMap;

use etherparse::{IpFragOffset, IpHeaders, IpNumber, Ipv4Header, Ipv6Header, PacketBuilder};
use proptest::prelude::*;
use weir_fabric::EgressTag;
use weir_guestmem::HostBuffer;
use weir_wire::{Head, Offload, Segmenter, Sum, Tci, VnetHdr, fill_checksum, vnet};

use super::*;
use crate::frames::burst::{Pieces, Scratch, TakenChain};

const TSO: OffloadCaps = OffloadCaps::CSUM.union(OffloadCaps::TSO4).union(OffloadCaps::TSO6);

/// A TCP segment with complete checksums.
#[derive(Clone, Copy, Debug)]
struct Segment {
    flow: u16,
    number: u16,
    len: usize,
    v6: bool,
    psh: bool,
}

impl Segment {
    fn new(flow: u16, number: u16) -> Self {
        Self { flow, number, len: 1000, v6: false, psh: false }
    }

    fn frame(&self) -> Vec<u8> {
        let ip = if self.v6 {
            let next_header = IpNumber::TCP;
            let (source, destination) = ([1; 16], [2; 16]);
            let header = Ipv6Header {
                next_header,
                hop_limit: 64,
                source,
                destination,
                ..Default::default()
            };
            IpHeaders::Ipv6(header, Default::default())
        } else {
            let mut header =
                Ipv4Header::new(0, 64, IpNumber::TCP, [10, 0, 0, 1], [10, 0, 0, 2]).unwrap();
            header.identification = self.number;
            header.dont_fragment = true;
            header.fragment_offset = IpFragOffset::ZERO;
            IpHeaders::Ipv4(header, Default::default())
        };
        let builder = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
            .ip(ip)
            .tcp(self.flow, 80, u32::from(self.number) * 1000, 500)
            .ack(77);
        let builder = if self.psh { builder.psh() } else { builder };
        let payload: Vec<u8> =
            (0..self.len).map(|at| (at * 7 + usize::from(self.number)) as u8).collect();
        let mut frame = Vec::new();
        builder.write(&mut frame, &payload).unwrap();
        frame
    }
}

fn segments(flow: u16, numbers: std::ops::Range<u16>) -> Vec<Vec<u8>> {
    numbers.map(|number| Segment::new(flow, number).frame()).collect()
}

/// A packet as a receiver gets it.
#[derive(Clone, Debug, PartialEq)]
struct Got {
    bytes: Vec<u8>,
    offload: Offload,
    frames: u32,
}

impl Got {
    fn of(packet: &Packet<'_, '_>) -> Self {
        let mut bytes = packet.head.as_slice().to_vec();
        for slice in packet.body() {
            let start = bytes.len();
            bytes.resize(start + slice.len(), 0);
            slice.read(&mut bytes[start..]);
        }
        assert_eq!(bytes.len(), packet.len());
        Self { bytes, offload: *packet.offload, frames: packet.frames }
    }

    /// The frames that the segment would become on a wire.
    fn on_the_wire(&self) -> Vec<Vec<u8>> {
        let Some(gso) = self.offload.gso() else {
            return vec![self.bytes.clone()];
        };
        let head = Head::copy_of(&self.bytes);
        let segmenter = Segmenter::new(&head, &self.offload, self.bytes.len() as u32).unwrap();
        let each = segmenter.map(|mut segment| {
            let from = usize::from(gso.hdr_len) + segment.payload_offset as usize;
            let payload = &self.bytes[from..from + segment.payload_len as usize];
            let mut rest = Sum::new();
            rest.add(payload);
            fill_checksum(&mut segment.head, segment.csum, rest).unwrap();
            [segment.head.as_slice(), payload].concat()
        });
        each.collect()
    }
}

/// Makes a burst of frames, each cut into pieces of `piece_len` bytes, and passes it to `body`.
fn with_burst<T>(
    frames: &[Vec<u8>],
    header: VnetHdr,
    piece_len: usize,
    body: impl FnOnce(&Burst<'_>) -> T,
) -> T {
    let buffer = HostBuffer::new(frames.iter().map(|frame| frame.len() + VnetHdr::LEN).sum());
    let mut scratch = Scratch::default();
    let mut burst = scratch.lend();
    burst.from_device = true;
    let mut at = 0;
    for (token, frame) in frames.iter().enumerate() {
        let bytes = [&header.to_bytes(), &frame[..]].concat();
        let first = burst.pieces.len() as u32;
        for piece in bytes.chunks(piece_len) {
            let slice = buffer.slice(at, piece.len()).unwrap();
            slice.write(piece);
            at += piece.len();
            burst.pieces.push(slice);
        }
        let pieces = Pieces::Among(first, burst.pieces.len() as u32);
        let chain = TakenChain { token: token as u64, len: bytes.len() as u32, pieces };
        burst.add(chain, VnetHdr::LEN, token as u64 + 100).unwrap();
    }
    burst.is_untagged = true;
    body(&burst)
}

fn untagged(count: usize) -> Vec<Outgoing> {
    (0..count as u16).map(Outgoing::untagged).collect()
}

/// The packets that a receiver with room for everything gets.
fn receive(frames: &[Vec<u8>], caps: OffloadCaps) -> Vec<Got> {
    with_burst(frames, VnetHdr::default(), 4096, |burst| {
        let outgoing = untagged(frames.len());
        let mut list = EgressList::new(burst, &outgoing, caps);
        let mut got = Vec::new();
        let mut put = |packet: Packet<'_, '_>| {
            got.push(Got::of(&packet));
            Put::Done
        };
        while let Some(sent) = list.emit_next(&mut put) {
            assert_eq!(sent.result, Ok(Emitted::Done { lost: 0 }));
        }
        assert_eq!(list.delivered().frames, frames.len());
        let merged = got.iter().filter(|packet| packet.frames > 1).count();
        assert_eq!(list.merged(), merged as u64);
        got
    })
}

fn counts(packets: &[Got]) -> Vec<u32> {
    packets.iter().map(|packet| packet.frames).collect()
}

fn on_the_wire(packets: &[Got]) -> Vec<Vec<u8>> {
    packets.iter().flat_map(Got::on_the_wire).collect()
}

#[test]
fn segments_of_one_burst_become_one_packet() {
    for v6 in [false, true] {
        let frames: Vec<_> = (0..10)
            .map(|n| Segment {
                v6,
                psh: n == 9,
                len: if n == 9 { 300 } else { 1000 },
                ..Segment::new(1, n)
            })
            .map(|segment| segment.frame())
            .collect();
        let got = receive(&frames, TSO);
        assert_eq!(counts(&got), [10]);
        let hdr_len = if v6 { 74 } else { 54 };
        let expected = VnetHdr {
            flags: vnet::F_NEEDS_CSUM,
            gso_type: if v6 { vnet::GSO_TCPV6 } else { vnet::GSO_TCPV4 },
            hdr_len,
            gso_size: 1000,
            csum_start: hdr_len - 20,
            csum_offset: 16,
            num_buffers: 0,
        };
        assert_eq!(got[0].offload.to_vnet(0), expected);
        assert_eq!(got[0].bytes.len(), usize::from(hdr_len) + 9300);
        assert_eq!(on_the_wire(&got), frames);
    }
}

#[test]
fn a_receiver_without_tso_gets_every_segment() {
    let frames = segments(1, 0..5);
    for caps in [OffloadCaps::NONE, OffloadCaps::CSUM, OffloadCaps::CSUM | OffloadCaps::TSO6] {
        let got = receive(&frames, caps);
        assert_eq!(counts(&got), [1; 5], "{caps}");
        assert_eq!(on_the_wire(&got), frames);
    }
}

#[test]
fn what_is_alone_or_not_tcp_goes_as_it_is() {
    let mut udp = Vec::new();
    PacketBuilder::ethernet2([2; 6], [4; 6])
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
        .udp(1, 2)
        .write(&mut udp, &[0; 18])
        .unwrap();
    let frames = [udp.clone(), Segment::new(1, 0).frame(), udp.clone(), udp];
    for (got, frame) in receive(&frames, TSO).iter().zip(&frames) {
        assert_eq!(*got, Got { bytes: frame.clone(), offload: Offload::NONE, frames: 1 });
    }
}

#[test]
fn flows_that_take_turns_become_one_packet_each() {
    let frames: Vec<_> = (0..6)
        .flat_map(|number| [1, 2, 3].map(|flow| Segment::new(flow, number).frame()))
        .collect();
    let got = receive(&frames, TSO);
    assert_eq!(counts(&got), [6, 6, 6]);
    for (packet, flow) in got.iter().zip(1..) {
        assert_eq!(packet.on_the_wire(), segments(flow, 0..6));
    }
}

#[test]
fn a_next_segment_is_searched_behind_a_few_frames_only() {
    for (between, expected) in [(GRO_FLOWS_BETWEEN_MAX, 2), (GRO_FLOWS_BETWEEN_MAX + 1, 1)] {
        let mut frames = segments(1, 0..1);
        frames.extend((0..between as u16).map(|flow| Segment::new(10 + flow, 0).frame()));
        frames.extend(segments(1, 1..2));
        assert_eq!(receive(&frames, TSO)[0].frames, expected);
    }
}

#[test]
fn a_list_of_lone_segments_is_not_searched_to_its_end() {
    for (lone, merged) in [(GRO_LONE_MAX - 1, 1), (GRO_LONE_MAX, 0)] {
        // Each segment has its own flow, and is too far from its successor.
        let mut frames: Vec<_> =
            (0..u16::from(lone)).map(|flow| Segment::new(10 + flow, 0).frame()).collect();
        frames.extend(segments(1, 0..2));
        let got = receive(&frames, TSO);
        assert_eq!(got.iter().filter(|packet| packet.frames > 1).count(), merged);
        assert_eq!(on_the_wire(&got), frames);
    }
}

#[test]
fn order_holds_within_a_flow() {
    // The second frame is out of order; no later one of its flow passes it.
    let frames: Vec<_> =
        [0, 5, 1, 2].map(|number| Segment::new(1, number).frame()).into_iter().collect();
    let got = receive(&frames, TSO);
    assert_eq!(counts(&got), [1, 1, 2]);
    assert_eq!(on_the_wire(&got), frames);
}

#[test]
fn a_corrupt_segment_is_never_hidden() {
    let frames = segments(1, 0..5);
    for at in [24, 40, 50, 54, 100, 127, 128, 129, 500, 1053] {
        for damaged in 0..5 {
            let mut frames = frames.clone();
            frames[damaged][at] ^= 0x20;
            let got = receive(&frames, TSO);
            assert_eq!(on_the_wire(&got), frames, "byte {at} of frame {damaged}");
            let alone = Got { bytes: frames[damaged].clone(), offload: Offload::NONE, frames: 1 };
            assert!(got.contains(&alone), "byte {at} of frame {damaged}");
        }
    }
}

#[test]
fn a_checksum_that_the_device_found_right_is_not_verified_again() {
    let mut frames = segments(1, 0..3);
    frames[1][200] ^= 1;
    let valid = VnetHdr { flags: vnet::F_DATA_VALID, ..VnetHdr::default() };
    with_burst(&frames, valid, 4096, |burst| {
        let outgoing = untagged(3);
        let mut list = EgressList::new(burst, &outgoing, TSO);
        assert_eq!(list.emit_next(|_| Put::Done).unwrap().frames, 3);
    });
}

#[test]
fn only_frames_with_the_same_egress_tag_are_merged_and_keep_it() {
    let tagged = |vid| EgressTag::Tagged(Tci::new(vid, 0, false).unwrap());
    let frames = segments(1, 0..4);
    with_burst(&frames, VnetHdr::default(), 4096, |burst| {
        let tags = [tagged(7), tagged(7), tagged(8), EgressTag::Untagged];
        let outgoing: Vec<_> =
            tags.into_iter().zip(0..).map(|(tag, frame)| Outgoing { frame, tag }).collect();
        let mut list = EgressList::new(burst, &outgoing, TSO);
        let mut got = Vec::new();
        while list
            .emit_next(|packet| {
                got.push(Got::of(&packet));
                Put::Done
            })
            .is_some()
        {}
        assert_eq!(counts(&got), [2, 1, 1]);
        assert_eq!(got[0].bytes[12..16], [0x81, 0, 0, 7]);
        let header = got[0].offload.to_vnet(0);
        assert_eq!((header.csum_start, header.hdr_len), (38, 58));
        for (wire, frame) in got[0].on_the_wire().iter().zip(&frames) {
            assert_eq!([&wire[..12], &wire[16..]].concat(), *frame);
        }
    });
}

#[test]
fn a_row_has_all_frames_of_its_list_and_no_other() {
    let frames = segments(1, 0..6);
    with_burst(&frames, VnetHdr::default(), 4096, |burst| {
        let row = |numbers: &[u16], caps| {
            let outgoing: Vec<_> = numbers.iter().map(|it| Outgoing::untagged(*it)).collect();
            let row = EgressList::new(burst, &outgoing, caps).plain_in_a_row();
            let names = |row: PlainRow<'_>| row.iter().map(|it| it.frame.token).collect::<Vec<_>>();
            let without_list = PlainRow::of(burst, &outgoing, caps);
            assert_eq!(row.map(names), without_list.map(names));
            Some(row?.iter().map(|plain| plain.frame.token).collect::<Vec<_>>())
        };
        assert_eq!(row(&[0, 1, 2, 3, 4, 5], OffloadCaps::NONE), Some(vec![0, 1, 2, 3, 4, 5]));
        assert_eq!(row(&[2, 3, 4], OffloadCaps::NONE), Some(vec![2, 3, 4]));
        assert_eq!(row(&[5], OffloadCaps::NONE), Some(vec![5]));
        assert_eq!(row(&[0, 2, 3], OffloadCaps::NONE), None, "one is not for this receiver");
        assert_eq!(row(&[2, 3, 4], TSO), None, "they may merge");
        assert_eq!(row(&[], OffloadCaps::NONE), None);
        let outgoing = untagged(6);
        let mut list = EgressList::new(burst, &outgoing, OffloadCaps::NONE);
        list.plain_done(4);
        assert_eq!(list.plain_in_a_row().map(|row| row.iter().len()), Some(2), "some are done");
    });
    let valid = VnetHdr { flags: vnet::F_DATA_VALID, ..VnetHdr::default() };
    with_burst(&frames, valid, 4096, |burst| {
        let outgoing = untagged(6);
        let list = EgressList::new(burst, &outgoing, OffloadCaps::NONE);
        assert!(list.plain_in_a_row().is_none(), "they have offloads");
    });
}

/// A receiver with limited room, and the packets it got.
struct Receiver {
    room: usize,
    got: Vec<Got>,
}

impl Receiver {
    fn put(&mut self, packet: &Packet<'_, '_>) -> Put {
        let Some(left) = self.room.checked_sub(packet.frames as usize) else { return Put::Full };
        self.room = left;
        self.got.push(Got::of(packet));
        Put::Done
    }
}

#[test]
fn a_receiver_with_little_room_gets_as_much_as_without_merging() {
    let frames = segments(1, 0..20);
    for room in 0..=20 {
        with_burst(&frames, VnetHdr::default(), 4096, |burst| {
            let outgoing = untagged(frames.len());
            let mut list = EgressList::new(burst, &outgoing, TSO);
            let mut receiver = Receiver { room, got: Vec::new() };
            while let Some(sent) = list.emit_next(|packet| receiver.put(&packet)) {
                if sent.result == Ok(Emitted::Full) {
                    break;
                }
            }
            assert_eq!(list.delivered().frames, room);
            assert_eq!(on_the_wire(&receiver.got), frames[..room]);
        });
    }
}

#[test]
fn frames_that_went_ahead_are_told_from_those_that_did_not() {
    // Two flows alternate; the second has no room.
    let frames: Vec<_> =
        (0..3).flat_map(|number| [1, 2].map(|flow| Segment::new(flow, number).frame())).collect();
    with_burst(&frames, VnetHdr::default(), 4096, |burst| {
        let outgoing = untagged(6);
        let mut list = EgressList::new(burst, &outgoing, TSO);
        let mut receiver = Receiver { room: 3, got: Vec::new() };
        let sent = list.emit_next(|packet| receiver.put(&packet)).unwrap();
        assert_eq!((sent.frames, sent.arrived_ns), (3, 100));
        let sent = list.emit_next(|packet| receiver.put(&packet)).unwrap();
        assert_eq!(sent.result, Ok(Emitted::Full));
        let delivered = list.delivered();
        assert_eq!((delivered.frames, delivered.ahead), (1, 0b01_0101));
    });
}

#[test]
fn frames_of_a_refused_packet_are_dealt_with() {
    let frames = segments(1, 0..4);
    with_burst(&frames, VnetHdr::default(), 4096, |burst| {
        let outgoing = untagged(4);
        let mut list = EgressList::new(burst, &outgoing, TSO);
        let sent = list.emit_next(|_| Put::Refused).unwrap();
        assert_eq!((sent.frames, sent.result), (4, Ok(Emitted::Done { lost: 0 })));
        assert_eq!((list.delivered().frames, list.merged()), (4, 0));
    });
}

#[test]
fn a_packet_has_no_more_pieces_than_a_frame_may_have() {
    let frames = segments(1, 0..40);
    with_burst(&frames, VnetHdr::default(), 50, |burst| {
        let outgoing = untagged(frames.len());
        let mut list = EgressList::new(burst, &outgoing, TSO);
        let mut got = Vec::new();
        let put = |packet: Packet<'_, '_>| {
            assert!(packet.body().count() <= GRO_PIECES_MAX);
            got.push(Got::of(&packet));
            Put::Done
        };
        let mut put = put;
        while list.emit_next(&mut put).is_some() {}
        assert!(got.len() > 1 && got[0].frames > 1);
        assert_eq!(on_the_wire(&got), frames);
    });
}

#[test]
fn bytes_are_counted_as_on_the_wire() {
    let frames = segments(1, 0..3);
    with_burst(&frames, VnetHdr::default(), 4096, |burst| {
        let outgoing = untagged(3);
        let mut list = EgressList::new(burst, &outgoing, TSO);
        let put = |packet: Packet<'_, '_>| {
            assert_eq!((packet.len(), packet.frames_len()), (3054, 3 * 1054));
            Put::Done
        };
        list.emit_next(put).unwrap();
    });
}

/// A frame of one of a few flows, possibly damaged.
fn any_frame() -> impl Strategy<Value = (u16, Vec<u8>)> {
    let damage = proptest::option::weighted(0.1, (0usize..1054, 1u8..));
    (0u16..4, 0u16..6, any::<bool>(), 0u8..10, damage).prop_map(
        |(flow, number, v6, kind, damage)| {
            let len = if kind == 0 { 500 } else { 1000 };
            let segment = Segment { v6, len, psh: kind == 1, ..Segment::new(flow, number) };
            let mut frame = segment.frame();
            if let Some((at, xor)) = damage {
                let at = at % frame.len();
                frame[at] ^= xor;
            }
            (flow + u16::from(v6) * 100, frame)
        },
    )
}

/// Bursts in which consecutive segments are frequent.
fn any_burst() -> impl Strategy<Value = Vec<(u16, Vec<u8>)>> {
    let run = (0u16..4, 0u16..40, 1u16..8, any::<bool>()).prop_map(|(flow, from, count, v6)| {
        let frame = |number| Segment { v6, ..Segment::new(flow, number) }.frame();
        (from..from + count).map(|n| (flow + u16::from(v6) * 100, frame(n))).collect::<Vec<_>>()
    });
    let part = prop_oneof![3 => run, 1 => any_frame().prop_map(|frame| vec![frame])];
    (proptest::collection::vec(part, 1..12), any::<bool>()).prop_map(|(parts, shuffle)| {
        let mut frames: Vec<_> = parts.concat();
        if shuffle {
            // Flows alternate; each keeps its order.
            let mut nth: BTreeMap<u16, usize> = BTreeMap::new();
            let mut keyed: Vec<_> = frames
                .into_iter()
                .map(|(flow, frame)| {
                    let n = nth.entry(flow).or_default();
                    *n += 1;
                    (*n, flow, frame)
                })
                .collect();
            keyed.sort_by_key(|(n, ..)| *n);
            frames = keyed.into_iter().map(|(_, flow, frame)| (flow, frame)).collect();
        }
        frames.truncate(BURST_MAX);
        frames
    })
}

proptest! {
    /// Whatever frames a burst has, and however little room a receiver has, each frame arrives once, unchanged, and in
    /// the order of its flow.
    #[test]
    fn every_frame_arrives_as_it_was_and_in_the_order_of_its_flow(
        frames in any_burst(),
        rooms in proptest::collection::vec(0usize..30, 0..6),
        piece_len in 300usize..2000,
    ) {
        let bytes: Vec<_> = frames.iter().map(|(_, frame)| frame.clone()).collect();
        let got = with_burst(&bytes, VnetHdr::default(), piece_len, |burst| {
            let mut left = untagged(bytes.len());
            let mut receiver = Receiver { room: 0, got: Vec::new() };
            for room in rooms.into_iter().chain([BURST_MAX]) {
                receiver.room = room;
                let mut list = EgressList::new(burst, &left, TSO);
                while let Some(sent) = list.emit_next(|packet| receiver.put(&packet)) {
                    if sent.result == Ok(Emitted::Full) {
                        break;
                    }
                }
                let done = list.delivered();
                left = left.iter().enumerate().skip(done.frames)
                    .filter(|(i, _)| done.ahead & 1 << i == 0)
                    .map(|(_, outgoing)| *outgoing)
                    .collect();
            }
            assert!(left.is_empty());
            receiver.got
        });
        let wire = on_the_wire(&got);
        let mut sorted = wire.clone();
        let mut expected = bytes.clone();
        sorted.sort();
        expected.sort();
        prop_assert_eq!(sorted, expected);
        // A damaged address makes a flow of its own: compare by the addresses and ports that occur.
        let of_flow = |frames: &[Vec<u8>], flow: &[u8]| -> Vec<Vec<u8>> {
            frames.iter().filter(|frame| flow_of(frame) == flow).cloned().collect()
        };
        for frame in &bytes {
            let flow = flow_of(frame);
            prop_assert_eq!(of_flow(&wire, flow), of_flow(&bytes, flow));
        }
    }
}

/// The addresses and ports of a frame.
fn flow_of(frame: &[u8]) -> &[u8] {
    match frame[12..14] {
        [8, 0] => &frame[26..38],
        [0x86, 0xdd] => &frame[22..58],
        _ => &frame[..14],
    }
}
