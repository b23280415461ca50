//! Number of copies: one between guests, and through weir's memory only for bytes that somebody
//! reads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use weir_engine::burst::{Burst, Scratch};
use weir_engine::egress::{Packet, Put};
use weir_engine::filter::{Action, PortRules, Rules};
use weir_engine::gro::EgressList;
use weir_engine::guest::GuestPort;
use weir_engine::{Ask, Delivered, Forward, Outgoing, Port, Taken};
use weir_fabric::PortConfig;
use weir_limits::HEAD_LEN;
use weir_netif::Segment;
use weir_netif::message::{Extra, GSO_TCPV4, tx_flags};
use weir_policy::steering::Receiver;
use weir_wire::OffloadCaps;
use weir_xen::testing::Copied;

use super::traffic::{fold, tcp};
use super::*;

/// A receiver of another kind, which reads its frames.
#[derive(Default)]
struct Reader {
    got: Mutex<Vec<Vec<u8>>>,
    failed: AtomicBool,
}

impl Receiver for Reader {}

impl Port for Reader {
    fn take(&self, _: usize, _: Ask, _: &mut Scratch, _: Forward<'_>) -> Taken {
        Taken::default()
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
            self.got.lock().unwrap().push(bytes);
            Put::Done
        };
        while list.emit_next(put).is_some() {}
        list.delivered()
    }

    fn arm_tx(&self, _: usize) -> bool {
        false
    }

    fn rx_queues(&self) -> usize {
        1
    }

    fn fail(&self, _: &str) {
        self.failed.store(true, Ordering::SeqCst);
    }
}

impl Bench {
    fn reader(&self) -> Arc<Reader> {
        let make = |_, _| Arc::new(Reader::default());
        let (id, reader) = self.engine.add_port(PortConfig::uplink(), make).unwrap();
        self.engine.fabric().set_active(id, true).unwrap();
        reader
    }

    fn copied_since(&self, before: Copied) -> Copied {
        let now = self.host.copied();
        Copied {
            from_grants: now.from_grants - before.from_grants,
            to_grants: now.to_grants - before.to_grants,
            between_grants: now.between_grants - before.between_grants,
            calls: now.calls - before.calls,
        }
    }
}

/// Makes guest `domain` known to the switch, which already knows `other`.
pub(super) fn say_where(front: &mut Netfront, domain: u16, other: &mut Netfront, of: u16) {
    assert!(front.send(0, &frame(domain, of, b"here")));
    receive(other, 0);
}

/// Fills all buffers that the second guest offers. The first guest gets its own buffers back.
pub(super) fn fill(bench: &Bench, one: &mut Netfront) {
    for n in 0..crate::testing::BUFFERS as u8 {
        assert!(one.send(0, &frame(1, 2, &[n])));
    }
    let full = || bench.port(2).counters().rx[0].frames.get() == crate::testing::BUFFERS;
    eventually("full", full);
    all_is_answered(one);
}

/// Takes the frames of [`fill`].
fn empty(two: &mut Netfront) {
    for n in 0..crate::testing::BUFFERS as u8 {
        assert_eq!(receive(two, 0).frame, frame(1, 2, &[n]));
    }
}

/// Returns true if the checksum of the TCP segment in a frame is right.
fn has_good_checksum(frame: &[u8]) -> bool {
    let (pseudo, segment) = (&frame[26..34], &frame[34..]);
    let sum: u32 = [pseudo, segment]
        .into_iter()
        .flat_map(|bytes| bytes.chunks(2))
        .map(|word| u32::from(u16::from_be_bytes([word[0], *word.get(1).unwrap_or(&0)])))
        .sum();
    let sum = sum + 6 + segment.len() as u32;
    fold(sum) == 0
}

const HEAD: u64 = HEAD_LEN as u64;

#[test]
fn between_xen_guests_payload_is_copied_once_from_page_to_page() {
    let bench = Bench::new();
    let (mut one, mut two) = bench.pair(Connect::default());
    say_where(&mut two, 2, &mut one, 1);
    let payload: Vec<u8> = (0..20_000_u32).map(|i| (i * 7) as u8).collect();
    let sent = frame(1, 2, &payload);
    let before = bench.host.copied();
    assert!(one.send(0, &sent));
    assert_eq!(receive(&mut two, 0).frame, sent);
    let once = Copied {
        from_grants: HEAD,
        to_grants: HEAD,
        between_grants: sent.len() as u64 - HEAD,
        calls: 2,
    };
    assert_eq!(bench.copied_since(before), once);
}

#[test]
fn a_packet_that_is_all_front_is_not_looked_for_again() {
    let bench = Bench::new();
    let (mut one, mut two) = bench.pair(Connect::default());
    let reader = bench.reader();
    say_where(&mut two, 2, &mut one, 1);
    let before = bench.host.copied();
    assert!(one.send(0, &frame(1, 0xff, &[1; 114])));
    receive(&mut two, 0);
    eventually("it came", || reader.got.lock().unwrap().len() == 2);
    let front = Copied { from_grants: HEAD, to_grants: HEAD, between_grants: 0, calls: 2 };
    assert_eq!(bench.copied_since(before), front);
}

#[test]
fn a_receiver_of_another_kind_gets_the_bytes_and_they_are_fetched_once_for_all() {
    let bench = Bench::new();
    let (mut one, mut two) = bench.pair(Connect::default());
    let (three, four) = (bench.reader(), bench.reader());
    say_where(&mut two, 2, &mut one, 1);
    // Old content of weir's buffers must never reach a guest.
    for n in 0..40_u8 {
        let sent = frame(1, 0xff, &vec![n; 300 + 1000 * usize::from(n % 10)]);
        let before = bench.host.copied();
        assert!(one.send(0, &sent));
        assert_eq!(receive(&mut two, 0).frame, sent, "{n}");
        for reader in [&three, &four] {
            let came = || reader.got.lock().unwrap().last() == Some(&sent);
            eventually("it is what was sent", came);
        }
        let copied = bench.copied_since(before);
        // Either receiver may come first.
        let len = sent.len() as u64;
        assert_eq!(copied.from_grants, len, "{n}");
        assert_eq!(copied.to_grants + copied.between_grants, len, "{n}");
    }
    assert!(!three.failed.load(Ordering::SeqCst));
}

#[test]
fn a_queue_whose_payload_is_read_brings_it_with_the_front_until_a_xen_guest_gets_it() {
    let bench = Bench::new();
    let mut one = bench.guest(1, Connect::default());
    let reader = bench.reader();
    let to_reader = [1, 2, 3].map(|n| {
        let before = bench.host.copied();
        let sent = frame(1, 9, &[n; 1000]);
        assert!(one.send(0, &sent));
        eventually("it came", || reader.got.lock().unwrap().last() == Some(&sent));
        bench.copied_since(before)
    });
    assert_eq!(to_reader.map(|copied| copied.calls), [2, 1, 1]);
    assert_eq!(to_reader.map(|copied| copied.from_grants), [1014; 3]);
    let mut two = bench.guest(2, Connect::default());
    say_where(&mut two, 2, &mut one, 1);
    let to_guest = [4, 5].map(|n| {
        let before = bench.host.copied();
        let sent = frame(1, 2, &[n; 1000]);
        assert!(one.send(0, &sent));
        assert_eq!(receive(&mut two, 0).frame, sent);
        let copied = bench.copied_since(before);
        (copied.from_grants, copied.between_grants)
    });
    assert_eq!(to_guest, [(1014, 0), (HEAD, 1014 - HEAD)]);
}

#[test]
fn what_weir_sums_or_cuts_for_a_guest_is_fetched_before() {
    let bench = Bench::new();
    let mut one = bench.guest(1, Connect::default());
    let mut two = bench.attached(2);
    two.set("feature-no-csum-offload", "1");
    bench.connect(&mut two, 2, Connect { sg: false, ..Connect::default() });
    say_where(&mut two, 2, &mut one, 1);
    let gso = Extra::Gso { size: 1000, kind: GSO_TCPV4 };
    // Old content of weir's buffers must not reach a guest.
    for fill in [0xee, 0x11] {
        let mut sent = tcp(2500);
        sent[54..].fill(fill);
        assert!(one.send_slots(0, &sent, 4096, tx_flags::CSUM_BLANK, &[gso]));
        for len in [1054, 1054, 554] {
            let got = receive(&mut two, 0).frame;
            assert!(got.len() == len && got[54..].iter().all(|byte| *byte == fill));
            assert!(has_good_checksum(&got));
        }
    }
    assert_eq!(bench.host.copied().between_grants, 0);
}

#[test]
fn of_a_frame_that_waits_only_payload_may_change_and_it_is_still_copied_once() {
    while_frames_wait(|bench| {
        let (mut one, mut two) = bench.pair(Connect::default());
        say_where(&mut two, 2, &mut one, 1);
        fill(bench, &mut one);
        let (page, _) = one.queues[0].next_page();
        assert!(one.send(0, &frame(1, 2, &[0xaa; 5000])));
        eventually("it waits", || bench.port(1).counters().parked.get() == 1);
        let before = bench.host.copied();
        let at = page as usize * 4096;
        one.guest.memory().slice(at, 4096).unwrap().write(&[0xbb; 4096]);
        empty(&mut two);
        let mut expected = frame(1, 2, &[0xaa; 5000]);
        expected[HEAD_LEN..4096].fill(0xbb);
        assert_eq!(receive(&mut two, 0).frame, expected);
        assert_eq!(bench.copied_since(before).between_grants, 5014 - HEAD);
        assert_eq!(bench.copied_since(before).from_grants, 0);
    });
}

#[test]
fn what_a_filter_has_read_is_what_arrives() {
    while_frames_wait(|bench| {
        let (mut one, mut two) = bench.pair(Connect::default());
        say_where(&mut two, 2, &mut one, 1);
        fill(bench, &mut one);
        let program = |text| Arc::new(weir_filter::Program::compile(text).unwrap());
        let rules = [(program("ether[600] != 0xaa"), Action::Drop), (program(""), Action::Accept)];
        let rules = Arc::new(Rules::new(rules).unwrap());
        let rules = PortRules { tx: Some(rules), rx: None };
        bench.engine.change_settings(bench.port(1).id(), |settings| settings.rules = rules.clone());
        bench.settle();
        let (page, _) = one.queues[0].next_page();
        assert!(one.send(0, &frame(1, 2, &[0xaa; 1000])));
        eventually("it waits", || bench.port(1).counters().parked.get() == 1);
        let at = page as usize * 4096;
        one.guest.memory().slice(at, 4096).unwrap().write(&[0xbb; 4096]);
        empty(&mut two);
        assert_eq!(receive(&mut two, 0).frame, frame(1, 2, &[0xaa; 1000]));
        assert_eq!(bench.host.copied().between_grants, 0);
    });
}

#[test]
fn grants_that_do_not_last_until_they_are_copied_are_their_senders_loss() {
    while_frames_wait(|bench| {
        let (mut one, mut two) = bench.pair(Connect::default());
        say_where(&mut two, 2, &mut one, 1);
        fill(bench, &mut one);
        let (_, reference) = one.queues[0].next_page();
        assert!(one.send(0, &frame(1, 2, &[1; 1000])));
        assert!(one.send(0, &frame(1, 2, &[2; 1000])));
        eventually("they wait", || bench.port(1).counters().parked.get() == 2);
        assert!(one.guest.revoke(reference));
        empty(&mut two);
        // The buffer of the first packet comes back empty.
        assert!(receive(&mut two, 0).packet.damaged);
        assert_eq!(receive(&mut two, 0).frame, frame(1, 2, &[2; 1000]));
        eventually("counted", || bench.dropped(1, "copy_failed") == 1);
        assert_eq!(bench.dropped(2, "copy_failed"), 0);
        let mut statuses = Vec::new();
        eventually("both are answered", || {
            statuses.extend(one.queues[0].answers().iter().map(|answer| answer.status));
            statuses.len() == 2
        });
        assert!(statuses[0] < 0 && statuses[1] == 0, "{statuses:?}");
    });
}

#[test]
fn what_can_not_be_fetched_reaches_nobody_and_is_counted_once() {
    let bench = Bench::new();
    let (mut one, mut two) = bench.pair(Connect::default());
    let (three, four) = (bench.reader(), bench.reader());
    say_where(&mut two, 2, &mut one, 1);
    // The second page was never granted.
    let (page, good) = one.queues[0].next_page();
    let bytes = frame(1, 0xff, &[3; 986]);
    one.guest.memory().slice(page as usize * 4096, 1000).unwrap().write(&bytes);
    let slot = |gref, len, id| (Segment { gref, offset: 0, len }, id);
    let slots = [slot(good.0, 1000, 70), slot(60_000, 500, 71)];
    assert!(one.queues[0].tx.send(&slots, 0, &[]));
    one.queues[0].tx.ring().push();
    one.queues[0].tx_events.notify().unwrap();
    eventually("counted", || bench.dropped(1, "copy_failed") == 1);
    assert!(one.send(0, &frame(1, 0xff, &[4; 1000])));
    let last = frame(1, 0xff, &[4; 1000]);
    for reader in [&three, &four] {
        eventually("the next one comes", || reader.got.lock().unwrap().last() == Some(&last));
        assert!(reader.got.lock().unwrap().iter().all(|got| got[14] != 3));
    }
    assert_eq!(bench.dropped(1, "copy_failed"), 1);
}

#[test]
fn a_guest_that_dies_while_its_frames_wait_harms_nobody() {
    while_frames_wait(|bench| {
        let (mut one, mut two) = bench.pair(Connect::default());
        let mut three = bench.guest(3, Connect::default());
        say_where(&mut two, 2, &mut one, 1);
        fill(bench, &mut one);
        assert!(one.send(0, &frame(1, 2, &[9; 6000])));
        eventually("it waits", || bench.port(1).counters().parked.get() == 1);
        let Netfront { guest, queues, .. } = one;
        drop(queues);
        guest.destroy();
        bench.host.remove(DomainId(1), 0);
        eventually("the vif is gone", || !bench.ports.lock().unwrap().contains_key(&vif(1)));
        empty(&mut two);
        assert!(three.send(0, &frame(3, 2, &[5; 6000])));
        eventually("others go on", || receive(&mut two, 0).frame == frame(3, 2, &[5; 6000]));
    });
}
