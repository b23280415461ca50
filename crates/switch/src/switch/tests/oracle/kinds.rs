//! Kinds of frames: packets, each behind each stack of tags, with the offloads that their guest leaves to its device.
//! A new kind takes one line in [`packets`], [`segmented`] or [`TAGS`].

use weir_wire::{VnetHdr, vnet};

/// A frame as a guest sends it.
pub(super) struct Kind {
    pub(super) name: String,
    pub(super) frame: Vec<u8>,
    pub(super) header: VnetHdr,
    pub(super) tags: &'static [(u16, u16)],
}

/// A packet after its Ethernet type, and its pending checksum: the start, and the offset from the start.
#[derive(Clone)]
struct Packet {
    name: String,
    ethertype: u16,
    bytes: Vec<u8>,
    ask: Option<(usize, usize)>,
}

const C: u16 = 0x8100;
const S: u16 = 0x88a8;

/// Stacks of tags, outermost first.
const TAGS: &[(&str, &[(u16, u16)])] = &[
    ("", &[]),
    ("tag", &[(C, 10)]),
    ("tag with a priority", &[(C, 0xa00a)]),
    ("priority tag", &[(C, 0xe000)]),
    ("tag of the native VLAN", &[(C, 1)]),
    ("two tags", &[(C, 10), (C, 20)]),
    ("service tag", &[(S, 10)]),
    ("priority service tag", &[(S, 0xe000)]),
    ("service and customer tag", &[(S, 10), (C, 20)]),
    ("two service tags", &[(S, 10), (S, 20)]),
    ("customer and service tag", &[(C, 10), (S, 20)]),
];

/// The segment size of TCP in GSO frames, and the payload of whole packets.
const MSS: u16 = 1000;

/// All kinds.
pub(super) fn all() -> Vec<Kind> {
    let mut kinds = Vec::new();
    for (tags_name, tags) in TAGS {
        let named = |name: &str| match *tags_name {
            "" => name.to_owned(),
            tags => format!("{name} behind {tags}"),
        };
        for packet in packets() {
            kinds.extend(packet.kinds(tags, &named));
        }
        for (packet, gso_type) in segmented() {
            kinds.push(packet.gso(tags, gso_type, &named));
        }
    }
    kinds
}

impl Packet {
    fn frame(&self, tags: &[(u16, u16)]) -> Vec<u8> {
        let addresses = [[0x52, 0x54, 0, 0, 0, 2], [0x52, 0x54, 0, 0, 0, 1]];
        let tags = tags.iter().flat_map(|(kind, tci)| [kind.to_be_bytes(), tci.to_be_bytes()]);
        let tags: Vec<u8> = tags.flatten().collect();
        [addresses.as_flattened(), &tags, &self.ethertype.to_be_bytes(), &self.bytes].concat()
    }

    fn header(&self, tags: &[(u16, u16)]) -> VnetHdr {
        let Some((start, offset)) = self.ask else { return VnetHdr::default() };
        VnetHdr {
            flags: vnet::F_NEEDS_CSUM,
            csum_start: (14 + tags.len() * 4 + start) as u16,
            csum_offset: offset as u16,
            ..VnetHdr::default()
        }
    }

    /// The packet with its checksum done, and with its checksum pending.
    fn kinds(&self, tags: &'static [(u16, u16)], named: &dyn Fn(&str) -> String) -> Vec<Kind> {
        let (frame, header) = (self.frame(tags), self.header(tags));
        let done = super::completed(&header, &frame);
        let plain = Kind { name: named(&self.name), frame: done, header: VnetHdr::default(), tags };
        let left = self.ask.map(|_| {
            let name = named(&format!("{} with its checksum left to do", self.name));
            Kind { name, frame, header, tags }
        });
        [plain].into_iter().chain(left).collect()
    }

    fn gso(
        &self,
        tags: &'static [(u16, u16)],
        gso_type: u8,
        named: &dyn Fn(&str) -> String,
    ) -> Kind {
        let frame = self.frame(tags);
        let header = self.header(tags);
        let l4_len = if gso_type == vnet::GSO_UDP_L4 { 8 } else { 20 };
        let hdr_len = header.csum_start + l4_len;
        let header = VnetHdr { gso_type, gso_size: MSS, hdr_len, ..header };
        Kind { name: named(&format!("GSO of {}", self.name)), frame, header, tags }
    }

    /// The packet inside another one, `front` bytes further on.
    fn inside(self, outer: &str, front: &[u8]) -> (String, Vec<u8>, Option<(usize, usize)>) {
        let ask = self.ask.map(|(start, offset)| (start + front.len(), offset));
        (format!("{} in {outer}", self.name), [front, &self.bytes].concat(), ask)
    }
}

fn data(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 7 + 3) as u8).collect()
}

/// The sum of RFC 1071, not complemented.
fn sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2);
    let words = words.map(|pair| u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0)));
    let mut sum = words.sum::<u64>();
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

/// The payload of an IP packet: its protocol, its bytes, and the pending checksum in it. `own` is the position of its
/// own checksum, whose field gets the sum of the pseudo-header.
struct Body {
    name: String,
    protocol: u8,
    bytes: Vec<u8>,
    own: Option<usize>,
    ask: Option<(usize, usize)>,
}

fn body(name: &str, protocol: u8, bytes: Vec<u8>, own: Option<usize>) -> Body {
    Body { name: name.into(), protocol, bytes, own, ask: own.map(|own| (0, own)) }
}

fn tcp(len: usize) -> Body {
    let header = [0x9c, 0x40, 0, 80, 0, 0, 0, 9, 0, 0, 0, 5, 0x50, 0x18, 1, 0, 0, 0, 0, 0];
    body("TCP", 6, [&header[..], &data(len)].concat(), Some(16))
}

fn udp_to(port: u16, payload: &[u8]) -> Vec<u8> {
    let [port, len] = [port, 8 + payload.len() as u16].map(u16::to_be_bytes);
    [&[0x9c, 0x40][..], &port, &len, &[0, 0], payload].concat()
}

fn udp(len: usize) -> Body {
    body("UDP", 17, udp_to(9, &data(len)), Some(6))
}

/// The body in an IPv4 packet with `options` words of options and this field of flags and offset.
fn ipv4_with(body: Body, options: u8, fragment: u16) -> Packet {
    let Body { name, protocol, mut bytes, own, ask } = body;
    let addresses = [10, 0, 0, 1, 10, 0, 0, 2];
    if let Some(own) = own {
        let len = (bytes.len() as u16).to_be_bytes();
        let pseudo = [&addresses[..], &[0, protocol], &len].concat();
        bytes[own..own + 2].copy_from_slice(&sum(&pseudo).to_be_bytes());
    }
    let front = 20 + usize::from(options) * 4;
    let len = ((front + bytes.len()) as u16).to_be_bytes();
    let fragment = fragment.to_be_bytes();
    let mut header = vec![0x45 + options, 0, len[0], len[1], 0x12, 0x34];
    header.extend([fragment[0], fragment[1], 64, protocol, 0, 0]);
    header.extend(addresses);
    header.resize(front, 1);
    let checksum = !sum(&header);
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    let ask = ask.map(|(start, offset)| (start + front, offset));
    Packet {
        name: format!("{name} over IPv4"),
        ethertype: 0x0800,
        bytes: [header, bytes].concat(),
        ask,
    }
}

fn ipv4(body: Body) -> Packet {
    ipv4_with(body, 0, 0x4000)
}

/// The body in an IPv6 packet after these extension headers, each with its protocol.
fn ipv6_behind(body: Body, extensions: &[(u8, Vec<u8>)]) -> Packet {
    let Body { name, protocol, mut bytes, own, ask } = body;
    let address = |last| [[0xfd, 0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0, last]];
    let addresses = [address(1), address(2)].concat();
    if let Some(own) = own {
        let len = (bytes.len() as u32).to_be_bytes();
        let pseudo = [addresses.as_flattened(), &len, &[0, 0, 0, protocol]].concat();
        bytes[own..own + 2].copy_from_slice(&sum(&pseudo).to_be_bytes());
    }
    let mut behind = Vec::new();
    let mut next: Vec<u8> = extensions.iter().map(|(kind, _)| *kind).collect();
    next.push(protocol);
    for ((_, extension), next) in extensions.iter().zip(&next[1..]) {
        behind.push(*next);
        behind.extend(&extension[1..]);
    }
    let front = 40 + behind.len();
    let len = ((behind.len() + bytes.len()) as u16).to_be_bytes();
    let header = [0x60, 0, 0, 0, len[0], len[1], next[0], 64];
    let names = extensions.iter().map(|(kind, bytes)| format!(" behind {kind} ({})", bytes.len()));
    Packet {
        name: format!("{name} over IPv6{}", names.collect::<String>()),
        ethertype: 0x86dd,
        bytes: [&header[..], addresses.as_flattened(), &behind, &bytes].concat(),
        ask: ask.map(|(start, offset)| (start + front, offset)),
    }
}

fn ipv6(body: Body) -> Packet {
    ipv6_behind(body, &[])
}

/// An extension header of `len` bytes with these options.
fn options(kind: u8, len: usize) -> (u8, Vec<u8>) {
    let mut bytes = vec![0, (len / 8 - 1) as u8, 1, (len - 4) as u8];
    bytes.resize(len, 0);
    (kind, bytes)
}

/// A segment routing header, at its last segment.
fn routing(len: usize) -> (u8, Vec<u8>) {
    let mut bytes = vec![0, (len / 8 - 1) as u8, 4, 0, ((len - 8) / 16 - 1) as u8, 0, 0, 0];
    bytes.resize(len, 0xfd);
    (43, bytes)
}

fn fragment(offset_and_more: u16) -> (u8, Vec<u8>) {
    let [high, low] = offset_and_more.to_be_bytes();
    (44, vec![0, 0, high, low, 0, 0, 0, 9])
}

fn whole_frame(inner: Packet) -> Packet {
    let front = [2, 0, 0, 0, 9, 2, 2, 0, 0, 0, 9, 1];
    let [high, low] = inner.ethertype.to_be_bytes();
    let (name, bytes, ask) = inner.inside("Ethernet", &[&front[..], &[high, low]].concat());
    Packet { name, ethertype: 0x6558, bytes, ask }
}

/// The packet in a UDP tunnel to `port` with `header`. The outer datagram has no checksum.
fn in_udp(inner: Packet, name: &str, port: u16, header: [u8; 8]) -> Body {
    let (name, bytes, ask) = inner.inside(name, &header);
    let ask = ask.map(|(start, offset)| (start + 8, offset));
    Body { name, protocol: 17, bytes: udp_to(port, &bytes), own: None, ask }
}

fn vxlan(inner: Packet) -> Body {
    in_udp(whole_frame(inner), "VXLAN", 4789, [8, 0, 0, 0, 0, 0, 7, 0])
}

fn geneve(inner: Packet) -> Body {
    in_udp(whole_frame(inner), "Geneve", 6081, [0, 0, 0x65, 0x58, 0, 0, 7, 0])
}

/// The packet in GRE. If GRE has a checksum, that checksum is the pending one.
fn gre(inner: Packet, has_checksum: bool) -> Body {
    let [high, low] = inner.ethertype.to_be_bytes();
    let plain = [0, 0, high, low];
    let summed = [0x80, 0, high, low, 0, 0, 0, 0];
    let front = if has_checksum { &summed[..] } else { &plain[..] };
    // GRE's checksum covers the inner one, which must be complete.
    let inner = if has_checksum { inner.done() } else { inner };
    let (name, bytes, ask) =
        inner.inside(if has_checksum { "GRE with a checksum" } else { "GRE" }, front);
    let ask = if has_checksum { Some((0, 4)) } else { ask };
    Body { name, protocol: 47, bytes, own: None, ask }
}

fn in_ip(inner: Packet) -> Body {
    let protocol = if inner.ethertype == 0x0800 { 4 } else { 41 };
    let (name, bytes, ask) = inner.inside("IP", &[]);
    Body { name, protocol, bytes, own: None, ask }
}

impl Packet {
    /// The packet with its checksum done.
    fn done(self) -> Self {
        let header = VnetHdr { csum_start: 0, ..self.header(&[]) };
        let bytes = match self.ask {
            Some((start, offset)) => super::completed(
                &VnetHdr { csum_start: start as u16, csum_offset: offset as u16, ..header },
                &self.bytes,
            ),
            None => self.bytes,
        };
        Self { bytes, ask: None, ..self }
    }

    /// The packet with this traffic class.
    fn of_class(mut self, class: u8) -> Self {
        match self.ethertype {
            0x0800 => {
                self.bytes[1] = class;
                self.bytes[10..12].fill(0);
                let checksum = !sum(&self.bytes[..20]);
                self.bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
            }
            _ => self.bytes[..2].copy_from_slice(&[0x60 | class >> 4, class << 4]),
        }
        self.name += &format!(" of class {class}");
        self
    }

    fn called(self, name: &str) -> Self {
        Self { name: name.into(), ..self }
    }
}

fn other(name: &str, ethertype: u16, bytes: Vec<u8>) -> Packet {
    Packet { name: name.into(), ethertype, bytes, ask: None }
}

fn packets() -> Vec<Packet> {
    let icmp6 =
        |len| body("ICMPv6", 58, [&[128, 0, 0, 0, 0, 1, 0, 1], &data(len)[..]].concat(), Some(2));
    let sctp = [&[0x9c, 0x40, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0][..], &data(80)].concat();
    let mut lite = udp_to(9, &data(90));
    lite[4..6].copy_from_slice(&[0, 0]);
    let arp = [
        &[0, 1, 8, 0, 6, 4, 0, 1, 0x52, 0x54, 0, 0, 0, 1, 10, 0, 0, 1][..],
        &[0; 6],
        &[10, 0, 0, 2],
    ];
    let zero = |len| Body { own: None, ask: None, ..udp(len) };
    // Each mark of congestion (RFC 3168), and one behind a DSCP.
    let classes = [1, 2, 3, 0xb9];
    let of_classes = |packet: Packet| classes.map(|class| packet.clone().of_class(class));
    let marked = [ipv4(tcp(90)), ipv6(udp(91))].map(of_classes);
    let mut packets = vec![
        ipv4(tcp(0)),
        ipv4(tcp(1)).called("TCP with a byte over IPv4"),
        ipv4(tcp(1460)).called("full TCP over IPv4"),
        ipv4_with(tcp(100), 10, 0x4000).called("TCP behind options of IPv4"),
        ipv4(udp(101)),
        ipv4(zero(50)).called("UDP without a checksum over IPv4"),
        ipv4_with(udp(800), 0, 0x2000).called("first fragment of UDP over IPv4"),
        ipv4_with(body("", 17, data(300), None), 0, 0x0064).called("later fragment over IPv4"),
        ipv4(body("ICMP", 1, [&[8, 0, 0, 0, 0, 1, 0, 1], &data(56)[..]].concat(), None)),
        ipv4(Body { ask: Some((0, 8)), ..body("SCTP", 132, sctp.clone(), None) }),
        ipv4(body("UDP-Lite", 136, lite.clone(), Some(6))),
        ipv4(gre(whole_frame(ipv4(tcp(60))), true)),
        ipv4(gre(ipv4(udp(61)), true)),
        ipv4(gre(ipv4(tcp(62)), false)),
        ipv4(gre(ipv6(tcp(63)), false)),
        ipv4(gre(whole_frame(ipv6(udp(64))), false)),
        ipv4(vxlan(ipv4(tcp(65)))),
        ipv4(vxlan(ipv6(udp(66)))),
        ipv4(vxlan(other("ARP", 0x0806, arp.concat()))),
        ipv4(geneve(ipv4(tcp(67)))),
        ipv4(in_ip(ipv4(tcp(68)))),
        ipv4(in_ip(ipv6(udp(69)))),
        ipv4(body("ESP", 50, data(120), None)),
        ipv6(tcp(0)),
        ipv6(tcp(1440)).called("full TCP over IPv6"),
        ipv6(udp(70)),
        ipv6(icmp6(40)),
        ipv6(icmp6(1)).called("ICMPv6 with a byte over IPv6"),
        ipv6(Body { ask: Some((0, 8)), ..body("SCTP", 132, sctp, None) }),
        ipv6(body("UDP-Lite", 136, lite, Some(6))),
        ipv6(gre(whole_frame(ipv4(tcp(71))), true)),
        ipv6(vxlan(ipv4(tcp(72)))),
        ipv6(in_ip(ipv6(tcp(73)))),
        ipv6(in_ip(ipv4(udp(74)))),
        ipv6_behind(tcp(75), &[options(0, 8)]),
        ipv6_behind(udp(76), &[options(60, 24)]),
        ipv6_behind(tcp(77), &[options(0, 8), routing(40), options(60, 16)]),
        ipv6_behind(tcp(78), &[routing(56)]),
        ipv6_behind(tcp(79), &[routing(104)]),
        ipv6_behind(udp(80), &[routing(104)]),
        ipv6_behind(icmp6(81), &[routing(104)]),
        ipv6_behind(tcp(82), &[routing(72)]),
        ipv6_behind(tcp(83), &[options(60, 64)]),
        ipv6_behind(tcp(84), &[options(60, 600)]),
        ipv6_behind(udp(85), &[fragment(1)]),
        ipv6_behind(udp(86), &[fragment(0)]),
        ipv6_behind(Body { own: None, ask: None, ..udp(87) }, &[fragment(0x0101)]),
        ipv6_behind(
            Body { own: None, ask: None, ..tcp(88) },
            &[(51, [&[0, 4, 0, 0][..], &data(20)].concat())],
        ),
        other("ARP", 0x0806, arp.concat()),
        other("RARP", 0x8035, arp.concat()),
        other("MPLS", 0x8847, [&[0, 1, 1, 64][..], &ipv4(tcp(89)).done().bytes].concat()),
        other("PPPoE", 0x8864, [&[0x11, 0, 0, 1, 0, 60, 0, 0x21][..], &data(58)].concat()),
        other("LLC", 46, [&[0x42, 0x42, 3][..], &data(43)].concat()),
        other("local experimental", 0x88b5, data(46)),
        other("nothing but a header", 0x88b5, Vec::new()),
        other("a byte", 0x88b5, vec![7]),
        other("a full frame", 0x88b5, data(1500)),
        other("a byte more than a full frame", 0x88b5, data(1501)),
        other("five bytes more than a full frame", 0x88b5, data(1505)),
    ];
    packets.extend(marked.into_iter().flatten());
    packets
}

/// Frames that the device is to cut, with their names.
fn segmented() -> Vec<(Packet, u8)> {
    const ECN: u8 = vnet::GSO_TCPV4 | vnet::GSO_ECN;
    let cwr = || {
        let mut body = tcp(3000);
        body.bytes[13] |= 0x80;
        body
    };
    let v4 = |packet: Packet, name: &str| (packet.called(name), vnet::GSO_TCPV4);
    vec![
        (ipv4(tcp(3000)), vnet::GSO_TCPV4),
        v4(ipv4(tcp(4001)), "TCP with a short last segment over IPv4"),
        v4(ipv4_with(tcp(3000), 10, 0x4000), "TCP behind options of IPv4"),
        v4(ipv4_with(tcp(3000), 0, 0), "TCP that may be fragmented"),
        v4(ipv4(tcp(60_000)), "TCP of 60,000 bytes over IPv4"),
        (ipv4(cwr()).called("TCP with ECN over IPv4"), ECN),
        (ipv6(tcp(3000)), vnet::GSO_TCPV6),
        (ipv6_behind(tcp(3000), &[options(0, 8)]), vnet::GSO_TCPV6),
        (ipv6_behind(tcp(3000), &[routing(40)]), vnet::GSO_TCPV6),
        (ipv6_behind(tcp(3000), &[routing(104)]), vnet::GSO_TCPV6),
        (ipv4(udp(3000)), vnet::GSO_UDP_L4),
        (ipv4(udp(2001)).called("UDP with a short last datagram over IPv4"), vnet::GSO_UDP_L4),
        (ipv6(udp(3000)), vnet::GSO_UDP_L4),
    ]
}
