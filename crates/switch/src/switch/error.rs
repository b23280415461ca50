//! Errors in starting a switch or one of its ports.

use std::io;
use std::path::PathBuf;

use miette::Diagnostic;
use thiserror::Error;
use weir_config::{NetworkName, PortName};
use weir_engine::filter::RulesError;
use weir_fabric::PortError;
use weir_port_vhost::ManagerGone;
use weir_port_vxlan::OverlayError;

use crate::unix_socket::ListenError;

/// The reason why the switch, or one interface, could not be started.
#[derive(Debug, Error, Diagnostic)]
pub enum SwitchError {
    /// Threads or descriptors were not available.
    #[error("cannot start the switch")]
    Start(#[source] io::Error),
    /// Real-time threads are configured but not allowed.
    #[error("execution \"rt-threads\" is not allowed")]
    #[diagnostic(help(
        "give weir a limit of real-time priority (RLIMIT_RTPRIO; systemd: LimitRTPRIO=1), or with --no-sandbox \
         CAP_SYS_NICE; or use execution \"threads\""
    ))]
    RealTime(#[source] io::Error),
    /// No keeper is configured, so this weir cannot replace another one.
    #[error("the configuration names no keeper")]
    #[diagnostic(help("set `keeper` in [switch]"))]
    NoKeeper,
    /// The keeper serves another weir.
    #[error("{0}")]
    #[diagnostic(help(
        "end that weir, or give this one a keeper of its own: `weir-keeper SOCKET`, and `keeper` in [switch]"
    ))]
    Busy(io::Error),
    /// The keeper may hold the state of the last weir, but does not hand it over.
    #[error("the keeper is there and does not say what it has")]
    #[diagnostic(help(
        "weir does not start without rules that were set while the last one ran: start the keeper anew, which forgets them \
         and disconnects all front ends"
    ))]
    Silent(#[source] io::Error),
    /// The keeper does not hand over the state of the other weir.
    #[error("the keeper does not say what it has")]
    Look(#[source] io::Error),
    /// A later release has written the state.
    #[error(
        "the session of {vif} has state of version {version}, and this weir knows versions up to {known}"
    )]
    #[diagnostic(help("use the release that runs now, or a later one"))]
    Newer {
        /// The state's interface.
        vif: String,
        /// The state's version.
        version: u32,
        /// The last version that this weir knows.
        known: u32,
    },
    /// The run-time settings of the last weir cannot be read.
    #[error("what was set while the last weir ran cannot be read")]
    #[diagnostic(help(
        "weir does not start without its rules: put them into the configuration, and start the keeper anew, which \
         forgets them and disconnects all front ends"
    ))]
    Noted {
        /// The error.
        source: io::Error,
    },
    /// A later release has written the run-time settings.
    #[error(
        "what was set while the last weir ran has version {version}, and this weir knows versions up to {known}"
    )]
    #[diagnostic(help("start the release that ran last, or a later one"))]
    NewerSettings {
        /// The settings' version.
        version: u32,
        /// The last version that this weir knows.
        known: u32,
    },
    /// A port's settings cannot be applied.
    #[error("what was set of {port} while weir ran cannot be applied: {why}")]
    #[diagnostic(help(
        "`weir diff` shows what was set; set it otherwise, or `weir reload` makes it what the file says"
    ))]
    Settings {
        /// The port.
        port: String,
        /// The reason.
        why: String,
    },
    /// The socket of an interface cannot be opened.
    #[error("interface {name}")]
    #[diagnostic(forward(source))]
    Socket {
        /// The interface.
        name: PortName,
        /// The error.
        source: ListenError,
    },
    /// The interface would need descriptors that are held in reserve.
    #[error("interface {name}")]
    Descriptors {
        /// The interface.
        name: PortName,
        /// The error, with the number of descriptors.
        source: io::Error,
    },
    /// The interface of an uplink cannot be opened.
    #[error("uplink {name}")]
    Uplink {
        /// The uplink.
        name: PortName,
        /// The error.
        source: Box<dyn std::error::Error + Send + Sync>,
        /// Advice on how to resolve it.
        #[help]
        help: Option<String>,
    },
    /// The lease file of a network with DHCP cannot be opened.
    #[error("the file of leases {}", path.display())]
    #[diagnostic(help(
        "weir keeps it in the directory of its control socket, or in $STATE_DIRECTORY; it is to be weir's own file"
    ))]
    Leases {
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The way out of a network through the host cannot be set up.
    #[error("the way out of network `{network}`")]
    WayOut {
        /// The network.
        network: NetworkName,
        /// Advice for the user, if there is any.
        #[help]
        help: Option<String>,
        /// The error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The rules of a way out cannot be made.
    #[error("the rules for a way out through the host")]
    #[diagnostic(help("`nat` takes nftables, Linux 5.12 and CAP_NET_ADMIN"))]
    Nat(#[source] io::Error),
    /// weir's own port in a network cannot be started.
    #[error("weir's port {name}")]
    #[diagnostic(help(
        "if its file of leases is damaged, remove it: guests ask for their addresses again"
    ))]
    Gateway {
        /// The port.
        name: PortName,
        /// The error.
        source: io::Error,
    },
    /// The sockets of the overlay cannot be opened.
    #[error("the overlay")]
    Overlay {
        /// The error.
        source: OverlayError,
        /// Advice on how to resolve it.
        #[help]
        help: Option<String>,
    },
    /// The devices that FRR watches cannot be made.
    #[error("the overlay's EVPN")]
    Evpn {
        /// The error.
        source: Box<dyn std::error::Error + Send + Sync>,
        /// Advice on how to resolve it.
        #[help]
        help: Option<String>,
    },
    /// There is no room for another port.
    #[error("port {name}")]
    Port {
        /// The port.
        name: PortName,
        /// The error.
        source: PortError,
    },
    /// The port has too many filter rules, or too large ones.
    #[error("port {name}")]
    Filter {
        /// The port.
        name: PortName,
        /// The error.
        source: RulesError,
    },
    /// A worker cannot watch the device.
    #[error("uplink {name} cannot be watched")]
    Watch {
        /// The uplink.
        name: PortName,
        /// The system's error.
        source: io::Error,
    },
    /// Xen guests cannot be served on this machine.
    #[error("[xen] is configured, and {device} cannot be used")]
    Xen {
        /// The missing device.
        device: &'static str,
        /// The error.
        source: Box<dyn std::error::Error + Send + Sync>,
        /// Advice on how to resolve it.
        #[help]
        help: Option<String>,
    },
    /// weir is shutting down.
    #[error(transparent)]
    Gone(#[from] ManagerGone),
}
