//! Datagrams that come in fragments: the first fragment is judged, and later ones follow. A
//! fragment that comes before the first one, or a second time, is dropped. A fragment that overlaps
//! others is dropped, together with all later ones (RFC 8200 §4.5).

use weir_limits::{GROUP_DATAGRAMS, GROUP_FRAGMENTS_NS, GROUP_RANGES_MAX};

use crate::packet::{Flow, Key, Part};
use crate::rules::Direction;

/// Places in a set. A datagram may take any of them.
const WAYS: usize = 4;
const _: () = assert!(GROUP_DATAGRAMS.is_multiple_of(WAYS));

/// A datagram whose first fragment has passed.
#[derive(Clone, Copy, Debug, Default)]
struct Datagram {
    key: [u64; 5],
    id: u32,
    /// The ports of the first fragment.
    ports: u32,
    since_ns: u64,
    /// The end of the first fragment, which has all headers.
    first_end: u32,
    /// Fragments overlap.
    is_spoilt: bool,
    /// Bytes that have come, as disjoint ranges in order; the rest is (0, 0).
    ranges: [(u32, u32); GROUP_RANGES_MAX],
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Fragments(Box<[Datagram]>);

impl Default for Fragments {
    fn default() -> Self {
        Self(vec![Datagram::default(); GROUP_DATAGRAMS].into_boxed_slice())
    }
}

/// The datagram of a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DatagramKey {
    key: Key,
    id: u32,
}

impl DatagramKey {
    pub fn new(flow: &Flow, direction: Direction, vid: u16, id: u32) -> Self {
        // In IPv6, the first header of the fragmented part may come before the protocol's own (RFC
        // 8200 §4.5).
        let protocol = if flow.v6 { 0 } else { flow.protocol };
        let flow = Flow { sport: 0, dport: 0, protocol, ..*flow };
        // The direction is part of the key.
        Self { key: Key::new(&flow, direction, vid, Some(direction)), id }
    }

    fn set(&self) -> usize {
        let Key(key) = self.key;
        let mixed = key.iter().fold(u64::from(self.id), |mixed, word| {
            (mixed ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
        });
        mixed as usize % (GROUP_DATAGRAMS / WAYS) * WAYS
    }
}

impl Datagram {
    fn is_of(&self, key: &DatagramKey, now_ns: u64) -> bool {
        self.key == key.key.0
            && self.id == key.id
            && self.since_ns != 0
            && now_ns.saturating_sub(self.since_ns) < GROUP_FRAGMENTS_NS
    }

    /// True if a range overlaps others and is not within one of them.
    fn spoils(&self, start: u32, end: u32) -> bool {
        !self.has(start, end) && self.overlaps(start, end)
    }

    fn overlaps(&self, start: u32, end: u32) -> bool {
        self.ranges.iter().any(|&(from, to)| start < to && from < end)
    }

    /// Adds a range that overlaps no other; `false` if it does, or if there is no room for it.
    fn add(&mut self, start: u32, end: u32) -> bool {
        if self.is_spoilt || self.overlaps(start, end) {
            return false;
        }
        let ranges = &mut self.ranges;
        let used = ranges.iter().take_while(|range| range.1 != 0).count();
        if let Some(before) = ranges[..used].iter_mut().find(|range| range.1 == start) {
            before.1 = end;
        } else if let Some(behind) = ranges[..used].iter_mut().find(|range| range.0 == end) {
            behind.0 = start;
        } else if let Some(free) = ranges.get_mut(used) {
            *free = (start, end);
        } else {
            return false;
        }
        true
    }

    fn has(&self, start: u32, end: u32) -> bool {
        self.ranges.iter().any(|&(from, to)| from <= start && end <= to && to != 0)
    }
}

impl Fragments {
    fn find(&self, key: &DatagramKey, now_ns: u64) -> Option<usize> {
        let set = key.set();
        let ways = self.0.get(set..set + WAYS)?;
        ways.iter().position(|it| it.is_of(key, now_ns)).map(|way| set + way)
    }

    /// True if the first fragment of a datagram may pass, after the rules have allowed it. `again`: the fragment was
    /// judged before, and has waited for its receiver since.
    pub fn may_begin(
        &self,
        key: &DatagramKey,
        part: Part,
        ports: u32,
        again: bool,
        now_ns: u64,
    ) -> bool {
        self.find(key, now_ns)
            .and_then(|at| self.0.get(at))
            .is_none_or(|known| again && known.ports == ports && known.has(part.start, part.end))
    }

    /// Notes the first fragment, in place of the oldest datagram of its set.
    pub fn begin(&mut self, key: &DatagramKey, part: Part, ports: u32, now_ns: u64) {
        if self.find(key, now_ns).is_some() {
            return;
        }
        let set = key.set();
        let ways = self.0.get_mut(set..set + WAYS).unwrap_or_default();
        if let Some(oldest) = ways.iter_mut().min_by_key(|it| it.since_ns) {
            let (Key(key), id) = (key.key, key.id);
            *oldest = Datagram {
                key,
                id,
                ports,
                since_ns: now_ns.max(1),
                first_end: part.end,
                ..Datagram::default()
            };
            oldest.add(part.start, part.end);
        }
    }

    /// True if a later fragment may pass. A fragment that comes again may not lie where the headers are: its sender may
    /// have changed it.
    pub fn may_follow(&self, key: &DatagramKey, part: Part, again: bool, now_ns: u64) -> bool {
        let known = self.find(key, now_ns).and_then(|at| self.0.get(at)).copied();
        known.is_some_and(|mut known| {
            let came = known.has(part.start, part.end) && part.start >= known.first_end;
            known.add(part.start, part.end) || again && came
        })
    }

    /// Notes that a fragment was refused: no fragment may follow one that overlaps others.
    pub fn refuse(&mut self, key: &DatagramKey, part: Part, now_ns: u64) {
        if let Some(known) = self.find(key, now_ns).and_then(|at| self.0.get_mut(at)) {
            known.is_spoilt |= known.spoils(part.start, part.end);
        }
    }

    /// Notes a later fragment.
    pub fn follow(&mut self, key: &DatagramKey, part: Part, now_ns: u64) {
        if let Some(known) = self.find(key, now_ns).and_then(|at| self.0.get_mut(at)) {
            known.add(part.start, part.end);
        }
    }
}
