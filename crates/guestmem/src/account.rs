//! The memory that front ends have mapped, and its bounds.
//!
//! An account grows before `mmap` and shrinks after `munmap`, so it never shows less than is
//! mapped. A sparse file is free for its owner: without bounds, one front end could fill the
//! switch's address space.
//!
//! weir does not know the tenants: all interfaces are alike. Each interface has a share that no
//! other one gets, however many others belong to one tenant. Each also has a floor that the shares
//! of others leave free, even if it comes later (docs/design/front-ends.md#0052).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use weir_limits::{
    MEM_REGIONS_FLOOR, MEM_REGIONS_TOTAL_MAX, MEM_SLOTS_MAX, MEM_TABLES_MAX, MEMORY_FLOOR,
    MEMORY_MAX_DEFAULT, MEMORY_MAX_MAX, MEMORY_MAX_MIN, MEMORY_SHARED_PART, MEMORY_TOTAL_MAX,
    PORTS_MAX,
};

/// A bound of mapped memory that a region would exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Bound {
    /// `memory_max` of the interface.
    #[error("the regions have {bytes} bytes in all; `memory_max` of this interface allows {max}")]
    Memory {
        /// Size of the table with this region.
        bytes: u64,
        /// `memory_max`.
        max: u64,
    },
    /// A front end changes its table so fast that old tables are still in use.
    #[error(
        "more than {MEM_TABLES_MAX} memory tables of `memory_max` ({max} bytes) mapped at a time"
    )]
    Tables {
        /// `memory_max`.
        max: u64,
    },
    /// The old and new tables have more regions than allowed.
    #[error("more than {MEM_TABLES_MAX} memory tables of {MEM_SLOTS_MAX} regions mapped at a time")]
    Regions,
    /// The rest of the memory is other guests' share.
    #[error(
        "all guests together have mapped what is not kept for a guest that has less than its share; \
         the share of each interface is {share} bytes"
    )]
    TotalMemory {
        /// The memory that each interface may have in any case.
        share: u64,
    },
    /// The rest of the regions is other guests' share.
    #[error(
        "all guests together have mapped the regions that are not kept for a guest that has less than \
         its share; the share of each interface is {share} regions"
    )]
    TotalRegions {
        /// The regions that each interface may have in any case.
        share: usize,
    },
}

/// Mapped memory at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Mapped {
    /// Bytes, in whole pages.
    pub bytes: u64,
    /// Number of mappings.
    pub regions: usize,
}

/// An amount of bytes or regions that may be mapped, and its division.
#[derive(Debug, Clone, Copy)]
struct Pool {
    max: u64,
    /// The part that each account may always have.
    floor: u64,
}

impl Pool {
    /// Returns the total that `count` accounts may use together. The minimum of each account that may still be opened
    /// is kept back.
    fn for_all(&self, count: usize) -> u64 {
        let to_come = PORTS_MAX.saturating_sub(count) as u64;
        self.max.saturating_sub(to_come.saturating_mul(self.floor))
    }

    /// Returns the part of each of `count` accounts that no other account gets.
    fn share(&self, count: usize) -> u64 {
        let part = self.for_all(count) / MEMORY_SHARED_PART / count.max(1) as u64;
        part.max(self.floor)
    }

    /// Returns whether account `index` among those with `used` may have `more`. Within its share it
    /// must leave others their floors, and beyond its share it must leave them their shares.
    /// `most(i)` is the limit of account i.
    fn fits(&self, used: &[u64], index: usize, more: u64, most: impl Fn(usize) -> u64) -> bool {
        let share = self.share(used.len());
        let within = used[index].saturating_add(more) <= share;
        let kept = if within { self.floor } else { share };
        let others = used.iter().enumerate().filter(|(other, _)| *other != index);
        let others = others.map(|(other, used)| (*used).max(kept.min(most(other))));
        let all = others.fold(used[index].saturating_add(more), u64::saturating_add);
        all <= self.for_all(used.len())
    }
}

enum Exceeded {
    Bytes,
    Regions,
}

/// The accounts of one switch together.
#[derive(Debug)]
pub(crate) struct Total {
    bytes: Pool,
    regions: Pool,
    accounts: Mutex<Accounts>,
}

/// Mapped amounts and limits by account; the entries of one index belong to one account.
#[derive(Debug)]
struct Accounts {
    names: Vec<u64>,
    bytes: Vec<u64>,
    regions: Vec<u64>,
    bytes_max: Vec<u64>,
    named: u64,
}

impl Accounts {
    fn index(&self, name: u64) -> Option<usize> {
        self.names.binary_search(&name).ok()
    }
}

impl Total {
    pub(crate) const fn new(bytes_max: u64, regions_max: usize) -> Self {
        let (floor, regions_floor) = (MEMORY_FLOOR, MEM_REGIONS_FLOOR as u64);
        Self::with_floors((bytes_max, floor), (regions_max as u64, regions_floor))
    }

    /// Returns a total with these amounts, each with the floor of an account.
    pub(crate) const fn with_floors(bytes: (u64, u64), regions: (u64, u64)) -> Self {
        let accounts = Accounts {
            names: Vec::new(),
            bytes: Vec::new(),
            regions: Vec::new(),
            bytes_max: Vec::new(),
            named: 0,
        };
        Self {
            bytes: Pool { max: bytes.0, floor: bytes.1 },
            regions: Pool { max: regions.0, floor: regions.1 },
            accounts: Mutex::new(accounts),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Accounts> {
        // Each number is changed in one step, so a poisoned lock does no harm.
        self.accounts.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Adds an account. Returns its name, a growing number.
    fn join(&self, bytes_max: u64) -> u64 {
        let mut accounts = self.lock();
        let name = accounts.named;
        accounts.named += 1;
        accounts.names.push(name);
        accounts.bytes.push(0);
        accounts.regions.push(0);
        accounts.bytes_max.push(bytes_max);
        name
    }

    fn leave(&self, name: u64) {
        let mut accounts = self.lock();
        if let Some(index) = accounts.index(name) {
            accounts.names.remove(index);
            accounts.bytes.remove(index);
            accounts.regions.remove(index);
            accounts.bytes_max.remove(index);
        }
    }

    fn set_bytes_max(&self, name: u64, bytes_max: u64) {
        let mut accounts = self.lock();
        if let Some(index) = accounts.index(name) {
            accounts.bytes_max[index] = bytes_max;
        }
    }

    /// Takes `count` regions of `bytes` in all, if that leaves others their parts.
    fn take(&self, name: u64, bytes: u64, count: u64) -> Result<(), Exceeded> {
        let mut accounts = self.lock();
        let Some(index) = accounts.index(name) else { return Ok(()) };
        let Accounts { bytes: used, regions, bytes_max, .. } = &mut *accounts;
        if !self.bytes.fits(used, index, bytes, |other| bytes_max[other]) {
            return Err(Exceeded::Bytes);
        }
        let most = (MEM_TABLES_MAX * MEM_SLOTS_MAX) as u64;
        if !self.regions.fits(regions, index, count, |_| most) {
            return Err(Exceeded::Regions);
        }
        used[index] += bytes;
        regions[index] += count;
        Ok(())
    }

    fn give_back(&self, name: u64, bytes: u64, count: u64) {
        let mut accounts = self.lock();
        if let Some(index) = accounts.index(name) {
            accounts.bytes[index] -= bytes;
            accounts.regions[index] -= count;
        }
    }

    fn mapped_by(&self, name: u64) -> Mapped {
        let accounts = self.lock();
        let Some(index) = accounts.index(name) else { return Mapped::default() };
        Mapped { bytes: accounts.bytes[index], regions: accounts.regions[index] as usize }
    }

    fn mapped(&self) -> Mapped {
        let accounts = self.lock();
        let regions = accounts.regions.iter().sum::<u64>() as usize;
        Mapped { bytes: accounts.bytes.iter().sum(), regions }
    }

    /// Returns the part of each account that no other account gets.
    pub(crate) fn share(&self) -> Mapped {
        let count = self.lock().names.len();
        let regions = self.regions.share(count) as usize;
        Mapped { bytes: self.bytes.share(count), regions }
    }
}

/// The total of the process, which has one address space.
static PROCESS: Total = Total::new(MEMORY_TOTAL_MAX, MEM_REGIONS_TOTAL_MAX);

/// Returns the memory that the guests of this process have mapped together. The bounds are
/// [`MEMORY_TOTAL_MAX`] and [`MEM_REGIONS_TOTAL_MAX`].
pub fn total_mapped() -> Mapped {
    PROCESS.mapped()
}

/// Returns the bytes of this process's memory that are reserved for each of `interfaces` interfaces.
pub fn share_among(interfaces: usize) -> u64 {
    PROCESS.bytes.share(interfaces)
}

/// The memory that one front end may share, and the memory it has mapped.
#[derive(Debug)]
pub struct Account {
    max_bytes: AtomicU64,
    /// The account's name in the total.
    name: u64,
    total: &'static Total,
    /// The present session's number. The CPU time (ns) in which another thread has unmapped memory of that session, and
    /// memory that earlier ones have left; without what was taken.
    unmapping: Mutex<(u64, [u64; 2])>,
    /// Allowed file systems besides tmpfs and hugetlbfs.
    file_systems: Box<[String]>,
}

impl Account {
    /// Returns an account of at most `max_bytes` in one memory table, from tmpfs, hugetlbfs and
    /// `file_systems` (names as in `/proc/filesystems`).
    pub fn new(max_bytes: u64, file_systems: &[String]) -> Self {
        let mut account = Self::within(max_bytes, &PROCESS);
        account.file_systems = file_systems.into();
        account
    }

    pub(crate) fn within(max_bytes: u64, total: &'static Total) -> Self {
        let max_bytes = max_bytes.clamp(MEMORY_MAX_MIN, MEMORY_MAX_MAX);
        let name = total.join(MEM_TABLES_MAX as u64 * max_bytes);
        let (max_bytes, file_systems) = (AtomicU64::new(max_bytes), Box::default());
        Self { max_bytes, name, total, unmapping: Mutex::default(), file_systems }
    }

    /// Sets the limit of a memory table from now on; a larger table stays.
    pub fn set_max_bytes(&self, max_bytes: u64) {
        let max_bytes = max_bytes.clamp(MEMORY_MAX_MIN, MEMORY_MAX_MAX);
        self.max_bytes.store(max_bytes, Ordering::Relaxed);
        self.total.set_bytes_max(self.name, MEM_TABLES_MAX as u64 * max_bytes);
    }

    /// Returns the limit of a memory table.
    pub fn max_bytes(&self) -> u64 {
        self.max_bytes.load(Ordering::Relaxed)
    }

    /// Returns the memory mapped now, by this table and by older ones that a worker still uses.
    pub fn mapped(&self) -> Mapped {
        self.total.mapped_by(self.name)
    }

    /// Returns the CPU time (ns) that another thread has spent on unmapping since the last call: for the present
    /// session, and of memory that earlier ones have left.
    pub fn take_unmapping_ns(&self) -> [u64; 2] {
        std::mem::take(&mut self.unmapping().1)
    }

    /// Notes that the present session is over: whatever is still mapped was left by it.
    pub fn end_session(&self) {
        let (session, [own, left]) = &mut *self.unmapping();
        *session += 1;
        *left += std::mem::take(own);
    }

    fn unmapping(&self) -> MutexGuard<'_, (u64, [u64; 2])> {
        self.unmapping.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub(crate) fn file_systems(&self) -> &[String] {
        &self.file_systems
    }

    /// Takes room for a region of `len` bytes beside `others`, the bytes of the same table.
    pub(crate) fn charge(self: &Arc<Self>, len: u64, others: u64) -> Result<Charge, Bound> {
        let max = self.max_bytes();
        let bytes = others.saturating_add(len);
        if bytes > max {
            return Err(Bound::Memory { bytes, max });
        }
        let mapped = self.mapped();
        if mapped.bytes.saturating_add(len) > MEM_TABLES_MAX as u64 * max {
            return Err(Bound::Tables { max });
        }
        self.take(len, 1)
    }

    /// Takes room for a second mapping of `count` pieces of the memory, whose bytes are few. Each counts as a region.
    pub(crate) fn charge_pieces(self: &Arc<Self>, count: usize) -> Result<Charge, Bound> {
        self.take(0, count)
    }

    fn take(self: &Arc<Self>, len: u64, regions: usize) -> Result<Charge, Bound> {
        if self.mapped().regions + regions > MEM_TABLES_MAX * MEM_SLOTS_MAX {
            return Err(Bound::Regions);
        }
        let regions = regions as u64;
        self.total.take(self.name, len, regions).map_err(|exceeded| {
            let share = self.total.share();
            match exceeded {
                Exceeded::Bytes => Bound::TotalMemory { share: share.bytes },
                Exceeded::Regions => Bound::TotalRegions { share: share.regions },
            }
        })?;
        let session = self.unmapping().0;
        Ok(Charge { account: Arc::clone(self), session, len, regions })
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        // Existing mappings hold the account, so none is left.
        self.total.leave(self.name);
    }
}

impl Default for Account {
    fn default() -> Self {
        Self::new(MEMORY_MAX_DEFAULT, &[])
    }
}

/// Room for one mapping, held for the lifetime of this value.
#[derive(Debug)]
pub(crate) struct Charge {
    account: Arc<Account>,
    session: u64,
    len: u64,
    regions: u64,
}

impl Charge {
    /// Returns a function that notes the CPU time (ns) of the unmapping.
    pub(crate) fn unmapped(&self) -> impl FnOnce(u64) + use<> {
        let (account, session) = (Arc::clone(&self.account), self.session);
        move |took_ns| {
            let (present, took) = &mut *account.unmapping();
            took[usize::from(*present != session)] += took_ns;
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.total.give_back(self.account.name, self.len, self.regions);
    }
}
