//! The type of an attack, and the list of all attacks.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::front::{
    Miss, Strike,
    guest::{Guest, Plan},
    link::Link,
};
use crate::measure::switch::{CONTROL, EVILS};

/// One attack.
#[derive(Clone, Copy, Debug)]
pub struct Attack {
    /// The name of the attack's function.
    pub name: &'static str,
    /// A description of the attempt.
    pub tries: &'static str,
    /// The function of the attack, which makes one attempt, or repeats attempts without end.
    pub strike: fn(&Field) -> Strike,
    /// The reason why the attack only uses its own share of weir's time, if it does.
    pub own_share: Option<&'static str>,
    /// The reason why the attack may use log lines or memory: it is a command of the administrator.
    pub administers: Option<&'static str>,
    /// The attacking user.
    pub user: User,
    /// True if weir may keep the interface stopped for seconds after the attack: the next attack then gets a new weir.
    pub outlasts: bool,
}

/// The attacking user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    /// The user that has started weir.
    Own,
    /// Another user, without any rights.
    Other,
    /// Another user, a member of weir's `group`, who may read.
    Reader,
    /// root, as a host in the underlay with raw sockets.
    Root,
}

/// The configuration of the attacked weir.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Setting {
    /// The defaults, with readers if their group exists.
    Usual,
    /// Every option that opens a socket, and a hundred interfaces of one tenant.
    Open,
}

impl Setting {
    /// The suffix of an attack's name.
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::Usual => "",
            Self::Open => "@open",
        }
    }
}

/// An entry in the table of a class: the function, a description of the attempt, and the reason for an own share if
/// any.
#[macro_export]
macro_rules! attack {
    ($strike:ident, $tries:literal) => {
        $crate::attack::Attack {
            name: stringify!($strike),
            tries: $tries,
            strike: $strike,
            own_share: None,
            administers: None,
            user: $crate::attack::User::Own,
            outlasts: false,
        }
    };
    ($strike:ident, $tries:literal, outlasts) => {
        $crate::attack::Attack { outlasts: true, ..$crate::attack!($strike, $tries) }
    };
    ($strike:ident, $tries:literal, own_share: $why:literal) => {
        $crate::attack::Attack { own_share: Some($why), ..$crate::attack!($strike, $tries) }
    };
    ($strike:ident, $tries:literal, administers: $what:literal) => {
        $crate::attack::Attack { administers: Some($what), ..$crate::attack!($strike, $tries) }
    };
    ($strike:ident, $tries:literal, as_another_user) => {
        $crate::attack::Attack {
            user: $crate::attack::User::Other,
            ..$crate::attack!($strike, $tries)
        }
    };
    ($strike:ident, $tries:literal, as_reader) => {
        $crate::attack::Attack {
            user: $crate::attack::User::Reader,
            ..$crate::attack!($strike, $tries)
        }
    };
    ($strike:ident, $tries:literal, as_root) => {
        $crate::attack::Attack {
            user: $crate::attack::User::Root,
            ..$crate::attack!($strike, $tries)
        }
    };
}

const USUAL: &[Setting] = &[Setting::Usual];
const OPEN: &[Setting] = &[Setting::Open];
const BOTH: &[Setting] = &[Setting::Usual, Setting::Open];
/// The short form tries only the last one, with weir's defaults.
const ALSO_OPEN: &[Setting] = &[Setting::Open, Setting::Usual];

/// All classes by name, each with its attacks and the settings in which they are tried.
pub const CLASSES: &[(&str, &[Attack], &[Setting])] = &[
    ("protocol", crate::protocol::ALL, ALSO_OPEN),
    ("descriptors", crate::descriptors::ALL, ALSO_OPEN),
    ("memory", crate::memory::ALL, ALSO_OPEN),
    ("logs", crate::logs::ALL, ALSO_OPEN),
    ("rings", crate::rings::ALL, ALSO_OPEN),
    ("packed", crate::packed::ALL, ALSO_OPEN),
    ("time_of_check", crate::time_of_check::ALL, ALSO_OPEN),
    ("floods", crate::floods::ALL, ALSO_OPEN),
    ("storms", crate::storms::ALL, ALSO_OPEN),
    ("l2", crate::l2::ALL, ALSO_OPEN),
    ("control", crate::control::ALL, ALSO_OPEN),
    ("looks", crate::looks::ALL, ALSO_OPEN),
    ("mirrors", crate::mirrors::ALL, ALSO_OPEN),
    ("multicast", crate::multicast::ALL, ALSO_OPEN),
    ("configuration", crate::configuration::ALL, ALSO_OPEN),
    ("slow_closes", crate::slow_closes::ALL, BOTH),
    ("slow_closes_of_options", crate::slow_closes::OF_OPTIONS, OPEN),
    ("readers", crate::readers::ALL, BOTH),
    ("readers_of_options", crate::readers::OF_OPTIONS, OPEN),
    ("gso_limits", crate::gso_limits::ALL, BOTH),
    ("tenants", crate::tenants::ALL, OPEN),
    ("paths", crate::paths::ALL, OPEN),
    ("log_text", crate::log_text::ALL, OPEN),
    ("underlay", crate::underlay::ALL, OPEN),
    ("underlay6", crate::underlay::BY_IPV6, USUAL),
    ("groups", crate::groups::ALL, OPEN),
    ("network", crate::network::ALL, OPEN),
    ("streams", crate::streams::ALL, OPEN),
    ("cards", crate::streams::OF_A_CARD, OPEN),
    ("domains", crate::domains::ALL, USUAL),
    ("settings", crate::settings::ALL, USUAL),
    ("shares", crate::tenants::SHARES, USUAL),
];

/// Every attack with its class and settings.
pub fn all() -> impl Iterator<Item = (&'static str, &'static Attack, &'static [Setting])> {
    let of =
        |(class, attacks, settings): &(&'static str, &'static [Attack], &'static [Setting])| {
            let (class, settings) = (*class, *settings);
            attacks.iter().map(move |attack| (class, attack, settings))
        };
    CLASSES.iter().flat_map(of)
}

/// The weir that an attack targets, and the attack's counts.
#[derive(Debug)]
pub struct Field {
    dir: PathBuf,
    weir: PathBuf,
    first: usize,
    done: AtomicU64,
    children: AtomicU64,
}

impl Field {
    /// Makes a field from the directory of a running weir, weir's program, and the number of the attacker's first
    /// interface.
    pub fn new(dir: PathBuf, weir: PathBuf, first: usize) -> Self {
        Self { dir, weir, first, done: AtomicU64::new(0), children: AtomicU64::new(0) }
    }

    /// Number of completed attempts.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Number of processes started by [`Self::weir`].
    pub fn children(&self) -> u64 {
        self.children.load(Ordering::Relaxed)
    }

    /// Counts a completed attempt, for attacks that never return.
    pub fn struck(&self) {
        if self.done.fetch_add(1, Ordering::Relaxed) == 0 {
            println!("struck");
        }
    }

    /// Adds to a figure of the report.
    pub fn counted(&self, name: &str, count: usize) {
        println!("counted {name} {count}");
    }

    /// The socket of an interface.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.sock"))
    }

    /// One of the attacker's interfaces.
    pub fn evil_name(&self, number: usize) -> String {
        format!("evil{}", (self.first + number) % EVILS)
    }

    /// The socket of one of the attacker's interfaces.
    pub fn evil(&self, number: usize) -> PathBuf {
        self.socket(&self.evil_name(number))
    }

    /// The control socket.
    pub fn control(&self) -> PathBuf {
        self.dir.join(CONTROL)
    }

    /// A connection without any messages so far.
    pub fn link(&self) -> Strike<Link> {
        Link::connect(&self.evil(0))
    }

    /// A running guest on the attacker's first interface.
    pub fn guest(&self, plan: Plan) -> Strike<Guest> {
        Guest::attach(&self.evil(0), plan)
    }

    /// A running guest with the usual features.
    pub fn plain(&self) -> Strike<Guest> {
        self.guest(Plan::default())
    }

    /// The socket of an interface of the one tenant: [`Setting::Open`].
    pub fn tenant(&self, number: usize) -> PathBuf {
        self.socket(&format!("tenant{number}"))
    }

    /// The agent socket of one of the attacker's interfaces: [`Setting::Open`].
    pub fn agent(&self, number: usize) -> PathBuf {
        self.dir.join(format!("{}.agent", self.evil_name(number)))
    }

    /// A port number of weir's configuration, from the file `name`.
    pub fn port(&self, name: &str) -> Strike<u16> {
        let text = std::fs::read_to_string(self.dir.join(name))?;
        Ok(text.trim().parse().map_err(|_| rustix::io::Errno::INVAL)?)
    }

    /// A path for an attack's file.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.join(format!("attack-{}-{name}", std::process::id()))
    }

    /// A command of weir's program, to be run once.
    pub fn weir(&self) -> Command {
        self.children.fetch_add(1, Ordering::Relaxed);
        let mut command = Command::new(&self.weir);
        command.stdin(Stdio::null());
        command
    }

    /// The directory of all files.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

/// The attacker's pause after an attempt.
const PAUSE: Duration = Duration::from_micros(200);
/// The pause after an attempt that failed.
const REST: Duration = Duration::from_millis(5);

/// Repeats the attack until the process is ended.
pub fn strike_for_ever(attack: &Attack, field: &Field) -> ! {
    let mut said = 0;
    loop {
        match (attack.strike)(field) {
            Ok(()) => {
                field.struck();
                std::thread::sleep(PAUSE);
            }
            Err(miss) => {
                let kind = if matches!(miss, Miss::Harm(_)) { "harm" } else { "miss" };
                if said < 3 || kind == "harm" && said < 10 {
                    println!("{kind} {}", miss.to_string().replace('\n', " "));
                    said += 1;
                }
                std::thread::sleep(REST);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_attack_has_a_name_of_its_own() {
        let names: BTreeSet<_> = all().map(|(_, attack, _)| attack.name).collect();
        assert_eq!(names.len(), all().count());
        assert!(names.len() >= 265);
    }
}
