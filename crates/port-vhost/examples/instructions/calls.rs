//! The cost of bursts in system calls, for `strace` to count:
//!
//! ```sh
//! strace -o calls target/release/examples/instructions calls tap packet 64 32 100
//! ```
//!
//! Two switches have a guest and an uplink each. The first one's guest sends bursts, which leave by
//! its uplink and come to the other guest by the other uplink. No worker runs: both switches are
//! served from here. Nobody else calls `getppid`, which begins and ends each part that counts. For
//! each part a line gives its name and the number of frames that it moved. A part is everything
//! that a worker does for this port in one call, until no frames are left.
//!
//! | part | what |
//! |---|---|
//! | `kick` | the guest says that it has sent |
//! | `send` | the burst is taken from the guest and leaves by the first uplink, or goes to the other guest |
//! | `take` | the second uplink's frames are taken, until there are no more, and go to the other guest |
//!
//! The other guest sleeps until it is called.
//!
//! The program takes a network namespace of its own with `lo` up and, for AF_XDP, a veth pair, `weir0` and `host0`.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::process::parent_id;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use weir_engine::{Port, PortCounters, Slot};
use weir_fabric::{PortConfig, Vid};
use weir_port_packet::{PacketOptions, PacketSocket};
use weir_port_tap::{FramePort, Tap, TapOptions};
use weir_port_vxlan::{
    NetworkSpec, Networks, OuterDscp, OverlayOptions, OverlaySockets, VxlanPort,
};
use weir_port_xdp::{XdpInterface, XdpOptions, XdpPort};
use weir_vif::{Features, WaitFor};
use weir_wire::Offload;

use super::{Guest, MACS, Pair, RECEIVER, Rig, SENDER, Stand, WARM_UP, frame, gso_frame};

const USAGE: &str =
    "usage: instructions calls UPLINK UPLINK FRAME_BYTES|gso BURST BURSTS, or calls guest guest ...
uplinks: tap (weir0), packet (weir0), far-packet (host0), xdp (weir0), vxlan, far-vxlan";
/// The second port of each switch.
const UPLINK: usize = 1;
/// Bytes of a GSO packet.
const GSO_LEN: usize = 65_000;
/// The time that the kernel gets to move a burst from one uplink to the other, and a guest to sleep again.
const MOMENT: Duration = Duration::from_millis(2);

pub(crate) fn run(args: &[String]) -> Result<(), Box<dyn Error>> {
    let [first, second, frame_bytes, burst, bursts] = args else { return Err(USAGE.into()) };
    let (burst, bursts): (usize, usize) = (burst.parse()?, bursts.parse()?);
    let (frame, offload) = match frame_bytes.as_str() {
        "gso" => gso_frame(GSO_LEN)?,
        len => (frame(MACS[SENDER], MACS[RECEIVER], len.parse()?), Offload::NONE),
    };
    let vid = if first.ends_with("vxlan") { Vid::of_network(0) } else { Some(Vid::DEFAULT) };
    let vid = vid.ok_or("there is no network 0")?;
    let features = Features::ALL - Features::RING_PACKED - Features::IN_ORDER;
    let mut rigs = vec![Rig::new(features)?];
    let mut sender = rigs[0].guest(SENDER, vid)?;
    if first != "guest" {
        rigs.push(Rig::new(features)?);
    }
    let last = rigs.len() - 1;
    let receiver = rigs[last].guest(RECEIVER, vid)?;
    if first != "guest" {
        let mut uplinks = [(0, first), (last, second)];
        if second == "tap" {
            // The TAP uplink makes the interface that the other one opens.
            uplinks.reverse();
        }
        uplinks.into_iter().try_for_each(|(rig, kind)| rigs[rig].uplink(kind))?;
    }
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| receive(receiver, &is_over));
        let done = (0..WARM_UP + bursts).try_for_each(|_| {
            for _ in 0..burst {
                sender.pair.send(&frame, &offload)?;
            }
            one_burst(&mut rigs, &mut sender)
        });
        is_over.store(true, Ordering::Relaxed);
        done
    })
}

/// Takes frames as they come, and sleeps until it is called.
fn receive(mut guest: Guest, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        while guest.pair.recv().is_some() {}
        if let Pair::Vif(pair) = &mut guest.pair {
            // A guest that cannot wait polls again.
            let _ = pair.wait(WaitFor::Receive, Duration::from_millis(100));
        }
    }
}

/// Does the guest's and the workers' part for a burst that is in the guest's ring.
fn one_burst(rigs: &mut [Rig], sender: &mut Guest) -> Result<(), Box<dyn Error>> {
    // A worker arms its queues before it sleeps.
    rigs[0].port(SENDER)?.arm_tx(0);
    thread::sleep(MOMENT);
    part("kick", || {
        sender.pair.flush();
        0
    });
    part("send", || rigs[0].serve(SENDER).frames);
    let [_, there] = rigs else { return Ok(()) };
    thread::sleep(MOMENT);
    let port = Arc::clone(there.port(UPLINK)?);
    part("take", || {
        let mut frames = 0;
        loop {
            let taken = there.serve(UPLINK);
            frames += taken.frames;
            if !taken.more && !port.arm_tx(0) {
                break frames;
            }
        }
    });
    Ok(())
}

/// Runs a part that counts, and prints the number of frames that it moved.
fn part(name: &str, run: impl FnOnce() -> usize) {
    let _ = parent_id();
    let frames = run();
    let _ = parent_id();
    println!("{name} {frames}");
}

impl Rig {
    fn port(&self, index: usize) -> Result<&Arc<dyn Port>, Box<dyn Error>> {
        let slot = self.ports.get(index).and_then(Option::as_ref);
        Ok(&slot.ok_or("there is no such port")?.port)
    }

    /// Adds an uplink with the next number.
    fn uplink(&mut self, kind: &str) -> Result<(), Box<dyn Error>> {
        let fabric = self.engine.fabric();
        let config = match kind.ends_with("vxlan") {
            true => PortConfig::overlay(fabric.fdb().capacity()),
            false => PortConfig::uplink(),
        };
        let (id, _) = self.engine.add_port(config, |_, _| Arc::new(Stand))?;
        fabric.set_active(id, true)?;
        let counters = Arc::new(PortCounters::default());
        let (queues, mtu) = (1, None);
        let packet = |name: &str| PacketOptions { name: name.into(), queues, mtu };
        let port: Arc<dyn Port> = match kind {
            "tap" => {
                let tap = Tap::open(&TapOptions { name: "weir0".into(), queues, mtu, mac: None })?;
                Arc::new(FramePort::new(tap, Arc::clone(&counters)))
            }
            "packet" | "far-packet" => {
                let name = if kind == "packet" { "weir0" } else { "host0" };
                let socket = PacketSocket::open(&packet(name))?;
                Arc::new(FramePort::new(socket, Arc::clone(&counters)))
            }
            "xdp" => {
                let options = XdpOptions { name: "weir0".into(), queues, mtu };
                Arc::new(XdpPort::new(XdpInterface::open(&options)?, Arc::clone(&counters)))
            }
            "vxlan" | "far-vxlan" => {
                let mut hosts = [1, 2].map(|last| IpAddr::from(Ipv4Addr::new(127, 0, 0, last)));
                if kind == "far-vxlan" {
                    hosts.reverse();
                }
                let [local, peer] = hosts;
                let options = OverlayOptions {
                    local,
                    interface: None,
                    port: 4789,
                    queues,
                    mtu: 1450,
                    dscp: OuterDscp::Fixed(0),
                };
                let spec = NetworkSpec {
                    number: 0,
                    vni: 100,
                    peers: vec![peer],
                    floods_per_s: u32::MAX,
                    neigh_suppress: false,
                };
                let networks = Networks::new(&[spec], options.port, None);
                let (sockets, fdb) = (OverlaySockets::open(&options)?, Arc::clone(fabric.fdb()));
                let shared = Arc::clone(&counters);
                Arc::new(VxlanPort::new(kind.into(), id, sockets, networks, fdb, shared))
            }
            _ => return Err(USAGE.into()),
        };
        self.ports.push(Some(Slot::new(port, counters)));
        Ok(())
    }
}
