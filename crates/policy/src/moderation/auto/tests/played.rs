//! A simulated guest, its senders and a worker between them, in virtual time: a policy's cost and
//! its effect on senders that wait.
//!
//! The guest is one vCPU with a driver as in Linux. A call costs it an interrupt. Then it polls,
//! takes every published frame, and asks for calls again when it finds the ring empty (virtio 1.2
//! §2.7.7). While it polls, calls are suppressed. The worker takes frames in bursts and publishes
//! no more than the ring has buffers. A frame without a buffer waits at its sender, or is lost if
//! that sender waits for nobody.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::super::super::{Batch, Delivery, Moderation, Verdict};

/// CPU time of an interrupt: exits, entry, scheduling of the poll (ns).
const CALL_NS: u64 = 4_000;
/// CPU time of one frame through the guest's stack to its reader (ns).
const FRAME_NS: u64 = 700;
/// CPU time to find the ring empty and ask for calls again (ns).
const POLL_END_NS: u64 = 300;
/// CPU time of a deadline for a worker: the wake-up or the check of its heap (ns).
const TIMER_NS: u64 = 1_000;
/// Delay of the worker's look after a deadline (ns).
const TIMER_LATE_NS: u64 = 2_000;
/// Time of a burst and of each of its frames (ns). Only frames count as cost: this policy does not
/// choose when the worker looks for bursts.
const BURST_NS: u64 = 300;
const COPY_NS: u64 = 150;
const BURST_FRAMES: usize = 64;
/// Buffers of the guest's ring, and the most frames that wait at a sender that does not stop.
const RING: usize = 256;
const POLL_FRAMES: usize = 64;

/// xorshift64*, for runs that are the same everywhere.
#[derive(Clone, Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Draws a time between two independent events (ns), `gap_ns` on average.
    fn poisson(&mut self, gap_ns: u64) -> u64 {
        (-(1.0 - self.next()).ln() * gap_ns as f64) as u64
    }
}

/// One kind of traffic toward the guest.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    /// Evenly spaced datagrams.
    Constant { gap_ns: u64 },
    /// Datagrams at random times.
    Poisson { gap_ns: u64 },
    /// `frames` frames close together in each period.
    Bursts { frames: u64, spacing_ns: u64, period_ns: u64 },
    /// [`Source::Poisson`] for `on_ns` out of every `on_ns + off_ns`.
    OnOff { gap_ns: u64, on_ns: u64, off_ns: u64 },
    /// Callers; each sends its next request `away_ns` after the guest has taken the last.
    Requests { outstanding: u64, away_ns: u64 },
    /// A TCP sender with a window of `segments`. Each segment that the guest has taken lets the
    /// next one leave `away_ns` later, and at least `spacing_ns` after the one before.
    Window { segments: u64, away_ns: u64, spacing_ns: u64 },
    /// No traffic: at random times other work has the CPUs of guest and worker, for up to `ns`.
    Stalls { gap_ns: u64, ns: u64 },
}

impl Source {
    /// Returns whether the source sends without waiting for the guest.
    pub(super) fn open(self) -> bool {
        !matches!(self, Self::Requests { .. } | Self::Window { .. })
    }

    fn frame_bytes(self) -> u64 {
        if matches!(self, Self::Window { .. }) { 1514 } else { 64 }
    }
}

/// The cost and result of a run, after the warm-up.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    pub(super) ns: u64,
    /// Frames that the guest's readers took.
    pub(super) frames: u64,
    pub(super) calls: u64,
    /// CPU time of guest and worker (ns).
    pub(super) cpu_ns: u64,
    /// Time from sending to the reader for each frame of [`Source::Requests`] (ns), and for each frame of any source.
    latencies_ns: Vec<u32>,
    all_latencies_ns: Vec<u32>,
    /// The longest time from a frame's arrival to its call, less the timer's lateness (ns).
    pub(super) held_ns_max: u64,
}

impl Outcome {
    pub(super) fn frames_a_second(&self) -> f64 {
        self.frames as f64 * 1e9 / self.ns as f64
    }

    pub(super) fn cpu_per_frame(&self) -> f64 {
        self.cpu_ns as f64 / self.frames.max(1) as f64
    }

    pub(super) fn calls_per_frame(&self) -> f64 {
        self.calls as f64 / self.frames.max(1) as f64
    }

    /// Returns the number of CPUs in use.
    pub(super) fn cpu_share(&self) -> f64 {
        self.cpu_ns as f64 / self.ns as f64
    }

    pub(super) fn latency_mean_ns(&self) -> f64 {
        let sum: u64 = self.latencies_ns.iter().map(|&ns| u64::from(ns)).sum();
        sum as f64 / self.latencies_ns.len().max(1) as f64
    }

    pub(super) fn latency_median_ns(&self) -> f64 {
        median(&self.latencies_ns)
    }

    /// Returns the median over the frames of all sources.
    pub(super) fn latency_of_all_median_ns(&self) -> f64 {
        median(&self.all_latencies_ns)
    }
}

fn median(of: &[u32]) -> f64 {
    let mut sorted = of.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or(0).into()
}

#[derive(Clone, Copy, Debug)]
struct Frame {
    source: usize,
    sent_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Send(usize),
    Worker,
    /// The deadline with this number.
    Deadline(u64),
    Poll,
}

struct World<'a> {
    policy: &'a mut dyn Moderation,
    sources: &'a [Source],
    random: Random,
    /// A generator of its own, so that stalls are the same under every policy.
    stalls: Random,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    order: u64,
    /// Frames that wait for the worker, and each source's earliest next send.
    inbox: VecDeque<Frame>,
    next_send: Vec<u64>,
    sent: Vec<u64>,
    worker_busy: bool,
    /// End of the stall of guest and worker (ns).
    stalled_ns: u64,
    ring: VecDeque<Frame>,
    /// Earliest arrival among the published frames that the guest was not notified of.
    pending: Option<u64>,
    deadline: u64,
    deadline_ns: u64,
    polling: bool,
    from_ns: u64,
    did: Outcome,
}

/// Plays `sources` from `start_ns` on, for `warm_ns`, which does not count, and `for_ns`.
pub(super) fn play(
    policy: &mut dyn Moderation,
    sources: &[Source],
    seed: u64,
    start_ns: u64,
    warm_ns: u64,
    for_ns: u64,
) -> Outcome {
    let mut world = World {
        policy,
        sources,
        random: Random(seed | 1 << 63),
        stalls: Random(seed | 1 << 62),
        events: BinaryHeap::new(),
        order: 0,
        inbox: VecDeque::new(),
        next_send: vec![start_ns; sources.len()],
        sent: vec![0; sources.len()],
        worker_busy: false,
        stalled_ns: 0,
        ring: VecDeque::new(),
        pending: None,
        deadline: 0,
        deadline_ns: u64::MAX,
        polling: false,
        from_ns: start_ns + warm_ns,
        did: Outcome { ns: for_ns, ..Outcome::default() },
    };
    for (index, &source) in sources.iter().enumerate() {
        let at_once = match source {
            Source::Requests { outstanding, .. } => outstanding,
            Source::Window { segments, .. } => segments,
            _ => 1,
        };
        for _ in 0..at_once {
            world.send_after(index, start_ns);
        }
    }
    world.run(start_ns + warm_ns + for_ns);
    world.did
}

impl World<'_> {
    fn at(&mut self, ns: u64, event: Event) {
        self.order += 1;
        self.events.push(Reverse((ns, self.order, event)));
    }

    fn run(&mut self, until_ns: u64) {
        while let Some(Reverse((now_ns, _, event))) = self.events.pop() {
            if now_ns > until_ns {
                return;
            }
            match event {
                Event::Send(source) => self.send(now_ns, source),
                Event::Worker => self.work(now_ns),
                Event::Poll => self.poll(now_ns),
                Event::Deadline(number) if number != self.deadline || self.pending.is_none() => {}
                Event::Deadline(_) => {
                    self.spend(now_ns, TIMER_NS);
                    let verdict = self.policy.expired(now_ns);
                    self.act(now_ns, verdict);
                }
            }
        }
    }

    fn spend(&mut self, now_ns: u64, ns: u64) {
        if now_ns >= self.from_ns {
            self.did.cpu_ns += ns;
        }
    }

    /// Varies a time by up to a twentieth.
    fn about(&mut self, ns: u64) -> u64 {
        let spread = ns as f64 / 20.0;
        (ns as f64 + spread * (2.0 * self.random.next() - 1.0)) as u64
    }

    /// Allows a waiting sender to send again from `now_ns` on.
    fn send_after(&mut self, index: usize, now_ns: u64) {
        let ns = match self.sources[index] {
            Source::Requests { away_ns, .. } => now_ns + self.about(away_ns),
            Source::Window { away_ns, spacing_ns, .. } => {
                let ns = (now_ns + away_ns).max(self.next_send[index]);
                self.next_send[index] = ns + spacing_ns;
                ns
            }
            _ => now_ns,
        };
        self.at(ns, Event::Send(index));
    }

    fn send(&mut self, now_ns: u64, index: usize) {
        let source = self.sources[index];
        if let Source::Stalls { gap_ns, ns } = source {
            self.stalled_ns = now_ns + (self.stalls.next() * ns as f64) as u64;
            let next_ns = self.stalled_ns + self.stalls.poisson(gap_ns);
            self.at(next_ns, Event::Send(index));
            return;
        }
        self.sent[index] += 1;
        let gap_ns = match source {
            Source::Constant { gap_ns } => Some(gap_ns),
            Source::Poisson { gap_ns } => Some(self.random.poisson(gap_ns)),
            Source::Bursts { frames, spacing_ns, period_ns } => {
                let last = self.sent[index].is_multiple_of(frames);
                Some(if last { period_ns - (frames - 1) * spacing_ns } else { spacing_ns })
            }
            Source::OnOff { gap_ns, on_ns, off_ns } => {
                let gap_ns = self.random.poisson(gap_ns);
                let phase_ns = (now_ns + gap_ns) % (on_ns + off_ns);
                Some(if phase_ns < on_ns { gap_ns } else { gap_ns + on_ns + off_ns - phase_ns })
            }
            Source::Requests { .. } | Source::Window { .. } | Source::Stalls { .. } => None,
        };
        if let Some(gap_ns) = gap_ns {
            self.at(now_ns + gap_ns.max(1), Event::Send(index));
            if self.inbox.len() >= RING {
                return;
            }
        }
        self.inbox.push_back(Frame { source: index, sent_ns: now_ns });
        self.wake_worker(now_ns);
    }

    fn wake_worker(&mut self, now_ns: u64) {
        if !self.worker_busy && !self.inbox.is_empty() && self.ring.len() < RING {
            self.worker_busy = true;
            let frames = self.inbox.len().min(BURST_FRAMES).min(RING - self.ring.len()) as u64;
            self.spend(now_ns, COPY_NS * frames);
            let from_ns = now_ns.max(self.stalled_ns);
            self.at(from_ns + BURST_NS + COPY_NS * frames, Event::Worker);
        }
    }

    /// Plays a burst of the worker.
    fn work(&mut self, now_ns: u64) {
        let frames = self.inbox.len().min(BURST_FRAMES).min(RING - self.ring.len());
        let burst: Vec<Frame> = self.inbox.drain(..frames).collect();
        let bytes = burst.iter().map(|frame| self.sources[frame.source].frame_bytes()).sum();
        let arrived_ns = burst.iter().map(|frame| frame.sent_ns).min().unwrap_or(now_ns);
        self.ring.extend(burst);
        self.pending = Some(self.pending.unwrap_or(u64::MAX).min(arrived_ns));
        let verdict =
            self.policy.published(now_ns, Batch { frames: frames as u32, bytes, arrived_ns });
        self.act(now_ns, verdict);
        self.worker_busy = false;
        self.wake_worker(now_ns);
    }

    fn act(&mut self, now_ns: u64, verdict: Verdict) {
        match verdict {
            Verdict::HoldUntil(ns) => {
                assert!(ns > now_ns, "a deadline that has passed");
                if ns != self.deadline_ns {
                    self.deadline_ns = ns;
                    self.deadline += 1;
                    self.at(ns + TIMER_LATE_NS, Event::Deadline(self.deadline));
                }
            }
            Verdict::Call => {
                let late_ns = now_ns.saturating_sub(self.deadline_ns);
                if let Some(arrived_ns) = self.pending.take() {
                    let held_ns = now_ns - arrived_ns - late_ns.min(now_ns - arrived_ns);
                    self.did.held_ns_max = self.did.held_ns_max.max(held_ns);
                }
                self.deadline_ns = u64::MAX;
                self.deadline += 1;
                let wanted = !self.polling && !self.ring.is_empty();
                if wanted {
                    self.polling = true;
                    self.spend(now_ns, CALL_NS);
                    self.did.calls += u64::from(now_ns >= self.from_ns);
                    self.at(now_ns.max(self.stalled_ns) + CALL_NS, Event::Poll);
                }
                let how = if wanted { Delivery::Called } else { Delivery::Suppressed };
                self.policy.delivered(now_ns, how);
            }
        }
    }

    /// Plays the guest driver's poll.
    fn poll(&mut self, now_ns: u64) {
        if self.ring.is_empty() {
            self.polling = false;
            self.spend(now_ns, POLL_END_NS);
            return;
        }
        let mut done_ns = now_ns;
        for frame in self.ring.drain(..self.ring.len().min(POLL_FRAMES)).collect::<Vec<_>>() {
            done_ns += FRAME_NS;
            self.spend(done_ns, FRAME_NS);
            if done_ns >= self.from_ns {
                self.did.frames += 1;
                self.did.all_latencies_ns.push((done_ns - frame.sent_ns) as u32);
                if let Source::Requests { .. } = self.sources[frame.source] {
                    self.did.latencies_ns.push((done_ns - frame.sent_ns) as u32);
                }
            }
            if !self.sources[frame.source].open() {
                self.send_after(frame.source, done_ns);
            }
        }
        self.at(done_ns, Event::Poll);
        self.wake_worker(now_ns);
    }
}
