//! A host in virtual time: CPUs, guests, uplinks and weir's workers, under the policies that ship.
//!
//! [`host::run`] plays a [`scenario::Scenario`] with the costs of a [`profile::Profile`] and gives
//! a [`report::Report`]; the same scenario gives the same report, to the byte, everywhere.
//! `docs/design/proofs.md#0018` tells which effects are simulated.
//!
//! From below: [`calendar`] is time, [`random`] is chance, [`stats`] holds measurements. Work and
//! frames wait for [`cpus`] and [`link`] (`tests/queueing.rs` checks them against queueing theory).
//! `ring` lies between a guest and weir, and [`host`] puts all of them together.
//!
//! ```
//! use weir_lab::cpus::Class;
//! use weir_lab::host::run;
//! use weir_lab::profile::Profile;
//! use weir_lab::random::Distribution;
//! use weir_lab::realization::Realization;
//! use weir_lab::scenario::{Calls, Endpoint, Guest, Load, LoadKind, Scenario, Thread};
//! use weir_lab::topology::Topology;
//! use weir_policy::moderation::Kind;
//!
//! let calls = Calls { kind: Kind::Auto, latency_budget_ns: 250_000, rx_ns: None, rx_frames: None };
//! let (bytes, gap) = (Distribution::Constant(64), Distribution::Exponential { mean: 10_000 });
//! let report = run(&Scenario {
//!     seed: 1,
//!     topology: Topology::flat(3),
//!     profile: Profile::example(),
//!     workers: vec![Thread { cpus: vec![0], class: Class::Realtime { priority: 1 } }],
//!     guests: vec![Guest::new("web0", &[1], calls), Guest::new("db0", &[2], calls)],
//!     uplinks: Vec::new(),
//!     first_worker: None,
//!     dispatch: None,
//!     rivals: Vec::new(),
//!     realization: Realization::default(),
//!     loads: vec![Load {
//!         name: "datagrams".to_owned(),
//!         from: Endpoint::Guest(0),
//!         to: Endpoint::Guest(1),
//!         kind: LoadKind::Datagrams { bytes, gap, on_off: None },
//!     }],
//!     start_ns: 0,
//!     warm_up_ns: 10_000_000,
//!     run_ns: 50_000_000,
//!     law: &weir_policy::law::LAW,
//!     check_each_event: false,
//! })?;
//! assert!(report.guests[1].rx_calls < report.guests[1].received);
//! # Ok::<(), weir_lab::host::Error>(())
//! ```
#![forbid(unsafe_code)]

pub mod calendar;
pub mod cpus;
pub mod estimate;
pub mod faults;
pub mod host;
pub mod link;
pub mod profile;
pub mod random;
pub mod realization;
pub mod report;
mod ring;
pub mod scenario;
pub mod scenarios;
pub mod soak;
pub mod stats;
mod tcp;
pub mod topology;

pub use link::DropReason;
