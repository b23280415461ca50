//! Where workers and guests' virtual processors run.

use super::values::PlacementMode;

/// `placement` and `pin_vcpus` of `[switch]`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PlacementConfig {
    /// How workers are placed.
    pub mode: PlacementMode,
    /// Whether guests' virtual processors may be placed as well.
    pub pin_vcpus: bool,
}
