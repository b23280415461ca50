//! The guests' kernel and first root file system, kept in `target/guest` until their sources change.
//!
//! The kernel is Debian's stock cloud kernel, unpacked from its package. The root file system, a few megabytes,
//! holds busybox, iperf3, `weir-agent`, the virtio modules and [`init`](INIT).
//!
//! A machine with a network card boots Debian's general kernel and the programs of its test
//! ([`GuestImage::with_card`], in `target/card`).

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use crate::{
    cpio::Archive,
    error::{Error, Result},
    packages,
    process::{run, run_in},
    workspace::Workspace,
};

/// The guest's first and only program.
pub const INIT: &str = include_str!("guest_init.sh");

/// Always depends on the current cloud kernel's package.
const KERNEL_METAPACKAGE: &str = "linux-image-cloud-amd64";

/// The shell and the small tools. The static build needs nothing else.
pub const BUSYBOX_PACKAGE: &str = "busybox-static";

/// The client and server in guests, copied with its libraries.
pub const IPERF3: &str = "/usr/bin/iperf3";

/// Modules for virtio-net on PCI and on a microvm, and for the agent's port. Their dependencies are found.
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
        let dir = workspace.target("card")?;
        let (kernel, initrd) = (dir.join("vmlinuz"), dir.join("initrd.img"));
        let (modules, stamp) = (dir.join("modules"), dir.join("stamp"));
        let wanted = format!("{CARD_MODULES:?}");
        if !fs::read_to_string(&stamp).is_ok_and(|unpacked| unpacked == wanted) {
            println!("fetching a kernel with drivers of network cards (about {IMAGE_SECONDS} s)");
            let unpacked =
                tempfile::tempdir_in(&dir).map_err(Error::io("make a directory in", &dir))?;
            unpack_kernel(CARD_KERNEL_METAPACKAGE, unpacked.path())?;
            copy(&only_entry(&unpacked.path().join("boot"), "vmlinuz-")?, &kernel)?;
            let files = module_files(&unpacked_modules(unpacked.path())?)?;
            let _ = fs::remove_dir_all(&modules);
            fs::create_dir_all(&modules).map_err(Error::io("make", &modules))?;
            for (number, path) in in_load_order(CARD_MODULES, &files)?.iter().enumerate() {
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
            let name = program.file_name().unwrap_or_default().to_string_lossy();
            archive.file(&format!("bin/{name}"), &read(program)?);
            add_libraries(&mut archive, &program.to_string_lossy(), &mut made)?;
        }
        fs::write(initrd, archive.finish()).map_err(Error::io("write", initrd))
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

fn unpack_kernel(metapackage: &str, root: &Path) -> Result<()> {
    packages::ensure_lists(metapackage)?;
    unpack(&current_kernel_package(metapackage)?, root).or_else(|_| {
        packages::refresh_lists()?;
        unpack(&current_kernel_package(metapackage)?, root)
    })
}

/// The modules' directory of the kernel that was unpacked below `root`.
fn unpacked_modules(root: &Path) -> Result<PathBuf> {
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
    let mut text = format!("{INIT}\n{MODULES:?} {MODULES_ON_DEMAND:?}\n");
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

    // insmod loads no dependencies: the numbers in the names put a module behind its dependencies.
    let files = module_files(modules)?;
    for (number, path) in in_load_order(MODULES, &files)?.iter().enumerate() {
        archive.file(&format!("modules/{number:02}.ko"), &read(path)?);
    }
    for name in MODULES_ON_DEMAND {
        for path in in_load_order(&[name], &files)? {
            archive.file(&format!("modules/on-demand/{name}.ko"), &read(&path)?);
        }
    }
    Ok(archive.finish())
}

/// Adds the shared libraries of `program` at the paths that the dynamic loader uses, except those in `made`.
fn add_libraries(archive: &mut Archive, program: &str, made: &mut Vec<String>) -> Result<()> {
    for library in run(&["ldd", program])?.split_whitespace().filter(|word| word.starts_with('/')) {
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
    }
    Ok(())
}

/// Every module below `dir`, by its name in other modules' dependencies.
pub fn module_files(dir: &Path) -> Result<BTreeMap<String, PathBuf>> {
    let mut found = BTreeMap::new();
    let mut todo = vec![dir.to_path_buf()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(&dir).map_err(Error::io("list", &dir))?.flatten() {
            let path = entry.path();
            // The kernel package's links lead to its build tree and are no part of it.
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                todo.push(path);
            } else if let Some(name) = path
                .file_name()
                .and_then(|name| name.to_str())
                .and_then(|name| name.strip_suffix(".ko"))
            {
                found.insert(name.replace('-', "_"), path);
            }
        }
    }
    Ok(found)
}

/// The files of `wanted` and of all their dependencies, each module behind its dependencies.
pub fn in_load_order(wanted: &[&str], files: &BTreeMap<String, PathBuf>) -> Result<Vec<PathBuf>> {
    let mut order = Vec::new();
    let mut todo: Vec<String> = wanted.iter().rev().map(|&name| name.to_owned()).collect();
    while let Some(name) = todo.pop() {
        let path =
            files.get(&name).ok_or_else(|| Error::parse("a kernel module", name.as_str()))?;
        if order.contains(path) {
            continue;
        }
        let missing: Vec<String> = dependencies(&read(path)?)
            .into_iter()
            .filter(|dependency| files.get(dependency).is_some_and(|path| !order.contains(path)))
            .collect();
        if missing.is_empty() {
            order.push(path.clone());
        } else {
            todo.push(name);
            todo.extend(missing);
        }
    }
    Ok(order)
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
        let order = in_load_order(&["a_net"], &module_files(dir.path()).unwrap()).unwrap();
        let names: Vec<_> =
            order.iter().map(|p| p.file_stem().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["b-ring", "c-bus", "a-net"]);
    }

    #[test]
    fn a_missing_module_is_named() {
        let error = in_load_order(&["virtio_net"], &BTreeMap::new()).unwrap_err();
        assert!(error.to_string().contains("virtio_net"), "{error}");
    }
}
