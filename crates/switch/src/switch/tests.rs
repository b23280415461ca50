//! A switch that is changed by requests while built-in guests exchange frames.

mod limits;

use std::time::{Duration, Instant};

use tempfile::TempDir;
use weir_config::{Config, Defaults, Setting, VifChanges};
use weir_vif::{Options as VifOptions, QueuePair, Vif as Guest};
use weir_wire::{Mac, Offload};

use super::*;
use crate::control::{ControlHandler as _, Request};
use crate::explain::VifExplanation;
use crate::stats::{PortKind, PortStats, QueuePairNumbers, RingSizes, Silence, SilentRing};

mod addresses;
mod bonds;
mod groups;
mod loops;
mod mirrors;
mod oracle;
mod put;
mod tenants;
mod ways;

/// A switch with interfaces, which are `a`, `b` and `c` by default.
struct Bench {
    switch: Arc<Switch>,
    dir: TempDir,
}

fn name(text: &str) -> PortName {
    text.parse().unwrap()
}

fn mac(number: u8) -> [u8; 6] {
    [0x52, 0x54, 0, 0, 0, number]
}

/// Waits for an effect of another thread. The time limit only ends a failing test.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < end, "never happened: {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn send(pair: &mut QueuePair, to: [u8; 6], from: u8, payload: &[u8]) {
    let frame = [&to[..], &mac(from), &[0x88, 0xb5], payload].concat();
    eventually("room to send", || pair.send(&frame, &Offload::NONE).is_ok());
    pair.flush();
}

impl Bench {
    fn new() -> Self {
        Self::with("[vif.a]\n[vif.b]\n[vif.c]\n")
    }

    fn with(vifs: &str) -> Self {
        Self::within(tempfile::tempdir().unwrap(), vifs)
    }

    fn within(dir: TempDir, vifs: &str) -> Self {
        let control = SocketPath::try_from(dir.path().join("control.sock").as_path()).unwrap();
        let defaults = Defaults { control, control_named: true, keeper: None };
        let text = format!("[switch]\nworkers = 2\n{vifs}");
        let config = Config::from_toml("weir.toml", &text, &defaults).unwrap();
        Self { switch: Switch::start(&config).unwrap(), dir }
    }

    fn try_connect(&self, vif: &str, number: u8, queues: usize) -> Option<Guest> {
        let socket = self.dir.path().join(format!("{vif}.sock"));
        Guest::connect(socket, &VifOptions { queues, ..VifOptions::new(Mac(mac(number))) }).ok()
    }

    /// A running guest, started after the previous one has disconnected.
    fn guest(&self, vif: &str, number: u8, queues: usize) -> (Guest, Vec<QueuePair>) {
        eventually("the guest before is gone", || self.numbers(vif).session.is_none());
        let mut guest = self.try_connect(vif, number, queues).unwrap();
        let pairs = guest.queue_pairs();
        eventually("all rings start", || self.numbers(vif).in_use == queues);
        (guest, pairs)
    }

    fn port(&self, vif: &str) -> PortStats {
        self.switch.stats().ports.into_iter().find(|port| port.name.as_str() == vif).unwrap()
    }

    fn numbers(&self, vif: &str) -> QueuePairNumbers {
        self.port(vif).queue_pairs.unwrap()
    }

    /// Changes `settings`, which are separated by spaces.
    fn set(&self, vif: &str, settings: &str) -> Response {
        let settings: Vec<Setting> = settings.split(' ').map(|it| it.parse().unwrap()).collect();
        let changes = VifChanges::from_settings(&name(vif), &settings).unwrap();
        self.switch.handle(Request::VifSet { name: name(vif), changes: changes.into() })
    }

    fn explain(&self, vif: &str) -> Box<VifExplanation> {
        match self.switch.handle(Request::VifExplain { name: name(vif) }) {
            Response::Explained { explanation } => explanation,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn of_two_interfaces_that_are_added_at_once_and_do_not_go_together_one_is_there() {
    let bench = &Bench::new();
    for round in 0..20 {
        let config = |twin| {
            let socket = bench.dir.path().join(format!("{round}-{twin}.sock"));
            let socket = SocketPath::try_from(socket.as_path()).unwrap();
            VifConfig::new(name(&format!("twin{round}")), socket)
        };
        let added: Vec<_> = std::thread::scope(|scope| {
            let request = |twin| Request::VifAdd { config: config(twin).into() };
            let add = |twin| scope.spawn(move || bench.switch.handle(request(twin)));
            [1, 2, 3].map(add).map(|thread| thread.join().unwrap()).into()
        });
        let ok = added.iter().filter(|response| matches!(response, Response::Ok)).count();
        assert_eq!(ok, 1, "{added:?}");
        assert_eq!(bench.switch.ports().vifs.len(), 4 + round);
    }
}

#[test]
fn a_guest_uses_more_queues_from_its_next_session_on_while_others_talk() {
    let bench = Bench::new();
    let (_a, mut a) = bench.guest("a", 1, 1);
    let (_b, mut b) = bench.guest("b", 2, 1);
    let mut web = bench.guest("c", 3, 1);
    assert!(bench.try_connect("c", 3, 2).is_none(), "it is offered one");
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stops = weir_testing::SetAtEnd(&over);
        let talk = scope.spawn(|| {
            let mut number = 0_u32;
            let mut got = Vec::new();
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                number += 1;
                let there = number.is_multiple_of(2);
                let (from, to) = if there { (&mut a, &mut b) } else { (&mut b, &mut a) };
                let numbers = if there { (1, 2) } else { (2, 1) };
                send(&mut from[0], mac(numbers.1), numbers.0, &number.to_be_bytes());
                // Frames of the third guest are broadcasts.
                eventually("the frame arrives", || {
                    to[0].recv_into(&mut got).is_some() && got[6..12] == mac(numbers.0)
                });
                assert_eq!(got[14..18], number.to_be_bytes());
            }
            number
        });
        let mut session = 1;
        for queues in [4_usize, 8, 2, 1, 8] {
            let before =
                QueuePairNumbers { configured: session, session: Some(session), in_use: session };
            assert_eq!(bench.numbers("c"), before);
            let Response::Noted { note } = bench.set("c", &format!("queues={queues}")) else {
                panic!("its front end has to come back first")
            };
            assert!(note.starts_with(&format!("`queues` is {queues} now")), "{note}");
            assert_eq!(bench.numbers("c"), QueuePairNumbers { configured: queues, ..before });
            assert_eq!(bench.explain("c").queue_pairs.note().as_ref(), Some(&note));
            let again = bench.set("c", &format!("queues={queues}"));
            assert!(matches!(again, Response::Noted { note: it } if it == note), "said once more");
            // The session continues as it was.
            send(&mut web.1[session - 1], [0xff; 6], 3, b"still here");

            drop(web);
            web = bench.guest("c", 3, queues);
            for pair in &mut web.1 {
                send(pair, [0xff; 6], 3, b"on each of them");
            }
            let sent = || bench.port("c").queues.iter().filter(|pair| pair.tx.frames > 0).count();
            eventually("each queue is served", || sent() >= queues);
            session = queues;
        }
        drop(stops);
        assert!(talk.join().unwrap() > 0);
    });
    // Counters of removed queues are kept.
    bench.set("c", "queues=1");
    assert_eq!(bench.port("c").queues.len(), 8);
}

#[test]
fn who_asks_for_more_than_is_offered_gets_no_session_and_others_go_on() {
    let bench = Bench::new();
    let (_a, mut a) = bench.guest("a", 1, 1);
    let (_b, mut b) = bench.guest("b", 2, 1);
    assert_eq!(bench.set("c", "queues=2"), Response::Ok, "nobody is connected");
    assert!(bench.try_connect("c", 3, 3).is_none());
    assert_eq!(bench.set("c", "queues=2"), Response::Ok, "nothing has changed");
    let _web = bench.guest("c", 3, 2);
    send(&mut a[0], mac(2), 1, b"hello");
    let mut got = Vec::new();
    eventually("the frame arrives", || b[0].recv_into(&mut got).is_some());
}

#[test]
fn what_a_guest_receives_is_limited_while_it_runs() {
    const FRAMES: u64 = 40;
    let bench = Bench::new();
    let (_a, mut a) = bench.guest("a", 1, 1);
    let (_c, mut c) = bench.guest("c", 3, 1);
    // The broadcast lets the switch learn the receiver's port.
    send(&mut c[0], [0xff; 6], 3, b"hello");
    eventually("a hears it", || a[0].recv(|_| ()).is_some());
    // The counts of received and dropped frames of a round.
    let mut round = |c: &mut QueuePair| {
        let counts = || {
            let port = bench.port("c");
            (port.rx.frames, port.drops.get("policed_rx").copied().unwrap_or(0))
        };
        let before = counts();
        for _ in 0..FRAMES {
            send(&mut a[0], mac(3), 1, b"as fast as it can");
        }
        let did = || (counts().0 - before.0, counts().1 - before.1);
        eventually("each frame has its end", || {
            while c.recv(|_| ()).is_some() {}
            did().0 + did().1 == FRAMES
        });
        did()
    };
    assert_eq!(round(&mut c[0]), (FRAMES, 0));
    let settings =
        ["rx_packets_per_second=1", "rx_packet_burst=5"].map(|text| text.parse().unwrap());
    let changes = VifChanges::from_settings(&name("c"), &settings).unwrap();
    let set = bench.switch.handle(Request::VifSet { name: name("c"), changes: changes.into() });
    assert_eq!(set, Response::Ok);
    let (received, policed) = round(&mut c[0]);
    // Only a few frames arrive later, as the bucket refills.
    assert!((5..FRAMES / 2).contains(&received), "{received}");
    let receiving = bench.explain("c").receiving;
    assert_eq!(receiving.limits.packets_per_second.map(|rate| rate.get()), Some(1));
    assert_eq!(receiving.policed, policed);

    // No other setting fills the bucket.
    assert_eq!(bench.set("c", "weight=2"), Response::Ok);
    assert_eq!(bench.port("c").drops["policed_rx"], policed);
    let Response::Error { message, help, .. } = bench.set("c", "rx_burst=1MiB") else {
        panic!("a burst of what?")
    };
    assert_eq!(
        (message.as_str(), help.as_deref()),
        ("`rx_burst` without `rx_rate`", Some("add `rx_rate`"))
    );
    assert_eq!(bench.set("c", "rx_packets_per_second=none"), Response::Ok);
    assert_eq!(round(&mut c[0]), (FRAMES, 0));
}

#[test]
fn a_port_that_is_no_interface_has_one_answer_to_every_request() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.sock");
    let bench = Bench::with(&format!(
        "[network.lan]\naddress = \"192.168.77.1/24\"\n[vif.a]\n[uplink.out]\nkind = \"stream\"\npath = {path:?}\n",
    ));
    let said = |response| match response {
        Response::Error { message, help, .. } => format!("{message}; {}", help.unwrap()),
        other => panic!("{other:?}"),
    };
    let answers = |text: &str| {
        let name = name(text);
        let all = [
            Request::VifShow { name: name.clone() },
            Request::VifSet { name: name.clone(), changes: Box::default() },
            Request::VifDel { name: name.clone() },
            Request::FilterSet { name: name.clone(), rules: Vec::new() },
            Request::VifExplain { name: name.clone() },
            Request::Trace { name: name.clone(), frame: vec![0; 60] },
        ];
        let captured = serde_json::from_value(serde_json::json!({ "ports": [name] })).unwrap();
        let refused = bench.switch.capture(captured).map(drop).unwrap_err();
        let refused = format!("{refused}; {}", refused.help().unwrap());
        all.map(|request| said(bench.switch.handle(request))).into_iter().chain([refused])
    };
    for answer in answers("gateway.lan") {
        assert!(answer.starts_with("gateway.lan is weir itself in network `lan`"), "{answer}");
        assert!(answer.contains("[network.lan]"), "{answer}");
    }
    assert!(answers("gateway.lam").all(|answer| answer.contains("called gateway.lam")));
    let shown = said(bench.switch.handle(Request::VifShow { name: name("out") }));
    assert!(shown.contains("out is an uplink") && shown.contains("weir filter set out"), "{shown}");
    assert_eq!(bench.port("gateway.lan").kind, PortKind::Own);
    assert_eq!(bench.port("out").kind, PortKind::Uplink);
}

#[test]
fn a_ring_that_is_never_served_is_told_in_stats_and_in_explain() {
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fs::{MemfdFlags, memfd_create};
    use weir_vhost_user::{FrontEnd, MemoryRegion, VringAddr};

    const LEN: u64 = 1 << 16;
    let bench = Bench::new();
    let memory = std::fs::File::from(memfd_create("guest", MemfdFlags::CLOEXEC).unwrap());
    memory.set_len(LEN).unwrap();
    let socket = std::os::unix::net::UnixStream::connect(bench.dir.path().join("a.sock")).unwrap();
    let mut front = FrontEnd::new(socket);
    // With VIRTIO_F_VERSION_1 alone, rings are enabled from the start.
    front.set_features(1 << 32).unwrap();
    let region =
        MemoryRegion { guest_address: 0, size: LEN, user_address: 0x10000, mmap_offset: 0 };
    front.set_mem_table(&[(region, memory.as_fd())]).unwrap();
    front.set_vring_num(1, 64).unwrap();
    let (descriptor, available, used) = (0x10000, 0x11000, 0x12000);
    let areas = VringAddr { index: 1, flags: 0, descriptor, available, used, log: 0 };
    front.set_vring_addr(areas).unwrap();
    let kick = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    front.set_vring_kick(1, Some(kick.as_fd())).unwrap();
    // The driver puts a buffer into the ring, but its kick goes to another descriptor.
    memory.write_all_at(&1_u16.to_le_bytes(), available - 0x10000 + 2).unwrap();
    let silent = [SilentRing { ring: 1, why: Silence::BuffersWithoutKick }];
    eventually("the ring is told of", || bench.port("a").silent == silent);
    assert_eq!(bench.explain("a").silent, silent);
    let json = serde_json::to_value(bench.port("a")).unwrap();
    let expected = serde_json::json!([{ "ring": 1, "why": "buffers_without_kick" }]);
    assert_eq!(json["silent"], expected);
}

#[test]
fn rings_are_shown_as_they_are_and_as_their_vm_is_to_have_them() {
    let bench = Bench::new();
    assert_eq!(bench.explain("a").rings.rx_in_use, [0; 0], "there is no guest");
    let (guest, _pairs) = bench.guest("a", 1, 1);
    let size = u32::from(VifOptions::new(Mac(mac(1))).queue_size);
    let RingSizes { rx_in_use, tx_in_use, .. } = bench.explain("a").rings;
    assert_eq!((rx_in_use, tx_in_use), (vec![size], vec![size]));
    let other = if size == 512 { 1024 } else { 512 };
    let Response::Noted { note } = bench.set("a", &format!("rx_ring={other}")) else {
        panic!("the guest has its rings")
    };
    assert_eq!(note, "rx_ring: when its VM starts with new arguments");
    let note = bench.explain("a").rings.note().unwrap();
    assert!(note.starts_with(&format!("`rx_ring` is {other}: ")), "{note}");
    bench.set("a", "rx_ring=none");
    assert_eq!(bench.explain("a").rings.note(), None);
    drop(guest);
    eventually("its rings end", || bench.explain("a").rings.tx_in_use.is_empty());
}
