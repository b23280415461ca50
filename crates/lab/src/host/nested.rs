//! A nested hypervisor: a guest of weir that is itself a hypervisor around a guest, a third layer that holds
//! frames.
//!
//! The inner switch shares the guest's vCPU. A timer makes it poll weir's ring, so a frame waits for the uplink's hold,
//! for this timer and for the guest's hold.

use super::guest::{Guest, Interrupt};
use super::{Event, Host, Side};

impl Host<'_> {
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
