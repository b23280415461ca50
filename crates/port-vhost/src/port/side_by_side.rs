//! Bursts of one transmit queue that pass side by side: see [`crate::tx::side_by_side`].

use std::cell::RefCell;

use weir_engine::burst::{Burst, Scratch};
use weir_engine::{Take, Taken, lock_when};

use super::{Pair, VhostPort};
use crate::error::StopReason;
use crate::tx::TxQueue;

impl VhostPort {
    /// [`take`](weir_engine::Port::take) where several workers may do that at a time. Locks are taken in this
    /// order: the queue's, the turn, receivers' below it; and who has a turn never waits for the queue's.
    #[cold]
    pub(super) fn take_side_by_side(
        &self,
        queue: usize,
        pair: &Pair,
        what: Take,
        now_ns: u64,
        scratch: &mut Scratch,
        forward: &mut dyn FnMut(&mut Burst<'_>),
    ) -> Taken {
        let alone = |tx: &TxQueue| !tx.is_for_one(what) || tx.is_settled();
        let Some(mut tx) = lock_when(&pair.tx, || self.has_failed(), alone) else {
            return Taken::default();
        };
        if tx.is_for_one(what) {
            let taken = tx.take(queue, what, now_ns, &self.counters, scratch, forward);
            return taken.unwrap_or_else(|reason| self.broken(&mut tx, &reason));
        }
        // The burst borrows it.
        let Some(memory) = tx.memory() else { return Taken::default() };
        let turn = RefCell::new(None);
        let mut burst = scratch.lend();
        let begun = match tx.begin(queue, &memory, &mut burst, now_ns, &self.counters) {
            Ok(Some(begun)) => begun,
            Ok(None) => {
                scratch.give_back(burst);
                let taken = tx.taken(0, false, None);
                return taken.unwrap_or_else(|reason| self.broken(&mut tx, &reason));
            }
            Err(reason) => return self.broken(&mut tx, &reason),
        };
        let mine = pair.turns.wait(begun.number);
        tx.note_turn(&mine, &mut burst);
        drop(tx);
        turn.replace(Some(mine));
        burst.turn = Some(&turn);
        if !burst.frames().is_empty() {
            forward(&mut burst);
        }
        if let Some(mine) = turn.take() {
            mine.park(burst.parked.iter().map(|parked| parked.port));
        }

        let may_settle = |tx: &TxQueue| tx.may_settle(&begun) != Some(false);
        let Some(mut tx) = lock_when(&pair.tx, || self.has_failed(), may_settle) else {
            return Taken::default();
        };
        if tx.may_settle(&begun).is_none() {
            return Taken::default();
        }
        let taken = tx.end(queue, &begun, &burst, now_ns, &self.counters);
        if tx.is_settled() {
            pair.turns.settled();
        }
        scratch.give_back(burst);
        taken.unwrap_or_else(|reason| self.broken(&mut tx, &reason))
    }

    /// A transmit ring is broken: nothing was taken that counts.
    pub(super) fn broken(&self, tx: &mut TxQueue, reason: &StopReason) -> Taken {
        tx.queue.signal_error();
        self.stop(reason);
        Taken::default()
    }
}
