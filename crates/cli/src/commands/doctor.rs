//! `weir doctor`: asks the switch, examines the host, and reports faults.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use rustix::net::sockopt;
use serde::Serialize;
use weir_api::{Client, ClientError};
use weir_config::reload::DifferenceKind;
use weir_config::{Config, Defaults, PLACEMENT};
use weir_doctor::{CHECKS, Facts, Finding, examine, lines, look_at_host, watched};
use weir_switch::explain::Explanation;

use super::save::path_of;
use super::{CommandError, write_json};
use crate::args::DoctorArgs;

/// The time between two looks at the counters: a VM that was turned away tries again in the meantime.
const LOOK: Duration = Duration::from_secs(3);

/// The output of `--json`.
#[derive(Serialize)]
struct Report<'f> {
    /// All checks.
    checks: Vec<&'static str>,
    /// The findings of the checks.
    findings: &'f [Finding],
}

/// `weir doctor`
///
/// # Errors
/// [`CommandError::Unwell`] if something is wrong; the findings are printed in this case too.
pub fn doctor(
    args: &DoctorArgs,
    defaults: &Defaults,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let connect = || Client::connect(defaults.control.as_path());
    let facts = match connect() {
        Ok(mut client) => {
            let before = client.stats()?;
            let seen = client.watch(&watched(&before), LOOK).unwrap_or_default();
            let mut client = connect()?;
            let file = path_of(None, &mut client);
            let mut facts = Facts { before: Some(before), seen, ..of_switch(&mut client)? };
            // For a user who may not read the file, the checks that need it are left out.
            if let Ok(file) = file {
                facts.look_at_file(&file, defaults);
                facts.host.unlike_file = unlike(connect()?, &file);
            }
            facts
        }
        Err(ClientError::NotRunning { .. }) => {
            let mut facts = Facts { host: look_at_host(&[], None), ..Facts::default() };
            facts.look_at_file(Path::new(Config::DEFAULT_PATH), defaults);
            facts
        }
        Err(error) => return Err(error.into()),
    };
    let findings = examine(&facts);
    let wrong = findings.iter().filter(|finding| finding.wrong).count();
    match args.json {
        true => {
            let checks = CHECKS.iter().map(|check| check.name).collect();
            write_json(out, &Report { checks, findings: &findings })?;
        }
        false => {
            write!(out, "{}", lines(&findings))?;
            let (checks, found) = (CHECKS.len(), weir_text::count(wrong, "fault"));
            writeln!(out, "{checks} checks: {found}")?;
        }
    }
    if wrong > 0 { Err(CommandError::Unwell) } else { Ok(()) }
}

/// The tables of the file that differ from the running configuration. Interfaces that were never in the file do not
/// count. The list is empty if this user may not ask weir.
fn unlike(mut client: Client, file: &Path) -> Vec<String> {
    let Ok(text) = fs::read_to_string(file) else { return Vec::new() };
    let tables = client.diff(text).map(|difference| difference.tables).unwrap_or_default();
    let differ = tables.into_iter().filter(|it| it.kind != DifferenceKind::Unlisted);
    differ.map(|it| it.table).collect()
}

fn of_switch(client: &mut Client) -> Result<Facts, ClientError> {
    // The peer of the socket is the process that listens on it.
    let peer = client.socket().ok().and_then(|socket| sockopt::socket_peercred(socket).ok());
    let server = peer.and_then(|peer| u32::try_from(peer.pid.as_raw_nonzero().get()).ok());
    let (stats, vifs) = (client.stats()?, client.vifs()?);
    let mut facts = Facts { vifs, ..Facts::default() };
    let placement = PLACEMENT.parse().ok();
    for name in stats.ports.iter().map(|port| &port.name).chain(&placement) {
        match client.explain(name) {
            Ok(Explanation::Placement(placement)) => facts.placement = Some(*placement),
            Ok(explanation) => _ = facts.explained.insert(name.clone(), explanation),
            // The port has just been removed.
            Err(ClientError::Refused { .. } | ClientError::Later { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    // The host comes last: looking takes seconds on a busy one, and weir closes a connection that asks nothing.
    Ok(Facts { host: look_at_host(&facts.vifs, server), switch: Some(stats), ..facts })
}
