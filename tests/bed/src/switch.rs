//! A switch that guests and DPDK programs are plugged into: weir, or one that it is compared with.

use std::time::Duration;

use crate::{
    error::{Error, Result},
    qemu::Plug,
    testpmd::Link,
};

/// A running switch with ports numbered from 0, stopped when dropped.
pub trait Switch {
    /// How the guest of port `index` is plugged in, for switches that take one.
    fn plug(&self, index: u8) -> Result<Plug> {
        Err(Error::Check(format!("port {index} takes no QEMU guest")))
    }

    /// The vhost-user end of port `index`, for switches that have one.
    fn link(&self, index: u8) -> Result<Link> {
        Err(Error::Check(format!("port {index} has no vhost-user socket")))
    }

    /// CPU time that its own threads have taken. A switch in the kernel has none: its work is done in
    /// the time of those who send.
    fn cpu_time(&self) -> Result<Duration> {
        Ok(Duration::ZERO)
    }

    /// How much of its time it has spent on packets, for switches that count that.
    fn work(&self) -> Result<Option<Work>> {
        Ok(None)
    }
}

/// What a switch says of its time, since it was started, in any unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Time that packets took.
    pub busy: u64,
    /// All of it.
    pub of: u64,
}

impl Work {
    /// The share that packets took, since `before`.
    pub fn share_since(self, before: Self) -> f64 {
        let [busy, of] = [(self.busy, before.busy), (self.of, before.of)]
            .map(|(now, before)| now.saturating_sub(before) as f64);
        busy / of
    }
}
