//! The peer is a socket pair, or a listener in a directory of the test.

use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use proptest::prelude::*;
use weir_engine::burst::{Burst, Scratch};
use weir_engine::{DropReason, Engine, Outgoing, Port, PortCounters, Take};
use weir_fabric::PortConfig;
use weir_foreign::Foreign;
use weir_guestmem::HostBuffer;
use weir_limits::LOG_LINES_MAX;
use weir_port_tap::{FrameDevice, FramePort, SLOT_LEN, UplinkPort};
use weir_testing::eventually;
use weir_testing::slow::{lingering, send_with};

use crate::Guard;
use crate::device::{Next, prefix};
use crate::{Dial, Keep, StreamDevice, StreamOptions, leads_to};

const MTU: u16 = 1500;
/// Longest frame of that MTU, with a tag.
const LEN_MAX: usize = 14 + 4 + 1500;

fn options() -> StreamOptions {
    let (name, peer) = ("out".into(), "/run/peer".into());
    StreamOptions { name, peer, mtu: MTU, host_access: false, asks_dhcp: true }
}

fn nobody() -> Dial {
    Box::new(|_| Err(std::io::ErrorKind::ConnectionRefused.into()))
}

fn unkept() -> Keep {
    Box::new(|_| {})
}

/// A port with a counter, and its peer.
struct Rig {
    port: FramePort,
    peer: UnixStream,
    counters: Arc<PortCounters>,
    scratch: Scratch,
}

impl Rig {
    fn new() -> Self {
        let (ours, peer) = UnixStream::pair().unwrap();
        let device = StreamDevice::start(options(), Some(ours.into()), nobody(), unkept()).unwrap();
        let counters = Arc::new(PortCounters::default());
        let port = FramePort::new(device, Arc::clone(&counters));
        Self { port, peer, counters, scratch: Scratch::default() }
    }

    /// All frames that can be taken now.
    fn take(&mut self) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        loop {
            let before = all.len();
            let mut forward = |burst: &mut Burst<'_>| all.extend(contents(burst));
            self.port.take(0, Take::New.at(1), &mut self.scratch, &mut forward);
            if all.len() == before {
                return all;
            }
        }
    }

    /// Makes the port send `frames`, which go through a burst of another stream's.
    fn deliver(&self, frames: &[Vec<u8>]) {
        let mut from = Rig::new();
        for frame in frames {
            from.peer.write_all(&framed(frame)).unwrap();
            from.port.take(0, Take::New.at(1), &mut from.scratch, &mut |burst| {
                let one = [Outgoing::untagged(0)];
                self.port.deliver(0, burst, &one);
            });
        }
    }

    fn dropped(&self, reason: DropReason) -> u64 {
        self.counters.dropped_for(reason)
    }
}

fn contents(burst: &Burst<'_>) -> Vec<Vec<u8>> {
    let of = |frame: &weir_engine::burst::Frame| {
        let mut bytes = frame.head.as_slice().to_vec();
        for piece in burst.payload(frame) {
            let mut part = vec![0; piece.len()];
            piece.read(&mut part);
            bytes.extend(part);
        }
        bytes
    };
    burst.frames().iter().map(of).collect()
}

fn framed(frame: &[u8]) -> Vec<u8> {
    [&prefix(frame.len()).unwrap(), frame].concat()
}

/// A frame from one station to another, of no protocol.
fn frame(len: usize, fill: u8) -> Vec<u8> {
    let mut bytes = vec![fill; len];
    bytes[..6].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    bytes[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
    bytes[12..14].copy_from_slice(&[0x88, 0xb5]);
    bytes
}

fn read_frame(peer: &mut UnixStream) -> Vec<u8> {
    let mut len = [0; 4];
    peer.read_exact(&mut len).unwrap();
    let mut bytes = vec![0; u32::from_be_bytes(len) as usize];
    peer.read_exact(&mut bytes).unwrap();
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn frames_come_whole_and_in_order_in_whatever_pieces_the_stream_comes(
        lens in prop::collection::vec(14..=LEN_MAX, 1..80),
        cuts in prop::collection::vec(1..5000_usize, 1..40),
    ) {
        let frames: Vec<_> = lens.iter().zip(0..).map(|(len, fill)| frame(*len, fill)).collect();
        let stream: Vec<u8> = frames.iter().flat_map(|frame| framed(frame)).collect();
        let (mut rig, mut came, mut rest) = (Rig::new(), Vec::new(), &stream[..]);
        for cut in cuts.iter().cycle() {
            let (piece, left) = rest.split_at((*cut).min(rest.len()));
            rig.peer.write_all(piece).unwrap();
            came.extend(rig.take());
            rest = left;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(came, frames);
        prop_assert_eq!(rig.port.trouble(), None);
    }

    #[test]
    fn no_stream_is_read_beyond_its_end_nor_a_frame_beyond_its_length(
        stream in prop::collection::vec(any::<u8>(), 0..64),
        len_max in 0..64_usize,
    ) {
        match Next::of(&stream, len_max) {
            Next::Whole(frame) => {
                prop_assert!(frame.len() <= len_max);
                prop_assert_eq!(&framed(frame)[..], &stream[..frame.len() + 4]);
            }
            Next::TooLong(len) => prop_assert!(len as usize > len_max),
            Next::Part => prop_assert!(stream.len() < 4 + len_max),
        }
    }

    #[test]
    fn no_frame_reaches_the_hosts_loopback_whatever_its_header_says(
        header in prop::collection::vec(any::<u8>(), 0..60),
        to in prop_oneof![Just([192, 168, 127, 254]), Just([127, 0, 0, 1]), Just([0, 0, 0, 0])],
    ) {
        let mut packet = header;
        packet.resize(packet.len().max(20), 0);
        packet[16..20].copy_from_slice(&to);
        let frame = [&[0; 12][..], &[8, 0], &packet].concat();
        let guard = Guard { host_access: false, asks_dhcp: true };
        prop_assert!(!guard.lets_pass(&frame));
    }
}

#[test]
fn a_frame_is_sent_whole_behind_its_length() {
    let mut rig = Rig::new();
    let frames: Vec<_> = [60, 128, 129, 1514].map(|len| frame(len, 7)).into();
    rig.deliver(&frames);
    for frame in &frames {
        assert_eq!(read_frame(&mut rig.peer), *frame);
    }
    assert_eq!(rig.counters.rx[0].frames.get(), 4);
}

#[test]
fn a_peer_that_reads_nothing_loses_whole_frames_and_keeps_nobody_waiting() {
    let mut rig = Rig::new();
    let frames = vec![frame(1514, 1); 1000];
    rig.deliver(&frames);
    let lost = rig.dropped(DropReason::RxRingFull);
    assert!(lost > 0 && lost < 1000, "{lost}");
    for _ in lost..1000 {
        assert_eq!(read_frame(&mut rig.peer), frames[0]);
    }
    // There is room again, and a frame begins where one ended.
    rig.deliver(&[frame(60, 2)]);
    assert_eq!(read_frame(&mut rig.peer), frame(60, 2));
}

#[test]
fn a_frame_beyond_the_mtu_ends_the_connection_after_the_good_ones_with_a_reason() {
    let mut rig = Rig::new();
    let stream = [framed(&frame(60, 1)), framed(&frame(LEN_MAX + 1, 2))].concat();
    rig.peer.write_all(&stream).unwrap();
    assert_eq!(rig.take(), [frame(60, 1)]);
    let trouble = eventually("the port says why", || rig.port.trouble());
    // The thread has tried to connect by now, or not yet.
    assert!(trouble.contains("/run/peer"), "{trouble}");
    rig.deliver(&[frame(60, 3)]);
    assert_eq!(rig.dropped(DropReason::RxNotReady), 1);
    assert_eq!(rig.port.failure(), None, "the port itself goes on");
}

#[test]
fn a_peer_that_goes_away_and_comes_back_is_found_and_the_keeper_knows_the_socket() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("peer.sock");
    let kept = Arc::new(Mutex::new(Vec::new()));
    let (note, at) = (Arc::clone(&kept), path.clone());
    let keep: Keep = Box::new(move |socket: Option<&OwnedFd>| {
        note.lock().unwrap().push(socket.is_some_and(|socket| leads_to(socket, &at)));
    });
    let to = path.clone();
    let dial: Dial =
        Box::new(move |party| Ok(Foreign::new(UnixStream::connect(&to)?.into(), party)));
    let device = StreamDevice::start(options(), None, dial, keep).unwrap();

    // A worker serves the port, as in a switch.
    let engine = Engine::start(1).unwrap();
    let counters = Arc::new(PortCounters::default());
    let port = FramePort::new(device, Arc::clone(&counters));
    let (id, port) = engine.add_port(PortConfig::uplink(), |_, _| Arc::new(port)).unwrap();
    port.start(&engine, id).unwrap();
    let frames = || counters.tx[0].frames.get();
    assert!(port.trouble().is_some());
    for round in 1..=2 {
        let listener = UnixListener::bind(&path).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        eventually("it is connected", || port.trouble().is_none().then_some(()));
        for half in framed(&frame(60, 1)).chunks(20) {
            peer.write_all(half).unwrap();
        }
        eventually("the frame comes", || (frames() >= round).then_some(()));
        drop((peer, listener));
        std::fs::remove_file(&path).unwrap();
        eventually("the loss is seen", || port.trouble());
    }
    eventually("the keeper lets go", || {
        (*kept.lock().unwrap() == [true, false, true, false]).then_some(())
    });
}

#[test]
fn a_peer_that_comes_and_goes_is_logged_a_few_times() {
    let peers = Arc::new(Mutex::new(0));
    let count = Arc::clone(&peers);
    let dial: Dial = Box::new(move |party| {
        *count.lock().unwrap() += 1;
        // The peer ends the connection at once.
        Ok(Foreign::new(UnixStream::pair()?.0.into(), party))
    });
    let device = StreamDevice::start(options(), None, dial, unkept()).unwrap();
    let buffers: [HostBuffer; 0] = [];
    eventually("it comes again and again", || {
        let queue = device.queues()[0].as_fd();
        let _ = device.receive(queue, &mut buffers.iter(), &mut Vec::new());
        (*peers.lock().unwrap() >= LOG_LINES_MAX + 3).then_some(())
    });
    assert!(device.log_lines_unsaid() >= 2, "{}", device.log_lines_unsaid());
}

#[test]
fn another_process_goes_on_in_the_middle_of_a_frame() {
    let (ours, mut peer) = UnixStream::pair().unwrap();
    let copy = ours.try_clone().unwrap();
    let stream = [framed(&frame(60, 1)), framed(&frame(1000, 2))].concat();
    let (first, second) = stream.split_at(200);
    let take = |socket: UnixStream| {
        let left = Some(OwnedFd::from(socket));
        let device = StreamDevice::start(options(), left, nobody(), unkept()).unwrap();
        let (buffers, mut places) =
            ([HostBuffer::new(SLOT_LEN), HostBuffer::new(SLOT_LEN)], Vec::new());
        let queue = std::os::fd::AsFd::as_fd(&device.queues()[0]);
        let _ = device.receive(queue, &mut buffers.iter(), &mut places);
        places.into_iter().map(|place| place.len() - 12).collect::<Vec<_>>()
    };
    peer.write_all(first).unwrap();
    assert_eq!(take(ours), [60]);
    peer.write_all(second).unwrap();
    assert_eq!(take(copy), [1000]);
}

/// An IPv4 packet to a port, in a frame.
fn packet(protocol: u8, to: Ipv4Addr, port: u16, options: usize, fragment: u16) -> Vec<u8> {
    let mut bytes = [&[2; 12][..], &[8, 0], &[0; 20]].concat();
    bytes[14] = 0x40 | (5 + options / 4) as u8;
    bytes[20..22].copy_from_slice(&fragment.to_be_bytes());
    bytes[23] = protocol;
    bytes[30..34].copy_from_slice(&to.octets());
    bytes.extend(vec![1; options]);
    bytes.extend([0, 1]);
    bytes.extend(port.to_be_bytes());
    bytes.extend([0; 16]);
    bytes
}

#[test]
fn guests_reach_names_and_addresses_of_gvproxy_and_neither_its_api_nor_the_host() {
    let (gateway, host) = (Ipv4Addr::new(192, 168, 127, 1), Ipv4Addr::new(192, 168, 127, 254));
    let outside = Ipv4Addr::new(192, 0, 2, 1);
    let (icmp, tcp, udp) = (1, 6, 17);
    let closed = Guard { host_access: false, asks_dhcp: true };
    let open = Guard { host_access: true, asks_dhcp: true };
    let cases = [
        (tcp, gateway, 80, 0, 0, false),
        (tcp, gateway, 80, 40, 0, false),
        (tcp, gateway, 53, 0, 0, true),
        (udp, gateway, 53, 0, 0, true),
        (udp, gateway, 67, 0, 0, true),
        (icmp, gateway, 0, 0, 0, true),
        // More fragments follow, or this is a later one, which can overwrite the port.
        (tcp, gateway, 53, 0, 0x2000, false),
        (tcp, gateway, 53, 0, 1, false),
        // A port number in the options is not a port of the packet.
        (tcp, gateway, 81, 4, 0, false),
        (tcp, host, 22, 0, 0, false),
        (icmp, host, 0, 0, 0, false),
        (tcp, outside, 80, 0, 0, true),
        (tcp, outside, 80, 0, 1, true),
    ];
    for (protocol, to, port, options, fragment, passes) in cases {
        let frame = packet(protocol, to, port, options, fragment);
        assert_eq!(closed.lets_pass(&frame), passes, "{protocol} {to} {port} {options} {fragment}");
        assert!(open.lets_pass(&frame), "{protocol} {to} {port}");
    }
    let asks = packet(udp, Ipv4Addr::BROADCAST, 67, 0, 0);
    assert!(closed.lets_pass(&asks));
    assert!(!Guard { host_access: true, asks_dhcp: false }.lets_pass(&asks));

    let rig = Rig::new();
    rig.deliver(&[packet(tcp, gateway, 80, 0, 0)]);
    assert_eq!(rig.dropped(DropReason::FilteredRx), 1);
}

#[test]
fn a_peer_that_ends_within_a_frame_has_ended() {
    let mut rig = Rig::new();
    let whole = framed(&frame(60, 1));
    rig.peer.write_all(&[&whole, &whole[..9]].concat()).unwrap();
    assert_eq!(rig.take(), [frame(60, 1)]);
    assert_eq!(rig.port.trouble(), None, "the rest may come");
    rig.peer.write_all(&whole[9..]).unwrap();
    rig.peer.write_all(&whole[..3]).unwrap();
    rig.peer.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(rig.take(), [frame(60, 1)]);
    eventually("the port says why", || rig.port.trouble());
}

#[test]
fn descriptors_that_a_peer_sends_end_the_connection_and_keep_nobody_waiting() {
    // A descriptor that was read, one that nobody reads, and one whose sender has gone.
    for way in 0..3 {
        let (done, waits) = mpsc::channel();
        // The close of such a socket takes ten minutes, whoever closes it.
        let (slow, reader) = lingering();
        std::thread::spawn(move || {
            let mut rig = Rig::new();
            let whole = framed(&frame(60, 1));
            let sent = if way == 0 { &whole[..] } else { &whole[..9] };
            send_with(&rig.peer, sent, slow).unwrap();
            // The sender's copy is closed, and the last one is here.
            std::thread::sleep(Duration::from_millis(100));
            assert_eq!(rig.take(), [] as [Vec<u8>; 0]);
            if way == 2 {
                rig.peer.shutdown(std::net::Shutdown::Both).unwrap();
            }
            drop(rig);
            done.send(()).unwrap();
        });
        waits.recv_timeout(Duration::from_secs(60)).expect("no thread closes it itself");
        drop(reader);
    }
}

#[test]
fn a_peer_that_sends_descriptors_has_to_connect_anew() {
    let mut rig = Rig::new();
    let whole = framed(&frame(60, 1));
    rig.peer.write_all(&whole).unwrap();
    assert_eq!(rig.take(), [frame(60, 1)]);
    send_with(&rig.peer, &whole, UnixStream::pair().unwrap().0).unwrap();
    assert_eq!(rig.take(), [] as [Vec<u8>; 0]);
    eventually("the port says why", || rig.port.trouble());
    eventually("the connection is over", || rig.peer.write_all(&whole).is_err().then_some(()));
}
