use proptest::prelude::*;

use super::*;
use crate::checksum::{fill_checksum, nonzero};
use crate::gso::Segmenter;
use crate::testing::{L4, Net, Spec, specs, suspects};

const ACK_PSH: u8 = TCP_ACK | TCP_PSH;
const V4: Net = Net::V4 { id: 0x1234, options: 0 };

fn v6() -> Net {
    Net::V6 { extensions: vec![] }
}

/// A whole frame, and the offloads that its sender left.
#[derive(Clone, Debug, PartialEq)]
struct Frame {
    bytes: Vec<u8>,
    offload: Offload,
}

impl Frame {
    fn head(&self) -> Head {
        Head::copy_of(&self.bytes)
    }

    fn len(&self) -> u32 {
        self.bytes.len() as u32
    }

    /// The sum of the bytes behind the head.
    fn rest(&self) -> Sum {
        let mut rest = Sum::new();
        rest.add(&self.bytes[self.head().len()..]);
        rest
    }

    /// Makes IPv4's and TCP's checksums right again after a change.
    fn with_checksums(mut self) -> Self {
        let l4 = match be16_at(&self.bytes, 12) {
            Some(ethertype::IPV4) => {
                let end = 14 + usize::from(self.bytes[14] & 0xf) * 4;
                let sum = ipv4_header_checksum(&self.bytes[14..end]);
                self.bytes[24..26].copy_from_slice(&sum.to_be_bytes());
                end
            }
            _ => L4_IPV6,
        };
        let addresses = if l4 == L4_IPV6 { IPV6_ADDRESSES } else { IPV4_ADDRESSES };
        let field = l4 + 16;
        self.bytes[field..field + 2].fill(0);
        let mut sum = Sum::new();
        sum.add(&self.bytes[addresses]);
        sum.add_u32(6);
        sum.add_u32((self.bytes.len() - l4) as u32);
        sum.add(&self.bytes[l4..]);
        let sum = nonzero(sum.finish()).to_be_bytes();
        self.bytes[field..field + 2].copy_from_slice(&sum);
        self.offload = Offload::NONE;
        self
    }
}

/// The segments of a GSO frame, with partial checksums or complete ones.
fn cut(bytes: &[u8], offload: &Offload, complete: bool) -> Vec<Frame> {
    let head = Head::copy_of(bytes);
    let hdr_len = usize::from(offload.gso().unwrap().hdr_len);
    Segmenter::new(&head, offload, bytes.len() as u32)
        .unwrap()
        .map(|mut segment| {
            let from = hdr_len + segment.payload_offset as usize;
            let payload = &bytes[from..from + segment.payload_len as usize];
            let mut offload = segment.offload();
            if complete {
                let mut rest = Sum::new();
                rest.add(payload);
                fill_checksum(&mut segment.head, segment.csum, rest).unwrap();
                offload = Offload::NONE;
            }
            Frame { bytes: [segment.head.as_slice(), payload].concat(), offload }
        })
        .collect()
}

fn gso_frame(spec: &Spec, mss: u16) -> Frame {
    let bytes = spec.frame();
    let offload = Offload::from_vnet(&spec.vnet(mss), &bytes, bytes.len() as u32).unwrap();
    Frame { bytes, offload }
}

fn segments(spec: &Spec, mss: u16, complete: bool) -> Vec<Frame> {
    let whole = gso_frame(spec, mss);
    cut(&whole.bytes, &whole.offload, complete)
}

/// Merges as long as segments follow, like weir; returns the packets as whole frames.
fn merge(frames: &[Frame]) -> Vec<Frame> {
    let mut packets = Vec::new();
    let mut rest = frames;
    while let [first, others @ ..] = rest {
        let mut count = 1;
        let head = first.head();
        packets.push(match start(first, &head) {
            None => first.clone(),
            Some(mut merge) => {
                let mut bytes = first.bytes.clone();
                for next in others {
                    let head = next.head();
                    match merge.next(&head, &next.offload, next.len()) {
                        Next::Follows(segment) if is_sound(&segment, next) => {
                            merge.push(&segment);
                            bytes.extend(&next.bytes[segment.hdr_len..]);
                            count += 1;
                        }
                        _ => break,
                    }
                }
                let packet = merge.packet(count as u32);
                bytes[..packet.head.len()].copy_from_slice(packet.head.as_slice());
                assert_eq!(bytes.len() as u32, packet.len);
                if count > 1 { Frame { bytes, offload: packet.offload } } else { first.clone() }
            }
        });
        rest = &rest[count..];
    }
    packets
}

fn start<'h>(frame: &Frame, head: &'h Head) -> Option<Merge<'h>> {
    let segment = TcpSegment::read(head, &frame.offload, frame.len())?;
    is_sound(&segment, frame).then(|| Merge::new(segment))
}

fn is_sound(segment: &TcpSegment<'_>, frame: &Frame) -> bool {
    !segment.needs_verifying() || segment.verify(frame.rest())
}

/// The packets as they are on a wire: GSO frames cut, checksums complete.
fn on_the_wire(packets: &[Frame]) -> Vec<Vec<u8>> {
    let each = |packet: &Frame| match (packet.offload.gso(), packet.offload.csum()) {
        (Some(_), _) => cut(&packet.bytes, &packet.offload, true),
        (None, Some(csum)) => {
            let mut head = packet.head();
            fill_checksum(&mut head, csum, packet.rest()).unwrap();
            let bytes = [head.as_slice(), &packet.bytes[head.len()..]].concat();
            vec![Frame { bytes, offload: Offload::NONE }]
        }
        (None, None) => vec![packet.clone()],
    };
    packets.iter().flat_map(each).map(|frame| frame.bytes).collect()
}

/// The result for the second of two segments of 1000 bytes each after `change` to both.
fn second_after(network: Net, change: impl Fn(usize, &mut Vec<u8>)) -> &'static str {
    let transport = L4::Tcp { seq: 7000, flags: TCP_ACK, options: 3 };
    let spec = Spec { network, transport, payload: vec![7; 2000], ..Spec::default() };
    let frames: Vec<Frame> = segments(&spec, 1000, true)
        .into_iter()
        .enumerate()
        .map(|(index, mut frame)| {
            change(index, &mut frame.bytes);
            frame.with_checksums()
        })
        .collect();
    fate(&frames[0], &frames[1])
}

fn fate(first: &Frame, second: &Frame) -> &'static str {
    let (first_head, head) = (first.head(), second.head());
    let Some(merge) = start(first, &first_head) else { return "no first" };
    match merge.next(&head, &second.offload, second.len()) {
        Next::OtherFlow => "other flow",
        Next::Ends => "ends",
        Next::Follows(segment) if !is_sound(&segment, second) => "corrupt",
        Next::Follows(_) => "follows",
    }
}

/// The result for the second segment with these bytes changed.
fn second_with(network: Net, at: usize, xor: u8) -> &'static str {
    second_after(network, |index, bytes| {
        if index == 1 {
            bytes[at] ^= xor;
        }
    })
}

/// The result if both segments have this byte.
fn both_with(network: Net, at: usize, value: u8) -> &'static str {
    second_after(network, |_, bytes| bytes[at] = value)
}

#[test]
fn plain_segments_follow_each_other() {
    assert_eq!(second_after(V4, |_, _| {}), "follows");
    assert_eq!(second_after(v6(), |_, _| {}), "follows");
}

#[test]
fn segments_of_other_flows_leave_the_packet_open() {
    // Addresses and ports.
    for at in [26, 29, 30, 33, 34, 37] {
        assert_eq!(second_with(V4, at, 1), "other flow", "byte {at} of IPv4");
    }
    for at in [22, 37, 38, 53, 54, 57] {
        assert_eq!(second_with(v6(), at, 1), "other flow", "byte {at} of IPv6");
    }
    // UDP, ICMP, another network protocol.
    assert_eq!(second_with(V4, 23, 6 ^ 17), "other flow");
    assert_eq!(second_with(V4, 23, 6 ^ 1), "other flow");
    assert_eq!(second_with(v6(), 20, 6 ^ 17), "other flow");
    assert_eq!(second_with(V4, 13, 6), "other flow");
}

#[test]
fn a_frame_that_hides_its_ports_may_be_of_the_flow_and_ends_the_packet() {
    let fragment = |index: usize, bytes: &mut Vec<u8>| {
        if index == 1 {
            bytes[21] = 9;
            bytes[34] ^= 1;
        }
    };
    assert_eq!(second_after(V4, fragment), "ends");
    let options = |index: usize, bytes: &mut Vec<u8>| {
        if index == 1 {
            bytes[14] = 0x46;
        }
    };
    assert_eq!(second_after(V4, options), "ends");
    for extension in [0, 43, 44, 60] {
        let differs = second_with(v6(), 20, 6 ^ extension);
        assert_eq!(differs, "ends", "extension header {extension}");
    }
}

#[test]
fn ethernet_addresses_and_network_fields_must_be_the_same() {
    for (at, field) in [(0, "destination"), (11, "source")] {
        assert_eq!(second_with(V4, at, 2), "ends", "{field}");
        assert_eq!(second_with(v6(), at, 2), "ends", "{field}");
    }
    for (at, xor, field) in [(15, 4, "TOS"), (15, 3, "ECN"), (20, 0x40, "DF"), (22, 1, "TTL")] {
        assert_eq!(second_with(V4, at, xor), "ends", "{field}");
    }
    for (at, xor, field) in
        [(14, 1, "traffic class"), (15, 0x30, "ECN"), (17, 1, "flow label"), (21, 1, "hop limit")]
    {
        assert_eq!(second_with(v6(), at, xor), "ends", "{field}");
    }
}

#[test]
fn ip_must_be_plain() {
    assert_eq!(both_with(V4, 14, 0x46), "no first", "options");
    assert_eq!(both_with(V4, 20, 0x20), "no first", "more fragments");
    assert_eq!(both_with(V4, 21, 1), "no first", "a later fragment");
    assert_eq!(both_with(V4, 14, 0x55), "no first", "version");
    assert_eq!(both_with(v6(), 14, 0x40), "no first", "version");
    assert_eq!(both_with(v6(), 20, 60), "no first", "an extension header");
    // The frame is longer or shorter than the packet: it has padding, or a part is missing.
    assert_eq!(both_with(V4, 17, 0), "no first");
    assert_eq!(both_with(v6(), 19, 0), "no first");
}

#[test]
fn ipv4_identification_counts_up_or_stays_where_fragmentation_is_forbidden() {
    let with_ids = |df: bool, ids: &[u16]| {
        let spec = Spec { payload: vec![1; 1000 * ids.len()], ..Spec::default() };
        let mut frames = segments(&spec, 1000, true);
        for (frame, id) in frames.iter_mut().zip(ids) {
            frame.bytes[18..20].copy_from_slice(&id.to_be_bytes());
            frame.bytes[20] = if df { 0x40 } else { 0 };
            *frame = frame.clone().with_checksums();
        }
        merge(&frames).len()
    };
    for df in [false, true] {
        assert_eq!(with_ids(df, &[65_534, 65_535, 0, 1]), 1, "counts up and wraps");
        assert_eq!(with_ids(df, &[5, 7]), 2);
        assert_eq!(with_ids(df, &[5, 4]), 2);
        assert_eq!(with_ids(df, &[5, 6, 6]), 2);
        assert_eq!(with_ids(df, &[5, 6, 8]), 2);
    }
    assert_eq!(with_ids(true, &[0, 0, 0]), 1);
    assert_eq!(with_ids(true, &[5, 5, 6]), 2);
    assert_eq!(with_ids(true, &[5, 5, 7]), 2);
    assert_eq!(with_ids(false, &[5, 5, 5]), 3);
}

#[test]
fn sequence_numbers_are_consecutive_and_wrap() {
    for (network, l4) in [(V4, L4_IPV4), (v6(), L4_IPV6)] {
        for at in l4 + 4..l4 + 8 {
            assert_eq!(second_with(network.clone(), at, 1), "ends", "byte {at}");
        }
        let transport = L4::Tcp { seq: u32::MAX - 1500, flags: TCP_ACK, options: 0 };
        let spec = Spec { network, transport, payload: vec![5; 4000], ..Spec::default() };
        assert_eq!(merge(&segments(&spec, 1000, true)).len(), 1);
        let mut swapped = segments(&spec, 1000, true);
        swapped.swap(1, 2);
        assert_eq!(merge(&swapped).len(), 4);
        let again = segments(&spec, 1000, true);
        let again = [&again[..2], &again[1..]].concat();
        assert_eq!(merge(&again).len(), 2, "sent again");
    }
}

#[test]
fn tcp_fields_must_be_the_same() {
    for (network, l4) in [(V4, L4_IPV4), (v6(), L4_IPV6)] {
        for (offset, field) in [
            (8, "acknowledgement"),
            (11, "acknowledgement"),
            (14, "window"),
            (15, "window"),
            (18, "urgent pointer"),
            (19, "urgent pointer"),
            (20, "options"),
            (31, "options"),
        ] {
            assert_eq!(second_with(network.clone(), l4 + offset, 1), "ends", "{field}");
        }
        // Four bytes fewer of options, four more of payload.
        assert_eq!(second_with(network.clone(), l4 + 12, 0x80 ^ 0x70), "ends", "header length");
    }
}

#[test]
fn tcp_has_no_flags_but_ack_and_psh() {
    for (network, l4) in [(V4, L4_IPV4), (v6(), L4_IPV6)] {
        for flag in [0x01, 0x02, 0x04, 0x20, 0x40, 0x80] {
            let (at, flags) = (l4 + 13, TCP_ACK | flag);
            assert_eq!(both_with(network.clone(), at, flags), "no first", "flag {flag:#x}");
            assert_eq!(second_with(network.clone(), at, flag), "ends", "flag {flag:#x}");
        }
        assert_eq!(both_with(network.clone(), l4 + 13, 0), "no first", "without ACK");
        assert_eq!(both_with(network.clone(), l4 + 12, 0x81), "no first", "accurate ECN");
        assert_eq!(both_with(network, l4 + 12, 0x40), "no first", "a header of 16 bytes");
    }
}

#[test]
fn psh_ends_the_packet_and_is_kept() {
    let spec = Spec { payload: vec![3; 4000], ..Spec::default() };
    let mut frames = segments(&spec, 1000, true);
    frames[1].bytes[L4_IPV4 + 13] = ACK_PSH;
    frames[1] = frames[1].clone().with_checksums();
    let packets = merge(&frames);
    let found: Vec<_> = packets.iter().map(|p| (p.bytes.len(), p.bytes[L4_IPV4 + 13])).collect();
    assert_eq!(found, [(2054, ACK_PSH), (2054, TCP_ACK)]);
    assert_eq!(both_with(V4, L4_IPV4 + 13, ACK_PSH), "ends");
}

#[test]
fn only_the_last_segment_is_shorter_and_none_is_longer() {
    let lens = |lens: &[usize]| {
        let mut seq = 1000;
        let frames: Vec<_> = lens
            .iter()
            .zip(0x1234..)
            .map(|(len, id)| {
                let transport = L4::Tcp { seq, flags: TCP_ACK, options: 0 };
                let network = Net::V4 { id, options: 0 };
                seq += *len as u32;
                let spec = Spec { network, transport, payload: vec![9; *len], ..Spec::default() };
                Frame { bytes: spec.frame(), offload: Offload::NONE }.with_checksums()
            })
            .collect();
        merge(&frames).iter().map(|packet| packet.bytes.len() - 54).collect::<Vec<_>>()
    };
    assert_eq!(lens(&[100, 100, 100]), [300]);
    assert_eq!(lens(&[100, 100, 40, 100]), [240, 100]);
    assert_eq!(lens(&[100, 40, 40]), [140, 40]);
    assert_eq!(lens(&[40, 100, 100]), [40, 200]);
    assert_eq!(lens(&[1, 1]), [2]);
}

#[test]
fn a_segment_without_payload_is_not_merged() {
    let spec = Spec { payload: vec![], ..Spec::default() };
    let ack = Frame { bytes: spec.frame(), offload: Offload::NONE }.with_checksums();
    assert!(TcpSegment::read(&ack.head(), &ack.offload, ack.len()).is_none());
    let data = segments(&Spec::default(), 1000, true);
    assert_eq!(fate(&data[0], &ack), "ends");
}

#[test]
fn a_packet_is_no_longer_than_ip_can_say() {
    for network in [V4, v6()] {
        let spec = Spec { network, ..Spec::default() };
        let mut frames = Vec::new();
        for index in 0..64u16 {
            let transport = L4::Tcp { seq: u32::from(index) * 1448, flags: TCP_ACK, options: 3 };
            let network = match &spec.network {
                Net::V4 { .. } => Net::V4 { id: index, options: 0 },
                v6 => v6.clone(),
            };
            let spec = Spec { network, transport, payload: vec![1; 1448], ..spec.clone() };
            frames.push(Frame { bytes: spec.frame(), offload: Offload::NONE }.with_checksums());
        }
        let packets = merge(&frames);
        let most = (GRO_LEN_MAX as usize - spec.l4() - 32) / 1448;
        assert_eq!(packets.len(), 2);
        assert_eq!(packets[0].bytes.len(), spec.l4() + 32 + most * 1448);
        assert_eq!(on_the_wire(&packets), on_the_wire(&frames));
    }
}

#[test]
fn a_wrong_tcp_checksum_is_found_wherever_the_damage_is() {
    for network in [V4, v6()] {
        let spec = Spec { network, payload: vec![7; 2000], ..Spec::default() };
        let frames = segments(&spec, 1000, true);
        assert_eq!(fate(&frames[0], &frames[1]), "follows");
        for at in [spec.l4() + 16, spec.hdr_len(), 127, 128, 500, spec.hdr_len() + 999] {
            let mut damaged = frames[1].clone();
            damaged.bytes[at] ^= 0x10;
            assert_eq!(fate(&frames[0], &damaged), "corrupt", "byte {at}");
            assert_eq!(merge(&[damaged.clone(), frames[1].clone()]).len(), 2);
            assert_eq!(merge(&[frames[0].clone(), damaged.clone()])[1], damaged, "goes as it is");
        }
    }
}

#[test]
fn a_wrong_ipv4_header_checksum_is_never_hidden() {
    let frames = segments(&Spec::default(), 1000, true);
    let mut damaged = frames.clone();
    damaged[1].bytes[25] ^= 1;
    assert_eq!(fate(&damaged[0], &damaged[1]), "ends");
    damaged[0].bytes[25] ^= 1;
    assert_eq!(fate(&damaged[0], &frames[1]), "no first");
}

#[test]
fn a_device_that_found_the_checksum_right_is_believed() {
    let mut frames = segments(&Spec::default(), 1000, true);
    let valid = crate::VnetHdr { flags: crate::vnet::F_DATA_VALID, ..Default::default() };
    for frame in &mut frames {
        frame.offload = Offload::from_vnet(&valid, &frame.bytes, frame.len()).unwrap();
        let head = frame.head();
        let segment = TcpSegment::read(&head, &frame.offload, frame.len()).unwrap();
        assert!(!segment.needs_verifying());
    }
    assert_eq!(merge(&frames).len(), 1);
}

#[test]
fn a_partial_checksum_is_that_of_the_segment_and_right_so_far() {
    let frames = segments(&Spec::default(), 1000, false);
    let read =
        |frame: &Frame| TcpSegment::read(&frame.head(), &frame.offload, frame.len()).is_some();
    assert!(frames.iter().all(read));
    let mut wrong = frames[0].clone();
    wrong.bytes[L4_IPV4 + 17] ^= 1;
    assert!(!read(&wrong), "the pseudo-header's sum");
    let mut elsewhere = frames[0].clone();
    elsewhere.offload = Offload::with_csum(CsumPartial { start: 34, offset: 18 });
    assert!(!read(&elsewhere), "another field");
    let whole = gso_frame(&Spec::default(), 1000);
    assert!(!read(&whole), "a GSO frame");
}

#[test]
fn a_packet_of_the_first_segments_only_is_one_too() {
    let transport = L4::Tcp { seq: 1, flags: ACK_PSH, options: 0 };
    let spec = Spec { transport, payload: vec![4; 3500], ..Spec::default() };
    let frames = segments(&spec, 1000, true);
    let heads: Vec<Head> = frames.iter().map(Frame::head).collect();
    let mut merge = start(&frames[0], &heads[0]).unwrap();
    for (frame, head) in frames.iter().zip(&heads).skip(1) {
        let Next::Follows(segment) = merge.next(head, &frame.offload, frame.len()) else {
            panic!("it follows")
        };
        merge.push(&segment);
    }
    for count in 1..=4u32 {
        let shorter = Spec {
            transport: L4::Tcp {
                seq: 1,
                flags: if count == 4 { ACK_PSH } else { TCP_ACK },
                options: 0,
            },
            payload: vec![4; (count as usize * 1000).min(3500)],
            ..spec.clone()
        };
        let expected = gso_frame(&shorter, 1000);
        let packet = merge.packet(count);
        assert_eq!(packet.head, expected.head());
        assert_eq!((packet.offload, packet.len), (expected.offload, expected.len()));
    }
}

/// TCP segments as plain as those that can be merged.
fn plain_specs() -> impl Strategy<Value = Spec> {
    (specs(6000), any::<bool>(), any::<bool>()).prop_map(|(spec, psh, is_v4)| {
        let (seq, options) = match spec.transport {
            L4::Tcp { seq, options, .. } => (seq, options),
            L4::Udp => (u32::MAX - 2000, 3),
        };
        let id = u16::from_be_bytes([spec.addresses[0][0], spec.addresses[0][1]]);
        Spec {
            tag: None,
            network: if is_v4 { Net::V4 { id, options: 0 } } else { v6() },
            transport: L4::Tcp { seq, flags: if psh { ACK_PSH } else { TCP_ACK }, options },
            ..spec
        }
    })
}

proptest! {
    #[test]
    fn merging_what_was_cut_gives_the_frame_again(
        spec in plain_specs(), mss in 100u16..2000, complete in any::<bool>(),
    ) {
        let whole = gso_frame(&spec, mss);
        let frames = cut(&whole.bytes, &whole.offload, complete);
        let packets = merge(&frames);
        if frames.len() > 1 {
            prop_assert_eq!(&packets, &[whole]);
        }
        prop_assert_eq!(on_the_wire(&packets), on_the_wire(&frames));
    }

    /// Whatever happens to segments on their way, they are unchanged after merging and cutting.
    #[test]
    fn cutting_what_was_merged_gives_the_segments_again(
        spec in plain_specs(),
        mss in 100u16..1000,
        damage in proptest::collection::vec(
            (any::<prop::sample::Index>(), 0usize..130, any::<u8>(), any::<bool>()), 0..4,
        ),
        lost in proptest::option::of(any::<prop::sample::Index>()),
        swapped in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let sound = segments(&spec, mss, true);
        let mut frames = sound.clone();
        for (which, at, xor, mended) in damage {
            let index = which.index(frames.len());
            let (mut changed, sound) = (frames[index].clone(), &sound[index]);
            let at = at % changed.bytes.len();
            changed.bytes[at] ^= xor;
            // In a frame that is no longer TCP over IP, the checksums' offsets are unknown.
            if mended && changed.bytes[12..15] == sound.bytes[12..15] {
                changed = changed.with_checksums();
            }
            frames[index] = changed;
        }
        if let Some(lost) = lost {
            frames.remove(lost.index(frames.len()));
        }
        if let (Some(swapped), true) = (swapped, frames.len() > 1) {
            let index = swapped.index(frames.len() - 1);
            frames.swap(index, index + 1);
        }
        prop_assert_eq!(on_the_wire(&merge(&frames)), on_the_wire(&frames));
    }

    #[test]
    fn no_frame_panics_whatever_is_in_it((bytes, hdr) in suspects()) {
        let head = Head::copy_of(&bytes);
        let frame_len = bytes.len() as u32;
        let Ok(offload) = Offload::from_vnet(&hdr, head.as_slice(), frame_len) else { return Ok(()) };
        let frame = Frame { bytes, offload };
        let plain = segments(&Spec::default(), 1000, true);
        fate(&plain[0], &frame);
        merge(&[frame.clone(), frame]);
    }
}
