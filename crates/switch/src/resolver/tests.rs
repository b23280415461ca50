//! The resolvers in a resolv.conf(5).

use super::*;

fn ips(all: &[&str]) -> Vec<IpAddr> {
    all.iter().map(|ip| ip.parse().unwrap()).collect()
}

#[test]
fn resolvers_are_those_of_the_file_but_for_weir_itself() {
    let text = "# nameserver 1.1.1.1\nsearch a b\n nameserver\t9.9.9.9 x\nnameserver 192.168.77.1\n\
                nameserver nonsense\nnameserver fd00::53\nnameserver 8.8.8.8\n";
    let own = ips(&["192.168.77.1"]);
    assert_eq!(named_in(text, &own), ips(&["9.9.9.9", "fd00::53"]));
    assert_eq!(named_in("nameserver ::ffff:192.168.77.1\n", &own), ips(&[]));
    assert_eq!(named_in("search a\n", &own), ips(&["127.0.0.1"]));
}
