//! A front end that is not weir's own: that of the `vhost` crate.

use std::os::fd::{AsFd, AsRawFd};

use weir_engine::guest::GuestPort;

use vhost::vhost_user::message::{VhostUserHeaderFlag, VhostUserInflight};
use vhost::vhost_user::{Frontend, VhostUserFrontend, VhostUserProtocolFeatures};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::EventFd;

use super::*;

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
}
