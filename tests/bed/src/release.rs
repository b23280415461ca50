//! The release build: weir as it ships, and the programs that load and count it.

use std::path::{Path, PathBuf};

use crate::{error::Result, process::run_in, workspace::Workspace};

/// All in one call. For a package by itself cargo chooses other features of what it depends on, and would compile the
/// data path anew for each.
const BUILD: &str = "build --release --bins -p weir -p weir-attack -p weir-fabric -p weir-life -p weir-port-vhost -p weir-port-xdp -p weir-port-xen -p weir-vif -p weir-xen";

/// The examples that tests run. Those that only measure are as many again, and each is linked as weir is.
const EXAMPLES: &str = "--example answer --example attach --example instructions --example paced --example vhost_crate --example xen_control --example xen_vifs";

/// What was built.
#[derive(Clone, Debug)]
pub struct Programs {
    dir: PathBuf,
}

impl Programs {
    /// Builds what is not up to date of what tests run.
    pub fn build(workspace: &Workspace) -> Result<Self> {
        Self::build_with(workspace, EXAMPLES)
    }

    /// The same, with all examples.
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

    /// What was built beside the program `weir`.
    pub fn beside(weir: &Path) -> Self {
        Self { dir: weir.parent().map(Path::to_owned).unwrap_or_default() }
    }

    /// weir's program.
    pub fn weir(&self) -> PathBuf {
        self.dir.join("weir")
    }

    /// The program that attacks it.
    pub fn attack(&self) -> PathBuf {
        self.dir.join("attack")
    }

    /// The program that has it live long.
    pub fn life(&self) -> PathBuf {
        self.dir.join("life")
    }

    /// An example's program.
    pub fn example(&self, name: &str) -> PathBuf {
        self.dir.join("examples").join(name)
    }
}
