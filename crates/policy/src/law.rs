//! The law of control: every constant by which weir decides when to call, to hold, to poll, to nap and to try.
//!
//! A constant is a field of [`Law`]. Its comment says what it trades, and ends with its unit and its range. What
//! follows from constants by a rule is a method, and says the rule. `docs/design/control-law.md` derives the law. Its
//! table shows what each mechanism is worth: `weir lab ablation` plays [`MECHANISMS`], each a law with one constant at
//! its extreme.
//!
//! Not here: bounds (`weir_limits`), facts of protocols, and what the user sets.

/// The constants of the law.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Law {
    /// What each deadline leaves for the burst under way and the call, and the shortest hold. More costs holds, less
    /// costs calls that come too late. In ns: 5,000 to 50,000.
    pub margin_ns: u64,
    /// How much before a deadline a timer may be set, however late timers are. More costs holds, less costs calls that
    /// come too late on a busy host. In ns: 50,000 to 200,000.
    pub lead_ns_max: u64,
    /// What a call or a wake-up costs of CPU until that is known, and half of a worker's sleep with the kick that ends
    /// it. More polls for longer, less sleeps sooner. In ns: 1,000 to 10,000.
    pub event_ns: u64,
    /// Between two looks of the manager. More is slower to follow a load, less costs wake-ups. In ns: 20,000,000 to
    /// 1,000,000,000.
    pub look_ns: u64,
    /// Batches that a hold must promise beyond the first. More leaves calls to be saved, less delays frames that come
    /// alone. In batches: 1 to 4.
    pub batches: u64,
    /// A queue is quiet after so many usual gaps without a batch. More delays whoever waits for an answer, less ends
    /// holds by chance: where batches come at random, one look in four hundred finds six. In gaps: 4 to 10.
    pub quiet_gaps: u64,
    /// The part of a time that is worth a look of its own (a quarter). Less finds the end of a load sooner, more costs
    /// timers. In halvings: 1 to 4.
    pub part: u32,
    /// Frames that end a hold: half a ring of 256, QEMU's default. More overruns small rings, less costs calls. In
    /// frames: 32 to 512.
    pub frames_max: u32,
    /// Longest hold of acknowledgements of large segments. More slows their sender down, less costs calls. In ns:
    /// 20,000 to 100,000.
    pub acks_ns_max: u64,
    /// Mean frame length from which on a sender is one of bulk data, who waits for completions. More slows senders of
    /// middling frames down, less costs calls for datagrams. In bytes: 256 to 1,500.
    pub bulk_bytes: u64,
    /// Pairs of windows that a trial has at least. More costs time at the worse of both settings, less lets chance
    /// decide. In pairs: 3 to 16.
    pub pairs_min: u32,
    /// Throughput that a hold, a nap or a polling guest may cost. More slows loads down, less refuses what is harmless.
    /// In per mille: 5 to 50.
    pub loss_permille: u32,
    /// Standard errors beyond which a difference is not chance. More overlooks harm, less finds harm in noise. In
    /// standard errors: 2 to 5.
    pub errors: u32,
    /// A rate below this part of the usual one is that of another load. Held windows below it in the first two pairs of
    /// a trial are harm at once, whatever the noise. More compares too often, less goes on with what has become
    /// harmful. In percent: 50 to 90.
    pub fell_percent: u32,
    /// Shortest window of a trial. More is slower to find out, less measures parts of a sender's round. In ns: 500,000
    /// to 10,000,000.
    pub window_ns: u64,
    /// So many events of a kind in a row are no chance. More is slower to find out, less is misled. In events: 4 to 32.
    pub in_a_row: u32,
    /// Longest back-off; what is measured is forgotten in a quarter of it. More is slower to see that a load has
    /// changed, less tries too often what does harm. In turns: 255 to 8,191.
    pub memory: u32,
    /// How long a queue without work is looked at while its worker is busy with others, kicks off. More costs looks,
    /// less costs kicks. In ns: 20,000 to 500,000.
    pub warm_ns: u64,
    /// The smallest step (a sixteenth): by which one sample moves an estimate, and of a limit the shortest hold. Less
    /// is slower and smoother, more wavers. In halvings: 2 to 6.
    pub step: u32,
    /// Longest nap. More delays kicks of ports that cannot be looked at, less costs wake-ups. In ns: 250,000 to
    /// 2,000,000.
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

/// Part of the law, and the law without it: one constant is at the extreme at which the part does nothing.
#[derive(Clone, Copy, Debug)]
pub struct Mechanism {
    /// Its name in the table.
    pub name: &'static str,
    /// What is so without it.
    pub without: &'static str,
    /// The law without it.
    pub law: Law,
}

/// What can be left out, to see what it is worth.
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
    /// Longest time to poll before a sleep (ns): what the sleep costs, so that both together cost at most twice the
    /// better of them (ski rental). A nap is longer, and so is a hold of acknowledgements.
    pub(crate) const fn sleep_ns(&self) -> u64 {
        2 * self.event_ns
    }

    /// Shortest time to poll (ns): one look at the queues takes a tenth of it.
    pub(crate) const fn poll_ns_min(&self) -> u64 {
        self.event_ns >> self.part
    }

    /// How long a worker counts frames for one decision about naps (ns): half a window, since it judges many together.
    pub(crate) const fn period_ns(&self) -> u64 {
        self.window_ns / 2
    }

    /// Periods that are judged together.
    pub(crate) const fn periods(&self) -> u32 {
        self.in_a_row * self.in_a_row
    }

    /// By how much a count of random events may differ from what is expected: as in a trial's last pair, half the errors.
    pub(crate) fn chance(&self, expected: u64) -> u64 {
        u64::from(self.errors) * expected.isqrt() / 2
    }

    /// Least frames of a window from which a rate is read, and most of a nap: half of what ends a hold.
    pub(crate) const fn frames(&self) -> u64 {
        self.frames_max as u64 / 2
    }

    /// Frames that are worth a nap, or to be held together within a budget: as many as two holds must promise.
    pub(crate) const fn frames_worth(&self) -> u64 {
        self.batches.saturating_mul(2)
    }

    /// Frames that are worth it that a guest polls: twice those of a nap, since its trial takes seconds.
    pub const fn poll_frames_min(&self) -> u64 {
        2 * self.frames_worth()
    }

    /// Levels of a hold, from the smallest step to all of the limit.
    pub(crate) const fn levels(&self) -> usize {
        self.step as usize + 1
    }

    /// So few frames hold no sender back: a socket of Linux has room for ten times as many.
    pub(crate) const fn few_frames(&self) -> u64 {
        self.frames_max as u64 >> self.part
    }

    /// Longest time that they wait for others (ns), where that is more than a hold: sixteen holds, and eight windows.
    pub(crate) const fn few_ns_max(&self) -> u64 {
        self.window_ns.saturating_mul(self.in_a_row as u64)
    }

    /// Bytes that end a hold: as many buffers of 1536 bytes as frames do.
    pub(crate) const fn bytes_max(&self) -> u64 {
        self.frames_max as u64 * 1536
    }

    /// Mean length from which on frames are TCP's large segments (bytes): sixteen times that of bulk data.
    pub(crate) const fn segment_bytes(&self) -> u64 {
        self.bulk_bytes.saturating_mul(1 << self.step)
    }

    /// How long a load is measured while holds or naps of so long end (ns): a window has four of them.
    pub(crate) const fn window_of(&self, hold_ns: u64) -> u64 {
        let holds_ns = hold_ns.saturating_mul(1 << self.part);
        if holds_ns > self.window_ns { holds_ns } else { self.window_ns }
    }

    /// Samples that count in an estimate of costs: a quarter of a failure's.
    pub(crate) const fn samples(&self) -> u32 {
        (self.memory + 1) >> self.part
    }

    /// Fewest samples before anything is said of costs.
    pub(crate) const fn samples_min(&self) -> u32 {
        2 * self.in_a_row
    }

    /// Times after which most of the largest is forgotten, if none was as long since: the worst is rare, and is kept for
    /// sixteen times as long as a failure.
    pub(crate) const fn times_to_forget(&self) -> u64 {
        (self.memory as u64 + 1) << self.step
    }

    /// Pairs after which a trial ends one way or the other.
    pub(crate) const fn pairs_max(&self) -> u32 {
        self.pairs_min << self.part
    }

    /// [`Self::loss_permille`], as a share.
    pub(crate) fn loss(&self) -> f64 {
        f64::from(self.loss_permille) / 1e3
    }

    /// [`Self::fell_percent`], as a share.
    pub(crate) fn fell(&self) -> f64 {
        f64::from(self.fell_percent) / 1e2
    }

    /// The weight of one sample in an estimate.
    pub(crate) fn weight(&self) -> f64 {
        1.0 / f64::from(1u32 << self.step)
    }

    /// Looks for which an interface counts after its last frame (ns), and after which a switch without traffic sleeps.
    pub const fn traffic_ns(&self) -> u64 {
        self.look_ns.saturating_mul(self.in_a_row as u64)
    }

    /// A frame waits no longer for a worker that naps (ns), however long it may.
    pub const fn wait_ns_max(&self) -> u64 {
        self.nap_ns_max + self.margin_ns + self.lead_ns_max
    }
}
