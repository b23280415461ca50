//! Packet filters of a port: ordered rules, of which the first that matches a frame decides about it.
//!
//! A filter sees the frame as its guest sends or receives it: with its VLAN tag, a GSO frame whole, and incomplete
//! checksums. It sees the bytes that are delivered: the front, copied once from the sender's memory. For a program that
//! reads further, up to [`FILTER_WINDOW_LEN`] bytes are copied. If the sender then changes bytes behind the front, the
//! changed bytes are delivered unchecked, unless the payload had to be [fetched](crate::frames::burst::Remote).

use std::sync::Arc;

use weir_fabric::EgressTag;
use weir_filter::{Looked, Outcome, Program};
use weir_limits::{BURST_MAX, FILTER_INSTRUCTIONS_MAX, FILTER_RULES_MAX, FILTER_WINDOW_LEN};
use weir_wire::vlan::TAG_LEN;
use weir_wire::{Head, Tci};

use crate::frames::burst::{Burst, Frame};
use crate::frames::drop_reason::DropReason;
use crate::frames::port::Outgoing;
use crate::frames::stats::{Counter, PortCounters};

/// The action on a frame that a rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The frame passes.
    Accept,
    /// The frame is dropped.
    Drop,
}

/// A rule, and the counts of its frames.
#[derive(Debug)]
pub struct Rule {
    /// The program that matches the rule's frames.
    pub program: Arc<Program>,
    /// The action on frames that match.
    pub action: Action,
    /// Frames that the rule decided about. A frame that waits for its receiver counts when it is delivered.
    pub packets: Counter,
    /// Bytes of these frames, without VLAN tags.
    pub bytes: Counter,
}

/// The rules of a port for one direction. A frame that no rule matches passes.
#[derive(Debug)]
pub struct Rules(Box<[Rule]>);

/// The rules of a port; `None` for a direction without any.
#[derive(Clone, Debug, Default)]
pub struct PortRules {
    /// Rules for frames that the port sends.
    pub tx: Option<Arc<Rules>>,
    /// Rules for frames that the port receives.
    pub rx: Option<Arc<Rules>>,
}

/// The reason why rules would cost a frame too much.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RulesError {
    /// There are too many rules.
    #[error("{0} rules exceed the maximum of {FILTER_RULES_MAX}")]
    TooMany(usize),
    /// The programs of the rules are too long.
    #[error(
        "rules of one direction have {0} instructions; at most {FILTER_INSTRUCTIONS_MAX} are allowed"
    )]
    TooLong(usize),
}

impl Rules {
    /// Makes a list of these rules, in this order.
    pub fn new(
        rules: impl IntoIterator<Item = (Arc<Program>, Action)>,
    ) -> Result<Self, RulesError> {
        let rule = |(program, action)| {
            let (packets, bytes) = Default::default();
            Rule { program, action, packets, bytes }
        };
        let rules: Box<[_]> = rules.into_iter().map(rule).collect();
        if rules.len() > FILTER_RULES_MAX {
            return Err(RulesError::TooMany(rules.len()));
        }
        let instructions = rules.iter().map(|rule| rule.program.len()).sum();
        if instructions > FILTER_INSTRUCTIONS_MAX {
            return Err(RulesError::TooLong(instructions));
        }
        Ok(Self(rules))
    }

    /// The rules, in their order.
    pub fn iter(&self) -> impl Iterator<Item = &Rule> {
        self.0.iter()
    }

    /// Judges the frames of `burst`, which the port sends. If bit i of the result is set, frame i is dropped and
    /// counted.
    #[inline(never)]
    pub(crate) fn judge_sent(
        &self,
        burst: &Burst<'_>,
        verdicts: &mut Verdicts,
        window: &mut Window,
        counters: &PortCounters,
    ) -> u64 {
        let sent = burst.frames().iter().zip(0..).map(|(frame, n)| (n, frame, frame.tag));
        self.judge(sent, burst, verdicts, window);
        counters.dropped_of(DropReason::FilteredTx, burst, verdicts.refused);
        verdicts.refused
    }

    /// Judges the frames of `burst` in `list`, which the port would receive, in the same way.
    #[inline(never)]
    pub(crate) fn judge_received(
        &self,
        list: &[Outgoing],
        burst: &Burst<'_>,
        verdicts: &mut Verdicts,
        window: &mut Window,
        counters: &PortCounters,
    ) -> u64 {
        let received = list.iter().map(|&Outgoing { frame, tag }| match tag {
            EgressTag::Untagged => (frame, &burst.frames()[usize::from(frame)], None),
            EgressTag::Tagged(tag) => (frame, &burst.frames()[usize::from(frame)], Some(tag)),
        });
        self.judge(received, burst, verdicts, window);
        counters.dropped_of(DropReason::FilteredRx, burst, verdicts.refused);
        verdicts.refused
    }

    fn judge<'b>(
        &self,
        frames: impl Iterator<Item = (u16, &'b Frame, Option<Tci>)>,
        burst: &Burst<'_>,
        verdicts: &mut Verdicts,
        window: &mut Window,
    ) {
        *verdicts = Verdicts::default();
        let mut last: Option<Decided<'_>> = None;
        let (mut judged, mut changes) = (0, 0);
        for (number, frame, tag) in frames {
            let (deciding, refuses) = match &last {
                Some(last) if tag.is_none() && last.is_of(&frame.head) => last.decision,
                _ => {
                    let mut looked = Looked::default();
                    let deciding = self.deciding(number, tag, burst, window, &mut looked);
                    let rule = self.0.get(usize::from(deciding));
                    let refuses = rule.is_some_and(|rule| rule.action == Action::Drop);
                    let decision = (deciding, u64::from(refuses));
                    last = Some(Decided { head: &frame.head, looked, decision });
                    changes += 1;
                    decision
                }
            };
            verdicts.deciding[usize::from(number)] = deciding;
            verdicts.refused |= refuses << number;
            judged += 1;
        }
        verdicts.is_one = changes == 1 && judged == burst.frames().len();
        self.count(burst, verdicts, verdicts.refused);
    }

    /// Counts the judged frames that pass, except those in `waiting` (bit i: frame i), which will be judged again.
    #[inline(never)]
    pub(crate) fn settle(&self, burst: &Burst<'_>, verdicts: &Verdicts, waiting: u64) {
        self.count(burst, verdicts, !(verdicts.refused | waiting));
    }

    /// The index of the rule that would decide about frame 0 of `burst` on its way out with `tag`; nothing is counted.
    pub(crate) fn would_decide(
        &self,
        tag: Option<Tci>,
        burst: &Burst<'_>,
        window: &mut Window,
    ) -> Option<usize> {
        let deciding = self.deciding(0, tag, burst, window, &mut Looked::default());
        let deciding = usize::from(deciding);
        (deciding < self.0.len()).then_some(deciding)
    }

    /// The number of the first rule that matches frame number `index` of a burst. `looked` notes the bytes of the
    /// frame's head that the rules have read.
    fn deciding(
        &self,
        index: u16,
        tag: Option<Tci>,
        burst: &Burst<'_>,
        window: &mut Window,
        looked: &mut Looked,
    ) -> u8 {
        let frame = &burst.frames()[usize::from(index)];
        let tagged;
        let (mut front, mut len) = (frame.head.as_slice(), frame.len);
        if let Some(tag) = tag {
            looked.further();
            let mut head = frame.head;
            // A head has room for one tag, and it has no tag now.
            if head.insert_vlan(tag).is_ok() {
                tagged = head;
                (front, len) = (tagged.as_slice(), frame.len + TAG_LEN as u32);
            }
        }
        for (rule, number) in self.0.iter().zip(0..) {
            match rule.program.run_and_note(front, len, looked) {
                Outcome::Match => return number,
                Outcome::NoMatch => {}
                Outcome::Beyond => {
                    let front = window.fill(front, index, burst);
                    return self.deciding_from(number, front, len);
                }
            }
        }
        NO_RULE
    }

    /// The number of the first rule from `first` on that matches, with the whole window to read.
    #[cold]
    fn deciding_from(&self, first: u8, front: &[u8], len: u32) -> u8 {
        // A rule that reads beyond even the window does not match.
        let matches = |rule: &Rule| rule.program.run(front, len) == Outcome::Match;
        let mut rules = self.0.iter().zip(0..).skip(first.into());
        rules.find(|(rule, _)| matches(rule)).map_or(NO_RULE, |(_, number)| number)
    }

    /// Counts the frames of a burst in `which` (by bit). Consecutive frames of one rule are summed first: an atomic
    /// addition costs as much as a judgement.
    fn count(&self, burst: &Burst<'_>, verdicts: &Verdicts, which: u64) {
        if which & burst.all() == 0 {
            return;
        }
        if verdicts.is_one && which & burst.all() == burst.all() {
            return self.add(verdicts.deciding[0], burst.frames().len() as u64, burst.bytes());
        }
        let (mut last, mut packets, mut bytes) = (NO_RULE, 0, 0);
        for (number, (frame, deciding)) in burst.frames().iter().zip(verdicts.deciding).enumerate()
        {
            if which >> number & 1 == 0 {
                continue;
            }
            if deciding != last {
                self.add(last, packets, bytes);
                (last, packets, bytes) = (deciding, 0, 0);
            }
            packets += 1;
            bytes += u64::from(frame.len);
        }
        self.add(last, packets, bytes);
    }

    fn add(&self, rule: u8, packets: u64, bytes: u64) {
        if let Some(rule) = self.0.get(usize::from(rule)) {
            rule.packets.add(packets);
            rule.bytes.add(bytes);
        }
    }
}

/// The decision about a frame. Frames of one flow often follow each other, and differ only in bytes that no rule reads.
struct Decided<'b> {
    head: &'b Head,
    looked: Looked,
    /// The deciding rule, and 1 if it refuses the frame, otherwise 0.
    decision: (u8, u64),
}

impl Decided<'_> {
    /// True if the decision also holds for a frame with this head.
    #[inline(always)]
    fn is_of(&self, head: &Head) -> bool {
        self.looked.is_same(self.head.front(), head.front(), head.len())
    }
}

/// Takes the place of a rule's number if no rule matches.
const NO_RULE: u8 = u8::MAX;

/// The decisions of rules about frames of a burst. The memory is kept between bursts.
pub(crate) struct Verdicts {
    /// The deciding rule of each frame, by its index in the burst.
    deciding: [u8; BURST_MAX],
    /// Bit i: frame i is dropped.
    refused: u64,
    /// True if the same rule, or none, has decided about every frame of the burst.
    is_one: bool,
}

impl Default for Verdicts {
    fn default() -> Self {
        Self { deciding: [NO_RULE; BURST_MAX], refused: 0, is_one: false }
    }
}

/// Room for a frame's front if a filter, or a source guard, reads beyond the copied front.
pub(crate) struct Window(Box<[u8; FILTER_WINDOW_LEN]>);

impl Default for Window {
    fn default() -> Self {
        Self(Box::new([0; FILTER_WINDOW_LEN]))
    }
}

impl Window {
    /// Copies `front`, and the bytes that follow it in the frame, into the window.
    #[cold]
    pub(crate) fn fill(&mut self, front: &[u8], index: u16, burst: &Burst<'_>) -> &[u8] {
        // Rules that read this far in one frame probably do so in others, so the whole burst is fetched.
        burst.fetch(u64::MAX);
        let lost = burst.lost() >> index & 1 != 0;
        let payload = burst.frames().get(usize::from(index)).filter(|_| !lost);
        let kept = front.len().min(self.0.len());
        self.0[..kept].copy_from_slice(&front[..kept]);
        let mut filled = kept;
        for piece in payload.map_or(&[][..], |frame| burst.payload(frame)) {
            filled += piece.read(&mut self.0[filled..]);
        }
        &self.0[..filled]
    }
}
