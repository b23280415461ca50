//! weir-fabric
