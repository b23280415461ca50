//! A bond of two veth pairs into a bridge of the kernel, which plays the physical switch.

use std::net::UdpSocket;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use weir_port_tap::{Tap, TapOptions};

use super::loops::{Net, ip};
use super::*;

fn carriers(bench: &Bench) -> Vec<bool> {
    let bond = bench.port("lan").bond.unwrap();
    bond.uplinks.iter().map(|uplink| uplink.carries).collect()
}

/// Time between two packets, and between two looks at a fail-over.
const PACE: Duration = Duration::from_millis(2);
/// Most packets that a fail-over may lose, and most such times that it may take: 100 ms.
const LOST_MAX: u32 = 50;

/// Numbered packets from the bridge to the guest, one each [`PACE`]. Returns the times at which the guest got them.
fn got_while(pair: &mut QueuePair, act: impl FnOnce() + Send) -> Vec<(u32, Instant)> {
    let ends = AtomicBool::new(false);
    let socket = UdpSocket::bind("192.0.2.1:0").unwrap();
    std::thread::scope(|scope| {
        let _stops = weir_testing::SetAtEnd(&ends);
        scope.spawn(|| {
            for number in 0_u32.. {
                if ends.load(Ordering::Relaxed) {
                    return;
                }
                let text = [&b"bond"[..], &number.to_be_bytes()].concat();
                let _ = socket.send_to(&text, "192.0.2.2:9");
                std::thread::sleep(PACE);
            }
        });
        let acts = scope.spawn(act);
        let (mut got, mut frame) = (Vec::new(), Vec::new());
        let mut last = None;
        while last.is_none_or(|last: Instant| last.elapsed() < Duration::from_millis(500)) {
            while pair.recv_into(&mut frame).is_some() {
                // Ethernet, IPv4 and UDP take 42 bytes.
                if let Some([b'b', b'o', b'n', b'd', number @ ..]) = frame.get(42..50) {
                    let number = u32::from_be_bytes(number.try_into().unwrap());
                    got.push((number, Instant::now()));
                }
                frame.clear();
            }
            if last.is_none() && acts.is_finished() {
                last = Some(Instant::now());
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        got
    })
}

#[test]
fn root_a_bond_fails_over_under_traffic() {
    fails_over("af_packet");
}

#[test]
fn root_a_bond_of_xdp_uplinks_fails_over_under_traffic() {
    fails_over("af_xdp");
}

fn fails_over(kind: &str) {
    let Some(net) = Net::new(&format!("bonds-{kind}")) else { return };
    net.within(|| {
        ip("link add br0 type bridge");
        ip("address add 192.0.2.1/24 dev br0");
        let mut config = String::new();
        for lan in ["lan0", "lan1"] {
            ip(&format!("link add {lan} type veth peer name {lan}p"));
            ip(&format!("link set {lan}p master br0 up"));
            ip(&format!("link set {lan} up"));
            config += &format!("[uplink.{lan}]\nkind = \"{kind}\"\nname = \"{lan}\"\n");
        }
        ip("link set br0 up");
        ip("neighbour add 192.0.2.2 lladdr 52:54:00:00:00:02 dev br0");
        config += "[bond.lan]\nuplinks = [\"lan0\", \"lan1\"]\n[vif.a]\n";
        let bench = Bench::with(&config);
        let (_guest, mut pairs) = bench.guest("a", 2, 1);
        eventually("the first carries", || carriers(&bench) == [true, false]);
        send(&mut pairs[0], [0xff; 6], 2, &[0; 46]);
        let is_behind = |lan: &str| {
            let fdb = Command::new("bridge").args(["fdb", "show", "br", "br0"]).output().unwrap();
            let entry = format!("52:54:00:00:00:02 dev {lan}");
            String::from_utf8_lossy(&fdb.stdout).contains(&entry)
        };
        eventually("the bridge knows the guest", || is_behind("lan0p"));
        let got = got_while(&mut pairs[0], || {
            std::thread::sleep(Duration::from_millis(300));
            ip("link set lan0p down");
            eventually("the other carries", || carriers(&bench) == [false, true]);
            eventually("the guest is announced there", || is_behind("lan1p"));
            std::thread::sleep(Duration::from_millis(300));
            // The bond does not return to the first uplink.
            ip("link set lan0p up");
            eventually("the carrier is seen", || {
                bench.port("lan").bond.unwrap().uplinks[0].has_carrier
            });
        });
        assert!(got.len() > 100, "{} packets", got.len());
        let twice = got.windows(2).find(|pair| pair[1].0 <= pair[0].0);
        assert_eq!(twice, None, "each packet comes once");
        let gap = got.windows(2).map(|pair| pair[1].1 - pair[0].1).max().unwrap();
        let lost = got.windows(2).map(|pair| pair[1].0 - pair[0].0 - 1).sum::<u32>();
        println!("longest gap of the fail-over: {} ms, {lost} packets lost", gap.as_millis());
        assert!(lost <= LOST_MAX, "{lost} packets lost");
        assert_eq!(carriers(&bench), [false, true]);
        assert_eq!(bench.port("lan").bond.unwrap().changes, 2);
        let noted = bench.switch.to_note().unwrap().carriers;
        assert_eq!(noted, [("lan".to_owned(), vec!["lan1".to_owned()])].into());
        assert_eq!(bench.switch.stats().loops.found, 0);
        let Response::UplinkExplained { explanation } =
            bench.switch.handle(Request::VifExplain { name: name("lan1") })
        else {
            panic!("an uplink is explained")
        };
        assert_eq!(explanation.in_bond.unwrap().as_str(), "lan");
    });
}

/// A switch with a guest and a bond of two uplinks that speaks LACP.
fn speaks_lacp(side: &str, rate: &str, number: u8) -> (Bench, Guest, QueuePair) {
    let mut config = String::new();
    for lan in ["0", "1"] {
        config += &format!("[uplink.{side}{lan}]\nkind = \"af_packet\"\nname = \"{side}{lan}\"\n");
    }
    config += &format!("[bond.lan]\nuplinks = [\"{side}0\", \"{side}1\"]\nmode = \"lacp\"\n");
    let bench = Bench::with(&format!("{config}lacp_rate = \"{rate}\"\n[vif.a]\n"));
    let (guest, mut pairs) = bench.guest("a", number, 1);
    (bench, guest, pairs.remove(0))
}

#[test]
fn root_two_switches_agree_by_lacp_on_the_links_that_carry() {
    let Some(net) = Net::new("lacp") else { return };
    net.within(|| {
        for lan in ["0", "1"] {
            ip(&format!("link add l{lan} type veth peer name r{lan}"));
            ip(&format!("link set l{lan} up"));
            ip(&format!("link set r{lan} up"));
        }
        let (left, _a, mut a) = speaks_lacp("l", "slow", 2);
        let begun = Instant::now();
        eventually("alone, one carries", || carriers(&left) == [true, false]);
        assert!(begun.elapsed() > Duration::from_millis(2500), "{:?}", begun.elapsed());
        let (right, _b, mut b) = speaks_lacp("r", "fast", 3);
        let begun = Instant::now();
        let both = |carry: [bool; 2]| carriers(&left) == carry && carriers(&right) == carry;
        eventually("both links carry", || both([true, true]));
        println!("together after {} ms", begun.elapsed().as_millis());
        let bond = |bench: &Bench| bench.port("lan").bond.unwrap();
        assert!(
            bond(&left).uplinks.iter().chain(&bond(&right).uplinks).all(|it| it.partner.is_some())
        );
        // Each frame arrives once, through either uplink. A frame to the protocol's address does
        // not arrive.
        let mut exchange = |count: u32| {
            send(&mut a, [1, 0x80, 0xc2, 0, 0, 2], 2, &[0; 46]);
            for number in 0..count {
                send(&mut a, [0xff; 6], 2, &number.to_be_bytes());
                send(&mut b, [0xff; 6], 3, &number.to_be_bytes());
            }
            for (pair, from) in [(&mut b, 2), (&mut a, 3)] {
                let (mut got, mut frame) = (Vec::new(), Vec::new());
                eventually("the last frame arrives", || {
                    while pair.recv_into(&mut frame).is_some() {
                        if frame[6..14] == [&mac(from)[..], &[0x88, 0xb5]].concat() {
                            assert_eq!(frame[..6], [0xff; 6]);
                            got.push(u32::from_be_bytes(frame[14..18].try_into().unwrap()));
                        }
                    }
                    got.last() == Some(&(count - 1))
                });
                assert_eq!(got, (0..count).collect::<Vec<_>>());
            }
        };
        exchange(50);
        ip("link set l0 down");
        eventually("the other carries all", || both([false, true]));
        exchange(50);
        ip("link set l0 up");
        eventually("both carry again", || both([true, true]));
        exchange(50);
        assert_eq!(left.switch.stats().loops.found + right.switch.stats().loops.found, 0);
    });
}

/// A TAP that is up. As with a card, and not with veth pairs, the kernel reports its carrier with a
/// delay.
fn tap(name: &str) -> Tap {
    Tap::open(&TapOptions { name: name.into(), queues: 1, mtu: None, mac: None }).unwrap()
}

#[test]
fn root_a_lost_carrier_is_seen_while_the_kernel_tells_of_others() {
    let (Some(net), Some(other)) = (Net::new("told"), Net::new("tells")) else { return };
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // The kernel reports one lost carrier a second, over all namespaces.
        scope.spawn(|| {
            other.within(|| {
                let _tap = tap("x0");
                while !over.load(Ordering::Relaxed) {
                    ip("link set x0 carrier off");
                    ip("link set x0 carrier on");
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
        });
        let _ends = weir_testing::SetAtEnd(&over);
        net.within(|| {
            let mut config = String::new();
            let _taps = ["l0", "l1"].map(tap);
            for lan in ["l0", "l1"] {
                config += &format!("[uplink.{lan}]\nkind = \"af_packet\"\nname = \"{lan}\"\n");
            }
            let bench = Bench::with(&format!("{config}[bond.lan]\nuplinks = [\"l0\", \"l1\"]\n"));
            let (mut longest, mut most) = (Duration::ZERO, 0);
            for round in 0..10 {
                let (lost, left) = [("l0", [false, true]), ("l1", [true, false])][round % 2];
                let bond = || bench.port("lan").bond.unwrap();
                eventually("both have a carrier", || {
                    bond().uplinks.iter().all(|it| it.has_carrier)
                });
                ip(&format!("link set {lost} carrier off"));
                let begun = Instant::now();
                let (sleeps, ()) = weir_testing::sleeps_during(PACE, || {
                    eventually("the other carries", || carriers(&bench) == left);
                });
                (longest, most) = (longest.max(begun.elapsed()), most.max(sleeps));
                ip(&format!("link set {lost} carrier on"));
            }
            println!("longest of ten fail-overs: {} ms, {most} sleeps", longest.as_millis());
            // The kernel alone takes up to a second.
            assert!(most <= LOST_MAX, "{most} times of {PACE:?}");
        });
    });
}
