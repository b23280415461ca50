//! Vifs of guests on a simulated Xen, beside vhost-user guests, on one switch.

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use weir_config::{Change, Config, Defaults, PortName, VifChanges};
use weir_port_xen::testing::{Connect, Netfront};
use weir_vif::{Options, QueuePair};
use weir_wire::Offload;
use weir_xen::DomainId;
use weir_xen::testing::Host;
use weir_xen::vif::XenbusState;

use super::*;
use crate::control::{ControlHandler, Part, Request};
use crate::explain::{AgentState, VifExplanation};
use crate::helper::Hands;
use crate::stats::{PortState, PortStats};
use crate::switch::{Devices, Keeping};

/// A switch with the interface `web0`, in dom0 of a simulated Xen.
struct Bench {
    host: Host,
    switch: Arc<Switch>,
    dir: TempDir,
}

const XEN_MAC: [u8; 6] = [0, 0x16, 0x3e, 0, 0, 1];
const VHOST_MAC: [u8; 6] = [0x52, 0x54, 0, 0, 0, 2];

fn frame(to: [u8; 6], from: [u8; 6], payload: &[u8]) -> Vec<u8> {
    [&to[..], &from, &[0x88, 0xb5], payload].concat()
}

fn vif(domain: u16) -> VifId {
    VifId { domain: DomainId(domain), handle: 0 }
}

fn start(dir: &Path, host: &Host, xen: &str) -> Arc<Switch> {
    start_with(dir, host, xen, None)
}

fn start_with(dir: &Path, host: &Host, xen: &str, keeper: Option<SocketPath>) -> Arc<Switch> {
    let control = dir.join("control.sock");
    let control = SocketPath::try_from(control.as_path()).unwrap();
    let defaults = Defaults { control, control_named: true, keeper };
    let text = format!("[switch]\nworkers = 2\n[vif.web0]\n[xen]\n{xen}");
    let config = Config::from_toml("weir.toml", &text, &defaults).unwrap();
    let xen = config.xen.clone().unwrap();
    let keeping = Keeping::take(&config, &Hands::Own).unwrap();
    let devices = Devices::open(&config, &keeping).unwrap();
    // Xen is simulated from now on.
    let switch = Switch::start_without_xen(&config, devices, keeping).unwrap();
    let follows = host.clone();
    let connect = move || Ok(follows.client());
    switch.start_xen_on(&xen, Arc::new(host.clone()), connect, host.client()).unwrap();
    switch
}

impl Bench {
    fn new(xen: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::new();
        let switch = start(dir.path(), &host, xen);
        Self { host, switch, dir }
    }

    fn attach(&self, domain: u16, bridge: &str) {
        self.host.attach(DomainId(domain), 0, "00:16:3e:00:00:01", bridge);
    }

    fn guest(&self, domain: u16) -> Netfront {
        self.attach(domain, "br0");
        let mut front = Netfront::new(&self.host, vif(domain));
        connect(&mut front);
        front
    }

    fn port(&self, name: &str) -> Option<PortStats> {
        self.switch.stats().ports.into_iter().find(|port| port.name.as_str() == name)
    }

    fn vhost(&self) -> (weir_vif::Vif, QueuePair) {
        let options = Options::new(Mac(VHOST_MAC));
        let mut vif = weir_vif::Vif::connect(self.dir.path().join("web0.sock"), &options).unwrap();
        let pair = vif.queue_pairs().remove(0);
        eventually("web0 runs", || {
            self.port("web0").is_some_and(|port| port.state == PortState::Running)
        });
        (vif, pair)
    }
}

fn connect(front: &mut Netfront) {
    eventually("weir waits", || front.back_state() == Some(XenbusState::InitWait));
    front.connect(Connect::default());
    eventually("connected", || front.back_state() == Some(XenbusState::Connected));
}

/// Waits for an effect of another thread. The time limit only ends a failing test.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < end, "never happened: {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn xen_receives(front: &mut Netfront) -> Vec<u8> {
    let mut got = None;
    eventually("a frame comes to the Xen guest", || {
        got = front.receive(0);
        got.is_some()
    });
    got.unwrap().frame
}

fn vhost_receives(pair: &mut QueuePair) -> Vec<u8> {
    let mut got = Vec::new();
    eventually("a frame comes to the vhost-user guest", || pair.recv_into(&mut got).is_some());
    got
}

fn name(text: &str) -> PortName {
    text.parse().unwrap()
}

fn exchange(front: &mut Netfront, pair: &mut QueuePair, rounds: u16) {
    for n in 0..rounds {
        let payload = vec![n as u8; 46 + usize::from(n) * 7 % 1454];
        let there = frame(VHOST_MAC, XEN_MAC, &payload);
        assert!(front.send(0, &there));
        assert_eq!(vhost_receives(pair), there);
        let back = frame(XEN_MAC, VHOST_MAC, &payload);
        pair.send(&back, &Offload::NONE).unwrap();
        pair.flush();
        assert_eq!(xen_receives(front), back);
    }
}

#[test]
fn a_xen_guest_and_a_vhost_user_guest_talk_through_one_switch() {
    let bench = Bench::new("");
    let mut front = bench.guest(3);
    let (_vif, mut pair) = bench.vhost();
    exchange(&mut front, &mut pair, 200);
    let port = bench.port("vif3.0").unwrap();
    assert_eq!(port.state, PortState::Running);
    assert_eq!((port.rx.frames, port.tx.frames), (200, 200));
    assert_eq!(port.sessions.opened, 1);
    assert_eq!(port.mac.map(|mac| mac.to_string()).as_deref(), Some("00:16:3e:00:00:01"));
    let ended = bench.host.clone();
    drop(bench);
    assert_eq!((ended.mapped(), ended.bound()), (0, 0));
}

#[test]
fn a_guest_sends_from_its_own_address_only() {
    let bench = Bench::new("");
    let mut front = bench.guest(3);
    assert!(front.send(0, &frame(VHOST_MAC, [2, 0, 0, 0, 0, 9], b"not me")));
    eventually("counted", || {
        let drops = bench.port("vif3.0").unwrap().drops;
        drops.get("src_mac_spoofed") == Some(&1)
    });
}

#[test]
fn commands_work_on_a_vif_as_on_any_interface() {
    let bench = Bench::new("moderation = \"backend\"\nlatency_budget = \"1ms\"\n");
    let mut front = bench.guest(3);
    let (_vif, mut pair) = bench.vhost();
    exchange(&mut front, &mut pair, 3);
    assert_eq!(bench.port("vif3.0").unwrap().latency_budget_ns, 1_000_000);
    let switch = &bench.switch;
    let Response::Explained { explanation } =
        switch.handle(Request::VifExplain { name: name("vif3.0") })
    else {
        panic!("no explanation");
    };
    assert_eq!(explanation.queues[0].moderation.to_string(), "backend");

    let changes = VifChanges {
        moderation: Some("immediate".parse().unwrap()),
        latency_budget: Change::Set("2ms".parse().unwrap()),
        ..VifChanges::default()
    };
    let set = switch.handle(Request::VifSet { name: name("vif3.0"), changes: changes.into() });
    assert!(matches!(set, Response::Ok), "{set:?}");
    assert_eq!(bench.port("vif3.0").unwrap().latency_budget_ns, 2_000_000);
    exchange(&mut front, &mut pair, 3);

    let rules = vec!["tx drop ether proto 0x88b5".parse().unwrap()];
    let set = switch.handle(Request::FilterSet { name: name("vif3.0"), rules });
    assert!(matches!(set, Response::Ok), "{set:?}");
    assert!(front.send(0, &frame(VHOST_MAC, XEN_MAC, b"dropped")));
    eventually("filtered", || bench.port("vif3.0").unwrap().drops.get("filtered_tx") == Some(&1));

    let changes = VifChanges { queues: Some(4.try_into().unwrap()), ..VifChanges::default() };
    let set = switch.handle(Request::VifSet { name: name("vif3.0"), changes: changes.into() });
    let Response::Error { message, help, .. } = set else { panic!("{set:?}") };
    assert!(message.contains("its queues were offered"), "{message}");
    assert!(help.unwrap().contains("[xen]"));
    let changes = VifChanges { mac: Change::Clear, ..VifChanges::default() };
    let set = switch.handle(Request::VifSet { name: name("vif3.0"), changes: changes.into() });
    assert!(matches!(set, Response::Error { .. }), "{set:?}");
    let Response::Vifs { vifs, .. } = switch.handle(Request::VifList(Part::default())) else {
        panic!("no list")
    };
    let xen: Vec<_> = vifs.iter().map(|vif| (vif.config.name.as_str(), vif.xen)).collect();
    assert_eq!(xen, [("vif3.0", true), ("web0", false)]);

    let deleted = switch.handle(Request::VifDel { name: name("vif3.0") });
    let Response::Error { help, .. } = deleted else { panic!("{deleted:?}") };
    assert!(help.unwrap().contains("xl network-detach"));
}

fn explain(switch: &Switch, port: &str) -> VifExplanation {
    match switch.handle(Request::VifExplain { name: name(port) }) {
        Response::Explained { explanation } => *explanation,
        other => panic!("{other:?}"),
    }
}

/// The test acts as the device model, which passes on the agent's output on its console.
#[test]
fn an_agent_is_met_by_its_guests_channel_whenever_the_device_model_comes() {
    let bench = Bench::new("agent_channel = \"weir.agent\"\nmoderation = \"frontend\"\n");
    let socket = bench.dir.path().join("web.agent");
    let mut client = bench.host.client();
    for (key, value) in
        [("name", "weir.agent"), ("connection", "socket"), ("path", socket.to_str().unwrap())]
    {
        let key = format!("/local/domain/0/backend/console/3/1/{key}");
        client.write(&key, value.as_bytes()).unwrap();
    }
    let _front = bench.guest(3);
    let agent = || explain(&bench.switch, "vif3.0").agent.unwrap();
    assert_eq!((agent().state, agent().socket.as_path()), (AgentState::Waiting, &*socket));
    let listener = UnixListener::bind(&socket).unwrap();
    for session in [7, 8] {
        let (stream, _) = listener.accept().unwrap();
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        let mut next = |kind: &str| {
            loop {
                let line = lines.next().unwrap().unwrap();
                if line.contains(kind) {
                    return line;
                }
            }
        };
        let tell = |line: &str| writeln!(&stream, "{line}").unwrap();
        let mac = "00:16:3e:00:00:01";
        tell(&format!(
            r#"{{"message":"hello","version":1,"session":{session},"agent":"0.1.0","kernel":"6.1.0","interfaces":[{{"mac":"{mac}","name":"eth0","can_defer":true}}]}}"#
        ));
        assert!(next("welcome").contains(&session.to_string()));
        let set = next("\"set\"");
        assert!(set.contains(mac), "{set}");
        tell(&set.replacen("\"set\"", "\"applied\"", 1));
        eventually("the guest polls", || agent().poll_ns.is_some());
        assert_eq!(agent().state, AgentState::Connected);
        // The device model disconnects, and connects again.
        drop((stream, lines));
    }
}

#[test]
fn a_guest_sends_at_its_toolstacks_rate_and_one_whose_rate_is_nonsense_not_at_all() {
    let bench = Bench::new("rate = \"5Gbit\"\nweight = 3\n");
    let attach = |domain, rate| {
        let rate: &[_] = &[("rate", rate)];
        bench.host.attach_with(DomainId(domain), 0, "00:16:3e:00:00:01", "br0", rate);
    };
    attach(3, "unlimited");
    attach(4, "1,1000000");
    attach(5, "62500,50000");
    bench.attach(6, "br0");
    eventually("the last one is attached", || bench.port("vif6.0").is_some());
    let Response::Vifs { vifs, .. } = bench.switch.handle(Request::VifList(Part::default())) else {
        panic!("no list")
    };
    let rates: Vec<_> = vifs
        .iter()
        .filter(|vif| vif.xen)
        .map(|vif| {
            let sharing = &vif.config.sharing;
            let rate = sharing.rate.map(|rate| rate.to_string()).unwrap_or_default();
            (vif.config.name.as_str(), rate, sharing.weight.map(|weight| weight.to_string()))
        })
        .collect();
    let three = Some("3".to_owned());
    assert_eq!(
        rates,
        [("vif5.0", "10Mbit".into(), three.clone()), ("vif6.0", "5Gbit".into(), three)]
    );

    // Frames beyond a burst wait for credit.
    let mut front = Netfront::new(&bench.host, vif(5));
    connect(&mut front);
    let (_vif, mut pair) = bench.vhost();
    let start = Instant::now();
    for _ in 0..150 {
        eventually("room to send", || front.send(0, &frame(VHOST_MAC, XEN_MAC, &[7; 1400])));
        assert_eq!(vhost_receives(&mut pair).len(), 1414);
    }
    let (sent, burst) = (150.0 * 1414.0, f64::from(weir_limits::FRAME_LEN_MAX));
    let least = Duration::from_secs_f64((sent - burst - 65_536.0) * 8.0 / 10e6);
    assert!(start.elapsed() > least, "{:?} instead of {least:?}", start.elapsed());
}

#[test]
fn a_guest_has_its_toolstacks_mtu_and_is_told_and_one_whose_mtu_is_nonsense_is_not_served() {
    let bench = Bench::new("");
    for (domain, mtu) in [(3, "1000"), (4, "large"), (5, "67")] {
        let mtu: &[_] = &[("mtu", mtu)];
        bench.host.attach_with(DomainId(domain), 0, "00:16:3e:00:00:01", "br0", mtu);
    }
    bench.attach(6, "br0");
    eventually("the last one is attached", || bench.port("vif6.0").is_some());
    let Response::Vifs { vifs, .. } = bench.switch.handle(Request::VifList(Part::default())) else {
        panic!("no list")
    };
    let mtus: Vec<_> = vifs
        .iter()
        .filter(|vif| vif.xen)
        .map(|vif| (vif.config.name.as_str(), vif.config.mtu.map(|mtu| mtu.get())))
        .collect();
    assert_eq!(mtus, [("vif3.0", Some(1000)), ("vif6.0", None)]);
    let mut dom0 = bench.host.client();
    let mut told = |domain| dom0.read(&format!("/local/domain/{domain}/device/vif/0/mtu")).unwrap();
    assert_eq!(told(3).as_deref(), Some(&b"1000"[..]));
    assert_eq!(told(6), None);

    let mut front = Netfront::new(&bench.host, vif(3));
    connect(&mut front);
    let (_vif, mut pair) = bench.vhost();
    assert!(front.send(0, &frame(VHOST_MAC, XEN_MAC, &[7; 1001])));
    assert!(front.send(0, &frame(VHOST_MAC, XEN_MAC, &[8; 1000])));
    assert_eq!(vhost_receives(&mut pair)[14..], [8; 1000]);
    assert_eq!(bench.port("vif3.0").unwrap().dropped(), 1, "it was longer");
    let changes = VifChanges { mtu: Change::Set("9000".parse().unwrap()), ..VifChanges::default() };
    let name = "vif3.0".parse::<PortName>().unwrap();
    let set = bench.switch.handle(Request::VifSet { name, changes: changes.into() });
    assert!(matches!(set, Response::Error { .. }), "the guest's configuration decides: {set:?}");
}

#[test]
fn a_guest_has_the_settings_of_its_domains_name_and_one_without_a_name_is_not_served() {
    let bench = Bench::new("rate = \"5Gbit\"\n[xen-vif.\"web.0\"]\nrate = \"1Gbit\"\nqueues = 2\n");
    let mut dom0 = bench.host.client();
    let names = [(3, "web"), (4, "db"), (5, "web--incoming"), (7, "last")];
    for (domain, name) in names {
        dom0.write(&format!("/local/domain/{domain}/name"), name.as_bytes()).unwrap();
    }
    for domain in 3..=7 {
        bench.attach(domain, "br0");
    }
    eventually("the last one is attached", || bench.port("vif7.0").is_some());
    let Response::Vifs { vifs, .. } = bench.switch.handle(Request::VifList(Part::default())) else {
        panic!("no list")
    };
    let vifs = vifs.iter().filter(|vif| vif.xen).map(|vif| &vif.config);
    let rates: Vec<_> = vifs
        .map(|it| (it.name.as_str(), it.sharing.rate.unwrap().to_string(), it.queues.get()))
        .collect();
    let own = |name| (name, "1Gbit".to_owned(), 2);
    let all = |name| (name, "5Gbit".to_owned(), 1);
    assert_eq!(rates, [own("vif3.0"), all("vif4.0"), own("vif5.0"), all("vif7.0")]);
}

#[test]
fn a_guest_without_the_channel_has_no_agent() {
    let bench = Bench::new("agent_channel = \"weir.agent\"\n");
    let _front = bench.guest(3);
    assert_eq!(explain(&bench.switch, "vif3.0").agent, None);
}

#[test]
fn vifs_of_other_bridges_and_names_in_use_are_left_alone() {
    let bench = Bench::new("bridges = [\"br0\"]\n");
    bench.attach(4, "xenbr1");
    let _front = bench.guest(3);
    assert!(bench.port("vif4.0").is_none());
    let state = bench.host.client().read("/local/domain/0/backend/vif/4/0/state").unwrap();
    assert_eq!(state.as_deref(), Some(&b"1"[..]), "another back end may take it");
}

#[test]
fn interfaces_go_with_their_vifs() {
    let bench = Bench::new("");
    let mut front = Netfront::new(&bench.host, vif(3));
    for _ in 0..20 {
        bench.attach(3, "br0");
        connect(&mut front);
        assert!(bench.port("vif3.0").is_some());
        bench.host.ask_to_detach(DomainId(3), 0);
        front.state(XenbusState::Closed);
        eventually("closed", || front.back_state() == Some(XenbusState::Closed));
        bench.host.remove(DomainId(3), 0);
        eventually("gone", || bench.port("vif3.0").is_none());
        assert!(front.release());
        assert_eq!((bench.host.mapped(), bench.host.bound()), (0, 0));
    }
}

#[test]
fn a_lying_guest_loses_its_interface_and_others_go_on() {
    let bench = Bench::new("");
    let liar = bench.guest(3);
    let (_vif, mut pair) = bench.vhost();
    liar.guest.page(0).unwrap().store_release(0, 70_000);
    liar.queues[0].tx_events.notify().unwrap();
    eventually("stopped", || {
        bench.port("vif3.0").is_some_and(|port| port.state == PortState::Stopped)
    });
    let reason = bench.port("vif3.0").unwrap().stopped_reason.unwrap();
    assert!(reason.contains("transmit ring: request producer"), "{reason}");
    let mut front = bench.guest(4);
    exchange(&mut front, &mut pair, 3);
}

#[test]
fn a_switch_that_starts_again_serves_a_guest_that_noticed_nothing() {
    let bench = Bench::new("");
    let mut front = bench.guest(3);
    let Bench { host, switch, dir } = bench;
    drop(switch);
    assert_eq!((host.mapped(), host.bound()), (0, 0));
    let switch = start(dir.path(), &host, "");
    let bench = Bench { host, switch, dir };
    eventually("it runs again", || {
        bench.port("vif3.0").is_some_and(|port| port.state == PortState::Running)
    });
    let (_vif, mut pair) = bench.vhost();
    exchange(&mut front, &mut pair, 3);
}

/// No other guest has a vif of this name while the machine runs.
#[test]
fn what_was_set_of_a_vif_holds_under_the_next_switch() {
    let host = Host::new();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keeper.sock");
    let server = weir_keeper::Server::listen(&path).unwrap();
    std::thread::spawn(move || server.run());
    let keeper = Some(SocketPath::try_from(path.as_path()).unwrap());
    let switch = start_with(dir.path(), &host, "", keeper.clone());
    let bench = Bench { host, switch, dir };
    let _front = bench.guest(3);
    let rules = vec!["tx drop tcp dst port 25".parse().unwrap()];
    let set = Request::FilterSet { name: name("vif3.0"), rules };
    assert_eq!(bench.switch.handle(set), Response::Ok);
    let filter = |switch: &Switch| {
        let Response::Vifs { vifs, .. } = switch.handle(Request::VifList(Part::default())) else {
            panic!("no vifs")
        };
        let vif = vifs.into_iter().find(|vif| vif.config.name == name("vif3.0"))?;
        Some(vif.config.filter.len())
    };
    let Bench { host, switch, dir } = bench;
    drop(switch);
    let switch = start_with(dir.path(), &host, "", keeper);
    eventually("it is served again", || filter(&switch).is_some());
    assert_eq!(filter(&switch), Some(1));
}

#[test]
fn where_there_is_no_xen_the_switch_says_what_is_missing() {
    if Path::new("/dev/xen/xenbus").exists() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let control = SocketPath::try_from(dir.path().join("control.sock").as_path()).unwrap();
    let defaults = Defaults { control, control_named: true, keeper: None };
    let config = Config::from_toml("weir.toml", "[xen]\n", &defaults).unwrap();
    let Err(error) = Switch::start(&config) else { panic!("there is no Xen") };
    let shown = format!("{:?}", miette::Report::new(error));
    for says in ["/dev/xen/xenbus cannot be used", "load xen-gntdev"] {
        assert!(shown.contains(says), "{shown}");
    }
}
