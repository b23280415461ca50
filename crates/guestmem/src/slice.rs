//! Checked pieces of foreign memory.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, compiler_fence};

/// Length of a cache line (bytes).
pub const CACHE_LINE_BYTES: usize = 64;

/// Bytes of memory that others may write at any time. Plain data: a pointer that was checked once
/// and a length; the lifetime keeps the mapping.
#[derive(Clone, Copy)]
pub struct Slice<'m> {
    start: NonNull<u8>,
    len: usize,
    memory: PhantomData<&'m ()>,
}

// SAFETY: a slice gives no reference to its bytes, and its accesses tolerate concurrent ones.
unsafe impl Send for Slice<'_> {}
// SAFETY: as above.
unsafe impl Sync for Slice<'_> {}

impl<'m> Slice<'m> {
    /// # Safety
    /// `len` bytes from `start` are mapped for reading and writing during `'m`.
    #[inline]
    pub(crate) unsafe fn new(start: NonNull<u8>, len: usize) -> Self {
        Self { start, len, memory: PhantomData }
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

    /// Returns the bytes from `at` on; none if there are fewer.
    #[inline]
    pub fn skip(&self, at: usize) -> Self {
        let at = at.min(self.len);
        // SAFETY: at <= len: the rest lies in this slice.
        unsafe { Self::new(self.start.add(at), self.len - at) }
    }

    /// Returns the first `len` bytes, or all if there are fewer.
    #[inline]
    pub fn first(&self, len: usize) -> Self {
        Self { len: len.min(self.len), ..*self }
    }

    /// Copies the first bytes out, as many as fit in both. Returns their number.
    #[inline]
    pub fn read(&self, out: &mut [u8]) -> usize {
        let len = self.len.min(out.len());
        // SAFETY: `len` bytes are readable at `start` and writable at `out`. `ptr::copy` permits
        // overlap, so no contract depends on what else maps this memory.
        unsafe { std::ptr::copy(self.start.as_ptr(), out.as_mut_ptr(), len) };
        read_once();
        len
    }

    /// Copies bytes in at the front, as many as fit in both. Returns their number.
    #[inline]
    pub fn write(&self, bytes: &[u8]) -> usize {
        let len = self.len.min(bytes.len());
        // SAFETY: as in `read`, the other way.
        unsafe { std::ptr::copy(bytes.as_ptr(), self.start.as_ptr(), len) };
        len
    }

    /// Fills `out` with the bytes from `at` on, without a call. Returns `false`, with unspecified
    /// content in `out`, if there are too few bytes or the length of `out` is not 8 to 128.
    #[inline(always)]
    pub fn read_at(&self, at: usize, out: &mut [u8]) -> bool {
        let fits = at.checked_add(out.len()).is_some_and(|end| end <= self.len);
        // SAFETY: `out.len()` bytes are readable from `at` on (just checked), and writable at `out`.
        let copied =
            fits && unsafe { copy_short(self.start.as_ptr().add(at), out.as_mut_ptr(), out.len()) };
        read_once();
        copied
    }

    /// Writes `bytes` from `at` on, without a call. Returns `false`, and changes nothing, if there
    /// is no room or their length is not 8 to 128.
    #[inline(always)]
    pub fn write_at(&self, at: usize, bytes: &[u8]) -> bool {
        let fits = at.checked_add(bytes.len()).is_some_and(|end| end <= self.len);
        // SAFETY: as in `read_at`, the other way.
        fits && unsafe { copy_short(bytes.as_ptr(), self.start.as_ptr().add(at), bytes.len()) }
    }

    /// Reads the first `N` bytes, if there are enough. The compiler knows the length, so a header
    /// goes through registers.
    #[inline]
    pub fn read_array<const N: usize>(&self) -> Option<[u8; N]> {
        if N > self.len {
            return None;
        }
        let mut bytes = [0; N];
        // SAFETY: `N` bytes are readable at `start` (just checked) and writable at `bytes`.
        unsafe { std::ptr::copy(self.start.as_ptr(), bytes.as_mut_ptr(), N) };
        read_once();
        Some(bytes)
    }

    /// Writes `N` bytes at the front. Returns `false`, and changes nothing, if there is no room.
    #[inline]
    pub fn write_array<const N: usize>(&self, bytes: [u8; N]) -> bool {
        let fits = N <= self.len;
        if fits {
            // SAFETY: `N` bytes are writable at `start` (just checked).
            unsafe { std::ptr::copy(bytes.as_ptr(), self.start.as_ptr(), N) };
        }
        fits
    }

    /// Asks the processor to fetch the first two cache lines before a read.
    #[inline]
    pub fn prefetch(&self) {
        // Wrapping: only the address is needed, and the second line may lie beyond the end.
        prefetch_line(self.start.as_ptr());
        prefetch_line(self.start.as_ptr().wrapping_add(CACHE_LINE_BYTES));
    }

    /// Asks the processor to fetch all cache lines before a read.
    #[inline]
    pub fn prefetch_all(&self) {
        for at in (0..self.len).step_by(CACHE_LINE_BYTES) {
            prefetch_line(self.start.as_ptr().wrapping_add(at));
        }
    }

    /// Asks the processor to fetch the first lines before a write; see
    /// [`prefetch`](Self::prefetch).
    #[inline]
    pub fn prefetch_front_write(&self) {
        prefetch_line_to_write::<0>(self.start.as_ptr());
        prefetch_line_to_write::<CACHE_LINE_BYTES>(self.start.as_ptr());
    }

    /// Asks the processor to fetch the first `bytes` bytes before a write.
    #[inline]
    pub fn prefetch_write(&self, bytes: usize) {
        let bytes = self.len.min(bytes);
        let (mut at, mut left) = (self.start.as_ptr(), bytes.div_ceil(CACHE_LINE_BYTES));
        while left >= 8 {
            prefetch_line_to_write::<0>(at);
            prefetch_line_to_write::<CACHE_LINE_BYTES>(at);
            prefetch_line_to_write::<{ 2 * CACHE_LINE_BYTES }>(at);
            prefetch_line_to_write::<{ 3 * CACHE_LINE_BYTES }>(at);
            prefetch_line_to_write::<{ 4 * CACHE_LINE_BYTES }>(at);
            prefetch_line_to_write::<{ 5 * CACHE_LINE_BYTES }>(at);
            prefetch_line_to_write::<{ 6 * CACHE_LINE_BYTES }>(at);
            prefetch_line_to_write::<{ 7 * CACHE_LINE_BYTES }>(at);
            (at, left) = (at.wrapping_add(8 * CACHE_LINE_BYTES), left - 8);
        }
        for _ in 0..left {
            prefetch_line_to_write::<0>(at);
            at = at.wrapping_add(CACHE_LINE_BYTES);
        }
    }

    /// Copies this slice to the front of `to`, as many bytes as fit in both. Returns their number.
    ///
    /// This is the one copy between two guests.
    #[inline]
    pub fn copy_to(&self, to: &Slice<'_>) -> usize {
        let len = self.len.min(to.len);
        // SAFETY: `len` bytes are mapped at both; `ptr::copy` permits overlap.
        unsafe { std::ptr::copy(self.start.as_ptr(), to.start.as_ptr(), len) };
        len
    }

    /// Returns the address of the first byte, for system calls.
    #[inline]
    pub fn address(&self) -> usize {
        self.start.as_ptr() as usize
    }

    /// Returns the address as a pointer.
    #[inline]
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }
}

/// Copies 8 to 128 bytes by two copies, front and back, which meet or overlap. The compiler knows
/// their length. If `from` and `to` overlap, `to` gets any of the bytes. Returns `false`, and
/// copies nothing, for another length.
///
/// # Safety
/// `len` bytes are readable at `from` and writable at `to`.
#[inline(always)]
unsafe fn copy_short(from: *const u8, to: *mut u8, len: usize) -> bool {
    /// # Safety
    /// As above, and `len` is N to 2 * N.
    #[inline(always)]
    unsafe fn ends<const N: usize>(from: *const u8, to: *mut u8, len: usize) {
        // SAFETY: N <= len, so both ends are within what the caller vouches for.
        unsafe {
            std::ptr::copy(from, to, N);
            std::ptr::copy(from.add(len - N), to.add(len - N), N);
        }
    }
    // SAFETY: each length is that of its arm.
    unsafe {
        match len {
            33..=64 => ends::<32>(from, to, len),
            65..=128 => ends::<64>(from, to, len),
            16..=32 => ends::<16>(from, to, len),
            8..=15 => ends::<8>(from, to, len),
            _ => return false,
        }
    }
    true
}

/// Fixes a value that was copied out. The compiler may neither read the guest's memory again for
/// it, nor merge two copies (in, and on to the receiver) into one that skips the checks. It costs
/// no instruction, while `read_volatile` of an array would cost one load per byte.
#[inline]
pub(crate) fn read_once() {
    compiler_fence(Ordering::SeqCst);
}

/// Prefetches a line: a hint without an access, so it cannot fault for any address.
#[inline]
pub(crate) fn prefetch_line(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: PREFETCHT0 accesses nothing architecturally; SSE is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Does the same as [`prefetch_line`] for the line `AT` bytes behind the address, and takes the line from other cores.
/// The distance is part of the instruction, so lines in a row cost one each.
#[inline]
pub(crate) fn prefetch_line_to_write<const AT: usize>(address: *const u8) {
    // The intrinsic with a hint to write becomes a plain prefetch unless the whole program is built
    // for newer processors. Then each line would be fetched twice, the second time by the first
    // store.
    #[cfg(target_arch = "x86_64")]
    // SAFETY: PREFETCHW accesses nothing architecturally; processors without it take it for a no-op.
    unsafe {
        std::arch::asm!(
            "prefetchw [{} + {}]",
            in(reg) address,
            const AT,
            options(nostack, preserves_flags, readonly)
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

impl std::fmt::Debug for Slice<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Slice({} bytes)", self.len)
    }
}

/// Returns an empty vector with the capacity of `used`, for the borrows of another burst. The data
/// path keeps one allocation and never borrows across bursts. `B` is `A` with another lifetime.
#[inline]
pub fn recycle<A, B>(mut used: Vec<A>) -> Vec<B> {
    const { assert!(size_of::<A>() == size_of::<B>() && align_of::<A>() == align_of::<B>()) };
    used.clear();
    // Source and target have one layout, so collecting in place keeps the allocation (asserted by a
    // test).
    used.into_iter().map(|_| -> B { unreachable!("the vector was cleared") }).collect()
}

/// A type that is the same for each lifetime of the memory it borrows from, as [`Slice`].
pub trait OfMemory {
    /// The type for one lifetime.
    type For<'m>: Copy;
}

impl OfMemory for Slice<'_> {
    type For<'m> = Slice<'m>;
}

impl<T: OfMemory, const N: usize> OfMemory for [T; N] {
    type For<'m> = [T::For<'m>; N];
}

/// The allocation of a vector that one burst after the other fills. Unlike [`recycle`], a loan moves nothing.
pub struct Reused<T: OfMemory>(Vec<T::For<'static>>);

impl<T: OfMemory> Default for Reused<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: OfMemory> std::fmt::Debug for Reused<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reused(room for {})", self.0.capacity())
    }
}

impl<T: OfMemory> Reused<T> {
    /// Lends the vector, empty.
    #[inline(always)]
    pub fn lend<'r, 'm>(&'r mut self) -> Loan<'r, T::For<'m>> {
        // SAFETY: items of an earlier loan are forgotten; they need no drop.
        unsafe { self.0.set_len(0) };
        Loan { vec: NonNull::from(&mut self.0).cast(), lent: PhantomData }
    }
}

/// The empty vector of a [`Reused`], for items of its own lifetime.
pub struct Loan<'r, T> {
    vec: NonNull<Vec<T>>,
    lent: PhantomData<&'r mut ()>,
}

impl<T> std::ops::Deref for Loan<'_, T> {
    type Target = Vec<T>;

    #[inline(always)]
    fn deref(&self) -> &Vec<T> {
        // SAFETY: the vector is borrowed for as long as the value exists. Its items have this type with another
        // lifetime: all of them were added during this loan, and nobody looks at them after it.
        unsafe { self.vec.as_ref() }
    }
}

impl<T> std::ops::DerefMut for Loan<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Vec<T> {
        // SAFETY: as above, and nobody else has the loan.
        unsafe { self.vec.as_mut() }
    }
}

impl<T: std::fmt::Debug> std::fmt::Debug for Loan<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (**self).fmt(f)
    }
}

/// Appends what `make` returns for each of `items`, up to the first for which it returns nothing. Returns the number of
/// appended items. The room is made once, so that the loop does not check for it.
#[inline(always)]
pub fn append<T: Copy, I>(
    to: &mut Vec<T>,
    items: impl ExactSizeIterator<Item = I>,
    mut make: impl FnMut(I) -> Option<T>,
) -> usize {
    let before = to.len();
    to.reserve(items.len());
    let mut made = 0;
    for (place, item) in to.spare_capacity_mut().iter_mut().zip(items) {
        let Some(value) = make(item) else { break };
        place.write(value);
        made += 1;
    }
    // SAFETY: the `made` places behind the first `before` items are within the capacity, and were
    // just written.
    unsafe { to.set_len(before + made) };
    made
}
