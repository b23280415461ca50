//! The thread that asks the host's resolver for guests of one network.
//!
//! Its sockets are connected to the resolver, by somebody else, so that nobody but the resolver can be reached and nobody
//! else's datagrams come. There are a few of them, each with a port that the kernel has chosen, and none is used for long.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::rand::{GetRandomFlags, getrandom};
use weir_engine::{beat, lock, supervise};
use weir_fabric::PortId;
use weir_limits::{
    DNS_ASKED_MAX, DNS_ASKED_PER_VIF_MAX, DNS_PAYLOAD_MAX, DNS_SOCKET_SECS, DNS_SOCKETS_MAX,
    DNS_TIMEOUT_SECS,
};

use crate::desk::Desk;
use crate::frame::Way;
use crate::names::Asked;

#[cfg(test)]
mod tests;

/// Makes a socket that does not block, connected to one of the host's resolvers: to the next one of them for each number.
pub type Dial = Box<dyn FnMut(u32) -> io::Result<OwnedFd> + Send>;

const PATIENCE: Duration = Duration::from_secs(DNS_TIMEOUT_SECS);
const SOCKET_LIFE: Duration = Duration::from_secs(DNS_SOCKET_SECS);
/// Each question is put twice, the second time to another resolver, if there is one.
const TRIES: u8 = 2;
/// After no socket could be had, and between two looks for questions that have waited for too long.
const PAUSE: Duration = Duration::from_millis(500);
/// How long a socket that nothing is sent by is listened to.
const LINGERS: Duration = Duration::from_secs(2 * DNS_TIMEOUT_SECS);
/// Datagrams of one socket in a row.
const AT_ONCE: usize = 32;

/// A guest's question.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) from: PortId,
    pub(crate) asked: Asked,
    /// How the answer gets there.
    pub(crate) way: Way,
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

/// Asks the resolver. Dropped, it ends.
pub(crate) struct Forwarder {
    inbox: Arc<Mutex<Inbox>>,
    bell: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Forwarder {
    /// Begins to ask by what `dial` makes; answers go to `desk`.
    ///
    /// # Errors
    /// There is no thread, or no descriptor.
    pub(crate) fn start(desk: Arc<Desk>, dial: Dial) -> io::Result<Self> {
        let inbox = Arc::<Mutex<Inbox>>::default();
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let heard = bell.try_clone()?;
        let mut asking = Asking {
            inbox: Arc::clone(&inbox),
            heard,
            desk,
            dial,
            lines: Vec::new(),
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

    /// Takes a question, if the guest has few under way.
    pub(crate) fn take(&self, question: Question) -> bool {
        let mut inbox = lock(&self.inbox);
        let inbox = &mut *inbox;
        let of = inbox.of.entry(question.from).or_default();
        // Others leave room for the first one of each.
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
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A socket that is connected to a resolver.
struct Line {
    number: u32,
    /// Which resolver.
    turn: u32,
    until: Instant,
    socket: OwnedFd,
}

/// A question that has been put.
struct Pending {
    question: Question,
    at: Instant,
    tries: u8,
}

/// What the thread has.
struct Asking {
    inbox: Arc<Mutex<Inbox>>,
    heard: OwnedFd,
    desk: Arc<Desk>,
    dial: Dial,
    lines: Vec<Line>,
    /// By line and number.
    pending: HashMap<(u32, u16), Pending>,
    next_line: u32,
    /// Which resolver is asked: the next one after one has been silent.
    turn: u32,
    heard_at: Instant,
    /// When a socket may be asked for again.
    dials_at: Instant,
    /// When it is looked for what is late.
    expires_at: Instant,
}

impl Asking {
    fn run(&mut self) {
        loop {
            let readable = beat::wait(|| self.wait());
            let _ = rustix::io::read(&self.heard, &mut [0; 8]);
            let new = {
                let mut inbox = lock(&self.inbox);
                if inbox.ends {
                    return;
                }
                std::mem::take(&mut inbox.waiting)
            };
            for number in readable {
                self.hear(number);
            }
            for question in new {
                self.put(question, 1);
            }
            if Instant::now() >= self.expires_at {
                self.expire();
                self.expires_at = Instant::now() + PAUSE;
            }
        }
    }

    /// Waits for questions and answers, or until something is to be looked at; says on which lines there are answers.
    fn wait(&self) -> Vec<u32> {
        let ends = self.lines.iter().map(|line| line.until + LINGERS).min();
        let end = if self.pending.is_empty() { ends } else { Some(self.expires_at) };
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left + Duration::from_millis(1)).ok());
        let all = [self.heard.as_fd()].into_iter();
        let all = all.chain(self.lines.iter().map(|line| line.socket.as_fd()));
        let mut all: Vec<_> = all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        if poll(&mut all, left.as_ref()).is_err() {
            return Vec::new();
        }
        let lines = self.lines.iter().zip(all.iter().skip(1));
        lines.filter(|(_, fd)| !fd.revents().is_empty()).map(|(line, _)| line.number).collect()
    }

    /// Puts a question, or says that it has failed.
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

    /// Which line to take to the resolver whose turn it is, any of them.
    fn line(&mut self) -> Option<usize> {
        let now = Instant::now();
        let turn = self.turn;
        let is_good = |line: &Line| line.turn == turn && now < line.until;
        let good = self.lines.iter().filter(|line| is_good(line)).count();
        if good < DNS_SOCKETS_MAX && now >= self.dials_at {
            match (self.dial)(turn) {
                Ok(socket) => {
                    let number = self.next_line;
                    self.next_line = self.next_line.wrapping_add(1);
                    // Questions on the oldest ones have been put again, or given up.
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

    /// Takes what has come on a line.
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
                self.desk.counters.dns_forwarded.add(1);
                self.tell(&question, &told);
            }
        }
    }

    /// The resolver cannot be reached by a line: its questions are late.
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

    /// The resolver does not answer: it is another one's turn.
    fn silent(&mut self) {
        self.turn = self.turn.wrapping_add(1);
        self.heard_at = Instant::now();
    }

    /// Puts questions that were not answered in time once more, and gives up others.
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

    fn fail(&self, question: &Question) {
        self.desk.counters.dns_failed.add(1);
        self.tell(question, &question.asked.failed());
    }

    fn tell(&self, question: &Question, said: &[u8]) {
        lock(&self.inbox).done(question.from);
        self.desk.send(question.way.datagram(said).map(|frame| (question.from, frame)));
    }
}

fn random() -> u16 {
    let mut bytes = [0; 2];
    // Without randomness a resolver's port is still the kernel's choice.
    let _ = getrandom(&mut bytes, GetRandomFlags::empty());
    u16::from_ne_bytes(bytes)
}
