//! Access to a real Xen through its devices.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

use weir_guestmem::MappedPages;
use weir_limits::{GRANT_COPY_MAX, XEN_PAGE_LEN};

use crate::hypervisor::{
    CopySegment, DomainId, EventChannel, EventPort, GrantMap, GrantRef, Hypervisor, Unmap,
};
use crate::sys;

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
