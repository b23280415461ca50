//! Front ends out of Debian's packages that are unpacked in `target/frontends`, not installed: an older QEMU beside the
//! one that is installed, and user-mode Linux.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use weir_bed::{
    address,
    error::{Error, Result},
    guest_image::{GuestImage, IPERF3, copy, in_load_order, module_files, only_entry, unpack},
    packages,
    process::{Placement, Process, run},
    qemu::{Guest, Qemu},
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

/// A kernel that is a program, and what it needs to drive a virtio-net device.
const UML_PACKAGE: &str = "user-mode-linux";
const UML_MODULES: &[&str] = &["virtio_net"];
/// How long a command in it may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// A kernel that is a program.
#[derive(Clone, Debug)]
pub struct UserModeLinux {
    /// It.
    pub program: PathBuf,
    /// Its first root file system.
    pub initrd: PathBuf,
}

impl UserModeLinux {
    /// Some processors have more registers than it knows of: its first process dies then, network or not.
    pub fn runs_here(&self) -> Result<()> {
        self.boot(None, &self.initrd.with_extension("console")).map(drop)
    }

    /// Boots one, with an interface on the vhost-user socket `network` if there is one, and waits for its shell.
    pub fn boot(&self, network: Option<&Path>, console: &Path) -> Result<Guest> {
        let program = self.program.to_string_lossy();
        let initrd = format!("initrd={}", self.initrd.display());
        // Its processes are many, and end with it in a namespace of their own.
        let mut argv = vec!["unshare", "--pid", "--kill-child", "--fork", "--mount-proc", &program];
        argv.extend(["mem=256M", &initrd, "quiet", "ipv6.disable=1"]);
        // Its consoles go nowhere, but for one serial line.
        argv.extend(["con=null", "con0=null", "ssl=null", "ssl0=fd:0,fd:1", "weir.shell=ttyS0"]);
        let device = network.map(|socket| format!("virtio_uml.device={}:1", socket.display()));
        argv.extend(device.as_deref());
        let (process, dialogue) = Process::start_dialogue(&argv, &Placement::default())?;
        run(&["touch".as_ref(), console.as_os_str()])?;
        Guest::over("uml", process, dialogue, console.to_path_buf())
    }
}

/// Gives a user-mode Linux the addresses of machine `index`: it has no configuration space to read its own from.
pub fn set_addresses(guest: &mut Guest, index: u8) -> Result<()> {
    let (mac, cidr) = (address::mac(index), address::cidr(index));
    let command = format!(
        "ip link set eth0 address {mac} && ip link set eth0 up && ip address add {cidr} dev eth0"
    );
    guest.run(&command, PATIENCE).map(drop)
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
        runnable(&program)
    }

    /// A QEMU of the release's backports, 10 for Debian 12, and its program.
    pub fn new_qemu(&self, workspace: &Workspace) -> Result<(Qemu, String)> {
        let root = self.dir.join("qemu-new");
        let program = root.join("usr/bin/qemu-system-x86_64");
        if !program.exists() {
            println!("fetching QEMU from backports");
            packages::unpack_from_backports(workspace, &NEW_QEMU_PACKAGES, &root)?;
            fetch(DEVICE_ROMS_PACKAGE, &root)?;
        }
        runnable(&program)
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

/// A QEMU whose libraries are those of the installed one.
fn runnable(program: &Path) -> Result<(Qemu, String)> {
    let libraries = run(&["ldd".as_ref(), program.as_os_str()])?;
    if let Some(missing) = libraries.lines().find(|line| line.ends_with("not found")) {
        return Err(Error::parse("a library of an unpacked QEMU", missing.trim()));
    }
    let program = program.to_string_lossy().into_owned();
    Ok((Qemu::at(&program)?, program))
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
