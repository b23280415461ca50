//! Neighbour questions that are answered here, and guests' claims of addresses.

use std::net::Ipv4Addr;
use std::ops::Bound;

use weir_limits::{EVPN_SIGHTINGS_MAX, OVERLAY_ANSWERS_MAX, READ_AT_ONCE};
use weir_wire::{Neighbour, Owner};

use super::*;
use crate::Owned;

const ALL: Mac = Mac::BROADCAST;
/// The queue after that of the only socket.
const ANSWERS: usize = 1;

fn v4(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, last)
}

fn question(src: Mac, ip: u8, asks: u8) -> Vec<u8> {
    let sender = [&src.0[..], &v4(ip).octets(), &[0; 6], &v4(asks).octets()].concat();
    let packet = [&[0, 1, 8, 0, 6, 4, 0, 1][..], &sender, &[0; 18]].concat();
    [&ALL.0[..], &src.0, &ethertype::ARP.to_be_bytes(), &packet].concat()
}

impl Rig {
    /// Tells the port, as a control plane does, that the station's address is behind host 2.
    fn tell(&mut self, network: u16, mac: Mac, last: u8) {
        let vid = Vid::of_network(network).unwrap();
        let learner = Learner { port: self.id, claim: Claim::Told, learn_max: 100 };
        self.fabric.fdb().told_behind(vid, self.id);
        self.fabric.fdb().tell(vid, mac, learner, 0);
        let owner = Owner { mac, is_router: false };
        self.port.set_owners([((network, v4(last).into()), Some(owner))]);
    }

    fn answers(&mut self) -> Vec<(u16, Vec<u8>)> {
        let mut frames = Vec::new();
        self.port.take(ANSWERS, Take::New.at(1000), &mut self.scratch, &mut |burst| {
            frames.extend(contents(burst));
        });
        frames
    }

    fn count(&self, name: &str) -> u64 {
        self.port.counters.all().into_iter().find(|(it, _)| *it == name).unwrap().1
    }
}

fn owners(rig: &Rig) -> Vec<(Owned, Mac)> {
    let mut all = Vec::new();
    rig.port.each_owner(|of, mac| all.push((of, mac)));
    all
}

#[test]
fn owners_are_listed_whole_and_a_page_at_a_time() {
    let rig = Rig::new();
    let of = |number: u32| (BLUE, Ipv4Addr::from_bits(0x0a00_0000 + number).into());
    let owner = Owner { mac: FAR, is_router: false };
    let many = 5 * READ_AT_ONCE as u32 / 2;
    let set = |numbers: std::ops::Range<u32>, owner| {
        rig.port.set_owners(numbers.map(|number| (of(number), owner)));
    };
    let listed = |numbers: std::ops::Range<u32>| numbers.map(|n| (of(n), FAR)).collect::<Vec<_>>();
    set(0..many, Some(owner));
    assert_eq!(owners(&rig), listed(0..many));
    let page = rig.port.owners_after(Bound::Excluded(of(9)));
    assert_eq!(page, listed(10..10 + READ_AT_ONCE as u32));
    set(7..many, None);
    assert_eq!(owners(&rig), listed(0..7));
    set(0..7, None);
    assert_eq!(owners(&rig), []);
}

#[test]
fn who_asks_for_a_station_of_another_host_is_answered_and_nobody_else_is_asked() {
    let mut rig = Rig::new();
    rig.tell(BLUE, FAR, 2);
    assert!(!rig.port.arm_tx(ANSWERS));
    rig.deliver_plain(BLUE, &[question(GUEST, 1, 2)]);
    assert!(rig.port.arm_tx(ANSWERS), "a worker is to look");
    let answers = rig.answers();
    let [(BLUE, frame)] = &answers[..] else { panic!("{answers:?}") };
    let said = Neighbour::read(frame).unwrap();
    assert_eq!((said.mac, said.claims), (FAR, Some(v4(2).into())));
    assert_eq!(frame[..6], GUEST.0);
    assert_eq!((rig.count("arp_answered"), rig.drops()), (1, vec![]));
    // A question for an unknown address goes to the members.
    rig.deliver_plain(BLUE, &[question(GUEST, 1, 3)]);
    for host in [2, 3] {
        let (vni, frame, _) = rig.received(host);
        assert_eq!((vni, frame), (100, question(GUEST, 1, 3)), "the first that comes");
    }
    assert!(rig.answers().is_empty());
}

#[test]
fn nobody_is_answered_for_one_who_is_not_known_to_be_behind_another_host() {
    let mut rig = Rig::new();
    rig.tell(BLUE, FAR, 2);
    let asked = |rig: &mut Rig, network, frame: Vec<u8>| {
        rig.deliver_plain(network, std::slice::from_ref(&frame));
        assert_eq!(rig.received(3).1, frame, "everybody is asked");
        assert!(rig.answers().is_empty());
    };
    asked(&mut rig, BLUE, question(FAR, 2, 2));
    asked(&mut rig, BLUE, question(FAR, 7, 2));
    // In red nothing is answered, and red does not use what blue knows.
    asked(&mut rig, RED, question(GUEST, 1, 2));
    // The station has moved to this host: a frame of its own shows that before FRR does.
    let vid = Vid::of_network(BLUE).unwrap();
    rig.fabric.fdb().forget(vid, FAR, rig.id);
    asked(&mut rig, BLUE, question(GUEST, 1, 2));
    // Nobody has the address any more.
    rig.tell(BLUE, FAR, 2);
    rig.port.set_owners([((BLUE, v4(2).into()), None)]);
    asked(&mut rig, BLUE, question(GUEST, 1, 2));
    assert_eq!(rig.count("arp_answered"), 0);
}

#[test]
fn a_flood_of_questions_gets_as_many_answers_as_there_is_room_for() {
    let mut rig = Rig::new();
    rig.tell(BLUE, FAR, 2);
    for _ in 0..10 {
        rig.deliver_plain(BLUE, &vec![question(GUEST, 1, 2); BURST_MAX]);
    }
    let answered = rig.count("arp_answered");
    assert_eq!(rig.drops(), [("answer_budget", 10 * BURST_MAX as u64 - answered)]);
    assert!(answered <= OVERLAY_ANSWERS_MAX as u64, "{answered}");
    assert_eq!(rig.answers().len() as u64, answered);
}

#[test]
fn what_guests_and_hosts_say_of_addresses_is_noted_once_each_with_bounds() {
    let mut rig = Rig::new();
    for _ in 0..3 {
        rig.deliver_plain(BLUE, &[question(GUEST, 1, 9)]);
        rig.deliver_plain(RED, &[question(GUEST, 1, 9)]);
    }
    rig.send(2, 100, &question(FAR, 5, 9));
    rig.take_and_learn();
    let mut seen: Vec<_> = rig.port.take_sightings();
    seen.sort_by_key(|it| it.is_remote);
    let sighting =
        |mac, last: u8, is_remote| Sighting { network: BLUE, ip: v4(last).into(), mac, is_remote };
    assert_eq!(seen, [sighting(GUEST, 1, false), sighting(FAR, 5, true)]);
    for last in 0..=255 {
        rig.deliver_plain(BLUE, &[question(GUEST, last, 9)]);
    }
    assert!(rig.port.take_sightings().len() <= EVPN_SIGHTINGS_MAX);
    assert!(rig.count("sightings_lost") > 100);
    // A flood of claims by guests here does not hide claims from other hosts.
    rig.send(2, 100, &question(FAR, 5, 9));
    rig.take_and_learn();
    assert_eq!(rig.port.take_sightings(), [sighting(FAR, 5, true)]);
}
