//! Other programs' front ends: the habits of those in use, and of the `vhost` crate's; and their
//! questions about the device itself: its configuration, a platform's addresses, a byte order, a
//! queue's reset.

use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};

use vhost::vhost_user::message::{VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserInflight};
use vhost::vhost_user::{Frontend, VhostUserFrontend, VhostUserProtocolFeatures};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::EventFd;
use weir_engine::guest::GuestPort;
use weir_vhost_user::{ConfigSpace, IotlbMsg, Payload, Request, VringState};

use super::session::stopped_with;
use super::*;
use crate::features::OFFERED_EVER;

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

/// A back end that offers the link's state has to report changes. weir's link state never changes,
/// and QEMU keeps its own.
#[test]
fn the_links_state_is_the_front_ends_own() {
    const STATUS: u64 = 1 << 16;
    assert_eq!(OFFERED & STATUS, 0);
}

/// QEMU would offer a queue's reset to its guest, and tell no back end of one.
#[test]
fn no_front_end_is_offered_the_reset_of_a_single_queue() {
    const RING_RESET: u64 = 1 << 40;
    assert_eq!(OFFERED_EVER & RING_RESET, 0);
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

fn region(guest: &Guest) -> VhostUserMemoryRegionInfo {
    VhostUserMemoryRegionInfo {
        guest_phys_addr: 0,
        memory_size: MEMORY,
        userspace_addr: USER,
        mmap_offset: 0,
        mmap_handle: guest.memfd.as_raw_fd(),
    }
}

fn addresses(index: usize) -> VringConfigData {
    let at = ring_at(index as u64);
    VringConfigData {
        queue_max_size: SIZE,
        queue_size: SIZE,
        flags: 0,
        desc_table_addr: at.descriptor,
        used_ring_addr: at.device,
        avail_ring_addr: at.driver,
        log_addr: None,
    }
}

#[test]
fn the_vhost_crates_frontend_completes_a_session_and_its_guest_sends_a_frame() {
    let switch = Switch::new();
    let mut neighbour = switch.guest(2, modern());
    let (port, stream) = switch.port();
    let (_unused, spare) = UnixStream::pair().unwrap();
    // Memory, rings and the guest's driver are the test's; every message is the crate's.
    let mut guest = Guest::new(Arc::clone(&port), spare, 1, modern());

    let mut frontend = Frontend::from_stream(stream, 4);
    frontend.set_owner().unwrap();
    let features = frontend.get_features().unwrap();
    assert_eq!(features & OFFERED, OFFERED);
    frontend.set_features(modern()).unwrap();
    let protocol = frontend.get_protocol_features().unwrap();
    let wanted = VhostUserProtocolFeatures::MQ
        | VhostUserProtocolFeatures::REPLY_ACK
        | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
        | VhostUserProtocolFeatures::RESET_DEVICE;
    assert!(protocol.contains(wanted), "{protocol:?}");
    frontend.set_protocol_features(wanted).unwrap();
    frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    assert_eq!(frontend.get_queue_num().unwrap(), 4);
    assert_eq!(frontend.get_max_mem_slots().unwrap(), 509);
    frontend.set_mem_table(&[region(&guest)]).unwrap();

    let kicks = [EventFd::new(0).unwrap(), EventFd::new(0).unwrap()];
    let call = EventFd::new(0).unwrap();
    for (index, kick) in kicks.iter().enumerate() {
        frontend.set_vring_num(index, SIZE).unwrap();
        frontend.set_vring_addr(index, &addresses(index)).unwrap();
        frontend.set_vring_base(index, 0).unwrap();
        frontend.set_vring_call(index, &call).unwrap();
        frontend.set_vring_err(index, &call).unwrap();
        frontend.set_vring_kick(index, kick).unwrap();
        frontend.set_vring_enable(index, true).unwrap();
    }

    let hello = frame(&guest, None, 60, 1);
    guest.offer(0, &VnetHdr::default(), &hello);
    guest.tx.publish();
    kicks[1].write(1).unwrap();
    assert_eq!(neighbour.wait_received().1, hello);
    guest.reap();

    assert_eq!(frontend.get_vring_base(1).unwrap(), 1);
    frontend.reset_device().unwrap();
    drop(frontend);
    eventually("the session ends in order", || port.info().closed == 1);
    assert_eq!(port.info().stop_reason, None);
}

/// Makes a session as Cloud Hypervisor 53 does: the messages of its `negotiate_features_vhost_user` and
/// `setup_vhost_user`, in their order. `Err` has the back end's number of queues, if there are too few.
fn as_cloud_hypervisor(
    stream: UnixStream,
    guest: &Guest,
    rings: usize,
    kicks: &[EventFd],
) -> Result<Frontend, u64> {
    let mut frontend = Frontend::from_stream(stream, rings as u64);
    frontend.set_owner().unwrap();
    let offered = frontend.get_features().unwrap();
    let known = VhostUserProtocolFeatures::MQ
        | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
        | VhostUserProtocolFeatures::REPLY_ACK
        | VhostUserProtocolFeatures::INFLIGHT_SHMFD
        | VhostUserProtocolFeatures::LOG_SHMFD;
    let features = modern() & offered;
    let agreed = known & frontend.get_protocol_features().unwrap();
    assert_eq!(agreed, known);
    frontend.set_protocol_features(agreed).unwrap();
    frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    // The number covers receive and transmit queues.
    let offered = frontend.get_queue_num().unwrap();
    if rings as u64 > offered {
        return Err(offered);
    }
    frontend.set_features(features).unwrap();
    frontend.set_mem_table(&[region(guest)]).unwrap();
    for index in 0..rings {
        frontend.set_vring_num(index, SIZE).unwrap();
    }
    let wanted =
        VhostUserInflight { num_queues: rings as u16, queue_size: SIZE, ..Default::default() };
    let (inflight, file) = frontend.get_inflight_fd(&wanted).unwrap();
    frontend.set_inflight_fd(&inflight, file.as_raw_fd()).unwrap();
    let call = EventFd::new(0).unwrap();
    for (index, kick) in kicks.iter().enumerate().take(rings) {
        frontend.set_vring_addr(index, &addresses(index)).unwrap();
        frontend.set_vring_base(index, 0).unwrap();
        frontend.set_vring_call(index, &call).unwrap();
        frontend.set_vring_kick(index, kick).unwrap();
    }
    for index in 0..rings {
        frontend.set_vring_enable(index, true).unwrap();
    }
    Ok(frontend)
}

#[test]
fn cloud_hypervisor_gets_as_many_queues_as_are_configured_and_is_told_of_more() {
    for pairs in [1, 2] {
        let switch = Switch::new();
        let mut neighbour = switch.guest(2, modern());
        let (port, stream) = switch.port_with(|port| {
            port.set_queue_pairs(pairs, &CallPolicy::within(Kind::Immediate, 250_000));
            port
        });
        let (_unused, spare) = UnixStream::pair().unwrap();
        let mut guest = Guest::new(Arc::clone(&port), spare, 1, modern());
        let kicks: Vec<_> = (0..2 * pairs).map(|_| EventFd::new(0).unwrap()).collect();

        let frontend =
            as_cloud_hypervisor(stream, &guest, 2 * pairs, &kicks).expect("enough queues");
        let hello = frame(&guest, None, 60, 1);
        guest.offer(0, &VnetHdr::default(), &hello);
        guest.tx.publish();
        kicks[1].write(1).unwrap();
        assert_eq!(neighbour.wait_received().1, hello, "{pairs} pairs");
        drop(frontend);
        eventually("the session ends in order", || port.info().closed == 1);
        assert_eq!(port.info().stop_reason, None);

        let (ours, theirs) = UnixStream::pair().unwrap();
        switch.manager.remove(port.id()).unwrap();
        switch.manager.add(Arc::clone(&port), Endpoint::Connected(ours)).unwrap();
        let offered = as_cloud_hypervisor(theirs, &guest, 2 * pairs + 2, &kicks).err();
        assert_eq!(offered, Some(2 * pairs as u64), "one pair more than is configured");
    }
}

#[test]
fn who_counts_pairs_and_uses_more_than_are_configured_is_told_which_key_says_so() {
    let switch = Switch::new();
    let (port, stream) = switch.port();
    let mut frontend = FrontEnd::new(stream);
    frontend.get_features().unwrap();
    // QEMU compares its number of pairs with this number, which must be at least 3.
    assert!(frontend.get_queue_num().unwrap() >= 3);
    let call = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    for index in 0..4 {
        frontend.set_vring_call(index, Some(call.as_fd())).unwrap();
    }
    let _ = frontend.set_vring_call(4, Some(call.as_fd()));
    eventually("the session ends", || port.info().stop_reason.is_some());
    let reason = port.info().stop_reason.expect("a reason").to_string();
    assert!(reason.contains("ring 4 does not exist, this interface has 4"), "{reason}");
    assert!(reason.contains("`queues = 2`"), "{reason}");
    // User-mode Linux means its control queue.
    assert!(reason.contains("set `queues = 1`"), "{reason}");
}

const MAC: u64 = 1 << 5;
const ACCESS_PLATFORM: u64 = 1 << 33;
const CONFIG: u64 = 1 << 9;
const CROSS_ENDIAN: u64 = 1 << 6;
const VERSION_1: u64 = 1 << 32;

/// The configuration space of these tests' interface: address, link, pairs, MTU.
const SPACE: [u8; 12] = [2, 0, 0, 0, 0, 9, 1, 0, 2, 0, 0xdc, 5];

fn front(stream: UnixStream) -> FrontEnd {
    let mut front = FrontEnd::new(stream);
    front.set_timeout(PATIENCE);
    front
}

#[test]
fn the_configuration_space_is_for_front_ends_that_begin_with_set_owner() {
    let switch = Switch::new();
    // This front end behaves as QEMU, which would print a warning.
    let (_port, stream) = switch.port();
    let mut qemu = front(stream);
    let offers = |front: &mut FrontEnd| {
        let features = front.get_features().unwrap();
        (features & MAC != 0, front.get_protocol_features().unwrap() & CONFIG != 0)
    };
    assert_eq!(offers(&mut qemu), (false, false));
    qemu.set_owner().unwrap();
    assert_eq!(offers(&mut qemu), (false, false), "it does not change its mind");
    assert!(qemu.get_config(0, 12).is_err(), "what was not offered is refused");
    // The next front end behaves as Cloud Hypervisor, crosvm, user-mode Linux and virtio-user.
    let (_port, stream) = switch.port();
    let mut other = front(stream);
    other.set_owner().unwrap();
    assert_eq!(offers(&mut other), (true, true));
    other.set_protocol_features(CONFIG | REPLY_ACK).unwrap();
    assert_eq!(other.get_config(0, 12).unwrap(), SPACE);
}

#[test]
fn the_vhost_crates_frontend_reads_the_configuration() {
    let switch = Switch::new();
    let (port, stream) = switch.port();
    let mut frontend = Frontend::from_stream(stream, 4);
    frontend.set_owner().unwrap();
    let features = frontend.get_features().unwrap();
    assert_ne!(features & MAC, 0);
    frontend.set_features(modern() | MAC).unwrap();
    let protocol = frontend.get_protocol_features().unwrap();
    assert!(protocol.contains(VhostUserProtocolFeatures::CONFIG), "{protocol:?}");
    frontend.set_protocol_features(VhostUserProtocolFeatures::CONFIG).unwrap();
    let (_, space) = frontend.get_config(0, 12, VhostUserConfigFlags::empty(), &[0; 12]).unwrap();
    assert_eq!(space, SPACE);
    assert_eq!(port.info().stop_reason, None);
}

#[test]
fn any_part_of_the_configuration_is_read_and_none_is_written() {
    let switch = Switch::new();
    let (port, stream) = switch.port();
    let mut front = front(stream);
    front.set_owner().unwrap();
    front.set_protocol_features(CONFIG | REPLY_ACK).unwrap();
    assert_eq!(front.get_config(6, 2).unwrap(), [1, 0], "the link is up");
    assert_eq!(front.get_config(10, 4).unwrap(), [0xdc, 5, 0, 0], "beyond are zeros");
    assert_eq!(front.get_config(0, 256).unwrap().len(), 256);
    for (offset, len) in [(0, 257), (256, 1), (u32::MAX, 1)] {
        assert_eq!(front.get_config(offset, len).unwrap(), [0; 0], "{offset}, {len}");
    }
    // A change is for the next session.
    port.set_device(GuestDevice { mtu: 9000, ..DEVICE });
    assert_eq!(front.get_config(10, 2).unwrap(), [0xdc, 5]);
    let mac = ConfigSpace { offset: 0, flags: 0, bytes: vec![2; 6] };
    assert!(front.set_config(&mac).is_err());
    stopped_with(&port, "weir says it, by `mac`, `mtu` and `queues`");
}

/// A guest of an interface with `access_platform`; `channel` gives its front end a channel for weir's requests.
fn on_a_platform(switch: &Switch, channel: bool) -> (Guest, Result<(), FrontEndError>) {
    let device = GuestDevice { access_platform: true, ..DEVICE };
    let (port, stream) = switch.port_with(|port| {
        port.set_device(device);
        port
    });
    let mut guest = Guest::new(port, stream, 1, modern() | ACCESS_PLATFORM);
    assert_ne!(guest.front.get_features().unwrap() & ACCESS_PLATFORM, 0);
    let (ours, theirs) = UnixStream::pair().unwrap();
    // The channel stays open: a front end that expects requests keeps it.
    std::mem::forget(theirs);
    if channel {
        let protocol = guest.front.get_protocol_features().unwrap();
        guest.front.set_protocol_features(protocol).unwrap();
        guest.front.set_backend_req_fd(ours.as_fd()).unwrap();
    }
    let set_up = guest.set_up();
    (guest, set_up)
}

#[test]
fn access_platform_is_offered_where_configured_and_a_guest_that_takes_it_sends() {
    let switch = Switch::new();
    let mut plain = switch.guest(2, modern());
    assert_eq!(plain.front.get_features().unwrap() & ACCESS_PLATFORM, 0);
    let (mut guest, set_up) = on_a_platform(&switch, false);
    set_up.unwrap();
    guest.start();
    introduce(&mut guest, &mut plain);
}

#[test]
fn a_virtual_iommu_that_cannot_be_asked_is_refused() {
    let switch = Switch::new();
    for channel in [false, true] {
        // Either the channel is missing, or the feature.
        let (mut guest, set_up) = on_a_platform(&switch, channel);
        set_up.unwrap();
        if channel {
            guest.front.set_features(modern()).unwrap();
        }
        let message = IotlbMsg { size: 1, kind: IotlbMsg::UPDATE, ..IotlbMsg::default() };
        assert!(guest.front.iotlb_msg(&message).is_err());
        stopped_with(&guest.port, "virtual IOMMU that weir cannot ask");
    }
}

/// QEMU with a guest of virtio 0.9 and of another byte order states the order after each ring's base.
#[test]
fn a_legacy_driver_of_another_byte_order_is_not_served_until_its_device_is_reset() {
    let switch = Switch::new();
    let mut other = switch.guest(2, modern());
    let (port, stream) = switch.port();
    let mut guest = Guest::new(port, stream, 1, modern() & !VERSION_1);
    assert_ne!(guest.front.get_protocol_features().unwrap() & CROSS_ENDIAN, 0);
    let endian = |guest: &mut Guest, big: bool| {
        for index in 0..2 {
            let state = VringState { index, num: big.into() };
            guest.front.command(Request::SetVringEndian, &state.encode(), &[]).unwrap();
        }
    };
    guest.negotiate().unwrap();
    endian(&mut guest, cfg!(target_endian = "little"));
    stopped_with(&guest.port, "of another byte order than this machine");
    guest.set_up().unwrap();
    guest.kick(1);
    other.front.get_features().unwrap();
    assert_eq!(guest.port.info().state, State::Stopped, "and stays so");
    // An operating system follows its firmware.
    guest.front.reset_device().unwrap();
    guest.features = modern();
    guest.set_up().unwrap();
    guest.start();
    introduce(&mut guest, &mut other);
    endian(&mut guest, cfg!(target_endian = "big"));
    let hello = frame(&guest, Some(&other), 60, 7);
    guest.send(&hello);
    assert_eq!(other.wait_received().1, hello, "this machine's own order is as good as none");
}

/// Bytes of a ring's three areas.
const RING_BYTES: u32 = 0x6000;

fn bytes_at(guest: &Guest, ring: Addresses) -> Vec<u8> {
    let mut bytes = vec![0; RING_BYTES as usize];
    guest.memory.slice(ring.descriptor - USER, RING_BYTES).unwrap().read(&mut bytes);
    bytes
}

/// A front end that supported a queue's reset (`VIRTIO_F_RING_RESET`) would do this, and one does it when its driver
/// resizes a ring.
#[test]
fn a_queue_is_stopped_and_comes_back_elsewhere_while_the_others_run() {
    for format in formats() {
        let switch = Switch::new();
        let (mut a, mut b) = (switch.guest(1, format), switch.guest(2, format));
        introduce(&mut a, &mut b);
        let mut old = ring_at(1);
        for round in 0..4u64 {
            let place = ring_at(2 + round % 2);
            let size = if round % 2 == 0 { SIZE / 2 } else { SIZE };
            a.offer(0, &VnetHdr::default(), &frame(&a, Some(&b), 60, 1));
            a.send_now();
            a.front.get_vring_base(1).unwrap();
            // From here on weir does not touch the old ring.
            let before = bytes_at(&a, old);
            let back = frame(&b, Some(&a), 60, round as u8);
            b.send(&back);
            assert_eq!(a.wait_received().1, back, "the other queue goes on");
            a.post(1);
            assert!(bytes_at(&a, old) == before, "{format:#x}");
            let config = Features(format).ring(size);
            let zeros = vec![0; RING_BYTES as usize];
            a.memory.slice(place.descriptor - USER, RING_BYTES).unwrap().write(&zeros);
            a.tx = DriverRing::new(&a.memory, config, &place).unwrap();
            old = place;
            a.front.set_vring_num(1, size.into()).unwrap();
            a.front.set_vring_base(1, config.fresh_base()).unwrap();
            a.front
                .set_vring_addr(VringAddr {
                    index: 1,
                    flags: 0,
                    descriptor: place.descriptor,
                    used: place.device,
                    available: place.driver,
                    log: 0,
                })
                .unwrap();
            a.front.set_vring_kick(1, Some(a.kicks[1].as_fd())).unwrap();
            while b.received().is_some() {
                b.post(1);
            }
            for number in 0..2 * size {
                let sent = frame(&a, Some(&b), 60, number as u8);
                a.send(&sent);
                assert_eq!(b.wait_received().1, sent, "{format:#x}");
                b.post(1);
            }
        }
        assert_eq!(a.port.info().stop_reason, None);
    }
}
