//! Virtual processors that weir has told where to run, and how it is undone.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::affinity;
use super::vcpus::Thread;
use crate::helper::Hands;

/// What was set of a thread.
#[derive(Debug)]
struct Pin {
    /// Where it might run before.
    found: BTreeSet<u16>,
    set: BTreeSet<u16>,
}

/// What came of wanting a thread somewhere.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It is there, and was.
    Stays,
    /// It was moved.
    Moved,
    /// It could not be moved, and that is news.
    Refused(Errno),
}

/// The threads that were told where to run. Dropped, they may run where they might before.
#[derive(Debug)]
pub(super) struct Pins {
    proc: PathBuf,
    pins: BTreeMap<Thread, Pin>,
    /// Where the kernel refused to put a thread, and why.
    refused: BTreeMap<Thread, (BTreeSet<u16>, Errno)>,
    /// Somebody else has told them to run somewhere since: they are left alone.
    others: BTreeSet<Thread>,
    hands: Hands,
}

impl Pins {
    /// Of processes below `proc`.
    pub(super) fn new(proc: &Path, hands: Hands) -> Self {
        Self {
            proc: proc.into(),
            pins: BTreeMap::new(),
            refused: BTreeMap::new(),
            others: BTreeSet::new(),
            hands,
        }
    }

    /// Where `thread` may run apart from what was set here; `None` if it has ended.
    pub(super) fn may_run(&mut self, thread: Thread) -> Option<BTreeSet<u16>> {
        let now = affinity::allowed(Some(thread.id)).ok()?;
        match self.pins.get(&thread) {
            Some(pin) if pin.set == now => Some(pin.found.clone()),
            Some(_) => {
                self.pins.remove(&thread);
                self.others.insert(thread);
                Some(now)
            }
            None => Some(now),
        }
    }

    /// Whether somebody else has moved it since.
    pub(super) fn is_others(&self, thread: Thread) -> bool {
        self.others.contains(&thread)
    }

    pub(super) fn refusal(&self, thread: Thread) -> Option<Errno> {
        self.refused.get(&thread).map(|(_, error)| *error)
    }

    /// Lets `thread` run on `cpus` only, which are not empty. What was refused once is not tried again.
    pub(super) fn pin(&mut self, thread: Thread, cpus: &BTreeSet<u16>) -> Outcome {
        let stays = self.pins.get(&thread).is_some_and(|pin| pin.set == *cpus);
        let refused = self.refused.get(&thread).is_some_and(|(set, _)| set == cpus);
        if stays || refused || self.is_others(thread) {
            return Outcome::Stays;
        }
        let result = match self.pins.get(&thread) {
            Some(pin) => Ok(pin.found.clone()),
            None if thread.is_there(&self.proc) => affinity::allowed(Some(thread.id)),
            None => Err(Errno::SRCH),
        };
        let result = result.and_then(|found| {
            self.hands.pin(thread.id, cpus)?;
            Ok(found)
        });
        match result {
            Ok(found) => {
                self.refused.remove(&thread);
                self.pins.insert(thread, Pin { found, set: cpus.clone() });
                Outcome::Moved
            }
            Err(error) => {
                self.refused.insert(thread, (cpus.clone(), error));
                Outcome::Refused(error)
            }
        }
    }

    /// Gives back all but `kept`; gives how many were.
    pub(super) fn keep(&mut self, kept: &BTreeSet<Thread>) -> u64 {
        self.refused.retain(|thread, _| kept.contains(thread));
        let gone: Vec<Thread> =
            self.pins.keys().copied().filter(|thread| !kept.contains(thread)).collect();
        gone.into_iter().map(|thread| u64::from(self.give_back(thread))).sum()
    }

    /// Forgets threads of processes that are no guests any more.
    pub(super) fn forget_others(&mut self, processes: &BTreeSet<u32>) {
        self.others.retain(|thread| processes.contains(&thread.process));
    }

    /// A thread may run again where it was found, unless it has ended or somebody else has moved it.
    fn give_back(&mut self, thread: Thread) -> bool {
        let Some(pin) = self.pins.remove(&thread) else {
            return false;
        };
        let is_ours = || affinity::allowed(Some(thread.id)).is_ok_and(|now| now == pin.set);
        thread.is_there(&self.proc) && is_ours() && self.hands.pin(thread.id, &pin.found).is_ok()
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        self.keep(&BTreeSet::new());
    }
}
