//! Time that workers lose.
//!
//! | file | what |
//! |---|---|
//! | `blocked.rs` | memory that keeps a worker waiting |
//! | `cpu_loss.rs` | times at which a worker was kept from its CPU |
//! | `dear.rs` | expensive calls, and the ports that pay for them |

pub(crate) mod blocked;
pub(crate) mod cpu_loss;
pub mod dear;
