//! Two guests on one switch.
//!
//! Guests with more than one queue pair.
//!
//! Access ports of different VLANs.
//!
//! Programs of guests under a security group, whose frames the kernel judges as well.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use weir_bed::{
    address,
    error::{Error, Result, check},
    guest_image::{GuestImage, KERNEL_METAPACKAGE},
    iperf::{self, Datagrams, Tcp, Transfer},
    lab::Lab,
    packages,
    process::{Placement, Process, run_in, wait_until},
    qemu::{Guest, GuestSpec, MEMORY},
    testpmd,
    uml::{self, UserModeLinux, Wire},
    weir::{self, Setup, Vif, Weir, shell_words},
    weir_stats::Way,
    workspace::{Workspace, socket_path},
};

use super::{FLOWS_SECONDS, boot, boot_specs, guest_spec};

const PING_PATIENCE: Duration = Duration::from_secs(30);

/// Sends three echo requests from `guest`. Each must be answered.
pub(super) fn ping(guest: &mut Guest, to: &str) -> Result<()> {
    guest.run(&format!("ping -c 3 -W 5 {to}"), PING_PATIENCE)?;
    Ok(())
}

pub(super) fn two_guests_ping_each_other(lab: &Lab) -> Result<()> {
    let weir = Weir::start(lab, &Setup::vifs(2))?;
    let [mut first, mut second] = boot(lab, &weir)?;
    ping(&mut first, &address::ip(1))?;
    ping(&mut second, &address::ip(0))?;
    // The largest payload of one frame of 1500 bytes, and a payload that needs two frames.
    for payload in [1472, 2000] {
        first.run(&format!("ping -c 2 -W 5 -s {payload} {}", address::ip(1)), PING_PATIENCE)?;
    }

    let stats = weir.stats()?;
    for port in ["vif0", "vif1"] {
        check(stats.state(port)? == "running", || format!("{port} is not running: {stats:?}"))?;
        for way in [Way::Rx, Way::Tx] {
            let frames: u64 = stats.frames_by_queue(port, way)?.iter().sum();
            check(frames >= 6, || format!("{port} {way:?}: only {frames} frames counted"))?;
        }
    }
    weir.stop()
}

pub(super) fn guest_sends_tcp_to_guest(lab: &Lab) -> Result<()> {
    let weir = Weir::start(lab, &Setup::vifs(2))?;
    let [mut client, mut server] = boot(lab, &weir)?;
    iperf::serve(&mut server, iperf::PORT)?;
    for streams in [1, 4] {
        let transfer =
            Tcp { streams, ..Tcp::to(address::ip(1), FLOWS_SECONDS) }.run(&mut client)?;
        check(transfer.bits_per_second > crate::TCP_BITS_PER_SECOND_MIN, || {
            format!("{streams} stream(s): only {:.3} Gbit/s", transfer.gbit_per_second())
        })?;
    }
    no_checksum_errors(&mut server)?;
    no_checksum_errors(&mut client)
}

/// A guest with packed rings and one with split rings, in both directions.
pub(super) fn packed_ring_guest_sends_tcp(lab: &Lab) -> Result<()> {
    /// `VIRTIO_F_RING_PACKED` (virtio 1.2 §6), as sysfs counts bits.
    const RING_PACKED: usize = 34;
    let weir = Weir::start(lab, &Setup::vifs(2))?;
    let mut specs = [guest_spec(&weir, 0)?, guest_spec(&weir, 1)?];
    for argument in &mut specs[0].plug.qemu_args {
        if argument.starts_with("virtio-net-pci") {
            argument.push_str(",packed=on");
        }
    }
    let [mut packed, mut split] = boot_specs(lab, &specs, weir.dir())?;
    let features = packed.run("cat /sys/bus/virtio/devices/virtio0/features", PING_PATIENCE)?;
    check(features.trim().as_bytes().get(RING_PACKED) == Some(&b'1'), || {
        format!("packed rings were not negotiated: {features}")
    })?;
    streams(&mut packed, &mut split, 1)?;
    streams(&mut split, &mut packed, 0)
}

/// Raj & Schwan 2006 §5.2: bounce buffers do what an I/O MMU would. A guest copies all frames through the half of its
/// memory that its VM shares, and weir may be given no more.
pub(super) fn weir_reaches_a_guests_bounce_buffers_and_no_other_half(lab: &Lab) -> Result<()> {
    /// `VIRTIO_F_ACCESS_PLATFORM`, as sysfs counts bits: the driver asks the platform for addresses.
    const ACCESS_PLATFORM: usize = 33;
    let weir = Weir::start(lab, &Setup::vifs(2))?;
    weir.set(0_u8, "access_platform=true")?;
    weir.set(0_u8, "memory_max=192MiB")?;
    let mut specs = [guest_spec(&weir, 0)?, guest_spec(&weir, 1)?];
    share_half(&mut specs[0]);
    let [mut bounded, mut other] = boot_specs(lab, &specs, weir.dir())?;
    let features = bounded.run("cat /sys/bus/virtio/devices/virtio0/features", PING_PATIENCE)?;
    check(features.trim().as_bytes().get(ACCESS_PLATFORM) == Some(&b'1'), || {
        format!("the driver uses addresses as they are: {features}")
    })?;
    ping(&mut bounded, &address::ip(1))?;
    streams(&mut bounded, &mut other, 1)?;
    streams(&mut other, &mut bounded, 0)?;
    weir.stop()
}

/// A guest with a virtual IOMMU, by which Linux gives the device an address for each buffer, and one without. Its rings
/// of 1024 entries lie in several pieces. weir is killed, and hands over to its successor, under traffic.
pub(super) fn guest_behind_a_virtual_iommu_sends_tcp(lab: &Lab) -> Result<()> {
    let vif = Vif { access_platform: true, ..Vif::default() };
    let setup = Setup { vifs: vec![vif, Vif::default()], keeper: true, ..Setup::default() };
    let mut weir = Weir::start(lab, &setup)?;
    let mut specs = [guest_spec(&weir, 0)?, guest_spec(&weir, 1)?];
    put_behind_iommu(&weir, lab, &mut specs[0])?;
    let [mut behind, mut plain] = boot_specs(lab, &specs, weir.dir())?;
    // The device is in a group only if an IOMMU translates for it.
    behind.run("ls -d /sys/bus/virtio/devices/virtio0/../iommu_group/devices", PING_PATIENCE)?;
    ping(&mut behind, &address::ip(1))?;
    ping(&mut plain, &address::ip(0))?;
    some_tcp(&mut behind, &mut plain, 1)?;
    some_tcp(&mut plain, &mut behind, 0)?;

    iperf::serve(&mut behind, iperf::PORT)?;
    let tcp = Tcp::to(address::ip(0), 3 * FLOWS_SECONDS);
    let transfer = plain.start(&tcp.argv().join(" "))?;
    thread::sleep(Duration::from_millis(1500));
    weir.crash_and_restart()?;
    thread::sleep(Duration::from_millis(1500));
    weir.upgrade()?;
    let report = plain.finish(transfer, tcp.patience())?;
    let last = Transfer::parse(&report)?.interval_bytes.pop();
    check(last.is_some_and(|bytes| bytes > 0.0), || format!("nothing flowed at last: {report}"))?;
    ping(&mut behind, &address::ip(1))?;
    some_tcp(&mut behind, &mut plain, 1)?;
    let stats = weir.stats()?;
    check(stats.state("vif0")? == "running", || format!("the guest is stopped: {stats:?}"))?;
    let log = weir.log();
    let connected = log.matches("front end connected").count();
    check(connected == 2, || format!("2 guests have connected {connected} times:\n{log}"))?;
    weir.stop()
}

/// DPDK in a guest, by VFIO behind a virtual IOMMU: testpmd answers what another guest asks.
pub(super) fn testpmd_in_a_guest_answers_behind_its_virtual_iommu(lab: &Lab) -> Result<()> {
    const LOG: &str = "/tmp/testpmd.log";
    /// The device is behind QEMU's only root port.
    const DEVICE: &str = "/sys/bus/pci/devices/0000:01:00.0";
    let plugins = testpmd::plugins(&["mempool_ring", "net_virtio"])?;
    let programs: Vec<_> = [Path::new(testpmd::PROGRAM)]
        .into_iter()
        .chain(plugins.iter().map(PathBuf::as_path))
        .collect();
    let image = lab.image.with_modules(
        &lab.workspace,
        "dpdk",
        (KERNEL_METAPACKAGE, DPDK_MODULES),
        &programs,
    )?;
    let vif = Vif { access_platform: true, ..Vif::default() };
    let setup = Setup { vifs: vec![vif, Vif::default()], ..Setup::default() };
    let weir = Weir::start(lab, &setup)?;
    let mut spec = GuestSpec { vcpus: 2, ..guest_spec(&weir, 0)? };
    put_behind_iommu(&weir, lab, &mut spec)?;
    // Debian compiles DPDK for this processor.
    spec.plug.qemu_args.extend(["-cpu", "Nehalem,+rdrand"].map(str::to_owned));
    let mut behind = Guest::boot(&image, &spec, weir.dir())?;
    let mut plain = Guest::boot(&lab.image, &guest_spec(&weir, 1)?, weir.dir())?;
    ping(&mut plain, &address::ip(0))?;
    // DPDK loads no plugins from a directory that anybody may write to.
    let bind = format!(
        "chmod 755 / && mkdir -p /dev/hugepages /var/run && mount -t hugetlbfs none /dev/hugepages \
         && echo 32 >/proc/sys/vm/nr_hugepages && echo vfio-pci >{DEVICE}/driver_override \
         && echo 0000:01:00.0 >{DEVICE}/driver/unbind && echo 0000:01:00.0 >/sys/bus/pci/drivers_probe"
    );
    behind.run(&bind, PING_PATIENCE)?;
    behind.run(
        &format!(
            "sleep 600 | dpdk-testpmd -l 0,1 -m 48 --no-telemetry -a 0000:01:00.0 -- --forward-mode=icmpecho \
             --auto-start --total-num-mbufs=2048 >{LOG} 2>&1 &"
        ),
        PING_PATIENCE,
    )?;
    // No kernel answers there any more.
    let answers = format!(
        "for i in $(seq 60); do ping -c 1 -W 1 {} >/dev/null && exit; done; exit 1",
        address::ip(0)
    );
    let begun = plain.run(&answers, 2 * PING_PATIENCE);
    let log = behind.run(&format!("cat {LOG}"), PING_PATIENCE)?;
    begun.map_err(|error| Error::Check(format!("{error}: {log}")))?;
    check(log.contains("Using IOMMU type 1"), || log.clone())?;
    plain.run(&format!("ping -c 100 -i 0.02 -W 5 -s 1400 {}", address::ip(0)), PING_PATIENCE)?;
    let stats = weir.stats()?;
    check(stats.state("vif0")? == "running", || format!("the guest is stopped: {stats:?}"))?;
    weir.stop()
}

/// A network device's driver, and what gives the device to a program.
const DPDK_MODULES: &[&str] = &["virtio_pci", "virtio_net", "vfio_pci", "vfio_iommu_type1"];

/// TCP at any rate: each buffer takes a question and an answer.
fn some_tcp(client: &mut Guest, server: &mut Guest, to: u8) -> Result<()> {
    iperf::serve(server, iperf::PORT)?;
    let transfer = Tcp::to(address::ip(to), FLOWS_SECONDS).run(client)?;
    check(transfer.bits_per_second > 0.0, || format!("nothing arrives at guest {to}"))
}

/// Gives a guest the arguments that weir prints for one with a virtual IOMMU.
fn put_behind_iommu(weir: &Weir, lab: &Lab, spec: &mut GuestSpec) -> Result<()> {
    let version = lab.qemu.to_string();
    let asked =
        ["qemu-args", &spec.name, "--qemu-version", &version, "--memory", MEMORY, "--iommu"];
    spec.plug.qemu_args = shell_words(&weir.control(&asked)?);
    let kernel = format!(
        "console=ttyS0 quiet panic=-1 ipv6.disable=1 weir.address={} intel_iommu=on",
        spec.cidr
    );
    spec.plug.qemu_args.extend(["-append".to_owned(), kernel]);
    Ok(())
}

/// Gives a guest 384 MiB in two halves, the higher one of which is shared and has the processors. Linux has its bounce
/// buffers at the top of the memory, and rings where the processor is. A kernel at a random place can lie in the middle
/// of the higher half, where it leaves no 64 MiB in one piece for the bounce buffers: they are in the lower half then.
fn share_half(spec: &mut GuestSpec) {
    let mut before = String::new();
    for argument in &mut spec.plug.qemu_args {
        if before == "-m" {
            *argument = String::from("384M");
        } else if argument == "memory-backend=weir-mem" {
            *argument = String::from("pc");
        } else if argument.starts_with("memory-backend-memfd") {
            *argument = String::from("memory-backend-memfd,id=weir-mem,size=192M,share=on");
        } else if argument.starts_with("virtio-net-pci") {
            argument.push_str(",disable-legacy=on,iommu_platform=on");
        }
        before.clone_from(argument);
    }
    let kernel = format!(
        "console=ttyS0 quiet panic=-1 ipv6.disable=1 weir.address={} swiotlb=force nokaslr",
        spec.cidr
    );
    let more = [
        "-object",
        "memory-backend-ram,id=own,size=192M",
        "-numa",
        "node,nodeid=0,memdev=own",
        "-numa",
        "node,nodeid=1,cpus=0-1,memdev=weir-mem",
        "-append",
        &kernel,
    ];
    spec.plug.qemu_args.extend(more.map(str::to_owned));
}

fn streams(client: &mut Guest, server: &mut Guest, to: u8) -> Result<()> {
    iperf::serve(server, iperf::PORT)?;
    let transfer = Tcp::to(address::ip(to), FLOWS_SECONDS).run(client)?;
    check(transfer.bits_per_second > crate::TCP_BITS_PER_SECOND_MIN, || {
        format!("to guest {to}: only {:.3} Gbit/s", transfer.gbit_per_second())
    })?;
    no_checksum_errors(server)
}

pub(super) fn guest_sends_udp_to_guest(lab: &Lab) -> Result<()> {
    /// The rate is low enough for the slowest machine, so that every loss is the switch's.
    const MEGABIT_PER_SECOND: u32 = 20;
    let weir = Weir::start(lab, &Setup::vifs(2))?;
    let [mut client, mut server] = boot(lab, &weir)?;
    iperf::serve(&mut server, iperf::PORT)?;
    // Datagrams of one frame and of six fragments.
    for payload in [1400, 8000] {
        let overrun_before = receive_buffer_errors(&mut server)?;
        let Datagrams { sent, lost, .. } =
            Datagrams::send(&mut client, &address::ip(1), MEGABIT_PER_SECOND, payload)?;
        check(sent > 500.0, || format!("only {sent} datagrams sent"))?;
        // Datagrams that the receiver's full socket discarded did arrive.
        let overrun = receive_buffer_errors(&mut server)?.saturating_sub(overrun_before);
        let overrun = f64::from(u32::try_from(overrun).unwrap_or(u32::MAX));
        check(lost - overrun < sent * 0.01, || {
            let stats = weir.stats();
            format!("{payload} bytes: {lost} of {sent} lost, {overrun} by the socket; {stats:?}")
        })?;
    }
    no_checksum_errors(&mut server)
}

pub(super) fn file_arrives_unchanged(lab: &Lab) -> Result<()> {
    let weir = Weir::start(lab, &Setup::vifs(2))?;
    let [mut sender, mut receiver] = boot(lab, &weir)?;
    send_file(&mut sender, &mut receiver, 1, 32)
}

/// Sends a file of random bytes to guest `to`, which is `receiver`, and compares digests.
pub fn send_file(sender: &mut Guest, receiver: &mut Guest, to: u8, mebibytes: u32) -> Result<()> {
    const PORT: u16 = 7000;
    const PATIENCE: Duration = Duration::from_secs(240);
    let make = format!("dd if=/dev/urandom of=/tmp/file bs=1M count={mebibytes} 2>/dev/null");
    sender.run(&make, PATIENCE)?;
    let sent = sender.run("md5sum </tmp/file", PATIENCE)?;
    // `nc` disconnects at the end of its input. A pipe that is also open for writing never ends.
    let receive =
        format!("[ -p /tmp/open ] || mkfifo /tmp/open; nc -l -p {PORT} <>/tmp/open >/tmp/file &");
    iperf::serve_with(receiver, &receive, PORT)?;
    sender.run(&format!("nc {} {PORT} </tmp/file", address::ip(to)), PATIENCE)?;
    receiver.run("while pidof nc >/dev/null; do sleep 0.1; done", PATIENCE)?;
    let received = receiver.run("md5sum </tmp/file", PATIENCE)?;
    check(sent == received, || format!("sent {sent}, received {received}"))?;
    no_checksum_errors(receiver)
}

/// Datagrams that reached the guest and were discarded by full sockets.
fn receive_buffer_errors(guest: &mut Guest) -> Result<u64> {
    let snmp = guest.run("cat /proc/net/snmp", Duration::from_secs(10))?;
    snmp_counter(&snmp, "Udp", "RcvbufErrors")
        .ok_or_else(|| Error::parse("RcvbufErrors", snmp.as_str()))
}

/// Fails if the guest's kernel has found a wrong checksum in a received packet.
pub fn no_checksum_errors(guest: &mut Guest) -> Result<()> {
    let snmp = guest.run("cat /proc/net/snmp", Duration::from_secs(10))?;
    for protocol in ["Tcp", "Udp"] {
        let errors = snmp_counter(&snmp, protocol, "InCsumErrors");
        let errors = errors.ok_or_else(|| Error::parse("InCsumErrors", snmp.as_str()))?;
        check(errors == 0, || format!("{errors} {protocol} checksums were wrong"))?;
    }
    Ok(())
}

/// A counter of `/proc/net/snmp`: a line of names, then a line of values, for each protocol.
fn snmp_counter(snmp: &str, protocol: &str, name: &str) -> Option<u64> {
    let mut lines = snmp.lines().filter(|line| line.split(':').next() == Some(protocol));
    let (names, values) = (lines.next()?, lines.next()?);
    let column = names.split_whitespace().position(|word| word == name)?;
    values.split_whitespace().nth(column)?.parse().ok()
}

pub(super) fn two_queue_guest_uses_both(lab: &Lab) -> Result<()> {
    /// With 16 streams, all fall on one queue by chance in 1 of 2^15 runs.
    const STREAMS: u8 = 16;
    let vifs = vec![Vif { queues: Some(2), ..Vif::default() }; 2];
    let weir = Weir::start(lab, &Setup { vifs, ..Setup::default() })?;
    // A virtio-net driver uses one queue pair per CPU.
    let mut specs = [guest_spec(&weir, 0)?, guest_spec(&weir, 1)?];
    for spec in &mut specs {
        spec.vcpus = 2;
    }
    let [mut client, mut server] = boot_specs(lab, &specs, weir.dir())?;
    for guest in [&mut client, &mut server] {
        let queues = guest.run("ls /sys/class/net/eth0/queues", Duration::from_secs(10))?;
        let queues: Vec<_> = queues.split_whitespace().collect();
        check(queues == ["rx-0", "rx-1", "tx-0", "tx-1"], || format!("queues: {queues:?}"))?;
    }

    let before = server.interrupts()?;
    iperf::serve(&mut server, iperf::PORT)?;
    Tcp { streams: STREAMS, ..Tcp::to(address::ip(1), 4) }.run(&mut client)?;
    let stats = weir.stats()?;
    for (port, way) in [("vif0", Way::Tx), ("vif1", Way::Rx)] {
        let frames = stats.frames_by_queue(port, way)?;
        check(frames.len() == 2 && frames.iter().all(|&frames| frames > 10), || {
            format!("{port} {way:?} frames by queue: {frames:?}")
        })?;
    }
    if lab.qemu.has_msix() {
        let after = server.interrupts()?;
        for queue in ["virtio0-input.0", "virtio0-input.1"] {
            let count = |counts: &std::collections::BTreeMap<_, _>| counts.get(queue).copied();
            check(count(&after) > count(&before), || {
                format!("no interrupts for {queue}: {after:?}")
            })?;
        }
    }
    weir.stop()
}

pub(super) fn vlans_are_separate(lab: &Lab) -> Result<()> {
    let vif = |vlan| Vif { vlan: Some(vlan), ..Vif::default() };
    let vifs = vec![vif(10), vif(20), vif(10)];
    let weir = Weir::start(lab, &Setup { vifs, ..Setup::default() })?;
    let [mut first, mut other, mut same] = boot(lab, &weir)?;
    ping(&mut first, &address::ip(2))?;
    ping(&mut same, &address::ip(0))?;
    for guest in [&mut first, &mut same] {
        let command = format!("! ping -c 3 -W 1 {}", address::ip(1));
        guest.run(&command, Duration::from_secs(20))?;
    }
    // No broadcast of the other VLAN has reached the guest.
    let neighbours = other.run("cat /proc/net/arp", Duration::from_secs(10))?;
    check(neighbours.lines().count() == 1, || format!("it has seen neighbours: {neighbours}"))?;
    weir.stop()
}

/// The rules of the first guest. `crates/groups/tests/conntrack.rs` has them for nftables, as `OF_GUESTS`.
const GUARDED: &str = r#"
[group.guarded]
default_out = "deny"
rules = [
    { direction = "in", protocol = "tcp", ports = "22" },
    { direction = "in", protocol = "tcp", ports = "80" },
    { direction = "in", protocol = "udp", ports = "53" },
    { direction = "in", protocol = "icmp", types = "8" },
    { direction = "out", protocol = "tcp", ports = "443" },
    { direction = "out", protocol = "tcp", ports = "5201" },
    { direction = "out", protocol = "udp", ports = "53" },
    { direction = "out", protocol = "udp", ports = "5201" },
    { direction = "out", protocol = "icmp", types = "8" },
]
"#;

/// Programs that guests get for this besides iperf3 and busybox. The `wget` of Debian 12's static busybox ends with a
/// fault, and its `traceroute -I` sends nothing.
const PROGRAMS: [&str; 6] = [
    packages::CURL,
    packages::DROPBEAR,
    packages::DBCLIENT,
    packages::TRACEROUTE,
    packages::DNSMASQ,
    "/usr/bin/getent",
];

/// A file for web and ssh, a server of ssh, one of the web, and one of names.
const SERVES: &str = "mkdir -p /etc/dropbear /tmp/web; head -c 300000 /dev/zero >/tmp/web/file; \
     echo root::0:0::/:/bin/sh >/etc/passwd; dropbear -R -B -p 22; \
     printf 'nameserver PEER\\noptions timeout:1 attempts:1\\n' >/etc/resolv.conf; \
     httpd -p 8080 -h /tmp/web;";

/// Programs of the guest in the group, and whether each of them gets its answer. The other guest serves no names, so an
/// ICMP error is the answer there.
const OUTWARD: [(&str, bool); 15] = [
    ("ping -c 3 -i 0.2 -W 9 PEER", true),
    ("curl -sfm 1 -o /dev/null http://PEER:8080/file", false),
    ("curl -sfm 20 -o /dev/null http://PEER:443/file", true),
    ("timeout 1 dbclient -y -y root@PEER true", false),
    ("getent ahostsv4 name.example", false),
    ("RES_OPTIONS=use-vc timeout 1 getent ahostsv4 name.example", false),
    ("traceroute.db -n -q 1 -m 2 -w 1 PEER | grep -q ms$", false),
    ("traceroute.db -I -n -q 1 -m 2 -w 9 PEER | grep -q ms$", true),
    ("traceroute.db -T -p 443 -n -q 1 -m 2 -w 9 PEER | grep -q ms$", true),
    ("iperf3 -c PEER -n 3M", true),
    ("iperf3 -c PEER -n 3M -R", true),
    ("iperf3 -c PEER -n 1M -P 3", true),
    ("iperf3 -c PEER -n 100K -u -l 1400", true),
    ("nc -w 9 PEER 443 </dev/null", true),
    ("nc -w 1 PEER 444 </dev/null", false),
];

/// The same of the other guest.
const INWARD: [(&str, bool); 11] = [
    ("ping -c 3 -i 0.2 -W 9 PEER", true),
    ("dbclient -y -y root@PEER cat /tmp/web/file | wc -c | grep -q 300000", true),
    ("curl -sfm 20 -o /dev/null http://PEER:80/file", true),
    ("curl -sfm 1 -o /dev/null http://PEER:8080/file", false),
    ("getent ahostsv4 name.example | grep -q 192.0.2.7", true),
    ("RES_OPTIONS=use-vc timeout 1 getent ahostsv4 name.example", false),
    ("traceroute.db -n -q 1 -m 2 -w 1 PEER | grep -q ms$", false),
    ("traceroute.db -I -n -q 1 -m 2 -w 9 PEER | grep -q ms$", true),
    ("timeout 3 iperf3 -c PEER --connect-timeout 1000 -n 1K", false),
    ("nc -w 9 PEER 22 </dev/null | grep -q SSH", true),
    ("nc -w 1 PEER 81 </dev/null", false),
];

/// Two QEMU guests, and two of user-mode Linux where that runs. Their frames are judged once more by the kernel.
pub(super) fn groups_judge_programs_of_guests_as_the_kernels_conntrack_does(
    lab: &Lab,
) -> Result<()> {
    let initrd = lab.workspace.run_dir("programs")?.join("initrd.img");
    GuestImage::add_programs(&lab.image.initrd, &PROGRAMS, &initrd)?;
    let with_programs = Lab { image: GuestImage { initrd, ..lab.image.clone() }, ..lab.clone() };
    guarded(&with_programs, boot::<2>)?;
    let Some(mut uml) = UserModeLinux::prepare_if_it_runs(&lab.workspace, &lab.image)? else {
        return Ok(());
    };
    let initrd = lab.workspace.run_dir("programs")?.join("initrd.img");
    GuestImage::add_programs(&uml.initrd, &PROGRAMS, &initrd)?;
    uml.initrd = initrd;
    guarded(lab, |_, weir| {
        let boot = |index: u8| -> Result<Guest> {
            let console = weir.dir().join(format!("{}.console", weir::name(index)));
            let mut guest = uml.boot(&Wire::VhostUser(&weir.socket(index)?), &console)?;
            uml::set_addresses(&mut guest, index)?;
            Ok(guest)
        };
        Ok([boot(0)?, boot(1)?])
    })
}

fn guarded(lab: &Lab, boot: impl FnOnce(&Lab, &Weir) -> Result<[Guest; 2]>) -> Result<()> {
    let weir = Weir::start(lab, &Setup { more: GUARDED.into(), ..Setup::vifs(2) })?;
    weir.set(0_u8, "groups=guarded")?;
    let mut guests = boot(lab, &weir)?;
    let (capture, file) = begin_capture(lab, &weir)?;
    let peers = [address::ip(1), address::ip(0)];
    let own = [
        (
            "httpd -p 80 -h /tmp/web; dnsmasq -C /dev/null -R -h -u root -x '' -A /name.example/192.0.2.7;",
            80,
        ),
        ("httpd -p 443 -h /tmp/web; iperf3 -s -D;", iperf::PORT),
    ];
    for (guest, ((own, port), peer)) in guests.iter_mut().zip(own.into_iter().zip(&peers)) {
        iperf::serve_with(guest, &format!("{} {own}", SERVES.replace("PEER", peer)), port)?;
    }
    for nth in 0..OUTWARD.len().max(INWARD.len()) {
        // Both guests ask at once.
        let mut begun = Vec::new();
        let lists = [&OUTWARD[..], &INWARD].into_iter().zip(&peers);
        for (guest, (list, peer)) in guests.iter_mut().zip(lists) {
            let Some((command, may)) = list.get(nth) else { continue };
            let command = command.replace("PEER", peer);
            let started = guest.start(&format!("if {command}; then echo reached; fi"))?;
            begun.push((guest, started, command, may));
        }
        for (guest, started, command, may) in begun {
            let said = guest.finish(started, PING_PATIENCE)?;
            check(said.contains("reached") == *may, || format!("to {command}: {said}"))?;
        }
    }
    // Whatever was captured is written before weir ends.
    weir.stop()?;
    compare_with_conntrack(lab, capture, &file)
}

/// Captures what both guests of `weir` send and receive.
fn begin_capture(lab: &Lab, weir: &Weir) -> Result<(Process, PathBuf)> {
    let (file, log) = (weir.dir().join("groups.pcapng"), weir.dir().join("capture.log"));
    let control = socket_path(weir.dir(), "control.sock")?;
    let [program, control, path] = [&lab.weir, &control, &file].map(|it| it.to_string_lossy());
    let argv =
        [&program, "--control", &control, "capture", "vif0", "vif1", "--snap", "128", "-w", &path];
    let capture = Process::start_logged(&argv, &Placement::default(), &log)?;
    wait_until("the capture", PING_PATIENCE, || {
        Ok(fs::metadata(&file).is_ok_and(|it| it.len() > 0))
    })?;
    Ok((capture, file))
}

/// A test of the groups sends each captured frame through the kernel's nf_conntrack.
fn compare_with_conntrack(lab: &Lab, mut capture: Process, file: &Path) -> Result<()> {
    wait_until("the end of the capture", PING_PATIENCE, || Ok(capture.ended()?.is_some()))?;
    let cargo = Workspace::cargo();
    let test = "root_frames_of_guests_pass_as_by_the_kernels_conntrack";
    // With all crates named, cargo chooses the features of the build before, and builds nothing again.
    let argv = [&cargo, "test", "--workspace", "--test", "conntrack", "--", "--nocapture", test];
    let said = run_in(&argv, &lab.workspace.root, &[("CAPTURE", file.as_os_str())])?;
    let compared = said.lines().find(|line| line.contains("frames of guests"));
    let compared = compared.ok_or_else(|| Error::parse("what was compared", said.as_str()))?;
    println!("  {}", compared.trim());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snmp_counters_are_found_by_protocol_and_name() {
        let snmp = "Tcp: InErrs InCsumErrors\nTcp: 1 2\nUdp: InDatagrams InCsumErrors\nUdp: 3 4\n";
        assert_eq!(snmp_counter(snmp, "Tcp", "InCsumErrors"), Some(2));
        assert_eq!(snmp_counter(snmp, "Udp", "InCsumErrors"), Some(4));
        assert_eq!(snmp_counter(snmp, "Udp", "None"), None);
    }
}
