//! A queue whose ring is a list of numbers: whichever receivers are full and whichever worker takes, no frame is lost,
//! and frames for one receiver stay in order. Each property runs with a source that settles in order (virtqueues,
//! uplinks) and with one that does not (Xen's rings).

use std::collections::{BTreeSet, VecDeque};
use std::convert::Infallible;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use weir_fabric::PortId;
use weir_guestmem::HostBuffer;
use weir_limits::{BURST_MAX, PARKED_NS_MAX};

use super::parked::ParkedFrames;
use super::{Source, TransmitQueue};
use crate::frames::burst::{Burst, Pieces, Scratch, TakenChain};
use crate::frames::drop_reason::DropReason;
use crate::frames::port::{Take, Taken};
use crate::frames::stats::PortCounters;
use crate::guest::{GuestRing, TransmitCalls, TransmitRing};
use crate::threads::clock;

const VNET_LEN: usize = 12;
const LEN: usize = 60;
/// More frames than fit into a burst may wait.
const PARKED_MAX: usize = 100;
const RECEIVERS: u16 = 3;

/// Frames to be sent, frames that are taken, and the number of frames given back.
#[derive(Debug, Default)]
struct Ring {
    to_send: VecDeque<u16>,
    taken: BTreeSet<u64>,
    released: usize,
}

impl GuestRing for Ring {
    fn size(&mut self) -> u32 {
        0
    }

    fn call_if_wanted(&mut self) -> Option<bool> {
        None
    }
}

impl TransmitRing for Ring {
    fn wants_call(&mut self) -> bool {
        false
    }
}

impl Ring {
    fn give_back(&mut self, token: u64) {
        assert!(self.taken.remove(&token), "frame {token} is given back twice");
        self.released += 1;
    }
}

/// Frame n is in its n-th buffer.
struct Numbers<const IN_ORDER: bool> {
    buffers: Vec<HostBuffer>,
    counters: PortCounters,
}

impl<const IN_ORDER: bool> Numbers<IN_ORDER> {
    fn new(frames: u16) -> Self {
        let buffer = |number: u16| {
            let buffer = HostBuffer::new(VNET_LEN + LEN);
            let frame = [&[2; 12][..], &[0x88, 0xb5], &number.to_be_bytes(), &[0; 44]].concat();
            buffer.slice(VNET_LEN, LEN).unwrap().write(&frame);
            buffer
        };
        Self { buffers: (0..frames).map(buffer).collect(), counters: PortCounters::default() }
    }

    fn add<'m>(&'m self, token: u64, arrived_ns: u64, burst: &mut Burst<'m>) {
        let pieces = Pieces::Only(self.buffers[token as usize].slice(0, VNET_LEN + LEN).unwrap());
        let chain = TakenChain { token, len: (VNET_LEN + LEN) as u32, pieces };
        burst.chains.push(chain);
        burst.add(chain, VNET_LEN, arrived_ns).unwrap();
    }
}

impl<const IN_ORDER: bool> Source for Numbers<IN_ORDER> {
    type Ring = Ring;
    type Lent = ();
    type Error = Infallible;

    const IN_ORDER: bool = IN_ORDER;

    fn index(&self) -> usize {
        0
    }

    fn counters(&self) -> &PortCounters {
        &self.counters
    }

    fn has_failed(&self) -> bool {
        false
    }

    fn parked_max(&self, _: &Ring) -> usize {
        PARKED_MAX
    }

    fn lend(&self, _: &mut Ring, _: Take) -> Option<()> {
        Some(())
    }

    fn fill<'m>(
        &'m self,
        ring: &mut Ring,
        _: &'m (),
        now_ns: u64,
        burst: &mut Burst<'m>,
    ) -> Result<usize, Infallible> {
        let frames = ring.to_send.len().min(burst.frames_max);
        for number in ring.to_send.drain(..frames) {
            ring.taken.insert(number.into());
            self.add(number.into(), now_ns, burst);
        }
        Ok(frames)
    }

    fn fill_again<'m>(
        &'m self,
        ring: &mut Ring,
        _: &'m (),
        token: u64,
        arrived_ns: u64,
        burst: &mut Burst<'m>,
    ) -> Result<(), Infallible> {
        assert!(ring.taken.contains(&token), "frame {token} waits and is given back");
        self.add(token, arrived_ns, burst);
        Ok(())
    }

    fn settle(&self, ring: &mut Ring, _: &(), burst: &Burst<'_>) -> u32 {
        for (chain, _) in burst.chains_and_stay().filter(|(_, stays)| !stays) {
            ring.give_back(chain.token);
        }
        0
    }

    fn release(&self, ring: &mut Ring, token: u64, _: DropReason) {
        ring.give_back(token);
    }

    fn has_more(&self, ring: &mut Ring) -> Result<bool, Infallible> {
        Ok(!ring.to_send.is_empty())
    }
}

fn receiver(number: u16) -> PortId {
    PortId::new(number % RECEIVERS).unwrap()
}

/// Frames that each receiver got, in order, and one bit for each receiver that is full now.
#[derive(Debug, Default)]
struct Receivers {
    arrived: [Vec<u16>; RECEIVERS as usize],
    dropped: usize,
    full: u8,
}

impl Receivers {
    /// Delivers a burst. A frame's number modulo the receivers is its receiver.
    fn place(&mut self, burst: &mut Burst<'_>) {
        for frame in 0..burst.frames().len() {
            let head = burst.frames()[frame].head.as_slice();
            let number = u16::from_be_bytes([head[14], head[15]]);
            let to = receiver(number);
            if self.full & 1 << to.index() == 0 && !burst.room.blocked.contains(&to) {
                self.arrived[to.index()].push(number);
            } else if !burst.park(frame as u16, to) {
                self.dropped += 1;
            }
        }
    }

    /// Checks that each of all `frames` was delivered or dropped, in order.
    fn assert_whole(&self, frames: u16) {
        for arrived in &self.arrived {
            assert!(arrived.is_sorted_by(|a, b| a < b), "{arrived:?}");
        }
        let arrived: usize = self.arrived.iter().map(Vec::len).sum();
        assert_eq!(arrived + self.dropped, usize::from(frames));
    }
}

/// A time at which no frame has waited too long, however long the machine delays a test.
const NEVER_LATE: u64 = 0;

/// A step of a test.
#[derive(Debug, Clone)]
enum Step {
    Send(u16),
    Full(u8),
    Take(usize),
    /// Tries frames again, as a worker does when a receiver has buffers, or when it is time.
    TryAgain(Option<u16>),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (1..100_u16).prop_map(Step::Send),
        (0..8_u8).prop_map(Step::Full),
        (1..=BURST_MAX).prop_map(Step::Take),
        proptest::option::of(0..RECEIVERS).prop_map(Step::TryAgain),
    ];
    proptest::collection::vec(step, 1..60)
}

fn play<const IN_ORDER: bool>(steps: &[Step]) {
    let frames: u16 = steps.iter().map(|step| if let Step::Send(n) = step { *n } else { 0 }).sum();
    let source = Numbers::<IN_ORDER>::new(frames);
    let queue = TransmitQueue::new(Ring::default(), TransmitCalls::default());
    let (mut receivers, mut scratch, mut sent) = (Receivers::default(), Scratch::default(), 0);
    let mut take = |what: Take, receivers: &mut Receivers, frames_max| {
        scratch.frames_max = frames_max;
        let forward = &mut |burst: &mut Burst<'_>| receivers.place(burst);
        let Ok(taken) = queue.take(&source, what.at(NEVER_LATE), &mut scratch, forward);
        assert!(taken.parked <= PARKED_MAX && taken.parked_until.is_some() == (taken.parked > 0));
        assert_eq!(queue.lock().queue.taken.len(), taken.parked, "the others are given back");
        taken
    };
    let try_again = |receiver, take: &mut dyn FnMut(Take) -> Taken| {
        // Each retry either sends some frames, or the next one tries the frames behind them.
        let tries = (0..=PARKED_MAX).take_while(|_| take(Take::Parked(receiver)).parked_more);
        assert!(tries.count() < PARKED_MAX, "no end");
    };
    for step in steps {
        match step {
            Step::Send(n) => queue.lock().queue.to_send.extend(sent..sent + n),
            Step::Full(full) => receivers.full = *full,
            Step::Take(max) => _ = take(Take::New, &mut receivers, *max),
            Step::TryAgain(to) => {
                let mut take = |what| take(what, &mut receivers, BURST_MAX);
                try_again(to.map(receiver), &mut take);
            }
        }
        if let Step::Send(n) = step {
            sent += n;
        }
    }
    receivers.full = 0;
    let mut take = |what| take(what, &mut receivers, BURST_MAX);
    try_again(None, &mut take);
    while take(Take::New).more {}
    assert_eq!(queue.lock().queue.released, usize::from(frames));
    receivers.assert_whole(frames);
}

proptest! {
    #[test]
    fn frames_that_wait_are_neither_lost_nor_reordered(steps in steps()) {
        play::<true>(&steps);
        play::<false>(&steps);
    }
}

/// Three workers take frames, while helpers come and go.
fn several_workers<const IN_ORDER: bool>() {
    const FRAMES: u16 = 6_000;
    let source = Numbers::<IN_ORDER>::new(FRAMES);
    let queue = TransmitQueue::new(Ring::default(), TransmitCalls::default());
    queue.lock().queue.to_send.extend(0..FRAMES);
    let receivers = Mutex::new(Receivers::default());
    let (bursts, together) = (AtomicUsize::new(0), AtomicBool::new(false));
    let under_way = AtomicUsize::new(0);
    let worker = || {
        let mut scratch = Scratch::default();
        scratch.frames_max = 8;
        loop {
            let burst = bursts.fetch_add(1, Ordering::Relaxed);
            receivers.lock().unwrap().full =
                if burst % 16 < 12 { 0 } else { (burst / 16 % 8) as u8 };
            queue.set_side_by_side(burst % 64 < 56);
            // Only one worker may retry frames at a time, because the others' bursts must be settled before.
            let tries_again = burst.is_multiple_of(8).then_some(Take::Parked(None));
            for what in tries_again.into_iter().chain([Take::New]) {
                let forward = &mut |burst: &mut Burst<'_>| {
                    if under_way.fetch_add(1, Ordering::Relaxed) > 0 {
                        together.store(true, Ordering::Relaxed);
                    }
                    receivers.lock().unwrap().place(burst);
                    if let (true, Some(turn)) = (burst.room.parked.is_empty(), burst.turn) {
                        // The turn is given back as if only copying were left, which may take long.
                        turn.take();
                        std::thread::sleep(Duration::from_micros(burst.frames()[0].token % 5 * 30));
                    }
                    under_way.fetch_sub(1, Ordering::Relaxed);
                };
                let Ok(taken) = queue.take(&source, what.at(NEVER_LATE), &mut scratch, forward);
                if what == Take::New && !taken.more && taken.frames == 0 && taken.parked == 0 {
                    return;
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(worker);
        }
    });
    assert!(together.into_inner(), "or it was not tried");
    assert!(source.counters.parked.get() > 0, "or nothing waited");
    assert_eq!(queue.lock().queue.released, usize::from(FRAMES));
    receivers.into_inner().unwrap().assert_whole(FRAMES);
}

#[test]
fn several_workers_neither_lose_nor_reorder_frames_whatever_their_source_settles_by() {
    several_workers::<true>();
    several_workers::<false>();
}

#[test]
fn a_queue_that_stops_gives_back_what_waits_and_may_go_on() {
    let source = Numbers::<true>::new(10);
    let queue = TransmitQueue::new(Ring::default(), TransmitCalls::default());
    let mut scratch = Scratch::default();
    let mut take = |what: Take| {
        let park = &mut |burst: &mut Burst<'_>| {
            (0..burst.frames().len()).for_each(|n| assert!(burst.park(n as u16, receiver(0))));
        };
        queue.take(&source, what.at(7), &mut scratch, park).unwrap()
    };
    queue.lock().queue.to_send.extend(0..4);
    let now_ns = clock::now_ns();
    let taken = take(Take::New);
    assert_eq!(taken.parked, 4);
    assert!(taken.parked_until.unwrap() >= now_ns + PARKED_NS_MAX, "from when it was full");
    assert_eq!(take(Take::Parked(None)).parked_until, taken.parked_until, "no new wait");
    let (stopped, dropped) = queue.stop(&source, DropReason::TxStopped);
    assert_eq!((dropped, stopped.queue.released), (4, 4));
    drop(stopped);
    queue.lock().queue.to_send.extend(4..10);
    assert_eq!(take(Take::New).parked, 6);
    assert_eq!(source.counters.drops().collect::<Vec<_>>(), [("tx_stopped", 4)]);
}

#[test]
fn frames_of_a_burst_that_settles_late_wait_before_those_that_were_taken_later() {
    let source = Numbers::<false>::new(4);
    let mut parked = ParkedFrames::default();
    for tokens in [[2, 3], [0, 1]] {
        let mut scratch = Scratch::default();
        let mut burst = scratch.lend();
        burst.park_room = 2;
        for (frame, token) in (0..).zip(tokens) {
            source.add(token, 7, &mut burst);
            assert!(burst.park(frame, receiver(0)));
        }
        parked.settle(Take::New, false, &burst);
    }
    let mut tokens = Vec::new();
    let each = |token, _| -> Result<(), Infallible> {
        tokens.push(token);
        Ok(())
    };
    assert_eq!(parked.try_again(Some(receiver(0)), 7, each), Ok(4));
    assert_eq!(tokens, [0, 1, 2, 3]);
}
