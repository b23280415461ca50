//! The observers at ports: copies of frames, and notes on their way.
//!
//! | file | what |
//! |---|---|
//! | `tapped.rs` | a port with observers, and the ports that are in the table behind theirs |
//! | `tap.rs` | copies, from a worker's hand to the rings from which an observer reads them |
//! | `followed.rs` | notes on frames that are followed |

pub(crate) mod followed;
pub(crate) mod tap;
pub(crate) mod tapped;
