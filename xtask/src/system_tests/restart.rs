//! weir itself dies, and the guests are still there.

use super::{FLOWS_SECONDS, boot, guests::ping};
use crate::{
    address,
    error::Result,
    iperf::{self, Tcp},
    lab::Lab,
    weir::{Setup, Weir},
};

pub(super) fn killed_weir_comes_back_and_guests_go_on(lab: &Lab) -> Result<()> {
    let mut weir = Weir::start(lab, &Setup::vifs(2))?;
    let [mut client, mut server] = boot(lab, &weir)?;
    ping(&mut client, &address::ip(1))?;
    iperf::serve(&mut server, iperf::PORT)?;
    Tcp::to(address::ip(1), FLOWS_SECONDS).run(&mut client)?;

    weir.crash_and_restart()?;
    // QEMU connects again by itself; the guests' rings go on where they stood.
    ping(&mut client, &address::ip(1))?;
    ping(&mut server, &address::ip(0))?;
    Tcp::to(address::ip(1), FLOWS_SECONDS).run(&mut client)?;
    weir.check_alive()
}
