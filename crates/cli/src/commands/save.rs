//! `weir diff`, `weir reload` and `weir save`: the file and the running settings. The file is read
//! and written with the rights of the caller. weir itself writes no configuration file.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, BufRead, IsTerminal, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use weir_api::{Client, Reloaded};
use weir_config::reload::{Difference, DifferenceKind};
use weir_config::{Config, Defaults, open_file, read_text};
use weir_foreign::place::Place;
use weir_switch::control::{Extent, ReloadOutcome};

use super::CommandError;
use super::write_as;
use super::write_json;
use crate::args::{DiffArgs, ReloadArgs, SaveArgs};
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
    let extent = if args.partly { Extent::Possible } else { Extent::Whole };
    let reloaded = client.reload(text, extent)?;
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
fn good_text(path: &Path, defaults: &Defaults) -> Result<String, CommandError> {
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

/// `weir save`
///
/// # Errors
/// [`CommandError::NotSaved`] if the file is unchanged; otherwise the errors of `weir diff`.
pub fn save(args: &SaveArgs, defaults: &Defaults, out: &mut dyn Write) -> Result<(), CommandError> {
    let mut client = Client::connect(defaults.control.as_path())?;
    let path = path_of(args.file.as_deref(), &mut client)?;
    // A link's target is written, not the link.
    let place = Place::of_target(&path).map_err(|error| not_saved(&path, error))?;
    let path = place.shown();
    let old = good_text(&place.path(), defaults)?;
    let new = client.saved(old.clone())?;
    if new == old {
        return Ok(writeln!(out, "{} says what runs", path.display())?);
    }
    let left = client.diff(new.clone())?;
    if left.is_otherwise() {
        let difference = show::difference(&left);
        return Err(not_saved(
            &path,
            format!("it would say otherwise than what runs:\n{difference}"),
        ));
    }
    writeln!(out, "{} says otherwise than what runs (in the file -> what runs):", path.display())?;
    write!(out, "{}", show::saved(&client.diff(old.clone())?, &left))?;
    if !args.yes && !agreed(out)? {
        return Err(not_saved(&path, "it is as it was"));
    }
    replace(&place.path(), &old, &new).map_err(|error| not_saved(&path, error))?;
    // This tells weir that its file has these settings. Settings that others have changed meanwhile
    // stay as they are.
    if client.reload(new, Extent::Nothing)?.outcome == ReloadOutcome::Refused {
        return Err(CommandError::SavedBefore { path });
    }
    Ok(writeln!(out, "saved: {} says what runs", path.display())?)
}

/// Saves after another command, if `wanted`.
pub(super) fn also(
    wanted: bool,
    defaults: &Defaults,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    match wanted {
        true => save(&SaveArgs { file: None, yes: true }, defaults, out),
        false => Ok(()),
    }
}

fn not_saved(path: &Path, why: impl ToString) -> CommandError {
    CommandError::NotSaved { path: path.into(), why: why.to_string() }
}

fn agreed(out: &mut dyn Write) -> Result<bool, CommandError> {
    let input = io::stdin().lock();
    if !input.is_terminal() {
        return Err(CommandError::NobodyToAsk);
    }
    write!(out, "Write what runs into the file? [y/N] ")?;
    out.flush()?;
    let answer = input.lines().next().transpose()?.unwrap_or_default();
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Replaces a file with the content `old` by `new`. A file with other content is left alone.
fn replace(path: &Path, old: &str, new: &str) -> io::Result<()> {
    let before = fs::metadata(path)?;
    let beside = beside(path)?;
    let written = write_beside(&beside, &before, new).and_then(|()| {
        let now = read_text(open_file(path).map_err(io::Error::other)?, path);
        let file = fs::metadata(path)?;
        if now.map_err(io::Error::other)? != old || file.ino() != before.ino() {
            return Err(io::Error::other("somebody else has changed it meanwhile: save again"));
        }
        fs::rename(&beside, path)
    });
    if let Err(error) = written {
        let _ = fs::remove_file(&beside);
        return Err(error);
    }
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}

/// Creates an empty file beside `path`, which only this process uses.
fn beside(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
    let beside = path.with_file_name(format!(".{name}.{}.new", std::process::id()));
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
    Ok(beside)
}

/// Writes `text` to the disk, into a file with the owner and mode of the old one.
fn write_beside(beside: &Path, before: &fs::Metadata, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(beside)?;
    file.write_all(text.as_bytes())?;
    let made = file.metadata()?;
    if (made.uid(), made.gid()) != (before.uid(), before.gid()) {
        fchown(&file, Some(before.uid()), Some(before.gid())).map_err(|error| {
            io::Error::other(format!("a new file cannot have the old one's owner: {error}"))
        })?;
    }
    file.set_permissions(Permissions::from_mode(before.mode() & 0o7777))?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_file_that_is_replaced_keeps_its_mode_and_is_what_a_link_names() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("weir.toml");
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        let link = dir.path().join("link");
        symlink(&file, &link).unwrap();
        replace(&Place::of_target(&link).unwrap().path(), "old", "new").unwrap();
        assert_eq!(fs::read_to_string(&link).unwrap(), "new");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o7777, 0o640);
    }

    #[test]
    fn a_file_that_somebody_has_changed_meanwhile_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("weir.toml");
        fs::write(&file, "another").unwrap();
        let error = replace(&file, "old", "new").unwrap_err();
        assert!(error.to_string().contains("meanwhile"), "{error}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "another");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left behind");
    }
}
