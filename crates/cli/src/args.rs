//! The command line of `weir`: one definition gives parsing and help.

mod look;

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::LazyLock;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::{Arg, ArgAction, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use weir_config::{
    Config, FilterRule, GroupDefault, GroupRule, Key, PortName, SecurityGroup, Setting, SocketPath,
    TemplateName, ValueError, VifChanges, VifConfig,
};
use weir_doctor::bridging::UplinkCommand;
use weir_doctor::qemu::{MemorySize, QemuVersion};
use weir_libvirt::LibvirtCommand;

use crate::vm_args::Monitor;

pub use look::{CaptureArgs, DoctorArgs, Sandbox, SandboxArgs, TopArgs, TraceArgs};

/// A switch for virtual machines that turns each interface's latency budget into saved CPU
#[derive(Debug, Parser)]
#[command(name = "weir", version, subcommand_required = true, arg_required_else_help = true)]
#[command(after_help = EXAMPLES)]
pub struct Cli {
    /// Control socket of the running weir
    ///
    /// The default is /run/weir/control.sock for root, $XDG_RUNTIME_DIR/weir/control.sock for others.
    #[arg(long, global = true, value_name = "PATH", value_parser = absolute_socket)]
    pub control: Option<SocketPath>,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Examples:
  weir demo                                see it work; needs no VM and no root
  weir check weir.toml && weir run weir.toml
  qemu-system-x86_64 ... $(weir qemu-args web0)
  weir vif set web0 latency_budget=1ms
  weir stats --watch

Exit codes:
  0  done
  1  failed
  2  wrong command line
  3  the configuration has problems
  4  no weir is running on the control socket
  5  `weir doctor` has found something wrong
  6  `weir run` was told to end and could not end in order: its log says who kept it";

/// The commands by purpose, in the order of the help. [`Cli::parse_grouped`] prints them so.
const GROUPS: &[(&str, &[&str])] = &[
    ("See it work", &["demo", "bench", "lab"]),
    ("Serve", &["run", "check", "diff", "reload", "save", "upgrade"]),
    ("Plug in VMs", &["qemu-args", "libvirt", "vif", "filter", "group", "uplink"]),
    (
        "Look inside",
        &["status", "top", "stats", "addresses", "explain", "capture", "trace", "doctor"],
    ),
];

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Switch traffic between built-in guests and show live figures
    #[command(disable_help_flag = true)]
    Demo(Passed),
    /// Measure weir on this machine with built-in guests; needs no VM and no root
    #[command(disable_help_flag = true)]
    Bench(Passed),
    /// Run the papers' experiments in virtual time and compare the figures
    #[command(disable_help_flag = true)]
    Lab(Passed),
    /// Run the switch until SIGTERM or SIGINT; SIGHUP reloads the file
    Run(RunArgs),
    /// Check a configuration file and show every problem with its line
    Check(CheckArgs),
    /// Show how a configuration file differs from the running switch
    Diff(DiffArgs),
    /// Apply the changed configuration file to the running switch, under traffic
    Reload(ReloadArgs),
    /// Write what runs into the configuration file, whose comments and order stay
    Save(SaveArgs),
    /// Replace the running weir by the program that lies there now, under traffic
    #[command(after_help = UPGRADE_NOTES)]
    Upgrade,
    /// Print a VM's network arguments for QEMU, libvirt, Proxmox and others
    QemuArgs(QemuArgs),
    /// Plug in libvirt's domains by settings in their own XML
    #[command(subcommand)]
    Libvirt(LibvirtCommand),
    /// Add, change, remove, show or list interfaces of the running switch
    #[command(subcommand)]
    Vif(VifCommand),
    /// Set, list or clear the packet filters of an interface or uplink
    #[command(subcommand)]
    Filter(FilterCommand),
    /// Set, list or show security groups: which connections guests may open
    #[command(subcommand)]
    Group(GroupCommand),
    /// Join the host's card and weir's TAP by a bridge, with a way back
    #[command(subcommand)]
    Uplink(UplinkCommand),
    /// Watch rates, holds, drops and reasons of all interfaces, live
    Top(TopArgs),
    /// Show on one screen how the running switch is
    Status(StatusArgs),
    /// Show the counters of the running switch, or of some of its ports
    Stats(StatsArgs),
    /// Show the stations that the running switch knows, and where each is
    Addresses(AddressesArgs),
    /// Show how long an interface's calls are held, or where workers run, and why
    Explain(ExplainArgs),
    /// Show or record the frames of interfaces and uplinks, or what is dropped, as pcapng
    Capture(CaptureArgs),
    /// Say what would become of a frame, stage by stage, and why; nothing is sent
    Trace(TraceArgs),
    /// Find what is wrong with the host and the switch, and say what mends it
    Doctor(DoctorArgs),
}

/// `weir demo`, `weir bench` and `weir lab`, which are programs of their own
#[derive(Debug, Args)]
pub struct Passed {
    /// Arguments of that program, whose --help shows them
    #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
    pub args: Vec<OsString>,
}

/// `weir run`
#[derive(Debug, Args)]
#[command(after_help = RUN_NOTES)]
pub struct RunArgs {
    /// The configuration
    #[arg(value_name = "FILE", default_value = Config::DEFAULT_PATH)]
    pub file: PathBuf,
    /// Socket of weir-keeper, which holds what the next weir needs to go on with this one's front ends
    ///
    /// It wins over `keeper` of the file.
    #[arg(long, value_name = "PATH", value_parser = absolute_socket)]
    pub keeper: Option<SocketPath>,
    /// The privileges that weir gives up.
    #[command(flatten)]
    pub sandbox: SandboxArgs,
    /// Replaces the weir at the other end of standard input. `weir upgrade` starts weir with this option.
    #[arg(long = "take-over", hide = true)]
    pub take_over: bool,
}

const RUN_NOTES: &str = "\
Signals:
  SIGTERM, SIGINT  end for good: front ends are disconnected, sockets and TAPs are removed
  SIGUSR2          end for the next weir: with a keeper, guests stay as they are until it serves
  SIGHUP           apply the changed file, as `weir reload`";

/// `weir check`
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The configuration
    #[arg(value_name = "FILE", default_value = Config::DEFAULT_PATH)]
    pub file: PathBuf,
    /// Check this host, too, for what ways out of networks need: subnets, routing, nftables
    #[arg(long)]
    pub host: bool,
}

/// `weir diff`
#[derive(Debug, Args)]
#[command(after_help = DIFF_NOTES)]
pub struct DiffArgs {
    /// The configuration; without it the file that weir was started with
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

const DIFF_NOTES: &str = "\
Marks:
  +  added          -  removed, which disconnects its guest
  ~  changed        !  cannot change while weir runs
  =  not in the file: added by `weir vif add`, and stays";

/// `weir save`
#[derive(Debug, Args)]
#[command(after_help = SAVE_NOTES)]
pub struct SaveArgs {
    /// The configuration; without it the file that weir was started with
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Do not ask
    #[arg(long)]
    pub yes: bool,
}

const SAVE_NOTES: &str = "\
Comments and order stay. The file is replaced at once, with its owner and mode, by the rights of \
whoever runs the command.";

/// `weir reload`
#[derive(Debug, Args)]
#[command(after_help = RELOAD_NOTES)]
pub struct ReloadArgs {
    /// The configuration; without it the file that weir was started with
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Change what can change while weir runs, and leave the rest until a restart
    #[arg(long)]
    pub partly: bool,
    /// What has changed as JSON
    #[arg(long)]
    pub json: bool,
}

const RELOAD_NOTES: &str = "\
Interfaces that the file leaves alone lose no packet. A file with a setting that cannot change \
while weir runs changes nothing, and the command names the setting. A step that fails has the steps \
before it undone. Interfaces of `weir vif add` stay. The file replaces what `weir vif set` and \
`weir filter` have changed of its interfaces.

SIGHUP to `weir run` does the same with the file that weir was started with, and logs the result.";

const UPGRADE_NOTES: &str = "\
The running weir must have a keeper (`keeper` of [switch], weir-keeper). It starts the file that it \
was started from, with the same arguments: install the new one there first. The new process reads \
its configuration, then the old one stops, and the new one goes on. Packets wait in the guests' \
rings meanwhile. If the new one does not come up, or does not know the state, the old one goes on, \
and the command fails with the reason.

A weir of systemd stays the same service. Any other supervisor sees its process end. AF_XDP and Xen \
need a restart.";

/// `weir qemu-args`
#[derive(Debug, Args)]
#[command(after_help = QEMU_ARGS_EXAMPLES)]
pub struct QemuArgs {
    /// Interfaces of the VM
    #[arg(value_name = "NAME", required = true, value_parser = explained::<PortName>)]
    pub names: Vec<PortName>,
    /// Read the interfaces from this file
    ///
    /// The default is to ask the running weir, and to read /etc/weir/weir.toml where none runs.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The VM monitor that the arguments are for
    #[arg(long = "for", value_name = "PROGRAM", value_enum, default_value_t)]
    pub monitor: Monitor,
    /// Memory of the VM
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    pub memory: MemorySize,
    /// Leave the memory out: something else gives the VM shared memory
    #[arg(long, conflicts_with = "memory")]
    pub no_memory: bool,
    /// MSI-X vectors of each device; 0 turns MSI-X off
    ///
    /// The default is 2 for each queue pair and 2 more, and 0 for a QEMU before 10, which ends with vectors where it
    /// emulates the processor.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=2048))]
    pub vectors: Option<u32>,
    /// QEMU's version, such as 9.2
    ///
    /// The default is to ask the installed QEMU; without one, 9.2 and later. From 9.2 on QEMU has `reconnect-ms`, and
    /// from 10.2 on no `reconnect`.
    #[arg(long, value_name = "VERSION")]
    pub qemu_version: Option<QemuVersion>,
    /// Put the devices behind a virtual IOMMU, for DPDK or a hypervisor in the guest
    ///
    /// The interfaces need `access_platform = true`.
    #[arg(long)]
    pub iommu: bool,
}

const QEMU_ARGS_EXAMPLES: &str = "\
Examples:
  qemu-system-x86_64 -drive file=disk.img $(weir qemu-args web0)
  weir qemu-args web0 db0 --memory 4G      one VM with two interfaces
  weir qemu-args web0 --for libvirt        for `virsh edit`
  weir qemu-args web0 --for proxmox --memory 2G    the line for VMID.conf, whose `memory` is 2048

An interface without a configured `mac` gets 52:54:00 and three bytes made from its name.

A guest that attaches XDP in its driver takes receive offloads back, and QEMU does not tell weir:
TCP from other guests is then lost. Behind QEMU's `-device virtio-net-pci,...` write
  ,ctrl_guest_offloads=off    for a driver that refuses XDP, or
  ,guest_csum=off,guest_tso4=off,guest_tso6=off,guest_ecn=off
  ,guest_ufo=off,ctrl_guest_offloads=off
                              (both) for one that has no reason to:
                              weir leaves nothing to this guest.";

/// `weir vif`
#[derive(Debug, Subcommand)]
pub enum VifCommand {
    /// Add an interface
    #[command(after_help = VIF_ADD_EXAMPLES, after_long_help = with_keys(VIF_ADD_EXAMPLES, &KEYS))]
    Add {
        /// Its name
        #[arg(value_parser = explained::<PortName>)]
        name: PortName,
        /// Settings, as in the [vif.NAME] table of the configuration
        #[arg(value_name = "KEY=VALUE", value_parser = SettingOf(&KEYS), hide_possible_values = true)]
        settings: Vec<Setting>,
        /// Begin with the keys of [template.NAME]; `none` takes one of them back to its default
        #[arg(long, value_name = "NAME", value_parser = explained::<TemplateName>)]
        template: Option<TemplateName>,
        /// If there is such an interface, set what differs, or change nothing
        #[arg(long)]
        may_exist: bool,
        /// Write what runs into the configuration file then, as `weir save --yes`
        #[arg(long)]
        save: bool,
    },
    /// Change an interface while it is in use
    #[command(after_help = VIF_SET_EXAMPLES, after_long_help = with_keys(VIF_SET_EXAMPLES, &CHANGEABLE))]
    Set {
        /// Its name
        #[arg(value_parser = explained::<PortName>)]
        name: PortName,
        /// Settings to change; `none` takes one back to its default
        #[arg(value_name = "KEY=VALUE", required = true)]
        #[arg(value_parser = SettingOf(&CHANGEABLE), hide_possible_values = true)]
        settings: Vec<Setting>,
        /// Write what runs into the configuration file then, as `weir save --yes`
        #[arg(long)]
        save: bool,
    },
    /// Remove an interface and disconnect its guest
    Del {
        /// Its name
        #[arg(value_parser = explained::<PortName>)]
        name: PortName,
        /// Succeed if there is no such interface
        #[arg(long)]
        if_exists: bool,
        /// Write what runs into the configuration file then, as `weir save --yes`
        #[arg(long)]
        save: bool,
    },
    /// Show each setting of an interface, and where it is from
    Show {
        /// Its name
        #[arg(value_parser = explained::<PortName>)]
        name: PortName,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// List the interfaces
    List {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
}

const VIF_ADD_EXAMPLES: &str = "\
Examples:
  weir vif add web0
  weir vif add web0 queues=2 latency_budget=1ms vlan=10
  weir vif add web0 --template tenant vlan=10 rate=none
  weir vif add fw0 trunk=[10,20] native=1 socket=/run/vms/fw0.sock
  weir vif add web0 --may-exist vlan=10 by=libvirt:6e1c0a9e-0a6e-4d8e-9c55-2f1d0c7a3b11

The default socket is NAME.sock in the directory of the control socket. With --may-exist, settings \
that are not named stay as they are; one that cannot change under traffic, and differs, is an \
error. `by` says who keeps the interface: the file and `weir save` leave it alone.";

const VIF_SET_EXAMPLES: &str = "\
Examples:
  weir vif set web0 latency_budget=1ms
  weir vif set web0 moderation=backend rx_usecs=200
  weir vif set web0 vlan=none mac=52:54:00:12:34:56
  weir vif set web0 rate=1Gbit weight=4
  weir vif set web0 rx_rate=500Mbit rx_packets_per_second=100000
  weir vif set web0 queues=4               takes effect when the VM connects again";

/// Keys of an interface: each as the beginning of a setting (`mtu=`), with its description.
type SettingKeys = LazyLock<Vec<(String, &'static str)>>;

/// The keys of `weir vif add`.
static KEYS: SettingKeys = LazyLock::new(|| VifConfig::keys().map(setting_key).collect());

/// The keys of `weir vif set`.
static CHANGEABLE: SettingKeys = LazyLock::new(|| VifChanges::keys().map(setting_key).collect());

fn setting_key(key: Key) -> (String, &'static str) {
    (format!("{}=", key.name), key.says.trim_end_matches('.'))
}

/// A help text, followed by the keys.
fn with_keys(help: &str, keys: &SettingKeys) -> String {
    let line = |(key, says): &(String, _)| format!("\n  {:<22} {says}", key.trim_end_matches('='));
    format!("{help}\n\nKeys:{}", keys.iter().map(line).collect::<String>())
}

/// Parses `KEY=VALUE`, and tells shells which keys there are. The switch judges key and value.
#[derive(Clone)]
struct SettingOf(&'static SettingKeys);

impl TypedValueParser for SettingOf {
    type Value = Setting;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<Setting, clap::Error> {
        Setting::from_str.parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(
            self.0.iter().map(|(key, says)| PossibleValue::new(key.as_str()).help(*says)),
        ))
    }
}

/// `weir addresses`
#[derive(Debug, Args)]
pub struct AddressesArgs {
    /// Multicast groups, where snooping is on: queriers and members
    #[arg(long)]
    pub multicast: bool,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

/// `weir filter`
#[derive(Debug, Subcommand)]
pub enum FilterCommand {
    /// Replace all rules at once: a burst of packets sees the old rules or the new, never a mix
    ///
    /// Rules outlive a weir with a keeper. --save, or `weir save`, writes them into the configuration.
    #[command(after_help = FILTER_SET_NOTES)]
    Set {
        /// The interface or uplink
        #[arg(value_name = "PORT", value_parser = explained::<PortName>)]
        name: PortName,
        /// DIRECTION ACTION EXPRESSION, each rule in quotes
        ///
        /// DIRECTION is tx (what the port sends) or rx (what it receives), ACTION is accept or drop, and EXPRESSION is
        /// tcpdump's, see pcap-filter(7). A rule without one matches every frame. The first rule that matches a frame
        /// decides; a frame that none matches passes.
        #[arg(value_name = "RULE", required = true, value_parser = explained::<FilterRule>)]
        rules: Vec<FilterRule>,
        /// Write what runs into the configuration file then, as `weir save --yes`
        #[arg(long)]
        save: bool,
    },
    /// List rules with the packets and bytes that each decided about
    List {
        /// The interface or uplink; without it all of them
        #[arg(value_name = "PORT", value_parser = explained::<PortName>)]
        name: Option<PortName>,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Take all rules away
    Clear {
        /// The interface or uplink
        #[arg(value_name = "PORT", value_parser = explained::<PortName>)]
        name: PortName,
        /// Write what runs into the configuration file then, as `weir save --yes`
        #[arg(long)]
        save: bool,
    },
}

/// `weir group`
#[derive(Debug, Subcommand)]
pub enum GroupCommand {
    /// List groups with how many rules and interfaces each has
    List {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Show a group's rules, and its interfaces with their connections
    Show {
        /// The group
        #[arg(value_name = "GROUP", value_parser = explained::<SecurityGroup>)]
        name: SecurityGroup,
    },
    /// Replace a group's rules and defaults at once, or add the group
    ///
    /// Groups outlive a weir with a keeper. --save, or `weir save`, writes them into the configuration.
    Set {
        /// The group
        #[arg(value_name = "GROUP", value_parser = explained::<SecurityGroup>)]
        name: SecurityGroup,
        /// Connections to the group's interfaces that no rule allows: deny or allow
        #[arg(long, default_value = "deny", value_parser = explained::<GroupDefault>)]
        default_in: GroupDefault,
        /// Connections from the group's interfaces that no rule allows: deny or allow
        #[arg(long, default_value = "allow", value_parser = explained::<GroupDefault>)]
        default_out: GroupDefault,
        /// Log refusals by a direction that the group closes
        #[arg(long)]
        log: bool,
        /// Connections that are allowed, in quotes; can be given more than once
        ///
        /// A rule is in or out, a protocol, ports or types of ICMP messages, and from or to the other end: group:NAME,
        /// an address, a prefix, any. All behind in or out can be left out: --rule 'in tcp 80,443 from group:lb' --rule
        /// 'in icmp 8'
        #[arg(long = "rule", value_name = "RULE", value_parser = explained::<GroupRule>)]
        rules: Vec<GroupRule>,
        /// Write what runs into the configuration file then, as `weir save --yes`
        #[arg(long)]
        save: bool,
    },
    /// Remove a group that no interface, rule or ID names
    Del {
        /// The group
        #[arg(value_name = "GROUP", value_parser = explained::<SecurityGroup>)]
        name: SecurityGroup,
        /// A group that does not exist is no error
        #[arg(long)]
        if_exists: bool,
        /// Write what runs into the configuration file then, as `weir save --yes`
        #[arg(long)]
        save: bool,
    },
    /// List the connections of an interface in groups, or of all
    Connections {
        /// The interface; without it all that are in groups
        #[arg(value_name = "VIF", value_parser = explained::<PortName>)]
        name: Option<PortName>,
        /// As JSON, a page on each line
        #[arg(long)]
        json: bool,
    },
    /// Forget connections; those that the rules would let begin in the middle go on
    Flush {
        /// The interface, or the network whose interfaces are meant; without it all
        #[arg(value_name = "VIF|NETWORK", value_parser = explained::<PortName>)]
        of: Option<PortName>,
    },
}

const FILTER_SET_NOTES: &str = "\
Examples:
  weir filter set web0 'tx drop tcp dst port 25'
  weir filter set web0 'tx accept arp or src net 10.0.0.0/8' 'tx drop' 'rx drop udp port 1900'
  weir filter set web0 'rx drop tcp[((tcp[12] & 0xf0) >> 2):4] = 0x47455420'";

/// `weir status`
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

/// `weir stats`
#[derive(Debug, Args)]
#[command(after_help = STATS_NOTES)]
pub struct StatsArgs {
    /// Interfaces and uplinks; without one all of them, and the workers
    #[arg(value_name = "PORT", value_parser = explained::<PortName>)]
    pub names: Vec<PortName>,
    /// As JSON; with --watch one object on each line
    #[arg(long)]
    pub json: bool,
    /// Repeat every SECONDS
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1")]
    #[arg(action = ArgAction::Set, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub watch: Option<u32>,
    /// Count from zero, from now on
    #[arg(long, requires = "watch")]
    pub reset: bool,
    /// Show what has been counted since `weir stats --json` wrote this file; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "reset")]
    pub since: Option<PathBuf>,
    /// Turn the measurement of each datapath stage on or off, then show the counters
    ///
    /// While it is on, each burst of packets reads the CPU's cycle counter several times.
    #[arg(long, value_name = "on|off", action = ArgAction::Set)]
    #[arg(value_parser = clap::builder::BoolishValueParser::new())]
    pub stages: Option<bool>,
}

const STATS_NOTES: &str = "\
Examples:
  weir stats --watch --reset               from zero, until Ctrl-C
  weir stats --json > before.json
  weir stats --since before.json web0      what web0 has counted since then

--reset and --since subtract an earlier reading. weir's counters only grow: metrics and other \
readers go on as before.";

/// `weir explain`
#[derive(Debug, Args)]
#[command(after_help = EXPLAIN_NOTES)]
pub struct ExplainArgs {
    /// The interface, the uplink, or `placement` for where workers and virtual processors run
    #[arg(value_name = "PORT|placement", value_parser = explained::<PortName>)]
    pub name: PortName,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

const EXPLAIN_NOTES: &str = "\
The command counts frames and calls for one second. Hold times and calls that came too late \
count from when the interface was added.";

impl Cli {
    /// Parses the command line of this process. Prints help or the error and exits if there is no command.
    pub fn parse_grouped() -> Self {
        let matches = Self::grouped_command().get_matches();
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }

    /// A command whose help lists the commands by purpose, each with its own text. clap alone would list them in one
    /// row.
    pub fn grouped_command() -> clap::Command {
        let command = Self::command();
        let mut list = String::new();
        for (purpose, names) in GROUPS {
            list.push_str(&format!("{purpose}:\n"));
            for name in *names {
                let about = command.find_subcommand(name).and_then(clap::Command::get_about);
                let about = about.map(ToString::to_string).unwrap_or_default();
                list.push_str(&format!("  {name:<11}{about}\n"));
            }
            list.push('\n');
        }
        let template = format!(
            "{{about}}\n\n{{usage-heading}} {{usage}}\n\n{list}Options:\n{{options}}\
             {{after-help}}\n\n`weir COMMAND --help` says more about a command."
        );
        command.help_template(template)
    }
}

/// Parses an argument. The error says what is wrong and what to write instead.
fn explained<T: FromStr<Err = ValueError>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: ValueError| match error.help() {
        Some(help) => format!("{error}: {help}"),
        None => error.to_string(),
    })
}

/// Makes a relative path absolute. It is relative to the user's working directory, which may not be the switch's.
fn absolute_socket(text: &str) -> Result<SocketPath, ValueError> {
    match std::path::absolute(text) {
        Ok(path) => SocketPath::to_listen(&path),
        Err(_) => text.parse(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definition_is_consistent() {
        Cli::grouped_command().debug_assert();
    }

    #[test]
    fn every_command_stands_in_exactly_one_group() {
        let command = Cli::command();
        let mut defined: Vec<_> = command.get_subcommands().map(clap::Command::get_name).collect();
        let mut grouped: Vec<_> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        defined.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(defined, grouped);
    }

    #[test]
    fn help_for_people() {
        let help = Cli::grouped_command().term_width(100).render_help().to_string();
        insta::assert_snapshot!(help, @r#"
        A switch for virtual machines that turns each interface's latency budget into saved CPU

        Usage: weir [OPTIONS] <COMMAND>

        See it work:
          demo       Switch traffic between built-in guests and show live figures
          bench      Measure weir on this machine with built-in guests; needs no VM and no root
          lab        Run the papers' experiments in virtual time and compare the figures

        Serve:
          run        Run the switch until SIGTERM or SIGINT; SIGHUP reloads the file
          check      Check a configuration file and show every problem with its line
          diff       Show how a configuration file differs from the running switch
          reload     Apply the changed configuration file to the running switch, under traffic
          save       Write what runs into the configuration file, whose comments and order stay
          upgrade    Replace the running weir by the program that lies there now, under traffic

        Plug in VMs:
          qemu-args  Print a VM's network arguments for QEMU, libvirt, Proxmox and others
          libvirt    Plug in libvirt's domains by settings in their own XML
          vif        Add, change, remove, show or list interfaces of the running switch
          filter     Set, list or clear the packet filters of an interface or uplink
          group      Set, list or show security groups: which connections guests may open
          uplink     Join the host's card and weir's TAP by a bridge, with a way back

        Look inside:
          status     Show on one screen how the running switch is
          top        Watch rates, holds, drops and reasons of all interfaces, live
          stats      Show the counters of the running switch, or of some of its ports
          addresses  Show the stations that the running switch knows, and where each is
          explain    Show how long an interface's calls are held, or where workers run, and why
          capture    Show or record the frames of interfaces and uplinks, or what is dropped, as pcapng
          trace      Say what would become of a frame, stage by stage, and why; nothing is sent
          doctor     Find what is wrong with the host and the switch, and say what mends it

        Options:
              --control <PATH>  Control socket of the running weir
          -h, --help            Print help (see more with '--help')
          -V, --version         Print version

        Examples:
          weir demo                                see it work; needs no VM and no root
          weir check weir.toml && weir run weir.toml
          qemu-system-x86_64 ... $(weir qemu-args web0)
          weir vif set web0 latency_budget=1ms
          weir stats --watch

        Exit codes:
          0  done
          1  failed
          2  wrong command line
          3  the configuration has problems
          4  no weir is running on the control socket
          5  `weir doctor` has found something wrong
          6  `weir run` was told to end and could not end in order: its log says who kept it

        `weir COMMAND --help` says more about a command.
        "#);
    }

    #[test]
    fn no_line_of_a_help_is_wrapped_a_second_time() {
        fn look(command: &clap::Command) {
            let texts = [command.get_after_help(), command.get_after_long_help()];
            let text =
                texts.map(|text| text.map(ToString::to_string).unwrap_or_default()).join("\n\n");
            // A paragraph that is one line is wrapped once.
            let wrapped = text.split("\n\n").filter(|paragraph| paragraph.contains('\n'));
            let lines = wrapped.flat_map(str::lines);
            let long: Vec<_> = lines.filter(|line| line.chars().count() > 100).collect();
            assert!(long.is_empty(), "{}: {long:?}", command.get_name());
            command.get_subcommands().for_each(look);
        }
        look(&Cli::grouped_command());
    }

    #[test]
    fn each_key_that_can_change_is_in_the_help_of_vif_set() {
        let command = Cli::command();
        let vif = command.find_subcommand("vif").unwrap();
        let set = vif.find_subcommand("set").unwrap().get_after_long_help().unwrap().to_string();
        let listed = set.split_once("\n\nKeys:\n").unwrap().1.lines();
        let listed: Vec<_> = listed.filter_map(|line| line.split_whitespace().next()).collect();
        let name: PortName = "a".parse().unwrap();
        for key in VifConfig::keys().map(|key| key.name).filter(|key| *key != "filter") {
            let setting = format!("{key}=none").parse().unwrap();
            let error = VifChanges::from_settings(&name, &[setting]).err();
            let error = error.map(|error| format!("{:?}", miette::Report::new(error)));
            let can = !error.as_ref().is_some_and(|error| error.contains("cannot change while"));
            assert_eq!(listed.contains(&key), can, "{key}: {error:?}");
        }
    }

    #[test]
    fn a_name_or_a_rule_that_is_refused_comes_with_what_is_right() {
        let error = |args: &[&str]| Cli::try_parse_from(args).unwrap_err().to_string();
        for command in ["add", "set"] {
            let error = error(&["weir", "vif", command, "Web 0", "queues=2"]);
            assert!(error.contains("1 to 32 characters out of a-z, 0-9"), "{error}");
        }
        assert!(error(&["weir", "explain", "Web0"]).contains("1 to 32 characters out of a-z, 0-9"));
        let error = error(&["weir", "filter", "set", "web0", "drop"]);
        assert!(error.contains("write tx or rx, accept or drop"), "{error}");
    }

    #[test]
    fn watch_takes_an_optional_number() {
        let watch = |args: &[&str]| match Cli::try_parse_from(args).unwrap().command {
            Command::Stats(stats) => stats.watch,
            other => panic!("{other:?}"),
        };
        assert_eq!(watch(&["weir", "stats"]), None);
        assert_eq!(watch(&["weir", "stats", "--watch"]), Some(1));
        assert_eq!(watch(&["weir", "stats", "--watch", "5", "--json"]), Some(5));
    }

    #[test]
    fn measuring_stages_is_on_or_off() {
        let stages = |args: &[&str]| match Cli::try_parse_from(args)?.command {
            Command::Stats(stats) => Ok::<_, clap::Error>(stats.stages),
            other => panic!("{other:?}"),
        };
        assert_eq!(stages(&["weir", "stats"]).unwrap(), None);
        assert_eq!(stages(&["weir", "stats", "--stages", "on"]).unwrap(), Some(true));
        assert_eq!(stages(&["weir", "stats", "--stages", "off"]).unwrap(), Some(false));
        assert!(stages(&["weir", "stats", "--stages"]).is_err());
    }

    #[test]
    fn control_path_is_made_absolute() {
        let cli = Cli::try_parse_from(["weir", "stats", "--control", "c.sock"]).unwrap();
        assert!(cli.control.unwrap().as_str().starts_with('/'));
    }
}
