//! Rings that are in service but carry no frames.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_engine::guest;

/// A virtqueue that is in service and enabled, but carries no frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SilentRing {
    /// The ring's number: even ones receive, odd ones transmit.
    pub ring: usize,
    /// The symptom.
    #[serde(flatten)]
    pub why: Silence,
}

/// The symptom of a silent ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", tag = "why")]
pub enum Silence {
    /// Kicks come, but weir has never found a buffer in the ring.
    KicksWithoutBuffers {
        /// Kicks since the ring has been in service.
        kicks: u64,
    },
    /// There are buffers, but a kick has never come.
    BuffersWithoutKick,
    /// Frames are put into the ring, but weir has no descriptor to notify the driver.
    NoCallDescriptor,
}

impl From<guest::SilentRing> for SilentRing {
    fn from(guest::SilentRing { ring, why }: guest::SilentRing) -> Self {
        let why = match why {
            guest::Silence::KicksWithoutBuffers(kicks) => Silence::KicksWithoutBuffers { kicks },
            guest::Silence::BuffersWithoutKick => Silence::BuffersWithoutKick,
            guest::Silence::NoCallDescriptor => Silence::NoCallDescriptor,
        };
        Self { ring, why }
    }
}
