//! Options of the interface.

use std::time::Duration;

use weir_limits::{
    CONTAINER_BYTES_DEFAULT, FRAME_LEN_MAX, QUEUE_PAIRS_MAX, QUEUE_SIZE_MAX, RX_MERGE_MAX,
    VHOST_USER_REPLY_NS_MAX,
};
use weir_wire::container::RECORD_LEN;
use weir_wire::{Mac, VnetHdr};

use crate::features::Features;

/// Most descriptors of a frame: one for the head, and those of a body that begins and ends inside
/// segments.
pub(crate) const CHAIN_DESCRIPTORS_MAX: usize = 8;

/// Default number of entries of each ring (QEMU's default).
const QUEUE_SIZE_DEFAULT: u16 = 256;
/// Default size of a receive buffer (bytes).
const RX_BUFFER_BYTES_DEFAULT: u32 = 2048;
/// Largest frame without receive offloads (bytes): 1500 and an Ethernet header with a tag.
const PLAIN_FRAME_BYTES: u32 = 1500 + 14 + 4;
/// Size of a receive buffer for a container of the usual size (bytes): its frames, none shorter
/// than Ethernet's 60 bytes, a record header with offloads before each, and the virtio header.
const CONTAINER_BUFFER_BYTES: u32 = CONTAINER_BYTES_DEFAULT
    + CONTAINER_BYTES_DEFAULT.div_ceil(60) * (RECORD_LEN + VnetHdr::LEN) as u32
    + VnetHdr::LEN as u32;
/// Smallest receive buffer: [`RX_MERGE_MAX`] of them hold the largest frame.
pub(crate) const RX_BUFFER_BYTES_MIN: u32 = 1024;

const _: () =
    assert!(RX_BUFFER_BYTES_MIN as usize * RX_MERGE_MAX > FRAME_LEN_MAX as usize + VnetHdr::LEN);

/// Options of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The interface's address. vhost-user has no message for it: the switch learns it from sent
    /// frames.
    pub mac: Mac,
    /// Queue pairs, 1 to [`QUEUE_PAIRS_MAX`].
    pub queues: usize,
    /// Entries of each ring: a power of two from 8 to [`QUEUE_SIZE_MAX`].
    pub queue_size: u16,
    /// Size of each receive buffer with the virtio header (bytes), at least 1024. It is raised to
    /// the largest frame's need if a frame cannot span buffers (no `MRG_RXBUF`; virtio 1.2
    /// §5.1.6.3.1).
    pub rx_buffer_bytes: u32,
    /// Features to use if the back end offers them.
    pub features: Features,
    /// Features without which there is no session. They always include `VERSION_1`.
    pub required: Features,
    /// MTU for the back end (`NET_SET_MTU`), if it takes one.
    pub mtu: Option<u16>,
    /// Takes containers of several frames in one receive buffer, if the back end makes them
    /// (`VHOST_USER_PROTOCOL_F_WEIR_CONTAINERS`). Receive buffers are then at least as large as
    /// usual containers.
    pub containers: bool,
    /// Merges adjacent TCP segments of one flow into one packet of up to 64 KiB for the application
    /// (large receive offload). Its header is that of a GSO packet with a partial checksum,
    /// whatever was negotiated.
    pub lro: bool,
    /// Interval at which the receive rings are polled, in place of a call for each frame (front-end
    /// coalescing). [`QueuePair::wait`](crate::QueuePair::wait) then sleeps until the next poll.
    /// Without traffic it uses calls again.
    pub poll_interval: Option<Duration>,
    /// Longest time in which the back end reads a request or answers one. After it the session
    /// fails.
    pub timeout: Duration,
}

/// Invalid options.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// Number of queue pairs.
    #[error("{0} queue pairs, not 1 to {QUEUE_PAIRS_MAX}")]
    Queues(usize),
    /// Ring size.
    #[error(
        "queue size {0} is not a power of two from {CHAIN_DESCRIPTORS_MAX} to {QUEUE_SIZE_MAX}"
    )]
    QueueSize(u16),
    /// Size of a receive buffer.
    #[error("receive buffers of {0} bytes, fewer than {RX_BUFFER_BYTES_MIN}")]
    RxBufferBytes(u32),
}

impl Options {
    /// Returns options for one queue pair of 256 entries with every feature but two. Rings are
    /// split, and completions come in any order, so that a frame that waits for a full receiver
    /// holds up no other.
    pub fn new(mac: Mac) -> Self {
        Self {
            mac,
            queues: 1,
            queue_size: QUEUE_SIZE_DEFAULT,
            rx_buffer_bytes: RX_BUFFER_BYTES_DEFAULT,
            features: Features::ALL - Features::RING_PACKED - Features::IN_ORDER,
            required: Features::VERSION_1,
            mtu: None,
            containers: false,
            lro: false,
            poll_interval: None,
            timeout: Duration::from_nanos(VHOST_USER_REPLY_NS_MAX),
        }
    }

    pub(crate) fn check(&self) -> Result<(), OptionsError> {
        let size = self.queue_size;
        if !(1..=QUEUE_PAIRS_MAX).contains(&self.queues) {
            return Err(OptionsError::Queues(self.queues));
        }
        if !size.is_power_of_two()
            || usize::from(size) < CHAIN_DESCRIPTORS_MAX
            || size > QUEUE_SIZE_MAX
        {
            return Err(OptionsError::QueueSize(size));
        }
        if self.rx_buffer_bytes < RX_BUFFER_BYTES_MIN {
            return Err(OptionsError::RxBufferBytes(self.rx_buffer_bytes));
        }
        Ok(())
    }

    /// Returns the size of a receive buffer (bytes) under the negotiated `features`, if it may hold
    /// `containers`.
    pub(crate) fn rx_buffer_bytes_for(&self, features: Features, containers: bool) -> u32 {
        let header = VnetHdr::LEN as u32;
        let needed = if features.contains(Features::MRG_RXBUF) {
            RX_BUFFER_BYTES_MIN
        } else if features.intersects(Features::GUEST_GSO) {
            FRAME_LEN_MAX + header
        } else {
            self.mtu.map_or(PLAIN_FRAME_BYTES, |mtu| u32::from(mtu) + 14 + 4) + header
        };
        let container = if containers { CONTAINER_BUFFER_BYTES } else { 0 };
        self.rx_buffer_bytes.max(needed).max(container)
    }
}
