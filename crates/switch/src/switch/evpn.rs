//! A thread between FRR and the switch: it announces this host's stations to FRR, and enters FRR's routes to other
//! hosts into the forwarding table.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use weir_config::Networks;
use weir_engine::{Engine, beat, clock, supervise};
use weir_evpn::{
    Announced, Dirty, EvpnError, FRR_OVER_IPV6, FrrVersion, How, Objects, Owned, Place, Presence,
    Remote, Resync, Table, Watch, tap_name,
};
use weir_fabric::{Claim, Fdb, FdbEntry, Learned, Learner, PortId, Vid};
use weir_limits::{
    EVPN_ADOPT_NS, EVPN_BATCH, EVPN_LOOK_NS, EVPN_PAUSE_NS, EVPN_RESYNC_NS, EVPN_WITHDRAWN_NS,
    FDB_AGE_SECS,
};
use weir_port_tap::{Tap, TapOptions};
use weir_port_vxlan::VxlanPort;
use weir_wire::Mac;

use super::{Keeping, SwitchError};
use crate::helper::{Announcement, FrrDaemon, Hands, OwnerAnnouncement, Teller, connect_to};

mod owners;

pub(super) use owners::ConfiguredOwners;
use owners::{Owners, Shown};

/// Bytes read of zebra's list of connected daemons.
const ANSWER_LEN: usize = 8192;
/// The pause after a kernel error (ns).
const RETRY_NS: u64 = 1_000_000_000;
/// The limit on processor time for walking the forwarding table, as a divisor.
const LOOK_PART: u64 = 20;

/// The devices that FRR watches, and the socket on which FRR's changes are received.
pub struct EvpnDevices {
    /// TAPs by VNI. They are removed once neither weir nor its keeper has them open.
    taps: Vec<(u32, Tap)>,
    watch: Watch,
}

impl EvpnDevices {
    /// The devices of the networks whose members FRR provides; `None` without such networks.
    ///
    /// # Errors
    /// [`SwitchError::Evpn`]
    pub(super) fn open(
        networks: &Networks,
        keeping: &Keeping,
    ) -> Result<Option<Self>, SwitchError> {
        let Some(overlay) = networks.overlay.as_ref().filter(|overlay| overlay.evpn) else {
            return Ok(None);
        };
        let local = overlay.local.get();
        let refused = |source: weir_evpn::EvpnError| SwitchError::Evpn {
            help: source.help(),
            source: source.into(),
        };
        // FRR that starts later is checked when it starts.
        if let Ok(zebra) = connect_to(FrrDaemon::Zebra) {
            fits(&zebra, local).map_err(refused)?;
        }
        let mut objects = Objects::open().map_err(refused)?;
        let (mut taps, mut devices) = (Vec::new(), Vec::new());
        for (number, vni) in networks.by_evpn() {
            let options = TapOptions { name: tap_name(vni), queues: 1, mtu: None, mac: None };
            let left = keeping.evpn_tap(vni).into_iter().collect();
            let tap = Tap::go_on(&options, left)
                .map_err(|error| SwitchError::Evpn { help: error.help(), source: error.into() })?;
            taps.push((vni, tap));
            devices.push((number, objects.make(vni, local).map_err(refused)?));
        }
        let watch = Watch::open(devices).map_err(refused)?;
        Ok(Some(Self { taps, watch }))
    }
}

/// Checks that the daemon's FRR supports hosts with addresses of the family of `local`.
fn fits(daemon: &OwnedFd, local: IpAddr) -> Result<(), EvpnError> {
    if local.is_ipv4() {
        return Ok(());
    }
    match FrrVersion::ask(daemon) {
        Some(has) if has < FRR_OVER_IPV6 => Err(EvpnError::FrrTooOld { has, local }),
        _ => Ok(()),
    }
}

/// Ends the thread's sleep, from any thread.
struct Bell {
    event: OwnedFd,
    /// True if the bell rings already.
    rings: AtomicBool,
    /// True if the thread was already woken because a station announced an IP address.
    said: AtomicBool,
    ends: AtomicBool,
}

impl Bell {
    fn ring(&self) {
        self.wake(&self.rings);
    }

    fn wake(&self, why: &AtomicBool) {
        if !why.swap(true, Ordering::AcqRel) {
            // A full counter means that the bell rings already.
            let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        }
    }

    /// True if the bell has rung. It can ring again after that.
    fn heard(&self) -> bool {
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
        self.rings.swap(false, Ordering::AcqRel)
    }
}

/// The thread. Dropping the value ends the thread, withdraws its announcements from FRR, and removes the devices that
/// FRR watches.
pub(super) struct Evpn {
    bell: Arc<Bell>,
    shown: Arc<Mutex<Arc<Shown>>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Evpn {
    fn drop(&mut self) {
        self.bell.ends.store(true, Ordering::Release);
        self.bell.ring();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Evpn {
    /// Begins the exchange with FRR; `id` and `port` are the overlay's.
    pub(super) fn start(
        devices: EvpnDevices,
        (id, port): (PortId, &Arc<VxlanPort>),
        engine: &Engine,
        networks: &Networks,
        configured: &Arc<ConfiguredOwners>,
        hands: &Hands,
        keeper: &Keeping,
    ) -> Result<Self, SwitchError> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let event = event.map_err(|errno| SwitchError::Start(errno.into()))?;
        // The bell rings from the start, because the forwarding table may already have addresses.
        let (rings, said, ends) =
            (AtomicBool::new(true), AtomicBool::default(), AtomicBool::default());
        let bell = Arc::new(Bell { event, rings, said, ends });
        let fabric = engine.fabric();
        let fdb = Arc::clone(fabric.fdb());
        let rung = Arc::clone(&bell);
        fdb.on_change(move || rung.ring());
        let woken = Arc::clone(&bell);
        port.on_sighting(move || woken.wake(&woken.said));
        let vnis: BTreeMap<_, _> = networks.by_evpn().collect();
        tracing::info!(networks = vnis.len(), "FRR says who is where (EVPN)");
        let teller = hands.teller(vnis.values().copied().collect());
        let learn_max = fabric.port_config(id).map_or(0, |config| config.learn_max);
        let shown = Arc::default();
        let owners = Owners::new(networks, Arc::clone(configured), Arc::clone(&shown));
        let local = networks.overlay.as_ref().map(|overlay| overlay.local.get());
        let mut member = Member {
            watch: devices.watch,
            table: Table::new(learn_max as usize),
            announced: Announced::default(),
            owners,
            fdb,
            port: Arc::clone(port),
            id,
            learn_max,
            vnis,
            teller,
            bell: Arc::clone(&bell),
            local: local.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
            daemons: [None, None],
            presence: Presence::default(),
            resync: Resync::default(),
            asked_ns: 0,
            looked_for_ns: None,
            looked: (0, 0),
            look: true,
            fails: false,
            is_short: false,
            adopts_ns: clock::now_ns() + EVPN_ADOPT_NS,
        };
        let taps = devices.taps;
        let keep = |(vni, tap): &(u32, Tap)| keeper.keep_evpn_tap(*vni, tap.queues().first()?);
        let kept: Vec<_> = taps.iter().filter_map(keep).collect();
        let run = move || {
            supervise("weir-evpn", || member.run());
            // The announcements end with the TAPs.
            drop((kept, taps));
            member.teller.leave();
        };
        let thread = std::thread::Builder::new().name("weir-evpn".into()).spawn(run);
        Ok(Self { bell, shown, thread: Some(thread.map_err(SwitchError::Start)?) })
    }

    /// The thread's state of IP addresses.
    pub(super) fn shown(&self) -> Arc<Shown> {
        Arc::clone(&self.shown.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The thread's state.
struct Member {
    watch: Watch,
    table: Table,
    announced: Announced<Place, How>,
    owners: Owners,
    fdb: Arc<Fdb>,
    port: Arc<VxlanPort>,
    id: PortId,
    /// The greatest number of addresses behind the overlay.
    learn_max: u32,
    /// The VNI of each network, by the network's number.
    vnis: BTreeMap<u16, u32>,
    teller: Teller,
    bell: Arc<Bell>,
    /// This host's address in the underlay.
    local: IpAddr,
    /// A connection to each of FRR's daemons, which ends with the daemon.
    daemons: [Option<OwnedFd>; 2],
    presence: Presence,
    resync: Resync,
    /// The time of the last request to zebra for its list of connected daemons (ns).
    asked_ns: u64,
    /// The time of the last attempt to connect to missing daemons (ns).
    looked_for_ns: Option<u64>,
    /// The time of the last walk of the forwarding table, and its duration (ns).
    looked: (u64, u64),
    /// True if the forwarding table is to be walked again.
    look: bool,
    /// True while the kernel refuses a request; the refusal has been logged.
    fails: bool,
    /// True if the forwarding table had no room for some addresses of other hosts.
    is_short: bool,
    /// The time from which this weir may withdraw the announcements of another weir, because stations that are still
    /// here have sent frames by then (ns).
    adopts_ns: u64,
}

impl Member {
    fn run(&mut self) {
        // The first pass handles the state from before the thread's start.
        let mut wake_ns = Some(0);
        loop {
            self.sleep(wake_ns);
            if self.bell.ends.load(Ordering::Acquire) {
                return;
            }
            self.look |= self.bell.heard();
            if self.bell.said.swap(false, Ordering::AcqRel) {
                self.look |= self.owners.saw(self.port.take_sightings());
            }
            let looks = self.look_for_frr();
            let heard = self.hear();
            let told = self.tell();
            let adopts = self.adopt();
            wake_ns = [looks, heard, told, adopts].into_iter().flatten().min();
            // The pause lets other threads run, however much there is to do.
            beat::wait(|| std::thread::sleep(Duration::from_nanos(EVPN_PAUSE_NS)));
        }
    }

    /// Sleeps until there is something to do, or for this time (ns).
    fn sleep(&self, for_ns: Option<u64>) {
        let timeout = for_ns.and_then(|ns| Duration::from_nanos(ns).try_into().ok());
        let mut fds = vec![
            PollFd::new(&self.bell.event, PollFlags::IN),
            PollFd::from_borrowed_fd(self.watch.as_fd(), PollFlags::IN),
        ];
        let daemons = self.daemons.iter().flatten();
        fds.extend(daemons.map(|daemon| PollFd::new(daemon, PollFlags::RDHUP)));
        // An interrupted sleep counts as a reason to look.
        let _ = beat::wait(|| poll(&mut fds, timeout.as_ref()));
    }

    /// Checks whether FRR runs. If it does not, returns the time (ns) until the next look.
    fn look_for_frr(&mut self) -> Option<u64> {
        let now_ns = clock::now_ns();
        let [zebra_ended, _] = self
            .daemons
            .each_mut()
            .map(|daemon| daemon.take_if(|daemon| has_ended(daemon)).is_some());
        self.resync.saw(zebra_ended, self.daemons[1].is_some());
        let has_all = |member: &Self| member.daemons.iter().all(Option::is_some);
        let before = has_all(self);
        let next_ns = self.looked_for_ns.map_or(0, |at| at + EVPN_LOOK_NS);
        if !before && now_ns >= next_ns {
            self.looked_for_ns = Some(now_ns);
            for (slot, daemon) in self.daemons.iter_mut().zip(FrrDaemon::ALL) {
                if slot.is_none() {
                    *slot = self.teller.connect(daemon);
                    let local = self.local;
                    let fits = || slot.as_ref().map_or(Ok(()), |daemon| fits(daemon, local));
                    let fits = beat::wait(fits);
                    if let Err(error) = fits {
                        tracing::error!(%error, "{}", error.help().unwrap_or_default());
                    }
                }
            }
        }
        let was = self.presence;
        self.presence.saw(has_all(self), now_ns);
        match (was, self.presence) {
            (Presence::Here(_), Presence::Gone(_)) => {
                tracing::warn!("FRR is gone: what it has said serves on for a while");
            }
            (Presence::Gone(_), Presence::Here(_)) => tracing::info!("FRR is back"),
            (Presence::Gone(_), Presence::Unknown) => {
                tracing::warn!("FRR has not come back: what leaves the kernel counts as withdrawn");
            }
            _ => {}
        }
        self.resync(now_ns);
        (!has_all(self) || self.resync.is_wanted()).then_some(EVPN_LOOK_NS)
    }

    /// Makes FRR send all of its state again if zebra was restarted alone, once bgpd has connected
    /// to it.
    fn resync(&mut self, now_ns: u64) {
        let [Some(zebra), _] = &self.daemons else { return };
        if !self.resync.is_wanted() || now_ns < self.asked_ns + EVPN_LOOK_NS {
            return;
        }
        self.asked_ns = now_ns;
        // The answer is to the last question.
        let mut answer = [0; ANSWER_LEN];
        let len = rustix::io::read(zebra, &mut answer).unwrap_or(0);
        let is_due = self.resync.heard(&answer[..len]);
        // If zebra does not read the question, it is asked again later.
        let _ = rustix::io::write(zebra, weir_evpn::QUESTION);
        if is_due {
            tracing::info!("zebra was restarted alone: FRR says anew who is where");
            self.presence.says_anew(now_ns, EVPN_RESYNC_NS);
            if let Err(errno) = self.teller.renew() {
                self.failed(&io::Error::from(errno));
            }
        }
    }

    /// Receives FRR's changes. Returns the time (ns) until the next look, if a look is needed before FRR's next
    /// change.
    fn hear(&mut self) -> Option<u64> {
        let now_ns = clock::now_ns();
        self.table.set_now(now_ns);
        let more = match self.watch.read(EVPN_BATCH, &mut self.table) {
            Ok(more) => more.then_some(0),
            Err(error) => {
                self.failed(&error);
                Some(RETRY_NS)
            }
        };
        let presence = self.presence;
        self.table.expire(|since_ns| presence.is_due(since_ns, now_ns));
        let dirty = self.table.take_dirty();
        self.apply(&dirty, now_ns);
        let stale = self.table.stale_since().map(|_| EVPN_WITHDRAWN_NS);
        let again = self.table.is_dirty().then_some(0);
        [more, stale, again].into_iter().flatten().min()
    }

    fn apply(&mut self, dirty: &Dirty, now_ns: u64) {
        let mut has_room = false;
        for &place in &dirty.places {
            match self.table.remote(place) {
                // Another host has the station.
                Some(_) => self.announced.taken(place, now_ns),
                None => {
                    if let Some(vid) = Vid::of_network(place.0) {
                        has_room |= self.fdb.forget(vid, place.1, self.id);
                    }
                }
            }
        }
        dirty.again.iter().for_each(|place| self.announced.again(*place));
        let before = self.port.networks();
        if !dirty.networks.is_empty() {
            let table = &self.table;
            self.port.change_networks(|networks| {
                for &number in &dirty.networks {
                    networks.set_members(number, &table.members(number), &table.speakers(number));
                }
            });
        }
        let networks = self.port.networks();
        let renumbered = renumbered(&self.table, &dirty.networks, &before, &networks);
        for &place in dirty.places.union(&renumbered) {
            let Some(Remote { host, sticky }) = self.table.remote(place) else { continue };
            let claim = if sticky { Claim::ToldSticky } else { Claim::Told };
            let teller = Learner { port: self.id, claim, learn_max: self.learn_max };
            if let (Some(vid), Some(remote)) =
                (Vid::of_network(place.0), networks.member(place.0, host))
            {
                let told = self.fdb.tell(vid, place.1, teller, remote);
                let is_full = |told| {
                    matches!(told, Learned::PortLimit | Learned::NetworkLimit | Learned::BucketFull)
                };
                self.is_short |= is_full(told);
            }
        }
        if has_room && std::mem::take(&mut self.is_short) {
            self.table.all_changed();
        }
        self.owners.hear(dirty, &self.table, &self.port, now_ns);
        let owned = !dirty.owned.is_empty() || !dirty.owned_here.is_empty();
        self.look |= owned || !dirty.places.is_empty() || !dirty.again.is_empty();
    }

    /// Announces changes of this host's stations to FRR. Returns the time (ns) until the next call, if anything is
    /// left.
    fn tell(&mut self) -> Option<u64> {
        let now_ns = clock::now_ns();
        let (at, took) = self.looked;
        let due_ns = at + took * LOOK_PART;
        if !self.look {
            return self.age_ns();
        }
        if now_ns < due_ns {
            return Some(due_ns - now_ns);
        }
        let here = self.here(now_ns);
        let (changes, has_all) = self.announced.changes(&here, now_ns);
        let (owned, has_all_owned) = self.owners.changes(&here, &self.table, now_ns);
        self.looked = (now_ns, clock::now_ns().saturating_sub(now_ns));
        let is_all = has_all && has_all_owned;
        self.look = !is_all;
        let none = changes.is_empty() && owned.is_empty();
        match self.announce(&changes, &owned) {
            Ok(()) if is_all => self.age_ns(),
            Ok(()) => Some(if none { RETRY_NS } else { 0 }),
            Err(errno) => {
                changes.iter().for_each(|(place, _)| self.announced.untold(*place));
                self.owners.untold(&owned);
                self.look = true;
                self.failed(&io::Error::from(errno));
                Some(RETRY_NS)
            }
        }
    }

    /// Takes over the announcements of another weir, once it is time; returns the time (ns) until then.
    fn adopt(&mut self) -> Option<u64> {
        let left_ns = self.adopts_ns.saturating_sub(clock::now_ns());
        if left_ns > 0 {
            return Some(left_ns);
        }
        let left = self.table.take_left();
        self.look |= !left.is_empty();
        // FRR must learn again whether the address is sticky.
        left.into_iter().for_each(|place| self.announced.adopt(place, How::Plain));
        self.look.then_some(0)
    }

    /// Announces addresses, and the owners of IP addresses, to FRR.
    fn announce(
        &mut self,
        changes: &[(Place, Option<How>)],
        owned: &[(Owned, Option<Mac>)],
    ) -> Result<(), Errno> {
        let vni = |network| self.vnis.get(network).copied();
        let all = changes.iter().filter_map(|((network, mac), how)| {
            let sticky = how.map(|how| how == How::Sticky);
            Some(Announcement { vni: vni(network)?, mac: mac.0, sticky })
        });
        let all: Vec<_> = all.collect();
        let owners = owned.iter().filter_map(|((network, ip), mac)| {
            Some(OwnerAnnouncement { vni: vni(network)?, ip: *ip, mac: mac.map(|mac| mac.0) })
        });
        let owners: Vec<_> = owners.collect();
        if !all.is_empty() {
            self.teller.announce(all)?;
        }
        if !owners.is_empty() {
            self.teller.announce_owners(owners)?;
        }
        if !changes.is_empty() || !owned.is_empty() {
            self.fails = false;
        }
        Ok(())
    }

    /// The time (ns) until the next look for stations that have become silent and so count as removed, or that have
    /// lost an IP address. Without traffic nothing else causes a look.
    fn age_ns(&mut self) -> Option<u64> {
        let age_ns = u64::from(FDB_AGE_SECS) * 1_000_000_000;
        let (looked_ns, _) = self.looked;
        let left_ns = (looked_ns + age_ns).saturating_sub(clock::now_ns());
        let left_ns = self.owners.due_ns().map_or(left_ns, |due_ns| left_ns.min(due_ns));
        self.look |= left_ns == 0;
        (!self.announced.is_empty()).then_some(left_ns)
    }

    /// The addresses of this host's stations.
    fn here(&self, now_ns: u64) -> BTreeMap<Place, How> {
        let entries = self.fdb.entries(clock::secs(now_ns));
        let here = entries.into_iter().filter_map(|FdbEntry { vid, mac, port, claim, .. }| {
            let number = vid.network().filter(|number| self.vnis.contains_key(number))?;
            let how = match claim {
                Claim::Pinned => How::Sticky,
                _ => How::Plain,
            };
            (port != self.id).then_some(((number, mac), how))
        });
        here.collect()
    }

    fn failed(&mut self, error: &dyn std::error::Error) {
        if !std::mem::replace(&mut self.fails, true) {
            let cause = error.source().map(ToString::to_string);
            tracing::warn!(%error, cause, "FRR cannot be told or heard, which is tried again");
        }
    }
}

/// The addresses behind hosts whose number has changed, in these networks. A host that was refused for want of room had
/// no number: the forwarding table has none of its addresses.
fn renumbered(
    table: &Table,
    changed: &BTreeSet<u16>,
    before: &weir_port_vxlan::Networks,
    now: &weir_port_vxlan::Networks,
) -> BTreeSet<Place> {
    let is_another = |network, host| {
        now.member(network, host).is_some_and(|it| before.member(network, host) != Some(it))
    };
    let hosts = |&network: &u16| table.hosts(network).map(move |host| (network, host));
    let others: BTreeSet<_> = changed
        .iter()
        .flat_map(hosts)
        .filter(|&(network, host)| is_another(network, host))
        .collect();
    match others.is_empty() {
        true => BTreeSet::new(),
        false => table.places(|network, host| others.contains(&(network, host))).collect(),
    }
}

/// True if the other end has closed the socket.
fn has_ended(socket: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(socket, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests {
    use weir_evpn::Noted;
    use weir_limits::OVERLAY_PEERS_MAX;
    use weir_port_vxlan::NetworkSpec;

    use super::*;

    #[test]
    fn hosts_beyond_those_that_a_network_has_room_for_are_known_once_there_is_room() {
        let hosts = 0..2 * OVERLAY_PEERS_MAX as u16 + 100;
        let ip = |host: u16| IpAddr::from([10, 0, (host >> 8) as u8, host as u8]);
        let mac = |host: u16| Mac([2, 0, 0, 0, (host >> 8) as u8, host as u8]);
        let spec = NetworkSpec {
            number: 0,
            vni: 100,
            peers: Vec::new(),
            floods_per_s: 1000,
            neigh_suppress: false,
        };
        let mut networks = weir_port_vxlan::Networks::new(&[spec], 4789, None);
        let mut table = Table::new(10_000);
        // The number that the forwarding table has for each address.
        let mut told = BTreeMap::new();
        let mut apply = |table: &mut Table| {
            let (dirty, before) = (table.take_dirty(), networks.clone());
            for number in &dirty.networks {
                networks.set_members(*number, &table.members(*number), &table.speakers(*number));
            }
            let renumbered = renumbered(table, &dirty.networks, &before, &networks);
            for place in dirty.places.union(&renumbered) {
                let host = table.remote(*place).map(|remote| remote.host);
                match host.and_then(|host| networks.member(0, host)) {
                    Some(number) => told.insert(place.1, number),
                    None => told.remove(&place.1),
                };
            }
            let known = hosts.clone().filter(|&host| {
                let number = networks.member(0, ip(host));
                assert_eq!(told.get(&mac(host)).copied(), number, "host {host}");
                number.is_some()
            });
            known.count()
        };
        for host in hosts.clone() {
            let (network, mac) = (0, mac(host));
            table.take(&Noted::Host { network, mac, host: Some(ip(host)) });
            table.take(&Noted::Away { network, mac, sticky: false, is_there: true });
        }
        assert_eq!(apply(&mut table), OVERLAY_PEERS_MAX);
        for gone in [0..200, 200..600] {
            for host in gone.clone() {
                let (network, mac) = (0, mac(host));
                table.take(&Noted::Away { network, mac, sticky: false, is_there: false });
            }
            table.expire(|_| true);
            let left = hosts.clone().filter(|host| *host >= gone.end).count();
            assert_eq!(apply(&mut table), left.min(OVERLAY_PEERS_MAX), "{gone:?}");
        }
    }
}
