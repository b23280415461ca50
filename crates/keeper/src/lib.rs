//! A keeper of descriptors: another process holds, by name, the descriptors that outlive weir
//! (`docs/design/0033-keeper.md`).
//!
//! | file | what |
//! |---|---|
//! | `wire.rs` | packets between weir and the keeper: sd_notify's words |
//! | `shelf.rs` | the keeper's descriptors, with their limits |
//! | `serve.rs` | the keeper's loop |
//! | `program.rs` | the program `weir-keeper` |
//! | `client.rs` | weir's side: all descriptors at the start, then each change |
#![forbid(unsafe_code)]

mod client;
pub mod program;
mod serve;
mod shelf;
mod wire;

pub use client::{Dial, Keeper, Taken, connect};
pub use serve::{ServeError, Server};

#[cfg(test)]
mod tests;
