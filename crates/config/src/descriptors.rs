//! The numbers of interfaces and guests that the limit of descriptors allows, computed before any of them exist.

use rustix::process::{Resource, getrlimit};
use weir_limits::{
    DESCRIPTORS_MAX, DESCRIPTORS_OF_AGENT, DESCRIPTORS_OF_SWITCH, DESCRIPTORS_OF_WORKER,
    QUEUE_PAIRS_MAX,
};
use weir_sandbox::descriptors::{for_guests_of, of_guest};

use crate::values::Workers;
use crate::{Config, SocketRole, VifConfig};

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
        let keeper = config.switch.keeper.is_some();
        Self::by(limit_of_run(), of_switch(config), &config.vifs, keeper)
    }

    /// The part of `vifs` that `limit` allows to a switch with `of_switch` own descriptors, with or
    /// without a keeper.
    pub fn by<'a, I>(limit: u64, of_switch: u64, vifs: I, keeper: bool) -> Self
    where
        I: IntoIterator<Item = &'a VifConfig>,
    {
        let mut left = for_guests_of(limit).saturating_sub(of_switch);
        let mut carried = Self { limit, configured: 0, interfaces: 0, guests: 0 };
        let mut waiting = Vec::new();
        let mut enough = true;
        for vif in vifs {
            carried.configured += 1;
            enough &= take(&mut left, of_interface(vif, keeper));
            if enough {
                carried.interfaces += 1;
                waiting.push(of_guest(vif.queues.get().into(), keeper));
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

/// Keeps the last descriptors from guests, and shares the others among the interfaces, with `config`'s for the switch.
pub fn reserve(config: &Config) {
    weir_sandbox::descriptors::reserve(of_switch(config));
}

/// Descriptors that belong to no interface: those of workers and of uplinks' queues, and room for
/// one message of one agent.
fn of_switch(config: &Config) -> u64 {
    let workers = worker_count(config.switch.workers) as u64;
    let uplinks = (config.uplinks.len() + usize::from(config.networks.overlay.is_some())) as u64;
    let agents = config.vifs.iter().any(|vif| vif.agent.is_some());
    DESCRIPTORS_OF_SWITCH
        + DESCRIPTORS_OF_WORKER * workers
        + 2 * QUEUE_PAIRS_MAX as u64 * uplinks
        + if agents { DESCRIPTORS_OF_AGENT } else { 0 }
}

/// Descriptors of an interface: its socket, the records of its rings, its agent's socket and connection.
#[must_use]
pub fn of_interface(vif: &VifConfig, keeper: bool) -> u64 {
    let agent = u64::from(vif.agent.is_some());
    let sockets = u64::from(vif.mode == SocketRole::Server) + agent;
    // The keeper also holds the state of the session.
    1 + sockets * (1 + u64::from(keeper)) + u64::from(keeper) + agent
}

/// The number of workers. `auto`: half of the cores, since guests run beside the switch; an idle worker sleeps.
#[must_use]
pub fn worker_count(workers: Workers) -> usize {
    match workers {
        Workers::Count(count) => count.get().into(),
        Workers::Auto => {
            let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
            (cores / 2).clamp(1, weir_limits::WORKERS_MAX)
        }
    }
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
        assert_eq!(Carried::by(1 << 20, 32, &vifs(1000), true).note(), None);
        let note = Carried::by(1024, 32, &vifs(300), false).note().unwrap();
        assert!(note.contains("1024") && note.contains("300 interfaces"), "{note}");
        assert!(note.contains("LimitNOFILE="), "{note}");
        let note = Carried::by(256, 32, &vifs(300), false).note().unwrap();
        assert!(note.contains("of 300 interfaces, and guests of 0"), "{note}");
    }

    #[test]
    fn a_keeper_queues_and_an_agent_each_take_descriptors() {
        let guests = |vifs: &[VifConfig], keeper| Carried::by(1024, 32, vifs, keeper).guests;
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
