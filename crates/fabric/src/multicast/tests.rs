use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use weir_testing::multicast::*;
use weir_wire::Sum;

use super::*;
use crate::{Fabric, MacCheck, PortConfig};

const QUERIER: [u8; 4] = [192, 0, 2, 1];
const GROUP: [u8; 4] = [239, 1, 2, 3];
/// A group with the same MAC address as [`GROUP`].
const ALIAS: [u8; 4] = [225, 129, 2, 3];

/// A switch with an uplink, two guests that are held to an address, and one that is not.
struct Bench {
    fabric: Fabric,
    ports: [PortId; 4],
    now: u32,
}

/// Room to list everything that there is.
const ENOUGH: usize = 100_000;
const UPLINK: usize = 0;
const A: usize = 1;
const B: usize = 2;
const BRIDGE: usize = 3;
/// The receivers of a flooded frame.
const ALL: Option<Vec<usize>> = None;

impl Bench {
    fn new() -> Self {
        let fabric = Fabric::new();
        fabric.snoop(Snooping::new([Vid::DEFAULT].into_iter()).unwrap());
        let guest = |last| PortConfig {
            mac_check: MacCheck::Pinned(Mac([2, 0, 0, 0, 0, last])),
            ..PortConfig::vif()
        };
        let bridge = PortConfig { mac_check: MacCheck::Off, ..PortConfig::vif() };
        let ports = [PortConfig::uplink(), guest(1), guest(2), bridge].map(|config| {
            let id = fabric.add_port(config).unwrap();
            fabric.set_active(id, true).unwrap();
            id
        });
        Self { fabric, ports, now: 1000 }
    }

    /// A bench in which all ports have been asked by the uplink's router, and have answered.
    fn asked() -> Self {
        let mut bench = Self::new();
        assert_eq!(bench.send(UPLINK, &query(QUERIER, [0; 4])), Ok(ALL), "a query is for all");
        assert_eq!(bench.send(UPLINK, &mld_query(Ipv6Addr::UNSPECIFIED)), Ok(ALL));
        bench.now += 2;
        bench
    }

    fn snooping(&self) -> &Snooping {
        self.fabric.snooping().unwrap()
    }

    /// Sends a frame in by a port, and returns who gets it.
    fn send(&self, from: usize, frame: &[u8]) -> Result<Option<Vec<usize>>, DropReason> {
        let view = self.fabric.view();
        let head = &frame[..frame.len().min(128)];
        let of = (self.ports[from], Vid::DEFAULT);
        let thought = self.snooping().would_judge(&view, of, frame, self.now);
        let judged = self.snooping().judge(&view, of, head, || frame, self.now);
        if !may_be_message(head) {
            assert_eq!(thought, judged, "the frame in thought");
        }
        let set = judged?;
        Ok(set.map(|set| (0..4).filter(|&i| set.contains(self.ports[i])).collect()))
    }

    /// The ports that get all groups of IPv4 although they have been asked.
    fn over(&self) -> Vec<PortId> {
        self.snooping().standings(self.now, ENOUGH)[0].over.clone()
    }

    fn members(&self, group: impl Into<IpAddr>) -> Vec<usize> {
        let group = group.into();
        let standings = self.snooping().standings(self.now, ENOUGH);
        let of = standings.iter().flat_map(|it| &it.members).filter(|it| it.group == group);
        of.map(|it| self.ports.iter().position(|id| *id == it.port).unwrap()).collect()
    }
}

#[test]
fn until_a_querier_has_asked_and_time_has_passed_everything_is_flooded() {
    let mut bench = Bench::new();
    assert_eq!(bench.send(A, &v2_report(GROUP)), Ok(ALL), "a report before any querier");
    assert_eq!(bench.send(UPLINK, &data(GROUP)), Ok(ALL));
    assert_eq!(bench.members(GROUP), [A], "and yet it is noted");
    assert_eq!(bench.send(UPLINK, &query(QUERIER, [0; 4])), Ok(ALL));
    let everybody = Ok(Some(vec![A, B, BRIDGE]));
    assert_eq!(bench.send(UPLINK, &data(GROUP)), everybody, "nobody has had the time to answer");
    bench.now += 2;
    assert_eq!(bench.send(UPLINK, &data(GROUP)), Ok(Some(vec![A])));
    assert_eq!(bench.send(B, &data(GROUP)), Ok(Some(vec![UPLINK, A])));
    // A report by IGMP counts for IPv4 only.
    assert_eq!(bench.send(A, &mld_report("ff05::77".parse().unwrap())), Ok(ALL));
    bench.now += MULTICAST_QUERIER_SECS;
    assert_eq!(bench.send(UPLINK, &data(GROUP)), Ok(ALL), "the querier is gone");
}

#[test]
fn reports_go_to_routers_only() {
    let bench = Bench::asked();
    for report in [v2_report(GROUP), v3_report(&[(4, 0, GROUP)]), v2_leave(GROUP)] {
        assert_eq!(bench.send(A, &report), Ok(Some(vec![UPLINK])));
        assert_eq!(bench.send(UPLINK, &report), Ok(Some(vec![])));
    }
    assert_eq!(bench.send(A, &mld_report("ff05::77".parse().unwrap())), Ok(Some(vec![UPLINK])));
    assert_eq!(
        bench.send(A, &mld2_report(4, 0, "ff05::77".parse().unwrap())),
        Ok(Some(vec![UPLINK]))
    );
}

#[test]
fn rfc_4541_2_1_1_unknown_messages_are_flooded_and_damaged_ones_teach_nothing() {
    let bench = Bench::asked();
    bench.send(A, &v2_report(GROUP)).unwrap();
    for (from, kind) in [(B, 0x13), (B, 0x30), (UPLINK, 0x99)] {
        let unknown = ipv4([10, 0, 0, 9], GROUP, 2, &igmp(kind, 0, &GROUP));
        assert_eq!(bench.send(from, &unknown), Ok(ALL), "type {kind:#x}");
    }
    let querier = || bench.snooping().standings(bench.now, ENOUGH)[0].querier.map(|it| it.0);
    // The checksum of the header of IPv4 does not hold, and that of the message does.
    let of_header = |mut frame: Vec<u8>| {
        frame[14 + 4] ^= 1;
        frame
    };
    let group = [239, 9, 9, 9];
    assert_eq!(bench.send(B, &of_header(v2_report(group))), Ok(Some(vec![UPLINK])));
    assert!(bench.members(group).is_empty());
    bench.send(A, &of_header(v2_leave(GROUP))).unwrap();
    assert_eq!(bench.members(GROUP), [A]);
    bench.send(UPLINK, &of_header(query([10, 0, 0, 1], [0; 4]))).unwrap();
    assert_eq!(querier(), Some(QUERIER.into()));
    // A guest's goes nowhere: other switches look at less. Nor does a part of one.
    let mut later = query([10, 0, 0, 1], [0; 4]);
    later[14 + 7] = 1;
    for asks in [of_header(query([10, 0, 0, 1], [0; 4])), later] {
        assert_eq!(bench.send(A, &asks), Err(DropReason::MulticastQuery));
    }
}

#[test]
fn rfc_3810_5_1_14_a_query_that_is_not_of_the_link_asks_nobody() {
    let mut bench = Bench::new();
    let mut routed = mld_query(Ipv6Addr::UNSPECIFIED);
    // A global address with the same sum.
    routed[14 + 8..14 + 12].copy_from_slice(&[0x20, 0x01, 0xde, 0x7f]);
    bench.send(UPLINK, &routed).unwrap();
    assert_eq!(bench.send(A, &routed), Err(DropReason::MulticastQuery));
    bench.now += 2;
    assert_eq!(bench.snooping().standings(bench.now, ENOUGH)[1].querier, None);
    assert_eq!(bench.send(UPLINK, &ipv6("ff05::77".parse().unwrap(), None)), Ok(ALL));
}

#[test]
fn what_every_station_may_need_is_flooded_whatever_is_reported() {
    let bench = Bench::asked();
    for group in [[224, 0, 0, 1], [224, 0, 0, 251], [224, 0, 0, 5]] {
        bench.send(A, &v2_report(group)).unwrap();
        assert_eq!(bench.send(UPLINK, &data(group)), Ok(ALL), "{group:?}");
        assert!(bench.members(Ipv4Addr::from(group)).is_empty());
    }
    for group in ["ff02::1", "ff02::1:ff00:1", "ff02::fb", "ff12::5", "ff01::1"] {
        let group: Ipv6Addr = group.parse().unwrap();
        bench.send(A, &mld_report(group)).unwrap();
        assert_eq!(bench.send(UPLINK, &ipv6(group, None)), Ok(ALL), "{group}");
        assert!(bench.members(group).is_empty());
    }
    assert_eq!(bench.send(UPLINK, &data([239, 9, 9, 9])), Ok(ALL), "nobody has reported it");
    bench.send(A, &v2_report(GROUP)).unwrap();
    assert_eq!(bench.send(UPLINK, &data(ALIAS)), Ok(ALL), "another group of the same address");
    let mut other_mac = data(GROUP);
    other_mac[5] ^= 1;
    assert_eq!(bench.send(UPLINK, &other_mac), Ok(ALL));
    let mut no_ip = data(GROUP);
    no_ip[12..14].copy_from_slice(&[0x88, 0xb5]);
    assert_eq!(bench.send(UPLINK, &no_ip), Ok(ALL));
    assert_eq!(bench.send(UPLINK, &[1, 0, 0x5e]), Ok(ALL), "hardly a frame");
}

#[test]
fn a_leave_ends_a_membership_at_once_where_one_station_can_be() {
    let mut bench = Bench::asked();
    for port in [A, B, BRIDGE] {
        bench.send(port, &v2_report(GROUP)).unwrap();
    }
    bench.send(A, &v2_leave(GROUP)).unwrap();
    bench.send(BRIDGE, &v2_leave(GROUP)).unwrap();
    assert_eq!(bench.send(UPLINK, &data(GROUP)), Ok(Some(vec![B, BRIDGE])));
    // The router asks who is left in the group; B answers.
    bench.send(UPLINK, &query(QUERIER, GROUP)).unwrap();
    bench.now += 1;
    bench.send(B, &v2_report(GROUP)).unwrap();
    bench.now += 2;
    assert_eq!(bench.send(UPLINK, &data(GROUP)), Ok(Some(vec![B])));
    bench.send(B, &v3_report(&[(3, 0, GROUP)])).unwrap();
    assert_eq!(bench.send(UPLINK, &data(GROUP)), Ok(ALL), "nobody is left: not registered");
    let group: Ipv6Addr = "ff05::77".parse().unwrap();
    bench.send(A, &mld_report(group)).unwrap();
    bench.send(B, &mld_report(group)).unwrap();
    bench.send(A, &mld_done(group)).unwrap();
    assert_eq!(bench.send(UPLINK, &ipv6(group, None)), Ok(Some(vec![B])));
    bench.send(B, &mld2_report(3, 0, group)).unwrap();
    assert!(bench.members(group).is_empty());
}

#[test]
fn records_mean_what_rfc_3376_says() {
    // Type, sources, and whether the record joins and leaves the group.
    let cases = [
        (1, 0, false, true),
        (1, 1, true, false),
        (2, 0, true, false),
        (2, 2, true, false),
        (3, 0, false, true),
        (3, 1, true, false),
        (4, 0, true, false),
        (4, 1, true, false),
        (5, 1, true, false),
        (5, 0, false, false),
        (6, 1, false, false),
        (7, 1, false, false),
    ];
    for (kind, sources, joins, leaves) in cases {
        let bench = Bench::asked();
        // A record behind another one.
        let report = v3_report(&[(4, 3, [239, 7, 7, 7]), (kind, sources, GROUP)]);
        bench.send(A, &report).unwrap();
        assert_eq!(bench.members(GROUP).len(), usize::from(joins), "{kind} with {sources}");
        assert_eq!(bench.members([239, 7, 7, 7]), [A]);
        bench.send(A, &v2_report(GROUP)).unwrap();
        bench.send(A, &report).unwrap();
        assert_eq!(bench.members(GROUP).len(), usize::from(!leaves), "{kind} with {sources}");
    }
}

#[test]
fn a_membership_without_reports_ends() {
    let mut bench = Bench::asked();
    bench.send(A, &v2_report(GROUP)).unwrap();
    bench.send(B, &v2_report([239, 9, 9, 9])).unwrap();
    bench.now += MULTICAST_MEMBER_SECS - 1;
    bench.send(UPLINK, &query(QUERIER, [0; 4])).unwrap();
    assert_eq!(bench.send(UPLINK, &data(GROUP)), Ok(Some(vec![A])));
    bench.send(B, &v2_report([239, 9, 9, 9])).unwrap();
    bench.now += 1;
    assert!(bench.members(GROUP).is_empty());
    assert_eq!(bench.send(UPLINK, &data(GROUP)), Ok(ALL));
    assert_eq!(bench.send(UPLINK, &data([239, 9, 9, 9])), Ok(Some(vec![B])));
}

#[test]
fn a_guests_query_is_dropped_and_a_routers_counts() {
    let bench = Bench::asked();
    for forged in [query([10, 0, 0, 1], [0; 4]), query([10, 0, 0, 1], GROUP)] {
        assert_eq!(bench.send(A, &forged), Err(DropReason::MulticastQuery));
    }
    let forged = mld_query(Ipv6Addr::UNSPECIFIED);
    assert_eq!(bench.send(BRIDGE, &forged), Err(DropReason::MulticastQuery));
    let querier = |bench: &Bench| bench.snooping().standings(bench.now, ENOUGH)[0].querier;
    assert_eq!(querier(&bench), Some((QUERIER.into(), bench.ports[UPLINK])));
    // A guest that may be a router gets reports and all groups.
    let config =
        PortConfig { multicast_router: true, ..bench.fabric.port_config(bench.ports[B]).unwrap() };
    bench.fabric.update_port(bench.ports[B], config).unwrap();
    assert_eq!(bench.send(A, &v2_report(GROUP)), Ok(Some(vec![UPLINK, B])));
    assert_eq!(bench.send(UPLINK, &data(GROUP)), Ok(Some(vec![A, B])));
    // The guest's address is higher than the querier's, then lower.
    assert_eq!(bench.send(B, &query([192, 0, 2, 9], [0; 4])), Ok(ALL));
    assert_eq!(querier(&bench), Some((QUERIER.into(), bench.ports[UPLINK])));
    assert_eq!(bench.send(B, &query([10, 0, 0, 2], [0; 4])), Ok(ALL));
    assert_eq!(querier(&bench), Some(([10, 0, 0, 2].into(), bench.ports[B])));
    assert_eq!(bench.send(UPLINK, &query([0; 4], [0; 4])), Ok(ALL), "it stands for another one");
    assert_eq!(querier(&bench), Some(([10, 0, 0, 2].into(), bench.ports[B])));
}

#[test]
fn who_has_too_many_groups_gets_all_and_changes_nothing_for_others() {
    let mut bench = Bench::asked();
    bench.send(B, &v2_report(GROUP)).unwrap();
    let group = |number: u32| Ipv4Addr::from(0xef00_0000 + number).octets();
    for number in 0..100_000 {
        bench.send(A, &v2_report(group(number))).unwrap();
        // Each second has its share of the records.
        bench.now += u32::from(number % 1000 == 999 && number < 10_000);
    }
    let standings = bench.snooping().standings(bench.now, ENOUGH);
    let of_a = standings[0].members.iter().filter(|it| it.port == bench.ports[A]).count();
    assert_eq!(of_a, MULTICAST_GROUPS_PER_VIF_MAX as usize);
    assert_eq!(bench.send(UPLINK, &data(GROUP)), Ok(Some(vec![A, B])), "A gets all");
    assert_eq!(bench.over(), [bench.ports[A]]);
    bench.now += MULTICAST_MEMBER_SECS - 1;
    bench.send(UPLINK, &query(QUERIER, [0; 4])).unwrap();
    bench.send(B, &v2_report(GROUP)).unwrap();
    bench.now += 2;
    assert_eq!(bench.send(UPLINK, &data(GROUP)), Ok(Some(vec![B])), "until it reports fewer");
    bench.send(A, &v2_report(GROUP)).unwrap();
    assert_eq!(bench.members(GROUP), [A, B], "places are free again");
}

#[test]
fn an_answer_lists_its_share_and_counts_what_it_leaves_out() {
    let mut bench = Bench::asked();
    for number in 0..50 {
        for port in [A, B] {
            bench.send(port, &v2_report([239, 1, 1, number])).unwrap();
        }
    }
    bench.send(B, &mld_report("ff05::77".parse().unwrap())).unwrap();
    let listed = |bench: &Bench, most| bench.snooping().standings(bench.now, most);
    let all = listed(&bench, ENOUGH);
    assert_eq!((all[0].members.len(), all[0].unshown), (100, 0));
    let some = listed(&bench, 80);
    assert_eq!((some[0].members.len(), some[0].over.len(), some[0].unshown), (20, 0, 80));
    assert!(some[0].members.iter().all(|it| all[0].members.contains(it)));
    assert!(some[0].members.is_sorted_by_key(|it| (it.group, it.port)));
    assert_eq!((some[1].members.len(), some[1].unshown), (1, 0), "IPv6 has a share of its own");

    // Both get all groups, and one of them is listed.
    for port in [A, B] {
        (0..=MULTICAST_RECORDS_PER_S).for_each(|_| {
            bench.send(port, &v2_report(GROUP)).unwrap();
        });
    }
    let one = listed(&bench, 1);
    assert_eq!((one[0].members.len(), one[0].over.len(), one[0].unshown), (1, 1, 102));
    // A membership that has ended is not listed, and takes up room no longer than until the next query.
    bench.now += MULTICAST_MEMBER_SECS;
    assert_eq!(listed(&bench, ENOUGH)[0].members, []);
    bench.send(UPLINK, &query(QUERIER, [0; 4])).unwrap();
    let ended = listed(&bench, 4);
    assert_eq!((ended[0].members.len(), ended[0].over.len(), ended[0].unshown), (0, 0, 0));
}

#[test]
fn reports_beyond_a_seconds_share_are_not_noted() {
    let mut bench = Bench::asked();
    bench.send(B, &v2_report(GROUP)).unwrap();
    for _ in 0..=MULTICAST_RECORDS_PER_S {
        bench.send(A, &v2_report([239, 9, 9, 9])).unwrap();
    }
    assert_eq!(bench.send(UPLINK, &data(GROUP)), Ok(Some(vec![A, B])), "A gets all");
    bench.send(A, &v2_leave([239, 9, 9, 9])).unwrap();
    assert_eq!(bench.members([239, 9, 9, 9]), [A], "not this second");
    bench.now += 1;
    bench.send(A, &v2_leave([239, 9, 9, 9])).unwrap();
    assert!(bench.members([239, 9, 9, 9]).is_empty());
}

#[test]
fn a_report_that_is_not_readable_gives_its_port_all_groups() {
    let whole = v3_report(&[(4, 1, GROUP), (4, 1, [239, 9, 9, 9])]);
    let cut = whole[..whole.len() - 4].to_vec();
    let mut damaged = whole.clone();
    *damaged.last_mut().unwrap() ^= 1;
    let mut fragment = whole.clone();
    fragment[20] |= 0x20;
    // The report claims one record more than it has, and its checksum is right.
    let mut more = whole;
    more[14 + 24 + 7] = 3;
    more[14 + 24 + 2..14 + 24 + 4].fill(0);
    let message = summed(more[14 + 24..].to_vec(), Sum::new());
    more[14 + 24..].copy_from_slice(&message);
    for report in [cut, damaged, fragment, more] {
        let bench = Bench::asked();
        bench.send(B, &v2_report([239, 5, 5, 5])).unwrap();
        assert_eq!(bench.send(A, &report), Ok(Some(vec![UPLINK])));
        assert!(bench.members(GROUP).is_empty());
        assert_eq!(bench.send(UPLINK, &data([239, 5, 5, 5])), Ok(Some(vec![A, B])));
    }
    let mut routed = mld_report("ff05::77".parse().unwrap());
    routed[14 + 7] = 64;
    let bench = Bench::asked();
    bench.send(A, &routed).unwrap();
    assert!(
        bench.members("ff05::77".parse::<Ipv6Addr>().unwrap()).is_empty(),
        "a router has forwarded it"
    );
}

#[test]
fn a_port_whose_station_changes_is_asked_again() {
    let bench = Bench::asked();
    bench.send(A, &v2_report(GROUP)).unwrap();
    bench.send(B, &v2_report(GROUP)).unwrap();
    assert_eq!(bench.send(UPLINK, &data(GROUP)), Ok(Some(vec![A, B])));
    bench.fabric.set_active(bench.ports[A], false).unwrap();
    assert_eq!(bench.members(GROUP), [B]);
    bench.fabric.set_active(bench.ports[A], true).unwrap();
    assert_eq!(bench.send(UPLINK, &data(GROUP)), Ok(Some(vec![A, B])), "nobody has asked A");
}

#[test]
fn weir_may_ask_itself() {
    let mut bench = Bench::new();
    let own = bench.ports[BRIDGE];
    let from = IpAddr::from([10, 0, 0, 1]);
    let asked = [bench.ports[A]].into_iter();
    bench.snooping().asks((own, Vid::DEFAULT), from, asked, 1, bench.now);
    let hears = |port: usize| {
        let of = (bench.ports[port], Vid::DEFAULT);
        bench.snooping().hears_other(of, false, bench.now)
    };
    assert_eq!([hears(BRIDGE), hears(A)], [false, true]);
    bench.send(B, &v2_report(GROUP)).unwrap();
    bench.now += 2;
    // A was asked, and has no group; the bridge was not asked.
    assert_eq!(bench.send(UPLINK, &data(GROUP)), Ok(Some(vec![B, BRIDGE])));
}

proptest! {
    #[test]
    fn any_bytes_are_read(v6: bool, kind: u8, bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let bench = Bench::asked();
        let _ = bench.send(A, &bytes);
        let frame = match v6 {
            false => ipv4([10, 0, 0, 9], GROUP, 2, &igmp(kind, 0, &bytes)),
            true => mld("ff05::77".parse().unwrap(), kind, 0, &bytes),
        };
        let _ = bench.send(A, &frame);
        let standings = bench.snooping().standings(bench.now, ENOUGH);
        prop_assert!(standings.iter().all(|it| it.members.len() <= 64 && it.unshown == 0));
        let cut = bytes.len().min(frame.len());
        let _ = bench.send(B, &frame[..frame.len() - cut]);
    }
}
