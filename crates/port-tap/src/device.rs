//! Opens a TAP and sets it up, and counts the TAP's queues that processes have attached, as the kernel shows them
//! (rtnetlink(7)).

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use libc::c_int;
use rustix::fs::{Mode, OFlags};
use rustix::io::retry_on_intr;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};
use weir_engine::Side;
use weir_guestmem::{Batch, HostBuffer, read};
use weir_policy::steering::Steering;
use weir_wire::{Mac, OffloadCaps, VnetHdr};

use crate::error::{LinkError, TapError};
use crate::link::{InterfaceName, Link};
use crate::port::{FrameDevice, SLOT_LEN};
use crate::sys;

/// The choice of a TAP, and its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TapOptions {
    /// The interface's name, 1 to [`weir_limits::IFNAME_LEN_MAX`] bytes.
    pub name: String,
    /// The number of queues, 1 to [`weir_limits::QUEUE_PAIRS_MAX`].
    pub queues: usize,
    /// The TAP's MTU (bytes); `None` leaves it unchanged.
    pub mtu: Option<u16>,
    /// The host's address on the TAP if weir makes it; `None`: the kernel's choice, a different one each time.
    pub mac: Option<Mac>,
}

/// The properties of the opened TAP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TapInfo {
    /// The interface's name.
    pub name: String,
    /// True if it stays when weir ends.
    pub is_persistent: bool,
    /// The host's address on it.
    pub mac: Mac,
    /// The TAP's MTU (bytes) when it was opened.
    pub mtu: u32,
    /// The number of queues.
    pub queues: usize,
    /// The offloads that the host leaves to weir in frames from the host, and accepts undone in
    /// frames from weir.
    pub offloads: OffloadCaps,
}

/// An open TAP with all its queues. A TAP that weir made is removed when the value is dropped; one that was made
/// beforehand (`ip tuntap add`) stays.
#[derive(Debug)]
pub struct Tap {
    pub(crate) info: TapInfo,
    /// One descriptor per queue, non-blocking.
    pub(crate) queues: Vec<OwnedFd>,
    pub(crate) steering: Steering,
}

/// The flags with which every queue is attached; `IFF_MULTI_QUEUE` is added for a device that has
/// several.
const QUEUE_FLAGS: c_int = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;

/// Time until a process that ends, or that has forked and not yet begun another program, releases
/// its queues.
const LETS_GO: Duration = Duration::from_millis(250);

const TSO: OffloadCaps =
    OffloadCaps::CSUM.union(OffloadCaps::TSO4).union(OffloadCaps::TSO6).union(OffloadCaps::TSO_ECN);
const TSO_FLAGS: libc::c_uint =
    libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
/// The kernel takes both or none.
const USO_FLAGS: libc::c_uint = libc::TUN_F_USO4 | libc::TUN_F_USO6;

impl Tap {
    /// Attaches to the TAP of that name in the calling thread's network namespace, or makes it, and brings it up.
    ///
    /// # Errors
    /// [`TapError`]; a TAP that was made before the error is removed.
    pub fn open(options: &TapOptions) -> Result<Self, TapError> {
        Self::go_on(options, Vec::new())
    }

    /// Opens the TAP, and continues with queues that another process has left, if they are exactly the wanted ones. If
    /// not, it closes them first.
    ///
    /// # Errors [`TapError`]
    pub fn go_on(options: &TapOptions, left: Vec<OwnedFd>) -> Result<Self, TapError> {
        let name = InterfaceName::new(&options.name).map_err(LinkError::from)?;
        let steering = Steering::new(options.queues).map_err(LinkError::from)?;
        let are_its = |queue: &OwnedFd| sys::is_queue_of(queue.as_fd(), &name).unwrap_or(false);
        let failed = |step| setup_failed(&name, step);
        let link = Link::new(name.clone()).map_err(failed("ask for it"))?;
        let left_of_it = left.iter().filter(|queue| are_its(queue)).count();
        let fits = left.len() == options.queues && left_of_it == left.len();
        let (queues, is_new, closed) = if fits {
            (left, false, 0)
        } else {
            drop(left);
            let is_new = link.index().is_err();
            (attach_all(&name, options.queues)?, is_new, left_of_it)
        };
        // The kernel lets any number of processes attach to a TAP with several queues, and they would share its frames.
        // The process that left queues may hold them still.
        let index = link.index().map_err(failed("read its number"))?;
        when_let_go(|| match attached(index).map_err(failed("count its queues"))? {
            Some(attached) if attached as usize > queues.len() + closed => {
                Err(TapError::Busy { name: name.to_string() })
            }
            _ => Ok(()),
        })?;
        let Some(first) = queues.first() else {
            return Err(TapError::WrongKind { name: name.to_string(), queues: 0 });
        };
        let offloads = configure(first, &name)?;

        if let Some(mac) = options.mac.filter(|_| is_new) {
            link.set_mac(mac).map_err(failed("set its MAC address"))?;
        }
        if let Some(mtu) = options.mtu {
            let name = name.to_string();
            link.set_mtu(mtu).map_err(|source| LinkError::Mtu { name, mtu, source })?;
        }
        link.bring_up().map_err(|source| LinkError::LinkUp { name: name.to_string(), source })?;
        let flags = sys::tun_flags(first.as_fd(), &name).map_err(failed("read its flags"))?;
        let info = TapInfo {
            is_persistent: flags & libc::IFF_PERSIST != 0,
            mac: link.mac().map_err(failed("read its MAC address"))?,
            mtu: link.mtu().map_err(failed("read its MTU"))?,
            queues: queues.len(),
            offloads,
            name: options.name.clone(),
        };
        Ok(Self { info, queues, steering })
    }

    /// The TAP's queues, in order.
    pub fn queues(&self) -> &[OwnedFd] {
        &self.queues
    }

    /// The properties of the TAP.
    pub fn info(&self) -> &TapInfo {
        &self.info
    }
}

/// Tries again while the TAP is busy, for as long as the release of queues may take.
fn when_let_go<T>(attempt: impl Fn() -> Result<T, TapError>) -> Result<T, TapError> {
    let end = Instant::now() + LETS_GO;
    loop {
        match attempt() {
            Err(TapError::Busy { .. }) if Instant::now() <= end => {
                std::thread::sleep(LETS_GO / 50);
            }
            result => return result,
        }
    }
}

fn attach_all(name: &InterfaceName, count: usize) -> Result<Vec<OwnedFd>, TapError> {
    let (first, multi_queue) = when_let_go(|| attach_first(name, count))?;
    // The TAP is set up before other queues are attached.
    configure(&first, name)?;
    let mut queues = vec![first];
    for _ in 1..count {
        let queue = open_driver()?;
        sys::attach(queue.as_fd(), name, QUEUE_FLAGS | multi_queue)
            .map_err(|error| attach_error(name, count, error))?;
        queues.push(queue);
    }
    Ok(queues)
}

/// Attaches the first queue, and returns the flag that the others need too: a TAP has one queue or several from its
/// creation. For one queue either kind will do.
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

/// The errors of `TUNSETIFF` (`tun_set_iff` and `tun_attach` in `drivers/net/tun.c`).
fn attach_error(name: &InterfaceName, queues: usize, error: io::Error) -> TapError {
    let name = name.to_string();
    match error.raw_os_error() {
        Some(libc::EPERM) => TapError::NotPermitted { name },
        Some(libc::EBUSY) => TapError::Busy { name },
        Some(libc::EINVAL) => TapError::WrongKind { name, queues },
        _ => LinkError::Setup { name, step: "attach a queue", source: error }.into(),
    }
}

/// Sets the header and the offloads, which are the device's, not the queue's.
fn configure(queue: &OwnedFd, name: &InterfaceName) -> Result<OffloadCaps, TapError> {
    let queue = queue.as_fd();
    let setup = |step| setup_failed(name, step);
    let flags = sys::tun_flags(queue, name).map_err(setup("read its flags"))?;
    if flags & libc::IFF_VNET_HDR == 0 {
        // The first process to attach decides, and that was another one.
        return Err(TapError::Busy { name: name.to_string() });
    }
    sys::set_vnet_hdr_len(queue, VnetHdr::LEN as c_int)
        .map_err(setup("set the length of its virtio_net_hdr"))?;
    sys::set_vnet_little_endian(queue)
        .map_err(setup("set the byte order of its virtio_net_hdr"))?;
    // Linux has USO since 6.2 and refuses flags that it does not know.
    if sys::set_offload(queue, TSO_FLAGS | USO_FLAGS).is_ok() {
        return Ok(TSO | OffloadCaps::USO);
    }
    sys::set_offload(queue, TSO_FLAGS).map_err(setup("set its offloads"))?;
    Ok(TSO)
}

fn setup_failed(
    name: &InterfaceName,
    step: &'static str,
) -> impl FnOnce(io::Error) -> LinkError + use<> {
    let name = name.to_string();
    move |source| LinkError::Setup { name, step, source }
}

impl FrameDevice for Tap {
    fn name(&self) -> &str {
        &self.info.name
    }

    fn queues(&self) -> &[OwnedFd] {
        &self.queues
    }

    fn steering(&self) -> &Steering {
        &self.steering
    }

    fn offloads(&self) -> OffloadCaps {
        self.info.offloads
    }

    fn vnet_len(&self) -> usize {
        VnetHdr::LEN
    }

    /// Reads one frame: a TAP gives one frame per call.
    fn receive(
        &self,
        queue: BorrowedFd<'_>,
        buffers: &mut dyn Iterator<Item = &HostBuffer>,
        places: &mut Vec<Range<usize>>,
    ) -> io::Result<usize> {
        let buffer = buffers.next().and_then(|buffer| buffer.slice(0, SLOT_LEN));
        match read(queue, &buffer.ok_or(io::ErrorKind::InvalidInput)?)? {
            // A TAP has no frame without bytes: the descriptor's other side has closed.
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            len => places.push(0..len),
        }
        Ok(1)
    }

    fn send(
        &self,
        queue: BorrowedFd<'_>,
        batch: &mut Batch<'_, '_>,
        lost: &mut dyn FnMut(Range<usize>, &io::Error),
    ) {
        batch.write(queue, lost);
    }

    fn is_gone(&self, _queue: BorrowedFd<'_>, side: Side, error: &io::Error) -> bool {
        match side {
            Side::Tx => true,
            // Other errors concern one frame: the link is down (EIO), there is no memory, the frame is longer than the
            // device takes, or it is in more pieces than one call takes.
            Side::Rx => error.raw_os_error() == Some(libc::EBADFD),
        }
    }
}

/// The request for one link, its answer, and the kernel's error (`linux/rtnetlink.h`, `linux/netlink.h`).
const RTM_GETLINK: u16 = 18;
const RTM_NEWLINK: u16 = 16;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
/// `struct nlmsghdr`, and `struct ifinfomsg` behind it.
const HEADER_LEN: usize = 16;
const LINK_LEN: usize = 16;
/// The attributes that lead to the counts (`linux/if_link.h`).
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_DATA: u16 = 2;
/// Queues in use, and queues that their process has switched off. A TAP with one queue has neither attribute.
const COUNTS: [u16; 2] = [8, 9];
/// The type of an attribute, without its flags (`NLA_TYPE_MASK`).
const TYPE_MASK: u16 = 0x3fff;
/// The kernel describes one link in less than this.
const ANSWER_LEN: usize = 32 << 10;

/// The queues that all processes together have attached to the interface with this number; `None` if it is no TAP with
/// several queues. The interface is in the calling thread's network namespace.
pub(crate) fn attached(index: u32) -> io::Result<Option<u32>> {
    let kind = SocketType::RAW;
    // rtnetlink is the first of netlink's protocols, and the default.
    let socket = socket_with(AddressFamily::NETLINK, kind, SocketFlags::CLOEXEC, None)?;
    bind(&socket, &SocketAddrNetlink::new(0, 0))?;
    send(&socket, &request(index), SendFlags::empty())?;
    let mut answer = vec![0; ANSWER_LEN];
    // The kernel has answered before the send returns.
    let (_, len) = retry_on_intr(|| recv(&socket, answer.as_mut_slice(), RecvFlags::DONTWAIT))?;
    counted(answer.get(..len).unwrap_or_default())
}

fn request(index: u32) -> Vec<u8> {
    let len = (HEADER_LEN + LINK_LEN) as u32;
    let mut bytes = len.to_ne_bytes().to_vec();
    bytes.extend(RTM_GETLINK.to_ne_bytes());
    bytes.extend(NLM_F_REQUEST.to_ne_bytes());
    bytes.resize(HEADER_LEN + 4, 0);
    bytes.extend(index.to_ne_bytes());
    bytes.resize(HEADER_LEN + LINK_LEN, 0);
    bytes
}

/// The sum of the counts in the kernel's answer.
fn counted(answer: &[u8]) -> io::Result<Option<u32>> {
    let kind = answer.get(4..).and_then(|it| it.first_chunk()).map(|it| u16::from_ne_bytes(*it));
    let body = answer.get(HEADER_LEN..).unwrap_or_default();
    match kind {
        Some(RTM_NEWLINK) => {
            let attributes = body.get(LINK_LEN..).unwrap_or_default();
            let counts =
                within(attributes, IFLA_LINKINFO).and_then(|it| within(it, IFLA_INFO_DATA));
            let count = |kind| counts.and_then(|it| within(it, kind)).and_then(number);
            let [used, disabled] = COUNTS.map(count);
            Ok(used.map(|used| used.saturating_add(disabled.unwrap_or(0))))
        }
        Some(NLMSG_ERROR) => {
            let errno = number(body).unwrap_or(0).cast_signed().saturating_neg();
            Err(io::Error::from_raw_os_error(errno))
        }
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// The value of the first attribute of a kind.
fn within(mut attributes: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let [l0, l1, k0, k1] = *attributes.first_chunk()?;
        let len = usize::from(u16::from_ne_bytes([l0, l1]));
        let value = attributes.get(4..len)?;
        if u16::from_ne_bytes([k0, k1]) & TYPE_MASK == kind {
            return Some(value);
        }
        attributes = attributes.get(len.next_multiple_of(4)..)?;
    }
}

fn number(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = (4 + value.len() as u16).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn answer(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_LEN];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes.extend(body);
        bytes
    }

    #[test]
    fn queues_in_use_and_disabled_ones_count() {
        let mut counts = attribute(COUNTS[0], &3_u32.to_ne_bytes());
        counts.extend(attribute(COUNTS[1], &2_u32.to_ne_bytes()));
        let info = [attribute(1, b"tun\0"), attribute(IFLA_INFO_DATA, &counts)].concat();
        let link = [vec![0; LINK_LEN], attribute(3, b"weir0\0"), attribute(IFLA_LINKINFO, &info)];
        let whole = answer(RTM_NEWLINK, &link.concat());
        assert_eq!(counted(&whole).unwrap(), Some(5));
        for len in 0..whole.len() {
            assert!(!matches!(counted(&whole[..len]), Ok(Some(_))), "it ends after {len} bytes");
        }
        let plain = [vec![0; LINK_LEN], attribute(3, b"lo\0")].concat();
        assert_eq!(counted(&answer(RTM_NEWLINK, &plain)).unwrap(), None);
    }

    #[test]
    fn an_error_is_the_kernels() {
        let no_device = (-libc::ENODEV).to_ne_bytes();
        let error = counted(&answer(NLMSG_ERROR, &no_device)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
        assert_eq!(attached(u32::MAX >> 1).unwrap_err().raw_os_error(), Some(libc::ENODEV));
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None).unwrap();
        let loopback = rustix::net::netdevice::name_to_index(&socket, "lo").unwrap();
        assert_eq!(attached(loopback).unwrap(), None, "no TAP");
    }
}
