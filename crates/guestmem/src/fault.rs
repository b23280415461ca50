//! Survives a front end that truncates a file after sharing it.
//!
//! An access beyond the end of a mapped file raises `SIGBUS`, whose default action would end the
//! switch and with it every other guest. The handler here replaces the whole mapping by private
//! zero pages, marks it poisoned, and lets the access go on; the port that owns the mapping finds
//! the mark after its burst and stops. A `SIGBUS` at any other address keeps its default action.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// One mapping that the handler may repair. Slots are never freed, only reused, so that the
/// handler can walk them without a lock.
pub(crate) struct Slot {
    base: AtomicUsize,
    len: AtomicUsize,
    poisoned: AtomicBool,
    next: AtomicPtr<Slot>,
}

static HEAD: AtomicPtr<Slot> = AtomicPtr::new(std::ptr::null_mut());
static FREE: Mutex<Vec<&'static Slot>> = Mutex::new(Vec::new());
static FAULTS: AtomicU64 = AtomicU64::new(0);
static INSTALL: std::sync::Once = std::sync::Once::new();

/// How many times shared memory turned out to be gone. A port compares this with the value it saw
/// last, and looks at its own regions only when it moved.
pub fn fault_count() -> u64 {
    FAULTS.load(Ordering::Relaxed)
}

/// A mapping known to the handler for as long as this lives.
pub(crate) struct Registration(&'static Slot);

impl Registration {
    pub(crate) fn new(base: usize, len: usize) -> Self {
        INSTALL.call_once(install);
        let mut free = FREE.lock().unwrap_or_else(|e| e.into_inner());
        let slot = free.pop().unwrap_or_else(|| {
            let slot: &'static Slot = Box::leak(Box::new(Slot {
                base: AtomicUsize::new(0),
                len: AtomicUsize::new(0),
                poisoned: AtomicBool::new(false),
                next: AtomicPtr::new(HEAD.load(Ordering::Relaxed)),
            }));
            // The FREE lock is held: no other writer of HEAD.
            HEAD.store(std::ptr::from_ref(slot).cast_mut(), Ordering::Release);
            slot
        });
        slot.poisoned.store(false, Ordering::Relaxed);
        slot.base.store(base, Ordering::Relaxed);
        // The length goes last: a slot with length 0 matches no address.
        slot.len.store(len, Ordering::Release);
        Self(slot)
    }

    pub(crate) fn poisoned(&self) -> bool {
        self.0.poisoned.load(Ordering::Relaxed)
    }

    /// The mapping is about to go: the handler leaves its addresses alone from now on.
    pub(crate) fn retire(&self) {
        self.0.len.store(0, Ordering::Release);
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.retire();
        FREE.lock().unwrap_or_else(|e| e.into_inner()).push(self.0);
    }
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
        // It can only fail for an invalid signal number; then SIGBUS keeps its default action.
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
    }
}

extern "C" fn handler(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo to an SA_SIGINFO handler.
    let address = unsafe { (*info).si_addr() } as usize;
    if !repair(address) {
        // SAFETY: signal(2) with SIG_DFL is async-signal-safe. The faulting access runs again
        // and takes the default action, as it would without this handler.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
    }
}

fn repair(address: usize) -> bool {
    let mut next = HEAD.load(Ordering::Acquire);
    while !next.is_null() {
        // SAFETY: every non-null pointer in the list is a leaked, never freed `Slot`.
        let slot = unsafe { &*next };
        let len = slot.len.load(Ordering::Acquire);
        let base = slot.base.load(Ordering::Relaxed);
        if address.wrapping_sub(base) < len {
            // SAFETY: [base, base+len) is a mapping that weir made and still owns (its slot has a
            // length); replacing it whole keeps every pointer into it valid. mmap(2) is a plain
            // system call, safe in a handler.
            let mapped = unsafe {
                libc::mmap(
                    base as *mut libc::c_void,
                    len,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE,
                    -1,
                    0,
                )
            };
            if mapped == libc::MAP_FAILED {
                return false;
            }
            slot.poisoned.store(true, Ordering::Relaxed);
            FAULTS.fetch_add(1, Ordering::Relaxed);
            return true;
        }
        next = slot.next.load(Ordering::Relaxed);
    }
    false
}
