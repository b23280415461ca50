//! What the interface is to be like.

use std::time::Duration;

use weir_limits::{
    CONTAINER_BYTES_DEFAULT, FRAME_LEN_MAX, QUEUE_PAIRS_MAX, QUEUE_SIZE_MAX, RX_MERGE_MAX,
    VHOST_USER_REPLY_NS_MAX,
};
use weir_wire::container::RECORD_LEN;
use weir_wire::{Mac, VnetHdr};

use crate::features::Features;
use crate::transmit::CHAIN_DESCRIPTORS_MAX;

/// Entries of each ring where [`Options`] say nothing (QEMU's default).
const QUEUE_SIZE_DEFAULT: u16 = 256;
/// Bytes of a receive buffer where [`Options`] say nothing.
const RX_BUFFER_BYTES_DEFAULT: u32 = 2048;
/// Bytes of the largest frame that comes in without receive offloads: 1500 and an Ethernet header
/// with a tag.
const PLAIN_FRAME_BYTES: u32 = 1500 + 14 + 4;
/// Bytes of a receive buffer that takes a container of the usual size: its frames, none shorter than
/// Ethernet's 60 bytes, what comes before each where all have offloads, and the virtio header.
const CONTAINER_BUFFER_BYTES: u32 = CONTAINER_BYTES_DEFAULT
    + CONTAINER_BYTES_DEFAULT.div_ceil(60) * (RECORD_LEN + VnetHdr::LEN) as u32
    + VnetHdr::LEN as u32;
/// Smallest receive buffer: [`RX_MERGE_MAX`] of them hold the largest frame.
pub(crate) const RX_BUFFER_BYTES_MIN: u32 = 1024;

const _: () =
    assert!(RX_BUFFER_BYTES_MIN as usize * RX_MERGE_MAX > FRAME_LEN_MAX as usize + VnetHdr::LEN);

/// What the interface is to be like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Its address. vhost-user has no message for it: the switch learns it from what is sent.
    pub mac: Mac,
    /// Queue pairs, 1 to [`QUEUE_PAIRS_MAX`].
    pub queues: usize,
    /// Entries of each ring: a power of two from 8 to [`QUEUE_SIZE_MAX`].
    pub queue_size: u16,
    /// Bytes of each receive buffer, at least 1024, with the virtio header. Raised to the largest frame's need if a
    /// frame cannot span buffers (no `MRG_RXBUF`; virtio 1.2 §5.1.6.3.1).
    pub rx_buffer_bytes: u32,
    /// Features to use where the back end offers them.
    pub features: Features,
    /// Features without which there is to be no session. `VERSION_1` always is among them.
    pub required: Features,
    /// MTU to tell the back end (`NET_SET_MTU`), where it can be told.
    pub mtu: Option<u16>,
    /// Take containers of several frames in one receive buffer, if the back end makes them
    /// (`VHOST_USER_PROTOCOL_F_WEIR_CONTAINERS`). Receive buffers are then at least as large as usual containers.
    pub containers: bool,
    /// Merge adjacent TCP segments of one flow into one packet of up to 64 KiB for the application (large receive
    /// offload). Its header is that of a GSO packet with a partial checksum, whatever was negotiated.
    pub lro: bool,
    /// Poll the receive rings at this interval instead of being called for each frame (front-end coalescing):
    /// [`QueuePair::wait`](crate::QueuePair::wait) then sleeps until the next poll. Without traffic it uses calls
    /// again.
    pub poll_interval: Option<Duration>,
    /// How long the back end may take to read a request or to answer one. Else there is no session.
    pub timeout: Duration,
}

/// Options that make no interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// Queue pairs.
    #[error("{0} queue pairs, not 1 to {QUEUE_PAIRS_MAX}")]
    Queues(usize),
    /// Ring size.
    #[error(
        "queue size {0} is not a power of two from {CHAIN_DESCRIPTORS_MAX} to {QUEUE_SIZE_MAX}"
    )]
    QueueSize(u16),
    /// Receive buffer.
    #[error("receive buffers of {0} bytes, fewer than {RX_BUFFER_BYTES_MIN}")]
    RxBufferBytes(u32),
}

impl Options {
    /// One queue pair of 256 entries with every feature but two: split rings, and completions in
    /// any order, so that a frame that waits for a full receiver holds up no other.
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

    /// Bytes of a receive buffer under the negotiated `features`, in which there may be `containers`.
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
