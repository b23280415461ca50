//! `make demo-fabric`: three hosts under BGP EVPN, two tenants with the same addresses, a guest that moves, and a
//! host that fails.
//!
//! ```text
//!          host 1          host 2        host 3
//!  blue    web*, cache     db                        * a QEMU, which moves to host 3
//!  red     shop            till          store       the same addresses as web, cache and db
//! ```

use std::{
    net::Ipv4Addr,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant, SystemTime},
};

use weir_bed::{
    address,
    error::{Error, Result, check},
    fabric::Fabric,
    iperf::{self, Tcp},
    lab::Lab,
    lines,
    process::{Placement, Process, wait_until},
    qemu::{Guest, GuestSpec, QEMU, moves::Mover},
    switch::Switch,
    weir::{self, Vif, Weir},
    weir_stats::Way,
    workspace::Programs,
};
use weir_system_tests::guests::fabric::Machines;

use crate::demo::{Shown, Step};

const STEPS: &[Step] = &[
    Step { title: "Three hosts, a router between them, FRR and weir on each", seconds: 2 },
    Step { title: "Guests boot", seconds: 12 },
    Step { title: "Who is where", seconds: 1 },
    Step { title: "Traffic between hosts", seconds: 5 },
    Step { title: "Two tenants, the same addresses", seconds: 1 },
    Step { title: "A guest moves to another host, with TCP going on", seconds: 4 },
    Step { title: "A host dies", seconds: 2 },
    Step { title: "Its guest starts again on another host", seconds: 3 },
];

const NETWORKS: [(&str, u32); 2] = [("blue", 100), ("red", 200)];
const BLUE: &str = "blue";
/// BFD interval of the hosts (ms). A host is down after three missed messages.
const BFD_MS: u32 = 200;
const PATIENCE: Duration = Duration::from_secs(60);
/// Ports of the connections of the moving guest.
const PORTS: [u16; 2] = [5000, 5001];
const SECONDS: u64 = 2;

/// A guest and its interface, whose name and index are the same on each host.
#[derive(Clone, Copy)]
struct Place {
    name: &'static str,
    network: &'static str,
    index: u8,
    /// Number in the guest's addresses. Both tenants use the same numbers.
    number: u8,
    mac: &'static str,
    host: usize,
}

const fn place(
    (name, network): (&'static str, &'static str),
    (index, number): (u8, u8),
    mac: &'static str,
    host: usize,
) -> Place {
    Place { name, network, index, number, mac, host }
}

const WEB: Place = place(("web", "blue"), (0, 0), "52:54:00:77:00:01", 1);
const CACHE: Place = place(("cache", "blue"), (1, 1), "52:54:00:77:00:02", 1);
const DB: Place = place(("db", "blue"), (2, 2), "52:54:00:77:00:03", 2);
const SHOP: Place = place(("shop", "red"), (3, 0), "52:54:00:77:00:01", 1);
const TILL: Place = place(("till", "red"), (4, 1), "52:54:00:77:00:02", 2);
const STORE: Place = place(("store", "red"), (5, 2), "52:54:00:77:00:03", 3);
const PLACES: [Place; 6] = [WEB, CACHE, DB, SHOP, TILL, STORE];

impl Place {
    fn ip(self) -> String {
        address::ip(self.number)
    }
}

/// The demo's participants. Guests are dropped before the hosts.
struct Demo<'a> {
    lab: &'a Lab,
    machines: Machines<'a>,
    shown: Shown,
    web: Mover,
    cache: Guest,
    db: Option<Guest>,
    shop: Guest,
    _vifs: Vec<Process>,
    fabric: Fabric,
}

/// Runs the demo.
pub fn run(lab: &Lab) -> Result<()> {
    let mut shown = Shown::new(STEPS);
    shown.step();
    let begun = Instant::now();
    let vif =
        |place: Place| Vif { network: Some(place.network), mac: Some(place.mac), ..Vif::default() };
    let fabric = Fabric::start(lab, 3, &NETWORKS, &PLACES.map(vif), Some(BFD_MS))?;
    shown.say(&format!(
        "Hosts are network namespaces at 192.0.2.1, .2 and .3, each behind a link of its own. Logs are in {}. It \
         took {:.1} s.",
        fabric.weir(1)?.dir().display(),
        begun.elapsed().as_secs_f64()
    ));
    let mut demo = Demo::boot(lab, fabric, shown)?;
    demo.who_is_where()?;
    demo.traffic()?;
    demo.tenants()?;
    let mut connections = demo.move_web()?;
    demo.host_dies()?;
    demo.start_db_again()?;
    check(lines::go_on(&mut demo.cache, PORTS[0], &mut connections[0])?, || {
        String::from("the connection of web and cache has ended")
    })?;
    demo.shown.say("The connection of web and cache has gone on through all of it.");
    let files = ["weir.toml", "frr.conf"].map(|name| demo.fabric.underlay.hosts[0].dir.join(name));
    let path = demo.shown.write(&lab.workspace, &files)?;
    println!("written: {}", path.display());
    Ok(())
}

fn spec(weir: &Weir) -> Result<GuestSpec> {
    let (name, cidr) = (WEB.name.to_owned(), address::cidr(WEB.number));
    Ok(GuestSpec { name, cidr, vcpus: 1, plug: weir.plug(WEB.index)? })
}

/// Starts a user-space guest that only answers ARP and ping.
fn start_vif(lab: &Lab, weir: &Weir, place: Place) -> Result<Process> {
    let program = Programs::beside(&lab.weir).example("guests");
    let (program, socket) = (program.to_string_lossy(), weir.socket(place.index)?);
    let argv = [&*program, "answer", &*socket.to_string_lossy(), place.mac, &place.ip()];
    let log = weir.dir().join(format!("{}.log", place.name));
    Process::start_logged(&argv, &Placement::default(), &log)
}

impl<'a> Demo<'a> {
    fn boot(lab: &'a Lab, fabric: Fabric, mut shown: Shown) -> Result<Self> {
        shown.step();
        let begun = Instant::now();
        let machines = Machines::new(lab)?;
        let weir = |place: Place| fabric.weir(place.host);
        let vifs = [TILL, STORE].map(|place| start_vif(lab, weir(place)?, place));
        let boot = |place: Place| machines.boot(weir(place)?, place.index, place.number);
        let [cache, db, shop] = [boot(CACHE)?, boot(DB)?, boot(SHOP)?];
        let here = weir(WEB)?;
        let web = Mover::boot(QEMU, &lab.image, &spec(here)?, here.dir())?;
        let mut table = String::from("guest  network  addresses                      host  what\n");
        for Place { name, network, number, mac, host, .. } in PLACES {
            let what = match name {
                "web" => "QEMU",
                "till" | "store" => "a user-space guest of weir's",
                _ => machines.kind(),
            };
            let ip = address::ip(number);
            table += &format!("{name:<7}{network:<9}{ip:<12}{mac:<19}{host:<6}{what}\n");
        }
        shown.show("guests", &table);
        shown.say(&format!("They have booted in {:.1} s.", begun.elapsed().as_secs_f64()));
        let vifs = vifs.into_iter().collect::<Result<_>>()?;
        Ok(Self { lab, machines, shown, web, cache, db: Some(db), shop, _vifs: vifs, fabric })
    }

    /// Shows the addresses that weir and FRR of host 1 know.
    fn who_is_where(&mut self) -> Result<()> {
        self.shown.step();
        for place in PLACES.into_iter().filter(|place| place.host != 1) {
            self.fabric.await_at(1, place.network, place.mac, place.host)?;
        }
        self.show_addresses()?;
        let said =
            self.fabric.underlay.hosts[0].run("vtysh -c 'show evpn mac vni 100' 2>/dev/null")?;
        self.shown.show("vtysh -c 'show evpn mac vni 100'   # host 1", &said);
        Ok(())
    }

    fn show_addresses(&mut self) -> Result<()> {
        let table = self.fabric.weir(1)?.control(&["addresses"])?;
        self.shown.show("weir addresses   # host 1", &table);
        Ok(())
    }

    fn traffic(&mut self) -> Result<()> {
        self.shown.step();
        for (from, to) in [(CACHE, DB), (CACHE, WEB)] {
            let command = format!("ping -c 5 -i 0.2 {}", to.ip());
            let said = self.cache.run(&command, PATIENCE)?;
            let times = said.lines().last().unwrap_or_default().to_owned();
            self.shown.say(&format!("{} pings {}: {times}", from.name, to.name));
        }
        let db = self.db.as_mut().ok_or_else(|| Error::Check("db is dead".into()))?;
        iperf::serve(db, iperf::PORT)?;
        let rate = Tcp::to(DB.ip(), SECONDS).run(&mut self.cache)?;
        let mtu = self.web.guest.run("cat /sys/class/net/eth0/mtu", PATIENCE)?;
        self.shown.say(&format!(
            "iperf3 from cache to db, on another host: {:.2} Gbit/s over TCP. web was told an MTU of {}.",
            rate.gbit_per_second(),
            mtu.trim()
        ));
        Ok(())
    }

    /// Pings an address from the network red that exists in blue, too.
    fn tenants(&mut self) -> Result<()> {
        self.shown.step();
        let received = |demo: &Self, place: Place| -> Result<u64> {
            let stats = demo.fabric.weir(place.host)?.stats()?;
            Ok(stats.frames_by_queue(&weir::name(place.index), Way::Rx)?.iter().sum())
        };
        let before = [received(self, STORE)?, received(self, DB)?];
        let said = self.shop.run(&format!("ping -c 20 -i 0.05 {}", STORE.ip()), PATIENCE)?;
        let times = said.lines().last().unwrap_or_default().to_owned();
        let [red, blue] = [received(self, STORE)? - before[0], received(self, DB)? - before[1]];
        check(red >= 20, || format!("red's {} got {red} frames only", STORE.ip()))?;
        self.shown.say(&format!(
            "shop of red pings {ip}: {times}. red's {ip} (store, host 3) got {red} frames \
             meanwhile, and blue's (db, host 2) {blue}.",
            ip = STORE.ip(),
        ));
        Ok(())
    }

    /// Migrates web to host 3. Returns the lines of its two connections so far.
    fn move_web(&mut self) -> Result<[u64; 2]> {
        const TO: usize = 3;
        self.shown.step();
        let mut before = [0; 2];
        let db = self.db.as_mut().ok_or_else(|| Error::Check("db is dead".into()))?;
        lines::begin(&mut self.web.guest, &mut self.cache, &CACHE.ip(), PORTS[0])?;
        lines::begin(&mut self.web.guest, db, &DB.ip(), PORTS[1])?;
        let weir = self.fabric.weir(TO)?;
        let (spec, dir) = (spec(weir)?, weir.dir().to_owned());
        let (web, image) = (&mut self.web, &self.lab.image);
        let fabric = &self.fabric;
        let (moved, answers) = watched(fabric, WEB, || {
            let moved = web.move_to(QEMU, image, &spec, &dir)?;
            fabric.await_at(1, BLUE, WEB.mac, TO)?;
            Ok(moved)
        })?;
        let reached = answers.iter().find_map(|at| at.duration_since(moved.resumed).ok());
        let mut lost = 0;
        for (guest, (port, before)) in
            [&mut self.cache, db].into_iter().zip(PORTS.into_iter().zip(&mut before))
        {
            lost += u32::from(!lines::go_on(guest, port, before)?);
        }
        self.shown.say(&format!(
            "web has moved from host 1 to host {TO}. It stood still for {} ms, and answered host 1 (52:54:00:77:01:01, a \
             TAP in blue) {:.0} ms later. Of its TCP connections to cache (host 1) and db (host 2), {lost} were lost.",
            moved.downtime_ms,
            reached.unwrap_or_default().as_secs_f64() * 1e3
        ));
        check(lost == 0, || format!("{lost} connections were lost"))?;
        self.show_addresses()?;
        Ok(before)
    }

    /// Disconnects host 2 without notice.
    fn host_dies(&mut self) -> Result<()> {
        self.shown.step();
        self.fabric.underlay.silence(DB.host)?;
        let start = Instant::now();
        let fabric = &self.fabric;
        for n in [1, 3] {
            wait_until("the host's guests to be gone", PATIENCE, || {
                Ok(fabric.behind(n, BLUE, DB.mac)?.is_none())
            })?;
        }
        self.shown.say(&format!(
            "Host 2 is cut off. {:.0} ms later no weir has its guests any more, and nobody sends there (BFD: three \
             times {BFD_MS} ms).",
            start.elapsed().as_secs_f64() * 1e3
        ));
        self.show_addresses()?;
        // The host's programs must end, or they would live on behind the link that is down.
        self.db = None;
        if let Some(weir) = self.fabric.weirs.get_mut(DB.host - 1) {
            *weir = None;
        }
        Ok(())
    }

    fn start_db_again(&mut self) -> Result<()> {
        const TO: usize = 3;
        self.shown.step();
        let begun = SystemTime::now();
        let (fabric, machines) = (&self.fabric, &self.machines);
        let (db, answers) = watched(fabric, DB, || {
            let db = machines.boot(fabric.weir(TO)?, DB.index, DB.number)?;
            fabric.await_at(1, BLUE, DB.mac, TO)?;
            Ok(db)
        })?;
        self.db = Some(db);
        let reached = answers.first().and_then(|at| at.duration_since(begun).ok());
        let reached = reached.ok_or_else(|| Error::Check("db is not reached there".into()))?;
        let said = self.cache.run(&format!("ping -c 3 -i 0.2 {}", DB.ip()), PATIENCE)?;
        let times = said.lines().last().unwrap_or_default().to_owned();
        self.shown.say(&format!(
            "db was started again on host {TO}, and host 1 reached it {:.1} s after its start. cache pings it: {times}",
            reached.as_secs_f64()
        ));
        self.show_addresses()
    }
}

/// Runs `body` while host 1 pings a guest of blue, and continues to ping for a moment. Returns the times of the
/// answers.
fn watched<T>(
    fabric: &Fabric,
    place: Place,
    body: impl FnOnce() -> Result<T>,
) -> Result<(T, Vec<SystemTime>)> {
    const MORE: Duration = Duration::from_millis(500);
    let (host, end) = (&fabric.underlay.hosts[0], AtomicBool::new(false));
    let ip = Ipv4Addr::new(10, 77, 0, place.number + 1);
    thread::scope(|scope| {
        let watch = scope.spawn(|| host.watches(ip, &end));
        let done = body();
        thread::sleep(MORE);
        end.store(true, Ordering::Relaxed);
        let answers = watch.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok((done?, answers?))
    })
}
