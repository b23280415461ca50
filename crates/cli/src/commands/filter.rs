//! `weir filter`: the frames that a port of the running switch may send and receive. `weir group`: which connections
//! guests may open.

use std::io::Write;

use weir_api::Client;
use weir_config::{Defaults, GroupConfig, PortName};
use weir_switch::stats::{GroupStats, SwitchStats};
use weir_text::count;

use super::save::also;
use super::status::only;
use super::{CommandError, removed, write_json};
use crate::args::{FilterCommand, GroupCommand};
use crate::show;

/// `weir filter`
///
/// # Errors
/// [`CommandError::Client`], also if the port does not exist.
pub fn filter(
    command: &FilterCommand,
    defaults: &Defaults,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let mut client = Client::connect(defaults.control.as_path())?;
    match command {
        FilterCommand::Set { name, rules, save } => {
            client.set_filter(name, rules)?;
            writeln!(out, "{name}: {} set", count(rules.len(), "rule"))?;
            also(*save, defaults, out)?;
        }
        FilterCommand::Clear { name, save } => {
            client.set_filter(name, &[])?;
            writeln!(out, "{name}: no rules, everything passes")?;
            also(*save, defaults, out)?;
        }
        FilterCommand::List { name, json } => {
            let mut stats = client.stats()?;
            only(&mut stats, name.as_slice())?;
            let ports = stats.ports;
            if *json {
                let rules: std::collections::BTreeMap<_, _> = show::of_ports(&ports).collect();
                return write_json(out, &rules);
            }
            match show::rules(show::of_ports(&ports)).trim_start() {
                "" => writeln!(out, "no rules, everything passes")?,
                table => write!(out, "{table}")?,
            }
        }
    }
    Ok(())
}

/// `weir group`
///
/// # Errors
/// [`CommandError::Client`], [`CommandError::NoSuchGroup`].
pub fn group(
    command: &GroupCommand,
    defaults: &Defaults,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let mut client = Client::connect(defaults.control.as_path())?;
    match command {
        GroupCommand::Connections { name: Some(name), json } => {
            connections(&mut client, name, *json, out)?;
        }
        GroupCommand::Connections { name: None, json } => {
            let ports = client.stats()?.ports;
            for port in ports.iter().filter(|port| port.limits.contains_key("connections")) {
                connections(&mut client, &port.name, *json, out)?;
            }
        }
        GroupCommand::Flush { of } => {
            client.flush(of.as_ref())?.map_or(Ok(()), |note| writeln!(out, "{note}"))?;
        }
        GroupCommand::Set { name, default_in, default_out, log, rules, save } => {
            let (default_in, default_out, log) = (*default_in, *default_out, *log);
            let (name, rules) = (name.clone(), rules.clone());
            let group = GroupConfig { name, default_in, default_out, log, rules };
            let set = format!("{} set", count(group.rules.len(), "rule"));
            writeln!(out, "{}: {}", group.name, client.put_group(&group)?.unwrap_or(set))?;
            also(*save, defaults, out)?;
        }
        GroupCommand::Del { name, if_exists, save } => {
            writeln!(out, "{}", removed(name.as_str(), client.remove_group(name, *if_exists)?))?;
            also(*save, defaults, out)?;
        }
        GroupCommand::List { json: true } => write_json(out, &client.stats()?.groups)?,
        GroupCommand::List { json: false } => {
            let groups = client.stats()?.groups;
            if groups.is_empty() {
                writeln!(out, "no groups")?;
            }
            for group in &groups {
                let (rules, vifs) =
                    (count(group.rules.len(), "rule"), count(group.vifs.len(), "interface"));
                writeln!(out, "{}: {}, {rules}, {vifs}", group.name, defaults_of(group))?;
            }
        }
        GroupCommand::Show { name } => {
            let stats = client.stats()?;
            let group = stats.groups.iter().find(|group| group.name == name.as_str());
            let missing = || CommandError::NoSuchGroup { name: name.to_string() };
            show(group.ok_or_else(missing)?, &stats, out)?;
        }
    }
    Ok(())
}

/// Lists the connections of an interface, as many at a time as one answer holds.
fn connections(
    client: &mut Client,
    name: &PortName,
    json: bool,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let mut from = Some(0);
    while let Some(at) = from {
        let page = client.connections(name, at)?;
        from = page.next;
        if json {
            let line = serde_json::to_string(&page).map_err(std::io::Error::from)?;
            writeln!(out, "{line}")?;
            continue;
        }
        for it in &page.connections {
            let vlan = it.vlan.map_or_else(String::new, |vlan| format!(", VLAN {vlan}"));
            let id = it.identifier.map_or_else(String::new, |id| format!(" id {id}"));
            writeln!(
                out,
                "{name}: {} {} {}{id} {} {}, idle {} s{vlan}",
                it.opened,
                it.protocol,
                it.own,
                it.peer,
                it.state,
                it.idle_ms / 1000
            )?;
        }
    }
    Ok(())
}

fn defaults_of(group: &GroupStats) -> String {
    let log = if group.log { ", refusals logged" } else { "" };
    format!("in {}, out {}{log}", group.default_in, group.default_out)
}

fn show(group: &GroupStats, stats: &SwitchStats, out: &mut dyn Write) -> std::io::Result<()> {
    writeln!(out, "{}: {}", group.name, defaults_of(group))?;
    for (number, rule) in (1..).zip(&group.rules) {
        writeln!(out, "  rule {number}: {rule}")?;
    }
    for vif in &group.vifs {
        let port = stats.ports.iter().find(|port| port.name == *vif);
        let connections = port.and_then(|port| port.limits.get("connections"));
        let connections = connections.map_or(0, |limit| limit.used);
        let connections = count(usize::try_from(connections).unwrap_or(usize::MAX), "connection");
        writeln!(out, "  {vif}: {connections}")?;
    }
    Ok(())
}
