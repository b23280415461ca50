//! The memory that interfaces promise their front ends, computed before any of them connect.

use weir_config::VifConfig;
use weir_guestmem::share_among;
use weir_limits::MEMORY_TOTAL_MAX;

const GIB: u64 = 1 << 30;

/// A note if `vifs` promise more by `memory_max` than can be given to all of them at once: the amount that each can
/// have in any case, and the remedy.
pub fn note<'a>(vifs: impl IntoIterator<Item = &'a VifConfig>) -> Option<String> {
    let promised: Vec<_> = vifs.into_iter().map(|vif| vif.memory_max.get()).collect();
    let all = promised.iter().fold(0, |all: u64, more| all.saturating_add(*more));
    let (share, most) = (share_among(promised.len()), promised.iter().max().copied()?);
    (all > MEMORY_TOTAL_MAX && most > share).then(|| {
        format!(
            "`memory_max` of {} interfaces is {} GiB together, and all guests map {} GiB at most: each can map {} GiB in any \
             case, and more while others leave it; a smaller `memory_max` keeps the promise",
            promised.len(),
            all / GIB,
            MEMORY_TOTAL_MAX / GIB,
            share / GIB
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vifs(count: usize, memory_max: &str) -> Vec<VifConfig> {
        let mut vif = VifConfig::new("a".parse().unwrap(), "/run/weir/a.sock".parse().unwrap());
        vif.memory_max = memory_max.parse().unwrap();
        vec![vif; count]
    }

    #[test]
    fn more_memory_than_can_be_mapped_is_told_with_what_each_has_in_any_case() {
        assert_eq!(note(&[]), None);
        assert_eq!(note(&vifs(96, "256GiB")), None, "all of it is there");
        let note = |count, memory_max| super::note(&vifs(count, memory_max));
        let told = note(100, "256GiB").unwrap();
        assert!(
            told.contains("100 interfaces is 25600 GiB") && told.contains("24576 GiB"),
            "{told}"
        );
        assert!(told.contains("each can map 85 GiB"), "{told}");
        assert_eq!(note(1000, "8GiB"), None);
        assert!(note(4, "8TiB").is_some());
    }
}
