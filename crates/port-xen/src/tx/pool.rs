//! Weir's memory for what guests send: a buffer for each request that is not answered yet.
//!
//! Only the front of a packet is brought there at once. Where the rest is, the pool knows: another Xen guest
//! has it copied from there, and for all other receivers it is fetched ([`weir_engine::remote`]). A queue most of
//! whose last burst was fetched has whole packets brought at once the next time: that is one call fewer.

use std::fmt;
use std::io;
use std::mem::take;
use std::sync::{Mutex, MutexGuard};

use weir_engine::burst::Burst;
use weir_engine::remote::Remote;
use weir_guestmem::{HostPages, Slice};
use weir_limits::XEN_PAGE_LEN;
use weir_wire::VnetHdr;
use weir_xen::{CopySegment, CopyStatus, Grant};

use super::ring::emptied;
use crate::connect::Link;
use crate::port::lock;

/// Bytes from one virtio-net header to the next; the last of them take what is read to see whether it can be.
const HEADER_STRIDE: usize = 16;
const _: () = assert!(VnetHdr::LEN < HEADER_STRIDE);

/// Buffers of one transmit queue.
pub(crate) struct Pool {
    link: Link,
    /// A page for the data of each request, which has at most one: a copy into it is one operation of Xen. The
    /// virtio-net headers that bursts have before a frame are behind them all.
    pages: HostPages,
    /// Of one worker at a time.
    away: Mutex<Away>,
}

/// Where the data of a buffer came from, or are.
#[derive(Clone, Copy)]
struct Place {
    grant: Grant,
    /// All of them are in the buffer.
    here: bool,
}

/// What is not in the buffers.
#[derive(Default)]
struct Away {
    /// By buffer.
    places: Vec<Option<Place>>,
    /// Of the last new burst, bytes beyond fronts: those there were, those that were fetched later, and those
    /// that other Xen guests got or, had they not been here, would have got from page to page.
    taken: u64,
    fetched: u64,
    passed: u64,
    /// Buffers whose grants were found bad when another guest was to have the data.
    bad: Vec<u16>,
    /// Room that is kept between bursts.
    copies: Vec<CopySegment<'static>>,
    owners: Vec<(u16, u8)>,
}

impl Pool {
    /// So many buffers, of which memory is used only for those that were in use at one time.
    pub(super) fn new(link: Link, buffers: u16) -> io::Result<Self> {
        let buffers = usize::from(buffers);
        let pages = HostPages::new(buffers * (XEN_PAGE_LEN + HEADER_STRIDE))?;
        let away = Away { places: vec![None; buffers], ..Away::default() };
        Ok(Self { link, pages, away: Mutex::new(away) })
    }

    fn away(&self) -> MutexGuard<'_, Away> {
        lock(&self.away)
    }

    /// The data of a buffer: `len` bytes, at most a page.
    #[inline]
    pub(super) fn data(&self, buffer: u16, len: u16) -> Option<Slice<'_>> {
        self.pages.slice(usize::from(buffer) * XEN_PAGE_LEN, usize::from(len).min(XEN_PAGE_LEN))
    }

    /// The virtio-net header of a packet whose data begin in a buffer, and what is behind it.
    #[inline]
    fn header(&self, buffer: u16) -> Option<Slice<'_>> {
        let headers = self.pages.len() / (XEN_PAGE_LEN + HEADER_STRIDE) * XEN_PAGE_LEN;
        self.pages.slice(headers + usize::from(buffer) * HEADER_STRIDE, HEADER_STRIDE)
    }

    /// The virtio-net header of a packet whose data begin in a buffer.
    #[inline]
    pub(super) fn vnet_hdr(&self, buffer: u16) -> Option<Slice<'_>> {
        self.header(buffer).map(|header| header.first(VnetHdr::LEN))
    }

    /// The data of a buffer are at `grant`, `beyond` bytes of them beyond their packet's front, and here if `here`.
    pub(super) fn note(&self, buffer: u16, grant: Grant, beyond: u16, here: bool) {
        let mut away = self.away();
        away.taken += u64::from(beyond);
        if let Some(place) = away.places.get_mut(usize::from(buffer)) {
            *place = Some(Place { grant, here: here || beyond == 0 });
        }
    }

    /// Whether data of any of these buffers are not here.
    pub(super) fn is_any_away(&self, buffers: impl IntoIterator<Item = u16>) -> bool {
        let away = self.away();
        buffers.into_iter().any(|buffer| away.place(buffer).is_some_and(|place| !place.here))
    }

    /// Whether to bring whole packets at once, by what became of the burst since this was asked last.
    pub(super) fn fetches_all(&self, before: bool) -> bool {
        let mut away = self.away();
        let taken = take(&mut away.taken);
        let (fetched, passed) = (take(&mut away.fetched), take(&mut away.passed));
        if before { passed * 2 <= taken } else { fetched * 2 > taken }
    }

    /// In which buffer of this pool the bytes of `slice` are to be, and where they are now; `None` for bytes
    /// that are here, or that this pool does not know.
    #[inline]
    pub(crate) fn grant_of(&self, slice: &Slice<'_>) -> Option<(u16, Grant)> {
        let mut away = self.away();
        let (buffer, Place { grant, here }) = away.place_of(&self.pages, slice)?;
        away.passed += slice.len() as u64;
        (!here).then_some((buffer, grant))
    }

    /// Whether bytes of `slice` are another guest's still.
    pub(crate) fn is_away(&self, slice: &Slice<'_>) -> bool {
        self.away().place_of(&self.pages, slice).is_some_and(|(_, place)| !place.here)
    }

    /// Which of these buffers' grants are to blame for copies to another guest that failed: those that weir can't
    /// read either. They are [kept](Self::take_bad).
    #[cold]
    pub(crate) fn blame(&self, buffers: impl Iterator<Item = u16>) {
        let mut away = self.away();
        let mut reads = emptied(take(&mut away.copies));
        away.owners.clear();
        for buffer in buffers {
            let grant = away.place(buffer).map(|place| place.grant);
            let to = self.header(buffer).map(|header| header.skip(HEADER_STRIDE - 1));
            let read = grant.zip(to).and_then(|(grant, to)| CopySegment::from_grant(grant, to));
            if let Some(read) = read {
                reads.push(read);
                away.owners.push((buffer, 0));
            }
        }
        let known = self.link.copy(&mut reads);
        let Away { bad, copies, owners, .. } = &mut *away;
        for (read, (buffer, _)) in reads.iter().zip(&*owners) {
            if known && read.status() != CopyStatus::Done {
                bad.push(*buffer);
            }
        }
        *copies = emptied(reads);
    }

    /// Whether the buffer was found to be to blame in this burst.
    pub(crate) fn is_bad(&self, buffer: u16) -> bool {
        self.away().bad.contains(&buffer)
    }

    /// Buffers that were to blame since the last time.
    pub(super) fn take_bad(&self) -> Vec<u16> {
        take(&mut self.away().bad)
    }
}

impl Away {
    #[inline]
    fn place(&self, buffer: u16) -> Option<Place> {
        self.places.get(usize::from(buffer)).copied().flatten()
    }

    /// The place of the first byte of a slice in the pool's `pages`, and its buffer.
    #[inline]
    fn place_of(&self, pages: &HostPages, slice: &Slice<'_>) -> Option<(u16, Place)> {
        let at = slice.address().checked_sub(pages.address())?;
        let buffer = u16::try_from(at / XEN_PAGE_LEN).ok()?;
        let place = self.place(buffer)?;
        Some((buffer, Place { grant: place.grant.skip(at % XEN_PAGE_LEN)?, ..place }))
    }
}

impl Remote for Pool {
    fn fetch(&self, burst: &Burst<'_>, frames: u64) -> u64 {
        let mut away = self.away();
        let (mut copies, mut owners) = (emptied(take(&mut away.copies)), take(&mut away.owners));
        owners.clear();
        let wanted = burst.frames().iter().zip(0_u8..).filter(|(_, n)| frames >> n & 1 != 0);
        for (frame, n) in wanted {
            for slice in burst.payload(frame) {
                let Some((buffer, place)) = away.place_of(&self.pages, slice) else { continue };
                // Within its page, as the request was.
                let copy = CopySegment::from_grant(place.grant, *slice);
                if let Some(copy) = copy.filter(|_| !place.here) {
                    away.fetched += slice.len() as u64;
                    copies.push(copy);
                    owners.push((buffer, n));
                }
            }
        }
        let known = self.link.copy(&mut copies);
        let mut lost = 0;
        for (copy, (buffer, frame)) in copies.iter().zip(&owners) {
            if known && copy.status() == CopyStatus::Done {
                if let Some(Some(place)) = away.places.get_mut(usize::from(*buffer)) {
                    place.here = true;
                }
            } else {
                lost |= 1 << frame;
            }
        }
        (away.copies, away.owners) = (emptied(copies), owners);
        lost
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("bytes", &self.pages.len()).finish_non_exhaustive()
    }
}
