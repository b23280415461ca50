//! A captured port.

use std::sync::Arc;

use weir_policy::steering::{Mark, Receiver, Steering};

use super::followed::Followed;
use super::tap::Taps;
use crate::frames::burst::{Burst, Scratch};
use crate::frames::port::{
    Ask, Claims, Delivered, Forward, Outgoing, Overlay, Port, Side, Take, Taken,
};
use crate::threads::clock;

/// A wrapper of another port that copies frames as they come and go. Every method of the trait is passed on to the
/// other port, including those with defaults.
pub(crate) struct Tapped {
    bare: Arc<dyn Port>,
    taps: Taps,
    followed: Option<Followed>,
}

impl Tapped {
    pub(crate) fn new(bare: Arc<dyn Port>, taps: Taps, followed: Option<Followed>) -> Self {
        Self { bare, taps, followed }
    }
}

impl Receiver for Tapped {
    fn mark(&self, queue: usize) -> Mark {
        self.bare.mark(queue)
    }

    fn has_taken(&self, queue: usize, placed: u64, before: Mark) -> bool {
        self.bare.has_taken(queue, placed, before)
    }
}

impl Port for Tapped {
    fn take(&self, queue: usize, ask: Ask, scratch: &mut Scratch, forward: Forward<'_>) -> Taken {
        // Frames that waited were copied when they arrived.
        let is_new = ask.what == Take::New;
        let on_the_way = self.followed.as_ref().filter(|_| is_new).and_then(Followed::begin);
        let taken = self.bare.take(queue, ask, scratch, &mut |burst| {
            if is_new {
                self.taps.iter().for_each(|tap| tap.sent(burst));
            }
            if let Some(on_the_way) = &on_the_way {
                on_the_way.pick(queue, burst);
            }
            forward(burst);
            if let Some(on_the_way) = &on_the_way {
                on_the_way.leave(burst);
            }
        });
        if let Some(on_the_way) = on_the_way {
            on_the_way.end();
        }
        taken
    }

    fn deliver(&self, queue: usize, burst: &Burst<'_>, frames: &[Outgoing]) -> Delivered {
        // The time is taken before the guest can answer: its answer must have the later time.
        let at_ns = clock::now_ns();
        let before = self.followed.as_ref().map(|followed| followed.calls(queue));
        let done = self.bare.deliver(queue, burst, frames);
        let is_delivered = |place| place < done.frames || done.ahead >> place & 1 != 0;
        if let (Some(followed), Some(before)) = (&self.followed, before) {
            let delivered = frames.iter().enumerate().filter(|(place, _)| is_delivered(*place));
            let delivered = delivered.fold(0, |bits, (_, outgoing)| bits | 1 << outgoing.frame);
            followed.delivered(queue, delivered, at_ns, before, done.hold_until);
        }
        self.taps.iter().for_each(|tap| tap.received(at_ns, burst, frames, is_delivered));
        done
    }

    fn expired(&self, queue: usize, side: Side, by_ns: u64) -> Option<u64> {
        self.bare.expired(queue, side, by_ns)
    }

    fn peek_tx(&self, queue: usize) -> bool {
        self.bare.peek_tx(queue)
    }

    fn share_tx(&self, queue: usize, on: bool) -> bool {
        self.bare.share_tx(queue, on)
    }

    fn is_uplink(&self) -> bool {
        self.bare.is_uplink()
    }

    fn copies_remote(&self) -> bool {
        self.bare.copies_remote()
    }

    fn wait_ns_max(&self) -> u64 {
        self.bare.wait_ns_max()
    }

    fn arm_tx(&self, queue: usize) -> bool {
        self.bare.arm_tx(queue)
    }

    fn kicked(&self, queue: usize, side: Side) {
        self.bare.kicked(queue, side);
    }

    fn has_one_kick(&self, queue: usize) -> bool {
        self.bare.has_one_kick(queue)
    }

    fn rx_queues(&self) -> usize {
        self.bare.rx_queues()
    }

    fn steering(&self) -> Option<&Steering> {
        self.bare.steering()
    }

    fn flow_hash(&self, head: &[u8]) -> u32 {
        self.bare.flow_hash(head)
    }

    fn overlay(&self) -> Option<&dyn Overlay> {
        self.bare.overlay()
    }

    fn claims(&self) -> Option<&dyn Claims> {
        self.bare.claims()
    }

    fn keeps(&self, head: &[u8]) -> bool {
        self.bare.keeps(head)
    }

    fn fail(&self, reason: &str) {
        self.bare.fail(reason);
    }

    fn blocks(&self, ns: u64) {
        self.bare.blocks(ns);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    /// The methods of a block that begins with `start`.
    fn methods<'s>(source: &'s str, start: &str) -> BTreeSet<&'s str> {
        let (_, block) = source.split_once(start).expect("the block");
        let (block, _) = block.split_once("\n}\n").expect("its end");
        let names = block.lines().filter_map(|line| line.strip_prefix("    fn "));
        names.filter_map(|rest| rest.split(['(', '<']).next()).collect()
    }

    #[test]
    fn a_captured_port_does_all_that_the_port_does() {
        let port = methods(include_str!("../frames/port.rs"), "\npub trait Port: Receiver");
        let passed_on = methods(include_str!("tapped.rs"), "\nimpl Port for Tapped");
        assert!(port.len() > 15, "{port:?}");
        assert_eq!(port, passed_on, "a default in place of the port's own method");
    }
}
