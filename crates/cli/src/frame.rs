//! A frame described in words, `eth.dst=52:54:00:00:00:02, ip, tcp.dstport=80`, by tshark's names of fields, or in
//! hexadecimal.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use etherparse::{
    EtherType, Ethernet2Header, IcmpEchoHeader, Icmpv4Header, Icmpv4Type, IpNumber, Ipv4Header,
    Ipv6Header, SingleVlanHeader, TcpHeader, UdpHeader, VlanId, VlanPcp,
};
use thiserror::Error;
use weir_wire::Mac;

/// The fields by protocol. A field implies that the frame has the protocol.
const FIELDS: &[(&str, &[&str])] = &[
    ("eth", &["eth.dst", "eth.src", "eth.type"]),
    ("vlan", &["vlan.id", "vlan.priority"]),
    (
        "arp",
        &[
            "arp.opcode",
            "arp.src.hw_mac",
            "arp.src.proto_ipv4",
            "arp.dst.hw_mac",
            "arp.dst.proto_ipv4",
        ],
    ),
    ("ip", &["ip.src", "ip.dst", "ip.ttl", "ip.proto"]),
    ("ipv6", &["ipv6.src", "ipv6.dst", "ipv6.hlim", "ipv6.nxt"]),
    ("icmp", &[]),
    ("tcp", &["tcp.srcport", "tcp.dstport"]),
    ("udp", &["udp.srcport", "udp.dstport"]),
    ("frame", &["frame.len"]),
];
/// The minimum length of an Ethernet frame without its checksum. Shorter frames are padded with zeros.
const LEN_MIN: usize = 60;
/// The Ethernet type for experiments (IEEE 802), used if no protocol is named.
const ETHERTYPE: u16 = 0x88b5;

/// The reason why a description is not a frame.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FrameError {
    /// The field does not exist.
    #[error("`{0}` is not known here; there are {names}", names = names())]
    Field(String),
    /// The field is given twice.
    #[error("`{0}` is there twice")]
    Twice(String),
    /// A field without a value, or a protocol with one.
    #[error(
        "`{0}` is no field with a value, as `eth.dst=52:54:00:00:00:02`, and no protocol, as `ip`"
    )]
    Value(String),
    /// The value is invalid for its field.
    #[error("`{value}` is no value of {field}: {reason}")]
    Bad {
        /// The field.
        field: String,
        /// The value.
        value: String,
        /// The reason.
        reason: String,
    },
    /// A frame cannot have both protocols.
    #[error("no frame has both {0} and {1}")]
    Both(&'static str, &'static str),
    /// The length is shorter than the headers, or outside the limits of a frame.
    #[error("the headers take {headers} bytes, and frame.len says {len}")]
    Len {
        /// The length of the headers.
        headers: usize,
        /// The requested length.
        len: usize,
    },
    /// The text is not pairs of hexadecimal digits.
    #[error("not pairs of hexadecimal digits")]
    Hex,
}

fn names() -> String {
    let all = FIELDS
        .iter()
        .flat_map(|(protocol, fields)| std::iter::once(protocol).chain(fields.iter()).copied());
    all.collect::<Vec<_>>().join(", ")
}

/// The fields that a description names.
struct Fields(BTreeMap<String, String>);

impl Fields {
    fn has(&self, protocol: &str) -> bool {
        let prefix = format!("{protocol}.");
        self.0.keys().any(|name| name == protocol || name.starts_with(&prefix))
    }

    fn get<T: FromStr<Err: ToString>>(&self, field: &str, default: T) -> Result<T, FrameError> {
        let Some(value) = self.0.get(field) else { return Ok(default) };
        value.parse().map_err(|error: T::Err| self.bad(field, error.to_string()))
    }

    /// A number, which is hexadecimal after 0x.
    fn number(&self, field: &str, default: u16) -> Result<u16, FrameError> {
        match self.0.get(field).and_then(|value| value.strip_prefix("0x")) {
            Some(hex) => {
                u16::from_str_radix(hex, 16).map_err(|error| self.bad(field, error.to_string()))
            }
            None => self.get(field, default),
        }
    }

    fn bad(&self, field: &str, reason: String) -> FrameError {
        let value = self.0.get(field).cloned().unwrap_or_default();
        FrameError::Bad { field: field.into(), value, reason }
    }
}

/// The IP address that a described frame is for, if it is one station's and the description has no `eth.dst`.
///
/// # Errors
/// [`FrameError`]
pub fn station_asked_for(text: &str) -> Result<Option<IpAddr>, FrameError> {
    let fields = fields(text)?;
    if fields.has("arp") || fields.0.contains_key("eth.dst") {
        return Ok(None);
    }
    let v4 = fields.get("ip.dst", Ipv4Addr::UNSPECIFIED)?;
    let v6 = fields.get("ipv6.dst", Ipv6Addr::UNSPECIFIED)?;
    let v4 = Some(v4).filter(|ip| !ip.is_unspecified() && !ip.is_multicast() && !ip.is_broadcast());
    let v6 = Some(v6).filter(|ip| !ip.is_unspecified() && !ip.is_multicast());
    Ok(v4.map(IpAddr::V4).or(v6.map(IpAddr::V6)))
}

/// The bytes of a described frame; `src` and `dst` are the default addresses.
///
/// # Errors
/// [`FrameError`]
pub fn described(text: &str, src: Mac, dst: Mac) -> Result<Vec<u8>, FrameError> {
    let fields = fields(text)?;
    for (one, other) in [
        ("arp", "ip"),
        ("arp", "ipv6"),
        ("ip", "ipv6"),
        ("tcp", "udp"),
        ("icmp", "tcp"),
        ("icmp", "udp"),
        ("icmp", "ipv6"),
    ] {
        if fields.has(one) && fields.has(other) {
            return Err(FrameError::Both(one, other));
        }
    }
    let src = fields.get("eth.src", src)?;
    let dst = fields.get("eth.dst", dst)?;
    let (ethertype, mut packet) = network(&fields, src)?;
    let ethertype = fields.number("eth.type", ethertype)?;
    let mut frame = Vec::new();
    let outer =
        if fields.has("vlan") { EtherType::VLAN_TAGGED_FRAME } else { EtherType(ethertype) };
    let ethernet = Ethernet2Header { source: src.0, destination: dst.0, ether_type: outer };
    frame.extend(ethernet.to_bytes());
    if fields.has("vlan") {
        let id = fields.number("vlan.id", 0)?;
        let vlan_id =
            VlanId::try_new(id).map_err(|error| fields.bad("vlan.id", error.to_string()))?;
        let priority = fields.get("vlan.priority", 0)?;
        let pcp = VlanPcp::try_new(priority);
        let pcp = pcp.map_err(|error| fields.bad("vlan.priority", error.to_string()))?;
        let tag = SingleVlanHeader {
            pcp,
            drop_eligible_indicator: false,
            vlan_id,
            ether_type: EtherType(ethertype),
        };
        frame.extend(tag.to_bytes());
    }
    frame.append(&mut packet);
    let headers = frame.len();
    let len = fields.get("frame.len", headers.max(LEN_MIN))?;
    if len < headers || len > weir_limits::FRAME_LEN_MAX as usize {
        return Err(FrameError::Len { headers, len });
    }
    frame.resize(len, 0);
    Ok(frame)
}

fn fields(text: &str) -> Result<Fields, FrameError> {
    let mut fields = BTreeMap::new();
    for term in text.split(',').map(str::trim).filter(|term| !term.is_empty()) {
        let (name, value) = match term.split_once('=') {
            Some((name, value)) => (name.trim(), Some(value.trim_start_matches('=').trim())),
            None => (term, None),
        };
        let name = match name {
            "tcp.dport" => "tcp.dstport",
            "tcp.sport" => "tcp.srcport",
            "udp.dport" => "udp.dstport",
            "udp.sport" => "udp.srcport",
            name => name,
        };
        let is_protocol = FIELDS.iter().any(|(protocol, _)| *protocol == name);
        let is_field = FIELDS.iter().any(|(_, fields)| fields.contains(&name));
        match value {
            _ if !is_protocol && !is_field => return Err(FrameError::Field(name.into())),
            Some(value) if is_field && !value.is_empty() => {
                if fields.insert(name.to_owned(), value.to_owned()).is_some() {
                    return Err(FrameError::Twice(name.into()));
                }
            }
            None if is_protocol => {
                fields.insert(name.to_owned(), String::new());
            }
            _ => return Err(FrameError::Value(term.into())),
        }
    }
    Ok(Fields(fields))
}

/// The Ethernet type of the frame, and the bytes after the Ethernet header.
fn network(fields: &Fields, src: Mac) -> Result<(u16, Vec<u8>), FrameError> {
    if fields.has("arp") {
        return Ok((EtherType::ARP.0, arp(fields, src)?));
    }
    if fields.has("ipv6") {
        let (src, dst) = (
            fields.get("ipv6.src", Ipv6Addr::UNSPECIFIED)?,
            fields.get("ipv6.dst", Ipv6Addr::UNSPECIFIED)?,
        );
        let mut ip = Ipv6Header {
            hop_limit: fields.get("ipv6.hlim", 64)?,
            source: src.octets(),
            destination: dst.octets(),
            next_header: IpNumber::IPV6_NO_NEXT_HEADER,
            ..Ipv6Header::default()
        };
        let mut transport = Vec::new();
        if fields.has("udp") {
            ip.next_header = IpNumber::UDP;
            let udp = UdpHeader::with_ipv6_checksum(
                port(fields, "udp.srcport")?,
                port(fields, "udp.dstport")?,
                &ip,
                &[],
            );
            transport.extend(udp.map_err(|error| fields.bad("udp", error.to_string()))?.to_bytes());
        } else if fields.has("tcp") {
            ip.next_header = IpNumber::TCP;
            let mut tcp = syn(fields)?;
            tcp.checksum = tcp
                .calc_checksum_ipv6(&ip, &[])
                .map_err(|error| fields.bad("tcp", error.to_string()))?;
            transport.extend(tcp.to_bytes());
        }
        ip.next_header = IpNumber(fields.get("ipv6.nxt", ip.next_header.0)?);
        ip.payload_length = transport.len() as u16; // a header
        return Ok((EtherType::IPV6.0, [&ip.to_bytes()[..], &transport].concat()));
    }
    if ["ip", "tcp", "udp", "icmp"].iter().any(|protocol| fields.has(protocol)) {
        let (src, dst) = (
            fields.get("ip.src", Ipv4Addr::UNSPECIFIED)?,
            fields.get("ip.dst", Ipv4Addr::UNSPECIFIED)?,
        );
        let new = |len: usize, number| {
            Ipv4Header::new(
                len as u16,
                fields.get("ip.ttl", 64)?,
                number,
                src.octets(),
                dst.octets(),
            )
            .map_err(|error| fields.bad("ip", error.to_string()))
        };
        let (mut ip, transport) = if fields.has("udp") {
            let ip = new(UdpHeader::LEN, IpNumber::UDP)?;
            let udp = UdpHeader::with_ipv4_checksum(
                port(fields, "udp.srcport")?,
                port(fields, "udp.dstport")?,
                &ip,
                &[],
            );
            (ip, udp.map_err(|error| fields.bad("udp", error.to_string()))?.to_bytes().to_vec())
        } else if fields.has("tcp") {
            let mut tcp = syn(fields)?;
            let ip = new(tcp.header_len(), IpNumber::TCP)?;
            tcp.checksum = tcp
                .calc_checksum_ipv4(&ip, &[])
                .map_err(|error| fields.bad("tcp", error.to_string()))?;
            (ip, tcp.to_bytes().to_vec())
        } else if fields.has("icmp") {
            let echo = Icmpv4Type::EchoRequest(IcmpEchoHeader { id: 1, seq: 1 });
            let icmp = Icmpv4Header::with_checksum(echo, &[]).to_bytes().to_vec();
            (new(icmp.len(), IpNumber::ICMP)?, icmp)
        } else {
            // The protocol number for experiments (RFC 3692).
            (new(0, IpNumber(253))?, Vec::new())
        };
        ip.protocol = IpNumber(fields.get("ip.proto", ip.protocol.0)?);
        ip.header_checksum = ip.calc_header_checksum();
        return Ok((EtherType::IPV4.0, [&ip.to_bytes()[..], &transport].concat()));
    }
    Ok((ETHERTYPE, Vec::new()))
}

fn arp(fields: &Fields, src: Mac) -> Result<Vec<u8>, FrameError> {
    let mut arp = vec![0, 1, 8, 0, 6, 4];
    arp.extend(fields.number("arp.opcode", 1)?.to_be_bytes());
    arp.extend(fields.get("arp.src.hw_mac", src)?.0);
    arp.extend(fields.get("arp.src.proto_ipv4", Ipv4Addr::UNSPECIFIED)?.octets());
    arp.extend(fields.get("arp.dst.hw_mac", Mac([0; 6]))?.0);
    arp.extend(fields.get("arp.dst.proto_ipv4", Ipv4Addr::UNSPECIFIED)?.octets());
    Ok(arp)
}

/// A port; the default is the first of the ports that are never assigned.
fn port(fields: &Fields, field: &str) -> Result<u16, FrameError> {
    fields.number(field, 49152)
}

/// A segment that opens a connection.
fn syn(fields: &Fields) -> Result<TcpHeader, FrameError> {
    let ports = (port(fields, "tcp.srcport")?, port(fields, "tcp.dstport")?);
    let mut tcp = TcpHeader::new(ports.0, ports.1, 1, u16::MAX);
    tcp.syn = true;
    Ok(tcp)
}

/// The bytes of hexadecimal digits. Spaces, colons and newlines are ignored.
///
/// # Errors
/// [`FrameError::Hex`]
pub fn hex(text: &str) -> Result<Vec<u8>, FrameError> {
    let digits: Vec<_> = text.chars().filter(|c| !c.is_whitespace() && *c != ':').collect();
    let digit = |c: char| c.to_digit(16).ok_or(FrameError::Hex);
    let pair = |pair: &[char]| match pair {
        [high, low] => Ok((digit(*high)? << 4 | digit(*low)?) as u8), // two digits
        _ => Err(FrameError::Hex),
    };
    digits.chunks(2).map(pair).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::Command;

    use super::*;

    const SRC: Mac = Mac([0x52, 0x54, 0, 0, 0, 1]);

    /// tshark's output for fields of a frame.
    fn read_back(frame: &[u8], fields: &[&str]) -> String {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        // pcap: magic, version 2.4, zone, accuracy, snap length, Ethernet; then one packet at the epoch.
        for word in [
            0xa1b2_c3d4_u32,
            0x0004_0002,
            0,
            0,
            65_535,
            1,
            0,
            0,
            frame.len() as u32,
            frame.len() as u32,
        ] {
            file.write_all(&word.to_ne_bytes()).unwrap();
        }
        file.write_all(frame).unwrap();
        let mut command = Command::new("tshark");
        command.arg("-r").arg(file.path()).args(["-n", "-T", "fields", "-E", "separator=|"]);
        for check in ["ip", "tcp", "udp"] {
            command.args(["-o", &format!("{check}.check_checksum:TRUE")]);
        }
        fields.iter().for_each(|field| _ = command.args(["-e", field]));
        let output = command.output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    #[test]
    fn tshark_reads_the_fields_that_were_described_and_finds_checksums_right() {
        let cases: &[(&str, &[&str], &str)] = &[
            (
                "",
                &["eth.src", "eth.dst", "eth.type", "frame.len"],
                "52:54:00:00:00:01|ff:ff:ff:ff:ff:ff|0x88b5|60",
            ),
            (
                "eth.dst=02:00:00:00:00:09, vlan.id=7, vlan.priority=3, ip.src=10.0.0.1, ip.dst=10.0.0.2, tcp.dport=80, frame.len=100",
                &[
                    "eth.dst",
                    "vlan.id",
                    "vlan.priority",
                    "ip.src",
                    "ip.dst",
                    "tcp.dstport",
                    "tcp.flags",
                    "tcp.checksum.status",
                    "ip.checksum.status",
                    "frame.len",
                ],
                "02:00:00:00:00:09|7|3|10.0.0.1|10.0.0.2|80|0x0002|1|1|100",
            ),
            ("ip, udp.dstport == 53", &["udp.dstport", "udp.checksum.status", "ip.ttl"], "53|1|64"),
            (
                "ipv6.src=fe80::1, ipv6.dst=ff02::1, udp.srcport=0x222, udp.dstport=547",
                &["ipv6.src", "udp.srcport", "udp.dstport", "udp.checksum.status"],
                "fe80::1|546|547|1",
            ),
            ("icmp, ip.dst=10.0.0.2, ip.ttl=9", &["icmp.type", "ip.dst", "ip.ttl"], "8|10.0.0.2|9"),
            (
                "arp.dst.proto_ipv4=10.0.0.9, arp.opcode=1",
                &["arp.opcode", "arp.src.hw_mac", "arp.dst.proto_ipv4"],
                "1|52:54:00:00:00:01|10.0.0.9",
            ),
        ];
        if !weir_testing::has("tshark", "tshark") {
            return;
        }
        for (text, fields, expected) in cases {
            let frame = described(text, SRC, Mac::BROADCAST).unwrap();
            assert_eq!(read_back(&frame, fields), *expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_frame_says_why() {
        for (text, why) in [
            ("eth.dest=1", "`eth.dest` is not known here; there are eth, eth.dst,"),
            ("eth.dst", "`eth.dst` is no field with a value"),
            ("ip=10.0.0.1", "`ip=10.0.0.1` is no field with a value"),
            ("ip.ttl=9, ip.ttl=8", "`ip.ttl` is there twice"),
            ("ip.src=10.0.0", "`10.0.0` is no value of ip.src"),
            ("tcp.dstport=70000", "`70000` is no value of tcp.dstport"),
            ("vlan.id=4096", "`4096` is no value of vlan.id"),
            ("tcp, udp", "no frame has both tcp and udp"),
            ("ip, tcp, frame.len=20", "the headers take 54 bytes, and frame.len says 20"),
            ("frame.len=99999", "the headers take 14 bytes, and frame.len says 99999"),
        ] {
            let error = described(text, SRC, Mac::BROADCAST).unwrap_err().to_string();
            assert!(error.starts_with(why), "{text}: {error}");
        }
    }

    #[test]
    fn hexadecimal_digits_are_bytes() {
        assert_eq!(hex("52:54 00\nfF").unwrap(), [0x52, 0x54, 0, 0xff]);
        for bad in ["5", "5g", "zz"] {
            assert_eq!(hex(bad), Err(FrameError::Hex));
        }
    }
}
