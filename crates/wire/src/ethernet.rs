//! The Ethernet header and its outer VLAN tag: the part of every frame that the switch reads.

use crate::bytes::be16_at;
use crate::mac::Mac;
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

/// The reason for which a frame cannot be parsed.
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
}
