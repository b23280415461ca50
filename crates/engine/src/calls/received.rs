//! The times at which a guest is notified of received frames.
//!
//! Frames can wait for their call (`weir_policy::moderation`), visible to the guest or, if the policy withholds them,
//! invisible. Two events end the wait whatever the policy decides, so that holding costs time but never frames: the
//! guest has too few buffers for a frame, or half of its ring waits.

use std::mem::take;
use std::sync::{Arc, OnceLock};

use weir_limits::PARKED_NS_MAX;
use weir_policy::moderation::{
    Answers, Batch, Decision, Delivery, GuestPoll, Kind, Moderation, Received, Total, Verdict,
};

use super::held::{HeldCall, HeldTimes};
use super::{CallPolicy, ReceiveRing};
use crate::frames::stats::PortCounters;
use crate::threads::clock;
use crate::threads::stages::{self, Stage};

/// The calls of a receive queue. `index` is always the queue's.
#[derive(Debug)]
pub struct ReceiveCalls {
    moderation: Box<dyn Moderation>,
    /// The policy's own answer: see [`Moderation::withholds`].
    withholds: bool,
    /// Frames of which the guest was not notified.
    hold: HeldCall,
    /// The time since which the guest has offered too few buffers.
    full_since: Option<u64>,
    /// The time of the queue's last call (ns).
    called_ns: Option<u64>,
    answers: Answers,
    /// The guest polls, but has not suppressed calls.
    asks_and_polls: bool,
}

impl ReceiveCalls {
    /// Calls of a queue in which nothing is held.
    pub fn new(calls: &CallPolicy) -> Self {
        let moderation = calls.build();
        Self {
            withholds: moderation.withholds(),
            moderation,
            hold: HeldCall::new(calls),
            full_since: None,
            called_ns: None,
            answers: Answers::default(),
            asks_and_polls: false,
        }
    }

    /// True if held frames are invisible to the guest.
    #[inline]
    pub fn withholds(&self) -> bool {
        self.withholds
    }

    /// Notes whether frames were left over (`full`), and whether any were put in. Returns true if
    /// frames may wait for this receiver. It is false if the receiver has taken nothing for so long
    /// that they would be dropped anyway. The clock decides, not the time of their burst: a
    /// worker's delay is not the receiver's fault.
    #[inline]
    pub fn note_full(&mut self, full: bool, progress: bool) -> bool {
        if progress || !full {
            self.full_since = None;
        }
        !full || self.is_worth_waiting()
    }

    #[cold]
    fn is_worth_waiting(&mut self) -> bool {
        let now_ns = clock::now_ns();
        let since = *self.full_since.get_or_insert(now_ns);
        now_ns.saturating_sub(since) < PARKED_NS_MAX
    }

    /// Shows the complete `batch`, in `chains`, to the guest unless it is withheld, and asks the policy about the call.
    /// `parked`: a frame of it waited for buffers before. Returns the time to ask again, if a timer must be set.
    #[inline(always)]
    pub fn complete(
        &mut self,
        index: usize,
        ring: &mut impl ReceiveRing,
        chains: u16,
        batch: Batch,
        parked: bool,
        counters: &PortCounters,
    ) -> Option<u64> {
        if batch.frames == 0 {
            self.complete_none(index, ring, chains, counters);
            return None;
        }
        if self.withholds {
            self.hold.withheld = self.hold.withheld.saturating_add(chains);
        } else {
            ring.show(chains);
        }
        stages::lap(Stage::Publish);
        let now_ns = clock::now_ns();
        self.hold.add(now_ns, &batch, chains, parked);
        if self.answers.received(batch.frames) {
            self.look_at_answers(index, counters);
        }
        let verdict = self.moderation.published(now_ns, batch);
        self.act(index, ring, verdict, now_ns, Some(now_ns), counters)
    }

    /// Shows chains that have no frames, and ends a wait of a guest without buffers.
    #[cold]
    fn complete_none(
        &mut self,
        index: usize,
        ring: &mut impl ReceiveRing,
        chains: u16,
        counters: &PortCounters,
    ) {
        if chains > 0 {
            ring.show(take(&mut self.hold.withheld).saturating_add(chains));
        }
        if self.is_short(ring) {
            self.flush(index, ring, counters);
        }
    }

    #[cold]
    fn look_at_answers(&mut self, index: usize, counters: &PortCounters) {
        let (received, sent) = (&counters.rx[index], &counters.tx[index]);
        let received = Total { frames: received.frames.get(), bytes: received.bytes.get() };
        let sent = Total { frames: sent.frames.get(), bytes: sent.bytes.get() };
        if let Some(are) = self.answers.look(received, sent) {
            self.moderation.set_answers(are);
        }
    }

    /// True if the guest has, or soon may have, too few buffers until it knows of its frames: it refills only buffers
    /// that it has taken back.
    #[inline]
    fn is_short(&self, ring: &mut impl ReceiveRing) -> bool {
        self.full_since.is_some() || self.hold.chains() >= ring.size() / 2
    }

    /// `looked_ns`: see [`announce`](Self::announce).
    #[inline(always)]
    fn act(
        &mut self,
        index: usize,
        ring: &mut impl ReceiveRing,
        verdict: Verdict,
        now_ns: u64,
        looked_ns: Option<u64>,
        counters: &PortCounters,
    ) -> Option<u64> {
        match verdict {
            Verdict::HoldUntil(until_ns) if !self.is_short(ring) => {
                self.hold.deadline.set(until_ns, now_ns)
            }
            _ => {
                self.announce(index, ring, looked_ns, counters);
                None
            }
        }
    }

    /// Shows the guest all withheld frames, and calls it if the ring asks for a call.
    ///
    /// The ring is checked now, not when the hold began: a guest that took the frames by itself has
    /// moved its event past them (virtio 1.2 §2.7.7, §2.8.10; `rsp_event` of Xen's rings), and a
    /// guest that has suppressed calls checks the ring again before it waits. So no call that is
    /// left out after a hold is missed, and only such an omission counts as a sign of polling.
    ///
    /// `looked_ns` is the present time, if the caller has just read the clock: without a call, no time has passed
    /// since.
    #[inline(always)]
    fn announce(
        &mut self,
        index: usize,
        ring: &mut impl ReceiveRing,
        looked_ns: Option<u64>,
        counters: &PortCounters,
    ) {
        let withheld = take(&mut self.hold.withheld);
        if withheld > 0 {
            ring.show(withheld);
        }
        let called = ring.call_if_wanted();
        stages::lap(Stage::Call);
        let now_ns = looked_ns.filter(|_| called != Some(true)).unwrap_or_else(clock::now_ns);
        let visible_hold = withheld == 0 && self.hold.deadline.until_ns().is_some();
        let how = if called == Some(true) {
            counters.rx[index].calls.add_alone(1);
            self.called_ns = Some(now_ns);
            Delivery::Called
        } else {
            counters.rx[index].calls_suppressed.add_alone(1);
            if visible_hold { Delivery::Polled } else { Delivery::Suppressed }
        };
        self.hold.told(now_ns, how, withheld > 0, counters);
        self.moderation.delivered(now_ns, how);
    }

    /// See [`crate::Port::expired`].
    pub fn expired(
        &mut self,
        index: usize,
        ring: &mut impl ReceiveRing,
        by_ns: u64,
        counters: &PortCounters,
    ) -> Option<u64> {
        if let Err(ask_at) = self.hold.deadline.fired(by_ns) {
            return ask_at;
        }
        let verdict = self.moderation.expired(by_ns);
        self.act(index, ring, verdict, by_ns, None, counters)
    }

    /// Ends a hold of frames that the guest took by polling although it asks for calls: newer frames start a new hold.
    #[inline]
    pub(crate) fn look_for_poll(
        &mut self,
        index: usize,
        ring: &mut impl ReceiveRing,
        counters: &PortCounters,
    ) {
        if self.asks_and_polls && self.hold.is_pending() && ring.has_polled() {
            self.polled(index, counters);
        }
    }

    /// The guest's state with regard to its received frames. This state does not end a container
    /// early.
    pub fn standing(&self) -> Received {
        match self.called_ns {
            _ if self.hold.is_pending() && self.hold.withheld == 0 => Received::Held,
            Some(called_ns) => Received::Called(called_ns),
            None => Received::Told,
        }
    }

    /// Notes that the guest has taken the frames of a held call by polling.
    #[cold]
    fn polled(&mut self, index: usize, counters: &PortCounters) {
        let now_ns = clock::now_ns();
        counters.rx[index].calls_suppressed.add_alone(1);
        self.hold.told(now_ns, Delivery::Polled, false, counters);
        self.moderation.delivered(now_ns, Delivery::Polled);
    }

    /// Makes a held call now, before the ring stops or the policy changes.
    pub fn flush(&mut self, index: usize, ring: &mut impl ReceiveRing, counters: &PortCounters) {
        if self.hold.is_pending() {
            self.announce(index, ring, None, counters);
        }
    }

    /// The ring has stopped: forgets pending frames.
    pub fn reset(&mut self) {
        self.hold.reset();
        (self.full_since, self.called_ns) = (None, None);
        self.moderation.reset();
    }

    /// Replaces the policy; returns the old one.
    pub fn set_moderation(
        &mut self,
        index: usize,
        ring: &mut impl ReceiveRing,
        moderation: Box<dyn Moderation>,
        calls: &CallPolicy,
        counters: &PortCounters,
    ) -> Box<dyn Moderation> {
        self.flush(index, ring, counters);
        self.hold.set_policy(calls);
        self.withholds = moderation.withholds();
        let old = std::mem::replace(&mut self.moderation, moderation);
        self.moderation.set_answers(self.answers.are());
        old
    }

    /// Sets the limit of the queue's holds (ns).
    pub fn set_hold_ns_max(&mut self, hold_ns_max: u64) {
        self.hold.hold_ns_max = hold_ns_max;
        self.moderation.set_hold_ns_max(hold_ns_max);
    }

    /// Holds all interfaces together, or no longer.
    pub fn set_together(&mut self, together: bool) {
        self.moderation.set_together(together);
    }

    /// Notes whether the guest polls.
    pub fn set_guest_poll(&mut self, poll: Option<GuestPoll>) {
        self.asks_and_polls = poll.is_some_and(|poll| poll.asks);
        self.moderation.set_guest_poll(poll);
    }

    /// The durations of calls, which are read without the queue's lock.
    pub(crate) fn times(&self) -> Arc<OnceLock<Box<HeldTimes>>> {
        Arc::clone(&self.hold.times)
    }

    /// The present hold time, and its reason.
    pub fn decided(&self) -> Decision {
        self.moderation.decision()
    }

    /// The present decision of the policy, its kind, and the limit of the hold time (ns).
    pub(crate) fn decision(&self) -> (Kind, Decision, u64) {
        (self.moderation.kind(), self.moderation.decision(), self.hold.hold_ns_max)
    }
}
