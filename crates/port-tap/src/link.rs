//! An interface of the host by its name: MTU, address, link state.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use libc::c_int;
use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice};
use weir_limits::IFNAME_LEN_MAX;
use weir_wire::Mac;

use crate::error::{NameError, NameProblem};
use crate::sys;

/// A name that Linux accepts as it is (`dev_valid_name` in `net/core/dev.c`) and takes for no
/// pattern (`dev_alloc_name`).
#[derive(Clone, Debug)]
pub struct InterfaceName(String);

impl InterfaceName {
    /// Checks `name`.
    ///
    /// # Errors
    /// [`NameError`] gives the fault.
    pub fn new(name: &str) -> Result<Self, NameError> {
        let refused =
            |c: &char| c.is_ascii_whitespace() || matches!(c, '/' | ':' | '%' | '\0' | '\x0b');
        let problem = if name.is_empty() {
            NameProblem::Empty
        } else if name.len() > IFNAME_LEN_MAX {
            NameProblem::TooLong(name.len())
        } else if matches!(name, "." | "..") {
            NameProblem::Dots
        } else if let Some(c) = name.chars().find(refused) {
            NameProblem::Character(c)
        } else {
            return Ok(Self(name.to_owned()));
        };
        Err(NameError { name: name.to_owned(), problem })
    }

    /// At most [`IFNAME_LEN_MAX`] bytes, none of them NUL.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Display for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An interface of the calling thread's network namespace (netdevice(7)).
///
/// Settings are only written where they differ: an existing interface may be usable without the privilege to change
/// it.
#[derive(Debug)]
pub struct Link {
    socket: OwnedFd,
    name: InterfaceName,
}

impl Link {
    /// The interface of that name. If it does not exist, every question about it fails.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new(name: InterfaceName) -> io::Result<Self> {
        // Interface ioctls take any socket; this kind depends on no protocol.
        let socket = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        Ok(Self { socket, name })
    }

    /// The interface's number.
    ///
    /// # Errors
    /// `ENODEV`: there is no such interface.
    pub fn index(&self) -> io::Result<u32> {
        Ok(netdevice::name_to_index(&self.socket, &self.name.0)?)
    }

    /// The interface's MTU (bytes).
    ///
    /// # Errors
    /// `ENODEV`: there is no such interface.
    pub fn mtu(&self) -> io::Result<u32> {
        // The kernel's MTUs are not negative.
        sys::mtu(self.socket.as_fd(), &self.name).map(c_int::cast_unsigned)
    }

    /// Sets the interface's MTU (bytes).
    ///
    /// # Errors
    /// `EPERM`; `EINVAL` if the MTU is out of the device's range.
    pub fn set_mtu(&self, mtu: u16) -> io::Result<()> {
        if self.mtu()? == u32::from(mtu) {
            return Ok(());
        }
        sys::set_mtu(self.socket.as_fd(), &self.name, mtu)
    }

    /// The host's address on the interface.
    ///
    /// # Errors
    /// `ENODEV`: there is no such interface.
    pub fn mac(&self) -> io::Result<Mac> {
        sys::mac(self.socket.as_fd(), &self.name)
    }

    /// Sets the host's address on the interface.
    ///
    /// # Errors
    /// `EPERM`; `EADDRNOTAVAIL` if it is no station's address.
    pub fn set_mac(&self, mac: Mac) -> io::Result<()> {
        if self.mac()? == mac {
            return Ok(());
        }
        sys::set_mac(self.socket.as_fd(), &self.name, mac)
    }

    /// Brings the interface up.
    ///
    /// # Errors
    /// `EPERM`, or an error of the driver's.
    pub fn bring_up(&self) -> io::Result<()> {
        const UP: libc::c_short = libc::IFF_UP as libc::c_short;
        let flags = sys::link_flags(self.socket.as_fd(), &self.name)?;
        if flags & UP != 0 {
            return Ok(());
        }
        sys::set_link_flags(self.socket.as_fd(), &self.name, flags | UP)
    }

    /// True if the interface is an Ethernet interface (`ARPHRD_ETHER`), whose frames a switch can move.
    ///
    /// # Errors
    /// `ENODEV`: there is no such interface.
    pub fn is_ethernet(&self) -> io::Result<bool> {
        sys::hardware_type(self.socket.as_fd(), &self.name).map(|kind| kind == libc::ARPHRD_ETHER)
    }

    /// The number of receive queues in use. A driver that does not give it has one.
    ///
    /// # Errors
    /// `ENODEV`: there is no such interface.
    pub fn rx_queues(&self) -> io::Result<usize> {
        match sys::rx_queues(self.socket.as_fd(), &self.name) {
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(1),
            result => result.map(|queues| queues as usize),
        }
    }

    /// Makes the device leave VLAN tags in the frames that it receives: a reader that gets frames before Linux does
    /// would not see a tag that was taken out.
    ///
    /// # Errors
    /// `EPERM`, or the device cannot do this.
    pub fn keep_vlan_tags(&self) -> io::Result<()> {
        let socket = self.socket.as_fd();
        let flags = match sys::ethtool_flags(socket, &self.name) {
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => return Ok(()),
            result => result?,
        };
        if flags & sys::ETH_FLAG_RXVLAN == 0 {
            return Ok(());
        }
        sys::set_ethtool_flags(socket, &self.name, flags & !sys::ETH_FLAG_RXVLAN)
    }
}
