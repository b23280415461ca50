//! Placement of workers and guests' virtual processors.

use super::values::PlacementMode;

/// `placement` and `pin_vcpus` of `[switch]`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PlacementConfig {
    /// The placement of workers.
    pub mode: PlacementMode,
    /// True if weir may also place guests' virtual processors.
    pub pin_vcpus: bool,
}
