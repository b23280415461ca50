//! Several workers and one receive queue.

use super::*;
use crate::rx;
use weir_engine::burst::{Pieces, Scratch, TakenChain};
use weir_engine::guest::GuestPort;
use weir_engine::{Delivered, Outgoing};
use weir_guestmem::HostBuffer;

/// Frames that a sender has under way; each needs five of the receiver's buffers.
const WINDOW: u64 = 6;
const LEN: usize = 9_000;

/// The switch learns where the receiver is.
fn hello(receiver: &mut Guest, senders: &mut [Guest]) {
    let hello = frame(receiver, None, 60, 0);
    receiver.send(&hello);
    for sender in senders {
        assert_eq!(sender.wait_received().1, hello);
    }
}

#[test]
fn what_was_placed_first_is_seen_first_whoever_copies_faster() {
    for format in formats() {
        let switch = Switch::new();
        let (sender, mut receiver) = (switch.guest(1, format), switch.guest(2, format));
        // The last frame is wholly in its front: no byte of it is copied later.
        let frames = [(LEN, 1), (LEN, 2), (60, 3)]
            .map(|(len, number)| frame(&sender, Some(&receiver), len, number));
        let memory = rx::memory(&receiver.port.first_rx()).unwrap();
        let buffers = frames.each_ref().map(|frame| {
            let buffer = HostBuffer::new(VnetHdr::LEN + frame.len());
            buffer.slice(VnetHdr::LEN, frame.len()).unwrap().write(frame);
            buffer
        });
        let mut scratches = [(); 3].map(|()| Scratch::default());
        let mut bursts = scratches.each_mut().map(Scratch::lend);
        for (burst, buffer) in bursts.iter_mut().zip(&buffers) {
            let whole = buffer.slice(0, buffer.len()).unwrap();
            let pieces = Pieces::Only(whole);
            let chain = TakenChain { token: 0, len: whole.len() as u32, pieces };
            burst.add(chain, VnetHdr::LEN, 0).unwrap();
        }
        let out = [Outgoing::untagged(0)];
        let counters = receiver.port.counters();
        let place = |burst| {
            let (mut queue, mut delivered) = (receiver.port.first_rx(), Delivered::default());
            rx::place(&mut queue, 0, &memory, burst, &out, counters, &mut delivered).unwrap()
        };
        let [first, second, third] = bursts.each_ref().map(place);
        let [first, second] = [first, second].map(|copies| copies.expect("something to copy"));
        assert!(third.is_none(), "nothing to copy");
        second.copy();
        rx::finish(&mut receiver.port.first_rx(), 0, second, counters).unwrap();
        let nothing = receiver.rx.take();
        assert_eq!(nothing, None, "the first is not copied yet");
        first.copy();
        rx::finish(&mut receiver.port.first_rx(), 0, first, counters).unwrap();
        for frame in &frames {
            assert!(receiver.received().unwrap().1 == *frame);
        }
    }
}

#[test]
fn workers_that_fill_one_ring_together_keep_each_senders_order() {
    let kinds = [Kind::Immediate, Kind::Aggregate, Kind::Backend, Kind::Aggregate];
    for (format, kind) in formats().into_iter().zip(kinds) {
        let switch = Switch::with_workers(2);
        // Ports are numbered in the order in which they are made, and are assigned to workers by number.
        let mut senders = [switch.guest(1, format), switch.guest(2, format)];
        let mut receiver = switch.guest(3, format);
        hello(&mut receiver, &mut senders);
        receiver.port.interface().set_moderation(&CallPolicy::within(kind, 200_000));
        let mut sent = [0u8; 2];
        let mut got = [0u8; 2];
        for _ in 0..200 {
            for (sender, number) in senders.iter_mut().zip(&mut sent) {
                for slot in 0..WINDOW {
                    let frame = frame(sender, Some(&receiver), LEN, *number);
                    sender.offer(slot, &VnetHdr::default(), &frame);
                    *number = number.wrapping_add(1);
                }
            }
            senders.iter_mut().for_each(Guest::send_now);
            for _ in 0..2 * WINDOW {
                let (vnet, arrived) = receiver.wait_received();
                let from = senders.iter().position(|sender| arrived[6..12] == sender.mac).unwrap();
                assert!(arrived == frame(&senders[from], Some(&receiver), LEN, got[from]));
                got[from] = got[from].wrapping_add(1);
                receiver.post(vnet.num_buffers);
            }
            senders.iter_mut().for_each(Guest::reap);
        }
    }
}

#[test]
fn a_ring_that_stops_amid_traffic_is_left_alone() {
    let switch = Switch::with_workers(2);
    let mut senders = [switch.guest(1, modern()), switch.guest(2, modern())];
    let mut receiver = switch.guest(3, modern());
    hello(&mut receiver, &mut senders);
    for round in 0..50 {
        for sender in &mut senders {
            for slot in 0..WINDOW {
                let frame = frame(sender, Some(&receiver), 65_000, round);
                sender.offer(slot, &VnetHdr::default(), &frame);
            }
            sender.send_now();
        }
        let base = receiver.front.get_vring_base(0).unwrap();
        let mut taken = 0;
        while let Some((vnet, arrived)) = receiver.received() {
            assert!(
                arrived[14..].iter().all(|byte| *byte == round),
                "published before it was copied"
            );
            taken += vnet.num_buffers;
        }
        // From here on the buffers are the guest's.
        let mark = receiver.memory.slice(RX_BUFFERS, BUFFER as u32 * u32::from(SIZE)).unwrap();
        let pattern = vec![0xee; mark.len()];
        mark.write(&pattern);
        senders.iter_mut().for_each(Guest::reap);
        let mut now = vec![0; mark.len()];
        mark.read(&mut now);
        assert!(now == pattern, "written after GET_VRING_BASE");
        receiver.post(taken);
        receiver.front.set_vring_base(0, base).unwrap();
        receiver.front.set_vring_kick(0, Some(receiver.kicks[0].as_fd())).unwrap();
        receiver.kick(0);
        let port = Arc::clone(&receiver.port);
        eventually("the ring runs again", || weir_engine::Port::rx_queues(&*port) == 1);
    }
}

#[test]
fn workers_of_two_rings_of_one_guest_count_their_bursts_apart() {
    let switch = Switch::new();
    let guest = switch.guest(1, modern());
    let receives = rx::memory(&guest.port.first_rx()).unwrap();
    let transmits = guest.port.stop_ring(1).unwrap().memory;
    assert!(!Arc::ptr_eq(&receives, &transmits));
}
