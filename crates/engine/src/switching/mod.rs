//! The way of a burst's frames to their receivers.
//!
//! | file | what |
//! |---|---|
//! | `switch.rs` | one burst: classify each frame, serve each receiver once |
//! | `filter.rs` | the frames that a port may send and receive |
//! | `groups.rs` | the connections that a port may have |
//! | `limits.rs` | limits on the traffic that a port receives or floods in a second, and on its frames' length |
//! | `settings.rs` | a port's settings, and how they change |
//! | `pair.rs` | a pair of queues, with the workers that serve it |
//! | `waiters.rs` | the workers that a receiver's buffers notify |

/// The checks of a frame after its sender's filter, in order. They find frames that a sender must
/// not send.
macro_rules! checks_of_sender {
    ($each:ident) => {
        $each! { tags sent_mtu guard }
    };
}

/// The checks of a frame before its receiver's rate, in their order.
macro_rules! checks_of_receiver {
    ($each:ident) => {
        $each! { isolation got_mtu got_filter groups }
    };
}

pub(crate) use {checks_of_receiver, checks_of_sender};

pub mod filter;
pub mod groups;
pub(crate) mod limits;
pub(crate) mod pair;
pub(crate) mod settings;
pub(crate) mod switch;
pub(crate) mod waiters;
