//! Turns of queues at a worker: none is lost, none starves, and weights are kept.

use weir_limits::{SCHEDULE_QUANTUM_NS, WINDOW_PERIOD_NS_MIN};
use weir_policy::schedule::{Kind, Scheduler, Share, Window};

use super::Drill;
use crate::random::Random;

/// The rule that gives turns.
pub(super) trait Rule {
    /// Notes that a queue has work.
    fn wake(&mut self, flow: usize, queue: usize, now_ns: u64);
    /// Returns the queue to serve.
    fn next(&mut self, now_ns: u64) -> Option<usize>;
    /// Notes that a queue was served, with more work or without.
    fn served(&mut self, flow: usize, queue: usize, cost_ns: u64, more: bool);
}

impl Rule for Scheduler<usize> {
    fn wake(&mut self, flow: usize, queue: usize, now_ns: u64) {
        Self::wake(self, flow, queue, now_ns);
    }

    fn next(&mut self, now_ns: u64) -> Option<usize> {
        Self::next(self, now_ns)
    }

    fn served(&mut self, flow: usize, queue: usize, cost_ns: u64, more: bool) {
        self.charge(flow, cost_ns);
        if more {
            self.again(flow, queue);
        }
    }
}

/// Flows and their queues.
#[derive(Clone, Debug)]
pub(crate) struct Turns {
    kind: Kind,
    /// Shares by flow.
    shares: Vec<Share>,
    /// Flow of each queue.
    queues: Vec<usize>,
    cost_ns_max: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// A queue gets work.
    Wake(usize),
    /// A queue is served for a time (ns), with more work afterwards or without.
    Serve { cost_ns: u64, more: bool },
}

impl Drill for Turns {
    type Step = Step;
    const NAME: &'static str = "turns of a worker's queues";

    fn draw(random: &mut Random) -> Self {
        let mut below = |bound: usize| random.below(bound as u64) as usize; // below `bound`
        let kind = Kind::ALL[below(Kind::ALL.len())];
        let windows = kind == Kind::Dwcs && below(2) == 0;
        let flows = 1 + below(5);
        let shares = (0..flows).map(|_| {
            let period_ns = WINDOW_PERIOD_NS_MIN << below(6);
            let window = Window::new(below(3) as u16, 3, period_ns).ok(); // below 3
            let weight = 1 + below(8) as u16; // below 8
            Share { weight, window: window.filter(|_| windows && below(2) == 0) }
        });
        let shares = shares.collect();
        let queues = (0..flows + below(4)).map(|queue| queue % flows).collect();
        Self { kind, shares, queues, cost_ns_max: 1_000 << below(9) }
    }

    fn step(&self, random: &mut Random) -> Step {
        match random.below(4) {
            0 => Step::Wake(random.below(self.queues.len() as u64) as usize), // below it
            _ => Step::Serve {
                cost_ns: 1 + random.below(self.cost_ns_max),
                more: random.below(16) > 0,
            },
        }
    }

    fn play(&self, steps: &[Step]) -> Result<(), String> {
        let mut scheduler = Scheduler::new(self.kind);
        for (flow, share) in self.shares.iter().enumerate() {
            scheduler.set_share(flow, *share);
        }
        self.play_with(steps, &mut scheduler)
    }
}

/// Two flows that have both had work since these times.
#[derive(Clone, Copy, Debug)]
struct Pair {
    flows: (usize, usize),
    since: Option<(u64, u64)>,
}

impl Turns {
    fn play_with(&self, steps: &[Step], rule: &mut dyn Rule) -> Result<(), String> {
        let mut now_ns = 0;
        // By queue: beginning of its wait (ns).
        let mut ready: Vec<Option<u64>> = vec![None; self.queues.len()];
        let mut had_ns = vec![0; self.shares.len()];
        let flows = self.shares.len();
        let pairs = (0..flows).flat_map(|a| (a + 1..flows).map(move |b| (a, b)));
        let mut pairs: Vec<_> = pairs.map(|flows| Pair { flows, since: None }).collect();
        for step in steps {
            match *step {
                Step::Wake(queue) if ready[queue].is_none() => {
                    ready[queue] = Some(now_ns);
                    rule.wake(self.queues[queue], queue, now_ns);
                }
                Step::Wake(_) => {}
                Step::Serve { cost_ns, more } => {
                    let waits = ready.iter().filter(|since| since.is_some()).count();
                    let queue = match (rule.next(now_ns), waits) {
                        (None, 0) => continue,
                        (None, _) => return Err(format!("{waits} queues wait, and none is next")),
                        (Some(queue), _) => queue,
                    };
                    if ready.get(queue).copied().flatten().is_none() {
                        return Err(format!("queue {queue} is next, and has no work"));
                    }
                    let flow = self.queues[queue];
                    now_ns += cost_ns;
                    had_ns[flow] += cost_ns;
                    ready[queue] = more.then_some(now_ns);
                    rule.served(flow, queue, cost_ns, more);
                }
            }
            self.starves(&ready, now_ns)?;
            if self.kind == Kind::Drr {
                let busy = |flow| {
                    (0..ready.len()).any(|it| self.queues[it] == flow && ready[it].is_some())
                };
                pairs.iter_mut().try_for_each(|pair| self.is_fair(pair, &had_ns, busy))?;
            }
        }
        Ok(())
    }

    /// Returns a flow's grant in a round (ns).
    fn grant_ns(&self, flow: usize) -> u64 {
        u64::from(self.shares[flow].weight) * SCHEDULE_QUANTUM_NS.unsigned_abs()
    }

    /// Returns the longest wait of a flow's queue (ns); `None`: unlimited.
    fn wait_ns_max(&self, flow: usize) -> Option<u64> {
        let queues = self.queues.len() as u64;
        if self.kind != Kind::Drr {
            // Windows may take all time.
            let windows = self.shares.iter().any(|share| share.window.is_some());
            return (!windows).then_some(queues * self.cost_ns_max);
        }
        let round_ns = |flow| self.grant_ns(flow) + self.cost_ns_max;
        let round_ns: u64 = (0..self.shares.len()).map(round_ns).sum();
        // A debt is at most one burst. Each of the flow's queues may come first, and make another
        // debt.
        let rounds = self.cost_ns_max / self.grant_ns(flow) + 2;
        let of_flow = self.queues.iter().filter(|of| **of == flow).count() as u64;
        Some(of_flow * rounds * round_ns)
    }

    fn starves(&self, ready: &[Option<u64>], now_ns: u64) -> Result<(), String> {
        for (queue, since_ns) in ready.iter().enumerate() {
            let Some(since_ns) = since_ns else { continue };
            let most_ns = self.wait_ns_max(self.queues[queue]);
            let waits_ns = now_ns - since_ns;
            if most_ns.is_some_and(|most_ns| waits_ns > most_ns) {
                return Err(format!("queue {queue} has waited for {waits_ns} ns"));
            }
        }
        Ok(())
    }

    /// Checks that of two flows with work neither is ahead of the other by more than a few quanta
    /// and bursts.
    fn is_fair(
        &self,
        pair: &mut Pair,
        had_ns: &[u64],
        busy: impl Fn(usize) -> bool,
    ) -> Result<(), String> {
        let (a, b) = pair.flows;
        if !busy(a) || !busy(b) {
            pair.since = None;
            return Ok(());
        }
        let now = (had_ns[a], had_ns[b]);
        let since = *pair.since.get_or_insert(now);
        let per_weight = |flow: usize, ns: u64| ns as f64 / f64::from(self.shares[flow].weight);
        let ahead = per_weight(a, now.0 - since.0) - per_weight(b, now.1 - since.1);
        let burst = per_weight(a, self.cost_ns_max) + per_weight(b, self.cost_ns_max);
        if ahead.abs() > 3.0 * SCHEDULE_QUANTUM_NS as f64 + 2.0 * burst {
            let (a_ns, b_ns) = (now.0 - since.0, now.1 - since.1);
            return Err(format!("flow {a} had {a_ns} ns and flow {b} {b_ns} ns, both with work"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::fails;
    use super::*;

    /// A faulty rule for turns.
    #[derive(Default)]
    struct Double {
        ready: Vec<usize>,
        served: u64,
        last_first: bool,
        forgets: bool,
        repeats: bool,
    }

    impl Rule for Double {
        fn wake(&mut self, _: usize, queue: usize, _: u64) {
            self.ready.push(queue);
        }

        fn next(&mut self, _: u64) -> Option<usize> {
            match self.ready.is_empty() {
                true => None,
                false if self.last_first => self.ready.pop(),
                false => Some(self.ready.remove(0)),
            }
        }

        fn served(&mut self, _: usize, queue: usize, _: u64, more: bool) {
            self.served += 1;
            let forgotten = self.forgets && self.served.is_multiple_of(7);
            let repeated = self.repeats && self.served.is_multiple_of(7);
            if (more && !forgotten) || repeated {
                self.ready.push(queue);
            }
        }
    }

    /// Returns the failure of a rule without weights.
    fn found(double: impl Fn() -> Double) -> String {
        let play = |drill: &Turns, steps: &[Step]| {
            let drill = Turns { kind: Kind::RoundRobin, ..drill.clone() };
            drill.play_with(steps, &mut double())
        };
        fails(50, play).expect("a rule with a fault is found")
    }

    #[test]
    fn a_rule_that_starves_a_queue_is_found() {
        let error = found(|| Double { last_first: true, ..Double::default() });
        assert!(error.contains("has waited for"), "{error}");
    }

    #[test]
    fn a_rule_that_forgets_a_queue_is_found() {
        let error = found(|| Double { forgets: true, ..Double::default() });
        assert!(error.contains("none is next") || error.contains("has waited for"), "{error}");
    }

    #[test]
    fn a_rule_that_has_a_queue_twice_is_found() {
        let error = found(|| Double { repeats: true, ..Double::default() });
        assert!(error.contains("and has no work"), "{error}");
    }

    #[test]
    fn a_rule_that_ignores_weights_is_found() {
        let play = |drill: &Turns, steps: &[Step]| {
            drill.play_with(steps, &mut Scheduler::new(Kind::RoundRobin))
        };
        let error = fails(50, play).expect("it is found");
        assert!(error.contains("both with work"), "{error}");
    }
}
