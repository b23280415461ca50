//! weir-port-tap
