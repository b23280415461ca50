//! `weir status`.

use std::io::Write;

use weir_api::{Client, ClientError};
use weir_config::{Defaults, PortName};
use weir_switch::stats::SwitchStats;

use super::{CommandError, write_as};
use crate::args::StatusArgs;
use crate::show::{self, Status};

/// `weir status`: the running switch on one screen.
///
/// # Errors
/// [`CommandError::Client`]
pub fn status(
    args: &StatusArgs,
    defaults: &Defaults,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let stats = Client::connect(defaults.control.as_path())?.stats()?;
    let status = Status::from(&stats);
    write_as(out, args.json, &status, show::status(&status))
}

/// Keeps only the ports with these names, if there are names.
///
/// # Errors
/// [`CommandError::Client`] if one of the ports does not exist.
pub(super) fn only(stats: &mut SwitchStats, names: &[PortName]) -> Result<(), CommandError> {
    let missing = names.iter().find(|name| !stats.ports.iter().any(|port| port.name == **name));
    if let Some(name) = missing {
        let message = format!("there is no interface or uplink called {name}");
        let names: Vec<_> = stats.ports.iter().map(|port| port.name.as_str()).collect();
        let help = (!names.is_empty()).then(|| format!("there are: {}", names.join(", ")));
        return Err(ClientError::Refused { message, help }.into());
    }
    stats.ports.retain(|port| names.is_empty() || names.contains(&port.name));
    Ok(())
}
