//! The release build: weir as it ships, and its test and load programs.

use std::path::{Path, PathBuf};

use crate::{error::Result, process::run_in, workspace::Workspace};

/// One cargo call builds all of these packages. For a single package, cargo would choose other features of its
/// dependencies and compile the data path again.
const BUILD: &str = "build --release --bins -p weir -p weir-attack -p weir-fabric -p weir-life -p weir-port-vhost -p weir-port-xdp -p weir-port-xen -p weir-vif -p weir-xen";

/// The examples that tests run. Those for measurements only are as many again, and each is linked like weir.
const EXAMPLES: &str = "--example answer --example attach --example instructions --example paced --example vhost_crate --example xen_control --example xen_vifs";

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
