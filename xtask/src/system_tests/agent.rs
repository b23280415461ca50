//! The agent in a real guest: it does what weir's manager asks for, and never leaves it behind.

use std::time::Duration;

use super::{boot, guests::ping};
use crate::{
    address,
    error::{Error, Result, check},
    lab::Lab,
    process::wait_until,
    qemu::{AGENT_LOG, Guest},
    weir::{Setup, Vif, Weir},
};

/// Three seconds of silence, a second until QEMU connects again, a second until the agent speaks; and the
/// time that a guest without KVM takes for it.
const PATIENCE: Duration = Duration::from_secs(30);
const COMMAND: Duration = Duration::from_secs(10);

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
    await_timer(&mut guest, &weir, true)?;
    ping(&mut other, &address::ip(0))?;
    let explained = weir.explain(0u8)?;
    check(explained.contains("guest polls by"), || format!("weir explain says:\n{explained}"))?;

    weir.set(0u8, INTERRUPTED)?;
    await_timer(&mut guest, &weir, false)?;
    weir.set(0u8, POLLING)?;
    await_timer(&mut guest, &weir, true)?;

    // Nobody is there any more to say what is wanted.
    weir.crash();
    await_timer(&mut guest, &weir, false)?;
    weir.restart()?;
    await_timer(&mut guest, &weir, true)?;
    ping(&mut other, &address::ip(0))?;
    guest.run("killall weir-agent", COMMAND)?;
    await_timer(&mut guest, &weir, false)?;
    weir.check_alive()
}

/// The interval at which the guest polls (ns); 0: it takes interrupts.
fn timer(guest: &mut Guest) -> Result<u64> {
    let text = guest.run("cat /sys/class/net/eth0/gro_flush_timeout", COMMAND)?;
    // QEMU's own words about a weir that is gone may come before.
    let last = text.lines().last().unwrap_or_default();
    last.trim().parse().map_err(|_| Error::parse("a number", text.as_str()))
}

/// Waits until the guest polls, or does not.
fn await_timer(guest: &mut Guest, weir: &Weir, on: bool) -> Result<()> {
    let what = format!("the guest's timer to be {}", if on { "on" } else { "off" });
    let waited = wait_until(&what, PATIENCE, || Ok((timer(guest)? > 0) == on));
    waited.map_err(|error| {
        let agent = guest.run(&format!("cat {AGENT_LOG}"), COMMAND).unwrap_or_default();
        let explained = weir.explain(0u8).unwrap_or_default();
        Error::Check(format!("{error}\nthe agent's log:\n{agent}\nweir explain says:\n{explained}"))
    })
}
