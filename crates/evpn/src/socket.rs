//! A socket to the kernel's rtnetlink (rtnetlink(7)). The kernel answers during the send, so nobody waits for an
//! answer.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};

/// The kernel gives a dump in pieces of at most this many bytes, if the reader has room for them (`netlink_dump`).
const MESSAGE_BYTES_MAX: usize = 32 << 10;

/// A socket of rtnetlink.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    buffer: Vec<u8>,
}

impl Socket {
    /// A socket that gets changes in these groups (`RTMGRP_*` of `linux/rtnetlink.h`, as bits). The socket takes no
    /// privilege.
    pub(crate) fn open(groups: u32) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // rtnetlink is the first of netlink's protocols, and the default.
        let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        bind(&fd, &SocketAddrNetlink::new(0, groups))?;
        Ok(Self { fd, buffer: vec![0; MESSAGE_BYTES_MAX] })
    }

    /// Enlarges the kernel's buffer for changes that were not read yet (bytes), as far as the host allows.
    pub(crate) fn make_room(&self, bytes: usize) {
        use rustix::net::sockopt::{
            set_socket_recv_buffer_size, set_socket_recv_buffer_size_force,
        };
        let _ = set_socket_recv_buffer_size_force(&self.fd, bytes)
            .or_else(|_| set_socket_recv_buffer_size(&self.fd, bytes));
    }

    /// Makes a request of the kernel.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn request(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.send(message, NLM_F_REQUEST | NLM_F_ACK | flags)?;
        self.read(&mut |_| ())
    }

    /// Asks the kernel, and returns each message of its answer.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn ask(
        &mut self,
        message: RouteNetlinkMessage,
        mut each: impl FnMut(RouteNetlinkMessage),
    ) -> io::Result<()> {
        self.send(message, NLM_F_REQUEST | NLM_F_ACK)?;
        self.read(&mut each)
    }

    /// Reads all objects of a kind.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn dump(
        &mut self,
        message: RouteNetlinkMessage,
        mut each: impl FnMut(RouteNetlinkMessage),
    ) -> io::Result<()> {
        self.send(message, NLM_F_REQUEST | NLM_F_DUMP)?;
        self.read(&mut each)
    }

    fn send(&self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        let mut header = NetlinkHeader::default();
        header.flags = flags;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        send(&self.fd, &bytes, SendFlags::empty())?;
        Ok(())
    }

    /// Reads an answer to its end.
    fn read(&mut self, each: &mut dyn FnMut(RouteNetlinkMessage)) -> io::Result<()> {
        loop {
            let len = self.receive()?;
            for part in messages(self.buffer.get(..len).unwrap_or_default()) {
                match part {
                    NetlinkPayload::InnerMessage(message) => each(message),
                    NetlinkPayload::Error(end) => {
                        let errno = end.code.map(|code| code.get().saturating_neg());
                        return errno.map_or(Ok(()), |it| Err(io::Error::from_raw_os_error(it)));
                    }
                    NetlinkPayload::Done(_) => return Ok(()),
                    _ => {}
                }
            }
        }
    }

    /// Reads up to `most` changes; `true` if there may be more.
    ///
    /// # Errors
    /// [`Errno::NOBUFS`]: some changes were lost. Others are the kernel's errors.
    pub(crate) fn changes(
        &mut self,
        most: usize,
        each: &mut dyn FnMut(RouteNetlinkMessage),
    ) -> io::Result<bool> {
        let mut seen = 0;
        while seen < most {
            let len = match self.receive() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                received => received?,
            };
            for part in messages(self.buffer.get(..len).unwrap_or_default()) {
                seen += 1;
                if let NetlinkPayload::InnerMessage(message) = part {
                    each(message);
                }
            }
        }
        Ok(true)
    }

    fn receive(&mut self) -> io::Result<usize> {
        let buffer = self.buffer.as_mut_slice();
        let received = retry_on_intr(|| recv(&self.fd, &mut *buffer, RecvFlags::TRUNC))?;
        match received {
            (_, len) if len > MESSAGE_BYTES_MAX => Err(Errno::MSGSIZE.into()),
            (_, len) => Ok(len),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The messages in the received bytes. A message that only a newer kernel knows is passed over.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = NetlinkPayload<RouteNetlinkMessage>> {
    let next = move || {
        if bytes.is_empty() {
            return None;
        }
        // Messages begin at multiples of four.
        let len = bytes.first_chunk().map_or(0, |len| u32::from_ne_bytes(*len)) as usize;
        let (message, rest) = match bytes.split_at_checked(len.next_multiple_of(4)) {
            Some(parts) if len > 0 => parts,
            _ => (bytes, &[][..]),
        };
        bytes = rest;
        Some(NetlinkMessage::deserialize(message).ok().map(|it| it.payload))
    };
    std::iter::from_fn(next).flatten()
}
