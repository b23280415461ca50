//! Xen, its tools, a kernel and its modules from Debian's packages, unpacked and not installed.

use std::{
    fs,
    path::{Path, PathBuf},
};

use weir_bed::{
    error::{Error, Result},
    guest_image::{
        BUILT_IN, BUSYBOX_PACKAGE, Modules, copy, current_kernel_package, only_entry, unpack,
        unpacked_modules,
    },
    packages,
    process::run,
    workspace::Workspace,
};

/// The names of the hypervisor's package, and of those of `xl`, the daemons and their libraries, without the version of
/// Xen at their end.
const HYPERVISOR_PACKAGE: &str = "xen-hypervisor-";
const VERSIONED_PACKAGES: &[&str] = &["xen-utils-", "libxenmisc"];
/// What follows the version in names of the hypervisor.
const ARCHITECTURE: &str = "-amd64";

/// Tools, and libraries that are not on every Debian.
const TOOL_PACKAGES: &[&str] = &[
    "xenstore-utils",
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

/// The end of names of libraries whose time has 64 bits on each architecture, from Debian 13 on.
const WIDE_TIME: &str = "t64";

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
    /// The version of Xen.
    version: String,
}

impl Parts {
    /// Downloads and unpacks the missing parts.
    pub fn ensure(workspace: &Workspace) -> Result<Self> {
        let dir = workspace.target("xen")?;
        let stamp = dir.join("stamp");
        let wanted = format!(
            "{TOOL_PACKAGES:?} {DEVICE_MODEL_PACKAGES:?} {DOM0_MODULES:?} {NETBACK_MODULES:?} {DOMU_MODULES:?}"
        );
        let unpacked = fs::read_to_string(&stamp).unwrap_or_default();
        if let Some((version, _)) = unpacked.split_once(' ').filter(|(_, rest)| *rest == wanted) {
            return Ok(Self { dir, version: version.into() });
        }
        println!("fetching Xen and a kernel for it");
        packages::ensure_lists(KERNEL_METAPACKAGE)?;
        let parts = Self { dir, version: version()? };
        parts.unpack_all().or_else(|_| {
            packages::refresh_lists()?;
            parts.unpack_all()
        })?;
        fs::write(&stamp, format!("{} {wanted}", parts.version))
            .map_err(Error::io("write", &stamp))?;
        Ok(parts)
    }

    fn unpack_all(&self) -> Result<()> {
        for dir in [self.root(), self.dir.join("modules")] {
            if dir.exists() {
                fs::remove_dir_all(&dir).map_err(Error::io("remove", &dir))?;
            }
            fs::create_dir_all(&dir).map_err(Error::io("make", &dir))?;
        }
        for name in VERSIONED_PACKAGES {
            unpack(&format!("{name}{}", self.version), &self.root())?;
        }
        for package in TOOL_PACKAGES.iter().chain(DEVICE_MODEL_PACKAGES) {
            unpack(package, &self.root())
                .or_else(|_| unpack(&format!("{package}{WIDE_TIME}"), &self.root()))?;
        }
        // Each of these packages has hundreds of megabytes, of which one file is needed.
        let scratch =
            tempfile::tempdir_in(&self.dir).map_err(Error::io("make a directory in", &self.dir))?;
        let scratch = scratch.path();
        let version = &self.version;
        unpack(&format!("{HYPERVISOR_PACKAGE}{version}{ARCHITECTURE}"), scratch)?;
        let xen = self.dir.join("xen.gz");
        copy(&scratch.join(format!("boot/xen-{version}{ARCHITECTURE}.gz")), &xen)?;
        // Unpacked, Xen is an ELF file with a multiboot header, which QEMU can start.
        run(&["gzip".as_ref(), "-df".as_ref(), xen.as_os_str()])?;

        unpack(&current_kernel_package(KERNEL_METAPACKAGE)?, scratch)?;
        copy(&only_entry(&scratch.join("boot"), "vmlinuz-")?, &self.kernel())?;
        let (from, to) = (unpacked_modules(scratch)?, self.dir.join("modules"));
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
        let tools = tools.map(|name| self.root().join(self.tools_dir()).join(name));
        tools.into_iter().chain([self.root().join("usr/bin/xenstore")]).collect()
    }

    /// The tools' directory of programs that are run by full path only.
    fn tools_dir(&self) -> String {
        format!("usr/lib/xen-{}/bin", self.version)
    }

    /// The path at which `xl` expects the program that saves and restores guests.
    pub fn save_helper(&self) -> String {
        self.tools_dir() + "/libxl-save-helper"
    }

    /// A static program with the small tools. Its package has it in `usr/bin` from Debian 13 on.
    pub fn busybox(&self) -> PathBuf {
        let place = self.root().join("bin/busybox");
        if place.exists() { place } else { self.root().join("usr/bin/busybox") }
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

/// The version of Xen in this release.
fn version() -> Result<String> {
    let names = run(&["apt-cache", "pkgnames", HYPERVISOR_PACKAGE])?;
    let version = |name: &str| {
        let version = name.strip_prefix(HYPERVISOR_PACKAGE)?.strip_suffix(ARCHITECTURE)?;
        Some(version.to_owned())
    };
    let version = names.lines().find_map(version);
    version.ok_or_else(|| Error::parse("a package of Xen", names.as_str()))
}
