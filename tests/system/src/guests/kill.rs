//! A guest that is killed during its traffic.

use std::{thread, time::Duration};

use weir_bed::{
    address,
    error::{Result, check},
    iperf::{self, Tcp, Transfer},
    lab::Lab,
    qemu::Guest,
    weir::{Setup, Weir},
};

use super::{boot, guest_spec, traffic::ping};

/// The port of the victim's server.
const OTHER_PORT: u16 = 5202;

/// Guests 0 and 1 transfer for this long. Guest 2 also sends to guest 1, until it is killed.
const TRANSFER_SECONDS: u64 = 4;
const KILL_AFTER: Duration = Duration::from_secs(2);

pub(super) fn killed_guest_disturbs_nobody_and_its_socket_serves_again(lab: &Lab) -> Result<()> {
    let mut weir = Weir::start(lab, &Setup::vifs(3))?;
    let [mut client, mut server, mut victim] = boot(lab, &weir)?;
    iperf::serve(&mut server, iperf::PORT)?;
    iperf::serve(&mut server, OTHER_PORT)?;

    let tcp = Tcp::to(address::ip(1), TRANSFER_SECONDS);
    let transfer = client.start(&tcp.argv().join(" "))?;
    let doomed = Tcp { port: OTHER_PORT, ..Tcp::to(address::ip(1), 10 * TRANSFER_SECONDS) };
    let _never_finished = victim.start(&doomed.argv().join(" "))?;
    thread::sleep(KILL_AFTER);
    let sent_by_victim: u64 =
        weir.stats()?.frames_by_queue("vif2", weir_bed::weir_stats::Way::Tx)?.iter().sum();
    check(sent_by_victim > 100, || format!("the victim had sent only {sent_by_victim} frames"))?;
    victim.kill();

    let transfer = Transfer::parse(&client.finish(transfer, tcp.patience())?)?;
    let intervals = &transfer.interval_bytes;
    check(intervals.len() as u64 >= TRANSFER_SECONDS, || format!("intervals: {intervals:?}"))?;
    check(intervals.iter().all(|&bytes| bytes > 0.0), || {
        format!("the transfer between the others was interrupted: {intervals:?}")
    })?;
    weir.check_alive()?;
    let stats = weir.stats()?;
    for port in ["vif0", "vif1"] {
        let reason = stats.stopped_reason(port)?;
        check(reason.is_none(), || format!("{port} was stopped: {reason:?}"))?;
    }
    ping(&mut client, &address::ip(1))?;

    let mut successor = Guest::boot(&lab.image, &guest_spec(&weir, 2)?, weir.dir())?;
    ping(&mut successor, &address::ip(0))?;
    weir.stop()
}
