//! Addresses and options of packet sockets (`linux/if_packet.h`, packet(7)).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::{c_int, packet_mreq, sockaddr_ll, socklen_t};

/// `PACKET_FANOUT_FLAG_IGNORE_OUTGOING`: a group decides this for its sockets.
const FANOUT_FLAG_IGNORE_OUTGOING: c_int = 0x4000;

fn check(result: c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn set<T>(socket: BorrowedFd<'_>, option: c_int, value: &T) -> io::Result<()> {
    let len = size_of::<T>() as socklen_t;
    let value = std::ptr::from_ref(value).cast();
    // SAFETY: `len` bytes at `value` are readable during the call.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_PACKET, option, value, len) })
}

pub(crate) fn set_option(socket: BorrowedFd<'_>, option: c_int, value: c_int) -> io::Result<()> {
    set(socket, option, &value)
}

/// `PACKET_ADD_MEMBERSHIP` with `PACKET_MR_PROMISC`: the interface is promiscuous while the socket is
/// open.
pub(crate) fn add_promiscuous(socket: BorrowedFd<'_>, index: u32) -> io::Result<()> {
    let request = packet_mreq {
        mr_ifindex: index.cast_signed(),
        mr_type: libc::PACKET_MR_PROMISC as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set(socket, libc::PACKET_ADD_MEMBERSHIP, &request)
}

/// `PACKET_FANOUT`: joins the group with this number, or makes one, and returns its number. Its sockets share the
/// interface's frames by the hash of their flow.
pub(crate) fn join_fanout(socket: BorrowedFd<'_>, group: Option<u16>) -> io::Result<u16> {
    let (number, unique) = match group {
        Some(number) => (number, 0),
        None => (0, libc::PACKET_FANOUT_FLAG_UNIQUEID.cast_signed()),
    };
    let kind = libc::PACKET_FANOUT_HASH.cast_signed() | FANOUT_FLAG_IGNORE_OUTGOING | unique;
    set_option(socket, libc::PACKET_FANOUT, c_int::from(number) | kind << 16)?;
    let mut joined: c_int = 0;
    let mut len = size_of::<c_int>() as socklen_t;
    // SAFETY: `len` bytes at `joined` are writable during the call, and `len` itself is.
    check(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_FANOUT,
            (&raw mut joined).cast(),
            &raw mut len,
        )
    })?;
    // The number is in the lower half.
    Ok((joined & 0xffff) as u16)
}

/// Binds the socket to frames of every protocol of interface `index`.
pub(crate) fn bind(socket: BorrowedFd<'_>, index: u32) -> io::Result<()> {
    let mut address = empty_address();
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = index.cast_signed();
    let len = size_of::<sockaddr_ll>() as socklen_t;
    // SAFETY: `len` bytes at `address` are readable during the call.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) })
}

/// The interface that the socket is bound to, as long as the interface exists (`packet_notifier` in
/// `net/packet/af_packet.c`).
pub(crate) fn bound_to(socket: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    let mut address = empty_address();
    let mut len = size_of::<sockaddr_ll>() as socklen_t;
    // SAFETY: `len` bytes at `address` are writable during the call, and `len` itself is.
    check(unsafe {
        libc::getsockname(socket.as_raw_fd(), (&raw mut address).cast(), &raw mut len)
    })?;
    let is_packet = address.sll_family == libc::AF_PACKET as u16;
    Ok(u32::try_from(address.sll_ifindex).ok().filter(|index| is_packet && *index > 0))
}

fn empty_address() -> sockaddr_ll {
    // SAFETY: `sockaddr_ll` is a C struct of integers; zero bytes are a value of it.
    unsafe { std::mem::zeroed() }
}
