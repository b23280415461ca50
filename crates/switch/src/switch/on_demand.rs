//! Interfaces on demand: a thread looks into the directories of `[vif-on-demand."PATTERN"]`, adds an interface for each
//! socket on which a monitor listens, and removes it when the socket has gone or its monitor has been away for too long
//! (docs/design/configuration.md#0061).

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use weir_config::{OnDemandConfig, PortName, SocketPath, VifConfig};
use weir_engine::{beat, lock, logs::Logs, supervise};
use weir_foreign::reach::Stamp;
use weir_limits::{
    ON_DEMAND_CREDIT_NS, ON_DEMAND_LOOK_NS, ON_DEMAND_PAUSE_NS_MAX, ON_DEMAND_PAUSE_TIMES,
    ON_DEMAND_REFUSED_SHOWN, ON_DEMAND_SETTLE_NS,
};

use super::Switch;
use crate::control::Response;
use crate::stats::{Limit, OnDemandStats};
use crate::unix_socket::{FileId, Listed};

const NAME: &str = "weir-on-demand";

const LOOK: Duration = Duration::from_nanos(ON_DEMAND_LOOK_NS);
const SETTLE: Duration = Duration::from_nanos(ON_DEMAND_SETTLE_NS);
const PAUSE_MAX: Duration = Duration::from_nanos(ON_DEMAND_PAUSE_NS_MAX);
const CREDIT: Duration = Duration::from_nanos(ON_DEMAND_CREDIT_NS);

/// Bytes of notices that are read at once. They only say that something has changed.
const NOTICES: usize = 4096;

/// Log messages that a monitor can cause again and again.
#[derive(Clone, Copy)]
pub(super) enum Said {
    Added,
    Removed,
    Refused,
    Unreadable,
}

/// The state that the thread shares with the switch.
#[derive(Default)]
struct Shared {
    ends: AtomicBool,
    /// Wakes the thread.
    wake: OnceLock<OwnedFd>,
    shown: Mutex<Vec<OnDemandStats>>,
}

/// The thread, from the first pattern on.
#[derive(Default)]
pub(super) struct OnDemand {
    switch: OnceLock<Weak<Switch>>,
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    logs: Logs<4>,
}

impl OnDemand {
    /// Sets the switch for which a thread may be needed.
    pub(super) fn is_for(&self, switch: &Arc<Switch>) {
        let _ = self.switch.set(Arc::downgrade(switch));
    }

    /// Makes the thread look at once. There is a thread if there are patterns.
    pub(super) fn look(&self, has_patterns: bool) {
        let mut thread = lock(&self.thread);
        if thread.is_some() {
            return self.shared.wake();
        }
        let Some(switch) = self.switch.get().filter(|_| has_patterns) else { return };
        match start(Arc::clone(&self.shared), Weak::clone(switch)) {
            Ok(started) => *thread = Some(started),
            Err(error) => tracing::error!(%error, "no interface comes on demand"),
        }
    }

    /// Ends the thread. It changes nothing any more when this call returns.
    pub(super) fn end(&self) {
        self.shared.ends.store(true, Ordering::SeqCst);
        self.shared.wake();
        let thread = lock(&self.thread).take();
        // The thread itself may hold the last reference to the switch.
        if let Some(thread) = thread.filter(|it| it.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
    }

    pub(super) fn stats(&self) -> Vec<OnDemandStats> {
        lock(&self.shared.shown).clone()
    }

    /// Logs an event that a monitor has caused, within the log's limits.
    pub(super) fn say(&self, kind: Said, say: impl FnOnce(Option<u64>)) {
        self.logs.say(kind as usize, say);
    }
}

impl Shared {
    fn wake(&self) {
        if let Some(wake) = self.wake.get() {
            let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
        }
    }

    /// Waits until it is woken, one of `notices` arrives, or the time is over. Returns true if the
    /// thread is to continue.
    fn wait<'a>(
        &'a self,
        notices: impl Iterator<Item = &'a OwnedFd>,
        at_most: Option<Duration>,
    ) -> bool {
        let Some(wake) = self.wake.get() else { return false };
        let fds = std::iter::once(wake).chain(notices);
        let mut fds: Vec<_> = fds.map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let at_most = at_most.and_then(|time| Timespec::try_from(time).ok());
        // EINTR only means one more look.
        let _ = beat::wait(|| poll(&mut fds, at_most.as_ref()));
        !self.ends.load(Ordering::SeqCst)
    }
}

fn start(shared: Arc<Shared>, switch: Weak<Switch>) -> io::Result<JoinHandle<()>> {
    let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let _ = shared.wake.set(wake);
    let run = move || {
        supervise(NAME, || {
            let mut watcher = Watcher::default();
            while watcher.look(&shared, &switch) {}
        });
    };
    std::thread::Builder::new().name(NAME.into()).spawn(run)
}

/// A directory whose changes the kernel reports.
struct Watch {
    notices: OwnedFd,
    directory: FileId,
}

/// The thread's knowledge of one interface.
struct Known {
    /// The socket that was there when the interface came.
    stamp: Option<Stamp>,
    away_since: Option<Instant>,
}

/// The share of time that scans take: in the long run one part in `1 + ON_DEMAND_PAUSE_TIMES`.
#[derive(Default)]
struct Share {
    /// The pause that is still owed for earlier scans, as of the end of the last scan.
    owed: Duration,
    last: Option<Instant>,
}

impl Share {
    /// The pause after a scan. A few scans in a short time have no pause, so that monitors that start together do not
    /// wait.
    fn pause(&mut self, begun: Instant, ended: Instant) -> Duration {
        let rest = self.last.map_or(Duration::ZERO, |last| begun.saturating_duration_since(last));
        let took = ended.saturating_duration_since(begun);
        let owed = self.owed.saturating_sub(rest) + took * ON_DEMAND_PAUSE_TIMES;
        (self.owed, self.last) = (owed.min(CREDIT + PAUSE_MAX), Some(ended));
        self.owed.saturating_sub(CREDIT)
    }
}

/// The thread's knowledge.
#[derive(Default)]
struct Watcher {
    share: Share,
    watches: BTreeMap<SocketPath, Watch>,
    vifs: BTreeMap<PortName, Known>,
    /// Sockets whose monitors were away for too long. Only another socket in their place counts.
    forgotten: BTreeMap<(SocketPath, PortName), Stamp>,
    /// The last messages about each pattern.
    said: BTreeMap<String, Vec<String>>,
    /// Another change was under way, so this one is tried again soon.
    was_busy: bool,
}

/// A pattern, and what is in its directory.
struct Look<'a> {
    pattern: &'a OnDemandConfig,
    listed: io::Result<Listed>,
    /// The reason why changes are seen late, if they are.
    unwatched: Option<io::Error>,
}

impl Look<'_> {
    fn stamp(&self, name: &PortName) -> Option<Stamp> {
        let listed = self.listed.as_ref().ok()?;
        listed.sockets.get(name).or_else(|| listed.dead.get(name)).copied()
    }

    /// True if the socket is certainly not there.
    fn lacks(&self, name: &PortName) -> bool {
        match &self.listed {
            Ok(listed) => listed.is_whole && self.stamp(name).is_none(),
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }
}

impl Watcher {
    /// Does a look and waits until the next one is due. False if the thread is to end.
    fn look(&mut self, shared: &Shared, switch: &Weak<Switch>) -> bool {
        // A request from now on is for the next look: the eventfd keeps it through all waits.
        shared.wake.get().map(|wake| rustix::io::read(wake, &mut [0; 8]));
        let begun = Instant::now();
        {
            let Some(switch) = switch.upgrade() else { return false };
            let shown = self.turn(&switch);
            *lock(&shared.shown) = shown;
        }
        let pause = self.share.pause(begun, Instant::now());
        if !shared.wait(std::iter::empty(), Some(pause)) {
            return false;
        }
        let idle = self.said.is_empty() && self.vifs.is_empty();
        let next = match (idle, self.was_busy) {
            (true, _) => None,
            (false, true) => Some(SETTLE),
            (false, false) => Some(LOOK),
        };
        let notices = self.watches.values().map(|it| &it.notices);
        if !shared.wait(notices, next) {
            return false;
        }
        // A monitor listens a moment after its socket is there, and several may come at once.
        let goes_on = shared.wait(std::iter::empty(), Some(SETTLE));
        for Watch { notices, .. } in self.watches.values() {
            let room = &mut [0; NOTICES];
            while rustix::io::read(notices, &mut *room).is_ok_and(|read| read > 0) {}
        }
        goes_on
    }

    /// Compares directories with interfaces, and adds and removes interfaces accordingly.
    fn turn(&mut self, switch: &Switch) -> Vec<OnDemandStats> {
        let templates = switch.templates();
        let patterns = &templates.on_demand;
        self.watches.retain(|dir, _| patterns.iter().any(|it| it.keys.directory == *dir));
        self.said.retain(|said, _| patterns.iter().any(|it| it.pattern.as_str() == said));
        self.was_busy = false;
        let looks: Vec<_> = patterns.iter().map(|pattern| self.look_for(switch, pattern)).collect();
        self.remove(switch, &looks);
        looks.iter().map(|look| self.add(switch, look)).collect()
    }

    fn look_for<'a>(&mut self, switch: &Switch, pattern: &'a OnDemandConfig) -> Look<'a> {
        let directory = &pattern.keys.directory;
        let mut unwatched = None;
        // A directory may have been replaced by another one.
        for _ in 0..2 {
            if !self.watches.contains_key(directory) {
                match switch.hands.watch(directory) {
                    Ok((notices, id)) => {
                        let watch = Watch { notices, directory: id };
                        self.watches.insert(directory.clone(), watch);
                    }
                    Err(error) => unwatched = Some(error),
                }
            }
            let listed = switch.hands.sockets_in(directory, &pattern.pattern);
            let is = listed.as_ref().map(|it| it.directory).ok();
            match self.watches.get(directory) {
                Some(watch) if is != Some(watch.directory) => {
                    self.watches.remove(directory);
                }
                _ => return Look { pattern, listed, unwatched },
            }
        }
        let listed = switch.hands.sockets_in(directory, &pattern.pattern);
        Look { pattern, listed, unwatched }
    }

    /// Removes interfaces whose sockets have gone, or whose monitors have been away for too long.
    fn remove(&mut self, switch: &Switch, looks: &[Look<'_>]) {
        let now = Instant::now();
        self.forgotten.retain(|(directory, name), stamp| {
            let mut of = looks.iter().filter(|it| it.pattern.keys.directory == *directory);
            of.any(|it| it.stamp(name) == Some(*stamp))
        });
        let vifs = switch.vifs_on_demand();
        self.vifs.retain(|name, _| vifs.iter().any(|(vif, _)| vif.name == *name));
        for (vif, is_met) in &vifs {
            let look = looks.iter().find(|it| it.pattern.keeps(vif));
            let stamp = look.and_then(|it| it.stamp(&vif.name));
            let known = self.vifs.entry(vif.name.clone());
            let known = known.or_insert(Known { stamp, away_since: None });
            known.stamp = known.stamp.or(stamp);
            known.away_since = (!is_met).then(|| known.away_since.unwrap_or(now));
            let why = match (look, known.away_since) {
                (None, _) => "no pattern keeps it",
                (Some(look), _) if look.lacks(&vif.name) => "its socket has gone",
                (Some(_), Some(_)) if stamp.is_some_and(|it| known.stamp != Some(it)) => {
                    "its socket is another one"
                }
                (Some(look), Some(since)) => {
                    let forget = Duration::from_secs(look.pattern.keys.forget_s.get().into());
                    if now - since < forget {
                        continue;
                    }
                    if let Some(stamp) = stamp {
                        let place = (look.pattern.keys.directory.clone(), vif.name.clone());
                        self.forgotten.insert(place, stamp);
                    }
                    "its monitor is away"
                }
                (Some(_), None) => continue,
            };
            let removed = switch.unless_busy(|it| match it.has_on_demand(vif) {
                true => it.vif_del(&vif.name),
                false => Response::Ok,
            });
            match removed {
                None => self.was_busy = true,
                Some(_) => switch.on_demand.say(Said::Removed, |unsaid| {
                    tracing::info!(vif = %vif.name, why, unsaid, "interface on demand removed");
                }),
            }
        }
    }

    /// Adds interfaces for sockets that have none yet.
    fn add(&mut self, switch: &Switch, look: &Look<'_>) -> OnDemandStats {
        let OnDemandConfig { pattern, keys } = look.pattern;
        let (owner, most) = (pattern.owner(), usize::from(keys.max.get()));
        let of_it = |vifs: &[(VifConfig, bool)]| {
            vifs.iter().filter(|(vif, _)| vif.by.as_ref() == Some(&owner)).count()
        };
        let mut used = of_it(&switch.vifs_on_demand());
        let mut tries = most.saturating_sub(used);
        let mut stats = OnDemandStats { pattern: pattern.to_string(), ..Default::default() };
        let mut refuse = |why: String| {
            stats.refused_total += 1;
            if stats.refused.len() < ON_DEMAND_REFUSED_SHOWN {
                stats.refused.push(why);
            }
        };
        let mut sockets: Vec<_> = look.listed.iter().flat_map(|it| &it.sockets).collect();
        // The newest sockets come first, so that monitors that never answer do not delay new ones.
        sockets.sort_by_key(|(_, (_, changed))| Reverse(*changed));
        for (name, stamp) in sockets {
            let place = (keys.directory.clone(), name.clone());
            if self.forgotten.contains_key(&place) {
                refuse(format!("{name}: its monitor was away for {} s", keys.forget_s));
                continue;
            }
            let templates = switch.templates();
            let Some(vif) = templates.demanded(look.pattern, name) else { continue };
            if switch.has_on_demand(&vif) {
                continue;
            }
            if used >= most {
                refuse(format!("{name}: there are {most} interfaces already (`max`)"));
                continue;
            }
            if tries == 0 {
                refuse(format!("{name}: tried again later"));
                continue;
            }
            let added = switch.unless_busy(|it| {
                match it.templates().on_demand.contains(look.pattern) {
                    true => it.vif_add(vif),
                    // A reload came in between, and causes a new look at everything.
                    false => Response::error("the pattern has changed"),
                }
            });
            match added {
                None => {
                    self.was_busy = true;
                    break;
                }
                Some(Response::Error { message, .. }) => {
                    tries -= 1;
                    refuse(format!("{name}: {message}"));
                }
                Some(_) => {
                    (used, tries) = (used + 1, tries - 1);
                    let known = Known { stamp: Some(*stamp), away_since: None };
                    self.vifs.insert(name.clone(), known);
                    switch.on_demand.say(Said::Added, |unsaid| {
                        tracing::info!(vif = %name, by = %owner, unsaid, "interface on demand added");
                    });
                }
            }
        }
        let dead = look.listed.iter().flat_map(|it| it.dead.keys());
        for name in dead.filter(|name| !self.vifs.contains_key(name)) {
            refuse(format!("{name}: no program has its socket open"));
        }
        if let Ok(listed) = &look.listed {
            stats.refused_total += listed.refused_all as u64;
            let room = ON_DEMAND_REFUSED_SHOWN - stats.refused.len();
            stats.refused.extend(listed.refused.iter().take(room).cloned());
        }
        stats.interfaces = Limit::new(of_it(&switch.vifs_on_demand()), most);
        stats.error = look
            .listed
            .as_ref()
            .err()
            .or(look.unwatched.as_ref())
            .map(|error| format!("{}: {error}", keys.directory));
        self.say(switch, &stats);
        stats
    }

    /// Logs errors and refusals of the last scan that are not in the log yet.
    fn say(&mut self, switch: &Switch, stats: &OnDemandStats) {
        let OnDemandStats { pattern, refused, error, .. } = stats;
        let said = self.said.insert(pattern.clone(), [&refused[..], error.as_slice()].concat());
        let said = said.unwrap_or_default();
        for why in refused.iter().filter(|it| !said.contains(it)) {
            switch.on_demand.say(Said::Refused, |unsaid| {
                tracing::warn!(pattern, why, unsaid, "no interface on demand");
            });
        }
        if let Some(error) = error.as_ref().filter(|it| !said.contains(it)) {
            switch.on_demand.say(Said::Unreadable, |unsaid| {
                tracing::warn!(pattern, error, unsaid, "cannot look for interfaces on demand");
            });
        }
    }
}

impl Switch {
    /// Asks for a check of the directories of patterns.
    pub(super) fn look_on_demand(&self) {
        self.on_demand.look(!self.templates().on_demand.is_empty());
    }

    /// Interfaces that have come on demand, and whether each has a front end.
    fn vifs_on_demand(&self) -> Vec<(VifConfig, bool)> {
        let ports = self.ports();
        let vifs = ports.vifs.iter().filter(|vif| is_on_demand(&vif.config));
        vifs.map(|vif| (VifConfig::clone(&vif.config), vif.port.info().is_met)).collect()
    }

    /// True if the interface exists and belongs to the same pattern.
    fn has_on_demand(&self, vif: &VifConfig) -> bool {
        let is = |it: &VifConfig| it.name == vif.name && it.by == vif.by && it.socket == vif.socket;
        self.ports().vifs.iter().any(|it| is(&it.config))
    }

    /// Refuses an interface of a request that would be taken for one on demand.
    pub(super) fn unlike_on_demand(&self, config: &VifConfig) -> Option<Response> {
        let there = || self.config_of(&config.name).is_some_and(|it| it.by == config.by);
        (is_on_demand(config) && !there()).then(|| {
            let message = "interfaces of this owner come with a monitor's socket".to_owned();
            Response::refused(message, "name another owner (`by`)".to_owned())
        })
    }
}

/// True if the interface has come on demand.
pub(super) fn is_on_demand(vif: &VifConfig) -> bool {
    vif.by.as_ref().is_some_and(|by| by.is_on_demand())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_of_looks_waits_for_none_and_looks_without_end_take_their_part_of_the_time() {
        let took = Duration::from_millis(10);
        let (mut share, start) = (Share::default(), Instant::now());
        let (mut now, mut first_pause) = (start, None);
        for nth in 1..=10_000_u32 {
            let begun = now;
            now += took;
            let pause = share.pause(begun, now);
            if !pause.is_zero() && first_pause.is_none() {
                first_pause = Some(nth);
            }
            now += pause;
            // Looks have paused for the time that they owe, less the credit.
            let least = took * nth * (1 + ON_DEMAND_PAUSE_TIMES);
            assert!(now - start + CREDIT >= least, "{nth}");
        }
        let burst = CREDIT.as_millis() as u32 / (10 * ON_DEMAND_PAUSE_TIMES);
        assert_eq!(first_pause, Some(burst + 1));
        // Time without scans pays for earlier scans, and not for later ones.
        now += 2 * PAUSE_MAX;
        let ended = now + CREDIT / ON_DEMAND_PAUSE_TIMES;
        assert_eq!(share.pause(now, ended), Duration::ZERO);
        assert_eq!(share.pause(ended, ended + took), took * ON_DEMAND_PAUSE_TIMES);
        // A look that takes for ever has the longest pause.
        assert_eq!(share.pause(ended, ended + 9 * PAUSE_MAX), PAUSE_MAX);
    }
}
