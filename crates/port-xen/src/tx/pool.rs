//! Weir's memory for what guests send: a buffer for each request that is not answered yet.
//!
//! Only the front of a packet is brought there at once. Where the rest is, the pool knows: another Xen guest
//! has it copied from there, and for all other receivers it is fetched ([`weir_engine::remote`]).

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

/// What is not in the buffers.
#[derive(Default)]
struct Away {
    /// By buffer: where its data are, unless they are here.
    grants: Vec<Option<Grant>>,
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
        let away = Away { grants: vec![None; buffers], ..Away::default() };
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

    /// The data of a buffer are at `grant`, beyond those that are here; or `None`, all here.
    pub(super) fn leave_at(&self, buffer: u16, grant: Option<Grant>) {
        if let Some(place) = self.away().grants.get_mut(usize::from(buffer)) {
            *place = grant;
        }
    }

    /// Whether data of any of these buffers are not here.
    pub(super) fn is_any_away(&self, buffers: impl IntoIterator<Item = u16>) -> bool {
        let away = self.away();
        buffers
            .into_iter()
            .any(|buffer| matches!(away.grants.get(usize::from(buffer)), Some(Some(_))))
    }

    /// In which buffer of this pool the bytes of `slice` are to be, and where they are now; `None` for bytes
    /// that are here, or that this pool does not know.
    #[inline]
    pub(crate) fn grant_of(&self, slice: &Slice<'_>) -> Option<(u16, Grant)> {
        self.away().grant_of(&self.pages, slice)
    }

    /// Which of these buffers' grants are to blame for copies to another guest that failed: those that weir can't
    /// read either. They are [kept](Self::take_bad).
    #[cold]
    pub(crate) fn blame(&self, buffers: impl Iterator<Item = u16>) {
        let mut away = self.away();
        let Away { grants, bad, copies, owners } = &mut *away;
        let mut reads = emptied(take(copies));
        owners.clear();
        for buffer in buffers {
            let grant = grants.get(usize::from(buffer)).copied().flatten();
            let to = self.header(buffer).map(|header| header.skip(HEADER_STRIDE - 1));
            let read = grant.zip(to).and_then(|(grant, to)| CopySegment::from_grant(grant, to));
            if let Some(read) = read {
                reads.push(read);
                owners.push((buffer, 0));
            }
        }
        let known = self.link.copy(&mut reads);
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
    fn grant_of(&self, pages: &HostPages, slice: &Slice<'_>) -> Option<(u16, Grant)> {
        let at = slice.address().checked_sub(pages.address())?;
        let buffer = at / XEN_PAGE_LEN;
        let grant = (*self.grants.get(buffer)?)?.skip(at % XEN_PAGE_LEN)?;
        Some((u16::try_from(buffer).ok()?, grant))
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
                let Some((buffer, grant)) = away.grant_of(&self.pages, slice) else { continue };
                // Within its page, as the request was.
                if let Some(copy) = CopySegment::from_grant(grant, *slice) {
                    copies.push(copy);
                    owners.push((buffer, n));
                }
            }
        }
        let known = self.link.copy(&mut copies);
        let mut lost = 0;
        for (copy, (buffer, frame)) in copies.iter().zip(&owners) {
            if known && copy.status() == CopyStatus::Done {
                if let Some(place) = away.grants.get_mut(usize::from(*buffer)) {
                    *place = None;
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
