//! Rings that run and serve nobody.

use serde::{Deserialize, Serialize};

/// A virtqueue that is in service and enabled, and of which nothing comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SilentRing {
    /// Its number: even ones receive, odd ones transmit.
    pub ring: usize,
    /// What is odd.
    #[serde(flatten)]
    pub why: Silence,
}

/// What is odd about such a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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

impl From<weir_port_vhost::SilentRing> for SilentRing {
    fn from(weir_port_vhost::SilentRing { ring, why }: weir_port_vhost::SilentRing) -> Self {
        let why = match why {
            weir_port_vhost::Silence::KicksWithoutBuffers(kicks) => {
                Silence::KicksWithoutBuffers { kicks }
            }
            weir_port_vhost::Silence::BuffersWithoutKick => Silence::BuffersWithoutKick,
            weir_port_vhost::Silence::NoCallDescriptor => Silence::NoCallDescriptor,
        };
        Self { ring, why }
    }
}
