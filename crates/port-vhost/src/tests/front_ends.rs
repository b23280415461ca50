//! Habits of the front ends that people use.

use std::io::{Read, Write};
use weir_engine::guest::GuestPort;

use weir_vhost_user::Request;

use super::*;

fn message(request: Request, flags: u32, body: &[u8]) -> Vec<u8> {
    let head = [request as u32, 1 | flags, body.len() as u32];
    [head.map(u32::to_ne_bytes).concat(), body.to_vec()].concat()
}

/// User-mode Linux sets `NEED_REPLY` in the very request that agrees on replies.
#[test]
fn the_request_that_agrees_on_acknowledgements_is_acknowledged() {
    let switch = Switch::new();
    let (_port, mut stream) = switch.port();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    const NEED_REPLY: u32 = 1 << 3;
    let agreed = REPLY_ACK.to_ne_bytes();
    stream.write_all(&message(Request::SetProtocolFeatures, NEED_REPLY, &agreed)).unwrap();
    let mut reply = [0; 20];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(reply[12..], [0; 8]);
}

/// user-mode Linux has no interrupt for its rings without a channel for the back end's requests.
#[test]
fn a_channel_for_requests_is_taken_and_stays_open() {
    const BACKEND_REQ: u64 = 1 << weir_vhost_user::VHOST_USER_PROTOCOL_F_BACKEND_REQ;
    let switch = Switch::new();
    let (_port, stream) = switch.port();
    let mut front = FrontEnd::new(stream);
    front.set_timeout(PATIENCE);
    assert_ne!(front.get_protocol_features().unwrap() & BACKEND_REQ, 0);
    front.set_protocol_features(BACKEND_REQ | REPLY_ACK).unwrap();
    let ends = || std::io::pipe().unwrap();
    let [(mut first, to_first), (mut second, to_second)] = [ends(), ends()];
    for end in [to_first, to_second] {
        front.set_backend_req_fd(end.as_fd()).unwrap();
    }
    for end in [&first, &second] {
        rustix::io::ioctl_fionbio(end, true).unwrap();
    }
    let mut byte = [0];
    assert_eq!(first.read(&mut byte).unwrap(), 0, "another one replaces it");
    let open = second.read(&mut byte).unwrap_err();
    assert_eq!(open.kind(), std::io::ErrorKind::WouldBlock);
    drop(front);
    eventually("it goes with the session", || second.read(&mut byte).is_ok_and(|n| n == 0));
}

/// A channel that was not negotiated is refused.
#[test]
fn a_channel_for_requests_needs_the_feature() {
    let switch = Switch::new();
    let (_port, stream) = switch.port();
    let mut front = FrontEnd::new(stream);
    front.set_timeout(PATIENCE);
    front.set_protocol_features(REPLY_ACK).unwrap();
    let (_end, given) = std::io::pipe().unwrap();
    assert!(front.set_backend_req_fd(given.as_fd()).is_err());
}

/// QEMU up to 8.0 adds each region once for each queue pair, and removes it as often.
#[test]
fn a_region_that_is_added_twice_is_there_until_it_is_removed_twice() {
    let switch = Switch::new();
    let (port, stream) = switch.port();
    let mut guest = Guest::new(port, stream, 1, modern());
    guest.negotiate().unwrap();
    let mapped = |guest: &Guest| guest.port.info().memory_bytes;
    for _ in 0..3 {
        guest.front.add_mem_reg(Guest::region(), guest.memfd.as_fd()).unwrap();
        assert_eq!(mapped(&guest), MEMORY);
    }
    for left in [MEMORY, MEMORY, 0] {
        guest.front.rem_mem_reg(Guest::region()).unwrap();
        guest.front.get_features().unwrap();
        assert_eq!(mapped(&guest), left);
    }
    assert!(guest.front.rem_mem_reg(Guest::region()).is_err(), "nothing is left of it");
}

#[test]
fn a_region_with_another_offset_is_no_repetition() {
    let switch = Switch::new();
    let (port, stream) = switch.port();
    let mut guest = Guest::new(port, stream, 1, modern());
    guest.negotiate().unwrap();
    let small = MemoryRegion { size: MEMORY / 2, ..Guest::region() };
    guest.front.add_mem_reg(small, guest.memfd.as_fd()).unwrap();
    let other = MemoryRegion { mmap_offset: MEMORY / 2, ..small };
    assert!(guest.front.add_mem_reg(other, guest.memfd.as_fd()).is_err());
}

/// A front end that hands its control queue to the back end finds none here.
#[test]
fn one_queue_pair_has_no_control_queue() {
    const BY_CONTROL_QUEUE: u64 = 1 << 17 | 1 << 18 | 1 << 21 | 1 << 22;
    let switch = Switch::new();
    let (port, stream) = switch.port();
    port.set_queue_pairs(1, &CallPolicy::within(Kind::Immediate, 250_000));
    switch.manager.remove(port.id()).unwrap();
    drop(stream);
    let (ours, theirs) = UnixStream::pair().unwrap();
    switch.manager.add(port, Endpoint::Connected(ours)).unwrap();
    let mut front = FrontEnd::new(theirs);
    front.set_timeout(PATIENCE);
    assert_eq!(front.get_features().unwrap(), OFFERED & !BY_CONTROL_QUEUE);
    front.set_features(OFFERED).ok();
    assert!(front.get_features().is_err(), "what was not offered is refused");
}

/// user-mode Linux on an interface with two queue pairs: it uses one, and its third ring is the control queue.
#[test]
fn a_third_ring_without_mq_is_refused_and_says_what_to_change() {
    let switch = Switch::new();
    let (port, stream) = switch.port();
    let mut guest = Guest::new(Arc::clone(&port), stream, 1, modern());
    guest.front.set_protocol_features(REPLY_ACK).unwrap();
    guest.front.set_features(modern()).unwrap();
    guest.front.set_mem_table(&[(Guest::region(), guest.memfd.as_fd())]).unwrap();
    for index in 0..2 {
        guest.vring(index).unwrap();
        guest.front.set_vring_kick(index, Some(guest.kicks[index as usize].as_fd())).unwrap();
    }
    guest.vring(2).unwrap();
    assert!(guest.front.set_vring_kick(2, Some(guest.kicks[0].as_fd())).is_err());
    eventually("the session ends", || port.info().stop_reason.is_some());
    let reason = port.info().stop_reason.unwrap().to_string();
    assert!(reason.contains("ring 2 needs") && reason.contains("queues = 1"), "{reason}");
}

/// A back end that offers the link's state has to tell of changes. weir's never changes, and QEMU has its own.
#[test]
fn the_links_state_is_the_front_ends_own() {
    const STATUS: u64 = 1 << 16;
    assert_eq!(OFFERED & STATUS, 0);
}

/// QEMU kicks each ring that it hands over. User-mode Linux leaves kicks to the driver, and the driver asks the ring.
#[test]
fn a_driver_that_kicks_only_where_it_is_asked_to_starts_its_rings() {
    const EVENT_IDX: u64 = 1 << 29;
    let switch = Switch::new();
    let features = [modern() | EVENT_IDX, modern() & !EVENT_IDX];
    for features in features.into_iter().flat_map(|some| [some, some | RING_PACKED]) {
        let (port, stream) = switch.port();
        let mut guest = Guest::new(Arc::clone(&port), stream, 1, features);
        guest.set_up().unwrap();
        guest.post(guest.size);
        eventually("the receive ring starts", || port.info().state == State::Running);
    }
}

/// User-mode Linux states 0 for the base of a packed ring that has not run.
#[test]
fn a_new_packed_ring_with_a_base_of_0_runs_from_its_start() {
    for features in formats().into_iter().filter(|features| features & RING_PACKED != 0) {
        new_packed_ring_with_a_base_of_0(features);
    }
}

fn new_packed_ring_with_a_base_of_0(features: u64) {
    let switch = Switch::new();
    let mut other = switch.guest(2, modern());
    let (port, stream) = switch.port();
    let mut guest = Guest::new(port, stream, 1, features);
    guest.negotiate().unwrap();
    guest.front.set_mem_table(&[(Guest::region(), guest.memfd.as_fd())]).unwrap();
    for index in 0..2 {
        guest.vring(index).unwrap();
        guest.front.set_vring_base(index, 0).unwrap();
        let at = index as usize;
        guest.front.set_vring_call(index, Some(guest.calls[at].as_fd())).unwrap();
        guest.front.set_vring_kick(index, Some(guest.kicks[at].as_fd())).unwrap();
        guest.front.set_vring_enable(index, true).unwrap();
    }
    guest.start();
    introduce(&mut guest, &mut other);
}
