//! Who is between looking up a queue and having placed the frames there.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Counts visits by generation, so that it can be said when all that began before a moment have ended,
/// though others have begun (as in Linux' SRCU). Of a generation only the parity is counted: one begins
/// when nobody is left of that before the last.
#[derive(Debug, Default)]
pub(super) struct Visits {
    generation: AtomicU64,
    inside: [AtomicU32; 2],
}

impl Visits {
    /// A visit begins; gives its generation. What [`begun`](Self::begun) followed is visible to visits
    /// of later generations.
    pub(super) fn enter(&self) -> u64 {
        loop {
            let generation = self.generation.load(Ordering::SeqCst);
            let inside = &self.inside[(generation & 1) as usize];
            inside.fetch_add(1, Ordering::SeqCst);
            // Sequentially consistent: either this sees a generation that has begun meanwhile, or
            // whoever wants to begin the next but one sees this visit.
            if self.generation.load(Ordering::SeqCst) == generation {
                return generation;
            }
            inside.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// A visit ends; what it has placed is visible to whoever sees that.
    pub(super) fn leave(&self, generation: u64) {
        self.inside[(generation & 1) as usize].fetch_sub(1, Ordering::Release);
    }

    /// The generation of those who may be inside now, to ask [`have_ended`](Self::have_ended) about.
    /// Visits to come are of the next, if that can begin. The caller excludes others that ask, here
    /// and there.
    pub(super) fn begun(&self) -> u64 {
        let generation = self.generation.load(Ordering::SeqCst);
        self.advance();
        generation
    }

    /// Whether all visits have ended that began before [`begun`](Self::begun) gave `generation`.
    pub(super) fn have_ended(&self, generation: u64) -> bool {
        // The first step leaves `generation` behind, and the second is possible when nobody is left of it.
        while self.generation.load(Ordering::SeqCst) < generation + 2 {
            if !self.advance() {
                return false;
            }
        }
        true
    }

    /// Begins the next generation, if nobody is left of that before the present one.
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
