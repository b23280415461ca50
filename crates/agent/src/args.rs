//! The command line.

use std::path::PathBuf;

use clap::Parser;

use crate::port::Port;

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

const EXIT_CODES: &str = "Exit codes: 0 stopped by a signal, everything is as it was found; \
    1 failed; 2 wrong usage; 3 no port to the host";

impl Args {
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
    }
}
