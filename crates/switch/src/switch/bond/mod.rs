//! Bonds: several uplinks that are one port of the switch. See docs/design/uplinks.md#0065.
//!
//! | file | content |
//! |---|---|
//! | `lacp/` | LACP, which tells which links lead to the same switch; pure |
//! | `choice.rs` | which uplinks carry frames, and which flows go where; pure |
//! | `port.rs` | the port that sends by its uplinks |

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use weir_config::{BondMode, LacpRate, PortName, UplinkConfig};
use weir_engine::logs::Logs;
use weir_engine::{Engine, Inbox, beat, clock, lock, supervise};
use weir_evpn::Links;
use weir_fabric::{Claim, PortId};
use weir_limits::{BOND_ANNOUNCED_MAX, BOND_ASK_NS, BOND_LACP_PAUSE_NS};
use weir_wire::{Mac, rarp};

use super::SwitchError;
use crate::stats::{BondStats, BondUplinkStats};
use choice::{Places, has};
use lacp::{Lacp, SLOW_PROTOCOLS};
pub(super) use port::BondPort;

mod choice;
mod lacp;
mod port;
#[cfg(test)]
mod tests;

const NAME: &str = "weir-bond";
/// The pause after an error of the kernel (ns).
const RETRY_NS: u64 = 1_000_000_000;

/// An uplink of a bond.
#[derive(Clone, Debug)]
pub(super) struct Uplink {
    pub(super) name: PortName,
    pub(super) id: PortId,
}

/// The uplinks that carry frames, and why.
#[derive(Clone, Debug)]
struct State {
    mode: BondMode,
    /// The uplinks that have a carrier.
    up: Places,
    /// The state of LACP, in mode `lacp`.
    lacp: Option<Lacp>,
    /// The uplinks that carried frames for the previous weir, until some carry frames here.
    noted: Places,
}

impl State {
    fn set_up(&mut self, up: Places, now_ns: u64) {
        self.up = up;
        if let Some(lacp) = &mut self.lacp {
            lacp.set_up(up, now_ns);
        }
    }
}

/// The bond, as its thread and the switch share it.
struct Shared {
    name: PortName,
    id: PortId,
    engine: Weak<Engine>,
    port: Arc<BondPort>,
    uplinks: Vec<Uplink>,
    state: Mutex<State>,
    changes: AtomicU64,
    /// The peer can change the carriers as often as it likes.
    logs: Logs<1>,
    ends: AtomicBool,
    /// Wakes the thread.
    bell: Arc<OwnedFd>,
    /// This end's system in LACP.
    system: Mac,
    /// LACPDUs that came in, by uplink.
    inboxes: Vec<Arc<Inbox>>,
}

impl Shared {
    /// Applies a change of the mode or of carriers. Returns true if other uplinks carry frames now.
    fn take_up(&self, change: impl FnOnce(&mut State)) -> bool {
        // The lock is held throughout: two changes at a time would mix.
        let mut state = lock(&self.state);
        change(&mut state);
        let before = self.port.carriers();
        let now = match &state.lacp {
            Some(lacp) => lacp.carriers(),
            None => choice::carriers(state.mode, state.up, before | state.noted),
        };
        if now != 0 {
            state.noted = 0;
        }
        let Some(engine) = self.engine.upgrade().filter(|_| now != before) else { return false };
        let comes_in = |places: Places, by: Option<PortId>| {
            for (place, uplink) in (0..).zip(&self.uplinks) {
                if has(places, place) {
                    engine.set_comes_in_by(uplink.id, by);
                }
            }
        };
        // The old uplink is silent before the new one is heard. Otherwise, a frame that came in by both would be
        // forwarded twice.
        comes_in(before & !now, None);
        self.port.carry(now);
        comes_in(now & !before, Some(self.id));
        self.changes.fetch_add(1, Ordering::Relaxed);
        let carry = self.names(now);
        self.logs.say(0, |unsaid| {
            tracing::info!(bond = %self.name, carry, mode = %state.mode, unsaid, "other uplinks carry frames");
        });
        now & !before != 0
    }

    fn ring(&self) {
        // A full counter means that the bell rings already.
        let _ = rustix::io::write(&*self.bell, &1_u64.to_ne_bytes());
    }

    fn names(&self, places: Places) -> String {
        let named = (0..).zip(&self.uplinks).filter(|(place, _)| has(places, *place));
        let names: Vec<_> = named.map(|(_, uplink)| uplink.name.as_str()).collect();
        if names.is_empty() { "none".into() } else { names.join(", ") }
    }

    /// Announces the stations of this host, so that the other switches send by the uplink that carries frames now.
    fn announce(&self) {
        let Some(engine) = self.engine.upgrade() else { return };
        let now_secs = clock::secs(clock::now_ns());
        let mut here = engine.fabric().fdb().entries(now_secs);
        here.retain(|it| !matches!(it.claim, Claim::Uplink | Claim::Told | Claim::ToldSticky));
        // A guest without a check has as many addresses as it likes, and must not displace a
        // checked one.
        here.sort_by_key(|it| it.claim == Claim::Dynamic);
        for entry in here.iter().filter(|it| it.port != self.id).take(BOND_ANNOUNCED_MAX) {
            engine.send_out_of(self.id, entry.vid, &rarp(entry.mac));
        }
    }

    /// Sets a mode, and the rate of LACP. The caller rings the bell.
    fn set_mode(&self, mode: BondMode, rate: LacpRate) -> bool {
        let speaks = mode == BondMode::Lacp;
        if let Some(engine) = self.engine.upgrade() {
            for (uplink, inbox) in self.uplinks.iter().zip(&self.inboxes) {
                engine.set_inbox(uplink.id, speaks.then(|| Arc::clone(inbox)));
            }
        }
        self.take_up(|state| {
            state.mode = mode;
            match &mut state.lacp {
                Some(lacp) if speaks => lacp.set_rate(rate),
                _ => {
                    state.lacp = speaks.then(|| {
                        let mut lacp = Lacp::new(self.system, rate, self.uplinks.len());
                        lacp.set_up(state.up, clock::now_ns());
                        lacp
                    });
                }
            }
        })
    }

    /// Does the work of LACP that is due. Returns true if other uplinks carry frames now.
    fn speak(&self) -> bool {
        let mut frames = Vec::new();
        let changed = self.take_up(|state| {
            let Some(lacp) = &mut state.lacp else { return };
            let now_ns = clock::now_ns();
            for (place, inbox) in (0..).zip(&self.inboxes) {
                if let Some(frame) = inbox.take() {
                    lacp.hear(place, frame.as_slice(), now_ns);
                }
            }
            frames = lacp.act(now_ns);
        });
        let Some(engine) = self.engine.upgrade() else { return changed };
        for (place, frame) in frames {
            if let Some(uplink) = self.uplinks.get(usize::from(place)) {
                engine.send_on_link(uplink.id, &frame);
            }
        }
        changed
    }

    /// Runs in the bond's thread.
    fn run(&self, links: &mut Links) {
        let up = |links: &Links| {
            let bits = (0..).zip(links.carriers());
            bits.fold(0, |bits, (place, carries): (u32, bool)| {
                bits | Places::from(carries) << place
            })
        };
        let mut refused = false;
        let mut spoken_ns = 0;
        while !self.ends.load(Ordering::Acquire) {
            let carriers = up(links);
            let now_ns = clock::now_ns();
            let mut changed = self.take_up(|state| state.set_up(carriers, now_ns));
            // A stranger may send one LACPDU after the other. weir reads them once in each pause, and notices carriers
            // at once.
            let may_speak_ns = spoken_ns + BOND_LACP_PAUSE_NS;
            let waits = now_ns < may_speak_ns;
            if !waits {
                spoken_ns = now_ns;
                changed |= self.speak();
            }
            if changed {
                self.announce();
            }
            let speaks_ns = match waits {
                true => Some(may_speak_ns),
                false => lock(&self.state).lacp.as_ref().map(Lacp::due_ns),
            };
            // The kernel reports only one lost carrier a second for all interfaces of the host. The bond asks for
            // itself if another uplink could take over.
            let asks_ns = (carriers.count_ones() > 1).then_some(now_ns + BOND_ASK_NS);
            let due_ns = speaks_ns.into_iter().chain(asks_ns).min();
            let left = due_ns.map(|due_ns| due_ns.saturating_sub(clock::now_ns()));
            let left = left.map(|ns| Duration::from_nanos(ns).try_into().unwrap_or_default());
            let changes = PollFd::from_borrowed_fd(links.as_fd(), PollFlags::IN);
            let mut fds = [changes, PollFd::new(&*self.bell, PollFlags::IN)];
            let watched = if waits { &mut fds[..1] } else { &mut fds[..] };
            // An interrupted sleep counts as a reason to look.
            let _ = beat::wait(|| poll(watched, left.as_ref()));
            if !waits {
                let _ = rustix::io::read(&*self.bell, &mut [0; 8]);
            }
            let asks = asks_ns.is_some();
            match links.look().and_then(|()| if asks { links.ask() } else { Ok(()) }) {
                Ok(()) => refused = false,
                Err(error) => {
                    if !std::mem::replace(&mut refused, true) {
                        tracing::warn!(bond = %self.name, %error, "carriers cannot be read");
                    }
                    beat::wait(|| std::thread::sleep(Duration::from_nanos(RETRY_NS)));
                }
            }
        }
    }
}

/// A bond. Dropping it ends its thread.
pub(super) struct Bond {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Bond {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Release);
        self.shared.ring();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Bond {
    /// Begins to carry frames by `uplinks`, and by those in `noted` if it has the choice.
    pub(super) fn start(
        config: &UplinkConfig,
        id: PortId,
        port: &Arc<BondPort>,
        uplinks: Vec<Uplink>,
        noted: &[String],
        engine: &Arc<Engine>,
        mut links: Links,
    ) -> Result<Self, SwitchError> {
        let failed = |source| SwitchError::Start(source);
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let bell = Arc::new(bell.map_err(|errno| failed(errno.into()))?);
        let system = links.macs().flatten().next().unwrap_or_default();
        let inbox = |_| Arc::new(Inbox::new(SLOW_PROTOCOLS, Arc::clone(&bell)));
        let is_noted = |it: &Uplink| noted.iter().any(|name| name == it.name.as_str());
        let noted = uplinks.iter().rev().fold(0, |bits, it| bits << 1 | Places::from(is_noted(it)));
        let shared = Arc::new(Shared {
            name: config.name.clone(),
            id,
            engine: Arc::downgrade(engine),
            port: Arc::clone(port),
            inboxes: (0..uplinks.len()).map(inbox).collect(),
            uplinks,
            state: Mutex::new(State { mode: BondMode::ActiveBackup, up: 0, lacp: None, noted }),
            changes: AtomicU64::new(0),
            logs: Logs::default(),
            ends: AtomicBool::new(false),
            bell,
            system,
        });
        shared.set_mode(config.mode.unwrap_or_default(), config.lacp_rate.unwrap_or_default());
        let of_thread = Arc::clone(&shared);
        let run = move || {
            supervise(NAME, || of_thread.run(&mut links));
        };
        let thread = std::thread::Builder::new().name(NAME.into()).spawn(run).map_err(failed)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Sets a new mode, and a new rate of LACP.
    pub(super) fn set_mode(&self, config: &UplinkConfig) {
        let (mode, rate) = (config.mode.unwrap_or_default(), config.lacp_rate.unwrap_or_default());
        if self.shared.set_mode(mode, rate) {
            self.shared.announce();
        }
        self.shared.ring();
    }

    /// The names of the uplinks that carry frames.
    pub(super) fn carriers(&self) -> Vec<String> {
        let uplinks = self.shown().uplinks.into_iter();
        uplinks.filter(|it| it.carries).map(|it| it.name.to_string()).collect()
    }

    /// The bond as `weir stats` shows it.
    pub(super) fn shown(&self) -> BondStats {
        let Shared { uplinks, port, state, changes, .. } = &*self.shared;
        let (State { mode, up, lacp, .. }, carriers) = (lock(state).clone(), port.carriers());
        let shown = |(place, uplink): (u8, &Uplink)| BondUplinkStats {
            name: uplink.name.clone(),
            has_carrier: has(up, place),
            carries: has(carriers, place),
            partner: lacp.as_ref().and_then(|lacp| lacp.partner(place)?.to_string().parse().ok()),
        };
        BondStats {
            mode,
            uplinks: (0..).zip(uplinks).map(shown).collect(),
            changes: changes.load(Ordering::Relaxed),
        }
    }
}

/// The bond of each uplink that is in one.
pub(super) fn bonded(uplinks: &[UplinkConfig]) -> BTreeMap<PortName, PortName> {
    let of = |bond: &UplinkConfig| {
        let members = bond.members().iter();
        members.map(|name| (name.clone(), bond.name.clone())).collect::<Vec<_>>()
    };
    uplinks.iter().flat_map(of).collect()
}
