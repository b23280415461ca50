//! Who stands still.

use std::collections::BTreeMap;
use std::time::Duration;

use weir_engine::beat::{Place, Role, Said, Seen};
use weir_fabric::PortId;

/// A thread that stands still.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Still {
    pub(crate) id: u32,
    pub(crate) name: String,
    /// What it does.
    pub(crate) place: Place,
    /// For which port.
    pub(crate) port: Option<PortId>,
    /// Or for which other party.
    pub(crate) party: Option<String>,
    /// For how long (ns).
    pub(crate) ns: u64,
    /// What the kernel said of it when that was found.
    pub(crate) kernel: String,
}

/// What a look has found.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    /// Those that stand still.
    pub(super) still: Vec<Still>,
    /// Those that did at the look before, and do not any more.
    pub(super) went_on: Vec<String>,
    /// Not all workers stand still.
    pub(super) packets_move: bool,
}

#[derive(Debug)]
struct Known {
    said: Said,
    /// For how long it has said that (ns).
    ns: u64,
}

/// Remembers what threads have said.
#[derive(Debug)]
pub(super) struct Judge {
    every_ns: u64,
    bound_ns: u64,
    looked_ns: Option<u64>,
    threads: BTreeMap<u32, Known>,
    still: BTreeMap<u32, String>,
}

impl Judge {
    /// One that looks so often, and lets a thread stand for so long.
    pub(super) fn new(every: Duration, bound: Duration) -> Self {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let (threads, still) = (BTreeMap::new(), BTreeMap::new());
        Self { every_ns: ns(every), bound_ns: ns(bound), looked_ns: None, threads, still }
    }

    pub(super) fn look(&mut self, now_ns: u64, seen: &[Seen]) -> Verdict {
        let passed_ns = now_ns.saturating_sub(self.looked_ns.replace(now_ns).unwrap_or(now_ns));
        // Where this look is late the whole process has stood: the others could not go on either.
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
