//! The times at which a guest is notified that its sent frames are done.
//!
//! This call can wait (`weir_policy::moderation::Completions`) until the guest has handled a call for received frames,
//! in which Linux also frees transmitted ones. At the deadline the ring is checked: a driver that has freed them has
//! moved its event past them (virtio 1.2 §2.7.7) and gets no call; any other driver gets one. So a call for received
//! frames is no proof by itself. If one is held at the deadline, it is made then, and the ring is checked a little
//! later.

use weir_policy::moderation::{Completions, Deadline, Due, Received, Verdict};

use super::{CallPolicy, TransmitRing};
use crate::frames::burst::Burst;
use crate::frames::stats::PortCounters;
use crate::threads::stages::{self, Stage};

/// The calls of a transmit queue. `index` is always the queue's.
#[derive(Debug, Default)]
pub struct TransmitCalls {
    /// The policy that holds them; `None` if they are made at once.
    completions: Option<Completions>,
    /// See [`Self::patient`].
    patient: bool,
    deadline: Deadline,
    /// Completed chains of which the guest was not notified.
    untold: u32,
}

impl TransmitCalls {
    /// Calls of a queue in which nothing is held.
    pub fn new(calls: &CallPolicy) -> Self {
        Self { completions: calls.completions(false), ..Self::default() }
    }

    /// The state for a guest with few, rare acknowledgements: under `auto`, a few completions can wait longer.
    pub fn patient(calls: &CallPolicy) -> Self {
        Self { completions: calls.completions(true), patient: true, ..Self::default() }
    }

    /// Called before more chains are complete: only until then does the driver's ring show which earlier ones it has
    /// freed.
    #[inline(always)]
    pub fn before_more(&mut self, ring: &mut impl TransmitRing) {
        if self.untold > 0 {
            self.look(ring);
        }
    }

    #[inline(never)]
    fn look(&mut self, ring: &mut impl TransmitRing) {
        if let Some(completions) = self.completions.as_mut().filter(|_| !ring.wants_call()) {
            completions.freed();
            self.deadline.clear();
            self.untold = 0;
        }
    }

    /// Notes that chains of `burst` are complete. `done` tells about them, if a policy wants to know. Returns the time to
    /// ask about the call, if it is held and a timer must be set.
    #[inline(always)]
    pub fn complete<R: TransmitRing>(
        &mut self,
        index: usize,
        ring: &mut R,
        done: impl FnOnce(&mut R) -> Completed,
        burst: &Burst<'_>,
        counters: &PortCounters,
    ) -> Option<u64> {
        if self.completions.is_some() {
            let done = done(ring);
            return self.hold(index, ring, done, burst, counters);
        }
        self.call(index, ring, counters);
        None
    }

    /// Asks the policy.
    #[inline(never)]
    fn hold(
        &mut self,
        index: usize,
        ring: &mut impl TransmitRing,
        done: Completed,
        burst: &Burst<'_>,
        counters: &PortCounters,
    ) -> Option<u64> {
        let Completed { chains, in_ring, now_ns } = done;
        let completions = self.completions.as_mut().filter(|_| chains > 0)?;
        // A driver that has suppressed calls checks the ring itself before it enables them again: nothing is owed.
        if !ring.wants_call() {
            self.call(index, ring, counters);
            return None;
        }
        self.untold = self.untold.saturating_add(chains);
        let unreclaimed = in_ring.saturating_add(self.untold);
        match completions.completed(now_ns, chains, burst.bytes(), unreclaimed, ring.size()) {
            Verdict::HoldUntil(until_ns) => self.deadline.set(until_ns, now_ns),
            Verdict::Call => {
                self.call(index, ring, counters);
                None
            }
        }
    }

    /// Notifies the guest of all completed frames, unless it has suppressed calls.
    #[inline(always)]
    pub fn call(&mut self, index: usize, ring: &mut impl TransmitRing, counters: &PortCounters) {
        let called = ring.call_if_wanted();
        match called {
            Some(true) => counters.tx[index].calls.add_alone(1),
            Some(false) => counters.tx[index].calls_suppressed.add_alone(1),
            None => {}
        }
        stages::lap(Stage::Call);
        if let Some(completions) = &mut self.completions {
            completions.delivered(called == Some(true));
            self.deadline.clear();
            self.untold = 0;
        }
    }

    /// See [`crate::Port::expired`]. `received`: the guest's state with regard to the same queue pair's received
    /// frames.
    pub fn expired(
        &mut self,
        index: usize,
        ring: &mut impl TransmitRing,
        by_ns: u64,
        received: Received,
        counters: &PortCounters,
    ) -> Asked {
        let again_at = |again_at| Asked { again_at, call_for_received: false };
        if let Err(ask_at) = self.deadline.fired(by_ns) {
            return again_at(ask_at);
        }
        let due = self.completions.as_mut().map(|completions| completions.expired(by_ns, received));
        match due {
            Some(Due::HoldUntil(until_ns)) => again_at(self.deadline.set(until_ns, by_ns)),
            Some(Due::CallForReceived { ask_ns }) => {
                let again_at = self.deadline.set(ask_ns, by_ns);
                Asked { again_at, call_for_received: true }
            }
            Some(Due::Call) | None => {
                self.call(index, ring, counters);
                again_at(None)
            }
        }
    }

    /// Makes a held call now, before the ring stops or the policy changes.
    pub fn flush(&mut self, index: usize, ring: &mut impl TransmitRing, counters: &PortCounters) {
        if self.untold > 0 {
            self.call(index, ring, counters);
        }
    }

    /// Replaces the policy.
    pub fn set_policy(
        &mut self,
        index: usize,
        ring: &mut impl TransmitRing,
        calls: &CallPolicy,
        counters: &PortCounters,
    ) {
        self.flush(index, ring, counters);
        self.completions = calls.completions(self.patient);
    }

    /// Sets the limit of the queue's holds (ns).
    pub fn set_hold_ns_max(&mut self, hold_ns_max: u64) {
        if let Some(completions) = &mut self.completions {
            completions.set_hold_ns_max(hold_ns_max);
        }
    }
}

/// The result of asking about a held call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// The time to ask again (ns), if a timer must be set.
    pub again_at: Option<u64>,
    /// The call for received frames of the same queue pair must be made now.
    pub call_for_received: bool,
}

/// The state of the ring after a burst.
#[derive(Debug, Clone, Copy)]
pub struct Completed {
    /// Chains that became visible to the guest.
    pub chains: u32,
    /// Chains in the ring that are not complete.
    pub in_ring: u32,
    /// The time at which the burst was taken (ns).
    pub now_ns: u64,
}
