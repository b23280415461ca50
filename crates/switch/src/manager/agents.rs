//! The guests' agents: a socket for each virtual machine, and the agent connected to it.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use weir_agent::host::{AgentLink, Event, LinkError, SetError};
use weir_agent::{Applied, Hello, Report, Wish};
use weir_config::SocketPath;
use weir_engine::logs::Logs;
use weir_fabric::PortId;
use weir_foreign::{Foreign, Party};
use weir_limits::DESCRIPTORS_OF_AGENT;
use weir_sandbox::descriptors::{self, Share};
use weir_wire::Mac;

use crate::events;
use crate::explain::{AgentExplanation, AgentState};
use crate::switch::Kept;
use crate::unix_socket::{self, BoundListener};

/// Pause after an error of a virtual machine's agent, before the next agent is accepted (ns).
const REST_NS: u64 = 1_000_000_000;
const NS_PER_SECOND: u128 = 1_000_000_000;

/// Log messages about an agent that its guest can provoke repeatedly.
#[derive(Debug, Clone, Copy)]
enum Said {
    Connected,
    Lost,
    CannotListen,
}

/// The socket of a virtual machine's agent. The machine's interfaces share it, and its file is removed with the last
/// of them.
#[derive(Debug, Clone)]
pub(crate) struct AgentSocket {
    pub(crate) path: SocketPath,
    /// The keeper's copy of the socket. It is dropped before the socket's file is.
    pub(crate) _kept: Option<Arc<Kept>>,
    /// `None` if weir connects to the socket: a Xen guest's device model listens on it.
    pub(crate) bound: Option<Arc<BoundListener>>,
}

/// A virtual machine's agent, and the machine's interfaces.
#[derive(Debug)]
pub(super) struct Agent {
    socket: AgentSocket,
    listener: Option<Arc<Foreign<UnixListener>>>,
    /// The party that is charged for closing descriptors that arrive by the socket.
    party: Party,
    /// The descriptors that came by the socket. Those of the socket and of the connection are in the interface's share.
    share: Share,
    link: Option<AgentLink>,
    /// True if an agent has spoken on this link. Each agent is logged once, however often it greets.
    has_greeted: bool,
    logs: Logs<3>,
    /// No agent is accepted until this time (ns).
    rests_until_ns: u64,
    hello: Option<Hello>,
    error: Option<String>,
    vifs: BTreeMap<PortId, AgentVif>,
}

/// An interface, as its agent knows it.
#[derive(Debug)]
struct AgentVif {
    mac: Mac,
    /// The interval at which the guest is to poll (ns).
    wanted: Option<u64>,
    /// The interval that was last requested.
    asked: Option<u64>,
    /// The interval that the agent has applied.
    applied: Option<u64>,
    report: Option<Report>,
    error: Option<String>,
}

impl AgentVif {
    const fn new(mac: Mac) -> Self {
        Self { mac, wanted: None, asked: None, applied: None, report: None, error: None }
    }

    /// Forgets the agent's state: an agent that connects or disconnects leaves the interface at its original
    /// settings.
    fn forget(&mut self) {
        (self.asked, self.applied, self.report) = (None, None, None);
    }
}

impl Agent {
    /// # Errors
    /// The system's error about the socket.
    pub(super) fn new(socket: AgentSocket) -> io::Result<Self> {
        let listener = match &socket.bound {
            Some(bound) => {
                let listener = Arc::clone(bound.listener());
                listener.set_nonblocking(true)?;
                Some(listener)
            }
            None => None,
        };
        let party = Party::new(socket.path.to_string());
        Ok(Self {
            socket,
            listener,
            party,
            share: Share::new(0),
            link: None,
            has_greeted: false,
            logs: Logs::default(),
            rests_until_ns: 0,
            hello: None,
            error: None,
            vifs: BTreeMap::new(),
        })
    }

    pub(super) const fn path(&self) -> &SocketPath {
        &self.socket.path
    }

    /// Adds an interface of the virtual machine. A link knows its interfaces from the start, so the agent must
    /// reconnect.
    pub(super) fn add_vif(&mut self, id: PortId, mac: Mac) {
        self.vifs.insert(id, AgentVif::new(mac));
        self.hang_up();
    }

    /// Removes an interface of the virtual machine; returns true if others are left.
    pub(super) fn remove_vif(&mut self, id: PortId) -> bool {
        if self.vifs.remove(&id).is_some() {
            self.hang_up();
        }
        !self.vifs.is_empty()
    }

    /// Changes the interface's address.
    pub(super) fn set_mac(&mut self, id: PortId, mac: Mac) {
        if self.vifs.get(&id).is_some_and(|vif| vif.mac != mac) {
            self.add_vif(id, mac);
        }
    }

    /// Ends the link in order: the agent restores the original settings.
    fn hang_up(&mut self) {
        if let Some(link) = self.link.take() {
            link.bye();
        }
        self.gone();
    }

    fn gone(&mut self) {
        self.hello = None;
        self.vifs.values_mut().for_each(AgentVif::forget);
    }

    /// The cost of an interrupt at an interface (ns), as the agent reports it.
    pub(super) fn cost_ns(&self, id: PortId) -> Option<u64> {
        self.vifs.get(&id)?.report?.cost_ns_per_interrupt
    }

    /// The interval (ns) at which the guest polls an interface, as the agent reports it.
    pub(super) fn polls_ns(&self, id: PortId) -> Option<u64> {
        self.vifs.get(&id)?.applied
    }

    /// True if the guest would poll an interface on request, as far as is known.
    pub(super) fn can_poll(&self, id: PortId) -> bool {
        let (Some(vif), Some(hello)) = (self.vifs.get(&id), &self.hello) else { return false };
        let known = hello.interfaces.iter().find(|known| known.mac == vif.mac);
        vif.error.is_none() && known.is_some_and(|known| known.can_defer)
    }

    /// The guest's wish for an interface that its agent knows.
    pub(super) fn wish(&self, id: PortId) -> Wish {
        let (Some(vif), Some(hello)) = (self.vifs.get(&id), &self.hello) else {
            return Wish::default();
        };
        let knows = hello.interfaces.iter().any(|known| known.mac == vif.mac);
        if knows { hello.wish } else { Wish::default() }
    }

    /// Makes the guest poll at this interval (ns), or not at all.
    pub(super) fn want(&mut self, id: PortId, poll_ns: Option<u64>, now_ns: u64) {
        if let Some(vif) = self.vifs.get_mut(&id)
            && vif.wanted != poll_ns
        {
            vif.wanted = poll_ns;
            self.tell(now_ns);
        }
    }

    /// The descriptor to watch, and true if it is to be watched for writing; `None` while no agent is accepted.
    pub(super) fn watched(&self, now_ns: u64) -> Option<(BorrowedFd<'_>, bool)> {
        match &self.link {
            Some(_) if self.rests_until_ns > now_ns => None,
            Some(link) => Some((link.as_fd(), link.wants_write())),
            None => {
                let listener = self.listener.as_ref().filter(|_| self.rests_until_ns <= now_ns);
                listener.map(|listener| (listener.as_fd(), false))
            }
        }
    }

    /// The time by which [`Agent::serve`] must be called (ns).
    pub(super) fn deadline_ns(&self, now_ns: u64) -> Option<u64> {
        let rests = Some(self.rests_until_ns).filter(|until_ns| *until_ns > now_ns);
        match &self.link {
            Some(link) => link.deadline_ns().into_iter().chain(rests).min(),
            None => rests.or(self.listener.is_none().then_some(self.rests_until_ns)),
        }
    }

    /// Does the work that is due; `ready` means that the watched descriptor has an event.
    pub(super) fn serve(&mut self, ready: bool, now_ns: u64) {
        // The agent may bring a message with descriptors if most of its earlier ones are closed, and others would not miss
        // as many as a message can have.
        let most = self.party.open() as u64 + DESCRIPTORS_OF_AGENT;
        let owes = self.party.is_full() || self.share.claim(most).is_err();
        if ready && self.link.is_some() && owes {
            self.rests_until_ns = now_ns.saturating_add(REST_NS);
            return;
        }
        let comes = ready || self.listener.is_none();
        if self.link.is_none() && comes && self.rests_until_ns <= now_ns {
            self.meet(now_ns);
        } else if let Err(error) = self.serve_link(ready, now_ns) {
            self.drop_link(&error, now_ns);
        }
        self.share.hold(self.party.open() as u64);
    }

    fn meet(&mut self, now_ns: u64) {
        if self.party.is_full() {
            self.rests_until_ns = now_ns.saturating_add(REST_NS);
            return;
        }
        let stream = match &self.listener {
            Some(listener) => {
                let room = descriptors::room_for_guest();
                let accepted = room.and_then(|()| listener.accept());
                accepted.map(|(stream, _)| Foreign::new(stream, &self.party))
            }
            None => unix_socket::dial(self.path().as_path(), &self.party),
        };
        let stream = stream.and_then(|stream| Ok(descriptors::for_guest(stream)?));
        let macs = self.vifs.values().map(|vif| vif.mac).collect();
        match stream.and_then(|stream| AgentLink::new(stream, macs)) {
            Ok(link) => (self.link, self.has_greeted) = (Some(link), false),
            Err(error) if self.listener.is_some() && error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                // A missing device model is tried again each second, and logged once.
                let known = self.error.replace(error.to_string());
                if known != self.error {
                    let error = error.to_string();
                    self.logs.say(Said::CannotListen as usize, |unsaid| {
                        tracing::warn!(socket = %self.path(), error, unsaid, "cannot listen for an agent");
                    });
                }
                self.rests_until_ns = now_ns.saturating_add(REST_NS);
            }
        }
    }

    fn serve_link(&mut self, ready: bool, now_ns: u64) -> Result<(), LinkError> {
        let Some(link) = &mut self.link else {
            return Ok(());
        };
        if link.wants_write() {
            link.writable()?;
        }
        let mut events = Vec::new();
        if ready {
            events.extend(link.readable(now_ns)?);
        }
        if link.deadline_ns().is_some_and(|deadline_ns| deadline_ns <= now_ns) {
            events.extend(link.tick(now_ns)?);
        }
        for event in events {
            self.event(event, now_ns);
        }
        Ok(())
    }

    fn event(&mut self, event: Event, now_ns: u64) {
        match event {
            Event::Hello(hello) => {
                if !std::mem::replace(&mut self.has_greeted, true) {
                    // As strings they are quoted, so that a guest's text cannot forge a field of the log line.
                    let (agent, kernel) = (hello.agent.to_string(), hello.kernel.to_string());
                    self.logs.say(Said::Connected as usize, |unsaid| {
                        tracing::info!(socket = %self.path(), agent, kernel, unsaid, "agent connected");
                    });
                    events::tell(events::Event::AgentConnected { socket: self.path().clone() });
                }
                self.gone();
                self.error = None;
                self.hello = Some(hello);
                self.tell(now_ns);
            }
            Event::Gone => {
                tracing::debug!(socket = %self.path(), "agent disconnected");
                self.gone();
            }
            Event::Report(report) => {
                if let Some(vif) = self.vif_mut(report.mac) {
                    vif.report = Some(report);
                }
            }
            Event::Applied(Applied { mac, poll_ns, error }) => {
                if let Some(vif) = self.vif_mut(mac) {
                    // An interval that nobody requested does not count, whatever the guest does.
                    vif.applied = poll_ns.filter(|_| error.is_none() && poll_ns == vif.asked);
                    vif.error = error.map(|error| error.to_string());
                }
            }
        }
    }

    fn vif_mut(&mut self, mac: Mac) -> Option<&mut AgentVif> {
        self.vifs.values_mut().find(|vif| vif.mac == mac)
    }

    /// Asks a connected agent for each interval that is wanted but was not requested.
    fn tell(&mut self, now_ns: u64) {
        let (Some(link), Some(hello)) = (&mut self.link, &self.hello) else {
            return;
        };
        let mut broken = None;
        for vif in self.vifs.values_mut().filter(|vif| vif.wanted != vif.asked) {
            let Some(known) = hello.interfaces.iter().find(|known| known.mac == vif.mac) else {
                continue;
            };
            if !known.can_defer {
                vif.error = Some(format!("{} cannot poll by a timer", known.name));
                continue;
            }
            match link.set(vif.mac, vif.wanted) {
                Ok(()) => (vif.asked, vif.error) = (vif.wanted, None),
                Err(SetError::Link(error)) => broken = Some(error),
                // The agent has just become silent. The interval is requested again after its next hello.
                Err(error) => vif.error = Some(error.to_string()),
            }
        }
        if let Some(error) = broken {
            self.drop_link(&error, now_ns);
        }
    }

    /// Closes the link. The agent notices the end of the connection, and restores the original settings.
    fn drop_link(&mut self, error: &LinkError, now_ns: u64) {
        let error = error.to_string();
        self.logs.say(Said::Lost as usize, |unsaid| {
            tracing::warn!(socket = %self.path(), error, unsaid, "lost the agent");
        });
        self.error = Some(error);
        self.link = None;
        self.rests_until_ns = now_ns.saturating_add(REST_NS);
        self.gone();
    }

    /// The agent's state for an interface.
    pub(super) fn explain(&self, id: PortId) -> Option<AgentExplanation> {
        let vif = self.vifs.get(&id)?;
        let state = match (&self.link, &self.hello) {
            (None, _) => AgentState::Waiting,
            (Some(_), None) => AgentState::Silent,
            (Some(_), Some(hello)) => {
                let knows = hello.interfaces.iter().any(|known| known.mac == vif.mac);
                if knows { AgentState::Connected } else { AgentState::Elsewhere }
            }
        };
        let interrupts = |report: Report| {
            let per_s = u128::from(report.interrupts?) * NS_PER_SECOND;
            u64::try_from(per_s / u128::from(report.interval_ns.max(1))).ok()
        };
        Some(AgentExplanation {
            socket: self.socket.path.clone(),
            state,
            version: self.hello.as_ref().map(|hello| hello.agent.to_string()),
            asked_poll_ns: vif.asked,
            poll_ns: vif.applied,
            interrupts_per_s: vif.report.and_then(interrupts),
            why: None,
            wishes: None,
            error: vif.error.clone().or_else(|| self.error.clone()),
        })
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.hang_up();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use weir_config::SocketMode;
    use weir_limits::{AGENT_COST_NS_MAX, LOG_LINES_MAX};

    use super::*;

    const OURS: Mac = Mac([2, 0, 0, 0, 0, 1]);

    /// The host's half for a guest with one interface.
    fn host(dir: &tempfile::TempDir) -> (Agent, PortId) {
        let path = dir.path().join("a.agent");
        let bound = BoundListener::bind(&path, SocketMode::OWNER).unwrap();
        let path: SocketPath = path.to_str().unwrap().parse().unwrap();
        let socket = AgentSocket { path, _kept: None, bound: Some(Arc::new(bound)) };
        let (mut agent, id) = (Agent::new(socket).unwrap(), PortId::new(1).unwrap());
        agent.add_vif(id, OURS);
        (agent, id)
    }

    /// The guest says these lines, and the host hears them.
    fn says(guest: &mut UnixStream, agent: &mut Agent, lines: &[String]) {
        for line in lines {
            guest.write_all(format!("{line}\n").as_bytes()).unwrap();
        }
        agent.serve(true, 2);
        assert!(agent.link.is_some(), "{:?}", agent.error);
    }

    fn hello(mac: Mac, can_defer: bool, wish: &str) -> String {
        format!(
            "{{\"message\":\"hello\",\"version\":1,\"session\":7,\"agent\":\"9\",\"kernel\":\"9\",\"wish\":{{{wish}}},\"interfaces\":[{{\"mac\":\"{mac}\",\"name\":\"eth0\",\"can_defer\":{can_defer}}}]}}"
        )
    }

    #[test]
    fn what_an_agent_says_counts_for_its_own_interfaces_and_as_far_as_it_was_asked() {
        const OTHER: Mac = Mac([2, 0, 0, 0, 0, 2]);
        let dir = tempfile::tempdir().unwrap();
        let (mut agent, id) = host(&dir);
        let nobodys = PortId::new(2).unwrap();
        let mut guest = UnixStream::connect(agent.path().as_path()).unwrap();
        agent.serve(true, 1);
        let applied = |mac: Mac, poll_ns: u64| {
            format!(
                "{{\"message\":\"applied\",\"mac\":\"{mac}\",\"poll_ns\":{poll_ns},\"error\":null}}"
            )
        };
        let cost = |mac: Mac| {
            format!(
                "{{\"message\":\"report\",\"mac\":\"{mac}\",\"interval_ns\":1000000000,\"interrupts\":null,\"rx_packets\":0,\"cpu_ns\":0,\"cost_ns_per_interrupt\":{}}}",
                u64::MAX
            )
        };
        // Before it greets, an agent counts for nothing.
        says(&mut guest, &mut agent, &[applied(OURS, 10_000), cost(OURS)]);
        assert_eq!(
            (agent.polls_ns(id), agent.cost_ns(id), agent.can_poll(id)),
            (None, None, false)
        );
        // An agent also counts for nothing for an interface that is not its own, or that it does
        // not have.
        let wish = "\"budget_ns\":1,\"weight\":1";
        says(
            &mut guest,
            &mut agent,
            &[hello(OTHER, true, wish), applied(OTHER, 10_000), cost(OTHER)],
        );
        for id in [id, nobodys] {
            assert_eq!(
                (agent.polls_ns(id), agent.cost_ns(id), agent.can_poll(id)),
                (None, None, false)
            );
            assert_eq!(agent.wish(id), Wish::default());
        }
        // A guest that cannot poll is not asked to.
        says(&mut guest, &mut agent, &[hello(OURS, false, wish)]);
        agent.want(id, Some(250_000), 2);
        assert_eq!((agent.can_poll(id), agent.explain(id).unwrap().asked_poll_ns), (false, None));
        assert_eq!(agent.wish(id), Wish { budget_ns: Some(1), weight: Some(1) });
        // Nobody asks, and later somebody asks for something else.
        agent.want(id, None, 2);
        says(&mut guest, &mut agent, &[hello(OURS, true, ""), applied(OURS, 10_000)]);
        assert_eq!(agent.polls_ns(id), None, "nobody asked");
        agent.want(id, Some(250_000), 2);
        says(&mut guest, &mut agent, &[applied(OURS, u64::MAX), cost(OURS)]);
        assert_eq!(agent.polls_ns(id), None, "it was asked for another interval");
        assert_eq!(agent.cost_ns(id), Some(AGENT_COST_NS_MAX));
        says(&mut guest, &mut agent, &[applied(OURS, 250_000)]);
        assert_eq!(agent.polls_ns(id), Some(250_000));
        // All of it ends with the agent.
        drop(guest);
        agent.serve(true, 3);
        assert_eq!((agent.polls_ns(id), agent.cost_ns(id)), (None, None));
        assert_eq!(agent.wish(id), Wish::default());
    }

    #[test]
    fn an_agent_waits_while_others_would_miss_the_descriptors_of_its_next_message() {
        let dir = tempfile::tempdir().unwrap();
        let (mut agent, id) = host(&dir);
        let mut guest = UnixStream::connect(agent.path().as_path()).unwrap();
        agent.serve(true, 1);
        guest.write_all(format!("{}\n", hello(OURS, true, "")).as_bytes()).unwrap();
        agent.share = Share::alone(DESCRIPTORS_OF_AGENT - 1);
        agent.serve(true, 2);
        assert!(!agent.can_poll(id), "it was heard");
        assert!(agent.watched(3).is_none(), "its socket wakes the manager");
        assert_eq!(agent.deadline_ns(3), Some(2 + REST_NS));
        agent.share = Share::alone(DESCRIPTORS_OF_AGENT);
        assert!(agent.watched(2 + REST_NS).is_some());
        agent.serve(true, 2 + REST_NS);
        assert!(agent.can_poll(id));
    }

    #[test]
    fn an_agent_that_comes_and_goes_is_logged_a_few_times() {
        const TIMES: u64 = 20;
        let dir = tempfile::tempdir().unwrap();
        let (mut agent, _) = host(&dir);
        let mut now_ns = 1;
        for _ in 0..TIMES {
            let mut guest = UnixStream::connect(agent.path().as_path()).unwrap();
            guest.write_all(b"no message at all\n").unwrap();
            agent.serve(true, now_ns);
            assert!(agent.link.is_some());
            agent.serve(true, now_ns);
            assert!(agent.link.is_none(), "it is heard on");
            now_ns += 2 * REST_NS;
        }
        assert!(agent.logs.unsaid() >= TIMES - u64::from(LOG_LINES_MAX));
    }
}
