//! A port's queue, with any kind of ring: the order in which workers send from it and fill it, frames that wait for a
//! receiver, the calls owed to its guest, and its stop.
//!
//! | file | what |
//! |---|---|
//! | `transmit.rs` | [`TransmitQueue`]: bursts from a queue, by one worker or by several; a port brings a [`Source`] |
//! | `receive.rs` | [`ReceiveQueue`]: frames into a queue, by several workers; a port brings a [`ReceiveRing`] |
//! | `parked.rs` | frames that wait for receivers without buffers, their deadlines and retries |
//! | `under_way.rs` | bursts under way, and the stop of their ring |
//! | `fill.rs` | the order in which workers that fill one ring publish |
//!
//! Ports provide rings and copies as type parameters: no call goes through a vtable.
//!
//! [`ReceiveRing`]: crate::guest::ReceiveRing

mod fill;
mod parked;
mod receive;
mod transmit;
mod under_way;

pub use crate::frames::turn::Turn;
pub use fill::{FillOrder, Place};
pub use receive::{Filled, ReceiveQueue, Written, settle, stop};
pub use transmit::{Source, Transmit, TransmitQueue};

#[cfg(test)]
mod tests;
