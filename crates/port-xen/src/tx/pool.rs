//! weir's memory for guests' packets: a buffer for each unanswered request.
//!
//! Only the front of a packet is copied there at once. The pool knows the place of the rest.
//! Another Xen guest gets the rest straight from there; for other receivers weir fetches it
//! ([`weir_engine::burst::Remote`]). Several bursts may be under way, each with its own [batch of
//! grants](super::haul).

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use weir_guestmem::{MappedPages, Slice};
use weir_limits::XEN_PAGE_LEN;
use weir_wire::VnetHdr;
use weir_xen::{Grant, GrantRef};

use crate::link::Link;

/// Distance of virtio-net headers (bytes). The last bytes are the target of test reads, which show
/// whether a grant is readable.
const HEADER_STRIDE: usize = 16;
const _: () = assert!(VnetHdr::LEN < HEADER_STRIDE);

/// Buffers of one transmit queue.
pub(super) struct Pool {
    pub(super) link: Link,
    /// A page for the data of each request, which has at most one, so that a copy into it is one
    /// operation of Xen. The virtio-net headers that bursts put before a frame lie behind all
    /// pages.
    pages: MappedPages,
    /// Place of each buffer's data. A buffer belongs to one burst at a time, and passes to the next
    /// one under the queue's lock.
    places: Box<[AtomicU64]>,
}

/// Place of a buffer's data.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) grant: Grant,
    /// All data are in the buffer.
    pub(super) here: bool,
}

impl Pool {
    /// Makes a pool of `buffers` buffers. It uses memory only for buffers that were in use at one
    /// time.
    pub(super) fn new(link: Link, buffers: u16) -> io::Result<Self> {
        let buffers = usize::from(buffers);
        let pages = MappedPages::new(buffers * (XEN_PAGE_LEN + HEADER_STRIDE))?;
        let places = (0..buffers).map(|_| AtomicU64::new(HERE)).collect();
        Ok(Self { link, pages, places })
    }

    /// Returns the data of a buffer: `len` bytes, at most a page.
    #[inline]
    pub(super) fn data(&self, buffer: u16, len: u16) -> Option<Slice<'_>> {
        self.pages.slice(usize::from(buffer) * XEN_PAGE_LEN, usize::from(len).min(XEN_PAGE_LEN))
    }

    /// Returns the virtio-net header of a packet whose data begin in a buffer, and the bytes behind
    /// it.
    #[inline]
    fn header(&self, buffer: u16) -> Option<Slice<'_>> {
        let headers = self.places.len() * XEN_PAGE_LEN;
        self.pages.slice(headers + usize::from(buffer) * HEADER_STRIDE, HEADER_STRIDE)
    }

    /// Returns the virtio-net header of a packet whose data begin in a buffer.
    #[inline]
    pub(super) fn vnet_hdr(&self, buffer: u16) -> Option<Slice<'_>> {
        self.header(buffer).map(|header| header.first(VnetHdr::LEN))
    }

    /// Returns a byte of a buffer that nobody reads.
    pub(super) fn scrap(&self, buffer: u16) -> Option<Slice<'_>> {
        self.header(buffer).map(|header| header.skip(HEADER_STRIDE - 1))
    }

    /// Notes the place of a buffer's data.
    #[inline]
    pub(super) fn note(&self, buffer: u16, Place { grant, here }: Place) {
        if let Some(place) = self.places.get(usize::from(buffer)) {
            let at = u64::from(grant.reference.0) | u64::from(grant.offset) << 32;
            place.store(at | if here { HERE } else { 0 }, Ordering::Relaxed);
        }
    }

    /// Notes that a buffer's data are in it now.
    pub(super) fn note_here(&self, buffer: u16) {
        if let Some(place) = self.places.get(usize::from(buffer)) {
            place.fetch_or(HERE, Ordering::Relaxed);
        }
    }

    /// Returns the place of a buffer's data.
    #[inline]
    pub(super) fn place(&self, buffer: u16) -> Option<Place> {
        let bits = self.places.get(usize::from(buffer))?.load(Ordering::Relaxed);
        let (reference, offset) = (GrantRef(bits as u32), (bits >> 32) as u16);
        let grant = Grant { domain: self.link.domain, reference, offset };
        Some(Place { grant, here: bits & HERE != 0 })
    }

    /// Returns the buffer and place of a slice's first byte; `None` for bytes in no buffer.
    #[inline]
    pub(super) fn place_of(&self, slice: &Slice<'_>) -> Option<(u16, Place)> {
        let at = slice.address().checked_sub(self.pages.address())?;
        let buffer = u16::try_from(at / XEN_PAGE_LEN).ok()?;
        let place = self.place(buffer)?;
        Some((buffer, Place { grant: place.grant.skip(at % XEN_PAGE_LEN)?, ..place }))
    }
}

/// Bit of a place's word, behind 32 bits of reference and 16 of offset: the data are here.
const HERE: u64 = 1 << 48;

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("bytes", &self.pages.len()).finish_non_exhaustive()
    }
}
