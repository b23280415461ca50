//! Messages that break the protocol: each is refused with an error that names the fault.

use std::os::fd::AsFd;

use weir_limits::{MEM_TABLE_REGIONS_MAX, VHOST_USER_BODY_MAX, VHOST_USER_FDS_MAX};

use super::*;
use crate::*;

fn decode(
    request: impl Into<RequestCode>,
    body: &[u8],
    fds: usize,
) -> Result<FrontMessage, ProtocolError> {
    let header = Header::new(request, 0, body.len()).unwrap();
    FrontMessage::decode(&header, body, events(fds))
}

fn refused(request: Request, body: &[u8], fds: usize) -> ProtocolError {
    decode(request, body, fds).expect_err("accepted")
}

/// Bodies that a request accepts, and the numbers of descriptors that it accepts with each.
fn valid_shapes(request: Request) -> Vec<(Vec<u8>, std::ops::RangeInclusive<usize>)> {
    let state = VringState { index: 1, num: 1 }.encode();
    match request {
        Request::GetFeatures
        | Request::SetOwner
        | Request::ResetOwner
        | Request::GetProtocolFeatures
        | Request::GetQueueNum
        | Request::ResetDevice
        | Request::GetMaxMemSlots
        | Request::GetStatus => vec![(vec![], 0..=0)],
        Request::SetFeatures
        | Request::SetProtocolFeatures
        | Request::SendRarp
        | Request::NetSetMtu
        | Request::SetStatus => vec![(vec![0; 8], 0..=0)],
        Request::SetVringNum
        | Request::SetVringBase
        | Request::GetVringBase
        | Request::SetVringEnable
        | Request::SetVringEndian
        | Request::VringKick => vec![(state, 0..=0)],
        Request::SetVringAddr => vec![(vec![0; 40], 0..=0)],
        Request::SetVringKick | Request::SetVringCall | Request::SetVringErr => {
            vec![(7u64.encode(), 1..=1), ((7 | VRING_NOFD_MASK).encode(), 0..=0)]
        }
        Request::SetMemTable => (0..=MEM_TABLE_REGIONS_MAX)
            .map(|n| (MemoryTable(vec![region(1); n]).encode(), n..=n))
            .collect(),
        Request::AddMemReg => vec![(vec![0; 40], 1..=1)],
        Request::RemMemReg => vec![(vec![0; 40], 0..=1)],
        Request::SetLogBase => vec![(vec![0; 8], 0..=0), (vec![0; 16], 0..=1)],
        Request::SetLogFd | Request::SetBackendReqFd => vec![(vec![], 1..=1)],
        Request::GetInflightFd => vec![(vec![0; 20], 0..=0), (vec![0; 24], 0..=0)],
        Request::SetInflightFd => vec![(vec![0; 20], 1..=1), (vec![0; 24], 1..=1)],
        Request::GetConfig | Request::SetConfig => {
            let space = ConfigSpace { offset: 0, flags: 0, bytes: vec![0; 5] };
            vec![(space.encode(), 0..=0)]
        }
        _ => vec![],
    }
}

#[test]
fn every_request_takes_exactly_its_body_and_its_descriptors() {
    for &request in Request::ALL {
        for (body, fds) in valid_shapes(request) {
            for count in 0..=VHOST_USER_FDS_MAX + 1 {
                match decode(request, &body, count) {
                    Ok(message) => assert!(fds.contains(&count), "{message:?} with {count} fds"),
                    Err(error) => {
                        assert!(!fds.contains(&count), "{error}");
                        assert!(
                            matches!(error, ProtocolError::FdCount { request: r, actual, .. }
                                if r == request && actual == count),
                            "{error}"
                        );
                    }
                }
            }
            // A zeroed tail keeps a longer body's meaning; only its size is wrong.
            let sizes: Vec<_> = valid_shapes(request).iter().map(|(b, _)| b.len()).collect();
            for size in 0..=300 {
                let mut resized = body.clone();
                resized.resize(size, 0);
                let variable = matches!(request, Request::SetMemTable);
                // Unused places of a table may follow.
                let spare = variable && size > body.len() && sizes.contains(&size);
                if (sizes.contains(&size) && !variable) || size == body.len() || spare {
                    continue;
                }
                let error = refused(request, &resized, *fds.start());
                assert!(
                    matches!(error, ProtocolError::BodySize { request: r, actual, .. }
                        if r == request && actual == size),
                    "{size} bytes: {error}"
                );
            }
        }
    }
}

#[test]
fn places_of_a_memory_table_that_are_not_in_use_say_nothing() {
    let regions = [region(1), region(2)];
    let mut table = MemoryTable(regions.to_vec()).encode();
    table[..4].copy_from_slice(&1u32.to_ne_bytes());
    match decode(Request::SetMemTable, &table, 1).unwrap() {
        FrontMessage::SetMemTable(taken) => {
            assert_eq!(taken.iter().map(|(region, _)| *region).collect::<Vec<_>>(), regions[..1]);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn errors_say_what_came_and_what_was_expected() {
    let text = |error: ProtocolError| error.to_string();
    assert_eq!(
        text(refused(Request::SetMemTable, &MemoryTable(vec![region(1); 2]).encode(), 1)),
        "VHOST_USER_SET_MEM_TABLE: 1 file descriptors, expected 2"
    );
    assert_eq!(
        text(refused(Request::SetVringAddr, &[0; 39], 0)),
        "VHOST_USER_SET_VRING_ADDR: body of 39 bytes, expected 40"
    );
    assert_eq!(
        text(refused(Request::SetInflightFd, &[0; 21], 1)),
        "VHOST_USER_SET_INFLIGHT_FD: body of 21 bytes, expected 20 or 24"
    );
    assert_eq!(
        text(refused(Request::RemMemReg, &[0; 40], 2)),
        "VHOST_USER_REM_MEM_REG: 2 file descriptors, expected at most 1"
    );
    assert_eq!(
        text(refused(Request::SetMemTable, &[0; 7], 0)),
        "VHOST_USER_SET_MEM_TABLE: body of 7 bytes, expected at least 8"
    );
}

#[test]
fn memory_table_with_nine_regions_is_refused() {
    let table = MemoryTable(vec![region(1); 9]).encode();
    let expected = ProtocolError::RegionCount { request: Request::SetMemTable.into(), regions: 9 };
    assert_eq!(refused(Request::SetMemTable, &table, 8), expected);
}

#[test]
fn memory_table_that_claims_more_regions_than_it_has_is_refused() {
    for claimed in [2u32, 8, 9, u32::MAX] {
        let mut table = MemoryTable(vec![region(1)]).encode();
        table[..4].copy_from_slice(&claimed.to_ne_bytes());
        refused(Request::SetMemTable, &table, 1);
    }
}

#[test]
fn config_space_that_claims_more_bytes_than_it_has_is_refused() {
    for claimed in [4u32, 6, u32::MAX] {
        let mut body = ConfigSpace { offset: 0, flags: 0, bytes: vec![0; 5] }.encode();
        body[4..8].copy_from_slice(&claimed.to_ne_bytes());
        assert!(matches!(
            refused(Request::GetConfig, &body, 0),
            ProtocolError::BodySize { actual: 17, .. }
        ));
    }
}

#[test]
fn ring_descriptor_that_is_missing_or_not_announced_is_refused() {
    for request in [Request::SetVringKick, Request::SetVringCall, Request::SetVringErr] {
        let missing = refused(request, &0u64.encode(), 0);
        let unannounced = refused(request, &VRING_NOFD_MASK.encode(), 1);
        let count = |expected, actual| ProtocolError::FdCount {
            request: request.into(),
            expected: Expected::Exactly(expected),
            actual,
        };
        assert_eq!(missing, count(1, 0));
        assert_eq!(unannounced, count(0, 1));
    }
}

#[test]
fn ring_index_bits_beyond_eight_are_refused_not_dropped() {
    for value in [1 << 9, 1 << 32, u64::MAX] {
        let request = Request::SetVringCall.into();
        assert_eq!(
            refused(Request::SetVringCall, &value.encode(), 1),
            ProtocolError::VringFdWord { request, value }
        );
    }
}

#[test]
fn enabling_a_ring_with_two_is_refused() {
    let body = VringState { index: 4, num: 2 }.encode();
    let request = Request::SetVringEnable.into();
    assert_eq!(
        refused(Request::SetVringEnable, &body, 0),
        ProtocolError::EnableValue { request, index: 4, num: 2 }
    );
}

#[test]
fn header_and_body_that_do_not_belong_together_are_refused() {
    let header = Header::new(RequestCode(1000), 0, 3).unwrap();
    assert!(FrontMessage::decode(&header, &[0; 4], vec![]).is_err());
}

/// The back end's error for these bytes.
fn received(bytes: &[u8], fds: usize) -> ConnectionError {
    let (mut front, mut back) = pair();
    front.raw_send(bytes, &borrow(&events(fds))).unwrap();
    back.receive().expect_err("accepted")
}

fn header(request: u32, flags: u32, size: u32) -> Vec<u8> {
    [request.to_ne_bytes(), flags.to_ne_bytes(), size.to_ne_bytes()].concat()
}

#[test]
fn version_other_than_one_is_refused() {
    let request = Request::GetFeatures.into();
    for found in [0, 2, 3] {
        let error = ProtocolError::Version { request, found };
        assert_eq!(received(&header(1, found, 0), 0), error.into());
    }
}

#[test]
fn undefined_header_flags_are_refused() {
    let request = Request::GetFeatures.into();
    for flags in [0x11, 0x8000_0001] {
        let error = ProtocolError::UndefinedFlags { request, flags };
        assert_eq!(received(&header(1, flags, 0), 0), error.into());
    }
}

#[test]
fn request_with_the_reply_flag_is_refused() {
    let request = Request::SetOwner.into();
    let error = ProtocolError::RequestWithReplyFlag { request };
    assert_eq!(received(&header(3, 0x5, 0), 0), error.into());
}

#[test]
fn body_above_the_limit_is_refused_before_it_is_read() {
    for size in [VHOST_USER_BODY_MAX as u32 + 1, u32::MAX] {
        let error =
            ProtocolError::BodyTooLarge { request: Request::SetConfig.into(), size: size as usize };
        assert_eq!(received(&header(25, 1, size), 0), error.into());
    }
}

#[test]
fn body_at_the_limit_is_read() {
    let (mut front, mut back) = pair();
    let body = vec![7; VHOST_USER_BODY_MAX];
    front.raw_send(&message(RequestCode(77), 0, &body), &[]).unwrap();
    assert!(matches!(
        next(&mut back).message,
        FrontMessage::Unknown { body: got, .. } if got == body
    ));
}

#[test]
fn more_descriptors_than_any_request_has_are_refused_and_closed() {
    for count in [VHOST_USER_FDS_MAX + 1, VHOST_USER_FDS_MAX + 2, 11, 64, 253] {
        let (mut front, mut back) = pair();
        let (canary, writer) = Canary::new();
        let fds: Vec<_> = (0..count).map(|_| writer.try_clone().unwrap()).collect();
        front.raw_send(&message(RequestCode(77), 0, &[]), &borrow(&fds)).unwrap();
        drop((fds, writer));
        let error = back.receive().expect_err("accepted");
        assert!(
            matches!(
                error,
                ConnectionError::Protocol(
                    ProtocolError::TooManyFds { .. } | ProtocolError::FdsLost { .. }
                )
            ),
            "{error}"
        );
        assert!(canary.is_closed(), "{count} descriptors, some still open");
    }
}

#[test]
fn descriptors_sent_piecemeal_count_together() {
    let (mut front, mut back) = pair();
    let fd = event();
    let bytes = message(RequestCode(77), 0, &[0; 100]);
    let mut outcomes = bytes.iter().map(|byte| {
        front.raw_send(&[*byte], &[fd.as_fd()]).unwrap();
        back.receive().map(|message| message.is_some())
    });
    let error = ProtocolError::TooManyFds { received: VHOST_USER_FDS_MAX + 1 };
    assert!(outcomes.by_ref().take(VHOST_USER_FDS_MAX).all(|outcome| outcome == Ok(false)));
    assert_eq!(outcomes.next(), Some(Err(error.into())));
}

#[test]
fn refused_messages_close_their_descriptors() {
    let two_regions = MemoryTable(vec![region(1); 2]).encode();
    let cases = [
        ("one descriptor for two regions", message(Request::SetMemTable, 0, &two_regions)),
        ("wrong size", message(Request::AddMemReg, 0, &[0; 39])),
        ("no descriptor expected", message(Request::GetFeatures, 0, &[])),
        ("version 2", header(1, 2, 0)),
        ("body above the limit", header(1, 1, u32::MAX)),
        ("reply flag", header(1, 5, 0)),
    ];
    for (case, bytes) in cases {
        let (mut front, mut back) = pair();
        let (canary, fd) = Canary::new();
        front.raw_send(&bytes, &[fd.as_fd()]).unwrap();
        drop(fd);
        assert!(back.receive().is_err(), "{case}: accepted");
        assert!(canary.is_closed(), "{case}: descriptor left open");
    }
}
