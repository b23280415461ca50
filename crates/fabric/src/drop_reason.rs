//! The reasons why the fabric drops a frame.

/// Declares an enum of reasons, each with the name of its counter. A name is stable: programs read it.
#[macro_export]
macro_rules! reasons {
    ($(#[$doc:meta])* $vis:vis enum $name:ident { $($(#[$what:meta])* $reason:ident = $counter:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        $vis enum $name {
            $($(#[$what])* $reason,)+
        }

        impl $name {
            /// The number of reasons.
            pub const COUNT: usize = [$($counter),+].len();

            /// Every reason, each at its [`Self::index`].
            pub const ALL: [Self; Self::COUNT] = [$(Self::$reason),+];

            /// Position in [`Self::ALL`], below [`Self::COUNT`].
            pub const fn index(self) -> usize {
                self as usize
            }

            /// The counter's name, in snake case.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$reason => $counter,)+
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

crate::reasons! {
    /// Why a frame goes nowhere: one counter each.
    pub enum DropReason {
        /// No port has the ingress port's number (it was removed while the burst was under way).
        PortUnknown = "port_unknown",
        /// The ingress port is not active.
        PortInactive = "port_inactive",
        /// The ingress port is blocked: it is part of a loop.
        Loop = "loop",
        /// A tag with a VLAN id came in by an access port.
        VlanTaggedOnAccess = "vlan_tagged_on_access",
        /// The frame has another tag behind the one that was taken off, and would have left with it
        /// as the first.
        VlanStillTagged = "vlan_still_tagged",
        /// The tag's VLAN id is 4095, which IEEE 802.1Q table 9-2 reserves.
        VlanReservedVid = "vlan_reserved_vid",
        /// A frame without a VLAN id came in by a trunk that has no native VLAN.
        VlanUntaggedOnTrunk = "vlan_untagged_on_trunk",
        /// The trunk does not carry the tag's VLAN.
        VlanNotAllowed = "vlan_not_allowed",
        /// The source address is a group address.
        SrcMacMulticast = "src_mac_multicast",
        /// The source address is all zeros.
        SrcMacZero = "src_mac_zero",
        /// The source address is not the one pinned to the ingress port.
        SrcMacSpoofed = "src_mac_spoofed",
        /// The source address is pinned to another active port in the same VLAN.
        SrcMacOwned = "src_mac_owned",
        /// The destination is one of 01:80:c2:00:00:00 to 0f, which a bridge never forwards (IEEE
        /// 802.1Q §8.6.3).
        ReservedGroupAddress = "reserved_group_address",
        /// The IPv4 or IPv6 source is not one of the port's addresses, or its headers can't be
        /// followed.
        SourceGuardIp = "source_guard_ip",
        /// The sender in an ARP packet is not the port's guest.
        SourceGuardArp = "source_guard_arp",
        /// A message of neighbour discovery about an address that is not the port's, or one that
        /// may be hidden.
        SourceGuardNd = "source_guard_nd",
        /// The port is held to its addresses, and the frame is neither IP nor ARP.
        SourceGuardOther = "source_guard_other",
        /// The destination is behind the ingress port.
        Hairpin = "hairpin",
        /// The destination is behind an isolated port, as the ingress port is.
        Isolated = "isolated",
        /// A query for multicast groups came in by a port behind which no multicast router may be.
        MulticastQuery = "multicast_query",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_distinct_snake_case() {
        let names: HashSet<_> = DropReason::ALL.map(DropReason::as_str).into();
        assert_eq!(names.len(), DropReason::COUNT);
        assert!(names.iter().all(|n| n.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')));
    }
}
