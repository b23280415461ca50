//! Security groups between guests of two switches, which are hosts of an overlay on loopback addresses.

use super::*;

/// Tables of host `n` of a test, besides those of its groups and interfaces.
fn overlay(test: u8, n: u8, gbp: bool) -> String {
    let other = 3 - n;
    format!(
        "[overlay]\nlocal = \"127.77.{test}.{n}\"\ngbp = {gbp}\n\
         [network.blue]\nvni = 100\npeers = [\"127.77.{test}.{other}\"]\n"
    )
}

fn groups(rules: &str, ids: &str) -> String {
    format!(
        "[group.lb]\n[group.ops]\n[group.web]\ndefault_out = \"deny\"\nrules = [{rules}]\n\
         [group-ids]\n{ids}\n"
    )
}

const FROM_LB: &str =
    "{ direction = \"in\", protocol = \"tcp\", ports = \"80\", from = \"group:lb\" }";
const FROM_OPS: &str = "{ direction = \"in\", protocol = \"tcp\", from = \"group:ops\" }";
const IDS: &str = "17 = [\"lb\"]\n18 = [\"lb\", \"ops\"]\n19 = [\"ops\"]";
const SENDERS: &str = "[vif.a]\nnetwork = \"blue\"\ngroups = [\"lb\"]\n\
    [vif.b]\nnetwork = \"blue\"\n[vif.d]\nnetwork = \"blue\"\ngroups = [\"ops\", \"lb\"]\n";
const RECEIVER: &str = "[vif.c]\nnetwork = \"blue\"\ngroups = [\"web\"]\n";

/// Lets the switch of `by`'s guest learn that this station is behind the other host.
fn is_heard(from: &mut QueuePair, number: u8, by: &mut QueuePair) {
    let hello = [&[0xff; 6][..], &mac(number), &[8, 6], &[0; 28]].concat();
    put(from, &hello);
    while super::next(by)[6..12] != mac(number) {}
}

/// The next frame that is no broadcast.
fn next(pair: &mut QueuePair) -> Vec<u8> {
    loop {
        let frame = super::next(pair);
        if frame[0] != 0xff {
            return frame;
        }
    }
}

#[test]
fn a_rule_from_a_group_holds_for_guests_of_other_hosts() {
    let one = Bench::with(&(overlay(1, 1, true) + &groups("", IDS) + SENDERS));
    let two = Bench::with(&(overlay(1, 2, true) + &groups(FROM_LB, IDS) + RECEIVER));
    let (_a, mut a) = one.guest("a", 1, 1);
    let (_b, mut b) = one.guest("b", 2, 1);
    let (_d, mut d) = one.guest("d", 4, 1);
    let (_c, mut c) = two.guest("c", 3, 1);
    let ([a], [b], [c], [d]) = (&mut a[..], &mut b[..], &mut c[..], &mut d[..]) else {
        panic!("a queue pair each")
    };
    for pair in [&mut *a, b, d] {
        is_heard(c, 3, pair);
    }
    for (pair, number) in [(&mut *a, 1), (b, 2), (d, 4)] {
        is_heard(pair, number, c);
    }
    let in_vain = |pair: &mut QueuePair, frame: &[u8]| {
        let before = two.refused("c", "group_in");
        put(pair, frame);
        eventually("it is refused", || two.refused("c", "group_in") == before + 1);
    };
    // The three senders: one in no group, one in the group, and one whose set has the group.
    in_vain(b, &tcp(2, 3, [5000, 80], SYN));
    in_vain(a, &tcp(1, 3, [5000, 81], SYN));
    for (pair, number) in [(&mut *a, 1), (d, 4)] {
        put(pair, &tcp(number, 3, [5000, 80], SYN));
        assert_eq!(next(c), tcp(number, 3, [5000, 80], SYN));
        put(c, &tcp(3, number, [80, 5000], SYN | ACK));
        assert_eq!(next(pair), tcp(3, number, [80, 5000], SYN | ACK));
        put(pair, &tcp(number, 3, [5000, 80], ACK));
        assert_eq!(next(c), tcp(number, 3, [5000, 80], ACK));
    }
    two.in_vain(c, &tcp(3, 1, [5000, 80], SYN), "c", "group_out");

    // New rules apply from the next frame of the other end on. Until then answers pass.
    let reload = |rules: &str, ids: &str| {
        two.reload(&(overlay(1, 2, true) + &groups(rules, ids) + RECEIVER));
    };
    reload(FROM_OPS, IDS);
    put(c, &tcp(3, 1, [80, 5000], ACK));
    assert_eq!(next(a), tcp(3, 1, [80, 5000], ACK));
    in_vain(a, &tcp(1, 3, [5000, 80], ACK));
    two.in_vain(c, &tcp(3, 1, [80, 5000], ACK), "c", "group_out");
    put(c, &tcp(3, 4, [80, 5000], ACK));
    assert_eq!(next(d), tcp(3, 4, [80, 5000], ACK));
    put(d, &tcp(4, 3, [5000, 80], ACK));
    assert_eq!(next(c), tcp(4, 3, [5000, 80], ACK));

    // An ID that is not known here is no group. So is a set that has no ID at the sender.
    reload(FROM_LB, "17 = [\"lb\"]");
    in_vain(d, &tcp(4, 3, [5001, 80], SYN));
    put(a, &tcp(1, 3, [5001, 80], SYN));
    assert_eq!(next(c), tcp(1, 3, [5001, 80], SYN));
    one.reload(&(overlay(1, 1, true) + &groups("", "19 = [\"ops\"]") + SENDERS));
    in_vain(a, &tcp(1, 3, [5002, 80], SYN));
    assert_eq!(two.refused("overlay", "bad_encapsulation"), 0);
}

#[test]
fn a_guest_of_another_host_that_leaves_a_group_ends_the_connections_allowed_for_it() {
    let one = Bench::with(&(overlay(6, 1, true) + &groups("", IDS) + SENDERS));
    let two = Bench::with(&(overlay(6, 2, true) + &groups(FROM_LB, IDS) + RECEIVER));
    let (_a, mut a) = one.guest("a", 1, 1);
    let (_d, mut d) = one.guest("d", 4, 1);
    let (_c, mut c) = two.guest("c", 3, 1);
    let ([a], [d], [c]) = (&mut a[..], &mut d[..], &mut c[..]) else { panic!("a queue pair each") };
    is_heard(c, 3, a);
    let ports = [5000, 80];
    let (opens, data) = (|n| tcp(n, 3, ports, SYN), |n| tcp(n, 3, ports, ACK));
    let answers = |n, flags| tcp(3, n, [80, 5000], flags);
    for (pair, number) in [(&mut *a, 1), (&mut *d, 4)] {
        is_heard(pair, number, c);
        put(pair, &opens(number));
        assert_eq!(next(c), opens(number));
        put(c, &answers(number, SYN | ACK));
        assert_eq!(next(pair), answers(number, SYN | ACK));
        put(pair, &data(number));
        assert_eq!(next(c), data(number));
    }
    // One interface leaves the group; the other changes its groups and stays in this group.
    let moved = SENDERS.replacen("groups = [\"lb\"]\n", "groups = [\"ops\"]\n", 1);
    let moved = moved.replacen("[\"ops\", \"lb\"]", "[\"lb\"]", 1);
    one.reload(&(overlay(6, 1, true) + &groups("", IDS) + &moved));
    let before = two.refused("c", "group_in");
    put(a, &data(1));
    eventually("it is refused", || two.refused("c", "group_in") == before + 1);
    two.in_vain(c, &answers(1, ACK), "c", "group_out");
    for _ in 0..3 {
        put(d, &data(4));
        assert_eq!(next(c), data(4));
        put(c, &answers(4, ACK));
        assert_eq!(next(d), answers(4, ACK));
    }
    assert_eq!(two.refused("c", "group_in"), before + 1);
}

#[test]
fn a_rule_to_a_group_means_no_guest_of_another_host_and_whoever_asks_is_told() {
    let to_lb = "{ direction = \"out\", protocol = \"tcp\", to = \"group:lb\" }";
    let by_prefix = format!(
        "{to_lb}, {{ direction = \"out\", ports = 81, protocol = \"tcp\", to = \"10.0.0.1\" }}"
    );
    let one = Bench::with(&(overlay(16, 1, true) + &groups("", IDS) + SENDERS));
    let here = "[vif.e]\nnetwork = \"blue\"\ngroups = [\"lb\"]\n";
    let two = Bench::with(&(overlay(16, 2, true) + &groups(&by_prefix, IDS) + RECEIVER + here));
    let (_a, mut a) = one.guest("a", 1, 1);
    let (_c, mut c) = two.guest("c", 3, 1);
    let (_e, mut e) = two.guest("e", 5, 1);
    let ([a], [c], [e]) = (&mut a[..], &mut c[..], &mut e[..]) else { panic!("a queue pair each") };
    is_heard(c, 3, a);
    is_heard(a, 1, c);
    is_heard(e, 5, c);
    // Guest 1 is in the group: its earlier frame carried the mark. Its host now sends no mark.
    let opens = tcp(3, 1, [5000, 80], SYN);
    two.in_vain(c, &opens, "c", "group_out");
    let said = two.says("c", &opens);
    assert!(said[0].contains("and no guest of another host"), "{said:?}");
    assert_eq!(two.explain("c").groups.unwrap().to_groups_here, ["web".parse().unwrap()]);
    // A guest of this switch is found by its group, and the guest of the other host by its address. The inbound rules
    // of both apply.
    two.in_vain(c, &tcp(3, 5, [5000, 80], SYN), "e", "group_in");
    let before = one.refused("a", "group_in");
    put(c, &tcp(3, 1, [5000, 81], SYN));
    eventually("it is refused there", || one.refused("a", "group_in") == before + 1);
}

#[test]
fn an_id_that_means_other_groups_on_two_hosts_is_no_group_and_is_shown() {
    let one = Bench::with(&(overlay(5, 1, true) + &groups("", IDS) + SENDERS));
    // The groups of 17 and 19 have changed places.
    let ids = "19 = [\"lb\"]\n18 = [\"ops\", \"lb\"]\n17 = [\"ops\"]";
    let tables = |ids| overlay(5, 2, true) + &groups(FROM_LB, ids) + RECEIVER;
    let two = Bench::with(&tables(ids));
    let (_a, mut a) = one.guest("a", 1, 1);
    let (_d, mut d) = one.guest("d", 4, 1);
    let (_c, mut c) = two.guest("c", 3, 1);
    let ([a], [d], [c]) = (&mut a[..], &mut d[..], &mut c[..]) else { panic!("a queue pair each") };
    is_heard(c, 3, a);
    is_heard(a, 1, c);
    let disputed =
        |bench: &Bench| match bench.switch.handle(Request::VifExplain { name: name("overlay") }) {
            Response::OverlayExplained { explanation } => {
                explanation.disputed().into_values().collect::<Vec<_>>()
            }
            other => panic!("{other:?}"),
        };
    let say = |a: &mut QueuePair, c: &mut QueuePair| {
        put(a, &[&mac(3)[..], &mac(1), &[8, 6], &[0; 28]].concat());
        put(c, &[&mac(1)[..], &mac(3), &[8, 6], &[0; 28]].concat());
    };
    eventually("both hosts know of it", || {
        say(a, c);
        [&one, &two].map(disputed) == [[[17, 19]], [[17, 19]]]
    });
    let mut lines = Vec::new();
    eventually("the log may have a line", || {
        lines = logged(|| two.switch.log_refusals());
        !lines.is_empty()
    });
    assert!(lines.len() == 1 && lines[0].contains("host=127.77.5.1 ids=[17, 19]"), "{lines:?}");
    assert_eq!(logged(|| two.switch.log_refusals()).len(), 0, "said once");
    two.in_vain(a, &tcp(1, 3, [5000, 80], SYN), "c", "group_in");
    put(d, &tcp(4, 3, [5000, 80], SYN));
    while next(c) != tcp(4, 3, [5000, 80], SYN) {}
    assert_eq!(one.explain("a").groups.unwrap().id, Some(17));

    two.reload(&tables(IDS));
    assert!(disputed(&two).is_empty(), "what the other host has said is right now");
    put(a, &tcp(1, 3, [5000, 80], SYN));
    while next(c) != tcp(1, 3, [5000, 80], SYN) {}
    eventually("the other host hears of it", || {
        say(a, c);
        disputed(&one).is_empty()
    });
}

#[test]
fn hosts_without_gbp_on_both_ends_know_no_groups() {
    for (test, gbp, counted_at, reason) in [
        (2, [true, false], "overlay", "bad_encapsulation"),
        (3, [false, true], "c", "group_in"),
        (4, [false, false], "c", "group_in"),
    ] {
        let one = Bench::with(&(overlay(test, 1, gbp[0]) + &groups("", IDS) + SENDERS));
        let two = Bench::with(&(overlay(test, 2, gbp[1]) + &groups(FROM_LB, IDS) + RECEIVER));
        let (_a, mut a) = one.guest("a", 1, 1);
        let (_c, mut c) = two.guest("c", 3, 1);
        let ([a], [c]) = (&mut a[..], &mut c[..]) else { panic!("a queue pair each") };
        is_heard(c, 3, a);
        let before = two.refused(counted_at, reason);
        put(a, &tcp(1, 3, [5000, 80], SYN));
        eventually("it is refused", || two.refused(counted_at, reason) == before + 1);
    }
}
