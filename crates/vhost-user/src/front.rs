//! The front end's side of the socket.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use weir_limits::VHOST_USER_REPLY_NS_MAX;

use crate::error::{ConnectionError, Expected, FrontEndError, ProtocolError};
use crate::frame::{FrameReader, send_some};
use crate::message::vring_fd_word;
use crate::payload::{
    ConfigSpace, DirtyLog, Inflight, IotlbMsg, MemoryRegion, MemoryTable, Payload, SingleRegion,
    VringAddr, VringState,
};
use crate::request::{
    Header, NEED_REPLY_FLAG, Request, RequestCode, VHOST_USER_PROTOCOL_F_REPLY_ACK,
};

/// A descriptor that goes with a request, or none.
type Fd<'f> = Option<BorrowedFd<'f>>;

/// A reply of the back end.
#[derive(Debug)]
pub struct Reply {
    /// The body.
    pub body: Vec<u8>,
    /// The descriptors that came with it.
    pub fds: Vec<OwnedFd>,
}

/// A session's socket, for the front end: each method sends one request and waits for its reply,
/// if it has one.
///
/// Once [`set_protocol_features`](Self::set_protocol_features) has included `REPLY_ACK`, requests
/// without a reply of their own wait for the back end's status, and a failure is
/// [`FrontEndError::Refused`].
///
/// Every method fails with a [`FrontEndError`]; [`FrontEndError::Timeout`] if the whole exchange
/// takes longer than the [timeout](Self::set_timeout).
#[derive(Debug)]
pub struct FrontEnd {
    socket: UnixStream,
    reader: FrameReader,
    timeout: Duration,
    reply_ack: bool,
}

impl FrontEnd {
    /// A front end over a connected socket. The timeout is [`VHOST_USER_REPLY_NS_MAX`].
    pub fn new(stream: UnixStream) -> Self {
        Self {
            socket: stream,
            reader: FrameReader::new(),
            timeout: Duration::from_nanos(VHOST_USER_REPLY_NS_MAX),
            reply_ack: false,
        }
    }

    /// Limits the time of one request with its reply.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Virtio features the back end offers.
    pub fn get_features(&mut self) -> Result<u64, FrontEndError> {
        self.query(Request::GetFeatures, &[])
    }

    /// Accepts virtio features.
    pub fn set_features(&mut self, features: u64) -> Result<(), FrontEndError> {
        self.command(Request::SetFeatures, &features.encode(), &[])
    }

    /// Protocol features the back end offers.
    pub fn get_protocol_features(&mut self) -> Result<u64, FrontEndError> {
        self.query(Request::GetProtocolFeatures, &[])
    }

    /// Accepts protocol features. `REPLY_ACK` works from the next request on.
    pub fn set_protocol_features(&mut self, features: u64) -> Result<(), FrontEndError> {
        self.command(Request::SetProtocolFeatures, &features.encode(), &[])?;
        self.reply_ack = features & (1 << VHOST_USER_PROTOCOL_F_REPLY_ACK) != 0;
        Ok(())
    }

    /// Starts the session.
    pub fn set_owner(&mut self) -> Result<(), FrontEndError> {
        self.command(Request::SetOwner, &[], &[])
    }

    /// The deprecated `RESET_OWNER`.
    pub fn reset_owner(&mut self) -> Result<(), FrontEndError> {
        self.command(Request::ResetOwner, &[], &[])
    }

    /// Resets the device.
    pub fn reset_device(&mut self) -> Result<(), FrontEndError> {
        self.command(Request::ResetDevice, &[], &[])
    }

    /// Most queues the back end has: some back ends count virtqueues, as weir does, and others count pairs.
    pub fn get_queue_num(&mut self) -> Result<u64, FrontEndError> {
        self.query(Request::GetQueueNum, &[])
    }

    /// Most memory regions the back end takes.
    pub fn get_max_mem_slots(&mut self) -> Result<u64, FrontEndError> {
        self.query(Request::GetMaxMemSlots, &[])
    }

    /// Shares memory in one go; replaces the earlier memory.
    pub fn set_mem_table(
        &mut self,
        regions: &[(MemoryRegion, BorrowedFd<'_>)],
    ) -> Result<(), FrontEndError> {
        let (table, fds): (Vec<_>, Vec<_>) = regions.iter().copied().unzip();
        self.command(Request::SetMemTable, &MemoryTable(table).encode(), &fds)
    }

    /// Shares one more region.
    pub fn add_mem_reg(
        &mut self,
        region: MemoryRegion,
        fd: BorrowedFd<'_>,
    ) -> Result<(), FrontEndError> {
        self.command(Request::AddMemReg, &SingleRegion(region).encode(), &[fd])
    }

    /// Ends the sharing of a region.
    pub fn rem_mem_reg(&mut self, region: MemoryRegion) -> Result<(), FrontEndError> {
        self.command(Request::RemMemReg, &SingleRegion(region).encode(), &[])
    }

    /// Sets a ring's size in entries.
    pub fn set_vring_num(&mut self, index: u32, num: u32) -> Result<(), FrontEndError> {
        self.command(Request::SetVringNum, &VringState { index, num }.encode(), &[])
    }

    /// Sets the places of a ring's parts.
    pub fn set_vring_addr(&mut self, addr: VringAddr) -> Result<(), FrontEndError> {
        self.command(Request::SetVringAddr, &addr.encode(), &[])
    }

    /// Sets the index at which a ring continues.
    pub fn set_vring_base(&mut self, index: u32, base: u32) -> Result<(), FrontEndError> {
        let state = VringState { index, num: base };
        self.command(Request::SetVringBase, &state.encode(), &[])
    }

    /// Stops a ring, and returns its next index.
    pub fn get_vring_base(&mut self, index: u32) -> Result<u32, FrontEndError> {
        let state = VringState { index, num: 0 };
        let reply: VringState = self.query(Request::GetVringBase, &state.encode())?;
        Ok(reply.num)
    }

    /// Sets the eventfd that kicks a ring; with none the back end is to poll.
    pub fn set_vring_kick(&mut self, index: u32, fd: Fd<'_>) -> Result<(), FrontEndError> {
        self.set_vring_fd(Request::SetVringKick, index, fd)
    }

    /// Sets the eventfd by which the back end calls; with none the driver polls.
    pub fn set_vring_call(&mut self, index: u32, fd: Fd<'_>) -> Result<(), FrontEndError> {
        self.set_vring_fd(Request::SetVringCall, index, fd)
    }

    /// Sets the eventfd that reports a ring's failure.
    pub fn set_vring_err(&mut self, index: u32, fd: Fd<'_>) -> Result<(), FrontEndError> {
        self.set_vring_fd(Request::SetVringErr, index, fd)
    }

    /// Enables or disables a ring.
    pub fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<(), FrontEndError> {
        let num = u32::from(enable);
        self.command(Request::SetVringEnable, &VringState { index, num }.encode(), &[])
    }

    /// Sets the virtio device status.
    pub fn set_status(&mut self, status: u64) -> Result<(), FrontEndError> {
        self.command(Request::SetStatus, &status.encode(), &[])
    }

    /// The virtio device status.
    pub fn get_status(&mut self) -> Result<u64, FrontEndError> {
        self.query(Request::GetStatus, &[])
    }

    /// Sets the MTU the host gives the guest, in bytes.
    pub fn net_set_mtu(&mut self, mtu: u64) -> Result<(), FrontEndError> {
        self.command(Request::NetSetMtu, &mtu.encode(), &[])
    }

    /// Asks the back end to announce the guest's MAC address.
    pub fn send_rarp(&mut self, mac: [u8; 6]) -> Result<(), FrontEndError> {
        let [a, b, c, d, e, f] = mac;
        self.command(Request::SendRarp, &[a, b, c, d, e, f, 0, 0], &[])
    }

    /// Shares the dirty log. The session must have `LOG_SHMFD`: then the request has a reply, whose content is
    /// undefined and ignored.
    pub fn set_log_base(&mut self, log: DirtyLog, fd: BorrowedFd<'_>) -> Result<(), FrontEndError> {
        self.exchange(Request::SetLogBase, &log.encode(), &[fd])?;
        Ok(())
    }

    /// Sets the eventfd that reports new entries in the dirty log.
    pub fn set_log_fd(&mut self, fd: BorrowedFd<'_>) -> Result<(), FrontEndError> {
        self.command(Request::SetLogFd, &[], &[fd])
    }

    /// Gives the back end a socket for its own requests.
    pub fn set_backend_req_fd(&mut self, fd: BorrowedFd<'_>) -> Result<(), FrontEndError> {
        self.command(Request::SetBackendReqFd, &[], &[fd])
    }

    /// Reports a translation. The back end always answers.
    pub fn iotlb_msg(&mut self, message: &IotlbMsg) -> Result<(), FrontEndError> {
        let request = Request::IotlbMsg;
        match self.query(request, &message.encode())? {
            0 => Ok(()),
            status => Err(FrontEndError::Refused { request: request.into(), status }),
        }
    }

    /// Asks for the area that tracks requests in flight.
    pub fn get_inflight_fd(
        &mut self,
        wanted: Inflight,
    ) -> Result<(Inflight, OwnedFd), FrontEndError> {
        let request = Request::GetInflightFd;
        let mut reply = self.exchange(request, &wanted.encode(), &[])?;
        let inflight = Inflight::decode(request.into(), &reply.body)?;
        match (reply.fds.pop(), reply.fds.len()) {
            (Some(fd), 0) => Ok((inflight, fd)),
            (last, others) => Err(ProtocolError::FdCount {
                request: request.into(),
                expected: Expected::Exactly(1),
                actual: others + usize::from(last.is_some()),
            }
            .into()),
        }
    }

    /// Hands back the area that tracks requests in flight.
    pub fn set_inflight_fd(
        &mut self,
        inflight: Inflight,
        fd: BorrowedFd<'_>,
    ) -> Result<(), FrontEndError> {
        self.command(Request::SetInflightFd, &inflight.encode(), &[fd])
    }

    /// Reads `len` bytes of the configuration space from `offset` on. An empty answer means that the back end refused.
    pub fn get_config(&mut self, offset: u32, len: usize) -> Result<Vec<u8>, FrontEndError> {
        let wanted = ConfigSpace { offset, flags: 0, bytes: vec![0; len] };
        let reply: ConfigSpace = self.query(Request::GetConfig, &wanted.encode())?;
        Ok(reply.bytes)
    }

    /// Writes to the configuration space.
    pub fn set_config(&mut self, config: &ConfigSpace) -> Result<(), FrontEndError> {
        self.command(Request::SetConfig, &config.encode(), &[])
    }

    /// Sends a request without its own reply; with `REPLY_ACK`, waits for its status.
    pub fn command(
        &mut self,
        request: Request,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), FrontEndError> {
        let deadline = self.deadline();
        let flags = if self.reply_ack { NEED_REPLY_FLAG } else { 0 };
        self.send(request, flags, body, fds, deadline)?;
        if !self.reply_ack {
            return Ok(());
        }
        let request = request.into();
        let reply = self.receive(request, deadline)?;
        match plain_reply(request, &reply)? {
            0 => Ok(()),
            status => Err(FrontEndError::Refused { request, status }),
        }
    }

    /// Sends a request that has its own reply, and waits for the reply.
    pub fn exchange(
        &mut self,
        request: Request,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<Reply, FrontEndError> {
        let deadline = self.deadline();
        self.send(request, 0, body, fds, deadline)?;
        self.receive(request.into(), deadline)
    }

    /// Sends any bytes, with descriptors along with the first byte. For tests of a back end: nothing is checked, and
    /// the call does not wait for a reply.
    pub fn raw_send(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), FrontEndError> {
        let request = first_word(bytes);
        self.send_bytes(request, bytes, fds, self.deadline())
    }

    /// Waits for a reply to `request`, such as one sent with [`raw_send`](Self::raw_send).
    pub fn raw_receive(&mut self, request: impl Into<RequestCode>) -> Result<Reply, FrontEndError> {
        self.receive(request.into(), self.deadline())
    }

    fn set_vring_fd(
        &mut self,
        request: Request,
        index: u32,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<(), FrontEndError> {
        let word = vring_fd_word(request, index, fd.is_some())?;
        self.command(request, &word.encode(), fd.as_slice())
    }

    /// Sends a request whose reply has a fixed layout.
    fn query<P: Payload>(&mut self, request: Request, body: &[u8]) -> Result<P, FrontEndError> {
        let reply = self.exchange(request, body, &[])?;
        Ok(plain_reply(request.into(), &reply)?)
    }

    /// `None` if the timeout is beyond the range of the clock.
    fn deadline(&self) -> Option<Instant> {
        Instant::now().checked_add(self.timeout)
    }

    fn send(
        &mut self,
        request: Request,
        flags: u32,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
        deadline: Option<Instant>,
    ) -> Result<(), FrontEndError> {
        let header = Header::new(request, flags, body.len())?;
        let bytes = [&header.encode(), body].concat();
        self.send_bytes(request.into(), &bytes, fds, deadline)
    }

    fn send_bytes(
        &mut self,
        request: RequestCode,
        mut bytes: &[u8],
        mut fds: &[BorrowedFd<'_>],
        deadline: Option<Instant>,
    ) -> Result<(), FrontEndError> {
        while !bytes.is_empty() {
            match send_some(&self.socket, bytes, fds) {
                Ok(sent) => {
                    bytes = bytes.get(sent..).unwrap_or_default();
                    fds = &[];
                }
                Err(ConnectionError::Socket(Errno::AGAIN)) => {
                    self.wait(request, PollFlags::OUT, deadline)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn receive(
        &mut self,
        request: RequestCode,
        deadline: Option<Instant>,
    ) -> Result<Reply, FrontEndError> {
        let frame = loop {
            match self.reader.receive(&self.socket, |_| true)? {
                Some(frame) => break frame,
                None => self.wait(request, PollFlags::IN, deadline)?,
            }
        };
        if !frame.header.is_reply() {
            let request = frame.header.request();
            return Err(ProtocolError::ReplyWithoutReplyFlag { request }.into());
        }
        if frame.header.request() != request {
            return Err(FrontEndError::WrongReply {
                expected: request,
                found: frame.header.request(),
            });
        }
        Ok(Reply { body: frame.body, fds: frame.fds })
    }

    /// Waits until the socket is ready, or fails with a timeout.
    fn wait(
        &self,
        request: RequestCode,
        events: PollFlags,
        deadline: Option<Instant>,
    ) -> Result<(), FrontEndError> {
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            // A timeout too long for the kernel is like none.
            let timeout = left.and_then(|left| Timespec::try_from(left).ok());
            match poll(&mut [PollFd::new(&self.socket, events)], timeout.as_ref()) {
                Ok(0) => {
                    let timeout = self.timeout;
                    return Err(FrontEndError::Timeout { request, timeout });
                }
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(ConnectionError::Socket(errno).into()),
            }
        }
    }
}

impl AsFd for FrontEnd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The body of a reply that comes without descriptors.
fn plain_reply<P: Payload>(request: RequestCode, reply: &Reply) -> Result<P, ProtocolError> {
    let payload = P::decode(request, &reply.body)?;
    match reply.fds.len() {
        0 => Ok(payload),
        actual => Err(ProtocolError::FdCount { request, expected: Expected::Exactly(0), actual }),
    }
}

/// The word that a back end would take for the request number, to name it in errors.
fn first_word(bytes: &[u8]) -> RequestCode {
    RequestCode(bytes.first_chunk().map_or(0, |word| u32::from_ne_bytes(*word)))
}
