//! How much is used of what is bounded, and how much there may be.

use std::collections::BTreeMap;
use std::fmt;

use rustix::process::{Resource, getrlimit};
use serde::{Deserialize, Serialize};
use weir_limits::LIMIT_SHOWN_PERCENT;
use weir_text::decimal;

/// Bounds by their names.
pub type Limits = BTreeMap<String, Limit>;

/// One bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
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

    fn percent(self) -> u64 {
        let Self { used, max } = self;
        // Of what may not be there at all, all is used.
        let percent = u128::from(used) * 100 / u128::from(max.max(1));
        percent.try_into().unwrap_or(u64::MAX)
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} ({}%)", decimal(self.used), decimal(self.max), self.percent())
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

/// Those of `limits` that are nearly reached, for people; none where there are none.
pub(super) fn nearly_reached(limits: &Limits) -> Option<String> {
    let near = limits.iter().filter(|(_, limit)| limit.percent() >= LIMIT_SHOWN_PERCENT);
    let near: Vec<_> = near.map(|(name, limit)| format!("{name} {limit}")).collect();
    (!near.is_empty()).then(|| near.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_nearly_reached_is_told_and_no_more() {
        let of =
            |used| limits([("descriptors", Limit::new(used, 1_000)), ("ports", Limit::new(1, 2))]);
        assert_eq!(nearly_reached(&of(799)), None);
        let near = nearly_reached(&of(800)).unwrap();
        assert_eq!(near, "descriptors 800 of 1,000 (80%)");
        let nothing = Limit::new(1, 0).to_string();
        assert_eq!(nothing, "1 of 0 (100%)");
        assert_eq!(Limit::new(u64::MAX, u64::MAX).percent(), 100);
    }
}
