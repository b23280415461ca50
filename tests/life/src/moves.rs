//! Live migration there and back under traffic in both directions, compared with the same guests on TAPs and kernel
//! bridges.
//!
//! Both setups run and have traffic all the time; their moves take turns.

use std::{path::PathBuf, thread, time::Duration};

use weir_bed::{
    address,
    error::{Error, Result},
    lab::Lab,
    lines,
    netns::Netns,
    qemu::{Guest, GuestSpec, Qemu, moves::Mover},
    report::{Goal, Samples},
    uplink::Uplink,
    weir::{self, Setup, Vif, Weir},
};
use weir_system_tests::{frontends::parts::Parts, guests::moves::join};

use crate::{
    bars::Bars,
    real::{Flood, RULES},
};

const PORT: u16 = 5000;
/// Time between two moves.
const TRAFFIC: Duration = Duration::from_secs(1);
/// Longest downtime of a guest: QEMU's default.
const DOWNTIME_MS_MAX: u64 = 300;
const BRIDGE: &str = "bridge";

/// A QEMU and a device.
struct Cell {
    name: String,
    qemu: Qemu,
    program: String,
    queues: u8,
    device: &'static str,
}

/// Returns the cells: QEMU 7.2 and 10, one and four queues, split and packed rings.
fn cells(lab: &Lab) -> Result<Vec<Cell>> {
    let parts = Parts::new(&lab.workspace)?;
    let mut cells = Vec::new();
    for (version, found) in [("7.2", parts.old_qemu()), ("10", parts.new_qemu(&lab.workspace))] {
        let (qemu, program) = found?;
        for queues in [1, 4] {
            for (format, device) in [("split", ""), ("packed", ",packed=on")] {
                let name = format!("QEMU {version}, {queues} queues, {format}");
                cells.push(Cell { name, qemu, program: program.clone(), queues, device });
            }
        }
    }
    Ok(cells)
}

/// The results.
#[derive(Default)]
struct Found {
    failures: u32,
    moves: u32,
    lost_connections: u32,
    weir_ms: Samples,
    bridge_ms: Samples,
}

/// Moves guests `moves` times on weir, and as often on bridges.
pub fn run(lab: &Lab, moves: u32, _: u64, bars: &mut Bars) -> Result<()> {
    let cells = cells(lab)?;
    let each = moves.div_ceil(cells.len() as u32);
    let mut found = Found::default();
    for cell in &cells {
        let before = found.failures + found.moves;
        if let Err(error) = measure(lab, cell, each, &mut found) {
            println!("{}: {error}", cell.name);
            // Moves that could not be made count as failures.
            found.failures += each - (found.failures + found.moves - before);
        }
    }
    let none = Some(Goal::AtMost(0.0));
    bars.add("migration_moves", f64::from(found.moves), None);
    bars.add("migration_failures", f64::from(found.failures), none);
    bars.add("migration_lost_tcp_connections", f64::from(found.lost_connections), none);
    if found.bridge_ms.is_empty() {
        return Err(Error::Check("no guest moved on both".into()));
    }
    let ratios = found.weir_ms.ratio_to(&found.bridge_ms);
    bars.add("migration_downtime_ms", found.weir_ms.median(), None);
    bars.add("migration_downtime_tap_bridge_ms", found.bridge_ms.median(), None);
    bars.add("migration_downtime_vs_tap_bridge", ratios.median(), Some(Goal::AtMost(1.0)));
    Ok(())
}

fn measure(lab: &Lab, cell: &Cell, moves: u32, found: &mut Found) -> Result<()> {
    let weirs = Weirs::start(lab, cell)?;
    let bridges = Bridges::start(lab)?;
    let mut on_weir =
        Pair::boot(lab, cell, |index, at| weirs.spec(cell, index, at), &weirs.dirs())?;
    // Another tenant at each of the two hosts.
    let floods = [Flood::begin(&weirs.0[0])?, Flood::begin(&weirs.0[1])?];
    let mut on_bridge =
        Pair::boot(lab, cell, |index, at| bridges.spec(&weirs, cell, index, at), &bridges.dirs)?;
    for nth in 1..=moves {
        let at = (nth % 2) as usize;
        thread::sleep(TRAFFIC);
        let spec = weirs.spec(cell, 1, at)?;
        let moved = on_weir.moves.move_to(&cell.program, &lab.image, &spec, &weirs.dirs()[at])?;
        let weir_ms = moved.downtime_ms;
        found.moves += 1;
        found.lost_connections += on_weir.lost_connections()?;
        for flood in &floods {
            flood.goes_on()?;
        }
        thread::sleep(TRAFFIC);
        let spec = bridges.spec(&weirs, cell, 1, at)?;
        let moved = on_bridge.moves.move_to(&cell.program, &lab.image, &spec, &bridges.dirs[at])?;
        let bridge_ms = moved.downtime_ms;
        let lost = on_bridge.lost_connections()?;
        println!(
            "{}, move {nth}: stood still for {weir_ms} ms, on TAPs and bridges for {bridge_ms} ms{}",
            cell.name,
            if lost > 0 { ", where a connection was lost" } else { "" }
        );
        // QEMU reports whole milliseconds.
        found.weir_ms.push(weir_ms.max(1) as f64);
        found.bridge_ms.push(bridge_ms.max(1) as f64);
    }
    Ok(())
}

/// A guest that stays and one that moves, with a connection in each direction.
struct Pair {
    stays: Guest,
    moves: Mover,
    lines: [u64; 2],
}

impl Pair {
    fn boot(
        lab: &Lab,
        cell: &Cell,
        spec: impl Fn(u8, usize) -> Result<GuestSpec>,
        dirs: &[PathBuf; 2],
    ) -> Result<Self> {
        let (image, dir) = (&lab.image, &dirs[0]);
        let mut stays = Guest::boot_under(&cell.program, image, &spec(0, 0)?, dir)?;
        let mut moves = Mover::boot(&cell.program, image, &spec(1, 0)?, dir)?;
        moves.downtime_ms_max = DOWNTIME_MS_MAX;
        lines::begin(&mut stays, &mut moves.guest, &address::ip(1), PORT)?;
        lines::begin(&mut moves.guest, &mut stays, &address::ip(0), PORT)?;
        let mut this = Self { stays, moves, lines: [0; 2] };
        let lost = this.lost_connections()?;
        if lost > 0 {
            return Err(Error::Check(format!("{lost} connections carry nothing")));
        }
        Ok(this)
    }

    /// Returns how many of the two connections have stopped or have carried wrong bytes.
    fn lost_connections(&mut self) -> Result<u32> {
        let guests = [&mut self.stays, &mut self.moves.guest];
        let mut lost = 0;
        for (guest, before) in guests.into_iter().zip(&mut self.lines) {
            lost += u32::from(!lines::go_on(guest, PORT, before)?);
        }
        Ok(lost)
    }
}

/// Two weirs whose TAPs are on bridges, with a link between the bridges.
struct Weirs([Weir; 2]);

impl Weirs {
    fn start(lab: &Lab, cell: &Cell) -> Result<Self> {
        let vif = Vif { queues: (cell.queues > 1).then_some(cell.queues), ..Vif::default() };
        let (mut vifs, uplink) = (vec![vif; 2], Some(Uplink::Tap));
        vifs.extend(Flood::vifs());
        // A guest's new host knows none of its connections.
        let setup = Setup { vifs, uplink, group: Some(RULES), ..Setup::default() };
        let weirs = [Weir::start(lab, &setup)?, Weir::start(lab, &setup)?];
        join(&weirs)?;
        Ok(Self(weirs))
    }

    fn dirs(&self) -> [PathBuf; 2] {
        [0, 1].map(|at: usize| self.0[at].dir().to_owned())
    }

    fn spec(&self, cell: &Cell, index: u8, at: usize) -> Result<GuestSpec> {
        let mut plug = self.0[at].plug_into(cell.qemu, index)?;
        for argument in &mut plug.qemu_args {
            if argument.starts_with("virtio-net-pci") {
                argument.push_str(cell.device);
            }
        }
        let (name, cidr) = (weir::name(index), address::cidr(index));
        Ok(GuestSpec { name, cidr, vcpus: cell.queues, plug })
    }
}

/// Two kernel bridges with a link between them.
struct Bridges {
    hosts: [Netns; 2],
    dirs: [PathBuf; 2],
}

impl Bridges {
    fn start(lab: &Lab) -> Result<Self> {
        let hosts = [Netns::new()?, Netns::new()?];
        let wire = ["link", "add", "wire", "type", "veth", "peer", "name", "wire", "netns"];
        hosts[0].ip(&[&wire[..], &[hosts[1].name()]].concat())?;
        for host in &hosts {
            host.add_bridge(BRIDGE)?;
            host.ip(&["link", "set", "wire", "master", BRIDGE, "up"])?;
        }
        let dirs = [lab.workspace.run_dir("bridge")?, lab.workspace.run_dir("bridge")?];
        Ok(Self { hosts, dirs })
    }

    /// Returns the guest of a weir's interface with a new TAP as its back end.
    fn spec(&self, weirs: &Weirs, cell: &Cell, index: u8, at: usize) -> Result<GuestSpec> {
        let mut spec = weirs.spec(cell, index, at)?;
        let (host, tap) = (&self.hosts[at], weir::name(index));
        let _ = host.ip(&["link", "del", &tap]);
        let queues = if cell.queues > 1 { &["multi_queue"][..] } else { &[] };
        host.ip(&[&["tuntap", "add", &tap, "mode", "tap", "vnet_hdr"], queues].concat())?;
        host.ip(&["link", "set", &tap, "master", BRIDGE, "up"])?;
        spec.plug.qemu_args = on_tap(&spec.plug.qemu_args, &tap, cell.queues);
        spec.plug.placement = host.placement();
        Ok(spec)
    }
}

/// Returns QEMU's arguments with a TAP in place of a vhost-user socket.
fn on_tap(arguments: &[String], tap: &str, queues: u8) -> Vec<String> {
    let mut changed = Vec::new();
    for pair in arguments.chunks(2) {
        match pair {
            [option, _] if option == "-chardev" => {}
            [option, _] if option == "-netdev" => {
                let queues = if queues > 1 { format!(",queues={queues}") } else { String::new() };
                let tap = format!("tap,id=net0,ifname={tap},script=no,downscript=no{queues}");
                changed.extend([option.clone(), tap]);
            }
            [option, value] if option == "-device" && value.starts_with("virtio-net-pci") => {
                // A TAP takes at most 256 transmit entries.
                let kept = value.split(',').filter(|part| !part.starts_with("tx_queue_size"));
                let named = kept.map(|part| match part.split_once('=') {
                    Some(("netdev", _)) => "netdev=net0",
                    _ => part,
                });
                changed.extend([option.clone(), named.collect::<Vec<_>>().join(",")]);
            }
            others => changed.extend_from_slice(others),
        }
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_on_a_tap_is_the_same_but_for_its_back_end() {
        let args = "-m 1G -chardev socket,id=c,path=/s -netdev vhost-user,id=n,chardev=c,queues=4 \
                    -device virtio-net-pci,netdev=n,mac=1,mq=on,tx_queue_size=1024,packed=on";
        let args: Vec<_> = args.split_whitespace().map(str::to_owned).collect();
        let tap = "-m 1G -netdev tap,id=net0,ifname=t,script=no,downscript=no,queues=4 \
                   -device virtio-net-pci,netdev=net0,mac=1,mq=on,packed=on";
        assert_eq!(
            on_tap(&args, "t", 4).join(" "),
            tap.split_whitespace().collect::<Vec<_>>().join(" ")
        );
    }
}
