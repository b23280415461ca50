//! How much is used of what is bounded, and how much there may be.

use rustix::process::{Resource, getrlimit};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Bounds by their names.
pub type Limits = BTreeMap<String, Limit>;

/// One bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Limit {
    /// So much is used.
    pub used: u64,
    /// So much may be.
    pub max: u64,
}

impl Limit {
    /// `used` of `max`.
    pub fn new(used: impl TryInto<u64>, max: impl TryInto<u64>) -> Self {
        let number = |number: Option<u64>| number.unwrap_or(u64::MAX);
        Self { used: number(used.try_into().ok()), max: number(max.try_into().ok()) }
    }

    /// How much of it is used, in percent; more than is there is all of it.
    pub fn percent(self) -> u64 {
        let Self { used, max } = self;
        // Of what may not be there at all, all is used.
        let percent = u128::from(used) * 100 / u128::from(max.max(1));
        percent.try_into().unwrap_or(u64::MAX)
    }
}

/// Bounds with their names.
pub fn limits<const N: usize>(named: [(&str, Limit); N]) -> Limits {
    named.map(|(name, limit)| (name.to_owned(), limit)).into()
}

/// Descriptors of this process; none where the kernel does not say.
pub fn descriptors() -> Option<Limit> {
    let open = std::fs::read_dir("/proc/self/fd").ok()?.count();
    let max = getrlimit(Resource::Nofile).current;
    Some(Limit::new(open, max.unwrap_or(u64::MAX)))
}
