//! Decides when to give a guest its call (the virtual interrupt) for frames in one receive queue.
//!
//! The engine owns the ring, the clock and the timer; a [`Moderation`] owns the decision. One value
//! serves one receive queue and is driven by one worker at a time:
//!
//! ```text
//! used index published ──▶ published() ──▶ Call ───────────────▶ make the call ──▶ delivered()
//!                                     └──▶ HoldUntil(t) ─ timer ─▶ expired() ──▶ Call | HoldUntil
//!                     guest polls the ring by itself meanwhile ──────────────────▶ delivered()
//! ```
//!
//! **The bound.** A policy may hold a batch no longer than its *hold limit* (`hold_ns_max`, this
//! queue's share of the latency budget), counted from the arrival of the *earliest* frame not yet
//! delivered (Dong 2011, back-end coalescing). The `testing` harness checks the bound for any
//! policy.
//!
//! **Why `Box<dyn Moderation>`.** A queue's policy can change while traffic flows. The control thread builds the new
//! policy with [`Kind::build`]. The worker swaps a pointer and hands the old policy back to be freed, so the loop
//! allocates nothing. A policy is asked once per burst of up to `weir_limits::BURST_MAX` frames, so the cost of an
//! indirect call is small beside the copies. In return, a new policy is one file and one line in [`Kind`], and tests
//! and simulations pass their own types. When a policy is replaced while it holds a batch, the engine makes that call
//! first: the new policy starts with nothing pending.

use std::fmt;
use std::str::FromStr;

use crate::law::{LAW, Law};

mod aggregate;
mod answers;
mod auto;
mod backend;
mod completions;
mod frontend;
#[cfg(test)]
mod testing;

pub use aggregate::{Aggregate, AggregateAdaptive};
pub use answers::{Answers, Total};
pub use auto::Auto;
pub use backend::Backend;
pub use completions::{Completions, Due, Received};
pub use frontend::{Frontend, TwoLayer};

/// Returns the longest hold of a call (ns) under a latency budget: the budget less the worker's own
/// lateness. The hold counts from the earliest time at which a frame may have come, so it includes
/// the wait in the sender's ring while a worker napped.
pub const fn hold_ns_max(latency_budget_ns: u64) -> u64 {
    latency_budget_ns.saturating_sub(LAW.margin_ns)
}

/// Answer to frames that are published and not yet delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// Make the call now, unless the guest has suppressed calls.
    Call,
    /// Make no call yet; ask again through [`Moderation::expired`] at this time (ns).
    ///
    /// Replaces any deadline given before. The time is later than the question's `now_ns`, and no
    /// later than the earliest undelivered frame's arrival plus the hold limit.
    HoldUntil(u64),
}

/// Frames whose used index has just been published, in one write, without a call yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Frames in the batch; at least one.
    pub frames: u32,
    /// Total length of these frames, each from its Ethernet header to the end of its payload.
    pub bytes: u64,
    /// Time at which the earliest of them reached weir (ns). It precedes the publication by the
    /// time that a frame was parked or waited in the uplink. The hold counts from it.
    pub arrived_ns: u64,
}

/// Reason why the pending frames count as delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The call eventfd was written.
    Called,
    /// The verdict was [`Verdict::Call`] and the ring suppressed the call (virtio 1.2 §2.7.7
    /// `VIRTQ_AVAIL_F_NO_INTERRUPT`, or `used_event` not reached): the guest is polling.
    Suppressed,
    /// The guest took the frames during a hold, on its own timer (front-end coalescing).
    Polled,
}

/// The user's settings of a policy, and the limits on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The hold limit (ns): this queue's share of the latency budget.
    pub hold_ns_max: u64,
    /// `rx-usecs`: fixed hold (ns), for the policies that have one; the hold limit if absent or
    /// larger.
    pub rx_ns: Option<u64>,
    /// `rx-frames`: pending frames that end a hold.
    pub rx_frames: Option<u32>,
    /// Bytes of frames that fill a container, for the policies that aggregate; `None`: a page.
    pub container_bytes: Option<u32>,
    /// The queue's worker polls on its own core, and never sleeps.
    pub polled: bool,
    /// The constants of `auto`.
    pub law: &'static Law,
}

impl Settings {
    /// Returns settings with only a hold limit.
    pub const fn within(hold_ns_max: u64) -> Self {
        let (rx_ns, rx_frames, container_bytes) = (None, None, None);
        Self { hold_ns_max, rx_ns, rx_frames, container_bytes, polled: false, law: &LAW }
    }
}

/// Polling by a guest that needs no calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestPoll {
    /// Interval of the polls (ns).
    pub every_ns: u64,
    /// The driver asks for calls although it polls, as `xen-netfront` does. A virtio driver suppresses them.
    pub asks: bool,
}

/// A policy's present decision and its reason, for `weir explain`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Hold of a frame that came now (ns).
    pub hold_ns: u64,
    /// Reason for this hold.
    pub reason: &'static str,
}

/// The policy for the calls of one receive queue.
///
/// Every `now_ns` is from the same monotonic clock and never smaller than the one before.
/// No method may block, allocate or panic.
pub trait Moderation: Send + fmt::Debug {
    /// Returns the kind of this policy, as the user selects and sees it.
    fn kind(&self) -> Kind;

    /// Decides about a batch that has just been published. Batches of an earlier hold may still be
    /// pending; the verdict is for all of them together.
    fn published(&mut self, now_ns: u64, batch: Batch) -> Verdict;

    /// Decides after the deadline of the last [`Verdict::HoldUntil`] has passed with frames still
    /// pending. `now_ns` may lie ahead of the clock where the deadline will pass before anyone can
    /// ask again; later calls may then have earlier times.
    fn expired(&mut self, now_ns: u64) -> Verdict;

    /// Notes that every published frame has reached the guest: nothing is pending and no deadline
    /// is set.
    fn delivered(&mut self, now_ns: u64, how: Delivery);

    /// Sets the hold limit (ns). The manager moves it while traffic flows, when it splits the
    /// budget again between the uplink and this queue (Dong 2011 Eq. 4: T_v = T_worst - T_p). The
    /// limit applies from the next verdict on; a deadline that is already set may still be kept.
    fn set_hold_ns_max(&mut self, hold_ns_max: u64);

    /// Begins or ends common holds: the frames of all interfaces are held together, at the uplink
    /// and in each queue for its whole limit. No queue judges the findings of [`crate::attempt`]
    /// once more.
    fn set_together(&mut self, _together: bool) {}

    /// Tells whether received frames acknowledge what the guest sends: see [`Answers`].
    fn set_answers(&mut self, _are: bool) {}

    /// Starts again (device reset, new session): forgets pending frames and all estimates, keeps the
    /// settings.
    fn reset(&mut self);

    /// Tells whether and how the guest polls.
    fn set_guest_poll(&mut self, _poll: Option<GuestPoll>) {}

    /// Returns the present decision and its reason.
    fn decision(&self) -> Decision;

    /// Returns whether held frames stay out of the guest's sight, so that a polling driver does not
    /// find them one by one. If so, the engine publishes the used index with the call, not before.
    fn withholds(&self) -> bool {
        false
    }
}

/// The policies that a user can select, by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `immediate`: a call per burst, no hold. See [`Immediate`].
    Immediate,
    /// `backend`: holds a call, counted from the earliest frame. See [`Backend`].
    Backend,
    /// `frontend`: the guest holds, by polling on its own timer. See [`Frontend`].
    Frontend,
    /// `two-layer`: holds for the part of the budget that the uplink leaves. See [`TwoLayer`].
    TwoLayer,
    /// `aggregate`: hands frames over by the container. See [`Aggregate`].
    Aggregate,
    /// `aggregate-adaptive`: as `aggregate`, with a release time that follows the traffic. See
    /// [`AggregateAdaptive`].
    AggregateAdaptive,
    /// `auto`: holds where it pays and slows nobody down. See [`Auto`].
    #[default]
    Auto,
}

impl Kind {
    /// Every policy, in the order of help texts.
    pub const ALL: &'static [Self] = &[
        Self::Auto,
        Self::Immediate,
        Self::Backend,
        Self::Frontend,
        Self::TwoLayer,
        Self::Aggregate,
        Self::AggregateAdaptive,
    ];

    /// Returns the name in configuration, on the command line and in statistics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Immediate => "immediate",
            Self::Backend => "backend",
            Self::Frontend => "frontend",
            Self::TwoLayer => "two-layer",
            Self::Aggregate => "aggregate",
            Self::AggregateAdaptive => "aggregate-adaptive",
            Self::Auto => "auto",
        }
    }

    /// Returns how long a frame may wait in its sender's ring while a worker naps (ns), before it
    /// comes to this policy. A policy without holds lets no frame wait, and a hold of fixed length
    /// counts from the frame's arrival.
    pub const fn wait_ns_max(self, latency_budget_ns: u64, rx_ns: Option<u64>) -> u64 {
        match (self, rx_ns) {
            (Self::Immediate, _) => 0,
            (_, Some(rx_ns)) if rx_ns < latency_budget_ns => rx_ns,
            _ => latency_budget_ns,
        }
    }

    /// Returns the policy for transmitted frames beside this one, under a hold limit (ns); `None` if a guest is
    /// notified of them at once. A guest that polls for received frames frees transmitted ones as well.
    pub fn completions(self, hold_ns_max: u64) -> Option<Completions> {
        (self != Self::Immediate).then(|| Completions::new(hold_ns_max))
    }

    /// Builds a policy of this kind.
    pub fn build(self, settings: Settings) -> Box<dyn Moderation> {
        match self {
            Self::Immediate => Box::new(Immediate),
            Self::Backend => Box::new(Backend::new(settings)),
            Self::Frontend => Box::new(Frontend::new(settings.hold_ns_max)),
            Self::TwoLayer => Box::new(TwoLayer::new(settings)),
            Self::Aggregate => Box::new(Aggregate::new(settings)),
            Self::AggregateAdaptive => Box::new(AggregateAdaptive::new(settings)),
            Self::Auto => Box::new(Auto::new(settings)),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Kind {
    type Err = UnknownKind;

    fn from_str(name: &str) -> Result<Self, UnknownKind> {
        let known = Self::ALL.iter().find(|kind| kind.as_str() == name);
        known.copied().ok_or_else(|| UnknownKind { name: name.to_owned() })
    }
}

/// Error: no moderation policy has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown moderation policy `{name}`; valid names: {}", valid_names())]
pub struct UnknownKind {
    /// The name as given.
    pub name: String,
}

fn valid_names() -> String {
    Kind::ALL.iter().map(|kind| kind.as_str()).collect::<Vec<_>>().join(", ")
}

/// Gives a call for every published batch and holds nothing.
///
/// This policy has the lowest latency and the most interrupts: it is the baseline for the other
/// policies. The engine publishes once per burst, so there is at most one call per burst, and the
/// ring's own suppression still saves the calls that the guest does not want.
#[derive(Clone, Copy, Debug, Default)]
pub struct Immediate;

impl Moderation for Immediate {
    fn kind(&self) -> Kind {
        Kind::Immediate
    }

    fn published(&mut self, _now_ns: u64, _batch: Batch) -> Verdict {
        Verdict::Call
    }

    /// Not reached, since this policy gives no deadline. The timer of a replaced policy gets the
    /// safe answer: one call too many loses nothing.
    fn expired(&mut self, _now_ns: u64) -> Verdict {
        Verdict::Call
    }

    fn delivered(&mut self, _now_ns: u64, _how: Delivery) {}

    /// A policy without holds keeps within every limit.
    fn set_hold_ns_max(&mut self, _hold_ns_max: u64) {}

    fn reset(&mut self) {}

    fn decision(&self) -> Decision {
        Decision { hold_ns: 0, reason: "this policy holds nothing" }
    }
}

/// The time at which a worker asks about a call, with at most one timer set for it.
///
/// Every burst may move the deadline, but a timer that was set stays set. So a later deadline keeps
/// the present timer, which sets the next one when it fires. Only an earlier deadline sets another
/// timer.
#[derive(Debug, Default)]
pub struct Deadline {
    /// The deadline in force (ns).
    until_ns: Option<u64>,
    /// Time of the last timer that was set (ns). A timer in the past has fired, or is about to.
    timer_ns: Option<u64>,
}

impl Deadline {
    /// Returns the deadline in force.
    pub fn until_ns(&self) -> Option<u64> {
        self.until_ns
    }

    /// Sets the deadline. Returns the time of a timer, if one is to be set.
    pub fn set(&mut self, until_ns: u64, now_ns: u64) -> Option<u64> {
        self.until_ns = Some(until_ns);
        match self.timer_ns {
            Some(timer_ns) if now_ns < timer_ns && timer_ns <= until_ns => None,
            _ => {
                self.timer_ns = Some(until_ns);
                Some(until_ns)
            }
        }
    }

    /// Removes the deadline. A timer that is set finds nothing to do.
    pub fn clear(&mut self) {
        self.until_ns = None;
    }

    /// Notes that all timers up to `by_ns` have fired, or count as fired. Returns `Ok` if the
    /// deadline has passed, else the time of a timer, if one is to be set.
    pub fn fired(&mut self, by_ns: u64) -> Result<(), Option<u64>> {
        self.timer_ns.take_if(|timer_ns| *timer_ns <= by_ns);
        match self.until_ns {
            None => Err(None),
            Some(until_ns) if until_ns > by_ns => Err(self.set(until_ns, by_ns)),
            Some(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_parses_back_from_its_name() {
        for &kind in Kind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
            assert_eq!(kind.build(Settings::within(0)).kind(), kind);
        }
    }

    #[test]
    fn unknown_name_error_repeats_it_and_lists_the_valid_ones() {
        let error = "Immediate ".parse::<Kind>().unwrap_err().to_string();
        assert!(error.contains("`Immediate `"), "{error}");
        let (_, names) = error.split_once("valid names: ").unwrap();
        assert!(names.split(", ").eq(Kind::ALL.iter().map(|kind| kind.as_str())), "{error}");
    }

    #[test]
    fn frames_wait_in_a_ring_no_longer_than_the_policy_would_hold_them() {
        assert_eq!(Kind::Auto.wait_ns_max(1_000, None), 1_000);
        assert_eq!(Kind::Immediate.wait_ns_max(1_000, None), 0);
        assert_eq!(Kind::Backend.wait_ns_max(1_000, Some(50)), 50);
        assert_eq!(
            Kind::Backend.wait_ns_max(1_000, Some(2_000)),
            1_000,
            "the budget is the user's word"
        );
    }

    #[test]
    fn every_kind_keeps_the_bound() {
        for &kind in Kind::ALL {
            testing::check_bound(|hold_ns_max| kind.build(Settings::within(hold_ns_max)));
        }
    }

    #[test]
    fn calls_for_every_batch_whatever_came_before() {
        let mut policy = Immediate;
        policy.set_hold_ns_max(1_000_000);
        for now_ns in [0, 1, 1, u64::MAX] {
            let batch = Batch { frames: 1, bytes: 64, arrived_ns: now_ns };
            assert_eq!(policy.published(now_ns, batch), Verdict::Call);
        }
        assert_eq!(policy.expired(u64::MAX), Verdict::Call);
    }

    #[test]
    fn a_deadline_that_moves_back_keeps_its_one_timer() {
        let mut deadline = Deadline::default();
        assert_eq!(deadline.set(100, 0), Some(100));
        for now_ns in 1..100 {
            assert_eq!(deadline.set(100 + now_ns, now_ns), None, "a timer is set");
        }
        assert_eq!(deadline.fired(100), Err(Some(199)), "and sets the next");
        assert_eq!(deadline.fired(199), Ok(()));
        deadline.clear();
        assert_eq!(deadline.fired(200), Err(None));
    }

    #[test]
    fn a_deadline_that_moves_forward_sets_another_timer_and_the_old_one_dies() {
        let mut deadline = Deadline::default();
        assert_eq!(deadline.set(100, 0), Some(100));
        assert_eq!(deadline.set(50, 1), Some(50));
        assert_eq!(deadline.fired(50), Ok(()));
        deadline.clear();
        assert_eq!(deadline.set(150, 60), Some(150), "it can't rely on the one at 100");
        assert_eq!(deadline.fired(100), Err(None), "which leaves the one at 150 alone");
    }

    #[test]
    fn a_timer_that_was_taken_for_fired_ahead_of_its_time_is_not_relied_on() {
        let mut deadline = Deadline::default();
        assert_eq!(deadline.set(100, 0), Some(100));
        assert_eq!(deadline.fired(120), Ok(()), "the worker is not back before 120");
        deadline.clear();
        assert_eq!(deadline.set(150, 60), Some(150), "though 100 is yet to come");
    }

    #[test]
    fn a_timer_that_never_fired_is_not_relied_on() {
        let mut deadline = Deadline::default();
        assert_eq!(deadline.set(100, 0), Some(100));
        assert_eq!(deadline.set(300, 200), Some(300));
    }

    #[test]
    fn a_deadline_that_moves_back_and_forward_again_is_asked_about_at_each_time() {
        let mut deadline = Deadline::default();
        assert_eq!(deadline.set(100, 0), Some(100));
        assert_eq!(deadline.set(150, 10), None, "a timer is set");
        assert_eq!(deadline.fired(100), Err(Some(150)), "and sets the next");
        assert_eq!(deadline.set(120, 110), Some(120), "sooner");
        assert_eq!(deadline.fired(120), Ok(()));
    }
}
