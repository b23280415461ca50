//! A worker's queues with work: their turns, the cost of each turn, and queues that wait for tokens. Queues that had
//! work recently and have none now are polled, since their kicks are suppressed.

use weir_fabric::PortId;
use weir_limits::{BURST_MAX, BURST_NS_MAX};
use weir_policy::schedule::{Kind, Scheduler};

use crate::frames::port::{PerQueue, QueueRef};
use crate::working::meter::{Begun, Meter};
use crate::working::share::{Entitled, Grant, Limiter, Shares};

/// A queue with work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ready {
    pub(crate) queue: QueueRef,
    /// The time since which the queue has work (ns): no frame has waited longer.
    pub(crate) since_ns: u64,
}

/// A queue with work whose port has no tokens. The queue's kicks are suppressed.
#[derive(Debug)]
struct Limited {
    ready: Ready,
    until_ns: u64,
}

/// The frames that a queue may send at its turn.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Turn {
    /// A whole burst.
    Whole,
    /// As many frames as these tokens of the port allow.
    Granted(Grant),
    /// No frames before this time (ns).
    WaitUntil(u64),
}

impl Turn {
    /// Most frames to take.
    pub(crate) fn frames_max(self) -> usize {
        match self {
            Self::Whole => BURST_MAX,
            Self::Granted(grant) => grant.frames,
            Self::WaitUntil(_) => 0,
        }
    }
}

/// The cost of a burst.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    pub(crate) worker_ns: u64,
    /// Windows of the port that were violated since its last burst.
    pub(crate) violations: u64,
}

/// The state of a queue.
#[derive(Debug, Default)]
struct Standing {
    /// True if the queue is among the queues with work.
    has_work: bool,
    /// The number of frames by which the queue's turn is shorter than a whole burst.
    less: u8,
}

#[derive(Debug)]
pub(crate) struct RunQueue {
    scheduler: Scheduler<Ready>,
    limited: Vec<Limited>,
    queues: PerQueue<Standing>,
    /// The shares by port number, a copy as of `version`.
    entitled: Vec<Entitled>,
    version: u64,
    meter: Meter,
}

impl RunQueue {
    pub(crate) fn new(kind: Kind) -> Self {
        Self {
            scheduler: Scheduler::new(kind),
            limited: Vec::new(),
            queues: PerQueue::default(),
            entitled: Vec::new(),
            version: 0,
            meter: Meter::new(),
        }
    }

    /// The number of queues to be served now.
    pub(crate) fn len(&self) -> usize {
        self.scheduler.len()
    }

    /// True if no queue is to be served now.
    pub(crate) fn is_empty(&self) -> bool {
        self.scheduler.is_empty()
    }

    /// True if `queue` is among the queues with work.
    #[inline]
    pub(crate) fn contains(&self, queue: QueueRef) -> bool {
        self.queues.get(queue).is_some_and(|queue| queue.has_work)
    }

    /// Adds a queue that had no work before.
    pub(crate) fn wake(&mut self, ready: Ready) {
        self.queues.at(ready.queue).has_work = true;
        self.scheduler.wake(ready.queue.port.index(), ready, ready.since_ns);
    }

    pub(crate) fn next(&mut self, now_ns: u64) -> Option<Ready> {
        let ready = self.scheduler.next(now_ns)?;
        self.queues.at(ready.queue).has_work = false;
        Some(ready)
    }

    /// Puts a queue back that was served and has more work.
    pub(crate) fn again(&mut self, ready: Ready) {
        self.queues.at(ready.queue).has_work = true;
        self.scheduler.again(ready.queue.port.index(), ready);
    }

    fn limiter(&self, port: PortId) -> Option<&Limiter> {
        self.entitled.get(port.index())?.limiter.as_deref()
    }

    /// The frames that a queue of `port` may send now.
    #[inline]
    pub(crate) fn turn(&self, port: PortId, now_ns: u64) -> Turn {
        match self.limiter(port).map(|limiter| limiter.grant(now_ns)) {
            None => Turn::Whole,
            Some(Ok(grant)) => Turn::Granted(grant),
            Some(Err(until_ns)) => Turn::WaitUntil(until_ns),
        }
    }

    /// Most frames that `queue` may send at a turn.
    #[inline]
    pub(crate) fn frames_max(&self, queue: QueueRef) -> usize {
        BURST_MAX - self.queues.get(queue).map_or(0, |queue| usize::from(queue.less))
    }

    /// Notes that a turn of `queue` took `ns`. A turn beyond [`BURST_NS_MAX`] halves the frames of the next one; each
    /// shorter turn adds one frame, not twice as many. So a guest that makes one turn in ten expensive (frames in
    /// untouched pages, or in the most pieces) gains no long turn by the other nine.
    #[inline]
    pub(crate) fn took(&mut self, queue: QueueRef, ns: u64) {
        if ns > BURST_NS_MAX {
            self.took_long(queue);
        } else if self.queues.get(queue).is_some_and(|queue| queue.less > 0) {
            self.queues.at(queue).less -= 1;
        }
    }

    #[cold]
    fn took_long(&mut self, queue: QueueRef) {
        let half = self.frames_max(queue).div_ceil(2);
        // The difference is at most BURST_MAX, which fits.
        self.queues.at(queue).less = (BURST_MAX - half) as u8;
    }

    /// Settles the tokens of `turn`, which brought `frames` frames. `on_wire` are their bytes and further packets on a
    /// wire.
    pub(crate) fn settle(&self, port: PortId, turn: Turn, frames: usize, on_wire: (u64, u64)) {
        if let (Turn::Granted(grant), Some(limiter)) = (turn, self.limiter(port)) {
            let (frames, (bytes, more)) = (frames as u64, on_wire);
            limiter.settle(grant, frames, frames + more, bytes);
        }
    }

    /// Sets a queue aside until a time (ns).
    pub(crate) fn wait(&mut self, ready: Ready, until_ns: u64) {
        self.queues.at(ready.queue).has_work = true;
        self.limited.push(Limited { ready, until_ns });
    }

    /// The earliest time at which a queue that was set aside is due (ns).
    pub(crate) fn next_release_ns(&self) -> Option<u64> {
        self.limited.iter().map(|limited| limited.until_ns).min()
    }

    /// Applies a changed schedule and changed shares, and brings back queues whose rate allows it. The frames of these
    /// queues waited for the rate: the switch's lateness counts from now.
    pub(crate) fn refresh(&mut self, shares: &Shares, now_ns: impl FnOnce() -> u64) {
        let changed = shares.version() != self.version;
        if !changed && self.limited.is_empty() {
            return;
        }
        let now_ns = now_ns();
        if changed {
            self.take_up(shares, now_ns);
        }
        let scheduler = &mut self.scheduler;
        self.limited.retain(|&Limited { ready: Ready { queue, .. }, until_ns }| {
            let due = changed || until_ns <= now_ns;
            if due {
                scheduler.wake(queue.port.index(), Ready { queue, since_ns: now_ns }, now_ns);
            }
            !due
        });
    }

    #[cold]
    fn take_up(&mut self, shares: &Shares, now_ns: u64) {
        self.version = shares.copy_to(&mut self.entitled);
        let schedule = shares.schedule();
        if schedule != self.scheduler.kind() {
            self.scheduler.change(schedule, now_ns);
        }
        for (port, entitled) in self.entitled.iter().enumerate() {
            self.scheduler.set_share(port, entitled.share);
        }
    }

    #[inline]
    pub(crate) fn begin(&mut self, now_ns: u64) -> Begun {
        self.meter.begin(now_ns)
    }

    /// Charges the called port for a call that took `ns` more than is usual.
    #[cold]
    pub(crate) fn charge_call(&mut self, port: PortId, ns: u64) {
        self.scheduler.charge(port.index(), ns);
    }

    /// Ends a burst of `port`: charges its time to the port, except `others_ns`, which other ports pay.
    #[inline]
    pub(crate) fn charge(&mut self, port: PortId, begun: Begun, others_ns: u64) -> Cost {
        let worker_ns = self.meter.end(begun).saturating_sub(others_ns);
        Cost { worker_ns, violations: self.scheduler.charge(port.index(), worker_ns) }
    }
}

/// The warm queues of one worker. A kick removes a queue by a mark, without a search; its entry in the list is removed
/// at the next poll.
#[derive(Debug, Default)]
pub(crate) struct Warm {
    listed: Vec<QueueRef>,
    of: PerQueue<Entry>,
    /// The number of listed queues that are warm.
    count: usize,
}

#[derive(Debug, Default)]
struct Entry {
    /// The time since which it has had no work (ns), if it is warm.
    since_ns: Option<u64>,
    listed: bool,
}

impl Warm {
    /// True if no queue must be polled.
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// True if `queue` is warm.
    pub(crate) fn contains(&self, queue: QueueRef) -> bool {
        self.of.get(queue).is_some_and(|entry| entry.since_ns.is_some())
    }

    /// Adds a queue that has run out of work at `since_ns`.
    #[inline]
    pub(crate) fn insert(&mut self, queue: QueueRef, since_ns: u64) {
        let entry = self.of.at(queue);
        if entry.since_ns.replace(since_ns).is_none() {
            self.count += 1;
        }
        if !std::mem::replace(&mut entry.listed, true) {
            self.listed.push(queue);
        }
    }

    /// Removes a queue that must not be polled any more.
    #[inline]
    pub(crate) fn remove(&mut self, queue: QueueRef) {
        if self.of.get(queue).is_some_and(|entry| entry.since_ns.is_some()) {
            self.of.at(queue).since_ns = None;
            self.count -= 1;
        }
    }

    /// Calls `stays` with each queue and the time since it had work; `false` removes the queue.
    #[inline]
    pub(crate) fn retain(&mut self, mut stays: impl FnMut(QueueRef, u64) -> bool) {
        let Self { listed, of, count } = self;
        listed.retain(|&queue| {
            let entry = of.at(queue);
            if let Some(since_ns) = entry.since_ns {
                if stays(queue, since_ns) {
                    return true;
                }
                entry.since_ns = None;
                *count -= 1;
            }
            entry.listed = false;
            false
        });
    }
}

#[cfg(test)]
mod tests {
    use weir_fabric::PortId;

    use super::*;
    use crate::frames::port::Side;

    #[test]
    fn turns_that_took_long_get_short_and_grow_by_a_frame_each() {
        let mut ready = RunQueue::new(Kind::Drr);
        let port = PortId::new(2).unwrap();
        let queue = QueueRef { port, queue: 1, side: Side::Tx };
        assert_eq!(ready.frames_max(queue), BURST_MAX);
        ready.took(queue, BURST_NS_MAX);
        assert_eq!(ready.frames_max(queue), BURST_MAX, "that is not long");
        for turns in 1..=3 {
            ready.took(queue, BURST_NS_MAX + 1);
            assert_eq!(ready.frames_max(queue), BURST_MAX >> turns);
        }
        for turns in 1..=3 {
            ready.took(queue, BURST_NS_MAX);
            assert_eq!(ready.frames_max(queue), BURST_MAX / 8 + turns);
        }
        (0..9).for_each(|_| ready.took(queue, u64::MAX));
        assert_eq!(ready.frames_max(queue), 1);
        assert_eq!(ready.frames_max(QueueRef { queue: 0, ..queue }), BURST_MAX, "it is another's");
    }

    fn queue(number: u16) -> QueueRef {
        QueueRef { port: PortId::new(number).unwrap(), queue: 0, side: Side::Tx }
    }

    fn seen(warm: &mut Warm) -> Vec<(QueueRef, u64)> {
        let mut seen = Vec::new();
        warm.retain(|queue, since_ns| {
            seen.push((queue, since_ns));
            true
        });
        seen
    }

    #[test]
    fn a_queue_that_was_taken_out_and_comes_back_is_looked_at_once() {
        let mut warm = Warm::default();
        warm.insert(queue(1), 10);
        warm.insert(queue(2), 20);
        warm.remove(queue(1));
        warm.remove(queue(1));
        assert!(!warm.is_empty());
        warm.insert(queue(1), 30);
        assert_eq!(seen(&mut warm), [(queue(1), 30), (queue(2), 20)]);
        warm.remove(queue(1));
        assert_eq!(seen(&mut warm), [(queue(2), 20)]);
        warm.retain(|_, _| false);
        assert!(warm.is_empty() && seen(&mut warm).is_empty());
        warm.insert(queue(2), 40);
        assert_eq!(seen(&mut warm), [(queue(2), 40)]);
    }
}
