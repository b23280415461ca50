//! The virtual IOMMU of a session: rings and buffers are at addresses that the front end translates when it is asked
//! (docs/design/front-ends.md#0067).
//!
//! ```text
//! a worker   a buffer has no translation ─▶ Asks, the session's event; the chain stays in its ring
//! session    Asks ─▶ BACKEND_IOTLB_MSG ─▶ front end ─▶ IOTLB_MSG ─▶ Iotlb ─▶ new tables ─▶ workers look again
//!            IOTLB_MSG invalidate ─▶ new tables, no worker uses the old ones any more ─▶ the answer
//! ```

use std::cell::OnceCell;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_calls::Kind;
use weir_guestmem::{
    Access, Asks, GuestMemory, Iotlb, IotlbError, JoinError, Lookup, Piece, Tables, Update, Updated,
};
use weir_limits::IOTLB_WAIT_NS_MAX;
use weir_ring::{Addresses, RingConfig};
use weir_vhost_user::{IotlbMsg, ask_for};

use super::Session;
use crate::error::{Refusal, StopReason};
use crate::queue::{Holds, Late};
use crate::rx;

/// The longest wait for workers.
const WAIT: Duration = Duration::from_nanos(IOTLB_WAIT_NS_MAX);
/// The time between two checks whether workers are done. A burst takes longer.
const LOOK: Duration = Duration::from_micros(20);
/// The time after which a full channel is tried again.
const RETRY: Duration = Duration::from_millis(10);

/// The translations that the front end has reported, and those that weir asks for.
pub(super) struct Iommu {
    iotlb: Iotlb,
    /// The tables of `iotlb`, once a ring needs them.
    tables: OnceCell<Tables>,
    asks: Arc<Asks>,
    /// Memory by earlier tables, until no worker uses it.
    retired: Vec<Arc<GuestMemory>>,
}

/// The place of a ring in the front end's process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// The first bytes of its areas.
    pub(super) at: Addresses,
    /// The pieces of each area behind a virtual IOMMU.
    pieces: [Vec<Piece>; 3],
}

impl Place {
    /// The place of a ring that lies where its front end says.
    pub(super) fn stated(at: Addresses) -> Self {
        Self { at, pieces: Default::default() }
    }
}

impl Iommu {
    /// Uses other memory of the front end.
    pub(super) fn use_memory(&mut self, memory: &GuestMemory) {
        self.iotlb.use_memory(memory.clone());
        self.tables.take();
    }

    /// Frees the retired memory that no worker uses.
    pub(super) fn free_retired(&mut self) {
        // The check orders the workers' last accesses before it.
        self.retired.retain_mut(|memory| Arc::get_mut(memory).is_none());
    }
}

impl Session {
    pub(crate) fn has_iommu(&self) -> bool {
        self.iommu.is_some()
    }

    /// Finds out whether the front end translates the driver's addresses: it took `VIRTIO_F_ACCESS_PLATFORM`, which QEMU
    /// takes back where there is nothing to translate, and it can be asked.
    pub(super) fn find_iommu(&mut self) -> Result<(), Refusal> {
        let channel = self.requests.as_ref().filter(|_| self.features.access_platform());
        if channel.is_some() == self.iommu.is_some() {
            return Ok(());
        }
        self.iommu = match channel {
            Some(channel) => {
                let kind = Kind::of(channel.as_fd());
                match kind.map_err(|error| Refusal::Descriptor { what: "channel", error })? {
                    Kind::UnixStream => {}
                    other => return Err(Refusal::NoChannel(other)),
                }
                let asks = Arc::new(Asks::new(Arc::clone(&self.wake)));
                self.port.set_asks(&asks);
                let iotlb = Iotlb::new(self.memory.clone());
                Some(Iommu { iotlb, tables: OnceCell::new(), asks, retired: Vec::new() })
            }
            None => None,
        };
        (0..self.vrings.len()).try_for_each(|ring| self.rebuild(ring))
    }

    /// The access of the device to the buffers of a vring.
    fn access(ring: usize) -> Access {
        if ring.is_multiple_of(2) { Access::Write } else { Access::Read }
    }

    /// The memory by the addresses of the virtual IOMMU, for the buffers of vring `index`.
    pub(super) fn seen_by(&self, index: usize) -> Option<GuestMemory> {
        let Iommu { iotlb, tables, asks, .. } = self.iommu.as_ref()?;
        Some(tables.get_or_init(|| iotlb.tables()).of(Self::access(index), asks))
    }

    /// Keeps memory that a ring used until no worker uses it.
    pub(super) fn retire(&mut self, memory: Arc<GuestMemory>) {
        if let Some(iommu) = &mut self.iommu {
            iommu.free_retired();
            iommu.retired.push(memory);
        }
    }

    /// The areas of vring `index`: their addresses as the front end stated them, their lengths, and the accesses of the
    /// device; none if nothing was stated.
    fn areas_of(&self, index: usize) -> Option<[(u64, u64, &'static [Access]); 3]> {
        let vring = &self.vrings[index];
        let (Addresses { descriptor, driver, device }, size) = (vring.addresses?, vring.size?);
        let both: &[_] = &[Access::Read, Access::Write];
        // The device of a packed ring also writes into the descriptors.
        let of_descriptors = if self.features.packed() { both } else { &[Access::Read] };
        let sizes = self.features.ring(size).area_sizes();
        let [descriptors, drivers, devices] = sizes.map(|len| len as u64);
        Some([
            (descriptor, descriptors, of_descriptors),
            (driver, drivers, &[Access::Read]),
            (device, devices, both),
        ])
    }

    /// The place of vring `index` in the front end's process; `None` if a part of it is not known yet, which is then
    /// asked for.
    pub(super) fn place_of(&self, index: usize) -> Result<Option<Place>, Refusal> {
        let stated = self.vrings[index].addresses;
        let Some(Iommu { iotlb, asks, .. }) = &self.iommu else {
            return Ok(stated.map(Place::stated));
        };
        let Some(areas) = self.areas_of(index) else { return Ok(None) };
        let in_pieces = |error| Refusal::RingInPieces { ring: index, error };
        let mut pieces: [Vec<_>; 3] = Default::default();
        let mut firsts = [None; 3];
        for ((pieces, first), (iova, size, access)) in pieces.iter_mut().zip(&mut firsts).zip(areas)
        {
            let ask = |iova| access.iter().for_each(|access| asks.ask(iova, *access));
            *first = match iotlb.look_up(iova, size, access, ask) {
                Lookup::At(found) => {
                    *pieces = found;
                    pieces.first().map(|piece| piece.address)
                }
                Lookup::Scattered => return Err(in_pieces(JoinError::TooMany)),
                Lookup::Beyond => return Err(IotlbError::Wraps { iova, size }.into()),
                Lookup::Missing => None,
            }
        }
        let [Some(descriptor), Some(driver), Some(device)] = firsts else { return Ok(None) };
        Ok(Some(Place { at: Addresses { descriptor, driver, device }, pieces }))
    }

    /// The memory with the ring at `place`, in which each area is in one piece.
    pub(super) fn memory_at(&self, index: usize, place: &Place) -> Result<GuestMemory, Refusal> {
        let joined = self.memory.joining(&place.pieces);
        joined.map_err(|error| Refusal::RingInPieces { ring: index, error })
    }

    /// The guest addresses of a ring's descriptors and device area.
    pub(super) fn guest_places(&self, place: &Place, config: &RingConfig) -> [Vec<Piece>; 2] {
        let Addresses { descriptor, device, .. } = place.at;
        let [descriptors, _, devices] = config.area_sizes();
        [(0, descriptor, descriptors), (2, device, devices)].map(|(area, address, len)| {
            let stated = [Piece { address, len: len as u64 }];
            let area = if self.has_iommu() { &place.pieces[area][..] } else { &stated };
            self.memory.guest_pieces(area)
        })
    }

    /// Takes apart a ring that was set aside, for memory or an area that is another by now.
    pub(super) fn drop_aside(&mut self, index: usize) {
        if let Some(ring) = self.vrings[index].late.as_mut().and_then(Option::take) {
            // Frames that wait are those of another ring.
            drop(self.port.stop_ring(index));
            self.vrings[index].base = Some(ring.device.base());
            self.wait_for_place(index);
        }
    }

    /// Serves a vring once its place is known.
    pub(super) fn wait_for_place(&mut self, index: usize) {
        self.vrings[index].late = Some(None);
        self.port.with_queue(index, |queue| queue.late = Some(Late::First));
    }

    /// Serves a vring whose place is known by now. It is started in any case: its kick may have come before.
    pub(super) fn serve_late(&mut self, index: usize) -> Result<(), Refusal> {
        if self.vrings[index].late.is_none() || self.vrings[index].watch.is_none() {
            return Ok(());
        }
        let Some(place) = self.place_of(index)? else { return Ok(()) };
        if self.vrings[index].place.as_ref() != Some(&place) {
            self.drop_aside(index);
        }
        match self.vrings[index].late.take().flatten() {
            Some(mut ring) => {
                let logs = self.logs(index, ring.device.config(), &place)?;
                let memory = self.seen_by(index).unwrap_or_else(|| self.memory.clone());
                let memory = memory.joined_as(&ring.memory);
                ring.memory = Arc::new(memory);
                ring.start();
                drop(ring.set_logs(logs));
                self.port.with_queue(index, |queue| {
                    (queue.ring, queue.late) = (Some(*ring), None);
                });
            }
            None => {
                self.put_in_service(index, place, true)?;
            }
        }
        self.nudge(index);
        Ok(())
    }

    /// `IOTLB_MSG`.
    pub(super) fn take_translation(&mut self, message: &IotlbMsg) -> Result<(), Refusal> {
        let IotlbMsg { iova, size, user, permission, kind } = *message;
        let Some(iommu) = &mut self.iommu else { return Err(Refusal::NoIommu) };
        match kind {
            IotlbMsg::UPDATE => {
                let update = Update { iova, size, user, permission };
                let updated = iommu.iotlb.update(update)?;
                if updated != Updated::Same {
                    // The sum was checked.
                    self.use_translations(iova, iova + (size - 1), updated == Updated::Replaced)?;
                }
                self.look_again(&update)
            }
            IotlbMsg::INVALIDATE => {
                let last = match (iova, size) {
                    // These two values mean all addresses: 2^64 bytes.
                    (0, 0) => Some(u64::MAX),
                    (_, 0) => return Err(IotlbError::Empty { iova }.into()),
                    _ => iova.checked_add(size - 1),
                };
                let last = last.ok_or(IotlbError::Wraps { iova, size })?;
                iommu.iotlb.remove(iova, last);
                self.use_translations(iova, last, true)
            }
            other => Err(IotlbError::Type(other).into()),
        }
    }

    /// Uses the present translations in all rings. If some from `iova` to `last` have `ended`, no
    /// worker uses them any more when the call returns.
    fn use_translations(&mut self, iova: u64, last: u64, ended: bool) -> Result<(), Refusal> {
        if let Some(iommu) = &mut self.iommu {
            iommu.tables.take();
        }
        if ended {
            (0..self.vrings.len()).try_for_each(|ring| self.set_aside(ring, iova, last))?;
        }
        for index in 0..self.vrings.len() {
            if self.vrings[index].watch.is_none() || self.vrings[index].late.is_some() {
                continue;
            }
            let Some(memory) = self.seen_by(index) else { continue };
            let old = self.port.with_queue(index, |queue| {
                let ring = queue.ring.as_mut()?;
                ring.holds.set(Holds::TRANSLATION, false);
                let memory = memory.joined_as(&ring.memory);
                Some(std::mem::replace(&mut ring.memory, Arc::new(memory)))
            });
            old.flatten().into_iter().for_each(|old| self.retire(old));
        }
        if ended { self.wait_for_workers() } else { Ok(()) }
    }

    /// Takes vring `index` out of service if a part of it lies from `iova` to `last`, and is no longer where it was.
    fn set_aside(&mut self, index: usize, iova: u64, last: u64) -> Result<(), Refusal> {
        let vring = &self.vrings[index];
        let lies = |(at, len, _): (u64, u64, _)| at <= last && at.saturating_add(len - 1) >= iova;
        let touched = self.areas_of(index).is_some_and(|areas| areas.into_iter().any(lies));
        if vring.watch.is_none() || vring.late.is_some() || !touched {
            return Ok(());
        }
        if self.place_of(index)? == vring.place {
            return Ok(());
        }
        let aside = self.port.set_aside(index).map(|mut ring| {
            // Its second mappings stay, for the case that it comes back.
            let rest = GuestMemory::default().joined_as(&ring.memory);
            let memory = std::mem::replace(&mut ring.memory, Arc::new(rest));
            self.retire(memory);
            Box::new(ring)
        });
        self.vrings[index].late = Some(aside);
        Ok(())
    }

    /// Waits until no worker uses memory by earlier tables. Only this session's thread waits.
    fn wait_for_workers(&mut self) -> Result<(), Refusal> {
        let Some(iommu) = &mut self.iommu else { return Ok(()) };
        let end = Instant::now() + WAIT;
        loop {
            iommu.free_retired();
            if iommu.retired.is_empty() {
                return Ok(());
            }
            if Instant::now() > end {
                return Err(Refusal::StillInUse);
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Has rings served that have waited for `update`, or whose place it has changed.
    fn look_again(&mut self, update: &Update) -> Result<(), Refusal> {
        let Some(iommu) = &mut self.iommu else { return Ok(()) };
        iommu.free_retired();
        let answers = iommu.asks.answer(update);
        for index in 0..self.vrings.len() {
            match self.vrings[index].late {
                Some(_) => self.serve_late(index)?,
                None if answers => self.nudge(index),
                None => {}
            }
        }
        Ok(())
    }

    /// Forgets all translations while no ring is in service.
    pub(super) fn forget_translations(&mut self) {
        if let Some(iommu) = &mut self.iommu {
            iommu.iotlb.clear();
            iommu.asks.clear();
            iommu.tables.take();
        }
    }

    /// Asks the front end for the translations that are missing, or will soon be.
    pub(crate) fn ask(&self) -> Result<(), StopReason> {
        let (Some(iommu), Some(channel)) = (&self.iommu, &self.requests) else { return Ok(()) };
        for ring in (0..self.vrings.len()).step_by(2) {
            self.port.with_queue(ring, rx::look_ahead);
        }
        let send = |page, access| {
            let sent = ask_for(channel, page, 1, access as u8).map_err(StopReason::Channel)?;
            Ok(sent.then_some(()))
        };
        iommu.asks.send(Instant::now(), send)
    }

    /// The time until the front end is to be asked again; `None` without a question.
    pub(crate) fn asks_in(&self) -> Option<Duration> {
        Some(self.iommu.as_ref()?.asks.due_in(Instant::now())?.max(RETRY))
    }
}
