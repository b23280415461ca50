//! What an attack is, and all of them.

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
    /// Its function's.
    pub name: &'static str,
    /// What it tries.
    pub tries: &'static str,
    /// Carries it out once, or for ever.
    pub strike: fn(&Field) -> Strike,
    /// Why it only uses what is its own share of weir's time, if it does.
    pub own_share: Option<&'static str>,
    /// Whose it is.
    pub user: User,
    /// weir may keep its interface stopped for seconds after its end: the next attack has a weir of its own.
    pub outlasts: bool,
}

/// Who attacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    /// Who started weir.
    Own,
    /// Another one, who has no right.
    Other,
    /// Another one, who is of weir's `group` and may read.
    Reader,
}

/// An entry of a class's table: the function, what it tries, and why it is its own share where it is.
#[macro_export]
macro_rules! attack {
    ($strike:ident, $tries:literal) => {
        $crate::attack::Attack {
            name: stringify!($strike),
            tries: $tries,
            strike: $strike,
            own_share: None,
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
}

/// All classes, by name.
pub const CLASSES: &[(&str, &[Attack])] = &[
    ("protocol", crate::protocol::ALL),
    ("descriptors", crate::descriptors::ALL),
    ("memory", crate::memory::ALL),
    ("logs", crate::logs::ALL),
    ("rings", crate::rings::ALL),
    ("packed", crate::packed::ALL),
    ("time_of_check", crate::time_of_check::ALL),
    ("floods", crate::floods::ALL),
    ("storms", crate::storms::ALL),
    ("l2", crate::l2::ALL),
    ("control", crate::control::ALL),
    ("looks", crate::looks::ALL),
    ("mirrors", crate::mirrors::ALL),
    ("configuration", crate::configuration::ALL),
];

/// Every attack with its class.
pub fn all() -> impl Iterator<Item = (&'static str, &'static Attack)> {
    CLASSES.iter().flat_map(|(class, attacks)| attacks.iter().map(|attack| (*class, attack)))
}

/// Where an attack takes place.
#[derive(Debug)]
pub struct Field {
    dir: PathBuf,
    weir: PathBuf,
    first: usize,
    done: AtomicU64,
    children: AtomicU64,
}

impl Field {
    /// A running weir's directory, weir's program, and which of the attacker's interfaces is the first one.
    pub fn new(dir: PathBuf, weir: PathBuf, first: usize) -> Self {
        Self { dir, weir, first, done: AtomicU64::new(0), children: AtomicU64::new(0) }
    }

    /// Strikes that were carried out.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Processes that were made by [`Self::weir`].
    pub fn children(&self) -> u64 {
        self.children.load(Ordering::Relaxed)
    }

    /// One more was: for those that never return.
    pub fn struck(&self) {
        if self.done.fetch_add(1, Ordering::Relaxed) == 0 {
            println!("struck");
        }
    }

    /// The socket of an interface.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.sock"))
    }

    /// One of the attacker's interfaces.
    pub fn evil_name(&self, number: usize) -> String {
        format!("evil{}", (self.first + number) % EVILS)
    }

    /// Its socket.
    pub fn evil(&self, number: usize) -> PathBuf {
        self.socket(&self.evil_name(number))
    }

    /// The control socket.
    pub fn control(&self) -> PathBuf {
        self.dir.join(CONTROL)
    }

    /// A connection that has said nothing.
    pub fn link(&self) -> Strike<Link> {
        Link::connect(&self.evil(0))
    }

    /// A guest that runs, on the attacker's first interface.
    pub fn guest(&self, plan: Plan) -> Strike<Guest> {
        Guest::attach(&self.evil(0), plan)
    }

    /// The same with the usual features.
    pub fn plain(&self) -> Strike<Guest> {
        self.guest(Plan::default())
    }

    /// A place for files.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.join(format!("attack-{}-{name}", std::process::id()))
    }

    /// weir's program, to be run once.
    pub fn weir(&self) -> Command {
        self.children.fetch_add(1, Ordering::Relaxed);
        let mut command = Command::new(&self.weir);
        command.stdin(Stdio::null());
        command
    }

    /// Where everything is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

/// How long an attacker rests after a strike, and after one that failed.
const PAUSE: Duration = Duration::from_micros(200);
/// See [`PAUSE`].
const REST: Duration = Duration::from_millis(5);

/// Strikes until the process is ended.
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
        let names: BTreeSet<_> = all().map(|(_, attack)| attack.name).collect();
        assert_eq!(names.len(), all().count());
        assert!(names.len() >= 80);
    }
}
