//! A guest's receive ring (`public/io/netif.h`, "Guest receive").
//!
//! Requests are answered in order: Linux's netfront matches the n-th response with its n-th request, because an
//! extra info has no id (the header's note on "historically").

use weir_guestmem::Window;
use weir_limits::XEN_PAGE_LEN;

use crate::back::BackRing;
use crate::error::SetupError;
use crate::message::{Segment, *};
use crate::offload::RxMeta;

/// Bytes of a guest's page for the next bytes of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RxSegment {
    /// Place of the bytes.
    pub segment: Segment,
    /// Index of the response for them.
    response: u32,
}

/// The back end of a receive ring.
#[derive(Debug)]
pub struct RxBack {
    ring: BackRing<RX_SLOT_BYTES>,
}

impl RxBack {
    /// Takes over the ring; see [`BackRing::attach`].
    pub fn attach(sring: Window) -> Result<Self, SetupError> {
        Ok(Self { ring: BackRing::attach(sring)? })
    }

    /// Returns the ring, for refilling, pushing and events. Only [`place`](Self::place) writes
    /// responses.
    #[inline]
    pub fn ring(&mut self) -> &mut BackRing<RX_SLOT_BYTES> {
        &mut self.ring
    }

    /// Returns the requests that a frame of `len` bytes takes: one for each page, and one for each
    /// extra info.
    pub fn slots_for(len: u32, meta: &RxMeta) -> u32 {
        len.div_ceil(XEN_PAGE_LEN as u32).max(1) + meta.extras().count() as u32
    }

    /// Takes and answers the requests for a frame of `len` bytes, among those that the last
    /// [`BackRing::refill`] counted. Appends the places of the frame's bytes to `segments`; the
    /// caller must fill them before [`BackRing::push`]. Returns `false`, and takes nothing, if
    /// there are too few requests.
    pub fn place(&mut self, len: u32, meta: &RxMeta, segments: &mut Vec<RxSegment>) -> bool {
        let needed = Self::slots_for(len, meta);
        // Every taken request is answered here, unless the caller is wrong.
        if self.ring.available() < needed || self.ring.unanswered() > 0 {
            return false;
        }
        let extras = meta.extras().count();
        let mut left = len;
        // `needed` bounds this: a frame's first slot, its extra infos, its other slots.
        let has_extras = if extras > 0 { rx_flags::EXTRA_INFO } else { 0 };
        left = self.place_page(left, meta.flags() | has_extras, segments);
        for (nth, extra) in meta.extras().enumerate() {
            if self.ring.request().is_some() {
                self.ring.respond(extra.to_bytes(nth + 1 < extras));
            }
        }
        while left > 0 {
            left = self.place_page(left, 0, segments);
        }
        true
    }

    /// Fills one request's page. Returns the number of bytes that are left.
    fn place_page(&mut self, left: u32, flags: u16, segments: &mut Vec<RxSegment>) -> u32 {
        let Some(bytes) = self.ring.request() else { return 0 };
        let request = RxRequest::from_bytes(&bytes);
        let len = left.min(XEN_PAGE_LEN as u32);
        let rest = left - len;
        let more = if rest > 0 { rx_flags::MORE_DATA } else { 0 };
        let status = len as i16; // at most a page
        let response = RxResponse { id: request.id, offset: 0, flags: flags | more, status };
        let response = self.ring.respond(response.to_bytes());
        let segment = Segment { gref: request.gref, offset: 0, len: len as u16 };
        segments.push(RxSegment { segment, response });
        rest
    }

    /// Marks a segment whose copy failed, since the guest's grant is invalid. The response reports
    /// it, and the guest drops the frame.
    pub fn copy_failed(&mut self, segment: &RxSegment) {
        let status = (Status::Error as i16).to_le_bytes();
        self.ring.amend(segment.response, RxResponse::STATUS, status);
    }
}
