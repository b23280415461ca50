//! Rules of nftables in a namespace of the test's own, which needs root.

use super::*;

fn task() -> NatTask {
    NatTask {
        interface: "weir-lan".parse().unwrap(),
        addresses: vec!["192.168.77.1/24".parse().unwrap(), "fd00:77::1/64".parse().unwrap()],
        forwards: vec![NatForward {
            protocol: ForwardProtocol::Udp,
            port: 5353,
            guest: Ipv4Addr::new(192, 168, 77, 10),
            guest_port: 53,
        }],
    }
}

#[test]
fn each_rule_names_the_interface_or_the_subnet_of_the_network() {
    let script = task().script("weir-lan-7");
    for line in script.lines().filter(|line| line.starts_with("add rule")) {
        let names = ["weir-lan\"", "192.168.77.", "fd00:77::/64"];
        assert!(names.iter().any(|name| line.contains(name)), "{line}");
    }
    assert!(script.lines().all(|line| line.contains(" inet weir-lan-7 ")), "{script}");
    assert!(script.contains("udp dport 5353 dnat ip to 192.168.77.10:53"));
}
