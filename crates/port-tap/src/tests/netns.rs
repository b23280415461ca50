//! Tests with a real TAP, in their own network namespace. They need root. Without root, each of
//! them counts as skipped.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::Command;

use weir_testing::{ip, soon};

use super::*;
use crate::{LinkError, TapError};

fn in_new_network<T: Send>(body: impl FnOnce() -> T + Send) -> Option<T> {
    let why = "a TAP and a network namespace";
    weir_testing::in_new_network(why, body)
}

fn open(name: &str, queues: usize, mtu: Option<u16>) -> Result<Tap, TapError> {
    Tap::open(&TapOptions { name: name.into(), queues, mtu, mac: None })
}

/// Adds `tap` to `engine` and starts it.
fn plug(engine: &Engine, tap: Tap) -> (PortId, Arc<FramePort>, Arc<PortCounters>) {
    let mut its_counters = None;
    let added = engine.add_port(PortConfig::uplink(), |_, counters| {
        its_counters = Some(Arc::clone(&counters));
        Arc::new(FramePort::new(tap, counters))
    });
    let (id, port) = added.unwrap();
    port.start(engine, id).unwrap();
    (id, port, its_counters.unwrap())
}

/// A TAP `weir0` at 10.0.0.1/24 whose neighbour 10.0.0.2 is known, on a switch with a fake TAP of these offloads.
struct Uplink {
    engine: Arc<Engine>,
    port: Arc<FramePort>,
    counters: Arc<PortCounters>,
    guest: OwnedFd,
    mac: Mac,
}

impl Uplink {
    fn new(queues: usize, guest_offloads: OffloadCaps) -> Self {
        let tap = open("weir0", queues, None).unwrap();
        ip("address add 10.0.0.1/24 dev weir0");

        ip(&format!("neighbour add 10.0.0.2 lladdr {GUEST} dev weir0"));
        let engine = Engine::start(1).unwrap();
        let mac = tap.info().mac;
        // The guest comes first: the host sends as soon as the link is up, and a burst under way sees the ports that
        // there were at its beginning.
        let (fake, mut guest) = fake_tap(1, guest_offloads);
        plug(&engine, fake);
        let (_, port, counters) = plug(&engine, tap);
        Self { engine, port, counters, guest: guest.remove(0), mac }
    }

    /// The guest's next UDP frame: the host also sends frames of its own.
    fn receive_udp(&self) -> (VnetHdr, Vec<u8>) {
        loop {
            let (header, frame) = receive_soon(&self.guest).expect("a UDP frame");
            if frame[12..14] == [8, 0] && frame[23] == 17 && frame[6..12] == self.mac.0 {
                return (header, frame);
            }
        }
    }
}

#[test]
fn root_a_tap_whose_queues_are_kept_outlives_its_weir() {
    in_new_network(|| {
        for queues in [1, 2] {
            let options = TapOptions { name: "weir0".into(), queues, mtu: None, mac: None };
            let tap = Tap::open(&options).unwrap();
            ip("address add 10.0.0.1/24 dev weir0");
            let keep = |tap: &Tap| -> Vec<OwnedFd> {
                tap.queues().iter().map(|queue| queue.try_clone().unwrap()).collect()
            };
            let kept = keep(&tap);
            drop(tap);
            let tap = Tap::go_on(&options, kept).unwrap();
            assert!(ip("address show dev weir0").contains("10.0.0.1/24"), "it is the same TAP");
            // Queues of another TAP, and too few queues, are not taken for its own.
            let other = open("other0", queues, None).unwrap();
            let foreign =
                Tap::go_on(&TapOptions { name: "third0".into(), ..options }, keep(&other));
            assert_eq!(foreign.unwrap().info().name, "third0");
            drop(tap);
        }
        assert!(
            Command::new("ip").args(["link", "show", "weir0"]).output().unwrap().stdout.is_empty()
        );
    });
}

#[test]
fn root_a_tap_is_made_as_asked_and_goes_with_weir() {
    in_new_network(|| {
        let tap = open("weir0", 2, Some(9000)).unwrap();
        let link = ip("-d link show dev weir0");
        let info = tap.info();
        assert!(link.contains("mtu 9000") && link.contains(",UP"), "{link}");
        assert!(link.contains("vnet_hdr on multi_queue numqueues 2"), "{link}");
        assert!(link.contains(&info.mac.to_string()), "{link}");
        assert_eq!((info.mtu, info.queues, info.name.as_str()), (9000, 2, "weir0"));
        assert!(info.offloads.contains(OffloadCaps::TSO4 | OffloadCaps::TSO6));
        drop(tap);
        assert!(!ip("link").contains("weir0"));
    });
}

#[test]
fn root_a_tap_that_weir_makes_has_the_address_that_it_asked_for_each_time() {
    in_new_network(|| {
        let wanted = Mac([2, 0, 0, 0, 0x5e, 1]);
        let options = |mac| TapOptions { name: "weir0".into(), queues: 2, mtu: None, mac };
        for _ in 0..2 {
            let tap = Tap::open(&options(Some(wanted))).unwrap();
            assert_eq!(tap.info().mac, wanted);
            assert!(ip("link show dev weir0").contains(&wanted.to_string()));
        }
        // A TAP that another weir has left stays as it is, and so does one that was made beforehand.
        let tap = Tap::open(&options(None)).unwrap();
        let (left, its) = (tap.info().mac, tap.queues().iter());
        let kept = its.map(|queue| queue.try_clone().unwrap()).collect();
        drop(tap);
        let tap = Tap::go_on(&options(Some(wanted)), kept).unwrap();
        assert_eq!(tap.info().mac, left);
        drop(tap);
        ip("tuntap add dev weir0 mode tap multi_queue");
        ip("link set dev weir0 address 02:00:00:00:00:07");
        let tap = Tap::open(&options(Some(wanted))).unwrap();
        assert_eq!(tap.info().mac, Mac([2, 0, 0, 0, 0, 7]));
    });
}

#[test]
fn root_a_tap_made_beforehand_is_used_and_stays() {
    in_new_network(|| {
        ip("tuntap add dev many0 mode tap multi_queue");
        ip("link set dev many0 mtu 1400 up");
        assert_eq!(open("many0", 2, Some(1400)).unwrap().info().mtu, 1400);
        assert_eq!(open("many0", 1, None).unwrap().info().queues, 1);
        ip("tuntap add dev one0 mode tap");
        assert_eq!(open("one0", 1, None).unwrap().info().queues, 1);
        assert!(ip("link").contains("many0") && ip("link").contains("one0"));
    });
}

#[test]
fn root_a_tap_that_another_process_lets_go_in_a_moment_is_attached() {
    in_new_network(|| {
        ip("tuntap add dev one0 mode tap");
        ip("tuntap add dev many0 mode tap multi_queue");
        for name in ["one0", "many0"] {
            // A machine with other work may take long to end the thread.
            let attached = (0..10).any(|_| {
                let held = open(name, 1, None).unwrap();
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        std::thread::sleep(Duration::from_millis(20));
                        drop(held);
                    });
                    open(name, 1, None).is_ok()
                })
            });
            assert!(attached, "{name}");
        }
    });
}

#[test]
fn root_a_tap_that_does_not_fit_is_refused_with_help() {
    in_new_network(|| {
        ip("tuntap add dev one0 mode tap");
        let error = open("one0", 2, None).unwrap_err();
        assert!(matches!(error, TapError::WrongKind { queues: 2, .. }), "{error:?}");
        let make = "`ip tuntap add dev one0 mode tap multi_queue vnet_hdr`";
        assert!(error.help().unwrap().contains(make));
        assert!(matches!(open("lo", 1, None), Err(TapError::WrongKind { .. })));

        let held = open("one0", 1, None).unwrap();
        assert!(matches!(open("one0", 1, None), Err(TapError::Busy { .. })));
        drop(held);

        // The kernel itself would let a second process attach a queue and get a part of the frames.
        ip("tuntap add dev many0 mode tap multi_queue");
        for (first, second) in [(1, 1), (1, 2), (2, 1)] {
            let held = open("many0", first, None).unwrap();
            let error = open("many0", second, None).unwrap_err();
            assert!(matches!(error, TapError::Busy { .. }), "{first} and {second}: {error:?}");
            drop(held);
            drop(open("many0", second, None).unwrap());
        }

        let error = open("weir0", 1, Some(65_535)).unwrap_err();
        assert!(matches!(error, TapError::Link(LinkError::Mtu { mtu: 65_535, .. })), "{error:?}");
        assert!(!ip("link").contains("weir0"), "gone again");
    });
}

#[test]
fn root_the_hosts_checksums_are_completed_for_a_guest_without_csum() {
    in_new_network(|| {
        let uplink = Uplink::new(1, OffloadCaps::NONE);
        let host = UdpSocket::bind("10.0.0.1:0").unwrap();
        for len in [0, 1, 100, 1472] {
            let payload: Vec<u8> = (0..len).map(|n| n as u8).collect();
            host.send_to(&payload, "10.0.0.2:9").unwrap();
            let (header, frame) = uplink.receive_udp();
            assert_eq!(header, VnetHdr::default());
            assert_eq!(checked_payload(&frame), payload);
        }
    });
}

#[test]
fn root_the_hosts_checksums_are_left_to_a_guest_with_csum() {
    in_new_network(|| {
        let uplink = Uplink::new(1, ALL);
        let host = UdpSocket::bind("10.0.0.1:0").unwrap();
        host.send_to(&[7; 100], "10.0.0.2:9").unwrap();
        let (header, frame) = uplink.receive_udp();
        assert_eq!(header.flags, vnet::F_NEEDS_CSUM);
        assert_eq!((header.csum_start, header.csum_offset), (34, 6));
        assert_eq!(frame[42..], [7; 100]);
    });
}

#[test]
fn root_the_host_gets_frames_with_and_without_offloads() {
    in_new_network(|| {
        let uplink = Uplink::new(2, ALL);
        let host = UdpSocket::bind("10.0.0.1:5000").unwrap();
        host.set_read_timeout(Some(PATIENCE)).unwrap();
        let to = (uplink.mac, HOST_IP);
        let whole = udp(to, (GUEST, GUEST_IP), 5000, &[1; 1000]);
        send(&uplink.guest, &VnetHdr::default(), &whole);

        let mut partial = udp(to, (GUEST, GUEST_IP), 5000, &[2; 1001]);
        let sum = pseudo_header_v4(GUEST_IP, HOST_IP, 17, 1009).folded();
        partial[40..42].copy_from_slice(&sum.to_be_bytes());
        let header = VnetHdr {
            flags: vnet::F_NEEDS_CSUM,
            csum_start: 34,
            csum_offset: 6,
            ..VnetHdr::default()
        };
        send(&uplink.guest, &header, &partial);

        let mut datagram = [0; 2000];
        for expected in [&[1; 1000][..], &[2; 1001]] {
            let len = host.recv(&mut datagram).unwrap();
            assert_eq!(&datagram[..len], expected);
        }
        assert_eq!(uplink.counters.drops().count(), 0);
        let frames = || uplink.counters.rx.iter().map(|rx| rx.frames.get()).sum::<u64>();
        soon("both are counted", || frames() == 2);
    });
}

#[test]
fn root_a_link_that_is_down_drops_frames_and_comes_back() {
    in_new_network(|| {
        let uplink = Uplink::new(1, ALL);
        let host = UdpSocket::bind("10.0.0.1:5000").unwrap();
        host.set_read_timeout(Some(PATIENCE)).unwrap();
        let frame = udp((uplink.mac, HOST_IP), (GUEST, GUEST_IP), 5000, &[1; 10]);
        ip("link set dev weir0 down");
        send(&uplink.guest, &VnetHdr::default(), &frame);
        soon("the frame is counted", || {
            uplink.counters.drops().next() == Some(("device_error", 1))
        });
        ip("link set dev weir0 up");
        send(&uplink.guest, &VnetHdr::default(), &frame);
        assert_eq!(host.recv(&mut [0; 100]).unwrap(), 10);
        assert_eq!(uplink.port.failure(), None);
    });
}

#[test]
fn root_a_deleted_interface_stops_its_port_only() {
    in_new_network(|| {
        let uplink = Uplink::new(2, ALL);
        ip("link delete weir0");
        soon("the port stops", || uplink.port.failure().is_some());
        assert!(uplink.port.failure().unwrap().contains("weir0"), "{:?}", uplink.port);
        // The switch continues.
        let (fake, other) = fake_tap(1, ALL);
        plug(&uplink.engine, fake);
        send(&uplink.guest, &VnetHdr::default(), &frame(1, 60));
        assert_eq!(receive_soon(&other[0]), Some((VnetHdr::default(), frame(1, 60))));
    });
}

#[test]
fn root_jumbo_frames_pass_whole_both_ways() {
    in_new_network(|| {
        // Without offloads a frame longer than the usual MTU is one frame, and is not cut.
        let uplink = Uplink::new(1, OffloadCaps::NONE);
        ip("link set dev weir0 mtu 9000");
        let host = UdpSocket::bind("10.0.0.1:5000").unwrap();
        host.set_read_timeout(Some(PATIENCE)).unwrap();
        let payload: Vec<u8> = (0..9000 - 28).map(|n| (n * 3) as u8).collect();
        host.send_to(&payload, "10.0.0.2:5000").unwrap();
        let (_, frame) = uplink.receive_udp();
        assert_eq!(frame.len(), 9014);
        assert_eq!(checked_payload(&frame), payload);

        let frame = udp((uplink.mac, HOST_IP), (GUEST, GUEST_IP), 5000, &payload);
        send(&uplink.guest, &VnetHdr::default(), &frame);
        let mut datagram = [0; 10_000];
        let len = host.recv(&mut datagram).unwrap();
        assert!(datagram[..len] == payload);
    });
}

/// Two hosts, each in its own namespace with a two-queue TAP, on one switch. A TCP connection between them carries all
/// bytes, in packets far larger than the MTU.
#[test]
fn root_tcp_between_two_taps_is_whole_and_unsegmented() {
    let Some((sender, _)) = tcp_between_two_taps("") else { return };
    assert!(bytes_per_frame(&sender.tx) > 5_000);
}

/// A TCP transfer between two TAPs, with a sender that cuts segments itself.
#[test]
fn root_segments_of_a_host_without_tso_reach_another_merged() {
    let Some((sender, receiver)) = tcp_between_two_taps("gso_max_segs 1") else { return };
    assert!(bytes_per_frame(&sender.tx) <= 1514);
    assert!(receiver.gro.get() > 0);
    assert!(bytes_per_frame(&receiver.rx) <= 1514, "frames are counted as they came");
}

fn bytes_per_frame(queues: &[weir_engine::stats::QueueCounters]) -> u64 {
    let frames: u64 = queues.iter().map(|queue| queue.frames.get()).sum();
    queues.iter().map(|queue| queue.bytes.get()).sum::<u64>() / frames
}

/// Sends 16 MiB from one host to another and checks that they arrive; returns both TAPs' counters. `sender` is for `ip
/// link set` of the sending one.
fn tcp_between_two_taps(sender: &str) -> Option<(Arc<PortCounters>, Arc<PortCounters>)> {
    const LEN: usize = 16 << 20;
    let engine = Engine::start(2).unwrap();
    let make = |address: &str, link: &str| {
        let tap = open("weir0", 2, None).unwrap();
        if !link.is_empty() {
            ip(&format!("link set dev weir0 {link}"));
        }
        ip(&format!("address add {address}/24 dev weir0"));
        plug(&engine, tap)
    };
    let there =
        in_new_network(|| (make("10.0.0.1", ""), TcpListener::bind("10.0.0.1:80").unwrap()));
    let here =
        in_new_network(|| (make("10.0.0.2", sender), TcpStream::connect("10.0.0.1:80").unwrap()));
    let ((receiver, listener), (sender, mut stream)) = (there?, here?);
    let sent: Vec<u8> =
        (0..LEN as u32).map(|n| (n.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect();
    let mut got = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            stream.write_all(&sent).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
        });
        listener.accept().unwrap().0.read_to_end(&mut got).unwrap();
    });
    assert!(got == sent, "{} of {LEN} bytes", got.len());
    assert_eq!(receiver.1.failure(), None);
    assert_eq!(receiver.2.drops().collect::<Vec<_>>(), []);
    Some((sender.2, receiver.2))
}
