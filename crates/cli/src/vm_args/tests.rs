//! The arguments for each monitor.

use super::*;

fn vif(name: &str) -> VifConfig {
    let socket = format!("/run/weir/{name}.sock").parse().unwrap();
    VifConfig::new(name.parse().unwrap(), socket)
}

fn options() -> VmOptions {
    VmOptions {
        memory: Some("1G".parse().unwrap()),
        vectors: None,
        qemu_version: None,
        kvm: None,
        architecture: "x86_64",
        iommu: false,
    }
}

fn lines(monitor: Monitor, vifs: &[VifConfig]) -> String {
    let qemu_version = monitor.is_for_qemu().then(|| "10.0".parse().unwrap());
    let options = VmOptions { qemu_version, ..options() };
    monitor.args(vifs, &options).unwrap().lines.join("\n")
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
    -chardev socket,id=weir-web0,path=/run/weir/web0.sock,reconnect-ms=1000
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
    -chardev socket,id=weir-web0,path=/run/weir/web0.sock,reconnect-ms=1000
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
fn qemu_has_the_options_of_its_version() {
    let with = |version: Option<&str>, vectors| {
        let qemu_version = version.map(|version| version.parse().unwrap());
        let options = VmOptions { qemu_version, vectors, ..options() };
        let VmArgs { lines, notes } = Monitor::Qemu.args(&[vif("a")], &options).unwrap();
        let text = lines.join("\n");
        let option = |name: &str| {
            let of = text.split(['\n', ',']).find_map(|part| part.strip_prefix(name));
            of.map(str::to_owned).unwrap_or_default()
        };
        let is_noted = notes.iter().any(|note| note.contains("--vectors 4"));
        ([option("reconnect=") + &option("reconnect-ms="), option("vectors=")], is_noted)
    };
    for (version, reconnect, vectors) in [
        (Some("7.2"), "1", "0"),
        (Some("9.1.3"), "1", "0"),
        (Some("9.2"), "1000", "0"),
        (Some("10.0.2"), "1000", "4"),
        (Some("11.1"), "1000", "4"),
        (None, "1000", "0"),
    ] {
        let got = with(version, None);
        assert_eq!(got, ([reconnect, vectors].map(str::to_owned), vectors == "0"), "{version:?}");
        assert_eq!(with(version, Some(3)), ([reconnect, "3"].map(str::to_owned), false));
    }
    let notes = Monitor::Qemu.args(&[vif("a")], &options()).unwrap().notes;
    assert!(notes.iter().any(|note| note.contains("9.2 and later")), "{notes:?}");
}

#[test]
fn qemu_runs_by_kvm_where_it_can_and_the_reason_is_said_where_it_cannot() {
    let with = |kvm| {
        let options = VmOptions { kvm, qemu_version: Some("7.2".parse().unwrap()), ..options() };
        let VmArgs { lines, notes } = Monitor::Qemu.args(&[vif("a")], &options).unwrap();
        (lines.join(" "), notes.join("\n"))
    };
    let (lines, notes) = with(Some(Ok(())));
    assert!(lines.starts_with("-accel kvm -cpu max -m 1G "), "{lines}");
    // Vectors are safe where no processor is emulated, whatever the version.
    assert!(lines.contains(",vectors=4,") && notes.is_empty(), "{lines} {notes}");
    let (lines, notes) = with(Some(Err("there is none".into())));
    assert!(lines.starts_with("-m 1G ") && lines.contains(",vectors=0,"), "{lines}");
    assert!(notes.contains("QEMU emulates the processor, which is slow, because there is none"));
    let (lines, notes) = with(None);
    assert!(lines.starts_with("-m 1G ") && !notes.contains("emulates the processor, which"));
}

#[test]
fn an_option_of_qemu_is_refused_where_no_argument_of_qemu_is_printed() {
    for monitor in Monitor::value_variants() {
        let vectors = VmOptions { vectors: Some(0), ..options() };
        let version = VmOptions { qemu_version: Some("10.0".parse().unwrap()), ..options() };
        let iommu = VmOptions { iommu: true, ..options() };
        let all = [("--vectors", vectors), ("--qemu-version", version), ("--iommu", iommu)];
        for (option, options) in all {
            let refused =
                monitor.args(&[behind_iommu("a")], &options).err().map(|error| error.to_string());
            assert_eq!(refused.is_none(), monitor.is_for_qemu(), "{refused:?}");
            if let Some(refused) = refused {
                assert!(
                    refused.starts_with(&format!("{option} has no effect with --for ")),
                    "{refused}"
                );
            }
        }
    }
}

fn behind_iommu(name: &str) -> VifConfig {
    VifConfig { access_platform: true, ..vif(name) }
}

#[test]
fn devices_behind_an_iommu_have_ports_of_their_own() {
    let vifs = [behind_iommu("web0"), behind_iommu("db0")];
    let options = VmOptions { iommu: true, qemu_version: "10.0".parse().ok(), ..options() };
    let VmArgs { lines, notes } = Monitor::Qemu.args(&vifs, &options).unwrap();
    insta::assert_snapshot!(lines.join("\n"), @r#"
    -machine q35
    -m 1G
    -object memory-backend-memfd,id=weir-mem,size=1G,share=on
    -machine memory-backend=weir-mem
    -machine kernel-irqchip=split
    -device intel-iommu,intremap=on,device-iotlb=on
    -device pcie-root-port,id=weir-port-web0,chassis=119,slot=0
    -chardev socket,id=weir-web0,path=/run/weir/web0.sock,reconnect-ms=1000
    -netdev vhost-user,id=weir-web0,chardev=weir-web0,queues=1
    -device virtio-net-pci,netdev=weir-web0,mac=52:54:00:c3:f1:73,vectors=4,rx_queue_size=1024,tx_queue_size=1024,bus=weir-port-web0,disable-legacy=on,iommu_platform=on,ats=on
    -device pcie-root-port,id=weir-port-db0,chassis=119,slot=1
    -chardev socket,id=weir-db0,path=/run/weir/db0.sock,reconnect-ms=1000
    -netdev vhost-user,id=weir-db0,chardev=weir-db0,queues=1
    -device virtio-net-pci,netdev=weir-db0,mac=52:54:00:4d:30:89,vectors=4,rx_queue_size=1024,tx_queue_size=1024,bus=weir-port-db0,disable-legacy=on,iommu_platform=on,ats=on
    "#);
    assert!(notes.iter().any(|note| note.contains("intel_iommu=on")), "{notes:?}");
    let text = Monitor::Libvirt.args(&vifs[..1], &options).unwrap().lines.join("\n");
    for has in [
        "<ioapic driver='qemu'/>\n",
        "<iommu model='intel'><driver intremap='on' iotlb='on'/></iommu>\n",
        "tx_queue_size='1024' iommu='on' ats='on'/>\n",
    ] {
        assert!(text.contains(has), "{text}");
    }
    let refused = Monitor::Qemu.args(&[vif("a")], &options).unwrap_err();
    assert_eq!(refused, VmArgsError::NoAccessPlatform { name: "a".parse().unwrap() });
    let options = VmOptions { architecture: "aarch64", ..options };
    let refused = Monitor::Qemu.args(&vifs, &options).unwrap_err();
    assert_eq!(refused, VmArgsError::NoIommu { architecture: "aarch64" });
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
fn libvirt_is_told_of_vectors_where_qemu_may_end_with_them() {
    let text = |version: Option<&str>, vectors| {
        let qemu_version = version.map(|version| version.parse().unwrap());
        let options = VmOptions { memory: None, qemu_version, vectors, ..options() };
        let vifs = [vif("web.0"), vif("db0")];
        Monitor::Libvirt.args(&vifs, &options).unwrap().lines.join("\n")
    };
    let old = text(Some("7.2"), None);
    let (in_domain, in_devices) = old.split_once("<!-- in <devices> -->\n").unwrap();
    insta::assert_snapshot!(in_domain, @r#"
    <!-- in <domain type='qemu'> only: QEMU before 10.0 that emulates its processor ends with interrupt vectors -->
    <qemu:override xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
      <qemu:device alias='ua-weir-web_0'><qemu:frontend>
        <qemu:property name='vectors' type='unsigned' value='0'/>
      </qemu:frontend></qemu:device>
      <qemu:device alias='ua-weir-db0'><qemu:frontend>
        <qemu:property name='vectors' type='unsigned' value='0'/>
      </qemu:frontend></qemu:device>
    </qemu:override>
    "#);
    for alias in ["ua-weir-web_0", "ua-weir-db0"] {
        assert!(in_devices.contains(&format!("\n  <alias name='{alias}'/>\n")), "{in_devices}");
    }
    assert_eq!(text(None, None), old, "nobody knows the QEMU");
    let new = text(Some("10.0"), None);
    assert!(!new.contains("qemu:") && !new.contains("alias"), "{new}");
    let asked = text(Some("10.0"), Some(6));
    assert!(asked.starts_with("<!-- in <domain> -->\n<qemu:override "), "{asked}");
    assert_eq!(asked.matches(" value='6'/>").count(), 2, "{asked}");
}

#[test]
fn a_vm_is_asked_for_the_rings_of_its_interface() {
    let mut vif = vif("web0");
    vif.rx_ring = Some(512.try_into().unwrap());
    vif.tx_ring = Some(256.try_into().unwrap());
    let asks = |monitor: Monitor, has: &str| {
        let VmArgs { lines, notes } = monitor.args(std::slice::from_ref(&vif), &options()).unwrap();
        assert!(lines.join("\n").contains(has), "{lines:?}");
        notes
    };
    for monitor in [Monitor::Qemu, Monitor::Proxmox, Monitor::Vmspawn, Monitor::Incus] {
        asks(monitor, ",rx_queue_size=512,tx_queue_size=256");
    }
    asks(Monitor::Libvirt, " rx_queue_size='512' tx_queue_size='256'/>");
    let notes = asks(Monitor::CloudHypervisor, ",queue_size=512,");
    assert!(notes.iter().any(|note| note.ends_with("all rings of web0: 512")), "{notes:?}");
    let notes = asks(Monitor::Crosvm, "--vhost-user net");
    assert!(notes.iter().any(|note| note.contains("the rings of web0")), "{notes:?}");
}

#[test]
fn a_guest_has_one_port_for_its_agent() {
    let with_agent = |name: &str, agent: &str| {
        let mut vif = vif(name);
        vif.agent = Some(agent.parse().unwrap());
        vif
    };
    let vifs = [with_agent("web0", "/run/weir/web.agent"), with_agent("web1", "/run/a,b")];
    let args = Monitor::Qemu.args(&vifs, &options()).unwrap();
    insta::assert_snapshot!(args.lines[args.lines.len() - 3..].join("\n"), @r"
    -chardev socket,id=weir-agent,path=/run/weir/web.agent,reconnect-ms=1000
    -device virtio-serial-pci,id=weir-serial
    -device virtserialport,bus=weir-serial.0,chardev=weir-agent,name=org.weir.agent.0
    ");
    let wants = |note: &String| note.contains("give web1 the same `agent` as web0");
    assert!(args.notes.iter().any(wants), "{:?}", args.notes);
    let text = lines(Monitor::Libvirt, &vifs[..1]);
    let (_, channel) = text.split_once("</interface>\n").unwrap();
    insta::assert_snapshot!(channel, @r"
    <channel type='unix'>
      <source mode='connect' path='/run/weir/web.agent'>
        <reconnect enabled='yes' timeout='1'/>
      </source>
      <target type='virtio' name='org.weir.agent.0'/>
    </channel>
    ");
    let args = Monitor::Crosvm.args(&vifs[..1], &options()).unwrap();
    assert!(args.notes.iter().any(|note| note.contains("agent")), "{:?}", args.notes);
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
fn without_memory_nothing_is_said_of_it() {
    let options = VmOptions { memory: None, ..options() };
    for monitor in Monitor::value_variants() {
        let args = monitor.args(&[vif("web0")], &options).unwrap();
        let text = args.lines.join(" ").to_lowercase();
        assert!(!text.contains("mem") && !text.contains("-m "), "{monitor:?}: {text}");
    }
    let lines = Monitor::Qemu.args(&[vif("web0")], &options).unwrap().lines;
    assert_eq!(lines, qemu_devices(&[vif("web0")], &options).lines);
}

#[test]
fn proxmox_has_one_line_and_its_own_size_of_memory() {
    let args = Monitor::Proxmox.args(&[two_queues_with_everything()], &options()).unwrap();
    assert_eq!(args.lines.len(), 1);
    insta::assert_snapshot!(args.lines[0].replace(" -", "\n-"), @r"
    args:
    -object memory-backend-memfd,id=weir-mem,size=1G,share=on
    -machine memory-backend=weir-mem
    -chardev socket,id=weir-web0,path=/run/weir/web0.sock,reconnect-ms=1000
    -netdev vhost-user,id=weir-web0,chardev=weir-web0,queues=2
    -device virtio-net-pci,netdev=weir-web0,mac=52:54:00:12:34:56,mq=on,vectors=0,rx_queue_size=1024,tx_queue_size=1024,host_mtu=9000
    ");
    assert!(args.notes.iter().any(|note| note.contains("`memory: 1024`")), "{:?}", args.notes);
}

#[test]
fn vmspawn_has_a_variable_for_a_shell() {
    let lines = Monitor::Vmspawn.args(&[vif("web0")], &options()).unwrap().lines;
    let [line] = &lines[..] else { panic!("{lines:?}") };
    let value = line.strip_prefix("SYSTEMD_VMSPAWN_QEMU_EXTRA='").unwrap();
    let value = value.strip_suffix('\'').unwrap();
    assert!(!value.contains(['\'', '"', '\\']), "{value}");
    assert!(
        value.starts_with("-object memory-backend-memfd,id=weir-mem,size=1G,share=on -machine ")
    );
}

#[test]
fn incus_shares_memory_itself_and_lets_its_qemu_to_the_sockets() {
    let mut web0 = vif("web0");
    web0.agent = Some("/run/weir/web.agent".parse().unwrap());
    let lines = Monitor::Incus.args(&[web0, vif("db0")], &options()).unwrap().lines;
    assert_eq!(lines[0], "config:");
    assert!(lines[1].starts_with("  raw.qemu: '-chardev socket,id=weir-web0,"), "{lines:?}");
    assert!(!lines[1].contains("memory"), "{lines:?}");
    let allowed = "/run/weir/web0.sock rw, /run/weir/db0.sock rw, /run/weir/web.agent rw,";
    assert_eq!(lines[2], format!("  raw.apparmor: '{allowed}'"));
    let options = VmOptions { architecture: "aarch64", ..options() };
    let error = Monitor::Incus.args(&[vif("db0")], &options).unwrap_err();
    assert_eq!(error, VmArgsError::MemoryNotShared { architecture: "aarch64" });
}

#[test]
fn a_path_that_a_syntax_would_change_is_refused() {
    for path in ["/run/my vms/a.sock", "/run/a,b.sock", "/run/a\\b.sock", "/run/*.sock"] {
        let Ok(socket) = path.parse() else { continue };
        let vif = VifConfig::new("a".parse().unwrap(), socket);
        for monitor in [Monitor::Vmspawn, Monitor::Incus] {
            let error = monitor.args(std::slice::from_ref(&vif), &options()).unwrap_err();
            assert!(matches!(error, VmArgsError::PathSyntax { .. }), "{path}: {error}");
        }
    }
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

#[test]
fn an_interface_that_is_named_twice_is_refused() {
    for monitor in [Monitor::Qemu, Monitor::Libvirt, Monitor::CloudHypervisor] {
        let twice = [vif("web0"), vif("db0"), vif("web0")];
        let refused = monitor.args(&twice, &options()).unwrap_err();
        assert_eq!(refused, VmArgsError::Twice { name: "web0".parse().unwrap() });
        assert!(monitor.args(&twice[..2], &options()).is_ok());
    }
}
