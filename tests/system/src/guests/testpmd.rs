//! DPDK's virtio-user as a client: a polling driver that never sleeps.

use std::time::Duration;

use weir_bed::{
    error::{Result, check},
    lab::Lab,
    switch::Switch,
    testpmd::{Rings, Testpmd, Traffic},
    weir::{Setup, Vif, Weir},
    weir_stats::Way,
};

/// A switch that lost its first packets would be far below.
const PACKETS_PER_SECOND_MIN: f64 = 20_000.0;

pub(super) fn forwards_with_one_queue(lab: &Lab) -> Result<()> {
    forwards(lab, Traffic::default())
}

pub(super) fn forwards_with_two_queues(lab: &Lab) -> Result<()> {
    forwards(lab, Traffic { queues: 2, ..Traffic::default() })
}

pub(super) fn forwards_over_packed_rings(lab: &Lab) -> Result<()> {
    forwards(lab, Traffic { rings: Rings::PackedInOrder, ..Traffic::default() })
}

fn forwards(lab: &Lab, traffic: Traffic) -> Result<()> {
    let queues = traffic.queues;
    let _pages = weir_bed::testpmd::HugePages::for_client()?;
    let vifs = vec![Vif { queues: Some(queues), ..Vif::default() }; 2];
    let weir = Weir::start(lab, &Setup { vifs, ..Setup::default() })?;
    let mut client = Testpmd::start([&weir.link(0)?, &weir.link(1)?], &traffic, 0)?;
    client.circulate()?;
    let rate = client.packets_per_second(Duration::from_secs(3))?;
    check(rate > PACKETS_PER_SECOND_MIN, || format!("only {rate:.0} packets per second"))?;

    let stats = weir.stats()?;
    for port in ["vif0", "vif1"] {
        let frames = stats.frames_by_queue(port, Way::Tx)?;
        check(
            frames.len() == usize::from(queues) && frames.iter().all(|&count| count > 0),
            || format!("{port}: frames by queue: {frames:?}"),
        )?;
    }
    client.quit()?;
    weir.stop()
}
