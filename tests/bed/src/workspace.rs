//! Paths: the workspace, cargo's output, and scratch space below `target/`.
//!
//! The release build is weir as it ships, with its test and load programs.

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

/// One cargo call builds all of these packages. For a single package, cargo would choose other features of its
/// dependencies and compile the data path again.
const BUILD: &str = "build --release --bins -p weir -p weir-attack -p weir-bench -p weir-fabric -p weir-groups -p weir-life -p weir-port-vhost -p weir-port-xdp -p weir-port-xen -p weir-vif -p weir-workbench -p weir-xen";

/// The examples that tests run. There are as many examples for measurements only, and linking one
/// takes as long as linking weir.
const EXAMPLES: &str = "--example cost --example guests --example instructions --example vhost_crate --example xen_control --example xen_vifs";

/// The directory of the built programs.
#[derive(Clone, Debug)]
pub struct Programs {
    dir: PathBuf,
}

impl Programs {
    /// Builds the programs that tests run, where they are out of date.
    pub fn build(workspace: &Workspace) -> Result<Self> {
        Self::build_with(workspace, EXAMPLES)
    }

    /// Builds the same programs and all examples.
    pub fn build_to_measure(workspace: &Workspace) -> Result<Self> {
        Self::build_with(workspace, "--examples")
    }

    fn build_with(workspace: &Workspace, examples: &str) -> Result<Self> {
        let cargo = Workspace::cargo();
        let words = BUILD.split(' ').chain(examples.split(' '));
        let argv: Vec<_> = std::iter::once(cargo.as_str()).chain(words).collect();
        run_in(&argv, &workspace.root, &[])?;
        Ok(Self { dir: workspace.build_dir()?.join("release") })
    }

    /// The programs in the directory of the program `weir`.
    pub fn beside(weir: &Path) -> Self {
        Self { dir: weir.parent().map(Path::to_owned).unwrap_or_default() }
    }

    /// The program `weir`.
    pub fn weir(&self) -> PathBuf {
        self.dir.join("weir")
    }

    /// The program that attacks weir.
    pub fn attack(&self) -> PathBuf {
        self.dir.join("attack")
    }

    /// The program of weir's long-run tests.
    pub fn life(&self) -> PathBuf {
        self.dir.join("life")
    }

    /// An example's program.
    pub fn example(&self, name: &str) -> PathBuf {
        self.dir.join("examples").join(name)
    }
}
