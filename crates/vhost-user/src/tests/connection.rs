//! Split messages, ends of the stream, full sockets, slow and lying back ends.

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use proptest::prelude::*;
use rustix::io::{FdFlags, fcntl_getfd};
use rustix::net::sockopt::set_socket_send_buffer_size;
use weir_limits::VHOST_USER_OUTBOUND_BYTES_MAX;

use super::*;
use crate::*;

#[test]
fn message_may_come_byte_by_byte() {
    let (mut front, mut back) = pair();
    let file = memory();
    let bytes = message(Request::AddMemReg, 0, &SingleRegion(region(2)).encode());
    let (last, first) = bytes.split_last().unwrap();
    let mut fds = vec![file.as_fd()];
    for byte in first {
        front.raw_send(&[*byte], &std::mem::take(&mut fds)).unwrap();
        assert!(back.receive().unwrap().is_none());
    }
    front.raw_send(&[*last], &[]).unwrap();
    let FrontMessage::AddMemReg { region: got, fd } = next(&mut back).message else {
        panic!("not the region that was sent");
    };
    assert_eq!(got, region(2));
    assert!(same_file(fd, file));
}

#[test]
fn descriptors_belong_to_the_message_they_came_with() {
    let (mut front, mut back) = pair();
    let files = [memory(), memory()];
    front.set_vring_call(0, Some(files[0].as_fd())).unwrap();
    front.set_owner().unwrap();
    front.set_vring_call(1, Some(files[1].as_fd())).unwrap();
    front.set_vring_call(2, None).unwrap();
    for n in [0, 1] {
        let FrontMessage::SetVringCall { index, fd: Some(fd) } = next(&mut back).message else {
            panic!("call descriptor {n} missing");
        };
        assert_eq!(index as usize, n);
        assert!(same_file(fd, &files[n]));
        if n == 0 {
            assert!(matches!(next(&mut back).message, FrontMessage::SetOwner));
        }
    }
    let last = next(&mut back).message;
    assert!(matches!(last, FrontMessage::SetVringCall { index: 2, fd: None }));
}

/// Peeks at a request, which stays in the socket.
fn look(back: &mut Connection) -> Glimpse {
    match back.peek().unwrap() {
        Peek::Whole(glimpse) => glimpse,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_looked_at_stays_until_it_is_consumed_and_brings_its_own_descriptors() {
    let (mut front, mut back) = pair();
    let file = memory();
    assert!(matches!(back.peek().unwrap(), Peek::Nothing));
    front.set_owner().unwrap();
    front.set_vring_call(1, Some(file.as_fd())).unwrap();
    front.set_vring_call(2, None).unwrap();
    // Peeking at a message without descriptors also returns those of the next one.
    for _ in 0..2 {
        assert!(matches!(look(&mut back).incoming.message, FrontMessage::SetOwner));
    }
    let glimpse = look(&mut back);
    assert!(back.begins_with(&glimpse.bytes).unwrap());
    back.consume(&glimpse.receipt).unwrap();
    let glimpse = look(&mut back);
    let FrontMessage::SetVringCall { index: 1, fd: Some(fd) } = glimpse.incoming.message else {
        panic!("no descriptor");
    };
    assert!(same_file(fd, file) && back.begins_with(&glimpse.bytes).unwrap());
    back.consume(&glimpse.receipt).unwrap();
    assert!(!back.begins_with(&glimpse.bytes).unwrap());
    let last = next(&mut back).message;
    assert!(matches!(last, FrontMessage::SetVringCall { index: 2, fd: None }));
    drop(front);
    assert!(matches!(back.peek(), Err(ConnectionError::Closed)));
}

#[test]
fn a_message_that_takes_the_next_ones_descriptor_for_its_own_is_the_end() {
    let (mut front, mut back) = pair();
    let word = vring_fd_word(Request::SetVringKick, 0, true).unwrap();
    front.raw_send(&message(Request::SetVringKick, 0, &word.encode()), &[]).unwrap();
    front.set_vring_call(1, Some(memory().as_fd())).unwrap();
    let glimpse = look(&mut back);
    let consumed = back.consume(&glimpse.receipt);
    assert!(matches!(consumed, Err(ConnectionError::Protocol(_))), "{consumed:?}");
}

#[test]
fn a_look_at_a_part_of_a_message_says_so() {
    let (mut front, mut back) = pair();
    let bytes = message(Request::SetFeatures, 0, &7u64.encode());
    for end in [5, HEADER_LEN, 15] {
        let begin = [0, 5, HEADER_LEN].into_iter().rfind(|begin| *begin < end).unwrap();
        front.raw_send(&bytes[begin..end], &[]).unwrap();
        assert!(matches!(back.peek().unwrap(), Peek::Part), "{end}");
    }
    front.raw_send(&bytes[15..], &[]).unwrap();
    let glimpse = look(&mut back);
    assert!(matches!(glimpse.incoming.message, FrontMessage::SetFeatures(7)));
    // Descriptors with a later piece cannot be seen.
    back.consume(&glimpse.receipt).unwrap();
    front.raw_send(&bytes[..5], &[memory().as_fd()]).unwrap();
    front.raw_send(&bytes[5..], &[]).unwrap();
    assert!(matches!(back.peek().unwrap(), Peek::Part));
}

#[test]
fn a_descriptor_that_needs_not_come_may_come_with_what_is_looked_at() {
    let (mut front, mut back) = pair();
    let bytes = message(Request::RemMemReg, 0, &SingleRegion(region(2)).encode());
    for fds in [&[][..], &[memory().as_fd()]] {
        front.raw_send(&bytes, fds).unwrap();
        let glimpse = look(&mut back);
        assert!(matches!(glimpse.incoming.message, FrontMessage::RemMemReg(_)));
        back.consume(&glimpse.receipt).unwrap();
    }
}

#[test]
fn descriptors_with_a_later_piece_are_collected() {
    let (mut front, mut back) = pair();
    let files = [memory(), memory()];
    let table = MemoryTable(vec![region(0), region(1)]).encode();
    let bytes = message(Request::SetMemTable, 0, &table);
    front.raw_send(&bytes[..20], &[files[0].as_fd()]).unwrap();
    assert!(back.receive().unwrap().is_none());
    front.raw_send(&bytes[20..], &[files[1].as_fd()]).unwrap();
    let FrontMessage::SetMemTable(regions) = next(&mut back).message else {
        panic!("not a memory table");
    };
    assert!(regions.iter().zip(&files).all(|((_, got), sent)| same_file(got, sent)));
    assert_eq!(regions.len(), 2);
}

#[test]
fn received_descriptors_are_close_on_exec() {
    let (mut front, mut back) = pair();
    front.set_vring_kick(0, Some(event().as_fd())).unwrap();
    let FrontMessage::SetVringKick { fd: Some(fd), .. } = next(&mut back).message else {
        panic!("no descriptor");
    };
    assert!(fcntl_getfd(fd).unwrap().contains(FdFlags::CLOEXEC));
}

#[test]
fn close_between_messages_is_told_from_close_inside_one() {
    let bytes = message(Request::SetFeatures, 0, &[0; 8]);
    for sent in 0..=bytes.len() {
        let (mut front, mut back) = pair();
        let (canary, fd) = Canary::new();
        let fds = [fd.as_fd()];
        let inside = 0 < sent && sent < bytes.len();
        let fds = if inside { &fds[..] } else { &[] };
        front.raw_send(&bytes[..sent], fds).unwrap();
        drop((front, fd));
        if sent == bytes.len() {
            assert!(back.receive().unwrap().is_some());
        }
        let expected = match inside {
            true => ConnectionError::ClosedMidMessage { received: sent },
            false => ConnectionError::Closed,
        };
        assert_eq!(back.receive().expect_err("after the end"), expected);
        assert!(canary.is_closed());
    }
}

#[test]
fn peer_that_leaves_with_replies_unread_has_closed() {
    let (front, mut back) = pair();
    back.reply_u64(Request::GetFeatures, 1).unwrap();
    drop(front);
    assert_eq!(back.receive().expect_err("after the end"), ConnectionError::Closed);
    let reply = back.reply_u64(Request::GetFeatures, 1);
    assert_eq!(reply, Err(ConnectionError::Closed));
}

#[test]
fn dropped_connection_closes_descriptors_of_an_unfinished_message() {
    let (mut front, mut back) = pair();
    let (canary, fd) = Canary::new();
    let bytes = message(Request::AddMemReg, 0, &[0; 40]);
    front.raw_send(&bytes[..30], &[fd.as_fd()]).unwrap();
    drop(fd);
    assert!(back.receive().unwrap().is_none());
    assert!(!canary.is_closed());
    drop(back);
    assert!(canary.is_closed());
}

/// A pair whose back end can send only little before its socket is full.
fn narrow_pair() -> (FrontEnd, Connection) {
    let (front, back) = UnixStream::pair().unwrap();
    set_socket_send_buffer_size(&back, 1).unwrap();
    (FrontEnd::new(front), Connection::new(back))
}

#[test]
fn replies_to_a_slow_front_end_wait_in_order() {
    let (mut front, mut back) = narrow_pair();
    let body = |n: u8| vec![n; 1000];
    let mut replies = 0;
    while !back.wants_write() {
        back.send_reply(RequestCode(50), &body(replies), vec![]).unwrap();
        replies += 1;
    }
    let file = memory();
    let fds = vec![file.try_clone().unwrap()];
    back.send_reply(RequestCode(50), &body(replies), fds).unwrap();
    for n in 0..replies {
        let reply = front.raw_receive(RequestCode(50)).unwrap();
        assert_eq!((reply.body, reply.fds.len()), (body(n), 0));
        back.flush().unwrap();
    }
    let last = front.raw_receive(RequestCode(50)).unwrap();
    assert_eq!(last.body, body(replies));
    assert!(same_file(&last.fds[0], file));
    assert!(!back.wants_write());
}

#[test]
fn front_end_that_never_reads_is_cut_off() {
    let (_front, mut back) = narrow_pair();
    let full = (0..100_000).find_map(|_| back.reply_u64(Request::GetFeatures, 0).err());
    let Some(ConnectionError::OutboundFull { queued }) = full else {
        panic!("replies pile up without bound: {full:?}");
    };
    assert!(queued <= VHOST_USER_OUTBOUND_BYTES_MAX);
}

#[test]
fn silent_back_end_times_out() {
    let (mut front, _back) = pair();
    let timeout = Duration::from_millis(20);
    front.set_timeout(timeout);
    let request = Request::GetFeatures.into();
    assert_eq!(front.get_features(), Err(FrontEndError::Timeout { request, timeout }));
}

#[test]
fn back_end_that_dribbles_times_out_too() {
    let (front, dribbler) = UnixStream::pair().unwrap();
    let mut asked = dribbler.try_clone().unwrap();
    let (mut front, mut dribbler) = (FrontEnd::new(front), FrontEnd::new(dribbler));
    front.set_timeout(Duration::from_millis(100));
    std::thread::scope(|scope| {
        let asking = scope.spawn(move || front.get_features());
        let reply = message(Request::GetFeatures, REPLY_FLAG, &[0; 8]);
        asked.read_exact(&mut [0; 12]).unwrap();
        for byte in reply {
            // Sending fails once the asker has given up.
            let _ = dribbler.raw_send(&[byte], &[]);
            std::thread::sleep(Duration::from_millis(15));
        }
        let answer = asking.join().unwrap();
        assert!(matches!(answer, Err(FrontEndError::Timeout { .. })), "{answer:?}");
    });
}

/// The front end's error for a reply of these bytes.
fn answered(bytes: &[u8]) -> FrontEndError {
    let (front, back) = UnixStream::pair().unwrap();
    let (mut front, mut back) = (FrontEnd::new(front), FrontEnd::new(back));
    back.raw_send(bytes, &[]).unwrap();
    front.get_features().expect_err("accepted")
}

#[test]
fn wrong_replies_are_refused() {
    let request = Request::GetFeatures.into();
    assert_eq!(
        answered(&message(Request::GetStatus, REPLY_FLAG, &[0; 8])),
        FrontEndError::WrongReply { expected: request, found: Request::GetStatus.into() }
    );
    assert_eq!(
        answered(&message(Request::GetFeatures, 0, &[0; 8])),
        ProtocolError::ReplyWithoutReplyFlag { request }.into()
    );
    let expected = Expected::Exactly(8);
    assert_eq!(
        answered(&message(Request::GetFeatures, REPLY_FLAG, &[0; 4])),
        ProtocolError::BodySize { request, expected, actual: 4 }.into()
    );
}

/// Requests with a tag each, to check order and completeness.
fn tagged(n: usize) -> Vec<u8> {
    match n % 3 {
        0 => message(Request::SetFeatures, 0, &(n as u64).encode()),
        1 => message(Request::SetOwner, NEED_REPLY_FLAG, &[]),
        _ => message(RequestCode(100), 0, &vec![n as u8; n]),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn splits_do_not_change_what_arrives(
        count in 1usize..12,
        cuts in prop::collection::vec(1usize..30, 1..40),
    ) {
        let (mut front, mut back) = pair();
        let stream: Vec<u8> = (0..count).flat_map(tagged).collect();
        let mut rest = &stream[..];
        let mut got = 0;
        let mut cuts = cuts.iter().cycle();
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(rest.len().min(*cuts.next().unwrap()));
            rest = after;
            front.raw_send(piece, &[]).unwrap();
            while let Some(incoming) = back.receive().unwrap() {
                match incoming.message {
                    FrontMessage::SetFeatures(n) => prop_assert_eq!(n, got as u64),
                    FrontMessage::SetOwner => prop_assert!(incoming.need_reply && got % 3 == 1),
                    FrontMessage::Unknown { body, .. } => {
                        prop_assert_eq!(body, vec![got as u8; got]);
                    }
                    other => prop_assert!(false, "{:?}", other),
                }
                got += 1;
            }
        }
        prop_assert_eq!(got, count);
    }
}
