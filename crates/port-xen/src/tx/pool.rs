//! weir's memory for guests' packets: a buffer for each unanswered request.
//!
//! Only the front of a packet is brought there at once. The pool knows where the rest is: another Xen guest gets it
//! copied from there; for all other receivers it is fetched ([`weir_engine::remote`]). Several bursts may be under
//! way, each with its own [batch of grants](super::haul).

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use weir_guestmem::{MappedPages, Slice};
use weir_limits::XEN_PAGE_LEN;
use weir_wire::VnetHdr;
use weir_xen::{Grant, GrantRef};

use crate::link::Link;

/// Bytes from one virtio-net header to the next; the last of them take what is read to see whether it can be.
const HEADER_STRIDE: usize = 16;
const _: () = assert!(VnetHdr::LEN < HEADER_STRIDE);

/// Buffers of one transmit queue.
pub(super) struct Pool {
    pub(super) link: Link,
    /// A page for the data of each request, which has at most one: a copy into it is one operation of Xen. The
    /// virtio-net headers that bursts have before a frame are behind them all.
    pages: MappedPages,
    /// Where the data of each buffer are. A buffer is of one burst at a time, and gets to the next one under the
    /// queue's lock.
    places: Box<[AtomicU64]>,
}

/// Where the data of a buffer came from, or are.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) grant: Grant,
    /// All of them are in the buffer.
    pub(super) here: bool,
}

impl Pool {
    /// So many buffers, of which memory is used only for those that were in use at one time.
    pub(super) fn new(link: Link, buffers: u16) -> io::Result<Self> {
        let buffers = usize::from(buffers);
        let pages = MappedPages::new(buffers * (XEN_PAGE_LEN + HEADER_STRIDE))?;
        let places = (0..buffers).map(|_| AtomicU64::new(HERE)).collect();
        Ok(Self { link, pages, places })
    }

    /// The data of a buffer: `len` bytes, at most a page.
    #[inline]
    pub(super) fn data(&self, buffer: u16, len: u16) -> Option<Slice<'_>> {
        self.pages.slice(usize::from(buffer) * XEN_PAGE_LEN, usize::from(len).min(XEN_PAGE_LEN))
    }

    /// The virtio-net header of a packet whose data begin in a buffer, and what is behind it.
    #[inline]
    fn header(&self, buffer: u16) -> Option<Slice<'_>> {
        let headers = self.places.len() * XEN_PAGE_LEN;
        self.pages.slice(headers + usize::from(buffer) * HEADER_STRIDE, HEADER_STRIDE)
    }

    /// The virtio-net header of a packet whose data begin in a buffer.
    #[inline]
    pub(super) fn vnet_hdr(&self, buffer: u16) -> Option<Slice<'_>> {
        self.header(buffer).map(|header| header.first(VnetHdr::LEN))
    }

    /// A byte of a buffer's that nobody reads.
    pub(super) fn scrap(&self, buffer: u16) -> Option<Slice<'_>> {
        self.header(buffer).map(|header| header.skip(HEADER_STRIDE - 1))
    }

    /// The data of a buffer are there.
    #[inline]
    pub(super) fn note(&self, buffer: u16, Place { grant, here }: Place) {
        if let Some(place) = self.places.get(usize::from(buffer)) {
            let at = u64::from(grant.reference.0) | u64::from(grant.offset) << 32;
            place.store(at | if here { HERE } else { 0 }, Ordering::Relaxed);
        }
    }

    /// The data of a buffer are in it now.
    pub(super) fn note_here(&self, buffer: u16) {
        if let Some(place) = self.places.get(usize::from(buffer)) {
            place.fetch_or(HERE, Ordering::Relaxed);
        }
    }

    /// Where the data of a buffer are.
    #[inline]
    pub(super) fn place(&self, buffer: u16) -> Option<Place> {
        let bits = self.places.get(usize::from(buffer))?.load(Ordering::Relaxed);
        let (reference, offset) = (GrantRef(bits as u32), (bits >> 32) as u16);
        let grant = Grant { domain: self.link.domain, reference, offset };
        Some(Place { grant, here: bits & HERE != 0 })
    }

    /// The place of the first byte of a slice, and its buffer; `None` for bytes that are in none.
    #[inline]
    pub(super) fn place_of(&self, slice: &Slice<'_>) -> Option<(u16, Place)> {
        let at = slice.address().checked_sub(self.pages.address())?;
        let buffer = u16::try_from(at / XEN_PAGE_LEN).ok()?;
        let place = self.place(buffer)?;
        Some((buffer, Place { grant: place.grant.skip(at % XEN_PAGE_LEN)?, ..place }))
    }
}

/// In a place's word, which has the reference in its first 32 bits and the offset in 16 more: the data are here.
const HERE: u64 = 1 << 48;

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("bytes", &self.pages.len()).finish_non_exhaustive()
    }
}
