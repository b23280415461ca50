//! Ports that are joined by networks, which threads simulate.

use std::collections::VecDeque;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc;

use weir_engine::burst::{Burst, Pieces, Scratch, TakenChain};
use weir_engine::egress::{Packet, Put};
use weir_engine::gro::EgressList;
use weir_engine::{Ask, Delivered, Forward, Outgoing, Port, QueueRef, Side, Taken};
use weir_fabric::{MacCheck, PortConfig};
use weir_guestmem::HostBuffer;
use weir_policy::steering::Receiver;
use weir_testing::eventually;
use weir_wire::{Mac, OffloadCaps};

use super::*;

const MS: u64 = 1_000_000;
const HEADER: usize = 12;
/// Frames that can wait at each end of a network.
const QUEUE: usize = 50;

/// A port of the switch with a network or a guest behind it.
struct End {
    to_send: Mutex<VecDeque<Vec<u8>>>,
    /// The destination of frames that leave by the port; none at first.
    outside: Mutex<Option<mpsc::SyncSender<Vec<u8>>>>,
    got: AtomicUsize,
    /// True if the port accepts no frames.
    is_deaf: AtomicBool,
    /// While this is locked, threads that deliver to the port block.
    stands: Mutex<()>,
}

impl Port for End {
    fn take(&self, _: usize, ask: Ask, scratch: &mut Scratch, forward: Forward<'_>) -> Taken {
        let mut burst = scratch.lend();
        let (frames, more): (Vec<_>, _) = {
            let mut to_send = self.to_send.lock().unwrap();
            let count = to_send.len().min(burst.frames_max);
            (to_send.drain(..count).collect(), !to_send.is_empty())
        };
        let buffer = HostBuffer::new(frames.iter().map(|it| HEADER + it.len()).sum());
        let mut at = 0;
        for frame in &frames {
            let whole = buffer.slice(at, HEADER + frame.len()).unwrap();
            whole.skip(HEADER).write(frame);
            at += whole.len();
            let len = whole.len() as u32;
            let chain = TakenChain { token: 0, len, pieces: Pieces::Only(whole) };
            burst.add(chain, HEADER, ask.now_ns).unwrap();
        }
        forward(&mut burst);
        Taken { frames: frames.len(), more, ..Taken::default() }
    }

    fn arm_tx(&self, _queue: usize) -> bool {
        !self.to_send.lock().unwrap().is_empty()
    }

    fn rx_queues(&self) -> usize {
        usize::from(!self.is_deaf.load(Ordering::Relaxed))
    }

    fn deliver(&self, _: usize, burst: &Burst<'_>, frames: &[Outgoing]) -> Delivered {
        drop(self.stands.lock().unwrap());
        let mut list = EgressList::new(burst, frames, OffloadCaps::NONE);
        let put = |packet: Packet<'_, '_>| {
            let mut bytes = packet.head.as_slice().to_vec();
            for slice in packet.body() {
                let start = bytes.len();
                bytes.resize(start + slice.len(), 0);
                slice.read(&mut bytes[start..]);
            }
            self.got.fetch_add(1, Ordering::Relaxed);
            if let Some(outside) = &*self.outside.lock().unwrap() {
                // A frame that finds its queue full is lost, as on a wire.
                let _ = outside.try_send(bytes);
            }
            Put::Done
        };
        while list.emit_next(put).is_some() {}
        list.delivered()
    }

    fn fail(&self, reason: &str) {
        panic!("{reason}");
    }
}

impl Receiver for End {}

struct Member {
    id: PortId,
    name: PortName,
    end: Arc<End>,
}

impl Member {
    fn got(&self) -> usize {
        self.end.got.load(Ordering::Relaxed)
    }
}

/// A switch whose manager looks more often than in service.
struct Rig {
    engine: Arc<Engine>,
    loops: Arc<Loops>,
    ends: Arc<AtomicBool>,
    looks: Option<JoinHandle<()>>,
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        self.looks.take().map(JoinHandle::join);
        self.loops.end();
    }
}

impl Rig {
    fn new(retry_ns: u64) -> Self {
        let engine = Engine::start(1).unwrap();
        let loops = Loops::that_retry_after(&engine, retry_ns);
        let ends = Arc::new(AtomicBool::new(false));
        let (look, end) = (Arc::clone(&loops), Arc::clone(&ends));
        let looks = move || {
            while !end.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(20));
                look.look(clock::now_ns());
            }
        };
        let looks = Some(std::thread::spawn(looks));
        Self { engine, loops, ends, looks }
    }

    fn add(&self, name: &str, config: PortConfig) -> Member {
        let (uplink, open) = (config.uplink, config.mac_check == MacCheck::Off);
        let make = |_, _| {
            Arc::new(End {
                to_send: Mutex::default(),
                outside: Mutex::default(),
                got: AtomicUsize::new(0),
                is_deaf: AtomicBool::new(false),
                stands: Mutex::default(),
            })
        };
        let (id, end) = self.engine.add_port(config, make).unwrap();
        self.engine.fabric().set_active(id, true).unwrap();
        let name: PortName = name.parse().unwrap();
        self.loops.add(id, &name, uplink, open);
        Member { id, name, end }
    }

    fn uplink(&self, name: &str) -> Member {
        self.add(name, PortConfig::uplink())
    }

    /// A guest's port behind which any station may be.
    fn guest(&self, name: &str) -> Member {
        self.add(name, PortConfig { mac_check: MacCheck::Off, ..PortConfig::vif() })
    }

    fn send(&self, from: &Member, frame: &[u8]) {
        from.end.to_send.lock().unwrap().push_back(frame.to_vec());
        self.engine.nudge(QueueRef { port: from.id, queue: 0, side: Side::Tx });
    }

    /// A station in the network behind these ports sends a broadcast, which all of them receive.
    fn speaks(&self, ports: &[&Member], number: u8) {
        for port in ports {
            self.send(port, &broadcast(number));
        }
    }

    /// Joins ports until the result is dropped: a frame that leaves by one comes in by all others, and by itself if
    /// it is `reflected`.
    fn join(&self, members: &[&Member], reflected: bool) -> Joint {
        let mut cut = Vec::new();
        for (at, member) in members.iter().enumerate() {
            let (sender, frames) = mpsc::sync_channel::<Vec<u8>>(QUEUE);
            *member.end.outside.lock().unwrap() = Some(sender);
            cut.push(Arc::clone(&member.end));
            let others = members.iter().enumerate().filter(|(other, _)| reflected || *other != at);
            let to: Vec<_> = others.map(|(_, it)| (it.id, Arc::clone(&it.end))).collect();
            let engine = Arc::downgrade(&self.engine);
            std::thread::spawn(move || {
                while let Ok(frame) = frames.recv() {
                    // The rate is high enough for a loop, and low enough to leave a processor to others.
                    std::thread::sleep(Duration::from_micros(200));
                    let Some(engine) = engine.upgrade() else { return };
                    for (port, end) in &to {
                        let mut to_send = end.to_send.lock().unwrap();
                        if to_send.len() < QUEUE {
                            to_send.push_back(frame.clone());
                        }
                        drop(to_send);
                        engine.nudge(QueueRef { port: *port, queue: 0, side: Side::Tx });
                    }
                }
            });
        }
        Joint { cut }
    }

    fn blocked(&self, member: &Member) -> Option<Blocked> {
        let blocked = self.loops.blocked(member.id, clock::now_ns());
        assert_eq!(blocked.is_some(), self.engine.fabric().is_blocked(member.id));
        blocked
    }

    /// The time until a blocked port is tried.
    fn wait_ns(&self, member: &Member) -> u64 {
        self.loops.state().blocked[&member.id].wait_ns
    }

    fn eventually_blocked(&self, member: &Member) -> Blocked {
        eventually(&format!("{} is blocked", member.name), || self.blocked(member))
    }
}

/// A network that joins ports until the value is dropped.
struct Joint {
    cut: Vec<Arc<End>>,
}

impl Drop for Joint {
    fn drop(&mut self) {
        for end in &self.cut {
            *end.outside.lock().unwrap() = None;
            end.to_send.lock().unwrap().clear();
        }
    }
}

fn station(number: u8) -> Mac {
    Mac([0x52, 0x54, 0, 0, 0, number])
}

fn frame(src: Mac, dst: Mac) -> Vec<u8> {
    let mut frame = [dst.0, src.0].concat();
    frame.resize(60, 0);
    frame
}

fn broadcast(number: u8) -> Vec<u8> {
    frame(station(number), Mac::BROADCAST)
}

/// Waits until no more frames arrive.
fn is_calm(member: &Member) {
    let mut before = member.got();
    eventually("the network is calm", || {
        std::thread::sleep(Duration::from_millis(20));
        let now = member.got();
        (std::mem::replace(&mut before, now) == now).then_some(())
    });
}

const LONG_NS: u64 = 600_000 * MS;

#[test]
fn the_younger_of_two_uplinks_into_one_lan_is_blocked_and_the_lan_is_calm() {
    let rig = Rig::new(LONG_NS);
    let [older, younger] = ["lan0", "lan1"].map(|name| rig.uplink(name));
    let guest = rig.guest("web0");
    let _lan = rig.join(&[&older, &younger], false);
    rig.speaks(&[&older, &younger], 1);
    let blocked = rig.eventually_blocked(&younger);
    assert_eq!((blocked.with.as_str(), blocked.vid, blocked.tries), ("lan0", Vid::DEFAULT, 0));
    assert_eq!(rig.blocked(&older), None);
    is_calm(&guest);
    // The guest's frame leaves by one uplink, and the answer reaches the guest.
    let before = older.got();
    rig.send(&guest, &broadcast(2));
    eventually("the LAN hears the guest", || (older.got() > before).then_some(()));
    let before = guest.got();
    rig.send(&older, &frame(station(1), station(2)));
    eventually("the guest hears the LAN", || (guest.got() > before).then_some(()));
    assert_eq!(rig.loops.counts().found, 1);
    assert_eq!(rig.blocked(&guest), None);
}

#[test]
fn of_three_uplinks_into_one_lan_the_oldest_goes_on() {
    let rig = Rig::new(LONG_NS);
    let [a, b, c] = ["lan0", "lan1", "lan2"].map(|name| rig.uplink(name));
    let _lan = rig.join(&[&a, &b, &c], false);
    rig.speaks(&[&a, &b, &c], 1);
    rig.eventually_blocked(&b);
    rig.eventually_blocked(&c);
    is_calm(&a);
    assert_eq!(rig.blocked(&a), None);
}

#[test]
fn a_blocked_port_is_tried_again_ever_later_and_forwards_when_the_loop_is_gone() {
    let rig = Rig::new(50 * MS);
    let [older, younger] = ["lan0", "lan1"].map(|name| rig.uplink(name));
    let guest = rig.guest("web0");
    let lan = rig.join(&[&older, &younger], false);
    rig.speaks(&[&older, &younger], 1);
    rig.eventually_blocked(&younger);
    is_calm(&guest);
    let before = guest.got();
    let tried = || rig.blocked(&younger).filter(|it| it.tries > 1);
    eventually("it is tried twice", tried);
    assert!(rig.wait_ns(&younger) >= 4 * 50 * MS);
    // Each try is a few broadcasts that do not circle.
    assert!(guest.got() - before < 20, "{} frames", guest.got() - before);
    assert_eq!(rig.loops.counts().found, 1, "a try is no other loop");
    drop(lan);
    eventually("it forwards", || rig.blocked(&younger).is_none().then_some(()));
    let before = younger.got();
    rig.send(&guest, &broadcast(2));
    eventually("the guest is heard there", || (younger.got() > before).then_some(()));
    // If the ports are soon joined again, the wait is longer.
    let _lan = rig.join(&[&older, &younger], false);
    rig.speaks(&[&older, &younger], 1);
    rig.eventually_blocked(&younger);
    assert!(rig.wait_ns(&younger) >= 8 * 50 * MS);
}

#[test]
fn a_guest_that_joins_its_interface_with_a_lan_is_blocked_and_no_uplink() {
    let rig = Rig::new(LONG_NS);
    // The guest's port is older than the uplink.
    let bridge = rig.guest("bridge0");
    let uplink = rig.uplink("lan0");
    let _lan = rig.join(&[&uplink, &bridge], false);
    rig.speaks(&[&uplink, &bridge], 1);
    assert_eq!(rig.eventually_blocked(&bridge).with.as_str(), "lan0");
    is_calm(&uplink);
    assert_eq!(rig.blocked(&uplink), None);
}

#[test]
fn a_guest_that_joins_its_two_interfaces_has_the_younger_blocked() {
    let rig = Rig::new(LONG_NS);
    let [first, second] = ["nic0", "nic1"].map(|name| rig.guest(name));
    let other = rig.guest("web0");
    let _bridge = rig.join(&[&first, &second], false);
    rig.send(&other, &broadcast(1));
    assert_eq!(rig.eventually_blocked(&second).with.as_str(), "nic0");
    is_calm(&other);
    assert_eq!((rig.blocked(&first), rig.blocked(&other)), (None, None));
}

#[test]
fn a_guest_that_sends_back_what_it_gets_is_blocked() {
    let rig = Rig::new(LONG_NS);
    let (mirror, uplink) = (rig.guest("mirror0"), rig.uplink("lan0"));
    let _guest = rig.join(&[&mirror], true);
    let speaks = || {
        rig.send(&uplink, &broadcast(1));
        rig.blocked(&mirror)
    };
    assert_eq!(eventually("it is blocked", speaks).with.as_str(), "mirror0");
    assert_eq!(rig.blocked(&uplink), None);
}

#[test]
fn a_network_that_sends_frames_back_is_no_loop() {
    let rig = Rig::new(LONG_NS);
    let (guest, uplink) = (rig.guest("web0"), rig.uplink("lan0"));
    let _lan = rig.join(&[&uplink], true);
    let speaks = || {
        rig.send(&guest, &broadcast(1));
        (rig.loops.counts().suspected > 0).then_some(())
    };
    eventually("it is looked into", speaks);
    eventually("that ends", || rig.loops.state().under_way.is_empty().then_some(()));
    assert_eq!((rig.blocked(&guest), rig.blocked(&uplink)), (None, None));
    assert_eq!(rig.loops.counts().found, 0);
}

#[test]
fn a_station_that_moves_back_and_forth_costs_a_probe_a_second_and_nobody_a_port() {
    let rig = Rig::new(LONG_NS);
    let [first, second] = ["lan0", "lan1"].map(|name| rig.uplink(name));
    let guest = rig.guest("web0");
    let begun = Instant::now();
    let mut moves = 0;
    while begun.elapsed() < Duration::from_millis(2500) {
        for uplink in [&first, &second] {
            rig.send(uplink, &frame(station(1), station(9)));
            moves += 1;
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    let suspected = rig.loops.counts().suspected;
    let seconds = begun.elapsed().as_secs() + 1;
    assert!((1..=seconds).contains(&suspected), "{suspected} of {moves} moves in {seconds} s");
    assert_eq!(rig.loops.counts().found, 0);
    eventually("the last frames arrive", || (guest.got() >= moves).then_some(()));
    assert_eq!(guest.got(), moves, "guests get no probe of it");
}

#[test]
fn a_few_moves_in_a_second_are_no_suspicion() {
    let rig = Rig::new(LONG_NS);
    let [first, second] = ["lan0", "lan1"].map(|name| rig.uplink(name));
    for _ in 0..4 {
        for uplink in [&first, &second] {
            rig.send(uplink, &broadcast(1));
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    assert_eq!(rig.loops.counts().suspected, 0);
}

#[test]
fn who_waits_for_a_blocked_ports_partner_does_not_wait_for_the_next_try() {
    let rig = Rig::new(LONG_NS);
    let [older, younger] = ["lan0", "lan1"].map(|name| rig.uplink(name));
    let lan = rig.join(&[&older, &younger], false);
    rig.speaks(&[&older, &younger], 1);
    rig.eventually_blocked(&younger);
    drop(lan);
    rig.loops.remove(older.id);
    rig.engine.remove_port(older.id);
    eventually("it forwards", || rig.blocked(&younger).is_none().then_some(()));
}

#[test]
fn other_settings_of_a_blocked_port_have_it_tried_at_once() {
    let rig = Rig::new(LONG_NS);
    let [first, second] = ["nic0", "nic1"].map(|name| rig.guest(name));
    let bridge = rig.join(&[&first, &second], false);
    rig.speaks(&[&first, &second], 1);
    rig.eventually_blocked(&second);
    rig.loops.change(second.id, true);
    let tried = || rig.blocked(&second).filter(|it| it.tries > 0);
    eventually("it is tried, and stays blocked", tried);
    drop(bridge);
    rig.loops.change(second.id, true);
    eventually("it forwards", || rig.blocked(&second).is_none().then_some(()));
}

#[test]
fn a_guest_that_takes_no_probe_stays_blocked_until_it_has_gone() {
    let rig = Rig::new(LONG_NS);
    let [first, second] = ["nic0", "nic1"].map(|name| rig.guest(name));
    let bridge = rig.join(&[&first, &second], false);
    rig.speaks(&[&first, &second], 1);
    rig.eventually_blocked(&second);
    second.end.is_deaf.store(true, Ordering::Relaxed);
    drop(bridge);
    rig.loops.remove(first.id);
    let tried = || rig.blocked(&second).filter(|it| it.tries > 0);
    eventually("it is tried, and stays blocked", tried);
    rig.engine.fabric().set_active(second.id, false).unwrap();
    rig.loops.change(second.id, true);
    eventually("the next guest is not blocked", || rig.blocked(&second).is_none().then_some(()));
}

#[test]
fn whoever_gets_the_number_of_a_blocked_port_is_not_blocked() {
    let rig = Rig::new(LONG_NS);
    let [older, younger] = ["lan0", "lan1"].map(|name| rig.uplink(name));
    let lan = rig.join(&[&older, &younger], false);
    rig.speaks(&[&older, &younger], 1);
    rig.eventually_blocked(&younger);
    drop(lan);
    rig.loops.remove(younger.id);
    rig.engine.remove_port(younger.id);
    let next = loop {
        let next = rig.uplink("next");
        if next.id == younger.id {
            break next;
        }
        rig.loops.remove(next.id);
        rig.engine.remove_port(next.id);
    };
    assert_eq!(rig.blocked(&next), None);
    let threads = || rig.loops.state().threads.iter().all(JoinHandle::is_finished);
    eventually("nobody tries the one that has gone", || threads().then_some(()));
    assert_eq!(rig.blocked(&next), None);
}

#[test]
fn a_guest_that_keeps_its_probe_waiting_hides_no_loop_of_others_and_no_end() {
    let rig = Rig::new(LONG_NS);
    let [first, second] = ["nic0", "nic1"].map(|name| rig.guest(name));
    let stands: Vec<_> = [&first, &second].map(|nic| nic.end.stands.lock().unwrap()).into();
    let suspected = || {
        for nic in [&first, &second] {
            // The frame is for a station behind the same port, so no worker waits for the port.
            rig.send(nic, &frame(station(1), station(1)));
            std::thread::sleep(Duration::from_millis(1));
        }
        (rig.loops.counts().suspected > 0).then_some(())
    };
    eventually("its moves are looked into", suspected);
    // The uplinks are in another VLAN, so no worker delivers their frames to those guests.
    let uplink = |name| {
        let vlan = weir_fabric::VlanMode::Access(Vid::new(7).unwrap());
        rig.add(name, PortConfig { vlan, ..PortConfig::uplink() })
    };
    let [older, younger] = ["lan0", "lan1"].map(uplink);
    let _lan = rig.join(&[&older, &younger], false);
    rig.speaks(&[&older, &younger], 2);
    assert_eq!(rig.eventually_blocked(&younger).vid, Vid::new(7).unwrap());
    let only_its_own = || (rig.loops.state().under_way.len() == 1).then_some(());
    eventually("the guest keeps its own look waiting", only_its_own);
    let begun = Instant::now();
    rig.loops.end();
    assert!(begun.elapsed() < Duration::from_secs(60), "it is left behind");
    drop(stands);
}

#[test]
fn a_loop_is_possible_where_two_ports_may_have_any_address_or_a_guest_may() {
    let rig = Rig::new(LONG_NS);
    assert!(!rig.loops.are_possible());
    let lan0 = rig.uplink("lan0");
    let web = rig.add("web0", PortConfig::vif());
    assert!(!rig.loops.are_possible(), "guests that are held to an address pass nothing on");
    rig.loops.change(web.id, true);
    assert!(rig.loops.are_possible());
    rig.loops.change(web.id, false);
    assert!(!rig.loops.are_possible());
    rig.uplink("lan1");
    assert!(rig.loops.are_possible());
    rig.loops.remove(lan0.id);
    assert!(!rig.loops.are_possible());
}
