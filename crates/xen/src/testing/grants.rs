//! Grant tables over memfds, and event channels over eventfds.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use weir_guestmem::MappedPages;
use weir_limits::XEN_PAGE_LEN;

use crate::hypervisor::{
    CopyPlace, CopySegment, DomainId, EventChannel, EventPort, Grant, GrantMap, GrantRef, Unmap,
};

/// `GNTST_bad_domain`, `GNTST_bad_gntref` and `GNTST_permission_denied` (`xen/include/public/grant_table.h`).
const BAD_DOMAIN: i16 = -2;
const BAD_GRANT_REF: i16 = -3;
const PERMISSION_DENIED: i16 = -8;

/// The first references are reserved by Xen (`GNTTAB_NR_RESERVED_ENTRIES`).
const RESERVED: u32 = 8;

/// A domain's memory.
pub(super) struct Pages {
    file: OwnedFd,
    all: MappedPages,
}

impl Pages {
    pub(super) fn all(&self) -> &MappedPages {
        &self.all
    }

    pub(super) fn page(&self, page: u64) -> io::Result<MappedPages> {
        let at = page.saturating_mul(XEN_PAGE_LEN as u64);
        if at >= self.all.len() as u64 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        MappedPages::map(self.file.as_fd(), at, XEN_PAGE_LEN)
    }
}

struct Entry {
    page: u64,
    to: DomainId,
    read_only: bool,
    mapped: usize,
}

struct Domain {
    memory: Arc<Pages>,
    table: BTreeMap<GrantRef, Entry>,
    next: u32,
}

/// Totals of grant copies (bytes).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Copies from a guest's page to local memory.
    pub from_grants: u64,
    /// Copies from local memory to a guest's page.
    pub to_grants: u64,
    /// Copies from page to page.
    pub between_grants: u64,
    /// The number of calls.
    pub calls: u64,
}

#[derive(Default)]
struct Tables {
    copied: Copied,
    domains: BTreeMap<DomainId, Domain>,
    /// Mappings by the device's index. They outlive their domain.
    mappings: BTreeMap<u64, (DomainId, GrantRef)>,
    next: u64,
}

impl Tables {
    fn entry(&mut self, domain: DomainId, reference: GrantRef) -> Option<&mut Entry> {
        self.domains.get_mut(&domain)?.table.get_mut(&reference)
    }

    /// Returns Xen's answer to `by` for a read or a write.
    fn check(&self, grant: Grant, by: DomainId, write: bool) -> Result<(&Arc<Pages>, usize), i16> {
        let domain = self.domains.get(&grant.domain).ok_or(BAD_DOMAIN)?;
        let entry = domain.table.get(&grant.reference).ok_or(BAD_GRANT_REF)?;
        if entry.to != by || (write && entry.read_only) {
            return Err(PERMISSION_DENIED);
        }
        let start = usize::try_from(entry.page).unwrap_or(usize::MAX).saturating_mul(XEN_PAGE_LEN);
        Ok((&domain.memory, start.saturating_add(grant.offset.into())))
    }
}

/// The grant tables of all domains.
#[derive(Default)]
pub(super) struct Grants {
    tables: Mutex<Tables>,
}

impl Grants {
    fn lock(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, domain: DomainId, pages: u64) -> io::Result<Arc<Pages>> {
        let len = pages * XEN_PAGE_LEN as u64;
        let file = memfd_create("xen-guest", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, len)?;
        let all = MappedPages::map(file.as_fd(), 0, usize::try_from(len).unwrap_or(usize::MAX))?;
        let memory = Arc::new(Pages { file, all });
        let new = Domain { memory: Arc::clone(&memory), table: BTreeMap::new(), next: RESERVED };
        self.lock().domains.insert(domain, new);
        Ok(memory)
    }

    pub(super) fn remove(&self, domain: DomainId) {
        self.lock().domains.remove(&domain);
    }

    pub(super) fn grant(
        &self,
        domain: DomainId,
        page: u64,
        to: DomainId,
        read_only: bool,
    ) -> GrantRef {
        let mut tables = self.lock();
        let domain = tables.domains.get_mut(&domain).expect("a guest that lives");
        let reference = GrantRef(domain.next);
        domain.next += 1;
        domain.table.insert(reference, Entry { page, to, read_only, mapped: 0 });
        reference
    }

    pub(super) fn revoke(&self, domain: DomainId, reference: GrantRef) -> bool {
        let mut tables = self.lock();
        let unused = tables.entry(domain, reference).is_some_and(|entry| entry.mapped == 0);
        if let Some(domain) = tables.domains.get_mut(&domain).filter(|_| unused) {
            domain.table.remove(&reference);
        }
        unused
    }

    pub(super) fn mapped(&self) -> usize {
        self.lock().mappings.len()
    }

    pub(super) fn map(
        self: &Arc<Self>,
        domain: DomainId,
        reference: GrantRef,
        by: DomainId,
    ) -> io::Result<GrantMap> {
        let mut tables = self.lock();
        // gntdev reports every refusal of Xen like this, from `mmap`.
        let refused = |_| io::Error::from_raw_os_error(libc::EINVAL);
        let (memory, start) =
            tables.check(Grant { domain, reference, offset: 0 }, by, true).map_err(refused)?;
        let pages = MappedPages::map(memory.file.as_fd(), start as u64, XEN_PAGE_LEN)?;
        let index = tables.next;
        tables.next += XEN_PAGE_LEN as u64;
        tables.mappings.insert(index, (domain, reference));
        if let Some(entry) = tables.entry(domain, reference) {
            entry.mapped += 1;
        }
        Ok(GrantMap::new(pages, Arc::clone(self) as _, index))
    }

    pub(super) fn copy(&self, segments: &mut [CopySegment<'_>], by: DomainId) {
        let mut tables = self.lock();
        let mut copied = tables.copied;
        copied.calls += 1;
        for segment in segments {
            let len = usize::from(segment.len());
            let foreign = |grant, write| {
                let (memory, at) = tables.check(grant, by, write)?;
                memory.all.slice(at, len).ok_or(BAD_GRANT_REF)
            };
            let from = match segment.from() {
                CopyPlace::Local(slice) => Ok(slice),
                CopyPlace::Grant(grant) => foreign(grant, false),
            };
            let to = match segment.to() {
                CopyPlace::Local(slice) => Ok(slice),
                CopyPlace::Grant(grant) => foreign(grant, true),
            };
            let status = match (from, to) {
                (Ok(from), Ok(to)) => {
                    from.first(len).copy_to(&to.first(len));
                    *match (segment.from(), segment.to()) {
                        (CopyPlace::Grant(_), CopyPlace::Grant(_)) => &mut copied.between_grants,
                        (CopyPlace::Grant(_), _) => &mut copied.from_grants,
                        _ => &mut copied.to_grants,
                    } += len as u64;
                    0
                }
                (Err(status), _) | (_, Err(status)) => status,
            };
            segment.finish(status);
        }
        tables.copied = copied;
    }

    pub(super) fn copied(&self) -> Copied {
        self.lock().copied
    }
}

impl Unmap for Grants {
    fn unmap(&self, index: u64) {
        let mut tables = self.lock();
        let (domain, reference) = tables.mappings.remove(&index).expect("unmapped once");
        if let Some(entry) = tables.entry(domain, reference) {
            entry.mapped -= 1;
        }
    }
}

/// A guest's port, and both ends' eventfds.
struct Port {
    for_domain: DomainId,
    bound: bool,
    guest: Arc<OwnedFd>,
    back: Arc<OwnedFd>,
}

type Ports = BTreeMap<(DomainId, EventPort), Port>;

/// All ports of all guests.
#[derive(Default)]
pub(super) struct Channels {
    ports: Mutex<Ports>,
}

/// An end of a channel, with the eventfd of each direction.
struct End {
    channels: Arc<Channels>,
    key: (DomainId, EventPort),
    own: Arc<OwnedFd>,
    other: Arc<OwnedFd>,
    back: bool,
}

impl Channels {
    fn lock(&self) -> MutexGuard<'_, Ports> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn bound(&self) -> usize {
        self.lock().values().filter(|port| port.bound).count()
    }

    /// `EVTCHNOP_alloc_unbound`.
    pub(super) fn allocate(
        channels: &Arc<Self>,
        domain: DomainId,
        remote: DomainId,
    ) -> io::Result<(EventPort, Box<dyn EventChannel>)> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let guest = Arc::new(eventfd(0, flags)?);
        let back = Arc::new(eventfd(0, flags)?);
        let mut ports = channels.lock();
        let last = ports.keys().filter(|key| key.0 == domain).map(|key| key.1.0).max();
        let port = EventPort(last.unwrap_or(0) + 1);
        let (own, other) = (Arc::clone(&guest), Arc::clone(&back));
        ports.insert((domain, port), Port { for_domain: remote, bound: false, guest, back });
        let key = (domain, port);
        let end = End { channels: Arc::clone(channels), key, own, other, back: false };
        Ok((port, Box::new(end)))
    }

    /// `EVTCHNOP_bind_interdomain`.
    pub(super) fn bind(
        channels: &Arc<Self>,
        domain: DomainId,
        remote: EventPort,
        by: DomainId,
    ) -> io::Result<Box<dyn EventChannel>> {
        let mut ports = channels.lock();
        let key = (domain, remote);
        let port = ports.get_mut(&key).filter(|port| !port.bound && port.for_domain == by);
        let port = port.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        port.bound = true;
        let (own, other) = (Arc::clone(&port.back), Arc::clone(&port.guest));
        // Xen: a notification may have been lost before the port was bound, so the binder gets one.
        signal(&own)?;
        Ok(Box::new(End { channels: Arc::clone(channels), key, own, other, back: true }))
    }

    pub(super) fn remove(&self, domain: DomainId) {
        self.lock().retain(|key, _| key.0 != domain);
    }
}

fn signal(fd: &OwnedFd) -> io::Result<()> {
    match rustix::io::write(fd, &1_u64.to_ne_bytes()) {
        Ok(_) | Err(Errno::AGAIN) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

impl End {
    fn is_of(&self, port: &Port) -> bool {
        Arc::ptr_eq(&self.own, if self.back { &port.back } else { &port.guest })
    }
}

impl EventChannel for End {
    fn notify(&self) -> io::Result<()> {
        let bound = |port: &Port| port.bound && self.is_of(port);
        let bound = self.channels.lock().get(&self.key).is_some_and(bound);
        // Xen reports success for an end without a peer.
        if bound { signal(&self.other) } else { Ok(()) }
    }

    fn acknowledge(&self) -> io::Result<bool> {
        match rustix::io::read(&*self.own, &mut [0; 8]) {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.own.as_fd()
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let mut ports = self.channels.lock();
        // The guest may have ended, and its next port can have the number.
        let Some(port) = ports.get_mut(&self.key).filter(|port| self.is_of(port)) else { return };
        if self.back {
            // An unbound port waits for its domain to bind it again.
            port.bound = false;
        } else {
            ports.remove(&self.key);
        }
    }
}
