//! Several frames in one buffer, for a guest that unpacks them itself ([`weir_wire::container`]).
//!
//! A container is complete at the end of its burst. While the guest cannot see it and no worker copies into it, a later
//! burst adds its frames, so frames that come one by one share a container too. A frame that does not fit, or whose next
//! chain is not one buffer, goes alone, after the open container.

use weir_engine::egress::Packet;
use weir_engine::gro::Plain;
use weir_guestmem::Slice;
use weir_wire::container::{Builder, Place, RECORD_LEN};
use weir_wire::{Offload, VnetHdr};

use super::logged::mark_container;
use super::room::Reserved;
use super::unseen::{Open, Unseen};
use super::{FETCHED_AHEAD, Run, Writer};

impl<'m> Writer<'_, 'm> {
    /// Continues the container of an earlier burst, or takes a chain for a new one.
    #[inline(never)]
    pub(super) fn go_on(&mut self, unseen: Option<Unseen>) {
        self.container = unseen.and_then(|it| it.open(self.room.device, self.room.memory));
        self.room.reserve(usize::from(self.container.is_none()));
    }

    /// Completes the open container, and returns it as one to which later bursts may add. `unused` chains are given back
    /// before.
    #[inline(never)]
    pub(super) fn end_container(&mut self) -> Option<Unseen> {
        let last = self.close_container();
        last.and_then(|last| last.unseen(self.room.device, self.room.memory))
    }

    /// Packs frames that need no changes. Ends at the first that has to go alone, and writes nothing of it.
    // The function is not inlined, so the path of all other frames keeps its values in registers.
    #[inline(never)]
    pub(super) fn pack_plain(&mut self, frames: impl Iterator<Item = Plain<'m>>) -> Run {
        let mut run = Run { frames: 0, arrived_ns: u64::MAX };
        for plain in frames {
            let Plain { frame, .. } = plain;
            let head = frame.head.as_slice();
            let body_len = frame.len as usize - head.len();
            if !self.pack(head, &Offload::NONE, body_len, plain.body().iter().copied()) {
                break;
            }
            self.room.bytes += u64::from(frame.len);
            run.frames += 1;
            run.arrived_ns = run.arrived_ns.min(frame.arrived_ns);
        }
        run
    }

    /// Packs any packet.
    pub(super) fn pack_packet(&mut self, packet: &Packet<'_, 'm>) -> bool {
        let head = packet.head.as_slice();
        self.pack(head, packet.offload, packet.len() - head.len(), packet.body())
    }

    /// Packs `head` and the `body_len` bytes of `body`. Copies are put off, but not those into an earlier burst's
    /// container: the guest may see it as soon as the queue's lock is free.
    #[inline]
    fn pack(
        &mut self,
        head: &[u8],
        offload: &Offload,
        body_len: usize,
        body: impl Iterator<Item = Slice<'m>>,
    ) -> bool {
        let has_vnet = !offload.is_none();
        let Some((buffer, place)) = self.room_for(head.len() + body_len, has_vnet) else {
            return false;
        };
        let record = buffer.skip(place.record);
        record.write_array(place.header);
        if has_vnet {
            record.skip(RECORD_LEN).write_array(offload.to_vnet(1).to_bytes());
        }
        let mut to = buffer.skip(place.frame);
        to = to.skip(to.write(head));
        let now = self.container.as_ref().is_some_and(|open| open.again);
        for from in body {
            match now {
                true => _ = from.copy_to(&to),
                false => self.room.copies.push([from, to.first(from.len())]),
            }
            to = to.skip(from.len());
        }
        true
    }

    /// The place for a frame of `len` bytes: in the open container, or else in a new one.
    #[inline]
    fn room_for(&mut self, len: usize, has_vnet: bool) -> Option<(Slice<'m>, Place)> {
        if let Some(Open { buffer, builder, .. }) = &mut self.container
            && let Some(place) = builder.add(len, has_vnet)
        {
            return Some((*buffer, place));
        }
        self.close_container();
        let mut open = self.open_container()?;
        let place = open.builder.add(len, has_vnet)?;
        let buffer = open.buffer;
        self.container = Some(open);
        Some((buffer, place))
    }

    /// Opens a container in the next chain. `None` if there is no chain, an error that shows again when the frame goes
    /// alone, or if the chain is not one buffer.
    #[cold]
    fn open_container(&mut self) -> Option<Open<'m>> {
        if self.room.next == self.room.chains.len() {
            let found = self.room.reserve_more(1).ok()?;
            if !found
                && (self.room.device.refill().ok()? == 0 || !self.room.reserve_more(1).ok()?)
            {
                return None;
            }
        }
        let reserved @ Reserved { chain, .. } = *self.room.chains.get(self.room.next)?;
        let &[buffer] = reserved.pieces(&self.room.buffers) else { return None };
        // The container has no header but its own: a guest that knows containers has `num_buffers` in it.
        (self.vnet_len == VnetHdr::LEN).then(|| {
            buffer.prefetch_write(FETCHED_AHEAD);
            Open { token: chain.token, buffer, builder: Builder::new(buffer.len()), again: false }
        })
    }

    /// Completes the open container, if there is one, and returns it.
    #[inline(never)]
    pub(super) fn close_container(&mut self) -> Option<Open<'m>> {
        let open = self.container.take()?;
        let Open { token, buffer, builder, again } = &open;
        buffer.write_array(builder.vnet().to_bytes());
        if let Some(log) = self.room.log {
            mark_container(log, &buffer.first(builder.len()));
        }
        let written = builder.len() as u32; // at most CONTAINER_LEN_MAX
        if *again {
            self.room.device.amend_last(*token, written);
        } else {
            self.room.device.complete(*token, written);
            self.room.completed += 1;
            self.room.next += 1;
        }
        Some(open)
    }
}
