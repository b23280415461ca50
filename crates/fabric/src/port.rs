//! A port's number, its settings, and the source addresses that it may use.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use weir_limits::{FDB_OVERLAY_PART, FDB_PER_PORT_MAX, FDB_PER_VIF_MAX, PORTS_MAX};
use weir_wire::{Mac, TagProtocol, Tci};

use crate::DropReason;
use crate::fdb::Claim;
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

/// The source address check of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MacCheck {
    /// Any unicast address (an uplink, a guest that bridges).
    Off,
    /// Only this address is allowed. The claim is stronger than [`Self::First`] at another port: no guest can take the
    /// address.
    Pinned(Mac),
    /// The first unicast source address seen since the port became active is pinned to it.
    First,
}

/// The address that [`MacCheck::First`] found; several workers may ask at once.
#[derive(Debug)]
pub(crate) struct FirstMac(AtomicU64);

/// No address is this large: they have 48 bits.
const NONE: u64 = u64::MAX;

impl FirstMac {
    pub(crate) const fn new() -> Self {
        Self(AtomicU64::new(NONE))
    }

    /// Forgets the address; the next one seen is pinned.
    pub(crate) fn reset(&self) {
        self.0.store(NONE, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> Option<Mac> {
        let bits = self.0.load(Ordering::Relaxed);
        let [0, 0, mac @ ..] = bits.to_be_bytes() else {
            return None;
        };
        Some(Mac(mac))
    }

    /// True if `src` is the first address, or would become it.
    fn would_be_first(&self, src: Mac) -> bool {
        self.get().is_none_or(|first| first == src)
    }

    /// True if `src` is the first address; it becomes the first if there is none yet.
    fn is_first(&self, src: Mac) -> bool {
        let src = src.to_u64();
        match self.0.load(Ordering::Relaxed) {
            NONE => {
                let exchanged =
                    self.0.compare_exchange(NONE, src, Ordering::Relaxed, Ordering::Relaxed);
                exchanged.map_or_else(|first| first == src, |_| true)
            }
            first => first == src,
        }
    }
}

/// Checks the source address of a frame from a port.
///
/// Returns the strength with which the port holds that address.
///
/// # Errors
/// [`DropReason::SrcMacMulticast`] and [`DropReason::SrcMacZero`] under every setting,
/// [`DropReason::SrcMacSpoofed`] if another address is pinned.
pub(crate) fn check(check: MacCheck, first: &FirstMac, src: Mac) -> Result<Claim, DropReason> {
    check_by(check, src, || first.is_first(src))
}

/// The result of [`check`]; nothing is pinned.
pub(crate) fn would_check(
    check: MacCheck,
    first: &FirstMac,
    src: Mac,
) -> Result<Claim, DropReason> {
    check_by(check, src, || first.would_be_first(src))
}

#[inline(always)]
fn check_by(
    check: MacCheck,
    src: Mac,
    is_first: impl FnOnce() -> bool,
) -> Result<Claim, DropReason> {
    if src.is_multicast() {
        return Err(DropReason::SrcMacMulticast);
    }
    if src.is_zero() {
        return Err(DropReason::SrcMacZero);
    }
    match check {
        MacCheck::Off => Ok(Claim::Dynamic),
        MacCheck::Pinned(pinned) if pinned == src => Ok(Claim::Pinned),
        MacCheck::First if is_first() => Ok(Claim::First),
        MacCheck::Pinned(_) | MacCheck::First => Err(DropReason::SrcMacSpoofed),
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const A: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const B: Mac = Mac([2, 0, 0, 0, 0, 2]);

    #[test]
    fn group_and_zero_sources_are_refused_under_every_setting() {
        let first = FirstMac::new();
        for setting in [MacCheck::Off, MacCheck::First, MacCheck::Pinned(Mac::BROADCAST)] {
            assert_eq!(check(setting, &first, Mac::BROADCAST), Err(DropReason::SrcMacMulticast));
            assert_eq!(check(setting, &first, Mac([0; 6])), Err(DropReason::SrcMacZero));
        }
        assert_eq!(first.get(), None, "a refused address must not be pinned");
    }

    #[test]
    fn off_accepts_every_unicast_source() {
        let first = FirstMac::new();
        assert_eq!(check(MacCheck::Off, &first, A), Ok(Claim::Dynamic));
        assert_eq!(check(MacCheck::Off, &first, B), Ok(Claim::Dynamic));
    }

    #[test]
    fn pinned_accepts_its_address_only() {
        let first = FirstMac::new();
        assert_eq!(check(MacCheck::Pinned(A), &first, A), Ok(Claim::Pinned));
        assert_eq!(check(MacCheck::Pinned(A), &first, B), Err(DropReason::SrcMacSpoofed));
    }

    #[test]
    fn first_pins_the_first_address_until_reset() {
        let first = FirstMac::new();
        assert_eq!(check(MacCheck::First, &first, A), Ok(Claim::First));
        assert_eq!(check(MacCheck::First, &first, B), Err(DropReason::SrcMacSpoofed));
        assert_eq!(check(MacCheck::First, &first, A), Ok(Claim::First));
        assert_eq!(first.get(), Some(A));
        first.reset();
        assert_eq!(check(MacCheck::First, &first, B), Ok(Claim::First));
    }

    #[test]
    fn first_pins_one_address_when_workers_race() {
        for _ in 0..200 {
            let first = FirstMac::new();
            let accepted = thread::scope(|scope| {
                let workers = [A, B].map(|mac| {
                    let first = &first;
                    scope.spawn(move || check(MacCheck::First, first, mac).is_ok())
                });
                workers.map(|worker| worker.join().unwrap())
            });
            assert_eq!(accepted.iter().filter(|&&ok| ok).count(), 1);
        }
    }
}
