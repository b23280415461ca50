//! Data that workers share with one another and with the control side.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use arc_swap::ArcSwap;
use weir_fabric::{Fabric, PortId};

use crate::lost::blocked::Watcher;
use crate::switching::settings::PortSettings;
use crate::switching::switch::{Ports, Slot};
use crate::taps::tapped::Captured;
use crate::threads::waits::Activity;
use crate::threads::waits::Gate;
use crate::working::crew::{Crew, Options};
use crate::working::share::Shares;
use crate::working::stalls::Retry;

/// Data of the workers and the control side.
pub(crate) struct Shared {
    pub(crate) fabric: Fabric,
    pub(crate) ports: ArcSwap<Ports>,
    pub(crate) crew: Crew,
    pub(crate) shares: Shares,
    pub(crate) activity: Activity,
    pub(crate) stopping: AtomicBool,
    pub(crate) watcher: Watcher,
    pub(crate) gate: Gate,
    /// The settings of ports; locked before `captured`.
    pub(crate) settings: Mutex<HashMap<PortId, PortSettings>>,
    /// The present captures; locked before `ports` change for a capture.
    pub(crate) captured: Mutex<Captured>,
}

impl Shared {
    pub(crate) fn new(options: Options) -> std::io::Result<Self> {
        Ok(Self {
            fabric: Fabric::with_capacity(options.fdb),
            ports: ArcSwap::default(),
            crew: Crew::new(options),
            shares: Shares::new(options.schedule),
            activity: Activity::new()?,
            stopping: AtomicBool::new(false),
            watcher: Watcher::start()?,
            gate: Gate::new(!options.held),
            settings: Mutex::default(),
            captured: Mutex::default(),
        })
    }

    /// Changes a port's entry in the table that workers read; nothing happens if there is no such port.
    pub(crate) fn change(&self, id: PortId, change: impl Fn(&mut Slot)) {
        self.change_all(|ports| {
            if let Some(Some(slot)) = ports.get_mut(id.index()) {
                change(slot);
            }
        });
    }

    /// Replaces the table that workers read by one that is changed.
    pub(crate) fn change_all(&self, change: impl Fn(&mut Ports)) {
        self.ports.rcu(|ports| {
            let mut ports = Ports::clone(ports);
            change(&mut ports);
            ports
        });
    }

    /// Called when a receiver has buffers again: tells the workers whose frames wait for it, except `me`. Returns true
    /// if frames of `me` wait for it.
    #[inline]
    pub(crate) fn refilled(&self, slot: &Slot, receiver: PortId, me: usize) -> bool {
        let waiting = slot.waiters.refilled();
        if waiting & !(1 << me) != 0 {
            self.tell(waiting & !(1 << me), receiver);
        }
        waiting >> me & 1 != 0
    }

    #[cold]
    fn tell(&self, mut workers: u64, receiver: PortId) {
        while workers != 0 {
            self.crew.tell(workers.trailing_zeros() as usize, Retry::Receiver(receiver));
            workers &= workers - 1;
        }
    }
}
