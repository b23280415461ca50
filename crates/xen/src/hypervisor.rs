//! The hypervisor's services for a back end, from a real Xen through its devices, or from the
//! simulated Xen.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

use weir_guestmem::{MappedPages, Slice};
use weir_limits::{GRANT_COPY_MAX, XEN_PAGE_LEN};

use crate::sys;

/// A domain (`domid_t`): a guest, or the domain that weir runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DomainId(pub u16);

/// A domain's name for a shared page: an index of its own grant table (`grant_ref_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GrantRef(pub u32);

/// One end of an event channel, by its owner's number (`evtchn_port_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventPort(pub u32);

/// Grants and event channels. The argument `domain` owns the grant or port; Xen, or the simulated
/// Xen, checks that this domain has given it to weir's.
pub trait Hypervisor: Send + Sync {
    /// Maps one granted page for reading and writing.
    ///
    /// # Errors
    /// The page is not granted, or only for reading.
    fn map(&self, domain: DomainId, reference: GrantRef) -> io::Result<GrantMap>;

    /// Copies `segments`, in order, with one system call for each
    /// [`GRANT_COPY_MAX`](weir_limits::GRANT_COPY_MAX) of them, and sets the status of each.
    ///
    /// # Errors
    /// The call as a whole failed, for example because local memory was unmapped. The state of every segment is then
    /// unknown.
    fn copy(&self, segments: &mut [CopySegment<'_>]) -> io::Result<()>;

    /// Binds a channel to `remote`, a port that `domain` has made for weir's domain.
    ///
    /// # Errors
    /// There is no such port, it is for another domain, or it is bound already.
    fn bind(&self, domain: DomainId, remote: EventPort) -> io::Result<Box<dyn EventChannel>>;
}

/// A bound event channel. Unbound when dropped.
pub trait EventChannel: Send + Sync {
    /// Interrupts the other end.
    ///
    /// # Errors
    /// The channel is broken.
    fn notify(&self) -> io::Result<()>;

    /// Acknowledges events, so that the next one is reported. Call it before reading the ring, since events are masked
    /// until then. Returns `false` if there was none.
    ///
    /// # Errors
    /// The channel is broken.
    fn acknowledge(&self) -> io::Result<bool>;

    /// Returns a descriptor that is readable when the other end has notified.
    fn fd(&self) -> BorrowedFd<'_>;
}

/// Takes a mapped grant back, on behalf of a [`GrantMap`]'s maker.
pub(crate) trait Unmap: Send + Sync {
    /// Unmaps the page of `index`.
    fn unmap(&self, index: u64);
}

/// One granted page, mapped. Unmapped when dropped.
pub struct GrantMap {
    /// The field comes first, so that the page is unmapped from this process before its grant is given back.
    pages: MappedPages,
    _held: Held,
}

struct Held {
    owner: Arc<dyn Unmap>,
    index: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.owner.unmap(self.index);
    }
}

impl GrantMap {
    pub(crate) fn new(pages: MappedPages, owner: Arc<dyn Unmap>, index: u64) -> Self {
        Self { pages, _held: Held { owner, index } }
    }

    /// Returns the page.
    #[inline]
    pub fn pages(&self) -> &MappedPages {
        &self.pages
    }
}

impl AsRef<MappedPages> for GrantMap {
    fn as_ref(&self) -> &MappedPages {
        &self.pages
    }
}

/// A place in a granted page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Owner of the page.
    pub domain: DomainId,
    /// Reference of the page.
    pub reference: GrantRef,
    /// Offset in the page (bytes).
    pub offset: u16,
}

impl Grant {
    /// Returns the place `bytes` further on; `None` beyond the page.
    #[inline]
    pub fn skip(self, bytes: usize) -> Option<Self> {
        let offset = usize::from(self.offset).checked_add(bytes)?;
        let offset = u16::try_from(offset).ok().filter(|at| usize::from(*at) < XEN_PAGE_LEN)?;
        Some(Self { offset, ..self })
    }

    fn holds(&self, len: usize) -> bool {
        usize::from(self.offset).checked_add(len).is_some_and(|end| end <= XEN_PAGE_LEN)
    }
}

/// Source or destination of a segment.
#[derive(Clone, Copy, Debug)]
pub enum CopyPlace<'m> {
    /// Memory in this process.
    Local(Slice<'m>),
    /// A guest's page.
    Grant(Grant),
}

/// State of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyStatus {
    /// The segment is not copied yet.
    Waits,
    /// The segment is copied completely (`GNTST_okay`).
    Done,
    /// Xen has refused because of the guest (the negative `GNTST_*`, such as -3, `bad_gntref`).
    Refused(i16),
}

/// One piece of a batch. One side is within a page of a guest. The other is local memory, or a page
/// of any guest.
#[derive(Clone, Copy, Debug)]
pub struct CopySegment<'m> {
    from: CopyPlace<'m>,
    to: CopyPlace<'m>,
    len: u16,
    status: CopyStatus,
}

impl<'m> CopySegment<'m> {
    /// Returns a copy out of a guest, as long as `to`; `None` if it exceeds the page.
    #[inline]
    pub fn from_grant(from: Grant, to: Slice<'m>) -> Option<Self> {
        Self::new(CopyPlace::Grant(from), CopyPlace::Local(to), from.holds(to.len()), to.len())
    }

    /// Returns a copy into a guest, as long as `from`; `None` if it exceeds the page.
    #[inline]
    pub fn to_grant(from: Slice<'m>, to: Grant) -> Option<Self> {
        Self::new(CopyPlace::Local(from), CopyPlace::Grant(to), to.holds(from.len()), from.len())
    }

    /// Returns a copy of `len` bytes from guest to guest; `None` if it exceeds either page.
    #[inline]
    pub fn between_grants(from: Grant, to: Grant, len: usize) -> Option<Self> {
        let fits = from.holds(len) && to.holds(len);
        Self::new(CopyPlace::Grant(from), CopyPlace::Grant(to), fits, len)
    }

    #[inline]
    fn new(from: CopyPlace<'m>, to: CopyPlace<'m>, fits: bool, len: usize) -> Option<Self> {
        let len = u16::try_from(len).ok().filter(|_| fits)?;
        Some(Self { from, to, len, status: CopyStatus::Waits })
    }

    /// Returns the source.
    #[inline]
    pub fn from(&self) -> CopyPlace<'m> {
        self.from
    }

    /// Returns the destination.
    #[inline]
    pub fn to(&self) -> CopyPlace<'m> {
        self.to
    }

    /// Returns the length (bytes).
    #[inline]
    pub fn len(&self) -> u16 {
        self.len
    }

    /// True if the segment has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the state of the segment.
    #[inline]
    pub fn status(&self) -> CopyStatus {
        self.status
    }

    /// Sets the state from a `GNTST_*`.
    #[inline]
    pub(crate) fn finish(&mut self, status: i16) {
        self.status = if status == 0 { CopyStatus::Done } else { CopyStatus::Refused(status) };
    }
}

/// The hypervisor below this domain.
pub struct Xen {
    grants: Arc<GrantDevice>,
}

impl Xen {
    /// Opens `/dev/xen/gntdev`. Channels open a `/dev/xen/evtchn` each.
    ///
    /// # Errors
    /// There is no such device, which means no Xen or no `xen-gntdev` module, or weir may not open it.
    pub fn open() -> io::Result<Self> {
        Ok(Self { grants: Arc::new(GrantDevice { file: open("/dev/xen/gntdev")? }) })
    }
}

fn open(path: &str) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(path)
}

struct GrantDevice {
    file: File,
}

impl Unmap for GrantDevice {
    fn unmap(&self, index: u64) {
        // Unmapping fails only for an index that is not in the table. Closing the file unmaps the rest.
        let _ = sys::unmap_grant_ref(self.file.as_fd(), index);
    }
}

impl Hypervisor for Xen {
    fn map(&self, domain: DomainId, reference: GrantRef) -> io::Result<GrantMap> {
        let device = self.grants.file.as_fd();
        let index = sys::map_grant_ref(device, domain, reference)?;
        // Xen checks the grant only now.
        match MappedPages::map(device, index, XEN_PAGE_LEN) {
            Ok(pages) => Ok(GrantMap::new(pages, Arc::clone(&self.grants) as _, index)),
            Err(refused) => {
                self.grants.unmap(index);
                Err(refused)
            }
        }
    }

    fn copy(&self, segments: &mut [CopySegment<'_>]) -> io::Result<()> {
        segments
            .chunks_mut(GRANT_COPY_MAX)
            .try_for_each(|chunk| sys::grant_copy(self.grants.file.as_fd(), chunk))
    }

    fn bind(&self, domain: DomainId, remote: EventPort) -> io::Result<Box<dyn EventChannel>> {
        let file = open("/dev/xen/evtchn")?;
        let port = sys::bind_interdomain(file.as_fd(), domain, remote)?;
        Ok(Box::new(XenChannel { file, port }))
    }
}

/// A front end's side: pages and ports that this domain shares with another. weir does not use it;
/// its tests on a real Xen do.
pub struct Sharer {
    gntalloc: File,
}

impl Sharer {
    /// Opens `/dev/xen/gntalloc`.
    ///
    /// # Errors
    /// There is no such device, which means no Xen or no `xen-gntalloc` module, or it may not be opened.
    pub fn open() -> io::Result<Self> {
        Ok(Self { gntalloc: open("/dev/xen/gntalloc")? })
    }

    /// Allocates a page of zeros that `domain` may map. The grant ends when the page is dropped and
    /// `domain` has unmapped it.
    ///
    /// # Errors
    /// The kernel has no page or no reference left.
    pub fn grant(&self, domain: DomainId, read_only: bool) -> io::Result<(GrantRef, MappedPages)> {
        let device = self.gntalloc.as_fd();
        let (reference, index) = sys::alloc_gref(device, domain, read_only)?;
        let pages = MappedPages::map(device, index, XEN_PAGE_LEN);
        // From here on only the mapping keeps the page.
        sys::dealloc_gref(device, index)?;
        Ok((reference, pages?))
    }

    /// Makes a port that `domain` may bind. Returns it with this domain's end of the channel.
    ///
    /// # Errors
    /// There are no more ports or descriptors.
    pub fn allocate(&self, domain: DomainId) -> io::Result<(EventPort, Box<dyn EventChannel>)> {
        let file = open("/dev/xen/evtchn")?;
        let port = sys::bind_unbound_port(file.as_fd(), domain)?;
        Ok((port, Box::new(XenChannel { file, port })))
    }
}

/// A device file for one channel, so that an epoll event identifies the channel. Closing it unbinds
/// the port.
struct XenChannel {
    file: File,
    port: EventPort,
}

impl EventChannel for XenChannel {
    fn notify(&self) -> io::Result<()> {
        sys::notify(self.file.as_fd(), self.port)
    }

    fn acknowledge(&self) -> io::Result<bool> {
        // A read returns the ports that fired, at most one here. Writing them back unmasks them.
        let mut fired = [0; 4];
        match (&self.file).read(&mut fired) {
            Ok(read) => {
                let came = fired.get(..read).unwrap_or_default();
                (&self.file).write_all(came)?;
                Ok(!came.is_empty())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
