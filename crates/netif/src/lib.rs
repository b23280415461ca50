//! Xen's network protocol, netif (`xen/include/public/io/netif.h`), over its shared rings
//! (`public/io/ring.h`): the back end's side for weir, and the front end's for tests.
//!
//! | file | contents |
//! |---|---|
//! | `index.rs` | arithmetic of free-running 32-bit indices, in one place |
//! | `back.rs` | [`BackRing`]: the back end's half of a ring, for any kind of entry |
//! | `front.rs` | [`FrontRing`]: the front end's half |
//! | `message.rs` | the entries: requests, responses, extra infos |
//! | `tx.rs` | [`TxBack`]: turns a guest's requests into checked packets |
//! | `rx.rs` | [`RxBack`]: places frames into a guest's pages |
//! | `netfront.rs` | [`TxFront`], [`RxFront`]: the guest's side of both |
//! | `offload.rs` | checksums and GSO, translated between netif and virtio-net |
//! | `plan.rs` | [`Segment`] and [`copies`]: the copies of one system call |
//! | `ctrl.rs`, `hash.rs` | the control ring, and the hash that a guest sets up with it |
//!
//! The worst that a guest can cause is a [`RingError`], which stops its interface, or a
//! [`PacketError`], which costs it one packet. Grants, event channels and xenstore belong
//! elsewhere: a [`Segment`] names a guest's bytes, and the caller copies them.
#![forbid(unsafe_code)]

mod back;
mod ctrl;
mod error;
mod front;
mod hash;
mod index;
pub mod message;
mod netfront;
mod offload;
mod plan;
mod rx;
mod tx;

pub use back::BackRing;
pub use ctrl::{
    CTRL_SLOT_BYTES, CtrlBack, CtrlRequest, CtrlResponse, CtrlStatus, Pending, Step, ctrl_type,
};
pub use error::{PacketError, RingError, SetupError};
pub use front::FrontRing;
pub use hash::{FlowHash, HASH_TYPES, HashState};
pub use message::Status;
pub use netfront::{RxFront, RxPacket, TxFront, TxResponse};
pub use offload::{FrontFeatures, RxMeta, TxOffloadError};
pub use plan::{GrantCopy, Segment, copies};
pub use rx::{RxBack, RxSegment};
pub use tx::{Multicast, Taken, TxBack, TxGso, TxPacket, TxSlot};

#[cfg(test)]
mod tests;
