//! Every request: sent by the front end, received by the back end, and the reply back. Messages that break the protocol
//! are refused with an error that names the fault.

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
    // There is no room for another descriptor, so the kernel closes it.
    let error = ProtocolError::FdsLost { received: VHOST_USER_FDS_MAX };
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

/// Sends with `send`, and expects a request that `expected` matches.
macro_rules! arrives {
    ($send:expr, $expected:pat $(if $guard:expr)? $(,)?) => {{
        let (mut front, mut back) = pair();
        let send: &dyn Fn(&mut FrontEnd) -> Result<(), FrontEndError> = &$send;
        send(&mut front).unwrap();
        let incoming = next(&mut back);
        assert!(!incoming.need_reply);
        match incoming.message {
            $expected $(if $guard)? => {}
            other => panic!("arrived as {other:?}"),
        }
        assert!(back.receive().unwrap().is_none(), "bytes left over");
    }};
}

#[test]
fn features_and_session_requests_arrive() {
    let features = 1 << 32 | 1 << VHOST_USER_F_PROTOCOL_FEATURES;
    arrives!(|f| f.set_features(features), FrontMessage::SetFeatures(v) if v == features);
    arrives!(|f| f.set_protocol_features(0x18005), FrontMessage::SetProtocolFeatures(0x18005));
    arrives!(|f| f.set_owner(), FrontMessage::SetOwner);
    arrives!(|f| f.reset_owner(), FrontMessage::ResetOwner);
    arrives!(|f| f.reset_device(), FrontMessage::ResetDevice);
    arrives!(|f| f.set_status(0xf), FrontMessage::SetStatus(0xf));
    arrives!(|f| f.net_set_mtu(9000), FrontMessage::NetSetMtu(9000));
    arrives!(|f| f.send_rarp([2, 3, 4, 5, 6, 7]), FrontMessage::SendRarp([2, 3, 4, 5, 6, 7]));
}

#[test]
fn ring_requests_arrive() {
    let addr = VringAddr {
        index: 3,
        flags: VHOST_VRING_F_LOG,
        descriptor: 0x1000,
        used: 0x2000,
        available: 0x3000,
        log: 0x4000,
    };
    arrives!(
        |f| f.set_vring_num(1, 256),
        FrontMessage::SetVringNum(VringState { index: 1, num: 256 })
    );
    arrives!(|f| f.set_vring_addr(addr), FrontMessage::SetVringAddr(a) if a == addr);
    arrives!(
        |f| f.set_vring_base(2, 0xffff),
        FrontMessage::SetVringBase(VringState { index: 2, num: 0xffff })
    );
    arrives!(
        |f| f.set_vring_enable(5, true),
        FrontMessage::SetVringEnable { index: 5, enable: true }
    );
    arrives!(
        |f| f.set_vring_enable(5, false),
        FrontMessage::SetVringEnable { index: 5, enable: false }
    );
    let state = VringState { index: 7, num: 1 };
    arrives!(
        |f| f.command(Request::VringKick, &state.encode(), &[]),
        FrontMessage::VringKick { index: 7 }
    );
    arrives!(
        |f| f.command(Request::SetVringEndian, &state.encode(), &[]),
        FrontMessage::SetVringEndian(s) if s == state
    );
}

#[test]
fn ring_descriptors_arrive_with_their_ring() {
    let file = memory();
    let fd = Some(file.as_fd());
    arrives!(
        |f| f.set_vring_kick(0, fd),
        FrontMessage::SetVringKick { index: 0, fd: Some(fd) } if same_file(&fd, &file)
    );
    arrives!(
        |f| f.set_vring_call(255, fd),
        FrontMessage::SetVringCall { index: 255, fd: Some(fd) } if same_file(&fd, &file)
    );
    arrives!(
        |f| f.set_vring_err(1, fd),
        FrontMessage::SetVringErr { index: 1, fd: Some(fd) } if same_file(&fd, &file)
    );
    arrives!(|f| f.set_vring_kick(1, None), FrontMessage::SetVringKick { index: 1, fd: None });
    arrives!(|f| f.set_vring_call(2, None), FrontMessage::SetVringCall { index: 2, fd: None });
    arrives!(|f| f.set_vring_err(3, None), FrontMessage::SetVringErr { index: 3, fd: None });
}

#[test]
fn ring_index_above_eight_bits_is_not_sent() {
    let (mut front, mut back) = pair();
    assert_eq!(
        front.set_vring_kick(256, None),
        Err(ProtocolError::VringIndex { request: Request::SetVringKick.into(), index: 256 }.into())
    );
    assert!(back.receive().unwrap().is_none());
}

#[test]
fn memory_table_keeps_the_order_of_regions_and_descriptors() {
    for count in [0, 1, 2, 8] {
        let files: Vec<_> = (0..count).map(|_| memory()).collect();
        let regions: Vec<_> = (0..).map(region).zip(borrow(&files)).collect();
        let (mut front, mut back) = pair();
        front.set_mem_table(&regions).unwrap();
        let FrontMessage::SetMemTable(table) = next(&mut back).message else {
            panic!("not a memory table");
        };
        assert_eq!(table.len(), count);
        for ((sent, sent_fd), (got, got_fd)) in regions.iter().zip(&table) {
            assert_eq!(sent, got);
            assert!(same_file(sent_fd, got_fd));
        }
    }
}

#[test]
fn single_regions_arrive() {
    let file = memory();
    arrives!(
        |f| f.add_mem_reg(region(4), file.as_fd()),
        FrontMessage::AddMemReg { region: r, fd } if r == region(4) && same_file(&fd, &file)
    );
    arrives!(
        |f| f.rem_mem_reg(region(4)),
        FrontMessage::RemMemReg(r) if r == region(4)
    );
}

#[test]
fn spec_rem_mem_reg_closes_the_descriptor_of_incorrect_front_ends() {
    let (mut front, mut back) = pair();
    let (canary, fd) = Canary::new();
    let bytes = message(Request::RemMemReg, 0, &SingleRegion(region(1)).encode());
    front.raw_send(&bytes, &[fd.as_fd()]).unwrap();
    drop(fd);
    let removed = next(&mut back);
    assert!(matches!(removed.message, FrontMessage::RemMemReg(_)));
    assert!(canary.is_closed());
}

#[test]
fn channel_log_and_inflight_requests_arrive() {
    let file = memory();
    let fd = file.as_fd();
    arrives!(
        |f| f.set_backend_req_fd(fd),
        FrontMessage::SetBackendReqFd(fd) if same_file(&fd, &file)
    );
    arrives!(|f| f.set_log_fd(fd), FrontMessage::SetLogFd(fd) if same_file(&fd, &file));
    arrives!(
        |f| f.command(Request::SetLogBase, &0x1234u64.encode(), &[]),
        FrontMessage::SetLogBase(LogBase::Address(0x1234))
    );
    let log = DirtyLog { size: 4096, offset: 8192 };
    arrives!(
        |f| f.command(Request::SetLogBase, &log.encode(), &[]),
        FrontMessage::SetLogBase(LogBase::Shared { log: l, fd: None }) if l == log
    );
    arrives!(
        |f| f.command(Request::SetLogBase, &log.encode(), &[fd]),
        FrontMessage::SetLogBase(LogBase::Shared { log: l, fd: Some(fd) })
            if l == log && same_file(&fd, &file)
    );
    let inflight = INFLIGHT;
    arrives!(
        |f| f.set_inflight_fd(inflight, fd),
        FrontMessage::SetInflightFd { inflight: i, fd } if i == inflight && same_file(&fd, &file)
    );
    // The size is the spec's, without the C structure's padding.
    arrives!(
        |f| f.command(Request::SetInflightFd, &inflight.encode()[..20], &[fd]),
        FrontMessage::SetInflightFd { inflight: i, .. } if i == inflight
    );
}

const INFLIGHT: Inflight = Inflight {
    mmap_size: 0x1_0000_0001,
    mmap_offset: 0x2_0000_0002,
    num_queues: 4,
    queue_size: 1024,
};

#[test]
fn config_space_arrives() {
    let config = ConfigSpace { offset: 10, flags: 1, bytes: vec![1, 2, 3] };
    arrives!(
        |f| f.set_config(&config),
        FrontMessage::SetConfig(ref c) if *c == config
    );
    let read = ask(
        |front| front.get_config(6, 4),
        |back, incoming| {
            let FrontMessage::GetConfig(mut space) = incoming.message else {
                panic!("arrived as {incoming:?}");
            };
            assert_eq!((space.offset, space.bytes.len()), (6, 4));
            space.bytes = vec![9, 8, 7, 6];
            back.send_reply(incoming.request, &space.encode(), Vec::new()).unwrap();
        },
    );
    assert_eq!(read, Ok(vec![9, 8, 7, 6]));
}

#[test]
fn unserved_and_unknown_requests_arrive_whole() {
    let files = [memory(), memory()];
    for number in [0, 26, 27, 28, 29, 30, 33, 41, 42, 43, 44, 45, u32::MAX] {
        let (mut front, mut back) = pair();
        let bytes = message(RequestCode(number), 0, b"body");
        front.raw_send(&bytes, &borrow(&files)).unwrap();
        let FrontMessage::Unknown { request, body, fds } = next(&mut back).message else {
            panic!("request {number} has a type");
        };
        assert_eq!(request, RequestCode(number));
        assert_eq!(body, b"body");
        assert!(fds.iter().zip(&files).all(|(got, sent)| same_file(got, sent)));
        assert_eq!(fds.len(), 2);
    }
}

#[test]
fn numbers_come_back() {
    type Query = fn(&mut FrontEnd) -> Result<u64, FrontEndError>;
    let queries: [(Request, Query); 5] = [
        (Request::GetFeatures, FrontEnd::get_features),
        (Request::GetProtocolFeatures, FrontEnd::get_protocol_features),
        (Request::GetQueueNum, FrontEnd::get_queue_num),
        (Request::GetMaxMemSlots, FrontEnd::get_max_mem_slots),
        (Request::GetStatus, FrontEnd::get_status),
    ];
    for (request, query) in queries {
        let answer = ask(query, |back, incoming| {
            assert_eq!(incoming.request, request);
            back.reply_u64(incoming.request, 0xfeed_0000_0000_beef).unwrap();
        });
        assert_eq!(answer, Ok(0xfeed_0000_0000_beef));
    }
}

#[test]
fn vring_base_comes_back() {
    let base = ask(
        |front| front.get_vring_base(3),
        |back, incoming| {
            assert!(matches!(incoming.message, FrontMessage::GetVringBase { index: 3 }));
            let state = VringState { index: 3, num: 77 };
            back.reply(incoming.request, state).unwrap();
        },
    );
    assert_eq!(base, Ok(77));
}

#[test]
fn inflight_area_comes_back_with_its_descriptor() {
    let file = memory();
    let sent = file.try_clone().unwrap();
    let (inflight, fd) = ask(
        |front| front.get_inflight_fd(INFLIGHT),
        |back, incoming| {
            let FrontMessage::GetInflightFd(inflight) = incoming.message else {
                panic!("arrived as {incoming:?}");
            };
            back.send_reply(incoming.request, &inflight.encode(), vec![sent]).unwrap();
        },
    )
    .unwrap();
    assert_eq!(inflight, INFLIGHT);
    assert!(same_file(fd, file));
}

#[test]
fn log_base_waits_for_its_reply() {
    let file = memory();
    let log = DirtyLog { size: 4096, offset: 0 };
    let answer = ask(
        |front| front.set_log_base(log, file.as_fd()),
        |back, incoming| back.reply_u64(incoming.request, 0).unwrap(),
    );
    assert_eq!(answer, Ok(()));
}

#[test]
fn spec_reply_ack_tells_success_from_failure() {
    let (mut front, mut back) = pair();
    front.set_protocol_features(1 << VHOST_USER_PROTOCOL_F_REPLY_ACK).unwrap();
    assert!(!next(&mut back).need_reply, "not in force for the request that negotiates it");
    std::thread::scope(|scope| {
        let front = scope.spawn(move || {
            let answers = [front.set_owner(), front.net_set_mtu(1), front.set_owner()];
            (answers, front.get_features())
        });
        for ok in [true, false, true] {
            let incoming = next(&mut back);
            assert!(incoming.need_reply);
            back.ack(incoming.request, ok).unwrap();
        }
        // A request with a reply of its own never asks for another one.
        let incoming = next(&mut back);
        assert!(!incoming.need_reply);
        back.reply_u64(incoming.request, 5).unwrap();

        let (answers, features) = front.join().unwrap();
        let refused = FrontEndError::Refused { request: Request::NetSetMtu.into(), status: 1 };
        assert_eq!(answers, [Ok(()), Err(refused), Ok(())]);
        assert_eq!(features, Ok(5));
    });
}

#[test]
fn spec_request_numbers_and_names() {
    // Spot checks against the spec; all names and numbers are in one table.
    assert_eq!(Request::GetFeatures.number(), 1);
    assert_eq!(Request::SetVringKick.number(), 12);
    assert_eq!(Request::NetSetMtu.number(), 20);
    assert_eq!(Request::GetInflightFd.number(), 31);
    assert_eq!(Request::RemMemReg.number(), 38);
    assert_eq!(Request::GetShmemConfig.number(), 44);
    assert_eq!(Request::SetMemTable.name(), "VHOST_USER_SET_MEM_TABLE");
    let numbers: Vec<_> = Request::ALL.iter().map(|request| request.number()).collect();
    assert_eq!(numbers, (1..=44).collect::<Vec<_>>());
    for request in Request::ALL {
        assert_eq!(Request::from_number(request.number()), Some(*request));
    }
    assert_eq!(RequestCode(99).to_string(), "unknown request 99");
}
