//! Opens an interface by packet sockets and reads from them.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::sockopt::{
    set_socket_recv_buffer_size, set_socket_recv_buffer_size_force, set_socket_send_buffer_size,
    set_socket_send_buffer_size_force,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use weir_engine::Side;
use weir_guestmem::{Batch, HostBuffer, Slice, receive_messages};
use weir_limits::{DATAGRAMS_RECEIVED_MAX, PACKET_SOCKET_BUFFER_LEN};
use weir_policy::steering::Steering;
use weir_port_tap::{FrameDevice, InterfaceName, Link, LinkError, SLOT_LEN};
use weir_wire::vlan::TAG_LEN;
use weir_wire::{Mac, OffloadCaps, VnetHdr, vnet};

use crate::PacketError;
use crate::sys;

/// The choice of an interface, and its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketOptions {
    /// The interface's name, 1 to [`weir_limits::IFNAME_LEN_MAX`] bytes.
    pub name: String,
    /// Sockets among which flows are divided, 1 to [`weir_limits::QUEUE_PAIRS_MAX`].
    pub queues: usize,
    /// The interface's MTU (bytes); `None` leaves it unchanged.
    pub mtu: Option<u16>,
}

/// The properties of the opened interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketInfo {
    /// The interface's name.
    pub name: String,
    /// The interface's number.
    pub index: u32,
    /// The host's address on it.
    pub mac: Mac,
    /// The interface's MTU (bytes) when it was opened.
    pub mtu: u32,
}

/// An interface, promiscuous until this value is dropped.
#[derive(Debug)]
pub struct PacketSocket {
    info: PacketInfo,
    /// One socket per queue, non-blocking.
    queues: Vec<OwnedFd>,
    steering: Steering,
}

/// Offloads that Linux does itself if the interface does not (`virtio_net_hdr_to_skb`). UDP GSO is
/// left out: it came with Linux 6.2, and a socket does not show whether the kernel has it.
const OFFLOADS: OffloadCaps =
    OffloadCaps::CSUM.union(OffloadCaps::TSO4).union(OffloadCaps::TSO6).union(OffloadCaps::TSO_ECN);

impl PacketSocket {
    /// Opens the interface of that name in the calling thread's network namespace, which must exist,
    /// and brings it up.
    pub fn open(options: &PacketOptions) -> Result<Self, PacketError> {
        Self::go_on(options, Vec::new())
    }

    /// Opens the interface, and continues with queues that another process has left, if they are exactly the wanted
    /// ones.
    ///
    /// # Errors
    /// [`PacketError`]
    pub fn go_on(options: &PacketOptions, left: Vec<OwnedFd>) -> Result<Self, PacketError> {
        let name = InterfaceName::new(&options.name).map_err(LinkError::from)?;
        let steering = Steering::new(options.queues).map_err(LinkError::from)?;
        let failed = |step| setup_failed(&options.name, step);
        let link = Link::new(name).map_err(failed("ask for it"))?;
        let index = link.index().map_err(failed("find it"))?;
        if !link.is_ethernet().map_err(failed("read its type"))? {
            return Err(LinkError::NotEthernet { name: options.name.clone() }.into());
        }
        // The check comes before the interface is changed: an error up to here leaves the interface as it was.
        let is_its =
            |queue: &OwnedFd| sys::bound_to(queue.as_fd()).is_ok_and(|bound| bound == Some(index));
        let queues = match left.len() == options.queues && left.iter().all(is_its) {
            true => left,
            false => open_queues(&options.name, index, options.queues)?,
        };
        if let Some(mtu) = options.mtu {
            let name = options.name.clone();
            link.set_mtu(mtu).map_err(|source| LinkError::Mtu { name, mtu, source })?;
        }
        let name = options.name.clone();
        link.bring_up().map_err(|source| LinkError::LinkUp { name, source })?;
        let info = PacketInfo {
            name: options.name.clone(),
            index,
            mac: link.mac().map_err(failed("read its MAC address"))?,
            mtu: link.mtu().map_err(failed("read its MTU"))?,
        };
        Ok(Self { info, queues, steering })
    }

    /// The properties of the interface.
    pub fn info(&self) -> &PacketInfo {
        &self.info
    }
}

/// Makes interface `index` accept frames for every address, until the returned descriptor is closed. The descriptor is
/// a packet socket that receives nothing.
///
/// # Errors
/// `EPERM`: the call needs `CAP_NET_RAW`.
pub fn promiscuous(index: u32) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?;
    sys::add_promiscuous(socket.as_fd(), index)?;
    Ok(socket)
}

fn open_queues(name: &str, index: u32, count: usize) -> Result<Vec<OwnedFd>, PacketError> {
    let failed = |step| setup_failed(name, step);
    let mut queues = Vec::with_capacity(count);
    let mut group = None;
    for _ in 0..count {
        // Without a protocol the socket receives nothing, so no frame of another interface comes in before the socket
        // is bound.
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)
            .map_err(io::Error::from)
            .map_err(failed("open a packet socket"))?;
        let fd = socket.as_fd();
        let set = |option, what| sys::set_option(fd, option, 1).map_err(failed(what));
        set(libc::PACKET_VNET_HDR, "ask for a virtio_net_hdr (PACKET_VNET_HDR)")?;
        set(libc::PACKET_AUXDATA, "ask for VLAN tags (PACKET_AUXDATA)")?;
        set(libc::PACKET_IGNORE_OUTGOING, "leave out what the host sends (Linux 4.20 has it)")?;
        enlarge(fd);
        sys::add_promiscuous(fd, index).map_err(failed("make it promiscuous"))?;
        sys::bind(fd, index).map_err(failed("bind to it"))?;
        if count > 1 {
            group = Some(
                sys::join_fanout(fd, group).map_err(failed("share its frames between queues"))?,
            );
        }
        queues.push(socket);
    }
    Ok(queues)
}

/// Enlarges the buffer for GSO packets. A buffer beyond the host's limit for all sockets (`net.core.rmem_max`) needs a
/// privilege. With a smaller buffer, more frames are lost under load, and nothing else changes.
fn enlarge(socket: BorrowedFd<'_>) {
    const LEN: usize = PACKET_SOCKET_BUFFER_LEN;
    if set_socket_recv_buffer_size_force(socket, LEN).is_err() {
        let _ = set_socket_recv_buffer_size(socket, LEN);
    }
    if set_socket_send_buffer_size_force(socket, LEN).is_err() {
        let _ = set_socket_send_buffer_size(socket, LEN);
    }
}

/// The error of a step: the kernel's error, or its meaning.
fn setup_failed(name: &str, step: &'static str) -> impl FnOnce(io::Error) -> PacketError + use<> {
    let name = name.to_owned();
    move |source| match Errno::from_io_error(&source) {
        Some(Errno::PERM | Errno::ACCESS) => PacketError::NotPermitted { name },
        Some(Errno::NODEV | Errno::NXIO) => LinkError::NoInterface { name }.into(),
        _ => LinkError::Setup { name, step, source }.into(),
    }
}

impl FrameDevice for PacketSocket {
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
        OFFLOADS
    }

    fn vnet_len(&self) -> usize {
        VNET_LEN
    }

    fn receive(
        &self,
        queue: BorrowedFd<'_>,
        buffers: &mut dyn Iterator<Item = &HostBuffer>,
        places: &mut Vec<Range<usize>>,
    ) -> io::Result<usize> {
        let mut slots = [None; DATAGRAMS_RECEIVED_MAX];
        for (slot, buffer) in slots.iter_mut().zip(buffers) {
            *slot = buffer.slice(0, SLOT_LEN);
        }
        let slots = || slots.iter().flatten();
        let mut filled = slots();
        let received = receive_messages(queue, slots().map(|slot| slot.skip(TAG_LEN)), |message| {
            let end = TAG_LEN + message.len;
            let tag = filled.next().zip(tag(message.control));
            let tagged = tag.is_some_and(|(slot, tag)| put_back(&slot.first(end), tag));
            places.push(if tagged { 0..end } else { TAG_LEN..end });
        });
        match received {
            // The link went down. The socket reports this once, and no frame is lost: read again.
            Err(error)
                if Errno::from_io_error(&error) == Some(Errno::NETDOWN)
                    && sys::bound_to(queue).is_ok_and(|index| index.is_some()) =>
            {
                Err(io::ErrorKind::Interrupted.into())
            }
            result => result,
        }
    }

    fn send(
        &self,
        queue: BorrowedFd<'_>,
        batch: &mut Batch<'_, '_>,
        lost: &mut dyn FnMut(Range<usize>, &io::Error),
    ) {
        batch.send(queue, lost);
    }

    fn is_gone(&self, queue: BorrowedFd<'_>, _side: Side, _error: &io::Error) -> bool {
        // Removing an interface unbinds its sockets; taking it down does not. Linux reports only the latter, which
        // comes first. The next frame toward the interface then shows that it was removed.
        !sys::bound_to(queue).is_ok_and(|index| index.is_some())
    }
}

/// Bytes of the `virtio_net_hdr` of a packet socket: it has no `num_buffers`.
pub(crate) const VNET_LEN: usize = 10;
/// Both addresses of an Ethernet header, which a tag follows.
const ADDRESSES_LEN: usize = 12;
/// Header and addresses, which are moved to make room for a tag.
const FRONT_LEN: usize = VNET_LEN + ADDRESSES_LEN;

/// `sizeof(struct cmsghdr)`: a length of a word, level and type.
const CMSG_HEADER_LEN: usize = size_of::<usize>() + 8;
/// `struct tpacket_auxdata` has 20 bytes; its TCI and its TPID are the last.
const AUXDATA_LEN: usize = 20;

/// The VLAN tag of a received frame, TPID and TCI, from its control messages. Linux takes the tag
/// out of the frame (`skb_vlan_untag`) and gives it separately; without it every VLAN's frames
/// would look untagged. This socket gets one kind of control message: `PACKET_AUXDATA`.
pub(crate) fn tag(control: &[u8]) -> Option<[u8; TAG_LEN]> {
    const LEVEL: usize = size_of::<usize>();
    let level = i32::from_ne_bytes(*control.get(LEVEL..)?.first_chunk()?);
    let kind = i32::from_ne_bytes(*control.get(LEVEL + 4..)?.first_chunk()?);
    if (level, kind) != (libc::SOL_PACKET, libc::PACKET_AUXDATA) {
        return None;
    }
    let auxdata: &[u8; AUXDATA_LEN] = control.get(CMSG_HEADER_LEN..)?.first_chunk()?;
    let status = u32::from_ne_bytes(*auxdata.first_chunk()?);
    if status & libc::TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    let tci = u16::from_ne_bytes([auxdata[16], auxdata[17]]);
    let tpid = match status & libc::TP_STATUS_VLAN_TPID_VALID {
        0 => libc::ETH_P_8021Q as u16, // 0x8100
        _ => u16::from_ne_bytes([auxdata[18], auxdata[19]]),
    };
    let ([a, b], [c, d]) = (tpid.to_be_bytes(), tci.to_be_bytes());
    Some([a, b, c, d])
}

/// Puts `tag` into a frame. The frame's `virtio_net_hdr` begins [`TAG_LEN`] bytes after the start of `slot`, and
/// afterwards at the start. A frame without room for addresses is left as it is: `false`.
pub(crate) fn put_back(slot: &Slice<'_>, tag: [u8; TAG_LEN]) -> bool {
    let Some(mut front) = slot.skip(TAG_LEN).read_array::<FRONT_LEN>() else { return false };
    let mut header = [0; VnetHdr::LEN];
    header[..VNET_LEN].copy_from_slice(&front[..VNET_LEN]);
    let mut header = VnetHdr::from_bytes(&header);
    // The kernel counts these offsets from the start of the frame without the tag.
    if header.flags & vnet::F_NEEDS_CSUM != 0 {
        header.csum_start = header.csum_start.saturating_add(TAG_LEN as u16);
    }
    if header.gso_type != vnet::GSO_NONE {
        header.hdr_len = header.hdr_len.saturating_add(TAG_LEN as u16);
    }
    front[..VNET_LEN].copy_from_slice(&header.to_bytes()[..VNET_LEN]);
    slot.write(&front);
    slot.skip(FRONT_LEN).write(&tag);
    true
}
