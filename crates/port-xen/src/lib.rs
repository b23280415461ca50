//! Xen guests: the vifs of `xen-netfront` as ports of the switch, and the thread that finds them in
//! xenstore.
//!
//! | file | what |
//! |---|---|
//! | `tx.rs` | transmit queues: requests to burst, and the event for their answers |
//! | `tx/ring.rs` | a transmit ring: its packets under way |
//! | `tx/pool.rs` | weir's memory for what guests send, and where the rest of it is |
//! | `rx.rs` | receive queues: burst to the guest's pages, by one grant copy, and the event |
//! | `rx/writer.rs` | which bytes go to which page |
//! | `control.rs` | the control ring: by which hash a guest wants its receive queue chosen |
//! | `multicast.rs` | which groups a guest listens to |
//! | `port.rs` | the vif as the engine sees it |
//! | `connect.rs` | rings and channels of a front end, taken and let go of |
//! | `manager.rs` | the thread that follows xenstore for all vifs |
//! | `error.rs` | why a vif stopped |
//! | `testing.rs` | a guest's driver on the played Xen, for tests |
//!
//! When a guest is called, and what is counted of that, is the same code as for virtqueues
//! ([`weir_engine::guest`]).
#![forbid(unsafe_code)]

mod connect;
mod control;
mod error;
mod manager;
mod multicast;
mod port;
mod rx;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod tx;

pub use error::StopReason;
pub use manager::{Board, Manager, Services};
pub use port::{XenInfo, XenOptions, XenPort};

#[cfg(test)]
mod tests;
