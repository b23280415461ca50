//! TCP in segments: Reno with a receiver's window (RFC 5681), timeouts (RFC 6298), delayed acknowledgements (RFC
//! 1122).
//!
//! Sequence numbers count segments, all of one size. The sender always has more to send. There is no handshake or
//! SACK.

use std::collections::BTreeSet;

/// First window, in segments (RFC 6928).
const INITIAL_WINDOW: u32 = 10;
/// Shortest and first timeouts for a retransmission (ns; Linux's 200 ms, RFC 6298's second).
const RTO_NS_MIN: u64 = 200_000_000;
const RTO_NS_FIRST: u64 = 1_000_000_000;
const RTO_NS_MAX: u64 = 60_000_000_000;
/// Duplicate acknowledgements that show a lost segment.
const DUPLICATES: u32 = 3;
/// Longest delay of an acknowledgement (ns; Linux).
pub(crate) const ACK_DELAY_NS: u64 = 40_000_000;
/// Segments per acknowledgement.
const ACK_EVERY: u32 = 2;

/// The sending end.
#[derive(Clone, Debug)]
pub(crate) struct Sender {
    /// The receiver's window.
    window: u32,
    /// The first unacknowledged segment.
    unacked: u64,
    /// The first segment that was not sent since the last timeout.
    next: u64,
    /// The first segment that was never sent.
    fresh: u64,
    /// The congestion window, in thousandths of a segment.
    congestion: u64,
    threshold: u64,
    duplicates: u32,
    /// Segment whose acknowledgement ends fast recovery.
    recover: Option<u64>,
    /// A segment to send again before any other.
    again: Option<u64>,
    /// The timed segment, and its time of sending (ns).
    timed: Option<(u64, u64)>,
    /// Smoothed round-trip time and its variation (ns).
    round_trip: Option<(u64, u64)>,
    timeout_ns: u64,
    /// Time at which the oldest segment counts as lost (ns).
    timer_ns: Option<u64>,
    /// Number of retransmissions.
    pub(crate) retransmits: u64,
    pub(crate) timeouts: u64,
}

/// A segment in the units of the congestion window.
const SEGMENT: u64 = 1_000;

impl Sender {
    pub(crate) fn new(window: u32) -> Self {
        Self {
            window,
            unacked: 0,
            next: 0,
            fresh: 0,
            congestion: u64::from(INITIAL_WINDOW) * SEGMENT,
            threshold: u64::MAX,
            duplicates: 0,
            recover: None,
            again: None,
            timed: None,
            round_trip: None,
            timeout_ns: RTO_NS_FIRST,
            timer_ns: None,
            retransmits: 0,
            timeouts: 0,
        }
    }

    /// Returns when to ask [`Self::timed_out`] (ns).
    pub(crate) fn timer_ns(&self) -> Option<u64> {
        self.timer_ns
    }

    /// Returns whether a segment is to be sent again before any other.
    pub(crate) fn repeats(&self) -> bool {
        self.again.is_some()
    }

    /// Returns the segment to send now, if the windows allow one.
    pub(crate) fn send(&mut self, now_ns: u64) -> Option<u64> {
        let segment = match self.again.take() {
            Some(segment) => {
                self.retransmits += 1;
                // Karn: a segment that was sent twice is not timed.
                self.timed = None;
                segment
            }
            None => {
                let window = (self.congestion / SEGMENT).min(self.window.into()).max(1);
                if self.next - self.unacked >= window {
                    return None;
                }
                let segment = self.next;
                self.next += 1;
                if segment < self.fresh {
                    self.retransmits += 1;
                } else {
                    self.fresh = self.next;
                    self.timed = self.timed.or(Some((segment, now_ns)));
                }
                segment
            }
        };
        self.timer_ns = self.timer_ns.or(Some(now_ns + self.timeout_ns));
        Some(segment)
    }

    /// Handles an acknowledgement of all segments below `upto`.
    pub(crate) fn acked(&mut self, now_ns: u64, upto: u64) {
        if upto > self.unacked {
            let newly = upto - self.unacked;
            self.unacked = upto;
            self.next = self.next.max(upto);
            self.measure(now_ns, upto);
            self.duplicates = 0;
            self.timer_ns = (self.next > upto).then_some(now_ns + self.timeout_ns);
            match self.recover {
                // A partial acknowledgement: the next hole (RFC 6582).
                Some(recover) if upto < recover => {
                    self.again = Some(upto);
                    let deflated = self.congestion.saturating_sub(newly * SEGMENT) + SEGMENT;
                    self.congestion = deflated.max(SEGMENT);
                }
                Some(_) => {
                    self.recover = None;
                    self.congestion = self.threshold;
                }
                // Grows by the acknowledged segments (Linux: `tcp_slow_start`).
                None if self.congestion < self.threshold => {
                    self.congestion = (self.congestion + newly * SEGMENT).min(self.threshold);
                }
                None => self.congestion += newly * SEGMENT * SEGMENT / self.congestion,
            }
            self.congestion = self.congestion.min(u64::from(self.window) * SEGMENT);
        } else if self.next > self.unacked {
            self.duplicates += 1;
            if self.recover.is_some() {
                self.congestion += SEGMENT;
            } else if self.duplicates == DUPLICATES {
                self.threshold = self.half();
                self.congestion = self.threshold + u64::from(DUPLICATES) * SEGMENT;
                self.recover = Some(self.next);
                self.again = Some(self.unacked);
            }
        }
    }

    /// Returns half of the segments on their way, at least two.
    fn half(&self) -> u64 {
        ((self.next - self.unacked) * SEGMENT / 2).max(2 * SEGMENT)
    }

    /// Returns whether the timer has run out. If so, every unacknowledged segment is sent again.
    pub(crate) fn timed_out(&mut self, now_ns: u64) -> bool {
        if self.timer_ns.is_none_or(|timer_ns| timer_ns > now_ns) {
            return false;
        }
        self.timeouts += 1;
        self.threshold = self.half();
        self.congestion = SEGMENT;
        (self.next, self.duplicates, self.recover) = (self.unacked + 1, 0, None);
        (self.again, self.timed) = (Some(self.unacked), None);
        self.timeout_ns = (2 * self.timeout_ns).min(RTO_NS_MAX);
        self.timer_ns = None;
        true
    }

    /// Measures the round trip (RFC 6298 §2).
    fn measure(&mut self, now_ns: u64, upto: u64) {
        let Some((_, sent_ns)) = self.timed.take_if(|(segment, _)| *segment < upto) else {
            return;
        };
        let sample = now_ns - sent_ns;
        let (smoothed, variation) = match self.round_trip {
            None => (sample, sample / 2),
            Some((smoothed, variation)) => (
                smoothed - smoothed / 8 + sample / 8,
                variation - variation / 4 + smoothed.abs_diff(sample) / 4,
            ),
        };
        self.round_trip = Some((smoothed, variation));
        self.timeout_ns = (smoothed + 4 * variation).clamp(RTO_NS_MIN, RTO_NS_MAX);
    }
}

/// A receiver's next acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ack {
    Now,
    /// The acknowledgement goes with the next segment, or after [`ACK_DELAY_NS`].
    Later,
}

/// The receiving end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Receiver {
    /// The first missing segment.
    expected: u64,
    beyond: BTreeSet<u64>,
    unacked: u32,
}

impl Receiver {
    pub(crate) fn segment(&mut self, segment: u64) -> Ack {
        if segment != self.expected {
            if segment > self.expected {
                self.beyond.insert(segment);
            }
            return Ack::Now;
        }
        let hole = !self.beyond.is_empty();
        self.expected += 1;
        while self.beyond.remove(&self.expected) {
            self.expected += 1;
        }
        self.unacked += 1;
        if hole || self.unacked >= ACK_EVERY { Ack::Now } else { Ack::Later }
    }

    /// Returns the first missing segment.
    pub(crate) fn expected(&self) -> u64 {
        self.expected
    }

    /// Returns whether an acknowledgement is due.
    pub(crate) fn owes(&self) -> bool {
        self.unacked > 0
    }

    /// Returns the number to acknowledge now.
    pub(crate) fn ack(&mut self) -> u64 {
        self.unacked = 0;
        self.expected
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(sender: &mut Sender, now_ns: u64) -> Vec<u64> {
        std::iter::from_fn(|| sender.send(now_ns)).collect()
    }

    #[test]
    fn slow_start_doubles_until_the_receivers_window() {
        let mut sender = Sender::new(50);
        assert_eq!(all(&mut sender, 0).len(), 10);
        sender.acked(1_000, 10);
        assert_eq!(all(&mut sender, 1_000).len(), 20);
        sender.acked(2_000, 30);
        assert_eq!(all(&mut sender, 2_000).len(), 40);
        sender.acked(3_000, 70);
        assert_eq!(all(&mut sender, 3_000).len(), 50, "the receiver's window");
    }

    #[test]
    fn the_third_duplicate_sends_again_and_halves_the_window() {
        let mut sender = Sender::new(100);
        assert_eq!(all(&mut sender, 0).len(), 10);
        for _ in 0..2 {
            sender.acked(1_000, 0);
            assert_eq!(sender.send(1_000), None);
        }
        sender.acked(1_000, 0);
        assert_eq!(sender.send(1_000), Some(0));
        (0..6).for_each(|_| sender.acked(1_000, 0));
        assert_eq!(all(&mut sender, 1_000).len(), 4, "one for each that has left, beyond 5 + 3");
        sender.acked(2_000, 14);
        assert_eq!((all(&mut sender, 2_000).len(), sender.retransmits), (5, 1));
    }

    #[test]
    fn a_lost_last_segment_costs_a_timeout_and_slow_start() {
        let mut sender = Sender::new(100);
        all(&mut sender, 0);
        let timer_ns = sender.timer_ns().unwrap();
        assert!(!sender.timed_out(timer_ns - 1));
        assert!(sender.timed_out(timer_ns));
        assert_eq!(all(&mut sender, timer_ns), [0]);
        assert_eq!(sender.timer_ns(), Some(timer_ns + 2 * RTO_NS_FIRST), "backed off");
        // The receiver had all other segments.
        sender.acked(timer_ns + 1_000, 10);
        assert_eq!(all(&mut sender, timer_ns + 1_000).len(), 5, "half of what was on the way");
    }

    #[test]
    fn every_second_segment_is_acknowledged_and_a_hole_at_once() {
        let mut receiver = Receiver::default();
        assert_eq!(receiver.segment(0), Ack::Later);
        assert!(receiver.owes());
        assert_eq!((receiver.segment(1), receiver.ack()), (Ack::Now, 2));
        assert_eq!((receiver.segment(3), receiver.ack()), (Ack::Now, 2));
        assert_eq!((receiver.segment(2), receiver.ack()), (Ack::Now, 4), "the hole is filled");
        assert_eq!((receiver.segment(1), receiver.owes()), (Ack::Now, false), "an old one");
    }
}
