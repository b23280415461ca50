//! Receive queues: from a burst into a guest's ring, with the one copy, and the guest's call.

use std::mem::take;

use weir_engine::burst::Burst;
use weir_engine::egress::{Emitted, Packet, Put, emit};
use weir_engine::stats::Times;
use weir_engine::{Delivered, DropReason, Outgoing, PortCounters, clock};
use weir_guestmem::{GuestMemory, Slice, recycle};
use weir_limits::{PARKED_NS_MAX, RX_MERGE_MAX};
use weir_policy::moderation::{Batch, Delivery, Moderation, Verdict};
use weir_ring::{Chain, RingError, SplitDevice};

use crate::error::StopReason;
use crate::features::Features;
use crate::queue::{Queue, Ring};

/// A receive queue.
#[derive(Debug)]
pub(crate) struct RxQueue {
    pub(crate) queue: Queue,
    moderation: Box<dyn Moderation>,
    /// When the earliest frame arrived that the guest has not been told of.
    pending_since: Option<u64>,
    /// The deadline that the policy gave.
    hold_until: Option<u64>,
    /// Arrival of a batch's earliest frame to the guest being told, per batch.
    pub(crate) hold: Times,
    /// Since when the guest has offered too few buffers.
    full_since: Option<u64>,
    /// Room of the ring in use; kept between bursts.
    pieces: Vec<Slice<'static>>,
    chains: Vec<Chain>,
}

impl RxQueue {
    pub(crate) fn new(moderation: Box<dyn Moderation>) -> Self {
        Self {
            queue: Queue::default(),
            moderation,
            pending_since: None,
            hold_until: None,
            hold: Times::default(),
            full_since: None,
            pieces: Vec::new(),
            chains: Vec::new(),
        }
    }

    /// The guest can receive.
    pub(crate) fn is_ready(&self) -> bool {
        self.queue.enabled && self.queue.ring.as_ref().is_some_and(|ring| ring.started)
    }

    /// See [`weir_engine::Port::deliver`]. `index` is the queue pair.
    pub(crate) fn deliver(
        &mut self,
        index: usize,
        burst: &Burst<'_>,
        frames: &[Outgoing],
        now_ns: u64,
        counters: &PortCounters,
    ) -> Result<Delivered, StopReason> {
        if !self.is_ready() {
            counters.dropped(DropReason::RxNotReady, frames.len() as u64);
            return Ok(Delivered {
                frames: frames.len(),
                ..Delivered::default()
            });
        }
        let Some(ring) = self.queue.ring.as_mut() else {
            return Ok(Delivered::default());
        };
        let caps = ring.features.receive_caps();
        let mut writer = Writer {
            ring,
            pieces: take(&mut self.pieces),
            chains: take(&mut self.chains),
            counters,
            broken: None,
            packets: 0,
            bytes: 0,
        };
        writer.ring.device.suppress_kicks();
        let mut done = 0;
        let mut delivered_frames = 0;
        let mut arrived_ns = u64::MAX;
        for outgoing in frames {
            let frame = &burst.frames[usize::from(outgoing.frame)];
            let before = writer.packets;
            let emitted = emit(burst, frame, outgoing.tag, caps, |packet| {
                writer.put(&packet)
            });
            match emitted {
                Ok(Emitted::Done { lost }) => {
                    counters.dropped(DropReason::RxRingFull, lost.into());
                }
                Ok(Emitted::Full) => break,
                Err(reason) => counters.dropped(reason, 1),
            }
            done += 1;
            if writer.packets > before {
                delivered_frames += 1;
                arrived_ns = arrived_ns.min(frame.arrived_ns);
            }
        }
        let Writer {
            pieces,
            chains,
            broken,
            bytes,
            ring,
            ..
        } = writer;
        let gone = ring.memory_gone();
        (self.pieces, self.chains) = (pieces, chains);
        if let Some(error) = broken {
            return Err(StopReason::Ring {
                ring: 2 * index,
                error,
            });
        }
        if gone {
            return Err(StopReason::MemoryTruncated);
        }

        let worth_waiting = self.note_full(done < frames.len(), delivered_frames > 0, now_ns);
        counters.rx[index].frames.add(delivered_frames.into());
        counters.rx[index].bytes.add(bytes);
        let batch = Batch {
            frames: delivered_frames,
            bytes,
            arrived_ns,
        };
        let hold_until = self.publish(index, batch, counters);
        Ok(Delivered {
            frames: done,
            worth_waiting,
            hold_until,
        })
    }

    /// Whether frames may wait for this receiver: not when it has taken nothing for so long that
    /// they would be dropped anyway.
    fn note_full(&mut self, full: bool, progress: bool, now_ns: u64) -> bool {
        if progress || !full {
            self.full_since = None;
        }
        if !full {
            return true;
        }
        let since = *self.full_since.get_or_insert(now_ns);
        now_ns.saturating_sub(since) < PARKED_NS_MAX
    }

    /// One index write for the burst, and the policy's verdict on the call.
    fn publish(&mut self, index: usize, batch: Batch, counters: &PortCounters) -> Option<u64> {
        let ring = self.queue.ring.as_mut()?;
        if ring.device.publish() == 0 || batch.frames == 0 {
            return None;
        }
        let pending = self.pending_since.get_or_insert(batch.arrived_ns);
        *pending = batch.arrived_ns.min(*pending);
        let verdict = self.moderation.published(clock::now_ns(), batch);
        self.act(index, verdict, counters)
    }

    fn act(&mut self, index: usize, verdict: Verdict, counters: &PortCounters) -> Option<u64> {
        match verdict {
            Verdict::Call => {
                self.announce(index, counters);
                None
            }
            Verdict::HoldUntil(until_ns) => {
                self.hold_until = Some(until_ns);
                Some(until_ns)
            }
        }
    }

    /// Tells the guest of everything published.
    fn announce(&mut self, index: usize, counters: &PortCounters) {
        let called = self.queue.call_if_wanted();
        let now_ns = clock::now_ns();
        let how = if called == Some(true) {
            counters.rx[index].calls.add(1);
            Delivery::Called
        } else {
            counters.rx[index].calls_suppressed.add(1);
            Delivery::Suppressed
        };
        if let Some(since) = self.pending_since.take() {
            self.hold.record(now_ns.saturating_sub(since));
        }
        self.hold_until = None;
        self.moderation.delivered(now_ns, how);
    }

    /// See [`weir_engine::Port::expired`].
    pub(crate) fn expired(
        &mut self,
        index: usize,
        now_ns: u64,
        counters: &PortCounters,
    ) -> Option<u64> {
        let until = self.hold_until?;
        if until > now_ns {
            // Another worker's delivery moved the deadline.
            return Some(until);
        }
        let verdict = self.moderation.expired(now_ns);
        self.act(index, verdict, counters)
    }

    /// Gives a held call now, before the ring stops or the policy changes.
    pub(crate) fn flush(&mut self, index: usize, counters: &PortCounters) {
        if self.pending_since.is_some() {
            self.announce(index, counters);
        }
    }

    /// The ring has stopped: nothing is pending any more.
    pub(crate) fn reset(&mut self) {
        self.pending_since = None;
        self.hold_until = None;
        self.full_since = None;
        self.moderation.reset();
    }

    /// Replaces the policy; gives back the old one.
    pub(crate) fn set_moderation(
        &mut self,
        index: usize,
        moderation: Box<dyn Moderation>,
        counters: &PortCounters,
    ) -> Box<dyn Moderation> {
        self.flush(index, counters);
        std::mem::replace(&mut self.moderation, moderation)
    }
}

/// Writes packets into a ring, one after the other.
struct Writer<'r> {
    ring: &'r mut Ring,
    pieces: Vec<Slice<'static>>,
    chains: Vec<Chain>,
    counters: &'r PortCounters,
    broken: Option<RingError>,
    packets: u32,
    bytes: u64,
}

impl Writer<'_> {
    fn put(&mut self, packet: &Packet<'_, '_>) -> Put {
        let Ring {
            device,
            memory,
            features,
            ..
        } = &mut *self.ring;
        let mut buffers = recycle(take(&mut self.pieces));
        let put = place(
            device,
            memory,
            *features,
            &mut self.chains,
            &mut buffers,
            packet,
        );
        self.pieces = recycle(buffers);
        self.chains.clear();
        match put {
            Ok(Put::Done) => {
                self.packets += 1;
                self.bytes += packet.len() as u64;
                Put::Done
            }
            Ok(Put::Refused) => {
                self.counters.dropped(DropReason::RxBufferTooSmall, 1);
                Put::Refused
            }
            Ok(Put::Full) => Put::Full,
            Err(error) => {
                self.broken = Some(error);
                Put::Full
            }
        }
    }
}

/// Takes as many chains as the packet needs, fills them and completes them. Nothing is taken
/// unless the whole packet fits.
fn place<'m>(
    device: &mut SplitDevice,
    memory: &'m GuestMemory,
    features: Features,
    chains: &mut Vec<Chain>,
    buffers: &mut Vec<Slice<'m>>,
    packet: &Packet<'_, '_>,
) -> Result<Put, RingError> {
    let vnet_len = features.vnet_len();
    let need = vnet_len + packet.len();
    let chains_max = if features.mergeable() {
        RX_MERGE_MAX.min(device.config().size.into())
    } else {
        1
    };
    let mut room = 0u64;
    while room < need as u64 {
        if chains.len() == chains_max {
            device.give_back(chains.len() as u16);
            return Ok(Put::Refused);
        }
        if let Some(chain) = device.take_writable(memory, buffers)? {
            room += u64::from(chain.len);
            chains.push(chain);
        } else if device.refill()? == 0 {
            device.give_back(chains.len() as u16);
            return Ok(Put::Full);
        }
    }

    // virtio 1.2 §5.1.6.4: num_buffers is the number of chains.
    let vnet = packet.offload.to_vnet(chains.len() as u16).to_bytes();
    let mut cursor = Cursor {
        pieces: buffers,
        skip: 0,
    };
    cursor.write(&vnet[..vnet_len]);
    cursor.write(packet.head.as_slice());
    for slice in packet.body() {
        cursor.copy(slice);
    }
    let mut left = need as u32; // a packet is shorter than 2^17
    for chain in chains {
        let written = chain.len.min(left);
        device.complete(chain.head, written);
        left -= written;
    }
    Ok(Put::Done)
}

/// A position in a list of slices.
struct Cursor<'p, 'm> {
    pieces: &'p [Slice<'m>],
    skip: usize,
}

impl Cursor<'_, '_> {
    #[inline]
    fn advance(&mut self, by: usize) {
        self.skip += by;
        if self
            .pieces
            .first()
            .is_some_and(|piece| piece.len() == self.skip)
        {
            self.pieces = &self.pieces[1..];
            self.skip = 0;
        }
    }

    #[inline]
    fn write(&mut self, mut bytes: &[u8]) {
        while let (Some(piece), false) = (self.pieces.first(), bytes.is_empty()) {
            let written = piece.skip(self.skip).write(bytes);
            bytes = &bytes[written..];
            self.advance(written);
        }
    }

    /// The copy from the sender's memory into the receiver's.
    #[inline]
    fn copy(&mut self, mut from: Slice<'_>) {
        while let (Some(piece), false) = (self.pieces.first(), from.is_empty()) {
            let copied = from.copy_to(&piece.skip(self.skip));
            from = from.skip(copied);
            self.advance(copied);
        }
    }
}
