//! The numbers of interfaces and guests that the limit of descriptors allows, computed before any of them exist.

use rustix::process::{Resource, getrlimit};
use weir_config::{Config, SocketRole, VifConfig};
use weir_limits::{
    DESCRIPTORS_BEFORE_GUEST, DESCRIPTORS_MAX, DESCRIPTORS_OF_GUEST, DESCRIPTORS_OF_SWITCH,
    KEPT_REGIONS_USUAL,
};
pub use weir_sandbox::descriptors::{for_guests_of, reserve};

/// The limit of a `weir run` started like this process: it raises its limit as far as it may.
#[must_use]
pub fn limit_of_run() -> u64 {
    getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX).min(DESCRIPTORS_MAX)
}

/// The part of a configuration that a limit of descriptors allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carried {
    limit: u64,
    configured: usize,
    /// Interfaces that can exist.
    interfaces: usize,
    /// Interfaces among these whose guests can be connected at the same time.
    guests: usize,
}

impl Carried {
    /// The part of a configuration that is allowed to a weir started like this process.
    #[must_use]
    pub fn of(config: &Config) -> Self {
        Self::by(limit_of_run(), &config.vifs, config.switch.keeper.is_some())
    }

    /// The part of `vifs` that `limit` allows, with or without a keeper.
    pub fn by<'a>(limit: u64, vifs: impl IntoIterator<Item = &'a VifConfig>, keeper: bool) -> Self {
        let taken = DESCRIPTORS_OF_SWITCH + DESCRIPTORS_BEFORE_GUEST;
        let mut left = for_guests_of(limit).saturating_sub(taken);
        let mut carried = Self { limit, configured: 0, interfaces: 0, guests: 0 };
        let mut waiting = Vec::new();
        let mut enough = true;
        for vif in vifs {
            carried.configured += 1;
            enough &= take(&mut left, of_interface(vif, keeper));
            if enough {
                carried.interfaces += 1;
                waiting.push(of_guest(vif, keeper));
            }
        }
        carried.guests = waiting.into_iter().take_while(|guest| take(&mut left, *guest)).count();
        carried
    }

    /// A note if not everything is allowed: the shortage, and the remedy.
    #[must_use]
    pub fn note(&self) -> Option<String> {
        self.shortage().map(|shortage| format!("{shortage}; {}", Self::MEND))
    }

    /// The shortage, if not everything is allowed.
    #[must_use]
    pub fn shortage(&self) -> Option<String> {
        let Self { limit, configured, interfaces, guests } = *self;
        let carried = if interfaces < configured {
            format!("{interfaces} of {configured} interfaces, and guests of {guests}")
        } else if guests < configured {
            format!("{configured} interfaces, and guests of about {guests} of them at a time")
        } else {
            return None;
        };
        Some(format!("a limit of {limit} descriptors carries {carried}"))
    }

    /// The remedy.
    pub const MEND: &str =
        "raise LimitNOFILE= in weir's unit, or `ulimit -Hn` where it is started by hand";
}

fn take(left: &mut u64, wanted: u64) -> bool {
    let rest = left.checked_sub(wanted);
    *left = rest.unwrap_or(*left);
    rest.is_some()
}

/// Descriptors of an interface: its socket, the records of its rings, and its agent's socket.
fn of_interface(vif: &VifConfig, keeper: bool) -> u64 {
    let sockets = u64::from(vif.mode == SocketRole::Server) + u64::from(vif.agent.is_some());
    // The keeper also holds the state of the session.
    1 + sockets * (1 + u64::from(keeper)) + u64::from(keeper)
}

/// Descriptors of a guest: its connection, a kick and a call of each ring, and its agent's connection. With a keeper
/// there are copies, and the guest's memory.
fn of_guest(vif: &VifConfig, keeper: bool) -> u64 {
    let kept = 2 * 2 * u64::from(vif.queues.get());
    let agent = u64::from(vif.agent.is_some());
    let copies = if keeper { kept + 1 + KEPT_REGIONS_USUAL } else { 0 };
    kept + DESCRIPTORS_OF_GUEST + agent + copies
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vifs(count: usize) -> Vec<VifConfig> {
        let path = "/run/weir/a.sock".parse().unwrap();
        vec![VifConfig::new("a".parse().unwrap(), path); count]
    }

    #[test]
    fn a_limit_that_is_too_low_for_guests_or_interfaces_is_noted_with_what_mends_it() {
        assert_eq!(Carried::by(1 << 20, &vifs(1000), true).note(), None);
        let note = Carried::by(1024, &vifs(300), false).note().unwrap();
        assert!(note.contains("1024") && note.contains("300 interfaces"), "{note}");
        assert!(note.contains("LimitNOFILE="), "{note}");
        let note = Carried::by(256, &vifs(300), false).note().unwrap();
        assert!(note.contains("of 300 interfaces, and guests of 0"), "{note}");
    }

    #[test]
    fn a_keeper_queues_and_an_agent_each_take_descriptors() {
        let guests = |vifs: &[VifConfig], keeper| Carried::by(1024, vifs, keeper).guests;
        let plain = vifs(100);
        let mut queues = plain.clone();
        queues.iter_mut().for_each(|vif| vif.queues = "4".parse().unwrap());
        let mut agents = plain.clone();
        agents.iter_mut().for_each(|vif| vif.agent = Some("/run/weir/agent".parse().unwrap()));
        let most = guests(&plain, false);
        for fewer in [guests(&plain, true), guests(&queues, false), guests(&agents, false)] {
            assert!(fewer < most, "{fewer} of {most}");
        }
        assert!(guests(&plain, true) > 0);
    }
}
