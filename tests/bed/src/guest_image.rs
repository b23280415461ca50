//! The guests' kernel and first root file system, kept in `target/guest` until their sources change.
//!
//! The kernel is Debian's stock cloud kernel, unpacked from its package. The root file system, a few megabytes,
//! holds busybox, iperf3, `weir-agent`, the virtio modules and [`init`](INIT).
//!
//! A machine with a network card boots Debian's general kernel and the programs of its test
//! ([`GuestImage::with_card`], in `target/card`). A guest with DPDK has its program, its plugins and VFIO's modules
//! ([`GuestImage::with_modules`]).
//!
//! A writer for the `newc` cpio format, which the Linux kernel unpacks into its first root file
//! system (Documentation/driver-api/early-userspace/buffer-format.rst).

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use crate::{
    error::{Error, Result},
    packages,
    process::{run, run_in},
    workspace::Workspace,
};

/// The guest's first and only program.
pub const INIT: &str = include_str!("guest_init.sh");

/// The package that always depends on the current cloud kernel's package.
pub const KERNEL_METAPACKAGE: &str = "linux-image-cloud-amd64";

/// The shell and the small tools. The static build needs nothing else.
pub const BUSYBOX_PACKAGE: &str = "busybox-static";

/// The client and server in guests, copied with its libraries.
pub const IPERF3: &str = "/usr/bin/iperf3";

/// Modules for virtio-net on PCI and on a microvm, and for the agent's port. Their dependencies are
/// added.
const MODULES: &[&str] = &["virtio_pci", "virtio_mmio", "virtio_net", "virtio_console"];

/// The agent is linked statically: guests have none of the host's libraries.
const AGENT_TARGET: &str = "x86_64-unknown-linux-gnu";
const AGENT_RUSTFLAGS: &str = "-C target-feature=+crt-static";

/// Kernel of machines with a network card. The cloud kernel has no drivers for network cards.
const CARD_KERNEL_METAPACKAGE: &str = "linux-image-amd64";
const CARD_MODULES: &[&str] = &["e1000e"];

/// Modules without dependencies in `/modules/on-demand`, which a guest loads on request.
const MODULES_ON_DEMAND: &[&str] = &["pktgen"];

/// Time to fetch and unpack a kernel.
const IMAGE_SECONDS: u64 = 20;

/// Files that guests boot from, and the busybox of the same package for the host's side of a test.
#[derive(Clone, Debug)]
pub struct GuestImage {
    /// The kernel (bzImage).
    pub kernel: PathBuf,
    /// The first root file system (cpio).
    pub initrd: PathBuf,
    /// A busybox that runs on the host.
    pub busybox: PathBuf,
}

impl GuestImage {
    /// The image in `target/guest`. It is built if it is missing or if its ingredients have changed.
    pub fn ensure(workspace: &Workspace) -> Result<Self> {
        let dir = workspace.target("guest")?;
        let image = Self {
            kernel: dir.join("vmlinuz"),
            initrd: dir.join("initrd.img"),
            busybox: dir.join("busybox"),
        };
        let stamp = dir.join("stamp");
        let agent = build_agent(workspace)?;
        let ingredients = ingredients(&agent)?;
        if fs::read_to_string(&stamp).is_ok_and(|made_from| made_from == ingredients) {
            return Ok(image);
        }
        println!(
            "building the guest image: a kernel, its modules, a root file system (about {IMAGE_SECONDS} s)"
        );
        image.build(&dir, &agent)?;
        fs::write(&stamp, ingredients).map_err(Error::io("write", &stamp))?;
        Ok(image)
    }

    /// An image in `target/card` with `programs`, for a machine that has a network card.
    pub fn with_card(&self, workspace: &Workspace, programs: &[&Path]) -> Result<Self> {
        self.with_modules(workspace, "card", (CARD_KERNEL_METAPACKAGE, CARD_MODULES), programs)
    }

    /// An image in `target/NAME` with `programs`, and with the kernel of a package and some of its modules.
    pub fn with_modules(
        &self,
        workspace: &Workspace,
        name: &str,
        (package, load): (&str, &[&str]),
        programs: &[&Path],
    ) -> Result<Self> {
        let wanted = format!("{load:?}");
        let dir = workspace.target(name)?;
        let (kernel, initrd) = (dir.join("vmlinuz"), dir.join("initrd.img"));
        let (modules, stamp) = (dir.join("modules"), dir.join("stamp"));
        if !fs::read_to_string(&stamp).is_ok_and(|unpacked| unpacked == wanted) {
            println!("fetching a kernel with {wanted} (about {IMAGE_SECONDS} s)");
            let unpacked =
                tempfile::tempdir_in(&dir).map_err(Error::io("make a directory in", &dir))?;
            unpack_kernel(package, unpacked.path())?;
            copy(&only_entry(&unpacked.path().join("boot"), "vmlinuz-")?, &kernel)?;
            let found = Modules::below(&unpacked_modules(unpacked.path())?)?;
            let _ = fs::remove_dir_all(&modules);
            fs::create_dir_all(&modules).map_err(Error::io("make", &modules))?;
            for (number, path) in found.in_load_order(load)?.iter().enumerate() {
                copy(path, &modules.join(format!("{number:02}.ko")))?;
            }
            fs::write(&stamp, wanted).map_err(Error::io("write", &stamp))?;
        }
        self.write_initrd(&modules, programs, &initrd)?;
        Ok(Self { kernel, initrd, busybox: self.busybox.clone() })
    }

    /// Writes a first root file system with `programs` to `initrd`, for another kernel. It loads the modules in the
    /// directory `modules` in the order of their names.
    pub fn write_initrd(&self, modules: &Path, programs: &[&Path], initrd: &Path) -> Result<()> {
        let mut archive = Archive::default();
        for dir in ["bin", "dev", "modules", "proc", "run", "sys", "tmp"] {
            archive.directory(dir);
        }
        archive.file("init", INIT.as_bytes());
        archive.file("bin/busybox", &read(&self.busybox)?);
        for entry in fs::read_dir(modules).map_err(Error::io("list", modules))?.flatten() {
            let name = format!("modules/{}", entry.file_name().to_string_lossy());
            archive.file(&name, &read(&entry.path())?);
        }
        let mut made = Vec::new();
        for program in programs {
            let (name, path) = (
                program.file_name().unwrap_or_default().to_string_lossy(),
                program.to_string_lossy(),
            );
            // A program finds its plugins where they are.
            match name.contains(".so") {
                true => add_library(&mut archive, &path, &mut made)?,
                false => archive.file(&format!("bin/{name}"), &read(program)?),
            }
            add_libraries(&mut archive, &path, &mut made)?;
        }
        fs::write(initrd, archive.finish()).map_err(Error::io("write", initrd))
    }

    /// Writes the first root file system `initrd` with further `programs` and their libraries to `to`: their archive is
    /// behind the other one.
    pub fn add_programs(initrd: &Path, programs: &[&str], to: &Path) -> Result<()> {
        let (mut archive, mut made) = (Archive::default(), Vec::new());
        for program in programs {
            let name = program.rsplit('/').next().unwrap_or(program);
            archive.file(&format!("bin/{name}"), &read(Path::new(program))?);
            add_libraries(&mut archive, program, &mut made)?;
        }
        let both = [read(initrd)?, archive.finish()].concat();
        fs::write(to, both).map_err(Error::io("write", to))
    }

    /// The kernel's version.
    pub fn linux(&self) -> Result<String> {
        linux_version(&read(&self.kernel)?)
            .ok_or_else(|| Error::parse("a kernel", self.kernel.display().to_string()))
    }

    fn build(&self, dir: &Path, agent: &Path) -> Result<()> {
        let unpacked = tempfile::tempdir_in(dir).map_err(Error::io("make a directory in", dir))?;
        let root = unpacked.path();
        unpack_kernel(KERNEL_METAPACKAGE, root)?;
        unpack(BUSYBOX_PACKAGE, root)?;

        copy(&only_entry(&root.join("boot"), "vmlinuz-")?, &self.kernel)?;
        copy(&root.join("bin/busybox"), &self.busybox)
            .or_else(|_| copy(&root.join("usr/bin/busybox"), &self.busybox))?;
        let modules = unpacked_modules(root)?;
        let archive = root_file_system(&self.busybox, agent, &modules)?;
        fs::write(&self.initrd, archive).map_err(Error::io("write", &self.initrd))
    }
}

/// The version in a kernel of x86. The setup header contains its offset from the second sector
/// (Documentation/arch/x86/boot.rst).
fn linux_version(kernel: &[u8]) -> Option<String> {
    let place = u16::from_le_bytes(kernel.get(0x20e..0x210)?.try_into().ok()?);
    let text = kernel.get(usize::from(place) + 0x200..)?;
    let name = std::str::from_utf8(text.split(|&byte| byte == b' ').next()?).ok()?;
    // The suite and the flavour follow it.
    let end =
        name.find(|letter: char| !matches!(letter, '0'..='9' | '.' | '-')).unwrap_or(name.len());
    Some(name[..end].trim_end_matches('-').to_owned())
}

fn unpack_kernel(metapackage: &str, root: &Path) -> Result<()> {
    packages::ensure_lists(metapackage)?;
    unpack(&current_kernel_package(metapackage)?, root).or_else(|_| {
        packages::refresh_lists()?;
        unpack(&current_kernel_package(metapackage)?, root)
    })
}

/// The modules' directory of the kernel that was unpacked below `root`.
pub fn unpacked_modules(root: &Path) -> Result<PathBuf> {
    only_entry(&root.join("lib/modules"), "")
        .or_else(|_| only_entry(&root.join("usr/lib/modules"), ""))
}

/// Builds the agent, and returns the program's path.
pub fn build_agent(workspace: &Workspace) -> Result<PathBuf> {
    let cargo = Workspace::cargo();
    let argv = [&cargo, "build", "--release", "-p", "weir-agent", "--target", AGENT_TARGET];
    run_in(&argv, &workspace.root, &[("RUSTFLAGS", AGENT_RUSTFLAGS.as_ref())])?;
    Ok(workspace.build_dir()?.join(AGENT_TARGET).join("release").join("weir-agent"))
}

/// The ingredients of an image as text. Images with equal ingredients are equal.
fn ingredients(agent: &Path) -> Result<String> {
    let libraries = libraries(IPERF3)?;
    let mut text = format!("{INIT}\n{MODULES:?} {MODULES_ON_DEMAND:?} {libraries:?}\n");
    for program in [Path::new(IPERF3), agent] {
        let metadata = fs::metadata(program).map_err(Error::io("look at", program))?;
        let (len, modified) = (metadata.len(), metadata.modified().ok());
        text.push_str(&format!("{} {len} {modified:?}\n", program.display()));
    }
    Ok(text)
}

fn root_file_system(busybox: &Path, agent: &Path, modules: &Path) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    for dir in ["bin", "dev", "modules", "modules/on-demand", "proc", "run", "sys", "tmp"] {
        archive.directory(dir);
    }
    archive.file("init", INIT.as_bytes());
    archive.file("bin/busybox", &read(busybox)?);
    archive.file("bin/weir-agent", &read(agent)?);
    archive.file("bin/iperf3", &read(Path::new(IPERF3))?);
    add_libraries(&mut archive, IPERF3, &mut Vec::new())?;

    // insmod loads no dependencies: the numbers in the names put a module after its dependencies.
    let found = Modules::below(modules)?;
    for (number, path) in found.in_load_order(MODULES)?.iter().enumerate() {
        archive.file(&format!("modules/{number:02}.ko"), &read(path)?);
    }
    for name in MODULES_ON_DEMAND {
        for path in found.in_load_order(&[name])? {
            archive.file(&format!("modules/on-demand/{name}.ko"), &read(&path)?);
        }
    }
    Ok(archive.finish())
}

/// Adds the shared libraries of `program` at the paths that the dynamic loader uses, except those in `made`.
fn add_libraries(archive: &mut Archive, program: &str, made: &mut Vec<String>) -> Result<()> {
    libraries(program)?.iter().try_for_each(|library| add_library(archive, library, made))
}

/// The shared libraries of `program`.
fn libraries(program: &str) -> Result<Vec<String>> {
    let said = run(&["ldd", program])?;
    let listed = said.split_whitespace().filter(|word| word.starts_with('/'));
    // A C library loads this one only when a thread is cancelled, as iperf3 of Debian 13 does at its end.
    let unlisted = listed.clone().filter_map(|library| library.strip_suffix("libc.so.6"));
    let unlisted = unlisted.map(|dir| format!("{dir}libgcc_s.so.1"));
    let unlisted = unlisted.filter(|library| Path::new(library).exists());
    Ok(listed.map(str::to_owned).chain(unlisted).collect())
}

/// Adds a library at its own path, unless it is in `made`.
fn add_library(archive: &mut Archive, library: &str, made: &mut Vec<String>) -> Result<()> {
    let path = Path::new(library);
    let mut parents: Vec<_> = path.ancestors().skip(1).filter_map(Path::to_str).collect();
    parents.reverse();
    for parent in parents.iter().map(|parent| parent.trim_start_matches('/')) {
        if !parent.is_empty() && !made.iter().any(|done| done == parent) {
            archive.directory(parent);
            made.push(parent.to_owned());
        }
    }
    let name = library.trim_start_matches('/');
    if !made.iter().any(|done| done == name) {
        archive.file(name, &read(path)?);
        made.push(name.to_owned());
    }
    Ok(())
}

/// The list of the modules that are part of the kernel, in the modules' directory.
pub const BUILT_IN: &str = "modules.builtin";

/// The endings of modules' files, and the programs that unpack a file beside itself.
const PACKED: &[(&str, &str)] = &[(".ko.xz", "xz"), (".ko.zst", "zstd"), (".ko.gz", "gzip")];

/// A kernel's modules, by their names in other modules' dependencies.
#[derive(Debug, Default)]
pub struct Modules {
    /// Each module's file, which may be packed.
    files: BTreeMap<String, PathBuf>,
    /// The modules that are part of the kernel, such as virtio's from Debian 13 on.
    built_in: BTreeSet<String>,
}

impl Modules {
    /// The modules below `dir`.
    pub fn below(dir: &Path) -> Result<Self> {
        let mut found = Self::default();
        let mut todo = vec![dir.to_path_buf()];
        while let Some(dir) = todo.pop() {
            for entry in fs::read_dir(&dir).map_err(Error::io("list", &dir))?.flatten() {
                let path = entry.path();
                // The kernel package's links lead to its build tree and are no part of it.
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    todo.push(path);
                } else if let Some(name) = module_name(&entry.file_name().to_string_lossy()) {
                    found.files.insert(name, path);
                }
            }
        }
        let list = fs::read_to_string(dir.join(BUILT_IN)).unwrap_or_default();
        let names = list.lines().map(|line| line.rsplit('/').next().unwrap_or(line));
        found.built_in = names.filter_map(module_name).collect();
        Ok(found)
    }

    /// The files of `wanted` and of all their dependencies, each module after its dependencies.
    /// Packed files are unpacked where they are.
    pub fn in_load_order(&self, wanted: &[&str]) -> Result<Vec<PathBuf>> {
        let mut order = Vec::new();
        let mut done: BTreeSet<&str> = self.built_in.iter().map(String::as_str).collect();
        let mut todo: Vec<String> = wanted.iter().rev().map(|&name| name.to_owned()).collect();
        while let Some(name) = todo.pop() {
            if done.contains(name.as_str()) {
                continue;
            }
            let missing = || Error::parse("a kernel module", name.as_str());
            let (known, path) = self.files.get_key_value(&name).ok_or_else(missing)?;
            let path = unpacked(path)?;
            let first: Vec<String> = dependencies(&read(&path)?)
                .into_iter()
                .filter(|other| self.files.contains_key(other) && !done.contains(other.as_str()))
                .collect();
            if first.is_empty() {
                done.insert(known);
                order.push(path);
            } else {
                todo.push(name);
                todo.extend(first);
            }
        }
        Ok(order)
    }
}

/// The name of a module by that of its file.
fn module_name(file: &str) -> Option<String> {
    let mut endings = PACKED.iter().map(|(ending, _)| *ending).chain([".ko"]);
    endings.find_map(|ending| file.strip_suffix(ending)).map(|name| name.replace('-', "_"))
}

/// The file of a module as the kernel loads it.
fn unpacked(path: &Path) -> Result<PathBuf> {
    let text = path.to_string_lossy();
    let Some((_, program)) = PACKED.iter().find(|(ending, _)| text.ends_with(ending)) else {
        return Ok(path.to_owned());
    };
    let plain = path.with_extension("");
    if !plain.exists() {
        run(&[program.as_ref(), "-d".as_ref(), "-k".as_ref(), path.as_os_str()])?;
    }
    Ok(plain)
}

/// The names after `depends=` in a module's `.modinfo`, whose entries end with NUL bytes.
fn dependencies(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|window| window == KEY) else {
        return Vec::new();
    };
    let value: Vec<u8> =
        module.iter().skip(at + KEY.len()).copied().take_while(|&byte| byte != 0).collect();
    String::from_utf8_lossy(&value)
        .split(',')
        .filter(|name| !name.is_empty())
        .map(|name| name.replace('-', "_"))
        .collect()
}

/// The package of the current kernel, on which `metapackage` always depends.
pub fn current_kernel_package(metapackage: &str) -> Result<String> {
    let depends = run(&["apt-cache", "depends", metapackage])?;
    let package = depends.lines().find_map(|line| line.trim().strip_prefix("Depends: "));
    package.map(str::to_owned).ok_or_else(|| Error::parse("the kernel's package", depends.as_str()))
}

/// Downloads `package` (or `package/RELEASE`) and unpacks it below `root`. It is not installed.
pub fn unpack(package: &str, root: &Path) -> Result<()> {
    run_in(&["apt-get", "download", "-q", package], root, &[])?;
    unpack_archive(package, root)
}

/// Unpacks the downloaded `package`, which is in `root`, and removes the package file.
pub fn unpack_archive(package: &str, root: &Path) -> Result<()> {
    let name = package.split('/').next().unwrap_or(package);
    let archive = only_entry(root, &format!("{name}_"))?;
    run(&["dpkg".as_ref(), "-x".as_ref(), archive.as_os_str(), root.as_os_str()])?;
    fs::remove_file(&archive).map_err(Error::io("remove", &archive))
}

/// The entry of `dir` whose name starts with `prefix`.
pub fn only_entry(dir: &Path, prefix: &str) -> Result<PathBuf> {
    let entries = fs::read_dir(dir).map_err(Error::io("list", dir))?;
    let mut matching =
        entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix));
    let entry = matching.next();
    entry
        .map(|entry| entry.path())
        .ok_or_else(|| Error::parse("a file there", format!("{}/{prefix}*", dir.display())))
}

/// Copies the file `from`.
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).map_err(Error::io("copy", from))?;
    Ok(())
}

/// The content of the file at `path`.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(Error::io("read", path))
}

/// The name of the last entry of an archive.
const TRAILER: &str = "TRAILER!!!";

const MODE_DIRECTORY: u32 = 0o040_755;
const MODE_PROGRAM: u32 = 0o100_755;

/// An archive being written.
#[derive(Default)]
pub struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    /// Adds the directory `path` (relative to the root). Its parent must have been added before.
    pub fn directory(&mut self, path: &str) {
        self.entry(path, MODE_DIRECTORY, &[]);
    }

    /// Adds the file `path` with `content`, readable and executable for all.
    pub fn file(&mut self, path: &str, content: &[u8]) {
        self.entry(path, MODE_PROGRAM, content);
    }

    /// The finished archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry(TRAILER, 0, &[]);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let fields: [usize; 13] = [
            self.entries as usize, // inode: files of the same number would be hard links
            mode as usize,
            0, // uid
            0, // gid
            1, // nlink
            0, // mtime
            content.len(),
            0, // device, major
            0, // device, minor
            0, // rdev, major
            0, // rdev, minor
            name.len() + 1,
            0, // checksum, unused in this format
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_of_guests_is_built_as_the_guide_says() {
        let guide = include_str!("../../../docs/guide/agent.md");
        let blocks = weir_testing::document::blocks(guide);
        let block = blocks.iter().find(|block| block.run_by.is_some_and(|by| by.contains("bed")));
        let commands = block.expect("how it is built").commands();
        let built = format!(
            "RUSTFLAGS='{AGENT_RUSTFLAGS}' cargo build --release -p weir-agent --target {AGENT_TARGET}"
        );
        assert_eq!(commands.into_iter().map(|(_, line)| line).collect::<Vec<_>>(), [built]);
    }

    #[test]
    fn a_module_is_loaded_behind_everything_it_depends_on() {
        let dir = tempfile::tempdir().unwrap();
        let modules =
            [("a_net", "b_ring,c_bus"), ("c_bus", "b_ring"), ("b_ring", ""), ("unrelated", "")];
        for (name, depends) in modules {
            let file = dir.path().join(name.replace('_', "-") + ".ko");
            fs::write(file, format!("\x7fELF\0license=GPL\0depends={depends}\0name=x\0")).unwrap();
        }
        let names = || {
            let order = Modules::below(dir.path()).unwrap().in_load_order(&["a_net"]).unwrap();
            order
                .iter()
                .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(names(), ["b-ring.ko", "c-bus.ko", "a-net.ko"]);
        // A distribution may compress modules, and may build some into the kernel.
        run(&["gzip".as_ref(), dir.path().join("c-bus.ko").as_os_str()]).unwrap();
        assert_eq!(names(), ["b-ring.ko", "c-bus.ko", "a-net.ko"]);
        fs::remove_file(dir.path().join("b-ring.ko")).unwrap();
        fs::write(dir.path().join(BUILT_IN), "kernel/drivers/b-ring.ko\n").unwrap();
        assert_eq!(names(), ["c-bus.ko", "a-net.ko"]);
    }

    #[test]
    fn modules_are_below_lib_or_below_usr_by_the_kernels_package() {
        for place in ["lib/modules", "usr/lib/modules"] {
            let root = tempfile::tempdir().unwrap();
            let modules = root.path().join(place).join("7.2.13");
            fs::create_dir_all(&modules).unwrap();
            assert_eq!(unpacked_modules(root.path()).unwrap(), modules);
        }
    }

    #[test]
    fn a_kernels_version_is_where_its_header_says() {
        let mut kernel = vec![0; 0x400];
        kernel[0x20e..0x210].copy_from_slice(&0x40u16.to_le_bytes());
        kernel.splice(0x240.., *b"6.1.0-48-cloud-amd64 (who@where)\0");
        assert_eq!(linux_version(&kernel).unwrap(), "6.1.0-48");
        assert_eq!(linux_version(&kernel[..0x20f]), None);
    }

    #[test]
    fn a_missing_module_is_named() {
        let error = Modules::default().in_load_order(&["virtio_net"]).unwrap_err();
        assert!(error.to_string().contains("virtio_net"), "{error}");
    }

    #[test]
    fn header_is_110_bytes_and_names_and_contents_are_padded_to_4() {
        let mut archive = Archive::default();
        archive.file("ab", b"hello");
        let bytes = archive.finish();
        assert_eq!(&bytes[..6], b"070701");
        assert_eq!(&bytes[54..62], b"00000005", "length of the content");
        assert_eq!(&bytes[94..102], b"00000003", "length of the name with its NUL");
        assert_eq!(&bytes[110..116], b"ab\0\0\0\0");
        assert_eq!(&bytes[116..121], b"hello");
        assert_eq!(&bytes[124..130], b"070701");
        assert_eq!(bytes.len() % 4, 0);
    }
}
