//! A port's notes on probes that the forwarding table does not learn.
//!
//! Nothing is learned from frames that come in by a blocked port, and a port that has all the addresses it may have
//! learns no more. So a port gets the address of a probe, and notes whether the probe comes when nothing is learned.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use weir_wire::Mac;

use crate::vlan::Vid;

/// Two probes that differ in the last bit of their source address, one out of each port of a pair.
#[derive(Debug, Default)]
pub(crate) struct Sought {
    /// The VLAN, and the addresses without that bit; 0 for none.
    key: AtomicU64,
    /// Bit i: the probe whose address ends with bit i has come.
    seen: AtomicU8,
}

impl Sought {
    fn key(vid: Vid, mac: Mac) -> u64 {
        (mac.to_u64() | 1) << 16 | u64::from(vid.get())
    }

    /// Looks for the probe with this address, and for its twin, from now on.
    pub(crate) fn seek(&self, vid: Vid, mac: Mac) {
        self.key.store(0, Ordering::Relaxed);
        self.seen.store(0, Ordering::Relaxed);
        self.key.store(Self::key(vid, mac), Ordering::Release);
    }

    /// Notes a frame with this source address, if it is one of the probes.
    pub(crate) fn look_at(&self, vid: Vid, src: Mac) {
        if self.key.load(Ordering::Acquire) == Self::key(vid, src) {
            self.seen.fetch_or(1 << (src.to_u64() & 1), Ordering::Relaxed);
        }
    }

    /// States if the two probes have come in: the one whose address ends with a 0 bit, and its twin.
    pub(crate) fn seen(&self) -> [bool; 2] {
        let seen = self.seen.load(Ordering::Relaxed);
        [seen & 1 != 0, seen & 2 != 0]
    }
}
