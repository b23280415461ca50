//! What the hypervisor does for a back end, whoever plays it.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use weir_guestmem::{MappedPages, Slice};
use weir_limits::XEN_PAGE_LEN;

/// A domain (`domid_t`): a guest, or the domain that weir runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DomainId(pub u16);

/// By this number, which is an index of its own grant table, a domain names a page that it shares
/// (`grant_ref_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GrantRef(pub u32);

/// One end of an event channel, as the domain that has it counts (`evtchn_port_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventPort(pub u32);

/// Grants and event channels. A call says by `domain` whose grant or port a number is; Xen, or the
/// double, checks that this domain has given it to weir's.
pub trait Hypervisor: Send + Sync {
    /// Maps one granted page for reading and writing.
    ///
    /// # Errors
    /// It is not granted, or for reading only.
    fn map(&self, domain: DomainId, reference: GrantRef) -> io::Result<GrantMap>;

    /// Copies `segments`, in order, with one system call for each
    /// [`GRANT_COPY_MAX`](weir_limits::GRANT_COPY_MAX) of them, and sets the status of each.
    ///
    /// # Errors
    /// The call as a whole failed, such as for local memory that went away: what happened to any of the
    /// segments is not known.
    fn copy(&self, segments: &mut [CopySegment<'_>]) -> io::Result<()>;

    /// Binds a channel to `remote`, a port that `domain` has made for weir's.
    ///
    /// # Errors
    /// There is no such port, it is for another domain, or bound already.
    fn bind(&self, domain: DomainId, remote: EventPort) -> io::Result<Box<dyn EventChannel>>;
}

/// A bound event channel. Unbound when dropped.
pub trait EventChannel: Send + Sync {
    /// Interrupts the other end.
    ///
    /// # Errors
    /// The channel is broken.
    fn notify(&self) -> io::Result<()>;

    /// Takes note of what came in, so that the next event is reported: to be called before the ring is
    /// looked at, since events are masked until then. `false` if there was none.
    ///
    /// # Errors
    /// The channel is broken.
    fn acknowledge(&self) -> io::Result<bool>;

    /// Readable when the other end has notified.
    fn fd(&self) -> BorrowedFd<'_>;
}

/// Takes a mapped grant back: what a [`GrantMap`] needs of who made it.
pub(crate) trait Unmap: Send + Sync {
    /// The page that was mapped as `index` is not mapped any more.
    fn unmap(&self, index: u64);
}

/// One granted page, mapped. Unmapped when dropped.
pub struct GrantMap {
    /// First, so that it is gone from this process before its grant is given back.
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

    /// The page.
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
    /// Whose page.
    pub domain: DomainId,
    /// Which.
    pub reference: GrantRef,
    /// Bytes into it.
    pub offset: u16,
}

impl Grant {
    /// The place `bytes` further on; `None` beyond its page.
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

/// What a segment is copied from or to.
#[derive(Clone, Copy, Debug)]
pub enum CopyPlace<'m> {
    /// Memory in this process.
    Local(Slice<'m>),
    /// A guest's page.
    Grant(Grant),
}

/// What became of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyStatus {
    /// Not asked for yet.
    Waits,
    /// All of it is there (`GNTST_okay`).
    Done,
    /// Xen refused: the guest's fault (the negative `GNTST_*`, such as -3, `bad_gntref`).
    Refused(i16),
}

/// One piece of a batch: within one page of a guest on one side, and on the other local memory or a page of
/// another guest, or of the same.
#[derive(Clone, Copy, Debug)]
pub struct CopySegment<'m> {
    from: CopyPlace<'m>,
    to: CopyPlace<'m>,
    len: u16,
    status: CopyStatus,
}

impl<'m> CopySegment<'m> {
    /// A copy out of a guest, as long as `to`; `None` if that is not within the page.
    #[inline]
    pub fn from_grant(from: Grant, to: Slice<'m>) -> Option<Self> {
        Self::new(CopyPlace::Grant(from), CopyPlace::Local(to), from.holds(to.len()), to.len())
    }

    /// A copy into a guest, as long as `from`; `None` if that is not within the page.
    #[inline]
    pub fn to_grant(from: Slice<'m>, to: Grant) -> Option<Self> {
        Self::new(CopyPlace::Local(from), CopyPlace::Grant(to), to.holds(from.len()), from.len())
    }

    /// A copy from guest to guest, of `len` bytes; `None` if that is not within both pages.
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

    /// Where from.
    #[inline]
    pub fn from(&self) -> CopyPlace<'m> {
        self.from
    }

    /// Where to.
    #[inline]
    pub fn to(&self) -> CopyPlace<'m> {
        self.to
    }

    /// Bytes.
    #[inline]
    pub fn len(&self) -> u16 {
        self.len
    }

    /// No bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What became of it.
    #[inline]
    pub fn status(&self) -> CopyStatus {
        self.status
    }

    /// `status` is a `GNTST_*`.
    #[inline]
    pub(crate) fn finish(&mut self, status: i16) {
        self.status = if status == 0 { CopyStatus::Done } else { CopyStatus::Refused(status) };
    }
}
