//! Access ports of different VLANs.

use std::time::Duration;

use weir_bed::{
    address,
    error::{Result, check},
    lab::Lab,
    weir::{Setup, Vif, Weir},
};

use super::{boot, traffic::ping};

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
