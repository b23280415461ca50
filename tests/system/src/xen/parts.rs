//! Xen, its tools, a kernel and its modules from Debian's packages, unpacked and not installed.

use std::{
    fs,
    path::{Path, PathBuf},
};

use weir_bed::{
    error::{Error, Result},
    guest_image::{
        BUILT_IN, BUSYBOX_PACKAGE, Modules, copy, current_kernel_package, only_entry, unpack,
    },
    packages,
    process::run,
    workspace::Workspace,
};

/// The hypervisor's package. Its version is part of the names of packages and directories.
const HYPERVISOR_PACKAGE: &str = "xen-hypervisor-4.17-amd64";

const HYPERVISOR: &str = "boot/xen-4.17-amd64.gz";

/// `xl` and the daemons, and their libraries that are not on every Debian.
const TOOL_PACKAGES: &[&str] = &[
    "xen-utils-4.17",
    "xenstore-utils",
    "libxenmisc4.17",
    "libxenstore4",
    "libxencall1",
    "libxenevtchn1",
    "libxengnttab1",
    "libxenforeignmemory1",
    "libxentoollog1",
    "libxentoolcore1",
    "libxendevicemodel1",
    "libxenhypfs1",
    "libyajl2",
    "libnl-3-200",
    "libnl-route-3-200",
    BUSYBOX_PACKAGE,
];

/// The device model, with its libraries. It serves the consoles of a guest that has more than one,
/// such as a guest with `weir-agent`.
const DEVICE_MODEL_PACKAGES: &[&str] = &[
    "qemu-system-xen",
    "libfdt1",
    "libffi8",
    "libglib2.0-0",
    "libjpeg62-turbo",
    "libpixman-1-0",
    "libsasl2-2",
    "libspice-server1",
    "libusb-1.0-0",
    // Dependencies of libspice-server1.
    "libdw1",
    "libelf1",
    "libgstreamer-plugins-base1.0-0",
    "libgstreamer1.0-0",
    "libopus0",
    "liborc-0.4-0",
    "libunwind8",
];

/// The path at which `xl` expects the device model.
pub const DEVICE_MODEL: &str = "usr/libexec/xen-qemu-system-i386";

/// The tools' directory of programs that are run by full path only.
const TOOLS_DIR: &str = "usr/lib/xen-4.17/bin";

/// The path at which `xl` expects the program that saves and restores guests.
pub const SAVE_HELPER: &str = "usr/lib/xen-4.17/bin/libxl-save-helper";

/// Depends on the current kernel's package. The cloud kernel has no Xen back ends.
const KERNEL_METAPACKAGE: &str = "linux-image-amd64";

/// Modules for dom0's tools and for any back end in user space, in load order.
pub const DOM0_MODULES: &[&str] =
    &["xen_privcmd", "xenfs", "xen_evtchn", "xen_gntdev", "xen_gntalloc"];

/// The kernel's back end, and the bridge for its interfaces.
pub const NETBACK_MODULES: &[&str] = &["bridge", "xen_netback"];

/// Modules of a guest.
pub const DOMU_MODULES: &[&str] = &["xen_netfront"];

/// The unpacked packages in `target/xen`.
#[derive(Clone, Debug)]
pub struct Parts {
    dir: PathBuf,
}

impl Parts {
    /// Downloads and unpacks the missing parts.
    pub fn ensure(workspace: &Workspace) -> Result<Self> {
        let parts = Self { dir: workspace.target("xen")? };
        let stamp = parts.dir.join("stamp");
        let wanted = format!(
            "{HYPERVISOR_PACKAGE} {TOOL_PACKAGES:?} {DEVICE_MODEL_PACKAGES:?} {DOM0_MODULES:?} {NETBACK_MODULES:?} {DOMU_MODULES:?}"
        );
        if fs::read_to_string(&stamp).is_ok_and(|unpacked| unpacked == wanted) {
            return Ok(parts);
        }
        println!("fetching Xen and a kernel for it");
        packages::ensure_lists(HYPERVISOR_PACKAGE)?;
        parts.unpack_all().or_else(|_| {
            packages::refresh_lists()?;
            parts.unpack_all()
        })?;
        fs::write(&stamp, wanted).map_err(Error::io("write", &stamp))?;
        Ok(parts)
    }

    fn unpack_all(&self) -> Result<()> {
        for dir in [self.root(), self.dir.join("modules")] {
            if dir.exists() {
                fs::remove_dir_all(&dir).map_err(Error::io("remove", &dir))?;
            }
            fs::create_dir_all(&dir).map_err(Error::io("make", &dir))?;
        }
        for package in TOOL_PACKAGES.iter().chain(DEVICE_MODEL_PACKAGES) {
            unpack(package, &self.root())?;
        }
        // Each of these packages has hundreds of megabytes, of which one file is needed.
        let scratch =
            tempfile::tempdir_in(&self.dir).map_err(Error::io("make a directory in", &self.dir))?;
        let scratch = scratch.path();
        unpack(HYPERVISOR_PACKAGE, scratch)?;
        let xen = self.dir.join("xen.gz");
        copy(&scratch.join(HYPERVISOR), &xen)?;
        // Unpacked, Xen is an ELF file with a multiboot header, which QEMU can start.
        run(&["gzip".as_ref(), "-df".as_ref(), xen.as_os_str()])?;

        unpack(&current_kernel_package(KERNEL_METAPACKAGE)?, scratch)?;
        copy(&only_entry(&scratch.join("boot"), "vmlinuz-")?, &self.kernel())?;
        let (from, to) = (only_entry(&scratch.join("lib/modules"), "")?, self.dir.join("modules"));
        copy(&from.join(BUILT_IN), &to.join(BUILT_IN))?;
        let wanted = [DOM0_MODULES, NETBACK_MODULES, DOMU_MODULES].concat();
        for path in Modules::below(&from)?.in_load_order(&wanted)? {
            copy(&path, &to.join(path.file_name().unwrap_or_default()))?;
        }
        Ok(())
    }

    /// The hypervisor.
    pub fn xen(&self) -> PathBuf {
        self.dir.join("xen")
    }

    /// The kernel of dom0 and of the guests.
    pub fn kernel(&self) -> PathBuf {
        self.dir.join("vmlinuz")
    }

    /// The root of the unpacked tools.
    pub fn root(&self) -> PathBuf {
        self.dir.join("root")
    }

    /// The device model of the guests' further consoles.
    pub fn device_model(&self) -> PathBuf {
        self.root().join(DEVICE_MODEL)
    }

    /// The programs of dom0, by their unpacked paths.
    pub fn tools(&self) -> Vec<PathBuf> {
        let tools = ["xl", "xenstored", "xenconsoled", "xen-init-dom0"];
        let tools = tools.map(|name| self.root().join(TOOLS_DIR).join(name));
        tools.into_iter().chain([self.root().join("usr/bin/xenstore")]).collect()
    }

    /// The program that saves and restores guests.
    pub fn save_helper(&self) -> PathBuf {
        self.root().join(SAVE_HELPER)
    }

    /// A static program with the small tools.
    pub fn busybox(&self) -> PathBuf {
        self.root().join("bin/busybox")
    }

    /// The files of `wanted` and of all their dependencies, each module after its dependencies.
    pub fn modules(&self, wanted: &[&str]) -> Result<Vec<PathBuf>> {
        Modules::below(&self.dir.join("modules"))?.in_load_order(wanted)
    }

    /// The shared libraries of `program`, unpacked or the host's own.
    pub fn libraries(&self, program: &Path) -> Result<Vec<PathBuf>> {
        let unpacked = ["usr/lib", "lib"].map(|lib| self.root().join(lib).join("x86_64-linux-gnu"));
        let [usr_lib, lib] = unpacked.each_ref().map(|dir| dir.display());
        let library_path = format!("LD_LIBRARY_PATH={usr_lib}:{lib}");
        let printed =
            run(&["env".as_ref(), library_path.as_ref(), "ldd".as_ref(), program.as_os_str()])?;
        if let Some(missing) = printed.lines().find(|line| line.ends_with("not found")) {
            return Err(Error::parse("a shared library", missing.trim()));
        }
        Ok(printed
            .split_whitespace()
            .filter(|word| word.starts_with('/'))
            .map(PathBuf::from)
            .collect())
    }
}
