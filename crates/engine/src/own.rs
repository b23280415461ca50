//! Frames that weir itself sends, not one of its ports.
//!
//! Own frames take no worker's time: the calling thread delivers them, beside the forwarder. A guest's memory can keep
//! that thread waiting.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use weir_fabric::{EgressTag, PortId, Vid};
use weir_guestmem::HostBuffer;
use weir_wire::VnetHdr;

use crate::engine::Engine;
use crate::frames::burst::{Burst, Pieces, Scratch, TakenChain};
use crate::frames::drop_reason::DropReason;
use crate::frames::port::{Delivered, Outgoing, PANICKED, Side};
use crate::switching::switch::{Slot, slot};
use crate::threads::beat;
use crate::threads::clock;

/// Number of retries at a port without buffers, and the pause before each.
const TRIES: usize = 10;
const TRY_NS: u64 = 500_000;

/// The result of a delivery to a port.
pub(crate) struct Offered {
    /// Frames that found no room.
    pub left: Vec<Outgoing>,
    /// The time at which the port's call is due (ns), if it is held.
    pub held_until: Option<u64>,
}

/// Delivers frames to a port's first receive queue. A full queue that may offer buffers soon is tried again while
/// `waits` returns true.
pub(crate) fn deliver(
    slot: &Slot,
    burst: &Burst<'_>,
    mut left: Vec<Outgoing>,
    waits: impl Fn() -> bool,
) -> Offered {
    let mut held_until = None;
    for tried in 0..=TRIES {
        if left.is_empty() || tried > 0 && !waits() {
            break;
        }
        if tried > 0 {
            pause(TRY_NS);
        }
        let deliver = || slot.port.deliver(0, burst, &left);
        let done = catch_unwind(AssertUnwindSafe(deliver)).unwrap_or_else(|_| {
            slot.port.fail(PANICKED);
            slot.counters.dropped(DropReason::RxNotReady, left.len() as u64);
            Delivered { frames: left.len(), ..Delivered::default() }
        });
        held_until = done.hold_until.or(held_until);
        let mut place = 0;
        left.retain(|_| {
            let is_done = place < done.frames || done.ahead >> place & 1 != 0;
            place += 1;
            !is_done
        });
        if !done.worth_waiting {
            break;
        }
    }
    Offered { left, held_until }
}

/// Sleeps for `ns`, or until the thread is woken.
pub(crate) fn pause(ns: u64) {
    beat::wait(|| std::thread::park_timeout(Duration::from_nanos(ns)));
}

impl Engine {
    /// Sends a whole Ethernet frame without a tag out of a port, in a VLAN that the port carries, whatever the
    /// forwarding table says. Returns true if the port took it, after its receiver was called: the calling thread must
    /// be one that a guest can keep waiting.
    pub fn send_out_of(&self, port: PortId, vid: Vid, frame: &[u8]) -> bool {
        let config = self.shared.fabric.port_config(port);
        let Some(tag) = config.and_then(|config| config.vlan.egress(vid, None)) else {
            return false;
        };
        self.send_tagged(port, tag, frame)
    }

    /// As [`send_out_of`](Self::send_out_of), for a frame of the link itself, which is in no VLAN.
    pub fn send_on_link(&self, port: PortId, frame: &[u8]) -> bool {
        self.send_tagged(port, EgressTag::Untagged, frame)
    }

    fn send_tagged(&self, port: PortId, tag: EgressTag, frame: &[u8]) -> bool {
        let ports = self.shared.ports.load_full();
        let Some(slot) = slot(&ports, port).filter(|slot| slot.port.rx_queues() > 0) else {
            return false;
        };
        let len = VnetHdr::LEN + frame.len();
        let (buffer, mut scratch) = (HostBuffer::new(len), Scratch::default());
        let Some(room) = buffer.slice(0, len) else { return false };
        room.write(&[0; VnetHdr::LEN]);
        room.skip(VnetHdr::LEN).write(frame);
        let mut burst = scratch.lend();
        let chain = TakenChain { token: 0, len: len as u32, pieces: Pieces::Only(room) };
        let added = burst.add(chain, VnetHdr::LEN, clock::now_ns()).is_ok();
        let frames = if added { vec![Outgoing { frame: 0, tag }] } else { Vec::new() };
        let Offered { left, mut held_until } = deliver(slot, &burst, frames, || true);
        while let Some(until_ns) = held_until {
            pause(until_ns.saturating_sub(clock::now_ns()));
            held_until = slot.port.expired(0, Side::Rx, clock::now_ns().max(until_ns));
        }
        added && left.is_empty()
    }
}
