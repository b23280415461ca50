//! Loops: two ports are joined outside the switch, so that frames that leave by one come back by the other.
//!
//! The manager sees addresses that move back and forth between two ports, and has a probe sent (`probe.rs`). If the
//! probe
//! comes back, one of the ports is blocked (`judge.rs` decides which one) and tried again later. Each suspicion has
//! its own
//! thread, which sends the probes: a guest's memory can block that thread, but no other. See
//! docs/design/l2.md#0056.
//!
//! | file | content |
//! |---|---|
//! | `judge.rs` | when a loop is suspected, and which port is blocked; pure |
//! | `probe.rs` | the frame that proves a loop |

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use weir_config::PortName;
use weir_engine::{Engine, beat, clock};
use weir_fabric::{Moves, PortId, Vid};
use weir_limits::{LOOP_AGAIN_NS, LOOP_RETRY_NS, LOOP_SUSPICIONS_MAX, LOOP_THREADS_END_NS};

use crate::events::{Event, tell};
use judge::{Party, culprit, is_suspicious, retry_after_ns};
use probe::{Addresses, Seen, probe};

mod judge;
mod probe;
#[cfg(test)]
mod tests;

const NAME: &str = "weir-loops";

/// A port that may be part of a loop.
#[derive(Clone, Debug)]
struct Known {
    party: Party,
    name: PortName,
    /// True if any station may be behind the port: without such a port no frame can circle.
    open: bool,
}

/// A blocked port.
#[derive(Clone, Debug)]
struct Block {
    serial: u64,
    /// The port to which it is joined outside.
    with: Known,
    vid: Vid,
    since_ns: u64,
    /// The wait before the next try, and the time of that try (ns).
    wait_ns: u64,
    retry_ns: u64,
    /// Tries so far.
    tries: u64,
    /// The thread that tries the port.
    thread: Thread,
}

/// A blocked port, to be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Blocked {
    /// The port to which it is joined outside; the port itself if its guest sends back the frames that it receives.
    pub(crate) with: PortName,
    pub(crate) vid: Vid,
    pub(crate) for_ns: u64,
    pub(crate) retry_in_ns: u64,
    pub(crate) tries: u64,
}

/// A port that was blocked: the last wait before a try (ns), and the time until which the block is remembered (ns).
#[derive(Clone, Copy, Debug)]
struct Past {
    wait_ns: u64,
    until_ns: u64,
}

/// Two ports in a VLAN.
type Pair = (Vid, [PortId; 2]);

#[derive(Default)]
struct State {
    ports: BTreeMap<PortId, Known>,
    serials: u64,
    blocked: BTreeMap<PortId, Block>,
    past: BTreeMap<PortId, Past>,
    /// Suspicions under examination, with a flag that is true if both ports are uplinks.
    under_way: Vec<(Pair, bool)>,
    /// The time of each pair's last examination (ns).
    asked_ns: BTreeMap<Pair, u64>,
    looked_ns: Option<u64>,
    threads: Vec<JoinHandle<()>>,
}

/// Counters of loop detection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LoopCounts {
    /// Suspicions that were examined.
    pub(crate) suspected: u64,
    /// Loops that were found.
    pub(crate) found: u64,
}

/// Loop detection of one switch.
pub(crate) struct Loops {
    engine: Weak<Engine>,
    addresses: Addresses,
    state: Mutex<State>,
    ends: AtomicBool,
    suspected: AtomicU64,
    found: AtomicU64,
    /// The wait before a port's first try (ns).
    retry_ns: u64,
}

impl Loops {
    pub(crate) fn new(engine: &Arc<Engine>) -> Arc<Self> {
        Self::that_retry_after(engine, LOOP_RETRY_NS)
    }

    fn that_retry_after(engine: &Arc<Engine>, retry_ns: u64) -> Arc<Self> {
        Arc::new(Self {
            engine: Arc::downgrade(engine),
            addresses: Addresses::new(),
            state: Mutex::default(),
            ends: AtomicBool::new(false),
            suspected: AtomicU64::new(0),
            found: AtomicU64::new(0),
            retry_ns,
        })
    }

    /// Each change of the state is a single store, so a poisoned lock is harmless.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a port, which is younger than all others. `open` means that any station may be behind it.
    pub(crate) fn add(&self, id: PortId, name: &PortName, uplink: bool, open: bool) {
        let mut state = self.state();
        state.serials += 1;
        let party = Party { id, serial: state.serials, uplink };
        state.ports.insert(id, Known { party, name: name.clone(), open });
    }

    /// Notes a port's new settings. A blocked port is tried at once.
    pub(crate) fn change(&self, id: PortId, open: bool) {
        let mut state = self.state();
        if let Some(port) = state.ports.get_mut(&id) {
            port.open = open;
        }
        if let Some(block) = state.blocked.get_mut(&id) {
            block.retry_now();
        }
    }

    /// Removes a port, whose number may be reused. Ports that were blocked because of it are tried at once.
    pub(crate) fn remove(&self, id: PortId) {
        let mut state = self.state();
        state.ports.remove(&id);
        state.past.remove(&id);
        if let Some(block) = state.blocked.remove(&id) {
            block.thread.unpark();
        }
        for block in state.blocked.values_mut().filter(|block| block.with.party.id == id) {
            block.retry_now();
        }
    }

    /// True if a loop is possible. Then [`look`](Self::look) is called ten times a second under traffic.
    pub(crate) fn are_possible(&self) -> bool {
        let state = self.state();
        let open = || state.ports.values().filter(|port| port.open);
        state.ports.len() > 1 && (open().count() > 1 || open().any(|port| !port.party.uplink))
    }

    /// Looks for suspicious moves, and starts an examination of each.
    pub(crate) fn look(self: &Arc<Self>, now_ns: u64) {
        let Some(engine) = self.engine.upgrade() else { return };
        let moves = engine.fabric().fdb().take_moves();
        let mut state = self.state();
        let elapsed_ns = state.looked_ns.replace(now_ns).map(|then| now_ns.saturating_sub(then));
        let Some(elapsed_ns) = elapsed_ns else { return };
        state.asked_ns.retain(|_, asked_ns| now_ns.saturating_sub(*asked_ns) < LOOP_AGAIN_NS);
        state.past.retain(|_, past| now_ns < past.until_ns);
        state.threads.retain(|thread| !thread.is_finished());
        let is_suspicious = |moves: &&Moves| is_suspicious(moves.times, elapsed_ns);
        for Moves { vid, ports, .. } in moves.iter().filter(is_suspicious) {
            let pair = (*vid, *ports);
            let [Some(a), Some(b)] = ports.map(|id| state.ports.get(&id).cloned()) else {
                // The overlay's port passes no frame from one host to another, so it closes no loop.
                continue;
            };
            let uplinks = a.party.uplink && b.party.uplink;
            let busy = state.under_way.iter().filter(|(_, other)| *other == uplinks).count();
            let is_asked = state.asked_ns.contains_key(&pair)
                || state.under_way.iter().any(|(other, _)| *other == pair);
            if is_asked || busy >= LOOP_SUSPICIONS_MAX || self.ends.load(Ordering::Relaxed) {
                continue;
            }
            let (loops, vid) = (Arc::clone(self), *vid);
            let run = move || loops.run(&[a, b], vid);
            let thread = std::thread::Builder::new().name(NAME.into()).spawn(run);
            let Ok(thread) = thread else {
                // The next look tries again.
                return;
            };
            self.suspected.fetch_add(1, Ordering::Relaxed);
            state.threads.push(thread);
            state.under_way.push((pair, uplinks));
            state.asked_ns.insert(pair, now_ns);
        }
    }

    /// Runs in a thread: examines a suspicion, and then tries the port that it has blocked until the block ends.
    fn run(&self, pair: &[Known; 2], vid: Vid) {
        weir_sandbox::narrow(weir_sandbox::Thread::Worker);
        // The thread is not vital, because a guest's memory can block it.
        beat::watch_this_thread(NAME, beat::Role::Own);
        let ids = pair.each_ref().map(|port| port.party.id);
        let mut block = None;
        let found = catch_unwind(AssertUnwindSafe(|| self.prove(pair, vid)));
        self.state().under_way.retain(|(other, _)| *other != (vid, ids));
        if let Ok(found) = &found {
            block = found.clone();
        }
        let Some(port) = block else { return };
        let ended = catch_unwind(AssertUnwindSafe(|| self.try_again(&port)));
        if ended.is_err() {
            tracing::error!(port = %port.name, "a look for loops panicked (please report it)");
            self.unblock(&port, "nobody would try it again");
        }
    }

    /// Examines a suspicion; returns the port that it has blocked, if the suspicion is right.
    fn prove(&self, pair: &[Known; 2], vid: Vid) -> Option<Known> {
        let engine = self.engine.upgrade()?;
        let goes_on = || !self.ends.load(Ordering::Relaxed);
        let Seen::Back(ids) = probe(&engine, &self.addresses, pair.each_ref(), vid, goes_on) else {
            return None;
        };
        let mut state = self.state();
        // A third port may be part of the loop. A port whose number has been reused is not.
        let mut parties = [None, None];
        for (party, id) in parties.iter_mut().zip(ids) {
            let now = state.ports.get(&id);
            let then = pair.iter().find(|port| port.party.id == id);
            *party = now
                .filter(|now| then.is_none_or(|then| then.party.serial == now.party.serial))
                .cloned();
        }
        let [Some(a), Some(b)] = parties else { return None };
        let is_blocked = |port: &Known| state.blocked.contains_key(&port.party.id);
        if is_blocked(&a) || is_blocked(&b) || !goes_on() {
            // The loop is already cut.
            return None;
        }
        let (port, with) = match culprit(a.party, b.party) == a.party {
            true => (a, b),
            false => (b, a),
        };
        let id = port.party.id;
        engine.fabric().set_blocked(id, true).ok()?;
        self.found.fetch_add(1, Ordering::Relaxed);
        let now_ns = clock::now_ns();
        let past = state.past.remove(&id).filter(|past| now_ns < past.until_ns);
        let wait_ns = past.map_or(self.retry_ns, |past| retry_after_ns(past.wait_ns));
        let block = Block {
            serial: port.party.serial,
            with: with.clone(),
            vid,
            since_ns: now_ns,
            wait_ns,
            retry_ns: now_ns.saturating_add(wait_ns),
            tries: 0,
            thread: std::thread::current(),
        };
        state.blocked.insert(id, block);
        drop(state);
        let retry_s = wait_ns / 1_000_000_000;
        let (name, with) = (&port.name, &with.name);
        tracing::warn!(port = %name, %with, vlan = %vid, retry_s, "a loop: the port is blocked");
        tell(Event::PortBlocked { port: name.clone(), with: with.clone() });
        Some(port)
    }

    /// Tries a blocked port whenever a try is due, until the block ends.
    fn try_again(&self, port: &Known) {
        while let Some((with, vid)) = self.await_retry(port) {
            let Some(engine) = self.engine.upgrade() else { return };
            let stays = || self.is_blocked(port);
            let seen = probe(&engine, &self.addresses, [&with, port], vid, stays);
            if !stays() {
                return;
            }
            match seen {
                Seen::Back(_) => self.wait_on(port, true),
                // The port is active but takes no frames, so the result is unknown.
                Seen::NotSent if engine.fabric().is_active(port.party.id) => {
                    self.wait_on(port, false);
                }
                Seen::NotSent => return self.unblock(port, "nobody is behind it"),
                Seen::Nothing => return self.unblock(port, "no probe has come back"),
            }
        }
    }

    /// Sleeps until the port is to be tried; `None` if the block has ended.
    fn await_retry(&self, port: &Known) -> Option<(Known, Vid)> {
        loop {
            let left_ns = {
                let state = self.state();
                let block = state.blocked.get(&port.party.id);
                let block = block.filter(|block| block.serial == port.party.serial)?;
                if self.ends.load(Ordering::Relaxed) {
                    return None;
                }
                match block.retry_ns.saturating_sub(clock::now_ns()) {
                    0 => {
                        let with = state.ports.get(&block.with.party.id);
                        let with = with.filter(|with| with.party == block.with.party);
                        // The port that has replaced it is not part of the loop.
                        return Some((with.unwrap_or(port).clone(), block.vid));
                    }
                    left_ns => left_ns,
                }
            };
            pause(left_ns);
        }
    }

    fn is_blocked(&self, port: &Known) -> bool {
        let state = self.state();
        let block = state.blocked.get(&port.party.id);
        block.is_some_and(|block| block.serial == port.party.serial)
            && !self.ends.load(Ordering::Relaxed)
    }

    /// Keeps the port blocked until the next try. If `longer`, the wait is longer than the last one.
    fn wait_on(&self, port: &Known, longer: bool) {
        let mut state = self.state();
        let block = state.blocked.get_mut(&port.party.id);
        let Some(block) = block.filter(|block| block.serial == port.party.serial) else { return };
        if longer {
            block.wait_ns = retry_after_ns(block.wait_ns);
        }
        block.tries += 1;
        block.retry_ns = clock::now_ns().saturating_add(block.wait_ns);
        let retry_s = block.wait_ns / 1_000_000_000;
        drop(state);
        tracing::debug!(port = %port.name, retry_s, "the port stays blocked");
    }

    fn unblock(&self, port: &Known, why: &str) {
        let mut state = self.state();
        let id = port.party.id;
        let is_it = |block: &Block| block.serial == port.party.serial;
        if !state.blocked.get(&id).is_some_and(is_it) {
            return;
        }
        let Some(block) = state.blocked.remove(&id) else { return };
        let now_ns = clock::now_ns();
        // A port that is blocked again soon still has the fault.
        let soon_ns = block.wait_ns.saturating_mul(2).saturating_add(LOOP_AGAIN_NS);
        let until_ns = now_ns.saturating_add(soon_ns);
        state.past.insert(id, Past { wait_ns: block.wait_ns, until_ns });
        if let Some(engine) = self.engine.upgrade() {
            // A port that has just been removed needs no unblocking.
            let _ = engine.fabric().set_blocked(id, false);
        }
        drop(state);
        let blocked_s = now_ns.saturating_sub(block.since_ns) / 1_000_000_000;
        tracing::info!(port = %port.name, blocked_s, why, "the port is blocked no more");
        tell(Event::PortUnblocked { port: port.name.clone() });
    }

    /// The port's block, if it is blocked.
    pub(crate) fn blocked(&self, id: PortId, now_ns: u64) -> Option<Blocked> {
        let state = self.state();
        let block = state.blocked.get(&id)?;
        Some(Blocked {
            with: block.with.name.clone(),
            vid: block.vid,
            for_ns: now_ns.saturating_sub(block.since_ns),
            retry_in_ns: block.retry_ns.saturating_sub(now_ns),
            tries: block.tries,
        })
    }

    pub(crate) fn counts(&self) -> LoopCounts {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LoopCounts { suspected: get(&self.suspected), found: get(&self.found) }
    }

    /// Stops probes and tries. A thread that a guest blocks is left behind.
    pub(crate) fn end(&self) {
        self.ends.store(true, Ordering::Relaxed);
        let threads = std::mem::take(&mut self.state().threads);
        let end = Instant::now() + Duration::from_nanos(LOOP_THREADS_END_NS);
        for thread in threads {
            while !thread.is_finished() && Instant::now() < end {
                thread.thread().unpark();
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

impl Block {
    fn retry_now(&mut self) {
        self.retry_ns = 0;
        self.thread.unpark();
    }
}

/// Sleeps for this time, or until another thread unparks this one.
fn pause(ns: u64) {
    beat::wait(|| std::thread::park_timeout(Duration::from_nanos(ns)));
}
