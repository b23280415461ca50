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
mod tests {
    //! Settings changed and restored in a simulated guest.

    use std::fs;

    use super::*;
    use crate::fake_guest::FakeGuest;

    const MAC: Mac = Mac([0x52, 0x54, 0, 0, 0, 1]);
    const OTHER: Mac = Mac([0x52, 0x54, 0, 0, 0, 2]);

    fn deferral(fake: &FakeGuest) -> Deferral {
        let state = StateFile::lock(&fake.path("agent.state")).unwrap();
        Deferral::recover(Guest::new(fake.root()), state).unwrap()
    }

    fn polls_at(poll_ns: u64) -> (String, String) {
        (empty_polls(poll_ns).to_string(), poll_ns.to_string())
    }

    #[test]
    fn a_poll_interval_is_written_and_what_was_found_comes_back() {
        let fake = FakeGuest::new();
        let mut deferral = deferral(&fake);
        deferral.apply(MAC, Some(250_000)).unwrap();
        assert_eq!(fake.settings("eth0"), polls_at(250_000));
        deferral.apply(MAC, Some(1_000_000)).unwrap();
        assert_eq!(fake.settings("eth0"), polls_at(1_000_000));
        assert!(fake.path("agent.state").exists());
        deferral.apply(MAC, None).unwrap();
        assert!(fake.is_as_found("eth0") && !deferral.is_changed());
        assert!(!fake.path("agent.state").exists());
        deferral.apply(MAC, None).unwrap();
    }

    #[test]
    fn a_xen_guests_interface_is_set_like_any_other() {
        let fake = FakeGuest::new();
        fake.add("eth1", "52:54:00:00:00:02", "vif-0", "vif");
        let mut deferral = deferral(&fake);
        deferral.apply(OTHER, Some(250_000)).unwrap();
        assert_eq!(fake.settings("eth1"), polls_at(250_000));
        deferral.apply(OTHER, None).unwrap();
        assert!(fake.is_as_found("eth1"));
    }

    #[test]
    fn an_agent_after_a_crash_restores_what_the_first_one_found() {
        let fake = FakeGuest::new();
        let mut first = deferral(&fake);
        first.apply(MAC, Some(250_000)).unwrap();
        drop(first);
        assert_eq!(fake.settings("eth0"), polls_at(250_000));
        drop(deferral(&fake));
        assert!(fake.is_as_found("eth0") && !fake.path("agent.state").exists());
    }

    #[test]
    fn nothing_is_changed_unless_what_was_found_is_kept() {
        let fake = FakeGuest::new();
        let mut deferral = deferral(&fake);
        fs::create_dir(fake.path("agent.new")).unwrap();
        let error = deferral.apply(MAC, Some(250_000)).unwrap_err();
        assert!(matches!(error, DeferralError::State(_)), "{error}");
        assert!(fake.is_as_found("eth0") && !deferral.is_changed());
    }

    #[test]
    fn what_cannot_be_done_is_named() {
        let fake = FakeGuest::new();
        fake.add("eth1", "52:54:00:00:00:02", "virtio3", "virtio_net");
        fs::remove_file(fake.path("sys/class/net/eth1/napi_defer_hard_irqs")).unwrap();
        let mut deferral = deferral(&fake);
        let nobody = Mac([2, 0, 0, 0, 0, 9]);
        // An interface of another driver.
        let e1000 = Mac([0x52, 0x54, 0, 0, 0, 0x99]);
        for mac in [nobody, e1000] {
            let error = deferral.apply(mac, Some(250_000)).unwrap_err();
            assert!(matches!(error, DeferralError::NoInterface { .. }), "{error}");
        }
        let error = deferral.apply(OTHER, Some(250_000)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "eth1 cannot poll on a timer, which takes Linux 5.8 or later"
        );
        for poll_ns in [0, AGENT_POLL_NS_MIN - 1, AGENT_POLL_NS_MAX + 1, u64::MAX] {
            let error = deferral.apply(MAC, Some(poll_ns)).unwrap_err();
            assert!(matches!(error, DeferralError::Range { .. }), "{error}");
        }
        assert!(fake.is_as_found("eth0") && !deferral.is_changed());
    }

    #[test]
    fn a_refused_interval_leaves_the_interface_as_it_was_found() {
        let fake = FakeGuest::new();
        let mut deferral = deferral(&fake);
        deferral.apply(MAC, Some(250_000)).unwrap();
        deferral.apply(MAC, Some(1)).unwrap_err();
        assert!(fake.is_as_found("eth0") && !deferral.is_changed());
    }

    #[test]
    fn an_interface_that_is_gone_keeps_nobody_from_being_restored() {
        let fake = FakeGuest::new();
        fake.add("eth1", "52:54:00:00:00:02", "virtio3", "virtio_net");
        let mut deferral = deferral(&fake);
        deferral.apply(MAC, Some(250_000)).unwrap();
        deferral.apply(OTHER, Some(250_000)).unwrap();
        fs::remove_dir_all(fake.path("sys/class/net/eth0")).unwrap();
        deferral.restore_all().unwrap();
        assert!(fake.is_as_found("eth1") && !deferral.is_changed());
    }

    #[test]
    fn an_interface_that_fails_keeps_nobody_else_from_being_restored() {
        let fake = FakeGuest::new();
        fake.add("eth1", "52:54:00:00:00:02", "virtio3", "virtio_net");
        let mut deferral = deferral(&fake);
        deferral.apply(MAC, Some(250_000)).unwrap();
        deferral.apply(OTHER, Some(250_000)).unwrap();
        let setting = fake.path("sys/class/net/eth0/napi_defer_hard_irqs");
        fs::remove_file(&setting).unwrap();
        fs::create_dir(&setting).unwrap();
        assert!(matches!(deferral.restore_all(), Err(DeferralError::File(_))));
        assert!(fake.is_as_found("eth1") && deferral.is_changed());
        fs::remove_dir(&setting).unwrap();
        fs::write(&setting, "").unwrap();
        deferral.restore_all().unwrap();
        assert!(fake.is_as_found("eth0") && !fake.path("agent.state").exists());
    }

    #[test]
    fn a_renamed_interface_is_found_by_its_address() {
        let fake = FakeGuest::new();
        let mut deferral = deferral(&fake);
        deferral.apply(MAC, Some(250_000)).unwrap();
        fs::rename(fake.path("sys/class/net/eth0"), fake.path("sys/class/net/wan")).unwrap();
        deferral.restore_all().unwrap();
        assert!(fake.is_as_found("wan"));
    }

    #[test]
    fn short_intervals_bridge_a_pause_and_long_ones_end_soon() {
        assert_eq!(empty_polls(AGENT_POLL_NS_MIN), 12);
        assert_eq!(empty_polls(100_000), 3);
        assert_eq!(empty_polls(1_000_000), 3);
        for poll_ns in [AGENT_POLL_NS_MIN, 37_000, 250_000, AGENT_POLL_NS_MAX] {
            assert!(empty_polls(poll_ns) * poll_ns > AGENT_POLL_PAUSE_NS);
            assert!(empty_polls(poll_ns) <= 12);
        }
    }
}
