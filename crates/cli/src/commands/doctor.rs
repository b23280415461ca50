//! `weir doctor`: asks the switch, looks at the host, and says what is wrong.

use std::io::Write;

use serde::Serialize;
use weir_api::{Client, ClientError};
use weir_config::Defaults;

use super::{CommandError, write_json};
use crate::args::DoctorArgs;
use crate::doctor::{CHECKS, Facts, Finding, examine, lines, look_at_host};

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'f> {
    /// All that was looked for.
    checks: Vec<&'static str>,
    /// What they found.
    findings: &'f [Finding],
}

/// `weir doctor`
///
/// # Errors
/// [`CommandError::Unwell`] if something is wrong; the findings are printed then as well.
pub fn doctor(
    args: &DoctorArgs,
    defaults: &Defaults,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let mut facts = match Client::connect(defaults.control.as_path()) {
        Ok(mut client) => of_switch(&mut client)?,
        Err(ClientError::NotRunning { .. }) => Facts::default(),
        Err(error) => return Err(error.into()),
    };
    facts.host = look_at_host(&facts.vifs);
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

fn of_switch(client: &mut Client) -> Result<Facts, ClientError> {
    let stats = client.stats()?;
    let mut facts = Facts { vifs: client.vifs()?, ..Facts::default() };
    for port in &stats.ports {
        match client.explain(&port.name) {
            Ok(explanation) => _ = facts.explained.insert(port.name.clone(), explanation),
            // It has just gone.
            Err(ClientError::Refused { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    facts.switch = Some(stats);
    Ok(facts)
}
