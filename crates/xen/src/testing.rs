//! A simulated Xen for tests: xenstore, grant tables and event channels in this process, under the rules that Xen
//! and xenstored enforce.
//!
//! [`Host`] is the machine. [`Host::guest`] is a guest driver's side, the opposite end of a back end.

mod grants;
mod store;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use weir_guestmem::MappedPages;

use crate::hypervisor::{
    CopySegment, DomainId, EventChannel, EventPort, GrantMap, GrantRef, Hypervisor,
};
use crate::store::Client;

pub use grants::Copied;
use grants::{Channels, Grants, Pages};
pub use store::Connection;
use store::Server;

/// The back end's domain.
const DOM0: DomainId = DomainId(0);

/// The whole machine. Clones share it.
#[derive(Clone)]
pub struct Host {
    store: Arc<Server>,
    grants: Arc<Grants>,
    channels: Arc<Channels>,
    copies_fail: Arc<AtomicBool>,
}

impl Default for Host {
    fn default() -> Self {
        Self::new()
    }
}

impl Host {
    /// Returns a host without guests.
    pub fn new() -> Self {
        Self {
            store: Server::new(),
            grants: Arc::new(Grants::default()),
            channels: Arc::new(Channels::default()),
            copies_fail: Arc::default(),
        }
    }

    /// Opens another connection of dom0 to xenstore.
    pub fn client(&self) -> Client<Connection> {
        self.store.connect(DOM0)
    }

    /// Breaks dom0's connections to xenstore, as if xenstored had ended. New connections are
    /// possible.
    pub fn break_clients(&self) {
        self.store.disconnect(DOM0);
    }

    /// Creates a domain with `pages` pages of memory.
    pub fn guest(&self, domain: DomainId, pages: u64) -> io::Result<Guest> {
        Ok(Guest { domain, host: self.clone(), memory: self.grants.add(domain, pages)? })
    }

    /// Returns the number of mapped grants of all guests.
    pub fn mapped(&self) -> usize {
        self.grants.mapped()
    }

    /// Returns the totals of grant copies.
    pub fn copied(&self) -> Copied {
        self.grants.copied()
    }

    /// Returns the number of bound event channels.
    pub fn bound(&self) -> usize {
        self.channels.bound()
    }

    /// Makes batches of copies fail as a whole, or succeed again: as if a vhost-user guest's memory had been unmapped.
    pub fn fail_copies(&self, fail: bool) {
        self.copies_fail.store(fail, Ordering::Relaxed);
    }

    /// Attaches a vif as toolstacks do (`libxl__device_nic_add`): makes the directories of both
    /// ends.
    ///
    /// # Panics
    /// If xenstore refuses it.
    pub fn attach(&self, domain: DomainId, handle: u32, mac: &str, bridge: &str) {
        self.attach_with(domain, handle, mac, bridge, &[]);
    }

    /// As [`attach`](Self::attach), with more keys of the back end's.
    ///
    /// # Panics
    /// If xenstore refuses it.
    pub fn attach_with(
        &self,
        domain: DomainId,
        handle: u32,
        mac: &str,
        bridge: &str,
        more: &[(&'static str, &str)],
    ) {
        let DomainId(id) = domain;
        let front = format!("/local/domain/{id}/device/vif/{handle}");
        let back = format!("/local/domain/0/backend/vif/{id}/{handle}");
        let own = |owner, reader| {
            [
                crate::store::Permission { domain: owner, read: false, write: false },
                crate::store::Permission { domain: reader, read: true, write: false },
            ]
        };
        let mut client = self.client();
        let nodes = [
            (&back, "frontend", front.clone()),
            (&back, "frontend-id", id.to_string()),
            (&back, "online", "1".into()),
            (&back, "state", "1".into()),
            (&back, "script", "none".into()),
            (&back, "mac", mac.into()),
            (&back, "bridge", bridge.into()),
            (&back, "handle", handle.to_string()),
            (&front, "backend", back.clone()),
            (&front, "backend-id", "0".into()),
            (&front, "state", "1".into()),
            (&front, "handle", handle.to_string()),
            (&front, "mac", mac.into()),
        ];
        let more = more.iter().map(|(key, value)| (&back, *key, (*value).to_owned()));
        let nodes: Vec<_> = nodes.into_iter().chain(more).collect();
        let attached = client.transaction(|transaction| {
            nodes.iter().try_for_each(|(directory, key, value)| {
                transaction.write(&format!("{directory}/{key}"), value.as_bytes())
            })
        });
        attached.expect("dom0 may write anywhere");
        for (directory, keys) in [(&back, own(0, id)), (&front, own(id, 0))] {
            for child in client.directory(directory).expect("it was just made") {
                client.set_permissions(&format!("{directory}/{child}"), &keys).expect("as above");
            }
            client.set_permissions(directory, &keys).expect("as above");
        }
    }

    /// Asks to detach a vif, like a toolstack, which [removes](Self::remove) both ends once the back
    /// end has closed, or after a time.
    ///
    /// # Panics
    /// If xenstore refuses it.
    pub fn ask_to_detach(&self, domain: DomainId, handle: u32) {
        let back = format!("/local/domain/0/backend/vif/{}/{handle}", domain.0);
        let asked = self.client().transaction(|transaction| {
            transaction.write(&format!("{back}/online"), b"0")?;
            transaction.write(&format!("{back}/state"), b"5")
        });
        asked.expect("dom0 may write anywhere");
    }

    /// Removes both ends of a vif; see [`ask_to_detach`](Self::ask_to_detach).
    ///
    /// # Panics
    /// If xenstore refuses it.
    pub fn remove(&self, domain: DomainId, handle: u32) {
        let DomainId(id) = domain;
        let mut client = self.client();
        client.rm(&format!("/local/domain/{id}/device/vif/{handle}")).expect("dom0 may");
        client.rm(&format!("/local/domain/0/backend/vif/{id}/{handle}")).expect("dom0 may");
    }
}

impl Hypervisor for Host {
    fn map(&self, domain: DomainId, reference: GrantRef) -> io::Result<GrantMap> {
        self.grants.map(domain, reference, DOM0)
    }

    fn copy(&self, segments: &mut [CopySegment<'_>]) -> io::Result<()> {
        if self.copies_fail.load(Ordering::Relaxed) {
            // Half of the segments are done by then.
            let half = segments.len() / 2;
            self.grants.copy(&mut segments[..half], DOM0);
            return Err(io::Error::from_raw_os_error(libc::EFAULT));
        }
        self.grants.copy(segments, DOM0);
        Ok(())
    }

    fn bind(&self, domain: DomainId, remote: EventPort) -> io::Result<Box<dyn EventChannel>> {
        Channels::bind(&self.channels, domain, remote, DOM0)
    }
}

/// A guest: its memory, its grants, its channels and its connection to xenstore.
pub struct Guest {
    domain: DomainId,
    host: Host,
    memory: Arc<Pages>,
}

impl Guest {
    /// Returns the guest's number.
    pub fn domain(&self) -> DomainId {
        self.domain
    }

    /// Opens another connection to xenstore, with the guest's rights.
    pub fn client(&self) -> Client<Connection> {
        self.host.store.connect(self.domain)
    }

    /// Returns all of the guest's memory, as the guest sees it.
    pub fn memory(&self) -> &MappedPages {
        self.memory.all()
    }

    /// Maps one page of the guest's memory by itself.
    ///
    /// # Errors
    /// The guest has no such page.
    pub fn page(&self, page: u64) -> io::Result<MappedPages> {
        self.memory.page(page)
    }

    /// Grants page number `page` to `to`.
    pub fn grant(&self, page: u64, to: DomainId, read_only: bool) -> GrantRef {
        self.host.grants.grant(self.domain, page, to, read_only)
    }

    /// Takes a grant back; returns `false` while it is mapped.
    pub fn revoke(&self, reference: GrantRef) -> bool {
        self.host.grants.revoke(self.domain, reference)
    }

    /// Makes a port that `remote` may bind. Returns it with the guest's end of the channel.
    ///
    /// # Errors
    /// There are no more descriptors.
    pub fn allocate(&self, remote: DomainId) -> io::Result<(EventPort, Box<dyn EventChannel>)> {
        Channels::allocate(&self.host.channels, self.domain, remote)
    }

    /// Ends the guest and removes its nodes, grants and ports. Mapped pages stay until they are
    /// unmapped.
    ///
    /// # Panics
    /// If xenstore refuses it.
    pub fn destroy(self) {
        self.host.grants.remove(self.domain);
        self.host.channels.remove(self.domain);
        let home = format!("/local/domain/{}", self.domain.0);
        self.host.client().rm(&home).expect("dom0 may remove all");
    }
}

#[cfg(test)]
mod tests;
