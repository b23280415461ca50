//! Frames there and back, with calls, and with a driver that polls its ring on its own timer
//! (front-end coalescing).

use std::time::{Duration, Instant};

use rand::{RngExt as _, SeedableRng as _};
use rand_xoshiro::SplitMix64;
use weir_limits::FRAME_LEN_MAX;
use weir_vif::*;
use weir_wire::{CsumPartial, Offload};

use crate::backend::{Backend, Config};
use crate::{MACS, STUCK, options};

/// Builds a frame of `len` bytes that carries its number.
fn frame(number: u32, len: usize) -> Vec<u8> {
    let mut frame: Vec<u8> = (0..len).map(|i| (i as u32 ^ number) as u8).collect();
    frame[..4].copy_from_slice(&number.to_le_bytes());
    frame
}

fn echo(config: &Config, options: &Options) -> (Backend, Vif, QueuePair) {
    let (backend, socket) = Backend::echo(config);
    let mut vif = Vif::over(socket, options).unwrap();
    let pair = vif.queue_pairs().remove(0);
    (backend, vif, pair)
}

fn expect(pair: &mut QueuePair, expected: &[u8], seen: &mut Vec<u8>) {
    loop {
        if let Some(received) = pair.recv_into(seen) {
            assert_eq!(received.len, expected.len());
            assert!(seen == expected, "a frame of {} bytes", expected.len());
            return;
        }
        assert!(pair.wait(WaitFor::Receive, STUCK).unwrap(), "stuck");
    }
}

/// Returns options for split and packed rings, in order and not.
fn formats() -> [Options; 4] {
    let (packed, in_order) = (Features::RING_PACKED, Features::IN_ORDER);
    [Features::NONE, packed, in_order, packed | in_order].map(|format| {
        let features = options().features | format;
        Options { features, ..options() }
    })
}

/// Returns the sets of features to leave out, one at a time.
fn without() -> [Features; 6] {
    [
        Features::NONE,
        Features::EVENT_IDX,
        Features::INDIRECT_DESC,
        Features::EVENT_IDX | Features::INDIRECT_DESC,
        Features::MRG_RXBUF,
        Features::PROTOCOL_FEATURES,
    ]
}

#[test]
fn frames_of_every_length_come_back_whole() {
    let lengths = [
        14,
        15,
        60,
        1514,
        2036,
        2037,
        4084,
        16_372,
        16_373,
        32_757,
        65_535,
        FRAME_LEN_MAX as usize,
    ];
    let combinations = without().into_iter().flat_map(|absent| formats().map(|o| (absent, o)));
    for (absent, options) in combinations {
        let config = Config { features: Features::ALL - absent, ..Config::default() };
        let (backend, vif, mut pair) = echo(&config, &options);
        assert!(!vif.features().intersects(absent));
        let packed = options.features.contains(Features::RING_PACKED);
        assert_eq!(vif.features().contains(Features::RING_PACKED), packed);
        let mut seen = Vec::new();
        // The frames go three times around the ring.
        for number in 0..12 {
            for len in lengths {
                let sent = frame(number, len);
                pair.send(&sent, &Offload::NONE).unwrap();
                pair.flush();
                expect(&mut pair, &sent, &mut seen);
            }
        }
        let stats = pair.stats();
        assert_eq!(stats.rx_frames, 12 * lengths.len() as u64);
        assert_eq!(stats.rx_frames, stats.tx_frames);
        assert_eq!(stats.rx_bytes, stats.tx_bytes);
        assert_eq!(stats.device_errors, 0);
        drop(vif);
        backend.join();
    }
}

#[test]
fn lengths_that_are_no_frame_are_refused() {
    let (backend, vif, mut pair) = echo(&Config::default(), &options());
    for len in [0, 13, FRAME_LEN_MAX as usize + 1] {
        let error = pair.send(&vec![0; len], &Offload::NONE).unwrap_err();
        assert_eq!(error, SendError::Length { len });
    }
    assert_eq!(pair.stats().tx_frames, 0);
    drop(vif);
    backend.join();
}

#[test]
fn a_frame_from_a_body_is_its_head_and_the_range() {
    let absent = [Features::NONE, Features::INDIRECT_DESC];
    for (absent, options) in absent.into_iter().flat_map(|absent| formats().map(|o| (absent, o))) {
        let config = Config { features: Features::ALL - absent, ..Config::default() };
        let (backend, vif, mut pair) = echo(&config, &options);
        let bytes = frame(7, 65_000);
        let body = pair.add_body(&bytes).unwrap();
        let mut seen = Vec::new();
        let head = [0xab; 54];
        for range in [0..65_000, 0..0, 1..1461, 16_383..16_385, 16_384..32_768, 40_000..65_000] {
            let expected = [&head[..], &bytes[range.clone()]].concat();
            let result = pair.send_with_body(&head, body, range, &Offload::NONE);
            result.unwrap();
            pair.flush();
            expect(&mut pair, &expected, &mut seen);
        }
        let beyond = pair.send_with_body(&head, body, 1..65_001, &Offload::NONE);
        let (start, end) = (1, 65_001);
        assert_eq!(beyond, Err(SendError::Body { start, end }));
        drop(vif);
        backend.join();
    }
}

#[test]
fn bodies_leave_buffers_for_heads() {
    let small = Options { queue_size: 8, rx_buffer_bytes: 16 << 10, ..options() };
    let (backend, vif, mut pair) = echo(&Config::default(), &small);
    let bytes = frame(1, 60_000);
    let mut bodies = 0;
    while pair.add_body(&bytes).is_some() {
        bodies += 1;
    }
    assert_eq!(bodies, 2, "of 16 segments, 4 for each");
    let mut seen = Vec::new();
    pair.send(&bytes, &Offload::NONE).unwrap();
    pair.flush();
    expect(&mut pair, &bytes, &mut seen);
    drop(vif);
    backend.join();
}

#[test]
fn spec_5_1_6_2_1_an_offload_that_was_not_negotiated_is_refused() {
    let csum = Offload::with_csum(CsumPartial { start: 34, offset: 16 });
    for (features, expected) in
        [(Features::ALL, Ok(())), (Features::ALL - Features::CSUM, Err(SendError::Offload))]
    {
        let config = Config { features, ..Config::default() };
        let (backend, vif, mut pair) = echo(&config, &options());
        assert_eq!(pair.send(&frame(0, 60), &csum), expected);
        drop(vif);
        backend.join();
    }
}

#[test]
fn the_virtio_header_arrives_with_the_frame() {
    let (backend, vif, mut pair) = echo(&Config::default(), &options());
    let csum = Offload::with_csum(CsumPartial { start: 34, offset: 16 });
    pair.send(&frame(0, 3000), &csum).unwrap();
    assert!(pair.wait(WaitFor::Receive, STUCK).unwrap());
    let header = pair.recv(|frame| frame.header).unwrap();
    assert_eq!(header, csum.to_vnet(2));
    drop(vif);
    backend.join();
}

#[test]
fn a_full_ring_says_so_and_recovers() {
    // The other end takes no frame.
    let (backend, sockets) = Backend::pair(&Config::default());
    let [first, second] = sockets;
    let mut vif = Vif::over(first, &options()).unwrap();
    let mut pair = vif.queue_pairs().remove(0);
    let mut sent = 0u32;
    let full = loop {
        match pair.send(&frame(sent, 100), &Offload::NONE) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
    };
    assert_eq!((sent, full), (256, SendError::Full));
    assert_eq!(pair.stats().tx_full, 1);
    let brief = Duration::from_millis(20);
    assert!(!pair.wait(WaitFor::Transmit, brief).unwrap());

    let mut peer_vif = Vif::over(second, &options()).unwrap();
    let mut peer = peer_vif.queue_pairs().remove(0);
    let mut seen = Vec::new();
    for number in 0..sent {
        expect(&mut peer, &frame(number, 100), &mut seen);
    }
    assert!(pair.wait(WaitFor::Transmit, STUCK).unwrap());
    pair.send(&frame(0, 100), &Offload::NONE).unwrap();
    drop((vif, peer_vif));
    backend.join();
}

#[test]
fn a_hundred_thousand_frames_come_in_order_and_none_is_lost() {
    const FRAMES: u32 = 100_000;
    let (backend, sockets) = Backend::pair(&Config::default());
    let mut vifs = sockets
        .into_iter()
        .zip(MACS)
        .map(|(socket, mac)| Vif::over(socket, &Options::new(mac)).unwrap())
        .collect::<Vec<_>>();
    let mut receiver = vifs[0].queue_pairs().remove(0);
    let mut sender = vifs[1].queue_pairs().remove(0);
    // Mostly small frames, some of several buffers, few large ones.
    let len = |random: &mut SplitMix64| -> usize {
        match random.random_range(0..100) {
            0 => random.random_range(14..65_014),
            1..10 => random.random_range(14..8014),
            _ => random.random_range(14..1514),
        }
    };
    let thread = std::thread::spawn(move || {
        let mut random = SplitMix64::seed_from_u64(1);
        let bytes = frame(0, 70_000);
        for number in 0..FRAMES {
            let mut frame = bytes[..len(&mut random)].to_vec();
            frame[..4].copy_from_slice(&number.to_le_bytes());
            while let Err(error) = sender.send(&frame, &Offload::NONE) {
                assert_eq!(error, SendError::Full);
                assert!(sender.wait(WaitFor::Transmit, STUCK).unwrap(), "stuck");
            }
            if number % 16 == 0 {
                sender.flush();
            }
        }
        sender.flush();
        sender
    });
    let mut random = SplitMix64::seed_from_u64(1);
    let mut bytes = frame(0, 70_000);
    let mut seen = Vec::new();
    for number in 0..FRAMES {
        bytes[..4].copy_from_slice(&number.to_le_bytes());
        expect(&mut receiver, &bytes[..len(&mut random)], &mut seen);
    }
    let sent = thread.join().unwrap().stats();
    let received = receiver.stats();
    assert_eq!(received.rx_frames, u64::from(FRAMES));
    assert_eq!(received.rx_bytes, sent.tx_bytes);
    assert_eq!(received.device_errors, 0);
    drop(vifs);
    backend.join();
}

#[test]
fn no_wake_up_is_lost_when_both_sides_sleep() {
    // With and without EVENT_IDX, which ask for calls in different ways.
    for absent in [Features::NONE, Features::EVENT_IDX] {
        let config = Config { features: Features::ALL - absent, ..Config::default() };
        let (backend, vif, mut pair) = echo(&config, &options());
        let mut random = SplitMix64::seed_from_u64(7);
        let mut seen = Vec::new();
        for number in 0..3000 {
            let count = random.random_range(1..=4);
            for i in 0..count {
                pair.send(&frame(number + i, 64), &Offload::NONE).unwrap();
            }
            pair.flush();
            // Frames come before, after or during the request for calls.
            let until = Instant::now() + Duration::from_micros(random.random_range(0..60));
            while Instant::now() < until {
                std::hint::spin_loop();
            }
            for i in 0..count {
                expect(&mut pair, &frame(number + i, 64), &mut seen);
            }
        }
        let stats = pair.stats();
        assert!(stats.calls > 0 && stats.wakeups > 0, "{stats:?}");
        assert!(stats.calls <= stats.rx_frames, "{stats:?}");
        drop(vif);
        backend.join();
    }
}

#[test]
fn nothing_to_do_is_a_timeout_and_not_a_call() {
    let (backend, vif, mut pair) = echo(&Config::default(), &options());
    let start = Instant::now();
    let timeout = Duration::from_millis(30);
    assert!(!pair.wait(WaitFor::Any, timeout).unwrap());
    assert!(start.elapsed() >= timeout);
    assert_eq!(pair.stats().calls, 0);
    drop(vif);
    backend.join();
}

#[test]
fn a_call_that_was_not_waited_for_does_not_wake_later() {
    let (backend, vif, mut pair) = echo(&Config::default(), &options());
    let mut seen = Vec::new();
    // The frame leaves a signal behind: calls are on while the frame is taken without sleeping.
    let sent = frame(1, 60);
    pair.send(&sent, &Offload::NONE).unwrap();
    expect(&mut pair, &sent, &mut seen);
    let timeout = Duration::from_millis(30);
    let start = Instant::now();
    assert!(!pair.wait(WaitFor::Any, timeout).unwrap());
    assert!(start.elapsed() >= timeout);
    drop(vif);
    backend.join();
}

#[test]
fn queue_pairs_work_side_by_side() {
    let several = Options { queues: 4, ..options() };
    let (backend, socket) = Backend::echo(&Config::default());
    let mut vif = Vif::over(socket, &several).unwrap();
    let threads: Vec<_> = vif
        .queue_pairs()
        .into_iter()
        .enumerate()
        .map(|(queue, mut pair)| {
            std::thread::spawn(move || {
                let mut seen = Vec::new();
                for number in 0..500 {
                    let sent = frame(number * 4 + queue as u32, 200);
                    pair.send(&sent, &Offload::NONE).unwrap();
                    pair.flush();
                    expect(&mut pair, &sent, &mut seen);
                }
                pair.stats().rx_frames
            })
        })
        .collect();
    assert!(vif.queue_pairs().is_empty());
    for thread in threads {
        assert_eq!(thread.join().unwrap(), 500);
    }
    drop(vif);
    backend.join();
}

#[test]
fn a_pair_outlives_its_interface() {
    let (backend, vif, mut pair) = echo(&Config::default(), &options());
    drop(vif);
    backend.join();
    pair.send(&frame(0, 60), &Offload::NONE).unwrap();
    pair.flush();
    let brief = Duration::from_millis(5);
    assert!(!pair.wait(WaitFor::Any, brief).unwrap());
    assert!(pair.recv(|frame| frame.len).is_none());
}

const INTERVAL: Duration = Duration::from_micros(500);

fn polled() -> Options {
    Options { poll_interval: Some(INTERVAL), ..options() }
}

fn send(pair: &mut QueuePair, count: u32) {
    for _ in 0..count {
        pair.send(&[0; 60], &Offload::NONE).unwrap();
    }
    pair.flush();
}

fn drain(pair: &mut QueuePair) -> u32 {
    std::iter::from_fn(|| pair.recv(|frame| frame.len)).count().try_into().unwrap()
}

#[test]
fn frames_that_keep_coming_are_found_without_calls() {
    for absent in [Features::NONE, Features::EVENT_IDX] {
        let config = Config { features: Features::ALL - absent, ..Config::default() };
        let (backend, vif, mut pair) = echo(&config, &polled());
        let mut calls_at_rest = 0;
        let mut received = 0;
        for round in 0..200 {
            send(&mut pair, 4);
            assert!(pair.wait(WaitFor::Receive, STUCK).unwrap(), "stuck");
            received += drain(&mut pair);
            if round == 0 {
                // The first frames find the driver asleep.
                calls_at_rest = pair.stats().calls;
            }
        }
        while received < 800 {
            assert!(pair.wait(WaitFor::Receive, STUCK).unwrap(), "stuck");
            received += drain(&mut pair);
        }
        let stats = pair.stats();
        assert!(stats.polls > 0, "{stats:?}");
        // A thread without a processor may have had several empty polls in a row.
        assert!(stats.calls - calls_at_rest <= stats.polls / 2, "{stats:?}");
        drop(vif);
        backend.join();
    }
}

#[test]
fn a_look_comes_an_interval_after_the_last_one() {
    let interval = Duration::from_millis(30);
    let slow = Options { poll_interval: Some(interval), ..options() };
    let (backend, vif, mut pair) = echo(&Config::default(), &slow);
    let mut waits_for_the_next_look = || {
        send(&mut pair, 1);
        assert!(pair.wait(WaitFor::Receive, STUCK).unwrap(), "stuck");
        let found = Instant::now();
        assert_eq!(drain(&mut pair), 1);
        // This frame arrives long before the driver polls.
        send(&mut pair, 1);
        assert!(pair.wait(WaitFor::Receive, STUCK).unwrap(), "stuck");
        assert_eq!(drain(&mut pair), 1);
        // The timer was set before `found` was read, possibly long before if this thread lost its
        // CPU.
        found.elapsed() >= interval / 2
    };
    assert!((0..20).any(|_| waits_for_the_next_look()));
    drop(vif);
    backend.join();
}

#[test]
fn no_wake_up_is_lost_between_polling_and_calls() {
    for absent in [Features::NONE, Features::EVENT_IDX] {
        for packed in [Features::NONE, Features::RING_PACKED] {
            let config = Config { features: Features::ALL - absent, ..Config::default() };
            let features = options().features | packed;
            let interval = Duration::from_micros(20);
            let often = Options { features, poll_interval: Some(interval), ..options() };
            let (backend, vif, mut pair) = echo(&config, &often);
            for number in 0..1500u32 {
                // Frames come before, during and after the polls that lead back to calls.
                let until = Instant::now() + Duration::from_micros((number * 7 % 150).into());
                while Instant::now() < until {
                    std::hint::spin_loop();
                }
                let count = 1 + number % 3;
                send(&mut pair, count);
                let mut received = 0;
                while received < count {
                    assert!(pair.wait(WaitFor::Receive, STUCK).unwrap(), "stuck");
                    received += drain(&mut pair);
                }
            }
            drop(vif);
            backend.join();
        }
    }
}

#[test]
fn a_quiet_interface_sleeps_until_it_is_called() {
    let (backend, vif, mut pair) = echo(&Config::default(), &polled());
    send(&mut pair, 1);
    assert!(pair.wait(WaitFor::Receive, STUCK).unwrap(), "stuck");
    assert_eq!(drain(&mut pair), 1);
    let start = Instant::now();
    // The number of intervals until the last empty poll depends on the machine.
    let before = loop {
        let before = pair.stats();
        assert!(!pair.wait(WaitFor::Receive, 50 * INTERVAL).unwrap());
        if pair.stats() == before {
            break before;
        }
        assert!(start.elapsed() < STUCK, "it never sleeps: {before:?}");
    };
    assert!(before.polls < 10, "{before:?}");
    // The next frame causes a call.
    send(&mut pair, 1);
    assert!(pair.wait(WaitFor::Receive, STUCK).unwrap(), "stuck");
    assert_eq!(drain(&mut pair), 1);
    assert_eq!(pair.stats().polls, before.polls);
    drop(vif);
    backend.join();
}

#[test]
fn a_wait_that_ends_before_the_next_look_finds_what_is_there() {
    let hour = Options { poll_interval: Some(Duration::from_secs(3600)), ..options() };
    let (backend, vif, mut pair) = echo(&Config::default(), &hour);
    send(&mut pair, 1);
    assert!(pair.wait(WaitFor::Receive, STUCK).unwrap(), "stuck");
    assert_eq!(drain(&mut pair), 1);
    assert!(!pair.wait(WaitFor::Receive, Duration::ZERO).unwrap());
    send(&mut pair, 1);
    while !pair.wait(WaitFor::Receive, Duration::from_millis(1)).unwrap() {}
    assert_eq!(drain(&mut pair), 1);
    drop(vif);
    backend.join();
}

#[test]
fn a_sender_does_not_wait_for_the_timer() {
    let hour = Options { poll_interval: Some(Duration::from_secs(3600)), ..options() };
    let (backend, vif, mut pair) = echo(&Config::default(), &hour);
    send(&mut pair, 1);
    assert!(pair.wait(WaitFor::Receive, STUCK).unwrap(), "stuck");
    for _ in 0..10 {
        drain(&mut pair);
        while pair.send(&[0; 60], &Offload::NONE).is_ok() {}
        assert!(pair.wait(WaitFor::Any, STUCK).unwrap(), "stuck");
    }
    drop(vif);
    backend.join();
}
