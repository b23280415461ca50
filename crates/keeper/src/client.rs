//! weir's side. weir holds all kept descriptors too, so that a new keeper gets all of them.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::net::{Shutdown, SocketType, shutdown};
use weir_limits::{
    KEEPER_BUSY_NS, KEEPER_PATIENCE_NS, KEEPER_PAUSE_NS_MAX, KEEPER_PAUSE_NS_MIN, KEEPER_START_NS,
};

use weir_foreign::place::Links;
use weir_foreign::{Foreign, Party, reach};

use crate::serve::owner_of;
use crate::wire::{Received, Word, is_name, receive, send};

const PATIENCE: Duration = Duration::from_nanos(KEEPER_PATIENCE_NS);
const START: Duration = Duration::from_nanos(KEEPER_START_NS);
const BUSY: Duration = Duration::from_nanos(KEEPER_BUSY_NS);
const PAUSE_MIN: Duration = Duration::from_nanos(KEEPER_PAUSE_NS_MIN);
const PAUSE_MAX: Duration = Duration::from_nanos(KEEPER_PAUSE_NS_MAX);

/// Connects to the keeper: [`connect`], or another process if this one is not allowed to.
pub type Dial = Box<dyn Fn() -> io::Result<OwnedFd> + Send + Sync>;

/// The descriptors that the keeper had, by name. Their owner's closer closes those that nobody releases.
pub type Taken = BTreeMap<String, Foreign<OwnedFd>>;

/// Connects to the keeper that listens at `path`, without waiting.
///
/// # Errors
/// The errors of [`reach::connect`]: nobody listens there, or the process that does is not allowed to.
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let party = Party::new("a keeper");
    reach::connect_as(SocketType::SEQPACKET, Links::Own, path, &party, |_| false)
        .map(Foreign::release)
}

/// The keeper, as weir uses it. Dropping it leaves the kept descriptors behind.
#[derive(Debug)]
pub struct Keeper {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    dial: Dial,
    state: Mutex<State>,
    stop: AtomicBool,
    /// The eventfd is written to when there is something to do.
    bell: OwnedFd,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("state", &self.state).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct State {
    /// `Some` as long as the keeper runs.
    link: Option<Arc<Link>>,
    /// The only name of which the keeper still hears, since weir [ends](Keeper::end).
    ends_with: Option<String>,
    held: BTreeMap<String, Arc<OwnedFd>>,
    /// The party at whose expense each owner's descriptors are closed.
    parties: BTreeMap<String, Party>,
}

/// The connection to a keeper.
#[derive(Debug)]
struct Link {
    socket: OwnedFd,
    /// The keeper knows [`Word::RemoveOthers`].
    removes_others: bool,
}

impl State {
    /// True if the keeper is to hear of this name.
    fn tells(&self, name: &str) -> bool {
        self.ends_with.as_ref().is_none_or(|kept| kept == name)
    }

    fn party(&mut self, name: &str) -> &Party {
        self.parties.retain(|_, party| !party.is_forgotten());
        let owner = owner_of(name);
        self.parties.entry(owner.to_owned()).or_insert_with(|| Party::new(owner))
    }
}

impl Keeper {
    /// Takes everything that the keeper has. Without a keeper weir continues, and [`start`](Self::start)s to look for
    /// one.
    ///
    /// # Errors
    /// [`io::ErrorKind::ResourceBusy`]: the keeper serves another weir. A keeper exists but cannot be reached, or does
    /// not list its descriptors in time: they may belong to rules without which weir must not run. Or no descriptor is
    /// left.
    pub fn take(dial: Dial) -> io::Result<(Self, Taken)> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (link, taken) = match dial() {
            Ok(link) => {
                let (link, taken) = ask(link, &[Word::Take], START)?;
                (Some(Arc::new(link)), taken)
            }
            Err(error) if is_nobody(&error) => {
                tracing::warn!(%error, "no keeper yet: nothing is kept until it is there");
                (None, Taken::new())
            }
            Err(error) => return Err(error),
        };
        let state = Mutex::new(State { link, ..State::default() });
        let shared = Shared { dial, state, stop: AtomicBool::new(false), bell };
        Ok((Self { shared: Arc::new(shared), thread: Mutex::default() }, taken))
    }

    /// Looks at everything that the keeper has while another weir, to which it belongs, runs until
    /// [`take_over`](Self::take_over).
    ///
    /// # Errors
    /// There is no keeper, it does not answer, or no descriptor is left.
    pub fn look(dial: Dial) -> io::Result<(Self, Taken)> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (_, seen) = ask(dial()?, &[Word::Look], START)?;
        let state = Mutex::default();
        let shared = Shared { dial, state, stop: AtomicBool::new(false), bell };
        Ok((Self { shared: Arc::new(shared), thread: Mutex::default() }, seen))
    }

    /// Takes everything that the keeper has, once the other weir has ended.
    ///
    /// # Errors
    /// The keeper does not run, or the other weir still does.
    pub fn take_over(&self) -> io::Result<Taken> {
        let (link, taken) = ask((self.shared.dial)()?, &[Word::Take], START)?;
        lock(&self.shared.state).link = Some(Arc::new(link));
        Ok(taken)
    }

    /// Starts the thread that looks for a keeper if there is none.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(&self) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name("weir-keeper".into());
        let thread = thread.spawn(move || shared.run())?;
        *lock(&self.thread) = Some(thread);
        Ok(())
    }

    /// True if there is a keeper.
    pub fn is_there(&self) -> bool {
        lock(&self.shared.state).link.is_some()
    }

    /// Gives `descriptor` to the keeper under this name, in place of an earlier one. The keeper's
    /// copy then outlives weir.
    pub fn store(&self, name: &str, descriptor: Arc<OwnedFd>) {
        debug_assert!(is_name(name), "{name:?}");
        let mut state = lock(&self.shared.state);
        if let Some(replaced) = state.held.insert(name.to_owned(), Arc::clone(&descriptor)) {
            state.party(name).close(replaced);
        }
        if state.tells(name) {
            self.shared.say(&mut state, &Word::Store(name.to_owned()), Some(&descriptor));
        }
    }

    /// Continues to keep a descriptor that was [taken](Self::take), and that the keeper has.
    pub fn adopt(&self, name: &str, descriptor: Arc<OwnedFd>) {
        lock(&self.shared.state).held.insert(name.to_owned(), descriptor);
    }

    /// A copy of the descriptor that is kept under this name.
    pub fn copy(&self, name: &str) -> Option<OwnedFd> {
        lock(&self.shared.state).held.get(name)?.try_clone().ok()
    }

    /// The number of an owner's descriptors that are not kept any more and not closed yet.
    pub fn unclosed(&self, owner: &str) -> usize {
        lock(&self.shared.state).parties.get(owner).map_or(0, Party::open)
    }

    /// Removes the descriptor that is kept under this name.
    pub fn remove(&self, name: &str) {
        let mut state = lock(&self.shared.state);
        let removed = state.held.remove(name);
        if state.tells(name) {
            self.shared.say(&mut state, &Word::Remove(name.to_owned()), None);
        }
        if let Some(removed) = removed {
            state.party(name).close(removed);
        }
    }
}

impl Keeper {
    /// Removes everything from the keeper but the descriptor under the name `kept`, by one word for all: a thousand
    /// sessions have thousands of descriptors, and weir ends in two seconds. From now on the keeper hears of no other
    /// name. An old keeper, which knows no such word, hears of each name that is removed.
    pub fn end(&self, kept: &str) {
        let mut state = lock(&self.shared.state);
        if state.link.as_ref().is_none_or(|link| link.removes_others) {
            state.ends_with = Some(kept.to_owned());
            self.shared.say(&mut state, &Word::RemoveOthers(kept.to_owned()), None);
        }
    }

    /// Leaves everything to the next weir. Later words do not reach the keeper. `false`: there was no keeper.
    pub fn leave(&self) -> bool {
        self.end_thread();
        lock(&self.shared.state).link.take().is_some()
    }

    fn end_thread(&self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.ring();
        if let Some(thread) = lock(&self.thread).take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.end_thread();
    }
}

impl Shared {
    fn ring(&self) {
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// Sends a word to the keeper; one that does not read counts as ended.
    fn say(&self, state: &mut State, word: &Word, descriptor: Option<&OwnedFd>) {
        let Some(link) = &state.link else { return };
        if let Err(error) = say(link, word, descriptor) {
            tracing::warn!(%error, "the keeper is gone: nothing is kept until it is there again");
            let _ = shutdown(&link.socket, Shutdown::Both);
            state.link = None;
            self.ring();
        }
    }

    fn run(&self) {
        let (mut pause, mut said) = (PAUSE_MIN, false);
        while !self.stop.load(Ordering::SeqCst) {
            let link = lock(&self.state).link.clone();
            match link {
                Some(link) => {
                    self.watch(&link);
                    (pause, said) = (PAUSE_MIN, false);
                }
                None => {
                    wait(&mut [PollFd::new(&self.bell, PollFlags::IN)], Some(pause));
                    pause = (2 * pause).min(PAUSE_MAX);
                    if let Err(error) = self.look_for_one() {
                        match said || is_nobody(&error) {
                            true => tracing::debug!(%error, "no keeper yet"),
                            false => tracing::warn!(%error, "no keeper for this weir"),
                        }
                        said |= !is_nobody(&error);
                    }
                }
            }
            let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        }
    }

    /// Waits until the keeper has ended, or the bell rings.
    fn watch(&self, link: &Arc<Link>) {
        let bell = PollFd::new(&self.bell, PollFlags::IN);
        let mut fds = [PollFd::new(&link.socket, PollFlags::IN), bell];
        wait(&mut fds, None);
        if fds[0].revents().is_empty() {
            return;
        }
        let mut state = lock(&self.state);
        if state.link.as_ref().is_some_and(|current| Arc::ptr_eq(current, link)) {
            tracing::warn!("the keeper has ended: nothing is kept until it is there again");
            state.link = None;
        }
    }

    /// Tries once to reach a keeper. Descriptors of a keeper that did not run at the start are no longer weir's.
    fn look_for_one(&self) -> io::Result<()> {
        if self.stop.load(Ordering::SeqCst) {
            return Ok(());
        }
        let (link, stale) = ask((self.dial)()?, &[Word::Return, Word::Take], PATIENCE)?;
        let link = Arc::new(link);
        let mut state = lock(&self.state);
        state.link = Some(Arc::clone(&link));
        let lasts = |name: &String| state.held.contains_key(name) && state.tells(name);
        for name in stale.keys().filter(|name| !lasts(name)) {
            if say(&link, &Word::Remove(name.clone()), None).is_err() {
                break;
            }
        }
        let told = state.held.iter().filter(|(name, _)| state.tells(name)).try_for_each(
            |(name, descriptor)| say(&link, &Word::Store(name.clone()), Some(descriptor)),
        );
        match told {
            Ok(()) => tracing::info!(descriptors = state.held.len(), "a keeper is there"),
            Err(error) => {
                tracing::warn!(%error, "a keeper is there that takes nothing");
                state.link = None;
            }
        }
        drop(state);
        drop(stale);
        Ok(())
    }
}

/// True if an error means that there is no keeper.
fn is_nobody(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

/// Sends a word, and waits for a while if the keeper has much to read.
fn say(link: &Link, word: &Word, descriptor: Option<&OwnedFd>) -> io::Result<()> {
    let link = &link.socket;
    let end = std::time::Instant::now() + PATIENCE;
    loop {
        let error = match send(link, word, descriptor.map(AsFd::as_fd)) {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        let errno = rustix::io::Errno::from_io_error(&error);
        // `TOOMANYREFS` means that as many descriptors are in flight as are allowed.
        let full = matches!(errno, Some(rustix::io::Errno::AGAIN | rustix::io::Errno::TOOMANYREFS));
        let left = end.saturating_duration_since(std::time::Instant::now());
        if !full || left.is_zero() {
            return Err(error);
        }
        let step = left.min(Duration::from_millis(1));
        wait(&mut [PollFd::new(link, PollFlags::empty())], Some(step));
    }
}

/// Asks for all there is. A keeper that says nothing for `patience` does not answer. A keeper that
/// serves another weir gets less time: that weir may have been killed, and may be about to end.
fn ask(socket: OwnedFd, words: &[Word], patience: Duration) -> io::Result<(Link, Taken)> {
    let mut link = Link { socket, removes_others: false };
    let socket = &link.socket;
    send(socket, &Word::Process(std::process::id()), None)?;
    words.iter().try_for_each(|word| send(socket, word, None))?;
    let (mut taken, mut other) = (Taken::new(), None);
    let mut parties = BTreeMap::new();
    loop {
        let patience = other.map_or(patience, |_| patience.min(BUSY));
        reach::await_readable(&link.socket, patience).map_err(|error| {
            match (error.kind(), other) {
                (io::ErrorKind::TimedOut, Some(process)) => used_by(process),
                (kind @ io::ErrorKind::TimedOut, None) => {
                    io::Error::new(kind, "the keeper does not answer")
                }
                _ => error,
            }
        })?;
        match receive(&link.socket)? {
            Received::Word(Word::Given(name), Some(descriptor)) => {
                let party = parties.entry(owner_of(&name).to_owned());
                let party = party.or_insert_with_key(|owner| Party::new(owner.as_str()));
                let descriptor = Foreign::new(descriptor, party);
                taken.insert(name, descriptor);
            }
            Received::Word(Word::RemovesOthers, _) => link.removes_others = true,
            Received::Word(Word::Ready, _) => return Ok((link, taken)),
            Received::Word(Word::Busy(process), _) => other = Some(process),
            Received::End => {
                return Err(other.map_or_else(|| io::ErrorKind::UnexpectedEof.into(), used_by));
            }
            Received::Word(..) | Received::Unknown | Received::Nothing => {}
        }
    }
}

fn used_by(process: u32) -> io::Error {
    let message = format!("another weir (process {process}) uses this keeper");
    io::Error::new(io::ErrorKind::ResourceBusy, message)
}

fn wait(fds: &mut [PollFd<'_>], at_most: Option<Duration>) {
    let timeout = at_most.and_then(|time| time.try_into().ok());
    // EINTR only means one more turn of the loop.
    let _ = poll(fds, timeout.as_ref());
}

/// A panic under the lock leaves nothing half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}
