use std::collections::BTreeMap;

use weir_config::{GuardMode, RuleDirection};
use weir_switch::explain::{HostHeard, MoveExplanation, QueueExplanation, SteeringQueue};
use weir_switch::stats::{
    CallSettings, PortState, QueuePairNumbers, RingSizes, Silence, SilentRing, Times,
};

use super::super::text;
use super::*;

/// The policies of a running interface with default settings and without traffic.
pub(crate) fn explanation_of(name: &str) -> VifExplanation {
    VifExplanation {
        name: name.parse().unwrap(),
        state: PortState::Running,
        blocked: None,
        latency_budget_ns: 250_000,
        calls: CallSettings::default(),
        budget_breaches: Default::default(),
        queue_pairs: Default::default(),
        rings: Default::default(),
        queues: Vec::new(),
        split: None,
        agent: None,
        filter: Vec::new(),
        dispatch: Default::default(),
        sharing: Default::default(),
        receiving: Default::default(),
        guard: None,
        groups: None,
        steering: None,
        silent: Vec::new(),
        hosts: Vec::new(),
        traffic: Default::default(),
    }
}

fn sample(frames: u64, calls: u64) -> VifExplanation {
    let queue = |queue| QueueExplanation {
        queue,
        moderation: "backend".parse().unwrap(),
        hold_ns: 200_000,
        hold_ns_max: 930_000,
        reason: "rx-usecs".into(),
        frames,
        calls,
        calls_suppressed: 0,
        held_ns: Times { p50: 150_000, p99: 201_000, max: 240_000, ..Times::default() },
        jitter_ns: 12_000,
    };
    VifExplanation {
        latency_budget_ns: 1_000_000,
        calls: CallSettings {
            moderation: "backend".parse().unwrap(),
            rx_usecs: Some(200.try_into().unwrap()),
            rx_frames: None,
            container_bytes: None,
        },
        budget_breaches: BTreeMap::from([("asked_late".into(), 2)]),
        queue_pairs: QueuePairNumbers { configured: 4, session: Some(2), in_use: 2 },
        rings: RingSizes {
            rx_ring: Some(512.try_into().unwrap()),
            tx_ring: Some(256.try_into().unwrap()),
            rx_in_use: vec![1024, 1024],
            tx_in_use: vec![256],
        },
        queues: vec![queue(0), queue(1)],
        dispatch: DispatchExplanation {
            workers: vec![Some(1), None],
            moves: vec![MovedPair {
                ago_ns: 3_000_000_000,
                queue: 0,
                from: 0,
                to: 1,
                load: 0.42,
                reason: "its worker was busier".into(),
            }],
        },
        sharing: SharingExplanation {
            own: PortShare { weight: 2, worker_ns: 10_000 * frames },
            workers: 1,
            elapsed_ns: 20_000 * frames,
            rate_waits: calls,
            ..SharingExplanation::default()
        },
        silent: vec![SilentRing { ring: 1, why: Silence::BuffersWithoutKick }],
        ..explanation_of("web0")
    }
}

#[test]
fn explanation_for_people() {
    let explanation = sample(51_000, 5_100).since(&sample(1_000, 100));
    insta::assert_snapshot!(text(|f| vif(f, &explanation)), @r"
    web0: running, moderation backend, budget 1 ms, rx_usecs 200

    QUEUE   HOLDS   LIMIT  FRAMES/S  CALLS/S  UNWANTED/S  FRAMES/CALL  HELD P50     P99     MAX  JITTER  BECAUSE
        0  200 us  930 us    50,000    5,000           0       10.000    150 us  201 us  240 us   12 us  rx-usecs
        1  200 us  930 us    50,000    5,000           0       10.000    150 us  201 us  240 us   12 us  rx-usecs
    queue pairs: 2 in use of 2; `queues` is 4 now: that is offered when the front end connects again
    entries of a ring: rx 1024; tx 256; `rx_ring` is 512: the VM has other arguments, see `weir qemu-args`
    workers, by queue: 1, none yet
    3 s ago: queue 0, 42% of a core, from worker 0 to 1: its worker was busier
    share: 100% of the workers' time (500 ms), entitled to 100% (weight 2 of 2 of those that sent); limited by its rate (waits: 5,000)
    ring 1 (tx of queue 0) is never served: there are buffers in it, and a kick never came; the descriptor of SET_VRING_KICK is not the one that the guest's notification ends in: look at the monitor's ioeventfd
    agent: none is configured
    told too late: asked_late 2
    ");
}

#[test]
fn groups_are_told_with_what_they_refused() {
    let refused = RefusalExplanation {
        direction: RuleDirection::In,
        reason: "no_rule".into(),
        vlan: None,
        protocol: Some("tcp".into()),
        from: Some("10.0.0.2".into()),
        to: Some("10.0.0.1".into()),
        port: Some(22),
        icmp_type: None,
        frames: 2,
        ago_ms: 3000,
    };
    let [web, ssh]: [SecurityGroup; 2] = ["web", "ssh"].map(|name| name.parse().unwrap());
    let it = GroupsExplanation {
        groups: vec![web.clone(), ssh],
        close_in: vec![web.clone()],
        id: Some(17),
        to_groups_here: vec![web.clone()],
        log: vec![web],
        refused_in: BTreeMap::from([("invalid".into(), 1), ("no_rule".into(), 2)]),
        refused: vec![refused],
        ..GroupsExplanation::default()
    };
    insta::assert_snapshot!(text(|f| groups(f, &it)), @r"
    groups: web, ssh; in closed by web; logged by web; for other hosts 17; refused in: invalid 1, no_rule 2
      rules `to` a group, of web: they mean interfaces of this switch, and no guest of another host, whose groups are not known
      in tcp 10.0.0.2 to 10.0.0.1 port 22: no_rule, frames: 2, last 3 s ago
    ");

    // A user who asks right after a refusal gets it as the reason, whatever arrived in this second.
    let mut of = explanation_of("web0");
    (of.traffic.state, of.traffic.reaches, of.groups) = (PortState::Running, 1, Some(it));
    let verdict = of.verdict();
    assert!(verdict.passes == Passes::No && verdict.because.len() == 1, "{verdict:?}");
    assert!(verdict.because[0].contains("groups refused frames within the last minute: 2"));
    of.traffic.rx_frames = 5;
    assert_eq!((of.verdict().passes, of.verdict().because.len()), (Passes::Yes, 3));
    of.groups.as_mut().unwrap().refused[0].ago_ms = 70_000;
    assert!(of.verdict().because.iter().all(|it| !it.contains("groups")));
}

#[test]
fn explanation_survives_json() {
    let json = serde_json::to_string(&sample(1, 2)).unwrap();
    assert_eq!(serde_json::from_str::<VifExplanation>(&json).unwrap(), sample(1, 2));
}

#[test]
fn a_guard_is_told_with_its_addresses_and_what_it_dropped() {
    let shown = |it: &GuardExplanation| text(|f| guard(f, it));
    let mut of = GuardExplanation {
        mode: GuardMode::Configured,
        addresses: "10.0.0.5, fd00::/64".parse().unwrap(),
        ..GuardExplanation::default()
    };
    assert_eq!(shown(&of), "source guard: configured: 10.0.0.5, fd00::/64\n");
    let leased = LeaseExplanation { address: "10.0.0.6".parse().unwrap(), seconds_left: 3600 };
    let snooped = GuardExplanation {
        mode: GuardMode::Snooped,
        leases: vec![leased],
        ..GuardExplanation::default()
    };
    assert_eq!(shown(&snooped), "source guard: snooped, 10.0.0.6 for 3600 s\n");
    of.router = true;
    of.drops = BTreeMap::from([("source_guard_arp".into(), 3)]);
    let expected =
        "source guard: configured: 10.0.0.5, fd00::/64; a router; dropped: source_guard_arp 3\n";
    assert_eq!(shown(&of), expected);
}

#[test]
fn a_limit_is_told_with_what_it_cost() {
    let shown = |it: &ReceivingExplanation| text(|f| receiving(f, it));
    let limits = Receiving { rate: Some("100Mbit".parse().unwrap()), ..Receiving::default() };
    let mut now = ReceivingExplanation { limits, policed: 5_234, elapsed_ns: 3_000_000_000 };
    now.since(&ReceivingExplanation { limits, policed: 1_000, elapsed_ns: 2_000_000_000 });
    assert_eq!(shown(&now), "receives at most 100Mbit: 4,234 frames beyond that dropped in 1 s\n");
    now.limits.packets_per_second = Some("2000".parse().unwrap());
    let text = shown(&now);
    assert!(text.starts_with("receives at most 100Mbit and 2,000 packets/s: "), "{text}");
    assert_eq!(shown(&ReceivingExplanation::default()), "");
}

fn shown_share(it: &SharingExplanation) -> String {
    text(|f| sharing(f, it))
}

fn shares(own_ns: u64, other_ns: u64) -> SharingExplanation {
    let other =
        |name: &str, weight, worker_ns| (name.parse().unwrap(), PortShare { weight, worker_ns });
    SharingExplanation {
        own: PortShare { weight: 1, worker_ns: own_ns },
        others: [other("b", 3, other_ns), other("idle", 100, 5)].into(),
        workers: 1,
        elapsed_ns: 1_000_000_000,
        ..SharingExplanation::default()
    }
}

#[test]
fn who_is_below_its_share_and_kept_by_nothing_had_no_more() {
    let mut now = shares(100_000_000 + 7, 300_000_000);
    now.elapsed_ns *= 2;
    let before = SharingExplanation { own: PortShare { weight: 1, worker_ns: 7 }, ..shares(0, 0) };
    now.since(&before);
    insta::assert_snapshot!(shown_share(&now), @"share: 25% of the workers' time (100 ms), entitled to 25% (weight 1 of 4 of those that sent); limited by nothing");
}

#[test]
fn every_limit_is_named() {
    let since = |change: fn(&mut SharingExplanation)| {
        let mut now = shares(450_000_000, 500_000_000);
        now.others.remove(&"idle".parse().unwrap());
        change(&mut now);
        shown_share(&now)
    };
    assert!(since(|_| ()).ends_with("limited by the schedule (the workers had no time left)\n"));
    assert!(since(|now| now.workers = 2).ends_with("limited by nothing\n"));
    let limited = since(|now| {
        now.workers = 2;
        (now.rate_waits, now.parked, now.window_violations) = (1200, 3, 1);
    });
    let expected = "its rate (waits: 1,200), full receivers (frames that waited: 3), the schedule (turns too late: 1)\n";
    assert!(limited.ends_with(expected), "{limited}");
}

#[test]
fn who_sent_nothing_is_limited_by_nobody() {
    assert_eq!(shown_share(&shares(0, 1_000_000_000)), "share: weight 1; it sent nothing\n");
}

#[test]
fn steering_for_people() {
    let queue = |entries, moving, frames_per_s| SteeringQueue { entries, moving, frames_per_s };
    let made = MoveExplanation {
        ago_ns: 300_000_000,
        entry: 17,
        from: 0,
        to: 1,
        frames_per_s: 4_000,
        from_frames_per_s: 120_000,
        to_frames_per_s: 40_000,
    };
    let explanation = SteeringExplanation {
        rebalances: true,
        given: false,
        moved_entries: 1_037,
        queues: vec![queue(60, 2, 118_000), queue(68, 0, 117_500)],
        moves: vec![made],
    };
    insta::assert_snapshot!(text(|f| steering(f, &explanation)), @r"
    indirection table: rebalanced by load, entries moved: 1,037
    QUEUE  ENTRIES  LEAVING  FRAMES/S
        0       60        2   118,000
        1       68        0   117,500
    300 ms ago: entry 17 with 4,000 frames/s from queue 0 (120,000) to 1 (40,000)
    ");
}

#[test]
fn both_sides_of_a_budget_over_two_hosts_for_people() {
    let it = HostExplanation {
        host: [192, 0, 2, 2].into(),
        from_ns: 125_000,
        left_late_there: 3,
        to_ns: Some(20_000),
        budget_there_ns: 100_000,
        left_late_here: 1_200,
        told_late_there: 4,
    };
    insta::assert_snapshot!(text(|f| other_host(f, &it)), @"host 192.0.2.2: frames from it may wait 125 us there (later: 3); frames to it may wait 20 us here, of 100 us (later: 1,200; told too late there: 4)");
    let silent = HostExplanation { to_ns: None, ..it };
    let said = text(|f| other_host(f, &silent));
    assert!(said.contains("frames to it wait here as local budgets allow"), "{said}");
}

#[test]
fn a_host_with_other_groups_for_an_id_is_named_once() {
    let network = |name: &str| OverlayNetworkExplanation {
        name: name.parse().unwrap(),
        vni: 100,
        evpn: false,
        hosts: vec![HostHeard {
            host: "192.0.2.2".parse().unwrap(),
            has_weir: true,
            unanswered: 0,
            stations: 1,
            disputed_ids: vec![17, 19],
            heard_s: None,
        }],
    };
    let it = OverlayExplanation {
        name: "overlay".parse().unwrap(),
        local: "192.0.2.1".parse().unwrap(),
        udp_port: 4789,
        mtu: 1450,
        networks: vec![network("blue"), network("red")],
    };
    let shown = text(|f| overlay(f, &it));
    assert_eq!(shown.matches("192.0.2.2 has other groups for 17, 19 in [group-ids]").count(), 1);
}
