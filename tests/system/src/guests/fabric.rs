//! Guests on two hosts of a fabric: user-mode Linux on each host, and a QEMU guest that moves between them.
//!
//! ```text
//!  host 1: stays, and the one that moves - weir - FRR ---- router ---- FRR - weir - far, host 2
//! ```

use std::{
    net::Ipv4Addr,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use weir_bed::{
    address,
    error::{Error, Result, check},
    fabric::{Fabric, MTU},
    lab::Lab,
    lines,
    qemu::{Guest, GuestSpec, QEMU, moves::Mover},
    switch::Switch,
    uml::{self, UserModeLinux, Wire},
    weir::{self, Vif, Weir},
};

use super::traffic::{no_checksum_errors, ping};

/// The network of all guests.
pub const NETWORK: (&str, u32) = ("blue", 100);
/// Guests by the numbers of their interfaces.
const STAYS: u8 = 0;
const FAR: u8 = 1;
const MOVES: u8 = 2;
/// Ports of the connections from the moving guest to the others, and back.
const PORTS: [u16; 2] = [5000, 5001];
const PATIENCE: Duration = Duration::from_secs(60);
/// Wait after the guest's old host has learned its new location.
const SETTLED: Duration = Duration::from_millis(500);

/// The measurements of a move.
#[derive(Clone, Copy, Debug)]
pub struct Moved {
    /// The guest's downtime (ms), as QEMU reports it.
    pub downtime_ms: u64,
    /// Time from the guest's resumption until its old host has an answer from it (ms).
    pub reached_ms: f64,
    /// Time from the guest's resumption until its new host has an answer from it (ms): the guest's own delay.
    pub answered_ms: f64,
    /// Number of the four connections that do not continue or that carried wrong bytes.
    pub lost_connections: u32,
}

/// All guests, with traffic between them.
pub struct Scene<'a> {
    lab: &'a Lab,
    stays: Guest,
    far: Guest,
    moves: Mover,
    /// The host of the moving guest.
    at: usize,
    lines: [u64; 4],
    fabric: Fabric,
}

impl<'a> Scene<'a> {
    /// Boots all guests and waits until the connections carry data.
    pub fn begin(lab: &'a Lab) -> Result<Self> {
        let vif = Vif { network: Some(NETWORK.0), ..Vif::default() };
        let fabric = Fabric::start(lab, 2, &[NETWORK], &vec![vif; 3], None)?;
        let machines = Machines::new(lab)?;
        let [here, there] = [fabric.weir(1)?, fabric.weir(2)?];
        let stays = machines.boot(here, STAYS, STAYS)?;
        let far = machines.boot(there, FAR, FAR)?;
        let moves = Mover::boot(QEMU, &lab.image, &spec(here)?, here.dir())?;
        for (n, index, at) in [(2, STAYS, 1), (2, MOVES, 1), (1, FAR, 2)] {
            fabric.await_at(n, NETWORK.0, &address::mac(index), at)?;
        }
        let mut scene = Self { lab, stays, far, moves, at: 1, lines: [0; 4], fabric };
        for (index, port) in [(STAYS, PORTS[0]), (FAR, PORTS[1])] {
            let other = if index == STAYS { &mut scene.stays } else { &mut scene.far };
            lines::begin(&mut scene.moves.guest, other, &address::ip(index), port)?;
            lines::begin(other, &mut scene.moves.guest, &address::ip(MOVES), port)?;
        }
        let lost = scene.lost_connections()?;
        check(lost == 0, || format!("{lost} connections carry nothing"))?;
        Ok(scene)
    }

    /// Moves the guest to the other host, while both hosts ping it.
    pub fn move_over(&mut self) -> Result<Moved> {
        let (from, to) = (self.at, 3 - self.at);
        let weir = self.fabric.weir(to)?;
        let (spec, dir) = (spec(weir)?, weir.dir().to_owned());
        let (hosts, end) = (&self.fabric.underlay.hosts, AtomicBool::new(false));
        let (moved, answers) = thread::scope(|scope| {
            let watches = [from, to].map(|n| {
                let end = &end;
                scope.spawn(move || hosts[n - 1].watches(ip(MOVES), end))
            });
            let moved = self.moves.move_to(QEMU, &self.lab.image, &spec, &dir).and_then(|moved| {
                self.at = to;
                self.fabric.await_at(from, NETWORK.0, &address::mac(MOVES), to)?;
                thread::sleep(SETTLED);
                Ok(moved)
            });
            end.store(true, Ordering::Relaxed);
            let answers = watches
                .map(|watch| watch.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            Ok::<_, Error>((moved?, answers))
        })?;
        let [reached, answered] = answers.map(|answers| {
            let later = answers?.into_iter().find_map(|at| at.duration_since(moved.resumed).ok());
            let later = later.ok_or_else(|| Error::Check("the guest is reached no more".into()))?;
            Ok::<_, Error>(later.as_secs_f64() * 1e3)
        });
        Ok(Moved {
            downtime_ms: moved.downtime_ms,
            reached_ms: reached?,
            answered_ms: answered?,
            lost_connections: self.lost_connections()?,
        })
    }

    fn lost_connections(&mut self) -> Result<u32> {
        let mut lost = 0;
        let [a, b] = PORTS;
        let [first, second, third, fourth] = &mut self.lines;
        for (guest, port, before) in [(&mut self.stays, a, first), (&mut self.far, b, second)] {
            lost += u32::from(!lines::go_on(guest, port, before)?);
        }
        for (port, before) in [(a, third), (b, fourth)] {
            lost += u32::from(!lines::go_on(&mut self.moves.guest, port, before)?);
        }
        Ok(lost)
    }
}

/// The programs that boot a fabric's guests: user-mode Linux, which boots within a second, or QEMU where user-mode
/// Linux does not run.
#[derive(Debug)]
pub struct Machines<'a> {
    lab: &'a Lab,
    uml: Option<UserModeLinux>,
}

impl<'a> Machines<'a> {
    /// Finds out whether user-mode Linux runs on this machine.
    pub fn new(lab: &'a Lab) -> Result<Self> {
        let uml = UserModeLinux::prepare_if_it_runs(&lab.workspace, &lab.image)?;
        if uml.is_none() {
            println!("QEMU is taken in its place");
        }
        Ok(Self { lab, uml })
    }

    /// The kind of guests.
    pub fn kind(&self) -> &'static str {
        if self.uml.is_some() { "user-mode Linux" } else { "QEMU" }
    }

    /// Boots guest number `number` at interface `index`, which is in a network that spans hosts.
    pub fn boot(&self, weir: &Weir, index: u8, number: u8) -> Result<Guest> {
        let Some(programs) = &self.uml else {
            let (name, cidr) = (weir::name(index), address::cidr(number));
            let spec = GuestSpec { name, cidr, vcpus: 1, plug: weir.plug(index)? };
            return Guest::boot(&self.lab.image, &spec, weir.dir());
        };
        let console = weir.dir().join(format!("{}.console", weir::name(index)));
        let mut guest = programs.boot(&Wire::VhostUser(&weir.socket(index)?), &console)?;
        // The device gives the guest neither its address nor the network's MTU.
        uml::set_addresses(&mut guest, number)?;
        guest.run(&format!("ip link set eth0 mtu {MTU}"), PATIENCE)?;
        Ok(guest)
    }
}

fn spec(weir: &Weir) -> Result<GuestSpec> {
    let (name, cidr) = (weir::name(MOVES), address::cidr(MOVES));
    Ok(GuestSpec { name, cidr, vcpus: 1, plug: weir.plug(MOVES)? })
}

fn ip(index: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, index + 1)
}

/// Ping, TCP and the MTU between guests on two hosts, and a move of a guest between the hosts.
pub(super) fn guests_on_two_hosts_reach_each_other_and_one_moves(lab: &Lab) -> Result<()> {
    let mut scene = Scene::begin(lab)?;
    let mtu = scene.moves.guest.run("cat /sys/class/net/eth0/mtu", PATIENCE)?;
    check(mtu.trim() == MTU.to_string(), || format!("the guest was told an MTU of {mtu}"))?;
    for index in [STAYS, FAR] {
        ping(&mut scene.moves.guest, &address::ip(index))?;
    }
    // A frame as long as the MTU, and a payload that needs two frames.
    for payload in [MTU - 28, 2000] {
        let command = format!("ping -c 2 -W 5 -s {payload} {}", address::ip(FAR));
        for guest in [&mut scene.stays, &mut scene.moves.guest] {
            guest.run(&command, PATIENCE)?;
        }
    }
    let moved = scene.move_over()?;
    check(moved.lost_connections == 0, || format!("{} connections lost", moved.lost_connections))?;
    for guest in [&mut scene.stays, &mut scene.far, &mut scene.moves.guest] {
        no_checksum_errors(guest)?;
    }
    for n in [1, 2] {
        let stats = scene.fabric.weir(n)?.stats()?;
        for ((port, reason), count) in stats.drops()? {
            let too_long = ["over_mtu_tx", "over_mtu_rx", "over_path_mtu"];
            check(!too_long.contains(&reason.as_str()), || format!("{count} {reason} at {port}"))?;
        }
    }
    Ok(())
}
