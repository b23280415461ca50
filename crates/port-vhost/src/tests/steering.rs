//! Flows to a guest with several receive queues; their steering entries are moved all the time.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use weir_engine::Port;
use weir_limits::INDIRECTION_LEN;
use weir_vif::{Features, Options, QueuePair, Vif};
use weir_wire::Mac;

use super::*;

const FLOWS: u16 = 12;
const FRAMES: u32 = 30_000;
/// Frames of one sender that the receiver has not seen: fewer than the number at which frames are dropped.
const WINDOW: u32 = 96;
const RECEIVER: u8 = 9;

fn mac(number: u8) -> [u8; 6] {
    [0x52, 0x54, 0, 0, 0, number]
}

/// A datagram of one of the flows between a sender and the receiver, in either direction.
fn datagram(from: u8, to: u8, ports: (u16, u16), number: u32) -> Vec<u8> {
    let mut frame = [mac(to), mac(from)].concat();
    frame.extend([8, 0, 0x45, 0, 0, 32, 0, 0, 0x40, 0, 64, 17, 0, 0]);
    frame.extend([10, 0, 0, from, 10, 0, 0, to]);
    frame.extend([ports.0, ports.1, 12, 0].map(u16::to_be_bytes).concat());
    frame.extend(number.to_be_bytes());
    frame
}

fn vif(switch: &Switch, number: u8, options: Options) -> (Arc<VhostPort>, Vif, Vec<QueuePair>) {
    let (port, stream) = switch.port();
    let queues = options.queues;
    let options = Options { mac: Mac(mac(number)), ..options };
    let mut vif = Vif::over(stream, &options).unwrap();
    let pairs = vif.queue_pairs();
    eventually("the rings start", || port.rx_queues() == queues);
    (port, vif, pairs)
}

/// Counts frames that came in behind a later one.
struct Seen {
    last: Vec<Option<u32>>,
    counts: [AtomicU32; 2],
    queues: Vec<[u32; 2]>,
    reordered: Option<String>,
}

impl Seen {
    fn new() -> Self {
        let flows = 2 * usize::from(FLOWS);
        Self {
            last: vec![None; flows],
            counts: Default::default(),
            queues: vec![[0; 2]; flows],
            reordered: None,
        }
    }

    fn look(&mut self, queue: usize, frame: &[u8]) {
        let Some((&from, rest)) = frame.get(29..).and_then(<[u8]>::split_first) else { return };
        if frame[12..14] != [8, 0] || !(1..=2).contains(&from) {
            return;
        }
        let flow = usize::from(from - 1) * usize::from(FLOWS) + usize::from(rest[5]);
        let number = u32::from_be_bytes(frame[42..46].try_into().unwrap());
        let before = self.last[flow].replace(number);
        if before >= Some(number) {
            self.reordered =
                Some(format!("flow {flow}: {number}, queue {queue}, after {before:?}"));
        }
        self.queues[flow][queue] += 1;
        self.counts[usize::from(from - 1)].fetch_add(1, Ordering::Relaxed);
    }
}

/// A flow's frames have its number as the low byte of the source port.
fn ports(flow: u16) -> (u16, u16) {
    (0x1000 + flow, 53)
}

fn no_flow_is_reordered(features: Features) {
    let switch = Switch::with_workers(2);
    let options = Options { features, ..Options::new(Mac(mac(0))) };
    let senders = [1, 2].map(|number| vif(&switch, number, options.clone()));
    let (port, _receiving, mut receivers) =
        vif(&switch, RECEIVER, Options { queues: 2, ..options });
    // The switch learns where the receiver is.
    let mut hello = datagram(RECEIVER, 1, (1, 1), 0);
    hello[..6].fill(0xff);
    receivers[0].send(&hello, &Offload::NONE).unwrap();
    receivers[0].flush();
    eventually("the switch knows the receiver", || senders[0].0.counters().rx[0].frames.get() > 0);

    let (over, received) = (AtomicBool::new(false), [AtomicU32::new(0), AtomicU32::new(0)]);
    let mut seen = Seen::new();
    std::thread::scope(|scope| {
        for ((_, vif, mut pairs), received) in senders.into_iter().zip(&received) {
            let over = &over;
            scope.spawn(move || {
                let from = vif.mac().0[5];
                for number in 0..FRAMES {
                    while number >= received.load(Ordering::Relaxed) + WINDOW {
                        if over.load(Ordering::Relaxed) {
                            return;
                        }
                        pairs[0].flush();
                        std::thread::yield_now();
                    }
                    // A flow sends some frames in a row, as in real traffic.
                    let flow = (number / 3 % u32::from(FLOWS)) as u16;
                    let frame = datagram(from, RECEIVER, ports(flow), number);
                    while pairs[0].send(&frame, &Offload::NONE).is_err() {
                        std::thread::yield_now();
                    }
                    while pairs[0].recv(|_| ()).is_some() {}
                }
                pairs[0].flush();
                while !over.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
            });
        }
        let (port, over) = (&port, &over);
        scope.spawn(move || {
            let steering = port.steering().unwrap();
            for step in 0.. {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                let entry = step * 31 % INDIRECTION_LEN;
                let to = 1 - steering.entries()[entry].queue;
                steering.begin_move(entry, to.into(), &**port);
                if step.is_multiple_of(16) {
                    steering.look_after(20, &**port);
                    std::thread::sleep(Duration::from_micros(50));
                }
            }
        });
        let (mut total, mut end) = (0, Instant::now() + PATIENCE);
        while total < 2 * FRAMES && seen.reordered.is_none() && Instant::now() < end {
            for (queue, pair) in receivers.iter_mut().enumerate() {
                // The bursts are uneven, so that one queue lags behind the other.
                let burst = 1 + (total as usize * 7 + queue * 5) % 23;
                for _ in 0..burst {
                    let mut bytes = Vec::new();
                    if pair.recv_into(&mut bytes).is_none() {
                        break;
                    }
                    seen.look(queue, &bytes);
                }
            }
            let mut now = 0;
            for (count, received) in seen.counts.iter().zip(&received) {
                received.store(count.load(Ordering::Relaxed), Ordering::Relaxed);
                now += count.load(Ordering::Relaxed);
            }
            // The guest answers on one queue or the other, and flows follow.
            if now / 500 != total / 500 {
                let (flow, to) = ((now / 500 % u32::from(FLOWS)) as u16, 1 + (now / 500 % 2) as u8);
                let (src, dst) = ports(flow);
                let answer = datagram(RECEIVER, to, (dst, src), 0);
                let pair = &mut receivers[now as usize / 1000 % 2];
                let _ = pair.send(&answer, &Offload::NONE);
                pair.flush();
            }
            if now > total {
                end = Instant::now() + PATIENCE;
            }
            total = now;
        }
        over.store(true, Ordering::Relaxed);
        assert_eq!(seen.reordered, None);
        assert_eq!(total, 2 * FRAMES, "frames were lost");
    });
    let moved = seen.queues.iter().filter(|[a, b]| *a > 0 && *b > 0).count();
    assert!(moved >= usize::from(FLOWS), "{moved} flows have changed queues: {:?}", seen.queues);
}

#[test]
fn a_flow_is_never_reordered_on_split_rings() {
    no_flow_is_reordered(Features::ALL - Features::RING_PACKED - Features::IN_ORDER);
}

#[test]
fn a_flow_is_never_reordered_on_packed_rings() {
    no_flow_is_reordered(Features::ALL - Features::IN_ORDER);
}

#[test]
fn a_flow_is_never_reordered_without_event_indices() {
    let features = Features::ALL - Features::RING_PACKED - Features::IN_ORDER;
    no_flow_is_reordered(features - Features::EVENT_IDX);
}
