//! xenstore, the small tree of strings through which toolstack, front end and back end find each other
//! (`docs/misc/xenstore.txt` of Xen).

mod client;
mod wire;

pub use client::{Client, StoreError, Transaction};
pub use wire::{ErrorName, Header, Kind, Permission, WatchEvent, WireError};

#[cfg(any(test, feature = "double"))]
pub(crate) use wire::strings;

#[cfg(test)]
mod tests;
