//! The dirty log of a guest that moves: a bit for each page that weir has written (vhost-user, "Migration").
//!
//! The front end shares it, and clears bits at any moment: first it takes a word's bits, then it copies their pages. So
//! a bit is set after the bytes that it stands for, with a full fence in between; then one that is set already may be
//! left alone, since it is taken after that look, and its page is copied after it was taken. See
//! `docs/design/0034-migration.md`.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::account::Account;
use crate::mapping::RegionSpec;
use crate::regions::{GuestMemory, MemoryError};
use crate::slice::Slice;
use crate::window::{Window, fence};

/// Bytes of a page, for which there is one bit (vhost-user spec).
pub const LOG_PAGE_BYTES: u64 = 0x1000;

/// Bytes of what is written at once, and pages that it has bits for.
const WORD_BYTES: usize = 2;
const WORD_PAGES: u64 = 16;

/// What is wrong with a log.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// Its file cannot be mapped. A log has no guest address, so that 0 stands for one.
    #[error("the dirty log cannot be mapped: {0}")]
    Map(#[from] MemoryError),
    /// Its words would not be whole in memory.
    #[error("the dirty log begins at {0:#x} of its file, which is no multiple of 8")]
    Offset(u64),
    /// There are addresses without a bit.
    #[error("the dirty log of {bytes} bytes has no bit for guest address {guest_address:#x}")]
    TooShort {
        /// Bytes of the log.
        bytes: usize,
        /// An address that has none.
        guest_address: u64,
    },
}

/// A log that a front end shares.
pub struct DirtyLog {
    /// Keeps the mapping.
    memory: Arc<GuestMemory>,
    words: Window,
    /// Pages that have a bit.
    pages: u64,
    /// A page was to be marked that has none.
    overrun: AtomicBool,
    /// A page was marked that was not.
    news: AtomicBool,
}

impl DirtyLog {
    /// Maps the `size` bytes at `offset` of `file`, which count as `account`'s memory.
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
        // All that was mapped, and its address fits.
        let words = memory.window(0, size as usize & !(WORD_BYTES - 1));
        let words = words.ok_or(LogError::TooShort { bytes: 0, guest_address: 0 })?;
        let pages = (words.len() / WORD_BYTES) as u64 * WORD_PAGES;
        let none = || AtomicBool::new(false);
        Ok(Self { memory, words, pages, overrun: none(), news: none() })
    }

    /// Refuses a log that has no bit for the `len` bytes at a guest-physical address.
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

    /// All that was written before has its bit when it is marked by the result.
    #[inline]
    pub fn after_writes(&self) -> Marks<'_> {
        fence(Ordering::SeqCst);
        Marks(self)
    }

    /// Its file was truncated, and an access noticed: bits are lost.
    pub fn is_poisoned(&self) -> bool {
        self.memory.poisoned()
    }

    /// Something was written that has no bit.
    pub fn is_overrun(&self) -> bool {
        self.overrun.load(Ordering::Relaxed)
    }

    /// Whether a page was marked that was not, since the last time.
    pub fn take_news(&self) -> bool {
        self.news.load(Ordering::Relaxed) && self.news.swap(false, Ordering::Relaxed)
    }

    /// Takes the pages that are marked, as the front end does: each is given to `page` by its number.
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

/// A [`DirtyLog`], after the writes that are to be marked.
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
    /// By where they are mapped.
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
    /// For slices of `memory`.
    ///
    /// # Errors
    /// [`LogError::TooShort`] unless every byte of it has its bit.
    pub fn new(log: Arc<DirtyLog>, memory: &GuestMemory) -> Result<Self, LogError> {
        if let Some(last) = memory.last_address() {
            log.check(last, 1)?;
        }
        let place = |(start, len, guest_address)| Mapped { start, len, guest_address };
        let mut places: Box<[_]> = memory.places().map(place).collect();
        places.sort_unstable_by_key(|place| place.start);
        Ok(Self { log, places })
    }

    /// As [`DirtyLog::after_writes`], for slices.
    #[inline]
    pub fn after_writes(&self) -> WriteMarks<'_> {
        WriteMarks { marks: self.log.after_writes(), places: &self.places }
    }
}

/// A [`WriteLog`], after the writes that are to be marked.
#[derive(Debug, Clone, Copy)]
pub struct WriteMarks<'l> {
    marks: Marks<'l>,
    places: &'l [Mapped],
}

impl WriteMarks<'_> {
    /// Marks the pages of a slice. One of other memory is an overrun.
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
