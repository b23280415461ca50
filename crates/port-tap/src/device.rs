//! Opens a TAP and sets it up.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use libc::c_int;
use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use weir_limits::IFNAME_LEN_MAX;
use weir_policy::steering::Steering;
use weir_wire::{Mac, OffloadCaps, VnetHdr};

use crate::error::{NameProblem, TapError};
use crate::sys;

/// Which TAP, and how it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TapOptions {
    /// The interface's name, 1 to [`weir_limits::IFNAME_LEN_MAX`] bytes.
    pub name: String,
    /// Queues, 1 to [`weir_limits::QUEUE_PAIRS_MAX`].
    pub queues: usize,
    /// Its MTU (bytes); `None` leaves it as it is.
    pub mtu: Option<u16>,
}

/// What a TAP turned out to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TapInfo {
    /// The interface's name.
    pub name: String,
    /// The host's address on it.
    pub mac: Mac,
    /// Its MTU (bytes) when it was opened.
    pub mtu: u32,
    /// Queues.
    pub queues: usize,
    /// What the host takes undone in frames from weir, and weir in frames from the host.
    pub offloads: OffloadCaps,
}

/// An open TAP with all its queues. One that weir made goes when this goes; one that was made
/// beforehand (`ip tuntap add`) stays.
#[derive(Debug)]
pub struct Tap {
    pub(crate) info: TapInfo,
    /// One descriptor per queue, non-blocking.
    pub(crate) queues: Vec<OwnedFd>,
    pub(crate) steering: Steering,
}

/// How every queue is attached; `IFF_MULTI_QUEUE` comes on top for a device that has several.
const QUEUE_FLAGS: c_int = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;

const TSO: OffloadCaps =
    OffloadCaps::CSUM.union(OffloadCaps::TSO4).union(OffloadCaps::TSO6).union(OffloadCaps::TSO_ECN);
const TSO_FLAGS: libc::c_uint =
    libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
/// The kernel takes both or none.
const USO_FLAGS: libc::c_uint = libc::TUN_F_USO4 | libc::TUN_F_USO6;

impl Tap {
    /// Attaches to the TAP of that name in the calling thread's network namespace, or makes it, and
    /// brings it up.
    ///
    /// A TAP with several queues does not say how many processes have it open: two that do share
    /// its frames between them.
    ///
    /// # Errors
    /// [`TapError`]; a TAP made on the way is gone then.
    pub fn open(options: &TapOptions) -> Result<Self, TapError> {
        let name = InterfaceName::new(&options.name)?;
        let steering = Steering::new(options.queues)?;
        let (first, multi_queue) = attach_first(&name, options.queues)?;
        let offloads = configure(&first, &name)?;
        let mut queues = vec![first];
        for _ in 1..options.queues {
            let queue = open_driver()?;
            sys::attach(queue.as_fd(), &name, QUEUE_FLAGS | multi_queue)
                .map_err(|error| attach_error(&name, options.queues, error))?;
            queues.push(queue);
        }

        let setup = |step| name.setup(step);
        // Interface ioctls take any socket; of all kinds this one depends on no protocol.
        let socket = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(|error| setup("ask for it")(error.into()))?;
        if let Some(mtu) = options.mtu {
            set_mtu(&socket, &name, mtu)?;
        }
        bring_up(&socket, &name)?;
        let mtu = sys::mtu(socket.as_fd(), &name).map_err(setup("read its MTU"))?;
        let info = TapInfo {
            mac: sys::mac(socket.as_fd(), &name).map_err(setup("read its MAC address"))?,
            // The kernel's MTUs are not negative.
            mtu: mtu.cast_unsigned(),
            queues: queues.len(),
            offloads,
            name: options.name.clone(),
        };
        Ok(Self { info, queues, steering })
    }

    /// What it is.
    pub fn info(&self) -> &TapInfo {
        &self.info
    }
}

/// The first queue, and the flag that the others must have too.
///
/// Whether a TAP has several queues was decided when it was made. Where one queue is enough, a TAP
/// of either kind will do.
fn attach_first(name: &InterfaceName, queues: usize) -> Result<(OwnedFd, c_int), TapError> {
    let queue = open_driver()?;
    let result = sys::attach(queue.as_fd(), name, QUEUE_FLAGS | libc::IFF_MULTI_QUEUE);
    match result {
        Ok(()) => return Ok((queue, libc::IFF_MULTI_QUEUE)),
        Err(error) if queues == 1 && error.raw_os_error() == Some(libc::EINVAL) => {}
        Err(error) => return Err(attach_error(name, queues, error)),
    }
    sys::attach(queue.as_fd(), name, QUEUE_FLAGS)
        .map_err(|error| attach_error(name, queues, error))?;
    Ok((queue, 0))
}

fn open_driver() -> Result<OwnedFd, TapError> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::open("/dev/net/tun", flags, Mode::empty())
        .map_err(|error| TapError::NoDriver(error.into()))
}

/// What `TUNSETIFF`'s error codes mean (`tun_set_iff` and `tun_attach` in `drivers/net/tun.c`).
fn attach_error(name: &InterfaceName, queues: usize, error: io::Error) -> TapError {
    let name = name.0.clone();
    match error.raw_os_error() {
        Some(libc::EPERM) => TapError::NotPermitted { name },
        Some(libc::EBUSY) => TapError::Busy { name },
        Some(libc::EINVAL) => TapError::WrongKind { name, queues },
        _ => TapError::Setup { name, step: "attach a queue", source: error },
    }
}

/// Header and offloads, which are the device's, not the queue's.
fn configure(queue: &OwnedFd, name: &InterfaceName) -> Result<OffloadCaps, TapError> {
    let queue = queue.as_fd();
    let setup = |step| name.setup(step);
    let flags = sys::tun_flags(queue, name).map_err(setup("read its flags"))?;
    if flags & libc::IFF_VNET_HDR == 0 {
        // The first to attach decides; it was another process.
        return Err(TapError::Busy { name: name.0.clone() });
    }
    sys::set_vnet_hdr_len(queue, VnetHdr::LEN as c_int)
        .map_err(setup("set the length of its virtio_net_hdr"))?;
    sys::set_vnet_little_endian(queue)
        .map_err(setup("set the byte order of its virtio_net_hdr"))?;
    // Linux has USO since 6.2 and refuses what it does not know.
    if sys::set_offload(queue, TSO_FLAGS | USO_FLAGS).is_ok() {
        return Ok(TSO | OffloadCaps::USO);
    }
    sys::set_offload(queue, TSO_FLAGS).map_err(setup("set its offloads"))?;
    Ok(TSO)
}

/// Only where it differs: a TAP made beforehand may be usable without the privilege to change it.
fn set_mtu(socket: &OwnedFd, name: &InterfaceName, mtu: u16) -> Result<(), TapError> {
    let failed = |source| TapError::Mtu { name: name.0.clone(), mtu, source };
    if sys::mtu(socket.as_fd(), name).map_err(failed)? == c_int::from(mtu) {
        return Ok(());
    }
    sys::set_mtu(socket.as_fd(), name, mtu).map_err(failed)
}

/// Only where it is down, for the same reason.
fn bring_up(socket: &OwnedFd, name: &InterfaceName) -> Result<(), TapError> {
    const UP: libc::c_short = libc::IFF_UP as libc::c_short;
    let failed = |source| TapError::LinkUp { name: name.0.clone(), source };
    let flags = sys::link_flags(socket.as_fd(), name).map_err(failed)?;
    if flags & UP != 0 {
        return Ok(());
    }
    sys::set_link_flags(socket.as_fd(), name, flags | UP).map_err(failed)
}

/// A name that Linux accepts as it is (`dev_valid_name` in `net/core/dev.c`) and takes for no
/// pattern (`dev_alloc_name`).
#[derive(Debug)]
pub(crate) struct InterfaceName(String);

impl InterfaceName {
    pub(crate) fn new(name: &str) -> Result<Self, TapError> {
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
        Err(TapError::Name { name: name.to_owned(), problem })
    }

    /// At most [`IFNAME_LEN_MAX`] bytes, none of them NUL.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    fn setup(&self, step: &'static str) -> impl FnOnce(io::Error) -> TapError + use<> {
        let name = self.0.clone();
        move |source| TapError::Setup { name, step, source }
    }
}
