//! Ring structures in foreign memory, and the fence between one side's writes and reads.
//!
//! A model checker runs the rings on `testing/window.rs` instead, which has the same items.

use std::any::Any;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
pub use std::sync::atomic::fence;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use crate::pages::MappedPages;
use crate::slice::{prefetch_line, prefetch_line_to_write, read_once};

#[cfg(feature = "watch-writes")]
use crate::watch::about_to_write;
/// Does nothing, except in tests that look at memory between any two writes (`watch.rs`).
#[cfg(not(feature = "watch-writes"))]
#[inline(always)]
fn about_to_write() {}

/// A ring structure in foreign memory, kept mapped for as long as the value exists.
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

    /// Returns a window over all pages of `owner`, such as a mapped grant, which it keeps mapped.
    pub fn over<O>(owner: Arc<O>) -> Self
    where
        O: AsRef<MappedPages> + Send + Sync + 'static,
    {
        let pages: &MappedPages = (*owner).as_ref();
        let (start, len) = pages.span();
        // SAFETY: the pages were borrowed from the value behind `owner`, and stay valid as long as
        // that value is borrowed. The window shares the value, so nobody can move, change or drop
        // it meanwhile.
        unsafe { Self::new(start, len, owner) }
    }

    /// Returns the length (bytes).
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns whether `len` bytes at `at` are in the window. One comparison if the compiler knows
    /// a bound of `at`.
    #[inline(always)]
    fn holds(&self, at: usize, len: usize) -> bool {
        at.checked_add(len).is_some_and(|end| end <= self.len)
    }

    /// Returns the 16-bit field at `at`. An odd `at` is a programming error of the caller, and so
    /// is a position beyond the end.
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

    /// Returns the 32-bit field at `at`, a multiple of 4; see [`atomic`](Self::atomic). No field is
    /// accessed in both widths: atomics of different sizes may not meet.
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

    /// Sets bits of a little-endian 16-bit field, and returns whether any was clear. If all are
    /// set, it only reads, so that the side that clears bits keeps its cache line. A full [`fence`]
    /// must precede this, after all writes that the bits announce.
    #[inline]
    pub fn set_bits(&self, at: usize, bits: u16) -> bool {
        let (field, bits) = (self.atomic(at), bits.to_le());
        let has_not = field.load(Ordering::Relaxed) & bits != bits;
        if has_not {
            field.fetch_or(bits, Ordering::AcqRel);
        }
        has_not
    }

    /// Clears a little-endian 16-bit field, and returns its old value. A full [`fence`] must
    /// follow, before reads that depend on it.
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

    /// Returns whether the window starts at a multiple of `align`.
    pub fn is_aligned(&self, align: usize) -> bool {
        (self.start.as_ptr() as usize).is_multiple_of(align)
    }
}

/// A little-endian 16-bit field of a [`Window`], whose place was checked once.
pub struct Field {
    at: NonNull<AtomicU16>,
    /// Keeps the mapping.
    _memory: Arc<dyn Any + Send + Sync>,
}

// SAFETY: as for `Slice`.
unsafe impl Send for Field {}
// SAFETY: as for `Slice`.
unsafe impl Sync for Field {}

impl Window {
    /// Returns the field at `at`; `None` if it is not aligned, or not in the window.
    pub fn field(&self, at: usize) -> Option<Field> {
        let address = (self.start.as_ptr() as usize).checked_add(at)?;
        let fits = self.holds(at, 2) && address.is_multiple_of(2);
        // SAFETY: in bounds (just checked).
        let at = fits.then(|| unsafe { self.start.add(at) })?;
        Some(Field { at: at.cast(), _memory: Arc::clone(&self._memory) })
    }
}

impl Field {
    #[inline(always)]
    fn atomic(&self) -> &AtomicU16 {
        // SAFETY: in the window and aligned (`Window::field`), mapped while self lives. See `Window::atomic`.
        unsafe { AtomicU16::from_ptr(self.at.as_ptr().cast()) }
    }

    /// See [`Window::load`].
    #[inline(always)]
    pub fn load(&self) -> u16 {
        u16::from_le(self.atomic().load(Ordering::Relaxed))
    }

    /// See [`Window::load_acquire`].
    #[inline(always)]
    pub fn load_acquire(&self) -> u16 {
        u16::from_le(self.atomic().load(Ordering::Acquire))
    }

    /// See [`Window::store_release`].
    #[inline(always)]
    pub fn store_release(&self, value: u16) {
        about_to_write();
        self.atomic().store(value.to_le(), Ordering::Release);
    }
}

impl std::fmt::Debug for Field {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Field")
    }
}

/// Equal elements of `N` bytes in a [`Window`], as in rings. Their bounds are checked once, and an
/// index by one comparison or none.
pub struct Elements<const N: usize> {
    start: NonNull<u8>,
    /// Index of the last element.
    last: usize,
    /// Keeps the mapping.
    _memory: Arc<dyn Any + Send + Sync>,
}

// SAFETY: as for `Slice`.
unsafe impl<const N: usize> Send for Elements<N> {}
// SAFETY: as for `Slice`.
unsafe impl<const N: usize> Sync for Elements<N> {}

impl Window {
    /// Returns `count` elements from `at` on; `None` if `count` is 0, they exceed the window, or
    /// they are not aligned. Descriptors, of 16 bytes, are aligned to 8, and all others to 2.
    pub fn elements<const N: usize>(&self, at: usize, count: u16) -> Option<Elements<N>> {
        let last = usize::from(count).checked_sub(1)?;
        let align = if N == 16 { 8 } else { 2 };
        let address = (self.start.as_ptr() as usize).checked_add(at)?;
        let fits = self.holds(at, usize::from(count) * N);
        if !fits || !N.is_multiple_of(align) || !address.is_multiple_of(align) {
            return None;
        }
        // SAFETY: in bounds (just checked).
        let start = unsafe { self.start.add(at) };
        Some(Elements { start, last, _memory: Arc::clone(&self._memory) })
    }
}

impl<const N: usize> Elements<N> {
    /// Returns the index of a free-running number, in a ring whose size is a power of two.
    #[inline(always)]
    pub fn around(&self, number: u16) -> usize {
        usize::from(number) & self.last
    }

    /// Returns the address of an element. An index beyond the last one is a programming error.
    #[inline(always)]
    fn at(&self, index: usize) -> NonNull<u8> {
        assert!(index <= self.last, "element {index} of {}", self.last + 1);
        // SAFETY: `last + 1` elements of N bytes from `start` are in the window, and this one is among them.
        unsafe { self.start.add(index * N) }
    }

    /// Returns an element. An index beyond the last one is a programming error.
    #[inline(always)]
    pub fn get(&self, index: usize) -> Element<'_, N> {
        Element { start: self.at(index), _elements: PhantomData }
    }

    /// Iterates over up to `max` elements from an index on, up to the last one.
    #[inline(always)]
    pub fn run(&self, first: usize, max: usize) -> impl ExactSizeIterator<Item = Element<'_, N>> {
        let count = max.min((self.last + 1).saturating_sub(first));
        // SAFETY: `last + 1` elements of N bytes from `start` are in the window; `first` is one of
        // them, or one past the last.
        let start = unsafe { self.start.add(first.min(self.last + 1) * N) };
        (0..count).map(move |nth| {
            // SAFETY: `count` elements from there are in the window.
            let start = unsafe { start.add(nth * N) };
            Element { start, _elements: PhantomData }
        })
    }

    /// Reads an element, each byte once.
    #[inline(always)]
    pub fn read(&self, index: usize) -> [u8; N] {
        let mut bytes = [0; N];
        // SAFETY: an element has N bytes, mapped while self lives.
        unsafe { std::ptr::copy(self.at(index).as_ptr(), bytes.as_mut_ptr(), N) };
        read_once();
        bytes
    }

    /// Writes an element.
    #[inline(always)]
    pub fn write(&self, index: usize, bytes: [u8; N]) {
        about_to_write();
        // SAFETY: as in `read`.
        unsafe { std::ptr::copy(bytes.as_ptr(), self.at(index).as_ptr(), N) };
    }

    /// Asks the processor to fetch an element. Any index is valid, since nothing is read.
    #[inline(always)]
    pub fn prefetch(&self, index: usize) {
        prefetch_line(self.start.as_ptr().wrapping_add(index * N));
    }

    /// Asks the processor to fetch an element for a write; see [`prefetch`](Self::prefetch).
    #[inline(always)]
    pub fn prefetch_write(&self, index: usize) {
        prefetch_line_to_write::<0>(self.start.as_ptr().wrapping_add(index * N));
    }
}

impl Elements<2> {
    /// Returns a function that reads the little-endian 16-bit element of a free-running number, in a
    /// ring whose size is a power of two: the number's higher bits do not count. It has the place of the elements as its own values, which
    /// a loop need not load each time.
    #[inline(always)]
    pub fn reader(&self) -> impl Fn(usize) -> u16 {
        let (start, last) = (self.start, self.last);
        move |number| {
            // SAFETY: `last + 1` elements from `start` are in the window, and the index is at most `last`.
            let element = unsafe { start.add((number & last) * 2) };
            // SAFETY: at a multiple of 2 (`Window::elements`), mapped while self lives. See `Window::atomic`.
            let element = unsafe { AtomicU16::from_ptr(element.as_ptr().cast()) };
            u16::from_le(element.load(Ordering::Relaxed))
        }
    }
}

impl Elements<16> {
    /// Returns a function that reads the first half of an element and both parts of the second,
    /// each once; none beyond the last element. See [`reader`](Elements::reader).
    #[inline(always)]
    pub fn word_reader(&self) -> impl Fn(u16) -> Option<(u64, u32, u32)> {
        let (start, last) = (self.start, self.last);
        move |index| {
            let index = usize::from(index);
            if index > last {
                return None;
            }
            // SAFETY: `last + 1` elements from `start` are in the window.
            let first = unsafe { start.add(index * 16) }.cast::<u64>();
            // SAFETY: an element has 8 bytes and twice 4, at a multiple of 8 (`Window::elements`),
            // mapped while self lives.
            let (first, [second, third]) = unsafe {
                let parts = first.add(1).cast::<u32>();
                (first.read_volatile(), [parts.read_volatile(), parts.add(1).read_volatile()])
            };
            Some((u64::from_le(first), u32::from_le(second), u32::from_le(third)))
        }
    }
}

/// An element of [`Elements`].
pub struct Element<'e, const N: usize> {
    /// Address of N bytes of the window, aligned as in [`Window::elements`].
    start: NonNull<u8>,
    _elements: PhantomData<&'e Elements<N>>,
}

impl Element<'_, 16> {
    /// Reads the whole second word at once, if its last 16-bit field is `ready`. Then later reads
    /// are not moved before it.
    #[inline(always)]
    pub fn load_second_acquire(&self, ready: impl FnOnce(u16) -> bool) -> Option<u64> {
        // SAFETY: the second half of an element, at a multiple of 8, mapped while its elements live. Volatile and not
        // atomic: the driver writes the word's fields one by one, and atomics of different sizes may not meet.
        let word = unsafe { self.start.add(8).cast::<u64>().read_volatile() };
        fence(Ordering::Acquire);
        let word = u64::from_le(word);
        ready((word >> 48) as u16).then_some(word)
    }

    /// Reads the first word.
    #[inline(always)]
    pub fn read_first(&self) -> u64 {
        // SAFETY: as in `Elements::read`, of half an element.
        let bytes = unsafe { self.start.cast::<[u8; 8]>().read() };
        read_once();
        u64::from_le_bytes(bytes)
    }

    /// Writes the second word.
    #[inline(always)]
    pub fn write_second(&self, word: u64) {
        about_to_write();
        // SAFETY: as in `Elements::read`, of half an element.
        unsafe { self.start.add(8).cast::<[u8; 8]>().write(word.to_le_bytes()) };
    }
}

impl<const N: usize> std::fmt::Debug for Elements<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Elements({} of {N} bytes)", self.last + 1)
    }
}

impl std::fmt::Debug for Window {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Window({} bytes)", self.len)
    }
}
