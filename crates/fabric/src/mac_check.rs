//! The source addresses that a port may use.

use std::sync::atomic::{AtomicU64, Ordering};

use weir_wire::Mac;

use crate::DropReason;
use crate::fdb::Claim;

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
    use super::*;
    use std::thread;

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
