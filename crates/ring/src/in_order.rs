//! The order that `VIRTIO_F_IN_ORDER` promises: chains come back as they were offered.

use std::collections::VecDeque;

use crate::buffers::Chain;
use crate::device::DeviceRing;
use crate::error::RingError;

/// A chain that was taken and not handed back.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    head: u16,
    /// Bytes that were written to it, once it is complete.
    written: Option<u32>,
}

/// A ring whose completions wait for those of the chains before them (virtio 1.2 §2.7.9, §2.8.8).
///
/// A frame that waits for a full receiver holds up the chains behind it: that is what the driver
/// asked for when it accepted the feature.
#[derive(Debug)]
pub struct InOrder {
    pub(crate) ring: Box<DeviceRing>,
    /// In the order of the take.
    waiting: VecDeque<Waiting>,
    /// Number of the first of them, free-running.
    first: u16,
    /// The number of the chain with this head.
    number: Box<[u16]>,
}

impl InOrder {
    pub(crate) fn new(ring: DeviceRing) -> Self {
        let size = usize::from(ring.config().size);
        Self {
            ring: Box::new(ring),
            waiting: VecDeque::new(),
            first: 0,
            number: vec![0; size].into(),
        }
    }

    /// Notes a chain that was taken.
    #[inline(never)]
    pub(crate) fn taken(&mut self, chain: Option<Chain>) -> Result<Option<Chain>, RingError> {
        let Some(Chain { head, .. }) = chain else { return Ok(None) };
        if self.waiting.len() >= self.number.len() {
            return Err(RingError::TooManyInFlight { size: self.ring.config().size });
        }
        if let Some(number) = self.number.get_mut(usize::from(head)) {
            *number = self.first.wrapping_add(self.waiting.len() as u16);
        }
        self.waiting.push_back(Waiting { head, written: None });
        Ok(chain)
    }

    #[inline]
    pub(crate) fn give_back(&mut self, count: u16) {
        self.waiting.truncate(self.waiting.len().saturating_sub(count.into()));
        self.ring.give_back(count);
    }

    #[inline(never)]
    pub(crate) fn complete(&mut self, head: u16, written: u32) {
        if self.waiting.front().is_some_and(|first| first.head == head) {
            self.hand_back(head, written);
        } else if let Some(number) = self.number.get(usize::from(head)) {
            let place = usize::from(number.wrapping_sub(self.first));
            if let Some(chain) = self.waiting.get_mut(place).filter(|chain| chain.head == head) {
                chain.written = Some(written);
            }
            return;
        }
        while let Some(&Waiting { head, written: Some(written) }) = self.waiting.front() {
            self.hand_back(head, written);
        }
    }

    /// Completes the first chain.
    #[inline]
    fn hand_back(&mut self, head: u16, written: u32) {
        self.waiting.pop_front();
        self.first = self.first.wrapping_add(1);
        self.ring.complete(head, written);
    }
}
