//! weir's own frames to guests: a queue of the port's beside its sockets. Answers are pushed there, and a worker takes
//! them as it takes frames from other hosts. So an answer goes the way of any frame: into its network and no other,
//! through the receiver's filters and rates, and never to another host.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, MutexGuard};

use weir_engine::burst::Burst;
use weir_engine::clock;
use weir_fabric::Vid;
use weir_limits::{BURST_MAX, OVERLAY_ANSWERS_MAX};
use weir_port_tap::{DeviceFrames, Service};
use weir_wire::{Ethernet, Head, Mac, Tci, TooBig};

use crate::port::VxlanPort;

/// Answers on their way.
#[derive(Default)]
pub(crate) struct Answers {
    waiting: Mutex<VecDeque<(u16, Head)>>,
}

impl Answers {
    fn waiting(&self) -> MutexGuard<'_, VecDeque<(u16, Head)>> {
        self.waiting.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Queues a frame for a network, and rings the bell if it is the first; `false` if too many wait.
    pub(crate) fn push(&self, network: u16, frame: &[u8], bell: BorrowedFd<'_>) -> bool {
        let mut waiting = self.waiting();
        if waiting.len() >= OVERLAY_ANSWERS_MAX {
            return false;
        }
        let is_first = waiting.is_empty();
        waiting.push_back((network, Head::copy_of(frame)));
        drop(waiting);
        if is_first {
            // Each write is an event, and it takes centuries to fill the counter.
            let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
        }
        true
    }
}

/// The source address of a message that a packet is too long, if the station beyond the overlay is not known. It is
/// locally administered, and belongs to no station.
const NOBODY: Mac = Mac([0x02, b'w', b'e', b'i', b'r', 0]);

impl VxlanPort {
    /// Tells the sender of the frame that begins with `head` that a packet may have `mtu` bytes.
    pub(crate) fn tell_mtu(&self, head: &[u8], number: u16, mtu: u16) {
        let now_ns = clock::now_ns();
        let networks = self.networks();
        let (Some(network), Some(vid), Ok(Ethernet { dst, .. })) =
            (networks.network(number), Vid::of_network(number), Ethernet::parse(head))
        else {
            return;
        };
        let is_away = self.fdb.lookup(vid, dst, clock::secs(now_ns)) == Some(self.id);
        let from = if is_away { dst } else { NOBODY };
        if let Some(told) = TooBig::to(head, mtu, from)
            && self.answer((number, network), told.as_slice(), now_ns)
        {
            self.counters.too_big_answered.add(1);
        }
    }
}

/// The queue from which the answers are taken. It keeps none: an answer for which its receiver has no room is lost.
pub(crate) struct AnswerQueue<'p> {
    pub(crate) service: &'p Service,
    pub(crate) index: usize,
    pub(crate) answers: &'p Answers,
}

impl DeviceFrames for AnswerQueue<'_> {
    type Places = ();

    const FROM_DEVICE: bool = false;
    const PARKED_MAX: usize = 0;

    fn queue(&self) -> (&Service, usize) {
        (self.service, self.index)
    }

    fn read<'m>(&'m self, (): &mut (), now_ns: u64, burst: &mut Burst<'m>) -> usize {
        let mut waiting = self.answers.waiting();
        let count = waiting.len().min(BURST_MAX);
        for (network, frame) in waiting.drain(..count) {
            // The network's number stands in place of a tag, as in the port's other frames.
            burst.add_own(frame.as_slice(), Some(Tci::from_bits(network)), now_ns);
        }
        count
    }

    fn read_again<'m>(&'m self, (): &mut (), _: u64, _: u64, _: &mut Burst<'m>) {}

    fn free(&self, (): &mut (), _: impl Iterator<Item = u64>) {}

    fn has_more(&self, (): &()) -> bool {
        !self.answers.waiting().is_empty()
    }
}
