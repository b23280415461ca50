//! `weir-keeper`: its arguments, and the rights that it gives up.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use weir_sandbox::{Enforcement, Plan, Profile, SandboxError};

use crate::Server;

/// Keep the descriptors of a weir that may be killed, so that the next one goes on with its guests
///
/// weir is told of it by `keeper` of its configuration, or by `weir run --keeper`. Only root and the user that runs the keeper
/// are served, one weir at a time. What is kept is gone when the keeper ends; weir then fills the next one.
#[derive(Debug, Parser)]
#[command(name = "weir-keeper", version)]
pub struct Args {
    /// Where it listens, in a directory that is there
    #[arg(value_name = "SOCKET", default_value = "/run/weir/keeper.sock")]
    socket: PathBuf,
    /// Keep every privilege that it is started with
    #[arg(long)]
    no_sandbox: bool,
}

/// The program: serves until it is ended.
pub fn main() -> ExitCode {
    let args = Args::parse();
    let server = match Server::listen(&args.socket) {
        Ok(server) => server,
        Err(error) => {
            eprintln!(
                "weir-keeper: {error}; choose a SOCKET in a directory of this user, such as /run/weir/keeper.sock"
            );
            return ExitCode::FAILURE;
        }
    };
    // The message comes before the confinement, after which this process gets no socket any more.
    if let Err(error) = sd_notify::notify(&[sd_notify::NotifyState::Ready]) {
        eprintln!("weir-keeper: the service manager was not told that this serves: {error}");
    }
    if let Err(error) = confine(args.no_sandbox) {
        eprintln!("weir-keeper: {error}; where the kernel lacks what this takes, use --no-sandbox");
        return ExitCode::FAILURE;
    }
    eprintln!("weir-keeper: serves on {}", args.socket.display());
    server.run()
}

/// Confines the process: from now on it can open no file, and make no process.
fn confine(no_sandbox: bool) -> Result<(), SandboxError> {
    if no_sandbox {
        return Ok(());
    }
    let plan = Plan {
        identity: None,
        readable: &[],
        writable: &[],
        profile: Profile::Keeper,
        enforcement: Enforcement::Kill,
    };
    weir_sandbox::confine(&plan).map(drop)
}
