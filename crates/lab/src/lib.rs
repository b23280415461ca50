//! A host in virtual time: CPUs, guests, uplinks and weir's workers, under the policies that ship.
//!
//! [`host::run`] plays a [`scenario::Scenario`] with the costs of a [`profile::Profile`] and gives a
//! [`report::Report`]; the same scenario gives the same report, to the byte, everywhere. What is simulated and
//! what is not: `docs/design/0018-lab.md`.
//!
//! From below: [`calendar`] is time, [`random`] is chance, [`stats`] what is kept; [`cpus`] and [`link`] are
//! what work and frames wait for (`tests/queueing.rs` holds them against queueing theory); `ring` is
//! what lies between a guest and weir; [`host`] puts them together.
#![forbid(unsafe_code)]

pub mod calendar;
pub mod cpus;
mod frame;
pub mod host;
pub mod link;
pub mod profile;
pub mod random;
pub mod report;
mod ring;
pub mod scenario;
pub mod stats;
mod tcp;
pub mod topology;

pub use frame::DropReason;
