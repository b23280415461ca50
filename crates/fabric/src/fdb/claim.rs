//! Whose an address is.

/// The strength with which a port holds an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// An address learned from traffic. Any port that uses the address takes it over. It ages, and can be evicted.
    Dynamic = 0,
    /// The first address of a checked port ([`crate::MacCheck::First`]). It stays until the port is flushed.
    First = 1,
    /// The configured address of a checked port ([`crate::MacCheck::Pinned`]). It stays until the port is flushed.
    Pinned = 2,
    /// An address learned from an uplink's traffic: as [`Self::Dynamic`], but fewer ports can take it over.
    Uplink = 3,
    /// An address stated by a control plane ([`Fdb::tell`](super::Fdb::tell)): as [`Self::Uplink`], but it stays until
    /// it is withdrawn.
    Told = 4,
    /// An address that a control plane states as not moving: only a port on which the address is configured takes it
    /// over.
    ToldSticky = 5,
}

impl Claim {
    /// True if the address ages, and may be evicted.
    pub(super) fn is_learned(self) -> bool {
        matches!(self, Self::Dynamic | Self::Uplink)
    }

    /// True if the address is behind an uplink and so counts against its network's limit.
    pub(super) fn is_outside(self) -> bool {
        matches!(self, Self::Uplink | Self::Told | Self::ToldSticky)
    }

    /// True if a port with the claim `by` takes over an address that another port holds with this claim. A guest cannot
    /// simply take an address behind an uplink, above all the gateway's. Nor can a station outside take a guest's
    /// address.
    pub(super) fn yields_to(self, by: Self) -> bool {
        match self {
            Self::Dynamic => true,
            Self::Uplink | Self::Told => by != Self::First,
            Self::First | Self::ToldSticky => by == Self::Pinned,
            Self::Pinned => false,
        }
    }
}
