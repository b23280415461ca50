//! Traffic through an uplink into a network namespace, and two uplinks into one LAN: a Linux bridge.

use std::{
    fs,
    path::Path,
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
    report,
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

/// Writes the time from the first looping frame to the block into `report.json`.
pub(super) fn two_uplinks_into_one_lan_are_blocked_until_the_loop_is_cut(lab: &Lab) -> Result<()> {
    let (dir, netns) = (lab.workspace.run_dir("loops")?, Netns::new()?);
    let (control, file) = (socket_path(&dir, "control.sock")?, dir.join("weir.toml"));
    let uplinks = ["lan0", "lan1"]
        .map(|name| format!("[uplink.{name}]\nkind = \"tap\"\nname = \"{name}\"\n"));
    let config = format!("[switch]\nworkers = 1\ncontrol = {control:?}\n{}", uplinks.concat());
    fs::write(&file, config).map_err(Error::io("write", &file))?;
    netns.add_bridge("br0")?;
    netns.configure("br0", "192.0.2.1/24")?;
    let program = lab.weir.to_string_lossy();
    let argv = [&program, "run", &file.to_string_lossy()];
    let _weir = Process::start_logged(&argv, &netns.placement(), &dir.join("weir.log"))?;
    wait_until("weir's control socket", PATIENCE, || Ok(stats(&program, &control).is_ok()))?;
    for lan in ["lan0", "lan1"] {
        netns.ip(&["link", "set", lan, "master", "br0", "up"])?;
    }

    let busybox = lab.image.busybox.to_string_lossy();
    let begun = Instant::now();
    // The address is not in use: the bridge broadcasts an ARP request for it.
    let ping = [&busybox, "ping", "-c", "1", "-W", "1", "192.0.2.99"];
    let _ping = Process::start_logged(&ping, &netns.placement(), &dir.join("ping.log"))?;
    let mut found_ms = None;
    wait_until("a port to be blocked", PATIENCE, || {
        let stats = stats(&program, &control)?;
        let (since_begun, block) = (begun.elapsed(), &port(&stats, "lan1")["blocked"]);
        let for_s = block["seconds"].as_f64();
        found_ms = for_s.map(|for_s| (since_begun.as_secs_f64() - for_s) * 1e3);
        Ok(found_ms.is_some())
    })?;
    let found_ms = found_ms.unwrap_or_default();
    println!("  found {found_ms:.0} ms after the first frame");
    report::merge(&lab.workspace, &[("loop_found_ms", found_ms)])?;

    // The LAN is quiet: frames from the blocked port were dropped, and the other port brings no more.
    let frames =
        || Ok::<_, Error>(port(&stats(&program, &control)?, "lan0")["tx"]["frames"].as_u64());
    wait_until("a calm LAN", PATIENCE, || {
        let before = frames()?;
        std::thread::sleep(Duration::from_millis(200));
        Ok(frames()? == before)
    })?;
    let now = stats(&program, &control)?;
    check(port(&now, "lan0")["blocked"].is_null(), || format!("both are blocked: {now}"))?;
    check(port(&now, "lan1")["blocked"]["with"] == "lan0", || format!("not with lan0: {now}"))?;
    netns.ip(&["link", "set", "lan1", "nomaster"])?;
    wait_until("the port to forward again", PATIENCE, || {
        Ok(port(&stats(&program, &control)?, "lan1")["blocked"].is_null())
    })
}

fn stats(program: &str, control: &Path) -> Result<Value> {
    let text = run(&[program, "--control", &control.to_string_lossy(), "stats", "--json"])?;
    serde_json::from_str(&text).map_err(|_| Error::parse("what weir stats printed", text.as_str()))
}

fn port<'s>(stats: &'s Value, name: &str) -> &'s Value {
    let mut ports = stats["ports"].as_array().into_iter().flatten();
    ports.find(|port| port["name"] == name).unwrap_or(&Value::Null)
}
