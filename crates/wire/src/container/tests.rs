//! Containers that are packed and parsed, and damaged ones.

use proptest::prelude::*;

use super::*;
use crate::vnet::F_NEEDS_CSUM;

/// A frame as it goes into a container.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sent {
    vnet: Option<VnetHdr>,
    bytes: Vec<u8>,
}

fn plain(len: usize, fill: u8) -> Sent {
    Sent { vnet: None, bytes: vec![fill; len] }
}

/// Writes as many of `frames` as fit; returns the written bytes, and the number of frames in them.
fn pack(frames: &[Sent], buffer_len: usize) -> (Vec<u8>, usize) {
    let mut bytes = vec![0xee; buffer_len];
    let mut builder = Builder::new(buffer_len);
    for frame in frames {
        let Some(place) = builder.add(frame.bytes.len(), frame.vnet.is_some()) else { break };
        let Place { record, header, frame: at } = place;
        bytes[record..record + RECORD_LEN].copy_from_slice(&header);
        if let Some(vnet) = frame.vnet {
            bytes[record + RECORD_LEN..at].copy_from_slice(&vnet.to_bytes());
        }
        bytes[at..at + frame.bytes.len()].copy_from_slice(&frame.bytes);
    }
    bytes.truncate(builder.len());
    if let Some(front) = bytes.first_chunk_mut() {
        *front = builder.vnet().to_bytes();
    }
    (bytes, builder.records().into())
}

fn parse_bytes(bytes: &[u8]) -> Result<Vec<Record>, ContainerError> {
    let vnet = bytes.first_chunk().map_or(VnetHdr::default(), VnetHdr::from_bytes);
    // Earlier records must not stay.
    let mut records = vec![Record { at: 1, len: 1, has_vnet: true }];
    let read = |at: usize| bytes.get(at..)?.first_chunk().copied();
    let result = parse(&vnet, bytes.len(), read, &mut records);
    assert!(result.is_ok() || records.is_empty());
    result.map(|()| records)
}

fn unpack(bytes: &[u8]) -> Result<Vec<Sent>, ContainerError> {
    let records = parse_bytes(bytes)?.into_iter();
    let frames = records.map(|Record { at, len, has_vnet }| {
        let at = usize::from(at);
        let vnet = has_vnet.then(|| bytes[at - VnetHdr::LEN..at].try_into().unwrap());
        let vnet = vnet.map(|bytes| VnetHdr::from_bytes(&bytes));
        Sent { vnet, bytes: bytes[at..at + usize::from(len)].to_vec() }
    });
    Ok(frames.collect())
}

/// A container with the right length, whose header claims `records` records.
fn forged(records: u16, body: &[u8]) -> Vec<u8> {
    let gso_size = body.len().try_into().unwrap();
    let vnet = VnetHdr { hdr_len: records, gso_size, ..Builder::new(0).vnet() };
    [&vnet.to_bytes(), body].concat()
}

#[test]
fn the_bytes_are_those_of_the_description() {
    let vnet =
        VnetHdr { flags: F_NEEDS_CSUM, csum_start: 34, csum_offset: 16, ..VnetHdr::default() };
    let (bytes, count) = pack(&[plain(15, 7), Sent { vnet: Some(vnet), bytes: vec![9; 16] }], 4096);
    let expected = [
        &[0x80, 0, 2, 0, 52, 0, 0, 0, 0, 0, 1, 0][..],
        &[15, 0, 0, 0],
        &[7; 15],
        &[0xee],
        &[16, 0, 1, 0],
        &vnet.to_bytes(),
        &[9; 16],
    ];
    assert_eq!((bytes, count), (expected.concat(), 2));
}

#[test]
fn sixty_small_frames_fit_in_a_page() {
    let (bytes, count) = pack(&vec![plain(64, 1); 100], 4096);
    assert_eq!((bytes.len(), count), (12 + 60 * 68, 60));
}

#[test]
fn a_frame_that_does_not_fit_changes_nothing() {
    let mut builder = Builder::new(12 + 4 + 60 + 4 + 12 + 60);
    assert!(builder.add(60, true).is_some());
    let before = (builder.len(), builder.vnet());
    assert_eq!(builder.add(61, false), None);
    assert_eq!(builder.add(60, true), None);
    assert_eq!(builder.add(usize::MAX, false), None);
    assert_eq!((builder.len(), builder.vnet()), before);
    assert!(builder.add(60, false).is_some());
    assert_eq!(Builder::new(8).add(14, false), None);
}

#[test]
fn the_largest_container_holds_as_many_records_as_there_can_be() {
    let (bytes, count) = pack(&vec![plain(14, 1); RECORDS_MAX + 1], 1 << 20);
    assert_eq!(count, RECORDS_MAX);
    assert!(bytes.len() <= CONTAINER_LEN_MAX);
    assert_eq!(parse_bytes(&bytes).unwrap().len(), RECORDS_MAX);
}

#[test]
fn damage_is_named_with_its_record() {
    let good = [&[14, 0, 0, 0][..], &[1; 16]].concat();
    let with = |record: [u8; 4]| [&good[..], &record, &[1; 16]].concat();
    let cases = [
        (forged(0, &[]), ContainerError::Empty),
        (forged(2, &good), ContainerError::Beyond { record: 1, at: 32, len: 32 }),
        (forged(1, &with([14, 0, 0, 0])), ContainerError::Trailing { records: 1, left: 20 }),
        (forged(2, &with([17, 0, 0, 0])), ContainerError::Beyond { record: 1, at: 32, len: 52 }),
        (forged(2, &with([14, 0, 1, 0])), ContainerError::Beyond { record: 1, at: 32, len: 52 }),
        (
            forged(2, &with([13, 0, 0, 0])),
            ContainerError::Runt { record: 1, at: 32, frame_len: 13 },
        ),
        (forged(2, &with([14, 0, 2, 0])), ContainerError::Flags { record: 1, at: 32, flags: 2 }),
    ];
    for (bytes, error) in cases {
        assert_eq!(parse_bytes(&bytes), Err(error));
    }
    let whole = forged(1, &good);
    let cut = ContainerError::Length { declared: 32, written: 31 };
    assert_eq!(parse_bytes(&whole[..31]), Err(cut));
    for (at, value) in [(0, 0x81), (1, 1), (6, 1), (8, 1), (10, 2)] {
        let mut bytes = whole.clone();
        bytes[at] = value;
        assert_eq!(parse_bytes(&bytes), Err(ContainerError::Header));
    }
    assert_eq!(
        ContainerError::Runt { record: 3, at: 40, frame_len: 2 }.to_string(),
        "record 3 at 40 has a frame of 2 bytes"
    );
}

#[test]
fn a_container_longer_than_any_is_refused() {
    let vnet = VnetHdr { hdr_len: 1, gso_size: u16::MAX, ..Builder::new(0).vnet() };
    let written = VnetHdr::LEN + usize::from(u16::MAX);
    let result = parse(&vnet, written, |_| Some([0xff, 0xff, 0, 0]), &mut Vec::new());
    assert_eq!(result, Err(ContainerError::Length { declared: written, written }));
}

fn sent() -> impl Strategy<Value = Sent> {
    let len = prop_oneof![14..80usize, 14..3000usize];
    let vnet = prop::option::of(any::<[u8; 12]>().prop_map(|bytes| VnetHdr::from_bytes(&bytes)));
    (len, vnet, any::<u8>()).prop_map(|(len, vnet, fill)| Sent { vnet, bytes: vec![fill; len] })
}

/// Checks that parsed records lie in the container, in order and apart.
fn check_bounds(bytes: &[u8], records: &[Record]) -> Result<(), TestCaseError> {
    let mut end = VnetHdr::LEN;
    for record in records {
        let own = if record.has_vnet { VnetHdr::LEN } else { 0 };
        prop_assert!(usize::from(record.at) >= end + RECORD_LEN + own);
        end = usize::from(record.at) + usize::from(record.len);
    }
    prop_assert!(end <= bytes.len());
    Ok(())
}

proptest! {
    #[test]
    fn what_was_packed_comes_out_in_order(
        frames in prop::collection::vec(sent(), 1..80),
        buffer_len in 12 + 4 + 3000..20_000usize,
    ) {
        let (bytes, count) = pack(&frames, buffer_len);
        prop_assert!(count > 0 && bytes.len() <= buffer_len);
        prop_assert_eq!(unpack(&bytes), Ok(frames[..count].to_vec()));
    }

    #[test]
    fn any_bytes_give_places_inside_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(records) = parse_bytes(&bytes) {
            check_bounds(&bytes, &records)?;
        }
    }

    #[test]
    fn any_records_give_places_inside_or_an_error(
        count in 0..8u16,
        body in prop::collection::vec(prop_oneof![Just(0u8), Just(1), 0..40u8], 0..300),
    ) {
        let bytes = forged(count, &body);
        if let Ok(records) = parse_bytes(&bytes) {
            check_bounds(&bytes, &records)?;
            prop_assert_eq!(records.len(), usize::from(count));
        }
    }

    #[test]
    fn a_flipped_bit_is_refused_or_harmless(
        frames in prop::collection::vec(sent(), 1..20),
        bit in any::<prop::sample::Index>(),
    ) {
        let (mut bytes, _) = pack(&frames, 20_000);
        let bit = bit.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        if let Ok(records) = parse_bytes(&bytes) {
            check_bounds(&bytes, &records)?;
        }
    }

    #[test]
    fn memory_that_changes_while_it_is_read_gives_no_place_outside(
        count in 1..50u16,
        gso_size in 0..4000u16,
        reads in prop::collection::vec(prop_oneof![Just([60, 0, 0, 0]), any::<[u8; 4]>()], 50),
    ) {
        let vnet = VnetHdr { hdr_len: count, gso_size, ..Builder::new(0).vnet() };
        let written = VnetHdr::LEN + usize::from(gso_size);
        let (mut reads, mut records) = (reads.into_iter(), Vec::new());
        if parse(&vnet, written, |_| reads.next(), &mut records).is_ok() {
            check_bounds(&vec![0; written], &records)?;
        }
    }
}
