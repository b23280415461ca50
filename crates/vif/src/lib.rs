//! weir-vif
