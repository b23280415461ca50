//! `weir filter`: the frames that a port of the running switch may send and receive.

use std::io::Write;

use weir_api::Client;
use weir_config::Defaults;
use weir_text::count;

use super::save::also;
use super::status::only;
use super::{CommandError, write_json};
use crate::args::FilterCommand;
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
