//! A guest's vCPU at work: a driver as in Linux, and programs that write and read.
//!
//! The vCPU does one job at a time: interrupts first, then the driver's poll of up to 64 frames,
//! then programs. After a full poll, programs get a turn (Linux: `ksoftirqd`). An interrupt waits
//! for the current step, some microseconds at most.
//!
//! A guest may be a hypervisor around its own guest, a third layer that holds frames. The inner
//! switch shares the vCPU. A timer makes it poll weir's ring, so a frame waits for the uplink's
//! hold, for this timer and for the guest's hold.

use super::Host;
use super::guest::Lro;
use super::guest::{Guest, Interrupt, Job, Program};
use super::parts::{Event, Side};
use crate::link::{Content, DropReason, Frame};
use crate::profile::bytes_ns;
use crate::random::Random;
use crate::scenario::{self, Scenario};
use crate::topology::{CpuId, Distance};

/// Unit of a program's work (ns), between interrupts.
const STEP_NS: u64 = 5_000;
/// Longest busy-poll of a vCPU (ns), if nothing cuts it short.
const SPIN_NS: u64 = 10_000_000;
/// Frames per poll (Linux: `NAPI_POLL_WEIGHT`).
const POLL_FRAMES: u32 = 64;

impl Host<'_> {
    /// Returns the cost of a job for the vCPU (ns).
    fn job_ns(&self, guest: usize, job: &Job) -> u64 {
        let profile = &self.scenario.profile;
        match job {
            Job::Interrupt(Interrupt::Call(_)) => self.interrupt_ns(guest),
            Job::Interrupt(Interrupt::Timer | Interrupt::Tick) => profile.guest_timer_ns,
            Job::Interrupt(Interrupt::Hypervisor) => profile.hypervisor_timer_ns,
            Job::Stall(ns) => *ns,
            Job::Kick(_) => self.kick_ns(guest),
            Job::PollEnd => self.poll_end_ns(guest),
            Job::Spin => SPIN_NS,
            Job::Receive => {
                let Guest { rx, thread, lro, .. } = &self.guests[guest];
                let Some(frame) = rx.first() else { return 0 };
                let merges = lro.as_ref().is_some_and(|lro| lro.merges(frame));
                (if merges { profile.merge_ns } else { profile.receive_ns })
                    + bytes_ns(frame.bytes, profile.receive_ps_per_byte)
                    + self.far_ns(frame.cpu, self.cpus.last_cpu(*thread))
            }
            Job::Program(Program::Send(frame)) => {
                profile.send_ns + bytes_ns(frame.bytes, profile.send_ps_per_byte)
            }
            Job::Program(Program::Serve(serve_ns, _)) => (*serve_ns).min(STEP_NS),
            Job::Program(Program::Pace(ns, _) | Program::Lull(ns, _)) => *ns,
        }
    }

    /// Returns the cost of using data that another CPU wrote (ns).
    pub(super) fn far_ns(&self, from: Option<CpuId>, to: Option<CpuId>) -> u64 {
        match self.cpus.distance(from, to) {
            Distance::Near => 0,
            Distance::Socket => self.scenario.profile.far_cache_ns,
            Distance::Host => self.scenario.profile.far_socket_ns,
        }
    }

    /// Makes a vCPU busy-poll its ring from now on.
    pub(super) fn spin(&mut self, guest: usize) {
        let Guest { rx, spins, polled, job, thread, .. } = &mut self.guests[guest];
        rx.used.disarm();
        (*spins, *polled, *job) = (true, Some(0), Some(Job::Spin));
        self.cpus.wake(&mut self.calendar, *thread, SPIN_NS, 0);
    }

    /// Ends a vCPU's busy-poll, since frames have come.
    pub(super) fn found(&mut self, guest: usize, look_ns: u64) {
        let Guest { job, thread, .. } = &self.guests[guest];
        if matches!(job, Some(Job::Spin)) {
            self.cpus.cut(&mut self.calendar, *thread, look_ns);
        }
    }

    /// Interrupts a vCPU, which may have work.
    fn rouse(&mut self, guest: usize) {
        let latency_ns = self.delays.wakeup_ns();
        self.rouse_in(guest, latency_ns);
    }

    pub(super) fn rouse_in(&mut self, guest: usize, latency_ns: u64) {
        self.found(guest, 0);
        if self.guests[guest].job.is_some() {
            return;
        }
        let Some(job) = self.guests[guest].choose() else { return };
        let work_ns = self.job_ns(guest, &job);
        let Guest { thread, job: now, .. } = &mut self.guests[guest];
        *now = Some(job);
        self.cpus.wake(&mut self.calendar, *thread, work_ns, latency_ns);
    }

    /// Handles the end of a vCPU's job.
    pub(super) fn guest_done(&mut self, guest: usize) {
        let Some(job) = self.guests[guest].job else { return };
        match job {
            Job::Interrupt(interrupt) => self.interrupted(guest, interrupt),
            Job::Stall(_) => {}
            Job::Kick(side) => {
                self.guests[guest].kicks += 1;
                self.kicked(guest, side);
            }
            Job::Receive => self.receive(guest),
            Job::PollEnd => self.poll_end(guest),
            Job::Spin => {}
            Job::Program(Program::Send(frame)) => self.transmit(guest, frame),
            Job::Program(Program::Serve(serve_ns, frame)) => match serve_ns.checked_sub(STEP_NS) {
                None | Some(0) => self.write(frame),
                Some(left_ns) => {
                    let rest = Program::Serve(left_ns, frame);
                    self.guests[guest].programs.push_front(rest);
                }
            },
            Job::Program(Program::Pace(_, load)) => self.send_due(guest, load),
            Job::Program(Program::Lull(_, load)) => self.lulled(guest, load),
        }
        let thread = self.guests[guest].thread;
        let next = self.guests[guest].choose();
        self.guests[guest].job = next;
        match next {
            Some(job) => {
                let work_ns = self.job_ns(guest, &job);
                self.cpus.go_on(&mut self.calendar, thread, work_ns);
            }
            None => self.cpus.block(&mut self.calendar, thread),
        }
    }

    /// Queues a job of a program in a guest.
    pub(super) fn program(&mut self, guest: usize, program: Program) {
        let Guest { programs, queue_max, .. } = &mut self.guests[guest];
        // A sender that exceeds the vCPU is held up, and drops frames without memory.
        if let (Program::Send(frame), true) = (program, programs.len() > *queue_max) {
            self.drop_frame(&frame, DropReason::SenderQueueFull);
            return;
        }
        programs.push_back(program);
        self.rouse(guest);
    }

    /// Gives a guest a call.
    pub(super) fn call(&mut self, guest: usize, side: Side) {
        match side {
            Side::Rx => self.guests[guest].rx_called += 1,
            Side::Tx => self.guests[guest].tx_called += 1,
        }
        self.interrupt(guest, Interrupt::Call(side));
    }

    /// One waiting interrupt of the same kind is enough.
    pub(super) fn interrupt(&mut self, guest: usize, interrupt: Interrupt) {
        let same = |job: &Job| matches!(job, Job::Interrupt(waiting) if *waiting == interrupt);
        let urgent = &mut self.guests[guest].urgent;
        if !urgent.iter().any(same) {
            urgent.push_back(Job::Interrupt(interrupt));
        }
        self.rouse(guest);
    }

    fn interrupted(&mut self, guest: usize, interrupt: Interrupt) {
        self.guests[guest].interrupts += 1;
        match interrupt {
            Interrupt::Call(Side::Rx) | Interrupt::Timer => self.poll_begins(guest),
            Interrupt::Hypervisor => self.pass_on(guest),
            Interrupt::Tick => {}
            Interrupt::Call(Side::Tx) => {
                match self.scenario.realization.tx_calls_when_full {
                    true => self.guests[guest].tx.reclaim_unless_full(),
                    false => self.guests[guest].tx.reclaim(),
                }
                self.drain(guest);
            }
        }
    }

    /// Begins a poll, unless the driver already polls. The driver first frees transmitted frames
    /// (`virtnet_poll_cleantx`).
    fn poll_begins(&mut self, guest: usize) {
        let Guest { polled, timer, poll, due_ns, .. } = &mut self.guests[guest];
        if polled.is_none() {
            *polled = Some(0);
            if !poll.is_some_and(|poll| poll.periodic) {
                (*timer, *due_ns) = (*timer + 1, None);
            }
        }
        self.clean(guest);
    }

    fn clean(&mut self, guest: usize) {
        match self.scenario.realization.tx_calls_when_full {
            true => self.guests[guest].tx.reclaim_unless_full(),
            false => self.guests[guest].tx.reclaim_delayed(),
        }
        self.drain(guest);
    }

    /// Handles a received frame that has passed the stack.
    fn receive(&mut self, guest: usize) {
        let now_ns = self.now_ns();
        let Guest { rx, polled, received, yields, empty_polls, in_ring, .. } =
            &mut self.guests[guest];
        let Some(frame) = rx.take() else { return };
        in_ring.set(now_ns, rx.len());
        *received += 1;
        *empty_polls = 0;
        let count = polled.unwrap_or(0) + 1;
        let round_over = count >= POLL_FRAMES;
        *polled = Some(if round_over { 0 } else { count });
        *yields = round_over;
        if round_over {
            self.refill(guest);
            self.clean(guest);
        }
        match (&mut self.guests[guest].lro, frame.content) {
            (Some(lro), Content::Segment(_)) => {
                let complete = lro.add(frame, round_over);
                complete.iter().for_each(|run| self.read_merged(run));
            }
            _ => self.read(frame),
        }
    }

    /// Offers emptied buffers again, if there are many (`try_fill_recv`).
    fn refill(&mut self, guest: usize) {
        let Guest { rx, urgent, without_buffers, .. } = &mut self.guests[guest];
        if *without_buffers > 0 {
            return;
        }
        if rx.refill(POLL_FRAMES.min(rx.size()) / 2) {
            urgent.push_back(Job::Kick(Side::Rx));
        }
    }

    /// Restores memory for buffers (`refill_work`).
    pub(super) fn buffers_back(&mut self, guest: usize) {
        self.refill(guest);
        self.rouse(guest);
    }

    /// Makes a vCPU busy for `ns` before anything else.
    pub(super) fn stall(&mut self, guest: usize, ns: u64) {
        self.guests[guest].urgent.push_front(Job::Stall(ns));
        self.rouse(guest);
    }

    /// Handles a poll that found the ring empty: the driver asks for calls, or polls again by its
    /// timer.
    fn poll_end(&mut self, guest: usize) {
        let merged = self.guests[guest].lro.as_mut().map(Lro::flush).unwrap_or_default();
        merged.iter().for_each(|run| self.read_merged(run));
        self.refill(guest);
        let now_ns = self.now_ns();
        let Guest { rx, polled, poll, empty_polls, timer, due_ns, .. } = &mut self.guests[guest];
        match poll {
            Some(poll) if *empty_polls < poll.empty_polls && rx.first().is_none() => {
                *polled = None;
                *empty_polls += 1;
                // A timer with a pace of its own may be set.
                if due_ns.is_none() {
                    let next_ns = now_ns + poll.interval_ns;
                    (*timer, *due_ns) = (*timer + 1, Some(next_ns));
                    self.calendar.at(next_ns, Event::GuestTimer(guest, *timer));
                }
            }
            _ => {
                *polled = rx.arm().then_some(0);
                if polled.is_none() {
                    (*timer, *due_ns) = (*timer + 1, None);
                }
            }
        }
    }

    pub(super) fn guest_timer(&mut self, guest: usize, number: u64) {
        let now_ns = self.now_ns();
        let Guest { timer, poll, due_ns, .. } = &mut self.guests[guest];
        if *timer == number {
            let periodic = poll.filter(|poll| poll.periodic);
            *due_ns = periodic.map(|poll| now_ns + poll.interval_ns);
            if let Some(next_ns) = *due_ns {
                self.calendar.at(next_ns, Event::GuestTimer(guest, number));
            }
            self.interrupt(guest, Interrupt::Timer);
        }
    }

    /// Starts a guest's tick, at a random time, unless its poll timer is this tick.
    pub(super) fn start_guest_tick(&mut self, guest: usize) {
        let Scenario { guests, loads, seed, .. } = self.scenario;
        let scenario::Guest { tick_ns, poll, .. } = &guests[guest];
        let polls = poll.filter(|poll| poll.periodic).map(|poll| poll.interval_ns);
        if let Some(tick_ns) = tick_ns.filter(|_| polls != *tick_ns) {
            // A stream that no load uses, not even for its beginning.
            let mut random = Random::stream(*seed, u64::MAX - (loads.len() + guest) as u64);
            self.calendar.after(random.below(tick_ns), Event::GuestTick(guest));
        }
    }

    pub(super) fn guest_tick(&mut self, guest: usize) {
        self.interrupt(guest, Interrupt::Tick);
        if let Some(tick_ns) = self.scenario.guests[guest].tick_ns {
            self.calendar.after(tick_ns, Event::GuestTick(guest));
        }
    }

    /// Takes a frame from the stack.
    fn transmit(&mut self, guest: usize, mut frame: Frame) {
        frame.cpu = self.cpus.last_cpu(self.guests[guest].thread);
        self.clean(guest);
        let Guest { tx, queue, queue_max, .. } = &mut self.guests[guest];
        if tx.has_room() && queue.is_empty() {
            self.offer(guest, frame);
        } else if queue.len() < *queue_max {
            queue.push_back(frame);
        } else {
            self.drop_frame(&frame, DropReason::SenderQueueFull);
        }
    }

    /// Moves waiting frames into the ring, as far as there is room.
    fn drain(&mut self, guest: usize) {
        while self.guests[guest].tx.has_room()
            && let Some(frame) = self.guests[guest].queue.pop_front()
        {
            self.offer(guest, frame);
        }
    }

    fn offer(&mut self, guest: usize, mut frame: Frame) {
        frame.offered_ns = self.now_ns();
        let Guest { tx, urgent, .. } = &mut self.guests[guest];
        if tx.offer(frame) {
            urgent.push_back(Job::Kick(Side::Tx));
        } else {
            self.appeared(guest);
        }
    }

    /// Starts the polls of a guest's nested hypervisor, if there is one.
    pub(super) fn start_hypervisor(&mut self, guest: usize) {
        if let Some(ns) = self.guests[guest].hypervisor_poll_ns {
            self.calendar.after(ns, Event::HypervisorTimer(guest));
        }
    }

    pub(super) fn hypervisor_timer(&mut self, guest: usize) {
        self.interrupt(guest, Interrupt::Hypervisor);
        self.start_hypervisor(guest);
    }

    /// Shows a nested guest the frames that weir has published.
    pub(super) fn pass_on(&mut self, guest: usize) {
        let Guest { rx, .. } = &mut self.guests[guest];
        rx.publish();
        if rx.used.call_if_wanted() == Some(true) {
            self.call(guest, Side::Rx);
        }
    }
}
