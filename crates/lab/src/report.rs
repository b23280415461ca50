//! What came of a run.

use std::fmt;

use weir_policy::moderation::Kind;

use crate::frame::DropReason;
use crate::stats::Times;
use crate::topology::CpuId;

/// The figures of a run, of the time after its warm-up.
///
/// Printed, it is the same to the byte for the same scenario, on every machine.
#[derive(Clone, Debug)]
pub struct Report {
    /// Time measured (ns).
    pub ns: u64,
    /// Events that happened, the warm-up included.
    pub events: u64,
    /// One for each load, in their order.
    pub loads: Vec<LoadReport>,
    /// One for each guest.
    pub guests: Vec<GuestReport>,
    /// One for each worker.
    pub workers: Vec<WorkerReport>,
    /// Of the interrupt controllers: CPU time for each identifier that they demultiplexed.
    pub demux: Times,
    /// Queues that moved between workers.
    pub moves: u64,
    /// Frames dropped, by reason.
    pub drops: Vec<(DropReason, u64)>,
}

/// What a load did.
#[derive(Clone, Debug)]
pub struct LoadReport {
    /// Its name.
    pub name: String,
    /// Frames written, both ways.
    pub sent: u64,
    /// Frames that reached their readers, both ways.
    pub received: u64,
    /// Frames that were dropped, both ways.
    pub dropped: u64,
    /// Bytes of those that went forth.
    pub bytes: u64,
    /// Frames that went forth from writer to reader; of requests, from request to answer.
    pub latency: Times,
    /// TCP segments sent again.
    pub retransmits: u64,
}

/// What a guest did.
#[derive(Clone, Debug)]
pub struct GuestReport {
    /// Its name.
    pub name: String,
    /// CPU time of its vCPU (ns).
    pub cpu_ns: u64,
    /// Calls for received frames.
    pub rx_calls: u64,
    /// Calls for transmitted frames.
    pub tx_calls: u64,
    /// Calls that it did not want, of both kinds.
    pub suppressed: u64,
    /// Interrupts that it took: calls that came while another of the same kind waited count once.
    pub interrupts: u64,
    /// Frames received.
    pub received: u64,
    /// Frames in its receive ring, on average.
    pub in_ring_mean: f64,
    /// The most of them.
    pub in_ring_max: u64,
    /// Kicks.
    pub kicks: u64,
    /// How long received frames waited for their call.
    pub holds: Times,
    /// Calls that came later than the latency budget, since a worker was late.
    pub late: u64,
}

/// What a worker did.
#[derive(Clone, Debug, Default)]
pub struct WorkerReport {
    /// CPU time (ns).
    pub cpu_ns: u64,
    /// The CPU on which it ran last; `None`, if it never ran.
    pub last_cpu: Option<CpuId>,
    /// Bursts with frames.
    pub bursts: u64,
    /// Frames taken.
    pub frames: u64,
    /// Sleeps that ended, naps included.
    pub wakeups: u64,
    /// Naps.
    pub naps: u64,
    /// Times that it looked on.
    pub looks: u64,
    /// How long frames were in guests' rings before they were taken.
    pub waits: Times,
}

impl Report {
    /// A rate per second of something that was counted.
    pub fn per_s(&self, count: u64) -> f64 {
        count as f64 * 1e9 / self.ns as f64
    }

    /// CPUs that so much CPU time (ns) kept busy.
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

/// An invariant that does not hold: the model or a policy is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Frames have come from nowhere, or gone nowhere.
    #[error(
        "at {now_ns} ns, load `{load}`: of {sent} frames sent {received} are received, {dropped} \
         dropped and {in_flight} in flight"
    )]
    Frames {
        /// When it was seen (ns).
        now_ns: u64,
        /// Of which load.
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
        /// When (ns).
        now_ns: u64,
        /// Of which load.
        load: String,
        /// The later one's number.
        number: u64,
        /// The number of the one before.
        before: u64,
    },
    /// A policy set a deadline beyond its limit, or in the past.
    #[error(
        "at {now_ns} ns, policy `{kind}`: a hold until {until_ns} ns of frames that came at {since_ns} ns, \
         with a limit of {hold_ns_max} ns"
    )]
    Held {
        /// Which policy.
        kind: Kind,
        /// When it was asked (ns).
        now_ns: u64,
        /// What it said (ns).
        until_ns: u64,
        /// From when the limit counts (ns).
        since_ns: u64,
        /// The limit (ns).
        hold_ns_max: u64,
    },
    /// A worker that had its CPU did not ask a policy when that wanted to be asked, or nobody was to.
    #[error(
        "at {now_ns} ns, guest {guest}: the policy for its {side} queue was to be asked at {due_ns} ns, and {what}"
    )]
    Overdue {
        /// When it was seen (ns).
        now_ns: u64,
        /// Of which guest.
        guest: usize,
        /// "receive" or "transmit".
        side: &'static str,
        /// When it was to be asked (ns).
        due_ns: u64,
        /// What happened instead.
        what: &'static str,
    },
    /// A queue did not move on.
    #[error("at {now_ns} ns, port {port}: {what}")]
    Starved {
        /// When it was seen (ns).
        now_ns: u64,
        /// Of which port: guests, then uplinks.
        port: usize,
        /// What waits, and for whom.
        what: &'static str,
    },
}
