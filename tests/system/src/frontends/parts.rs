//! Front ends out of Debian's packages that are unpacked in `target/frontends`, not installed: an older QEMU beside the
//! one that is installed, and user-mode Linux.

use std::{
    fs,
    path::{Path, PathBuf},
};

use weir_bed::{
    error::{Error, Result},
    guest_image::{GuestImage, IPERF3, copy, in_load_order, module_files, only_entry, unpack},
    packages,
    process::run,
    qemu::Qemu,
    workspace::Workspace,
};

/// The release whose own QEMU is 7.2, and what QEMU 7.2 consists of. Its libraries are those of the installed one.
const OLD_RELEASE: &str = "bookworm";
const OLD_QEMU_PACKAGES: [&str; 5] =
    ["qemu-system-common", "qemu-system-data", "seabios", "ipxe-qemu", "qemu-system-x86"];

/// A kernel that is a program, and what it needs to drive a virtio-net device.
const UML_PACKAGE: &str = "user-mode-linux";
const UML_MODULES: &[&str] = &["virtio_net"];

/// A kernel that is a program.
#[derive(Clone, Debug)]
pub struct UserModeLinux {
    /// It.
    pub program: PathBuf,
    /// Its first root file system.
    pub initrd: PathBuf,
}

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
                fetch(&format!("{package}/{OLD_RELEASE}"), &root)?;
            }
        }
        let libraries = run(&["ldd".as_ref(), program.as_os_str()])?;
        if let Some(missing) = libraries.lines().find(|line| line.ends_with("not found")) {
            return Err(Error::parse("a library of QEMU 7.2", missing.trim()));
        }
        let program = program.to_string_lossy().into_owned();
        Ok((Qemu::at(&program)?, program))
    }

    /// User-mode Linux, and a first root file system for it.
    pub fn user_mode_linux(&self, image: &GuestImage) -> Result<UserModeLinux> {
        let root = self.dir.join("uml");
        let (program, initrd) = (root.join("usr/bin/linux.uml"), self.dir.join("uml.initrd"));
        if !program.exists() {
            println!("fetching user-mode Linux");
            fetch(UML_PACKAGE, &root)?;
        }
        let modules = self.dir.join("uml.modules");
        fs::create_dir_all(&modules).map_err(Error::io("make", &modules))?;
        let files = module_files(&only_entry(&root.join("usr/lib/uml/modules"), "")?)?;
        for (number, path) in in_load_order(UML_MODULES, &files)?.iter().enumerate() {
            copy(path, &modules.join(format!("{number:02}.ko")))?;
        }
        image.write_initrd(&modules, &[Path::new(IPERF3)], &initrd)?;
        Ok(UserModeLinux { program, initrd })
    }
}

/// Downloads `package` and unpacks it below `root`.
fn fetch(package: &str, root: &Path) -> Result<()> {
    fs::create_dir_all(root).map_err(Error::io("make", root))?;
    packages::ensure_lists(package.split('/').next().unwrap_or(package))?;
    unpack(package, root).or_else(|_| {
        packages::refresh_lists()?;
        unpack(package, root)
    })
}
