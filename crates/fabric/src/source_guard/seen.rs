//! A frame as the guard sees it, and what an ARP packet says.

use std::net::Ipv4Addr;

use weir_wire::Mac;
use weir_wire::ethernet::HEADER_LEN;

/// The offset of the checksum in a UDP header, and the length of the header.
pub(super) const UDP_CSUM: usize = 6;
/// See [`UDP_CSUM`].
pub(super) const UDP_LEN: usize = 8;

/// A frame as the guard sees it.
#[derive(Clone, Copy)]
pub(super) struct Seen<'f> {
    /// The front, without a tag.
    pub(super) head: &'f [u8],
    /// Bytes of the frame.
    pub(super) len: usize,
    /// The Ethernet source.
    pub(super) src: Mac,
    /// The offset of two bytes that are filled in before the frame is delivered.
    pub(super) csum_at: Option<usize>,
    pub(super) now_secs: u32,
}

impl<'f> Seen<'f> {
    pub(super) fn array<const N: usize>(self, at: usize) -> Option<[u8; N]> {
        self.head.get(at..)?.first_chunk().copied()
    }

    pub(super) fn be16(self, at: usize) -> Option<u16> {
        self.array(at).map(u16::from_be_bytes)
    }

    /// True if the bytes before `at` are delivered as they are.
    pub(super) fn stays_up_to(self, at: usize) -> bool {
        self.csum_at.is_none_or(|csum_at| csum_at >= at)
    }

    /// The source and destination port of the UDP header at `at`.
    pub(super) fn ports(self, at: usize) -> Option<(u16, u16)> {
        Some((self.be16(at)?, self.be16(at + 2)?))
    }
}

/// An ARP packet of IPv4 over Ethernet.
pub(super) struct Arp {
    pub(super) operation: u16,
    pub(super) sender: (Mac, Ipv4Addr),
    pub(super) target: (Mac, Ipv4Addr),
}

impl Arp {
    pub(super) const REQUEST: u16 = 1;
    pub(super) const REPLY: u16 = 2;
    pub(super) const REVERSE_REQUEST: u16 = 3;
    /// Hardware and protocol, and the length of each one's addresses.
    pub(super) const ETHERNET_IPV4: [u8; 6] = [0, 1, 8, 0, 6, 4];

    pub(super) fn read(seen: Seen<'_>) -> Option<Self> {
        let at = HEADER_LEN;
        // ARP has no checksum: bytes that are filled in later would make another address.
        if seen.array(at)? != Self::ETHERNET_IPV4 || seen.csum_at.is_some() {
            return None;
        }
        let party = |at| Some((Mac(seen.array(at)?), Ipv4Addr::from(seen.array::<4>(at + 6)?)));
        Some(Self {
            operation: seen.be16(at + 6)?,
            sender: party(at + 8)?,
            target: party(at + 18)?,
        })
    }
}
