//! Domains as libvirt 9, 11 and 12 give them to their hooks.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;

use weir_config::{VifConfig, VlanMode};
use weir_doctor::Permissions;

use super::domain::{self, Domain};
use super::*;

const UUID: &str = "6e1c0a9e-0a6e-4d8e-9c55-2f1d0c7a3b11";

/// A domain as libvirt 9.0 prints it: a prefix, and two interfaces that are weir's beside one that
/// is not.
const OF_9: &str = r#"<domain type="kvm" id="1">
  <name>web0</name>
  <uuid>6e1c0a9e-0a6e-4d8e-9c55-2f1d0c7a3b11</uuid>
  <metadata>
    <libosinfo:libosinfo xmlns:libosinfo="http://libosinfo.org/xmlns/libvirt/domain/1.0">
      <libosinfo:os id="http://debian.org/debian/12"/>
    </libosinfo:libosinfo>
    <weir:vifs xmlns:weir="urn:weir:libvirt">
      <weir:vif vlan="10" rate="1Gbit" latency_budget="1ms" isolated="true">
        <weir:filter>tx drop tcp dst port 25 and len &gt; 100</weir:filter>
        <weir:filter>rx drop ip6</weir:filter>
      </weir:vif>
      <weir:vif name="backup" network="tenant-a" socket_mode="0666"/>
    </weir:vifs>
  </metadata>
  <memory unit="KiB">524288</memory>
  <currentMemory unit="KiB">524288</currentMemory>
  <memoryBacking>
    <source type="memfd"/>
    <access mode="shared"/>
  </memoryBacking>
  <vcpu placement="static">1</vcpu>
  <os>
    <type arch="x86_64" machine="pc-q35-7.2">hvm</type>
    <boot dev="hd"/>
  </os>
  <on_poweroff>destroy</on_poweroff>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <interface type="network">
      <mac address="52:54:00:aa:bb:cc"/>
      <source network="default"/>
      <model type="virtio"/>
    </interface>
    <interface type="vhostuser">
      <mac address="52:54:00:c3:f1:73"/>
      <source type="unix" path="/run/weir/web0.sock" mode="client">
        <reconnect enabled="yes" timeout="1"/>
      </source>
      <model type="virtio"/>
      <driver queues="2" rx_queue_size="1024" tx_queue_size="1024"/>
      <mtu size="1400"/>
      <address type="pci" domain="0x0000" bus="0x01" slot="0x00" function="0x0"/>
    </interface>
    <interface type="vhostuser">
      <mac address="52:54:00:00:00:b0"/>
      <source type="unix" path="/run/weir/b.sock" mode="server"/>
      <model type="virtio"/>
    </interface>
    <serial type="pty">
      <target type="isa-serial" port="0"/>
    </serial>
  </devices>
</domain>
"#;
/// A domain as libvirt 11 prints it: aliases of the user's, a default namespace.
const OF_11: &str = r#"<domain type="kvm" id="7" xmlns:qemu="http://libvirt.org/schemas/domain/qemu/1.0">
  <name>three</name>
  <uuid>6E1C0A9E-0A6E-4D8E-9C55-2F1D0C7A3B11</uuid>
  <genid>43dc0cf8-809b-4adb-9bea-a9abb5f3d90e</genid>
  <metadata>
    <vifs xmlns="urn:weir:libvirt">
      <vif vlan="3"/>
      <vif mac="52:54:00:00:00:0B" vlan="2"/>
      <vif alias="ua-a" vlan="1"/>
    </vifs>
  </metadata>
  <memory unit="KiB">524288</memory>
  <memoryBacking>
    <source type="memfd"/>
    <access mode="shared"/>
  </memoryBacking>
  <vcpu placement="static">1</vcpu>
  <devices>
    <interface type="vhostuser">
      <mac address="52:54:00:00:00:0a"/>
      <source type="unix" path="/run/weir/a.sock" mode="client"/>
      <target dev=""/>
      <model type="virtio"/>
      <alias name="ua-a"/>
    </interface>
    <interface type="vhostuser">
      <mac address="52:54:00:00:00:0b"/>
      <source type="unix" path="/run/weir/b.sock" mode="client"/>
      <target dev=""/>
      <model type="virtio"/>
      <alias name="net1"/>
    </interface>
    <interface type="vhostuser">
      <mac address="52:54:00:00:00:0c"/>
      <source type="unix" path="/run/weir/c.sock" mode="client"/>
      <target dev=""/>
      <model type="virtio"/>
    </interface>
  </devices>
  <seclabel type="dynamic" model="dac" relabel="yes"/>
  <qemu:commandline>
    <qemu:arg value="-no-hpet"/>
  </qemu:commandline>
</domain>
"#;
/// A domain as libvirt 12 prints it, with an interface that is attached later.
const OF_12: &str = r#"<?xml version="1.0"?>
<!-- what an administrator wrote -->
<domain type="qemu">
  <name>later</name>
  <uuid>6e1c0a9e-0a6e-4d8e-9c55-2f1d0c7a3b11</uuid>
  <title>A domain &amp; more</title>
  <metadata>
    <weir:vifs xmlns:weir="urn:weir:libvirt">
      <weir:vif/>
      <weir:vif socket="/run/weir/late.sock" vlan="7"/>
    </weir:vifs>
  </metadata>
  <memory unit="KiB">262144</memory>
  <memoryBacking>
    <source type="memfd"/>
    <access mode="shared"/>
  </memoryBacking>
  <vcpu placement="static">1</vcpu>
  <iothreads>1</iothreads>
  <os firmware="efi">
    <type arch="x86_64" machine="pc-q35-11.0">hvm</type>
    <firmware>
      <feature enabled="no" name="secure-boot"/>
    </firmware>
  </os>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <interface type="vhostuser">
      <mac address="52:54:00:c3:f1:73"/>
      <source type="unix" path="/run/weir/web0.sock" mode="client">
        <reconnect enabled="yes" timeout="1" delay="1"/>
      </source>
      <model type="virtio"/>
      <driver queues="1" rss="off" rx_queue_size="1024"/>
    </interface>
    <interface type="vdpa">
      <mac address="52:54:00:c3:f1:74"/>
      <source dev="/dev/vhost-vdpa-0"/>
    </interface>
  </devices>
</domain>
"#;

fn vifs(xml: &str) -> Result<Vec<VifConfig>, LibvirtError> {
    Domain::read(xml)?.vifs(&"/run/weir/control.sock".parse().unwrap())
}

/// A domain with these elements, and this number of interfaces: web0, web1 and so on.
fn domain(elements: &str, interfaces: usize) -> String {
    let interface = |index| {
        format!(
            "<interface type='vhostuser'><mac address='52:54:00:00:00:0{index}'/>\
             <source type='unix' path='/run/weir/web{index}.sock' mode='client'/></interface>"
        )
    };
    let interfaces: String = (0..interfaces).map(interface).collect();
    format!(
        "<domain type='qemu'><name>d</name><uuid>{UUID}</uuid><metadata><w:vifs xmlns:w='{NAMESPACE}'>{elements}\
         </w:vifs></metadata><devices>{interfaces}</devices></domain>"
    )
}

fn says(xml: &str) -> String {
    match vifs(xml) {
        Err(error) => sentence(&error),
        Ok(vifs) => panic!("{vifs:?}"),
    }
}

/// The same interface as made by `weir vif add NAME KEY=VALUE...`.
fn added(name: &str, settings: &[&str]) -> VifConfig {
    let settings: Vec<_> = settings.iter().map(|it| it.parse().unwrap()).collect();
    let control = "/run/weir/control.sock".parse().unwrap();
    VifConfig::from_settings(&name.parse().unwrap(), &settings, &control).unwrap()
}

#[test]
fn what_an_element_leaves_out_is_as_libvirts_interface_says() {
    let by = format!("by=libvirt:{UUID}");
    let [web, backup] = &vifs(OF_9).unwrap()[..] else { panic!("two interfaces") };
    let expected = added(
        "web0",
        &[
            "mac=52:54:00:c3:f1:73",
            "queues=2",
            "mtu=1400",
            "vlan=10",
            "rate=1Gbit",
            "latency_budget=1ms",
            "isolated=true",
            "socket_mode=0660",
            &by,
        ],
    );
    let rules = ["tx drop tcp dst port 25 and len > 100", "rx drop ip6"];
    let filter = rules.map(|rule| rule.parse().unwrap()).into();
    assert_eq!(*web, VifConfig { filter, ..expected });
    let expected = added(
        "backup",
        &[
            "socket=/run/weir/b.sock",
            "mode=client",
            "mac=52:54:00:00:00:b0",
            "socket_mode=0666",
            "network=tenant-a",
            &by,
        ],
    );
    assert_eq!(*backup, expected);
}

#[test]
fn a_device_behind_an_iommu_has_an_interface_that_offers_it() {
    let with = |driver: &str, element: &str| {
        let end = format!("{driver}</interface></devices>");
        let xml = domain(element, 1).replace("</interface></devices>", &end);
        vifs(&xml).unwrap()[0].access_platform
    };
    assert!(with("<driver iommu='on'/>", "<w:vif/>"));
    assert!(!with("<driver iommu='off'/>", "<w:vif/>") && !with("<driver/>", "<w:vif/>"));
    assert!(!with("<driver iommu='on'/>", "<w:vif access_platform='false'/>"), "as it says");
}

#[test]
fn an_element_is_found_by_alias_or_mac_or_in_order() {
    let found: Vec<_> = vifs(OF_11).unwrap();
    let found: Vec<_> = found.iter().map(|it| (it.name.as_str(), it.vlan.clone())).collect();
    let vlan = |id: u16| added("x", &[&format!("vlan={id}")]).vlan;
    assert_eq!(found, [("c", vlan(3)), ("b", vlan(2)), ("a", vlan(1))]);
    assert_ne!(found[0].1, VlanMode::Unset);
}

#[test]
fn groups_are_an_element_or_an_attribute() {
    let attribute = OF_12.replace("<weir:vif/>", "<weir:vif groups='web,ssh'/>");
    assert_ne!(attribute, OF_12);
    let groups = |xml: &str| vifs(xml).unwrap()[0].groups.to_string();
    assert_eq!(groups(&attribute), "web, ssh");
    let element =
        "<w:vif name='web0'><w:groups> web, ssh </w:groups><w:filter>tx drop</w:filter></w:vif>";
    let vifs = vifs(&domain(element, 1)).unwrap();
    assert_eq!((vifs[0].groups.to_string().as_str(), vifs[0].filter.len()), ("web, ssh", 1));
}

#[test]
fn an_element_with_a_socket_needs_no_interface_yet() {
    let [there, later] = &vifs(OF_12).unwrap()[..] else { panic!("two interfaces") };
    assert_eq!((there.name.as_str(), there.socket.as_str()), ("web0", "/run/weir/web0.sock"));
    assert_eq!((later.name.as_str(), later.mac), ("late", None));
    let attached = OF_12.replace(
        "</devices>",
        "<interface type='vhostuser'><mac address='52:54:00:00:00:77'/>\
        <source type='unix' path='/run/weir/late.sock' mode='client'/></interface></devices>",
    );
    let [_, later] = &vifs(&attached).unwrap()[..] else { panic!("two interfaces") };
    assert_eq!(later.mac.unwrap().to_string(), "52:54:00:00:00:77");
}

#[test]
fn what_is_wrong_is_one_sentence_that_says_what_to_change() {
    for (elements, interfaces, expected) in [
        (
            "<w:vif/><w:vif/>",
            1,
            "no interface of type=\"vhostuser\" for its <vif> number 2: give it an <interface",
        ),
        ("<w:vif alias='ua-x'/>", 1, "for its <vif> ua-x"),
        (
            "<w:vif mac='52:54:00:00:00:00'/><w:vif mac='52:54:00:00:00:00'/>",
            2,
            "for one interface, web0",
        ),
        ("<w:vif name='a'/><w:vif name='a'/>", 2, "two <vif> elements"),
        ("<w:vif groups='web'><w:groups>ssh</w:groups></w:vif>", 1, "has its groups twice"),
        ("<w:vif><w:groups/></w:vif>", 1, "cannot be the name of a group"),
        ("<w:vif><w:groups>Web</w:groups></w:vif>", 1, "cannot be the name of a group"),
        ("<w:vif by='file'/>", 1, "`by` of <vif> number 1 cannot be chosen"),
        ("<w:vif name='A b'/>", 1, "A b is no name for an interface"),
        ("<w:vif rat='1Gbit'/>", 1, "did you mean `rate`?"),
        ("<w:vif rate='much'/>", 1, "`vif.web0.rate`"),
        ("<w:vif queues='9'/>", 1, "`vif.web0.queues`"),
        ("<w:vif socket='relative.sock'/>", 0, "`vif.relative.socket`"),
        (
            "<w:vif><w:filter>tx drop</w:filter><w:filter>nonsense</w:filter></w:vif>",
            1,
            "nonsense is no filter rule",
        ),
        ("<w:vif><w:rule/></w:vif>", 1, "weir knows no element <rule> here"),
        ("<w:vif filter='tx drop'/>", 1, "filter"),
        ("<w:port/>", 1, "weir knows no element <port> here: write <vif .../>"),
        ("<vif/>", 1, "weir knows no element <vif> here"),
    ] {
        let said = says(&domain(elements, interfaces));
        assert!(said.contains(expected), "{elements}: {said}");
        assert!(!said.contains('\n') && said.len() < 2000, "{said}");
    }
    let twice =
        domain("<w:vif/>", 1).replace("</metadata>", "<o xmlns='urn:weir:libvirt'/></metadata>");
    assert!(says(&twice).contains("<vifs> twice"));
    for bad in [
        "",
        "-",
        "6e1c0a9e-0a6e-4d8e-9c55-2f1d0c7a3b1\u{e9}",
        "../../../../../../../../../../../../..",
    ] {
        let xml = domain("", 0).replace(UUID, bad);
        assert_eq!(says(&xml), "the domain has no <uuid>");
        assert!(domain::owner(&xml).is_err());
    }
}

#[test]
fn foreign_xml_is_bounded_and_names_nothing_outside_of_it() {
    for entities in [
        "<!DOCTYPE domain [<!ENTITY x SYSTEM 'file:///etc/passwd'>]>",
        "<!DOCTYPE domain [<!ENTITY x 'aaaaaaaaaa'><!ENTITY y '&x;&x;&x;&x;&x;&x;&x;&x;'>]>",
    ] {
        let xml = entities.to_owned() + &domain("<w:vif name='&x;'/>", 1);
        assert!(says(&xml).contains("cannot be read"), "{}", says(&xml));
    }
    let many = |element: &str, number: usize| says(&domain(&element.repeat(number), 0));
    assert!(many("<w:vif/>", limits::DOMAIN_VIFS_MAX + 1).contains("more than 64 interfaces"));
    assert!(many("<w:vif/>", limits::DOMAIN_XML_NODES_MAX as usize).contains("cannot be read"));
    let rules = "<w:filter>tx drop</w:filter>".repeat(limits::FILTER_RULES_MAX + 1);
    assert!(many(&format!("<w:vif>{rules}</w:vif>"), 1).contains("more than 32 filter rules"));
    assert!(many("<w:vif>", 100_000).contains("cannot be read"));
    let deep = "<a>".repeat(90_000) + &"</a>".repeat(90_000);
    assert!(
        vifs(&domain("<w:vif/>", 1).replace("<metadata>", &format!("<metadata>{deep}"))).is_ok()
    );
    let long = vec![b' '; limits::DOMAIN_XML_BYTES_MAX + 1];
    let read = |bytes: &[u8]| super::read(&mut { bytes });
    assert!(matches!(read(&long), Err(LibvirtError::Domain(DomainError::TooLong))));
    assert_eq!(read(&long[1..]).unwrap().len(), limits::DOMAIN_XML_BYTES_MAX);
    assert!(matches!(read(b"<\xff>"), Err(LibvirtError::Domain(DomainError::NotXml(_)))));
    // Any text, cut anywhere, is read or refused.
    for end in (0..OF_9.len()).filter(|end| OF_9.is_char_boundary(*end)) {
        assert!(vifs(&OF_9[..end]).is_err() || end >= OF_9.trim_end().len());
    }
}

#[test]
fn operations_that_are_no_business_of_weirs_read_nothing_and_ask_nobody() {
    let hook = |operation: &str| HookArgs {
        domain: "d".into(),
        operation: operation.into(),
        rest: vec!["begin".into(), "-".into()],
    };
    for operation in ["start", "started", "stopped", "migrate", "restore", "attach", "--help", ""] {
        assert_eq!(Operation::of(&hook(operation)), None, "{operation}");
    }
    assert_eq!(Operation::of(&hook("prepare")), Some(Operation::Prepare));
}

#[test]
fn a_weir_that_is_killed_amid_a_request_is_asked_again_when_it_is_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("control.sock");
    let serve = |answers: &'static [&'static str]| {
        fs::remove_file(&path).ok();
        let listener = UnixListener::bind(&path).unwrap();
        move || {
            let (mut stream, _) = listener.accept().unwrap();
            drop(listener);
            for answer in answers {
                assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
                let len = answer.len();
                write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {len}\r\n\r\n{answer}").unwrap();
            }
            let _ = stream.read(&mut [0; 4096]).unwrap();
        }
    };
    // The first weir ends with a request, and is away for a while. The second one answers.
    let owner: Owner = "libvirt:1".parse().unwrap();
    let control = SocketPath::try_from(path.as_path()).unwrap();
    let first = serve(&[]);
    let release = thread::spawn(move || super::release(&owner, &control, Duration::from_secs(60)));
    first();
    thread::sleep(Duration::from_millis(100));
    thread::spawn(serve(&["[]"]));
    release.join().unwrap().unwrap();
}

#[test]
fn a_socket_that_qemus_user_may_not_open_is_refused_before_anybody_waits_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let mode = |mode: u32| PermissionsExt::from_mode(mode);
    fs::set_permissions(dir.path(), mode(0o755)).unwrap();
    let path = dir.path().join("web0.sock");
    let socket = format!("socket={}", path.display());
    let with = |key: &str| added("web0", &[&socket, key]);
    let asked = |vif: &VifConfig, user, groups: &[u32], usual: Option<(u32, u32, u32)>| {
        let account = define::Account { user, groups: groups.to_vec() };
        let usual = usual.map(|(mode, user, group)| Permissions { mode, user, group });
        refuse_closed(std::slice::from_ref(vif), &account, usual)
            .map_err(|it| sentence(&DomainError::from(it)))
    };
    // A group of weir's file opens the sockets of interfaces that say nothing, and an interface's own group its own.
    let silent = with("mtu=1500");
    asked(&silent, 64_055, &[108], Some((0o600, 0, 108))).unwrap_err();
    assert_eq!(asked(&silent, 64_055, &[108], Some((0o660, 0, 108))), Ok(()));
    assert_eq!(asked(&with("socket_group=108"), 64_055, &[108], Some((0o600, 0, 0))), Ok(()));
    assert_eq!(asked(&with("socket_user=64055"), 64_055, &[], Some((0o600, 0, 0))), Ok(()));
    asked(&with("socket_user=64055"), 64_056, &[], Some((0o600, 0, 0))).unwrap_err();
    let vif = with("socket_mode=0660");
    let said = |user, groups: &[u32], owner: Option<(u32, u32)>| {
        asked(&vif, user, groups, owner.map(|(user, group)| (0o600, user, group)))
    };
    // Nobody has made the socket yet: it will have the group of weir.
    let closed = said(64_055, &[64_055, 108], Some((0, 0))).unwrap_err();
    assert!(closed.contains("has mode 0660, user 0 and group 0"), "{closed}");
    assert!(closed.contains("`socket_group`") && !closed.contains("socket_mode"), "{closed}");
    assert_eq!(said(64_055, &[64_055, 108], Some((0, 108))), Ok(()));
    assert_eq!(said(0, &[], Some((900, 900))), Ok(()));
    assert_eq!(said(64_055, &[], None), Ok(()), "nobody knows");

    // The socket is there: its own mode counts, and that of the directory.
    let _listener = UnixListener::bind(&path).unwrap();
    fs::set_permissions(&path, mode(0o600)).unwrap();
    let own = fs::metadata(&path).unwrap();
    let (other, own_group) = (own.uid() + 1, [own.gid()]);
    let closed = said(other, &own_group, None).unwrap_err();
    assert!(closed.contains("mode 0600") && closed.contains("leave `socket_mode`"), "{closed}");
    fs::set_permissions(&path, mode(0o660)).unwrap();
    assert_eq!(said(other, &own_group, None), Ok(()));
    fs::set_permissions(dir.path(), mode(0o700)).unwrap();
    let closed = said(other, &own_group, None).unwrap_err();
    assert!(closed.contains("a directory that QEMU may enter"), "{closed}");
    fs::set_permissions(dir.path(), mode(0o755)).unwrap();
}

#[test]
fn a_domain_with_an_account_of_its_own_is_not_judged_by_libvirts() {
    let plain = domain("<w:vif/>", 1);
    let with = |label: &str| {
        let xml = plain.replace("</domain>", &format!("{label}</domain>"));
        Domain::read(&xml).unwrap().has_own_account
    };
    assert!(!with("") && !with("<seclabel type='dynamic' model='apparmor'/>"));
    assert!(with("<seclabel type='static' model='dac'><label>+1000:+1000</label></seclabel>"));
}
