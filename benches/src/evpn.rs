//! A fabric under BGP EVPN: two hosts with weir and FRR, each a namespace, behind a bridge that stands for the underlay.

use std::{
    collections::HashMap,
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use weir_bed::{
    error::{Error, Result},
    lab::Lab,
    netns::Netns,
    process::{Process, run, wait_until},
    report::{Figure, Goal, Report, Samples},
    workspace::socket_path,
};
use weir_vif::{Options, QueuePair, Vif};
use weir_wire::{Mac, Offload};

use super::Bench;

const DAEMONS: [&str; 3] = ["zebra", "bgpd", "bfdd"];
const PATIENCE: Duration = Duration::from_secs(30);
/// Addresses that appear: as many as an interface may have, nearly.
const ADDRESSES: u8 = 50;
/// A frame of an experimental type, without more.
const FRAME_LEN: usize = 60;
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];

/// One host; what runs there ends before its namespace.
struct Host {
    _vif: Vif,
    pair: QueuePair,
    mac: Mac,
    weir: String,
    control: PathBuf,
    log: PathBuf,
    _processes: Vec<Process>,
    _netns: Netns,
}

impl Host {
    /// Host `n` of two.
    fn start(lab: &Lab, underlay: &Netns, n: u8) -> Result<Self> {
        let netns = Netns::new()?;
        let port = format!("p{n}");
        netns.ip(&[
            "link",
            "add",
            "u0",
            "type",
            "veth",
            "peer",
            &port,
            "netns",
            underlay.name(),
        ])?;
        underlay.ip(&["link", "set", &port, "master", "br0", "up"])?;
        netns.configure("u0", &format!("192.0.2.{n}/24"))?;
        let dir = lab.workspace.run_dir(&format!("evpn{n}"))?;
        let run_dir = dir.join("frr");
        fs::create_dir_all(&run_dir).map_err(Error::io("make", &run_dir))?;
        let config = run_dir.join("frr.conf");
        fs::write(&config, frr_config(n)).map_err(Error::io("write", &config))?;
        run(&["chown", "-R", "frr:frr", &run_dir.to_string_lossy()])?;
        let (control, socket) = (socket_path(&dir, "control.sock")?, socket_path(&dir, "a.sock")?);
        let toml = dir.join("weir.toml");
        // Hardly a frame goes to who is not known.
        let text = format!(
            "[switch]\nworkers = 1\ncontrol = {control:?}\n[overlay]\nlocal = \"192.0.2.{n}\"\nevpn = true\n\
             [network.blue]\nvni = 100\nflood_per_second = 1\n\
             [vif.a]\nsocket = {socket:?}\nnetwork = \"blue\"\nmac_check = false\n"
        );
        fs::write(&toml, text).map_err(Error::io("write", &toml))?;
        let program = lab.weir.to_string_lossy().into_owned();
        // `ip netns exec` gives each program mounts of its own, so that each host has a /run/frr.
        let start = |name: &str, line: &str| {
            let run_dir = run_dir.display();
            let line =
                format!("mkdir -p /run/frr && mount --bind {run_dir} /run/frr && exec {line}");
            let argv = ["ip", "netns", "exec", netns.name(), "sh", "-c", &line];
            Process::start_logged(&argv, &weir_bed::process::Placement::default(), &dir.join(name))
        };
        let mut processes = Vec::new();
        for daemon in DAEMONS {
            let line = format!("/usr/lib/frr/{daemon} -f /run/frr/frr.conf --log stdout");
            processes.push(start(daemon, &line)?);
            let vty = run_dir.join(format!("{daemon}.vty"));
            wait_until(daemon, PATIENCE, || Ok(vty.exists()))?;
        }
        processes.push(start("monitor", "bridge -timestamp monitor fdb")?);
        processes.push(start("weir.log", &format!("{program} run {}", toml.display()))?);
        wait_until("weir's sockets", PATIENCE, || Ok(control.exists() && socket.exists()))?;
        let mac = Mac([0x52, 0x54, 0, 0, n, 0xff]);
        let connect = Vif::connect(&socket, &Options::new(mac));
        let mut vif = connect.map_err(|error| Error::Check(format!("a guest: {error}")))?;
        let pair = vif.queue_pairs().remove(0);
        let log = dir.join("monitor");
        Ok(Self {
            _vif: vif,
            pair,
            mac,
            weir: program,
            control,
            log,
            _processes: processes,
            _netns: netns,
        })
    }

    fn ask(&self, command: &str) -> Result<String> {
        run(&[&self.weir, command, "--json", "--control", &self.control.to_string_lossy()])
    }

    fn say(&mut self, dst: Mac, src: Mac) {
        let mut frame = [&dst.0[..], &src.0, &ETHERTYPE].concat();
        frame.resize(FRAME_LEN, 0);
        let _ = self.pair.send(&frame, &Offload::NONE);
        self.pair.flush();
    }

    /// Whether a frame for this address is among those that have come.
    fn hears(&mut self, dst: Mac) -> bool {
        let (mut frame, mut heard) = (Vec::new(), false);
        while self.pair.recv_into(&mut frame).is_some() {
            heard |= frame.get(..6) == Some(&dst.0[..]);
        }
        heard
    }

    /// When FRR's host had an address behind a device (s), by what the kernel told.
    fn noted(&self, device: &str) -> Result<HashMap<String, f64>> {
        let text = fs::read_to_string(&self.log).map_err(Error::io("read", &self.log))?;
        let behind = format!("dev {device} ");
        let (mut noted, mut at) = (HashMap::new(), None);
        for line in text.lines() {
            if let Some(time) = line.strip_prefix("Timestamp: ") {
                at = seconds(time);
            } else if line.contains(&behind)
                && line.contains("master")
                && !line.starts_with("Del")
                && let (Some(mac), Some(at)) = (line.split_whitespace().next(), at)
            {
                noted.entry(mac.to_owned()).or_insert(at);
            }
        }
        Ok(noted)
    }
}

/// Seconds of a day: `Thu Nov 26 00:49:30 2026 123456 usec`.
fn seconds(time: &str) -> Option<f64> {
    let words: Vec<_> = time.split_whitespace().collect();
    let clock: Vec<f64> = words.get(3)?.split(':').filter_map(|part| part.parse().ok()).collect();
    let [hours, minutes, seconds] = clock[..] else { return None };
    let usec: f64 = words.get(5)?.parse().ok()?;
    Some((hours * 60.0 + minutes) * 60.0 + seconds + usec / 1e6)
}

fn frr_config(n: u8) -> String {
    let other = 3 - n;
    format!(
        "router bgp 65000\n bgp router-id 192.0.2.{n}\n no bgp default ipv4-unicast\n\
         \x20neighbor 192.0.2.{other} remote-as 65000\n neighbor 192.0.2.{other} timers connect 1\n\
         \x20neighbor 192.0.2.{other} bfd profile fast\n address-family l2vpn evpn\n\
         \x20 neighbor 192.0.2.{other} activate\n  advertise-all-vni\n exit-address-family\n\
         bfd\n profile fast\n  transmit-interval 100\n  receive-interval 100\n  detect-multiplier 3\n"
    )
}

/// Two hosts that know each other, and the underlay.
fn fabric(lab: &Lab) -> Result<([Host; 2], Netns)> {
    let underlay = Netns::new()?;
    underlay.add_bridge("br0")?;
    let [mut one, mut two] = [Host::start(lab, &underlay, 1)?, Host::start(lab, &underlay, 2)?];
    let (first, second) = (one.mac, two.mac);
    wait_until("the hosts know each other", PATIENCE, || {
        one.say(second, first);
        two.say(first, second);
        Ok([&one, &two]
            .iter()
            .all(|host| host.ask("addresses").is_ok_and(|it| it.contains("evpn"))))
    })?;
    Ok(([one, two], underlay))
}

/// From the first frame of an address at one host to the first frame for it that another host's guest sends there.
pub(super) fn reachable(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let ([mut one, mut two], _underlay) = fabric(bench.lab)?;
    let nobody = Mac([0x52, 0x54, 0, 0, 9, 9]);
    let (mut times, mut macs) = (Vec::new(), Vec::new());
    for host in 0..ADDRESSES {
        let mac = Mac([0x52, 0x54, 0, 0, 7, host]);
        let src = two.mac;
        one.hears(mac);
        let start = Instant::now();
        one.say(nobody, mac);
        while !one.hears(mac) {
            if start.elapsed() > PATIENCE {
                return Err(Error::Timeout { what: format!("{mac} is reached"), after: PATIENCE });
            }
            // What may go to all goes to nobody.
            for _ in 0..9 {
                two.say(nobody, src);
            }
            two.say(mac, src);
            std::thread::sleep(Duration::from_millis(1));
        }
        times.push(start.elapsed().as_secs_f64() * 1e3);
        macs.push(mac.to_string());
    }
    std::thread::sleep(Duration::from_millis(100));
    let (told, noted) = (one.noted("weirt100")?, two.noted("weirv100")?);
    let frr = macs.iter().filter_map(|mac| Some((noted.get(mac)? - told.get(mac)?) * 1e3));
    let frr: Vec<f64> = frr.collect();
    if frr.len() < macs.len() / 2 {
        return Err(Error::Check(format!("FRR's part is known of {} addresses", frr.len())));
    }
    let what =
        "an address appears at one host, until a guest of another one reaches it: 95th percentile";
    let figure = Figure::new("evpn_reachable_ms", "ms", what, Samples::one(percentile_95(times)));
    report.add(figure.goal(Some(Goal::AtMost(200.0))));
    let what = "the same: FRR's part, from the kernel of one host to the kernel of the other";
    let frr = Samples::one(percentile_95(frr));
    report.add(Figure::new("evpn_reachable_frr_ms", "ms", what, frr));
    Ok(())
}

/// From a host's silence to the last frame that is sent there. BFD: three times 100 ms.
pub(super) fn host_failure(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let mut times = Samples::default();
    for round in 1..=bench.rounds {
        let ([one, mut two], underlay) = fabric(bench.lab)?;
        // BFD begins slowly, and then agrees on 100 ms.
        std::thread::sleep(Duration::from_secs(4));
        let (gone, src) = (one.mac, two.mac);
        let sent = |underlay: &Netns| -> Result<u64> {
            // Bytes that come from host 2.
            let stats = underlay.exec(&["ip", "-s", "-j", "link", "show", "dev", "p2"])?;
            let stats: serde_json::Value =
                serde_json::from_str(&stats).map_err(|error| Error::Check(error.to_string()))?;
            Ok(stats[0]["stats64"]["rx"]["bytes"].as_u64().unwrap_or(0))
        };
        underlay.ip(&["link", "set", "p1", "down"])?;
        let start = Instant::now();
        let (mut last, mut seen) = (start, sent(&underlay)?);
        while start.elapsed() < Duration::from_secs(5) {
            for _ in 0..50 {
                two.say(gone, src);
            }
            std::thread::sleep(Duration::from_millis(5));
            let now = sent(&underlay)?;
            // BFD and BGP say a little meanwhile.
            if now - seen >= 25 * FRAME_LEN as u64 {
                last = Instant::now();
            }
            seen = now;
        }
        let took = (last - start).as_secs_f64() * 1e3;
        println!("round {round}/{}: {took:.0} ms", bench.rounds);
        times.push(took);
    }
    let what = "a host falls silent, until no frame is sent there any more";
    report.add(Figure::new("host_failure_ms", "ms", what, times).goal(Some(Goal::AtMost(1000.0))));
    Ok(())
}

fn percentile_95(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get((times.len() * 95).div_ceil(100).saturating_sub(1)).copied().unwrap_or(f64::NAN)
}
