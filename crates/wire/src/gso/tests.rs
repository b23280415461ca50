use etherparse::{NetHeaders, PacketHeaders, TransportHeader};
use proptest::prelude::*;
use weir_limits::{FRAME_LEN_MAX, HEAD_LEN};

use super::*;
use crate::checksum::{fill_checksum, nonzero};
use crate::layers::protocol;
use crate::testing::{L4, Net, Spec, naive_sum, specs, suspects};
use crate::vnet::{GSO_ECN, VnetHdr};

const TCP_ACK: u8 = 0x10;

fn segmenter(spec: &Spec, mss: u16) -> Result<Segmenter, GsoError> {
    let frame = spec.frame();
    let head = Head::copy_of(&frame);
    let offload = Offload::from_vnet(&spec.vnet(mss), head.as_slice(), frame.len() as u32).unwrap();
    Segmenter::new(&head, &offload, frame.len() as u32)
}

/// The segments as frames, with their checksums filled.
fn cut(spec: &Spec, mss: u16) -> Vec<Vec<u8>> {
    let segmenter = segmenter(spec, mss).unwrap();
    let expected = segmenter.segments();
    let mut end = 0;
    let frames: Vec<Vec<u8>> = segmenter
        .map(|mut segment| {
            assert_eq!(segment.payload_offset, end, "payload in order, without gap");
            end += segment.payload_len;
            let payload = &spec.payload[segment.payload_offset as usize..end as usize];
            let mut rest = Sum::new();
            rest.add(payload);
            fill_checksum(&mut segment.head, segment.csum, rest).unwrap();
            [segment.head.as_slice(), payload].concat()
        })
        .collect();
    assert_eq!(end as usize, spec.payload.len());
    assert_eq!(frames.len(), expected as usize);
    frames
}

/// Compares checksums; 0 and 0xffff are the same number.
fn assert_same(found: u16, expected: u16) {
    assert_eq!(nonzero(found), nonzero(expected));
}

/// Parses a frame strictly with etherparse, and verifies its checksums; returns its payload.
fn verified(frame: &[u8]) -> (NetHeaders, TransportHeader, Vec<u8>) {
    let packet = PacketHeaders::from_ethernet_slice(frame).unwrap();
    let payload = packet.payload.slice();
    let net = packet.net.unwrap();
    let transport = packet.transport.unwrap();
    match (&net, &transport) {
        (NetHeaders::Ipv4(ip, _), TransportHeader::Tcp(tcp)) => {
            assert_same(tcp.checksum, tcp.calc_checksum_ipv4(ip, payload).unwrap());
        }
        (NetHeaders::Ipv4(ip, _), TransportHeader::Udp(udp)) => {
            assert_same(udp.checksum, udp.calc_checksum_ipv4(ip, payload).unwrap());
            assert_ne!(udp.checksum, 0);
        }
        (NetHeaders::Ipv6(ip, _), TransportHeader::Tcp(tcp)) => {
            assert_same(tcp.checksum, tcp.calc_checksum_ipv6(ip, payload).unwrap());
        }
        (NetHeaders::Ipv6(ip, _), TransportHeader::Udp(udp)) => {
            assert_same(udp.checksum, udp.calc_checksum_ipv6(ip, payload).unwrap());
            assert_ne!(udp.checksum, 0);
        }
        other => panic!("{other:?}"),
    }
    if let NetHeaders::Ipv4(ip, _) = &net {
        assert_eq!(ip.header_checksum, ip.calc_header_checksum());
    }
    let payload = payload.to_vec();
    (net, transport, payload)
}

fn tcp_flags(spec: &Spec, frame: &[u8]) -> u8 {
    frame[spec.l4() + TCP_FLAGS_OFFSET]
}

#[test]
fn tcp_flags_belong_to_the_first_or_the_last() {
    let flags = TCP_CWR | 0x40 | TCP_ACK | TCP_PSH | TCP_FIN;
    let transport = L4::Tcp { seq: u32::MAX - 1500, flags, options: 3 };
    let spec = Spec { transport, payload: vec![5; 4000], ..Spec::default() };
    let frames = cut(&spec, 1000);
    let found: Vec<u8> = frames.iter().map(|frame| tcp_flags(&spec, frame)).collect();
    let middle = 0x40 | TCP_ACK;
    assert_eq!(found, [middle | TCP_CWR, middle, middle, middle | TCP_PSH | TCP_FIN]);
    let seq = |frame: &Vec<u8>| be32_at(frame, spec.l4() + TCP_SEQ_OFFSET).unwrap();
    assert_eq!(
        frames.iter().map(seq).collect::<Vec<_>>(),
        [u32::MAX - 1500, u32::MAX - 500, 499, 1499]
    );
}

#[test]
fn payload_of_one_segment_keeps_all_flags_and_lengths() {
    let flags = TCP_CWR | TCP_ACK | TCP_PSH | TCP_FIN;
    let transport = L4::Tcp { seq: 1, flags, options: 0 };
    let spec = Spec { transport, payload: vec![9; 1000], ..Spec::default() };
    for mss in [1000, 1001, u16::MAX] {
        let [segment] = segmenter(&spec, mss).unwrap().collect::<Vec<_>>()[..] else { panic!() };
        assert_eq!(segment.head.as_slice(), &spec.frame()[..54], "nothing to change");
        assert_eq!((segment.payload_offset, segment.payload_len), (0, 1000));
    }
}

#[test]
fn ipv4_id_counts_up_and_wraps() {
    let spec = Spec {
        network: Net::V4 { id: 0xfffe, options: 0 },
        payload: vec![0; 40],
        ..Spec::default()
    };
    let ids: Vec<u16> =
        cut(&spec, 10).iter().map(|f| be16_at(f, 14 + IPV4_ID_OFFSET).unwrap()).collect();
    assert_eq!(ids, [0xfffe, 0xffff, 0, 1]);
}

#[test]
fn segment_leaves_its_checksum_as_the_pseudo_header_sum() {
    let spec = Spec { payload: vec![3; 25], transport: L4::Udp, ..Spec::default() };
    let last = segmenter(&spec, 10).unwrap().last().unwrap();
    assert_eq!(last.csum, CsumPartial { start: 34, offset: 6 });
    assert_eq!(last.offload(), Offload::with_csum(last.csum));
    let alone = Spec { payload: vec![3; 5], ..spec };
    assert_eq!(last.head.as_slice()[40..42], alone.frame()[40..42]);
}

/// Behind a routing header the last destination is summed (RFC 8200 §8.1), which the IPv6 header
/// does not have.
#[test]
fn rfc_8200_8_1_routing_header_keeps_the_senders_pseudo_header() {
    let last_hop = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x77];
    let network = Net::V6 { extensions: vec![(protocol::ROUTING, 3)] };
    let spec = Spec { network, payload: vec![8; 300], ..Spec::default() };
    let mut frame = spec.frame();
    let next_hop = spec.addresses[1];
    let at = spec.l4() + 16;
    let partial = |len: u32| {
        let [src, _] = spec.addresses;
        naive_sum(&[&src[..], &last_hop, &len.to_be_bytes(), &[0, 0, 0, protocol::TCP]].concat())
    };
    frame[at..at + 2].copy_from_slice(&partial(320).to_be_bytes());
    let head = Head::copy_of(&frame);
    let offload = Offload::from_vnet(&spec.vnet(200), head.as_slice(), frame.len() as u32).unwrap();
    let fields: Vec<u16> = Segmenter::new(&head, &offload, frame.len() as u32)
        .unwrap()
        .map(|segment| be16_at(segment.head.as_slice(), at).unwrap())
        .collect();
    assert_eq!(fields, [partial(220), partial(120)]);
    assert_ne!(next_hop, last_hop);
}

#[test]
fn length_is_the_frames_whatever_ipv4_says() {
    let spec = Spec { payload: vec![1; 100], ..Spec::default() };
    let honest: Vec<Segment> = segmenter(&spec, 40).unwrap().collect();
    let mut frame = spec.frame();
    frame[16..18].fill(0);
    let head = Head::copy_of(&frame);
    let offload = Offload::from_vnet(&spec.vnet(40), head.as_slice(), frame.len() as u32).unwrap();
    let found: Vec<Segment> =
        Segmenter::new(&head, &offload, frame.len() as u32).unwrap().collect();
    assert_eq!(found, honest);
}

#[test]
fn headers_that_do_not_fit_in_the_head_are_an_error() {
    // A TCP header with 40 bytes of options that starts 20 bytes before the head's end.
    let spec = Spec {
        network: Net::V6 { extensions: vec![(protocol::DESTINATION_OPTIONS, 6)] },
        transport: L4::Tcp { seq: 0, flags: 0, options: 10 },
        ..Spec::default()
    };
    assert!(spec.l4() + 20 <= HEAD_LEN && spec.hdr_len() > HEAD_LEN);
    let error = GsoError::HeadersExceedHead { hdr_len: spec.hdr_len() as u16, head_len: HEAD_LEN };
    assert_eq!(segmenter(&spec, 1000).unwrap_err(), error);
}

#[test]
fn one_frame_does_not_become_too_many() {
    let most = GSO_SEGMENTS_MAX as usize;
    let spec = Spec { payload: vec![0; most], ..Spec::default() };
    assert_eq!(cut(&spec, 1).len(), most);
    let spec = Spec { payload: vec![0; most + 1], ..spec };
    let segments = GSO_SEGMENTS_MAX + 1;
    assert_eq!(segmenter(&spec, 1).unwrap_err(), GsoError::TooManySegments { segments });
}

#[test]
fn segment_longer_than_ip_can_say_is_an_error() {
    let frame = Spec::default().frame();
    let head = Head::copy_of(&frame);
    let offload = |mss| {
        Offload::from_vnet(&Spec::default().vnet(mss), head.as_slice(), FRAME_LEN_MAX).unwrap()
    };
    // Without a tag, an IPv4 packet of 65539 bytes: 65499 of payload after 40 of headers.
    assert_eq!(
        Segmenter::new(&head, &offload(u16::MAX), FRAME_LEN_MAX).unwrap_err(),
        GsoError::SegmentTooLong { len: 65_539 }
    );
    assert_eq!(Segmenter::new(&head, &offload(65_495), FRAME_LEN_MAX).unwrap().segments(), 2);
}

#[test]
fn head_must_be_the_one_that_was_checked() {
    let spec = Spec::default();
    let frame = spec.frame();
    let frame_len = frame.len() as u32;
    let head = Head::copy_of(&frame);
    let offload = Offload::from_vnet(&spec.vnet(1000), head.as_slice(), frame_len).unwrap();
    let new =
        |spec: Spec| Segmenter::new(&Head::copy_of(&spec.frame()), &offload, frame_len).map(|_| ());
    assert_eq!(new(spec.clone()), Ok(()));
    assert_eq!(new(Spec { tag: Some(1), ..spec.clone() }), Err(GsoError::OtherHeaders));
    assert_eq!(new(Spec { transport: L4::Udp, ..spec.clone() }), Err(GsoError::OtherHeaders));
    let options = L4::Tcp { seq: 0, flags: 0, options: 1 };
    assert_eq!(new(Spec { transport: options, ..spec.clone() }), Err(GsoError::OtherHeaders));
    let error = Segmenter::new(&head, &offload, 54).unwrap_err();
    assert_eq!(error, GsoError::NoPayload { hdr_len: 54, frame_len: 54 });
    let error = Segmenter::new(&head, &Offload::NONE, frame_len).unwrap_err();
    assert_eq!(error, GsoError::NotGso);
    assert!(matches!(
        Segmenter::new(&Head::copy_of(&[0; 9]), &offload, frame_len),
        Err(GsoError::Headers(_))
    ));
}

#[test]
fn tag_put_in_after_the_check_stays_in_every_segment() {
    let spec = Spec::default();
    let frame = spec.frame();
    let mut head = Head::copy_of(&frame);
    let offload =
        Offload::from_vnet(&spec.vnet(1000), head.as_slice(), frame.len() as u32).unwrap();
    head.insert_vlan(crate::Tci::new(77, 0, false).unwrap()).unwrap();
    let tagged: Vec<Segment> =
        Segmenter::new(&head, &offload.tag_inserted(), frame.len() as u32 + 4).unwrap().collect();
    let expected: Vec<Segment> =
        segmenter(&Spec { tag: Some(77), ..spec }, 1000).unwrap().collect();
    assert_eq!(tagged, expected);
}

#[test]
fn largest_frame_is_cut_and_verifies() {
    for mss in [1448, 48, 32_000] {
        let spec =
            Spec { payload: (0..65_495u32).map(|n| (n % 251) as u8).collect(), ..Spec::default() };
        let frames = cut(&spec, mss);
        let payload: Vec<u8> = frames.iter().flat_map(|frame| verified(frame).2).collect();
        assert_eq!(payload, spec.payload);
    }
}

proptest! {
    #[test]
    fn segments_verify_and_reassemble(spec in specs(3000), mss in 8u16..2000, ecn in any::<bool>()) {
        prop_assume!(spec.hdr_len() <= HEAD_LEN);
        let frames = cut(&spec, mss);
        let count = frames.len();
        let mut whole = Vec::new();
        for (index, frame) in frames.iter().enumerate() {
            let (net, transport, payload) = verified(frame);
            prop_assert!(payload.len() == usize::from(mss) || index + 1 == count);
            if let (NetHeaders::Ipv4(ip, _), Net::V4 { id, .. }) = (&net, &spec.network) {
                prop_assert_eq!(ip.identification, id.wrapping_add(index as u16));
                prop_assert_eq!(usize::from(ip.total_len), frame.len() - spec.l3());
            }
            match (&transport, &spec.transport) {
                (TransportHeader::Tcp(tcp), L4::Tcp { seq, flags, .. }) => {
                    prop_assert_eq!(tcp.sequence_number, seq.wrapping_add(whole.len() as u32));
                    prop_assert_eq!(tcp.cwr, flags & TCP_CWR != 0 && index == 0);
                    prop_assert_eq!(tcp.fin, flags & TCP_FIN != 0 && index + 1 == count);
                    prop_assert_eq!(tcp.psh, flags & TCP_PSH != 0 && index + 1 == count);
                    prop_assert_eq!(tcp.ack, flags & TCP_ACK != 0);
                }
                (TransportHeader::Udp(udp), L4::Udp) => {
                    prop_assert_eq!(usize::from(udp.length), 8 + payload.len());
                }
                other => prop_assert!(false, "{:?}", other),
            }
            // Addresses, tag, extension headers and options are the original's.
            prop_assert_eq!(&frame[..spec.l3()], &spec.frame()[..spec.l3()]);
            whole.extend(payload);
        }
        prop_assert_eq!(&whole, &spec.payload);

        if ecn && matches!(spec.transport, L4::Tcp { .. }) {
            let honest = spec.vnet(mss);
            let hdr = VnetHdr { gso_type: honest.gso_type | GSO_ECN, ..honest };
            let frame = spec.frame();
            let head = Head::copy_of(&frame);
            let offload = Offload::from_vnet(&hdr, head.as_slice(), frame.len() as u32).unwrap();
            let with_ecn: Vec<Segment> = Segmenter::new(&head, &offload, frame.len() as u32).unwrap().collect();
            prop_assert_eq!(with_ecn, segmenter(&spec, mss).unwrap().collect::<Vec<_>>());
        }
    }

    #[test]
    fn whatever_is_believed_can_be_cut((frame, hdr) in suspects()) {
        let head = Head::copy_of(&frame);
        let frame_len = frame.len() as u32;
        let Ok(offload) = Offload::from_vnet(&hdr, head.as_slice(), frame_len) else { return Ok(()) };
        let Ok(segmenter) = Segmenter::new(&head, &offload, frame_len) else { return Ok(()) };
        let (count, hdr_len) = (segmenter.segments(), offload.gso().unwrap().hdr_len);
        let segments: Vec<Segment> = segmenter.collect();
        prop_assert_eq!(segments.len(), count as usize);
        let payload: u32 = segments.iter().map(|segment| segment.payload_len).sum();
        prop_assert_eq!(payload + u32::from(hdr_len), frame_len);
    }
}
