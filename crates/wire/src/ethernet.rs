//! The Ethernet header and its outer VLAN tag, the part of every frame that the switch reads; and Ethernet addresses.

use std::fmt;
use std::str::FromStr;

use crate::bytes::be16_at;
use crate::vlan::{TAG_LEN, TagProtocol, Tci};

/// Values of the ethertype field (IEEE 802 numbers) that weir knows.
pub mod ethertype {
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// ARP.
    pub const ARP: u16 = 0x0806;
    /// Reverse ARP; announces the new location of a guest after a live migration.
    pub const RARP: u16 = 0x8035;
    /// 802.1Q customer tag.
    pub const VLAN: u16 = 0x8100;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;
    /// Slow protocols of a link, of which LACP is one.
    pub const SLOW_PROTOCOLS: u16 = 0x8809;
    /// 802.1ad service tag.
    pub const QINQ: u16 = 0x88a8;
}

/// Bytes of an Ethernet header without a tag.
pub const HEADER_LEN: usize = 14;
pub(crate) const ETHERTYPE_OFFSET: usize = 12;

/// The reason why a frame cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// The frame ends inside its Ethernet header or its tag.
    #[error("{len} bytes are too few for an Ethernet header of {need}")]
    Short {
        /// The number of bytes.
        len: usize,
        /// Bytes the header takes: 14, or 18 with a tag.
        need: usize,
    },
}

/// An Ethernet header, with its tag if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ethernet {
    /// Destination address.
    pub dst: Mac,
    /// Source address.
    pub src: Mac,
    /// The outer tag, of either kind.
    pub tag: Option<Tci>,
    /// Ethertype after the tag; an 802.3 length when below 0x600.
    pub ethertype: u16,
    /// Bytes up to the network header: 14, or 18 with a tag.
    pub header_len: u16,
}

impl Ethernet {
    /// Reads the header at the front of `head`.
    ///
    /// # Errors
    /// [`ParseError::Short`] if `head` ends inside the header or the tag.
    #[inline]
    pub fn parse(head: &[u8]) -> Result<Ethernet, ParseError> {
        let Some(&[d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1]) =
            head.first_chunk::<HEADER_LEN>()
        else {
            return Err(ParseError::Short { len: head.len(), need: HEADER_LEN });
        };
        let untagged = Ethernet {
            dst: Mac([d0, d1, d2, d3, d4, d5]),
            src: Mac([s0, s1, s2, s3, s4, s5]),
            tag: None,
            ethertype: u16::from_be_bytes([t0, t1]),
            header_len: HEADER_LEN as u16,
        };
        let Some(protocol) = TagProtocol::of_ethertype(untagged.ethertype) else {
            return Ok(untagged);
        };
        let tag = be16_at(head, HEADER_LEN).map(|bits| Tci::from_bits(bits).of(protocol));
        match (tag, be16_at(head, HEADER_LEN + 2)) {
            (Some(_), Some(ethertype)) => Ok(Ethernet {
                tag,
                ethertype,
                header_len: (HEADER_LEN + TAG_LEN) as u16,
                ..untagged
            }),
            _ => Err(ParseError::Short { len: head.len(), need: HEADER_LEN + TAG_LEN }),
        }
    }
}

/// A 48-bit Ethernet address in the order of the wire.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// `ff:ff:ff:ff:ff:ff`.
    pub const BROADCAST: Mac = Mac([0xff; 6]);

    /// True if the group bit is set: a multicast address, or broadcast.
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// True for `ff:ff:ff:ff:ff:ff`.
    pub const fn is_broadcast(self) -> bool {
        self.to_u64() == Mac::BROADCAST.to_u64()
    }

    /// True for `00:00:00:00:00:00`, which no station may use.
    pub const fn is_zero(self) -> bool {
        self.to_u64() == 0
    }

    /// The address as a number below 2^48; the first byte of the wire is the most significant.
    pub const fn to_u64(self) -> u64 {
        let [a, b, c, d, e, f] = self.0;
        u64::from_be_bytes([0, 0, a, b, c, d, e, f])
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, f] = self.0;
        write!(out, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

/// The reason why a text is not an Ethernet address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MacParseError {
    /// The address does not have six groups.
    #[error(
        "an Ethernet address has 6 groups separated by ':', as in 52:54:00:12:34:56; \"{text}\" has {groups}"
    )]
    Groups {
        /// The whole text.
        text: String,
        /// The number of groups.
        groups: usize,
    },
    /// A group that is not two hexadecimal digits.
    #[error(
        "group {position} of the Ethernet address \"{text}\" is \"{group}\", not two hexadecimal digits"
    )]
    Group {
        /// The whole text.
        text: String,
        /// The number of the group, counted from 1.
        position: usize,
        /// The group.
        group: String,
    },
}

impl FromStr for Mac {
    type Err = MacParseError;

    /// Reads six groups of two hexadecimal digits separated by `:`.
    fn from_str(text: &str) -> Result<Mac, MacParseError> {
        let groups = text.split(':').count();
        if groups != 6 {
            return Err(MacParseError::Groups { text: text.to_owned(), groups });
        }
        let mut mac = Mac::default();
        for (index, (byte, group)) in mac.0.iter_mut().zip(text.split(':')).enumerate() {
            // `from_str_radix` alone would accept "+f".
            let digits = group.len() == 2 && group.bytes().all(|b| b.is_ascii_hexdigit());
            *byte =
                digits.then(|| u8::from_str_radix(group, 16).ok()).flatten().ok_or_else(|| {
                    MacParseError::Group {
                        text: text.to_owned(),
                        position: index + 1,
                        group: group.to_owned(),
                    }
                })?;
        }
        Ok(mac)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: [u8; 18] =
        [1, 2, 3, 4, 5, 6, 0x52, 0x54, 0, 0, 0, 9, 0x81, 0x00, 0x20, 0x0a, 0x08, 0x06];

    #[test]
    fn tagged_header_gives_the_ethertype_behind_the_tag() {
        let ethernet = Ethernet::parse(&FRAME).unwrap();
        assert_eq!(ethernet.dst, Mac([1, 2, 3, 4, 5, 6]));
        assert_eq!(ethernet.src, Mac([0x52, 0x54, 0, 0, 0, 9]));
        assert_eq!(ethernet.tag, Tci::new(10, 1, false));
        assert_eq!((ethernet.ethertype, ethernet.header_len), (ethertype::ARP, 18));
    }

    #[test]
    fn service_tag_is_no_customer_tag() {
        let mut frame = FRAME;
        frame[12..14].copy_from_slice(&ethertype::QINQ.to_be_bytes());
        let ethernet = Ethernet::parse(&frame).unwrap();
        assert_eq!(ethernet.tag, Tci::new(10, 1, false).map(|tag| tag.of(TagProtocol::Dot1ad)));
        assert_eq!((ethernet.ethertype, ethernet.header_len), (ethertype::ARP, 18));
    }

    #[test]
    fn header_cut_anywhere_is_an_error() {
        for protocol in [TagProtocol::Dot1q, TagProtocol::Dot1ad] {
            let mut frame = FRAME;
            frame[12..14].copy_from_slice(&protocol.ethertype().to_be_bytes());
            for len in 0..frame.len() {
                let need = if len < 14 { 14 } else { 18 };
                assert_eq!(Ethernet::parse(&frame[..len]), Err(ParseError::Short { len, need }));
            }
        }
    }

    const GUEST: Mac = Mac([0x52, 0x54, 0x00, 0x12, 0x34, 0xab]);

    #[test]
    fn text_round_trips_in_either_case() {
        assert_eq!(GUEST.to_string(), "52:54:00:12:34:ab");
        assert_eq!("52:54:00:12:34:ab".parse(), Ok(GUEST));
        assert_eq!("52:54:00:12:34:AB".parse(), Ok(GUEST));
    }

    #[test]
    fn errors_say_what_is_wrong_and_where() {
        let short = "52:54:00:12:34".parse::<Mac>().unwrap_err();
        assert!(short.to_string().ends_with("\"52:54:00:12:34\" has 5"), "{short}");
        let sign = "52:54:00:+1:34:56".parse::<Mac>().unwrap_err();
        assert!(sign.to_string().starts_with("group 4"), "{sign}");
        for bad in
            ["", "52:54:00:12:34:5", "52:54:00:12:34:5g", "52-54-00-12-34-56", "é2:54:00:12:34:56"]
        {
            assert!(bad.parse::<Mac>().is_err(), "{bad}");
        }
    }

    #[test]
    fn kinds_and_numbers() {
        assert!(Mac::BROADCAST.is_broadcast() && Mac::BROADCAST.is_multicast());
        assert!(Mac([0x33, 0x33, 0, 0, 0, 1]).is_multicast());
        assert!(!GUEST.is_multicast() && !GUEST.is_broadcast() && !GUEST.is_zero());
        assert!(Mac::default().is_zero());
        assert_eq!(GUEST.to_u64(), 0x5254_0012_34ab);
        assert!(Mac([0, 0, 0, 0, 1, 0]) > Mac([0, 0, 0, 0, 0, 0xff]));
    }
}
