//! Linux guests, and their reports of lost, repeated and wrong data. Guests that ask for addresses.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rustix::process::{Resource, getrlimit, setrlimit};
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
use weir_testing::document;
use weir_vif::{Options, QueuePair};
use weir_wire::{Mac, Offload, Sum};

use crate::{
    bars::{Bars, quantile},
    random::Random,
};

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

/// The VLAN of a tenant that opens connections without end, and the indexes of the first of its two interfaces.
const FLOOD_VLAN: u16 = 2;
const FLOOD_FIRST: u8 = 2;
/// Connections that the flood opens at a time, and the pause between: 16,000 a second at most.
const FLOOD_BURST: u32 = 16;
const FLOOD_PAUSE: Duration = Duration::from_millis(1);

/// Two guests of another tenant, in the same group as all: one asks the other for connections without end, and confirms
/// none. It ends when it is dropped.
pub struct Flood {
    _sessions: Vec<weir_vif::Vif>,
    stop: Arc<AtomicBool>,
    arrived: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Flood {
    /// The interfaces of the flood, behind those of the guests.
    pub fn vifs() -> [Vif; 2] {
        [(); 2].map(|()| Vif { vlan: Some(FLOOD_VLAN), ..Vif::default() })
    }

    /// Begins a flood at `weir`, whose third and fourth interface are those of the flood.
    pub fn begin(weir: &Weir) -> Result<Self> {
        let (mut sessions, mut pairs) = (Vec::new(), Vec::new());
        for index in [FLOOD_FIRST, FLOOD_FIRST + 1] {
            let socket = weir.socket(index)?;
            let failed =
                |error| Error::Check(format!("the flood at {}: {error}", socket.display()));
            let mut session =
                weir_vif::Vif::connect(&socket, &Options::new(mac(index))).map_err(failed)?;
            pairs.append(&mut session.queue_pairs());
            sessions.push(session);
        }
        let (stop, arrived) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let thread = {
            let (stop, arrived) = (Arc::clone(&stop), Arc::clone(&arrived));
            thread::spawn(move || flood(&mut pairs, &stop, &arrived))
        };
        Ok(Self { _sessions: sessions, stop, arrived, thread: Some(thread) })
    }

    /// The number of SYNs that have arrived since the last call; an error if there are none.
    pub fn goes_on(&self) -> Result<u64> {
        let arrived = self.arrived.swap(0, Relaxed);
        check(arrived > 0, || "the flood has ended".into()).map(|()| arrived)
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn mac(index: u8) -> Mac {
    Mac([0x52, 0x54, 0, 0x77, 0, index + 1])
}

fn flood(pairs: &mut [QueuePair], stop: &AtomicBool, arrived: &AtomicU64) {
    let [from, to] = pairs else { return };
    let mut number = 0_u32;
    while !stop.load(Relaxed) {
        // The receiver's frame tells weir where it is.
        let _ = to.send(&syn(FLOOD_FIRST + 1, FLOOD_FIRST, number), &Offload::NONE);
        for _ in 0..FLOOD_BURST {
            // A full ring waits for the next weir.
            if from.send(&syn(FLOOD_FIRST, FLOOD_FIRST + 1, number), &Offload::NONE).is_err() {
                break;
            }
            number = number.wrapping_add(1);
        }
        for pair in [&mut *from, &mut *to] {
            pair.flush();
        }
        while from.recv(|_| ()).is_some() {}
        while to.recv(|_| ()).is_some() {
            arrived.fetch_add(1, Relaxed);
        }
        thread::sleep(FLOOD_PAUSE);
    }
}

/// A SYN to the port that the group opens, from another address and port for each number. Nobody reads its checksums.
fn syn(from: u8, to: u8, number: u32) -> [u8; 60] {
    let mut frame = [0; 60];
    let [a, b, c, d] = number.to_be_bytes();
    frame[..6].copy_from_slice(&mac(to).0);
    frame[6..12].copy_from_slice(&mac(from).0);
    frame[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6]);
    frame[26..38].copy_from_slice(&[10, 2, a, b, 10, 2, 255, to, c, d, 0x13, 0x88]);
    frame[46..48].copy_from_slice(&[0x50, 2]);
    frame
}

/// Starts a weir with a keeper and two guests, one with split and one with packed rings, and a connection in each
/// direction.
fn talk(lab: &Lab, queues: u8, group: Option<&'static str>) -> Result<(Weir, [Guest; 2])> {
    let vif = Vif { queues: (queues > 1).then_some(queues), ..Vif::default() };
    let mut vifs = vec![vif; 2];
    vifs.extend(group.map(|_| Flood::vifs()).into_iter().flatten());
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

/// Kills and upgrades weir, which forgets the connections of its security groups each time, while another tenant floods
/// it. Both connections have to go on, and what the group closes has to stay closed.
pub fn in_groups(lab: &Lab, events: u32, seed: u64, bars: &mut Bars) -> Result<()> {
    let mut random = Random::new(seed);
    let (mut weir, mut guests) = talk(lab, 1, Some(RULES))?;
    let flood = Flood::begin(&weir)?;
    let (mut before, [mut kills, mut upgrades, mut lost], mut syns) = ([0; 2], [0; 3], 0);
    for event in 0..=events {
        for (guest, before) in guests.iter_mut().zip(&mut before) {
            lost += u32::from(!lines::go_on(guest, PORT, before)?);
        }
        syns += flood.goes_on()?;
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
    println!(
        "in a security group: {kills} kills, {upgrades} upgrades, {lost} connections lost beside {syns} SYNs"
    );
    bars.add("group_lost_over_kills", kills.into(), None);
    bars.add("group_lost_over_upgrades", upgrades.into(), None);
    bars.add("group_lost_connections", lost.into(), Some(Goal::AtMost(0.0)));
    weir.stop()
}

/// A network whose guests get addresses from weir.
const NETWORK: &str = "address = \"10.77.0.1/16\"\ndhcp = true";
/// The interfaces that ask at once.
const AT_ONCE: u16 = 1000;
/// A client that has no answer asks again after this time.
const ASKS_AGAIN: Duration = Duration::from_secs(4);
/// The kinds of DHCP messages (RFC 2132 §9.6).
const DISCOVER: u8 = 1;
const OFFER: u8 = 2;
const REQUEST: u8 = 3;
const ACK: u8 = 5;

/// Has a booted guest ask for an address `times` times, and a thousand guests of this process at once. Counts the
/// commands by which a reader of the guides gets guests with addresses, names, and a way out.
pub fn addresses(lab: &Lab, times: u32, _: u64, bars: &mut Bars) -> Result<()> {
    let setup = Setup { network: Some(NETWORK.into()), ..Setup::vifs(1) };
    let weir = Weir::start(lab, &setup)?;
    let mut guest = Guest::boot(&lab.image, &spec(&weir, 0, 1, "")?, weir.dir())?;
    let mut took_ms = Vec::new();
    for _ in 0..times {
        took_ms.push(asked_ms(&weir, &mut guest)?);
    }
    drop(guest);
    weir.stop()?;
    let (first, all) = (took_ms.first().copied().unwrap_or(0.0), took_ms.len());
    println!(
        "a guest's first DISCOVER to its address: {first:.1} ms, once after its boot, and {all} times in all"
    );
    for (name, ms) in
        [("network_first_address_ms", first), ("network_address_ms", quantile(&mut took_ms, 0.95))]
    {
        bars.add(name, ms, Some(Goal::AtMost(50.0)));
    }
    let (took_ms, again) = asked_at_once_ms(lab)?;
    bars.add("network_thousand_asked_again", f64::from(again), None);
    bars.add("network_thousand_addresses_ms", took_ms, Some(Goal::AtMost(2000.0)));
    for (name, page, most) in COMMANDS {
        let page = lab.workspace.root.join("docs/guide").join(page);
        let text = fs::read_to_string(&page).map_err(Error::io("read", &page))?;
        let blocks = document::blocks(&text);
        let commands = blocks.iter().find(|block| block.language == "sh").map(|it| it.commands());
        let commands = commands.ok_or_else(|| Error::parse("commands", text.clone()))?;
        bars.add(name, commands.len() as f64, Some(Goal::AtMost(most)));
    }
    Ok(())
}

/// The pages whose first block of commands leads to such guests, and the most commands that this may take.
const COMMANDS: [(&str, &str, f64); 2] = [
    ("network_commands_as_root", "network.md", 3.0),
    ("network_commands_without_root", "without-root.md", 4.0),
];

/// The time from a guest's DISCOVER to the message that gives it an address, as weir sees both.
fn asked_ms(weir: &Weir, guest: &mut Guest) -> Result<f64> {
    /// DISCOVER, OFFER, REQUEST, ACK.
    const MESSAGES: usize = 4;
    let name = weir::name(0_u16);
    let number = MESSAGES.to_string();
    let capture = ["capture", &name, "-f", "udp port 67 or udp port 68", "-c", &number];
    let lines = thread::scope(|scope| {
        let captured = scope.spawn(|| weir.control(&capture));
        // The capture has begun.
        thread::sleep(TRAFFIC);
        guest.run("ip link set eth0 up; udhcpc -i eth0 -n -q -s /bin/true", PATIENCE)?;
        captured.join().map_err(|_| Error::Check("the capture panicked".into()))?
    })?;
    let mut times = lines.lines().filter_map(time_ms).collect::<Vec<_>>();
    times.sort_by(f64::total_cmp);
    match times[..] {
        [first, .., last] if times.len() == MESSAGES => Ok(last - first),
        _ => Err(Error::parse("the times of four messages", lines)),
    }
}

/// The time of day (ms) with which a captured frame's line begins.
fn time_ms(line: &str) -> Option<f64> {
    let mut parts = line.split_whitespace().next()?.splitn(3, ':');
    let mut number = || parts.next()?.parse::<f64>().ok();
    Some(((number()? * 60.0 + number()?) * 60.0 + number()?) * 1e3)
}

/// The time from the first question of [`AT_ONCE`] guests to the last answer that gives one an address, and the number
/// of questions that had to be asked again.
fn asked_at_once_ms(lab: &Lab) -> Result<(f64, u32)> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, ..limit })
        .map_err(|errno| Error::Check(format!("cannot open more files: {errno}")))?;
    let setup = Setup { network: Some(NETWORK.into()), ..Setup::vifs(AT_ONCE.into()) };
    let weir = Weir::start(lab, &setup)?;
    let mut vifs = Vec::new();
    for index in 0..AT_ONCE {
        let mac = address::mac(index);
        let mac: Mac = mac.parse().map_err(|_| Error::parse("an address", mac))?;
        let vif = weir_vif::Vif::connect(weir.socket(index)?, &Options::new(mac));
        let mut vif = vif.map_err(|error| Error::Check(error.to_string()))?;
        let pair = vif.queue_pairs().remove(0);
        vifs.push((vif, Client { mac, pair, said: (DISCOVER, None), at: None, again: 0 }));
    }
    let begun = Instant::now();
    let mut left = vifs.len();
    while left > 0 {
        check(begun.elapsed() < PATIENCE, || format!("{left} guests have no address"))?;
        left = 0;
        for (_, client) in &mut vifs {
            left += usize::from(!client.goes_on());
        }
    }
    let took_ms = begun.elapsed().as_secs_f64() * 1e3;
    let again = vifs.iter().map(|(_, client)| client.again).sum();
    drop(vifs);
    weir.stop()?;
    Ok((took_ms, again))
}

/// A DHCP client of this process.
struct Client {
    mac: Mac,
    pair: QueuePair,
    /// The message that it has said or is about to say, with the addresses that it asks for and asks.
    said: (u8, Option<[[u8; 4]; 2]>),
    /// The time of that message.
    at: Option<Instant>,
    again: u32,
}

impl Client {
    /// Does what there is to do; true if the client has an address.
    fn goes_on(&mut self) -> bool {
        let mut frame = Vec::new();
        while self.pair.recv_into(&mut frame).is_some() {
            let offered = (offered(&frame, OFFER), offered(&frame, ACK));
            match (self.said, offered) {
                ((DISCOVER, _), (Some(offered), _)) => {
                    (self.said, self.at) = ((REQUEST, Some(offered)), None)
                }
                ((REQUEST, _), (_, Some(_))) => (self.said, self.at) = ((ACK, None), None),
                _ => {}
            }
        }
        let is_late = self.at.is_some_and(|at| at.elapsed() > ASKS_AGAIN);
        if self.said.0 != ACK && (self.at.is_none() || is_late) {
            self.again += u32::from(is_late);
            let (kind, of) = self.said;
            if self.pair.send(&question(self.mac, kind, of), &Offload::NONE).is_ok() {
                self.at = Some(Instant::now());
                self.pair.flush();
            }
        }
        self.said.0 == ACK
    }
}

/// A frame with a client's message to everybody.
fn question(mac: Mac, kind: u8, of: Option<[[u8; 4]; 2]>) -> Vec<u8> {
    let mut message = vec![1, 1, 6, 0];
    message.extend(
        [&mac.0[2..], &[0; 20], &mac.0, &[0; 202], &[99, 130, 83, 99, 53, 1, kind]].concat(),
    );
    if let Some([address, server]) = of {
        message.extend([&[50, 4], &address[..], &[54, 4], &server].concat());
    }
    message.extend([55, 3, 1, 3, 6, 255]);
    let len = |more: usize| ((message.len() + more) as u16).to_be_bytes();
    let mut ip = [0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255];
    ip[2..4].copy_from_slice(&len(28));
    let mut sum = Sum::new();
    sum.add(&ip);
    ip[10..12].copy_from_slice(&sum.finish().to_be_bytes());
    let [high, low] = len(8);
    [&[0xff; 6][..], &mac.0, &[8, 0], &ip, &[0, 68, 0, 67, high, low, 0, 0], &message].concat()
}

/// The address that a frame offers or gives, and the server that does, if the frame is a message of this kind.
fn offered(frame: &[u8], kind: u8) -> Option<[[u8; 4]; 2]> {
    let is_it = frame.get(34..38)? == [0, 67, 0, 68];
    let message = frame.get(42..).filter(|_| is_it)?;
    let is_it = message.get(240..)?.windows(3).any(|option| option == [53, 1, kind]);
    let four = |bytes: Option<&[u8]>| bytes?.first_chunk::<4>().copied();
    let found = [four(message.get(16..))?, four(frame.get(26..))?];
    Some(found).filter(|_| is_it)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_captured_frame_has_its_time_of_day() {
        let ms = time_ms("09:14:07.120448 52:54:00:00:00:01 > ff:ff:ff:ff:ff:ff, UDP").unwrap();
        assert!((ms - 33_247_120.448).abs() < 1e-3, "{ms}");
        assert_eq!(time_ms("no frame"), None);
    }

    #[test]
    fn an_offer_is_read_and_no_other_message() {
        let mut frame = question(Mac([2, 0, 0, 0, 0, 1]), OFFER, None);
        assert_eq!(offered(&frame, OFFER), None, "a client's");
        frame[34..38].copy_from_slice(&[0, 67, 0, 68]);
        frame[58..62].copy_from_slice(&[10, 77, 0, 9]);
        frame[26..30].copy_from_slice(&[10, 77, 0, 1]);
        assert_eq!(offered(&frame, OFFER), Some([[10, 77, 0, 9], [10, 77, 0, 1]]));
        assert_eq!((offered(&frame, ACK), offered(&frame[..60], OFFER)), (None, None));
    }

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
