//! The processes' side: one starts and kills compilers, the other compiles and may do nothing else.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

use rustix::net::{RecvFlags, recv};
use rustix::process::{Resource, Rlimit, setrlimit};
use weir_filter::{CompileError, Instruction, compile_here};
use weir_limits::{FILTER_ANSWER_LEN_MAX, FILTER_COMPILER_MIB, FILTER_EXPRESSION_LEN_MAX};
use weir_sandbox::{Enforcement, Identity, Plan, Profile};

use super::{Answer, COMPILER, PROGRAM, READY, Request, STARTER, WORDS, tell};
use crate::helper::wire;
use crate::sandbox::SandboxMode;

/// Files with names of services, protocols and hosts. The compiler cannot ask a name server, because it may not open
/// a socket.
const READABLE: [&str; 6] = [
    "/etc/services",
    "/etc/protocols",
    "/etc/nsswitch.conf",
    "/etc/hosts",
    "/etc/ethers",
    "/etc/networks",
];

/// Serves if this process was started as a starter or a compiler, and returns the exit code. A program that has
/// expressions compiled calls this first.
pub fn run_if_asked() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    let asked = arguments.next()?;
    let is = |name: &str| asked == OsStr::new(name);
    if !is(STARTER) && !is(COMPILER) {
        return None;
    }
    let mode = arguments.next().and_then(|mode| SandboxMode::named(mode.to_str()?));
    let socket = rustix::stdio::stdin().try_clone_to_owned().ok();
    Some(match (socket, mode) {
        (Some(socket), Some(mode)) if is(STARTER) => start_for(&socket, mode),
        (Some(socket), Some(mode)) => compile_for(&socket, mode),
        _ => ExitCode::FAILURE,
    })
}

/// Starts compilers until the weir at the other end has ended.
fn start_for(socket: &OwnedFd, mode: SandboxMode) -> ExitCode {
    let _ = rustix::thread::set_name(c"weir-compiler");
    crate::leave_signals_to_weir();
    let mut started: Option<Child> = None;
    while let Ok(Some((request, _))) = wire::receive::<Request>(socket.as_fd()) {
        kill(started.take());
        let (answer, given) = match request {
            Request::Kill => (Answer::Done, None),
            Request::Start => match start(mode) {
                Ok((child, given)) => {
                    started = Some(child);
                    (Answer::Done, Some(given))
                }
                Err(error) => {
                    let message = format!("weir's compiler cannot be started: {error}");
                    (Answer::Failed { message }, None)
                }
            },
        };
        if wire::send(socket.as_fd(), &answer, given.as_ref().map(AsFd::as_fd)).is_err() {
            break;
        }
    }
    kill(started);
    ExitCode::SUCCESS
}

fn kill(child: Option<Child>) {
    if let Some(mut child) = child {
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn start(mode: SandboxMode) -> std::io::Result<(Child, OwnedFd)> {
    let (ours, theirs) = wire::pair()?;
    let child = Command::new(wire::OWN)
        .arg0("weir-compile")
        .args([COMPILER, mode.as_str()])
        .process_group(0)
        .env_clear()
        .stdin(Stdio::from(theirs))
        .spawn()?;
    Ok((child, ours))
}

/// Compiles until the weir at the other end or the process that started this one has ended.
fn compile_for(socket: &OwnedFd, mode: SandboxMode) -> ExitCode {
    let _ = rustix::thread::set_name(c"weir-compile");
    if let Err(words) = confine(mode) {
        let _ = tell(socket, &[&[WORDS], words.as_bytes()].concat());
        return ExitCode::FAILURE;
    }
    let mut expression = [0; FILTER_EXPRESSION_LEN_MAX];
    let mut answer = vec![READY];
    while tell(socket, &answer).is_ok() {
        let received = recv(socket, &mut expression[..], RecvFlags::empty());
        let Ok((len @ 1.., _)) = received else { break };
        let text = expression.get(..len).map(str::from_utf8);
        answer = match text {
            Some(Ok(text)) => answer_of(compile_here(text)),
            _ => [&[WORDS], &b"it is no text"[..]].concat(),
        };
    }
    ExitCode::SUCCESS
}

fn answer_of(compiled: Result<Vec<Instruction>, CompileError>) -> Vec<u8> {
    let mut answer = match compiled {
        Ok(instructions) => {
            let bytes = instructions.into_iter().flat_map(Instruction::to_bytes);
            std::iter::once(PROGRAM).chain(bytes).collect()
        }
        Err(error) => [&[WORDS], error.to_string().as_bytes()].concat(),
    };
    if answer.len() > FILTER_ANSWER_LEN_MAX {
        answer = [&[WORDS], &b"its program is too long"[..]].concat();
    }
    answer
}

/// Gives up every right that compiling does not need.
fn confine(mode: SandboxMode) -> Result<(), String> {
    let failed = |error: &dyn std::error::Error| format!("weir's compiler: {error}");
    let limits =
        [(Resource::As, FILTER_COMPILER_MIB << 20), (Resource::Core, 0), (Resource::Fsize, 0)];
    for (resource, most) in limits {
        let limit = Rlimit { current: Some(most), maximum: Some(most) };
        setrlimit(resource, limit).map_err(|error| failed(&error))?;
    }
    let enforcement = match mode {
        SandboxMode::Off => return Ok(()),
        SandboxMode::On => Enforcement::Kill,
        SandboxMode::Log => Enforcement::Log,
    };
    let is_root = rustix::process::geteuid().is_root();
    let identity = is_root.then(Identity::nobodys).transpose().map_err(|error| failed(&error))?;
    let readable = READABLE.map(Path::new);
    let (readable, profile) = (&readable[..], Profile::Compiler);
    let plan = Plan { identity, readable, writable: &[], profile, enforcement };
    weir_sandbox::confine(&plan).map(drop).map_err(|error| {
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
        format!("{}{}", failed(&error), cause.unwrap_or_default())
    })
}
