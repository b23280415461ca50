//! `weir-vhost-user-net`, the back-end program for one guest and one TAP; DPDK's virtio-user as a client, a polling driver
//! that never sleeps.

use std::{fs, time::Duration};

use weir_bed::{
    address,
    error::{Error, Result, check},
    lab::Lab,
    netns::Netns,
    process::{Process, wait_until},
    qemu::GuestSpec,
    switch::Switch,
    testpmd::{Rings, Testpmd, Traffic},
    weir::{self, Setup, Vif, Weir},
    weir_stats::Way,
    workspace::socket_path,
};

use super::{
    boot_specs,
    traffic::{no_checksum_errors, ping},
};

/// The TAP's interface.
const TAP: &str = "weirtap0";

/// The namespace's own address in the guest's subnet.
const HOST: u8 = 100;

/// Longest time until the program has opened its socket.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) fn backend_program_joins_guest_and_tap(lab: &Lab) -> Result<()> {
    let dir = lab.workspace.run_dir("backend")?;
    let socket = socket_path(&dir, "guest.sock")?;
    let program = lab.weir.with_file_name("weir-vhost-user-net");
    let socket_option = format!("--socket-path={}", socket.display());
    let netns = Netns::new()?;
    let argv = [&*program.to_string_lossy(), &socket_option, "--tap", TAP];
    let process = Process::start_logged(&argv, &netns.placement(), &dir.join("backend.log"))?;
    wait_until("the back end's socket", PATIENCE, || Ok(socket.exists()))?;
    netns.configure(TAP, &address::cidr(HOST))?;

    // QEMU gets the arguments of a switch's interface at the same socket.
    let config = dir.join("weir.toml");
    let toml = format!("[vif.guest]\nsocket = {socket:?}\n");
    fs::write(&config, toml).map_err(Error::io("write", &config))?;
    let plug = weir::plug(&lab.weir.to_string_lossy(), lab.qemu, "guest", &config)?;
    let spec = GuestSpec { name: "guest".into(), cidr: address::cidr(0), vcpus: 1, plug };
    let [mut guest] = boot_specs(lab, &[spec], &dir)?;
    ping(&mut guest, &address::ip(HOST))?;
    let busybox = lab.image.busybox.to_string_lossy();
    netns.exec(&[&busybox, "ping", "-c", "3", "-W", "5", &address::ip(0)])?;
    no_checksum_errors(&mut guest)?;

    // "must end (as quickly and cleanly as possible) when the SIGTERM signal is received"
    let status = process.terminate()?;
    check(status.success(), || format!("the back end ended with {status} after SIGTERM"))
}

/// A switch that lost its first packets would be far below.
const PACKETS_PER_SECOND_MIN: f64 = 20_000.0;

pub(super) fn forwards_with_one_queue(lab: &Lab) -> Result<()> {
    forwards(lab, Traffic::default())
}

pub(super) fn forwards_with_two_queues(lab: &Lab) -> Result<()> {
    forwards(lab, Traffic { queues: 2, ..Traffic::default() })
}

pub(super) fn forwards_over_packed_rings(lab: &Lab) -> Result<()> {
    forwards(lab, Traffic { rings: Rings::PackedInOrder, ..Traffic::default() })
}

fn forwards(lab: &Lab, traffic: Traffic) -> Result<()> {
    let queues = traffic.queues;
    let _pages = weir_bed::testpmd::HugePages::for_client()?;
    let vifs = vec![Vif { queues: Some(queues), ..Vif::default() }; 2];
    let weir = Weir::start(lab, &Setup { vifs, ..Setup::default() })?;
    let mut client = Testpmd::start([&weir.link(0)?, &weir.link(1)?], &traffic, 0)?;
    client.circulate()?;
    let rate = client.packets_per_second(Duration::from_secs(3))?;
    check(rate > PACKETS_PER_SECOND_MIN, || format!("only {rate:.0} packets per second"))?;

    let stats = weir.stats()?;
    for port in ["vif0", "vif1"] {
        let frames = stats.frames_by_queue(port, Way::Tx)?;
        check(
            frames.len() == usize::from(queues) && frames.iter().all(|&count| count > 0),
            || format!("{port}: frames by queue: {frames:?}"),
        )?;
    }
    client.quit()?;
    weir.stop()
}
