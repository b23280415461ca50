//! Frames of the traffic: builds them, and checks them on arrival.

use std::net::Ipv4Addr;

use weir_limits::HEAD_LEN;
use weir_wire::checksum::{ipv4_header_checksum, nonzero, pseudo_header_v4};
use weir_wire::ethernet::ethertype;
use weir_wire::layers::{Ports, protocol};
use weir_wire::{CsumPartial, Layers, Mac, Network, Offload, Sum, Transport, vnet};

use crate::receive::Frame;

const ETHERNET_LEN: usize = 14;
const IPV4_LEN: usize = 20;
const TCP_LEN: usize = 20;
const UDP_LEN: usize = 8;
/// Offset of the TCP or UDP header.
const TRANSPORT: usize = ETHERNET_LEN + IPV4_LEN;
/// Length of all headers of a TCP frame (bytes).
pub(super) const TCP_HEADERS_LEN: usize = TRANSPORT + TCP_LEN;
/// Length of all headers of a UDP frame (bytes).
pub(super) const UDP_HEADERS_LEN: usize = TRANSPORT + UDP_LEN;
/// Length of IP and TCP headers (bytes): an MTU less its payload.
pub(super) const TCP_OVERHEAD: usize = IPV4_LEN + TCP_LEN;
/// Shortest frame on a real wire, without its checksum. Shorter frames may be padded to this
/// length.
const WIRE_FRAME_MIN: usize = 60;
/// Length of the sequence number and time stamp at the beginning of a UDP payload.
pub(super) const PROBE_LEN: usize = 16;
pub(super) const PROBE_FRAME_MIN: usize = UDP_HEADERS_LEN + PROBE_LEN;
/// Longest frame with a [`Probe`]: an MTU of 1500.
pub(super) const PROBE_FRAME_MAX: usize = ETHERNET_LEN + 1500;

const TCP_CSUM_OFFSET: u16 = 16;
const UDP_CSUM_OFFSET: u16 = 6;
const TCP_ACK: u8 = 0x10;
const IPV4_DONT_FRAGMENT: u16 = 0x4000;
const TTL: u8 = 64;

/// A host of the traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Station {
    /// Ethernet address.
    pub mac: Mac,
    /// IPv4 address.
    pub ip: Ipv4Addr,
}

/// A flow, as seen from one of its ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flow {
    /// The station at this end.
    pub local: Station,
    /// The station at the other end.
    pub remote: Station,
    /// TCP or UDP port of this end.
    pub local_port: u16,
    /// TCP or UDP port of the other end.
    pub remote_port: u16,
}

impl Flow {
    /// Returns the same flow as seen from the other end.
    pub fn reversed(&self) -> Self {
        Self {
            local: self.remote,
            remote: self.local,
            local_port: self.remote_port,
            remote_port: self.local_port,
        }
    }

    /// Builds Ethernet and IPv4 headers for `transport_len` bytes of TCP or UDP.
    fn network_headers(&self, protocol: u8, transport_len: u16) -> [u8; TRANSPORT] {
        let mut bytes = [0; TRANSPORT];
        let (ethernet, ip) = bytes.split_at_mut(ETHERNET_LEN);
        ethernet[..6].copy_from_slice(&self.remote.mac.0);
        ethernet[6..12].copy_from_slice(&self.local.mac.0);
        ethernet[12..].copy_from_slice(&ethertype::IPV4.to_be_bytes());
        ip[0] = 0x45;
        ip[2..4].copy_from_slice(&(IPV4_LEN as u16 + transport_len).to_be_bytes());
        ip[6..8].copy_from_slice(&IPV4_DONT_FRAGMENT.to_be_bytes());
        ip[8] = TTL;
        ip[9] = protocol;
        ip[12..16].copy_from_slice(&self.local.ip.octets());
        ip[16..20].copy_from_slice(&self.remote.ip.octets());
        let checksum = ipv4_header_checksum(ip);
        ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        bytes
    }

    fn pseudo_header(&self, protocol: u8, transport_len: u16) -> Sum {
        pseudo_header_v4(self.local.ip, self.remote.ip, protocol, transport_len)
    }
}

impl Station {
    /// Builds a gratuitous ARP request (RFC 5227 §3: an ARP announcement).
    pub(super) fn announcement(&self) -> [u8; 42] {
        let mut frame = [0; 42];
        frame[..6].copy_from_slice(&Mac::BROADCAST.0);
        frame[6..12].copy_from_slice(&self.mac.0);
        frame[12..14].copy_from_slice(&ethertype::ARP.to_be_bytes());
        // Ethernet, IPv4, address lengths 6 and 4, request.
        frame[14..22].copy_from_slice(&[0, 1, 8, 0, 6, 4, 0, 1]);
        frame[22..28].copy_from_slice(&self.mac.0);
        frame[28..32].copy_from_slice(&self.ip.octets());
        frame[38..42].copy_from_slice(&self.ip.octets());
        frame
    }
}

/// The checksum of a frame to send.
#[derive(Debug, Clone, Copy)]
pub(super) enum Checksum {
    /// The checksum is left to the device: the field holds the pseudo-header's sum.
    Partial,
    /// Complete, from the sum of the payload.
    Complete(Sum),
}

/// Returns the offload of a frame with a partial TCP checksum.
pub(super) fn tcp_csum() -> Offload {
    Offload::with_csum(CsumPartial { start: TRANSPORT as u16, offset: TCP_CSUM_OFFSET })
}

/// Returns the offload of a frame with a partial UDP checksum.
pub(super) fn udp_csum() -> Offload {
    Offload::with_csum(CsumPartial { start: TRANSPORT as u16, offset: UDP_CSUM_OFFSET })
}

/// Returns the virtio header of a TCP GSO frame with segments of `mss` bytes.
pub(super) fn tcp_gso(mss: u16) -> vnet::VnetHdr {
    vnet::VnetHdr {
        gso_type: vnet::GSO_TCPV4,
        hdr_len: TCP_HEADERS_LEN as u16,
        gso_size: mss,
        ..tcp_csum().to_vnet(0)
    }
}

/// Builds the headers of a TCP segment with `payload_len` bytes.
pub(super) fn tcp_headers(
    flow: &Flow,
    seq: u32,
    ack: u32,
    payload_len: usize,
    checksum: Checksum,
) -> [u8; TCP_HEADERS_LEN] {
    let len = (TCP_LEN + payload_len) as u16;
    let mut bytes = [0; TCP_HEADERS_LEN];
    let (network, tcp) = bytes.split_at_mut(TRANSPORT);
    network.copy_from_slice(&flow.network_headers(protocol::TCP, len));
    tcp[..2].copy_from_slice(&flow.local_port.to_be_bytes());
    tcp[2..4].copy_from_slice(&flow.remote_port.to_be_bytes());
    tcp[4..8].copy_from_slice(&seq.to_be_bytes());
    tcp[8..12].copy_from_slice(&ack.to_be_bytes());
    tcp[12] = (TCP_LEN as u8 / 4) << 4;
    tcp[13] = TCP_ACK;
    tcp[14..16].copy_from_slice(&u16::MAX.to_be_bytes());
    let field = transport_checksum(flow.pseudo_header(protocol::TCP, len), tcp, checksum);
    let at = usize::from(TCP_CSUM_OFFSET);
    tcp[at..at + 2].copy_from_slice(&field.to_be_bytes());
    bytes
}

/// Returns the value of the checksum field; `header` has zeros there.
fn transport_checksum(pseudo_header: Sum, header: &[u8], checksum: Checksum) -> u16 {
    match checksum {
        Checksum::Partial => pseudo_header.folded(),
        Checksum::Complete(payload) => {
            let mut sum = pseudo_header;
            sum.add(header);
            sum.add_partial(payload.folded(), 0);
            nonzero(sum.finish())
        }
    }
}

/// Content of a UDP packet of the traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Probe {
    /// Sequence number.
    pub(super) seq: u64,
    /// Time of sending (monotonic clock, ns).
    pub(super) time_ns: u64,
}

/// A UDP frame that is sent repeatedly, each time with another [`Probe`].
#[derive(Debug)]
pub(super) struct ProbeFrame {
    bytes: Vec<u8>,
    offload: Offload,
    pseudo_header: Sum,
}

impl ProbeFrame {
    /// Builds a frame of `len` bytes, [`PROBE_FRAME_MIN`] to [`PROBE_FRAME_MAX`]. `partial` leaves
    /// its checksum to the device.
    pub(super) fn new(flow: &Flow, len: usize, partial: bool) -> Self {
        let udp_len = (len - TRANSPORT) as u16;
        let mut bytes = vec![0; len];
        let (network, udp) = bytes.split_at_mut(TRANSPORT);
        network.copy_from_slice(&flow.network_headers(protocol::UDP, udp_len));
        udp[..2].copy_from_slice(&flow.local_port.to_be_bytes());
        udp[2..4].copy_from_slice(&flow.remote_port.to_be_bytes());
        udp[4..6].copy_from_slice(&udp_len.to_be_bytes());
        let pseudo_header = flow.pseudo_header(protocol::UDP, udp_len);
        let mut frame = Self {
            bytes,
            offload: if partial { udp_csum() } else { Offload::NONE },
            pseudo_header,
        };
        frame.set_checksum(pseudo_header.folded());
        frame
    }

    /// Returns the frame with `probe`, and its offload.
    pub(super) fn with(&mut self, probe: Probe) -> (&[u8], &Offload) {
        let payload = &mut self.bytes[UDP_HEADERS_LEN..];
        payload[..8].copy_from_slice(&probe.seq.to_be_bytes());
        payload[8..PROBE_LEN].copy_from_slice(&probe.time_ns.to_be_bytes());
        if self.offload.csum().is_none() {
            self.set_checksum(0);
            let udp = &self.bytes[TRANSPORT..];
            let complete = Checksum::Complete(Sum::new());
            let checksum = transport_checksum(self.pseudo_header, udp, complete);
            self.set_checksum(checksum);
        }
        (&self.bytes, &self.offload)
    }

    /// Returns the length of the UDP payload (bytes).
    pub(super) fn payload_len(&self) -> u64 {
        (self.bytes.len() - UDP_HEADERS_LEN) as u64
    }

    fn set_checksum(&mut self, value: u16) {
        let at = TRANSPORT + usize::from(UDP_CSUM_OFFSET);
        self.bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
    }
}

/// A TCP segment of the flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) seq: u32,
    pub(super) ack: u32,
    /// Offset of the payload in the frame.
    pub(super) payload_at: usize,
    /// Length of the payload (bytes).
    pub(super) payload_len: usize,
}

/// Reason why a frame does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rejected {
    /// The frame does not belong to the flow.
    Unrelated,
    /// The frame belongs to the flow, and is wrong.
    Invalid,
}

/// A received frame with valid headers.
struct Checked {
    head: [u8; HEAD_LEN],
    transport: Transport,
    /// Length of TCP or UDP header and payload (bytes).
    transport_len: usize,
}

/// Checks that a frame came over `flow` with TCP or UDP (`protocol`), and that lengths, IP
/// checksum, virtio header and TCP or UDP checksum are right. A frame with a complete checksum is
/// copied to `scratch` and summed, as a network stack would do.
fn check(
    frame: &Frame<'_>,
    flow: &Flow,
    protocol: u8,
    scratch: &mut Vec<u8>,
) -> Result<Checked, Rejected> {
    let mut head = [0; HEAD_LEN];
    let front = frame.read(&mut head);
    let front = &head[..front];
    let layers = Layers::parse(front).map_err(|_| Rejected::Invalid)?;
    let Network::Ipv4(ip) = layers.network else {
        return Err(Rejected::Unrelated);
    };
    let ports = Ports { src: flow.remote_port, dst: flow.local_port };
    let same_ports = match layers.transport {
        Transport::Tcp { ports: seen, .. } | Transport::Udp { ports: seen, .. } => seen == ports,
        Transport::Other => false,
    };
    if layers.ethernet.dst != flow.local.mac
        || (ip.src, ip.dst, ip.protocol) != (flow.remote.ip, flow.local.ip, protocol)
        || !same_ports
    {
        return Err(Rejected::Unrelated);
    }
    let l3 = usize::from(layers.l3_offset());
    let ip_end = l3 + usize::from(ip.total_len);
    let padded = ip_end < frame.len && frame.len <= WIRE_FRAME_MIN;
    let transport_len = usize::from(ip.total_len).checked_sub(ip.header_len.into());
    let transport_len = match transport_len {
        Some(len) if frame.len == ip_end || padded => len,
        _ => return Err(Rejected::Invalid),
    };
    let l4 = l3 + usize::from(ip.header_len);
    let header = front.get(l3..l4).ok_or(Rejected::Invalid)?;
    if ipv4_header_checksum(header).to_be_bytes() != header[10..12] {
        return Err(Rejected::Invalid);
    }
    let frame_len = u32::try_from(frame.len).map_err(|_| Rejected::Invalid)?;
    let offload =
        Offload::from_vnet(&frame.header, front, frame_len).map_err(|_| Rejected::Invalid)?;
    let pseudo_header = pseudo_header_v4(ip.src, ip.dst, protocol, transport_len as u16);
    let right = match offload.csum() {
        Some(csum) => {
            let at = csum.field();
            let field = front.get(at..at + 2);
            usize::from(csum.start) == l4
                && field == Some(&pseudo_header.folded().to_be_bytes()[..])
        }
        None if offload.data_valid() => true,
        None => {
            frame.copy_to(scratch);
            let mut sum = pseudo_header;
            sum.add(scratch.get(l4..ip_end).unwrap_or_default());
            sum.folded() == u16::MAX
        }
    };
    if !right {
        return Err(Rejected::Invalid);
    }
    Ok(Checked { head, transport: layers.transport, transport_len })
}

/// Returns the 32-bit field at `at`.
fn be32(head: &[u8; HEAD_LEN], at: usize) -> Option<u32> {
    head.get(at..)?.first_chunk().copied().map(u32::from_be_bytes)
}

/// Returns the 64-bit field at `at`.
fn be64(head: &[u8; HEAD_LEN], at: usize) -> Option<u64> {
    head.get(at..)?.first_chunk().copied().map(u64::from_be_bytes)
}

/// Reads a TCP segment of `flow`.
pub(super) fn segment(
    frame: &Frame<'_>,
    flow: &Flow,
    scratch: &mut Vec<u8>,
) -> Result<Segment, Rejected> {
    let checked = check(frame, flow, protocol::TCP, scratch)?;
    let Transport::Tcp { offset, header_len, .. } = checked.transport else {
        return Err(Rejected::Unrelated);
    };
    let (at, header_len) = (usize::from(offset), usize::from(header_len));
    let read = || {
        Some(Segment {
            seq: be32(&checked.head, at + 4)?,
            ack: be32(&checked.head, at + 8)?,
            payload_at: at + header_len,
            payload_len: checked.transport_len.checked_sub(header_len)?,
        })
    };
    read().ok_or(Rejected::Invalid)
}

/// Reads a probe of `flow`. Returns it with the length of its payload (bytes).
pub(super) fn probe(
    frame: &Frame<'_>,
    flow: &Flow,
    scratch: &mut Vec<u8>,
) -> Result<(Probe, u64), Rejected> {
    let checked = check(frame, flow, protocol::UDP, scratch)?;
    let Transport::Udp { offset, .. } = checked.transport else {
        return Err(Rejected::Unrelated);
    };
    let at = usize::from(offset) + UDP_LEN;
    let payload_len = checked.transport_len.saturating_sub(UDP_LEN);
    if payload_len < PROBE_LEN {
        return Err(Rejected::Invalid);
    }
    let read =
        || Some(Probe { seq: be64(&checked.head, at)?, time_ns: be64(&checked.head, at + 8)? });
    let probe = read().ok_or(Rejected::Invalid)?;
    Ok((probe, payload_len as u64))
}

/// Returns the sequence number of a frame that is taken for a probe without a check of its headers, with the length of
/// its payload (bytes). Returns `None` if the frame is too short for a probe.
pub(super) fn sequence_number(frame: &Frame<'_>) -> Option<(u64, u64)> {
    let mut front = [0; PROBE_FRAME_MIN];
    let payload_len = frame.len.checked_sub(UDP_HEADERS_LEN)?;
    if frame.read(&mut front) < PROBE_FRAME_MIN {
        return None;
    }
    let seq = front[UDP_HEADERS_LEN..].first_chunk().copied().map(u64::from_be_bytes)?;
    Some((seq, payload_len as u64))
}
