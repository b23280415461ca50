//! Placement of workers and guests' virtual processors.

use super::keys::keys;
use super::values::PlacementMode;

keys! {
    /// `placement` and `pin_vcpus` of `[switch]`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct PlacementConfig {
        /// How workers are placed.
        mode: PlacementMode = PlacementMode::Off, [named("placement")];
        /// Whether guests' virtual processors may be placed as well.
        pin_vcpus: bool = false, [];
    }
}
