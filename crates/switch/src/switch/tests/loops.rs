//! Loops through a bridge of the kernel, and through a guest.

use std::fs::File;
use std::net::{Ipv4Addr, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use weir_testing::echo;

use super::*;

/// A network namespace of a test's own. Dropping the value removes it.
pub(super) struct Net(String);

impl Net {
    /// `None` without root.
    pub(super) fn new(name: &str) -> Option<Self> {
        if !weir_testing::is_root("a bridge and a network namespace") {
            return None;
        }
        let name = format!("weir-{name}-{}", std::process::id());
        ip(&format!("netns add {name}"));
        Some(Self(name))
    }

    /// Runs `body` in a thread in the namespace. Sockets made there stay in the namespace, whichever thread uses
    /// them.
    pub(super) fn within<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        let in_thread = || {
            let net = File::open(format!("/run/netns/{}", self.0)).unwrap();
            let kind = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(std::os::fd::AsFd::as_fd(&net), kind).unwrap();
            body()
        };
        let ended = std::thread::scope(|scope| scope.spawn(in_thread).join());
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

pub(super) fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split_whitespace()).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {arguments}: {error}");
}

/// Asks the LAN for the owner of the address; returns true if there was an answer.
fn asks(address: &str) -> bool {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    // The send fails if there was no answer the last time. The kernel then asks again.
    let _ = socket.send_to(b"?", (address, 9));
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        let known = Command::new("ip").args(["neighbour", "show", address]).output().unwrap();
        if String::from_utf8_lossy(&known.stdout).contains("lladdr") {
            ip("neighbour flush all");
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}

/// A guest that answers for its address until it is stopped, and counts received frames.
struct Answers {
    got: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Answers {
    fn new(mut pair: QueuePair, number: u8, address: Ipv4Addr) -> Self {
        let (got, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, ends) = (Arc::clone(&got), Arc::clone(&stop));
        let answer = move || {
            let mut frame = Vec::new();
            while !ends.load(Ordering::Relaxed) {
                while pair.recv_into(&mut frame).is_some() {
                    count.fetch_add(1, Ordering::Relaxed);
                    if echo::answer(&mut frame, Mac(mac(number)), address).is_some() {
                        let _ = pair.send(&frame, &Offload::NONE);
                        pair.flush();
                    }
                    frame.clear();
                }
                std::thread::sleep(Duration::from_micros(200));
            }
        };
        let thread = Some(std::thread::spawn(answer));
        Self { got, stop, thread }
    }

    fn got(&self) -> u64 {
        self.got.load(Ordering::Relaxed)
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().map(std::thread::JoinHandle::join);
    }
}

/// Time between two counts, and most counts until a loop is found: 200 ms.
const PACE: Duration = Duration::from_millis(2);
const FOUND_MAX: u32 = 100;

#[test]
fn root_two_uplinks_into_one_lan_are_found_and_the_lan_is_calm() {
    let Some(net) = Net::new("loops") else { return };
    net.within(|| {
        ip("link add br0 type bridge");
        ip("address add 192.0.2.1/24 dev br0");
        let mut config = String::new();
        for lan in ["lan0", "lan1"] {
            ip(&format!("link add {lan} type veth peer name {lan}p"));
            ip(&format!("link set {lan}p master br0 up"));
            ip(&format!("link set {lan} up"));
            config += &format!("[uplink.{lan}]\nkind = \"af_packet\"\nname = \"{lan}\"\n");
        }
        let bench = Bench::with(&format!("{config}[vif.a]\n"));
        let (_guest, mut pairs) = bench.guest("a", 2, 1);
        let guest = Answers::new(pairs.remove(0), 2, Ipv4Addr::new(192, 0, 2, 2));
        assert_eq!(bench.switch.stats().loops.found, 0);
        // The first broadcast of the bridge circles.
        ip("link set br0 up");
        let begun = Instant::now();
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        let _ = socket.send_to(b"?", ("192.0.2.99", 9));
        let (sleeps, ()) = weir_testing::sleeps_during(PACE, || {
            eventually("the younger is blocked", || bench.port("lan1").blocked.is_some());
        });
        println!(
            "blocked {} ms and {sleeps} sleeps after the first frame was asked for",
            begun.elapsed().as_millis()
        );
        // The first suspicion is right, and its first probe comes back.
        assert!(sleeps <= FOUND_MAX, "{sleeps} times of {PACE:?}");
        let loops = bench.switch.stats().loops;
        assert_eq!((loops.suspected, loops.found), (1, 1));
        let block = bench.port("lan1").blocked.unwrap();
        assert_eq!((block.with.as_str(), block.vlan), ("lan0", 1));
        assert!(bench.port("lan0").blocked.is_none() && bench.port("a").blocked.is_none());
        eventually("the guest has taken the frames that circled before", || {
            let before = guest.got();
            std::thread::sleep(Duration::from_millis(20));
            guest.got() == before
        });
        // The remaining traffic is single frames of the kernel.
        let before = guest.got();
        std::thread::sleep(Duration::from_millis(200));
        assert!(guest.got() - before < 50, "{} frames in 200 ms", guest.got() - before);
        eventually("the guest is reached through the other uplink", || asks("192.0.2.2"));
        assert!(bench.port("lan1").drops.contains_key("loop"), "{:?}", bench.port("lan1").drops);
        let Response::UplinkExplained { explanation } =
            bench.switch.handle(Request::VifExplain { name: name("lan1") })
        else {
            panic!("an uplink is explained")
        };
        assert_eq!(explanation.blocked.unwrap().with.as_str(), "lan0");
        // The loop is cut, and ten seconds later the uplink is in service again.
        ip("link set lan1p nomaster");
        eventually("it forwards", || bench.port("lan1").blocked.is_none());
        assert!(asks("192.0.2.2"));
    });
}

#[test]
fn a_guest_that_bridges_its_two_interfaces_has_one_blocked_and_others_go_on() {
    let bench = Bench::with(
        "[vif.a]\nmac_check = false\n[vif.b]\nmac_check = false\n[vif.c]\nmac_check = false\n",
    );
    let [(_a, mut a), (_b, b), (_c, c)] =
        [("a", 1), ("b", 2), ("c", 3)].map(|(vif, number)| bench.guest(vif, number, 1));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stops = weir_testing::SetAtEnd(&stop);
        scope.spawn(|| {
            let (mut pairs, mut frame) = ([b, c].map(|mut pairs| pairs.remove(0)), Vec::new());
            while !stop.load(Ordering::Relaxed) {
                for from in [0, 1] {
                    while pairs[from].recv_into(&mut frame).is_some() {
                        let _ = pairs[1 - from].send(&frame, &Offload::NONE);
                        pairs[1 - from].flush();
                        frame.clear();
                    }
                }
            }
        });
        let speaks = || {
            send(&mut a[0], [0xff; 6], 1, &[1]);
            bench.port("c").blocked.is_some()
        };
        eventually("the younger is blocked", speaks);
    });
    assert_eq!(bench.port("c").blocked.unwrap().with.as_str(), "b");
    assert!(bench.port("b").blocked.is_none() && bench.port("a").blocked.is_none());
    assert_eq!(bench.explain("c").blocked.unwrap().vlan, 1);
    // The bridge was removed. A change of settings ends the block without waiting for the next try.
    assert_eq!(bench.set("c", "weight=2"), Response::Ok);
    eventually("it forwards", || bench.port("c").blocked.is_none());
}
