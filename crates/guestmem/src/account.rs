//! How much memory front ends have mapped, with bounds.
//!
//! An account grows before `mmap` and shrinks after `munmap`, so it never says less than is mapped. A sparse file
//! is free for its owner: without bounds, one front end could fill the switch's address space.
//!
//! Who belongs to whom weir does not know: all interfaces are alike. Each has a share that no other one gets, however
//! many others belong to one tenant, and a floor that even shares of those that come later leave (docs/design/0052-shares.md).

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
    /// The rest of what may be mapped is others' share.
    #[error(
        "all guests together have mapped what is not kept for a guest that has less than its share; \
         the share of each interface is {share} bytes"
    )]
    TotalMemory {
        /// What each interface may have in any case.
        share: u64,
    },
    /// The rest of the regions is others' share.
    #[error(
        "all guests together have mapped the regions that are not kept for a guest that has less than \
         its share; the share of each interface is {share} regions"
    )]
    TotalRegions {
        /// What each interface may have in any case.
        share: usize,
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

/// What may be mapped of something (bytes, regions), and how it is shared.
#[derive(Debug, Clone, Copy)]
struct Pool {
    max: u64,
    /// What each account may have in any case.
    floor: u64,
}

impl Pool {
    /// What accounts that are `count` may have together: room for the floors of all that may come is kept.
    fn for_all(&self, count: usize) -> u64 {
        let to_come = PORTS_MAX.saturating_sub(count) as u64;
        self.max.saturating_sub(to_come.saturating_mul(self.floor))
    }

    /// What each of `count` may have that nobody else gets.
    fn share(&self, count: usize) -> u64 {
        let part = self.for_all(count) / MEMORY_SHARED_PART / count.max(1) as u64;
        part.max(self.floor)
    }

    /// Whether account `index` of those that have `used` may have `more`. Within its share it must leave others their
    /// floors, and beyond its share it must leave them their shares. `most(i)` is all that account i may have.
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

/// What all accounts of one switch have together.
#[derive(Debug)]
pub(crate) struct Total {
    bytes: Pool,
    regions: Pool,
    accounts: Mutex<Accounts>,
}

/// What each account has mapped, and all that it may: those of one index are one account's.
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

    /// So much of each, of which each account has a floor.
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
        // Plain numbers, each changed whole.
        self.accounts.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// A new account, by a name that grows.
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

    /// A region of so many bytes, if it leaves others what is theirs.
    fn take(&self, name: u64, bytes: u64) -> Result<(), Exceeded> {
        let mut accounts = self.lock();
        let Some(index) = accounts.index(name) else { return Ok(()) };
        let Accounts { bytes: used, regions, bytes_max, .. } = &mut *accounts;
        if !self.bytes.fits(used, index, bytes, |other| bytes_max[other]) {
            return Err(Exceeded::Bytes);
        }
        let most = (MEM_TABLES_MAX * MEM_SLOTS_MAX) as u64;
        if !self.regions.fits(regions, index, 1, |_| most) {
            return Err(Exceeded::Regions);
        }
        used[index] += bytes;
        regions[index] += 1;
        Ok(())
    }

    fn give_back(&self, name: u64, bytes: u64) {
        let mut accounts = self.lock();
        if let Some(index) = accounts.index(name) {
            accounts.bytes[index] -= bytes;
            accounts.regions[index] -= 1;
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

    /// What each account may have that nobody else gets.
    pub(crate) fn share(&self) -> Mapped {
        let count = self.lock().names.len();
        let regions = self.regions.share(count) as usize;
        Mapped { bytes: self.bytes.share(count), regions }
    }
}

/// There is one address space.
static PROCESS: Total = Total::new(MEMORY_TOTAL_MAX, MEM_REGIONS_TOTAL_MAX);

/// What the guests of this process have mapped together; the bounds are [`MEMORY_TOTAL_MAX`] and
/// [`MEM_REGIONS_TOTAL_MAX`].
pub fn total_mapped() -> Mapped {
    PROCESS.mapped()
}

/// What one front end may share, and what it has mapped.
#[derive(Debug)]
pub struct Account {
    max_bytes: AtomicU64,
    /// Its name there.
    name: u64,
    total: &'static Total,
    /// File systems beside tmpfs and hugetlbfs whose files it may share.
    file_systems: Box<[String]>,
}

impl Account {
    /// At most `max_bytes` in one memory table, of tmpfs, hugetlbfs and `file_systems` (names as in
    /// `/proc/filesystems`).
    pub fn new(max_bytes: u64, file_systems: &[String]) -> Self {
        let mut account = Self::within(max_bytes, &PROCESS);
        account.file_systems = file_systems.into();
        account
    }

    pub(crate) fn within(max_bytes: u64, total: &'static Total) -> Self {
        let max_bytes = max_bytes.clamp(MEMORY_MAX_MIN, MEMORY_MAX_MAX);
        let name = total.join(MEM_TABLES_MAX as u64 * max_bytes);
        let (max_bytes, file_systems) = (AtomicU64::new(max_bytes), Box::default());
        Self { max_bytes, name, total, file_systems }
    }

    /// Sets what a memory table may have from now on; one that has more stays.
    pub fn set_max_bytes(&self, max_bytes: u64) {
        let max_bytes = max_bytes.clamp(MEMORY_MAX_MIN, MEMORY_MAX_MAX);
        self.max_bytes.store(max_bytes, Ordering::Relaxed);
        self.total.set_bytes_max(self.name, MEM_TABLES_MAX as u64 * max_bytes);
    }

    /// What a memory table may have.
    pub fn max_bytes(&self) -> u64 {
        self.max_bytes.load(Ordering::Relaxed)
    }

    /// What is mapped now, of this table and of older ones that a worker has yet to let go of.
    pub fn mapped(&self) -> Mapped {
        self.total.mapped_by(self.name)
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
        let mapped = self.mapped();
        if mapped.bytes.saturating_add(len) > MEM_TABLES_MAX as u64 * max {
            return Err(Bound::Tables { max });
        }
        if mapped.regions >= MEM_TABLES_MAX * MEM_SLOTS_MAX {
            return Err(Bound::Regions);
        }
        self.total.take(self.name, len).map_err(|exceeded| {
            let share = self.total.share();
            match exceeded {
                Exceeded::Bytes => Bound::TotalMemory { share: share.bytes },
                Exceeded::Regions => Bound::TotalRegions { share: share.regions },
            }
        })?;
        Ok(Charge { account: Arc::clone(self), len })
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        // Whatever it has mapped keeps it.
        self.total.leave(self.name);
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
        self.account.total.give_back(self.account.name, self.len);
    }
}
