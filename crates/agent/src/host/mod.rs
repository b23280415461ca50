//! weir's side of one agent: the connection of one virtual machine's port.
//!
//! The caller owns the thread and the clock. It watches the link's descriptor, level-triggered, and calls
//! [`AgentLink::readable`], [`AgentLink::writable`] while [`AgentLink::wants_write`], and [`AgentLink::tick`] at
//! [`AgentLink::deadline_ns`] or more often. After an error it drops the link, and should wait a second before the
//! next connection.

mod session;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use weir_foreign::Foreign;
use weir_limits::{AGENT_POLL_NS_MAX, AGENT_POLL_NS_MIN, AGENT_READ_BYTES_MAX};
use weir_wire::Mac;

use crate::channel::{Channel, ChannelError};
use crate::protocol::{GuestMessage, HostMessage, VERSION};
use session::{Due, HostSession};
pub use session::{Event, Violation};

/// Reason why a link is unusable.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The connection ended, or carried an invalid message.
    #[error("agent: {0}")]
    Channel(#[from] ChannelError),
    /// The agent broke the rules.
    #[error("agent: {0}")]
    Violation(#[from] Violation),
}

/// Reason why a setting is not sent. The link continues, except after [`SetError::Link`].
#[derive(Debug, thiserror::Error)]
pub enum SetError {
    /// No agent has said hello.
    #[error("no agent in the guest")]
    NoAgent,
    /// The interface does not belong to this virtual machine.
    #[error("{mac} is not an interface of this virtual machine")]
    NotServed {
        /// The address.
        mac: Mac,
    },
    /// No guest polls at that interval.
    #[error("an interval of {poll_ns} ns is outside {AGENT_POLL_NS_MIN} to {AGENT_POLL_NS_MAX} ns")]
    Range {
        /// The interval (ns).
        poll_ns: u64,
    },
    /// The link is unusable.
    #[error(transparent)]
    Link(#[from] LinkError),
}

/// The connection to one agent.
#[derive(Debug)]
pub struct AgentLink {
    channel: Channel<Foreign<UnixStream>>,
    session: HostSession,
}

impl AgentLink {
    /// Returns a link over an accepted connection to the port of a virtual machine whose interfaces
    /// have the addresses `macs`. Messages about other addresses are ignored.
    ///
    /// # Errors
    /// The stream cannot be made non-blocking.
    pub fn new(stream: impl Into<Foreign<UnixStream>>, macs: Vec<Mac>) -> io::Result<Self> {
        let stream = stream.into();
        stream.set_nonblocking(true)?;
        Ok(Self { channel: Channel::new(stream), session: HostSession::new(macs) })
    }

    /// Reads at most `AGENT_READ_BYTES_MAX`, and answers a hello.
    ///
    /// # Errors
    /// [`LinkError`]; messages before the error are lost with the link.
    pub fn readable(
        &mut self,
        now_ns: u64,
    ) -> Result<impl Iterator<Item = Event> + use<>, LinkError> {
        let mut events = Vec::new();
        let mut read = 0;
        while read < AGENT_READ_BYTES_MAX
            && !self.channel.stream().owes()
            && let Some(len) = self.channel.fill()?
        {
            read += len;
            self.session.count_bytes(len, now_ns)?;
            while let Some(message) = self.channel.next::<GuestMessage>()? {
                let event = self.session.received(message, now_ns)?;
                if let Some(Event::Hello(hello)) = &event {
                    let welcome = HostMessage::Welcome { version: VERSION, session: hello.session };
                    self.channel.send(&welcome)?;
                }
                events.extend(event);
            }
        }
        Ok(events.into_iter())
    }

    /// Returns true if an agent has said hello and was heard lately.
    pub fn has_agent(&self) -> bool {
        self.session.is_open()
    }

    /// Requests that an interface is polled at `poll_ns`, or restored. The answer is an
    /// [`Event::Applied`].
    pub fn set(&mut self, mac: Mac, poll_ns: Option<u64>) -> Result<(), SetError> {
        if !self.session.is_open() {
            return Err(SetError::NoAgent);
        }
        if !self.session.serves(mac) {
            return Err(SetError::NotServed { mac });
        }
        if let Some(poll_ns) = poll_ns
            && !(AGENT_POLL_NS_MIN..=AGENT_POLL_NS_MAX).contains(&poll_ns)
        {
            return Err(SetError::Range { poll_ns });
        }
        let sent = self.channel.send(&HostMessage::Set { mac, poll_ns });
        sent.map_err(|error| SetError::Link(error.into()))
    }

    /// Pings an agent each second. An agent that is silent for three seconds counts as ended.
    pub fn tick(&mut self, now_ns: u64) -> Result<Option<Event>, LinkError> {
        match self.session.due(now_ns) {
            Some(Due::Ping) => {
                self.channel.send(&HostMessage::Ping)?;
                Ok(None)
            }
            Some(Due::Gone) => Ok(Some(Event::Gone)),
            None => Ok(None),
        }
    }

    /// Returns the latest time for the next [`AgentLink::tick`] (ns); `None` while there is no
    /// agent.
    pub fn deadline_ns(&self) -> Option<u64> {
        self.session.deadline_ns()
    }

    /// Returns true if bytes wait for the connection to become writable.
    pub fn wants_write(&self) -> bool {
        self.channel.wants_write()
    }

    /// Sends waiting bytes.
    pub fn writable(&mut self) -> Result<(), LinkError> {
        Ok(self.channel.flush()?)
    }

    /// Notifies the agent that weir wants nothing more. Otherwise the agent notices by silence or the connection's end.
    pub fn bye(mut self) {
        // An agent that does not receive the message restores its settings as well.
        let _ = self.channel.send(&HostMessage::Bye);
    }
}

impl AsFd for AgentLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.stream().as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use proptest::prelude::*;
    use weir_limits::{
        AGENT_COST_NS_MAX, AGENT_EVENTS_PER_S_MAX, AGENT_INTERVAL_NS_MAX, AGENT_LINE_BYTES_MAX,
        AGENT_LINES_PER_S_MAX,
    };

    use super::*;
    use crate::protocol::{Hello, Interface, Report, Text, encode};

    const OURS: Mac = Mac([0x52, 0x54, 0, 0, 0, 1]);
    const FOREIGN: Mac = Mac([0x52, 0x54, 0, 0, 0, 2]);
    const SECOND: u64 = 1_000_000_000;

    fn link() -> (AgentLink, UnixStream) {
        let (host, guest) = UnixStream::pair().unwrap();
        (AgentLink::new(host, vec![OURS]).unwrap(), guest)
    }

    fn tell(guest: &mut UnixStream, message: &GuestMessage) {
        let mut line = Vec::new();
        encode(message, &mut line).unwrap();
        guest.write_all(&line).unwrap();
    }

    fn hear(guest: &mut UnixStream) -> String {
        let mut bytes = vec![0; AGENT_LINE_BYTES_MAX];
        let len = guest.read(&mut bytes).unwrap();
        String::from_utf8(bytes[..len].to_vec()).unwrap()
    }

    fn hello(version: u32, macs: &[Mac]) -> GuestMessage {
        let interface =
            |mac: &Mac| Interface { mac: *mac, name: Text::new("eth0"), can_defer: true };
        GuestMessage::Hello(Hello {
            version,
            session: 77,
            agent: Text::new("0.1.0"),
            kernel: Text::new("6.18.44"),
            wish: crate::Wish::default(),
            interfaces: macs.iter().map(interface).collect(),
        })
    }

    fn report(mac: Mac) -> Report {
        Report {
            mac,
            interval_ns: SECOND,
            interrupts: Some(10),
            rx_packets: 100,
            cpu_ns: 1000,
            cost_ns_per_interrupt: Some(4000),
        }
    }

    fn events(link: &mut AgentLink, now_ns: u64) -> Vec<Event> {
        link.readable(now_ns).unwrap().collect()
    }

    /// Returns a link whose agent has said hello at time 0.
    fn greeted() -> (AgentLink, UnixStream) {
        let (mut link, mut guest) = link();
        tell(&mut guest, &hello(VERSION, &[OURS]));
        assert_eq!(events(&mut link, 0).len(), 1);
        hear(&mut guest);
        (link, guest)
    }

    #[test]
    fn a_hello_is_answered_with_its_number_and_lists_our_interfaces_only() {
        let (mut link, mut guest) = link();
        assert!(!link.has_agent());
        tell(&mut guest, &hello(VERSION, &[FOREIGN, OURS]));
        let [Event::Hello(hello)] = &events(&mut link, 0)[..] else { panic!() };
        assert_eq!(hello.interfaces.iter().map(|known| known.mac).collect::<Vec<_>>(), [OURS]);
        assert_eq!(hear(&mut guest), "{\"message\":\"welcome\",\"version\":1,\"session\":77}\n");
        assert!(link.has_agent());
    }

    #[test]
    fn settings_go_to_our_interfaces_of_a_guest_with_an_agent() {
        let (mut link, _guest) = link();
        assert!(matches!(link.set(OURS, None), Err(SetError::NoAgent)));
        let (mut link, mut guest) = greeted();
        assert!(matches!(link.set(FOREIGN, None), Err(SetError::NotServed { mac: FOREIGN })));
        for poll_ns in [0, AGENT_POLL_NS_MIN - 1, AGENT_POLL_NS_MAX + 1] {
            assert!(matches!(link.set(OURS, Some(poll_ns)), Err(SetError::Range { .. })));
        }
        link.set(OURS, Some(250_000)).unwrap();
        assert_eq!(
            hear(&mut guest),
            "{\"message\":\"set\",\"mac\":\"52:54:00:00:00:01\",\"poll_ns\":250000}\n"
        );
        link.bye();
        assert_eq!(hear(&mut guest), "{\"message\":\"bye\"}\n");
    }

    #[test]
    fn reports_and_answers_about_other_interfaces_are_passed_over() {
        let (mut link, mut guest) = greeted();
        tell(&mut guest, &GuestMessage::Report(report(FOREIGN)));
        tell(&mut guest, &GuestMessage::Report(report(OURS)));
        let applied = |mac| crate::Applied { mac, poll_ns: None, error: None };
        tell(&mut guest, &GuestMessage::Applied(applied(FOREIGN)));
        tell(&mut guest, &GuestMessage::Applied(applied(OURS)));
        assert_eq!(
            events(&mut link, 1),
            [Event::Report(report(OURS)), Event::Applied(applied(OURS))]
        );
    }

    #[test]
    fn an_agent_is_pinged_each_second_while_it_reports() {
        let (mut link, mut guest) = greeted();
        for second in 1..10 {
            tell(&mut guest, &GuestMessage::Report(report(OURS)));
            assert_eq!(events(&mut link, second * SECOND - 1).len(), 1);
            assert_eq!(link.deadline_ns(), Some(second * SECOND));
            assert_eq!(link.tick(second * SECOND - 1).unwrap(), None);
            assert_eq!(link.tick(second * SECOND).unwrap(), None);
            assert_eq!(hear(&mut guest), "{\"message\":\"ping\"}\n");
        }
    }

    #[test]
    fn a_silent_agent_is_gone_once_and_comes_back_with_a_hello() {
        let (mut link, mut guest) = greeted();
        assert_eq!(link.tick(3 * SECOND - 1).unwrap(), None);
        assert_eq!(link.tick(3 * SECOND).unwrap(), Some(Event::Gone));
        assert_eq!((link.tick(9 * SECOND).unwrap(), link.deadline_ns()), (None, None));
        // The agent was only slow: its message belongs to a session that is over.
        tell(&mut guest, &GuestMessage::Report(report(OURS)));
        assert_eq!(events(&mut link, 9 * SECOND), []);
        tell(&mut guest, &hello(VERSION, &[OURS]));
        assert!(matches!(events(&mut link, 10 * SECOND)[..], [Event::Hello(_)]));
    }

    #[test]
    fn an_agent_that_says_bye_is_gone_and_one_that_is_restarted_greets_again() {
        let (mut link, mut guest) = greeted();
        tell(&mut guest, &hello(VERSION, &[OURS]));
        tell(&mut guest, &GuestMessage::Bye);
        assert!(matches!(events(&mut link, 1)[..], [Event::Hello(_), Event::Gone]));
        assert!(!link.has_agent());
    }

    #[test]
    fn another_version_ends_the_link_with_a_reason() {
        let (mut link, mut guest) = link();
        tell(&mut guest, &hello(VERSION + 1, &[OURS]));
        let error = link.readable(0).err().unwrap();
        assert_eq!(
            error.to_string(),
            "agent: the agent speaks version 2 of the protocol, weir version 1: update one of them"
        );
    }

    #[test]
    fn a_flood_ends_the_link_and_the_highest_rate_does_not() {
        let (mut link, mut guest) = greeted();
        let step = SECOND / u64::from(AGENT_LINES_PER_S_MAX);
        for line in 1..10 * u64::from(AGENT_LINES_PER_S_MAX) {
            tell(&mut guest, &GuestMessage::Report(report(OURS)));
            assert_eq!(events(&mut link, line * step).len(), 1);
        }
        for _ in 0..=AGENT_LINES_PER_S_MAX {
            tell(&mut guest, &GuestMessage::Report(report(OURS)));
        }
        let error = loop {
            if let Err(error) = link.readable(20 * SECOND) {
                break error;
            }
        };
        assert!(matches!(error, LinkError::Violation(Violation::Flood)), "{error}");
    }

    #[test]
    fn empty_lines_are_a_flood_too() {
        let (mut link, mut guest) = greeted();
        let error = loop {
            guest.write_all(&[b'\n'; 1000]).unwrap();
            if let Err(error) = link.readable(1) {
                break error;
            }
        };
        assert!(matches!(error, LinkError::Violation(Violation::Flood)), "{error}");
    }

    #[test]
    fn garbage_a_line_without_end_and_the_end_each_have_an_error() {
        let error = |bytes: &[u8]| {
            let (mut link, mut guest) = greeted();
            guest.write_all(bytes).unwrap();
            drop(guest);
            loop {
                if let Err(error) = link.readable(0) {
                    break error;
                }
            }
        };
        assert!(matches!(error(b""), LinkError::Channel(ChannelError::Closed)));
        assert!(matches!(error(b"\xff\xfe\n"), LinkError::Channel(ChannelError::Decode(_))));
        let endless = vec![b' '; 3 * AGENT_LINE_BYTES_MAX];
        assert!(matches!(error(&endless), LinkError::Channel(ChannelError::TooLong(_))));
    }

    #[test]
    fn an_agent_that_never_reads_ends_the_link() {
        let (mut link, _guest) = greeted();
        let error = loop {
            if let Err(error) = link.set(OURS, None) {
                break error;
            }
        };
        assert!(
            matches!(error, SetError::Link(LinkError::Channel(ChannelError::Unread { .. }))),
            "{error}"
        );
    }

    #[test]
    fn a_report_about_no_time_or_too_long_a_time_ends_the_link() {
        for interval_ns in [0, AGENT_INTERVAL_NS_MAX + 1, u64::MAX] {
            let (mut link, mut guest) = greeted();
            tell(&mut guest, &GuestMessage::Report(Report { interval_ns, ..report(OURS) }));
            let error = link.readable(1).err().unwrap();
            assert!(matches!(error, LinkError::Violation(Violation::Interval { .. })), "{error}");
        }
    }

    #[test]
    fn lies_are_brought_into_what_is_possible() {
        let lie = Report {
            interrupts: Some(u64::MAX),
            rx_packets: u64::MAX,
            cpu_ns: u64::MAX,
            cost_ns_per_interrupt: Some(u64::MAX),
            ..report(OURS)
        };
        let believed = session::believable(lie).unwrap();
        assert_eq!(believed.interrupts, Some(AGENT_EVENTS_PER_S_MAX));
        assert_eq!(believed.rx_packets, AGENT_EVENTS_PER_S_MAX);
        assert!(believed.cpu_ns < 10_000 * SECOND);
        assert_eq!(believed.cost_ns_per_interrupt, Some(AGENT_COST_NS_MAX));
        assert_eq!(session::believable(report(OURS)), Ok(report(OURS)));
    }

    proptest! {
        /// Any bytes of a guest, in any pieces, end in events or in an error, and the events concern
        /// our interfaces.
        #[test]
        fn any_bytes_are_survived(
            pieces in prop::collection::vec(
                prop_oneof![
                    prop::collection::vec(any::<u8>(), 0..300),
                    any::<[u64; 5]>().prop_map(|[interval_ns, interrupts, rx_packets, cpu_ns, cost]| {
                        let mut line = Vec::new();
                        let mac = if cost % 2 == 0 { OURS } else { FOREIGN };
                        let report = Report {
                            mac,
                            interval_ns: interval_ns % (2 * AGENT_INTERVAL_NS_MAX),
                            interrupts: Some(interrupts),
                            rx_packets,
                            cpu_ns,
                            cost_ns_per_interrupt: Some(cost),
                        };
                        encode(&GuestMessage::Report(report), &mut line).unwrap();
                        line
                    }),
                ],
                0..20,
            ),
        ) {
            let (mut link, mut guest) = greeted();
            for (time, piece) in pieces.into_iter().enumerate() {
                guest.write_all(&piece).unwrap();
                let Ok(events) = link.readable(time as u64) else { break };
                for event in events {
                    match event {
                        Event::Report(report) => prop_assert_eq!(report.mac, OURS),
                        Event::Hello(_) | Event::Applied(_) | Event::Gone => {}
                    }
                }
            }
        }
    }
}
