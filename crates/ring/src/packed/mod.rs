//! Packed virtqueues (virtio 1.2 §2.8).

pub(crate) mod chain;
pub(crate) mod device;
pub(crate) mod driver;
