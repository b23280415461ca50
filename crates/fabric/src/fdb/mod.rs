//! The forwarding database: the port behind which each address was last seen.
//!
//! The table has a fixed size, in buckets of eight entries. **Reads are wait-free**: an entry is one atomic word
//! (`entry.rs`), so a lookup is up to eight loads from one cache line. A lookup returns a port behind which that very
//! address was learned, or nothing; no torn state exists. **Writes** take a lock, but only for an address that is new,
//! has moved, or is removed. A frame from a known address only stores the second of last use, once per second.
//!
//! The second of last use is a word of its own beside the entry. During a replacement, a reader may pair an old entry
//! with a new second, or the reverse. The entry then looks older or younger: at worst one more frame is flooded, or one
//! entry is swept later.
//!
//! **Remotes.** An address behind the port of an overlay is at one of many hosts: the port's *remote*, a number that
//! only the port understands. The number fits into the bucket's spare bytes, so an entry has 16 bytes in any case. Only
//! the port reads the number ([`Fdb::remote`]).
//!
//! **Told networks.** For some networks, a control plane states which addresses are behind the port of the overlay
//! ([`Fdb::tell`]). In such a network nothing is learned behind that port from frames, and a stated address stays until
//! the control plane withdraws it.
//!
//! **One port can't take the table from the others.** A port has a limit of learned addresses; in a full bucket the
//! port with the most entries loses one; addresses learned behind uplinks have a limit in each network; and a [`Claim`]
//! from the source-MAC check keeps an address from being moved, aged or evicted.

mod claim;
mod entry;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::ops::Range;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::{array, iter};

use weir_limits::{
    FDB_AGE_SECS, FDB_ENTRIES_DEFAULT, FDB_ENTRIES_MAX, FDB_NETWORK_PART, NETWORKS_MAX, PORTS_MAX,
};
use weir_wire::Mac;

use crate::port::PortId;
use crate::vlan::Vid;
pub use claim::{Claim, Moves};
use entry::{Entry, Slot};

/// Entries of a bucket: eight words are one cache line.
const WAYS: usize = 8;
/// Calls of [`Fdb::age`] that sweep the whole table: one call per second is well within `FDB_AGE_SECS`.
const AGE_CALLS: usize = 32;
/// Buckets that are swept under one lock: few, so a worker that learns waits only for microseconds.
const SWEPT_BUCKETS: usize = 64;

const _: () = {
    assert!((FDB_ENTRIES_DEFAULT / WAYS).is_multiple_of(AGE_CALLS * SWEPT_BUCKETS));
    assert!(AGE_CALLS < FDB_AGE_SECS as usize);
};

/// The number of a table's entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity(usize);

impl Capacity {
    /// The smallest table.
    pub const MIN: Self = Self(FDB_ENTRIES_DEFAULT);

    /// At least `entries`: a power of two within the limits.
    pub fn at_least(entries: usize) -> Self {
        Self(entries.clamp(FDB_ENTRIES_DEFAULT, FDB_ENTRIES_MAX).next_power_of_two())
    }

    /// The number of entries.
    pub fn get(self) -> usize {
        self.0
    }
}

impl Default for Capacity {
    fn default() -> Self {
        Self::MIN
    }
}

/// The port that learns an address, and its rules.
#[derive(Clone, Copy, Debug)]
pub struct Learner {
    /// The port on which the frame came in.
    pub port: PortId,
    /// The strength with which the port holds the source address.
    pub claim: Claim,
    /// Most addresses that may be learned behind the port.
    pub learn_max: u32,
}

/// The result for a source address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learned {
    /// The address was known behind this port; its age is zero again.
    Known,
    /// The address was unknown, and is learned.
    New,
    /// The address was known behind another port until now.
    Moved {
        /// The earlier port.
        from: PortId,
    },
    /// Not learned: another port has a claim on the address that is as strong.
    Owned {
        /// The other port.
        by: PortId,
    },
    /// Not learned: the port has `learn_max` addresses.
    PortLimit,
    /// Not learned: the network has [`Fdb::per_network_max`] addresses behind uplinks.
    NetworkLimit,
    /// Not learned: the bucket is full of addresses with a claim.
    BucketFull,
    /// Not learned: a control plane states the addresses behind the port in this network.
    Told,
    /// Not learned: the address is a group address, which no station has.
    Multicast,
}

/// An address in the table, for display.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FdbEntry {
    /// VLAN of the address.
    pub vid: Vid,
    /// The address.
    pub mac: Mac,
    /// The port behind which the address is.
    pub port: PortId,
    /// The strength with which that port holds the address.
    pub claim: Claim,
    /// Seconds since a frame from the address was last received.
    pub age_secs: u32,
}

/// Counters since the table was made; they wrap at 2^64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FdbStats {
    /// Addresses that moved to another port.
    pub moved: u64,
    /// Addresses evicted from a full bucket.
    pub evicted: u64,
    /// Frames whose source was not learned because of the port's limit.
    pub refused_port_limit: u64,
    /// Frames whose source was not learned because of the network's limit.
    pub refused_network_limit: u64,
    /// Frames whose source was not learned because its bucket was full of claimed addresses.
    pub refused_bucket_full: u64,
}

#[derive(Default)]
struct Counters {
    moved: AtomicU64,
    evicted: AtomicU64,
    refused_port_limit: AtomicU64,
    refused_network_limit: AtomicU64,
    refused_bucket_full: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

#[repr(C, align(64))]
struct Bucket {
    words: [AtomicU64; WAYS],
    /// Second at which each entry was last used.
    seen_secs: [AtomicU32; WAYS],
    /// The remote of each entry behind its port, plus 1; 0 if the port has stated no remote.
    remotes: [AtomicU32; WAYS],
}

const _: () = assert!(size_of::<Bucket>() == 128);

impl Bucket {
    fn new() -> Self {
        Self {
            words: array::from_fn(|_| AtomicU64::new(0)),
            seen_secs: array::from_fn(|_| AtomicU32::new(0)),
            remotes: array::from_fn(|_| AtomicU32::new(0)),
        }
    }

    fn entries(&self) -> impl Iterator<Item = (usize, Entry)> {
        let words = self.words.iter().enumerate();
        words.filter_map(|(way, word)| Some((way, Entry::unpack(word.load(Ordering::Acquire))?)))
    }

    fn find(&self, tag: u64) -> Option<(usize, Entry)> {
        self.entries().find(|(_, entry)| entry.tag == tag)
    }

    fn age_secs(&self, way: usize, now_secs: u32) -> u32 {
        // Another worker's clock may be a second ahead of this one's.
        now_secs.saturating_sub(self.seen_secs[way].load(Ordering::Relaxed))
    }

    fn has_expired(&self, way: usize, entry: Entry, now_secs: u32) -> bool {
        entry.claim.is_learned() && self.age_secs(way, now_secs) > FDB_AGE_SECS
    }

    /// Clears the remote of an entry. The old entry is removed first: a reader that now finds a remote here reads the
    /// remote of the next entry, and cannot take it for the old entry's. A lookup in between can miss, and then one
    /// frame is flooded.
    fn forget_remote(&self, way: usize) {
        if self.remotes[way].load(Ordering::Relaxed) != 0 {
            self.words[way].store(0, Ordering::Relaxed);
            fence(Ordering::Release);
            self.remotes[way].store(0, Ordering::Relaxed);
        }
    }

    /// Stores only a changed second: otherwise, workers would pass the cache line around for every frame.
    fn touch(&self, way: usize, now_secs: u32) {
        let seen_secs = &self.seen_secs[way];
        if seen_secs.load(Ordering::Relaxed) != now_secs {
            seen_secs.store(now_secs, Ordering::Relaxed);
        }
    }

    /// The entry to give up for a new one of `port`: an expired one, or else the oldest entry of the port that holds
    /// the most. Among ports that hold equally many, `port` itself is chosen. `None` if every entry has a claim.
    fn victim(&self, port: PortId, now_secs: u32) -> Option<(usize, Entry)> {
        let dynamic = || self.entries().filter(|(_, entry)| entry.claim.is_learned());
        dynamic().max_by_key(|&(way, entry)| {
            let expired = self.has_expired(way, entry, now_secs);
            let share = dynamic().filter(|(_, other)| other.port == entry.port).count();
            (expired, share, entry.port == port, self.age_secs(way, now_secs), Reverse(way))
        })
    }
}

/// The state that only the holder of the lock may change, besides the words of the entries.
struct Writer {
    /// The bucket at which the next [`Fdb::age`] begins.
    sweep_bucket: usize,
    moves: claim::Noted,
}

/// A function that is called at each change, by the thread that makes the change, for example a worker. It must return
/// at once.
type Bell = Box<dyn Fn() + Send + Sync>;

/// The forwarding table: (VLAN, address) to port, with a fixed number of entries.
///
/// Times are whole seconds of one monotonic clock; callers may disagree by a second.
pub struct Fdb {
    seed: u64,
    buckets: Box<[Bucket]>,
    /// Entries of each port; changed under the lock.
    learned: Box<[AtomicU32]>,
    /// Entries of each network that are behind uplinks; changed under the lock.
    in_network: Box<[AtomicU32]>,
    /// The port behind which a control plane states the addresses, in each network: its number plus 1, or 0.
    told_behind: Box<[AtomicU16]>,
    /// Rung when an address of a network is new, has moved, or was removed.
    bell: OnceLock<Bell>,
    writer: Mutex<Writer>,
    /// See [`changes`](Self::changes).
    changes: AtomicU64,
    counters: Counters,
}

impl Fdb {
    /// An empty table. A random `seed` keeps stations from choosing addresses that collide.
    pub fn new(seed: u64, Capacity(entries): Capacity) -> Self {
        Self {
            seed,
            buckets: iter::repeat_with(Bucket::new).take(entries / WAYS).collect(),
            learned: iter::repeat_with(AtomicU32::default).take(PORTS_MAX).collect(),
            in_network: iter::repeat_with(AtomicU32::default).take(NETWORKS_MAX).collect(),
            told_behind: iter::repeat_with(AtomicU16::default).take(NETWORKS_MAX).collect(),
            bell: OnceLock::new(),
            writer: Mutex::new(Writer { sweep_bucket: 0, moves: claim::Noted::default() }),
            changes: AtomicU64::new(1),
            counters: Counters::default(),
        }
    }

    /// A number that grows after each change of an address's place, and of a port. As long as the number stays the
    /// same, a result that was found after reading it still holds, except that entries age.
    #[inline]
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Counts a change for [`changes`](Self::changes).
    pub(crate) fn changed(&self) {
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// The number of entries for which the table has room.
    pub fn capacity(&self) -> usize {
        self.buckets.len() * WAYS
    }

    /// Most addresses that are learned behind uplinks in one network.
    pub fn per_network_max(&self) -> u32 {
        (self.capacity() / FDB_NETWORK_PART) as u32
    }

    #[inline]
    fn slot(&self, vid: Vid, mac: Mac) -> Slot {
        Slot::of(vid, mac, self.seed, self.buckets.len())
    }

    /// The port behind which the address is; `None` if it is unknown, or was silent for more than
    /// `weir_limits::FDB_AGE_SECS` and has no claim. Wait-free.
    pub fn lookup(&self, vid: Vid, mac: Mac, now_secs: u32) -> Option<PortId> {
        let slot = self.slot(vid, mac);
        let bucket = &self.buckets[slot.bucket];
        let (way, entry) = bucket.find(slot.tag)?;
        (!bucket.has_expired(way, entry, now_secs)).then_some(entry.port)
    }

    /// The remote of `port` behind which the address is; `None` if the port has stated none, or the address is not
    /// behind the port, or no longer. Wait-free.
    pub fn remote(&self, vid: Vid, mac: Mac, port: PortId, now_secs: u32) -> Option<u32> {
        let slot = self.slot(vid, mac);
        let bucket = &self.buckets[slot.bucket];
        let (way, entry) = bucket.find(slot.tag)?;
        if entry.port != port || bucket.has_expired(way, entry, now_secs) {
            return None;
        }
        let remote = bucket.remotes[way].load(Ordering::Relaxed).checked_sub(1)?;
        // An entry is emptied before an entry with another remote takes its place. So an entry that is still there was
        // there when the remote was read.
        fence(Ordering::Acquire);
        (bucket.words[way].load(Ordering::Relaxed) == entry.pack()).then_some(remote)
    }

    /// Notes the remote of an address that is known behind `port`. Wait-free unless the remote is new.
    pub fn set_remote(&self, vid: Vid, mac: Mac, port: PortId, remote: u32) {
        let slot = self.slot(vid, mac);
        let bucket = &self.buckets[slot.bucket];
        let there = || bucket.find(slot.tag).filter(|(_, entry)| entry.port == port);
        let remote = remote.saturating_add(1);
        let Some((way, _)) = there() else { return };
        if bucket.remotes[way].load(Ordering::Relaxed) == remote {
            return;
        }
        let _writer = self.lock();
        // Another worker may have put another entry there.
        if let Some((way, _)) = there() {
            bucket.remotes[way].store(remote, Ordering::Relaxed);
        }
    }

    /// Notes a frame from this address. Wait-free unless the address is new or has moved.
    pub fn learn(&self, vid: Vid, mac: Mac, learner: Learner, now_secs: u32) -> Learned {
        if mac.is_multicast() {
            return Learned::Multicast;
        }
        let slot = self.slot(vid, mac);
        let bucket = &self.buckets[slot.bucket];
        let found = bucket.find(slot.tag);
        // Refusals are decided without the lock: a port can be refused for every frame.
        let learned = match self.plan(found, learner, vid) {
            Ok(Learned::Known) => {
                if let Some((way, _)) = found {
                    bucket.touch(way, now_secs);
                }
                Learned::Known
            }
            Ok(_) => {
                let learned = self.change(slot, learner, vid, now_secs);
                if vid.network().is_some() {
                    self.ring();
                }
                learned
            }
            Err(refusal) => refusal,
        };
        match learned {
            Learned::Moved { .. } => count(&self.counters.moved),
            Learned::PortLimit => count(&self.counters.refused_port_limit),
            Learned::NetworkLimit => count(&self.counters.refused_network_limit),
            Learned::BucketFull => count(&self.counters.refused_bucket_full),
            Learned::Known
            | Learned::New
            | Learned::Owned { .. }
            | Learned::Told
            | Learned::Multicast => {}
        }
        learned
    }

    /// From now on, a control plane states the addresses behind `port` in the network `vid`. None
    /// is learned from frames any more.
    pub fn told_behind(&self, vid: Vid, port: PortId) {
        let number = vid.network().and_then(|number| self.told_behind.get(usize::from(number)));
        if let Some(told_behind) = number {
            told_behind.store(port.get() + 1, Ordering::Relaxed);
        }
    }

    /// True if a control plane states the addresses behind `port` in the network `vid`.
    pub fn is_told(&self, vid: Vid, port: PortId) -> bool {
        let number = vid.network().and_then(|number| self.told_behind.get(usize::from(number)));
        number.is_some_and(|told_behind| told_behind.load(Ordering::Relaxed) == port.get() + 1)
    }

    /// Enters an address that a control plane states behind a remote of the teller's port; [`forget`](Self::forget)
    /// removes it. The teller's claim is [`Claim::Told`] or [`Claim::ToldSticky`].
    pub fn tell(&self, vid: Vid, mac: Mac, teller: Learner, remote: u32) -> Learned {
        let learned = self.learn(vid, mac, teller, 0);
        if matches!(learned, Learned::Known | Learned::New | Learned::Moved { .. }) {
            self.set_remote(vid, mac, teller.port, remote);
        }
        learned
    }

    /// Registers `bell`, which is called on any thread when an address of a network is new, has
    /// moved, or may have been removed. Only the first registered bell is called.
    pub fn on_change(&self, bell: impl Fn() + Send + Sync + 'static) {
        let _ = self.bell.set(Box::new(bell));
    }

    fn ring(&self) {
        if let Some(bell) = self.bell.get() {
            bell();
        }
    }

    /// The result of [`learn`](Self::learn), without any change.
    pub fn would_learn(&self, vid: Vid, mac: Mac, learner: Learner, now_secs: u32) -> Learned {
        if mac.is_multicast() {
            return Learned::Multicast;
        }
        let slot = self.slot(vid, mac);
        let bucket = &self.buckets[slot.bucket];
        let found = bucket.find(slot.tag);
        match self.plan(found, learner, vid) {
            Ok(Learned::New) if found.is_none() => {
                let has_room = bucket.entries().count() < WAYS;
                match has_room || bucket.victim(learner.port, now_secs).is_some() {
                    true => Learned::New,
                    false => Learned::BucketFull,
                }
            }
            Ok(learned) | Err(learned) => learned,
        }
    }

    /// The plan for an address that was `found` in the table; an error is a refusal.
    fn plan(
        &self,
        found: Option<(usize, Entry)>,
        learner: Learner,
        vid: Vid,
    ) -> Result<Learned, Learned> {
        let planned = match found {
            Some((_, entry)) if entry.port == learner.port => {
                // The port's check may have changed since the address was learned. A frame does not change an entry
                // that a control plane has stated.
                let same = entry.claim == learner.claim
                    || (learner.claim == Claim::Uplink && self.is_told(vid, learner.port));
                return Ok(if same { Learned::Known } else { Learned::New });
            }
            Some((_, entry)) if !entry.claim.yields_to(learner.claim) => {
                return Err(Learned::Owned { by: entry.port });
            }
            _ if learner.claim == Claim::Uplink && self.is_told(vid, learner.port) => {
                return Err(Learned::Told);
            }
            Some((_, entry)) => Learned::Moved { from: entry.port },
            None => Learned::New,
        };
        if self.learned_by(learner.port) >= learner.learn_max {
            return Err(Learned::PortLimit);
        }
        let counted = vid.network().filter(|_| learner.claim.is_outside());
        let count = counted.and_then(|network| self.in_network.get(usize::from(network)));
        match count.map(|count| count.load(Ordering::Relaxed)) {
            Some(count) if count >= self.per_network_max() => Err(Learned::NetworkLimit),
            _ => Ok(planned),
        }
    }

    /// Enters an address that is new or has moved.
    fn change(&self, slot: Slot, learner: Learner, vid: Vid, now_secs: u32) -> Learned {
        let mut writer = self.lock();
        let bucket = &self.buckets[slot.bucket];
        // Another worker may have entered the address first.
        let found = bucket.find(slot.tag);
        let learned = match self.plan(found, learner, vid) {
            Ok(learned) => learned,
            Err(refusal) => return refusal,
        };
        let empty = || bucket.words.iter().position(|word| word.load(Ordering::Relaxed) == 0);
        let way = match (found, empty()) {
            (Some((way, old)), _) => {
                if old.port != learner.port {
                    let outside = old.claim.is_outside() && learner.claim.is_outside();
                    writer.moves.note(vid, old.port, learner.port, outside);
                }
                self.uncount(slot.bucket, old);
                way
            }
            (None, Some(way)) => way,
            (None, None) => match bucket.victim(learner.port, now_secs) {
                Some((way, old)) => {
                    self.uncount(slot.bucket, old);
                    if !bucket.has_expired(way, old, now_secs) {
                        count(&self.counters.evicted);
                    }
                    way
                }
                None => return Learned::BucketFull,
            },
        };
        let entry = Entry { tag: slot.tag, claim: learner.claim, port: learner.port };
        bucket.forget_remote(way);
        // The second is stored before the word: a reader of the new word sees no older second than the word's own.
        bucket.seen_secs[way].store(now_secs, Ordering::Relaxed);
        bucket.words[way].store(entry.pack(), Ordering::Release);
        self.changed();
        self.learned[learner.port.index()].fetch_add(1, Ordering::Relaxed);
        if let Some(count) = self.network_count(slot.bucket, entry) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        learned
    }

    /// The pairs of ports between which addresses have moved since the last call.
    pub fn take_moves(&self) -> Vec<Moves> {
        self.lock().moves.take()
    }

    /// Removes an address if it is (still) behind `port`, whatever its claim.
    pub fn forget(&self, vid: Vid, mac: Mac, port: PortId) -> bool {
        let slot = self.slot(vid, mac);
        let writer = self.lock();
        let bucket = &self.buckets[slot.bucket];
        let found = bucket.find(slot.tag).filter(|(_, entry)| entry.port == port);
        if let Some((way, entry)) = found {
            self.remove(slot.bucket, way, entry);
        }
        drop(writer);
        if found.is_some() && vid.network().is_some() {
            self.ring();
        }
        found.is_some()
    }

    /// Removes every address behind `port`; returns their number.
    pub fn flush_port(&self, port: PortId) -> usize {
        let mut removed = 0;
        for start in (0..self.buckets.len()).step_by(SWEPT_BUCKETS) {
            let _writer = self.lock();
            // Most ports have few addresses or none. Front ends start and stop rings as they like, so a flush must be
            // cheap.
            if self.learned_by(port) == 0 {
                break;
            }
            removed += self.sweep(start..start + SWEPT_BUCKETS, |_, _, entry| entry.port == port);
        }
        if removed > 0 {
            self.ring();
        }
        removed
    }

    /// Sweeps the next 1/32 of the table for expired addresses, and returns the number of those removed. Call this
    /// about once per second while there is traffic. [`Self::lookup`] does not depend on it: a sweep frees space and
    /// the ports' quota of addresses.
    pub fn age(&self, now_secs: u32) -> usize {
        let mut removed = 0;
        for _ in 0..self.buckets.len() / AGE_CALLS / SWEPT_BUCKETS {
            let mut writer = self.lock();
            let start = writer.sweep_bucket;
            let end = start + SWEPT_BUCKETS;
            writer.sweep_bucket = end % self.buckets.len();
            removed += self
                .sweep(start..end, |bucket, way, entry| bucket.has_expired(way, entry, now_secs));
        }
        if removed > 0 {
            self.ring();
        }
        removed
    }

    /// The number of entries in the table, including expired entries that are not swept yet.
    pub fn len(&self) -> usize {
        self.learned.iter().map(|learned| learned.load(Ordering::Relaxed) as usize).sum()
    }

    /// True if the table is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of entries of one port, including expired entries that are not swept yet.
    pub fn learned_by(&self, port: PortId) -> u32 {
        self.learned[port.index()].load(Ordering::Relaxed)
    }

    /// The addresses in the table that have not expired, in no order. If workers learn meanwhile, the list is no
    /// snapshot of one moment, but every entry was in the table at some moment of the call.
    pub fn entries(&self, now_secs: u32) -> Vec<FdbEntry> {
        self.page(now_secs, None, usize::MAX)
    }

    /// At most `most` of the same addresses, in the table's order: those that follow the address `after`, or the first
    /// ones. An address that is in the table for the whole time is in one page. The cost is that of the page, and of the
    /// empty places on the way.
    pub fn page(&self, now_secs: u32, after: Option<(Vid, Mac)>, most: usize) -> Vec<FdbEntry> {
        let after = after.map(|(vid, mac)| self.slot(vid, mac));
        let first = after.map_or(0, |slot| slot.bucket);
        let (mut page, mut live) = (Vec::new(), Vec::with_capacity(WAYS));
        for (index, bucket) in self.buckets.iter().enumerate().skip(first) {
            let is_next = |tag| after.is_none_or(|it| (it.bucket, it.tag) < (index, tag));
            live.clear();
            live.extend(bucket.entries().filter(|&(way, entry)| {
                is_next(entry.tag) && !bucket.has_expired(way, entry, now_secs)
            }));
            live.sort_unstable_by_key(|(_, entry)| entry.tag);
            for &(way, Entry { tag, claim, port }) in &live {
                if page.len() == most {
                    return page;
                }
                let address = Slot { bucket: index, tag }.address(self.seed);
                page.extend(address.map(|(vid, mac)| FdbEntry {
                    vid,
                    mac,
                    port,
                    claim,
                    age_secs: bucket.age_secs(way, now_secs),
                }));
            }
        }
        page
    }

    /// The addresses behind `port` that have not expired, in no order. Nothing is gathered: a table can have a million.
    pub fn behind(&self, port: PortId, now_secs: u32) -> impl Iterator<Item = FdbEntry> {
        let all = self.buckets.iter().enumerate().flat_map(move |(index, bucket)| {
            let of_port = bucket.entries().filter(move |(_, entry)| entry.port == port);
            of_port.map(move |(way, entry)| (index, bucket, way, entry))
        });
        // Behind the port's last entry the table need not be read.
        all.take(self.learned_by(port) as usize).filter_map(move |(index, bucket, way, entry)| {
            let Entry { tag, claim, .. } = entry;
            let is_there = !bucket.has_expired(way, entry, now_secs);
            let (vid, mac) = Slot { bucket: index, tag }.address(self.seed).filter(|_| is_there)?;
            Some(FdbEntry { vid, mac, port, claim, age_secs: bucket.age_secs(way, now_secs) })
        })
    }

    /// The present values of the counters.
    pub fn stats(&self) -> FdbStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        FdbStats {
            moved: get(&self.counters.moved),
            evicted: get(&self.counters.evicted),
            refused_port_limit: get(&self.counters.refused_port_limit),
            refused_network_limit: get(&self.counters.refused_network_limit),
            refused_bucket_full: get(&self.counters.refused_bucket_full),
        }
    }

    /// Removes the entries for which `gone` is true; the lock is held.
    fn sweep(&self, buckets: Range<usize>, gone: impl Fn(&Bucket, usize, Entry) -> bool) -> usize {
        let mut removed = 0;
        for (index, bucket) in buckets.clone().zip(&self.buckets[buckets]) {
            for (way, entry) in bucket.entries().filter(|&(way, entry)| gone(bucket, way, entry)) {
                self.remove(index, way, entry);
                removed += 1;
            }
        }
        removed
    }

    fn remove(&self, bucket: usize, way: usize, entry: Entry) {
        self.buckets[bucket].words[way].store(0, Ordering::Release);
        self.changed();
        self.uncount(bucket, entry);
    }

    fn uncount(&self, bucket: usize, entry: Entry) {
        self.learned[entry.port.index()].fetch_sub(1, Ordering::Relaxed);
        if let Some(count) = self.network_count(bucket, entry) {
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The second counter of an entry, besides its port's: that of its network, if the entry was learned behind an
    /// uplink.
    fn network_count(&self, bucket: usize, entry: Entry) -> Option<&AtomicU32> {
        if !entry.claim.is_outside() {
            return None;
        }
        let (vid, _) = Slot { bucket, tag: entry.tag }.address(self.seed)?;
        self.in_network.get(usize::from(vid.network()?))
    }

    /// The number of a network's addresses behind uplinks, including expired entries that are not swept yet.
    pub fn learned_in(&self, vid: Vid) -> u32 {
        let count = vid.network().and_then(|number| self.in_network.get(usize::from(number)));
        count.map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// Locks the table. Each single store leaves the table valid, so a lock poisoned by a panic means nothing.
    fn lock(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
