//! Headers around an answer, and what of a question is turned around.

use std::net::Ipv4Addr;

use weir_wire::checksum::{Sum, nonzero};
use weir_wire::ethernet::HEADER_LEN;
use weir_wire::layers::{IPV4_HEADER_LEN_MIN, UDP_HEADER_LEN, protocol};
use weir_wire::{Mac, ethertype};

/// weir's packets go through no router.
const HOPS: u8 = 64;
/// Of ICMP and ICMPv6 (RFC 792, RFC 4443 §4.1).
const ECHO_REQUEST: [u8; 2] = [8, 128];
const ECHO_REPLY: [u8; 2] = [0, 129];

/// A datagram from a server's port to a client's, in a frame.
pub(crate) fn datagram(
    (from_mac, to_mac): (Mac, Mac),
    (from, to): ((Ipv4Addr, u16), (Ipv4Addr, u16)),
    payload: &[u8],
) -> Option<Vec<u8>> {
    let udp_len = u16::try_from(usize::from(UDP_HEADER_LEN) + payload.len()).ok()?;
    let total_len = IPV4_HEADER_LEN_MIN.checked_add(udp_len)?;
    let mut frame = Vec::with_capacity(HEADER_LEN + usize::from(total_len));
    frame.extend(to_mac.0);
    frame.extend(from_mac.0);
    frame.extend(ethertype::IPV4.to_be_bytes());
    frame.extend([0x45, 0]);
    frame.extend(total_len.to_be_bytes());
    // No identification, and not to be fragmented.
    frame.extend([0, 0, 0x40, 0, HOPS, protocol::UDP, 0, 0]);
    frame.extend(from.0.octets());
    frame.extend(to.0.octets());
    frame.extend(from.1.to_be_bytes());
    frame.extend(to.1.to_be_bytes());
    frame.extend(udp_len.to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(payload);
    let udp_at = HEADER_LEN + usize::from(IPV4_HEADER_LEN_MIN);
    let mut sum = Sum::new();
    sum.add(frame.get(HEADER_LEN..udp_at)?);
    put(&mut frame, HEADER_LEN + 10, sum.finish());
    // With the pseudo header of RFC 768.
    let mut sum = Sum::new();
    sum.add(&from.0.octets());
    sum.add(&to.0.octets());
    sum.add_u32(protocol::UDP.into());
    sum.add_u32(udp_len.into());
    sum.add(frame.get(udp_at..)?);
    put(&mut frame, udp_at + 6, nonzero(sum.finish()));
    Some(frame)
}

/// The answer to an echo request whose message begins at `at`, from the same frame: both pairs of addresses, which
/// have `address_len` bytes from `addresses` on, change places.
pub(crate) fn echo_reply(
    frame: &[u8],
    own: Mac,
    at: usize,
    (addresses, address_len): (usize, usize),
) -> Option<Vec<u8>> {
    let (kind, code) = (*frame.get(at)?, *frame.get(at + 1)?);
    let which = ECHO_REQUEST.iter().position(|request| *request == kind).filter(|_| code == 0)?;
    let mut reply = frame.to_vec();
    let asker: [u8; 6] = frame.get(6..12)?.try_into().ok()?;
    reply.get_mut(..6)?.copy_from_slice(&asker);
    reply.get_mut(6..12)?.copy_from_slice(&own.0);
    let (from, to) =
        reply.get_mut(addresses..addresses + 2 * address_len)?.split_at_mut(address_len);
    from.swap_with_slice(to);
    *reply.get_mut(at)? = ECHO_REPLY[which];
    // What is wrong stays wrong: the sum changes by what the type does (RFC 1624).
    let sum = u16::from_be_bytes(frame.get(at + 2..at + 4)?.try_into().ok()?);
    let [before, after] = [ECHO_REQUEST, ECHO_REPLY].map(|kinds| u16::from(kinds[which]) << 8);
    let mut changed = Sum::new();
    changed.add(&(!sum).to_be_bytes());
    changed.add(&(!before).to_be_bytes());
    changed.add(&after.to_be_bytes());
    put(&mut reply, at + 2, changed.finish());
    Some(reply)
}

fn put(frame: &mut [u8], at: usize, value: u16) {
    if let Some(place) = frame.get_mut(at..at + 2) {
        place.copy_from_slice(&value.to_be_bytes());
    }
}
