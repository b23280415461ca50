//! Both clocks are simulated: the losses and their times follow from the readings.

use super::*;

const US: u64 = 1_000;
const START_NS: u64 = 1_000_000;

/// A worker whose clocks stand at [`START_NS`] and 0.
fn started() -> Losses {
    let mut losses = Losses::NONE;
    losses.read(0, START_NS, 0);
    losses
}

#[test]
fn time_awake_without_a_processor_is_lost_and_sleep_is_not() {
    let now_ns = START_NS + 1_000 * US;
    // The worker works for 400 us, sleeps for 300 us, and works again.
    let asleep = (START_NS + 400 * US, START_NS + 700 * US);
    let lost_ns = |cpu_before_ns, cpu_ns| {
        let mut losses = started();
        losses.slept(asleep.0, asleep, cpu_before_ns);
        losses.lost_ns((START_NS, now_ns), asleep.1, (now_ns, cpu_ns))
    };
    assert_eq!(lost_ns(400 * US, 700 * US), 0);
    assert_eq!(lost_ns(350 * US, 650 * US), 50 * US, "before it slept");
    assert_eq!(lost_ns(400 * US, 600 * US), 100 * US, "afterwards");
    assert_eq!(lost_ns(420 * US, 620 * US), 100 * US, "what a sleep itself takes hides nothing");
    assert_eq!(lost_ns(400 * US, 900 * US), 0, "clocks are read one by one");
}

#[test]
fn what_was_lost_before_a_hold_or_after_it_explains_nothing() {
    let mut losses = started();
    // The worker is away for 400 us, of which it works for 100 us, and then works without a break.
    let (away_ns, back_ns) = (START_NS + 100 * US, START_NS + 500 * US);
    losses.read(away_ns, back_ns, 200 * US);
    let now = (back_ns + 400 * US, 600 * US);
    let lost_ns = |hold| losses.lost_ns(hold, now.0, now);
    assert_eq!(lost_ns((START_NS, now.0)), 300 * US);
    assert_eq!(lost_ns((away_ns, back_ns)), 300 * US);
    assert_eq!(lost_ns((back_ns, now.0)), 0, "lost before");
    assert_eq!(lost_ns((START_NS, away_ns)), 0, "lost after");
}

#[test]
fn of_a_loss_that_began_before_a_hold_counts_what_must_have_been_within() {
    let mut losses = started();
    let back_ns = START_NS + 400 * US;
    losses.read(START_NS, back_ns, 100 * US);
    let lost_ns = |hold| losses.lost_ns(hold, back_ns, (back_ns, 100 * US));
    // 300 of 400 us were lost. Of any 150 of them it can have worked in 100.
    assert_eq!(lost_ns((back_ns - 150 * US, back_ns)), 50 * US);
    assert_eq!(lost_ns((START_NS, START_NS + 150 * US)), 50 * US);
    assert_eq!(lost_ns((back_ns - 100 * US, back_ns)), 0);
}

#[test]
fn what_is_lost_now_counts_before_anybody_has_noted_it() {
    let losses = started();
    let looked_ns = START_NS + 500 * US;
    let now_ns = looked_ns + 200 * US;
    // The worker has worked since, except for 150 us, which it cannot have lost before the last reading.
    let now = (now_ns, 550 * US);
    assert_eq!(losses.lost_ns((looked_ns, now_ns), looked_ns, now), 150 * US);
    assert_eq!(losses.lost_ns((now_ns - 60 * US, now_ns), looked_ns, now), 10 * US);
    // A loss longer than the time since the last reading was partly earlier, at an unknown time.
    let now = (now_ns, 450 * US);
    assert_eq!(losses.lost_ns((looked_ns, now_ns), looked_ns, now), 200 * US);
    assert_eq!(losses.lost_ns((START_NS, now_ns), looked_ns, now), 250 * US);
}

#[test]
fn a_timer_that_fires_late_is_a_loss_from_then_on() {
    let mut losses = started();
    let (due_ns, back_ns) = (START_NS + 100 * US, START_NS + 180 * US);
    losses.slept(START_NS, (START_NS, back_ns), 0);
    losses.push(Loss { from_ns: due_ns, until_ns: back_ns, lost_ns: back_ns - due_ns });
    let lost_ns = |hold| losses.lost_ns(hold, back_ns, (back_ns, 0));
    assert_eq!(lost_ns((START_NS, back_ns)), 80 * US, "once, although it was a part of a sleep");
    assert_eq!(lost_ns((due_ns + 30 * US, back_ns)), 50 * US);
    assert_eq!(lost_ns((START_NS, due_ns)), 0);
}

#[test]
fn the_latest_losses_are_remembered() {
    let mut losses = started();
    let at_ns = |number: u64| START_NS + number * 100 * US;
    for number in 0..3 * LOSSES as u64 {
        losses.read(at_ns(number), at_ns(number + 1), (number + 1) * 40 * US);
    }
    let (last, end_ns) = (3 * LOSSES as u64, at_ns(3 * LOSSES as u64));
    let lost_ns =
        |number| losses.lost_ns((at_ns(number), end_ns), end_ns, (end_ns, last * 40 * US));
    assert_eq!(lost_ns(last - 5), 5 * 60 * US);
    assert_eq!(lost_ns(0), LOSSES as u64 * 60 * US, "and no more of them");
}

#[test]
fn clocks_that_go_backwards_are_no_loss() {
    let losses = started();
    assert_eq!(losses.lost_ns((0, u64::MAX), 0, (START_NS - 1, 0)), 0);
    assert_eq!(losses.lost_ns((0, u64::MAX), u64::MAX, (START_NS, u64::MAX)), 0);
}

#[test]
fn a_thread_that_was_stopped_has_lost_that_time_and_only_then() {
    let before_ns = clock::now_ns();
    look(before_ns);
    // The sleep is not reported, so it counts as a loss.
    std::thread::sleep(std::time::Duration::from_millis(20));
    let stopped_ns = clock::now_ns();
    assert!(lost_ns(before_ns, stopped_ns, stopped_ns) >= 15_000_000);
    look(stopped_ns);
    let now_ns = clock::now_ns();
    assert!(lost_ns(before_ns, stopped_ns, now_ns) >= 15_000_000);
    assert!(lost_ns(stopped_ns, now_ns, now_ns) <= now_ns - stopped_ns);
}

#[test]
fn a_thread_that_is_no_worker_has_lost_nothing() {
    std::thread::spawn(|| {
        let now_ns = clock::now_ns();
        assert_eq!(lost_ns(0, now_ns, now_ns), 0);
    })
    .join()
    .unwrap();
}
