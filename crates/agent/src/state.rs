//! The file that keeps the original settings, for the next agent after a crash.
//!
//! The file is written before the first change and removed after the last restore, so it exists exactly while something
//! may have to be restored. It lies in `/run`, which ends with the kernel whose settings the file holds.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use weir_limits::AGENT_STATE_BYTES_MAX;
use weir_wire::Mac;

use crate::guest::FileError;
use crate::napi::Napi;
use crate::protocol::mac_as_text;

/// Original settings of one interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Found {
    #[serde(with = "mac_as_text")]
    pub(crate) mac: Mac,
    pub(crate) napi_defer_hard_irqs: u64,
    /// `gro_flush_timeout` (ns).
    pub(crate) gro_flush_timeout: u64,
    /// NAPI instances whose settings differ from the interface's.
    #[serde(default)]
    pub(crate) napis: Vec<Napi>,
}

/// Reason why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The content is not an agent's.
    #[error("{} does not hold settings: {reason}; restore them by hand and remove it", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The fault.
        reason: String,
    },
    /// Another agent uses the file.
    #[error("another weir-agent is running: it holds {}", path.display())]
    InUse {
        /// The lock's file.
        path: PathBuf,
    },
}

/// The file, and the lock that reserves it for one agent.
#[derive(Debug)]
pub(crate) struct StateFile {
    path: PathBuf,
    /// The kernel releases the lock whenever and however the process ends.
    _lock: File,
}

impl StateFile {
    pub(crate) fn lock(path: &Path) -> Result<Self, StateError> {
        let lock_path = path.with_extension("lock");
        let lock = File::create(&lock_path).map_err(FileError::at(&lock_path))?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { path: path.into(), _lock: lock }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(StateError::InUse { path: lock_path }),
            Err(error) => Err(FileError { path: lock_path, source: error.into() }.into()),
        }
    }

    /// Returns the settings that an earlier agent has left; none without a file.
    pub(crate) fn load(&self) -> Result<Vec<Found>, StateError> {
        let mut bytes = Vec::new();
        match File::open(&self.path)
            .and_then(|file| file.take(AGENT_STATE_BYTES_MAX).read_to_end(&mut bytes))
        {
            Ok(_) => serde_json::from_slice(&bytes).map_err(|error| StateError::Content {
                path: self.path.clone(),
                reason: error.to_string(),
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(FileError::at(&self.path)(error).into()),
        }
    }

    /// Replaces the whole file; removes it if there is nothing to keep.
    pub(crate) fn save(&self, found: &[Found]) -> Result<(), StateError> {
        if found.is_empty() {
            return match fs::remove_file(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    Err(FileError::at(&self.path)(error).into())
                }
                _ => Ok(()),
            };
        }
        let bytes = serde_json::to_vec(found).map_err(|error| StateError::Content {
            path: self.path.clone(),
            reason: error.to_string(),
        })?;
        let new = self.path.with_extension("new");
        fs::write(&new, bytes).map_err(FileError::at(&new))?;
        Ok(fs::rename(&new, &self.path).map_err(FileError::at(&self.path))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(last: u8) -> Found {
        Found {
            mac: Mac([2, 0, 0, 0, 0, last]),
            napi_defer_hard_irqs: 1,
            gro_flush_timeout: 20_000,
            napis: vec![Napi { id: 513, napi_defer_hard_irqs: 0, gro_flush_timeout: 9 }],
        }
    }

    #[test]
    fn what_is_saved_is_loaded_and_nothing_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.state");
        let state = StateFile::lock(&path).unwrap();
        assert_eq!(state.load().unwrap(), []);
        state.save(&[found(1), found(2)]).unwrap();
        assert_eq!(state.load().unwrap(), [found(1), found(2)]);
        state.save(&[]).unwrap();
        assert!(!path.exists());
        state.save(&[]).unwrap();
    }

    #[test]
    fn a_second_agent_is_refused_until_the_first_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.state");
        let first = StateFile::lock(&path).unwrap();
        assert!(matches!(StateFile::lock(&path), Err(StateError::InUse { .. })));
        drop(first);
        assert!(StateFile::lock(&path).is_ok());
    }

    #[test]
    fn a_file_of_something_else_is_named_and_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.state");
        fs::write(&path, "half a li").unwrap();
        let error = StateFile::lock(&path).unwrap().load().unwrap_err();
        assert!(error.to_string().contains("agent.state does not hold settings"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"half a li");
    }
}
