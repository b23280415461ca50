//! Held calls: the moment when they are given, and that none is lost, whatever happens to the guest.

use std::sync::Mutex;

use super::*;
use weir_engine::Port;
use weir_engine::guest::GuestPort;
use weir_policy::law::LAW;
use weir_policy::moderation::{Batch, Decision, Delivery, Moderation, Verdict};

/// Longer than any test takes: no hold ends by its deadline.
const FOREVER_NS: u64 = 3_600_000_000_000;

/// Holds every frame until something else ends the hold, and notes how holds ended.
#[derive(Debug, Clone, Default)]
struct Keeps {
    withholds: bool,
    ended: Arc<Mutex<Vec<Delivery>>>,
}

impl Keeps {
    fn ended(&self) -> Vec<Delivery> {
        self.ended.lock().unwrap().clone()
    }
}

impl Moderation for Keeps {
    fn kind(&self) -> Kind {
        Kind::Backend
    }

    fn published(&mut self, now_ns: u64, _batch: Batch) -> Verdict {
        Verdict::HoldUntil(now_ns + FOREVER_NS)
    }

    fn expired(&mut self, now_ns: u64) -> Verdict {
        Verdict::HoldUntil(now_ns + FOREVER_NS)
    }

    fn delivered(&mut self, _now_ns: u64, how: Delivery) {
        self.ended.lock().unwrap().push(how);
    }

    fn set_hold_ns_max(&mut self, _hold_ns_max: u64) {}

    fn reset(&mut self) {}

    fn decision(&self) -> Decision {
        Decision { hold_ns: FOREVER_NS, reason: "a test" }
    }

    fn withholds(&self) -> bool {
        self.withholds
    }
}

/// Gives the guest's first receive queue a policy that holds everything.
fn keep(guest: &Guest, withholds: bool) -> Keeps {
    let policy = Keeps { withholds, ..Keeps::default() };
    let calls = CallPolicy::within(Kind::Backend, FOREVER_NS);
    let new = Box::new(policy.clone());
    let _old = guest.port.first_rx().set_moderation(0, new, &calls, guest.port.counters());
    policy
}

/// Two guests that know each other. The second is notified of nothing, and wants to be.
fn sender_and_kept(switch: &Switch, format: u64, withholds: bool) -> (Guest, Guest, Keeps) {
    let (mut a, mut b) = (switch.guest(1, format), switch.guest(2, format));
    introduce(&mut a, &mut b);
    let policy = keep(&b, withholds);
    b.rx.enable_calls();
    b.calls(0);
    (a, b, policy)
}

fn send(from: &mut Guest, to: &Guest, numbers: std::ops::Range<u8>) {
    for number in numbers {
        let sent = frame(from, Some(to), 60, number);
        from.send(&sent);
    }
}

fn given(guest: &Guest) -> u64 {
    guest.port.counters().rx[0].calls.get()
}

#[test]
fn withheld_frames_are_seen_in_order_and_with_their_one_call() {
    for format in formats() {
        let switch = Switch::new();
        let (mut a, mut b, policy) = sender_and_kept(&switch, format, true);
        let before = given(&b);
        // The longer frames are copied after they were placed.
        send(&mut a, &b, 0..3);
        let long = frame(&a, Some(&b), 5_000, 3);
        a.send(&long);
        assert_eq!((b.received(), b.calls(0), given(&b)), (None, 0, before), "held and unseen");
        b.port.interface().set_moderation(&CallPolicy::within(Kind::Immediate, 0));
        let got: Vec<u8> = (0..4).map(|_| b.received().expect("all at once").1[14]).collect();
        assert_eq!(got, [0, 1, 2, 3]);
        assert_eq!((b.calls(0), given(&b)), (1, before + 1));
        assert_eq!(policy.ended(), [Delivery::Called], "before the new policy begins");
    }
}

#[test]
fn a_held_call_for_frames_in_sight_is_given_before_the_policy_changes() {
    for format in formats() {
        let switch = Switch::new();
        let (mut a, mut b, policy) = sender_and_kept(&switch, format, false);
        send(&mut a, &b, 0..2);
        assert_eq!(b.calls(0), 0, "held");
        b.port.interface().set_moderation(&CallPolicy::within(Kind::Immediate, 0));
        assert_eq!((b.calls(0), policy.ended()), (1, vec![Delivery::Called]));
        assert_eq!(b.received().unwrap().1[14], 0);
    }
}

#[test]
fn a_guest_that_took_held_frames_by_itself_is_not_called() {
    for format in formats() {
        let switch = Switch::new();
        let (mut a, mut b, policy) = sender_and_kept(&switch, format, false);
        send(&mut a, &b, 0..2);
        assert!(b.received().is_some() && b.received().is_some());
        b.rx.enable_calls();
        b.port.interface().set_moderation(&CallPolicy::within(Kind::Immediate, 0));
        assert_eq!((policy.ended(), b.calls(0)), (vec![Delivery::Polled], 0));
        // The next frame calls the guest.
        send(&mut a, &b, 2..3);
        eventually("the call", || b.calls(0) == 1);
    }
}

#[test]
fn half_a_ring_of_held_frames_is_called_for() {
    for (format, withholds) in formats().into_iter().zip([true, false, true, false]) {
        let switch = Switch::new();
        let (mut a, mut b, policy) = sender_and_kept(&switch, format, withholds);
        let half = SIZE as u8 / 2;
        send(&mut a, &b, 0..half - 1);
        assert_eq!(policy.ended(), []);
        send(&mut a, &b, half - 1..half);
        assert_eq!((policy.ended(), b.calls(0)), (vec![Delivery::Called], 1));
        for number in 0..half {
            assert_eq!(b.received().expect("all of them").1[14], number);
        }
    }
}

#[test]
fn a_guest_whose_few_buffers_are_all_held_gets_them_at_once() {
    fn gets_all_of_them(format: u64, withholds: bool) -> bool {
        let switch = Switch::new();
        let mut a = switch.guest(1, format);
        let (port, stream) = switch.port();
        let mut b = Guest::new(port, stream, 2, format);
        b.set_up().unwrap();
        b.post(8);
        b.kick(0);
        b.kick(1);
        let port = Arc::clone(&b.port);
        eventually("the rings start", || port.info().state == State::Running);
        introduce(&mut a, &mut b);
        let policy = keep(&b, withholds);
        b.rx.enable_calls();
        b.calls(0);
        // One of eight buffers is used up.
        send(&mut a, &b, 0..7);
        assert_eq!(policy.ended(), []);
        let more = frame(&a, Some(&b), 60, 7);
        a.offer(0, &VnetHdr::default(), &more);
        a.send_now();
        eventually("the call", || b.calls(0) == 1);
        for number in 0..7 {
            assert_eq!(b.received().expect("all of them").1[14], number);
        }
        b.post(2);
        a.reap();
        b.port.interface().set_moderation(&CallPolicy::within(Kind::Immediate, 0));
        // The frame has waited for a buffer.
        let last = b.wait_received_or_lost(&a.port);
        assert!(last.as_ref().is_none_or(|(_, last)| *last == more));
        last.is_some()
    }
    for (format, withholds) in formats().into_iter().zip([true, false, true, false]) {
        until_none_is_late(|| gets_all_of_them(format, withholds));
    }
}

#[test]
fn a_stalled_guest_keeps_no_senders_buffers() {
    let switch = Switch::new();
    let (mut a, b, _policy) = sender_and_kept(&switch, modern(), true);
    for _ in 0..4 {
        for slot in 0..32 {
            let sent = frame(&a, Some(&b), 1500, slot as u8);
            a.offer(slot, &VnetHdr::default(), &sent);
        }
        a.send_now();
        a.reap();
    }
}

#[test]
fn a_ring_that_stops_shows_what_was_held_and_calls() {
    for format in formats() {
        let switch = Switch::new();
        let (mut a, mut b, policy) = sender_and_kept(&switch, format, true);
        send(&mut a, &b, 0..3);
        b.front.get_vring_base(0).unwrap();
        assert_eq!((policy.ended(), b.calls(0)), (vec![Delivery::Called], 1));
        for number in 0..3 {
            assert_eq!(b.received().expect("all of them").1[14], number);
        }
    }
}

#[test]
fn a_session_that_ends_or_a_reset_shows_what_was_held() {
    for reset in [true, false] {
        let switch = Switch::new();
        let (mut a, mut b, policy) = sender_and_kept(&switch, modern(), true);
        send(&mut a, &b, 0..3);
        if reset {
            b.front.reset_device().unwrap();
        } else {
            let (gone, _other) = UnixStream::pair().unwrap();
            b.front = FrontEnd::new(gone);
        }
        eventually("the end of the hold", || policy.ended() == [Delivery::Called]);
        assert_eq!(b.calls(0), 1);
        for number in 0..3 {
            assert_eq!(b.received().expect("all of them").1[14], number);
        }
    }
}

#[test]
fn a_held_call_is_given_at_its_deadline() {
    for format in formats() {
        let switch = Switch::new();
        let (mut a, mut b, _) = sender_and_kept(&switch, format, false);
        b.port.interface().set_moderation(&CallPolicy::within(Kind::Backend, 5_000_000));
        for number in 0..5 {
            send(&mut a, &b, number..number + 1);
            eventually("the call", || b.calls(0) == 1);
            assert_eq!(b.wait_received().1[14], number);
            b.post(1);
            b.rx.enable_calls();
        }
        assert!(b.port.interface().call_times().hold.max > 0);
        assert_eq!(b.port.counters().breaches().find(|(reason, _)| *reason == "policy"), None);
    }
}

#[test]
fn a_frame_that_a_worker_came_to_late_is_a_breach_although_it_never_waited_for_buffers() {
    for (cpu_clock, reason) in
        [(CpuClock::Running, "forwarded_late"), (CpuClock::Stopped, "no_cpu")]
    {
        let options = EngineOptions { workers: 1, cpu_clock, ..EngineOptions::default() };
        let switch = Switch::with_options(options);
        let (mut a, mut b, _) = sender_and_kept(&switch, modern(), false);
        let all = || b.port.counters().breaches().map(|(_, count)| count).sum::<u64>();
        let of = |name| b.port.counters().breaches().find(|(reason, _)| *reason == name);
        let count = || of(reason).map_or(0, |(_, count)| count);
        // The earlier budget may also have been too short for this machine.
        let before = (count(), all());
        // No worker keeps this budget.
        b.port.interface().set_moderation(&CallPolicy::within(Kind::Immediate, 1));
        send(&mut a, &b, 0..1);
        eventually("the breach", || all() > before.1);
        assert_eq!((count(), all()), (before.0 + 1, before.1 + 1), "{cpu_clock:?}");
        assert_eq!(b.wait_received().1[14], 0);
    }
}

#[test]
fn a_user_can_say_how_many_frames_or_how_much_time_make_a_call() {
    let switch = Switch::new();
    let (mut a, mut b, _) = sender_and_kept(&switch, modern(), false);
    let calls = CallPolicy::within(Kind::Backend, FOREVER_NS);
    b.port.interface().set_moderation(&CallPolicy { rx_frames: Some(3), ..calls });
    send(&mut a, &b, 0..2);
    assert_eq!(b.calls(0), 0);
    send(&mut a, &b, 2..3);
    assert_eq!(b.calls(0), 1);
    while b.received().is_some() {}
    b.rx.enable_calls();
    b.port.interface().set_moderation(&CallPolicy { rx_ns: Some(0), ..calls });
    send(&mut a, &b, 3..4);
    assert_eq!(b.calls(0), 1, "the time that was asked for is over at once");
}

#[test]
fn a_worker_naps_no_longer_than_the_policy_in_force_lets_frames_wait() {
    let switch = Switch::new();
    let guest = switch.guest(1, modern());
    for (kind, rx_ns, wait_ns_max) in [
        (Kind::Auto, None, 100_000),
        (Kind::Backend, Some(30_000), 30_000),
        (Kind::Immediate, None, 0),
    ] {
        guest
            .port
            .interface()
            .set_moderation(&CallPolicy { rx_ns, ..CallPolicy::within(kind, 100_000) });
        assert_eq!(guest.port.wait_ns_max(), wait_ns_max, "{kind}");
    }
}

#[test]
fn no_limit_of_holds_is_larger_than_the_budget_leaves() {
    let switch = Switch::new();
    let guest = switch.guest(1, modern());
    let calls = CallPolicy::within(Kind::Backend, 100_000);
    guest.port.interface().set_moderation(&calls);
    assert_eq!(calls.hold_ns_max(), 80_000, "20 us are for timers");
    let limits =
        || guest.port.interface().decisions().iter().map(|q| q.hold_ns_max).collect::<Vec<_>>();
    assert_eq!(limits(), [80_000; 2]);
    guest.port.interface().set_hold_ns_max(Some(1), 10_000);
    assert_eq!(limits(), [80_000, 10_000]);
    guest.port.interface().set_hold_ns_max(None, u64::MAX);
    assert_eq!(limits(), [80_000; 2]);
    assert_eq!(guest.port.interface().decisions()[0].decision.hold_ns, 80_000);
    for too_short_ns in [0, 1, LAW.margin_ns] {
        assert_eq!(CallPolicy::within(Kind::Backend, too_short_ns).hold_ns_max(), 0);
    }
}

/// A guest whose small frames are completed under a policy that holds calls for a long time, and one to
/// send them to.
fn held_sender(switch: &Switch, format: u64) -> (Guest, Guest) {
    let (mut a, mut b) = (switch.guest(1, format), switch.guest(2, format));
    introduce(&mut a, &mut b);
    a.port.interface().set_moderation(&CallPolicy::within(Kind::Backend, FOREVER_NS));
    a.tx.enable_calls();
    a.calls(1);
    (a, b)
}

#[test]
fn a_call_for_completed_small_frames_waits_and_is_given_before_the_ring_stops() {
    for format in formats() {
        let switch = Switch::new();
        let (mut a, b) = held_sender(&switch, format);
        send_unseen(&mut a, &b, 3, 60);
        let port = Arc::clone(&b.port);
        eventually("they arrive", || port.counters().rx[0].frames.get() == 4);
        assert_eq!(a.calls(1), 0, "held");
        a.front.get_vring_base(1).unwrap();
        assert_eq!(a.calls(1), 1);
        while a.tx.take().is_some() {}
        assert_eq!(a.tx.in_flight(), 0);
    }
}

/// Sends frames and does not check that they are completed.
fn send_unseen(from: &mut Guest, to: &Guest, count: u64, len: usize) {
    for slot in 0..count {
        let sent = frame(from, Some(to), len, slot as u8);
        from.offer(slot, &VnetHdr::default(), &sent);
        from.send_now();
    }
}

#[test]
fn a_call_for_completed_bulk_data_is_given_at_once() {
    for format in formats() {
        let switch = Switch::new();
        let (mut a, b) = held_sender(&switch, format);
        send_unseen(&mut a, &b, 1, 1500);
        eventually("the call", || a.calls(1) == 1);
    }
}

#[test]
fn a_call_for_completed_frames_is_given_when_the_ring_runs_full() {
    for format in formats() {
        let switch = Switch::new();
        let (mut a, b) = held_sender(&switch, format);
        send_unseen(&mut a, &b, u64::from(SIZE / 2) + 1, 60);
        eventually("the call", || a.calls(1) == 1);
    }
}

#[test]
fn a_guest_that_freed_its_completed_frames_by_itself_is_not_called_for_them() {
    for format in formats() {
        let switch = Switch::new();
        let (mut a, b) = held_sender(&switch, format);
        send_unseen(&mut a, &b, 3, 60);
        a.reap();
        a.tx.enable_calls();
        a.port.interface().set_moderation(&CallPolicy::within(Kind::Immediate, 0));
        assert_eq!(a.calls(1), 0);
        send_unseen(&mut a, &b, 1, 60);
        eventually("the call for the next", || a.calls(1) == 1);
    }
}

#[test]
fn a_held_call_for_completed_frames_is_given_at_its_deadline() {
    for format in formats() {
        let switch = Switch::new();
        let (mut a, b) = held_sender(&switch, format);
        a.port.interface().set_moderation(&CallPolicy::within(Kind::Backend, 5_000_000));
        for _ in 0..5 {
            send_unseen(&mut a, &b, 1, 60);
            eventually("the call", || a.calls(1) == 1);
            a.reap();
            a.tx.enable_calls();
        }
    }
}

/// A guest with this budget that has received a frame without a call, and has sent a frame itself.
fn held_both_ways(switch: &Switch, format: u64, budget_ns: u64) -> (Guest, Keeps) {
    let (mut a, mut b) = held_sender(switch, format);
    a.port.interface().set_moderation(&CallPolicy::within(Kind::Backend, budget_ns));
    let received = keep(&a, false);
    a.rx.enable_calls();
    a.calls(0);
    send(&mut b, &a, 0..1);
    let port = Arc::clone(&a.port);
    eventually("it arrives", || port.counters().rx[0].frames.get() == 2);
    send_unseen(&mut a, &b, 1, 60);
    (a, received)
}

#[test]
fn a_held_call_for_received_frames_is_given_for_completed_ones_as_well() {
    for format in formats() {
        let switch = Switch::new();
        // The guest has a quarter of the budget for its handler.
        let (mut a, received) = held_both_ways(&switch, format, 1_000_000_000);
        eventually("the call for what was received", || a.calls(0) == 1);
        a.reap();
        a.tx.enable_calls();
        // The call comes first. Its policy learns of the end after that.
        eventually("its policy is told", || received.ended() == [Delivery::Called]);
        std::thread::sleep(Duration::from_millis(400));
        assert_eq!(a.calls(1), 0, "it was told of both");
    }
}

#[test]
fn a_driver_whose_handler_frees_nothing_is_called_for_completed_frames_too() {
    for format in formats() {
        let switch = Switch::new();
        let (a, _received) = held_both_ways(&switch, format, 10_000_000);
        eventually("the call for what was received", || a.calls(0) == 1);
        eventually("the other one", || a.calls(1) == 1);
    }
}
