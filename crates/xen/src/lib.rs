//! A network back end's view of Xen from user space: xenstore, grants, event channels, and the
//! handshake with a guest's `xen-netfront`.
//!
//! | file | contents |
//! |---|---|
//! | `store.rs`, `store/` | xenstore: its wire protocol, and a client on any stream |
//! | `hypervisor.rs` | [`Hypervisor`]: the trait for Xen and the simulated Xen; grants, copies, event channels |
//! | `sys.rs` | their ioctls, the only file with `unsafe` |
//! | `vif.rs`, `vif/` | a vif's back end: the state machine, the keys of both ends, and [`vif::Vifs`], which finds and serves vifs |
//! | `testing.rs`, `testing/` | a simulated Xen: xenstore, grant tables and event channels in this process |
//!
//! This crate does not know rings or frames. Names are Xen's: a *front end* is the guest's driver,
//! `xen/include/public` is the specification.
#![deny(unsafe_code)]

mod hypervisor;
pub mod store;
#[allow(unsafe_code)]
mod sys;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod vif;

pub use hypervisor::{
    CopyPlace, CopySegment, CopyStatus, DomainId, EventChannel, EventPort, Grant, GrantMap,
    GrantRef, Hypervisor,
};
pub use hypervisor::{Sharer, Xen};
