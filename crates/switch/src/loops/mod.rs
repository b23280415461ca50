//! Loops: two ports that are joined outside, so that what leaves by one comes in by the other.
//!
//! The manager sees addresses that move back and forth between two ports, and has a probe sent (`probe.rs`). If the probe
//! comes back, one of the ports is blocked (`judge.rs` says which), and tried again later. A thread for each suspicion
//! sends and tries: a guest's memory may keep that thread waiting, and nobody else. See docs/design/0056-loops.md.
//!
//! | file | what |
//! |---|---|
//! | `judge.rs` | when a loop is suspected, and whom it costs; pure |
//! | `probe.rs` | the frame that shows it |

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
    /// Any station may be behind it: without such a port nothing circles.
    open: bool,
}

/// A blocked port.
#[derive(Clone, Debug)]
struct Block {
    serial: u64,
    /// The port with which it is joined.
    with: Known,
    vid: Vid,
    since_ns: u64,
    /// After how long it is tried, and when (ns).
    wait_ns: u64,
    retry_ns: u64,
    /// How often it was tried.
    tries: u64,
    /// Who tries.
    thread: Thread,
}

/// A blocked port, to be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Blocked {
    /// The port with which it is joined; itself, if its guest sends back what it gets.
    pub(crate) with: PortName,
    pub(crate) vid: Vid,
    pub(crate) for_ns: u64,
    pub(crate) retry_in_ns: u64,
    pub(crate) tries: u64,
}

/// A port that was blocked: after how long it was tried (ns), and until when this matters (ns).
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
    /// Suspicions that are looked into, and whether both ports are uplinks.
    under_way: Vec<(Pair, bool)>,
    /// When each was looked into last (ns).
    asked_ns: BTreeMap<Pair, u64>,
    looked_ns: Option<u64>,
    threads: Vec<JoinHandle<()>>,
}

/// What has been done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LoopCounts {
    /// Suspicions that were looked into.
    pub(crate) suspected: u64,
    /// Loops that were found.
    pub(crate) found: u64,
}

/// All of it, of one switch.
pub(crate) struct Loops {
    engine: Weak<Engine>,
    addresses: Addresses,
    state: Mutex<State>,
    ends: AtomicBool,
    suspected: AtomicU64,
    found: AtomicU64,
    /// After how long a port is tried the first time (ns).
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

    /// Each change of the state is one store, so poison means nothing.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A port is there, younger than all others. `open`: any station may be behind it.
    pub(crate) fn add(&self, id: PortId, name: &PortName, uplink: bool, open: bool) {
        let mut state = self.state();
        state.serials += 1;
        let party = Party { id, serial: state.serials, uplink };
        state.ports.insert(id, Known { party, name: name.clone(), open });
    }

    /// A port has other settings. A blocked one is tried at once.
    pub(crate) fn change(&self, id: PortId, open: bool) {
        let mut state = self.state();
        if let Some(port) = state.ports.get_mut(&id) {
            port.open = open;
        }
        if let Some(block) = state.blocked.get_mut(&id) {
            block.retry_now();
        }
    }

    /// A port goes: its number may be another's from now on. Ports that were blocked for it are tried at once.
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

    /// Whether a loop is possible: [`look`](Self::look) ten times a second then, under traffic.
    pub(crate) fn are_possible(&self) -> bool {
        let state = self.state();
        let open = || state.ports.values().filter(|port| port.open);
        state.ports.len() > 1 && (open().count() > 1 || open().any(|port| !port.party.uplink))
    }

    /// Looks for suspicions, and has them looked into.
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
                // The overlay's: what comes from a host goes to no host.
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

    /// What a thread does: looks into a suspicion, and tries the port that it has blocked, until that is blocked no more.
    fn run(&self, pair: &[Known; 2], vid: Vid) {
        weir_sandbox::narrow(weir_sandbox::Thread::Worker);
        // Not vital: a guest's memory may keep it waiting.
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

    /// Whether the suspicion is right: the port that is blocked for it then.
    fn prove(&self, pair: &[Known; 2], vid: Vid) -> Option<Known> {
        let engine = self.engine.upgrade()?;
        let goes_on = || !self.ends.load(Ordering::Relaxed);
        let Seen::Back(ids) = probe(&engine, &self.addresses, pair.each_ref(), vid, goes_on) else {
            return None;
        };
        let mut state = self.state();
        // A third port may be in it. One whose number is another's by now is not.
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
            // The loop is cut already.
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

    /// Tries a blocked port each time that it is due, until it is blocked no more.
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
                // Somebody is there and takes no frames, so nobody knows.
                Seen::NotSent if engine.fabric().is_active(port.party.id) => {
                    self.wait_on(port, false);
                }
                Seen::NotSent => return self.unblock(port, "nobody is behind it"),
                Seen::Nothing => return self.unblock(port, "no probe has come back"),
            }
        }
    }

    /// Sleeps until the port is to be tried; `None` if it is blocked no more.
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
                        // Whoever has come in its place has nothing to do with it.
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

    /// The port stays blocked, until a later try, and for `longer` than until this one.
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
        // One that is blocked again soon has not been mended.
        let soon_ns = block.wait_ns.saturating_mul(2).saturating_add(LOOP_AGAIN_NS);
        let until_ns = now_ns.saturating_add(soon_ns);
        state.past.insert(id, Past { wait_ns: block.wait_ns, until_ns });
        if let Some(engine) = self.engine.upgrade() {
            // A port that has just gone is not blocked either.
            let _ = engine.fabric().set_blocked(id, false);
        }
        drop(state);
        let blocked_s = now_ns.saturating_sub(block.since_ns) / 1_000_000_000;
        tracing::info!(port = %port.name, blocked_s, why, "the port is blocked no more");
        tell(Event::PortUnblocked { port: port.name.clone() });
    }

    /// Whether the port is blocked, and why.
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

    /// No probe is sent any more, and no port is tried. One that a guest keeps waiting is left behind.
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

/// Sleeps so long, or until somebody has something new.
fn pause(ns: u64) {
    beat::wait(|| std::thread::park_timeout(Duration::from_nanos(ns)));
}
