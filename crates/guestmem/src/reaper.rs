//! Mappings that a separate thread unmaps.
//!
//! A worker keeps the memory of its burst. If a front end takes memory away meanwhile, the worker
//! is its last user. Unmapping would make the worker wait while the kernel takes down page tables
//! of gigabytes and flushes every other CPU's TLB. Memory that waits here still counts in its front
//! end's account, which bounds it. So does the time that unmapping takes here.

use std::cell::Cell;
use std::io;
use std::sync::{Mutex, OnceLock, mpsc};

use crate::mapping::Held;
use crate::ticks::thread_cpu_ns;

/// The lock is held during an unmapping here, so that a test can delay it.
#[cfg(test)]
static UNMAPPING: Mutex<()> = Mutex::new(());

static REAPER: OnceLock<mpsc::Sender<Held>> = OnceLock::new();

thread_local! {
    static IN_A_HURRY: Cell<bool> = const { Cell::new(false) };
}

/// Makes the calling thread leave unmapping of guests' memory to another thread.
pub fn leave_unmapping_to_others() {
    IN_A_HURRY.set(true);
}

/// Starts the thread, if it does not run yet.
pub(crate) fn start() -> io::Result<()> {
    static STARTING: Mutex<()> = Mutex::new(());
    if REAPER.get().is_some() {
        return Ok(());
    }
    let _starting = STARTING.lock().unwrap_or_else(|e| e.into_inner());
    if REAPER.get().is_none() {
        let (sender, receiver) = mpsc::channel::<Held>();
        let run = move || {
            for held in receiver {
                #[cfg(test)]
                let _unmapping = UNMAPPING.lock().unwrap_or_else(|e| e.into_inner());
                let (unmapped, before_ns) = (held.charge.unmapped(), thread_cpu_ns());
                drop(held);
                unmapped(thread_cpu_ns().saturating_sub(before_ns));
            }
        };
        std::thread::Builder::new().name("weir-unmap".into()).spawn(run)?;
        let _ = REAPER.set(sender);
    }
    Ok(())
}

/// Unmaps `held`, here or, for a thread in a hurry, on the other thread.
pub(crate) fn unmap(held: Held) {
    // A thread that is ending has no flag any more, and no hurry.
    let in_a_hurry = IN_A_HURRY.try_with(Cell::get).unwrap_or(false);
    match REAPER.get().filter(|_| in_a_hurry) {
        // The thread never ends; if it did, the error would own `held`, and unmap it.
        Some(reaper) => drop(reaper.send(held)),
        None => drop(held),
    }
}

/// Does `work` while the thread unmaps nothing.
#[cfg(test)]
pub(crate) fn hold_up<T>(work: impl FnOnce() -> T) -> T {
    let _unmapping = UNMAPPING.lock().unwrap_or_else(|e| e.into_inner());
    work()
}
