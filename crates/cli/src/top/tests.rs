//! The screens of `weir top` for given looks, and the effect of keys.

use clap::Parser;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use weir_api::ClientError;
use weir_config::Moderation;
use weir_switch::explain::{Explanation, QueueExplanation, VifExplanation};
use weir_switch::stats::{
    CallSettings, PortDecision, PortKind, PortState, PortStats, QueuePairStats, QueueStats,
    SwitchStats, Times, WorkerStats, limits,
};

use super::columns::{Column, Rates, fitting};
use super::state::{Look, Next, Page, State};
use super::*;
use crate::args::{Cli, Command};
use crate::show::explain::tests::explanation_of;

/// An interface that has moved `frames` hundred thousand frames.
fn vif(name: &str, frames: u64) -> PortStats {
    let mut port = PortStats::new(name.parse().unwrap(), PortKind::Vif);
    port.state = PortState::Running;
    let frames = 100_000 * frames;
    let rx =
        QueueStats { frames, bytes: 1_000 * frames, calls: frames / 10, ..QueueStats::default() };
    let tx = QueueStats { frames: frames / 2, bytes: 32 * frames, ..QueueStats::default() };
    port.set_queues(vec![QueuePairStats { rx, tx }]);
    port.worker_ns = 1_000 * frames;
    port.latency_budget_ns = 250_000;
    port.hold_ns = Times {
        count: frames / 10,
        sum: frames / 10 * 120_000,
        p50: 110_000,
        p99: 230_000,
        max: 245_000,
        ..Times::default()
    };
    port.decision = Some(PortDecision { hold_ns: 125_000, reason: "frames come steadily".into() });
    port.calls = Some(CallSettings::default());
    port
}

/// The switch after `seconds`.
fn stats(seconds: u64) -> SwitchStats {
    let mut stopped = vif("stopped-by-a-rule", 0);
    stopped.state = PortState::Stopped;
    stopped.stopped_reason = Some("TX queue 0: descriptor\x1b[2J loop".into());
    let mut db0 = vif("db0", 2 * seconds);
    db0.drops.insert("rx_ring_full".into(), 30 * seconds);
    db0.drops.insert("policed_rx".into(), 7);
    db0.budget_breaches.insert("no_cpu".into(), 2 * seconds);
    db0.limits = limits([("addresses", weir_switch::stats::Limit::new(1, 64))]);
    let mut idle = vif("idle", 1);
    idle.drops.insert("rx_not_ready".into(), 3);
    let mut lan = PortStats::new("lan".parse().unwrap(), PortKind::Uplink);
    lan.state = PortState::Running;
    SwitchStats {
        version: "0.1.0".into(),
        uptime_s: seconds as f64,
        workers: vec![WorkerStats { cpu_ns: 400_000_000 * seconds, ..WorkerStats::default() }; 2],
        ports: vec![lan, vif("web0", seconds), db0, idle, stopped],
        ..SwitchStats::default()
    }
}

fn args(line: &[&str]) -> TopArgs {
    match Cli::parse_from([&["weir", "top"], line].concat()).command {
        Command::Top(args) => args,
        other => panic!("{other:?}"),
    }
}

fn look(seconds: u64) -> Result<Look, ClientError> {
    Ok(Look { stats: stats(seconds), explained: None })
}

/// The state after two looks that are two seconds apart.
fn state() -> State {
    let mut state = State::new(&args(&[]));
    state.looked(look(100));
    state.looked(look(102));
    state
}

fn lost() -> Result<Look, ClientError> {
    let path = std::path::Path::new("/run/weir/control.sock");
    Err(ClientError::not_running(path, path))
}

fn screen(state: &mut State, width: u16, height: u16) -> TestBackend {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen::draw(frame, state)).unwrap();
    terminal.backend().clone()
}

/// The screen as text.
fn seen(state: &mut State, width: u16, height: u16) -> String {
    screen(state, width, height).to_string()
}

fn press(state: &mut State, code: KeyCode) -> Next {
    state.key(KeyEvent::new(code, KeyModifiers::NONE))
}

fn type_in(state: &mut State, text: &str) {
    text.chars().for_each(|c| _ = press(state, KeyCode::Char(c)));
}

fn names(state: &State) -> Vec<String> {
    state.listed().iter().map(|port| port.name.to_string()).collect()
}

#[test]
fn rates_are_differences_over_the_time_between_two_looks() {
    let rates = Rates::between(Some(&stats(100)), &stats(102));
    let db0 = &rates.ports[2];
    assert_eq!((rates.interval_s, rates.workers_cpu_percent), (2.0, 80.0));
    assert_eq!((db0.rx.packets_per_s, db0.rx.bits_per_s), (200_000.0, 1.6e9));
    assert_eq!(
        (db0.tx.packets_per_s, db0.calls_per_s, db0.cpu_percent),
        (100_000.0, 20_000.0, 20.0)
    );
    assert_eq!((db0.hold_ns, db0.latency_ns), (Some(120_000), None));
    assert_eq!(db0.drops_per_s, [("rx_ring_full".to_owned(), 30.0)].into());
    assert_eq!((db0.breaches_per_s, db0.dropped["policed_rx"]), (2.0, 7));
    assert_eq!(rates.ports[3].hold_ns, None, "nothing was held meanwhile");
    assert_eq!(rates.ports[4].why, "TX queue 0: descriptor\\u001b[2J loop");
}

#[test]
fn a_weir_that_has_started_anew_and_a_port_that_has_come_have_no_rates_of_before() {
    let anew = Rates::between(Some(&stats(100)), &stats(1));
    let first = Rates::between(None, &stats(1));
    for rates in [anew, first] {
        assert_eq!((rates.interval_s, rates.workers_cpu_percent), (0.0, 0.0));
        assert!(rates.ports.iter().all(|it| it.rx.packets_per_s == 0.0 && it.hold_ns.is_none()));
    }
    let (mut before, now) = (stats(100), stats(102));
    before.ports.remove(1);
    // A port that was removed and added again has the same name, but starts at zero.
    before.ports[1] = vif("db0", 1_000_000);
    let rates = Rates::between(Some(&before), &now);
    assert_eq!(rates.ports[1].rx.packets_per_s, 5_100_000.0, "all that it has had");
    assert_eq!((rates.ports[2].rx.packets_per_s, rates.ports[2].hold_ns), (0.0, None));
}

#[test]
fn the_list_fits_80_by_12() {
    insta::assert_snapshot!(seen(&mut state(), 80, 12), @r#"
    " weir top  weir 0.1.0, up 1m42s, 5 ports, 4 running, 2 workers at 80 %          "
    "sent 150 k packets/s, 76.8 M bit/s; dropped 30/s; late interrupts 2/s           "
    "NAME              STATE     RX P/S  BIT/S TX P/S CPU %    HOLD  BUDGET DROP/S   "
    "db0               running    200 k  1.6 G  100 k  20.0  120 us  250 us     30   "
    "web0              running    100 k  800 M   50 k  10.0  120 us  250 us      0   "
    "idle              running        0      0      0   0.0       -  250 us      0   "
    "lan               running        0      0      0   0.0       -       -      0   "
    "stopped-by-a-rule stopped        0      0      0   0.0       -  250 us      0   "
    "                                                                                "
    "                                                                                "
    "                                                                                "
    "q quit  ? help  Enter details  / filter  left, right sort  r reverse            "
    "#);
}

#[test]
fn a_wide_terminal_shows_reasons() {
    insta::assert_snapshot!(seen(&mut state(), 150, 10), @r#"
    " weir top  weir 0.1.0, up 1m42s, 5 ports, 4 running, 2 workers at 80 %                                                                                "
    "sent 150 k packets/s, 76.8 M bit/s; dropped 30/s; late interrupts 2/s                                                                                 "
    "NAME              STATE     RX P/S  BIT/S TX P/S  BIT/S CPU %    HOLD  BUDGET LATE/S DROP/S DROP REASON            HELD BECAUSE                       "
    "db0               running    200 k  1.6 G  100 k 51.2 M  20.0  120 us  250 us      2     30 rx_ring_full           frames come steadily               "
    "web0              running    100 k  800 M   50 k 25.6 M  10.0  120 us  250 us      0      0                        frames come steadily               "
    "idle              running        0      0      0      0   0.0       -  250 us      0      0 was rx_not_ready       frames come steadily               "
    "lan               running        0      0      0      0   0.0       -       -      -      0                                                           "
    "stopped-by-a-rule stopped        0      0      0      0   0.0       -  250 us      0      0                        TX queue 0: descriptor\u001b[2J lo…"
    "                                                                                                                                                      "
    "q quit  ? help  Enter details  / filter  left, right sort  r reverse                                                                                  "
    "#);
}

#[test]
fn details_say_what_is_held_dropped_and_why() {
    let mut state = state();
    type_in(&mut state, "/db0");
    press(&mut state, KeyCode::Enter);
    assert_eq!(press(&mut state, KeyCode::Enter), Next::Ask);
    assert_eq!(state.explained().unwrap().as_str(), "db0");
    let queue = QueueExplanation {
        queue: 0,
        moderation: Moderation::default(),
        hold_ns: 125_000,
        hold_ns_max: 230_000,
        reason: "frames come steadily".into(),
        frames: 20_400_000,
        calls: 1,
        calls_suppressed: 0,
        held_ns: Times { p99: 230_000, ..Times::default() },
        jitter_ns: 0,
    };
    let explained = |name: &str| {
        let queues = vec![queue.clone()];
        Explanation::Vif(Box::new(VifExplanation { queues, ..explanation_of(name) }))
    };
    state.looked(Ok(Look { stats: stats(104), explained: Some(explained("web0")) }));
    assert!(!seen(&mut state, 80, 40).contains("BECAUSE"), "that is another one's");
    state.looked(Ok(Look { stats: stats(106), explained: Some(explained("db0")) }));
    insta::assert_snapshot!(seen(&mut state, 80, 36), @r#"
    " weir top  weir 0.1.0, up 1m46s, 5 ports, 4 running, 2 workers at 80 %          "
    "sent 150 k packets/s, 76.8 M bit/s; dropped 30/s; late interrupts 2/s           "
    "db0: running, VLAN 1                                                            "
    "                                                                                "
    "          PACKETS/S   BIT/S     PACKETS    BYTES                                "
    "receives      200 k   1.6 G  21,200,000  21.2 GB                                "
    "sends         100 k  51.2 M  10,600,000   678 MB                                "
    "worker time for what it sends: 20.0 % of a core, 21.2 s                         "
    "                                                                                "
    "moderation auto, budget 250 us                                                  "
    "holds for 125 us now: frames come steadily                                      "
    "                         NOW     P50     P99     MAX    SAMPLES                 "
    "hold                  120 us  110 us  230 us  245 us  2,120,000                 "
    "arrival to interrupt       -       0       0       0          0                 "
    "interrupts/s: 20 k, jitter 0                                                    "
    "                                                                                "
    "QUEUE   HOLDS   LIMIT  HELD P99      FRAMES  BECAUSE                            "
    "    0  125 us  230 us    230 us  20,400,000  frames come steadily               "
    "                                                                                "
    "dropped:                                                                        "
    "  policed_rx: 7                                                                 "
    "  rx_ring_full: 3,180, 30/s now                                                 "
    "                                                                                "
    "notified too late:                                                              "
    "  no_cpu: 212                                                                   "
    "limit addresses: 1 of 64 (1%)                                                   "
    "                                                                                "
    "more: weir explain db0; weir capture db0; weir capture db0 --drops              "
    "                                                                                "
    "                                                                                "
    "                                                                                "
    "                                                                                "
    "                                                                                "
    "                                                                                "
    "                                                                                "
    "names with `db0`  q quit  ? help  Esc back  up, down scroll                     "
    "#);
    // The last line can be reached, and nothing follows it.
    press(&mut state, KeyCode::End);
    assert!(seen(&mut state, 80, 10).contains("weir capture db0 --drops"));
    press(&mut state, KeyCode::Esc);
    assert_eq!(state.page, Page::List);
    press(&mut state, KeyCode::Enter);
    let mut gone = stats(108);
    gone.ports.remove(2);
    state.looked(Ok(Look { stats: gone, explained: None }));
    assert!(seen(&mut state, 80, 10).contains("db0 is no port of this switch any more"));
}

#[test]
fn a_weir_that_stops_is_said_and_what_it_said_stays_until_it_is_back() {
    let mut state = state();
    state.looked(lost());
    let text = seen(&mut state, 120, 10);
    assert!(text.contains("no weir answers on /run/weir/control.sock; trying again"), "{text}");
    assert!(text.contains("db0") && text.contains("rx_ring_full"), "{text}");
    state.looked(look(1));
    let text = seen(&mut state, 120, 10);
    assert!(text.contains("rates come with the second look") && !text.contains("trying"), "{text}");
    state.looked(look(2));
    assert!(seen(&mut state, 120, 10).contains("sent 150 k packets/s"));
}

#[test]
fn keys_sort_by_the_columns_that_are_seen() {
    let mut state = state();
    seen(&mut state, 150, 20);
    assert_eq!(names(&state), ["db0", "web0", "idle", "lan", "stopped-by-a-rule"], "by CPU");
    press(&mut state, KeyCode::Char('r'));
    assert_eq!(names(&state), ["idle", "lan", "stopped-by-a-rule", "web0", "db0"]);
    (0..20).for_each(|_| _ = press(&mut state, KeyCode::Left));
    assert_eq!((state.sort, state.reverse), (Column::Name, false));
    assert_eq!(names(&state), ["db0", "idle", "lan", "stopped-by-a-rule", "web0"]);
    press(&mut state, KeyCode::Right);
    assert_eq!(names(&state)[0], "stopped-by-a-rule", "by state");
    (0..20).for_each(|_| _ = press(&mut state, KeyCode::Right));
    assert_eq!((state.sort, names(&state)[4].as_str()), (Column::Why, "lan"), "without a reason");
    // A narrow terminal shows fewer columns.
    seen(&mut state, 30, 20);
    press(&mut state, KeyCode::Left);
    assert!(state.columns.contains(&state.sort), "{:?} of {:?}", state.sort, state.columns);
}

#[test]
fn the_selected_port_stays_the_same_when_the_order_changes() {
    let mut state = state();
    seen(&mut state, 80, 10);
    press(&mut state, KeyCode::Down);
    assert_eq!(state.selected.as_ref().unwrap().as_str(), "web0");
    press(&mut state, KeyCode::Char('r'));
    assert_eq!(state.place(&state.listed()), 3);
    press(&mut state, KeyCode::PageDown);
    assert_eq!(state.selected.as_ref().unwrap().as_str(), "db0", "the last one");
    press(&mut state, KeyCode::Home);
    assert_eq!(state.selected.as_ref().unwrap().as_str(), "idle");
    let mut without = stats(104);
    without.ports.retain(|port| port.name.as_str() != "idle");
    state.looked(Ok(Look { stats: without, explained: None }));
    assert_eq!(state.place(&state.listed()), 0);
}

#[test]
fn a_filter_is_typed_and_taken_back() {
    let mut state = state();
    type_in(&mut state, "/bq");
    assert!(state.editing && names(&state).is_empty(), "`q` is a part of it");
    assert!(seen(&mut state, 80, 10).contains("names with: bq_"));
    press(&mut state, KeyCode::Backspace);
    press(&mut state, KeyCode::Enter);
    assert_eq!(names(&state), ["db0", "web0", "stopped-by-a-rule"]);
    assert!(seen(&mut state, 80, 10).contains("names with `b`"));
    press(&mut state, KeyCode::Esc);
    assert_eq!(names(&state).len(), 5);
    type_in(&mut state, "/x");
    press(&mut state, KeyCode::Enter);
    assert!(seen(&mut state, 80, 10).contains("no name has this text"));
}

#[test]
fn help_and_the_end_are_keys_everywhere() {
    let mut state = state();
    type_in(&mut state, "?");
    assert!(seen(&mut state, 80, 24).contains("reverse the order"));
    press(&mut state, KeyCode::Esc);
    assert_eq!(
        (state.page.clone(), press(&mut state, KeyCode::Char('q'))),
        (Page::List, Next::End)
    );
    type_in(&mut state, "/");
    let ctrl_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(state.key(ctrl_c), Next::End);
}

#[test]
fn columns_give_way_by_their_worth_and_never_exceed_the_width() {
    for width in 0..400 {
        for longest in [0, 1, 8, 63, 1_000] {
            let columns = fitting(width, longest);
            let taken: usize = columns.iter().map(|(_, width)| width + 1).sum();
            assert!(taken <= width.max(1) + 1, "{width}, {longest}: {columns:?}");
            assert!(width == 0 || columns[0].0 == Column::Name, "{width}: {columns:?}");
        }
    }
    let shown = |width| fitting(width, 8).into_iter().map(|(it, _)| it).collect::<Vec<_>>();
    assert_eq!(shown(30), [Column::Name, Column::Rx, Column::Tx, Column::Hold]);
    assert_eq!(shown(160), Column::ALL);
    // Names of moderate length are shown whole even on a narrow terminal.
    assert_eq!(fitting(30, 15)[0], (Column::Name, 15));
    assert_eq!(fitting(30, 63)[0], (Column::Name, 16));
}

#[test]
fn the_screen_survives_any_size_and_any_names() {
    let long = |n: usize| format!("{}{n}", "x".repeat(weir_limits::PORT_NAME_LEN_MAX - 3));
    let many = |seconds: u64| SwitchStats {
        ports: (100..999).map(|n| vif(&long(n), seconds)).collect(),
        ..stats(seconds)
    };
    for (width, height) in [(1, 1), (2, 2), (7, 3), (20, 4), (81, 24), (500, 200)] {
        let mut state = state();
        for seconds in [200, 201] {
            state.looked(Ok(Look { stats: many(seconds), explained: None }));
        }
        for code in [KeyCode::End, KeyCode::PageUp, KeyCode::Down, KeyCode::Enter, KeyCode::End] {
            seen(&mut state, width, height);
            press(&mut state, code);
        }
        // The size changes from a large screen to a small one and back.
        seen(&mut state, height, width);
        press(&mut state, KeyCode::Esc);
        seen(&mut state, width, height);
        type_in(&mut state, "?");
        seen(&mut state, width, height);
        state.looked(lost());
        seen(&mut state, width, height);
    }
}

#[test]
fn of_a_thousand_interfaces_each_is_found_by_keys_and_its_place_is_said() {
    let crowd = |seconds: u64| {
        let ports = (0..1000).map(|n| vif(&format!("vm{n:03}"), n + 1 + seconds * (n % 7 + 1)));
        Ok(Look {
            stats: SwitchStats { ports: ports.collect(), ..stats(seconds) },
            explained: None,
        })
    };
    let mut state = state();
    for seconds in [110, 111] {
        state.looked(crowd(seconds));
    }
    insta::assert_snapshot!(seen(&mut state, 60, 9), @r#"
    " weir top  1000 ports, 1000 running, 2 workers at 80 %      "
    "200 M packets/s, 102 G bit/s, dropped 0/s, late 0/s         "
    "NAME  STATE     RX P/S TX P/S CPU %    HOLD  BUDGET DROP/S  "
    "vm006 running    700 k  350 k  70.0  120 us  250 us      0  "
    "vm013 running    700 k  350 k  70.0  120 us  250 us      0  "
    "vm020 running    700 k  350 k  70.0  120 us  250 us      0  "
    "vm027 running    700 k  350 k  70.0  120 us  250 us      0  "
    "vm034 running    700 k  350 k  70.0  120 us  250 us      0  "
    "1 of 1,000  q quit  ? help  Enter details  / filter  left, r"
    "#);
    press(&mut state, KeyCode::End);
    let text = seen(&mut state, 60, 9);
    assert!(text.contains("\"1,000 of 1,000  q quit") && text.contains("vm994 "), "{text}");
    press(&mut state, KeyCode::PageUp);
    assert!(seen(&mut state, 60, 9).contains("995 of 1,000"));
    type_in(&mut state, "/vm50");
    press(&mut state, KeyCode::Enter);
    press(&mut state, KeyCode::Home);
    let text = seen(&mut state, 60, 9);
    assert!(text.contains("\"1 of 10  names with `vm50`") && text.contains("vm503 "), "{text}");
    // The selected port stays selected while rates change the order.
    press(&mut state, KeyCode::Esc);
    let place = state.place(&state.listed());
    assert!(seen(&mut state, 60, 9).contains(&format!("{} of 1,000", place + 1)));
    // If all ports fit, no place is shown.
    assert!(!seen(&mut state, 60, 1100).contains(" of 1,000"));
    // The narrowest usable terminal shows the names and the place.
    let text = seen(&mut state, 20, 6);
    assert!(text.contains(" of 1,000") && text.contains("vm50"), "{text}");
}

#[test]
fn the_selected_line_is_always_on_the_screen() {
    let mut state = state();
    let ports = (0..100).map(|n| vif(&format!("v{n:02}"), 1)).collect();
    state.looked(Ok(Look { stats: SwitchStats { ports, ..stats(104) }, explained: None }));
    for step in 0..99 {
        assert!(seen(&mut state, 40, 12).contains(&format!("v{step:02} ")), "{step}");
        press(&mut state, KeyCode::Down);
    }
    press(&mut state, KeyCode::PageUp);
    assert!(seen(&mut state, 40, 12).contains("v91 "));
    press(&mut state, KeyCode::Home);
    assert!(seen(&mut state, 40, 12).contains("v00 "));
}

#[test]
fn a_table_has_all_columns() {
    let mut rates = Rates::between(Some(&stats(100)), &stats(102));
    let shown = state::listed(&rates, "0", Column::Drops, false).into_iter().cloned().collect();
    let head = head(&rates);
    rates.ports = shown;
    insta::assert_snapshot!(format!("{head}{}", table(&rates)), @r"
    weir 0.1.0, up 1m42s, workers 2, CPU 80.0 % of a core, ports 5
    NAME  STATE    RX P/S  BIT/S  TX P/S   BIT/S  CPU %    HOLD  BUDGET  LATE/S  DROP/S  DROP REASON   HELD BECAUSE
    db0   running   200 k  1.6 G   100 k  51.2 M   20.0  120 us  250 us       2      30  rx_ring_full  frames come steadily
    web0  running   100 k  800 M    50 k  25.6 M   10.0  120 us  250 us       0       0                frames come steadily
    ");
}
