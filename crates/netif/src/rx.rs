//! A guest's receive ring (`public/io/netif.h`, "Guest receive").
//!
//! Requests are answered in order: Linux's netfront matches the n-th response with its n-th request, because an
//! extra info has no id (the header's note on "historically").

use weir_guestmem::Window;
use weir_limits::XEN_PAGE_LEN;

use crate::back::BackRing;
use crate::error::SetupError;
use crate::message::*;
use crate::offload::RxMeta;
use crate::plan::Segment;

/// Bytes of a page of the guest that a frame's next bytes go to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RxSegment {
    /// Where.
    pub segment: Segment,
    /// Which response speaks of them.
    response: u32,
}

/// The back end of a receive ring.
#[derive(Debug)]
pub struct RxBack {
    ring: BackRing<RX_SLOT_BYTES>,
}

impl RxBack {
    /// As [`BackRing::attach`].
    pub fn attach(sring: Window) -> Result<Self, SetupError> {
        Ok(Self { ring: BackRing::attach(sring)? })
    }

    /// The ring, for what has nothing to do with packets: refilling, pushing, events. Responses are
    /// written by [`place`](Self::place) alone.
    #[inline]
    pub fn ring(&mut self) -> &mut BackRing<RX_SLOT_BYTES> {
        &mut self.ring
    }

    /// Requests that a frame of `len` bytes takes: one for each page, and one for each extra info.
    pub fn slots_for(len: u32, meta: &RxMeta) -> u32 {
        len.div_ceil(XEN_PAGE_LEN as u32).max(1) + meta.extras().count() as u32
    }

    /// Takes the requests for a frame of `len` bytes, of those that the last [`BackRing::refill`]
    /// counted, answers them, and appends to `segments` where its bytes go. They are to be there before
    /// [`BackRing::push`]. `false`, and nothing is taken, when there are too few requests.
    pub fn place(&mut self, len: u32, meta: &RxMeta, segments: &mut Vec<RxSegment>) -> bool {
        let needed = Self::slots_for(len, meta);
        // What was taken was answered, but for a caller's programming error.
        if self.ring.available() < needed || self.ring.unanswered() > 0 {
            return false;
        }
        let extras = meta.extras().count();
        let mut left = len;
        // Bounded by `needed`: a frame's first slot, its extra infos, its other slots.
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

    /// Fills one request's page with what is left, and says how much is left then.
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

    /// The bytes could not be put there, since the guest's grant is none: its response says so, and the
    /// guest drops that frame.
    pub fn copy_failed(&mut self, segment: &RxSegment) {
        let status = (Status::Error as i16).to_le_bytes();
        self.ring.amend(segment.response, RxResponse::STATUS, status);
    }
}
