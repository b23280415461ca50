//! Tests that need a network namespace of their own: without root they count as skipped.

use std::os::fd::AsFd;
use std::process::Command;

use super::*;

/// Runs `body` in a thread with a network namespace of its own, whose loopback has this MTU.
pub(super) fn in_new_network(mtu: &str, body: impl FnOnce() + Send) {
    let _ = weir_testing::in_new_network("its network", crate::sys::enter_new_network, || {
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
pub(super) fn speak_ipv6(test: u16) {
    for last in 1..=5 {
        let address = format!("{}/128", ip6(test, last));
        let add = ["address", "add", &address, "dev", "lo", "nodad"];
        assert!(Command::new("ip").args(add).status().unwrap().success());
    }
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
            crate::sys::send_without_checksum(rig.host(2).as_fd()).unwrap();
            rig.send(2, VNIS[0], &sent);
            assert_eq!(rig.take_next(), [(BLUE, sent)]);
            assert_eq!(rig.drops(), []);
        }
    });
}
