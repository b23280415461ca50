//! Hosts are loopback addresses: each test has its own, and all overlays can use the same port.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};
use std::{fmt, io, thread};

use proptest::prelude::*;
use weir_engine::burst::{Burst, Pieces, Scratch, TakenChain};
use weir_engine::{Outgoing, Port, PortCounters, Take, Taken, clock};
use weir_fabric::{Claim, EgressTag, Fabric, FrameKey, Learner, PortConfig, PortId, Vid};
use weir_guestmem::HostBuffer;
use weir_limits::{BURST_MAX, OVERLAY_BUFFERS, OVERLAY_PARKED_MAX};
use weir_wire::{Layers, Mac, Tci, VnetHdr, ethertype, vnet};

use crate::{
    ClaimsGroups, NetworkSpec, Networks, OuterDscp, OverlayError, OverlayOptions, OverlaySockets,
    Sighting, VxlanPort, header,
};

mod across;
mod marks;
mod suppress;

const GUEST: Mac = Mac([0x52, 0x54, 0, 0, 0, 1]);
const FAR: Mac = Mac([0x52, 0x54, 0, 0, 0, 2]);
const BLUE: u16 = 0;
const RED: u16 = 1;
const VNIS: [u32; 2] = [100, 200];
const PATIENCE: Duration = Duration::from_secs(60);

fn next_test() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The IPv4 address of host `last` in a test.
fn ip(test: u16, last: u8) -> IpAddr {
    let [high, low] = test.to_be_bytes();
    IpAddr::from([127, 64 + high, low, last])
}

fn options(local: IpAddr) -> OverlayOptions {
    OverlayOptions {
        local,
        interface: None,
        port: 4789,
        queues: 1,
        mtu: 1450,
        dscp: OuterDscp::Fixed(0),
    }
}

/// The IPv6 address of host `last` in a test, which needs its own network namespace.
fn ip6(test: u16, last: u8) -> IpAddr {
    Ipv6Addr::new(0x2001, 0xdb8, test, 0, 0, 0, 0, last.into()).into()
}

/// Opens a socket at an address once it is free. A program that another test starts has the last
/// test's socket open until its `exec`.
fn when_free<T, E: fmt::Debug>(
    mut open: impl FnMut() -> Result<T, E>,
    busy: impl Fn(&E) -> bool,
) -> T {
    let start = Instant::now();
    loop {
        match open() {
            Err(error) if busy(&error) && start.elapsed() < PATIENCE => thread::yield_now(),
            opened => return opened.unwrap(),
        }
    }
}

/// Host 1 with an overlay of two networks: hosts 2 and 3 are members of blue, 3 and 4 of red.
struct Rig {
    ip_of: Box<dyn Fn(u8) -> IpAddr>,
    fabric: Fabric,
    id: PortId,
    port: VxlanPort,
    counters: Arc<PortCounters>,
    scratch: Scratch,
    /// Sockets of hosts 2 to 5.
    hosts: Vec<UdpSocket>,
    /// The ID of the groups of the guest that sends.
    set_id: u16,
    /// True if that guest is isolated.
    isolated: bool,
}

impl Rig {
    fn new() -> Self {
        Self::with(1000)
    }

    fn with(floods_per_s: u32) -> Self {
        let test = next_test();
        Self::at(floods_per_s, move |last| ip(test, last), Vec::new())
    }

    /// A rig with hosts at these addresses, and queues that another process has left.
    fn at(floods_per_s: u32, ip_of: impl Fn(u8) -> IpAddr + 'static, left: Vec<OwnedFd>) -> Self {
        let options = options(ip_of(1));
        Self::by(&options, (floods_per_s, &[]), ip_of, left)
    }

    /// A rig where frames of these hosts have IDs of groups.
    fn with_groups_of(hosts: &[u8]) -> Self {
        let test = next_test();
        let ip_of = move |last| ip(test, last);
        Self::by(&options(ip_of(1)), (1000, hosts), ip_of, Vec::new())
    }

    fn by(
        options: &OverlayOptions,
        (floods_per_s, with_groups): (u32, &[u8]),
        ip_of: impl Fn(u8) -> IpAddr + 'static,
        left: Vec<OwnedFd>,
    ) -> Self {
        let spec = |number: u16, peers: [u8; 2]| NetworkSpec {
            number,
            vni: VNIS[usize::from(number)],
            peers: peers.map(&ip_of).into(),
            floods_per_s,
            neigh_suppress: number == BLUE,
        };
        let claims = (!with_groups.is_empty()).then(|| {
            let with: Vec<_> = with_groups.iter().map(|last| ip_of(*last)).collect();
            Arc::new(move |host| with.contains(&host)) as ClaimsGroups
        });
        let networks = Networks::new(&[spec(BLUE, [2, 3]), spec(RED, [3, 4])], 4789, claims);
        let mut left = Some(left);
        let busy = |error: &OverlayError| matches!(error, OverlayError::Busy(_));
        let open = || OverlaySockets::go_on(options, left.take().unwrap_or_default());
        let sockets = when_free(open, busy);
        let fabric = Fabric::new();
        let id = fabric.add_port(PortConfig::overlay(fabric.fdb().capacity())).unwrap();
        fabric.set_active(id, true).unwrap();
        let counters = Arc::new(PortCounters::default());
        let fdb = Arc::clone(fabric.fdb());
        let shared = Arc::clone(&counters);
        let port = VxlanPort::new("overlay".into(), id, sockets, networks, fdb, shared);
        let busy = |error: &io::Error| error.kind() == io::ErrorKind::AddrInUse;
        let bind = |last| when_free(|| UdpSocket::bind((ip_of(last), 4789)), busy);
        let hosts = (2..=5).map(bind).collect();
        let (ip_of, scratch) = (Box::new(ip_of), Scratch::default());
        Self { ip_of, fabric, id, port, counters, scratch, hosts, set_id: 0, isolated: false }
    }

    fn ip(&self, last: u8) -> IpAddr {
        (self.ip_of)(last)
    }

    fn host(&self, last: u8) -> &UdpSocket {
        &self.hosts[usize::from(last) - 2]
    }

    fn here(&self) -> SocketAddr {
        SocketAddr::new(self.ip(1), 4789)
    }

    /// Sends this datagram from host `last`.
    fn send_raw(&self, last: u8, datagram: &[u8]) {
        self.host(last).send_to(datagram, self.here()).unwrap();
    }

    fn send(&self, last: u8, vni: u32, frame: &[u8]) {
        self.send_raw(last, &[&header::plain(vni).to_be_bytes(), frame].concat());
    }

    fn take(&mut self, what: Take, mut forward: impl FnMut(&mut Burst<'_>)) -> Taken {
        self.port.take(0, what.at(1000), &mut self.scratch, &mut |burst| forward(burst))
    }

    /// Takes the frames that have come, each with its network.
    fn take_all(&mut self, what: Take) -> Vec<(u16, Vec<u8>)> {
        let mut frames = Vec::new();
        self.take(what, |burst| frames.extend(contents(burst)));
        frames
    }

    /// Takes the next frames: on a busy machine, loopback takes a moment.
    fn take_next(&mut self) -> Vec<(u16, Vec<u8>)> {
        weir_testing::eventually("frames come", || {
            Some(self.take_all(Take::New)).filter(|frames| !frames.is_empty())
        })
    }

    /// Takes the frames that have come, with the switch, which learns.
    fn take_and_learn(&mut self) {
        let (id, view, now_secs) = (self.id, self.fabric.view(), clock::secs(clock::now_ns()));
        let learn = &mut |burst: &mut Burst<'_>| {
            for frame in burst.frames() {
                let ethernet = weir_wire::Ethernet::parse(frame.head.as_slice()).unwrap();
                let key = FrameKey { src: ethernet.src, dst: ethernet.dst, tag: frame.tag };
                let _ = view.forward(id, &key, now_secs);
            }
        };
        self.port.take(0, Take::New.at(0), &mut self.scratch, learn);
    }

    fn drops(&self) -> Vec<(&'static str, u64)> {
        self.counters.drops().collect()
    }

    /// Makes the port deliver `frames`, each with its guest's header, as frames of `network`.
    fn deliver(&mut self, network: u16, frames: &[(VnetHdr, Vec<u8>)]) {
        let memory: Vec<HostBuffer> = frames
            .iter()
            .map(|(header, frame)| {
                let bytes = [&header.to_bytes()[..], frame].concat();
                let buffer = HostBuffer::new(bytes.len());
                buffer.slice(0, bytes.len()).unwrap().write(&bytes);
                buffer
            })
            .collect();
        let mut scratch = Scratch::default();
        let mut burst = scratch.lend();
        (burst.set_id, burst.isolated) = (self.set_id, self.isolated);
        for buffer in &memory {
            let pieces = Pieces::Only(buffer.slice(0, buffer.len()).unwrap());
            let chain = TakenChain { token: 0, len: buffer.len() as u32, pieces };
            burst.add(chain, VnetHdr::LEN, 0).unwrap();
        }
        let tag = EgressTag::Tagged(Tci::from_bits(network));
        let outgoing = |frame| Outgoing { frame, tag };
        let outgoing: Vec<_> = (0..frames.len() as u16).map(outgoing).collect();
        let delivered = self.port.deliver(0, &burst, &outgoing);
        assert_eq!(delivered.frames, frames.len());
    }

    fn deliver_plain(&mut self, network: u16, frames: &[Vec<u8>]) {
        let frames: Vec<_> =
            frames.iter().map(|frame| (VnetHdr::default(), frame.clone())).collect();
        self.deliver(network, &frames);
    }

    /// The next datagram that host `last` gets: its network, its frame, and its source port.
    fn received(&self, last: u8) -> (u32, Vec<u8>, u16) {
        let (datagram, from) = receive(self.host(last)).expect("a datagram");
        assert_eq!(from.ip(), self.ip(1));
        let (header, frame) = datagram.split_first_chunk().unwrap();
        (header::vni(*header).unwrap(), frame.to_vec(), from.port())
    }

    /// True if host `last` has got nothing more: a datagram that was sent before is there at once.
    fn is_silent(&self, last: u8) -> bool {
        let host = self.host(last);
        host.set_nonblocking(true).unwrap();
        let nothing = host.recv_from(&mut [0; 16]).is_err();
        host.set_nonblocking(false).unwrap();
        nothing
    }
}

fn receive(socket: &UdpSocket) -> Option<(Vec<u8>, SocketAddr)> {
    let mut bytes = vec![0; 70_000];
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let (len, from) = socket.recv_from(&mut bytes).ok()?;
    bytes.truncate(len);
    Some((bytes, from))
}

/// The network and bytes of every frame.
fn contents(burst: &Burst<'_>) -> Vec<(u16, Vec<u8>)> {
    let content = |frame: &weir_engine::burst::Frame| {
        let mut bytes = frame.head.as_slice().to_vec();
        for piece in burst.payload(frame) {
            let start = bytes.len();
            bytes.resize(start + piece.len(), 0);
            piece.read(&mut bytes[start..]);
        }
        (frame.tag.expect("a network").bits(), bytes)
    };
    burst.frames().iter().map(content).collect()
}

/// A frame of an experimental type with a number in it.
fn frame(dst: Mac, src: Mac, number: u16, len: usize) -> Vec<u8> {
    let mut frame = [&dst.0[..], &src.0, &[0x88, 0xb5], &number.to_be_bytes()].concat();
    frame.extend((frame.len()..len).map(|at| (at * 31 + usize::from(number)) as u8));
    frame
}

fn udp(src_port: u16, payload: &[u8]) -> Vec<u8> {
    let builder = etherparse::PacketBuilder::ethernet2(GUEST.0, FAR.0)
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
        .udp(src_port, 4789);
    let mut bytes = Vec::new();
    builder.write(&mut bytes, payload).unwrap();
    bytes
}

#[test]
fn frames_of_members_arrive_whole_in_their_network() {
    let mut rig = Rig::new();
    let frames: Vec<_> =
        (0..3).map(|n| frame(GUEST, FAR, n, [60, 1464, 30_000][usize::from(n)])).collect();
    rig.send(2, VNIS[0], &frames[0]);
    rig.send(3, VNIS[1], &frames[1]);
    rig.send(3, VNIS[0], &frames[2]);
    let expected = [(BLUE, frames[0].clone()), (RED, frames[1].clone()), (BLUE, frames[2].clone())];
    assert_eq!(rig.take_all(Take::New), expected);
    assert!(!rig.port.arm_tx(0), "the next datagram gives a kick");
    assert_eq!(rig.counters.tx[0].frames.get(), 3);
    assert_eq!(rig.port.free_buffers(0), OVERLAY_BUFFERS);
    assert_eq!(rig.drops(), []);
}

#[test]
fn what_came_as_one_message_is_taken_as_its_datagrams() {
    let mut rig = Rig::new();
    let mut sender = Rig::new();
    // The sender's host is not a peer here, so a peer relays its frames.
    let frames: Vec<_> = (0..100).map(|n| frame(FAR, GUEST, n, 500)).collect();
    for part in frames.chunks(BURST_MAX) {
        sender.deliver_plain(BLUE, part);
    }
    let mut relayed = Vec::new();
    for expected in &frames {
        let (vni, frame, _) = sender.received(2);
        assert_eq!((vni, &frame), (VNIS[0], expected));
        relayed.push(frame);
    }
    for frame in &relayed {
        rig.send(2, VNIS[0], frame);
    }
    let mut got = Vec::new();
    while got.len() < frames.len() {
        let more = rig.take_all(Take::New);
        assert!(more.len() <= BURST_MAX);
        got.extend(more.into_iter().map(|(_, frame)| frame));
    }
    assert_eq!(got, frames);
    assert_eq!(rig.port.free_buffers(0), OVERLAY_BUFFERS);
}

#[test]
fn what_is_no_frame_of_a_member_is_dropped_with_a_reason() {
    let mut rig = Rig::new();
    let good = frame(GUEST, FAR, 1, 60);
    let tagged = |kind: u16| {
        let mut frame = frame(GUEST, FAR, 1, 64);
        frame[12..14].copy_from_slice(&kind.to_be_bytes());
        frame
    };
    let mut extended = header::plain(VNIS[0]).to_be_bytes();
    extended[0] |= 0x04;
    rig.send_raw(2, b"");
    rig.send_raw(2, b"short");
    rig.send_raw(2, &[&[0; 8][..], &good].concat());
    rig.send_raw(2, &[&extended[..], &good].concat());
    rig.send(2, VNIS[0], &tagged(ethertype::VLAN));
    rig.send(2, VNIS[0], &tagged(ethertype::QINQ));
    rig.send(2, VNIS[0], &good[..13]);
    rig.send(2, VNIS[0], &[]);
    rig.send(2, 300, &good);
    // The first sender is a member of another network, the second of none.
    rig.send(2, VNIS[1], &good);
    rig.send(5, VNIS[0], &good);
    rig.send(2, VNIS[0], &good);
    assert_eq!(rig.take_all(Take::New), [(BLUE, good)], "the last one is good");
    let expected = [
        ("frame_too_short", 2),
        ("bad_encapsulation", 6),
        ("network_unknown", 1),
        ("remote_unknown", 2),
    ];
    assert_eq!(rig.drops(), expected);
    assert_eq!(rig.port.free_buffers(0), OVERLAY_BUFFERS);
}

#[test]
fn a_header_within_a_frame_is_the_guests_own() {
    let mut rig = Rig::new();
    let inner = [&header::plain(VNIS[1]).to_be_bytes()[..], &frame(GUEST, FAR, 7, 60)].concat();
    let outer = udp(50_000, &inner);
    rig.send(2, VNIS[0], &outer);
    assert_eq!(rig.take_all(Take::New), [(BLUE, outer)]);
}

#[test]
fn frames_go_to_the_host_behind_which_their_receiver_is() {
    let mut rig = Rig::new();
    rig.send(3, VNIS[0], &frame(GUEST, FAR, 0, 60));
    rig.take_and_learn();
    let sent = frame(FAR, GUEST, 1, 200);
    rig.deliver_plain(BLUE, std::slice::from_ref(&sent));
    assert_eq!(rig.received(3).1, sent);
    assert!([2, 4, 5].iter().all(|&last| rig.is_silent(last)));

    // In another network the same address is another station, and unknown.
    rig.deliver_plain(RED, std::slice::from_ref(&sent));
    for last in [3, 4] {
        let (vni, got, _) = rig.received(last);
        assert_eq!((vni, &got), (VNIS[1], &sent));
    }
    assert!([2, 5].iter().all(|&last| rig.is_silent(last)));

    // The station has moved.
    rig.send(2, VNIS[0], &frame(GUEST, FAR, 2, 60));
    rig.take_and_learn();
    rig.deliver_plain(BLUE, std::slice::from_ref(&sent));
    assert_eq!(rig.received(2).1, sent);
    assert!([3, 4, 5].iter().all(|&last| rig.is_silent(last)));
    assert_eq!(rig.drops(), []);
}

#[test]
fn the_overlay_takes_no_address_of_a_guest_here() {
    let mut rig = Rig::new();
    let vlan = weir_fabric::VlanMode::Access(Vid::of_network(BLUE).unwrap());
    let mac_check = weir_fabric::MacCheck::Pinned(GUEST);
    let vif = rig.fabric.add_port(PortConfig { vlan, mac_check, ..PortConfig::vif() }).unwrap();
    rig.fabric.set_active(vif, true).unwrap();
    rig.send(2, VNIS[0], &frame(FAR, GUEST, 0, 60));
    rig.take_and_learn();
    let blue = Vid::of_network(BLUE).unwrap();
    assert_eq!(rig.fabric.fdb().lookup(blue, GUEST, 0), Some(vif));
    assert_eq!(rig.fabric.fdb().remote(blue, GUEST, rig.id, 0), None);
}

#[test]
fn a_gso_frame_for_all_peers_counts_as_its_segments() {
    let mut rig = Rig::with(1);
    let gso = |segments: usize| {
        let mut frame = Vec::new();
        etherparse::PacketBuilder::ethernet2(GUEST.0, [0xff; 6])
            .ipv4([10, 0, 0, 1], [10, 0, 0, 255], 64)
            .udp(1000, 2000)
            .write(&mut frame, &vec![0; 100 * segments])
            .unwrap();
        let header = VnetHdr {
            flags: vnet::F_NEEDS_CSUM,
            gso_type: vnet::GSO_UDP_L4,
            hdr_len: 42,
            gso_size: 100,
            csum_start: 34,
            csum_offset: 6,
            num_buffers: 0,
        };
        (header, frame)
    };
    // The packet is more than a burst of 64 frames: no part of it is sent, and none of the budget is used.
    rig.deliver(BLUE, &[gso(65)]);
    assert_eq!(rig.drops(), [("flood_budget", 1)]);
    rig.deliver(BLUE, &[gso(31), gso(31), gso(31)]);
    assert_eq!(rig.drops(), [("flood_budget", 2)]);
}

#[test]
fn broadcasts_go_to_every_peer_of_their_network_within_a_budget() {
    let mut rig = Rig::with(10);
    let sent = frame(Mac::BROADCAST, GUEST, 1, 60);
    rig.deliver_plain(BLUE, std::slice::from_ref(&sent));
    for last in [2, 3] {
        assert_eq!(rig.received(last).1, sent);
    }
    assert!([4, 5].iter().all(|&last| rig.is_silent(last)));
    // At most a burst of 64 was sent; the time that passes adds few more.
    for _ in 0..3 {
        rig.deliver_plain(BLUE, &vec![sent.clone(); BURST_MAX]);
    }
    let dropped = rig.drops();
    assert_eq!(dropped.len(), 1);
    assert_eq!(dropped[0].0, "flood_budget");
    assert!((1..=2 * BURST_MAX as u64 + 1).contains(&dropped[0].1), "{dropped:?}");
    // The budget of another network is untouched, and a frame for one host needs no budget.
    rig.deliver_plain(RED, std::slice::from_ref(&sent));
    assert_eq!(rig.received(4).1, sent);
}

#[test]
fn a_flow_has_one_source_port_and_flows_differ() {
    let mut rig = Rig::new();
    let frames: Vec<_> =
        (0..BURST_MAX as u16).map(|n| udp(1000 + n % 16, &n.to_be_bytes())).collect();
    rig.deliver_plain(BLUE, &frames);
    let mut ports = std::collections::HashMap::<u16, (u16, u16)>::new();
    for _ in &frames {
        let (_, frame, outer) = rig.received(2);
        let flow = u16::from_be_bytes([frame[34], frame[35]]);
        let number = u16::from_be_bytes([frame[42], frame[43]]);
        let last = ports.entry(flow).or_insert((outer, 0));
        assert_eq!(last.0, outer, "flow {flow}");
        assert!(last.1 <= number, "flow {flow} is out of order");
        last.1 = number;
    }
    let different: std::collections::HashSet<_> = ports.values().map(|(outer, _)| outer).collect();
    assert!(different.len() > 4, "16 flows by {} ports", different.len());
}

#[test]
fn large_frames_are_cut_into_segments_whose_checksums_are_right() {
    let mut rig = Rig::new();
    let payload: Vec<u8> = (0..30_000).map(|n| (n * 7) as u8).collect();
    let builder = etherparse::PacketBuilder::ethernet2(GUEST.0, FAR.0)
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
        .tcp(1000, 2000, 5, 1000);
    let mut large = Vec::new();
    builder.write(&mut large, &payload).unwrap();
    // The guest leaves offloads pending: the checksum field has only the sum of the pseudo-header,
    // and segments have 1400 bytes.
    let pseudo = weir_wire::checksum::pseudo_header_v4(
        [10, 0, 0, 1].into(),
        [10, 0, 0, 2].into(),
        6,
        20 + payload.len() as u16,
    );
    large[50..52].copy_from_slice(&pseudo.folded().to_be_bytes());
    let header = VnetHdr {
        flags: vnet::F_NEEDS_CSUM,
        gso_type: vnet::GSO_TCPV4,
        hdr_len: 54,
        gso_size: 1400,
        csum_start: 34,
        csum_offset: 16,
        ..VnetHdr::default()
    };
    rig.deliver(BLUE, &[(header, large)]);
    let mut got = Vec::new();
    while got.len() < payload.len() {
        let (_, segment, _) = rig.received(2);
        let parsed = etherparse::PacketHeaders::from_ethernet_slice(&segment).unwrap();
        let (
            Some(etherparse::NetHeaders::Ipv4(ip, _)),
            Some(etherparse::TransportHeader::Tcp(tcp)),
        ) = (parsed.net, parsed.transport)
        else {
            panic!("no TCP over IPv4")
        };
        let body = parsed.payload.slice();
        assert_eq!(tcp.checksum, tcp.calc_checksum_ipv4(&ip, body).unwrap());
        assert_eq!(tcp.sequence_number as usize, 5 + got.len());
        assert!(Layers::parse(&segment).is_ok() && body.len() <= 1400);
        got.extend_from_slice(body);
    }
    assert_eq!(got, payload);
    assert!(rig.is_silent(4) && rig.is_silent(5));
}

#[test]
fn waiting_frames_keep_their_bytes_and_their_buffers() {
    let mut rig = Rig::new();
    let full = PortId::new(9).unwrap();
    for number in 0..3 {
        rig.send(2, VNIS[0], &frame(GUEST, FAR, number, 700));
    }
    let taken = rig.take(Take::New, |burst| assert!(burst.park(2, full) && burst.park(0, full)));
    assert_eq!(taken.parked, 2);
    assert_eq!(rig.port.free_buffers(0), OVERLAY_BUFFERS - 2);
    // Other frames pass meanwhile, through more buffers than there are.
    for number in 0..2 * OVERLAY_BUFFERS as u16 {
        let sent = frame(GUEST, FAR, 100 + number, 700);
        rig.send(3, VNIS[1], &sent);
        assert_eq!(rig.take_all(Take::New), [(RED, sent)]);
    }
    let waited = [0, 2].map(|number| (BLUE, frame(GUEST, FAR, number, 700)));
    assert_eq!(rig.take_all(Take::Parked(None)), waited);
    assert_eq!(rig.port.free_buffers(0), OVERLAY_BUFFERS);
}

#[test]
fn a_burst_ends_where_waiting_frames_leave_no_buffer() {
    let mut rig = Rig::new();
    let full = PortId::new(9).unwrap();
    let sent = frame(GUEST, FAR, 7, 700);
    let send = |rig: &Rig, frames| (0..frames).for_each(|_| rig.send(2, VNIS[0], &sent));
    let mut parked = 0;
    while parked < OVERLAY_PARKED_MAX {
        send(&rig, OVERLAY_PARKED_MAX - parked);
        let taken = rig.take(Take::New, |burst| {
            (0..burst.frames().len() as u16).for_each(|frame| assert!(burst.park(frame, full)));
        });
        parked += taken.parked;
    }
    let free = OVERLAY_BUFFERS - parked;
    send(&rig, free + 1);
    assert_eq!(rig.take_all(Take::New).len(), free);
    assert_eq!(rig.take_all(Take::New).len(), 1);
    assert_eq!(rig.take_all(Take::Parked(None)).len(), parked);
    assert_eq!(rig.port.free_buffers(0), OVERLAY_BUFFERS);
}

#[test]
fn an_overlay_that_cannot_be_opened_says_why() {
    let elsewhere = IpAddr::from([203, 0, 113, 77]);
    let error = OverlaySockets::open(&options(elsewhere)).unwrap_err();
    assert!(matches!(error, OverlayError::NoAddress(ip) if ip == elsewhere), "{error}");
    assert!(error.help().unwrap().contains("203.0.113.77"));

    let here = ip(u16::MAX / 2, 1);
    let _first = OverlaySockets::open(&options(here)).unwrap();
    let error = OverlaySockets::open(&options(here)).unwrap_err();
    assert!(matches!(error, OverlayError::Busy(at) if at.port() == 4789), "{error}");

    let bound =
        |name: &str, mtu| OverlayOptions { interface: Some(name.into()), mtu, ..options(here) };
    let error = OverlaySockets::open(&bound("nosuch0", 1450)).unwrap_err();
    assert_eq!(error.to_string(), "there is no interface `nosuch0`");
    let error = OverlaySockets::open(&bound("lo", 65_500)).unwrap_err();
    assert!(matches!(error, OverlayError::Mtu { needs: 65_550, .. }), "{error}");
    assert!(error.help().unwrap().contains("65550"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever a member sends, only frames of its own networks arrive, and no buffer is lost.
    #[test]
    fn any_datagrams_of_a_member_harm_nobody(
        datagrams in prop::collection::vec(
            (prop::option::of(0..400_u32), prop::collection::vec(any::<u8>(), 0..300)),
            1..80,
        )
    ) {
        let mut rig = Rig::new();
        let mut expected = 0;
        for (vni, bytes) in &datagrams {
            match vni {
                Some(vni) => rig.send(2, *vni, bytes),
                None => rig.send_raw(2, bytes),
            }
            let whole = match vni {
                Some(vni) => [&header::plain(*vni).to_be_bytes()[..], bytes].concat(),
                None => bytes.clone(),
            };
            let of_blue = whole.first_chunk().and_then(|it| header::vni(*it)) == Some(VNIS[0]);
            let kind = whole.get(20..22).map(|kind| u16::from_be_bytes([kind[0], kind[1]]));
            let is_tagged = matches!(kind, Some(ethertype::VLAN | ethertype::QINQ));
            expected += usize::from(of_blue && whole.len() >= 22 && !is_tagged);
        }
        let (mut frames, mut looked) = (0, 0);
        while looked < datagrams.len() {
            let mut blue = true;
            let taken = rig.take(Take::New, |burst| {
                frames += burst.frames().len();
                blue = burst.frames().iter().all(|frame| frame.tag == Some(Tci::from_bits(BLUE)));
            });
            prop_assert!(blue);
            looked += taken.frames;
            prop_assert!(taken.frames > 0);
        }
        prop_assert_eq!(frames, expected);
        prop_assert_eq!(rig.port.free_buffers(0), OVERLAY_BUFFERS);
        let dropped: u64 = rig.counters.drops().map(|(_, count)| count).sum();
        prop_assert_eq!(dropped as usize, datagrams.len() - expected);
    }
}
