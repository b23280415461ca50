//! The random events.

use std::{io::ErrorKind, thread, time::Duration};

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use weir_bed::{
    error::{Error, Result},
    netns::Clock,
    process::{Placement, Process},
    weir::{Setup, Vif},
};

use super::world::World;
use crate::{account::Observed, random::Random};

/// Longest time of traffic before the next event.
const TRAFFIC: Duration = Duration::from_secs(3);
/// Longest suspension of the host.
const SUSPENDED: Duration = Duration::from_secs(4);
/// Largest offset of the changed clock (s).
const CLOCK_STEP: u64 = 10_000;
/// Divisor of the machine's free memory for the amount to take, and its upper bound (MiB).
const MEMORY_SHARE: u64 = 4;
const MEMORY_MIB_MAX: u64 = 2048;
/// Descriptors that weir may still open.
const DESCRIPTORS_LEFT: u64 = 3;

/// An event.
pub struct Event {
    /// The event's name.
    pub name: &'static str,
    /// The event's weight among all events.
    pub weight: u64,
    /// True if the event needs Linux guests.
    pub real: bool,
    /// Runs the event. Returns a note for the log.
    pub run: fn(&mut World<'_>, &mut Random) -> Result<String>,
}

/// All events.
pub const ALL: &[Event] = &[
    Event { name: "traffic", weight: 4, real: false, run: traffic },
    Event { name: "reload", weight: 4, real: false, run: reload },
    Event { name: "kill", weight: 3, real: false, run: kill },
    Event { name: "upgrade", weight: 3, real: false, run: upgrade },
    Event { name: "kill-other", weight: 1, real: false, run: kill_other },
    Event { name: "kill-keeper", weight: 1, real: false, run: kill_keeper },
    Event { name: "clock", weight: 1, real: false, run: clock },
    Event { name: "suspend", weight: 2, real: false, run: suspend },
    Event { name: "victim", weight: 4, real: false, run: victim },
    Event { name: "descriptors", weight: 2, real: false, run: descriptors },
    Event { name: "memory", weight: 1, real: false, run: memory },
    Event { name: "uml", weight: 1, real: true, run: uml },
    Event { name: "move", weight: 2, real: true, run: move_over },
];

/// Draws an event.
pub fn draw(random: &mut Random, real: bool) -> &'static Event {
    let possible = || ALL.iter().filter(|event| real || !event.real);
    let mut at = random.below(possible().map(|event| event.weight).sum());
    let mut drawn = &ALL[0];
    for event in possible() {
        drawn = event;
        match at.checked_sub(event.weight) {
            Some(rest) => at = rest,
            None => break,
        }
    }
    drawn
}

/// Lets traffic flow.
fn traffic(world: &mut World<'_>, random: &mut Random) -> Result<String> {
    thread::sleep(random.pause(TRAFFIC));
    world.resume().map(|()| String::new())
}

/// Adds, changes and removes interfaces. At the end all are as before.
fn reload(world: &mut World<'_>, random: &mut Random) -> Result<String> {
    let count = 1 + random.below(4);
    for _ in 0..count {
        let more = (0..random.below(6)).map(|_| Vif {
            queues: [None, Some(2)][random.below(2) as usize],
            vlan: [None, Some(7)][random.below(2) as usize],
            latency_budget: [None, Some("1ms")][random.below(2) as usize],
            ..Vif::default()
        });
        let vifs = world.setup.vifs.iter().cloned().chain(more.collect::<Vec<_>>()).collect();
        world.weirs[0].reload(&Setup { vifs, ..world.setup.clone() })?;
        thread::sleep(random.pause(TRAFFIC / 10));
    }
    world.weirs[0].reload(&world.setup)?;
    world.resume().map(|()| format!("{count} times"))
}

/// Kills weir by SIGKILL.
fn kill(world: &mut World<'_>, random: &mut Random) -> Result<String> {
    thread::sleep(random.pause(TRAFFIC / 3));
    world.kill_first()?;
    go_on(world, random)
}

/// Lets guests continue with the next weir.
fn go_on(world: &mut World<'_>, random: &mut Random) -> Result<String> {
    world.resume()?;
    // The calls of user-mode Linux go through a pipe, and such sessions are not kept.
    uml(world, random)?;
    world.await_victim().map(|()| String::new())
}

/// Upgrades weir: another process takes over.
fn upgrade(world: &mut World<'_>, random: &mut Random) -> Result<String> {
    if !crate::replaced::has_upgrade(world.lab) {
        return Ok("left out: this weir has none".into());
    }
    thread::sleep(random.pause(TRAFFIC / 3));
    world.upgrade_first()?;
    go_on(world, random)
}

/// Kills the other host's weir by SIGKILL.
fn kill_other(world: &mut World<'_>, _: &mut Random) -> Result<String> {
    world.kill_second().map(|()| String::new())
}

/// Kills the keeper by SIGKILL, and weir soon afterwards.
fn kill_keeper(world: &mut World<'_>, random: &mut Random) -> Result<String> {
    let filled = "a keeper is there";
    let before = world.weirs[0].log().matches(filled).count();
    world.weirs[0].replace_keeper()?;
    world.keepers[0].ended();
    weir_bed::process::wait_until("the next keeper to be filled", Duration::from_secs(30), || {
        Ok(world.weirs[0].log().matches(filled).count() > before)
    })?;
    kill(world, random)
}

/// Shifts the clock of the next weir, and resets it for the one after that.
fn clock(world: &mut World<'_>, random: &mut Random) -> Result<String> {
    let ahead = random.below(2 * CLOCK_STEP) as i64 - CLOCK_STEP as i64;
    let clock = Clock::ahead(ahead)?;
    world.weirs[0].set_clock(Some(clock.path()));
    let there = kill(world, random);
    world.weirs[0].set_clock(None);
    there?;
    world.settle()?;
    kill(world, random).map(|_| format!("{ahead} s, and back"))
}

/// Suspends the host.
fn suspend(world: &mut World<'_>, random: &mut Random) -> Result<String> {
    let pause = random.pause(SUSPENDED);
    world.weirs[0].process().stop();
    thread::sleep(pause);
    world.weirs[0].process().go_on();
    world.resume().map(|()| format!("{:.1} s", pause.as_secs_f32()))
}

/// Kills a guest by SIGKILL under traffic in both directions, and starts the next one.
fn victim(world: &mut World<'_>, random: &mut Random) -> Result<String> {
    let count = 1 + random.below(5);
    for _ in 0..count {
        world.begin_victim()?;
        world.await_victim()?;
        thread::sleep(random.pause(TRAFFIC / 10));
    }
    // For a while the interface has no guest.
    world.victim = None;
    thread::sleep(random.pause(TRAFFIC / 3));
    world.begin_victim()?;
    world.await_victim().map(|()| format!("{count} times"))
}

/// Limits weir's descriptors for a while, so that there is none for a new guest.
fn descriptors(world: &mut World<'_>, random: &mut Random) -> Result<String> {
    let pid = world.weirs[0].process().pid();
    world.victim = None;
    thread::sleep(Duration::from_millis(100));
    let left = random.below(DESCRIPTORS_LEFT);
    let few = Observed::of(pid)?.fds + left;
    let before = match limit(pid, Some(few)) {
        Err(Error::Io { source, .. }) if source.kind() == ErrorKind::PermissionDenied => {
            world.begin_victim()?;
            world.await_victim()?;
            return Ok("left out: it takes CAP_SYS_RESOURCE".into());
        }
        before => before?,
    };
    world.begin_victim()?;
    thread::sleep(random.pause(TRAFFIC / 2));
    limit(pid, before)?;
    world.await_victim()?;
    world.resume().map(|()| format!("{left} left"))
}

/// Sets the number of descriptors that `pid` may have. Returns the previous limit.
fn limit(pid: u32, current: Option<u64>) -> Result<Option<u64>> {
    let wanted = Rlimit { current, maximum: hard_limit(pid)? };
    let before = prlimit(Pid::from_raw(pid.cast_signed()), Resource::Nofile, wanted);
    before.map(|limit| limit.current).map_err(|errno| Error::Io {
        what: format!("limit the descriptors of {pid}"),
        source: errno.into(),
    })
}

fn hard_limit(pid: u32) -> Result<Option<u64>> {
    let unread = |error: procfs::ProcError| Error::Check(format!("/proc/{pid}/limits: {error}"));
    let limits = procfs::process::Process::new(pid.cast_signed())
        .and_then(|process| process.limits())
        .map_err(unread)?;
    Ok(match limits.max_open_files.hard_limit {
        procfs::process::LimitValue::Unlimited => None,
        procfs::process::LimitValue::Value(value) => Some(value),
    })
}

/// Starts a program that takes much of the free memory and writes to all of it.
fn memory(world: &mut World<'_>, random: &mut Random) -> Result<String> {
    use procfs::Current as _;
    let info = procfs::Meminfo::current()
        .map_err(|error| Error::Check(format!("/proc/meminfo: {error}")))?;
    let free_mib = info.mem_available.unwrap_or(0) >> 20;
    let mib = (free_mib / MEMORY_SHARE).clamp(1, MEMORY_MIB_MAX).to_string();
    let own = std::env::current_exe()
        .map_err(|source| Error::Io { what: "find this program".into(), source })?;
    let argv = [&*own.to_string_lossy(), "press", &mib];
    let log = world.weirs[0].dir().join("press.log");
    let press = Process::start_logged(&argv, &Placement::default(), &log)?;
    thread::sleep(Duration::from_millis(200) + random.pause(TRAFFIC));
    press.kill();
    world.resume().map(|()| format!("{mib} MiB"))
}

/// Kills a user-mode Linux by SIGKILL, and starts the next one.
fn uml(world: &mut World<'_>, _: &mut Random) -> Result<String> {
    if let Some(real) = &mut world.real {
        real.boot_uml(&world.weirs[0])?;
    }
    Ok(String::new())
}

/// Migrates a guest under traffic.
fn move_over(world: &mut World<'_>, _: &mut Random) -> Result<String> {
    let downtime = match &mut world.real {
        Some(real) => real.move_over(world.lab, &world.weirs)?,
        None => 0,
    };
    world.resume().map(|()| format!("stood still for {downtime} ms"))
}
