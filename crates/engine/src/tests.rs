//! The worker and the switch with simulated ports.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use weir_fabric::{MacCheck, PortConfig, PortId, Vid, VlanMode};
use weir_guestmem::HostBuffer;
use weir_limits::{BURST_MAX, LATENCY_BUDGET_NS_DEFAULT};
use weir_policy::schedule::Share;
use weir_policy::steering::{Receiver, Steering};

use weir_wire::{Mac, OffloadCaps, VnetHdr};

use crate::frames::burst::{Burst, Pieces, Scratch, TakenChain};
use crate::frames::egress::{Emitted, Packet, Put};
use crate::frames::gro::EgressList;
use crate::working::crew::Options;
use crate::working::crew::WorkerHandle;
use crate::working::shared::Shared;
use crate::working::worker::Worker;
use crate::*;

mod observers;
mod refused;
mod waiting;
mod workers;

const SECOND_NS: u64 = 1_000_000_000;

/// A port whose peer is the test.
pub(crate) struct FakePort {
    id: PortId,
    /// Frames that the port will send.
    pub(crate) to_send: Mutex<VecDeque<Vec<u8>>>,
    /// The virtio-net header before each sent frame.
    vnet: Mutex<VnetHdr>,
    /// Waiting frames, each with its receiver.
    waiting: Mutex<VecDeque<(PortId, Vec<u8>)>>,
    /// The number of waiting frames that are tried at a time. If none of them could be sent, the frames behind them are
    /// tried next.
    tries: usize,
    try_from: AtomicUsize,
    /// The receiver of each retry, and the number of frames.
    tried_for: Mutex<Vec<(Option<PortId>, usize)>>,
    /// An action after some frames have been tried.
    tried: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    /// Received frames, each with its queue.
    got: Mutex<Vec<(usize, Vec<u8>)>>,
    rx_queues: AtomicUsize,
    steering: Steering,
    /// Buffers for received frames. A merged packet takes one buffer per frame.
    room: AtomicUsize,
    caps: OffloadCaps,
    /// Time after a delivery for which every call is held.
    hold: Option<Duration>,
    expired: Mutex<Option<Instant>>,
    expired_side: Mutex<Option<Side>>,
    /// Time for which the call for the port's own frames is held after they were sent.
    completions_hold: Option<Duration>,
    panics: bool,
    panics_on_delivery: bool,
    panics_at: &'static str,
    kicks: AtomicUsize,
    budget_ns: u64,
    failed: AtomicBool,
    /// The lock is held for a burst, as a port holds its queue's lock.
    serving: Mutex<()>,
    /// True if the port can be polled.
    pub(crate) peeks: bool,
    /// The number of requests for a kick.
    armed: AtomicUsize,
    /// The number of times that the port's worker had read the clock, at each burst.
    pub(crate) looks: Mutex<Vec<u32>>,
    /// True if several workers may take frames from the port.
    shares: bool,
    uplink: bool,
    /// True if the port is an overlay, which notifies guests of packets that are too long. The next fields count how
    /// often the engine asked whether the port is one, and how often it asked for a message.
    overlay: bool,
    asked_for_overlay: AtomicUsize,
    asked_to_tell: AtomicUsize,
    /// True if the kick of the transmit queue is also that of the receive queue.
    one_kick: bool,
    /// Two barriers in each burst, before the port takes its frames.
    meetings: Option<Barrier>,
}

impl FakePort {
    pub(crate) fn new(id: PortId) -> Self {
        Self {
            id,
            to_send: Mutex::default(),
            vnet: Mutex::default(),
            waiting: Mutex::default(),
            tries: usize::MAX,
            try_from: AtomicUsize::new(0),
            tried_for: Mutex::default(),
            tried: Mutex::default(),
            got: Mutex::default(),
            rx_queues: AtomicUsize::new(1),
            steering: Steering::new(1).unwrap(),
            room: AtomicUsize::new(usize::MAX),
            caps: OffloadCaps::NONE,
            hold: None,
            expired: Mutex::default(),
            expired_side: Mutex::default(),
            completions_hold: None,
            panics: false,
            panics_on_delivery: false,
            panics_at: "",
            kicks: AtomicUsize::new(0),
            budget_ns: LATENCY_BUDGET_NS_DEFAULT,
            failed: AtomicBool::new(false),
            serving: Mutex::default(),
            peeks: false,
            armed: AtomicUsize::new(0),
            looks: Mutex::default(),
            shares: false,
            uplink: false,
            overlay: false,
            asked_for_overlay: AtomicUsize::new(0),
            asked_to_tell: AtomicUsize::new(0),
            one_kick: false,
            meetings: None,
        }
    }
}

impl Receiver for FakePort {}

impl Overlay for FakePort {
    fn answers(&self, _head: &[u8], _network: u16) -> Option<Mac> {
        None
    }

    fn tell_too_long(&self, _head: &[u8], _network: u16, _mtu: u16) {
        self.asked_to_tell.fetch_add(1, Ordering::SeqCst);
    }
}

impl Port for FakePort {
    fn take(&self, _queue: usize, ask: Ask, scratch: &mut Scratch, forward: Forward<'_>) -> Taken {
        let Ask { what, now_ns } = ask;
        assert!(!self.panics, "a port with a bug");
        for _ in 0..2 {
            self.meetings.as_ref().map(Barrier::wait);
        }
        let _burst = self.serving.lock().unwrap();
        self.looks.lock().unwrap().push(clock::LOOKS.get());
        let mut waiting = self.waiting.lock().unwrap();
        let mut later = VecDeque::new();
        let frames: Vec<_> = match what {
            Take::New => {
                let mut to_send = self.to_send.lock().unwrap();
                let count = to_send.len().min(BURST_MAX);
                to_send.drain(..count).collect()
            }
            Take::Parked(None) => {
                let from = self.try_from.load(Ordering::SeqCst).min(waiting.len());
                later = waiting.split_off(from);
                later.drain(..later.len().min(self.tries)).map(|(_, frame)| frame).collect()
            }
            Take::Parked(Some(receiver)) => {
                let mut tried = Vec::new();
                for (port, frame) in waiting.drain(..) {
                    if port == receiver && tried.len() < self.tries {
                        tried.push(frame);
                    } else {
                        later.push_back((port, frame));
                    }
                }
                tried
            }
        };
        let room = frames.iter().map(|frame| 12 + frame.len()).sum::<usize>();
        let buffer = HostBuffer::new(room.max(1));
        let vnet = self.vnet.lock().unwrap().to_bytes();
        let mut burst = scratch.lend();
        let mut at = 0;
        for (token, frame) in frames.iter().enumerate() {
            let slice = buffer.slice(at, 12 + frame.len()).unwrap();
            slice.write(&vnet);
            slice.skip(12).write(frame);
            at += slice.len();
            let (token, len) = (token as u64, slice.len() as u32);
            let chain = TakenChain { token, len, pieces: Pieces::Only(slice) };
            burst.add(chain, 12, now_ns).unwrap();
        }
        burst.park_room = 100;
        burst.room.blocked.extend(waiting.iter().map(|(port, _)| *port));
        forward(&mut burst);
        waiting.extend(
            burst.room.parked.iter().map(|p| (p.port, frames[usize::from(p.frame)].clone())),
        );
        let none_went = burst.room.parked.len() == frames.len();
        let (more, kept) = (!later.is_empty(), waiting.len());
        waiting.append(&mut later);
        let parked_more = match what {
            Take::New => false,
            Take::Parked(None) if none_went => more,
            Take::Parked(None) => !waiting.is_empty(),
            Take::Parked(Some(_)) => !none_went && frames.len() == self.tries,
        };
        if let Take::Parked(receiver) = what {
            self.tried_for.lock().unwrap().push((receiver, frames.len()));
            self.try_from.store(if none_went && more { kept } else { 0 }, Ordering::SeqCst);
            let tried = self.tried.lock().unwrap().take();
            if let Some(tried) = tried {
                tried();
            }
        }
        Taken {
            frames: frames.len(),
            more: !self.to_send.lock().unwrap().is_empty(),
            peek: self.peeks,
            parked: waiting.len(),
            parked_more,
            // A minute is longer than any wait of a test.
            parked_until: (!waiting.is_empty()).then_some(now_ns + 60 * SECOND_NS),
            hold_until: self.completions_hold.map(|hold| now_ns + hold.as_nanos() as u64),
        }
    }

    fn deliver(&self, queue: usize, burst: &Burst<'_>, frames: &[Outgoing]) -> Delivered {
        assert!(!self.panics_on_delivery, "a port with a bug");
        let mut list = EgressList::new(burst, frames, self.caps);
        if let Some(row) = list.plain_in_a_row() {
            let by_list: Vec<_> = list.plain().map(|plain| plain.frame.token).collect();
            assert!(row.iter().map(|plain| plain.frame.token).eq(by_list), "a row is the list");
            assert_eq!(row.iter().len(), frames.len());
        }
        let put = |packet: Packet<'_, '_>| {
            let (room, needed) = (self.room.load(Ordering::SeqCst), packet.frames as usize);
            if room < needed {
                return Put::Full;
            }
            self.room.fetch_sub(needed, Ordering::SeqCst);
            let mut bytes = packet.head.as_slice().to_vec();
            for slice in packet.body() {
                let start = bytes.len();
                bytes.resize(start + slice.len(), 0);
                slice.read(&mut bytes[start..]);
            }
            self.got.lock().unwrap().push((queue, bytes));
            Put::Done
        };
        while list.emit_next(put).is_some_and(|sent| sent.result != Ok(Emitted::Full)) {}
        let hold_until = self.hold.map(|hold| clock::now_ns() + hold.as_nanos() as u64);
        Delivered { worth_waiting: true, hold_until, ..list.delivered() }
    }

    fn expired(&self, _queue: usize, side: Side, _now_ns: u64) -> Option<u64> {
        assert_ne!(self.panics_at, "expired");
        *self.expired_side.lock().unwrap() = Some(side);
        *self.expired.lock().unwrap() = Some(Instant::now());
        None
    }

    fn wait_ns_max(&self) -> u64 {
        self.budget_ns
    }

    fn arm_tx(&self, queue: usize) -> bool {
        assert_ne!(self.panics_at, "arm_tx");
        let more = self.peek_tx(queue);
        // Only a kick shows frames that are sent after the count.
        self.armed.fetch_add(1, Ordering::SeqCst);
        more
    }

    fn peek_tx(&self, _queue: usize) -> bool {
        assert_ne!(self.panics_at, "peek_tx");
        !self.to_send.lock().unwrap().is_empty()
    }

    fn share_tx(&self, _queue: usize, _on: bool) -> bool {
        self.shares
    }

    fn is_uplink(&self) -> bool {
        self.uplink
    }

    fn overlay(&self) -> Option<&dyn Overlay> {
        self.asked_for_overlay.fetch_add(1, Ordering::SeqCst);
        self.overlay.then_some(self as &dyn Overlay)
    }

    fn kicked(&self, _queue: usize, _side: Side) {
        assert_ne!(self.panics_at, "kicked");
        self.kicks.fetch_add(1, Ordering::SeqCst);
    }

    fn has_one_kick(&self, _queue: usize) -> bool {
        self.one_kick
    }

    fn rx_queues(&self) -> usize {
        self.rx_queues.load(Ordering::SeqCst)
    }

    fn steering(&self) -> Option<&Steering> {
        self.steering.set_queues(self.rx_queues()).unwrap();
        Some(&self.steering)
    }

    fn fail(&self, _reason: &str) {
        self.failed.store(true, Ordering::SeqCst);
    }
}

/// Longest wait of a test until it fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for an action of a worker. The bound only matters for a test that fails.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "never happened: {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn add(engine: &Engine, change: impl FnOnce(&mut FakePort)) -> Arc<FakePort> {
    let config = PortConfig { mac_check: MacCheck::Off, ..PortConfig::vif() };
    let make = |id, _| {
        let mut port = FakePort::new(id);
        change(&mut port);
        Arc::new(port)
    };
    let (id, port) = engine.add_port(config, make).unwrap();
    engine.fabric().set_active(id, true).unwrap();
    port
}

#[test]
fn a_port_begins_with_its_settings_and_wakes_no_worker() {
    let engine = Engine::start(1).unwrap();
    let share = Share { weight: 3, window: None };
    let rate = Rate { per_s: 1_000_000, burst: 100_000 };
    let limit = RateLimit { bits: Some(rate), packets: None };
    let settings = PortSettings {
        share,
        send_limit: limit,
        receive_limit: limit,
        mtu: Some(100),
        gives_leases: true,
        ..PortSettings::default()
    };
    let config = || PortConfig { mac_check: MacCheck::Off, ..PortConfig::vif() };
    let make = |id, _| Arc::new(FakePort::new(id));
    let (set, port) = engine.add_port_with(config(), settings, make).unwrap();
    let (plain, _) = engine.add_port(config(), make).unwrap();
    let mut shares = Vec::new();
    assert_eq!(engine.shared.shares.copy_to(&mut shares), 1, "the default is no change");
    assert_eq!(
        [set, plain].map(|id| shares.get(id.index()).map(|it| it.share)),
        [Some(share), None]
    );
    let ports = engine.ports();
    let slots = [set, plain].map(|id| ports[id.index()].as_ref().unwrap());
    assert_eq!(slots.map(|slot| slot.police.is_some()), [true, false]);
    assert_eq!(slots.map(|slot| slot.gives_leases), [true, false]);
    // The first wake-up of the worker is for the frame, which is too long.
    assert_eq!(engine.wakeups(), 0);
    [set, plain].iter().for_each(|id| engine.fabric().set_active(*id, true).unwrap());
    send(&engine, &port, [frame(1, 2, 0)]);
    eventually("it is dropped", || slots[0].counters.drops().count() == 1);
}

#[test]
fn a_change_of_share_or_rate_leaves_the_table_of_ports_and_any_other_replaces_it() {
    let engine = Engine::start(1).unwrap();
    let port = add(&engine, |_| ());
    let before = engine.ports();
    engine.change_settings(port.id, |settings| {
        settings.share.weight = 7;
        settings.send_limit.packets = Some(Rate { per_s: 10, burst: 10 });
    });
    assert!(Arc::ptr_eq(&before, &engine.ports()));
    engine.change_settings(port.id, |settings| settings.mtu = Some(100));
    assert!(!Arc::ptr_eq(&before, &engine.ports()));
}

fn frame(from: u8, to: u8, number: u8) -> Vec<u8> {
    let mut frame = vec![number; 200];
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from]);
    if to == 0xff {
        frame[..6].fill(0xff);
    }
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame
}

fn send(engine: &Engine, port: &FakePort, frames: impl IntoIterator<Item = Vec<u8>>) {
    port.to_send.lock().unwrap().extend(frames);
    engine.nudge(QueueRef { port: port.id, queue: 0, side: Side::Tx });
}

fn numbers(port: &FakePort) -> Vec<u8> {
    port.got.lock().unwrap().iter().map(|(_, frame)| frame[14]).collect()
}

#[test]
fn broadcast_and_unicast_of_one_sender_stay_in_order() {
    let engine = Engine::start(1).unwrap();
    let (a, b) = (add(&engine, |_| {}), add(&engine, |_| {}));
    send(&engine, &b, [frame(2, 0xff, 0)]);
    eventually("a has it", || numbers(&a) == [0]);
    let mixed = (1..40).map(|n| frame(1, if n % 3 == 0 { 0xff } else { 2 }, n));
    send(&engine, &a, mixed);
    eventually("b has all", || numbers(&b).len() == 39);
    assert_eq!(numbers(&b), (1..40).collect::<Vec<_>>());
}

#[test]
fn a_frame_for_one_station_that_is_flooded_to_nobody_who_receives_is_counted() {
    let engine = Engine::start(1).unwrap();
    let (a, b) = (add(&engine, |_| {}), add(&engine, |_| {}));
    // The receiver's guest is not running at this time.
    b.rx_queues.store(0, Ordering::SeqCst);
    send(&engine, &a, [frame(1, 2, 1), frame(1, 0xff, 2), frame(1, 2, 3)]);
    let ports = engine.shared.ports.load();
    let dropped = |port: &FakePort| {
        let counters = &crate::switching::switch::slot(&ports, port.id).unwrap().counters;
        counters.drops().collect::<Vec<_>>()
    };
    eventually("both are", || dropped(&a) == [("unknown_unicast", 2)]);
    assert_eq!(dropped(&b), [], "a broadcast reaches whoever is there");
}

#[test]
fn a_flood_of_frames_that_are_too_long_looks_for_the_overlay_once_a_burst() {
    let engine = Engine::start(1).unwrap();
    let [a, b] = [(); 2].map(|()| add(&engine, |_| {}));
    let overlay = add(&engine, |port| port.overlay = true);
    let vlan = VlanMode::Access(Vid::of_network(3).unwrap());
    let config = PortConfig { mac_check: MacCheck::Off, vlan, ..PortConfig::vif() };
    engine.fabric().update_port(a.id, config).unwrap();
    engine.change_settings(a.id, |settings| settings.mtu = Some(100));
    let told = || overlay.asked_to_tell.load(Ordering::SeqCst);
    send(&engine, &a, (0..BURST_MAX as u8).map(|number| frame(1, 2, number)));
    eventually("each is told of", || told() == BURST_MAX);
    let looks = b.asked_for_overlay.load(Ordering::SeqCst);
    assert!((1..=2).contains(&looks), "in two bursts at most: {looks}");
}

#[test]
fn a_frame_reaches_who_came_before_it_was_sent_and_after_its_burst_began() {
    let engine = Engine::start(1).unwrap();
    let a = add(&engine, |port| port.meetings = Some(Barrier::new(2)));
    let b = add(&engine, |_| {});
    engine.fabric().set_active(b.id, false).unwrap();
    let meet = || a.meetings.as_ref().map(Barrier::wait);
    engine.nudge(QueueRef { port: a.id, queue: 0, side: Side::Tx });
    meet();
    engine.fabric().set_active(b.id, true).unwrap();
    a.to_send.lock().unwrap().push_back(frame(1, 0xff, 7));
    meet();
    eventually("b has it", || numbers(&b) == [7]);
}

#[test]
fn a_panic_while_a_port_is_served_stops_that_port_only() {
    let engine = Engine::start(1).unwrap();
    let (a, b) = (add(&engine, |_| {}), add(&engine, |_| {}));
    let broken = add(&engine, |port| port.panics = true);
    engine.nudge(QueueRef { port: broken.id, queue: 0, side: Side::Tx });
    eventually("it is told to stop", || broken.failed.load(Ordering::SeqCst));
    send(&engine, &a, [frame(1, 0xff, 7)]);
    eventually("the others go on", || numbers(&b) == [7]);
}

#[test]
fn a_burst_that_ends_in_a_panic_keeps_no_flow_from_moving() {
    let engine = Engine::start(1).unwrap();
    let a = add(&engine, |_| {});
    let broken = add(&engine, |port| {
        port.panics_on_delivery = true;
        port.rx_queues.store(2, Ordering::SeqCst);
    });
    send(&engine, &a, [frame(1, 0xff, 7)]);
    eventually("the panic", || broken.failed.load(Ordering::SeqCst));
    assert!(!a.failed.load(Ordering::SeqCst), "whose frame it was");
    let steering = broken.steering().unwrap();
    assert!(steering.begin_move(0, 1, &*broken));
    eventually("the entry moves", || {
        steering.look_after(u32::MAX, &*broken);
        steering.moved_entries() == 1
    });
}

#[test]
fn a_kick_costs_few_looks_at_the_clock() {
    let engine = Engine::start(1).unwrap();
    let (a, b) = (add(&engine, |port| port.peeks = true), add(&engine, |_| {}));
    for number in 1..=50 {
        send(&engine, &a, [frame(1, 0xff, number)]);
        eventually("it is there, and its kicks are on", || {
            numbers(&b).len() == usize::from(number)
                && a.armed.load(Ordering::SeqCst) >= number.into()
        });
    }
    let looks = a.looks.lock().unwrap();
    // The worker reads the clock when it is out of work, and before and after its sleep, which the burst also uses. It
    // reads the clock once more if it polls or the burst is long.
    let fewest = looks.windows(2).map(|pair| pair[1] - pair[0]).min();
    assert!(fewest.is_some_and(|fewest| fewest <= 4), "{fewest:?}");
}

#[test]
fn a_held_call_is_asked_about_at_its_deadline_and_not_before() {
    let engine = Engine::start(1).unwrap();
    let hold = Duration::from_millis(30);
    let (a, b) = (add(&engine, |_| {}), add(&engine, |port| port.hold = Some(hold)));
    let before = Instant::now();
    send(&engine, &a, [frame(1, 0xff, 7)]);
    eventually("the deadline", || b.expired.lock().unwrap().is_some());
    assert!(b.expired.lock().unwrap().unwrap() - before >= hold);
}

#[test]
fn a_deadline_outlives_a_panic_behind_it_in_the_same_burst() {
    let engine = Engine::start(1).unwrap();
    let hold = Duration::from_millis(1);
    let (a, b) = (add(&engine, |_| {}), add(&engine, |port| port.hold = Some(hold)));
    let broken = add(&engine, |port| port.panics_on_delivery = true);
    send(&engine, &a, [frame(1, 0xff, 7)]);
    eventually("b is asked", || b.expired.lock().unwrap().is_some());
    eventually("the receiver stops", || broken.failed.load(Ordering::SeqCst));
    assert!(!a.failed.load(Ordering::SeqCst), "whose frame it was");
    assert!(numbers(&broken).is_empty());
}

#[test]
fn a_receiver_that_panics_stops_and_its_sender_and_the_others_go_on() {
    let engine = Engine::start(1).unwrap();
    let broken = add(&engine, |port| port.panics_on_delivery = true);
    let (a, b) = (add(&engine, |_| {}), add(&engine, |_| {}));
    for number in 1..=3 {
        send(&engine, &a, [frame(1, 0xff, number)]);
        eventually("b has it", || numbers(&b).last() == Some(&number));
    }
    assert!(broken.failed.load(Ordering::SeqCst) && !a.failed.load(Ordering::SeqCst));
}

#[test]
fn a_panic_anywhere_in_a_ports_work_stops_that_port_and_loses_nobody_elses_kicks() {
    for call in ["kicked", "peek_tx", "arm_tx", "expired"] {
        let engine = Engine::start(1).unwrap();
        let (a, b) = (add(&engine, |port| port.peeks = true), add(&engine, |_| {}));
        let broken = add(&engine, |port| {
            port.panics_at = call;
            port.peeks = true;
            port.hold = Some(Duration::from_micros(1));
        });
        // The worker finds both kicks in one check.
        let busy = add(&engine, |_| {});
        let serving = busy.serving.lock().unwrap();
        engine.nudge(QueueRef { port: busy.id, queue: 0, side: Side::Tx });
        let kicks = [&broken, &a].map(|port| {
            let kick = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
            let queue = QueueRef { port: port.id, queue: 0, side: Side::Tx };
            let watch = engine.watch(queue, kick.try_clone().unwrap()).unwrap();
            (kick, watch)
        });
        broken.to_send.lock().unwrap().push_back(frame(3, 0xff, 9));
        a.to_send.lock().unwrap().push_back(frame(1, 0xff, 1));
        for (kick, _) in &kicks {
            rustix::io::write(kick, &1u64.to_ne_bytes()).unwrap();
        }
        drop(serving);
        eventually(call, || broken.failed.load(Ordering::SeqCst));
        eventually("nor is a kick lost", || a.kicks.load(Ordering::SeqCst) > 0);
        for number in 2..=4 {
            send(&engine, &a, [frame(1, 0xff, number)]);
            eventually("the others go on", || numbers(&b).last() == Some(&number));
        }
        assert!(!a.failed.load(Ordering::SeqCst) && !b.failed.load(Ordering::SeqCst), "{call}");
    }
}

/// A frame with these tags, outermost first, from address 1 to the broadcast address.
fn tagged(tags: &[(u16, u16)], number: u8) -> Vec<u8> {
    let plain = frame(1, 0xff, number);
    let tags = tags.iter().flat_map(|(kind, tci)| [kind.to_be_bytes(), tci.to_be_bytes()].concat());
    plain[..12].iter().copied().chain(tags).chain(plain[12..].iter().copied()).collect()
}

/// A guest behind an access port sends all kinds of tags; a trunk with native VLAN 1 receives.
#[test]
fn nothing_that_is_still_tagged_comes_in_by_an_access_port() {
    let engine = Engine::start(1).unwrap();
    let a = add(&engine, |_| {});
    let other = add(&engine, |_| {});
    let (id, trunk) =
        engine.add_port(PortConfig::uplink(), |id, _| Arc::new(FakePort::new(id))).unwrap();
    engine.fabric().set_active(id, true).unwrap();
    let hops: [&[(u16, u16)]; 7] = [
        &[(0x8100, 0), (0x8100, 20)],
        &[(0x8100, 0), (0x8100, 0)],
        &[(0x8100, 0), (0x8100, 0), (0x8100, 20)],
        &[(0x8100, 0), (0x88a8, 20)],
        &[(0x88a8, 20)],
        &[(0x88a8, 0), (0x8100, 20)],
        &[(0x8100, 1)],
    ];
    // The tagged frames are in one burst with plain frames to the same address, before and after
    // them.
    let burst = std::iter::once(frame(1, 0xff, 1));
    let burst = burst.chain(hops.iter().map(|tags| tagged(tags, 99)));
    let burst = burst.chain([tagged(&[(0x8100, 0)], 2), frame(1, 0xff, 3)]);
    send(&engine, &a, burst);
    eventually("the plain ones arrive", || {
        numbers(&trunk).len() >= 3 && numbers(&other).len() >= 3
    });
    assert_eq!((numbers(&trunk), numbers(&other)), (vec![1, 2, 3], vec![1, 2, 3]));
}

/// A port that is allowed to choose a VLAN by a tag cannot enter another VLAN by a second tag.
#[test]
fn a_second_tag_never_becomes_the_first() {
    let engine = Engine::start(1).unwrap();
    let trunk = |_: &str| {
        let config = PortConfig::uplink();
        let (id, port) = engine.add_port(config, |id, _| Arc::new(FakePort::new(id))).unwrap();
        engine.fabric().set_active(id, true).unwrap();
        port
    };
    let (a, b) = (trunk("a"), trunk("b"));
    send(
        &engine,
        &a,
        [
            tagged(&[(0x8100, 1), (0x8100, 20)], 98),
            tagged(&[(0x8100, 30), (0x8100, 20)], 1),
            tagged(&[(0x8100, 20)], 2),
        ],
    );
    eventually("two arrive", || b.got.lock().unwrap().len() >= 2);
    let outer: Vec<_> =
        b.got.lock().unwrap().iter().map(|(_, frame)| frame[14..16].to_vec()).collect();
    assert_eq!(outer, [[0, 30], [0, 20]], "what would lose its outer tag does not leave");
}

/// A provider's outer tag selects the VLAN if it is of the trunk's own kind. Customers' tags behind it are payload, and
/// so are tags of a customer whose port is an access port of that kind.
#[test]
fn a_providers_tags_are_a_trunks_own_where_it_says_so() {
    use weir_fabric::{TagProtocol, Vid, VlanMode};
    let engine = Engine::start(1).unwrap();
    let port = |config: PortConfig| {
        let (id, port) = engine.add_port(config, |id, _| Arc::new(FakePort::new(id))).unwrap();
        engine.fabric().set_active(id, true).unwrap();
        port
    };
    let tags = TagProtocol::Dot1ad;
    let (of_provider, of_customers) =
        (PortConfig { tags, ..PortConfig::uplink() }, PortConfig::uplink());
    let access = |tags| {
        let vlan = VlanMode::Access(Vid::new(30).unwrap());
        PortConfig { vlan, tags, mac_check: MacCheck::Off, ..PortConfig::uplink() }
    };
    let (from, to) = (port(of_provider.clone()), port(of_provider));
    let plain_trunk = port(of_customers);
    let (customer, guest) = (port(access(tags)), port(access(TagProtocol::Dot1q)));
    let tags_of = |port: &Arc<FakePort>, number: u8| {
        let got = port.got.lock().unwrap();
        let frame = got
            .iter()
            .map(|(_, frame)| frame)
            .find(|frame| frame.ends_with(&tagged(&[], number)[14..]))?;
        let len = frame.len() - tagged(&[], number).len();
        Some(frame[12..12 + len].to_vec())
    };
    let bytes = |tags: &[(u16, u16)]| {
        let all =
            tags.iter().flat_map(|(kind, tci)| [kind.to_be_bytes(), tci.to_be_bytes()].concat());
        Some(all.collect::<Vec<u8>>())
    };
    let (s, c) = (0x88a8, 0x8100);
    // Frames from the provider, and the result at each of the other ports, in one burst.
    type Tags = &'static [(u16, u16)];
    let cases: [(u8, Tags, [Option<Tags>; 4]); 8] = [
        (1, &[(0x88a8, 30)], [Some(&[(0x88a8, 30)]), Some(&[(0x8100, 30)]), Some(&[]), Some(&[])]),
        (
            2,
            &[(0x88a8, 30), (0x8100, 7)],
            [
                Some(&[(0x88a8, 30), (0x8100, 7)]),
                Some(&[(0x8100, 30), (0x8100, 7)]),
                Some(&[(0x8100, 7)]),
                None,
            ],
        ),
        (
            3,
            &[(0x88a8, 30), (0x88a8, 7)],
            [Some(&[(0x88a8, 30), (0x88a8, 7)]), Some(&[(0x8100, 30), (0x88a8, 7)]), None, None],
        ),
        // Untagged frames, by the port's own kind of tag. They are in VLAN 1, which is native on both trunks.
        (4, &[(0x8100, 30)], [Some(&[(0x8100, 30)]), None, None, None]),
        (5, &[(0x8100, 30), (0x88a8, 7)], [Some(&[(0x8100, 30), (0x88a8, 7)]), None, None, None]),
        (6, &[], [Some(&[]), Some(&[]), None, None]),
        (7, &[(0x88a8, 0), (0x8100, 7)], [Some(&[(0x8100, 7)]), None, None, None]),
        (8, &[(0x88a8, 1)], [Some(&[]), Some(&[]), None, None]),
    ];
    send(&engine, &from, cases.iter().map(|(number, tags, _)| tagged(tags, *number)));
    eventually("the last one is there", || tags_of(&to, 8).is_some());
    for (number, came, got) in cases {
        for (port, expected) in [&to, &plain_trunk, &customer, &guest].into_iter().zip(got) {
            assert_eq!(tags_of(port, number), expected.and_then(bytes), "{came:?}");
        }
    }
    // A customer's tags enter its VLAN, a provider's do not. The frames are sent alone, so that no other frame causes a
    // check of tags.
    send(&engine, &customer, [tagged(&[(c, 7)], 11)]);
    eventually("it is there", || tags_of(&to, 11).is_some());
    send(
        &engine,
        &customer,
        [tagged(&[(s, 30)], 12), tagged(&[(s, 0), (s, 9)], 13), tagged(&[(c, 7), (s, 9)], 14)],
    );
    eventually("it is there", || tags_of(&to, 14).is_some());
    assert_eq!(tags_of(&to, 11), bytes(&[(s, 30), (c, 7)]));
    assert_eq!(tags_of(&plain_trunk, 11), bytes(&[(c, 30), (c, 7)]));
    assert_eq!(tags_of(&guest, 11), None, "who would take the tag for one of its own");
    assert_eq!(tags_of(&to, 14), bytes(&[(s, 30), (c, 7), (s, 9)]));
    assert_eq!((tags_of(&to, 12), tags_of(&to, 13)), (None, None));
    // On a trunk with customers' tags, a provider's tag is payload, and never becomes the first tag.
    send(&engine, &plain_trunk, [tagged(&[(s, 30)], 21), tagged(&[(c, 30), (s, 9)], 22)]);
    eventually("it is there", || tags_of(&to, 22).is_some());
    assert_eq!(tags_of(&to, 22), bytes(&[(s, 30), (s, 9)]));
    assert_eq!([&to, &customer, &guest].map(|port| tags_of(port, 21)), [None, None, None]);
}

#[test]
fn naps_are_within_the_budget_of_whoever_may_receive() {
    let port = |id, budget_ns, rx_queues| {
        let mut port = FakePort::new(PortId::new(id).unwrap());
        port.budget_ns = budget_ns;
        port.rx_queues = AtomicUsize::new(rx_queues);
        Some(Slot::new(Arc::new(port), Arc::default()))
    };
    let shared = Arc::new(Shared::new(Options::default()).unwrap());
    let handle = Arc::new(WorkerHandle::new().unwrap());
    let mut worker = Worker::new(Arc::clone(&shared), 0, handle);
    shared.ports.store(Arc::new(vec![port(0, 900, 1), None, port(2, 100, 0), port(3, 500, 1)]));
    assert_eq!(worker.wait_ns_max(SECOND_NS), 500, "the one of 100 receives nothing");
    shared.ports.store(Arc::new(vec![port(0, 300, 1)]));
    assert_eq!(worker.wait_ns_max(SECOND_NS + 1), 500, "looked up a moment ago");
    assert_eq!(worker.wait_ns_max(2 * SECOND_NS), 300);
}

#[test]
fn completions_that_are_held_are_asked_about_at_their_deadline() {
    let engine = Engine::start(1).unwrap();
    let hold = Duration::from_millis(10);
    let a = add(&engine, |port| port.completions_hold = Some(hold));
    let before = Instant::now();
    send(&engine, &a, [frame(1, 0xff, 7)]);
    eventually("the deadline", || a.expired.lock().unwrap().is_some());
    assert!(a.expired.lock().unwrap().unwrap() - before >= hold);
    assert_eq!(*a.expired_side.lock().unwrap(), Some(Side::Tx));
}

#[test]
fn frames_for_a_full_receiver_are_tried_again_when_it_kicks() {
    for workers in [1, 2, 3] {
        let engine = Engine::start(workers).unwrap();
        let (a, b) = (add(&engine, |_| {}), add(&engine, |_| {}));
        send(&engine, &b, [frame(2, 0xff, 0)]);
        eventually("a has it", || numbers(&a) == [0]);
        b.room.store(3, Ordering::SeqCst);
        send(&engine, &a, (1..=10).map(|n| frame(1, 2, n)));
        eventually("the rest waits", || a.waiting.lock().unwrap().len() == 7);
        // Newer frames must not overtake the waiting ones.
        send(&engine, &a, [frame(1, 2, 11)]);
        eventually("it waits too", || a.waiting.lock().unwrap().len() == 8);
        assert_eq!(numbers(&b), [1, 2, 3]);
        b.room.store(100, Ordering::SeqCst);
        engine.nudge(QueueRef { port: b.id, queue: 0, side: Side::Rx });
        eventually("all arrive", || numbers(&b).len() == 11);
        assert_eq!(numbers(&b), (1..=11).collect::<Vec<_>>());
    }
}

#[test]
fn a_receivers_kick_while_a_part_of_those_that_wait_is_tried_is_not_taken_for_the_rest() {
    let engine = Arc::new(Engine::start(1).unwrap());
    let a = add(&engine, |port| port.tries = 5);
    let b = add(&engine, |_| {});
    send(&engine, &b, [frame(2, 0xff, 0)]);
    eventually("a has it", || numbers(&a) == [0]);
    b.room.store(0, Ordering::SeqCst);
    send(&engine, &a, (1..=10).map(|n| frame(1, 2, n)));
    eventually("all wait", || a.waiting.lock().unwrap().len() == 10);
    let kick = QueueRef { port: b.id, queue: 0, side: Side::Rx };
    // The first five find no room; then there is room.
    let (receiver, later) = (Arc::clone(&b), Arc::downgrade(&engine));
    *a.tried.lock().unwrap() = Some(Box::new(move || {
        receiver.room.store(100, Ordering::SeqCst);
        later.upgrade().unwrap().nudge(kick);
    }));
    engine.nudge(kick);
    eventually("all arrive", || numbers(&b).len() == 10);
    assert_eq!(numbers(&b), (1..=10).collect::<Vec<_>>());
}

/// A segment of 100 bytes, `number` segments into its connection.
fn segment(from: u8, to: u8, number: u8) -> Vec<u8> {
    let builder = etherparse::PacketBuilder::ethernet2([2, 0, 0, 0, 0, from], [2, 0, 0, 0, 0, to])
        .ipv4([10, 0, 0, from], [10, 0, 0, to], 64)
        .tcp(4000, 80, u32::from(number) * 100, 1000)
        .ack(1);
    let mut frame = Vec::new();
    builder.write(&mut frame, &[number; 100]).unwrap();
    frame
}

#[test]
fn merged_segments_that_find_no_room_wait_each_by_itself() {
    let engine = Engine::start(1).unwrap();
    let a = add(&engine, |_| {});
    let b = add(&engine, |port| port.caps = OffloadCaps::CSUM | OffloadCaps::TSO4);
    send(&engine, &b, [frame(2, 0xff, 0)]);
    eventually("a has it", || numbers(&a) == [0]);
    b.room.store(3, Ordering::SeqCst);
    send(&engine, &a, (0..10).map(|n| segment(1, 2, n)));
    let lens = || b.got.lock().unwrap().iter().map(|(_, p)| p.len() - 54).collect::<Vec<_>>();
    eventually("what does not fit waits", || a.waiting.lock().unwrap().len() == 7);
    assert_eq!(lens(), [200, 100], "as many as there was room for");
    b.room.store(100, Ordering::SeqCst);
    engine.nudge(QueueRef { port: b.id, queue: 0, side: Side::Rx });
    eventually("the rest arrives", || lens() == [200, 100, 700]);
    let got = b.got.lock().unwrap();
    let payload: Vec<u8> = got.iter().flat_map(|(_, packet)| packet[54..].to_vec()).collect();
    let sent: Vec<u8> = (0..10).flat_map(|n| [n; 100]).collect();
    assert_eq!(payload, sent);
}

#[test]
fn flows_are_spread_over_the_receivers_queues_and_each_stays_on_one() {
    let engine = Engine::start(2).unwrap();
    let (a, b) = (add(&engine, |_| {}), add(&engine, |_| {}));
    b.rx_queues.store(4, Ordering::SeqCst);
    let flow = |port: u16| {
        let builder = etherparse::PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [0xff; 6])
            .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
            .udp(port, 53);
        let mut frame = Vec::new();
        builder.write(&mut frame, &[0; 16]).unwrap();
        frame
    };
    send(&engine, &a, (0..32).chain(0..32).map(|n| flow(2000 + n)));
    eventually("all arrive", || b.got.lock().unwrap().len() == 64);
    let got = b.got.lock().unwrap();
    let queue_of = |frame: &[u8]| -> Vec<usize> {
        got.iter().filter(|(_, other)| other == frame).map(|(queue, _)| *queue).collect()
    };
    let mut used = [false; 4];
    for n in 0..32 {
        let queues = queue_of(&flow(2000 + n));
        assert_eq!(queues.len(), 2);
        assert_eq!(queues[0], queues[1], "one flow, one queue");
        used[queues[0]] = true;
    }
    assert_eq!(used, [true; 4], "32 flows use all queues");
}

#[test]
fn an_idle_engine_sleeps() {
    let engine = Engine::start(2).unwrap();
    let (a, b) = (add(&engine, |_| {}), add(&engine, |_| {}));
    send(&engine, &a, [frame(1, 0xff, 7)]);
    eventually("it arrives", || numbers(&b) == [7]);
    // The duration of the work after a frame depends on the machine. After that work, no event wakes any worker.
    eventually("nobody wakes up while nobody sends", || {
        let before = engine.wakeups();
        std::thread::sleep(Duration::from_millis(300));
        engine.wakeups() == before
    });
}

#[test]
fn a_port_that_was_removed_gets_nothing_and_its_number_is_free_again() {
    let engine = Engine::start(1).unwrap();
    let (a, b) = (add(&engine, |_| {}), add(&engine, |_| {}));
    engine.remove_port(b.id);
    send(&engine, &a, [frame(1, 0xff, 7)]);
    let c = add(&engine, |_| {});
    send(&engine, &a, [frame(1, 0xff, 8)]);
    eventually("c has the later one", || numbers(&c).contains(&8));
    assert!(numbers(&b).is_empty());
}

/// `a` sends numbered frames to `b` while its queue moves through all workers.
fn send_under_moves(engine: &Engine, a: &Arc<FakePort>, b: &Arc<FakePort>, frames: usize) {
    send(engine, b, [frame(2, 0xff, 0)]);
    eventually("a has it", || numbers(a) == [0]);
    let workers = engine.workers().len();
    for n in 0..frames {
        send(engine, a, [frame(1, 2, n as u8)]);
        engine.assign(a.id, 0, n % workers).unwrap();
    }
    eventually("all arrive", || numbers(b).len() == frames);
    assert!(numbers(b).iter().enumerate().all(|(n, number)| n as u8 == *number));
}

#[test]
fn a_queue_that_moves_between_workers_loses_and_reorders_nothing() {
    for workers in [2, 3] {
        let engine = Engine::start(workers).unwrap();
        let (a, b) = (add(&engine, |_| {}), add(&engine, |_| {}));
        send_under_moves(&engine, &a, &b, 5_000);
        // With one CPU, the sender may have made all the moves before any worker ran.
        for worker in 0..workers {
            let (bursts, arrived) = (engine.workers()[worker].bursts, numbers(&b).len());
            engine.assign(a.id, 0, worker).unwrap();
            send(&engine, &a, [frame(1, 2, 0)]);
            eventually("it arrives", || numbers(&b).len() == arrived + 1);
            eventually("by its worker", || engine.workers()[worker].bursts > bursts);
        }
    }
}

/// Makes a port with five frames that wait for a second port, which has no room.
fn waiting(engine: &Engine) -> (Arc<FakePort>, Arc<FakePort>) {
    let (a, b) = (add(engine, |_| {}), add(engine, |_| {}));
    send(engine, &b, [frame(2, 0xff, 0)]);
    eventually("a has it", || numbers(&a) == [0]);
    b.room.store(0, Ordering::SeqCst);
    send(engine, &a, (1..=5).map(|n| frame(1, 2, n)));
    eventually("all wait", || a.waiting.lock().unwrap().len() == 5);
    (a, b)
}

#[test]
fn frames_that_wait_for_a_receiver_go_out_from_the_worker_that_their_queue_has_then() {
    let engine = Engine::start(2).unwrap();
    let (a, b) = waiting(&engine);
    let before = engine.worker_of(a.id, 0).unwrap();
    engine.assign(a.id, 0, 1 - before).unwrap();
    b.room.store(100, Ordering::SeqCst);
    engine.nudge(QueueRef { port: b.id, queue: 0, side: Side::Rx });
    eventually("all arrive", || numbers(&b) == [1, 2, 3, 4, 5]);
}

#[test]
fn a_kick_that_came_before_a_queue_had_its_new_worker_is_not_missed() {
    let engine = Engine::start(2).unwrap();
    let (a, b) = waiting(&engine);
    // The new worker does not know yet that frames wait.
    b.room.store(100, Ordering::SeqCst);
    let before = engine.worker_of(a.id, 0).unwrap();
    engine.assign(a.id, 0, 1 - before).unwrap();
    eventually("all arrive", || numbers(&b) == [1, 2, 3, 4, 5]);
}

#[test]
fn a_kick_for_both_queues_of_a_pair_makes_those_go_on_who_wait_for_its_buffers() {
    let engine = Engine::start(1).unwrap();
    let (a, b) = (add(&engine, |_| {}), add(&engine, |port| port.one_kick = true));
    send(&engine, &b, [frame(2, 0xff, 0)]);
    eventually("a has it", || numbers(&a) == [0]);
    b.room.store(0, Ordering::SeqCst);
    send(&engine, &a, [frame(1, 2, 1)]);
    eventually("it waits", || a.waiting.lock().unwrap().len() == 1);
    b.room.store(100, Ordering::SeqCst);
    engine.nudge(QueueRef { port: b.id, queue: 0, side: Side::Tx });
    eventually("it arrives", || numbers(&b) == [1]);
}

#[test]
fn kicks_follow_their_queue() {
    let engine = Engine::start(2).unwrap();
    let (a, b) = (add(&engine, |_| {}), add(&engine, |_| {}));
    let kick = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    let queue = QueueRef { port: a.id, queue: 0, side: Side::Tx };
    let watch = engine.watch(queue, kick.try_clone().unwrap()).unwrap();
    for n in 1..=20u8 {
        let to = usize::from(n % 2);
        let looks = a.armed.load(Ordering::SeqCst);
        engine.assign(a.id, 0, to).unwrap();
        assert_eq!(engine.worker_of(a.id, 0), Some(to));
        eventually("it looks when it is told", || a.armed.load(Ordering::SeqCst) > looks);
        let bursts = engine.workers()[to].bursts;
        a.to_send.lock().unwrap().push_back(frame(1, 0xff, n));
        rustix::io::write(&kick, &1u64.to_ne_bytes()).unwrap();
        eventually("it arrives", || numbers(&b).len() == usize::from(n));
        eventually("by the right worker", || engine.workers()[to].bursts == bursts + 1);
    }
    drop(watch);
    let c = add(&engine, |_| {});
    // A worker has handled an earlier request once it has served another queue twice.
    let workers_look = || {
        for n in 0..4 {
            let arrived = numbers(&b).len();
            engine.assign(c.id, 0, n % 2).unwrap();
            send(&engine, &c, [frame(3, 0xff, 100)]);
            eventually("the other's arrives", || numbers(&b).len() == arrived + 1);
        }
    };
    workers_look();
    a.to_send.lock().unwrap().push_back(frame(1, 0xff, 0));
    rustix::io::write(&kick, &1u64.to_ne_bytes()).unwrap();
    workers_look();
    assert_eq!(a.to_send.lock().unwrap().len(), 1, "nobody watches any more");
}

#[test]
fn each_pair_of_queues_has_a_thread_of_its_own_which_others_get_after_it() {
    let options = Options { execution: Execution::Threads, ..Options::default() };
    let engine = Engine::start_with(options).unwrap();
    assert_eq!(engine.workers().len(), 0);
    let (a, b) = (add(&engine, |_| {}), add(&engine, |_| {}));
    send(&engine, &a, [frame(1, 0xff, 7)]);
    eventually("it arrives", || numbers(&b) == [7]);
    send(&engine, &b, [frame(2, 0xff, 8)]);
    eventually("it arrives", || numbers(&a) == [8]);
    assert_ne!(engine.worker_of(a.id, 0), engine.worker_of(b.id, 0));
    assert!(!engine.dispatches());
    for n in 0..10 {
        let c = add(&engine, |_| {});
        send(&engine, &c, [frame(3, 0xff, n)]);
        eventually("it arrives", || numbers(&b).contains(&n));
        engine.remove_port(c.id);
    }
    assert_eq!(engine.workers().len(), 3, "the one of a port that is gone serves the next");
}

#[test]
fn a_worker_with_a_core_of_its_own_looks_without_being_told() {
    let options = Options { realization: Realization::Dedicated, workers: 1, ..Options::default() };
    let engine = Engine::start_with(options).unwrap();
    let (a, b) = (add(&engine, |port| port.peeks = true), add(&engine, |_| {}));
    send(&engine, &a, [frame(1, 0xff, 1)]);
    eventually("it arrives", || numbers(&b) == [1]);
    let wakeups = engine.workers()[0].wakeups;
    for n in 2..10 {
        std::thread::sleep(Duration::from_millis(3));
        a.to_send.lock().unwrap().push_back(frame(1, 0xff, n));
        eventually("it arrives", || numbers(&b).last() == Some(&n));
    }
    assert_eq!(engine.workers()[0].wakeups, wakeups, "it never slept");
    assert_eq!(a.armed.load(Ordering::SeqCst), 0, "nor asked for a kick");
}

#[test]
fn queues_move_to_another_worker_when_one_has_too_much_to_do() {
    let options = Options { workers: 2, ..Options::default() };
    let engine = Engine::start_with(options).unwrap();
    let ports: Vec<_> = (0..4).map(|_| add(&engine, |_| {})).collect();
    for (number, port) in ports.iter().enumerate() {
        send(&engine, port, [frame(number as u8, 0xff, 0)]);
    }
    eventually("all are served", || ports.iter().all(|port| numbers(port).len() == 3));
    let workers =
        || -> Vec<_> { ports.iter().map(|port| engine.worker_of(port.id, 0).unwrap()).collect() };
    assert_eq!(workers(), [0; 4], "one worker is enough");
    let busy = |busy_ns: u64| {
        let table = engine.shared.ports.load();
        table.iter().flatten().for_each(|slot| slot.pairs[0].busy_ns.add(busy_ns));
    };
    engine.dispatch(SECOND_NS);
    busy(SECOND_NS / 80);
    engine.dispatch(SECOND_NS + SECOND_NS / 20);
    let on_first = workers().iter().filter(|worker| **worker == 0).count();
    assert_eq!(on_first, 2, "four queues that take a quarter of a core each");
    assert_eq!(engine.moved().1, 2);
    // The queues move back when the load is low.
    for step in 2..20 {
        busy(SECOND_NS / 2_000);
        engine.dispatch(SECOND_NS + step * SECOND_NS / 20);
    }
    assert!(workers().iter().all(|worker| *worker == workers()[0]), "{:?}", engine.moved());
}
