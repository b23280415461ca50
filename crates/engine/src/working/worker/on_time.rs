//! Makes held calls on time, although timers are late and bursts take time.
//!
//! A call that is due while its worker sleeps or serves a burst would be late. So whenever a worker checks its held
//! calls, it looks ahead:
//!
//! | when | makes calls that are due within | `expire_holds`... |
//! |---|---|---|
//! | before it sleeps | `Lateness::lead_ns`: the lateness of a timer, and the work after it | `_before_sleep` |
//! | after a burst | the next burst, as long as the last (`lead_ns_max` of the law at most) | `_after_burst` |
//! | after a rest, with work | the next burst, or the work after a timer | `_after_rest` |
//! | after a rest, without | the next sleep | `_after_rest` |
//! | while it polls | the work after a timer | |
//!
//! Calls for transmitted frames are made when they are due: nobody waits for them.

use std::sync::atomic::Ordering;

use weir_policy::law::LAW;

use super::{Worker, charge_calls};
use crate::lost::blocked;
use crate::lost::cpu_loss;
use crate::lost::dear;
use crate::switching::switch::{Hold, Slot, slot};
use crate::threads::clock;
use crate::working::poller::Woken;

impl Worker {
    /// Before a sleep that begins at `now_ns`, makes the calls whose deadlines fall into it. Since that takes time,
    /// returns the new beginning of the sleep.
    pub(super) fn expire_holds_before_sleep(&mut self, now_ns: u64) -> u64 {
        let lead_ns = self.lateness.lead_ns();
        let Some(ended) = self.holds.ended(now_ns, lead_ns) else { return now_ns };
        self.end_holds(ended, now_ns, lead_ns);
        clock::now_ns()
    }

    /// After a burst, makes the calls whose deadlines have come, and those whose deadlines fall into the next burst,
    /// which may be as long.
    #[inline]
    pub(super) fn expire_holds_after_burst(&mut self) {
        let ahead_ns = self.burst_ns.min(LAW.lead_ns_max);
        self.expire_holds(self.served_ns(), ahead_ns);
    }

    /// After a rest without new frames, makes the calls whose deadlines fall into the next sleep. With new frames,
    /// makes only the calls whose deadlines fall into the next burst: the other calls also cover the new frames, for
    /// which the worker came back a little early.
    pub(super) fn expire_holds_after_rest(&mut self, now_ns: u64) {
        let ahead_ns = match self.ready.is_empty() {
            true => self.lateness.lead_ns(),
            false => self.burst_ns.min(LAW.lead_ns_max).max(self.lateness.work_ns()),
        };
        self.expire_holds(now_ns, ahead_ns);
    }

    /// Makes the calls that are due at `now_ns`. Those for received frames are due `lead_ns` earlier.
    #[inline]
    pub(super) fn expire_holds(&mut self, now_ns: u64, lead_ns: u64) {
        if let Some(ended) = self.holds.ended(now_ns, lead_ns) {
            self.end_holds(ended, now_ns, lead_ns);
        }
    }

    fn end_holds(&mut self, first: (Hold, u64), now_ns: u64, lead_ns: u64) {
        self.fresh_ns = None;
        let ports = self.shared.ports.load();
        let mut ended = Some(first);
        while let Some((hold, by_ns)) = ended {
            self.touched = Some(hold.port);
            let expire = |slot: &Slot| slot.port.expired(hold.queue, hold.side, by_ns);
            let next = slot(&ports, hold.port)
                .and_then(|slot| blocked::touching(hold.port, || expire(slot)));
            if let Some(until_ns) = next {
                self.holds.push(Hold { until_ns: until_ns.max(by_ns + 1), ..hold });
            }
            ended = self.holds.ended(now_ns, lead_ns);
        }
        if dear::any() {
            charge_calls(&mut self.ready, &ports);
        }
    }

    /// The end of the last burst (ns), without a reading of the clock, which may be a system call.
    #[inline]
    pub(super) fn served_ns(&self) -> u64 {
        self.taken_ns + self.burst_ns
    }

    /// The time at which a sleep must end (ns); `None` without a deadline.
    pub(super) fn wake_ns(&self) -> Option<u64> {
        let hold = self.holds.wake_ns(self.lateness.lead_ns());
        hold.into_iter().chain(self.waits_ns()).min()
    }

    /// The time at which the earliest wait other than a held call ends (ns). Frames wait for their receiver, queues
    /// for their rate, and ignored kicks for the worker's next look.
    pub(super) fn waits_ns(&self) -> Option<u64> {
        let all = [self.stalls.wake_ns(), self.ready.next_release_ns(), self.kicks.wake_ns()];
        all.into_iter().flatten().min()
    }

    /// Notes the end of a sleep that should have ended at `until_ns`. Another event may have ended it, and the worker
    /// can still be late.
    pub(super) fn note_lateness(&mut self, until_ns: u64, woken: Woken) {
        let Some(late_ns) = self.woken_ns.checked_sub(until_ns) else { return };
        let lead_ns = self.lateness.lead_ns();
        cpu_loss::overslept(until_ns + lead_ns, self.woken_ns);
        if matches!(woken, Woken::Timer | Woken::TimeOver) {
            self.lateness.fired(late_ns);
        }
        self.handle.late_timers.add(u64::from(late_ns > lead_ns));
        self.handle.timer_lead_ns.store(self.lateness.lead_ns(), Ordering::Relaxed);
    }
}
