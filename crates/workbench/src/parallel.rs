//! Parallel runs on all CPUs. Runs are independent, and results keep the order of the runs.

use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::LabError;

/// Maps `items` with `run` and keeps their order.
///
/// # Errors
/// The error of the first failed item, in the order of `items`, among those that had begun.
pub fn map<I: Sync, T: Send>(
    items: &[I],
    run: impl Fn(&I) -> Result<T, LabError> + Sync,
) -> Result<Vec<T>, LabError> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(items.len());
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let done = Mutex::new(Vec::with_capacity(items.len()));
    let work = || {
        while !failed.load(Ordering::Relaxed) {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else { break };
            let result = run(item);
            failed.fetch_or(result.is_err(), Ordering::Relaxed);
            done.lock().unwrap_or_else(PoisonError::into_inner).push((at, result));
        }
    };
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|it| it.0);
    done.into_iter().map(|it| it.1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_order_and_a_failure_is_told() {
        let items: Vec<usize> = (0..1_000).collect();
        assert_eq!(map(&items, |it| Ok(it * 2)).unwrap()[999], 1_998);
        assert!(map(&[] as &[usize], |it| Ok(*it)).unwrap().is_empty());
        let failed = map(&items, |it| match it {
            7 => Err(LabError::Unknown { name: it.to_string() }),
            _ => Ok(*it),
        });
        assert_eq!(failed.unwrap_err().to_string(), "there is no experiment called `7`");
    }
}
