//! What goes between weir and its helper: a message a packet, JSON, with a descriptor where one is given.

use std::collections::BTreeSet;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use weir_config::{InterfaceName, SocketMode, SocketPath};
use weir_limits::HELPER_MESSAGE_BYTES_MAX;

use super::Lent;
use crate::explain::UplinkLayer;
use crate::nat::NatTask;
use crate::unix_socket::FileId;

/// What a helper is there for, said once and before weir serves anybody.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tasks {
    /// Beside this socket any other may be made; interfaces' settings are kept there, too.
    pub(crate) control: Option<SocketPath>,
    /// The group that the control socket is for.
    pub(crate) group: Option<u32>,
    /// Interfaces whose cards may be set.
    pub(crate) interfaces: BTreeSet<InterfaceName>,
    /// Whether virtual processors may be told where to run.
    pub(crate) pin_vcpus: bool,
    /// The configuration's file, which is opened for weir to read it anew.
    pub(crate) config: Option<PathBuf>,
    /// Another weir has this one's place yet.
    pub(crate) beside: bool,
    /// Links that others can make count on the way to front ends.
    pub(crate) allow_links: bool,
    /// Networks, by their VNIs, of which FRR may be told.
    pub(crate) vnis: BTreeSet<u32>,
    /// Ways out of networks through the host, whose rules it makes before it gives up its rights, and holds.
    pub(crate) nat: Vec<NatTask>,
}

/// What of FRR is to be there for what it has said to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FrrDaemon {
    /// It notes routes in the kernel.
    Zebra,
    /// It speaks BGP.
    Bgpd,
}

impl FrrDaemon {
    pub(crate) const ALL: [Self; 2] = [Self::Zebra, Self::Bgpd];

    /// The socket by which people ask it (`vtysh`), where distributions have it.
    pub(super) fn path(self) -> &'static str {
        match self {
            Self::Zebra => "/run/frr/zebra.vty",
            Self::Bgpd => "/run/frr/bgpd.vty",
        }
    }
}

/// An address that FRR is told of, or not any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Announcement {
    pub(crate) vni: u32,
    pub(crate) mac: [u8; 6],
    /// Whether it stays here; `None` withdraws it.
    pub(crate) sticky: Option<bool>,
}

/// Who has an IP address, as FRR is told, or nobody any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OwnerAnnouncement {
    pub(crate) vni: u32,
    pub(crate) ip: IpAddr,
    pub(crate) mac: Option<[u8; 6]>,
}

/// What weir asks for.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) enum Request {
    /// The first one.
    Begin(Tasks),
    /// Then, sockets elsewhere.
    Allow { path: SocketPath },
    /// Nothing is added to the tasks from now on.
    Confine,
    /// Listens on a socket, whose descriptor comes with the answer.
    Bind { path: SocketPath, mode: SocketMode },
    /// Goes on with one that a weir which is gone has left, if its file is this one still.
    Adopt { path: SocketPath, mode: SocketMode, file: FileId },
    /// Removes one that was made by `Bind`.
    Remove { path: SocketPath },
    /// Opens the file of records beside a socket, whose descriptor comes with the answer.
    OpenRecords { path: SocketPath },
    /// Removes it.
    RemoveRecords { path: SocketPath },
    /// Connects to a socket, whose descriptor comes with the answer.
    Connect { path: SocketPath },
    /// Connects to the keeper, whose descriptor comes with the answer.
    ConnectKeeper { path: SocketPath },
    /// Opens the configuration's file, whose descriptor comes with the answer.
    OpenConfig,
    /// The other weir has stopped: restores what it has changed, and removes its control socket.
    TakePlace,
    /// Has an interface gather frames for that long; with 0, for as long as it was found to.
    Gather { interface: InterfaceName, uplink_ns: u64 },
    /// Restores what it was found to have.
    Leave { interface: InterfaceName },
    /// Tells FRR of addresses.
    Announce { all: Vec<Announcement> },
    /// Tells FRR who has IP addresses.
    AnnounceOwners { all: Vec<OwnerAnnouncement> },
    /// Connects to FRR's daemons, whose descriptor comes with the answer: it ends with the daemon.
    ConnectFrr { daemon: FrrDaemon },
    /// Has VNIs go and come, so that FRR says all of them anew.
    RenewFabric,
    /// Removes the devices that FRR looks at, where no weir has them open.
    LeaveFabric,
    /// Lets a virtual processor's thread run on these processors only.
    Pin { thread: u32, cpus: BTreeSet<u16> },
    /// weir ends and waits for nobody: restores and removes all that was changed and made. There is no answer.
    End,
}

/// What the helper says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) enum Answer {
    Done,
    /// The file of a socket that listens.
    Bound {
        file: FileId,
    },
    /// What an interface does now.
    Interface {
        layer: UplinkLayer,
        found_ns: u64,
    },
    /// The kernel's refusal.
    Errno(i32),
    Refused {
        message: String,
        help: Option<String>,
    },
}

pub(crate) fn send(
    socket: BorrowedFd<'_>,
    message: &impl Serialize,
    descriptor: Lent<'_>,
) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    if bytes.len() > HELPER_MESSAGE_BYTES_MAX {
        return Err(Errno::MSGSIZE.into());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let lent = descriptor.as_slice();
    if !lent.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(lent));
    }
    let parts = [IoSlice::new(&bytes)];
    retry_on_intr(|| sendmsg(socket, &parts, &mut control, SendFlags::NOSIGNAL))?;
    Ok(())
}

/// Waits for one message; `None` when the other end is closed.
pub(crate) fn receive<T: DeserializeOwned>(
    socket: BorrowedFd<'_>,
) -> io::Result<Option<(T, Option<OwnedFd>)>> {
    let mut bytes = vec![0; HELPER_MESSAGE_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = retry_on_intr(|| {
        let mut parts = [IoSliceMut::new(&mut bytes)];
        recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let mut descriptor = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            descriptor = descriptors.last();
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
    Ok(Some((message, descriptor)))
}
