//! The switches weir is compared with, each brought up from nothing for one measurement.

pub mod ovs_dpdk;
pub mod passt;
pub mod tap_bridge;
pub mod testpmd_vhost;
