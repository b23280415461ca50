//! `weir diff` and `weir reload`. The file is read with the rights of the caller, and its text is sent.

use std::io::Write;
use std::path::{Path, PathBuf};

use weir_api::{Client, Reloaded};
use weir_config::reload::{Difference, DifferenceKind};
use weir_config::{Config, Defaults, open_file, read_text};
use weir_switch::control::ReloadOutcome;

use super::{CommandError, write_as, write_json};
use crate::args::{DiffArgs, ReloadArgs};
use crate::show;

/// `weir diff`
///
/// # Errors
/// [`CommandError::Config`] for a bad file, [`CommandError::NoFile`], [`CommandError::Client`]
pub fn diff(args: &DiffArgs, defaults: &Defaults, out: &mut dyn Write) -> Result<(), CommandError> {
    let mut client = Client::connect(defaults.control.as_path())?;
    let text = text(args.file.as_deref(), &mut client, defaults)?;
    let difference = client.diff(text)?;
    write_as(out, args.json, &difference, show::difference(&difference))
}

/// `weir reload`
///
/// # Errors
/// [`CommandError::Fixed`] or [`CommandError::Undone`] if nothing has changed; otherwise the errors of [`diff`].
pub fn reload(
    args: &ReloadArgs,
    defaults: &Defaults,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let mut client = Client::connect(defaults.control.as_path())?;
    let text = text(args.file.as_deref(), &mut client, defaults)?;
    let reloaded = client.reload(text, args.partly)?;
    if args.json && matches!(reloaded.outcome, ReloadOutcome::Applied { .. }) {
        return write_json(out, &reloaded);
    }
    let Reloaded { difference, outcome } = reloaded;
    match outcome {
        ReloadOutcome::Refused => Err(fixed(&difference)),
        ReloadOutcome::Undone { failure, help, notes } => {
            let help: Vec<_> = help.into_iter().chain(notes).collect();
            Err(CommandError::Undone { failure, help: (!help.is_empty()).then(|| help.join("\n")) })
        }
        ReloadOutcome::Applied { notes } => {
            write!(out, "{}", show::difference(&difference))?;
            if !difference.is_empty() {
                writeln!(out, "{}", summary(&difference))?;
            }
            for note in notes {
                writeln!(out, "note: {note}")?;
            }
            Ok(())
        }
    }
}

/// `weir upgrade`
///
/// # Errors
/// [`CommandError::Client`]; the old weir continues then.
pub fn upgrade(defaults: &Defaults, out: &mut dyn Write) -> Result<(), CommandError> {
    let note = Client::connect(defaults.control.as_path())?.upgrade()?;
    match note {
        Some(note) => Ok(writeln!(out, "upgraded: {note}")?),
        None => Ok(writeln!(out, "upgraded")?),
    }
}

/// The text of the file, or of the file with which weir was started, if it is valid.
fn text(
    file: Option<&Path>,
    client: &mut Client,
    defaults: &Defaults,
) -> Result<String, CommandError> {
    good_text(&path_of(file, client)?, defaults)
}

/// The path of the file, or of the file with which weir was started.
pub(super) fn path_of(file: Option<&Path>, client: &mut Client) -> Result<PathBuf, CommandError> {
    match file {
        Some(file) => Ok(file.into()),
        None => client.config_file()?.ok_or(CommandError::NoFile),
    }
}

/// The text of a file without mistakes.
pub(super) fn good_text(path: &Path, defaults: &Defaults) -> Result<String, CommandError> {
    let text = read_text(open_file(path)?, path)?;
    // This check shows the user the file's lines. The running weir parses the text itself.
    let defaults = Defaults { control_named: true, ..defaults.clone() };
    Config::from_toml(&path.display().to_string(), &text, &defaults)?;
    Ok(text)
}

fn fixed(difference: &Difference) -> CommandError {
    let fixed: Vec<_> = difference.fixed().collect();
    let mut help: String = fixed.iter().map(|(what, why)| format!("{what}: {why}\n")).collect();
    help.push_str("`weir reload --partly` changes the rest; `weir diff` shows all of it");
    CommandError::Fixed { number: fixed.len(), help }
}

fn need_a_restart(left: usize) -> String {
    let needs = if left == 1 { "needs" } else { "need" };
    format!("{} {needs} a restart", weir_text::count(left, "setting"))
}

fn summary(difference: &Difference) -> String {
    let count = |kind| difference.count(kind);
    let (added, removed) = (count(DifferenceKind::Added), count(DifferenceKind::Removed));
    let done = format!(
        "reloaded: {added} added, {removed} removed, {} changed",
        count(DifferenceKind::Changed)
    );
    match difference.fixed().count() {
        0 => done,
        left => format!("{done}; {}", need_a_restart(left)),
    }
}
