use proptest::collection::vec;
use proptest::prelude::*;
use weir_limits::HEAD_LEN;

use super::*;
use crate::head::Head;
use crate::layers::protocol;
use crate::testing::{L4, Net, Spec, suspects};

fn ipv6() -> Spec {
    Spec { network: Net::V6 { extensions: vec![] }, ..Spec::default() }
}

fn udp(spec: Spec) -> Spec {
    Spec { transport: L4::Udp, ..spec }
}

/// The result of `from_vnet` for `hdr` in front of `spec`'s frame.
fn checked(spec: &Spec, hdr: VnetHdr) -> Result<Offload, OffloadError> {
    let frame = spec.frame();
    Offload::from_vnet(&hdr, Head::copy_of(&frame).as_slice(), frame.len() as u32)
}

#[test]
fn honest_headers_come_back_as_they_were() {
    for spec in [Spec::default(), ipv6(), udp(Spec::default()), udp(ipv6())] {
        for tag in [None, Some(9)] {
            let spec = Spec { tag, ..spec.clone() };
            let hdr = spec.vnet(1448);
            assert_eq!(checked(&spec, hdr).unwrap().to_vnet(0), hdr);
            let csum_only = VnetHdr { gso_type: 0, gso_size: 0, hdr_len: 0, ..hdr };
            assert_eq!(checked(&spec, csum_only).unwrap().to_vnet(0), csum_only);
        }
    }
    let ecn = VnetHdr { gso_type: vnet::GSO_TCPV6 | vnet::GSO_ECN, ..ipv6().vnet(500) };
    assert_eq!(checked(&ipv6(), ecn).unwrap().to_vnet(0), ecn);
}

#[test]
fn frame_that_asks_for_nothing_is_not_looked_at() {
    let hdr = VnetHdr {
        csum_start: 9999,
        csum_offset: 9999,
        gso_size: 7,
        hdr_len: 9,
        ..VnetHdr::default()
    };
    assert_eq!(Offload::from_vnet(&hdr, &[], 0), Ok(Offload::NONE));
}

#[test]
fn spec_5_1_6_2_2_unknown_flags_are_ignored() {
    let hdr = VnetHdr { flags: 0xfc, csum_start: 9999, ..VnetHdr::default() };
    assert_eq!(checked(&Spec::default(), hdr), Ok(Offload::NONE));
}

#[test]
fn spec_5_1_6_2_2_hdr_len_is_a_hint_only() {
    for hdr_len in [0, 1, 14, 53, 55, 1000, u16::MAX] {
        let hdr = VnetHdr { hdr_len, ..Spec::default().vnet(1448) };
        assert_eq!(checked(&Spec::default(), hdr).unwrap().gso().unwrap().hdr_len, 54);
    }
}

#[test]
fn lying_csum_beyond_the_frame() {
    let spec = Spec { payload: vec![0; 10], ..Spec::default() };
    let frame_len = spec.frame().len() as u16;
    let hdr = |csum_start, csum_offset| VnetHdr {
        csum_start,
        csum_offset,
        flags: 1,
        ..VnetHdr::default()
    };
    assert!(checked(&spec, hdr(34, frame_len - 36)).is_ok());
    for (start, offset) in [
        (34, frame_len - 35),
        (frame_len, 0),
        (frame_len - 1, 0),
        (u16::MAX, u16::MAX),
        (34, u16::MAX),
    ] {
        let error = OffloadError::CsumBeyondFrame { start, offset, frame_len: frame_len.into() };
        assert_eq!(checked(&spec, hdr(start, offset)), Err(error));
    }
}

#[test]
fn lying_csum_start_a_tag_would_overflow() {
    let frame = Spec::default().frame();
    let hdr = VnetHdr { flags: 1, csum_start: u16::MAX - 3, ..VnetHdr::default() };
    let error = Offload::from_vnet(&hdr, &frame, 65_553).unwrap_err();
    assert!(matches!(error, OffloadError::CsumBeyondFrame { start: 65_532, .. }));
    let hdr = VnetHdr { csum_start: u16::MAX - 4, ..hdr };
    let offload = Offload::from_vnet(&hdr, &frame, 65_553).unwrap();
    assert_eq!(offload.tag_inserted().csum().unwrap().start, u16::MAX);
}

/// A checksum over headers is refused: otherwise, a guest's checksum could overwrite the source address or the tag
/// after the switch has checked them.
#[test]
fn lying_csum_over_addresses() {
    let arp = {
        let mut frame = Spec::default().frame();
        frame[12..14].copy_from_slice(&ethertype::ARP.to_be_bytes());
        frame
    };
    let tagged = Spec { tag: Some(1), ..Spec::default() }.frame();
    for (frame, headers_len) in
        [(&Spec::default().frame(), 34), (&ipv6().frame(), 54), (&tagged, 38), (&arp, 14)]
    {
        for csum_start in [0, 6, 12, headers_len - 1] {
            let hdr = VnetHdr { flags: 1, csum_start, csum_offset: 6, ..VnetHdr::default() };
            assert_eq!(
                Offload::from_vnet(&hdr, frame, frame.len() as u32),
                Err(OffloadError::CsumInHeaders { start: csum_start, headers_len })
            );
        }
        let hdr = VnetHdr { flags: 1, csum_start: headers_len, ..VnetHdr::default() };
        assert!(Offload::from_vnet(&hdr, frame, frame.len() as u32).is_ok());
    }
}

#[test]
fn lying_csum_of_a_frame_without_ethernet_header() {
    let hdr = VnetHdr { flags: 1, ..VnetHdr::default() };
    let error = Offload::from_vnet(&hdr, &[0; 13], 13).unwrap_err();
    assert_eq!(error, OffloadError::Headers(ParseError::Short { len: 13, need: 14 }));
}

#[test]
fn lying_gso_without_needs_csum() {
    let hdr = VnetHdr { flags: 0, ..Spec::default().vnet(1448) };
    let gso_type = vnet::GSO_TCPV4;
    assert_eq!(checked(&Spec::default(), hdr), Err(OffloadError::GsoWithoutCsum { gso_type }));
}

#[test]
fn lying_gso_size_zero() {
    assert_eq!(checked(&Spec::default(), Spec::default().vnet(0)), Err(OffloadError::GsoSizeZero));
}

#[test]
fn lying_gso_type_unknown_or_not_offered() {
    let ecn = vnet::GSO_ECN;
    for gso_type in
        [2, vnet::GSO_UDP, 6, 0x7f, ecn, vnet::GSO_UDP | ecn, vnet::GSO_UDP_L4 | ecn, 0xff]
    {
        let hdr = VnetHdr { gso_type, ..udp(Spec::default()).vnet(1448) };
        assert_eq!(checked(&udp(Spec::default()), hdr), Err(OffloadError::GsoType { gso_type }));
    }
}

#[test]
fn lying_gso_type_of_another_protocol() {
    let all = [Spec::default(), ipv6(), udp(Spec::default())];
    for spec in &all {
        for other in &all {
            let (own, gso_type) = (spec.vnet(1448), other.vnet(1448).gso_type);
            if own.gso_type != gso_type {
                let hdr = VnetHdr { gso_type, ..own };
                assert_eq!(checked(spec, hdr), Err(OffloadError::GsoProtocol { gso_type }));
            }
        }
    }
}

#[test]
fn lying_gso_of_a_fragment() {
    let mut frame = Spec::default().frame();
    frame[20] = 0x20;
    let result = Offload::from_vnet(&Spec::default().vnet(1448), &frame, frame.len() as u32);
    assert_eq!(result, Err(OffloadError::GsoProtocol { gso_type: vnet::GSO_TCPV4 }));
}

#[test]
fn lying_gso_with_the_checksum_elsewhere() {
    let honest = Spec::default().vnet(1448);
    for (start, offset) in [(34, 6), (35, 16), (38, 16), (50, 0)] {
        let hdr = VnetHdr { csum_start: start, csum_offset: offset, ..honest };
        let error = OffloadError::GsoCsum { start, offset, need_start: 34, need_offset: 16 };
        assert_eq!(checked(&Spec::default(), hdr), Err(error));
    }
}

#[test]
fn lying_gso_without_payload() {
    let spec = Spec { transport: L4::Tcp { seq: 0, flags: 0, options: 10 }, ..Spec::default() };
    let frame = spec.frame();
    let of_len = |frame_len| Offload::from_vnet(&spec.vnet(1448), &frame[..74], frame_len);
    for frame_len in [54, 93, 94] {
        assert_eq!(
            of_len(frame_len),
            Err(OffloadError::GsoWithoutPayload { hdr_len: 94, frame_len })
        );
    }
    assert!(of_len(95).is_ok());
}

#[test]
fn only_the_checksum_of_the_frames_own_transport_header_is_left_to_its_receiver() {
    let early = |spec: &Spec, start: u16, offset: u16| {
        let vnet = VnetHdr {
            gso_type: vnet::GSO_NONE,
            csum_start: start,
            csum_offset: offset,
            ..spec.vnet(0)
        };
        let frame = spec.frame();
        let mut offload = checked(spec, vnet).unwrap();
        let early = offload.take_early(&frame[..frame.len().min(HEAD_LEN)]);
        assert_eq!(early.is_some(), offload.is_none());
        early
    };
    let tagged = Spec { tag: Some(3), ..Spec::default() };
    for spec in [Spec::default(), ipv6(), udp(Spec::default()), udp(ipv6()), tagged] {
        let honest = spec.vnet(0);
        let (start, offset) = (honest.csum_start, honest.csum_offset);
        assert_eq!(early(&spec, start, offset), None);
        // The checksum fields lie over the port that a filter judges, beside the checksum, and in
        // the payload.
        for (start, offset) in [(start, 2), (start, offset + 1), (start + 2, offset), (start, 500)]
        {
            assert_eq!(early(&spec, start, offset), Some(CsumPartial { start, offset }));
        }
    }
    // A fragment has no transport header to parse, nor does a short frame.
    let mut fragment = Spec::default().frame();
    let whole = Offload::with_csum(CsumPartial { start: 34, offset: 16 });
    for (at, byte) in [(20, 0x20), (21, 1), (14, 0x65), (14, 0x44), (23, 47), (46, 0x40)] {
        let kept = std::mem::replace(&mut fragment[at], byte);
        assert!(whole.clone().take_early(&fragment[..HEAD_LEN]).is_some(), "{at}");
        fragment[at] = kept;
    }
    assert!(whole.clone().take_early(&fragment[..53]).is_some());
    assert!(whole.clone().take_early(&fragment[..54]).is_none());
}

#[test]
fn gso_payload_shorter_than_a_segment_is_allowed() {
    let spec = Spec { payload: vec![1], ..Spec::default() };
    assert!(checked(&spec, spec.vnet(1448)).unwrap().gso().is_some());
}

#[test]
fn data_valid_is_a_hint_and_gives_way_to_needs_csum() {
    let valid = VnetHdr { flags: vnet::F_DATA_VALID, ..VnetHdr::default() };
    let offload = checked(&Spec::default(), valid).unwrap();
    assert!(offload.data_valid());
    assert_eq!(offload.to_vnet(1).flags, vnet::F_DATA_VALID);
    assert_eq!(offload.without_data_valid(), Offload::NONE);
    assert_eq!(OffloadCaps::NONE.accepts(&offload), Fit::AsIs);
    assert_eq!(OffloadCaps::NONE.trim(offload), Offload::NONE);
    assert_eq!(OffloadCaps::CSUM.trim(offload), offload);

    let both = VnetHdr { flags: 3, gso_type: 0, ..Spec::default().vnet(0) };
    let offload = checked(&Spec::default(), both).unwrap();
    assert!(!offload.data_valid() && offload.csum().is_some());
}

#[test]
fn tag_moves_checksum_and_headers() {
    let untagged = checked(&Spec::default(), Spec::default().vnet(1448)).unwrap();
    let spec = Spec { tag: Some(3), ..Spec::default() };
    let tagged = checked(&spec, spec.vnet(1448)).unwrap();
    assert_eq!(untagged.tag_inserted(), tagged);
    assert_eq!(tagged.tag_stripped(), untagged);
    assert_eq!(Offload::NONE.tag_stripped(), Offload::NONE);
}

#[test]
fn receiver_gets_only_what_it_can_do() {
    use OffloadCaps as Caps;
    let all = Caps::CSUM | Caps::TSO4 | Caps::TSO6 | Caps::TSO_ECN | Caps::USO;
    let of = |spec: &Spec| checked(spec, spec.vnet(1448)).unwrap();
    let (tcp4, tcp6, udp4) = (of(&Spec::default()), of(&ipv6()), of(&udp(Spec::default())));
    let hdr = VnetHdr { gso_type: vnet::GSO_TCPV4 | vnet::GSO_ECN, ..Spec::default().vnet(9) };
    let ecn = checked(&Spec::default(), hdr).unwrap();
    let csum = Offload::with_csum(tcp4.csum().unwrap());

    for (offload, needs) in [
        (tcp4, Caps::CSUM | Caps::TSO4),
        (tcp6, Caps::CSUM | Caps::TSO6),
        (udp4, Caps::CSUM | Caps::USO),
        (ecn, Caps::CSUM | Caps::TSO4 | Caps::TSO_ECN),
    ] {
        for bits in 0..32 {
            let caps = OffloadCaps(bits);
            let fit = if caps.contains(needs) { Fit::AsIs } else { Fit::NeedsSegments };
            assert_eq!(caps.accepts(&offload), fit, "{caps} {offload:?}");
        }
    }
    assert_eq!(Caps::CSUM.accepts(&csum), Fit::AsIs);
    assert_eq!(Caps::NONE.accepts(&csum), Fit::NeedsChecksum);
    assert_eq!(Caps::NONE.accepts(&Offload::NONE), Fit::AsIs);
    assert_eq!(all.to_string(), "csum+tso4+tso6+tso-ecn+uso");
    assert_eq!(Caps::NONE.to_string(), "none");
}

#[test]
fn offload_is_small() {
    assert!(size_of::<Offload>() <= 16, "{}", size_of::<Offload>());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn what_is_believed_lies_in_the_frame((frame, hdr) in suspects()) {
        let front = &frame[..frame.len().min(HEAD_LEN)];
        let Ok(offload) = Offload::from_vnet(&hdr, front, frame.len() as u32) else { return Ok(()) };
        if let Some(csum) = offload.csum() {
            prop_assert!(csum.field() + 2 <= frame.len());
            prop_assert!(csum.start >= Ethernet::parse(front).unwrap().header_len);
        }
        if let Some(gso) = offload.gso() {
            let csum = offload.csum().unwrap();
            prop_assert!(gso.size > 0);
            prop_assert!(usize::from(gso.hdr_len) < frame.len());
            prop_assert!(csum.field() < usize::from(gso.hdr_len));
            let layers = Layers::parse(front).unwrap();
            prop_assert_eq!(layers.headers_len(), Some(gso.hdr_len));
            let expected = match gso.kind { GsoKind::Udp => 6, GsoKind::Tcp4 | GsoKind::Tcp6 => 16 };
            prop_assert_eq!(csum.offset, expected);
        }
    }

    #[test]
    fn any_header_on_any_bytes_never_panics(
        bytes in any::<[u8; 12]>(),
        head in vec(any::<u8>(), 0..140),
        frame_len in any::<u32>(),
    ) {
        if let Ok(offload) = Offload::from_vnet(&VnetHdr::from_bytes(&bytes), &head, frame_len) {
            let _ = offload.tag_inserted().tag_stripped().to_vnet(1);
        }
    }
}

#[test]
fn protocols_of_the_builder_are_those_of_the_parser() {
    assert_eq!(Spec::default().protocol(), protocol::TCP);
    assert_eq!(udp(ipv6()).protocol(), protocol::UDP);
}
