//! One request of the front end, decoded and checked.

use std::os::fd::OwnedFd;

use crate::error::{Expected, ProtocolError};
use crate::payload::{
    ConfigSpace, DirtyLog, Inflight, IotlbMsg, MemoryRegion, MemoryTable, Payload, SingleRegion,
    VringAddr, VringState,
};
use crate::request::{Header, Request, RequestCode};

/// Bits of the `u64` of `SET_VRING_KICK`, `CALL` and `ERR` that hold the ring's index.
pub const VRING_INDEX_MASK: u64 = 0xff;
/// Bit of the same `u64`: no file descriptor comes with the message.
pub const VRING_NOFD_MASK: u64 = 1 << 8;

/// The `u64` of `SET_VRING_KICK`, `CALL` and `ERR`.
///
/// # Errors
/// [`ProtocolError::VringIndex`] if `index` has more than eight bits.
pub fn vring_fd_word(request: Request, index: u32, has_fd: bool) -> Result<u64, ProtocolError> {
    let word = u64::from(index);
    if word & !VRING_INDEX_MASK != 0 {
        let request = request.into();
        return Err(ProtocolError::VringIndex { request, index });
    }
    Ok(if has_fd { word } else { word | VRING_NOFD_MASK })
}

/// The ring's index in the `u64` of `SET_VRING_KICK`, `CALL` and `ERR`, and true if a file descriptor comes along.
///
/// # Errors
/// [`ProtocolError::VringFdWord`] if other bits are set: ignoring them would confuse two rings.
fn vring_fd_word_parts(request: RequestCode, value: u64) -> Result<(u32, bool), ProtocolError> {
    let index = value & !VRING_NOFD_MASK;
    match u32::try_from(index) {
        Ok(ring) if index & !VRING_INDEX_MASK == 0 => Ok((ring, value & VRING_NOFD_MASK == 0)),
        _ => Err(ProtocolError::VringFdWord { request, value }),
    }
}

/// The two forms of `SET_LOG_BASE`.
#[derive(Debug)]
pub enum LogBase {
    /// Without `LOG_SHMFD`: an address, as in the kernel's ioctl. 8 bytes, no descriptor.
    Address(u64),
    /// With `LOG_SHMFD`: shared memory. 16 bytes; QEMU leaves the descriptor out where `LOG_SHMFD`
    /// is not negotiated.
    Shared {
        /// The log's place in the descriptor.
        log: DirtyLog,
        /// The log's memory.
        fd: Option<OwnedFd>,
    },
}

/// A request of the front end with its body and its descriptors.
///
/// Layout and descriptors are checked. Indices, addresses and sizes of regions are not: they can be wrong for the
/// session.
#[derive(Debug)]
pub enum FrontMessage {
    /// [`Request::GetFeatures`]; answer with a `u64`.
    GetFeatures,
    /// [`Request::SetFeatures`] with the features accepted.
    SetFeatures(u64),
    /// [`Request::GetProtocolFeatures`]; answer with a `u64`.
    GetProtocolFeatures,
    /// [`Request::SetProtocolFeatures`] with the features accepted.
    SetProtocolFeatures(u64),
    /// [`Request::SetOwner`].
    SetOwner,
    /// [`Request::ResetOwner`].
    ResetOwner,
    /// [`Request::SetMemTable`]: all regions, each with its memory. Replaces the earlier ones.
    SetMemTable(Vec<(MemoryRegion, OwnedFd)>),
    /// [`Request::AddMemReg`].
    AddMemReg {
        /// The region to add.
        region: MemoryRegion,
        /// The region's memory.
        fd: OwnedFd,
    },
    /// [`Request::RemMemReg`]. Only guest address, user address and size name the region. The
    /// descriptor that some front ends send along is already closed, as the spec demands.
    RemMemReg(MemoryRegion),
    /// [`Request::GetMaxMemSlots`]; answer with a `u64`.
    GetMaxMemSlots,
    /// [`Request::SetVringNum`]: `num` entries.
    SetVringNum(VringState),
    /// [`Request::SetVringAddr`].
    SetVringAddr(VringAddr),
    /// [`Request::SetVringBase`]: for a split ring, `num` is the next available index.
    SetVringBase(VringState),
    /// [`Request::GetVringBase`]; answer with a [`VringState`].
    GetVringBase {
        /// The ring to stop.
        index: u32,
    },
    /// [`Request::SetVringEnable`].
    SetVringEnable {
        /// The ring.
        index: u32,
        /// Enable it or disable it.
        enable: bool,
    },
    /// [`Request::SetVringKick`].
    SetVringKick {
        /// The ring, 0 to 255.
        index: u32,
        /// Eventfd that the driver kicks; none: the ring is to be polled.
        fd: Option<OwnedFd>,
    },
    /// [`Request::SetVringCall`].
    SetVringCall {
        /// The ring, 0 to 255.
        index: u32,
        /// Eventfd that calls the driver; none: the driver polls.
        fd: Option<OwnedFd>,
    },
    /// [`Request::SetVringErr`].
    SetVringErr {
        /// The ring, 0 to 255.
        index: u32,
        /// Eventfd that reports a failure.
        fd: Option<OwnedFd>,
    },
    /// [`Request::VringKick`].
    VringKick {
        /// The ring kicked.
        index: u32,
    },
    /// [`Request::SetVringEndian`]: `num` 0 for little-endian, 1 for big-endian.
    SetVringEndian(VringState),
    /// [`Request::GetQueueNum`]; answer with a `u64`.
    GetQueueNum,
    /// [`Request::NetSetMtu`] with the MTU in bytes.
    NetSetMtu(u64),
    /// [`Request::SendRarp`] with the guest's MAC address.
    SendRarp([u8; 6]),
    /// [`Request::SetStatus`] with the virtio device status.
    SetStatus(u64),
    /// [`Request::GetStatus`]; answer with a `u64`.
    GetStatus,
    /// [`Request::ResetDevice`].
    ResetDevice,
    /// [`Request::SetLogBase`].
    SetLogBase(LogBase),
    /// [`Request::SetLogFd`] with the log's eventfd.
    SetLogFd(OwnedFd),
    /// [`Request::SetBackendReqFd`] with the socket for requests of the back end.
    SetBackendReqFd(OwnedFd),
    /// [`Request::GetInflightFd`]; answer with an [`Inflight`] and the area's descriptor.
    GetInflightFd(Inflight),
    /// [`Request::SetInflightFd`].
    SetInflightFd {
        /// Layout of the area.
        inflight: Inflight,
        /// The area.
        fd: OwnedFd,
    },
    /// [`Request::GetConfig`]; answer with a [`ConfigSpace`] of the same size, or an empty one.
    GetConfig(ConfigSpace),
    /// [`Request::SetConfig`].
    SetConfig(ConfigSpace),
    /// [`Request::IotlbMsg`]; answer with a `u64`, 0 for success.
    Iotlb(IotlbMsg),
    /// A request without a type here: a number that the spec lacks, or one of a device or a migration mode that
    /// weir does not have (crypto, post-copy, GPU, shared objects, device state). Only its size and its
    /// number of descriptors are checked.
    Unknown {
        /// The request.
        request: RequestCode,
        /// The body as it came.
        body: Vec<u8>,
        /// The descriptors as they came.
        fds: Vec<OwnedFd>,
    },
}

impl FrontMessage {
    /// Decodes one whole request: its header, exactly its body, and every file descriptor that came
    /// with its bytes. The descriptors that don't end up in the message are closed. The function is
    /// longer than a screen: it is a table of all requests.
    ///
    /// # Errors
    /// The [`ProtocolError`] that names the first fault.
    pub fn decode(header: &Header, body: &[u8], fds: Vec<OwnedFd>) -> Result<Self, ProtocolError> {
        let request = header.request();
        if header.is_reply() {
            return Err(ProtocolError::RequestWithReplyFlag { request });
        }
        let parts = Parts { request, body, fds };
        // The caller's header and body do not belong together.
        parts.body_is(Expected::Exactly(header.body_len()), |len| len == header.body_len())?;

        let Some(known) = request.known() else {
            return Ok(parts.unknown());
        };
        Ok(match known {
            Request::GetFeatures => parts.empty(Self::GetFeatures)?,
            Request::SetFeatures => Self::SetFeatures(parts.plain()?),
            Request::SetOwner => parts.empty(Self::SetOwner)?,
            Request::ResetOwner => parts.empty(Self::ResetOwner)?,
            Request::SetMemTable => Self::SetMemTable(parts.mem_table()?),
            Request::SetLogBase => Self::SetLogBase(parts.log_base()?),
            Request::SetLogFd => Self::SetLogFd(parts.bare_fd()?),
            Request::SetVringNum => Self::SetVringNum(parts.plain()?),
            Request::SetVringAddr => Self::SetVringAddr(parts.plain()?),
            Request::SetVringBase => Self::SetVringBase(parts.plain()?),
            Request::GetVringBase => {
                let VringState { index, .. } = parts.plain()?;
                Self::GetVringBase { index }
            }
            Request::SetVringKick => {
                let (index, fd) = parts.vring_fd()?;
                Self::SetVringKick { index, fd }
            }
            Request::SetVringCall => {
                let (index, fd) = parts.vring_fd()?;
                Self::SetVringCall { index, fd }
            }
            Request::SetVringErr => {
                let (index, fd) = parts.vring_fd()?;
                Self::SetVringErr { index, fd }
            }
            Request::GetProtocolFeatures => parts.empty(Self::GetProtocolFeatures)?,
            Request::SetProtocolFeatures => Self::SetProtocolFeatures(parts.plain()?),
            Request::GetQueueNum => parts.empty(Self::GetQueueNum)?,
            Request::SetVringEnable => {
                let VringState { index, num } = parts.plain()?;
                let enable = match num {
                    0 => false,
                    1 => true,
                    _ => {
                        return Err(ProtocolError::EnableValue { request, index, num });
                    }
                };
                Self::SetVringEnable { index, enable }
            }
            Request::SendRarp => {
                // The address is the u64's first six bytes in memory, whatever the byte order.
                let [a, b, c, d, e, f, _, _] = parts.plain::<u64>()?.to_ne_bytes();
                Self::SendRarp([a, b, c, d, e, f])
            }
            Request::NetSetMtu => Self::NetSetMtu(parts.plain()?),
            Request::SetBackendReqFd => Self::SetBackendReqFd(parts.bare_fd()?),
            Request::SetVringEndian => Self::SetVringEndian(parts.plain()?),
            Request::GetConfig => Self::GetConfig(parts.plain()?),
            Request::SetConfig => Self::SetConfig(parts.plain()?),
            Request::GetInflightFd => Self::GetInflightFd(parts.plain()?),
            Request::SetInflightFd => {
                let (inflight, fd) = parts.with_fd()?;
                Self::SetInflightFd { inflight, fd }
            }
            Request::ResetDevice => parts.empty(Self::ResetDevice)?,
            Request::VringKick => {
                let VringState { index, .. } = parts.plain()?;
                Self::VringKick { index }
            }
            Request::GetMaxMemSlots => parts.empty(Self::GetMaxMemSlots)?,
            Request::AddMemReg => {
                let (SingleRegion(region), fd) = parts.with_fd()?;
                Self::AddMemReg { region, fd }
            }
            Request::RemMemReg => Self::RemMemReg(parts.removed_region()?),
            Request::SetStatus => Self::SetStatus(parts.plain()?),
            Request::GetStatus => parts.empty(Self::GetStatus)?,
            Request::IotlbMsg => Self::Iotlb(parts.plain()?),
            Request::CreateCryptoSession
            | Request::CloseCryptoSession
            | Request::PostcopyAdvise
            | Request::PostcopyListen
            | Request::PostcopyEnd
            | Request::GpuSetSocket
            | Request::GetSharedObject
            | Request::SetDeviceStateFd
            | Request::CheckDeviceState
            | Request::GetShmemConfig => parts.unknown(),
        })
    }
}

impl FrontMessage {
    /// The number of descriptors that [`decode`](Self::decode) takes with a message of this header and body.
    pub(crate) fn descriptors(header: &Header, body: &[u8]) -> usize {
        let word = || body.first_chunk::<8>().map_or(0, |word| u64::from_ne_bytes(*word));
        match header.request().known() {
            Some(Request::SetMemTable) => {
                let count = body.first_chunk::<4>().map_or(0, |count| u32::from_ne_bytes(*count));
                usize::try_from(count).unwrap_or(usize::MAX)
            }
            Some(Request::SetVringKick | Request::SetVringCall | Request::SetVringErr) => {
                usize::from(word() & VRING_NOFD_MASK == 0)
            }
            Some(
                Request::AddMemReg
                | Request::SetLogBase
                | Request::SetLogFd
                | Request::SetBackendReqFd
                | Request::SetInflightFd,
            ) => 1,
            // Requests that are not supported end their session, with descriptors or without.
            _ => 0,
        }
    }
}

/// A request before its type is known. Each method takes it apart in one of the ways requests are
/// built, and checks that nothing is missing or left.
struct Parts<'a> {
    request: RequestCode,
    body: &'a [u8],
    fds: Vec<OwnedFd>,
}

impl Parts<'_> {
    fn body_is(
        &self,
        expected: Expected,
        holds: impl FnOnce(usize) -> bool,
    ) -> Result<(), ProtocolError> {
        let actual = self.body.len();
        if holds(actual) {
            return Ok(());
        }
        let request = self.request;
        Err(ProtocolError::BodySize { request, expected, actual })
    }

    fn wrong_fds(&self, expected: Expected) -> ProtocolError {
        ProtocolError::FdCount { request: self.request, expected, actual: self.fds.len() }
    }

    fn no_fds(&self) -> Result<(), ProtocolError> {
        if self.fds.is_empty() {
            return Ok(());
        }
        Err(self.wrong_fds(Expected::Exactly(0)))
    }

    fn one_fd(mut self) -> Result<OwnedFd, ProtocolError> {
        let expected = self.wrong_fds(Expected::Exactly(1));
        match (self.fds.pop(), self.fds.is_empty()) {
            (Some(fd), true) => Ok(fd),
            _ => Err(expected),
        }
    }

    /// No body, no descriptor.
    fn empty(self, message: FrontMessage) -> Result<FrontMessage, ProtocolError> {
        self.body_is(Expected::Exactly(0), |len| len == 0)?;
        self.no_fds()?;
        Ok(message)
    }

    /// A body, no descriptor.
    fn plain<P: Payload>(self) -> Result<P, ProtocolError> {
        let payload = P::decode(self.request, self.body)?;
        self.no_fds()?;
        Ok(payload)
    }

    /// No body, one descriptor.
    fn bare_fd(self) -> Result<OwnedFd, ProtocolError> {
        self.body_is(Expected::Exactly(0), |len| len == 0)?;
        self.one_fd()
    }

    /// A body, one descriptor.
    fn with_fd<P: Payload>(self) -> Result<(P, OwnedFd), ProtocolError> {
        let payload = P::decode(self.request, self.body)?;
        Ok((payload, self.one_fd()?))
    }

    /// A ring index and one descriptor, or none if the body says so.
    fn vring_fd(self) -> Result<(u32, Option<OwnedFd>), ProtocolError> {
        let word = u64::decode(self.request, self.body)?;
        let (index, has_fd) = vring_fd_word_parts(self.request, word)?;
        if has_fd {
            return Ok((index, Some(self.one_fd()?)));
        }
        self.no_fds()?;
        Ok((index, None))
    }

    /// Regions and as many descriptors, in the same order.
    fn mem_table(self) -> Result<Vec<(MemoryRegion, OwnedFd)>, ProtocolError> {
        let MemoryTable(regions) = MemoryTable::decode(self.request, self.body)?;
        if regions.len() != self.fds.len() {
            return Err(self.wrong_fds(Expected::Exactly(regions.len())));
        }
        Ok(regions.into_iter().zip(self.fds).collect())
    }

    /// A region, and a descriptor that must go unused.
    fn removed_region(self) -> Result<MemoryRegion, ProtocolError> {
        let SingleRegion(region) = SingleRegion::decode(self.request, self.body)?;
        if self.fds.len() > 1 {
            return Err(self.wrong_fds(Expected::AtMost(1)));
        }
        Ok(region)
    }

    fn log_base(mut self) -> Result<LogBase, ProtocolError> {
        self.body_is(Expected::Either(8, 16), |len| len == 8 || len == 16)?;
        if self.body.len() == 8 {
            return self.plain().map(LogBase::Address);
        }
        let log = DirtyLog::decode(self.request, self.body)?;
        if self.fds.len() > 1 {
            return Err(self.wrong_fds(Expected::AtMost(1)));
        }
        Ok(LogBase::Shared { log, fd: self.fds.pop() })
    }

    fn unknown(self) -> FrontMessage {
        FrontMessage::Unknown { request: self.request, body: self.body.to_vec(), fds: self.fds }
    }
}
