//! The reasons why a port stops, as `weir stats` shows them.

use weir_calls::{CallError, Kind};
use weir_engine::burst::FrameError;
use weir_guestmem::{GuestMemory, IotlbError, JoinError, LogError, MemoryError};
use weir_limits::{CALL_NS_MAX, IOTLB_WAIT_NS_MAX, SESSION_STALL_NS};
use weir_ring::{RingError, SetupError};
use weir_sandbox::descriptors::NoRoom;
use weir_vhost_user::{ConnectionError, RequestCode};

/// The end of a session, or of the service of its rings.
#[derive(Debug, thiserror::Error)]
pub enum StopReason {
    /// The front end closed the socket, or broke the protocol.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    /// The front end has stopped in the middle of a message, or reads no replies.
    #[error("the front end left a message unfinished or a reply unread for {} s", SESSION_STALL_NS / 1_000_000_000)]
    Stalled,
    /// The front end has brought more descriptors than are left to it.
    #[error(transparent)]
    Descriptors(#[from] NoRoom),
    /// A request that weir refuses.
    #[error("{request}: {refusal}")]
    Refused {
        /// The request that was refused.
        request: RequestCode,
        /// The fault of the request.
        refusal: Refusal,
    },
    /// A session of an earlier weir cannot be resumed.
    #[error("the session cannot go on: {0}")]
    NotTakenUp(Refusal),
    /// The guest's driver broke a ring.
    #[error("ring {ring}: {error}")]
    Ring {
        /// Vring index: 2 * pair for receive, 2 * pair + 1 for transmit.
        ring: usize,
        /// The fault.
        error: RingError,
    },
    /// The guest's driver wrote a virtio-net header that contradicts its frame.
    #[error("ring {ring}: {error}")]
    Frame {
        /// Vring index.
        ring: usize,
        /// The fault.
        error: FrameError,
    },
    /// The driver's rings have another byte order than this machine: virtio 1.2 §2.4.3, legacy.
    #[error(
        "the guest's driver is of virtio 0.9 and of another byte order than this machine, which weir does not serve: a \
         driver of virtio 1 has network; firmware that boots from the network so (s390x) has none, boot from a disk"
    )]
    ForeignEndian,
    /// The front end truncated memory that it shared.
    #[error("shared memory was truncated while in use")]
    MemoryTruncated,
    /// The front end truncated its dirty log.
    #[error("the dirty log was truncated while in use")]
    LogTruncated,
    /// weir wrote memory for which the dirty log has no bit, so a migration would miss it.
    #[error("the dirty log has no bit for what weir has written")]
    LogOverrun,
    /// The guest could not be called.
    #[error("ring {ring}: {error}")]
    Call {
        /// Vring index.
        ring: usize,
        /// The reason.
        error: CallError,
    },
    /// The process that waits at the guest's call descriptor makes calls expensive.
    #[error(
        "ring {ring}: each call takes more than {} us of the worker's time; check how the front end waits for calls",
        CALL_NS_MAX / 1000
    )]
    DearCalls {
        /// Vring index.
        ring: usize,
    },
    /// Accesses to the shared memory keep weir waiting.
    #[error(
        "shared memory keeps a worker waiting, the last time for {} ms: its front end takes pages away, or its host swaps",
        ns / 1_000_000
    )]
    MemoryBlocks {
        /// The length of the last wait (ns).
        ns: u64,
    },
    /// The front end's channel for questions about translations.
    #[error("the channel for questions to the virtual IOMMU: {0}")]
    Channel(ConnectionError),
    /// weir's own fault.
    #[error("{0}")]
    Internal(String),
}

/// The reason for a stop that the data path finds. It is one word, so that results stay in
/// registers.
pub(crate) type Fault = Box<StopReason>;

impl StopReason {
    /// This reason, unless `memory` was truncated: then the bytes that were read are not the guest's.
    pub(crate) fn unless_truncated(self, memory: &GuestMemory) -> Self {
        if memory.poisoned() { Self::MemoryTruncated } else { self }
    }
}

/// The fault of a request.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// Feature bits that were not offered.
    #[error("features {0:#x} were not offered")]
    NotOffered(u64),
    /// No such ring.
    #[error(
        "ring {index} does not exist, this interface has {rings}: the front end uses more queues than `queues = {}` \
         gives it: give the VM as many, or set `queues` of this interface; or it leaves its control queue to weir, \
         which has none: set `queues = 1`",
        rings / 2
    )]
    NoSuchRing {
        /// The ring that was asked for.
        index: u32,
        /// Rings of the interface.
        rings: usize,
    },
    /// Queue pairs beyond the first need the protocol's `MQ`.
    #[error(
        "ring {0} needs VHOST_USER_PROTOCOL_F_MQ: the front end uses several queues, or leaves its control queue to \
         weir, which has none; set `queues = 1` for this interface"
    )]
    ManyWithoutMq(u32),
    /// Bad ring size or addresses.
    #[error(transparent)]
    Ring(#[from] SetupError),
    /// Bad memory regions.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A bad dirty log, or one that has become too short.
    #[error(transparent)]
    Log(#[from] LogError),
    /// A dirty log without a descriptor.
    #[error("the dirty log is no shared memory, which takes VHOST_USER_PROTOCOL_F_LOG_SHMFD")]
    LogNotShared,
    /// A ring needs its size and addresses before its kick.
    #[error("ring {0} has no size or no addresses yet")]
    RingIncomplete(u32),
    /// A base that no split ring can have.
    #[error("ring base {0} is beyond 65535")]
    Base(u32),
    /// A ring without a kick descriptor would have to be polled.
    #[error("ring {0} has no kick descriptor, and weir does not poll rings")]
    NoKick(u32),
    /// A descriptor that cannot take calls.
    #[error("the {what} descriptor: {error}")]
    Call {
        /// call or err.
        what: &'static str,
        /// The fault.
        error: CallError,
    },
    /// A kick that is no eventfd.
    #[error("the kick descriptor: {0} cannot be watched; an eventfd can")]
    Kick(Kind),
    /// A descriptor that the kernel does not watch.
    #[error("the {what} descriptor: {error}")]
    Descriptor {
        /// kick.
        what: &'static str,
        /// The kernel's error.
        error: std::io::Error,
    },
    /// An MTU out of range.
    #[error("{0} is not a valid MTU")]
    Mtu(u64),
    /// A device status of more than one byte.
    #[error("{0:#x} is not a valid device status")]
    Status(u64),
    /// An area for records that is impossible or too short.
    #[error("the inflight area of {bytes} bytes does not fit {rings} rings of {size} entries")]
    Inflight {
        /// Rings.
        rings: u16,
        /// Entries of each ring.
        size: u16,
        /// Bytes of the area.
        bytes: u64,
    },
    /// A second area for records: a session has one.
    #[error("the front end asked for a second inflight area")]
    SecondInflight,
    /// The keeper does not have all of an earlier weir's session.
    #[error("{0} is not with the keeper")]
    NotKept(&'static str),
    /// A message about translations without a virtual IOMMU.
    #[error(
        "the VM has a virtual IOMMU that weir cannot ask: its front end accepted no VIRTIO_F_ACCESS_PLATFORM, or gave \
         no channel for questions (VHOST_USER_SET_BACKEND_REQ_FD)"
    )]
    NoIommu,
    /// A translation that cannot be one.
    #[error(transparent)]
    Iotlb(#[from] IotlbError),
    /// The channel for questions is no socket.
    #[error("the channel for questions to the virtual IOMMU is {0}, and no Unix stream socket")]
    NoChannel(Kind),
    /// A ring behind a virtual IOMMU that is not in one piece, and cannot be mapped as one.
    #[error(
        "ring {ring} lies in pieces behind the VM's virtual IOMMU, which weir cannot map as one: {error}; a smaller \
         ring is in one piece: set `rx_ring = 256` and `tx_ring = 256` of this interface, and give its VM the \
         arguments that weir qemu-args prints then"
    )]
    RingInPieces {
        /// Vring index.
        ring: usize,
        /// The reason.
        error: JoinError,
    },
    /// Some worker uses a translation for much too long.
    #[error("a translation that has ended is still in use after {} s: a mistake in weir", IOTLB_WAIT_NS_MAX / 1_000_000_000)]
    StillInUse,
    /// A driver writes to its device's configuration, which is weir's alone.
    #[error(
        "a driver cannot change its device's configuration: weir says it, by `mac`, `mtu` and `queues` of the \
         interface"
    )]
    ConfigIsFixed,
    /// A request that belongs to a feature that was not offered.
    #[error("not supported by this back end")]
    Unsupported,
}
