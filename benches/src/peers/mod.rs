//! The switches that weir is compared with. Each measurement starts a new one.

pub mod ovs_dpdk;
pub mod passt;
pub mod tap_bridge;
pub mod testpmd_vhost;
