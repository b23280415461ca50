//! weir-cli
