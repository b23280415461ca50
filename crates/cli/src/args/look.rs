//! `weir capture`, `weir trace`, `weir top`, `weir doctor`; `--sandbox` and `--no-sandbox`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use weir_config::{Direction, Expression, PortName};
use weir_limits::{CAPTURE_PORTS_MAX, FOLLOWED_MAX};
use weir_switch::capture::CaptureRequest;
use weir_switch::sandbox::SandboxMode;
use weir_switch::trace::FollowRequest;

use super::explained;
use crate::top::Column;

/// `weir capture`
#[derive(Debug, Args)]
#[command(after_help = CAPTURE_NOTES)]
pub struct CaptureArgs {
    /// Interfaces and uplinks
    #[arg(value_name = "PORT", required = true, num_args = 1..=CAPTURE_PORTS_MAX, value_parser = explained::<PortName>)]
    pub ports: Vec<PortName>,
    /// Only frames that this expression of pcap-filter(7) matches
    #[arg(short, long, value_name = "EXPRESSION", value_parser = explained::<Expression>)]
    pub filter: Option<Expression>,
    /// Write pcapng to this file; - is standard output
    ///
    /// Without it each frame is a line.
    #[arg(short, long, value_name = "FILE")]
    pub write: Option<PathBuf>,
    /// Only what the ports send
    #[arg(long, conflicts_with_all = ["rx", "drops"])]
    pub tx: bool,
    /// Only what the ports receive
    #[arg(long, conflicts_with = "drops")]
    pub rx: bool,
    /// Only frames that are dropped, each with the counter's name
    #[arg(long)]
    pub drops: bool,
    /// So many bytes of each frame
    #[arg(short, long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(14..))]
    pub snap: Option<u32>,
    /// End after so many frames
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
}

impl CaptureArgs {
    /// The request to the switch.
    pub fn request(&self) -> CaptureRequest {
        CaptureRequest {
            ports: self.ports.clone(),
            direction: match (self.tx, self.rx) {
                (true, _) => Some(Direction::Tx),
                (_, true) => Some(Direction::Rx),
                _ => None,
            },
            drops: self.drops,
            filter: self.filter.clone().unwrap_or_default(),
            snap_len: self.snap,
            frames_max: self.count,
        }
    }
}

const CAPTURE_NOTES: &str = "\
Directions are the guest's: tx is what it sends. A frame is as it is on the port, with the VLAN tag \
that it has there; a GSO frame is whole. Traffic never waits for the capture: frames that the \
reader is too slow for are lost, and counted in the file. Ctrl-C ends a capture.

Examples:
  weir capture web0
  weir capture web0 -w - | wireshark -k -i -
  weir capture web0 lan -f 'tcp port 80' --snap 128 -w web.pcapng
  weir capture web0 --drops";

/// `weir trace`
#[derive(Debug, Args)]
#[command(after_help = TRACE_NOTES)]
pub struct TraceArgs {
    /// The interface or uplink that would send the frame
    #[arg(value_name = "PORT", value_parser = explained::<PortName>)]
    pub name: PortName,
    /// The frame, by fields in tshark's names
    #[arg(value_name = "FRAME", required_unless_present_any = ["hex", "pcap", "live"])]
    pub frame: Option<String>,
    /// The frame, as hexadecimal digits
    #[arg(long, value_name = "BYTES", conflicts_with_all = ["frame", "pcap"])]
    pub hex: Option<String>,
    /// A file of frames, pcap or pcapng
    #[arg(long, value_name = "FILE", conflicts_with = "frame")]
    pub pcap: Option<PathBuf>,
    /// Which frame of the file, from 1
    #[arg(long, value_name = "N", requires = "pcap", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub number: u64,
    /// Follow the next frames that the port sends, with the time of each stage
    #[arg(long, conflicts_with_all = ["frame", "hex", "pcap"])]
    pub live: bool,
    /// Follow only frames that this expression of pcap-filter(7) matches
    #[arg(short, long, value_name = "EXPRESSION", requires = "live", value_parser = explained::<Expression>)]
    pub filter: Option<Expression>,
    /// Follow so many frames
    #[arg(short, long, value_name = "N", requires = "live", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(FOLLOWED_MAX)))]
    pub count: u32,
    /// As JSON; with --live an object on each line
    #[arg(long)]
    pub json: bool,
}

impl TraceArgs {
    /// The request to the switch.
    pub fn request(&self) -> FollowRequest {
        FollowRequest { filter: self.filter.clone().unwrap_or_default(), frames: self.count }
    }
}

const TRACE_NOTES: &str = "\
Without `eth.src` the frame is the interface's own. Without `eth.dst` it is for the station of \
`ip.dst` or `ipv6.dst`, else for the network's router, else for everybody; a note says which. \
Nothing is counted, learned or delivered. With --live, frames pass as ever, and traffic waits for \
nobody; times are since a worker began to read the sender's queue. Ctrl-C ends it.

Examples:
  weir trace web0 'eth.dst=52:54:00:00:00:02, ip.dst=10.0.0.2, tcp.dstport=80'
  weir trace web0 'arp.dst.proto_ipv4=10.0.0.1'
  weir trace lan --pcap web.pcapng --number 3
  weir trace web0 --live -f 'tcp port 80' -c 3";

/// `weir top`
#[derive(Debug, Args)]
#[command(after_help = TOP_NOTES)]
pub struct TopArgs {
    /// Look every SECONDS
    #[arg(short, long, value_name = "SECONDS", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub interval: u32,
    /// Sort by this at first
    #[arg(short, long, value_name = "COLUMN", value_enum, default_value = "cpu")]
    pub sort: Column,
    /// Only ports whose names contain this
    #[arg(short, long, value_name = "TEXT")]
    pub filter: Option<String>,
    /// Print one table, and end
    #[arg(long)]
    pub once: bool,
    /// As JSON, one object on each line; with --once over several lines
    #[arg(long)]
    pub json: bool,
}

const TOP_NOTES: &str = "\
`?` shows the keys. Without a terminal, or with TERM=dumb, a table is printed for each interval. \
weir that ends may come back: the screen says so and goes on.

Examples:
  weir top --sort drops
  weir top --once --filter web
  weir top --json --interval 10 >>rates.jsonl";

/// `weir doctor`
#[derive(Debug, Args)]
#[command(after_help = DOCTOR_NOTES)]
pub struct DoctorArgs {
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

const DOCTOR_NOTES: &str = "\
Exits with 0 if nothing is wrong, and with 5 otherwise. A note is worth knowing, and not wrong. It \
counts for three seconds: drops and late interrupts that go on are wrong, those that have ended are a \
note. Some things only root can see: who may open a socket, the kernel's log. \
The guide (troubleshooting.md) lists the checks.";

/// `--sandbox`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Sandbox {
    /// The kernel ends weir at a system call that is not allowed
    #[default]
    On,
    /// The kernel logs such a call, and files stay unrestricted: use it to find out why weir ends
    Log,
    /// weir keeps every privilege that it is started with
    Off,
}

/// `--sandbox` and `--no-sandbox`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Args)]
pub struct SandboxArgs {
    /// Whether weir gives up the privileges that serving guests does not need
    #[arg(long, value_name = "MODE", value_enum, default_value_t)]
    pub sandbox: Sandbox,
    /// Same as --sandbox=off: a guest that breaks into weir gets every privilege that weir has
    #[arg(long, conflicts_with = "sandbox")]
    pub no_sandbox: bool,
}

impl SandboxArgs {
    /// The mode that both options give.
    pub fn mode(&self) -> SandboxMode {
        match self.sandbox {
            _ if self.no_sandbox => SandboxMode::Off,
            Sandbox::On => SandboxMode::On,
            Sandbox::Log => SandboxMode::Log,
            Sandbox::Off => SandboxMode::Off,
        }
    }
}
