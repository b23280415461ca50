//! Limits and their usage.

use rustix::process::{Resource, getrlimit};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Limits by name.
pub type Limits = BTreeMap<String, Limit>;

/// A limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Limit {
    /// The amount in use.
    pub used: u64,
    /// The greatest amount.
    pub max: u64,
}

impl Limit {
    /// `used` of `max`.
    pub fn new(used: impl TryInto<u64>, max: impl TryInto<u64>) -> Self {
        let number = |number: Option<u64>| number.unwrap_or(u64::MAX);
        Self { used: number(used.try_into().ok()), max: number(max.try_into().ok()) }
    }

    /// The usage in percent. It can exceed 100.
    pub fn percent(self) -> u64 {
        let Self { used, max } = self;
        // A limit of 0 counts as 1, so that nothing is divided by zero.
        let percent = u128::from(used) * 100 / u128::from(max.max(1));
        percent.try_into().unwrap_or(u64::MAX)
    }
}

/// Limits with their names.
pub fn limits<const N: usize>(named: [(&str, Limit); N]) -> Limits {
    named.map(|(name, limit)| (name.to_owned(), limit)).into()
}

/// Descriptors of this process; none if the kernel does not tell.
pub fn descriptors() -> Option<Limit> {
    let open = std::fs::read_dir("/proc/self/fd").ok()?.count();
    let max = getrlimit(Resource::Nofile).current;
    Some(Limit::new(open, max.unwrap_or(u64::MAX)))
}
