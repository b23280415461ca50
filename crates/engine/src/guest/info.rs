//! The visible state of a guest's interface.

use weir_guestmem::Mapped;

use super::State;

/// A snapshot of a guest's interface. A value that its kind of port does not have is 0, `None` or empty.
#[derive(Debug, Clone, Default)]
pub struct PortInfo {
    /// The interface's state.
    pub state: State,
    /// True if a front end is connected, and has sent something.
    pub is_met: bool,
    /// The reason of the interface's last stop that was not orderly, if there was one.
    pub stop_reason: Option<String>,
    /// Front ends that connected since the interface was made.
    pub opened: u64,
    /// Front ends that disconnected in order.
    pub closed: u64,
    /// Front ends that could not be served, or broke a rule.
    pub failed: u64,
    /// Front ends that connected while another one was connected, and were turned away.
    pub turned_away: u64,
    /// The time at which the last one was turned away; 0 if none was.
    pub turned_away_ns: u64,
    /// Times at which a front end had to pause: it used too much time, or connected too often.
    pub throttled: u64,
    /// Messages about the interface that were not logged, because there were too many.
    pub log_lines_unsaid: u64,
    /// Acknowledged device features.
    pub features: u64,
    /// The MTU that the front end has set.
    pub mtu: Option<u16>,
    /// Bytes of guest memory in the table in use.
    pub memory_bytes: u64,
    /// Mapped memory, in whole pages, including the rest of older tables.
    pub memory_mapped: Mapped,
    /// Most bytes that a table can have.
    pub memory_max_bytes: u64,
    /// Queue pairs that were offered to the front end; `None` without one.
    pub session_queue_pairs: Option<usize>,
    /// Rings in service that serve no driver.
    pub silent: Vec<SilentRing>,
}

/// A ring that serves no driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SilentRing {
    /// The ring's number: even ones receive, odd ones transmit.
    pub ring: usize,
    /// The reason.
    pub why: Silence,
}

/// The reason for which a ring does not work although it is in service and enabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Silence {
    /// This number of kicks came, but the driver has never put a buffer where weir expects one: the driver probably
    /// uses another base, wrap counter or address.
    KicksWithoutBuffers(u64),
    /// The driver has put buffers into the ring, and the ring's kick descriptor has never been signalled.
    BuffersWithoutKick,
    /// Buffers were returned to a driver that wants calls, and there is no call descriptor.
    NoCallDescriptor,
}
