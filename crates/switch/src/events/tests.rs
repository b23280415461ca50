use super::*;

fn name(text: &str) -> PortName {
    text.parse().unwrap()
}

fn glance(now_ms: u64, ports: impl IntoIterator<Item = (&'static str, PortGlance)>) -> Glance {
    Glance {
        now_ns: now_ms * 1_000_000,
        ports: ports.into_iter().map(|(port, glance)| (name(port), glance)).collect(),
        ..Glance::default()
    }
}

fn running(opened: u64) -> PortGlance {
    PortGlance { state: PortState::Running, opened, ..PortGlance::default() }
}

#[test]
fn a_port_that_comes_runs_stops_and_goes_says_so_once_each() {
    let mut watcher = Watcher::new(glance(0, []));
    let port = name("web0");
    let added = Event::PortAdded { port: port.clone(), kind: PortKind::Vif };
    assert_eq!(watcher.look(glance(1, [("web0", PortGlance::default())])), [added]);
    let up = Event::PortUp { port: port.clone() };
    assert_eq!(watcher.look(glance(2, [("web0", running(1))])), std::slice::from_ref(&up));
    assert_eq!(watcher.look(glance(3, [("web0", running(1))])), []);
    // Between two glances the port went down and came up again.
    let down = Event::PortDown { port: port.clone() };
    assert_eq!(watcher.look(glance(4, [("web0", running(2))])), [down.clone(), up]);
    let stopped = PortGlance {
        state: PortState::Stopped,
        stop_reason: Some("a bad ring".into()),
        failed: 1,
        ..running(2)
    };
    let told = Event::PortStopped { port: port.clone(), reason: "a bad ring".into() };
    assert_eq!(watcher.look(glance(5, [("web0", stopped.clone())])), [down, told]);
    assert_eq!(watcher.look(glance(6, [("web0", stopped)])), []);
    assert_eq!(watcher.look(glance(7, [])), [Event::PortRemoved { port }]);
}

#[test]
fn drops_are_told_when_they_begin_and_again_after_they_have_ceased() {
    let dropped = |ms, frames| {
        let drops = vec![("rx_ring_full", frames)];
        glance(ms, [("web0", PortGlance { drops, ..running(1) })])
    };
    let mut watcher = Watcher::new(dropped(0, 5));
    let quiet_ms = DROPS_QUIET_NS / 1_000_000;
    assert_eq!(watcher.look(dropped(1, 5)), []);
    let began =
        |frames| Event::DropsBegan { port: name("web0"), reason: "rx_ring_full".into(), frames };
    assert_eq!(watcher.look(dropped(2, 8)), [began(3)]);
    assert_eq!(watcher.look(dropped(3, 80)), []);
    assert_eq!(watcher.look(dropped(2 + quiet_ms, 81)), []);
    assert_eq!(watcher.look(dropped(2 + 2 * quiet_ms, 83)), [began(2)]);
}

#[test]
fn breaches_are_told_with_their_number_and_not_more_often_than_once_in_a_while() {
    let breached = |ms, count| {
        let breaches = vec![("no_cpu", count)];
        glance(ms, [("web0", PortGlance { breaches, ..running(1) })])
    };
    let mut watcher = Watcher::new(breached(0, 1));
    let told = |count| Event::BudgetBreached { port: name("web0"), reason: "no_cpu".into(), count };
    let pause_ms = BREACHES_TOLD_NS / 1_000_000;
    assert_eq!(watcher.look(breached(1, 3)), [told(2)]);
    assert_eq!(watcher.look(breached(2, 9)), []);
    assert_eq!(watcher.look(breached(1 + pause_ms, 10)), [told(7)]);
}

#[test]
fn threads_that_stand_still_and_go_on_are_told_once() {
    let still = StillThread { name: "weir-worker-0".into(), ..StillThread::default() };
    let with = |still: &[StillThread]| Glance { still: still.to_vec(), ..Glance::default() };
    let mut watcher = Watcher::new(with(&[]));
    let told = watcher.look(with(std::slice::from_ref(&still)));
    assert!(
        matches!(&told[..], [Event::ThreadStandsStill { thread, .. }] if thread == "weir-worker-0")
    );
    assert_eq!(watcher.look(with(&[still])), []);
    assert_eq!(watcher.look(with(&[])), [Event::ThreadGoesOn { thread: "weir-worker-0".into() }]);
}

#[test]
fn what_is_told_too_fast_is_counted() {
    let mut told = Told::default();
    let event = |tables| Event::Reloaded { outcome: ReloadNews::Applied, tables };
    told.tell(event(0));
    let before = told.count;
    assert_eq!(told.after(before), []);
    (0..EVENTS_TOLD_MAX + 3).for_each(|tables| told.tell(event(tables)));
    let after = told.after(before);
    assert_eq!(after[0], Event::Lost { count: 3 });
    assert_eq!(after[1..], (3..EVENTS_TOLD_MAX + 3).map(event).collect::<Vec<_>>());
}

#[test]
fn each_event_is_named_as_its_json_says() {
    let port = name("web0");
    let socket: SocketPath = "/run/weir/agent.sock".parse().unwrap();
    let text = || "x".to_owned();
    let events = [
        Event::PortAdded { port: port.clone(), kind: PortKind::Uplink },
        Event::PortRemoved { port: port.clone() },
        Event::PortUp { port: port.clone() },
        Event::PortDown { port: port.clone() },
        Event::PortStopped { port: port.clone(), reason: text() },
        Event::BudgetBreached { port: port.clone(), reason: text(), count: 1 },
        Event::DropsBegan { port, reason: text(), frames: 1 },
        Event::Reloaded { outcome: ReloadNews::Undone, tables: 1 },
        Event::AgentConnected { socket },
        Event::ThreadStandsStill { thread: text(), does: text(), port: None },
        Event::ThreadGoesOn { thread: text() },
        Event::Lost { count: 1 },
    ];
    for event in events {
        let json = serde_json::to_value(&event).unwrap();
        assert_eq!(json["event"], event.name());
        assert_eq!(serde_json::from_value::<Event>(json).unwrap(), event);
    }
}
