//! Guests with more than one queue pair.

use std::time::Duration;

use weir_bed::{
    address,
    error::{Result, check},
    iperf::{self, Tcp},
    lab::Lab,
    weir::{Setup, Vif, Weir},
    weir_stats::Way,
};

use super::{boot_specs, guest_spec};

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
