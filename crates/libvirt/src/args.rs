//! The command line of `weir libvirt`.

use std::ffi::OsString;

use clap::{Args, Subcommand};
use weir_config::PortName;

/// `weir libvirt`
#[derive(Debug, Subcommand)]
pub enum LibvirtCommand {
    /// Make or remove a domain's interfaces, as libvirt's hook for QEMU; the domain's XML is read from standard input
    #[command(after_help = LIBVIRT_HOOK_NOTES)]
    Hook(HookArgs),
    /// Give a domain an interface, or its interface other settings, from its next start on
    #[command(after_help = LIBVIRT_DEFINE_EXAMPLES)]
    Define(DefineArgs),
    /// Take an interface out of a domain, from its next start on
    Undefine(UndefineArgs),
    /// Say whether a domain would get its interfaces, and what is wrong if not
    Check(Virsh),
}

/// A domain, and the libvirt that has it.
#[derive(Debug, Args)]
pub struct Virsh {
    /// The domain
    #[arg(value_name = "DOMAIN")]
    pub domain: String,
    /// The libvirt that has it
    #[arg(long, value_name = "URI", default_value = "qemu:///system")]
    pub connect: String,
}

/// `weir libvirt define`
#[derive(Debug, Args)]
pub struct DefineArgs {
    /// The domain.
    #[command(flatten)]
    pub virsh: Virsh,
    /// The interface
    pub name: PortName,
    /// Its settings, as of `weir vif add`; those of before are gone
    #[arg(value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
}

/// `weir libvirt undefine`
#[derive(Debug, Args)]
pub struct UndefineArgs {
    /// The domain.
    #[command(flatten)]
    pub virsh: Virsh,
    /// The interface
    pub name: PortName,
}

const LIBVIRT_DEFINE_EXAMPLES: &str = "\
Examples:
  weir libvirt define web0 web0 vlan=10 rate=1Gbit
  weir libvirt define router lan trunk=[10,20] --connect qemu:///session

The domain gets shared memory, an <interface type='vhostuser'> on the socket NAME.sock, and a <vif> \
in its <metadata>. What it has already stays.";

/// `weir libvirt hook`
#[derive(Debug, Args)]
pub struct HookArgs {
    /// The domain
    #[arg(allow_hyphen_values = true)]
    pub domain: OsString,
    /// What happens to it
    #[arg(allow_hyphen_values = true)]
    pub operation: OsString,
    /// What else libvirt says
    #[arg(allow_hyphen_values = true, trailing_var_arg = true)]
    pub rest: Vec<OsString>,
}

const LIBVIRT_HOOK_NOTES: &str = "\
Operations:
  prepare    makes the interfaces that the domain's <metadata> names
  reconnect  makes those that are missing; never fails, since libvirt would end the domain
  release    removes all interfaces of the domain
Any other does nothing, and neither does a domain without weir's elements.

/etc/libvirt/hooks/qemu.d/weir calls it. docs/guide/libvirt.md has the elements.";
