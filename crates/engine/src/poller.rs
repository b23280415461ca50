//! What a worker sleeps on: kick descriptors, edge-triggered, and a wake-up of its own.
//!
//! Edge-triggered, a kick costs no read of its eventfd: the counter just grows (it cannot reach its
//! end), and each write to it is one event.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use weir_fabric::PortId;

use crate::port::Side;

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueRef {
    /// The port.
    pub port: PortId,
    /// Its queue.
    pub queue: usize,
    /// Which one of the pair.
    pub side: Side,
}

const NO_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// The worker's own wake-up in `epoll_event.data`; no [`QueueRef`] encodes to it.
const WAKE: u64 = u64::MAX;

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
    inbox: Mutex<Vec<QueueRef>>,
}

/// A descriptor that is watched for as long as this lives.
///
/// Closing it is not enough to forget it: the front end has a copy of the same open file, which
/// would keep the registration.
pub struct Watch {
    fd: OwnedFd,
    poller: Arc<Poller>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        // It was added and is still open: this fails only if the kernel has forgotten it already.
        let _ = epoll::delete(&self.poller.epoll, &self.fd);
    }
}

impl Poller {
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &wake, epoll::EventData::new_u64(WAKE), flags)?;
        Ok(Self { epoll, wake, inbox: Mutex::new(Vec::new()) })
    }

    /// Watches `fd` as the kick of `queue`. If it is readable already, an event comes at once.
    pub(crate) fn watch(self: &Arc<Self>, fd: OwnedFd, queue: QueueRef) -> io::Result<Watch> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.epoll, fd.as_fd(), epoll::EventData::new_u64(queue.encode()), flags)?;
        Ok(Watch { fd, poller: Arc::clone(self) })
    }

    /// Makes the worker look at `queue` as if a kick had come.
    pub(crate) fn nudge(&self, queue: QueueRef) {
        let mut inbox = self.inbox.lock().unwrap_or_else(|e| e.into_inner());
        inbox.push(queue);
        drop(inbox);
        self.wake();
    }

    /// Ends the worker's sleep.
    pub(crate) fn wake(&self) {
        // A full counter means that a wake-up is pending already.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Sleeps until an event or for `timeout` (`None`: without end), appends what happened to
    /// `queues`, and says whether anything did.
    pub(crate) fn wait(
        &self,
        events: &mut Vec<epoll::Event>,
        timeout: Option<Duration>,
        queues: &mut Vec<QueueRef>,
    ) -> bool {
        events.clear();
        if timeout.is_some_and(|timeout| !timeout.is_zero() && !self.wait_for_one(timeout)) {
            return false;
        }
        let spare = rustix::buffer::spare_capacity(events);
        if epoll::wait(&self.epoll, spare, timeout.and(Some(&NO_TIME))).is_err() {
            // EINTR: the caller looks at its clock and comes back.
            return false;
        }
        for event in events.iter() {
            match event.data.u64() {
                WAKE => {
                    let mut inbox = self.inbox.lock().unwrap_or_else(|e| e.into_inner());
                    queues.append(&mut inbox);
                }
                data => queues.extend(QueueRef::decode(data)),
            }
        }
        !events.is_empty()
    }

    /// Sleeps until there is an event, or for `timeout`; `true` if there is one.
    ///
    /// By `ppoll` on the set itself: `epoll_wait` knows whole milliseconds only, and its successor
    /// `epoll_pwait2` is not everywhere (Linux 5.11). A sleep that ends by its timeout is still one
    /// system call.
    fn wait_for_one(&self, timeout: Duration) -> bool {
        let tv_sec = i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX);
        let timeout = Timespec { tv_sec, tv_nsec: timeout.subsec_nanos().into() };
        let mut set = [PollFd::new(&self.epoll, PollFlags::IN)];
        // EINTR: no event.
        poll(&mut set, Some(&timeout)).is_ok_and(|ready| ready > 0)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn eventfd_pair() -> (OwnedFd, OwnedFd) {
        let fd = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        (fd.try_clone().unwrap(), fd)
    }

    fn wait(poller: &Poller) -> Vec<QueueRef> {
        let mut queues = Vec::new();
        poller.wait(&mut Vec::with_capacity(8), Some(Duration::ZERO), &mut queues);
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
            assert_eq!(wait(&poller), [queue]);
        }
        drop(watch);
        rustix::io::write(&theirs, &1u64.to_ne_bytes()).unwrap();
        assert_eq!(wait(&poller), [], "forgotten although the front end's copy is open");
    }

    #[test]
    fn a_kick_from_before_the_watch_is_seen() {
        let poller = Arc::new(Poller::new().unwrap());
        let queue = QueueRef { port: PortId::new(0).unwrap(), queue: 0, side: Side::Tx };
        let (ours, theirs) = eventfd_pair();
        rustix::io::write(&theirs, &1u64.to_ne_bytes()).unwrap();
        let _watch = poller.watch(ours, queue).unwrap();
        assert_eq!(wait(&poller), [queue]);
    }

    #[test]
    fn a_wait_is_as_fine_as_the_kernels_timers() {
        let poller = Poller::new().unwrap();
        let shortest_of_five = |timeout| {
            let wait = |_| {
                let start = Instant::now();
                poller.wait(&mut Vec::with_capacity(8), Some(timeout), &mut Vec::new());
                start.elapsed()
            };
            (0..5).map(wait).inspect(|took| assert!(*took >= timeout, "early")).min().unwrap()
        };
        // A timeout in whole milliseconds, rounded up, would make them the same.
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
                poller.wait(&mut Vec::with_capacity(8), Some(timeout), &mut queues);
                queues
            };
            rustix::io::write(&theirs, &1u64.to_ne_bytes()).unwrap();
            assert_eq!(wait(Duration::from_secs(3600)), [queue]);
            assert_eq!(wait(Duration::from_micros(1)), [], "seen already");
        }
    }

    #[test]
    fn a_nudge_wakes() {
        let poller = Poller::new().unwrap();
        let queue = QueueRef { port: PortId::new(5).unwrap(), queue: 1, side: Side::Tx };
        poller.nudge(queue);
        assert_eq!(wait(&poller), [queue]);
        assert_eq!(wait(&poller), []);
    }
}
