//! How many queue pairs an interface has.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How many queue pairs an interface has: what is configured, and what the guest makes of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueuePairNumbers {
    /// `queues` of the interface: what the next front end is offered.
    pub configured: usize,
    /// What the front end that is there was offered; none without one, and for a Xen guest.
    pub session: Option<usize>,
    /// On how many the guest receives.
    pub in_use: usize,
}

impl QueuePairNumbers {
    /// What is to be known where the front end was offered another number than is configured.
    pub fn note(&self) -> Option<String> {
        let Self { configured, session, .. } = *self;
        let session = session.filter(|session| *session != configured)?;
        let mut note = format!(
            "`queues` is {configured} now: that is offered when the front end connects again"
        );
        if configured < session {
            // QEMU asks for the number of its `queues=` and gives the session up.
            note += ", and one that wants more has no session then";
        }
        Some(note)
    }
}
