//! `weir save`: writes the running settings into the file, with the rights of the caller. weir itself writes no
//! configuration file.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, BufRead, IsTerminal, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use weir_api::Client;
use weir_config::reload::DifferenceKind;
use weir_config::{Defaults, open_file, read_text};
use weir_foreign::place::Place;

use super::CommandError;
use super::reload::{good_text, path_of};
use crate::args::SaveArgs;
use crate::show;

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
    use DifferenceKind::{Added, Changed, Removed, Unlisted};
    if [Added, Removed, Changed, Unlisted].into_iter().any(|kind| left.count(kind) > 0) {
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
    // This tells weir that its file has these settings. Settings that take a restart stay unchanged.
    client.reload(new, true)?;
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
