//! The switch's use of the keeper, which holds state of its interfaces across a restart of weir.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use weir_config::{Config, PortName, UplinkConfig};
use weir_engine::lock;
use weir_fabric::Known;
use weir_foreign::{Foreign, Party};
use weir_keeper::{Keeper, Taken};
use weir_limits::{KEPT_TAKE_UP_NS, QUEUE_PAIRS_MAX};
use weir_port_stream::Keep as KeepLine;
use weir_port_vhost::{Keep, Settled};

use super::SwitchError;
use super::noted::Noted;
use super::settings::Wanted;
use crate::helper::Hands;
use crate::unix_socket::{BoundListener, FileId};

/// The longest time for which sessions that are being resumed may delay the workers.
const TAKE_UP_MAX: Duration = Duration::from_nanos(KEPT_TAKE_UP_NS);

/// Prefix of a listening socket's key, after its interface's name. Device and inode of the socket's file follow.
const LISTENER: &str = "listen.";

/// The key of the switch's own state ([`Noted`]). No interface has such a name.
const NOTED: &str = "SWITCH/state";

/// The owner in the keys of agents' sockets. No interface has such a name.
const AGENTS: &str = "AGENTS";

/// Prefix of the key of a TAP that FRR watches; the network's VNI follows. No interface has such a name.
const EVPN: &str = "EVPN/tap.";

/// The key of the port to the weir below, after the uplink's name.
const AGENT_PORT: &str = "agent_port";

/// Prefix of the key of an uplink's queue, after the uplink's name; the queue's number follows.
const QUEUE: &str = "queue.";

/// Descriptors that the keeper holds. Dropping the value removes them from the keeper.
#[derive(Debug)]
pub(crate) struct Kept {
    keeper: Arc<Keeper>,
    keys: Vec<String>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.keys.iter().for_each(|key| self.keeper.remove(key));
    }
}

/// The switch's connection to the keeper, if one is configured.
#[derive(Default)]
pub struct Keeping {
    keeper: Option<Arc<Keeper>>,
    /// Descriptors of another weir that no port has taken yet.
    taken: Mutex<Taken>,
    noted: OnceLock<Noted>,
    /// The ports whose queues or sessions another weir has left.
    left: OnceLock<BTreeSet<String>>,
    /// Sessions that are being resumed.
    settling: Mutex<Vec<Arc<Settled>>>,
}

impl Keeping {
    /// Takes the descriptors of another weir from the configured keeper, if there is one.
    pub fn take(config: &Config, hands: &Hands) -> Result<Self, SwitchError> {
        let Some(path) = &config.switch.keeper else { return Ok(Self::default()) };
        let taken = Keeper::take(hands.dial_keeper(path, &config.switch.control));
        let (keeper, taken) = taken.map_err(|error| match error.kind() {
            io::ErrorKind::ResourceBusy => SwitchError::Busy(error),
            _ => SwitchError::Silent(error),
        })?;
        let left = left_in(&taken).into();
        let (keeper, taken) = (Some(Arc::new(keeper)), Mutex::new(taken));
        Ok(Self { keeper, taken, left, ..Self::default() })
    }

    /// As [`take`](Self::take), while the other weir still runs: reads copies of its state, which
    /// belongs to the other weir until it ends.
    pub fn look(config: &Config, hands: &Hands) -> Result<Self, SwitchError> {
        let Some(path) = &config.switch.keeper else { return Err(SwitchError::NoKeeper) };
        let seen = Keeper::look(hands.dial_keeper(path, &config.switch.control));
        let (keeper, seen) = seen.map_err(SwitchError::Look)?;
        for (name, file) in &seen {
            let (vif, what) = name.split_once('/').unwrap_or_default();
            match Keep::version(file).filter(|_| what == Keep::STATE) {
                Some(version) if version > Keep::VERSION => {
                    return Err(SwitchError::Newer {
                        vif: vif.into(),
                        version,
                        known: Keep::VERSION,
                    });
                }
                _ => {}
            }
        }
        if let Some(file) = seen.get(NOTED) {
            let noted = Noted::read(file.try_clone().map_err(SwitchError::Start)?)?;
            let wanted = Wanted::of(config, &noted);
            if let Some(why) = wanted.not_set {
                let port = "groups, templates or the switch".into();
                return Err(SwitchError::Settings { port, why });
            }
            if let Some(held) = wanted.held.into_iter().next() {
                return Err(SwitchError::Settings { port: held.port, why: held.why });
            }
        }
        Ok(Self { keeper: Some(Arc::new(keeper)), taken: Mutex::new(seen), ..Self::default() })
    }

    /// The ports that go on where another weir has left them.
    pub(super) fn left(&self) -> BTreeSet<String> {
        self.left.get().cloned().unwrap_or_default()
    }

    /// Takes the state of the other weir, which has ended.
    pub(super) fn take_over(&self) -> Result<(), SwitchError> {
        let Some(keeper) = &self.keeper else { return Ok(()) };
        let new = keeper.take_over().map_err(SwitchError::Look)?;
        let _ = self.left.set(left_in(&new));
        let seen = std::mem::replace(&mut *lock(&self.taken), new);
        let taken = lock(&self.taken);
        for (name, copy) in seen {
            // The descriptor that was taken under the same name keeps the file open: this close waits for nobody, and
            // needs no closer.
            if taken.contains_key(&name) {
                drop(copy.release());
            }
        }
        Ok(())
    }

    /// Starts to connect to the keeper, if one is configured but not connected.
    pub(super) fn start(&self) -> Result<(), SwitchError> {
        match &self.keeper {
            Some(keeper) => keeper.start().map_err(SwitchError::Start),
            None => Ok(()),
        }
    }

    /// True if another weir has left any state.
    pub(super) fn has_taken(&self) -> bool {
        !lock(&self.taken).is_empty()
    }

    /// Ends the takeover when all interfaces exist. Waits a while for their sessions, so that no frame arrives before
    /// its receiver. State that no interface has taken is removed.
    pub(super) fn end_taking(&self) {
        let end = Instant::now() + TAKE_UP_MAX;
        for settled in lock(&self.settling).drain(..) {
            settled.wait(end.saturating_duration_since(Instant::now()));
        }
        let left = std::mem::take(&mut *lock(&self.taken));
        if let Some(keeper) = &self.keeper {
            left.keys().for_each(|name| keeper.remove(name));
        }
    }

    /// The interface's place at the keeper. The interface works without one.
    pub(super) fn place(&self, name: &PortName) -> Option<Keep> {
        let keeper = self.keeper.as_ref()?;
        let known = self.known(name);
        let mut taken = lock(&self.taken);
        match Keep::new(Arc::clone(keeper), name.as_str(), &mut taken) {
            Ok(keep) => {
                lock(&self.settling).push(keep.settled());
                Some(keep.with_known(known))
            }
            Err(error) => {
                tracing::warn!(vif = %name, %error, "after a SIGKILL of weir this front end has to connect again");
                None
            }
        }
    }

    /// True if another weir has left the interface's socket.
    pub(super) fn has_listener(&self, name: &PortName) -> bool {
        listener_in(&lock(&self.taken), name).is_some()
    }

    /// The socket on which an interface listened under another weir, and the identity of its file.
    pub(super) fn listener(&self, name: &PortName) -> Option<(Foreign<UnixListener>, FileId)> {
        let mut taken = lock(&self.taken);
        let key = listener_in(&taken, name)?;
        let socket = taken.remove(&key)?;
        if let Some(keeper) = &self.keeper {
            keeper.remove(&key);
        }
        Some((socket.map(Into::into), file_of(&key)?))
    }

    /// Gives the keeper the socket on which an interface listens.
    pub(super) fn keep_listener(&self, name: &PortName, bound: &BoundListener) -> Option<Kept> {
        self.keep_listener_of(name.as_str(), bound)
    }

    /// The socket on which another weir listened for an agent; `adopt` decides whether it is the
    /// wanted one.
    pub(super) fn agents(
        &self,
        adopt: impl Fn(Foreign<UnixListener>, FileId) -> Option<BoundListener>,
    ) -> Option<BoundListener> {
        let mut taken = lock(&self.taken);
        let prefix = format!("{AGENTS}/{LISTENER}");
        let all = taken.iter().filter(|(key, _)| key.starts_with(&prefix));
        let copy = |socket: &Foreign<OwnedFd>| {
            Some(Foreign::new(socket.try_clone().ok()?.into(), &Party::new(AGENTS)))
        };
        let (key, bound) = all
            .filter_map(|(key, socket)| Some((key, copy(socket)?, file_of(key)?)))
            .find_map(|(key, socket, file)| Some((key.clone(), adopt(socket, file)?)))?;
        drop(taken.remove(&key).map(Foreign::release));
        Some(bound)
    }

    /// Gives the keeper a socket for an agent.
    pub(super) fn keep_agents(&self, bound: &BoundListener) -> Option<Kept> {
        self.keep_listener_of(AGENTS, bound)
    }

    fn keep_listener_of(&self, owner: &str, bound: &BoundListener) -> Option<Kept> {
        let keeper = Arc::clone(self.keeper.as_ref()?);
        let (device, inode) = bound.file();
        let key = format!("{owner}/{LISTENER}{device}.{inode}");
        keeper.store(&key, Arc::new(bound.listener().try_clone().ok()?.release().into()));
        Some(Kept { keeper, keys: vec![key] })
    }

    /// The queues that an uplink had under another weir, in their order.
    pub(super) fn queues(&self, name: &PortName) -> Vec<OwnedFd> {
        let mut taken = lock(&self.taken);
        let queues = (0..QUEUE_PAIRS_MAX).map(|queue| format!("{name}/{QUEUE}{queue}"));
        queues.map_while(|key| taken.remove(&key).map(Foreign::release)).collect()
    }

    /// Gives the keeper the queues of an uplink, and with them the TAP itself.
    pub(super) fn keep_queues(&self, name: &PortName, queues: &[OwnedFd]) -> Option<Kept> {
        let keeper = Arc::clone(self.keeper.as_ref()?);
        let keys: Vec<_> =
            (0..QUEUE_PAIRS_MAX).map(|queue| format!("{name}/{QUEUE}{queue}")).collect();
        // Copies of these queues are no longer needed.
        keys.iter().for_each(|key| drop(lock(&self.taken).remove(key).map(Foreign::release)));
        for (nth, key) in keys.iter().enumerate() {
            match queues.get(nth).and_then(|queue| queue.as_fd().try_clone_to_owned().ok()) {
                Some(queue) => keeper.store(key, Arc::new(queue)),
                None => keeper.remove(key),
            }
        }
        Some(Kept { keeper, keys })
    }

    /// Gives the keeper the socket of an uplink that is its only queue: the one with which the
    /// returned function was last called.
    pub(super) fn keep_line(&self, name: &PortName) -> (Option<Kept>, KeepLine) {
        let (key, keeper) = (format!("{name}/{QUEUE}0"), self.keeper.clone());
        let keys = vec![key.clone()];
        let kept = keeper.clone().map(|keeper| Kept { keeper, keys });
        let keep = move |socket: Option<&OwnedFd>| {
            let Some(keeper) = &keeper else { return };
            match socket.and_then(|socket| socket.try_clone().ok()) {
                Some(socket) => keeper.store(&key, Arc::new(socket)),
                None => keeper.remove(&key),
            }
        };
        (kept, Box::new(keep))
    }

    /// The TAP of a network by which another weir announced stations to FRR.
    pub(super) fn evpn_tap(&self, vni: u32) -> Option<OwnedFd> {
        lock(&self.taken).remove(&format!("{EVPN}{vni}")).map(Foreign::release)
    }

    /// Gives the keeper the TAP: FRR withdraws the stations behind it as soon as no process has it
    /// open.
    pub(super) fn keep_evpn_tap(&self, vni: u32, tap: &OwnedFd) -> Option<Kept> {
        self.keep_one(format!("{EVPN}{vni}"), tap.as_fd())
    }

    /// The port to the weir below that another weir had open.
    pub(super) fn agent_port(&self, name: &PortName) -> Option<OwnedFd> {
        lock(&self.taken).remove(&format!("{name}/{AGENT_PORT}")).map(Foreign::release)
    }

    /// Gives the keeper the port to the weir below: it opens for one weir at a time.
    pub(super) fn keep_agent_port(&self, name: &PortName, port: &File) -> Option<Kept> {
        self.keep_one(format!("{name}/{AGENT_PORT}"), port.as_fd())
    }

    fn keep_one(&self, key: String, one: BorrowedFd<'_>) -> Option<Kept> {
        let keeper = Arc::clone(self.keeper.as_ref()?);
        // A copy of this descriptor is no longer needed.
        drop(lock(&self.taken).remove(&key).map(Foreign::release));
        keeper.store(&key, Arc::new(one.try_clone_to_owned().ok()?));
        Some(Kept { keeper, keys: vec![key] })
    }

    /// Reads the state of the switch that another weir has noted.
    ///
    /// # Errors
    /// The state cannot be read. It stays with the keeper.
    pub(super) fn read_noted(&self) -> Result<&Noted, SwitchError> {
        let mut taken = lock(&self.taken);
        if let (Some(file), Some(keeper)) = (taken.get(NOTED), &self.keeper) {
            let noted = Noted::read(file.try_clone().map_err(SwitchError::Start)?)?;
            let _ = self.noted.set(noted);
            // The keeper holds the old state until this weir notes its own.
            if let Some(file) = taken.remove(NOTED) {
                keeper.adopt(NOTED, Arc::new(file.release()));
            }
        }
        drop(taken);
        Ok(self.noted())
    }

    /// The uplinks that continue: those of `config`, and those that another weir has noted.
    ///
    /// # Errors
    /// As [`Self::read_noted`].
    pub(super) fn uplinks_of(&self, config: &Config) -> Result<Vec<UplinkConfig>, SwitchError> {
        let copy = lock(&self.taken).get(NOTED).map(|file| file.try_clone());
        let Some(copy) = copy.transpose().map_err(SwitchError::Start)? else {
            return Ok(config.uplinks.clone());
        };
        Ok(Noted::read(copy)?.uplinks_of(config))
    }

    /// The state that was [read](Self::read_noted).
    pub(super) fn noted(&self) -> &Noted {
        self.noted.get_or_init(Noted::default)
    }

    /// Addresses that were learned behind a port.
    pub(super) fn known(&self, name: &PortName) -> Vec<Known> {
        self.noted().known(name.as_str())
    }

    /// Gives the keeper the state for the next weir.
    pub(super) fn keep_noted(&self, file: OwnedFd) {
        if let Some(keeper) = &self.keeper {
            keeper.store(NOTED, Arc::new(file));
        }
    }

    /// True if a keeper is configured.
    pub(super) fn is_configured(&self) -> bool {
        self.keeper.is_some()
    }

    /// True if the keeper is connected.
    pub(super) fn is_there(&self) -> bool {
        self.keeper.as_ref().is_some_and(|keeper| keeper.is_there())
    }

    /// Leaves only the switch's notes to the next weir, as weir ends in order.
    pub(super) fn end(&self) {
        self.keeper.iter().for_each(|keeper| keeper.end(NOTED));
    }

    /// Leaves everything that the keeper holds to the next weir.
    pub(super) fn leave(&self) -> bool {
        self.keeper.as_ref().is_some_and(|keeper| keeper.leave())
    }

    /// Removes an interface's state from the keeper.
    pub(super) fn forget(&self, name: &PortName) {
        if let Some(keeper) = &self.keeper {
            Keep::forget(keeper, name.as_str());
        }
    }
}

/// The key of the socket on which an interface listened: the first in order that begins with its name.
fn listener_in(taken: &Taken, name: &PortName) -> Option<String> {
    let prefix = format!("{name}/{LISTENER}");
    let (key, _) = taken.range(prefix.clone()..).next()?;
    key.starts_with(&prefix).then(|| key.clone())
}

/// The ports that have a queue or a session among these descriptors.
fn left_in(taken: &Taken) -> BTreeSet<String> {
    let keys = taken.keys().filter_map(|key| key.split_once('/'));
    let ports = keys.filter(|(_, what)| *what == Keep::STATE || what.starts_with(QUEUE));
    ports.map(|(port, _)| port.to_owned()).collect()
}

/// The identity of a socket's file, from the socket's key.
fn file_of(key: &str) -> Option<FileId> {
    let (_, id) = key.split_once(LISTENER)?;
    let (device, inode) = id.split_once('.')?;
    Some((device.parse().ok()?, inode.parse().ok()?))
}
