//! The attacker's process.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{self, Receiver},
    time::{Duration, Instant},
};

use procfs::{
    ProcResult,
    process::{Process, Task},
};
use rustix::{
    param::clock_ticks_per_second,
    process::{
        Pid, Resource, Rlimit, Signal, geteuid, getrlimit, kill_process, kill_process_group,
        set_parent_process_death_signal, setrlimit,
    },
    thread::ClockId,
    time::clock_gettime,
};

use super::stand_in::Work;
use super::switch::readers;
use crate::attack::{self, Attack, Field, User};

/// The user ID of other users' attacks: neither root nor `nobody`, which weir becomes if root starts it.
pub const SOMEBODY: u32 = 65_533;

/// The subdirectory for weirs that the attacker starts.
pub const OWN: &str = "own";

/// A running attacker.
#[derive(Debug)]
pub struct Attacker {
    child: Child,
    /// The directory for weirs that the attacker starts.
    own: PathBuf,
    end: Option<ChildStdin>,
    lines: Receiver<String>,
    began: Instant,
    known: Outcome,
}

/// The result of an attacker.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Number of completed attempts.
    pub done: u64,
    /// Faults: actions that weir must not do.
    pub harm: Vec<String>,
    /// Reasons of attempts that were not completed.
    pub misses: Vec<String>,
    /// CPUs that the attacker's own process used on average.
    pub cpus: f64,
    /// Number of the attacker's threads that used these CPUs.
    pub threads: usize,
    /// True if these threads were always running or ready to run.
    pub never_waits: bool,
    /// Processes that it started, per second.
    pub children_per_s: f64,
    /// Figures by name, each summed over all attempts.
    pub counted: BTreeMap<String, u64>,
}

impl Outcome {
    /// The work of a stand-in for the attacker.
    pub fn work(&self, weir: &Path) -> Work {
        // A stand-in that takes all CPU time left by others must do the same: with less, others would get more.
        let cpus = if self.never_waits { self.threads as f64 } else { self.cpus };
        let (threads, begun_per_s) = (self.threads, self.children_per_s);
        let program = (begun_per_s >= 1.0).then(|| weir.to_owned());
        Work { cpus, threads, begun_per_s, program }
    }
}

impl Attacker {
    /// Starts an attacker whose interfaces begin with number `first`.
    pub fn start(attack: &Attack, dir: &Path, weir: &Path, first: usize) -> Result<Self, String> {
        let own = dir.join(OWN);
        let (dir, weir) = (dir.to_string_lossy(), weir.to_string_lossy());
        let first = first.to_string();
        let args = ["strike", attack.name, "--dir", &dir, "--weir", &weir, "--first", &first];
        Self::spawn(&args, attack.user, own)
    }

    /// Starts a stand-in: it does as much work, but does nothing to weir.
    pub fn stand_in(work: Work) -> Result<Self, String> {
        let Work { cpus, threads, begun_per_s, program } = work;
        let [cpus, threads, begun] = [cpus, threads as f64, begun_per_s].map(|it| it.to_string());
        let mut args = vec!["stand-in", &cpus, &threads, &begun];
        let program = program.map(|program| program.to_string_lossy().into_owned());
        args.extend(program.iter().flat_map(|program| ["--program", program]));
        Self::spawn(&args, User::Own, PathBuf::new())
    }

    fn spawn(args: &[&str], user: User, own: PathBuf) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        // The attacker's child processes, such as its own weir, end with its process group.
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        match user {
            User::Own | User::Root => {}
            User::Other => drop(command.uid(SOMEBODY).gid(SOMEBODY)),
            User::Reader => {
                let group = readers().ok_or("there is no group for who may read")?;
                command.uid(SOMEBODY).gid(group);
            }
        }
        let mut child = command.spawn().map_err(|error| error.to_string())?;
        let end = child.stdin.take();
        let (sender, lines) = mpsc::channel();
        let out = child.stdout.take();
        std::thread::spawn(move || {
            for line in out.into_iter().flat_map(|out| BufReader::new(out).lines()).flatten() {
                let _ = sender.send(line);
            }
        });
        Ok(Self { child, own, end, lines, began: Instant::now(), known: Outcome::default() })
    }

    /// Waits for the first attempt or the first harm.
    pub fn struck(&mut self, patience: Duration) -> bool {
        let end = Instant::now() + patience;
        while let Ok(line) = self.lines.recv_timeout(end.saturating_duration_since(Instant::now()))
        {
            if line == "struck" {
                return true;
            }
            self.note(&line);
            if !self.known.harm.is_empty() {
                // After harm, more attempts change nothing.
                return true;
            }
        }
        false
    }

    /// Ends the attacker, which closes all of its descriptors.
    pub fn end(mut self) -> Outcome {
        drop(self.end.take());
        let until = Instant::now() + Duration::from_secs(2);
        while let Ok(None) = self.child.try_wait() {
            if Instant::now() > until {
                // The attacker may be blocked in the kernel.
                let _ = self.child.kill();
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = self.child.wait();
        self.end_group();
        let seconds = self.began.elapsed().as_secs_f64();
        while let Ok(line) = self.lines.recv_timeout(Duration::from_secs(1)) {
            self.note(&line);
        }
        self.known.cpus /= seconds;
        self.known.children_per_s /= seconds;
        std::mem::take(&mut self.known)
    }

    fn end_group(&self) {
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        if self.own.is_dir() {
            end_weirs_of(&self.own);
        }
    }

    fn note(&mut self, line: &str) {
        match line.split_once(' ') {
            Some(("harm", what)) => self.known.harm.push(what.to_owned()),
            Some(("miss", what)) => self.known.misses.push(what.to_owned()),
            Some(("done", count)) => self.known.done = count.parse().unwrap_or(0),
            Some(("cpu_ns", ns)) => self.known.cpus = ns.parse::<f64>().unwrap_or(0.0) / 1e9,
            Some(("threads", count)) => self.known.threads = count.parse().unwrap_or(0),
            Some(("children", count)) => self.known.children_per_s = count.parse().unwrap_or(0.0),
            Some(("counted", figure)) => {
                if let Some((name, count)) = figure.split_once(' ') {
                    let sum = self.known.counted.entry(name.to_owned()).or_default();
                    *sum += count.parse().unwrap_or(0);
                }
            }
            Some(("never_waits", "true")) => self.known.never_waits = true,
            _ => {}
        }
    }
}

/// Ends the weirs whose configuration is in `dir`. A weir that was upgraded is in its own process
/// group, and would take the next weir's keeper.
fn end_weirs_of(dir: &Path) {
    let dir = dir.to_string_lossy();
    let is_of_dir = |process: &Process| {
        process.cmdline().is_ok_and(|line| line.iter().any(|word| word.starts_with(&*dir)))
    };
    loop {
        let all = procfs::process::all_processes().into_iter().flatten().flatten();
        let left: Vec<_> = all.filter(|it| it.is_alive() && is_of_dir(it)).collect();
        if left.is_empty() {
            return;
        }
        for pid in left.iter().filter_map(|process| Pid::from_raw(process.pid)) {
            let _ = kill_process(pid, Signal::KILL);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.end_group();
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The main function of the attacker's process: repeats the attack until its input ends.
pub fn strike(name: &str, field: Field) -> Result<(), String> {
    let (_, attack, _) =
        attack::all().find(|(_, attack, _)| attack.name == name).ok_or("no such attack")?;
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let hard = getrlimit(Resource::Nofile).maximum;
    let _ = setrlimit(Resource::Nofile, Rlimit { current: hard, maximum: hard });
    // Root could do more in many attacks than their descriptions say. Attacks of another user prove
    // nothing as root.
    if matches!(attack.user, User::Other | User::Reader) && geteuid().is_root() {
        return Err("this attack is another user's".into());
    }
    // Two threads use the field until the process ends.
    let field: &Field = Box::leak(Box::new(field));
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_line(&mut String::new());
        say_and_exit(field)
    });
    attack::strike_for_ever(attack, field)
}

fn say_and_exit(field: &Field) -> ! {
    let busy = busy_threads();
    let (threads, never_waits) = if own_ns() * 4 < cpu_ns() {
        // The process waits for its children, one at a time.
        (1, false)
    } else {
        (busy.len(), busy.iter().all(|thread| thread.never_waits()))
    };
    println!("done {}\nchildren {}\ncpu_ns {}", field.done(), field.children(), cpu_ns());
    println!("threads {threads}\nnever_waits {never_waits}");
    std::process::exit(0)
}

/// Times of a thread (ns): running, ready to run, and since its start.
#[derive(Clone, Copy, Debug)]
struct ThreadTime {
    ran_ns: u64,
    waited_ns: u64,
    age_ns: u64,
}

impl ThreadTime {
    fn of(task: &Task) -> ProcResult<Self> {
        let times = task.schedstat()?;
        let start = task.stat()?.starttime;
        let now = clock_gettime(ClockId::Boottime);
        let now_ns = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
        let start_ns = start * 1_000_000_000 / clock_ticks_per_second();
        let (ran_ns, waited_ns) = (times.sum_exec_runtime, times.run_delay);
        Ok(Self { ran_ns, waited_ns, age_ns: now_ns.saturating_sub(start_ns) })
    }

    /// True if the thread never blocked, except for rounding by clock ticks and for its first steps.
    fn never_waits(self) -> bool {
        (self.ran_ns + self.waited_ns) * 10 >= self.age_ns * 9
    }
}

/// Threads of this process that ran at least a tenth as long as the busiest one.
fn busy_threads() -> Vec<ThreadTime> {
    let tasks = Process::myself().and_then(|process| process.tasks()).into_iter().flatten();
    let mut all: Vec<_> =
        tasks.filter_map(|task| task.and_then(|task| ThreadTime::of(&task)).ok()).collect();
    let most_ns = all.iter().map(|thread| thread.ran_ns).max().unwrap_or(0);
    all.retain(|thread| thread.ran_ns >= most_ns / 10);
    all
}

/// CPU time of this process and its children.
fn cpu_ns() -> u64 {
    // `cutime` and `cstime` (proc_pid_stat(5)) are the times of children that were waited for.
    let stat = Process::myself().and_then(|process| process.stat());
    let ticks = stat.map_or(0, |stat| (stat.cutime + stat.cstime).cast_unsigned());
    own_ns() + ticks * 1_000_000_000 / clock_ticks_per_second()
}

/// CPU time of this process alone.
fn own_ns() -> u64 {
    let own = clock_gettime(ClockId::ProcessCPUTime);
    own.tv_sec as u64 * 1_000_000_000 + own.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_spins_never_waits_and_who_sleeps_does() {
        let (ran, slept) = std::thread::scope(|scope| {
            let of = |work: fn()| {
                work();
                let tid = rustix::thread::gettid().as_raw_nonzero().get();
                let task = Process::myself().unwrap().task_from_tid(tid);
                ThreadTime::of(&task.unwrap()).unwrap()
            };
            let spins = || {
                let began = Instant::now();
                while began.elapsed() < Duration::from_millis(300) {}
            };
            let spinner = scope.spawn(move || of(spins));
            let sleeper =
                scope.spawn(move || of(|| std::thread::sleep(Duration::from_millis(300))));
            (spinner.join().unwrap(), sleeper.join().unwrap())
        });
        assert!(ran.never_waits() && !slept.never_waits(), "{ran:?} {slept:?}");
    }

    #[test]
    fn what_a_child_computes_is_the_attackers() {
        let before = cpu_ns();
        // Runs for tenths of a second: a tick is a hundredth.
        let count = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
        assert!(Command::new("sh").args(["-c", count]).status().unwrap().success());
        assert!(cpu_ns() - before > 50_000_000);
    }
}
