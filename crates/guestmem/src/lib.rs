//! Foreign memory, which a front end shares with weir, and the only code that touches it.
//!
//! A guest may write to its memory at any moment, so no Rust reference into it exists: bytes go
//! through raw-pointer reads, writes and copies of [`Slice`]s, each checked against one mapped
//! region when it is made. A guest can change the *values* that weir reads, never whether an access
//! is in bounds.
//!
//! | file | contents |
//! |---|---|
//! | `mapping.rs` | one region's `mmap`, its checks, and its end |
//! | `account.rs` | [`Account`]: bounds on the memory of a front end, and of all together |
//! | `file.rs` | the files that may be memory |
//! | `reaper.rs` | unmapping, for workers that used a mapping last |
//! | `fault.rs` | `SIGBUS` when a front end truncates memory that it shared |
//! | `place.rs`, `spare.rs` | where the handler finds mappings, and their replacements |
//! | `regions.rs` | [`GuestMemory`]: guest-physical and user addresses to slices, and rings in pieces as one |
//! | `iotlb.rs` | [`Iotlb`], [`Asks`]: the translations of a virtual IOMMU, and questions about missing ones |
//! | `log.rs` | [`DirtyLog`], [`WriteLog`]: the written pages of a guest that migrates |
//! | `slice.rs` | [`Slice`]: reads, writes, copies |
//! | `window.rs` | [`Window`], [`Elements`]: fields of a ring; `testing/window.rs` stands in under a model checker |
//! | `datagrams.rs` | [`Outbox`], [`receive_messages`]: many messages at once to and from slices, with UDP GSO and GRO |
//! | `host.rs` | [`HostBuffer`]: weir's own memory, in the same shape |
//! | `pages.rs` | [`MappedPages`]: whole pages, for the kernel to put packets into, or mapped from a device file |
//! | `ticks.rs` | [`ticks`]: the processor's counter and the kernel's clocks; no memory, but `unsafe` to read |
//! | `unused.rs` | [`leave_program`]: pages of weir's own that it does not need for now |
//! | `watch.rs` | `watch`: for tests, a check between any two writes |
//! | `monitor.rs` | [`monitor`]: waiting for a cache line; `unsafe` for the same reason |

mod account;
mod datagrams;
mod fault;
mod file;
mod host;
mod iotlb;
mod log;
mod mapping;
/// The part of this crate, besides windows, that the model checker `loom` runs. The handler itself handles real signals.
#[cfg(loom)]
#[path = "."]
pub mod model {
    mod place;

    pub use place::Place;

    mod atomic {
        pub(super) use loom::sync::atomic::{AtomicUsize, Ordering};

        pub(super) use crate::window::fence;
    }
}
pub mod monitor;
mod pages;
mod place;
mod reaper;
mod regions;
mod slice;
mod spare;
pub mod ticks;
mod unused;
#[cfg(all(feature = "watch-writes", not(loom)))]
pub mod watch;
#[cfg_attr(loom, path = "testing/window.rs")]
mod window;

pub use account::{Account, Bound, Mapped, share_among, total_mapped};
pub use datagrams::{
    Arrival, Batch, Outbox, PeerAddress, Received, Sent, receive_datagrams, receive_messages,
};
pub use fault::fault_count;
pub use host::{HostBuffer, read};
pub use iotlb::{Access, Asks, Iotlb, IotlbError, Lookup, Tables, Update, Updated};
pub use log::{DirtyLog, LOG_PAGE_BYTES, LogError, Marks, WriteLog, WriteMarks};
pub use mapping::{JoinError, MapError, RegionSpec, leave_memory_to_exit};
pub use pages::MappedPages;
pub use reaper::leave_unmapping_to_others;
pub use regions::{GuestMemory, MainRegions, MemoryError, Piece};
pub use slice::{CACHE_LINE_BYTES, Loan, OfMemory, Reused, Slice, append, recycle};
pub use unused::leave_program;
pub use window::{Element, Elements, Field, Window, fence};
#[cfg(loom)]
pub use window::{Weakness, weaken};

/// The atomics of `place.rs`; `model` has a model checker's.
mod atomic {
    pub(crate) use std::sync::atomic::{AtomicUsize, Ordering, fence};
}

#[cfg(test)]
mod tests;
