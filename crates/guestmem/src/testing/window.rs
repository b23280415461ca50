//! [`Window`] for the model checker `loom`: the calls of `window.rs` over 16-bit words, with every interleaving and
//! every permitted stale value.
//!
//! Windows that begin at the same address are the same words for one execution, so a driver and a device meet as in
//! shared memory. Words begin as 0; the mapping's content plays no part.

use std::cell::Cell;
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use loom::sync::atomic::{AtomicU16, Ordering};

use crate::regions::GuestMemory;

type Words = Arc<[AtomicU16]>;

loom::lazy_static! {
    /// Words by the address of their first byte. The lock is `std`'s: `loom` switches threads only
    /// at its own operations, and nobody holds this lock there.
    static ref WORDS: Mutex<HashMap<usize, Words>> = Mutex::default();
}

loom::thread_local! {
    static WEAKNESS: Cell<Weakness> = Cell::new(Weakness::None);
}

/// A step that a thread omits. A model that still holds does not test the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weakness {
    /// Nothing.
    None,
    /// [`fence`] does nothing.
    NoFence,
    /// [`Window::store_release`] releases nothing.
    RelaxedStores,
    /// [`Window::load_acquire`] acquires nothing.
    RelaxedLoads,
}

/// Makes the calling thread of a model omit a step from now on.
pub fn weaken(weakness: Weakness) {
    WEAKNESS.with(|cell| cell.set(weakness));
}

fn has(weakness: Weakness) -> bool {
    WEAKNESS.with(|cell| cell.get() == weakness)
}

/// A fence, unless the thread is [weakened](weaken).
pub fn fence(order: Ordering) {
    if !has(Weakness::NoFence) {
        loom::sync::atomic::fence(order);
    }
}

/// A ring structure.
pub struct Window {
    words: Words,
    start: usize,
}

impl Window {
    /// # Safety
    /// None needed: as in `window.rs`, where `len` bytes from `start` are mapped while `memory` lives.
    pub(crate) unsafe fn new(start: NonNull<u8>, len: usize, _memory: Arc<GuestMemory>) -> Self {
        let start = start.as_ptr() as usize;
        let zeroed = || (0..len.div_ceil(2)).map(|_| AtomicU16::new(0)).collect();
        let mut all = WORDS.lock().expect("no thread panics with this lock");
        let words = Arc::clone(all.entry(start).or_insert_with(zeroed));
        assert_eq!(words.len(), len.div_ceil(2), "one address, two lengths");
        Self { words, start }
    }

    /// Returns the length (bytes).
    pub fn len(&self) -> usize {
        2 * self.words.len()
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    fn atomic(&self, at: usize) -> &AtomicU16 {
        assert!(at.is_multiple_of(2), "ring offset {at}");
        &self.words[at / 2]
    }

    /// Reads a field; later reads are not moved before it.
    pub fn load_acquire(&self, at: usize) -> u16 {
        let relaxed = has(Weakness::RelaxedLoads);
        self.atomic(at).load(if relaxed { Ordering::Relaxed } else { Ordering::Acquire })
    }

    /// Reads a 32-bit field. A model uses only the lower half, so that it is one word. Later reads
    /// are not moved before it.
    pub fn load32_acquire(&self, at: usize) -> u32 {
        self.load_acquire(at).into()
    }

    /// Reads a 32-bit field; a model uses only the lower half.
    pub fn load32(&self, at: usize) -> u32 {
        self.load(at).into()
    }

    /// Writes a 32-bit field; a model uses only the lower half.
    pub fn store32_release(&self, at: usize, value: u32) {
        self.store_release(at, u16::try_from(value).expect("a model is short"));
    }

    /// Writes a 32-bit field; a model uses only the lower half.
    pub fn store32(&self, at: usize, value: u32) {
        self.store(at, u16::try_from(value).expect("a model is short"));
    }

    /// Reads a field.
    pub fn load(&self, at: usize) -> u16 {
        self.atomic(at).load(Ordering::Relaxed)
    }

    /// Writes a field; earlier writes are not moved after it.
    pub fn store_release(&self, at: usize, value: u16) {
        let relaxed = has(Weakness::RelaxedStores);
        self.atomic(at).store(value, if relaxed { Ordering::Relaxed } else { Ordering::Release });
    }

    /// Writes a field.
    pub fn store(&self, at: usize, value: u16) {
        self.atomic(at).store(value, Ordering::Relaxed);
    }

    /// Sets bits of a field, unless all are set.
    pub fn set_bits(&self, at: usize, bits: u16) -> bool {
        let has_not = self.load(at) & bits != bits;
        if has_not {
            self.atomic(at).fetch_or(bits, Ordering::AcqRel);
        }
        has_not
    }

    /// Clears a field, and returns its old value.
    pub fn take_bits(&self, at: usize) -> u16 {
        self.atomic(at).swap(0, Ordering::AcqRel)
    }

    /// Reads `N` bytes at `at`, both even; nothing orders the words among themselves.
    pub fn read<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        for (i, word) in bytes.chunks_exact_mut(2).enumerate() {
            word.copy_from_slice(&self.load(at + 2 * i).to_le_bytes());
        }
        bytes
    }

    /// Writes `N` bytes at `at`, both even; nothing orders the words among themselves.
    pub fn write<const N: usize>(&self, at: usize, bytes: [u8; N]) {
        for (i, word) in bytes.chunks_exact(2).enumerate() {
            self.store(at + 2 * i, u16::from_le_bytes([word[0], word[1]]));
        }
    }

    /// Returns whether the window starts at a multiple of `align`.
    pub fn is_aligned(&self, align: usize) -> bool {
        self.start.is_multiple_of(align)
    }
}

/// A field of a window.
pub struct Field(Window, usize);

impl Window {
    /// Returns the field at `at`.
    pub fn field(&self, at: usize) -> Option<Field> {
        let window = Self { words: Arc::clone(&self.words), start: self.start };
        (at + 2 <= window.len()).then_some(Field(window, at))
    }
}

impl Field {
    /// See [`Window::load`].
    pub fn load(&self) -> u16 {
        self.0.load(self.1)
    }

    /// See [`Window::load_acquire`].
    pub fn load_acquire(&self) -> u16 {
        self.0.load_acquire(self.1)
    }

    /// See [`Window::store_release`].
    pub fn store_release(&self, value: u16) {
        self.0.store_release(self.1, value);
    }
}

impl std::fmt::Debug for Field {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Field")
    }
}

/// Equal elements of a window.
pub struct Elements<const N: usize> {
    window: Window,
    at: usize,
    last: usize,
}

impl Window {
    /// Returns `count` elements of `N` bytes from `at` on.
    pub fn elements<const N: usize>(&self, at: usize, count: u16) -> Option<Elements<N>> {
        let last = usize::from(count).checked_sub(1)?;
        let window = Self { words: Arc::clone(&self.words), start: self.start };
        (at + (last + 1) * N <= window.len()).then_some(Elements { window, at, last })
    }
}

impl<const N: usize> Elements<N> {
    /// Returns the index of a free-running number, in a ring whose size is a power of two.
    pub fn around(&self, number: u16) -> usize {
        usize::from(number) & self.last
    }

    fn at(&self, index: usize) -> usize {
        assert!(index <= self.last, "element {index} of {}", self.last + 1);
        self.at + index * N
    }

    /// Returns an element.
    pub fn get(&self, index: usize) -> Element<'_, N> {
        Element { window: &self.window, at: self.at(index) }
    }

    /// Iterates over up to `max` elements from an index on, up to the last one.
    pub fn run(&self, first: usize, max: usize) -> impl ExactSizeIterator<Item = Element<'_, N>> {
        (first..self.last + 1).take(max).map(|index| self.get(index))
    }

    /// Reads an element.
    pub fn read(&self, index: usize) -> [u8; N] {
        self.window.read(self.at(index))
    }

    /// Writes an element.
    pub fn write(&self, index: usize, bytes: [u8; N]) {
        self.window.write(self.at(index), bytes);
    }

    /// A hint without effect.
    pub fn prefetch(&self, _index: usize) {}

    /// A hint without effect.
    pub fn prefetch_write(&self, _index: usize) {}
}

impl Elements<2> {
    /// Returns a function that reads the 16-bit element of a free-running number.
    pub fn reader(&self) -> impl Fn(usize) -> u16 {
        |number| self.window.load(self.at(number & self.last))
    }
}

impl Elements<16> {
    /// Returns a function that reads the first half of an element and both parts of the second; none
    /// beyond the last element.
    pub fn word_reader(&self) -> impl Fn(u16) -> Option<(u64, u32, u32)> {
        |index| {
            let index = Some(usize::from(index)).filter(|index| *index <= self.last)?;
            let at = self.at(index);
            let [second, third] =
                [at + 8, at + 12].map(|at| u32::from_le_bytes(self.window.read(at)));
            Some((u64::from_le_bytes(self.window.read(at)), second, third))
        }
    }
}

/// An element of [`Elements`].
pub struct Element<'e, const N: usize> {
    window: &'e Window,
    at: usize,
}

impl Element<'_, 16> {
    /// Reads the four fields of the second half, the last one first: if that is `ready`, the others
    /// are at least as new. (In `window.rs` they are one word, read at once.)
    pub fn load_second_acquire(&self, ready: impl FnOnce(u16) -> bool) -> Option<u64> {
        let at = self.at + 8;
        let last = self.window.load_acquire(at + 6);
        let field = |at| u64::from(self.window.load(at));
        let others = || field(at) | field(at + 2) << 16 | field(at + 4) << 32;
        ready(last).then(|| others() | u64::from(last) << 48)
    }

    /// Reads the first half.
    pub fn read_first(&self) -> u64 {
        u64::from_le_bytes(self.window.read(self.at))
    }

    /// Writes the second word.
    pub fn write_second(&self, word: u64) {
        self.window.write(self.at + 8, word.to_le_bytes());
    }
}

impl<const N: usize> std::fmt::Debug for Elements<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Elements({} of {N} bytes)", self.last + 1)
    }
}

impl std::fmt::Debug for Window {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Window({} bytes)", self.len())
    }
}
