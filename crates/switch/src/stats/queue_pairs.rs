//! How many queue pairs an interface has.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How many queue pairs an interface has: what is configured, and what the guest makes of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
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

/// A line of `weir explain`.
impl fmt::Display for QueuePairNumbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { configured, session, in_use } = *self;
        write!(f, "queue pairs: {in_use} in use of {}", session.unwrap_or(configured))?;
        match self.note() {
            Some(note) => writeln!(f, "; {note}"),
            None => writeln!(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_waits_for_the_next_session_is_told() {
        let numbers =
            |configured, session, in_use| QueuePairNumbers { configured, session, in_use };
        assert_eq!(numbers(4, Some(4), 2).to_string(), "queue pairs: 2 in use of 4\n");
        assert_eq!(numbers(4, None, 0).to_string(), "queue pairs: 0 in use of 4\n");
        assert_eq!(
            numbers(4, Some(2), 2).to_string(),
            "queue pairs: 2 in use of 2; `queues` is 4 now: that is offered when the front end connects again\n"
        );
        let fewer = numbers(2, Some(4), 4).note().unwrap();
        assert!(fewer.ends_with("and one that wants more has no session then"), "{fewer}");
    }
}
