//! Moves bursts into receivers' rings and links, and makes the calls that follow: the timing
//! decisions of `engine/switching/switch.rs` and `port-vhost/{rx,tx}.rs`.

use std::cmp::Reverse;

use weir_limits::{PARKED_MAX, PARKED_NS_MAX, TAP_PARKED_MAX};
use weir_policy::moderation::Batch;

use super::Host;
use super::calls::Answer;
use super::guest::Guest;
use super::parts::{Direction, PortId, Side};
use crate::link::{DropReason, Frame};
use crate::profile::Profile;
use crate::report::Violation;
use crate::ring::RxRing;

/// Buffers that each receiver has left for a burst, as of its beginning.
#[derive(Debug)]
pub(super) struct Room(Vec<(PortId, u32)>);

impl Room {
    /// Returns whether there are buffers for one more frame to `to`, whose ring is `rx`. No frame
    /// overtakes one that has to wait.
    pub(super) fn is_for(&mut self, frame: &Frame, to: PortId, rx: &RxRing) -> bool {
        let Self(receivers) = self;
        let at = receivers.iter().position(|(port, _)| *port == to).unwrap_or_else(|| {
            receivers.push((to, rx.free()));
            receivers.len() - 1
        });
        let left = receivers[at].1.checked_sub(rx.buffers(frame));
        receivers[at].1 = left.unwrap_or(0);
        left.is_some()
    }
}

impl Host<'_> {
    /// Returns the room for a burst from `from`. Frames to receivers with waiting frames queue
    /// behind those.
    pub(super) fn room(&self, from: PortId, again: bool) -> Room {
        Room(self.blocked(from, again).map(|port| (port, 0)).collect())
    }

    /// Iterates over receivers of waiting frames outside the burst.
    fn blocked(&self, from: PortId, again: bool) -> impl Iterator<Item = PortId> {
        // On a retry the waiting frames are the burst.
        let waiting = self.waiting[from].iter().filter(move |_| !again);
        waiting.map(move |frame| self.next_port(from, frame))
    }

    /// Delivers `worker`'s frames from a queue of `from`. Parks or drops the frames without
    /// buffers, together with `rest`. `again`: the frames were parked before.
    pub(super) fn deliver(
        &mut self,
        worker: usize,
        from: PortId,
        frames: Vec<Frame>,
        rest: Vec<Frame>,
        again: bool,
    ) {
        let taken = frames.len() + rest.len();
        let bytes = frames.iter().chain(&rest).map(|frame| u64::from(frame.bytes)).sum();
        let before = self.waiting[from].len();
        let blocked: Vec<PortId> = self.blocked(from, again).collect();
        let mut lists: Vec<(PortId, [Vec<Frame>; 2])> = Vec::new();
        for (fits, frame) in
            frames.into_iter().map(|it| (true, it)).chain(rest.into_iter().map(|it| (false, it)))
        {
            let to = self.next_port(from, &frame);
            if blocked.contains(&to) {
                self.park(from, frame);
                continue;
            }
            let at = lists.iter().position(|(port, _)| *port == to).unwrap_or_else(|| {
                lists.push((to, Default::default()));
                lists.len() - 1
            });
            lists[at].1[usize::from(!fits)].push(frame);
        }
        for (to, [list, rest]) in lists {
            match to.checked_sub(self.guests.len()) {
                Some(uplink) => {
                    list.into_iter().for_each(|frame| self.link_send(uplink, Direction::Out, frame))
                }
                None => self.place(worker, from, to, list, rest),
            }
        }
        let parked = self.waiting[from].len() - before;
        self.settle(worker, from, (taken - parked) as u32, bytes); // bounded by a burst and the waiting frames
    }

    /// Parks a frame, if there is room for it.
    fn park(&mut self, from: PortId, mut frame: Frame) {
        let bound = match self.guests.get(from) {
            Some(guest) => PARKED_MAX.min(guest.tx.size() as usize / 2),
            None => TAP_PARKED_MAX,
        };
        if self.waiting[from].len() < bound {
            frame.parked = true;
            self.waiting[from].push_back(frame);
        } else {
            self.drop_frame(&frame, DropReason::RxRingFull);
        }
    }

    /// Places frames in a guest's ring as far as it has buffers, and asks about the call.
    fn place(
        &mut self,
        worker: usize,
        from: PortId,
        to: usize,
        frames: Vec<Frame>,
        rest: Vec<Frame>,
    ) {
        let now_ns = self.now_ns();
        let (cpu, uplinks) = (self.cpus.last_cpu(self.workers[worker].thread), self.guests.len());
        let ingress = &mut self.workers[worker].did.ingress;
        let Guest { rx, .. } = &mut self.guests[to];
        let mut batch = Batch { frames: 0, bytes: 0, arrived_ns: u64::MAX };
        let (mut buffers, mut parked) = (0, false);
        let mut frames = frames.into_iter().peekable();
        while let Some(frame) = frames.peek() {
            let Some(taken) = rx.place(Frame { cpu, ..*frame }) else { break };
            batch.frames += 1;
            batch.bytes += u64::from(frame.bytes);
            batch.arrived_ns = batch.arrived_ns.min(frame.arrived_ns);
            parked |= frame.parked;
            buffers += taken;
            if from >= uplinks {
                ingress.record(now_ns - frame.offered_ns);
            }
            frames.next();
        }
        let Guest { rx, full_since, in_ring, .. } = &mut self.guests[to];
        in_ring.set(now_ns, rx.len());
        let mut left = frames.chain(rest).peekable();
        let full = left.peek().is_some();
        if batch.frames > 0 || !full {
            *full_since = None;
        }
        if full {
            let since_ns = *full_since.get_or_insert(now_ns);
            let worth_waiting = now_ns - since_ns < PARKED_NS_MAX;
            // Buffers that came during the copy bring no kick.
            let again = left.peek().is_some_and(|frame| rx.buffers(frame) <= rx.free());
            self.workers[worker].retry |= worth_waiting && again;
            rx.kick_wanted = true;
            for frame in left {
                if worth_waiting {
                    self.park(from, frame);
                } else {
                    self.drop_frame(&frame, DropReason::RxRingFull);
                }
            }
        }
        let buffers_max = self.guests[to].buffers_held_max();
        let Guest { rx, rx_calls, hypervisor_poll_ns, .. } = &mut self.guests[to];
        if batch.frames > 0 {
            if !rx_calls.withholds && hypervisor_poll_ns.is_none() {
                rx.publish();
                self.found(to, self.scenario.profile.look_ns);
            }
            let Guest { rx_calls, sent, .. } = &mut self.guests[to];
            rx_calls.count(&batch, *sent);
            let answer = rx_calls.published(now_ns, batch, (buffers, parked), buffers_max);
            self.act(worker, to, Side::Rx, answer);
        } else if full && rx_calls.is_pending() {
            // The guest refills buffers after it is notified of their frames.
            self.announce(worker, to);
        }
    }

    /// Completes frames that a guest has sent, and asks about the call.
    fn settle(&mut self, worker: usize, from: PortId, frames: u32, bytes: u64) {
        let now_ns = self.now_ns();
        let Some(Guest { tx, tx_calls, sent, .. }) = self.guests.get_mut(from) else { return };
        sent.frames += u64::from(frames);
        sent.bytes += bytes;
        tx_calls.before_more(tx.used.wants_call());
        tx.complete(frames);
        let in_ring = tx.available() + self.waiting[from].len() as u32; // no more than its slots
        let (size, wanted) = (tx.size(), tx.used.wants_call());
        let answer = tx_calls.completed(now_ns, (frames, bytes), in_ring, size, wanted);
        self.act(worker, from, Side::Tx, answer);
    }

    fn act(&mut self, worker: usize, guest: usize, side: Side, answer: Result<Answer, Violation>) {
        match (answer, side) {
            (Ok(Answer::Call), Side::Rx) => self.announce(worker, guest),
            (Ok(Answer::Call), Side::Tx) => self.announce_completed(worker, guest),
            (Ok(Answer::Later(timer_ns)), _) => self.ask_at(worker, guest, side, timer_ns),
            (Ok(Answer::CallForReceived(timer_ns)), _) => {
                self.ask_at(worker, guest, side, timer_ns);
                self.announce(worker, guest);
            }
            (Err(violation), _) => self.violated(violation),
        }
    }

    fn ask_at(&mut self, worker: usize, guest: usize, side: Side, timer_ns: Option<u64>) {
        let timer = timer_ns.map(|until_ns| Reverse((until_ns, guest, side)));
        self.workers[worker].holds.extend(timer);
    }

    /// Notifies a guest of its received frames, if it wants notifications.
    fn announce(&mut self, worker: usize, guest: usize) {
        let now_ns = self.now_ns();
        let Guest { rx, rx_calls, hypervisor_poll_ns, suppressed, .. } = &mut self.guests[guest];
        if hypervisor_poll_ns.is_some() {
            // The nested hypervisor behind this ring polls and wants no call.
            rx_calls.told(now_ns, false, false);
            *suppressed += 1;
            return;
        }
        let hidden = rx_calls.withholds;
        rx.publish();
        let called = rx.used.call_if_wanted() == Some(true);
        rx_calls.told(now_ns, called, hidden);
        self.found(guest, self.scenario.profile.look_ns);
        if called {
            self.workers[worker].debt_ns += self.call_ns(guest);
            self.signal(guest, Side::Rx);
        } else {
            self.guests[guest].suppressed += 1;
        }
    }

    /// Notifies a guest of its completed frames, if it wants notifications.
    fn announce_completed(&mut self, worker: usize, guest: usize) {
        let Guest { tx, tx_calls, suppressed, .. } = &mut self.guests[guest];
        let called = tx.used.call_if_wanted();
        tx_calls.told(called == Some(true));
        match called {
            Some(true) => {
                self.workers[worker].debt_ns += self.call_ns(guest);
                self.signal(guest, Side::Tx);
            }
            Some(false) => *suppressed += 1,
            None => {}
        }
    }

    /// Asks about calls whose deadlines have passed. Calls for received frames count `lead_ns`
    /// earlier.
    pub(super) fn expire_holds(&mut self, worker: usize, lead_ns: u64) {
        let now_ns = self.now_ns();
        while let Some((_, guest, side)) = self.workers[worker].take_ended(now_ns, lead_ns) {
            let now_ns = match side {
                Side::Rx => now_ns + lead_ns,
                Side::Tx => now_ns,
            };
            let Profile { deadline_ns, uplink_interrupt_ns, call_ns, .. } = self.scenario.profile;
            self.workers[worker].debt_ns += match self.scenario.realization.hold_timers {
                true => deadline_ns + uplink_interrupt_ns + call_ns,
                false => deadline_ns,
            };
            let buffers_max = self.guests[guest].buffers_held_max();
            let Guest { rx_calls, tx_calls, .. } = &mut self.guests[guest];
            let answer = match side {
                Side::Rx => rx_calls.expired(now_ns, buffers_max),
                Side::Tx => tx_calls.expired(now_ns, rx_calls.standing()),
            };
            self.act(worker, guest, side, answer);
        }
    }

    /// Takes all waiting frames of a port for another try. Drops those that have waited too long.
    pub(super) fn take_waiting(&mut self, worker: usize, from: PortId) -> Vec<Frame> {
        let now_ns = self.now_ns();
        let waiting = std::mem::take(&mut self.waiting[from]);
        let old = |frame: &Frame| frame.arrived_ns + PARKED_NS_MAX <= now_ns;
        let (late, rest): (Vec<_>, Vec<_>) = waiting.into_iter().partition(old);
        late.iter().for_each(|frame| self.drop_frame(frame, DropReason::RxWaitedTooLong));
        if !late.is_empty() {
            self.settle(worker, from, late.len() as u32, 0);
        }
        rest
    }
}

impl Guest {
    /// Returns the number of waiting buffers that ends a hold: half of the ring, or none if frames
    /// find no buffers.
    fn buffers_held_max(&self) -> u32 {
        if self.full_since.is_some() { 0 } else { self.rx.size() / 2 }
    }
}
