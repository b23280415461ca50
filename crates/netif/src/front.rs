//! The front end's half of a shared ring (`public/io/ring.h`, FRONT_RING), for guests that are
//! weir's own or tests.

use std::sync::atomic::Ordering;

use weir_guestmem::{Window, fence};

use crate::back::{REQ_EVENT, REQ_PROD, RSP_EVENT, RSP_PROD, checked_size};
use crate::error::{RingError, SetupError};
use crate::index::{HEADER_BYTES, distance, entry, plausible, reached};

/// A ring that this process drives, with entries of `SLOT` bytes. The back end gets no more trust
/// than a guest: indices are checked, and an entry is copied before use.
#[derive(Debug)]
pub struct FrontRing<const SLOT: usize> {
    sring: Window,
    size: u32,
    /// Index of the next request to write (`req_prod_pvt`).
    req_prod: u32,
    /// `req_prod` as last published.
    pushed: u32,
    /// Index of the next response to take.
    rsp_cons: u32,
    /// `rsp_prod` as last read and checked: at most `pushed`.
    rsp_prod: u32,
}

impl<const SLOT: usize> FrontRing<SLOT> {
    /// Makes an empty ring in `sring` (`XEN_FRONT_RING_INIT`).
    ///
    /// # Errors
    /// [`SetupError`] describes the fault of the memory.
    pub fn init(sring: Window) -> Result<Self, SetupError> {
        Self::init_at(sring, 0)
    }

    /// Makes a ring with all indices at `start`; see [`init`](Self::init).
    pub(crate) fn init_at(sring: Window, start: u32) -> Result<Self, SetupError> {
        let size = checked_size(&sring, SLOT)?;
        sring.store32(REQ_PROD, start);
        sring.store32(REQ_EVENT, start.wrapping_add(1));
        sring.store32(RSP_PROD, start);
        sring.store32(RSP_EVENT, start.wrapping_add(1));
        sring.write(RSP_EVENT + 4, [0; HEADER_BYTES - RSP_EVENT - 4]);
        Ok(Self { sring, size, req_prod: start, pushed: start, rsp_cons: start, rsp_prod: start })
    }

    /// Returns the number of entries.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Returns the number of requests that fit (`RING_FREE_REQUESTS`).
    pub fn free(&self) -> u32 {
        self.size - distance(self.rsp_cons, self.req_prod)
    }

    /// Writes the next request, and returns its index; `None` if the ring is full. The back end
    /// sees it after [`push`](Self::push).
    pub fn request(&mut self, bytes: [u8; SLOT]) -> Option<u32> {
        if self.free() == 0 {
            return None;
        }
        let index = self.req_prod;
        self.sring.write(entry(index, self.size, SLOT), bytes);
        self.req_prod = index.wrapping_add(1);
        Some(index)
    }

    /// Publishes the requests. Returns whether the back end wants an event
    /// (`RING_PUSH_REQUESTS_AND_CHECK_NOTIFY`).
    pub fn push(&mut self) -> bool {
        let old = std::mem::replace(&mut self.pushed, self.req_prod);
        if old == self.pushed {
            return false;
        }
        // Release: the back end sees the requests before the index that covers them.
        self.sring.store32_release(REQ_PROD, self.pushed);
        // Pairs with the fence in the back end's `final_check`.
        fence(Ordering::SeqCst);
        reached(self.sring.load32(REQ_EVENT), old, self.pushed)
    }

    /// Reads the producer again, and returns the number of responses that may be taken.
    ///
    /// # Errors
    /// [`RingError::ResponseProducer`] when there are more responses than requests.
    pub fn refill(&mut self) -> Result<u32, RingError> {
        // Acquire: the responses that rsp_prod covers are read after it.
        let to = self.sring.load32_acquire(RSP_PROD);
        let outstanding = distance(self.rsp_cons, self.pushed);
        if !plausible(self.rsp_cons, self.rsp_prod, to, outstanding) {
            return Err(RingError::ResponseProducer { from: self.rsp_prod, to, size: self.size });
        }
        self.rsp_prod = to;
        Ok(self.available())
    }

    /// Returns the number of responses that may be taken without reading the producer again.
    pub fn available(&self) -> u32 {
        distance(self.rsp_cons, self.rsp_prod)
    }

    /// Copies the next response and its index, if [`available`](Self::available) is not 0. After a
    /// response shorter than its entry the bytes are the request's.
    pub fn response(&mut self) -> Option<(u32, [u8; SLOT])> {
        if self.available() == 0 {
            return None;
        }
        let index = self.rsp_cons;
        let bytes = self.sring.read::<SLOT>(entry(index, self.size, SLOT));
        self.rsp_cons = index.wrapping_add(1);
        Some((index, bytes))
    }

    /// Asks for an event at the next response, and returns the number available now
    /// (`RING_FINAL_CHECK_FOR_RESPONSES`). The caller may sleep only if that is 0.
    pub fn final_check(&mut self) -> Result<u32, RingError> {
        self.sring.store32(RSP_EVENT, self.rsp_prod.wrapping_add(1));
        // Pairs with the fence in the back end's `needs_notify`.
        fence(Ordering::SeqCst);
        self.refill()
    }
}
