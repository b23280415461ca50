//! Request numbers and their names (spec, "Front-end message types").

use std::fmt;

use weir_limits::VHOST_USER_BODY_MAX;

use crate::error::ProtocolError;

/// Bytes of a header: request, flags and size, 32 bits each.
pub const HEADER_LEN: usize = 12;
/// The version bits of the flags.
pub const VERSION_MASK: u32 = 0x3;
/// The protocol version.
pub const VERSION: u32 = 0x1;
/// Flag: this is a reply.
pub const REPLY_FLAG: u32 = 0x4;
/// Flag: the sender wants a `REPLY_ACK` status.
pub const NEED_REPLY_FLAG: u32 = 0x8;

/// A message's header. One that was decoded has version 1, no undefined flags and a size of at
/// most [`VHOST_USER_BODY_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    request: RequestCode,
    flags: u32,
    size: u32,
}

impl Header {
    /// A header with version 1 and `flags`, for a body of `body_len` bytes.
    pub fn new(
        request: impl Into<RequestCode>,
        flags: u32,
        body_len: usize,
    ) -> Result<Self, ProtocolError> {
        let request = request.into();
        match u32::try_from(body_len) {
            Ok(size) if body_len <= VHOST_USER_BODY_MAX => {
                Ok(Self { request, flags: VERSION | flags, size })
            }
            _ => Err(ProtocolError::BodyTooLarge { request, size: body_len }),
        }
    }

    /// Reads a header and checks its version, its flags and its size.
    ///
    /// # Errors
    /// [`ProtocolError::Version`], [`ProtocolError::UndefinedFlags`],
    /// [`ProtocolError::BodyTooLarge`].
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Self, ProtocolError> {
        let [r0, r1, r2, r3, f0, f1, f2, f3, s0, s1, s2, s3] = *bytes;
        let request = RequestCode(u32::from_ne_bytes([r0, r1, r2, r3]));
        let flags = u32::from_ne_bytes([f0, f1, f2, f3]);
        let size = u32::from_ne_bytes([s0, s1, s2, s3]);
        if flags & VERSION_MASK != VERSION {
            return Err(ProtocolError::Version { request, found: flags & VERSION_MASK });
        }
        if flags & !(VERSION_MASK | REPLY_FLAG | NEED_REPLY_FLAG) != 0 {
            return Err(ProtocolError::UndefinedFlags { request, flags });
        }
        Self::new(request, flags, usize::try_from(size).unwrap_or(usize::MAX))
    }

    /// The header's bytes.
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let [r0, r1, r2, r3] = self.request.0.to_ne_bytes();
        let [f0, f1, f2, f3] = self.flags.to_ne_bytes();
        let [s0, s1, s2, s3] = self.size.to_ne_bytes();
        [r0, r1, r2, r3, f0, f1, f2, f3, s0, s1, s2, s3]
    }

    /// The request, or the one replied to.
    pub fn request(&self) -> RequestCode {
        self.request
    }

    /// Bytes of the body.
    pub fn body_len(&self) -> usize {
        // This never saturates: `new` made it from a `usize`.
        usize::try_from(self.size).unwrap_or(usize::MAX)
    }

    /// True if this is a reply.
    pub fn is_reply(&self) -> bool {
        self.flags & REPLY_FLAG != 0
    }

    /// True if the sender wants a `REPLY_ACK` status. The wish counts only if `REPLY_ACK` was negotiated.
    pub fn needs_reply(&self) -> bool {
        self.flags & NEED_REPLY_FLAG != 0
    }
}

/// Generates [`Request`] so that a request's number and name are on one line.
macro_rules! requests {
    ($($(#[doc = $doc:literal])+ $variant:ident = $number:literal, $name:literal;)+) => {
        /// A request of the front end, by the spec's number.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u32)]
        pub enum Request {
            $($(#[doc = $doc])+ $variant = $number,)+
        }

        impl Request {
            /// Every request of the spec, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The spec's name, such as `VHOST_USER_SET_MEM_TABLE`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => concat!("VHOST_USER_", $name),)+
                }
            }

            /// The number on the wire.
            pub const fn number(self) -> u32 {
                self as u32
            }

            /// The request with this number, if the spec has one.
            pub const fn from_number(number: u32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }
    };
}

requests! {
    /// Virtio features the back end offers. Reply: `u64`.
    GetFeatures = 1, "GET_FEATURES";
    /// Virtio features the driver accepted. Body: `u64`.
    SetFeatures = 2, "SET_FEATURES";
    /// The sender owns the session from here on.
    SetOwner = 3, "SET_OWNER";
    /// Deprecated; to be ignored, or taken as "disable all rings".
    ResetOwner = 4, "RESET_OWNER";
    /// The guest's memory, one descriptor per region.
    SetMemTable = 5, "SET_MEM_TABLE";
    /// The place of the dirty log.
    SetLogBase = 6, "SET_LOG_BASE";
    /// Eventfd that reports new entries in the dirty log.
    SetLogFd = 7, "SET_LOG_FD";
    /// Size of a ring. Body: vring state.
    SetVringNum = 8, "SET_VRING_NUM";
    /// Addresses of a ring's parts.
    SetVringAddr = 9, "SET_VRING_ADDR";
    /// Next index to process. Body: vring state.
    SetVringBase = 10, "SET_VRING_BASE";
    /// Stops a ring and asks for its index. Body and reply: vring state.
    GetVringBase = 11, "GET_VRING_BASE";
    /// Eventfd of the driver's kicks.
    SetVringKick = 12, "SET_VRING_KICK";
    /// Eventfd to call the driver.
    SetVringCall = 13, "SET_VRING_CALL";
    /// Eventfd to report a ring's failure.
    SetVringErr = 14, "SET_VRING_ERR";
    /// Protocol features the back end offers. Reply: `u64`.
    GetProtocolFeatures = 15, "GET_PROTOCOL_FEATURES";
    /// Protocol features the front end accepted. Body: `u64`.
    SetProtocolFeatures = 16, "SET_PROTOCOL_FEATURES";
    /// Most queues (of a network device: queue pairs). Reply: `u64`.
    GetQueueNum = 17, "GET_QUEUE_NUM";
    /// Enables or disables a ring. Body: vring state, `num` 1 or 0.
    SetVringEnable = 18, "SET_VRING_ENABLE";
    /// Announce the guest by RARP after a migration. Body: `u64` that starts with its MAC address.
    SendRarp = 19, "SEND_RARP";
    /// MTU the host gives the guest. Body: `u64`.
    NetSetMtu = 20, "NET_SET_MTU";
    /// Socket for requests of the back end.
    SetBackendReqFd = 21, "SET_BACKEND_REQ_FD";
    /// Update of the device's IOTLB. Reply: `u64`.
    IotlbMsg = 22, "IOTLB_MSG";
    /// Byte order of a legacy ring. Body: vring state, `num` 0 for little-endian, 1 for big.
    SetVringEndian = 23, "SET_VRING_ENDIAN";
    /// Reads the device's configuration space. Body and reply: configuration space.
    GetConfig = 24, "GET_CONFIG";
    /// Writes the device's configuration space.
    SetConfig = 25, "SET_CONFIG";
    /// Opens a crypto session.
    CreateCryptoSession = 26, "CREATE_CRYPTO_SESSION";
    /// Closes a crypto session.
    CloseCryptoSession = 27, "CLOSE_CRYPTO_SESSION";
    /// Post-copy migration is ahead. Reply: a `userfaultfd`.
    PostcopyAdvise = 28, "POSTCOPY_ADVISE";
    /// Post-copy migration starts.
    PostcopyListen = 29, "POSTCOPY_LISTEN";
    /// Post-copy migration is over. Reply: `u64`.
    PostcopyEnd = 30, "POSTCOPY_END";
    /// Asks for the area that tracks requests in flight. Reply: in-flight description, descriptor.
    GetInflightFd = 31, "GET_INFLIGHT_FD";
    /// Hands back the area that tracks requests in flight.
    SetInflightFd = 32, "SET_INFLIGHT_FD";
    /// Socket of the GPU protocol.
    GpuSetSocket = 33, "GPU_SET_SOCKET";
    /// Disables all rings and resets the device.
    ResetDevice = 34, "RESET_DEVICE";
    /// A kick as a message (in-band notifications). Body: vring state.
    VringKick = 35, "VRING_KICK";
    /// Most memory regions. Reply: `u64`.
    GetMaxMemSlots = 36, "GET_MAX_MEM_SLOTS";
    /// Adds one memory region, with its descriptor.
    AddMemReg = 37, "ADD_MEM_REG";
    /// Removes one memory region.
    RemMemReg = 38, "REM_MEM_REG";
    /// Virtio device status. Body: `u64`.
    SetStatus = 39, "SET_STATUS";
    /// Virtio device status. Reply: `u64`.
    GetStatus = 40, "GET_STATUS";
    /// Asks for a shared object by UUID.
    GetSharedObject = 41, "GET_SHARED_OBJECT";
    /// Channel for the device's state. Reply: `u64`.
    SetDeviceStateFd = 42, "SET_DEVICE_STATE_FD";
    /// Asks whether the device's state was transferred whole. Reply: `u64`.
    CheckDeviceState = 43, "CHECK_DEVICE_STATE";
    /// Virtio shared memory regions of the device.
    GetShmemConfig = 44, "GET_SHMEM_CONFIG";
}

impl Request {
    /// True if the request always has its own reply, and so never a `REPLY_ACK` status, whatever
    /// its `need_reply` flag (spec, "REPLY_ACK"). `SET_LOG_BASE` has one only with `LOG_SHMFD`.
    pub const fn has_own_reply(self) -> bool {
        matches!(
            self,
            Self::GetFeatures
                | Self::GetVringBase
                | Self::GetProtocolFeatures
                | Self::GetQueueNum
                | Self::IotlbMsg
                | Self::GetConfig
                | Self::CreateCryptoSession
                | Self::PostcopyAdvise
                | Self::PostcopyEnd
                | Self::GetInflightFd
                | Self::GetMaxMemSlots
                | Self::GetStatus
                | Self::GetSharedObject
                | Self::SetDeviceStateFd
                | Self::CheckDeviceState
                | Self::GetShmemConfig
        )
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The request number of a header, known to the spec or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestCode(pub u32);

impl RequestCode {
    /// The request with this number, if the spec has one.
    pub const fn known(self) -> Option<Request> {
        Request::from_number(self.0)
    }
}

impl From<Request> for RequestCode {
    fn from(request: Request) -> Self {
        Self(request.number())
    }
}

impl PartialEq<Request> for RequestCode {
    fn eq(&self, other: &Request) -> bool {
        self.0 == other.number()
    }
}

impl fmt::Display for RequestCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.known() {
            Some(request) => f.write_str(request.name()),
            None => write!(f, "unknown request {}", self.0),
        }
    }
}

/// `VHOST_USER_BACKEND_IOTLB_MSG`: the back end's request over the channel of `SET_BACKEND_REQ_FD`
/// for a translation. Such requests have their own numbers.
pub const VHOST_USER_BACKEND_IOTLB_MSG: RequestCode = RequestCode(1);

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
/// `GET_CONFIG` and `SET_CONFIG`.
pub const VHOST_USER_PROTOCOL_F_CONFIG: u32 = 9;
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
/// weir's own bit, in no specification: receive buffers may hold containers of several frames, as
/// `weir_wire::container` describes them.
///
/// The specification numbers its bits from 0 and leaves none for private use; this bit is the last of the message's 64.
/// The bit counts only when offered and acknowledged, so nothing changes unless both sides are weir's.
pub const VHOST_USER_PROTOCOL_F_WEIR_CONTAINERS: u32 = 63;
