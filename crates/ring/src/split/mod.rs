//! Split virtqueues (virtio 1.2 §2.7).

pub(crate) mod chain;
pub(crate) mod device;
pub(crate) mod driver;
