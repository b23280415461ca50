//! The test bed: guests under QEMU, network namespaces, weir as a program, and tools that load and count them.
//!
//! System tests (`tests/system`) and measurements (`benches`) use it. A run prepares one [`lab::Lab`]. A test
//! starts a [`switch::Switch`] (mostly [`weir::Weir`]) and clients ([`qemu`] guests, [`testpmd`]) and sends traffic
//! ([`iperf`], [`pktgen`]). Each program is a [`process::Process`], which ends when it is dropped. The result is a
//! [`error::Tally`] of checks or a [`report::Report`] of figures.

#![forbid(unsafe_code)]

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

/// The addresses of test machines, by their number.
pub mod address {
    /// Ethernet address of machine `index`: locally administered, in QEMU's usual range.
    pub fn mac(index: impl Into<u16>) -> String {
        let [high, low] = (index.into() + 1).to_be_bytes();
        format!("52:54:00:77:{high:02x}:{low:02x}")
    }

    /// IPv4 address of machine `index`.
    pub fn ip(index: u8) -> String {
        format!("10.77.0.{}", index + 1)
    }

    /// IPv4 address of machine `index` with its prefix length. All machines are in one subnet.
    pub fn cidr(index: u8) -> String {
        format!("{}/24", ip(index))
    }
}
