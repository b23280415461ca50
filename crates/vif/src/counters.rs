//! Counters of a queue pair, which other threads may read while it works, and eventfds: kicks, calls and errors.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds without a locked instruction, since only the owner of the pair writes.
    #[inline]
    pub(crate) fn add(&self, count: u64) {
        let sum = self.0.load(Ordering::Relaxed).wrapping_add(count);
        self.0.store(sum, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Generates the counters and their snapshot, so that each counter has one name and one
/// explanation.
macro_rules! counters {
    (
        $(#[doc = $live_doc:literal])+ $live:ident,
        $(#[doc = $snapshot_doc:literal])+ $snapshot:ident
        { $($(#[doc = $doc:literal])+ $name:ident,)+ }
    ) => {
        $(#[doc = $live_doc])+
        #[derive(Debug, Default)]
        pub struct $live {
            $(pub(crate) $name: $crate::counters::Counter,)+
        }

        $(#[doc = $snapshot_doc])+
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct $snapshot {
            $($(#[doc = $doc])+ pub $name: u64,)+
        }

        impl $live {
            /// Returns the present value of every counter.
            pub fn snapshot(&self) -> $snapshot {
                $snapshot { $($name: self.$name.get(),)+ }
            }
        }
    };
}
pub(crate) use counters;

counters! {
    /// Live counters of a queue pair; [`PairStats`] explains them.
    PairCounters,
    /// Counters of a queue pair at one moment.
    PairStats {
        /// Frames sent, which means offered to the device.
        tx_frames,
        /// Bytes of these frames, without virtio headers.
        tx_bytes,
        /// Frames that found the ring or the buffers full.
        tx_full,
        /// Frames received.
        rx_frames,
        /// Bytes of these frames, without virtio headers.
        rx_bytes,
        /// Packets handed out that were [merged](crate::Options::lro) from several frames.
        rx_merged,
        /// Containers received; their frames count as frames.
        rx_containers,
        /// Kicks sent, for both rings.
        kicks,
        /// Calls received, for both rings: the sum of the values read from their eventfds.
        calls,
        /// Times that [`QueuePair::wait`](crate::QueuePair::wait) slept and a call woke it.
        wakeups,
        /// Invalid used elements and headers. They are skipped, and their buffers recycled.
        device_errors,
        /// Polls of the receive ring by the [poll timer](crate::Options::poll_interval).
        polls,
    }
}

/// A non-blocking eventfd.
#[derive(Debug)]
pub(crate) struct Event(OwnedFd);

impl Event {
    pub(crate) fn new() -> Result<Self, Errno> {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(Self)
    }

    /// Duplicates the descriptor.
    pub(crate) fn again(&self) -> std::io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// Adds one signal.
    pub(crate) fn signal(&self) {
        // EAGAIN means that 2^64 - 2 signals are waiting; one more adds nothing.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Takes all signals, and returns their number.
    pub(crate) fn drain(&self) -> u64 {
        let mut count = [0; 8];
        match rustix::io::read(&self.0, &mut count) {
            Ok(8) => u64::from_ne_bytes(count),
            // EAGAIN: no signal.
            _ => 0,
        }
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
