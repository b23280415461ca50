//! Ring structures in foreign memory, and the fence between what one side writes and what it reads.
//!
//! A model checker runs the rings on `window_loom.rs` instead, which has the same items.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;
pub use std::sync::atomic::fence;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use crate::pages::MappedPages;
use crate::slice::{prefetch_line, prefetch_line_to_write, read_once};

#[cfg(feature = "watch-writes")]
use crate::watch::about_to_write;
/// For tests that look at memory between any two writes (`watch.rs`); else nothing.
#[cfg(not(feature = "watch-writes"))]
#[inline(always)]
fn about_to_write() {}

/// A ring structure in foreign memory, kept mapped for as long as this lives.
pub struct Window {
    start: NonNull<u8>,
    len: usize,
    /// Keeps the mapping.
    _memory: Arc<dyn Any + Send + Sync>,
}

// SAFETY: as for `Slice`.
unsafe impl Send for Window {}
// SAFETY: as for `Slice`.
unsafe impl Sync for Window {}

impl Window {
    /// # Safety
    /// `len` bytes from `start` are mapped for as long as `memory` lives.
    pub(crate) unsafe fn new<M>(start: NonNull<u8>, len: usize, memory: Arc<M>) -> Self
    where
        M: Send + Sync + 'static,
    {
        Self { start, len, _memory: memory }
    }

    /// All of the pages that `owner` has, such as a mapped grant, kept mapped by the result.
    pub fn over<O>(owner: Arc<O>) -> Self
    where
        O: AsRef<MappedPages> + Send + Sync + 'static,
    {
        let pages: &MappedPages = (*owner).as_ref();
        let (start, len) = pages.span();
        // SAFETY: the pages were borrowed from what `owner` points to, for as long as that is borrowed. The
        // window shares it, so that nobody can move it, change it or drop it meanwhile.
        unsafe { Self::new(start, len, owner) }
    }

    /// Bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// No bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// `len` bytes at `at` are in the window. One comparison where the compiler knows a bound of `at`.
    #[inline(always)]
    fn holds(&self, at: usize, len: usize) -> bool {
        at.checked_add(len).is_some_and(|end| end <= self.len)
    }

    /// `at` is a multiple of 2 or the caller's programming error; so is a position beyond the end.
    #[inline(always)]
    fn atomic(&self, at: usize) -> &AtomicU16 {
        let address = self.start.as_ptr() as usize + at;
        assert!(self.holds(at, 2) && address.is_multiple_of(2), "ring offset {at} of {}", self.len);
        // SAFETY: in bounds and aligned (just checked), mapped while self lives. An atomic is the
        // one reference that may exist to memory which others write: its accesses cannot race in
        // the language's sense, whatever the guest does.
        unsafe { AtomicU16::from_ptr(self.start.as_ptr().add(at).cast()) }
    }

    /// Reads a little-endian 16-bit field; later reads are not moved before it.
    #[inline]
    pub fn load_acquire(&self, at: usize) -> u16 {
        u16::from_le(self.atomic(at).load(Ordering::Acquire))
    }

    /// As [`atomic`](Self::atomic), of a 32-bit field at a multiple of 4. No field is accessed in both
    /// widths: atomics of different sizes may not meet.
    #[inline(always)]
    fn atomic32(&self, at: usize) -> &AtomicU32 {
        let address = self.start.as_ptr() as usize + at;
        assert!(self.holds(at, 4) && address.is_multiple_of(4), "ring offset {at} of {}", self.len);
        // SAFETY: as in `atomic`.
        unsafe { AtomicU32::from_ptr(self.start.as_ptr().add(at).cast()) }
    }

    /// Reads a little-endian 32-bit field; later reads are not moved before it.
    #[inline]
    pub fn load32_acquire(&self, at: usize) -> u32 {
        u32::from_le(self.atomic32(at).load(Ordering::Acquire))
    }

    /// Reads a little-endian 32-bit field.
    #[inline]
    pub fn load32(&self, at: usize) -> u32 {
        u32::from_le(self.atomic32(at).load(Ordering::Relaxed))
    }

    /// Writes a little-endian 32-bit field; earlier writes are not moved after it.
    #[inline]
    pub fn store32_release(&self, at: usize, value: u32) {
        about_to_write();
        self.atomic32(at).store(value.to_le(), Ordering::Release);
    }

    /// Writes a little-endian 32-bit field.
    #[inline]
    pub fn store32(&self, at: usize, value: u32) {
        about_to_write();
        self.atomic32(at).store(value.to_le(), Ordering::Relaxed);
    }

    /// Reads a little-endian 64-bit word at a multiple of 8, all of it at once, if its last 16-bit
    /// field is `ready`; then later reads are not moved before it.
    #[inline(always)]
    pub fn load_word_acquire(&self, at: usize, ready: impl FnOnce(u16) -> bool) -> Option<u64> {
        let address = self.start.as_ptr() as usize + at;
        assert!(self.holds(at, 8) && address.is_multiple_of(8), "ring offset {at} of {}", self.len);
        // SAFETY: in bounds and aligned (just checked), mapped while self lives. Volatile and not
        // atomic: the driver writes the word's fields one by one, and atomics of different sizes may
        // not meet.
        let word = unsafe { self.start.as_ptr().add(at).cast::<u64>().read_volatile() };
        fence(Ordering::Acquire);
        let word = u64::from_le(word);
        ready((word >> 48) as u16).then_some(word)
    }

    /// Reads a little-endian 16-bit field.
    #[inline]
    pub fn load(&self, at: usize) -> u16 {
        u16::from_le(self.atomic(at).load(Ordering::Relaxed))
    }

    /// Writes a little-endian 16-bit field; earlier writes are not moved after it.
    #[inline]
    pub fn store_release(&self, at: usize, value: u16) {
        about_to_write();
        self.atomic(at).store(value.to_le(), Ordering::Release);
    }

    /// Writes a little-endian 16-bit field.
    #[inline]
    pub fn store(&self, at: usize, value: u16) {
        about_to_write();
        self.atomic(at).store(value.to_le(), Ordering::Relaxed);
    }

    /// Sets bits of a little-endian 16-bit field, and says whether it had them not. If it has, it is only read, so that
    /// whoever clears bits keeps its line of cache: a full [`fence`] stands before this, behind all that the bits mean.
    #[inline]
    pub fn set_bits(&self, at: usize, bits: u16) -> bool {
        let (field, bits) = (self.atomic(at), bits.to_le());
        let has_not = field.load(Ordering::Relaxed) & bits != bits;
        if has_not {
            field.fetch_or(bits, Ordering::AcqRel);
        }
        has_not
    }

    /// Clears a little-endian 16-bit field, and says what was there. A full [`fence`] behind this comes before what is
    /// read because of it.
    pub fn take_bits(&self, at: usize) -> u16 {
        u16::from_le(self.atomic(at).swap(0, Ordering::AcqRel))
    }

    /// Reads `N` bytes at `at`, each once. A position beyond the end is a programming error.
    #[inline(always)]
    pub fn read<const N: usize>(&self, at: usize) -> [u8; N] {
        assert!(self.holds(at, N), "ring offset {at} of {}", self.len);
        let mut bytes = [0; N];
        // SAFETY: in bounds (just checked), mapped while self lives.
        unsafe { std::ptr::copy(self.start.as_ptr().add(at), bytes.as_mut_ptr(), N) };
        read_once();
        bytes
    }

    /// Writes `N` bytes at `at`. A position beyond the end is a programming error.
    #[inline(always)]
    pub fn write<const N: usize>(&self, at: usize, bytes: [u8; N]) {
        about_to_write();
        assert!(self.holds(at, N), "ring offset {at} of {}", self.len);
        // SAFETY: as in `read`.
        unsafe { std::ptr::copy(bytes.as_ptr(), self.start.as_ptr().add(at), N) };
    }

    /// Asks the processor to fetch the cache line at `at`. Any position will do: nothing is read.
    #[inline]
    pub fn prefetch(&self, at: usize) {
        prefetch_line(self.start.as_ptr().wrapping_add(at));
    }

    /// As [`prefetch`](Self::prefetch), for a line that is about to be written.
    #[inline]
    pub fn prefetch_write(&self, at: usize) {
        prefetch_line_to_write(self.start.as_ptr().wrapping_add(at));
    }

    /// The window starts at a multiple of `align`.
    pub fn is_aligned(&self, align: usize) -> bool {
        (self.start.as_ptr() as usize).is_multiple_of(align)
    }
}

impl std::fmt::Debug for Window {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Window({} bytes)", self.len)
    }
}
