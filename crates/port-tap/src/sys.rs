//! The ioctls of TUN/TAP (`linux/if_tun.h`), of network interfaces (netdevice(7)) and of their drivers
//! (`linux/ethtool.h`).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::{c_char, c_int, c_short, c_uint, c_ulong, ifreq};
use weir_wire::Mac;

use crate::link::InterfaceName;

/// A request about an interface, all else zero.
fn request(name: &InterfaceName) -> ifreq {
    // SAFETY: `ifreq` is a C struct of integers, a union of integers and pointers to C data; zero
    // bytes are a value of it.
    let mut request: ifreq = unsafe { std::mem::zeroed() };
    // A checked name is shorter than `ifr_name`, so a NUL follows it.
    for (to, from) in request.ifr_name.iter_mut().zip(name.as_bytes()) {
        // `c_char` is signed on x86, and unsigned on Arm.
        *to = c_char::from_ne_bytes([*from]);
    }
    request
}

/// An ioctl that reads and writes an [`ifreq`].
fn with_request(fd: BorrowedFd<'_>, code: libc::Ioctl, request: &mut ifreq) -> io::Result<()> {
    // SAFETY: every `code` that this file passes reads and writes one `ifreq`, which is borrowed for the call.
    // SIOCETHTOOL also accesses the memory to which the `ifreq` points (see `ethtool`).
    check(unsafe { libc::ioctl(fd.as_raw_fd(), code, std::ptr::from_mut(request)) })
}

fn check(result: c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// `TUNSETIFF`: attaches `fd` as a queue of the interface, which is made if there is none.
/// `flags` are `IFF_*` of `linux/if_tun.h`.
pub(crate) fn attach(fd: BorrowedFd<'_>, name: &InterfaceName, flags: c_int) -> io::Result<()> {
    let mut request = request(name);
    // The field has 16 bits and so have all flags of TUNSETIFF.
    request.ifr_ifru.ifru_flags = flags as c_short;
    with_request(fd, libc::TUNSETIFF, &mut request)
}

/// `TUNGETIFF`: true if `fd` is a queue of this interface.
pub(crate) fn is_queue_of(fd: BorrowedFd<'_>, name: &InterfaceName) -> io::Result<bool> {
    let expected = request(name);
    let mut found = request(name);
    with_request(fd, libc::TUNGETIFF, &mut found)?;
    Ok(found.ifr_name == expected.ifr_name)
}

/// `TUNGETIFF`: the interface's `IFF_*` flags of `linux/if_tun.h`.
pub(crate) fn tun_flags(fd: BorrowedFd<'_>, name: &InterfaceName) -> io::Result<c_int> {
    let mut request = request(name);
    with_request(fd, libc::TUNGETIFF, &mut request)?;
    // SAFETY: the kernel has written the flags; every bit pattern is an integer.
    Ok(c_int::from(unsafe { request.ifr_ifru.ifru_flags }.cast_unsigned()))
}

fn set_int(fd: BorrowedFd<'_>, code: libc::Ioctl, value: c_int) -> io::Result<()> {
    // SAFETY: both callers' codes read one int, which lives during the call.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), code, &raw const value) })
}

/// `TUNSETVNETHDRSZ`: bytes of the `virtio_net_hdr` in front of every frame.
pub(crate) fn set_vnet_hdr_len(fd: BorrowedFd<'_>, len: c_int) -> io::Result<()> {
    set_int(fd, libc::TUNSETVNETHDRSZ, len)
}

/// `TUNSETVNETLE`: the header's fields are little-endian, as in a virtio 1 ring, whatever the host is.
pub(crate) fn set_vnet_little_endian(fd: BorrowedFd<'_>) -> io::Result<()> {
    set_int(fd, libc::TUNSETVNETLE, 1)
}

/// `TUNSETOFFLOAD`: the offloads that may be left undone in frames from the host, `TUN_F_*`.
pub(crate) fn set_offload(fd: BorrowedFd<'_>, flags: c_uint) -> io::Result<()> {
    // SAFETY: this code takes its argument by value and touches no memory.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD, c_ulong::from(flags)) })
}

/// `SIOCGIFFLAGS`: the `IFF_*` flags of `net/if.h`. `socket` is any socket, here and below.
pub(crate) fn link_flags(socket: BorrowedFd<'_>, name: &InterfaceName) -> io::Result<c_short> {
    let mut request = request(name);
    with_request(socket, libc::SIOCGIFFLAGS as libc::Ioctl, &mut request)?;
    // SAFETY: the kernel has written the flags; every bit pattern is an integer.
    Ok(unsafe { request.ifr_ifru.ifru_flags })
}

/// `SIOCSIFFLAGS`.
pub(crate) fn set_link_flags(
    socket: BorrowedFd<'_>,
    name: &InterfaceName,
    flags: c_short,
) -> io::Result<()> {
    let mut request = request(name);
    request.ifr_ifru.ifru_flags = flags;
    with_request(socket, libc::SIOCSIFFLAGS as libc::Ioctl, &mut request)
}

/// `SIOCGIFMTU`.
pub(crate) fn mtu(socket: BorrowedFd<'_>, name: &InterfaceName) -> io::Result<c_int> {
    let mut request = request(name);
    with_request(socket, libc::SIOCGIFMTU as libc::Ioctl, &mut request)?;
    // SAFETY: the kernel has written the MTU; every bit pattern is an integer.
    Ok(unsafe { request.ifr_ifru.ifru_mtu })
}

/// `SIOCSIFMTU`.
pub(crate) fn set_mtu(socket: BorrowedFd<'_>, name: &InterfaceName, mtu: u16) -> io::Result<()> {
    let mut request = request(name);
    request.ifr_ifru.ifru_mtu = c_int::from(mtu);
    with_request(socket, libc::SIOCSIFMTU as libc::Ioctl, &mut request)
}

/// `SIOCGIFHWADDR`: the host's address on the interface.
pub(crate) fn mac(socket: BorrowedFd<'_>, name: &InterfaceName) -> io::Result<Mac> {
    let mut request = request(name);
    with_request(socket, libc::SIOCGIFHWADDR as libc::Ioctl, &mut request)?;
    // SAFETY: the kernel has written the address; every bit pattern is one of integers.
    let [m0, m1, m2, m3, m4, m5, ..] = unsafe { request.ifr_ifru.ifru_hwaddr.sa_data };
    Ok(Mac([m0, m1, m2, m3, m4, m5].map(|byte| byte as u8)))
}

/// `SIOCSIFHWADDR`
pub(crate) fn set_mac(socket: BorrowedFd<'_>, name: &InterfaceName, mac: Mac) -> io::Result<()> {
    let mut request = request(name);
    let mut sa_data = [0; 14];
    for (to, byte) in sa_data.iter_mut().zip(mac.0) {
        *to = byte as libc::c_char;
    }
    request.ifr_ifru.ifru_hwaddr = libc::sockaddr { sa_family: libc::ARPHRD_ETHER, sa_data };
    with_request(socket, libc::SIOCSIFHWADDR as libc::Ioctl, &mut request)
}

/// `SIOCGIFHWADDR`: the interface's `ARPHRD_*` type.
pub(crate) fn hardware_type(socket: BorrowedFd<'_>, name: &InterfaceName) -> io::Result<u16> {
    let mut request = request(name);
    with_request(socket, libc::SIOCGIFHWADDR as libc::Ioctl, &mut request)?;
    // SAFETY: the kernel has written the type; every bit pattern is an integer.
    Ok(unsafe { request.ifr_ifru.ifru_hwaddr.sa_family })
}

const ETHTOOL_GFLAGS: u32 = 0x25;
const ETHTOOL_SFLAGS: u32 = 0x26;
const ETHTOOL_GCHANNELS: u32 = 0x3c;

/// The device takes VLAN tags out of the frames it receives.
pub(crate) const ETH_FLAG_RXVLAN: u32 = 1 << 8;

/// Makes an ethtool request of `N` words, the first of which is the request's number; the answer takes its place.
/// (`struct ethtool_value` has 2 words, `struct ethtool_channels` 9.)
fn ethtool<const N: usize>(
    socket: BorrowedFd<'_>,
    name: &InterfaceName,
    words: &mut [u32; N],
) -> io::Result<()> {
    let mut request = request(name);
    request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
    // Every caller has as many words as its request.
    with_request(socket, libc::SIOCETHTOOL as libc::Ioctl, &mut request)
}

/// `ETHTOOL_GCHANNELS`: receive queues in use.
pub(crate) fn rx_queues(socket: BorrowedFd<'_>, name: &InterfaceName) -> io::Result<u32> {
    let mut channels = [0; 9];
    channels[0] = ETHTOOL_GCHANNELS;
    ethtool(socket, name, &mut channels)?;
    let [_, _, _, _, _, rx, _, _, combined] = channels;
    Ok(rx.saturating_add(combined))
}

/// `ETHTOOL_GFLAGS`: `ETH_FLAG_*`.
pub(crate) fn ethtool_flags(socket: BorrowedFd<'_>, name: &InterfaceName) -> io::Result<u32> {
    let mut value = [ETHTOOL_GFLAGS, 0];
    ethtool(socket, name, &mut value)?;
    Ok(value[1])
}

/// `ETHTOOL_SFLAGS`.
pub(crate) fn set_ethtool_flags(
    socket: BorrowedFd<'_>,
    name: &InterfaceName,
    flags: u32,
) -> io::Result<()> {
    ethtool(socket, name, &mut [ETHTOOL_SFLAGS, flags])
}
