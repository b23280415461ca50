//! Survives a front end that truncates a file after sharing it.
//!
//! An access beyond the end of a mapped file raises `SIGBUS`, which would end the switch and with it every other
//! guest. The handler here replaces the whole mapping by zero pages (`spare.rs`), marks it poisoned, and lets the
//! access continue. The port that owns the mapping finds the mark after its burst and stops. A `SIGBUS` at any
//! other address keeps its default action.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, Ordering};

use weir_limits::MEM_REGIONS_TOTAL_MAX;

use crate::place::Place;
use crate::spare::Spare;

/// One mapping that the handler may repair. Slots are never freed, only reused, so that the handler
/// can walk the list without a lock.
struct Slot {
    /// Number of the mapping's part of the spare memory.
    number: usize,
    place: Place,
    state: AtomicU8,
    next: AtomicPtr<Slot>,
}

/// The front end's memory is mapped.
const WHOLE: u8 = 0;
/// A thread is replacing the mapping.
const BREAKING: u8 = 1;
/// Spare memory is mapped.
const REPLACED: u8 = 2;

#[derive(Default)]
struct Slots {
    free: Vec<&'static Slot>,
    made: usize,
}

static HEAD: AtomicPtr<Slot> = AtomicPtr::new(std::ptr::null_mut());
static SLOTS: Mutex<Slots> = Mutex::new(Slots { free: Vec::new(), made: 0 });
static FAULTS: AtomicU64 = AtomicU64::new(0);
static INSTALL: std::sync::Once = std::sync::Once::new();

/// Returns the number of times that shared memory was found truncated. A port compares it with its last value, and
/// checks its own regions only after a change.
#[inline]
pub fn fault_count() -> u64 {
    FAULTS.load(Ordering::Relaxed)
}

/// A mapping that the handler knows, for the lifetime of this value.
pub(crate) struct Registration(&'static Slot);

impl Registration {
    /// Registers a mapping, with spare memory of its own.
    pub(crate) fn new() -> io::Result<Self> {
        let spare = Spare::open()?;
        INSTALL.call_once(install);
        let registration = Self(free_slot()?);
        spare.prepare(registration.0.number)?;
        Ok(registration)
    }

    pub(crate) fn guard(&self, base: usize, len: usize) {
        self.0.state.store(WHOLE, Ordering::Relaxed);
        self.0.place.set(base, len);
    }

    pub(crate) fn poisoned(&self) -> bool {
        self.0.state.load(Ordering::Relaxed) != WHOLE
    }

    /// Makes the handler leave the mapping's addresses alone, before it is unmapped.
    pub(crate) fn retire(&self) {
        self.0.place.set(0, 0);
    }
}

impl Drop for Registration {
    /// Frees the slot after the mapping was removed.
    fn drop(&mut self) {
        self.retire();
        let wipe = || Spare::opened().map_or(Ok(()), |spare| spare.wipe(self.0.number));
        // Remains of one guest must never reach another: a slot that cannot be wiped is not used
        // again.
        if !self.poisoned() || wipe().is_ok() {
            self.0.state.store(WHOLE, Ordering::Relaxed);
            SLOTS.lock().unwrap_or_else(|e| e.into_inner()).free.push(self.0);
        }
    }
}

fn free_slot() -> io::Result<&'static Slot> {
    let mut slots = SLOTS.lock().unwrap_or_else(|e| e.into_inner());
    if let Some(slot) = slots.free.pop() {
        return Ok(slot);
    }
    if slots.made == MEM_REGIONS_TOTAL_MAX {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    let slot: &'static Slot = Box::leak(Box::new(Slot {
        number: slots.made,
        place: Place::default(),
        state: AtomicU8::new(WHOLE),
        next: AtomicPtr::new(HEAD.load(Ordering::Relaxed)),
    }));
    slots.made += 1;
    // The lock is held, so there is no other writer of HEAD.
    HEAD.store(std::ptr::from_ref(slot).cast_mut(), Ordering::Release);
    Ok(slot)
}

fn install() {
    // SAFETY: `action` is a zeroed `sigaction` (a valid value: no flags, empty mask) filled in as
    // sigaction(2) asks. `handler` has the signature that SA_SIGINFO requires and calls only
    // async-signal-safe functions.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let entry: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = handler;
        action.sa_sigaction = entry as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigemptyset(&mut action.sa_mask);
        // The call fails only for an invalid signal number; then SIGBUS keeps its default action.
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
    }
}

extern "C" fn handler(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo to an SA_SIGINFO handler.
    let address = unsafe { (*info).si_addr() } as usize;
    if !find(address).is_some_and(|(slot, base, len)| repair(slot, base, len, address)) {
        // SAFETY: signal(2) with SIG_DFL is async-signal-safe. The faulting access runs again
        // and takes the default action, as it would without this handler.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
    }
}

fn find(address: usize) -> Option<(&'static Slot, usize, usize)> {
    let mut next = HEAD.load(Ordering::Acquire);
    while !next.is_null() {
        // SAFETY: every non-null pointer in the list is a leaked, never freed `Slot`.
        let slot: &'static Slot = unsafe { &*next };
        // A place that changes now is the wrong one: the right one is in use by the access that
        // faulted.
        if let Some((base, len)) = slot.place.get()
            && address.wrapping_sub(base) < len
        {
            return Some((slot, base, len));
        }
        next = slot.next.load(Ordering::Relaxed);
    }
    None
}

/// Lets the access at `address` continue. Returns `false` if it cannot.
fn repair(slot: &Slot, base: usize, len: usize, address: usize) -> bool {
    let Some(spare) = Spare::opened() else { return false };
    let claim = slot.state.compare_exchange(WHOLE, BREAKING, Ordering::AcqRel, Ordering::Acquire);
    match claim {
        Ok(_) => {
            // SAFETY: [base, base+len) is a mapping that weir made and still owns (its slot says so);
            // replacing it whole keeps every pointer into it valid.
            if !unsafe { spare.cover(slot.number, base, len) } {
                return false;
            }
            slot.state.store(REPLACED, Ordering::Release);
            FAULTS.fetch_add(1, Ordering::Relaxed);
            true
        }
        // Another thread is replacing the mapping: the access faults again until the replacement is done.
        Err(BREAKING) => true,
        // No page can be allocated for it (or it faulted before the mapping was replaced, which
        // does no harm). SAFETY: as above; the spare memory's pages are of the usual size.
        Err(_) => unsafe { spare.cover_page(slot.number, address) },
    }
}

/// Makes spare memory behave as if no page were left, for a test in its own process.
#[cfg(test)]
pub(crate) fn exhaust_spare() {
    rustix::fs::ftruncate(&Spare::open().unwrap().sparse, 0).unwrap();
}
