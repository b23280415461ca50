//! Two guests on one switch.
//!
//! Guests with more than one queue pair.
//!
//! Access ports of different VLANs.

use std::time::Duration;

use weir_bed::{
    address,
    error::{Error, Result, check},
    iperf::{self, Datagrams, Tcp},
    lab::Lab,
    qemu::{Guest, GuestSpec},
    weir::{Setup, Vif, Weir},
    weir_stats::Way,
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

/// A guest with a virtual IOMMU, by which Linux gives the device an address for each buffer, and one without.
pub(super) fn guest_behind_a_virtual_iommu_sends_tcp(lab: &Lab) -> Result<()> {
    let weir = Weir::start(lab, &Setup::vifs(2))?;
    weir.set(0_u8, "access_platform=true")?;
    let mut specs = [guest_spec(&weir, 0)?, guest_spec(&weir, 1)?];
    put_behind_iommu(&mut specs[0]);
    let [mut behind, mut plain] = boot_specs(lab, &specs, weir.dir())?;
    // The device is in a group only if an IOMMU translates for it.
    behind.run("ls -d /sys/bus/virtio/devices/virtio0/../iommu_group/devices", PING_PATIENCE)?;
    ping(&mut behind, &address::ip(1))?;
    ping(&mut plain, &address::ip(0))?;
    some_tcp(&mut behind, &mut plain, 1)?;
    some_tcp(&mut plain, &mut behind, 0)?;
    let stats = weir.stats()?;
    check(stats.state("vif0")? == "running", || format!("the guest is stopped: {stats:?}"))?;
    weir.stop()
}

/// TCP at any rate: each buffer takes a question and an answer.
fn some_tcp(client: &mut Guest, server: &mut Guest, to: u8) -> Result<()> {
    iperf::serve(server, iperf::PORT)?;
    let transfer = Tcp::to(address::ip(to), FLOWS_SECONDS).run(client)?;
    check(transfer.bits_per_second > 0.0, || format!("nothing arrives at guest {to}"))
}

fn put_behind_iommu(spec: &mut GuestSpec) {
    for argument in &mut spec.plug.qemu_args {
        if argument == "memory-backend=weir-mem" {
            *argument = String::from("q35,memory-backend=weir-mem");
        } else if argument.starts_with("virtio-net-pci") {
            // Linux gives a ring of more entries pages from different places.
            *argument = argument.replace("queue_size=1024", "queue_size=256");
            argument.push_str(",bus=port0,disable-legacy=on,iommu_platform=on,ats=on");
        }
    }
    let kernel = format!(
        "console=ttyS0 quiet panic=-1 ipv6.disable=1 weir.address={} intel_iommu=on",
        spec.cidr
    );
    let devices = [
        "-device",
        "intel-iommu,intremap=on,device-iotlb=on",
        "-device",
        "pcie-root-port,id=port0",
        "-append",
        &kernel,
    ];
    spec.plug.qemu_args.splice(0..0, devices.map(str::to_owned));
}

/// Gives a guest 384 MiB in two halves, the higher one of which is shared and has the processors. Linux has its bounce
/// buffers at the top of the memory, and rings where the processor is.
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
