//! Marks in the headers of tunnels: IDs of groups, and marks of congestion.

use std::os::fd::AsFd;
use std::process::Command;
use std::time::Instant;

use weir_engine::Claims;
use weir_groups::GroupId;
use weir_guestmem::{Outbox, PeerAddress, receive_datagrams};
use weir_wire::checksum::ipv4_header_checksum;
use weir_wire::traffic_class;
use weir_wire::traffic_class::{DSCP_SHIFT, ecn};

use super::*;
use crate::{GroupSet, across};

const IP_AT: usize = 14;
/// Datagrams over IPv6 are sent without a checksum (`linux/udp.h`).
const UDP_NO_CHECK6_TX: libc::c_int = 101;

/// A UDP packet of this traffic class for [`GUEST`].
fn packet(class: u8, v6: bool) -> Vec<u8> {
    let ethernet = etherparse::PacketBuilder::ethernet2(FAR.0, GUEST.0);
    let mut bytes = Vec::new();
    if v6 {
        ethernet.ipv6([1; 16], [2; 16], 64).udp(1, 2).write(&mut bytes, &[7; 40]).unwrap();
        bytes[IP_AT] = 0x60 | class >> 4;
        bytes[IP_AT + 1] = class << 4;
    } else {
        let ip = ethernet.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
        ip.udp(1, 2).write(&mut bytes, &[7; 40]).unwrap();
        bytes[IP_AT + 1] = class;
        let checksum = ipv4_header_checksum(&bytes[IP_AT..IP_AT + 20]);
        bytes[IP_AT + 10..IP_AT + 12].copy_from_slice(&checksum.to_be_bytes());
    }
    bytes
}

/// The next datagrams that a host gets: the traffic class and the frame of each.
fn classes(host: &UdpSocket, number: usize) -> Vec<(u8, Vec<u8>)> {
    host.set_nonblocking(true).unwrap();
    let buffers: Vec<_> = (0..8).map(|_| HostBuffer::new(3000)).collect();
    let slices = || buffers.iter().map(|buffer| buffer.slice(0, 3000).unwrap());
    let (mut all, mut arrivals, start) = (Vec::new(), Vec::new(), Instant::now());
    while all.len() < number && start.elapsed() < PATIENCE {
        let _ = receive_datagrams(host.as_fd(), slices(), &mut arrivals);
        for (arrival, slice) in arrivals.iter().zip(slices()) {
            let mut bytes = vec![0; arrival.len];
            slice.read(&mut bytes);
            all.push((arrival.class, bytes[header::LEN..].to_vec()));
        }
    }
    assert_eq!(all.len(), number);
    all
}

/// Host 2 sends a frame in a datagram of this traffic class.
fn send(rig: &Rig, class: u8, frame: &[u8]) {
    let mut outbox = Outbox::default();
    let mut batch = outbox.batch();
    let header = header::plain(VNIS[0]).to_be_bytes();
    let to = [PeerAddress::new(rig.here())];
    assert!(batch.push(&[&header, frame], std::iter::empty(), &to, class, false));
    batch.send(rig.host(2).as_fd(), |_, error| panic!("lost: {error}"));
}

/// The traffic classes that host 2 gets for frames of the guest's.
fn outer_classes(rig: &mut Rig, frames: &[Vec<u8>]) -> Vec<u8> {
    crate::sys::tell_class(rig.host(2).as_fd(), rig.ip(2).is_ipv6()).unwrap();
    // The station is behind host 2.
    rig.send(2, VNIS[0], &frame(FAR, GUEST, 0, 60));
    rig.take_and_learn();
    let mut to_guest = frames.to_vec();
    for frame in &mut to_guest {
        frame[..6].copy_from_slice(&GUEST.0);
    }
    rig.deliver_plain(BLUE, &to_guest);
    let got = classes(rig.host(2), frames.len());
    let frames_got: Vec<_> = got.iter().map(|(_, frame)| frame.clone()).collect();
    assert_eq!(frames_got, to_guest, "as they were, in their order");
    got.into_iter().map(|(class, _)| class).collect()
}

fn encapsulates(ip_of: impl Fn(u8) -> IpAddr + Copy + 'static) {
    let af41 = 34 << DSCP_SHIFT;
    let mut inner = Vec::new();
    for v6 in [false, true] {
        // These frames follow each other with one length and one flow, and would be one message if
        // they had one class.
        for mark in [ecn::NOT_ECT, ecn::ECT_0, ecn::ECT_1, ecn::CE, ecn::CE] {
            inner.push((packet(af41 | mark, v6), af41 | mark));
        }
    }
    // This frame is no IP packet.
    inner.push((frame(GUEST, FAR, 1, 60), 0));
    let frames: Vec<_> = inner.iter().map(|(frame, _)| frame.clone()).collect();
    let with = |dscp, expected: &dyn Fn(u8) -> u8| {
        let options = OverlayOptions { dscp, ..options(ip_of(1)) };
        let mut rig = Rig::by(&options, (1000, &[]), ip_of, Vec::new());
        let expected: Vec<_> = inner.iter().map(|(_, class)| expected(*class)).collect();
        assert_eq!(outer_classes(&mut rig, &frames), expected, "{dscp:?}");
    };
    with(OuterDscp::Fixed(0), &|class| class & ecn::MASK);
    with(OuterDscp::Fixed(63), &|class| 63 << DSCP_SHIFT | class & ecn::MASK);
    with(OuterDscp::Inherit, &|class| class);
}

fn decapsulates(mut rig: Rig) {
    use ecn::{CE, ECT_0, ECT_1, NOT_ECT};
    let dscp = 10 << DSCP_SHIFT;
    for v6 in [false, true] {
        for (inner, outer, expected) in [
            (NOT_ECT, ECT_0, NOT_ECT),
            (ECT_0, NOT_ECT, ECT_0),
            (ECT_0, CE, CE),
            (ECT_0, ECT_1, ECT_1),
            (ECT_1, CE, CE),
            (CE, ECT_0, CE),
        ] {
            // The guest sees nothing of the outer DSCP.
            send(&rig, 46 << DSCP_SHIFT | outer, &packet(dscp | inner, v6));
            let got = rig.take_all(Take::New);
            let expected = packet(dscp | expected, v6);
            assert_eq!(traffic_class(&got[0].1), traffic_class(&expected));
            assert_eq!(got, [(BLUE, expected)], "checksum and all: {inner} in {outer}");
        }
        send(&rig, CE, &packet(dscp, v6));
    }
    assert_eq!(rig.take_all(Take::New), []);
    assert_eq!(rig.drops(), [("marked_not_ect", 2)]);
    // One frame is no IP packet, and one is too short for an IP header.
    let mut cut = packet(ECT_0, false);
    cut.truncate(IP_AT + 3);
    for other in [frame(GUEST, FAR, 1, 60), cut] {
        send(&rig, CE, &other);
        assert_eq!(rig.take_all(Take::New), [(BLUE, other)]);
    }
    assert_eq!(rig.port.free_buffers(0), OVERLAY_BUFFERS);
}

#[test]
fn rfc_6040_4_1_a_datagram_has_the_mark_of_its_packet_and_the_dscp_of_the_overlay() {
    encapsulates(|last| ip(0xfe, last));
}

#[test]
fn rfc_6040_4_2_marks_of_the_way_reach_packets_that_heed_them_and_others_are_dropped() {
    decapsulates(Rig::new());
}

#[test]
fn root_rfc_6040_marks_and_dscp_cross_an_underlay_of_ipv6() {
    in_new_network("65536", || {
        speak_ipv6(1);
        encapsulates(|last| ip6(1, last));
        decapsulates(Rig::at(1000, |last| ip6(1, last), Vec::new()));
    });
}

#[test]
fn marks_reach_packets_by_sockets_that_an_older_weir_has_left() {
    let old = UdpSocket::bind((ip(0xfd, 1), 4789)).unwrap();
    old.set_nonblocking(true).unwrap();
    decapsulates(Rig::at(1000, |last| ip(0xfd, last), vec![old.into()]));
}

#[test]
fn all_segments_of_a_packet_have_its_mark() {
    let mut rig = Rig::new();
    crate::sys::tell_class(rig.host(2).as_fd(), false).unwrap();
    rig.send(2, VNIS[0], &frame(FAR, GUEST, 0, 60));
    rig.take_and_learn();
    let mut bytes = Vec::new();
    etherparse::PacketBuilder::ethernet2(FAR.0, GUEST.0)
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
        .udp(1000, 2000)
        .write(&mut bytes, &[1; 500])
        .unwrap();
    bytes[IP_AT + 1] = ecn::ECT_0;
    let header = VnetHdr {
        flags: vnet::F_NEEDS_CSUM,
        gso_type: vnet::GSO_UDP_L4,
        hdr_len: 42,
        gso_size: 100,
        csum_start: 34,
        csum_offset: 6,
        num_buffers: 0,
    };
    rig.deliver(BLUE, &[(header, bytes)]);
    let got: Vec<_> = classes(rig.host(2), 5).into_iter().map(|(class, _)| class).collect();
    assert_eq!(got, [ecn::ECT_0; 5]);
}

/// Runs `body` in a thread with its own network namespace, whose loopback has this MTU.
fn in_new_network(mtu: &str, body: impl FnOnce() + Send) {
    let _ = weir_testing::in_new_network("its network", || {
        let set = ["link", "set", "lo", "up", "mtu", mtu];
        assert!(Command::new("ip").args(set).status().unwrap().success());
        body();
    });
}

/// Sends to hosts whose path takes frames of at most `longest` bytes.
fn what_is_longer_than_the_path_takes_is_counted(mut rig: Rig, longest: usize) {
    let fits = frame(FAR, GUEST, 1, longest);
    // The frames also go as one message, which the kernel refuses as a whole.
    let long = frame(FAR, GUEST, 2, longest + 1);
    rig.deliver_plain(BLUE, &[long.clone(), long, fits.clone()]);
    for last in [2, 3] {
        assert_eq!(rig.received(last).1, fits);
    }
    assert_eq!(rig.drops(), [("over_path_mtu", 4)], "two frames, two peers");
}

#[test]
fn root_what_is_longer_than_the_path_takes_is_counted_and_never_fragmented() {
    in_new_network("1000", || what_is_longer_than_the_path_takes_is_counted(Rig::new(), 964));
}

#[test]
fn root_what_is_longer_than_the_path_takes_is_counted_and_never_fragmented_over_ipv6() {
    // 1280 is the smallest MTU that IPv6 allows.
    in_new_network("1280", || {
        speak_ipv6(1);
        let rig = Rig::at(1000, |last| ip6(1, last), Vec::new());
        what_is_longer_than_the_path_takes_is_counted(rig, 1224);
    });
}

#[test]
fn root_a_host_without_a_way_is_counted() {
    in_new_network("65536", || {
        let mut rig = Rig::new();
        let down = ["route", "add", "unreachable", &rig.ip(2).to_string(), "table", "local"];
        assert!(Command::new("ip").args(down).status().unwrap().success());
        let sent = frame(FAR, GUEST, 1, 600);
        rig.deliver_plain(BLUE, std::slice::from_ref(&sent));
        assert_eq!(rig.received(3).1, sent);
        assert_eq!(rig.drops(), [("remote_unreachable", 1)]);
    });
}

/// Adds hosts 1 to 5 of a test to loopback, by IPv6.
fn speak_ipv6(test: u16) {
    for last in 1..=5 {
        let address = format!("{}/128", ip6(test, last));
        let add = ["address", "add", &address, "dev", "lo", "nodad"];
        assert!(Command::new("ip").args(add).status().unwrap().success());
    }
    // The kernel begins to use the addresses later. Until then it drops packets to them.
    let list = ["-6", "address", "show", "dev", "lo", "tentative"];
    weir_testing::eventually("the addresses are in use", || {
        Command::new("ip").args(list).output().unwrap().stdout.is_empty().then_some(())
    });
}

#[test]
fn root_rfc_7348_4_1_frames_without_a_udp_checksum_are_taken_over_ipv6() {
    in_new_network("65536", || {
        speak_ipv6(1);
        // A weir that did not take such datagrams has left the socket.
        let old = UdpSocket::bind((ip6(1, 1), 4789)).unwrap();
        old.set_nonblocking(true).unwrap();
        for left in [vec![old.into()], Vec::new()] {
            let mut rig = Rig::at(1000, |last| ip6(1, last), left);
            let sent = frame(GUEST, FAR, 1, 600);
            rig.send(2, VNIS[0], &sent);
            assert_eq!(rig.take_next(), [(BLUE, sent.clone())]);
            let socket = rig.host(2).as_fd();
            crate::sys::set(socket, libc::SOL_UDP, UDP_NO_CHECK6_TX, 1).unwrap();
            rig.send(2, VNIS[0], &sent);
            assert_eq!(rig.take_next(), [(BLUE, sent)]);
            assert_eq!(rig.drops(), []);
        }
    });
}

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
    (header::plain(vni) | header::of_sender(set_id, false)).to_be_bytes()
}

#[test]
fn a_header_says_that_its_sender_is_isolated_if_its_host_may() {
    let mut rig = Rig::with_groups_of(&[2]);
    // Host 2 may mark its guests as isolated, with and without groups. Host 3 may not.
    for (set_id, isolated) in [(0, true), (7, true), (7, false), (0, false)] {
        (rig.set_id, rig.isolated) = (set_id, isolated);
        let flooded = frame(Mac::BROADCAST, GUEST, 1, 60);
        rig.deliver_plain(BLUE, std::slice::from_ref(&flooded));
        let headers = [2, 3].map(|last| receive(rig.host(last)).expect("a datagram").0);
        let expected = header::plain(VNIS[0]) | header::of_sender(set_id, isolated);
        assert_eq!(headers[0][..8], expected.to_be_bytes());
        assert_eq!(headers[1][..8], header::plain(VNIS[0]).to_be_bytes());
        rig.send_raw(2, &[&headers[0][..8], &frame(GUEST, FAR, 1, 60)].concat());
        rig.send_raw(3, &[&headers[0][..8], &frame(GUEST, FAR, 1, 60)].concat());
        let is_plain = set_id == 0 && !isolated;
        let (mut told, port) = (Vec::new(), &rig.port);
        port.take(0, Take::New.at(1000), &mut rig.scratch, &mut |burst| {
            told.extend(burst.frames().iter().map(|frame| port.is_isolated(frame.token)));
        });
        let plain = [isolated, false];
        assert_eq!(told, plain[..1 + usize::from(is_plain)], "{set_id} {isolated}");
    }
    assert_eq!(rig.drops(), [("bad_encapsulation", 3)]);
    for token in [0, u64::MAX, 7 << 56, 0xffff << 48] {
        assert!(!rig.port.is_isolated(token), "{token:x}");
    }
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

    /// One weir reads the messages that another weir writes, in any order of senders.
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
