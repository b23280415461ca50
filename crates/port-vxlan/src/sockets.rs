//! The sockets of an overlay: one for each queue on the overlay's port, and some to send.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use weir_limits::{
    OVERLAY_OVERHEAD_V4, OVERLAY_OVERHEAD_V6, OVERLAY_SOCKET_BUFFER_LEN, OVERLAY_SOURCE_PORTS,
};
use weir_port_tap::{InterfaceName, Link, LinkError, NameError};
use weir_wire::Head;
use weir_wire::traffic_class::{DSCP_SHIFT, ecn};

use crate::sys;

/// The reason why [`OverlaySockets::open`](crate::OverlaySockets::open) failed.
#[derive(Debug, thiserror::Error)]
pub enum OverlayError {
    /// The underlay's interface cannot be used.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// No interface has the address.
    #[error("this host does not have the address {0}")]
    NoAddress(IpAddr),
    /// Another program receives at this address.
    #[error("{0} is in use")]
    Busy(SocketAddr),
    /// Guests' frames do not fit into the underlay's packets.
    #[error(
        "interface `{name}` has an MTU of {has}, and datagrams with frames of {mtu} take {needs}"
    )]
    Mtu {
        /// The interface.
        name: String,
        /// The interface's MTU.
        has: u32,
        /// The MTU that guests get.
        mtu: u16,
        /// The MTU that the interface would need.
        needs: u32,
    },
    /// Another step failed.
    #[error("cannot {step}")]
    Setup {
        /// The step that failed.
        step: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

impl From<NameError> for OverlayError {
    fn from(error: NameError) -> Self {
        Self::Link(error.into())
    }
}

impl OverlayError {
    /// Advice to the user, if there is any.
    pub fn help(&self) -> Option<String> {
        match self {
            Self::Link(error) => error.help(),
            Self::NoAddress(address) => Some(format!(
                "`ip addr` lists the addresses there are; give {address} to an interface before weir starts"
            )),
            Self::Busy(address) => Some(format!(
                "a VXLAN device of the kernel may have it: `ip -d link show type vxlan`; or another program: `ss \
                 -ulpn sport = :{}`; give [overlay] another `port`, on all hosts, or end it",
                address.port()
            )),
            Self::Mtu { name, has, mtu, needs } => Some(format!(
                "raise the underlay's MTU (`ip link set dev {name} mtu {needs}`, on every host and switch of the way), \
                 or set `mtu = {}` in [overlay]",
                has.saturating_sub(needs - u32::from(*mtu))
            )),
            Self::Setup { .. } => None,
        }
    }
}

/// The place of an overlay in the underlay, and its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverlayOptions {
    /// This host's address in the underlay.
    pub local: IpAddr,
    /// The interface of the underlay, if datagrams may not use another one.
    pub interface: Option<String>,
    /// The UDP port of all hosts.
    pub port: u16,
    /// Sockets among which flows are divided, 1 to [`weir_limits::OVERLAY_QUEUES_MAX`].
    pub queues: usize,
    /// The MTU that guests get.
    pub mtu: u16,
    /// The DSCP of datagrams to other hosts.
    pub dscp: OuterDscp,
}

/// The DSCP of the datagrams in which frames travel (RFC 2983).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OuterDscp {
    /// This DSCP, 0 to 63. Guests then have no influence on priorities in the underlay.
    Fixed(u8),
    /// The DSCP of the packet inside, and 0 without one (Linux calls it `tos inherit`).
    Inherit,
}

impl OuterDscp {
    /// The traffic class of a datagram with the frame that begins with `head`. Its ECN bits are the frame's (RFC 6040
    /// §4.1, normal mode).
    #[inline]
    pub(crate) fn class_for(self, head: &Head) -> u8 {
        let inner = head.traffic_class();
        match self {
            Self::Fixed(dscp) => dscp << DSCP_SHIFT | inner & ecn::MASK,
            Self::Inherit => inner,
        }
    }
}

/// The open sockets of an overlay.
#[derive(Debug)]
pub struct OverlaySockets {
    /// One socket for each queue.
    pub(crate) queues: Vec<OwnedFd>,
    /// Sockets that send, each with a port that the kernel chose.
    pub(crate) senders: Vec<OwnedFd>,
    pub(crate) local: SocketAddr,
    pub(crate) dscp: OuterDscp,
    /// Readable after weir has pushed one of its own answers.
    pub(crate) bell: OwnedFd,
}

impl OverlaySockets {
    /// Opens the sockets in the calling thread's network namespace. No privilege is needed.
    ///
    /// # Errors
    /// [`OverlayError`]
    pub fn open(options: &OverlayOptions) -> Result<Self, OverlayError> {
        Self::go_on(options, Vec::new())
    }

    /// Opens the sockets, and continues with queues that another process has left, if they are exactly the wanted ones.
    ///
    /// # Errors
    /// [`OverlayError`]
    pub fn go_on(options: &OverlayOptions, left: Vec<OwnedFd>) -> Result<Self, OverlayError> {
        if let Some(name) = &options.interface {
            let link =
                Link::new(InterfaceName::new(name)?).map_err(setup("ask for an interface"))?;
            let has = link.mtu().map_err(|error| match Errno::from_io_error(&error) {
                Some(Errno::NODEV) => LinkError::NoInterface { name: name.clone() }.into(),
                _ => setup("read the MTU of the underlay's interface")(error),
            })?;
            let overhead = match options.local {
                IpAddr::V4(_) => OVERLAY_OVERHEAD_V4,
                IpAddr::V6(_) => OVERLAY_OVERHEAD_V6,
            };
            let needs = u32::from(options.mtu) + u32::from(overhead);
            if has < needs {
                return Err(OverlayError::Mtu { name: name.clone(), has, mtu: options.mtu, needs });
            }
        }
        let local = SocketAddr::new(options.local, options.port);
        let queue = |_| {
            let socket = open(options)?;
            if options.queues > 1 {
                socket.set_reuse_port(true).map_err(setup("share a port between sockets"))?;
            }
            enlarge(&socket);
            sys::gather(socket.as_fd()).map_err(setup("ask for UDP GRO (Linux 5.0 has it)"))?;
            bind(&socket, local)?;
            Ok(socket.into())
        };
        let sender = |_| {
            let socket = open(options)?;
            // No datagrams are expected there.
            let _ = socket.set_recv_buffer_size(1);
            bind(&socket, SocketAddr::new(options.local, 0))?;
            Ok(socket.into())
        };
        let is_its = |queue: &OwnedFd| is_bound(queue, local, options.interface.as_deref());
        let queues: Vec<OwnedFd> = if left.len() == options.queues && left.iter().all(is_its) {
            left
        } else {
            drop(left);
            (0..options.queues).map(queue).collect::<Result<_, OverlayError>>()?
        };
        // Queues that an older weir has left may lack these options.
        for queue in &queues {
            sys::tell_class(queue.as_fd(), options.local.is_ipv6())
                .map_err(setup("ask for the traffic class of datagrams"))?;
        }
        if options.local.is_ipv6() {
            for queue in &queues {
                let done = sys::take_without_checksum(queue.as_fd());
                done.map_err(setup("take datagrams without a checksum over IPv6"))?;
            }
        }
        let senders = (0..OVERLAY_SOURCE_PORTS).map(sender).collect::<Result<_, OverlayError>>()?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let bell = bell.map_err(|errno| setup("make an event counter")(errno.into()))?;
        Ok(Self { queues, senders, local, dscp: options.dscp, bell })
    }

    /// The queues, in their order.
    pub fn queues(&self) -> &[OwnedFd] {
        &self.queues
    }
}

fn open(options: &OverlayOptions) -> Result<Socket, OverlayError> {
    let v6 = options.local.is_ipv6();
    let domain = if v6 { Domain::IPV6 } else { Domain::IPV4 };
    let socket = Socket::new(domain, Type::DGRAM.nonblocking(), Some(Protocol::UDP))
        .map_err(setup("open a UDP socket"))?;
    if v6 {
        socket.set_only_v6(true).map_err(setup("use IPv6 only"))?;
    }
    if let Some(interface) = &options.interface {
        socket.bind_device(Some(interface.as_bytes())).map_err(setup(
            "keep a socket to the underlay's interface (Linux 5.7 lets any user)",
        ))?;
    }
    sys::never_fragment(socket.as_fd(), v6).map_err(setup("set DF"))?;
    // A buffer beyond the limit that the host sets for all (`net.core.wmem_max`) needs a privilege.
    let _ =
        rustix::net::sockopt::set_socket_send_buffer_size_force(&socket, OVERLAY_SOCKET_BUFFER_LEN)
            .or_else(|_| {
                rustix::net::sockopt::set_socket_send_buffer_size(
                    &socket,
                    OVERLAY_SOCKET_BUFFER_LEN,
                )
            });
    Ok(socket)
}

/// True if a socket is bound to this address and interface.
fn is_bound(socket: &OwnedFd, local: SocketAddr, interface: Option<&str>) -> bool {
    let socket = SockRef::from(socket);
    let address = socket.local_addr().ok().and_then(|address| address.as_socket());
    let device = socket.device().ok().flatten();
    address == Some(local) && device.as_deref() == interface.map(str::as_bytes)
}

fn bind(socket: &Socket, local: SocketAddr) -> Result<(), OverlayError> {
    socket.bind(&local.into()).map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::ADDRNOTAVAIL) => OverlayError::NoAddress(local.ip()),
        Some(Errno::ADDRINUSE) => OverlayError::Busy(local),
        _ => setup("bind a UDP socket")(error),
    })
}

/// Makes room for bursts, as far as the host allows.
fn enlarge(socket: &Socket) {
    use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_recv_buffer_size_force};
    if set_socket_recv_buffer_size_force(socket, OVERLAY_SOCKET_BUFFER_LEN).is_err() {
        let _ = set_socket_recv_buffer_size(socket, OVERLAY_SOCKET_BUFFER_LEN);
    }
}

fn setup(step: &'static str) -> impl FnOnce(io::Error) -> OverlayError {
    move |source| OverlayError::Setup { step, source }
}
