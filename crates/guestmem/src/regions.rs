//! The memory table of one front end.

use std::fs::File;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use weir_limits::{BUFFER_PIECES_MAX, IOTLB_ENTRIES_MAX, MEM_SLOTS_MAX};

use crate::account::Account;
use crate::iotlb::{Access, Asks};
use crate::mapping::{JoinError, MapError, Mapping, RegionSpec};
use crate::slice::Slice;
use crate::window::Window;

/// Reason why a memory table was refused, or an address is not in it.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// One region could not be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// Two regions share guest-physical or user addresses.
    #[error("regions at guest addresses {first:#x} and {second:#x} overlap")]
    Overlap {
        /// Guest-physical address of one region.
        first: u64,
        /// Guest-physical address of the other region.
        second: u64,
    },
    /// A region has bytes of a file that two others have.
    #[error(
        "the region at guest address {second:#x} and two others, one at {first:#x}, share bytes of a file"
    )]
    Thrice {
        /// Guest-physical address of one of the others.
        first: u64,
        /// Guest-physical address of the region.
        second: u64,
    },
    /// There are more regions than [`MEM_SLOTS_MAX`].
    #[error("more than {MEM_SLOTS_MAX} memory regions")]
    TooMany,
    /// `REM_MEM_REG` names a region that does not exist.
    #[error("no region at guest address {guest_address:#x} with {size:#x} bytes to remove")]
    NoSuchRegion {
        /// Guest-physical address.
        guest_address: u64,
        /// Size (bytes).
        size: u64,
    },
}

/// Bytes at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Address of the first byte.
    pub address: u64,
    /// Number of bytes.
    pub len: u64,
}

/// All memory that one front end shares: disjoint regions, sorted by guest address.
///
/// Immutable: a change makes a new value that shares the unchanged mappings, so a worker in
/// mid-burst keeps its memory.
#[derive(Clone, Default)]
pub struct GuestMemory {
    account: Arc<Account>,
    /// Keeps the mappings.
    regions: Vec<Arc<Mapping>>,
    /// Areas of a ring that lie in pieces of the regions, mapped a second time.
    joined: Vec<Arc<Mapping>>,
    /// The regions in the same order, in the form of a look-up: two regions per cache line, without
    /// a pointer to follow.
    table: Arc<[Translation]>,
    /// The two largest regions in the order of their addresses, which have nearly all buffers: a
    /// large guest has memory below and above 4 GiB. If there is only one region, the first is
    /// empty.
    main: [Translation; 2],
    /// Set if the addresses of `table` and `main` are those of a virtual IOMMU.
    virtual_addresses: Option<Arc<Virtual>>,
    /// The places in `table` by pages, if the addresses are those of a virtual IOMMU.
    index: Option<Arc<Index>>,
}

/// The other parts of a memory table by the addresses of a virtual IOMMU.
struct Virtual {
    /// The access that the entries permit.
    access: Access,
    asks: Arc<Asks>,
    /// The memory in which indirect tables lie, if the entries permit writes: a device only reads tables.
    tables: Option<GuestMemory>,
}

/// The number of places in an [`Index`].
const INDEX_LEN: usize = 4 * IOTLB_ENTRIES_MAX;
const INDEX_PAGE: u64 = 0x1000;
/// The first pages of a region that are in an [`Index`]. The largest regions are found sooner.
const INDEXED_PAGES: usize = 16;

/// The places of regions in a table, by the lowest bits of their pages' numbers. A region may have lost its place to
/// another.
pub(crate) struct Index([u16; INDEX_LEN]);

impl Index {
    pub(crate) fn of(table: &[Translation]) -> Self {
        let mut places = [0; INDEX_LEN];
        // There are at most `IOTLB_ENTRIES_MAX` regions.
        for (region, place) in table.iter().zip(0_u16..) {
            let last = region.guest_address + (region.size - 1);
            let pages = region.guest_address / INDEX_PAGE..=last / INDEX_PAGE;
            pages.take(INDEXED_PAGES).for_each(|page| places[page as usize % INDEX_LEN] = place);
        }
        Self(places)
    }

    #[inline(always)]
    fn place(&self, address: u64) -> usize {
        usize::from(self.0[(address / INDEX_PAGE) as usize % INDEX_LEN])
    }
}

/// Mapping of a region's guest-physical addresses.
#[derive(Clone, Copy)]
pub(crate) struct Translation {
    guest_address: u64,
    size: u64,
    /// The address behind the region.
    end: u64,
    /// The address at which address 0 would be mapped.
    base: *mut u8,
}

impl Default for Translation {
    /// Returns a translation of no address.
    fn default() -> Self {
        Self { guest_address: 0, size: 0, end: 0, base: ptr::null_mut() }
    }
}

// SAFETY: an address is plain data; what it points to is owned by the `Mapping` beside it, which
// is `Send` and `Sync`.
unsafe impl Send for Translation {}
// SAFETY: as above.
unsafe impl Sync for Translation {}

impl Translation {
    fn new(guest_address: u64, size: u64, start: NonNull<u8>) -> Self {
        let base = start.as_ptr().wrapping_sub(guest_address as usize);
        // A region at the end of the address space has the end 0.
        Self { guest_address, size, end: guest_address.wrapping_add(size), base }
    }

    /// Adds the region `next`, if it continues this one in both address spaces.
    pub(crate) fn extend(&mut self, next: &Self) -> bool {
        let continues = self.base == next.base && self.end == next.guest_address && next.size > 0;
        if continues {
            (self.size, self.end) = (self.size + next.size, next.end);
        }
        continues
    }

    /// The place of an address.
    ///
    /// # Safety
    /// The address is in the region, whose `Mapping` lives.
    #[inline(always)]
    unsafe fn at(&self, guest_address: u64) -> NonNull<u8> {
        // SAFETY: what is mapped is not at 0.
        unsafe { NonNull::new_unchecked(self.base.wrapping_add(guest_address as usize)) }
    }
}

/// The two largest regions of a front end's memory, by their addresses.
#[derive(Clone, Copy)]
pub struct MainRegions<'m> {
    low: &'m Translation,
    high: &'m Translation,
}

impl<'m> MainRegions<'m> {
    /// Returns `len` bytes at a guest-physical address, if `len` is not 0 and one of the two regions holds all of them.
    #[inline(always)]
    pub fn slice(self, guest_address: u64, len: u32) -> Option<Slice<'m>> {
        // One of the two regions is chosen without a branch: a guest's buffers are in both, in any
        // order.
        let region = if guest_address >= self.high.guest_address { self.high } else { self.low };
        // One comparison for both bounds of the address, and one for both of the length: less 1, a length of 0 is the
        // largest number.
        let room = region.end.wrapping_sub(guest_address);
        if room > region.size || u64::from(len).wrapping_sub(1) >= room {
            return None;
        }
        // SAFETY: the address is at most `size` before the region's end, and `len` bytes from there end before it. They
        // are mapped while the region's `Mapping`, which the memory of this translation holds, lives.
        Some(unsafe { Slice::new(region.at(guest_address), len as usize) })
    }
}

/// Largest table that is searched from the front: guests have two or three regions.
const LINEAR_SEARCH_MAX: usize = 8;

impl GuestMemory {
    /// Returns an empty table. Later mappings count as `account`'s.
    pub fn new(account: Arc<Account>) -> Self {
        Self { account, ..Self::default() }
    }

    /// Maps `regions`, with their own account. If one is refused, nothing stays mapped.
    pub fn map(regions: &[(RegionSpec, File)]) -> Result<Self, MemoryError> {
        Self::default().replaced_by(regions)
    }

    /// Maps `regions` for the same account. If one is refused, none of them stays mapped.
    pub fn replaced_by(&self, regions: &[(RegionSpec, File)]) -> Result<Self, MemoryError> {
        let mut memory = Self::new(Arc::clone(&self.account));
        for (spec, file) in regions {
            memory.add(*spec, file)?;
        }
        Ok(memory)
    }

    /// Adds one region (`ADD_MEM_REG`).
    pub fn add(&mut self, spec: RegionSpec, file: &File) -> Result<(), MemoryError> {
        if self.regions.len() >= MEM_SLOTS_MAX {
            return Err(MemoryError::TooMany);
        }
        spec.check()?;
        let overlap = self.regions.iter().find(|other| {
            overlaps(spec.guest_address, spec.size, other.spec.guest_address, other.spec.size)
                || overlaps(spec.user_address, spec.size, other.spec.user_address, other.spec.size)
        });
        if let Some(other) = overlap {
            let (first, second) = (other.spec.guest_address, spec.guest_address);
            return Err(MemoryError::Overlap { first, second });
        }
        let others = self.regions.iter().map(|region| region.mapped_bytes()).sum();
        let mapping = Mapping::new(spec, file, &self.account, others)?;
        // Pages that weir has touched are unmapped one by one, in each region. No front end needs a byte in a third one.
        let mut same = self.regions.iter().filter(|other| {
            let (at, other_at) = (spec.mmap_offset, other.spec.mmap_offset);
            mapping.file() == other.file() && overlaps(at, spec.size, other_at, other.spec.size)
        });
        if let (Some(_), Some(other)) = (same.next(), same.next()) {
            let (first, second) = (other.spec.guest_address, spec.guest_address);
            return Err(MemoryError::Thrice { first, second });
        }
        let position = self.regions.partition_point(|r| r.spec.guest_address < spec.guest_address);
        self.regions.insert(position, Arc::new(mapping));
        self.translate();
        Ok(())
    }

    /// Removes the region with these addresses and this size (`REM_MEM_REG`); the offset in the
    /// file does not matter (vhost-user spec).
    pub fn remove(&mut self, spec: &RegionSpec) -> Result<(), MemoryError> {
        let position = self.regions.iter().position(|r| {
            r.spec.guest_address == spec.guest_address
                && r.spec.user_address == spec.user_address
                && r.spec.size == spec.size
        });
        match position {
            Some(position) => {
                self.regions.remove(position);
                self.translate();
                Ok(())
            }
            None => Err(MemoryError::NoSuchRegion {
                guest_address: spec.guest_address,
                size: spec.size,
            }),
        }
    }

    /// Returns whether the table has exactly this region.
    pub fn has(&self, spec: &RegionSpec) -> bool {
        self.regions.iter().any(|region| region.spec == *spec)
    }

    /// Returns the number of regions.
    pub fn len(&self) -> usize {
        self.regions.len()
    }

    /// Returns whether there is no region.
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// Returns the shared bytes of all regions.
    pub fn size_bytes(&self) -> u64 {
        self.regions.iter().map(|r| r.spec.size).sum()
    }

    /// Returns the last guest-physical address; `None` without a region.
    pub fn last_address(&self) -> Option<u64> {
        // The regions are sorted, and without overlaps.
        self.regions.last().map(|region| region.spec.guest_address + (region.spec.size - 1))
    }

    /// Returns the guest-physical address for an address in the front end's own process.
    pub fn guest_address(&self, user_address: u64) -> Option<u64> {
        let spec = &self.region_with(user_address)?.spec;
        Some(spec.guest_address + (user_address - spec.user_address))
    }

    /// Returns the guest-physical address of a slice of this memory; `None` for a slice of another.
    pub fn address_of(&self, slice: &Slice<'_>) -> Option<u64> {
        let (address, len) = (slice.address(), slice.len() as u64);
        self.places().find_map(|(start, size, guest_address)| {
            let offset = address.checked_sub(start)? as u64;
            (offset.checked_add(len)? <= size).then(|| guest_address + offset)
        })
    }

    /// Iterates over the regions: mapped address, length (bytes), and guest-physical address.
    pub(crate) fn places(&self) -> impl Iterator<Item = (usize, u64, u64)> {
        self.table.iter().map(|region| {
            let start = region.base.wrapping_add(region.guest_address as usize);
            (start as usize, region.size, region.guest_address)
        })
    }

    /// Returns whether a region's file was truncated and an access noticed: the contents are lost.
    pub fn poisoned(&self) -> bool {
        self.regions.iter().chain(&self.joined).any(|r| r.poisoned())
    }

    fn translate(&mut self) {
        let translation = |region: &Arc<Mapping>| {
            let RegionSpec { guest_address, size, .. } = region.spec;
            Translation::new(guest_address, size, region.start())
        };
        self.use_table(self.regions.iter().map(translation).collect());
    }

    fn use_table(&mut self, table: Arc<[Translation]>) {
        let mut largest = [Translation::default(); 2];
        for region in &*table {
            if region.size > largest[0].size {
                largest = [*region, largest[0]];
            } else if region.size > largest[1].size {
                largest[1] = *region;
            }
        }
        largest.sort_by_key(|region| (region.guest_address, region.size));
        (self.table, self.main) = (table, largest);
    }

    /// Returns a translation of `size` bytes from `address` on to those at `user_address` in the front end's own
    /// process, if one region holds all of them.
    pub(crate) fn translation(
        &self,
        address: u64,
        user_address: u64,
        size: u64,
    ) -> Option<Translation> {
        let region = self.region_with(user_address)?;
        let start = region.at(user_address - region.spec.user_address, size)?;
        Some(Translation::new(address, size, start))
    }

    /// Returns this memory by the addresses of a virtual IOMMU: those of `table`, which permits `access` and is
    /// sorted, without overlaps. Missing ones are asked for by `asks`.
    pub(crate) fn by(
        &self,
        (table, index): &(Arc<[Translation]>, Arc<Index>),
        access: Access,
        asks: &Arc<Asks>,
        tables: Option<Self>,
    ) -> Self {
        let (asks, index) = (Arc::clone(asks), Some(Arc::clone(index)));
        let virtual_addresses = Some(Arc::new(Virtual { access, asks, tables }));
        let (account, regions) = (Arc::clone(&self.account), self.regions.clone());
        let mut memory = Self { account, regions, virtual_addresses, index, ..Self::default() };
        memory.use_table(Arc::clone(table));
        memory
    }

    /// Returns `len` bytes at an address of a virtual IOMMU, if the index of pages knows a region that holds them all.
    #[inline(always)]
    pub fn translated(&self, address: u64, len: u32) -> Option<Slice<'_>> {
        let region = self.table.get(self.index.as_ref()?.place(address))?;
        let room = region.end.wrapping_sub(address);
        if room > region.size || u64::from(len).wrapping_sub(1) >= room {
            return None;
        }
        // SAFETY: as in `MainRegions::slice`.
        Some(unsafe { Slice::new(region.at(address), len as usize) })
    }

    /// Returns the memory in which indirect tables lie.
    #[inline(always)]
    pub fn tables(&self) -> &Self {
        let tables = self.virtual_addresses.as_ref().and_then(|it| it.tables.as_ref());
        tables.unwrap_or(self)
    }

    /// Asks for the translation of the first of `len` bytes at an address of a virtual IOMMU that has none. `false`
    /// without a virtual IOMMU, and if all of them have one.
    #[cold]
    pub fn ask(&self, address: u64, len: u32) -> bool {
        let Some(Virtual { access, asks, .. }) = self.virtual_addresses.as_deref() else {
            return false;
        };
        let (mut at, mut left) = (address, u64::from(len));
        while left > 0 {
            let Some(region) = self.region_at(at) else {
                asks.ask(at, *access);
                return true;
            };
            let room = region.size - (at - region.guest_address);
            left = left.saturating_sub(room);
            // No buffer wraps around the end of the address space.
            let Some(next) = at.checked_add(room) else { return false };
            at = next;
        }
        false
    }

    #[inline]
    fn region_at(&self, guest_address: u64) -> Option<&Translation> {
        let has =
            |region: &&Translation| guest_address.wrapping_sub(region.guest_address) < region.size;
        if self.table.len() <= LINEAR_SEARCH_MAX {
            return self.table.iter().find(has);
        }
        let after = self.table.partition_point(|r| r.guest_address <= guest_address);
        self.table.get(after.checked_sub(1)?).filter(has)
    }

    /// Returns the two largest regions, for look-ups in a loop.
    #[inline(always)]
    pub fn main(&self) -> MainRegions<'_> {
        let [low, high] = &self.main;
        MainRegions { low, high }
    }

    /// Returns `len` bytes at a guest-physical address, if one region holds all of them.
    #[inline]
    pub fn slice(&self, guest_address: u64, len: u32) -> Option<Slice<'_>> {
        let region = self.region_at(guest_address)?;
        let offset = guest_address - region.guest_address;
        if u64::from(len) > region.size - offset {
            return None;
        }
        // SAFETY: offset < size, and `size` bytes from `start` are mapped while the region's
        // `Mapping`, which self holds, lives; `len` bytes from there are among them.
        Some(unsafe { Slice::new(region.at(guest_address), len as usize) })
    }

    /// Appends `len` bytes at a guest-physical address to `pieces`, as one slice or, where regions touch, several.
    /// Returns `false`, and appends nothing, if a byte is in no region or more than [`BUFFER_PIECES_MAX`] slices
    /// are needed.
    #[inline]
    pub fn pieces<'m>(&'m self, guest_address: u64, len: u32, pieces: &mut Vec<Slice<'m>>) -> bool {
        if let Some(slice) = self.slice(guest_address, len) {
            pieces.push(slice);
            return true;
        }
        self.pieces_of_several(guest_address, len, pieces)
    }

    #[cold]
    fn pieces_of_several<'m>(
        &'m self,
        guest_address: u64,
        len: u32,
        pieces: &mut Vec<Slice<'m>>,
    ) -> bool {
        let before = pieces.len();
        let (mut address, mut left) = (guest_address, u64::from(len));
        while left > 0 {
            let step = self.region_at(address).and_then(|region| {
                let room = region.size - (address - region.guest_address);
                let len = room.min(left) as u32; // left started as a u32
                Some((self.slice(address, len)?, u64::from(len)))
            });
            let fits = pieces.len() - before < BUFFER_PIECES_MAX;
            let Some((slice, len)) = step.filter(|_| fits) else {
                pieces.truncate(before);
                return false;
            };
            pieces.push(slice);
            left -= len;
            // The region's end fits in 64 bits. An address of exactly 2^64 wraps to 0, where the
            // next step finds no region.
            address = address.wrapping_add(len);
        }
        true
    }

    /// Returns device and inode of the file at an address of the front end's own process. They
    /// distinguish the memory from any other.
    pub fn file_at(&self, user_address: u64) -> Option<[u64; 2]> {
        Some(self.region_with(user_address)?.file())
    }

    fn region_with(&self, user_address: u64) -> Option<&Arc<Mapping>> {
        self.regions.iter().find(|r| {
            user_address >= r.spec.user_address && user_address - r.spec.user_address < r.spec.size
        })
    }

    /// The parts of regions in which the pieces of an area lie: offsets and lengths. `None` if a byte is in no region.
    fn parts(&self, area: &[Piece]) -> Option<Vec<(&Arc<Mapping>, u64, u64)>> {
        let mut parts = Vec::new();
        for Piece { mut address, mut len } in area.iter().copied() {
            while len > 0 {
                let region = self.region_with(address)?;
                let offset = address - region.spec.user_address;
                let part = len.min(region.spec.size - offset);
                parts.push((region, offset, part));
                (address, len) = (address + part, len - part);
            }
        }
        Some(parts)
    }

    /// Returns the guest-physical addresses of the pieces of an area; none if some byte is in no region.
    pub fn guest_pieces(&self, area: &[Piece]) -> Vec<Piece> {
        let parts = self.parts(area).unwrap_or_default().into_iter();
        let piece = |(region, offset, len): (&Arc<Mapping>, u64, u64)| Piece {
            address: region.spec.guest_address + offset,
            len,
        };
        parts.map(piece).collect()
    }

    /// Returns this memory with a second mapping of each of `areas` that lies in several parts of it, one after the
    /// other. [`window`](Self::window) finds it by the address of the area's first byte.
    ///
    /// # Errors
    /// Some area cannot be mapped so.
    pub fn joining(&self, areas: &[Vec<Piece>]) -> Result<Self, JoinError> {
        let mut memory = self.clone();
        for area in areas {
            let parts = self.parts(area).ok_or(JoinError::NotShared)?;
            if let ([first, ..], true) = (&area[..], parts.len() > 1) {
                let joined = Mapping::join(first.address, &parts, &self.account)?;
                memory.joined.push(Arc::new(joined));
            }
        }
        Ok(memory)
    }

    /// Returns this memory with the second mappings of `other`.
    #[must_use]
    pub fn joined_as(mut self, other: &Self) -> Self {
        self.joined.clone_from(&other.joined);
        self
    }

    /// Returns a window of `len` bytes at an address of the front end's own process, which keeps
    /// them mapped (vhost-user gives ring addresses in this form).
    pub fn window(self: &Arc<Self>, user_address: u64, len: usize) -> Option<Window> {
        let of_area = |area: &&Arc<Mapping>| {
            area.spec.user_address == user_address && len as u64 <= area.spec.size
        };
        let joined = self.joined.iter().find(of_area);
        let region = joined.or_else(|| self.region_with(user_address))?;
        let start = region.at(user_address - region.spec.user_address, len as u64)?;
        // SAFETY: `at` checked that `len` bytes from `start` are mapped while `region` lives, and
        // the window holds it.
        Some(unsafe { Window::new(start, len, Arc::clone(self)) })
    }
}

impl std::fmt::Debug for GuestMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.regions.iter().map(|r| r.spec)).finish()
    }
}

/// Returns whether two ranges overlap. `RegionSpec::check` has ensured that both ends fit in 64
/// bits.
fn overlaps(a: u64, a_len: u64, b: u64, b_len: u64) -> bool {
    a < b + b_len && b < a + a_len
}
