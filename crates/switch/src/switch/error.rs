//! Why a switch, or a port of it, could not be started.

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

/// Why the switch, or one interface, could not be started.
#[derive(Debug, Error, Diagnostic)]
pub enum SwitchError {
    /// Threads or descriptors could not be had.
    #[error("cannot start the switch")]
    Start(#[source] io::Error),
    /// Real-time threads were asked for and are not allowed.
    #[error("execution \"rt-threads\" is not allowed")]
    #[diagnostic(help(
        "give weir a limit of real-time priority (RLIMIT_RTPRIO; systemd: LimitRTPRIO=1), or with --no-sandbox \
         CAP_SYS_NICE; or use execution \"threads\""
    ))]
    RealTime(#[source] io::Error),
    /// There is nobody from whom to take another weir's place.
    #[error("the configuration names no keeper")]
    #[diagnostic(help("set `keeper` in [switch]"))]
    NoKeeper,
    /// What the last weir has left may be there and cannot be had.
    #[error("the keeper is there and does not say what it has")]
    #[diagnostic(help(
        "weir does not start without rules that were set while the last one ran: end another weir that uses this keeper, or \
         start the keeper anew, which forgets them and disconnects all front ends"
    ))]
    Silent(#[source] io::Error),
    /// What another weir has cannot be had.
    #[error("the keeper does not say what it has")]
    Look(#[source] io::Error),
    /// A later release has written it.
    #[error(
        "the session of {vif} has state of version {version}, and this weir knows versions up to {known}"
    )]
    #[diagnostic(help("use the release that runs now, or a later one"))]
    Newer {
        /// Its interface.
        vif: String,
        /// The state's.
        version: u32,
        /// The last one that is known.
        known: u32,
    },
    /// What was set at run time cannot be known.
    #[error("what was set while the last weir ran cannot be read")]
    #[diagnostic(help(
        "weir does not start without its rules: put them into the configuration, and start the keeper anew, which \
         forgets them and disconnects all front ends"
    ))]
    Noted {
        /// What is wrong with it.
        source: io::Error,
    },
    /// The same: a later release has written it.
    #[error(
        "what was set while the last weir ran has version {version}, and this weir knows versions up to {known}"
    )]
    #[diagnostic(help("start the release that ran last, or a later one"))]
    NewerSettings {
        /// The version.
        version: u32,
        /// The last one that is known.
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
        /// What is wrong.
        why: String,
    },
    /// The socket of an interface.
    #[error("interface {name}")]
    #[diagnostic(forward(source))]
    Socket {
        /// The interface.
        name: PortName,
        /// What is wrong.
        source: ListenError,
    },
    /// It would take descriptors that are in reserve.
    #[error("interface {name}")]
    Descriptors {
        /// The interface.
        name: PortName,
        /// How many there are.
        source: io::Error,
    },
    /// The interface of an uplink.
    #[error("uplink {name}")]
    Uplink {
        /// The uplink.
        name: PortName,
        /// What is wrong.
        source: Box<dyn std::error::Error + Send + Sync>,
        /// What to do about it.
        #[help]
        help: Option<String>,
    },
    /// The file of leases of a network with DHCP.
    #[error("the file of leases {}", path.display())]
    #[diagnostic(help(
        "weir keeps it in the directory of its control socket, or in $STATE_DIRECTORY; it is to be weir's own file"
    ))]
    Leases {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: io::Error,
    },
    /// The way out of a network through the host.
    #[error("the way out of network `{network}`")]
    WayOut {
        /// The network.
        network: NetworkName,
        /// What its user can do, where that is known.
        #[help]
        help: Option<String>,
        /// What is wrong.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Its rules.
    #[error("the rules for a way out through the host")]
    #[diagnostic(help("`nat` takes nftables, Linux 5.12 and CAP_NET_ADMIN"))]
    Nat(#[source] io::Error),
    /// weir's own port in a network.
    #[error("weir's port {name}")]
    #[diagnostic(help(
        "if its file of leases is damaged, remove it: guests ask for their addresses again"
    ))]
    Gateway {
        /// The port.
        name: PortName,
        /// What went wrong.
        source: io::Error,
    },
    /// The sockets of the overlay.
    #[error("the overlay")]
    Overlay {
        /// What is wrong.
        source: OverlayError,
        /// What to do about it.
        #[help]
        help: Option<String>,
    },
    /// What FRR looks at.
    #[error("the overlay's EVPN")]
    Evpn {
        /// What is wrong.
        source: Box<dyn std::error::Error + Send + Sync>,
        /// What to do about it.
        #[help]
        help: Option<String>,
    },
    /// No room for another port.
    #[error("port {name}")]
    Port {
        /// The port.
        name: PortName,
        /// What is wrong.
        source: PortError,
    },
    /// Its filters are too much.
    #[error("port {name}")]
    Filter {
        /// The port.
        name: PortName,
        /// What is wrong.
        source: RulesError,
    },
    /// A worker cannot watch the device.
    #[error("uplink {name} cannot be watched")]
    Watch {
        /// The uplink.
        name: PortName,
        /// What the system said.
        source: io::Error,
    },
    /// Xen guests cannot be served here.
    #[error("[xen] is configured, and {device} cannot be used")]
    Xen {
        /// What is missing.
        device: &'static str,
        /// What was said.
        source: Box<dyn std::error::Error + Send + Sync>,
        /// What to do about it.
        #[help]
        help: Option<String>,
    },
    /// weir is shutting down.
    #[error(transparent)]
    Gone(#[from] ManagerGone),
}
