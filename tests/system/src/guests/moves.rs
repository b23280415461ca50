//! A guest that moves to another host: another QEMU with another weir.
//!
//! ```text
//!  guest 0 - weir A - TAP - bridge ---- bridge - TAP - weir B
//!  guest 1 -----+  moves from here to there and back  +
//! ```

use std::{thread, time::Duration};

use weir_bed::{
    address,
    error::{Result, check},
    lab::Lab,
    qemu::{Guest, GuestSpec, QEMU, moves::Mover},
    switch::Switch,
    uplink::Uplink,
    weir::{self, Setup, Vif, Weir},
};

use super::traffic::ping;

/// Ports of the two connections: into guest 0, into guest 1.
const PORTS: [u16; 2] = [5000, 5001];
const PATIENCE: Duration = Duration::from_secs(60);
const TRAFFIC: Duration = Duration::from_secs(3);

/// Sends numbered lines until the file `/tmp/end` exists.
const LINES: &str = "i=0; while [ ! -e /tmp/end ]; do echo line $i; i=$((i+1)); done";
/// Number of lines that have arrived, and of lines out of order. Between two guests no checksum protects the data, so
/// that a page missed by a migration shows here.
const COUNT: &str = "awk '$1!=\"line\"||$2!=NR-1{bad++} END{print NR, bad+0}' /tmp/in";

pub(super) fn guest_moves_to_another_weir_and_back(lab: &Lab) -> Result<()> {
    moves(lab, 1, "")
}

pub(super) fn guest_with_two_queues_and_packed_rings_moves(lab: &Lab) -> Result<()> {
    moves(lab, 2, ",packed=on")
}

fn spec(weir: &Weir, index: u8, queues: u8, device: &str) -> Result<GuestSpec> {
    let mut plug = weir.plug(index)?;
    for argument in &mut plug.qemu_args {
        if argument.starts_with("virtio-net-pci") {
            argument.push_str(device);
        }
    }
    Ok(GuestSpec { name: weir::name(index), cidr: address::cidr(index), vcpus: queues, plug })
}

/// Two weirs whose TAPs are on bridges, with a link between the bridges.
fn hosts(lab: &Lab, queues: u8) -> Result<[Weir; 2]> {
    let vif = Vif { queues: (queues > 1).then_some(queues), ..Vif::default() };
    let setup = Setup { vifs: vec![vif; 2], uplink: Some(Uplink::Tap), ..Setup::default() };
    let weirs = [Weir::start(lab, &setup)?, Weir::start(lab, &setup)?];
    join(&weirs)?;
    Ok(weirs)
}

/// Puts the TAPs of two weirs on bridges, with a link between the bridges.
pub fn join(weirs: &[Weir; 2]) -> Result<()> {
    let [a, b] = [weirs[0].uplink()?, weirs[1].uplink()?];
    let wire = ["link", "add", "wire", "type", "veth", "peer", "name", "wire", "netns"];
    a.host().ip(&[&wire[..], &[b.host().name()]].concat())?;
    for site in [a, b] {
        site.host().add_bridge("bridge")?;
        for port in ["wire", site.interface()] {
            site.host().ip(&["link", "set", port, "master", "bridge", "up"])?;
        }
    }
    Ok(())
}

fn received(guest: &mut Guest) -> Result<u64> {
    let bytes = guest.run("wc -c </tmp/in", PATIENCE)?;
    Ok(bytes.trim().parse().unwrap_or(0))
}

fn moves(lab: &Lab, queues: u8, device: &str) -> Result<()> {
    let [a, b] = hosts(lab, queues)?;
    let image = &lab.image;
    let mut stays = Guest::boot(image, &spec(&a, 0, queues, device)?, a.dir())?;
    let mut moves = Mover::boot(QEMU, image, &spec(&a, 1, queues, device)?, a.dir())?;
    ping(&mut stays, &address::ip(1))?;

    for (guest, port) in [(&mut stays, PORTS[0]), (&mut moves.guest, PORTS[1])] {
        // The input of `nc` stays open. Otherwise `nc` would close the connection.
        guest.run(&format!("(sleep 9999 | nc -l -p {port} >/tmp/in) &"), PATIENCE)?;
        // A connection is refused until the server listens.
        let listens = format!("cat /proc/net/tcp* | grep -q ':{port:04X} '");
        guest.run(&format!("until {listens}; do sleep 0.1; done"), PATIENCE)?;
    }
    let ends = [(&mut stays, 1, PORTS[1]), (&mut moves.guest, 0, PORTS[0])];
    for (guest, to, port) in ends {
        let to = address::ip(to);
        guest.run(&format!("({LINES} | nc {to} {port} >/dev/null) &"), PATIENCE)?;
    }
    thread::sleep(TRAFFIC);
    for weir in [&b, &a] {
        moves.move_to(QEMU, image, &spec(weir, 1, queues, device)?, weir.dir())?;
        let mut counts = Vec::new();
        for guest in [&mut stays, &mut moves.guest] {
            counts.push(received(guest)?);
        }
        thread::sleep(TRAFFIC);
        for (guest, before) in [&mut stays, &mut moves.guest].into_iter().zip(counts) {
            let now = received(guest)?;
            check(now > before, || format!("a connection stands still at {now} bytes"))?;
        }
    }
    for guest in [&mut stays, &mut moves.guest] {
        guest.run("touch /tmp/end", PATIENCE)?;
    }
    thread::sleep(TRAFFIC);
    for guest in [&mut stays, &mut moves.guest] {
        let count = guest.run(COUNT, PATIENCE)?;
        check(count.trim().ends_with(" 0"), || format!("lines, and wrong ones: {count}"))?;
    }
    ping(&mut moves.guest, &address::ip(0))?;
    [a, b].into_iter().try_for_each(Weir::stop)
}
