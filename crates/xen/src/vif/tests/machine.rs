//! The state machine alone.

use super::*;

const SEEN: Seen =
    Seen { present: true, own: None, online: true, front: Some(XenbusState::Initialising) };

fn front(state: XenbusState) -> Seen {
    Seen { front: Some(state), ..SEEN }
}

#[test]
fn states_are_single_digits_and_nothing_else_is_one() {
    for state in 1..=8_u8 {
        let value = [b'0' + state];
        assert_eq!(XenbusState::parse(&value).unwrap().to_value(), value);
    }
    for nonsense in [&b""[..], b"0", b"9", b"04", b"4\0", b"x", b"\xff"] {
        assert_eq!(XenbusState::parse(nonsense), None);
    }
}

#[test]
fn only_connected_means_that_the_keys_are_there() {
    let mut backend = Backend::new();
    assert_eq!(backend.step(front(XenbusState::Initialised)), [Action::Advertise]);
    assert_eq!(backend.step(front(XenbusState::Initialised)), []);
    assert_eq!(backend.step(front(XenbusState::Connected)), [Action::Connect]);
    assert_eq!(backend.connected(), Action::Publish(XenbusState::Connected));
    assert_eq!(backend.step(front(XenbusState::Connected)), []);
    assert_eq!(backend.step(front(XenbusState::Reconfiguring)), []);
}

#[test]
fn a_new_start_without_farewell_goes_by_way_of_closed() {
    let mut backend = Backend::new();
    backend.step(front(XenbusState::Connected));
    backend.connected();
    let expected = [
        Action::Disconnect,
        Action::Publish(XenbusState::Closing),
        Action::Publish(XenbusState::Closed),
        Action::Advertise,
    ];
    assert_eq!(backend.step(SEEN), expected);
    assert_eq!(backend.step(SEEN), []);
}

#[test]
fn after_a_failure_only_a_new_start_helps() {
    let mut backend = Backend::new();
    assert_eq!(backend.step(front(XenbusState::Connected)), [Action::Advertise, Action::Connect]);
    assert_eq!(backend.failed(), [Action::Publish(XenbusState::Closing)]);
    assert_eq!(backend.failed(), []);
    assert_eq!(backend.step(front(XenbusState::Connected)), []);
    let expected = [Action::Publish(XenbusState::Closed), Action::Advertise];
    assert_eq!(backend.step(SEEN), expected);
}

#[test]
fn a_vif_that_is_detached_while_it_connects_is_closed() {
    let mut backend = Backend::new();
    backend.step(front(XenbusState::Connected));
    // The toolstack writes `Closing`, and `connected` overwrites it.
    backend.connected();
    let detached =
        Seen { own: Some(XenbusState::Connected), online: false, ..front(XenbusState::Connected) };
    let expected = [Action::Disconnect, Action::Publish(XenbusState::Closed)];
    assert_eq!(backend.step(detached), expected);
    assert_eq!(backend.step(Seen { own: Some(XenbusState::Closed), ..detached }), []);
}

fn any_seen() -> impl Strategy<Value = Seen> {
    let state =
        || proptest::option::of((0_u8..8).prop_map(|n| XenbusState::parse(&[b'1' + n]).unwrap()));
    (proptest::bool::weighted(0.9), state(), any::<bool>(), state())
        .prop_map(|(present, own, online, front)| Seen { present, own, online, front })
}

proptest! {
    /// Any writes of toolstack and guest, in any order.
    #[test]
    fn what_is_connected_is_disconnected_once_and_nothing_else_is(
        looks in proptest::collection::vec((any_seen(), any::<bool>()), 1..60),
    ) {
        let mut backend = Backend::new();
        let mut in_use = false;
        for (seen, works) in looks {
            let actions = backend.step(seen);
            prop_assert!(actions.len() <= 4);
            let published = actions
                .iter()
                .any(|it| matches!(it, Action::Advertise | Action::Connect | Action::Publish(_)));
            for action in actions {
                match action {
                    Action::Connect => {
                        prop_assert!(!in_use && seen.front == Some(XenbusState::Connected));
                        if works {
                            backend.connected();
                            in_use = true;
                        } else {
                            prop_assert!(!backend.failed().contains(&Action::Disconnect));
                        }
                    }
                    Action::Disconnect => prop_assert!(std::mem::take(&mut in_use)),
                    Action::Publish(state) => {
                        prop_assert!(state != XenbusState::Connected);
                        prop_assert!(!in_use, "let go of first");
                    }
                    Action::Advertise => prop_assert!(!in_use),
                    Action::Forget => prop_assert!(!seen.present && !in_use),
                }
            }
            let gone = !seen.present
                || matches!(seen.front, None | Some(XenbusState::Closing | XenbusState::Closed));
            prop_assert!(!(gone && in_use));
            prop_assert_eq!(backend.state() == XenbusState::Connected, in_use);
            // A second step, at the published state if any, changes nothing, except that `Closing` ends in `Closed`.
            let own = if published { Some(backend.state()) } else { seen.own };
            let again = backend.step(Seen { own, ..seen });
            let last = |action: &Action| {
                matches!(action, Action::Publish(XenbusState::Closed) | Action::Forget)
            };
            prop_assert!(again.iter().all(last), "{again:?}");
        }
    }
}
