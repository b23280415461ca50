//! Front-end coalescing: the driver polls its ring on a timer of its own.

use std::time::{Duration, Instant};

use weir_vif::*;
use weir_wire::Offload;

use crate::backend::{Backend, Config};
use crate::{STUCK, options};

const INTERVAL: Duration = Duration::from_micros(500);

fn polled() -> Options {
    Options { poll_interval: Some(INTERVAL), ..options() }
}

fn echo(config: &Config, options: &Options) -> (Backend, Vif, QueuePair) {
    let (backend, socket) = Backend::echo(config);
    let mut vif = Vif::over(socket, options).unwrap();
    let pair = vif.queue_pairs().remove(0);
    (backend, vif, pair)
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
