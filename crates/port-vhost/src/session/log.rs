//! The dirty log of a session's rings: [`crate::migration`].

use weir_guestmem::Piece;
use weir_ring::{Addresses, RingConfig};
use weir_vhost_user::{VHOST_VRING_F_LOG, VringAddr};

use super::Session;
use super::iommu::Place;
use crate::error::Refusal;
use crate::migration::{Logs, Wanted};
use crate::queue::Queue;

impl Session {
    /// `SET_VRING_ADDR`. If the ring's addresses stay the same, only its logging changes, and the ring continues
    /// meanwhile.
    pub(super) fn set_addresses(&mut self, addr: &VringAddr) -> Result<(), Refusal> {
        let addresses =
            Addresses { descriptor: addr.descriptor, driver: addr.available, device: addr.used };
        let vring = self.vring(addr.index)?;
        let log = (addr.flags & VHOST_VRING_F_LOG != 0).then_some(addr.log);
        let logged = std::mem::replace(&mut vring.log, log).is_some();
        let stays = vring.addresses.replace(addresses) == Some(addresses);
        if logged && log.is_none() {
            self.end_log_if_unused();
        }
        if stays { self.log_ring(addr.index as usize) } else { self.rebuild(addr.index as usize) }
    }

    /// The logging that is wanted of vring `index`.
    pub(super) fn logs(
        &self,
        index: usize,
        config: &RingConfig,
        place: &Place,
    ) -> Result<Logs, Refusal> {
        let [descriptors, device] = self.guest_places(place, config);
        // With a virtual IOMMU, the stated address is one of its own.
        let used = self.vrings[index].log.map(|stated| match &self.iommu {
            Some(_) => device,
            None => vec![Piece { address: stated, len: config.area_sizes()[2] as u64 }],
        });
        let wanted = Wanted { data: self.features.log_all(), used };
        Ok(self.migration.of_ring(wanted, &self.memory, config, descriptors)?)
    }

    /// Sets the logging that is now wanted of vring `index`, if it is in service.
    fn log_ring(&self, index: usize) -> Result<(), Refusal> {
        let vring = &self.vrings[index];
        let stated = || vring.addresses.map(Place::stated);
        let place = if self.has_iommu() { vring.place.clone() } else { stated() };
        let (Some(place), Some(size)) = (place, vring.size) else { return Ok(()) };
        let logs = self.logs(index, &self.features.ring(size), &place)?;
        let set = |queue: &mut Queue| queue.ring.as_mut().map(|ring| ring.set_logs(logs));
        // The earlier mappings are dropped without the queue's lock.
        drop(self.port.with_queue(index, set));
        Ok(())
    }

    pub(super) fn log_all_rings(&self) -> Result<(), Refusal> {
        (0..self.vrings.len()).try_for_each(|index| self.log_ring(index))
    }

    /// Ends an unused log: no message says that a log is over.
    pub(super) fn end_log_if_unused(&mut self) {
        if !self.features.log_all() && self.vrings.iter().all(|vring| vring.log.is_none()) {
            self.migration.end();
        }
    }
}
