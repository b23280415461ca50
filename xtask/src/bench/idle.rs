//! What weir does while its guests do nothing.

use std::{thread, time::Duration};

use crate::{
    address,
    error::Result,
    lab::Lab,
    peers::Switch,
    qemu::{Guest, GuestSpec},
    weir::{self, Setup, Weir},
};

/// What guests and switch may take to become silent after boot.
const SETTLE: Duration = Duration::from_secs(3);

/// How long is counted.
const TIME: Duration = Duration::from_secs(10);

/// How often any of weir's threads ran, with two guests attached whose interfaces are up and silent
/// (no IPv6, no neighbours to ask for).
pub(super) fn wakeups_per_second(lab: &Lab) -> Result<f64> {
    let weir = Weir::start(lab, &Setup::vifs(2))?;
    let specs = [0, 1].map(|index| {
        let plug = weir.plug(index)?;
        Ok(GuestSpec { name: weir::name(index), cidr: address::cidr(index), vcpus: 1, plug })
    });
    let specs: Vec<_> = specs.into_iter().collect::<Result<_>>()?;
    let _guests = Guest::boot_all(&lab.image, &specs, weir.dir())?;
    thread::sleep(SETTLE);
    let before = weir.context_switches()?;
    thread::sleep(TIME);
    let switches = weir.context_switches()?.saturating_sub(before);
    Ok(f64::from(u32::try_from(switches).unwrap_or(u32::MAX)) / TIME.as_secs_f64())
}
