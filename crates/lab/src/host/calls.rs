//! A queue's pending calls to its guest, and when to ask the policy: the bookkeeping of
//! `engine/calls/held.rs`, around the policies.

use weir_policy::law::Law;
use weir_policy::moderation::{
    Answers, Batch, Completions, Deadline, Delivery, Due, Kind, Moderation, Received, Settings,
    Total, Verdict, hold_ns_max,
};

use crate::report::Violation;
use crate::scenario::Calls;
use crate::stats::Times;

/// Answer to a question about a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Give the call now.
    Call,
    /// Give no call yet, and set a timer for this time (ns), if any.
    Later(Option<u64>),
    /// Give no call for this queue yet, but give the held call for received frames now.
    CallForReceived(Option<u64>),
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    since_ns: u64,
    arrived_ns: u64,
    buffers: u32,
    parked: bool,
}

/// The calls for received frames.
#[derive(Debug)]
pub(super) struct RxCalls {
    pub(super) moderation: Box<dyn Moderation>,
    /// See [`Moderation::withholds`].
    pub(super) withholds: bool,
    hold_ns_max: u64,
    budget_ns: u64,
    pending: Option<Pending>,
    deadline: Deadline,
    /// Time of the guest's last call (ns).
    called_ns: Option<u64>,
    answers: Answers,
    received: Total,
    /// Times from ready frames to the guest's knowledge of them.
    pub(super) holds: Times,
    /// Calls that came after the latency budget, though no frame had waited for buffers.
    pub(super) late: u64,
}

impl RxCalls {
    pub(super) fn new(calls: &Calls, law: &'static Law) -> Self {
        let &Calls { kind, rx_ns, rx_frames, latency_budget_ns } = calls;
        let hold_ns_max = hold_ns_max(calls.latency_budget_ns);
        let moderation =
            kind.build(Settings { rx_ns, rx_frames, law, ..Settings::within(hold_ns_max) });
        Self {
            withholds: moderation.withholds(),
            moderation,
            hold_ns_max,
            budget_ns: latency_budget_ns,
            pending: None,
            deadline: Deadline::default(),
            called_ns: None,
            answers: Answers::default(),
            received: Total::default(),
            holds: Times::default(),
            late: 0,
        }
    }

    /// Returns the number of buffers with frames that the guest does not know of.
    fn buffers(&self) -> u32 {
        self.pending.map_or(0, |pending| pending.buffers)
    }

    pub(super) fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// Returns the guest's state towards received frames.
    pub(super) fn standing(&self) -> Received {
        match self.called_ns {
            _ if self.pending.is_some() && !self.withholds => Received::Held,
            Some(called_ns) => Received::Called(called_ns),
            None => Received::Told,
        }
    }

    /// Returns when the policy wants to be asked about pending frames (ns).
    pub(super) fn due_ns(&self) -> Option<u64> {
        self.deadline.until_ns()
    }

    /// Sets the limit of holds (ns), and whether all queues are held together.
    pub(super) fn hold(&mut self, hold_ns_max: u64, together: bool) {
        self.hold_ns_max = hold_ns_max;
        self.moderation.set_hold_ns_max(hold_ns_max);
        self.moderation.set_together(together);
    }

    /// Counts a received batch. `sent`: the guest's total of sent frames.
    pub(super) fn count(&mut self, batch: &Batch, sent: Total) {
        self.received.frames += u64::from(batch.frames);
        self.received.bytes += batch.bytes;
        if self.answers.received(batch.frames)
            && let Some(are) = self.answers.look(self.received, sent)
        {
            self.moderation.set_answers(are);
        }
    }

    /// Notes ready frames in `buffers` buffers. `parked`: one of the frames waited for buffers. A
    /// hold ends at `buffers_max` buffers.
    pub(super) fn published(
        &mut self,
        now_ns: u64,
        batch: Batch,
        (buffers, parked): (u32, bool),
        buffers_max: u32,
    ) -> Result<Answer, Violation> {
        let new = Pending { since_ns: now_ns, arrived_ns: batch.arrived_ns, buffers, parked };
        self.pending = Some(self.pending.map_or(new, |before| Pending {
            since_ns: before.since_ns,
            arrived_ns: before.arrived_ns.min(new.arrived_ns),
            buffers: before.buffers + buffers,
            parked: before.parked || parked,
        }));
        let verdict = self.moderation.published(now_ns, batch);
        self.answer(now_ns, verdict, buffers_max)
    }

    /// Handles a fired timer.
    pub(super) fn expired(&mut self, now_ns: u64, buffers_max: u32) -> Result<Answer, Violation> {
        if let Err(ask_ns) = self.deadline.fired(now_ns) {
            return Ok(Answer::Later(ask_ns));
        }
        let verdict = self.moderation.expired(now_ns);
        self.answer(now_ns, verdict, buffers_max)
    }

    fn answer(
        &mut self,
        now_ns: u64,
        verdict: Verdict,
        buffers_max: u32,
    ) -> Result<Answer, Violation> {
        let Verdict::HoldUntil(until_ns) = verdict else { return Ok(Answer::Call) };
        let arrived_ns = self.pending.map_or(now_ns, |pending| pending.arrived_ns);
        held(self.moderation.kind(), until_ns, now_ns, arrived_ns, self.hold_ns_max)?;
        if self.buffers() >= buffers_max {
            return Ok(Answer::Call);
        }
        Ok(Answer::Later(self.deadline.set(until_ns, now_ns)))
    }

    /// Notes that the guest was notified at `now_ns`, or wanted no call (not `called`). `hidden`:
    /// frames were invisible before.
    pub(super) fn told(&mut self, now_ns: u64, called: bool, hidden: bool) {
        let held = self.deadline.until_ns().is_some();
        self.deadline.clear();
        self.called_ns = if called { Some(now_ns) } else { self.called_ns };
        let how = match called {
            true => Delivery::Called,
            false if held && !hidden => Delivery::Polled,
            false => Delivery::Suppressed,
        };
        if let Some(pending) = self.pending.take() {
            if how != Delivery::Polled {
                self.holds.record(now_ns.saturating_sub(pending.since_ns));
            }
            // A guest that polls has seen frames as soon as they were visible.
            let told_ns = if called || hidden { now_ns } else { pending.since_ns };
            let latest_ns = pending.arrived_ns.saturating_add(self.budget_ns);
            self.late += u64::from(told_ns > latest_ns && !pending.parked);
        }
        self.moderation.delivered(now_ns, how);
    }
}

/// Checks a deadline against the limit.
fn held(
    kind: Kind,
    until_ns: u64,
    now_ns: u64,
    since_ns: u64,
    hold_ns_max: u64,
) -> Result<(), Violation> {
    if until_ns > now_ns && until_ns <= since_ns.saturating_add(hold_ns_max) {
        return Ok(());
    }
    Err(Violation::Held { kind, now_ns, until_ns, since_ns, hold_ns_max })
}

/// The calls for transmitted frames.
#[derive(Debug)]
pub(super) struct TxCalls {
    /// The policy; `None` if nothing is held.
    completions: Option<Completions>,
    kind: Kind,
    hold_ns_max: u64,
    deadline: Deadline,
    untold: u32,
    since_ns: u64,
}

impl TxCalls {
    pub(super) fn new(calls: &Calls, law: &'static Law) -> Self {
        let hold_ns_max = hold_ns_max(calls.latency_budget_ns);
        Self {
            completions: calls.kind.completions(hold_ns_max).map(|it| it.under(law)),
            kind: calls.kind,
            hold_ns_max,
            deadline: Deadline::default(),
            untold: 0,
            since_ns: 0,
        }
    }

    /// Sets the limit of holds (ns).
    pub(super) fn set_hold_ns_max(&mut self, hold_ns_max: u64) {
        self.hold_ns_max = hold_ns_max;
        if let Some(completions) = &mut self.completions {
            completions.set_hold_ns_max(hold_ns_max);
        }
    }

    /// Prepares for more completions. `wanted`: the driver wants a call for the earlier ones.
    pub(super) fn before_more(&mut self, wanted: bool) {
        if let Some(completions) = self.completions.as_mut().filter(|_| self.untold > 0 && !wanted)
        {
            completions.freed();
            self.deadline.clear();
            self.untold = 0;
        }
    }

    /// Notes completed frames and bytes, with `in_ring` others left in the ring. `wanted`: the
    /// driver wants a call now.
    pub(super) fn completed(
        &mut self,
        now_ns: u64,
        (frames, bytes): (u32, u64),
        in_ring: u32,
        ring_size: u32,
        wanted: bool,
    ) -> Result<Answer, Violation> {
        let Some(completions) = &mut self.completions else { return Ok(Answer::Call) };
        if frames == 0 {
            return Ok(Answer::Later(None));
        }
        if !wanted {
            return Ok(Answer::Call);
        }
        if self.untold == 0 {
            self.since_ns = now_ns;
        }
        self.untold += frames;
        match completions.completed(now_ns, frames, bytes, in_ring + self.untold, ring_size) {
            Verdict::Call => Ok(Answer::Call),
            Verdict::HoldUntil(until_ns) => self.hold(now_ns, until_ns),
        }
    }

    /// Handles a fired timer. `received`: the guest's state towards received frames.
    pub(super) fn expired(&mut self, now_ns: u64, received: Received) -> Result<Answer, Violation> {
        if let Err(ask_ns) = self.deadline.fired(now_ns) {
            return Ok(Answer::Later(ask_ns));
        }
        match self.completions.as_mut().map(|completions| completions.expired(now_ns, received)) {
            Some(Due::HoldUntil(ask_ns)) => {
                if matches!(received, Received::Called(_)) {
                    self.told_by(now_ns, ask_ns)?;
                }
                self.hold(now_ns, ask_ns)
            }
            Some(Due::CallForReceived { ask_ns }) => {
                self.told_by(now_ns, ask_ns)?;
                Ok(Answer::CallForReceived(self.deadline.set(ask_ns, now_ns)))
            }
            Some(Due::Call) | None => Ok(Answer::Call),
        }
    }

    /// Notes that a call for received frames serves these as well. A longer hold counts from then.
    fn told_by(&mut self, now_ns: u64, ask_ns: u64) -> Result<(), Violation> {
        self.since_ns = self.since_ns.max(now_ns);
        held(self.kind, ask_ns, now_ns, now_ns, self.hold_ns_max)
    }

    /// Returns whether the guest does not know of some completion.
    pub(super) fn is_pending(&self) -> bool {
        self.untold > 0
    }

    /// Returns when the policy wants to be asked (ns).
    pub(super) fn due_ns(&self) -> Option<u64> {
        self.deadline.until_ns()
    }

    fn hold(&mut self, now_ns: u64, until_ns: u64) -> Result<Answer, Violation> {
        held(self.kind, until_ns, now_ns, self.since_ns, self.hold_ns_max)?;
        Ok(Answer::Later(self.deadline.set(until_ns, now_ns)))
    }

    /// Notes that the guest was notified by a call (`called`), or was found not to want one.
    pub(super) fn told(&mut self, called: bool) {
        if let Some(completions) = &mut self.completions {
            completions.delivered(called);
            self.deadline.clear();
            self.untold = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_beyond_the_limit_or_in_the_past_is_a_violation() {
        assert_eq!(held(Kind::Backend, 110, 20, 10, 100), Ok(()));
        assert!(held(Kind::Backend, 111, 20, 10, 100).is_err());
        assert!(held(Kind::Backend, 20, 20, 10, 100).is_err());
    }

    #[test]
    fn a_call_after_the_budget_is_late_unless_frames_waited_for_buffers() {
        let calls =
            Calls { kind: Kind::Backend, latency_budget_ns: 100_000, rx_ns: None, rx_frames: None };
        let mut rx = RxCalls::new(&calls, &weir_policy::law::LAW);
        let batch = Batch { frames: 1, bytes: 64, arrived_ns: 0 };
        for (parked, late) in [(false, 1), (true, 1)] {
            assert_eq!(rx.published(0, batch, (1, parked), 128), Ok(Answer::Later(Some(80_000))));
            rx.deadline = Deadline::default();
            rx.told(100_000 + 1, true, false);
            assert_eq!(rx.late, late);
        }
    }
}
