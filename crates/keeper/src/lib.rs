//! A keeper of descriptors: what outlives weir lies in another process, by name (`docs/design/0033-keeper.md`).
//!
//! | file | what |
//! |---|---|
//! | `wire.rs` | packets between weir and the keeper: sd_notify's words |
//! | `shelf.rs` | what the keeper holds, with its bounds |
//! | `serve.rs` | the keeper's loop |
//! | `program.rs` | the program `weir-keeper` |
//! | `client.rs` | weir's side: what is there at the start, then each change |
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
