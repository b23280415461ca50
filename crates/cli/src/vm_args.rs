//! What to give a VM monitor so that its guest is plugged into an interface: `weir qemu-args`.

use std::fmt;
use std::str::FromStr;

use clap::ValueEnum;
use miette::Diagnostic;
use thiserror::Error;

use crate::config::{PortName, SocketRole, VifConfig};

/// Entries per virtqueue that weir suggests: the most that QEMU gives a vhost-user device
/// (`VIRTQUEUE_MAX_SIZE`; other back ends get 256 for TX).
pub(crate) const QUEUE_SIZE: u16 = 1024;
/// Seconds between two attempts of a VM monitor to reach weir.
const RECONNECT_SECS: u32 = 1;
/// From here on QEMU has `reconnect-ms` and calls `reconnect` deprecated.
const QEMU_RECONNECT_MS: QemuVersion = QemuVersion { major: 9, minor: 2 };

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
}

/// What `weir qemu-args` was told beside the interfaces.
#[derive(Debug, Clone)]
pub struct VmOptions {
    /// The guest's memory.
    pub memory: MemorySize,
    /// MSI-X vectors of each device, instead of two for each queue pair and two more.
    pub vectors: Option<u32>,
    /// The QEMU to write for; without it what works with 7.2 as with 10.0.
    pub qemu_version: Option<QemuVersion>,
}

/// Arguments or XML, and what the user should know beside them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VmArgs {
    /// Arguments in pairs, `-option value`, for a shell; or the XML, line by line.
    pub lines: Vec<String>,
    /// Sentences for people.
    pub notes: Vec<String>,
}

/// Why there are no arguments.
#[derive(Debug, Clone, PartialEq, Eq, Error, Diagnostic)]
pub enum VmArgsError {
    /// crosvm connects and never listens.
    #[error("crosvm cannot listen on a vhost-user socket, and {name} has mode = \"client\"")]
    #[diagnostic(help("set mode = \"server\" for {name}"))]
    CannotListen {
        /// The interface.
        name: PortName,
    },
    /// The monitor's option syntax has no way to write the path.
    #[error("{monitor} cannot be given the path {path}")]
    #[diagnostic(help("choose a socket path without commas and brackets"))]
    PathSyntax {
        /// The monitor.
        monitor: &'static str,
        /// The socket.
        path: String,
    },
}

impl Monitor {
    /// What plugs one VM into `vifs`.
    ///
    /// # Errors
    /// [`VmArgsError`] if the monitor has no way to say it.
    pub fn args(self, vifs: &[VifConfig], options: &VmOptions) -> Result<VmArgs, VmArgsError> {
        match self {
            Self::Qemu => Ok(qemu(vifs, options)),
            Self::Libvirt => Ok(libvirt(vifs)),
            Self::CloudHypervisor => cloud_hypervisor(vifs, options),
            Self::Crosvm => crosvm(vifs),
        }
    }

    /// Whether [`VmArgs::lines`] are arguments for a shell.
    pub fn is_command_line(self) -> bool {
        self != Self::Libvirt
    }
}

/// With `reconnect` QEMU may be started before weir (it waits before it boots the guest), and the
/// guest goes on when weir is started again.
fn qemu(vifs: &[VifConfig], options: &VmOptions) -> VmArgs {
    let memory = options.memory;
    let mut lines = vec![
        format!("-m {memory}"),
        // weir maps the guest's memory: it must be a shared file.
        format!("-object memory-backend-memfd,id=weir-mem,size={memory},share=on"),
        "-machine memory-backend=weir-mem".into(),
    ];
    for vif in vifs {
        let name = &vif.name;
        let link = match vif.mode {
            SocketRole::Client => "server=on,wait=off".into(),
            SocketRole::Server => match options.qemu_version {
                Some(version) if version >= QEMU_RECONNECT_MS => {
                    format!("reconnect-ms={}", RECONNECT_SECS * 1000)
                }
                _ => format!("reconnect={RECONNECT_SECS}"),
            },
        };
        let path = shell_word(&vif.socket.as_str().replace(',', ",,"));
        let queues = vif.queues;
        let pairs = u32::from(queues.get());
        let mq = if pairs > 1 { ",mq=on" } else { "" };
        // One vector for each virtqueue, one for the control queue, one for configuration changes.
        let vectors = options.vectors.unwrap_or(2 * pairs + 2);
        let mtu = vif.mtu.map(|mtu| format!(",host_mtu={mtu}")).unwrap_or_default();
        lines.push(format!("-chardev socket,id=weir-{name},path={path},{link}"));
        lines
            .push(format!("-netdev vhost-user,id=weir-{name},chardev=weir-{name},queues={queues}"));
        lines.push(format!(
            "-device virtio-net-pci,netdev=weir-{name},mac={}{mq},vectors={vectors}\
             ,rx_queue_size={QUEUE_SIZE},tx_queue_size={QUEUE_SIZE}{mtu}",
            vif.mac_or_derived(),
        ));
    }
    VmArgs { lines, notes: Vec::new() }
}

fn libvirt(vifs: &[VifConfig]) -> VmArgs {
    let mut xml = vec![
        "<!-- in <domain>: weir maps the guest's memory, so it must be shared -->".into(),
        "<memoryBacking>".into(),
        "  <source type='memfd'/>".into(),
        "  <access mode='shared'/>".into(),
        "</memoryBacking>".into(),
        "<!-- in <devices> -->".into(),
    ];
    for vif in vifs {
        let path = xml_text(vif.socket.as_str());
        xml.push("<interface type='vhostuser'>".into());
        xml.push(format!("  <mac address='{}'/>", vif.mac_or_derived()));
        // libvirt names the VM's side of the socket, weir its own.
        match vif.mode {
            SocketRole::Server => {
                xml.push(format!("  <source type='unix' path='{path}' mode='client'>"));
                xml.push(format!("    <reconnect enabled='yes' timeout='{RECONNECT_SECS}'/>"));
                xml.push("  </source>".into());
            }
            SocketRole::Client => {
                xml.push(format!("  <source type='unix' path='{path}' mode='server'/>"));
            }
        }
        xml.push("  <model type='virtio'/>".into());
        xml.push(format!(
            "  <driver queues='{}' rx_queue_size='{QUEUE_SIZE}' tx_queue_size='{QUEUE_SIZE}'/>",
            vif.queues
        ));
        if let Some(mtu) = vif.mtu {
            xml.push(format!("  <mtu size='{mtu}'/>"));
        }
        xml.push("</interface>".into());
    }
    VmArgs { lines: xml, notes: Vec::new() }
}

fn cloud_hypervisor(vifs: &[VifConfig], options: &VmOptions) -> Result<VmArgs, VmArgsError> {
    let mut args = VmArgs::default();
    args.lines.push(format!("--memory size={},shared=on", options.memory));
    for vif in vifs {
        let path = plain_path("cloud-hypervisor", vif)?;
        // Its num_queues counts RX and TX queues, and its vhost_mode is its own side of the socket.
        let queues = 2 * u32::from(vif.queues.get());
        let mode = match vif.mode {
            SocketRole::Server => "client",
            SocketRole::Client => "server",
        };
        let mtu = vif.mtu.map(|mtu| format!(",mtu={mtu}")).unwrap_or_default();
        args.lines.push(format!(
            "--net vhost_user=on,socket={path},vhost_mode={mode},num_queues={queues}\
             ,queue_size={QUEUE_SIZE},mac={}{mtu}",
            vif.mac_or_derived(),
        ));
        if vif.mode == SocketRole::Server {
            args.notes.push(format!("start weir before the VM, so that {} is there", vif.socket));
        }
    }
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
        args.notes.push(format!("start weir before the VM, so that {} is there", vif.socket));
    }
    Ok(args)
}

/// The socket's path, for option syntaxes that cannot escape their own separators.
fn plain_path(monitor: &'static str, vif: &VifConfig) -> Result<String, VmArgsError> {
    let path = vif.socket.as_str();
    if path.contains([',', '[', ']']) {
        return Err(VmArgsError::PathSyntax { monitor, path: path.into() });
    }
    Ok(shell_word(path))
}

/// `text` as a part of one word of a shell's command line. [`crate::config::SocketPath`] has no quotes.
fn shell_word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:,@%=".contains(c);
    if text.chars().all(plain) { text.into() } else { format!("'{text}'") }
}

fn xml_text(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// An amount of memory in whole MiB: `512M`, `1G`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemorySize {
    mib: u64,
}

/// Text that is no [`MemorySize`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("write a whole number and a unit, M or G, for example 512M or 2G")]
pub struct NotAMemorySize;

impl FromStr for MemorySize {
    type Err = NotAMemorySize;
    fn from_str(text: &str) -> Result<Self, NotAMemorySize> {
        let (number, unit_mib) = match (text.strip_suffix('M'), text.strip_suffix('G')) {
            (Some(number), _) => (number, 1),
            (_, Some(number)) => (number, 1024),
            (None, None) => return Err(NotAMemorySize),
        };
        let number = number.parse::<u64>().map_err(|_| NotAMemorySize)?;
        match number.checked_mul(unit_mib) {
            Some(mib) if mib > 0 => Ok(Self { mib }),
            _ => Err(NotAMemorySize),
        }
    }
}

impl fmt::Display for MemorySize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.mib.is_multiple_of(1024) {
            write!(f, "{}G", self.mib / 1024)
        } else {
            write!(f, "{}M", self.mib)
        }
    }
}

/// A QEMU release: `10.0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct QemuVersion {
    major: u32,
    minor: u32,
}

/// Text that is no [`QemuVersion`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("write MAJOR.MINOR, for example 10.0")]
pub struct NotAVersion;

impl FromStr for QemuVersion {
    type Err = NotAVersion;
    fn from_str(text: &str) -> Result<Self, NotAVersion> {
        let mut parts = text.splitn(3, '.').map(|part| part.parse::<u32>().ok());
        match (parts.next().flatten(), parts.next().flatten()) {
            (Some(major), Some(minor)) => Ok(Self { major, minor }),
            _ => Err(NotAVersion),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vif(name: &str) -> VifConfig {
        let socket = format!("/run/weir/{name}.sock").parse().unwrap();
        VifConfig::new(name.parse().unwrap(), socket)
    }

    fn options() -> VmOptions {
        VmOptions { memory: "1G".parse().unwrap(), vectors: None, qemu_version: None }
    }

    fn lines(monitor: Monitor, vifs: &[VifConfig]) -> String {
        monitor.args(vifs, &options()).unwrap().lines.join("\n")
    }

    fn two_queues_with_everything() -> VifConfig {
        let mut vif = vif("web0");
        vif.queues = 2.try_into().unwrap();
        vif.mac = Some("52:54:00:12:34:56".parse().unwrap());
        vif.mtu = Some(9000.try_into().unwrap());
        vif
    }

    #[test]
    fn qemu_waits_for_a_listening_weir() {
        insta::assert_snapshot!(lines(Monitor::Qemu, &[vif("web0")]), @r#"
        -m 1G
        -object memory-backend-memfd,id=weir-mem,size=1G,share=on
        -machine memory-backend=weir-mem
        -chardev socket,id=weir-web0,path=/run/weir/web0.sock,reconnect=1
        -netdev vhost-user,id=weir-web0,chardev=weir-web0,queues=1
        -device virtio-net-pci,netdev=weir-web0,mac=52:54:00:c3:f1:73,vectors=4,rx_queue_size=1024,tx_queue_size=1024
        "#);
    }

    #[test]
    fn qemu_with_queues_mac_and_mtu() {
        insta::assert_snapshot!(lines(Monitor::Qemu, &[two_queues_with_everything()]), @r#"
        -m 1G
        -object memory-backend-memfd,id=weir-mem,size=1G,share=on
        -machine memory-backend=weir-mem
        -chardev socket,id=weir-web0,path=/run/weir/web0.sock,reconnect=1
        -netdev vhost-user,id=weir-web0,chardev=weir-web0,queues=2
        -device virtio-net-pci,netdev=weir-web0,mac=52:54:00:12:34:56,mq=on,vectors=6,rx_queue_size=1024,tx_queue_size=1024,host_mtu=9000
        "#);
    }

    #[test]
    fn qemu_listens_for_a_connecting_weir() {
        let mut vif = vif("web0");
        vif.mode = SocketRole::Client;
        let text = lines(Monitor::Qemu, &[vif]);
        assert!(text.contains("path=/run/weir/web0.sock,server=on,wait=off\n"), "{text}");
        assert!(!text.contains("reconnect"), "{text}");
    }

    #[test]
    fn qemu_gets_one_memory_for_many_interfaces() {
        let text = lines(Monitor::Qemu, &[vif("web0"), vif("db0")]);
        assert_eq!(text.matches("memory-backend-memfd").count(), 1, "{text}");
        assert_eq!(text.matches("-device virtio-net-pci").count(), 2, "{text}");
    }

    #[test]
    fn qemu_reconnect_option_follows_its_version() {
        let with = |version: &str| {
            let options = VmOptions { qemu_version: Some(version.parse().unwrap()), ..options() };
            Monitor::Qemu.args(&[vif("a")], &options).unwrap().lines.join("\n")
        };
        assert!(with("7.2").contains(",reconnect=1\n"));
        assert!(with("9.1.3").contains(",reconnect=1\n"));
        assert!(with("9.2").contains(",reconnect-ms=1000\n"));
        assert!(with("10.0").contains(",reconnect-ms=1000\n"));
    }

    #[test]
    fn paths_survive_shell_and_option_syntax() {
        let mut vif = vif("web0");
        vif.socket = "/run/my vms/a,b.sock".parse().unwrap();
        let text = lines(Monitor::Qemu, std::slice::from_ref(&vif));
        assert!(text.contains("path='/run/my vms/a,,b.sock',"), "{text}");
        let error = Monitor::CloudHypervisor.args(&[vif], &options()).unwrap_err();
        assert!(matches!(error, VmArgsError::PathSyntax { .. }));
    }

    #[test]
    fn libvirt_xml() {
        insta::assert_snapshot!(lines(Monitor::Libvirt, &[two_queues_with_everything()]), @r#"
        <!-- in <domain>: weir maps the guest's memory, so it must be shared -->
        <memoryBacking>
          <source type='memfd'/>
          <access mode='shared'/>
        </memoryBacking>
        <!-- in <devices> -->
        <interface type='vhostuser'>
          <mac address='52:54:00:12:34:56'/>
          <source type='unix' path='/run/weir/web0.sock' mode='client'>
            <reconnect enabled='yes' timeout='1'/>
          </source>
          <model type='virtio'/>
          <driver queues='2' rx_queue_size='1024' tx_queue_size='1024'/>
          <mtu size='9000'/>
        </interface>
        "#);
    }

    #[test]
    fn libvirt_names_the_vms_side_of_the_socket() {
        let mut vif = vif("web0");
        vif.mode = SocketRole::Client;
        vif.socket = "/run/a&b.sock".parse().unwrap();
        let text = lines(Monitor::Libvirt, &[vif]);
        assert!(text.contains("path='/run/a&amp;b.sock' mode='server'/>"), "{text}");
    }

    #[test]
    fn cloud_hypervisor_counts_queues_not_pairs() {
        insta::assert_snapshot!(
            lines(Monitor::CloudHypervisor, &[two_queues_with_everything()]), @r#"
        --memory size=1G,shared=on
        --net vhost_user=on,socket=/run/weir/web0.sock,vhost_mode=client,num_queues=4,queue_size=1024,mac=52:54:00:12:34:56,mtu=9000
        "#);
    }

    #[test]
    fn crosvm_connects_and_never_listens() {
        assert_eq!(lines(Monitor::Crosvm, &[vif("a")]), "--vhost-user net,socket=/run/weir/a.sock");
        let mut client = vif("a");
        client.mode = SocketRole::Client;
        assert!(matches!(
            Monitor::Crosvm.args(&[client], &options()),
            Err(VmArgsError::CannotListen { .. })
        ));
    }

    #[test]
    fn memory_is_whole_mebibytes() {
        let show = |text: &str| text.parse::<MemorySize>().map(|size| size.to_string());
        assert_eq!(show("1G").unwrap(), "1G");
        assert_eq!(show("2048M").unwrap(), "2G");
        assert_eq!(show("1536M").unwrap(), "1536M");
        for bad in ["", "G", "0M", "1", "1T", "-1G", "1.5G", "99999999999999999999G"] {
            assert!(show(bad).is_err(), "{bad}");
        }
    }
}
