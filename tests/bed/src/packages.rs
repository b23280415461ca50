//! The Debian packages of the guests, the peers and the tools.
//!
//! Files that exist are not changed. Services of installed packages are not started.

use std::{
    ffi::OsStr,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use crate::{
    error::{Error, Result, check},
    guest_image::{unpack, unpack_archive},
    process::{run, run_in},
    workspace::Workspace,
};

/// A program that is run, or a file that builds need, and the Debian package it comes from.
struct Tool {
    program: &'static str,
    package: &'static str,
}

/// Packages for guests, peers and traffic on the host. Packages for the inside of guests are unpacked, not installed;
/// see [`crate::guest_image`].
const TOOLS: &[Tool] = &[
    LIBPCAP,
    Tool { program: QEMU, package: QEMU_PACKAGE },
    Tool { program: "/usr/bin/iperf3", package: "iperf3" },
    Tool { program: "/usr/sbin/ip", package: "iproute2" },
    Tool { program: "/usr/sbin/ethtool", package: "ethtool" },
    Tool { program: "/usr/sbin/nft", package: "nftables" },
    Tool { program: "/bin/busybox", package: "busybox-static" },
    // Debian 13 compresses the modules of its kernels.
    Tool { program: "/usr/bin/xz", package: "xz-utils" },
    Tool { program: "/usr/bin/python3", package: "python3" },
    // Makes roots of other releases, for their front ends.
    Tool { program: "/usr/sbin/debootstrap", package: "debootstrap" },
    Tool { program: VSWITCHD, package: "openvswitch-switch-dpdk" },
    Tool { program: "/usr/bin/dpdk-testpmd", package: "dpdk-dev" },
    Tool { program: "/usr/bin/passt", package: "passt" },
    DNSMASQ_TOOL,
    Tool { program: "/usr/sbin/dhclient", package: "isc-dhcp-client" },
    Tool { program: "/usr/bin/dig", package: "bind9-dnsutils" },
    Tool { program: CURL, package: "curl" },
    Tool { program: DROPBEAR, package: "dropbear-bin" },
    Tool { program: TRACEROUTE, package: "traceroute" },
    Tool { program: "/usr/bin/rdisc6", package: "ndisc6" },
    Tool { program: "/usr/sbin/perfdhcp", package: "kea-admin" },
    Tool { program: VALGRIND, package: "valgrind" },
    Tool { program: STRACE, package: "strace" },
    FRR,
    Tool { program: "/usr/bin/tmux", package: "tmux" },
    Tool { program: "/usr/bin/tshark", package: "tshark" },
    PROMETHEUS,
];

/// Tools that check examples.
const EXAMPLES: &[Tool] = &[
    Tool { program: "/usr/bin/virt-xml-validate", package: "libvirt-clients" },
    Tool { program: "/usr/bin/xmllint", package: "libxml2-utils" },
    Tool { program: "/usr/bin/ansible", package: "ansible-core" },
    Tool { program: "/usr/bin/ansible-lint", package: "ansible-lint" },
    Tool { program: "/usr/bin/systemd-analyze", package: "systemd" },
    PROMETHEUS,
];

/// Tools that link and run tests for aarch64.
const AARCH64: &[Tool] = &[
    Tool { program: "/usr/bin/aarch64-linux-gnu-gcc", package: "gcc-aarch64-linux-gnu" },
    Tool { program: "/usr/aarch64-linux-gnu/lib/libc.so.6", package: "libc6-dev-arm64-cross" },
    Tool { program: "/usr/bin/qemu-aarch64", package: "qemu-user" },
];

/// Tools that show weir's page and check it.
const BROWSER: &[Tool] = &[
    Tool { program: CHROMIUM, package: "chromium" },
    Tool { program: "/usr/bin/npm", package: "npm" },
];

/// Packages for `make demo-fabric`.
const FABRIC: &[Tool] = &[
    LIBPCAP,
    Tool { program: QEMU, package: QEMU_PACKAGE },
    Tool { program: "/usr/bin/iperf3", package: "iperf3" },
    Tool { program: "/usr/sbin/ip", package: "iproute2" },
    FRR,
];

/// Further packages for `make frontends`.
const LIBVIRT: &[Tool] = &[
    Tool { program: "/usr/sbin/libvirtd", package: "libvirt-daemon-system" },
    Tool { program: "/usr/bin/virsh", package: "libvirt-clients" },
];

/// QEMUs for guests of other architectures, and the firmware of their machines.
const FOREIGN: &[Tool] = &[
    Tool { program: "/usr/bin/qemu-system-aarch64", package: "qemu-system-arm" },
    Tool { program: "/usr/bin/qemu-system-riscv64", package: "qemu-system-misc" },
    Tool { program: "/usr/bin/qemu-system-ppc64", package: "qemu-system-ppc" },
    Tool { program: "/usr/share/qemu/opensbi-riscv64-generic-fw_dynamic.bin", package: "opensbi" },
];

/// Firmware that boots over the network, for machines of [`FOREIGN`] too, and a TFTP server.
const NET_BOOT: &[Tool] = &[
    DNSMASQ_TOOL,
    Tool { program: "/usr/share/ovmf/OVMF.fd", package: "ovmf" },
    Tool { program: "/usr/lib/u-boot/qemu_arm64/u-boot.bin", package: "u-boot-qemu" },
];

/// Prometheus, which scrapes weir. `promtool` comes with it.
const PROMETHEUS: Tool = Tool { program: "/usr/bin/prometheus", package: "prometheus" };

/// FRR, the EVPN control plane of a fabric.
const FRR: Tool = Tool { program: "/usr/lib/frr/bgpd", package: "frr" };

/// A library of weir. The test bed is not linked with it.
const LIBPCAP: Tool = Tool { program: "/usr/include/pcap.h", package: "libpcap-dev" };

/// The QEMU of all guests.
pub const QEMU: &str = "/usr/bin/qemu-system-x86_64";
const QEMU_PACKAGE: &str = "qemu-system-x86";
/// All of one source package, which must have one version.
const QEMU_PACKAGES: &str = "qemu-system-";

/// Open vSwitch with DPDK. The `ovs-vswitchd` alternative may point elsewhere.
pub const VSWITCHD: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";

/// The TFTP server, and the DHCP server of a bridge.
pub const DNSMASQ: &str = "/usr/sbin/dnsmasq";
const DNSMASQ_TOOL: Tool = Tool { program: DNSMASQ, package: "dnsmasq-base" };

/// Programs that guests run besides busybox.
pub const CURL: &str = "/usr/bin/curl";
/// A server of ssh.
pub const DROPBEAR: &str = "/usr/sbin/dropbear";
/// Its client, of the same package.
pub const DBCLIENT: &str = "/usr/bin/dbclient";
/// Linux's traceroute. Its plain name is an alternative.
pub const TRACEROUTE: &str = "/usr/bin/traceroute.db";

/// The browser.
pub const CHROMIUM: &str = "/usr/bin/chromium";

/// The program that counts instructions, at the path of Debian's package.
pub const VALGRIND: &str = "/usr/bin/valgrind";

/// Counts system calls.
pub const STRACE: &str = "/usr/bin/strace";

/// The only installer of packages that the test bed knows.
const APT: &str = "/usr/bin/apt-get";

/// Exists on systems where the installation of a package must not start services.
const POLICY_RC_D: &str = "/usr/sbin/policy-rc.d";

/// Package sources in cloud and container images of Debian.
const DEBIAN_SOURCES: &str = "/etc/apt/sources.list.d/debian.sources";

/// Package sources as Debian's installer writes them.
const SOURCES_LIST: &str = "/etc/apt/sources.list";

/// The missing packages, in the order of installation.
pub fn missing() -> Vec<&'static str> {
    missing_of(TOOLS)
}

fn missing_of(tools: &[Tool]) -> Vec<&'static str> {
    tools.iter().filter(|tool| !Path::new(tool.program).exists()).map(|tool| tool.package).collect()
}

/// True for root, who can install packages and make namespaces.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Installs what weir's build needs. Needs root unless the packages are installed.
pub fn ensure_to_build() -> Result<()> {
    // On other distributions than Debian the header may be elsewhere.
    let known = || run_in(&["pkg-config", "--exists", "libpcap"], Path::new("/"), &[]).is_ok();
    if Path::new(LIBPCAP.program).exists() || known() {
        return Ok(());
    }
    let package = LIBPCAP.package;
    by_apt(&[package])?;
    check(is_root(), || {
        format!(
            "building weir needs libpcap; as root: apt-get update && apt-get install -y {package}"
        )
    })?;
    println!("installing {package}, with which weir is linked");
    refresh_lists()?;
    install(&[], &[package])
}

/// Installs the packages for a fabric of hosts that are missing. Needs root if one is.
pub fn ensure_fabric(workspace: &Workspace) -> Result<()> {
    install_all(workspace, missing_of(FABRIC))
}

/// Installs libvirt if it is missing. Needs root then.
pub fn ensure_libvirt(workspace: &Workspace) -> Result<()> {
    install_all(workspace, missing_of(LIBVIRT))
}

/// Installs the QEMUs of other architectures that are missing. Needs root then.
pub fn ensure_foreign(workspace: &Workspace) -> Result<()> {
    install_all(workspace, missing_of(FOREIGN))
}

/// Installs the firmware that boots over the network, and a TFTP server, if they are missing. Needs root then.
pub fn ensure_net_boot(workspace: &Workspace) -> Result<()> {
    install_all(workspace, [missing_of(FOREIGN), missing_of(NET_BOOT)].concat())
}

/// Installs the tools that check examples if one is missing. Needs root then.
pub fn ensure_for_examples(workspace: &Workspace) -> Result<()> {
    install_all(workspace, missing_of(EXAMPLES))
}

/// Installs the tools that link and run tests for aarch64 if one is missing. Needs root then.
pub fn ensure_for_aarch64(workspace: &Workspace) -> Result<()> {
    install_all(workspace, missing_of(AARCH64))
}

/// Installs a browser and its tools if one is missing. Needs root then.
pub fn ensure_browser(workspace: &Workspace) -> Result<()> {
    install_all(workspace, missing_of(BROWSER))
}

/// Installs the missing packages. Needs root if one is missing.
pub fn ensure(workspace: &Workspace) -> Result<()> {
    install_all(workspace, missing())
}

fn install_all(workspace: &Workspace, missing: Vec<&'static str>) -> Result<()> {
    if missing.is_empty() {
        return Ok(());
    }
    by_apt(&missing)?;
    println!("installing {}", missing.join(" "));
    let _no_services = ServicePolicy::forbid_start()?;
    refresh_lists()?;
    // QEMU comes last: if libraries are from backports, the release's own packages may not fit them.
    let (newer, plain): (Vec<_>, Vec<_>) =
        missing.into_iter().partition(|p| p.starts_with(QEMU_PACKAGES));
    install(&[], &plain).or_else(|error| {
        println!("{error}\ntrying again with backports");
        install_from_backports(workspace, &plain)
    })?;
    // Debian 12's own QEMU (7.2) ends when a guest uses MSI-X on a vhost-user device without KVM,
    // and every guest here runs without.
    install_from_backports(workspace, &newer).or_else(|error| {
        println!("{error}\nno QEMU from backports; taking the release's own");
        install(&[], &newer)
    })
}

/// The version that its authors gave to a package which is installed below `root`.
pub fn version_of(package: &str, root: &Path) -> Result<String> {
    let admindir = root.join("var/lib/dpkg");
    let admindir = format!("--admindir={}", admindir.display());
    run(&["dpkg-query", &admindir, "--show", "--showformat", "${source:Upstream-Version}", package])
}

/// The server of Debian from which this machine has its packages.
pub fn site() -> Result<String> {
    let targets = ["apt-get", "indextargets", "--format", "$(SITE)"];
    let sites = run(&[&targets[..], &["Created-By: Packages", "Label: Debian"]].concat())?;
    let site = sites.lines().next();
    site.map(str::to_owned).ok_or_else(|| Error::parse("a source of Debian", &*sites))
}

/// Fetches the package lists if apt does not know `package`, as on a newly installed machine.
pub fn ensure_lists(package: &str) -> Result<()> {
    if run_in(&["apt-cache", "show", package], Path::new("/"), &[]).is_ok() {
        return Ok(());
    }
    refresh_lists()
}

/// Fetches the package lists. Old lists may name versions that are no longer served.
pub fn refresh_lists() -> Result<()> {
    apt(&["update", "-q"])
}

/// Downloads `package` (or `package/RELEASE`) and unpacks it below `root`. It is not installed.
pub fn fetch(package: &str, root: &Path) -> Result<()> {
    fs::create_dir_all(root).map_err(Error::io("make", root))?;
    ensure_lists(package.split('/').next().unwrap_or(package))?;
    unpack(package, root).or_else(|_| {
        refresh_lists()?;
        unpack(package, root)
    })
}

/// Unpacks `packages` of the release's backports below `root`. They are not installed.
pub fn unpack_from_backports(workspace: &Workspace, packages: &[&str], root: &Path) -> Result<()> {
    let (suite, options) = backports(workspace)?;
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    apt(&[options.as_slice(), &["update", "-q"]].concat())?;
    fs::create_dir_all(root).map_err(Error::io("make", root))?;
    for package in packages {
        let package = format!("{package}/{suite}");
        let download = ["apt-get"].iter().chain(&options).copied();
        let argv: Vec<_> = download.chain(["download", "-q", &package]).collect();
        run_in(&argv, root, &[])?;
        unpack_archive(&package, root)?;
    }
    Ok(())
}

/// Installs from the release and its backports, the latter preferred.
fn install_from_backports(workspace: &Workspace, packages: &[&str]) -> Result<()> {
    if packages.is_empty() {
        return Ok(());
    }
    let (suite, options) = backports(workspace)?;
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    apt(&[options.as_slice(), &["update", "-q"]].concat())?;
    install(&[options.as_slice(), &["-t", &suite]].concat(), packages)
}

/// The name of the backports suite, and the apt options that add it without a change of the system's configuration.
fn backports(workspace: &Workspace) -> Result<(String, Vec<String>)> {
    let codename = codename()?;
    let suite = format!("{codename}-backports");
    let (name, sources) = with_backports(&codename)?;
    let dir = workspace.target("apt")?;
    let lists = dir.join("lists");
    let parts = dir.join("sources.list.d");
    for dir in [&lists.join("partial"), &parts] {
        fs::create_dir_all(dir).map_err(Error::io("make", dir))?;
    }
    let file = parts.join(name);
    fs::write(&file, sources).map_err(Error::io("write", &file))?;
    let option =
        |key: &str, path: &PathBuf| [String::from("-o"), format!("{key}={}", path.display())];
    let options = [option("Dir::Etc::SourceParts", &parts), option("Dir::State::lists", &lists)];
    Ok((suite, options.concat()))
}

/// The name and the text of a file in place of `sources.list.d`. Backports then come from the release's own server.
/// apt still reads `sources.list`.
fn with_backports(codename: &str) -> Result<(&'static str, String)> {
    if let Ok(sources) = fs::read_to_string(DEBIAN_SOURCES) {
        let stanza = backports_stanza(&sources, codename)
            .ok_or_else(|| Error::parse("a stanza of the release itself", sources.as_str()))?;
        return Ok(("debian.sources", format!("{sources}\n\n{stanza}\n")));
    }
    let path = Path::new(SOURCES_LIST);
    let sources = fs::read_to_string(path).map_err(Error::io("read", path))?;
    let line = backports_line(&sources, codename)
        .ok_or_else(|| Error::parse("a line of the release itself", sources.as_str()))?;
    Ok(("backports.list", format!("{line}\n")))
}

/// The line that serves `codename` itself, with its suite replaced by the backports suite.
fn backports_line(sources: &str, codename: &str) -> Option<String> {
    let suite = |word: &str| {
        if word == codename { format!("{codename}-backports") } else { word.to_owned() }
    };
    let serves_release =
        |line: &&str| line.starts_with("deb ") && line.split_whitespace().any(|w| w == codename);
    let line = sources.lines().find(serves_release)?;
    Some(line.split_whitespace().map(suite).collect::<Vec<_>>().join(" "))
}

/// The stanza that serves `codename` itself, with its suites replaced by the backports suite.
fn backports_stanza(sources: &str, codename: &str) -> Option<String> {
    let serves_release = |stanza: &&str| {
        stanza
            .lines()
            .filter_map(|line| line.strip_prefix("Suites:"))
            .any(|suites| suites.split_whitespace().any(|suite| suite == codename))
    };
    let stanza = sources.split("\n\n").find(serves_release)?;
    let lines = stanza.lines().map(|line| {
        if line.starts_with("Suites:") {
            format!("Suites: {codename}-backports")
        } else {
            line.to_owned()
        }
    });
    Some(lines.collect::<Vec<_>>().join("\n"))
}

/// The name of this machine's release of Debian.
pub fn codename() -> Result<String> {
    let path = Path::new("/etc/os-release");
    let text = fs::read_to_string(path).map_err(Error::io("read", path))?;
    let codename = text.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    codename.map(str::to_owned).ok_or_else(|| Error::parse("VERSION_CODENAME", text.as_str()))
}

/// Fails where this system has no apt: another program then installs `packages`.
fn by_apt(packages: &[&str]) -> Result<()> {
    check(Path::new(APT).exists(), || {
        format!(
            "this system has no apt: install what Debian has in {} by its own package manager",
            packages.join(", ")
        )
    })
}

fn install(options: &[&str], packages: &[&str]) -> Result<()> {
    if packages.is_empty() {
        return Ok(());
    }
    let mut args = options.to_vec();
    args.extend(["install", "-q", "-y", "--no-install-recommends"]);
    args.extend(packages);
    apt(&args)
}

fn apt(args: &[&str]) -> Result<()> {
    let mut argv = vec![APT];
    argv.extend(args);
    run_in(&argv, Path::new("/"), &[("DEBIAN_FRONTEND", OsStr::new("noninteractive"))])?;
    Ok(())
}

/// Prevents the start of installed services as long as it lives.
struct ServicePolicy {
    written: bool,
}

impl ServicePolicy {
    fn forbid_start() -> Result<Self> {
        let path = Path::new(POLICY_RC_D);
        if path.exists() {
            return Ok(Self { written: false });
        }
        // 101: "action forbidden by policy" (invoke-rc.d(8)).
        fs::write(path, "#!/bin/sh\nexit 101\n").map_err(Error::io("write", path))?;
        let policy = Self { written: true };
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))
            .map_err(Error::io("make executable", path))?;
        Ok(policy)
    }
}

impl Drop for ServicePolicy {
    fn drop(&mut self) {
        if self.written {
            let _ = fs::remove_file(POLICY_RC_D);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCES: &str = "Types: deb\nURIs: http://mirror.example/security\n\
        Suites: bookworm-security\nComponents: main\n\nTypes: deb\nURIs: http://mirror.example/debian\n\
        Suites: bookworm bookworm-updates\nComponents: main\nSigned-By: /k.gpg";

    #[test]
    fn backports_come_from_where_the_release_itself_comes_from() {
        let stanza = backports_stanza(SOURCES, "bookworm").unwrap();
        assert_eq!(
            stanza,
            "Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm-backports\n\
             Components: main\nSigned-By: /k.gpg"
        );
    }

    #[test]
    fn backports_are_derived_from_one_line_sources_too() {
        let sources = "deb-src http://mirror.example/debian bookworm main\n\
            deb [signed-by=/k.gpg] http://mirror.example/debian bookworm main contrib\n";
        assert_eq!(
            backports_line(sources, "bookworm").unwrap(),
            "deb [signed-by=/k.gpg] http://mirror.example/debian bookworm-backports main contrib"
        );
        assert_eq!(backports_line(sources, "trixie"), None);
    }

    #[test]
    fn no_stanza_of_the_release_means_no_backports() {
        assert_eq!(backports_stanza(SOURCES, "trixie"), None);
    }
}
