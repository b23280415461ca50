//! The protocol between weir and its helper: one JSON message per packet, with a descriptor in some of them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
    sendmsg, socketpair,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use weir_config::{InterfaceName, NamePattern, SocketPath};
use weir_limits::{HELPER_MESSAGE_BYTES_MAX, HELPER_SOCKETS_TOGETHER_MAX};
use weir_port_gateway::Means;

use crate::explain::{InterruptPlaces, UplinkLayer};
use crate::nat::NatTask;
use crate::unix_socket::{Access, Accounts, FileId, Listed};

/// A descriptor that is borrowed to be sent.
type Lent<'a> = Option<BorrowedFd<'a>>;

/// The helper's tasks, sent once and before weir serves any guest.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tasks {
    /// The control socket. Other sockets may be made in its directory, and interfaces' settings are kept there.
    pub(crate) control: Option<SocketPath>,
    /// The group that has access to the control socket.
    pub(crate) group: Option<u32>,
    /// The accounts that have access to other sockets.
    pub(crate) accounts: Accounts,
    /// Interfaces whose network cards may be configured.
    pub(crate) interfaces: BTreeSet<InterfaceName>,
    /// True if the helper may set the affinity of virtual processors.
    pub(crate) pin_vcpus: bool,
    /// The configuration file, which the helper opens for weir on a reload.
    pub(crate) config: Option<PathBuf>,
    /// True while another weir still runs in this one's place.
    pub(crate) beside: bool,
    /// True if links made by other users are followed in paths to front ends.
    pub(crate) allow_links: bool,
    /// The directory below which weir may connect to front ends.
    pub(crate) client_dir: Option<SocketPath>,
    /// Directories of interfaces on demand.
    pub(crate) on_demand: BTreeSet<SocketPath>,
    /// The VNIs of networks whose addresses may be announced to FRR.
    pub(crate) vnis: BTreeSet<u32>,
    /// Ways out of networks through the host. The helper makes their rules before it gives up its rights, and holds
    /// them.
    pub(crate) nat: Vec<NatTask>,
    /// weir's own addresses in networks, if the host's resolvers may be asked.
    pub(crate) resolver: Option<Vec<IpAddr>>,
}

impl Tasks {
    /// True if the helper has to give sockets to a user or a group.
    pub(super) fn gives_away(&self) -> bool {
        self.group.is_some() || self.accounts.is_any()
    }
}

/// An FRR daemon that must run for FRR's routes to be valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FrrDaemon {
    /// The daemon that installs routes in the kernel.
    Zebra,
    /// The daemon that speaks BGP.
    Bgpd,
}

impl FrrDaemon {
    pub(crate) const ALL: [Self; 2] = [Self::Zebra, Self::Bgpd];

    /// The socket of the daemon's terminal (`vtysh`), at the path that distributions use.
    pub(super) fn path(self) -> &'static str {
        match self {
            Self::Zebra => "/run/frr/zebra.vty",
            Self::Bgpd => "/run/frr/bgpd.vty",
        }
    }
}

/// An address to announce to FRR or to withdraw.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Announcement {
    pub(crate) vni: u32,
    pub(crate) mac: [u8; 6],
    /// True if the address is sticky; `None` withdraws it.
    pub(crate) sticky: Option<bool>,
}

/// The owner of an IP address, to announce to FRR; without a MAC address, the announcement is withdrawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OwnerAnnouncement {
    pub(crate) vni: u32,
    pub(crate) ip: IpAddr,
    pub(crate) mac: Option<[u8; 6]>,
}

/// A request of weir.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) enum Request {
    /// The first request.
    Begin(Tasks),
    /// Allows sockets outside the control socket's directory, right after the first request.
    Allow { paths: Vec<SocketPath> },
    /// Names a user or a group to which sockets may be given, at the same time.
    Name { accounts: Accounts },
    /// Ends the additions to the tasks.
    Confine,
    /// Listens on a socket, whose descriptor comes with the answer.
    Bind { path: SocketPath, access: Access },
    /// Listens on the sockets of several interfaces, and opens the files of records beside the
    /// sockets. The descriptors come with the answer, in the same order.
    BindAll { all: Vec<WantedSocket> },
    /// Takes over a listening socket of an earlier weir, if the socket's file is still this one.
    Adopt { path: SocketPath, access: Access, file: FileId },
    /// Removes sockets that were made by `Bind`.
    Remove { paths: Vec<SocketPath> },
    /// Opens the file of records beside a socket, whose descriptor comes with the answer.
    OpenRecords { path: SocketPath },
    /// Removes the file of records.
    RemoveRecords { path: SocketPath },
    /// Connects to a socket, whose descriptor comes with the answer.
    Connect { path: SocketPath },
    /// Looks into a directory for sockets of interfaces on demand.
    LookFor { directory: SocketPath, pattern: NamePattern },
    /// Makes the kernel report changes in such a directory, by a descriptor that comes with the
    /// answer.
    Watch { directory: SocketPath },
    /// Connects to the keeper. The connection's descriptor comes with the answer.
    ConnectKeeper { path: SocketPath },
    /// Connects to one of the host's resolvers: to another one for each `turn`.
    ConnectResolver { turn: u32, means: Means },
    /// Opens the configuration's file, whose descriptor comes with the answer.
    OpenConfig,
    /// Restores the changes of the weir that this one replaces, and removes its control socket. That weir has
    /// stopped.
    TakePlace,
    /// Makes an interface gather frames for this time; 0 means its original setting.
    Gather { interface: InterfaceName, uplink_ns: u64 },
    /// Sends the interrupts of an interface's queues to these processors; without any, restores the
    /// original setting.
    Follow { interface: InterfaceName, cpus: BTreeMap<u16, u16> },
    /// Restores the interface's original settings.
    Leave { interface: InterfaceName },
    /// Announces addresses to FRR.
    Announce { all: Vec<Announcement> },
    /// Announces the owners of IP addresses to FRR.
    AnnounceOwners { all: Vec<OwnerAnnouncement> },
    /// Connects to one of FRR's daemons, whose descriptor comes with the answer: the connection ends with the daemon.
    ConnectFrr { daemon: FrrDaemon },
    /// Removes VNIs and adds them again, so that FRR sends everything about them again.
    RenewFabric,
    /// Removes the devices that FRR watches, unless a weir has them open.
    LeaveFabric,
    /// Restricts a virtual processor's thread to these processors.
    Pin { thread: u32, cpus: BTreeSet<u16> },
    /// weir exits without waiting: restores and removes everything that was changed and made. There is no answer.
    End,
}

/// A socket that weir wants to listen on, with records beside it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WantedSocket {
    pub(crate) path: SocketPath,
    pub(crate) access: Access,
}

/// The answer about one of several sockets.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Made {
    pub(super) bound: Answer,
    /// The answer about the records; `None` without a socket.
    pub(super) records: Option<Answer>,
}

/// An answer of the helper.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) enum Answer {
    Done,
    /// The identity of a listening socket's file.
    Bound {
        file: FileId,
    },
    /// Sockets of interfaces on demand.
    Listed(Listed),
    /// The identity of a directory that is watched.
    Watched {
        directory: FileId,
    },
    /// An answer for each socket, in the order of the request.
    Each {
        all: Vec<Made>,
    },
    /// The present state of an interface.
    Interface {
        layer: UplinkLayer,
        found_ns: u64,
    },
    /// The processors of an interface's interrupts.
    Interrupts(InterruptPlaces),
    /// The kernel's error.
    Errno(i32),
    Refused {
        message: String,
        help: Option<String>,
    },
}

/// Both ends of a connection between two processes of weir.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    Ok(socketpair(AddressFamily::UNIX, kind, flags, None)?)
}

/// Starts `program`, which is weir's own, as a further process of weir called `name`. Its end of a connection is its
/// standard input.
pub(crate) fn start(program: &str, name: &str, arguments: &[&str]) -> io::Result<(OwnedFd, Child)> {
    let (ours, theirs) = pair()?;
    let process = Command::new(program)
        .arg0(name)
        .args(arguments)
        // A terminal's Ctrl-C is meant for weir, which then has others remove what weir has made.
        .process_group(0)
        .current_dir("/")
        // Only weir reports to the service manager.
        .env_remove("NOTIFY_SOCKET")
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .spawn()?;
    Ok((ours, process))
}

/// This process's program, even if its file was removed.
pub(crate) const OWN: &str = "/proc/self/exe";

pub(crate) fn send(
    socket: BorrowedFd<'_>,
    message: &impl Serialize,
    descriptor: Lent<'_>,
) -> io::Result<()> {
    send_many(socket, message, descriptor.as_slice())
}

/// As [`send`], without descriptors, and without waiting for room.
///
/// # Errors
/// `EAGAIN` without room, and the errors of `send`.
pub(crate) fn send_at_once(socket: BorrowedFd<'_>, message: &impl Serialize) -> io::Result<()> {
    send_as(socket, message, &[], SendFlags::DONTWAIT)
}

/// As [`send`], with several descriptors.
pub(super) fn send_many(
    socket: BorrowedFd<'_>,
    message: &impl Serialize,
    lent: &[BorrowedFd<'_>],
) -> io::Result<()> {
    send_as(socket, message, lent, SendFlags::empty())
}

fn send_as(
    socket: BorrowedFd<'_>,
    message: &impl Serialize,
    lent: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    if bytes.len() > HELPER_MESSAGE_BYTES_MAX {
        return Err(Errno::MSGSIZE.into());
    }
    let mut space = [MaybeUninit::uninit(); MANY_SPACE];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !lent.is_empty() && !control.push(SendAncillaryMessage::ScmRights(lent)) {
        return Err(Errno::MSGSIZE.into());
    }
    let parts = [IoSlice::new(&bytes)];
    retry_on_intr(|| sendmsg(socket, &parts, &mut control, flags | SendFlags::NOSIGNAL))?;
    Ok(())
}

/// Waits for one message; `None` if the other end is closed.
pub(crate) fn receive<T: DeserializeOwned>(
    socket: BorrowedFd<'_>,
) -> io::Result<Option<(T, Option<OwnedFd>)>> {
    let received = receive_into(socket, &mut [MaybeUninit::uninit(); ONE_SPACE])?;
    Ok(received.map(|(message, mut descriptors)| (message, descriptors.pop())))
}

/// As [`receive`], for messages with several descriptors.
pub(super) fn receive_many<T: DeserializeOwned>(
    socket: BorrowedFd<'_>,
) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    receive_into(socket, &mut [MaybeUninit::uninit(); MANY_SPACE])
}

/// Room for a descriptor beside a message.
const ONE_SPACE: usize = rustix::cmsg_space!(ScmRights(1));
/// Room for the descriptors of an answer to [`Request::BindAll`].
const MANY_SPACE: usize = rustix::cmsg_space!(ScmRights(2 * HELPER_SOCKETS_TOGETHER_MAX));

fn receive_into<T: DeserializeOwned>(
    socket: BorrowedFd<'_>,
    space: &mut [MaybeUninit<u8>],
) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; HELPER_MESSAGE_BYTES_MAX];
    let mut control = RecvAncillaryBuffer::new(space);
    let received = retry_on_intr(|| {
        let mut parts = [IoSliceMut::new(&mut bytes)];
        recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(come) = message {
            descriptors.extend(come);
        }
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(Errno::MSGSIZE.into());
    }
    let message = bytes.get(..received.bytes).unwrap_or_default();
    let message = serde_json::from_slice(message);
    let message = message.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    Ok(Some((message, descriptors)))
}
