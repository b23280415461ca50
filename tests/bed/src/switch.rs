//! A switch that guests and DPDK programs are plugged into: weir, or one that it is compared with.

use std::time::Duration;

use crate::{
    error::{Error, Result},
    qemu::Plug,
    testpmd::Link,
};

/// A running switch with ports numbered from 0, stopped when dropped.
pub trait Switch {
    /// The QEMU arguments and the placement for the guest of port `index`, for switches that take QEMU guests.
    fn plug(&self, index: u8) -> Result<Plug> {
        Err(Error::Check(format!("port {index} takes no QEMU guest")))
    }

    /// The vhost-user end of port `index`, for switches that have one.
    fn link(&self, index: u8) -> Result<Link> {
        Err(Error::Check(format!("port {index} has no vhost-user socket")))
    }

    /// CPU time of the switch's own threads. A switch in the kernel has none: it works in the time of the senders.
    fn cpu_time(&self) -> Result<Duration> {
        Ok(Duration::ZERO)
    }

    /// The share of its time that the switch has spent on packets, for switches that count it.
    fn work(&self) -> Result<Option<Work>> {
        Ok(None)
    }
}

/// A switch's account of its time since it was started, in any unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Time for packets.
    pub busy: u64,
    /// Total time.
    pub of: u64,
}

impl Work {
    /// The share for packets since `before`.
    pub fn share_since(self, before: Self) -> f64 {
        let [busy, of] = [(self.busy, before.busy), (self.of, before.of)]
            .map(|(now, before)| now.saturating_sub(before) as f64);
        busy / of
    }
}
