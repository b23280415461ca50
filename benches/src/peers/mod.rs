//! The switches that weir is compared with, each started afresh for one measurement.

pub mod ovs_dpdk;
pub mod passt;
pub mod tap_bridge;
pub mod testpmd_vhost;
