//! The law of control: every constant by which weir decides when to call, to hold, to poll, to nap and to try.
//!
//! A constant is a field of [`Law`]. Its comment states its trade-off, and ends with its unit and its range. A value
//! that follows from constants by a rule is a method, which states the rule. `docs/design/control-law.md` derives the
//! law. Its table shows the effect of each mechanism: `weir lab ablation` plays [`MECHANISMS`], each a law with one
//! constant at its extreme.
//!
//! The law does not contain bounds (`weir_limits`), facts of protocols, or the user's settings.

/// The constants of the law.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Law {
    /// Time that each deadline leaves for the burst under way and the call; also the shortest hold.
    /// A larger value costs holds, a smaller one makes calls late. In ns: 5,000 to 50,000.
    pub margin_ns: u64,
    /// Largest lead of a timer before its deadline, however late timers are. A larger value costs
    /// holds, a smaller one makes calls late on a busy host. In ns: 50,000 to 200,000.
    pub lead_ns_max: u64,
    /// CPU time of a call or a wake-up until it is measured, and half the cost of a worker's sleep
    /// with the kick that ends it. A larger value polls for longer, a smaller one sleeps sooner. In
    /// ns: 1,000 to 10,000.
    pub event_ns: u64,
    /// Interval of the manager's looks. A larger value follows a load more slowly, a smaller one
    /// costs wake-ups. In ns: 20,000,000 to 1,000,000,000.
    pub look_ns: u64,
    /// Batches that a hold must promise beyond the first. A larger value saves fewer calls, a
    /// smaller one delays frames that come alone. In batches: 1 to 4.
    pub batches: u64,
    /// Usual gaps without a batch after which a queue is quiet. A larger value delays senders that
    /// wait for an answer. A smaller one ends holds by chance: where batches come at random, one
    /// look in four hundred finds six gaps. In gaps: 4 to 10.
    pub quiet_gaps: u64,
    /// Part of a time that justifies a look of its own (a quarter). A smaller value finds the end
    /// of a load sooner, a larger one costs timers. In halvings: 1 to 4.
    pub part: u32,
    /// Pending frames that end a hold: half a ring of 256, QEMU's default. A larger value overruns
    /// small rings, a smaller one costs calls. In frames: 32 to 512.
    pub frames_max: u32,
    /// Longest hold of acknowledgements of large segments. A larger value slows their sender down,
    /// a smaller one costs calls. In ns: 20,000 to 100,000.
    pub acks_ns_max: u64,
    /// Mean frame length from which on a sender counts as a bulk sender, which waits for
    /// completions. A larger value slows senders of middling frames down, a smaller one costs calls
    /// for datagrams. In bytes: 256 to 1,500.
    pub bulk_bytes: u64,
    /// Least pairs of windows in a trial. A larger value costs time at the worse of both settings,
    /// a smaller one lets chance decide. In pairs: 3 to 16.
    pub pairs_min: u32,
    /// Loss of throughput that a hold, a nap or a polling guest may cause. A larger value slows
    /// loads down, a smaller one refuses what is harmless. In per mille: 5 to 50.
    pub loss_permille: u32,
    /// Standard errors beyond which a difference counts as real. A larger value overlooks harm, a
    /// smaller one finds harm in noise. In standard errors: 2 to 5.
    pub errors: u32,
    /// Part of the usual rate below which the load counts as another one. Held windows below it in
    /// the first two pairs of a trial count as harm at once, whatever the noise. A larger value
    /// compares too often, a smaller one continues holds that have become harmful. In percent: 50
    /// to 90.
    pub fell_percent: u32,
    /// Shortest window of a trial. A larger value makes trials slower, a smaller one measures parts
    /// of a sender's round. In ns: 500,000 to 10,000,000.
    pub window_ns: u64,
    /// Events of a kind in a row that are no chance. A larger value reacts more slowly, a smaller
    /// one reacts to chance. In events: 4 to 32.
    pub in_a_row: u32,
    /// Longest back-off; measurements are forgotten in a quarter of it. A larger value is slower to
    /// see that a load has changed, a smaller one repeats harmful trials too often. In turns: 255
    /// to 8,191.
    pub memory: u32,
    /// Time for which a busy worker polls a queue without work, with kicks suppressed. A larger
    /// value costs polls, a smaller one costs kicks. In ns: 20,000 to 500,000.
    pub warm_ns: u64,
    /// Smallest step (a sixteenth): the weight of one sample in an estimate, and the shortest
    /// hold's part of the limit. A smaller value is slower and smoother, a larger one wavers. In
    /// halvings: 2 to 6.
    pub step: u32,
    /// Longest nap. A larger value delays kicks of ports that cannot be polled, a smaller one costs
    /// wake-ups. In ns: 250,000 to 2,000,000.
    pub nap_ns_max: u64,
}

/// The law that weir follows.
pub const LAW: Law = Law {
    margin_ns: 20_000,
    lead_ns_max: 100_000,
    event_ns: 4_000,
    look_ns: 100_000_000,
    batches: 2,
    quiet_gaps: 6,
    part: 2,
    frames_max: 128,
    acks_ns_max: 50_000,
    bulk_bytes: 512,
    pairs_min: 4,
    loss_permille: 15,
    errors: 3,
    fell_percent: 75,
    window_ns: 2_000_000,
    in_a_row: 8,
    memory: 1_023,
    warm_ns: 100_000,
    step: 4,
    nap_ns_max: 900_000,
};

/// A part of the law, and the law without it: one constant has the extreme value at which the part
/// has no effect.
#[derive(Clone, Copy, Debug)]
pub struct Mechanism {
    /// The part's name in the table.
    pub name: &'static str,
    /// Behaviour without the part.
    pub without: &'static str,
    /// The law without it.
    pub law: Law,
}

/// All parts that the ablation leaves out, one at a time.
pub const MECHANISMS: &[Mechanism] = &[
    off("holds", "no hold begins, and no nap", Law { batches: u64::MAX, ..LAW }),
    off("promise", "a hold begins whatever is promised", Law { batches: 0, ..LAW }),
    off("quiet gaps", "no hold ends early", Law { quiet_gaps: u64::MAX, ..LAW }),
    off("in a row", "holds that gather nothing go on", Law { in_a_row: 1 << 15, ..LAW }),
    off("trial", "nothing is harm", Law { loss_permille: u32::MAX, ..LAW }),
    off("errors", "any difference is harm", Law { errors: 0, ..LAW }),
    off("fallen rates", "no rate has fallen", Law { fell_percent: 0, ..LAW }),
    off("windows", "as short as holds and gaps", Law { window_ns: 100_000, ..LAW }),
    off("pairs", "a trial has two to eight", Law { pairs_min: 2, ..LAW }),
    off("back-off", "the next turn tries again", Law { memory: 0, ..LAW }),
    off(
        "smallest step",
        "the last sample decides; all of a limit or nothing",
        Law { step: 0, ..LAW },
    ),
    off("limit of frames", "as many as a large ring has", Law { frames_max: 32_768, ..LAW }),
    off("limit for acknowledgements", "held as others", Law { acks_ns_max: u64::MAX, ..LAW }),
    off("acknowledgements", "never held", Law { acks_ns_max: 0, ..LAW }),
    off("bulk data", "no sender is one of bulk data", Law { bulk_bytes: 1 << 32, ..LAW }),
    off("held completions", "every sender is one of bulk data", Law { bulk_bytes: 0, ..LAW }),
    off("busy-polling", "as short as a look", Law { event_ns: 100, ..LAW }),
    off("naps", "none is taken", Law { nap_ns_max: 0, ..LAW }),
    off("warm queues", "kicks on at once", Law { warm_ns: 0, ..LAW }),
    off("manager", "it looks once in ten minutes", Law { look_ns: 600_000_000_000, ..LAW }),
];

const fn off(name: &'static str, without: &'static str, law: Law) -> Mechanism {
    Mechanism { name, without, law }
}

impl Law {
    /// Returns the longest time to poll before a sleep (ns). It equals the cost of the sleep, so
    /// that both together cost at most twice the better choice (ski rental). Naps and holds of
    /// acknowledgements are longer.
    pub(crate) const fn sleep_ns(&self) -> u64 {
        2 * self.event_ns
    }

    /// Returns [`Self::sleep_ns`] for an answer that may wait for `budget_ns`: if the budget is
    /// shorter than queues stay warm, a wake-up counts for more, up to four times as much.
    pub(crate) const fn answer_ns_max(&self, budget_ns: u64) -> u64 {
        let dearer = self.warm_ns / if budget_ns > 0 { budget_ns } else { 1 };
        let most = 1 << self.part;
        let dearer = if dearer > most { most } else { dearer };
        self.sleep_ns() * if dearer > 0 { dearer } else { 1 }
    }

    /// Returns the shortest time of busy polling (ns). One poll of the queues takes a tenth of this time.
    pub(crate) const fn poll_ns_min(&self) -> u64 {
        self.event_ns >> self.part
    }

    /// Returns the time for which a worker counts frames per decision about naps (ns): half a
    /// window, since it judges many periods together.
    pub(crate) const fn period_ns(&self) -> u64 {
        self.window_ns / 2
    }

    /// Returns the number of periods that are judged together.
    pub(crate) const fn periods(&self) -> u32 {
        self.in_a_row * self.in_a_row
    }

    /// Returns the largest deviation of a random count that passes as chance: half the errors, as
    /// in a trial's last pair.
    pub(crate) fn chance(&self, expected: u64) -> u64 {
        u64::from(self.errors) * expected.isqrt() / 2
    }

    /// Returns the least number of frames for which a window gives a rate: half of a full hold. It
    /// is also the largest number of frames of a nap.
    pub(crate) const fn frames(&self) -> u64 {
        self.frames_max as u64 / 2
    }

    /// Returns the frames that justify a nap, or a common hold within a budget: those that two
    /// holds must promise.
    pub(crate) const fn frames_worth(&self) -> u64 {
        self.batches.saturating_mul(2)
    }

    /// Returns the frames that justify a polling guest: twice those of a nap, since the trial takes
    /// seconds.
    pub const fn poll_frames_min(&self) -> u64 {
        2 * self.frames_worth()
    }

    /// Returns whether calls that take `saved_ns` of CPU time in `ns` are worth a delay under a worker that polls: an
    /// eighth of its core, half of what justifies a look.
    pub(crate) const fn earns(&self, saved_ns: u64, ns: u64) -> bool {
        saved_ns.saturating_mul(2 << self.part) >= ns
    }

    /// Returns the number of levels of a hold, from the smallest step to the whole limit.
    pub(crate) const fn levels(&self) -> usize {
        self.step as usize + 1
    }

    /// Returns a number of completions that is too small to hold a sender back: a Linux socket has
    /// room for ten times as many.
    pub(crate) const fn few_frames(&self) -> u64 {
        self.frames_max as u64 >> self.part
    }

    /// Returns the longest wait (ns) of completions that are too few to be worth a call, if it exceeds a hold: eight
    /// windows.
    pub(crate) const fn few_ns_max(&self) -> u64 {
        self.window_ns.saturating_mul(self.in_a_row as u64)
    }

    /// Returns the bytes that end a hold: [`Self::frames_max`] buffers of 1536 bytes.
    pub(crate) const fn bytes_max(&self) -> u64 {
        self.frames_max as u64 * 1536
    }

    /// Returns the mean length from which on frames count as TCP's large segments (bytes): sixteen
    /// times that of bulk data.
    pub(crate) const fn segment_bytes(&self) -> u64 {
        self.bulk_bytes.saturating_mul(1 << self.step)
    }

    /// Returns how long to measure a load under holds or naps of `hold_ns` (ns): at least four of
    /// them, and a window.
    pub(crate) const fn window_of(&self, hold_ns: u64) -> u64 {
        let holds_ns = hold_ns.saturating_mul(1 << self.part);
        if holds_ns > self.window_ns { holds_ns } else { self.window_ns }
    }

    /// Returns the number of samples that count in an estimate of costs: a quarter of the longest
    /// back-off.
    pub(crate) const fn samples(&self) -> u32 {
        (self.memory + 1) >> self.part
    }

    /// Returns the fewest samples that give a cost.
    pub(crate) const fn samples_min(&self) -> u32 {
        2 * self.in_a_row
    }

    /// Returns the number of new times after which a largest time is mostly forgotten, if all of
    /// them were shorter. The worst case is rare, so it is kept for sixteen times as long as a
    /// failure.
    pub(crate) const fn times_to_forget(&self) -> u64 {
        (self.memory as u64 + 1) << self.step
    }

    /// Returns the number of pairs after which a trial must end.
    pub(crate) const fn pairs_max(&self) -> u32 {
        self.pairs_min << self.part
    }

    /// Returns [`Self::loss_permille`] as a share.
    pub(crate) fn loss(&self) -> f64 {
        f64::from(self.loss_permille) / 1e3
    }

    /// Returns [`Self::fell_percent`] as a share.
    pub(crate) fn fell(&self) -> f64 {
        f64::from(self.fell_percent) / 1e2
    }

    /// Returns the weight of one sample in an estimate.
    pub(crate) fn weight(&self) -> f64 {
        1.0 / f64::from(1u32 << self.step)
    }

    /// Returns how long an interface counts after its last frame, which is also the time after
    /// which a switch without traffic sleeps (ns).
    pub const fn traffic_ns(&self) -> u64 {
        self.look_ns.saturating_mul(self.in_a_row as u64)
    }

    /// Returns the longest wait of a frame for a worker that naps (ns), whatever the budget.
    pub const fn wait_ns_max(&self) -> u64 {
        self.nap_ns_max + self.margin_ns + self.lead_ns_max
    }
}
