//! Compares `auto` with every static setting, over simulated loads.

mod played;

use self::played::{Outcome, Source, play};
use super::super::{Backend, Immediate};
use super::*;
use crate::law::LAW;

const MS: u64 = 1_000_000;
/// The default budget, and the six static settings: `immediate` and five holds (ns).
const BUDGET_NS: u64 = MS;
const STATIC_NS: [u64; 6] = [0, 50_000, 100_000, 250_000, 500_000, 1_000_000];
const SEEDS: [u64; 2] = [0x5eed, 77];

/// Excess CPU use of `auto` over the best static setting that counts as negligible.
const CPU_SHARE: f64 = 0.01;

/// A load and its duration.
struct Load {
    sources: Vec<Source>,
    seed: u64,
    warm_ns: u64,
    run_ns: u64,
}

impl Load {
    fn new(sources: &[Source], seed: u64) -> Self {
        Self { sources: sources.to_vec(), seed, warm_ns: 1_000 * MS, run_ns: 300 * MS }
    }

    /// A fast load, which shows its effect in a shorter time.
    fn fast(sources: &[Source], seed: u64) -> Self {
        Self { sources: sources.to_vec(), seed, warm_ns: 300 * MS, run_ns: 100 * MS }
    }

    fn play(&self, policy: &mut dyn Moderation, warm_ns: u64) -> Outcome {
        play(policy, &self.sources, self.seed, 0, warm_ns, self.run_ns)
    }

    fn auto(&self, budget_ns: u64) -> Outcome {
        let mut policy = Auto::new(Settings::within(budget_ns));
        let outcome = self.play(&mut policy, self.warm_ns);
        assert!(outcome.held_ns_max <= budget_ns, "held for {} ns", outcome.held_ns_max);
        outcome
    }

    fn immediate(&self) -> Outcome {
        self.play(&mut Immediate, 20 * MS)
    }

    fn fixed(&self, hold_ns: u64) -> Outcome {
        if hold_ns == 0 {
            return self.immediate();
        }
        self.play(&mut Backend::new(Settings::within(hold_ns)), 20 * MS)
    }

    /// Returns the throughput of the fastest static setting, and the CPU share of the cheapest
    /// setting that is about as fast.
    fn best_static(&self, budget_ns: u64) -> (f64, f64) {
        let outcomes = STATIC_NS.iter().filter(|&&hold_ns| hold_ns <= budget_ns);
        let outcomes: Vec<Outcome> = outcomes.map(|&hold_ns| self.fixed(hold_ns)).collect();
        let fastest = outcomes.iter().map(Outcome::frames_a_second).fold(0.0, f64::max);
        let fast = outcomes.iter().filter(|outcome| outcome.frames_a_second() >= 0.98 * fastest);
        (fastest, fast.map(Outcome::cpu_per_frame).fold(f64::INFINITY, f64::min))
    }

    /// Asserts that `auto` is within a twentieth of the best static setting, in throughput and in CPU.
    fn near_best_static(&self, budget_ns: u64) {
        let (fastest, cheapest) = self.best_static(budget_ns);
        let auto = self.auto(budget_ns);
        let Self { sources, seed, .. } = self;
        assert!(
            auto.frames_a_second() >= 0.95 * fastest,
            "{sources:?} ({seed}) under {budget_ns} ns: {} of {fastest} frames/s",
            auto.frames_a_second()
        );
        let surplus = auto.cpu_share() * (1.0 - cheapest / auto.cpu_per_frame());
        assert!(
            auto.cpu_per_frame() * 0.95 <= cheapest || surplus <= CPU_SHARE,
            "{sources:?} ({seed}) under {budget_ns} ns: {} ns a frame instead of {cheapest}",
            auto.cpu_per_frame()
        );
    }

    /// Asserts that `auto` slows down no sender that waits for the guest, against `immediate`:
    /// neither in throughput nor in median latency. Trials of longer holds may show in the mean, by
    /// the factor `latency_mean`.
    fn as_fast_as_immediate(&self, latency_mean: f64) {
        let auto = self.auto(BUDGET_NS);
        // The warm-up is the same, so both see the same stalls.
        let immediate = self.play(&mut Immediate, self.warm_ns);
        let Self { sources, seed, .. } = self;
        let throughput = auto.frames_a_second() / immediate.frames_a_second();
        assert!(throughput >= 0.98, "{sources:?} ({seed}): {throughput} of the throughput");
        let latencies =
            |outcome: &Outcome| (outcome.latency_mean_ns(), outcome.latency_median_ns());
        let ((mean, median), (mean_immediate, median_immediate)) =
            (latencies(&auto), latencies(&immediate));
        assert!(
            mean <= latency_mean * mean_immediate && median <= 1.05 * median_immediate,
            "{sources:?} ({seed}): {mean} ns, median {median} instead of {mean_immediate}, median \
             {median_immediate}"
        );
    }
}

fn constant(rate: u64) -> Source {
    Source::Constant { gap_ns: 1_000 * MS / rate }
}

fn poisson(rate: u64) -> Source {
    Source::Poisson { gap_ns: 1_000 * MS / rate }
}

fn requests(outstanding: u64, away_ns: u64) -> Source {
    Source::Requests { outstanding, away_ns }
}

fn window(segments: u64, away_ns: u64) -> Source {
    Source::Window { segments, away_ns, spacing_ns: 1_200 }
}

const BURSTS: Source = Source::Bursts { frames: 64, spacing_ns: 1_000, period_ns: 5 * MS };
const ON_OFF: Source = Source::OnOff { gap_ns: 10_000, on_ns: 20 * MS, off_ns: 20 * MS };

#[test]
fn open_arrivals_cost_what_they_do_under_the_best_static_setting() {
    for seed in SEEDS {
        for source in [constant(10_000), poisson(10_000), constant(100_000), poisson(100_000)] {
            Load::new(&[source], seed).near_best_static(BUDGET_NS);
        }
    }
}

#[test]
fn a_million_frames_a_second_cost_what_they_do_under_the_best_static_setting() {
    Load::fast(&[constant(1_000_000)], SEEDS[0]).near_best_static(BUDGET_NS);
    Load::fast(&[poisson(1_000_000)], SEEDS[0]).near_best_static(BUDGET_NS);
}

#[test]
fn bursts_and_pauses_cost_what_they_do_under_the_best_static_setting() {
    for seed in SEEDS {
        for source in [BURSTS, ON_OFF] {
            let load = Load { warm_ns: 2_000 * MS, ..Load::new(&[source], seed) };
            load.near_best_static(BUDGET_NS);
        }
    }
}

#[test]
fn a_hundred_thousand_frames_a_second_need_a_tenth_of_the_calls() {
    for source in [constant(100_000), poisson(100_000)] {
        let load = Load::new(&[source], SEEDS[0]);
        let (auto, immediate) = (load.auto(BUDGET_NS), load.immediate());
        assert!(auto.calls_per_frame() <= 0.1 * immediate.calls_per_frame(), "{auto:?}");
    }
}

#[test]
fn light_traffic_is_delivered_at_once() {
    for source in [constant(1_000), poisson(1_000)] {
        let load = Load::new(&[source], SEEDS[0]);
        assert!(load.auto(BUDGET_NS).calls_per_frame() > 0.9);
        // A hold saves only a fifth of a percent of a CPU here.
        load.near_best_static(BUDGET_NS);
    }
}

#[test]
fn under_a_worker_that_polls_a_hold_saves_an_eighth_of_its_core() {
    for seed in SEEDS {
        for (rate, held) in [(10_000, false), (20_000, false), (50_000, true), (200_000, true)] {
            let load = Load::new(&[constant(rate)], seed);
            let settings = Settings { polled: true, ..Settings::within(250_000) };
            let outcome = load.play(&mut Auto::new(settings), load.warm_ns);
            let calls_per_frame = outcome.calls_per_frame();
            let saved = rate as f64 * 1e-9 * LAW.event_ns as f64 * (1.0 - calls_per_frame);
            assert_eq!(calls_per_frame < 0.9, held, "{rate} a second: {outcome:?}");
            assert!(!held || saved >= 0.125, "{rate} a second: {saved}");
        }
    }
}

/// Loads and budgets under which holds add more than 5 % to the median latency and save less than 10 % of the CPU time
/// of guest and worker.
fn held_without_saving(law: &'static Law) -> Vec<String> {
    let rates = [1_000, 5_000, 10_000, 20_000, 50_000, 200_000];
    let open = rates.into_iter().flat_map(|rate| [constant(rate), poisson(rate)]);
    let others = [BURSTS, ON_OFF, requests(1, 20_000), requests(8, 20_000), window(64, 50_000)];
    let mut found = Vec::new();
    for source in open.chain(others) {
        for budget_ns in [50_000, 250_000, MS] {
            let load = Load { run_ns: 200 * MS, ..Load::new(&[source], SEEDS[0]) };
            let settings = Settings { law, ..Settings::within(budget_ns) };
            let auto = load.play(&mut Auto::new(settings), load.warm_ns);
            let immediate = load.immediate();
            let later =
                auto.latency_of_all_median_ns() > 1.05 * immediate.latency_of_all_median_ns();
            if later && auto.cpu_per_frame() > 0.9 * immediate.cpu_per_frame() {
                found.push(format!("{source:?} under {budget_ns} ns"));
            }
        }
    }
    found
}

#[test]
fn no_frame_waits_for_a_hold_that_saves_less_than_a_tenth_of_the_cpu() {
    static WITHOUT_PROMISE: Law = Law { batches: 0, in_a_row: 1 << 15, ..LAW };
    assert_eq!(held_without_saving(&LAW), [""; 0]);
    assert_ne!(held_without_saving(&WITHOUT_PROMISE), [""; 0], "without a promise some would");
}

#[test]
fn requests_are_answered_as_soon_as_without_holds() {
    for seed in SEEDS {
        for source in [requests(1, 20_000), requests(8, 20_000)] {
            Load::new(&[source], seed).as_fast_as_immediate(1.05);
        }
        Load { warm_ns: 500 * MS, ..Load::fast(&[requests(64, 50_000)], seed) }
            .as_fast_as_immediate(1.05);
    }
}

#[test]
fn rare_requests_are_answered_as_soon_as_without_holds() {
    for seed in SEEDS {
        // Each trial holds eight of two thousand requests a second for a whole millisecond.
        let load = Load::new(&[requests(1, 500_000)], seed);
        let load = Load { warm_ns: 2_000 * MS, run_ns: 1_000 * MS, ..load };
        load.as_fast_as_immediate(2.0);
    }
}

#[test]
fn senders_with_a_small_window_are_as_fast_as_without_holds() {
    for seed in SEEDS {
        Load::new(&[window(10, 50_000)], seed).as_fast_as_immediate(1.05);
        Load::fast(&[window(64, 50_000)], seed).as_fast_as_immediate(1.05);
        let far = Load { warm_ns: 2_000 * MS, ..Load::new(&[window(64, 2 * MS)], seed) };
        far.as_fast_as_immediate(1.05);
    }
}

#[test]
fn a_window_that_keeps_the_guest_busy_is_held_for_as_long_as_it_is_not_slowed_down() {
    let load = Load::fast(&[window(240, 50_000)], SEEDS[0]);
    load.as_fast_as_immediate(1.05);
    load.near_best_static(BUDGET_NS);
    assert!(load.auto(BUDGET_NS).calls_per_frame() < 0.1 * load.immediate().calls_per_frame());
}

#[test]
fn who_waits_is_not_slowed_down_by_those_who_do_not() {
    for datagrams in [20_000, 100_000] {
        let mixture = [poisson(datagrams), requests(1, 20_000)];
        let load = Load { warm_ns: 1_500 * MS, ..Load::new(&mixture, SEEDS[0]) };
        load.as_fast_as_immediate(1.15);
        load.near_best_static(BUDGET_NS);
    }
    let load = Load::fast(&[poisson(100_000), window(64, 50_000)], SEEDS[0]);
    load.as_fast_as_immediate(1.05);
    load.near_best_static(BUDGET_NS);
}

#[test]
fn a_quarter_of_a_millisecond_is_spent_as_well() {
    let seed = SEEDS[0];
    for source in [constant(100_000), poisson(100_000), requests(8, 20_000), window(10, 50_000)] {
        Load::new(&[source], seed).near_best_static(250_000);
    }
}

#[test]
fn a_busy_host_does_not_change_what_is_right() {
    // Up to 600 us every 2 ms: a seventh of the time.
    let stalls = Source::Stalls { gap_ns: 2 * MS, ns: 600_000 };
    for seed in SEEDS {
        let flood = Load::new(&[poisson(100_000), stalls], seed);
        let flood = Load { warm_ns: 2_000 * MS, ..flood };
        assert!(flood.auto(BUDGET_NS).calls_per_frame() < 0.1);
        flood.near_best_static(BUDGET_NS);
        Load::new(&[requests(1, 20_000), stalls], seed).as_fast_as_immediate(1.15);
        Load::new(&[requests(8, 20_000), stalls], seed).as_fast_as_immediate(1.15);
        Load::new(&[window(10, 50_000), stalls], seed).as_fast_as_immediate(1.15);
    }
}

/// Plays the loads in turn on one policy. Returns the outcome of each load's last 200 ms.
fn one_after_the_other(loads: &[(Source, u64)]) -> (Vec<Outcome>, Decision) {
    let mut policy = Auto::new(Settings::within(BUDGET_NS));
    let mut start_ns = 0;
    let outcomes = loads.iter().map(|&(source, warm_ns)| {
        let outcome = play(&mut policy, &[source], SEEDS[0], start_ns, warm_ns, 200 * MS);
        start_ns += warm_ns + 200 * MS;
        // Frames in flight of the previous load are lost.
        policy.delivered(start_ns, Delivery::Called);
        outcome
    });
    let outcomes = outcomes.collect();
    (outcomes, policy.decision())
}

#[test]
fn requests_after_a_flood_are_not_held_for_long() {
    let source = requests(1, 20_000);
    let (outcomes, decision) =
        one_after_the_other(&[(poisson(100_000), 500 * MS), (source, 100 * MS)]);
    assert!(outcomes[0].calls_per_frame() < 0.05, "{:?}", outcomes[0]);
    let immediate = Load::new(&[source], SEEDS[0]).immediate();
    assert!(outcomes[1].latency_mean_ns() <= 1.05 * immediate.latency_mean_ns());
    assert_eq!(decision.hold_ns, 0, "{decision:?}");
}

#[test]
fn a_flood_after_requests_is_held_soon() {
    let loads = [(requests(1, 20_000), 500 * MS), (poisson(100_000), 1_000 * MS)];
    let (outcomes, _) = one_after_the_other(&loads);
    assert!(outcomes[1].calls_per_frame() < 0.05, "{:?}", outcomes[1]);
}

#[test]
fn datagrams_after_rare_requests_are_held_soon() {
    let loads = [(requests(1, 400_000), 1_000 * MS), (constant(10_000), 1_000 * MS)];
    let (outcomes, _) = one_after_the_other(&loads);
    assert!(outcomes[0].calls_per_frame() > 0.95);
    assert!(outcomes[1].calls_per_frame() < 0.15);
}

#[test]
fn a_window_after_a_flood_is_found_to_be_slowed_down() {
    let source = window(64, 50_000);
    let (outcomes, _) = one_after_the_other(&[(poisson(100_000), 500 * MS), (source, 300 * MS)]);
    let immediate = Load::fast(&[source], SEEDS[0]).immediate();
    let throughput = outcomes[1].frames_a_second() / immediate.frames_a_second();
    assert!(throughput >= 0.95, "{throughput}");
}

#[test]
fn decisions_name_their_reasons() {
    let reason = |source| one_after_the_other(&[(source, 1_000 * MS)]).1.reason;
    assert_eq!(reason(constant(1_000)), "light traffic");
    assert_eq!(reason(constant(100_000)), "the load is not slowed down by it");
    assert_eq!(reason(requests(1, 20_000)), "requests and answers: holds gather nothing");
    assert_eq!(reason(window(10, 50_000)), "held frames slowed the load down");
    assert_eq!(Auto::new(Settings::within(0)).decision().reason, "no latency budget");
}

#[test]
fn held_together_it_holds_for_the_limit_and_judges_by_itself_again_afterwards() {
    let mut auto = Auto::new(Settings::within(1_000_000));
    let batch = |now_ns| Batch { frames: 1, bytes: 64, arrived_ns: now_ns };
    assert_eq!(auto.published(0, batch(0)), Verdict::Call, "it knows nothing yet");
    auto.delivered(0, Delivery::Called);
    auto.set_together(true);
    assert_eq!(auto.published(500_000, batch(500_000)), Verdict::HoldUntil(1_500_000));
    assert_eq!(auto.expired(1_500_000), Verdict::Call);
    auto.delivered(1_500_000, Delivery::Called);
    auto.set_together(false);
    assert_eq!(auto.published(2_000_000, batch(2_000_000)), Verdict::Call);
}

#[test]
fn while_the_guest_polls_nothing_is_held_and_nothing_is_learnt() {
    let load = [(constant(50_000), 1_000 * MS)];
    let mut auto = Auto::new(Settings::within(BUDGET_NS));
    play(&mut auto, &[load[0].0], SEEDS[0], 0, 0, load[0].1);
    let held = auto.decision();
    assert_eq!(held.hold_ns, BUDGET_NS);
    let batch = |now_ns| Batch { frames: 1, bytes: 64, arrived_ns: now_ns };
    let start_ns = 2_000 * MS;
    auto.set_guest_poll(Some(GuestPoll { every_ns: BUDGET_NS / 2, asks: false }));
    for at in 0..1_000 {
        let now_ns = start_ns + at * 1_000;
        assert_eq!(auto.published(now_ns, batch(now_ns)), Verdict::Call);
        auto.delivered(now_ns, Delivery::Suppressed);
    }
    assert_eq!(auto.decision().hold_ns, BUDGET_NS / 2, "the guest's own");
    auto.reset();
    assert_eq!(auto.decision().hold_ns, BUDGET_NS / 2, "a new session does not stop it");
}

#[test]
fn acknowledgements_are_held_only_where_they_come_closely_and_not_for_long() {
    // Frames are 10 us apart, then 100 us.
    for (rate, held_ns) in [(100_000, LAW.acks_ns_max), (10_000, 0)] {
        let source = constant(rate);
        let mut auto = Auto::new(Settings::within(BUDGET_NS));
        auto.set_answers(true);
        let outcome = play(&mut auto, &[source], SEEDS[0], 0, 0, 1_000 * MS);
        assert_eq!(auto.decision().hold_ns, held_ns, "{rate} a second");
        let immediate = Load::new(&[source], SEEDS[0]).immediate();
        if held_ns == 0 {
            assert_eq!(outcome.calls_per_frame(), immediate.calls_per_frame());
        }
        auto.reset();
        play(&mut auto, &[source], SEEDS[0], 1_000 * MS, 0, 500 * MS);
        assert_eq!(auto.decision().hold_ns, held_ns, "a new session knows it as well");
        auto.set_answers(false);
        play(&mut auto, &[source], SEEDS[0], 2_000 * MS, 0, 1_000 * MS);
        assert_eq!(auto.decision().hold_ns, BUDGET_NS);
    }
}

#[test]
fn batches_that_are_full_by_themselves_leave_nothing_to_hold() {
    let mut auto = Auto::new(Settings::within(BUDGET_NS));
    let full_bytes = LAW.bytes_max();
    let mut late = 0;
    for at in 0..10_000 {
        let now_ns = at * 25_000;
        // One in fifty is short.
        let bytes = if at % 50 == 49 { full_bytes / 4 } else { full_bytes };
        let verdict = auto.published(now_ns, Batch { frames: 5, bytes, arrived_ns: now_ns });
        // The first batches do not count, since the policy has to learn first.
        late += u32::from(verdict != Verdict::Call && at > 200);
        auto.delivered(now_ns, Delivery::Called);
    }
    assert_eq!(late, 0);
    assert_eq!(auto.decision().hold_ns, 0);
}

#[test]
fn a_guest_that_polls_and_asks_for_calls_is_called_when_it_has_not_polled() {
    let mut auto = Auto::new(Settings::within(BUDGET_NS));
    let batch = |now_ns| Batch { frames: 1, bytes: 64, arrived_ns: now_ns };
    auto.set_guest_poll(Some(GuestPoll { every_ns: 100_000, asks: true }));
    assert_eq!(auto.published(0, batch(0)), Verdict::HoldUntil(100_000));
    // Polling stops with frames still held: none is left behind.
    auto.set_guest_poll(None);
    assert_eq!(auto.expired(100_000), Verdict::Call);
    auto.delivered(100_000, Delivery::Called);
    assert_eq!(auto.published(200_000, batch(200_000)), Verdict::Call);
}

#[test]
fn a_hold_ends_with_half_a_ring_of_frames() {
    let settings = Settings { rx_frames: Some(10), ..Settings::within(BUDGET_NS) };
    for (settings, most) in [(Settings::within(BUDGET_NS), LAW.frames_max), (settings, 10)] {
        let mut policy = Auto::new(settings);
        let mut frames = 0;
        for at in 0..200_000 {
            let now_ns = at * 2_000;
            frames += 1;
            let batch = Batch { frames: 1, bytes: 64, arrived_ns: now_ns };
            if policy.published(now_ns, batch) == Verdict::Call {
                policy.delivered(now_ns, Delivery::Called);
                assert!(frames <= most, "{frames}");
                frames = 0;
            }
        }
        assert!(policy.decision().hold_ns > 0);
    }
}

#[test]
fn batches_that_fill_a_hold_by_themselves_do_not_speak_against_holding_others() {
    let mut auto = Auto::new(Settings::within(BUDGET_NS));
    for at in 0..20_000_u64 {
        let now_ns = at * 100_000;
        if auto.pending.is_some() && auto.expired(now_ns) == Verdict::Call {
            auto.delivered(now_ns, Delivery::Called);
        }
        // A train of large segments that come four at a time, then single ones.
        let frames = if at % 16 < 12 { 4 } else { 1 };
        let batch = Batch { frames, bytes: u64::from(frames) * 65_536, arrived_ns: now_ns };
        let verdict = auto.published(now_ns, batch);
        if frames == 4 {
            assert_eq!(verdict, Verdict::Call);
        }
        if verdict == Verdict::Call {
            auto.delivered(now_ns, Delivery::Called);
        }
    }
    assert_eq!(auto.decision().hold_ns, BUDGET_NS, "{:?}", auto.decision());
}
