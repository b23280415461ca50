//! Small packets through two ports, from a client that polls, on one core of the switch.

use std::{thread, time::Duration};

use super::{CLIENT_CPU, Contender, SWITCH_CPU};
use crate::{error::Result, hugepages::HugePages, lab::Lab, testpmd::Testpmd};

/// What adaptive switches may take to notice the load.
const WARM_UP: Duration = Duration::from_secs(1);

/// How long is counted.
const TIME: Duration = Duration::from_secs(4);

/// Packets of 64 bytes delivered per second, both directions together.
pub(super) fn packets_per_second(lab: &Lab, contender: Contender) -> Result<f64> {
    let _pages = HugePages::reserve()?;
    let switch = contender.start(lab, Some(SWITCH_CPU))?;
    let links = [&switch.link(0)?, &switch.link(1)?];
    let mut client = Testpmd::start(links, 1, CLIENT_CPU)?;
    client.circulate()?;
    thread::sleep(WARM_UP);
    let rate = client.packets_per_second(TIME)?;
    client.quit()?;
    Ok(rate)
}
