//! The ports of the switch, and the calls that change them.

#[cfg(test)]
mod tests;

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use arc_swap::ArcSwap;
use weir_limits::{ANNOUNCED_VLANS_MAX, PORTS_MAX};
use weir_wire::{Mac, Tci};

use crate::DropReason;
use crate::fdb::{Capacity, Claim, Fdb, Learner};
use crate::multicast::Snooping;
use crate::port::{self, FirstMac, MacCheck};
use crate::port::{PortConfig, PortId};
use crate::view::{FrameKey, View};
use crate::vlan::{Vid, VlanMode, VlanSet};

/// A port as the data path sees it.
#[derive(Clone)]
pub(crate) struct Port {
    pub config: PortConfig,
    /// True if the port is up and not blocked. The data path reads this field.
    pub active: bool,
    up: bool,
    blocked: bool,
    /// The first address, shared by all snapshots that contain the port.
    pub first_mac: Arc<FirstMac>,
    pub sought: Arc<Sought>,
}

impl Port {
    fn new(config: PortConfig) -> Self {
        let (active, up, blocked) = (false, false, false);
        let (first_mac, sought) = (Arc::new(FirstMac::new()), Arc::default());
        Self { config, active, up, blocked, first_mac, sought }
    }

    fn standing(self, up: bool, blocked: bool) -> Self {
        Self { active: up && !blocked, up, blocked, ..self }
    }

    /// The reason why a frame may not come in on a port that is not active.
    #[cold]
    pub fn refusal(&self) -> DropReason {
        if self.up { DropReason::Loop } else { DropReason::PortInactive }
    }

    /// The reason why this frame may not come in. If it is a probe, it is noted.
    #[cold]
    pub fn refuse(&self, frame: &FrameKey) -> DropReason {
        if self.blocked
            && let Ok(vid) = self.config.vlan.ingress(frame.tag)
        {
            self.sought.look_at(vid, frame.src);
        }
        self.refusal()
    }

    /// The only address that the port may have, if it is known.
    pub fn only_mac(&self) -> Option<Mac> {
        match self.config.mac_check {
            MacCheck::Off => None,
            MacCheck::Pinned(mac) => Some(mac),
            MacCheck::First => self.first_mac.get(),
        }
    }

    /// The configured address of an active port, the VLANs in which the address is known before its guest sends a
    /// frame, and the number of addresses that the port may have. For a trunk of all VLANs there are no such VLANs: the
    /// address is learned there.
    fn configured(&self) -> Option<(Mac, Vec<Vid>, u32)> {
        let MacCheck::Pinned(mac) = self.config.mac_check else { return None };
        let vids = match &self.config.vlan {
            VlanMode::Access(vid) => vec![*vid],
            VlanMode::Networks => Vec::new(),
            VlanMode::Trunk { native, allowed: VlanSet::All } => native.iter().copied().collect(),
            VlanMode::Trunk { native, allowed: VlanSet::Only(set) } => {
                native.iter().copied().chain(set.iter()).collect()
            }
        };
        self.active.then_some((mac, vids, self.config.learn_max))
    }
}

/// A snapshot of every port. It never changes; the next snapshot replaces it.
#[derive(Clone)]
pub(crate) struct PortTable {
    ports: Box<[Option<Arc<Port>>]>,
    /// The active ports in ascending order, for floods.
    active: Vec<PortId>,
    /// The active ports that are not isolated, for floods from isolated ports.
    open: Vec<PortId>,
}

impl PortTable {
    fn empty() -> Self {
        Self { ports: vec![None; PORTS_MAX].into(), active: Vec::new(), open: Vec::new() }
    }

    pub(crate) fn port(&self, id: PortId) -> Option<&Port> {
        self.ports[id.index()].as_deref()
    }

    pub(crate) fn active_port(&self, id: PortId) -> Option<&Port> {
        self.port(id).filter(|port| port.active)
    }

    pub(crate) fn is_isolated(&self, id: PortId) -> bool {
        self.port(id).is_some_and(|port| port.config.isolated)
    }

    /// The active ports that may receive frames from `ingress`.
    pub(crate) fn heard_by(&self, ingress: PortId) -> &[PortId] {
        if self.is_isolated(ingress) { &self.open } else { &self.active }
    }

    fn set(&mut self, id: PortId, port: Option<Port>) {
        let active = port.as_ref().is_some_and(|port| port.active);
        let open = active && port.as_ref().is_some_and(|port| !port.config.isolated);
        for (list, listed) in [(&mut self.active, active), (&mut self.open, open)] {
            list.retain(|&other| other != id);
            if listed {
                list.push(id);
                list.sort_unstable();
            }
        }
        self.ports[id.index()] = port.map(Arc::new);
    }
}

/// The switch: ports, their VLANs and checks, and the forwarding table.
///
/// Workers call [`Self::view`] once per burst. All other calls are the control path: they exclude each other, copy
/// the port table and flush. A view that has looked at the ports keeps them until its burst ends.
pub struct Fabric {
    table: ArcSwap<PortTable>,
    control: Mutex<Control>,
    fdb: Arc<Fdb>,
    snooping: OnceLock<Arc<Snooping>>,
}

struct Control {
    /// The number at which the search for a free number begins. The search goes round: a removed port's number is not
    /// reused at once, while frames for that port can still be under way.
    next: usize,
}

/// An address that was learned behind a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// The VLAN of the address.
    pub vid: Vid,
    /// The address.
    pub mac: Mac,
    /// The time at which a frame from the address was last received (s).
    pub seen_secs: u32,
}

/// The other ports in a port's VLANs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// The number of other ports that send and receive, and get the port's frames.
    pub active: u32,
    /// The number of other ports without a station.
    pub silent: u32,
    /// The number of other ports that are isolated, as this port is.
    pub isolated: u32,
}

/// The reason why a control call changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortError {
    /// There are `weir_limits::PORTS_MAX` ports.
    #[error("the switch already has {PORTS_MAX} ports, the maximum")]
    TableFull,
    /// No port has this number.
    #[error("the switch has no port {0}")]
    NoSuchPort(PortId),
}

impl Default for Fabric {
    fn default() -> Self {
        Self::new()
    }
}

impl Fabric {
    /// A switch without ports.
    pub fn new() -> Self {
        Self::with_capacity(Capacity::default())
    }

    /// A switch without ports, with a forwarding table of this size.
    pub fn with_capacity(entries: Capacity) -> Self {
        Self {
            table: ArcSwap::from_pointee(PortTable::empty()),
            control: Mutex::new(Control { next: 0 }),
            fdb: Arc::new(Fdb::new(RandomState::new().hash_one(PORTS_MAX), entries)),
            snooping: OnceLock::new(),
        }
    }

    /// Begins multicast snooping, once in the life of the switch and before it has ports.
    pub fn snoop(&self, snooping: Snooping) {
        // A second call changes nothing.
        let _ = self.snooping.set(Arc::new(snooping));
    }

    /// Multicast snooping, if any VLAN has it.
    pub fn snooping(&self) -> Option<&Arc<Snooping>> {
        self.snooping.get()
    }

    /// The ports as they are when the view first needs them, for one burst. Cheap and lock-free.
    #[inline]
    pub fn view(&self) -> View<'_> {
        View::new(&self.fdb, &self.table)
    }

    /// The forwarding table, for [`Fdb::age`] and statistics.
    pub fn fdb(&self) -> &Arc<Fdb> {
        &self.fdb
    }

    /// Adds a port. It forwards nothing before [`Self::set_active`].
    pub fn add_port(&self, config: PortConfig) -> Result<PortId, PortError> {
        let mut control = self.lock();
        let mut table = PortTable::clone(&self.table.load());
        let numbers = (control.next..PORTS_MAX).chain(0..control.next);
        let free = numbers
            .filter_map(|number| PortId::new(u16::try_from(number).ok()?))
            .find(|&id| table.port(id).is_none());
        let id = free.ok_or(PortError::TableFull)?;
        control.next = (id.index() + 1) % PORTS_MAX;
        self.fdb.flush_port(id);
        table.set(id, Some(Port::new(config)));
        self.replace(table);
        Ok(id)
    }

    /// Removes a port and every address behind it.
    pub fn remove_port(&self, id: PortId) -> Result<(), PortError> {
        self.change(id, |_| None)
    }

    /// Changes the settings of a port. The addresses learned behind it are forgotten. If the check changes, the address
    /// that [`MacCheck::First`](crate::MacCheck::First) found is forgotten too.
    pub fn update_port(&self, id: PortId, config: PortConfig) -> Result<(), PortError> {
        self.change(id, |port| {
            let check_changed = port.config.mac_check != config.mac_check;
            let first_mac = match check_changed {
                true => Arc::new(FirstMac::new()),
                false => Arc::clone(&port.first_mac),
            };
            Some(Port { config, first_mac, ..port.clone() })
        })
    }

    /// Sets whether a station sends and receives at the port: an uplink that is up, or a VIF whose
    /// session has started its rings. A change begins a new session: the addresses learned behind
    /// the port are forgotten, and so is the address that
    /// [`MacCheck::First`](crate::MacCheck::First) found.
    ///
    /// A VIF whose rings stop must become inactive at once. Until then, the port keeps its guest's address. If the
    /// guest was migrated away, it now answers from behind the uplink, and the kept address would block it.
    pub fn set_active(&self, id: PortId, active: bool) -> Result<(), PortError> {
        self.change(id, |port| {
            let first_mac = Arc::new(FirstMac::new());
            Some(Port { first_mac, ..port.clone() }.standing(active, port.blocked))
        })
    }

    /// True if a station sends and receives at the port, or would if the port were not [blocked](Self::set_blocked).
    pub fn is_active(&self, id: PortId) -> bool {
        self.table.load().port(id).is_some_and(|port| port.up)
    }

    /// Blocks a port that is part of a loop, or unblocks it. Nothing goes through a blocked port, whatever its session
    /// does; the addresses learned behind it are forgotten.
    ///
    /// # Errors
    /// There is no such port.
    pub fn set_blocked(&self, id: PortId, blocked: bool) -> Result<(), PortError> {
        self.change(id, |port| Some(port.clone().standing(port.up, blocked)))
    }

    /// True if the port is blocked.
    pub fn is_blocked(&self, id: PortId) -> bool {
        self.table.load().port(id).is_some_and(|port| port.blocked)
    }

    /// Makes the port look for a probe: a frame of this VLAN and source address, or with a source address that differs
    /// in the last bit. The port sees probes even where the forwarding table does not learn, because the port is
    /// blocked or has too many addresses. See [`seen`](Self::seen).
    pub fn seek(&self, id: PortId, vid: Vid, mac: Mac) {
        if let Some(port) = self.table.load().port(id) {
            port.sought.seek(vid, mac);
        }
    }

    /// Returns whether the two probes have come in since [`seek`](Self::seek): the one whose
    /// address ends with a 0 bit, and the one whose address ends with a 1 bit.
    pub fn seen(&self, id: PortId) -> [bool; 2] {
        self.table.load().port(id).map_or([false; 2], |port| port.sought.seen())
    }

    /// Forgets the address that [`MacCheck::First`](crate::MacCheck::First) found, and the addresses learned behind the
    /// port; the next source address is pinned.
    pub fn reset_mac_check(&self, id: PortId) -> Result<(), PortError> {
        self.change(id, |port| {
            port.first_mac.reset();
            Some(port.clone())
        })
    }

    /// Learns again the addresses that were known behind an active port, as far as its settings allow now. The ages of
    /// the addresses continue. The address that [`MacCheck::First`](crate::MacCheck::First) had found is pinned again.
    pub fn recall(&self, id: PortId, known: &[Known]) {
        let table = self.table.load();
        let Some(port) = table.active_port(id) else { return };
        for known in known.iter().filter(|known| port.config.vlan.is_member(known.vid)) {
            let claim = match port::check(port.config.mac_check, &port.first_mac, known.mac) {
                Ok(Claim::Dynamic) if port.config.uplink => Claim::Uplink,
                Ok(claim) => claim,
                Err(_) => continue,
            };
            let learner = Learner { port: id, claim, learn_max: port.config.learn_max };
            self.fdb.learn(known.vid, known.mac, learner, known.seen_secs);
        }
    }

    /// The settings of a port; `None` if no port has this number.
    pub fn port_config(&self, id: PortId) -> Option<PortConfig> {
        self.table.load().port(id).map(|port| port.config.clone())
    }

    /// The tags with which a station `mac` behind a port announces its place: that of its VLAN, or those of its trunk.
    /// If a trunk has more than [`ANNOUNCED_VLANS_MAX`] VLANs, only those count in which this switch has seen the
    /// address, behind any port.
    pub fn announcement_tags(&self, id: PortId, mac: Mac, now_secs: u32) -> Vec<Option<Tci>> {
        let Some(PortConfig { vlan, .. }) = self.port_config(id) else { return Vec::new() };
        let (native, allowed) = match vlan {
            VlanMode::Access(_) => return vec![None],
            VlanMode::Networks => return Vec::new(),
            VlanMode::Trunk { native, allowed } => (native, allowed),
        };
        let tagged = || Vid::all().filter(|&vid| allowed.contains(vid) && native != Some(vid));
        let all = tagged().nth(ANNOUNCED_VLANS_MAX).is_none();
        let wanted = tagged().filter(|&vid| all || self.fdb.lookup(vid, mac, now_secs).is_some());
        let tags = wanted.take(ANNOUNCED_VLANS_MAX).map(|vid| Some(Tci::from_bits(vid.get())));
        native.map(|_| None).into_iter().chain(tags).collect()
    }

    /// The ports that a port can reach by its settings.
    pub fn reach(&self, id: PortId) -> Reach {
        let table = self.table.load();
        let Some(port) = table.port(id) else { return Reach::default() };
        let mut reach = Reach::default();
        for (other, number) in table.ports.iter().zip(0..) {
            let Some(other) = other.as_deref().filter(|_| id.get() != number) else { continue };
            if !port.config.vlan.meets(&other.config.vlan) {
                continue;
            }
            let counted = match (port.config.isolated && other.config.isolated, other.active) {
                (true, _) => &mut reach.isolated,
                (false, true) => &mut reach.active,
                (false, false) => &mut reach.silent,
            };
            *counted += 1;
        }
        reach
    }

    /// The address that [`MacCheck::First`](crate::MacCheck::First) has pinned to a port, if any.
    pub fn first_mac(&self, id: PortId) -> Option<Mac> {
        self.table.load().port(id)?.first_mac.get()
    }

    /// Replaces a port, then forgets the addresses behind it.
    ///
    /// In the middle of a burst, a worker may still learn an address behind the old port. Such an entry is harmless. If
    /// the port was removed, frames for the address are flooded. The next change of the port, or the next user of its
    /// number, flushes the entry.
    fn change(
        &self,
        id: PortId,
        change: impl FnOnce(&Port) -> Option<Port>,
    ) -> Result<(), PortError> {
        let _control = self.lock();
        let mut table = PortTable::clone(&self.table.load());
        let port = table.port(id).ok_or(PortError::NoSuchPort(id))?;
        let changed = change(port);
        let known = changed.as_ref().and_then(Port::configured);
        table.set(id, changed);
        self.replace(table);
        self.fdb.flush_port(id);
        if let Some(snooping) = self.snooping() {
            snooping.forget(id);
        }
        if let Some((mac, vids, learner)) = known.map(|(mac, vids, max)| {
            (mac, vids, Learner { port: id, claim: Claim::Pinned, learn_max: max })
        }) {
            for vid in vids {
                // The entry neither ages nor expires: the time of learning does not matter.
                self.fdb.learn(vid, mac, learner, 0);
            }
        }
        Ok(())
    }

    fn replace(&self, table: PortTable) {
        self.table.store(Arc::new(table));
        self.fdb.changed();
    }

    /// Locks the control state. Each single store leaves the state valid, so a lock poisoned by a panic means nothing.
    fn lock(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A port's notes on two probes that differ in the last bit of their source address, one out of each port of a pair.
///
/// Nothing is learned from frames that come in by a blocked port, and a port that has all the addresses it may have
/// learns no more. So a port notes whether a probe comes when nothing is learned.
#[derive(Debug, Default)]
pub(crate) struct Sought {
    /// The VLAN, and the probes' address without its last bit; 0 if no probe is expected.
    key: AtomicU64,
    /// Bit i: the probe whose address ends with bit i has come.
    seen: AtomicU8,
}

impl Sought {
    fn key(vid: Vid, mac: Mac) -> u64 {
        (mac.to_u64() | 1) << 16 | u64::from(vid.get())
    }

    /// Looks for the probe with this address, and for its twin, from now on.
    pub(crate) fn seek(&self, vid: Vid, mac: Mac) {
        self.key.store(0, Ordering::Relaxed);
        self.seen.store(0, Ordering::Relaxed);
        self.key.store(Self::key(vid, mac), Ordering::Release);
    }

    /// Notes a frame with this source address, if it is one of the probes.
    pub(crate) fn look_at(&self, vid: Vid, src: Mac) {
        if self.key.load(Ordering::Acquire) == Self::key(vid, src) {
            self.seen.fetch_or(1 << (src.to_u64() & 1), Ordering::Relaxed);
        }
    }

    /// Returns whether the two probes have come in: the one whose address ends with a 0 bit, and
    /// its twin.
    pub(crate) fn seen(&self) -> [bool; 2] {
        let seen = self.seen.load(Ordering::Relaxed);
        [seen & 1 != 0, seen & 2 != 0]
    }
}
