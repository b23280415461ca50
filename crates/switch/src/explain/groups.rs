//! An interface's security groups, and the frames that they refused.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_config::{RuleDirection, SecurityGroup};

/// A person who has tried a connection asks for the reason within this time.
const LATELY_MS: u64 = 60_000;

/// An interface's security groups, and the frames that they refused.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GroupsExplanation {
    /// The interface's groups.
    pub groups: Vec<SecurityGroup>,
    /// Groups that close what goes to the guest.
    pub close_in: Vec<SecurityGroup>,
    /// Groups that close what comes from the guest.
    pub close_out: Vec<SecurityGroup>,
    /// The ID under which other hosts know this set of groups; none if `[group-ids]` lacks the set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u16>,
    /// Groups with rules `to` a group, if there are other hosts: such a rule means interfaces of this switch only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub to_groups_here: Vec<SecurityGroup>,
    /// Groups that log what they refuse.
    pub log: Vec<SecurityGroup>,
    /// Refused frames to the guest by reason, since the interface has groups.
    pub refused_in: BTreeMap<String, u64>,
    /// Refused frames from the guest by reason, since the interface has groups.
    pub refused_out: BTreeMap<String, u64>,
    /// The latest refusals, at most 16, the most frames first.
    pub refused: Vec<RefusalExplanation>,
    /// Log messages about refusals that were suppressed by the rate limit.
    pub log_lines_unsaid: u64,
}

impl GroupsExplanation {
    /// Frames among the latest refusals whose last one is not older than a minute.
    #[must_use]
    pub fn refused_lately(&self) -> u64 {
        let lately = self.refused.iter().filter(|it| it.ago_ms <= LATELY_MS);
        lately.map(|it| it.frames).sum()
    }
}

/// Refused frames that are alike.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RefusalExplanation {
    /// The direction of the frames, seen from the guest.
    pub direction: RuleDirection,
    /// The reason in a word, such as `no_rule`.
    pub reason: String,
    /// The VLAN's tag, if the interface has tags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// The protocol, by the word or number of a rule; none if the frames have no IP header that can be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// The sender's address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The receiver's address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// The destination port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The type of the ICMP message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub icmp_type: Option<u16>,
    /// The frames.
    pub frames: u64,
    /// Milliseconds since the last frame.
    pub ago_ms: u64,
}
