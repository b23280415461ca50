//! Changes of policies under traffic, by requests like those of the control socket.

use weir_config::{Moderation, Setting, VifChanges, WorkerCount};
use weir_policy::moderation::Kind;
use weir_switch::control::{ControlHandler, Request, Response};
use weir_switch::explain::VifExplanation;
use weir_vif::load::{bulk, mixed, pingpong, small};

use super::*;

const RECEIVER: Role = Role::Receiver;
/// Time after which a test gives up.
const PATIENCE: Duration = Duration::from_secs(60);

fn rig(load: Load) -> (Rig, TempDir) {
    let dir = temp_dir().unwrap();
    let workers = Workers::Count(WorkerCount::try_from(1).unwrap());
    let setup = Setup {
        load,
        calls: CallSettings::default(),
        sender_calls: None,
        latency_budget: LatencyBudget::DEFAULT,
        workers,
        packed: false,
        containers: false,
        places: Places::Anywhere,
        filter: &[],
    };
    (Rig::start(&setup, dir.path()).unwrap(), dir)
}

fn set(rig: &Rig, settings: &[&str]) -> Response {
    let settings: Vec<Setting> = settings.iter().map(|text| text.parse().unwrap()).collect();
    let name = port_name(RECEIVER);
    let changes = VifChanges::from_settings(&name, &settings).unwrap();
    rig.switch.handle(Request::VifSet { name, changes: changes.into() })
}

fn explain(rig: &Rig) -> VifExplanation {
    match rig.switch.handle(Request::VifExplain { name: port_name(RECEIVER) }) {
        Response::Explained { explanation } => *explanation,
        other => panic!("{other:?}"),
    }
}

fn received(rig: &Rig) -> u64 {
    port(&rig.stats(), RECEIVER).unwrap().rx.frames
}

#[test]
fn every_policy_can_take_over_while_traffic_flows() {
    let loads = [
        Load::Bulk(bulk::Options::default()),
        Load::Small(small::Options::default()),
        Load::RequestResponse(pingpong::Options::default()),
        Load::Mixed(mixed::Options::default()),
    ];
    for load in loads {
        let (rig, _dir) = rig(load);
        for &kind in Kind::ALL {
            assert_eq!(set(&rig, &[&format!("moderation={kind}")]), Response::Ok);
            let before = received(&rig);
            let start = Instant::now();
            while received(&rig) < before + 300 {
                assert!(start.elapsed() < PATIENCE, "nothing moves under {kind}: {load:?}");
                assert!(!rig.has_failed());
                thread::sleep(START_POLL);
            }
            assert_eq!(explain(&rig).queues[0].moderation, Moderation(kind));
        }
        let stats = rig.stats();
        let breaches = &port(&stats, RECEIVER).unwrap().budget_breaches;
        assert_eq!(breaches.get("policy"), None, "a deadline past the budget");
        rig.finish().unwrap();
    }
}

#[test]
fn settings_that_do_not_go_together_change_nothing() {
    let (rig, _dir) = rig(Load::Silence);
    assert_eq!(set(&rig, &["moderation=backend", "rx_usecs=150"]), Response::Ok);
    let before = explain(&rig);
    let queue = &before.queues[0];
    assert_eq!((queue.hold_ns, queue.reason.as_str()), (150_000, "rx-usecs"));
    assert_eq!(queue.hold_ns_max, 230_000, "timers have their share of 250 us");
    for refused in
        [&["latency_budget=100us"][..], &["rx_usecs=251"], &["moderation=immediate", "rx_usecs=1"]]
    {
        assert!(matches!(set(&rig, refused), Response::Error { .. }), "{refused:?}");
    }
    // Time passes, and the share of the workers' time changes.
    let VifExplanation { sharing, receiving, traffic, .. } = before.clone();
    assert_eq!(VifExplanation { sharing, receiving, traffic, ..explain(&rig) }, before);
    assert_eq!(set(&rig, &["latency_budget=100us", "rx_usecs=none"]), Response::Ok);
    assert_eq!(explain(&rig).queues[0].hold_ns, 80_000);
    assert_eq!(set(&rig, &["latency_budget=0us"]), Response::Ok);
    assert_eq!(explain(&rig).queues[0].hold_ns, 0, "a budget of zero holds nothing");
    rig.finish().unwrap();
}

#[test]
fn filters_can_be_replaced_while_traffic_flows() {
    let (rig, _dir) = rig(Load::Small(small::Options::default()));
    let filter = |role, rules: &[&str]| {
        let rules = rules.iter().map(|rule| rule.parse().unwrap()).collect();
        rig.switch.handle(Request::FilterSet { name: port_name(role), rules })
    };
    let drops =
        |role, reason| port(&rig.stats(), role).unwrap().drops.get(reason).copied().unwrap_or(0);
    let eventually = |what: &str, holds: &dyn Fn() -> bool| {
        let start = Instant::now();
        while !holds() {
            assert!(start.elapsed() < PATIENCE, "never happened: {what}");
            thread::sleep(START_POLL);
        }
    };
    for _ in 0..20 {
        let before = received(&rig);
        assert_eq!(filter(Role::Sender, &["tx accept udp", "tx drop"]), Response::Ok);
        eventually("packets pass and are counted", &|| {
            let stats = rig.stats();
            let rules = &port(&stats, Role::Sender).unwrap().filter;
            received(&rig) > before && rules[0].packets > 0 && rules[0].bytes >= 60
        });
        let dropped = drops(Role::Sender, "filtered_tx");
        assert_eq!(filter(Role::Sender, &["tx drop src net 10.0.0.0/8 and udp"]), Response::Ok);
        eventually("the sender's go nowhere", &|| drops(Role::Sender, "filtered_tx") > dropped);
        assert_eq!(filter(Role::Sender, &[]), Response::Ok);
        let dropped = drops(RECEIVER, "filtered_rx");
        assert_eq!(filter(RECEIVER, &["rx drop udp"]), Response::Ok);
        eventually("the receiver gets none", &|| drops(RECEIVER, "filtered_rx") > dropped);
        assert_eq!(explain(&rig).filter[0].rule.to_string(), "rx drop udp");
        assert_eq!(filter(RECEIVER, &[]), Response::Ok);
    }
    let nobody = Request::FilterSet { name: "nobody".parse().unwrap(), rules: Vec::new() };
    assert!(matches!(rig.switch.handle(nobody), Response::Error { .. }));
    rig.finish().unwrap();
}
