//! Compilation of filter expressions outside this process: `docs/design/filters.md#0050`.
//!
//! ```text
//!  weir                      weir-compiler (starts)        weir-compile (libpcap)
//!    | start, or kill ------------->| ----------------------->|
//!    |<------------- its socket ----|                         | limits, sandbox
//!    | expression ------------------------------------------->|
//!    |<------------------------------ program, or words ------|
//! ```
//!
//! | file | content |
//! |---|---|
//! | `serve.rs` | both processes |

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Child;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rustix::net::{RecvFlags, SendFlags, recv, send};
use serde::{Deserialize, Serialize};
use weir_engine::lock;
use weir_filter::{CompileError, Instruction};
use weir_foreign::reach;
use weir_limits::{FILTER_ANSWER_LEN_MAX, FILTER_COMPILE_SECS, FILTER_COMPILER_MIB};

use crate::helper::wire;
use crate::sandbox::SandboxMode;

mod serve;

pub use serve::run_if_asked;

/// The first argument of the process that starts compilers for weir. Its weir is on standard input.
const STARTER: &str = "starter-of-compilers";
/// The first argument of a process that compiles. The sandbox's mode follows.
const COMPILER: &str = "compiler-of-expressions";
/// The first byte of an answer: the compiler is ready, a program follows, or an error text follows.
const READY: u8 = b'r';
const PROGRAM: u8 = b'p';
const WORDS: u8 = b'w';
/// The time limit for a process to become ready, which is long because the machine may be busy.
const START_PATIENCE: Duration = Duration::from_secs(20);

/// A request of weir to the starter.
#[derive(Debug, Serialize, Deserialize)]
enum Request {
    /// Starts a compiler in place of the present one. The compiler's socket comes with the answer.
    Start,
    /// Kills the compiler.
    Kill,
}

#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Done,
    Failed { message: String },
}

/// The processes that compile for this one. Dropping the value ends them.
#[derive(Debug)]
pub struct Compiler {
    /// The next caller waits here, so that busy callers do not starve the others.
    next: Mutex<()>,
    processes: Mutex<Processes>,
    /// The socket of the present compiler, so that [`Ending`] can shut it down.
    waits_for: Arc<Mutex<WaitsFor>>,
}

/// The compiler that weir waits for, unless weir is ending.
#[derive(Debug, Default)]
struct WaitsFor {
    socket: Option<Arc<OwnedFd>>,
    ends: bool,
}

/// Ends all compilations of a process's expressions.
#[derive(Debug, Clone)]
pub struct Ending(Arc<Mutex<WaitsFor>>);

impl Ending {
    /// From now on no expression is compiled. Callers that wait for one are refused at once.
    pub fn begin(&self) {
        let mut waits_for = lock(&self.0);
        waits_for.ends = true;
        if let Some(socket) = waits_for.socket.take() {
            let _ = rustix::net::shutdown(&*socket, rustix::net::Shutdown::Both);
        }
    }
}

#[derive(Debug)]
struct Processes {
    starter: OwnedFd,
    _starter: Child,
    /// The socket of the present compiler, if there is one.
    compiler: Option<Arc<OwnedFd>>,
    waits_for: Arc<Mutex<WaitsFor>>,
}

/// The reason why there is no program.
enum Failed {
    /// The process has ended.
    Gone,
    /// The process took too long and was killed.
    Late,
}

impl Compiler {
    /// Starts the processes with this process's present rights. The compiler gives them up.
    ///
    /// # Errors
    /// The starter cannot be started.
    pub fn start(mode: SandboxMode) -> io::Result<Self> {
        let arguments = [STARTER, mode.as_str()];
        let (starter, _starter) = wire::start(wire::OWN, "weir-compiler", &arguments)?;
        let waits_for = Arc::default();
        let compiler = None;
        let processes =
            Processes { starter, _starter, compiler, waits_for: Arc::clone(&waits_for) };
        Ok(Self { next: Mutex::default(), processes: Mutex::new(processes), waits_for })
    }

    /// Starts the processes, and has them compile all expressions of this process.
    ///
    /// # Errors
    /// The starter cannot be started.
    pub fn serve_this_process(mode: SandboxMode) -> io::Result<Ending> {
        let compiler = Self::start(mode)?;
        let ending = Ending(Arc::clone(&compiler.waits_for));
        weir_filter::compile_by(compiler);
        Ok(ending)
    }

    fn processes(&self) -> MutexGuard<'_, Processes> {
        let _next = lock(&self.next);
        lock(&self.processes)
    }
}

impl weir_filter::Compiler for Compiler {
    fn instructions(&self, expression: &str) -> Result<Vec<Instruction>, CompileError> {
        let mut processes = self.processes();
        // If the administrator or the kernel ended the compiler between two expressions, it is replaced once.
        let was_there = processes.compiler.is_some();
        match processes.compile(expression)? {
            Err(Failed::Gone) if was_there => processes.compile(expression)?,
            compiled => compiled,
        }
        .map_err(|failed| match failed {
            Failed::Gone => CompileError::Ended { mib: FILTER_COMPILER_MIB },
            Failed::Late => CompileError::TooDear { seconds: FILTER_COMPILE_SECS },
        })
    }
}

impl Processes {
    /// Compiles an expression. After a failure there is no compiler.
    fn compile(&mut self, text: &str) -> Result<Result<Vec<Instruction>, Failed>, CompileError> {
        let socket = match self.compiler.take() {
            Some(socket) => socket,
            None => Arc::new(self.start().map_err(CompileError::NoCompiler)?),
        };
        self.wait_for(Some(Arc::clone(&socket)))?;
        let patience = Duration::from_secs(FILTER_COMPILE_SECS);
        let answer = tell(&socket, text.as_bytes()).and_then(|()| hear(&socket, patience));
        self.wait_for(None)?;
        let (kind, body) = match answer.as_deref().map(<[u8]>::split_first) {
            Ok(Some((kind, body))) => (*kind, body),
            ended => {
                let _ = self.ask(&Request::Kill);
                let is_late = ended.is_err_and(|error| error.kind() == io::ErrorKind::TimedOut);
                return Ok(Err(if is_late { Failed::Late } else { Failed::Gone }));
            }
        };
        self.compiler = Some(socket);
        match (kind, body.as_chunks()) {
            (PROGRAM, (instructions, [])) => {
                Ok(Ok(instructions.iter().copied().map(Instruction::from_bytes).collect()))
            }
            (WORDS, _) => Err(CompileError::Expression(String::from_utf8_lossy(body).into_owned())),
            _ => Err(CompileError::NoCompiler("weir's compiler says what is no program".into())),
        }
    }

    fn wait_for(&self, socket: Option<Arc<OwnedFd>>) -> Result<(), CompileError> {
        let mut waits_for = lock(&self.waits_for);
        if waits_for.ends {
            return Err(CompileError::NoCompiler("weir is ending".into()));
        }
        waits_for.socket = socket;
        Ok(())
    }

    fn start(&mut self) -> Result<OwnedFd, String> {
        let socket = self.ask(&Request::Start)?.ok_or("weir's compiler has no socket")?;
        let hear = hear(&socket, START_PATIENCE);
        let heard = hear.map_err(|error| format!("weir's compiler does not answer: {error}"))?;
        match heard.split_first() {
            Some((&READY, _)) => Ok(socket),
            Some((_, words)) => Err(String::from_utf8_lossy(words).into_owned()),
            None => Err("weir's compiler ended as it began".into()),
        }
    }

    fn ask(&self, request: &Request) -> Result<Option<OwnedFd>, String> {
        let asked = wire::send(self.starter.as_fd(), request, None).and_then(|()| {
            reach::await_readable(self.starter.as_fd(), START_PATIENCE)?;
            wire::receive(self.starter.as_fd())
        });
        match asked {
            Ok(Some((Answer::Done, socket))) => Ok(socket),
            Ok(Some((Answer::Failed { message }, _))) => Err(message),
            Ok(None) => Err("weir-compiler has ended; start weir again".into()),
            Err(error) => Err(format!("weir-compiler does not answer: {error}; start weir again")),
        }
    }
}

/// Sends one packet. A closed other end raises no signal.
fn tell(socket: &OwnedFd, bytes: &[u8]) -> io::Result<()> {
    rustix::io::retry_on_intr(|| send(socket, bytes, SendFlags::NOSIGNAL))?;
    Ok(())
}

/// Receives one packet, which is empty if the other end is closed.
fn hear(socket: &OwnedFd, patience: Duration) -> io::Result<Vec<u8>> {
    reach::await_readable(socket.as_fd(), patience)?;
    let mut bytes = vec![0; FILTER_ANSWER_LEN_MAX];
    let (len, _) = rustix::io::retry_on_intr(|| recv(socket, &mut bytes[..], RecvFlags::empty()))?;
    bytes.truncate(len);
    Ok(bytes)
}
