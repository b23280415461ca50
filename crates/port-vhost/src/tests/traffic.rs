//! Frames between guests: their arrival, their shape, and the calls to the guest.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::session::drops;
use super::*;
use weir_engine::guest::GuestPort;
use weir_engine::{Rate, RateLimit};
use weir_limits::{BURST_BYTES_MAX, PARKED_MAX};
use weir_wire::vnet;

#[test]
fn frames_of_every_size_arrive_whole_and_in_order() {
    for format in formats() {
        let switch = Switch::new();
        let (mut a, mut b) = (switch.guest(1, format), switch.guest(2, format));
        introduce(&mut a, &mut b);
        for (number, len) in
            [15, 60, 127, 128, 129, 1514, 2036, 2037, 9000, 65_549].iter().enumerate()
        {
            let sent = frame(&a, Some(&b), *len, number as u8);
            a.send(&sent);
            let (vnet, arrived) = b.wait_received();
            assert_eq!(usize::from(vnet.num_buffers), (len + 12).div_ceil(2048));
            assert!(arrived == sent, "{len} bytes");
            b.post(vnet.num_buffers);
        }
    }
}

#[test]
fn spec_2_8_10_1_guests_with_packed_rings_of_any_size_exchange_frames() {
    for size in [3, 7, 48, 100, 255] {
        for format in [RING_PACKED, RING_PACKED | IN_ORDER].map(|format| modern() | format) {
            let switch = Switch::new();
            let mut a = switch.guest_with_rings(1, format, size);
            let mut b = switch.guest_with_rings(2, format, size);
            introduce(&mut a, &mut b);
            a.post(1);
            b.post(1);
            // The frames go several times around both rings.
            for number in 0..4 * size {
                let sent = frame(&a, Some(&b), 60, number as u8);
                a.send(&sent);
                assert_eq!(b.wait_received().1, sent, "{number} over {size}");
                b.post(1);
            }
            // The next session continues at the rings' positions.
            let base = a.front.get_vring_base(1).unwrap();
            assert_eq!(base & 0x7fff, u32::from((4 * size + 1) % size));
        }
    }
}

#[test]
fn one_burst_is_one_call() {
    for format in formats() {
        let switch = Switch::new();
        let (mut a, mut b) = (switch.guest(1, format), switch.guest(2, format));
        introduce(&mut a, &mut b);
        while b.received().is_some() {}
        b.rx.enable_calls();
        b.calls(0);
        let calls = b.port.counters().rx[0].calls.get();
        for slot in 0..32 {
            let sent = frame(&a, Some(&b), 60, slot as u8);
            a.offer(slot, &VnetHdr::default(), &sent);
        }
        a.send_now();
        a.reap();
        for number in 0..32 {
            assert_eq!(b.wait_received().1[14], number);
        }
        assert_eq!(b.port.counters().rx[0].calls.get() - calls, 1);
        assert_eq!(b.calls(0), 1);
    }
}

#[test]
fn bursts_of_large_frames_are_short_and_nothing_is_lost_between_them() {
    const LEN: usize = 65_000;
    // The receiver has a buffer for each of them, so none waits.
    const FRAMES: usize = 7;
    for format in formats() {
        let switch = Switch::new();
        let mut a = switch.guest(1, format);
        let mut b = switch.guest_with_rings(2, format, SIZE_MAX);
        introduce(&mut a, &mut b);
        let bursts = || -> u64 { switch.engine.workers().iter().map(|worker| worker.bursts).sum() };
        let before = bursts();
        for slot in 0..FRAMES {
            let sent = frame(&a, Some(&b), LEN, slot as u8);
            a.offer(slot as u64, &VnetHdr::default(), &sent);
        }
        a.send_now();
        for number in 0..FRAMES {
            let (vnet, arrived) = b.wait_received();
            assert_eq!((arrived.len(), usize::from(arrived[LEN - 1])), (LEN, number));
            b.post(vnet.num_buffers);
        }
        a.reap();
        let longest = (BURST_BYTES_MAX as usize).div_ceil(LEN);
        let at_least = FRAMES.div_ceil(longest) as u64;
        // A burst is counted after its frames have arrived.
        eventually("there were several bursts", || bursts() - before >= at_least);
    }
}

#[test]
fn frames_stay_in_order_while_their_queue_goes_from_worker_to_worker() {
    const BURST: usize = 8;
    // Each move yields the CPU: on a busy machine the moves take most of the time.
    const MOVES: usize = 500;
    for format in formats() {
        let switch = Switch::with_workers(2);
        let (mut a, mut b) = (switch.guest(1, format), switch.guest(2, format));
        introduce(&mut a, &mut b);
        let (stop, moves) = (AtomicBool::new(false), AtomicUsize::new(0));
        let stops = weir_testing::SetAtEnd(&stop);
        let (engine, a_id, b_id) = (&switch.engine, a.port.id(), b.port.id());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let n = moves.fetch_add(1, Ordering::Relaxed);
                    engine.assign(a_id, 0, n % 2).unwrap();
                    engine.assign(b_id, 0, n / 2 % 2).unwrap();
                    std::thread::yield_now();
                }
            });
            let stops = stops;
            let mut number = 0u8;
            while moves.load(Ordering::Relaxed) < MOVES {
                for slot in 0..BURST {
                    let sent = frame(&a, Some(&b), 60, number.wrapping_add(slot as u8));
                    a.offer(slot as u64, &VnetHdr::default(), &sent);
                }
                a.send_now();
                for _ in 0..BURST {
                    let (vnet, arrived) = b.wait_received();
                    assert_eq!(arrived[14], number);
                    b.post(vnet.num_buffers);
                    number = number.wrapping_add(1);
                }
                a.reap();
            }
            drop(stops);
        });
    }
}

#[test]
fn frames_beyond_a_guests_rate_stay_in_its_ring_and_none_is_lost() {
    for format in formats() {
        let switch = Switch::new();
        let (mut a, mut b) = (switch.guest(1, format), switch.guest(2, format));
        introduce(&mut a, &mut b);
        let set_limit = |a: &Guest, packets| {
            let limit = RateLimit { bits: None, packets };
            switch.engine.change_settings(a.port.id(), |settings| settings.send_limit = limit);
        };
        // The eleventh frame may go after a second.
        let start = Instant::now();
        set_limit(&a, Some(Rate { per_s: 1, burst: 10 }));
        let waits = |a: &Guest| a.port.counters().rate_waits.get();
        let frames: Vec<_> = (0..32).map(|number| frame(&a, Some(&b), 60, number)).collect();
        for (sent, slot) in frames.iter().zip(0..20) {
            a.offer(slot, &VnetHdr::default(), sent);
        }
        a.send_now();
        for number in 0..10 {
            assert_eq!(b.wait_received().1[14], number);
        }
        eventually("it has to wait", || waits(&a) > 0);
        let sent = a.port.counters().tx[0].frames.get() - 1;
        let may = 10..=10 + start.elapsed().as_secs();
        assert!(may.contains(&sent), "{sent} of {may:?}");
        for (sent, slot) in frames.iter().zip(0..).skip(20) {
            a.offer(slot, &VnetHdr::default(), sent);
        }
        assert!(!a.tx.publish(), "kicks are off meanwhile");
        set_limit(&a, None);
        for number in 10..32 {
            assert_eq!(b.wait_received().1[14], number);
        }
        a.reap();
        assert!([&a, &b].iter().all(|guest| guest.port.counters().drops().next().is_none()));
    }
}

#[test]
fn broadcast_reaches_all_others_and_not_the_sender() {
    let switch = Switch::new();
    let mut guests: Vec<_> = (1..=4).map(|mac| switch.guest(mac, modern())).collect();
    let hello = frame(&guests[0], None, 60, 3);
    guests[0].send(&hello);
    for guest in &mut guests[1..] {
        assert_eq!(guest.wait_received().1, hello);
    }
    assert_eq!(guests[0].received(), None);
}

#[test]
fn a_spoofed_source_is_dropped_and_counted() {
    let switch = Switch::new();
    let (mut a, mut b) = (switch.guest(1, modern()), switch.guest(2, modern()));
    introduce(&mut a, &mut b);
    let mut spoofed = frame(&a, Some(&b), 60, 1);
    spoofed[11] ^= 0x40;
    a.send(&spoofed);
    assert_eq!(b.received(), None);
    assert_eq!(drops(&a.port, "src_mac_spoofed"), 1);
}

/// TCP over IPv4 over Ethernet. The checksum is still pending, as the stack leaves it.
fn tcp(from: &Guest, to: &Guest, payload: usize) -> (Vec<u8>, VnetHdr) {
    let mut frame = frame(from, Some(to), 54 + payload, 0);
    let total = (40 + payload) as u16;
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14..24].copy_from_slice(&[0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, 6]);
    frame[16..18].copy_from_slice(&total.to_be_bytes());
    frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    frame[34..54].fill(0);
    frame[34..38].copy_from_slice(&[0x12, 0x34, 0x56, 0x78]);
    frame[46] = 5 << 4;
    frame[47] = 0x18;
    for (i, byte) in frame[54..].iter_mut().enumerate() {
        *byte = (i * 7) as u8;
    }
    let ip_sum = weir_wire::checksum::ipv4_header_checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&ip_sum.to_be_bytes());
    let pseudo = weir_wire::checksum::pseudo_header_v4(
        [10, 0, 0, 1].into(),
        [10, 0, 0, 2].into(),
        6,
        (20 + payload) as u16,
    );
    frame[50..52].copy_from_slice(&pseudo.folded().to_be_bytes());
    let vnet = VnetHdr {
        flags: vnet::F_NEEDS_CSUM,
        csum_start: 34,
        csum_offset: 16,
        ..VnetHdr::default()
    };
    (frame, vnet)
}

/// Sum over pseudo header and segment: 0xffff where the checksum is right.
fn tcp_sum(frame: &[u8]) -> u16 {
    let mut sum = weir_wire::checksum::pseudo_header_v4(
        [10, 0, 0, 1].into(),
        [10, 0, 0, 2].into(),
        6,
        (frame.len() - 34) as u16,
    );
    sum.add(&frame[34..]);
    sum.folded()
}

const GUEST_OFFLOADS: u64 = 1 << 1 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 54 | 1 << 55;

#[test]
fn offloads_pass_untouched_between_guests_that_have_them() {
    for format in formats() {
        let switch = Switch::new();
        let (mut a, mut b) = (switch.guest(1, format), switch.guest(2, format));
        introduce(&mut a, &mut b);
        let (sent, mut vnet) = tcp(&a, &b, 40_000);
        vnet.gso_type = vnet::GSO_TCPV4;
        vnet.gso_size = 1448;
        vnet.hdr_len = 54;
        a.offer(0, &vnet, &sent);
        a.send_now();
        let (arrived_vnet, arrived) = b.wait_received();
        assert!(arrived == sent);
        assert_eq!(VnetHdr { num_buffers: 0, ..arrived_vnet }, vnet);
    }
}

#[test]
fn a_receiver_without_checksum_offload_gets_it_done() {
    let switch = Switch::new();
    let mut a = switch.guest(1, modern());
    let mut b = switch.guest(2, modern() & !GUEST_OFFLOADS);
    introduce(&mut a, &mut b);
    for payload in [0, 1, 73, 74, 75, 1460] {
        let (sent, vnet) = tcp(&a, &b, payload);
        a.offer(0, &vnet, &sent);
        a.send_now();
        a.reap();
        let (vnet, arrived) = b.wait_received();
        assert_eq!(vnet, Offload::NONE.to_vnet(1));
        assert_eq!(tcp_sum(&arrived), 0xffff, "payload of {payload}");
        assert_eq!(arrived[..50], sent[..50]);
        assert_eq!(arrived[52..], sent[52..]);
    }
}

#[test]
fn a_receiver_without_tso_gets_segments() {
    for format in formats() {
        for features in [format & !GUEST_OFFLOADS, format & !(GUEST_OFFLOADS & !2)] {
            let switch = Switch::new();
            let (mut a, mut b) = (switch.guest(1, format), switch.guest(2, features));
            introduce(&mut a, &mut b);
            let (sent, mut vnet) = tcp(&a, &b, 20_001);
            vnet.gso_type = vnet::GSO_TCPV4;
            vnet.gso_size = 1000;
            a.offer(0, &vnet, &sent);
            a.send_now();
            a.reap();
            let mut payload: Vec<u8> = Vec::new();
            while payload.len() < 20_001 {
                let (vnet, segment) = b.wait_received();
                assert_eq!(vnet.gso_type, vnet::GSO_NONE);
                let seq = u32::from_be_bytes(segment[38..42].try_into().unwrap());
                assert_eq!(seq as usize, payload.len());
                if vnet.flags & vnet::F_NEEDS_CSUM == 0 {
                    assert_eq!(tcp_sum(&segment), 0xffff);
                }
                payload.extend(&segment[54..]);
            }
            assert!(payload == sent[54..]);
        }
    }
}

/// A UDP datagram. The checksum is still pending, as the stack leaves it.
fn udp(from: &Guest, to: &Guest, payload: usize) -> (Vec<u8>, VnetHdr) {
    let (mut frame, vnet) = tcp(from, to, payload);
    frame.drain(42..54);
    frame[23] = 17;
    frame[16..18].copy_from_slice(&(28 + payload as u16).to_be_bytes());
    let ip_sum = weir_wire::checksum::ipv4_header_checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&ip_sum.to_be_bytes());
    let len = 8 + payload as u16;
    frame[38..40].copy_from_slice(&len.to_be_bytes());
    let pseudo = udp_pseudo_header(len);
    frame[40..42].copy_from_slice(&pseudo.folded().to_be_bytes());
    (frame, VnetHdr { csum_offset: 6, ..vnet })
}

fn udp_pseudo_header(len: u16) -> weir_wire::Sum {
    weir_wire::checksum::pseudo_header_v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 17, len)
}

#[test]
fn udp_gso_passes_untouched_between_guests_that_have_it() {
    for format in formats() {
        let switch = Switch::new();
        let (mut a, mut b) = (switch.guest(1, format), switch.guest(2, format));
        introduce(&mut a, &mut b);
        let (sent, vnet) = udp(&a, &b, 40_000);
        let vnet = VnetHdr { gso_type: vnet::GSO_UDP_L4, gso_size: 1400, hdr_len: 42, ..vnet };
        a.offer(0, &vnet, &sent);
        a.send_now();
        let (arrived_vnet, arrived) = b.wait_received();
        assert!(arrived == sent);
        assert_eq!(VnetHdr { num_buffers: 0, ..arrived_vnet }, vnet);
    }
}

#[test]
fn a_receiver_without_udp_gso_gets_datagrams() {
    const USO: u64 = 1 << 54 | 1 << 55;
    // USO needs both versions of IP, and all offloads need checksum offload.
    for lacks in [USO, 1 << 54, 1 << 55, GUEST_OFFLOADS] {
        let switch = Switch::new();
        let (mut a, mut b) = (switch.guest(1, modern()), switch.guest(2, modern() & !lacks));
        introduce(&mut a, &mut b);
        let (sent, vnet) = udp(&a, &b, 3001);
        let vnet = VnetHdr { gso_type: vnet::GSO_UDP_L4, gso_size: 1000, ..vnet };
        a.offer(0, &vnet, &sent);
        a.send_now();
        a.reap();
        for payload in sent[42..].chunks(1000) {
            let (vnet, datagram) = b.wait_received();
            let len = 8 + payload.len() as u16;
            assert_eq!(vnet.gso_type, vnet::GSO_NONE);
            assert_eq!(datagram[38..40], len.to_be_bytes());
            assert!(datagram[42..] == *payload);
            let mut sum = udp_pseudo_header(len);
            match vnet.flags {
                vnet::F_NEEDS_CSUM => assert_eq!(datagram[40..42], sum.folded().to_be_bytes()),
                _ => {
                    sum.add(&datagram[34..]);
                    assert_eq!(sum.folded(), 0xffff);
                }
            }
        }
        assert_eq!(b.received(), None);
    }
}

/// Ten segments of a stream as a wire carries them: MTU-sized, checksums complete.
fn stream(from: &Guest, to: &Guest) -> Vec<Vec<u8>> {
    let (whole, vnet) = tcp(from, to, 9 * 1448 + 100);
    let vnet = VnetHdr { gso_type: vnet::GSO_TCPV4, gso_size: 1448, ..vnet };
    let offload = Offload::from_vnet(&vnet, &whole, whole.len() as u32).unwrap();
    let head = weir_wire::Head::copy_of(&whole);
    let segmenter = weir_wire::Segmenter::new(&head, &offload, whole.len() as u32).unwrap();
    let complete = |mut segment: weir_wire::Segment| {
        let from = 54 + segment.payload_offset as usize;
        let payload = &whole[from..from + segment.payload_len as usize];
        let mut rest = weir_wire::Sum::new();
        rest.add(payload);
        weir_wire::fill_checksum(&mut segment.head, segment.csum, rest).unwrap();
        [segment.head.as_slice(), payload].concat()
    };
    segmenter.map(complete).collect()
}

fn send_all(from: &mut Guest, frames: &[Vec<u8>]) {
    for (slot, frame) in frames.iter().enumerate() {
        from.offer(slot as u64, &VnetHdr::default(), frame);
    }
    from.send_now();
    from.reap();
}

#[test]
fn segments_of_one_burst_arrive_as_one_packet() {
    for format in formats() {
        let switch = Switch::new();
        let (mut a, mut b) = (switch.guest(1, format), switch.guest(2, format));
        introduce(&mut a, &mut b);
        let before = b.port.counters().rx[0].frames.get();
        let bytes_before = b.port.counters().rx[0].bytes.get();
        let frames = stream(&a, &b);
        send_all(&mut a, &frames);
        let (vnet, arrived) = b.wait_received();
        let (whole, partial) = tcp(&a, &b, 9 * 1448 + 100);
        assert!(arrived == whole, "as if its sender had left the cutting to others");
        assert_eq!(
            vnet,
            VnetHdr {
                gso_type: vnet::GSO_TCPV4,
                gso_size: 1448,
                hdr_len: 54,
                num_buffers: (whole.len() + 12).div_ceil(2048) as u16,
                ..partial
            }
        );
        assert_eq!(b.received(), None);
        let counters = b.port.counters();
        assert_eq!(counters.gro.get(), 1);
        assert_eq!(counters.rx[0].frames.get() - before, 10, "frames as they came");
        let bytes: usize = frames.iter().map(Vec::len).sum();
        assert_eq!(counters.rx[0].bytes.get() - bytes_before, bytes as u64);
    }
}

#[test]
fn segments_for_a_receiver_without_tso_arrive_each_by_itself() {
    let switch = Switch::new();
    let mut a = switch.guest(1, modern());
    let mut b = switch.guest(2, modern() & !(1 << 7));
    introduce(&mut a, &mut b);
    let frames = stream(&a, &b);
    send_all(&mut a, &frames);
    for frame in &frames {
        assert_eq!(b.wait_received(), (Offload::NONE.to_vnet(1), frame.clone()));
    }
    assert_eq!(b.port.counters().gro.get(), 0);
}

#[test]
fn segments_too_large_together_for_buffers_that_cannot_be_merged_arrive_each_by_itself() {
    let switch = Switch::new();
    let mut a = switch.guest(1, modern());
    let mut b = switch.guest(2, modern() & !(1 << 15));
    introduce(&mut a, &mut b);
    // No two segments of 1448 bytes fit into a buffer of 2 KiB.
    let frames = &stream(&a, &b)[..9];
    send_all(&mut a, frames);
    for frame in frames {
        assert_eq!(b.wait_received(), (Offload::NONE.to_vnet(1), frame.clone()));
    }
    assert_eq!(drops(&b.port, "rx_buffer_too_small"), 0);
}

#[test]
fn frames_wait_for_a_full_receiver_and_arrive_in_order() {
    fn all_arrive(format: u64) -> bool {
        let switch = Switch::new();
        let (mut a, mut b) = (switch.guest(1, format), switch.guest(2, format));
        let mut c = switch.guest(3, format);
        introduce(&mut a, &mut b);
        c.wait_received();
        let hello = frame(&c, None, 60, 0);
        c.send(&hello);
        // b had 64 buffers and used two; a sends 32 frames of two buffers each.
        a.wait_received();
        b.wait_received();
        let (mut next, mut b_free) = (0, SIZE - 2);
        for slot in 0..32 {
            let sent = frame(&a, Some(&b), 3000, slot as u8);
            a.offer(slot, &VnetHdr::default(), &sent);
        }
        let to_c = frame(&a, Some(&c), 60, 99);
        a.offer(32, &VnetHdr::default(), &to_c);
        a.send_now();
        // The receiver that is not full does not wait for the one that is.
        eventually("c has its frame", || c.received().is_some_and(|(_, f)| f[14] == 99));
        while next < 32 {
            let Some((vnet, arrived)) = b.wait_received_or_lost(&a.port) else { return false };
            assert_eq!(arrived[14], next, "in order");
            next += 1;
            b_free -= vnet.num_buffers;
            if b_free == 0 {
                b.post(2);
                b_free += 2;
            }
        }
        a.reap();
        assert!(a.port.counters().parked.get() >= 1);
        lost([&a.port, &b.port]) == 0
    }
    formats().into_iter().for_each(|format| until_none_is_late(|| all_arrive(format)));
}

#[test]
fn more_frames_than_a_burst_wait_and_all_go_when_there_is_room() {
    fn all_go(format: u64) -> bool {
        let switch = Switch::new();
        let mut a = switch.guest_with_rings(1, format, SIZE_MAX);
        let mut b = switch.guest_with_rings(2, format, SIZE_MAX);
        introduce(&mut a, &mut b);
        let small = frame(&a, Some(&b), 60, 7);
        // The hello took one buffer of b's; these frames take the others.
        for _ in 1..SIZE_MAX {
            a.offer(0, &VnetHdr::default(), &small);
        }
        a.send_now();
        a.reap();
        for _ in 0..PARKED_MAX {
            a.offer(0, &VnetHdr::default(), &small);
        }
        a.send_now();
        let (sender, receiver) = (Arc::clone(&a.port), Arc::clone(&b.port));
        eventually("they wait, or are lost", || {
            let parked = sender.counters().parked.get();
            parked == PARKED_MAX as u64 || lost([&sender, &receiver]) > 0
        });
        let received = std::iter::from_fn(|| b.received()).count() as u16;
        b.post(received);
        (0..PARKED_MAX).all(|_| b.wait_received_or_lost(&sender).is_some())
    }
    formats().into_iter().for_each(|format| until_none_is_late(|| all_go(format)));
}

#[test]
fn frames_that_wait_for_one_receiver_do_not_hold_up_those_for_another() {
    /// True if the second receiver got its frames before any had waited too long.
    fn got_them_in_time(format: u64) -> bool {
        let switch = Switch::new();
        let mut a = switch.guest_with_rings(1, format, SIZE_MAX);
        let (mut stuck, mut other) = (switch.guest(2, format), switch.guest(3, format));
        for receiver in [&mut stuck, &mut other] {
            let hello = frame(receiver, None, 60, 0);
            receiver.send(&hello);
        }
        // These frames fill the rings, whatever the hellos took of them.
        for (slot, receiver) in [&stuck, &other].into_iter().enumerate() {
            let small = frame(&a, Some(receiver), 60, 7);
            let room = receiver.rx.in_flight() - receiver.port.counters().rx[0].frames.get() as u16;
            for _ in 0..room {
                a.offer(slot as u64, &VnetHdr::default(), &small);
            }
            a.send_now();
            a.reap();
        }
        let sender = Arc::clone(&a.port);
        let receivers = [&stuck, &other].map(|guest| Arc::clone(&guest.port));
        let late = || receivers.iter().any(|receiver| lost([&sender, receiver]) > 0);
        let half = PARKED_MAX / 2;
        for (slot, receiver) in [&stuck, &other].into_iter().enumerate() {
            let small = frame(&a, Some(receiver), 60, 8);
            for _ in 0..half {
                a.offer(slot as u64, &VnetHdr::default(), &small);
            }
            let parked = sender.counters().parked.get();
            a.send_now();
            eventually("they wait, or have waited too long", || {
                sender.counters().parked.get() == parked + half as u64 || late()
            });
        }
        let received = std::iter::from_fn(|| other.received()).count() as u16;
        other.post(received);
        let mut got = 0;
        eventually("they arrive, or have waited too long", || {
            got += std::iter::from_fn(|| other.received())
                .inspect(|(_, f)| assert_eq!(f[14], 8))
                .count();
            got == half || late()
        });
        got == half
    }
    formats().into_iter().for_each(|format| until_none_is_late(|| got_them_in_time(format)));
}

/// A receiver that posts few buffers at a time has more frames waiting than a burst holds, mixed with frames for a
/// receiver without buffers. Each of its kicks brings the next ones, in order.
#[test]
fn no_kick_is_missed_by_more_frames_than_a_burst_among_those_for_another() {
    const FOR_STUCK: usize = 28;
    const AT_ONCE: u16 = 7;
    fn got_them_in_time(format: u64, workers: usize) -> bool {
        let switch = Switch::with_workers(workers);
        let mut a = switch.guest_with_rings(1, format, SIZE_MAX);
        let (mut stuck, mut other) = (switch.guest(2, format), switch.guest(3, format));
        for receiver in [&mut stuck, &mut other] {
            let hello = frame(receiver, None, 60, 0);
            receiver.send(&hello);
        }
        for receiver in [&stuck, &other] {
            let small = frame(&a, Some(receiver), 60, 0);
            let room = receiver.rx.in_flight() - receiver.port.counters().rx[0].frames.get() as u16;
            for _ in 0..room {
                a.offer(0, &VnetHdr::default(), &small);
            }
            a.send_now();
            a.reap();
        }
        let sender = Arc::clone(&a.port);
        let receivers = [&stuck, &other].map(|guest| Arc::clone(&guest.port));
        let late = || receivers.iter().any(|receiver| lost([&sender, receiver]) > 0);
        let (mut for_stuck, mut numbers) = (0, Vec::new());
        for n in 0..PARKED_MAX {
            let is_stuck = n % 4 == 1 && for_stuck < FOR_STUCK;
            let receiver = if is_stuck { &stuck } else { &other };
            for_stuck += usize::from(is_stuck);
            if !is_stuck {
                numbers.push(n as u8);
            }
            let sent = frame(&a, Some(receiver), 60, n as u8);
            a.offer_at(TX_BUFFERS + n as u64 * 128, &VnetHdr::default(), &sent);
        }
        a.send_now();
        eventually("they wait, or have waited too long", || {
            sender.counters().parked.get() == PARKED_MAX as u64 || late()
        });
        // The frames that filled the other guest's ring are taken.
        let mut buffers = std::iter::from_fn(|| other.received()).count() as u16;
        for some in numbers.chunks(AT_ONCE.into()) {
            let posted = buffers.min(AT_ONCE);
            other.post(posted);
            buffers -= posted;
            let mut got = Vec::new();
            eventually("the next ones arrive, or have waited too long", || {
                got.extend(std::iter::from_fn(|| other.received()).map(|(_, frame)| frame[14]));
                got.len() == some.len() || late()
            });
            if got.len() < some.len() {
                return false;
            }
            assert_eq!(got, some);
            buffers += got.len() as u16;
        }
        let received = std::iter::from_fn(|| stuck.received()).count() as u16;
        stuck.post(received);
        let mut got = 0;
        eventually("those for the other arrive, or have waited too long", || {
            got += std::iter::from_fn(|| stuck.received()).count();
            got == FOR_STUCK || late()
        });
        got == FOR_STUCK
    }
    for (format, workers) in formats().into_iter().flat_map(|it| [(it, 1), (it, 2)]) {
        until_none_is_late(|| got_them_in_time(format, workers));
    }
}

#[test]
fn frames_for_a_receiver_that_never_takes_them_are_dropped_and_the_sender_gets_its_buffers() {
    for format in formats() {
        let switch = Switch::new();
        let (mut a, mut b) = (switch.guest(1, format), switch.guest(2, format));
        introduce(&mut a, &mut b);
        for _ in 0..4 {
            for slot in 0..32 {
                let sent = frame(&a, Some(&b), 1500, slot as u8);
                a.offer(slot, &VnetHdr::default(), &sent);
            }
            a.send_now();
            a.reap();
        }
        let lost = drops(&b.port, "rx_ring_full") + drops(&a.port, "rx_waited_too_long");
        assert_eq!(lost, 4 * 32 - u64::from(SIZE - 1), "what had no buffer is lost, and counted");
    }
}

#[test]
fn a_legacy_driver_without_num_buffers_is_served() {
    let switch = Switch::new();
    let mut a = switch.guest(1, modern());
    let legacy = modern() & !(1 << 32 | 1 << 15 | GUEST_OFFLOADS);
    let mut b = switch.guest(2, legacy);
    let hello = frame(&a, None, 60, 3);
    a.send(&hello);
    let mut used = None;
    eventually("a frame arrives", || {
        used = b.rx.take();
        used.is_some()
    });
    let Used { head, written } = used.unwrap();
    assert_eq!(written, 10 + 60);
    assert_eq!(b.buffer(head, written)[10..], hello);
}

#[test]
fn a_frame_too_big_for_unmergeable_buffers_is_dropped_and_counted() {
    let switch = Switch::new();
    let mut a = switch.guest(1, modern());
    let mut b = switch.guest(2, modern() & !(1 << 15));
    introduce(&mut a, &mut b);
    a.send(&frame(&a, Some(&b), 3000, 1));
    assert_eq!(drops(&b.port, "rx_buffer_too_small"), 1);
    let small = frame(&a, Some(&b), 1500, 2);
    a.send(&small);
    assert_eq!(b.wait_received().1, small, "the buffer was not used up");
}

/// Linux with pages of 64 KiB and without mergeable buffers: a header and eighteen pages for each frame.
#[test]
fn a_buffer_of_nineteen_pieces_and_more_than_a_mebibyte_takes_frames_of_any_length() {
    const PAGE: u64 = 1 << 16;
    const AT: u64 = 1 << 20;
    for format in formats() {
        let switch = Switch::new();
        let mut a = switch.guest(1, format);
        let (port, stream) = switch.port();
        let mut b = Guest::with_rings(port, stream, 2, format & !(1 << 15), SIZE_MAX);
        b.set_up().unwrap();
        let header = Buffer { address: AT - 12, len: VnetHdr::LEN as u32, writable: true };
        let pages = (0..18).map(|page| Buffer {
            address: AT + page * PAGE,
            len: PAGE as u32,
            writable: true,
        });
        let buffer: Vec<_> = [header].into_iter().chain(pages).collect();
        let offer = |b: &mut Guest| {
            b.rx.offer(&buffer).unwrap();
            b.rx.publish();
            b.kick(0);
        };
        (0..SIZE_MAX / 19).for_each(|_| offer(&mut b));
        b.kick(1);
        let port = Arc::clone(&b.port);
        eventually("the rings start", || port.info().state == State::Running);
        let hello = frame(&b, None, 60, 1);
        b.send(&hello);
        assert_eq!(a.wait_received().1, hello);
        // The frames go around the ring several times.
        for payload in [6, 1460, 60_000, 100, 65_000].into_iter().cycle().take(60) {
            let (sent, mut vnet) = tcp(&a, &b, payload);
            if payload > 1460 {
                vnet.gso_type = vnet::GSO_TCPV4;
                vnet.gso_size = 1448;
                vnet.hdr_len = 54;
            }
            a.offer(0, &vnet, &sent);
            a.send_now();
            a.reap();
            let mut used = None;
            eventually("it arrives", || {
                used = b.rx.take();
                used.is_some()
            });
            let written = used.unwrap().written;
            let mut bytes = vec![0; written as usize - VnetHdr::LEN];
            b.memory.slice(AT, bytes.len() as u32).unwrap().read(&mut bytes);
            assert!(bytes == sent, "{format:#x}: {payload}");
            offer(&mut b);
        }
        assert_eq!((drops(&b.port, "rx_buffer_too_small"), b.port.info().stop_reason), (0, None));
    }
}
