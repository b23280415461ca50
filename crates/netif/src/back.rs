//! The back end's half of a shared ring (`public/io/ring.h`, "Macros for manipulating rings", BACK_RING).
//!
//! ```text
//! refill()           how much was requested           one acquire load of req_prod
//! request()          the next request                 its bytes, copied once
//! respond()          one response, not yet seen
//! push()             one release store of rsp_prod
//! needs_notify()     is the front end waiting?        after a full fence
//! final_check()      before sleep: did more come?     after a full fence
//! ```

use std::fmt;
use std::sync::atomic::Ordering;

use weir_guestmem::{Window, fence};
use weir_limits::{XEN_PAGE_LEN, XEN_RING_PAGES_MAX};

use crate::error::{RingError, SetupError};

/// Offsets of the indices in `struct ..._sring`.
pub(crate) const REQ_PROD: usize = 0;
/// See [`REQ_PROD`].
pub(crate) const REQ_EVENT: usize = 4;
/// See [`REQ_PROD`].
pub(crate) const RSP_PROD: usize = 8;
/// See [`REQ_PROD`].
pub(crate) const RSP_EVENT: usize = 12;

/// Checks the memory of a ring with entries of `slot_bytes`. Returns its number of entries.
pub(crate) fn checked_size(sring: &Window, slot_bytes: usize) -> Result<u32, SetupError> {
    let bytes = sring.len();
    if bytes > XEN_RING_PAGES_MAX * XEN_PAGE_LEN {
        return Err(SetupError::Length(bytes));
    }
    if !sring.is_aligned(4) {
        return Err(SetupError::Misaligned);
    }
    ring_size(bytes, slot_bytes).ok_or(SetupError::Length(bytes))
}

/// A ring that weir serves. Its entries, each a union of request and response, have `SLOT` bytes.
///
/// A request gets exactly one response, in the caller's order. Front-end memory is read once per
/// use: an entry by [`request`](Self::request), the producer by [`refill`](Self::refill).
pub struct BackRing<const SLOT: usize> {
    sring: Window,
    size: u32,
    /// Index of the next request to take.
    req_cons: u32,
    /// `req_prod` as last read and checked: at most `size` ahead of `pushed`.
    req_prod: u32,
    /// Index of the next response to write (`rsp_prod_pvt`), never beyond `req_cons`.
    rsp_prod: u32,
    /// `rsp_prod` as last published.
    pushed: u32,
    /// `pushed` at the last [`needs_notify`](Self::needs_notify).
    looked_at: u32,
}

impl<const SLOT: usize> BackRing<SLOT> {
    /// Takes over the ring in `sring`, one page or several mapped side by side
    /// (`BACK_RING_ATTACH`). Like Linux's netback, weir continues at the response producer in
    /// memory, which is 0 in the fresh ring of each new connection.
    ///
    /// # Errors
    /// [`SetupError`]: the memory or the indices in it are wrong.
    pub fn attach(sring: Window) -> Result<Self, SetupError> {
        let size = checked_size(&sring, SLOT)?;
        let rsp_prod = sring.load32(RSP_PROD);
        let req_prod = sring.load32(REQ_PROD);
        if !plausible(rsp_prod, rsp_prod, req_prod, size) {
            return Err(SetupError::Indices { req_prod, rsp_prod, size });
        }
        Ok(Self {
            sring,
            size,
            req_cons: rsp_prod,
            req_prod: rsp_prod,
            rsp_prod,
            pushed: rsp_prod,
            looked_at: rsp_prod,
        })
    }

    /// Returns the number of entries.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Reads the producer again, and returns the number of requests that may be taken.
    ///
    /// # Errors
    /// [`RingError::RequestProducer`] when no honest front end can be there: it may have one
    /// request for each entry whose response was pushed, and takes none back.
    #[inline]
    pub fn refill(&mut self) -> Result<u32, RingError> {
        // Acquire pairs with the front end's xen_wmb() before its store: the requests that req_prod
        // covers are read after it.
        let to = self.sring.load32_acquire(REQ_PROD);
        if !plausible(self.pushed, self.req_prod, to, self.size) {
            return Err(RingError::RequestProducer { from: self.req_prod, to, size: self.size });
        }
        self.req_prod = to;
        Ok(self.available())
    }

    /// Returns the number of requests that may be taken without reading the producer again.
    #[inline]
    pub fn available(&self) -> u32 {
        distance(self.req_cons, self.req_prod)
    }

    /// Reads the producer again, and returns whether there is a request to take. An invalid producer
    /// gives `true`, too: [`refill`](Self::refill) reports the error.
    #[inline]
    pub fn peek(&self) -> bool {
        self.sring.load32(REQ_PROD) != self.req_cons
    }

    /// Returns the number of requests that were taken and not answered.
    #[inline]
    pub fn unanswered(&self) -> u32 {
        distance(self.rsp_prod, self.req_cons)
    }

    /// Returns the free-running index of the next request.
    #[inline]
    pub fn next_index(&self) -> u32 {
        self.req_cons
    }

    /// Copies the next request, if [`available`](Self::available) is not 0. Its content is
    /// unchecked.
    #[inline]
    pub fn request(&mut self) -> Option<[u8; SLOT]> {
        if self.available() == 0 {
            return None;
        }
        let bytes = self.sring.read::<SLOT>(entry(self.req_cons, self.size, SLOT));
        self.req_cons = self.req_cons.wrapping_add(1);
        Some(bytes)
    }

    /// Writes the next response into the first `N` bytes of its entry, and returns its index. The front end sees it
    /// after [`push`](Self::push).
    ///
    /// # Panics
    /// On more responses than requests, a programming error of the caller.
    #[inline]
    pub fn respond<const N: usize>(&mut self, bytes: [u8; N]) -> u32 {
        const { assert!(N <= SLOT) };
        assert!(self.unanswered() > 0, "a response without a request");
        let index = self.rsp_prod;
        self.sring.write(entry(index, self.size, SLOT), bytes);
        self.rsp_prod = index.wrapping_add(1);
        index
    }

    /// Overwrites `N` bytes at `at` of a response that is not pushed yet.
    ///
    /// # Panics
    /// If the response is already pushed, which is a programming error of the caller.
    pub(crate) fn amend<const N: usize>(&mut self, index: u32, at: usize, bytes: [u8; N]) {
        let unpushed = distance(self.pushed, index) < distance(self.pushed, self.rsp_prod);
        assert!(unpushed && at + N <= SLOT, "response {index} is no longer weir's");
        self.sring.write(entry(index, self.size, SLOT) + at, bytes);
    }

    /// Publishes the responses (`RING_PUSH_RESPONSES`) with one index write. Returns their number.
    #[inline]
    pub fn push(&mut self) -> u32 {
        self.push_first(u32::MAX)
    }

    /// Publishes the oldest `count` responses at most, if the later ones are not ready yet. See
    /// [`push`](Self::push).
    #[inline]
    pub fn push_first(&mut self, count: u32) -> u32 {
        let count = distance(self.pushed, self.rsp_prod).min(count);
        if count > 0 {
            self.pushed = self.pushed.wrapping_add(count);
            // Release: the front end sees the responses before the index that covers them.
            self.sring.store32_release(RSP_PROD, self.pushed);
        }
        count
    }

    /// Returns whether the front end wants an event for the responses pushed since the last call
    /// (`RING_PUSH_RESPONSES_AND_CHECK_NOTIFY`). Several pushes may share one call.
    #[inline]
    pub fn needs_notify(&mut self) -> bool {
        let old = std::mem::replace(&mut self.looked_at, self.pushed);
        if old == self.pushed {
            return false;
        }
        // The front end writes rsp_event and then reads rsp_prod; weir wrote rsp_prod and now reads
        // rsp_event. Without a full fence on both sides each could miss the other.
        fence(Ordering::SeqCst);
        reached(self.sring.load32(RSP_EVENT), old, self.pushed)
    }

    /// Returns whether the front end wants an event for the pushed responses, without a record of
    /// the question. A back end that delays events asks [`needs_notify`](Self::needs_notify) when
    /// it sends one.
    #[inline]
    pub fn wants_notify(&self) -> bool {
        fence(Ordering::SeqCst);
        self.looked_at != self.pushed
            && reached(self.sring.load32(RSP_EVENT), self.looked_at, self.pushed)
    }

    /// Reads `rsp_event`: one more than the responses that the front end had taken when it last
    /// asked for an event.
    fn rsp_event(&self) -> u32 {
        self.sring.load32(RSP_EVENT)
    }

    /// Returns an upper bound of the responses that the front end has not taken, from its requests
    /// and from its last request for an event, however old. (The bound fails if the front end has
    /// since taken 2^32 responses without asking for an event.)
    pub fn untaken_max(&self) -> u32 {
        // A request needs an entry whose response was taken.
        let requested = distance(self.pushed, self.sring.load32_acquire(REQ_PROD));
        let untaken = self.size.saturating_sub(requested);
        let since_event = distance(self.rsp_event().wrapping_sub(1), self.pushed);
        untaken.min(since_event) + distance(self.pushed, self.rsp_prod)
    }

    /// Returns the number of pushed responses that no [`needs_notify`](Self::needs_notify) has
    /// considered.
    #[inline]
    pub fn unannounced(&self) -> u32 {
        distance(self.looked_at, self.pushed)
    }

    /// Asks for an event at the next request beyond the [`available`](Self::available) ones, and
    /// returns the number available now (`RING_FINAL_CHECK_FOR_REQUESTS`). The caller may sleep
    /// only if that number has not grown. Without this call the producer is past `req_event`, and
    /// the front end sends no events.
    #[inline]
    pub fn final_check(&mut self) -> Result<u32, RingError> {
        // Not `req_cons + 1`: where some requests are left (a receive ring with too few buffers for
        // a frame) the producer is past that index, and would never reach it again.
        self.sring.store32(REQ_EVENT, self.req_prod.wrapping_add(1));
        // The mirror image of the fence in `needs_notify`.
        fence(Ordering::SeqCst);
        self.refill()
    }
}

impl<const SLOT: usize> fmt::Debug for BackRing<SLOT> {
    /// Writes the ring's own indices and the shared ones.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sring, size, req_cons, req_prod, rsp_prod, pushed, looked_at } = self;
        f.debug_struct("BackRing")
            .field("size", size)
            .field("req_cons", req_cons)
            .field("req_prod", req_prod)
            .field("rsp_prod", rsp_prod)
            .field("pushed", pushed)
            .field("looked_at", looked_at)
            .field("shared.req_prod", &sring.load32(REQ_PROD))
            .field("shared.req_event", &sring.load32(REQ_EVENT))
            .field("shared.rsp_prod", &sring.load32(RSP_PROD))
            .field("shared.rsp_event", &sring.load32(RSP_EVENT))
            .finish()
    }
}

/// Length of `struct ..._sring` before its entries (bytes): four indices, 4 private bytes, 44 of
/// padding.
pub(crate) const HEADER_BYTES: usize = 64;

/// Returns how far `to` is ahead of `from`.
#[inline]
pub(crate) fn distance(from: u32, to: u32) -> u32 {
    to.wrapping_sub(from)
}

/// Returns the offset of an index's entry in a ring of `size` (a power of two) entries of
/// `slot_bytes`.
#[inline]
pub(crate) fn entry(index: u32, size: u32, slot_bytes: usize) -> usize {
    HEADER_BYTES + (index & (size - 1)) as usize * slot_bytes
}

/// Returns whether the producer reached `event` on its way from `old` to `new`
/// (`RING_PUSH_*_AND_CHECK_NOTIFY`). An event is the producer's index after the awaited message,
/// one more than in virtio.
#[inline]
pub(crate) fn reached(event: u32, old: u32, new: u32) -> bool {
    distance(event, new) < distance(old, new)
}

/// Returns the number of entries of a ring in `bytes`: as many as fit, rounded down to a power of
/// two (`__RING_SIZE`). Returns `None` if not one fits.
fn ring_size(bytes: usize, slot_bytes: usize) -> Option<u32> {
    let fit = bytes.checked_sub(HEADER_BYTES)? / slot_bytes;
    u32::try_from(1usize << fit.checked_ilog2()?).ok()
}

/// Returns whether a producer at `to` is plausible: at most `size` ahead of `answered`, and not behind `seen`. An
/// index that went back counts as one that jumped far ahead.
#[inline]
pub(crate) fn plausible(answered: u32, seen: u32, to: u32, size: u32) -> bool {
    let ahead = distance(answered, to);
    ahead <= size && ahead >= distance(answered, seen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rings_are_as_large_as_those_of_linux() {
        // NET_TX_RING_SIZE and NET_RX_RING_SIZE of xen-netfront, and the control ring's.
        assert_eq!(ring_size(4096, 12), Some(256));
        assert_eq!(ring_size(4096, 8), Some(256));
        assert_eq!(ring_size(4096, 16), Some(128));
        assert_eq!(ring_size(4 * 4096, 8), Some(1024));
        assert_eq!(ring_size(64 + 8, 8), Some(1));
        assert_eq!(ring_size(64 + 7, 8), None);
        assert_eq!(ring_size(63, 8), None);
    }

    proptest! {
        /// Compares the formula with the sentence: some index in `old + 1 ..= new` is the event.
        #[test]
        fn an_event_is_reached_when_it_is_one_of_the_new_indices(
            old in any::<u32>(), step in 0u32..600, offset in -700i32..700,
        ) {
            let new = old.wrapping_add(step);
            let event = old.wrapping_add_signed(offset);
            let among = (1..=step).any(|nth| old.wrapping_add(nth) == event);
            prop_assert_eq!(reached(event, old, new), among);
        }

        #[test]
        fn a_producer_is_believed_between_what_was_seen_and_a_full_ring(
            answered in any::<u32>(), taken in 0u32..=256, to in -600i64..600,
        ) {
            let seen = answered.wrapping_add(taken);
            let index = (i64::from(answered) + to) as u32;
            let believed = plausible(answered, seen, index, 256);
            prop_assert_eq!(believed, (i64::from(taken)..=256).contains(&to));
        }
    }
}
