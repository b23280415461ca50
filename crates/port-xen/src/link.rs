//! A ring's way to Xen, and to the guest at its other end.

use std::io;
use std::sync::Arc;

use weir_netif::BackRing;
use weir_xen::{CopySegment, DomainId, EventChannel, Hypervisor};

/// What a ring needs of Xen: whose it is, and how to reach it.
#[derive(Clone)]
pub(crate) struct Link {
    pub(crate) domain: DomainId,
    pub(crate) hypervisor: Arc<dyn Hypervisor>,
    pub(crate) channel: Arc<dyn EventChannel>,
}

impl Link {
    /// Copies a burst. `false`: what became of it is not known.
    pub(crate) fn copy(&self, segments: &mut [CopySegment<'_>]) -> bool {
        match segments {
            [] => true,
            segments => self.hypervisor.copy(segments).is_ok(),
        }
    }

    /// Interrupts the guest.
    pub(crate) fn notify(&self) {
        // A channel whose other end is gone has nobody to interrupt; xenstore tells of that.
        let _ = self.channel.notify();
    }

    /// Interrupts the guest if there is something in `ring` to be told of, and it wants that. Says whether it
    /// did; `None` if there is nothing.
    pub(crate) fn call_if_wanted<const SLOT: usize>(
        &self,
        ring: &mut BackRing<SLOT>,
    ) -> Option<bool> {
        if ring.unannounced() == 0 {
            return None;
        }
        let wanted = ring.needs_notify();
        if wanted {
            self.notify();
        }
        Some(wanted)
    }

    /// What to wait on for an event.
    pub(crate) fn channel(&self) -> Arc<dyn EventChannel> {
        Arc::clone(&self.channel)
    }

    /// Takes note of an event, so that the next one is reported.
    pub(crate) fn acknowledge(&self) -> io::Result<bool> {
        self.channel.acknowledge()
    }
}
