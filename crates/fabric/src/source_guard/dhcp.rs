//! The facts in DHCP (RFC 2131) and DHCPv6 (RFC 8415) messages about the client and the addresses that it gets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use weir_wire::Mac;

use super::leases::{Seen, UDP_LEN as UDP};

/// The ports of a client and of a server (RFC 2131 §4.1).
pub(super) const PORTS: (u16, u16) = (68, 67);
/// The ports of a DHCPv6 client and server (RFC 8415 §7.2).
pub(super) const PORTS6: (u16, u16) = (546, 547);

/// `op` of a client and of a server, each with Ethernet and the length of its addresses (RFC 2131 §2).
const REQUEST: [u8; 3] = [1, 1, 6];
const REPLY: [u8; 3] = [2, 1, 6];
/// Offsets in a message: its transaction, the client's address, the offered address, the client's hardware address.
const XID: usize = 4;
const CIADDR: usize = 12;
const YIADDR: usize = 16;
const CHADDR: usize = 28;
/// The offset of [`MAGIC`].
pub const COOKIE: usize = 236;
/// The offset of the options.
pub const OPTIONS: usize = 240;
/// The first bytes of the options (RFC 2132 §2).
pub const MAGIC: [u8; 4] = [99, 130, 83, 99];
const PAD: u8 = 0;
/// The end of the options (RFC 2132 §3.2).
pub const END: u8 = 255;
const LEASE_TIME: u8 = 51;
const MESSAGE_TYPE: u8 = 53;
const ACK: u8 = 5;
const RELEASE: u8 = 7;

/// DHCPv6 messages (RFC 8415 §7.3): a server's answer, and two by which a client gives addresses back. Then the options
/// that have addresses (§21.4 to §21.6).
const REPLY6: u8 = 7;
const RELEASE6: u8 = 8;
const DECLINE6: u8 = 9;
const IA_NA: u16 = 3;
const IA_TA: u16 = 4;
const IA_ADDR: u16 = 5;

/// True if the message in the UDP datagram at `at` is from the station that sends it.
pub(super) fn is_from(seen: Seen<'_>, at: usize) -> bool {
    let message = at + UDP;
    // The checksum is the datagram's own, which comes before the message.
    let stays = seen.csum_at.is_none_or(|csum_at| csum_at + 2 == message);
    stays
        && seen.array(message) == Some(REQUEST)
        && seen.array(message + CHADDR) == Some(seen.src.0)
}

/// The client's question to which a message belongs, by the number that the client has chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transaction {
    Four([u8; 4]),
    Six([u8; 3]),
}

impl Transaction {
    /// The transaction of a DHCP message.
    pub(super) fn four(message: &[u8]) -> Option<Self> {
        array(message, XID).map(Self::Four)
    }

    /// The transaction of a DHCPv6 message.
    pub(super) fn six(message: &[u8]) -> Option<Self> {
        array(message, 1).map(Self::Six)
    }
}

/// A server's answer to a client: it has these addresses, each for a number of seconds.
pub(super) struct Answer<'f> {
    pub(super) transaction: Transaction,
    /// The client that the answer names; a DHCPv6 answer is sent to the client alone.
    pub(super) client: Option<Mac>,
    given: Given<'f>,
}

enum Given<'f> {
    Four(Ipv4Addr, u32),
    Six(&'f [u8]),
}

impl<'f> Answer<'f> {
    /// Reads the DHCP message in a UDP datagram.
    pub(super) fn four(message: &'f [u8]) -> Option<Self> {
        let client = Mac(array(message, CHADDR)?);
        let Options { kind: ACK, secs } = Options::read(message)? else { return None };
        if array(message, 0)? != REPLY {
            return None;
        }
        let address = Ipv4Addr::from(array::<4>(message, YIADDR)?);
        let transaction = Transaction::four(message)?;
        let given = Given::Four(address, secs?);
        Some(Self { transaction, client: Some(client), given })
    }

    /// Reads the DHCPv6 message in a UDP datagram.
    pub(super) fn six(message: &'f [u8]) -> Option<Self> {
        let transaction = Transaction::six(message)?;
        let given = Given::Six(message.get(4..)?);
        (message.first() == Some(&REPLY6)).then_some(Self { transaction, client: None, given })
    }

    /// Gives `then` each address and its number of seconds; 0 takes the address back.
    pub(super) fn each(&self, mut then: impl FnMut(IpAddr, u32)) {
        match self.given {
            Given::Four(address, secs) => then(address.into(), secs),
            Given::Six(options) => {
                each6(options, then);
            }
        }
    }
}

/// Gives `then` each address that a client gives back by the message in a UDP datagram.
pub(super) fn each_released(message: &[u8], mut then: impl FnMut(IpAddr)) {
    if array(message, 0) != Some(REQUEST) {
        if let Some(&RELEASE6 | &DECLINE6) = message.first() {
            each6(message.get(4..).unwrap_or(&[]), |address, _| then(address));
        }
    } else if let (Some(Options { kind: RELEASE, .. }), Some(address)) =
        (Options::read(message), array::<4>(message, CIADDR))
    {
        then(Ipv4Addr::from(address).into());
    }
}

/// True if the source of a question is the address that the question states for its client.
pub(super) fn is_own_address(seen: Seen<'_>, at: usize, src: Ipv4Addr) -> bool {
    seen.array(at + UDP + CIADDR) == Some(src.octets())
}

/// The relevant options of DHCP.
struct Options {
    kind: u8,
    secs: Option<u32>,
}

impl Options {
    fn read(message: &[u8]) -> Option<Self> {
        if array(message, COOKIE)? != MAGIC {
            return None;
        }
        let (mut kind, mut secs) = (0, None);
        for option in options(message.get(OPTIONS..)?) {
            match option? {
                (MESSAGE_TYPE, [it]) => kind = *it,
                (LEASE_TIME, value) => secs = value.try_into().ok().map(u32::from_be_bytes),
                _ => {}
            }
        }
        Some(Self { kind, secs })
    }
}

/// The options of a DHCP message, up to [`END`] (RFC 2132 §2). The last one is `None` if it claims too many bytes.
pub fn options(mut rest: &[u8]) -> impl Iterator<Item = Option<(u8, &[u8])>> {
    std::iter::from_fn(move || {
        while let [PAD, after @ ..] = rest {
            rest = after;
        }
        let (code, after) = rest.split_first().filter(|(code, _)| **code != END)?;
        let option = after.split_first().and_then(|(len, it)| it.split_at_checked((*len).into()));
        rest = option.map_or(&[], |(_, after)| after);
        Some(option.map(|(value, _)| (*code, value)))
    })
}

/// Gives `then` each address in the options of a DHCPv6 message, and the number of seconds for which it is valid.
fn each6(options: &[u8], mut then: impl FnMut(IpAddr, u32)) {
    for (code, value) in options6(options) {
        let skip = match code {
            IA_NA => 12,
            IA_TA => 4,
            _ => continue,
        };
        for (code, value) in options6(value.get(skip..).unwrap_or(&[])) {
            // An address option has the address, its preferred lifetime, and its valid lifetime.
            if let (IA_ADDR, Some(address), Some(valid)) =
                (code, array::<16>(value, 0), array(value, 20))
            {
                then(Ipv6Addr::from(address).into(), u32::from_be_bytes(valid));
            }
        }
    }
}

/// The options of a DHCPv6 message, up to one that claims more bytes than there are.
fn options6(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let [code, len] = [array(rest, 0)?, array(rest, 2)?].map(u16::from_be_bytes);
        let (value, after) = rest.get(4..)?.split_at_checked(usize::from(len))?;
        rest = after;
        Some((code, value))
    })
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}
