//! The record that the next process needs to continue a ring after a SIGKILL: `docs/design/restarts.md#0028`.
//!
//! ```text
//! whose ring it is      magic, shape, base, origin, addresses   written before the ring is touched
//! a publication         where it begins and ends, its first     packed rings, each time; split: while chains stay
//! which list is valid   none | A | A, or B once used.idx is k | A, and its publication is to be done again
//! list A, list B        chains that were taken and not given back; packed: their descriptors, and a publication
//! ```
//!
//! The process can die between any two writes. So a list is written while it is invalid, and one word makes it valid. A
//! party that shares the memory can write anything at any time: everything is read once and checked.

use std::sync::atomic::{Ordering, compiler_fence};

use weir_guestmem::Window;

use crate::buffers::Token;
use crate::layout::{Addresses, DESC_BYTES, RingConfig};

const MAGIC: usize = 0;
const SHAPE: usize = 8;
const BASE: usize = 16;
const ORIGIN: usize = 24;
const ADDRESSES: usize = 40;
const PUBLICATION: usize = 64;
const FIRST: usize = 72;
const VALID: usize = 80;
const LISTS: usize = 88;

/// The version of the record, which changes with the meaning of the fields.
const VERSION: u64 = u64::from_le_bytes(*b"weirrec1");

/// Bytes of a list's counts, of a chain in it, and of a chain in a publication.
const COUNTS_BYTES: usize = 16;
const WORD_BYTES: usize = 8;

/// A bit in a chain's word: the chain is done, and waits for its turn to be given back (`VIRTIO_F_IN_ORDER`).
const DONE: u64 = 1 << 63;

/// A bit in a publication's word: the publication belongs to a split ring, and has two used indices.
const SPLIT: u64 = 1 << 48;

const NONE: u8 = 0;
const FINAL: u8 = 1;
const MOVING: u8 = 2;
const LOGGED: u8 = 3;

/// The ring of a record. The record is valid for no other ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// The identity of the memory in which the ring lies: device and inode of its file.
    pub memory: [u64; 2],
    /// The ring's addresses in that memory.
    pub at: Addresses,
}

/// A ring's record, in memory that outlives this process.
#[derive(Debug)]
pub struct Record {
    window: Window,
    at: usize,
    size: u16,
    /// The valid list: 1 or 2; 0 for none.
    current: u8,
}

/// A publication in a packed ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Publication {
    /// The place of the publication's first used descriptor.
    pub(crate) before: u16,
    /// The place of the next publication's first used descriptor.
    pub(crate) after: u16,
    /// True if the publication has one used descriptor; otherwise it has several, with one slot each.
    pub(crate) single: bool,
    /// The buffer id of the first used descriptor.
    pub(crate) id: u16,
    /// The length in the first used descriptor.
    pub(crate) written: u32,
}

/// A list of descriptors in a publication that must be made again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Logged {
    pub(crate) id: u16,
    pub(crate) slots: u16,
    pub(crate) written: u32,
}

/// A list of chains that were taken and not given back.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct List {
    /// Chains in the order in which they were taken, each with true if it is done.
    pub(crate) chains: Vec<(Token, bool)>,
    /// Packed: the descriptors of chains that are not done, one chain after the other.
    pub(crate) descriptors: Vec<[u8; DESC_BYTES]>,
    /// Packed: the place at which the list's publication begins.
    pub(crate) before: u16,
    /// Packed: the lists of the publication, in order.
    pub(crate) log: Vec<Logged>,
}

/// The valid list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Valid {
    /// There is no valid list.
    None,
    /// The list with this number.
    Final(u8),
    /// The list with the first number, or the one with the second number once the used index has the third value.
    Moving(u8, u8, u16),
    /// The list with this number. Its publication is done again unless it is found in the ring.
    Logged(u8),
}

impl Valid {
    /// The valid list's number.
    pub(crate) fn list(self) -> Option<u8> {
        match self {
            Self::Final(list) | Self::Moving(list, ..) | Self::Logged(list) => Some(list),
            Self::None => None,
        }
    }

    fn to_word(self) -> u64 {
        let bytes = |state, from, to, key: u16| {
            let [low, high] = key.to_le_bytes();
            u64::from_le_bytes([state, from, to, 0, low, high, 0, 0])
        };
        match self {
            Self::None => bytes(NONE, 0, 0, 0),
            Self::Final(list) => bytes(FINAL, list, 0, 0),
            Self::Moving(from, to, key) => bytes(MOVING, from, to, key),
            Self::Logged(list) => bytes(LOGGED, list, 0, 0),
        }
    }

    fn from_word(word: u64) -> Self {
        let [state, from, to, _, low, high, ..] = word.to_le_bytes();
        match (state, from, to) {
            (FINAL, 1..=2, _) => Self::Final(from),
            (MOVING, 0..=2, 1..=2) => Self::Moving(from, to, u16::from_le_bytes([low, high])),
            (LOGGED, 1..=2, _) => Self::Logged(from),
            _ => Self::None,
        }
    }
}

/// Keeps earlier writes before later ones, as the process itself sees them. The process is killed between two of its
/// instructions, and all that it has written by then is in the memory.
#[inline(always)]
fn then() {
    compiler_fence(Ordering::SeqCst);
}

impl Record {
    /// Bytes of the record for a ring of `size` entries.
    pub const fn bytes(size: u16) -> usize {
        LISTS + 2 * list_bytes(size)
    }

    /// The record at `at` of `window`, for a ring of `size` entries; `None` if there is no room.
    pub fn new(window: Window, at: usize, size: u16) -> Option<Self> {
        let fits = at.is_multiple_of(8) && at.checked_add(Self::bytes(size))? <= window.len();
        fits.then_some(Self { window, at, size, current: 0 })
    }

    #[inline(always)]
    fn write(&self, at: usize, word: u64) {
        self.window.write(self.at + at, word.to_le_bytes());
    }

    fn read(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.window.read(self.at + at))
    }

    fn head(config: &RingConfig, origin: &Origin) -> [(usize, u64); 6] {
        let format = u64::from(config.packed) | u64::from(config.in_order) << 1;
        let Origin { memory: [device, inode], at } = *origin;
        [
            (SHAPE, u64::from(config.size) | format << 16),
            (ORIGIN, device),
            (ORIGIN + 8, inode),
            (ADDRESSES, at.descriptor),
            (ADDRESSES + 8, at.driver),
            (ADDRESSES + 16, at.device),
        ]
    }

    /// The base that the front end had sent, if the record belongs to this ring.
    pub(crate) fn base_if_of(&self, config: &RingConfig, origin: &Origin) -> Option<u32> {
        let of_it = self.read(MAGIC) == VERSION
            && Self::head(config, origin).iter().all(|&(at, word)| self.read(at) == word);
        of_it.then(|| self.read(BASE) as u32) // its lower half
    }

    /// Begins a record for this ring, which writes its next used descriptor at `next_used`, with no chain taken.
    pub(crate) fn begin(
        &mut self,
        config: &RingConfig,
        origin: &Origin,
        base: u32,
        next_used: u16,
    ) {
        self.write(MAGIC, 0);
        then();
        for (at, word) in Self::head(config, origin) {
            self.write(at, word);
        }
        self.write(BASE, base.into());
        self.publishes(&Publication::nothing_at(next_used));
        self.set_valid(Valid::None);
        then();
        self.write(MAGIC, VERSION);
        then();
    }

    /// Continues with a found record, for which the front end has sent this `base`.
    pub(crate) fn go_on(&mut self, base: u32) {
        self.write(BASE, base.into());
        then();
    }

    /// Detaches the record from its ring: the next process gets the position from the front end.
    pub fn forget(&self) {
        self.write(MAGIC, 0);
        then();
    }

    /// Notes a publication that is about to be made.
    #[inline(always)]
    pub(crate) fn publishes(&self, publication: &Publication) {
        let Publication { before, after, single, id, written } = *publication;
        // This word is written first: it is read only if the publication in the other word is not in the ring. Until
        // the other word changes, it names the last publication, which is in the ring.
        self.write(FIRST, u64::from(id) | u64::from(written) << 32);
        then();
        let ends = u64::from(before) | u64::from(after) << 16;
        self.write(PUBLICATION, ends | u64::from(single) << 32);
        then();
    }

    /// Notes that a split ring is about to change its used index from `before` to `after`, while chains are kept.
    pub(crate) fn shows(&self, before: u16, after: u16) {
        self.write(PUBLICATION, u64::from(before) | u64::from(after) << 16 | SPLIT);
        then();
    }

    /// True if a split ring's used index was shown with the valid list. A record of an older weir has no such note.
    pub(crate) fn knows(&self, used: u16) -> bool {
        let ends = self.read(PUBLICATION);
        ends & SPLIT == 0 || used == ends as u16 || used == (ends >> 16) as u16
    }

    /// The last publication that was made or begun.
    pub(crate) fn published(&self) -> Publication {
        let (ends, first) = (self.read(PUBLICATION), self.read(FIRST));
        Publication {
            before: ends as u16,
            after: (ends >> 16) as u16,
            single: ends >> 32 != 0,
            id: first as u16,
            written: (first >> 32) as u32,
        }
    }

    pub(crate) fn valid(&self) -> Valid {
        Valid::from_word(self.read(VALID))
    }

    /// Makes this list the valid one.
    pub(crate) fn set_valid(&mut self, valid: Valid) {
        then();
        self.write(VALID, valid.to_word());
        then();
        self.current = valid.list().unwrap_or(0);
    }

    /// The valid list's number.
    pub(crate) fn current(&self) -> u8 {
        self.current
    }

    /// The invalid list's number, which can be written.
    pub(crate) fn other(&self) -> u8 {
        if self.current == 1 { 2 } else { 1 }
    }

    fn list_at(&self, list: u8) -> usize {
        LISTS + usize::from(list - 1) * list_bytes(self.size)
    }

    /// Writes a list. Entries beyond the ring's size are left out: a driver with more chains under way breaks the
    /// rules.
    pub(crate) fn write_list<'d>(
        &self,
        list: u8,
        before: u16,
        chains: impl Iterator<Item = (Token, bool)>,
        descriptors: impl Iterator<Item = &'d [u8; DESC_BYTES]>,
        log: impl Iterator<Item = Logged>,
    ) {
        let (at, room) = (self.list_at(list), usize::from(self.size));
        let words = at + COUNTS_BYTES;
        let mut counts = [0u64; 3];
        for (nth, (token, done)) in chains.take(room).enumerate() {
            let done = if done { DONE } else { 0 };
            self.write(words + nth * WORD_BYTES, u64::from(token) & !DONE | done);
            counts[0] += 1;
        }
        let words = words + room * WORD_BYTES;
        for (nth, Logged { id, slots, written }) in log.take(room).enumerate() {
            let word = u64::from(id) | u64::from(slots) << 16 | u64::from(written) << 32;
            self.write(words + nth * WORD_BYTES, word);
            counts[1] += 1;
        }
        let words = words + room * WORD_BYTES;
        for (nth, descriptor) in descriptors.take(room).enumerate() {
            self.window.write(self.at + words + nth * DESC_BYTES, *descriptor);
            counts[2] += 1;
        }
        let [chains, logged, descriptors] = counts;
        self.write(at, chains | logged << 16 | descriptors << 32 | u64::from(before) << 48);
    }

    /// Reads a list, each of its words once; `None` if it is inconsistent.
    pub(crate) fn list(&self, list: u8) -> Option<List> {
        if list == 0 {
            return Some(List::default());
        }
        let (at, room) = (self.list_at(list), usize::from(self.size));
        let counts = self.read(at);
        let [chains, logged, descriptors] =
            [0, 16, 32].map(|shift| usize::from((counts >> shift) as u16));
        if chains > room || logged > room || descriptors > room {
            return None;
        }
        let words = at + COUNTS_BYTES;
        let chain = |nth| {
            let word = self.read(words + nth * WORD_BYTES);
            (Token::from(word & !DONE), word & DONE != 0)
        };
        let log_at = words + room * WORD_BYTES;
        let log = |nth| {
            let word = self.read(log_at + nth * WORD_BYTES);
            Logged { id: word as u16, slots: (word >> 16) as u16, written: (word >> 32) as u32 }
        };
        let descriptors_at = log_at + room * WORD_BYTES;
        let descriptor = |nth| self.window.read(self.at + descriptors_at + nth * DESC_BYTES);
        Some(List {
            chains: (0..chains).map(chain).collect(),
            descriptors: (0..descriptors).map(descriptor).collect(),
            before: (counts >> 48) as u16,
            log: (0..logged).map(log).collect(),
        })
    }
}

const fn list_bytes(size: u16) -> usize {
    COUNTS_BYTES + size as usize * (2 * WORD_BYTES + DESC_BYTES)
}

impl Publication {
    /// An empty publication at this place.
    pub(crate) fn nothing_at(index: u16) -> Self {
        Self { before: index, after: index, single: true, id: 0, written: 0 }
    }
}
