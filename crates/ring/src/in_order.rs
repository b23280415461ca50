//! The order that `VIRTIO_F_IN_ORDER` promises: chains are given back as they were offered.

use std::collections::VecDeque;

use crate::buffers::Token;
use crate::device::Format;

/// A chain that was not given back.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    token: Token,
    /// Bytes that were written to it, once it is complete.
    written: Option<u32>,
}

/// Waiting chains with `VIRTIO_F_IN_ORDER`, a choice of the driver: chains that are completed behind a kept chain wait
/// for it (virtio 1.2 §2.7.9, §2.8.8).
///
/// Chains are completed or kept in the order in which they were taken, so nothing is noted while none is kept.
#[derive(Debug, Default)]
pub(crate) struct InOrder {
    waiting: VecDeque<Waiting>,
}

impl InOrder {
    /// True if no chain is kept: completions go straight to the ring.
    #[inline(always)]
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The number of kept chains, and of those that wait for them.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Keeps a chain. `false` if it was kept already.
    pub(crate) fn keep(&mut self, token: Token) -> bool {
        let is_new =
            self.waiting.iter().all(|chain| chain.token != token || chain.written.is_some());
        if is_new {
            self.waiting.push_back(Waiting { token, written: None });
        }
        is_new
    }

    /// Restores a chain that a former process kept, or that waited for a kept one. While some chains are kept, none has
    /// written bytes.
    pub(crate) fn restore(&mut self, token: Token, done: bool) {
        self.waiting.push_back(Waiting { token, written: done.then_some(0) });
    }

    /// Kept chains, and those that wait for them, each with true if it is done.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = (Token, bool)> {
        self.waiting.iter().map(|chain| (chain.token, chain.written.is_some()))
    }

    /// Completes a chain while some are kept: chains that no longer have to wait go to `ring`.
    #[cold]
    pub(crate) fn complete(&mut self, ring: &mut Format, token: Token, written: u32) {
        let kept = |chain: &&mut Waiting| chain.token == token && chain.written.is_none();
        match self.waiting.iter_mut().find(kept) {
            Some(chain) => chain.written = Some(written),
            None => self.waiting.push_back(Waiting { token, written: Some(written) }),
        }
        while let Some(&Waiting { token, written: Some(written) }) = self.waiting.front() {
            self.waiting.pop_front();
            ring.complete(token, written);
        }
    }
}
