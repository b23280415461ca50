//! weir is killed and started again, and the guests continue; a guest is killed during its traffic.

use std::{fs, thread, time::Duration};

use weir_bed::{
    address,
    error::{Error, Result, check},
    iperf::{self, Tcp, Transfer},
    lab::Lab,
    process::wait_until,
    qemu::{Guest, GuestSpec},
    weir::{MONITORS, Setup, Weir},
};

use super::{FLOWS_SECONDS, boot, boot_specs, guest_spec, traffic::ping};

/// Number of times that weir is killed while guests 0 and 1 send to each other. `make survive` kills it a hundred times.
const KILLS: u64 = 3;
/// Time between a restart and the next kill.
const TRAFFIC: Duration = Duration::from_millis(1500);
/// Long enough for all kills: QEMU reconnects after a second.
const TRANSFER_SECONDS: u64 = 10 * KILLS;
const LOG_PATIENCE: Duration = Duration::from_secs(30);

/// Linux's messages on a returned chain that it has not made available.
const WRONG_CHAINS: &str = "dmesg | grep -c -e 'is not a head' -e 'out of range' || true";

/// QEMU reconnects by itself.
pub(super) fn killed_weir_comes_back_and_guests_go_on(lab: &Lab) -> Result<()> {
    survive(lab, &Setup::vifs(3))?;
    Ok(())
}

/// QEMU does not reconnect, and need not.
pub(super) fn with_a_keeper_no_guest_connects_again(lab: &Lab) -> Result<()> {
    let log = survive(lab, &Setup { keeper: true, ..Setup::vifs(3) })?;
    let connected = log.matches("front end connected").count();
    check(connected == 3, || format!("3 guests have connected {connected} times:\n{log}"))
}

/// Runs the test and returns weir's log. Guest 0 has packed rings, whose state QEMU does not restore. The others have
/// split rings.
fn survive(lab: &Lab, setup: &Setup) -> Result<String> {
    let mut weir = Weir::start(lab, setup)?;
    let mut specs = [guest_spec(&weir, 0)?, guest_spec(&weir, 1)?, guest_spec(&weir, 2)?];
    for argument in &mut specs[0].plug.qemu_args {
        if argument.starts_with("virtio-net-pci") {
            argument.push_str(",packed=on");
        }
    }
    for argument in specs.iter_mut().flat_map(|spec| &mut spec.plug.qemu_args) {
        if setup.keeper && argument.starts_with("socket,") {
            let (plain, _) = argument.split_once(",reconnect").unwrap_or((argument.as_str(), ""));
            *argument = plain.to_owned();
        }
    }
    let [mut packed, mut split, mut idle] = boot_specs(lab, &specs, weir.dir())?;
    iperf::serve(&mut packed, iperf::PORT)?;
    iperf::serve(&mut split, iperf::PORT)?;
    ping(&mut packed, &address::ip(1))?;

    weir.crash_and_restart()?;
    // The guests' rings continue at their last position.
    ping(&mut packed, &address::ip(1))?;
    ping(&mut split, &address::ip(0))?;

    let to = |index| Tcp::to(address::ip(index), TRANSFER_SECONDS);
    let from_packed = packed.start(&to(1).argv().join(" "))?;
    let from_split = split.start(&to(0).argv().join(" "))?;
    for _ in 0..KILLS {
        thread::sleep(TRAFFIC);
        weir.crash_and_restart()?;
        ping(&mut idle, &address::ip(0))?;
        ping(&mut idle, &address::ip(1))?;
    }
    for (guest, transfer) in [(&mut packed, from_packed), (&mut split, from_split)] {
        let report = guest.finish(transfer, to(0).patience())?;
        let last = Transfer::parse(&report)?.interval_bytes.pop();
        check(last.is_some_and(|bytes| bytes > 0.0), || {
            format!("nothing flowed at last: {report}")
        })?;
    }
    Tcp::to(address::ip(1), FLOWS_SECONDS).run(&mut packed)?;
    Tcp::to(address::ip(0), FLOWS_SECONDS).run(&mut split)?;
    for guest in [&mut packed, &mut split, &mut idle] {
        no_wrong_chains(guest)?;
    }
    weir.check_alive()?;
    Ok(weir.log())
}

/// QEMU listens on a socket that nobody has named to weir.
pub(super) fn interface_of_a_monitor_that_listens_comes_outlives_weir_and_goes(
    lab: &Lab,
) -> Result<()> {
    let setup = Setup { keeper: true, on_demand: true, ..Setup::vifs(1) };
    let mut weir = Weir::start(lab, &setup)?;
    let monitors = weir.dir().join(MONITORS);
    fs::create_dir(&monitors).map_err(Error::io("make", &monitors))?;
    let socket = monitors.join("vm-1.sock");
    let mut listens = GuestSpec { cidr: address::cidr(1), ..guest_spec(&weir, 0)? };
    listens.name = "vm-1".into();
    for argument in &mut listens.plug.qemu_args {
        match argument.split_once(",path=") {
            Some((id, _)) => {
                *argument = format!("{id},path={},server=on,wait=off", socket.display());
            }
            None => *argument = argument.replace(&address::mac(0_u8), &address::mac(1_u8)),
        }
    }
    let [mut plugged, mut listens] =
        boot_specs(lab, &[guest_spec(&weir, 0)?, listens], weir.dir())?;
    ping(&mut listens, &address::ip(0))?;
    ping(&mut plugged, &address::ip(1))?;
    let list = weir.control(&["vif", "list"])?;
    let row = list.lines().find(|line| line.starts_with("vm-1")).unwrap_or_default();
    check(row.contains("running") && row.contains("on-demand:vm-*"), || list.clone())?;

    for _ in 0..KILLS {
        weir.crash_and_restart()?;
        ping(&mut listens, &address::ip(0))?;
        ping(&mut plugged, &address::ip(1))?;
    }
    weir.upgrade()?;
    ping(&mut listens, &address::ip(0))?;
    let log = weir.log();
    let connected = log.matches("front end connected").count();
    check(connected == 2, || format!("2 guests have connected {connected} times:\n{log}"))?;

    // The monitor's socket stays, as QEMU has no time to remove it.
    listens.kill();
    let gone = || Ok(!weir.control(&["vif", "list"])?.contains("vm-1"));
    wait_until("a killed monitor's interface is gone", LOG_PATIENCE, gone)?;
    check(socket.exists(), || "QEMU's socket is gone".into())?;
    ping(&mut plugged, &address::ip(0))?;
    weir.check_alive()?;
    weir.stop()
}

fn no_wrong_chains(guest: &mut Guest) -> Result<()> {
    let count = guest.run(WRONG_CHAINS, LOG_PATIENCE)?;
    check(count.trim() == "0", || format!("chains came back that were not in flight: {count}"))
}

/// The port of the victim's server.
const OTHER_PORT: u16 = 5202;

/// Guests 0 and 1 transfer for this long. Guest 2 also sends to guest 1, until it is killed.
const TRANSFER_BESIDE_SECONDS: u64 = 4;
const KILL_AFTER: Duration = Duration::from_secs(2);

pub(super) fn killed_guest_disturbs_nobody_and_its_socket_serves_again(lab: &Lab) -> Result<()> {
    let mut weir = Weir::start(lab, &Setup::vifs(3))?;
    let [mut client, mut server, mut victim] = boot(lab, &weir)?;
    iperf::serve(&mut server, iperf::PORT)?;
    iperf::serve(&mut server, OTHER_PORT)?;

    let tcp = Tcp::to(address::ip(1), TRANSFER_BESIDE_SECONDS);
    let transfer = client.start(&tcp.argv().join(" "))?;
    let doomed = Tcp { port: OTHER_PORT, ..Tcp::to(address::ip(1), 10 * TRANSFER_BESIDE_SECONDS) };
    let _never_finished = victim.start(&doomed.argv().join(" "))?;
    thread::sleep(KILL_AFTER);
    let sent_by_victim: u64 =
        weir.stats()?.frames_by_queue("vif2", weir_bed::weir_stats::Way::Tx)?.iter().sum();
    check(sent_by_victim > 100, || format!("the victim had sent only {sent_by_victim} frames"))?;
    victim.kill();

    let transfer = Transfer::parse(&client.finish(transfer, tcp.patience())?)?;
    let intervals = &transfer.interval_bytes;
    check(intervals.len() as u64 >= TRANSFER_BESIDE_SECONDS, || {
        format!("intervals: {intervals:?}")
    })?;
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
