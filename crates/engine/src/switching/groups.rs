//! Security groups of a port: both ends' rules hold for a frame, and each end has its connections.
//!
//! Frames are judged where their receiver is known: rules name the other end's groups.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex};

use weir_fabric::EgressTag;
use weir_groups::{
    Decision, Direction, Frame, GroupId, Peer, Policy, Refusal, Refusals, Rows, Table, Vlans,
};
use weir_limits::{GROUP_REFUSALS, HEAD_LEN, READ_AT_ONCE};

use crate::frames::burst::{self, Burst};
use crate::frames::port::{Claims, Outgoing};
use crate::threads::lock::lock;
use crate::threads::logs::Logs;

/// The rules of a port's groups, and its connections.
#[derive(Debug)]
pub struct PortGroups {
    policy: Policy,
    /// The table continues when rules change. Workers that serve the port, or send to it, take
    /// turns burst by burst.
    table: Arc<Mutex<Table>>,
    /// The logs, which stay in use for as long as the table does.
    logs: Arc<Logs<1>>,
}

impl PortGroups {
    /// Each connection of `before` is judged by the new rules when its next frame comes.
    pub(crate) fn new(policy: Policy, before: Option<&Self>, now_ns: u64) -> Self {
        let table = before.map(|before| Arc::clone(&before.table));
        let table = table.unwrap_or_else(|| Arc::new(Mutex::new(empty_table(now_ns))));
        let generation = before.map_or(0, |before| before.policy.generation.wrapping_add(1));
        let logs = before.map_or_else(Arc::default, |before| Arc::clone(&before.logs));
        if policy.log && before.is_some_and(|before| !before.policy.log) {
            // The log begins with frames that are refused from now on.
            lock(&table).refusals_mut().take(|_, _| {});
        }
        Self { policy: Policy { generation, ..policy }, table, logs }
    }

    /// The same rules, by which each connection is judged anew at its next frame: they name groups
    /// of other ports, which have changed.
    pub(crate) fn anew(&self, now_ns: u64) -> Self {
        Self::new(self.policy.clone(), Some(self), now_ns)
    }

    /// The groups.
    pub(crate) fn names(&self) -> &[GroupId] {
        &self.policy.groups
    }

    /// The ID of the groups as a set, for other hosts; 0 without one.
    pub(crate) fn set_id(groups: Option<&Self>) -> u16 {
        groups.map_or(0, |it| it.policy.set_id)
    }

    /// The number of connections, and of those that found no place.
    pub fn connections(&self) -> (u32, u64) {
        let table = lock(&self.table);
        (table.connections(), table.refused())
    }

    /// The refused frames.
    pub fn refusals(&self) -> Refusals {
        lock(&self.table).refusals().clone()
    }

    /// Refusals of the frames since the last call, with their number, and the frames of refusals that others displaced;
    /// nothing if no group has them logged.
    pub fn take_refusals(&self) -> (Vec<(Refusal, u64)>, u64) {
        let mut taken = Vec::new();
        if !self.policy.log {
            return (taken, 0);
        }
        taken.reserve(GROUP_REFUSALS);
        let missed =
            lock(&self.table).refusals_mut().take(|refusal, times| taken.push((refusal, times)));
        (taken, missed)
    }

    /// The log messages about refusals.
    pub fn logs(&self) -> &Logs<1> {
        &self.logs
    }

    /// At most `max` connections from place `from` of the table on, and the place for the next call if there may be
    /// more. Frames wait for one [page](Table::page) of [`READ_AT_ONCE`] connections at most.
    pub fn page(
        &self,
        from: usize,
        max: usize,
        now_ns: u64,
    ) -> (Vec<weir_groups::Connection>, Option<usize>) {
        let (mut found, mut at) = (Vec::with_capacity(max), Some(from));
        // Most of a table may be empty, and an answer comes in bounded time.
        for _ in 0..max.div_ceil(READ_AT_ONCE) {
            let (Some(from), room) = (at, max - found.len()) else { break };
            let (page, next) = lock(&self.table).page(from, room.min(READ_AT_ONCE), now_ns);
            found.extend(page);
            at = next;
        }
        (found, at)
    }

    /// Forgets all connections, and returns their number.
    pub fn flush(&self) -> u32 {
        // The table is made before the lock is taken and freed after its release, so that frames
        // wait for neither.
        let mut table = empty_table(0);
        lock(&self.table).exchange(&mut table);
        table.connections()
    }

    /// Judges the frames of `burst` in `list`, which go `direction` as the port's guest sees it, by the list's `rows`.
    /// Bit i of the result: frame i is refused. The peer's groups are those that each frame `claims`, if frames do.
    pub(crate) fn judge(
        &self,
        direction: Direction,
        (list, rows): (&[Outgoing], &Rows),
        burst: &Burst<'_>,
        (peer, claims): (Peer<'_>, Option<&dyn Claims>),
        now_ns: u64,
    ) -> u64 {
        let mut refused = 0;
        let frame_of = |nth: usize| {
            let outgoing = list.get(nth)?;
            Some((outgoing, burst.frames().get(usize::from(outgoing.frame))?))
        };
        let id_of = claims.map(|claims| {
            move |nth| frame_of(nth).map_or(0, |(_, frame)| claims.set_id_of(frame.token))
        });
        let id_of = id_of.as_ref().map(|id_of| id_of as &dyn Fn(usize) -> u16);
        let mut judge = |table: &mut Table, nth: usize, claimed: Option<u16>| {
            let Some((outgoing, frame)) = frame_of(nth) else { return };
            let behind = claims.map(|claims| claims.groups_of(frame.token));
            let groups = behind.as_deref().unwrap_or(peer.groups);
            let peer = Peer { groups, claimed, ..peer };
            let vid = vlans(outgoing, frame).of(direction);
            let (bytes, len) = (frame.head.as_slice(), frame.len);
            let frame = Frame { bytes, len, vid, again: burst.waited };
            let judged = table.judge(&self.policy, direction, frame, peer, now_ns);
            // The sender could still change headers behind the copied front.
            if !matches!(judged, Some(Decision::Passes(_))) {
                refused |= 1 << outgoing.frame;
            }
        };
        lock(&self.table).ask(&self.policy, direction, rows, id_of, now_ns, &mut judge);
        refused
    }

    /// The decision about frame 0 of `burst`, without any change.
    pub(crate) fn would_judge(
        &self,
        direction: Direction,
        outgoing: &Outgoing,
        burst: &Burst<'_>,
        peer: Peer<'_>,
        now_ns: u64,
    ) -> Decision {
        let table = lock(&self.table);
        let Some(frame) = burst.frames().first() else { return HIDDEN };
        let vid = vlans(outgoing, frame).of(direction);
        let frame = Frame { bytes: frame.head.as_slice(), len: frame.len, vid, again: false };
        table.would_judge(&self.policy, direction, frame, peer, now_ns).unwrap_or(HIDDEN)
    }
}

/// Reads the frames of `burst` in `list`.
#[inline(always)]
pub(crate) fn read(rows: &mut Rows, list: &[Outgoing], burst: &Burst<'_>) {
    let frames = burst.frames();
    rows.read(list.len(), |nth| {
        let outgoing = list.get(nth);
        let frame = |outgoing: &Outgoing| frames.get(usize::from(outgoing.frame));
        match outgoing.and_then(|outgoing| Some((outgoing, frame(outgoing)?))) {
            Some((outgoing, frame)) => {
                (frame.head.front(), frame.head.as_slice().len(), vlans(outgoing, frame))
            }
            None => (&[0; HEAD_LEN], 0, Vlans::default()),
        }
    });
}

/// A table that hashes by its own seed.
fn empty_table(now_ns: u64) -> Table {
    Table::new(RandomState::new().hash_one(now_ns), now_ns)
}

/// The decision about a frame whose headers are too long.
const HIDDEN: Decision = Decision::Refused(weir_groups::Why::Invalid);

/// The VLANs of a frame, as its sender has it and as its receiver has it.
#[inline(always)]
fn vlans(outgoing: &Outgoing, frame: &burst::Frame) -> Vlans {
    let leaves_with = match outgoing.tag {
        EgressTag::Tagged(tag) => tag.vid(),
        EgressTag::Untagged => 0,
    };
    Vlans::new(frame.tag.map_or(0, |tag| tag.vid()), leaves_with)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_come_whole_in_pages_of_bounded_steps() {
        const MAX: usize = 1000;
        let open = Policy {
            allow_in: true,
            allow_out: true,
            rules: [].into(),
            groups: [].into(),
            log: false,
            set_id: 0,
            generation: 0,
        };
        let groups = PortGroups::new(open, None, 1);
        for port in 1..=3000_u16 {
            let ip = [0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
            let udp = [&port.to_be_bytes()[..], &[0, 80, 0, 8, 0, 0]].concat();
            let frame = [&[2; 12][..], &[8, 0], &ip, &udp].concat();
            let frame = Frame { bytes: &frame, len: 42, vid: 0, again: false };
            let (policy, peer) = (&groups.policy, Peer::default());
            let judged = lock(&groups.table).judge(policy, Direction::Out, frame, peer, 1);
            assert!(matches!(judged, Some(Decision::Passes(_))));
        }
        let (mut all, mut from) = (Vec::new(), Some(0));
        while let Some(at) = from {
            let (page, next) = groups.page(at, MAX, 1);
            let most = MAX.next_multiple_of(READ_AT_ONCE);
            assert!(
                page.len() <= MAX && next.is_none_or(|next| next > at && next <= at + 8 * most)
            );
            all.extend(page.into_iter().map(|it| it.ports.unwrap().0));
            from = next;
        }
        all.sort_unstable();
        assert!(all.into_iter().eq(1..=3000));
        assert_eq!(groups.flush(), 3000);
        assert_eq!((groups.flush(), groups.page(0, MAX, 1).0.len()), (0, 0));
    }
}
