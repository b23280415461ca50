//! The test bed: guests under QEMU, network namespaces, weir as a program, and tools that load and count them.
//!
//! System tests (`tests/system`) and measurements (`benches`) use it. A run prepares one [`lab::Lab`]. A test
//! starts a [`switch::Switch`] (mostly [`weir::Weir`]) and clients ([`qemu`] guests, [`testpmd`]) and sends traffic
//! ([`iperf`], [`pktgen`]). Each program is a [`process::Process`], which ends when it is dropped. The result is a
//! [`error::Tally`] of checks or a [`report::Report`] of figures.

#![forbid(unsafe_code)]

pub mod address;
pub mod browser;
pub mod compatibility;
pub mod error;
pub mod fabric;
pub mod foreign;
pub mod guest_image;
pub mod http;
pub mod iperf;
pub mod lab;
pub mod libvirt;
pub mod lines;
pub mod netns;
pub mod packages;
pub mod pktgen;
pub mod process;
pub mod qemu;
pub mod report;
pub mod switch;
pub mod testpmd;
pub mod tmux;
pub mod uml;
pub mod uplink;
pub mod usage;
pub mod weir;
pub mod weir_stats;
pub mod workspace;
