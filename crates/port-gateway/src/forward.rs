//! The thread that asks the host's resolver for guests of one network.
//!
//! Another part of weir makes its sockets and connects them to the resolver, so that the thread can reach only the
//! resolver and gets only the resolver's datagrams. The thread has a few sockets. The kernel has chosen the port of
//! each, and each is used only for a short time.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, recvfrom, send};
use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};
use weir_engine::{beat, lock, supervise};
use weir_fabric::PortId;
use weir_limits::{
    DNS_ASKED_MAX, DNS_ASKED_PER_VIF_MAX, DNS_CALLS_MAX, DNS_CALLS_PER_VIF_MAX, DNS_PAYLOAD_MAX,
    DNS_SOCKET_SECS, DNS_SOCKETS_MAX, DNS_STREAM_ANSWERS_BYTES_MAX, DNS_TIMEOUT_SECS,
};

use crate::desk::Desk;
use crate::frame::Way;
use crate::names::{Asked, is_cut};
use crate::stream::{MESSAGE_LENGTH, StreamId};

#[cfg(test)]
mod tests;

/// Makes a non-blocking socket that is connected, or connects itself, to one of the host's resolvers. Each number
/// selects the next resolver.
pub type Dial = Box<dyn FnMut(u32, Means) -> io::Result<OwnedFd> + Send>;

/// The transport of a question to a resolver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Means {
    /// UDP.
    Datagrams,
    /// TCP.
    Stream,
}

const PATIENCE: Duration = Duration::from_secs(DNS_TIMEOUT_SECS);
const SOCKET_LIFE: Duration = Duration::from_secs(DNS_SOCKET_SECS);
/// The attempts for each question. The second one goes to another resolver, if there is one.
const TRIES: u8 = 2;
/// The time until the next attempt to make a socket, and between two searches for late questions.
const PAUSE: Duration = Duration::from_millis(500);
/// The time for which a socket is still read after it takes no more questions.
const LINGERS: Duration = Duration::from_secs(2 * DNS_TIMEOUT_SECS);
/// The largest number of datagrams that are read from one socket at a time.
const AT_ONCE: usize = 32;

/// A guest's question.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) from: PortId,
    pub(crate) asked: Asked,
    pub(crate) back: Back,
}

/// The way of an answer to the guest.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Back {
    Datagram(Way),
    Stream(StreamId),
}

impl Back {
    /// The longest answer that the connection takes. A question in a datagram states the length itself: `None`.
    pub(crate) fn room(&self) -> Option<usize> {
        match self {
            Self::Datagram(_) => None,
            Self::Stream(_) => Some(DNS_STREAM_ANSWERS_BYTES_MAX - MESSAGE_LENGTH),
        }
    }
}

#[derive(Debug, Default)]
struct Inbox {
    waiting: VecDeque<Question>,
    /// Questions without an answer, in all and of each port.
    total: usize,
    of: HashMap<PortId, usize>,
    ends: bool,
}

impl Inbox {
    fn done(&mut self, from: PortId) {
        self.total = self.total.saturating_sub(1);
        if let Some(of) = self.of.get_mut(&from) {
            *of -= 1;
            if *of == 0 {
                self.of.remove(&from);
            }
        }
    }
}

/// A socket at which the host's programs ask for names of guests, and its address.
pub type HostSocket = (OwnedFd, Ipv4Addr);

/// The thread that asks the resolver. A drop ends it.
pub(crate) struct Forwarder {
    inbox: Arc<Mutex<Inbox>>,
    bell: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Forwarder {
    /// Starts the thread. `dial` makes its sockets. Answers, and questions from the host's socket, go to `desk`.
    ///
    /// # Errors
    /// A thread or a descriptor cannot be made.
    pub(crate) fn start(desk: Arc<Desk>, dial: Dial, host: Option<HostSocket>) -> io::Result<Self> {
        let inbox = Arc::<Mutex<Inbox>>::default();
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let heard = bell.try_clone()?;
        let mut asking = Asking {
            inbox: Arc::clone(&inbox),
            heard,
            desk,
            dial,
            host,
            lines: Vec::new(),
            calls: Vec::new(),
            pending: HashMap::new(),
            next_line: 0,
            turn: 0,
            heard_at: Instant::now(),
            dials_at: Instant::now(),
            expires_at: Instant::now(),
        };
        let run = move || {
            supervise("weir-names", || asking.run());
        };
        let thread = std::thread::Builder::new().name("weir-names".into()).spawn(run)?;
        Ok(Self { inbox, bell, thread: Some(thread) })
    }

    /// Takes a question, unless too many of the guest's questions are pending.
    pub(crate) fn take(&self, question: Question) -> bool {
        let mut inbox = lock(&self.inbox);
        let inbox = &mut *inbox;
        let of = inbox.of.entry(question.from).or_default();
        // The first question of each guest is taken even if the limit for all is reached.
        let max = if inbox.total < DNS_ASKED_MAX { DNS_ASKED_PER_VIF_MAX } else { 1 };
        if *of >= max {
            return false;
        }
        *of += 1;
        inbox.total += 1;
        inbox.waiting.push_back(question);
        self.ring();
        true
    }

    fn ring(&self) {
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        lock(&self.inbox).ends = true;
        self.ring();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// A socket that is connected to a resolver.
struct Line {
    number: u32,
    /// The resolver's number.
    turn: u32,
    until: Instant,
    socket: OwnedFd,
}

/// A question that has been sent to a resolver.
struct Pending {
    question: Question,
    at: Instant,
    tries: u8,
}

/// A question that goes to a resolver by a connection.
struct Call {
    question: Question,
    /// The resolver's datagram.
    told: Vec<u8>,
    number: u16,
    socket: OwnedFd,
    /// Bytes that are not sent yet.
    left: Vec<u8>,
    /// The bytes of the answer.
    said: Vec<u8>,
    until: Instant,
}

impl Call {
    /// Sends as much as the socket takes, and receives what it has. `None` until the answer is
    /// complete.
    fn go_on(&mut self) -> io::Result<Option<Vec<u8>>> {
        if !self.left.is_empty() {
            match send(&self.socket, &self.left, SendFlags::NOSIGNAL) {
                Ok(sent) => drop(self.left.drain(..sent)),
                Err(Errno::AGAIN | Errno::NOTCONN) => {}
                Err(error) => return Err(error.into()),
            }
        }
        while self.left.is_empty() {
            let mut bytes = [0; 4096];
            let len = match recv(&self.socket, &mut bytes, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok((len, _)) => len,
                Err(Errno::AGAIN) => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            self.said.extend(&bytes[..len]);
            let Some(length) = self.said.first_chunk().copied() else { continue };
            let end = MESSAGE_LENGTH + usize::from(u16::from_be_bytes(length));
            if self.said.len() >= end {
                let said = self.said.drain(..end).skip(MESSAGE_LENGTH).collect();
                let told = self.question.asked.answered(self.number, said);
                return told.map(Some).ok_or_else(|| io::ErrorKind::InvalidData.into());
            }
        }
        Ok(None)
    }
}

/// The thread's state.
struct Asking {
    inbox: Arc<Mutex<Inbox>>,
    heard: OwnedFd,
    desk: Arc<Desk>,
    dial: Dial,
    /// The socket at which the host asks, and its address.
    host: Option<HostSocket>,
    lines: Vec<Line>,
    calls: Vec<Call>,
    /// Questions without an answer, by line and DNS message number.
    pending: HashMap<(u32, u16), Pending>,
    next_line: u32,
    /// The number of the resolver in use. It grows when that resolver is silent.
    turn: u32,
    heard_at: Instant,
    /// The time of the next attempt to make a socket, after one has failed.
    dials_at: Instant,
    /// The time of the next search for late questions.
    expires_at: Instant,
}

impl Asking {
    fn run(&mut self) {
        loop {
            let (readable, host_asks) = beat::wait(|| self.wait());
            let _ = rustix::io::read(&self.heard, &mut [0; 8]);
            let new = {
                let mut inbox = lock(&self.inbox);
                if inbox.ends {
                    return;
                }
                std::mem::take(&mut inbox.waiting)
            };
            if host_asks {
                self.hear_host();
            }
            for number in readable {
                self.hear(number);
            }
            for question in new {
                self.put(question, 1);
            }
            self.go_on_with_calls();
            if Instant::now() >= self.expires_at {
                self.expire();
                self.expires_at = Instant::now() + PAUSE;
            }
        }
    }

    /// Waits for questions, for answers, or until the next timeout. Returns the lines on which there are answers, and
    /// whether the host asks.
    fn wait(&self) -> (Vec<u32>, bool) {
        let ends = self.lines.iter().map(|line| line.until + LINGERS).min();
        let is_idle = self.pending.is_empty() && self.calls.is_empty();
        let end = if is_idle { ends } else { Some(self.expires_at) };
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left + Duration::from_millis(1)).ok());
        let all = [self.heard.as_fd()].into_iter();
        let all = all.chain(self.lines.iter().map(|line| line.socket.as_fd()));
        let all = all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let calls = self.calls.iter().map(|call| {
            let side = if call.left.is_empty() { PollFlags::IN } else { PollFlags::OUT };
            PollFd::from_borrowed_fd(call.socket.as_fd(), side)
        });
        let host = self.host.iter().map(|(socket, _)| PollFd::new(socket, PollFlags::IN));
        let mut all: Vec<_> = all.chain(calls).chain(host).collect();
        if poll(&mut all, left.as_ref()).is_err() {
            return (Vec::new(), false);
        }
        let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let lines = self.lines.iter().zip(all.iter().skip(1));
        let readable = lines.filter(|(_, fd)| is_ready(fd)).map(|(line, _)| line.number).collect();
        (readable, self.host.is_some() && all.last().is_some_and(is_ready))
    }

    /// Sends a question to a resolver, or answers the guest that it has failed.
    fn put(&mut self, question: Question, tries: u8) {
        let Some(at) = self.line() else { return self.fail(&question) };
        let Line { number: line, socket, .. } = &self.lines[at];
        let line = *line;
        let is_free = |number: &u16| !self.pending.contains_key(&(line, *number));
        let Some(number) = (0..8).map(|_| random()).find(is_free) else {
            return self.fail(&question);
        };
        let sent = send(socket, &question.asked.numbered(number), SendFlags::NOSIGNAL);
        self.pending.insert((line, number), Pending { question, at: Instant::now(), tries });
        if let Err(error) = sent {
            self.lost(line, error);
        }
    }

    /// A random line to the resolver in use. A new one is made while there are few.
    fn line(&mut self) -> Option<usize> {
        let now = Instant::now();
        let turn = self.turn;
        let is_good = |line: &Line| line.turn == turn && now < line.until;
        let good = self.lines.iter().filter(|line| is_good(line)).count();
        if good < DNS_SOCKETS_MAX && now >= self.dials_at {
            match (self.dial)(turn, Means::Datagrams) {
                Ok(socket) => {
                    let number = self.next_line;
                    self.next_line = self.next_line.wrapping_add(1);
                    // Questions on the oldest lines have been sent again, or have failed.
                    if self.lines.len() >= 3 * DNS_SOCKETS_MAX {
                        self.lines.remove(0);
                    }
                    self.lines.push(Line { number, turn, until: now + SOCKET_LIFE, socket });
                    return Some(self.lines.len() - 1);
                }
                Err(error) => {
                    self.dials_at = now + PAUSE;
                    tracing::debug!(%error, "no socket to a resolver");
                }
            }
        }
        let which = usize::from(random()).checked_rem(good)?;
        let mut all = self.lines.iter().enumerate().filter(|(_, line)| is_good(line));
        all.nth(which).map(|(at, _)| at)
    }

    /// Reads the host's questions. The sender of such a question has the socket's own address.
    fn hear_host(&self) {
        let Some((socket, own)) = &self.host else { return };
        for _ in 0..AT_ONCE {
            let mut said = vec![0; usize::from(DNS_PAYLOAD_MAX)];
            let Ok((len, _, from)) = recvfrom(socket, &mut said, RecvFlags::DONTWAIT) else {
                return;
            };
            said.truncate(len);
            let from = from.and_then(|from| SocketAddr::try_from(from).ok());
            if let Some(from) = from.filter(|from| from.ip() == *own) {
                self.desk.host_asks(from, said);
            }
        }
    }

    /// Reads the datagrams on a line.
    fn hear(&mut self, number: u32) {
        for _ in 0..AT_ONCE {
            let Some(line) = self.lines.iter().find(|line| line.number == number) else { return };
            let turn = line.turn;
            let mut said = vec![0; usize::from(DNS_PAYLOAD_MAX) + 1];
            let len = match recv(&line.socket, &mut said, RecvFlags::DONTWAIT) {
                Ok((len, _)) => len,
                Err(Errno::AGAIN) => return,
                Err(error) => return self.lost(number, error),
            };
            said.truncate(len);
            let Some(id) = said.first_chunk().copied().map(u16::from_be_bytes) else { continue };
            let Some(pending) = self.pending.get(&(number, id)) else { continue };
            let Some(told) = pending.question.asked.answered(id, said) else { continue };
            if turn == self.turn {
                self.heard_at = Instant::now();
            }
            if let Some(Pending { question, .. }) = self.pending.remove(&(number, id)) {
                match matches!(question.back, Back::Stream(_)) && is_cut(&told) {
                    true => self.call(question, told),
                    false => self.forwarded(&question, &told),
                }
            }
        }
    }

    /// Handles an error of a line: the resolver cannot be reached, and the questions on the line count as late.
    fn lost(&mut self, number: u32, error: Errno) {
        tracing::debug!(%error, "a resolver is not there");
        let Some(line) = self.lines.iter_mut().find(|line| line.number == number) else { return };
        let now = Instant::now();
        line.until = now;
        if line.turn == self.turn {
            self.silent();
        }
        for ((line, _), pending) in &mut self.pending {
            if *line == number {
                pending.at = now.checked_sub(PATIENCE).unwrap_or(now);
            }
        }
    }

    /// The resolver does not answer: the next one is used.
    fn silent(&mut self) {
        self.turn = self.turn.wrapping_add(1);
        self.heard_at = Instant::now();
    }

    /// Sends late questions once more, and fails those that were sent twice.
    fn expire(&mut self) {
        let now = Instant::now();
        let late: Vec<_> = self
            .pending
            .iter()
            .filter(|(_, pending)| now >= pending.at + PATIENCE)
            .map(|(key, _)| *key)
            .collect();
        for key in late {
            let Some(Pending { question, at, tries }) = self.pending.remove(&key) else { continue };
            if self.heard_at <= at {
                self.silent();
            }
            match tries < TRIES {
                true => self.put(question, tries + 1),
                false => self.fail(&question),
            }
        }
        self.lines.retain(|line| now < line.until + LINGERS);
    }

    /// Asks once more, by a connection, since the resolver's datagram lacks records. If that fails,
    /// `told` gets the failure.
    fn call(&mut self, question: Question, told: Vec<u8>) {
        let own = self.calls.iter().filter(|call| call.question.from == question.from).count();
        let has_room = self.calls.len() < DNS_CALLS_MAX && own < DNS_CALLS_PER_VIF_MAX;
        let socket = has_room.then(|| (self.dial)(self.turn, Means::Stream)).and_then(Result::ok);
        let Some(socket) = socket else {
            self.desk.counters.over_rate.add((!has_room).into());
            return self.forwarded(&question, &told);
        };
        let number = random();
        let message = question.asked.numbered(number);
        let Ok(len) = u16::try_from(message.len()) else {
            return self.forwarded(&question, &told);
        };
        let left = [&len.to_be_bytes()[..], &message].concat();
        let until = Instant::now() + PATIENCE;
        self.calls.push(Call { question, told, number, socket, left, said: Vec::new(), until });
    }

    fn go_on_with_calls(&mut self) {
        let now = Instant::now();
        for mut call in std::mem::take(&mut self.calls) {
            match call.go_on() {
                Ok(None) if now < call.until => self.calls.push(call),
                Ok(Some(told)) => self.forwarded(&call.question, &told),
                Ok(None) | Err(_) => self.forwarded(&call.question, &call.told),
            }
        }
    }

    fn forwarded(&self, question: &Question, told: &[u8]) {
        self.desk.counters.dns_forwarded.add(1);
        self.tell(question, told);
    }

    fn fail(&self, question: &Question) {
        self.desk.counters.dns_failed.add(1);
        self.tell(question, &question.asked.failed());
    }

    fn tell(&self, question: &Question, said: &[u8]) {
        lock(&self.inbox).done(question.from);
        match question.back {
            Back::Datagram(way) => {
                self.desk.send(way.datagram(said).map(|frame| (question.from, frame)));
            }
            Back::Stream(stream) => self.desk.tell(stream, said.to_vec()),
        }
    }
}

fn random() -> u16 {
    let mut bytes = [0; 2];
    // Without randomness a resolver's port is still the kernel's choice.
    let _ = getrandom(&mut bytes, GetRandomFlags::empty());
    u16::from_ne_bytes(bytes)
}
