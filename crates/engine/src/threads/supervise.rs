//! Threads beside the workers: the handling of their panics, which are bugs in weir.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::Duration;

use weir_limits::{THREAD_PANICS_MAX, THREAD_PAUSE_NS};

use crate::threads::beat;
use crate::threads::lock::lock;

/// The panics of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Panics {
    /// The number of the thread's panics.
    pub panics: u32,
    /// There were too many: the thread has ended, and its work is no longer done.
    pub ended: bool,
}

static THREADS: Mutex<BTreeMap<&'static str, Panics>> = Mutex::new(BTreeMap::new());

/// The threads of this process that have panicked, by name.
pub fn panicked() -> BTreeMap<&'static str, Panics> {
    lock(&THREADS).clone()
}

/// Runs `work` on the thread `name` until it returns. After a panic it runs again, with the same state, after a pause;
/// after too many panics the thread ends. Returns true if `work` has returned.
pub fn supervise(name: &'static str, mut work: impl FnMut()) -> bool {
    beat::watch_this_thread(name, beat::Role::Shared);
    for panics in 1..=THREAD_PANICS_MAX {
        if catch_unwind(AssertUnwindSafe(&mut work)).is_ok() {
            return true;
        }
        let ended = panics == THREAD_PANICS_MAX;
        lock(&THREADS).insert(name, Panics { panics, ended });
        if ended {
            tracing::error!(name, "a thread panicked too often and is not started again");
        } else {
            tracing::error!(
                name,
                panics,
                "a thread panicked and is started again (please report it)"
            );
            std::thread::sleep(Duration::from_nanos(THREAD_PAUSE_NS));
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_panics_begins_anew_and_ends_when_it_does_so_too_often() {
        let mut left = 3;
        assert!(supervise("mends", || {
            left -= 1;
            assert_eq!(left, 0, "a mistake");
        }));
        assert_eq!(panicked()["mends"], Panics { panics: 2, ended: false });
        assert!(!supervise("never", || panic!("a mistake")));
        assert_eq!(panicked()["never"], Panics { panics: THREAD_PANICS_MAX, ended: true });
        assert!(supervise("always", || ()) && !panicked().contains_key("always"));
    }
}
