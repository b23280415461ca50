//! `--sandbox` and `--no-sandbox`.

use clap::{Args, ValueEnum};
use weir_switch::sandbox::SandboxMode;

/// `--sandbox`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Sandbox {
    /// The kernel ends weir at a system call that is not allowed
    #[default]
    On,
    /// The kernel logs such a call, and files stay unrestricted: use it to find out why weir ends
    Log,
    /// weir keeps every privilege that it is started with
    Off,
}

/// `--sandbox` and `--no-sandbox`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Args)]
pub struct SandboxArgs {
    /// Whether weir gives up the privileges that serving guests does not need
    #[arg(long, value_name = "MODE", value_enum, default_value_t)]
    pub sandbox: Sandbox,
    /// Same as --sandbox=off: a guest that breaks into weir gets every privilege that weir has
    #[arg(long, conflicts_with = "sandbox")]
    pub no_sandbox: bool,
}

impl SandboxArgs {
    /// The mode that both options give.
    pub fn mode(&self) -> SandboxMode {
        match self.sandbox {
            _ if self.no_sandbox => SandboxMode::Off,
            Sandbox::On => SandboxMode::On,
            Sandbox::Log => SandboxMode::Log,
            Sandbox::Off => SandboxMode::Off,
        }
    }
}
