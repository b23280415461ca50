//! Requests of a guest about its traffic. By the control ring of a vif, a guest chooses the hash and the table that
//! select its receive queue. With `feature-multicast-control` of `public/io/netif.h`, it names its multicast groups.
//!
//! The thread that follows xenstore serves the control ring: requests are few, and each takes two system calls at most.
//! Workers use the result, [`GuestHash`].

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};

use arc_swap::{ArcSwapOption, Guard};
use weir_guestmem::MappedPages;
use weir_limits::{XEN_CTRL_REQUESTS_MAX, XEN_MULTICAST_MAX, XEN_PAGE_LEN};
use weir_netif::{CtrlBack, CtrlStatus, FlowHash, HashState, Pending, Status, Step, ctrl_type};
use weir_policy::steering::{Receiver, Steering};
use weir_wire::{Layers, Mac};
use weir_xen::{CopySegment, CopyStatus, EventChannel, Grant, GrantRef};

use crate::link::{Link, Ring, StopReason};

/// The guest's hash for workers, if it has set one up.
#[derive(Default)]
pub(crate) struct GuestHash {
    state: ArcSwapOption<HashState>,
    /// Saves workers any further check if there is no hash.
    is_set: AtomicBool,
}

impl GuestHash {
    fn set(&self, state: Option<&HashState>) {
        self.state.store(state.map(|state| Arc::new(state.clone())));
        self.is_set.store(state.is_some(), Ordering::Relaxed);
    }

    /// Returns the hash for one burst.
    #[inline]
    pub(crate) fn load(&self) -> Option<Guard<Option<Arc<HashState>>>> {
        self.is_set.load(Ordering::Relaxed).then(|| self.state.load())
    }

    /// Returns the entry of the guest's table for the frame that begins with `head`.
    pub(crate) fn entry(&self, head: &[u8]) -> Option<u32> {
        let guard = self.load()?;
        let state = guard.as_deref()?;
        u32::try_from(state.entry(of_frame(state, head)?)).ok()
    }
}

/// Returns the hash of the frame that begins with `head`, if the guest asked for a hash of its
/// kind.
pub(crate) fn of_frame(state: &HashState, head: &[u8]) -> Option<FlowHash> {
    state.hash(&Layers::parse(head).ok()?)
}

/// A control ring in service.
pub(crate) struct Control {
    back: CtrlBack,
    link: Link,
    /// Destination of copied keys and tables.
    page: MappedPages,
    state: HashState,
    /// A table of this size has been filled, so that a new one serves the same flows in the same
    /// entries.
    filled: bool,
    /// There may be requests without an event.
    pub(crate) more: bool,
}

impl Control {
    /// Takes over the ring of a front end with `queues` queues. It may hold requests already.
    pub(crate) fn new(back: CtrlBack, link: Link, queues: usize) -> io::Result<Self> {
        let page = MappedPages::new(XEN_PAGE_LEN)?;
        let state = HashState::new(queues);
        Ok(Self { back, link, page, state, filled: false, more: true })
    }

    /// Returns the channel of the guest's requests.
    pub(crate) fn channel(&self) -> Arc<dyn EventChannel> {
        self.link.channel()
    }

    /// Answers requests, and makes their settings. If [`more`](Self::more) is set afterwards, the
    /// caller must call this function again, after others have had their turn.
    ///
    /// # Errors
    /// [`StopReason`]: the guest has broken the ring.
    pub(crate) fn serve(
        &mut self,
        hash: &GuestHash,
        steering: &Steering,
        receiver: &dyn Receiver,
    ) -> Result<(), StopReason> {
        let broken = |error| StopReason::Ring { ring: Ring::Control, error };
        self.more = false;
        self.link.acknowledge().map_err(|error| {
            StopReason::Internal(format!("{}: event channel: {error}", Ring::Control))
        })?;
        for _ in 0..XEN_CTRL_REQUESTS_MAX {
            let Some(request) = self.back.take().map_err(broken)? else { break };
            let response = match self.state.apply(request) {
                Step::Answer(response) => response,
                Step::Copy(pending) => self.copy(pending),
            };
            // The settings are made before the answer, since later frames must be steered as the guest has asked.
            if response.status == CtrlStatus::Success {
                self.publish(response.kind, hash, steering, receiver);
            }
            if self.back.answer(response) {
                self.link.notify();
            }
        }
        self.more = self.back.final_check().map_err(broken)?;
        Ok(())
    }

    /// Continues a request that needs the guest's bytes.
    fn copy(&mut self, pending: Pending) -> weir_netif::CtrlResponse {
        let segment = pending.segment;
        let mut bytes = [0; XEN_PAGE_LEN];
        let bytes = bytes.get_mut(..segment.len.into()).and_then(|bytes| {
            let reference = GrantRef(segment.gref);
            let from = Grant { domain: self.link.domain, reference, offset: segment.offset };
            let to = self.page.slice(0, bytes.len())?;
            let mut copies = [CopySegment::from_grant(from, to)?];
            let known = self.link.copy(&mut copies);
            let done = known && copies.iter().all(|copy| copy.status() == CopyStatus::Done);
            (done && to.read(bytes) == bytes.len()).then_some(&*bytes)
        });
        self.state.copied(pending, bytes)
    }

    /// Publishes the guest's change by a message of this [type](ctrl_type).
    fn publish(
        &mut self,
        kind: u16,
        hash: &GuestHash,
        steering: &Steering,
        receiver: &dyn Receiver,
    ) {
        let revised = match kind {
            ctrl_type::GET_HASH_FLAGS | ctrl_type::GET_HASH_MAPPING_SIZE => return,
            ctrl_type::SET_HASH_MAPPING => std::mem::replace(&mut self.filled, true),
            ctrl_type::SET_HASH_MAPPING_SIZE => {
                self.filled = false;
                false
            }
            _ => false,
        };
        if !self.state.is_set() {
            steering.take_back();
            hash.set(None);
            return;
        }
        let table = self.state.table();
        if revised {
            steering.revise(&table, receiver);
        } else {
            hash.set(Some(&self.state));
            steering.give(&table);
        }
    }
}

/// Restores weir's own steering: the front end has disconnected, or another one comes.
pub(crate) fn reset(hash: &GuestHash, steering: &Steering) {
    steering.take_back();
    hash.set(None);
}

/// The groups of one guest; `None` until it has announced that it names them. Until then, it gets all groups.
#[derive(Debug, Default)]
pub(crate) struct Groups(RwLock<Option<Vec<Mac>>>);

impl Groups {
    /// Prepares for a new front end. With `named` it names the groups that it wants.
    pub(crate) fn reset(&self, named: bool) {
        *self.0.write().unwrap_or_else(|e| e.into_inner()) = named.then(Vec::new);
    }

    /// Adds or removes a group. Returns the status for the answer.
    pub(crate) fn change(&self, address: Mac, add: bool) -> Status {
        let mut groups = self.0.write().unwrap_or_else(|e| e.into_inner());
        let Some(groups) = groups.as_mut() else { return Status::Error };
        let known = groups.iter().position(|group| *group == address);
        match (known, add) {
            (Some(at), false) => {
                groups.swap_remove(at);
            }
            (None, true) if groups.len() < XEN_MULTICAST_MAX => groups.push(address),
            (None, true) => return Status::Error,
            (Some(_), true) | (None, false) => {}
        }
        Status::Okay
    }

    /// Returns true if the guest wants a frame to `to`.
    pub(crate) fn wants(&self, to: Mac) -> bool {
        if !to.is_multicast() || to.is_broadcast() {
            return true;
        }
        let groups = self.0.read().unwrap_or_else(|e| e.into_inner());
        groups.as_ref().is_none_or(|groups| groups.contains(&to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: Mac = Mac([1, 0, 0x5e, 0, 0, 1]);

    #[test]
    fn a_guest_that_names_its_groups_gets_those_and_all_that_is_no_group() {
        let groups = Groups::default();
        assert!(groups.wants(GROUP));
        assert_eq!(groups.change(GROUP, true), Status::Error, "nobody asked");
        groups.reset(true);
        let other = Mac([1, 0, 0x5e, 0, 0, 2]);
        assert!(!groups.wants(GROUP) && groups.wants(Mac::BROADCAST));
        assert!(groups.wants(Mac([2, 0, 0, 0, 0, 1])));
        assert_eq!(groups.change(GROUP, true), Status::Okay);
        assert!(groups.wants(GROUP) && !groups.wants(other));
        assert_eq!(groups.change(GROUP, false), Status::Okay);
        assert!(!groups.wants(GROUP));
        groups.reset(false);
        assert!(groups.wants(GROUP));
    }

    #[test]
    fn groups_are_bounded() {
        let groups = Groups::default();
        groups.reset(true);
        let group = |n: usize| Mac([1, 0, 0x5e, 0, 0, n as u8]);
        for n in 0..XEN_MULTICAST_MAX {
            assert_eq!(groups.change(group(n), true), Status::Okay);
        }
        assert_eq!(groups.change(group(XEN_MULTICAST_MAX), true), Status::Error);
        assert_eq!(groups.change(group(0), true), Status::Okay, "known already");
    }
}
