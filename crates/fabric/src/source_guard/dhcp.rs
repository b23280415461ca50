//! What DHCP says of who asks, and of what it is given.

use super::Seen;

/// Bytes of a UDP header.
const UDP: usize = 8;
/// `op` of a client, Ethernet, and how long its addresses are (RFC 2131 §2).
const REQUEST: [u8; 3] = [1, 1, 6];
/// Where a message has its client's hardware address.
const CHADDR: usize = 28;

/// Whether the message in the UDP datagram at `at` is from the station that sends it.
pub(super) fn is_from(seen: Seen<'_>, at: usize) -> bool {
    let message = at + UDP;
    // The checksum is the datagram's own, before the message.
    let stays = seen.csum_at.is_none_or(|csum_at| csum_at + 2 == message);
    stays
        && seen.array(message) == Some(REQUEST)
        && seen.array(message + CHADDR) == Some(seen.src.0)
}
