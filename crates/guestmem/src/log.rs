//! The dirty log of a guest that migrates: a bit for each page that weir has written (vhost-user, "Migration").
//!
//! The front end shares the log, and clears bits at any moment: first it takes a word's bits, then
//! it copies their pages. So weir sets a bit after it has written the page, with a full fence in
//! between. A bit that is already set may then stay as it is: the front end takes it after weir's
//! look, and copies the page after that. See `docs/design/restarts.md#0034`.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::account::Account;
use crate::mapping::RegionSpec;
use crate::regions::{GuestMemory, MemoryError};
use crate::slice::Slice;
use crate::window::{Window, fence};

/// Length of a page with one bit (bytes; vhost-user spec).
pub const LOG_PAGE_BYTES: u64 = 0x1000;

/// Length of a word that is written at once (bytes), and the number of pages with bits in it.
const WORD_BYTES: usize = 2;
const WORD_PAGES: u64 = 16;

/// Error of a log.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The log's file cannot be mapped. A log has no guest address; the error shows 0.
    #[error("the dirty log cannot be mapped: {0}")]
    Map(#[from] MemoryError),
    /// The offset would split its words in memory.
    #[error("the dirty log begins at {0:#x} of its file, which is no multiple of 8")]
    Offset(u64),
    /// There are addresses without a bit.
    #[error("the dirty log of {bytes} bytes has no bit for guest address {guest_address:#x}")]
    TooShort {
        /// Length of the log (bytes).
        bytes: usize,
        /// A guest address without a bit.
        guest_address: u64,
    },
}

/// A log that a front end shares.
pub struct DirtyLog {
    /// Keeps the mapping.
    memory: Arc<GuestMemory>,
    words: Window,
    /// Number of pages with a bit.
    pages: u64,
    /// A page without a bit was to be marked.
    overrun: AtomicBool,
    /// An unmarked page was marked.
    news: AtomicBool,
}

impl DirtyLog {
    /// Maps `size` bytes at `offset` of `file`, which count as `account`'s memory.
    ///
    /// # Errors
    /// [`LogError::Map`], [`LogError::Offset`].
    pub fn map(
        size: u64,
        offset: u64,
        file: &File,
        account: &Arc<Account>,
    ) -> Result<Self, LogError> {
        if !offset.is_multiple_of(8) {
            return Err(LogError::Offset(offset));
        }
        let spec = RegionSpec { guest_address: 0, size, user_address: 0, mmap_offset: offset };
        let mut memory = GuestMemory::new(Arc::clone(account));
        memory.add(spec, file)?;
        let memory = Arc::new(memory);
        // All of these bytes were mapped, and the address fits.
        let words = memory.window(0, size as usize & !(WORD_BYTES - 1));
        let words = words.ok_or(LogError::TooShort { bytes: 0, guest_address: 0 })?;
        let pages = (words.len() / WORD_BYTES) as u64 * WORD_PAGES;
        let none = || AtomicBool::new(false);
        Ok(Self { memory, words, pages, overrun: none(), news: none() })
    }

    /// Checks that the log has bits for the `len` bytes at a guest-physical address.
    ///
    /// # Errors
    /// [`LogError::TooShort`].
    pub fn check(&self, guest_address: u64, len: u64) -> Result<(), LogError> {
        let last = guest_address.saturating_add(len.saturating_sub(1));
        match last / LOG_PAGE_BYTES < self.pages {
            true => Ok(()),
            false => Err(LogError::TooShort { bytes: self.words.len(), guest_address: last }),
        }
    }

    /// Returns a marker of pages. Its marks become visible after all earlier writes.
    #[inline]
    pub fn after_writes(&self) -> Marks<'_> {
        fence(Ordering::SeqCst);
        Marks(self)
    }

    /// Returns whether the log's file was truncated, and an access noticed: bits are lost.
    pub fn is_poisoned(&self) -> bool {
        self.memory.poisoned()
    }

    /// Returns whether a page without a bit was written.
    pub fn is_overrun(&self) -> bool {
        self.overrun.load(Ordering::Relaxed)
    }

    /// Returns whether an unmarked page was marked since the last call.
    pub fn take_news(&self) -> bool {
        self.news.load(Ordering::Relaxed) && self.news.swap(false, Ordering::Relaxed)
    }

    /// Takes the marked pages, as the front end does, and calls `page` with the number of each.
    pub fn take(&self, mut page: impl FnMut(u64)) {
        for word in 0..self.words.len() / WORD_BYTES {
            let mut bits = self.words.take_bits(word * WORD_BYTES);
            fence(Ordering::SeqCst);
            while bits != 0 {
                page(word as u64 * WORD_PAGES + u64::from(bits.trailing_zeros()));
                bits &= bits - 1;
            }
        }
    }
}

impl std::fmt::Debug for DirtyLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DirtyLog({} pages)", self.pages)
    }
}

/// A marker for a [`DirtyLog`], made after the writes.
#[derive(Debug, Clone, Copy)]
pub struct Marks<'l>(&'l DirtyLog);

impl Marks<'_> {
    /// Marks the pages of the `len` bytes at a guest-physical address.
    #[inline]
    pub fn at(self, guest_address: u64, len: u64) {
        let Some(behind_first) = len.checked_sub(1) else { return };
        let Self(log) = self;
        let first = guest_address / LOG_PAGE_BYTES;
        let last = guest_address.saturating_add(behind_first) / LOG_PAGE_BYTES;
        if last >= log.pages {
            log.overrun.store(true, Ordering::Relaxed);
            return;
        }
        for word in first / WORD_PAGES..=last / WORD_PAGES {
            let begin = first.saturating_sub(word * WORD_PAGES); // below 16 in the first word, else 0
            let end = (last - word * WORD_PAGES).min(WORD_PAGES - 1);
            let bits = (u16::MAX >> (WORD_PAGES - 1 - end)) & (u16::MAX << begin);
            if log.words.set_bits(word as usize * WORD_BYTES, bits) {
                log.news.store(true, Ordering::Relaxed);
            }
        }
    }
}

/// A log of one guest's memory, which finds guest addresses of slices.
#[derive(Debug)]
pub struct WriteLog {
    log: Arc<DirtyLog>,
    /// Regions by their mapped address.
    places: Box<[Mapped]>,
}

/// A region.
#[derive(Debug)]
struct Mapped {
    start: usize,
    len: u64,
    guest_address: u64,
}

impl WriteLog {
    /// Returns a log for slices of `memory`.
    ///
    /// # Errors
    /// [`LogError::TooShort`] unless every byte of `memory` has its bit.
    pub fn new(log: Arc<DirtyLog>, memory: &GuestMemory) -> Result<Self, LogError> {
        if let Some(last) = memory.last_address() {
            log.check(last, 1)?;
        }
        let place = |(start, len, guest_address)| Mapped { start, len, guest_address };
        let mut places: Box<[_]> = memory.places().map(place).collect();
        places.sort_unstable_by_key(|place| place.start);
        Ok(Self { log, places })
    }

    /// Does the same as [`DirtyLog::after_writes`], for slices.
    #[inline]
    pub fn after_writes(&self) -> WriteMarks<'_> {
        WriteMarks { marks: self.log.after_writes(), places: &self.places }
    }
}

/// A marker for a [`WriteLog`], made after the writes.
#[derive(Debug, Clone, Copy)]
pub struct WriteMarks<'l> {
    marks: Marks<'l>,
    places: &'l [Mapped],
}

impl WriteMarks<'_> {
    /// Marks the pages of a slice. A slice of other memory is an overrun.
    #[inline]
    pub fn slice(self, slice: &Slice<'_>) {
        let (address, len) = (slice.address(), slice.len() as u64);
        let behind = self.places.partition_point(|place| place.start <= address);
        let place = behind.checked_sub(1).and_then(|at| self.places.get(at));
        let offset = |place: &Mapped| (address - place.start) as u64;
        match place.filter(|place| offset(place).saturating_add(len) <= place.len) {
            Some(place) => self.marks.at(place.guest_address + offset(place), len),
            None => self.marks.0.overrun.store(true, Ordering::Relaxed),
        }
    }
}
