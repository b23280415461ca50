//! DPDK's virtio-user under `dpdk-testpmd`: a polling driver, in each of its ring paths.

use std::{thread, time::Duration};

use weir_bed::{
    error::{Result, check},
    qemu::Guest,
    switch::Switch,
    testpmd::{Testpmd, Traffic},
    weir::{self, Vif},
};

use super::{
    bed::{Bed, PARTNER, SECOND, TESTED, await_running},
    linux::{drops, echo},
    parts::TESTPMD_PACKAGE,
    qemu_cells::stop,
    record::{Record, Step, Verdict},
};

/// The CPU of testpmd's threads, which never sleep.
const CPU: usize = 0;

/// Time for which packets circulate, and the least number that must arrive. It is larger than the number sent first.
const CIRCULATES: Duration = Duration::from_secs(1);
const ARRIVED_MIN: u64 = 1000;

/// DPDK's largest cache of buffers. Buffers that have been sent then stay with the thread that forwards. When packed
/// rings are made anew, DPDK posts buffers of the common pool as they are, and its vectorized receive path looks into
/// one that has been sent 12 bytes too early (DPDK 22.11): weir would see the virtio header as Ethernet addresses.
const CACHE: Option<u32> = Some(512);

/// A ring path of the driver.
#[derive(Clone, Copy, Debug)]
pub struct Driver {
    /// The device's options, each with a comma before it.
    device: &'static str,
    /// testpmd's log text for the path.
    path: &'static str,
    /// Queue pairs of each device.
    queues: u8,
    /// The suite of Debian whose testpmd runs; `None` is the installed one.
    suite: Option<&'static str>,
}

const fn driver(device: &'static str, path: &'static str) -> Driver {
    Driver { device, path, queues: 1, suite: None }
}

/// Split rings with mergeable buffers.
pub const SPLIT: Driver = driver(",mrg_rxbuf=1,in_order=0", "using mergeable buffer Rx path");
/// Split rings with each frame in one buffer.
pub const SPLIT_PLAIN: Driver = driver(",mrg_rxbuf=0,in_order=0", "using standard Rx path");
/// Split rings in order.
pub const SPLIT_IN_ORDER: Driver = driver(",mrg_rxbuf=1,in_order=1", "using inorder Rx path");
/// Split rings with vector instructions.
pub const SPLIT_VECTOR: Driver =
    driver(",mrg_rxbuf=0,in_order=0,vectorized=1", "using vectorized Rx path");
/// Packed rings with mergeable buffers.
pub const PACKED: Driver =
    driver(",packed_vq=1,mrg_rxbuf=1,in_order=0", "using packed ring mergeable buffer Rx path");
/// Packed rings with each frame in one buffer.
pub const PACKED_PLAIN: Driver =
    driver(",packed_vq=1,mrg_rxbuf=0,in_order=0", "using packed ring standard Rx path");
/// Packed rings in order.
pub const PACKED_IN_ORDER: Driver =
    driver(",packed_vq=1,mrg_rxbuf=1,in_order=1", "using packed ring mergeable buffer Rx path");
/// Packed rings with vector instructions.
pub const PACKED_VECTOR: Driver = driver(
    ",packed_vq=1,mrg_rxbuf=0,in_order=1,vectorized=1",
    "using packed ring vectorized Rx path",
);

impl Driver {
    /// The cell with another number of queue pairs.
    pub const fn queues(self, queues: u8) -> Self {
        Self { queues, ..self }
    }

    /// The testpmd of a suite.
    pub const fn of(self, suite: &'static str) -> Self {
        Self { suite: Some(suite), ..self }
    }

    /// Runs the cell.
    pub fn run(&self, bed: &mut Bed<'_>, record: &mut Record) -> Result<Verdict> {
        let root = match self.suite.map(|suite| bed.parts.system(suite)).transpose() {
            Ok(root) => root,
            Err(error) => return Ok(Verdict::Skipped(format!("no such DPDK: {error}"))),
        };
        if let Some(suite) = self.suite {
            record.version = Some(bed.parts.version_of(suite, TESTPMD_PACKAGE)?);
        }
        // The device reconnects to a switch only if the device is the side that listens.
        let client = Vif { client: true, queues: Some(self.queues), ..Vif::default() };
        let (mut weir, mut partner) = bed.set_up(&[client.clone(), client])?;
        let all = [PARTNER, TESTED, SECOND];
        let links = [weir.link(TESTED)?, weir.link(SECOND)?];
        let device = format!("{},server=1", self.device);
        let (queues, root) = (self.queues, root.as_ref());
        let traffic = Traffic {
            queues,
            device: &device,
            small_pages: true,
            cache: CACHE,
            root,
            ..Traffic::default()
        };
        let mut testpmd = Testpmd::start([&links[0], &links[1]], &traffic, CPU)?;
        record.step(Step::Link, || {
            check(testpmd.has_said(self.path), || {
                format!("not said: {}; but {}", self.path, testpmd.paths())
            })?;
            testpmd.answer()?;
            await_running(&mut weir, &all)?;
            Ok(self.path.trim_start_matches("using ").trim_end_matches(" Rx path").into())
        })?;
        record.step(Step::Ping, || exchange(&mut testpmd, &mut partner))?;
        record.leave_out(Step::Fragments, "testpmd answers whole echo requests only");
        record.leave_out(
            Step::Tcp,
            "testpmd has no TCP; frames of its own go round instead, beside ping",
        );
        let before = weir.stats()?;
        record.step(Step::Reconnect, || {
            weir.crash();
            weir.launch_again()?;
            testpmd.answer()?;
            await_running(&mut weir, &all)?;
            exchange(&mut testpmd, &mut partner)?;
            Ok("by itself, as the one that listens".into())
        })?;
        record.step(Step::Drops, || drops(&[before, weir.stats()?], &weir::name(TESTED), &[]))?;
        testpmd.quit()?;
        bed.give_back(partner);
        stop(weir)
    }
}

/// testpmd answers pings, and then circulates packets.
fn exchange(testpmd: &mut Testpmd, partner: &mut Guest) -> Result<String> {
    echo(partner, TESTED, None)?;
    testpmd.pause()?;
    let before = testpmd.received()?;
    testpmd.circulate()?;
    thread::sleep(CIRCULATES);
    let arrived = testpmd.received()?.saturating_sub(before);
    testpmd.pause()?;
    check(arrived > ARRIVED_MIN, || format!("only {arrived} packets went round"))?;
    Ok(format!("answers; {arrived} went round"))
}
