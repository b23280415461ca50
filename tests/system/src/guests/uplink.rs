//! Traffic through an uplink into a network namespace; two uplinks into one LAN, a Linux bridge; a bond to a switch with
//! LACP, which Linux's bonding driver in a guest plays.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use weir_bed::{
    address,
    error::{Error, Result, check},
    guest_image::{IPERF3, KERNEL_METAPACKAGE},
    iperf::{self, Direction, Tcp, Transfer},
    lab::Lab,
    netns::Netns,
    process::{Process, run, wait_until},
    qemu::{
        Guest, GuestSpec, Plug,
        moves::{Monitor, with_monitor},
    },
    report::{self, Goal},
    uplink::Uplink,
    weir::{Setup, Weir},
    workspace::socket_path,
};

use super::{
    FLOWS_SECONDS, boot,
    traffic::{no_checksum_errors, ping},
};

/// The namespace's own address in the guests' subnet.
const HOST: u8 = 100;

pub(super) fn tap_uplink_joins_guest_and_namespace(lab: &Lab) -> Result<()> {
    joins_guest_and_namespace(lab, Uplink::Tap)
}

pub(super) fn af_xdp_uplink_joins_guest_and_namespace(lab: &Lab) -> Result<()> {
    joins_guest_and_namespace(lab, Uplink::AfXdp)
}

fn joins_guest_and_namespace(lab: &Lab, uplink: Uplink) -> Result<()> {
    let weir = Weir::start(lab, &Setup { uplink: Some(uplink), ..Setup::vifs(1) })?;
    let site = weir.uplink()?;
    let netns = site.host();
    netns.configure(site.interface(), &address::cidr(HOST))?;
    let [mut guest] = boot(lab, &weir)?;

    ping(&mut guest, &address::ip(HOST))?;
    let busybox = lab.image.busybox.to_string_lossy();
    netns.exec(&[&busybox, "ping", "-c", "3", "-W", "5", &address::ip(0)])?;

    // The namespace is the server first and the client second, each time in both directions.
    let log = weir.dir().join("iperf3.log");
    let server = Process::start_logged(&["iperf3", "-s"], &netns.placement(), &log)?;
    weir_bed::process::wait_until("iperf3 to listen", iperf_patience(), || {
        Ok(netns
            .exec(&["ss", "-ltnH", "sport", "=", &format!(":{}", iperf::PORT)])?
            .contains("LISTEN"))
    })?;
    for direction in [Direction::ToServer, Direction::ToClient] {
        let tcp = Tcp { direction, ..Tcp::to(address::ip(HOST), FLOWS_SECONDS) };
        flows(&tcp, "guest as client", tcp.run(&mut guest)?)?;
    }
    server.kill();

    iperf::serve(&mut guest, iperf::PORT)?;
    for direction in [Direction::ToServer, Direction::ToClient] {
        let tcp = Tcp { direction, ..Tcp::to(address::ip(0), FLOWS_SECONDS) };
        flows(&tcp, "namespace as client", tcp.run_by(|argv| netns.exec(argv))?)?;
    }
    no_checksum_errors(&mut guest)
}

fn iperf_patience() -> std::time::Duration {
    std::time::Duration::from_secs(10)
}

fn flows(tcp: &Tcp, who: &str, transfer: Transfer) -> Result<()> {
    check(transfer.bits_per_second > crate::TCP_BITS_PER_SECOND_MIN, || {
        format!("{who}, {:?}: only {:.3} Gbit/s", tcp.direction, transfer.gbit_per_second())
    })
}

const PATIENCE: Duration = Duration::from_secs(30);

/// A weir in a namespace, whose configuration has these sections. It is killed when this is dropped.
struct Host {
    dir: PathBuf,
    program: String,
    control: PathBuf,
    _weir: Process,
}

impl Host {
    fn start(lab: &Lab, netns: &Netns, label: &str, sections: &str) -> Result<Self> {
        let dir = lab.workspace.run_dir(label)?;
        let (control, file) = (socket_path(&dir, "control.sock")?, dir.join("weir.toml"));
        let config = format!("[switch]\nworkers = 1\ncontrol = {control:?}\n{sections}");
        fs::write(&file, config).map_err(Error::io("write", &file))?;
        let program = lab.weir.to_string_lossy().into_owned();
        let argv = [&program, "run", &file.to_string_lossy()];
        let weir = Process::start_logged(&argv, &netns.placement(), &dir.join("weir.log"))?;
        let this = Self { dir, program, control, _weir: weir };
        wait_until("weir's control socket", PATIENCE, || Ok(this.stats().is_ok()))?;
        Ok(this)
    }

    fn stats(&self) -> Result<Value> {
        let control = self.control.to_string_lossy();
        let text = run(&[&self.program, "--control", &control, "stats", "--json"])?;
        serde_json::from_str(&text)
            .map_err(|_| Error::parse("what weir stats printed", text.as_str()))
    }
}

/// Writes a figure into `report.json`, and prints it beside its bar.
fn record(lab: &Lab, name: &str, value: f64, bar: Goal) -> Result<()> {
    println!("  {name} {value:.0} (bar {bar})");
    report::merge(&lab.workspace, &[(name, value)]).map(drop)
}

/// Writes the time from the first looping frame to the block into `report.json`.
pub(super) fn two_uplinks_into_one_lan_are_blocked_until_the_loop_is_cut(lab: &Lab) -> Result<()> {
    let netns = Netns::new()?;
    let uplinks = ["lan0", "lan1"]
        .map(|name| format!("[uplink.{name}]\nkind = \"tap\"\nname = \"{name}\"\n"));
    netns.add_bridge("br0")?;
    netns.configure("br0", "192.0.2.1/24")?;
    let host = Host::start(lab, &netns, "loops", &uplinks.concat())?;
    for lan in ["lan0", "lan1"] {
        netns.ip(&["link", "set", lan, "master", "br0", "up"])?;
    }

    let busybox = lab.image.busybox.to_string_lossy();
    let begun = Instant::now();
    // The address is not in use: the bridge broadcasts an ARP request for it.
    let ping = [&busybox, "ping", "-c", "1", "-W", "1", "192.0.2.99"];
    let _ping = Process::start_logged(&ping, &netns.placement(), &host.dir.join("ping.log"))?;
    let mut found_ms = None;
    wait_until("a port to be blocked", PATIENCE, || {
        let stats = host.stats()?;
        let (since_begun, block) = (begun.elapsed(), &port(&stats, "lan1")["blocked"]);
        let for_s = block["seconds"].as_f64();
        found_ms = for_s.map(|for_s| (since_begun.as_secs_f64() - for_s) * 1e3);
        Ok(found_ms.is_some())
    })?;
    let found_ms = found_ms.unwrap_or_default();
    record(lab, "loop_found_ms", found_ms, Goal::AtMost(200.0))?;
    let loops = &host.stats()?["loops"];
    let counts = [&loops["suspected"], &loops["found"]];
    check(counts == [1, 1], || format!("the first suspicion was not proved at once: {loops}"))?;

    // The LAN is quiet: frames from the blocked port were dropped, and the other port brings no more.
    let frames = || Ok::<_, Error>(port(&host.stats()?, "lan0")["tx"]["frames"].as_u64());
    wait_until("a calm LAN", PATIENCE, || {
        let before = frames()?;
        std::thread::sleep(Duration::from_millis(200));
        Ok(frames()? == before)
    })?;
    let now = host.stats()?;
    check(port(&now, "lan0")["blocked"].is_null(), || format!("both are blocked: {now}"))?;
    check(port(&now, "lan1")["blocked"]["with"] == "lan0", || format!("not with lan0: {now}"))?;
    netns.ip(&["link", "set", "lan1", "nomaster"])?;
    wait_until("the port to forward again", PATIENCE, || {
        Ok(port(&host.stats()?, "lan1")["blocked"].is_null())
    })
}

fn port<'s>(stats: &'s Value, name: &str) -> &'s Value {
    let mut ports = stats["ports"].as_array().into_iter().flatten();
    ports.find(|port| port["name"] == name).unwrap_or(&Value::Null)
}

/// Writes the longest time for which a fail-over loses echo requests or their answers into `report.json`.
pub(super) fn a_bond_whose_cables_are_cut_loses_few_frames(lab: &Lab) -> Result<()> {
    /// Echo requests a cut, and milliseconds between two.
    const ECHOES: u32 = 400;
    const PACE_MS: f64 = 2.0;
    const CUTS: u32 = 4;
    const BAR_MS: f64 = 100.0;
    let [netns, lan] = [Netns::new()?, Netns::new()?];
    lan.add_bridge("br0")?;
    lan.configure("br0", "192.0.2.1/24")?;
    let mut sections = String::from(
        "[uplink.own]\nkind = \"tap\"\nname = \"own\"\n[bond.lan]\nuplinks = [\"lan0\", \"lan1\"]\n",
    );
    for name in ["lan0", "lan1"] {
        let far = format!("{name}p");
        netns.ip(&[
            "link",
            "add",
            name,
            "type",
            "veth",
            "peer",
            "name",
            &far,
            "netns",
            lan.name(),
        ])?;
        netns.ip(&["link", "set", name, "up"])?;
        lan.ip(&["link", "set", &far, "master", "br0", "up"])?;
        sections += &format!("[uplink.{name}]\nkind = \"af_packet\"\nname = \"{name}\"\n");
    }
    let host = Host::start(lab, &netns, "bond", &sections)?;
    netns.configure("own", "192.0.2.2/24")?;
    let busybox = lab.image.busybox.to_string_lossy();
    netns.exec(&[&busybox, "ping", "-c", "1", "-W", "5", "192.0.2.1"])?;
    let (count, pace) = (ECHOES.to_string(), (PACE_MS / 1e3).to_string());
    let ping = [&busybox, "ping", "-q", "-c", &count, "-i", &pace, "-W", "1", "192.0.2.1"];
    let (mut longest_ms, mut most) = (0.0_f64, 0);
    for cut in 0..CUTS {
        let log = host.dir.join(format!("ping{cut}.log"));
        let [cut_off, other] = if cut % 2 == 0 { ["lan0", "lan1"] } else { ["lan1", "lan0"] };
        let carries = |name: &str| -> Result<bool> {
            let stats = host.stats()?;
            let mut uplinks =
                port(&stats, "lan")["bond"]["uplinks"].as_array().into_iter().flatten();
            Ok(uplinks.any(|it| it["name"] == name && it["carries"] == true))
        };
        wait_until("the first uplink to carry frames", PATIENCE, || carries(cut_off))?;
        let begun = Instant::now();
        let mut pings = Process::start_logged(&ping, &netns.placement(), &log)?;
        std::thread::sleep(Duration::from_millis(200));
        lan.ip(&["link", "set", &format!("{cut_off}p"), "down"])?;
        wait_until("the other uplink to carry frames", PATIENCE, || carries(other))?;
        wait_until("the end of the pings", PATIENCE, || Ok(pings.ended()?.is_some()))?;
        let elapsed_ms = begun.elapsed().as_secs_f64() * 1e3;
        lan.ip(&["link", "set", &format!("{cut_off}p"), "up"])?;
        let said = fs::read_to_string(&log).map_err(Error::io("read", &log))?;
        let answered = answered(&said).ok_or_else(|| Error::parse("a ping's count", said))?;
        let lost = ECHOES - answered;
        most = most.max(lost);
        longest_ms = longest_ms.max(f64::from(lost) * elapsed_ms / f64::from(ECHOES));
    }
    record(lab, "bond_fail_over_gap_ms", longest_ms, Goal::AtMost(BAR_MS))?;
    let most_allowed = (BAR_MS / PACE_MS) as u32;
    check(most <= most_allowed, || format!("{most} frames lost, one each {PACE_MS} ms"))
}

/// The number of answers that a ping says it has received.
fn answered(said: &str) -> Option<u32> {
    let counts = said.lines().find(|line| line.contains("packets received"))?;
    counts.split(", ").nth(1)?.split(' ').next()?.parse().ok()
}

/// The cables between weir and the switch. Their ends there are `eth0` and `eth1`.
const CABLES: [&str; 2] = ["lan0", "lan1"];
/// The switch's kernel. weir's host has none of its modules.
const SWITCH: (&str, &[&str]) = (KERNEL_METAPACKAGE, &["virtio_pci", "virtio_net", "bonding"]);
/// The number of weir's end of the first cable, among addresses of machines.
const WEIR_END: u16 = 100;
/// The switch's address.
const SWITCH_IP: &str = "192.0.2.1";
/// A second server in the switch: one of iperf3 does not listen for a moment after each test.
const LONG_PORT: u16 = iperf::PORT + 1;
/// Connections, with data both ways, that are spread over the cables.
const STREAMS: u64 = 16;
/// Flags of a port's state (IEEE 802.1AX §5.4.2.2): aggregation, synchronization, collecting, distributing.
const CARRIES: u8 = 0x3c;

/// A switch that has both of weir's uplinks in one aggregation.
struct LacpSwitch {
    guest: Guest,
    monitor: Monitor,
}

impl LacpSwitch {
    fn boot(lab: &Lab, netns: &Netns, dir: &Path) -> Result<Self> {
        let programs = [Path::new(IPERF3)];
        let image = lab.image.with_modules(&lab.workspace, "bonding", SWITCH, &programs)?;
        let card = |(number, cable): (u16, &str)| {
            let mac = address::mac(number);
            let tap = format!("tap,id={cable},ifname={cable},script=no,downscript=no");
            // LACP takes a card without a speed for one that cannot aggregate.
            let card = format!("netdev={cable},mac={mac},speed=1000,duplex=full,romfile=");
            ["-netdev".into(), tap, "-device".into(), format!("virtio-net-pci,{card}")]
        };
        let plug = Plug {
            qemu_args: (0..).zip(CABLES).flat_map(card).collect(),
            placement: netns.placement(),
        };
        let spec = GuestSpec { name: "switch".into(), cidr: String::new(), vcpus: 1, plug };
        let (spec, monitor) = with_monitor(&spec, dir, 0)?;
        let mut guest = Guest::boot(&image, &spec, dir)?;
        let monitor = Monitor::connect(&monitor)?;
        let set_up = format!(
            "cd /sys/class/net/bond0/bonding && echo 802.3ad >mode && echo fast >lacp_rate && \
             echo 20 >miimon && echo layer3+4 >xmit_hash_policy && echo +eth0 >slaves && \
             echo +eth1 >slaves && ip link set bond0 up && ip address add {SWITCH_IP}/24 dev bond0"
        );
        guest.run(&set_up, PATIENCE)?;
        for port in [iperf::PORT, LONG_PORT] {
            iperf::serve(&mut guest, port)?;
        }
        Ok(Self { guest, monitor })
    }

    /// Pulls a cable out, or plugs it in again: both ends see the carrier.
    fn plug(&mut self, netns: &Netns, cable: &str, up: bool) -> Result<()> {
        netns.ip(&["link", "set", cable, "carrier", if up { "on" } else { "off" }])?;
        self.monitor.ask("set_link", json!({"name": cable, "up": up})).map(drop)
    }

    /// The cables that carry frames by the word of both ends.
    fn carries(&mut self) -> Result<[bool; 2]> {
        let said = self.guest.run("cat /proc/net/bonding/bond0", PATIENCE)?;
        let carries = carries(&said, &address::mac(WEIR_END));
        carries.ok_or_else(|| Error::parse("a bond", said))
    }

    /// Waits until these cables carry frames, as both ends say, and no other.
    fn await_carriers(&mut self, host: &Host, wanted: [bool; 2]) -> Result<()> {
        let partner = address::mac(0_u16);
        let mut seen = (Value::Null, wanted);
        let waited = wait_until("the bond to carry by other cables", PATIENCE, || {
            let stats = host.stats()?;
            let bond = port(&stats, "lan")["bond"]["uplinks"].clone();
            let ours = [0, 1].map(|nth: usize| bond[nth]["carries"] == true);
            let knows = |nth: usize| !wanted[nth] || bond[nth]["partner"] == *partner;
            let is_known = knows(0) && knows(1);
            seen = (bond, self.carries()?);
            Ok(ours == wanted && seen.1 == wanted && is_known)
        });
        waited.map_err(|error| Error::Check(format!("{error}: {seen:?}")))
    }

    /// Bytes that the switch has received and sent by each cable.
    fn bytes(&mut self) -> Result<[[u64; 2]; 2]> {
        let counters = "cd /sys/class/net; for card in eth0 eth1; do cat $card/statistics/rx_bytes \
                        $card/statistics/tx_bytes; done";
        let said = self.guest.run(counters, PATIENCE)?;
        let mut numbers = said.split_whitespace().map_while(|word| word.parse().ok());
        let mut number = || numbers.next().ok_or_else(|| Error::parse("counters", said.as_str()));
        Ok([[number()?, number()?], [number()?, number()?]])
    }

    /// Sends data by many connections, both ways, and checks that these cables carry it, and no other.
    fn carry(&mut self, netns: &Netns, wanted: [bool; 2]) -> Result<()> {
        let before = self.bytes()?;
        let said = netns.exec(&talk(iperf::PORT, "1").split(' ').collect::<Vec<_>>())?;
        let streams = last_bytes(&said).ok_or_else(|| Error::parse("a report", said))?;
        check(streams.len() as u64 == 2 * STREAMS, || format!("{} streams", streams.len()))?;
        let now = self.bytes()?;
        for way in [0, 1] {
            let by = [0, 1].map(|cable: usize| now[cable][way] - before[cable][way]);
            let all: u64 = by.iter().sum();
            // Both cables carry LACP; a connection is one of many.
            let carried = by.map(|bytes| bytes > all / (2 * STREAMS));
            check(carried == wanted, || format!("carried {by:?} bytes, not by {wanted:?}"))?;
        }
        Ok(())
    }
}

/// A client of the switch that sends and receives for some seconds.
fn talk(port: u16, seconds: &str) -> String {
    format!("iperf3 -J --bidir -c {SWITCH_IP} -p {port} -P {STREAMS} -b 2M -l 4K -t {seconds}")
}

/// The bytes of each connection, each way, in the last second of a report.
fn last_bytes(report: &str) -> Option<Vec<u64>> {
    let report: Value = serde_json::from_str(report).ok()?;
    // A rest of a second may be too short for any bytes.
    let is_whole = |it: &&Value| it["sum"]["seconds"].as_f64().is_some_and(|time| time > 0.5);
    let streams = report["intervals"].as_array()?.iter().rfind(is_whole)?["streams"].as_array()?;
    streams.iter().map(|stream| stream["bytes"].as_u64()).collect()
}

/// The links of a bond that carry frames by the word of both ends: they are in the aggregation in use, this is their
/// partner, and both ends collect and distribute there.
fn carries(said: &str, partner: &str) -> Option<[bool; 2]> {
    let after = |text: &str, key: &str| {
        let values = text.lines().filter_map(|line| line.trim().strip_prefix(key));
        values.map(|value| value.trim().to_owned()).collect::<Vec<_>>()
    };
    let mut parts = said.split("Slave Interface: ");
    let active = after(parts.next()?, "Aggregator ID:");
    let link = |text: &str| {
        let (states, systems) = (after(text, "port state:"), after(text, "system mac address:"));
        let carries =
            |state: &String| state.parse().is_ok_and(|state: u8| state & CARRIES == CARRIES);
        let [_, system] = &systems[..] else { return false };
        after(text, "Aggregator ID:") == active
            && states.len() == 2
            && states.iter().all(carries)
            && system == partner
    };
    let links: Vec<_> = parts.map(link).collect();
    links.try_into().ok()
}

/// A guest with Debian's kernel plays the physical switch: it aggregates both cables by the bonding driver.
pub(super) fn a_bond_speaks_lacp_with_the_kernels_bonding_driver(lab: &Lab) -> Result<()> {
    let netns = Netns::new()?;
    // Otherwise the kernel answers for the host's address on the cables, too.
    netns.exec(&["sh", "-c", "echo 1 >/proc/sys/net/ipv4/conf/all/arp_ignore"])?;
    let mut sections = format!(
        "[uplink.own]\nkind = \"tap\"\nname = \"own\"\n[bond.lan]\nuplinks = {CABLES:?}\n\
         mode = \"lacp\"\nlacp_rate = \"fast\"\n"
    );
    for (number, cable) in (WEIR_END..).zip(CABLES) {
        netns.ip(&["tuntap", "add", cable, "mode", "tap", "vnet_hdr"])?;
        netns.ip(&["link", "set", cable, "address", &address::mac(number), "up"])?;
        sections += &format!("[uplink.{cable}]\nkind = \"af_packet\"\nname = \"{cable}\"\n");
    }
    let host = Host::start(lab, &netns, "lacp", &sections)?;
    netns.configure("own", "192.0.2.2/24")?;
    let mut switch = LacpSwitch::boot(lab, &netns, &host.dir)?;
    switch.await_carriers(&host, [true, true])?;
    switch.carry(&netns, [true, true])?;

    // A cable is pulled out under traffic. Each connection goes on.
    let log = host.dir.join("iperf3.log");
    let (long, before) = (talk(LONG_PORT, "4"), switch.bytes()?);
    let argv: Vec<_> = long.split(' ').collect();
    let mut client = Process::start_logged(&argv, &netns.placement(), &log)?;
    wait_until("traffic on the first cable", PATIENCE, || {
        let moved = |way: usize, now: &[[u64; 2]; 2]| now[0][way] - before[0][way] > 100_000;
        let now = switch.bytes()?;
        Ok(moved(0, &now) && moved(1, &now))
    })?;
    switch.plug(&netns, "lan0", false)?;
    switch.await_carriers(&host, [false, true])?;
    wait_until("the end of the client", PATIENCE, || Ok(client.ended()?.is_some()))?;
    let said = fs::read_to_string(&log).map_err(Error::io("read", &log))?;
    let streams = last_bytes(&said).ok_or_else(|| Error::parse("a report", said))?;
    let still = streams.iter().filter(|bytes| **bytes == 0).count();
    check(still == 0, || format!("{still} of {} streams stand still: {streams:?}", streams.len()))?;
    switch.carry(&netns, [false, true])?;
    switch.plug(&netns, "lan0", true)?;
    switch.await_carriers(&host, [true, true])?;
    switch.carry(&netns, [true, true])?;

    // The switch falls silent on a cable that keeps its carrier.
    switch.guest.run("ip link set eth1 down", PATIENCE)?;
    switch.await_carriers(&host, [true, false])?;
    let stats = host.stats()?;
    let has_carrier = &port(&stats, "lan")["bond"]["uplinks"][1]["has_carrier"];
    check(*has_carrier == true, || format!("a lost carrier: {stats}"))?;
    switch.carry(&netns, [true, false])?;
    switch.guest.run("ip link set eth1 up", PATIENCE)?;
    switch.await_carriers(&host, [true, true])
}

#[cfg(test)]
mod tests {
    /// What the bonding driver says, shortened.
    const BOND: &str = "802.3ad info\nSystem MAC address: 52:54:00:77:00:01\nActive Aggregator Info:\n\
        \tAggregator ID: 1\n\tNumber of ports: 2\n\nSlave Interface: eth0\nMII Status: up\nAggregator ID: 1\n\
        details actor lacp pdu:\n    system mac address: 52:54:00:77:00:01\n    port state: 63\n\
        details partner lacp pdu:\n    system mac address: 52:54:00:77:00:65\n    port state: 63\n\n\
        Slave Interface: eth1\nMII Status: up\nAggregator ID: 1\n\
        details actor lacp pdu:\n    system mac address: 52:54:00:77:00:01\n    port state: 61\n\
        details partner lacp pdu:\n    system mac address: 52:54:00:77:00:65\n    port state: 61\n";

    #[test]
    fn a_link_carries_if_both_ends_say_so_and_the_partner_is_the_one() {
        let carries =
            |from: &str, to: &str| super::carries(&BOND.replacen(from, to, 1), "52:54:00:77:00:65");
        assert_eq!(carries("", ""), Some([true, true]));
        // The actor's state, the partner's, the aggregation, the partner.
        assert_eq!(carries("state: 63", "state: 7"), Some([false, true]));
        assert_eq!(carries("state: 61\ndetails", "state: 5\ndetails"), Some([true, false]));
        assert_eq!(carries("up\nAggregator ID: 1", "up\nAggregator ID: 2"), Some([false, true]));
        assert_eq!(carries("77:00:65", "77:00:66"), Some([false, true]));
        assert_eq!(carries("Slave Interface: eth1", ""), None);
    }

    #[test]
    fn the_last_second_of_each_connection_is_read() {
        let streams = |bytes: [u32; 2]| {
            let [one, other] = bytes;
            format!("\"streams\": [{{\"bytes\": {one}}}, {{\"bytes\": {other}}}]")
        };
        let interval = |seconds: f64, streams: String| {
            format!("{{{streams}, \"sum\": {{\"seconds\": {seconds}}}}}")
        };
        let [one, two, rest] = [[1, 2], [3, 0], [0, 0]].map(streams);
        let [one, two, rest] = [(1.0, one), (1.0, two), (0.01, rest)]
            .map(|(seconds, streams)| interval(seconds, streams));
        let report = format!("{{\"intervals\": [{one}, {two}, {rest}]}}");
        assert_eq!(super::last_bytes(&report), Some(vec![3, 0]));
        assert_eq!(super::last_bytes("{\"error\": \"refused\"}"), None);
    }

    #[test]
    fn a_pings_answers_are_counted() {
        let said = "\n--- 192.0.2.1 ping ---\n400 packets transmitted, 397 packets received, 0% packet loss\n";
        assert_eq!(super::answered(said), Some(397));
        assert_eq!(super::answered("ping: sendto: Network is unreachable"), None);
    }
}
