//! Many datagrams or frames in one system call, each gathered from foreign memory: `sendmmsg` with
//! UDP GSO, `recvmmsg` with UDP GRO (udp(7), `UDP_SEGMENT` and `UDP_GRO` in `linux/udp.h`).
//!
//! GSO: the kernel takes up to 64 datagrams of one length (the last may be shorter) for one
//! receiver as one message, and cuts it where necessary, in the network card if possible. GRO is
//! the reverse.

use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr;

use libc::{c_int, c_void, iovec, mmsghdr, msghdr};
use weir_limits::{CHAIN_LEN_MAX, DATAGRAM_FRONT_LEN_MAX, DATAGRAMS_MAX, DATAGRAMS_RECEIVED_MAX};

use crate::host::HostBuffer;
use crate::slice::Slice;

/// `UDP_SEGMENT` of `linux/udp.h`: length of each datagram of a message.
const UDP_SEGMENT: c_int = 103;
/// `UDP_GRO`: the same for a received message.
const UDP_GRO: c_int = 104;
/// Most datagrams of one message (`UDP_MAX_SEGMENTS` before Linux 6.9).
const SEGMENTS_MAX: usize = 64;
/// Longest message (bytes): 65,535 less the headers of IPv4 and UDP.
const MESSAGE_LEN_MAX: usize = 65_507;
/// Most pieces of one message (`UIO_MAXIOV`).
const PIECES_MAX: usize = 1024;
/// Most messages of one call.
const CALL_MAX: usize = 64;

const _: () = assert!(CHAIN_LEN_MAX + 1 < PIECES_MAX);

/// A socket's address in the kernel's form (`struct sockaddr_in`, `sockaddr_in6`), made once for
/// many messages.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C, align(8))]
pub struct PeerAddress {
    bytes: [u8; 32],
    len: u32,
}

/// `sizeof(struct sockaddr_in)`.
const V4_LEN: u32 = 16;
/// `sizeof(struct sockaddr_in6)`.
const V6_LEN: u32 = 28;

impl PeerAddress {
    const EMPTY: Self = Self { bytes: [0; 32], len: 32 };
    /// No address, for a bound packet socket.
    pub const NONE: Self = Self { bytes: [0; 32], len: 0 };

    /// Converts a socket's address.
    pub fn new(address: SocketAddr) -> Self {
        let (mut bytes, port) = ([0; 32], address.port().to_be_bytes());
        let len = match address.ip() {
            IpAddr::V4(ip) => {
                bytes[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
                bytes[4..8].copy_from_slice(&ip.octets());
                V4_LEN
            }
            IpAddr::V6(ip) => {
                bytes[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
                bytes[8..24].copy_from_slice(&ip.octets());
                V6_LEN
            }
        };
        bytes[2..4].copy_from_slice(&port);
        Self { bytes, len }
    }

    /// Returns the socket option for the traffic class of datagrams to this address.
    fn class_option(&self) -> (c_int, c_int) {
        match self.len {
            V6_LEN => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
            _ => (libc::IPPROTO_IP, libc::IP_TOS),
        }
    }

    /// Returns the address without the port; `None` for another family.
    fn ip(&self) -> Option<IpAddr> {
        let family = u16::from_ne_bytes(*self.bytes.first_chunk()?);
        match c_int::from(family) {
            libc::AF_INET => {
                let octets: [u8; 4] = *self.bytes[4..].first_chunk()?;
                Some(Ipv4Addr::from(octets).into())
            }
            libc::AF_INET6 => {
                let octets: [u8; 16] = *self.bytes[8..].first_chunk()?;
                Some(Ipv6Addr::from(octets).into())
            }
            _ => None,
        }
    }
}

impl std::fmt::Debug for PeerAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("PeerAddress").field(&self.ip()).finish()
    }
}

/// Pieces of one datagram.
#[derive(Clone, Copy)]
struct Datagram {
    first: usize,
    end: usize,
    len: usize,
}

/// A message: consecutive datagrams for one receiver, with one traffic class.
#[derive(Clone, Copy)]
struct Message {
    to: PeerAddress,
    class: u8,
    first: usize,
    end: usize,
    len: usize,
}

/// Buffers for the messages of one call, kept between batches.
pub struct Outbox {
    /// Fronts of datagrams, in order.
    fronts: HostBuffer,
    used: usize,
    iovecs: Vec<iovec>,
    datagrams: Vec<Datagram>,
    messages: Vec<Message>,
}

impl Default for Outbox {
    fn default() -> Self {
        let fronts = HostBuffer::new(DATAGRAMS_MAX * DATAGRAM_FRONT_LEN_MAX);
        let (iovecs, datagrams, messages) = Default::default();
        Self { fronts, used: 0, iovecs, datagrams, messages }
    }
}

impl Outbox {
    /// Returns an empty batch. It borrows the memory of its datagrams.
    pub fn batch<'m>(&mut self) -> Batch<'_, 'm> {
        let mut batch = Batch { outbox: self, memory: PhantomData };
        batch.clear();
        batch
    }
}

/// Datagrams to send together.
pub struct Batch<'o, 'm> {
    outbox: &'o mut Outbox,
    memory: PhantomData<Slice<'m>>,
}

/// Result of sending a [`Batch`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// The kernel refuses several datagrams as one message on this path, but accepted each alone.
    pub refuses_gso: bool,
}

impl<'m> Batch<'_, 'm> {
    /// Adds a datagram for each of `to`: `front`, at most [`DATAGRAM_FRONT_LEN_MAX`] bytes together, which is copied,
    /// then `body`, which is not. `class` is the traffic class of its IP header. With `gso` it may become part of the
    /// last message. Returns `false`, without a change, if there is no room: [send](Self::send) first.
    pub fn push(
        &mut self,
        front: &[&[u8]],
        body: impl Iterator<Item = Slice<'m>>,
        to: &[PeerAddress],
        class: u8,
        gso: bool,
    ) -> bool {
        let outbox = &mut *self.outbox;
        let front_len: usize = front.iter().map(|part| part.len()).sum();
        let messages = outbox.messages.len();
        if outbox.datagrams.len() >= DATAGRAMS_MAX
            || (messages > 0 && messages + to.len() > DATAGRAMS_MAX)
        {
            return false;
        }
        let Some(place) = outbox.fronts.slice(outbox.used, front_len) else { return false };
        let mut at = 0;
        for part in front {
            at += place.skip(at).write(part);
        }
        outbox.used += front_len;
        let first = outbox.iovecs.len();
        outbox.iovecs.push(piece(&place));
        outbox.iovecs.extend(body.map(|slice| piece(&slice)));
        let end = outbox.iovecs.len();
        let len = outbox.iovecs[first..].iter().map(|iovec| iovec.iov_len).sum();
        outbox.datagrams.push(Datagram { first, end, len });
        match to {
            [to] if gso && outbox.joins(to, class, len) => {}
            _ => {
                let end = outbox.datagrams.len();
                let new = |&to| Message { to, class, first: end - 1, end, len };
                outbox.messages.extend(to.iter().map(new));
            }
        }
        true
    }

    /// Returns whether the batch is empty.
    pub fn is_empty(&self) -> bool {
        self.outbox.messages.is_empty()
    }

    /// Sends all datagrams by the non-blocking `socket` and empties the batch. Calls `lost` for
    /// datagrams that were not sent, with their numbers in the order of `push` and the reason.
    pub fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        mut lost: impl FnMut(Range<usize>, &io::Error),
    ) -> Sent {
        let mut sent = Sent::default();
        let mut next = 0;
        while let Some(message) = self.outbox.messages.get(next) {
            let datagrams = message.first..message.end;
            match self.outbox.call(socket, next, 0, &mut |_, _| {}) {
                Ok(messages) => next += messages,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // The socket's buffer is full, and stays full for the others.
                    for left in &self.outbox.messages[next..] {
                        lost(left.first..left.end, &error);
                    }
                    break;
                }
                Err(_) if datagrams.len() > 1 => {
                    sent.refuses_gso |= self.outbox.send_each(socket, next, &mut lost);
                    next += 1;
                }
                Err(error) => {
                    lost(datagrams, &error);
                    next += 1;
                }
            }
        }
        self.clear();
        sent
    }

    /// Writes all datagrams to a file that takes one at a time, such as a TAP, by `writev` for
    /// each.
    pub fn write(&mut self, file: BorrowedFd<'_>, mut lost: impl FnMut(Range<usize>, &io::Error)) {
        for (index, datagram) in self.outbox.datagrams.iter().enumerate() {
            let pieces = &self.outbox.iovecs[datagram.first..datagram.end];
            // SAFETY: the pieces are readable memory during the call, as in `Outbox::call`.
            let written =
                unsafe { libc::writev(file.as_raw_fd(), pieces.as_ptr(), pieces.len() as c_int) };
            if written < 0 {
                let error = io::Error::last_os_error();
                if error.kind() == io::ErrorKind::WouldBlock {
                    // The file is full, and stays full for the others.
                    lost(index..self.outbox.datagrams.len(), &error);
                    break;
                }
                lost(index..index + 1, &error);
            }
        }
        self.clear();
    }

    /// Sends all datagrams by a stream `socket`, each as one message that the kernel takes whole or not at all, and
    /// empties the batch. Calls `lost` for those that were not sent.
    ///
    /// # Errors
    /// The socket is of no more use: it is closed, or has taken a part of a datagram.
    pub fn send_whole(
        &mut self,
        socket: impl AsFd,
        lost: &mut dyn FnMut(Range<usize>, &io::Error),
    ) -> io::Result<()> {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let (mut next, mut result) = (0, Ok(()));
        while next < self.outbox.messages.len() {
            let mut whole = 0;
            let mut count = |len, sent| whole += usize::from(len == sent);
            let error = match self.outbox.call(socket.as_fd(), next, flags, &mut count) {
                Ok(messages) if messages == whole => {
                    next += messages;
                    continue;
                }
                Ok(_) => {
                    next += whole;
                    io::Error::new(io::ErrorKind::WriteZero, "it took a part of a frame")
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => error,
            };
            for left in &self.outbox.messages[next..] {
                lost(left.first..left.end, &error);
            }
            if error.kind() != io::ErrorKind::WouldBlock {
                result = Err(error);
            }
            break;
        }
        self.clear();
        result
    }

    /// Empties the batch, all datagrams of which are lost for this reason.
    pub fn lose_all(&mut self, error: &io::Error, lost: &mut dyn FnMut(Range<usize>, &io::Error)) {
        lost(0..self.outbox.datagrams.len(), error);
        self.clear();
    }

    fn clear(&mut self) {
        let Outbox { fronts: _, used, iovecs, datagrams, messages } = self.outbox;
        *used = 0;
        iovecs.clear();
        datagrams.clear();
        messages.clear();
    }
}

impl Outbox {
    /// Joins the last datagram to the last message, if possible: it must be as long as the others, or shorter and the
    /// end of the message.
    fn joins(&mut self, to: &PeerAddress, class: u8, len: usize) -> bool {
        let last = self.datagrams.len() - 1;
        let Some(message) = self.messages.last_mut() else { return false };
        let (first, before) = (self.datagrams[message.first], message.end - message.first);
        let fits = message.end == last
            && message.to == *to
            && message.class == class
            && before < SEGMENTS_MAX
            && len <= first.len
            && message.len == before * first.len
            && message.len + len <= MESSAGE_LEN_MAX
            && self.iovecs.len() - first.first <= PIECES_MAX;
        if fits {
            (message.end, message.len) = (last + 1, message.len + len);
        }
        fits
    }

    /// Sends messages from `next` on by one call. Passes the length of each message, and how much of it was sent, to
    /// `each`. Returns the number of messages.
    #[inline(always)]
    fn call(
        &mut self,
        socket: BorrowedFd<'_>,
        next: usize,
        flags: c_int,
        each: &mut impl FnMut(usize, usize),
    ) -> io::Result<usize> {
        let mut headers = [const { MaybeUninit::<mmsghdr>::uninit() }; CALL_MAX];
        let mut controls = [const { MaybeUninit::<Control>::uninit() }; CALL_MAX];
        let messages = &self.messages[next..];
        let count = messages.len().min(CALL_MAX);
        for ((message, header), control) in messages.iter().zip(&mut headers).zip(&mut controls) {
            let datagrams = &self.datagrams[message.first..message.end];
            let (Some(first), Some(last)) = (datagrams.first(), datagrams.last()) else { continue };
            let pieces = &mut self.iovecs[first.first..last.end];
            let segment_len = if datagrams.len() > 1 { first.len } else { 0 };
            let header_of = header_for(message, segment_len, pieces, control);
            header.write(mmsghdr { msg_hdr: header_of, msg_len: 0 });
        }
        // SAFETY: the first `count` headers are filled in (a message has a datagram, and a datagram
        // a piece). Each names an address, pieces and a control message that live during the call.
        // Pieces are checked slices, or parts of `fronts`: readable memory, by the lifetime of the
        // batch.
        let sent = unsafe {
            let headers = headers.as_mut_ptr().cast::<mmsghdr>();
            libc::sendmmsg(socket.as_raw_fd(), headers, count as u32, flags)
        };
        let sent = usize::try_from(sent).map_err(|_| io::Error::last_os_error())?;
        for (message, header) in messages.iter().zip(&headers).take(sent.min(count)) {
            // SAFETY: the first `count` headers are filled in, as above.
            each(message.len, unsafe { header.assume_init_ref() }.msg_len as usize);
        }
        Ok(sent)
    }

    /// Sends each datagram of a refused message by itself. Returns true if each was sent: then only their combination
    /// was refused.
    #[cold]
    fn send_each(
        &mut self,
        socket: BorrowedFd<'_>,
        index: usize,
        lost: &mut dyn FnMut(Range<usize>, &io::Error),
    ) -> bool {
        let message = self.messages[index];
        let mut all = true;
        for index in message.first..message.end {
            let datagram = self.datagrams[index];
            let mut control = MaybeUninit::uninit();
            let pieces = &mut self.iovecs[datagram.first..datagram.end];
            let header = header_for(&message, 0, pieces, &mut control);
            // SAFETY: as in `call`, of one message.
            let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, 0) };
            if sent < 0 {
                all = false;
                lost(index..index + 1, &io::Error::last_os_error());
            }
        }
        all
    }
}

fn piece(slice: &Slice<'_>) -> iovec {
    iovec { iov_base: slice.as_ptr().cast::<c_void>(), iov_len: slice.len() }
}

/// A message's header. With a `segment_len` the pieces are several datagrams of that length. The header is valid as
/// long as its parts are.
fn header_for(
    message: &Message,
    segment_len: usize,
    pieces: &mut [iovec],
    control: &mut MaybeUninit<Control>,
) -> msghdr {
    // SAFETY: `msghdr` is a C struct of integers and pointers; zero bytes are a value of it.
    let mut header: msghdr = unsafe { std::mem::zeroed() };
    header.msg_name = message.to.bytes.as_ptr().cast_mut().cast();
    header.msg_namelen = message.to.len;
    header.msg_iov = pieces.as_mut_ptr();
    header.msg_iovlen = pieces.len() as _;
    let segment_len = u16::try_from(segment_len).unwrap_or(0);
    if segment_len != 0 || message.class != 0 {
        let control = control.write(Control::EMPTY);
        let mut len = 0;
        if segment_len != 0 {
            len = control.put(len, (libc::SOL_UDP, UDP_SEGMENT), &segment_len.to_ne_bytes());
        }
        if message.class != 0 {
            let value = c_int::from(message.class).to_ne_bytes();
            len = control.put(len, message.to.class_option(), &value);
        }
        header.msg_control = ptr::from_mut(control).cast();
        header.msg_controllen = len as _;
    }
    header
}

const WORD: usize = size_of::<usize>();
/// `sizeof(struct cmsghdr)`: a length of a word, level and type.
const CMSG_HEADER_LEN: usize = WORD + 8;

/// `CMSG_SPACE`: bytes that a control message takes with a value of `len` bytes.
const fn cmsg_space(len: usize) -> usize {
    CMSG_HEADER_LEN + len.next_multiple_of(WORD)
}

/// Bytes of `UDP_SEGMENT` or `UDP_GRO`, and of a traffic class beside it. Each value has at most an `int`.
const CONTROL_LEN: usize = 2 * cmsg_space(size_of::<c_int>());

/// Room for the control messages of a message. A packet socket's `struct tpacket_auxdata` has 20 bytes.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; CONTROL_LEN]);

const _: () = assert!(cmsg_space(20) <= CONTROL_LEN);

impl Control {
    const EMPTY: Self = Self([0; CONTROL_LEN]);

    /// Puts a control message of at most an `int` at `at`, and returns the offset of the next one.
    fn put(&mut self, at: usize, (level, kind): (c_int, c_int), value: &[u8]) -> usize {
        let bytes = &mut self.0[at..];
        bytes[..WORD].copy_from_slice(&(CMSG_HEADER_LEN + value.len()).to_ne_bytes());
        bytes[WORD..WORD + 4].copy_from_slice(&level.to_ne_bytes());
        bytes[WORD + 4..WORD + 8].copy_from_slice(&kind.to_ne_bytes());
        bytes[CMSG_HEADER_LEN..CMSG_HEADER_LEN + value.len()].copy_from_slice(value);
        at + cmsg_space(value.len())
    }
}

/// The kernel's data about a message beside its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Said {
    /// `UDP_GRO`: bytes of each datagram.
    segment_len: Option<usize>,
    /// `IP_TOS` or `IPV6_TCLASS`.
    class: u8,
}

impl Said {
    fn of(mut control: &[u8]) -> Self {
        let mut said = Self::default();
        while let Some((level, kind, value, rest)) = next_of(control) {
            let number = value.first_chunk().map(|bytes| c_int::from_ne_bytes(*bytes));
            match (level, kind) {
                (libc::SOL_UDP, UDP_GRO) => {
                    let len = number.and_then(|it| usize::try_from(it).ok());
                    said.segment_len = len.filter(|&len| len > 0);
                }
                // The kernel gives IPv4's TOS as one byte.
                (libc::IPPROTO_IP, libc::IP_TOS) => said.class = value.first().map_or(0, |it| *it),
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    said.class = number.map_or(0, |it| it as u8);
                }
                _ => {}
            }
            control = rest;
        }
        said
    }
}

/// Returns the first control message (level, type and value) and the rest behind it.
fn next_of(control: &[u8]) -> Option<(c_int, c_int, &[u8], &[u8])> {
    let len = usize::from_ne_bytes(*control.first_chunk()?);
    let level = c_int::from_ne_bytes(*control.get(WORD..)?.first_chunk()?);
    let kind = c_int::from_ne_bytes(*control.get(WORD + 4..)?.first_chunk()?);
    let value = control.get(CMSG_HEADER_LEN..len)?;
    let rest = control.get(cmsg_space(value.len())..).unwrap_or_default();
    Some((level, kind, value, rest))
}

/// A received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Length of the message in the buffer (bytes).
    pub len: usize,
    /// Claimed sender of the message; `None` for a family other than IP.
    pub from: Option<IpAddr>,
    /// Length of the message's datagrams (bytes). The last one may be shorter.
    pub segment_len: usize,
    /// The traffic class of the datagram's IP header, if the socket reports it: `IP_RECVTOS`, `IPV6_RECVTCLASS`.
    pub class: u8,
    /// The message was longer than the buffer.
    pub truncated: bool,
}

/// Receives datagrams like [`receive_messages`], and describes them in `arrivals`, which is empty
/// after an error.
///
/// # Errors
/// `WouldBlock`: there is no datagram.
pub fn receive_datagrams<'b>(
    socket: BorrowedFd<'_>,
    buffers: impl Iterator<Item = Slice<'b>>,
    arrivals: &mut Vec<Arrival>,
) -> io::Result<usize> {
    arrivals.clear();
    receive_messages(socket, buffers, |Received { len, control, truncated, from }| {
        let Said { segment_len, class } = Said::of(control);
        let segment_len = segment_len.unwrap_or(len);
        arrivals.push(Arrival { len, from: from.ip(), segment_len, class, truncated });
    })
}

/// A message received by [`receive_messages`].
#[derive(Debug)]
pub struct Received<'r> {
    /// Length of the message in the buffer (bytes).
    pub len: usize,
    /// The control messages (`struct cmsghdr` and its data, cmsg(3)).
    pub control: &'r [u8],
    /// The buffer was too short for the message.
    pub truncated: bool,
    from: &'r PeerAddress,
}

/// Receives a message into each of `buffers`, at most [`DATAGRAMS_RECEIVED_MAX`], as far as the non-blocking `socket`
/// has some, by one call. Calls `got` for each. Returns the number of buffers that it offered.
///
/// # Errors
/// `WouldBlock`: there is no message.
pub fn receive_messages<'b>(
    socket: BorrowedFd<'_>,
    buffers: impl Iterator<Item = Slice<'b>>,
    mut got: impl FnMut(Received<'_>),
) -> io::Result<usize> {
    const MAX: usize = DATAGRAMS_RECEIVED_MAX;
    let mut headers = [const { MaybeUninit::<mmsghdr>::uninit() }; MAX];
    let mut iovecs = [const { MaybeUninit::<iovec>::uninit() }; MAX];
    let mut names = [PeerAddress::EMPTY; MAX];
    let mut controls = [Control::EMPTY; MAX];
    let mut count = 0;
    let places = headers.iter_mut().zip(&mut iovecs).zip(names.iter_mut().zip(&mut controls));
    for (buffer, ((header, iovec), (name, control))) in buffers.zip(places) {
        let pieces = std::slice::from_mut(iovec.write(piece(&buffer)));
        // SAFETY: `msghdr` is a C struct of integers and pointers; zero bytes are a value of it.
        let mut into: msghdr = unsafe { std::mem::zeroed() };
        into.msg_name = name.bytes.as_mut_ptr().cast();
        into.msg_namelen = name.bytes.len() as u32; // 32
        into.msg_iov = pieces.as_mut_ptr();
        into.msg_iovlen = 1;
        into.msg_control = control.0.as_mut_ptr().cast();
        into.msg_controllen = control.0.len() as _;
        header.write(mmsghdr { msg_hdr: into, msg_len: 0 });
        count += 1; // at most MAX
    }
    // SAFETY: the first `count` headers are filled in. Each names one piece (a checked slice), an
    // address and a control message, all writable during the call.
    let received = unsafe {
        let headers = headers.as_mut_ptr().cast::<mmsghdr>();
        libc::recvmmsg(socket.as_raw_fd(), headers, count, 0, ptr::null_mut())
    };
    let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    for ((header, name), control) in headers.iter().zip(&names).zip(&controls).take(received) {
        // SAFETY: the kernel received at most as many messages as headers were filled in.
        let header = unsafe { header.assume_init_ref() };
        got(Received {
            len: header.msg_len as usize,
            control: &control.0[..control.0.len().min(header.msg_hdr.msg_controllen as _)],
            truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
            from: name,
        });
    }
    Ok(count as usize)
}
