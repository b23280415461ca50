//! The agent's side in virtual time.

use proptest::prelude::*;

use super::*;

const MAC: Mac = Mac([0x52, 0x54, 0, 0, 0, 1]);
const SECOND: u64 = 1_000_000_000;
const POLL: Action = Action::Apply { mac: MAC, poll_ns: Some(1_000_000) };

fn set() -> HostMessage {
    HostMessage::Set { mac: MAC, poll_ns: Some(1_000_000) }
}

fn welcome(session: u32) -> HostMessage {
    HostMessage::Welcome { version: VERSION, session }
}

/// Connects and greets at `now_ns`. Returns the session number.
fn greeted(session: &mut Session, now_ns: u64) -> u32 {
    session.connected(now_ns);
    let Some(Action::Hello { session: number }) = session.due(now_ns) else {
        panic!("no hello: {session:?}");
    };
    number
}

fn open() -> Session {
    let mut session = Session::new(7);
    let number = greeted(&mut session, 0);
    assert_eq!(session.received(welcome(number), 0), Ok(None));
    assert!(session.is_open());
    session
}

#[test]
fn hellos_go_on_with_one_number_until_there_is_a_welcome() {
    let mut session = Session::new(7);
    let number = greeted(&mut session, 0);
    assert_eq!(session.due(SECOND - 1), None);
    assert_eq!(session.deadline_ns(), Some(SECOND));
    assert_eq!(session.due(SECOND), Some(Action::Hello { session: number }));
    assert_eq!(session.due(SECOND), None);
}

#[test]
fn what_was_meant_for_the_agent_before_is_passed_over() {
    let mut session = Session::new(7);
    let number = greeted(&mut session, 0);
    for stale in [set(), HostMessage::Ping, HostMessage::Bye, welcome(number.wrapping_sub(1))] {
        assert_eq!(session.received(stale, 1), Ok(None));
        assert!(!session.is_open());
    }
    assert_eq!(session.received(welcome(number), 2), Ok(None));
    assert_eq!(session.received(set(), 3), Ok(Some(POLL)));
}

#[test]
fn another_version_is_refused() {
    let mut session = Session::new(7);
    let number = greeted(&mut session, 0);
    let answer = HostMessage::Welcome { version: VERSION + 1, session: number };
    assert_eq!(session.received(answer, 1), Err(OtherVersion { host: VERSION + 1 }));
    assert!(!session.is_open());
}

#[test]
fn a_host_that_pings_is_reported_to_each_second() {
    let mut session = open();
    for second in 1..100 {
        assert_eq!(session.received(HostMessage::Ping, second * SECOND), Ok(None));
        assert_eq!(session.due(second * SECOND), Some(Action::Report));
        assert_eq!(session.due(second * SECOND), None);
    }
}

#[test]
fn silence_restores_and_begins_anew_with_another_number() {
    let mut session = open();
    let number = session.number;
    assert_eq!(session.received(set(), SECOND), Ok(Some(POLL)));
    assert_eq!(session.due(4 * SECOND - 1), Some(Action::Report));
    assert_eq!(session.deadline_ns(), Some(4 * SECOND));
    assert_eq!(session.due(4 * SECOND), Some(Action::Restore(Reason::Silence)));
    let Some(Action::Hello { session: next }) = session.due(4 * SECOND) else { panic!() };
    assert_ne!(next, number);
    // The host was only slow: its messages meanwhile belong to a session that is over.
    assert_eq!(session.received(set(), 4 * SECOND), Ok(None));
    assert_eq!(session.received(welcome(next), 5 * SECOND), Ok(None));
    assert_eq!(session.received(set(), 5 * SECOND), Ok(Some(POLL)));
}

#[test]
fn bye_restores_once_and_greets_after_a_second() {
    let mut session = open();
    assert_eq!(session.received(HostMessage::Bye, 5), Ok(Some(Action::Restore(Reason::Bye))));
    assert_eq!(session.received(HostMessage::Bye, 6), Ok(None));
    assert_eq!(session.due(SECOND + 4), None);
    assert!(matches!(session.due(SECOND + 5), Some(Action::Hello { .. })));
}

#[test]
fn a_closed_connection_restores_once() {
    let mut session = open();
    assert_eq!(session.closed(), Some(Action::Restore(Reason::Closed)));
    assert_eq!(session.closed(), None);
    assert_eq!((session.due(u64::MAX / 2), session.deadline_ns()), (None, None));
    assert_eq!(session.received(set(), 9), Ok(None));
}

#[test]
fn other_interfaces_begin_anew() {
    let mut session = open();
    assert_eq!(session.interfaces_changed(3), Some(Action::Restore(Reason::Interfaces)));
    assert!(matches!(session.due(3), Some(Action::Hello { .. })));
    assert_eq!(session.interfaces_changed(4), None);
}

#[derive(Clone, Debug)]
enum Step {
    Connected,
    Message(u8),
    Interfaces,
    Closed,
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        Just(Step::Connected),
        (0_u8..6).prop_map(Step::Message),
        Just(Step::Interfaces),
        Just(Step::Closed),
        (0..4 * SECOND).prop_map(Step::Wait),
    ]
}

proptest! {
    /// In any case settings are in force only while the session is open and the host was heard
    /// within the last three seconds.
    #[test]
    fn settings_never_outlive_the_session(steps in prop::collection::vec(step(), 1..200)) {
        let mut session = Session::new(0);
        let (mut now_ns, mut heard_ns, mut in_force) = (0, 0, false);
        for step in steps {
            let mut actions = Vec::new();
            match step {
                // A new connection begins only after the previous one.
                Step::Connected if session.deadline_ns().is_none() => session.connected(now_ns),
                Step::Connected => {}
                Step::Interfaces => actions.extend(session.interfaces_changed(now_ns)),
                Step::Closed => actions.extend(session.closed()),
                Step::Wait(ns) => now_ns += ns,
                Step::Message(kind) => {
                    heard_ns = now_ns;
                    let message = match kind {
                        0 => HostMessage::Ping,
                        1 => HostMessage::Bye,
                        2 => welcome(session.number.wrapping_sub(1)),
                        3 => welcome(session.number),
                        _ => set(),
                    };
                    actions.extend(session.received(message, now_ns).unwrap());
                }
            }
            while let Some(action) = session.due(now_ns) {
                actions.push(action);
            }
            for action in actions {
                match action {
                    Action::Apply { .. } => in_force = true,
                    Action::Restore(_) => in_force = false,
                    Action::Hello { .. } => prop_assert!(!in_force),
                    Action::Report => {}
                }
            }
            prop_assert!(!in_force || session.is_open());
            prop_assert!(!in_force || now_ns - heard_ns < AGENT_SILENCE_NS);
        }
    }
}
