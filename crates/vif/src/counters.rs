//! What a queue pair counts, for other threads to read while it works.

use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds without a locked instruction: only the owner of the pair writes.
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

/// Generates the counters and their snapshot, so that each is named and explained once.
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
            /// All counters, each as it is now.
            pub fn snapshot(&self) -> $snapshot {
                $snapshot { $($name: self.$name.get(),)+ }
            }
        }
    };
}
pub(crate) use counters;

counters! {
    /// Counters of a queue pair; see [`PairStats`] for what they mean.
    PairCounters,
    /// Counters of a queue pair at one moment.
    PairStats {
        /// Frames sent: offered to the device.
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
        /// Containers received; their frames are counted as frames.
        rx_containers,
        /// Kicks sent, for both rings.
        kicks,
        /// Calls received, for both rings: the sum of what was read from their eventfds.
        calls,
        /// Times that [`QueuePair::wait`](crate::QueuePair::wait) slept and a call woke it.
        wakeups,
        /// Used elements and headers that made no sense: skipped, with their buffers recycled.
        device_errors,
        /// Looks at the receive ring that its [poll timer](crate::Options::poll_interval) made.
        polls,
    }
}
