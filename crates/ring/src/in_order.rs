//! The order that `VIRTIO_F_IN_ORDER` promises: chains come back as they were offered.

use std::collections::VecDeque;

use crate::buffers::Token;
use crate::device::Format;

/// A chain that is not handed back.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    token: Token,
    /// Bytes that were written to it, once it is complete.
    written: Option<u32>,
}

/// With `VIRTIO_F_IN_ORDER`, chains that are completed behind a kept chain wait for it (virtio 1.2 §2.7.9, §2.8.8),
/// by the driver's choice.
///
/// Chains are completed or kept in the order in which they were taken, so nothing is noted while none is kept.
#[derive(Debug, Default)]
pub(crate) struct InOrder {
    waiting: VecDeque<Waiting>,
}

impl InOrder {
    /// No chain stays: completions go straight to the ring.
    #[inline(always)]
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Chains that stay, and those that wait for them.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// A chain stays. `false`: that was known.
    pub(crate) fn keep(&mut self, token: Token) -> bool {
        let is_new =
            self.waiting.iter().all(|chain| chain.token != token || chain.written.is_some());
        if is_new {
            self.waiting.push_back(Waiting { token, written: None });
        }
        is_new
    }

    /// A chain stayed, or waited for one that did, with a process that is gone. Nothing is written to the
    /// chains of which some stay.
    pub(crate) fn restore(&mut self, token: Token, done: bool) {
        self.waiting.push_back(Waiting { token, written: done.then_some(0) });
    }

    /// Chains that stay, and those that wait for them, which are done.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = (Token, bool)> {
        self.waiting.iter().map(|chain| (chain.token, chain.written.is_some()))
    }

    /// Completes a chain while some stay: those that need not wait any longer go to `ring`.
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
