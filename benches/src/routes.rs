//! Cost of an EVPN route, from which the lab estimates the largest fabric (`weir_lab::fabric`): CPU time and memory
//! of FRR and weir, on the host that announces addresses and on a host that learns them.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use weir_bed::{
    error::{Error, Result},
    fabric::{Frr, Host, Underlay, address},
    lab::Lab,
    process::{Process, run, wait_until},
    report::{Figure, Report, Samples},
    usage::Usage,
    workspace::socket_path,
};

use super::Bench;

/// Numbers of hosts. The lab is fitted to the first two, and predicts the last.
const HOSTS: [usize; 3] = [2, 3, 5];
const ROUTES: u32 = 10_000;
const PATIENCE: Duration = Duration::from_secs(120);
/// Time after weir's start and after the last route until FRR is idle.
const SETTLED: Duration = Duration::from_secs(4);

/// The programs of a host.
struct Member {
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

impl Member {
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
        wait_until("weir's socket", PATIENCE, || Ok(control.exists()))?;
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
    let members = numbered.map(|(n, host)| Member::start(lab, host, n, count));
    let members = members.collect::<Result<Vec<_>>>()?;
    let first = &underlay.hosts[0];
    for host in &underlay.hosts {
        wait_until("hosts to be neighbours", PATIENCE, || {
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
        wait_until(
            "all routes to be known",
            PATIENCE,
            || Ok(member.knows()? >= u64::from(ROUTES)),
        )?;
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
