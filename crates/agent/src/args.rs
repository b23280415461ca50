//! The command line.

use std::path::PathBuf;

use clap::{Parser, value_parser};
use weir_limits::{LATENCY_BUDGET_NS_MAX, WEIGHT_MAX};

use crate::port::Port;
use crate::protocol::Wish;

/// Lets the host's virtual switch, weir, coalesce this guest's network interrupts.
///
/// Sets interfaces of virtio-net and xen-netfront to poll at the interval that weir asks for, reports what interrupts cost,
/// and restores what it found when it stops or hears nothing from weir for three seconds.
#[derive(Debug, Parser)]
#[command(name = "weir-agent", version, after_help = EXIT_CODES)]
pub struct Args {
    /// The virtio-serial port to the host, or in a Xen guest its channel's console, such as /dev/hvc1
    #[arg(long, value_name = "PATH", default_value = "/dev/virtio-ports/org.weir.agent.0")]
    pub port: PathBuf,

    /// Use this vsock port of the host instead
    #[arg(long, value_name = "PORT", conflicts_with = "port")]
    pub vsock: Option<u32>,

    /// Ask weir for this latency budget; a smaller one than the host's is granted
    #[arg(long, value_name = "MICROSECONDS", value_parser = value_parser!(u64).range(..=BUDGET_US_MAX))]
    pub budget_us: Option<u64>,

    /// Ask weir for this weight among senders; a smaller one than the host's is granted
    #[arg(long, value_name = "WEIGHT", value_parser = value_parser!(u16).range(1..=i64::from(WEIGHT_MAX)))]
    pub weight: Option<u16>,

    /// Count for one second, print the report, and change nothing
    #[arg(long)]
    pub once: bool,

    /// Directory for the guest's original settings
    #[arg(long, value_name = "PATH", default_value = "/run/weir-agent.state")]
    pub state: PathBuf,

    /// For tests: the directory with the `sys` and `proc` to use
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    pub root: PathBuf,
}

const BUDGET_US_MAX: u64 = LATENCY_BUDGET_NS_MAX / 1_000;

const EXIT_CODES: &str = "Exit codes: 0 stopped by a signal, everything is as it was found; \
    1 failed; 2 wrong usage; 3 no port to the host";

impl Args {
    /// Returns the guest's wish.
    pub fn wish(&self) -> Wish {
        Wish { budget_ns: self.budget_us.map(|us| 1_000 * us), weight: self.weight }
    }

    /// Returns the port to the host.
    pub fn host(&self) -> Port {
        self.vsock.map_or_else(|| Port::Path(self.port.clone()), Port::Vsock)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_makes_sense() {
        Args::command().debug_assert();
        let args = Args::parse_from(["weir-agent", "--vsock", "1024"]);
        assert_eq!(args.host(), Port::Vsock(1024));
        assert!(args.wish().is_none());
        let args = Args::parse_from(["weir-agent", "--budget-us", "100", "--weight", "2"]);
        assert_eq!(args.wish(), Wish { budget_ns: Some(100_000), weight: Some(2) });
        for bad in [["--weight", "0"], ["--weight", "101"], ["--budget-us", "1000001"]] {
            assert!(Args::try_parse_from([&["weir-agent"], &bad[..]].concat()).is_err(), "{bad:?}");
        }
    }
}
