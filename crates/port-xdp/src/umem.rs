//! The memory of frames (UMEM): chunks of one size, each for one frame. The first [`XDP_FRAMES`] are for frames from
//! the interface, the same number is for frames to it.

use std::io;

use rustix::net::xdp::{XdpUmemReg, XdpUmemRegFlags};
use weir_guestmem::{MappedPages, Slice};
use weir_limits::XDP_FRAMES;
use weir_wire::VnetHdr;

/// One queue's memory.
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
