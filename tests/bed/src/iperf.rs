//! Traffic by iperf3, and its JSON reports.

use std::{
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    error::{Error, Result},
    qemu::Guest,
};

/// Longest time for a guest to start a server.
const SERVER_PATIENCE: Duration = Duration::from_secs(15);

/// Longest time until a server listens again, and a client's interval between attempts.
const LISTENS_AGAIN: (Duration, Duration) = (Duration::from_secs(10), Duration::from_millis(100));

/// Longest time of a client beyond the time that it sends.
const CLIENT_GRACE: Duration = Duration::from_secs(30);

/// The direction of a TCP test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Data flows from the client to the server.
    ToServer,
    /// Data flows from the server to the client.
    ToClient,
}

/// A TCP test as its client runs it.
#[derive(Clone, Debug)]
pub struct Tcp {
    /// The server's address.
    pub server: String,
    /// The server's port.
    pub port: u16,
    /// Time for which the client sends, after [`Tcp::omit_seconds`].
    pub seconds: u64,
    /// Time for which the client sends before it counts, to be past slow start.
    pub omit_seconds: u64,
    /// Number of connections.
    pub streams: u8,
    /// The direction.
    pub direction: Direction,
}

impl Tcp {
    /// One connection to `server`, sending to it for `seconds`.
    pub fn to(server: String, seconds: u64) -> Self {
        let direction = Direction::ToServer;
        Self { server, port: PORT, seconds, omit_seconds: 0, streams: 1, direction }
    }

    /// The arguments of the client.
    pub fn argv(&self) -> Vec<String> {
        let Self { server, port, seconds, omit_seconds, streams, .. } = self;
        let text = format!(
            "iperf3 -J -c {server} -p {port} -t {seconds} -O {omit_seconds} -P {streams} \
             --connect-timeout 5000"
        );
        let reverse = (self.direction == Direction::ToClient).then(|| String::from("-R"));
        text.split_whitespace().map(str::to_owned).chain(reverse).collect()
    }

    /// Longest time for the client.
    pub fn patience(&self) -> Duration {
        Duration::from_secs(self.seconds + self.omit_seconds) + CLIENT_GRACE
    }

    /// Runs the client in `guest`.
    pub fn run(&self, guest: &mut Guest) -> Result<Transfer> {
        self.run_by(|argv| guest.run(&argv.join(" "), self.patience()))
    }

    /// Runs the client by `run`, and again if the connection is refused: a server does not listen for a moment after
    /// each test.
    pub fn run_by(&self, mut run: impl FnMut(&[&str]) -> Result<String>) -> Result<Transfer> {
        let argv = self.argv();
        let argv: Vec<_> = argv.iter().map(String::as_str).collect();
        let (patience, interval) = LISTENS_AGAIN;
        let start = Instant::now();
        loop {
            let printed = run(&argv)?;
            if !is_refused(&printed) || start.elapsed() > patience {
                return Transfer::parse(&printed);
            }
            thread::sleep(interval);
        }
    }
}

/// The servers' default port.
pub const PORT: u16 = 5201;

/// The report of a TCP client.
#[derive(Clone, Debug, PartialEq)]
pub struct Transfer {
    /// Payload that arrived, in bits per second.
    pub bits_per_second: f64,
    /// Payload bytes of each second.
    pub interval_bytes: Vec<f64>,
}

impl Transfer {
    /// Reads `iperf3 -J`'s report of a TCP test.
    pub fn parse(json: &str) -> Result<Self> {
        let report = report(json)?;
        let bits_per_second = number(&report, "/end/sum_received/bits_per_second", json)?;
        let intervals = report["intervals"].as_array().map(Vec::as_slice).unwrap_or_default();
        let interval_bytes =
            intervals.iter().filter_map(|interval| interval["sum"]["bytes"].as_f64()).collect();
        Ok(Self { bits_per_second, interval_bytes })
    }

    /// The rate in Gbit/s.
    pub fn gbit_per_second(&self) -> f64 {
        self.bits_per_second / 1e9
    }
}

/// The report of a UDP client, with the counts that the server has sent it.
#[derive(Clone, Debug, PartialEq)]
pub struct Datagrams {
    /// Datagrams sent.
    pub sent: f64,
    /// Lost datagrams among the sent ones.
    pub lost: f64,
}

impl Datagrams {
    /// Runs a client in `guest` that sends `megabit_per_second` in datagrams of `payload_bytes`.
    pub fn send(
        guest: &mut Guest,
        server: &str,
        megabit_per_second: u32,
        payload_bytes: u32,
    ) -> Result<Self> {
        let seconds = 3;
        let command = format!(
            "iperf3 -J -u -c {server} -t {seconds} -b {megabit_per_second}M -l {payload_bytes}"
        );
        let json = guest.run(&command, Duration::from_secs(seconds) + CLIENT_GRACE)?;
        Self::parse(&json)
    }

    fn parse(json: &str) -> Result<Self> {
        let report = report(json)?;
        let sent = number(&report, "/end/sum/packets", json)?;
        let lost = number(&report, "/end/sum/lost_packets", json)?;
        Ok(Self { sent, lost })
    }
}

/// The JSON report in a client's output, where warnings may precede it.
fn report(printed: &str) -> Result<Value> {
    let json = printed.find('{').and_then(|start| printed.get(start..)).unwrap_or_default();
    serde_json::from_str(json).map_err(|_| Error::parse("iperf3's report", printed))
}

/// True if no server listened.
fn is_refused(printed: &str) -> bool {
    let error = |report: Value| Some(report.get("error")?.as_str()?.contains("Connection refused"));
    report(printed).ok().and_then(error).unwrap_or(false)
}

fn number(report: &Value, pointer: &'static str, json: &str) -> Result<f64> {
    report.pointer(pointer).and_then(Value::as_f64).ok_or_else(|| Error::parse(pointer, json))
}

/// Starts an iperf3 server in `guest` and returns once it listens on `port`.
pub fn serve(guest: &mut Guest, port: u16) -> Result<()> {
    serve_with(guest, &format!("iperf3 -s -D -p {port};"), port)
}

/// Gives `guest` a command (ending in `;` or `&`) that starts a server. Returns when the server listens on TCP
/// `port`.
pub fn serve_with(guest: &mut Guest, command: &str, port: u16) -> Result<()> {
    guest.run(&serve_command(command, port), SERVER_PATIENCE).map(drop)
}

/// The shell command that starts a server and waits until it listens.
pub fn serve_command(command: &str, port: u16) -> String {
    let listens = format!("netstat -ltn | grep -q ':{port} '");
    let wait = format!("for i in $(seq 100); do {listens} && exit 0; sleep 0.1; done; exit 1");
    format!("{{ {command} }}; {wait}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tcp_report_gives_what_arrived_and_every_interval() {
        let json = r#"{"intervals":[{"sum":{"bytes":100}},{"sum":{"bytes":0}}],
            "end":{"sum_received":{"bits_per_second":8.5e8}}}"#;
        let transfer = Transfer::parse(json).unwrap();
        assert_eq!(transfer.interval_bytes, [100.0, 0.0]);
        assert!((transfer.gbit_per_second() - 0.85).abs() < 1e-9);
    }

    #[test]
    fn a_report_of_an_error_is_an_error() {
        assert!(Transfer::parse(r#"{"error":"unable to connect"}"#).is_err());
        assert!(Transfer::parse("iperf3: not json").is_err());
    }

    #[test]
    fn a_client_that_is_refused_tries_again_and_with_another_error_does_not() {
        let tcp = Tcp::to("10.0.0.1".into(), 1);
        let refused = r#"{"error":"unable to connect to server: Connection refused"}"#;
        let arrived = r#"{"intervals":[],"end":{"sum_received":{"bits_per_second":1e9}}}"#;
        let mut printed = [refused, arrived].into_iter();
        let transfer = tcp.run_by(|_| Ok(printed.next().unwrap().into()));
        assert!((transfer.unwrap().gbit_per_second() - 1.0).abs() < 1e-9);
        let mut printed = [r#"{"error":"no route"}"#].into_iter();
        assert!(tcp.run_by(|_| Ok(printed.next().unwrap().into())).is_err());
    }

    #[test]
    fn warnings_may_stand_in_front_of_a_report() {
        let printed = "warning: UDP block size 8000 exceeds TCP MSS 1448\n\
            {\"end\":{\"sum\":{\"seconds\":3,\"packets\":10,\"lost_packets\":1}}}";
        let datagrams = Datagrams::parse(printed).unwrap();
        assert_eq!(datagrams, Datagrams { sent: 10.0, lost: 1.0 });
    }
}
