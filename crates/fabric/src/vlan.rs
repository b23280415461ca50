//! A frame's VLAN, and its tag on egress (IEEE 802.1Q).
//!
//! Inside the switch every frame has a VLAN: a port assigns it on ingress, and turns it into a tag, or none, on
//! egress.
//!
//! | mode | ingress: no tag, or priority tag (vid 0) | ingress: tagged `v` | egress of VLAN `v` |
//! |---|---|---|---|
//! | `Access(a)` | VLAN `a` | dropped | untagged if `v == a` |
//! | `Trunk` | the native VLAN, or dropped without one | VLAN `v` if carried | untagged if `v` is native, tagged if carried |
//! | `Networks` | the network of that number | the same | its number, in place of a tag |
//!
//! A *network* is a VLAN that no tag can name, so that no trunk carries it by chance: its [`Vid`] is above those of
//! IEEE 802.1Q. The port of an overlay, whose wire has names of its own for networks, is a member of all.
//!
//! An access port also refuses its own VLAN's tag: a guest that sends tags expects to receive them, and would get
//! none.
//!
//! Tags are customers' (802.1Q) or a provider's (802.1ad). Only those of one kind are a port's own
//! ([`PortConfig::tags`](crate::PortConfig::tags)); a tag of the other kind is payload.

use std::fmt;

use weir_limits::{NETWORKS_MAX, VLAN_ID_MAX};
use weir_wire::Tci;

use crate::DropReason;

/// A VLAN id, 1 to 4094; or a network, from 4096 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vid(u16);

impl Vid {
    /// Every VLAN that a tag can name, in ascending order.
    pub fn all() -> impl Iterator<Item = Self> {
        (1..=VLAN_ID_MAX).map(Self)
    }

    /// VLAN 1, which untagged traffic belongs to unless configured otherwise (802.1Q table 9-2).
    pub const DEFAULT: Self = Self(1);

    /// The VLAN with this id.
    ///
    /// # Errors
    /// If `vid` is zero (a priority tag names no VLAN) or above `weir_limits::VLAN_ID_MAX`.
    pub const fn new(vid: u16) -> Result<Self, VidError> {
        match vid {
            1..=VLAN_ID_MAX => Ok(Self(vid)),
            _ => Err(VidError { vid }),
        }
    }

    /// The network of that number; `None` from `weir_limits::NETWORKS_MAX` up.
    pub const fn of_network(number: u16) -> Option<Self> {
        if (number as usize) < NETWORKS_MAX { Some(Self(FIRST_NETWORK + number)) } else { None }
    }

    /// The number of the network, if this is a network and not a VLAN.
    pub const fn network(self) -> Option<u16> {
        self.0.checked_sub(FIRST_NETWORK)
    }

    /// The VLAN or network of which [`Vid::get`] returns `bits`.
    pub const fn from_bits(bits: u16) -> Option<Self> {
        match bits {
            1..=VLAN_ID_MAX => Some(Self(bits)),
            _ => match bits.checked_sub(FIRST_NETWORK) {
                Some(number) => Self::of_network(number),
                None => None,
            },
        }
    }

    /// The id.
    pub const fn get(self) -> u16 {
        self.0
    }
}

/// The first number that does not fit into a tag.
const FIRST_NETWORK: u16 = 4096;

impl fmt::Display for Vid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.network() {
            None => self.0.fmt(f),
            Some(number) => write!(f, "network {number}"),
        }
    }
}

/// The error for a number that is no VLAN id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("VLAN id {vid}; valid: 1 to {VLAN_ID_MAX}")]
pub struct VidError {
    /// The number.
    pub vid: u16,
}

const WORDS: usize = FIRST_NETWORK as usize / 64;

/// A set of VLANs, without networks.
#[derive(Clone, PartialEq, Eq)]
pub struct VidSet(Box<[u64; WORDS]>);

impl VidSet {
    /// True if `vid` is in the set.
    pub fn contains(&self, vid: Vid) -> bool {
        let (word, bit) = Self::position(vid);
        self.0.get(word).is_some_and(|word| word & bit != 0)
    }

    /// The VLANs in the set, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = Vid> {
        Vid::all().filter(|&vid| self.contains(vid))
    }

    fn position(vid: Vid) -> (usize, u64) {
        (usize::from(vid.0 / 64), 1 << (vid.0 % 64))
    }
}

impl FromIterator<Vid> for VidSet {
    fn from_iter<I: IntoIterator<Item = Vid>>(vids: I) -> Self {
        let mut words = Box::new([0; WORDS]);
        for vid in vids {
            let (word, bit) = Self::position(vid);
            if let Some(word) = words.get_mut(word) {
                *word |= bit;
            }
        }
        Self(words)
    }
}

impl fmt::Debug for VidSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(Vid::get)).finish()
    }
}

/// The VLANs that a trunk carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VlanSet {
    /// Every VLAN.
    All,
    /// The VLANs in the set.
    Only(VidSet),
}

impl VlanSet {
    /// True if the trunk carries `vid`.
    pub fn contains(&self, vid: Vid) -> bool {
        match self {
            Self::All => vid.network().is_none(),
            Self::Only(set) => set.contains(vid),
        }
    }
}

/// The VLANs of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VlanMode {
    /// Member of one VLAN; the station behind the port knows nothing of VLANs.
    Access(Vid),
    /// Member of several VLANs, told apart by tags.
    Trunk {
        /// The VLAN of untagged frames, both ways; carried whether `allowed` names it or not. With
        /// `None` untagged frames are dropped.
        native: Option<Vid>,
        /// The VLANs of tagged frames.
        allowed: VlanSet,
    },
    /// Member of all networks, told apart by their numbers in place of tags ([`Tci::bits`]).
    Networks,
}

/// A frame's tag on egress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EgressTag {
    /// The frame leaves without a tag.
    Untagged,
    /// The frame leaves with this tag, after the addresses. The tag keeps priority and drop
    /// eligibility of the frame's tag on ingress; without one its priority is 0. At a port of
    /// [`VlanMode::Networks`] the number stands for the network.
    Tagged(Tci),
}

impl VlanMode {
    /// The VLAN of a frame that came in with `tag`.
    ///
    /// # Errors
    /// [`DropReason::VlanReservedVid`], [`DropReason::VlanTaggedOnAccess`],
    /// [`DropReason::VlanUntaggedOnTrunk`], [`DropReason::VlanNotAllowed`].
    pub fn ingress(&self, tag: Option<Tci>) -> Result<Vid, DropReason> {
        if let Self::Networks = self {
            return network(tag);
        }
        let vid = match tag.map_or(Tci::VID_PRIORITY, Tci::vid) {
            Tci::VID_PRIORITY => None,
            vid => Some(Vid::new(vid).map_err(|_| DropReason::VlanReservedVid)?),
        };
        match (self, vid) {
            (Self::Access(access), None) => Ok(*access),
            (Self::Access(_), Some(_)) => Err(DropReason::VlanTaggedOnAccess),
            (Self::Trunk { native, .. }, None) => native.ok_or(DropReason::VlanUntaggedOnTrunk),
            (Self::Networks, None) => Err(DropReason::VlanUntaggedOnTrunk),
            (Self::Trunk { .. }, Some(vid)) if self.is_member(vid) => Ok(vid),
            (Self::Trunk { .. } | Self::Networks, Some(_)) => Err(DropReason::VlanNotAllowed),
        }
    }

    /// True if frames of `vid` may leave by the port.
    pub fn is_member(&self, vid: Vid) -> bool {
        match self {
            Self::Access(access) => *access == vid,
            Self::Trunk { native, allowed } => *native == Some(vid) || allowed.contains(vid),
            Self::Networks => vid.network().is_some(),
        }
    }

    /// True if both carry some VLAN.
    pub fn meets(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Access(vid), other) | (other, Self::Access(vid)) => other.is_member(*vid),
            (Self::Networks, other) | (other, Self::Networks) => matches!(other, Self::Networks),
            (Self::Trunk { .. }, Self::Trunk { .. }) => {
                (1..=VLAN_ID_MAX).map(Vid).any(|vid| self.is_member(vid) && other.is_member(vid))
            }
        }
    }

    /// The egress tag of a frame of `vid` that came in with `tag`; `None` if the port is not a member.
    pub fn egress(&self, vid: Vid, tag: Option<Tci>) -> Option<EgressTag> {
        if !self.is_member(vid) {
            return None;
        }
        match self {
            Self::Access(_) => Some(EgressTag::Untagged),
            Self::Networks => vid.network().map(|number| EgressTag::Tagged(Tci::from_bits(number))),
            Self::Trunk { native, .. } if *native == Some(vid) => Some(EgressTag::Untagged),
            Self::Trunk { .. } => {
                let priority = tag.map_or(0, |tag| tag.bits() & !Tci::VID_RESERVED);
                Some(EgressTag::Tagged(Tci::from_bits(priority | vid.get())))
            }
        }
    }
}

/// The network that a port of [`VlanMode::Networks`] has named in place of a tag.
#[cold]
fn network(tag: Option<Tci>) -> Result<Vid, DropReason> {
    let number = tag.ok_or(DropReason::VlanUntaggedOnTrunk)?.bits();
    Vid::of_network(number).ok_or(DropReason::VlanNotAllowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vid(vid: u16) -> Vid {
        Vid::new(vid).unwrap()
    }

    fn tag(vid: u16) -> Option<Tci> {
        Tci::new(vid, 0, false)
    }

    fn trunk(native: Option<u16>, allowed: &[u16]) -> VlanMode {
        let allowed = VlanSet::Only(allowed.iter().copied().map(vid).collect());
        VlanMode::Trunk { native: native.map(vid), allowed }
    }

    fn trunk_all(native: Option<u16>) -> VlanMode {
        VlanMode::Trunk { native: native.map(vid), allowed: VlanSet::All }
    }

    #[test]
    fn ingress_matrix() {
        use DropReason::*;
        let access = VlanMode::Access(vid(5));
        let native_7 = trunk(Some(7), &[10, 20]);
        let no_native = trunk(None, &[10]);
        for (mode, ingress_tag, expected) in [
            (&access, None, Ok(vid(5))),
            (&access, tag(0), Ok(vid(5))),
            (&access, tag(5), Err(VlanTaggedOnAccess)),
            (&access, tag(6), Err(VlanTaggedOnAccess)),
            (&access, tag(4095), Err(VlanReservedVid)),
            (&native_7, None, Ok(vid(7))),
            (&native_7, tag(0), Ok(vid(7))),
            (&native_7, tag(7), Ok(vid(7))),
            (&native_7, tag(10), Ok(vid(10))),
            (&native_7, tag(11), Err(VlanNotAllowed)),
            (&native_7, tag(4095), Err(VlanReservedVid)),
            (&no_native, None, Err(VlanUntaggedOnTrunk)),
            (&no_native, tag(0), Err(VlanUntaggedOnTrunk)),
            (&no_native, tag(10), Ok(vid(10))),
            (&trunk_all(None), tag(4094), Ok(vid(4094))),
            (&trunk_all(None), tag(4095), Err(VlanReservedVid)),
        ] {
            assert_eq!(mode.ingress(ingress_tag), expected, "{mode:?} {ingress_tag:?}");
        }
    }

    #[test]
    fn egress_matrix() {
        let access = VlanMode::Access(vid(5));
        let native_7 = trunk(Some(7), &[10, 20]);
        let tagged = |vid| Some(EgressTag::Tagged(tag(vid).unwrap()));
        for (mode, egress_vid, expected) in [
            (&access, 5, Some(EgressTag::Untagged)),
            (&access, 6, None),
            (&native_7, 7, Some(EgressTag::Untagged)),
            (&native_7, 10, tagged(10)),
            (&native_7, 11, None),
            (&trunk_all(Some(1)), 1, Some(EgressTag::Untagged)),
            (&trunk_all(Some(1)), 4094, tagged(4094)),
            (&trunk_all(None), 1, tagged(1)),
        ] {
            assert_eq!(mode.egress(vid(egress_vid), None), expected, "{mode:?} {egress_vid}");
        }
    }

    #[test]
    fn egress_tag_keeps_priority_and_drop_eligibility() {
        let from_priority_tag = Tci::new(0, 6, true);
        let expected = Tci::new(20, 6, true).map(EgressTag::Tagged);
        assert_eq!(trunk_all(None).egress(vid(20), from_priority_tag), expected);
    }

    #[test]
    fn frame_accepted_by_a_port_may_leave_by_it() {
        for mode in [VlanMode::Access(vid(5)), trunk(Some(7), &[10]), trunk_all(None)] {
            for ingress_tag in (0..4096).map(tag).chain([None]) {
                if let Ok(vid) = mode.ingress(ingress_tag) {
                    assert!(mode.is_member(vid), "{mode:?} {ingress_tag:?}");
                }
            }
        }
    }

    #[test]
    fn no_tag_names_a_network_and_no_trunk_carries_one() {
        let network = Vid::of_network(7).unwrap();
        assert_eq!(VlanMode::Networks.ingress(Some(Tci::from_bits(7))), Ok(network));
        let named = Some(EgressTag::Tagged(Tci::from_bits(7)));
        assert_eq!(VlanMode::Networks.egress(network, None), named);
        assert!(VlanMode::Access(network).is_member(network));
        for trunk in [trunk_all(Some(1)), trunk(Some(7), &[7, 4094])] {
            assert_eq!(trunk.egress(network, None), None);
            for ingress_tag in (0..=u16::MAX).map(Tci::from_bits) {
                let vid = trunk.ingress(Some(ingress_tag));
                assert!(vid.is_err() || vid.is_ok_and(|vid| vid.network().is_none()));
            }
        }
        assert!(!VlanMode::Networks.is_member(vid(7)), "a VLAN is no network");
        assert_eq!(VlanMode::Networks.ingress(None), Err(DropReason::VlanUntaggedOnTrunk));
        let beyond = Tci::from_bits(NETWORKS_MAX as u16);
        assert_eq!(VlanMode::Networks.ingress(Some(beyond)), Err(DropReason::VlanNotAllowed));
        let set: VidSet = [network].into_iter().collect();
        assert!(!set.contains(network) && set.iter().next().is_none());
    }

    #[test]
    fn modes_meet_where_a_vlan_is_carried_by_both() {
        let network = |number| VlanMode::Access(Vid::of_network(number).unwrap());
        let access = |number| VlanMode::Access(vid(number));
        let modes = [
            (access(5), access(5), true),
            (access(5), access(6), false),
            (access(5), trunk(Some(5), &[]), true),
            (access(5), trunk_all(None), true),
            (trunk(None, &[7, 8]), trunk(Some(8), &[9]), true),
            (trunk(None, &[7]), trunk(Some(8), &[9]), false),
            (network(1), network(1), true),
            (network(1), network(2), false),
            (network(1), trunk_all(Some(1)), false),
            (network(1), VlanMode::Networks, true),
            (access(1), VlanMode::Networks, false),
            (trunk_all(None), VlanMode::Networks, false),
        ];
        for (one, other, expected) in modes {
            assert_eq!(one.meets(&other), expected, "{one:?} {other:?}");
            assert_eq!(other.meets(&one), expected, "{other:?} {one:?}");
        }
    }

    #[test]
    fn vid_outside_its_range_is_refused_and_named() {
        for number in [0, 4095, 4096, u16::MAX] {
            assert_eq!(Vid::new(number), Err(VidError { vid: number }));
        }
        let error = Vid::new(4095).unwrap_err();
        assert_eq!(error.to_string(), "VLAN id 4095; valid: 1 to 4094");
    }

    #[test]
    fn set_holds_what_was_put_in() {
        let members = [1, 63, 64, 65, 127, 128, 4094].map(vid);
        let set: VidSet = members.into_iter().collect();
        assert_eq!(set.iter().collect::<Vec<_>>(), members);
    }
}
