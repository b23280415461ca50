//! The connections of one interface, in memory that is fixed when the table is made.
//!
//! A connection is in one of two buckets that a keyed hash names: guests choose ports, but not buckets. A new
//! connection goes into the first bucket while half of that is free, otherwise into the bucket with more room. If both
//! are full, it takes the place of a connection that has ended, or of one that can move to the other bucket that its
//! own hash names, or of the half-open one that was seen longest ago. Connections that both ends have confirmed stay:
//! one of them moves to the other bucket that its own hash names, if there is room.

use std::mem::swap;

use weir_limits::{BURST_MAX, GROUP_CONNECTION_BYTES_MAX, GROUP_CONNECTIONS_MAX, GROUP_TIME_SHIFT};
use weir_wire::layers::protocol;

use crate::fragments::Fragments;
use crate::packet::{Flags, Key};
use crate::plain::{RowEnds, is_v4};
use crate::refusals::Refusals;
use crate::rules::Direction;
use crate::states::{self, Step, step};

/// Connections of a bucket.
const WAYS: usize = 8;
const BUCKETS: usize = GROUP_CONNECTIONS_MAX / WAYS;
const _: () = assert!(BUCKETS.is_power_of_two() && BUCKETS <= 1 << 16);

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    /// One end has sent SYN.
    SynSent = 1,
    /// Both ends have sent SYN at once (RFC 9293 §3.5, figure 7).
    Crossed,
    /// The other end has sent SYN and ACK.
    SynReceived,
    /// The handshake is complete.
    Established,
    /// The opener has sent FIN.
    FinOfOpener,
    /// The other end has sent FIN.
    FinOfPeer,
    /// Both ends have sent FIN, and the last ACK is missing.
    Closing,
    /// The last ACK has come.
    TimeWait,
    /// One end has sent RST.
    Reset,
    /// A connection that is older than the table. One end was heard, and counts as the opener in TCP's steps.
    TakenUp,
    /// The rules have changed, and no longer allow the connection.
    Forbidden,
    /// A protocol other than TCP: one end has sent.
    Unanswered,
    /// A protocol other than TCP: both ends have sent.
    Answered,
}

/// The rank of connections that have ended, among those that [yield](State::yields).
const ENDED: u8 = 3;

impl State {
    const ALL: [Self; 13] = {
        use State::*;
        [
            SynSent,
            Crossed,
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
            (SynSent | Crossed | SynReceived, _) => 30,
            // Ends of SCTP ask each other for a sign of life every 30 s (RFC 9260 §16).
            (Established, protocol::SCTP) => 300,
            (Established | Forbidden, _) => 24 * 3600,
            (FinOfOpener | FinOfPeer | Closing, _) => 120,
            (TimeWait, _) => 60,
            (Reset, _) => 10,
            (TakenUp, _) => 300,
            (Unanswered, protocol::UDP) => 30,
            (Answered, protocol::UDP) => 180,
            (Unanswered | Answered, protocol::ICMP | protocol::ICMPV6) => 30,
            (Unanswered, _) => 60,
            (Answered, _) => 600,
        }
    }

    /// The order in which connections give their places to new ones: highest first, 0 never.
    const fn yields(self) -> u8 {
        use State::*;
        match self {
            Reset | TimeWait => ENDED,
            SynSent | Crossed | SynReceived | TakenUp | Forbidden | Unanswered => 2,
            Closing => 1,
            Established | FinOfOpener | FinOfPeer | Answered => 0,
        }
    }
}

/// A connection without its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub state: State,
    /// The direction in which the connection was opened.
    pub opener: Direction,
    /// The direction of the first packet. It differs from `opener` only if the connection was taken
    /// up.
    pub heard: Direction,
    /// The number of the rules that have allowed the connection.
    pub generation: u16,
    /// The time of the last packet, in units of 2^[`GROUP_TIME_SHIFT`] ns.
    pub seen: u32,
}

impl Known {
    fn pack(self) -> u64 {
        let bit = |direction| u64::from(direction == Direction::Out);
        let of = self.state as u64 | bit(self.opener) << 4 | bit(self.heard) << 5;
        u64::from(self.seen) << 32
            | u64::from(self.generation) << 16
            | GOING_ON[of as usize % 64]
            | bit(self.heard) << 9
            | bit(self.opener) << 8
            | self.state as u64
    }

    fn unpack(word: u64) -> Option<Self> {
        let direction = |bit: u32| Direction::of((word >> bit & 1) as usize);
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

    /// The direction of packets of the end that counts as the opener in TCP's steps.
    pub const fn first(&self) -> Direction {
        if matches!(self.state, State::TakenUp) { self.heard } else { self.opener }
    }

    /// True if a [plain](crate::plain) packet that goes `direction` changes nothing of the connection except the time
    /// when it was seen.
    const fn goes_on(&self, direction: Direction) -> bool {
        match self.state {
            // Such a connection is forgotten sooner than others.
            State::Reset => false,
            State::Unanswered => self.opener as u8 == direction as u8,
            State::Answered => true,
            state => match step(state, Flags(Flags::ACK), self.first() as u8 == direction as u8) {
                Step::To(to) => to as u8 == state as u8,
                _ => false,
            },
        }
    }

    fn is_over(&self, protocol: u8, now: u32) -> bool {
        let secs = u64::from(self.state.timeout_secs(protocol));
        u64::from(ticks_since(now, self.seen)) > (secs * 1_000_000_000) >> GROUP_TIME_SHIFT
    }
}

/// The [bits](going_on) of the directions in which plain packets change nothing, by state, and with the directions of
/// the opener and of the first packet from bit 4 on.
const GOING_ON: [u64; 64] = {
    let mut all = [0; 64];
    let mut of = 0;
    while of < all.len() {
        if of % 16 > 0 && of % 16 <= State::ALL.len() {
            let state = State::ALL[of % 16 - 1];
            let [opener, heard] = [Direction::of(of & 16), Direction::of(of & 32)];
            let known = Known { state, opener, heard, generation: 0, seen: 0 };
            if known.goes_on(Direction::In) {
                all[of] |= going_on(Direction::In);
            }
            if known.goes_on(Direction::Out) {
                all[of] |= going_on(Direction::Out);
            }
        }
        of += 1;
    }
    all
};

/// The time since a connection was seen, in its unit. It is 0 if another worker has seen the connection after this one
/// read its clock.
pub(crate) fn ticks_since(now: u32, seen: u32) -> u32 {
    u32::try_from(now.wrapping_sub(seen).cast_signed()).unwrap_or(0)
}

/// The bit of a packed [`Known`] that a plain packet looks at.
#[inline(always)]
const fn going_on(direction: Direction) -> u64 {
    match direction {
        Direction::In => 1 << 10,
        Direction::Out => 1 << 11,
    }
}

/// The least time before any connection is over: 10 s.
const LIVES_TICKS: u32 = (10_000_000_000_u64 >> GROUP_TIME_SHIFT) as u32;

/// The least time before a connection in use is forgotten: 30 s.
const FRESH_TICKS: u32 = (30_000_000_000_u64 >> GROUP_TIME_SHIFT) as u32;

/// The packed [`Known`] of a connection of which a plain packet changes only the time when it was seen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// The direction's bit, the rules' number and the time.
    known: u64,
    /// The bits of the three.
    same: u64,
}

/// The bits of the time in a packed [`Known`].
const SEEN: u64 = 0xffff_ffff << 32;

impl Wanted {
    pub fn new(direction: Direction, generation: u16, now: u32) -> Self {
        let bit = going_on(direction);
        let known = u64::from(now) << 32 | u64::from(generation) << 16 | bit;
        Self { known, same: SEEN | 0xffff << 16 | bit }
    }

    /// The rules' number and the time.
    #[inline(always)]
    pub fn rules_and_time(self) -> (u16, u32) {
        ((self.known >> 16) as u16, (self.known >> 32) as u32)
    }

    /// Notes the time if `known` is that of such a connection. Otherwise returns `false`, and changes nothing.
    #[inline(always)]
    fn is_met(self, known: &mut u64) -> bool {
        self.differs(*known) == 0 || self.is_met_but_for_the_time(known)
    }

    /// 0 if the connection was last seen at the same time.
    #[inline(always)]
    fn differs(self, known: u64) -> u64 {
        (known ^ self.known) & self.same
    }

    /// Like [`is_met`](Self::is_met), for a connection that was last seen at another time.
    #[inline(never)]
    fn is_met_but_for_the_time(self, known: &mut u64) -> bool {
        let since = ticks_since((self.known >> 32) as u32, (*known >> 32) as u32);
        let is_met = self.differs(*known) & !SEEN == 0 && since <= FRESH_TICKS;
        if is_met && since > 0 {
            *known = *known & !SEEN | self.known & SEEN;
        }
        is_met
    }
}

/// For each connection of a bucket, 15 bits of its hash; never 0 where there is a connection. Four
/// tags are compared at once.
type Tags = [u64; WAYS / 4];

/// The bit that none of a word's four tags has set.
const NO_TAGS: u64 = 0x8000_8000_8000_8000;

fn tag_at(tags: &Tags, way: usize) -> u16 {
    (tags[way / 4 % 2] >> (way % 4 * 16)) as u16
}

fn set_tag(tags: &mut Tags, way: usize, tag: u16) {
    let (word, shift) = (&mut tags[way / 4 % 2], way % 4 * 16);
    *word = *word & !(0xffff << shift) | u64::from(tag) << shift;
}

/// Ways of a bucket that have `tag`, by bits that [`way_of`] knows.
#[inline(always)]
fn with_tag(tags: &Tags, tag: u16) -> u64 {
    let wanted = u64::from(tag) * 0x0001_0001_0001_0001;
    // No difference borrows from the tag above, since no tag has the highest bit.
    let equal = |word: u64| (NO_TAGS - (word ^ wanted)) & NO_TAGS;
    equal(tags[0]) >> 1 | equal(tags[1])
}

/// The bits of all ways.
const ALL_WAYS: u64 = NO_TAGS >> 1 | NO_TAGS;

#[inline(always)]
fn way_of(bit: usize) -> usize {
    (bit / 16) | (bit % 2 * 4)
}

/// A connection: the key's first and last word, which are the whole key of one of IPv4, and a
/// packed [`Known`]. The type is an array, since only memory of numbers comes zeroed without being
/// touched.
type Entry = [u64; 3];
/// The place of the packed [`Known`].
const KNOWN: usize = 2;
/// The rest of a key of IPv6. It is apart, so that connections of IPv4 take less of the caches.
type Rest = [u64; 3];
/// Bytes of a connection: in each of the lists, and in the tags of its bucket.
const CONNECTION_BYTES: usize =
    size_of::<Entry>() + size_of::<Rest>() + size_of::<states::Tags>() + 2 * size_of::<u16>();
const _: () = assert!(CONNECTION_BYTES <= GROUP_CONNECTION_BYTES_MAX);

/// Bytes of an interface's table when each of its pages is in use.
pub const TABLE_BYTES: usize = size_of::<Table>() + CONNECTION_BYTES * GROUP_CONNECTIONS_MAX;

/// Buckets that a key's hash names, the tag there, and the way that is taken if it is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Spots {
    buckets: [usize; 2],
    tag: u16,
    way: usize,
}

/// The place that is read first.
#[inline(always)]
fn home(hash: u64) -> usize {
    hash as usize % GROUP_CONNECTIONS_MAX
}

impl Spots {
    fn of(hash: u64) -> Self {
        let bucket = |bits: u64| bits as usize % BUCKETS;
        Self {
            buckets: [home(hash) / WAYS, bucket(hash >> 28)],
            tag: (hash >> 49) as u16 | 1,
            way: home(hash) % WAYS,
        }
    }

    /// The place that is read first: in the first bucket.
    #[inline(always)]
    fn home(self) -> usize {
        self.buckets[0] * WAYS + self.way
    }
}

/// The result of a look-up: the connection's place, or the buckets without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    spots: Spots,
    pub at: Option<usize>,
}

/// A place for a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    /// The place has no live connection.
    Free(usize),
    /// The place has a connection that is being opened or closed.
    Yields(usize),
}

/// See the module.
#[derive(Debug)]
pub struct Table {
    tags: Box<[Tags; BUCKETS]>,
    entries: Box<[Entry; GROUP_CONNECTIONS_MAX]>,
    rests: Box<[Rest; GROUP_CONNECTIONS_MAX]>,
    /// The ID of groups that the other end's latest judged frame had, for stations of other hosts; otherwise 0. Frames
    /// of this host do not touch this memory, except to note a new connection.
    claims: Box<[u16; GROUP_CONNECTIONS_MAX]>,
    /// Verification tags of SCTP. Other protocols do not touch this memory.
    pub(crate) sctp: Box<[states::Tags; GROUP_CONNECTIONS_MAX]>,
    seed: [u64; 5],
    live: u32,
    /// Connections that found no place.
    full: u64,
    /// The bucket that is swept next, and the time at which the first one was.
    sweep: usize,
    swept: u32,
    /// The time at which the table was made.
    pub(crate) since_ns: u64,
    pub(crate) fragments: Fragments,
    pub(crate) refusals: Refusals,
}

/// Memory of zeros. A page is allocated when a connection first needs it.
fn zeros<T, const N: usize>(made: Vec<T>) -> Box<[T; N]> {
    made.try_into().unwrap_or_else(|_| unreachable!("as long as it was made"))
}

#[inline(always)]
pub(crate) fn ticks(now_ns: u64) -> u32 {
    // The time wraps after two years, and no connection lives so long.
    (now_ns >> GROUP_TIME_SHIFT) as u32
}

#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// A round of a keyed hash.
#[inline(always)]
fn mixed(k0: u64, k1: u64, a: u64, b: u64) -> u64 {
    fold(k0.wrapping_add(a), k1.wrapping_add(b))
}

/// The hash of a key of IPv4 by its first and last word.
#[inline(always)]
fn hash_v4([first, last]: [u64; 2], [a, b, e]: [u64; 3]) -> u64 {
    fold(mixed(first, last, a, b), e)
}

/// The state of a connection, unless it is over.
fn known_of(entry: &Entry, now: u32) -> Option<Known> {
    let is_over = |it: &Known| {
        ticks_since(now, it.seen) > LIVES_TICKS
            && it.is_over(Key::v4(entry[0], entry[1]).protocol(), now)
    };
    Known::unpack(entry[KNOWN]).filter(|it| !is_over(it))
}

/// [`State::yields`] of a connection, and below it the time since it was seen; `None` if it is over.
fn rank_of(entry: &Entry, now: u32) -> Option<u64> {
    /// By the number of the state.
    const YIELDS: [u8; 16] = {
        let mut all = [0; 16];
        let mut nth = 0;
        while nth < State::ALL.len() {
            all[nth + 1] = State::ALL[nth].yields();
            nth += 1;
        }
        all
    };
    let since = ticks_since(now, (entry[KNOWN] >> 32) as u32);
    if since > LIVES_TICKS && known_of(entry, now).is_none() {
        return None;
    }
    Some(u64::from(YIELDS[entry[KNOWN] as usize % 16]) << 32 | u64::from(since))
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
            tags: zeros(vec![[0; WAYS / 4]; BUCKETS]),
            entries: zeros(vec![[0; 3]; GROUP_CONNECTIONS_MAX]),
            rests: zeros(vec![[0; 3]; GROUP_CONNECTIONS_MAX]),
            claims: zeros(vec![0; GROUP_CONNECTIONS_MAX]),
            sctp: zeros(vec![[0; 2]; GROUP_CONNECTIONS_MAX]),
            seed,
            live: 0,
            full: 0,
            sweep: 0,
            swept: ticks(now_ns),
            since_ns: now_ns,
            fragments: Fragments::default(),
            refusals: Refusals::default(),
        }
    }

    /// The number of connections, including ended ones that no look-up has found since.
    pub fn connections(&self) -> u32 {
        self.live
    }

    /// The number of new connections that found no place.
    pub fn refused(&self) -> u64 {
        self.full
    }

    /// The refused frames.
    pub fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    /// The refused frames. [`Refusals::take`] takes those since the last call.
    pub fn refusals_mut(&mut self) -> &mut Refusals {
        &mut self.refusals
    }

    /// Two rounds of multiplication with secrets, as in wyhash. Nobody outside sees a hash or a full bucket. Different
    /// keys have unrelated hashes, so attackers cannot choose keys for a bucket.
    #[inline(always)]
    fn spots(&self, key: &Key) -> Spots {
        let [a, b, c, d, e] = self.seed;
        let [k0, k1, k2, k3, last] = key.0;
        let (one, other) = match key.is_v6() {
            false => return Spots::of(hash_v4([k0, last], [a, b, e])),
            true => (mixed(k0, k1, a, b), mixed(k2, k3, c, d) ^ last),
        };
        Spots::of(fold(one, other ^ e))
    }

    /// True if the connection at a place has this key.
    #[inline(always)]
    fn is_at(&self, at: usize, key: &Key) -> bool {
        let (entry, [first, a, b, c, last]) = (&self.entries[at % GROUP_CONNECTIONS_MAX], key.0);
        entry[0] == first
            && entry[1] == last
            && (!key.is_v6() || self.rests[at % GROUP_CONNECTIONS_MAX] == [a, b, c])
    }

    /// The key of the connection at a place.
    fn key_at(&self, at: usize) -> Key {
        let ([first, last, _], [a, b, c]) = (self.entries[at], self.rests[at]);
        match Key([first, 0, 0, 0, last]) {
            key if key.is_v6() => Key([first, a, b, c, last]),
            key => key,
        }
    }

    fn put(&mut self, at: usize, key: &Key, known: u64) {
        let [first, a, b, c, last] = key.0;
        self.entries[at] = [first, last, known];
        if key.is_v6() {
            self.rests[at] = [a, b, c];
        }
    }

    /// The place of a connection that was noted, over or not.
    #[inline(always)]
    fn seek(&self, key: &Key, spots: Spots) -> Option<usize> {
        let home = &self.entries[spots.home() % GROUP_CONNECTIONS_MAX];
        if home[KNOWN] != 0 && self.is_at(spots.home(), key) {
            return Some(spots.home());
        }
        for bucket in spots.buckets {
            let mut ways = with_tag(&self.tags[bucket], spots.tag);
            while ways != 0 {
                let at = bucket * WAYS + way_of(ways.trailing_zeros() as usize);
                if self.is_at(at, key) {
                    return Some(at);
                }
                ways &= ways - 1;
            }
        }
        None
    }

    /// Notes the time of a plain packet that changes nothing else of its connection; `false` if there is no such
    /// connection, or if its other end has `claimed` other groups.
    pub(crate) fn go_on(&mut self, key: &Key, wanted: Wanted, claimed: Option<u16>) -> bool {
        let Some(at) = self.seek(key, self.spots(key)) else { return false };
        let is_claimed = claimed.is_none_or(|id| self.claims[at % GROUP_CONNECTIONS_MAX] == id);
        is_claimed && wanted.is_met(&mut self.entries[at % GROUP_CONNECTIONS_MAX][KNOWN])
    }

    /// The number of rows, from the first on, for which [`go_on`](Self::go_on) would return true after one look: the
    /// frames are of IPv4, and their connection is in the place that is read first. The next row may pass, too.
    #[inline(always)]
    pub(crate) fn go_on_at_home(
        &mut self,
        rows: &[RowEnds],
        direction: Direction,
        wanted: Wanted,
    ) -> usize {
        match rows.first() {
            Some(ends) if is_v4(ends) => self.all_go_on_at_home(rows, direction, wanted),
            _ => 0,
        }
    }

    #[inline(never)]
    fn all_go_on_at_home(
        &mut self,
        rows: &[RowEnds],
        direction: Direction,
        wanted: Wanted,
    ) -> usize {
        let (entries, [a, b, .., e]) = (&mut *self.entries, self.seed);
        let mut left = rows.iter();
        while let Some(row) = left.next() {
            let [first, last] = row[direction as usize];
            let entry = &mut entries[home(hash_v4([first, last], [a, b, e]))];
            let differs = entry[0] ^ first | entry[1] ^ last;
            // One branch for all conditions, which usually hold.
            if differs | wanted.differs(entry[KNOWN]) != 0
                && (differs != 0 || !wanted.is_met_but_for_the_time(&mut entry[KNOWN]))
            {
                return rows.len() - left.len() - 1;
            }
        }
        rows.len()
    }

    /// True if enough places are taken that [looking for all at once](Self::go_on_together) takes
    /// less time than to look into the place that is read first, and then for those that are
    /// elsewhere one by one.
    #[inline(always)]
    pub(crate) fn is_well_filled(&self) -> bool {
        self.live as usize > GROUP_CONNECTIONS_MAX / 8 * 3
    }

    /// Looks for the connections of several rows at once, so that no row waits for another one's
    /// memory. Bit i of the result: row i is of IPv4, a plain packet leaves its connection as it
    /// is, and the time is noted. A row without its bit may have a connection nevertheless.
    #[inline(never)]
    pub(crate) fn go_on_together(
        &mut self,
        rows: &[RowEnds],
        direction: Direction,
        wanted: Wanted,
    ) -> u64 {
        let (entries, [a, b, .., e]) = (&mut *self.entries, self.seed);
        let mut places = [0; BURST_MAX];
        let (mut at_once, mut later) = (0_u64, 0_u64);
        for (nth, (row, place)) in rows.iter().zip(&mut places).enumerate() {
            let [first, last] = row[direction as usize];
            let spots = Spots::of(hash_v4([first, last], [a, b, e]));
            let [here, there] = spots.buckets.map(|bucket| with_tag(&self.tags[bucket], spots.tag));
            let (bucket, ways) = match here {
                0 => (spots.buckets[1], there),
                here => (spots.buckets[0], here),
            };
            // The place has the tag. Other places of the buckets have the same tag only once in
            // thousands of cases.
            *place =
                (bucket * WAYS + way_of(ways.trailing_zeros() as usize)) % GROUP_CONNECTIONS_MAX;
            let entry = &entries[*place];
            let differs = entry[0] ^ first | entry[1] ^ last;
            at_once |= u64::from(differs | wanted.differs(entry[KNOWN]) == 0) << nth;
            later |= u64::from(differs == 0) << nth;
        }
        later &= !at_once;
        while later != 0 {
            let nth = later.trailing_zeros() as usize;
            let known = &mut entries[places[nth % BURST_MAX]][KNOWN];
            at_once |= u64::from(wanted.is_met_but_for_the_time(known)) << nth;
            later &= later - 1;
        }
        at_once
    }

    /// The connection at a place, unless it is over.
    pub(crate) fn at(&self, at: usize, now: u32) -> Option<(Key, Known)> {
        let tags = self.tags.get(at / WAYS)?;
        let entry = self.entries.get(at).filter(|_| tag_at(tags, at % WAYS) != 0)?;
        Some((self.key_at(at), known_of(entry, now)?))
    }

    /// Swaps all connections, and the datagrams that come in fragments, with another table. Both tables are made,
    /// written and freed while no frame waits for them, however many connections there are.
    pub fn exchange(&mut self, other: &mut Self) {
        let Self { tags, entries, rests, claims, sctp, seed, live, sweep, fragments, .. } = other;
        swap(&mut self.tags, tags);
        swap(&mut self.entries, entries);
        swap(&mut self.rests, rests);
        swap(&mut self.claims, claims);
        swap(&mut self.sctp, sctp);
        swap(&mut self.seed, seed);
        swap(&mut self.live, live);
        swap(&mut self.sweep, sweep);
        swap(&mut self.fragments, fragments);
    }

    /// Looks for a connection that is not over.
    pub(crate) fn find(&self, key: &Key, now: u32) -> (Place, Option<Known>) {
        let spots = self.spots(key);
        let at = self.seek(key, spots);
        let known = at.and_then(|at| known_of(&self.entries[at], now));
        (Place { spots, at }, known)
    }

    /// True if a frame has `claimed` other groups for the other end than the frame before.
    pub(crate) fn claims_other(&self, place: Place, claimed: Option<u16>) -> bool {
        let noted = || place.at.and_then(|at| self.claims.get(at));
        claimed.is_some_and(|id| noted().is_some_and(|noted| *noted != id))
    }

    /// Notes what is known of a connection that was [looked for](Self::find), and the ID of groups that the frame has
    /// `claimed` for the other end. Returns the connection's place; `None` if there is no room for it.
    pub(crate) fn note(
        &mut self,
        place: Place,
        key: &Key,
        known: Known,
        claimed: Option<u16>,
    ) -> Option<usize> {
        if place.at.is_none() {
            self.sweep_one(known.seen);
        }
        let at = place.at.or_else(|| match self.make_room(place.spots, known.seen) {
            Some(Room::Free(at)) => Some(at),
            // The other end may be about to answer the half-open connection. Under a flood of such
            // connections, only a few are checked.
            Some(Room::Yields(at)) => self.move_one(place.spots, WAYS / 4).or(Some(at)),
            None => self.move_one(place.spots, WAYS),
        });
        let Some(at) = at else {
            self.full += 1;
            return None;
        };
        let (tags, way) = (&mut self.tags[at / WAYS], at % WAYS);
        self.live += u32::from(tag_at(tags, way) == 0);
        set_tag(tags, way, place.spots.tag);
        self.put(at, key, known.pack());
        if claimed.is_some() || place.at.is_none() {
            self.claims[at] = claimed.unwrap_or(0);
        }
        Some(at)
    }

    /// Notes the step of a segment that continues a known connection which the rules of `generation` have allowed.
    /// Returns `false`, and changes nothing, for any other segment, and if its other end has `claimed` other groups.
    #[inline(always)]
    pub(crate) fn step_on(
        &mut self,
        key: &Key,
        flags: Flags,
        (direction, claimed): (Direction, Option<u16>),
        (generation, now): (u16, u32),
    ) -> bool {
        // SYN alone nearly always opens a connection.
        if !flags.are_valid() || flags.has(Flags::SYN) && !flags.has(Flags::ACK) {
            return false;
        }
        let Some(at) = self.seek(key, self.spots(key)).map(|at| at % GROUP_CONNECTIONS_MAX) else {
            return false;
        };
        let known = known_of(&self.entries[at], now).filter(|it| it.generation == generation);
        let is_claimed = claimed.is_none_or(|id| self.claims[at] == id);
        let Some(known) = known.filter(|_| is_claimed) else { return false };
        let Step::To(state) = step(known.state, flags, known.first() == direction) else {
            return false;
        };
        self.entries[at][KNOWN] = Known { state, seen: now, ..known }.pack();
        true
    }

    /// Forgets a connection.
    pub(crate) fn remove(&mut self, place: Place) {
        if let Some(at) = place.at {
            self.clear(at);
        }
    }

    fn clear(&mut self, at: usize) {
        let (tags, way) = (&mut self.tags[at / WAYS], at % WAYS);
        self.live -= u32::from(tag_at(tags, way) != 0);
        set_tag(tags, way, 0);
        // A reader of the entry without its tag finds nothing.
        self.entries[at][KNOWN] = 0;
    }

    /// The place in one of the two buckets that is free, or whose connection yields first. The second bucket is read
    /// only if no connection in the first one has ended: buckets are several cache lines, and seldom in the cache.
    fn make_room(&self, spots: Spots, now: u32) -> Option<Room> {
        let free = |bucket: usize| with_tag(&self.tags[bucket], 0);
        let [first, second] = spots.buckets;
        let in_first = free(first);
        let (mut emptier, mut other, mut ways) = (first, second, in_first);
        // While there is room enough, connections are where they are looked for first.
        if (in_first.count_ones() as usize) < WAYS / 2 {
            let in_second = free(second);
            if in_second.count_ones() > in_first.count_ones() {
                (emptier, other, ways) = (second, first, in_second);
            }
        }
        if ways != 0 {
            let way = match tag_at(&self.tags[emptier], spots.way) {
                0 => spots.way,
                _ => way_of(ways.trailing_zeros() as usize),
            };
            return Some(Room::Free(emptier * WAYS + way));
        }
        // This place was read already.
        let home = spots.home();
        if rank_of(&self.entries[home], now).is_none_or(|rank| rank >> 32 == u64::from(ENDED)) {
            return Some(Room::Free(home));
        }
        // The rank of a connection that stays is below each other one.
        let mut best = (u64::from(u32::MAX), None);
        for bucket in [emptier, other] {
            for at in bucket * WAYS..(bucket + 1) * WAYS {
                let Some(rank) = rank_of(&self.entries[at], now) else {
                    return Some(Room::Free(at));
                };
                if rank > best.0 {
                    best = (rank, Some(at));
                }
            }
            if best.0 >> 32 == u64::from(ENDED) {
                return best.1.map(Room::Free);
            }
        }
        best.1.map(Room::Yields)
    }

    /// Moves one of the first `ways` connections of two full buckets to its other bucket. Returns the place that is
    /// free then.
    fn move_one(&mut self, spots: Spots, ways: usize) -> Option<usize> {
        for from in spots.buckets {
            for at in from * WAYS..from * WAYS + ways {
                #[cfg(test)]
                tests::ASKED.set(tests::ASKED.get() + 1);
                let (key, known) = (self.key_at(at), self.entries[at][KNOWN]);
                let own = self.spots(&key);
                let free = own.buckets.into_iter().find_map(|bucket| {
                    let way = (0..WAYS).find(|way| tag_at(&self.tags[bucket], *way) == 0)?;
                    Some((bucket, way))
                });
                let Some((bucket, way)) = free else { continue };
                self.put(bucket * WAYS + way, &key, known);
                self.claims[bucket * WAYS + way] = self.claims[at];
                if key.protocol() == protocol::SCTP {
                    self.sctp[bucket * WAYS + way] = self.sctp[at];
                }
                set_tag(&mut self.tags[bucket], way, own.tag);
                set_tag(&mut self.tags[from], at % WAYS, 0);
                return Some(at);
            }
        }
        None
    }

    /// Clears connections that are over from one bucket. Each new connection pays for one, but all buckets are swept no
    /// more often than connections can be over.
    fn sweep_one(&mut self, now: u32) {
        let bucket = self.sweep;
        if bucket == 0 {
            if ticks_since(now, self.swept) <= LIVES_TICKS {
                return;
            }
            self.swept = now;
        }
        self.sweep = (self.sweep + 1) % BUCKETS;
        let mut ways = with_tag(&self.tags[bucket], 0) ^ ALL_WAYS;
        while ways != 0 {
            let at = bucket * WAYS + way_of(ways.trailing_zeros() as usize);
            if rank_of(&self.entries[at], now).is_none() {
                self.clear(at);
            }
            ways &= ways - 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    thread_local! {
        /// Connections that were asked whether they can move.
        pub(super) static ASKED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    }

    impl Table {
        /// True if a table of the same seed knows the same connections in the same places, of the same groups.
        pub(crate) fn is_like(&self, other: &Self) -> bool {
            let all = |it: &Self| (it.seed, it.live, it.full, it.sweep);
            all(self) == all(other)
                && self.tags == other.tags
                && self.entries == other.entries
                && self.rests == other.rests
                && self.claims == other.claims
                && self.sctp == other.sctp
        }
    }

    fn key(number: u64) -> Key {
        Key::v4(number, u64::from(protocol::TCP) << 40)
    }

    fn ask_for(table: &mut Table, state: State, number: u64) -> usize {
        let (opener, heard) = (Direction::Out, Direction::Out);
        let known = Known { state, opener, heard, generation: 1, seen: 1 };
        ASKED.set(0);
        let (place, _) = table.find(&key(number), 1);
        table.note(place, &key(number), known, None);
        ASKED.get()
    }

    /// Asks for connections until buckets are full, and for as many more. Returns the most that one of the others had
    /// asked whether they can move, and how many found no place.
    fn asked_at_most(state: State) -> (usize, u64) {
        let mut table = Table::new(1, 0);
        let asked =
            (0..2 * GROUP_CONNECTIONS_MAX as u64).map(|nth| ask_for(&mut table, state, nth));
        (asked.max().unwrap_or(0), table.full)
    }

    #[test]
    fn a_new_connection_asks_few_others_to_move_in_a_flood_and_sixteen_beside_confirmed_ones() {
        assert_eq!(asked_at_most(State::SynSent), (WAYS / 2, 0));
        let (most, full) = asked_at_most(State::Established);
        assert_eq!(most, 2 * WAYS);
        assert_eq!(full, GROUP_CONNECTIONS_MAX as u64, "all places are taken");
    }

    /// Confirmed connections take half of the places, each between two of the flood, which goes on after them.
    #[test]
    fn connections_that_move_for_a_flood_are_all_found_again() {
        const CONFIRMED: u64 = GROUP_CONNECTIONS_MAX as u64 / 2;
        let (mut table, mut most, mut moved) = (Table::new(1, 0), 0, 0);
        let of_flood = |number: u64| CONFIRMED + number;
        for number in 0..4 * CONFIRMED {
            if number < CONFIRMED {
                ask_for(&mut table, State::Established, number);
            }
            let asked = ask_for(&mut table, State::SynSent, of_flood(number));
            (most, moved) = (most.max(asked), moved + usize::from(asked > 0));
        }
        assert!(most <= 2 * WAYS && moved > GROUP_CONNECTIONS_MAX, "{most} asked, {moved} times");
        let is_there = |number| {
            table.find(&key(number), 1).1.is_some_and(|known| known.state == State::Established)
        };
        let lost = (0..CONFIRMED).filter(|number| !is_there(*number)).count();
        assert_eq!(lost, 0);
        // Both buckets of a few are full of confirmed ones.
        assert!(table.full < CONFIRMED / 1000, "{} refused", table.full);
    }

    #[test]
    fn buckets_are_swept_no_more_often_than_connections_can_be_over() {
        let mut table = Table::new(1, 0);
        ask_for(&mut table, State::SynSent, 1);
        let mut swept = |now: u32| {
            let mut sweeps = |_: &usize| {
                let before = table.sweep;
                table.sweep_one(now);
                table.sweep != before
            };
            ((0..2 * BUCKETS).filter(|nth| sweeps(nth)).count(), table.live)
        };
        assert_eq!(swept(LIVES_TICKS), (0, 1));
        assert_eq!(swept(LIVES_TICKS + 1), (BUCKETS, 1), "no half-open one is over yet");
        assert_eq!(swept(3 * LIVES_TICKS + 5), (BUCKETS, 0));
    }

    #[test]
    fn a_new_connection_displaces_one_that_has_ended_before_any_other() {
        let mut table = Table::new(1, 0);
        for number in 0..GROUP_CONNECTIONS_MAX as u64 {
            let state = if number % 4 == 0 { State::SynSent } else { State::TimeWait };
            ask_for(&mut table, state, number);
        }
        for number in 0..10_000 {
            ask_for(&mut table, State::Established, 10_000_000 + number);
        }
        let is_there = |number: &u64| table.find(&key(*number), 1).1.is_some();
        let half_open = (0..GROUP_CONNECTIONS_MAX as u64).step_by(4);
        assert_eq!(half_open.filter(is_there).count(), GROUP_CONNECTIONS_MAX / 4);
    }

    #[test]
    fn no_connection_that_goes_on_is_forgotten_while_it_is_fresh() {
        for (state, opener) in State::ALL.into_iter().zip([Direction::In, Direction::Out].repeat(7))
        {
            let known = Known { state, opener, heard: opener, generation: 0, seen: 0 };
            for protocol in [protocol::TCP, protocol::UDP] {
                let goes_on = known.goes_on(Direction::In) || known.goes_on(Direction::Out);
                assert!(!goes_on || !known.is_over(protocol, FRESH_TICKS), "{known:?}");
            }
        }
    }

    #[test]
    fn every_way_of_a_bucket_is_found_by_its_tag_and_no_other_is() {
        let tag = |way: usize| 0x7ff1 + 2 * way as u16;
        let mut tags = Tags::default();
        for way in 0..WAYS {
            set_tag(&mut tags, way, tag(way));
        }
        set_tag(&mut tags, 2, 0);
        for way in (0..WAYS).filter(|way| *way != 2) {
            let found = with_tag(&tags, tag(way));
            assert_eq!(found.count_ones(), 1);
            assert_eq!(way_of(found.trailing_zeros() as usize), way);
            assert_eq!(tag_at(&tags, way), tag(way));
        }
        assert_eq!(with_tag(&tags, tag(2)), 0);
    }
}
