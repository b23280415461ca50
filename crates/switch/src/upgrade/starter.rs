//! The starter, which starts weir again: a confined weir cannot make a process, and has no privileges to give to one.
//!
//! The starter is a separate process, made before weir is confined. It starts the program as which weir was started,
//! with weir's arguments, and nothing else. An attacker who controls weir can have that done again, one weir at a
//! time.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_limits::{UPGRADE_PREPARE_NS, UPGRADE_TAKE_NS};

use super::{FLAG, FromNew, FromOld, receive_within};
use crate::helper::wire;

/// The first argument of a program that is to be a starter. Its weir is on standard input.
const ARGUMENT: &str = "starter-of-a-weir";

/// The program to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Which {
    /// The program that is installed now.
    New,
    /// The program that runs, even if its file was removed.
    Old,
}

#[derive(Debug, Serialize, Deserialize)]
enum Request {
    /// Starts weir; its end of a socket comes with the answer.
    Start(Which),
    /// Kills the weir that was started last.
    Kill,
}

#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Started { process: u32 },
    Failed { message: String },
    Killed { how_it_ended: String },
}

/// Serves as a starter if this process was started as one, and returns the exit code. A program that has a starter
/// calls this first.
pub fn run_if_asked() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_none_or(|argument| argument != ARGUMENT) {
        return None;
    }
    let socket = rustix::stdio::stdin().try_clone_to_owned();
    Some(match (socket, arguments.next()) {
        (Ok(socket), Some(program)) => {
            serve(&socket, program.as_ref(), &arguments.collect::<Vec<_>>())
        }
        _ => ExitCode::FAILURE,
    })
}

/// Serves until the weir at the other end has ended. The weir that was started last keeps running.
fn serve(socket: &OwnedFd, program: &Path, arguments: &[OsString]) -> ExitCode {
    let _ = rustix::thread::set_name(c"weir-starter");
    crate::leave_signals_to_weir();
    let mut started: Option<Child> = None;
    while let Ok(Some((request, _))) = wire::receive::<Request>(socket.as_fd()) {
        let how_it_ended = started.take().map(kill).unwrap_or_default();
        let (answer, given) = match request {
            Request::Kill => (Answer::Killed { how_it_ended }, None),
            Request::Start(which) => match start(which, program, arguments) {
                Ok((child, given)) => {
                    let process = child.id();
                    started = Some(child);
                    (Answer::Started { process }, Some(given))
                }
                Err(error) => {
                    let message = format!("cannot start {}: {error}", program.display());
                    (Answer::Failed { message }, None)
                }
            },
        };
        if wire::send(socket.as_fd(), &answer, given.as_ref().map(AsFd::as_fd)).is_err() {
            break;
        }
    }
    ExitCode::SUCCESS
}

fn kill(mut child: Child) -> String {
    let _ = child.kill();
    child.wait().map_or_else(|error| error.to_string(), |status| status.to_string())
}

fn start(which: Which, program: &Path, arguments: &[OsString]) -> io::Result<(Child, OwnedFd)> {
    let (ours, theirs) = wire::pair()?;
    let program = if which == Which::New { program } else { Path::new(wire::OWN) };
    let child = Command::new(program)
        .args(arguments)
        .arg(FLAG)
        // The variable holds the number of the process that the service manager started.
        .env_remove("WATCHDOG_PID")
        .stdin(Stdio::from(theirs))
        .spawn()?;
    Ok((child, ours))
}

/// weir's connection to the starter. Dropping it ends the starter.
#[derive(Debug)]
pub struct Starter {
    socket: Mutex<OwnedFd>,
    _process: Child,
}

impl Starter {
    /// Starts the starter, which starts this process's program again.
    ///
    /// # Errors
    /// The starter cannot be started.
    pub fn start() -> io::Result<Self> {
        let mut arguments = std::env::args_os();
        let program = program(arguments.next().as_deref().map(Path::new))?;
        let (ours, theirs) = wire::pair()?;
        let process = Command::new(wire::OWN)
            .arg0("weir-starter")
            .arg(ARGUMENT)
            .arg(program)
            .args(arguments.filter(|argument| argument != FLAG))
            // A terminal's Ctrl-C is meant for weir.
            .process_group(0)
            .stdin(Stdio::from(theirs))
            .spawn()?;
        Ok(Self { socket: Mutex::new(ours), _process: process })
    }

    /// Starts the next weir.
    pub(crate) fn start_weir(&self, which: Which) -> Result<Next, NotUp> {
        match self.ask(&Request::Start(which)).map_err(NotUp::of)? {
            (Answer::Started { process }, Some(socket)) => Ok(Next { socket, process }),
            (Answer::Failed { message }, _) => Err(NotUp::of(message)),
            (answer, _) => Err(NotUp::of(format!("weir's starter has answered {answer:?}"))),
        }
    }

    /// Kills the weir that was started last; returns its exit status.
    pub(crate) fn kill(&self) -> String {
        match self.ask(&Request::Kill) {
            Ok((Answer::Killed { how_it_ended }, _)) => how_it_ended,
            Ok((answer, _)) => format!("weir's starter has answered {answer:?}"),
            Err(message) => message,
        }
    }

    fn ask(&self, request: &Request) -> Result<(Answer, Option<OwnedFd>), String> {
        let socket = self.socket.lock().unwrap_or_else(|e| e.into_inner());
        let answer = wire::send(socket.as_fd(), request, None)
            .and_then(|()| wire::receive(socket.as_fd()))
            .and_then(|answer| answer.ok_or_else(|| io::ErrorKind::UnexpectedEof.into()));
        answer.map_err(|error| format!("weir's starter does not answer: {error}"))
    }
}

/// The path of the program that was started. A package may have replaced the file since.
fn program(named: Option<&Path>) -> io::Result<PathBuf> {
    match named {
        Some(path) if path.components().count() > 1 => std::path::absolute(path),
        _ => std::env::current_exe(),
    }
}

/// The reason why the next weir does not serve.
#[derive(Debug)]
pub(crate) struct NotUp {
    /// The reason.
    pub(crate) message: String,
    /// The remedy.
    pub(crate) help: Option<String>,
    /// The next weir itself has reported the failure.
    has_said: bool,
}

impl NotUp {
    pub(crate) fn of(message: String) -> Self {
        Self { message, help: None, has_said: false }
    }

    /// The reason why the new weir does not run. If it has given none, the way in which it ended (`how_it_ended`) is
    /// added; otherwise it was killed because of its reason.
    pub(crate) fn why(&self, how_it_ended: &str) -> String {
        match self.has_said {
            true => self.message.clone(),
            false => format!("{} ({how_it_ended})", self.message),
        }
    }
}

/// A weir that is to replace this one.
#[derive(Debug)]
pub(crate) struct Next {
    socket: OwnedFd,
    /// The process's number.
    pub(crate) process: u32,
}

impl Next {
    /// Waits until the next weir is ready for this one to stop.
    pub(crate) fn await_prepared(&self) -> Result<(), NotUp> {
        match self.hear(UPGRADE_PREPARE_NS)? {
            FromNew::Prepared => Ok(()),
            said => Err(NotUp::of(format!("it says {said:?}"))),
        }
    }

    /// Reports that this weir has stopped, and waits until the next one serves.
    pub(crate) fn take_over(&self) -> Result<(), NotUp> {
        wire::send(self.socket.as_fd(), &FromOld::Go, None)
            .map_err(|error| NotUp::of(error.to_string()))?;
        match self.hear(UPGRADE_TAKE_NS)? {
            FromNew::Serves => Ok(()),
            said => Err(NotUp::of(format!("it says {said:?}"))),
        }
    }

    fn hear(&self, patience_ns: u64) -> Result<FromNew, NotUp> {
        let patience = Duration::from_nanos(patience_ns);
        match receive_within(self.socket.as_fd(), patience) {
            Ok(Some(FromNew::Refused { message, help })) => {
                Err(NotUp { message, help, has_said: true })
            }
            Ok(Some(said)) => Ok(said),
            Ok(None) => Err(NotUp::of("it has ended".into())),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                Err(NotUp::of(format!("it was not ready within {} s", patience.as_secs())))
            }
            Err(error) => Err(NotUp::of(error.to_string())),
        }
    }
}
