//! Bonds of simulated uplinks, and of veth pairs.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;
use weir_engine::burst::{Burst, Pieces, Scratch, TakenChain};
use weir_engine::egress::{Packet, Put};
use weir_engine::gro::EgressList;
use weir_engine::{Ask, Delivered, Forward, Outgoing, Port, PortCounters, QueueRef, Side, Taken};
use weir_fabric::PortConfig;
use weir_guestmem::HostBuffer;
use weir_policy::steering::Receiver;
use weir_port_tap::{Service, UplinkPort};
use weir_testing::eventually;
use weir_wire::{Mac, OffloadCaps};

use super::*;

const HEADER: usize = 12;

/// A port with frames to send, which keeps those that it gets.
struct End {
    service: Service,
    to_send: Mutex<VecDeque<Vec<u8>>>,
    taken: AtomicU64,
    got: Mutex<Vec<Vec<u8>>>,
}

impl Port for End {
    fn take(&self, _: usize, ask: Ask, scratch: &mut Scratch, forward: Forward<'_>) -> Taken {
        let mut burst = scratch.lend();
        let count = lock(&self.to_send).len().min(burst.frames_max);
        let frames: Vec<_> = lock(&self.to_send).drain(..count).collect();
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
        self.taken.fetch_add(count as u64, Ordering::Release);
        Taken { frames: count, more: !lock(&self.to_send).is_empty(), ..Taken::default() }
    }

    fn arm_tx(&self, _queue: usize) -> bool {
        !lock(&self.to_send).is_empty()
    }

    fn rx_queues(&self) -> usize {
        1
    }

    fn deliver(&self, _: usize, burst: &Burst<'_>, frames: &[Outgoing]) -> Delivered {
        let mut list = EgressList::new(burst, frames, OffloadCaps::NONE);
        let put = |packet: Packet<'_, '_>| {
            let mut bytes = packet.head.as_slice().to_vec();
            for slice in packet.body() {
                let start = bytes.len();
                bytes.resize(start + slice.len(), 0);
                slice.read(&mut bytes[start..]);
            }
            lock(&self.got).push(bytes);
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

impl UplinkPort for End {
    fn service(&self) -> &Service {
        &self.service
    }

    fn descriptors(&self) -> Vec<std::os::fd::BorrowedFd<'_>> {
        Vec::new()
    }

    fn queues(&self) -> usize {
        1
    }
}

struct Member {
    id: PortId,
    end: Arc<End>,
}

/// A guest and a bond of three uplinks into one LAN.
struct Rig {
    engine: Arc<Engine>,
    guest: Member,
    uplinks: Vec<Member>,
    bond: Shared,
}

impl Rig {
    fn new(mode: BondMode) -> Self {
        let engine = Engine::start(1).unwrap();
        let add = |config: PortConfig, active: bool| {
            let make = |_, counters: Arc<PortCounters>| {
                Arc::new(End {
                    service: Service::new("end".into(), counters),
                    to_send: Mutex::default(),
                    taken: AtomicU64::new(0),
                    got: Mutex::default(),
                })
            };
            let (id, end) = engine.add_port(config, make).unwrap();
            engine.fabric().set_active(id, active).unwrap();
            Member { id, end }
        };
        let guest = add(PortConfig::vif(), true);
        let uplinks: Vec<_> = (0..3).map(|_| add(PortConfig::of_a_bond(), false)).collect();
        let senders = uplinks.iter().map(|it| Arc::clone(&it.end) as _).collect();
        let make = |_, counters| Arc::new(BondPort::new("lan".into(), senders, counters));
        let (id, port) = engine.add_port(PortConfig::uplink(), make).unwrap();
        engine.fabric().set_active(id, true).unwrap();
        let named =
            |it: &Member| Uplink { name: format!("eth{}", it.id).parse().unwrap(), id: it.id };
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell = Arc::new(eventfd(0, flags).unwrap());
        let bond = Shared {
            name: "lan".parse().unwrap(),
            id,
            engine: Arc::downgrade(&engine),
            port,
            uplinks: uplinks.iter().map(named).collect(),
            state: Mutex::new(State { mode, up: 0, lacp: None, noted: 0 }),
            changes: AtomicU64::new(0),
            logs: Logs::default(),
            ends: AtomicBool::new(false),
            inboxes: (0..3)
                .map(|_| Arc::new(Inbox::new(SLOW_PROTOCOLS, Arc::clone(&bell))))
                .collect(),
            bell,
            system: station(9),
        };
        Self { engine, guest, uplinks, bond }
    }

    /// Makes frames come in, and waits until they are forwarded or dropped.
    fn comes_in(&self, at: &Member, frame: &[u8]) {
        self.come_in(at, &[frame.to_vec()]);
    }

    fn come_in(&self, at: &Member, frames: &[Vec<u8>]) {
        let wanted = at.end.taken.load(Ordering::Acquire) + frames.len() as u64;
        lock(&at.end.to_send).extend(frames.iter().cloned());
        self.engine.nudge(QueueRef { port: at.id, queue: 0, side: Side::Tx });
        let taken = || (at.end.taken.load(Ordering::Acquire) >= wanted).then_some(());
        eventually("the frames are taken", taken);
    }

    /// Sends three frames of each flow, the flows in turn. Returns the uplink of each flow, which all three have left by.
    fn ways(&self, flows: &[Vec<u8>]) -> Vec<usize> {
        self.come_in(&self.guest, &[flows; 3].concat());
        let mut ways = BTreeMap::new();
        for (place, uplink) in self.uplinks.iter().enumerate() {
            for frame in std::mem::take(&mut *lock(&uplink.end.got)) {
                ways.entry(frame).or_insert_with(Vec::new).push(place);
            }
        }
        let way = |flow: &Vec<u8>| match ways.remove(flow).as_deref() {
            Some([one, second, third]) if one == second && second == third => *one,
            other => panic!("a flow left by {other:?}"),
        };
        flows.iter().map(way).collect()
    }

    /// The frames that the guest got since the last call, and those that left by each uplink.
    fn take(&self) -> (usize, Vec<usize>) {
        let take = |it: &Member| std::mem::take(&mut *lock(&it.end.got)).len();
        (take(&self.guest), self.uplinks.iter().map(take).collect())
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

#[derive(Clone, Copy, Debug)]
enum Step {
    /// These uplinks have a carrier from now on.
    Up(Places),
    Mode(BondMode),
    /// A station of the LAN sends to the guest or to all. A switch sends its frame by one of the links that it has
    /// aggregated, and otherwise by all.
    LanSends {
        to_all: bool,
        by: u8,
    },
    /// The guest sends, to the station or to all.
    GuestSends {
        to_all: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let mode = prop_oneof![Just(BondMode::ActiveBackup), Just(BondMode::Balance)];
    prop_oneof![
        3 => (0..8_u8).prop_map(Step::Up),
        1 => mode.prop_map(Step::Mode),
        4 => (any::<bool>(), any::<u8>()).prop_map(|(to_all, by)| Step::LanSends { to_all, by }),
        4 => any::<bool>().prop_map(|to_all| Step::GuestSends { to_all }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn no_frame_doubles_or_comes_back_whatever_goes_up_and_down(
        steps in proptest::collection::vec(step(), 1..60)
    ) {
        let (lan, guest) = (station(1), station(2));
        let rig = Rig::new(BondMode::ActiveBackup);
        let (mut up, mut mode) = (0, BondMode::ActiveBackup);
        for step in steps {
            match step {
                Step::Up(now) => {
                    up = now;
                    rig.bond.take_up(|state| state.up = now);
                }
                Step::Mode(now) => {
                    mode = now;
                    rig.bond.take_up(|state| state.mode = now);
                }
                Step::LanSends { to_all, by } => {
                    let with_link: Vec<_> = (0..)
                        .zip(&rig.uplinks)
                        .filter(|(place, _)| has(up, *place))
                        .map(|(_, uplink)| uplink)
                        .collect();
                    let dst = if to_all { Mac::BROADCAST } else { guest };
                    match mode {
                        BondMode::Balance if !with_link.is_empty() => {
                            let by = usize::from(by) % with_link.len();
                            rig.comes_in(with_link[by], &frame(lan, dst));
                        }
                        _ => with_link.iter().for_each(|it| rig.comes_in(it, &frame(lan, dst))),
                    }
                    let (to_guest, out) = rig.take();
                    prop_assert_eq!(to_guest, usize::from(up != 0), "{:?} of {:b}", mode, up);
                    prop_assert_eq!(out, vec![0; 3]);
                }
                Step::GuestSends { to_all } => {
                    let dst = if to_all { Mac::BROADCAST } else { lan };
                    rig.comes_in(&rig.guest, &frame(guest, dst));
                    let (to_guest, out) = rig.take();
                    prop_assert_eq!(to_guest, 0);
                    prop_assert_eq!(out.iter().sum::<usize>(), usize::from(up != 0));
                    for (place, frames) in (0..).zip(out) {
                        prop_assert!(frames == 0 || has(rig.bond.port.carriers(), place));
                    }
                }
            }
        }
    }
}

#[test]
fn guests_are_announced_by_the_uplink_that_takes_over_and_stations_outside_are_not() {
    let rig = Rig::new(BondMode::ActiveBackup);
    rig.bond.take_up(|state| state.up = 0b011);
    rig.comes_in(&rig.guest, &frame(station(2), Mac::BROADCAST));
    rig.comes_in(&rig.uplinks[0], &frame(station(1), Mac::BROADCAST));
    rig.take();
    assert!(rig.bond.take_up(|state| state.up = 0b010));
    rig.bond.announce();
    let got = std::mem::take(&mut *lock(&rig.uplinks[1].end.got));
    assert_eq!(got, [rarp(station(2)).to_vec()]);
    assert_eq!(rig.take(), (0, vec![0; 3]));
    assert!(!rig.bond.take_up(|state| state.up = 0b011), "nothing goes back");
    assert_eq!(rig.bond.changes.load(Ordering::Relaxed), 2);
}

#[test]
fn what_an_uplink_that_stands_by_gets_is_counted_there() {
    let rig = Rig::new(BondMode::ActiveBackup);
    rig.bond.take_up(|state| state.up = 0b011);
    rig.comes_in(&rig.uplinks[1], &frame(station(1), Mac::BROADCAST));
    let drops: Vec<_> = rig.uplinks[1].end.service.counters().drops().collect();
    assert_eq!(drops, [("port_inactive", 1)]);
    assert_eq!(rig.take(), (0, vec![0; 3]));
}

#[test]
fn a_link_is_heard_and_answered_and_a_guest_that_speaks_lacp_is_not() {
    let rig = Rig::new(BondMode::ActiveBackup);
    rig.bond.set_mode(BondMode::Lacp, LacpRate::Fast);
    rig.bond.take_up(|state| state.set_up(0b011, clock::now_ns()));
    assert!(!rig.bond.speak());
    let said = lock(&rig.uplinks[0].end.got)[0].clone();
    assert_eq!(rig.take(), (0, vec![1, 1, 0]));
    // The frame of another system, with the same content otherwise.
    let mut frame = said;
    frame[25] ^= 1;
    let rings = || rustix::io::read(&*rig.bond.bell, &mut [0; 8]).is_ok();
    rig.comes_in(&rig.guest, &frame);
    assert!(!rings());
    rig.bond.speak();
    assert_eq!(rig.take(), (0, vec![0; 3]));
    rig.comes_in(&rig.uplinks[1], &frame);
    assert!(rings());
    rig.bond.speak();
    let partner = |place| lock(&rig.bond.state).lacp.as_ref().unwrap().partner(place);
    assert_eq!((partner(0), partner(1)), (None, Some(station(8))));
    assert_eq!(rig.take(), (0, vec![0, 1, 0]), "it is answered, and reaches no guest");
    // In another mode nobody listens.
    rig.bond.set_mode(BondMode::ActiveBackup, LacpRate::Fast);
    rig.comes_in(&rig.uplinks[1], &frame);
    assert!(!rings());
}

#[test]
fn the_uplink_that_carried_frames_before_a_restart_goes_on() {
    let rig = Rig::new(BondMode::ActiveBackup);
    lock(&rig.bond.state).noted = 0b010;
    rig.bond.take_up(|state| state.up = 0);
    rig.bond.take_up(|state| state.up = 0b111);
    assert_eq!(rig.bond.port.carriers(), 0b010);
    rig.bond.take_up(|state| state.up = 0b100);
    rig.bond.take_up(|state| state.up = 0);
    rig.bond.take_up(|state| state.up = 0b011);
    assert_eq!(rig.bond.port.carriers(), 0b001, "the first, if all were lost");
}

/// A datagram of UDP from a guest to a station behind the bond.
fn datagram(v6: bool, guest: u16, to: u16, ports: [u16; 2]) -> Vec<u8> {
    let udp = [ports[0], ports[1], 12, 0].map(u16::to_be_bytes);
    let payload = [udp.as_flattened(), b"bond"].concat();
    let of = |net: &[u8], host: u16| [net, &host.to_be_bytes()].concat();
    let ip = if v6 {
        let front = [0x60, 0, 0, 0, 0, 12, 17, 64];
        let nets = [0xfd, 0x20].map(|first| [first, 1, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        [&front[..], &of(&nets[0], guest), &of(&nets[1], to)].concat()
    } else {
        let front = [0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0];
        [&front[..], &of(&[10, 0], guest), &of(&[192, 0], to)].concat()
    };
    let kind: [u8; 2] = if v6 { [0x86, 0xdd] } else { [8, 0] };
    let mut frame = [&station(1).0[..], &station(2).0, &kind, &ip, &payload].concat();
    frame.resize(frame.len().max(60), 0);
    frame
}

#[test]
fn flows_and_guests_are_spread_over_the_links_of_a_bond_and_no_flow_is_split() {
    let rig = Rig::new(BondMode::Balance);
    rig.bond.take_up(|state| state.up = 0b111);
    rig.comes_in(&rig.uplinks[0], &frame(station(1), Mac::BROADCAST));
    rig.take();
    // No uplink has less than 0.8 or more than 1.25 of its share.
    let is_even = |ways: &[usize], carrying: &[usize]| {
        let count = |place| ways.iter().filter(|way| **way == place).count();
        let counts: Vec<_> = (0..3).map(count).collect();
        println!("{counts:?} of {}", ways.len());
        let share = ways.len() as f64 / carrying.len() as f64;
        (0..3).all(|place| match carrying.contains(&place) {
            true => (0.8..=1.25).contains(&(counts[place] as f64 / share)),
            false => counts[place] == 0,
        })
    };
    for v6 in [false, true] {
        // A client's ports in turn, to one server; a server's answers; many stations; many guests with one flow each,
        // as in Dong 2011 section 5.1, where guests take the NICs in turn.
        let one_client = |n: u16| datagram(v6, 1, 2, [32_768 + n, 443]);
        let one_server = |n: u16| datagram(v6, 1, 2, [443, 32_768 + 7 * n]);
        let many_stations = |n: u16| datagram(v6, 1, 1000 + n, [5353, 53]);
        let many_guests = |n: u16| datagram(v6, 256 + n, 2, [12_865, 12_865]);
        let kinds: [&dyn Fn(u16) -> Vec<u8>; 4] =
            [&one_client, &one_server, &many_stations, &many_guests];
        for flow in kinds {
            let flows: Vec<_> = (0..1000).map(flow).collect();
            let ways = rig.ways(&flows);
            assert!(is_even(&ways, &[0, 1, 2]));
            // The flows of a lost link are spread over the other links, which keep their own flows.
            // They return with the link.
            rig.bond.take_up(|state| state.up = 0b101);
            let without = rig.ways(&flows);
            assert!(is_even(&without, &[0, 2]));
            assert!(ways.iter().zip(&without).all(|(way, now)| *way == 1 || way == now));
            rig.bond.take_up(|state| state.up = 0b111);
            assert_eq!(rig.ways(&flows), ways);
        }
        // Ten guests with two flows each, on three links: no link is idle.
        let threads =
            |guest: u16| [0, 1].map(|n: u16| datagram(v6, 256 + guest, 2, [40_000 + n, 12_865]));
        let ways = rig.ways(&(0..10).flat_map(threads).collect::<Vec<_>>());
        assert!((0..3).all(|place| ways.contains(&place)), "{ways:?}");
    }
}
