//! Events of a switch, for its watchers.
//!
//! The data path reports no events. A [`Watcher`] compares one [`Glance`] with the next while there is a watcher.
//! Events that leave no state, such as a reload, are reported when they occur.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_config::{PortName, SocketPath};
use weir_limits::{BREACHES_TOLD_NS, DROPS_QUIET_NS, EVENTS_TOLD_MAX};

use crate::stats::{PortKind, PortState, StillThread};

/// An event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A port was added.
    PortAdded {
        /// The port's name.
        port: PortName,
        /// The kind: VIF or uplink.
        kind: PortKind,
    },
    /// A port was removed.
    PortRemoved {
        /// The port's name.
        port: PortName,
    },
    /// Packets can flow.
    PortUp {
        /// The port's name.
        port: PortName,
    },
    /// Packets cannot flow any more.
    PortDown {
        /// The port's name.
        port: PortName,
    },
    /// weir ended the port's service.
    PortStopped {
        /// The port's name.
        port: PortName,
        /// The reason.
        reason: String,
    },
    /// A probe has shown that the port is part of a loop, and the port is blocked.
    PortBlocked {
        /// The port's name.
        port: PortName,
        /// The port with which it is joined outside the switch.
        with: PortName,
    },
    /// The loop no longer exists, and the port forwards again.
    PortUnblocked {
        /// The port's name.
        port: PortName,
    },
    /// A guest was notified later than its latency budget allows.
    BudgetBreached {
        /// The port's name.
        port: PortName,
        /// The reason.
        reason: String,
        /// Breaches since the last such event.
        count: u64,
    },
    /// Frames are being dropped for a reason that had caused no drops for some seconds.
    DropsBegan {
        /// The port that counts the drops.
        port: PortName,
        /// The reason.
        reason: String,
        /// Frames dropped since then.
        frames: u64,
    },
    /// The configuration was reloaded.
    Reloaded {
        /// The outcome.
        outcome: ReloadNews,
        /// Tables that were added, removed or changed.
        tables: usize,
    },
    /// The agent in a guest connected.
    AgentConnected {
        /// The socket on which weir listens for the agent.
        socket: SocketPath,
    },
    /// A thread of weir has work but makes no progress.
    ThreadStandsStill {
        /// The thread's name.
        thread: String,
        /// The thread's task.
        does: String,
        /// The port for which it works.
        port: Option<PortName>,
    },
    /// The thread makes progress again.
    ThreadGoesOn {
        /// The thread's name.
        thread: String,
    },
    /// The reader was too slow and has lost events.
    Lost {
        /// Lost events.
        count: u64,
    },
}

/// The outcome of a reload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReloadNews {
    /// Every change that is possible at run time was made.
    Applied,
    /// Nothing was changed.
    Refused,
    /// A step failed, and the steps before it were undone.
    Undone,
}

impl Event {
    /// The name of the event's kind, as in its JSON.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::PortAdded { .. } => "port_added",
            Self::PortRemoved { .. } => "port_removed",
            Self::PortUp { .. } => "port_up",
            Self::PortDown { .. } => "port_down",
            Self::PortStopped { .. } => "port_stopped",
            Self::PortBlocked { .. } => "port_blocked",
            Self::PortUnblocked { .. } => "port_unblocked",
            Self::BudgetBreached { .. } => "budget_breached",
            Self::DropsBegan { .. } => "drops_began",
            Self::Reloaded { .. } => "reloaded",
            Self::AgentConnected { .. } => "agent_connected",
            Self::ThreadStandsStill { .. } => "thread_stands_still",
            Self::ThreadGoesOn { .. } => "thread_goes_on",
            Self::Lost { .. } => "lost",
        }
    }
}

/// The last reported events, and the number of events so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Told {
    count: u64,
    last: VecDeque<Event>,
}

impl Told {
    fn tell(&mut self, event: Event) {
        self.last.push_back(event);
        self.count += 1;
        if self.last.len() > EVENTS_TOLD_MAX {
            self.last.pop_front();
        }
    }

    /// The events after the first `count`. Events that are no longer kept are counted as lost.
    fn after(&self, count: u64) -> Vec<Event> {
        let new = self.count.saturating_sub(count);
        let kept = new.min(self.last.len() as u64);
        let lost = (new > kept).then_some(Event::Lost { count: new - kept });
        let skip = self.last.len().saturating_sub(kept as usize);
        lost.into_iter().chain(self.last.iter().skip(skip).cloned()).collect()
    }
}

static TOLD: Mutex<Told> = Mutex::new(Told { count: 0, last: VecDeque::new() });

/// Reports an event that no glance shows.
pub(crate) fn tell(event: Event) {
    TOLD.lock().unwrap_or_else(PoisonError::into_inner).tell(event);
}

pub(crate) fn told() -> Told {
    TOLD.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// The state of a switch at one moment, as far as events show it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Glance {
    /// The time (ns).
    pub now_ns: u64,
    /// All ports.
    pub ports: BTreeMap<PortName, PortGlance>,
    /// Stalled threads.
    pub still: Vec<StillThread>,
    /// Reported events.
    pub told: Told,
}

/// A port at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PortGlance {
    /// VIF or uplink.
    pub kind: PortKind,
    /// The port's state.
    pub state: PortState,
    /// The reason of the last stop.
    pub stop_reason: Option<String>,
    /// Sessions that began.
    pub opened: u64,
    /// Sessions that weir ended.
    pub failed: u64,
    /// Dropped frames, by reason.
    pub drops: Vec<(&'static str, u64)>,
    /// Breaches of the latency budget, by reason.
    pub breaches: Vec<(&'static str, u64)>,
}

/// Compares glances.
#[derive(Debug)]
pub struct Watcher {
    last: Glance,
    drops: BTreeMap<(PortName, &'static str), Growth>,
    breaches: BTreeMap<(PortName, &'static str), Growth>,
}

/// A counter whose growth is reported.
#[derive(Debug, Clone, Copy, Default)]
struct Growth {
    /// The value at the last report.
    reported: u64,
    /// The value at the last look.
    seen: u64,
    /// The time of the last growth (ns).
    grew_ns: Option<u64>,
    /// The time of the last report (ns).
    reported_ns: Option<u64>,
}

impl Growth {
    /// A counter that starts at `now`.
    fn from(now: u64) -> Self {
        Self { reported: now, seen: now, ..Self::default() }
    }

    /// The growth since the last look, if the counter had not grown for `quiet_ns` before.
    fn begins(&mut self, now: u64, now_ns: u64, quiet_ns: u64) -> Option<u64> {
        if now <= self.seen {
            return None;
        }
        let was_quiet = self.grew_ns.is_none_or(|at| now_ns.saturating_sub(at) >= quiet_ns);
        let grown = now - self.seen;
        (self.seen, self.grew_ns) = (now, Some(now_ns));
        was_quiet.then_some(grown)
    }

    /// The growth since the last report, at most once in `every_ns`.
    fn grown(&mut self, now: u64, now_ns: u64, every_ns: u64) -> Option<u64> {
        let is_due = self.reported_ns.is_none_or(|at| now_ns.saturating_sub(at) >= every_ns);
        if now <= self.reported || !is_due {
            return None;
        }
        let grown = now - self.reported;
        (self.reported, self.reported_ns) = (now, Some(now_ns));
        Some(grown)
    }
}

impl Watcher {
    /// Watches from `first` on.
    #[must_use]
    pub fn new(first: Glance) -> Self {
        let counters = |of: fn(&PortGlance) -> &Vec<(&'static str, u64)>| {
            let ports = first.ports.iter();
            ports
                .flat_map(|(name, port)| of(port).iter().map(|it| (name.clone(), *it)))
                .map(|(name, (reason, count))| ((name, reason), Growth::from(count)))
                .collect()
        };
        let (drops, breaches) = (counters(|port| &port.drops), counters(|port| &port.breaches));
        Self { last: first, drops, breaches }
    }

    /// The events since the last glance.
    pub fn look(&mut self, now: Glance) -> Vec<Event> {
        let mut events = now.told.after(self.last.told.count);
        let gone = self.last.ports.keys().filter(|name| !now.ports.contains_key(*name));
        events.extend(gone.cloned().map(|port| Event::PortRemoved { port }));
        self.drops.retain(|(port, _), _| now.ports.contains_key(port));
        self.breaches.retain(|(port, _), _| now.ports.contains_key(port));
        for (name, port) in &now.ports {
            let before = self.last.ports.get(name);
            states(name, before, port, &mut events);
            self.counters(name, port, now.now_ns, &mut events);
        }
        threads(&self.last.still, &now.still, &mut events);
        self.last = now;
        events
    }

    fn counters(&mut self, name: &PortName, port: &PortGlance, now_ns: u64, to: &mut Vec<Event>) {
        for (reason, count) in &port.drops {
            let growth = self.drops.entry((name.clone(), reason)).or_default();
            if let Some(frames) = growth.begins(*count, now_ns, DROPS_QUIET_NS) {
                let reason = (*reason).into();
                to.push(Event::DropsBegan { port: name.clone(), reason, frames });
            }
        }
        for (reason, count) in &port.breaches {
            let growth = self.breaches.entry((name.clone(), reason)).or_default();
            if let Some(count) = growth.grown(*count, now_ns, BREACHES_TOLD_NS) {
                let reason = (*reason).into();
                to.push(Event::BudgetBreached { port: name.clone(), reason, count });
            }
        }
    }
}

/// The changes of a port's state since `before`.
fn states(name: &PortName, before: Option<&PortGlance>, now: &PortGlance, to: &mut Vec<Event>) {
    let port = || name.clone();
    let none = PortGlance::default();
    if before.is_none() {
        to.push(Event::PortAdded { port: port(), kind: now.kind });
    }
    let before = before.unwrap_or(&none);
    let is_up = |glance: &PortGlance| glance.state == PortState::Running;
    let has_stopped = now.state == PortState::Stopped && before.state != PortState::Stopped;
    let is_another = now.opened != before.opened;
    if is_up(before) && (!is_up(now) || is_another) {
        to.push(Event::PortDown { port: port() });
    }
    if has_stopped || now.failed != before.failed {
        let reason = now.stop_reason.clone().unwrap_or_default();
        to.push(Event::PortStopped { port: port(), reason });
    }
    if is_up(now) && (!is_up(before) || is_another) {
        to.push(Event::PortUp { port: port() });
    }
}

fn threads(before: &[StillThread], now: &[StillThread], to: &mut Vec<Event>) {
    let has = |threads: &[StillThread], name: &str| threads.iter().any(|it| it.name == name);
    for thread in now.iter().filter(|it| !has(before, &it.name)) {
        let StillThread { name, does, port, .. } = thread.clone();
        to.push(Event::ThreadStandsStill { thread: name, does, port });
    }
    for thread in before.iter().filter(|it| !has(now, &it.name)) {
        to.push(Event::ThreadGoesOn { thread: thread.name.clone() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> PortName {
        text.parse().unwrap()
    }

    fn glance(now_ms: u64, ports: impl IntoIterator<Item = (&'static str, PortGlance)>) -> Glance {
        Glance {
            now_ns: now_ms * 1_000_000,
            ports: ports.into_iter().map(|(port, glance)| (name(port), glance)).collect(),
            ..Glance::default()
        }
    }

    fn running(opened: u64) -> PortGlance {
        PortGlance { state: PortState::Running, opened, ..PortGlance::default() }
    }

    #[test]
    fn a_port_that_comes_runs_stops_and_goes_says_so_once_each() {
        let mut watcher = Watcher::new(glance(0, []));
        let port = name("web0");
        let added = Event::PortAdded { port: port.clone(), kind: PortKind::Vif };
        assert_eq!(watcher.look(glance(1, [("web0", PortGlance::default())])), [added]);
        let up = Event::PortUp { port: port.clone() };
        assert_eq!(watcher.look(glance(2, [("web0", running(1))])), std::slice::from_ref(&up));
        assert_eq!(watcher.look(glance(3, [("web0", running(1))])), []);
        // Between two glances the port went down and came up again.
        let down = Event::PortDown { port: port.clone() };
        assert_eq!(watcher.look(glance(4, [("web0", running(2))])), [down.clone(), up]);
        let stopped = PortGlance {
            state: PortState::Stopped,
            stop_reason: Some("a bad ring".into()),
            failed: 1,
            ..running(2)
        };
        let told = Event::PortStopped { port: port.clone(), reason: "a bad ring".into() };
        assert_eq!(watcher.look(glance(5, [("web0", stopped.clone())])), [down, told]);
        assert_eq!(watcher.look(glance(6, [("web0", stopped)])), []);
        assert_eq!(watcher.look(glance(7, [])), [Event::PortRemoved { port }]);
    }

    #[test]
    fn drops_are_told_when_they_begin_and_again_after_they_have_ceased() {
        let dropped = |ms, frames| {
            let drops = vec![("rx_ring_full", frames)];
            glance(ms, [("web0", PortGlance { drops, ..running(1) })])
        };
        let mut watcher = Watcher::new(dropped(0, 5));
        let quiet_ms = DROPS_QUIET_NS / 1_000_000;
        assert_eq!(watcher.look(dropped(1, 5)), []);
        let began = |frames| Event::DropsBegan {
            port: name("web0"),
            reason: "rx_ring_full".into(),
            frames,
        };
        assert_eq!(watcher.look(dropped(2, 8)), [began(3)]);
        assert_eq!(watcher.look(dropped(3, 80)), []);
        assert_eq!(watcher.look(dropped(2 + quiet_ms, 81)), []);
        assert_eq!(watcher.look(dropped(2 + 2 * quiet_ms, 83)), [began(2)]);
    }

    #[test]
    fn breaches_are_told_with_their_number_and_not_more_often_than_once_in_a_while() {
        let breached = |ms, count| {
            let breaches = vec![("no_cpu", count)];
            glance(ms, [("web0", PortGlance { breaches, ..running(1) })])
        };
        let mut watcher = Watcher::new(breached(0, 1));
        let told =
            |count| Event::BudgetBreached { port: name("web0"), reason: "no_cpu".into(), count };
        let pause_ms = BREACHES_TOLD_NS / 1_000_000;
        assert_eq!(watcher.look(breached(1, 3)), [told(2)]);
        assert_eq!(watcher.look(breached(2, 9)), []);
        assert_eq!(watcher.look(breached(1 + pause_ms, 10)), [told(7)]);
    }

    #[test]
    fn threads_that_stand_still_and_go_on_are_told_once() {
        let still = StillThread { name: "weir-worker-0".into(), ..StillThread::default() };
        let with = |still: &[StillThread]| Glance { still: still.to_vec(), ..Glance::default() };
        let mut watcher = Watcher::new(with(&[]));
        let told = watcher.look(with(std::slice::from_ref(&still)));
        assert!(
            matches!(&told[..], [Event::ThreadStandsStill { thread, .. }] if thread == "weir-worker-0")
        );
        assert_eq!(watcher.look(with(&[still])), []);
        assert_eq!(
            watcher.look(with(&[])),
            [Event::ThreadGoesOn { thread: "weir-worker-0".into() }]
        );
    }

    #[test]
    fn what_is_told_too_fast_is_counted() {
        let mut told = Told::default();
        let event = |tables| Event::Reloaded { outcome: ReloadNews::Applied, tables };
        told.tell(event(0));
        let before = told.count;
        assert_eq!(told.after(before), []);
        (0..EVENTS_TOLD_MAX + 3).for_each(|tables| told.tell(event(tables)));
        let after = told.after(before);
        assert_eq!(after[0], Event::Lost { count: 3 });
        assert_eq!(after[1..], (3..EVENTS_TOLD_MAX + 3).map(event).collect::<Vec<_>>());
    }

    #[test]
    fn each_event_is_named_as_its_json_says() {
        let port = name("web0");
        let socket: SocketPath = "/run/weir/agent.sock".parse().unwrap();
        let text = || "x".to_owned();
        let events = [
            Event::PortAdded { port: port.clone(), kind: PortKind::Uplink },
            Event::PortRemoved { port: port.clone() },
            Event::PortUp { port: port.clone() },
            Event::PortDown { port: port.clone() },
            Event::PortStopped { port: port.clone(), reason: text() },
            Event::BudgetBreached { port: port.clone(), reason: text(), count: 1 },
            Event::DropsBegan { port, reason: text(), frames: 1 },
            Event::Reloaded { outcome: ReloadNews::Undone, tables: 1 },
            Event::AgentConnected { socket },
            Event::ThreadStandsStill { thread: text(), does: text(), port: None },
            Event::ThreadGoesOn { thread: text() },
            Event::Lost { count: 1 },
        ];
        for event in events {
            let json = serde_json::to_value(&event).unwrap();
            assert_eq!(json["event"], event.name());
            assert_eq!(serde_json::from_value::<Event>(json).unwrap(), event);
        }
    }
}
