//! The test bed: guests under QEMU, network namespaces, weir as a program, and what loads and counts them.
//!
//! System tests (`tests/system`) and measurements (`benches`) are written with it. [`lab::Lab`] is what each run
//! needs, prepared once. A test brings up a [`switch::Switch`] (mostly [`weir::Weir`]) and clients ([`qemu`] guests,
//! [`testpmd`]) and lets them talk ([`iperf`], [`pktgen`]). Everything started here is a [`process::Process`] and ends
//! with it. What came of it is a [`tally::Tally`] of checks or a [`report::Report`] of figures.

#![forbid(unsafe_code)]

pub mod address;
pub mod cpio;
pub mod error;
pub mod guest_image;
pub mod hugepages;
pub mod iperf;
pub mod lab;
pub mod netns;
pub mod packages;
pub mod pktgen;
pub mod process;
pub mod qemu;
pub mod release;
pub mod report;
pub mod switch;
pub mod tally;
pub mod testpmd;
pub mod uplink;
pub mod usage;
pub mod weir;
pub mod weir_stats;
pub mod workspace;
