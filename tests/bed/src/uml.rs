//! User-mode Linux from Debian's package, unpacked in `target/frontends`: a Linux kernel as a program, which runs at
//! native speed without KVM.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use crate::{
    address,
    error::{Error, Result},
    guest_image::{GuestImage, IPERF3, Modules, copy, only_entry},
    packages,
    process::{Placement, Process, Root, run},
    qemu::{BOOT_PATIENCE, Guest},
    workspace::Workspace,
};

/// Debian's package.
pub const PACKAGE: &str = "user-mode-linux";
/// The program of user-mode Linux, below a root.
pub const PROGRAM: &str = "usr/bin/linux.uml";

/// Modules for virtio-net.
const MODULES: &[&str] = &["virtio_net"];

/// Longest time for a command in the guest.
const PATIENCE: Duration = Duration::from_secs(20);

/// Longest time to boot on a machine where it may not boot at all: ten times what it takes alone.
const TRIAL_PATIENCE: Duration = Duration::from_secs(20);

/// The kernel and a first root file system.
#[derive(Clone, Debug)]
pub struct UserModeLinux {
    /// The kernel, a program.
    pub program: PathBuf,
    /// The first root file system.
    pub initrd: PathBuf,
    /// Linux's version.
    pub version: String,
    /// The root of another system, in which the program runs.
    root: Option<Root>,
}

/// The kind of the guest's interface.
#[derive(Clone, Debug)]
pub enum Wire<'a> {
    /// No interface.
    None,
    /// A virtio-net device at a vhost-user socket.
    VhostUser(&'a Path),
    /// The vector driver on a TAP, as in the kernel's guide (`user_mode_linux_howto_v2`).
    Tap {
        /// The TAP.
        name: &'a str,
        /// The TAP's namespace.
        placement: Placement,
    },
}

impl UserModeLinux {
    /// Unpacks missing packages. The file system contains `programs` and iperf3.
    pub fn prepare(workspace: &Workspace, image: &GuestImage, programs: &[&Path]) -> Result<Self> {
        // Two steps of `make test` would unpack the same package.
        static ALONE: Mutex<()> = Mutex::new(());
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = workspace.target("frontends")?;
        let root = dir.join("uml");
        let program = root.join(PROGRAM);
        if !program.exists() {
            println!("fetching user-mode Linux");
            packages::fetch(PACKAGE, &root)?;
        }
        let (version, initrd) = unpack(&root, image, programs)?;
        Ok(Self { program, initrd, version, root: None })
    }

    /// The user-mode Linux of another system, whose root has the package.
    pub fn of(root: Root, image: &GuestImage) -> Result<Self> {
        let (version, initrd) = unpack(&root.path, image, &[])?;
        Ok(Self { program: Path::new("/").join(PROGRAM), initrd, version, root: Some(root) })
    }

    /// Prepares user-mode Linux if it runs on this machine. If not, prints the reason.
    pub fn prepare_if_it_runs(workspace: &Workspace, image: &GuestImage) -> Result<Option<Self>> {
        let programs = Self::prepare(workspace, image, &[])?;
        let runs = programs.runs_here();
        if let Err(error) = &runs {
            println!("user-mode Linux does not run here: {error}");
        }
        Ok(runs.is_ok().then_some(programs))
    }

    /// Checks that user-mode Linux runs, by one trial of each version in this process. On processors with more
    /// registers than it knows, its first process dies or spins, with or without a network.
    pub fn runs_here(&self) -> Result<()> {
        static TRIALS: Mutex<BTreeMap<PathBuf, std::result::Result<(), String>>> =
            Mutex::new(BTreeMap::new());
        let mut trials = TRIALS.lock().unwrap_or_else(PoisonError::into_inner);
        let trial = trials.entry(self.initrd.clone()).or_insert_with(|| {
            let console = self.initrd.with_extension("console");
            let booted = self.boot_within(&Wire::None, &console, TRIAL_PATIENCE);
            booted.map(drop).map_err(|error| error.to_string())
        });
        trial.clone().map_err(Error::Check)
    }

    /// Boots a guest and waits for its shell. Its interface is `eth0`, without addresses.
    pub fn boot(&self, wire: &Wire<'_>, console: &Path) -> Result<Guest> {
        self.boot_within(wire, console, BOOT_PATIENCE)
    }

    fn boot_within(&self, wire: &Wire<'_>, console: &Path, patience: Duration) -> Result<Guest> {
        let program = self.program.to_string_lossy();
        let initrd = format!("initrd={}", self.initrd.display());
        // User-mode Linux has many processes. They end with it because they have their own PID namespace.
        let mut argv = vec!["unshare", "--pid", "--kill-child", "--fork", "--mount-proc", &program];
        argv.extend(["mem=256M", &initrd, "quiet", "ipv6.disable=1"]);
        // All consoles are off, except for one serial line.
        argv.extend(["con=null", "con0=null", "ssl=null", "ssl0=fd:0,fd:1", "weir.shell=ttyS0"]);
        let (device, mut placement) = match wire {
            Wire::None => (None, Placement::default()),
            Wire::VhostUser(socket) => {
                let device = format!("virtio_uml.device={}:1", socket.display());
                (Some(device), Placement::default())
            }
            Wire::Tap { name, placement } => {
                let device = format!("vec0:transport=tap,ifname={name},depth=128,gro=1");
                (Some(device), placement.clone())
            }
        };
        placement.root = self.root.clone();
        argv.extend(device.as_deref());
        let (process, dialogue) = Process::start_dialogue(&argv, &placement)?;
        run(&["touch".as_ref(), console.as_os_str()])?;
        let mut guest = Guest::over("uml", process, dialogue, console.to_path_buf(), patience)?;
        if matches!(wire, Wire::Tap { .. }) {
            guest.run("ip link set vec0 name eth0", PATIENCE)?;
        }
        Ok(guest)
    }
}

/// The version of the kernel below `root`, and a first root file system for it beside `root`.
fn unpack(root: &Path, image: &GuestImage, programs: &[&Path]) -> Result<(String, PathBuf)> {
    let (modules, initrd) = (root.with_extension("modules"), root.with_extension("initrd"));
    fs::create_dir_all(&modules).map_err(Error::io("make", &modules))?;
    let all = only_entry(&root.join("usr/lib/uml/modules"), "")?;
    for (number, path) in Modules::below(&all)?.in_load_order(MODULES)?.iter().enumerate() {
        copy(path, &modules.join(format!("{number:02}.ko")))?;
    }
    image.write_initrd(&modules, &[&[Path::new(IPERF3)], programs].concat(), &initrd)?;
    Ok((all.file_name().unwrap_or_default().to_string_lossy().into_owned(), initrd))
}

/// Sets the addresses of machine `index`: the guest has no configuration space to read its own address from.
pub fn set_addresses(guest: &mut Guest, index: u8) -> Result<()> {
    let (mac, cidr) = (address::mac(index), address::cidr(index));
    let command = format!(
        "ip link set eth0 address {mac} && ip link set eth0 up && ip address add {cidr} dev eth0"
    );
    guest.run(&command, PATIENCE).map(drop)
}
