//! The records of rings that outlive weir, or a session: `docs/design/restarts.md#0028`.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, Weak};

use rustix::fs::{
    FallocateFlags, FileType, MemfdFlags, Mode, OFlags, SealFlags, fallocate, fcntl_add_seals,
    fstat, ftruncate, memfd_create, open,
};
use rustix::process::geteuid;
use weir_engine::lock;
use weir_foreign::place::Place;
use weir_guestmem::{Account, GuestMemory, MappedPages, RegionSpec, Window};
use weir_limits::QUEUE_SIZE_MAX;
use weir_ring::Record;
use weir_vhost_user::Inflight;

use crate::error::Refusal;

/// Bytes of each ring's part of a file: whole pages, and enough for the largest ring. Unused pages take no space.
const PART_BYTES: usize = Record::bytes(QUEUE_SIZE_MAX).next_multiple_of(1 << 16);

/// A file with the records of an interface's rings.
#[derive(Debug)]
pub struct Records {
    file: File,
    /// The records that were handed out.
    mapped: Mutex<Vec<Weak<MappedPages>>>,
}

impl Records {
    /// Opens the file, or makes it: of mode 0600, for this user.
    ///
    /// # Errors
    /// The kernel's error, or the file is not this user's alone.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::open_at(&Place::of(path)?)
    }

    /// As [`open`](Self::open), in a directory that is open.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_at(place: &Place) -> io::Result<Self> {
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = File::from(open(place.path(), flags, Mode::RUSR | Mode::WUSR)?);
        let stat = fstat(&file)?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        let others = Mode::RWXG | Mode::RWXO;
        let is_ours = stat.st_uid == geteuid().as_raw()
            && !Mode::from_raw_mode(stat.st_mode).intersects(others);
        if !(is_file && is_ours && stat.st_nlink == 1) {
            return Err(io::Error::other("this is no file that only weir's user may write"));
        }
        Ok(Self::over(file.into()))
    }

    /// Records in a file that somebody else has [opened](Self::open).
    pub fn over(file: OwnedFd) -> Self {
        Self { file: file.into(), mapped: Mutex::default() }
    }

    /// The file.
    pub fn into_file(self) -> OwnedFd {
        self.file.into()
    }

    pub(crate) fn record(&self, ring: usize, size: u16) -> io::Result<Record> {
        let at = (ring * PART_BYTES) as u64;
        let bytes = Record::bytes(size);
        // An access to a page without room in the file system would end weir by SIGBUS.
        fallocate(&self.file, FallocateFlags::empty(), at, bytes as u64)?;
        let pages = MappedPages::map(self.file.as_fd(), at, bytes)?;
        // The lists behind the first page are used only while frames wait.
        pages.bring_first();
        let pages = Arc::new(pages);
        let mut mapped = lock(&self.mapped);
        mapped.retain(|pages| pages.strong_count() > 0);
        mapped.push(Arc::downgrade(&pages));
        Record::new(Window::over(pages), 0, size).ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }

    /// Gives the pages of all records back. Their contents stay in the file. A ring in use brings
    /// back the pages to which it writes. A split ring writes only while frames wait.
    pub(crate) fn leave(&self) {
        lock(&self.mapped).iter().filter_map(Weak::upgrade).for_each(|pages| pages.leave_to_file());
    }
}

/// Records that a front end keeps (`GET_INFLIGHT_FD`, `SET_INFLIGHT_FD`). It can write anything there.
#[derive(Debug)]
pub(crate) struct Region {
    memory: Arc<GuestMemory>,
    rings: usize,
    /// Entries of each ring.
    size: u16,
}

impl Region {
    /// A new area, and its description for the front end.
    pub(crate) fn make(
        wanted: Inflight,
        rings_max: usize,
        account: &Arc<Account>,
    ) -> Result<(Self, Inflight, OwnedFd), Refusal> {
        let (rings, size) = shape(&wanted, rings_max)?;
        let told = Inflight { mmap_size: bytes(rings, size), mmap_offset: 0, ..wanted };
        let fd = memfd(told.mmap_size)
            .map_err(|error| Refusal::Descriptor { what: "in-flight", error })?;
        let file =
            fd.try_clone().map_err(|error| Refusal::Descriptor { what: "in-flight", error })?;
        let region = Self::over(&told, file, rings_max, account)?;
        Ok((region, told, fd))
    }

    /// An area that a front end hands out.
    pub(crate) fn over(
        told: &Inflight,
        fd: OwnedFd,
        rings_max: usize,
        account: &Arc<Account>,
    ) -> Result<Self, Refusal> {
        let (rings, size) = shape(told, rings_max)?;
        let needed = bytes(rings, size);
        let Inflight { mmap_size, mmap_offset, .. } = *told;
        if mmap_size < needed || !mmap_offset.is_multiple_of(8) {
            return Err(Refusal::Inflight {
                rings: told.num_queues,
                size: told.queue_size,
                bytes: mmap_size,
            });
        }
        let spec = RegionSpec { guest_address: 0, size: needed, user_address: 0, mmap_offset };
        let mut memory = GuestMemory::new(Arc::clone(account));
        memory.add(spec, &File::from(fd))?;
        Ok(Self { memory: Arc::new(memory), rings, size })
    }

    /// The record of vring `ring`, if there is room for one of `size` entries.
    pub(crate) fn record(&self, ring: usize, size: u16) -> Option<Record> {
        if ring >= self.rings || size > self.size {
            return None;
        }
        let stride = Record::bytes(self.size);
        let window = self.memory.window(0, self.rings * stride)?;
        Record::new(window, ring * stride, size)
    }
}

fn bytes(rings: usize, size: u16) -> u64 {
    (rings * Record::bytes(size)) as u64
}

/// The number of rings and their size.
fn shape(told: &Inflight, rings_max: usize) -> Result<(usize, u16), Refusal> {
    let Inflight { num_queues, queue_size, mmap_size, .. } = *told;
    let rings = usize::from(num_queues);
    if rings == 0 || rings > rings_max || queue_size == 0 || queue_size > QUEUE_SIZE_MAX {
        return Err(Refusal::Inflight { rings: num_queues, size: queue_size, bytes: mmap_size });
    }
    Ok((rings, queue_size))
}

/// Memory that nobody can make shorter.
fn memfd(bytes: u64) -> io::Result<OwnedFd> {
    let fd = memfd_create("weir-inflight", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&fd, bytes)?;
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}
