//! Foreign memory: what a front end shared with weir, and the only code that touches it.
//!
//! A guest may write to its memory at any moment, so nothing here ever makes a Rust reference into
//! it: bytes go through raw-pointer reads, writes and copies of [`Slice`]s, each of which was
//! checked against one mapped region when it was made. What a guest does can change the *values*
//! that are read, never whether an access is in bounds.
//!
//! | file | what |
//! |---|---|
//! | `mapping.rs` | one region's `mmap`, its checks, and its end |
//! | `fault.rs` | `SIGBUS` when a front end truncates memory that it shared |
//! | `regions.rs` | [`GuestMemory`]: guest-physical and user addresses to slices |
//! | `slice.rs` | [`Slice`] and [`Window`]: reads, writes, copies, sums |
//! | `io.rs` | `readv`, `writev` and `recvmsg` between a file descriptor and slices |
//! | `host.rs` | [`HostBuffer`]: memory of weir's own, in the same shape |

mod fault;
mod host;
mod io;
mod mapping;
mod regions;
mod slice;

pub use fault::fault_count;
pub use host::HostBuffer;
pub use io::{Message, readv, recvmsg, writev};
pub use mapping::{MapError, RegionSpec};
pub use regions::{GuestMemory, MemoryError};
pub use slice::{Slice, Window, recycle};

#[cfg(test)]
mod tests;
