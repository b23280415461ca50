//! A link: serves one frame after the other at its rate, with a bounded queue before it and a delay
//! behind it.

use std::collections::VecDeque;

/// A link of one direction, or any other server that serves in order, one item at a time.
///
/// The caller calls [`Self::served`] at the times that [`Self::send`] and `served` return, and
/// [`Self::arrived`] when a served item has come to the other end.
#[derive(Debug)]
pub struct Link<T> {
    /// Time per byte (ps).
    ps_per_byte: u64,
    delay_ns: u64,
    /// Most items that wait, without the one being served.
    queue_max: usize,
    queue: VecDeque<(u64, T)>,
    serving: Option<T>,
    on_the_way: VecDeque<T>,
}

impl<T> Link<T> {
    /// Returns a link of `bits_per_s`, at least 1. A served item arrives `delay_ns` later. At most
    /// `queue_max` items wait.
    pub fn new(bits_per_s: u64, delay_ns: u64, queue_max: usize) -> Self {
        let ps_per_byte = 8_000_000_000_000 / bits_per_s.max(1);
        let (queue, on_the_way) = (VecDeque::new(), VecDeque::new());
        Self { ps_per_byte, delay_ns, queue_max, queue, serving: None, on_the_way }
    }

    fn ns(&self, bytes: u64) -> u64 {
        bytes.saturating_mul(self.ps_per_byte).saturating_add(500) / 1_000
    }

    /// Sends an item of `bytes` on the wire. If the link was idle, returns when the item is served
    /// (ns).
    ///
    /// # Errors
    /// The item, if the queue is full.
    pub fn send(&mut self, now_ns: u64, bytes: u64, item: T) -> Result<Option<u64>, T> {
        if self.serving.is_none() {
            self.serving = Some(item);
            return Ok(Some(now_ns.saturating_add(self.ns(bytes))));
        }
        if self.queue.len() >= self.queue_max {
            return Err(item);
        }
        self.queue.push_back((bytes, item));
        Ok(None)
    }

    /// Ends the present item's service. Returns when it arrives, and when the next item is served
    /// (ns).
    pub fn served(&mut self, now_ns: u64) -> (u64, Option<u64>) {
        self.on_the_way.extend(self.serving.take());
        let next_ns = self.queue.pop_front().map(|(bytes, item)| {
            self.serving = Some(item);
            now_ns.saturating_add(self.ns(bytes))
        });
        (now_ns.saturating_add(self.delay_ns), next_ns)
    }

    /// Returns the first item on the way, which has arrived.
    pub fn arrived(&mut self) -> Option<T> {
        self.on_the_way.pop_front()
    }

    /// Iterates over items that wait, are served or are on the way.
    pub fn items(&self) -> impl Iterator<Item = &T> {
        let waiting = self.queue.iter().map(|(_, item)| item);
        waiting.chain(&self.serving).chain(&self.on_the_way)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_pass_in_order_at_the_rate_and_arrive_after_the_delay() {
        let mut link = Link::new(1_000_000_000, 50, 1);
        assert_eq!(link.send(100, 1_000, 'a'), Ok(Some(8_100)));
        assert_eq!(link.send(101, 500, 'b'), Ok(None));
        assert_eq!(link.send(102, 500, 'c'), Err('c'), "one may wait");
        assert_eq!(link.served(8_100), (8_150, Some(12_100)));
        assert_eq!((link.arrived(), link.items().count()), (Some('a'), 1));
        assert_eq!(link.served(12_100), (12_150, None));
        assert_eq!((link.arrived(), link.items().count()), (Some('b'), 0));
    }
}
