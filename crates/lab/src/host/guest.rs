//! A guest: one vCPU with its jobs, its rings, and its programs. `vcpu.rs` lets it work.
//!
//! LRO in a guest's driver (Zhang 2010; Linux: `inet_lro`, later GRO): adjacent segments of a stream in one poll
//! pass the stack, and are acknowledged, as one.

use std::collections::VecDeque;

use weir_policy::law::Law;
use weir_policy::moderation::Total;

use super::calls::{RxCalls, TxCalls};
use super::parts::Side;
use crate::cpus::ThreadId;
use crate::link::{Content, Frame};
use crate::report::GuestReport;
use crate::ring::{RxRing, TxRing};
use crate::scenario;
use crate::stats::{Level, Times};

/// A job of the vCPU.
#[derive(Clone, Copy, Debug)]
pub(super) enum Job {
    Interrupt(Interrupt),
    /// Uninterruptible work (ns).
    Stall(u64),
    /// A kick for a queue.
    Kick(Side),
    /// Taking one frame from the receive ring.
    Receive,
    /// The ring is empty: turns calls on.
    PollEnd,
    /// A program's job.
    Program(Program),
    /// Repeated looks at an empty receive ring.
    Spin,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interrupt {
    Call(Side),
    Timer,
    /// The kernel's tick, which polls nothing.
    Tick,
    /// The timer of the nested hypervisor.
    Hypervisor,
}

/// A job for a program.
#[derive(Clone, Copy, Debug)]
pub(super) enum Program {
    /// Send a frame.
    Send(Frame),
    /// Work on a request (ns), then send the answer.
    Serve(u64, Frame),
    /// After a time (ns), send the due frames of a load with a rate.
    Pace(u64, usize),
    /// Fall asleep, which takes a time (ns), until the next frame of a load with a rate is due.
    Lull(u64, usize),
}

#[derive(Debug)]
pub(super) struct Guest {
    pub(super) thread: ThreadId,
    pub(super) rx: RxRing,
    pub(super) tx: TxRing,
    pub(super) rx_calls: RxCalls,
    pub(super) tx_calls: TxCalls,
    /// Frames that have left the transmit ring.
    pub(super) sent: Total,
    /// Time since which the guest has offered too few buffers (ns).
    pub(super) full_since: Option<u64>,
    pub(super) poll: Option<scenario::GuestPoll>,
    /// See [`scenario::Guest::hypervisor_poll_ns`].
    pub(super) hypervisor_poll_ns: Option<u64>,
    /// Number of present faults that deny memory for buffers.
    pub(super) without_buffers: u32,
    /// Busy-polls its ring.
    pub(super) spins: bool,
    /// A thread of weir's own driver.
    pub(super) is_thread: bool,
    /// Frames that wait for room in the transmit ring, and their largest number.
    pub(super) queue: VecDeque<Frame>,
    pub(super) queue_max: usize,
    /// The present job; `None` while the vCPU is halted.
    pub(super) job: Option<Job>,
    pub(super) urgent: VecDeque<Job>,
    /// Merges segments of a poll.
    pub(super) lro: Option<Lro>,
    /// Frames taken in the present poll.
    pub(super) polled: Option<u32>,
    /// The programs' turn has come.
    pub(super) yields: bool,
    /// Consecutive polls that found nothing.
    pub(super) empty_polls: u32,
    pub(super) timer: u64,
    /// Time of the pending timer (ns).
    pub(super) due_ns: Option<u64>,
    pub(super) programs: VecDeque<Program>,
    /// Measurements.
    pub(super) rx_called: u64,
    pub(super) tx_called: u64,
    pub(super) suppressed: u64,
    /// Number of frames in the receive ring.
    pub(super) in_ring: Level,
    pub(super) interrupts: u64,
    pub(super) received: u64,
    pub(super) kicks: u64,
    cpu_from_ns: u64,
}

impl Guest {
    pub(super) fn new(thread: ThreadId, spec: &scenario::Guest, law: &'static Law) -> Self {
        Self {
            thread,
            rx: RxRing::new(spec.rx_ring, spec.buffer_bytes),
            tx: TxRing::new(spec.tx_ring),
            rx_calls: RxCalls::new(&spec.calls, law),
            tx_calls: TxCalls::new(&spec.calls, law),
            sent: Total::default(),
            full_since: None,
            poll: spec.poll,
            hypervisor_poll_ns: spec.hypervisor_poll_ns,
            without_buffers: 0,
            spins: false,
            is_thread: false,
            queue: VecDeque::new(),
            queue_max: spec.queue_max,
            job: None,
            urgent: VecDeque::new(),
            lro: spec.lro.then(Lro::default),
            polled: None,
            yields: false,
            empty_polls: 0,
            timer: 0,
            due_ns: None,
            programs: VecDeque::new(),
            rx_called: 0,
            tx_called: 0,
            suppressed: 0,
            in_ring: Level::default(),
            interrupts: 0,
            received: 0,
            kicks: 0,
            cpu_from_ns: 0,
        }
    }

    pub(super) fn forget(&mut self, now_ns: u64, cpu_ns: u64) {
        self.in_ring.restart(now_ns);
        (self.rx_called, self.tx_called, self.suppressed) = (0, 0, 0);
        (self.interrupts, self.received, self.kicks) = (0, 0, 0);
        self.cpu_from_ns = cpu_ns;
        (self.rx_calls.holds, self.rx_calls.late) = (Times::default(), 0);
    }

    pub(super) fn report(&self, name: &str, now_ns: u64, cpu_ns: u64) -> GuestReport {
        GuestReport {
            name: name.to_owned(),
            cpu_ns: cpu_ns - self.cpu_from_ns,
            rx_calls: self.rx_called,
            tx_calls: self.tx_called,
            suppressed: self.suppressed,
            interrupts: self.interrupts,
            received: self.received,
            in_ring_mean: self.in_ring.mean(now_ns),
            in_ring_max: self.in_ring.max(),
            kicks: self.kicks,
            holds: self.rx_calls.holds.clone(),
            late: self.rx_calls.late,
        }
    }

    /// Iterates over all frames in the guest's memory or on their way there, except those that a
    /// worker has taken.
    pub(super) fn frames(&self) -> impl Iterator<Item = &Frame> {
        let programs = self.programs.iter().chain(match &self.job {
            Some(Job::Program(program)) => Some(program),
            _ => None,
        });
        let written = programs.filter_map(|program| match program {
            Program::Send(frame) | Program::Serve(_, frame) => Some(frame),
            Program::Pace(..) | Program::Lull(..) => None,
        });
        // An answer is sent, and counts, once its request has been served.
        let written = written.filter(|frame| frame.number != NOT_SENT);
        let merged = self.lro.iter().flat_map(Lro::frames);
        self.rx.frames().chain(self.tx.frames()).chain(&self.queue).chain(written).chain(merged)
    }

    pub(super) fn is_halted(&self) -> bool {
        self.job.is_none()
    }

    /// Returns whether frames to send find no room in the ring.
    pub(super) fn is_held_up(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Returns whether the guest has offered frames without the kick that weir wants.
    pub(super) fn owes_kick(&self) -> bool {
        self.urgent.iter().chain(&self.job).any(|job| matches!(job, Job::Kick(Side::Tx)))
    }

    /// Chooses the next job.
    pub(super) fn choose(&mut self) -> Option<Job> {
        if let Some(job) = self.urgent.pop_front() {
            return Some(job);
        }
        if std::mem::take(&mut self.yields)
            && let Some(program) = self.programs.pop_front()
        {
            return Some(Job::Program(program));
        }
        match self.polled {
            Some(_) if self.rx.first().is_some() => Some(Job::Receive),
            // A thread sends its answers before it sleeps.
            Some(_) if self.is_thread && !self.programs.is_empty() => {
                self.programs.pop_front().map(Job::Program)
            }
            Some(_) if self.spins => {
                self.programs.pop_front().map(Job::Program).or(Some(Job::Spin))
            }
            Some(_) => Some(Job::PollEnd),
            None => self.programs.pop_front().map(Job::Program),
        }
    }
}

/// Number of a frame that is not sent yet.
pub(super) const NOT_SENT: u64 = u64::MAX;

/// Longest merged segment (bytes), as for an IPv4 packet.
const MERGED_BYTES_MAX: u32 = 65_535;

/// Segments merged in the present poll: a run for each stream.
#[derive(Debug, Default)]
pub(super) struct Lro {
    runs: Vec<Vec<Frame>>,
}

impl Lro {
    /// Returns whether a frame continues a run.
    pub(super) fn merges(&self, frame: &Frame) -> bool {
        self.runs.iter().any(|run| follows(run, frame))
    }

    /// Adds a frame, and returns the runs that it completes, in order; all runs if the poll ends.
    pub(super) fn add(&mut self, frame: Frame, poll_ends: bool) -> Vec<Vec<Frame>> {
        let mut complete = Vec::new();
        match self.runs.iter().position(|run| run.first().is_some_and(|it| it.load == frame.load)) {
            Some(at) if follows(&self.runs[at], &frame) => self.runs[at].push(frame),
            Some(at) => complete.push(std::mem::replace(&mut self.runs[at], vec![frame])),
            None => self.runs.push(vec![frame]),
        }
        if poll_ends {
            complete.append(&mut self.runs);
        }
        complete
    }

    /// Ends the poll: returns all runs.
    pub(super) fn flush(&mut self) -> Vec<Vec<Frame>> {
        std::mem::take(&mut self.runs)
    }

    pub(super) fn frames(&self) -> impl Iterator<Item = &Frame> {
        self.runs.iter().flatten()
    }
}

/// Returns whether a segment continues a run, and fits into it.
fn follows(run: &[Frame], frame: &Frame) -> bool {
    let (Some(Frame { load, content: Content::Segment(last), .. }), Content::Segment(next)) =
        (run.last(), frame.content)
    else {
        return false;
    };
    let bytes = run.iter().map(|frame| frame.bytes).sum::<u32>();
    *load == frame.load && next == last + 1 && bytes + frame.bytes <= MERGED_BYTES_MAX
}
