//! Keys of the networks in which weir has an address.

use super::super::{Config, Defaults, NetworkKind};
use super::*;

fn read(text: &str) -> Result<Config, Vec<String>> {
    let control = "/run/weir/control.sock".parse().unwrap();
    let defaults = Defaults { control, control_named: false, keeper: None };
    let config = Config::from_toml("weir.toml", text, &defaults);
    config.map_err(|error| error.problems().iter().map(|it| it.message.clone()).collect())
}

fn gateway(keys: &str) -> Result<GatewayConfig, Vec<String>> {
    let config = read(&format!("[network.lan]\n{keys}"))?;
    Ok(config.networks.all[0].gateway.clone().unwrap())
}

const DHCP: &str = "address = \"192.168.77.2/24\"\ndhcp = true\n";

#[test]
fn an_address_is_enough_for_a_network() {
    let config =
        read("[network.lan]\naddress = \"192.168.77.2/24\"\n[vif.web0]\nnetwork = \"lan\"\n")
            .unwrap();
    let network = &config.networks.all[0];
    assert!(matches!(network.kind, NetworkKind::Vlan(vid) if vid.get() == 1));
    assert_eq!(network.gateway.as_ref().unwrap().dhcp, None);
    assert_eq!(network.port_name().unwrap().as_str(), "gateway.lan");
    // The network's VLAN is that of ports that name none.
    let unnamed = read("[vif.web0]\n").unwrap().vifs[0].port_config(&config.networks);
    assert_eq!(config.vifs[0].port_config(&config.networks).vlan, unnamed.vlan);
    let (vid, ..) = config.networks.with_gateway().next().unwrap();
    assert_eq!(weir_fabric::VlanMode::Access(vid), unnamed.vlan);
}

#[test]
fn what_dhcp_gives_has_defaults() {
    let dhcp = gateway(DHCP).unwrap().dhcp.unwrap();
    assert_eq!(dhcp.range.to_string(), "192.168.77.1-192.168.77.254");
    assert_eq!((dhcp.router, dhcp.lease_time.get()), (None, limits::LEASE_SECS_DEFAULT));
    let keys = "range = \"192.168.77.100 - 192.168.77.199\"\nrouter = \"192.168.77.1\"\n\
                dns = [\"192.168.77.1\", \"9.9.9.9\"]\ndomain = \"Lab.Internal\"\nlease_time = \"2h\"\n\
                fixed = [\"web0 192.168.77.10\", \"db0 192.168.77.11\"]\n";
    let gateway = gateway(&format!("{DHCP}{keys}")).unwrap();
    assert_eq!(gateway.dns.len(), 2);
    let fixed = gateway.fixed.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(fixed, ["web0 192.168.77.10", "db0 192.168.77.11"]);
    let dhcp = gateway.dhcp.unwrap();
    assert!(dhcp.range.contains("192.168.77.199".parse().unwrap()));
    assert!(!dhcp.range.contains("192.168.77.200".parse().unwrap()));
    assert_eq!(dhcp.domain.unwrap().as_str(), "lab.internal");
    assert_eq!(dhcp.lease_time.get(), 7200);
}

#[test]
fn each_kind_of_firmware_has_a_file() {
    let boot = |keys: &str| gateway(&format!("{DHCP}{keys}")).unwrap().dhcp.unwrap().boot;
    assert_eq!(boot(""), BootConfig::default());
    let keys = "boot_server = \"192.168.77.1\"\nboot_file = [\"pxelinux.0\", \"efi-x64 ipxe.efi\", \
                \"11 arm.efi\", \"22 u-boot.img\", \"ipxe http://192.168.77.1/menu.ipxe\"]\n";
    let found = boot(keys);
    assert_eq!(found.server, Some("192.168.77.1".parse().unwrap()));
    let files: Vec<_> = found.files.iter().map(|it| (it.client, it.file.as_str())).collect();
    let expected = [
        (BootClient::Other, "pxelinux.0"),
        (BootClient::Architecture(7), "ipxe.efi"),
        (BootClient::Architecture(11), "arm.efi"),
        (BootClient::Architecture(22), "u-boot.img"),
        (BootClient::Ipxe, "http://192.168.77.1/menu.ipxe"),
    ];
    assert_eq!(files, expected);
    let shown: Vec<_> = found.files.iter().map(ToString::to_string).collect();
    let again: Vec<BootFile> = shown.iter().map(|it| it.parse().unwrap()).collect();
    assert_eq!(again, found.files);
    assert_eq!(shown[2..4], ["efi-arm64 arm.efi", "22 u-boot.img"]);
    let misspelt = "efi-x86 ipxe.efi".parse::<BootFile>().unwrap_err().to_string();
    assert!(misspelt.contains("`efi-x86`") && misspelt.contains("efi-riscv64"), "{misspelt}");
    // A URL needs no TFTP server, and each firmware can have its own file.
    assert_eq!(boot("boot_file = \"http://10.0.0.1/menu.ipxe\"\n").files.len(), 1);
    assert!(boot("boot_server = \"192.168.77.9\"\n").files.is_empty());
    // The host serves files at weir's address with NAT, and any server is reached by a router.
    assert!(boot("nat = true\nboot_server = \"192.168.77.2\"\n").server.is_some());
    assert!(boot("nat = true\nboot_server = \"10.0.0.1\"\n").server.is_some());
    let longest = format!("boot_server = \"192.168.77.1\"\nboot_file = \"{}\"\n", "f".repeat(127));
    assert_eq!(boot(&longest).files[0].file.len(), 127);
}

#[test]
fn guests_have_further_routes() {
    let given = |keys: &str| gateway(&format!("{DHCP}{keys}")).unwrap();
    let dhcp = |keys: &str| given(keys).dhcp.unwrap();
    assert!(dhcp("").routes.is_empty());
    let keys = "routes = [\"10.0.0.0/8 192.168.77.3\", \" 192.0.0.0/8  192.168.77.10\"]\n\
                router = \"192.168.77.1\"\nfixed = \"vpn0 192.168.77.10\"\n";
    let found = dhcp(keys);
    let shown: Vec<_> = found.routes.iter().map(Route::to_string).collect();
    assert_eq!(shown, ["10.0.0.0/8 192.168.77.3", "192.0.0.0/8 192.168.77.10"]);
    // A guest with a fixed address is a gateway itself, and others are not guests.
    let elsewhere: Vec<_> = given(keys).routers_elsewhere().map(|it| it.to_string()).collect();
    assert_eq!(elsewhere, ["192.168.77.1", "192.168.77.3"]);
    // With NAT the host routes at weir's address.
    assert_eq!(dhcp("nat = true\nroutes = \"10.0.0.0/8 192.168.77.2\"\n").routes.len(), 1);
    let all: Vec<_> = (0..16).map(|it| format!("\"10.{it}.0.0/16 192.168.77.3\"")).collect();
    assert_eq!(dhcp(&format!("routes = [{}]\n", all.join(", "))).routes.len(), 16);
}

#[test]
fn guests_ask_weir_for_names_unless_others_are_named() {
    let told = |keys: &str| {
        let gateway = gateway(keys).unwrap();
        let dns: Vec<_> = gateway.dns.iter().map(ToString::to_string).collect();
        (dns.join(" "), gateway.answers_names(), gateway.asks_resolver())
    };
    let of = |dns: &str, answers, asks| (dns.to_owned(), answers, asks);
    // Without a default router, weir answers only for names of guests.
    assert_eq!(told(DHCP), of("192.168.77.2", true, false));
    let router = format!("{DHCP}router = \"192.168.77.1\"\n");
    assert_eq!(told(&router), of("192.168.77.2", true, true));
    assert_eq!(told(&format!("{DHCP}nat = true\n")), of("192.168.77.2", true, true));
    assert_eq!(told(&format!("{router}dns = \"9.9.9.9\"\n")), of("9.9.9.9", false, false));
    assert_eq!(told(&format!("{router}dns = []\n")), of("", false, false));
    let both = format!("{router}dns = [\"192.168.77.2\", \"9.9.9.9\"]\n");
    assert_eq!(told(&both), of("192.168.77.2 9.9.9.9", true, true));
    // Guests that get no DNS server ask none.
    assert_eq!(told("address = \"192.168.77.2/24\"\n"), of("", false, false));
    let six = "address = [\"192.168.77.2/24\", \"fd00:77::2/64\"]\nra = true\n";
    assert_eq!(told(six), of("fd00:77::2", true, false));
    assert_eq!(gateway(DHCP).unwrap().domain(), "internal");
    assert_eq!(gateway(&format!("{DHCP}domain = \"Lab\"\n")).unwrap().domain(), "lab");
}

#[test]
fn addresses_of_both_families_are_one_networks() {
    let gateway = gateway("address = [\"192.168.77.2/24\", \"fd00:77::2/64\"]\n").unwrap();
    assert_eq!(gateway.addresses.len(), 2);
    assert_eq!(gateway.ipv4().unwrap().to_string(), "192.168.77.2/24");
}

#[test]
fn each_mistake_is_told_by_itself() {
    let long_file = format!("boot_file = \"http://{}\"", "f".repeat(121));
    let many: Vec<_> = (0..17).map(|it| format!("\"{it} http://a\"")).collect();
    let many_files = format!("boot_file = [{}]", many.join(", "));
    let many: Vec<_> = (0..17).map(|it| format!("\"10.{it}.0.0/16 192.168.77.3\"")).collect();
    let many_routes = format!("routes = [{}]", many.join(", "));
    let on = |keys: &str| gateway(&format!("{DHCP}{keys}")).unwrap_err().join("; ");
    let cases = [
        (
            "range = \"192.168.77.0-192.168.77.9\"",
            "the range 192.168.77.0-192.168.77.9 is not within the subnet",
        ),
        ("range = \"192.168.77.9-192.168.78.9\"", "is not within the subnet"),
        ("range = \"192.168.77.9-192.168.77.1\"", "bad value for `network.lan.range`"),
        ("range = \"192.168.77.2-192.168.77.2\"", "the range is weir's own address"),
        ("router = \"192.168.77.2\"", "`router` is weir's own address, which routes nothing"),
        ("router = \"192.168.77.255\"", "the router 192.168.77.255 is not within the subnet"),
        ("router = \"fd00::1\"", "bad value for `network.lan.router`"),
        (
            "dns = [\"9.9.9.9\", \"9.9.9.8\", \"9.9.9.7\", \"9.9.9.6\", \"9.9.9.5\"]",
            "5 servers of names are too many",
        ),
        ("dns = \"0.0.0.0\"", "bad value for `network.lan.dns`"),
        ("domain = \"a..b\"", "bad value for `network.lan.domain`"),
        ("domain = \"-a\"", "bad value for `network.lan.domain`"),
        ("domain = \"\"", "bad value for `network.lan.domain`"),
        ("lease_time = \"10s\"", "bad value for `network.lan.lease_time`"),
        ("lease_time = \"31d\"", "bad value for `network.lan.lease_time`"),
        ("fixed = \"web0\"", "bad value for `network.lan.fixed`"),
        ("fixed = \"web0 10.0.0.1\"", "10.0.0.1 of `web0` is not within the subnet"),
        ("fixed = \"web0 192.168.77.2\"", "192.168.77.2 of `web0` is weir's own"),
        ("router = \"192.168.77.1\"\nfixed = \"web0 192.168.77.1\"", "of `web0` is the router's"),
        (
            "fixed = [\"a 192.168.77.9\", \"b 192.168.77.9\"]",
            "the address 192.168.77.9 in `fixed` of `network.lan` is used 2 times",
        ),
        (
            "fixed = [\"a 192.168.77.8\", \"a 192.168.77.9\"]",
            "the interface a in `fixed` of `network.lan` is used 2 times",
        ),
        ("boot_server = \"fd00::1\"", "bad value for `network.lan.boot_server`"),
        (
            "boot_server = \"192.168.77.2\"",
            "`boot_server` is weir's own address, which serves no files",
        ),
        ("boot_server = \"10.0.0.1\"", "no guest reaches the server 10.0.0.1"),
        (
            "router = \"192.168.77.1\"\nboot_server = \"192.168.77.255\"",
            "no guest reaches the server 192.168.77.255",
        ),
        ("boot_file = \"pxelinux.0\"", "`network.lan` has `boot_file` without `boot_server`"),
        ("boot_file = \"\"", "bad value for `network.lan.boot_file`"),
        ("boot_file = \"efi_x64 ipxe.efi\"", "bad value for `network.lan.boot_file`"),
        ("boot_file = \"65536 ipxe.efi\"", "bad value for `network.lan.boot_file`"),
        ("boot_file = \"bios a b\"", "bad value for `network.lan.boot_file`"),
        ("boot_file = \"http://a/\\u0007\"", "bad value for `network.lan.boot_file`"),
        ("boot_file = \"http://a/\\tb\"", "bad value for `network.lan.boot_file`"),
        ("routes = \"10.0.0.0/8\"", "bad value for `network.lan.routes`"),
        ("routes = \"10.0.0.0 192.168.77.3\"", "bad value for `network.lan.routes`"),
        ("routes = \"10.0.0.1/8 192.168.77.3\"", "bad value for `network.lan.routes`"),
        ("routes = \"10.0.0.0/33 192.168.77.3\"", "bad value for `network.lan.routes`"),
        ("routes = \"10.0.0.0/8 via 192.168.77.3\"", "bad value for `network.lan.routes`"),
        ("routes = \"224.0.0.0/4 192.168.77.3\"", "bad value for `network.lan.routes`"),
        ("routes = \"127.0.0.0/8 192.168.77.3\"", "bad value for `network.lan.routes`"),
        ("routes = \"fd00::/8 fd00:77::3\"", "bad value for `network.lan.routes`"),
        ("routes = \"0.0.0.0/0 192.168.77.3\"", "a route for 0.0.0.0/0 is the default route"),
        (
            "routes = \"192.168.77.128/25 192.168.77.3\"",
            "guests have the addresses 192.168.77.128/25 in their own network",
        ),
        (
            "routes = \"10.0.0.0/8 192.168.78.3\"",
            "the gateway 192.168.78.3 is not within the subnet",
        ),
        (
            "routes = \"10.0.0.0/8 192.168.77.255\"",
            "the gateway 192.168.77.255 is not within the subnet",
        ),
        (
            "routes = \"10.0.0.0/8 192.168.77.2\"",
            "192.168.77.2 is weir itself, which routes nothing",
        ),
        (
            "routes = [\"10.0.0.0/8 192.168.77.3\", \"10.0.0.0/8 192.168.77.4\"]",
            "the prefix 10.0.0.0/8 in `routes` of `network.lan` is used 2 times",
        ),
        (&many_routes, "17 routes are too many"),
        (&long_file, "bad value for `network.lan.boot_file`"),
        (&many_files, "17 files to boot from are too many"),
        (
            "boot_file = [\"efi-x64 http://a\", \"7 http://b\"]",
            "the client efi-x64 in `boot_file` of `network.lan` is used 2 times",
        ),
    ];
    for (keys, expected) in cases {
        let problem = on(keys);
        assert!(problem.contains(expected) && !problem.contains("; "), "{keys}: {problem}");
    }
    let refused = |keys: &str| gateway(keys).unwrap_err().join("; ");
    let v6 =
        |fixed: &str| format!("address = \"fd00::2/64\"\nra = true\ndhcp6 = true\nfixed = {fixed}");
    let cases = [
        ("vlan = 1\ndhcp = true", "`network.lan` has `dhcp` without `address`"),
        ("address = \"fd00::2/64\"\ndhcp = true", "`network.lan` has `dhcp` and no IPv4 address"),
        ("address = \"192.168.77.2/24\"\nlease_time = \"1h\"", "`lease_time` without `dhcp`"),
        (
            "address = \"192.168.77.2/24\"\nroutes = \"10.0.0.0/8 192.168.77.3\"",
            "`routes` without `dhcp`",
        ),
        ("address = \"192.168.77.2/24\"\nboot_file = \"a\"", "`boot_file` without `dhcp`"),
        ("address = \"192.168.77.2\"", "bad value for `network.lan.address`"),
        ("address = \"192.168.77.0/24\"", "bad value for `network.lan.address`"),
        ("address = \"192.168.77.255/24\"", "bad value for `network.lan.address`"),
        ("address = \"224.0.0.2/24\"", "bad value for `network.lan.address`"),
        ("address = \"fe80::1/64\"", "bad value for `network.lan.address`"),
        ("address = \"127.0.0.1/8\"", "bad value for `network.lan.address`"),
        ("address = []", "no address in `address`"),
        ("address = [\"192.168.77.2/24\", \"192.168.78.2/24\"]", "two IPv4 addresses"),
        (
            "address = [\"fd00::2/64\", \"fd00::2/64\"]",
            "the address fd00::2 of `network.lan` is used 2 times",
        ),
        ("dhcp = false", "`network.lan` has no `address`, no `vlan` and no `vni`"),
        ("address = \"192.168.77.2/24\"\nra = true", "`network.lan` has `ra` and no IPv6 address"),
        (
            "address = \"fd00::2/64\"\nra = true\ndns = \"9.9.9.9\"",
            "the server 9.9.9.9 without `dhcp`",
        ),
        ("address = \"192.168.77.2/24\"\ndns = \"fd00::9\"", "the server fd00::9 without `ra`"),
        ("address = \"fd00::2/64\"\ndhcp6 = true", "`network.lan` has `dhcp6` without `ra`"),
        (
            "address = \"192.168.77.2/24\"\nfixed = \"web0 192.168.77.9\"",
            "`network.lan` has 192.168.77.9 of `web0` in `fixed` without `dhcp`",
        ),
        (
            "address = \"fd00::2/64\"\nra = true\nfixed = \"web0 fd00::9\"",
            "`network.lan` has fd00::9 of `web0` in `fixed` without `dhcp6`",
        ),
        (&v6("\"web0 fd00:0:0:1::9\""), "fd00:0:0:1::9 of `web0` is not within the subnet"),
        (&v6("\"web0 fd00::\""), "fd00:: of `web0` is not within the subnet"),
        (&v6("\"web0 192.168.77.9\""), "192.168.77.9 of `web0` in `fixed` without `dhcp`"),
        (&v6("\"web0 fd00::2\""), "fd00::2 of `web0` is weir's own"),
        (
            &v6("[\"a fd00::9\", \"b fd00::9\"]"),
            "the address fd00::9 in `fixed` of `network.lan` is used 2 times",
        ),
        (
            &v6("[\"a fd00::8\", \"a fd00::9\"]"),
            "the interface a in `fixed` of `network.lan` is used 2 times",
        ),
        (
            "address = \"fd00::2/113\"\nra = true\ndhcp6 = true",
            "`network.lan` has `dhcp6` and a small subnet of IPv6",
        ),
        (
            "address = \"fd00::2/64\"\nra = true\ndns = \"fe80::1\"",
            "bad value for `network.lan.dns`",
        ),
    ];
    for (keys, expected) in cases {
        let problem = refused(keys);
        assert!(problem.contains(expected) && !problem.contains("; "), "{keys}: {problem}");
    }
}

#[test]
fn with_a_way_out_the_host_is_the_router() {
    let keys = "nat = true\nfixed = \"web0 192.168.77.10\"\nforward = [\"tcp 2222 web0:22\", \"udp 53 web0:5353\"]\n";
    let with = gateway(&format!("{DHCP}{keys}")).unwrap();
    assert_eq!(with.dhcp.unwrap().router, Some("192.168.77.2".parse().unwrap()));
    let nat = with.nat.unwrap();
    assert_eq!(nat.interface.as_str(), "weir-lan");
    let forward: Vec<_> = nat.forward.iter().map(ToString::to_string).collect();
    assert_eq!(forward, ["tcp 2222 web0:22", "udp 53 web0:5353"]);
    let named = gateway("address = \"10.0.0.1/8\"\nnat = true\ninterface = \"out0\"\n").unwrap();
    assert_eq!(named.nat.unwrap().interface.as_str(), "out0");
    // A configured router has precedence over the host.
    let other = gateway(&format!("{DHCP}nat = true\nrouter = \"192.168.77.9\"\n")).unwrap();
    assert_eq!(other.dhcp.unwrap().router, Some("192.168.77.9".parse().unwrap()));

    let on = |keys: &str| gateway(&format!("{DHCP}{keys}")).unwrap_err().join("; ");
    let cases = [
        ("forward = \"tcp 2222 web0:22\"", "`network.lan` has `forward` without `nat`"),
        ("interface = \"out0\"", "`network.lan` has `interface` without `nat`"),
        (
            "nat = true\nforward = \"tcp 2222 web0:22\"",
            "`forward` names `web0`, which has no fixed address",
        ),
        ("nat = true\nforward = \"tcp 0 web0:22\"", "bad value for `network.lan.forward`"),
        ("nat = true\nforward = \"sctp 22 web0:22\"", "bad value for `network.lan.forward`"),
        ("nat = true\nforward = \"tcp 22 web0\"", "bad value for `network.lan.forward`"),
        ("nat = true\nforward = \"tcp 22 web0:70000\"", "bad value for `network.lan.forward`"),
        ("nat = true\ninterface = \"a name\"", "bad value for `network.lan.interface`"),
    ];
    for (keys, expected) in cases {
        let problem = on(keys);
        assert!(problem.contains(expected) && !problem.contains("; "), "{keys}: {problem}");
    }
    let fixed =
        "nat = true\nfixed = \"a 192.168.77.9\"\nforward = [\"tcp 22 a:22\", \"tcp 22 a:23\"]";
    let twice = "the port tcp 22 in `forward` of `network.lan` is used 2 times";
    assert_eq!(on(fixed), twice);
    // Each element that cannot be read is named, and the others are looked at.
    let mixed = "nat = true\nfixed = [\"a 192.168.77.9\", \"b\"]\n\
                 forward = [\"tcp 70000 a:22\", \"tcp 22 a:22\", \"2222:22\", \"tcp 22 b:23\"]";
    let problems = gateway(&format!("{DHCP}{mixed}")).unwrap_err();
    let bad = |key: &str| format!("bad value for `network.lan.{key}`");
    assert_eq!(problems, [bad("fixed"), bad("forward"), twice.into(), bad("forward")]);
    let alone = gateway("vlan = 1\nnat = true").unwrap_err();
    assert_eq!(alone, ["`network.lan` has `nat` without `address`"]);
    let long =
        read("[network.a-name-of-a-network]\naddress = \"10.0.0.1/8\"\nnat = true\n").unwrap_err();
    assert!(long[0].contains("is too long for an interface"), "{long:?}");
    let twins = |name: &str, n: u8| {
        format!(
            "[network.{name}]\nvlan = {n}\naddress = \"10.{n}.0.1/16\"\nnat = true\ninterface = \"out0\"\n"
        )
    };
    let problems = read(&(twins("a", 1) + &twins("b", 2))).unwrap_err();
    assert_eq!(problems, ["the interface out0 of `nat` is used 2 times"]);
}

#[test]
fn networks_with_a_way_out_share_no_subnet_no_port_and_no_uplink() {
    let network = |name: &str, vlan: u8, subnet: &str, rest: &str| {
        format!("[network.{name}]\nvlan = {vlan}\naddress = \"{subnet}\"\n{rest}\n")
    };
    let a = network("a", 1, "192.168.77.1/24", "nat = true");
    let overlap = ["`network.a` and `network.b` share addresses"];
    for subnet in ["192.168.77.129/25", "192.168.0.1/16", "192.168.77.2/24"] {
        let b = network("b", 10, subnet, "nat = true");
        assert_eq!(read(&(a.clone() + &b)).unwrap_err(), overlap, "{subnet}");
        // Two networks without `nat` may have the same subnet, and so may two of which only one has
        // `nat`.
        assert!(read(&(a.clone() + &network("b", 10, subnet, ""))).is_ok(), "{subnet}");
    }
    assert!(read(&(a.clone() + &network("b", 10, "192.168.78.1/24", "nat = true"))).is_ok());

    let forwards = |name: &str, vlan: u8, forward: &str| {
        let keys = "dhcp = true\nnat = true\nforward";
        let fixed = format!("fixed = \"web{vlan} 10.{vlan}.0.9\"");
        network(
            name,
            vlan,
            &format!("10.{vlan}.0.1/16"),
            &format!("{fixed}\n{keys} = \"{forward}\""),
        )
    };
    let one = forwards("a", 1, "tcp 2222 web1:22");
    let problems = read(&(one.clone() + &forwards("b", 2, "tcp 2222 web2:23"))).unwrap_err();
    assert_eq!(problems, ["the host's port tcp 2222 in `forward` is used 2 times"]);
    assert!(read(&(one.clone() + &forwards("b", 2, "udp 2222 web2:22"))).is_ok());

    for kind in ["tap", "af_packet"] {
        let uplink = |name: &str| format!("[uplink.l]\nkind = \"{kind}\"\nname = \"{name}\"\n");
        let problems = read(&(uplink("weir-a") + &a)).unwrap_err();
        let expected =
            "`uplink.l`: the interface weir-a is the host's in `network.a`, which has `nat`";
        assert_eq!(problems, [expected]);
        assert!(read(&(uplink("weir-b") + &a)).is_ok());
    }
}

#[test]
fn weirs_own_port_is_nobody_elses() {
    let lan = "[network.lan]\naddress = \"192.168.77.2/24\"\n";
    let problems = read(&format!("{lan}[vif.\"gateway.lan\"]\n")).unwrap_err();
    assert_eq!(problems, ["no other port is called `gateway.lan`"]);
    let problems =
        read(&format!("{lan}[network.other]\naddress = \"10.0.0.2/24\"\nvlan = 1\n")).unwrap_err();
    assert_eq!(problems, ["the VLAN 1 of networks with an `address` is used 2 times"]);
    let long = "x".repeat(limits::PORT_NAME_LEN_MAX);
    let problems = read(&format!("[network.{long}]\naddress = \"192.168.77.2/24\"\n")).unwrap_err();
    assert!(problems[0].contains("a long name"), "{problems:?}");
}
