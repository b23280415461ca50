//! Placement of workers and guests' virtual processors.

use super::keys::keys;
use super::values::PlacementMode;

keys! {
    /// `placement` and `pin_vcpus` of `[switch]`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct PlacementConfig {
        /// The placement of workers.
        mode: PlacementMode = PlacementMode::Off, [named("placement")];
        /// True if weir can also place guests' virtual processors.
        pin_vcpus: bool = false, [];
    }
}
