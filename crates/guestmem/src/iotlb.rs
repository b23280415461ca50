//! The translations of a virtual IOMMU that a front end has told (vhost-user, "IOMMU support"), and the questions about
//! those that are missing. See `docs/design/front-ends.md#0067`.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use weir_limits::{IOTLB_ASK_AGAIN_NS, IOTLB_ASKS_MAX, IOTLB_ENTRIES_MAX, IOTLB_PIECES_MAX};

use crate::regions::{GuestMemory, Index, Piece, Translation};

/// Bytes of a page: questions are about whole pages.
const PAGE_BYTES: u64 = 0x1000;

/// An access of a device to memory. The value is its bit in a permission (vhost's `VHOST_ACCESS_RO`, `WO`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Access {
    /// The device reads.
    Read = 1,
    /// The device writes.
    Write = 2,
}

/// Both permissions.
const READ_WRITE: u8 = Access::Read as u8 | Access::Write as u8;

/// The fault of a message about translations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IotlbError {
    /// There are no bytes.
    #[error("the translation of I/O address {iova:#x} is empty")]
    Empty {
        /// I/O virtual address.
        iova: u64,
    },
    /// An address plus the size does not fit in 64 bits.
    #[error("the translation of {size:#x} bytes at I/O address {iova:#x} ends beyond 2^64")]
    Wraps {
        /// I/O virtual address.
        iova: u64,
        /// Bytes.
        size: u64,
    },
    /// A permission that does not exist.
    #[error("permission {0} of a translation is none of 1 (read), 2 (write), and 3 (both)")]
    Permission(u8),
    /// The bytes are not in one region of the front end's memory.
    #[error(
        "the translation of {size:#x} bytes at I/O address {iova:#x} to {user:#x} is not in one shared region"
    )]
    NotShared {
        /// I/O virtual address.
        iova: u64,
        /// Bytes.
        size: u64,
        /// Address in the front end's process.
        user: u64,
    },
    /// The message is of a type that a front end does not send.
    #[error("{0} is not the type of a message about translations from a front end")]
    Type(u8),
}

/// An entry as a front end sends it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Update {
    /// First I/O virtual address.
    pub iova: u64,
    /// Bytes.
    pub size: u64,
    /// Address of the first byte in the front end's own process.
    pub user: u64,
    /// Bits of [`Access`].
    pub permission: u8,
}

#[derive(Clone, Copy)]
struct Entry {
    /// The last address.
    last: u64,
    user: u64,
    permission: u8,
    /// In the memory of the [`Iotlb`].
    place: Translation,
    /// Entries are numbered in the order in which they came.
    number: u64,
}

/// The result of a look-up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lookup {
    /// The places of all bytes in the front end's process, in as few pieces as possible.
    At(Vec<Piece>),
    /// Some bytes have no translation that permits the access.
    Missing,
    /// The bytes are in more than [`IOTLB_PIECES_MAX`] pieces.
    Scattered,
    /// The bytes go on beyond the last of all addresses.
    Beyond,
}

/// The translations of one session, at most [`IOTLB_ENTRIES_MAX`]: beyond these, the oldest are forgotten.
#[derive(Default)]
pub struct Iotlb {
    memory: GuestMemory,
    /// The entries, by their first addresses. They do not overlap.
    entries: BTreeMap<u64, Entry>,
    /// The first addresses by the entries' numbers.
    order: BTreeMap<u64, u64>,
    next: u64,
}

/// The effect of an [`Update`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Updated {
    /// The entry was there already.
    Same,
    /// The entry is new.
    Added,
    /// The entry replaces others, which may still be in use.
    Replaced,
}

impl Iotlb {
    /// Returns an empty set of translations to places in `memory`.
    pub fn new(memory: GuestMemory) -> Self {
        Self { memory, ..Self::default() }
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds an entry. Entries that it overlaps are forgotten, whole.
    ///
    /// # Errors
    /// The entry is not valid. Nothing has changed then.
    pub fn update(&mut self, update: Update) -> Result<Updated, IotlbError> {
        let Update { iova, size, user, permission } = update;
        if size == 0 {
            return Err(IotlbError::Empty { iova });
        }
        if !(1..=READ_WRITE).contains(&permission) {
            return Err(IotlbError::Permission(permission));
        }
        let (Some(last), Some(_)) = (iova.checked_add(size - 1), user.checked_add(size - 1)) else {
            return Err(IotlbError::Wraps { iova, size });
        };
        let Some(place) = self.memory.translation(iova, user, size) else {
            return Err(IotlbError::NotShared { iova, size, user });
        };
        let same = |it: &Entry| (it.last, it.user, it.permission) == (last, user, permission);
        if self.entries.get(&iova).is_some_and(same) {
            return Ok(Updated::Same);
        }
        let replaces = self.remove(iova, last);
        if self.entries.len() == IOTLB_ENTRIES_MAX
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.entries.remove(&oldest);
        }
        let number = self.next;
        self.next += 1;
        self.entries.insert(iova, Entry { last, user, permission, place, number });
        self.order.insert(number, iova);
        Ok(if replaces { Updated::Replaced } else { Updated::Added })
    }

    /// Forgets every entry with an address from `iova` to `last`. Returns whether there was one.
    pub fn remove(&mut self, iova: u64, last: u64) -> bool {
        let before = self.entries.len();
        // Only the last entry that begins before `iova` can reach it.
        let first = self.entries.range(..=iova).next_back().map_or(iova, |(start, _)| *start);
        let touched = self.entries.range(first..=last.max(first));
        let touched = touched.filter(|(start, entry)| **start <= last && entry.last >= iova);
        let touched: Vec<_> = touched.map(|(start, entry)| (*start, entry.number)).collect();
        for (start, number) in touched {
            self.entries.remove(&start);
            self.order.remove(&number);
        }
        self.entries.len() != before
    }

    /// Uses `memory` from now on, and forgets the entries that are not in it.
    pub fn use_memory(&mut self, memory: GuestMemory) {
        let Self { entries, order, .. } = self;
        entries.retain(|start, entry| {
            let place = memory.translation(*start, entry.user, entry.last - start + 1);
            match place {
                Some(place) => entry.place = place,
                None => drop(order.remove(&entry.number)),
            }
            place.is_some()
        });
        self.memory = memory;
    }

    /// Forgets all entries.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.order.clear();
    }

    /// Looks up `len` bytes at `iova` that are accessed by all of `access`. Calls `missing` with an address in each
    /// page without a translation, for [`IOTLB_PIECES_MAX`] pages at most.
    pub fn look_up(
        &self,
        iova: u64,
        len: u64,
        access: &[Access],
        mut missing: impl FnMut(u64),
    ) -> Lookup {
        let needed = access.iter().fold(0, |bits, access| bits | *access as u8);
        let (mut at, mut left, mut pieces) = (iova, len, Vec::<Piece>::new());
        let mut holes = 0;
        while left > 0 {
            let entry = self.entries.range(..=at).next_back();
            let entry = entry.filter(|(_, it)| it.last >= at && it.permission & needed == needed);
            let room = match entry {
                Some((start, entry)) => {
                    let (address, room) = (entry.user + (at - start), entry.last - at + 1);
                    let (len, count) = (left.min(room), pieces.len());
                    match pieces.last_mut() {
                        Some(last) if last.address + last.len == address => last.len += len,
                        _ if count == IOTLB_PIECES_MAX => return Lookup::Scattered,
                        _ => pieces.push(Piece { address, len }),
                    }
                    room
                }
                None if holes == IOTLB_PIECES_MAX => return Lookup::Missing,
                None => {
                    missing(at);
                    holes += 1;
                    PAGE_BYTES - at % PAGE_BYTES
                }
            };
            left = left.saturating_sub(room);
            match at.checked_add(room) {
                None if left > 0 => return Lookup::Beyond,
                next => at = next.unwrap_or(u64::MAX),
            }
        }
        if holes > 0 { Lookup::Missing } else { Lookup::At(pieces) }
    }

    /// Returns the tables of all entries.
    pub fn tables(&self) -> Tables {
        let of = |access: Access| {
            let mut table: Vec<Translation> = Vec::new();
            for entry in self.entries.values().filter(|it| it.permission & access as u8 != 0) {
                // Entries that touch in both address spaces are one, for buffers across their border.
                if !table.last_mut().is_some_and(|last| last.extend(&entry.place)) {
                    table.push(entry.place);
                }
            }
            let index = Index::of(&table);
            (table.into(), Arc::new(index))
        };
        let memory = self.memory.clone();
        Tables { memory, readable: of(Access::Read), writable: of(Access::Write) }
    }
}

impl fmt::Debug for Iotlb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Iotlb({} entries)", self.entries.len())
    }
}

/// All entries of an [`Iotlb`], as rings use them.
pub struct Tables {
    memory: GuestMemory,
    readable: (Arc<[Translation]>, Arc<Index>),
    writable: (Arc<[Translation]>, Arc<Index>),
}

impl Tables {
    /// Returns the memory by its virtual addresses, for the buffers of a ring which its device accesses by `access`.
    pub fn of(&self, access: Access, asks: &Arc<Asks>) -> GuestMemory {
        let Self { memory, readable, writable } = self;
        let readable = || memory.by(readable, Access::Read, asks, None);
        match access {
            Access::Read => readable(),
            Access::Write => memory.by(writable, access, asks, Some(readable())),
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Ask {
    page: u64,
    access: Access,
    /// The time at which the front end was asked first, and last.
    first: Option<Instant>,
    asked: Option<Instant>,
}

/// The questions of one session that have no answer yet, at most [`IOTLB_ASKS_MAX`]: beyond these, the oldest is
/// forgotten, and its ring asks again. Workers add some, and the session asks the front end.
#[derive(Debug)]
pub struct Asks {
    open: Mutex<VecDeque<Ask>>,
    /// The event that wakes the session.
    wake: Arc<OwnedFd>,
}

impl Asks {
    /// Returns a set without questions. The event `wake` must not block.
    pub fn new(wake: Arc<OwnedFd>) -> Self {
        Self { open: Mutex::default(), wake }
    }

    fn open(&self) -> MutexGuard<'_, VecDeque<Ask>> {
        self.open.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Adds a question about the page of `address`, unless the same is open.
    pub fn ask(&self, address: u64, access: Access) {
        let page = address & !(PAGE_BYTES - 1);
        let mut open = self.open();
        if open.iter().any(|ask| (ask.page, ask.access) == (page, access)) {
            return;
        }
        if open.len() == IOTLB_ASKS_MAX {
            open.pop_front();
        }
        let wakes = open.iter().all(|ask| ask.asked.is_some());
        open.push_back(Ask { page, access, first: None, asked: None });
        drop(open);
        if wakes {
            // The write fails if the counter is full, and then the session is awake.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }

    /// Sends the front end each question that is new, or that was last asked long ago. Ends when
    /// `send` returns `None`.
    ///
    /// # Errors
    /// The error of `send`.
    pub fn send<E>(
        &self,
        now: Instant,
        mut send: impl FnMut(u64, Access) -> Result<Option<()>, E>,
    ) -> Result<(), E> {
        let again = Duration::from_nanos(IOTLB_ASK_AGAIN_NS);
        let is_due =
            |ask: &Ask| ask.asked.is_none_or(|asked| now.saturating_duration_since(asked) >= again);
        // A worker does not wait for the socket.
        let due: Vec<_> = self.open().iter().filter(|ask| is_due(ask)).copied().collect();
        for Ask { page, access, .. } in due {
            if send(page, access)?.is_none() {
                break;
            }
            let mut open = self.open();
            let ask = open.iter_mut().find(|ask| (ask.page, ask.access) == (page, access));
            if let Some(ask) = ask {
                ask.first.get_or_insert(now);
                ask.asked = Some(now);
            }
        }
        Ok(())
    }

    /// Returns the time until the next question is due; `None` without a question.
    pub fn due_in(&self, now: Instant) -> Option<Duration> {
        let again = Duration::from_nanos(IOTLB_ASK_AGAIN_NS);
        let due = |ask: &Ask| ask.asked.map_or(now, |asked| asked + again);
        Some(self.open().iter().map(due).min()?.saturating_duration_since(now))
    }

    /// Returns the number of questions that the front end was first asked at least `patience` ago, and the time since
    /// the oldest of them; `None` without one.
    pub fn unanswered(&self, now: Instant, patience: Duration) -> Option<(usize, Duration)> {
        let open = self.open();
        let ages = open.iter().filter_map(|ask| Some(now.saturating_duration_since(ask.first?)));
        let late = ages.filter(|age| *age >= patience);
        late.fold(None, |all, age| {
            let (count, oldest) = all.unwrap_or_default();
            Some((count + 1, age.max(oldest)))
        })
    }

    /// Closes the questions that a new entry answers. Returns whether there was one.
    pub fn answer(&self, update: &Update) -> bool {
        let Update { iova, size, permission, .. } = *update;
        let mut open = self.open();
        let before = open.len();
        open.retain(|ask| {
            // An entry may begin or end in the middle of a page.
            let begins = ask.page.max(iova) - iova < size && iova <= ask.page | (PAGE_BYTES - 1);
            !begins || permission & ask.access as u8 == 0
        });
        open.len() != before
    }

    /// Forgets all questions.
    pub fn clear(&self) {
        self.open().clear();
    }
}
