//! The commands that need no switch in this process.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::thread;
use std::time::Duration;

use miette::Report;
use weir_api::{Client, ClientError, Serving};
use weir_config::descriptors::Carried;
use weir_config::reload::ShownSetting;
use weir_config::{
    Config, Defaults, PortName, Setting, SocketPath, SocketRole, VifChanges, VifConfig, Workers,
    mirror_note,
};
use weir_doctor::qemu::QemuVersion;
use weir_libvirt::LibvirtError;
use weir_limits::CONTROL_RESPONSE_BYTES_MAX;
use weir_switch::control::{AddressEntry, Put, PutOutcome, VifOrigin, VifShown, VifStatus};
use weir_switch::host::Lack;
use weir_switch::stats::{MemberStats, MulticastStats, SwitchStats};
use weir_switch::{memory, sandbox};
use weir_text::plain::{self, Obeyed, Plain};
use weir_text::{Table, count, time};

use crate::args::{AddressesArgs, CheckArgs, ExplainArgs, QemuArgs, StatsArgs, VifCommand};
use crate::run::RunError;
use crate::show;
use crate::vm_args::{Monitor, VmOptions};

mod doctor;
mod filter;
mod outcome;
mod save;
mod status;
#[cfg(test)]
mod tests;
mod trace;

pub use doctor::doctor;
pub use filter::{filter, group};
pub use outcome::CommandError;
use outcome::{write_as, write_json};
pub use save::{diff, reload, save, upgrade};
pub use status::status;
pub use trace::{capture, trace};

/// Exit code of a command that failed; a wrong command line gives 2, by clap.
const EXIT_FAILED: u8 = 1;
/// Exit code if the configuration has problems.
const EXIT_CONFIG: u8 = 3;
/// Exit code if no weir answers on the control socket.
const EXIT_NOT_RUNNING: u8 = 4;
/// Exit code of `weir doctor` if something is wrong.
const EXIT_UNWELL: u8 = 5;

/// Moves the cursor home and clears the rest of the screen, so that a table keeps its place (ECMA-48 CUP, ED).
const CLEAR_SCREEN: &str = "\x1b[H\x1b[J";

/// The exit code for `result`, which is printed if it is an error.
pub fn exit_code(result: Result<(), Report>) -> ExitCode {
    let Err(report) = result else {
        return ExitCode::SUCCESS;
    };
    if let Some(CommandError::Unwell) = report.downcast_ref() {
        return EXIT_UNWELL.into();
    }
    // libvirt shows what its hook says on one line.
    if let Some(error) = report.downcast_ref::<LibvirtError>() {
        eprintln!("weir: {}", weir_libvirt::sentence(error));
        return EXIT_FAILED.into();
    }
    let code = match report.downcast_ref() {
        _ if matches!(report.downcast_ref(), Some(RunError::Config(_))) => EXIT_CONFIG,
        Some(CommandError::Config(_)) => EXIT_CONFIG,
        Some(CommandError::Client(ClientError::NotRunning { .. })) => EXIT_NOT_RUNNING,
        _ => EXIT_FAILED,
    };
    let output = match report.downcast_ref() {
        Some(CommandError::Output(error)) => Some(error),
        _ => None,
    };
    plain::ended(&report, output, code)
}

/// Becomes the program `name`, which lies beside this one or where the shell finds programs.
///
/// # Errors
/// [`CommandError::NoProgram`] if it cannot be started.
pub fn become_program(
    name: &'static str,
    first: Option<&str>,
    args: &[OsString],
) -> Result<(), CommandError> {
    let beside = env::current_exe().ok().map(|this| this.with_file_name(name));
    let program = beside.filter(|path| path.exists()).unwrap_or_else(|| name.into());
    let why = Command::new(program).args(first).args(args).exec();
    Err(CommandError::NoProgram { name, why })
}

/// The defaults of this user, with the control socket of `--control` if it is given.
pub fn defaults(control: Option<SocketPath>) -> Result<Defaults, CommandError> {
    match control {
        Some(control) => Ok(Defaults { control, control_named: true, keeper: None }),
        None => Defaults::of_this_user().map_err(CommandError::ControlPath),
    }
}

/// `weir check`: summarises the setup of a good file in one line, and with `--host` names what this host lacks.
///
/// # Errors
/// [`CommandError::Config`] with every problem, and [`CommandError::Unwell`] if the host lacks something.
pub fn check(
    args: &CheckArgs,
    defaults: &Defaults,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let config = Config::load(&args.file, defaults)?;
    let workers = match config.switch.workers {
        Workers::Auto => "workers for half of the cores".into(),
        Workers::Count(number) => count(number.get().into(), "worker"),
    };
    writeln!(
        out,
        "{}: good: {}, {}, {workers}, latency budget {}",
        args.file.display(),
        count(config.vifs.len(), "interface"),
        count(config.uplinks.len(), "uplink"),
        time(config.switch.latency_budget.ns()),
    )?;
    if let Some(xen) = &config.xen {
        let which = match &xen.bridges {
            None => "every vif of this domain".into(),
            Some(bridges) => {
                let names: Vec<_> = bridges.iter().map(|bridge| bridge.as_str()).collect();
                format!("vifs of {}", names.join(", "))
            }
        };
        writeln!(out, "Xen: {which}, where /dev/xen/xenbus is")?;
    }
    let accounts = [sandbox::user_note(&config), Serving::note(&config.switch.api)];
    let notes = [Carried::of(&config).note(), memory::note(&config.vifs)].into_iter();
    for note in notes.chain(accounts).flatten() {
        writeln!(out, "note: {note}")?;
    }
    for note in missing_interfaces(&config) {
        writeln!(out, "note: {note}")?;
    }
    let uplinks: Vec<_> =
        config.unbonded().map(|it| (&it.name, it.interface.to_string())).collect();
    let uplinks = uplinks.iter().map(|(name, interface)| (*name, interface.as_str()));
    for joined in weir_doctor::joined_by_a_bridge(uplinks) {
        writeln!(out, "note: {joined}")?;
    }
    for note in config.vifs.iter().filter_map(|vif| vif.calls_note(config.latency_budget(vif))) {
        writeln!(out, "note: {note}")?;
    }
    for note in config.networks.notes(&config.vifs).into_iter().chain(config.note_of_groups()) {
        writeln!(out, "note: {note}")?;
    }
    for directory in missing_directories(&config) {
        let directory = directory.display();
        writeln!(
            out,
            "note: {directory} is not there: weir makes it, for the sockets of interfaces"
        )?;
    }
    let ports = config.vifs.iter().map(|vif| (&vif.name, &vif.vlan));
    let ports = ports.chain(config.uplinks.iter().map(|uplink| (&uplink.name, &uplink.vlan)));
    let is_own = |name: &PortName| config.networks.owner_of(name).is_some();
    let exists = |name: &PortName| is_own(name) || ports.clone().any(|(port, _)| port == name);
    for note in ports.clone().filter_map(|(port, vlan)| mirror_note(port, vlan, exists)) {
        writeln!(out, "note: {note}")?;
    }
    let lacks = if args.host { weir_switch::host::lacks_of_a_start(&config) } else { Vec::new() };
    for Lack { what, help } in &lacks {
        writeln!(out, "host: {what}")?;
        if let Some(help) = help {
            writeln!(out, "      {help}")?;
        }
    }
    if !lacks.is_empty() {
        return Err(CommandError::Unwell);
    }
    Ok(())
}

/// Uplinks whose interface this host does not have and weir cannot make.
fn missing_interfaces(config: &Config) -> impl Iterator<Item = String> {
    let opened = config.uplinks.iter().filter(|uplink| uplink.kind.has_card());
    opened.filter_map(|uplink| {
        let (table, interface) = (uplink.table(), &uplink.interface);
        let is_there = Path::new("/sys/class/net").join(interface.as_str()).exists();
        (!is_there).then(|| {
            format!("`{table}`: there is no interface {interface}, and `weir run` takes one")
        })
    })
}

/// Directories of sockets that weir would make, other than that of its own control socket.
fn missing_directories(config: &Config) -> BTreeSet<&Path> {
    let own = config.switch.control.as_path().parent();
    let servers = config.vifs.iter().filter(|vif| vif.mode == SocketRole::Server);
    let named = servers.filter_map(|vif| vif.socket.as_path().parent());
    named.filter(|directory| Some(*directory) != own && !directory.exists()).collect()
}

/// `weir qemu-args`: prints arguments, or XML.
///
/// # Errors
/// [`CommandError::UnknownVif`], [`CommandError::XenVif`], [`CommandError::VmArgs`], and the errors of reading the
/// interfaces.
pub fn qemu_args(
    args: &QemuArgs,
    defaults: &Defaults,
    out: &mut dyn Write,
    multi_line: bool,
) -> Result<(), CommandError> {
    let (source_name, known) = known_vifs(args, defaults)?;
    let vifs: Vec<VifConfig> = args
        .names
        .iter()
        .map(|name| find_vif(name, &known, &source_name))
        .collect::<Result<_, _>>()?;
    let asks = args.monitor.is_for_qemu() && args.qemu_version.is_none();
    let installed = asks.then(weir_doctor::qemu::installed_version).flatten();
    let installed = installed.map(|(major, minor)| QemuVersion(major, minor));
    let options = VmOptions {
        memory: (!args.no_memory).then_some(args.memory),
        vectors: args.vectors,
        qemu_version: args.qemu_version.or(installed),
        // A version that the user names can be that of another host.
        kvm: (asks && args.monitor == Monitor::Qemu).then(weir_doctor::qemu::kvm),
        architecture: env::consts::ARCH,
        iommu: args.iommu,
    };
    let vm_args = args.monitor.args(&vifs, &options)?;
    // A person copies several lines. `$(weir qemu-args ...)` would take the backslashes as words.
    let separator = match (args.monitor.is_command_line(), multi_line) {
        (true, true) => " \\\n",
        (true, false) => " ",
        (false, _) => "\n",
    };
    writeln!(out, "{}", vm_args.lines.join(separator))?;
    for note in &vm_args.notes {
        eprintln!("note: {note}");
    }
    Ok(())
}

/// The interfaces to choose from, and their source: the named file, else the running weir, else the system's file.
fn known_vifs(
    args: &QemuArgs,
    defaults: &Defaults,
) -> Result<(String, Vec<VifConfig>), CommandError> {
    let from_file = |path: &Path| -> Result<_, CommandError> {
        Ok((path.display().to_string(), Config::load(path, defaults)?.vifs))
    };
    if let Some(file) = &args.config {
        return from_file(file);
    }
    match Client::connect(defaults.control.as_path()) {
        Ok(mut client) => {
            let (xen, others): (Vec<_>, Vec<_>) =
                client.vifs()?.into_iter().partition(|vif| vif.xen);
            if let Some(vif) = xen.into_iter().find(|vif| args.names.contains(&vif.config.name)) {
                return Err(CommandError::XenVif { name: vif.config.name });
            }
            let vifs = others.into_iter().map(|vif| vif.config).collect();
            Ok(("the running weir".into(), vifs))
        }
        Err(not_running @ ClientError::NotRunning { .. }) => {
            let system_file = Path::new(Config::DEFAULT_PATH);
            if system_file.exists() { from_file(system_file) } else { Err(not_running.into()) }
        }
        Err(error) => Err(error.into()),
    }
}

fn find_vif(
    name: &PortName,
    known: &[VifConfig],
    source_name: &str,
) -> Result<VifConfig, CommandError> {
    known.iter().find(|vif| vif.name == *name).cloned().ok_or_else(|| {
        let names: Vec<_> = known.iter().map(|vif| vif.name.as_str()).collect();
        let help = match names.as_slice() {
            [] => format!("make it: `weir vif add {name}`, or [vif.{name}] in the file"),
            names => format!("it has: {}; `weir vif add {name}` makes it", names.join(", ")),
        };
        CommandError::UnknownVif { name: name.clone(), source_name: source_name.into(), help }
    })
}

/// `weir vif`
///
/// # Errors
/// [`CommandError::Config`] for bad settings, [`CommandError::Client`] if weir refuses.
pub fn vif(
    command: &VifCommand,
    defaults: &Defaults,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let connect = || Client::connect(defaults.control.as_path());
    match command {
        VifCommand::Add { name, settings, template, may_exist, save: also_save } => {
            let flag = template.as_ref().map(Setting::template);
            let settings: &[_] =
                &flag.into_iter().chain(settings.iter().cloned()).collect::<Vec<_>>();
            let base = |template: &_| -> Result<_, CommandError> {
                Ok(connect()?.vif_of_template(template, name)?)
            };
            let config = VifConfig::under_template(name, settings, &defaults.control, base)?;
            let mut client = connect()?;
            if *may_exist {
                put(&mut client, config, settings, out)?;
            } else {
                client.add_vif(&config)?;
                writeln!(out, "{name}: added, socket {}", config.socket)?;
            }
            save::also(*also_save, defaults, out)?;
        }
        VifCommand::Set { name, settings, save: also_save } => {
            let changes = VifChanges::from_settings(name, settings)?;
            let note = connect()?.change_vif(name, &changes)?;
            writeln!(out, "{name}: changed")?;
            if let Some(note) = note {
                writeln!(out, "note: {note}")?;
            }
            save::also(*also_save, defaults, out)?;
        }
        VifCommand::Del { name, if_exists, save: also_save } => {
            let missing = connect()?.remove_vif(name, *if_exists)?;
            writeln!(out, "{}", removed(name.as_str(), missing))?;
            save::also(*also_save, defaults, out)?;
        }
        VifCommand::Show { name, json } => {
            let vif = connect()?.vif(name)?;
            write_as(out, *json, &vif, vif_shown(&vif))?;
        }
        VifCommand::List { json } => {
            let vifs = connect()?.vifs()?;
            write_as(out, *json, &vifs, format!("{}{}", vif_table(&vifs), unsaved(&vifs)))?;
        }
    }
    Ok(())
}

/// The line about a removal; `missing` says that there was nothing to remove.
fn removed(name: &str, missing: Option<String>) -> String {
    missing.map_or_else(|| format!("{name}: removed"), |it| format!("{it}: nothing changed"))
}

/// Adds or changes an interface so that it has these settings.
fn put(
    client: &mut Client,
    new: VifConfig,
    settings: &[Setting],
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let name = new.name.clone();
    let existing = client.vifs()?.into_iter().find(|vif| vif.config.name == name);
    let config = match existing {
        // An interface of another template gets the keys of its new one.
        Some(VifStatus { config, xen: false, .. })
            if new.template.is_none() || new.template == config.template =>
        {
            config.with_settings(settings)?
        }
        _ => new,
    };
    let Put { outcome, changed, note } = client.put_vif(&config)?;
    match outcome {
        PutOutcome::Added => writeln!(out, "{name}: added, socket {}", config.socket)?,
        PutOutcome::Changed => writeln!(out, "{name}: changed: {}", changed.join(", "))?,
        PutOutcome::Unchanged => writeln!(out, "{name}: is as asked for, nothing changed")?,
    }
    if let Some(note) = note {
        writeln!(out, "note: {note}")?;
    }
    Ok(())
}

fn vif_shown(vif: &VifShown) -> String {
    let VifShown { name, state, stopped_reason, origin, settings } = vif;
    let why = stopped_reason.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
    let whose = match origin {
        VifOrigin::File => "its file names it",
        VifOrigin::Command => "it was added by a command",
        VifOrigin::Xen => "a Xen guest's",
    };
    let mut table = Table::new(&["<SETTING", "<VALUE", "<FROM"]);
    for ShownSetting { key, value, from } in settings {
        let value = value.as_deref().unwrap_or("-");
        // The VLANs' value begins with the name of the key that a file would have.
        let (key, value) = match value.split_once(' ') {
            Some(of_file) if key == "vlan" => of_file,
            _ => (key.as_str(), value),
        };
        table.row(vec![key.into(), value.into(), from.to_string()]);
    }
    format!("{name}: {state}{why}; {whose}\n\n{table}")
}

/// `weir addresses`
pub fn addresses(
    args: &AddressesArgs,
    defaults: &Defaults,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let mut client = Client::connect(defaults.control.as_path())?;
    if args.multicast {
        let multicast = client.stats()?.multicast;
        return match args.json {
            true => write_json(out, &multicast),
            false => Ok(write!(out, "{}", multicast_table(&multicast))?),
        };
    }
    let addresses = client.addresses()?;
    match args.json {
        true => write_json(out, &addresses),
        false => Ok(write!(out, "{}", address_table(addresses))?),
    }
}

fn address_table(mut addresses: Vec<AddressEntry>) -> Table {
    let order = |entry: &AddressEntry| (entry.network.clone(), entry.vlan, entry.mac.clone());
    addresses.sort_by_cached_key(order);
    let mut table =
        Table::new(&["<NETWORK", "<ADDRESS", "<PORT", "<HOST", "<ORIGIN", "AGE", "<IP"]);
    for AddressEntry { vlan, mac, port, network, host, ips, origin, age_s, .. } in addresses {
        let ips: Vec<_> = ips.iter().map(ToString::to_string).collect();
        let age = age_s.map_or("-".into(), |age_s| time(u64::from(age_s) * 1_000_000_000));
        table.row(vec![
            network.unwrap_or_else(|| format!("VLAN {vlan}")),
            mac,
            port.to_string(),
            host.map_or("-".into(), |host| host.to_string()),
            origin.to_string(),
            age,
            if ips.is_empty() { "-".into() } else { ips.join(" ") },
        ]);
    }
    table
}

fn multicast_table(multicast: &[MulticastStats]) -> Table {
    let mut table = Table::new(&["VLAN", "<GROUP", "<PORT", "LEFT", "<QUERIER"]);
    for MulticastStats { vlan, ip, querier, querier_port, members, over, unshown } in multicast {
        let querier = match (querier, querier_port) {
            (Some(querier), Some(port)) => format!("{querier} at {port}"),
            (Some(querier), None) => querier.to_string(),
            (None, _) => "none: all is flooded".into(),
        };
        let mut row = |group: String, port: String, left: String| {
            table.row(vec![vlan.to_string(), group, port, left, querier.clone()]);
        };
        for MemberStats { group, port, left_s } in members {
            let left = time(u64::from(*left_s) * 1_000_000_000);
            row(group.to_string(), port.to_string(), left);
        }
        over.iter().for_each(|port| row(format!("all of IPv{ip}"), port.to_string(), "-".into()));
        if *unshown > 0 {
            row(format!("{unshown} more of IPv{ip}"), "-".into(), "-".into());
        } else if members.is_empty() && over.is_empty() {
            row(format!("none of IPv{ip}"), "-".into(), "-".into());
        }
    }
    table
}

/// The settings that differ from the file.
fn unsaved(vifs: &[VifStatus]) -> String {
    let unsaved = vifs.iter().filter(|vif| !vif.unsaved.is_empty());
    let lines: String =
        unsaved.map(|vif| format!("  {}: {}\n", vif.config.name, vif.unsaved.join(", "))).collect();
    match lines.is_empty() {
        true => lines,
        false => format!("\nnot in the file, until `weir save`:\n{lines}"),
    }
}

fn vif_table(vifs: &[VifStatus]) -> Table {
    let mut table = Table::new(&[
        "<NAME",
        "<STATE",
        "QUEUES",
        "BUDGET",
        "<MODERATION",
        "<MAC",
        "<VLAN",
        "<FROM",
        "<SOCKET",
    ]);
    for VifStatus { config, state, origin, .. } in vifs {
        table.row(vec![
            config.name.to_string(),
            state.to_string(),
            config.queues.to_string(),
            config.latency_budget.map_or("default".into(), |budget| time(budget.ns())),
            config.moderation.to_string(),
            config.mac.map_or("-".into(), |mac| mac.to_string()),
            config.vlan.of_vif().to_string(),
            config.by.as_ref().map_or_else(|| origin.to_string(), ToString::to_string),
            config.socket.to_string(),
        ]);
    }
    table
}

/// `weir stats`: once, or repeatedly until it is interrupted or weir ends.
pub fn stats(
    args: &StatsArgs,
    defaults: &Defaults,
    out: &mut dyn Write,
    clear: bool,
) -> Result<(), CommandError> {
    if let Some(on) = args.stages {
        Client::connect(defaults.control.as_path())?.set_stages(on)?;
    }
    let width = if clear { terminal_width() } else { None };
    let mut earlier = args.since.as_deref().map(stats_of).transpose()?;
    loop {
        // Each round uses a new connection, because weir would close an idle one.
        let mut stats = Client::connect(defaults.control.as_path())?.stats()?;
        if args.reset && earlier.is_none() {
            earlier = Some(stats.clone());
        }
        if let Some(earlier) = &earlier {
            stats = stats.since(earlier)?;
        }
        status::only(&mut stats, &args.names)?;
        if clear && !args.json && args.watch.is_some() {
            write!(out, "{CLEAR_SCREEN}")?;
        }
        let mut out = Plain::new(&mut *out, Obeyed::Lines);
        match (args.json, args.watch) {
            (true, None) => write_json(&mut out, &stats)?,
            (true, Some(_)) => {
                serde_json::to_writer(&mut out, &stats).map_err(io::Error::from)?;
                writeln!(out)?;
            }
            (false, _) => write!(out, "{}", show::stats(&stats, width))?,
        }
        out.flush()?;
        match args.watch {
            Some(seconds) => thread::sleep(Duration::from_secs(seconds.into())),
            None => return Ok(()),
        }
    }
}

/// The counters that `weir stats --json` wrote; of `-`, standard input.
fn stats_of(path: &Path) -> Result<SwitchStats, CommandError> {
    let file = || match path.to_str() {
        Some("-") => Ok(Box::new(io::stdin()) as Box<dyn Read>),
        _ => File::open(path).map(|file| Box::new(file) as Box<dyn Read>),
    };
    let mut text = Vec::new();
    let read =
        file().and_then(|it| it.take(CONTROL_RESPONSE_BYTES_MAX as u64).read_to_end(&mut text));
    let stats = read.and_then(|_| serde_json::from_slice(&text).map_err(io::Error::from));
    stats.map_err(|error| CommandError::NotStats { path: path.into(), why: error.to_string() })
}

/// The time for which `weir explain` counts.
const EXPLAINED_FOR: Duration = Duration::from_secs(1);

/// `weir explain`: the effect of an interface's policies, with the frames and calls of one second.
pub fn explain(
    args: &ExplainArgs,
    defaults: &Defaults,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let mut client = Client::connect(defaults.control.as_path())?;
    let mut explanation = client.explain(&args.name)?;
    if explanation.counts() {
        thread::sleep(EXPLAINED_FOR);
        explanation = client.explain(&args.name)?.since(&explanation);
    }
    write_as(out, args.json, &explanation, show::explanation(&explanation))
}

/// The number of characters in a line of the terminal that is standard output.
fn terminal_width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    (size.ws_col > 0).then_some(size.ws_col.into())
}

/// True if standard output is a terminal, so that a person reads it.
pub fn stdout_is_terminal() -> bool {
    io::stdout().is_terminal()
}
