//! Results of a run.

use std::fmt;

use weir_policy::moderation::Kind;

use crate::link::DropReason;
use crate::stats::Times;
use crate::topology::CpuId;

/// The figures of a run after its warm-up.
///
/// The printed report of a scenario is the same to the byte on every machine.
#[derive(Clone, Debug)]
pub struct Report {
    /// Time measured (ns).
    pub ns: u64,
    /// Number of events, the warm-up included.
    pub events: u64,
    /// Reports of the loads, in order.
    pub loads: Vec<LoadReport>,
    /// Reports of the guests.
    pub guests: Vec<GuestReport>,
    /// Reports of the workers.
    pub workers: Vec<WorkerReport>,
    /// CPU time of the interrupt controllers for each identifier.
    pub demux: Times,
    /// Number of moves of queues between workers.
    pub moves: u64,
    /// Frames dropped, by reason.
    pub drops: Vec<(DropReason, u64)>,
}

/// Results of a load.
#[derive(Clone, Debug)]
pub struct LoadReport {
    /// The load's name.
    pub name: String,
    /// Frames written, both ways.
    pub sent: u64,
    /// Frames that reached their readers, both ways.
    pub received: u64,
    /// Frames that were dropped, both ways.
    pub dropped: u64,
    /// Bytes of the load's forward frames.
    pub bytes: u64,
    /// Latency of forward frames from writer to reader; of requests, from request to answer.
    pub latency: Times,
    /// Retransmitted TCP segments.
    pub retransmits: u64,
}

/// Results of a guest.
#[derive(Clone, Debug)]
pub struct GuestReport {
    /// The guest's name.
    pub name: String,
    /// CPU time of its vCPU (ns).
    pub cpu_ns: u64,
    /// Calls for received frames.
    pub rx_calls: u64,
    /// Calls for transmitted frames.
    pub tx_calls: u64,
    /// Unwanted calls of both kinds, which were suppressed.
    pub suppressed: u64,
    /// Interrupts taken: calls that came while another of the same kind waited count once.
    pub interrupts: u64,
    /// Frames received.
    pub received: u64,
    /// Mean number of frames in its receive ring.
    pub in_ring_mean: f64,
    /// Largest number of frames in its receive ring.
    pub in_ring_max: u64,
    /// Kicks.
    pub kicks: u64,
    /// Time that received frames waited for their call.
    pub holds: Times,
    /// Calls after the latency budget, because a worker was late.
    pub late: u64,
}

/// Results of a worker.
#[derive(Clone, Debug, Default)]
pub struct WorkerReport {
    /// CPU time (ns).
    pub cpu_ns: u64,
    /// CPU on which it ran last; `None` if it never ran.
    pub last_cpu: Option<CpuId>,
    /// Bursts with frames.
    pub bursts: u64,
    /// Frames taken.
    pub frames: u64,
    /// Sleeps that ended, naps included.
    pub wakeups: u64,
    /// Naps.
    pub naps: u64,
    /// Number of busy-polls.
    pub looks: u64,
    /// Time that frames waited in guests' rings.
    pub waits: Times,
    /// Times from a frame at an uplink to its guest's ring.
    pub ingress: Times,
}

impl Report {
    /// Returns a count as a rate per second.
    pub fn per_s(&self, count: u64) -> f64 {
        count as f64 * 1e9 / self.ns as f64
    }

    /// Returns the number of CPUs that `cpu_ns` of CPU time (ns) kept busy.
    pub fn cpus(&self, cpu_ns: u64) -> f64 {
        cpu_ns as f64 / self.ns as f64
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} ns, {} events", self.ns, self.events)?;
        for load in &self.loads {
            let LoadReport { name, sent, received, bytes, latency, retransmits, .. } = load;
            write!(f, "load {name}: sent {sent}, received {received}, {bytes} bytes")?;
            write!(f, ", {retransmits} sent again, latency ")?;
            times(f, latency)?;
        }
        for guest in &self.guests {
            write!(f, "guest {}: cpu {:.4}", guest.name, self.cpus(guest.cpu_ns))?;
            write!(
                f,
                ", received {}, calls {}+{}",
                guest.received, guest.rx_calls, guest.tx_calls
            )?;
            write!(f, " (unwanted {})", guest.suppressed)?;
            write!(f, ", interrupts {}, kicks {}", guest.interrupts, guest.kicks)?;
            write!(f, ", in the ring {:.2} max {}", guest.in_ring_mean, guest.in_ring_max)?;
            write!(f, ", late {}, holds ", guest.late)?;
            times(f, &guest.holds)?;
        }
        for (at, worker) in self.workers.iter().enumerate() {
            let WorkerReport { cpu_ns, bursts, frames, wakeups, naps, looks, .. } = worker;
            write!(f, "worker {at}: cpu {:.4}, {frames} frames", self.cpus(*cpu_ns))?;
            write!(f, " in {bursts} bursts, {wakeups} wake-ups, {naps} naps")?;
            writeln!(f, ", looked on {looks} times")?;
        }
        if self.moves > 0 {
            writeln!(f, "queues moved: {}", self.moves)?;
        }
        for (reason, frames) in &self.drops {
            writeln!(f, "dropped {}: {frames}", reason.as_str())?;
        }
        Ok(())
    }
}

fn times(f: &mut fmt::Formatter<'_>, times: &Times) -> fmt::Result {
    let [median, p99] = [0.5, 0.99].map(|share| times.quantile_ns(share));
    writeln!(f, "mean {:.1} p50 {median} p99 {p99} max {} ns", times.mean_ns(), times.max_ns())
}

/// A broken invariant: the model or a policy is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Frames have appeared from nowhere, or vanished.
    #[error(
        "at {now_ns} ns, load `{load}`: of {sent} frames sent {received} are received, {dropped} \
         dropped and {in_flight} in flight"
    )]
    Frames {
        /// Time of the check (ns).
        now_ns: u64,
        /// Name of the load.
        load: String,
        /// Frames written.
        sent: u64,
        /// Frames read.
        received: u64,
        /// Frames dropped, for any reason.
        dropped: u64,
        /// Frames found anywhere.
        in_flight: u64,
    },
    /// A flow was reordered.
    #[error("at {now_ns} ns, load `{load}`: frame {number} came after frame {before}")]
    Order {
        /// Time of the check (ns).
        now_ns: u64,
        /// Name of the load.
        load: String,
        /// Number of the later frame.
        number: u64,
        /// Number of the frame that arrived before.
        before: u64,
    },
    /// A policy set a deadline beyond its limit, or in the past.
    #[error(
        "at {now_ns} ns, policy `{kind}`: a hold until {until_ns} ns of frames that came at {since_ns} ns, \
         with a limit of {hold_ns_max} ns"
    )]
    Held {
        /// The policy.
        kind: Kind,
        /// Time of the question (ns).
        now_ns: u64,
        /// Deadline that the policy set (ns).
        until_ns: u64,
        /// Beginning of the limit (ns).
        since_ns: u64,
        /// The limit (ns).
        hold_ns_max: u64,
    },
    /// A worker with a CPU did not ask a policy in time, or no worker was to ask.
    #[error(
        "at {now_ns} ns, guest {guest}: the policy for its {side} queue was to be asked at {due_ns} ns, and {what}"
    )]
    Overdue {
        /// Time of the check (ns).
        now_ns: u64,
        /// Index of the guest.
        guest: usize,
        /// "receive" or "transmit".
        side: &'static str,
        /// Time at which the policy wanted to be asked (ns).
        due_ns: u64,
        /// Reason why no question came.
        what: &'static str,
    },
    /// A queue made no progress.
    #[error("at {now_ns} ns, port {port}: {what}")]
    Starved {
        /// Time of the check (ns).
        now_ns: u64,
        /// Index of the port: guests, then uplinks.
        port: usize,
        /// The waiting element, and its receiver.
        what: &'static str,
    },
}
