//! A weir that is killed, in a network namespace with a real interface. The test needs root; without root it is
//! counted as skipped.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use weir_testing::eventually;
use weir_vif::{Options, Vif};
use weir_wire::{Mac, Offload};

use super::Running;

fn start(program: &str, args: &[&str]) -> Running {
    let mut command = Command::new(program);
    command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).stdin(Stdio::null());
    Running(command.spawn().unwrap())
}

/// A network namespace with the veth pair `weir0` and `host0`, and with its own `/sys`.
struct Network(Running);

impl Network {
    fn new() -> Self {
        const SETUP: &str = "mount -t sysfs sysfs /sys && ip link add weir0 type veth peer name host0 \
                             && ip link set weir0 up && ip link set host0 up && echo ready \
                             && exec sleep 600";
        let mut holder = start("unshare", &["--net", "--mount", "sh", "-c", SETUP]);
        let mut line = String::new();
        BufReader::new(holder.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self(holder)
    }

    fn weir(&self, config: &Path) -> Running {
        let holder = self.0.0.id().to_string();
        let args = ["-t", &holder, "--net", "--mount", env!("CARGO_BIN_EXE_weir"), "run"];
        start("nsenter", &[&args[..], &[config.to_str().unwrap()]].concat())
    }

    /// `gro_flush_timeout` and `napi_defer_hard_irqs` of `weir0`.
    fn settings(&self) -> [u64; 2] {
        ["gro_flush_timeout", "napi_defer_hard_irqs"].map(|name| {
            let holder = self.0.0.id();
            let path = format!("/proc/{holder}/root/sys/class/net/weir0/{name}");
            fs::read_to_string(path).unwrap().trim().parse().unwrap()
        })
    }
}

#[test]
fn root_after_sigkill_the_next_start_restores_the_uplinks_timer() {
    if !weir_testing::is_root("a network namespace") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let (control, socket) = (path("control.sock"), path("web0.sock"));
    let switch = format!("[switch]\ncontrol = {control:?}\n");
    let with_uplink = format!(
        "{switch}[vif.web0]\nsocket = {socket:?}\nmoderation = \"two-layer\"\nlatency_budget = \"1ms\"\n\
         [uplink.lan]\nkind = \"af_packet\"\nname = \"weir0\"\n"
    );
    fs::write(path("first.toml"), with_uplink).unwrap();
    fs::write(path("second.toml"), switch).unwrap();

    let network = Network::new();
    let found = network.settings();
    let mut weir = network.weir(&path("first.toml"));
    let mut vif = eventually("weir serves", || {
        Vif::connect(&socket, &Options::new(Mac([0x52, 0x54, 0, 0, 0, 1]))).ok()
    });
    let mut pair = vif.queue_pairs().remove(0);
    let changed = eventually("the uplink gathers", || {
        // The manager looks only under traffic.
        let frame = [&[0xff; 6][..], &pair.mac().0, &[0x88, 0xb5], &[0; 46]].concat();
        pair.send(&frame, &Offload::NONE).unwrap();
        pair.flush();
        // Both settings must have changed, because they are set one after the other.
        Some(network.settings())
            .filter(|now| now.iter().zip(&found).all(|(now, found)| now > found))
    });
    weir.kill();
    assert_ne!(network.settings(), found, "{changed:?}: nobody has restored it");

    let mut weir = network.weir(&path("second.toml"));
    eventually("the next start restores it", || (network.settings() == found).then_some(()));
    // The killed weir has left its socket, on which nobody listens.
    eventually("it serves", || UnixStream::connect(&control).ok());
    assert!(!path("control.sock.weir0.found").exists());
    weir.kill();
    let mut log = String::new();
    weir.0.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert!(log.contains("restored an interface that a killed weir had changed"), "{log}");
    assert!(log.contains("weir0"), "{log}");
}
