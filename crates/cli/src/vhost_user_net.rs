//! The command line of `weir-vhost-user-net`: one process that joins one guest to one TAP interface.
//!
//! The program follows the "Backend program conventions" of the vhost-user specification: `--socket-path`, `--fd`,
//! `--print-capabilities`, no daemonizing, an end on SIGTERM. libvirt and others find it by its JSON descriptor
//! (`dist/50-weir-net.json`, installed in `/usr/share/qemu/vhost-user`).

use std::ffi::OsStr;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use clap::Parser;
use miette::Diagnostic;
use rustix::net::{AddressFamily, SocketType, sockopt};
use rustix::process::{PidfdFlags, PidfdGetfdFlags};
use serde::Serialize;
use thiserror::Error;
use weir_config::{
    InterfaceName, PortName, QueuePairs, SocketMode, SocketPath, UplinkConfig, UplinkKind,
};
use weir_switch::Hands;
use weir_switch::unix_socket::{BoundListener, ListenError};

use crate::args::SandboxArgs;

/// Join one guest to one TAP interface of the host, as a vhost-user back end.
#[derive(Debug, Parser)]
#[command(name = "weir-vhost-user-net", version, arg_required_else_help = true)]
#[command(group(clap::ArgGroup::new("socket").required(true).args(["socket_path", "fd"])))]
#[command(after_help = EXAMPLES)]
pub struct BackendArgs {
    /// Listen for the VM monitor on this socket
    #[arg(long, value_name = "PATH")]
    pub socket_path: Option<SocketPath>,
    /// Use the socket that was passed as this file descriptor, connected or listening
    #[arg(long, value_name = "FDNUM", value_parser = clap::value_parser!(RawFd).range(0..))]
    pub fd: Option<RawFd>,
    /// Print what this program can do as JSON, and exit
    #[arg(long)]
    pub print_capabilities: bool,
    /// The TAP interface, created if it does not exist
    #[arg(long, value_name = "NAME")]
    pub tap: InterfaceName,
    /// Queues of the TAP interface; the guest gets up to this many queue pairs
    #[arg(long, value_name = "N", default_value_t)]
    pub queues: QueuePairs,
    /// The privileges that the program gives up.
    #[command(flatten)]
    pub sandbox: SandboxArgs,
}

const EXAMPLES: &str = "\
Example:
  weir-vhost-user-net --socket-path=/run/vm0.sock --tap vm0 --queues 2

For more than one guest run the switch: `weir run`.";

/// The output of `--print-capabilities` (`VHostUserBackendCapabilities` of vhost-user.json).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Capabilities {
    /// The device type.
    #[serde(rename = "type")]
    device: &'static str,
    /// Options in addition to the conventional ones, in the schema's naming: the feature `tap` means that there is an
    /// option `--tap`.
    features: &'static [&'static str],
}

impl Capabilities {
    /// The capabilities of this program.
    pub const THIS: Self = Self { device: "net", features: &["tap", "queues"] };

    /// True if `args` ask for the capabilities. Then "other options and arguments should be ignored" (the
    /// specification), so this comes before any other parsing.
    pub fn wanted<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> bool {
        args.into_iter().any(|arg| arg.as_ref() == "--print-capabilities")
    }

    /// The capabilities as JSON.
    pub fn to_json(self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(&self)
    }
}

/// The vhost-user socket of this process.
#[derive(Debug)]
pub enum BackendSocket {
    /// A socket on which a front end will connect.
    Listening(BoundListener),
    /// A passed socket on which a front end will connect.
    ListeningFd(std::os::unix::net::UnixListener),
    /// A connection with a front end.
    Connected(UnixStream),
}

/// The reason why there is no socket.
#[derive(Debug, Error, Diagnostic)]
pub enum BackendSocketError {
    /// `--socket-path` cannot be used.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Listen(#[from] ListenError),
    /// `--fd` cannot be used.
    #[error("cannot use file descriptor {fd}")]
    #[diagnostic(help("pass an open Unix stream socket and its number, or use --socket-path"))]
    Fd {
        /// The descriptor's number.
        fd: RawFd,
        /// The system's error.
        source: io::Error,
    },
    /// `--fd` is no Unix stream socket.
    #[error("file descriptor {fd} is not a Unix stream socket")]
    #[diagnostic(help("pass an open Unix stream socket and its number, or use --socket-path"))]
    NotAStreamSocket {
        /// The descriptor's number.
        fd: RawFd,
    },
    /// Neither option is given.
    #[error("no socket: give --socket-path or --fd")]
    Missing,
}

impl BackendArgs {
    /// Makes the socket that the options ask for.
    ///
    /// The specification does not say whether `--fd` is connected or listening: QEMU's back ends
    /// expect a connected socket, others a listening one. The socket itself tells
    /// (`SO_ACCEPTCONN`).
    pub(crate) fn open_socket(&self, hands: &Hands) -> Result<BackendSocket, BackendSocketError> {
        match (&self.socket_path, self.fd) {
            (Some(path), _) => {
                Ok(BackendSocket::Listening(hands.bind(path.as_path(), SocketMode::OWNER)?))
            }
            (None, Some(fd)) => passed_socket(fd),
            (None, None) => Err(BackendSocketError::Missing),
        }
    }

    pub(crate) fn uplink(&self, name: PortName) -> UplinkConfig {
        let uplink = UplinkConfig::new(name, UplinkKind::Tap, self.tap.clone());
        UplinkConfig { queues: self.queues, ..uplink }
    }
}

fn passed_socket(fd: RawFd) -> Result<BackendSocket, BackendSocketError> {
    let unusable = |errno: rustix::io::Errno| BackendSocketError::Fd { fd, source: errno.into() };
    let socket = duplicate(fd).map_err(unusable)?;
    let is_unix_stream = sockopt::socket_domain(&socket) == Ok(AddressFamily::UNIX)
        && sockopt::socket_type(&socket) == Ok(SocketType::STREAM);
    if !is_unix_stream {
        return Err(BackendSocketError::NotAStreamSocket { fd });
    }
    Ok(if sockopt::socket_acceptconn(&socket).map_err(unusable)? {
        BackendSocket::ListeningFd(socket.into())
    } else {
        BackendSocket::Connected(socket.into())
    })
}

/// A copy of a descriptor of this process, by number. Taking over the number itself would need `unsafe`, because
/// other code might own it. So the kernel makes a copy, as for a debugger (`pidfd_getfd`, Linux 5.6).
fn duplicate(fd: RawFd) -> rustix::io::Result<OwnedFd> {
    let this_process = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty())?;
    rustix::process::pidfd_getfd(this_process, fd, PidfdGetfdFlags::empty())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixListener;

    use super::*;

    fn parse(args: &[&str]) -> Result<BackendArgs, clap::Error> {
        BackendArgs::try_parse_from([&["weir-vhost-user-net"], args].concat())
    }

    #[test]
    fn spec_backend_conventions_socket_path_and_fd_exclude_each_other() {
        assert!(parse(&["--tap", "t0", "--socket-path=/run/a.sock"]).is_ok());
        assert!(parse(&["--tap", "t0", "--fd=3"]).is_ok());
        assert!(parse(&["--tap", "t0", "--fd=3", "--socket-path=/run/a.sock"]).is_err());
        assert!(parse(&["--tap", "t0"]).is_err());
        assert!(parse(&["--tap", "t0", "--fd=-1"]).is_err());
    }

    #[test]
    fn spec_backend_conventions_print_capabilities_ignores_other_arguments() {
        assert!(Capabilities::wanted(["--no-such-option", "--print-capabilities"]));
        assert!(!Capabilities::wanted(["--fd=3"]));
        insta::assert_snapshot!(Capabilities::THIS.to_json().unwrap(), @r#"
        {
          "type": "net",
          "features": [
            "tap",
            "queues"
          ]
        }
        "#);
    }

    #[test]
    fn every_feature_is_an_option() {
        let command = <BackendArgs as clap::CommandFactory>::command();
        for feature in Capabilities::THIS.features {
            assert!(
                command.get_arguments().any(|arg| arg.get_long() == Some(feature)),
                "--{feature}"
            );
        }
    }

    #[test]
    fn descriptor_file_follows_vhost_user_json() {
        let descriptor: serde_json::Value =
            serde_json::from_str(include_str!("../dist/50-weir-net.json")).unwrap();
        assert_eq!(descriptor["type"], Capabilities::THIS.device);
        assert!(descriptor["description"].is_string());
        let binary = descriptor["binary"].as_str().unwrap();
        assert!(binary.starts_with('/') && binary.ends_with("/weir-vhost-user-net"));
    }

    #[test]
    fn passed_socket_is_taken_for_what_it_is() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        assert!(matches!(passed_socket(ours.as_raw_fd()), Ok(BackendSocket::Connected(_))));
        drop(theirs);

        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("s.sock")).unwrap();
        assert!(matches!(passed_socket(listener.as_raw_fd()), Ok(BackendSocket::ListeningFd(_))));
    }

    #[test]
    fn passed_descriptor_that_is_no_stream_socket_is_refused() {
        let file = tempfile::tempfile().unwrap();
        let refused = passed_socket(file.as_raw_fd());
        assert!(matches!(refused, Err(BackendSocketError::NotAStreamSocket { .. })));
        let (datagram, _peer) = std::os::unix::net::UnixDatagram::pair().unwrap();
        let refused = passed_socket(datagram.as_raw_fd());
        assert!(matches!(refused, Err(BackendSocketError::NotAStreamSocket { .. })));
        assert!(matches!(passed_socket(999_999), Err(BackendSocketError::Fd { .. })));
    }
}
