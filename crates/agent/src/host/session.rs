//! weir's side of the conversation. Pure: times and messages in, events out.
//!
//! An agent runs in a guest, which may be hostile. Its messages affect only its own virtual
//! machine's interfaces, are clamped to bounds, and are limited in rate.

use weir_limits::{
    AGENT_BYTES_PER_S_MAX, AGENT_COST_NS_MAX, AGENT_COST_NS_MIN, AGENT_CPUS_MAX,
    AGENT_EVENTS_PER_S_MAX, AGENT_INTERVAL_NS_MAX, AGENT_LINES_PER_S_MAX, AGENT_PERIOD_NS,
    AGENT_SILENCE_NS,
};
use weir_wire::Mac;

use crate::protocol::{Applied, GuestMessage, Hello, Report, VERSION};

const NS_PER_SECOND: u64 = 1_000_000_000;

/// An event for the switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// An agent is there, and each interface has its original settings. Only this virtual machine's
    /// interfaces are listed.
    Hello(Hello),
    /// Counts of an interface, each clamped to its possible range.
    Report(Report),
    /// The result of a setting.
    Applied(Applied),
    /// The agent has ended, and each interface is restored. The connection stays: a virtio-serial port lasts as long as
    /// its machine.
    Gone,
}

/// A violation of the protocol. The connection must be closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The agent sends too much.
    #[error(
        "the agent sends more than {AGENT_LINES_PER_S_MAX} lines or {AGENT_BYTES_PER_S_MAX} bytes a second"
    )]
    Flood,
    /// The agent speaks another version of the protocol.
    #[error(
        "the agent speaks version {agent} of the protocol, weir version {VERSION}: update one of them"
    )]
    OtherVersion {
        /// The agent's version.
        agent: u32,
    },
    /// A report's interval is zero or too long.
    #[error("a report covers {interval_ns} ns; at most {AGENT_INTERVAL_NS_MAX} are allowed")]
    Interval {
        /// The interval (ns).
        interval_ns: u64,
    },
}

/// One agent, from weir's side.
#[derive(Debug)]
pub(super) struct HostSession {
    /// The virtual machine's interfaces.
    macs: Vec<Mac>,
    open: Option<Open>,
    lines: Rate,
    bytes: Rate,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    heard_ns: u64,
    ping_at_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    Ping,
    Gone,
}

impl HostSession {
    pub(super) const fn new(macs: Vec<Mac>) -> Self {
        Self {
            macs,
            open: None,
            lines: Rate::at_most(AGENT_LINES_PER_S_MAX),
            bytes: Rate::at_most(AGENT_BYTES_PER_S_MAX),
        }
    }

    pub(super) const fn is_open(&self) -> bool {
        self.open.is_some()
    }

    pub(super) fn serves(&self, mac: Mac) -> bool {
        self.macs.contains(&mac)
    }

    /// Counts received bytes of any kind.
    pub(super) fn count_bytes(&mut self, len: usize, now_ns: u64) -> Result<(), Violation> {
        self.bytes.take(len, now_ns)
    }

    /// Handles a message at `now_ns`. The caller must answer an [`Event::Hello`] with a welcome.
    pub(super) fn received(
        &mut self,
        message: GuestMessage,
        now_ns: u64,
    ) -> Result<Option<Event>, Violation> {
        self.lines.take(1, now_ns)?;
        if let GuestMessage::Hello(mut hello) = message {
            if hello.version != VERSION {
                return Err(Violation::OtherVersion { agent: hello.version });
            }
            hello.interfaces.retain(|interface| self.serves(interface.mac));
            self.open = Some(Open { heard_ns: now_ns, ping_at_ns: now_ns + AGENT_PERIOD_NS });
            return Ok(Some(Event::Hello(hello)));
        }
        // Silence makes an agent that counted as ended greet again.
        let Some(open) = &mut self.open else { return Ok(None) };
        open.heard_ns = now_ns;
        Ok(match message {
            GuestMessage::Hello(_) => None,
            GuestMessage::Report(report) if self.serves(report.mac) => {
                Some(Event::Report(believable(report)?))
            }
            GuestMessage::Applied(applied) if self.serves(applied.mac) => {
                Some(Event::Applied(applied))
            }
            // Other interfaces of the guest are not weir's.
            GuestMessage::Report(_) | GuestMessage::Applied(_) => None,
            GuestMessage::Bye => {
                self.open = None;
                Some(Event::Gone)
            }
        })
    }

    pub(super) fn due(&mut self, now_ns: u64) -> Option<Due> {
        let open = self.open.as_mut()?;
        if open.heard_ns.saturating_add(AGENT_SILENCE_NS) <= now_ns {
            self.open = None;
            return Some(Due::Gone);
        }
        (open.ping_at_ns <= now_ns).then(|| {
            open.ping_at_ns = now_ns + AGENT_PERIOD_NS;
            Due::Ping
        })
    }

    /// Returns the latest time of the next event of [`HostSession::due`]; `None` while there is no
    /// agent.
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        let open = self.open?;
        Some(open.ping_at_ns.min(open.heard_ns.saturating_add(AGENT_SILENCE_NS)))
    }
}

/// A rate limit. After a rest, a second's worth may come at once.
#[derive(Debug)]
struct Rate {
    per_second: u32,
    /// Time by which the items so far would have come at the highest rate (ns).
    until_ns: u64,
}

impl Rate {
    const fn at_most(per_second: u32) -> Self {
        Self { per_second, until_ns: 0 }
    }

    fn take(&mut self, count: usize, now_ns: u64) -> Result<(), Violation> {
        let takes_ns = (count as u64).saturating_mul(NS_PER_SECOND) / u64::from(self.per_second);
        self.until_ns = self.until_ns.max(now_ns).saturating_add(takes_ns);
        if self.until_ns - now_ns <= NS_PER_SECOND { Ok(()) } else { Err(Violation::Flood) }
    }
}

/// Clamps each number of `report` to its possible range: an agent that lies about its costs affects
/// only its own interfaces, no more than an honest one could.
pub(super) fn believable(report: Report) -> Result<Report, Violation> {
    let interval_ns = report.interval_ns;
    if interval_ns == 0 || interval_ns > AGENT_INTERVAL_NS_MAX {
        return Err(Violation::Interval { interval_ns });
    }
    let events_max = interval_ns.div_ceil(NS_PER_SECOND) * AGENT_EVENTS_PER_S_MAX;
    Ok(Report {
        mac: report.mac,
        interval_ns,
        interrupts: report.interrupts.map(|interrupts| interrupts.min(events_max)),
        rx_packets: report.rx_packets.min(events_max),
        cpu_ns: report.cpu_ns.min(interval_ns * AGENT_CPUS_MAX),
        cost_ns_per_interrupt: report
            .cost_ns_per_interrupt
            .map(|cost_ns| cost_ns.clamp(AGENT_COST_NS_MIN, AGENT_COST_NS_MAX)),
    })
}
