//! weir-ring
