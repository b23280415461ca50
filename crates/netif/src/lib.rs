//! Xen's network protocol, netif (`xen/include/public/io/netif.h`), over its shared rings
//! (`public/io/ring.h`): the back end's side for weir, and the front end's for tests.
//!
//! | file | contents |
//! |---|---|
//! | `back.rs` | [`BackRing`]: the back end's half of a ring, for any kind of entry; arithmetic of indices |
//! | `message.rs` | the entries: requests, responses, extra infos; the copies of one system call ([`copies`]) |
//! | `tx.rs` | [`TxBack`]: turns a guest's requests into checked packets |
//! | `rx.rs` | [`RxBack`]: places frames into a guest's pages |
//! | `testing.rs` | for tests: the front end's half of a ring, and the guest's side |
//! | `offload.rs` | checksums and GSO, translated between netif and virtio-net |
//! | `ctrl.rs` | the control ring, and the hash that a guest sets up with it |
//!
//! The worst that a guest can cause is a [`RingError`], which stops its interface, or a
//! [`PacketError`], which costs it one packet. Grants, event channels and xenstore belong
//! elsewhere: a [`Segment`] names a guest's bytes, and the caller copies them.
#![forbid(unsafe_code)]

mod back;
mod ctrl;
mod error;
pub mod message;
mod offload;
mod rx;
#[cfg(any(test, feature = "testing"))]
mod testing;
mod tx;

pub use back::BackRing;
pub use ctrl::{
    CTRL_SLOT_BYTES, CtrlBack, CtrlRequest, CtrlResponse, CtrlStatus, FlowHash, HASH_TYPES,
    HashState, Pending, Step, ctrl_type,
};
pub use error::{PacketError, RingError, SetupError};
pub use message::{GrantCopy, Segment, Status, copies};
pub use offload::{FrontFeatures, RxMeta, TxOffloadError};
pub use rx::{RxBack, RxSegment};
#[cfg(any(test, feature = "testing"))]
pub use testing::{FrontRing, RxFront, RxPacket, TxFront, TxResponse};
pub use tx::{Multicast, Taken, TxBack, TxGso, TxPacket, TxSlot};

#[cfg(test)]
mod tests;
