//! Scripts of toolstack and front end, run against the simulated Xen: Linux's netfront, and guests
//! that lie.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::hypervisor::{DomainId, EventChannel, EventPort, GrantMap, GrantRef, Hypervisor};
use crate::store::{Client, StoreError};
use crate::testing::{Connection, Guest, Host};

mod hostile;

const GUEST: DomainId = DomainId(7);
const MAC: &str = "00:16:3e:00:00:01";
const BACK: &str = "/local/domain/0/backend/vif/7/0";
const VIF: VifId = VifId { domain: GUEST, handle: 0 };

const OFFER: Offer = Offer {
    queues_max: 4,
    sg: true,
    gso_tcpv4: true,
    gso_tcpv6: true,
    ipv6_csum_offload: true,
    split_event_channels: true,
    multicast_control: true,
    ctrl_ring: true,
};

/// Resources of a connected vif.
type Held = (Vec<GrantMap>, Vec<Box<dyn EventChannel>>);

/// A switch that only maps and binds on request.
struct Switch {
    host: Host,
    bridge: &'static str,
    served: BTreeMap<VifId, Held>,
    fronts: Vec<FrontKeys>,
    connects: usize,
    closed: Vec<String>,
}

impl Serve for Switch {
    fn offer(&mut self, _: VifId, keys: &VifKeys) -> Option<Offer> {
        (keys.bridge.as_deref() == Some(self.bridge)).then_some(OFFER)
    }

    fn connect(&mut self, vif: VifId, keys: &VifKeys, front: &FrontKeys) -> Result<(), String> {
        let rings = front.queues.iter().flat_map(|queue| [queue.tx, queue.rx]).chain(front.ctrl);
        let mut maps = Vec::new();
        let mut channels = Vec::new();
        let mut ports: Vec<EventPort> = Vec::new();
        for ring in rings {
            let text = |error: std::io::Error| error.to_string();
            maps.push(self.host.map(keys.domain, ring.reference).map_err(text)?);
            if !ports.contains(&ring.port) {
                ports.push(ring.port);
                channels.push(self.host.bind(keys.domain, ring.port).map_err(text)?);
            }
        }
        assert!(self.served.insert(vif, (maps, channels)).is_none(), "connected twice");
        self.fronts.push(front.clone());
        self.connects += 1;
        Ok(())
    }

    fn disconnect(&mut self, vif: VifId) {
        assert!(self.served.remove(&vif).is_some(), "disconnected twice");
    }

    fn forget(&mut self, vif: VifId) {
        assert!(!self.served.contains_key(&vif), "forgotten while it is in use");
    }

    fn closed(&mut self, _: VifId, reason: &str) {
        self.closed.push(reason.to_owned());
    }

    fn refused(&mut self, _: &StoreError) {}
}

struct Bench {
    host: Host,
    switch: Switch,
    vifs: Vifs<Connection>,
}

impl Bench {
    fn new() -> Self {
        Self::on(Host::new())
    }

    /// Starts weir on a host.
    fn on(host: Host) -> Self {
        let switch = Switch {
            host: host.clone(),
            bridge: "br0",
            served: BTreeMap::new(),
            fronts: Vec::new(),
            connects: 0,
            closed: Vec::new(),
        };
        Self { vifs: Vifs::new(host.client()).unwrap(), switch, host }
    }

    fn with_guest() -> (Self, Front) {
        let bench = Self::new();
        bench.host.attach(GUEST, 0, MAC, "br0");
        let front = Front::new(bench.host.guest(GUEST, 20).unwrap());
        (bench, front)
    }

    /// Polls until nothing is left to do.
    fn settle(&mut self) {
        for _ in 0..100 {
            // A request delivers pending events.
            self.vifs
                .fail(VifId { domain: DomainId(999), handle: 0 }, "", &mut self.switch)
                .unwrap();
            while self.host_has_events() {
                self.vifs.receive().unwrap();
            }
            if !self.vifs.poll(&mut self.switch).unwrap() && !self.host_has_events() {
                return;
            }
        }
        panic!("the back end never comes to rest");
    }

    fn host_has_events(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        use std::os::fd::AsFd;
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let fd = self.vifs.client().as_fd();
        poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&now)).unwrap() > 0
    }

    fn back(&self, key: &str) -> Option<String> {
        let value = self.host.client().read(&format!("{BACK}/{key}")).unwrap();
        value.map(|value| String::from_utf8(value).unwrap())
    }

    fn state(&self) -> String {
        self.back("state").unwrap_or_else(|| "none".into())
    }

    fn error(&self) -> String {
        let value = self.host.client().read("/local/domain/0/error/backend/vif/7/0/error").unwrap();
        String::from_utf8(value.expect("an error node")).unwrap()
    }

    /// Asserts that the guest has lost its vif, and that nothing of it is kept.
    fn assert_lost(&self, reason: &str) {
        assert!(self.error().contains(reason), "{:?} says nothing of {reason:?}", self.error());
        assert_eq!((self.state().as_str(), self.host.mapped(), self.host.bound()), ("5", 0, 0));
        assert!(self.switch.closed.last().is_some_and(|said| said.contains(reason)));
    }
}

/// Linux's netfront, as far as xenstore sees it (`talk_to_netback`).
struct Front {
    guest: Guest,
    client: Client<Connection>,
    refs: Vec<GrantRef>,
    ends: Vec<Box<dyn EventChannel>>,
}

impl Front {
    fn new(guest: Guest) -> Self {
        let client = guest.client();
        Self { guest, client, refs: Vec::new(), ends: Vec::new() }
    }

    fn set(&mut self, key: &str, value: &str) {
        self.client.write(&format!("device/vif/0/{key}"), value.as_bytes()).unwrap();
    }

    fn state(&mut self, state: XenbusState) {
        self.set("state", std::str::from_utf8(&state.to_value()).unwrap());
    }

    fn ring(&mut self, page: u64) -> (String, String) {
        let reference = self.guest.grant(page, DomainId(0), false);
        let (port, end) = self.guest.allocate(DomainId(0)).unwrap();
        self.refs.push(reference);
        self.ends.push(end);
        (reference.0.to_string(), port.0.to_string())
    }

    fn queue(&mut self, prefix: &str, page: u64, split: bool) {
        let (tx, tx_port) = self.ring(page);
        let (rx, rx_port) = self.ring(page + 1);
        self.set(&format!("{prefix}tx-ring-ref"), &tx);
        self.set(&format!("{prefix}rx-ring-ref"), &rx);
        if split {
            self.set(&format!("{prefix}event-channel-tx"), &tx_port);
            self.set(&format!("{prefix}event-channel-rx"), &rx_port);
        } else {
            self.set(&format!("{prefix}event-channel"), &tx_port);
        }
    }

    fn keys(&mut self, queues: u64) {
        self.set("multi-queue-num-queues", &queues.to_string());
        if queues == 1 {
            self.queue("", 0, true);
        }
        for n in (0..queues).filter(|_| queues > 1) {
            self.queue(&format!("queue-{n}/"), 2 * n, true);
        }
        for (key, value) in [
            ("request-rx-copy", "1"),
            ("feature-rx-notify", "1"),
            ("feature-sg", "1"),
            ("feature-gso-tcpv4", "1"),
            ("feature-gso-tcpv6", "1"),
            ("feature-ipv6-csum-offload", "1"),
        ] {
            self.set(key, value);
        }
    }

    fn connect(&mut self, queues: u64) {
        self.keys(queues);
        self.state(XenbusState::Connected);
    }

    /// The guest's rings are no longer shared.
    fn release(&mut self) {
        let guest = &self.guest;
        assert!(self.refs.drain(..).all(|reference| guest.revoke(reference)), "still mapped");
        self.ends.clear();
    }
}

fn connected(queues: u64) -> (Bench, Front) {
    let (mut bench, mut front) = Bench::with_guest();
    bench.settle();
    front.connect(queues);
    bench.settle();
    assert_eq!(bench.state(), "4");
    (bench, front)
}

#[test]
fn a_new_vif_is_told_what_weir_can_do_before_it_may_write_its_keys() {
    let (mut bench, mut front) = Bench::with_guest();
    bench.settle();
    assert_eq!(bench.state(), "2");
    for (key, value) in [
        ("feature-rx-copy", "1"),
        ("feature-rx-flip", "0"),
        ("feature-sg", "1"),
        ("feature-split-event-channels", "1"),
        ("feature-ctrl-ring", "1"),
        ("multi-queue-max-queues", "4"),
    ] {
        assert_eq!(bench.back(key).as_deref(), Some(value), "{key}");
        let seen = front.client.read(&format!("{BACK}/{key}")).unwrap();
        assert!(seen.is_some(), "the guest may read {key}");
    }
    assert_eq!((bench.host.mapped(), bench.switch.connects), (0, 0));
}

#[test]
fn netfront_with_split_channels_is_connected_and_detached() {
    let (mut bench, mut front) = connected(1);
    assert_eq!((bench.host.mapped(), bench.host.bound()), (2, 2));
    let keys = &bench.switch.fronts[0];
    assert!(keys.sg && keys.gso_tcpv4 && keys.gso_tcpv6 && keys.rx_notify);
    assert!(keys.ip_csum_offload && keys.ipv6_csum_offload && !keys.multicast_control);
    assert!(keys.ctrl.is_none() && keys.queues[0].tx.port != keys.queues[0].rx.port);

    bench.host.ask_to_detach(GUEST, 0);
    bench.settle();
    assert_eq!(bench.host.mapped(), 2, "the guest still uses them");
    front.state(XenbusState::Closing);
    bench.settle();
    assert_eq!((bench.host.mapped(), bench.host.bound()), (0, 0));
    front.state(XenbusState::Closed);
    bench.settle();
    assert_eq!(bench.state(), "6", "the toolstack waits for this");
    bench.host.remove(GUEST, 0);
    bench.settle();
    assert_eq!(bench.state(), "none", "nothing is written into what is gone");
    front.release();
}

#[test]
fn several_queues_one_channel_each_and_a_control_ring() {
    let (mut bench, mut front) = Bench::with_guest();
    bench.settle();
    front.keys(3);
    front.queue("queue-1/", 8, false);
    front.client.rm("device/vif/0/queue-1/event-channel-tx").unwrap();
    let (ctrl, port) = front.ring(10);
    front.set("ctrl-ring-ref", &ctrl);
    front.set("event-channel-ctrl", &port);
    front.set("request-multicast-control", "1");
    front.set("feature-no-csum-offload", "1");
    front.state(XenbusState::Connected);
    bench.settle();
    assert_eq!((bench.state().as_str(), bench.host.mapped(), bench.host.bound()), ("4", 7, 6));
    let keys = &bench.switch.fronts[0];
    assert_eq!(keys.queues.len(), 3);
    assert_eq!(keys.queues[1].tx.port, keys.queues[1].rx.port);
    assert!(keys.ctrl.is_some() && keys.multicast_control && !keys.ip_csum_offload);
}

#[test]
fn a_front_end_that_starts_anew_is_let_go_of_and_served_again() {
    let (mut bench, mut front) = connected(1);
    // kexec starts the driver again without closing the vif.
    front.state(XenbusState::Initialising);
    bench.settle();
    assert_eq!((bench.state().as_str(), bench.host.mapped()), ("2", 0));
    front.release();
    front.connect(2);
    bench.settle();
    assert_eq!((bench.state().as_str(), bench.host.mapped(), bench.switch.connects), ("4", 4, 2));
    // With a farewell the driver is unloaded and loaded.
    front.state(XenbusState::Closing);
    bench.settle();
    assert_eq!(bench.state(), "5");
    front.state(XenbusState::Closed);
    bench.settle();
    assert_eq!(bench.state(), "6");
    front.state(XenbusState::Initialising);
    bench.settle();
    assert_eq!(bench.state(), "2");
}

#[test]
fn a_restart_of_the_front_end_that_nobody_saw_is_served_too() {
    let (mut bench, mut front) = Bench::with_guest();
    // The vif is attached, detached and attached between two polls.
    bench.settle();
    front.connect(1);
    bench.host.remove(GUEST, 0);
    bench.host.attach(GUEST, 0, "00:16:3e:00:00:09", "br0");
    bench.settle();
    assert_eq!((bench.state().as_str(), bench.switch.connects), ("2", 0));
    front.connect(1);
    bench.settle();
    assert_eq!((bench.state().as_str(), bench.host.mapped()), ("4", 2));
    // The vif is in use, and another vif takes its place.
    bench.host.remove(GUEST, 0);
    bench.host.attach(GUEST, 0, MAC, "br0");
    bench.settle();
    assert_eq!((bench.state().as_str(), bench.host.mapped()), ("2", 0));
    front.release();
}

#[test]
fn a_guest_that_dies_leaves_nothing_mapped() {
    let (mut bench, front) = connected(2);
    drop(front.ends);
    front.guest.destroy();
    bench.settle();
    assert_eq!((bench.host.mapped(), bench.host.bound()), (0, 0));
    assert_eq!(bench.state(), "6");
    bench.host.remove(GUEST, 0);
    bench.settle();
    // Another domain gets the guest's number.
    bench.host.attach(GUEST, 0, MAC, "br0");
    let mut front = Front::new(bench.host.guest(GUEST, 4).unwrap());
    bench.settle();
    front.connect(1);
    bench.settle();
    assert_eq!((bench.state().as_str(), bench.host.mapped()), ("4", 2));
}

#[test]
fn a_directory_that_is_removed_by_force_leaves_nothing_mapped() {
    let (mut bench, mut front) = connected(1);
    bench.host.remove(GUEST, 0);
    bench.settle();
    assert_eq!((bench.host.mapped(), bench.state().as_str()), (0, "none"));
    front.release();
}

#[test]
fn a_vif_that_was_never_used_closes_when_it_is_detached() {
    let (mut bench, _front) = Bench::with_guest();
    bench.settle();
    bench.host.ask_to_detach(GUEST, 0);
    bench.settle();
    assert_eq!(bench.state(), "6");
    // A second request gets the same answer.
    bench.host.ask_to_detach(GUEST, 0);
    bench.settle();
    assert_eq!(bench.state(), "6");
}

#[test]
fn weir_that_starts_again_serves_a_guest_that_noticed_nothing() {
    let (mut bench, mut front) = connected(1);
    let host = bench.host.clone();
    // weir is killed: the kernel unmaps and unbinds.
    bench.switch.served.clear();
    drop(bench);
    assert_eq!((host.mapped(), host.bound()), (0, 0));
    let mut bench = Bench::on(host);
    bench.settle();
    assert_eq!((bench.state().as_str(), bench.host.mapped(), bench.host.bound()), ("4", 2, 2));
    front.state(XenbusState::Closing);
    bench.settle();
    assert_eq!(bench.host.mapped(), 0);
}

#[test]
fn vifs_of_other_bridges_are_left_alone() {
    let mut bench = Bench::new();
    bench.host.attach(GUEST, 0, MAC, "xenbr1");
    bench.settle();
    assert_eq!((bench.state().as_str(), bench.back("feature-sg")), ("1", None));
}

#[test]
fn a_thousand_attachments_leave_nothing_mapped() {
    let mut bench = Bench::new();
    let mut front = Front::new(bench.host.guest(GUEST, 4).unwrap());
    for n in 0..1000 {
        bench.host.attach(GUEST, 0, MAC, "br0");
        bench.settle();
        front.connect(1);
        bench.settle();
        assert_eq!(bench.host.mapped(), 2);
        if n % 2 == 0 {
            bench.host.ask_to_detach(GUEST, 0);
            front.state(XenbusState::Closed);
            bench.settle();
        }
        bench.host.remove(GUEST, 0);
        bench.settle();
        assert_eq!((bench.host.mapped(), bench.host.bound()), (0, 0));
        front.release();
    }
}

#[test]
fn a_channel_is_found_by_its_name_and_in_what_the_toolstack_wrote() {
    let host = Host::new();
    let mut client = host.client();
    let found =
        |client: &mut Client<Connection>, name| channel_socket(client, GUEST, name).unwrap();
    assert_eq!(found(&mut client, "weir.agent"), None, "a guest without consoles");
    for (console, name, connection, path) in [
        (0, "", "", ""),
        (1, "other", "socket", "/run/other"),
        (2, "weir.agent", "pty", ""),
        (3, "weir.agent", "socket", "/run/weir/web.agent"),
        (4, "relative", "socket", "run/x"),
    ] {
        let console = format!("/local/domain/0/backend/console/7/{console}");
        for (key, value) in [("name", name), ("connection", connection), ("path", path)] {
            if !value.is_empty() {
                client.write(&format!("{console}/{key}"), value.as_bytes()).unwrap();
            }
        }
    }
    assert_eq!(found(&mut client, "weir.agent").as_deref(), Some("/run/weir/web.agent"));
    assert_eq!(found(&mut client, "relative"), None);
    assert_eq!(found(&mut client, "nobody's"), None);
    assert_eq!(channel_socket(&mut client, DomainId(8), "weir.agent").unwrap(), None);
}

#[test]
fn the_toolstacks_limit_is_read_as_netback_reads_it_and_nonsense_is_refused() {
    let credit = |rate: Option<&str>| {
        let read = |key: &str| {
            let value = match key {
                "frontend-id" | "handle" => Some("1"),
                "mac" => Some("00:16:3e:00:00:01"),
                "frontend" => Some("/local/domain/1/device/vif/1"),
                "rate" => rate,
                _ => None,
            };
            Ok::<_, KeyError>(value.map(|value| value.as_bytes().to_vec()))
        };
        VifKeys::read(read).unwrap().credit()
    };
    let limit = |bytes, interval_us| Ok(Some(Credit { bytes, interval_us }));
    assert_eq!(credit(None), Ok(None));
    assert_eq!(credit(Some("62500,50000")), limit(62_500, 50_000));
    assert_eq!(credit(Some("18446744073709551615,1")), limit(u64::MAX, 1));
    assert_eq!(credit(Some("62500,0")), Ok(None));
    let long = "9".repeat(100_000);
    for bad in ["", "1", "1,", ",1", "-1,1", "1,+1", " 1,1", "1,1,1", "1,4294967296", &long] {
        let error = credit(Some(bad)).unwrap_err().to_string();
        assert!(error.starts_with("rate is ") && error.len() < 200, "{error}");
    }
}

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
