//! A socket pair of `SOCK_SEQPACKET` moves whole messages both ways without blocking, as a TAP's queue does. So most
//! tests of the port use one, without privileges. `netns` has the tests that need a real TAP.

mod netns;
mod side_by_side;

use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use weir_engine::burst::{Burst, Scratch};
use weir_engine::{Engine, Outgoing, Port, PortCounters, Take, Taken, clock};
use weir_fabric::{PortConfig, PortId};
use weir_limits::{FRAME_LEN_MAX, PARKED_NS_MAX, TAP_BURST_MAX, TAP_PARKED_MAX, TAP_SLOTS};
use weir_policy::steering::{Steering, Visit};
use weir_wire::checksum::pseudo_header_v4;
use weir_wire::{Mac, OffloadCaps, VnetHdr, vnet};

use crate::error::NameProblem;
use crate::{FramePort, InterfaceName, NameError, Tap, TapInfo, TapOptions, UplinkPort};

const ALL: OffloadCaps = OffloadCaps::CSUM
    .union(OffloadCaps::TSO4)
    .union(OffloadCaps::TSO6)
    .union(OffloadCaps::TSO_ECN)
    .union(OffloadCaps::USO);
const HOST: Mac = Mac([2, 0, 0, 0, 0, 1]);
const GUEST: Mac = Mac([2, 0, 0, 0, 0, 2]);
const HOST_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const GUEST_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// The longest wait before a test gives up.
const PATIENCE: Duration = Duration::from_secs(60);

fn port_id(number: u16) -> PortId {
    PortId::new(number).unwrap()
}

/// A port whose TAP is made of socket pairs, and their other ends.
fn fake_tap(queues: usize, offloads: OffloadCaps) -> (Tap, Vec<OwnedFd>) {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let pair = || {
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
    };
    let (ours, theirs) = (0..queues).map(|_| pair()).unzip();
    let info = TapInfo {
        name: "fake0".into(),
        is_persistent: false,
        mac: HOST,
        mtu: 1500,
        queues,
        offloads,
    };
    (Tap { info, queues: ours, steering: Steering::new(queues).unwrap() }, theirs)
}

/// A port that a test drives by hand.
struct Rig {
    port: FramePort,
    host: Vec<OwnedFd>,
    counters: Arc<PortCounters>,
    scratch: Scratch,
}

impl Rig {
    fn new(queues: usize) -> Self {
        let counters = Arc::new(PortCounters::default());
        let (tap, host) = fake_tap(queues, ALL);
        let port = FramePort::new(tap, Arc::clone(&counters));
        Self { port, host, counters, scratch: Scratch::default() }
    }

    /// The host sends `frame` on queue 0.
    fn send(&self, frame: &[u8]) {
        send(&self.host[0], &VnetHdr::default(), frame);
    }

    fn take(&mut self, what: Take, now_ns: u64, mut forward: impl FnMut(&mut Burst<'_>)) -> Taken {
        self.port.take(0, what.at(now_ns), &mut self.scratch, &mut |burst| forward(burst))
    }

    /// Takes from queue 0, and returns the contents of the frames.
    fn take_all(&mut self, what: Take, now_ns: u64) -> (Taken, Vec<Vec<u8>>) {
        let mut frames = Vec::new();
        let taken = self.take(what, now_ns, |burst| frames = contents(burst));
        (taken, frames)
    }

    fn drops(&self) -> Vec<(&'static str, u64)> {
        self.counters.drops().collect()
    }
}

fn send(fd: &OwnedFd, header: &VnetHdr, frame: &[u8]) {
    rustix::io::write(fd, &[&header.to_bytes(), frame].concat()).unwrap();
}

/// The next frame that `fd` has, with its header.
fn receive(fd: &OwnedFd) -> Option<(VnetHdr, Vec<u8>)> {
    let mut bytes = vec![0; VnetHdr::LEN + FRAME_LEN_MAX as usize];
    match rustix::io::read(fd, &mut bytes) {
        Ok(len) => {
            let frame = bytes[VnetHdr::LEN..len].to_vec();
            Some((VnetHdr::from_bytes(bytes.first_chunk().unwrap()), frame))
        }
        Err(Errno::AGAIN) => None,
        Err(error) => panic!("{error}"),
    }
}

/// The next frame, which can take a moment.
fn receive_soon(fd: &OwnedFd) -> Option<(VnetHdr, Vec<u8>)> {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        if let Some(received) = receive(fd) {
            return Some(received);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    None
}

/// Head and payload of every frame.
fn contents(burst: &Burst<'_>) -> Vec<Vec<u8>> {
    let content = |frame| {
        let frame: &weir_engine::burst::Frame = frame;
        let mut bytes = frame.head.as_slice().to_vec();
        for piece in burst.payload(frame) {
            let start = bytes.len();
            bytes.resize(start + piece.len(), 0);
            piece.read(&mut bytes[start..]);
        }
        bytes
    };
    burst.frames().iter().map(content).collect()
}

/// A frame of an experimental ethertype with a number in it.
fn frame(number: u16, len: usize) -> Vec<u8> {
    let mut frame = [&GUEST.0[..], &HOST.0, &[0x88, 0xb5], &number.to_be_bytes()].concat();
    frame.extend((frame.len()..len).map(|at| (at * 31 + usize::from(number)) as u8));
    frame
}

fn number(frame: &[u8]) -> u16 {
    u16::from_be_bytes([frame[14], frame[15]])
}

fn park_all(port: PortId) -> impl FnMut(&mut Burst<'_>) {
    move |burst| {
        for frame in 0..burst.frames().len() as u16 {
            assert!(burst.park(frame, port), "frame {frame} may wait");
        }
    }
}

#[test]
fn frames_arrive_whole_and_the_empty_queue_is_armed() {
    let mut rig = Rig::new(1);
    let sent = [frame(1, 60), frame(2, 1514), frame(3, 60_000)];
    sent.iter().for_each(|frame| rig.send(frame));
    let (taken, got) = rig.take_all(Take::New, 7);
    assert_eq!(got, sent);
    assert_eq!(taken, Taken { frames: 3, ..Taken::default() });
    assert!(!rig.port.arm_tx(0), "the next frame gives a kick");
    assert_eq!(rig.counters.tx[0].frames.get(), 3);
    assert_eq!(rig.counters.tx[0].bytes.get(), 60 + 1514 + 60_000);
}

#[test]
fn a_burst_is_bounded_and_says_that_there_is_more() {
    let mut rig = Rig::new(1);
    let sent = TAP_BURST_MAX + 8;
    (0..sent).for_each(|n| rig.send(&frame(n as u16, 60)));
    let (taken, got) = rig.take_all(Take::New, 0);
    assert_eq!((taken.frames, got.len(), taken.more), (TAP_BURST_MAX, TAP_BURST_MAX, true));
    assert!(rig.port.arm_tx(0), "no kick would come for those that are left");
    let (taken, got) = rig.take_all(Take::New, 0);
    assert_eq!((taken.frames, got.len(), taken.more), (8, 8, false));
}

#[test]
fn waiting_frames_keep_their_bytes_and_their_order() {
    let mut rig = Rig::new(1);
    let full = port_id(5);
    (0..3).for_each(|n| rig.send(&frame(n, 700)));
    let taken = rig.take(Take::New, 1000, |burst| {
        // The frames are parked per receive queue, so not in the order in which they came.
        assert!(burst.park(2, full) && burst.park(0, full));
    });
    assert_eq!((taken.parked, waits_from_now(&taken)), (2, true));
    assert_eq!(rig.counters.parked.get(), 2);

    // Other frames pass meanwhile, through more buffers than there are.
    for n in 0..2 * TAP_SLOTS as u16 {
        rig.send(&frame(100 + n, 700));
        let taken = rig.take(Take::New, 2000, |burst| {
            assert_eq!(burst.room.blocked, [full], "newer frames must not overtake");
            assert_eq!(contents(burst), [frame(100 + n, 700)]);
        });
        assert_eq!(taken.parked, 2);
    }

    let (taken, got) = rig.take_all(Take::Parked(None), 3000);
    assert_eq!(got, [frame(0, 700), frame(2, 700)]);
    assert_eq!((taken.parked, taken.parked_until), (0, None));
    assert_eq!(rig.counters.parked.get(), 2, "a retry is not another wait");
    assert_eq!(rig.drops(), []);
}

/// Frames wait from the moment at which they found their receiver full, however late their worker
/// was.
fn waits_from_now(taken: &Taken) -> bool {
    let now_ns = clock::now_ns();
    (now_ns..=now_ns + PARKED_NS_MAX).contains(&taken.parked_until.unwrap())
}

#[test]
fn frames_parked_again_keep_the_time_of_their_arrival() {
    let mut rig = Rig::new(1);
    rig.send(&frame(1, 60));
    let before = rig.take(Take::New, 50, park_all(port_id(1)));
    assert!(waits_from_now(&before));
    let taken = rig.take(Take::Parked(None), 1000, |burst| {
        assert_eq!(burst.frames()[0].arrived_ns, 50);
        park_all(port_id(1))(burst);
    });
    assert_eq!((taken.parked, taken.parked_until), (1, before.parked_until), "no new wait");
}

#[test]
fn frames_that_waited_too_long_are_dropped_and_counted() {
    let mut rig = Rig::new(1);
    let [first, _second] = [0, 10].map(|now_ns| {
        rig.send(&frame(now_ns as u16, 60));
        rig.take(Take::New, now_ns, park_all(port_id(1)))
    });
    let (taken, got) = rig.take_all(Take::Parked(None), first.parked_until.unwrap());
    assert_eq!(got, [frame(10, 60)], "only the first has waited that long");
    assert_eq!(taken.parked, 0);
    assert_eq!(rig.drops(), [("rx_waited_too_long", 1)]);
}

#[test]
fn receivers_that_take_nothing_do_not_stop_the_others() {
    let mut rig = Rig::new(1);
    let mut waiting = 0;
    while waiting < TAP_PARKED_MAX {
        (0..TAP_BURST_MAX).for_each(|n| rig.send(&frame(n as u16, 60)));
        waiting = rig.take(Take::New, 0, park_all(port_id(1))).parked;
    }
    for n in 0..TAP_BURST_MAX as u16 {
        rig.send(&frame(n, 60));
    }
    let mut got = 0;
    let taken = rig.take(Take::New, 0, |burst| {
        assert!(!burst.park(0, port_id(1)), "no room to wait");
        got = burst.frames().len();
    });
    assert_eq!((got, taken.frames, taken.parked), (TAP_BURST_MAX, TAP_BURST_MAX, TAP_PARKED_MAX));
    // All of them come in one burst once the receiver has room.
    assert_eq!(rig.take_all(Take::Parked(None), 1).1.len(), TAP_PARKED_MAX);
}

#[test]
fn frames_that_weir_does_not_move_are_counted_and_cost_no_buffer() {
    let mut rig = Rig::new(1);
    let gso = VnetHdr { gso_type: vnet::GSO_TCPV4, gso_size: 1000, flags: 1, ..VnetHdr::default() };
    let csum = VnetHdr { flags: vnet::F_NEEDS_CSUM, csum_start: 14, csum_offset: 99, ..gso };
    let csum = VnetHdr { gso_type: vnet::GSO_NONE, ..csum };
    for _ in 0..TAP_SLOTS {
        rig.send(&frame(0, 13)[..13]);
        rig.send(&frame(0, FRAME_LEN_MAX as usize + 1));
        send(&rig.host[0], &VnetHdr { csum_start: 14, ..gso }, &frame(0, 500));
        send(&rig.host[0], &csum, &frame(0, 60));
        rig.send(&frame(9, FRAME_LEN_MAX as usize));
        let (taken, got) = rig.take_all(Take::New, 0);
        assert_eq!((taken.frames, taken.more), (5, false));
        assert_eq!(got, [frame(9, FRAME_LEN_MAX as usize)], "the longest frame there is");
    }
    let each = TAP_SLOTS as u64;
    let expected = ["frame_too_short", "frame_too_long", "gso_headers", "device_error"];
    assert_eq!(rig.drops(), expected.map(|reason| (reason, each)));
}

#[test]
fn flows_return_on_the_queue_they_came_from() {
    let mut rig = Rig::new(2);
    let flow = |port| udp((GUEST, GUEST_IP), (HOST, HOST_IP), port, &[0; 20]);
    let hash = |port| weir_engine::symmetric_hash(&flow(port));
    let queue_for = |rig: &Rig, port| {
        let (steering, mut visit) = (rig.port.steering().unwrap(), Visit::default());
        let queue = steering.queue_for(hash(port), &mut visit, &rig.port);
        steering.leave(visit, &rig.port);
        queue
    };
    let port = (1000..).find(|port| queue_for(&rig, *port) == 0).unwrap();
    send(&rig.host[1], &VnetHdr::default(), &flow(port));
    rig.port.take(1, Take::New.at(0), &mut rig.scratch, &mut |_| {});
    assert_eq!(queue_for(&rig, port), 1);
    assert_eq!(rig.counters.tx[1].frames.get(), 1);
}

#[test]
fn delivered_frames_are_written_from_their_pieces() {
    let mut rig = Rig::new(1);
    let other = Rig::new(2);
    let sent = [frame(1, 60), frame(2, 3000)];
    sent.iter().for_each(|frame| rig.send(frame));
    let delivered = |burst: &mut Burst<'_>| {
        let frames = [Outgoing::untagged(0), Outgoing::untagged(1)];
        let delivered = other.port.deliver(1, burst, &frames);
        assert_eq!((delivered.frames, delivered.hold_until), (2, None));
    };
    rig.take(Take::New, 0, delivered);
    for frame in sent {
        assert_eq!(receive(&other.host[1]), Some((VnetHdr::default(), frame)));
    }
    assert_eq!(receive(&other.host[0]), None);
    assert_eq!(other.counters.rx[1].frames.get(), 2);
    assert_eq!(other.counters.rx[1].bytes.get(), 3060);
}

#[test]
fn segments_of_one_burst_are_written_as_one_packet() {
    let mut rig = Rig::new(1);
    let other = Rig::new(1);
    let payload: Vec<u8> = (0..4000).map(|n| (n * 5) as u8).collect();
    for (at, part) in (0..).step_by(1000).zip(payload.chunks(1000)) {
        rig.send(&tcp_segment((GUEST, GUEST_IP), (HOST, HOST_IP), 1_000 + at, part));
    }
    rig.take(Take::New, 0, |burst| {
        let frames: Vec<_> = (0..4).map(Outgoing::untagged).collect();
        assert_eq!(other.port.deliver(0, burst, &frames).frames, 4);
    });
    let (header, packet) = tcp((GUEST, GUEST_IP), (HOST, HOST_IP), &payload, 1000);
    assert_eq!(receive(&other.host[0]), Some((header, packet)));
    assert_eq!(receive(&other.host[0]), None);
    let counters = &other.counters;
    assert_eq!((counters.gro.get(), counters.rx[0].frames.get()), (1, 4));
    assert_eq!(counters.rx[0].bytes.get(), 4 * 1054);
}

#[test]
fn a_full_device_is_told_from_one_that_refuses() {
    let mut rig = Rig::new(1);
    let other = Rig::new(1);
    let mut delivered = 0;
    while other.drops().is_empty() {
        (0..4).for_each(|n| rig.send(&frame(n, 9000)));
        rig.take(Take::New, 0, |burst| {
            let frames: Vec<_> = (0..4).map(Outgoing::untagged).collect();
            let result = other.port.deliver(0, burst, &frames);
            assert_eq!((result.frames, result.worth_waiting), (4, false));
        });
        delivered += 4;
    }
    let received = std::iter::from_fn(|| receive(&other.host[0])).count() as u64;
    let sent = (&other.counters.rx[0].frames, &other.counters.rx[0].bytes);
    assert_eq!((sent.0.get(), sent.1.get()), (received, 9000 * received));
    assert_eq!(other.drops(), [("rx_ring_full", delivered - received)]);

    drop(other.host);
    rig.send(&frame(0, 60));
    rig.take(Take::New, 0, |burst| {
        let result = other.port.deliver(0, burst, &[Outgoing::untagged(0)]);
        assert_eq!(result.frames, 1, "dealt with");
    });
    assert!(other.counters.drops().any(|drop| drop == ("device_error", 1)));
    assert_eq!(other.counters.rx[0].frames.get(), received);
}

#[test]
fn a_device_that_goes_stops_the_port_and_says_so() {
    let mut rig = Rig::new(2);
    rig.send(&frame(1, 60));
    rig.take(Take::New, 0, park_all(port_id(1)));
    assert_eq!((rig.port.rx_queues(), rig.port.failure()), (2, None));
    rig.host.clear();
    assert_eq!(rig.take(Take::New, 0, |_| {}), Taken::default());
    let failure = rig.port.failure().unwrap();
    assert!(failure.starts_with("interface `fake0` is gone: "), "{failure}");
    assert_eq!(rig.port.rx_queues(), 0);
    assert!(!rig.port.arm_tx(0), "no more bursts");
    assert_eq!(rig.drops(), [("tx_disabled", 1)], "what waited is counted");
}

#[test]
fn a_failed_port_lets_go_of_what_waits() {
    let mut rig = Rig::new(1);
    rig.send(&frame(1, 60));
    rig.take(Take::New, 0, park_all(port_id(1)));
    rig.port.fail("first");
    rig.port.fail("second");
    assert_eq!(rig.port.failure(), Some("first"));
    let taken = rig.take(Take::Parked(None), 0, |_| panic!("forwarded"));
    assert_eq!(taken, Taken::default());
    assert_eq!(rig.drops(), [("tx_disabled", 1)]);
}

#[derive(Clone, Debug)]
enum Step {
    /// The host sends this many frames to this receiver.
    Send(u16, u16),
    /// A burst passes while the receivers of the set bits are full.
    Take(Take, u16),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..3u16, 1..40u16).prop_map(|(to, frames)| Step::Send(to, frames)),
        (0..8u16).prop_map(|full| Step::Take(Take::New, full)),
        (0..8u16).prop_map(|full| Step::Take(Take::Parked(None), full)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Frames between the TAP and three receivers that are full now and then: each frame arrives or is dropped, those
    /// of one receiver in order, and no buffer is lost.
    #[test]
    fn every_frame_arrives_in_order_or_is_dropped(steps in proptest::collection::vec(step(), 1..60)) {
        let mut rig = Rig::new(1);
        let mut sent = 0;
        let mut dropped = 0;
        let mut arrived: [Vec<u16>; 3] = Default::default();
        let (in_socket, steps) = (std::cell::Cell::new(0), steps.into_iter());
        let emptying = (0..50).flat_map(|_| [Step::Take(Take::Parked(None), 0), Step::Take(Take::New, 0)]);
        for step in steps.chain(emptying) {
            let Step::Take(what, full) = step else {
                let Step::Send(to, frames) = step else { unreachable!() };
                for _ in 0..frames.min(100 - in_socket.get()) {
                    // The remainder of the number gives the receiver.
                    rig.send(&frame(sent * 3 + to, 200));
                    sent += 1;
                    in_socket.set(in_socket.get() + 1);
                }
                continue;
            };
            let taken = rig.take(what, 0, |burst| {
                for (index, frame) in contents(burst).iter().enumerate() {
                    let to = number(frame) % 3;
                    let waits = full & 1 << to != 0 || burst.room.blocked.contains(&port_id(to));
                    if !waits {
                        arrived[usize::from(to)].push(number(frame));
                    } else if !burst.park(index as u16, port_id(to)) {
                        dropped += 1;
                    }
                }
            });
            if what == Take::New {
                in_socket.set(in_socket.get() - taken.frames as u16);
            }
            prop_assert!(taken.parked <= TAP_PARKED_MAX);
            prop_assert_eq!(rig.port.free_slots(0), TAP_SLOTS - taken.parked);
        }
        for frames in &arrived {
            prop_assert!(frames.is_sorted(), "{:?}", frames);
        }
        let arrived: usize = arrived.iter().map(Vec::len).sum();
        prop_assert_eq!(arrived + dropped, usize::from(sent));
        prop_assert_eq!(rig.port.free_slots(0), TAP_SLOTS);
    }
}

/// A station's MAC and IP address.
type Station = (Mac, Ipv4Addr);

fn udp(to: Station, from: Station, port: u16, payload: &[u8]) -> Vec<u8> {
    let builder = etherparse::PacketBuilder::ethernet2(from.0.0, to.0.0)
        .ipv4(from.1.octets(), to.1.octets(), 64)
        .udp(port, port);
    let mut frame = Vec::new();
    builder.write(&mut frame, payload).unwrap();
    frame
}

/// A TCP segment as on a wire.
fn tcp_segment(to: Station, from: Station, seq: u32, payload: &[u8]) -> Vec<u8> {
    let builder = etherparse::PacketBuilder::ethernet2(from.0.0, to.0.0)
        .ipv4(from.1.octets(), to.1.octets(), 64)
        .tcp(40_000, 80, seq, 8_000)
        .ack(1);
    let mut frame = Vec::new();
    builder.write(&mut frame, payload).unwrap();
    frame
}

/// A TCP segment whose checksum is left to the receiver, to be cut into segments of `mss` bytes if that is set.
fn tcp(to: Station, from: Station, payload: &[u8], mss: u16) -> (VnetHdr, Vec<u8>) {
    let mut frame = tcp_segment(to, from, 1_000, payload);
    let partial = pseudo_header_v4(from.1, to.1, 6, (20 + payload.len()) as u16).folded();
    frame[34 + 16..34 + 18].copy_from_slice(&partial.to_be_bytes());
    let header = VnetHdr {
        flags: vnet::F_NEEDS_CSUM,
        gso_type: if mss > 0 { vnet::GSO_TCPV4 } else { vnet::GSO_NONE },
        hdr_len: 54,
        gso_size: mss,
        csum_start: 34,
        csum_offset: 16,
        num_buffers: 0,
    };
    (header, frame)
}

/// Checks IPv4's and TCP's or UDP's checksums, and returns the payload.
fn checked_payload(frame: &[u8]) -> Vec<u8> {
    let packet = etherparse::SlicedPacket::from_ethernet(frame).unwrap();
    let Some(etherparse::NetSlice::Ipv4(ip)) = &packet.net else { panic!("not IPv4") };
    let header = ip.header().to_header();
    assert_eq!(header.header_checksum, header.calc_header_checksum());
    match packet.transport.unwrap() {
        etherparse::TransportSlice::Tcp(tcp) => {
            let sum = tcp.calc_checksum_ipv4(header.source, header.destination).unwrap();
            assert_eq!(tcp.checksum(), sum);
            tcp.payload().to_vec()
        }
        etherparse::TransportSlice::Udp(udp) => {
            let sum = udp.to_header().calc_checksum_ipv4_raw(
                header.source,
                header.destination,
                udp.payload(),
            );
            assert_eq!(udp.checksum(), sum.unwrap());
            udp.payload().to_vec()
        }
        _ => panic!("neither TCP nor UDP"),
    }
}

/// Two TAPs of socket pairs on one switch.
fn switch(offloads: [OffloadCaps; 2]) -> (Arc<Engine>, [Arc<FramePort>; 2], [Vec<OwnedFd>; 2]) {
    let engine = Engine::start(1).unwrap();
    let (ports, hosts, _) = switch_on(&engine, offloads);
    (engine, ports, hosts)
}

/// Two TAPs of socket pairs on `engine`, and the numbers of their ports.
fn switch_on(
    engine: &Engine,
    offloads: [OffloadCaps; 2],
) -> ([Arc<FramePort>; 2], [Vec<OwnedFd>; 2], [PortId; 2]) {
    let (mut ports, mut hosts, mut ids) = (Vec::new(), Vec::new(), Vec::new());
    for offloads in offloads {
        let (tap, host) = fake_tap(1, offloads);
        let (id, port) = engine
            .add_port(PortConfig::uplink(), |_, counters| Arc::new(FramePort::new(tap, counters)))
            .unwrap();
        port.start(engine, id).unwrap();
        ports.push(port);
        hosts.push(host);
        ids.push(id);
    }
    (ports.try_into().unwrap(), hosts.try_into().unwrap(), ids.try_into().unwrap())
}

#[test]
fn a_frame_passes_the_switch_with_its_offload_untouched() {
    let (_engine, _, [a, b]) = switch([ALL, ALL]);
    let payload: Vec<u8> = (0..50_000u32).map(|n| n as u8).collect();
    let (header, frame) = tcp((GUEST, GUEST_IP), (HOST, HOST_IP), &payload, 1448);
    send(&a[0], &header, &frame);
    assert_eq!(receive_soon(&b[0]), Some((header, frame)));
}

#[test]
fn a_receiver_without_offloads_gets_segments_with_checksums() {
    let (_engine, _, [a, b]) = switch([ALL, OffloadCaps::NONE]);
    let payload: Vec<u8> = (0..5_000u32).map(|n| n as u8).collect();
    let (header, frame) = tcp((GUEST, GUEST_IP), (HOST, HOST_IP), &payload, 1448);
    send(&a[0], &header, &frame);
    let mut got = Vec::new();
    while got.len() < payload.len() {
        let (header, frame) = receive_soon(&b[0]).expect("the rest of the segments");
        assert_eq!(header, VnetHdr::default());
        got.extend(checked_payload(&frame));
    }
    assert_eq!(got, payload);
}

#[test]
fn a_stopped_port_neither_sends_nor_receives() {
    let (engine, [port, _], [a, b]) = switch([ALL, ALL]);
    port.stop(&engine, port_id(0));
    send(&a[0], &VnetHdr::default(), &frame(1, 60));
    send(&b[0], &VnetHdr::default(), &frame(2, 60));
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!((receive(&a[0]), receive(&b[0])), (None, None));
    // A frame that came meanwhile is not forgotten: a new watch reports it.
    port.start(&engine, port_id(0)).unwrap();
    assert_eq!(receive_soon(&b[0]), Some((VnetHdr::default(), frame(1, 60))));
}

#[test]
fn names_that_linux_refuses_are_refused_with_a_reason() {
    let problem = |name: &str| match InterfaceName::new(name) {
        Err(NameError { problem, .. }) => Some(problem),
        Ok(_) => None,
    };
    assert_eq!(problem("weir0"), None);
    assert_eq!(problem("fifteen-bytes-0"), None);
    assert_eq!(problem("sixteen-bytes-00"), Some(NameProblem::TooLong(16)));
    assert_eq!(problem(""), Some(NameProblem::Empty));
    assert_eq!(problem(".."), Some(NameProblem::Dots));
    for (name, c) in [("a b", ' '), ("a/b", '/'), ("a:b", ':'), ("tap%d", '%'), ("a\0", '\0')] {
        assert_eq!(problem(name), Some(NameProblem::Character(c)));
    }
}

#[test]
fn no_device_is_opened_for_options_that_cannot_be() {
    let options =
        |name: &str, queues| TapOptions { name: name.into(), queues, mtu: None, mac: None };
    let error = Tap::open(&options("a-name-of-too-many-bytes", 1)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "`a-name-of-too-many-bytes` cannot be an interface's name: it has 24 bytes, Linux takes 15"
    );
    assert!(error.help().is_some());
    let error = Tap::open(&options("weir0", 9)).unwrap_err();
    assert_eq!(error.to_string(), "9 queue pairs; valid: 1 to 8");
}
