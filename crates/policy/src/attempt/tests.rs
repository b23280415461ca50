//! Simulated switches with ten looks a second.

use super::*;

const LOOK_NS: u64 = 100_000_000;
const BUDGET_NS: u64 = 1_000_000;

/// Plays `count` looks over interfaces whose traffic `frames` gives (whether held, number of the
/// look, interface). Returns the number of looks that were held.
fn looks(
    attempt: &mut Attempt,
    count: u32,
    vifs: u32,
    frames: impl Fn(bool, u32, u32) -> u64,
) -> u32 {
    let mut held = 0;
    for at in 0..count {
        let holds = attempt.is_on();
        held += u32::from(holds);
        let traffic = |vif| {
            let frames = frames(holds, at, vif);
            Traffic { vif, frames, bytes: 1_000 * frames }
        };
        let traffic: Vec<_> = (0..vifs).map(traffic).collect();
        attempt.look(&Look { elapsed_ns: LOOK_NS, budget_ns: BUDGET_NS, traffic: &traffic });
    }
    held
}

#[test]
fn a_load_that_nothing_slows_down_is_held_after_one_trial() {
    let mut attempt = Attempt::default();
    looks(&mut attempt, 1 + LAW.in_a_row + 8, 9, |_, _, _| 1_000);
    assert!(attempt.is_on());
    assert_eq!(attempt.why(), Why::Harmless);
    assert!(looks(&mut attempt, 10_000, 9, |_, _, _| 1_000) > 9_800);
}

#[test]
fn a_load_that_is_slower_for_it_is_held_ever_more_rarely() {
    let mut attempt = Attempt::default();
    let slow = |held, _, _| if held { 800 } else { 1_000 };
    assert!(looks(&mut attempt, 100, 3, slow) <= 8);
    assert_eq!(attempt.why(), Why::Slower);
    assert!(looks(&mut attempt, 10_000, 3, slow) < 50);
}

#[test]
fn one_that_hardly_gets_anything_any_more_is_enough() {
    let mut attempt = Attempt::default();
    // Interface 2's loss is the others' gain.
    let robbed = |held, _, vif| match (held, vif) {
        (true, 0) => 500,
        (true, _) => 1_100,
        (false, _) => 1_000,
    };
    looks(&mut attempt, 40, 6, robbed);
    assert_eq!((attempt.is_on(), attempt.why()), (false, Why::Slower));
    let mut attempt = Attempt::default();
    looks(&mut attempt, 40, 6, |_, _, vif| if vif == 0 { 500 } else { 1_100 });
    assert!(attempt.is_on(), "it gets little anyway");
}

#[test]
fn frames_of_who_has_few_wait_for_nobody() {
    let mut attempt = Attempt::default();
    // Four frames in a millisecond are 400 in a look.
    let ping = |_, at: u32, vif| if vif == 2 && at >= 30 { 399 } else { 1_000 };
    assert!(looks(&mut attempt, 30, 3, ping) > 10);
    looks(&mut attempt, 1, 3, |_, _, vif| if vif == 2 { 399 } else { 1_000 });
    assert_eq!((attempt.is_on(), attempt.why()), (false, Why::Light(2)));
    assert_eq!(looks(&mut attempt, 1_000, 3, |_, _, vif| if vif == 2 { 2 } else { 1_000 }), 0);
    assert!(looks(&mut attempt, 30, 3, |_, _, _| 1_000) > 10, "it has gone");
}

#[test]
fn clients_of_whom_little_comes_when_they_are_held_are_left_alone_like_others() {
    let mut attempt = Attempt::default();
    let held = looks(&mut attempt, 1_000, 1, |held, _, _| if held { 200 } else { 480 });
    assert!(held <= 8, "{held} of 1000 looks");
}

#[test]
fn another_interface_or_a_rate_that_falls_is_reason_to_compare_again() {
    let mut attempt = Attempt::default();
    looks(&mut attempt, 30, 3, |_, _, _| 1_000);
    assert_eq!(attempt.why(), Why::Harmless);
    looks(&mut attempt, 1, 4, |_, _, _| 1_000);
    assert_eq!(attempt.why(), Why::Tried);
    looks(&mut attempt, 30, 4, |_, _, _| 1_000);
    assert_eq!(attempt.why(), Why::Harmless);
    // Bulk transfers turn into clients that wait for answers.
    let waits = |held, _, _| if held { 500 } else { 1_500 };
    assert!(looks(&mut attempt, 60, 4, waits) < 8);
    assert_eq!(attempt.why(), Why::Slower);
}

#[test]
fn nothing_is_held_where_it_is_refused_or_nobody_has_traffic() {
    let mut attempt = Attempt::default();
    looks(&mut attempt, 30, 2, |_, _, _| 1_000);
    attempt.refuse();
    assert!(!attempt.is_on());
    looks(&mut attempt, 30, 2, |_, _, _| 1_000);
    assert!(attempt.is_on());
    looks(&mut attempt, 1, 0, |_, _, _| 0);
    assert_eq!(looks(&mut attempt, 100, 0, |_, _, _| 0), 0);
}
