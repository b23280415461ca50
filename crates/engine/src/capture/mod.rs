//! Copies of frames for an observer: `weir capture`.
//!
//! A captured port stands in the table of ports behind a `Tapped`, which copies the frames that the port takes and
//! delivers. So a port without a capture costs nothing more, not even a check for one. Drops are copied at the place
//! that counts them.
//!
//! Workers never wait for the reader. Each writes into a ring of its own; a frame without room there is counted instead
//! of copied. The sender of a frame pays for its copies, as it pays for its delivery.
//!
//! [`mirror`] delivers copies to another port. [`follow`] uses the same means at every port for some frames of one
//! sender: `weir trace --live`.

pub mod follow;
pub mod mirror;
mod record;
mod tapped;

use std::cell::Cell;
use std::sync::{Arc, Mutex, TryLockError};

use rtrb::{Consumer, Producer, RingBuffer};
use weir_fabric::{EgressTag, PortId};
use weir_filter::{Outcome, Program};
use weir_limits::{
    CAPTURE_LANES_MAX, CAPTURE_PORTS_MAX, CAPTURE_RING_LEN, CAPTURES_MAX, FRAME_LEN_MAX,
    MIRRORS_MAX,
};
use weir_wire::vlan::TAG_LEN;
use weir_wire::{Head, Tci};

use follow::{Followed, Live};
use record::HEADER_LEN;
pub use record::{Direction, Header};
pub(crate) use tapped::Tapped;

use crate::burst::{Burst, Frame};
use crate::clock;
use crate::engine::Engine;
use crate::filter::Window;
use crate::lock::lock;
use crate::port::{Outgoing, Port};
use crate::shared::Shared;
use crate::stats::{Counter, DropReason, PortCounters};
use crate::switch::{Ports, slot};

/// The frames of a port that are copied, and how much of each.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Copies frames that it sends.
    pub tx: bool,
    /// Copies frames that it receives.
    pub rx: bool,
    /// Copies frames that its drop counters count.
    pub drops: bool,
    /// Copies only frames that this program matches; it sees the frame as it would be written.
    pub filter: Option<Arc<Program>>,
    /// Most bytes of each frame.
    pub snap_len: u32,
}

impl Wanted {
    /// Every frame, whole, but no drops.
    pub const ALL: Self =
        Self { tx: true, rx: true, drops: false, filter: None, snap_len: u32::MAX };
}

/// The reason for which nothing is captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CaptureError {
    /// The maximum of captures run already.
    #[error("{CAPTURES_MAX} captures run, and no more are allowed")]
    TooMany,
    /// There is no port, or more than a capture can have.
    #[error("a capture has 1 to {CAPTURE_PORTS_MAX} ports, not {0}")]
    Ports(usize),
    /// A port does not exist.
    #[error("{0} is not there")]
    NoSuchPort(PortId),
    /// The maximum of mirrors run already.
    #[error("{MIRRORS_MAX} mirrors run, and no more are allowed")]
    TooManyMirrors,
    /// The mirror would copy its own copies.
    #[error("a port cannot mirror itself")]
    Itself,
    /// The system has no thread for the mirror.
    #[error("there is no thread for a mirror")]
    NoThread,
    /// Frames are being followed already.
    #[error("a live trace runs, and no more are allowed")]
    Follows,
}

/// The counts of a capture for one of its ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Frames that were wanted before the filter.
    pub seen: u64,
    /// Seen frames that the filter matched.
    pub matched: u64,
    /// Matched frames that were not copied, since the reader was too slow.
    pub lost: u64,
    /// Drops of frames that no longer exist, by reason: only their number is known.
    pub unseen_drops: Vec<(DropReason, u64)>,
}

/// One port of a capture: which frames workers copy, and into which rings.
#[derive(Debug)]
pub(crate) struct Tap {
    wanted: Wanted,
    number: u16,
    lanes: Arc<Lanes>,
    seen: Counter,
    matched: Counter,
    lost: Counter,
    unseen: Box<[Counter]>,
}

/// The taps of a port.
pub(crate) type Taps = Arc<[Arc<Tap>]>;

/// The observers of a port's drops.
#[derive(Debug)]
pub(crate) struct Looks {
    pub(crate) taps: Taps,
    pub(crate) followed: Option<Followed>,
}

/// A ring for each of the first workers; further workers share them.
#[derive(Debug)]
struct Lanes(Box<[Mutex<Lane>]>);

struct Lane {
    ring: Producer<u8>,
    /// The record that is being written.
    record: Vec<u8>,
    window: Window,
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lane").finish_non_exhaustive()
    }
}

thread_local! {
    /// The index of this thread's worker.
    static WORKER: Cell<usize> = const { Cell::new(0) };
}

/// Makes this thread worker `index`.
pub(crate) fn enter(index: usize) {
    WORKER.set(index);
}

impl Tap {
    /// Copies frames that its port sends.
    pub(crate) fn sent(&self, burst: &Burst<'_>) {
        if self.wanted.tx {
            let frames = (0..).zip(burst.frames()).map(|(n, frame)| (n, frame.tag));
            self.copy(clock::now_ns(), burst, frames, Direction::Tx, None);
        }
    }

    /// Copies those of `frames` that its port received at `at_ns`: `is_delivered` tells which, by their index.
    pub(crate) fn received(
        &self,
        at_ns: u64,
        burst: &Burst<'_>,
        frames: &[Outgoing],
        is_delivered: impl Fn(usize) -> bool,
    ) {
        if self.wanted.rx {
            let frames = frames.iter().enumerate().filter(|(place, _)| is_delivered(*place));
            let frames = frames.map(|(_, outgoing)| match outgoing.tag {
                EgressTag::Untagged => (outgoing.frame, None),
                EgressTag::Tagged(tag) => (outgoing.frame, Some(tag)),
            });
            self.copy(at_ns, burst, frames, Direction::Rx, None);
        }
    }

    /// Copies the dropped frames of a burst (bit i: frame i), as their sender sent them.
    pub(crate) fn dropped(&self, burst: &Burst<'_>, frames: u64, reason: DropReason) {
        if self.wanted.drops {
            let direction = if reason.is_receivers() { Direction::Rx } else { Direction::Tx };
            let dropped = (0_u16..).zip(burst.frames()).filter(|(n, _)| frames >> n & 1 != 0);
            let dropped = dropped.map(|(n, frame)| (n, frame.tag));
            self.copy(clock::now_ns(), burst, dropped, direction, Some(reason));
        }
    }

    /// Counts drops of frames that no longer exist.
    pub(crate) fn dropped_unseen(&self, frames: u64, reason: DropReason) {
        if let (true, Some(counter)) = (self.wanted.drops, self.unseen.get(reason.index())) {
            counter.add(frames);
        }
    }

    fn copy(
        &self,
        at_ns: u64,
        burst: &Burst<'_>,
        frames: impl Iterator<Item = (u16, Option<Tci>)>,
        direction: Direction,
        dropped: Option<DropReason>,
    ) {
        let (mut seen, mut matched, mut lost) = (0, 0, 0);
        // If another thread holds the lane for the copies of its burst, this one does not wait.
        let mut lane = self.lanes.mine();
        for (number, tag) in frames {
            seen += 1;
            let Some(lane) = lane.as_deref_mut() else {
                // Without a lane there is no window for the filter either.
                matched += 1;
                lost += 1;
                continue;
            };
            let frame = &burst.frames()[usize::from(number)];
            let tagged;
            let (head, len) = match tag {
                None => (&frame.head, frame.len),
                Some(_) => {
                    tagged = on_port(frame, tag);
                    (&tagged.0, tagged.1)
                }
            };
            let program = self.wanted.filter.as_deref();
            if !matches(program, head.as_slice(), len, &mut lane.window, number, burst) {
                continue;
            }
            matched += 1;
            let offload = match len == frame.len {
                true => frame.offload,
                false => frame.offload.tag_inserted(),
            };
            let header = Header {
                vnet: offload.to_vnet(1).to_bytes(),
                at_ns,
                len,
                kept: len.min(self.wanted.snap_len),
                port: self.number,
                direction,
                csum_pending: frame.offload.csum().is_some(),
                gso: frame.offload.gso().is_some(),
                dropped,
            };
            lost += u64::from(!lane.push(header, head.as_slice(), frame, number, burst));
        }
        for (counter, n) in [(&self.seen, seen), (&self.matched, matched), (&self.lost, lost)] {
            counter.add(n);
        }
    }

    fn counted(&self) -> Counted {
        let unseen = DropReason::all().zip(&self.unseen).map(|(reason, n)| (reason, n.get()));
        // Read in this order, since writers count a frame as seen last.
        let (lost, matched, seen) = (self.lost.get(), self.matched.get(), self.seen.get());
        Counted { seen, matched, lost, unseen_drops: unseen.filter(|(_, n)| *n > 0).collect() }
    }
}

/// The front and the length of a frame with the tag that it has on a port.
fn on_port(frame: &Frame, tag: Option<Tci>) -> (Head, u32) {
    let (mut head, mut len) = (frame.head, frame.len);
    if tag.is_some_and(|tag| head.insert_vlan(tag).is_ok()) {
        len += TAG_LEN as u32;
    }
    (head, len)
}

/// True if a frame is wanted. `front` is the part that is copied in any case.
fn matches(
    program: Option<&Program>,
    front: &[u8],
    len: u32,
    window: &mut Window,
    number: u16,
    burst: &Burst<'_>,
) -> bool {
    let Some(program) = program else { return true };
    match program.run(front, len) {
        Outcome::Match => true,
        Outcome::NoMatch => false,
        // If a program reads beyond even the window, the frame does not match, as with filters of ports.
        Outcome::Beyond => program.run(window.fill(front, number, burst), len) == Outcome::Match,
    }
}

impl Lanes {
    fn mine(&self) -> Option<std::sync::MutexGuard<'_, Lane>> {
        let lane = self.0.get(WORKER.get() % self.0.len().max(1))?;
        match lane.try_lock() {
            Ok(lane) => Some(lane),
            // A thread that panicked has pushed a whole record, or none.
            Err(TryLockError::Poisoned(lane)) => Some(lane.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl Lane {
    /// Copies a frame; `false` if the ring has no room for it.
    #[inline]
    fn push(
        &mut self,
        mut header: Header,
        head: &[u8],
        frame: &Frame,
        number: u16,
        burst: &Burst<'_>,
    ) -> bool {
        let kept = header.kept as usize;
        self.record.clear();
        self.record.extend_from_slice(&header.to_bytes());
        if let Some(front) = head.get(..kept) {
            // Nearly all frames are copied here. The reader's position is not read if there was enough room before.
            self.record.extend_from_slice(front);
            return self.ring.push_entire_slice(&self.record).is_ok();
        }
        // Nothing is fetched for which there is no room.
        if self.ring.slots() < HEADER_LEN + kept {
            return false;
        }
        self.record.extend_from_slice(head);
        burst.fetch(1 << number);
        let is_lost = burst.lost() >> number & 1 != 0;
        for piece in burst.payload(frame) {
            let filled = self.record.len();
            let wanted = piece.len().min(HEADER_LEN + kept - filled);
            if wanted == 0 || is_lost {
                break;
            }
            self.record.resize(filled + wanted, 0);
            piece.read(&mut self.record[filled..]);
        }
        header.kept = (self.record.len() - HEADER_LEN) as u32; // a frame's length at most
        self.record[..HEADER_LEN].copy_from_slice(&header.to_bytes());
        self.ring.push_entire_slice(&self.record).is_ok()
    }
}

/// The other end of a ring, with the last header read from it.
struct Drain {
    ring: Consumer<u8>,
    next: Option<Header>,
}

impl Drain {
    fn peek(&mut self) -> Option<u64> {
        if self.next.is_none() {
            let mut bytes = [0; HEADER_LEN];
            self.ring.pop_entire_slice(&mut bytes).ok()?;
            self.next = Some(Header::from_bytes(&bytes));
        }
        self.next.map(|header| header.at_ns)
    }
}

/// Copies of frames of some ports, until this is dropped.
pub struct Capture {
    shared: Arc<Shared>,
    taps: Vec<(PortId, Arc<Tap>)>,
    drains: Vec<Drain>,
    bytes: Vec<u8>,
    for_mirror: bool,
}

impl Engine {
    /// Begins to copy frames of `ports`; a port's number is its index in this list.
    ///
    /// # Errors
    /// [`CaptureError`]; nothing has changed then.
    pub fn capture(&self, ports: &[PortId], wanted: &Wanted) -> Result<Capture, CaptureError> {
        self.begin(ports, wanted, false)
    }

    fn begin(
        &self,
        ports: &[PortId],
        wanted: &Wanted,
        for_mirror: bool,
    ) -> Result<Capture, CaptureError> {
        if ports.is_empty() || ports.len() > CAPTURE_PORTS_MAX {
            return Err(CaptureError::Ports(ports.len()));
        }
        let mut captured = lock(&self.shared.captured);
        let table = self.shared.ports.load();
        if let Some(gone) = ports.iter().find(|port| slot(&table, **port).is_none()) {
            return Err(CaptureError::NoSuchPort(*gone));
        }
        match for_mirror {
            false if captured.captures >= CAPTURES_MAX => return Err(CaptureError::TooMany),
            true if captured.mirrors >= MIRRORS_MAX => return Err(CaptureError::TooManyMirrors),
            false => captured.captures += 1,
            true => captured.mirrors += 1,
        }
        let lanes = self.shared.crew.iter().count().clamp(1, CAPTURE_LANES_MAX);
        let rings = (0..lanes).map(|_| RingBuffer::new(CAPTURE_RING_LEN));
        let (producers, consumers): (Vec<_>, Vec<_>) = rings.unzip();
        let lane = |ring| {
            let record = Vec::with_capacity(HEADER_LEN + FRAME_LEN_MAX as usize + TAG_LEN);
            Mutex::new(Lane { ring, record, window: Window::default() })
        };
        let lanes = Arc::new(Lanes(producers.into_iter().map(lane).collect()));
        let tap = |(number, port): (u16, &PortId)| {
            let lanes = Arc::clone(&lanes);
            let (seen, matched, lost) = Default::default();
            let unseen = DropReason::all().map(|_| Counter::default()).collect();
            let tap = Tap { wanted: wanted.clone(), number, lanes, seen, matched, lost, unseen };
            (*port, Arc::new(tap))
        };
        let taps: Vec<_> = (0..).zip(ports).map(tap).collect();
        for (port, tap) in &taps {
            captured.change(&self.shared, *port, |taps| taps.push(Arc::clone(tap)));
        }
        let drain = |ring| Drain { ring, next: None };
        let drains = consumers.into_iter().map(drain).collect();
        let (shared, bytes) = (Arc::clone(&self.shared), Vec::new());
        Ok(Capture { shared, taps, drains, bytes, for_mirror })
    }
}

impl Capture {
    /// Most frames that one [`read`](Self::read) passes on: there may be more.
    pub const READ_MAX: usize = 4096;

    /// Passes on the new copies of the workers, [`READ_MAX`](Self::READ_MAX) frames at most, and returns how many. They
    /// are in the order of time, except frames of different workers that were copied during the call.
    pub fn read<E>(
        &mut self,
        each: impl FnMut(&Header, &[u8]) -> Result<(), E>,
    ) -> Result<usize, E> {
        self.read_at_most(Self::READ_MAX, each)
    }

    fn read_at_most<E>(
        &mut self,
        frames: usize,
        mut each: impl FnMut(&Header, &[u8]) -> Result<(), E>,
    ) -> Result<usize, E> {
        for read in 0..frames {
            let timed = |(n, drain): (usize, &mut Drain)| drain.peek().map(|at_ns| (at_ns, n));
            let Some((_, first)) = self.drains.iter_mut().enumerate().filter_map(timed).min()
            else {
                return Ok(read);
            };
            let drain = &mut self.drains[first];
            if let Some(header) = drain.next.take() {
                self.bytes.resize(header.kept as usize, 0);
                // A record is pushed as a whole.
                if drain.ring.pop_entire_slice(&mut self.bytes).is_ok() {
                    each(&header, &self.bytes)?;
                }
            }
        }
        Ok(frames)
    }

    /// The counts, by the ports' numbers.
    pub fn counted(&self) -> Vec<Counted> {
        self.taps.iter().map(|(_, tap)| tap.counted()).collect()
    }

    /// Ends the copying. Frames that were copied can still be read.
    pub fn stop(&mut self) {
        let mut captured = lock(&self.shared.captured);
        for (port, tap) in &self.taps {
            captured.change(&self.shared, *port, |taps| {
                taps.retain(|other| !Arc::ptr_eq(other, tap));
            });
        }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.stop();
        let mut captured = lock(&self.shared.captured);
        match self.for_mirror {
            false => captured.captures -= 1,
            true => captured.mirrors -= 1,
        }
    }
}

/// The present captures.
#[derive(Default)]
pub(crate) struct Captured {
    captures: usize,
    mirrors: usize,
    ports: Vec<TappedPort>,
    live: Option<Arc<Live>>,
}

/// A port that stands in the table behind its observers.
struct TappedPort {
    id: PortId,
    bare: Arc<dyn Port>,
    counters: Arc<PortCounters>,
    taps: Vec<Arc<Tap>>,
    /// True if frames are followed at the port.
    follows: bool,
}

impl TappedPort {
    /// The port's stand-in, and the observers of its drops.
    fn stands(&self, live: Option<&Arc<Live>>) -> (Arc<dyn Port>, Option<Looks>) {
        let taps: Taps = self.taps.iter().cloned().collect();
        let live = live.filter(|_| self.follows);
        let followed = live.map(|live| Followed::new(live, self.id, &self.counters));
        let bare = Arc::clone(&self.bare);
        let passes = taps.iter().any(|tap| tap.wanted.tx || tap.wanted.rx);
        let port: Arc<dyn Port> = match passes || followed.is_some() {
            true => Arc::new(Tapped::new(bare, Arc::clone(&taps), followed.clone())),
            false => bare,
        };
        let looks = followed.is_some() || taps.iter().any(|tap| tap.wanted.drops);
        (port, looks.then_some(Looks { taps, followed }))
    }
}

impl Captured {
    /// Changes the taps of a port; does nothing if there is no such port.
    fn change(&mut self, shared: &Shared, id: PortId, change: impl FnOnce(&mut Vec<Arc<Tap>>)) {
        if let Some(port) = self.port(&shared.ports.load(), id) {
            change(&mut port.taps);
            self.settle(shared, |other| other == id);
        }
    }

    /// Begins to follow frames at every present port, or ends it.
    fn set_live(&mut self, shared: &Shared, live: Option<Arc<Live>>) {
        let table = shared.ports.load();
        match live {
            None => self.ports.iter_mut().for_each(|port| port.follows = false),
            Some(_) => {
                let numbers = (0..).take(table.len());
                for id in numbers.filter_map(PortId::new) {
                    if let Some(port) = self.port(&table, id) {
                        port.follows = true;
                    }
                }
            }
        }
        self.live = live;
        self.settle(shared, |_| true);
    }

    fn port(&mut self, table: &Ports, id: PortId) -> Option<&mut TappedPort> {
        let place = match self.ports.iter().position(|port| port.id == id) {
            Some(place) => place,
            None => {
                let slot = slot(table, id)?;
                let (bare, counters) = (Arc::clone(&slot.port), Arc::clone(&slot.counters));
                let (taps, follows) = Default::default();
                self.ports.push(TappedPort { id, bare, counters, taps, follows });
                self.ports.len() - 1
            }
        };
        self.ports.get_mut(place)
    }

    /// Puts ports into the table with their current observers.
    fn settle(&mut self, shared: &Shared, which: impl Fn(PortId) -> bool) {
        let mut stands = Vec::new();
        for port in self.ports.iter().filter(|port| which(port.id)) {
            let (port_stands, looks) = port.stands(self.live.as_ref());
            port.counters.set_looks(looks.map(Arc::new));
            stands.push((port.id, port_stands));
        }
        shared.ports.rcu(|ports| {
            let mut ports = Ports::clone(ports);
            for (id, port) in &stands {
                if let Some(Some(slot)) = ports.get_mut(id.index()) {
                    slot.port = Arc::clone(port);
                }
            }
            ports
        });
        self.ports.retain(|port| port.follows || !port.taps.is_empty());
    }

    /// True if the port still exists and `tap` copies its frames.
    fn has(&self, id: PortId, tap: &Arc<Tap>) -> bool {
        let port = self.ports.iter().find(|port| port.id == id);
        port.is_some_and(|port| port.taps.iter().any(|other| Arc::ptr_eq(other, tap)))
    }

    /// Forgets a port that leaves the table.
    pub(crate) fn forget(&mut self, id: PortId) {
        self.ports.retain(|port| port.id != id);
    }
}
