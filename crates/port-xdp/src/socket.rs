//! One AF_XDP socket (`Documentation/networking/af_xdp.rst` of Linux): it serves one queue of an
//! interface.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::{
    set_socket_send_buffer_size, set_socket_send_buffer_size_force, set_xdp_rx_ring_size,
    set_xdp_tx_ring_size, set_xdp_umem_completion_ring_size, set_xdp_umem_fill_ring_size,
    set_xdp_umem_reg, xdp_mmap_offsets, xdp_options,
};
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING,
    XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING, XdpDesc, XdpOptionsFlags,
    XdpRingOffset,
};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use weir_limits::{PACKET_SOCKET_BUFFER_LEN, XDP_BUSY_NS_MAX, XDP_FRAMES};

use crate::device::Chunks;
use crate::ring::{Consumer, Entry, Mapping, Producer};
use crate::umem::Umem;

/// The time between two attempts to get a busy queue.
const BUSY_POLL: Duration = Duration::from_millis(10);

/// A socket with its memory. The fields are dropped in this order: no socket without its memory.
pub(crate) struct XdpSocket {
    pub(crate) fd: OwnedFd,
    pub(crate) umem: Umem,
    /// A frame may take several chunks.
    several: bool,
}

/// The rings of a socket, by the side that weir has.
pub(crate) struct Rings {
    /// Chunks for the kernel to put frames into.
    pub(crate) fill: Producer<u64>,
    /// The RX ring: frames that came.
    pub(crate) received: Consumer<XdpDesc>,
    /// The TX ring: frames to send.
    pub(crate) transmit: Producer<XdpDesc>,
    /// Chunks whose frames were sent.
    pub(crate) completed: Consumer<u64>,
}

/// A step of opening a socket that failed, and why.
pub(crate) type StepError = (&'static str, io::Error);

fn failed<E: Into<io::Error>>(step: &'static str) -> impl FnOnce(E) -> StepError {
    move |error| (step, error.into())
}

/// The step that fails if the socket's memory cannot be registered.
pub(crate) const REGISTER_STEP: &str = "register its memory (UMEM)";

impl XdpSocket {
    /// Opens a socket that is not bound yet, with its rings; all chunks for frames that come are in the fill ring.
    pub(crate) fn open(chunks: Chunks) -> Result<(Self, Rings), StepError> {
        let Chunks { len: chunk_len, several } = chunks;
        // The socket is non-blocking, and each call that has a flag for this sets it as well.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = rustix::net::socket_with(AddressFamily::XDP, SocketType::RAW, flags, None)
            .map_err(failed("open an AF_XDP socket"))?;
        let umem = Umem::new(chunk_len).map_err(failed("get memory"))?;
        set_xdp_umem_reg(&fd, umem.registration()).map_err(failed(REGISTER_STEP))?;
        let size = failed("set the size of its rings");
        let sized = set_xdp_umem_fill_ring_size(&fd, XDP_FRAMES)
            .and_then(|()| set_xdp_umem_completion_ring_size(&fd, XDP_FRAMES))
            .and_then(|()| set_xdp_rx_ring_size(&fd, XDP_FRAMES))
            .and_then(|()| set_xdp_tx_ring_size(&fd, XDP_FRAMES));
        sized.map_err(size)?;
        enlarge(fd.as_fd());
        let mut rings = Rings::map(fd.as_fd()).map_err(failed("map its rings"))?;
        for address in umem.arrivals() {
            // The ring has an entry for each chunk.
            rings.fill.push(address);
        }
        rings.fill.publish();
        Ok((Self { fd, umem, several }, rings))
    }

    /// Binds the socket to a queue of an interface: without a copy in the kernel if the driver can do that, else with
    /// one. A queue whose former owner has ended is free a moment later.
    ///
    /// # Errors
    /// `EBUSY`: another socket has the queue. `EINVAL`: this kernel knows no frames in several chunks.
    pub(crate) fn bind(&self, index: u32, queue: u32) -> io::Result<()> {
        let mut flags = SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
        flags.set(SocketAddrXdpFlags::XDP_USE_SG, self.several);
        let address = SocketAddrXdp::new(flags, index, queue);
        let end = Instant::now() + Duration::from_nanos(XDP_BUSY_NS_MAX);
        loop {
            match rustix::net::bind(&self.fd, &address) {
                Err(Errno::BUSY) if Instant::now() < end => thread::sleep(BUSY_POLL),
                result => return Ok(result?),
            }
        }
    }

    /// True if the driver puts frames into the UMEM itself.
    pub(crate) fn is_zero_copy(&self) -> io::Result<bool> {
        Ok(xdp_options(&self.fd)?.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY))
    }

    /// Rings the doorbell of the TX ring.
    ///
    /// # Errors
    /// `ENETDOWN`: the link is down. `ENXIO`: the interface was removed, which nothing else reports (`xsk_notifier` in
    /// `net/xdp/xsk.c`). `EAGAIN`, `EBUSY`, `ENOBUFS`: not all frames were sent.
    pub(crate) fn send(&self) -> Result<(), Errno> {
        rustix::net::send(&self.fd, &[], SendFlags::DONTWAIT).map(|_| ())
    }

    /// Rings the doorbell of the fill ring.
    pub(crate) fn refill(&self) {
        // The call can only fail because the link is down: then no frame comes.
        let _ = rustix::net::recv(&self.fd, &mut [0; 0], RecvFlags::DONTWAIT);
    }
}

impl Rings {
    fn map(socket: BorrowedFd<'_>) -> io::Result<Self> {
        let offsets = xdp_mmap_offsets(socket)?;
        let (fill, completed) = (&offsets.fr, &offsets.cr);
        let (received, transmit) = (&offsets.rx, &offsets.tx);
        Ok(Self {
            fill: Producer::new(
                ring::<u64>(socket, XDP_UMEM_PGOFF_FILL_RING, fill)?,
                fill,
                XDP_FRAMES,
            )?,
            received: Consumer::new(
                ring::<XdpDesc>(socket, XDP_PGOFF_RX_RING, received)?,
                received,
                XDP_FRAMES,
            )?,
            transmit: Producer::new(
                ring::<XdpDesc>(socket, XDP_PGOFF_TX_RING, transmit)?,
                transmit,
                XDP_FRAMES,
            )?,
            completed: Consumer::new(
                ring::<u64>(socket, XDP_UMEM_PGOFF_COMPLETION_RING, completed)?,
                completed,
                XDP_FRAMES,
            )?,
        })
    }
}

/// Maps a ring, whose entries come last.
fn ring<T: Entry>(
    socket: BorrowedFd<'_>,
    offset: u64,
    at: &XdpRingOffset,
) -> io::Result<Arc<Mapping>> {
    let entries = XDP_FRAMES as usize * size_of::<T>();
    let len = usize::try_from(at.desc).map_err(|_| io::ErrorKind::InvalidInput)? + entries;
    Ok(Arc::new(Mapping::new(socket, offset, len)?))
}

/// Lets as many frames be under way as there are chunks: in copy mode the kernel counts them as any socket's. Going
/// beyond the host's limit (`net.core.wmem_max`) takes a privilege; without it, frames go in smaller groups.
fn enlarge(socket: BorrowedFd<'_>) {
    const LEN: usize = PACKET_SOCKET_BUFFER_LEN;
    if set_socket_send_buffer_size_force(socket, LEN).is_err() {
        let _ = set_socket_send_buffer_size(socket, LEN);
    }
}
