use rustix::event::{EventfdFlags, eventfd};
use weir_engine::guest::{CallPolicy, GuestDevice};
use weir_engine::{QueueRef, Side};
use weir_fabric::PortConfig;
use weir_policy::schedule::Share;
use weir_port_vhost::{VhostOptions, VhostPort};

use super::*;
use weir_config::PlacementMode;

fn run(kind: Kind) -> Run {
    run_with(kind, 1)
}

fn run_with(kind: Kind, workers: usize) -> Run {
    let engine = Engine::start(workers).unwrap();
    let calls = CallPolicy::within(kind, 1_000_000);
    let options =
        VhostOptions { name: "web0".into(), queue_pairs: 1, calls, device: GuestDevice::default() };
    let make = |id, counters| Arc::new(VhostPort::new(id, counters, &options));
    let (_, port) = engine.add_port(PortConfig::vif(), make).unwrap();
    let wake = Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
    let loops = Loops::new(&engine);
    let mut run = Run::new(engine, loops, wake, mpsc::channel().1);
    run.add_vif(ManagedVif::new(NewVif {
        name: "web0".parse().unwrap(),
        port,
        agent: None,
        settings: VifSettings {
            kind,
            hold_ns_max: calls.hold_ns_max(),
            budget_ns: calls.latency_budget_ns,
            share: Share::default(),
            overlay_budget_ns: Some(calls.latency_budget_ns),
            mac: weir_wire::Mac([2, 0, 0, 0, 0, 1]),
            rss_rebalance: true,
        },
    }));
    run
}

#[test]
fn it_looks_while_there_is_traffic_and_sleeps_until_there_is_some() {
    let mut run = run(Kind::TwoLayer);
    let mut now_ns = 0;
    while !matches!(run.rhythm, Rhythm::AtTraffic) {
        run.look(now_ns);
        now_ns += LAW.look_ns;
        assert!(now_ns < 2 * QUIET_NS);
    }
    assert!(now_ns >= QUIET_NS);
    // A frame has the same effect: a worker wakes up. The sleep ends, although it has no timeout.
    run.engine.nudge(QueueRef { port: PortId::new(0).unwrap(), queue: 0, side: Side::Tx });
    run.sleep();
    assert!(matches!(run.rhythm, Rhythm::At(_)));
    run.look(now_ns);
    assert!(matches!(run.rhythm, Rhythm::At(at_ns) if at_ns == now_ns + LAW.look_ns));
}

#[test]
fn it_looks_twice_as_often_where_queues_may_move_and_sleeps_as_well() {
    let mut run = run_with(Kind::Auto, 2);
    run.look(1);
    assert!(matches!(run.rhythm, Rhythm::At(at_ns) if at_ns == 1 + DISPATCH_NS));
    run.look(QUIET_NS);
    assert!(matches!(run.rhythm, Rhythm::AtTraffic));
}

#[test]
fn nobody_looks_where_nothing_depends_on_it() {
    for kind in [Kind::Auto, Kind::Immediate] {
        let mut run = run(kind);
        run.look(1);
        assert!(matches!(run.rhythm, Rhythm::Off), "{kind}");
        assert!(run.explain_vif(PortId::new(0).unwrap(), 2).split.is_none());
    }
}

#[test]
fn it_looks_each_second_for_placement_and_sleeps_without_traffic() {
    let mut run = run(Kind::Auto);
    let config = PlacementConfig { mode: PlacementMode::Dynamic, ..PlacementConfig::default() };
    run.obey(Command::Place(config, Host::default()), 1);
    assert!(matches!(run.rhythm, Rhythm::At(at_ns) if at_ns == 1 + placement::LOOK_NS));
    // The time for another look has not come, so the change is handled later, with or without traffic.
    for now_ns in 2..5 {
        let id = PortId::new(0).unwrap();
        let settings = run.vifs[&id].settings;
        run.obey(Command::ChangeVif(id, settings), now_ns);
        assert!(matches!(run.rhythm, Rhythm::At(at_ns) if at_ns == now_ns + placement::LOOK_NS));
    }
    let mut looks = 0;
    while let Rhythm::At(at_ns) = run.rhythm {
        run.look(at_ns);
        looks += 1;
        assert!(looks <= 3);
    }
    assert!(matches!(run.rhythm, Rhythm::AtTraffic));
    run.obey(Command::Place(PlacementConfig::default(), Host::default()), 2);
    assert!(matches!(run.rhythm, Rhythm::Off));
}

#[test]
fn a_share_reaches_the_queues_again_after_the_policy_is_made_anew() {
    let mut run = run(Kind::TwoLayer);
    let id = PortId::new(0).unwrap();
    let port = Arc::clone(&run.vifs[&id].port);
    let limit = || port.interface().decisions()[0].hold_ns_max;
    run.look(1);
    let whole_ns = limit();
    let settings = run.vifs[&id].settings;
    let smaller = VifSettings { hold_ns_max: whole_ns / 2, ..settings };
    run.obey(Command::ChangeVif(id, smaller), 2);
    assert_eq!(limit(), whole_ns / 2);
    port.interface().set_moderation(&CallPolicy::within(Kind::TwoLayer, 1_000_000));
    assert_eq!(limit(), whole_ns);
    run.obey(Command::ChangeVif(id, smaller), 3);
    assert_eq!(limit(), whole_ns / 2);
}
