//! The reasons for which the fabric drops a frame.

use std::fmt;

/// The reason why a frame goes nowhere. One counter per variant, named by [`Self::as_str`] and indexed by
/// [`Self::index`], covers everything that the fabric drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// No port has the ingress port's number (it was removed while the burst was under way).
    PortUnknown,
    /// The ingress port is not active.
    PortInactive,
    /// The ingress port is blocked: it is part of a loop.
    Loop,
    /// A tag with a VLAN id came in by an access port.
    VlanTaggedOnAccess,
    /// The frame has another tag behind the one that was taken off, and would have left with it as the first.
    VlanStillTagged,
    /// The tag's VLAN id is 4095, which IEEE 802.1Q table 9-2 reserves.
    VlanReservedVid,
    /// A frame without a VLAN id came in by a trunk that has no native VLAN.
    VlanUntaggedOnTrunk,
    /// The trunk does not carry the tag's VLAN.
    VlanNotAllowed,
    /// The source address is a group address.
    SrcMacMulticast,
    /// The source address is all zeros.
    SrcMacZero,
    /// The source address is not the one pinned to the ingress port.
    SrcMacSpoofed,
    /// The source address is pinned to another active port in the same VLAN.
    SrcMacOwned,
    /// The destination is one of 01:80:c2:00:00:00 to 0f, which a bridge never forwards
    /// (IEEE 802.1Q §8.6.3).
    ReservedGroupAddress,
    /// The IPv4 or IPv6 source is not one of the port's addresses, or its headers can't be followed.
    SourceGuardIp,
    /// The sender in an ARP packet is not the port's guest.
    SourceGuardArp,
    /// A message of neighbour discovery about an address that is not the port's, or one that may be hidden.
    SourceGuardNd,
    /// The port is held to its addresses, and the frame is neither IP nor ARP.
    SourceGuardOther,
    /// The destination is behind the ingress port.
    Hairpin,
    /// The destination is behind an isolated port, as the ingress port is.
    Isolated,
}

impl DropReason {
    /// The number of reasons.
    pub const COUNT: usize = Self::ALL.len();

    /// Every reason, each at its [`Self::index`].
    pub const ALL: [Self; 19] = [
        Self::PortUnknown,
        Self::PortInactive,
        Self::Loop,
        Self::VlanTaggedOnAccess,
        Self::VlanStillTagged,
        Self::VlanReservedVid,
        Self::VlanUntaggedOnTrunk,
        Self::VlanNotAllowed,
        Self::SrcMacMulticast,
        Self::SrcMacZero,
        Self::SrcMacSpoofed,
        Self::SrcMacOwned,
        Self::ReservedGroupAddress,
        Self::SourceGuardIp,
        Self::SourceGuardArp,
        Self::SourceGuardNd,
        Self::SourceGuardOther,
        Self::Hairpin,
        Self::Isolated,
    ];

    /// Position in [`Self::ALL`], below [`Self::COUNT`].
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The counter's name; stable, in snake case.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::PortUnknown => "port_unknown",
            Self::PortInactive => "port_inactive",
            Self::Loop => "loop",
            Self::VlanTaggedOnAccess => "vlan_tagged_on_access",
            Self::VlanStillTagged => "vlan_still_tagged",
            Self::VlanReservedVid => "vlan_reserved_vid",
            Self::VlanUntaggedOnTrunk => "vlan_untagged_on_trunk",
            Self::VlanNotAllowed => "vlan_not_allowed",
            Self::SrcMacMulticast => "src_mac_multicast",
            Self::SrcMacZero => "src_mac_zero",
            Self::SrcMacSpoofed => "src_mac_spoofed",
            Self::SrcMacOwned => "src_mac_owned",
            Self::ReservedGroupAddress => "reserved_group_address",
            Self::SourceGuardIp => "source_guard_ip",
            Self::SourceGuardArp => "source_guard_arp",
            Self::SourceGuardNd => "source_guard_nd",
            Self::SourceGuardOther => "source_guard_other",
            Self::Hairpin => "hairpin",
            Self::Isolated => "isolated",
        }
    }
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn all_lists_each_reason_once_at_its_index() {
        for (index, reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(reason.index(), index, "{reason}");
        }
    }

    #[test]
    fn names_are_distinct_snake_case() {
        let names: HashSet<_> = DropReason::ALL.map(DropReason::as_str).into();
        assert_eq!(names.len(), DropReason::COUNT);
        assert!(names.iter().all(|n| n.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')));
    }
}
