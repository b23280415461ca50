//! Security groups between built-in guests.

use std::io::Write;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use weir_config::SecurityGroup;
use weir_limits::{GROUP_REFUSALS, LOG_LINES_MAX};

use super::*;
use crate::control::{Extent, ReloadOutcome};
use crate::stats::GroupStats;

mod over_hosts;

const SYN: u8 = 2;
const ACK: u8 = 16;
const UDP: u8 = 17;

/// A packet of IPv4 from guest `from`.
fn packet(from: u8, to: u8, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let len = (20 + payload.len() as u16).to_be_bytes();
    let ip =
        [0x45, 0, len[0], len[1], 0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 0, from, 10, 0, 0, to];
    [&mac(to)[..], &mac(from), &[8, 0], &ip, payload].concat()
}

fn tcp(from: u8, to: u8, ports: [u16; 2], flags: u8) -> Vec<u8> {
    let ports = ports.map(u16::to_be_bytes);
    let rest = [0, 0, 0, 0, 0, 0, 0, 0, 0x50, flags, 0, 0, 0, 0, 0, 0];
    packet(from, to, 6, &[ports.as_flattened(), &rest].concat())
}

pub(super) fn udp(from: u8, to: u8, ports: [u16; 2]) -> Vec<u8> {
    let words = [ports[0], ports[1], 8, 0].map(u16::to_be_bytes);
    packet(from, to, UDP, words.as_flattened())
}

/// Announces each interface's MAC address to the others. ARP needs no rule.
fn announce(all: [&mut QueuePair; 3]) {
    let mut all = all;
    for (pair, from) in all.iter_mut().zip(1..) {
        put(pair, &[&[0xff; 6][..], &mac(from), &[8, 6], &[0; 28]].concat());
    }
    for pair in all {
        assert_eq!([next(pair), next(pair)].map(|frame| frame[13]), [6, 6]);
    }
}

/// An ICMP message "port unreachable" about a datagram.
fn unreachable(from: u8, to: u8, about: &[u8]) -> Vec<u8> {
    packet(from, to, 1, &[&[3, 3, 0, 0, 0, 0, 0, 0], &about[14..42]].concat())
}

pub(super) fn put(pair: &mut QueuePair, frame: &[u8]) {
    eventually("room to send", || pair.send(frame, &Offload::NONE).is_ok());
    pair.flush();
}

fn next(pair: &mut QueuePair) -> Vec<u8> {
    let mut got = Vec::new();
    eventually("a frame arrives", || pair.recv_into(&mut got).is_some());
    got
}

/// A log in memory.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The lines that this thread logs meanwhile.
fn logged(does: impl FnOnce()) -> Vec<String> {
    let log = Log::default();
    let writer = log.clone();
    let to = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone());
    tracing::subscriber::with_default(to.finish(), does);
    let bytes = std::mem::take(&mut *log.0.lock().unwrap_or_else(PoisonError::into_inner));
    String::from_utf8(bytes).unwrap().lines().map(str::to_owned).collect()
}

impl Bench {
    fn refused(&self, vif: &str, reason: &str) -> u64 {
        self.port(vif).drops.get(reason).copied().unwrap_or(0)
    }

    /// Sends a frame that its receiver is not to get.
    fn in_vain(&self, pair: &mut QueuePair, frame: &[u8], counted_at: &str, reason: &str) {
        let before = self.refused(counted_at, reason);
        put(pair, frame);
        eventually("it is refused", || self.refused(counted_at, reason) == before + 1);
    }

    fn reload(&self, tables: &str) {
        let text = format!("[switch]\nworkers = 2\n{tables}");
        let reloaded = self.switch.handle(Request::Reload { text, extent: Extent::Whole });
        assert!(
            matches!(
                &reloaded,
                Response::Reloaded { outcome: ReloadOutcome::Applied { notes }, .. } if notes.is_empty()
            ),
            "{reloaded:?}"
        );
    }

    fn says(&self, from: &str, frame: &[u8]) -> Vec<String> {
        let trace = self.switch.trace(&name(from), frame).unwrap();
        let of_groups = trace.steps.into_iter().filter(|step| step.stage == "groups");
        of_groups.map(|step| format!("{}: {}", step.port, step.says)).collect()
    }
}

#[test]
fn a_guest_opens_connections_and_nobody_opens_one_to_it() {
    let vifs = "[vif.a]\ngroups = [\"web\"]\n[vif.b]\n[vif.c]\n";
    let bench = Bench::with(&format!("[group.web]\n{vifs}"));
    let (_a, mut a) = bench.guest("a", 1, 1);
    let (_b, mut b) = bench.guest("b", 2, 1);
    let ([a], [b]) = (&mut a[..], &mut b[..]) else { panic!("a queue pair each") };

    bench.in_vain(b, &tcp(2, 1, [80, 5000], SYN), "a", "group_in");
    bench.in_vain(b, &udp(2, 1, [53, 5000]), "a", "group_in");
    put(a, &tcp(1, 2, [5000, 80], SYN));
    assert_eq!(next(b), tcp(1, 2, [5000, 80], SYN));
    let answer = tcp(2, 1, [80, 5000], SYN | ACK);
    put(b, &answer);
    assert_eq!(next(a), answer, "the first that arrives");
    let established = tcp(1, 2, [5000, 80], ACK);
    put(a, &established);
    assert_eq!(next(b), established);
    // The data comes in one burst. One of its segments belongs to another connection.
    for ports in [[80, 5000], [80, 5000], [80, 5001], [80, 5000]] {
        put(b, &tcp(2, 1, ports, ACK));
    }
    // The table is new. A frame that may answer on an earlier connection is accepted, and the connection noted.
    let data = [[80, 5000], [80, 5000], [80, 5001], [80, 5000]].map(|it| tcp(2, 1, it, ACK));
    assert_eq!([(); 4].map(|()| next(a)), data);

    let (mut connections, mut from) = (Vec::new(), Some(0));
    while let Some(at) = from {
        match bench.switch.handle(Request::Connections { name: name("a"), from: at }) {
            Response::Connections { page } => {
                connections.extend(page.connections);
                from = page.next;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(connections.len(), 2, "{connections:?}");
    let open = connections.iter().find(|it| it.own == "10.0.0.1:5000").unwrap();
    assert_eq!((open.peer.as_str(), open.protocol.as_str()), ("10.0.0.2:80", "tcp"));
    assert_eq!((open.state.as_str(), open.opened.to_string().as_str()), ("established", "out"));

    let asked = udp(1, 2, [6000, 53]);
    bench.in_vain(b, &unreachable(2, 1, &asked), "a", "group_in");
    put(a, &asked);
    assert_eq!(next(b), asked);
    let error = unreachable(2, 1, &asked);
    put(b, &error);
    assert_eq!(next(a), error);

    assert_eq!(bench.port("a").limits["connections"].used, 3);
    assert!(!bench.port("b").limits.contains_key("connections"));
    let opens = tcp(2, 1, [80, 5009], SYN);
    assert_eq!(bench.says("b", &opens), ["a: no rule of groups web allows this to go in"]);
    assert_eq!(
        bench.says("b", &tcp(2, 1, [80, 5000], ACK)),
        ["a: the frame belongs to a connection that is known"]
    );
    assert_eq!(
        bench.says("a", &tcp(1, 2, [5009, 80], SYN)),
        ["a: groups web leave open what goes out"]
    );

    // Rules that forbid a connection end it, whichever end continues.
    let dns = "rules = [{ direction = \"out\", protocol = \"udp\", ports = 53 }]";
    bench.reload(&format!("[group.web]\ndefault_out = \"deny\"\n{dns}\n{vifs}"));
    bench.in_vain(a, &established, "a", "group_out");
    bench.in_vain(b, &tcp(2, 1, [80, 5000], ACK), "a", "group_in");
    put(b, &udp(2, 1, [53, 6000]));
    assert_eq!(next(a), udp(2, 1, [53, 6000]), "others go on");
    assert_eq!(
        bench.says("a", &udp(1, 2, [6001, 53])),
        ["a: rule 1 of group web, `out udp 53 to any`, allows the connection"]
    );

    let flush = |of: &str| bench.switch.handle(Request::Flush { of: Some(of.into()) });
    let forgets = |of: &str, connections: u64, interfaces: usize| {
        let note =
            format!("connections forgotten: {connections} (interfaces in groups: {interfaces})");
        assert_eq!(flush(of), Response::Noted { note });
    };
    forgets("c", 0, 0);
    forgets("a", bench.port("a").limits["connections"].used, 1);
    assert_eq!(bench.port("a").limits["connections"].used, 0);
    assert!(matches!(flush("nobody"), Response::Error { .. }));
}

#[test]
fn filters_are_judged_before_groups_and_what_they_drop_is_no_connection() {
    let filter = |vif: &str, direction: &str, port: u16| {
        format!(
            "[[vif.{vif}.filter]]\ndirection = \"{direction}\"\naction = \"drop\"\n\
             match = \"udp dst port {port}\"\n"
        )
    };
    let vifs = "[group.web]\n[vif.a]\ngroups = [\"web\"]\n".to_owned()
        + &filter("a", "tx", 53)
        + &filter("a", "rx", 54)
        + "[vif.b]\n"
        + &filter("b", "rx", 55)
        + "[vif.c]\n";
    let bench = Bench::with(&vifs);
    let (_a, mut a) = bench.guest("a", 1, 1);
    let (_b, mut b) = bench.guest("b", 2, 1);
    let ([a], [b]) = (&mut a[..], &mut b[..]) else { panic!("a queue pair each") };
    bench.in_vain(a, &udp(1, 2, [5000, 53]), "a", "filtered_tx");
    bench.in_vain(b, &udp(2, 1, [5000, 54]), "a", "filtered_rx");
    bench.in_vain(a, &udp(1, 2, [5000, 55]), "b", "filtered_rx");
    bench.in_vain(b, &udp(2, 1, [53, 5000]), "a", "group_in");
    assert_eq!(bench.port("a").limits["connections"].used, 0);
    put(a, &udp(1, 2, [5000, 56]));
    assert_eq!(next(b), udp(1, 2, [5000, 56]));
    assert_eq!(bench.port("a").limits["connections"].used, 1);
}

#[test]
fn a_group_that_is_set_ends_what_it_forbids_and_nothing_else() {
    let bench = Bench::with("[group.web]\n[vif.a]\ngroups = [\"web\"]\n[vif.b]\n[vif.c]\n");
    let (_a, mut a) = bench.guest("a", 1, 1);
    let (_b, mut b) = bench.guest("b", 2, 1);
    let ([a], [b]) = (&mut a[..], &mut b[..]) else { panic!("a queue pair each") };
    let set = |default_out: &str, rules: &[&str]| {
        let group = serde_json::json!({"name": "web", "default_out": default_out, "rules": rules});
        bench.switch.handle(Request::GroupPut { group: serde_json::from_value(group).unwrap() })
    };
    for frame in [udp(1, 2, [5000, 53]), udp(1, 2, [5000, 54])] {
        put(a, &frame);
        assert_eq!(next(b), frame);
    }
    assert_eq!(set("deny", &["out udp 53"]), Response::Ok);
    assert!(matches!(set("deny", &["out udp 53 to any"]), Response::Noted { .. }), "the same");
    bench.in_vain(a, &udp(1, 2, [5000, 54]), "a", "group_out");
    bench.in_vain(b, &udp(2, 1, [54, 5000]), "a", "group_in");
    put(b, &udp(2, 1, [53, 5000]));
    assert_eq!(next(a), udp(2, 1, [53, 5000]));
    // A rule for what is open is refused, and the rules of before hold.
    assert!(matches!(set("allow", &["out udp 53"]), Response::Error { help: Some(_), .. }));
    bench.in_vain(a, &udp(1, 2, [5000, 54]), "a", "group_out");
    assert_eq!(set("allow", &[]), Response::Ok);
    put(a, &udp(1, 2, [5000, 54]));
    assert_eq!(next(b), udp(1, 2, [5000, 54]));
}

#[test]
fn queues_that_move_between_workers_keep_their_connections() {
    const FLOWS: u16 = 50;
    let bench = Bench::with("[group.web]\n[vif.a]\ngroups = [\"web\"]\n[vif.b]\n[vif.c]\n");
    let (_a, mut a) = bench.guest("a", 1, 1);
    let (_b, mut b) = bench.guest("b", 2, 1);
    let ([a], [b]) = (&mut a[..], &mut b[..]) else { panic!("a queue pair each") };
    let ids = ["a", "b"].map(|vif| bench.switch.port_id(&name(vif)).unwrap());
    let (moves, ends) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _stops = weir_testing::SetAtEnd(&ends);
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                let turn = moves.fetch_add(1, Ordering::Relaxed);
                for (id, worker) in ids.into_iter().zip([turn, turn / 2]) {
                    bench.switch.engine.assign(id, 0, worker % 2).unwrap();
                }
            }
        });
        let mut rounds = 0;
        while rounds < 40 || moves.load(Ordering::Relaxed) < 40 {
            for port in 5000..5000 + FLOWS {
                put(a, &udp(1, 2, [port, 53]));
            }
            for port in 5000..5000 + FLOWS {
                assert_eq!(next(b), udp(1, 2, [port, 53]));
                put(b, &udp(2, 1, [53, port]));
            }
            for port in 5000..5000 + FLOWS {
                assert_eq!(next(a), udp(2, 1, [53, port]));
            }
            rounds += 1;
        }
        bench.in_vain(b, &udp(2, 1, [54, 5000]), "a", "group_in");
    });
    assert_eq!(bench.port("a").limits["connections"].used, u64::from(FLOWS));
    assert_eq!(bench.refused("a", "group_in"), 1);
}

#[test]
fn refusals_are_explained_and_logged_if_the_group_says_so() {
    let groups = "[group.web]\nlog = true\n[group.ssh]\ndefault_in = \"allow\"\nlog = true\n";
    let vifs = "[vif.a]\ngroups = [\"web\", \"ssh\"]\n[vif.b]\n[vif.c]\n";
    let bench = Bench::with(&format!("{groups}{vifs}"));
    let (_a, mut a) = bench.guest("a", 1, 1);
    let (_b, mut b) = bench.guest("b", 2, 1);
    let ([_], [b]) = (&mut a[..], &mut b[..]) else { panic!("a queue pair each") };
    bench.in_vain(b, &tcp(2, 1, [4000, 22], SYN), "a", "group_in");
    bench.in_vain(b, &tcp(2, 1, [4001, 22], SYN), "a", "group_in");
    bench.in_vain(b, &tcp(2, 1, [4001, 23], SYN | 4), "a", "group_in");

    assert_eq!(
        bench.says("b", &tcp(2, 1, [4000, 22], SYN)),
        ["a: no rule of groups web, ssh allows this to go in, which web closes"]
    );
    let it = bench.explain("a").groups.unwrap();
    let names =
        |groups: &[SecurityGroup]| groups.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!((names(&it.close_in), names(&it.close_out)), (vec!["web".to_owned()], vec![]));
    assert_eq!(names(&it.log), ["web", "ssh"]);
    assert_eq!(it.refused_in, [("invalid".to_owned(), 1), ("no_rule".to_owned(), 2)].into());
    assert_eq!(it.refused_out, [].into());
    let [syn, odd] = &it.refused[..] else { panic!("{it:?}") };
    assert_eq!((syn.reason.as_str(), syn.frames, syn.port), ("no_rule", 2, Some(22)));
    assert_eq!((syn.from.as_deref(), syn.to.as_deref()), (Some("10.0.0.2"), Some("10.0.0.1")));
    assert_eq!((odd.reason.as_str(), odd.frames, odd.port), ("invalid", 1, Some(23)));
    assert_eq!(bench.explain("b").groups, None);

    // All tests of the process share the log's bound, so a line may have to wait for its turn.
    let mut lines = Vec::new();
    eventually("a line is written", || {
        bench.in_vain(b, &tcp(2, 1, [4000, 22], SYN), "a", "group_in");
        lines = logged(|| bench.switch.log_refusals());
        !lines.is_empty()
    });
    let [line] = &lines[..] else {
        panic!("of what no host sends no group says a word: {lines:?}")
    };
    let says = [
        "vif=\"a\"",
        "direction=in",
        "group=\"web\"",
        "protocol=\"tcp\"",
        "from=\"10.0.0.2\"",
        "to=\"10.0.0.1\"",
        "port=22",
        "frames=",
    ];
    assert!(says.iter().all(|it| line.contains(it)), "{line}");
    let unsaid = || bench.explain("a").groups.unwrap().log_lines_unsaid;
    let before = unsaid();
    assert_eq!((logged(|| bench.switch.log_refusals()).len(), unsaid()), (0, before), "told once");

    for port in 0..20 {
        bench.in_vain(b, &tcp(2, 1, [4000, 100 + port], SYN), "a", "group_in");
    }
    let lines = logged(|| bench.switch.log_refusals());
    assert!(lines.len() < LOG_LINES_MAX as usize, "{lines:?}");
    assert_eq!(lines.len() as u64 + unsaid() - before, GROUP_REFUSALS as u64);
    if let Some(line) = lines.first() {
        // The two earlier refusals were logged before later ones displaced them.
        assert!(line.contains(&format!("displaced={}", 20 - GROUP_REFUSALS)), "{line}");
    }

    let before = unsaid();
    let open = "[group.web]\n[group.ssh]\ndefault_in = \"allow\"\nlog = true\n";
    bench.reload(&format!("{open}{vifs}"));
    bench.in_vain(b, &tcp(2, 1, [4000, 22], SYN), "a", "group_in");
    assert_eq!(
        (logged(|| bench.switch.log_refusals()).len(), unsaid()),
        (0, before),
        "ssh is open"
    );
}

#[test]
fn refusals_that_nobody_logs_are_not_gathered_and_the_log_begins_with_the_next_ones() {
    let vifs = "[vif.a]\ngroups = [\"web\"]\n[vif.b]\n[vif.c]\n";
    let bench = Bench::with(&format!("[group.web]\n{vifs}"));
    let (_a, mut a) = bench.guest("a", 1, 1);
    let (_b, mut b) = bench.guest("b", 2, 1);
    let ([_], [b]) = (&mut a[..], &mut b[..]) else { panic!("a queue pair each") };
    let id =
        bench.switch.ports().vifs.iter().find(|it| it.config.name == name("a")).unwrap().port.id();
    let taken = || bench.switch.engine.groups(id).unwrap().take_refusals();
    let displacing = GROUP_REFUSALS as u16 + 5;
    for port in 0..displacing {
        bench.in_vain(b, &tcp(2, 1, [4000, port], SYN), "a", "group_in");
    }
    assert_eq!(taken(), (vec![], 0), "no group logs");
    bench.reload(&format!("[group.web]\nlog = true\n{vifs}"));
    assert_eq!(taken(), (vec![], 0), "these came before");
    bench.in_vain(b, &tcp(2, 1, [4000, 22], SYN), "a", "group_in");
    let (refusals, displaced) = taken();
    let [(refusal, 1)] = &refusals[..] else { panic!("{refusals:?}") };
    assert_eq!((refusal.ends.unwrap().value, displaced), (Some(22), 0));
    assert_eq!(bench.explain("a").groups.unwrap().refused_in["no_rule"], u64::from(displacing) + 1);
}

#[test]
fn both_guests_rules_hold_and_name_the_other_ones_groups() {
    let rules =
        "rules = [{ direction = \"in\", protocol = \"tcp\", ports = 22, from = \"group:lb\" }]";
    let groups =
        format!("[group.lb]\n[group.web]\n{rules}\n[group.shut]\ndefault_out = \"deny\"\n");
    let vifs = "[vif.a]\ngroups = [\"web\"]\n[vif.b]\ngroups = [\"lb\"]\n[vif.c]\n";
    let bench = Bench::with(&format!("{groups}{vifs}"));
    let (_a, mut a) = bench.guest("a", 1, 1);
    let (_b, mut b) = bench.guest("b", 2, 1);
    let (_c, mut c) = bench.guest("c", 3, 1);
    let ([a], [b], [c]) = (&mut a[..], &mut b[..], &mut c[..]) else { panic!("a queue pair each") };

    announce([a, b, c]);
    put(b, &tcp(2, 1, [4000, 22], SYN));
    assert_eq!(next(a), tcp(2, 1, [4000, 22], SYN));
    bench.in_vain(c, &tcp(3, 1, [4000, 22], SYN), "a", "group_in");
    bench.in_vain(a, &tcp(1, 2, [4000, 22], SYN), "b", "group_in");
    put(a, &tcp(1, 2, [22, 4000], SYN | ACK));
    assert_eq!(next(b), tcp(1, 2, [22, 4000], SYN | ACK));

    let [lb, web, _] = &bench.switch.stats().groups[..] else { panic!("three groups") };
    assert_eq!((lb.name.as_str(), &lb.vifs), ("lb", &vec![name("b")]));
    let GroupStats { rules, vifs, .. } = web;
    assert_eq!(
        (&rules[..], &vifs[..]),
        (&["in tcp 22 from group:lb".to_owned()][..], &[name("a")][..])
    );

    assert_eq!(bench.set("b", "groups=lb,shut"), Response::Ok);
    bench.in_vain(b, &tcp(2, 1, [4000, 22], ACK), "b", "group_out");
    assert_eq!(bench.set("b", "groups=none"), Response::Ok);
    // The connection was allowed for a group that its opener has left.
    bench.in_vain(b, &tcp(2, 1, [4000, 22], ACK), "a", "group_in");
    bench.in_vain(a, &tcp(1, 2, [22, 4000], ACK), "a", "group_out");
    bench.in_vain(b, &tcp(2, 1, [4001, 22], SYN), "a", "group_in");
    let Response::Error { message, .. } = bench.set("b", "groups=nobody") else {
        panic!("there is no such group")
    };
    assert_eq!(message, "there is no group nobody");
    // A group is removed together with its members, not before them.
    let text = "[switch]\nworkers = 2\n[vif.a]\n[vif.c]\n[vif.b]\ngroups = [\"lb\"]\n".to_owned();
    let refused = bench.switch.handle(Request::Reload { text, extent: Extent::Whole });
    assert!(matches!(refused, Response::Error { .. }), "{refused:?}");
    bench.reload("[vif.a]\n[vif.b]\n[vif.c]\n");
    put(c, &tcp(3, 1, [4000, 22], SYN));
    assert_eq!(next(a), tcp(3, 1, [4000, 22], SYN));
    assert_eq!(bench.switch.stats().groups, []);
}

#[test]
fn whoever_takes_the_address_of_a_removed_guest_has_none_of_its_connections() {
    let rules = "rules = [{ direction = \"in\", from = \"group:lb\" }]";
    let vifs = "[vif.a]\ngroups = [\"web\"]\n[vif.b]\ngroups = [\"lb\"]\n[vif.c]\n";
    let bench = Bench::with(&format!("[group.lb]\n[group.web]\n{rules}\n{vifs}"));
    let (_a, mut a) = bench.guest("a", 1, 1);
    let (b, mut of_b) = bench.guest("b", 2, 1);
    let (_c, mut c) = bench.guest("c", 3, 1);
    let ([a], [c]) = (&mut a[..], &mut c[..]) else { panic!("a queue pair each") };
    let known = [udp(2, 1, [4000, 53]), tcp(2, 1, [4000, 22], SYN)];
    for frame in &known {
        put(&mut of_b[0], frame);
        assert_eq!(next(a), *frame);
    }
    drop((b, of_b));
    assert_eq!(bench.switch.handle(Request::VifDel { name: name("b") }), Response::Ok);
    for frame in [&known[0], &tcp(2, 1, [4000, 22], ACK)] {
        bench.in_vain(c, frame, "a", "group_in");
    }
}
