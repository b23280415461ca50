//! Bonds: several uplinks that are one port of the switch. See docs/design/0065-bonds.md.
//!
//! | file | content |
//! |---|---|
//! | `choice.rs` | which uplinks carry frames, and which flows go where; pure |
//! | `port.rs` | the port that sends by its uplinks |

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use weir_config::{BondMode, PortName, UplinkConfig};
use weir_engine::{Engine, beat, clock, lock, supervise};
use weir_evpn::Links;
use weir_fabric::{Claim, PortId};
use weir_limits::BOND_ANNOUNCED_MAX;
use weir_wire::rarp;

use super::{Ports, Switch, SwitchError};
use crate::stats::{BondStats, BondUplinkStats};
use choice::{Places, has};
pub(super) use port::BondPort;

mod choice;
mod port;
#[cfg(test)]
mod tests;

const NAME: &str = "weir-bond";
/// The pause after an error of the kernel (ns).
const RETRY_NS: u64 = 1_000_000_000;

/// An uplink of a bond.
#[derive(Clone, Debug)]
struct Uplink {
    name: PortName,
    id: PortId,
}

/// The uplinks that carry frames, and why.
#[derive(Clone, Copy, Debug)]
struct State {
    mode: BondMode,
    /// The uplinks that have a carrier.
    up: Places,
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
    ends: AtomicBool,
}

impl Shared {
    /// Takes up a change of the mode or of carriers. Returns true if other uplinks carry frames now.
    fn take_up(&self, change: impl FnOnce(&mut State)) -> bool {
        // The lock is held throughout: two changes at a time would mix.
        let mut state = lock(&self.state);
        change(&mut state);
        let before = self.port.carriers();
        let now = choice::carriers(state.mode, state.up, before);
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
        tracing::info!(bond = %self.name, carry, mode = %state.mode, "other uplinks carry frames");
        now & !before != 0
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
        // A guest without a check has as many addresses as it likes, and takes no place of a checked one.
        here.sort_by_key(|it| it.claim == Claim::Dynamic);
        for entry in here.iter().filter(|it| it.port != self.id).take(BOND_ANNOUNCED_MAX) {
            engine.send_out_of(self.id, entry.vid, &rarp(entry.mac));
        }
    }

    /// Runs in the bond's thread.
    fn run(&self, links: &mut Links, bell: &OwnedFd) {
        let up = |links: &Links| {
            let bits = (0..).zip(links.carriers());
            bits.fold(0, |bits, (place, carries): (u32, bool)| {
                bits | Places::from(carries) << place
            })
        };
        let mut refused = false;
        while !self.ends.load(Ordering::Acquire) {
            let carriers = up(links);
            if self.take_up(|state| state.up = carriers) {
                self.announce();
            }
            let mut fds = [
                PollFd::from_borrowed_fd(links.as_fd(), PollFlags::IN),
                PollFd::new(bell, PollFlags::IN),
            ];
            // An interrupted sleep counts as a reason to look.
            let _ = beat::wait(|| poll(&mut fds, None));
            match links.look() {
                Ok(()) => refused = false,
                Err(error) => {
                    if !std::mem::replace(&mut refused, true) {
                        tracing::warn!(bond = %self.name, %error, "carriers cannot be read");
                    }
                    beat::wait(|| std::thread::sleep(std::time::Duration::from_nanos(RETRY_NS)));
                }
            }
        }
    }
}

/// A bond. Dropping it ends its thread.
pub(super) struct Bond {
    shared: Arc<Shared>,
    bell: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Bond {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Release);
        // A full counter means that the bell rings already.
        let _ = rustix::io::write(&*self.bell, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Bond {
    /// Begins to carry frames by the uplinks of `ports` that the bond names.
    fn start(
        config: &UplinkConfig,
        id: PortId,
        port: &Arc<BondPort>,
        uplinks: Vec<Uplink>,
        engine: &Arc<Engine>,
        mut links: Links,
    ) -> Result<Self, SwitchError> {
        let failed = |source| SwitchError::Start(source);
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let bell = Arc::new(bell.map_err(|errno| failed(errno.into()))?);
        let shared = Arc::new(Shared {
            name: config.name.clone(),
            id,
            engine: Arc::downgrade(engine),
            port: Arc::clone(port),
            uplinks,
            state: Mutex::new(State { mode: config.mode.unwrap_or_default(), up: 0 }),
            changes: AtomicU64::new(0),
            ends: AtomicBool::new(false),
        });
        let (of_thread, rung) = (Arc::clone(&shared), Arc::clone(&bell));
        let run = move || {
            supervise(NAME, || of_thread.run(&mut links, &rung));
        };
        let thread = std::thread::Builder::new().name(NAME.into()).spawn(run).map_err(failed)?;
        Ok(Self { shared, bell, thread: Some(thread) })
    }

    /// Takes up a new mode.
    pub(super) fn set_mode(&self, mode: BondMode) {
        if self.shared.take_up(|state| state.mode = mode) {
            self.shared.announce();
        }
    }

    /// The bond, to be shown.
    pub(super) fn shown(&self) -> BondStats {
        let Shared { uplinks, port, state, changes, .. } = &*self.shared;
        let (State { mode, up }, carriers) = (*lock(state), port.carriers());
        let shown = |(place, uplink): (u8, &Uplink)| BondUplinkStats {
            name: uplink.name.clone(),
            has_carrier: has(up, place),
            carries: has(carriers, place),
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

impl Switch {
    /// Adds a bond of uplinks that are ports already.
    pub(super) fn plug_in_bond(
        &self,
        config: &UplinkConfig,
        links: Links,
    ) -> Result<(), SwitchError> {
        let (uplinks, senders, mtu) = {
            let ports = self.ports();
            let named = || members(&ports, config).into_iter();
            let uplinks: Vec<_> =
                named().map(|it| Uplink { name: it.config.name.clone(), id: it.id }).collect();
            let senders: Vec<_> = named().map(|it| Arc::clone(&it.port)).collect();
            let mtu = named().filter_map(|it| it.config.mtu_held()).map(|mtu| mtu.get()).min();
            (uplinks, senders, mtu)
        };
        let name = config.name.to_string();
        let make = |counters| BondPort::new(name, senders, counters);
        let port = self.plug(config, None, make)?;
        let id = {
            let ports = self.ports();
            ports.uplinks.iter().find(|it| it.config.name == config.name).map(|it| it.id)
        };
        let Some(id) = id else { return Ok(()) };
        self.engine.set_mtu(id, mtu);
        let bond = Bond::start(config, id, &port, uplinks, &self.engine, links)?;
        let mut ports = self.ports();
        if let Some(uplink) = ports.uplinks.iter_mut().find(|it| it.id == id) {
            uplink.bond = Some(bond);
        }
        Ok(())
    }
}

/// The uplinks of a bond, in its order.
fn members<'p>(ports: &'p Ports, bond: &UplinkConfig) -> Vec<&'p super::Uplink> {
    let find = |name: &PortName| ports.uplinks.iter().find(|it| it.config.name == *name);
    bond.members().iter().filter_map(find).collect()
}
