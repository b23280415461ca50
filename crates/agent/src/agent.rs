//! The program: executes the session's actions, on one thread that sleeps in `poll`.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::event::{PollFd, PollFlags, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use weir_limits::AGENT_PERIOD_NS;
use weir_wire::Mac;

use crate::args::Args;
use crate::channel::{Channel, ChannelError};
use crate::deferral::{Deferral, DeferralError};
use crate::guest::{DEFER_HARD_IRQS, FLUSH_TIMEOUT, FileError, Guest, Nic};
use crate::port::{Port, PortError};
use crate::protocol::{Applied, GuestMessage, Hello, HostMessage, Report, Text, VERSION, Wish};
use crate::report::Reporter;
use crate::session::{Action, OtherVersion, Session};
use crate::state::{StateError, StateFile};

/// Reason why the agent ends.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The port to the host is missing.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The state file cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// A setting cannot be restored.
    #[error("cannot restore settings: {0}")]
    Restore(#[source] DeferralError),
    /// A file of the kernel cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// Signals or `poll` failed.
    #[error("system: {0}")]
    System(#[from] io::Error),
}

/// Reason why one connection ended; the agent tries again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Lost {
    #[error(transparent)]
    Channel(#[from] ChannelError),
    #[error(transparent)]
    OtherVersion(#[from] OtherVersion),
}

enum End {
    Signal,
    Lost(Lost),
    Failed(AgentError),
}

impl From<ChannelError> for End {
    fn from(error: ChannelError) -> Self {
        Self::Lost(Lost::Channel(error))
    }
}

impl From<OtherVersion> for End {
    fn from(error: OtherVersion) -> Self {
        Self::Lost(Lost::OtherVersion(error))
    }
}

impl From<AgentError> for End {
    fn from(error: AgentError) -> Self {
        Self::Failed(error)
    }
}

/// Runs until SIGTERM, SIGINT or SIGHUP, and restores every interface.
pub fn run(args: &Args) -> Result<(), AgentError> {
    let signals = signals()?;
    let guest = Guest::new(&args.root);
    let state = StateFile::lock(&args.state)?;
    let deferral = Deferral::recover(guest.clone(), state).map_err(AgentError::Restore)?;
    let mut agent = Agent {
        guest,
        deferral,
        session: Session::new(seed()),
        interfaces: Vec::new(),
        reporter: Reporter::default(),
        wish: args.wish(),
        start: Instant::now(),
    };
    let served = agent.serve(&args.host(), &signals);
    let restored = agent.deferral.restore_all().map_err(AgentError::Restore);
    served.and(restored)
}

/// Returns the nanoseconds since `start`.
pub(crate) fn elapsed_ns(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

struct Agent {
    guest: Guest,
    deferral: Deferral,
    session: Session,
    /// Interfaces of the last hello.
    interfaces: Vec<Nic>,
    reporter: Reporter,
    wish: Wish,
    start: Instant,
}

impl Agent {
    /// Connects repeatedly until a signal.
    fn serve(&mut self, port: &Port, signals: &UnixStream) -> Result<(), AgentError> {
        let mut connected_before = false;
        let mut told = String::new();
        loop {
            let lost = match port.open() {
                Ok(stream) => {
                    connected_before = true;
                    match self.converse(stream, signals) {
                        End::Signal => return Ok(()),
                        End::Failed(error) => return Err(error),
                        End::Lost(lost) => lost.to_string(),
                    }
                }
                // A port that existed may come back.
                Err(error) if connected_before || error.is_of_host() => error.to_string(),
                Err(error) => return Err(error.into()),
            };
            // The loss is logged once, not each second.
            if lost != told {
                log(&format!("{lost}; trying again each second"));
                told = lost;
            }
            if wait(signals, None, AGENT_PERIOD_NS)?.signal {
                return Ok(());
            }
        }
    }

    /// Serves one connection. On return every interface has its original settings, or the end is a
    /// failure.
    fn converse(&mut self, stream: File, signals: &UnixStream) -> End {
        let mut channel = Channel::new(stream);
        channel.end_line();
        self.session.connected(self.now_ns());
        let end = match self.exchange(&mut channel, signals) {
            Ok(never) => match never {},
            Err(end) => end,
        };
        if let Some(action) = self.session.closed()
            && let Err(End::Failed(error)) = self.perform(action, &mut channel)
        {
            return End::Failed(error);
        }
        if matches!(end, End::Signal) {
            // The guest does not need weir to receive it.
            let _ = channel.send(&GuestMessage::Bye);
        }
        end
    }

    fn exchange(
        &mut self,
        channel: &mut Channel<File>,
        signals: &UnixStream,
    ) -> Result<std::convert::Infallible, End> {
        loop {
            while let Some(message) = channel.next::<HostMessage>()? {
                let was_open = self.session.is_open();
                if let Some(action) = self.session.received(message, self.now_ns())? {
                    self.perform(action, channel)?;
                }
                if self.session.is_open() && !was_open {
                    log("weir has answered");
                    self.reporter.restart();
                    self.report(channel)?;
                }
            }
            while let Some(action) = self.session.due(self.now_ns()) {
                self.perform(action, channel)?;
            }
            let deadline_ns = self.session.deadline_ns().unwrap_or_else(|| self.now_ns());
            let timeout_ns = deadline_ns.saturating_sub(self.now_ns());
            let ready = wait(signals, Some(channel), timeout_ns).map_err(AgentError::System)?;
            if ready.signal {
                return Err(End::Signal);
            }
            if ready.readable {
                channel.fill()?;
            }
            channel.flush()?;
        }
    }

    fn perform(&mut self, action: Action, channel: &mut Channel<File>) -> Result<(), End> {
        match action {
            Action::Hello { session } => self.hello(session, channel),
            Action::Report => self.report(channel),
            Action::Apply { mac, poll_ns } => self.apply(mac, poll_ns, channel),
            Action::Restore(reason) => {
                if self.deferral.is_changed() {
                    log(&format!("restoring what was found: {reason}"));
                }
                Ok(self.deferral.restore_all().map_err(AgentError::Restore)?)
            }
        }
    }

    fn hello(&mut self, session: u32, channel: &mut Channel<File>) -> Result<(), End> {
        channel.flush()?;
        if channel.wants_write() {
            // The host is not reading yet, and hellos must not pile up.
            return Ok(());
        }
        self.interfaces = self.guest.interfaces().map_err(AgentError::File)?;
        let hello = Hello {
            version: VERSION,
            session,
            agent: Text::new(env!("CARGO_PKG_VERSION")),
            kernel: self.guest.kernel().map_err(AgentError::File)?,
            wish: self.wish,
            interfaces: self.interfaces.iter().map(|known| known.interface.clone()).collect(),
        };
        Ok(channel.send(&GuestMessage::Hello(hello))?)
    }

    fn report(&mut self, channel: &mut Channel<File>) -> Result<(), End> {
        let interfaces = self.guest.interfaces().map_err(AgentError::File)?;
        if interfaces != self.interfaces {
            let action = self.session.interfaces_changed(self.now_ns());
            return action.map_or(Ok(()), |action| self.perform(action, channel));
        }
        let sample = self.guest.sample(&interfaces, self.now_ns()).map_err(AgentError::File)?;
        for report in self.reporter.next(sample) {
            channel.send(&GuestMessage::Report(report))?;
        }
        Ok(())
    }

    fn apply(
        &mut self,
        mac: Mac,
        poll_ns: Option<u64>,
        channel: &mut Channel<File>,
    ) -> Result<(), End> {
        let error = self.deferral.apply(mac, poll_ns).err().map(|error| error.to_string());
        if let Some(error) = &error {
            log(&format!("not applied to {mac}: {error}"));
        }
        let error = error.as_deref().map(Text::new);
        Ok(channel.send(&GuestMessage::Applied(Applied { mac, poll_ns, error }))?)
    }

    fn now_ns(&self) -> u64 {
        elapsed_ns(self.start)
    }
}

struct Ready {
    signal: bool,
    readable: bool,
}

/// Sleeps until a signal, until the channel is ready, or for `timeout_ns`.
fn wait(
    signals: &UnixStream,
    channel: Option<&Channel<File>>,
    timeout_ns: u64,
) -> io::Result<Ready> {
    let mut fds = vec![PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)];
    if let Some(channel) = channel {
        let mut events = PollFlags::IN;
        events.set(PollFlags::OUT, channel.wants_write());
        fds.push(PollFd::from_borrowed_fd(channel.stream().as_fd(), events));
    }
    let timeout = Duration::from_nanos(timeout_ns).try_into().ok();
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let mut ready = fds.iter().map(|fd| fd.revents().difference(PollFlags::OUT));
    let mut next_ready = || ready.next().is_some_and(|events| !events.is_empty());
    Ok(Ready { signal: next_ready(), readable: next_ready() })
}

/// Returns a socket that becomes readable when the agent should end.
fn signals() -> io::Result<UnixStream> {
    let (readable, written) = UnixStream::pair()?;
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::low_level::pipe::register(signal, written.try_clone()?)?;
    }
    Ok(readable)
}

/// Returns a number that differs between starts of the agent.
pub(crate) fn seed() -> u32 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since_1970.subsec_nanos() ^ std::process::id().rotate_left(16)
}

/// Writes a line to the service's log, which may have no reader any more.
fn log(text: &str) {
    let _ = writeln!(io::stderr(), "weir-agent: {text}");
}

/// Reason why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum OnceError {
    /// A file of the kernel cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// Output failed.
    #[error("output: {0}")]
    Output(#[from] io::Error),
}

/// `weir-agent --once`: counts for a second, and prints a report for humans.
pub fn run_once(args: &Args, out: &mut impl Write) -> Result<(), OnceError> {
    let guest = Guest::new(&args.root);
    let start = Instant::now();
    let interfaces = guest.interfaces()?;
    let mut reporter = Reporter::default();
    reporter.next(guest.sample(&interfaces, elapsed_ns(start))?);
    thread::sleep(Duration::from_nanos(AGENT_PERIOD_NS));
    let reports = reporter.next(guest.sample(&interfaces, elapsed_ns(start))?);

    writeln!(out, "weir-agent {} on Linux {}", env!("CARGO_PKG_VERSION"), guest.kernel()?)?;
    if interfaces.is_empty() {
        writeln!(out, "no interfaces of virtio-net or xen-netfront")?;
    }
    for interface in &interfaces {
        print_interface(interface, out)?;
        match reports.iter().find(|report| report.mac == interface.interface.mac) {
            Some(report) => print_report(report, out)?,
            None => writeln!(out, "  gone meanwhile")?,
        }
    }
    if let Some(report) = reports.first() {
        let share = report.cpu_ns as f64 / report.interval_ns.max(1) as f64;
        writeln!(out, "all CPUs in the kernel: {:.0}% of one", 100.0 * share)?;
    }
    Ok(())
}

fn print_interface(interface: &Nic, out: &mut impl Write) -> Result<(), OnceError> {
    let known = &interface.interface;
    write!(out, "{} {} {}: ", known.name, known.mac, interface.device())?;
    if known.can_defer {
        let (polls, interval_ns) =
            (interface.number(DEFER_HARD_IRQS)?, interface.number(FLUSH_TIMEOUT)?);
        writeln!(out, "{DEFER_HARD_IRQS} {polls}, {FLUSH_TIMEOUT} {interval_ns} ns")?;
    } else {
        writeln!(out, "cannot poll on a timer (that takes Linux 5.8 or later)")?;
    }
    Ok(())
}

fn print_report(report: &Report, out: &mut impl Write) -> Result<(), OnceError> {
    let packets = report.rx_packets;
    match report.interrupts {
        Some(interrupts) => {
            write!(out, "  in a second: {interrupts} interrupts, {packets} packets received")?;
            if packets > 0 {
                write!(out, ", {:.3} each", interrupts as f64 / packets as f64)?;
            }
            writeln!(out)?;
        }
        None => writeln!(
            out,
            "  in a second: {packets} packets received; interrupts are not counted by device"
        )?,
    }
    Ok(())
}
