//! Xen guests: the vifs of `xen-netfront` as ports of the switch, and the thread that finds them in
//! xenstore.
//!
//! | file | contents |
//! |---|---|
//! | `tx.rs` | transmit queues: requests into bursts, and the event for their answers |
//! | `tx/ring.rs` | a transmit ring: its packets under way |
//! | `tx/haul.rs` | the packets of one burst, and the copies of their bytes |
//! | `tx/pool.rs` | weir's memory for guests' packets, and the place of their other bytes |
//! | `rx.rs` | receive queues: bursts into the guest's pages, by one grant copy, and the event |
//! | `control.rs` | the control ring, by which the guest chooses its receive queue; its multicast groups |
//! | `port.rs` | the vif as the engine sees it |
//! | `connect.rs` | connects and releases a front end's rings and channels |
//! | `link.rs` | a ring's way to Xen; vifs that workers have stopped |
//! | `manager.rs` | the thread that follows xenstore for all vifs |
//! | `testing.rs` | a guest's driver on the simulated Xen, for tests |
//!
//! Turns of workers, waiting frames, the order of publication and the time of calls are the same
//! code as for virtqueues ([`weir_engine::queue`], [`weir_engine::guest`]).
//!
//! # Postponed work, and what resumes it
//!
//! | postponed | reason | resumed by |
//! |---|---|---|
//! | requests of a transmit ring | the burst is full (`take_new`) | `Taken::more`: the queue is in turn again |
//! | | its port has no tokens | the worker's timer, at the time of new tokens |
//! | | another worker has the queue now | a nudge to that worker (`hand_over`) |
//! | | weir polled, and found none | a poll while the worker is awake; before it sleeps `arm`, the last poll, and then the guest's event |
//! | a frame for one receiver | too few buffers | the event that `RxRing::arm` asks for, under the lock of the poll that found too few; if some came meanwhile, `Delivered::again`; dropped after 100 ms |
//! | | an earlier frame waits for the same receiver | the same |
//! | | their queue got another worker, which may have missed that event | that worker's retry when it first sees them |
//! | answers | an earlier one waits, or is still another worker's | the end of that one: answers keep the order of requests |
//! | responses that are not shown | another worker copies earlier ones | that worker's `finish` |
//! | a take that is for one worker | another has a burst under way | `lock_when`, a short wait |
//! | an event for the guest | it is held | its deadline, in one worker's heap; too few buffers, half a ring of held frames, another policy, the ring's end |
//! | | the guest has not asked for it | the guest, which polls once more after it has asked |
//! | requests of the control ring | a round has its limit | `Control::more`: the thread does not sleep |
//! | entries of a guest's table | frames may be in the old queue | `Steering::look_after`, and the look-up of the next frame |
//!
//! Frames are dropped, with a counter, rather than postponed if they cannot be copied (the sender's
//! request or the receiver's buffer is answered with an error), if a flood finds no buffers, if too
//! many wait already, or if their receiver has taken none for 100 ms. A transmit ring has a buffer
//! for each of its entries, so it never waits for one.
//!
//! # A frame's way
//!
//! **From the guest.** An event wakes the worker, which calls `XenPort::take`.
//! `TransmitQueue::take` locks the queue, `Sending::fill` takes requests, and `Sending::bring` has
//! Xen copy the first 128 bytes of all packets with one call. The rest stays with the guest until
//! it is known who wants it (`engine/src/frames/burst.rs`). `TxRing::settle` reports the outcome of
//! each packet; answers keep the ring's order, so those behind a frame that waits wait, too.
//!
//! **To the guest.** `XenPort::deliver` locks the receive queue; `place` takes requests and notes the copies; without
//! the lock one grant copy fills the pages, between Xen guests from page to page; `finish` marks what failed,
//! publishes with one index write in the order of placing, and the policy says whether the guest gets its event.
//!
//! # Tests
//!
//! `cargo test -p weir-port-xen`, on a simulated Xen (`weir_xen`, feature `testing`): copies that
//! fail, hostile guests, several workers, the control ring. `make test-xen` runs them on a real
//! one.
#![forbid(unsafe_code)]

mod connect;
mod control;
mod link;
mod manager;
mod port;
mod rx;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod tx;

pub use link::StopReason;
pub use manager::{Board, Manager, Services};
pub use port::{XenOptions, XenPort};

#[cfg(test)]
mod tests;
