//! Tracks the bursts that are between looking up a queue and having placed their frames there.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Counts visits by generation. So it can tell when all visits that began before a moment have
/// ended, though others have begun (as in Linux' SRCU). Only a generation's parity is counted: a
/// generation begins when no visit is left of the one before the present.
#[derive(Debug, Default)]
pub(super) struct Visits {
    generation: AtomicU64,
    inside: [AtomicU32; 2],
}

impl Visits {
    /// Begins a visit, and returns its generation. Stores before a [`begun`](Self::begun) are
    /// visible to visits of later generations.
    pub(super) fn enter(&self) -> u64 {
        loop {
            let generation = self.generation.load(Ordering::SeqCst);
            let inside = &self.inside[(generation & 1) as usize];
            inside.fetch_add(1, Ordering::SeqCst);
            // Sequentially consistent: either this sees a generation that has begun meanwhile, or
            // the thread that wants to begin the next but one sees this visit.
            if self.generation.load(Ordering::SeqCst) == generation {
                return generation;
            }
            inside.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Ends a visit. A thread that sees the end sees the placed frames too.
    pub(super) fn leave(&self, generation: u64) {
        self.inside[(generation & 1) as usize].fetch_sub(1, Ordering::Release);
    }

    /// Returns the generation of the visits that may be inside now, for
    /// [`have_ended`](Self::have_ended). Later visits belong to the next generation, if it can
    /// begin. The caller must exclude concurrent calls of both methods.
    pub(super) fn begun(&self) -> u64 {
        let generation = self.generation.load(Ordering::SeqCst);
        self.advance();
        generation
    }

    /// Returns whether all visits have ended that began before [`begun`](Self::begun) returned
    /// `generation`.
    pub(super) fn have_ended(&self, generation: u64) -> bool {
        // The first step leaves `generation` behind. The second step is possible when no visit of
        // it is left.
        while self.generation.load(Ordering::SeqCst) < generation + 2 {
            if !self.advance() {
                return false;
            }
        }
        true
    }

    /// Begins the next generation, if no visit is left of the one before the present.
    fn advance(&self) -> bool {
        let generation = self.generation.load(Ordering::SeqCst);
        let free = self.inside[((generation + 1) & 1) as usize].load(Ordering::SeqCst) == 0;
        if free {
            self.generation.store(generation + 1, Ordering::SeqCst);
        }
        free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visits_end_by_generation_though_others_have_begun() {
        let visits = Visits::default();
        let old = visits.enter();
        let begun = visits.begun();
        let young = visits.enter();
        assert_ne!(old, young);
        assert!(!visits.have_ended(begun));
        visits.leave(old);
        assert!(visits.have_ended(begun));
        let later = visits.begun();
        assert!(!visits.have_ended(later));
        visits.leave(young);
        assert!(visits.have_ended(later));
    }

    #[test]
    fn nobody_inside_is_nobody_to_wait_for() {
        let visits = Visits::default();
        for _ in 0..5 {
            assert!(visits.have_ended(visits.begun()));
            visits.leave(visits.enter());
        }
    }
}
