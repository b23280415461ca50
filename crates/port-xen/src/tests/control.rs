//! The control ring: a guest chooses hash and table.

use weir_engine::Port;
use weir_engine::guest::GuestPort;
use weir_netif::ctrl_type::*;
use weir_netif::message::Extra;
use weir_netif::{CtrlResponse, CtrlStatus};
use weir_wire::flow::{DEFAULT_KEY, KEY_LEN, flow_hash};
use weir_wire::{Layers, Mac};

use super::traffic::tcp;
use super::*;

const QUEUES: usize = 4;
const WITH_CTRL: Connect =
    Connect { queues: QUEUES as u64, split: true, sg: true, multicast: false, ctrl: true };

/// Builds the `seq`-th segment of TCP flow `flow`.
fn segment(flow: u16, seq: u32) -> Vec<u8> {
    let mut frame = tcp(10);
    frame[34..36].copy_from_slice(&(2000 + flow).to_be_bytes());
    frame[38..42].copy_from_slice(&seq.to_be_bytes());
    frame
}

fn flow_and_seq(frame: &[u8]) -> (usize, u32) {
    let port = u16::from_be_bytes([frame[34], frame[35]]);
    (usize::from(port - 2000), u32::from_be_bytes([frame[38], frame[39], frame[40], frame[41]]))
}

fn hash_of(frame: &[u8]) -> u32 {
    flow_hash(&Layers::parse(frame).unwrap()).unwrap()
}

fn words(entries: &[u32]) -> Vec<u8> {
    entries.iter().flat_map(|entry| entry.to_le_bytes()).collect()
}

impl Netfront {
    fn asks(&mut self, kind: u16, data: [u32; 3], bytes: &[u8]) -> CtrlResponse {
        self.ask(kind, data, bytes);
        let mut answer = None;
        eventually("an answer comes", || {
            answer = self.answer();
            answer.is_some()
        });
        answer.unwrap()
    }

    fn does(&mut self, kind: u16, data: [u32; 3], bytes: &[u8]) {
        let answer = self.asks(kind, data, bytes);
        let status = CtrlStatus::Success;
        assert_eq!(answer, CtrlResponse { id: kind, kind, status, data: 0 });
    }

    fn data_page(&self) -> u32 {
        self.ctrl.as_ref().unwrap().page.0
    }

    fn maps(&mut self, table: &[u32]) {
        let page = self.data_page();
        self.does(SET_HASH_MAPPING, [page, table.len() as u32, 0], &words(table));
    }

    /// Sets up the hash, with this table.
    fn hashes_by(&mut self, table: &[u32]) {
        self.does(SET_HASH_ALGORITHM, [1, 0, 0], &[]);
        self.does(SET_HASH_FLAGS, [0xf, 0, 0], &[]);
        let page = self.data_page();
        self.does(SET_HASH_KEY, [page, KEY_LEN as u32, 0], &DEFAULT_KEY);
        self.does(SET_HASH_MAPPING_SIZE, [table.len() as u32, 0, 0], &[]);
        self.maps(table);
    }

    /// Takes the next packet, and returns its queue.
    fn receive_any(&mut self) -> (usize, Received) {
        let mut got = None;
        eventually("a packet comes", || {
            got = (0..QUEUES).find_map(|queue| Some((queue, self.receive(queue)?)));
            got.is_some()
        });
        got.unwrap()
    }
}

#[test]
fn a_guests_table_chooses_the_queue_and_its_hash_comes_along() {
    let bench = Bench::new();
    let mut one = bench.guest(1, Connect::default());
    let mut two = bench.guest(2, WITH_CTRL);
    let port = bench.port(2);
    let send = |one: &mut Netfront, two: &mut Netfront, flow| {
        let sent = segment(flow, 0);
        assert!(one.send(0, &sent));
        let (queue, got) = two.receive_any();
        assert_eq!(got.frame, sent);
        (queue, got.packet.extras)
    };
    let by_weir: Vec<_> = (0..32).map(|flow| send(&mut one, &mut two, flow)).collect();
    assert!(by_weir.iter().all(|(_, extras)| extras.is_empty()), "nobody asked");

    // A table of three entries, which does not divide weir's table.
    let table = [3, 1, 2];
    two.hashes_by(&table);
    assert!(port.steering().unwrap().is_given());
    for flow in 0..32 {
        let (queue, extras) = send(&mut one, &mut two, flow);
        let value = hash_of(&segment(flow, 0));
        assert_eq!(queue, table[value as usize % 3] as usize);
        assert_eq!(extras, [Extra::Hash { kind: 1, algorithm: 1, value }]);
    }
    // A frame without a hash goes by the table, too, and carries no hash.
    assert!(one.send(0, &frame(1, 2, b"no IP")));
    let (queue, got) = two.receive_any();
    assert!(got.packet.extras.is_empty() && [1, 2, 3].contains(&queue));

    two.does(SET_HASH_ALGORITHM, [0, 0, 0], &[]);
    let again: Vec<_> = (0..32).map(|flow| send(&mut one, &mut two, flow)).collect();
    assert_eq!(again, by_weir);
}

#[test]
fn a_guest_with_another_front_end_has_no_table_left() {
    let bench = Bench::new();
    let mut one = bench.guest(1, Connect::default());
    let mut two = bench.guest(2, WITH_CTRL);
    two.hashes_by(&[1]);
    two.state(XenbusState::Initialising);
    eventually("weir has let go", || two.back_state() == Some(XenbusState::InitWait));
    assert!(two.release(), "the control ring is mapped still");
    bench.connect(&mut two, 2, WITH_CTRL);
    assert!(!bench.port(2).steering().unwrap().is_given());
    assert!(one.send(0, &segment(1, 0)));
    assert!(two.receive_any().1.packet.extras.is_empty());
}

#[test]
fn a_table_revised_under_traffic_reorders_no_flow_and_comes_into_force() {
    const FLOWS: usize = 6;
    let bench = Bench::new();
    let mut one = bench.guest(1, Connect::default());
    let mut two = bench.guest(2, WITH_CTRL);
    let port = bench.port(2);
    let mut table = [0, 1, 2, 3];
    two.hashes_by(&table);
    // The switch learns the address of `two`, since floods do not wait for buffers.
    assert!(two.send(0, &frame(2, 1, b"here")));
    receive(&mut one, 0);
    let (mut sent, mut came) = ([0_u32; FLOWS], [0_u32; FLOWS]);
    let mut moved = 0;
    let mut queue_of = [None; FLOWS];
    let mut round = 0;
    // On a busy machine most rounds may be over before the worker serves any.
    while round < 400 || moved == 0 {
        assert!(round < 1_000_000, "no flow ever moved");
        for (flow, seq) in sent.iter_mut().enumerate() {
            if one.send(0, &segment(flow as u16, *seq)) {
                *seq += 1;
            }
        }
        if round % 5 == 0 {
            table.rotate_left(1);
            two.maps(&table);
        }
        // The guest takes some frames of some queues; the others still wait.
        for queue in (0..QUEUES).filter(|queue| (round + queue) % 3 != 0) {
            for _ in 0..3 + round % 7 {
                let Some(got) = two.receive(queue) else { break };
                let (flow, seq) = flow_and_seq(&got.frame);
                // One frame may be missing: on a busy machine it has waited for too long.
                assert!(seq >= came[flow], "{seq} of flow {flow} in queue {queue} after {came:?}");
                came[flow] = seq + 1;
                moved += u32::from(queue_of[flow].replace(queue).is_some_and(|q| q != queue));
            }
        }
        port.steering().unwrap().look_after(5, &*port);
        round += 1;
    }
    eventually("all is answered", || {
        while (0..QUEUES).any(|queue| two.receive(queue).is_some()) {}
        one.queues[0].answers();
        one.queues[0].tx.ring().free() == one.queues[0].tx.ring().size()
    });
    while (0..QUEUES).any(|queue| two.receive(queue).is_some()) {}
    (0..2).for_each(|_| port.steering().unwrap().look_after(5, &*port));
    for flow in 0..FLOWS as u16 {
        let sent = segment(flow, 0);
        assert!(one.send(0, &sent));
        assert_eq!(two.receive_any().0, table[hash_of(&sent) as usize % 4] as usize);
    }
}

#[test]
fn a_table_revised_while_nothing_comes_is_in_force_for_what_comes_next() {
    const FLOWS: u16 = 8;
    let bench = Bench::new();
    let mut one = bench.guest(1, Connect::default());
    let mut two = bench.guest(2, WITH_CTRL);
    let port = bench.port(2);
    for table in [[0, 1, 2, 3], [1, 2, 3, 0]] {
        if !port.steering().unwrap().is_given() {
            two.hashes_by(&table);
        } else {
            two.maps(&table);
        }
        // The guest's queues are empty, though most entries of their rings have no buffer.
        (0..2).for_each(|_| port.steering().unwrap().look_after(5, &*port));
        for flow in 0..FLOWS {
            let sent = segment(flow, 0);
            assert!(one.send(0, &sent));
            assert_eq!(two.receive_any().0, table[hash_of(&sent) as usize % 4] as usize);
        }
        while (0..QUEUES).any(|queue| two.receive(queue).is_some()) {}
    }
}

#[test]
fn what_cannot_be_is_answered_so_and_changes_nothing() {
    use CtrlStatus::{BufferOverflow, InvalidParameter, NotSupported};
    let bench = Bench::new();
    let mut one = bench.guest(1, Connect::default());
    let mut two = bench.guest(2, WITH_CTRL);
    two.hashes_by(&[3, 3]);
    let page = two.data_page();
    let read_only_ring = two.guest.grant(0, DomainId(7), false).0;
    let bad_queue = words(&[0, QUEUES as u32]);
    for (what, kind, data, status) in [
        ("an algorithm that is none", SET_HASH_ALGORITHM, [2, 0, 0], InvalidParameter),
        ("a hash type that is none", SET_HASH_FLAGS, [0x10, 0, 0], InvalidParameter),
        ("a key too long", SET_HASH_KEY, [page, KEY_LEN as u32 + 1, 0], BufferOverflow),
        ("a key far too long", SET_HASH_KEY, [page, u32::MAX, 0], BufferOverflow),
        ("a key in no page", SET_HASH_KEY, [1_000_000, 40, 0], InvalidParameter),
        ("a key in another's page", SET_HASH_KEY, [read_only_ring, 40, 0], InvalidParameter),
        ("a table too large", SET_HASH_MAPPING_SIZE, [129, 0, 0], InvalidParameter),
        ("entries beyond the table", SET_HASH_MAPPING, [page, 1, 2], InvalidParameter),
        ("entries that wrap around", SET_HASH_MAPPING, [page, 2, u32::MAX], InvalidParameter),
        ("more entries than a table has", SET_HASH_MAPPING, [page, 129, 0], BufferOverflow),
        ("a queue that is none", SET_HASH_MAPPING, [page, 2, 0], InvalidParameter),
        ("entries in no page", SET_HASH_MAPPING, [1_000_000, 2, 0], InvalidParameter),
        ("static grants", 8, [page, 1, 0], NotSupported),
        ("no type", 0, [0, 0, 0], NotSupported),
        ("no such type", u16::MAX, [0, 0, 0], NotSupported),
    ] {
        let answer = two.asks(kind, data, &bad_queue);
        assert_eq!((answer.id, answer.kind, answer.status), (kind, kind, status), "{what}");
    }
    for flow in 0..8 {
        assert!(one.send(0, &segment(flow, 0)));
        assert_eq!(two.receive_any().0, 3);
    }
    assert_eq!(bench.port(2).info().state, State::Running);
}

#[test]
fn requests_of_a_full_ring_are_all_answered() {
    let bench = Bench::new();
    let mut two = bench.guest(2, WITH_CTRL);
    let size = two.ctrl.as_ref().unwrap().ring.size();
    for _ in 0..3 {
        for _ in 0..size {
            two.ask(GET_HASH_MAPPING_SIZE, [0; 3], &[]);
        }
        for _ in 0..size {
            let mut answer = None;
            eventually("an answer comes", || {
                answer = two.answer();
                answer.is_some()
            });
            assert_eq!(answer.unwrap().data, 128);
        }
    }
}

#[test]
fn weir_that_starts_again_steers_by_itself_until_it_is_told() {
    let calls = CallPolicy::within(Kind::Immediate, 250_000);
    let mut bench = Bench::with(calls);
    let mut one = bench.guest(1, Connect::default());
    let mut two = bench.guest(2, WITH_CTRL);
    two.hashes_by(&[1]);
    drop(bench.manager.take());
    two.ask(SET_HASH_ALGORITHM, [1, 0, 0], &[]);
    let bench = Bench::on(bench.host.clone(), calls);
    let mut answer = None;
    eventually("what nobody served is answered", || {
        answer = two.answer();
        answer.is_some()
    });
    assert_eq!(answer.unwrap().status, CtrlStatus::Success);
    for domain in [1, 2] {
        let port = bench.port(domain);
        eventually("connected again", || port.info().state == State::Running);
    }
    bench.settle();
    assert!(one.send(0, &segment(0, 0)));
    assert!(two.receive_any().1.packet.extras.is_empty());
    two.hashes_by(&[2]);
    assert!(one.send(0, &segment(0, 1)));
    assert_eq!(two.receive_any().0, 2);
}

#[test]
fn multicast_and_gso_come_with_their_hash() {
    let bench = Bench::new();
    let mut one = bench.guest(1, Connect::default());
    let mut two = bench.guest(2, WITH_CTRL);
    two.hashes_by(&[1]);
    let big = tcp(20_000);
    let gso = Extra::Gso { size: 1448, kind: weir_netif::message::GSO_TCPV4 };
    let flags = weir_netif::message::tx_flags::CSUM_BLANK;
    assert!(one.send_slots(0, &big, 4096, flags, &[gso]));
    let value = hash_of(&big);
    let hash = Extra::Hash { kind: 1, algorithm: 1, value };
    let (queue, got) = two.receive_any();
    assert_eq!((queue, &got.packet.extras[..]), (1, &[gso, hash][..]));
    let mut to_all = segment(3, 0);
    to_all[..6].copy_from_slice(&Mac::BROADCAST.0);
    assert!(one.send(0, &to_all));
    let (queue, got) = two.receive_any();
    assert_eq!((queue, got.packet.extras.len()), (1, 1));
}
