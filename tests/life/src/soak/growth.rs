//! Growth of a program: its resources after the first minutes, and at the end.

use crate::account::Observed;

/// Number of samples that are left out at the start, since a new program has not reached its size yet, and number of
/// samples per group.
const WARM_UP: usize = 2;
const TOGETHER: usize = 3;

/// Samples of one life of a program.
#[derive(Clone, Debug, Default)]
pub struct Life {
    seen: Vec<Observed>,
}

impl Life {
    /// Adds a sample.
    pub fn note(&mut self, seen: Observed) {
        self.seen.push(seen);
    }

    /// Returns the growth since the warm-up. The least of a group stands for the group, so that resources held for a
    /// moment do not count.
    pub fn growth(&self) -> Option<Observed> {
        let warm = self.seen.get(WARM_UP..)?;
        let least = |looks: &[Observed]| {
            let of = |value: fn(&Observed) -> u64| looks.iter().map(value).min().unwrap_or(0);
            Observed {
                own_kib: of(|it| it.own_kib),
                fds: of(|it| it.fds),
                threads: of(|it| it.threads),
            }
        };
        if warm.len() < 2 * TOGETHER {
            return None;
        }
        let (first, last) = (least(&warm[..TOGETHER]), least(&warm[warm.len() - TOGETHER..]));
        Some(Observed {
            own_kib: last.own_kib.saturating_sub(first.own_kib),
            fds: last.fds.saturating_sub(first.fds),
            threads: last.threads.saturating_sub(first.threads),
        })
    }

    /// Returns the last sample.
    pub fn last(&self) -> Option<Observed> {
        self.seen.last().copied()
    }
}

/// All lives of one program.
#[derive(Clone, Debug, Default)]
pub struct Lives {
    now: Life,
    most: Observed,
    /// Resources of the first and last lives after their warm-up.
    ends: Option<[Observed; 2]>,
}

impl Lives {
    /// Adds a sample of the present life.
    pub fn note(&mut self, seen: Observed) {
        self.now.note(seen);
    }

    /// Ends the present life.
    pub fn ended(&mut self) {
        let life = std::mem::take(&mut self.now);
        let growth = life.growth().unwrap_or_default();
        self.most = larger(self.most, growth);
        // A short life does not show the program's size.
        if let Some(last) = life.last().filter(|_| life.seen.len() > WARM_UP) {
            self.ends = Some([self.ends.map_or(last, |[first, _]| first), last]);
        }
    }

    /// Returns the largest growth of any life, or the growth from the first life to the last.
    pub fn growth(mut self) -> Observed {
        self.ended();
        let between = self.ends.map(|[first, last]| Observed {
            own_kib: last.own_kib.saturating_sub(first.own_kib),
            fds: last.fds.saturating_sub(first.fds),
            threads: last.threads.saturating_sub(first.threads),
        });
        larger(self.most, between.unwrap_or_default())
    }
}

fn larger(one: Observed, other: Observed) -> Observed {
    Observed {
        own_kib: one.own_kib.max(other.own_kib),
        fds: one.fds.max(other.fds),
        threads: one.threads.max(other.threads),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lives(kib: &[u64]) -> Lives {
        let mut lives = Lives::default();
        for &own_kib in kib {
            lives.note(Observed { own_kib, fds: 9, threads: 4 });
        }
        lives
    }

    #[test]
    fn a_leak_is_growth_and_a_peak_is_not() {
        let leak = lives(&[1, 50, 100, 110, 120, 130, 140, 150, 160]);
        assert_eq!(leak.growth(), Observed { own_kib: 40, fds: 0, threads: 0 });
        let peak = lives(&[1, 50, 100, 100, 900, 100, 100, 900, 100]);
        assert_eq!(peak.growth().own_kib, 0);
    }

    #[test]
    fn lives_that_are_each_larger_than_the_one_before_are_growth() {
        let mut all = lives(&[1, 50, 100]);
        for size in [150, 200] {
            all.ended();
            [1, 50, size].into_iter().for_each(|own_kib| {
                all.note(Observed { own_kib, fds: size, threads: 4 });
            });
        }
        assert_eq!(all.growth(), Observed { own_kib: 100, fds: 191, threads: 0 });
    }
}
