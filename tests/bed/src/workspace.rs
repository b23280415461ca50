//! Paths: the workspace, cargo's output, and scratch space below `target/`.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::id,
    sync::atomic::{AtomicU32, Ordering},
};

use crate::{
    error::{Error, Result},
    process::run_in,
};

/// The longest path a Unix socket may have (`sun_path` without its closing NUL).
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// The workspace's directories.
#[derive(Clone, Debug)]
pub struct Workspace {
    /// The workspace's root.
    pub root: PathBuf,
}

impl Workspace {
    /// The workspace in which this crate was built.
    pub fn find() -> Result<Self> {
        // The manifest is in tests/bed, two directories below the root.
        let manifest_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
        let root = manifest_dir.ancestors().nth(2).unwrap_or(manifest_dir);
        Ok(Self { root: root.canonicalize().map_err(Error::io("find", root))? })
    }

    /// The cargo that runs this program, or the one in `PATH`.
    pub fn cargo() -> String {
        env::var("CARGO").unwrap_or_else(|_| String::from("cargo"))
    }

    /// `cargo metadata` of the workspace's own crates.
    pub fn metadata(&self) -> Result<serde_json::Value> {
        let cargo = Self::cargo();
        let argv = [cargo.as_str(), "metadata", "--no-deps", "--format-version", "1"];
        let text = run_in(&argv, &self.root, &[])?;
        serde_json::from_str(&text).map_err(|_| Error::parse("cargo's metadata", text))
    }

    /// The directory of cargo's build output, as cargo reports it.
    pub fn build_dir(&self) -> Result<PathBuf> {
        let metadata = self.metadata()?;
        let dir = metadata["target_directory"].as_str();
        dir.map(PathBuf::from).ok_or_else(|| Error::parse("target_directory", metadata.to_string()))
    }

    /// `target/NAME`. The directory is made if it is missing.
    pub fn target(&self, name: &str) -> Result<PathBuf> {
        let dir = self.root.join("target").join(name);
        fs::create_dir_all(&dir).map_err(Error::io("make", &dir))?;
        Ok(dir)
    }

    /// A new, empty directory for one run of a switch: sockets, configuration and logs.
    ///
    /// The directory stays for readers of the logs. [`Workspace::clear_runs`] removes it.
    pub fn run_dir(&self, label: &str) -> Result<PathBuf> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = self.target("run")?.join(format!("{}-{number}-{label}", id()));
        fs::create_dir_all(&dir).map_err(Error::io("make", &dir))?;
        Ok(dir)
    }

    /// Removes the run directories of processes that have ended.
    pub fn clear_runs(&self) -> Result<()> {
        let runs = self.target("run")?;
        for entry in fs::read_dir(&runs).map_err(Error::io("list", &runs))?.flatten() {
            let name = entry.file_name();
            let owner = name.to_string_lossy().split('-').next().map(str::to_owned);
            if owner.is_none_or(|pid| !Path::new("/proc").join(pid).exists()) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        Ok(())
    }
}

/// `dir/name` as a socket's path; an error if it is too long for the kernel.
pub fn socket_path(dir: &Path, name: &str) -> Result<PathBuf> {
    let path = dir.join(name);
    if path.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
        let text = path.display().to_string();
        return Err(Error::parse(
            "a socket path of at most 107 bytes (use a shorter checkout path)",
            text,
        ));
    }
    Ok(path)
}
