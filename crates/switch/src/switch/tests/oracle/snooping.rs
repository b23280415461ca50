//! The same messages of IGMP and MLD, and frames for groups, through weir's snooping and through the kernel's. After
//! each frame the same ports must have it, or the difference is one that docs/design/l2.md#0064 explains.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};

use weir_testing::multicast::*;

use super::*;

/// The ports: a multicast router, two guests whose address is fixed, and one whose address is not.
const NAMES: [&str; 4] = ["u", "a", "b", "c"];
const ROUTER: usize = 0;
const A: usize = 1;
const B: usize = 2;
const C: usize = 3;

const V4: [[u8; 4]; 4] = [
    [239, 1, 2, 3],
    // This group has the MAC address of the one before.
    [225, 129, 2, 3],
    [239, 9, 9, 9],
    // All stations of a link get this group.
    [224, 0, 0, 251],
];
const V6: [Ipv6Addr; 4] = [
    Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 0, 0x77),
    Ipv6Addr::new(0xff0e, 0, 0, 0, 0, 1, 2, 3),
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0xfb),
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 1),
];
/// The records of IGMPv3 and MLDv2 on which weir and the kernel agree, with the number of their
/// sources.
const RECORDS: [(u8, u16); 8] = [(1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1), (4, 0), (5, 1)];

/// Time after which the ports have answered a query that gives them a second.
const ANSWERED: Duration = Duration::from_millis(2100);

/// Kinds of frames, as far as weir differs from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A general query, or one of a group.
    Query,
    /// A report of IGMPv1, IGMPv2 or MLDv1.
    Report,
    /// A leave, a done, or a report of IGMPv3 or MLDv2.
    Change,
    Data(IpAddr),
    Damaged,
}

#[derive(Clone, Debug)]
struct Sent {
    from: usize,
    kind: Kind,
    frame: Vec<u8>,
}

type Ports = BTreeSet<usize>;

/// The differences, each with its place in docs/design/l2.md#0064.
const REPORTS_TO_ROUTERS: &str = "Who gets a report";
const GUESTS_QUERY: &str = "Routers";
const LINK_SCOPE: &str = "What is not known is flooded: link scope";
const NOT_REPORTED: &str = "What is not known is flooded: not reported";
const DAMAGED: &str = "Bounds: a damaged report";

/// A bridge of the kernel and a switch, with the same ports.
struct Both {
    kernel: Kernel<4>,
    bench: Bench,
    guests: Vec<(Guest, QueuePair)>,
    number: usize,
    compared: usize,
    explained: BTreeMap<&'static str, usize>,
}

impl Both {
    fn new() -> Self {
        let set_up = || {
            let slave = |name: &str, options: &str| {
                run(&format!("ip link set dev {name} type bridge_slave {options}"));
            };
            slave("u", "mcast_router 2");
            slave("a", "mcast_router 0 mcast_fast_leave on");
            slave("b", "mcast_router 0 mcast_fast_leave on");
            slave("c", "mcast_router 0");
        };
        let kernel = Kernel::start("mcast_snooping 1", NAMES, set_up);
        let mut config = "[network.tv]\nvlan = 20\nmulticast_snooping = true\n".to_owned();
        for name in NAMES {
            config += &format!("[vif.{name}]\nnetwork = \"tv\"\n");
            config += match name {
                "u" => "mac_check = false\nmulticast_router = true\n",
                "c" => "mac_check = false\n",
                _ => "",
            };
        }
        let bench = Bench::with(&config);
        let guests = (0..4).map(|port| {
            let (guest, mut pairs) = bench.guest(NAMES[port], port as u8 + 1, 1);
            (guest, pairs.remove(0))
        });
        let guests = guests.collect();
        Self { kernel, bench, guests, number: 0, compared: 0, explained: BTreeMap::new() }
    }

    /// As [`new`](Self::new), after a general query of each IP version that all ports had the time to answer.
    fn asked() -> Self {
        let mut both = Self::new();
        both.ask();
        std::thread::sleep(ANSWERED);
        both
    }

    fn ask(&mut self) {
        for frame in [query([192, 0, 2, 1], [0; 4]), mld_query(Ipv6Addr::UNSPECIFIED)] {
            self.pass(&Sent { from: ROUTER, kind: Kind::Query, frame });
        }
    }

    /// The ports that get a frame from the kernel, and from weir.
    fn deliver(&mut self, from: usize, frame: &[u8]) -> [Ports; 2] {
        self.number += 1;
        let mut last = last(self.number);
        last[..6].fill(0xff);
        last[6..12].copy_from_slice(&mac(from as u8 + 1));
        let others = || (0..4).filter(move |port| *port != from);
        let (mut by_kernel, mut by_weir) = (Ports::new(), Ports::new());
        self.kernel.send(from, &VnetHdr::default(), frame);
        self.kernel.send(from, &VnetHdr::default(), &last);
        for port in others() {
            self.kernel.receive(port, &last, |_, got| {
                // The bridge itself is a station too.
                if got[6..11] != mac(0)[..5] {
                    return;
                }
                assert_eq!(got, frame, "a frame that nobody sent");
                assert!(by_kernel.insert(port), "twice");
            });
        }
        for frame in [frame, &last] {
            let pair = &mut self.guests[from].1;
            eventually("room to send", || pair.send(frame, &Offload::NONE).is_ok());
            pair.flush();
        }
        for port in others() {
            let (pair, mut got) = (&mut self.guests[port].1, Vec::new());
            eventually("weir passes the last frame", || {
                while pair.recv_into(&mut got).is_some() {
                    if got == last {
                        return true;
                    }
                    assert_eq!(got, frame, "a frame that nobody sent");
                    assert!(by_weir.insert(port), "twice");
                }
                false
            });
        }
        [by_kernel, by_weir]
    }

    /// Passes a frame, and compares who gets it.
    fn pass(&mut self, sent: &Sent) {
        let Sent { from, kind, mut frame } = sent.clone();
        frame[6..12].copy_from_slice(&mac(from as u8 + 1));
        let [by_kernel, by_weir] = self.deliver(from, &frame);
        self.compared += 1;
        let without = |mut ports: Ports| {
            ports.remove(&from);
            ports
        };
        let all = || without((0..4).collect());
        let routers = || without([ROUTER].into());
        let explained = match kind {
            Kind::Query if from != ROUTER => Some((GUESTS_QUERY, Ports::new())),
            Kind::Damaged => Some((DAMAGED, routers())),
            Kind::Change if by_kernel == all() => Some((REPORTS_TO_ROUTERS, routers())),
            Kind::Data(IpAddr::V6(group)) if group.octets()[1] & 0xf <= 2 => {
                Some((LINK_SCOPE, all()))
            }
            // The kernel sends frames for a group that nobody has reported to routers.
            Kind::Data(group)
                if by_kernel == routers() && !self.by_kernel().iter().any(|it| it.0 == group) =>
            {
                Some((NOT_REPORTED, all()))
            }
            _ => None,
        };
        match explained {
            // Where no querier was heard, both flood.
            Some(_) if by_weir == by_kernel => {}
            Some((why, expected)) => {
                assert_eq!(by_weir, expected, "{why}: {sent:02x?}, by the kernel {by_kernel:?}");
                *self.explained.entry(why).or_default() += 1;
            }
            None => assert_eq!(by_weir, by_kernel, "by weir, by the kernel: {sent:02x?}"),
        }
    }

    /// The members of each group, as the kernel knows them.
    fn by_kernel(&self) -> BTreeSet<(IpAddr, usize)> {
        let net = format!("--net=/proc/{}/ns/net", self.kernel.namespace.0.id());
        let show = Command::new("nsenter").args([&net, "bridge", "-j", "mdb", "show"]).output();
        let shown: serde_json::Value = serde_json::from_slice(&show.unwrap().stdout).unwrap();
        let entries = shown[0]["mdb"].as_array().unwrap();
        let member = |entry: &serde_json::Value| {
            let group = entry["grp"].as_str().unwrap().parse().unwrap();
            let port = NAMES.iter().position(|name| entry["port"] == *name).unwrap();
            (group, port)
        };
        entries.iter().map(member).collect()
    }

    /// Compares the members of all groups but those of a link.
    fn members_are_the_same(&self) {
        let of_link = |group: &IpAddr| match group {
            IpAddr::V4(_) => false,
            IpAddr::V6(group) => group.octets()[1] & 0xf <= 2,
        };
        let multicast = self.bench.switch.stats().multicast;
        let members = multicast.iter().flat_map(|it| &it.members);
        let port = |name: &PortName| NAMES.iter().position(|it| *it == name.as_str()).unwrap();
        let by_weir: BTreeSet<_> = members.map(|it| (it.group, port(&it.port))).collect();
        let mut by_kernel = self.by_kernel();
        by_kernel.retain(|(group, _)| !of_link(group));
        assert_eq!(by_weir, by_kernel, "members by weir, by the kernel");
    }
}

fn sent(from: usize, kind: Kind, frame: Vec<u8>) -> Sent {
    Sent { from, kind, frame }
}

fn is_root() -> bool {
    weir_testing::is_root("TAPs on a bridge with snooping")
        && weir_testing::has("bridge", "iproute2")
}

#[test]
fn root_groups_pass_as_by_the_kernels_bridge_with_snooping() {
    if !is_root() {
        return;
    }
    let mut both = Both::new();
    // Before a querier is heard, both flood.
    let join = |from, group| sent(from, Kind::Report, v2_report(group));
    let sends = |from, group: [u8; 4]| sent(from, Kind::Data(group.into()), data(group));
    for it in [join(A, V4[0]), sends(ROUTER, V4[0]), sends(B, V4[2])] {
        both.pass(&it);
    }
    both.ask();
    std::thread::sleep(ANSWERED);
    // A sequence from a generator with a fixed start: xorshift64.
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut below = |bound: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % bound as u64) as usize
    };
    for step in 0..600 {
        // The others' leaves are only a reason to ask, so groups that they have joined stay registered.
        let from = if step < 300 { [A, B][below(2)] } else { below(4) };
        let (at, (kind, sources)) = (below(4), RECORDS[below(RECORDS.len())]);
        let (group, group6) = (V4[at], V6[at]);
        let (frame, kind) = match below(12) {
            0 => (v2_report(group), Kind::Report),
            // A report of IGMPv1.
            1 => (ipv4([10, 0, 0, 9], group, 2, &igmp(0x12, 0, &group)), Kind::Report),
            2 => (v2_leave(group), Kind::Change),
            3 => (v3_report(&[(2, 2, V4[2]), (kind, sources, group)]), Kind::Change),
            4 => (v3_report(&[(kind, sources, group)]), Kind::Change),
            5 => (mld_report(group6), Kind::Report),
            6 => (mld_done(group6), Kind::Change),
            7 => (mld2_report(kind, sources, group6), Kind::Change),
            8 | 9 => (ipv6(group6, None), Kind::Data(group6.into())),
            _ => (data(group), Kind::Data(group.into())),
        };
        both.pass(&Sent { from, kind, frame });
        if step % 20 == 0 {
            both.members_are_the_same();
        }
        // A port may send only a limited number of records in a second.
        std::thread::sleep(Duration::from_millis(2));
    }
    both.members_are_the_same();
    println!("{} comparisons, explained: {:?}", both.compared, both.explained);
    for why in [REPORTS_TO_ROUTERS, LINK_SCOPE, NOT_REPORTED] {
        assert!(both.explained.contains_key(why), "what does not differ needs no reason: {why}");
    }
}

#[test]
fn root_members_that_do_not_answer_the_router_end_as_in_the_kernels_bridge() {
    if !is_root() {
        return;
    }
    let mut both = Both::asked();
    let (group, group6) = (V4[0], V6[0]);
    for from in [B, C] {
        both.pass(&sent(from, Kind::Report, v2_report(group)));
        both.pass(&sent(from, Kind::Report, mld_report(group6)));
    }
    // C's leave is only a reason to ask.
    both.pass(&sent(C, Kind::Change, v2_leave(group)));
    both.pass(&sent(C, Kind::Change, mld_done(group6)));
    both.members_are_the_same();
    assert_eq!(both.by_kernel().len(), 4);
    both.pass(&sent(ROUTER, Kind::Query, query([192, 0, 2, 1], group)));
    both.pass(&sent(ROUTER, Kind::Query, mld_query(group6)));
    both.pass(&sent(B, Kind::Report, v2_report(group)));
    both.pass(&sent(B, Kind::Report, mld_report(group6)));
    // The router gives a second for answers, asks twice, and weir counts whole seconds.
    std::thread::sleep(Duration::from_millis(3100));
    both.members_are_the_same();
    assert_eq!(both.by_kernel().len(), 2);
    both.pass(&sent(ROUTER, Kind::Data(group.into()), data(group)));
    both.pass(&sent(ROUTER, Kind::Data(group6.into()), ipv6(group6, None)));
}

#[test]
fn root_what_a_guest_may_not_is_another_decision_than_the_kernels_bridge_has() {
    if !is_root() {
        return;
    }
    let mut both = Both::asked();
    both.pass(&sent(B, Kind::Query, query([10, 0, 0, 1], [0; 4])));
    both.pass(&sent(B, Kind::Query, mld_query(Ipv6Addr::UNSPECIFIED)));
    assert_eq!(both.explained, BTreeMap::from([(GUESTS_QUERY, 2)]));
    // The records ask for no source. The kernel takes them for a join, unless it keeps sources.
    for (kind, sources) in [(5, 0), (6, 1)] {
        both.pass(&sent(A, Kind::Change, v3_report(&[(kind, sources, V4[0])])));
        assert_eq!(both.by_kernel(), BTreeSet::from([(V4[0].into(), A)]));
        both.pass(&sent(A, Kind::Change, v2_leave(V4[0])));
        both.members_are_the_same();
    }
    // The kernel takes a message that it does not know for a frame of its group (RFC 4541 §2.1.1 3).
    both.pass(&sent(A, Kind::Report, v2_report(V4[0])));
    let mut unknown = ipv4([10, 0, 0, 9], V4[0], 2, &igmp(0x13, 0, &V4[0]));
    unknown[6..12].copy_from_slice(&mac(B as u8 + 1));
    assert_eq!(both.deliver(B, &unknown), [Ports::from([ROUTER, A]), Ports::from([ROUTER, A, C])]);
    both.pass(&sent(A, Kind::Change, v2_leave(V4[0])));
    let mut damaged = v2_report(V4[0]);
    damaged[14 + 24 + 2] ^= 1;
    both.pass(&sent(A, Kind::Report, v2_report(V4[2])));
    both.pass(&sent(B, Kind::Damaged, damaged));
    // Since then weir sends B the frames of all groups.
    let mut frame = data(V4[2]);
    frame[6..12].copy_from_slice(&mac(1));
    assert_eq!(both.deliver(ROUTER, &frame), [Ports::from([A]), Ports::from([A, B])]);
    both.members_are_the_same();
}
