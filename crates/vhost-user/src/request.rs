//! Request numbers and their names (spec, "Front-end message types").

use std::fmt;

/// Generates [`Request`] so that a request's number and name stand on one line.
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
    /// True if the request always has a reply of its own, and so never a `REPLY_ACK` status, whatever its `need_reply`
    /// flag (spec, "REPLY_ACK"). `SET_LOG_BASE` has one only with `LOG_SHMFD`.
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
