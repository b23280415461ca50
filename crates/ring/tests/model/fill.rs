//! Two workers fill one receive ring: chains are taken in turn, frames are copied at the same time, and the guest sees
//! them in the order of the turns.

use std::sync::Arc;

use loom::sync::Mutex;
use loom::sync::atomic::{AtomicU16, Ordering};
use weir_guestmem::{Weakness, weaken};
use weir_ring::{DriverRing, RingConfig, Used};

use crate::order::FillOrder;
use crate::rig::*;

const FRAMES: usize = 2;

/// Each buffer is written by one worker, without the lock, and then read by the guest: 0 or the frame's number.
type Buffers = [AtomicU16; FRAMES];

struct Workers {
    rx: Mutex<RxQueue>,
    buffers: Arc<Buffers>,
    call: Arc<Event>,
}

/// The data behind the queue's lock.
struct RxQueue {
    device: Device,
    order: FillOrder<()>,
    next_frame: u16,
}

/// The deliberate mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turns {
    Kept,
    /// A worker that has copied publishes everything, including chains that others are copying.
    Ignored,
}

impl Workers {
    /// `port-vhost`: `RxQueue::place`, the copy, `RxQueue::finish`.
    fn deliver(&self, turns: Turns) {
        let (frame, buffer_at, place) = {
            let RxQueue { device, order, next_frame } = &mut *self.rx.lock().unwrap();
            device.ring.refill().unwrap();
            let chain = device.take_writable().unwrap();
            *next_frame += 1;
            device.ring.complete(chain.token, (*next_frame).into());
            let nth = chain.len - buffer(0, true).len;
            (*next_frame, nth as usize, order.begin(1, ()))
        };
        self.buffers[buffer_at].store(frame, Ordering::Relaxed);
        let RxQueue { device, order, .. } = &mut *self.rx.lock().unwrap();
        let chains = order.finish(place, |()| ());
        let published = match turns {
            Turns::Kept => device.ring.publish_first(chains),
            Turns::Ignored => device.ring.publish(),
        };
        if published > 0 && device.ring.needs_call() {
            self.call.give();
        }
    }
}

fn fill(config: RingConfig, turns: Turns, weak: Sides) {
    type Guest = (DriverRing, Vec<u16>, Arc<Buffers>, Arc<Event>);
    let set_up = move || -> (Guest, Arc<Workers>) {
        let (mut driver, device) = rings(config, 1);
        let heads = [0, 1].map(|nth| driver.offer(&[buffer(nth, true)]).unwrap());
        driver.publish();
        let buffers = Arc::new([0, 0].map(AtomicU16::new));
        let call = Event::new();
        let rx = Mutex::new(RxQueue { device, order: FillOrder::default(), next_frame: 0 });
        let workers = Workers { rx, buffers: Arc::clone(&buffers), call: Arc::clone(&call) };
        ((driver, heads.into(), buffers, call), Arc::new(workers))
    };
    let driver = |(mut driver, heads, buffers, call): Guest| {
        let mut seen = 0;
        loop {
            driver.suppress_calls();
            while let Some(used) = driver.take() {
                let frame = seen as u16 + 1;
                assert_eq!(used, Used { head: heads[seen], written: frame.into() });
                assert_eq!(buffers[seen].load(Ordering::Relaxed), frame);
                seen += 1;
            }
            assert_eq!(driver.skipped(), 0);
            if seen == FRAMES {
                return;
            }
            if !driver.enable_calls() {
                call.wait();
            }
        }
    };
    let workers = move |workers: Arc<Workers>| {
        let other = Arc::clone(&workers);
        let other = loom::thread::spawn(move || {
            weaken(weak.device);
            other.deliver(turns);
        });
        workers.deliver(turns);
        other.join().unwrap();
    };
    interleave(3, weak, set_up, driver, workers);
}

#[test]
fn frames_of_two_workers_arrive_whole_in_the_order_of_their_turns_and_no_call_is_lost() {
    for config in formats() {
        fill(config, Turns::Kept, SOUND);
        fill(RingConfig { in_order: true, ..config }, Turns::Kept, SOUND);
    }
}

#[test]
fn without_turns_a_frame_is_seen_while_it_is_copied() {
    for config in formats() {
        let failure = failure(move || fill(config, Turns::Ignored, SOUND));
        assert!(is_wrong_value(&failure), "{config:?}: {failure:?}");
    }
}

#[test]
fn without_release_a_frame_is_seen_before_it_is_copied() {
    let weak = Sides { device: Weakness::RelaxedStores, ..SOUND };
    for config in formats() {
        let failure = failure(move || fill(config, Turns::Kept, weak));
        assert!(is_wrong_value(&failure), "{config:?}: {failure:?}");
    }
}

#[test]
fn without_the_fence_of_either_side_a_call_for_two_workers_is_lost() {
    for config in formats() {
        for weak in each_side(Weakness::NoFence) {
            let failure = failure(move || fill(config, Turns::Kept, weak));
            assert!(is_lost_wakeup(&failure), "{config:?}, {weak:?}: {failure:?}");
        }
    }
}
