//! Attacks from inside: a front end that breaks every rule, against a running weir, and the effect on other guests.
//!
//! Start with [`attack::CLASSES`], the list of attacks. [`front`] has their building blocks.
//! [`measure`] starts weir and its well-behaved guests, lets an attacker come and go, and judges.

mod attack;
mod configuration;
mod control;
mod descriptors;
mod domains;
mod floods;
mod front;
mod groups;
mod gso_limits;
mod l2;
mod log_text;
mod logs;
mod looks;
mod measure {
    //! Effects of an attack on weir and its other guests.

    pub mod attacker;
    pub mod report;
    pub mod stand_in;
    pub mod switch;
    pub mod trial;
    pub mod victims;
}
mod memory;
mod mirrors;
mod multicast;
mod network;
mod packed;
mod paths;
mod protocol;
mod random;
mod readers;
mod rings;
mod settings;
mod slow_closes;
mod storms;
mod streams;
mod tenants;
mod time_of_check;
mod underlay;

use std::{
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Command, ExitCode},
    time::Duration,
};

use clap::{Parser, Subcommand};

use crate::{
    attack::{Attack, Field, Setting, User},
    measure::{
        attacker,
        report::{self, Result as Tried},
        stand_in::{self, Work},
        switch::{CABLE, RESOLVER, UNDERLAY, UNDERLAY6, WIRES, ip, lay},
        trial::{self, Scene, Trial},
    },
};

/// Attacks a running weir.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Tries every attack.
    Run {
        /// weir's program.
        #[arg(long)]
        weir: PathBuf,
        /// The directory for reports and sockets.
        #[arg(long, default_value = "target")]
        target: PathBuf,
        /// Only attacks whose class or name contains this; no report is then written.
        #[arg(long)]
        only: Option<String>,
        /// Run each attack once, briefly: checks that weir survives, measures nothing.
        #[arg(long)]
        short: bool,
        /// Windows with the attacker, and without.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
    },
    /// Lists every attack.
    List,
    /// The attacker's process.
    #[command(hide = true)]
    Strike {
        name: String,
        #[arg(long)]
        dir: PathBuf,
        #[arg(long)]
        weir: PathBuf,
        #[arg(long)]
        first: usize,
    },
    /// The program that runs in place of an attacker.
    #[command(hide = true)]
    StandIn {
        cpus: f64,
        threads: usize,
        begun_per_s: f64,
        #[arg(long)]
        program: Option<PathBuf>,
    },
}

/// Length of a window.
const WINDOW: Duration = Duration::from_millis(250);
const SHORT_WINDOW: Duration = Duration::from_millis(100);
/// Rounds of the second trial of an attack in doubt. Its many more windows decide.
const ROUNDS_IN_DOUBT: usize = 15;

fn main() -> ExitCode {
    let done = match Arguments::parse().task {
        Task::Run { weir, target, only, short, rounds } => {
            run(&weir, &target, only.as_deref(), short, rounds)
        }
        Task::List => {
            for (class, Attack { name, tries, .. }, _) in attack::all() {
                println!("{class}::{name}: {tries}");
            }
            Ok(true)
        }
        Task::Strike { name, dir, weir, first } => {
            attacker::strike(&name, Field::new(dir, weir, first)).map(|()| true)
        }
        Task::StandIn { cpus, threads, begun_per_s, program } => {
            let work = Work { cpus, threads, begun_per_s, program };
            stand_in::work(work).map(|()| true).map_err(|error| error.to_string())
        }
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("attack: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Environment variable of a process in its own network namespace.
const APART: &str = "WEIR_ATTACK_APART";

/// If root, runs this program again in its own network namespace, and with its own resolver: underlay addresses then
/// affect no other process.
fn apart() -> Result<(), String> {
    if std::env::var_os(APART).is_none() {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new("unshare");
        command.args(["--net", "--mount", "--"]).arg(program).args(std::env::args_os().skip(1));
        return Err(format!("unshare: {}", command.env(APART, "1").exec()));
    }
    // No host is at the other end of the cable: a guest's frames for the peer are counted, and lost.
    let [own, peer] = UNDERLAY.map(std::net::Ipv4Addr::from);
    ip("link set lo up")?;
    ip(&format!("link add {CABLE} type veth peer name {CABLE}-end"))?;
    ip(&format!("link set {CABLE}-end mtu 1600 up"))?;
    ip(&format!("link set {CABLE} mtu 1600 up"))?;
    ip(&format!("addr add {own}/24 dev {CABLE}"))?;
    ip(&format!("neigh replace {peer} lladdr 02:00:00:00:00:02 dev {CABLE}"))?;
    let [own, peer] = UNDERLAY6.map(std::net::Ipv6Addr::from);
    ip(&format!("addr add {own}/64 dev {CABLE} nodad"))?;
    ip(&format!("neigh replace {peer} lladdr 02:00:00:00:00:02 dev {CABLE}"))?;
    WIRES.into_iter().try_for_each(lay)?;
    // The host's resolver is silent, too.
    let own = std::env::temp_dir().join(format!("resolv.conf-{}", std::process::id()));
    let text = format!("nameserver {}\n", std::net::Ipv4Addr::from(RESOLVER));
    let shown = |error: std::io::Error| format!("{}: {error}", own.display());
    std::fs::write(&own, text).map_err(shown)?;
    let bound = Command::new("mount").arg("--bind").arg(&own).arg("/etc/resolv.conf").status();
    std::fs::remove_file(&own).map_err(shown)?;
    match bound {
        Ok(status) if status.success() => Ok(()),
        failed => Err(format!("a resolver in a namespace: {failed:?}")),
    }
}

fn run(
    weir: &std::path::Path,
    target: &std::path::Path,
    only: Option<&str>,
    short: bool,
    rounds: usize,
) -> Result<bool, String> {
    if rustix::process::geteuid().is_root() {
        apart()?;
    }
    let absolute = |path| std::path::absolute(path).map_err(|error| error.to_string());
    let (weir, target) = (absolute(weir)?, absolute(target)?);
    let dir = trial::scratch(&target.join("attack"));
    let window = if short { SHORT_WINDOW } else { WINDOW };
    let trial = Trial { weir, dir: dir.clone(), rounds: rounds.max(1), window };
    let mut scene = None;
    if !rustix::process::geteuid().is_root() {
        println!(
            "skipped test: descriptors that are left: needs root, to count those of a weir that is confined"
        );
    }
    println!("{}", report::head());
    let mut results = Vec::new();
    // In the short form only the last setting is tried: it includes all options of the others.
    let settings = |all: &'static [Setting]| if short { &all[all.len() - 1..] } else { all };
    let each = attack::all().enumerate().flat_map(|(number, (class, attack, all))| {
        settings(all).iter().map(move |setting| (number, class, attack, *setting))
    });
    let mut each = each
        .filter(|(_, class, attack, _)| {
            only.is_none_or(|only| format!("{class}::{}", attack.name).contains(only))
        })
        .peekable();
    while let Some((number, class, attack, setting)) = each.next() {
        if attack.user != User::Own && !rustix::process::geteuid().is_root() {
            println!("skipped test: {class}::{}: needs root, to be another user", attack.name);
            continue;
        }
        // Each attack begins two interfaces further on. The effects of an attack on its interfaces are then over when
        // they are used again.
        let row = if short {
            let last = each.peek().is_none_or(|(_, next, ..)| *next != class);
            trial.glance(attack, setting, 2 * number, &mut scene, last)
        } else {
            trial.run(attack, setting)
        };
        let mut tried = Tried { class, attack, setting, row };
        // An orderly end has a time limit. A busy machine may leave a thread of weir's without a
        // CPU for that time.
        if short && tried.only_ended_late() {
            println!("{}\n  again:", tried.line());
            tried.row = trial.glance(attack, setting, 2 * number, &mut scene, true);
        }
        if !short && tried.is_in_doubt() {
            println!("{}\n  again, longer:", tried.line());
            let longer = Trial { rounds: ROUNDS_IN_DOUBT, ..trial.clone() };
            tried.row = longer.run(attack, setting);
        }
        println!("{}", tried.line());
        results.push(tried);
    }
    if let Some(Err(error)) = scene.map(Scene::end)
        && let Some(Ok(row)) = results.last_mut().map(|tried| tried.row.as_mut())
    {
        // The attack that harmed weir is unknown. The failure is recorded with the last attack that this weir survived.
        row.failures.push(error);
    }
    let _ = std::fs::remove_dir_all(&dir);
    let good = results.iter().filter(|tried| tried.faults().is_empty()).count();
    for tried in results.iter().filter(|tried| !tried.faults().is_empty()) {
        println!("failed: {}::{}: {}", tried.class, tried.attack.name, tried.faults().join("; "));
    }
    println!("{good} attacks passed, {} failed", results.len() - good);
    if short {
        return Ok(good == results.len());
    }
    let (summary, held) = report::summary(&results);
    print!("{summary}");
    if only.is_none() {
        report::write(&target, &results).map_err(|error| error.to_string())?;
        println!("written: {}", target.join("attack").join("report.md").display());
    }
    Ok(held || only.is_some() && good == results.len())
}
