//! The observers at ports: copies of frames, and notes on their way.
//!
//! | file | what |
//! |---|---|
//! | `tapped.rs` | a port with observers |
//! | `captured.rs` | the ports that stand in the table behind their observers |
//! | `tap.rs` | copies, from a worker's hand to the rings from which an observer reads them |
//! | `record.rs` | a copied frame as bytes in a ring |
//! | `followed.rs` | notes on frames that are followed |

pub(crate) mod captured;
pub(crate) mod followed;
pub(crate) mod record;
pub(crate) mod tap;
mod tapped;
