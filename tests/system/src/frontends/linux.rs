//! The steps of a front end that runs a Linux guest.
//!
//! Front ends without a network stack: user-space guests that answer ARP and ping, fragments included.

use std::{collections::BTreeMap, time::Duration};

use weir_bed::{
    address,
    error::{Error, Result, check},
    iperf::{Direction, Tcp},
    process::{Placement, Process},
    qemu::Guest,
    weir::{self, Vif, Weir},
    weir_stats::Stats,
};

use super::{
    bed::{Bed, PARTNER, TESTED, await_running},
    qemu_cells::stop,
    record::{Record, Step, Verdict},
};
use crate::guests::traffic::{no_checksum_errors, send_file};

/// Longest time for a command in a guest.
const PATIENCE: Duration = Duration::from_secs(30);

/// Duration of a transfer that must flow at any rate.
const FLOWS_SECONDS: u64 = 2;

/// Below the largest payload that the tools' echo requests can have, 65,507 bytes.
pub const FRAGMENTED_BYTES: u32 = 65_000;

/// A drop counter, and the reason why frames may be in it.
pub type Explanation = (&'static str, &'static str);

/// Drops that are no fault.
const EXPLAINED: &[Explanation] = &[
    ("rx_not_ready", "for a guest whose driver had not started yet, or that was connecting again"),
    ("rx_waited_too_long", "the receiving VM was not run for 100 ms by this machine"),
];

/// Files between guests, in mebibytes.
const FILE_MEBIBYTES: u32 = 8;

/// The streams of a cell.
#[derive(Clone, Copy, Debug)]
pub enum Streams {
    /// The streams of iperf3, which shows a rate.
    Rate,
    /// Files whose digests are compared, for guests without iperf3.
    Files,
}

/// A virtio feature that a cell tests.
#[derive(Clone, Copy, Debug)]
pub struct Feature {
    /// The bit (virtio 1.2 §6 and §5.1.3).
    pub bit: usize,
    /// The feature's name in the table.
    pub name: &'static str,
}

/// The expected state of a guest.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// Queue pairs that the guest's driver uses.
    pub queues: usize,
    /// Features that the driver uses.
    pub present: &'static [Feature],
    /// Features that the driver does not use.
    pub absent: &'static [Feature],
    /// The streams that the guest can send.
    pub streams: Streams,
}

/// The way by which a front end returns to a switch that was killed and started again.
pub enum Return<'a> {
    /// The front end reconnects.
    ByItself,
    /// The front end does not reconnect. The function starts another one.
    StartedAgain(&'a mut dyn FnMut(&Weir) -> Result<Guest>),
}

/// Runs all steps, with `partner` at the other end.
pub fn try_out(
    weir: &mut Weir,
    partner: &mut Guest,
    mut guest: Guest,
    expected: &Expected,
    returns: Return<'_>,
    record: &mut Record,
) -> Result<()> {
    record.step(Step::Link, || {
        await_running(weir, &[PARTNER, TESTED])?;
        link(&mut guest, expected)
    })?;
    record.step(Step::Ping, || pings(&mut guest, partner))?;
    record.step(Step::Fragments, || fragments(&mut guest, partner))?;
    record.step(Step::Tcp, || tcp(&mut guest, partner, expected.streams))?;
    let before = weir.stats()?;
    record.step(Step::Reconnect, || {
        weir.crash();
        weir.launch_again()?;
        let word = match returns {
            Return::ByItself => "by itself",
            Return::StartedAgain(start) => {
                drop(guest);
                guest = start(weir)?;
                "started again"
            }
        };
        await_running(weir, &[PARTNER, TESTED])?;
        pings(&mut guest, partner)?;
        fragments(&mut guest, partner)?;
        tcp(&mut guest, partner, expected.streams)?;
        Ok(word.into())
    })?;
    record.step(Step::Drops, || drops(&[before, weir.stats()?], &weir::name(TESTED), &[]))?;
    weir.check_alive()
}

/// Checks the carrier, the features and the queues.
fn link(guest: &mut Guest, expected: &Expected) -> Result<String> {
    let carrier = guest.run("cat /sys/class/net/eth0/carrier", PATIENCE)?;
    check(carrier.trim() == "1", || format!("the guest's carrier is {carrier}"))?;
    let features = guest.run("cat /sys/class/net/eth0/device/features", PATIENCE)?;
    let has = |feature: &Feature| features.as_bytes().get(feature.bit) == Some(&b'1');
    for feature in expected.present {
        check(has(feature), || format!("{} was not negotiated: {features}", feature.name))?;
    }
    for feature in expected.absent {
        check(!has(feature), || format!("{} was negotiated: {features}", feature.name))?;
    }
    let queues = guest.run("ls -d /sys/class/net/eth0/queues/rx-*", PATIENCE)?;
    let queues = queues.split_whitespace().count();
    let cpus = guest.run("nproc", PATIENCE)?;
    check(queues == expected.queues, || {
        format!("{queues} queue pairs with {} CPUs that came up", cpus.trim())
    })?;
    let names: Vec<_> = expected.present.iter().map(|feature| feature.name).collect();
    Ok(if names.is_empty() { String::from("up") } else { names.join(" ") })
}

fn pings(guest: &mut Guest, partner: &mut Guest) -> Result<String> {
    echo(guest, PARTNER, None)?;
    echo(partner, TESTED, None)?;
    Ok("both ways".into())
}

fn fragments(guest: &mut Guest, partner: &mut Guest) -> Result<String> {
    echo(guest, PARTNER, Some(FRAGMENTED_BYTES))?;
    echo(partner, TESTED, Some(FRAGMENTED_BYTES))?;
    Ok("both ways".into())
}

/// Three echo requests from `from`, each of which must be answered.
pub fn echo(from: &mut Guest, to: u8, payload_bytes: Option<u32>) -> Result<()> {
    let size = payload_bytes.map(|bytes| format!("-s {bytes} ")).unwrap_or_default();
    let command = format!("ping -c 3 -i 0.1 -W 5 {size}{}", address::ip(to));
    let printed = from.run(&command, PATIENCE)?;
    check(printed.contains(" 3 packets received"), || printed)
}

fn tcp(guest: &mut Guest, partner: &mut Guest, streams: Streams) -> Result<String> {
    if matches!(streams, Streams::Files) {
        send_file(guest, partner, PARTNER, FILE_MEBIBYTES)?;
        send_file(partner, guest, TESTED, FILE_MEBIBYTES)?;
        return Ok("files".into());
    }
    let mut reached = Vec::new();
    for direction in [Direction::ToServer, Direction::ToClient] {
        let tcp = Tcp { direction, ..Tcp::to(address::ip(PARTNER), FLOWS_SECONDS) };
        let transfer = tcp.run(guest)?;
        check(transfer.bits_per_second > crate::TCP_BITS_PER_SECOND_MIN, || {
            format!(
                "{direction:?}: only {:.4} Gbit/s, bytes by second {:?}",
                transfer.gbit_per_second(),
                transfer.interval_bytes
            )
        })?;
        reached.push(format!("{:.2}", transfer.gbit_per_second()));
    }
    no_checksum_errors(guest)?;
    no_checksum_errors(partner)?;
    Ok(format!("{} Gbit/s", reached.join(" / ")))
}

/// The frames that a cell's switches dropped, with the reasons; an error if a counter is neither explained nor in
/// `more`.
pub fn drops(of: &[Stats], tested: &str, more: &[Explanation]) -> Result<String> {
    let mut all: BTreeMap<(String, String), u64> = BTreeMap::new();
    for stats in of {
        for (at, count) in stats.drops()? {
            *all.entry(at).or_default() += count;
        }
        let reason = stats.stopped_reason(tested)?;
        check(reason.is_none(), || format!("the port was stopped: {reason:?}"))?;
    }
    if all.is_empty() {
        return Ok("0".into());
    }
    let mut words = Vec::new();
    for ((port, reason), count) in &all {
        let explained = EXPLAINED.iter().chain(more).find(|(name, _)| name == reason);
        let (_, why) = explained
            .ok_or_else(|| Error::Check(format!("unexplained drops: {port} {reason} {count}")))?;
        words.push(format!("{count} `{reason}` at {port}: {why}"));
    }
    Ok(words.join("; "))
}

/// The example's argument for packed rings.
const PACKED: Option<&str> = Some("packed");

/// weir's own `vif` crate.
pub fn vif(bed: &mut Bed<'_>, record: &mut Record) -> Result<Verdict> {
    run(bed, record, "guests", &["answer"], None)
}

/// weir's `vif` crate with packed rings.
pub fn vif_packed(bed: &mut Bed<'_>, record: &mut Record) -> Result<Verdict> {
    run(bed, record, "guests", &["answer"], PACKED)
}

/// The front end of rust-vmm's `vhost` crate.
pub fn vhost_crate(bed: &mut Bed<'_>, record: &mut Record) -> Result<Verdict> {
    run(bed, record, "vhost_crate", &[], None)
}

/// The front end of rust-vmm's `vhost` crate with packed rings.
pub fn vhost_crate_packed(bed: &mut Bed<'_>, record: &mut Record) -> Result<Verdict> {
    run(bed, record, "vhost_crate", &[], PACKED)
}

/// Runs the example `name` with a command, if it has several. `rings` is its argument for rings that are not split.
fn run(
    bed: &mut Bed<'_>,
    record: &mut Record,
    name: &str,
    command: &[&str],
    rings: Option<&str>,
) -> Result<Verdict> {
    let (mut weir, mut partner) = bed.set_up(&[Vif::default()])?;
    let example = bed.programs.example(name);
    let (example, socket) = (example.to_string_lossy(), weir.socket(TESTED)?);
    let (socket, mac, ip) = (socket.to_string_lossy(), address::mac(TESTED), address::ip(TESTED));
    let arguments = [&*socket, mac.as_str(), ip.as_str()];
    let argv = [&[&*example], command, &arguments, rings.as_slice()].concat();
    let log = weir.dir().join(format!("{name}.log"));
    let mut process = Process::start_logged(&argv, &Placement::default(), &log)?;
    record.step(Step::Link, || {
        await_running(&mut weir, &[PARTNER, TESTED])?;
        Ok(rings.unwrap_or("split").to_owned())
    })?;
    record.step(Step::Ping, || echo(&mut partner, TESTED, None).map(|()| "answers".into()))?;
    let large = Some(FRAGMENTED_BYTES);
    record
        .step(Step::Fragments, || echo(&mut partner, TESTED, large).map(|()| "answers".into()))?;
    record.leave_out(Step::Tcp, "the program behind it answers ARP and ping and has no TCP");
    let before = weir.stats()?;
    record.step(Step::Reconnect, || {
        weir.crash();
        weir.launch_again()?;
        await_running(&mut weir, &[PARTNER, TESTED])?;
        echo(&mut partner, TESTED, None)?;
        echo(&mut partner, TESTED, large)?;
        Ok("by itself".into())
    })?;
    record.step(Step::Drops, || drops(&[before, weir.stats()?], &weir::name(TESTED), &[]))?;
    process.check_alive()?;
    bed.give_back(partner);
    stop(weir)
}
