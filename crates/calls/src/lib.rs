//! Calls: how a guest is interrupted by a descriptor that its front end chose and still holds.
//!
//! Whoever calls a guest serves others as well, so a call may not block, whatever the front end does to the
//! descriptor meanwhile. `write` does not give that: `O_NONBLOCK` is a flag of the open file, which the front end
//! shares and can clear. See [docs/design/0024-calls.md](../../../docs/design/0024-calls.md).
//!
//! | file | what |
//! |---|---|
//! | `call.rs` | a way to call a guest, whatever it is |
//! | `kind.rs` | what a descriptor is, without asking its file system |
//! | `signal.rs` | an eventfd is signalled by the kernel itself |
//! | `proxy.rs` | anything else is written to by a thread that serves only that front end |
//! | `price.rs` | what calls cost, and when that is too much |
//! | `sys.rs` | Linux AIO; the only file with `unsafe` |
#![deny(unsafe_code)]

mod call;
mod kind;
mod price;
mod proxy;
mod signal;
#[allow(unsafe_code)]
mod sys;

pub use call::{Call, CallError};
pub use kind::Kind;
pub use price::{Price, Verdict};
pub use proxy::{Line, Proxy};
pub use signal::{available, signal};
