//! Rings that run and serve nobody.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_engine::guest;

/// A virtqueue that is in service and enabled, and of which nothing comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SilentRing {
    /// Its number: even ones receive, odd ones transmit.
    pub ring: usize,
    /// What is odd.
    #[serde(flatten)]
    pub why: Silence,
}

/// What is odd about such a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", tag = "why")]
pub enum Silence {
    /// Kicks come, and no buffer was ever where weir looks.
    KicksWithoutBuffers {
        /// How many, since the ring is in service.
        kicks: u64,
    },
    /// There are buffers, and a kick never came.
    BuffersWithoutKick,
    /// Frames are put there, and the driver cannot be told.
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
