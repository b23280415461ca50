//! Retries of frames that wait for a receiver: when it has buffers, and when they have waited long enough.

use weir_fabric::PortId;

use super::{TxQueue, Worker};
use crate::frames::port::Take;
use crate::switching::pair::Pair;
use crate::switching::switch::slot;
use crate::threads::clock;
use crate::working::run_queue::{Ready, Turn};
use crate::working::stalls::Retry;

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
