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
    XdpRingOffset, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use weir_guestmem::{MappedPages, Slice};
use weir_limits::{PACKET_SOCKET_BUFFER_LEN, XDP_BUSY_NS_MAX, XDP_FRAMES};
use weir_wire::VnetHdr;

use crate::device::Chunks;
use crate::ring::{Consumer, Entry, Mapping, Producer};

/// One queue's memory of frames (UMEM): chunks of one size, each for one frame. The first [`XDP_FRAMES`] are for frames
/// from the interface, the same number is for frames to it.
pub(crate) struct Umem {
    pages: MappedPages,
    /// The size of a chunk (bytes), a power of two.
    chunk_len: u32,
}

impl Umem {
    /// Memory in chunks of `chunk_len` bytes, a power of two.
    pub(crate) fn new(chunk_len: u32) -> io::Result<Self> {
        let pages = MappedPages::new(2 * XDP_FRAMES as usize * chunk_len as usize)?;
        Ok(Self { pages, chunk_len })
    }

    /// The argument of `XDP_UMEM_REG`.
    pub(crate) fn registration(&self) -> XdpUmemReg {
        XdpUmemReg {
            addr: self.pages.address() as u64,
            len: self.pages.len() as u64,
            chunk_size: self.chunk_len,
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        }
    }

    /// Bytes of a chunk.
    pub(crate) fn chunk_len(&self) -> u32 {
        self.chunk_len
    }

    /// The addresses of the chunks for frames from the interface.
    pub(crate) fn arrivals(&self) -> impl Iterator<Item = u64> + use<> {
        let chunk_len = u64::from(self.chunk_len);
        (0..u64::from(XDP_FRAMES)).map(move |chunk| chunk * chunk_len)
    }

    /// The addresses of the chunks for frames to the interface.
    pub(crate) fn departures(&self) -> impl Iterator<Item = u64> + use<> {
        let chunk_len = u64::from(self.chunk_len);
        let frames = u64::from(XDP_FRAMES);
        (frames..2 * frames).map(move |chunk| chunk * chunk_len)
    }

    /// `len` bytes at `address`, if they are in this memory.
    #[inline]
    pub(crate) fn slice(&self, address: u64, len: u32) -> Option<Slice<'_>> {
        self.pages.slice(usize::try_from(address).ok()?, len as usize)
    }

    /// A frame of `len` bytes that the kernel put at `address`, with an empty `virtio_net_hdr` before it, in the
    /// headroom ([`XDP_HEADROOM_LEN`](weir_limits::XDP_HEADROOM_LEN)). The engine takes frames in this form from
    /// all ports.
    #[inline]
    pub(crate) fn frame(&self, address: u64, len: u32) -> Option<Slice<'_>> {
        const HEADER_LEN: u32 = VnetHdr::LEN as u32;
        if address % u64::from(self.chunk_len) < u64::from(HEADER_LEN) {
            return None;
        }
        let slice = self.slice(address - u64::from(HEADER_LEN), len.checked_add(HEADER_LEN)?)?;
        slice.write_array([0; VnetHdr::LEN]).then_some(slice)
    }

    /// The number of the chunk for frames from the interface in which `address` lies.
    #[inline]
    pub(crate) fn arrival_at(&self, address: u64) -> Option<u16> {
        let chunk = address / u64::from(self.chunk_len);
        u16::try_from(chunk).ok().filter(|chunk| u32::from(*chunk) < XDP_FRAMES)
    }

    #[inline]
    pub(crate) fn address(&self, chunk: u16) -> u64 {
        u64::from(chunk) * u64::from(self.chunk_len)
    }
}

/// The time between two attempts to get a busy queue.
const BUSY_POLL: Duration = Duration::from_millis(10);

/// A socket with its memory. The fields are dropped in this order: no socket without its memory.
pub(crate) struct XdpSocket {
    pub(crate) fd: OwnedFd,
    pub(crate) umem: Umem,
    /// A frame may take several chunks.
    several: bool,
}

/// The rings of a socket: weir's side of each.
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
    /// Opens a socket that is not bound yet, with its rings; all chunks for incoming frames are in
    /// the fill ring.
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

/// Lets as many frames be under way as there are chunks: in copy mode the kernel counts them
/// against the socket's buffer. A buffer beyond the host's limit (`net.core.wmem_max`) needs a
/// privilege. Without it, frames go in smaller groups.
fn enlarge(socket: BorrowedFd<'_>) {
    const LEN: usize = PACKET_SOCKET_BUFFER_LEN;
    if set_socket_send_buffer_size_force(socket, LEN).is_err() {
        let _ = set_socket_send_buffer_size(socket, LEN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_outside_the_memory_or_without_room_for_a_header_are_refused() {
        let umem = Umem::new(2048).unwrap();
        let end = umem.pages.len() as u64;
        umem.slice(2048, 2048).unwrap().write(&[7; 2048]);
        let frame = umem.frame(2048 + 256, 60).unwrap();
        let mut bytes = [1; 72];
        assert_eq!(frame.read(&mut bytes), 72);
        assert_eq!((&bytes[..12], &bytes[12..]), (&[0; 12][..], &[7; 60][..]));
        assert!(umem.frame(2048 + 11, 60).is_none(), "the header would be in another chunk");
        assert!(umem.frame(end - 60, 60).is_some() && umem.frame(end - 59, 60).is_none());
        assert!(umem.frame(u64::MAX - 10, 60).is_none() && umem.frame(256, u32::MAX).is_none());
    }

    #[test]
    fn every_chunk_is_for_one_direction() {
        let umem = Umem::new(4096).unwrap();
        let arrivals: Vec<_> = umem.arrivals().collect();
        for (chunk, address) in arrivals.iter().enumerate() {
            assert_eq!(umem.arrival_at(address + 4095), Some(chunk as u16));
            assert_eq!(umem.address(chunk as u16), *address);
        }
        let departures: Vec<_> = umem.departures().collect();
        assert_eq!((arrivals.len(), departures.len()), (1024, 1024));
        assert!(departures.iter().all(|address| umem.arrival_at(*address).is_none()));
        assert!(umem.slice(departures[1023], 4096).is_some());
    }
}
