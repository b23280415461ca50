//! Front ends out of Debian's packages that are unpacked in `target/frontends`, not installed: an older QEMU and a newer
//! one beside the one that is installed.

use std::path::{Path, PathBuf};

use weir_bed::{
    error::{Error, Result},
    packages,
    process::run,
    qemu::Qemu,
    workspace::Workspace,
};

/// The release whose own QEMU is 7.2, and what QEMU 7.2 consists of. Its libraries are those of the installed one.
const OLD_RELEASE: &str = "bookworm";
const OLD_QEMU_PACKAGES: [&str; 5] =
    ["qemu-system-common", "qemu-system-data", "seabios", "ipxe-qemu", "qemu-system-x86"];

/// What is newer in the backports, and what is not.
const NEW_QEMU_PACKAGES: [&str; 4] =
    ["qemu-system-common", "qemu-system-data", "seabios", "qemu-system-x86"];
const DEVICE_ROMS_PACKAGE: &str = "ipxe-qemu";

/// What was unpacked.
#[derive(Clone, Debug)]
pub struct Parts {
    dir: PathBuf,
}

impl Parts {
    /// In `target/frontends`; nothing is there before it is asked for.
    pub fn new(workspace: &Workspace) -> Result<Self> {
        Ok(Self { dir: workspace.target("frontends")? })
    }

    /// Debian 12's own QEMU, and its program.
    pub fn old_qemu(&self) -> Result<(Qemu, String)> {
        let root = self.dir.join("qemu-7.2");
        let program = root.join("usr/bin/qemu-system-x86_64");
        if !program.exists() {
            println!("fetching QEMU 7.2");
            for package in OLD_QEMU_PACKAGES {
                packages::fetch(&format!("{package}/{OLD_RELEASE}"), &root)?;
            }
        }
        runnable(&program)
    }

    /// A QEMU of the release's backports, 10 for Debian 12, and its program.
    pub fn new_qemu(&self, workspace: &Workspace) -> Result<(Qemu, String)> {
        let root = self.dir.join("qemu-new");
        let program = root.join("usr/bin/qemu-system-x86_64");
        if !program.exists() {
            println!("fetching QEMU from backports");
            packages::unpack_from_backports(workspace, &NEW_QEMU_PACKAGES, &root)?;
            packages::fetch(DEVICE_ROMS_PACKAGE, &root)?;
        }
        runnable(&program)
    }
}

/// A QEMU whose libraries are those of the installed one.
fn runnable(program: &Path) -> Result<(Qemu, String)> {
    let libraries = run(&["ldd".as_ref(), program.as_os_str()])?;
    if let Some(missing) = libraries.lines().find(|line| line.ends_with("not found")) {
        return Err(Error::parse("a library of an unpacked QEMU", missing.trim()));
    }
    let program = program.to_string_lossy().into_owned();
    Ok((Qemu::at(&program)?, program))
}
