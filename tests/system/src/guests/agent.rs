//! The agent in a guest: it does what weir's manager requests, and undoes it in every case.
//!
//! The papers' policies are tried with Linux guests, too: the interrupts that the receiver counts are compared with
//! those of a call for each batch in the same run.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use weir_bed::{
    address,
    error::{Error, Result, check},
    iperf,
    lab::Lab,
    pktgen::{self, Look, Pace},
    process::wait_until,
    qemu::{AGENT_LOG, Guest},
    weir::{Setup, Vif, Weir},
};

use super::{boot, traffic::ping};

/// The time includes three seconds of silence, a second until QEMU reconnects, a second until the
/// agent sends, and the slowness of a guest without KVM.
const PATIENCE: Duration = Duration::from_secs(30);
const COMMAND: Duration = Duration::from_secs(10);

/// Twenty datagrams per latency budget, a rate that an emulated guest can receive.
const DATAGRAMS_PER_SECOND: u32 = 10_000;
const SEND_SECONDS: u64 = 5;
const SENDS_MAX: u32 = 5;

const POLLING: &str = "moderation=frontend";
const INTERRUPTED: &str = "moderation=immediate";

/// A few datagrams per millisecond. A guest that is never idle takes no interrupts under any policy.
const SPARSE_DATAGRAMS_PER_SECOND: u32 = 4_000;
const COUNT_SECONDS: u64 = 1;
/// Other load of the machine can keep a guest busy, which then takes no interrupts. Such a measurement is repeated.
const COUNTS_MAX: u32 = 4;
/// A policy saves interrupts if at most this share of those of `immediate` is left.
const LEFT_MAX: f64 = 0.8;

/// A flow of Dong 2011 §5.2, with packets or writes of 50 or 1,472 bytes.
#[derive(Clone, Copy, Debug)]
enum Flow {
    Udp { payload_bytes: u32 },
    Tcp { write_bytes: u32, mebibytes: u32 },
}

const FLOWS: [Flow; 4] = [
    Flow::Udp { payload_bytes: 50 },
    Flow::Udp { payload_bytes: 1472 },
    Flow::Tcp { write_bytes: 50, mebibytes: 2 },
    Flow::Tcp { write_bytes: 1472, mebibytes: 64 },
];

impl Flow {
    /// Sends the flow. Returns the receiver's interrupts: per packet for UDP, and in all for TCP,
    /// which sends the same number of bytes each time.
    fn interrupts(self, sender: &mut Guest, receiver: &mut Guest) -> Result<f64> {
        /// Headers of UDP, IP and Ethernet, and the check sequence.
        const HEADERS: u32 = 8 + 20 + 14 + 4;
        match self {
            Self::Udp { payload_bytes } => {
                let pace = Pace::PerSecond(SPARSE_DATAGRAMS_PER_SECOND);
                let frame_bytes = payload_bytes + HEADERS;
                let sent = pktgen::send(sender, receiver, pace, frame_bytes, COUNT_SECONDS)?;
                check(sent.arrived > 0.5, || format!("{self:?}: {} of all arrived", sent.arrived))?;
                Ok(sent.received.interrupts_per_packet)
            }
            Self::Tcp { write_bytes, mebibytes } => {
                let before = Look::at(receiver)?.interrupts;
                // A server does not listen for a moment after each test.
                let send = format!(
                    "i=0; until iperf3 -c {} -n {mebibytes}M -l {write_bytes} >/tmp/iperf 2>&1; do \
                     [ $((i+=1)) -lt 50 ] || {{ cat /tmp/iperf; exit 1; }}; sleep 0.1; done",
                    address::ip(1)
                );
                sender.run(&send, PATIENCE * 4)?;
                Ok(Look::at(receiver)?.interrupts - before)
            }
        }
    }
}

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

/// Under `auto`, no setting makes a guest poll. weir decides that the guest may poll, and ends the
/// polling when no datagrams arrive.
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

/// Dong 2011 §5.2 has three ways to save interrupts: the back end holds them (BVIC), the guest
/// polls (FVIC), or frames are held for the time that the uplink leaves. Each way takes fewer
/// interrupts than a call for each batch, with UDP and TCP of small and large packets.
pub(super) fn each_way_to_coalesce_saves_a_linux_guests_interrupts(lab: &Lab) -> Result<()> {
    const WAYS: [&str; 3] = ["moderation=backend", POLLING, "moderation=two-layer"];
    // The paper's guests poll a thousand times a second.
    let vif = Vif {
        moderation: Some("immediate"),
        latency_budget: Some("1ms"),
        agent: true,
        ..Vif::default()
    };
    let setup = Setup { vifs: vec![Vif::default(), vif], ..Setup::default() };
    let mut weir = Weir::start(lab, &setup)?;
    let [mut sender, mut guest] = boot(lab, &weir)?;
    guest.start_agent()?;
    wait_until("weir to hear of the agent", PATIENCE, || weir.hears_agent(1_u16))?;
    iperf::serve(&mut guest, iperf::PORT)?;
    for flow in FLOWS {
        fewer_than_immediate(&format!("{flow:?}"), &WAYS, |way| {
            weir.set(1_u8, way)?;
            await_timer(&mut guest, &weir, 1, way == POLLING)?;
            flow.interrupts(&mut sender, &mut guest)
        })?;
    }
    weir.check_alive()
}

/// Thakur 2014 §III and §V: containers save a Linux guest interrupts. At a low rate, each packet
/// waits for a fixed timeout, and none waits for an adaptive timeout.
pub(super) fn containers_save_a_linux_guests_interrupts_and_adapt_to_a_low_rate(
    lab: &Lab,
) -> Result<()> {
    const FIXED: &str = "moderation=aggregate";
    const ADAPTIVE: &str = "moderation=aggregate-adaptive";
    // A container is full long before this timeout, and a lone packet can wait for it.
    let vif = Vif { latency_budget: Some("50ms"), ..Vif::default() };
    let setup = Setup { vifs: vec![Vif::default(), vif], ..Setup::default() };
    let mut weir = Weir::start(lab, &setup)?;
    let [mut sender, mut guest] = boot(lab, &weir)?;
    for flow in &FLOWS[..2] {
        fewer_than_immediate(&format!("{flow:?}"), &[FIXED, ADAPTIVE], |way| {
            weir.set(1_u8, way)?;
            flow.interrupts(&mut sender, &mut guest)
        })?;
    }
    let mut shortest = |way: &str| {
        weir.set(1_u8, way)?;
        shortest_round_trip_ms(&mut sender)
    };
    let [at_once, fixed, adaptive] =
        [shortest(INTERRUPTED)?, shortest(FIXED)?, shortest(ADAPTIVE)?];
    check(at_once < fixed && adaptive < fixed, || {
        format!("shortest round trips: {at_once} ms at once, {fixed} fixed, {adaptive} adaptive")
    })?;
    weir.check_alive()
}

/// Fails if a guest takes hardly fewer interrupts in one of `ways` than under `immediate`.
fn fewer_than_immediate(
    what: &str,
    ways: &[&str],
    mut interrupts: impl FnMut(&str) -> Result<f64>,
) -> Result<()> {
    let mut counted = Vec::new();
    for _ in 0..COUNTS_MAX {
        let immediate = interrupts(INTERRUPTED)?;
        let all: Vec<_> = ways.iter().map(|way| interrupts(way)).collect::<Result<_>>()?;
        println!("{what}: interrupts {immediate:.3} immediate, {all:.3?} {ways:?}");
        if all.iter().all(|left| *left < LEFT_MAX * immediate) {
            return Ok(());
        }
        counted.push((immediate, all));
    }
    Err(Error::Check(format!("{what}, {ways:?}: interrupts (immediate, others): {counted:?}")))
}

/// The shortest round trip of some echo requests that are far apart (ms).
fn shortest_round_trip_ms(guest: &mut Guest) -> Result<f64> {
    let ping = format!("ping -c 10 -i 0.2 -W 5 {}", address::ip(1));
    let printed = guest.run(&ping, PATIENCE)?;
    let times = printed.split_once("min/avg/max").and_then(|(_, rest)| rest.split_once('='));
    let shortest = times.and_then(|(_, times)| times.trim().split('/').next()?.parse().ok());
    shortest.ok_or_else(|| Error::parse("round trips", printed))
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
