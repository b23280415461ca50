//! A worker without work polls, naps or sleeps, and wakes up.

use std::time::Duration;

use weir_limits::LATENCY_BUDGET_NS_MAX;
use weir_policy::law::LAW;
use weir_policy::pace::Rest;

use super::{Worker, hand_over, is_of};
use crate::frames::port::QueueRef;
use crate::frames::port::Side;
use crate::lost::blocked;
use crate::lost::cpu_loss;
use crate::switching::switch::{Slot, slot};
use crate::threads::beat::Place;
use crate::threads::clock;
use crate::working::crew::Realization;
use crate::working::crew::WokenFor;
use crate::working::poller::{Event, Wait, Woken};
use crate::working::run_queue::Ready;

/// Interval at which the allowed wait of frames is looked up (ns): there may be a thousand ports.
const WAITS_NS: u64 = 1_000_000;

impl Worker {
    /// Rests while there is nothing to do; returns when there may be work.
    pub(super) fn rest(&mut self) {
        self.beats.beat(Place::Looks, None);
        self.listen_again();
        // A receiver has got buffers since the last try.
        if self.handle.is_told() || !self.retries.is_empty() {
            self.poll();
            return;
        }
        let start_ns = clock::now_ns();
        self.looked_ns = start_ns;
        self.fresh_ns = None;
        if self.is_dedicated() && !self.warm.is_empty() {
            // A frame that was seen is served before anything else. Ports that can be polled only by a system call wait
            // until the other ports have had no work for a while, or for a number of rounds.
            if self.look_on(start_ns, LAW.margin_ns).is_none() {
                self.poll();
            }
            return;
        }
        let mut rest = self.how_to_rest(start_ns);
        if let Rest::Poll(window_ns) = rest {
            self.warm_successor(start_ns);
            let gap_ns = self.look_on(start_ns, window_ns);
            self.pace.polled(gap_ns);
            if gap_ns.is_some() {
                return;
            }
            rest = self.how_to_rest(start_ns);
        }
        let now_ns = self.expire_holds_before_sleep(self.looked_ns);
        if let Rest::Nap(nap_ns) = rest {
            self.nap(now_ns, nap_ns);
            self.look_at_warm(self.woken_ns.saturating_sub(nap_ns));
        } else {
            // Kicks are enabled, and the queues polled once more.
            self.look_at_warm(u64::MAX);
            if self.ready.is_empty() {
                self.sleep(now_ns);
            }
            if !self.ready.is_empty() {
                // If the last poll found the work, there was no sleep.
                self.pace.slept();
            }
        }
        if !self.holds.is_empty() {
            self.expire_holds_after_rest(self.fresh_ns.unwrap_or_else(clock::now_ns));
        }
    }

    /// True if it has its own core: it never sleeps while it has queues to poll.
    fn is_dedicated(&self) -> bool {
        self.shared.crew.options.realization == Realization::Dedicated
    }

    fn how_to_rest(&mut self, now_ns: u64) -> Rest {
        if self.warm.is_empty() {
            return Rest::Sleep;
        }
        let wait_ns_max = self.wait_ns_max(now_ns);
        let budget_ns = wait_ns_max.saturating_sub(self.lateness.lead_ns());
        let awaited = self.successors.awaited().map(|(memory, _)| memory);
        match self.pace.rest(now_ns, budget_ns, awaited) {
            // A receiver's kick, for which frames wait, is not seen while rings are polled.
            Rest::Poll(_) if !self.stalls.is_empty() => Rest::Sleep,
            rest => rest,
        }
    }

    /// Polls one more queue: the one that had work next when the present queue was last served. The
    /// answer to a request comes from another guest, so a poll of that guest's queue finds it.
    pub(super) fn warm_successor(&mut self, now_ns: u64) {
        let Some((_, queue)) = self.successors.awaited() else { return };
        if self.warm.contains(queue) || self.ready.contains(queue) {
            return;
        }
        let ports = self.shared.ports.load();
        if slot(&ports, queue.port).is_some_and(|slot| is_of(self.index, slot, queue)) {
            drop(ports);
            self.ready.wake(Ready { queue, since_ns: now_ns });
            self.serve_next();
        }
    }

    /// The shortest time (ns) for which a possible receiver lets frames wait if they arrive while
    /// this worker naps.
    pub(crate) fn wait_ns_max(&mut self, now_ns: u64) -> u64 {
        let (mut wait_ns_max, looked_up_ns) = self.wait_ns_max;
        if now_ns.saturating_sub(looked_up_ns) >= WAITS_NS {
            let ports = self.shared.ports.load();
            let receivers = ports.iter().flatten().filter(|slot| slot.port.rx_queues() > 0);
            let waits = receivers.map(|slot| slot.port.wait_ns_max());
            wait_ns_max = waits.min().unwrap_or(LATENCY_BUDGET_NS_MAX);
            self.wait_ns_max = (wait_ns_max, now_ns);
        }
        wait_ns_max
    }

    /// Polls the warm queues until one has work, and returns the time until then from `start_ns` on (ns); `None` if
    /// none had any in `window_ns`. Makes held calls that are due meanwhile.
    pub(super) fn look_on(&mut self, start_ns: u64, window_ns: u64) -> Option<u64> {
        loop {
            self.look_at_warm(0);
            let now_ns = clock::now_ns();
            cpu_loss::look(now_ns);
            self.ready.refresh(&self.shared.shares, || now_ns);
            if !self.ready.is_empty() {
                self.fresh_ns = Some(now_ns);
                return Some(now_ns.saturating_sub(start_ns));
            }
            self.looked_ns = now_ns;
            if now_ns >= start_ns + window_ns || self.is_stopping() {
                return None;
            }
            self.expire_holds(now_ns, self.lateness.work_ns());
            if self.is_dedicated() {
                self.pause.wait();
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// Polls each warm queue once a round; a queue without work for a while gets its kicks enabled.
    pub(super) fn look_at_warm_after_round(&mut self) {
        let before_ns = self.taken_ns;
        let armed_ns = match self.is_dedicated() {
            true => 0,
            false => self.served_ns().saturating_sub(LAW.warm_ns),
        };
        self.look_at_warm(armed_ns);
        self.looked_ns = before_ns;
    }

    /// Polls every warm queue. A queue with work becomes ready. A queue without work since `armed_ns` or before gets
    /// its kicks enabled and is polled once more. An `armed_ns` of 0 selects no queue, and [`u64::MAX`] selects all.
    fn look_at_warm(&mut self, armed_ns: u64) {
        if self.warm.is_empty() {
            return;
        }
        let ports = self.shared.ports.load();
        let mut warm = std::mem::take(&mut self.warm);
        warm.retain(|queue, since_ns| {
            let Some(slot) = slot(&ports, queue.port) else { return false };
            self.touched = Some(queue.port);
            if !is_of(self.index, slot, queue) {
                hand_over(&self.shared, slot, queue);
                return false;
            }
            let peek = || blocked::touching(queue.port, || slot.port.peek_tx(queue.queue));
            let work = if armed_ns < u64::MAX && peek() {
                true
            } else if since_ns > armed_ns {
                return true;
            } else {
                blocked::touching(queue.port, || slot.port.arm_tx(queue.queue))
            };
            if work {
                self.ready.wake(Ready { queue, since_ns: self.looked_ns.max(since_ns) });
            }
            false
        });
        self.warm = warm;
    }

    /// Sleeps from `now_ns` until an event, or until shortly before the next deadline.
    fn sleep(&mut self, now_ns: u64) {
        let wake_ns = self.wake_ns();
        if let Some(wake_ns) = wake_ns {
            // A timer that fires too early costs a wake-up, and setting it again costs about as much.
            let set = self.timer_ns.is_some_and(|at_ns| now_ns < at_ns && at_ns <= wake_ns);
            if !set {
                let handle = &self.handle;
                if wake_ns <= now_ns || handle.poller.set_timer(wake_ns).is_err() {
                    self.poll();
                    return;
                }
                self.timer_ns = Some(wake_ns);
            }
        }
        let woken = self.wait(now_ns, Wait::ForEvents);
        // A timer that is left from before has no purpose any more.
        if let Some(at_ns) = self.timer_ns.filter(|_| wake_ns.is_some()) {
            self.note_lateness(at_ns, woken);
        }
    }

    /// Sleeps from `now_ns` for `nap_ns`, or until shortly before the next deadline.
    fn nap(&mut self, now_ns: u64, nap_ns: u64) {
        let until_ns = self.wake_ns().unwrap_or(u64::MAX);
        let until_ns = until_ns.clamp(now_ns, now_ns.saturating_add(nap_ns));
        let woken = self.wait(now_ns, Wait::For(Duration::from_nanos(until_ns - now_ns)));
        self.note_lateness(until_ns, woken);
    }

    /// Polls the epoll set.
    pub(super) fn poll(&mut self) {
        self.listen_again();
        self.handle.poller.wait(&mut self.events, Wait::Look, &mut self.kicked);
        self.take_up_kicks(None);
    }

    pub(super) fn wait(&mut self, start_ns: u64, how_long: Wait) -> Woken {
        let handle = &self.handle;
        self.beats.beat(Place::Asleep, None);
        let woken = handle.poller.wait(&mut self.events, how_long, &mut self.kicked);
        self.beats.beat(Place::Looks, None);
        self.woken_ns = clock::now_ns();
        let woken_for = self.woken_for(woken);
        self.lateness.took(self.burst_ns);
        self.fresh_ns = Some(self.woken_ns);
        cpu_loss::slept(start_ns, self.woken_ns);
        handle.woken_for[woken_for as usize].add(1);
        self.shared.activity.worker_woke();
        self.take_up_kicks(self.fresh_ns);
        woken
    }

    /// The cause of the wake-up.
    fn woken_for(&self, woken: Woken) -> WokenFor {
        match (self.kicked.first(), woken) {
            (Some(Event::Nudge(_)), _) | (None, Woken::Event | Woken::Interrupted) => {
                WokenFor::Told
            }
            (Some(Event::Kick(QueueRef { side: Side::Rx, .. })), _) => WokenFor::Buffers,
            (Some(Event::Kick(queue)), _) => {
                let ports = self.shared.ports.load();
                let is_uplink = |slot: &Slot| slot.port.is_uplink();
                match slot(&ports, queue.port).is_some_and(is_uplink) {
                    true => WokenFor::Uplink,
                    false => WokenFor::Kick,
                }
            }
            (None, Woken::TimeOver) => WokenFor::Nap,
            (None, Woken::Timer) => match self.holds.due(self.woken_ns, self.lateness.lead_ns()) {
                Some(Side::Rx) => WokenFor::ReceivedHold,
                Some(Side::Tx) => WokenFor::SentHold,
                None if self.waits_ns().is_some_and(|until_ns| until_ns <= self.woken_ns) => {
                    WokenFor::Waited
                }
                None => WokenFor::Nothing,
            },
        }
    }
}
