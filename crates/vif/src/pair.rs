//! A queue pair, used by one thread of the guest.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use weir_wire::{Fit, Mac, Offload, OffloadCaps, VnetHdr};

use crate::counters::{PairCounters, PairStats};
use crate::error::SendError;
use crate::features::Features;
use crate::lro::Lro;
use crate::receive::{Frame, Receive, Received};
use crate::transmit::{Body, Transmit};

/// The event to sleep for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitFor {
    /// A received frame.
    Receive,
    /// Room to transmit again.
    Transmit,
    /// Either of the two queues.
    Any,
}

impl WaitFor {
    fn receive(self) -> bool {
        self != Self::Transmit
    }

    fn transmit(self) -> bool {
        self != Self::Receive
    }
}

/// A receive and a transmit ring, which can move to its own thread.
///
/// Calls are suppressed except inside [`wait`](Self::wait). After the [`Vif`](crate::Vif) is
/// dropped, the pair stays usable, but nothing moves.
#[derive(Debug)]
pub struct QueuePair {
    rx: Receive,
    tx: Transmit,
    mac: Mac,
    features: Features,
    transmit_caps: OffloadCaps,
    counters: Arc<PairCounters>,
    timer: Option<PollTimer>,
    lro: Option<Box<Lro>>,
}

impl QueuePair {
    pub(crate) fn new(mac: Mac, features: Features, rx: Receive, tx: Transmit) -> Self {
        Self {
            rx,
            tx,
            mac,
            features,
            transmit_caps: features.transmit_caps(),
            counters: Arc::default(),
            timer: None,
            lro: None,
        }
    }

    /// Fills the receive ring and kicks both rings. The first kick starts a ring, whatever the
    /// device asks for.
    pub(crate) fn start(&mut self) {
        self.rx.refill(&self.counters);
        self.rx.kick(&self.counters);
        self.tx.kick(&self.counters);
    }

    /// Merges TCP segments from now on, for rings of `queue_size` entries.
    pub(crate) fn merge_segments(&mut self, queue_size: u16) {
        self.lro = Some(Box::new(Lro::new(queue_size)));
    }

    pub(crate) fn halves(&self) -> (&Receive, &Transmit) {
        (&self.rx, &self.tx)
    }

    /// Returns the interface's address.
    pub fn mac(&self) -> Mac {
        self.mac
    }

    /// Returns the negotiated features.
    pub fn features(&self) -> Features {
        self.features
    }

    /// Returns the offloads that a sent frame may leave to the device.
    pub fn transmit_caps(&self) -> OffloadCaps {
        self.transmit_caps
    }

    /// Returns the counters, for other threads to read.
    pub fn counters(&self) -> Arc<PairCounters> {
        Arc::clone(&self.counters)
    }

    /// Returns the present values of the counters.
    pub fn stats(&self) -> PairStats {
        self.counters.snapshot()
    }

    /// Copies a frame (14 bytes to 64 KiB plus headers) into transmit buffers and offers it. The
    /// device sees it after [`flush`](Self::flush).
    ///
    /// # Errors
    /// [`SendError::Full`], [`SendError::Length`], or [`SendError::Offload`] if `offload` asks for
    /// a feature that was not negotiated.
    pub fn send(&mut self, frame: &[u8], offload: &Offload) -> Result<(), SendError> {
        let header = self.header(offload)?;
        self.tx.send(&header, frame, None, &self.counters)
    }

    /// Sends like [`send`](Self::send) a frame of `head` and the bytes `range` of `body`, without a
    /// copy of the body: a load generator's large frames differ only in their headers.
    ///
    /// # Errors
    /// As [`send`](Self::send), or [`SendError::Body`].
    pub fn send_with_body(
        &mut self,
        head: &[u8],
        body: Body,
        range: Range<usize>,
        offload: &Offload,
    ) -> Result<(), SendError> {
        let header = self.header(offload)?;
        let body = Some((body, range));
        self.tx.send(&header, head, body, &self.counters)
    }

    /// Sends like [`send`](Self::send) with any virtio header, which is not checked. For tests of a
    /// device.
    ///
    /// # Errors
    /// [`SendError::Full`], [`SendError::Length`].
    pub fn send_raw(&mut self, frame: &[u8], header: &VnetHdr) -> Result<(), SendError> {
        self.tx.send(header, frame, None, &self.counters)
    }

    /// Writes bytes into transmit buffers that keep them for as long as the pair lives. Returns
    /// `None` if the bytes are longer than a frame, or would leave less than half of the buffers.
    pub fn add_body(&mut self, bytes: &[u8]) -> Option<Body> {
        self.tx.add_body(bytes)
    }

    fn header(&self, offload: &Offload) -> Result<VnetHdr, SendError> {
        if self.transmit_caps.accepts(offload) != Fit::AsIs {
            return Err(SendError::Offload);
        }
        // A driver must not set DATA_VALID, and sets num_buffers to 0 (virtio 1.2 §5.1.6.2.1).
        Ok(offload.without_data_valid().to_vnet(0))
    }

    /// Publishes the frames sent since the last flush, and kicks the device if it sleeps.
    pub fn flush(&mut self) {
        self.tx.flush(&self.counters);
    }

    /// Returns the number of sent frames that the device had not given back at the last
    /// [flush](Self::flush).
    pub fn in_flight(&self) -> u16 {
        self.tx.in_flight()
    }

    /// Takes the next received frame, if there is one, and shows it to `look` in place. Its buffers
    /// return to the device afterwards, in batches.
    pub fn recv<R>(&mut self, look: impl FnOnce(&Frame<'_>) -> R) -> Option<R> {
        match &mut self.lro {
            None => self.rx.recv(&self.counters, look),
            Some(lro) => lro.recv(&mut self.rx, &self.counters, look),
        }
    }

    /// Takes the next received frame, if there is one, and copies it into `out`, whose content it
    /// replaces.
    pub fn recv_into(&mut self, out: &mut Vec<u8>) -> Option<Received> {
        self.recv(|frame| {
            frame.copy_to(out);
            Received { header: frame.header, len: frame.len }
        })
    }

    /// Asks the device for no calls, which is the state outside of [`wait`](Self::wait) anyway.
    /// With `EVENT_IDX` the request expires after 2^15 frames; a call does no harm.
    pub fn suppress_calls(&mut self) {
        self.rx.suppress_calls();
        self.tx.suppress_calls();
    }

    /// Polls the receive ring at this interval from now on, in place of calls; `None`: calls only.
    /// See [`Options::poll_interval`](crate::Options::poll_interval).
    pub fn set_poll_interval(&mut self, interval: Option<Duration>) {
        self.timer = interval.map(PollTimer::new);
    }

    /// Flushes, returns every receive buffer, and sleeps with calls enabled until there is work, at most for `timeout`.
    /// Returns true if there is work: frames to receive, or room to send after [`SendError::Full`].
    ///
    /// With a [poll interval](Self::set_poll_interval) it sleeps until the next poll is due, even
    /// if frames come before, and relies on calls again while nothing comes.
    ///
    /// No wake-up is lost: calls are enabled before the last poll of the rings.
    ///
    /// # Errors
    /// The error of `poll`.
    pub fn wait(&mut self, what: WaitFor, timeout: Duration) -> io::Result<bool> {
        self.rx.refill(&self.counters);
        self.flush();
        // `None` is beyond the clock's range, which means no limit.
        let deadline = Instant::now().checked_add(timeout);
        let ready = loop {
            let due = self.next_look(what);
            let ready = match due {
                Some(due) => self.look_if_due(what, due),
                None => self.enable_calls(what),
            };
            if ready {
                break true;
            }
            if self.next_look(what) != due {
                // The poll found nothing: wait for the next poll or a call.
                continue;
            }
            let wake = deadline.into_iter().chain(due).min();
            let left = wake.map(|wake| wake.saturating_duration_since(Instant::now()));
            if left != Some(Duration::ZERO) {
                self.sleep(what, due.is_some(), left)?;
            } else if wake == deadline {
                break due.is_some() && self.is_ready();
            }
        };
        self.suppress_calls();
        let found = ready && what.receive() && self.is_ready();
        if let (true, Some(timer)) = (found, &mut self.timer) {
            timer.found(Instant::now());
        }
        Ok(ready)
    }

    /// Returns the time of the next poll of the receive ring; `None`: at the next call.
    fn next_look(&self, what: WaitFor) -> Option<Instant> {
        self.timer.as_ref().filter(|_| what.receive())?.next()
    }

    /// Asks for calls. Returns true if there is work already.
    fn enable_calls(&mut self, what: WaitFor) -> bool {
        let received = what.receive() && (self.rx.enable_calls() || self.has_ahead());
        let sent = what.transmit() && self.enable_transmit_calls();
        received || sent
    }

    /// Returns true if a frame can be received; asks the device for nothing.
    fn is_ready(&self) -> bool {
        self.rx.is_ready() || self.has_ahead()
    }

    fn has_ahead(&self) -> bool {
        self.lro.as_ref().is_some_and(|lro| lro.has_ahead())
    }

    fn enable_transmit_calls(&mut self) -> bool {
        self.tx.room_again() | self.tx.enable_calls()
    }

    /// Polls the receive ring if a poll is due. Returns true if there is work. A waiting sender need not wait for the
    /// timer.
    fn look_if_due(&mut self, what: WaitFor, due: Instant) -> bool {
        let sent = what.transmit() && self.enable_transmit_calls();
        let now = Instant::now();
        if now < due {
            return sent;
        }
        self.counters.polls.add(1);
        // With EVENT_IDX the request expires.
        self.rx.suppress_calls();
        let received = self.is_ready();
        if let (false, Some(timer)) = (received, &mut self.timer) {
            timer.missed(now);
        }
        received || sent
    }

    /// Sleeps for `left` at most, or until a call; with `polled` calls of the receive ring do not
    /// count.
    fn sleep(&mut self, what: WaitFor, polled: bool, left: Option<Duration>) -> io::Result<()> {
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        // The other ring may have an old call: its eventfd is left out.
        let events = |wanted| {
            if wanted { PollFlags::IN } else { PollFlags::empty() }
        };
        let mut fds = [
            PollFd::new(&self.rx.call, events(what.receive() && !polled)),
            PollFd::new(&self.tx.call, events(what.transmit())),
        ];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let mut calls = 0;
        if fds[0].revents().contains(PollFlags::IN) {
            calls += self.rx.call.drain();
        }
        if fds[1].revents().contains(PollFlags::IN) {
            calls += self.tx.call.drain();
        }
        if calls > 0 {
            self.counters.calls.add(calls);
            self.counters.wakeups.add(1);
        }
        Ok(())
    }
}

/// Consecutive empty polls after which the driver asks for calls again.
const EMPTY_LOOKS_MAX: u32 = 4;

/// The poll timer of a driver, for front-end coalescing (Dong 2011 §4.1, FVIC): the guest takes no calls for received
/// frames and polls the ring on its own timer. Without frames it goes back to calls and sleeps.
#[derive(Debug)]
struct PollTimer {
    interval: Duration,
    /// Time of the next poll; `None` while the driver relies on calls.
    next: Option<Instant>,
    /// Consecutive polls that found nothing.
    empty: u32,
}

impl PollTimer {
    /// Returns a timer that rests until a frame is found.
    pub(crate) fn new(interval: Duration) -> Self {
        Self { interval, next: None, empty: 0 }
    }

    /// Returns the time of the next poll; `None` while the driver relies on calls.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.next
    }

    /// Notes that a poll at `now` found frames, or that a call came: the next poll is due in one interval.
    pub(crate) fn found(&mut self, now: Instant) {
        self.empty = 0;
        self.rearm(now);
    }

    /// Notes that a poll at `now` found nothing.
    pub(crate) fn missed(&mut self, now: Instant) {
        self.empty += 1;
        if self.empty < EMPTY_LOOKS_MAX {
            self.rearm(now);
        } else {
            self.empty = 0;
            self.next = None;
        }
    }

    /// Sets the next poll. A time beyond the clock's range never comes, so the driver relies on calls then.
    fn rearm(&mut self, now: Instant) {
        self.next = now.checked_add(self.interval);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_millis(1);

    #[test]
    fn rests_until_something_is_found_and_after_looks_in_vain() {
        let mut timer = PollTimer::new(INTERVAL);
        let now = Instant::now();
        assert_eq!(timer.next(), None);
        for _ in 0..2 {
            timer.found(now);
            for _ in 1..EMPTY_LOOKS_MAX {
                assert_eq!(timer.next(), Some(now + INTERVAL));
                timer.missed(now);
            }
            assert_eq!(timer.next(), Some(now + INTERVAL));
            timer.missed(now);
            assert_eq!(timer.next(), None);
        }
    }

    #[test]
    fn what_is_found_in_between_begins_the_count_anew() {
        let mut timer = PollTimer::new(INTERVAL);
        let now = Instant::now();
        timer.found(now);
        for _ in 0..3 * EMPTY_LOOKS_MAX {
            timer.missed(now);
            timer.found(now);
        }
        assert_eq!(timer.next(), Some(now + INTERVAL));
    }

    #[test]
    fn an_interval_without_end_relies_on_calls() {
        let mut timer = PollTimer::new(Duration::MAX);
        timer.found(Instant::now());
        assert_eq!(timer.next(), None);
    }
}
