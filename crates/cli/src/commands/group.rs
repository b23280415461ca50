//! `weir group`: which connections guests may open.

use std::io::Write;

use weir_api::Client;
use weir_config::Defaults;
use weir_switch::stats::{GroupStats, SwitchStats};
use weir_text::count;

use super::{CommandError, write_json};
use crate::args::GroupCommand;

/// `weir group`
///
/// # Errors
/// [`CommandError::Client`], [`CommandError::NoSuchGroup`].
pub fn group(
    command: &GroupCommand,
    defaults: &Defaults,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let stats = Client::connect(defaults.control.as_path())?.stats()?;
    match command {
        GroupCommand::List { json: true } => write_json(out, &stats.groups)?,
        GroupCommand::List { json: false } if stats.groups.is_empty() => {
            writeln!(out, "no groups")?;
        }
        GroupCommand::List { json: false } => {
            for group in &stats.groups {
                let (rules, vifs) =
                    (count(group.rules.len(), "rule"), count(group.vifs.len(), "interface"));
                writeln!(out, "{}: {}, {rules}, {vifs}", group.name, defaults_of(group))?;
            }
        }
        GroupCommand::Show { name } => {
            let group = stats.groups.iter().find(|group| group.name == name.as_str());
            let group =
                group.ok_or_else(|| CommandError::NoSuchGroup { name: name.to_string() })?;
            show(group, &stats, out)?;
        }
    }
    Ok(())
}

fn defaults_of(group: &GroupStats) -> String {
    format!("in {}, out {}", group.default_in, group.default_out)
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
