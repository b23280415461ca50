//! The IEEE 802.1Q tag's control information.

use std::fmt;

/// Bytes a tag adds to a frame: its ethertype and the [`Tci`].
pub const TAG_LEN: usize = 4;

/// Tag control information (802.1Q §9.6): priority (3 bits), drop eligible (1 bit), VLAN id (12 bits).
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Tci(u16);

impl Tci {
    /// VLAN id of a tag that carries a priority only; the frame counts as untagged.
    pub const VID_PRIORITY: u16 = 0;
    /// VLAN id that no frame may carry (802.1Q table 9-2).
    pub const VID_RESERVED: u16 = 0xfff;

    /// A tag's control information; `None` when `vid` exceeds 4095 or `pcp` exceeds 7.
    pub const fn new(vid: u16, pcp: u8, dei: bool) -> Option<Tci> {
        if vid > 0xfff || pcp > 7 {
            return None;
        }
        Some(Tci((pcp as u16) << 13 | (dei as u16) << 12 | vid))
    }

    /// From the field of the wire; every value is one.
    pub const fn from_bits(bits: u16) -> Tci {
        Tci(bits)
    }

    /// The field of the wire.
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// VLAN id, 0 to 4095.
    pub const fn vid(self) -> u16 {
        self.0 & 0xfff
    }

    /// Priority code point, 0 to 7.
    pub const fn pcp(self) -> u8 {
        (self.0 >> 13) as u8
    }

    /// Drop eligible indicator.
    pub const fn dei(self) -> bool {
        self.0 & 0x1000 != 0
    }
}

impl fmt::Debug for Tci {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Tci(vid {}, pcp {}, dei {})", self.vid(), self.pcp(), self.dei())
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
        assert_eq!(Tci::new(4096, 0, false), None);
        assert_eq!(Tci::new(1, 8, false), None);
    }
}
