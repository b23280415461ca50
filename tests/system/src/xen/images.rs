//! The first root file systems of dom0 and of the guests.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use weir_bed::{
    error::{Error, Result},
    guest_image::{Archive, INIT, IPERF3, read},
};

use super::{
    bed::Domain,
    parts::{DEVICE_MODEL, DOM0_MODULES, DOMU_MODULES, NETBACK_MODULES, Parts},
};

const SETUP: &str = include_str!("setup.sh");
const GUEST: &str = include_str!("guest.sh");
const VIF_SCRIPT: &str = include_str!("vif_script.sh");
const VIF_CYCLES: &str = include_str!("vif_cycles.sh");

/// Path of weir's configuration in dom0.
pub const WEIR_CONFIG: &str = "etc/weir.toml";

/// The device model does not start without this file, although no keyboard is used.
const KEYMAP: &str = "usr/share/qemu/keymaps/en-us";

/// Default paths of the dynamic loader.
const LIBRARIES: &str = "lib/x86_64-linux-gnu";
const LOADER: &str = "lib64/ld-linux-x86-64.so.2";

/// Writes dom0's file system to `path`, with `programs` by name in its `/bin` and the boot files of `domains`, which
/// include `agent`.
pub fn write_dom0(
    parts: &Parts,
    programs: &[(&str, PathBuf)],
    agent: &Path,
    domains: &[Domain],
    path: &Path,
) -> Result<()> {
    let mut root = Root::new(parts)?;
    for dir in ["boot", "etc/xen/scripts", "run/weir", "run/xen", "run/xenstored", "usr/lib"] {
        root.directory(dir);
    }
    for dir in ["lib/xen", "lib/xenstored", "log/xen", "lock", "run/xen"] {
        root.directory(&format!("var/{dir}"));
    }
    for tool in parts.tools() {
        root.program(parts, &in_bin(file_name(&tool)), &tool)?;
    }
    root.program(parts, DEVICE_MODEL, &parts.device_model())?;
    let save_helper = parts.save_helper();
    root.program(parts, &save_helper, &parts.root().join(&save_helper))?;
    root.file(KEYMAP, b"");
    for (name, program) in programs {
        root.program(parts, &in_bin(name), program)?;
    }
    root.modules(parts, "modules", DOM0_MODULES)?;
    root.modules(parts, "modules/netback", NETBACK_MODULES)?;
    root.file("setup.sh", SETUP.as_bytes());
    root.file("bin/guest", GUEST.as_bytes());
    root.file("bin/vif-cycles", VIF_CYCLES.as_bytes());
    root.file("etc/xen/scripts/vif-test", VIF_SCRIPT.as_bytes());
    root.file("etc/xen/xl.conf", b"");
    root.file(WEIR_CONFIG, include_bytes!("weir.toml"));
    root.file("boot/vmlinuz", &read(&parts.kernel())?);
    root.file("boot/domu.img", &domu(parts, agent)?);
    for domain in domains {
        root.file(&domain.config_path(), domain.config().as_bytes());
    }
    fs::write(path, root.archive.finish()).map_err(Error::io("write", path))
}

/// A guest's file system.
fn domu(parts: &Parts, agent: &Path) -> Result<Vec<u8>> {
    let mut root = Root::new(parts)?;
    root.modules(parts, "modules", DOMU_MODULES)?;
    root.program(parts, &in_bin("iperf3"), Path::new(IPERF3))?;
    root.file(&in_bin("weir-agent"), &read(agent)?);
    Ok(root.archive.finish())
}

/// A file system that is being written. Every directory is made once.
struct Root {
    archive: Archive,
    made: BTreeSet<PathBuf>,
}

impl Root {
    /// The common part of dom0 and guests.
    fn new(parts: &Parts) -> Result<Self> {
        let mut root = Self { archive: Archive::default(), made: BTreeSet::new() };
        for dir in ["dev", "proc", "run", "sys", "tmp"] {
            root.directory(dir);
        }
        root.file("init", INIT.as_bytes());
        root.file("bin/busybox", &read(&parts.busybox())?);
        Ok(root)
    }

    fn directory(&mut self, path: &str) {
        let mut parents: Vec<_> =
            Path::new(path).ancestors().filter(|dir| *dir != Path::new("")).collect();
        parents.reverse();
        for dir in parents {
            if self.made.insert(dir.to_path_buf()) {
                self.archive.directory(&dir.to_string_lossy());
            }
        }
    }

    /// Adds a file unless it is there.
    fn file(&mut self, path: &str, content: &[u8]) {
        if let Some(dir) = Path::new(path).parent() {
            self.directory(&dir.to_string_lossy());
        }
        if self.made.insert(PathBuf::from(path)) {
            self.archive.file(path, content);
        }
    }

    /// Adds a program as `path`, and its shared libraries.
    fn program(&mut self, parts: &Parts, path: &str, program: &Path) -> Result<()> {
        self.file(path, &read(program)?);
        for library in parts.libraries(program)? {
            let to = if LOADER.ends_with(file_name(&library)) {
                LOADER.to_owned()
            } else {
                format!("{LIBRARIES}/{}", file_name(&library))
            };
            self.file(&to, &read(&library)?);
        }
        Ok(())
    }

    /// Adds modules to `dir`. insmod loads no dependencies: the numbers in the names put a module
    /// after its dependencies.
    fn modules(&mut self, parts: &Parts, dir: &str, wanted: &[&str]) -> Result<()> {
        for (number, path) in parts.modules(wanted)?.iter().enumerate() {
            self.file(&format!("{dir}/{number:02}.ko"), &read(path)?);
        }
        Ok(())
    }
}

/// The path of a program with that name.
fn in_bin(name: &str) -> String {
    format!("bin/{name}")
}

fn file_name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}
