//! A host in virtual time: CPUs, guests, uplinks and weir's workers, with the policies that ship.
#![forbid(unsafe_code)]

pub mod calendar;
pub mod cpus;
pub mod link;
pub mod random;
pub mod stats;
pub mod topology;
