//! The part of an interface's session that lies with the keeper, for the next weir: `docs/design/restarts.md#0033`.
//!
//! Descriptors have names `INTERFACE/NUMBER`. The state lists the descriptors that count, and the
//! role of each. It is a memfd, `INTERFACE/state`, which weir writes without asking the keeper:
//!
//! ```text
//! 0        version
//! 4        what counts: half and generation; 0 for nothing
//! 8        how often in a row weir has ended with the request that is the next one
//! 64       the request under way: its generation, lengths, bytes, reply's bytes
//! 64 KiB   state, half 0: length, JSON
//! + MAX    state, half 1
//! ```
//! A half is written while it does not count. The process may die between any two writes.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use serde::{Deserialize, Serialize};
use weir_engine::lock;
use weir_fabric::Known;
use weir_foreign::Foreign;
use weir_guestmem::MappedPages;
use weir_keeper::{Keeper, Taken};
use weir_limits::{KEPT_STATE_BYTES_MAX, KEPT_TRIES_MAX};
use weir_sandbox::descriptors;

/// The version of the meaning of [`State`]'s fields. A new field has a default, which it gets if an older weir wrote
/// the state.
const VERSION: u32 = 1;

const AT_VERSION: usize = 0;
const AT_CURRENT: usize = 4;
const AT_TRIES: usize = 8;
const AT_UNDER_WAY: usize = 64;
const UNDER_WAY_BYTES: usize = (64 << 10) - AT_UNDER_WAY;
const AT_HALVES: usize = 64 << 10;
const BYTES: usize = AT_HALVES + 2 * KEPT_STATE_BYTES_MAX;

/// A session, as the next weir resumes it. Descriptors are given by the numbers in their names.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct State {
    pub(crate) connection: u32,
    pub(crate) queue_pairs: usize,
    pub(crate) features: u64,
    pub(crate) protocol_features: u64,
    pub(crate) status: u8,
    /// True if `SET_OWNER` came before the front end asked for protocol features; `None` until one
    /// of the two has come.
    pub(crate) owner_first: Option<bool>,
    /// `SET_VRING_ENDIAN`.
    pub(crate) foreign_endian: bool,
    /// The front end has stopped rings that ran, and has not reset the device since.
    pub(crate) halted: bool,
    pub(crate) mtu: Option<u16>,
    /// `SET_BACKEND_REQ_FD`.
    pub(crate) requests: Option<u32>,
    pub(crate) inflight: Option<InflightState>,
    pub(crate) log: Option<LogState>,
    /// `SET_LOG_FD`.
    pub(crate) log_call: Option<u32>,
    pub(crate) regions: Vec<RegionState>,
    pub(crate) vrings: Vec<VringState>,
}

/// The area in which a front end keeps records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InflightState {
    pub(crate) mmap_size: u64,
    pub(crate) mmap_offset: u64,
    pub(crate) num_queues: u16,
    pub(crate) queue_size: u16,
    pub(crate) file: u32,
}

/// A dirty log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LogState {
    pub(crate) size: u64,
    pub(crate) offset: u64,
    pub(crate) file: u32,
}

/// A region of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RegionState {
    pub(crate) guest_address: u64,
    pub(crate) size: u64,
    pub(crate) user_address: u64,
    pub(crate) mmap_offset: u64,
    /// The number of times that the region was added again after the first.
    pub(crate) again: u32,
    pub(crate) file: u32,
}

/// A ring.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct VringState {
    pub(crate) size: Option<u16>,
    /// Descriptor, driver and device area.
    pub(crate) addresses: Option<[u64; 3]>,
    pub(crate) base: Option<u32>,
    /// `VHOST_VRING_F_LOG`.
    pub(crate) log: Option<u64>,
    pub(crate) said: Option<u32>,
    pub(crate) stopped_at: Option<u32>,
    pub(crate) enabled: bool,
    /// The ring is in service if it has a kick.
    pub(crate) kick: Option<u32>,
    pub(crate) call: Option<u32>,
    pub(crate) err: Option<u32>,
}

/// A request that was handled, and perhaps answered and taken from the socket.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct UnderWay {
    pub(crate) message: Vec<u8>,
    /// Empty if there is no reply.
    pub(crate) reply: Vec<u8>,
    /// True if the descriptor of the area for records goes along with the reply.
    pub(crate) with_inflight: bool,
}

/// The state that another weir has left behind.
#[derive(Debug)]
pub(crate) struct LeftBehind {
    pub(crate) state: State,
    pub(crate) files: BTreeMap<u32, Arc<OwnedFd>>,
    pub(crate) under_way: Option<UnderWay>,
}

/// An interface's place with the keeper.
#[derive(Debug)]
pub struct Keep {
    keeper: Arc<Keeper>,
    name: String,
    blob: Blob,
    next: AtomicU32,
    left: Mutex<Option<LeftBehind>>,
    /// The addresses that were learned behind the interface.
    known: Vec<Known>,
    /// Set once the state that another weir has left is resumed or given up.
    settled: Arc<Settled>,
}

/// Shows when a session that another weir has left is resumed, or has ended.
#[derive(Debug, Default)]
pub struct Settled {
    is: Mutex<bool>,
    changed: Condvar,
}

impl Settled {
    fn set(&self) {
        *lock(&self.is) = true;
        self.changed.notify_all();
    }

    /// Waits until the session is resumed or has ended, for at most `patience`.
    pub fn wait(&self, patience: Duration) {
        drop(self.changed.wait_timeout_while(lock(&self.is), patience, |is| !*is));
    }
}

impl Keep {
    /// The last version of a session's state that this release knows.
    pub const VERSION: u32 = VERSION;

    /// The part of the state's name after its interface's.
    pub const STATE: &str = "state";

    /// The version of a state; `None` if `file` holds no state.
    pub fn version(file: &OwnedFd) -> Option<u32> {
        let blob = Blob::over(file.try_clone().ok()?).ok()?;
        Some(blob.word(AT_VERSION))
    }

    /// The place of the interface `name`, with its descriptors out of `taken`.
    ///
    /// # Errors
    /// There is no memory or no descriptor for the state.
    pub fn new(keeper: Arc<Keeper>, name: &str, taken: &mut Taken) -> io::Result<Self> {
        let prefix = format!("{name}/");
        let names: Vec<_> = taken.keys().filter(|key| key.starts_with(&prefix)).cloned().collect();
        let mut found = BTreeMap::new();
        let mut state_file = None;
        for key in names {
            let Some(file) = taken.remove(&key) else { continue };
            match key.strip_prefix(&prefix) {
                Some(Self::STATE) => state_file = Some(file.release()),
                number => match number.and_then(|number| number.parse::<u32>().ok()) {
                    Some(number) => drop(found.insert(number, file)),
                    None => keeper.remove(&key),
                },
            }
        }
        let next = found.keys().next_back().map_or(1, |last| last.wrapping_add(1));
        let old = state_file.and_then(|file| Blob::over(file).ok());
        let left = old.as_ref().and_then(Blob::read);
        let old = old.filter(|blob| {
            let version = blob.word(AT_VERSION);
            if version > VERSION {
                tracing::error!(
                    vif = name,
                    version,
                    known = VERSION,
                    "a later release has left this session, and this one does not know its state: its front end is \
                     disconnected"
                );
            }
            version == VERSION
        });
        let blob = match old {
            Some(blob) => blob,
            None => Blob::make()?,
        };
        let keep = Self {
            keeper,
            name: name.to_owned(),
            blob,
            next: AtomicU32::new(next),
            left: Mutex::default(),
            known: Vec::new(),
            settled: Arc::default(),
        };
        keep.keeper.store(&format!("{prefix}state"), Arc::clone(&keep.blob.file));
        match left {
            // A session without its connection had not been accepted.
            Some((state, _)) if !found.contains_key(&state.connection) => keep.start_over(&found),
            Some((state, under_way)) if keep.blob.tries() < KEPT_TRIES_MAX => {
                let shared =
                    |(number, file): (u32, Foreign<OwnedFd>)| (number, Arc::new(file.release()));
                let files: BTreeMap<_, _> = found.into_iter().map(shared).collect();
                for (number, file) in &files {
                    keep.keeper.adopt(&keep.name_of(*number), Arc::clone(file));
                }
                *lock(&keep.left) = Some(LeftBehind { state, files, under_way });
            }
            other => {
                if other.is_some() {
                    tracing::warn!(
                        vif = name,
                        "weir has ended again and again with this front end's request: it is not taken up again"
                    );
                }
                keep.start_over(&found);
            }
        }
        if lock(&keep.left).is_none() {
            keep.settled.set();
        }
        Ok(keep)
    }

    /// The means to wait until the session that another weir has left is resumed, or has ended.
    pub fn settled(&self) -> Arc<Settled> {
        Arc::clone(&self.settled)
    }

    pub(crate) fn settle(&self) {
        self.settled.set();
    }

    /// Discards all descriptors that were found.
    fn start_over(&self, found: &BTreeMap<u32, Foreign<OwnedFd>>) {
        self.blob.invalidate();
        self.blob.set_tries(0);
        found.keys().for_each(|number| self.keeper.remove(&self.name_of(*number)));
    }

    /// Adds the addresses that were learned behind the interface: a resumed session knows them.
    pub fn with_known(self, known: Vec<Known>) -> Self {
        Self { known, ..self }
    }

    pub(crate) fn known(&self) -> &[Known] {
        &self.known
    }

    /// Removes the place of an interface that was removed, and has no session any more.
    pub fn forget(keeper: &Keeper, name: &str) {
        keeper.remove(&format!("{name}/state"));
    }

    /// The connection that another weir has left behind.
    pub(crate) fn connection(&self) -> Option<UnixStream> {
        let left = lock(&self.left);
        let left = left.as_ref()?;
        let connection = left.files.get(&left.state.connection)?.try_clone().ok()?;
        Some(UnixStream::from(connection))
    }

    /// The state that belongs to that connection.
    pub(crate) fn take_left(&self) -> Option<LeftBehind> {
        lock(&self.left).take()
    }

    pub(crate) fn blob(&self) -> &Blob {
        &self.blob
    }

    fn name_of(&self, number: u32) -> String {
        format!("{}/{number}", self.name)
    }

    /// Prepares for a front end that is about to be accepted. From now on, the kept state is a session without any
    /// request, whose connection will have the returned number.
    pub(crate) fn expect(&self, queue_pairs: usize) -> u32 {
        drop(self.take_left());
        let connection = self.next.fetch_add(1, Ordering::Relaxed);
        let vrings = vec![VringState::default(); 2 * queue_pairs];
        let state = State { connection, queue_pairs, vrings, ..State::default() };
        self.blob.set_tries(0);
        self.blob.store(Some(&state), None);
        connection
    }

    /// Keeps the connection that was accepted.
    pub(crate) fn met(&self, connection: u32, stream: &UnixStream) {
        if let Some(stream) = stream.try_clone().ok().and_then(|it| descriptors::for_guest(it).ok())
        {
            self.keeper.store(&self.name_of(connection), Arc::new(stream.into()));
        }
    }

    /// Notes that no front end came.
    pub(crate) fn expect_no_more(&self) {
        self.blob.invalidate();
    }

    /// Keeps a descriptor and returns its number.
    pub(crate) fn store(&self, descriptor: OwnedFd) -> u32 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.keeper.store(&self.name_of(number), Arc::new(descriptor));
        number
    }

    /// A copy of a descriptor that is kept.
    pub(crate) fn copy(&self, number: u32) -> Option<OwnedFd> {
        self.keeper.copy(&self.name_of(number))
    }

    /// The number of the interface's descriptors that are not kept any more and not closed yet.
    pub(crate) fn unclosed(&self) -> usize {
        self.keeper.unclosed(&self.name)
    }

    /// Stops keeping the descriptor.
    pub(crate) fn remove(&self, number: u32) {
        self.keeper.remove(&self.name_of(number));
    }
}

/// The state of a session in shared memory, which outlives weir.
#[derive(Debug)]
pub(crate) struct Blob {
    file: Arc<OwnedFd>,
    pages: Pages,
    /// The half and generation that were stored last.
    last: Mutex<(u32, u32)>,
}

struct Pages(MappedPages);

impl std::fmt::Debug for Pages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pages").finish_non_exhaustive()
    }
}

/// The seals keep everybody from making the file shorter: a shorter file would end weir by SIGBUS.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

impl Blob {
    pub(crate) fn make() -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("weir-state", flags)?;
        ftruncate(&file, BYTES as u64)?;
        fcntl_add_seals(&file, SEALS | SealFlags::SEAL)?;
        let blob = Self::over(file)?;
        blob.pages.0.store_release(AT_VERSION, VERSION);
        Ok(blob)
    }

    pub(crate) fn over(file: OwnedFd) -> io::Result<Self> {
        let fits = fstat(&file)?.st_size == BYTES as i64;
        if !fits || !fcntl_get_seals(&file)?.contains(SEALS) {
            return Err(io::Error::other("this is no state of weir's"));
        }
        let pages = Pages(MappedPages::map(file.as_fd(), 0, BYTES)?);
        let current = pages.0.load_acquire(AT_CURRENT);
        let last = Mutex::new((current >> 31, current & GENERATION));
        Ok(Self { file: Arc::new(file), pages, last })
    }

    /// A descriptor of the file.
    #[cfg(test)]
    pub(crate) fn file(&self) -> OwnedFd {
        self.file.try_clone().unwrap()
    }

    fn word(&self, at: usize) -> u32 {
        self.pages.0.load_acquire(at)
    }

    /// `len` bytes at `at`; `None` beyond the end.
    fn bytes(&self, at: usize, len: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; len];
        let slice = self.pages.0.slice(at, len)?;
        (slice.read(&mut bytes) == len).then_some(bytes)
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        if let Some(slice) = self.pages.0.slice(at, bytes.len()) {
            slice.write(bytes);
        }
    }

    /// The stored state, and the request that was under way when it was stored.
    pub(crate) fn read(&self) -> Option<(State, Option<UnderWay>)> {
        let current = self.word(AT_CURRENT);
        if self.word(AT_VERSION) != VERSION || current & GENERATION == 0 {
            return None;
        }
        let at = half_at(current >> 31);
        let len = usize::try_from(self.word(at)).ok().filter(|len| *len <= STATE_LEN_MAX)?;
        let state = serde_json::from_slice(&self.bytes(at + 4, len)?).ok()?;
        let counts = self.word(AT_UNDER_WAY) == current & GENERATION;
        Some((state, counts.then(|| self.under_way()).flatten()))
    }

    fn under_way(&self) -> Option<UnderWay> {
        let [message, reply, with_inflight] =
            [4, 8, 12].map(|at| self.word(AT_UNDER_WAY + at) as usize);
        if message > UNDER_WAY_BYTES || reply > UNDER_WAY_BYTES {
            return None;
        }
        let at = AT_UNDER_WAY + 16;
        Some(UnderWay {
            message: self.bytes(at, message)?,
            reply: self.bytes(at + message, reply)?,
            with_inflight: with_inflight != 0,
        })
    }

    /// Makes `state` the valid state, together with a request that is under way. Without `state`, the state that was
    /// stored last stays valid. `false` if the state or the request is too large: the caller then
    /// [invalidates](Self::invalidate) the state.
    pub(crate) fn store(&self, state: Option<&State>, under_way: Option<&UnderWay>) -> bool {
        let mut last = lock(&self.last);
        let (mut half, generation) = *last;
        let generation = generation % GENERATION + 1;
        if let Some(state) = state {
            half ^= 1;
            let bytes = serde_json::to_vec(state).unwrap_or_default();
            if bytes.is_empty() || bytes.len() > STATE_LEN_MAX {
                return false;
            }
            let at = half_at(half);
            self.write(at + 4, &bytes);
            self.pages.0.store_release(at, bytes.len() as u32);
        }
        // An old request could have this generation.
        self.pages.0.store_release(AT_UNDER_WAY, 0);
        if let Some(UnderWay { message, reply, with_inflight }) = under_way {
            if message.len() + reply.len() + 16 > UNDER_WAY_BYTES {
                return false;
            }
            self.write(AT_UNDER_WAY + 16, &[&message[..], reply].concat());
            let head =
                [generation, message.len() as u32, reply.len() as u32, u32::from(*with_inflight)];
            for (at, word) in (AT_UNDER_WAY..).step_by(4).zip(head) {
                self.pages.0.store_release(at, word);
            }
        }
        *last = (half, generation);
        self.pages.0.store_release(AT_CURRENT, half << 31 | generation);
        true
    }

    /// Makes no state valid.
    pub(crate) fn invalidate(&self) {
        self.pages.0.store_release(AT_CURRENT, 0);
    }

    /// The number of times in a row that weir has ended with the request that is now the next one.
    pub(crate) fn tries(&self) -> u32 {
        self.word(AT_TRIES)
    }

    pub(crate) fn set_tries(&self, tries: u32) {
        self.pages.0.store_release(AT_TRIES, tries);
    }
}

const GENERATION: u32 = (1 << 31) - 1;
const STATE_LEN_MAX: usize = KEPT_STATE_BYTES_MAX - 4;

fn half_at(half: u32) -> usize {
    AT_HALVES + half as usize * KEPT_STATE_BYTES_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    fn again(blob: &Blob) -> Blob {
        Blob::over(blob.file.try_clone().unwrap()).unwrap()
    }

    #[test]
    fn what_is_stored_is_read_with_the_request_that_was_under_way_then() {
        let blob = Blob::make().unwrap();
        assert_eq!(again(&blob).read(), None);
        let state = |features| State { features, ..State::default() };
        let request = |byte: u8| UnderWay {
            message: vec![byte; 12],
            reply: vec![byte; 20],
            with_inflight: byte == 2,
        };
        assert!(blob.store(Some(&state(1)), None));
        assert_eq!(again(&blob).read(), Some((state(1), None)));
        assert!(blob.store(Some(&state(2)), Some(&request(2))));
        assert_eq!(again(&blob).read(), Some((state(2), Some(request(2)))));
        // The request is settled.
        assert!(blob.store(None, None));
        assert_eq!(again(&blob).read(), Some((state(2), None)));
        assert!(blob.store(None, Some(&request(3))));
        // Another process continues at this point.
        let next = again(&blob);
        assert_eq!(next.read(), Some((state(2), Some(request(3)))));
        assert!(next.store(None, None) && next.store(Some(&state(4)), None));
        assert_eq!(again(&blob).read(), Some((state(4), None)));
        next.invalidate();
        assert_eq!(again(&blob).read(), None);
        assert!(next.store(None, None));
        assert_eq!(again(&blob).read(), Some((state(4), None)));
    }

    #[test]
    fn the_largest_table_of_memory_and_all_rings_fit() {
        let region = RegionState {
            guest_address: u64::MAX,
            size: u64::MAX,
            user_address: u64::MAX,
            mmap_offset: u64::MAX,
            again: u32::MAX,
            file: u32::MAX,
        };
        let number = Some(u32::MAX);
        let vring = VringState {
            size: Some(u16::MAX),
            addresses: Some([u64::MAX; 3]),
            base: number,
            log: Some(u64::MAX),
            said: number,
            stopped_at: number,
            enabled: false,
            kick: number,
            call: number,
            err: number,
        };
        let state = State {
            regions: vec![region; weir_limits::MEM_SLOTS_MAX],
            vrings: vec![vring; weir_limits::VRINGS_MAX],
            ..State::default()
        };
        let blob = Blob::make().unwrap();
        assert!(blob.store(Some(&state), None));
        assert_eq!(again(&blob).read(), Some((state.clone(), None)));
        let regions = [&state.regions[..], &state.regions[..]].concat();
        assert!(!blob.store(Some(&State { regions, ..state }), None), "and no more than that");
    }

    #[test]
    fn a_file_that_could_become_shorter_is_no_state() {
        let file = memfd_create("state", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, BYTES as u64).unwrap();
        assert!(Blob::over(file).is_err());
    }

    /// A state as 0.1.0 writes it: the next release reads it.
    #[test]
    fn a_state_that_this_release_wrote_is_read() {
        let recorded = include_str!("keep/state-0.1.0.json");
        let state: State = serde_json::from_str(recorded).unwrap();
        assert_eq!((state.vrings.len(), state.vrings[1].kick), (2, Some(9)));
        assert_eq!(state.regions[0].file, 4);
        assert_eq!((state.log.unwrap().file, state.log_call), (11, Some(12)));
        assert_eq!(state.vrings[1].log, Some(12288));
        // A field that a later release adds has a default.
        assert_eq!(serde_json::from_str::<State>("{}").unwrap(), State::default());
    }
}
