//! Events of the epoll set for a worker: queues with work, receivers with room, and kicks in vain.

use super::{Worker, hand_over, is_of};
use crate::frames::port::Side;
use crate::frames::queue_ref::QueueRef;
use crate::lost::blocked;
use crate::switching::switch::{Slot, slot};
use crate::threads::clock;
use crate::working::kicks::Kicks;
use crate::working::poller::Event;
use crate::working::run_queue::Ready;
use crate::working::shared::Shared;
use crate::working::stalls::Retry;

impl Worker {
    /// Handles kicked queues, which have work, or room. They were found at `now_ns`, if that is known.
    pub(super) fn take_up_kicks(&mut self, mut now_ns: Option<u64>) {
        self.rounds = 0;
        if self.kicked.is_empty() {
            return;
        }
        let ports = self.shared.ports.load();
        // Queues are served in order and one by one, so that those behind a queue that panics are not lost.
        self.kicked.reverse();
        while let Some(event) = self.kicked.pop() {
            let queue = event.queue();
            let Some(slot) = slot(&ports, queue.port) else {
                continue;
            };
            self.touched = Some(queue.port);
            match event {
                Event::Kick(_) => {
                    blocked::touching(queue.port, || slot.port.kicked(queue.queue, queue.side));
                }
                Event::Nudge(_) => self.handle.nudges.add(1),
            }
            let has_one_kick = slot.port.has_one_kick(queue.queue);
            let refilled = queue.side == Side::Rx || has_one_kick;
            if refilled && self.shared.refilled(slot, queue.port, self.index) {
                self.kicks.was_awaited(queue);
                self.retries.push(Retry::Receiver(queue.port));
            } else if matches!(event, Event::Kick(_)) && self.kicks.came(queue) && !has_one_kick {
                // If both rings share one kick, it comes from the kernel, which throttles senders of kicks in vain.
                let now_ns = *now_ns.get_or_insert_with(clock::now_ns);
                ignore(&self.shared, &mut self.kicks, slot, queue, now_ns);
            }
            match queue.side {
                // A kick that can be read only once may have been meant for its new worker.
                Side::Tx if !is_of(self.index, slot, queue) => {
                    hand_over(&self.shared, slot, queue);
                }
                Side::Tx if !self.ready.contains(queue) => {
                    self.warm.remove(queue);
                    self.ready
                        .wake(Ready { queue, since_ns: *now_ns.get_or_insert_with(clock::now_ns) });
                }
                Side::Tx | Side::Rx => {}
            }
        }
    }

    /// Enables events for kicks that were ignored for long enough.
    #[inline]
    pub(super) fn listen_again(&mut self) {
        if !self.kicks.is_empty() {
            self.listen_to_due();
        }
    }

    #[cold]
    fn listen_to_due(&mut self) {
        let now_ns = clock::now_ns();
        while let Some(queue) = self.kicks.due(now_ns) {
            if !self.shared.crew.listen(queue, true) {
                self.kicks.ignore(queue, now_ns);
            }
        }
    }
}

#[cold]
fn ignore(shared: &Shared, kicks: &mut Kicks, slot: &Slot, queue: QueueRef, now_ns: u64) {
    if shared.crew.listen(queue, false) {
        kicks.ignore(queue, now_ns);
        slot.counters.kick_pauses.add(1);
    }
}
