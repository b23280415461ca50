//! Tests with real interfaces, in their own network namespaces. They need root. Without root, each
//! of them counts as skipped.

use std::sync::atomic::{AtomicBool, Ordering};

use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_engine::burst::{Burst, Frame, Pieces, Scratch, TakenChain};
use weir_engine::{Delivered, Engine, Outgoing, Port, PortCounters, Side, Take, Taken, clock};
use weir_fabric::{PortConfig, PortId};
use weir_guestmem::HostBuffer;
use weir_limits::{BURST_MAX, PARKED_NS_MAX, XDP_FRAMES, XDP_PARKED_MAX};
use weir_policy::steering::Receiver;
use weir_port_packet::{PacketOptions, PacketSocket};
use weir_port_tap::{FrameDevice, LinkError, SLOT_LEN, UplinkPort};
use weir_testing::{carrier, ip, soon, veth};
use weir_wire::checksum::pseudo_header_v4;
use weir_wire::{VnetHdr, vnet};

use crate::device::Chunks;
use crate::socket::XdpSocket;
use crate::{XdpError, XdpInterface, XdpMode, XdpOptions, XdpPort};

/// The longest wait before a test gives up.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn no_interface_is_opened_for_options_that_cannot_be() {
    let options = |name: &str, queues| XdpOptions { name: name.into(), queues, mtu: None };
    let error = XdpInterface::open(&options("a/b", 1)).err().unwrap();
    assert_eq!(error.to_string(), "`a/b` cannot be an interface's name: it contains '/'");
    assert!(error.help().is_some());
    let error = XdpInterface::open(&options("eth0", 9)).err().unwrap();
    assert_eq!(error.to_string(), "9 queue pairs; valid: 1 to 8");
}

/// Runs `body` in a network namespace of its own with a veth pair of `queues` queues.
fn in_new_network<T: Send>(queues: usize, body: impl FnOnce() -> T + Send) -> Option<T> {
    let why = "AF_XDP sockets and a network namespace";
    weir_testing::in_new_network(why, || {
        veth(queues);
        body()
    })
}

fn try_open(name: &str, queues: usize, mtu: Option<u16>) -> Result<XdpInterface, XdpError> {
    XdpInterface::open(&XdpOptions { name: name.into(), queues, mtu })
}

fn open(queues: usize) -> XdpInterface {
    let interface = try_open("weir0", queues, None).unwrap();
    carrier();
    interface
}

/// The other end of the veth pair, by a packet socket: each frame has a `virtio_net_hdr` before it.
struct Host {
    socket: PacketSocket,
    buffer: HostBuffer,
}

impl Host {
    fn open() -> Self {
        let options = PacketOptions { name: "host0".into(), queues: 1, mtu: None };
        let socket = PacketSocket::open(&options).unwrap();
        Self { socket, buffer: HostBuffer::new(SLOT_LEN) }
    }

    fn send(&self, frame: &[u8]) {
        let bytes = [&vec![0; self.socket.vnet_len()], frame].concat();
        assert_eq!(rustix::io::write(&self.socket.queues()[0], &bytes), Ok(bytes.len()));
    }

    /// The next frame, if there is one.
    fn receive(&self) -> Option<Vec<u8>> {
        let mut places = Vec::new();
        let queue = self.socket.queues()[0].as_fd();
        self.socket.receive(queue, &mut std::iter::once(&self.buffer), &mut places).ok()?;
        let place = places.pop()?;
        let mut bytes = vec![0; place.len()];
        self.buffer.slice(place.start, place.len()).unwrap().read(&mut bytes);
        Some(bytes.split_off(self.socket.vnet_len()))
    }

    fn receive_soon(&self) -> Vec<u8> {
        let mut got = None;
        soon("a frame arrives", || {
            got = self.receive();
            got.is_some()
        });
        got.unwrap()
    }
}

/// An IPv4-like frame of `len` bytes that contains its number.
fn frame(number: u32, len: usize) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5];
    bytes.extend(number.to_be_bytes());
    let filler = (bytes.len()..len).map(|n| (n as u32).wrapping_add(number) as u8);
    let filler: Vec<_> = filler.collect();
    bytes.extend(filler);
    bytes
}

fn contents(burst: &Burst<'_>) -> Vec<Vec<u8>> {
    let bytes = |frame: &Frame| {
        let mut bytes = frame.head.as_slice().to_vec();
        for piece in burst.payload(frame) {
            let at = bytes.len();
            bytes.resize(at + piece.len(), 0);
            piece.read(&mut bytes[at..]);
        }
        bytes
    };
    burst.frames().iter().map(bytes).collect()
}

/// A port that a test drives by hand.
struct Rig {
    port: XdpPort,
    counters: Arc<PortCounters>,
    scratch: Scratch,
    host: Host,
}

impl Rig {
    fn new(queues: usize) -> Self {
        Self::on(open(queues))
    }

    fn on(interface: XdpInterface) -> Self {
        let counters = Arc::new(PortCounters::default());
        let port = XdpPort::new(interface, Arc::clone(&counters));
        carrier();
        Self { port, counters, scratch: Scratch::default(), host: Host::open() }
    }

    fn take(
        &mut self,
        queue: usize,
        what: Take,
        now_ns: u64,
        forward: &mut dyn FnMut(&mut Burst<'_>),
    ) -> Taken {
        self.port.take(queue, what.at(now_ns), &mut self.scratch, forward)
    }

    fn take_all(&mut self, what: Take, now_ns: u64) -> (Taken, Vec<Vec<u8>>) {
        let mut got = Vec::new();
        let taken = self.take(0, what, now_ns, &mut |burst| got = contents(burst));
        (taken, got)
    }

    /// The next `count` frames, by as many bursts as it takes.
    fn take_soon(&mut self, count: usize) -> Vec<Vec<u8>> {
        let mut got = Vec::new();
        soon("frames arrive", || {
            got.extend(self.take_all(Take::New, 0).1);
            got.len() >= count
        });
        got
    }

    /// Delivers one burst of frames, each with its header.
    fn deliver(&mut self, frames: &[(VnetHdr, Vec<u8>)], now_ns: u64) -> Delivered {
        let buffers: Vec<_> = frames
            .iter()
            .map(|(header, frame)| {
                let buffer = HostBuffer::new(VnetHdr::LEN + frame.len());
                let slice = buffer.slice(0, buffer.len()).unwrap();
                slice.write(&header.to_bytes());
                slice.skip(VnetHdr::LEN).write(frame);
                buffer
            })
            .collect();
        let mut scratch = Scratch::default();
        let mut burst = scratch.lend();
        for buffer in &buffers {
            let pieces = Pieces::Only(buffer.slice(0, buffer.len()).unwrap());
            let chain = TakenChain { token: 0, len: buffer.len() as u32, pieces };
            burst.add(chain, VnetHdr::LEN, now_ns).unwrap();
        }
        let frames: Vec<_> = (0..frames.len() as u16).map(Outgoing::untagged).collect();
        self.port.deliver(0, &burst, &frames)
    }

    fn drops(&self) -> Vec<(&'static str, u64)> {
        self.counters.drops().collect()
    }
}

fn plain(frame: Vec<u8>) -> (VnetHdr, Vec<u8>) {
    (VnetHdr::default(), frame)
}

fn park_all(burst: &mut Burst<'_>) {
    for frame in 0..burst.frames().len() as u16 {
        burst.park(frame, PortId::new(7).unwrap());
    }
}

#[test]
fn root_an_interface_is_opened_as_asked_and_given_back() {
    in_new_network(2, || {
        let interface = try_open("weir0", 2, Some(1400)).unwrap();
        let info = interface.info().clone();
        let link = ip("-d link show dev weir0");
        assert!(link.contains("mtu 1400") && link.contains(",UP"), "{link}");
        assert!(link.contains("xdp") && link.contains("promiscuity 1"), "{link}");
        assert!(link.contains(&info.mac.to_string()), "{link}");
        assert_eq!((info.mtu, info.mode, info.zero_copy), (1400, XdpMode::Native, false));
        drop(interface);
        // A process that another test starts holds copies of the descriptors for a moment.
        soon("it is given back", || {
            let link = ip("-d link show dev weir0");
            !link.contains("xdp") && link.contains("promiscuity 0")
        });
        // The kernel gives queues back later still, and opening waits for them.
        drop(try_open("weir0", 2, None).unwrap());
    });
}

#[test]
fn root_an_interface_that_does_not_fit_is_refused_with_help() {
    in_new_network(1, || {
        let error = |name: &str, queues, mtu| {
            let error = try_open(name, queues, mtu).err().unwrap();
            assert!(error.help().is_some(), "{error}");
            error
        };
        assert!(matches!(error("eth9", 1, None), XdpError::Link(LinkError::NoInterface { .. })));
        assert!(matches!(error("lo", 1, None), XdpError::Link(LinkError::NotEthernet { .. })));
        assert!(matches!(
            error("weir0", 1, Some(67)),
            XdpError::Link(LinkError::Mtu { mtu: 67, .. })
        ));
        let differ = error("weir0", 2, None);
        assert!(matches!(differ, XdpError::QueuesDiffer { has: 1, queues: 2, .. }), "{differ:?}");
        let too_large = error("weir0", 1, Some(15_339));
        assert!(matches!(too_large, XdpError::MtuTooLarge { mtu: 15_339, max: 15_338, .. }));
        assert!(!ip("-d link show dev weir0").contains("xdp"));
    });
}

#[test]
fn root_a_second_opener_is_told_what_is_in_its_way() {
    in_new_network(1, || {
        let first = open(1);
        let error = try_open("weir0", 1, None).err().unwrap();
        assert!(matches!(error, XdpError::ProgramBusy { .. }), "{error:?}");
        drop(first);
        let chunks = Chunks { len: 2048, several: false };
        let (socket, _rings) = XdpSocket::open(chunks).map_err(|(_, error)| error).unwrap();
        socket.bind(interface_index(), 0).unwrap();
        soon("its program is gone", || !ip("-d link show dev weir0").contains("xdp"));
        let error = try_open("weir0", 1, None).err().unwrap();
        assert!(matches!(error, XdpError::QueueBusy { queue: 0, .. }), "{error:?}");
        // The kernel lets go of a program after the call that closes it.
        soon("nothing stays of a failed attempt", || !ip("-d link show dev weir0").contains("xdp"));
    });
}

fn interface_index() -> u32 {
    let link = ip("-o link show dev weir0");
    link.split(':').next().unwrap().trim().parse().unwrap()
}

#[test]
fn root_frames_go_both_ways_unchanged() {
    in_new_network(1, || {
        let mut rig = Rig::new(1);
        let frames: Vec<_> = [14, 60, 200, 1514].map(|len| frame(len as u32, len.max(18))).into();
        for frame in &frames {
            rig.host.send(frame);
        }
        assert_eq!(rig.take_soon(4), frames);
        assert!(!rig.port.arm_tx(0));

        let sent: Vec<_> = frames.iter().cloned().map(plain).collect();
        assert_eq!(rig.deliver(&sent, 0), Delivered { frames: 4, ..Delivered::default() });
        for frame in &frames {
            assert_eq!(rig.host.receive_soon(), *frame);
        }
        assert_eq!(rig.drops(), []);
        let rx = &rig.counters.rx[0];
        assert_eq!((rx.frames.get(), rx.bytes.get()), (4, 18 + 60 + 200 + 1514));
    });
}

#[test]
fn root_the_longest_frames_of_each_mtu_pass_and_longer_ones_are_counted() {
    // A veth's driver does not take a program for frames in one piece at the second MTU, so the program runs behind
    // it. Longer frames are in several pieces.
    let several = [3819, 9000, 15_338].map(|mtu| (mtu, XdpMode::Native));
    for (mtu, mode) in
        [(1500_usize, XdpMode::Native), (3818, XdpMode::Generic)].into_iter().chain(several)
    {
        in_new_network(1, || {
            ip(&format!("link set dev host0 mtu {mtu}"));
            let interface = try_open("weir0", 1, Some(mtu as u16)).unwrap();
            assert_eq!(interface.info().mode, mode);
            let mut rig = Rig::on(interface);
            let longest = frame(1, mtu + 14);
            rig.host.send(&longest);
            assert_eq!(rig.take_soon(1), std::slice::from_ref(&longest));
            let longer = frame(2, mtu + 14 + 9);
            let dealt = rig.deliver(&[plain(longer), plain(longest.clone())], 0);
            assert_eq!(dealt.frames, 2);
            assert_eq!(rig.host.receive_soon(), longest);
            assert_eq!(rig.drops(), [("device_error", 1)]);
        });
    }
}

#[test]
fn root_jumbo_frames_in_several_pieces_go_both_ways_in_order_and_their_memory_is_used_again() {
    in_new_network(1, || {
        ip("link set dev host0 mtu 9000");
        let mut rig = Rig::on(try_open("weir0", 1, Some(9000)).unwrap());
        let lens = [9014, 60, 3840, 3841, 4096, 4097, 7680, 7681, 1514, 9014];
        for round in 0..2 * XDP_FRAMES / lens.len() as u32 {
            let numbered = lens.iter().zip(0..).map(|(len, n)| frame(round * 10 + n, *len));
            let frames: Vec<_> = numbered.collect();
            frames.iter().for_each(|frame| rig.host.send(frame));
            assert!(rig.take_soon(lens.len()) == frames, "round {round}");
            let sent: Vec<_> = frames.iter().cloned().map(plain).collect();
            assert_eq!(rig.deliver(&sent, 0).frames, lens.len());
            for frame in &frames {
                assert!(rig.host.receive_soon() == *frame, "round {round}");
            }
        }
        assert_eq!(rig.drops(), []);
    });
}

#[test]
fn root_a_jumbo_frame_that_waited_for_its_receiver_is_whole() {
    in_new_network(1, || {
        ip("link set dev host0 mtu 9000");
        let mut rig = Rig::on(try_open("weir0", 1, Some(9000)).unwrap());
        let frames = [frame(1, 9014), frame(2, 60), frame(3, 8000)];
        for frame in &frames {
            rig.host.send(frame);
        }
        let mut parked = 0;
        soon("frames arrive", || {
            parked += rig.take(0, Take::New, 0, &mut park_all).frames;
            parked >= frames.len()
        });
        let (_, got) = rig.take_all(Take::Parked(None), 1);
        assert!(got == frames, "{} frames", got.len());
        for round in 0..XDP_FRAMES {
            rig.host.send(&frame(round, 9014));
            assert!(rig.take_soon(1) == [frame(round, 9014)], "its memory is free");
        }
    });
}

#[test]
fn root_a_tag_stays_in_its_frame() {
    in_new_network(1, || {
        let mut rig = Rig::new(1);
        let mut tagged = frame(1, 60);
        tagged.splice(12..12, [0x81, 0, 0, 20]);
        rig.host.send(&tagged);
        let mut vid = None;
        soon("the frame arrives", || {
            rig.take(0, Take::New, 0, &mut |burst| {
                vid = burst.frames()[0].tag.map(|tag| tag.vid());
            });
            vid.is_some()
        });
        assert_eq!(vid, Some(20));
    });
}

#[test]
fn root_more_frames_than_there_is_memory_for_are_lost_and_the_queue_goes_on() {
    in_new_network(1, || {
        let mut rig = Rig::new(1);
        for number in 0..XDP_FRAMES + 100 {
            rig.host.send(&frame(number, 60));
        }
        let (taken, got) = rig.take_all(Take::New, 0);
        assert_eq!((taken.frames, taken.more, got.len()), (BURST_MAX, true, BURST_MAX));
        let mut all = got;
        all.extend(rig.take_soon(XDP_FRAMES as usize - BURST_MAX));
        let expected: Vec<_> = (0..XDP_FRAMES).map(|number| frame(number, 60)).collect();
        assert!(all == expected, "{} frames", all.len());
        for number in 0..3 * XDP_FRAMES {
            rig.host.send(&frame(number, 60));
            assert_eq!(rig.take_soon(1), [frame(number, 60)]);
        }
    });
}

#[test]
fn root_more_frames_than_the_rings_have_room_for_go_out_one_burst_after_another() {
    in_new_network(1, || {
        let mut rig = Rig::new(1);
        for burst in 0..3 * XDP_FRAMES / BURST_MAX as u32 {
            let number = |n| burst * BURST_MAX as u32 + n;
            let frames: Vec<_> =
                (0..BURST_MAX as u32).map(|n| plain(frame(number(n), 60))).collect();
            assert_eq!(rig.deliver(&frames, 0).frames, BURST_MAX);
            for (_, frame) in &frames {
                assert_eq!(rig.host.receive_soon(), *frame);
            }
        }
        assert_eq!(rig.drops(), []);
    });
}

#[test]
fn root_a_gso_frame_is_cut_and_its_checksums_are_filled_in() {
    in_new_network(1, || {
        let mut rig = Rig::new(1);
        const MSS: usize = 1448;
        const SEGMENTS: usize = 40;
        let header = VnetHdr {
            flags: vnet::F_NEEDS_CSUM,
            gso_type: vnet::GSO_TCPV4,
            hdr_len: 54,
            gso_size: MSS as u16,
            csum_start: 34,
            csum_offset: 16,
            ..VnetHdr::default()
        };
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
        let ip_len = (40 + MSS * SEGMENTS) as u16;
        frame.extend([0x45, 0]);
        frame.extend(ip_len.to_be_bytes());
        frame.extend([0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend([0, 80, 0, 81, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 0xff, 0xff]);
        let pseudo = pseudo_header_v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 6, ip_len - 20);
        frame.extend(pseudo.folded().to_be_bytes());
        frame.extend([0, 0]);
        let payload: Vec<_> = (0..MSS * SEGMENTS).map(|n| (n / 7) as u8).collect();
        frame.extend(&payload);
        // There are so many frames that one burst needs more chunks than there are.
        let frames = vec![(header, frame); 30];
        assert_eq!(rig.deliver(&frames, 0).frames, 30);
        for _ in 0..30 {
            let mut got = Vec::new();
            for segment in 0..SEGMENTS {
                let packet = rig.host.receive_soon();
                assert_eq!(packet.len(), 54 + MSS);
                let seq = u32::from_be_bytes(packet[38..42].try_into().unwrap());
                assert_eq!(seq as usize, segment * MSS);
                assert_eq!(tcp_sum(&packet), 0xffff, "segment {segment}");
                got.extend_from_slice(&packet[54..]);
            }
            assert!(got == payload);
        }
        assert_eq!(rig.drops(), []);
        assert_eq!(rig.counters.rx[0].frames.get() as usize, 30 * SEGMENTS);
    });
}

/// The ones' complement sum of a TCP segment with its pseudo header: 0xffff if its checksum is right.
fn tcp_sum(packet: &[u8]) -> u32 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low));
    let mut sum = 6 + (packet.len() - 34) as u32;
    sum += packet[26..].chunks(2).map(word).sum::<u32>();
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum
}

#[test]
fn root_waiting_frames_keep_their_bytes_and_their_order() {
    for several_workers in [false, true] {
        in_new_network(1, || waiting_frames_keep_their_bytes_and_their_order(several_workers));
    }
}

fn waiting_frames_keep_their_bytes_and_their_order(several_workers: bool) {
    let mut rig = Rig::new(1);
    assert!(rig.port.share_tx(0, several_workers));
    let frames: Vec<_> = (0..100).map(|number| frame(number, 100)).collect();
    for frame in &frames {
        rig.host.send(frame);
    }
    let first = rig.take(0, Take::New, 5, &mut park_all);
    assert_eq!((first.frames, first.parked), (BURST_MAX, XDP_PARKED_MAX));
    let now_ns = clock::now_ns();
    assert!((now_ns..=now_ns + PARKED_NS_MAX).contains(&first.parked_until.unwrap()));
    // Newer frames for others pass, and every chunk that carried them is used again.
    let mut newer = Vec::new();
    for number in 100..2 * XDP_FRAMES {
        newer.extend(rig.take_all(Take::New, 6).1);
        rig.host.send(&frame(number, 100));
    }
    newer.extend(rig.take_soon(1));
    let expected: Vec<_> =
        (BURST_MAX as u32..2 * XDP_FRAMES).map(|number| frame(number, 100)).collect();
    assert!(newer == expected, "{} frames", newer.len());

    // The receiver is still full for the later half of them.
    let mut seen = Vec::new();
    let again = rig.take(0, Take::Parked(None), 7, &mut |burst| {
        seen.extend(contents(burst));
        for frame in 32..burst.frames().len() as u16 {
            burst.park(frame, PortId::new(7).unwrap());
        }
    });
    assert_eq!((again.frames, again.parked), (XDP_PARKED_MAX, 32));
    assert_eq!(again.parked_until, first.parked_until, "to wait again is no new wait");
    assert_eq!(seen, frames[..BURST_MAX]);
    let (last, got) = rig.take_all(Take::Parked(None), 8);
    assert_eq!((last.parked, last.parked_until), (0, None));
    assert_eq!(got, frames[32..BURST_MAX]);
    assert_eq!(rig.drops(), []);
}

#[test]
fn root_frames_that_waited_too_long_are_dropped_and_counted() {
    in_new_network(1, || {
        let mut rig = Rig::new(1);
        rig.host.send(&frame(1, 60));
        soon("the frame waits", || rig.take(0, Take::New, 1, &mut park_all).parked == 1);
        assert_eq!(
            rig.take_all(Take::Parked(None), clock::now_ns() + PARKED_NS_MAX),
            (Taken { frames: 1, peek: true, ..Taken::default() }, vec![])
        );
        assert_eq!(rig.drops(), [("rx_waited_too_long", 1)]);
        rig.host.send(&frame(2, 60));
        soon("the frame waits", || rig.take(0, Take::New, 1, &mut park_all).parked == 1);
        rig.port.fail("a test");
        assert_eq!(rig.take(0, Take::Parked(None), 2, &mut park_all), Taken::default());
        assert_eq!(rig.drops(), [("tx_disabled", 1), ("rx_waited_too_long", 1)]);
    });
}

#[test]
fn root_frames_wait_in_the_ring_while_the_link_is_down_and_no_more_than_fit() {
    in_new_network(1, || {
        let mut rig = Rig::new(1);
        ip("link set dev weir0 down");
        let mut dealt_with = 0;
        for burst in 0..20 {
            let frames: Vec<_> =
                (0..BURST_MAX as u32).map(|n| plain(frame(burst * 64 + n, 60))).collect();
            dealt_with += rig.deliver(&frames, 0).frames;
        }
        assert_eq!(dealt_with, XDP_FRAMES as usize, "the engine counts the rest");
        assert_eq!((rig.port.failure(), rig.port.expired(0, Side::Rx, 1)), (None, None));
        let before = rig.port.mark(0);
        assert_eq!(before.placed, u64::from(XDP_FRAMES));
        assert!(!rig.port.has_taken(0, 1, before), "the kernel has sent none");
        ip("link set dev weir0 up");
        carrier();
        // The next burst sends these frames, too.
        assert_eq!(rig.deliver(&[plain(frame(9999, 60))], 0).frames, 1);
        for number in 0..XDP_FRAMES {
            assert_eq!(rig.host.receive_soon(), frame(number, 60));
        }
        assert_eq!(rig.host.receive_soon(), frame(9999, 60));
        let end = Instant::now() + PATIENCE;
        while !rig.port.has_taken(0, before.placed + 1, before) {
            assert!(Instant::now() < end, "the kernel gives no chunks back");
        }
        assert!(!rig.port.has_taken(0, before.placed + 2, before), "there are no more");
        rig.host.send(&frame(1, 60));
        assert_eq!(rig.take_soon(1).len(), 1);
    });
}

#[test]
fn root_each_frame_reaches_one_queue_and_both_queues_get_some() {
    in_new_network(2, || {
        let mut rig = Rig::new(2);
        ip("address add 10.0.0.1/24 dev host0");
        ip("neighbour add 10.0.0.2 lladdr 02:00:00:00:00:02 dev host0");
        let mut per_queue = [0; 2];
        for sent in 1..=64 {
            let host = UdpSocket::bind("10.0.0.1:0").unwrap();
            host.send_to(&[7; 10], "10.0.0.2:9").unwrap();
            soon("the frame arrives", || {
                for (queue, count) in per_queue.iter_mut().enumerate() {
                    rig.port.take(queue, Take::New.at(0), &mut rig.scratch, &mut |burst| {
                        let is_udp = |it: &Frame| it.head.as_slice()[23] == 17;
                        *count += burst.frames().iter().filter(|it| is_udp(it)).count();
                    });
                }
                per_queue.iter().sum::<usize>() == sent
            });
        }
        assert!(per_queue.iter().all(|count| *count > 0), "{per_queue:?}");
    });
}

struct Plugged {
    port: Arc<XdpPort>,
    counters: Arc<PortCounters>,
}

/// Adds `weir0` to `engine` and starts it.
fn plug(engine: &Engine) -> Plugged {
    let interface = open(1);
    let counters = Arc::new(PortCounters::default());
    let (id, port) = engine
        .add_port(PortConfig::uplink(), |_, _| {
            Arc::new(XdpPort::new(interface, Arc::clone(&counters)))
        })
        .unwrap();
    port.start(engine, id).unwrap();
    Plugged { port, counters }
}

/// The test sends one frame at a time, so that the worker sleeps before each.
#[test]
fn root_every_frame_wakes_the_worker() {
    let engine = Engine::start(1).unwrap();
    let side = || (plug(&engine), Host::open());
    let (Some((_here, from)), Some((there, to))) =
        (in_new_network(1, side), in_new_network(1, side))
    else {
        return;
    };
    for number in 0..300 {
        from.send(&frame(number, 60));
        assert_eq!(to.receive_soon(), frame(number, 60));
        if number % 3 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert_eq!(there.counters.drops().collect::<Vec<_>>(), []);
}

/// Linux reports the removal only to sockets that send.
#[test]
fn root_a_deleted_interface_stops_its_port_only() {
    let engine = Engine::start(1).unwrap();
    let Some(lost) = in_new_network(1, || {
        let lost = plug(&engine);
        ip("link delete weir0");
        lost
    }) else {
        return;
    };
    let other = in_new_network(1, || {
        let other = plug(&engine);
        let host = Host::open();
        host.send(&frame(1, 60));
        soon("the frame toward the lost interface stops its port", || {
            lost.port.failure().is_some()
        });
        // The switch continues.
        let before = other.counters.tx[0].frames.get();
        host.send(&frame(2, 60));
        soon("a frame is taken", || other.counters.tx[0].frames.get() > before);
        other
    });
    assert!(lost.port.failure().unwrap().contains("weir0"), "{:?}", lost.port);
    assert_eq!(lost.port.rx_queues(), 0);
    assert_eq!(other.unwrap().port.failure(), None);
}

/// Frames under way at a time: fewer than any queue on their way can hold.
const WINDOW: u32 = 48;

#[test]
fn root_an_interface_with_one_queue_is_helped_and_keeps_its_order() {
    let engine = Engine::start(2).unwrap();
    let side = || (plug(&engine), Host::open());
    let (Some((_here, from)), Some((there, to))) =
        (in_new_network(1, side), in_new_network(1, side))
    else {
        return;
    };
    let from_id = PortId::new(0).unwrap();
    let bursts = || engine.workers().iter().map(|worker| worker.bursts).min().unwrap();
    let before = bursts();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                assert!(engine.set_helper(from_id, 0, [Some(1), Some(0), None, Some(1)][n % 4]));
                engine.assign(from_id, 0, n / 8 % 2).unwrap();
                std::thread::sleep(Duration::from_micros(n as u64 % 7 * 50));
            }
        });
        let _stops = weir_testing::SetAtEnd(&stop);
        let mut number = 0;
        // There are so many frames that each chunk is used again and again.
        while number < 8 * XDP_FRAMES || (number < 80 * XDP_FRAMES && bursts() < before + 20) {
            let window: Vec<_> = (number..number + WINDOW).map(|it| frame(it, 1000)).collect();
            for frame in &window {
                from.send(frame);
            }
            for frame in &window {
                assert_eq!(to.receive_soon(), *frame);
            }
            number += WINDOW;
        }
    });
    assert!(bursts() >= before + 20, "both workers have their part");
    assert_eq!(there.counters.drops().collect::<Vec<_>>(), []);
}
