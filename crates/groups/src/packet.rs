//! The headers of a frame, as far as groups need them. The frame has no VLAN tag here.

use weir_limits::IPV6_EXT_HEADERS_MAX;
use weir_wire::ethertype;
use weir_wire::layers::protocol;

use crate::chunks::Chunks;
use crate::rules::Direction;

/// The ends of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flow {
    /// IPv6.
    pub v6: bool,
    /// The protocol behind all extension headers.
    pub protocol: u8,
    pub src: u128,
    pub dst: u128,
    /// The source port, or the identifier of an ICMP query; 0 if the protocol has neither.
    pub sport: u16,
    pub dport: u16,
    /// The value that a rule's ports are compared with: the destination port, or the type of an ICMP message.
    pub value: Option<u16>,
}

impl Flow {
    /// The flow of a packet in the other direction; for the answer to a query, the query's flow.
    pub fn reversed(&self) -> Self {
        let (src, dst, sport, dport) = (self.dst, self.src, self.dport, self.sport);
        Self { src, dst, sport, dport, value: self.value.map(|_| dport), ..*self }
    }
}

/// Flags of a TCP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flags(pub u8);

impl Flags {
    pub const FIN: u8 = 1;
    pub const SYN: u8 = 2;
    pub const RST: u8 = 4;
    pub const ACK: u8 = 16;
    const URG: u8 = 32;

    pub const fn has(self, flag: u8) -> bool {
        self.0 & flag != 0
    }

    /// True for the flags of a first segment.
    pub fn only_opens(self) -> bool {
        self.0 & (Self::FIN | Self::SYN | Self::RST | Self::ACK) == Self::SYN
    }

    /// True for combinations that a sender following RFC 9293 sets.
    pub fn are_valid(self) -> bool {
        let urgent = self.has(Self::URG);
        match self.0 & (Self::FIN | Self::SYN | Self::RST) {
            0 | Self::FIN => self.has(Self::ACK),
            Self::SYN => !(urgent && self.has(Self::ACK)),
            Self::RST => !urgent,
            _ => false,
        }
    }
}

/// The kind of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A segment of TCP.
    Tcp(Flags),
    /// A packet of SCTP.
    Sctp(Chunks),
    /// A datagram of UDP or UDP-Lite.
    Ports,
    /// An ICMP query, by its type in `dport` of the flow.
    Query,
    /// An answer to an ICMP query; the flow has the query's type in `sport`.
    Answer,
    /// An ICMP error, with the packet that it quotes if this could be read.
    Error(Option<Quoted>),
    /// A message of neighbour discovery or of multicast listeners, by its type.
    Link(u8),
    /// Another ICMP message: each one is judged by itself.
    Message,
    /// A packet of another protocol: only its addresses count.
    Other,
    /// A fragment other than the first one.
    Fragment,
}

/// The packet that an ICMP error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quoted {
    pub flow: Flow,
    /// `true` for an ICMP query, `false` for the answer to one.
    pub is_query: Option<bool>,
}

/// The place of a fragment in its datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub id: u32,
    /// The first byte in the datagram, and the byte behind the last one.
    pub start: u32,
    pub end: u32,
    /// More fragments follow.
    pub more: bool,
}

/// A packet of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packet {
    pub flow: Flow,
    pub kind: Kind,
    pub part: Option<Part>,
    pub hop_limit: u8,
}

/// The contents of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carried {
    /// A packet.
    Ip(Packet),
    /// ARP, or the announcement of a guest that has moved (RARP).
    Arp,
    /// Neither.
    Other,
}

/// A frame that cannot be judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// The headers continue behind the available bytes.
    Beyond,
    /// Receivers drop the frame, or do not agree about it.
    Malformed,
}

/// Reads the frame that begins with `bytes` and has `len` bytes in all.
pub(crate) fn read(bytes: &[u8], len: u32) -> Result<Carried, Unread> {
    let view = View { bytes, end: len as usize };
    match view.u16(12)? {
        ethertype::IPV4 => ipv4(view, 14, false).map(Carried::Ip),
        ethertype::IPV6 => ipv6(view, 14, false).map(Carried::Ip),
        ethertype::ARP | ethertype::RARP => Ok(Carried::Arp),
        _ => Ok(Carried::Other),
    }
}

/// A packet's bytes, some of which may not be available.
#[derive(Clone, Copy)]
pub(crate) struct View<'b> {
    bytes: &'b [u8],
    /// The packet's end in `bytes`.
    end: usize,
}

impl View<'_> {
    pub fn array<const N: usize>(&self, at: usize) -> Result<[u8; N], Unread> {
        if at + N > self.end {
            return Err(Unread::Malformed);
        }
        let found = self.bytes.get(at..).and_then(|rest| rest.first_chunk());
        found.copied().ok_or(Unread::Beyond)
    }

    fn u8(&self, at: usize) -> Result<u8, Unread> {
        self.array::<1>(at).map(|[byte]| byte)
    }

    fn u16(&self, at: usize) -> Result<u16, Unread> {
        self.array(at).map(u16::from_be_bytes)
    }
}

/// An IP packet, read as far as its transport header.
struct Inside {
    flow: Flow,
    at: usize,
    part: Option<Part>,
    hop_limit: u8,
    quoted: bool,
}

fn ipv4(view: View<'_>, at: usize, quoted: bool) -> Result<Packet, Unread> {
    let header: [u8; 20] = view.array(at)?;
    let [first, _, len0, len1, id0, id1, frag0, frag1, ttl, protocol, _, _, addresses @ ..] =
        header;
    let header_len = usize::from(first & 0xf) * 4;
    if first >> 4 != 4 || header_len < 20 {
        return Err(Unread::Malformed);
    }
    let [s0, s1, s2, s3, d0, d1, d2, d3] = addresses;
    let total_len = usize::from(u16::from_be_bytes([len0, len1]));
    // A big packet of a guest may have the length 0.
    let end = match total_len {
        _ if quoted => view.end,
        0 => view.end,
        len => view.end.min(at + len),
    };
    let fragment = u16::from_be_bytes([frag0, frag1]);
    let (start, more) = (u32::from(fragment & 0x1fff) * 8, fragment & 0x2000 != 0);
    let id = u16::from_be_bytes([id0, id1]).into();
    let whole = at + total_len <= view.end;
    let inside = (at + header_len, at + total_len);
    let part = part(id, start, more, inside, whole || quoted, quoted)?;
    let flow = Flow {
        v6: false,
        protocol,
        src: u32::from_be_bytes([s0, s1, s2, s3]).into(),
        dst: u32::from_be_bytes([d0, d1, d2, d3]).into(),
        sport: 0,
        dport: 0,
        value: None,
    };
    let view = View { end, ..view };
    carried(view, Inside { flow, at: at + header_len, part, hop_limit: ttl, quoted })
}

fn ipv6(view: View<'_>, at: usize, quoted: bool) -> Result<Packet, Unread> {
    let [first, _, _, _, len0, len1, next, hop_limit]: [u8; 8] = view.array(at)?;
    if first >> 4 != 6 {
        return Err(Unread::Malformed);
    }
    let (src, dst) = (view.array(at + 8)?, view.array(at + 24)?);
    let payload_len = usize::from(u16::from_be_bytes([len0, len1]));
    let said = at + 40 + payload_len;
    let end = match payload_len {
        _ if quoted => view.end,
        0 => view.end,
        _ => view.end.min(said),
    };
    let view = View { end, ..view };
    let (mut protocol, mut here, mut found) = (next, at + 40, None);
    for _ in 0..IPV6_EXT_HEADERS_MAX {
        let len = match protocol {
            protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION_OPTIONS => {
                (usize::from(view.u8(here + 1)?) + 1) * 8
            }
            protocol::AUTHENTICATION => (usize::from(view.u8(here + 1)?) + 2) * 4,
            protocol::FRAGMENT => {
                let [_, _, o0, o1, id @ ..]: [u8; 8] = view.array(here)?;
                let offset = u16::from_be_bytes([o0, o1]);
                let (start, more) = (u32::from(offset & 0xfff8), offset & 1 != 0);
                let inside = (here + 8, said);
                let whole = said <= view.end || quoted;
                if found.is_some() {
                    return Err(Unread::Malformed);
                }
                found = part(u32::from_be_bytes(id), start, more, inside, whole, quoted)?;
                8
            }
            _ => break,
        };
        protocol = view.u8(here)?;
        here += len;
        if found.is_some_and(|part| part.start > 0) {
            break;
        }
    }
    let is_later = found.is_some_and(|part| part.start > 0);
    if !is_later && protocol::is_extension(protocol) {
        // There are too many headers, or one that is not walked: the headers behind it are hidden.
        return Err(Unread::Malformed);
    }
    let flow = Flow {
        v6: true,
        protocol,
        src: u128::from_be_bytes(src),
        dst: u128::from_be_bytes(dst),
        sport: 0,
        dport: 0,
        value: None,
    };
    carried(view, Inside { flow, at: here, part: found, hop_limit, quoted })
}

/// The place of a fragment in its datagram; `None` for a whole packet. The payload lies from `from` to `to`.
fn part(
    id: u32,
    start: u32,
    more: bool,
    (from, to): (usize, usize),
    whole: bool,
    quoted: bool,
) -> Result<Option<Part>, Unread> {
    if start == 0 && !more {
        return Ok(None);
    }
    let len = to.saturating_sub(from);
    let end = start + len as u32;
    // The tail is missing, there are no bytes, the next fragment cannot continue here, or the end is behind the longest
    // packet.
    if !quoted && (!whole || len == 0 || more && len % 8 != 0 || end > 0xffff) {
        return Err(Unread::Malformed);
    }
    Ok(Some(Part { id, start, end, more }))
}

fn carried(view: View<'_>, inside: Inside) -> Result<Packet, Unread> {
    let Inside { mut flow, at, part, hop_limit, quoted } = inside;
    let packet = |flow, kind| Packet { flow, kind, part, hop_limit };
    if part.is_some_and(|part| part.start > 0) {
        return Ok(packet(flow, Kind::Fragment));
    }
    let kind = match flow.protocol {
        protocol::TCP | protocol::UDP | protocol::UDP_LITE | protocol::SCTP => {
            let [s0, s1, d0, d1] = view.array(at)?;
            (flow.sport, flow.dport) = (u16::from_be_bytes([s0, s1]), u16::from_be_bytes([d0, d1]));
            flow.value = Some(flow.dport);
            match flow.protocol {
                _ if quoted => Kind::Ports,
                protocol::TCP => {
                    let header: [u8; 20] = view.array(at)?;
                    if header[12] >> 4 < 5 {
                        return Err(Unread::Malformed);
                    }
                    Kind::Tcp(Flags(header[13]))
                }
                protocol::SCTP => Kind::Sctp(Chunks::read(view, at)?),
                _ => {
                    let _: [u8; 8] = view.array(at)?;
                    Kind::Ports
                }
            }
        }
        protocol::ICMP if !flow.v6 => icmp(view, at, &mut flow, quoted, (8, 0), &[3, 4, 11, 12])?,
        protocol::ICMPV6 if flow.v6 => {
            icmp(view, at, &mut flow, quoted, (128, 129), &[1, 2, 3, 4])?
        }
        _ => Kind::Other,
    };
    Ok(packet(flow, kind))
}

/// Timestamps of ICMP are the one other query that hosts still answer.
const TIMESTAMP: (u8, u8) = (13, 14);

fn icmp(
    view: View<'_>,
    at: usize,
    flow: &mut Flow,
    quoted: bool,
    echo: (u8, u8),
    errors: &[u8],
) -> Result<Kind, Unread> {
    let [kind, _, _, _, id0, id1, _, _]: [u8; 8] = view.array(at)?;
    flow.value = Some(kind.into());
    let pairs = [Some(echo), (!flow.v6).then_some(TIMESTAMP)];
    let id = u16::from_be_bytes([id0, id1]);
    for (query, answer) in pairs.into_iter().flatten() {
        if kind == query {
            (flow.sport, flow.dport) = (id, query.into());
            return Ok(Kind::Query);
        }
        if kind == answer {
            (flow.sport, flow.dport) = (query.into(), id);
            return Ok(Kind::Answer);
        }
    }
    if errors.contains(&kind) && !quoted {
        let about = match flow.v6 {
            false => ipv4(view, at + 8, true),
            true => ipv6(view, at + 8, true),
        };
        return match about {
            Err(Unread::Beyond) => Err(Unread::Beyond),
            Err(Unread::Malformed) => Ok(Kind::Error(None)),
            Ok(Packet { flow, kind, .. }) => Ok(Kind::Error(match kind {
                Kind::Fragment | Kind::Message | Kind::Link(_) | Kind::Error(_) => None,
                Kind::Query => Some(Quoted { flow, is_query: Some(true) }),
                Kind::Answer => Some(Quoted { flow, is_query: Some(false) }),
                _ => Some(Quoted { flow, is_query: None }),
            })),
        };
    }
    Ok(match kind {
        130..=137 | 143 if flow.v6 => Kind::Link(kind),
        _ => Kind::Message,
    })
}

/// A flow as the table has it, from the side of the interface. Addresses and ports are in the order of their bytes in a
/// frame, so that none is turned around.
///
/// | word | IPv4 | IPv6 |
/// |---|---|---|
/// | first | own address, 32 bits; VLAN; own port from bit 48 | own address |
/// | next three | 0 | the rest of the own address; the other end's address |
/// | last | other end's address; kind from bit 32; protocol from bit 40; its port from bit 48 | ports; kind; protocol; VLAN |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key(pub [u64; 5]);

/// The protocol's first bit in a key's last word, and in the last word of a [plain](crate::plain) frame.
pub(crate) const PROTOCOL_AT: u32 = 40;
/// The kind's first bit.
pub(crate) const KIND_AT: u32 = 32;
/// The kind of a key of IPv6. The two bits above tell who has asked.
const V6: u64 = 1 << KIND_AT;
/// A bit that no key has.
pub(crate) const NO_KEY: u64 = 0x80 << KIND_AT;

/// An address of IPv4 and a port, as in a key's first and last word.
fn end_v4(address: u128, port: u16) -> u64 {
    u64::from((address as u32).swap_bytes()) | u64::from(port.swap_bytes()) << 48
}

impl Key {
    /// The key of a packet that goes `direction`, in VLAN `vid`. `opener` is the direction of a query, if the packet is
    /// a query or its answer: two ends may ask each other with the same identifier.
    pub fn new(flow: &Flow, direction: Direction, vid: u16, opener: Option<Direction>) -> Self {
        let (own, peer) = match direction {
            Direction::Out => ((flow.src, flow.sport), (flow.dst, flow.dport)),
            Direction::In => ((flow.dst, flow.dport), (flow.src, flow.sport)),
        };
        let halves =
            |address: u128| [((address >> 64) as u64).swap_bytes(), (address as u64).swap_bytes()];
        let ports = u32::from(peer.1.swap_bytes()) << 16 | u32::from(own.1.swap_bytes());
        let mut key = match flow.v6 {
            true => Self::v6(halves(own.0), halves(peer.0), ports, flow.protocol, vid),
            false => {
                let of = u64::from(flow.protocol) << PROTOCOL_AT;
                Self::v4(end_v4(own.0, own.1) | Self::vid_v4(vid), end_v4(peer.0, peer.1) | of)
            }
        };
        key.0[4] |= match opener {
            None => 0,
            Some(Direction::In) => 1 << (KIND_AT + 1),
            Some(Direction::Out) => 2 << (KIND_AT + 1),
        };
        key
    }

    /// The key of a packet of IPv4.
    #[inline(always)]
    pub fn v4(first: u64, last: u64) -> Self {
        Self([first, 0, 0, 0, last])
    }

    /// The VLAN in the first word of a key of IPv4.
    #[inline(always)]
    pub fn vid_v4(vid: u16) -> u64 {
        u64::from(vid) << 32
    }

    /// The key of a packet of IPv6; of `ports` the own one comes first.
    #[inline(always)]
    pub fn v6(own: [u64; 2], peer: [u64; 2], ports: u32, protocol: u8, vid: u16) -> Self {
        let of = u64::from(protocol) << PROTOCOL_AT | u64::from(vid) << 48;
        Self([own[0], own[1], peer[0], peer[1], V6 | of | u64::from(ports)])
    }

    /// The flow of segments of TCP over IPv4 that go `direction`.
    pub fn segments_v4(&self, direction: Direction) -> Flow {
        let [own, .., peer] = self.0;
        let address = |end: u64| u128::from((end as u32).swap_bytes());
        let (own_port, peer_port) = self.ports();
        let (src, sport, dst, dport) = match direction {
            Direction::Out => (address(own), own_port, address(peer), peer_port),
            Direction::In => (address(peer), peer_port, address(own), own_port),
        };
        Flow { v6: false, protocol: protocol::TCP, src, dst, sport, dport, value: Some(dport) }
    }

    pub fn protocol(&self) -> u8 {
        (self.0[4] >> PROTOCOL_AT) as u8
    }

    /// The VLAN; 0 without one.
    pub fn vid(&self) -> u16 {
        let [first, .., last] = self.0;
        (if self.is_v6() { last >> 48 } else { first >> 32 }) as u16
    }

    /// The own port and the other end's, or the values in their place.
    pub fn ports(&self) -> (u16, u16) {
        let [first, .., last] = self.0;
        let (own, peer) = match self.is_v6() {
            true => (last, last >> 16),
            false => (first >> 48, last >> 48),
        };
        ((own as u16).swap_bytes(), (peer as u16).swap_bytes())
    }

    #[inline(always)]
    pub fn is_v6(&self) -> bool {
        self.0[4] & V6 != 0
    }
}
