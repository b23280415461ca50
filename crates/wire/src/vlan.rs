//! The tags of IEEE 802.1Q: customer tags and, since 802.1ad, service tags.

use std::fmt;

use crate::ethernet::ethertype;

/// Bytes a tag adds to a frame: its ethertype and the [`Tci`].
pub const TAG_LEN: usize = 4;

/// The kind of a port's own tags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TagProtocol {
    /// Customer tags, 0x8100 (802.1Q).
    #[default]
    Dot1q,
    /// Service tags, 0x88a8 (802.1ad). Customer tags behind them are payload.
    Dot1ad,
}

impl TagProtocol {
    /// The ethertype of such a tag.
    pub const fn ethertype(self) -> u16 {
        match self {
            Self::Dot1q => ethertype::VLAN,
            Self::Dot1ad => ethertype::QINQ,
        }
    }

    /// The kind of tag of an ethertype, if it is a tag's.
    pub const fn of_ethertype(ethertype: u16) -> Option<Self> {
        match ethertype {
            ethertype::VLAN => Some(Self::Dot1q),
            ethertype::QINQ => Some(Self::Dot1ad),
            _ => None,
        }
    }
}

/// Tag control information (802.1Q §9.6): priority (3 bits), drop eligible (1 bit), VLAN id (12 bits); and the kind of
/// the tag.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Tci {
    bits: u16,
    protocol: TagProtocol,
}

impl Tci {
    /// VLAN id of a tag that carries a priority only; the frame counts as untagged.
    pub const VID_PRIORITY: u16 = 0;
    /// VLAN id that no frame may carry (802.1Q table 9-2).
    pub const VID_RESERVED: u16 = 0xfff;

    /// A customer tag's control information; `None` if `vid` exceeds 4095 or `pcp` exceeds 7.
    pub const fn new(vid: u16, pcp: u8, dei: bool) -> Option<Tci> {
        if vid > 0xfff || pcp > 7 {
            return None;
        }
        Some(Tci::from_bits((pcp as u16) << 13 | (dei as u16) << 12 | vid))
    }

    /// The control information of a customer tag's field; every value is valid.
    pub const fn from_bits(bits: u16) -> Tci {
        Tci { bits, protocol: TagProtocol::Dot1q }
    }

    /// The tag control information with this kind of tag.
    pub const fn of(self, protocol: TagProtocol) -> Tci {
        Tci { bits: self.bits, protocol }
    }

    /// The kind of the tag.
    pub const fn protocol(self) -> TagProtocol {
        self.protocol
    }

    /// The field as it is on the wire.
    pub const fn bits(self) -> u16 {
        self.bits
    }

    /// VLAN id, 0 to 4095.
    pub const fn vid(self) -> u16 {
        self.bits & 0xfff
    }

    /// Priority code point, 0 to 7.
    pub const fn pcp(self) -> u8 {
        (self.bits >> 13) as u8
    }

    /// Drop eligible indicator.
    pub const fn dei(self) -> bool {
        self.bits & 0x1000 != 0
    }
}

impl fmt::Debug for Tci {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { protocol, .. } = self;
        write!(out, "Tci({protocol:?}, vid {}, pcp {}, dei {})", self.vid(), self.pcp(), self.dei())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_sit_where_802_1q_puts_them() {
        let tci = Tci::new(0x123, 5, true).unwrap();
        assert_eq!(tci.bits(), 0xb123);
        assert_eq!((tci.vid(), tci.pcp(), tci.dei()), (0x123, 5, true));
        assert_eq!(Tci::from_bits(0xb123), tci);
        assert_eq!(tci.of(TagProtocol::Dot1ad).bits(), 0xb123);
        assert_ne!(tci.of(TagProtocol::Dot1ad), tci);
        assert_eq!(size_of::<Option<Tci>>(), 4);
        assert_eq!(Tci::new(4096, 0, false), None);
        assert_eq!(Tci::new(1, 8, false), None);
    }
}
