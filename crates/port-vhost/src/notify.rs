//! Calls, by which weir interrupts a guest, and the signal to a front end that a ring is broken.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use weir_calls::{Call, CallError, Kind, Price, Proxy};
use weir_engine::guest::GuestPort;
use weir_engine::{PortCounters, dear, ns_of_ticks, ticks_of_ns};
use weir_guestmem::ticks;
use weir_limits::CALL_NS_USUAL_MAX;

use crate::error::{Refusal, StopReason};

/// The port whose guest is called.
pub(crate) trait Caller: GuestPort + fmt::Debug {
    /// The interface's counters.
    fn counters(&self) -> &PortCounters;

    /// The thread that writes calls to descriptors that are no eventfd. Only sessions' threads ask for it.
    fn proxy(&self) -> &Proxy;

    /// Stops an interface whose calls are too expensive. It stays stopped for a while: otherwise each new start of its
    /// front end could cost a worker one such call.
    fn stop_for_dear_calls(&self, ring: usize);

    /// Stops the interface.
    fn stop(&self, reason: &StopReason);
}

/// A front end's descriptor for calls. Nothing that the front end does to it makes [`Self::notify`] block.
#[derive(Debug)]
pub(crate) struct Notifier {
    call: Call,
    port: Weak<dyn Caller>,
    ring: usize,
    /// [`CALL_NS_USUAL_MAX`], as the processor counts.
    usual_ticks: u64,
}

impl Notifier {
    /// A notifier of vring `ring` of `port`. `what` names the descriptor.
    pub(crate) fn new(
        port: &Arc<impl Caller + 'static>,
        ring: usize,
        what: &'static str,
        fd: OwnedFd,
    ) -> Result<Self, Refusal> {
        let call = Call::new(fd, port.proxy()).map_err(|error| Refusal::Call { what, error })?;
        let usual_ticks = ticks_of_ns(CALL_NS_USUAL_MAX);
        let port: Weak<dyn Caller> = Arc::downgrade(port) as _;
        Ok(Self { call, port, ring, usual_ticks })
    }

    /// Interrupts the guest, and accounts for the cost in `price`.
    #[inline]
    pub(crate) fn notify(&self, price: &mut Price) {
        if price.is_watched() {
            return self.notify_watched(price);
        }
        let before = ticks::now();
        let given = self.call.give();
        let took = ticks::now().saturating_sub(before);
        if took > self.usual_ticks {
            self.suspect(price, ns_of_ticks(took));
        }
        if let Err(error) = given {
            self.failed(error);
        }
    }

    /// As [`notify`](Self::notify), and measures the cost by the thread's CPU clock.
    #[cold]
    fn notify_watched(&self, price: &mut Price) {
        let before_ns = dear::thread_cpu_ns();
        let given = self.call.give();
        let verdict = price.measured(dear::thread_cpu_ns().saturating_sub(before_ns));
        let Some(port) = self.port.upgrade() else { return };
        if verdict.beyond_ns > 0 {
            port.counters().dear_calls.add(1);
            dear::note(port.id(), verdict.beyond_ns);
        }
        if verdict.too_dear {
            port.stop_for_dear_calls(self.ring);
        } else if let Err(error) = given {
            self.failed(error);
        }
    }

    /// Begins to watch the cost after a call that took long by the wall clock.
    #[cold]
    fn suspect(&self, price: &mut Price, took_ns: u64) {
        price.suspect();
        let beyond_ns = dear::cpu_ns(took_ns).saturating_sub(CALL_NS_USUAL_MAX);
        if let Some(port) = self.port.upgrade().filter(|_| beyond_ns > 0) {
            port.counters().dear_calls.add(1);
            dear::note(port.id(), beyond_ns);
        }
    }

    /// Stops the port: a guest that is not called waits for ever, so it is better to show that the port has stopped.
    #[cold]
    fn failed(&self, error: CallError) {
        if let Some(port) = self.port.upgrade() {
            port.stop(&StopReason::Call { ring: self.ring, error });
        }
    }
}

/// Refuses all but eventfds. A worker's epoll set asks whether a kick is readable, which an eventfd answers at
/// once; all known front ends use one, user-mode Linux too.
pub(crate) fn check_kick(fd: &OwnedFd) -> Result<(), Refusal> {
    match Kind::of(std::os::fd::AsFd::as_fd(fd)) {
        Ok(Kind::Eventfd) => Ok(()),
        Ok(kind) => Err(Refusal::Kick(kind)),
        Err(error) => Err(Refusal::Descriptor { what: "kick", error }),
    }
}
