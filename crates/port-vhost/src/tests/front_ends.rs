//! What front ends do that are installed on people's machines.

use std::io::{Read, Write};

use weir_vhost_user::Request;

use super::*;

fn message(request: Request, flags: u32, body: &[u8]) -> Vec<u8> {
    let head = [request as u32, 1 | flags, body.len() as u32];
    [head.map(u32::to_ne_bytes).concat(), body.to_vec()].concat()
}

/// user-mode Linux: "answer me" in the very request that agrees on answers.
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

/// QEMU up to 8.0: each region once for each queue pair, and back as often.
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

/// What hands its control queue to the back end finds none here.
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

/// user-mode Linux: 0 for the base of a packed ring that has not run.
#[test]
fn a_new_packed_ring_with_a_base_of_0_runs_from_its_start() {
    let switch = Switch::new();
    let mut other = switch.guest(2, modern());
    let (port, stream) = switch.port();
    let mut guest = Guest::new(port, stream, 1, modern() | RING_PACKED);
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
