//! The agent in a guest: it does what weir's manager requests, and undoes it in every case.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use weir_bed::{
    address,
    error::{Error, Result, check},
    lab::Lab,
    pktgen::{self, Pace},
    process::wait_until,
    qemu::{AGENT_LOG, Guest},
    weir::{Setup, Vif, Weir},
};

use super::{boot, traffic::ping};

/// Three seconds of silence, a second until QEMU reconnects, a second until the agent sends; and the slowness of a
/// guest without KVM.
const PATIENCE: Duration = Duration::from_secs(30);
const COMMAND: Duration = Duration::from_secs(10);

/// Twenty datagrams per latency budget, a rate that an emulated guest can receive.
const DATAGRAMS_PER_SECOND: u32 = 10_000;
const SEND_SECONDS: u64 = 5;
const SENDS_MAX: u32 = 5;

const POLLING: &str = "moderation=frontend";
const INTERRUPTED: &str = "moderation=immediate";

pub(super) fn agent_sets_and_always_restores_the_guests_timer(lab: &Lab) -> Result<()> {
    let vif = Vif {
        moderation: Some("frontend"),
        latency_budget: Some("1ms"),
        agent: true,
        ..Vif::default()
    };
    let setup = Setup { vifs: vec![vif, Vif::default()], ..Setup::default() };
    let mut weir = Weir::start(lab, &setup)?;
    let [mut guest, mut other] = boot(lab, &weir)?;
    check(timer(&mut guest)? == 0, || "a guest's timer is off before anybody sets it".into())?;
    guest.start_agent()?;
    await_timer(&mut guest, &weir, 0, true)?;
    ping(&mut other, &address::ip(0))?;
    let explained = weir.explain(0u8)?;
    check(explained.contains("guest polls by"), || format!("weir explain says:\n{explained}"))?;

    weir.set(0u8, INTERRUPTED)?;
    await_timer(&mut guest, &weir, 0, false)?;
    weir.set(0u8, POLLING)?;
    await_timer(&mut guest, &weir, 0, true)?;

    // No weir is connected to make requests.
    weir.crash();
    await_timer(&mut guest, &weir, 0, false)?;
    weir.restart()?;
    await_timer(&mut guest, &weir, 0, true)?;
    ping(&mut other, &address::ip(0))?;
    guest.end_agent()?;
    await_timer(&mut guest, &weir, 0, false)?;
    weir.check_alive()
}

/// Under `auto` no setting makes a guest poll: weir finds that it may, and stops it when no datagrams come.
pub(super) fn auto_has_a_guest_poll_while_datagrams_come(lab: &Lab) -> Result<()> {
    let vif = Vif { latency_budget: Some("2ms"), agent: true, ..Vif::default() };
    let setup = Setup { vifs: vec![Vif::default(), vif], ..Setup::default() };
    let mut weir = Weir::start(lab, &setup)?;
    let [mut sender, mut guest] = boot(lab, &weir)?;
    guest.start_agent()?;
    wait_until("weir to hear of the agent", PATIENCE, || weir.hears_agent(1_u16))?;

    // Other load of the machine may spoil a trial. The trial is repeated.
    let polled = (0..SENDS_MAX).try_fold(false, |polled, _| match polled {
        true => Ok(true),
        false => polls_while_sending(&weir, &mut sender, &mut guest),
    })?;
    check(polled, || format!("it never polled; weir explain says:\n{}", explained(&weir)))?;
    await_timer(&mut guest, &weir, 1, false)?;
    ping(&mut sender, &address::ip(1))?;
    weir.check_alive()
}

/// Sends datagrams for some seconds. Returns true if the guest polled meanwhile.
fn polls_while_sending(weir: &Weir, sender: &mut Guest, guest: &mut Guest) -> Result<bool> {
    let sent = AtomicBool::new(false);
    thread::scope(|scope| {
        let watching = scope.spawn(|| {
            let mut polled = false;
            while !(polled || sent.load(Ordering::Relaxed)) {
                let explained = explained(weir);
                polled =
                    explained.contains("guest polls by ") && !explained.contains("by no timer");
                thread::sleep(Duration::from_millis(50));
            }
            polled
        });
        let pace = Pace::PerSecond(DATAGRAMS_PER_SECOND);
        let result = pktgen::send(sender, guest, pace, 64, SEND_SECONDS);
        sent.store(true, Ordering::Relaxed);
        let polled = watching.join().unwrap_or_default();
        result.map(|_| polled)
    })
}

fn explained(weir: &Weir) -> String {
    weir.explain(1u8).unwrap_or_default()
}

/// The interval at which the guest polls (ns). At 0 the guest uses interrupts.
fn timer(guest: &mut Guest) -> Result<u64> {
    let text = guest.run("cat /sys/class/net/eth0/gro_flush_timeout", COMMAND)?;
    // QEMU's messages about a disconnected weir may come first.
    let last = text.lines().last().unwrap_or_default();
    last.trim().parse().map_err(|_| Error::parse("a number", text.as_str()))
}

/// Waits until the guest polls (`on`) or does not.
fn await_timer(guest: &mut Guest, weir: &Weir, index: u8, on: bool) -> Result<()> {
    let what = format!("the guest's timer to be {}", if on { "on" } else { "off" });
    let waited = wait_until(&what, PATIENCE, || Ok((timer(guest)? > 0) == on));
    waited.map_err(|error| {
        let agent = guest.run(&format!("cat {AGENT_LOG}"), COMMAND).unwrap_or_default();
        let explained = weir.explain(index).unwrap_or_default();
        Error::Check(format!("{error}\nthe agent's log:\n{agent}\nweir explain says:\n{explained}"))
    })
}
