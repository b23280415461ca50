//! A front end that nobody here wrote: that of the `vhost` crate.

use std::os::fd::AsRawFd;
use weir_engine::guest::GuestPort;

use vhost::vhost_user::message::VhostUserHeaderFlag;
use vhost::vhost_user::{Frontend, VhostUserFrontend, VhostUserProtocolFeatures};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::EventFd;

use super::*;

#[test]
fn the_vhost_crates_frontend_completes_a_session_and_its_guest_sends_a_frame() {
    let switch = Switch::new();
    let mut neighbour = switch.guest(2, modern());
    let (port, stream) = switch.port();
    let (_unused, spare) = UnixStream::pair().unwrap();
    // Memory, rings and the guest's driver are ours; every message is the other's.
    let mut guest = Guest::new(Arc::clone(&port), spare, 1, modern());

    let mut frontend = Frontend::from_stream(stream, 4);
    frontend.set_owner().unwrap();
    let features = frontend.get_features().unwrap();
    assert_eq!(features, OFFERED);
    frontend.set_features(modern()).unwrap();
    let protocol = frontend.get_protocol_features().unwrap();
    let wanted = VhostUserProtocolFeatures::MQ
        | VhostUserProtocolFeatures::REPLY_ACK
        | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
        | VhostUserProtocolFeatures::RESET_DEVICE;
    assert!(protocol.contains(wanted), "{protocol:?}");
    frontend.set_protocol_features(wanted).unwrap();
    frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    assert_eq!(frontend.get_queue_num().unwrap(), 2);
    assert_eq!(frontend.get_max_mem_slots().unwrap(), 509);
    frontend
        .set_mem_table(&[VhostUserMemoryRegionInfo {
            guest_phys_addr: 0,
            memory_size: MEMORY,
            userspace_addr: USER,
            mmap_offset: 0,
            mmap_handle: guest.memfd.as_raw_fd(),
        }])
        .unwrap();

    let kicks = [EventFd::new(0).unwrap(), EventFd::new(0).unwrap()];
    let call = EventFd::new(0).unwrap();
    for (index, kick) in kicks.iter().enumerate() {
        let at = ring_at(index as u64);
        frontend.set_vring_num(index, SIZE).unwrap();
        frontend
            .set_vring_addr(
                index,
                &VringConfigData {
                    queue_max_size: SIZE,
                    queue_size: SIZE,
                    flags: 0,
                    desc_table_addr: at.descriptor,
                    used_ring_addr: at.device,
                    avail_ring_addr: at.driver,
                    log_addr: None,
                },
            )
            .unwrap();
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
