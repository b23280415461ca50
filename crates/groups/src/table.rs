//! The connections of one interface, in memory that is fixed when the table is made.
//!
//! A connection is in one of two buckets that a keyed hash names: whoever chooses ports cannot choose buckets. A new
//! one goes where there is more room. Where there is none, it takes the place of one that has ended, or of the half-open
//! one that was seen longest ago; connections that both ends have confirmed stay.

use weir_limits::{GROUP_CONNECTION_BYTES_MAX, GROUP_CONNECTIONS_MAX, GROUP_TIME_SHIFT};
use weir_wire::layers::protocol;

use crate::fragments::Fragments;
use crate::packet::Key;
use crate::rules::Direction;

/// Connections of a bucket.
const WAYS: usize = 8;
const BUCKETS: usize = GROUP_CONNECTIONS_MAX / WAYS;
const _: () = assert!(BUCKETS.is_power_of_two() && BUCKETS <= 1 << 16);

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    /// One end has asked.
    SynSent = 1,
    /// The other has agreed.
    SynReceived,
    /// Both have.
    Established,
    /// The opener sends nothing more.
    FinOfOpener,
    /// The other end sends nothing more.
    FinOfPeer,
    /// Neither does; the last acknowledgement is to come.
    Closing,
    /// It has come.
    TimeWait,
    /// One end has broken off.
    Reset,
    /// A connection that was there before the table: one end was heard. That end counts as the opener in TCP's steps.
    TakenUp,
    /// The rules have changed, and no longer allow it.
    Forbidden,
    /// Without TCP: one end has sent.
    Unanswered,
    /// Both have.
    Answered,
}

impl State {
    const ALL: [Self; 12] = {
        use State::*;
        [
            SynSent,
            SynReceived,
            Established,
            FinOfOpener,
            FinOfPeer,
            Closing,
            TimeWait,
            Reset,
            TakenUp,
            Forbidden,
            Unanswered,
            Answered,
        ]
    };

    /// Seconds without a packet after which the connection is forgotten.
    pub(crate) fn timeout_secs(self, protocol: u8) -> u32 {
        use State::*;
        match (self, protocol) {
            (SynSent | SynReceived, _) => 30,
            (Established | Forbidden, _) => 24 * 3600,
            (FinOfOpener | FinOfPeer | Closing, _) => 120,
            (TimeWait, _) => 60,
            (Reset, _) => 10,
            (TakenUp, _) => 300,
            (Unanswered, protocol::UDP) => 30,
            (Answered, protocol::UDP) => 180,
            (Unanswered | Answered, crate::packet::ICMP | protocol::ICMPV6) => 30,
            (Unanswered, _) => 60,
            (Answered, _) => 600,
        }
    }

    /// How willingly it gives its place to another: 0 never.
    fn yields(self) -> u32 {
        use State::*;
        match self {
            Reset | TimeWait => 3,
            SynSent | SynReceived | TakenUp | Forbidden | Unanswered => 2,
            Closing => 1,
            Established | FinOfOpener | FinOfPeer | Answered => 0,
        }
    }
}

/// What is known of a connection beside its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub state: State,
    /// Which way it was opened.
    pub opener: Direction,
    /// Which way the end sends that was heard first, where that is another: of a connection that was taken up.
    pub heard: Direction,
    /// The rules that have allowed it.
    pub generation: u16,
    /// When it was last seen, in units of 2^[`GROUP_TIME_SHIFT`] ns.
    pub seen: u32,
}

impl Known {
    fn pack(self) -> u64 {
        let bit = |direction| u64::from(direction == Direction::Out);
        u64::from(self.seen) << 32
            | u64::from(self.generation) << 16
            | bit(self.heard) << 9
            | bit(self.opener) << 8
            | self.state as u64
    }

    fn unpack(word: u64) -> Option<Self> {
        let direction = |bit: u32| match word >> bit & 1 {
            0 => Direction::In,
            _ => Direction::Out,
        };
        let state = *State::ALL.get((word & 0xff).checked_sub(1)? as usize)?;
        let (opener, heard) = (direction(8), direction(9));
        Some(Self {
            state,
            opener,
            heard,
            generation: (word >> 16) as u16,
            seen: (word >> 32) as u32,
        })
    }

    fn is_over(&self, protocol: u8, now: u32) -> bool {
        let secs = u64::from(self.state.timeout_secs(protocol));
        u64::from(now.wrapping_sub(self.seen)) > (secs * 1_000_000_000) >> GROUP_TIME_SHIFT
    }
}

/// A connection: its ends and what is known of it.
type Entry = [u64; 6];
const _: () = assert!(size_of::<Entry>() + size_of::<u16>() <= GROUP_CONNECTION_BYTES_MAX);

/// Where a connection is, or has been looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    buckets: [u32; 2],
    tag: u16,
    /// The bucket's number and the way.
    at: Option<(u32, u8)>,
}

/// See the module.
#[derive(Debug)]
pub struct Table {
    /// Of each connection a part of its hash, never 0 where there is one.
    tags: Box<[[u16; WAYS]]>,
    entries: Box<[[Entry; WAYS]]>,
    seed: [u64; 6],
    live: u32,
    /// Connections that found no place.
    full: u64,
    sweep: u32,
    /// When it was made.
    pub(crate) since_ns: u64,
    pub(crate) fragments: Fragments,
}

pub(crate) fn ticks(now_ns: u64) -> u32 {
    // It wraps after two years, and no connection lives so long.
    (now_ns >> GROUP_TIME_SHIFT) as u32
}

fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

fn protocol_of(entry: &Entry) -> u8 {
    (entry[4] >> 8) as u8
}

impl Table {
    /// An empty table. `seed` is a secret of this table's.
    pub fn new(seed: u64, now_ns: u64) -> Self {
        let mut state = seed;
        let seed = std::array::from_fn(|_| {
            // SplitMix64.
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ z >> 31
        });
        Self {
            // Memory of zeros: pages are taken up when a connection first needs them.
            tags: vec![[0; WAYS]; BUCKETS].into_boxed_slice(),
            entries: vec![[[0; 6]; WAYS]; BUCKETS].into_boxed_slice(),
            seed,
            live: 0,
            full: 0,
            sweep: 0,
            since_ns: now_ns,
            fragments: Fragments::default(),
        }
    }

    /// Connections that it has, those included that nobody has looked at since they ended.
    pub fn connections(&self) -> u32 {
        self.live
    }

    /// New connections that found no place, since others hold theirs.
    pub fn refused(&self) -> u64 {
        self.full
    }

    fn hash(&self, Key(key): &Key) -> u64 {
        let [a, b, c, d, e, f] = self.seed;
        let ends = fold(key[0] ^ key[1] ^ a, key[1].rotate_left(32) ^ b)
            ^ fold(key[2] ^ key[3] ^ c, key[3].rotate_left(32) ^ d);
        // The ends' high halves again: those of IPv4 are 0, and those of IPv6 must not cancel out.
        let ends = ends ^ fold(key[0] ^ d, key[2] ^ b);
        fold(ends ^ key[4] ^ e, f | 1)
    }

    /// Looks for a connection that is not over.
    pub(crate) fn find(&self, key: &Key, now: u32) -> (Place, Option<Known>) {
        let hash = self.hash(key);
        let mask = (BUCKETS - 1) as u32;
        let buckets = [hash as u32 & mask, (hash >> 24) as u32 & mask];
        let tag = (hash >> 48) as u16 | 1;
        let mut place = Place { buckets, tag, at: None };
        for bucket in buckets {
            let Some(tags) = self.tags.get(bucket as usize) else { continue };
            for (way, _) in tags.iter().enumerate().filter(|(_, other)| **other == tag) {
                let Some(entry) = self.entry(bucket, way) else { continue };
                if entry[..5] == key.0 {
                    place.at = Some((bucket, way as u8));
                    let known = Known::unpack(entry[5]);
                    return (place, known.filter(|it| !it.is_over(protocol_of(entry), now)));
                }
            }
        }
        (place, None)
    }

    fn entry(&self, bucket: u32, way: usize) -> Option<&Entry> {
        self.entries.get(bucket as usize)?.get(way)
    }

    /// Notes what is known of a connection that was [looked for](Self::find). `false` if there is no room for it.
    pub(crate) fn note(&mut self, place: Place, key: &Key, known: Known) -> bool {
        if place.at.is_none() {
            self.sweep_one(known.seen);
        }
        let Some((bucket, way)) = place.at.or_else(|| self.make_room(place, known.seen)) else {
            self.full += 1;
            return false;
        };
        let (bucket, way) = (bucket as usize, usize::from(way));
        if let (Some(tag), Some(entry)) = (
            self.tags.get_mut(bucket).and_then(|tags| tags.get_mut(way)),
            self.entries.get_mut(bucket).and_then(|entries| entries.get_mut(way)),
        ) {
            self.live += u32::from(*tag == 0);
            *tag = place.tag;
            let [a, b, c, d, e] = key.0;
            *entry = [a, b, c, d, e, known.pack()];
        }
        true
    }

    /// Forgets a connection.
    pub(crate) fn remove(&mut self, place: Place) {
        if let Some((bucket, way)) = place.at {
            self.clear(bucket, way.into());
        }
    }

    fn clear(&mut self, bucket: u32, way: usize) {
        if let Some(tag) = self.tags.get_mut(bucket as usize).and_then(|tags| tags.get_mut(way)) {
            self.live -= u32::from(*tag != 0);
            *tag = 0;
        }
    }

    /// The way in one of the two buckets that is free, or whose connection yields first.
    fn make_room(&mut self, place: Place, now: u32) -> Option<(u32, u8)> {
        let taken = |bucket: u32| {
            let tags = self.tags.get(bucket as usize);
            tags.map_or(WAYS, |tags| tags.iter().filter(|tag| **tag != 0).count())
        };
        let [first, second] = place.buckets;
        let buckets = if taken(second) < taken(first) { [second, first] } else { [first, second] };
        let mut best: Option<((u32, u32), (u32, u8))> = None;
        for bucket in buckets {
            for way in 0..WAYS {
                let at = (bucket, way as u8);
                if self.tags.get(bucket as usize)?[way] == 0 {
                    return Some(at);
                }
                let entry = self.entry(bucket, way)?;
                let Some(known) = Known::unpack(entry[5]) else { return Some(at) };
                if known.is_over(protocol_of(entry), now) {
                    return Some(at);
                }
                let rank = (known.state.yields(), now.wrapping_sub(known.seen));
                if rank.0 > 0 && best.is_none_or(|(other, _)| rank > other) {
                    best = Some((rank, at));
                }
            }
        }
        best.map(|(_, at)| at)
    }

    /// With each new connection one bucket is rid of what is over.
    fn sweep_one(&mut self, now: u32) {
        let bucket = self.sweep;
        self.sweep = (self.sweep + 1) % BUCKETS as u32;
        for way in 0..WAYS {
            let is_over = self.entry(bucket, way).is_some_and(|entry| {
                Known::unpack(entry[5]).is_none_or(|it| it.is_over(protocol_of(entry), now))
            });
            if is_over {
                self.clear(bucket, way);
            }
        }
    }
}
