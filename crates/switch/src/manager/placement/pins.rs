//! Virtual processors that weir has pinned, and the restoration of their affinity.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::vcpus::Thread;
use crate::helper::Hands;

/// A thread's pin.
#[derive(Debug)]
struct Pin {
    /// The thread's affinity before the pin.
    found: BTreeSet<u16>,
    set: BTreeSet<u16>,
}

/// The outcome of a request to pin a thread.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The affinity was left as it was.
    Stays,
    /// The affinity was changed.
    Moved,
    /// The kernel refused, for the first time.
    Refused(Errno),
}

/// The pinned threads. Dropping the value restores their affinity.
#[derive(Debug)]
pub(super) struct Pins {
    proc: PathBuf,
    pins: BTreeMap<Thread, Pin>,
    /// Affinities that the kernel has refused for a thread, with the error.
    refused: BTreeMap<Thread, (BTreeSet<u16>, Errno)>,
    /// Threads whose affinity another program has changed since: weir leaves them alone.
    others: BTreeSet<Thread>,
    hands: Hands,
}

impl Pins {
    /// Pins for the processes in `proc`.
    pub(super) fn new(proc: &Path, hands: Hands) -> Self {
        Self {
            proc: proc.into(),
            pins: BTreeMap::new(),
            refused: BTreeMap::new(),
            others: BTreeSet::new(),
            hands,
        }
    }

    /// The affinity of `thread` without weir's pin; `None` if the thread has ended.
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

    /// True if another program has changed the thread's affinity since.
    pub(super) fn is_others(&self, thread: Thread) -> bool {
        self.others.contains(&thread)
    }

    pub(super) fn refusal(&self, thread: Thread) -> Option<Errno> {
        self.refused.get(&thread).map(|(_, error)| *error)
    }

    /// Pins `thread` to `cpus`, which are not empty. A refused affinity is not tried again.
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

    /// Releases all threads except `kept`; returns how many were released.
    pub(super) fn keep(&mut self, kept: &BTreeSet<Thread>) -> u64 {
        self.refused.retain(|thread, _| kept.contains(thread));
        let gone: Vec<Thread> =
            self.pins.keys().copied().filter(|thread| !kept.contains(thread)).collect();
        gone.into_iter().map(|thread| u64::from(self.give_back(thread))).sum()
    }

    /// Forgets threads of processes that are no longer guests.
    pub(super) fn forget_others(&mut self, processes: &BTreeSet<u32>) {
        self.others.retain(|thread| processes.contains(&thread.process));
    }

    /// Restores a thread's affinity, unless the thread has ended or another program has changed the affinity.
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

pub(super) mod affinity {
    //! A thread's CPU affinity: sched_setaffinity(2).

    use std::collections::BTreeSet;

    use rustix::io::Errno;
    use rustix::process::Pid;
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    /// The processors on which a thread may run; this thread if none is named.
    pub(crate) fn allowed(thread: Option<u32>) -> Result<BTreeSet<u16>, Errno> {
        let set = sched_getaffinity(thread.map(pid).transpose()?)?;
        let cpus = (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu));
        Ok(cpus.filter_map(|cpu| u16::try_from(cpu).ok()).collect())
    }

    /// Restricts a thread to `cpus`.
    ///
    /// # Errors
    /// `EPERM`: the thread is another user's; `EINVAL`: there are no such processors, or this process's cpuset has none
    /// of them; `ESRCH`: the thread has ended.
    pub(crate) fn set(thread: u32, cpus: &BTreeSet<u16>) -> Result<(), Errno> {
        let mut set = CpuSet::new();
        for cpu in cpus.iter().map(|cpu| usize::from(*cpu)).filter(|cpu| *cpu < CpuSet::MAX_CPU) {
            set.set(cpu);
        }
        sched_setaffinity(Some(pid(thread)?), &set)
    }

    fn pid(thread: u32) -> Result<Pid, Errno> {
        i32::try_from(thread).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)
    }

    /// The meaning of an error.
    pub(crate) fn explain(error: Errno) -> String {
        let hint = match error {
            Errno::PERM => {
                " (the thread is another user's: run weir as that user, or with CAP_SYS_NICE)"
            }
            Errno::INVAL => " (the kernel, or this process's cpuset, has no such processor)",
            Errno::SRCH => " (the thread has ended)",
            _ => "",
        };
        format!("{}{hint}", std::io::Error::from(error))
    }
}
