//! How much memory front ends have mapped, with bounds.
//!
//! An account grows before `mmap` and shrinks after `munmap`, so it never says less than is mapped. A sparse file
//! is free for its owner: without bounds, one front end could fill the switch's address space.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use weir_limits::{
    MEM_REGIONS_TOTAL_MAX, MEM_SLOTS_MAX, MEM_TABLES_MAX, MEMORY_MAX_DEFAULT, MEMORY_MAX_MAX,
    MEMORY_MAX_MIN, MEMORY_TOTAL_MAX,
};

/// A bound of mapped memory that a region would exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Bound {
    /// `memory_max` of the interface.
    #[error("the regions have {bytes} bytes in all; `memory_max` of this interface allows {max}")]
    Memory {
        /// What the table would have with this region.
        bytes: u64,
        /// `memory_max`.
        max: u64,
    },
    /// A front end that changes its table so fast that old ones are in use yet.
    #[error(
        "more than {MEM_TABLES_MAX} memory tables of `memory_max` ({max} bytes) mapped at a time"
    )]
    Tables {
        /// `memory_max`.
        max: u64,
    },
    /// More regions of old and new tables than a front end may have.
    #[error("more than {MEM_TABLES_MAX} memory tables of {MEM_SLOTS_MAX} regions mapped at a time")]
    Regions,
    /// The switch as a whole has too much mapped.
    #[error("the guests of this switch together may map {max} bytes, and no more")]
    TotalMemory {
        /// What they may have.
        max: u64,
    },
    /// The switch as a whole has too many mappings.
    #[error("the guests of this switch together may map {max} regions, and no more")]
    TotalRegions {
        /// What they may have.
        max: usize,
    },
}

/// What is mapped at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Mapped {
    /// Bytes, in whole pages.
    pub bytes: u64,
    /// Mappings.
    pub regions: usize,
}

/// The same, as it changes.
#[derive(Debug)]
struct Counts {
    bytes: AtomicU64,
    regions: AtomicUsize,
}

impl Counts {
    const fn new() -> Self {
        Self { bytes: AtomicU64::new(0), regions: AtomicUsize::new(0) }
    }

    /// Adds what still fits below both bounds.
    fn take(&self, bytes: u64, bytes_max: u64, regions_max: usize) -> Result<(), Exceeded> {
        let fits = |now: u64| now.checked_add(bytes).filter(|sum| *sum <= bytes_max);
        let more = |now: usize| (now < regions_max).then_some(now + 1);
        let Self { bytes: all, regions } = self;
        regions
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .map_err(|_| Exceeded::Regions)?;
        all.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).map_err(|_| {
            regions.fetch_sub(1, Ordering::Relaxed);
            Exceeded::Bytes
        })?;
        Ok(())
    }

    fn give_back(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.regions.fetch_sub(1, Ordering::Relaxed);
    }

    fn mapped(&self) -> Mapped {
        Mapped {
            bytes: self.bytes.load(Ordering::Relaxed),
            regions: self.regions.load(Ordering::Relaxed),
        }
    }
}

enum Exceeded {
    Bytes,
    Regions,
}

/// What all accounts of one switch may have together.
#[derive(Debug)]
pub(crate) struct Total {
    counts: Counts,
    bytes_max: u64,
    regions_max: usize,
}

impl Total {
    pub(crate) const fn new(bytes_max: u64, regions_max: usize) -> Self {
        Self { counts: Counts::new(), bytes_max, regions_max }
    }
}

/// There is one address space.
static PROCESS: Total = Total::new(MEMORY_TOTAL_MAX, MEM_REGIONS_TOTAL_MAX);

/// What the guests of this process have mapped together; the bounds are [`MEMORY_TOTAL_MAX`] and
/// [`MEM_REGIONS_TOTAL_MAX`].
pub fn total_mapped() -> Mapped {
    PROCESS.counts.mapped()
}

/// What one front end may share, and what it has mapped.
#[derive(Debug)]
pub struct Account {
    max_bytes: AtomicU64,
    counts: Counts,
    total: &'static Total,
    /// File systems beside tmpfs and hugetlbfs whose files it may share.
    file_systems: Box<[String]>,
}

impl Account {
    /// At most `max_bytes` in one memory table, of tmpfs, hugetlbfs and `file_systems` (names as in
    /// `/proc/filesystems`).
    pub fn new(max_bytes: u64, file_systems: &[String]) -> Self {
        Self { file_systems: file_systems.into(), ..Self::within(max_bytes, &PROCESS) }
    }

    pub(crate) fn within(max_bytes: u64, total: &'static Total) -> Self {
        Self {
            max_bytes: AtomicU64::new(max_bytes.clamp(MEMORY_MAX_MIN, MEMORY_MAX_MAX)),
            counts: Counts::new(),
            total,
            file_systems: Box::default(),
        }
    }

    /// Sets what a memory table may have from now on; one that has more stays.
    pub fn set_max_bytes(&self, max_bytes: u64) {
        let max_bytes = max_bytes.clamp(MEMORY_MAX_MIN, MEMORY_MAX_MAX);
        self.max_bytes.store(max_bytes, Ordering::Relaxed);
    }

    /// What a memory table may have.
    pub fn max_bytes(&self) -> u64 {
        self.max_bytes.load(Ordering::Relaxed)
    }

    /// What is mapped now, of this table and of older ones that a worker has yet to let go of.
    pub fn mapped(&self) -> Mapped {
        self.counts.mapped()
    }

    pub(crate) fn file_systems(&self) -> &[String] {
        &self.file_systems
    }

    /// Room for a region of `len` bytes beside `others`, those of the same table.
    pub(crate) fn charge(self: &Arc<Self>, len: u64, others: u64) -> Result<Charge, Bound> {
        let max = self.max_bytes();
        let bytes = others.saturating_add(len);
        if bytes > max {
            return Err(Bound::Memory { bytes, max });
        }
        let tables = MEM_TABLES_MAX as u64;
        self.counts.take(len, tables * max, MEM_TABLES_MAX * MEM_SLOTS_MAX).map_err(
            |exceeded| match exceeded {
                Exceeded::Bytes => Bound::Tables { max },
                Exceeded::Regions => Bound::Regions,
            },
        )?;
        let Total { counts, bytes_max, regions_max } = self.total;
        counts.take(len, *bytes_max, *regions_max).map_err(|exceeded| {
            self.counts.give_back(len);
            match exceeded {
                Exceeded::Bytes => Bound::TotalMemory { max: *bytes_max },
                Exceeded::Regions => Bound::TotalRegions { max: *regions_max },
            }
        })?;
        Ok(Charge { account: Arc::clone(self), len })
    }
}

impl Default for Account {
    fn default() -> Self {
        Self::new(MEMORY_MAX_DEFAULT, &[])
    }
}

/// Room for one mapping, taken for as long as this lives.
#[derive(Debug)]
pub(crate) struct Charge {
    account: Arc<Account>,
    len: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.counts.give_back(self.len);
        self.account.total.counts.give_back(self.len);
    }
}
