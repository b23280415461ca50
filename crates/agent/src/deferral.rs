//! Front-end coalescing on a stock `virtio_net` or `xen-netfront` (Dong 2011 §4.1): a timer, not an
//! interrupt, triggers NAPI polls.
//!
//! With `gro_flush_timeout` = t and `napi_defer_hard_irqs` = n, the kernel keeps a queue's
//! interrupts off after a poll that found frames, polls again t later, and turns them on after n
//! empty polls in a row (`napi_complete_done`). `xen-netfront` also polls by the timer, but asks
//! for events after each poll whatever `napi_complete_done` says. weir holds these events back, and
//! then finds that the guest has taken the frames already.

use weir_limits::{
    AGENT_EMPTY_POLLS_MIN, AGENT_POLL_NS_MAX, AGENT_POLL_NS_MIN, AGENT_POLL_PAUSE_NS,
};
use weir_wire::Mac;

use crate::guest::{DEFER_HARD_IRQS, FLUSH_TIMEOUT, FileError, Guest, Nic};
use crate::napi::Napi;
use crate::state::{Found, StateError, StateFile};

/// Reason why an interface is not set as requested.
#[derive(Debug, thiserror::Error)]
pub enum DeferralError {
    /// No interface has that address.
    #[error("no interface of virtio-net or xen-netfront has the address {mac}")]
    NoInterface {
        /// The address.
        mac: Mac,
    },
    /// The kernel lacks the setting.
    #[error("{name} cannot poll on a timer, which takes Linux 5.8 or later")]
    CannotDefer {
        /// The interface.
        name: String,
    },
    /// The interval is out of bounds.
    #[error("an interval of {poll_ns} ns is outside {AGENT_POLL_NS_MIN} to {AGENT_POLL_NS_MAX} ns")]
    Range {
        /// The interval (ns).
        poll_ns: u64,
    },
    /// A setting cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// A setting of a NAPI instance cannot be restored.
    #[error("{name}: its NAPI instances cannot be set: {source}")]
    Napi {
        /// The interface.
        name: String,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// The original settings cannot be saved, so nothing is changed.
    #[error(transparent)]
    State(#[from] StateError),
}

/// Returns the number of consecutive empty polls before a queue's interrupts are turned on again.
///
/// An empty poll costs about as much as the interrupt that it saves, so few are best. At least two
/// are needed: with one frame per interval on average, every third interval is empty, and two in a
/// row are rarer. Short intervals need enough of them for [a short pause](AGENT_POLL_PAUSE_NS);
/// after a pause of ten intervals or more an interrupt is cheaper. More polls do not help a steady
/// load, and each is wasted when the load ends.
pub(crate) fn empty_polls(poll_ns: u64) -> u64 {
    u64::from(AGENT_EMPTY_POLLS_MIN) + AGENT_POLL_PAUSE_NS.div_ceil(poll_ns.max(1))
}

/// Changed interfaces with their original settings.
#[derive(Debug)]
pub(crate) struct Deferral {
    guest: Guest,
    state: StateFile,
    found: Vec<Found>,
}

impl Deferral {
    /// Restores the settings that an earlier agent has left changed.
    pub(crate) fn recover(guest: Guest, state: StateFile) -> Result<Self, DeferralError> {
        let found = state.load()?;
        let mut deferral = Self { guest, state, found };
        deferral.restore_all()?;
        Ok(deferral)
    }

    /// Returns true if some interface is changed.
    pub(crate) fn is_changed(&self) -> bool {
        !self.found.is_empty()
    }

    /// Makes an interface poll at `poll_ns`, or restores it. After an error it is restored, if
    /// possible.
    pub(crate) fn apply(&mut self, mac: Mac, poll_ns: Option<u64>) -> Result<(), DeferralError> {
        let interfaces = self.guest.interfaces()?;
        let interface = interfaces
            .iter()
            .find(|interface| interface.interface.mac == mac)
            .ok_or(DeferralError::NoInterface { mac })?;
        let result = match poll_ns {
            Some(poll_ns) => self.poll(interface, poll_ns),
            None => return self.restore(mac),
        };
        result.inspect_err(|_| {
            // The first error says more. A setting that stays changed here is retried at the end.
            let _ = self.restore(mac);
        })
    }

    /// Restores every interface, even if another one fails.
    pub(crate) fn restore_all(&mut self) -> Result<(), DeferralError> {
        let macs: Vec<Mac> = self.found.iter().map(|found| found.mac).collect();
        let mut result = Ok(());
        for mac in macs {
            result = result.and(self.restore(mac));
        }
        result
    }

    fn poll(&mut self, interface: &Nic, poll_ns: u64) -> Result<(), DeferralError> {
        if !(AGENT_POLL_NS_MIN..=AGENT_POLL_NS_MAX).contains(&poll_ns) {
            return Err(DeferralError::Range { poll_ns });
        }
        if !interface.interface.can_defer {
            return Err(DeferralError::CannotDefer {
                name: interface.interface.name.as_str().to_owned(),
            });
        }
        let mac = interface.interface.mac;
        if !self.found.iter().any(|found| found.mac == mac) {
            let polls = interface.number(DEFER_HARD_IRQS)?;
            let timeout_ns = interface.number(FLUSH_TIMEOUT)?;
            let found = Found {
                mac,
                napi_defer_hard_irqs: polls,
                gro_flush_timeout: timeout_ns,
                napis: interface.napis_set_alone(polls, timeout_ns),
            };
            let mut all = self.found.clone();
            all.push(found);
            self.state.save(&all)?;
            self.found = all;
        }
        write(interface, FLUSH_TIMEOUT, poll_ns)?;
        write(interface, DEFER_HARD_IRQS, empty_polls(poll_ns))
    }

    fn restore(&mut self, mac: Mac) -> Result<(), DeferralError> {
        let Some(found) = self.found.iter().find(|found| found.mac == mac) else {
            return Ok(());
        };
        let interfaces = self.guest.interfaces()?;
        // A removed interface has taken its settings with it.
        if let Some(interface) = interfaces.iter().find(|interface| interface.interface.mac == mac)
        {
            write(interface, DEFER_HARD_IRQS, found.napi_defer_hard_irqs)?;
            write(interface, FLUSH_TIMEOUT, found.gro_flush_timeout)?;
            // The two files have set every NAPI instance.
            Napi::restore(&found.napis).map_err(|source| DeferralError::Napi {
                name: interface.interface.name.as_str().to_owned(),
                source,
            })?;
        }
        self.found.retain(|found| found.mac != mac);
        Ok(self.state.save(&self.found)?)
    }
}

fn write(interface: &Nic, name: &str, value: u64) -> Result<(), DeferralError> {
    let path = interface.file(name);
    Ok(std::fs::write(&path, value.to_string()).map_err(FileError::at(&path))?)
}

#[cfg(test)]
mod tests;
