//! `weir libvirt define` and `weir libvirt check`: weir's elements in a domain that libvirt knows,
//! by `virsh`. A check also tells whether libvirt's QEMU may open weir's sockets: a QEMU that may
//! not open them waits for ever, and `virsh start` waits with it.

use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::{fs, io};

use roxmltree::Node;
use rustix::net::sockopt;
use rustix::process::{Pid, Signal, kill_process};
use weir_api::{Client, ClientError};
use weir_config::{Config, Defaults, PortName, Setting, SocketMode, SocketRole, VifConfig};
use weir_doctor::qemu::{VECTORS_MIN, version_in};
use weir_doctor::{Closed, Permissions, look_at_socket};
use weir_text::plain::plain_short;

use crate::domain::{self, Domain, EMULATED, NAMESPACE, QEMU_NAMESPACE, alias_of, child, escaped};
use crate::{DefineArgs, DomainError, LibvirtError, UndefineArgs, Virsh, refuse_taken};

/// A directory that libvirt gives to the user and the group of its QEMU when it starts.
const OF_QEMU: &str = "/var/lib/libvirt/qemu";

/// The user of a domain's QEMU, and its groups.
pub(super) struct Account {
    pub(super) user: u32,
    pub(super) groups: Vec<u32>,
}

impl Account {
    /// The account of libvirt's QEMU; `None` if the domain `has_own` one, or libvirt was never started.
    pub(super) fn of_qemu(has_own: bool) -> Option<Self> {
        if has_own {
            return None;
        }
        let directory = std::fs::metadata(OF_QEMU).ok()?;
        let (user, group) = (directory.uid(), directory.gid());
        Some(Self { user, groups: weir_sandbox::groups(user, group) })
    }
}

/// The access to sockets that weir makes for interfaces without keys of their own: the process that listens for
/// commands owns them, and its file may name another group.
fn usual_access(client: &mut Client, defaults: &Defaults) -> Option<Permissions> {
    let peer = sockopt::socket_peercred(client.socket().ok()?).ok()?;
    let file = client.config_file().ok().flatten();
    let config = file.and_then(|path| Config::load(&path, defaults).ok());
    let named = config.and_then(|config| config.switch.socket_group);
    let named = named.and_then(|group| weir_sandbox::group(group.as_str()).ok());
    let mode = SocketMode::of_control(named.is_some()).bits();
    let group = named.unwrap_or(peer.gid.as_raw());
    Some(Permissions { mode, user: peer.uid.as_raw(), group })
}

/// The socket of an interface that a user may not open.
pub(super) struct Shut {
    pub(super) name: String,
    pub(super) closed: Closed,
    pub(super) user: u32,
}

/// Refuses sockets that `account` may not open. Those that are not there yet will have the access `usual`, as far as
/// their interfaces have no keys for it.
pub(super) fn refuse_closed(
    vifs: &[VifConfig],
    account: &Account,
    usual: Option<Permissions>,
) -> Result<(), Shut> {
    for vif in vifs.iter().filter(|vif| vif.mode == SocketRole::Server) {
        let user = vif.socket_user.as_ref().and_then(|it| weir_sandbox::user(it.as_str()).ok());
        let group = vif.socket_group.as_ref().and_then(|it| weir_sandbox::group(it.as_str()).ok());
        let own_mode = vif.socket_mode.or(group.map(|_| SocketMode::of_control(true)));
        let unmade = usual.map(|usual| Permissions {
            mode: own_mode.map_or(usual.mode, SocketMode::bits),
            user: user.unwrap_or(usual.user),
            group: group.unwrap_or(usual.group),
        });
        let path: &Path = vif.socket.as_path();
        let Some(socket) = look_at_socket(path, unmade) else { continue };
        if let Some(closed) = socket.closed_to(path, account.user, &account.groups) {
            return Err(Shut { name: vif.name.to_string(), closed, user: account.user });
        }
    }
    Ok(())
}

/// The path of the hook that libvirt calls.
const HOOK: &str = "/etc/libvirt/hooks/qemu.d/weir";
/// The hook that calls the package's weir.
const HOOK_OF_PACKAGE: &str = include_str!("../../../examples/libvirt/weir-libvirt-hook");
/// The daemons that call hooks.
const DAEMONS: [&str; 2] = ["libvirtd", "virtqemud"];

/// `text` as one word for a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Writes the hook, which calls this program, and has libvirt look for hooks, as it does when it starts and at SIGHUP.
/// The hook is a copy: Debian's AppArmor profile of libvirtd lets it run files of its own directory.
pub(super) fn install(defaults: &Defaults, out: &mut dyn Write) -> io::Result<()> {
    let program = std::env::current_exe()?;
    let found = fs::metadata(&program)?;
    if found.uid() != 0 || found.mode() & 0o022 != 0 {
        // libvirt runs it as root.
        let says = format!("{} can be written by others than root", program.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, says));
    }
    let program = quoted(&program.display().to_string());
    let control = quoted(&defaults.control.to_string());
    let mut parts = HOOK_OF_PACKAGE.split("/usr/bin/weir");
    let (before, between) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let after: String = parts.collect();
    let hook = format!("{before}{program}{between}{program} --control {control}{after}");
    let directory = Path::new(HOOK).parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(directory)?;
    // libvirt runs every program of the directory.
    let new = directory.with_extension("new");
    fs::write(&new, hook)?;
    fs::set_permissions(&new, fs::Permissions::from_mode(0o755))?;
    fs::rename(&new, HOOK)?;
    let tell = |process: fs::DirEntry| {
        let name = fs::read_to_string(process.path().join("comm")).ok()?;
        let is_daemon = DAEMONS.contains(&name.trim_end()) && process.metadata().ok()?.uid() == 0;
        let pid = process.file_name().to_str()?.parse().ok().filter(|_| is_daemon)?;
        kill_process(Pid::from_raw(pid)?, Signal::HUP).ok()
    };
    let told = match fs::read_dir("/proc")?.flatten().filter_map(tell).count() {
        0 => "libvirt finds it when it starts",
        _ => "libvirt calls it from now on",
    };
    writeln!(out, "{HOOK}: {told}")
}

/// Adds an interface to a domain, or replaces its settings there.
pub(super) fn define(
    args: &DefineArgs,
    defaults: &Defaults,
    out: &mut dyn Write,
) -> Result<(), LibvirtError> {
    let DefineArgs { virsh, name, settings } = args;
    let read = |setting: &String| {
        setting.parse().map_err(|error: <Setting as FromStr>::Err| {
            LibvirtError::Setting(format!("{setting}: {error}"))
        })
    };
    let read: Vec<Setting> = settings.iter().map(read).collect::<Result<_, _>>()?;
    let vif = domain::vif_of(name, &read, &defaults.control)?;
    let xml = dump(virsh)?;
    let defined = with_vif(&xml, &vif, settings)?;
    // libvirt must not keep an element that the hook refuses.
    let domain = Domain::read(&defined)?;
    let wanted = domain.vifs(&defaults.control)?;
    match Client::connect(defaults.control.as_path()) {
        Ok(mut client) => refuse_taken(&wanted, &client.vifs()?, &domain.owner)?,
        // The hook checks the addresses again when the domain starts.
        Err(ClientError::NotRunning { .. } | ClientError::NotAllowed { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    if defined != xml {
        ask(virsh, &["define", "/dev/stdin"], &defined)?;
    }
    writeln!(out, "{name}: on {}, from the domain's next start on", vif.socket)?;
    Ok(())
}

/// Takes an interface out of a domain, unless it is out already.
pub(super) fn undefine(args: &UndefineArgs, out: &mut dyn Write) -> Result<(), LibvirtError> {
    let UndefineArgs { virsh, name } = args;
    match without_vif(&dump(virsh)?, name) {
        Err(LibvirtError::Domain(DomainError::NotThere(_))) => {
            writeln!(out, "{name}: the domain has no such interface")?;
            return Ok(());
        }
        without => ask(virsh, &["define", "/dev/stdin"], &without?)?,
    };
    writeln!(out, "{name}: gone from the domain's next start on")?;
    Ok(())
}

/// Reports whether a domain would get its interfaces.
pub(super) fn check(
    virsh: &Virsh,
    defaults: &Defaults,
    out: &mut dyn Write,
) -> Result<(), LibvirtError> {
    let xml = dump(virsh)?;
    let domain = Domain::read(&xml)?;
    let vifs = domain.vifs(&defaults.control)?;
    if vifs.is_empty() {
        return Err(DomainError::NoElements.into());
    }
    let document = domain::parse(&xml)?;
    if memory_edit(&xml, document.root_element())?.is_some() {
        return Err(DomainError::Private.into());
    }
    let emulator = child(document.root_element(), "devices").and_then(|it| child(it, "emulator"));
    let version = emulator.and_then(|it| version_in(Path::new(it.text()?.trim())));
    refuse_vectors(&xml, document.root_element(), &vifs, version)?;
    refuse_deaf(document.root_element(), &vifs)?;
    let is_executable = |it: fs::Metadata| it.permissions().mode() & 0o111 != 0;
    if !fs::metadata(HOOK).is_ok_and(is_executable) {
        return Err(LibvirtError::NoHook);
    }
    let mut client = Client::connect(defaults.control.as_path())?;
    let running = client.vifs()?;
    refuse_taken(&vifs, &running, &domain.owner)?;
    if let Some(account) = Account::of_qemu(domain.has_own_account) {
        let usual = usual_access(&mut client, defaults);
        refuse_closed(&vifs, &account, usual).map_err(DomainError::from)?;
    }
    for vif in vifs {
        let own = running.iter().find(|it| it.config.name == vif.name);
        let state = own
            .map_or_else(|| "comes when the domain starts".to_owned(), |it| it.state.to_string());
        writeln!(out, "{}: {}, VLAN {}: {state}", vif.name, vif.socket, vif.vlan.of_vif())?;
    }
    Ok(())
}

fn dump(virsh: &Virsh) -> Result<String, LibvirtError> {
    // Without its passwords the domain could not be defined again.
    let domain = format!("--domain={}", virsh.domain);
    ask(virsh, &["dumpxml", "--inactive", "--security-info", &domain], "")
}

/// The output of `virsh`.
fn ask(virsh: &Virsh, args: &[&str], input: &str) -> Result<String, LibvirtError> {
    let failed = |error: io::Error| LibvirtError::Virsh(format!("cannot run virsh: {error}"));
    let mut command = Command::new("virsh");
    command.args(["--quiet", "--connect", &virsh.connect]).args(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    let written = child.stdin.take().map(|mut stdin| stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().map_err(failed)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let line = said.lines().find(|line| !line.trim().is_empty()).unwrap_or("virsh fails");
        return Err(LibvirtError::Virsh(plain_short(line)));
    }
    written.transpose()?;
    crate::text_of(output.stdout)
}

/// A place in the XML, and the text that replaces it.
type Edit = (Range<usize>, String);

/// The domain with `vif`: its element, an interface on its socket, and memory that weir can map.
fn with_vif(xml: &str, vif: &VifConfig, settings: &[String]) -> Result<String, LibvirtError> {
    let document = domain::parse(xml)?;
    let domain = document.root_element();
    let mut edits: Vec<Edit> = memory_edit(xml, domain)?.into_iter().collect();
    let is_emulated = domain.attribute("type") == Some(EMULATED);
    let there = interface_on(domain, vif.socket.as_str());
    if there.is_none() {
        let interface = domain::interface(vif, is_emulated, false).join("\n") + "\n";
        edits.push(match child(domain, "devices") {
            Some(devices) => into(xml, devices, &interface),
            None => into(xml, domain, &format!("<devices>{interface}</devices>")),
        });
    }
    if is_emulated {
        let alias = there.map_or_else(|| alias_of(&vif.name), |(_, alias)| alias);
        edits.extend(override_edit(xml, domain, &alias));
    }
    edits.push(element_edit(xml, domain, vif, settings));
    with_device(edited(xml, edits), vif, settings)
}

/// The domain with the settings of the guest's device in the interface on the socket. The rest of
/// the interface stays as it is.
fn with_device(
    mut xml: String,
    vif: &VifConfig,
    settings: &[String],
) -> Result<String, LibvirtError> {
    let [rx_ring, tx_ring] = vif.ring_sizes().map(|size| size.to_string());
    let mtu = vif.mtu.map(|mtu| mtu.to_string()).unwrap_or_default();
    let has_iommu = {
        let document = domain::parse(&xml)?;
        child(document.root_element(), "devices").is_some_and(|it| child(it, "iommu").is_some())
    };
    let behind = if vif.access_platform { "on" } else { "off" };
    let behind = ["iommu", "ats"].map(|it| ("access_platform", "driver", it, behind.to_owned()));
    for (key, element, attribute, value) in [
        ("mac", "mac", "address", vif.mac_or_derived().to_string()),
        ("queues", "driver", "queues", vif.queues.to_string()),
        ("rx_ring", "driver", "rx_queue_size", rx_ring),
        ("tx_ring", "driver", "tx_queue_size", tx_ring),
        ("mtu", "mtu", "size", mtu),
    ]
    .into_iter()
    .chain(behind.into_iter().filter(|_| has_iommu))
    {
        let is_said = |it: &String| it.split_once('=').is_some_and(|(said, _)| said == key);
        let document = domain::parse(&xml)?;
        let interface = interface_on(document.root_element(), vif.socket.as_str());
        let Some((interface, _)) = interface.filter(|_| settings.iter().any(is_said)) else {
            continue;
        };
        let node = child(interface, element);
        let there = node.and_then(|node| node.attribute_node(attribute));
        let text = format!(" {attribute}='{value}'");
        let edit = match (node, there) {
            (_, Some(there)) => (there.range_value(), value),
            (Some(node), None) => {
                let after_name = node.range().start + 1 + element.len();
                (after_name..after_name, text)
            }
            (None, None) => into(&xml, interface, &format!("<{element}{text}/>")),
        };
        xml = edited(&xml, vec![edit]);
    }
    Ok(xml)
}

/// The domain without the element of the interface `name` and without its `<interface>`.
fn without_vif(xml: &str, name: &PortName) -> Result<String, LibvirtError> {
    let document = domain::parse(xml)?;
    let read = Domain::read(xml)?;
    let (index, socket) = read.element_of(name)?;
    let own = own_elements(document.root_element());
    let elements = own.into_iter().flat_map(|own| own.children()).filter(Node::is_element);
    let elements: Vec<_> = elements.collect();
    // An empty list of weir's elements would make the hook examine the domain for nothing.
    let gone = if elements.len() == 1 { own } else { elements.get(index).copied() };
    let interface = socket.and_then(|socket| interface_on(document.root_element(), socket));
    let all = overrides(document.root_element());
    let devices = all.into_iter().flat_map(|all| all.children()).filter(Node::is_element);
    let is_gone = |device: &Node<'_, '_>| {
        interface.as_ref().is_some_and(|(_, alias)| device.attribute("alias") == Some(alias))
    };
    let (told, others): (Vec<_>, Vec<_>) = devices.partition(is_gone);
    let told = if others.is_empty() { Vec::from_iter(all) } else { told };
    let gone = gone.into_iter().chain(interface.map(|(node, _)| node)).chain(told);
    Ok(edited(xml, gone.map(|node| (node.range(), String::new())).collect()))
}

fn edited(xml: &str, mut edits: Vec<Edit>) -> String {
    // The last edit comes first, so that the places of the others stay valid.
    edits.sort_by_key(|(range, _)| std::cmp::Reverse(range.start));
    let mut xml = xml.to_owned();
    for (range, text) in edits {
        xml.replace_range(range, &text);
    }
    xml
}

/// weir's list of elements in a domain.
fn own_elements<'a, 'i>(domain: Node<'a, 'i>) -> Option<Node<'a, 'i>> {
    child(domain, "metadata")?.children().find(|it| it.has_tag_name((NAMESPACE, "vifs")))
}

/// The interface on a socket, and its name in libvirt: the name that a user has chosen, or else
/// `net` and the number of earlier interfaces without a chosen name.
fn interface_on<'a, 'i>(domain: Node<'a, 'i>, socket: &str) -> Option<(Node<'a, 'i>, String)> {
    let mut unnamed = 0;
    let interfaces = child(domain, "devices")?.children();
    interfaces.filter(|it| it.has_tag_name("interface")).find_map(|node| {
        let chosen = child(node, "alias").and_then(|alias| alias.attribute("name"));
        let alias = chosen.map_or_else(|| format!("net{unnamed}"), str::to_owned);
        // libvirt counts host devices that a guest gets directly (`hostdev`) separately.
        unnamed += usize::from(chosen.is_none() && node.attribute("type") != Some("hostdev"));
        let read = domain::Interface::read(node)?;
        (read.key("socket") == Some(socket)).then_some((node, alias))
    })
}

/// The element with device settings that QEMU gets in place of libvirt's.
fn overrides<'a, 'i>(domain: Node<'a, 'i>) -> Option<Node<'a, 'i>> {
    domain.children().find(|it| it.has_tag_name((QEMU_NAMESPACE, "override")))
}

/// Refuses an interface with which a QEMU of this version ends, because it emulates the domain's processors.
fn refuse_vectors(
    xml: &str,
    domain: Node<'_, '_>,
    vifs: &[VifConfig],
    version: Option<(u32, u32)>,
) -> Result<(), DomainError> {
    let Some((major, minor)) = version.filter(|it| *it < VECTORS_MIN) else { return Ok(()) };
    // QEMU's own `-set` and `-global` can change the same settings of a device.
    if domain.attribute("type") != Some(EMULATED) || xml.contains(".vectors=0") {
        return Ok(());
    }
    let has_vectors = |vif: &&VifConfig| {
        let interface = interface_on(domain, vif.socket.as_str());
        interface.is_some_and(|(_, alias)| override_edit(xml, domain, &alias).is_some())
    };
    vifs.iter().find(has_vectors).map_or(Ok(()), |vif| {
        Err(DomainError::Vectors {
            name: vif.name.to_string(),
            version: format!("{major}.{minor}"),
        })
    })
}

/// Refuses a device behind a virtual IOMMU that does not hear of the end of its translations.
fn refuse_deaf(domain: Node<'_, '_>, vifs: &[VifConfig]) -> Result<(), DomainError> {
    let is_on = |node: Node<'_, '_>, attribute| {
        child(node, "driver").is_some_and(|it| it.attribute(attribute) == Some("on"))
    };
    let Some(iommu) = child(domain, "devices").and_then(|it| child(it, "iommu")) else {
        return Ok(());
    };
    for vif in vifs {
        let device = interface_on(domain, vif.socket.as_str()).map(|(device, _)| device);
        let Some(device) = device.filter(|device| is_on(*device, "iommu")) else { continue };
        let needs = [(iommu, "iotlb", "iotlb='on'"), (device, "ats", "ats='on'")];
        if let Some((.., missing)) = needs.into_iter().find(|(node, it, _)| !is_on(*node, it)) {
            return Err(DomainError::Translations { name: vif.name.to_string(), missing });
        }
    }
    Ok(())
}

/// QEMU before 10 that emulates its processors ends when a guest of vhost-user uses interrupt vectors. A number that
/// somebody has chosen stays.
fn override_edit(xml: &str, domain: Node<'_, '_>, alias: &str) -> Option<Edit> {
    let is_vectors = |it: Node<'_, '_>| it.attribute("name") == Some("vectors");
    let is_told = |device: Node<'_, '_>| {
        device.attribute("alias") == Some(alias) && device.descendants().any(is_vectors)
    };
    match overrides(domain) {
        Some(all) if all.children().any(is_told) => None,
        Some(all) => Some(into(xml, all, &domain::override_of(alias, 0))),
        None => Some(into(xml, domain, &(domain::overrides([alias.to_owned()], 0) + "\n"))),
    }
}

fn memory_edit(xml: &str, domain: Node<'_, '_>) -> Result<Option<Edit>, DomainError> {
    let Some(backing) = child(domain, "memoryBacking") else {
        return Ok(Some(into(xml, domain, &(domain::memory().join("\n") + "\n"))));
    };
    let mut missing = String::new();
    match child(backing, "access").map(|access| access.attribute("mode")) {
        None => missing += "<access mode='shared'/>",
        Some(Some("shared")) => {}
        Some(_) => return Err(DomainError::Private),
    }
    // Huge pages are files, which can be shared.
    if ["source", "hugepages"].iter().all(|name| child(backing, name).is_none()) {
        missing += "<source type='memfd'/>";
    }
    Ok(if missing.is_empty() { None } else { Some(into(xml, backing, &missing)) })
}

fn element_edit(xml: &str, domain: Node<'_, '_>, vif: &VifConfig, settings: &[String]) -> Edit {
    let (name, socket) = (vif.name.as_str(), vif.socket.as_str());
    let mut element =
        format!("<vif xmlns='{NAMESPACE}' name='{name}' socket='{}'", escaped(socket));
    let keys = settings.iter().filter_map(|setting| setting.split_once('='));
    for (key, value) in keys.filter(|(key, _)| *key != "socket") {
        element += &format!(" {key}='{}'", escaped(value));
    }
    element += "/>";
    let metadata = child(domain, "metadata");
    let Some(own) = own_elements(domain) else {
        let vifs = format!("<weir:vifs xmlns:weir='{NAMESPACE}'>{element}</weir:vifs>\n");
        return match metadata {
            Some(metadata) => into(xml, metadata, &vifs),
            None => into(xml, domain, &format!("<metadata>\n{vifs}</metadata>\n")),
        };
    };
    let is_same = |it: &Node<'_, '_>| {
        it.attribute("name") == Some(name) || it.attribute("socket") == Some(socket)
    };
    match own.children().find(is_same) {
        Some(before) => (before.range(), element),
        None => into(xml, own, &element),
    }
}

/// Appends `content` to an element's children.
fn into(xml: &str, node: Node<'_, '_>, content: &str) -> Edit {
    let range = node.range();
    let text = &xml[range.clone()];
    match text.rfind("</").filter(|_| !text.ends_with("/>")) {
        Some(at) => (range.start + at..range.start + at, content.to_owned()),
        None => {
            let is_name = |c: char| !c.is_whitespace() && c != '/' && c != '>';
            let name: String = text.chars().skip(1).take_while(|c| is_name(*c)).collect();
            (range.end - 2..range.end, format!(">{content}</{name}>"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const XML: &str = "<domain type='kvm'>\n  <name>d</name>\n  \
        <uuid>6e1c0a9e-0a6e-4d8e-9c55-2f1d0c7a3b11</uuid>\n  <devices>\n    <interface type='network'/>\n  \
        </devices>\n</domain>\n";

    fn defined(xml: &str, name: &str, settings: &[&str]) -> Result<String, LibvirtError> {
        let settings: Vec<String> = settings.iter().map(|it| (*it).into()).collect();
        let read: Vec<Setting> = settings.iter().map(|it| it.parse().unwrap()).collect();
        let control = "/run/weir/control.sock".parse().unwrap();
        let vif = VifConfig::from_settings(&name.parse().unwrap(), &read, &control).unwrap();
        with_vif(xml, &vif, &settings)
    }

    #[test]
    fn a_domain_gets_all_that_it_needs_and_the_second_time_nothing_more() {
        let settings = ["vlan=10", "agent=/run/weir/a&b.sock", "queues=2"];
        let once = defined(XML, "web0", &settings).unwrap();
        for has in [
            "<access mode='shared'/>",
            "<source type='memfd'/>",
            "path='/run/weir/web0.sock' mode='client'",
            "<driver queues='2'",
            "<interface type='network'/>",
            "agent='/run/weir/a&amp;b.sock'",
        ] {
            assert!(once.contains(has), "{has}: {once}");
        }
        assert_eq!(defined(&once, "web0", &settings).unwrap(), once);
        let other = defined(&once, "web0", &["vlan=11"]).unwrap();
        assert_eq!(other.matches("<vif ").count(), 1);
        assert!(other.contains("vlan='11'") && !other.contains("agent="), "{other}");
        let two = defined(&other, "db0", &[]).unwrap();
        let control = "/run/weir/control.sock".parse().unwrap();
        let vifs = Domain::read(&two).unwrap().vifs(&control).unwrap();
        let names: Vec<_> = vifs.iter().map(|vif| vif.name.as_str()).collect();
        assert_eq!(names, ["web0", "db0"]);
        assert_eq!(two.matches("<memoryBacking>").count(), 1);
    }

    #[test]
    fn a_device_that_is_there_follows_the_settings_and_keeps_the_rest() {
        let once = defined(XML, "web0", &["vlan=10"]).unwrap();
        // libvirt has given the device an address.
        let once =
            once.replace("<model type='virtio'/>", "<model type='virtio'/><address slot='0x03'/>");
        let settings = ["mac=52:54:00:12:34:56", "queues=2", "tx_ring=256", "mtu=1400"];
        let other = defined(&once, "web0", &settings).unwrap();
        for has in [
            "<mac address='52:54:00:12:34:56'/>",
            "<driver queues='2' rx_queue_size='1024' tx_queue_size='256'/>",
            "<mtu size='1400'/></interface>",
            "<address slot='0x03'/>",
        ] {
            assert!(other.contains(has), "{has}: {other}");
        }
        assert_eq!(defined(&other, "web0", &settings).unwrap(), other);
        // Keys that the settings leave out are as in the interface's element.
        let same = defined(&other, "web0", &["vlan=10"]).unwrap();
        assert!(
            same.contains("<driver queues='2'") && same.contains("<mtu size='1400'/>"),
            "{same}"
        );
        let bare = once
            .replace("<driver queues='1' rx_queue_size='1024' tx_queue_size='1024'/>", "<driver/>");
        assert_ne!(bare, once);
        let filled = defined(&bare, "web0", &["queues=2"]).unwrap();
        assert!(filled.contains("<driver queues='2'/>"), "{filled}");
        // A domain with an IOMMU has its device behind it, and weir hears of the end of a translation.
        let iommu = |xml: &str| xml.replace("</devices>", "<iommu model='intel'/></devices>");
        for xml in [XML, &once] {
            let behind = defined(&iommu(xml), "web0", &["access_platform=true"]).unwrap();
            assert!(behind.contains("<driver ats='on' iommu='on' queues='1'"), "{behind}");
            let before = defined(&behind, "web0", &["access_platform=false"]).unwrap();
            assert!(before.contains("<driver ats='off' iommu='off' queues='1'"), "{before}");
            let silent = defined(xml, "web0", &["access_platform=true"]).unwrap();
            assert!(!silent.contains("iommu") && !silent.contains("ats="), "{silent}");
        }
    }

    #[test]
    fn an_emulated_domain_gets_a_device_without_interrupt_vectors() {
        let emulated = XML.replace("type='kvm'", "type='qemu'");
        let one = defined(&emulated, "web.0", &[]).unwrap();
        assert!(one.contains("<alias name='ua-weir-web_0'/>"), "{one}");
        assert!(one.contains("<qemu:device alias='ua-weir-web_0'><qemu:frontend>\n"), "{one}");
        assert_eq!(defined(&one, "web.0", &[]).unwrap(), one);
        let two = defined(&one, "db0", &[]).unwrap();
        assert_eq!(two.matches("<qemu:override ").count(), 1);
        assert_eq!(two.matches("name='vectors' type='unsigned' value='0'").count(), 2);
        let left = without_vif(&two, &"web.0".parse().unwrap()).unwrap();
        assert!(!left.contains("web_0") && left.contains("alias='ua-weir-db0'"), "{left}");
        let none = without_vif(&left, &"db0".parse().unwrap()).unwrap();
        assert!(!none.contains("qemu:"), "{none}");
        assert!(!defined(XML, "web0", &[]).unwrap().contains("qemu:"));
    }

    /// The finding of `check` about the domain's only interface, on `/run/weir/web0.sock`.
    fn is_refused(xml: &str, version: Option<(u32, u32)>) -> bool {
        let document = domain::parse(xml).unwrap();
        let control = "/run/weir/control.sock".parse().unwrap();
        let vifs = [VifConfig::from_settings(&"web0".parse().unwrap(), &[], &control).unwrap()];
        match refuse_vectors(xml, document.root_element(), &vifs, version) {
            Ok(()) => false,
            Err(DomainError::Vectors { name, version }) => name == "web0" && version == "7.2",
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn an_interface_that_was_there_without_them_is_found_and_gets_its_overrides() {
        let emulated = XML.replace("type='kvm'", "type='qemu'");
        let own = "<interface type='vhostuser'><source type='unix' path='/run/weir/web0.sock' mode='client'/>\
                   </interface></devices>";
        let with = |own: &str| emulated.replace("</devices>", own);
        let hostdev = own.replace("<interface", "<interface type='hostdev'/><interface");
        let named = own.replace("</interface>", "<alias name='ua-x'/></interface>");
        let beside = own.replace(
            "<interface",
            "<interface type='user'><alias name='ua-y'/></interface><interface",
        );
        // libvirt calls the interface before it net0.
        for (own, alias) in [(own, "net1"), (&hostdev, "net1"), (&named, "ua-x"), (&beside, "net1")]
        {
            let bare = with(own);
            assert!(is_refused(&bare, Some((7, 2))), "{bare}");
            assert!(!is_refused(&bare, Some((10, 0))) && !is_refused(&bare, None), "{bare}");
            assert!(!is_refused(&bare.replace("type='qemu'", "type='kvm'"), Some((7, 2))));
            let mended = defined(&bare, "web0", &[]).unwrap();
            assert!(mended.contains(&format!("<qemu:device alias='{alias}'>")), "{mended}");
            assert!(!is_refused(&mended, Some((7, 2))), "{mended}");
            assert_eq!(defined(&mended, "web0", &[]).unwrap(), mended);
            let none = without_vif(&mended, &"web0".parse().unwrap()).unwrap();
            assert!(!none.contains("qemu:") && !none.contains("web0"), "{none}");
        }
        let bare = with(own);
        let set = |text: &str| {
            bare.replace("</domain>", &format!("{text}</domain>"))
                .replace("<domain ", &format!("<domain xmlns:qemu='{QEMU_NAMESPACE}' "))
        };
        let device = |alias: &str| {
            format!(
                "<qemu:device alias='{alias}'><qemu:frontend><qemu:property name='tx' value='x'/></qemu:frontend>\
                     </qemu:device>"
            )
        };
        for others in [String::new(), device("net0"), device("net1")] {
            let there = set(&format!("<qemu:override>{others}</qemu:override>"));
            assert!(is_refused(&there, Some((7, 2))), "{there}");
            let mended = defined(&there, "web0", &[]).unwrap();
            assert!(mended.contains(&others) && !is_refused(&mended, Some((7, 2))), "{mended}");
            assert_eq!(mended.matches("<qemu:override").count(), 1);
            let none = without_vif(&mended, &"web0".parse().unwrap()).unwrap();
            assert_eq!(none.contains("qemu:override"), others.contains("net0"), "{none}");
            assert!(!none.contains("net1"), "{none}");
        }
        // The arguments are the user's own.
        let arguments = "<qemu:commandline><qemu:arg value='-set'/><qemu:arg value='device.net1.vectors=0'/>\
                         </qemu:commandline>";
        assert!(!is_refused(&set(arguments), Some((7, 2))));
    }

    #[test]
    fn a_device_that_would_not_hear_of_the_end_of_translations_is_found() {
        let refused = |iommu: &str, driver: &str| {
            let own = format!(
                "{iommu}<interface type='vhostuser'><source type='unix' path='/run/weir/web0.sock' mode='client'/>\
                 {driver}</interface></devices>"
            );
            let xml = XML.replace("</devices>", &own);
            let control = "/run/weir/control.sock".parse().unwrap();
            let vifs = [VifConfig::from_settings(&"web0".parse().unwrap(), &[], &control).unwrap()];
            let document = domain::parse(&xml).unwrap();
            match refuse_deaf(document.root_element(), &vifs) {
                Ok(()) => "",
                Err(DomainError::Translations { name, missing }) if name == "web0" => missing,
                Err(error) => panic!("{error}"),
            }
        };
        let all = "<driver iommu='on' ats='on'/>";
        let iommu = "<iommu model='intel'><driver intremap='on' iotlb='on'/></iommu>";
        assert_eq!(refused(iommu, all), "");
        assert_eq!(refused(iommu, "<driver iommu='on'/>"), "ats='on'");
        assert_eq!(refused("<iommu model='intel'/>", all), "iotlb='on'");
        // Without an IOMMU, or not behind it, addresses are as they are.
        assert_eq!(refused("", "<driver iommu='on'/>"), "");
        assert_eq!(refused("<iommu model='intel'/>", ""), "");
    }

    #[test]
    fn a_domain_loses_what_it_got_and_keeps_the_rest() {
        let name = |text: &str| text.parse::<PortName>().unwrap();
        let one = defined(XML, "web0", &["vlan=10"]).unwrap();
        let two = defined(&one, "db0", &["agent=/run/weir/a.sock"]).unwrap();
        let left = without_vif(&two, &name("web0")).unwrap();
        assert!(!left.contains("web0") && left.contains("path='/run/weir/db0.sock'"), "{left}");
        assert_eq!(left.matches("<vif ").count(), 1);
        let none = without_vif(&left, &name("db0")).unwrap();
        assert!(!none.contains(NAMESPACE) && !none.contains("vhostuser"), "{none}");
        assert!(none.contains("<interface type='network'/>"), "{none}");
        let again = without_vif(&none, &name("db0"));
        assert!(matches!(again, Err(LibvirtError::Domain(DomainError::NotThere(_)))), "{again:?}");
    }

    #[test]
    fn elements_that_are_there_are_filled_and_what_they_say_stays() {
        let with = |text: &str| XML.replace("<devices>", &format!("{text}<devices>"));
        for (there, has) in [
            ("<memoryBacking/>", "<memoryBacking><"),
            ("<memoryBacking><hugepages/></memoryBacking>", "<hugepages/><access"),
            ("<metadata/>", "<metadata><weir:vifs"),
            ("<metadata><o xmlns='urn:o'>x</o></metadata>", "x</o><weir:vifs"),
            (
                "<metadata><w:vifs xmlns:w='urn:weir:libvirt'/></metadata>",
                "<w:vifs xmlns:w='urn:weir:libvirt'><vif ",
            ),
        ] {
            let xml = defined(&with(there), "web0", &[]).unwrap();
            assert!(xml.contains(has), "{there}: {xml}");
            assert!(Domain::read(&xml).is_ok(), "{xml}");
        }
        let private = with("<memoryBacking><access mode='private'/></memoryBacking>");
        assert!(matches!(
            defined(&private, "web0", &[]),
            Err(LibvirtError::Domain(DomainError::Private))
        ));
    }
}
