//! The guest's side in user space: a virtio-net driver over vhost-user.
//!
//! weir's demo, tests and load generator use it in place of a virtual machine, and a container can
//! link it. It owns the memory of its rings and buffers. The back end (weir, or any other
//! vhost-user switch) maps this memory like a guest's.
//!
//! ```no_run
//! use std::time::Duration;
//! use weir_vif::{Options, Vif, WaitFor};
//! use weir_wire::{Mac, Offload};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let options = Options::new(Mac([0x52, 0x54, 0, 0, 0, 1]));
//! let mut vif = Vif::connect("/run/weir/web0.sock", &options)?;
//! let mut pair = vif.queue_pairs().remove(0);
//!
//! let mut frame = vec![0xff; 6]; // broadcast
//! frame.extend(pair.mac().0);
//! frame.extend([0x88, 0xb5, 1, 2, 3]); // local experimental ethertype
//! pair.send(&frame, &Offload::NONE)?;
//! pair.flush();
//!
//! while pair.wait(WaitFor::Receive, Duration::from_secs(1))? {
//!     while let Some(len) = pair.recv(|frame| frame.len) {
//!         println!("{len} bytes");
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! | file | contents |
//! |---|---|
//! | `vif.rs` | [`Vif`]: a session, and its dirty log |
//! | `features.rs` | [`Options`], [`Features`] |
//! | `handshake.rs` | the vhost-user messages in their order |
//! | `memory.rs` | the shared memory and its layout |
//! | `pair.rs` | [`QueuePair`]: send, receive, sleep; the poll timer of front-end coalescing |
//! | `transmit.rs`, `receive.rs` | the two halves of a queue pair |
//! | `unload.rs` | unpacking of containers |
//! | `lro.rs` | TCP segments merged for the application |
//! | `load/` | [`load`]: bulk, small-packet and request-response traffic |
#![forbid(unsafe_code)]

mod counters;
mod error;
mod features;
mod handshake;
pub mod load;
mod lro;
mod memory;
mod pair;
mod receive;
mod transmit;
mod vif;

pub use counters::{PairCounters, PairStats};
pub use error::{SendError, Step, VifError};
pub use features::{Features, Options, OptionsError};
pub use pair::{QueuePair, WaitFor};
pub use receive::{Frame, Received};
pub use transmit::Body;
pub use vif::{Health, Vif};

#[cfg(test)]
mod tests;
