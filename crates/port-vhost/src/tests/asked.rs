//! Front ends' questions about the device itself: its configuration, a platform's addresses, a byte order, a queue's
//! reset.

use vhost::VhostBackend;
use vhost::vhost_user::message::VhostUserConfigFlags;
use vhost::vhost_user::{Frontend, VhostUserFrontend, VhostUserProtocolFeatures};
use weir_vhost_user::{ConfigSpace, Payload, Request, VringState};

use super::session::stopped_with;
use super::*;

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
    let (ours, _theirs) = UnixStream::pair().unwrap();
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
fn a_virtual_iommu_is_refused_and_says_what_to_change() {
    let switch = Switch::new();
    let (guest, set_up) = on_a_platform(&switch, true);
    assert!(set_up.is_err());
    stopped_with(&guest.port, "the VM has a virtual IOMMU");
    // This front end shows its virtual IOMMU only later.
    let (mut guest, set_up) = on_a_platform(&switch, false);
    set_up.unwrap();
    assert!(guest.front.command(Request::IotlbMsg, &[0; 32], &[]).is_err());
    stopped_with(&guest.port, "`iommu_platform=on`");
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
const RING_BYTES: u32 = 0x3000;

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
