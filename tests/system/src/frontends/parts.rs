//! Front ends from Debian's packages, unpacked in `target/frontends` and not installed: older and newer QEMUs
//! than the installed one.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use weir_bed::{
    error::{Error, Result},
    packages,
    process::{Root, run},
    qemu::Qemu,
    uml,
    workspace::Workspace,
};

/// The release with QEMU 7.2, and the packages of QEMU 7.2. The libraries are those of the installed QEMU.
const OLD_RELEASE: &str = "bookworm";
const OLD_QEMU_PACKAGES: [&str; 5] =
    ["qemu-system-common", "qemu-system-data", "seabios", "ipxe-qemu", "qemu-system-x86"];

/// Packages of the newer QEMU in the backports, and the BIOS that it needs.
const NEW_QEMU_PACKAGES: [&str; 4] =
    ["qemu-system-common", "qemu-system-data", "seabios", "qemu-system-x86"];
/// The boot ROMs of QEMU's devices.
pub const DEVICE_ROMS_PACKAGE: &str = "ipxe-qemu";

/// The programs of a suite's root, and their packages.
const IN_ROOT: [(&str, &str); 3] = [
    ("usr/bin/qemu-system-x86_64", "qemu-system-x86"),
    ("usr/bin/dpdk-testpmd", TESTPMD_PACKAGE),
    (uml::PROGRAM, uml::PACKAGE),
];
/// DPDK's package that has `dpdk-testpmd`.
pub const TESTPMD_PACKAGE: &str = "dpdk-dev";

/// iPXE as a program of EFI, which leaves the network's device to the firmware.
pub const IPXE_FOR_EFI: &str = "snponly.efi";

/// The directory of unpacked packages.
#[derive(Clone, Debug)]
pub struct Parts {
    dir: PathBuf,
}

impl Parts {
    /// Packages go into `target/frontends`. They are fetched on demand.
    pub fn new(workspace: &Workspace) -> Result<Self> {
        Ok(Self { dir: workspace.target("frontends")? })
    }

    /// Debian 12's own QEMU: its version and its program. Other releases lack its libraries, so there it has a root.
    pub fn old_qemu(&self) -> Result<(Qemu, String)> {
        if packages::codename()? != OLD_RELEASE {
            return self.qemu_of(OLD_RELEASE);
        }
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

    /// [`IPXE_FOR_EFI`].
    pub fn ipxe_for_efi(&self) -> Result<PathBuf> {
        let root = self.dir.join("ipxe");
        let program = root.join("usr/lib/ipxe").join(IPXE_FOR_EFI);
        if !program.exists() {
            println!("fetching iPXE");
            packages::fetch("ipxe", &root)?;
        }
        Ok(program)
    }

    /// The QEMU of another suite: its version and its program.
    pub fn qemu_of(&self, suite: &str) -> Result<(Qemu, String)> {
        let program = wrapper(&self.system(suite)?.path)?.to_string_lossy().into_owned();
        Ok((Qemu::at(&program)?, program))
    }

    /// A root of the suite that has its QEMU, user-mode Linux and DPDK. Programs there see
    /// everything below `target`.
    pub fn system(&self, suite: &str) -> Result<Root> {
        let path = self.root_of(suite);
        if IN_ROOT.iter().any(|(program, _)| !path.join(program).exists()) {
            debootstrap(suite, &path)?;
        }
        let shared = self.dir.parent().unwrap_or(&self.dir).to_path_buf();
        Ok(Root { path, shared })
    }

    /// The version of a package in the root of [`Parts::system`].
    pub fn version_of(&self, suite: &str, package: &str) -> Result<String> {
        packages::version_of(package, &self.root_of(suite))
    }

    fn root_of(&self, suite: &str) -> PathBuf {
        self.dir.join(format!("root-{suite}"))
    }

    /// The QEMU of the release's backports (10 for Debian 12): its version and its program.
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

/// Makes a root of the suite that has the packages of [`IN_ROOT`].
fn debootstrap(suite: &str, root: &Path) -> Result<()> {
    let packages = IN_ROOT.map(|(_, package)| package).join(",");
    println!("making a root of {suite} with {packages}");
    let site = packages::site()?;
    // A root that was interrupted, or that lacks a program, is made anew.
    let part = root.with_extension("part");
    for old in [root, &part].into_iter().filter(|old| old.exists()) {
        fs::remove_dir_all(old).map_err(Error::io("remove", old))?;
    }
    let path = part.to_string_lossy();
    let include = format!("--include={packages}");
    run(&["debootstrap", "--variant=minbase", &include, suite, &path, &site])?;
    fs::rename(&part, root).map_err(Error::io("rename", &part))
}

/// A script that runs the QEMU of `root` with its own libraries and files, among the host's paths.
fn wrapper(root: &Path) -> Result<PathBuf> {
    let path = root.with_extension("sh");
    let root = root.display();
    // The loader is there, too. In `usr/lib64` of Debian 12 is a link that leads to the loader of this machine.
    let libraries = format!("{root}/usr/lib/x86_64-linux-gnu");
    let text = format!(
        "#!/bin/sh\nQEMU_MODULE_DIR={libraries}/qemu exec {libraries}/ld-linux-x86-64.so.2 \
         --library-path {libraries} {root}/usr/bin/qemu-system-x86_64 -L {root}/usr/share/qemu \
         -L {root}/usr/share/seabios -L {root}/usr/lib/ipxe/qemu \"$@\"\n"
    );
    fs::write(&path, text).map_err(Error::io("write", &path))?;
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(&path, mode).map_err(Error::io("change", &path))?;
    Ok(path)
}

/// Checks that the installed QEMU's libraries satisfy `program`. Returns its version and path.
fn runnable(program: &Path) -> Result<(Qemu, String)> {
    let libraries = run(&["ldd".as_ref(), program.as_os_str()])?;
    if let Some(missing) = libraries.lines().find(|line| line.ends_with("not found")) {
        return Err(Error::parse("a library of an unpacked QEMU", missing.trim()));
    }
    let program = program.to_string_lossy().into_owned();
    Ok((Qemu::at(&program)?, program))
}
