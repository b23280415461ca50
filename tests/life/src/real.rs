//! Linux guests, and their reports of lost, repeated and wrong data.

use std::{thread, time::Duration};

use weir_bed::{
    address,
    error::{Error, Result, check},
    lab::Lab,
    lines,
    qemu::{Guest, GuestSpec},
    report::Goal,
    switch::Switch as _,
    weir::{self, Setup, Vif, Weir},
};

use crate::{bars::Bars, random::Random};

const PATIENCE: Duration = Duration::from_secs(60);
const PORT: u16 = 5000;
const TRAFFIC: Duration = Duration::from_secs(1);
/// Echo requests per kill, and seconds between two requests.
const ECHOES: u32 = 50;
const ECHO_INTERVAL: f64 = 0.02;
/// Counts Linux's messages about returned chains that it had not made available.
const WRONG_CHAINS: &str = "dmesg | grep -c -e 'is not a head' -e 'out of range' || true";
/// Kills of weir for each upgrade, under guests in a security group.
const KILLS_OF_AN_UPGRADE: u32 = 5;
/// A security group for both guests: each gets the connections of the other's lines, and nothing else.
pub const RULES: &str = "[{ direction = \"in\", protocol = \"tcp\", ports = \"5000\" }]";

/// Reports of guests.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Echo requests.
    pub sent: u64,
    /// Requests without an answer.
    pub lost: u64,
    /// Repeated answers.
    pub repeated: u64,
    /// Returned chains that the guest had not made available.
    pub wrong_chains: u64,
    /// Lines over TCP.
    pub lines: u64,
    /// Lines out of order.
    pub wrong_lines: u64,
}

/// Counts the returned chains that `guest` had not made available.
pub fn wrong_chains(guest: &mut Guest) -> Result<u64> {
    let count = guest.run(WRONG_CHAINS, PATIENCE)?;
    count.trim().parse().map_err(|_| Error::parse("a number of chains", count))
}

/// Returns the command for `count` echo requests to `ip`.
pub fn echo(ip: &str, count: u32, interval: f64) -> String {
    format!("ping -q -c {count} -i {interval} -W 10 {ip} || true")
}

/// Parses the command's output: sent, answered, and repeatedly answered requests.
pub fn echoed(printed: &str) -> Result<[u64; 3]> {
    let number = |name: &str| {
        let words = printed.split(',').find(|part| part.contains(name))?;
        words.lines().last()?.split_whitespace().next()?.parse().ok()
    };
    let counts = || Some([number("transmitted")?, number("packets received")?]);
    let [sent, answered] = counts().ok_or_else(|| Error::parse("a ping's counts", printed))?;
    Ok([sent, answered, number("duplicates").unwrap_or(0)])
}

/// Returns the specification of guest `index`, with `device` appended to its device's options.
pub fn spec(weir: &Weir, index: u8, queues: u8, device: &str) -> Result<GuestSpec> {
    let mut plug = weir.plug(index)?;
    for argument in &mut plug.qemu_args {
        if argument.starts_with("virtio-net-pci") {
            argument.push_str(device);
        }
    }
    Ok(GuestSpec { name: weir::name(index), cidr: address::cidr(index), vcpus: queues, plug })
}

/// Runs two guests in QEMU, one with split and one with packed rings, under a weir that is killed
/// `kills` times.
pub fn killed(lab: &Lab, queues: u8, kills: u32, random: &mut Random) -> Result<Seen> {
    let (mut weir, [mut split, mut packed]) = talk(lab, queues, None)?;
    let mut seen = Seen::default();
    let command = echo(&address::ip(1), ECHOES, ECHO_INTERVAL);
    for _ in 0..kills {
        let started = split.start(&command)?;
        thread::sleep(random.pause(TRAFFIC));
        weir.crash();
        weir.launch_again()?;
        let [sent, answered, repeated] = echoed(&split.finish(started, PATIENCE)?)?;
        seen.sent += sent;
        seen.lost += sent - answered;
        seen.repeated += repeated;
    }
    for guest in [&mut split, &mut packed] {
        let before = lines::seen(guest, PORT)?[0];
        thread::sleep(2 * TRAFFIC);
        let [now, wrong] = lines::seen(guest, PORT)?;
        check(now > before, || format!("a connection stands still after {now} lines"))?;
        seen.lines += now;
        seen.wrong_lines += wrong;
        seen.wrong_chains += wrong_chains(guest)?;
    }
    let connected = weir.log().matches("front end connected").count();
    check(connected == 2, || format!("2 guests have connected {connected} times"))?;
    weir.check_alive()?;
    Ok(seen)
}

/// Starts a weir with a keeper and two guests, one with split and one with packed rings, and a connection in each
/// direction.
fn talk(lab: &Lab, queues: u8, group: Option<&'static str>) -> Result<(Weir, [Guest; 2])> {
    let vif = Vif { queues: (queues > 1).then_some(queues), ..Vif::default() };
    let vifs = vec![vif; 2];
    let setup = Setup { vifs, group, keeper: true, workers: Some(2), ..Setup::default() };
    let weir = Weir::start(lab, &setup)?;
    let mut specs = [spec(&weir, 0, queues, "")?, spec(&weir, 1, queues, ",packed=on")?];
    for argument in specs.iter_mut().flat_map(|spec| &mut spec.plug.qemu_args) {
        if let Some((plain, _)) = argument.split_once(",reconnect") {
            *argument = plain.to_owned();
        }
    }
    let guests = Guest::boot_all(&lab.image, &specs, weir.dir())?;
    let mut guests = <[Guest; 2]>::try_from(guests)
        .map_err(|_| Error::Check("two guests were to boot".into()))?;
    let [split, packed] = &mut guests;
    lines::begin(split, packed, &address::ip(1), PORT)?;
    lines::begin(packed, split, &address::ip(0), PORT)?;
    Ok((weir, guests))
}

/// Kills and upgrades weir, which forgets the connections of its security groups each time. Both connections have to go
/// on, and what the group closes has to stay closed.
pub fn in_groups(lab: &Lab, events: u32, seed: u64, bars: &mut Bars) -> Result<()> {
    let mut random = Random::new(seed);
    let (mut weir, mut guests) = talk(lab, 1, Some(RULES))?;
    let (mut before, [mut kills, mut upgrades, mut lost]) = ([0; 2], [0; 3]);
    for event in 0..=events {
        for (guest, before) in guests.iter_mut().zip(&mut before) {
            lost += u32::from(!lines::go_on(guest, PORT, before)?);
        }
        if event == events || lost > 0 {
            break;
        }
        thread::sleep(random.pause(TRAFFIC / 4));
        if event % (KILLS_OF_AN_UPGRADE + 1) == KILLS_OF_AN_UPGRADE {
            weir.upgrade()?;
            upgrades += 1;
        } else {
            weir.crash();
            weir.launch_again()?;
            kills += 1;
        }
    }
    let refused = guests[0].run(
        &format!("ping -q -c 3 -i 0.1 -W 1 {} >/dev/null; echo $?", address::ip(1)),
        PATIENCE,
    )?;
    check(refused.trim() == "1", || format!("a closed group answers: {refused}"))?;
    println!("in a security group: {kills} kills, {upgrades} upgrades, {lost} connections lost");
    bars.add("group_lost_over_kills", kills.into(), None);
    bars.add("group_lost_over_upgrades", upgrades.into(), None);
    bars.add("group_lost_connections", lost.into(), Some(Goal::AtMost(0.0)));
    weir.stop()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pings_counts_are_read() {
        let printed = "PING 10.77.0.2 (10.77.0.2): 56 data bytes\n\n--- 10.77.0.2 ping statistics ---\n\
            50 packets transmitted, 49 packets received, 2 duplicates, 2% packet loss\n";
        assert_eq!(echoed(printed).unwrap(), [50, 49, 2]);
        let printed =
            "--- statistics ---\n3 packets transmitted, 3 packets received, 0% packet loss\n";
        assert_eq!(echoed(printed).unwrap(), [3, 3, 0]);
        assert!(echoed("ping: sendto: Network is unreachable").is_err());
    }
}
