//! The file that keeps the original settings of an uplink's interface, in case weir is killed.
//!
//! There is one file for each changed interface, beside the control socket, and one for its interrupts. It is written
//! before the first setting changes, and removed after the last is restored. Its weir holds a lock on it. A file
//! without a lock is left over, and the next weir with that control socket restores its settings.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use weir_agent::napi::Napi;
use weir_config::{InterfaceName, SocketPath};
use weir_foreign::place::{Place, open_own};
use weir_limits::UPLINK_FOUND_BYTES_MAX;

use super::interrupts::FoundIrqs;

/// The end of such a file's name, which consists of the control socket's name, the interface's and this.
const SUFFIX: &str = "found";
/// The suffix of the interface's name if the file is for its interrupts. No name of an interface has a colon.
const OF_INTERRUPTS: &str = ":irqs";
/// The time for which a file's owner may take to end. After that the owner counts as running.
const HELPER_END: Duration = Duration::from_millis(500);

/// An interface's original settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Found {
    pub(super) interface: InterfaceName,
    /// The interface's index, which distinguishes it from a later interface of the same name.
    pub(super) ifindex: u32,
    pub(super) settings: Settings,
}

/// Settings that weir changes: one of the first two, and the last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Settings {
    NapiTimer(NapiTimer),
    /// The card's `rx-usecs`, in microseconds.
    RxUsecs(u32),
    /// The processors of the card's interrupts.
    Interrupts(FoundIrqs),
}

/// The kernel's timer of an interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NapiTimer {
    /// The timer's interval, in nanoseconds.
    pub(super) gro_flush_timeout: u64,
    pub(super) napi_defer_hard_irqs: u64,
    /// NAPI instances whose settings differ from the interface's.
    #[serde(default)]
    pub(super) napis: Vec<Napi>,
}

/// The reason why such a file cannot be used.
#[derive(Debug, Error)]
pub(super) enum FoundError {
    /// A system call failed.
    #[error("cannot {step} {}: {source}", path.display())]
    Io {
        /// The step that failed.
        step: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The content is not in weir's format.
    #[error("{} does not hold an interface's settings: {reason}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The fault in the content.
        reason: String,
    },
    /// The file exists already: it belongs to another weir, or to one whose settings could not be restored.
    #[error("{} exists already, so the interface's present settings are not its owner's", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
}

/// A file that this process has written. Dropping it leaves the file, as a killed process does.
#[derive(Debug)]
pub(super) struct Kept {
    path: PathBuf,
    /// The kernel releases the lock when the process ends, for whatever reason.
    _lock: File,
}

impl Kept {
    /// Writes the file as a whole, and locked from the moment when it becomes visible.
    pub(super) fn write(control: &SocketPath, found: &Found) -> Result<Self, FoundError> {
        let path = file_of(control, found);
        let io_error = |step, path: &Path| {
            let path = path.to_owned();
            move |source| FoundError::Io { step, path, source }
        };
        let parent = path.parent().unwrap_or(Path::new("/"));
        let place = Place::make(&path).map_err(io_error("use the directory", parent))?;
        let bytes = serde_json::to_vec(found).map_err(|error| FoundError::Content {
            path: path.clone(),
            reason: error.to_string(),
        })?;
        if bytes.len() as u64 > UPLINK_FOUND_BYTES_MAX {
            return Err(FoundError::Content { path, reason: "it would be too long".into() });
        }
        let at = place.path();
        let new = at.with_extension("new");
        // A leftover file is removed first. A link of another user, in a directory that others can write, is never
        // followed.
        let _ = fs::remove_file(&new);
        let mut file = File::create_new(&new).map_err(io_error("make", &new))?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|errno| io_error("lock", &new)(errno.into()))?;
        file.write_all(&bytes).map_err(io_error("write", &new))?;
        match renameat_with(CWD, &new, CWD, &at, RenameFlags::NOREPLACE) {
            Ok(()) => Ok(Self { path, _lock: file }),
            Err(errno) => {
                // A leftover file is replaced by the next attempt.
                let _ = fs::remove_file(&new);
                match errno {
                    Errno::EXIST => Err(FoundError::Exists { path }),
                    errno => Err(io_error("make", &path)(errno.into())),
                }
            }
        }
    }

    /// Removes the file, because there is nothing left to restore.
    pub(super) fn remove(self) {
        let removed = Place::of(&self.path).and_then(|place| fs::remove_file(place.path()));
        if let Err(error) = removed {
            tracing::warn!(file = %self.path.display(), %error, "cannot remove a file");
        }
    }
}

/// The settings left by killed weirs with this control socket, each with its file, which the caller removes. Files of
/// running weirs are skipped.
pub(super) fn left_over(control: &SocketPath) -> Vec<Result<(Found, Kept), FoundError>> {
    let Some((dir, prefix)) = control.as_path().parent().zip(control.as_path().file_name()) else {
        return Vec::new();
    };
    // Without the directory there is no file.
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let paths = entries.flatten().map(|entry| entry.path()).filter(|path| is_one(path, prefix));
    paths.filter_map(|path| load(path).transpose()).collect()
}

fn is_one(path: &Path, prefix: &OsStr) -> bool {
    let name = path.file_name().map(OsStr::as_bytes).unwrap_or_default();
    let rest = name.strip_prefix(prefix.as_bytes()).and_then(|rest| rest.strip_prefix(b"."));
    rest.is_some() && path.extension() == Some(OsStr::new(SUFFIX))
}

/// The content of a file; `None` if a running weir holds it.
fn load(path: PathBuf) -> Result<Option<(Found, Kept)>, FoundError> {
    let io_error = |step| {
        let path = path.clone();
        move |source| FoundError::Io { step, path, source }
    };
    // In a directory that others can write, a file of another user could block weir, or make it change the host's
    // interfaces.
    let file = open_own(&path).map_err(io_error("open"))?;
    // The helper of a just-killed weir holds the lock until it notices the end of its weir.
    let until = Instant::now() + HELPER_END;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => break,
            Err(Errno::WOULDBLOCK) if Instant::now() < until => std::thread::sleep(HELPER_END / 50),
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(errno) => return Err(io_error("lock")(errno.into())),
        }
    }
    let content = |reason| FoundError::Content { path: path.clone(), reason };
    let mut bytes = Vec::new();
    (&file).take(UPLINK_FOUND_BYTES_MAX).read_to_end(&mut bytes).map_err(io_error("read"))?;
    let found = serde_json::from_slice(&bytes).map_err(|error| content(error.to_string()))?;
    Ok(Some((found, Kept { path, _lock: file })))
}

fn file_of(control: &SocketPath, found: &Found) -> PathBuf {
    let Found { interface, settings, .. } = found;
    let of = if matches!(settings, Settings::Interrupts(_)) { OF_INTERRUPTS } else { "" };
    let mut name = control.as_path().file_name().unwrap_or_default().to_owned();
    name.push(format!(".{interface}{of}.{SUFFIX}"));
    control.as_path().with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control(dir: &tempfile::TempDir) -> SocketPath {
        dir.path().join("control.sock").to_str().unwrap().parse().unwrap()
    }

    fn found(interface: &str) -> Found {
        let interface = interface.parse().unwrap();
        let napis = vec![Napi { id: 513, napi_defer_hard_irqs: 0, gro_flush_timeout: 9 }];
        let timer = NapiTimer { gro_flush_timeout: 20_000, napi_defer_hard_irqs: 1, napis };
        Found { interface, ifindex: 7, settings: Settings::NapiTimer(timer) }
    }

    #[test]
    fn what_a_weir_has_left_is_found_once_and_only_by_the_next_of_its_control_socket() {
        let dir = tempfile::tempdir().unwrap();
        let control = control(&dir);
        let other = dir.path().join("other.sock").to_str().unwrap().parse().unwrap();
        let kept = Kept::write(&control, &found("eth0.5")).unwrap();
        assert!(left_over(&control).is_empty(), "the weir that wrote it still runs");
        drop(kept);
        assert!(left_over(&other).is_empty());
        let mut left = left_over(&control);
        assert_eq!(left.len(), 1);
        let (what, kept) = left.remove(0).unwrap();
        assert_eq!(what, found("eth0.5"));
        kept.remove();
        assert!(left_over(&control).is_empty());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "no file is left");
    }

    #[test]
    fn what_is_left_over_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let control = control(&dir);
        drop(Kept::write(&control, &found("eth0")).unwrap());
        let changed = Found { settings: Settings::RxUsecs(1), ..found("eth0") };
        let error = Kept::write(&control, &changed).unwrap_err();
        assert!(matches!(error, FoundError::Exists { .. }), "{error}");
        assert_eq!(left_over(&control).remove(0).unwrap().0, found("eth0"));
        assert!(Kept::write(&control, &found("eth1")).is_ok(), "another interface is another file");
    }

    #[test]
    fn root_a_file_of_another_user_is_not_believed() {
        if !weir_testing::is_root("to give a file away") {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let control = control(&dir);
        drop(Kept::write(&control, &found("eth0")).unwrap());
        std::os::unix::fs::chown(file_of(&control, &found("eth0")), Some(1), None).unwrap();
        let error = left_over(&control).remove(0).unwrap_err();
        assert!(error.to_string().contains("no file of this user's alone"), "{error:?}");
    }

    #[test]
    fn what_keeps_whoever_opens_it_waiting_is_not_opened() {
        use rustix::fs::{FileType, Mode, mknodat};
        let dir = tempfile::tempdir().unwrap();
        let control = control(&dir);
        let path = file_of(&control, &found("eth0"));
        mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap();
        assert!(left_over(&control).remove(0).is_err());
        fs::remove_file(&path).unwrap();
        let elsewhere = dir.path().join("elsewhere");
        fs::write(&elsewhere, serde_json::to_vec(&found("eth0")).unwrap()).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        assert!(left_over(&control).remove(0).is_err());
    }

    #[test]
    fn a_file_of_something_else_is_named_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let control = control(&dir);
        for (bytes, says) in [
            (&b"half a li"[..], "does not hold an interface's settings"),
            (
                br#"{"interface":"../x","ifindex":1,"settings":{"rx_usecs":0}}"#,
                "does not hold an interface's settings: `../x`",
            ),
            (&[0; 100_000], "does not hold an interface's settings"),
        ] {
            let path = file_of(&control, &found("eth0"));
            fs::write(&path, bytes).unwrap();
            let error = left_over(&control).remove(0).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
            assert_eq!(fs::read(&path).unwrap(), bytes);
        }
        let nowhere = dir.path().join("gone/control.sock").to_str().unwrap().parse().unwrap();
        assert!(left_over(&nowhere).is_empty());
    }
}
