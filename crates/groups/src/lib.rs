//! Security groups with state: whether an interface may send or receive a frame, by the rules of its groups and by the
//! connections that it has.
//!
//! | file | what |
//! |---|---|
//! | `rules.rs` | the rules of all groups of one interface |
//! | `packet.rs` | the headers of a frame: extension headers, fragments, packets quoted in ICMP errors |
//! | `chunks.rs` | chunks of SCTP |
//! | `states.rs` | states of TCP connections and SCTP associations as seen between their ends |
//! | `table.rs` | the connections of one interface, in fixed memory |
//! | `fragments.rs` | datagrams that come in fragments |
//! | `judge.rs` | the decision about one frame |
//! | `refusals.rs` | refused frames: how many, and the latest ones |
//! | `listing.rs` | connections as they are shown |
//! | `plain.rs` | frames of established connections, in few instructions; frames of one flow that follow each other |
//!
//! Nothing here reads a clock or allocates for a frame: time is a parameter, tables are made with the interface.
#![forbid(unsafe_code)]

mod chunks;
mod fragments;
mod judge;
mod listing;
mod packet;
mod plain;
mod refusals;
mod rules;
mod states;
mod table;

pub use judge::{Frame, Peer};
pub use listing::Connection;
pub use plain::{Rows, Vlans};
pub use refusals::{Ends, Refusal, Refusals, Refused};
pub use rules::{Decision, Direction, GroupId, Other, Policy, Rule, Why};
pub use table::{TABLE_BYTES, Table};

#[cfg(test)]
mod tests;
