//! Traffic through an uplink into a network namespace, and two uplinks into one LAN: a Linux bridge.

use std::{
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use serde_json::Value;
use weir_bed::{
    address,
    error::{Error, Result, check},
    iperf::{self, Direction, Tcp, Transfer},
    lab::Lab,
    netns::Netns,
    process::{Process, run, wait_until},
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

#[cfg(test)]
mod tests {
    #[test]
    fn a_pings_answers_are_counted() {
        let said = "\n--- 192.0.2.1 ping ---\n400 packets transmitted, 397 packets received, 0% packet loss\n";
        assert_eq!(super::answered(said), Some(397));
        assert_eq!(super::answered("ping: sendto: Network is unreachable"), None);
    }
}
