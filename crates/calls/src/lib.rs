//! Calls: how weir interrupts a guest through a descriptor that its front end chose and still
//! holds.
//!
//! The caller serves other guests too, so a call must not block, whatever the front end does to the
//! descriptor. `write` may: `O_NONBLOCK` is a flag of the open file, which the front end shares and
//! can clear. See [docs/design/front-ends.md#0024](../../../docs/design/front-ends.md#0024).
//!
//! | file | contents |
//! |---|---|
//! | `call.rs` | a way to call a guest, for any descriptor; the kind of a descriptor, without asking its file system |
//! | `signal.rs` | an eventfd, signalled by the kernel itself |
//! | `proxy.rs` | any other descriptor, written by a thread that serves only that front end |
//! | `sys.rs` | Linux AIO; the only file with `unsafe` |
#![deny(unsafe_code)]

mod call;
mod proxy;
mod signal;
#[allow(unsafe_code)]
mod sys;

pub use call::{Call, CallError, Kind};
pub use call::{Price, Verdict};
pub use proxy::{Line, Proxy};
pub use signal::{available, signal};
