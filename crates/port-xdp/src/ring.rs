//! The rings between weir and the kernel (`struct xsk_queue` in `net/xdp/xsk_queue.h`): one side
//! produces entries, the other consumes them, each by an index of its own that only grows.

use std::io;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::xdp::{XdpDesc, XdpRingFlags, XdpRingOffset};

/// Memory that the kernel writes too, mapped as long as the value exists.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: what is in it is accessed by `Side` only, whose accesses expect others.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// The ring of `socket` at `offset` (`XDP_PGOFF_*`), `len` bytes.
    pub(crate) fn new(socket: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let start = unsafe { mmap(std::ptr::null_mut(), len, access, flags, socket, offset) }?;
        Self::from_start(start.cast(), len)
    }

    /// Zeroed memory, for both sides of a ring without a kernel.
    #[cfg(test)]
    pub(crate) fn anonymous(len: usize) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let null = std::ptr::null_mut();
        // SAFETY: as in `new`.
        let start = unsafe { rustix::mm::mmap_anonymous(null, len, access, MapFlags::PRIVATE) }?;
        Self::from_start(start.cast(), len)
    }

    fn from_start(start: *mut u8, len: usize) -> io::Result<Self> {
        let start = NonNull::new(start).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, len })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this mapping is the one made above; nobody who could access it is left. It fails
        // only for arguments that name no mapping.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// A type of entries that a ring can carry.
///
/// # Safety
/// Every bit pattern is a value of the type.
pub(crate) unsafe trait Entry: Copy {}
// SAFETY: integers.
unsafe impl Entry for u64 {}
// SAFETY: three integers; the flags keep bits that they do not know.
unsafe impl Entry for XdpDesc {}

/// The common state of both sides of a ring: the places of its parts, checked once.
struct Side<T> {
    mapping: Arc<Mapping>,
    /// Offsets in the mapping, all of them multiples of their field's alignment.
    producer: usize,
    consumer: usize,
    flags: Option<usize>,
    entries: usize,
    /// Entries less one; their number is a power of two.
    mask: u32,
    entry: PhantomData<fn() -> T>,
}

impl<T: Entry> Side<T> {
    /// # Errors
    /// `InvalidInput`: such a ring does not fit into the mapping.
    fn new(mapping: Arc<Mapping>, at: &XdpRingOffset, len: u32) -> io::Result<Self> {
        let fits = |offset: u64, size: usize, align: usize| {
            let offset = usize::try_from(offset).ok()?;
            let end = offset.checked_add(size)?;
            (end <= mapping.len && offset.is_multiple_of(align)).then_some(offset)
        };
        let index = |offset| fits(offset, size_of::<u32>(), align_of::<u32>());
        let places = || {
            let size = size_of::<T>().checked_mul(len as usize)?;
            let flags = match at.flags {
                Some(flags) => Some(index(flags)?),
                None => None,
            };
            let entries = fits(at.desc, size, align_of::<T>())?;
            Some((index(at.producer)?, index(at.consumer)?, flags, entries))
        };
        let (producer, consumer, flags, entries) =
            places().filter(|_| len.is_power_of_two()).ok_or(io::ErrorKind::InvalidInput)?;
        let mask = len - 1;
        Ok(Self { mapping, producer, consumer, flags, entries, mask, entry: PhantomData })
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: `new` has checked that an aligned u32 is there; it is mapped as long as self lives,
        // and both sides access it atomically only.
        unsafe { AtomicU32::from_ptr(self.mapping.start.as_ptr().add(offset).cast()) }
    }

    fn entry(&self, index: u32) -> *mut T {
        let at = self.entries + (index & self.mask) as usize * size_of::<T>();
        // SAFETY: the masked index is below the number of entries, for which `new` found room.
        unsafe { self.mapping.start.as_ptr().add(at).cast() }
    }

    fn producer(&self) -> &AtomicU32 {
        self.word(self.producer)
    }

    fn consumer(&self) -> &AtomicU32 {
        self.word(self.consumer)
    }
}

/// The side that puts entries in: weir's of the fill and the TX ring.
pub(crate) struct Producer<T> {
    side: Side<T>,
    /// The index of the next entry.
    next: u32,
    /// The other side's index when it was last read.
    consumed: u32,
}

impl<T: Entry> Producer<T> {
    /// The producer's side of a ring of `len` entries at `at`.
    ///
    /// # Errors
    /// The mapping has no room for the ring.
    pub(crate) fn new(mapping: Arc<Mapping>, at: &XdpRingOffset, len: u32) -> io::Result<Self> {
        let side = Side::new(mapping, at, len)?;
        let next = side.producer().load(Ordering::Relaxed);
        Ok(Self { consumed: next, next, side })
    }

    /// Writes an entry, which the other side sees after [`publish`](Self::publish); `false` when the
    /// ring is full.
    #[inline]
    pub(crate) fn push(&mut self, entry: T) -> bool {
        if self.next.wrapping_sub(self.consumed) > self.side.mask {
            // Acquire: the other side has read the entry whose place is reused.
            self.consumed = self.side.consumer().load(Ordering::Acquire);
            if self.next.wrapping_sub(self.consumed) > self.side.mask {
                return false;
            }
        }
        // SAFETY: in the ring (`Side::entry`); the other side reads it only after `publish`.
        unsafe { self.side.entry(self.next).write(entry) };
        self.next = self.next.wrapping_add(1);
        true
    }

    /// Gives the pushed entries to the other side.
    #[inline]
    pub(crate) fn publish(&mut self) {
        self.side.producer().store(self.next, Ordering::Release);
    }

    /// Entries that the other side has not taken.
    #[inline]
    pub(crate) fn left(&self) -> u32 {
        self.next.wrapping_sub(self.side.consumer().load(Ordering::Acquire))
    }

    /// True if the kernel reads published entries only after a system call (`XDP_RING_NEED_WAKEUP`).
    #[inline]
    pub(crate) fn needs_wakeup(&self) -> bool {
        let Some(flags) = self.side.flags else { return true };
        // Either the kernel, which says so before it stops looking, sees the new index, or this side sees the flag.
        fence(Ordering::SeqCst);
        let flags = self.side.word(flags).load(Ordering::Relaxed);
        flags & XdpRingFlags::XDP_RING_NEED_WAKEUP.bits() != 0
    }
}

/// The side that takes entries out: weir's of the RX and the completion ring.
pub(crate) struct Consumer<T> {
    side: Side<T>,
    /// The index of the next entry.
    next: u32,
    /// The other side's index when it was last read.
    produced: u32,
}

impl<T: Entry> Consumer<T> {
    /// The consumer's side of a ring of `len` entries at `at`.
    ///
    /// # Errors
    /// The mapping has no room for the ring.
    pub(crate) fn new(mapping: Arc<Mapping>, at: &XdpRingOffset, len: u32) -> io::Result<Self> {
        let side = Side::new(mapping, at, len)?;
        let next = side.consumer().load(Ordering::Relaxed);
        Ok(Self { produced: next, next, side })
    }

    /// The next entry, if there is one.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<T> {
        if self.next == self.produced {
            // Acquire: the entries were written before it.
            self.produced = self.side.producer().load(Ordering::Acquire);
            if self.next == self.produced {
                return None;
            }
        }
        // SAFETY: in the ring (`Side::entry`); the other side writes it only after `release`. If it
        // did not keep to that, the value would be wrong: every one is valid.
        let entry = unsafe { self.side.entry(self.next).read() };
        self.next = self.next.wrapping_add(1);
        Some(entry)
    }

    /// Gives the places of popped entries back to the other side.
    #[inline]
    pub(crate) fn release(&mut self) {
        self.side.consumer().store(self.next, Ordering::Release);
    }

    /// True if there is no entry now.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.next == self.side.producer().load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u32 = 8;
    const AT: XdpRingOffset =
        XdpRingOffset { producer: 0, consumer: 64, desc: 128, flags: Some(4) };

    /// Both sides of a ring whose indices begin at `start`.
    fn pair(start: u32) -> (Producer<u64>, Consumer<u64>) {
        let mapping = Arc::new(Mapping::anonymous(4096).unwrap());
        let side = Side::<u64>::new(Arc::clone(&mapping), &AT, LEN).unwrap();
        side.producer().store(start, Ordering::Relaxed);
        side.consumer().store(start, Ordering::Relaxed);
        let producer = Producer::new(Arc::clone(&mapping), &AT, LEN).unwrap();
        (producer, Consumer::new(mapping, &AT, LEN).unwrap())
    }

    #[test]
    fn entries_come_out_in_order_across_the_wrap_of_the_index() {
        let (mut producer, mut consumer) = pair(u32::MAX - 2);
        for round in 0..5_u64 {
            for n in 0..6 {
                assert!(producer.push(round * 10 + n));
            }
            assert!(consumer.is_empty(), "not published");
            producer.publish();
            assert_eq!(producer.left(), 6);
            for n in 0..6 {
                assert_eq!(consumer.pop(), Some(round * 10 + n));
            }
            assert_eq!((consumer.pop(), producer.left()), (None, 6));
            consumer.release();
            assert_eq!(producer.left(), 0);
        }
    }

    #[test]
    fn a_full_ring_takes_no_more_until_places_are_given_back() {
        let (mut producer, mut consumer) = pair(u32::MAX);
        for n in 0..u64::from(LEN) {
            assert!(producer.push(n));
        }
        producer.publish();
        assert!(!producer.push(8));
        assert_eq!(consumer.pop(), Some(0));
        assert!(!producer.push(8), "popped, but not given back");
        consumer.release();
        assert!(producer.push(8) && !producer.push(9));
    }

    #[test]
    fn the_flag_says_whether_a_doorbell_is_needed() {
        let (producer, _consumer) = pair(0);
        assert!(!producer.needs_wakeup());
        producer.side.word(4).store(1, Ordering::Relaxed);
        assert!(producer.needs_wakeup());
        // A kernel without the flag always needs the call.
        let at = XdpRingOffset { flags: None, ..AT };
        let mapping = Arc::new(Mapping::anonymous(4096).unwrap());
        assert!(Producer::<u64>::new(mapping, &at, LEN).unwrap().needs_wakeup());
    }

    #[test]
    fn a_ring_outside_its_mapping_is_refused() {
        let mapping = Arc::new(Mapping::anonymous(4096).unwrap());
        let refused =
            |at: XdpRingOffset, len| Producer::<u64>::new(Arc::clone(&mapping), &at, len).is_err();
        assert!(!refused(XdpRingOffset { desc: 4096 - 64, ..AT }, LEN));
        assert!(refused(XdpRingOffset { desc: 4096 - 56, ..AT }, LEN));
        assert!(refused(XdpRingOffset { desc: 132, ..AT }, LEN), "not aligned");
        assert!(refused(XdpRingOffset { producer: 4094, ..AT }, LEN));
        assert!(refused(XdpRingOffset { consumer: u64::MAX, ..AT }, LEN));
        assert!(refused(XdpRingOffset { flags: Some(2), ..AT }, LEN));
        assert!(refused(AT, 7) && refused(AT, 0), "not a power of two");
    }

    #[test]
    fn two_threads_see_every_entry_once() {
        const COUNT: u64 = 10_000;
        let (mut producer, mut consumer) = pair(u32::MAX - 5000);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for n in 0..COUNT {
                    while !producer.push(n) {
                        std::thread::yield_now();
                    }
                    producer.publish();
                }
            });
            for n in 0..COUNT {
                let got = loop {
                    match consumer.pop() {
                        Some(got) => break got,
                        None => std::thread::yield_now(),
                    }
                };
                consumer.release();
                assert_eq!(got, n);
            }
        });
    }
}
