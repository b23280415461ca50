//! Weir's memory for what guests send: a buffer for each request that is not answered yet.

use std::io;
use std::sync::Arc;

use weir_guestmem::{HostPages, Slice};
use weir_limits::XEN_PAGE_LEN;
use weir_wire::VnetHdr;

/// Bytes before a buffer's data, a cache line: the end of them is the virtio-net header that bursts have
/// before a frame.
const HEADROOM: usize = 64;
/// Bytes from one buffer to the next: a request has at most a page of data.
const STRIDE: usize = HEADROOM + XEN_PAGE_LEN;

/// Buffers of one transmit queue.
pub(super) struct Pool {
    pages: Arc<HostPages>,
    /// The last one freed is used first: its memory is still in the CPU's cache.
    free: Vec<u16>,
}

impl Pool {
    /// So many buffers, of which memory is used only for those that were in use at one time.
    pub(super) fn new(buffers: u16) -> io::Result<Self> {
        let pages = HostPages::new(usize::from(buffers) * STRIDE)?;
        Ok(Self { pages: Arc::new(pages), free: (0..buffers).rev().collect() })
    }

    /// The memory, for as long as a burst borrows it.
    pub(super) fn pages(&self) -> Arc<HostPages> {
        Arc::clone(&self.pages)
    }

    pub(super) fn take(&mut self) -> Option<u16> {
        self.free.pop()
    }

    pub(super) fn give_back(&mut self, buffer: u16) {
        self.free.push(buffer);
    }
}

/// The data of a buffer: `len` bytes, at most a page.
#[inline]
pub(super) fn data(pages: &HostPages, buffer: u16, len: u16) -> Option<Slice<'_>> {
    pages.slice(usize::from(buffer) * STRIDE + HEADROOM, usize::from(len).min(XEN_PAGE_LEN))
}

/// The same with the virtio-net header before it.
#[inline]
pub(super) fn with_header(pages: &HostPages, buffer: u16, len: u16) -> Option<Slice<'_>> {
    let at = usize::from(buffer) * STRIDE + HEADROOM - VnetHdr::LEN;
    pages.slice(at, VnetHdr::LEN + usize::from(len).min(XEN_PAGE_LEN))
}
