//! A port's number and settings.

use std::fmt;

use weir_limits::{FDB_OVERLAY_PART, FDB_PER_PORT_MAX, FDB_PER_VIF_MAX, PORTS_MAX};
use weir_wire::{TagProtocol, Tci};

use crate::DropReason;
use crate::mac_check::MacCheck;
use crate::vlan::{EgressTag, Vid, VlanMode, VlanSet};

/// Number of a port of the switch, below `weir_limits::PORTS_MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(u16);

impl PortId {
    /// The port with this number; `None` from `weir_limits::PORTS_MAX` up.
    pub const fn new(number: u16) -> Option<Self> {
        if (number as usize) < PORTS_MAX { Some(Self(number)) } else { None }
    }

    /// The number.
    pub const fn get(self) -> u16 {
        self.0
    }

    /// The number as an index into a table of `weir_limits::PORTS_MAX` entries.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for PortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The rules for a port's frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// The port's VLANs.
    pub vlan: VlanMode,
    /// The kind of tags that are the port's own.
    pub tags: TagProtocol,
    /// The source addresses that are accepted from the port.
    pub mac_check: MacCheck,
    /// Most addresses learned behind it. Frames from further addresses are still forwarded; frames
    /// to them are flooded.
    pub learn_max: u32,
    /// A network is behind the port. A guest without a configured address cannot take the addresses of that network.
    pub uplink: bool,
    /// The port exchanges no frames with other isolated ports.
    pub isolated: bool,
    /// A multicast router is behind the port: it gets every group and every report, and its queries count.
    pub multicast_router: bool,
}

impl PortConfig {
    /// The tag of a frame on ingress, if it is one of the port's own. Another tag is payload.
    #[inline]
    pub fn own(&self, tag: Option<Tci>) -> Option<Tci> {
        tag.filter(|tag| tag.protocol() == self.tags)
    }

    /// The VLAN of a frame that came in with `tag`.
    ///
    /// # Errors
    /// See [`VlanMode::ingress`].
    #[inline]
    pub fn ingress(&self, tag: Option<Tci>) -> Result<Vid, DropReason> {
        self.vlan.ingress(self.own(tag))
    }

    /// The egress tag of a frame of `vid` that came in with `tag`; `None` if the port is not a member.
    #[inline]
    pub fn egress(&self, vid: Vid, tag: Option<Tci>) -> Option<EgressTag> {
        match self.vlan.egress(vid, tag)? {
            EgressTag::Tagged(tag) => Some(EgressTag::Tagged(tag.of(self.tags))),
            EgressTag::Untagged => Some(EgressTag::Untagged),
        }
    }

    /// True if a frame without a tag of the port's own that begins with this tag would be taken for one of another
    /// VLAN, here or at the other end of the port. A provider's port knows customer tags as payload.
    pub fn mistakes(&self, tag: TagProtocol) -> bool {
        self.tags == TagProtocol::Dot1q || tag == TagProtocol::Dot1ad
    }

    /// The default for a guest's interface: access to VLAN 1, source check on the first address.
    ///
    /// VLAN 1 is also the default of the Linux bridge and of most switches. A guest's port accepts no tags by
    /// default: a guest that may tag chooses its VLAN.
    pub const fn vif() -> Self {
        Self {
            vlan: VlanMode::Access(Vid::DEFAULT),
            tags: TagProtocol::Dot1q,
            mac_check: MacCheck::First,
            learn_max: FDB_PER_VIF_MAX,
            uplink: false,
            isolated: false,
            multicast_router: false,
        }
    }

    /// The default for an uplink: a trunk of all VLANs with VLAN 1 untagged, and no source check, since many
    /// stations lie behind it. Native VLAN 1 connects guests and network without VLAN configuration; every other
    /// VLAN crosses with its tag.
    pub const fn uplink() -> Self {
        Self {
            vlan: VlanMode::Trunk { native: Some(Vid::DEFAULT), allowed: VlanSet::All },
            tags: TagProtocol::Dot1q,
            mac_check: MacCheck::Off,
            learn_max: FDB_PER_PORT_MAX,
            uplink: true,
            isolated: false,
            multicast_router: true,
        }
    }

    /// An uplink of a bond, which is in no VLAN: the bond is the port.
    pub fn of_a_bond() -> Self {
        let allowed = VlanSet::Only([].into_iter().collect());
        Self { vlan: VlanMode::Trunk { native: None, allowed }, ..Self::uplink() }
    }

    /// The port of an overlay: an uplink that is a member of all networks, and of no VLAN. It may have its part of a
    /// forwarding table of `fdb_entries` entries.
    pub const fn overlay(fdb_entries: usize) -> Self {
        Self {
            vlan: VlanMode::Networks,
            tags: TagProtocol::Dot1q,
            mac_check: MacCheck::Off,
            learn_max: (fdb_entries / FDB_OVERLAY_PART) as u32,
            uplink: true,
            isolated: false,
            multicast_router: true,
        }
    }
}
