//! `port-null`, a sink: a port that takes every frame and counts it. A new kind of port needs no more code than this
//! file; CONTRIBUTING.md walks through it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use weir_engine::burst::{Burst, Pieces, Scratch, TakenChain};
use weir_engine::egress::{Packet, Put};
use weir_engine::gro::EgressList;
use weir_engine::{
    Ask, Delivered, Engine, Forward, Outgoing, Port, PortCounters, QueueRef, Side, Taken,
};
use weir_fabric::PortConfig;
use weir_guestmem::HostBuffer;
use weir_policy::steering::Receiver;
use weir_testing::eventually;
use weir_wire::OffloadCaps;

/// The sink. Workers call a port from several threads, so its state is shared: here only counters, which `weir stats`
/// shows.
struct NullPort {
    counters: Arc<PortCounters>,
}

impl Port for NullPort {
    /// The number of receive queues in use. With 0 the port gets no frames: a guest's driver has not started it yet.
    fn rx_queues(&self) -> usize {
        1
    }

    /// Receives frames. `EgressList` passes them in a form that the port can take: it inserts tags, fills in checksums
    /// and cuts GSO frames according to `OffloadCaps`. A real port copies `packet.head` and `packet.body()` in its
    /// closure, and returns `Put::Full` if it has no buffer.
    fn deliver(&self, queue: usize, burst: &Burst<'_>, frames: &[Outgoing]) -> Delivered {
        let mut list = EgressList::new(burst, frames, OffloadCaps::NONE);
        let count = |packet: Packet<'_, '_>| {
            self.counters.rx[queue].frames.add(packet.frames.into());
            self.counters.rx[queue].bytes.add(packet.frames_len() as u64);
            Put::Done
        };
        while list.emit_next(count).is_some() {}
        list.delivered()
    }

    /// Takes frames from the port: a sink has none. `Sender` below has some.
    fn take(&self, _: usize, _: Ask, _: &mut Scratch, _: Forward<'_>) -> Taken {
        Taken::default()
    }

    /// Returns true if a frame came before a kick could be asked for.
    fn arm_tx(&self, _queue: usize) -> bool {
        false
    }

    /// A bug in the methods above stops the port, not the switch. A real port reports it in its state and in the log.
    fn fail(&self, reason: &str) {
        panic!("{reason}");
    }
}

/// Delivered frames leave the queue at once, as these defaults state. Steering calls them for a port with several
/// queues.
impl Receiver for NullPort {}

/// A virtio-net header before each frame, and the frame: addresses, an experimental ethertype, zeros.
const VNET_LEN: usize = 12;
const FRAME_LEN: usize = 60;

/// The peer, for the test: a port that sends frames from its own memory, and receives nothing.
struct Sender {
    memory: HostBuffer,
    left: AtomicUsize,
}

impl Sender {
    fn new(frames: usize) -> Self {
        let memory = HostBuffer::new(VNET_LEN + FRAME_LEN);
        let addresses = [[0x02, 0, 0, 0, 0, 1], [0x02, 0, 0, 0, 0, 2]].concat();
        memory.slice(VNET_LEN, FRAME_LEN).unwrap().write(&[&addresses[..], &[0x88, 0xb5]].concat());
        Self { memory, left: frames.into() }
    }
}

impl Port for Sender {
    /// Frames are slices of memory, which `Burst::add` checks. When `forward` returns, it has delivered them, except
    /// frames that it parked. A real port has a `TransmitQueue`, which locks, parks and completes; the port then
    /// provides its ring as a `Source`.
    fn take(&self, _queue: usize, ask: Ask, scratch: &mut Scratch, forward: Forward<'_>) -> Taken {
        let mut burst = scratch.lend();
        let frames = self.left.load(Ordering::Relaxed).min(burst.frames_max);
        for _ in 0..frames {
            let whole = self.memory.slice(0, VNET_LEN + FRAME_LEN).expect("as long as the memory");
            let len = (VNET_LEN + FRAME_LEN) as u32;
            let chain = TakenChain { token: 0, len, pieces: Pieces::Only(whole) };
            burst.add(chain, VNET_LEN, ask.now_ns).expect("a whole frame");
        }
        forward(&mut burst);
        let more = self.left.fetch_sub(frames, Ordering::Relaxed) > frames;
        Taken { frames, more, ..Taken::default() }
    }

    fn arm_tx(&self, _queue: usize) -> bool {
        self.left.load(Ordering::Relaxed) > 0
    }

    fn rx_queues(&self) -> usize {
        0
    }

    fn deliver(&self, _: usize, _: &Burst<'_>, frames: &[Outgoing]) -> Delivered {
        Delivered { frames: frames.len(), ..Delivered::default() }
    }

    fn fail(&self, reason: &str) {
        panic!("{reason}");
    }
}

impl Receiver for Sender {}

#[test]
fn a_sink_gets_every_frame_and_counts_it() {
    const FRAMES: usize = 1000;
    let engine = Engine::start(1).unwrap();
    // A port gets its number and its counters from the engine, and frames once it is active.
    let sink = |_, counters| Arc::new(NullPort { counters });
    let (sink_id, sink) = engine.add_port(PortConfig::uplink(), sink).unwrap();
    let sender = |_, _| Arc::new(Sender::new(FRAMES));
    let (sender_id, _) = engine.add_port(PortConfig::vif(), sender).unwrap();
    for id in [sink_id, sender_id] {
        engine.fabric().set_active(id, true).unwrap();
    }
    // Takes the place of a kick. If a descriptor signals frames, `Engine::watch` makes a worker watch it.
    engine.nudge(QueueRef { port: sender_id, queue: 0, side: Side::Tx });

    let counted = &sink.counters.rx[0];
    let frames = || Some(counted.frames.get()).filter(|frames| *frames >= FRAMES as u64);
    assert_eq!(eventually("the sink has every frame", frames), FRAMES as u64);
    assert_eq!(counted.bytes.get(), (FRAMES * FRAME_LEN) as u64);
}
