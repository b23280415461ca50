//! The descriptors on which a worker sleeps: kick descriptors, edge-triggered, a wake-up of its own and a timer.
//!
//! With edge triggering, a kick costs no read of its eventfd: the counter only grows (it cannot reach its maximum), and
//! each write is one event. The timer needs no read either: setting it again resets it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use weir_fabric::PortId;

use crate::frames::port::QueueRef;
use crate::frames::port::Side;

const NO_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// With edge triggering, each write is an event.
const KICK: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::ET);
/// The value of the worker's own wake-up in `epoll_event.data`; no [`QueueRef`] has this encoding.
const WAKE: u64 = u64::MAX;
/// The value of the timer; no [`QueueRef`] has this encoding either.
const TIMER: u64 = u64::MAX - 1;

impl QueueRef {
    fn encode(self) -> u64 {
        let side = match self.side {
            Side::Tx => 0,
            Side::Rx => 1,
        };
        u64::from(self.port.get()) << 32 | (self.queue as u64 & 0xffff) << 1 | side
    }

    fn decode(data: u64) -> Option<Self> {
        let port = PortId::new(u16::try_from(data >> 32).ok()?)?;
        let side = if data & 1 == 0 { Side::Tx } else { Side::Rx };
        Some(Self { port, queue: (data >> 1 & 0xffff) as usize, side })
    }
}

/// One worker's epoll set.
pub struct Poller {
    epoll: OwnedFd,
    wake: OwnedFd,
    timer: OwnedFd,
    inbox: Mutex<Vec<QueueRef>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The queue's kick came.
    Kick(QueueRef),
    /// weir itself makes the worker poll the queue.
    Nudge(QueueRef),
}

impl Event {
    pub(crate) fn queue(self) -> QueueRef {
        match self {
            Self::Kick(queue) | Self::Nudge(queue) => queue,
        }
    }
}

/// The time for which [`Poller::wait`] waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// The call does not wait.
    Look,
    /// The call waits for this time at most.
    For(Duration),
    /// The call waits until there is an event.
    ForEvents,
}

/// The reason why [`Poller::wait`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    /// The time has passed without an event.
    TimeOver,
    /// The timer fired; other events were noted.
    Timer,
    /// There was an event other than the timer.
    Event,
    /// A signal interrupted the call: the caller reads its clock and waits again.
    Interrupted,
}

/// A descriptor that is watched until this value is dropped.
pub struct Watch(#[expect(dead_code, reason = "watched while it is held")] Arc<Watched>);

impl Watch {
    pub(crate) fn new(watched: Arc<Watched>) -> Self {
        Self(watched)
    }
}

/// A descriptor in a worker's epoll set. It must be removed from there before it is closed: the front end's copy of the
/// open file would keep the registration.
pub(crate) struct Watched {
    fd: OwnedFd,
    queue: QueueRef,
    poller: Mutex<Arc<Poller>>,
}

impl Watched {
    fn poller(&self) -> MutexGuard<'_, Arc<Poller>> {
        self.poller.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Turns events for the descriptor's kicks on or off. If the descriptor is readable when they are turned on, an
    /// event comes at once.
    pub(crate) fn listen(&self, listen: bool) {
        self.poller().listen(&self.fd, self.queue, listen);
    }

    /// Moves the watch to another worker's set. If the descriptor is readable, an event comes there at once.
    pub(crate) fn move_to(&self, poller: &Arc<Poller>) -> io::Result<()> {
        let mut current = self.poller();
        if Arc::ptr_eq(&current, poller) {
            return Ok(());
        }
        poller.add(&self.fd, self.queue)?;
        current.remove(&self.fd);
        *current = Arc::clone(poller);
        Ok(())
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.poller().remove(&self.fd);
    }
}

impl Poller {
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &wake, epoll::EventData::new_u64(WAKE), KICK)?;
        let timer_flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, timer_flags)?;
        epoll::add(&epoll, &timer, epoll::EventData::new_u64(TIMER), KICK)?;
        Ok(Self { epoll, wake, timer, inbox: Mutex::new(Vec::new()) })
    }

    /// Watches `fd` as the kick of `queue`. If the descriptor is already readable, an event comes at once.
    pub(crate) fn watch(
        self: &Arc<Self>,
        fd: OwnedFd,
        queue: QueueRef,
    ) -> io::Result<Arc<Watched>> {
        self.add(&fd, queue)?;
        Ok(Arc::new(Watched { fd, queue, poller: Mutex::new(Arc::clone(self)) }))
    }

    fn add(&self, fd: &OwnedFd, queue: QueueRef) -> io::Result<()> {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(queue.encode()), KICK)?;
        Ok(())
    }

    fn listen(&self, fd: &OwnedFd, queue: QueueRef, listen: bool) {
        let flags = if listen { KICK } else { epoll::EventFlags::empty() };
        // The call can fail for the same reason as in `remove`.
        let _ = epoll::modify(&self.epoll, fd, epoll::EventData::new_u64(queue.encode()), flags);
    }

    fn remove(&self, fd: &OwnedFd) {
        // The descriptor was added and is still open: this fails only if the kernel has removed it already.
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Makes the worker poll `queue` without a kick.
    pub(crate) fn nudge(&self, queue: QueueRef) {
        let mut inbox = self.inbox.lock().unwrap_or_else(|e| e.into_inner());
        inbox.push(queue);
        drop(inbox);
        self.wake();
    }

    /// Ends the worker's sleep.
    pub(crate) fn wake(&self) {
        // The write fails if the counter is full, and then a wake-up is pending already.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Sets the timer to `until_ns` of the [clock](crate::threads::clock), replacing any earlier time.
    ///
    /// This is a separate system call because setting a timer is expensive in a virtual machine: with a timeout in the
    /// waiting call, every sleep would set a timer.
    pub(crate) fn set_timer(&self, until_ns: u64) -> io::Result<()> {
        let it_interval = timespec(Duration::ZERO);
        // A time of zero would disarm the timer.
        let it_value = timespec(Duration::from_nanos(until_ns.max(1)));
        let time = Itimerspec { it_interval, it_value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &time)?;
        Ok(())
    }

    /// Waits, appends the events to `queues`, and returns why the wait ended.
    pub(crate) fn wait(
        &self,
        events: &mut Vec<epoll::Event>,
        how_long: Wait,
        queues: &mut Vec<Event>,
    ) -> Woken {
        events.clear();
        let timeout = match how_long {
            Wait::Look => Some(&NO_TIME),
            Wait::ForEvents => None,
            Wait::For(time) => match self.wait_for_one(time) {
                Woken::Event => Some(&NO_TIME),
                other => return other,
            },
        };
        let spare = rustix::buffer::spare_capacity(events);
        if epoll::wait(&self.epoll, spare, timeout).is_err() {
            return Woken::Interrupted;
        }
        let mut woken = if events.is_empty() { Woken::TimeOver } else { Woken::Event };
        for event in events.iter() {
            match event.data.u64() {
                WAKE => {
                    let mut inbox = self.inbox.lock().unwrap_or_else(|e| e.into_inner());
                    queues.extend(inbox.drain(..).map(Event::Nudge));
                }
                TIMER => woken = Woken::Timer,
                data => queues.extend(QueueRef::decode(data).map(Event::Kick)),
            }
        }
        woken
    }

    /// Sleeps until there is an event, or for `time`.
    ///
    /// This calls `ppoll` on the epoll set: `epoll_wait` takes only whole milliseconds, and `epoll_pwait2` needs Linux
    /// 5.11. A sleep that ends by its timeout is still one system call.
    fn wait_for_one(&self, time: Duration) -> Woken {
        let mut set = [PollFd::new(&self.epoll, PollFlags::IN)];
        match poll(&mut set, Some(&timespec(time))) {
            Ok(0) => Woken::TimeOver,
            Ok(_) => Woken::Event,
            Err(_) => Woken::Interrupted,
        }
    }
}

fn timespec(time: Duration) -> Timespec {
    let tv_sec = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    Timespec { tv_sec, tv_nsec: time.subsec_nanos().into() }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::threads::clock;

    fn eventfd_pair() -> (OwnedFd, OwnedFd) {
        let fd = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        (fd.try_clone().unwrap(), fd)
    }

    fn wait(poller: &Poller) -> Vec<Event> {
        let mut queues = Vec::new();
        poller.wait(&mut Vec::with_capacity(8), Wait::Look, &mut queues);
        queues
    }

    #[test]
    fn every_kick_is_one_event_without_reading_the_eventfd() {
        let poller = Arc::new(Poller::new().unwrap());
        let queue = QueueRef { port: PortId::new(1023).unwrap(), queue: 7, side: Side::Rx };
        let (ours, theirs) = eventfd_pair();
        let watch = poller.watch(ours, queue).unwrap();
        for _ in 0..3 {
            assert_eq!(wait(&poller), []);
            rustix::io::write(&theirs, &1u64.to_ne_bytes()).unwrap();
            assert_eq!(wait(&poller), [Event::Kick(queue)]);
        }
        drop(watch);
        rustix::io::write(&theirs, &1u64.to_ne_bytes()).unwrap();
        assert_eq!(wait(&poller), [], "forgotten although the front end's copy is open");
    }

    #[test]
    fn kicks_that_are_ignored_are_one_event_later() {
        let poller = Arc::new(Poller::new().unwrap());
        let queue = QueueRef { port: PortId::new(0).unwrap(), queue: 0, side: Side::Tx };
        let (ours, theirs) = eventfd_pair();
        let watched = poller.watch(ours, queue).unwrap();
        watched.listen(false);
        for _ in 0..3 {
            rustix::io::write(&theirs, &1u64.to_ne_bytes()).unwrap();
            assert_eq!(wait(&poller), []);
        }
        watched.listen(true);
        assert_eq!(wait(&poller), [Event::Kick(queue)]);
        assert_eq!(wait(&poller), []);
    }

    #[test]
    fn a_kick_from_before_the_watch_is_seen() {
        let poller = Arc::new(Poller::new().unwrap());
        let queue = QueueRef { port: PortId::new(0).unwrap(), queue: 0, side: Side::Tx };
        let (ours, theirs) = eventfd_pair();
        rustix::io::write(&theirs, &1u64.to_ne_bytes()).unwrap();
        let _watch = poller.watch(ours, queue).unwrap();
        assert_eq!(wait(&poller), [Event::Kick(queue)]);
    }

    #[test]
    fn a_wait_is_as_fine_as_the_kernels_timers() {
        let poller = Poller::new().unwrap();
        let shortest_of_five = |timeout| {
            let wait = |_| {
                let start = Instant::now();
                poller.wait(&mut Vec::with_capacity(8), Wait::For(timeout), &mut Vec::new());
                start.elapsed()
            };
            (0..5).map(wait).inspect(|took| assert!(*took >= timeout, "early")).min().unwrap()
        };
        // A timeout in whole milliseconds, rounded up, would make both waits equally long.
        let (short, long) = (Duration::from_micros(20), Duration::from_millis(1));
        assert!((0..100).any(|_| shortest_of_five(short) < shortest_of_five(long) / 2));
    }

    #[test]
    fn a_kick_ends_a_wait_and_is_one_event() {
        let poller = Arc::new(Poller::new().unwrap());
        let queue = QueueRef { port: PortId::new(3).unwrap(), queue: 0, side: Side::Tx };
        let (ours, theirs) = eventfd_pair();
        let _watch = poller.watch(ours, queue).unwrap();
        for _ in 0..3 {
            let wait = |timeout| {
                let mut queues = Vec::new();
                poller.wait(&mut Vec::with_capacity(8), Wait::For(timeout), &mut queues);
                queues
            };
            rustix::io::write(&theirs, &1u64.to_ne_bytes()).unwrap();
            assert_eq!(wait(Duration::from_secs(3600)), [Event::Kick(queue)]);
            assert_eq!(wait(Duration::from_micros(1)), [], "seen already");
        }
    }

    #[test]
    fn a_nudge_wakes() {
        let poller = Poller::new().unwrap();
        let queue = QueueRef { port: PortId::new(5).unwrap(), queue: 1, side: Side::Tx };
        poller.nudge(queue);
        assert_eq!(wait(&poller), [Event::Nudge(queue)]);
        assert_eq!(wait(&poller), []);
    }

    #[test]
    fn a_timer_ends_a_wait_once_and_can_be_set_again() {
        let poller = Poller::new().unwrap();
        let wait = |how| poller.wait(&mut Vec::with_capacity(8), how, &mut Vec::new());
        for _ in 0..3 {
            let until_ns = clock::now_ns() + 100_000;
            poller.set_timer(until_ns).unwrap();
            assert_eq!(wait(Wait::ForEvents), Woken::Timer);
            assert!(clock::now_ns() >= until_ns, "early");
            assert_eq!(wait(Wait::For(Duration::from_micros(1))), Woken::TimeOver, "it was seen");
        }
        // A timer that was postponed does not fire.
        poller.set_timer(clock::now_ns() + 1_000_000_000).unwrap();
        poller.set_timer(clock::now_ns() + 3_600_000_000_000).unwrap();
        assert_eq!(wait(Wait::Look), Woken::TimeOver);
        // A timer whose time has already passed is not lost either.
        poller.set_timer(0).unwrap();
        assert_eq!(wait(Wait::ForEvents), Woken::Timer);
    }
}
