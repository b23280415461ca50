//! What is to be seen of a guest's interface, for who asks.

use weir_guestmem::Mapped;

use super::State;

/// A snapshot of a guest's interface. What its kind of port does not have is 0, `None` or empty.
#[derive(Debug, Clone, Default)]
pub struct PortInfo {
    /// How far it is.
    pub state: State,
    /// Why it stopped last, if it ever did otherwise than in order.
    pub stop_reason: Option<String>,
    /// Front ends that came since the interface was made.
    pub opened: u64,
    /// Those that went in order.
    pub closed: u64,
    /// Those that could not be served, or broke a rule.
    pub failed: u64,
    /// Those that came while there was one, and were turned away.
    pub turned_away: u64,
    /// How often one had to pause: it took too much time, or came too often.
    pub throttled: u64,
    /// Messages about it that were not logged, because they had been too many.
    pub log_lines_unsaid: u64,
    /// Acknowledged device features.
    pub features: u64,
    /// MTU that the front end has set.
    pub mtu: Option<u16>,
    /// Bytes of guest memory in the table in use.
    pub memory_bytes: u64,
    /// What is mapped, in whole pages, and with what is left of older tables.
    pub memory_mapped: Mapped,
    /// Bytes that a table may have.
    pub memory_max_bytes: u64,
    /// Queue pairs that the front end was offered; `None` without one.
    pub session_queue_pairs: Option<usize>,
    /// Rings in service that serve nobody.
    pub silent: Vec<SilentRing>,
}

/// A ring that serves nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SilentRing {
    /// Its number: even ones receive, odd ones transmit.
    pub ring: usize,
    /// Why.
    pub why: Silence,
}

/// Why nothing comes of a ring that is in service and enabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Silence {
    /// So many kicks have come, and where weir looks the driver has never put a buffer: another base, wrap counter or
    /// address is meant.
    KicksWithoutBuffers(u64),
    /// The driver has put buffers into it, and its kick descriptor has never signalled.
    BuffersWithoutKick,
    /// Buffers came back to a driver that wants to be told, and there is no descriptor to call it by.
    NoCallDescriptor,
}
