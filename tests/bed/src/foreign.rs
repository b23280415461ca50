//! Guests of other architectures and of other suites: Debian's kernels and busyboxes, unpacked in `target/frontends`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{
    error::{Error, Result},
    guest_image::{
        BUSYBOX_PACKAGE, GuestImage, Modules, copy, only_entry, unpack_archive, unpacked_modules,
    },
    packages,
    process::run_in,
    workspace::Workspace,
};

/// Modules for virtio-net. The drivers for a machine's bus are built into these kernels.
const MODULES: &[&str] = &["virtio_net"];

/// An architecture, and the machine and the kernel that represent it.
#[derive(Clone, Copy, Debug)]
pub struct Architecture {
    /// Debian's name.
    debian: &'static str,
    /// The suite of the kernel. Debian 12 has no kernel for riscv64, and none with pages of 16 KiB.
    suite: &'static str,
    /// The end of the names of its kernel's packages.
    flavour: &'static str,
    /// The QEMU.
    pub qemu: &'static str,
    /// The machine's type.
    pub machine: &'static str,
    /// The CPU's model.
    pub cpu: &'static str,
    /// The serial line, as Linux calls it.
    pub serial: &'static str,
    /// True if devices are on channels, not on PCI.
    pub channels: bool,
}

/// This architecture, with a kernel of Debian 13.
pub const AMD64_OF_13: Architecture = Architecture {
    debian: "amd64",
    suite: "trixie",
    flavour: "cloud-amd64",
    qemu: "qemu-system-x86_64",
    machine: "pc",
    cpu: "qemu64",
    serial: "ttyS0",
    channels: false,
};

/// This architecture, with a kernel of sid.
pub const AMD64_OF_SID: Architecture = Architecture { suite: "sid", ..AMD64_OF_13 };

/// 64-bit Arm.
pub const ARM64: Architecture = Architecture {
    debian: "arm64",
    suite: "trixie",
    flavour: "cloud-arm64",
    qemu: "qemu-system-aarch64",
    machine: "virt",
    // Without this option, signing pointers takes half of the time.
    cpu: "max,pauth-impdef=on",
    serial: "ttyAMA0",
    channels: false,
};

/// 64-bit Arm with larger pages.
pub const ARM64_16K: Architecture = Architecture { flavour: "arm64-16k", ..ARM64 };

/// 32-bit Arm.
pub const ARMHF: Architecture = Architecture {
    debian: "armhf",
    suite: "trixie",
    flavour: "armmp-lpae",
    qemu: "qemu-system-arm",
    machine: "virt",
    cpu: "cortex-a15",
    serial: "ttyAMA0",
    channels: false,
};

/// Little-endian POWER with larger pages.
pub const PPC64EL_64K: Architecture = Architecture {
    debian: "ppc64el",
    suite: "trixie",
    flavour: "powerpc64le-64k",
    qemu: "qemu-system-ppc64",
    machine: "pseries",
    cpu: "power9",
    serial: "hvc0",
    channels: false,
};

/// 64-bit RISC-V.
pub const RISCV64: Architecture = Architecture {
    debian: "riscv64",
    suite: "trixie",
    flavour: "riscv64",
    qemu: "qemu-system-riscv64",
    machine: "virt",
    cpu: "rv64",
    serial: "ttyS0",
    channels: false,
};

/// IBM's mainframes, which are big-endian.
pub const S390X: Architecture = Architecture {
    debian: "s390x",
    // Under QEMU 7.2 a guest of Linux 6.12 drops pings on its own loopback, with wrong checksums.
    suite: "bookworm",
    flavour: "s390x",
    qemu: "qemu-system-s390x",
    machine: "s390-ccw-virtio",
    cpu: "max",
    serial: "ttysclp0",
    channels: true,
};

impl Architecture {
    /// The name of the architecture's own directory.
    fn name(&self, of: &str) -> String {
        format!("{of}-{}-{}", self.suite, self.flavour)
    }
}

/// The files that a guest boots from.
#[derive(Clone, Debug)]
pub struct Foreign {
    /// The kernel, the first root file system and its busybox.
    pub image: GuestImage,
    /// The kernel's version.
    pub version: String,
}

impl Foreign {
    /// The kernel and a busybox, fetched if they are missing.
    pub fn ensure(workspace: &Workspace, architecture: &Architecture) -> Result<Self> {
        let frontends = workspace.target("frontends")?;
        let dir = frontends.join(architecture.name("guest"));
        let [kernel, initrd, busybox, modules, stamp] =
            ["kernel", "initrd.img", "busybox", "modules", "version"].map(|name| dir.join(name));
        if !stamp.exists() {
            println!("fetching a kernel of {} of {}", architecture.flavour, architecture.suite);
            let _ = fs::remove_dir_all(&dir);
            fs::create_dir_all(&modules).map_err(Error::io("make", &modules))?;
            let apt = Apt::of(architecture, &frontends)?;
            let root = dir.join("root");
            let version = apt.unpack_kernel(architecture, &root)?;
            apt.unpack(BUSYBOX_PACKAGE, &root)?;
            // Since 2026 the image is among the package's modules.
            let image = only_entry(&root.join("boot"), "vmlinu")
                .or_else(|_| only_entry(&unpacked_modules(&root)?, "vmlinu"))?;
            copy(&image, &kernel)?;
            copy(&root.join("usr/bin/busybox"), &busybox)
                .or_else(|_| copy(&root.join("bin/busybox"), &busybox))?;
            let found = Modules::below(&unpacked_modules(&root)?)?;
            for (number, path) in found.in_load_order(MODULES)?.iter().enumerate() {
                copy(path, &modules.join(format!("{number:02}.ko")))?;
            }
            fs::remove_dir_all(&root).map_err(Error::io("remove", &root))?;
            fs::write(&stamp, version).map_err(Error::io("write", &stamp))?;
        }
        let version = fs::read_to_string(&stamp).map_err(Error::io("read", &stamp))?;
        let image = GuestImage { kernel, initrd, busybox };
        image.write_initrd(&modules, &[], &image.initrd)?;
        Ok(Self { image, version })
    }
}

/// An apt with its own files. It has the package lists of another architecture, and installs
/// nothing.
struct Apt {
    config: PathBuf,
}

impl Apt {
    fn of(architecture: &Architecture, frontends: &Path) -> Result<Self> {
        let dir = frontends.join(architecture.name("apt"));
        for name in ["lists/partial", "cache/archives/partial"] {
            let made = dir.join(name);
            fs::create_dir_all(&made).map_err(Error::io("make", &made))?;
        }
        let [config, sources, status] =
            ["apt.conf", "sources.list", "status"].map(|name| dir.join(name));
        let place = dir.display();
        let name = architecture.debian;
        // The list of the newest suite may have expired.
        let text = format!(
            "APT::Architecture \"{name}\";\nAPT::Architectures {{ \"{name}\"; }};\n\
             Dir::State::status \"{place}/status\";\nDir::State::Lists \"{place}/lists\";\n\
             Dir::Cache \"{place}/cache\";\nDir::Etc::SourceList \"{place}/sources.list\";\n\
             Dir::Etc::SourceParts \"/dev/null\";\nAcquire::Languages \"none\";\n\
             Acquire::Check-Valid-Until \"false\";\n"
        );
        let source = format!("deb {} {} main\n", packages::site()?, architecture.suite);
        for (path, text) in [(&config, text), (&sources, source), (&status, String::new())] {
            fs::write(path, text).map_err(Error::io("write", path))?;
        }
        let apt = Self { config };
        apt.run(&["apt-get", "update", "-q"], Path::new("/"))?;
        Ok(apt)
    }

    fn run(&self, argv: &[&str], dir: &Path) -> Result<String> {
        run_in(argv, dir, &[("APT_CONFIG", self.config.as_os_str())])
    }

    fn unpack(&self, package: &str, root: &Path) -> Result<()> {
        fs::create_dir_all(root).map_err(Error::io("make", root))?;
        self.run(&["apt-get", "download", "-q", package], root)?;
        unpack_archive(package, root)
    }

    /// Unpacks the newest kernel that the server has, and returns its version. A package list can
    /// name a kernel that the server does not have yet.
    fn unpack_kernel(&self, architecture: &Architecture, root: &Path) -> Result<String> {
        let named = format!("^linux-image-[0-9].*[0-9]-{}$", architecture.flavour);
        let found = self.run(&["apt-cache", "search", "--names-only", &named], Path::new("/"))?;
        let mut last = Error::parse("a kernel's package", &*found);
        for package in kernels(&found) {
            match self.unpack_with_parts(package, root) {
                Ok(()) => return Ok(version(package, architecture.flavour)),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Since 2026 a kernel's package has no files of the kernel, and only names two other packages.
    fn unpack_with_parts(&self, package: &str, root: &Path) -> Result<()> {
        self.unpack(package, root)?;
        if unpacked_modules(root).is_err() {
            for part in ["linux-binary-", "linux-modules-"] {
                self.unpack(&package.replacen("linux-image-", part, 1), root)?;
            }
        }
        Ok(())
    }
}

/// The packages in what `apt-cache search` has printed, the newest first.
fn kernels(found: &str) -> Vec<&str> {
    let mut names: Vec<_> =
        found.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let numbers = |name: &str| -> Vec<u64> {
        name.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
    };
    names.sort_by_key(|name| std::cmp::Reverse(numbers(name)));
    names
}

/// Linux's version in a package's name.
fn version(package: &str, flavour: &str) -> String {
    let text = package.trim_start_matches("linux-image-").trim_end_matches(flavour);
    text.split(['+', '-']).next().unwrap_or(text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_kernel_comes_first() {
        let found =
            "linux-image-6.12.94+deb13-s390x - Linux\nlinux-image-6.12.107+deb13-s390x - Linux\n";
        let names = kernels(found);
        assert_eq!(names, ["linux-image-6.12.107+deb13-s390x", "linux-image-6.12.94+deb13-s390x"]);
        assert_eq!(version(names[0], "s390x"), "6.12.107");
    }
}
