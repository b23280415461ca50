//! The policy `auto`: holds where holding pays and harms nobody, from the latency budget alone.

mod ladder;
#[cfg(test)]
mod tests;

use self::ladder::{Ladder, Stretch, Why};
use super::{Batch, Decision, Delivery, Frontend, GuestPoll, Kind, Moderation, Settings, Verdict};
use crate::law::Law;
use crate::trial::Passed;
use ladder::{Arrivals, Full};

/// Finds the best hold for this queue's calls from the latency budget alone. A hold must meet three
/// conditions:
///
/// 1. *It pays*: the usual gap between batches promises a few more of them within the hold. Under a worker that polls,
///    the calls that are saved must also be worth an eighth of its core.
/// 2. *Nobody waits for the held frames*: one timer checks a hold up to four times, and ends it
///    once nothing has come for several usual gaps. A sender that waits for answers stops during a
///    hold; other senders continue.
/// 3. *It does not slow the load down*: the hold is a level on a ladder from nothing to the limit.
///    Before a level is used, alternating stretches compare it with no hold. If frames or bytes come
///    slower, the level is not used, and is tried again after a back-off that doubles. A level in
///    use is compared again if the rate falls or if its holds begin to end early.
///
/// While all queues are held together ([`crate::attempt`]) no condition applies, and each hold has
/// the whole limit: a comparison would measure this queue against its neighbours, and frames that
/// the uplink has gathered come at the uplink's rate.
///
/// Acknowledgements of large segments ([`Answers`](super::Answers)) are held for
/// [`Law::acks_ns_max`] at most, and only if they are no further apart. Longer holds slow a
/// sender down by less than a comparison of some milliseconds shows.
///
/// If nearly all batches are `Full` by themselves, none is held: the calls are as few as they can be, and a sender
/// whose window is full waits for the one shorter batch.
///
/// While the guest polls on a timer that is no longer than this queue would hold, the queue holds
/// nothing ([`Frontend`]). The guest polls for all its queues, so this queue does not judge
/// whether polling slows the load down.
///
/// A batch costs a few additions and comparisons; a stretch costs some floating point.
#[derive(Clone, Copy, Debug)]
pub struct Auto {
    settings: Settings,
    arrivals: Arrivals,
    ladder: Ladder,
    pending: Option<Pending>,
    stretch: Counted,
    /// Frames that the previous level left behind pass now; the stretch begins after them.
    settling: bool,
    /// The longest gap between batches, decaying (ns).
    longest_gap_ns: u64,
    /// Holds in a row that did not end early.
    steady: u32,
    /// Holds that ended early, less the examined holds that did not.
    hushed: u32,
    /// Holds that gathered nothing, less twice those that gathered more.
    lonely: u32,
    /// See [`Moderation::set_together`].
    together: bool,
    /// See [`Moderation::set_answers`].
    answers: bool,
    /// Batches are large enough for calls by themselves.
    full: Full,
    /// The deciding policy while the guest polls.
    polled: Option<Polled>,
}

/// State while the guest polls, when nothing is held.
#[derive(Clone, Copy, Debug)]
struct Polled {
    poll: GuestPoll,
    policy: Frontend,
}

/// Frames that the guest does not know of yet.
#[derive(Clone, Copy, Debug)]
struct Pending {
    earliest_ns: u64,
    frames: u32,
    bytes: u64,
    batches: u32,
    /// The hold chosen for these frames (ns); 0 if none.
    hold_ns: u64,
    /// Time of the next check of the hold (ns).
    look_ns: u64,
    /// A check before the end of the hold is planned.
    looked: bool,
    /// The look found the load quiet.
    quiet: bool,
}

/// The present stretch.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    from_ns: u64,
    /// Planned length of the stretch, as of its beginning (ns).
    due_ns: u64,
    passed: Passed,
}

impl Auto {
    /// Returns a policy that knows no load yet, and so holds nothing.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            arrivals: Arrivals::default(),
            ladder: Ladder::new(settings.law),
            pending: None,
            stretch: Counted::default(),
            settling: true,
            longest_gap_ns: 0,
            steady: 0,
            hushed: 0,
            lonely: 0,
            together: false,
            answers: false,
            full: Full::default(),
            polled: None,
        }
    }

    /// Returns the longest hold (ns). `rx-usecs` does not apply: it is for policies with a fixed
    /// hold.
    fn limit_ns(&self) -> u64 {
        let limit_ns = self.settings.hold_ns_max;
        if self.answers && !self.together { limit_ns.min(self.law().acks_ns_max) } else { limit_ns }
    }

    fn law(&self) -> &'static Law {
        self.settings.law
    }

    /// Returns how many more batches must be expected before a hold is tried, and before a hold is begun that was found
    /// harmless. The second number is half of the first, since estimates waver. For acknowledgements both numbers are
    /// this half: two that come as one save their sender a wake-up.
    fn pays(&self) -> (u64, u64) {
        let batches = self.law().batches;
        if self.answers { (batches / 2, batches / 2) } else { (batches, batches / 2) }
    }

    /// Returns the shortest hold worth beginning (ns), where a worker's nap has taken the rest of
    /// the limit. The timer of a shorter hold would cost as much as the call.
    fn hold_ns_min(&self) -> u64 {
        if self.answers { self.law().sleep_ns() } else { self.law().margin_ns }
    }

    fn stretch_ns(&self) -> u64 {
        // A sender whose window is full sends again when the answers are back. Shorter stretches
        // would not show its rate.
        self.law().window_of(self.ladder.longest_ns(self.limit_ns()).max(self.longest_gap_ns))
    }

    fn quiet_ns(&self) -> u64 {
        self.arrivals.gap_ns().saturating_mul(self.law().quiet_gaps)
    }

    /// Returns whether holds of `hold_ns` save enough CPU time. A worker that sleeps is saved wake-ups as well, so that
    /// a hold that is worth its timer is worth its delay.
    fn earns(&self, hold_ns: u64) -> bool {
        let gap_ns = self.arrivals.gap_ns();
        // Both arguments are multiplied by the gap. A hold saves the calls of all its batches except one.
        let saved_ns = self.law().event_ns.saturating_mul(hold_ns.saturating_sub(gap_ns));
        !self.settings.polled || self.law().earns(saved_ns, hold_ns.saturating_mul(gap_ns))
    }

    /// Returns the hold for a batch that comes with nothing pending (ns).
    fn hold_ns(&self) -> u64 {
        if !self.earns(self.limit_ns()) {
            return 0;
        }
        if self.together {
            return self.limit_ns();
        }
        if self.full.are() {
            return 0;
        }
        let hold_ns = self.ladder.hold_ns(self.limit_ns());
        if self.arrivals.promise(self.pays().1, hold_ns) { hold_ns } else { 0 }
    }

    fn verdict(&mut self, now_ns: u64) -> Verdict {
        let limit_ns = self.limit_ns();
        let (law, quiet_ns) = (self.law(), self.quiet_ns());
        let Some(pending) = &mut self.pending else { return Verdict::Call };
        let end_ns = pending.earliest_ns.saturating_add(pending.hold_ns.min(limit_ns));
        if is_full(self.settings, pending.frames, pending.bytes) || end_ns <= now_ns {
            return Verdict::Call;
        }
        if pending.look_ns <= now_ns {
            let quiet_at_ns = self.arrivals.last_ns().saturating_add(quiet_ns);
            if quiet_at_ns <= now_ns {
                pending.quiet = true;
                return Verdict::Call;
            }
            let soonest_ns = now_ns.saturating_add((pending.hold_ns >> law.part).max(1));
            pending.look_ns = quiet_at_ns.max(soonest_ns);
        }
        Verdict::HoldUntil(end_ns.min(pending.look_ns))
    }

    /// Notes a hold that is over.
    fn held(&mut self, pending: &Pending, now_ns: u64) {
        // This queue does not judge the effect of holds that all queues have in common.
        if pending.hold_ns == 0 || self.together {
            return;
        }
        if pending.quiet {
            self.steady = 0;
            self.hushed = (self.hushed + 1).min(self.law().in_a_row);
        } else {
            self.steady = self.steady.wrapping_add(1);
            self.hushed = self.hushed.saturating_sub(u32::from(pending.looked));
        }
        // A short hold of acknowledgements saves wake-ups even where it gathers nothing.
        if pending.batches > 1 || self.answers {
            self.lonely = self.lonely.saturating_sub(2);
        } else {
            self.lonely += 1;
        }
        if self.lonely >= self.law().in_a_row {
            self.lonely = 0;
            self.ladder.lonely();
            self.begin(now_ns, 0);
        }
    }

    /// Handles a batch that has come with nothing pending, `gap_ns` after the one before. Ends the
    /// stretch here if it is long enough, or begins to count it.
    ///
    /// Both are best done after a long gap. Between two such points lie whole rounds of a sender
    /// that waits for answers, and rates of whole rounds compare without error.
    fn judge(&mut self, now_ns: u64, gap_ns: u64) {
        let Counted { from_ns, passed, .. } = self.stretch;
        let ns = now_ns.saturating_sub(from_ns);
        let due_ns =
            if self.settling { self.stretch_ns() >> self.law().part } else { self.stretch_ns() };
        let after_gap = gap_ns.saturating_mul(2) >= self.longest_gap_ns;
        if ns < due_ns || !(after_gap || ns >= due_ns.saturating_mul(2)) {
            return;
        }
        if self.settling {
            self.settling = false;
            self.stretch =
                Counted { from_ns: now_ns, due_ns: self.stretch.due_ns, ..Counted::default() };
        } else if passed.frames >= self.law().frames() {
            let stretch = Stretch {
                passed: Passed { ns, ..passed },
                quiet: self.hushed == self.law().in_a_row,
                odd: due_ns > self.stretch.due_ns.saturating_mul(2),
            };
            let arrivals = self.arrivals;
            let (batches, _) = self.pays();
            let earns = self.earns(self.limit_ns());
            let pays = |hold_ns| earns && arrivals.promise(batches, hold_ns);
            self.ladder.stretch(stretch, self.limit_ns(), pays);
            self.begin(now_ns, gap_ns);
        }
    }

    /// Begins a stretch after a gap (ns).
    fn begin(&mut self, now_ns: u64, gap_ns: u64) {
        let part_ns = self.longest_gap_ns.saturating_mul(2) >> self.law().step;
        self.longest_gap_ns = self.longest_gap_ns.saturating_sub(part_ns);
        // A long gap leaves no frames of the previous level.
        self.settling = gap_ns < self.limit_ns();
        let due_ns = self.stretch_ns();
        self.stretch = Counted { from_ns: now_ns, due_ns, ..Counted::default() };
    }
}

/// Returns whether frames or bytes suffice for a call, whenever they came.
fn is_full(settings: Settings, frames: u32, bytes: u64) -> bool {
    frames >= settings.rx_frames.unwrap_or(settings.law.frames_max)
        || bytes >= settings.law.bytes_max()
}

impl Moderation for Auto {
    fn kind(&self) -> Kind {
        Kind::Auto
    }

    fn published(&mut self, now_ns: u64, batch: Batch) -> Verdict {
        if let Some(polled) = &mut self.polled {
            return polled.policy.published(now_ns, batch);
        }
        // A longer gap is a pause of the load.
        let pause_ns = self.limit_ns().max(self.law().window_ns << self.law().part);
        let law = self.law();
        let gap_ns = self.arrivals.batch(law, now_ns, self.settings.hold_ns_max.saturating_mul(2));
        self.longest_gap_ns = self.longest_gap_ns.max(gap_ns.min(pause_ns));
        let pause_ns = gap_ns.saturating_sub(pause_ns);
        self.stretch.from_ns = self.stretch.from_ns.saturating_add(pause_ns);
        let full = is_full(self.settings, batch.frames, batch.bytes);
        if self.pending.is_none() && !self.together {
            if self.full.batch(law, full) {
                // Batches in the meantime were not judged.
                self.begin(now_ns, 0);
            } else if !self.full.are() {
                self.judge(now_ns, gap_ns);
            }
        }
        self.stretch.passed.frames += u64::from(batch.frames);
        self.stretch.passed.bytes = self.stretch.passed.bytes.saturating_add(batch.bytes);
        match &mut self.pending {
            Some(pending) => {
                pending.earliest_ns = pending.earliest_ns.min(batch.arrived_ns);
                pending.frames = pending.frames.saturating_add(batch.frames);
                pending.bytes = pending.bytes.saturating_add(batch.bytes);
                pending.batches = pending.batches.saturating_add(1);
            }
            None => {
                let hold_ns = self.hold_ns();
                let end_ns = batch.arrived_ns.saturating_add(hold_ns);
                // A full batch is not held, so it does not show what holds gather.
                let prompt = full || end_ns < now_ns.saturating_add(self.hold_ns_min());
                let hold_ns = if prompt { 0 } else { hold_ns };
                let quiet_ns = self.quiet_ns();
                // A look that shortens a hold by less than half is not worth its timer. After a run
                // of holds that did not end early, only every `in_a_row`-th hold gets a look.
                let looks = self.steady < law.in_a_row || self.steady.is_multiple_of(law.in_a_row);
                let look = looks && !self.together && quiet_ns < hold_ns / 2;
                let look_ns = if look { quiet_ns } else { hold_ns };
                self.pending = Some(Pending {
                    earliest_ns: batch.arrived_ns,
                    frames: batch.frames,
                    bytes: batch.bytes,
                    batches: 1,
                    hold_ns,
                    look_ns: now_ns.saturating_add(look_ns.max(hold_ns >> law.part).max(1)),
                    looked: look,
                    quiet: false,
                });
            }
        }
        self.verdict(now_ns)
    }

    fn expired(&mut self, now_ns: u64) -> Verdict {
        match &mut self.polled {
            Some(polled) => polled.policy.expired(now_ns),
            None => self.verdict(now_ns),
        }
    }

    fn delivered(&mut self, now_ns: u64, how: Delivery) {
        if let Some(polled) = &mut self.polled {
            polled.policy.delivered(now_ns, how);
            self.pending = None;
        } else if let Some(pending) = self.pending.take() {
            self.held(&pending, now_ns);
        }
    }

    fn set_hold_ns_max(&mut self, hold_ns_max: u64) {
        self.settings.hold_ns_max = hold_ns_max;
        if let Some(polled) = &mut self.polled {
            polled.policy.set_hold_ns_max(hold_ns_max);
        }
    }

    fn set_guest_poll(&mut self, poll: Option<GuestPoll>) {
        if self.polled.map(|polled| polled.poll) == poll {
            return;
        }
        self.polled = poll.map(|poll| {
            let mut policy = Frontend::new(self.settings.hold_ns_max);
            policy.set_guest_poll(Some(poll));
            Polled { poll, policy }
        });
        // Batches in the meantime were not judged.
        self.begin(self.arrivals.last_ns(), 0);
    }

    fn set_together(&mut self, together: bool) {
        if std::mem::replace(&mut self.together, together) != together {
            // A stretch that was partly held in another way says nothing.
            self.begin(self.arrivals.last_ns(), 0);
        }
    }

    fn set_answers(&mut self, are: bool) {
        if std::mem::replace(&mut self.answers, are) != are {
            // Findings about other frames say nothing about acknowledgements.
            self.ladder = Ladder::new(self.law());
            self.begin(self.arrivals.last_ns(), 0);
        }
    }

    fn reset(&mut self) {
        let poll = self.polled.map(|polled| polled.poll);
        let Self { together, answers, .. } = *self;
        *self = Self { together, ..Self::new(self.settings) };
        self.set_answers(answers);
        self.set_guest_poll(poll);
    }

    fn decision(&self) -> Decision {
        let limit_ns = self.limit_ns();
        let settled_ns = self.ladder.settled_ns(limit_ns);
        if limit_ns == 0 {
            return Decision { hold_ns: 0, reason: "no latency budget" };
        }
        if let Some(polled) = self.polled {
            let hold_ns = polled.poll.every_ns.min(self.settings.hold_ns_max);
            return Decision { hold_ns, reason: "the guest polls instead, for as long" };
        }
        if self.together {
            let reason = "held together with all others: that slows nobody down";
            return Decision { hold_ns: self.hold_ns(), reason };
        }
        if self.full.are() {
            return Decision { hold_ns: 0, reason: "calls are full without being held" };
        }
        let (before, still) = self.pays();
        let batches = if settled_ns > 0 { still } else { before };
        if !self.arrivals.promise(batches, limit_ns) {
            let reason = match self.answers {
                true => "acknowledgements: what the guest sends next waits for them",
                false => "light traffic",
            };
            return Decision { hold_ns: 0, reason };
        }
        if !self.earns(limit_ns) {
            return Decision {
                hold_ns: 0,
                reason: "the worker polls, and holds would save little",
            };
        }
        let reason = match self.ladder.why() {
            Why::Lonely => "requests and answers: holds gather nothing",
            Why::Slower if settled_ns == 0 => "held frames slowed the load down",
            Why::Slower => "a longer hold slowed the load down",
            Why::Untried if self.ladder.at_top() => "the load is not slowed down by it",
            Why::Untried => "longer holds are being tried",
        };
        let hold_ns = if self.arrivals.promise(batches, settled_ns) { settled_ns } else { 0 };
        Decision { hold_ns, reason }
    }
}
