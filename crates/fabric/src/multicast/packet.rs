//! Reads IGMP (RFC 2236, RFC 3376) and MLD (RFC 2710, RFC 3810), and the group of an IP multicast frame.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use weir_wire::ethernet::HEADER_LEN;
use weir_wire::layers::protocol;
use weir_wire::{Sum, checksum, ethertype};

/// Types of IGMP messages.
const IGMP_QUERY: u8 = 0x11;
const IGMP_V1_REPORT: u8 = 0x12;
const IGMP_V2_REPORT: u8 = 0x16;
const IGMP_LEAVE: u8 = 0x17;
const IGMP_V3_REPORT: u8 = 0x22;
/// Types of MLD messages.
const MLD_QUERY: u8 = 130;
const MLD_V1_REPORT: u8 = 131;
const MLD_DONE: u8 = 132;
const MLD_V2_REPORT: u8 = 143;
/// Types of the records of a report of IGMPv3 or MLDv2.
const MODE_IS_INCLUDE: u8 = 1;
const MODE_IS_EXCLUDE: u8 = 2;
const CHANGE_TO_INCLUDE: u8 = 3;
const CHANGE_TO_EXCLUDE: u8 = 4;
const ALLOW_NEW_SOURCES: u8 = 5;
/// The flag of a query that tells routers to keep their timers (RFC 3376 §4.1.5), beside the group.
const SUPPRESS: u8 = 1 << 3;
/// The response time of IGMPv1, which has no field for it (s).
const IGMP_V1_RESPONSE_SECS: u32 = 10;

/// A change of a station's groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Join(IpAddr),
    Leave(IpAddr),
}

/// A query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Query {
    pub(super) from: IpAddr,
    /// The group in question; `None` in a general query.
    pub(super) group: Option<IpAddr>,
    /// The time in which members answer, rounded up (s).
    pub(super) response_secs: u32,
    /// True if memberships without an answer end.
    pub(super) ends: bool,
}

/// A frame, as snooping sees it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Packet<'p> {
    /// The frame is not an IP multicast, or one that every station may need.
    ForAll,
    /// A frame for a group.
    Data(IpAddr),
    Query(Query),
    Report(Report<'p>),
    /// A message that is incomplete or damaged.
    Unreadable {
        v6: bool,
        /// True if it may be a query, which some take although they should not.
        asks: bool,
    },
}

/// The changes in a report.
#[derive(Clone, Copy, Debug)]
pub(super) struct Report<'p> {
    pub(super) v6: bool,
    /// The change of a report that has one; a report with many has `records`.
    only: Option<Change>,
    records: &'p [u8],
    left: u16,
}

impl Iterator for Report<'_> {
    type Item = Option<Change>;

    /// The next record's change: `Some(None)` if it changes no membership of a group.
    fn next(&mut self) -> Option<Option<Change>> {
        if let Some(only) = self.only.take() {
            return Some(Some(only));
        }
        self.left = self.left.checked_sub(1)?;
        let address_len = if self.v6 { 16 } else { 4 };
        let (&[kind, auxiliary, a, b], rest) = self.records.split_first_chunk()?;
        let sources = usize::from(u16::from_be_bytes([a, b]));
        let group = address(rest.get(..address_len)?)?;
        let len = (1 + sources) * address_len + 4 * usize::from(auxiliary);
        self.records = rest.get(len..)?;
        let change = match (kind, sources) {
            (MODE_IS_INCLUDE | CHANGE_TO_INCLUDE, 0) => Some(Change::Leave(group)),
            (MODE_IS_EXCLUDE | CHANGE_TO_EXCLUDE, _) => Some(Change::Join(group)),
            (MODE_IS_INCLUDE | CHANGE_TO_INCLUDE | ALLOW_NEW_SOURCES, 1..) => {
                Some(Change::Join(group))
            }
            _ => None,
        };
        Some(change.filter(|change| {
            let (Change::Join(group) | Change::Leave(group)) = change;
            is_snooped(*group)
        }))
    }
}

impl Report<'_> {
    fn of(change: Change) -> Self {
        let (Change::Join(group) | Change::Leave(group)) = change;
        let only = Some(change).filter(|_| is_snooped(group));
        Report { v6: group.is_ipv6(), only, records: &[], left: 0 }
    }

    /// True if each record is within the message.
    fn is_whole(self) -> bool {
        let records = usize::from(self.left) + usize::from(self.only.is_some());
        self.count() == records
    }
}

/// True for a group whose frames go only to members. 224.0.0.0/24 is for all stations of a link (RFC 4541 §2.1.2); so
/// are the IPv6 groups of link scope, since neighbour discovery may not depend on reports that may be lost.
fn is_snooped(group: IpAddr) -> bool {
    match group {
        IpAddr::V4(group) => group.is_multicast() && group.octets()[..3] != [224, 0, 0],
        IpAddr::V6(group) => group.is_multicast() && group.octets()[1] & 0x0f > 2,
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into()),
        _ => Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into()),
    }
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().copied().map(u16::from_be_bytes)
}

/// The group of an IP multicast, if the frame's destination is that group's MAC address (RFC 1112 §6.4, RFC 2464 §7).
fn group_of(head: &[u8]) -> Option<IpAddr> {
    let mac = head.first_chunk::<6>()?;
    let ip = head.get(HEADER_LEN..)?;
    let (group, own) = match be16(head, HEADER_LEN - 2)? {
        ethertype::IPV4 => {
            let [a, b, c, d] = ip.get(16..)?.first_chunk().copied()?;
            (IpAddr::V4(Ipv4Addr::new(a, b, c, d)), [0x01, 0x00, 0x5e, b & 0x7f, c, d])
        }
        ethertype::IPV6 => {
            let group: [u8; 16] = ip.get(24..)?.first_chunk().copied()?;
            let [.., a, b, c, d] = group;
            (IpAddr::V6(group.into()), [0x33, 0x33, a, b, c, d])
        }
        _ => return None,
    };
    (group.is_multicast() && *mac == own).then_some(group)
}

/// True if the frame that begins with `head` may be a message of IGMP or MLD. MLD follows an option of the hop-by-hop
/// header (RFC 3810 §5).
pub(super) fn may_be_message(head: &[u8]) -> bool {
    match be16(head, HEADER_LEN - 2) {
        Some(ethertype::IPV4) => head.get(HEADER_LEN + 9) == Some(&protocol::IGMP),
        Some(ethertype::IPV6) => head.get(HEADER_LEN + 6) == Some(&protocol::HOP_BY_HOP),
        _ => false,
    }
}

/// Reads a frame. A [message](may_be_message) must be whole.
pub(super) fn read(frame: &[u8]) -> Packet<'_> {
    let Some(group) = group_of(frame) else { return Packet::ForAll };
    let unreadable = |v6, query| {
        let asks = kind(frame, v6).is_none_or(|kind| kind == query);
        Packet::Unreadable { v6, asks }
    };
    let message = match (may_be_message(frame), group) {
        (false, _) => None,
        (true, IpAddr::V4(_)) => Some(igmp(frame).unwrap_or_else(|| unreadable(false, IGMP_QUERY))),
        (true, IpAddr::V6(_)) => mld(frame).unwrap_or_else(|| Some(unreadable(true, MLD_QUERY))),
    };
    let otherwise = || if is_snooped(group) { Packet::Data(group) } else { Packet::ForAll };
    message.unwrap_or_else(otherwise)
}

/// The first byte of a message, where the frame has it.
fn kind(frame: &[u8], v6: bool) -> Option<u8> {
    let ip = frame.get(HEADER_LEN..)?;
    if v6 {
        let payload = ip.get(40..)?;
        return payload.get((usize::from(*payload.get(1)?) + 1) * 8).copied();
    }
    let begins = be16(ip, 6)? & 0x1fff == 0;
    ip.get(usize::from(ip.first()? & 0x0f) * 4).copied().filter(|_| begins)
}

/// A message of IGMP; `None` if it is not readable.
fn igmp(frame: &[u8]) -> Option<Packet<'_>> {
    let ip = frame.get(HEADER_LEN..)?;
    let header_len = usize::from(ip.first()? & 0x0f) * 4;
    let (header, message) = (ip.get(..header_len)?, ip.get(header_len..usize::from(be16(ip, 2)?))?);
    let is_fragment = be16(ip, 6)? & 0x3fff != 0;
    let is_damaged = [header, message].into_iter().any(|bytes| checksum::partial(bytes) != 0xffff);
    if header_len < 20 || is_fragment || message.len() < 8 || is_damaged {
        return None;
    }
    let group = address(message.get(4..8)?)?;
    let packet = match *message.first()? {
        IGMP_QUERY => {
            let code = u32::from(*message.get(1)?);
            let is_v3 = message.len() >= 12;
            let response_secs = match code {
                0 => IGMP_V1_RESPONSE_SECS,
                128.. if is_v3 => (((code & 0xf) | 0x10) << ((code >> 4 & 7) + 3)).div_ceil(10),
                tenths => tenths.div_ceil(10),
            };
            let from = address(ip.get(12..16)?)?;
            query(from, group, response_secs, !is_v3 || message.get(8)? & SUPPRESS == 0)
        }
        IGMP_V1_REPORT | IGMP_V2_REPORT => Packet::Report(Report::of(Change::Join(group))),
        IGMP_LEAVE => Packet::Report(Report::of(Change::Leave(group))),
        IGMP_V3_REPORT => many(false, message)?,
        // Messages that are not known are flooded (RFC 4541 §2.1.1 3).
        _ => Packet::ForAll,
    };
    Some(packet)
}

/// A message of MLD, or `Some(None)` for another frame; `None` if the frame cannot be parsed.
fn mld(frame: &[u8]) -> Option<Option<Packet<'_>>> {
    let ip = frame.get(HEADER_LEN..)?;
    let payload = ip.get(40..)?;
    let (&next, at) = (payload.first()?, (usize::from(*payload.get(1)?) + 1) * 8);
    if next != protocol::ICMPV6 {
        return Some(None);
    }
    let kind = *payload.get(at)?;
    if !matches!(kind, MLD_QUERY | MLD_V1_REPORT | MLD_DONE | MLD_V2_REPORT) {
        return Some(None);
    }
    let message = payload.get(at..usize::from(be16(ip, 4)?))?;
    let mut sum = Sum::new();
    sum.add(ip.get(8..40)?);
    sum.add_u32(u32::try_from(message.len()).ok()?);
    sum.add_u32(protocol::ICMPV6.into());
    sum.add(message);
    // The hop limit shows that no router has forwarded the message. Hosts answer no query of another source than one of
    // the link (RFC 3810 §5.1.14).
    let is_of_link = kind != MLD_QUERY || ip.get(8..10) == Some(&[0xfe, 0x80]);
    if sum.finish() != 0 || ip.get(7) != Some(&1) || !is_of_link {
        return None;
    }
    let group = || address(message.get(8..24)?);
    Some(Some(match kind {
        MLD_QUERY => {
            let code = u32::from(be16(message, 4)?);
            let is_v2 = message.len() >= 28;
            let millis = match code {
                0x8000.. if is_v2 => ((code & 0xfff) | 0x1000) << ((code >> 12 & 7) + 3),
                millis => millis,
            };
            let from = address(ip.get(8..24)?)?;
            let ends = !is_v2 || message.get(24)? & SUPPRESS == 0;
            query(from, group()?, millis.div_ceil(1000), ends)
        }
        MLD_V1_REPORT => Packet::Report(Report::of(Change::Join(group()?))),
        MLD_DONE => Packet::Report(Report::of(Change::Leave(group()?))),
        _ => many(true, message)?,
    }))
}

fn query(from: IpAddr, group: IpAddr, response_secs: u32, ends: bool) -> Packet<'static> {
    let group = Some(group).filter(|group| !group.is_unspecified());
    Packet::Query(Query { from, group, response_secs, ends })
}

/// A report of IGMPv3 or MLDv2, which have the same form.
fn many(v6: bool, message: &[u8]) -> Option<Packet<'_>> {
    let (left, records) = (be16(message, 6)?, message.get(8..)?);
    let report = Report { v6, only: None, records, left };
    report.is_whole().then_some(Packet::Report(report))
}
