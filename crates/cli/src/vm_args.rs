//! Arguments of a VM monitor that connect its guest to an interface: `weir qemu-args`.

use std::collections::BTreeSet;

use clap::ValueEnum;
use miette::Diagnostic;
use thiserror::Error;
use weir_config::{PortName, RingSize, SocketPath, SocketRole, VifConfig};
use weir_doctor::qemu::{MemorySize, QemuVersion, VECTORS_MIN};
use weir_libvirt::domain::{self, RECONNECT_SECS, escaped};

/// The virtio-serial port that `weir-agent` opens in the guest.
const AGENT_PORT: &str = "org.weir.agent.0";
/// The first QEMU with `reconnect-ms`. QEMU 10.2 has removed `reconnect`.
const QEMU_RECONNECT_MS: QemuVersion = QemuVersion(9, 2);
/// The first QEMU whose emulated processors get on with interrupt vectors.
const QEMU_VECTORS: QemuVersion = QemuVersion(VECTORS_MIN.0, VECTORS_MIN.1);

/// The number of the PCI Express ports of devices behind an IOMMU: any that no other port has.
const CHASSIS: u8 = 119;
/// A note for whoever boots the guest.
const BOOT_WITH_IOMMU: &str = "the guest translates once its kernel is booted with intel_iommu=on";

/// A program that runs VMs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Monitor {
    /// Arguments of qemu-system-*
    #[default]
    Qemu,
    /// Elements of a libvirt domain's XML
    Libvirt,
    /// Arguments of cloud-hypervisor
    CloudHypervisor,
    /// Arguments of `crosvm run`
    Crosvm,
    /// The line `args` of a Proxmox VE machine's file
    Proxmox,
    /// The environment of systemd-vmspawn
    Vmspawn,
    /// Keys of an Incus machine's configuration, as YAML
    Incus,
}

/// Options of `weir qemu-args` besides the interfaces.
#[derive(Debug, Clone)]
pub struct VmOptions {
    /// The guest's memory; `None` if something else shares it.
    pub memory: Option<MemorySize>,
    /// MSI-X vectors of each device, instead of two for each queue pair and two more.
    pub vectors: Option<u32>,
    /// The QEMU for which to write; the default is a current one.
    pub qemu_version: Option<QemuVersion>,
    /// Whether the VM can run by KVM, or why not; `None` where something else decides that.
    pub kvm: Option<Result<(), String>>,
    /// The host's architecture, as Rust calls it.
    pub architecture: &'static str,
    /// Whether the guest gets a virtual IOMMU, which translates the addresses of its devices.
    pub iommu: bool,
}

impl VmOptions {
    /// QEMU's option that makes a client's socket reconnect.
    fn reconnect(&self) -> String {
        match self.qemu_version {
            Some(version) if version < QEMU_RECONNECT_MS => format!("reconnect={RECONNECT_SECS}"),
            _ => format!("reconnect-ms={}", RECONNECT_SECS * 1000),
        }
    }

    /// MSI-X vectors of a device with this many queue pairs.
    fn vectors(&self, pairs: u32) -> u32 {
        // One vector for each virtqueue, one for the control queue, one for configuration changes.
        self.vectors.unwrap_or(if self.is_safe_with_vectors() { 2 * pairs + 2 } else { 0 })
    }

    fn is_safe_with_vectors(&self) -> bool {
        self.kvm == Some(Ok(())) || self.qemu_version.is_some_and(|it| it >= QEMU_VECTORS)
    }
}

/// Arguments or XML, with notes for the user.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VmArgs {
    /// Arguments in pairs, `-option value`, for a shell; or the XML, line by line.
    pub lines: Vec<String>,
    /// Sentences for people.
    pub notes: Vec<String>,
}

/// The reason why there are no arguments.
#[derive(Debug, Clone, PartialEq, Eq, Error, Diagnostic)]
pub enum VmArgsError {
    /// The option is for QEMU, which the monitor does not run.
    #[error("{option} has no effect with --for {monitor}")]
    #[diagnostic(help("leave it out: it is for programs that run QEMU"))]
    NoQemu {
        /// The option.
        option: &'static str,
        /// The monitor's name on the command line.
        monitor: String,
    },
    /// An interface is named twice, although it is one device of one virtual machine.
    #[error("{name} is named twice, and a VM has an interface once")]
    #[diagnostic(help("name each interface once; `weir vif add NAME` makes another one"))]
    Twice {
        /// The interface.
        name: PortName,
    },
    /// crosvm connects and never listens.
    #[error("crosvm cannot listen on a vhost-user socket, and {name} has mode = \"client\"")]
    #[diagnostic(help("set mode = \"server\" for {name}"))]
    CannotListen {
        /// The interface.
        name: PortName,
    },
    /// The monitor's option syntax cannot express the path.
    #[error("{monitor} cannot be given the path {path}")]
    #[diagnostic(help("choose a socket path of letters, digits and /._-"))]
    PathSyntax {
        /// The monitor.
        monitor: &'static str,
        /// The socket.
        path: String,
    },
    /// QEMU itself refuses a device behind an IOMMU whose back end does not offer what it takes.
    #[error("{name} has no `access_platform`, without which QEMU puts no device behind an IOMMU")]
    #[diagnostic(help("`weir vif set {name} access_platform=true`"))]
    NoAccessPlatform {
        /// The interface.
        name: PortName,
    },
    /// The device exists on one architecture.
    #[error("QEMU has intel-iommu on x86_64 only, and this is {architecture}")]
    #[diagnostic(help("leave out --iommu"))]
    NoIommu {
        /// The host's.
        architecture: &'static str,
    },
    /// Incus asks QEMU for shared memory on one architecture.
    #[error(
        "Incus shares a guest's memory on x86_64 only, and this is {architecture}: weir cannot map it"
    )]
    #[diagnostic(help("run this VM by QEMU, libvirt or systemd-vmspawn"))]
    MemoryNotShared {
        /// The host's.
        architecture: &'static str,
    },
}

impl Monitor {
    /// The arguments that connect one VM to `vifs`.
    ///
    /// # Errors
    /// [`VmArgsError`] if the monitor's options cannot express the interfaces.
    pub fn args(self, vifs: &[VifConfig], options: &VmOptions) -> Result<VmArgs, VmArgsError> {
        let of_qemu = [
            ("--vectors", options.vectors.is_some()),
            ("--qemu-version", options.qemu_version.is_some()),
            ("--iommu", options.iommu),
        ];
        let given = of_qemu.into_iter().find(|(_, is_given)| *is_given);
        if let Some((option, _)) = given.filter(|_| !self.is_for_qemu()) {
            let monitor = self.to_possible_value().map(|it| it.get_name().to_owned());
            return Err(VmArgsError::NoQemu { option, monitor: monitor.unwrap_or_default() });
        }
        let mut named = BTreeSet::new();
        if let Some(twice) = vifs.iter().find(|vif| !named.insert(&vif.name)) {
            return Err(VmArgsError::Twice { name: twice.name.clone() });
        }
        if options.iommu && options.architecture != "x86_64" {
            return Err(VmArgsError::NoIommu { architecture: options.architecture });
        }
        if let Some(vif) = vifs.iter().find(|vif| options.iommu && !vif.access_platform) {
            return Err(VmArgsError::NoAccessPlatform { name: vif.name.clone() });
        }
        match self {
            Self::Qemu => Ok(qemu(vifs, options)),
            Self::Libvirt => Ok(libvirt(vifs, options)),
            Self::CloudHypervisor => cloud_hypervisor(vifs, options),
            Self::Crosvm => crosvm(vifs),
            Self::Proxmox => Ok(proxmox(vifs, options)),
            Self::Vmspawn => vmspawn(vifs, options),
            Self::Incus => incus(vifs, options),
        }
    }

    /// True if [`VmArgs::lines`] are arguments for a shell.
    pub fn is_command_line(self) -> bool {
        matches!(self, Self::Qemu | Self::CloudHypervisor | Self::Crosvm)
    }

    /// True if the monitor runs QEMU: its lines depend on QEMU's version.
    pub fn is_for_qemu(self) -> bool {
        matches!(self, Self::Qemu | Self::Libvirt | Self::Proxmox | Self::Vmspawn | Self::Incus)
    }
}

fn qemu(vifs: &[VifConfig], options: &VmOptions) -> VmArgs {
    let size = options.memory.map(|memory| format!("-m {memory}"));
    let VmArgs { lines, mut notes } = qemu_devices(vifs, options);
    if let Some(Err(why)) = &options.kvm {
        notes.push(format!("QEMU emulates the processor, which is slow, because {why}"));
    }
    let by_kvm = (options.kvm == Some(Ok(()))).then(|| "-accel kvm -cpu max".to_owned());
    let machine = options.iommu.then(|| "-machine q35".to_owned());
    let before = by_kvm.into_iter().chain(machine).chain(size).chain(shared_memory(options));
    VmArgs { lines: before.chain(lines).collect(), notes }
}

/// weir maps the guest's memory: it must be a shared file.
fn shared_memory(options: &VmOptions) -> Vec<String> {
    let lines = |memory| {
        let object = format!("-object memory-backend-memfd,id=weir-mem,size={memory},share=on");
        vec![object, "-machine memory-backend=weir-mem".into()]
    };
    options.memory.map(lines).unwrap_or_default()
}

/// With `reconnect` QEMU may be started before weir (it waits before it boots the guest), and the
/// guest goes on when weir is started again.
fn qemu_devices(vifs: &[VifConfig], options: &VmOptions) -> VmArgs {
    let (mut lines, mut notes) = (Vec::new(), Vec::new());
    if options.iommu {
        // KVM's own interrupt controller knows no remapping. The device comes before those that it translates for.
        lines.push("-machine kernel-irqchip=split".into());
        lines.push("-device intel-iommu,intremap=on,device-iotlb=on".into());
        notes.push(BOOT_WITH_IOMMU.into());
    }
    for (index, vif) in vifs.iter().enumerate() {
        let name = &vif.name;
        let link = match vif.mode {
            SocketRole::Client => "server=on,wait=off".into(),
            SocketRole::Server => options.reconnect(),
        };
        let path = qemu_path(&vif.socket);
        let queues = vif.queues;
        let pairs = u32::from(queues.get());
        let mq = if pairs > 1 { ",mq=on" } else { "" };
        let vectors = options.vectors(pairs);
        let mtu = vif.mtu.map(|mtu| format!(",host_mtu={mtu}")).unwrap_or_default();
        let [rx_ring, tx_ring] = vif.ring_sizes();
        let behind = if options.iommu {
            // Translations are a matter of PCI Express. A chassis has each slot once, and others have chassis 0.
            lines.push(format!(
                "-device pcie-root-port,id=weir-port-{name},chassis={CHASSIS},slot={index}"
            ));
            format!(",bus=weir-port-{name},disable-legacy=on,iommu_platform=on,ats=on")
        } else {
            String::new()
        };
        lines.push(format!("-chardev socket,id=weir-{name},path={path},{link}"));
        lines
            .push(format!("-netdev vhost-user,id=weir-{name},chardev=weir-{name},queues={queues}"));
        lines.push(format!(
            "-device virtio-net-pci,netdev=weir-{name},mac={}{mq},vectors={vectors}\
             ,rx_queue_size={rx_ring},tx_queue_size={tx_ring}{mtu}{behind}",
            vif.mac_or_derived(),
        ));
    }
    if options.qemu_version.is_none() {
        notes.push(format!(
            "no QEMU is found here that says its version: this is for {QEMU_RECONNECT_MS} and later; for an older one, \
             --qemu-version"
        ));
    }
    if options.vectors.is_none() && !options.is_safe_with_vectors() {
        notes.push(format!(
            "vectors=0, because QEMU before {QEMU_VECTORS} ends with vectors where it emulates the processor; a VM with \
             KVM is faster with --vectors 4, and with 2 more for each further queue pair"
        ));
    }
    if let Some(agent) = agent_socket(vifs, &mut notes) {
        let (path, reconnect) = (qemu_path(agent), options.reconnect());
        lines.push(format!("-chardev socket,id=weir-agent,path={path},{reconnect}"));
        lines.push("-device virtio-serial-pci,id=weir-serial".into());
        lines.push(format!(
            "-device virtserialport,bus=weir-serial.0,chardev=weir-agent,name={AGENT_PORT}"
        ));
    }
    VmArgs { lines, notes }
}

/// The agent's socket for a virtual machine with these interfaces. A machine has one agent for all of them.
fn agent_socket<'v>(vifs: &'v [VifConfig], notes: &mut Vec<String>) -> Option<&'v SocketPath> {
    let agents = || vifs.iter().filter_map(|vif| vif.agent.as_ref().map(|agent| (vif, agent)));
    let (first, socket) = agents().next()?;
    for (other, _) in agents().filter(|(_, other)| *other != socket) {
        notes.push(format!(
            "a VM has one agent: give {} the same `agent` as {}, {socket}",
            other.name, first.name
        ));
    }
    Some(socket)
}

/// A note that `monitor` gives a guest no access to its agent's socket.
fn no_agent(monitor: &str, vifs: &[VifConfig]) -> Option<String> {
    let vif = vifs.iter().find(|vif| vif.agent.is_some())?;
    Some(format!(
        "{monitor} has no virtio-serial port on a socket: the agent of {} is not reached",
        vif.name
    ))
}

/// Proxmox VE writes `-m` itself, and appends `args` to what it has written; QEMU merges the options `-machine`.
fn proxmox(vifs: &[VifConfig], options: &VmOptions) -> VmArgs {
    let VmArgs { lines, mut notes } = qemu_devices(vifs, options);
    let lines: Vec<_> = shared_memory(options).into_iter().chain(lines).collect();
    notes.push(
        "this line stands in /etc/pve/qemu-server/VMID.conf; root alone may set it, with `qm set VMID --args`".into(),
    );
    if options.iommu {
        notes.push("the VM must have `machine: q35`, without `viommu`".into());
    }
    notes.push(match options.memory {
        Some(memory) => format!(
            "the VM must have `memory: {}`, no `numa`, no hotplug of memory and no virtiofs; with `hugepages` or virtiofs \
             its memory is shared already: --no-memory",
            memory.mib()
        ),
        None => "the VM must have `hugepages` or virtiofs, which share its memory".into(),
    });
    VmArgs { lines: vec![format!("args: {}", lines.join(" "))], notes }
}

/// systemd-vmspawn writes `-m` itself, and appends the variable's words to what it has written.
fn vmspawn(vifs: &[VifConfig], options: &VmOptions) -> Result<VmArgs, VmArgsError> {
    // The variable's words are unquoted within a shell's word.
    only_plain_paths("systemd-vmspawn", vifs)?;
    let VmArgs { lines, mut notes } = qemu_devices(vifs, options);
    let lines: Vec<_> = shared_memory(options).into_iter().chain(lines).collect();
    notes.push(match options.memory {
        Some(memory) => format!(
            "write this before `systemd-vmspawn --ram={memory}`; with --directory or --bind its memory is shared already: \
             --no-memory"
        ),
        None => "the VM must have --directory or --bind, which share its memory".into(),
    });
    let line = format!("SYSTEMD_VMSPAWN_QEMU_EXTRA='{}'", lines.join(" "));
    Ok(VmArgs { lines: vec![line], notes })
}

/// Incus gives its machines shared memory by itself, and confines their QEMU by AppArmor.
fn incus(vifs: &[VifConfig], options: &VmOptions) -> Result<VmArgs, VmArgsError> {
    if options.architecture != "x86_64" {
        return Err(VmArgsError::MemoryNotShared { architecture: options.architecture });
    }
    // The paths become part of YAML and of an AppArmor profile.
    only_plain_paths("Incus", vifs)?;
    let VmArgs { lines, mut notes } = qemu_devices(vifs, options);
    let mut paths: Vec<_> = vifs.iter().map(|vif| &vif.socket).collect();
    paths.extend(agent_socket(vifs, &mut Vec::new()));
    let allowed: Vec<_> = paths.into_iter().map(|path| format!("{path} rw,")).collect();
    notes.push(
        "these keys are for `incus config edit NAME`; its QEMU connects again as a user without privileges: set \
         `socket_mode`"
            .into(),
    );
    let lines = vec![
        "config:".into(),
        format!("  raw.qemu: '{}'", lines.join(" ")),
        format!("  raw.apparmor: '{}'", allowed.join(" ")),
    ];
    Ok(VmArgs { lines, notes })
}

/// Refuses paths with characters that mean something in one of the syntaxes between the user and QEMU.
fn only_plain_paths(monitor: &'static str, vifs: &[VifConfig]) -> Result<(), VmArgsError> {
    let is_plain = |path: &&SocketPath| {
        path.as_str().chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c))
    };
    let mut paths = vifs.iter().flat_map(|vif| [Some(&vif.socket), vif.agent.as_ref()]).flatten();
    paths
        .find(|path| !is_plain(path))
        .map_or(Ok(()), |path| Err(VmArgsError::PathSyntax { monitor, path: path.as_str().into() }))
}

/// libvirt chooses the vectors by itself. Whether QEMU will emulate the domain's processor is not known here.
fn libvirt(vifs: &[VifConfig], options: &VmOptions) -> VmArgs {
    let mut xml = Vec::new();
    if options.memory.is_some() {
        xml.push(
            "<!-- in <domain>: weir maps the guest's memory, so it must be shared -->".to_owned(),
        );
        xml.extend(domain::memory());
    }
    if options.iommu {
        xml.push("<!-- in <features> of a domain with <type machine='q35'> -->".into());
        xml.push("<ioapic driver='qemu'/>".into());
    }
    let asked = options.vectors.map(|vectors| (vectors, "<!-- in <domain> -->".to_owned()));
    let own = || {
        let only = format!(
            "<!-- in <domain type='{}'> only: QEMU before {QEMU_VECTORS} that emulates its processor ends with \
             interrupt vectors -->",
            domain::EMULATED
        );
        (!options.is_safe_with_vectors()).then_some((0, only))
    };
    let vectors = asked.or_else(own);
    let has_alias = vectors.is_some();
    if let Some((vectors, place)) = vectors {
        xml.push(place);
        xml.push(domain::overrides(vifs.iter().map(|vif| domain::alias_of(&vif.name)), vectors));
    }
    xml.push("<!-- in <devices> -->".into());
    let mut notes = Vec::new();
    if options.iommu {
        xml.push("<iommu model='intel'><driver intremap='on' iotlb='on'/></iommu>".into());
        notes.push(BOOT_WITH_IOMMU.into());
    }
    xml.extend(vifs.iter().flat_map(|vif| domain::interface(vif, has_alias, options.iommu)));
    if let Some(agent) = agent_socket(vifs, &mut notes) {
        let path = escaped(agent.as_str());
        xml.push("<channel type='unix'>".into());
        xml.push(format!("  <source mode='connect' path='{path}'>"));
        xml.push(format!("    <reconnect enabled='yes' timeout='{RECONNECT_SECS}'/>"));
        xml.push("  </source>".into());
        xml.push(format!("  <target type='virtio' name='{AGENT_PORT}'/>"));
        xml.push("</channel>".into());
    }
    VmArgs { lines: xml, notes }
}

fn cloud_hypervisor(vifs: &[VifConfig], options: &VmOptions) -> Result<VmArgs, VmArgsError> {
    let mut args = VmArgs::default();
    args.lines.extend(options.memory.map(|memory| format!("--memory size={memory},shared=on")));
    for vif in vifs {
        let path = plain_path("cloud-hypervisor", vif)?;
        // The option num_queues counts RX and TX queues, and vhost_mode is the monitor's side of the socket.
        let queues = 2 * u32::from(vif.queues.get());
        let mode = match vif.mode {
            SocketRole::Server => "client",
            SocketRole::Client => "server",
        };
        let mtu = vif.mtu.map(|mtu| format!(",mtu={mtu}")).unwrap_or_default();
        let [rx_ring, tx_ring] = vif.ring_sizes();
        let size = rx_ring.max(tx_ring);
        if rx_ring != tx_ring {
            args.notes.push(format!(
                "cloud-hypervisor has one size for all rings of {}: {size}",
                vif.name
            ));
        }
        args.lines.push(format!(
            "--net vhost_user=on,socket={path},vhost_mode={mode},num_queues={queues}\
             ,queue_size={size},mac={}{mtu}",
            vif.mac_or_derived(),
        ));
        if vif.mode == SocketRole::Server {
            args.notes.push(format!("start weir before the VM, so that {} is there", vif.socket));
        }
    }
    args.notes.extend(no_agent("cloud-hypervisor", vifs));
    if vifs.iter().any(|vif| vif.queues.get() > 1) {
        args.notes.push("give the VM as many vCPUs (--cpus boot=N) as it has queue pairs".into());
    }
    Ok(args)
}

fn crosvm(vifs: &[VifConfig]) -> Result<VmArgs, VmArgsError> {
    let mut args = VmArgs::default();
    for vif in vifs {
        if vif.mode == SocketRole::Client {
            return Err(VmArgsError::CannotListen { name: vif.name.clone() });
        }
        args.lines.push(format!("--vhost-user net,socket={}", plain_path("crosvm", vif)?));
        if let Some(mac) = vif.mac {
            args.notes.push(format!(
                "crosvm has no option for the MAC address: set {mac} inside the guest"
            ));
        }
        if vif.ring_sizes() != [RingSize::DEFAULT; 2] {
            args.notes.push(format!("crosvm chooses the sizes of the rings of {}", vif.name));
        }
        args.notes.push(format!("start weir before the VM, so that {} is there", vif.socket));
    }
    args.notes.extend(no_agent("crosvm", vifs));
    Ok(args)
}

/// The path as the value of a QEMU option, in a shell.
fn qemu_path(path: &SocketPath) -> String {
    shell_word(&path.as_str().replace(',', ",,"))
}

/// The socket's path, for option syntaxes that cannot escape their separators.
fn plain_path(monitor: &'static str, vif: &VifConfig) -> Result<String, VmArgsError> {
    let path = vif.socket.as_str();
    if path.contains([',', '[', ']']) {
        return Err(VmArgsError::PathSyntax { monitor, path: path.into() });
    }
    Ok(shell_word(path))
}

/// `text` as a part of one word of a shell's command line. [`weir_config::SocketPath`] contains no quotes.
fn shell_word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:,@%=".contains(c);
    if text.chars().all(plain) { text.into() } else { format!("'{text}'") }
}

#[cfg(test)]
mod tests;
