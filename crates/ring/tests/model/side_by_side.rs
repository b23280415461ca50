//! Two workers send from one transmit ring: each takes a frame, places it in the receiver's ring in its turn, copies it
//! while the other continues, and completes it after the frames that were taken before.

use std::sync::Arc;

use loom::sync::Mutex;
use loom::sync::atomic::{AtomicU64, Ordering};
use weir_ring::{DriverRing, RingConfig, Token, Used};

use crate::order::FillOrder;
use crate::rig::*;

const FRAMES: u16 = 2;

struct Workers {
    tx: Mutex<TxQueue>,
    /// `Turns` of `weir_engine::queue`: the number whose turn it is to place.
    turn: AtomicU64,
    rx: Mutex<RxQueue>,
}

/// The data behind the transmit queue's lock.
struct TxQueue {
    device: Device,
    begun: u64,
    settled: u64,
}

/// The data behind the receive queue's lock.
struct RxQueue {
    device: Device,
    order: FillOrder<()>,
}

/// The deliberate mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turns {
    Kept,
    /// A worker places without waiting for its turn.
    NotWaitedFor,
    /// A worker completes without waiting for its turn.
    NotSettledInOrder,
}

impl Workers {
    /// `TransmitQueue::take_turn` of `weir_engine::queue`.
    fn send(&self, turns: Turns) {
        let (number, token, frame) = {
            let TxQueue { device, begun, .. } = &mut *self.tx.lock().unwrap();
            device.ring.refill().unwrap();
            let chain = device.take_readable().unwrap();
            let number = *begun;
            *begun += 1;
            // The queue's lock is held here.
            while turns != Turns::NotWaitedFor && self.turn.load(Ordering::Acquire) != number {
                loom::thread::yield_now();
            }
            (number, chain.token, chain.len)
        };
        let place = {
            let RxQueue { device, order } = &mut *self.rx.lock().unwrap();
            device.ring.refill().unwrap();
            let chain = device.take_writable().unwrap();
            device.ring.complete(chain.token, frame);
            order.begin(1, ())
        };
        self.turn.store(number + 1, Ordering::Release);
        {
            // The copy, for which no other worker waits, comes before this.
            let RxQueue { device, order } = &mut *self.rx.lock().unwrap();
            let chains = order.finish(place, |()| ());
            device.ring.publish_first(chains);
        }
        while !self.settle(number, token, turns) {
            loom::thread::yield_now();
        }
    }

    /// Completes a frame, if all frames that were taken before it are complete.
    fn settle(&self, number: u64, token: Token, turns: Turns) -> bool {
        let TxQueue { device, settled, .. } = &mut *self.tx.lock().unwrap();
        let its_turn = *settled == number || turns == Turns::NotSettledInOrder;
        if its_turn {
            device.ring.complete(token, 0);
            device.ring.publish();
            *settled += 1;
        }
        its_turn
    }
}

/// Sends two frames, and checks what the receiver and the sender see at the end, and in which order.
fn side_by_side(config: RingConfig, turns: Turns) {
    let set_up = move || -> ((), (Arc<Workers>, [DriverRing; 2])) {
        let (mut sender, tx) = rings(config, 0);
        (0..FRAMES).for_each(|nth| _ = sender.offer(&[buffer(nth, false)]).unwrap());
        sender.publish();
        let (mut receiver, rx) = more_rings(config);
        (0..FRAMES).for_each(|nth| _ = receiver.offer(&[buffer(nth, true)]).unwrap());
        receiver.publish();
        let tx = Mutex::new(TxQueue { device: tx, begun: 0, settled: 0 });
        let rx = Mutex::new(RxQueue { device: rx, order: FillOrder::default() });
        ((), (Arc::new(Workers { tx, turn: AtomicU64::new(0), rx }), [sender, receiver]))
    };
    let workers = move |(workers, guests): (Arc<Workers>, [DriverRing; 2])| {
        let other = Arc::clone(&workers);
        let other = loom::thread::spawn(move || other.send(turns));
        workers.send(turns);
        other.join().unwrap();
        let [mut sender, mut receiver] = guests;
        for nth in 0..FRAMES {
            let written = buffer(nth, false).len;
            assert_eq!(receiver.take().map(|Used { written, .. }| written), Some(written));
            assert_eq!(sender.take().map(|Used { head, .. }| head), Some(nth));
        }
    };
    interleave(3, SOUND, set_up, |()| {}, workers);
}

#[test]
fn what_was_taken_first_is_seen_and_completed_first() {
    for config in formats() {
        side_by_side(config, Turns::Kept);
        side_by_side(RingConfig { in_order: true, ..config }, Turns::Kept);
    }
}

#[test]
fn without_turns_frames_are_reordered_or_completed_out_of_order() {
    for config in formats() {
        for turns in [Turns::NotWaitedFor, Turns::NotSettledInOrder] {
            let failure = failure(move || side_by_side(config, turns));
            assert!(is_wrong_value(&failure), "{config:?}, {turns:?}: {failure:?}");
        }
    }
}
