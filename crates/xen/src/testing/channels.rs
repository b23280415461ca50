//! Event channels over eventfds.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use crate::hypervisor::{DomainId, EventChannel, EventPort};

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
