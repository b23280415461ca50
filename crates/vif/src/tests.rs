//! Tests against lying devices: each test plays the ring's device side.

mod containers;

use std::sync::Arc;

use weir_guestmem::Slice;
use weir_limits::RX_MERGE_MAX;
use weir_ring::{DeviceRing, Direction, DriverRing, Token};
use weir_wire::{Mac, Offload, VnetHdr};

use crate::counters::Event;
use crate::features::Features;
use crate::memory::{Plan, SharedMemory};
use crate::pair::QueuePair;
use crate::receive::{Format, Receive};
use crate::transmit::{Transmit, TransmitPlan};

const SIZE: u16 = 8;
const BUFFER_BYTES: u32 = 1024;

/// A queue pair, and the device sides of its rings.
struct Bench {
    memory: SharedMemory,
    pair: QueuePair,
    rx: DeviceRing,
    tx: DeviceRing,
}

/// The device's use of one receive buffer.
#[derive(Clone, Copy)]
struct Fill {
    /// `num_buffers` of the header at the front, if there is a header.
    num_buffers: Option<u16>,
    /// Length that the device reports (bytes).
    written: u32,
}

fn first(num_buffers: u16, written: u32) -> Fill {
    Fill { num_buffers: Some(num_buffers), written }
}

fn next(written: u32) -> Fill {
    Fill { num_buffers: None, written }
}

impl Bench {
    fn new(features: Features) -> Self {
        Self::with(features, false)
    }

    fn with(features: Features, containers: bool) -> Self {
        let config = Features(Features::EVENT_IDX.0 | Features::INDIRECT_DESC.0).ring(SIZE);
        let mut plan = Plan::default();
        let (rx_at, tx_at) = (plan.ring(SIZE), plan.ring(SIZE));
        let buffers = Receive::plan(&mut plan, SIZE, [BUFFER_BYTES; 2]);
        let transmit = TransmitPlan::new(&mut plan, SIZE);
        let memory = plan.build().unwrap();
        let event = || Event::new().unwrap();
        let driver = |at| DriverRing::new(&memory.memory, config, at).unwrap();
        let rx = Receive::new(
            Arc::clone(&memory.memory),
            driver(&rx_at),
            Format { mergeable: features.contains(Features::MRG_RXBUF), containers },
            buffers,
            event(),
            event(),
        );
        let tx = Transmit::new(
            Arc::clone(&memory.memory),
            driver(&tx_at),
            config.indirect,
            transmit,
            event(),
            event(),
        );
        let mut pair = QueuePair::new(Mac::default(), features, rx, tx);
        pair.start();
        let device = |at| DeviceRing::new(&memory.memory, config, at, 0).unwrap();
        let (rx, tx) = (device(&rx_at), device(&tx_at));
        Self { memory, pair, rx, tx }
    }

    /// Uses one receive buffer for each of `fills`.
    fn receive(&mut self, fills: &[Fill]) {
        self.rx.refill().unwrap();
        let memory = &self.memory.memory;
        for fill in fills {
            let mut pieces = Vec::new();
            let chain = self.rx.take(Direction::Writable, memory, &mut pieces).unwrap();
            if let Some(num_buffers) = fill.num_buffers {
                let header = VnetHdr { num_buffers, ..VnetHdr::default() };
                pieces[0].write(&header.to_bytes());
            }
            self.rx.complete(chain.unwrap().token, fill.written);
        }
        self.rx.publish();
    }

    /// Returns the lengths of the received frames, and the device errors since the beginning.
    fn seen(&mut self) -> (Vec<usize>, u64) {
        let mut lengths = Vec::new();
        while let Some(len) = self.pair.recv(|frame| {
            let pieces: usize = frame.pieces.iter().map(Slice::len).sum();
            assert_eq!(pieces, frame.len);
            frame.len
        }) {
            lengths.push(len);
        }
        (lengths, self.pair.stats().device_errors)
    }

    /// Asserts that every buffer can be used again: a whole ring of valid frames goes through.
    fn still_works(&mut self) {
        let (_, errors) = self.seen();
        self.pair.wait(crate::WaitFor::Receive, std::time::Duration::ZERO).unwrap();
        for _ in 0..3 {
            self.receive(&[first(1, 12 + 60); SIZE as usize]);
            assert_eq!(self.seen(), (vec![60; SIZE.into()], errors));
        }
    }
}

fn mergeable() -> Bench {
    Bench::new(Features::VERSION_1 | Features::MRG_RXBUF)
}

/// Returns the token of a lying device, for any descriptor.
fn named(head: u16) -> Token {
    u64::from(head).into()
}

/// Raj & Schwan 2006 §5.2: the receive queue is made of the receiver's own buffers, and nothing copies out of it.
#[test]
fn a_frame_is_read_in_the_buffer_that_the_device_writes() {
    let mut bench = mergeable();
    bench.rx.refill().unwrap();
    let memory = Arc::clone(&bench.memory.memory);
    let mut pieces = Vec::new();
    let chain = bench.rx.take(Direction::Writable, &memory, &mut pieces).unwrap().unwrap();
    pieces[0].write(&VnetHdr { num_buffers: 1, ..VnetHdr::default() }.to_bytes());
    bench.rx.complete(chain.token, VnetHdr::LEN as u32 + 60);
    bench.rx.publish();
    let written = pieces[0].skip(VnetHdr::LEN);
    let read = bench.pair.recv(|frame| {
        // The guest has the frame already, and sees what the device writes from now on.
        [1, 2].map(|byte| {
            written.write(&[byte; 60]);
            let mut seen = [0; 60];
            assert_eq!(frame.read(&mut seen), seen.len());
            seen
        })
    });
    assert_eq!(read, Some([[1; 60], [2; 60]]));
    bench.still_works();
}

#[test]
fn merged_buffers_are_one_frame() {
    let mut bench = mergeable();
    bench.receive(&[first(3, 1024), next(1024), next(100), first(1, 12 + 14)]);
    assert_eq!(bench.seen(), (vec![1012 + 1024 + 100, 14], 0));
    bench.still_works();
}

#[test]
fn an_empty_merged_buffer_is_no_piece() {
    let mut bench = mergeable();
    bench.receive(&[first(3, 12), next(0), next(100)]);
    let pieces = bench.pair.recv(|frame| (frame.len, frame.pieces.len()));
    assert_eq!(pieces, Some((100, 1)));
    bench.still_works();
}

#[test]
fn more_written_than_the_buffer_holds_is_skipped() {
    for written in [BUFFER_BYTES + 1, u32::MAX] {
        let mut bench = mergeable();
        bench.receive(&[first(1, written), first(1, 12 + 60)]);
        assert_eq!(bench.seen(), (vec![60], 1));
        bench.receive(&[first(2, 1024), next(written), first(1, 12 + 60)]);
        assert_eq!(bench.seen(), (vec![60], 2));
        bench.still_works();
    }
}

#[test]
fn less_written_than_header_and_ethernet_is_skipped() {
    for written in [0, 11, 12, 12 + 13] {
        let mut bench = mergeable();
        bench.receive(&[first(1, written), first(1, 12 + 14)]);
        assert_eq!(bench.seen(), (vec![14], 1));
        bench.still_works();
    }
}

#[test]
fn num_buffers_that_make_no_sense_are_skipped() {
    for num_buffers in [0, RX_MERGE_MAX as u16 + 1, u16::MAX] {
        let mut bench = mergeable();
        bench.receive(&[first(num_buffers, 12 + 60), first(1, 12 + 60)]);
        assert_eq!(bench.seen(), (vec![60], 1), "{num_buffers}");
        bench.still_works();
    }
}

#[test]
fn spec_5_1_6_4_1_a_frame_published_in_parts_is_dropped() {
    let mut bench = mergeable();
    bench.receive(&[first(3, 1024), next(1024)]);
    assert_eq!(bench.seen(), (vec![], 1));
    bench.still_works();
}

#[test]
fn spec_5_1_6_4_2_num_buffers_counts_only_with_mrg_rxbuf() {
    let mut bench = Bench::new(Features::VERSION_1);
    bench.receive(&[first(0, 12 + 60), first(7, 12 + 60)]);
    assert_eq!(bench.seen(), (vec![60, 60], 0));
    bench.still_works();
}

#[test]
fn used_elements_that_name_nothing_in_flight_are_counted() {
    let mut bench = mergeable();
    // One descriptor is invalid, and one is returned twice.
    bench.rx.complete(named(SIZE + 1), 100);
    bench.rx.complete(named(u16::MAX), 100);
    bench.receive(&[first(1, 12 + 60)]);
    bench.rx.complete(named(0), 12 + 60);
    bench.rx.publish();
    let (frames, errors) = bench.seen();
    assert_eq!((frames, errors), (vec![60], 3));
}

#[test]
fn a_used_index_that_jumps_costs_a_ring_of_errors_per_look_and_no_more() {
    let mut bench = mergeable();
    // The index goes round once, with elements that were all seen before or never.
    for _ in 0..u16::MAX {
        bench.rx.complete(named(SIZE), 0);
    }
    bench.rx.publish();
    assert_eq!(bench.seen(), (vec![], u64::from(SIZE)));
    assert_eq!(bench.seen(), (vec![], 2 * u64::from(SIZE)));
}

#[test]
fn transmit_completions_of_nothing_free_nothing() {
    let mut bench = mergeable();
    for head in [0, 3, SIZE, u16::MAX] {
        bench.tx.complete(named(head), 0);
    }
    bench.tx.publish();
    bench.pair.flush();
    let frame = [0; 60];
    let mut sent = 0;
    while bench.pair.send(&frame, &Offload::NONE).is_ok() {
        sent += 1;
    }
    assert_eq!(sent, SIZE);
}

#[test]
fn frames_in_flight_keep_their_segments_while_others_are_reclaimed() {
    let mut bench = mergeable();
    let memory = Arc::clone(&bench.memory.memory);
    // Large frames among small ones; the device completes the latest first.
    let lengths = [60, 40_000, 100, 20_000];
    let mut in_flight = Vec::new();
    for number in 0u8..200 {
        let len = lengths[usize::from(number) % lengths.len()];
        while bench.pair.send(&vec![number; len], &Offload::NONE).is_err() {
            bench.pair.flush();
            bench.tx.refill().unwrap();
            let mut pieces = Vec::new();
            while let Some(chain) =
                bench.tx.take(Direction::Readable, &memory, &mut pieces).unwrap()
            {
                in_flight.push((chain, std::mem::take(&mut pieces)));
            }
            let (chain, pieces) = in_flight.pop().unwrap();
            let mut bytes = vec![0; chain.len as usize];
            let mut at = 0;
            for piece in pieces {
                at += piece.read(&mut bytes[at..]);
            }
            let frame = &bytes[VnetHdr::LEN..];
            assert!(frame.iter().all(|byte| *byte == frame[0]));
            assert_eq!(frame.len(), lengths[usize::from(frame[0]) % lengths.len()]);
            bench.tx.complete(chain.token, 0);
            bench.tx.publish();
        }
    }
}

#[test]
fn features_have_names_and_needs() {
    let features = Features::VERSION_1 | Features::MRG_RXBUF | Features(1 << 60);
    assert_eq!(features.to_string(), "VERSION_1|MRG_RXBUF|0x1000000000000000");
    assert_eq!(Features::NONE.to_string(), "none");
    assert!(Features::ALL.contains(Features::HOST_USO | Features::PROTOCOL_FEATURES));
    let alone = Features::HOST_TSO4 | Features::GUEST_TSO4 | Features::CSUM;
    let kept = Features::HOST_TSO4 | Features::CSUM;
    assert_eq!(alone.consistent(), kept);
}

#[test]
fn slots_do_not_share_cache_sets() {
    let mut plan = Plan::default();
    for bytes in [1024, 2048, 16_384, 65_565] {
        let slots = plan.slots([bytes; 2], 4);
        let stride = slots.address(1) - slots.address(0);
        assert!(stride >= u64::from(bytes));
        assert!((stride / 64) % 2 == 1 && stride % 64 == 0, "{stride}");
    }
}
