use weir_config::VlanMode;
use weir_engine::stages::StageCosts;
use weir_switch::stats::{
    LoopStats, OtherStart, PortState, QueuePairStats, QueueStats, Times, WorkerStats, limits,
};

use super::super::text;
use super::*;

fn shown(stats: &SwitchStats) -> String {
    text(|f| super::stats(f, stats, None))
}

fn sample() -> SwitchStats {
    let mut web0 = PortStats::new("web0".parse().unwrap(), PortKind::Vif);
    web0.state = PortState::Running;
    web0.vlan = VlanMode::Access(10.try_into().unwrap());
    let rx = QueueStats {
        frames: 1_000_000,
        bytes: 1_500_000_000,
        calls: 12_500,
        calls_suppressed: 0,
        kicks: 3,
    };
    let tx = QueueStats { frames: 2_048, bytes: 131_072, calls: 0, calls_suppressed: 0, kicks: 40 };
    web0.set_queues(vec![QueuePairStats { rx, tx }, QueuePairStats { rx, tx }]);
    web0.hold_ns = Times { p50: 0, p99: 812, max: 240_300, ..Times::default() };
    web0.latency_budget_ns = 250_000;
    (web0.worker_ns, web0.rate_waits) = (1_500_000, 3);
    web0.drops = BTreeMap::from([("rx_full".into(), 7), ("source_mac".into(), 0)]);
    let mut bad = PortStats::new("bad".parse().unwrap(), PortKind::Vif);
    bad.state = PortState::Stopped;
    bad.stopped_reason = Some("TX queue 0: descriptor loop".into());
    bad.budget_breaches = BTreeMap::from([("asked_late".into(), 1_000), ("policy".into(), 0)]);
    web0.limits = limits([("addresses", Limit::new(64, 64))]);
    web0.silent = vec![
        SilentRing { ring: 3, why: Silence::KicksWithoutBuffers { kicks: 5_700 } },
        SilentRing { ring: 1, why: Silence::BuffersWithoutKick },
        SilentRing { ring: 0, why: Silence::NoCallDescriptor },
        SilentRing { ring: 2, why: Silence::NoTranslation { questions: 3, seconds: 12 } },
    ];
    let mut lan = PortStats::new("lan".parse().unwrap(), PortKind::Uplink);
    lan.state = PortState::Running;
    lan.rx.frames = 99;
    lan.gro = 12;
    let with = "web0".parse().unwrap();
    lan.blocked = Some(BlockStats { with, vlan: 7, seconds: 12.3, retry_s: 7.7, tries: 1 });
    SwitchStats {
        version: "0.1.0".into(),
        host: String::new(),
        started_unix_ms: 0,
        uptime_s: 3_725.0,
        over_s: None,
        keeper: Default::default(),
        file: None,
        unsaved: Vec::new(),
        groups: Vec::new(),
        multicast: Vec::new(),
        on_demand: Vec::new(),
        queues_moved: 3,
        workers: vec![WorkerStats {
            id: 0,
            wakeups: 1_234,
            bursts: 9,
            cpu_ns: 1_500_000_000,
            ..WorkerStats::default()
        }],
        panicked: vec![PanickedThread { name: "weir-manager".into(), panics: 16, ended: true }],
        still: vec![StillThread {
            name: "weir-worker-0".into(),
            does: "serves a queue".into(),
            port: Some("web0".parse().unwrap()),
            party: None,
            seconds: 12.3,
            kernel: "state D (disk sleep), in folio_wait_bit".into(),
        }],
        unclosed: vec![Unclosed { party: "bad".into(), descriptors: 64, seconds: 7.8 }],
        programs_failed: Default::default(),
        placement: PlacementStats::default(),
        loops: LoopStats { suspected: 3, found: 1 },
        stages: Vec::new(),
        limits: limits([("descriptors", Limit::new(980, 1_024)), ("ports", Limit::new(3, 9))]),
        ports: vec![web0, bad, lan],
    }
}

#[test]
fn table_for_people() {
    insta::assert_snapshot!(shown(&sample()), @r#"
    weir 0.1.0, up 1h02m, workers 1, wake-ups 1,234, CPU 1.5 s
    nearly at their limits: descriptors 980 of 1,024 (95%)
    weir-manager panicked 16 times and does nothing any more: see the log, and report it
    weir-worker-0 stands still for 12 s: it serves a queue of web0; state D (disk sleep), in folio_wait_bit
    bad: 64 descriptors sent here wait to be closed, for 8 s: its service stands still

    PORT  STATE    VLAN  RX FRAMES  RX BYTES  TX FRAMES  TX BYTES  DROPS  WORKER  CALLS/FRAME  HOLD P50     P99     MAX  BUDGET
    web0  running  10    2,000,000      3 GB      4,096    262 kB      7  1.5 ms        0.013         0  812 ns  240 us  250 us
    bad   stopped  1             0       0 B          0       0 B      0       0            -         0       0       0       0
    lan   running  -            99       0 B          0       0 B      0       0            -         -       -       -       -
    web0: nearly at its limits: addresses 64 of 64 (100%)
    web0: ring 3 (tx of queue 1) is never served: 5,700 kicks came, and where weir looks there was never a buffer
    web0: ring 1 (tx of queue 0) is never served: there are buffers in it, and a kick never came
    web0: ring 0 (rx of queue 0) is served in silence: its driver waits to be called, and there is no call descriptor
    web0: ring 2 (rx of queue 1) waits: the monitor has not answered 3 questions about translations for 12 s
    web0: waited for its rate: 3 times
    web0: dropped: rx_full 7
    bad: stopped: TX queue 0: descriptor loop
    bad: told too late: asked_late 1,000
    lan: blocked for 12 s, a loop with web0 in VLAN 7: tried 1 times, and again in 8 s
    lan: received merged (GRO): 12 packets
    "#);
}

#[test]
fn a_difference_has_what_was_counted_in_between_and_says_so() {
    let before = sample();
    assert!(!shown(&before).contains("counted for"));
    let mut now = before.clone();
    now.uptime_s += 90.0;
    let web0 = &mut now.ports[0];
    web0.rx.frames += 5;
    web0.drops.insert("new".into(), 2);
    let at_most = [0, 0, 0, 98, 98, 99, 100, 100, 100, 100];
    web0.hold_ns = Times { count: 100, sum: 9_000, p50: 1, p99: 2, max: 240_300, at_most };
    now.ports[1].budget_breaches.insert("asked_late".into(), 400);
    let since = now.clone().since(&before).unwrap();
    let text = shown(&since);
    assert!(text.contains("counted for 1m30s") && text.contains("dropped: new 2"), "{text}");
    let web0 = &since.ports[0];
    assert_eq!((web0.rx.frames, web0.tx.frames, web0.rate_waits), (5, 0, 0));
    // Of the times between two bounds, the histogram gives the bounds alone.
    assert_eq!([web0.hold_ns.p50, web0.hold_ns.p99, web0.hold_ns.max], [50_000, 240_300, 240_300]);
    assert_eq!(since.ports[1].budget_breaches["asked_late"], 400, "it began anew");
    assert_eq!((since.ports[2].gro, &since.ports[2].state), (0, &PortState::Running));
    assert_eq!(before.clone().since(&now), Err(OtherStart), "that is later");
    now.started_unix_ms += 1;
    assert_eq!(now.since(&before), Err(OtherStart));
}

#[test]
fn stats_survive_json() {
    let json = serde_json::to_string(&sample()).unwrap();
    assert_eq!(serde_json::from_str::<SwitchStats>(&json).unwrap(), sample());
    assert!(json.contains(r#""state":"stopped","stopped_reason":"TX queue 0: descriptor loop""#));
}

#[test]
fn what_is_nearly_reached_is_told_and_no_more() {
    let of = |used| limits([("descriptors", Limit::new(used, 1_000)), ("ports", Limit::new(1, 2))]);
    assert_eq!(nearly_reached(&of(799), |_| String::new()), None);
    let near = nearly_reached(&of(800), |_| String::new()).unwrap();
    assert_eq!(near, "descriptors 800 of 1,000 (80%)");
    let mut switch = sample();
    switch.limits = limits([("addresses", Limit::new(990, 1_000))]);
    let of = |name: &str, used| {
        let mut port = PortStats::new(name.parse().unwrap(), PortKind::Vif);
        port.limits = limits([("addresses", Limit::new(used, 4_096))]);
        port
    };
    switch.ports = [("a", 7), ("b", 0), ("c", 900), ("d", 64), ("e", 8)]
        .map(|(name, used)| of(name, used))
        .into();
    let near = shown(&switch);
    assert!(
        near.contains("addresses 990 of 1,000 (99%), most of them by c 900, d 64, e 8\n"),
        "{near}"
    );
    let nothing = limit(&Limit::new(1, 0));
    assert_eq!(nothing, "1 of 0 (100%)");
    assert_eq!(Limit::new(u64::MAX, u64::MAX).percent(), 100);
}

#[test]
fn a_line_only_where_something_was_moved() {
    assert_eq!(text(|f| placement_line(f, &PlacementStats::default())), "");
    let stats = PlacementStats { moves: 3, vcpu_moves: 1_200, refused: 1 };
    let line = "placement: worker moves 3, vCPU moves 1,200, refused 1\n";
    assert_eq!(text(|f| placement_line(f, &stats)), line);
}

#[test]
fn a_number_that_waits_for_the_next_session_is_told() {
    let numbers = |configured, session, in_use| QueuePairNumbers { configured, session, in_use };
    let shown = |configured, session, in_use| {
        text(|f| queue_pairs(f, &numbers(configured, session, in_use)))
    };
    assert_eq!(shown(4, Some(4), 2), "queue pairs: 2 in use of 4\n");
    assert_eq!(shown(4, None, 0), "queue pairs: 0 in use of 4\n");
    assert_eq!(
        shown(4, Some(2), 2),
        "queue pairs: 2 in use of 2; `queues` is 4 now: that is offered when the front end connects again\n"
    );
    let fewer = numbers(2, Some(4), 4).note().unwrap();
    assert!(fewer.ends_with("and one that wants more has no session then"), "{fewer}");
}

fn with_stages(stages: Vec<StageStats>) -> SwitchStats {
    let port = PortStats::new("web0".parse().unwrap(), PortKind::Vif);
    SwitchStats { stages, ports: vec![port], ..SwitchStats::default() }
}

#[test]
fn stages_are_a_table_of_their_own_while_they_are_measured() {
    let costs = StageCosts { bursts: 4, frames: 10, ticks: [1_310, 135, 872, 0, 3] };
    let unit = "cycles".into();
    let measured = StageStats { unit, ..StageStats::from((7, costs)) };
    let with = with_stages(vec![measured, StageStats::default()]);
    let without = with_stages(Vec::new());
    let (text, rest) = (shown(&with), shown(&without));
    insta::assert_snapshot!(text.strip_prefix(&rest).unwrap(), @r#"

    cycles for each frame, by stage:
    WORKER   TAKE  CLASSIFY  COPY  PUBLISH  CALL  FRAMES/BURST
         7  131.0      13.5  87.2      0.0   0.3         2.500
         0      -         -     -        -     -             -
    "#);
    let json = serde_json::to_string(&with).unwrap();
    assert_eq!(serde_json::from_str::<SwitchStats>(&json).unwrap(), with);
    assert!(!serde_json::to_string(&without).unwrap().contains("stages"));
}

fn with_rules() -> SwitchStats {
    let counted = |text: &str, packets| RuleStats {
        rule: text.parse().unwrap(),
        packets,
        bytes: 1500 * packets,
    };
    let mut web0 = PortStats::new("web0".parse().unwrap(), PortKind::Vif);
    web0.filter = vec![counted("tx drop tcp dst port 25", 12), counted("rx accept", 1_234_567)];
    let db0 = PortStats::new("db0".parse().unwrap(), PortKind::Vif);
    SwitchStats { ports: vec![web0, db0], ..SwitchStats::default() }
}

#[test]
fn rules_for_people() {
    let text = text(|f| rules(f, of_ports(&with_rules().ports)));
    insta::assert_snapshot!(text, @r#"

    filters, the first that matches decides:
    PORT  DIRECTION  ACTION    PACKETS   BYTES  MATCH
    web0  tx         drop           12   18 kB  tcp dst port 25
    web0  rx         accept  1,234,567  1.9 GB  everything
    "#);
    assert!(shown(&with_rules()).ends_with(&text));
    assert_eq!(super::super::text(|f| rules(f, of_ports(&with_rules().ports[1..]))), "");
}

#[test]
fn rules_survive_json() {
    let json = serde_json::to_string(&with_rules()).unwrap();
    assert!(json.contains(
        r#"{"direction":"tx","match":"tcp dst port 25","action":"drop","packets":12,"bytes":18000}"#
    ));
    assert_eq!(serde_json::from_str::<SwitchStats>(&json).unwrap(), with_rules());
}

#[test]
fn the_table_has_the_columns_that_fit_the_terminal() {
    let table = |width| {
        let text = text(|f| super::stats(f, &sample(), width));
        let lines = text.lines().skip_while(|line| !line.starts_with("PORT"));
        lines.take_while(|line| !line.contains(": ")).map(str::to_owned).collect::<Vec<_>>()
    };
    let whole = table(None);
    assert!(whole[0].contains("BUDGET") && whole[0].len() > 100, "{whole:?}");
    assert_eq!(table(Some(whole.iter().map(String::len).max().unwrap())), whole);
    for width in [132, 100, 80] {
        let lines = table(Some(width));
        assert!(lines.iter().all(|line| line.len() <= width), "{width}: {lines:?}");
        for always in ["PORT", "STATE", "RX FRAMES", "TX FRAMES", "DROPS"] {
            assert!(lines[0].contains(always), "{width}: {lines:?}");
        }
    }
    let narrow = text(|f| super::stats(f, &sample(), Some(80)));
    assert!(narrow.contains("\na wider terminal has: RX BYTES, TX BYTES"), "{narrow}");
    assert!(!shown(&sample()).contains("a wider terminal"));
}
