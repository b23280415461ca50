//! The socket, and the thread that connects it.

use std::io;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::net::{RecvFlags, SocketAddrUnix, SocketType, recv};
use weir_engine::egress::Packet;
use weir_engine::logs::Logs;
use weir_engine::{Side, beat, lock, supervise};
use weir_foreign::{Foreign, Party, receive_now};
use weir_guestmem::{Batch, HostBuffer};
use weir_limits::{STREAM_LOOK_LEN, STREAM_REDIAL_NS};
use weir_policy::steering::Steering;
use weir_port_tap::FrameDevice;
use weir_wire::ethernet::HEADER_LEN;
use weir_wire::vlan::TAG_LEN;
use weir_wire::{OffloadCaps, VnetHdr};

use crate::Guard;

/// The pause between two attempts to connect.
const REDIAL: Duration = Duration::from_nanos(STREAM_REDIAL_NS);

/// The pause between two checks that a worker still has a lost socket.
const LAST_CALL: Duration = Duration::from_millis(1);

/// Connects to the peer, without waiting for it. The party pays for closing the connection.
pub type Dial = Box<dyn Fn(&Party) -> io::Result<Foreign<OwnedFd>> + Send>;

/// A socket in which the peer's descriptors can lie. No worker is the last one to have it: see
/// [`Connecting::leave`].
type Socket = Arc<Foreign<OwnedFd>>;

/// Gives the present socket to the keeper; `None` if there is none.
pub type Keep = Box<dyn Fn(Option<&OwnedFd>) + Send>;

/// The peer, and the frames that pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamOptions {
    /// The port's name.
    pub name: String,
    /// The peer, as people know it.
    pub peer: String,
    /// The MTU of its frames, in both directions (bytes).
    pub mtu: u16,
    /// Guests reach the host's loopback by gvproxy, and its API.
    pub host_access: bool,
    /// Guests ask the peer for addresses.
    pub asks_dhcp: bool,
}

impl StreamOptions {
    /// The longest frame (bytes), which has a tag.
    fn frame_len_max(&self) -> usize {
        HEADER_LEN + TAG_LEN + usize::from(self.mtu)
    }
}

/// True if `socket` is a stream socket whose peer listens at `path`.
pub fn leads_to(socket: &OwnedFd, path: &Path) -> bool {
    let is_stream = rustix::net::sockopt::socket_type(socket) == Ok(SocketType::STREAM);
    let peer = rustix::net::getpeername(socket).ok().flatten();
    let peer = peer.and_then(|peer| SocketAddrUnix::try_from(peer).ok());
    let is_its = |peer: SocketAddrUnix| {
        let wanted = SocketAddrUnix::new(path);
        wanted.is_ok_and(|wanted| wanted.path() == peer.path())
    };
    is_stream && peer.is_some_and(is_its)
}

/// The data that workers and the thread share.
struct Line {
    options: StreamOptions,
    guard: Guard,
    /// The peer, at whose expense its descriptors are closed.
    party: Party,
    /// The present socket.
    socket: ArcSwapOption<Foreign<OwnedFd>>,
    /// An epoll set that has the present socket: what a worker watches stays when the socket changes.
    watched: [OwnedFd; 1],
    state: Mutex<State>,
    logs: Logs<2>,
    /// The socket is lost, or the thread is to end.
    woken: Condvar,
}

/// Messages that the peer can cause again and again.
#[derive(Clone, Copy)]
enum Said {
    Connected,
    Lost,
}

#[derive(Default)]
struct State {
    /// The reason why there is no socket.
    trouble: Option<String>,
    /// Descriptors in one message of the peer. The thread closes them.
    sent: Vec<Foreign<OwnedFd>>,
    ends: bool,
}

/// A stream socket as a device that moves whole frames.
pub struct StreamDevice {
    line: Arc<Line>,
    /// The bytes that were read last.
    looked: Mutex<Box<[u8]>>,
    steering: Steering,
    thread: Option<JoinHandle<()>>,
}

/// The reason why a read gave no frames.
enum Nothing {
    /// No whole frame has come.
    Yet,
    /// The socket is no longer usable.
    Broken(String),
    /// Descriptors that came beside the bytes. weir wants none.
    Descriptors(Vec<OwnedFd>),
}

impl StreamDevice {
    /// Continues with the socket that another process has left, or connects by `dial`, and does so
    /// again whenever the connection has ended.
    ///
    /// # Errors
    /// There is no thread, or no descriptor.
    pub fn start(
        options: StreamOptions,
        left: Option<OwnedFd>,
        dial: Dial,
        keep: Keep,
    ) -> io::Result<Self> {
        let StreamOptions { host_access, asks_dhcp, .. } = options;
        let line = Arc::new(Line {
            guard: Guard { host_access, asks_dhcp },
            party: Party::new(options.name.clone()),
            options,
            socket: ArcSwapOption::empty(),
            watched: [epoll::create(epoll::CreateFlags::CLOEXEC)?],
            state: Mutex::new(State {
                trouble: Some("not connected yet".into()),
                ..State::default()
            }),
            logs: Logs::default(),
            woken: Condvar::new(),
        });
        let mut connecting =
            Connecting { line: Arc::clone(&line), dial, keep, present: None, tried_at: None };
        if let Some(socket) = left {
            connecting.take_up(Foreign::new(socket, &line.party))?;
        }
        let run = move || {
            supervise("weir-stream", || connecting.run());
        };
        let thread = std::thread::Builder::new().name("weir-stream".into()).spawn(run)?;
        Ok(Self {
            line,
            looked: Mutex::new(vec![0; STREAM_LOOK_LEN].into()),
            steering: Steering::new(1).map_err(io::Error::other)?,
            thread: Some(thread),
        })
    }

    #[cfg(test)]
    pub(crate) fn log_lines_unsaid(&self) -> u64 {
        self.line.logs.unsaid()
    }

    /// Takes whole frames from the socket, as many as there are buffers.
    fn read(
        &self,
        socket: &OwnedFd,
        buffers: &mut dyn Iterator<Item = &HostBuffer>,
        places: &mut Vec<Range<usize>>,
    ) -> Result<(), Nothing> {
        let mut looked = lock(&self.looked);
        // The rest of an incomplete frame stays in the kernel, so that the next owner of the socket
        // finds the beginning of a frame.
        let len = look(socket, &mut looked)?;
        let mut stream = looked.get(..len).unwrap_or_default();
        let (mut taken, mut is_part) = (0, false);
        for buffer in buffers {
            let frame = match Next::of(stream, self.line.options.frame_len_max()) {
                Next::Whole(frame) => frame,
                // The frames before this one are good.
                Next::TooLong(_) if taken > 0 => break,
                Next::TooLong(len) => return Err(self.too_long(len)),
                Next::Part => {
                    is_part = true;
                    break;
                }
            };
            let place = buffer.slice(0, VnetHdr::LEN + frame.len()).ok_or(Nothing::Yet)?;
            place.write(&[0; VnetHdr::LEN]);
            place.skip(VnetHdr::LEN).write(frame);
            places.push(0..place.len());
            let used = PREFIX_LEN + frame.len();
            (stream, taken) = (stream.get(used..).unwrap_or_default(), taken + used);
        }
        if taken == 0 {
            // A read would return the incomplete frame, and never reach the end of the stream
            // behind it.
            let is_last = is_part && has_ended(socket) && look(socket, &mut looked)? == len;
            return Err(match is_last {
                true => Nothing::Broken("it has ended the connection within a frame".into()),
                false => Nothing::Yet,
            });
        }
        while let Some(rest) = looked.get_mut(..taken).filter(|rest| !rest.is_empty()) {
            match get(socket, rest) {
                Ok(len) => taken = taken.saturating_sub(len),
                Err(Nothing::Yet) => {
                    return Err(Nothing::Broken("another process reads from it".into()));
                }
                Err(broken) => return Err(broken),
            }
        }
        Ok(())
    }

    fn too_long(&self, len: u32) -> Nothing {
        let max = self.line.options.frame_len_max();
        Nothing::Broken(format!(
            "it has sent a frame of {len} bytes, and the uplink's MTU allows {max}"
        ))
    }
}

/// True if the peer sends no more.
fn has_ended(socket: &OwnedFd) -> bool {
    let mut asked = [PollFd::new(socket, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut asked, Some(&now)).is_ok() && !asked[0].revents().is_empty()
}

/// Copies the bytes that a read would give. They stay in the socket, and so do descriptors beside them.
fn look(socket: &OwnedFd, into: &mut [u8]) -> Result<usize, Nothing> {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    read(|| Ok(recv(socket, &mut *into, flags)?.1))
}

/// Reads without waiting. Descriptors beside the bytes are received, too: the kernel would otherwise close them in the
/// reader, which they could keep waiting.
fn get(socket: &OwnedFd, into: &mut [u8]) -> Result<usize, Nothing> {
    let mut sent = Vec::new();
    let len = read(|| receive_now(socket, into, &mut sent))?;
    if sent.is_empty() { Ok(len) } else { Err(Nothing::Descriptors(sent)) }
}

fn read(mut once: impl FnMut() -> io::Result<usize>) -> Result<usize, Nothing> {
    loop {
        match once() {
            Ok(0) => return Err(Nothing::Broken("it has ended the connection".into())),
            Ok(len) => return Ok(len),
            Err(error) => match error.kind() {
                io::ErrorKind::Interrupted => {}
                io::ErrorKind::WouldBlock => return Err(Nothing::Yet),
                _ => return Err(Nothing::Broken(error.to_string())),
            },
        }
    }
}

impl Line {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Gives up `socket`, if it is the present one, and leaves descriptors that have come from it to the thread.
    fn lose(&self, socket: &Socket, why: String, sent: Vec<OwnedFd>) {
        let mut state = self.state();
        state.sent.extend(sent.into_iter().map(|sent| Foreign::new(sent, &self.party)));
        let is_present = self.socket.load().as_ref().is_some_and(|it| Arc::ptr_eq(it, socket));
        if is_present {
            self.socket.store(None);
            let StreamOptions { name, peer, .. } = &self.options;
            self.logs.say(Said::Lost as usize, |unsaid| {
                tracing::warn!(uplink = name, peer, why, unsaid, "connection lost");
            });
            state.trouble = Some(why);
            self.woken.notify_one();
        }
    }
}

impl FrameDevice for StreamDevice {
    fn name(&self) -> &str {
        &self.line.options.name
    }

    fn queues(&self) -> &[OwnedFd] {
        &self.line.watched
    }

    fn steering(&self) -> &Steering {
        &self.steering
    }

    /// The stream has no place for offloads.
    fn offloads(&self) -> OffloadCaps {
        OffloadCaps::NONE
    }

    fn vnet_len(&self) -> usize {
        VnetHdr::LEN
    }

    fn prefix<'r>(
        &self,
        packet: &Packet<'_, '_>,
        room: &'r mut [u8; VnetHdr::LEN],
    ) -> Option<&'r [u8]> {
        if !self.line.guard.lets_pass(packet.head.as_slice()) {
            return None;
        }
        let place = room.first_chunk_mut::<PREFIX_LEN>()?;
        *place = prefix(packet.len())?;
        Some(place)
    }

    fn receive(
        &self,
        _: BorrowedFd<'_>,
        buffers: &mut dyn Iterator<Item = &HostBuffer>,
        places: &mut Vec<Range<usize>>,
    ) -> io::Result<usize> {
        let Some(socket) = self.line.socket.load_full() else {
            return Err(io::ErrorKind::WouldBlock.into());
        };
        match self.read(&socket, buffers, places) {
            Ok(()) => Ok(places.len()),
            Err(nothing) => {
                match nothing {
                    Nothing::Yet => {}
                    Nothing::Broken(why) => self.line.lose(&socket, why, Vec::new()),
                    Nothing::Descriptors(sent) => {
                        self.line.lose(&socket, "it has sent descriptors".into(), sent);
                    }
                }
                Err(io::ErrorKind::WouldBlock.into())
            }
        }
    }

    fn send(
        &self,
        _: BorrowedFd<'_>,
        batch: &mut Batch<'_, '_>,
        lost: &mut dyn FnMut(Range<usize>, &io::Error),
    ) {
        let Some(socket) = self.line.socket.load_full() else {
            return batch.lose_all(&io::ErrorKind::NotConnected.into(), lost);
        };
        if let Err(error) = batch.send_whole(&**socket, lost) {
            self.line.lose(&socket, error.to_string(), Vec::new());
        }
    }

    /// A lost socket is replaced by the next one.
    fn is_gone(&self, _: BorrowedFd<'_>, _: Side, _: &io::Error) -> bool {
        false
    }

    fn trouble(&self) -> Option<String> {
        let why = self.line.state().trouble.clone()?;
        Some(format!("no connection to {}: {why}", self.line.options.peer))
    }
}

impl Drop for StreamDevice {
    fn drop(&mut self) {
        self.line.state().ends = true;
        self.line.woken.notify_one();
        // The thread has logged its panic.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// The thread that connects.
struct Connecting {
    line: Arc<Line>,
    dial: Dial,
    keep: Keep,
    /// The socket that is in the epoll set.
    present: Option<Socket>,
    tried_at: Option<Instant>,
}

impl Connecting {
    fn run(&mut self) {
        while self.wait_until_lost() {
            self.leave();
            if !self.pause() {
                return;
            }
            self.tried_at = Some(Instant::now());
            let connected = match self.line.party.is_full() {
                true => Err(io::Error::other("descriptors that it has sent do not close")),
                false => (self.dial)(&self.line.party).and_then(|socket| self.take_up(socket)),
            };
            if let Err(error) = connected {
                self.line.state().trouble = Some(error.to_string());
            }
        }
    }

    /// Leaves the lost socket, and the descriptors that came from it, to the peer's closer.
    fn leave(&mut self) {
        let sent = std::mem::take(&mut self.line.state().sent);
        drop(sent);
        let Some(lost) = self.present.take() else { return };
        // The keeper has the socket open, too: closing it here does not take it out of the set.
        let _ = epoll::delete(&self.line.watched[0], &**lost);
        (self.keep)(None);
        // A worker holds it for one call, which does not wait. A worker may not make a thread for
        // the closer.
        while Arc::strong_count(&lost) > 1 {
            std::thread::sleep(LAST_CALL);
        }
    }

    /// False at the end.
    fn wait_until_lost(&self) -> bool {
        let state = self.line.state();
        let idle = |state: &mut State| state.trouble.is_none() && !state.ends;
        let state = beat::wait(|| self.line.woken.wait_while(state, idle));
        !state.unwrap_or_else(PoisonError::into_inner).ends
    }

    /// Waits until some time has passed since the last attempt. Returns false at the end.
    fn pause(&self) -> bool {
        let left = self.tried_at.map_or(Duration::ZERO, |at| REDIAL.saturating_sub(at.elapsed()));
        let state = self.line.state();
        let waited =
            beat::wait(|| self.line.woken.wait_timeout_while(state, left, |state| !state.ends));
        !waited.unwrap_or_else(PoisonError::into_inner).0.ends
    }

    fn take_up(&mut self, socket: Foreign<OwnedFd>) -> io::Result<()> {
        let socket = Arc::new(socket);
        (self.keep)(Some(&**socket));
        self.present = Some(Arc::clone(&socket));
        // A worker that finds the socket broken reports the fact after this point.
        let mut state = self.line.state();
        self.line.socket.store(Some(Arc::clone(&socket)));
        // A worker that is woken finds the socket.
        let data = epoll::EventData::new_u64(0);
        epoll::add(&self.line.watched[0], &**socket, data, epoll::EventFlags::IN)
            .inspect_err(|_| self.line.socket.store(None))?;
        state.trouble = None;
        drop(state);
        let StreamOptions { name, peer, .. } = &self.line.options;
        self.line.logs.say(Said::Connected as usize, |unsaid| {
            tracing::info!(uplink = name, peer, unsaid, "connected");
        });
        Ok(())
    }
}

/// Bytes of the length before each frame, which is big-endian.
const PREFIX_LEN: usize = 4;

/// The beginning of a stream.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next<'s> {
    /// A whole frame.
    Whole(&'s [u8]),
    /// A part of a frame, or nothing.
    Part,
    /// The length is more than any frame may have.
    TooLong(u32),
}

impl Next<'_> {
    /// The beginning of `stream`, whose frames have at most `len_max` bytes.
    pub(crate) fn of(stream: &[u8], len_max: usize) -> Next<'_> {
        let Some((prefix, rest)) = stream.split_first_chunk::<PREFIX_LEN>() else {
            return Next::Part;
        };
        let announced = u32::from_be_bytes(*prefix);
        match usize::try_from(announced) {
            Ok(len) if len <= len_max => rest.get(..len).map_or(Next::Part, Next::Whole),
            _ => Next::TooLong(announced),
        }
    }
}

/// The length before a frame of `len` bytes.
pub(crate) fn prefix(len: usize) -> Option<[u8; PREFIX_LEN]> {
    u32::try_from(len).ok().map(u32::to_be_bytes)
}
