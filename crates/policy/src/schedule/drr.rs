//! Worker time by weight: deficit round robin (Shreedhar & Varghese, SIGCOMM 1995). A burst's cost
//! is known only after service, as in surplus round robin (Adiseshu, Parulkar & Varghese 1996).
//!
//! A flow is served while it has deficit left, and pays for the burst. When no ready flow has
//! deficit, a round ends, and each flow gets a quantum times its weight, idle flows too. One
//! round's grant is the most that a flow can have. So idleness neither saves up time nor cancels a
//! debt. Of two flows that are always ready, neither is further from its share than a quantum and
//! the cost of one burst.
//!
//! Within a round bursts interleave. A queue that had no work comes before those that had (as in
//! DRR++, MacGregor & Shi 2000). It waits for one burst, not for a round. Its flow's deficit is the
//! round's, so it gains no time by this.

use std::collections::VecDeque;
use std::mem;

use weir_limits::SCHEDULE_QUANTUM_NS;

use super::Entry;

/// A flow's account.
#[derive(Clone, Copy, Debug)]
struct Account {
    /// Worker time left (ns), as of `round`; negative is a debt.
    deficit_ns: i64,
    /// The last round whose grant was added.
    round: u64,
    weight: u16,
}

impl Account {
    /// Returns the grant of one round (ns).
    fn grant_ns(&self) -> i64 {
        i64::from(self.weight) * SCHEDULE_QUANTUM_NS
    }

    /// Adds the grants up to `round`, and returns the deficit.
    #[inline]
    fn deficit_ns(&mut self, round: u64) -> i64 {
        if self.round != round {
            let rounds = i64::try_from(round - self.round).unwrap_or(i64::MAX);
            let given = self.grant_ns().saturating_mul(rounds);
            self.deficit_ns = self.deficit_ns.saturating_add(given).min(self.grant_ns());
            self.round = round;
        }
        self.deficit_ns
    }

    /// Returns the rounds from `round` on until there is deficit, at least one.
    fn rounds_needed(&mut self, round: u64) -> u64 {
        let debt_ns = self.deficit_ns(round).min(0).unsigned_abs();
        debt_ns / self.grant_ns().unsigned_abs() + 1
    }
}

#[derive(Debug)]
pub(super) struct Drr<Q> {
    /// Accounts by flow, grown when a flow first appears.
    accounts: Vec<Account>,
    round: u64,
    /// Queues that had no work before.
    fresh: VecDeque<Entry<Q>>,
    /// Queues whose flow had deficit when they were put here.
    current: VecDeque<Entry<Q>>,
    /// Queues without deficit, which wait for the next round. The `passed_over` ones come first:
    /// another queue of their flow had used up the deficit in this round. Without this order that
    /// other queue would be first in each round, and the only one served where a burst costs more
    /// than a grant.
    spent: VecDeque<Entry<Q>>,
    /// Number of passed-over queues at the front of `spent`.
    passed_over: usize,
}

impl<Q: Copy> Drr<Q> {
    pub(super) fn new() -> Self {
        let (fresh, current, spent) = Default::default();
        Self { accounts: Vec::new(), round: 0, fresh, current, spent, passed_over: 0 }
    }

    #[inline]
    fn account(&mut self, flow: usize) -> &mut Account {
        if flow >= self.accounts.len() {
            self.open_accounts(flow + 1);
        }
        &mut self.accounts[flow]
    }

    #[cold]
    fn open_accounts(&mut self, flows: usize) {
        let new = Account { deficit_ns: SCHEDULE_QUANTUM_NS, round: self.round, weight: 1 };
        self.accounts.resize(flows, new);
    }

    #[inline]
    fn deficit_ns(&mut self, flow: usize) -> i64 {
        let round = self.round;
        self.account(flow).deficit_ns(round)
    }

    pub(super) fn set_weight(&mut self, flow: usize, weight: u16) {
        let round = self.round;
        let account = self.account(flow);
        account.deficit_ns(round);
        account.weight = weight.max(1);
    }

    pub(super) fn len(&self) -> usize {
        self.fresh.len() + self.current.len() + self.spent.len()
    }

    pub(super) fn wake(&mut self, entry: Entry<Q>) {
        let has_deficit = self.deficit_ns(entry.flow) > 0;
        if has_deficit { &mut self.fresh } else { &mut self.spent }.push_back(entry);
    }

    #[inline]
    pub(super) fn again(&mut self, entry: Entry<Q>) {
        let has_deficit = self.deficit_ns(entry.flow) > 0;
        if has_deficit { &mut self.current } else { &mut self.spent }.push_back(entry);
    }

    #[inline]
    pub(super) fn charge(&mut self, flow: usize, cost_ns: u64) {
        let round = self.round;
        let account = self.account(flow);
        let deficit_ns = account.deficit_ns(round);
        account.deficit_ns = deficit_ns.saturating_sub_unsigned(cost_ns);
    }

    #[inline]
    pub(super) fn next(&mut self) -> Option<Entry<Q>> {
        loop {
            let list = if self.fresh.is_empty() { &mut self.current } else { &mut self.fresh };
            let Some(entry) = list.pop_front() else {
                self.end_round()?;
                continue;
            };
            if self.deficit_ns(entry.flow) > 0 {
                return Some(entry);
            }
            self.spent.insert(self.passed_over, entry);
            self.passed_over += 1;
        }
    }

    /// Goes on to the next round in which some flow has deficit; `None` if no queue is ready.
    fn end_round(&mut self) -> Option<()> {
        let Self { accounts, round, spent, .. } = self;
        let needed = |entry: &Entry<Q>| Some(accounts.get_mut(entry.flow)?.rounds_needed(*round));
        let rounds = spent.iter().filter_map(needed).min()?;
        self.round += rounds;
        mem::swap(&mut self.current, &mut self.spent);
        self.passed_over = 0;
        Some(())
    }
}
