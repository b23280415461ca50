//! Events of the epoll set for a worker (queues with work, receivers with room, and kicks in vain), and retries of
//! frames that wait for a receiver: when it has buffers, and when they have waited long enough.

use weir_fabric::PortId;

use super::{TxQueue, Worker, hand_over, is_of};
use crate::frames::port::{QueueRef, Side, Take};
use crate::lost::blocked;
use crate::switching::pair::Pair;
use crate::switching::switch::{Slot, slot};
use crate::threads::clock;
use crate::working::kicks::Kicks;
use crate::working::poller::Event;
use crate::working::run_queue::{Ready, Turn};
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
                // A kick for both rings comes from the kernel, which limits senders of needless kicks itself.
                let now_ns = *now_ns.get_or_insert_with(clock::now_ns);
                ignore(&self.shared, &mut self.kicks, slot, queue, now_ns);
            }
            match queue.side {
                // A kick can be read only once. The queue has a new worker, and the kick may have been meant for it.
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

impl Worker {
    /// Tries frames again whose receivers have buffers, and frames that have waited long enough.
    pub(super) fn retry_stalled(&mut self) {
        if self.handle.is_told() {
            self.handle.take_told(&mut self.retries);
        }
        if self.retries.is_empty() && self.stalls.is_empty() {
            return;
        }
        self.fresh_ns = None;
        let now_ns = clock::now_ns();
        // Retries that are noted meanwhile belong to the next round: other queues have their turn first.
        let mut retries = std::mem::take(&mut self.retries);
        let mut queues = std::mem::take(&mut self.retried);
        for retry in retries.drain(..) {
            match retry {
                Retry::Receiver(receiver) => {
                    self.stalls.take_waiting_for(receiver, &mut queues);
                    for queue in queues.drain(..) {
                        self.retry(queue, Some(receiver), now_ns);
                    }
                }
                Retry::Sender(queue) => self.retry(queue, None, now_ns),
                Retry::Fence(_) => {}
            }
        }
        self.stalls.take_due(now_ns, &mut queues);
        for queue in queues.drain(..) {
            self.retry(queue, None, now_ns);
        }
        retries.append(&mut self.retries);
        (self.retries, self.retried) = (retries, queues);
    }

    /// Tries frames of a queue again that wait for `receiver`, or for any.
    fn retry(&mut self, queue: TxQueue, receiver: Option<PortId>, now_ns: u64) {
        // All tries are in one loop: a receiver's kick in between would make the first frames be tried again in place
        // of the rest.
        let taken = loop {
            let what = Take::Parked(receiver);
            let taken = self.take(queue, what, Turn::Whole, now_ns, clock::now_ns());
            self.expire_holds_after_burst();
            if !taken.is_some_and(|taken| taken.parked_more) {
                break taken;
            }
        };
        match taken {
            // The queue has another worker, which must also handle its waiting frames.
            None => {
                self.stalls.note(queue, None);
                let ports = self.shared.ports.load();
                if let Some(slot) = slot(&ports, queue.port)
                    && let Some(worker) = slot.pairs.get(queue.queue).and_then(Pair::worker)
                {
                    self.shared.crew.tell(worker, Retry::Sender(queue));
                }
            }
            // There is room now: the sender may have frames that it had to keep.
            Some(taken) if taken.more && !self.ready.contains(queue) => {
                self.warm.remove(queue);
                self.ready.wake(Ready { queue, since_ns: now_ns });
            }
            Some(_) => {}
        }
    }
}
