//! Two guests on one switch.
//!
//! Guests with more than one queue pair.
//!
//! Access ports of different VLANs.

use std::{fs, time::Duration};

use weir_bed::{
    address,
    error::{Error, Result, check},
    iperf::{self, Datagrams, Tcp},
    lab::Lab,
    process::{Placement, Process, run_in, wait_until},
    qemu::{Guest, GuestSpec},
    uml::{self, UserModeLinux, Wire},
    weir::{self, Setup, Vif, Weir},
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

/// Gives a guest 384 MiB in two halves. The higher half is shared, and is the processors' own memory: Linux has its
/// bounce buffers at the top of the memory, and rings near the processor.
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
        "console=ttyS0 quiet panic=-1 ipv6.disable=1 weir.address={} swiotlb=force",
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
    /// Slow enough for the slowest machine, so that losses are the switch's.
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

/// The rules of `Rules::ClosedOut` in `crates/groups/tests/conntrack.rs`.
const GUARDED: &str = r#"
[group.guarded]
default_out = "deny"
rules = [
    { direction = "in", protocol = "tcp", ports = "80" },
    { direction = "in", protocol = "udp", ports = "53" },
    { direction = "in", protocol = "icmp", types = "8" },
    { direction = "out", protocol = "tcp", ports = "443" },
    { direction = "out", protocol = "udp", ports = "53" },
    { direction = "out", protocol = "icmp", types = "8" },
]
"#;

/// A program of the guest in the group, 0, or of the other one, and whether it reaches whom it asks.
const ASKED: [(usize, &str, bool); 15] = [
    (0, "ping -c 3 -i 0.2 -W 5 PEER", true),
    (1, "ping -c 3 -i 0.2 -W 5 PEER", true),
    (0, "traceroute -I -n -m 1 -q 2 -w 5 PEER | grep -q ' ms'", true),
    (0, "traceroute -n -m 1 -q 1 -w 1 PEER | grep -q ' ms'", false),
    (1, "traceroute -n -m 1 -q 1 -w 1 PEER | grep -q ' ms'", false),
    (0, "wget -q -T 5 -O /dev/null http://PEER:443/file", true),
    (0, "wget -q -T 1 -O /dev/null http://PEER:8080/file", false),
    (1, "wget -q -T 1 -O /dev/null http://PEER:8080/file", false),
    (1, "nc -w 1 PEER 22 </dev/null", false),
    // Nobody answers names there. The ICMP error comes back.
    (0, "timeout 2 nslookup name.example PEER", false),
    (1, "timeout 2 nslookup name.example PEER", false),
    (1, "iperf3 -c PEER -p 80 -n 3M", true),
    (1, "iperf3 -c PEER -p 80 -n 3M -R", true),
    (1, "iperf3 -c PEER -p 80 -n 1M -P 3", true),
    (1, "timeout 3 iperf3 -c PEER -p 80 -n 1K -u", false),
];

/// Two QEMU guests, and two of user-mode Linux where that runs. Their frames are judged once more by the kernel.
pub(super) fn groups_judge_programs_of_guests_as_the_kernels_conntrack_does(
    lab: &Lab,
) -> Result<()> {
    guarded(lab, |lab, weir| boot::<2>(lab, weir))?;
    let Some(programs) = UserModeLinux::prepare_if_it_runs(&lab.workspace, &lab.image)? else {
        return Ok(());
    };
    guarded(lab, |_, weir| {
        let boot = |index: u8| -> Result<Guest> {
            let console = weir.dir().join(format!("{}.console", weir::name(index)));
            let mut guest = programs.boot(&Wire::VhostUser(&weir.socket(index)?), &console)?;
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
    let (file, log) = (weir.dir().join("groups.pcapng"), weir.dir().join("capture.log"));
    let control = socket_path(weir.dir(), "control.sock")?;
    let [program, control, path] = [&lab.weir, &control, &file].map(|it| it.to_string_lossy());
    let argv = [
        &program, "--control", &control, "capture", "vif0", "vif1", "--snap", "128", "-w", &path,
    ];
    let mut capture = Process::start_logged(&argv, &Placement::default(), &log)?;
    wait_until("the capture", PING_PATIENCE, || {
        Ok(fs::metadata(&file).is_ok_and(|it| it.len() > 0))
    })?;
    for (guest, port) in guests.iter_mut().zip([8080, 443]) {
        let file = "mkdir /tmp/web; head -c 300000 /dev/zero > /tmp/web/file;";
        iperf::serve_with(guest, &format!("{file} httpd -p {port} -h /tmp/web;"), port)?;
    }
    iperf::serve(&mut guests[0], 80)?;
    for (from, command, may) in ASKED {
        let command = command.replace("PEER", &address::ip(1 - from as u8));
        let reached =
            guests[from].run(&format!("if {command}; then echo yes; fi"), PING_PATIENCE)?;
        check(reached.contains("yes") == may, || format!("guest {from}: {command}: {reached}"))?;
    }
    // Whatever was captured is written before weir ends.
    weir.stop()?;
    wait_until("the end of the capture", PING_PATIENCE, || Ok(capture.ended()?.is_some()))?;
    let cargo = Workspace::cargo();
    let test = "root_recorded_frames_pass_as_by_the_kernels_conntrack";
    let argv =
        [&cargo, "test", "-p", "weir-groups", "--test", "conntrack", "--", "--nocapture", test];
    let said = run_in(&argv, &lab.workspace.root, &[("CAPTURE", file.as_os_str())])?;
    let compared = said.lines().find(|line| line.contains("frames of guests"));
    let compared = compared.ok_or_else(|| Error::parse("what was compared", said.as_str()))?;
    println!("{compared}");
    Ok(())
}
