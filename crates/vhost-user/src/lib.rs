//! The vhost-user protocol: messages, their bytes, and the socket that carries them. No policy.
//!
//! Source: QEMU's `docs/interop/vhost-user.rst`, called "the spec" below. All numbers are in the machine's own byte
//! order (spec, "Message Specification").
//!
//! From the outside in:
//! - [`Connection`] is the back end's side of the socket: non-blocking, incremental, used by weir.
//! - [`FrontEnd`] is the front end's side: blocking with a timeout, used by weir's guest driver, the load generator
//!   and tests.
//! - [`FrontMessage`] is one request, decoded and checked, which owns its descriptors. [`FrontMessage::decode`] is
//!   a pure function of header, body and descriptors.
//! - [`Payload`] is implemented by each fixed layout: [`VringState`], [`MemoryRegion`], ...
//! - [`Request`] numbers and names the requests; [`Header`] is the 12 bytes before a body.
//!
//! A peer's mistake is a [`ProtocolError`], a socket's failure a [`ConnectionError`]. Neither causes a panic, an
//! unbounded allocation or a leaked descriptor.
#![forbid(unsafe_code)]

mod connection;
mod error;
mod frame;
mod front;
mod message;
mod payload;
mod request;

pub use connection::{Connection, Glimpse, Incoming, Peek, Receipt, ask_for, reply_bytes};
pub use error::{ConnectionError, Expected, FrontEndError, ProtocolError};
pub use front::{FrontEnd, Reply};
pub use message::{FrontMessage, LogBase, VRING_INDEX_MASK, VRING_NOFD_MASK, vring_fd_word};
pub use payload::{
    ConfigSpace, DirtyLog, Inflight, IotlbMsg, MemoryRegion, MemoryTable, Payload, SingleRegion,
    VHOST_VRING_F_LOG, VringAddr, VringState,
};
pub use request::{
    HEADER_LEN, Header, NEED_REPLY_FLAG, REPLY_FLAG, Request, RequestCode, VERSION, VERSION_MASK, *,
};

#[cfg(test)]
mod tests;
