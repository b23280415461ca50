//! A fabric under BGP EVPN: two hosts as namespaces with weir and FRR, and a router between them. Also the cost of an
//! EVPN route, from which `crates/lab/tests/host/fabric.rs` estimates the largest fabric: CPU time and memory of FRR
//! and weir, on the host that announces addresses and on a host that learns them.

use std::{
    collections::HashMap,
    fs,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use weir_bed::{
    error::{Error, Result},
    fabric::{Frr, Host, Underlay, address},
    lab::Lab,
    process::{Process, run, wait_until},
    report::{Figure, Goal, Report, Samples},
    usage::Usage,
    workspace::socket_path,
};
use weir_vif::{Options, QueuePair, Vif};
use weir_wire::{Mac, Offload};

use super::Bench;

/// Interval of BFD's checks between hosts (ms).
const BFD_MS: u32 = 100;
const PATIENCE: Duration = Duration::from_secs(30);
/// Number of addresses that appear, close to the limit of one interface.
const ADDRESSES: u8 = 50;
/// Length of a frame of an experimental type (bytes).
const FRAME_LEN: usize = 60;
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];

/// The programs of a host.
struct Member {
    _vif: Vif,
    pair: QueuePair,
    mac: Mac,
    weir: String,
    control: PathBuf,
    log: PathBuf,
    _processes: [Process; 2],
    _frr: Frr,
}

impl Member {
    /// Starts host `n` of two.
    fn start(lab: &Lab, underlay: &Underlay, n: usize) -> Result<Self> {
        let host = &underlay.hosts[n - 1];
        let frr = Frr::start(host, n, &[3 - n], Some(BFD_MS))?;
        let (control, socket) =
            (socket_path(&host.dir, "control.sock")?, socket_path(&host.dir, "a.sock")?);
        let toml = host.dir.join("weir.toml");
        // The limit of floods lets almost no frame to an unknown address through.
        let text = format!(
            "[switch]\nworkers = 1\ncontrol = {control:?}\n[overlay]\nlocal = \"{}\"\nevpn = true\n\
             [network.blue]\nvni = 100\nflood_per_second = 1\n\
             [vif.a]\nsocket = {socket:?}\nnetwork = \"blue\"\nmac_check = false\n",
            address(n)
        );
        fs::write(&toml, text).map_err(Error::io("write", &toml))?;
        let program = lab.weir.to_string_lossy().into_owned();
        let processes = [
            host.start("monitor", "bridge -timestamp monitor fdb")?,
            host.start("weir", &format!("{program} run weir.toml"))?,
        ];
        wait_until("weir's sockets", PATIENCE, || Ok(control.exists() && socket.exists()))?;
        let mac = Mac([0x52, 0x54, 0, 0, n as u8, 0xff]);
        let connect = Vif::connect(&socket, &Options::new(mac));
        let mut vif = connect.map_err(|error| Error::Check(format!("a guest: {error}")))?;
        let pair = vif.queue_pairs().remove(0);
        let log = host.dir.join("monitor.log");
        let (_vif, _frr, _processes) = (vif, frr, processes);
        Ok(Self { _vif, pair, mac, weir: program, control, log, _processes, _frr })
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

    /// Returns true if a frame for this address has arrived.
    fn hears(&mut self, dst: Mac) -> bool {
        let (mut frame, mut heard) = (Vec::new(), false);
        while self.pair.recv_into(&mut frame).is_some() {
            heard |= frame.get(..6) == Some(&dst.0[..]);
        }
        heard
    }

    /// Returns the times at which FRR's host learned each address behind a device (s), from the kernel's messages.
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

/// Parses seconds of a day: `Thu Nov 26 00:49:30 2026 123456 usec`.
fn seconds(time: &str) -> Option<f64> {
    let words: Vec<_> = time.split_whitespace().collect();
    let clock: Vec<f64> = words.get(3)?.split(':').filter_map(|part| part.parse().ok()).collect();
    let [hours, minutes, seconds] = clock[..] else { return None };
    let usec: f64 = words.get(5)?.parse().ok()?;
    Some((hours * 60.0 + minutes) * 60.0 + seconds + usec / 1e6)
}

/// Starts two hosts that have each other as peers, and the underlay.
fn fabric(lab: &Lab) -> Result<([Member; 2], Underlay)> {
    let underlay = Underlay::new(&lab.workspace.run_dir("evpn")?, 2)?;
    let [mut one, mut two] = [Member::start(lab, &underlay, 1)?, Member::start(lab, &underlay, 2)?];
    let (first, second) = (one.mac, two.mac);
    wait_until("the hosts know each other", PATIENCE, || {
        one.say(second, first);
        two.say(first, second);
        Ok([&one, &two]
            .iter()
            .all(|member| member.ask("addresses").is_ok_and(|it| it.contains("evpn"))))
    })?;
    Ok(([one, two], underlay))
}

/// Measures the time from an address's first frame at one host to the arrival there of the first frame that another
/// host's guest sends to it.
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
            // These frames use up the limit of floods, so that frames for `mac` arrive only once its place is known.
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

/// Measures the time from a host's failure to the last frame that is sent to it. BFD detects it within three times
/// 100 ms.
pub(super) fn host_failure(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let mut times = Samples::default();
    for round in 1..=bench.rounds {
        let ([one, mut two], underlay) = fabric(bench.lab)?;
        // BFD begins with a long interval, and then agrees on 100 ms.
        std::thread::sleep(Duration::from_secs(4));
        let (gone, src) = (one.mac, two.mac);
        underlay.silence(1)?;
        let start = Instant::now();
        let (mut last, mut seen) = (start, underlay.sent_by(2)?);
        while start.elapsed() < Duration::from_secs(5) {
            for _ in 0..50 {
                two.say(gone, src);
            }
            std::thread::sleep(Duration::from_millis(5));
            let now = underlay.sent_by(2)?;
            // BFD and BGP send a few frames meanwhile.
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

/// Numbers of hosts. The lab is fitted to the first two, and predicts the last.
const HOSTS: [usize; 3] = [2, 3, 5];
const ROUTES: u32 = 10_000;
const ROUTES_PATIENCE: Duration = Duration::from_secs(120);
/// Time after weir's start and after the last route until FRR is idle.
const SETTLED: Duration = Duration::from_secs(4);

/// The programs of a host.
struct RouteMember {
    frr: Frr,
    weir: Process,
    program: String,
    control: String,
}

/// CPU time of zebra, bgpd and weir's EVPN thread, and memory of the same processes (bytes).
struct Used {
    times: [Duration; 3],
    bytes: [u64; 3],
}

impl RouteMember {
    fn start(lab: &Lab, host: &Host, n: usize, count: usize) -> Result<Self> {
        let others: Vec<_> = (1..=count).filter(|other| *other != n).collect();
        let frr = Frr::start(host, n, &others, None)?;
        let (control, toml) = (socket_path(&host.dir, "control.sock")?, host.dir.join("weir.toml"));
        let text = format!(
            "[switch]\nworkers = 1\nfdb_entries = 1048576\ncontrol = {control:?}\n\
             [overlay]\nlocal = \"{}\"\nevpn = true\n[network.blue]\nvni = 100\n",
            address(n)
        );
        fs::write(&toml, text).map_err(Error::io("write", &toml))?;
        let program = lab.weir.to_string_lossy().into_owned();
        let weir = host.start("weir", &format!("{program} run weir.toml"))?;
        wait_until("weir's socket", ROUTES_PATIENCE, || Ok(control.exists()))?;
        let control = control.to_string_lossy().into_owned();
        Ok(Self { frr, weir, program, control })
    }

    fn used(&self) -> Result<Used> {
        let [zebra, bgpd] =
            [&self.frr.daemons[0], &self.frr.daemons[1]].map(|it| Usage::of(it.pid()));
        let weir = Usage::of(self.weir.pid());
        Ok(Used {
            times: [zebra.cpu_time()?, bgpd.cpu_time()?, weir.cpu_time_of("weir-evpn")?],
            bytes: [zebra.resident_bytes()?, bgpd.resident_bytes()?, weir.resident_bytes()?],
        })
    }

    /// Returns the number of addresses of other hosts that weir knows.
    fn knows(&self) -> Result<u64> {
        let text = run(&[&*self.program, "stats", "--json", "--control", &*self.control])?;
        let stats: serde_json::Value =
            serde_json::from_str(&text).map_err(|_| Error::parse("weir's stats", &*text))?;
        let port =
            stats["ports"].as_array().into_iter().flatten().find(|it| it["name"] == "overlay");
        let used = port.and_then(|port| port["limits"]["addresses_blue"]["used"].as_u64());
        used.ok_or_else(|| Error::parse("addresses of the overlay", text.clone()))
    }
}

/// Measures microseconds and bytes per route on an announcing and a learning host, each for zebra, bgpd and weir.
fn measure(lab: &Lab, count: usize) -> Result<[[(f64, f64); 3]; 2]> {
    let underlay = Underlay::new(&lab.workspace.run_dir("routes")?, count)?;
    let numbered = (1..).zip(&underlay.hosts);
    let members = numbered.map(|(n, host)| RouteMember::start(lab, host, n, count));
    let members = members.collect::<Result<Vec<_>>>()?;
    let first = &underlay.hosts[0];
    for host in &underlay.hosts {
        wait_until("hosts to be neighbours", ROUTES_PATIENCE, || {
            let members = host.run("bridge fdb show dev weirv100")?;
            Ok(members.lines().filter(|line| line.starts_with("00:00:00:00:00:00 ")).count()
                == count - 1)
        })?;
    }
    thread::sleep(SETTLED);
    let all = (0..ROUTES).map(|n| {
        let [_, b, c, d] = n.to_be_bytes();
        format!("fdb add 52:55:00:{b:02x}:{c:02x}:{d:02x} dev weirt100 master static\n")
    });
    let batch = first.dir.join("batch");
    fs::write(&batch, all.collect::<String>()).map_err(Error::io("write", &batch))?;
    let before = [members[0].used()?, members[1].used()?];
    let start = Instant::now();
    first.run("bridge -batch batch")?;
    for member in &members[1..] {
        wait_until("all routes to be known", ROUTES_PATIENCE, || {
            Ok(member.knows()? >= u64::from(ROUTES))
        })?;
    }
    println!(
        "{count} hosts: {ROUTES} routes are known by all after {:.2} s",
        start.elapsed().as_secs_f64()
    );
    thread::sleep(SETTLED);
    let after = [members[0].used()?, members[1].used()?];
    let routes = f64::from(ROUTES);
    Ok([0, 1].map(|which: usize| {
        [0, 1, 2].map(|at: usize| {
            let (before, after) = (&before[which], &after[which]);
            let took = after.times[at].saturating_sub(before.times[at]);
            let bytes = after.bytes[at].saturating_sub(before.bytes[at]);
            (took.as_secs_f64() * 1e6 / routes, bytes as f64 / routes)
        })
    }))
}

/// Measures the cost for each number of hosts.
pub(super) fn cost(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    for count in HOSTS {
        let measured = measure(bench.lab, count)?;
        for (who, costs) in ["announced", "heard"].into_iter().zip(measured) {
            for (program, (us, bytes)) in ["zebra", "bgpd", "weir"].into_iter().zip(costs) {
                let what = format!("a route of {count} hosts is {who}: {program}'s part");
                let name = |unit| format!("evpn_route_{unit}_{who}_{program}_of{count}");
                report.add(Figure::new(name("us"), "us", what.clone(), Samples::one(us)));
                report.add(Figure::new(name("bytes"), "bytes", what, Samples::one(bytes)));
            }
        }
    }
    Ok(())
}
