//! An interface's queue pairs: their numbers, the sizes of their rings, and rings that carry no frames.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_config::{RingSize, VifConfig};
use weir_engine::guest;

/// Numbers of an interface's queue pairs: as configured, as offered and as used by the guest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueuePairNumbers {
    /// `queues` of the interface: the number offered to the next front end.
    pub configured: usize,
    /// The number offered to the connected front end; none without a front end, and for a Xen guest.
    pub session: Option<usize>,
    /// The number on which the guest receives.
    pub in_use: usize,
}

impl QueuePairNumbers {
    /// A note if the number offered to the front end differs from the configured one.
    pub fn note(&self) -> Option<String> {
        let Self { configured, session, .. } = *self;
        let session = session.filter(|session| *session != configured)?;
        let mut note = format!(
            "`queues` is {configured} now: that is offered when the front end connects again"
        );
        if configured < session {
            // QEMU asks for as many pairs as its `queues=` says, and ends the session if there are fewer.
            note += ", and one that wants more has no session then";
        }
        Some(note)
    }
}

/// Sizes of an interface's rings: as configured, and as the guest has them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RingSizes {
    /// `rx_ring` of the interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rx_ring: Option<RingSize>,
    /// `tx_ring` of the interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tx_ring: Option<RingSize>,
    /// The entries of each ring in service on which the guest receives.
    pub rx_in_use: Vec<u32>,
    /// The entries of each ring in service from which the guest sends.
    pub tx_in_use: Vec<u32>,
}

impl RingSizes {
    pub(crate) fn of(vif: &VifConfig, in_use: &[[u32; 2]]) -> Self {
        let side = |side: usize| {
            in_use.iter().map(|sizes| sizes[side]).filter(|size| *size > 0).collect::<Vec<_>>()
        };
        let VifConfig { rx_ring, tx_ring, .. } = *vif;
        Self { rx_ring, tx_ring, rx_in_use: side(0), tx_in_use: side(1) }
    }

    /// The name of each side, its configured size, and the sizes in use.
    #[must_use]
    pub fn sides(&self) -> [(&'static str, Option<RingSize>, &[u32]); 2] {
        [("rx", self.rx_ring, &self.rx_in_use), ("tx", self.tx_ring, &self.tx_in_use)]
    }

    /// A note if the size of a ring in use differs from the configured one.
    #[must_use]
    pub fn note(&self) -> Option<String> {
        let differs = |(side, asked, in_use): (&str, Option<RingSize>, &[u32])| {
            let asked = asked.filter(|asked| in_use.iter().any(|it| *it != u32::from(asked.get())));
            Some(format!("`{side}_ring` is {}", asked?))
        };
        let differ: Vec<_> = self.sides().into_iter().filter_map(differs).collect();
        let arguments = "the VM has other arguments, see `weir qemu-args`";
        (!differ.is_empty()).then(|| format!("{}: {arguments}", differ.join(" and ")))
    }
}

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
    /// The ring is behind a virtual IOMMU, and weir's questions about its addresses have no answers.
    NoTranslation {
        /// Questions without an answer.
        questions: u64,
        /// Seconds since the first of them.
        seconds: u64,
    },
}

impl Silence {
    /// The omission of the VM's monitor, if the ring waits for its virtual IOMMU.
    pub fn unanswered(self) -> Option<String> {
        let Self::NoTranslation { questions, seconds } = self else { return None };
        let many = if questions == 1 { "a question" } else { &format!("{questions} questions") };
        Some(format!("the monitor has not answered {many} about translations for {seconds} s"))
    }
}

impl From<guest::SilentRing> for SilentRing {
    fn from(guest::SilentRing { ring, why }: guest::SilentRing) -> Self {
        let why = match why {
            guest::Silence::KicksWithoutBuffers(kicks) => Silence::KicksWithoutBuffers { kicks },
            guest::Silence::BuffersWithoutKick => Silence::BuffersWithoutKick,
            guest::Silence::NoCallDescriptor => Silence::NoCallDescriptor,
            guest::Silence::NoTranslation { questions, seconds } => {
                Silence::NoTranslation { questions, seconds }
            }
        };
        Self { ring, why }
    }
}
