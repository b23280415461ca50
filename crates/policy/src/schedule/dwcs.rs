//! Dynamic window-constrained scheduling (West, Zhang, Schwan & Poellabauer, IEEE Transactions on
//! Computers 53(6), 2004), of turns instead of packets.
//!
//! A flow with a window constraint `x/y` and a period is due one turn, a burst, in each period. A
//! turn is late when the period ends before it; at most `x` of any `y` turns may be late. A late
//! turn is served late, not dropped. The published rules of precedence, among flows whose period
//! has begun:
//!
//! 1. the earliest deadline;
//! 2. equal deadlines: the lowest current window constraint `x'/y'`;
//! 3. equal deadlines and constraints of zero: the highest denominator `y'`;
//! 4. equal deadlines and equal other constraints: the lowest numerator `x'`;
//! 5. else: first come, first served.
//!
//! Time that no such flow claims is given in turn to all flows, including those without a window.
//! This time counts for no window and moves no deadline, so that a flow that was alone for a while
//! owes nothing.
//!
//! Deadlines are equal within a slot of [`DWCS_SLOT_NS`]: the paper's time has slots, of one
//! service each. The choice checks every queue that is ready.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::mem;

use weir_limits::DWCS_SLOT_NS;

use super::{Entry, Window};

/// A flow with a window.
#[derive(Clone, Copy, Debug)]
struct Stream {
    window: Window,
    /// Current constraint: of the next `y` turns `x` may be late.
    x: u32,
    y: u32,
    /// Set when a window was violated since the last timely service.
    tagged: bool,
    /// Deadline of the turn (ns); 0 before the first turn.
    deadline_ns: u64,
    violations: u64,
}

impl Stream {
    fn new(window: Window) -> Self {
        let (x, y) = (window.x.into(), window.y.into());
        Self { window, x, y, tagged: false, deadline_ns: 0, violations: 0 }
    }

    fn start_window(&mut self) {
        (self.x, self.y) = (self.window.x.into(), self.window.y.into());
    }

    /// Returns whether the period of the flow's turn has begun.
    fn is_due(&self, now_ns: u64) -> bool {
        self.deadline_ns <= now_ns.saturating_add(self.window.period_ns)
    }

    /// Notes service before the deadline (the paper's adjustment A).
    fn met(&mut self) {
        if self.y > self.x {
            self.y -= 1;
        } else if self.x > 0 {
            self.x -= 1;
            self.y -= 1;
        }
        if self.y == 0 || mem::take(&mut self.tagged) {
            self.start_window();
        }
        self.deadline_ns = self.deadline_ns.saturating_add(self.window.period_ns);
    }

    /// Notes a missed deadline (adjustment B).
    fn missed(&mut self) {
        let (x, y) = (u32::from(self.window.x), u32::from(self.window.y));
        if self.x > 0 {
            self.x -= 1;
            self.y -= 1;
            if self.y == 0 {
                self.start_window();
            }
        } else {
            let more = if x > 0 { (y - x).div_ceil(x) } else { y };
            self.y = self.y.saturating_add(more);
            self.tagged = true;
            self.violations += 1;
        }
    }

    /// Notes the deadlines that have passed.
    fn advance(&mut self, now_ns: u64) {
        if self.deadline_ns == 0 {
            // The window was given to a flow that was ready before.
            self.deadline_ns = now_ns.saturating_add(self.window.period_ns);
        }
        if self.deadline_ns >= now_ns {
            return;
        }
        let passed = (now_ns - self.deadline_ns).div_ceil(self.window.period_ns);
        // The late turns of two windows in a row determine the state, and further ones change
        // nothing.
        let noted = passed.min(2 * u64::from(self.window.y));
        (0..noted).for_each(|_| self.missed());
        let passed_ns = passed.saturating_mul(self.window.period_ns);
        self.deadline_ns = self.deadline_ns.saturating_add(passed_ns);
    }

    /// Compares by rules 1 to 4; the lesser comes first.
    fn precedence(&self, other: &Self) -> Ordering {
        let slot = |stream: &Self| stream.deadline_ns / DWCS_SLOT_NS;
        // Compares x'/y' by cross-multiplication.
        let constraints =
            (u64::from(self.x) * u64::from(other.y)).cmp(&(u64::from(other.x) * u64::from(self.y)));
        slot(self).cmp(&slot(other)).then(constraints).then_with(|| match self.x {
            0 => other.y.cmp(&self.y),
            _ => self.x.cmp(&other.x),
        })
    }
}

#[derive(Debug)]
pub(super) struct Dwcs<Q> {
    /// Streams by flow; `None` without a window.
    streams: Vec<Option<Stream>>,
    /// Ready queues in order of arrival.
    pub(super) ready: VecDeque<Entry<Q>>,
}

impl<Q: Copy> Dwcs<Q> {
    pub(super) fn new() -> Self {
        Self { streams: Vec::new(), ready: VecDeque::new() }
    }

    fn stream(&mut self, flow: usize) -> Option<&mut Stream> {
        self.streams.get_mut(flow)?.as_mut()
    }

    pub(super) fn set_window(&mut self, flow: usize, window: Option<Window>) {
        if flow >= self.streams.len() {
            self.streams.resize(flow + 1, None);
        }
        let stream = &mut self.streams[flow];
        if stream.map(|stream| stream.window) != window {
            *stream = window.map(Stream::new);
        }
    }

    pub(super) fn wake(&mut self, entry: Entry<Q>, now_ns: u64) {
        let is_ready = self.ready.iter().any(|other| other.flow == entry.flow);
        if let Some(stream) = self.stream(entry.flow).filter(|_| !is_ready) {
            // Nothing was due in the time without work.
            let period_ns = stream.window.period_ns;
            stream.deadline_ns = stream.deadline_ns.max(now_ns.saturating_add(period_ns));
        }
        self.ready.push_back(entry);
    }

    pub(super) fn next(&mut self, now_ns: u64) -> Option<Entry<Q>> {
        let mut first: Option<(usize, Stream)> = None;
        for (index, entry) in self.ready.iter().enumerate() {
            let Some(Some(stream)) = self.streams.get_mut(entry.flow) else { continue };
            stream.advance(now_ns);
            let better = |(_, best): &(usize, Stream)| stream.precedence(best).is_lt();
            if stream.is_due(now_ns) && first.as_ref().is_none_or(better) {
                first = Some((index, *stream));
            }
        }
        let Some((index, _)) = first else { return self.ready.pop_front() };
        let entry = self.ready.remove(index)?;
        if let Some(stream) = self.stream(entry.flow) {
            stream.met();
        }
        Some(entry)
    }

    /// Returns the violations of `flow`'s window since the last question.
    pub(super) fn violations(&mut self, flow: usize) -> u64 {
        self.stream(flow).map_or(0, |stream| mem::take(&mut stream.violations))
    }
}
