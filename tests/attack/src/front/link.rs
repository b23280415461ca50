//! vhost-user as bytes on a Unix socket.

use std::{
    io::{IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
        SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, recvmsg, send, sendmsg,
        socket_with,
        sockopt::{Timeout, set_socket_timeout},
    },
};

use super::{Strike, harm};

/// Flags of a header (vhost-user, "Header").
pub const VERSION: u32 = 1;
/// See [`VERSION`].
pub const REPLY: u32 = 1 << 2;
/// See [`VERSION`].
pub const NEED_REPLY: u32 = 1 << 3;

/// Request numbers (vhost-user, "Front-end message types").
pub mod request {
    #![allow(missing_docs, reason = "the specification's own names")]
    pub const GET_FEATURES: u32 = 1;
    pub const SET_FEATURES: u32 = 2;
    pub const SET_OWNER: u32 = 3;
    pub const RESET_OWNER: u32 = 4;
    pub const SET_MEM_TABLE: u32 = 5;
    pub const SET_LOG_BASE: u32 = 6;
    pub const SET_LOG_FD: u32 = 7;
    pub const SET_VRING_NUM: u32 = 8;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const SET_VRING_BASE: u32 = 10;
    pub const GET_VRING_BASE: u32 = 11;
    pub const SET_VRING_KICK: u32 = 12;
    pub const SET_VRING_CALL: u32 = 13;
    pub const SET_VRING_ERR: u32 = 14;
    pub const GET_PROTOCOL_FEATURES: u32 = 15;
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    pub const GET_QUEUE_NUM: u32 = 17;
    pub const SET_VRING_ENABLE: u32 = 18;
    pub const SEND_RARP: u32 = 19;
    pub const NET_SET_MTU: u32 = 20;
    pub const SET_BACKEND_REQ_FD: u32 = 21;
    pub const IOTLB_MSG: u32 = 22;
    pub const GET_CONFIG: u32 = 24;
    pub const SET_CONFIG: u32 = 25;
    pub const GET_INFLIGHT_FD: u32 = 31;
    pub const SET_INFLIGHT_FD: u32 = 32;
    pub const RESET_DEVICE: u32 = 34;
    pub const VRING_KICK: u32 = 35;
    pub const GET_MAX_MEM_SLOTS: u32 = 36;
    pub const ADD_MEM_REG: u32 = 37;
    pub const REM_MEM_REG: u32 = 38;
    pub const SET_STATUS: u32 = 39;
    pub const GET_STATUS: u32 = 40;
}

/// Longest time for weir to answer or to disconnect. A session limited to 5 % of a CPU is slow on a busy machine.
const PATIENCE: Duration = Duration::from_secs(2);

/// A connection to one of weir's sockets.
#[derive(Debug)]
pub struct Link {
    socket: OwnedFd,
}

impl Link {
    /// Connects. If weir does not accept, this waits as long as every other operation here.
    pub fn connect(path: &Path) -> Strike<Self> {
        Self::connect_as(path, SocketType::STREAM)
    }

    /// Connects to a socket that keeps message boundaries.
    pub fn connect_packets(path: &Path) -> Strike<Self> {
        Self::connect_as(path, SocketType::SEQPACKET)
    }

    /// A link over a connected socket.
    pub fn of(socket: OwnedFd) -> Self {
        Self { socket }
    }

    fn connect_as(path: &Path, kind: SocketType) -> Strike<Self> {
        let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
        for timeout in [Timeout::Send, Timeout::Recv] {
            set_socket_timeout(&socket, timeout, Some(PATIENCE))?;
        }
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(Self { socket })
    }

    /// Sends bytes and descriptors without any header.
    pub fn raw(&self, mut bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Strike {
        if !fds.is_empty() {
            // SCM_MAX_FD is 253.
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !control.push(SendAncillaryMessage::ScmRights(fds)) {
                return Err(Errno::INVAL.into());
            }
            let sent =
                sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
            bytes = bytes.get(sent..).unwrap_or_default();
        }
        while !bytes.is_empty() {
            let sent = send(&self.socket, bytes, SendFlags::NOSIGNAL)?;
            bytes = bytes.get(sent..).unwrap_or_default();
        }
        Ok(())
    }

    /// Sends a message with any flags.
    pub fn flagged(&self, request: u32, flags: u32, body: &[u8], fds: &[BorrowedFd<'_>]) -> Strike {
        self.raw(&message(request, flags, body), fds)
    }

    /// Sends a request.
    pub fn tell(&self, request: u32, body: &[u8], fds: &[BorrowedFd<'_>]) -> Strike {
        self.flagged(request, VERSION, body, fds)
    }

    /// Sends a request with a number as its body.
    pub fn tell_u64(&self, request: u32, value: u64) -> Strike {
        self.tell(request, &value.to_le_bytes(), &[])
    }

    /// Sends a request about a ring.
    pub fn tell_ring(&self, request: u32, index: u32, value: u32) -> Strike {
        self.tell(request, &ring_state(index, value), &[])
    }

    /// Sends a request that sets or clears a descriptor of ring `index`.
    pub fn tell_fd(&self, request: u32, index: u32, fd: Option<BorrowedFd<'_>>) -> Strike {
        let word = u64::from(index) | u64::from(fd.is_none()) << 8;
        self.tell(request, &word.to_le_bytes(), fd.as_slice())
    }

    /// Reads one reply and returns its body.
    pub fn reply(&self) -> Strike<Vec<u8>> {
        let mut header = [0; 12];
        self.read_exact(&mut header)?;
        let [.., a, b, c, d] = header;
        let mut body = vec![0; (u32::from_le_bytes([a, b, c, d]) as usize).min(1 << 16)];
        self.read_exact(&mut body)?;
        Ok(body)
    }

    /// Sends a request. Returns the number in the reply.
    pub fn ask(&self, request: u32) -> Strike<u64> {
        self.tell(request, &[], &[])?;
        self.number()
    }

    /// Sends a request that must be acknowledged (`REPLY_ACK`). Returns the acknowledgement.
    pub fn acked(&self, request: u32, body: &[u8], fds: &[BorrowedFd<'_>]) -> Strike<u64> {
        self.flagged(request, VERSION | NEED_REPLY, body, fds)?;
        self.number()
    }

    fn number(&self) -> Strike<u64> {
        let body = self.reply()?;
        let bytes = body.first_chunk().ok_or(Errno::PROTO)?;
        Ok(u64::from_le_bytes(*bytes))
    }

    fn read_exact(&self, mut into: &mut [u8]) -> Strike {
        while !into.is_empty() {
            let (read, _) = recv(&self.socket, &mut *into, RecvFlags::empty())?;
            if read == 0 {
                return Err(Errno::CONNRESET.into());
            }
            into = into.get_mut(read..).unwrap_or_default();
        }
        Ok(())
    }

    /// weir must disconnect now.
    pub fn hung_up(&self, why: &str) -> Strike {
        let end = Instant::now() + PATIENCE;
        let mut bytes = [0; 4096];
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return harm(format!("weir serves on after {why}"));
            }
            if !readable(self.socket.as_fd(), left)? {
                continue;
            }
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let into = &mut [IoSliceMut::new(&mut bytes)];
            match recvmsg(&self.socket, into, &mut control, RecvFlags::DONTWAIT) {
                Ok(message) if message.bytes == 0 => return Ok(()),
                Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => return Ok(()),
            }
        }
    }

    /// weir must still answer.
    pub fn still_served(&self, after: &str) -> Strike {
        match self.ask(request::GET_FEATURES) {
            Ok(_) => Ok(()),
            Err(error) => harm(format!("no answer after {after}: {error}")),
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// True if `fd` becomes readable or its peer closes within `patience`.
pub fn readable(fd: BorrowedFd<'_>, patience: Duration) -> Strike<bool> {
    let timeout = Timespec::try_from(patience).map_err(|_| Errno::INVAL)?;
    match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// The bytes of a message.
pub fn message(request: u32, flags: u32, body: &[u8]) -> Vec<u8> {
    let size = u32::try_from(body.len()).unwrap_or(u32::MAX);
    let mut bytes = [request, flags, size].map(u32::to_le_bytes).concat();
    bytes.extend(body);
    bytes
}

/// The body of a vring state.
pub fn ring_state(index: u32, value: u32) -> [u8; 8] {
    let mut body = [0; 8];
    body[..4].copy_from_slice(&index.to_le_bytes());
    body[4..].copy_from_slice(&value.to_le_bytes());
    body
}

/// A memory region's description: guest address, size, user address, offset in its file.
pub fn region(guest: u64, size: u64, user: u64, offset: u64) -> Vec<u8> {
    [guest, size, user, offset].map(u64::to_le_bytes).concat()
}

/// The body of `SET_MEM_TABLE`.
pub fn table(regions: &[Vec<u8>]) -> Vec<u8> {
    let count = u32::try_from(regions.len()).unwrap_or(u32::MAX);
    let mut body = ring_state(count, 0).to_vec();
    body.extend(regions.concat());
    body
}

/// The body of `ADD_MEM_REG` and `REM_MEM_REG`.
pub fn one_region(region: &[u8]) -> Vec<u8> {
    [&[0; 8], region].concat()
}
