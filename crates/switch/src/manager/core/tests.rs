//! The manager's decisions in virtual time, with simulated guests.

use weir_policy::budget::shares;

use super::*;

const LOOK_NS: u64 = 100_000_000;
const BUDGET_NS: u64 = 1_000_000;

/// A switch at which the manager looks repeatedly.
struct Played {
    core: Core,
    look: Look,
    /// Frames that each interface receives between two looks.
    frames: Vec<u64>,
}

fn id(number: u16) -> PortId {
    PortId::new(number).unwrap()
}

fn played(kinds: &[Kind]) -> Played {
    let vif = |(number, kind): (u16, &Kind)| VifLook {
        id: id(number),
        kind: *kind,
        hold_ns_max: BUDGET_NS,
        running: true,
        frames: 0,
        bytes: 0,
        calls: 0,
        guest_cpu: None,
        agent_cost_ns: None,
        received: 0,
        pollable_ns: None,
    };
    let vifs: Vec<_> = (0..).zip(kinds).map(vif).collect();
    let frames = vec![1_000; vifs.len()];
    let look = Look { uplink_settable: true, vifs, ..Look::default() };
    Played { core: Core::default(), look, frames }
}

impl Played {
    fn step(&mut self) -> Decision {
        self.look.now_ns += LOOK_NS;
        for (vif, frames) in self.look.vifs.iter_mut().zip(&self.frames) {
            vif.frames += frames;
            vif.received += frames;
            vif.bytes += 1_000 * frames;
        }
        let decision = self.core.decide(&self.look);
        for (id, part) in &decision.vifs {
            let vif = self.look.vifs.iter().find(|vif| vif.id == *id).unwrap();
            let longer_ns = decision.uplink_ns.saturating_sub(self.look.uplink_found_ns);
            assert!(longer_ns + part.vif_ns <= vif.hold_ns_max, "{decision:?}");
        }
        decision
    }

    fn steps(&mut self, looks: u32) -> Decision {
        (1..looks).for_each(|_| drop(self.step()));
        self.step()
    }
}

#[test]
fn dong_2011_eq_4_splits_the_budget_among_those_with_traffic() {
    let share = |vifs: usize| {
        let decision = played(&vec![Kind::TwoLayer; vifs]).steps(30);
        assert_eq!(decision.sharing, Sharing::Split);
        (decision.uplink_ns, decision.vifs[&id(0)].vif_ns, decision.busy)
    };
    // T / (1 + sqrt(n)) with equal costs.
    assert_eq!(share(1), (500_000, 500_000, 1));
    assert_eq!(share(4), (333_333, 666_667, 4));
    assert_eq!(share(9), (250_000, 750_000, 9));
}

#[test]
fn two_managers_behind_one_another_split_as_eq_4_does_over_three_layers() {
    for (call_ns, vifs) in [(4_000, 1), (36_000, 1), (9_000, 4)] {
        let mut inner = played(&vec![Kind::TwoLayer; vifs]);
        inner.look.vifs.iter_mut().for_each(|vif| vif.agent_cost_ns = Some(call_ns));
        let here = inner.steps(30);
        let mut outer = played(&[Kind::Frontend]);
        let cost_ns = inner.core.layers_cost_ns(Some(&here), inner.look.now_ns);
        outer.look.vifs[0].agent_cost_ns = Some(cost_ns);
        let below = outer.steps(30);
        let given_ns = below.vifs[&id(0)].poll_ns.unwrap();
        inner.look.vifs.iter_mut().for_each(|vif| vif.hold_ns_max = given_ns);
        let here = inner.step();
        let are = [below.uplink_ns, here.uplink_ns, here.vifs[&id(0)].vif_ns];
        assert_eq!(are.iter().sum::<u64>(), BUDGET_NS);
        let layer = |cost_ns, places| Layer { cost_ns, places };
        let uplink = layer(COST_NS_DEFAULT, 1);
        let calls = layer(call_ns as f64, vifs as u32);
        for (is, wanted) in are.iter().zip(shares(BUDGET_NS, [uplink, uplink, calls])) {
            assert!(is.abs_diff(wanted) < BUDGET_NS / 10_000, "{are:?}, not {wanted}");
        }
    }
}

#[test]
fn who_has_had_no_frame_for_a_second_does_not_count() {
    let mut switch = played(&[Kind::TwoLayer; 4]);
    assert_eq!(switch.steps(30).busy, 4);
    switch.frames = vec![1_000, 0, 0, 0];
    assert_eq!(switch.step().busy, 4);
    assert_eq!(switch.steps(20).busy, 1);
}

#[test]
fn without_an_interval_to_set_calls_have_all_of_the_budget() {
    let mut switch = played(&[Kind::TwoLayer, Kind::Frontend]);
    switch.look.uplink_settable = false;
    let decision = switch.steps(3);
    assert_eq!((decision.uplink_ns, decision.sharing), (0, Sharing::NoUplink));
    assert!(decision.vifs.values().all(|part| part.vif_ns == BUDGET_NS));
}

#[test]
fn frames_of_who_takes_no_part_do_not_wait_at_the_uplink() {
    for kind in [Kind::Immediate, Kind::Backend, Kind::Aggregate] {
        let mut switch = played(&[Kind::TwoLayer, kind]);
        let decision = switch.steps(3);
        assert_eq!((decision.uplink_ns, decision.sharing), (0, Sharing::Refused(id(1))));
        assert!(!decision.vifs.contains_key(&id(1)), "its limit is not the manager's");
        // An interface without a guest receives nothing.
        switch.look.vifs[1].running = false;
        assert_eq!(switch.step().sharing, Sharing::Split);
    }
}

#[test]
fn under_auto_all_are_held_together_once_a_trial_has_found_it_harmless() {
    let mut switch = played(&[Kind::Auto, Kind::Auto, Kind::TwoLayer]);
    let first = switch.step();
    assert_eq!((first.uplink_ns, first.vifs[&id(0)].vif_ns), (0, BUDGET_NS));
    let decision = switch.steps(40);
    let harmless = Sharing::Together { held: true, why: attempt::Why::Harmless };
    assert_eq!(decision.sharing, harmless);
    assert!(decision.uplink_ns > BUDGET_NS / 4, "{decision:?}");
    let parts = [0, 1].map(|number| decision.vifs[&id(number)]);
    assert!(parts.iter().all(|it| it.together && it.vif_ns == BUDGET_NS - decision.uplink_ns));
    // The interface's own gathering time is not part of weir's budget.
    switch.look.uplink_found_ns = 250_000;
    let decision = switch.step();
    assert_eq!(decision.uplink_ns - 250_000 + decision.vifs[&id(0)].vif_ns, BUDGET_NS);
    // A few pings suffice.
    switch.frames[1] = 3;
    let decision = switch.step();
    let light = Sharing::Together { held: false, why: attempt::Why::Light(1) };
    assert_eq!((decision.uplink_ns, decision.sharing), (0, light));
    assert!(!decision.vifs[&id(0)].together && decision.vifs[&id(0)].vif_ns == BUDGET_NS);
}

#[test]
fn under_auto_a_load_that_is_slower_when_held_together_is_left_alone() {
    let mut switch = played(&[Kind::Auto; 2]);
    let mut held = 0;
    for _ in 0..300 {
        let together = switch.step().uplink_ns > 0;
        held += u32::from(together);
        switch.frames = vec![if together { 600 } else { 1_000 }; 2];
    }
    assert!((1..20).contains(&held), "{held} of 300 looks");
}

#[test]
fn the_smallest_budget_bounds_what_the_uplink_gathers_and_the_rest_is_each_ones_own() {
    let mut switch = played(&[Kind::TwoLayer; 2]);
    switch.look.vifs[1].hold_ns_max = 100_000;
    let decision = switch.steps(30);
    assert!(decision.uplink_ns < 100_000);
    let parts = [0, 1].map(|number| decision.vifs[&id(number)].vif_ns);
    assert!(parts[0] > 500_000 && parts[1] < 100_000, "{parts:?}");
}

#[test]
fn only_a_guest_that_holds_by_itself_is_asked_to_poll_and_within_bounds() {
    let mut switch = played(&[Kind::TwoLayer, Kind::Frontend]);
    let decision = switch.steps(3);
    assert_eq!(decision.vifs[&id(0)].poll_ns, None);
    let part = decision.vifs[&id(1)];
    assert_eq!(part.poll_ns, Some(part.vif_ns));
    for (budget_ns, poll_ns) in [(0, None), (5_000, None), (900_000_000, Some(AGENT_POLL_NS_MAX))] {
        let mut switch = played(&[Kind::Frontend]);
        switch.look.vifs[0].hold_ns_max = budget_ns;
        switch.look.uplink_settable = false;
        assert_eq!(switch.steps(3).vifs[&id(0)].poll_ns, poll_ns, "{budget_ns}");
    }
}

/// Runs a switch without uplink, with one guest under `auto` that could poll, for `looks` looks; returns the number
/// of looks at which the guest was to poll. `frames` gives the traffic, from a flag that is true while the guest
/// polls.
fn polled(looks: u32, frames: impl Fn(bool) -> u64) -> (u32, Decision) {
    let mut switch = played(&[Kind::Auto]);
    switch.look.uplink_settable = false;
    switch.look.vifs[0].pollable_ns = Some(BUDGET_NS / 4);
    let mut polled = 0;
    let mut decision = switch.step();
    for _ in 0..looks {
        let polls = decision.vifs[&id(0)].poll_ns;
        assert!(polls.is_none_or(|ns| ns == BUDGET_NS / 4), "for as long as it would hold");
        polled += u32::from(polls.is_some());
        switch.frames = vec![frames(polls.is_some())];
        decision = switch.step();
    }
    (polled, decision)
}

#[test]
fn under_auto_a_guest_polls_once_a_trial_has_found_it_harmless_for_as_long_as_it_would_be_held() {
    let (polls, decision) = polled(100, |_| 4_000);
    assert!(polls > 80, "{polls}");
    assert_eq!(decision.vifs[&id(0)].polling, Some(attempt::Why::Harmless));
}

#[test]
fn under_auto_a_guest_that_is_slower_for_it_is_called() {
    let (polls, decision) = polled(300, |polls| if polls { 3_300 } else { 5_000 });
    assert!((1..20).contains(&polls), "{polls} of 300 looks");
    assert_eq!(decision.vifs[&id(0)].polling, Some(attempt::Why::Slower));
}

#[test]
fn under_auto_clients_of_whom_little_comes_when_their_guest_polls_are_left_alone() {
    let (polls, _) = polled(1_000, |polls| if polls { 500 } else { 4_000 });
    assert!((1..20).contains(&polls), "{polls} of 1000 looks");
}

#[test]
fn under_auto_a_guest_with_few_frames_or_without_holds_is_never_asked_to_poll() {
    // The rate is below eight frames in a quarter of a millisecond.
    assert_eq!(polled(300, |_| 3_100).0, 0);
    for pollable_ns in [None, Some(0), Some(AGENT_POLL_NS_MIN - 1)] {
        let mut switch = played(&[Kind::Auto]);
        switch.look.uplink_settable = false;
        switch.look.vifs[0].pollable_ns = pollable_ns;
        assert!((0..100).all(|_| switch.step().vifs[&id(0)].poll_ns.is_none()));
    }
}

#[test]
fn whether_a_guest_may_poll_is_not_found_out_while_all_are_tried_together() {
    let mut switch = played(&[Kind::Auto; 2]);
    switch.frames = vec![2_000; 2];
    switch.look.vifs[0].pollable_ns = Some(BUDGET_NS);
    for _ in 0..100 {
        let decision = switch.step();
        let tried = matches!(decision.sharing, Sharing::Together { why: attempt::Why::Tried, .. });
        let polling = decision.vifs[&id(0)].polling;
        assert!(!(tried && polling == Some(attempt::Why::Tried)), "{decision:?}");
    }
    assert_eq!(switch.step().vifs[&id(0)].polling, Some(attempt::Why::Harmless));
}

#[test]
fn an_agent_that_lies_moves_its_own_interface_only() {
    for vifs in [2, 3, 5] {
        let honest = played(&vec![Kind::TwoLayer; vifs]).steps(30);
        for lie_ns in [1, 100, 400_000, u64::MAX] {
            let mut switch = played(&vec![Kind::TwoLayer; vifs]);
            switch.look.vifs[0].agent_cost_ns = Some(lie_ns);
            let decision = switch.steps(30);
            assert_eq!(decision.uplink_ns, honest.uplink_ns, "{vifs}: {lie_ns}");
            for number in 1..vifs {
                let id = id(number.try_into().unwrap());
                assert_eq!(decision.vifs[&id].vif_ns, honest.vifs[&id].vif_ns);
            }
        }
    }
}

#[test]
fn costs_are_learned_from_cpu_times_and_the_agent_knows_better() {
    let mut switch = played(&[Kind::TwoLayer]);
    assert_eq!(switch.core.uplink_cost().source, Source::Default);
    let mut totals = [0; 4];
    for step in 0..200 {
        // A wake-up costs 9 us and a call 6 us, and their rates vary independently of the frames' rate.
        let (wakeups, calls) = (100 + 61 * (step % 7), 300 + 97 * (step % 5));
        let frames = 1_000;
        let used = [wakeups * 9_000 + frames * 400, wakeups, calls * 6_000 + frames * 900, calls];
        totals.iter_mut().zip(used).for_each(|(total, used)| *total += used);
        [switch.look.workers_cpu_ns, switch.look.uplink_wakeups, ..] = totals;
        let vif = &mut switch.look.vifs[0];
        vif.guest_cpu = Some(GuestCpu { process: 7, cpu_ns: totals[2] });
        vif.calls = totals[3];
        switch.step();
    }
    let (uplink, call) = (switch.core.uplink_cost(), switch.core.call_cost(id(0)).unwrap());
    assert!(matches!(uplink.source, Source::Regression { .. }), "{uplink:?}");
    assert!((8_000.0..10_000.0).contains(&uplink.ns), "{uplink:?}");
    assert!(matches!(call.source, Source::Regression { .. }), "{call:?}");
    assert!((5_300.0..6_700.0).contains(&call.ns), "{call:?}");

    switch.look.vifs[0].agent_cost_ns = Some(7_000);
    switch.step();
    let call = switch.core.call_cost(id(0)).unwrap();
    assert_eq!((call.ns, call.source), (7_000.0, Source::Agent));

    // A restarted virtual machine counts as another one.
    switch.look.vifs[0].agent_cost_ns = None;
    switch.look.vifs[0].guest_cpu = Some(GuestCpu { process: 8, cpu_ns: 1 });
    switch.step();
    assert_eq!(switch.core.call_cost(id(0)).unwrap().source, Source::Default);
}

#[test]
fn a_split_stands_since_it_moved_last() {
    let mut switch = played(&[Kind::TwoLayer; 4]);
    let first = switch.steps(30);
    let later = switch.steps(30);
    assert_eq!(later.vifs, first.vifs);
    switch.look.vifs[0].hold_ns_max = BUDGET_NS / 2;
    let moved = switch.step();
    assert_eq!(moved.vifs[&id(0)].since_ns, switch.look.now_ns);
}

#[test]
fn counters_that_start_anew_or_a_switch_without_ports_decide_nothing_odd() {
    let mut switch = played(&[Kind::TwoLayer]);
    switch.steps(5);
    switch.look.vifs[0].frames = 0;
    switch.look.workers_cpu_ns = 0;
    switch.steps(5);
    switch.look.vifs.clear();
    let decision = switch.step();
    assert_eq!((decision.uplink_ns, decision.vifs.len(), decision.busy), (0, 0, 0));
}
