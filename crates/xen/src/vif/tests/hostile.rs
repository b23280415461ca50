//! Guests that lie: each loses its vif with a reason, and nothing stays mapped.

use super::*;

/// A front end with netfront's keys, except for the changes of `lie`.
fn lies(lie: impl FnOnce(&mut Front)) -> (Bench, Front) {
    let (mut bench, mut front) = Bench::with_guest();
    bench.settle();
    front.keys(1);
    lie(&mut front);
    front.state(XenbusState::Connected);
    bench.settle();
    (bench, front)
}

#[test]
fn keys_that_are_no_numbers_are_refused() {
    for value in ["", "-1", "+8", " 8", "8 ", "0x8", "4294967296", "8\n", "99999999999999999999"] {
        let (bench, _front) = lies(|front| front.set("tx-ring-ref", value));
        bench.assert_lost("tx-ring-ref is");
    }
    let (bench, _front) = lies(|front| front.set("feature-sg", &"9".repeat(3000)));
    bench.assert_lost("feature-sg is");
    assert!(bench.error().len() < 200);
}

#[test]
fn keys_that_are_missing_are_named() {
    for key in ["tx-ring-ref", "rx-ring-ref", "event-channel-rx"] {
        let (bench, _front) =
            lies(|front| front.client.rm(&format!("device/vif/0/{key}")).unwrap());
        bench.assert_lost(&format!("{key} is missing"));
    }
    let (bench, _front) = lies(|front| front.client.rm("device/vif/0/event-channel-tx").unwrap());
    bench.assert_lost("event-channel is missing");
    let (bench, _front) = lies(|front| front.set("ctrl-ring-ref", "8"));
    bench.assert_lost("event-channel-ctrl is missing");
    let (bench, _front) = lies(|front| front.set("request-rx-copy", "0"));
    bench.assert_lost("request-rx-copy");
}

#[test]
fn more_queues_than_were_offered_or_none_are_refused() {
    for queues in ["0", "5", "4294967295"] {
        let (bench, _front) = lies(|front| front.set("multi-queue-num-queues", queues));
        // The guest asks for more queues than offered.
        bench.assert_lost(&format!("multi-queue-num-queues is {queues}, not 1 to 4"));
    }
    let (bench, _front) = lies(|front| front.set("multi-queue-num-queues", "2"));
    bench.assert_lost("queue-0/tx-ring-ref is missing");
}

#[test]
fn grants_and_ports_that_are_not_the_guests_are_refused() {
    for (key, value) in [("rx-ring-ref", "4000000000"), ("event-channel-rx", "77")] {
        let (bench, _front) = lies(|front| front.set(key, value));
        bench.assert_lost("Invalid argument");
    }
    let (bench, _front) = lies(|front| {
        let reference = front.guest.grant(3, DomainId(0), true);
        front.set("rx-ring-ref", &reference.0.to_string());
    });
    bench.assert_lost("Invalid argument");
}

/// The guest tries its neighbour's numbers, which it knows.
#[test]
fn a_neighbours_grants_are_out_of_reach() {
    let (mut bench, mut front) = Bench::with_guest();
    let neighbour = bench.host.guest(DomainId(8), 4).unwrap();
    let mut theirs = GrantRef(0);
    for _ in 0..5 {
        theirs = neighbour.grant(0, DomainId(0), false);
    }
    bench.settle();
    front.keys(1);
    front.set("tx-ring-ref", &theirs.0.to_string());
    front.set("frontend-id", "8");
    front.state(XenbusState::Connected);
    bench.settle();
    bench.assert_lost("Invalid argument");
}

#[test]
fn a_guest_that_was_refused_may_start_anew() {
    let (mut bench, mut front) = lies(|front| front.set("tx-ring-ref", "nonsense"));
    bench.assert_lost("nonsense");
    front.state(XenbusState::Connected);
    bench.settle();
    assert_eq!(bench.state(), "5", "not without");
    front.state(XenbusState::Closed);
    bench.settle();
    assert_eq!(bench.state(), "6");
    front.state(XenbusState::Initialising);
    bench.settle();
    assert_eq!(bench.state(), "2");
    front.connect(1);
    bench.settle();
    assert_eq!(bench.state(), "4");
}

#[test]
fn a_guest_that_breaks_a_rule_later_loses_its_vif() {
    let (mut bench, _front) = connected(2);
    bench.vifs.fail(VIF, "req_prod is ahead by more than the ring", &mut bench.switch).unwrap();
    bench.settle();
    bench.assert_lost("req_prod is ahead");
}

#[test]
fn states_that_are_nonsense_end_the_vif() {
    for state in ["", "0", "44", "nine"] {
        let (mut bench, mut front) = connected(1);
        front.set("state", state);
        bench.settle();
        assert_eq!((bench.state().as_str(), bench.host.mapped()), ("6", 0), "{state:?}");
    }
}

#[test]
fn a_guest_that_writes_all_the_time_keeps_nobody_waiting() {
    let (mut bench, mut front) = connected(1);
    bench.host.attach(DomainId(8), 0, "00:16:3e:00:00:08", "br0");
    for n in 0..2000 {
        front.set("state", "4");
        front.set(&format!("state/{n}"), "x");
    }
    bench.settle();
    let other = bench.host.client().read("/local/domain/0/backend/vif/8/0/state").unwrap();
    assert_eq!((other.unwrap(), bench.switch.connects), (b"2".to_vec(), 1));
}

#[derive(Clone, Debug)]
enum Deed {
    Set(&'static str, String),
    Remove(&'static str),
    Keys(u64),
    Detach,
    Attach,
    TakeAway,
}

fn deeds() -> impl Strategy<Value = Deed> {
    let keys = || {
        prop::sample::select(vec![
            "state",
            "tx-ring-ref",
            "rx-ring-ref",
            "event-channel-tx",
            "event-channel",
            "multi-queue-num-queues",
            "request-rx-copy",
            "ctrl-ring-ref",
            "queue-0/tx-ring-ref",
        ])
    };
    prop_oneof![
        6 => "[1-8]".prop_map(|state| Deed::Set("state", state)),
        4 => (keys(), "[0-9a-z -]{0,11}").prop_map(|(key, value)| Deed::Set(key, value)),
        1 => keys().prop_map(Deed::Remove),
        4 => (1_u64..4).prop_map(Deed::Keys),
        1 => Just(Deed::Detach),
        1 => Just(Deed::Attach),
        1 => Just(Deed::TakeAway),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// After any sequence of actions by guest and toolstack weir comes to rest, and holds the
    /// resources of connected vifs only.
    #[test]
    fn any_sequence_leaves_mapped_only_what_is_connected(
        deeds in proptest::collection::vec((deeds(), any::<bool>()), 1..25),
    ) {
        let (mut bench, mut front) = Bench::with_guest();
        for (deed, looks) in deeds {
            match deed {
                // The guest is not allowed to create a removed directory again.
                Deed::Set(key, value) => {
                    let path = format!("device/vif/0/{key}");
                    let _ = front.client.write(&path, value.as_bytes());
                }
                Deed::Remove(key) => {
                    let _ = front.client.rm(&format!("device/vif/0/{key}"));
                }
                Deed::Keys(queues) => {
                    bench.host.attach(GUEST, 0, MAC, "br0");
                    front.connect(queues);
                }
                Deed::Detach => bench.host.ask_to_detach(GUEST, 0),
                Deed::Attach => bench.host.attach(GUEST, 0, MAC, "br0"),
                Deed::TakeAway => {
                    let mut client = bench.host.client();
                    client.rm(BACK).unwrap();
                }
            }
            if looks {
                bench.settle();
                let served = bench.switch.served.values().map(|(maps, _)| maps.len()).sum::<usize>();
                prop_assert_eq!(bench.host.mapped(), served);
                // During a detach the state is the toolstack's `Closing` instead.
                prop_assert!(bench.state() != "4" || served > 0);
            }
        }
        bench.host.remove(GUEST, 0);
        bench.settle();
        prop_assert_eq!((bench.host.mapped(), bench.host.bound()), (0, 0));
    }
}
