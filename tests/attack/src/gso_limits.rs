//! Packet limits, and frames of thousands of packets. The packets that other guests get are counted.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use crate::{
    attack,
    attack::{Attack, Field},
    front::{
        Strike,
        frame::{BROADCAST, EXPERIMENTAL, Header, Mac, frame, tcp},
        guest::{Guest, MRG_RXBUF, PROTOCOL, Plan, SEND_OFFLOADS, VERSION_1},
        harm,
    },
    measure::switch::PACKETS,
};

/// The attacks of the class.
pub const ALL: &[Attack] = &[
    attack!(broadcasts_of_a_thousand_segments, "sends broadcasts that are cut into 1,000 packets"),
    attack!(multicasts_of_a_thousand_segments, "sends multicasts that are cut into 1,000 packets"),
    attack!(
        unknown_stations_a_thousand_segments_each,
        "sends frames for stations that there are not, each cut into 1,000 packets"
    ),
    attack!(broadcasts_of_ipv6_segments, "sends IPv6 broadcasts that are cut into 1,000 packets"),
    attack!(broadcasts_of_udp_segments, "sends UDP broadcasts that are cut into 1,000 packets"),
    attack!(
        segments_beyond_packets_per_second,
        "sends frames of 1,000 packets from an interface with `packets_per_second`"
    ),
    attack!(
        segments_beyond_rx_packets_per_second,
        "sends such frames to an interface with `rx_packets_per_second`"
    ),
    attack!(
        segments_of_a_byte_beyond_packets_per_second,
        "has segments of one byte made, from an interface with `packets_per_second`"
    ),
];

/// Limit of an attacker's broadcast frames: per second, and in a burst.
const STORM: [u64; 2] = [100, 64];
/// Segment size at which a frame has a thousand segments (bytes).
const SEGMENT: u16 = 60;
const LEN: usize = 60_000;
/// Time for which packets are counted.
const WHILE: Duration = Duration::from_millis(300);

/// A receiver without offloads: it gets frames as on a wire.
fn wire() -> Plan {
    Plan { features: VERSION_1 | PROTOCOL | MRG_RXBUF, ..Plan::default() }
}

fn sender() -> Plan {
    let features = VERSION_1 | PROTOCOL | MRG_RXBUF | SEND_OFFLOADS;
    Plan { features, memory: 32 << 20, size: 128, ..Plan::default() }
}

/// Sends a frame of [`LEN`] bytes in one long buffer.
fn send_long(guest: &Guest, header: Header, bytes: &[u8]) {
    // The offset is far behind the buffers that [`Guest::put`] uses for the first slots.
    let ring = guest.ring(1);
    let slot = guest.memory.u16_at(ring.index_at()) % ring.size;
    let at = (16 << 20) + usize::from(slot % 64) * (128 << 10);
    guest.memory.set(at, &header.bytes());
    guest.memory.set(at + crate::front::frame::HEADER_LEN, bytes);
    let len = u32::try_from(crate::front::frame::HEADER_LEN + bytes.len()).unwrap_or(u32::MAX);
    ring.set(slot, crate::front::guest::GUEST + at as u64, len, 0, 0);
    ring.offer(slot);
    guest.kick(1);
}

/// Sends `bytes` whenever the last frame has been used. Counts the packets of `to` within [`WHILE`].
fn counted(from: &Guest, to: &Guest, header: Header, bytes: &[u8]) -> u64 {
    let ring = to.ring(0);
    let (began, mut got, mut seen) = (Instant::now(), 0, ring.used());
    while began.elapsed() < WHILE {
        let sent = from.ring(1);
        if sent.used() == from.memory.u16_at(sent.index_at()) {
            send_long(from, header, bytes);
        }
        to.repost(0);
        to.kick(0);
        let used = ring.used();
        got += u64::from(used.wrapping_sub(seen));
        seen = used;
        std::thread::sleep(Duration::from_micros(100));
    }
    got
}

/// Fails if more than twice the limit arrives within [`WHILE`]. The limit is the rate's share and a burst. The factor
/// allows for other guests' flooded frames.
fn held(field: &Field, got: u64, [a_second, at_once]: [u64; 2], what: &str) -> Strike {
    let most = 2 * (a_second + at_once);
    if got > most {
        return harm(format!("{got} packets of {what} arrive in {WHILE:?}: at most {most} may"));
    }
    field.struck();
    Ok(())
}

/// Frames to an unknown address must be limited to [`STORM`].
fn flooded(field: &Field, to: Mac, header: Header, bytes: &[u8], what: &str) -> Strike {
    // A guest with a bridge gets all flooded frames.
    let from = Guest::attach(&field.evil(0), sender())?;
    let other = Guest::attach(&field.socket("bridge"), wire())?;
    let mut bytes = bytes.to_vec();
    bytes[..6].copy_from_slice(&to);
    held(field, counted(&from, &other, header, &bytes), STORM, what)
}

fn broadcasts_of_a_thousand_segments(field: &Field) -> Strike {
    let bytes = tcp(BROADCAST, Guest::mac(0), LEN);
    flooded(field, BROADCAST, Header::tso(SEGMENT), &bytes, "broadcasts")
}

fn multicasts_of_a_thousand_segments(field: &Field) -> Strike {
    let to = [1, 0, 0x5e, 0, 0, 1];
    flooded(field, to, Header::tso(SEGMENT), &tcp(to, Guest::mac(0), LEN), "multicasts")
}

fn unknown_stations_a_thousand_segments_each(field: &Field) -> Strike {
    let to = Guest::mac(99);
    flooded(field, to, Header::tso(SEGMENT), &tcp(to, Guest::mac(0), LEN), "unknown stations")
}

fn broadcasts_of_ipv6_segments(field: &Field) -> Strike {
    let mut bytes = frame(BROADCAST, Guest::mac(0), 0x86dd, 14);
    let payload = u16::try_from(LEN - 54).unwrap_or(u16::MAX);
    bytes.extend([0x60, 0, 0, 0]);
    bytes.extend(payload.to_be_bytes());
    bytes.extend([6, 64]);
    bytes.extend([0xfd; 32]);
    bytes.extend([0x13, 0x88, 0x13, 0x89, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0x20, 0, 0, 0, 0, 0]);
    bytes.resize(LEN, 0x5a);
    let header = Header {
        flags: 1,
        gso: 4,
        header_len: 74,
        gso_size: SEGMENT,
        csum_start: 54,
        csum_offset: 16,
    };
    flooded(field, BROADCAST, header, &bytes, "IPv6 broadcasts")
}

fn broadcasts_of_udp_segments(field: &Field) -> Strike {
    let mut bytes = frame(BROADCAST, Guest::mac(0), 0x0800, 14);
    let ip_len = u16::try_from(LEN - 14).unwrap_or(u16::MAX);
    bytes.extend([0x45, 0]);
    bytes.extend(ip_len.to_be_bytes());
    bytes.extend([0, 1, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    bytes.extend([0x13, 0x88, 0x13, 0x89]);
    bytes.extend((ip_len - 20).to_be_bytes());
    bytes.extend([0, 0]);
    bytes.resize(LEN, 0x5a);
    // `VIRTIO_NET_HDR_GSO_UDP_L4`.
    let header = Header {
        flags: 1,
        gso: 5,
        header_len: 42,
        gso_size: SEGMENT,
        csum_start: 34,
        csum_offset: 6,
    };
    flooded(field, BROADCAST, header, &bytes, "UDP broadcasts")
}

/// Frames from `sends` to `gets` must be limited to [`PACKETS`] by one of the two interfaces.
fn policed(field: &Field, sends: &Path, gets: &Path, segment: u16, what: &str) -> Strike {
    let from = Guest::attach(sends, sender())?;
    let to = Guest::attach(gets, wire())?;
    to.send(1, Header::default(), &frame(Guest::mac(0), Guest::mac(1), EXPERIMENTAL, 60));
    to.taken(1, "the receiver's first frame")?;
    let bytes = tcp(Guest::mac(1), Guest::mac(0), LEN);
    let got = counted(&from, &to, Header::tso(segment), &bytes);
    // The default burst is a tenth of a second, or as much as one frame may have.
    let at_once = u64::from(PACKETS / 10).max(1100);
    held(field, got, [u64::from(PACKETS) * 3 / 10, at_once], what)
}

fn segments_beyond_packets_per_second(field: &Field) -> Strike {
    policed(field, &field.socket("limited"), &field.evil(1), SEGMENT, "a limited sender")
}

fn segments_beyond_rx_packets_per_second(field: &Field) -> Strike {
    policed(
        field,
        &field.evil(0),
        &field.socket("limited_rx"),
        SEGMENT,
        "frames to a limited receiver",
    )
}

fn segments_of_a_byte_beyond_packets_per_second(field: &Field) -> Strike {
    policed(
        field,
        &field.socket("limited"),
        &field.evil(1),
        8,
        "a limited sender of small segments",
    )
}
