//! The policy of interrupt moderation, and the settings that it takes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use weir_policy::moderation::Kind;

use super::section::from_toml_string;
use super::values::{ValueError, serde_as_text};

/// The policy that decides when weir calls (interrupts) a guest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Moderation(pub Kind);

impl Moderation {
    /// The words of the configuration: the policies' own names.
    pub const WORDS: &'static [&'static str] = &Self::words();

    const fn words() -> [&'static str; Kind::ALL.len()] {
        let mut words = [""; Kind::ALL.len()];
        let mut i = 0;
        while i < words.len() {
            words[i] = Kind::ALL[i].as_str();
            i += 1;
        }
        words
    }

    /// True if the policy uses `rx_usecs`.
    pub const fn takes_rx_usecs(self) -> bool {
        matches!(self.0, Kind::Backend | Kind::Aggregate | Kind::AggregateAdaptive)
    }

    /// True if the policy uses `rx_frames`.
    pub const fn takes_rx_frames(self) -> bool {
        self.takes_rx_usecs() || matches!(self.0, Kind::TwoLayer | Kind::Auto)
    }

    /// True if the policy uses `container_bytes`.
    pub const fn takes_container_bytes(self) -> bool {
        matches!(self.0, Kind::Aggregate | Kind::AggregateAdaptive)
    }
}

impl FromStr for Moderation {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let not_a_choice = |_| ValueError::NotAChoice { value: text.into(), choices: Self::WORDS };
        text.parse().map(Self).map_err(not_a_choice)
    }
}

impl fmt::Display for Moderation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

serde_as_text!(Moderation);

from_toml_string! {
    Moderation = "the name of a policy in quotes, such as \"immediate\"";
}
