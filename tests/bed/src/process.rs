//! Child processes that cannot outlive this process.

use std::{
    ffi::OsStr,
    fs::File,
    io::{BufRead, BufReader, Read, Write},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio},
    sync::mpsc::{self, Receiver},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{
    Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit, test_kill_process,
};

use crate::error::{Error, Result};

/// Interval at which [`wait_until`] asks.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The most that one turn of [`wait_until`] takes from its patience.
const TURN_MAX: Duration = Duration::from_secs(1);

/// Time between SIGTERM and SIGKILL for a process that does not end.
const TERM_PATIENCE: Duration = Duration::from_secs(5);

/// The place where a long-running process runs.
#[derive(Clone, Debug, Default)]
pub struct Placement {
    /// The network namespace. `None` is the caller's own.
    pub netns: Option<String>,
    /// A process ([`crate::fabric`]) whose network and mount namespaces are used. `None` is the caller's own.
    pub host: Option<u32>,
    /// The only CPU of the process. `None` is any CPU.
    pub cpu: Option<usize>,
    /// The file of the time namespace. `None` is the caller's own.
    pub clock: Option<PathBuf>,
    /// The root directory. `None` is the caller's own.
    pub root: Option<Root>,
}

/// Another system's root directory.
#[derive(Clone, Debug)]
pub struct Root {
    /// The directory.
    pub path: PathBuf,
    /// A directory of this system that has the same path in the root.
    pub shared: PathBuf,
}

/// Runs a command in a [`Root`]. In a root that is not a mount point, no program can change the
/// propagation of mounts.
const IN_ROOT: &str = r#"
    root=$0 shared=$1; shift
    mount --bind "$root" "$root"
    mount --rbind /dev "$root/dev"
    mount --rbind /sys "$root/sys"
    mount -t proc proc "$root/proc"
    mkdir -p "$root$shared"
    mount --bind "$shared" "$root$shared"
    exec chroot "$root" "$@""#;

/// A running program. It is ended when it is dropped or when its parent is killed.
pub struct Process {
    child: Child,
    /// The process that has replaced the child. It is not a child of this process.
    successor: Option<Pid>,
    command: String,
}

impl Process {
    /// Starts `argv` at `placement` with empty input. Both outputs are appended to the file `log`.
    pub fn start_logged(argv: &[&str], placement: &Placement, log: &Path) -> Result<Self> {
        let out =
            File::options().create(true).append(true).open(log).map_err(Error::io("open", log))?;
        let err = out.try_clone().map_err(Error::io("open", log))?;
        let mut command = tied(argv, placement);
        command.stdin(Stdio::null()).stdout(out).stderr(err);
        Self::spawn(command)
    }

    /// Starts `argv` at `placement` for a dialogue: lines in, lines out (errors included).
    pub fn start_dialogue(argv: &[&str], placement: &Placement) -> Result<(Self, Dialogue)> {
        let pipe_error = |source| Error::Io { what: "make a pipe".into(), source };
        let (reader, writer) = std::io::pipe().map_err(pipe_error)?;
        let stderr = writer.try_clone().map_err(pipe_error)?;
        let mut command = tied(argv, placement);
        command.stdin(Stdio::piped()).stdout(OwnedFd::from(writer)).stderr(OwnedFd::from(stderr));
        let mut process = Self::spawn(command)?;
        let stdin =
            process.child.stdin.take().ok_or_else(|| Error::parse("a standard input", ""))?;
        Ok((process, Dialogue::over(reader, stdin)))
    }

    /// Starts `argv` at `placement` with pipes as its input and output. Errors are appended to the file `log`.
    pub fn start_piped(
        argv: &[&str],
        placement: &Placement,
        log: &Path,
    ) -> Result<(Self, ChildStdin, ChildStdout)> {
        let err =
            File::options().create(true).append(true).open(log).map_err(Error::io("open", log))?;
        let mut command = tied(argv, placement);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(err);
        let mut process = Self::spawn(command)?;
        match (process.child.stdin.take(), process.child.stdout.take()) {
            (Some(stdin), Some(stdout)) => Ok((process, stdin, stdout)),
            _ => Err(Error::parse("a pipe", "")),
        }
    }

    fn spawn(mut command: Command) -> Result<Self> {
        let text = text_of(&command);
        let child = command
            .spawn()
            .map_err(|source| Error::Io { what: format!("start `{text}`"), source })?;
        Ok(Self { child, successor: None, command: text })
    }

    /// The process id of the program itself: every wrapper in front of it uses `exec`.
    pub fn pid(&self) -> u32 {
        self.successor.map_or(self.child.id(), |pid| pid.as_raw_nonzero().get().unsigned_abs())
    }

    /// Another process has replaced this one or is about to. Waits until this one has ended.
    pub fn succeeded_by(&mut self, pid: u32) -> Result<()> {
        wait_until("the end of a process that another one replaces", TERM_PATIENCE, || {
            Ok(match self.successor {
                Some(before) => test_kill_process(before).is_err(),
                None => self.child_ended()?.is_some(),
            })
        })?;
        self.successor = Pid::from_raw(pid.cast_signed());
        Ok(())
    }

    /// The exit status, if the process has ended.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        match self.successor {
            Some(pid) if test_kill_process(pid).is_ok() => Ok(None),
            // The exit status of a successor is not known here.
            _ => self.child_ended(),
        }
    }

    fn child_ended(&mut self) -> Result<Option<ExitStatus>> {
        let what = &self.command;
        self.child
            .try_wait()
            .map_err(|source| Error::Io { what: format!("wait for `{what}`"), source })
    }

    /// Fails if the process has ended.
    pub fn check_alive(&mut self) -> Result<()> {
        match self.ended()? {
            None => Ok(()),
            Some(status) => Err(Error::Command {
                command: self.command.clone(),
                status: status.to_string(),
                output: String::from("(it was expected to go on running)"),
            }),
        }
    }

    /// Sends SIGTERM and waits for the end. Returns the status, or an error if SIGKILL was needed.
    pub fn terminate(mut self) -> Result<ExitStatus> {
        self.signal(Signal::TERM);
        let what = format!("the end of `{}` after SIGTERM", self.command);
        wait_until(&what, TERM_PATIENCE, || Ok(self.ended()?.is_some()))?;
        self.ended()?.ok_or_else(|| Error::parse("an exit status", ""))
    }

    /// Sends SIGKILL, as on a host that loses a VM.
    pub fn kill(mut self) {
        self.end_now();
    }

    /// Sends SIGSTOP, as on a suspended host. [`Process::go_on`] ends it.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
    }

    /// Sends SIGCONT.
    pub fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.pid().cast_signed()) {
            let _ = kill_process(pid, signal);
        }
    }

    /// Sends SIGKILL to a process that is to be replaced.
    pub(crate) fn end_now(&mut self) {
        if let Some(pid) = self.successor.take() {
            let _ = kill_process(pid, Signal::KILL);
            let gone = || Ok(test_kill_process(pid).is_err());
            let _ = wait_until("the end of a process", TERM_PATIENCE, gone);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end_now();
    }
}

/// The two ends of a dialogue with a [`Process`].
pub struct Dialogue {
    /// The process's input.
    pub stdin: Box<dyn Write + Send>,
    /// The process's output by line, without line ends. Closed when the process ends.
    pub lines: Receiver<String>,
}

impl Dialogue {
    /// A dialogue over other streams than a process's standard streams.
    pub fn over(reader: impl Read + Send + 'static, writer: impl Write + Send + 'static) -> Self {
        Self { stdin: Box::new(writer), lines: lines_of(reader) }
    }
}

fn lines_of(reader: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut reader = BufReader::new(reader);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            line.clear();
            if sender.send(text).is_err() {
                return;
            }
        }
    });
    receiver
}

/// The command for `argv` at `placement`. The kernel kills it when this process ends.
fn tied(argv: &[&str], placement: &Placement) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]);
    if let Some(cpu) = placement.cpu {
        command.args(["taskset", "-c", &cpu.to_string()]);
    }
    if let Some(netns) = &placement.netns {
        command.args(["ip", "netns", "exec", netns]);
    }
    if let Some(pid) = placement.host {
        command.args(["nsenter", "-t", &pid.to_string(), "--net", "--mount", "--"]);
    }
    if let Some(clock) = &placement.clock {
        command.arg("nsenter").arg(format!("--time={}", clock.display()));
    }
    if let Some(Root { path, shared }) = &placement.root {
        command.args(["unshare", "--mount", "sh", "-ec", IN_ROOT]).args([path, shared]);
    }
    command.args(argv);
    command
}

/// Runs `argv` to its end and returns its standard output; an error unless it succeeds.
pub fn run<S: AsRef<OsStr>>(argv: &[S]) -> Result<String> {
    run_in(argv, Path::new("."), &[])
}

/// Runs `argv` in the directory `dir` with `env` added to its environment.
pub fn run_in<S: AsRef<OsStr>>(argv: &[S], dir: &Path, env: &[(&str, &OsStr)]) -> Result<String> {
    let (program, rest) =
        argv.split_first().ok_or_else(|| Error::parse("a command", String::new()))?;
    let mut command = Command::new(program);
    command.args(rest).current_dir(dir).stdin(Stdio::null()).envs(env.iter().copied());
    output_of(command)
}

/// Runs a command to its end and returns its standard output; an error unless it succeeds.
pub fn output_of(mut command: Command) -> Result<String> {
    let text = text_of(&command);
    let output =
        command.output().map_err(|source| Error::Io { what: format!("run `{text}`"), source })?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(stdout);
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(Error::Command {
        command: text,
        status: output.status.to_string(),
        output: format!("{stdout}{stderr}"),
    })
}

/// Raises the limit of open descriptors to `count` for processes that are started from now on.
pub fn allow_descriptors(count: u64) -> Result<()> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // `None` is no limit.
    let wanted = Rlimit {
        current: current.map(|current| current.max(count)),
        maximum: maximum.map(|maximum| maximum.max(count)),
    };
    setrlimit(Resource::Nofile, wanted).map_err(|errno| Error::Io {
        what: format!("allow {count} open descriptors"),
        source: errno.into(),
    })
}

fn text_of(command: &Command) -> String {
    let words: Vec<_> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(OsStr::to_string_lossy)
        .collect();
    words.join(" ")
}

/// Calls `done` until it returns true; an error after `patience`, or as soon as `done` fails.
///
/// The part of a turn beyond a second does not count: the machine or this program was suspended.
pub fn wait_until(
    what: &str,
    patience: Duration,
    mut done: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let mut left = patience;
    loop {
        let start = Instant::now();
        if done()? {
            return Ok(());
        }
        if left.is_zero() {
            return Err(Error::Timeout { what: what.to_owned(), after: patience });
        }
        thread::sleep(POLL_INTERVAL);
        left = left.saturating_sub(start.elapsed().min(TURN_MAX));
    }
}
