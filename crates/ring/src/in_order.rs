//! The order that `VIRTIO_F_IN_ORDER` promises: chains come back as they were offered.

use crate::buffers::Chain;
use crate::device::Format;
use crate::error::RingError;
use crate::index::{distance, position};

/// Which chains were taken and not handed back, and which of those are complete before their turn
/// (virtio 1.2 §2.7.9, §2.8.8).
///
/// A frame that waits for a full receiver holds up the chains behind it: that is what the driver
/// asked for when it accepted the feature. While none waits, all that is done here is one note per
/// chain and one comparison.
#[derive(Debug)]
pub(crate) struct InOrder {
    /// By position: one for every number that can be under way.
    chains: Box<[Waiting]>,
    /// Free-running number of the next chain to be taken, and of the next to be handed back.
    taken: u16,
    handed: u16,
    /// Chains that are complete before their turn.
    early: u16,
    /// Where the next of those is expected: they, too, mostly come in order.
    expected: u16,
    size: u16,
}

/// A chain that was taken and not handed back.
#[derive(Debug, Clone, Copy, Default)]
struct Waiting {
    head: u16,
    /// Bytes that were written to it, once it is complete.
    written: Option<u32>,
}

impl InOrder {
    pub(crate) fn new(size: u16) -> Self {
        Self {
            chains: vec![Waiting::default(); size.into()].into(),
            taken: 0,
            handed: 0,
            early: 0,
            expected: 0,
            size,
        }
    }

    #[inline]
    fn at(&mut self, number: u16) -> &mut Waiting {
        let position = position(number, self.size);
        &mut self.chains[position]
    }

    /// Notes a chain that was taken.
    #[inline]
    pub(crate) fn taken(&mut self, chain: Chain) -> Result<(), RingError> {
        if distance(self.handed, self.taken) >= self.size {
            return Err(RingError::TooManyInFlight { size: self.size });
        }
        *self.at(self.taken) = Waiting { head: chain.head, written: None };
        self.taken = self.taken.wrapping_add(1);
        Ok(())
    }

    /// Forgets the last `count` chains that were taken.
    #[inline]
    pub(crate) fn give_back(&mut self, count: u16) {
        self.taken = self.taken.wrapping_sub(count);
    }

    /// Completes a chain in `ring`, with those behind it that waited for it; or notes that it is
    /// complete.
    #[inline]
    pub(crate) fn complete(&mut self, ring: &mut Format, head: u16, written: u32) {
        if self.handed != self.taken && self.at(self.handed).head == head {
            self.handed = self.handed.wrapping_add(1);
            ring.complete(head, written);
            if self.early > 0 {
                self.catch_up(ring);
            }
        } else {
            self.complete_early(head, written);
        }
    }

    #[cold]
    fn catch_up(&mut self, ring: &mut Format) {
        while self.early > 0 {
            let Waiting { head, written: Some(written) } = *self.at(self.handed) else { return };
            self.handed = self.handed.wrapping_add(1);
            self.early -= 1;
            ring.complete(head, written);
        }
    }

    #[cold]
    fn complete_early(&mut self, head: u16, written: u32) {
        let (handed, under_way) = (self.handed, distance(self.handed, self.taken));
        let from = distance(handed, self.expected).min(under_way);
        let number =
            (from..under_way).chain(0..from).map(|nth| handed.wrapping_add(nth)).find(|&n| {
                let chain = self.at(n);
                chain.head == head && chain.written.is_none()
            });
        if let Some(number) = number {
            self.at(number).written = Some(written);
            self.early += 1;
            self.expected = number.wrapping_add(1);
        }
    }
}
