//! Numbers of an interface's queue pairs.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

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
