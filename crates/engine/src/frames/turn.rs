//! Several workers send from one transmit queue: each has a burst under way, and they place their frames one after the
//! other, in the order in which they took them.
//!
//! ```text
//! worker 1   | take        | place, in its turn |   copy ........   | complete |
//! worker 2                 | take               | place             |  copy .. | complete |
//!            | queue's lock | .. then no lock ...................... | queue's lock |
//! ```
//!
//! A worker draws its turn's number under the queue's lock, so nobody takes later frames with an earlier turn. It
//! waits for its turn without the lock: the next worker takes while this one places.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use weir_fabric::PortId;

use crate::threads::sync::pause;

/// The turns of one transmit queue, numbered from 0.
#[derive(Debug, Default)]
pub struct Turns {
    now: AtomicU64,
    /// Receivers of frames that were parked in their turn, and are not yet among the waiting frames.
    blocked: Mutex<Vec<PortId>>,
}

/// A burst's turn. It ends when this value is dropped, for whatever reason, but never before earlier turns.
#[derive(Debug)]
pub struct Turn {
    turns: Arc<Turns>,
    number: u64,
}

impl Turns {
    /// Turn `number`, to be [waited for](Turn::wait). Draw each number once, under the queue's lock.
    pub fn draw(self: &Arc<Self>, number: u64) -> Turn {
        Turn { turns: Arc::clone(self), number }
    }

    /// Called when no burst is under way: all parked frames are among the waiting frames.
    pub fn settled(&self) {
        self.blocked().clear();
    }

    fn blocked(&self) -> MutexGuard<'_, Vec<PortId>> {
        // The value is a list of ports, which is valid even if a holder of the lock panicked.
        self.blocked.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl Turn {
    /// Waits until the turn has come.
    pub fn wait(&self) {
        let mut spins = 0;
        while self.turns.now.load(Ordering::Acquire) != self.number {
            pause(&mut spins);
        }
    }

    /// The receivers for which frames of earlier turns were parked, once for each frame.
    pub fn blocked(&self, blocked: &mut Vec<PortId>) {
        blocked.extend_from_slice(&self.turns.blocked());
    }

    /// Notes that frames for these receivers were parked in this turn.
    pub fn park(&self, parked: impl Iterator<Item = PortId>) {
        self.turns.blocked().extend(parked);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // A turn that was never waited for, because of a panic, must not end before earlier ones.
        self.wait();
        self.turns.now.store(self.number + 1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(turns: &Arc<Turns>, number: u64) -> Turn {
        let turn = turns.draw(number);
        turn.wait();
        turn
    }

    #[test]
    fn turns_come_one_after_the_other_also_after_a_panic() {
        let turns = Arc::new(Turns::default());
        let first = wait(&turns, 0);
        let next = Arc::clone(&turns);
        let second = std::thread::spawn(move || {
            let _turn = wait(&next, 1);
            panic!("with the turn");
        });
        drop(first);
        assert!(second.join().is_err());
        drop(wait(&turns, 2));
    }

    #[test]
    fn a_turn_that_was_drawn_and_never_waited_for_ends_after_those_before_it() {
        let turns = Arc::new(Turns::default());
        let [first, second] = [0, 1].map(|number| turns.draw(number));
        first.wait();
        let ended = Arc::new(AtomicU64::new(0));
        let noted = Arc::clone(&ended);
        let dropped = std::thread::spawn(move || {
            drop(second);
            noted.load(Ordering::SeqCst)
        });
        ended.store(1, Ordering::SeqCst);
        drop(first);
        assert_eq!(dropped.join().unwrap(), 1, "it ended before the first");
        drop(wait(&turns, 2));
    }

    #[test]
    fn a_later_turn_learns_whom_earlier_ones_parked_frames_for_until_they_are_settled() {
        let turns = Arc::new(Turns::default());
        let port = PortId::new(3).unwrap();
        let first = wait(&turns, 0);
        first.park([port, port].into_iter());
        drop(first);
        let (mut blocked, second) = (Vec::new(), wait(&turns, 1));
        second.blocked(&mut blocked);
        assert_eq!(blocked, [port, port]);
        drop(second);
        turns.settled();
        blocked.clear();
        wait(&turns, 2).blocked(&mut blocked);
        assert!(blocked.is_empty());
    }
}
