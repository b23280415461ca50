//! Programs of the administrator's that run when a port has come up or gone down (`on_up`, `on_down`).
//!
//! A confined weir cannot start a process. The runner is another process, made before weir is confined: it has the
//! privileges that weir was started with, and the configured programs. weir tells it which ports are up, and the runner
//! starts the programs. An attacker who controls weir can have them started for any port that exists, and for
//! interfaces that do not, each port once a second. A program is told a port's name, and the interface in the file.
//!
//! weir waits for the runner only at its end, and for a bounded time, because the service manager
//! may kill the runner together with weir.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, PipeReader, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::process::{Pid, PidfdFlags, Signal, geteuid, kill_process_group, pidfd_open};
use serde::{Deserialize, Serialize};
use weir_config::{Config, InterfaceName, PortName, Program};
use weir_engine::{lock, logs::Logs};
use weir_limits::{
    EVENTS_LOOK_NS, PORTS_MAX, PROGRAM_NS_MAX, PROGRAM_OUTPUT_BYTES_MAX, PROGRAM_PAUSE_NS,
    PROGRAM_PORTS_TOGETHER_MAX, PROGRAMS_AT_END_NS, PROGRAMS_AT_ONCE_MAX,
};

use crate::helper::wire;
use crate::host::Lack;

/// The first argument of a program that is to be the runner. Its weir is on standard input.
const ARGUMENT: &str = "runner-of-a-weir";
/// The name of the runner's threads.
const NAME: &str = "weir-runner";
/// The time for one run.
const LIMIT: Duration = Duration::from_nanos(PROGRAM_NS_MAX);
/// The directories in which a program finds other programs.
const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Permission to write for a group or for everybody.
const OTHERS_WRITE: u32 = 0o022;
/// The sticky bit of a directory, in which nobody replaces a file of somebody else.
const STICKY: u32 = 0o1000;
/// Permission to execute.
const EXECUTE: u32 = 0o111;

/// The programs of a port.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pair {
    up: Option<Program>,
    down: Option<Program>,
}

impl Pair {
    /// The programs of the port itself, or else those of the switch.
    fn of(up: Option<&Program>, down: Option<&Program>, others: &Self) -> Self {
        let either =
            |own: Option<&Program>, other: &Option<Program>| own.or(other.as_ref()).cloned();
        Self { up: either(up, &others.up), down: either(down, &others.down) }
    }

    fn is_empty(&self) -> bool {
        self.up.is_none() && self.down.is_none()
    }
}

/// The runner's configuration, which it gets at its start.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Tasks {
    /// The programs of guests' interfaces.
    vifs: Pair,
    /// The programs of uplinks, each with its interface of the host if it has one.
    uplinks: BTreeMap<PortName, (Option<InterfaceName>, Pair)>,
}

impl Tasks {
    fn of(config: &Config) -> Self {
        let all = Pair { up: config.switch.on_up.clone(), down: config.switch.on_down.clone() };
        let uplinks = config.uplinks.iter().map(|uplink| {
            let interface = Some(&uplink.interface).filter(|_| uplink.kind.has_interface());
            let own = Pair::of(uplink.on_up.as_ref(), uplink.on_down.as_ref(), &all);
            (uplink.name.clone(), (interface.cloned(), own))
        });
        Self { uplinks: uplinks.collect(), vifs: all }
    }

    fn is_empty(&self) -> bool {
        self.vifs.is_empty() && self.uplinks.values().all(|(_, own)| own.is_empty())
    }

    /// The program for an event of a port, with the environment's variables about the port.
    fn program(
        &self,
        port: &PortName,
        up: bool,
    ) -> Option<(&Program, Vec<(&'static str, String)>)> {
        let mut about = vec![("WEIR_EVENT", word(up).to_owned())];
        let pair = match self.uplinks.get(port) {
            Some((interface, pair)) => {
                about.push(("WEIR_UPLINK", port.to_string()));
                about.extend(interface.iter().map(|it| ("WEIR_INTERFACE", it.to_string())));
                pair
            }
            None => {
                about.push(("WEIR_VIF", port.to_string()));
                &self.vifs
            }
        };
        let program = if up { pair.up.as_ref() } else { pair.down.as_ref() };
        Some((program?, about))
    }
}

/// The programs of a configuration, each with its key in the file.
fn named(config: &Config) -> impl Iterator<Item = (String, &Program)> {
    let of = |table: String, up, down| {
        let named = move |(key, program): (&str, Option<_>)| {
            Some((format!("`{key}` of [{table}]"), program?))
        };
        [("on_up", up), ("on_down", down)].into_iter().filter_map(named)
    };
    let switch = &config.switch;
    let own = of("switch".into(), switch.on_up.as_ref(), switch.on_down.as_ref());
    let uplinks = config.uplinks.iter();
    own.chain(uplinks.flat_map(move |it| of(it.table(), it.on_up.as_ref(), it.on_down.as_ref())))
}

/// The programs of a configuration that would not run.
pub(crate) fn lacks(config: &Config) -> impl Iterator<Item = Lack> {
    named(config).filter_map(|(key, program)| {
        let Unsafe { what, help } = check(program.path()).err()?;
        Some(Lack { what: format!("{key}: {what}"), help: Some(help) })
    })
}

/// The reason why a file is not started.
#[derive(Debug)]
struct Unsafe {
    what: String,
    help: String,
}

/// The file behind `path`, which nobody but root and this user can change or replace.
fn check(path: &Path) -> Result<PathBuf, Unsafe> {
    let shown = path.display();
    let help = |help: &str| help.to_owned();
    let found = std::fs::canonicalize(path).and_then(|file| Ok((file.metadata()?, file)));
    let (file, real) = found.map_err(|error| Unsafe {
        what: format!("{shown}: {error}"),
        help: help("the path is that of a program on this host, or leave the key out"),
    })?;
    let is_ours = |owner: u32| owner == 0 || owner == geteuid().as_raw();
    if !file.is_file() || file.mode() & EXECUTE == 0 {
        let what = format!("{shown} is no program that can be executed");
        return Err(Unsafe { what, help: format!("`chmod 755 {shown}`") });
    }
    if !is_ours(file.uid()) || file.mode() & OTHERS_WRITE != 0 {
        let (mode, owner) = (file.mode() & 0o7777, file.uid());
        let what = format!(
            "others may write {shown} (mode {mode:04o}, owner {owner}), and so use weir's privileges"
        );
        return Err(Unsafe {
            what,
            help: format!("`chown root: {shown}`, and `chmod 755 {shown}`"),
        });
    }
    // A user who may write to a directory of the path can replace the file.
    for directory in path.ancestors().skip(1).chain(real.ancestors().skip(1)) {
        let Ok(it) = directory.metadata() else { continue };
        let is_open = it.mode() & OTHERS_WRITE != 0 && it.mode() & STICKY == 0;
        if !is_ours(it.uid()) || is_open {
            let directory = directory.display();
            let what = format!("others may write in {directory}, and so replace {shown}");
            let help = format!(
                "put the program where root alone may write, such as below /etc/weir; or `chmod go-w {directory}`"
            );
            return Err(Unsafe { what, help });
        }
    }
    Ok(real)
}

fn word(up: bool) -> &'static str {
    if up { "up" } else { "down" }
}

/// A message of weir.
#[derive(Debug, Serialize, Deserialize)]
enum Told {
    /// The first message.
    Begin(Tasks),
    /// The ports that have come up or gone down: the number of the session, or `None` for down.
    Now(Vec<(PortName, Option<u64>)>),
    /// The ports for which another weir has run programs: they have come up before.
    Before(Vec<(PortName, Option<u64>)>),
    /// weir ends: all ports go down.
    End,
}

/// A message of the runner: the outcome of a program, which is sent if this program or the one
/// before it failed.
#[derive(Debug, Serialize, Deserialize)]
struct Ran {
    port: PortName,
    up: bool,
    failure: Option<String>,
}

/// Serves as a runner if this process was started as one, and returns the exit code. A program that runs programs for
/// its ports calls this first. `log` starts the runner's log.
pub fn run_if_asked(log: fn()) -> Option<ExitCode> {
    let asked = std::env::args_os().nth(1).is_some_and(|argument| argument == ARGUMENT);
    asked.then(|| match rustix::stdio::stdin().try_clone_to_owned() {
        Ok(socket) => serve(socket, log),
        Err(_) => ExitCode::FAILURE,
    })
}

/// A port as the runner sees it. `None` means down; the number distinguishes one session from
/// another.
#[derive(Debug)]
struct Standing {
    /// The state for which programs have run.
    ran: Option<u64>,
    now: Option<u64>,
    /// The earliest start of the next program.
    due: Instant,
    busy: bool,
    failed: [bool; 2],
}

impl Standing {
    /// The event for which a program is to run next.
    fn event(&self) -> Option<bool> {
        (self.ran != self.now).then_some(self.ran.is_none())
    }
}

#[derive(Debug, Default)]
struct Ports {
    all: BTreeMap<PortName, Standing>,
    /// No program is started after this time, which is set when weir has ended.
    last: Option<Instant>,
    ends: bool,
}

impl Ports {
    fn tell(&mut self, port: PortName, now: Option<u64>, before: bool) {
        if self.all.len() >= 2 * PORTS_MAX && !self.all.contains_key(&port) {
            let now = Instant::now();
            self.all.retain(|_, it| {
                it.busy || it.now.is_some() || it.event().is_some() || it.due > now
            });
            if self.all.len() >= 2 * PORTS_MAX {
                return;
            }
        }
        let fresh = || Standing {
            ran: None,
            now: None,
            due: Instant::now(),
            busy: false,
            failed: [false; 2],
        };
        let standing = self.all.entry(port).or_insert_with(fresh);
        standing.now = now;
        if before {
            standing.ran = now;
        }
    }

    /// All ports go down.
    fn end(&mut self) {
        let now = Instant::now();
        self.ends = true;
        self.last = Some(now + LIMIT);
        for standing in self.all.values_mut() {
            (standing.now, standing.due) = (None, now);
        }
    }

    /// The port whose program starts next and the event, or the time at which to ask again.
    fn next(&self, tasks: &Tasks, now: Instant) -> Result<(PortName, bool), Option<Instant>> {
        if self.last.is_some_and(|last| now >= last) {
            return Err(None);
        }
        let waiting = self.all.iter().filter(|(_, it)| !it.busy);
        let waiting = waiting.filter_map(|(name, it)| Some((it.due, name, it.event()?)));
        // Uplinks come first: guests are reached by them, and the end leaves little time.
        let key = |(due, name, _): &(Instant, &PortName, bool)| {
            (!tasks.uplinks.contains_key(*name), *due)
        };
        let due = waiting.clone().filter(|(due, ..)| *due <= now).min_by_key(key);
        match due {
            Some((_, name, up)) => Ok((name.clone(), up)),
            None => Err(waiting.map(|(due, ..)| due).min()),
        }
    }

    fn begin(&mut self, port: &PortName, up: bool) {
        if let Some(standing) = self.all.get_mut(port) {
            standing.busy = true;
            standing.ran = if up { standing.now } else { None };
        }
    }

    /// Notes how a program has ended. True if weir needs to know.
    fn done(&mut self, port: &PortName, up: bool, started: Option<Instant>, failed: bool) -> bool {
        let Some(standing) = self.all.get_mut(port) else { return false };
        standing.busy = false;
        if let Some(started) = started.filter(|_| !self.ends) {
            standing.due = started + Duration::from_nanos(PROGRAM_PAUSE_NS);
        }
        let had = std::mem::replace(&mut standing.failed[usize::from(up)], failed);
        had || failed
    }

    fn is_done(&self) -> bool {
        let past = self.last.is_some_and(|last| Instant::now() >= last);
        self.all.values().all(|it| !it.busy && (past || it.event().is_none()))
    }
}

struct Runner {
    tasks: Tasks,
    ports: Mutex<Ports>,
    changed: Condvar,
    socket: OwnedFd,
    logs: Logs<2>,
}

/// Serves until the weir at the other end has ended, and with it all programs that it has asked
/// for.
fn serve(socket: OwnedFd, log: fn()) -> ExitCode {
    let _ = rustix::thread::set_name(c"weir-runner");
    log();
    crate::leave_signals_to_weir();
    let Ok(Some((Told::Begin(tasks), _))) = wire::receive(socket.as_fd()) else {
        return ExitCode::FAILURE;
    };
    let (ports, changed, logs) = (Mutex::default(), Condvar::new(), Logs::default());
    let runner = Arc::new(Runner { tasks, ports, changed, socket, logs });
    for _ in 0..PROGRAMS_AT_ONCE_MAX {
        let runner = Arc::clone(&runner);
        let spawned = std::thread::Builder::new().name(NAME.into()).spawn(move || runner.work());
        if let Err(error) = spawned {
            tracing::error!(%error, "no thread for programs of ports");
        }
    }
    while let Ok(Some((told, _))) = wire::receive::<Told>(runner.socket.as_fd()) {
        let mut ports = lock(&runner.ports);
        match told {
            Told::Begin(_) => {}
            Told::Now(all) => all.into_iter().for_each(|(port, now)| ports.tell(port, now, false)),
            Told::Before(all) => {
                all.into_iter().for_each(|(port, now)| ports.tell(port, now, true))
            }
            Told::End => ports.end(),
        }
        let ends = ports.ends;
        drop(ports);
        runner.changed.notify_all();
        if ends {
            break;
        }
    }
    let mut ports = lock(&runner.ports);
    if !ports.ends {
        // Another weir takes over now, or starts later, and continues with the ports that are up.
        ports.last = Some(Instant::now());
    }
    while !ports.is_done() {
        ports = runner.wait(ports, Some(Instant::now() + Duration::from_nanos(EVENTS_LOOK_NS)));
    }
    ExitCode::SUCCESS
}

impl Runner {
    fn wait<'p>(
        &self,
        ports: MutexGuard<'p, Ports>,
        until: Option<Instant>,
    ) -> MutexGuard<'p, Ports> {
        let pause = until.map(|until| until.saturating_duration_since(Instant::now()));
        match pause {
            Some(pause) => match self.changed.wait_timeout(ports, pause) {
                Ok((ports, _)) => ports,
                Err(poisoned) => poisoned.into_inner().0,
            },
            None => self.changed.wait(ports).unwrap_or_else(|poisoned| poisoned.into_inner()),
        }
    }

    /// Runs one program after another.
    fn work(&self) {
        loop {
            let mut ports = lock(&self.ports);
            let (port, up) = loop {
                match ports.next(&self.tasks, Instant::now()) {
                    Ok(next) => break next,
                    Err(until) => ports = self.wait(ports, until),
                }
            };
            ports.begin(&port, up);
            drop(ports);
            let program = self.tasks.program(&port, up);
            let started = program.as_ref().map(|_| Instant::now());
            let failure = program.and_then(|(program, about)| self.run(&port, up, program, &about));
            let tells = lock(&self.ports).done(&port, up, started, failure.is_some());
            if tells {
                // If weir does not read its messages, this one is lost.
                let ran = Ran { port, up, failure };
                let _ = wire::send_at_once(self.socket.as_fd(), &ran);
            }
            self.changed.notify_all();
        }
    }

    /// Runs a program to its end, and logs its result. Returns the failure, if there is one.
    fn run(
        &self,
        port: &PortName,
        up: bool,
        program: &Program,
        about: &[(&'static str, String)],
    ) -> Option<String> {
        let (mut output, path) = (Output::default(), program.path().display());
        let failure = run(program, about, &mut output, LIMIT).err();
        let (event, said) = (word(up), output.shown());
        self.logs.say(usize::from(failure.is_some()), |unsaid| match &failure {
            Some(failure) => tracing::warn!(
                %port, event, program = %path, said, unsaid, "a program for a port has failed: {failure}"
            ),
            None => tracing::info!(%port, event, program = %path, said, unsaid, "a program for a port has run"),
        });
        let said = said.map(|said| format!("; it said: {said}")).unwrap_or_default();
        failure.map(|failure| format!("{path}: {failure}{said}"))
    }
}

/// The first bytes of a program's output.
#[derive(Debug, Default)]
struct Output {
    kept: Vec<u8>,
    dropped: u64,
}

impl Output {
    /// Reads what is available, a bounded amount at a time. False at the end of the output.
    fn take(&mut self, from: &mut PipeReader) -> bool {
        let mut bytes = [0; 16 << 10];
        match from.read(&mut bytes) {
            Ok(0) => false,
            Ok(read) => {
                let room = PROGRAM_OUTPUT_BYTES_MAX.saturating_sub(self.kept.len()).min(read);
                self.kept.extend(&bytes[..room]);
                self.dropped += (read - room) as u64;
                true
            }
            Err(error) => {
                matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
            }
        }
    }

    /// The output on one line. The caller escapes it before it is printed.
    fn shown(&self) -> Option<String> {
        let text = String::from_utf8_lossy(&self.kept);
        let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let more = match self.dropped {
            0 => String::new(),
            bytes => format!(" (and {bytes} bytes)"),
        };
        (!lines.is_empty()).then(|| lines.join(" / ") + &more)
    }
}

/// Runs a program to its end. Processes that it has started in its own group end with it.
fn run(
    program: &Program,
    about: &[(&'static str, String)],
    output: &mut Output,
    limit: Duration,
) -> Result<(), String> {
    let failed = |error: io::Error| error.to_string();
    let real = check(program.path()).map_err(|it| it.what)?;
    let (mut reader, writer) = io::pipe().map_err(failed)?;
    ioctl_fionbio(&reader, true).map_err(|errno| failed(errno.into()))?;
    let end = Instant::now() + limit;
    let mut command = Command::new(real);
    command
        .arg0(program.path())
        .args(program.arguments())
        .env_clear()
        .env("PATH", SEARCH_PATH)
        .envs(about.iter().map(|(name, value)| (name, value)))
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(writer.try_clone().map_err(failed)?)
        .stderr(writer);
    let mut child = command.spawn().map_err(|error| format!("cannot be started: {error}"))?;
    // The command has this process's end of the pipe.
    drop(command);
    let in_time = await_end(&child, &mut reader, output, end);
    // The number belongs to the program until somebody has waited for its end.
    if let Some(group) = Pid::from_raw(child.id().cast_signed()) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let status = child.wait().map_err(failed)?;
    // A process that has left the group may write for ever, so only the present output is read.
    for _ in 0..4 {
        output.take(&mut reader);
    }
    match in_time {
        Ok(true) if status.success() => Ok(()),
        Ok(true) => Err(status.to_string()),
        Ok(false) => Err(format!("killed, since it did not end within {} s", limit.as_secs())),
        Err(errno) => Err(format!("killed, since nobody could wait for it: {errno}")),
    }
}

/// Reads the output until the program ends. False if it does not end in time.
fn await_end(
    child: &Child,
    reader: &mut PipeReader,
    output: &mut Output,
    end: Instant,
) -> Result<bool, Errno> {
    let pid = Pid::from_raw(child.id().cast_signed()).ok_or(Errno::SRCH)?;
    let ended = pidfd_open(pid, PidfdFlags::empty())?;
    let mut is_open = true;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        let left = Timespec::try_from(left).map_err(|_| Errno::INVAL)?;
        let reads = if is_open { PollFlags::IN } else { PollFlags::empty() };
        let mut fds = [PollFd::new(&ended, PollFlags::IN), PollFd::new(&*reader, reads)];
        match poll(&mut fds, Some(&left)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        let [has_ended, has_output] = fds.map(|fd| !fd.revents().is_empty());
        if has_ended {
            return Ok(true);
        }
        if has_output && is_open {
            is_open = output.take(reader);
        } else if has_output {
            // The kernel reports a pipe without writers even if no event is requested.
            let pause = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
            let _ = poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&pause));
        }
    }
}

/// weir's connection to the runner.
#[derive(Debug)]
pub struct Programs {
    socket: OwnedFd,
    told: Mutex<BTreeMap<PortName, u64>>,
    /// The last failure of each port: the event, the reason, and the time.
    failures: Mutex<BTreeMap<PortName, (bool, String, Instant)>>,
    watch: Mutex<Option<(mpsc::Sender<()>, JoinHandle<()>)>>,
    _process: Child,
}

impl Programs {
    /// Starts the runner if a port of this configuration has a program.
    ///
    /// # Errors
    /// The process cannot be started.
    pub fn start(config: &Config) -> io::Result<Option<Self>> {
        let tasks = Tasks::of(config);
        if tasks.is_empty() {
            return Ok(None);
        }
        let (socket, process) = wire::start(wire::OWN, NAME, &[ARGUMENT])?;
        wire::send(socket.as_fd(), &Told::Begin(tasks), None)?;
        let (told, failures, watch) = Default::default();
        Ok(Some(Self { socket, told, failures, watch, _process: process }))
    }

    /// Tells the runner that another weir has run programs for these ports.
    pub(crate) fn before(&self, ports: &BTreeSet<PortName>, now: &BTreeMap<PortName, u64>) {
        // A port that is gone by now has gone down since.
        let all =
            ports.iter().map(|port| (port.clone(), Some(now.get(port).copied().unwrap_or(0))));
        let all: Vec<_> = all.collect();
        self.tell(all, Told::Before);
    }

    /// Calls `look` at intervals, until [`end`](Self::end) or until it returns false.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn watch(&self, mut look: impl FnMut() -> bool + Send + 'static) -> io::Result<()> {
        let (stop, stopped) = mpsc::channel::<()>();
        let every = Duration::from_nanos(EVENTS_LOOK_NS);
        let run = move || {
            while let Err(mpsc::RecvTimeoutError::Timeout) = stopped.recv_timeout(every) {
                if !look() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("weir-programs".into()).spawn(run)?;
        *lock(&self.watch) = Some((stop, thread));
        Ok(())
    }

    /// Tells of the ports that have come up or gone down since the last call; true if there are any. Takes the runner's
    /// messages.
    pub(crate) fn tell_changes(&self, now: &BTreeMap<PortName, u64>) -> bool {
        self.hear();
        let told = lock(&self.told).clone();
        let up = now.iter().filter(|(port, session)| told.get(*port) != Some(*session));
        let up = up.map(|(port, session)| (port.clone(), Some(*session)));
        let down =
            told.keys().filter(|port| !now.contains_key(*port)).map(|port| (port.clone(), None));
        let changes: Vec<_> = up.chain(down).collect();
        let any = !changes.is_empty();
        self.tell(changes, Told::Now);
        any
    }

    /// Tells the runner, without waiting. Changes for which the socket has no room are sent at the
    /// next look.
    fn tell(
        &self,
        ports: Vec<(PortName, Option<u64>)>,
        as_told: fn(Vec<(PortName, Option<u64>)>) -> Told,
    ) {
        for ports in ports.chunks(PROGRAM_PORTS_TOGETHER_MAX) {
            if wire::send_at_once(self.socket.as_fd(), &as_told(ports.to_vec())).is_err() {
                return;
            }
            let mut told = lock(&self.told);
            for (port, session) in ports {
                match session {
                    Some(session) => told.insert(port.clone(), *session),
                    None => told.remove(port),
                };
            }
        }
    }

    fn hear(&self) {
        while is_readable(&self.socket, Duration::ZERO) {
            let Ok(Some((Ran { port, up, failure }, _))) = wire::receive(self.socket.as_fd())
            else {
                return;
            };
            let mut failures = lock(&self.failures);
            match failure {
                Some(reason) => _ = failures.insert(port, (up, reason, Instant::now())),
                None if failures.get(&port).is_some_and(|(event, ..)| *event == up) => {
                    failures.remove(&port);
                }
                None => {}
            }
            while failures.len() > PORTS_MAX {
                failures.pop_first();
            }
        }
    }

    /// The ports for which `on_up` has run, or is about to run.
    pub(crate) fn up(&self) -> BTreeSet<PortName> {
        lock(&self.told).keys().cloned().collect()
    }

    /// The programs that failed when they ran last.
    pub(crate) fn failures(&self) -> BTreeMap<PortName, String> {
        let failures = lock(&self.failures);
        let shown = failures.iter().map(|(port, (up, reason, since))| {
            let (event, seconds) = (word(*up), since.elapsed().as_secs());
            (port.clone(), format!("on_{event}, {seconds} s ago: {reason}"))
        });
        shown.collect()
    }

    /// Reports that all ports go down, because weir ends. The programs for them may take a moment.
    pub(crate) fn end(self: &Arc<Self>) -> LastPrograms {
        let watch = lock(&self.watch).take();
        if let Some((stop, thread)) = watch {
            drop(stop);
            let _ = thread.join();
        }
        let _ = wire::send_at_once(self.socket.as_fd(), &Told::End);
        let end = Instant::now() + Duration::from_nanos(PROGRAMS_AT_END_NS);
        LastPrograms(Some((Arc::clone(self), end)))
    }
}

/// The programs of ports that go down as weir ends. Dropping the value waits for them, a bounded time.
#[must_use]
#[derive(Debug, Default)]
pub struct LastPrograms(Option<(Arc<Programs>, Instant)>);

impl Drop for LastPrograms {
    fn drop(&mut self) {
        let Some((programs, end)) = self.0.take() else { return };
        let left = || end.saturating_duration_since(Instant::now());
        while is_readable(&programs.socket, left()) {
            if !matches!(wire::receive::<Ran>(programs.socket.as_fd()), Ok(Some(_))) {
                return;
            }
        }
    }
}

/// True if there is a message, or the other end is closed. Waits at most this time for it.
fn is_readable(socket: &OwnedFd, at_most: Duration) -> bool {
    let mut fds = [PollFd::new(socket, PollFlags::IN)];
    let at_most = Timespec::try_from(at_most).ok();
    at_most.is_some_and(|at_most| poll(&mut fds, Some(&at_most)).is_ok_and(|ready| ready > 0))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A script as a program.
    fn script(dir: &Path, lines: &str) -> Program {
        let path = dir.join("program");
        fs::write(&path, format!("#!/bin/sh\n{lines}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        vec![path.display().to_string(), "a b".into(), "$(reboot)".into()].try_into().unwrap()
    }

    fn run_for(lines: &str, limit_ms: u64) -> (Result<(), String>, Output) {
        let dir = tempfile::tempdir().unwrap();
        let mut output = Output::default();
        let about = [("WEIR_EVENT", "up".to_owned()), ("WEIR_VIF", "web0".to_owned())];
        let program = script(dir.path(), lines);
        let limit = Duration::from_millis(limit_ms);
        (run(&program, &about, &mut output, limit), output)
    }

    #[test]
    fn a_program_gets_its_arguments_as_they_are_and_an_environment_of_its_own() {
        let (ended, output) =
            run_for("echo \"$1|$2|$#\"; pwd; env; read x || echo no input", 60_000);
        assert_eq!(ended, Ok(()));
        let said = String::from_utf8(output.kept).unwrap();
        let mut lines: Vec<_> = said.lines().collect();
        assert_eq!(lines[..2], ["a b|$(reboot)|2", "/"]);
        assert_eq!(lines.pop(), Some("no input"));
        // The shell sets the last two itself.
        let names: BTreeSet<_> =
            lines[2..].iter().map(|line| line.split('=').next().unwrap()).collect();
        let given: BTreeSet<_> = ["PATH", "WEIR_EVENT", "WEIR_VIF"].into();
        assert!(names.is_superset(&given), "{said}");
        assert!(
            names.difference(&given).all(|name| ["PWD", "_", "OLDPWD"].contains(name)),
            "{said}"
        );
    }

    #[test]
    fn a_program_that_fails_is_said_with_its_status_and_its_words() {
        let (ended, output) = run_for("echo first; echo second >&2; exit 3", 60_000);
        assert!(ended.unwrap_err().contains("exit status: 3"));
        assert_eq!(output.shown().as_deref(), Some("first / second"));
    }

    #[test]
    fn a_program_that_hangs_is_killed_with_the_children_that_it_has_made() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("child");
        let lines = format!("exec >&-; sleep 600 & echo $! >{}; sleep 600", file.display());
        let (ended, _) = run_for(&lines, 1_000);
        assert!(ended.unwrap_err().starts_with("killed, since it did not end"));
        is_killed(&file);
    }

    #[test]
    fn a_child_that_outlives_its_program_ends_with_it_and_keeps_nobody_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("child");
        // The child has the pipe.
        let lines = format!("sleep 600 & echo $! >{}; echo done", file.display());
        let (ended, output) = run_for(&lines, 300_000);
        assert_eq!((ended, output.shown().as_deref()), (Ok(()), Some("done")));
        is_killed(&file);
    }

    /// Waits until the process in `file` has been killed. Its parent is gone, and nobody may wait for it here.
    fn is_killed(file: &Path) {
        let pid: u32 = fs::read_to_string(file).unwrap().trim().parse().unwrap();
        weir_testing::soon("the child is killed", || {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.is_empty() || stat.contains(") Z ")
        });
    }

    #[test]
    fn a_flood_of_output_is_read_and_dropped_but_for_its_beginning() {
        let (ended, output) = run_for("head -c 3000000 /dev/zero | tr '\\0' x; exit 1", 300_000);
        assert!(ended.is_err());
        assert_eq!(output.kept.len(), PROGRAM_OUTPUT_BYTES_MAX);
        assert!(output.shown().unwrap().contains("xxx (and "));
        // A program that would not end by itself is ended in time, too.
        let (ended, output) = run_for("exec yes", 500);
        assert!(ended.unwrap_err().starts_with("killed"));
        assert!(output.dropped > 0 && output.kept.len() == PROGRAM_OUTPUT_BYTES_MAX);
    }

    #[test]
    fn a_file_that_is_missing_or_that_others_can_change_is_not_started() {
        let dir = tempfile::tempdir().unwrap();
        let program = script(dir.path(), "touch ran");
        let (path, real) = (program.path(), dir.path().canonicalize().unwrap().join("program"));
        let says = |path: &Path| check(path).unwrap_err().what;
        let set = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap()
        };
        assert_eq!(check(path).unwrap(), real);
        assert!(says(&dir.path().join("none")).contains("No such file"));
        for (mode, expected) in
            [(0o644, "is no program"), (0o757, "others may write"), (0o775, "others may write")]
        {
            set(path, mode);
            assert!(says(path).contains(expected), "{mode:o}: {}", says(path));
        }
        set(path, 0o755);
        // In a directory that everybody may write, anybody can replace the file.
        set(dir.path(), 0o777);
        assert!(says(path).contains("others may write in"), "{}", says(path));
        let mut output = Output::default();
        let refused = run(&program, &[], &mut output, LIMIT).unwrap_err();
        assert!(refused.contains("others may write in"), "{refused}");
        set(dir.path(), 0o755);
        assert!(check(path).is_ok());
    }

    fn ports(of: &[(&str, Option<u64>)]) -> Ports {
        let mut ports = Ports::default();
        of.iter().for_each(|(name, now)| ports.tell(name.parse().unwrap(), *now, false));
        ports
    }

    #[test]
    fn one_program_at_a_time_runs_for_a_port_and_only_its_last_state_counts() {
        let (tasks, web0) = (Tasks::default(), "web0".parse::<PortName>().unwrap());
        let mut it = ports(&[("web0", Some(1))]);
        let now = Instant::now();
        assert_eq!(it.next(&tasks, now), Ok((web0.clone(), true)));
        it.begin(&web0, true);
        // The port goes down and comes up a hundred times while its program runs.
        (2..100).for_each(|session| it.tell(web0.clone(), Some(session), false));
        assert_eq!(it.next(&tasks, now), Err(None), "its program runs");
        assert!(!it.done(&web0, true, Some(now), false));
        let pause = Duration::from_nanos(PROGRAM_PAUSE_NS);
        assert_eq!(it.next(&tasks, now), Err(Some(now + pause)));
        assert_eq!(it.next(&tasks, now + pause), Ok((web0.clone(), false)));
        it.begin(&web0, false);
        it.done(&web0, false, Some(now + pause), false);
        assert_eq!(it.next(&tasks, now + 2 * pause), Ok((web0.clone(), true)));
        it.begin(&web0, true);
        it.done(&web0, true, Some(now), false);
        assert_eq!(it.next(&tasks, now + 9 * pause), Err(None));
    }

    #[test]
    fn what_was_up_before_is_told_no_more_and_at_the_end_uplinks_go_first() {
        let (web0, lan) = ("web0".parse::<PortName>().unwrap(), "lan".parse::<PortName>().unwrap());
        let uplinks = [(lan.clone(), (None, Pair::default()))].into();
        let tasks = Tasks { uplinks, ..Tasks::default() };
        let mut it = ports(&[]);
        it.tell(web0.clone(), Some(3), true);
        it.tell(lan.clone(), Some(0), true);
        assert_eq!(it.next(&tasks, Instant::now()), Err(None));
        it.end();
        let now = Instant::now();
        assert_eq!(it.next(&tasks, now), Ok((lan.clone(), false)));
        it.begin(&lan, false);
        assert_eq!(it.next(&tasks, now), Ok((web0.clone(), false)));
        it.begin(&web0, false);
        assert!(!it.is_done(), "programs run");
        it.done(&lan, false, Some(now), false);
        assert!(it.done(&web0, false, Some(now), true), "a failure is told");
        assert!(it.is_done());
    }
}
