//! The queue pairs of an interface, of which there may come more while traffic flows.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use weir_engine::guest::{CallPolicy, TransmitCalls};
use weir_limits::QUEUE_PAIRS_MAX;

use super::VhostPort;
use crate::queue::Queue;
use crate::rx::RxQueue;
use crate::tx::TxQueue;

#[derive(Debug)]
pub(super) struct Pair {
    pub(super) tx: TxQueue,
    pub(super) rx: Mutex<RxQueue>,
}

/// The pairs from the first on that were ever offered to a front end. None goes while the interface exists:
/// workers need no lock to find one, and what it has counted stays.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    made: [OnceLock<Box<Pair>>; QUEUE_PAIRS_MAX],
    /// How many the next session is offered.
    offered: AtomicUsize,
}

impl Pairs {
    /// See [`VhostPort::set_queue_pairs`].
    pub(super) fn offer(&self, queue_pairs: usize, calls: &CallPolicy) {
        let queue_pairs = queue_pairs.clamp(1, QUEUE_PAIRS_MAX);
        for place in self.made.iter().take(queue_pairs) {
            place.get_or_init(|| {
                Box::new(Pair {
                    tx: TxQueue::new(Queue::default(), TransmitCalls::new(calls)),
                    rx: Mutex::new(RxQueue::new(Queue::default(), calls)),
                })
            });
        }
        self.offered.store(queue_pairs, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn get(&self, queue: usize) -> Option<&Pair> {
        self.made.get(queue)?.get().map(|pair| &**pair)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Pair> {
        self.made.iter().map_while(OnceLock::get).map(|pair| &**pair)
    }
}

impl VhostPort {
    /// Queue pairs that it has: the most that it has ever offered.
    pub fn queue_pairs(&self) -> usize {
        self.pairs.iter().count()
    }

    /// Queue pairs that the next session is offered.
    pub(crate) fn offered_queue_pairs(&self) -> usize {
        self.pairs.offered.load(Ordering::Relaxed)
    }

    /// Offers so many queue pairs, 1 to [`QUEUE_PAIRS_MAX`], to the next session, while traffic flows: a front
    /// end asks for their number once, so that the session that there is keeps what it was told. At pairs that
    /// are new the guest is called by `calls`, which is to be the policy of the others.
    pub fn set_queue_pairs(&self, queue_pairs: usize, calls: &CallPolicy) {
        self.pairs.offer(queue_pairs, calls);
    }
}
