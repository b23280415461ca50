//! Rings that run and serve nobody.

use std::fmt;

use serde::{Deserialize, Serialize};
use weir_text::decimal;

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

impl SilentRing {
    /// What to do about it.
    pub fn advice(&self) -> &'static str {
        match self.why {
            Silence::KicksWithoutBuffers { .. } => {
                "the front end means another place than its driver: compare the base (SET_VRING_BASE, of a packed ring with both wrap counters) and the addresses that it gave (WEIR_LOG=debug shows each request); with packed=off the guest comes up where a wrap counter is wrong"
            }
            Silence::BuffersWithoutKick => {
                "the descriptor of SET_VRING_KICK is not the one that the guest's notification ends in: look at the monitor's ioeventfd"
            }
            Silence::NoCallDescriptor => {
                "the front end gave none by SET_VRING_CALL, as for a driver that polls, and this one asks for interrupts"
            }
        }
    }
}

impl fmt::Display for SilentRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ring, why } = self;
        let side = if ring.is_multiple_of(2) { "rx" } else { "tx" };
        write!(f, "ring {ring} ({side} of queue {}) ", ring / 2)?;
        match why {
            Silence::KicksWithoutBuffers { kicks } => write!(
                f,
                "is never served: {} kicks came, and where weir looks there was never a buffer",
                decimal(*kicks)
            ),
            Silence::BuffersWithoutKick => {
                f.write_str("is never served: there are buffers in it, and a kick never came")
            }
            Silence::NoCallDescriptor => {
                f.write_str("is served in silence: its driver waits to be called, and there is no call descriptor")
            }
        }
    }
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
