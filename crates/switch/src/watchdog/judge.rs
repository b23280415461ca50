//! The decision about which threads are stalled, and their state in the kernel.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::time::Duration;

use weir_engine::beat::{Place, Role, Said, Seen};
use weir_fabric::PortId;

/// A stalled thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Still {
    pub(crate) id: u32,
    pub(crate) name: String,
    /// The thread's activity.
    pub(crate) place: Place,
    /// The port for which the thread works.
    pub(crate) port: Option<PortId>,
    /// Another party for which it works.
    pub(crate) party: Option<String>,
    /// Duration of the stall (ns).
    pub(crate) ns: u64,
    /// The thread's state in the kernel when the stall was found.
    pub(crate) kernel: String,
}

/// The result of a look.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    /// The stalled threads.
    pub(super) still: Vec<Still>,
    /// Threads that were stalled at the last look and are not any more.
    pub(super) went_on: Vec<String>,
    /// True unless all workers are stalled.
    pub(super) packets_move: bool,
}

#[derive(Debug)]
struct Known {
    said: Said,
    /// The time for which the thread has reported the same activity (ns).
    ns: u64,
}

/// Remembers the reports of threads.
#[derive(Debug)]
pub(super) struct Judge {
    every_ns: u64,
    bound_ns: u64,
    looked_ns: Option<u64>,
    threads: BTreeMap<u32, Known>,
    still: BTreeMap<u32, String>,
}

impl Judge {
    /// A judge that looks at this interval, and tolerates a stall for this time.
    pub(super) fn new(every: Duration, bound: Duration) -> Self {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let (threads, still) = (BTreeMap::new(), BTreeMap::new());
        Self { every_ns: ns(every), bound_ns: ns(bound), looked_ns: None, threads, still }
    }

    pub(super) fn look(&mut self, now_ns: u64, seen: &[Seen]) -> Verdict {
        let passed_ns = now_ns.saturating_sub(self.looked_ns.replace(now_ns).unwrap_or(now_ns));
        // If this look is late, the whole process was stopped, and the other threads could make no progress either.
        let passed_ns = passed_ns.min(self.every_ns.saturating_mul(2));
        self.threads.retain(|id, _| seen.iter().any(|thread| thread.id == *id));
        let mut still = Vec::new();
        for Seen { name, id, said, party, .. } in seen {
            let known = self.threads.entry(*id).or_insert(Known { said: *said, ns: 0 });
            known.ns = match known.said == *said && said.place() != Place::Asleep {
                true => known.ns.saturating_add(passed_ns),
                false => 0,
            };
            known.said = *said;
            if known.ns >= self.bound_ns {
                let (place, port, ns) = (said.place(), said.port(), known.ns);
                let (name, kernel) = (name.clone(), String::new());
                let party = party.clone();
                still.push(Still { id: *id, name, place, port, party, ns, kernel });
            }
        }
        let now: BTreeMap<_, _> = still.iter().map(|it| (it.id, it.name.clone())).collect();
        let before = std::mem::replace(&mut self.still, now);
        let went_on = before.into_iter().filter(|(id, _)| !self.still.contains_key(id));
        let went_on = went_on.map(|(_, name)| name).collect();
        let mut workers = seen.iter().filter(|thread| thread.role == Role::Worker).peekable();
        let packets_move =
            workers.peek().is_none() || workers.any(|worker| !self.still.contains_key(&worker.id));
        Verdict { still, went_on, packets_move }
    }
}

/// The limit on bytes read of a file.
const BYTES_MAX: u64 = 4096;

/// The thread's readable state: its run state, the kernel function in which it waits, its system call, and for root
/// the kernel's stack.
pub(super) fn says(thread: u32) -> String {
    let read = |name: &str| {
        let mut text = String::new();
        let file = File::open(format!("/proc/self/task/{thread}/{name}")).ok()?;
        file.take(BYTES_MAX).read_to_string(&mut text).ok()?;
        Some(text)
    };
    let state = read("status").and_then(|status| {
        let line = status.lines().find_map(|line| line.strip_prefix("State:"))?;
        Some(format!("state {}", line.trim()))
    });
    let wchan = read("wchan").filter(|name| !name.is_empty() && name != "0");
    let wchan = wchan.map(|name| format!("in {}", name.trim()));
    let call = read("syscall").map(|call| format!("system call {}", call.trim()));
    let stack = read("stack").filter(|stack| !stack.is_empty());
    let stack = stack.map(|stack| format!("stack {}", stack.lines().collect::<Vec<_>>().join(" ")));
    let all: Vec<_> = [state, wchan, call, stack].into_iter().flatten().collect();
    if all.is_empty() { "nothing".into() } else { all.join(", ") }
}
