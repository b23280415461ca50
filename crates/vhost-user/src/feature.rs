//! Feature bit numbers, under the spec's names ("Protocol features").

/// The vhost-user bit in `GET_FEATURES`/`SET_FEATURES`: protocol features can be negotiated.
pub const VHOST_USER_F_PROTOCOL_FEATURES: u32 = 30;

/// `GET_QUEUE_NUM` and more than one queue pair.
pub const VHOST_USER_PROTOCOL_F_MQ: u32 = 0;
/// The dirty log is shared memory, its descriptor comes with `SET_LOG_BASE`.
pub const VHOST_USER_PROTOCOL_F_LOG_SHMFD: u32 = 1;
/// `SEND_RARP`.
pub const VHOST_USER_PROTOCOL_F_RARP: u32 = 2;
/// A request with the `need_reply` flag is answered with a `u64`, zero for success.
pub const VHOST_USER_PROTOCOL_F_REPLY_ACK: u32 = 3;
/// `NET_SET_MTU`.
pub const VHOST_USER_PROTOCOL_F_MTU: u32 = 4;
/// `SET_BACKEND_REQ_FD`: a channel for requests of the back end.
pub const VHOST_USER_PROTOCOL_F_BACKEND_REQ: u32 = 5;
/// `SET_VRING_ENDIAN`, for legacy devices.
pub const VHOST_USER_PROTOCOL_F_CROSS_ENDIAN: u32 = 6;
/// Crypto sessions.
pub const VHOST_USER_PROTOCOL_F_CRYPTO_SESSION: u32 = 7;
/// Post-copy migration by `userfaultfd`.
pub const VHOST_USER_PROTOCOL_F_PAGEFAULT: u32 = 8;
/// `GET_CONFIG` and `SET_CONFIG`.
pub const VHOST_USER_PROTOCOL_F_CONFIG: u32 = 9;
/// The back end may send descriptors over its own channel.
pub const VHOST_USER_PROTOCOL_F_BACKEND_SEND_FD: u32 = 10;
/// Notify areas of a host device may be mapped into the guest.
pub const VHOST_USER_PROTOCOL_F_HOST_NOTIFIER: u32 = 11;
/// `GET_INFLIGHT_FD` and `SET_INFLIGHT_FD`.
pub const VHOST_USER_PROTOCOL_F_INFLIGHT_SHMFD: u32 = 12;
/// `RESET_DEVICE`.
pub const VHOST_USER_PROTOCOL_F_RESET_DEVICE: u32 = 13;
/// Kicks and calls as messages on the socket.
pub const VHOST_USER_PROTOCOL_F_INBAND_NOTIFICATIONS: u32 = 14;
/// `GET_MAX_MEM_SLOTS`, `ADD_MEM_REG` and `REM_MEM_REG`.
pub const VHOST_USER_PROTOCOL_F_CONFIGURE_MEM_SLOTS: u32 = 15;
/// `SET_STATUS` and `GET_STATUS`.
pub const VHOST_USER_PROTOCOL_F_STATUS: u32 = 16;
/// Memory regions carry Xen grant or foreign mapping flags.
pub const VHOST_USER_PROTOCOL_F_XEN_MMAP: u32 = 17;
/// Virtio shared objects (dma-buf by UUID).
pub const VHOST_USER_PROTOCOL_F_SHARED_OBJECT: u32 = 18;
/// `SET_DEVICE_STATE_FD` and `CHECK_DEVICE_STATE`.
pub const VHOST_USER_PROTOCOL_F_DEVICE_STATE: u32 = 19;
/// `GET_VRING_BASE` may leave requests in flight, recorded in the in-flight area.
pub const VHOST_USER_PROTOCOL_F_GET_VRING_BASE_INFLIGHT: u32 = 20;
/// Ring and region addresses are guest physical addresses.
pub const VHOST_USER_PROTOCOL_F_GPA_ADDRESSES: u32 = 21;
/// `GET_SHMEM_CONFIG`: virtio shared memory regions.
pub const VHOST_USER_PROTOCOL_F_SHMEM: u32 = 22;
/// weir's own bit, in no specification: receive buffers may hold containers of several frames, as
/// `weir_wire::container` describes them.
///
/// The specification numbers its bits from 0 and leaves none for private use; this bit is the last of the message's 64.
/// The bit counts only when offered and acknowledged, so nothing changes unless both sides are weir's.
pub const VHOST_USER_PROTOCOL_F_WEIR_CONTAINERS: u32 = 63;
