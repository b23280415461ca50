//! Options of the interface, and sets of virtio feature bits with names.

use std::fmt;
use std::ops::{BitAnd, BitOr, Sub};
use std::time::Duration;

use virtio_bindings::{virtio_config, virtio_net, virtio_ring};
use weir_limits::{
    CONTAINER_BYTES_DEFAULT, FRAME_LEN_MAX, QUEUE_PAIRS_MAX, QUEUE_SIZE_MAX, RX_MERGE_MAX,
    VHOST_USER_REPLY_NS_MAX,
};
use weir_ring::RingConfig;
use weir_vhost_user::VHOST_USER_F_PROTOCOL_FEATURES;
use weir_wire::container::RECORD_LEN;
use weir_wire::{Mac, OffloadCaps, VnetHdr};

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
const RX_BUFFER_BYTES_MIN: u32 = 1024;

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
    /// Size of every other receive buffer (bytes), if it is another one. A Linux guest changes the size of its buffers
    /// with the frames that come.
    pub other_rx_buffer_bytes: Option<u32>,
    /// Shares its memory a second time, below 4 GiB, and has buffers there and above in turn, as large QEMU guests do.
    pub has_low_memory: bool,
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
            other_rx_buffer_bytes: None,
            has_low_memory: false,
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
        let other = self.other_rx_buffer_bytes.unwrap_or(self.rx_buffer_bytes);
        let least = self.rx_buffer_bytes.min(other);
        if least < RX_BUFFER_BYTES_MIN {
            return Err(OptionsError::RxBufferBytes(least));
        }
        Ok(())
    }

    /// Returns the sizes of receive buffers in turn (bytes) under the negotiated `features`, if they may hold
    /// `containers`.
    pub(crate) fn rx_buffer_bytes_for(&self, features: Features, containers: bool) -> [u32; 2] {
        let header = VnetHdr::LEN as u32;
        let needed = if features.contains(Features::MRG_RXBUF) {
            RX_BUFFER_BYTES_MIN
        } else if features.intersects(Features::GUEST_GSO) {
            FRAME_LEN_MAX + header
        } else {
            self.mtu.map_or(PLAIN_FRAME_BYTES, |mtu| u32::from(mtu) + 14 + 4) + header
        };
        let container = if containers { CONTAINER_BUFFER_BYTES } else { 0 };
        let other = self.other_rx_buffer_bytes.unwrap_or(self.rx_buffer_bytes);
        [self.rx_buffer_bytes, other].map(|bytes| bytes.max(needed).max(container))
    }
}

/// A set of virtio feature bits (virtio 1.2 §5.1.3 and §6), under the specification's names.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Features(pub u64);

/// Generates the constants and the table of their names, so that each bit is written once.
macro_rules! features {
    ($($(#[doc = $doc:literal])+ $name:ident = $bit:expr;)+) => {
        impl Features {
            $($(#[doc = $doc])+ pub const $name: Features = Features(1 << $bit);)+

            const NAMES: &[(Features, &'static str)] =
                &[$((Features::$name, stringify!($name))),+];
        }
    };
}

features! {
    /// `VIRTIO_F_VERSION_1`; always required.
    VERSION_1 = virtio_config::VIRTIO_F_VERSION_1;
    /// `VIRTIO_F_RING_PACKED`.
    RING_PACKED = virtio_config::VIRTIO_F_RING_PACKED;
    /// `VIRTIO_F_IN_ORDER`.
    IN_ORDER = virtio_config::VIRTIO_F_IN_ORDER;
    /// `VIRTIO_F_INDIRECT_DESC`.
    INDIRECT_DESC = virtio_ring::VIRTIO_RING_F_INDIRECT_DESC;
    /// `VIRTIO_F_EVENT_IDX`.
    EVENT_IDX = virtio_ring::VIRTIO_RING_F_EVENT_IDX;
    /// `VIRTIO_NET_F_CSUM`: the device takes partial checksums.
    CSUM = virtio_net::VIRTIO_NET_F_CSUM;
    /// `VIRTIO_NET_F_GUEST_CSUM`: the driver takes partial checksums.
    GUEST_CSUM = virtio_net::VIRTIO_NET_F_GUEST_CSUM;
    /// `VIRTIO_NET_F_MTU`.
    MTU = virtio_net::VIRTIO_NET_F_MTU;
    /// `VIRTIO_NET_F_GUEST_TSO4`.
    GUEST_TSO4 = virtio_net::VIRTIO_NET_F_GUEST_TSO4;
    /// `VIRTIO_NET_F_GUEST_TSO6`.
    GUEST_TSO6 = virtio_net::VIRTIO_NET_F_GUEST_TSO6;
    /// `VIRTIO_NET_F_GUEST_ECN`.
    GUEST_ECN = virtio_net::VIRTIO_NET_F_GUEST_ECN;
    /// `VIRTIO_NET_F_HOST_TSO4`.
    HOST_TSO4 = virtio_net::VIRTIO_NET_F_HOST_TSO4;
    /// `VIRTIO_NET_F_HOST_TSO6`.
    HOST_TSO6 = virtio_net::VIRTIO_NET_F_HOST_TSO6;
    /// `VIRTIO_NET_F_HOST_ECN`.
    HOST_ECN = virtio_net::VIRTIO_NET_F_HOST_ECN;
    /// `VIRTIO_NET_F_MRG_RXBUF`: a frame may span several receive buffers.
    MRG_RXBUF = virtio_net::VIRTIO_NET_F_MRG_RXBUF;
    /// `VIRTIO_NET_F_MQ`; negotiated with more than one queue pair only.
    MQ = virtio_net::VIRTIO_NET_F_MQ;
    /// `VIRTIO_NET_F_GUEST_USO4`.
    GUEST_USO4 = virtio_net::VIRTIO_NET_F_GUEST_USO4;
    /// `VIRTIO_NET_F_GUEST_USO6`.
    GUEST_USO6 = virtio_net::VIRTIO_NET_F_GUEST_USO6;
    /// `VIRTIO_NET_F_HOST_USO`.
    HOST_USO = virtio_net::VIRTIO_NET_F_HOST_USO;
    /// `VHOST_USER_F_PROTOCOL_FEATURES`: vhost-user's own bit, negotiated whenever it is offered.
    PROTOCOL_FEATURES = VHOST_USER_F_PROTOCOL_FEATURES;
}

impl Features {
    /// No feature.
    pub const NONE: Features = Features(0);

    /// All features that this driver can use.
    pub const ALL: Features = {
        let mut all = 0;
        let mut i = 0;
        while i < Features::NAMES.len() {
            all |= Features::NAMES[i].0.0;
            i += 1;
        }
        Features(all)
    };

    /// Features that allow received frames longer than the MTU.
    pub(crate) const GUEST_GSO: Features = Features(
        Features::GUEST_TSO4.0
            | Features::GUEST_TSO6.0
            | Features::GUEST_USO4.0
            | Features::GUEST_USO6.0,
    );

    /// Pairs of a feature and the feature it needs (virtio 1.2 §5.1.3.1).
    const NEEDS: &[(Features, Features)] = &[
        (Features::GUEST_TSO4, Features::GUEST_CSUM),
        (Features::GUEST_TSO6, Features::GUEST_CSUM),
        (Features::GUEST_USO4, Features::GUEST_CSUM),
        (Features::GUEST_USO6, Features::GUEST_CSUM),
        (Features::HOST_TSO4, Features::CSUM),
        (Features::HOST_TSO6, Features::CSUM),
        (Features::HOST_USO, Features::CSUM),
        (Features::GUEST_ECN, Features::GUEST_CSUM),
        (Features::HOST_ECN, Features::CSUM),
    ];

    /// Returns true if this set contains all of `other`.
    pub const fn contains(self, other: Features) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns true if this set contains any of `other`.
    pub const fn intersects(self, other: Features) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns the set without features whose needs are missing. A driver must not accept such
    /// features alone.
    pub(crate) fn consistent(self) -> Features {
        Features::NEEDS
            .iter()
            .filter(|(_, needed)| !self.contains(*needed))
            .fold(self, |kept, (feature, _)| kept - *feature)
    }

    /// Returns the configuration of a ring of `size` entries.
    pub fn ring(self, size: u16) -> RingConfig {
        RingConfig {
            size,
            event_idx: self.contains(Features::EVENT_IDX),
            indirect: self.contains(Features::INDIRECT_DESC),
            packed: self.contains(Features::RING_PACKED),
            in_order: self.contains(Features::IN_ORDER),
        }
    }

    /// Returns the offloads that a sent frame may leave to the device.
    pub fn transmit_caps(self) -> OffloadCaps {
        self.caps([
            (Features::CSUM, OffloadCaps::CSUM),
            (Features::HOST_TSO4, OffloadCaps::TSO4),
            (Features::HOST_TSO6, OffloadCaps::TSO6),
            (Features::HOST_ECN, OffloadCaps::TSO_ECN),
            (Features::HOST_USO, OffloadCaps::USO),
        ])
    }

    fn caps<const N: usize>(self, table: [(Features, OffloadCaps); N]) -> OffloadCaps {
        table
            .into_iter()
            .filter(|(feature, _)| self.contains(*feature))
            .fold(OffloadCaps::NONE, |caps, (_, cap)| caps | cap)
    }
}

impl BitOr for Features {
    type Output = Features;

    fn bitor(self, other: Features) -> Features {
        Features(self.0 | other.0)
    }
}

impl BitAnd for Features {
    type Output = Features;

    fn bitand(self, other: Features) -> Features {
        Features(self.0 & other.0)
    }
}

impl Sub for Features {
    type Output = Features;

    /// Removes the features of `other`.
    fn sub(self, other: Features) -> Features {
        Features(self.0 & !other.0)
    }
}

impl fmt::Display for Features {
    /// Writes names with `|` between them, bits without a name in hexadecimal, and `none` for the
    /// empty set.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut left = *self;
        let mut separator = "";
        for (feature, name) in Features::NAMES {
            if self.contains(*feature) {
                write!(out, "{separator}{name}")?;
                separator = "|";
                left = left - *feature;
            }
        }
        match (left.0, separator) {
            (0, "") => out.write_str("none"),
            (0, _) => Ok(()),
            (bits, _) => write!(out, "{separator}{bits:#x}"),
        }
    }
}

impl fmt::Debug for Features {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Features({self})")
    }
}
