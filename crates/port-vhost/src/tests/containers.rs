//! Containers to a guest that unpacks them, end to end.

use std::sync::atomic::{AtomicU32, Ordering};
use weir_engine::guest::GuestPort;

use weir_policy::moderation::Settings;
use weir_vif::{Options, QueuePair, Vif, WaitFor};
use weir_wire::Mac;

use super::*;

/// Frames under way: no more than may wait for a receiver that is short of buffers.
const WINDOW: u32 = 64;
const STUCK: Duration = PATIENCE;

/// A guest, with or without containers, whose frames wait for a full container.
fn vif(switch: &Switch, mac: u8, containers: bool, kind: Kind) -> (Arc<VhostPort>, Vif, QueuePair) {
    let (port, stream) = switch.port();
    let options =
        Options { containers, queue_size: 256, ..Options::new(Mac([0x52, 0x54, 0, 0, 0, mac])) };
    let mut vif = Vif::over(stream, &options).unwrap();
    let pair = vif.queue_pairs().remove(0);
    eventually("the rings start", || port.info().state == State::Running);
    let calls = CallPolicy::within(kind, 20_000_000);
    let policy = kind.build(Settings::within(20_000_000));
    let _old = port.first_rx().set_moderation(0, policy, &calls, port.counters());
    (port, vif, pair)
}

fn frame_to(to: u8, from: u8, len: usize, number: u32) -> Vec<u8> {
    let mut frame = vec![number as u8; len];
    frame[..6].copy_from_slice(&[0x52, 0x54, 0, 0, 0, to]);
    frame[6..12].copy_from_slice(&[0x52, 0x54, 0, 0, 0, from]);
    frame[12..14].copy_from_slice(&0x88b5u16.to_be_bytes()); // local experimental ethertype
    frame[14..18].copy_from_slice(&number.to_le_bytes());
    frame
}

/// Some lengths fit in a container, many of them small; others do not.
fn len(number: u32) -> usize {
    match number % 50 {
        7 => 9000,
        8 => 30_000,
        n if n % 5 == 0 => 1400,
        n => 60 + n as usize,
    }
}

fn send(pair: &mut QueuePair, frame: &[u8]) {
    while pair.send(frame, &Offload::NONE).is_err() {
        assert!(pair.wait(WaitFor::Transmit, STUCK).unwrap(), "stuck");
    }
}

#[test]
fn frames_in_containers_and_beside_them_come_in_order_and_none_is_lost() {
    const FRAMES: u32 = 20_000;
    for (containers, kind) in [
        (true, Kind::Aggregate),
        (true, Kind::AggregateAdaptive),
        (false, Kind::Aggregate),
        (true, Kind::Immediate),
    ] {
        let switch = Switch::new();
        let (_, _receiving, mut receiver) = vif(&switch, 1, containers, kind);
        let (_, _sending, mut sender) = vif(&switch, 2, false, Kind::Immediate);
        // The switch learns where the receiver is.
        let mut hello = frame_to(2, 1, 60, 0);
        hello[..6].fill(0xff);
        send(&mut receiver, &hello);
        receiver.flush();
        assert!(sender.wait(WaitFor::Receive, STUCK).unwrap(), "stuck");
        let received = AtomicU32::new(0);
        let mut seen = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..FRAMES {
                    if number >= received.load(Ordering::Relaxed) + WINDOW {
                        sender.flush();
                        eventually("the receiver goes on", || {
                            number < received.load(Ordering::Relaxed) + WINDOW / 2
                        });
                    }
                    send(&mut sender, &frame_to(1, 2, len(number), number));
                }
                sender.flush();
            });
            for number in 0..FRAMES {
                while receiver.recv_into(&mut seen).is_none() {
                    assert!(receiver.wait(WaitFor::Receive, STUCK).unwrap(), "stuck at {number}");
                }
                assert!(seen == frame_to(1, 2, len(number), number), "{number}");
                received.store(number + 1, Ordering::Relaxed);
            }
        });
        let stats = receiver.stats();
        let expected = containers && kind != Kind::Immediate;
        assert_eq!(stats.rx_containers > 0, expected, "{stats:?}");
        assert_eq!((stats.rx_frames, stats.device_errors), (FRAMES.into(), 0));
    }
}

#[test]
fn frames_that_come_one_by_one_share_a_container() {
    const FRAMES: u32 = 10;
    let switch = Switch::new();
    let (port, _receiving, mut receiver) = vif(&switch, 1, true, Kind::Aggregate);
    let (_, _sending, mut sender) = vif(&switch, 2, false, Kind::Immediate);
    let mut hello = frame_to(2, 1, 60, 0);
    hello[..6].fill(0xff);
    send(&mut receiver, &hello);
    receiver.flush();
    assert!(sender.wait(WaitFor::Receive, STUCK).unwrap(), "stuck");
    let calls = CallPolicy::within(Kind::Aggregate, 60_000_000_000);
    let settings = Settings { rx_frames: Some(FRAMES), ..Settings::within(calls.hold_ns_max()) };
    let policy = Kind::Aggregate.build(settings);
    let _old = port.first_rx().set_moderation(0, policy, &calls, port.counters());

    let mut seen = Vec::new();
    for round in 1..=3 {
        let numbers = (round - 1) * FRAMES..round * FRAMES;
        for number in numbers.clone() {
            assert!(receiver.recv_into(&mut seen).is_none(), "{number}: the container is open");
            send(&mut sender, &frame_to(1, 2, 60 + number as usize, number));
            sender.flush();
            let placed = || port.counters().rx[0].frames.get();
            eventually("the frame is placed", || placed() > number.into());
        }
        for number in numbers {
            while receiver.recv_into(&mut seen).is_none() {
                assert!(receiver.wait(WaitFor::Receive, STUCK).unwrap(), "stuck at {number}");
            }
            assert!(seen == frame_to(1, 2, 60 + number as usize, number), "{number}");
        }
        assert_eq!(receiver.stats().rx_containers, u64::from(round));
    }
}

#[test]
fn a_guest_that_did_not_ask_for_containers_gets_none() {
    let switch = Switch::new();
    let (_, vif, _pair) = vif(&switch, 1, false, Kind::Aggregate);
    assert!(!vif.containers());
}

#[test]
fn chains_that_are_no_single_buffer_get_frames_by_themselves() {
    let switch = Switch::new();
    let mut sender = switch.guest(1, modern());
    let (port, stream) = switch.port();
    let mut guest = Guest::new(port, stream, 2, modern());
    guest.unpacks = true;
    guest.set_up().unwrap();
    // Each chain is two halves of the same 2 KiB.
    for _ in 0..SIZE / 2 {
        let address = guest.rx_free.pop().unwrap();
        let half = |at| Buffer { address: address + at, len: BUFFER as u32 / 2, writable: true };
        let head = guest.rx.offer(&[half(0), half(BUFFER / 2)]).unwrap();
        guest.rx_at[usize::from(head)] = address;
    }
    guest.rx.publish();
    guest.kick(0);
    guest.kick(1);
    let port = Arc::clone(&guest.port);
    eventually("the rings start", || port.info().state == State::Running);
    introduce(&mut sender, &mut guest);
    let calls = CallPolicy::within(Kind::Aggregate, 1_000_000);
    let policy = Kind::Aggregate.build(Settings::within(1_000_000));
    let _old = port.first_rx().set_moderation(0, policy, &calls, port.counters());

    let frames: Vec<_> = (1..=10).map(|n| frame(&sender, Some(&guest), 1500, n)).collect();
    for (slot, frame) in frames.iter().enumerate() {
        sender.offer(slot as u64, &VnetHdr::default(), frame);
    }
    sender.send_now();
    for frame in frames {
        assert_eq!(guest.wait_received(), (Offload::NONE.to_vnet(1), frame));
    }
}
