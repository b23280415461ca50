use weir_limits::{ANNOUNCED_VLANS_MAX, FDB_AGE_SECS, FDB_PER_VIF_MAX};
use weir_wire::Tci;

use super::*;
use crate::fdb::Learned;
use crate::{DropReason, EgressTag, Forward, FrameKey, MacCheck, Vid, VlanMode, VlanSet};

const A: Mac = Mac([2, 0, 0, 0, 0, 0xa]);
const B: Mac = Mac([2, 0, 0, 0, 0, 0xb]);
const C: Mac = Mac([2, 0, 0, 0, 0, 0xc]);

fn frame(src: Mac, dst: Mac) -> FrameKey {
    FrameKey { src, dst, tag: None }
}

fn vid(number: u16) -> Vid {
    Vid::new(number).unwrap()
}

fn add(fabric: &Fabric, config: PortConfig) -> PortId {
    let port = fabric.add_port(config).unwrap();
    fabric.set_active(port, true).unwrap();
    port
}

fn access(number: u16) -> PortConfig {
    PortConfig { vlan: VlanMode::Access(vid(number)), ..PortConfig::vif() }
}

fn pinned(mac: Mac) -> PortConfig {
    PortConfig { mac_check: MacCheck::Pinned(mac), ..PortConfig::vif() }
}

fn forward(fabric: &Fabric, ingress: PortId, frame: FrameKey) -> Result<Forward, DropReason> {
    fabric.view().forward(ingress, &frame, 0)
}

/// A view that has looked at the ports.
fn looked(fabric: &Fabric) -> View<'_> {
    let view = fabric.view();
    view.is_isolated(PortId::new(0).unwrap());
    view
}

fn flood(fabric: &Fabric, ingress: PortId, number: u16) -> Vec<PortId> {
    fabric.view().flood_ports(ingress, vid(number), Mac::BROADCAST).collect()
}

const FLOOD: Result<Forward, DropReason> = Ok(Forward::Flood { vid: Vid::DEFAULT });

fn unicast(port: PortId) -> Result<Forward, DropReason> {
    Ok(Forward::Unicast { port, vid: Vid::DEFAULT })
}

/// Two guests and an uplink with the default settings; a LAN must need no more.
struct Lan {
    fabric: Fabric,
    a: PortId,
    b: PortId,
    uplink: PortId,
}

fn lan() -> Lan {
    let fabric = Fabric::new();
    let a = add(&fabric, PortConfig::vif());
    let b = add(&fabric, PortConfig::vif());
    let uplink = add(&fabric, PortConfig::uplink());
    Lan { fabric, a, b, uplink }
}

#[test]
fn unknown_destination_floods_and_the_answer_is_unicast() {
    let Lan { fabric, a, b, uplink } = lan();
    assert_eq!(forward(&fabric, a, frame(A, B)), FLOOD);
    assert_eq!(flood(&fabric, a, 1), [b, uplink]);
    assert_eq!(forward(&fabric, b, frame(B, A)), unicast(a));
    assert_eq!(forward(&fabric, a, frame(A, B)), unicast(b));
    assert_eq!(forward(&fabric, uplink, frame(C, A)), unicast(a));
}

#[test]
fn an_isolated_port_reaches_what_is_not_isolated_and_no_other_isolated_port() {
    let Lan { fabric, a, b, uplink } = lan();
    let isolated = || PortConfig { isolated: true, ..PortConfig::vif() };
    let [c, d] = [(); 2].map(|()| add(&fabric, isolated()));
    let all = [a, b, uplink, c, d];
    let macs = [1, 2, 3, 4, 5].map(|last| Mac([2, 0, 0, 0, 0, last]));
    let groups = [Mac::BROADCAST, Mac([1, 0, 0x5e, 0, 0, 1]), Mac([0x33, 0x33, 0, 0, 0, 1])];
    let unknown = Mac([2, 0, 0, 0, 0, 9]);
    for (port, mac) in all.into_iter().zip(macs) {
        assert_eq!(forward(&fabric, port, frame(mac, unknown)), FLOOD);
    }
    let isolates = |from, to| [c, d].contains(&from) && [c, d].contains(&to);
    let check = |isolates: &dyn Fn(PortId, PortId) -> bool| {
        for (from, src) in all.into_iter().zip(macs) {
            let mut others: Vec<_> = all.into_iter().filter(|&to| to != from).collect();
            for (to, dst) in all.into_iter().zip(macs).filter(|(to, _)| *to != from) {
                let found = forward(&fabric, from, frame(src, dst));
                let expected = match isolates(from, to) {
                    true => Err(DropReason::Isolated),
                    false => unicast(to),
                };
                assert_eq!(found, expected, "{from} to {to}");
                let thought = fabric.view().would_forward(from, &frame(src, dst), 0);
                assert_eq!(thought.forward, expected);
                let routed = fabric.view().route(from, &frame(src, dst), 0);
                assert_eq!(routed.is_err(), isolates(from, to));
            }
            others.retain(|&to| !isolates(from, to));
            for group in groups {
                assert_eq!(forward(&fabric, from, frame(src, group)), FLOOD);
                let flooded = fabric.view().flood_ports(from, vid(1), group).collect::<Vec<_>>();
                assert_eq!(flooded, others, "{from}");
            }
        }
        // Each guest's port is held to one address, so a stranger's frame goes to the uplink only.
        let unknown_to = fabric.view().flood_ports(c, vid(1), unknown).collect::<Vec<_>>();
        assert_eq!(unknown_to, [uplink]);
    };
    check(&isolates);
    let reach = |port| {
        let Reach { active, silent, isolated } = fabric.reach(port);
        [active, silent, isolated]
    };
    assert_eq!((reach(a), reach(c)), ([4, 0, 0], [3, 0, 1]));
    // Isolation holds from the next view on, both ways.
    fabric.update_port(d, PortConfig::vif()).unwrap();
    assert_eq!(forward(&fabric, d, frame(macs[4], unknown)), FLOOD);
    check(&|_, _| false);
    fabric.update_port(d, isolated()).unwrap();
    fabric.set_active(d, false).unwrap();
    assert_eq!(flood(&fabric, c, 1), [a, b, uplink]);
    assert_eq!(flood(&fabric, a, 1), [b, uplink, c]);
    assert_eq!(fabric.reach(a), Reach { active: 3, silent: 1, isolated: 0 });
    fabric.update_port(a, access(7)).unwrap();
    assert_eq!(fabric.reach(a), Reach { active: 1, silent: 0, isolated: 0 }, "the uplink");
    fabric.update_port(a, PortConfig::vif()).unwrap();
    fabric.remove_port(c).unwrap();
    assert_eq!(flood(&fabric, a, 1), [b, uplink]);
}

#[test]
fn unknown_stations_of_isolated_ports_are_asked_for_where_nobody_is_isolated() {
    let fabric = Fabric::new();
    let open = PortConfig { mac_check: MacCheck::Off, ..PortConfig::vif() };
    let isolated = PortConfig { isolated: true, ..open.clone() };
    let [a, b] = [(); 2].map(|()| add(&fabric, isolated.clone()));
    let c = add(&fabric, open);
    assert_eq!(forward(&fabric, a, frame(A, C)), FLOOD);
    let asked = |from| fabric.view().flood_ports(from, vid(1), C).collect::<Vec<_>>();
    assert_eq!((asked(a), asked(b), asked(c)), (vec![c], vec![c], vec![a, b]));
}

#[test]
fn a_guest_does_not_take_an_address_that_an_uplink_has() {
    let Lan { fabric, a, b, uplink } = lan();
    assert_eq!(forward(&fabric, uplink, frame(C, Mac::BROADCAST)), FLOOD, "the gateway speaks");
    for _ in 0..3 {
        assert_eq!(forward(&fabric, a, frame(C, B)), Err(DropReason::SrcMacOwned));
        assert_eq!(forward(&fabric, uplink, frame(C, B)), FLOOD, "it is heard as before");
        assert_eq!(forward(&fabric, b, frame(B, C)), unicast(uplink));
        // A reset makes the next attempt succeed.
        fabric.set_active(a, false).unwrap();
        fabric.set_active(a, true).unwrap();
        fabric.set_active(b, false).unwrap();
        fabric.set_active(b, true).unwrap();
    }
    let second = add(&fabric, PortConfig::uplink());
    assert_eq!(forward(&fabric, second, frame(C, Mac::BROADCAST)), FLOOD, "another uplink may");
    assert_eq!(forward(&fabric, b, frame(B, C)), unicast(second));
    let owner = add(&fabric, pinned(C));
    assert_eq!(forward(&fabric, owner, frame(C, Mac::BROADCAST)), FLOOD, "so may whose it is");
    assert_eq!(forward(&fabric, second, frame(C, B)), Err(DropReason::SrcMacOwned));
}

#[test]
fn a_configured_address_is_known_before_its_guest_has_spoken() {
    let Lan { fabric, a, .. } = lan();
    let silent = add(&fabric, pinned(B));
    assert_eq!(forward(&fabric, a, frame(A, B)), unicast(silent));
    fabric.set_active(silent, false).unwrap();
    assert_eq!(forward(&fabric, a, frame(A, B)), FLOOD, "nobody is there");
    let trunk = VlanMode::Trunk { native: Some(vid(1)), allowed: VlanSet::All };
    fabric.update_port(silent, PortConfig { vlan: trunk, ..pinned(B) }).unwrap();
    fabric.set_active(silent, true).unwrap();
    assert_eq!(forward(&fabric, a, frame(A, B)), unicast(silent));
    fabric.remove_port(silent).unwrap();
    assert_eq!(forward(&fabric, a, frame(A, B)), FLOOD);
}

#[test]
fn broadcast_and_multicast_flood() {
    let Lan { fabric, a, .. } = lan();
    assert_eq!(forward(&fabric, a, frame(A, Mac::BROADCAST)), FLOOD);
    assert_eq!(forward(&fabric, a, frame(A, Mac([1, 0, 0x5e, 0, 0, 1]))), FLOOD);
    assert_eq!(forward(&fabric, a, frame(A, Mac([0x33, 0x33, 0, 0, 0, 1]))), FLOOD);
}

#[test]
fn destination_silent_for_too_long_floods_unless_pinned() {
    let Lan { fabric, a, uplink, .. } = lan();
    forward(&fabric, uplink, frame(C, Mac::BROADCAST)).unwrap();
    forward(&fabric, a, frame(A, Mac::BROADCAST)).unwrap();
    let late = |ingress, frame| fabric.view().forward(ingress, &frame, FDB_AGE_SECS + 1);
    assert_eq!(late(a, frame(A, C)), FLOOD);
    assert_eq!(late(uplink, frame(B, A)), unicast(a));
}

#[test]
fn reserved_group_addresses_are_dropped_and_their_neighbours_flooded() {
    let Lan { fabric, a, .. } = lan();
    for last in 0..=0x0f {
        let reserved = Mac([0x01, 0x80, 0xc2, 0, 0, last]);
        let dropped = forward(&fabric, a, frame(A, reserved));
        assert_eq!(dropped, Err(DropReason::ReservedGroupAddress), "{reserved}");
    }
    assert!(fabric.fdb().is_empty(), "learned from a link-local frame");
    assert_eq!(forward(&fabric, a, frame(A, Mac([0x01, 0x80, 0xc2, 0, 0, 0x10]))), FLOOD);
    assert_eq!(forward(&fabric, a, frame(A, Mac([0x01, 0x80, 0xc2, 0, 1, 0x00]))), FLOOD);
}

#[test]
fn destination_behind_the_ingress_port_is_a_hairpin() {
    let Lan { fabric, uplink, .. } = lan();
    forward(&fabric, uplink, frame(A, Mac::BROADCAST)).unwrap();
    assert_eq!(forward(&fabric, uplink, frame(B, A)), Err(DropReason::Hairpin));
}

#[test]
fn spoofed_source_is_dropped_and_not_learned() {
    let Lan { fabric, a, b, .. } = lan();
    forward(&fabric, a, frame(A, B)).unwrap();
    assert_eq!(fabric.first_mac(a), Some(A));
    assert_eq!(forward(&fabric, a, frame(C, B)), Err(DropReason::SrcMacSpoofed));
    assert_eq!(forward(&fabric, b, frame(B, C)), FLOOD);
    let group = forward(&fabric, a, frame(Mac::BROADCAST, B));
    assert_eq!(group, Err(DropReason::SrcMacMulticast));
    assert_eq!(forward(&fabric, a, frame(Mac([0; 6]), B)), Err(DropReason::SrcMacZero));
}

#[test]
fn address_of_a_guest_can_not_be_taken_by_another_port() {
    let Lan { fabric, a, b, uplink } = lan();
    forward(&fabric, a, frame(A, B)).unwrap();
    assert_eq!(forward(&fabric, b, frame(A, C)), Err(DropReason::SrcMacOwned));
    assert_eq!(forward(&fabric, uplink, frame(A, C)), Err(DropReason::SrcMacOwned));
    assert_eq!(forward(&fabric, uplink, frame(C, A)), unicast(a));
}

#[test]
fn configured_address_is_won_back_from_a_guest_that_squatted_on_it() {
    let Lan { fabric, b, uplink, .. } = lan();
    forward(&fabric, b, frame(A, C)).unwrap();
    let owner = add(&fabric, pinned(A));
    assert_eq!(forward(&fabric, uplink, frame(C, A)), unicast(owner), "before it has spoken");
    assert_eq!(forward(&fabric, b, frame(A, C)), Err(DropReason::SrcMacOwned));
    assert_eq!(forward(&fabric, uplink, frame(C, A)), unicast(owner));
}

#[test]
fn address_is_free_again_when_its_port_becomes_inactive() {
    let Lan { fabric, a, b, uplink } = lan();
    forward(&fabric, a, frame(A, B)).unwrap();
    fabric.set_active(a, false).unwrap();
    assert_eq!(fabric.first_mac(a), None);
    assert_eq!(forward(&fabric, uplink, frame(A, B)), FLOOD);
    assert_eq!(forward(&fabric, b, frame(B, A)), unicast(uplink));
}

#[test]
fn claim_left_behind_by_an_inactive_port_does_not_bar_others() {
    let Lan { fabric, a, b, uplink } = lan();
    let before = looked(&fabric);
    fabric.set_active(a, false).unwrap();
    before.forward(a, &frame(A, B), 0).unwrap();
    assert_eq!(forward(&fabric, b, frame(B, A)), FLOOD, "a hit on an inactive port");
    assert_eq!(forward(&fabric, uplink, frame(A, B)), unicast(b));
    assert_eq!(forward(&fabric, b, frame(B, A)), unicast(uplink));
}

#[test]
fn reset_lets_a_guest_change_its_address() {
    let Lan { fabric, a, b, .. } = lan();
    forward(&fabric, a, frame(A, B)).unwrap();
    fabric.reset_mac_check(a).unwrap();
    assert_eq!(forward(&fabric, a, frame(C, B)), FLOOD);
    assert_eq!(fabric.first_mac(a), Some(C));
    assert_eq!(forward(&fabric, b, frame(B, A)), FLOOD, "the old address is still known");
}

#[test]
fn port_limit_stops_learning_but_not_forwarding() {
    let fabric = Fabric::new();
    let open = add(&fabric, PortConfig { mac_check: MacCheck::Off, ..PortConfig::vif() });
    let other = add(&fabric, PortConfig::vif());
    forward(&fabric, other, frame(B, A)).unwrap();
    for host in 0..=255 {
        assert_eq!(forward(&fabric, open, frame(Mac([2, 1, 0, 0, 0, host]), B)), unicast(other));
    }
    assert_eq!(fabric.fdb().learned_by(open), FDB_PER_VIF_MAX);
}

#[test]
fn vlans_are_apart() {
    let fabric = Fabric::new();
    let a = add(&fabric, access(10));
    let b = add(&fabric, access(20));
    let c = add(&fabric, access(10));
    let uplink = add(&fabric, PortConfig::uplink());
    assert_eq!(flood(&fabric, a, 10), [c, uplink]);
    assert_eq!(flood(&fabric, b, 20), [uplink]);
    forward(&fabric, b, frame(B, A)).unwrap();
    assert_eq!(forward(&fabric, a, frame(A, B)), Ok(Forward::Flood { vid: vid(10) }));
}

#[test]
fn what_is_for_an_unknown_station_goes_to_nobody_who_has_another_address() {
    let fabric = Fabric::new();
    let sender = add(&fabric, PortConfig::vif());
    let trunk = VlanMode::Trunk { native: Some(Vid::DEFAULT), allowed: VlanSet::All };
    let configured = add(&fabric, PortConfig { vlan: trunk, ..pinned(A) });
    let silent = add(&fabric, PortConfig::vif());
    let bridge = add(&fabric, PortConfig { mac_check: MacCheck::Off, ..PortConfig::vif() });
    let uplink = add(&fabric, PortConfig::uplink());
    let flood =
        |dst, number| -> Vec<_> { fabric.view().flood_ports(sender, vid(number), dst).collect() };
    assert_eq!(flood(C, 1), [silent, bridge, uplink]);
    // Once the silent guest has spoken there is an address that it may have.
    forward(&fabric, silent, frame(B, A)).unwrap();
    assert_eq!(flood(C, 1), [bridge, uplink]);
    assert_eq!(flood(B, 1), [silent, bridge, uplink], "forgotten, and found again");
    assert_eq!(flood(A, 20), [configured, uplink], "where its guest has not spoken yet");
    let group = Mac([1, 0, 0x5e, 0, 0, 1]);
    for dst in [Mac::BROADCAST, group] {
        assert_eq!(flood(dst, 1), [configured, silent, bridge, uplink]);
    }
}

#[test]
fn one_address_in_two_vlans_is_two_stations() {
    let fabric = Fabric::new();
    let a = add(&fabric, access(10));
    let b = add(&fabric, access(20));
    let uplink = add(&fabric, PortConfig::uplink());
    forward(&fabric, a, frame(A, C)).unwrap();
    forward(&fabric, b, frame(A, C)).unwrap();
    for (number, port) in [(10, a), (20, b)] {
        let tagged = FrameKey { tag: Tci::new(number, 0, false), ..frame(C, A) };
        let expected = Ok(Forward::Unicast { port, vid: vid(number) });
        assert_eq!(forward(&fabric, uplink, tagged), expected);
    }
}

#[test]
fn tag_is_added_toward_a_trunk_and_removed_toward_an_access_port() {
    let fabric = Fabric::new();
    let a = add(&fabric, access(10));
    let uplink = add(&fabric, PortConfig::uplink());
    let tag = Tci::new(10, 5, false);
    let view = fabric.view();
    assert_eq!(view.egress(a, vid(10), tag), Some(EgressTag::Untagged));
    assert_eq!(view.egress(a, vid(11), tag), None);
    assert_eq!(view.egress(uplink, vid(10), tag), tag.map(EgressTag::Tagged));
    let untagged = Tci::new(10, 0, false).map(EgressTag::Tagged);
    assert_eq!(view.egress(uplink, vid(10), None), untagged);
    assert_eq!(view.egress(uplink, vid(1), tag), Some(EgressTag::Untagged));
}

#[test]
fn tag_from_a_guest_on_an_access_port_is_dropped_before_anything_is_learned() {
    let Lan { fabric, a, .. } = lan();
    let tagged = FrameKey { tag: Tci::new(10, 0, false), ..frame(A, B) };
    assert_eq!(forward(&fabric, a, tagged), Err(DropReason::VlanTaggedOnAccess));
    assert!(fabric.fdb().is_empty());
    assert_eq!(fabric.first_mac(a), None);
}

#[test]
fn changed_vlan_takes_effect_at_once_and_forgets_what_was_learned() {
    let Lan { fabric, a, b, uplink } = lan();
    forward(&fabric, a, frame(A, B)).unwrap();
    fabric.update_port(a, access(30)).unwrap();
    assert_eq!(fabric.port_config(a), Some(access(30)));
    assert_eq!(forward(&fabric, b, frame(B, A)), FLOOD);
    assert_eq!(flood(&fabric, b, 1), [uplink]);
    assert_eq!(fabric.first_mac(a), Some(A), "the check has not changed");
    assert_eq!(forward(&fabric, a, frame(C, B)), Err(DropReason::SrcMacSpoofed));
    fabric.update_port(a, PortConfig { mac_check: MacCheck::Off, ..access(30) }).unwrap();
    assert_eq!(forward(&fabric, a, frame(C, B)), Ok(Forward::Flood { vid: vid(30) }));
}

#[test]
fn inactive_port_neither_sends_nor_receives() {
    let Lan { fabric, a, b, uplink } = lan();
    forward(&fabric, a, frame(A, B)).unwrap();
    fabric.set_active(a, false).unwrap();
    assert_eq!(forward(&fabric, a, frame(A, B)), Err(DropReason::PortInactive));
    assert_eq!(forward(&fabric, b, frame(B, A)), FLOOD);
    assert_eq!(flood(&fabric, b, 1), [uplink]);
    assert_eq!(fabric.view().egress(a, Vid::DEFAULT, None), None);
    fabric.set_active(a, true).unwrap();
    assert_eq!(flood(&fabric, b, 1), [a, uplink]);
}

#[test]
fn removed_port_is_gone_for_new_views_and_still_there_for_old_ones() {
    let Lan { fabric, a, b, uplink } = lan();
    let before = looked(&fabric);
    fabric.remove_port(a).unwrap();
    assert_eq!(forward(&fabric, a, frame(A, B)), Err(DropReason::PortUnknown));
    assert_eq!(flood(&fabric, b, 1), [uplink]);
    assert_eq!(
        before.flood_ports(b, Vid::DEFAULT, Mac::BROADCAST).collect::<Vec<_>>(),
        [a, uplink]
    );
    assert_eq!(fabric.remove_port(a), Err(PortError::NoSuchPort(a)));
    assert_eq!(fabric.set_active(a, true), Err(PortError::NoSuchPort(a)));
    assert_eq!(fabric.update_port(a, access(2)), Err(PortError::NoSuchPort(a)));
}

#[test]
fn number_of_a_removed_port_is_reused_last_and_inherits_nothing() {
    let fabric = Fabric::new();
    let uplink = add(&fabric, PortConfig::uplink());
    let first = add(&fabric, PortConfig::vif());
    let before = looked(&fabric);
    fabric.remove_port(first).unwrap();
    before.forward(first, &frame(A, B), 0).unwrap();
    for _ in 2..PORTS_MAX {
        assert_ne!(fabric.add_port(PortConfig::vif()), Ok(first));
    }
    assert_eq!(fabric.fdb().learned_by(first), 1, "the burst under way has learned");
    let heir = fabric.add_port(PortConfig::vif()).unwrap();
    assert_eq!((heir, fabric.fdb().learned_by(heir)), (first, 0));
    fabric.set_active(heir, true).unwrap();
    assert_eq!(forward(&fabric, uplink, frame(B, A)), FLOOD);
    assert_eq!(fabric.add_port(PortConfig::vif()), Err(PortError::TableFull));
}

#[test]
fn trunk_to_a_guest_carries_only_its_vlans() {
    let fabric = Fabric::new();
    let allowed = VlanSet::Only([vid(10), vid(20)].into_iter().collect());
    let vlan = VlanMode::Trunk { native: None, allowed };
    let router = add(&fabric, PortConfig { vlan, ..PortConfig::vif() });
    let uplink = add(&fabric, PortConfig::uplink());
    for (number, expected) in [(10, vec![router]), (20, vec![router]), (30, vec![]), (1, vec![])] {
        assert_eq!(flood(&fabric, uplink, number), expected, "VLAN {number}");
    }
    assert_eq!(forward(&fabric, router, frame(A, B)), Err(DropReason::VlanUntaggedOnTrunk));
    let outside = FrameKey { tag: Tci::new(30, 0, false), ..frame(A, B) };
    assert_eq!(forward(&fabric, router, outside), Err(DropReason::VlanNotAllowed));
}

#[test]
fn what_was_known_behind_a_port_is_known_again_as_far_as_its_settings_allow() {
    let fabric = Fabric::new();
    let [one, two] = [0, 1].map(|last| Mac([2, 0, 0, 0, 9, last]));
    let known = |mac, vid| Known { vid: Vid::new(vid).unwrap(), mac, seen_secs: 1000 };
    let guest = fabric.add_port(PortConfig::vif()).unwrap();
    fabric.recall(guest, &[known(one, 1)]);
    assert!(fabric.fdb().is_empty(), "nobody is behind it");
    fabric.set_active(guest, true).unwrap();
    // One address is of another VLAN; one would be a second address of a port that may have only one.
    fabric.recall(guest, &[known(two, 7), known(one, 1), known(two, 1)]);
    assert_eq!(fabric.first_mac(guest), Some(one));
    let uplink = fabric.add_port(PortConfig::uplink()).unwrap();
    fabric.set_active(uplink, true).unwrap();
    fabric.recall(uplink, &[known(two, 7), known(one, 1)]);
    let entries = |now| {
        let mut entries = fabric.fdb().entries(now);
        entries.sort_by_key(|entry| entry.mac);
        entries.iter().map(|it| (it.mac, it.port, it.claim, it.age_secs)).collect::<Vec<_>>()
    };
    let first = (one, guest, Claim::First, 50);
    assert_eq!(entries(1050), [first, (two, uplink, Claim::Uplink, 50)]);
    assert_eq!(entries(1001 + weir_limits::FDB_AGE_SECS).len(), 1, "it ages from when it was seen");
}

#[test]
fn a_network_with_as_many_addresses_as_it_may_have_is_thought_of_so() {
    let fabric = Fabric::new();
    let uplink = add(&fabric, PortConfig::overlay(fabric.fdb().capacity()));
    let key = |last: u32| {
        let [_, a, b, c] = last.to_be_bytes();
        let src = Mac([2, 0, 0, a, b, c]);
        FrameKey { src, dst: src, tag: Some(Tci::from_bits(1)) }
    };
    let refused = (0..2 * fabric.fdb().per_network_max()).map(key).find(|key| {
        let thought = fabric.view().would_forward(uplink, key, 0);
        assert_eq!(thought.forward, forward(&fabric, uplink, *key), "{:?}", thought.learned);
        thought.learned == Some(Learned::NetworkLimit)
    });
    assert!(refused.is_some());
}

proptest::proptest! {
    /// The decision and the preview agree, whatever was learned and pinned before.
    #[test]
    fn what_would_be_decided_is_decided_and_thinking_changes_nothing(
        frames in proptest::collection::vec((0..5_usize, 0..5_usize, 0..6_usize, 0..4_usize), 1..40),
    ) {
        let fabric = Fabric::new();
        let trunk = VlanMode::Trunk { native: None, allowed: VlanSet::All };
        let bridge = PortConfig { mac_check: MacCheck::Off, learn_max: 1, ..PortConfig::vif() };
        let ports = [
            add(&fabric, PortConfig::vif()),
            add(&fabric, pinned(B)),
            add(&fabric, bridge),
            add(&fabric, PortConfig { vlan: trunk, ..PortConfig::uplink() }),
            add(&fabric, PortConfig::uplink()),
        ];
        let stations = [A, B, C, Mac([0; 6]), Mac::BROADCAST, Mac([1, 0x80, 0xc2, 0, 0, 1])];
        let tags = [None, Tci::new(1, 0, false), Tci::new(7, 0, false), Some(Tci::from_bits(4095))];
        for (ingress, src, dst, tag) in frames {
            let key = FrameKey { src: stations[src], dst: stations[dst], tag: tags[tag] };
            let known = || {
                let mut entries = fabric.fdb().entries(0);
                entries.sort_by_key(|entry| (entry.vid.get(), entry.mac.0));
                (entries, fabric.fdb().stats(), ports.map(|port| fabric.first_mac(port)))
            };
            let before = known();
            let thought = fabric.view().would_forward(ports[ingress], &key, 0);
            proptest::prop_assert_eq!(known(), before);
            let decided = forward(&fabric, ports[ingress], key);
            proptest::prop_assert_eq!(thought.forward, decided);
        }
    }
}

#[test]
fn nothing_goes_through_a_blocked_port_until_it_is_blocked_no_more() {
    let Lan { fabric, a, b, uplink } = lan();
    let second = add(&fabric, PortConfig::uplink());
    forward(&fabric, second, frame(C, Mac::BROADCAST)).unwrap();
    fabric.set_blocked(second, true).unwrap();
    assert!(fabric.is_blocked(second) && fabric.is_active(second));
    assert_eq!(forward(&fabric, second, frame(C, A)), Err(DropReason::Loop));
    let thought = fabric.view().would_forward(second, &frame(C, A), 0);
    assert_eq!(thought.forward, Err(DropReason::Loop));
    assert_eq!(
        fabric.fdb().lookup(Vid::DEFAULT, C, 0),
        None,
        "what was learned there is forgotten"
    );
    assert_eq!(forward(&fabric, a, frame(A, C)), FLOOD);
    assert_eq!(flood(&fabric, a, 1), [b, uplink]);
    fabric.set_blocked(second, false).unwrap();
    assert_eq!(forward(&fabric, second, frame(C, A)), unicast(a));
    assert_eq!(flood(&fabric, a, 1), [b, uplink, second]);
}

#[test]
fn neither_a_new_session_nor_new_settings_end_a_block() {
    let Lan { fabric, a, b, .. } = lan();
    forward(&fabric, a, frame(A, B)).unwrap();
    fabric.set_blocked(a, true).unwrap();
    assert_eq!(fabric.first_mac(a), Some(A), "the block is no new session");
    fabric.set_active(a, false).unwrap();
    assert!(!fabric.is_active(a));
    assert_eq!(forward(&fabric, a, frame(A, B)), Err(DropReason::PortInactive));
    fabric.set_active(a, true).unwrap();
    assert_eq!(forward(&fabric, a, frame(A, B)), Err(DropReason::Loop));
    fabric.update_port(a, pinned(A)).unwrap();
    assert_eq!(forward(&fabric, a, frame(A, B)), Err(DropReason::Loop));
    assert_eq!(forward(&fabric, b, frame(B, A)), FLOOD, "its address is not known behind it");
    fabric.set_blocked(a, false).unwrap();
    assert_eq!(forward(&fabric, b, frame(B, A)), unicast(a));
    fabric.set_blocked(a, true).unwrap();
    fabric.remove_port(a).unwrap();
    assert_eq!(fabric.set_blocked(a, true), Err(PortError::NoSuchPort(a)));
    assert!(!fabric.is_blocked(a));
}

#[test]
fn a_blocked_port_sees_the_probe_that_it_seeks_and_no_other_frame() {
    let Lan { fabric, a, uplink, .. } = lan();
    let (probe, twin) = (Mac([2, 1, 2, 3, 4, 4]), Mac([2, 1, 2, 3, 4, 5]));
    fabric.seek(uplink, Vid::DEFAULT, probe);
    forward(&fabric, uplink, frame(probe, Mac::BROADCAST)).unwrap();
    assert_eq!(fabric.seen(uplink), [false; 2], "of a port that forwards the table says it");
    fabric.set_blocked(uplink, true).unwrap();
    let come = |src, tag| _ = forward(&fabric, uplink, FrameKey { tag, ..frame(src, A) });
    come(Mac([2, 1, 2, 3, 4, 6]), None);
    come(twin, Tci::new(2, 0, false));
    assert_eq!(fabric.seen(uplink), [false; 2], "another address, or another VLAN");
    come(twin, None);
    assert_eq!(fabric.seen(uplink), [false, true]);
    come(probe, None);
    assert_eq!(fabric.seen(uplink), [true; 2]);
    fabric.seek(uplink, Vid::DEFAULT, twin);
    assert_eq!(fabric.seen(uplink), [false; 2], "each search begins anew");
    assert_eq!(fabric.seen(a), [false; 2]);
}

#[test]
fn a_port_whose_addresses_are_full_sees_the_probe_that_it_seeks() {
    let fabric = Fabric::new();
    let full = add(&fabric, PortConfig { learn_max: 1, ..PortConfig::uplink() });
    let probe = Mac([2, 1, 2, 3, 4, 4]);
    forward(&fabric, full, frame(A, Mac::BROADCAST)).unwrap();
    fabric.seek(full, Vid::DEFAULT, probe);
    forward(&fabric, full, frame(B, Mac::BROADCAST)).unwrap();
    assert_eq!(fabric.seen(full), [false; 2]);
    forward(&fabric, full, frame(probe, Mac::BROADCAST)).unwrap();
    assert_eq!(fabric.fdb().lookup(Vid::DEFAULT, probe, 0), None);
    assert_eq!(fabric.seen(full), [true, false]);
}

#[test]
fn a_station_is_announced_in_the_vlans_of_its_port() {
    let Lan { fabric, a, uplink, .. } = lan();
    let tags = |vids: &[u16]| vids.iter().map(|&vid| Some(Tci::from_bits(vid))).collect::<Vec<_>>();
    assert_eq!(fabric.announcement_tags(a, A, 0), [None], "the default VLAN");
    let trunk = |native: Option<u16>, allowed| VlanMode::Trunk { native: native.map(vid), allowed };
    let set = |vlan| fabric.update_port(a, PortConfig { vlan, ..PortConfig::vif() }).unwrap();
    let only = |vids: std::ops::Range<u16>| VlanSet::Only(vids.map(vid).collect());
    set(trunk(Some(11), only(10..13)));
    assert_eq!(fabric.announcement_tags(a, A, 0), [vec![None], tags(&[10, 12])].concat());
    set(trunk(None, only(10..13)));
    assert_eq!(fabric.announcement_tags(a, A, 0), tags(&[10, 11, 12]));

    // If there are too many VLANs, only those count in which the station was seen before it came here.
    let far = PortConfig { vlan: trunk(None, VlanSet::All), ..PortConfig::uplink() };
    fabric.update_port(uplink, far).unwrap();
    let seen = |src, number| {
        let tag = Some(Tci::from_bits(number));
        forward(&fabric, uplink, FrameKey { src, dst: Mac::BROADCAST, tag }).unwrap();
    };
    (1..=4094).step_by(1000).for_each(|number| seen(A, number));
    seen(B, 7);
    let max = ANNOUNCED_VLANS_MAX as u16;
    for allowed in [VlanSet::All, only(1..1002)] {
        let all = allowed == VlanSet::All;
        set(trunk(Some(2), allowed));
        let expected = tags(if all { &[1, 1001, 2001, 3001, 4001] } else { &[1, 1001] });
        assert_eq!(fabric.announcement_tags(a, A, 0), [vec![None], expected].concat());
    }
    set(trunk(None, VlanSet::All));
    assert_eq!(fabric.announcement_tags(a, C, 0), []);
    assert_eq!(fabric.announcement_tags(a, A, FDB_AGE_SECS + 1), [], "long ago");
    set(trunk(None, only(1..max + 1)));
    assert_eq!(fabric.announcement_tags(a, C, 0).len(), ANNOUNCED_VLANS_MAX);
    (1..=max + 9).for_each(|number| seen(A, number));
    set(trunk(None, VlanSet::All));
    assert_eq!(fabric.announcement_tags(a, A, 0).len(), ANNOUNCED_VLANS_MAX, "and no more");
}
