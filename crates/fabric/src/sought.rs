//! Whether a port sees a probe that the forwarding table does not know of.
//!
//! Of what comes in by a blocked port nothing is learned, and a port with all the addresses that it may have learns no
//! more. So a port is told the address of a probe, and notes whether the probe comes where nothing is learned.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use weir_wire::Mac;

use crate::vlan::Vid;

/// Two probes that differ in the last bit of their source address, one out of each port of a pair.
#[derive(Debug, Default)]
pub(crate) struct Sought {
    /// Their addresses but for that bit, and their VLAN; 0 for none.
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

    /// A frame with this source address has come.
    pub(crate) fn look_at(&self, vid: Vid, src: Mac) {
        if self.key.load(Ordering::Acquire) == Self::key(vid, src) {
            self.seen.fetch_or(1 << (src.to_u64() & 1), Ordering::Relaxed);
        }
    }

    /// Which of the probes have come: that whose address ends with a 0, and its twin.
    pub(crate) fn seen(&self) -> [bool; 2] {
        let seen = self.seen.load(Ordering::Relaxed);
        [seen & 1 != 0, seen & 2 != 0]
    }
}
