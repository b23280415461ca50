//! The manager of a switch, with agents that connect, lie, die and come back.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use weir_agent::napi::Napi;
use weir_agent::{
    Applied, GuestMessage, Hello, HostMessage, Interface, Report, Text, VERSION, Wish,
};
use weir_config::{LatencyBudget, Setting, SocketPath, UplinkKind, VifChanges, VifConfig};
use weir_engine::Options;
use weir_policy::budget::{Layer, shares};
use weir_policy::moderation::hold_ns_max;
use weir_testing::slow::{lingering, send_with};
use weir_vif::{QueuePair, WaitFor};
use weir_wire::Offload;

use super::*;
use crate::control::{ControlHandler, Request, Response};
use crate::explain::{
    AgentState, CostSource, Gatherer, UplinkLayer, VifExplanation, WishExplanation,
};
use crate::switch::{Meeting, Switch};

/// The time limit of any step before a test gives up.
const PATIENCE: Duration = Duration::from_secs(60);

fn path(dir: &TempDir, name: &str) -> SocketPath {
    dir.path().join(name).to_str().unwrap().parse().unwrap()
}

/// A switch with interfaces of one virtual machine, which share the socket `agent`.
fn switch(vifs: &[&str]) -> (Arc<Switch>, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let budget = LatencyBudget::DEFAULT;
    let switch = Switch::empty(
        Options { workers: 1, ..Options::default() },
        budget,
        path(&dir, "control.sock"),
    )
    .unwrap();
    for name in vifs {
        add(&switch, &dir, name);
    }
    (switch, dir)
}

fn add(switch: &Switch, dir: &TempDir, name: &str) {
    let mut vif = VifConfig::new(name.parse().unwrap(), path(dir, &format!("{name}.sock")));
    vif.agent = Some(path(dir, "agent"));
    vif.moderation = "frontend".parse().unwrap();
    switch.add_vif(vif, Meeting::Configured).unwrap();
    // The answer comes after the manager has added the interface. An agent that connects earlier is disconnected.
    assert_eq!(agent_state(&explain(switch, name)), AgentState::Waiting);
}

fn mac(name: &str) -> Mac {
    weir_config::MacAddress::derived_from(&name.parse().unwrap()).into()
}

fn set(switch: &Switch, name: &str, setting: &str) {
    let name: PortName = name.parse().unwrap();
    let setting: Setting = setting.parse().unwrap();
    let changes = VifChanges::from_settings(&name, &[setting]).unwrap();
    assert_eq!(switch.handle(Request::VifSet { name, changes: changes.into() }), Response::Ok);
}

fn explain(switch: &Switch, name: &str) -> VifExplanation {
    match switch.handle(Request::VifExplain { name: name.parse().unwrap() }) {
        Response::Explained { explanation } => *explanation,
        other => panic!("{other:?}"),
    }
}

fn wait_for(switch: &Switch, name: &str, is: impl Fn(&VifExplanation) -> bool) -> VifExplanation {
    let start = Instant::now();
    loop {
        let explanation = explain(switch, name);
        if is(&explanation) {
            return explanation;
        }
        assert!(start.elapsed() < PATIENCE, "{explanation:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The guest's end of the connection.
struct Guest {
    lines: BufReader<UnixStream>,
}

impl Guest {
    fn connect(dir: &TempDir) -> Self {
        let stream = UnixStream::connect(dir.path().join("agent")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { lines: BufReader::new(stream) }
    }

    /// A guest that has sent a hello for the interfaces `names` and was welcomed.
    fn greeting(dir: &TempDir, names: &[&str]) -> Self {
        let mut guest = Self::connect(dir);
        guest.greet(names, Wish::default());
        guest
    }

    /// Sends a hello, and hears that it is welcome.
    fn greet(&mut self, names: &[&str], wish: Wish) {
        let interface =
            |name: &&str| Interface { mac: mac(name), name: Text::new("eth0"), can_defer: true };
        self.tell(&GuestMessage::Hello(Hello {
            version: VERSION,
            session: 9,
            agent: Text::new("0.1.0"),
            kernel: Text::new("6.12.0"),
            wish,
            interfaces: names.iter().map(interface).collect(),
        }));
        assert_eq!(self.hear(), Some(HostMessage::Welcome { version: VERSION, session: 9 }));
    }

    fn tell(&mut self, message: &GuestMessage) {
        let line = serde_json::to_string(message).unwrap() + "\n";
        self.lines.get_mut().write_all(line.as_bytes()).unwrap();
    }

    /// The next message other than pings; `None` at the end.
    fn hear(&mut self) -> Option<HostMessage> {
        loop {
            let mut line = String::new();
            match self.lines.read_line(&mut line) {
                // The other end closed the socket with unread data.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return None,
                read => read.unwrap(),
            };
            if line.is_empty() {
                return None;
            }
            match serde_json::from_str(&line).unwrap() {
                HostMessage::Ping => {}
                message => return Some(message),
            }
        }
    }

    /// Receives the next setting, and confirms it.
    fn obey(&mut self) -> (Mac, Option<u64>) {
        match self.hear() {
            Some(HostMessage::Set { mac, poll_ns }) => {
                self.tell(&GuestMessage::Applied(Applied { mac, poll_ns, error: None }));
                (mac, poll_ns)
            }
            other => panic!("{other:?}"),
        }
    }
}

fn agent_state(explanation: &VifExplanation) -> AgentState {
    explanation.agent.as_ref().unwrap().state
}

#[test]
fn an_agent_polls_for_what_the_budget_leaves_and_restores_when_the_policy_changes() {
    let (switch, dir) = switch(&["web0"]);
    assert_eq!(agent_state(&explain(&switch, "web0")), AgentState::Waiting);
    let mut guest = Guest::greeting(&dir, &["web0"]);
    let (_, poll_ns) = guest.obey();
    let explained = wait_for(&switch, "web0", |now| now.agent.as_ref().unwrap().poll_ns == poll_ns);
    assert_eq!(poll_ns, Some(explained.split.unwrap().vif_ns));
    assert!(poll_ns.unwrap() < LatencyBudget::DEFAULT.ns());

    guest.tell(&GuestMessage::Report(Report {
        mac: mac("web0"),
        interval_ns: 500_000_000,
        interrupts: Some(50),
        rx_packets: 1_000,
        cpu_ns: 1_000_000,
        cost_ns_per_interrupt: Some(7_000),
    }));
    let reported = |now: &VifExplanation| now.agent.as_ref().unwrap().interrupts_per_s == Some(100);
    wait_for(&switch, "web0", reported);
    // The manager reads the report no later than at the next change.
    set(&switch, "web0", "latency_budget=1ms");
    let (_, longer_ns) = guest.obey();
    assert!(longer_ns > poll_ns);
    let cost = explain(&switch, "web0").split.unwrap().call_cost;
    assert_eq!((cost.ns, cost.source), (7_000, CostSource::Agent));

    set(&switch, "web0", "moderation=immediate");
    assert_eq!(guest.obey(), (mac("web0"), None));
    let explained = wait_for(&switch, "web0", |now| now.agent.as_ref().unwrap().poll_ns.is_none());
    assert_eq!((explained.split, explained.agent.unwrap().asked_poll_ns), (None, None));
}

#[test]
fn a_guest_gets_a_smaller_budget_and_weight_for_the_asking_and_no_larger_ones() {
    let (switch, dir) = switch(&["web0"]);
    set(&switch, "web0", "moderation=backend");
    set(&switch, "web0", "weight=4");
    let has = |now: &VifExplanation| (now.queues[0].hold_ns_max, now.sharing.own.weight);
    let host = has(&explain(&switch, "web0"));
    let host_ns = LatencyBudget::DEFAULT.ns();
    assert_eq!(host, (hold_ns_max(host_ns), 4));
    let mut guest = Guest::connect(&dir);
    guest.greet(&["web0"], Wish { budget_ns: Some(host_ns / 2), weight: Some(2) });
    let granted = (hold_ns_max(host_ns / 2), 2);
    let explained = wait_for(&switch, "web0", |now| has(now) == granted);
    let wishes = WishExplanation {
        budget_ns: Some(host_ns / 2),
        weight: Some(2),
        has_budget_ns: host_ns / 2,
        has_weight: 2,
    };
    assert_eq!(explained.agent.unwrap().wishes, Some(wishes));
    assert_eq!(explained.latency_budget_ns, host_ns, "the host's stays what lateness is told by");

    // The host's own settings may fall below the wish, and come back.
    set(&switch, "web0", "weight=1");
    wait_for(&switch, "web0", |now| has(now) == (granted.0, 1));
    set(&switch, "web0", "weight=3");
    wait_for(&switch, "web0", |now| has(now) == granted);
    set(&switch, "web0", "moderation=aggregate");
    wait_for(&switch, "web0", |now| has(now) == granted);

    guest.greet(&["web0"], Wish { budget_ns: Some(2 * host_ns), weight: Some(100) });
    let explained = wait_for(&switch, "web0", |now| has(now) == (host.0, 3));
    let wishes = explained.agent.unwrap().wishes.unwrap();
    assert_eq!((wishes.has_budget_ns, wishes.has_weight), (host_ns, 3));
    guest.greet(&["web0"], Wish { budget_ns: Some(0), weight: Some(0) });
    wait_for(&switch, "web0", |now| has(now) == (0, 1));
    drop(guest);
    wait_for(&switch, "web0", |now| has(now) == (host.0, 3));
}

#[test]
fn an_agent_that_dies_and_comes_back_is_asked_again() {
    let (switch, dir) = switch(&["web0"]);
    let mut guest = Guest::greeting(&dir, &["web0"]);
    let asked = guest.obey();
    // The agent is restarted on the same port: it sends its hello again, with the interface at its original setting.
    guest.tell(&GuestMessage::Bye);
    wait_for(&switch, "web0", |now| agent_state(now) == AgentState::Silent);
    drop(guest);
    wait_for(&switch, "web0", |now| agent_state(now) == AgentState::Waiting);
    assert_eq!(Guest::greeting(&dir, &["web0"]).obey(), asked);
}

/// Sends frames from one guest to the other, one by one. Each must arrive.
fn all_arrive(from: &mut QueuePair, to: &mut QueuePair) {
    for number in 0..10 {
        let frame = [&to.mac().0[..], &from.mac().0, &[0x88, 0xb5, number], &[0; 45]].concat();
        from.send(&frame, &Offload::NONE).unwrap();
        from.flush();
        assert!(to.wait(WaitFor::Receive, PATIENCE).unwrap(), "frame {number} was not told of");
        assert_eq!(to.recv(|frame| frame.len), Some(60), "frame {number}");
        while from.recv(|_| ()).is_some() {}
    }
}

#[test]
fn an_agent_that_lies_and_dies_loses_no_frame_and_moves_nobody_else() {
    let (switch, dir) = switch(&["web0"]);
    let mut other = VifConfig::new("db0".parse().unwrap(), path(&dir, "db0.sock"));
    other.moderation = "two-layer".parse().unwrap();
    switch.add_vif(other, Meeting::Configured).unwrap();
    let mut vifs = ["db0", "web0"].map(|name| {
        let options = weir_vif::Options::new(mac(name));
        weir_vif::Vif::connect(dir.path().join(format!("{name}.sock")), &options).unwrap()
    });
    let [mut db0, mut web0] = vifs.each_mut().map(|vif| vif.queue_pairs().remove(0));
    let limit = |name| explain(&switch, name).queues[0].hold_ns_max;
    wait_for(&switch, "db0", |now| now.split.is_some());
    let (others_ns, whole_ns) = (limit("db0"), limit("web0"));
    all_arrive(&mut db0, &mut web0);

    let mut agent = Guest::greeting(&dir, &["web0"]);
    let (_, poll_ns) = agent.obey();
    web0.set_poll_interval(poll_ns.map(Duration::from_nanos));
    for (cost_ns, interval_ns) in [(0, 1), (1, 1_000_000_000), (u64::MAX, 60_000_000_000)] {
        agent.tell(&GuestMessage::Report(Report {
            mac: mac("web0"),
            // The values of a guest's clock that stands still or runs ahead.
            interval_ns,
            interrupts: Some(u64::MAX),
            rx_packets: u64::MAX,
            cpu_ns: u64::MAX,
            cost_ns_per_interrupt: Some(cost_ns),
        }));
        let applied = Applied { mac: mac("web0"), poll_ns: Some(u64::MAX), error: None };
        agent.tell(&GuestMessage::Applied(applied));
        wait_for(&switch, "web0", |now| {
            now.split.as_ref().is_some_and(|split| split.call_cost.source == CostSource::Agent)
        });
        all_arrive(&mut db0, &mut web0);
        assert!(limit("web0") <= whole_ns, "within its own budget");
        assert_eq!(limit("db0"), others_ns);
    }
    // The guest continues to poll, because no agent is left to restore its timer.
    drop(agent);
    wait_for(&switch, "web0", |now| agent_state(now) == AgentState::Waiting);
    all_arrive(&mut db0, &mut web0);
    web0.set_poll_interval(None);
    all_arrive(&mut db0, &mut web0);
    assert_eq!((limit("db0"), limit("web0")), (others_ns, whole_ns));
}

#[test]
fn nonsense_ends_a_connection_and_the_next_agent_is_heard() {
    let (switch, dir) = switch(&["web0"]);
    let mut hostile = Guest::connect(&dir);
    hostile.lines.get_mut().write_all(b"{\"message\":\"root\"}\n").unwrap();
    assert_eq!(hostile.hear(), None);
    let explained = wait_for(&switch, "web0", |now| now.agent.as_ref().unwrap().error.is_some());
    assert_eq!(agent_state(&explained), AgentState::Waiting);
    Guest::greeting(&dir, &["web0"]).obey();
}

#[test]
fn one_agent_serves_all_interfaces_of_its_guest_and_of_no_other() {
    let (switch, dir) = switch(&["web0", "web1"]);
    let mut guest = Guest::greeting(&dir, &["web1", "web0", "db0"]);
    let mut macs = [guest.obey().0, guest.obey().0];
    macs.sort();
    let mut ours = [mac("web0"), mac("web1")];
    ours.sort();
    assert_eq!(macs, ours);
    // An agent that names one interface does not affect the other.
    drop(guest);
    let mut guest = Guest::greeting(&dir, &["web1"]);
    assert_eq!(guest.obey().0, mac("web1"));
    wait_for(&switch, "web0", |now| agent_state(now) == AgentState::Elsewhere);
    let agent = explain(&switch, "web1").agent.unwrap();
    assert_eq!((agent.state, agent.version.as_deref()), (AgentState::Connected, Some("0.1.0")));
}

#[test]
fn an_interface_that_goes_says_bye_and_the_socket_goes_with_the_last() {
    let (switch, dir) = switch(&["web0", "web1"]);
    let del = |name: &str| Request::VifDel { name: name.parse().unwrap() };
    let mut guest = Guest::greeting(&dir, &["web0"]);
    guest.obey();
    assert_eq!(switch.handle(del("web0")), Response::Ok);
    assert_eq!((guest.hear(), guest.hear()), (Some(HostMessage::Bye), None));
    assert!(dir.path().join("agent").exists());
    assert_eq!(switch.handle(del("web1")), Response::Ok);
    assert!(!dir.path().join("agent").exists());
    add(&switch, &dir, "web0");
    Guest::greeting(&dir, &["web0"]).obey();
}

#[test]
fn a_switch_that_ends_says_bye() {
    let (switch, dir) = switch(&["web0"]);
    let mut guest = Guest::greeting(&dir, &["web0"]);
    guest.obey();
    drop(switch);
    assert_eq!((guest.hear(), guest.hear()), (Some(HostMessage::Bye), None));
    assert!(!dir.path().join("agent").exists());
}

#[test]
fn an_agent_that_cannot_do_it_is_told_of() {
    let (switch, dir) = switch(&["web0"]);
    let mut guest = Guest::greeting(&dir, &["web0"]);
    let Some(HostMessage::Set { mac, poll_ns }) = guest.hear() else { panic!() };
    let error = Some(Text::new("read-only"));
    guest.tell(&GuestMessage::Applied(Applied { mac, poll_ns, error }));
    let explained = wait_for(&switch, "web0", |now| now.agent.as_ref().unwrap().error.is_some());
    let agent = explained.agent.unwrap();
    assert_eq!((agent.poll_ns, agent.asked_poll_ns), (None, poll_ns));
    assert_eq!(agent.error.as_deref(), Some("read-only"));
}

#[test]
fn a_name_that_no_port_has_is_an_error() {
    let (switch, _dir) = switch(&["web0"]);
    let answer = switch.handle(Request::VifExplain { name: "db9".parse().unwrap() });
    assert!(matches!(answer, Response::Error { .. }), "{answer:?}");
}

/// A pair of connected interfaces of the host, which is removed when the value is dropped.
struct VethPair {
    name: String,
}

impl VethPair {
    /// `None` without root.
    fn new(what: &str) -> Option<Self> {
        if !weir_testing::is_root("a veth pair") {
            return None;
        }
        let name = format!("wmg{what}{}", std::process::id());
        let peer = format!("{name}p");
        ip(&["link", "add", &name, "type", "veth", "peer", "name", &peer]);
        Some(Self { name })
    }

    fn setting(&self, name: &str) -> u64 {
        self.text(name).parse().unwrap()
    }

    fn text(&self, name: &str) -> String {
        let path = format!("/sys/class/net/{}/{name}", self.name);
        std::fs::read_to_string(path).unwrap().trim().to_owned()
    }
}

impl Drop for VethPair {
    fn drop(&mut self) {
        ip(&["link", "del", &self.name]);
    }
}

fn ip(args: &[&str]) {
    assert!(std::process::Command::new("ip").args(args).status().unwrap().success(), "{args:?}");
}

#[test]
fn root_an_uplink_gathers_while_every_guest_takes_part_and_is_left_as_it_was() {
    let Some(veth) = VethPair::new("") else { return };
    if !weir_testing::has("ethtool", "ethtool") {
        return;
    }
    // From Linux 6.13 on one NAPI instance can be set by itself.
    ip(&["link", "set", &veth.name, "up"]);
    let on = ["-K", &veth.name, "gro", "on"];
    assert!(std::process::Command::new("ethtool").args(on).status().unwrap().success());
    let ifindex = u32::try_from(veth.setting("ifindex")).unwrap();
    let napis = || Napi::set_alone(ifindex, u64::MAX, u64::MAX);
    let alone = napis().first().map(|it| Napi { gro_flush_timeout: 77_000, ..*it });
    let alone: Vec<_> = alone.into_iter().collect();
    Napi::restore(&alone).unwrap();
    let is_alone = || alone.iter().all(|it| napis().contains(it));
    assert!(is_alone());
    let (switch, dir) = switch(&["web0"]);
    set(&switch, "web0", "moderation=two-layer");
    let lan: PortName = "lan".parse().unwrap();
    let interface = veth.name.parse().unwrap();
    let uplink = UplinkConfig::new(lan.clone(), UplinkKind::AfPacket, interface);
    switch.add_uplink(&uplink).unwrap();
    let layer = || match switch.handle(Request::VifExplain { name: lan.clone() }) {
        Response::UplinkExplained { explanation } => explanation.layer,
        other => panic!("{other:?}"),
    };
    let found = veth.setting("gro_flush_timeout");
    let options = weir_vif::Options::new(mac("web0"));
    let guest = weir_vif::Vif::connect(dir.path().join("web0.sock"), &options).unwrap();
    let shares = |now: &VifExplanation| now.split.as_ref().unwrap().uplink_ns;
    let explained = wait_for(&switch, "web0", |now| shares(now) > 0);
    let split = explained.split.clone().unwrap();
    assert_eq!(split.uplink_ns + split.vif_ns, 230_000, "what 250 us leave for holding");
    assert_eq!(explained.queues[0].hold_ns_max, split.vif_ns);
    assert_eq!(veth.setting("gro_flush_timeout"), split.uplink_ns);
    assert!(napis().iter().all(|it| it.gro_flush_timeout == split.uplink_ns));
    match layer() {
        UplinkLayer::Gathers { uplink_ns, by: Gatherer::NapiTimer { why } } => {
            assert_eq!(uplink_ns, split.uplink_ns);
            assert!(why.contains("Operation not supported"), "a veth has no rx-usecs: {why}");
        }
        other => panic!("{other:?}"),
    }

    // The interface's frames must not wait.
    set(&switch, "web0", "moderation=immediate");
    wait_for(&switch, "web0", |now| now.split.is_none());
    assert_eq!((veth.setting("gro_flush_timeout"), layer()), (found, UplinkLayer::AsFound));
    assert!(is_alone(), "{:?}", napis());

    set(&switch, "web0", "moderation=two-layer");
    wait_for(&switch, "web0", |now| now.split.as_ref().is_some_and(|split| split.uplink_ns > 0));
    drop(guest);
    drop(switch);
    assert_eq!(veth.setting("gro_flush_timeout"), found);
    assert_eq!(veth.setting("napi_defer_hard_irqs"), 0);
    assert!(is_alone(), "{:?}", napis());
}

/// The socket of the outer switch's agent stands for the virtio-serial port, and a veth for the guest's card.
#[test]
fn root_a_weir_in_a_guest_and_the_weir_below_split_one_budget_over_three_layers() {
    let Some(card) = VethPair::new("o") else { return };
    let nic = VethPair::new("i").unwrap();
    for veth in [&card, &nic] {
        ip(&["link", "set", &veth.name, "up"]);
    }
    let lan = |veth: &VethPair| {
        let name = "lan".parse().unwrap();
        UplinkConfig::new(name, UplinkKind::AfPacket, veth.name.parse().unwrap())
    };
    let (outer, dir) = switch(&["web0"]);
    set(&outer, "web0", &format!("mac={}", nic.text("address")));
    set(&outer, "web0", "latency_budget=1ms");
    outer.add_uplink(&lan(&card)).unwrap();
    let (inner, inner_dir) = switch(&["db0"]);
    set(&inner, "db0", "moderation=two-layer");
    set(&inner, "db0", "latency_budget=9ms");
    let agent_port = Some(path(&dir, "agent"));
    inner.add_uplink(&UplinkConfig { agent_port, ..lan(&nic) }).unwrap();

    let macs = [nic.text("address").parse().unwrap(), mac("db0")];
    let mut vifs =
        [(&dir, "web0", macs[0]), (&inner_dir, "db0", macs[1])].map(|(dir, name, mac)| {
            let path = dir.path().join(format!("{name}.sock"));
            weir_vif::Vif::connect(path, &weir_vif::Options::new(mac)).unwrap()
        });
    let mut pairs = vifs.each_mut().map(|vif| vif.queue_pairs().remove(0));
    let mut talk = || {
        for (pair, mac) in pairs.iter_mut().zip(macs) {
            let frame = [&[0xff; 6][..], &mac.0, &[0x88, 0xb5], &[0; 46]].concat();
            let _ = pair.send(&frame, &Offload::NONE);
            pair.flush();
            while pair.recv(|_| ()).is_some() {}
        }
    };
    let split = |switch: &Switch, name| explain(switch, name).split.unwrap();
    // The workers of each weir have a margin.
    let all_ns = hold_ns_max(hold_ns_max(1_000_000));
    let three = || {
        let (below, here) = (split(&outer, "web0"), split(&inner, "db0"));
        let layer =
            |cost: crate::explain::CostExplanation| Layer { cost_ns: cost.ns as f64, places: 1 };
        let layers = [below.uplink_cost, here.uplink_cost, here.call_cost].map(layer);
        ([below.uplink_ns, here.uplink_ns, here.vif_ns], shares(all_ns, layers))
    };
    // A share stands while Eq. 4 wants nearly the same.
    let near = |(are, want): &([u64; 3], [u64; 3])| {
        are.iter().sum::<u64>() <= all_ns
            && are.iter().zip(want).all(|(is, want)| is.abs_diff(*want) <= all_ns / 16)
    };
    let mut wait_until = |is: &mut dyn FnMut() -> bool| {
        let start = Instant::now();
        while !is() {
            talk();
            assert!(start.elapsed() < PATIENCE, "{:?}", three());
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    wait_until(&mut || near(&three()));
    let (equal, _) = three();

    // Calls to the inner weir's guest become nine times as expensive as is assumed.
    let mut agent = Guest::greeting(&inner_dir, &["db0"]);
    let cost_ns = 9 * split(&inner, "db0").call_cost.ns;
    let mut told: Option<Instant> = None;
    wait_until(&mut || {
        if told.is_none_or(|at| at.elapsed() > Duration::from_millis(500)) {
            told = Some(Instant::now());
            agent.tell(&GuestMessage::Report(Report {
                mac: mac("db0"),
                interval_ns: 500_000_000,
                interrupts: Some(50),
                rx_packets: 1_000,
                cpu_ns: 1_000_000,
                cost_ns_per_interrupt: Some(cost_ns),
            }));
        }
        let three = three();
        three.1[2] > equal[2] + all_ns / 8 && near(&three)
    });
    let explained = match inner.handle(Request::VifExplain { name: "lan".parse().unwrap() }) {
        Response::UplinkExplained { explanation } => explanation.below.unwrap(),
        other => panic!("{other:?}"),
    };
    assert_eq!(explained.given_ns, Some(split(&outer, "web0").vif_ns));
    assert_eq!(split(&outer, "web0").call_cost.ns, explained.cost_ns);

    // The inner weir has its own budget back when the weir below asks for nothing, and when it ends.
    let own = |now: &SplitExplanation| now.uplink_ns + now.vif_ns > 5_000_000;
    set(&outer, "web0", "moderation=backend");
    wait_until(&mut || own(&split(&inner, "db0")));
    set(&outer, "web0", "moderation=frontend");
    wait_until(&mut || !own(&split(&inner, "db0")));
    drop(outer);
    wait_for(&inner, "db0", |now| now.split.as_ref().is_some_and(own));
}

#[test]
fn a_manager_that_panics_begins_anew_and_one_that_does_so_again_and_again_ends_alone() {
    let engine = Engine::start(1).unwrap();
    let manager = Manager::start(Arc::clone(&engine), Loops::new(&engine)).unwrap();
    manager.send(Command::Panic);
    assert!(manager.explain_placement().is_some(), "it answers");
    assert_eq!(weir_engine::panicked()["weir-manager"].panics, 1);
    for _ in 1..weir_limits::THREAD_PANICS_MAX {
        manager.send(Command::Panic);
    }
    // Callers do not block either.
    let end = Instant::now() + PATIENCE;
    while manager.explain_placement().is_some() {
        assert!(Instant::now() < end, "it never ends");
    }
    manager.remove_vif(PortId::new(0).unwrap());
    let panics = weir_engine::panicked()["weir-manager"];
    assert_eq!((panics.panics, panics.ended), (weir_limits::THREAD_PANICS_MAX, true));
}

#[test]
fn slow_descriptors_on_an_agents_socket_keep_no_other_agent_waiting_nor_the_end() {
    let (switch, dir) = switch(&["web0"]);
    let mut readers = Vec::new();
    let mut slow_agent = || {
        let (slow, reader) = lingering();
        readers.push(reader);
        let guest = Guest::connect(&dir);
        send_with(guest.lines.get_ref(), b"{", slow).unwrap();
        guest
    };
    // The first agent is read, the second waits behind it and is read, and the third is never read.
    let first = slow_agent();
    let second = slow_agent();
    let began = Instant::now();
    drop(first);
    drop(second);
    let mut guest = Guest::greeting(&dir, &["web0"]);
    guest.obey();
    let _third = slow_agent();
    set(&switch, "web0", "latency_budget=1ms");
    let name = "web0".parse().unwrap();
    assert_eq!(switch.handle(Request::VifDel { name }), Response::Ok);
    drop(switch);
    assert!(began.elapsed() < PATIENCE, "a close takes ten minutes");
    drop(readers);
}
