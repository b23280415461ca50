//! The replacement of a weir by another one, as seen by other hosts.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use weir_bed::process::Process;
use weir_limits::EVPN_ADOPT_NS;
use weir_testing::eventually;
use weir_wire::Mac;

use crate::bed::{Guest, Host, Underlay, experimental, mac, vif};
use crate::evpn::{Tells, behind, config, has_frr, is_member, is_noted, make_bridges, start_frr};

/// The VXLAN device of the other host, whose bridge stands for the fabric.
const DEVICE: &str = "vx100";

pub(super) fn start_keeper(host: &Host) -> Process {
    let (program, socket) = (Path::new(env!("CARGO_BIN_EXE_weir-keeper")), host.socket("keeper"));
    let _ = fs::remove_file(&socket);
    let line = format!("{} {}", program.display(), socket.display());
    let keeper = host.start("keeper", &line).unwrap();
    eventually("the keeper listens", || weir_keeper::connect(&socket).ok());
    keeper
}

/// Replaces the running weir by another one, as soon as the running one has a keeper. Returns the number of the new
/// process.
pub(super) fn upgrade(host: &Host) -> String {
    let said = eventually("weir is upgraded", || {
        let output = host.command("weir upgrade").output().unwrap();
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    });
    let (_, rest) = said.split_once("process ").unwrap();
    rest.chars().take_while(char::is_ascii_digit).collect()
}

/// The entries that the other host has removed.
fn withdrawn(other: &Host) -> Vec<String> {
    let log = fs::read_to_string(other.dir.join("monitor.log")).unwrap();
    let gone = log.lines().filter(|line| line.starts_with("Deleted") && line.contains(DEVICE));
    gone.map(str::to_owned).collect()
}

/// Checks that host 1 has its guests and knows the station behind the other host, and that a new station is
/// announced.
fn goes_on(one: &Host, other: &Host, guest: &mut Guest, last: u8) {
    eventually("host 1 knows the station", || {
        (behind(one, "blue", mac(3))? == "192.0.2.2").then_some(())
    });
    eventually("the other host hears of one more", || {
        guest.send(&experimental(Mac::BROADCAST, mac(last), "here I am"));
        is_noted(other, DEVICE, mac(last), 1).then_some(())
    });
    assert!(is_noted(other, DEVICE, mac(1), 1) && is_member(other, DEVICE, 1));
}

#[test]
fn root_no_other_host_hears_of_a_weir_that_takes_anothers_place() {
    if !has_frr() {
        return;
    }
    let mut underlay = Underlay::new(2);
    make_bridges(&underlay.hosts[1], 2);
    let _frr = [(1, 2), (2, 1)].map(|(n, other)| start_frr(&underlay.hosts[n - 1], n, &[other]));
    let here = &underlay.hosts[0];
    let mut keeper = start_keeper(here);
    let web0 = vif(here, "web0", "blue", Some(mac(1)));
    let any = vif(here, "any", "blue", None) + "mac_check = false\n";
    let switch = format!("[switch]\nkeeper = {:?}\n", here.socket("keeper"));
    let text = switch + &config(1, &[("blue", 100)], &(web0 + &any));
    underlay.hosts[0].start_weir(&text);
    let [one, two] = &underlay.hosts[..] else { panic!("two hosts") };
    let _tells = Tells(&underlay);
    let _web0 = one.guest("web0", mac(1));
    let mut any = one.guest("any", mac(7));
    // `e100` is a station behind the bridge.
    two.run("ip link add s100 type veth peer name e100");
    two.run("ip link set s100 master br100 up");
    two.run(&format!("bridge fdb add {} dev s100 master static", mac(3)));
    eventually("the bridge hears of host 1", || {
        (is_noted(two, DEVICE, mac(1), 1) && is_member(two, DEVICE, 1)).then_some(())
    });
    let _monitor = two.start("monitor", "bridge monitor fdb").unwrap();
    goes_on(one, two, &mut any, 7);

    upgrade(one);
    goes_on(one, two, &mut any, 8);
    // Another keeper gets everything that it must hold.
    keeper = {
        keeper.kill();
        start_keeper(one)
    };
    goes_on(one, two, &mut any, 9);
    let process = upgrade(one);
    goes_on(one, two, &mut any, 10);
    // Silent stations were learned by the previous weir.
    thread::sleep(Duration::from_nanos(2 * EVPN_ADOPT_NS));
    assert_eq!(withdrawn(two), [""; 0]);

    // After a SIGKILL, the next weir withdraws entries that no longer hold.
    one.run(&format!("kill -KILL {process}"));
    one.run(&format!("bridge fdb add {} dev weirt100 master static", mac(66)));
    eventually("the other host hears of that, too", || {
        is_noted(two, DEVICE, mac(66), 1).then_some(())
    });
    let program = env!("CARGO_BIN_EXE_weir");
    let next = one.start("next", &format!("{program} run weir.toml")).unwrap();
    eventually("the next weir serves", || {
        one.command("weir stats").output().ok()?.status.success().then_some(())
    });
    goes_on(one, two, &mut any, 11);
    eventually("who is gone is withdrawn", || (!is_noted(two, DEVICE, mac(66), 1)).then_some(()));
    let of =
        |line: &String| line.contains(&mac(1).to_string()) || line.contains("00:00:00:00:00:00");
    assert!(!withdrawn(two).iter().any(of), "{:?}", withdrawn(two));

    // A weir that ends for good leaves nothing with the keeper.
    assert!(next.terminate().unwrap().success());
    eventually("the other host hears that the weir is gone", || {
        (!is_noted(two, DEVICE, mac(1), 1) && !is_member(two, DEVICE, 1)).then_some(())
    });
    assert!(!one.run("ip link show").contains("weir"));
    drop(keeper);
}
