//! The sender's groups in the header.

use weir_engine::Claims;
use weir_groups::GroupId;

use super::*;
use crate::{GroupSet, across};

/// The claimed groups of the frames that have come.
fn claimed(rig: &mut Rig, what: Take) -> Vec<Vec<GroupId>> {
    let mut tokens = Vec::new();
    let (port, scratch) = (&rig.port, &mut rig.scratch);
    port.take(0, what.at(1000), scratch, &mut |burst| {
        for frame in burst.frames() {
            tokens.push(port.groups_of(frame.token).to_vec());
        }
    });
    tokens
}

fn set(groups: &[GroupId]) -> GroupSet {
    GroupSet { groups: groups.into(), check: groups.len() as u64 }
}

fn header_with(vni: u32, set_id: u16) -> [u8; header::LEN] {
    (header::plain(vni) | header::groups(set_id)).to_be_bytes()
}

/// The ID in the next datagram of host `last`.
fn received_id(rig: &Rig, last: u8) -> (u16, Vec<u8>) {
    let (datagram, _) = receive(rig.host(last)).expect("a datagram");
    let (header, frame) = datagram.split_first_chunk().unwrap();
    assert_eq!(header::vni_with_groups(*header), Some(VNIS[0]));
    (header::set_id(*header), frame.to_vec())
}

#[test]
fn frames_claim_the_groups_of_their_header_if_their_host_may() {
    let web = GroupId::of("web");
    let both: Vec<_> = ["web", "ssh"].map(GroupId::of).into();
    let mut rig = Rig::with_groups_of(&[2]);
    rig.port.change_networks(|networks| {
        networks.set_group_sets([(7, set(&[web])), (0xffff, set(&both))].into());
    });
    let good = frame(GUEST, FAR, 1, 60);
    let mut with_d_and_a = header_with(VNIS[0], 7);
    with_d_and_a[1] = 0x48;
    let without_g = [8, 0, 0, 7, 0, 0, VNIS[0] as u8, 0];
    let headers = [
        header_with(VNIS[0], 7),
        header_with(VNIS[0], 0xffff),
        header_with(VNIS[0], 8),
        header_with(VNIS[0], 0),
        without_g,
        with_d_and_a,
        [0x88, 0, 0, 0, 0, 0, VNIS[0] as u8, 0],
    ];
    for header in headers {
        rig.send_raw(2, &[&header[..], &good].concat());
    }
    let groups = claimed(&mut rig, Take::New);
    assert_eq!(groups, [vec![web], both, vec![], vec![], vec![], vec![web], vec![]]);
    // None of these changes the groups: frames from other hosts, of another network, and with another bit.
    let mut other = header_with(VNIS[0], 7);
    other[0] |= 0x04;
    rig.send_raw(3, &[&header_with(VNIS[0], 7)[..], &good].concat());
    rig.send_raw(3, &[&without_g[..], &good].concat());
    rig.send_raw(5, &[&header_with(VNIS[0], 7)[..], &good].concat());
    rig.send_raw(2, &[&other[..], &good].concat());
    rig.send_raw(2, &[&header_with(VNIS[1], 7)[..], &good].concat());
    rig.send(3, VNIS[0], &good);
    assert_eq!(claimed(&mut rig, Take::New), [vec![]]);
    assert_eq!(rig.drops(), [("bad_encapsulation", 4), ("remote_unknown", 1)]);
    assert_eq!(rig.port.free_buffers(0), OVERLAY_BUFFERS);
}

#[test]
fn a_token_that_is_nobodys_claims_nothing() {
    let mut rig = Rig::with_groups_of(&[2]);
    let web = set(&[GroupId::of("web")]);
    rig.port.change_networks(|networks| networks.set_group_sets([(7, web)].into()));
    let bytes = [&header_with(VNIS[0], 7)[..], &frame(GUEST, FAR, 1, 60)].concat();
    rig.send_raw(2, &bytes);
    assert_eq!(claimed(&mut rig, Take::New).len(), 1);
    // weir's own frames have token 0.
    for token in [0, u64::MAX, 7 << 56, 0xffff << 48] {
        assert!(rig.port.groups_of(token).is_empty(), "{token:x}");
    }
}

#[test]
fn frames_leave_with_the_id_of_their_senders_groups_for_hosts_that_take_it() {
    let mut rig = Rig::with_groups_of(&[3]);
    assert!(rig.port.claims().is_some() && Rig::new().port.claims().is_none());
    for (set_id, expected) in [(0, [0, 0]), (0xabcd, [0, 0xabcd]), (0, [0, 0]), (9, [0, 9])] {
        rig.set_id = set_id;
        let flooded = frame(Mac::BROADCAST, GUEST, set_id, 60);
        rig.deliver_plain(BLUE, std::slice::from_ref(&flooded));
        for (last, id) in (2..).zip(expected) {
            assert_eq!(received_id(&rig, last), (id, flooded.clone()), "host {last}");
        }
    }
    assert_eq!(rig.counters.rx[0].frames.get(), 4, "a frame for both kinds of hosts is one");
    // Each frame goes to one host.
    for last in [2, 3] {
        rig.send(last, VNIS[0], &frame(Mac::BROADCAST, Mac([2, 0, 0, 0, 0, last]), 1, 60));
        rig.take_and_learn();
        let known = frame(Mac([2, 0, 0, 0, 0, last]), GUEST, 1, 60);
        rig.deliver_plain(BLUE, &[known.clone(), known.clone()]);
        let id = if last == 3 { 9 } else { 0 };
        assert_eq!([(); 2].map(|()| received_id(&rig, last)), [(id, known.clone()), (id, known)]);
        assert!([2, 3].iter().all(|last| rig.is_silent(*last)));
    }
}

#[test]
fn hosts_that_all_take_ids_or_none_are_flooded_once() {
    for (with, expected) in [(&[2, 3][..], 5), (&[4], 0)] {
        let mut rig = Rig::with_groups_of(with);
        rig.set_id = 5;
        let flooded = frame(Mac::BROADCAST, GUEST, 1, 60);
        rig.deliver_plain(BLUE, std::slice::from_ref(&flooded));
        for last in [2, 3] {
            assert_eq!(received_id(&rig, last), (expected, flooded.clone()));
            assert!(rig.is_silent(last));
        }
    }
}

#[test]
fn an_id_that_means_other_groups_at_a_host_counts_as_none_of_its_frames_only() {
    const SECOND_NS: u64 = 1_000_000_000;
    let web = GroupId::of("web");
    let mut rig = Rig::with_groups_of(&[2, 3]);
    let sets = |check| [(7, GroupSet { groups: [web].into(), check }), (8, set(&[]))].into();
    rig.port.change_networks(|networks| networks.set_group_sets(sets(1)));
    // The word comes with a question, to hosts with IDs.
    rig.send_to(2);
    rig.exchange(SECOND_NS);
    assert_eq!(receive(rig.host(2)).unwrap().0.len(), across::LEN);
    let (word, _) = receive(rig.host(2)).unwrap();
    assert_eq!(word.len(), 24);
    let claims = |rig: &mut Rig, last: u8| {
        rig.send_raw(last, &[&header_with(VNIS[0], 7)[..], &frame(GUEST, FAR, 1, 60)].concat());
        claimed(rig, Take::New)
    };
    rig.send_raw(2, &word);
    assert_eq!(claims(&mut rig, 2), [[web]], "both mean the same");
    rig.port.change_networks(|networks| networks.set_group_sets(sets(2)));
    assert_eq!(claims(&mut rig, 2), [[]]);
    assert_eq!(claims(&mut rig, 3), [[web]], "it has said nothing");
    assert_eq!(rig.port.disputed(), [(rig.ip(2), vec![7])]);
    let disputed = rig.port.members(BLUE).into_iter().map(|host| host.disputed_ids);
    assert_eq!(disputed.collect::<Vec<_>>(), [vec![7], vec![]]);
    rig.port.change_networks(|networks| networks.set_group_sets(sets(1)));
    assert_eq!(claims(&mut rig, 2), [[web]]);
    assert_eq!((rig.port.disputed(), rig.drops()), (vec![], vec![]));

    // Nobody else is heard.
    let mut rig = Rig::with_groups_of(&[3]);
    rig.port.change_networks(|networks| networks.set_group_sets(sets(2)));
    for last in [2, 5] {
        rig.send_raw(last, &word);
    }
    rig.take(Take::New, |_| panic!("no frame"));
    assert_eq!((rig.port.disputed(), rig.drops()), (vec![], vec![("bad_encapsulation", 2)]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The words that one weir writes are the words that another weir reads, in any order of senders.
    #[test]
    fn ids_of_two_weirs_agree(ids in proptest::collection::vec(0..5_u16, 1..20)) {
        let mut sender = Rig::with_groups_of(&[2]);
        let mut receiver = Rig::with_groups_of(&[2]);
        let groups = |id: u16| -> Arc<[GroupId]> {
            (0..id).map(|n| GroupId::of(&n.to_string())).collect()
        };
        let sets = (1..4).map(|id| (id, set(&groups(id)))).collect();
        receiver.port.change_networks(|networks| networks.set_group_sets(sets));
        for id in &ids {
            sender.set_id = *id;
            sender.deliver_plain(BLUE, &[frame(FAR, GUEST, *id, 60)]);
            let (datagram, _) = receive(sender.host(2)).expect("a datagram");
            receiver.send_raw(2, &datagram);
        }
        let mut got = Vec::new();
        while got.len() < ids.len() {
            got.extend(claimed(&mut receiver, Take::New));
        }
        let expected: Vec<_> =
            ids.iter().map(|id| if *id < 4 { groups(*id).to_vec() } else { Vec::new() }).collect();
        prop_assert_eq!(got, expected);
    }
}
