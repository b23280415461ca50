//! A weir in a guest is its own agent: the guest's half of the conversation with the weir below.
//!
//! It reports the cost of all its layers as one, and takes the interval of a `set` as the time that the weir below
//! leaves to these layers together.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use weir_limits::AGENT_PERIOD_NS;

use crate::agent::{Lost, seed};
use crate::channel::Channel;
use crate::port::{Port, PortError};
use crate::protocol::{
    Applied, GuestMessage, Hello, HostMessage, Interface, Report, Text, VERSION, Wish,
};
use crate::report::{Counts, Reporter, Sample};
use crate::session::{Action, Session};

/// Totals of a weir since its start, and the present cost of its layers.
#[derive(Clone, Copy, Debug)]
pub struct Totals {
    /// CPU time of all workers (ns).
    pub cpu_ns: u64,
    /// Times that the uplink's frames woke a worker.
    pub wakeups: u64,
    /// Frames that came by the uplink.
    pub frames: u64,
    /// The cost of all layers as one (ns).
    pub cost_ns: u64,
}

/// The conversation with the weir below.
#[derive(Debug)]
pub struct Below {
    port: Port,
    /// A port that is a device stays open: it opens for one program, and only with privileges.
    device: Option<File>,
    interface: Interface,
    channel: Option<Channel<File>>,
    session: Session,
    reporter: Reporter,
    given_ns: Option<u64>,
    /// No connection is tried until this time (ns).
    rests_until_ns: u64,
    error: Option<String>,
}

impl Below {
    /// Opens `port` for the layers behind `interface`. `left` is the device that another weir has left open. A port
    /// that is not there is tried again each second.
    pub fn open(port: Port, interface: Interface, left: Option<OwnedFd>) -> Self {
        let is_socket = |path| fs::metadata(path).is_ok_and(|it| it.file_type().is_socket());
        let rdev = |it: io::Result<Metadata>| it.ok().map(|it| it.rdev());
        // The configuration may name another port now.
        let is_same = |left: &File| match &port {
            Port::Path(path) => rdev(left.metadata()) == rdev(fs::metadata(path)),
            Port::Vsock(_) => false,
        };
        let opened = match (left.map(File::from).filter(is_same), &port) {
            (Some(left), _) => Ok(Some(left)),
            // A socket is connected to when there is something to say.
            (None, Port::Path(path)) if is_socket(path) => Ok(None),
            (None, _) => port.open().map(Some),
        };
        let error = opened.as_ref().err().map(ToString::to_string);
        let device = opened.ok().flatten();
        Self {
            port,
            device,
            interface,
            channel: None,
            session: Session::new(seed()),
            reporter: Reporter::default(),
            given_ns: None,
            rests_until_ns: 0,
            error,
        }
    }

    /// The port.
    pub fn port(&self) -> &Port {
        &self.port
    }

    /// The open device, if the port is one.
    pub fn device(&self) -> Option<&File> {
        self.device.as_ref()
    }

    /// The time (ns) that the weir below leaves to this one's layers together, while it leaves any.
    pub fn given_ns(&self) -> Option<u64> {
        self.given_ns
    }

    /// The reason why there is no conversation.
    pub fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// The descriptor to watch, and true if it is to be watched for writing.
    pub fn watched(&self) -> Option<(BorrowedFd<'_>, bool)> {
        let channel = self.channel.as_ref()?;
        Some((channel.stream().as_fd(), channel.wants_write()))
    }

    /// The time by which [`Below::serve`] must be called (ns).
    pub fn deadline_ns(&self) -> u64 {
        self.session.deadline_ns().unwrap_or(self.rests_until_ns)
    }

    /// Does the work that is due; `ready` means that the watched descriptor has an event.
    pub fn serve(&mut self, ready: bool, now_ns: u64, totals: impl Fn() -> Totals) {
        let channel = match self.channel.take() {
            None if now_ns < self.rests_until_ns => return,
            None => self.connect(now_ns).map_err(|error| error.to_string()),
            Some(channel) => Ok(channel),
        };
        let conversed = channel.and_then(|mut channel| {
            let conversed = self.converse(&mut channel, ready, now_ns, totals);
            conversed.map(|()| channel).map_err(|error| error.to_string())
        });
        match conversed {
            Ok(channel) => self.channel = Some(channel),
            Err(error) => {
                self.session.closed();
                self.given_ns = None;
                self.rests_until_ns = now_ns.saturating_add(AGENT_PERIOD_NS);
                self.error = Some(error);
            }
        }
    }

    fn connect(&mut self, now_ns: u64) -> Result<Channel<File>, PortError> {
        let copy = self.device.as_ref().and_then(|device| device.try_clone().ok());
        let stream = copy.map_or_else(|| self.port.open(), Ok)?;
        let mut channel = Channel::new(stream);
        channel.end_line();
        self.session.connected(now_ns);
        Ok(channel)
    }

    fn converse(
        &mut self,
        channel: &mut Channel<File>,
        ready: bool,
        now_ns: u64,
        totals: impl Fn() -> Totals,
    ) -> Result<(), Lost> {
        if ready {
            channel.fill()?;
        }
        while let Some(message) = channel.next::<HostMessage>()? {
            let was_open = self.session.is_open();
            let action = self.session.received(message, now_ns)?;
            if self.session.is_open() && !was_open {
                self.error = None;
                self.reporter.restart();
                self.report(totals(), now_ns);
            }
            if let Some(action) = action {
                self.perform(action, channel, now_ns, &totals)?;
            }
        }
        channel.flush()?;
        while let Some(action) = self.session.due(now_ns) {
            self.perform(action, channel, now_ns, &totals)?;
        }
        Ok(())
    }

    fn perform(
        &mut self,
        action: Action,
        channel: &mut Channel<File>,
        now_ns: u64,
        totals: impl Fn() -> Totals,
    ) -> Result<(), Lost> {
        let message = match action {
            // The weir below is not reading yet, and hellos must not pile up.
            Action::Hello { .. } if channel.wants_write() => return Ok(()),
            Action::Hello { session } => GuestMessage::Hello(Hello {
                version: VERSION,
                session,
                agent: Text::new(env!("CARGO_PKG_VERSION")),
                kernel: Text::new("weir"),
                wish: Wish::default(),
                interfaces: vec![self.interface.clone()],
            }),
            Action::Report => match self.report(totals(), now_ns) {
                Some(report) => GuestMessage::Report(report),
                None => return Ok(()),
            },
            Action::Apply { mac, poll_ns } => {
                let is_ours = mac == self.interface.mac;
                if is_ours {
                    self.given_ns = poll_ns;
                }
                let error = (!is_ours).then(|| Text::new("not an uplink of this weir"));
                GuestMessage::Applied(Applied { mac, poll_ns, error })
            }
            Action::Restore(reason) => {
                self.given_ns = None;
                self.error = Some(reason.to_string());
                return Ok(());
            }
        };
        Ok(channel.send(&message)?)
    }

    /// The counts since the last report; none for the first.
    fn report(&mut self, totals: Totals, now_ns: u64) -> Option<Report> {
        let Totals { cpu_ns, wakeups, frames, cost_ns } = totals;
        let counts =
            Counts { mac: self.interface.mac, interrupts: Some(wakeups), rx_packets: frames };
        let sample = Sample { at_ns: now_ns, cpu_ns, counts: vec![counts] };
        let report = self.reporter.next(sample).pop()?;
        Some(Report { cost_ns_per_interrupt: Some(cost_ns), ..report })
    }
}

/// Says goodbye, so that the weir below has its budget back at once.
impl Drop for Below {
    fn drop(&mut self) {
        if let Some(channel) = self.channel.as_mut().filter(|_| self.session.is_open()) {
            // The weir below notices the end by itself if it does not receive the message.
            let _ = channel.send(&GuestMessage::Bye);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::path::Path;

    use weir_wire::Mac;

    use super::*;
    use crate::host::{AgentLink, Event};

    const SECOND: u64 = 1_000_000_000;
    const OURS: Mac = Mac([0x52, 0x54, 0, 0, 0, 1]);
    const TOTALS: Totals = Totals { cpu_ns: 7, wakeups: 8, frames: 9, cost_ns: 12_000 };

    fn below(path: &Path) -> Below {
        let interface = Interface { mac: OURS, name: Text::new("eth0"), can_defer: true };
        Below::open(Port::Path(path.into()), interface, None)
    }

    /// A conversation that was greeted at `now_ns`, from both sides.
    fn greeted(listener: &UnixListener, below: &mut Below, now_ns: u64) -> AgentLink {
        below.serve(false, now_ns, || TOTALS);
        let mut link = AgentLink::new(listener.accept().unwrap().0, vec![OURS]).unwrap();
        assert!(matches!(link.readable(now_ns).unwrap().next(), Some(Event::Hello(_))));
        below.serve(true, now_ns, || TOTALS);
        link
    }

    #[test]
    fn a_weir_reports_its_layers_as_one_and_takes_what_is_left_to_them_until_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent");
        let listener = UnixListener::bind(&path).unwrap();
        let mut below = below(&path);
        let mut link = greeted(&listener, &mut below, 0);
        link.set(OURS, Some(250_000)).unwrap();
        below.serve(true, 1, || TOTALS);
        assert_eq!((below.given_ns(), below.error()), (Some(250_000), None));
        let later = Totals { wakeups: 18, frames: 109, ..TOTALS };
        below.serve(false, SECOND, || later);
        let events: Vec<_> = link.readable(SECOND).unwrap().collect();
        let [Event::Applied(applied), Event::Report(report)] = &events[..] else {
            panic!("{events:?}")
        };
        assert_eq!((applied.poll_ns, &applied.error), (Some(250_000), &None));
        let counts = (report.interrupts, report.rx_packets, report.cost_ns_per_interrupt);
        assert_eq!(counts, (Some(10), 100, Some(12_000)));

        link.set(OURS, None).unwrap();
        below.serve(true, SECOND, || TOTALS);
        assert_eq!(below.given_ns(), None);
        // The weir below says goodbye, is silent, or is gone.
        link.set(OURS, Some(250_000)).unwrap();
        link.bye();
        below.serve(true, SECOND, || TOTALS);
        assert_eq!((below.given_ns(), below.error()), (None, Some("weir said goodbye")));
        // A thread of its own closes what is foreign.
        while below.watched().is_some() {
            below.serve(true, SECOND, || TOTALS);
        }
        let mut link = greeted(&listener, &mut below, 3 * SECOND);
        link.set(OURS, Some(250_000)).unwrap();
        below.serve(true, 3 * SECOND, || TOTALS);
        assert_eq!(below.given_ns(), Some(250_000));
        below.serve(false, 6 * SECOND, || TOTALS);
        assert_eq!((below.given_ns(), below.error()), (None, Some("nothing was heard from weir")));
    }

    #[test]
    fn a_port_that_is_not_there_is_tried_each_second() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent");
        let mut below = below(&path);
        assert!(below.error().is_some());
        below.serve(false, 1, || TOTALS);
        assert_eq!((below.deadline_ns(), below.watched().is_none()), (1 + SECOND, true));
        let listener = UnixListener::bind(&path).unwrap();
        below.serve(false, SECOND, || TOTALS);
        assert!(below.watched().is_none(), "the second is not over");
        greeted(&listener, &mut below, 1 + SECOND);
        assert_eq!(below.error(), None);
    }
}
