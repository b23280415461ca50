//! Options of UDP sockets that none of weir's crates has (`linux/udp.h`, ip(7), ipv6(7)).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::{c_int, socklen_t};

/// `UDP_GRO`: datagrams of one sender can come as one message.
const UDP_GRO: c_int = 104;
/// `UDP_NO_CHECK6_RX`: datagrams without a checksum are accepted over IPv6 too.
const UDP_NO_CHECK6_RX: c_int = 102;

pub fn set(socket: BorrowedFd<'_>, level: c_int, option: c_int, value: c_int) -> io::Result<()> {
    let len = size_of::<c_int>() as socklen_t;
    let value = std::ptr::from_ref(&value).cast();
    // SAFETY: `len` bytes at `value` are readable during the call.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, value, len) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Makes the kernel give datagrams of one sender as one message.
pub(crate) fn gather(socket: BorrowedFd<'_>) -> io::Result<()> {
    set(socket, libc::SOL_UDP, UDP_GRO, 1)
}

/// Makes the kernel accept datagrams without a checksum over IPv6, as it does over IPv4: "When a packet is received
/// with a UDP checksum of zero, it MUST be accepted for decapsulation" (RFC 7348 §4.1; RFC 6935 allows it for IPv6).
pub(crate) fn take_without_checksum(socket: BorrowedFd<'_>) -> io::Result<()> {
    set(socket, libc::SOL_UDP, UDP_NO_CHECK6_RX, 1)
}

/// Makes the kernel give the traffic class of each message (`IP_RECVTOS`, `IPV6_RECVTCLASS`).
pub(crate) fn tell_class(socket: BorrowedFd<'_>, v6: bool) -> io::Result<()> {
    match v6 {
        false => set(socket, libc::IPPROTO_IP, libc::IP_RECVTOS, 1),
        true => set(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1),
    }
}

/// Sets DF, and refuses datagrams longer than the interface's MTU. Nobody outside can change this limit: with
/// `IP_PMTUDISC_DO` any host that guesses a port could state by ICMP that the path takes 552 bytes. For IPv6, whose
/// hosts alone fragment, the kernel does not even note such a message (`IPV6_PMTUDISC_INTERFACE`); for IPv4 that mode
/// would not set DF.
pub(crate) fn never_fragment(socket: BorrowedFd<'_>, v6: bool) -> io::Result<()> {
    match v6 {
        false => set(socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE),
        true => {
            set(socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_INTERFACE)
        }
    }
}
