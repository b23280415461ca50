use super::super::tests::{messages, parse, refused};
use super::super::{Setting, VifChanges};
use super::*;

const OVERLAY: &str = "[overlay]\nlocal = \"192.0.2.1\"\n";
const BLUE: &str = "[network.blue]\nvni = 100\npeers = [\"192.0.2.2\"]\n";

fn with_blue(rest: &str) -> String {
    format!("{OVERLAY}{BLUE}{rest}")
}

#[test]
fn every_key_is_read() {
    let config = parse(
        r#"
        [overlay]
        local = "2001:db8::1"
        interface = "eth0"
        port = 8472
        mtu = 9000
        queues = 4
        dscp = 46

        [network.blue]
        vni = 100
        peers = ["2001:db8::2", "2001:db8::3"]
        flood_per_second = 500

        [network.green]
        vlan = 10

        [network.red]
        vni = 0xffffff
        peers = ["2001:db8::3"]

        [vif.web0]
        network = "red"

        [vif.web1]
        network = "green"
        "#,
    )
    .unwrap();
    let Networks { overlay, all } = &config.networks;
    let overlay = overlay.as_ref().unwrap();
    assert_eq!(overlay.local.to_string(), "2001:db8::1");
    assert_eq!(overlay.interface.as_ref().unwrap().to_string(), "eth0");
    assert_eq!((overlay.port.get(), overlay.mtu.get(), overlay.queues.get()), (8472, 9000, 4));
    assert_eq!(overlay.dscp, OverlayDscp::Fixed(46.try_into().unwrap()));
    assert_eq!(all.len(), 3);
    let overlaid: Vec<_> = config
        .networks
        .of_overlay()
        .map(|(number, it, of)| (number, it.name.as_str(), of.vni.get(), of.peers.len()))
        .collect();
    assert_eq!(overlaid, [(0, "blue", 100, 2), (1, "red", 0xff_ffff, 1)]);
    let floods = config.networks.of_overlay().map(|(.., of)| of.flood_per_second.get());
    assert_eq!(floods.collect::<Vec<_>>(), [500, limits::OVERLAY_FLOODS_PER_SEC_DEFAULT]);
    let access = |vif: &VifConfig| vif.port_config(&config.networks).vlan;
    let [web0, web1] = &config.vifs[..] else { panic!("two interfaces") };
    let red = FabricVid::of_network(1).unwrap();
    assert_eq!(access(web0), weir_fabric::VlanMode::Access(red));
    let ten = FabricVid::new(10).unwrap();
    assert_eq!(access(web1), weir_fabric::VlanMode::Access(ten), "today's VLAN");
}

#[test]
fn a_network_without_peers_is_frrs_where_there_is_evpn() {
    let text = format!(
        "{OVERLAY}evpn = true\n{BLUE}[network.red]\nvni = 7\n[network.green]\nvni = 8\nneigh_suppress = false\n"
    );
    let networks = parse(&text).unwrap().networks;
    assert_eq!(networks.suppressed().collect::<Vec<_>>(), [1], "unless it is switched off");
    assert!(networks.overlay.as_ref().unwrap().evpn);
    assert_eq!(networks.by_evpn().collect::<Vec<_>>(), [(1, 7), (2, 8)]);
    assert_eq!(parse(&with_blue("")).unwrap().networks.by_evpn().count(), 0);
    let v6 = text.replace("192.0.2.", "2001:db8::");
    assert_eq!(parse(&v6).unwrap().networks.by_evpn().count(), 2, "FRR's version decides");
}

#[test]
fn the_hosts_with_ids_of_groups_are_all_or_those_that_are_named() {
    let gbp = |value: &str| {
        let text = with_blue("").replacen("[overlay]\n", &format!("[overlay]\n{value}\n"), 1);
        parse(&text).unwrap().networks.overlay.unwrap().gbp
    };
    let has = |value: &str| {
        let gbp = gbp(value);
        ["192.0.2.2", "192.0.2.66", "2001:db8::2"].map(|host| gbp.has(host.parse().unwrap()))
    };
    assert_eq!(has(""), [false; 3]);
    assert_eq!(has("gbp = false"), [false; 3]);
    assert_eq!(has("gbp = []"), [false; 3]);
    assert_eq!(has("gbp = true"), [true; 3]);
    assert_eq!(has("gbp = [\"192.0.2.2\"]"), [true, false, false]);
    assert_eq!(has("gbp = [\"192.0.2.64/26\", \"2001:db8::/64\"]"), [false, true, true]);
    assert_eq!(gbp("gbp = [\"192.0.2.2\", \"10.0.0.0/8\"]").to_string(), "192.0.2.2, 10.0.0.0/8");
    let many = format!("[{}]", "\"192.0.2.2\",".repeat(limits::OVERLAY_PEERS_MAX + 1));
    for (value, expected) in [
        ("\"yes\"", "true, false, or hosts"),
        ("7", "true, false, or hosts"),
        ("[\"any\"]", "a host's address"),
        ("[\"group:web\"]", "a host's address"),
        ("[\"192.0.2.2/24\"]", "192.0.2.0/24"),
        ("[7]", "in quotes"),
        (&*many, "0 to 256"),
    ] {
        let text = with_blue("").replacen("[overlay]\n", &format!("[overlay]\ngbp = {value}\n"), 1);
        let said = format!("{:?}", refused(&text));
        assert!(said.contains(expected), "{value}: {said}");
    }
}

#[test]
fn datagrams_have_the_dscp_of_the_configuration_or_of_the_packet_inside() {
    let dscp = |value: &str| {
        let text = with_blue("").replacen("[overlay]\n", &format!("[overlay]\n{value}\n"), 1);
        parse(&text).unwrap().networks.overlay.unwrap().dscp
    };
    let fixed = |value: u64| OverlayDscp::Fixed(value.try_into().unwrap());
    assert_eq!(dscp(""), fixed(0));
    assert_eq!(dscp("dscp = 63"), fixed(63));
    assert_eq!(dscp("dscp = \"inherit\""), OverlayDscp::Inherit);
    for (value, expected) in
        [("64", "0 to 63"), ("-1", "0 to 63"), ("\"ef\"", "`inherit`"), ("true", "a DSCP")]
    {
        let text =
            with_blue("").replacen("[overlay]\n", &format!("[overlay]\ndscp = {value}\n"), 1);
        let said = format!("{:?}", refused(&text));
        assert!(said.contains(expected), "{value}: {said}");
    }
}

#[test]
fn guests_of_the_overlay_are_told_its_mtu_unless_theirs_is_smaller() {
    let mtu = |text: &str| parse(text).unwrap().vifs[0].mtu.map(Mtu::get);
    assert_eq!(mtu(&with_blue("[vif.a]\nnetwork = \"blue\"\n")), Some(1450));
    assert_eq!(mtu(&with_blue("[vif.a]\nnetwork = \"blue\"\nmtu = 1400\n")), Some(1400));
    assert_eq!(mtu(&with_blue("[vif.a]\n")), None);
    let v6 =
        "[overlay]\nlocal = \"2001:db8::1\"\n[network.blue]\nvni = 1\npeers = [\"2001:db8::2\"]\n";
    assert_eq!(mtu(&format!("{v6}[vif.a]\nnetwork = \"blue\"\n")), Some(1430));
    let vlan = "[network.green]\nvlan = 10\n[vif.a]\nnetwork = \"green\"\n";
    assert_eq!(mtu(vlan), None, "a VLAN has no limit of its own");
}

#[test]
fn each_mistake_is_said_with_its_place_and_what_to_do() {
    for (text, message, help) in [
        (
            format!("[overlay]\n{BLUE}").as_str(),
            "`overlay` has no `local`",
            "such as `local = \"192.0.2.1\"`",
        ),
        (OVERLAY, "`overlay` carries no network", "add a table such as [network.blue]"),
        (BLUE, "`network.blue` has a `vni`, and there is no overlay", "add the table [overlay]"),
        (
            "[network.blue]\n",
            "`network.blue` has no `address`, no `vlan` and no `vni`",
            "or `vlan = 10`",
        ),
        (
            &with_blue("[network.red]\nvni = 2\nvlan = 3\npeers = [\"192.0.2.2\"]\n"),
            "`network.red` has both `vlan` and `vni`",
            "keep one",
        ),
        (
            &with_blue("[network.red]\nvni = 100\npeers = [\"192.0.2.2\"]\n"),
            "the VNI 100 is used 2 times",
            "give each network its own",
        ),
        (
            &with_blue("[network.red]\nvni = 2\n"),
            "`network.red` has no `peers`",
            "name the other hosts",
        ),
        (
            &with_blue("[network.red]\nvni = 2\npeers = []\n"),
            "`network.red` has no peers",
            "name the other hosts",
        ),
        (
            &with_blue("[network.red]\nvni = 2\npeers = [\"192.0.2.1\"]\n"),
            "`network.red` has this host among its peers",
            "name the other hosts only",
        ),
        (
            &with_blue("[network.red]\nvni = 2\npeers = [\"2001:db8::1\"]\n"),
            "`network.red` has a peer that this host does not reach",
            "of the family of `local`",
        ),
        (
            &with_blue("[network.red]\nvni = 2\npeers = [\"192.0.2.9\", \"192.0.2.9\"]\n"),
            "the peer 192.0.2.9 of `network.red` is used 2 times",
            "name each host once",
        ),
        (
            "[network.green]\nvlan = 3\npeers = [\"192.0.2.2\"]\n",
            "`network.green` has `peers` without `vni`",
            "by an uplink",
        ),
        (
            "[network.green]\nvlan = 3\nflood_per_second = 5\n",
            "`network.green` has `flood_per_second` without `vni`",
            "",
        ),
        (
            &format!("{OVERLAY}evpn = true\n{BLUE}"),
            "`overlay` has `evpn`, and no network for it",
            "leave `peers` out",
        ),
        (
            &format!("{OVERLAY}evpn = true\n[network.blue]\nvni = 100\npeers = []\n"),
            "`network.blue` has no peers",
            "",
        ),
        (
            &with_blue("[network.red]\nvni = 2\n"),
            "`network.red` has no `peers`",
            "`evpn = true` in [overlay]",
        ),
        (
            &with_blue("[network.red]\nvni = 2\npeers = [\"192.0.2.2\"]\nneigh_suppress = true\n"),
            "`network.red` has `neigh_suppress` and `peers`",
            "leave `neigh_suppress` out",
        ),
        (
            "[network.green]\nvlan = 3\nneigh_suppress = true\n",
            "`network.green` has `neigh_suppress` without `vni`",
            "",
        ),
        (
            &format!("{OVERLAY}queues = 8\n{BLUE}"),
            "`overlay` has at most 7 queues",
            "choose 1 to 7",
        ),
        (&format!("{OVERLAY}evpn = 1\n{BLUE}"), "bad value for `overlay.evpn`", ""),
        ("[network.Blue]\nvlan = 3\n", "bad name of a network", "out of a-z"),
        (
            &with_blue("[vif.a]\nnetwork = \"bleu\"\n"),
            "`vif.a`: there is no network `bleu`",
            "did you mean `blue`?",
        ),
        (
            "[vif.a]\nnetwork = \"blue\"\n",
            "`vif.a`: there is no network `blue`",
            "add a table [network.blue]",
        ),
        (
            &with_blue("[uplink.a]\nkind = \"tap\"\nname = \"t0\"\nnetwork = \"nosuch\"\n"),
            "`uplink.a`: there is no network `nosuch`",
            "there are: blue",
        ),
        (
            &with_blue("[vif.a]\nnetwork = \"blue\"\nvlan = 3\n"),
            "`vif.a` has both `network` and a VLAN",
            "keep one",
        ),
        (
            &with_blue("[vif.a]\nnetwork = \"blue\"\nmtu = 1500\n"),
            "`vif.a`: an MTU of 1500 does not fit into the overlay, whose networks have 1450",
            "leave `mtu` out",
        ),
        (&with_blue("[vif.overlay]\n"), "no other port is called `overlay`", "choose another name"),
        (
            &with_blue("[xen]\nnetwork = \"nosuch\"\n"),
            "`xen`: there is no network `nosuch`",
            "there are: blue",
        ),
    ] {
        assert_eq!(messages(text), [message], "{text}");
        let shown = refused(text).replace("\n  │ ", " ");
        let shown = shown.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(shown.contains(help), "{text}: {shown}");
    }
}

#[test]
fn values_out_of_range_are_refused() {
    for (text, words) in [
        ("[overlay]\nlocal = \"host1\"\n", "`host1` is not the address of a host"),
        ("[overlay]\nlocal = \"224.0.0.1\"\n", "`224.0.0.1` is not the address of a host"),
        ("[overlay]\nlocal = \"0.0.0.0\"\n", "`0.0.0.0` is not the address of a host"),
        ("[overlay]\nlocal = \"fe80::1\"\n", "`fe80::1` is not the address of a host"),
        ("[overlay]\nlocal = 5\n", "expected an address in quotes"),
        ("[overlay]\nlocal = \"192.0.2.1\"\nport = 0\n", "must be 1 to 65535, not 0"),
        ("[network.blue]\nvni = 16777216\npeers = []\n", "must be 1 to 16777215, not 16777216"),
        ("[network.blue]\nvni = 0\npeers = []\n", "must be 1 to 16777215, not 0"),
        ("[network.blue]\nvni = 1\npeers = \"192.0.2.2\"\n", "expected addresses in brackets"),
        ("[network.blue]\nvni = 1\npeers = [\"x\"]\n", "`x` is not the address of a host"),
    ] {
        let shown = refused(text);
        assert!(shown.contains(words), "{text}: {shown}");
    }
}

#[test]
fn peers_have_a_bound() {
    let peers: Vec<_> = (0..=limits::OVERLAY_PEERS_MAX)
        .map(|n| format!("\"10.9.{}.{}\"", n / 200, 1 + n % 200))
        .collect();
    let text = format!("{OVERLAY}[network.blue]\nvni = 1\npeers = [{}]\n", peers.join(",\n"));
    assert_eq!(messages(&text), ["`network.blue` has 257 peers, which are too many"]);
}

#[test]
fn an_interface_is_put_into_a_network_on_the_command_line_too() {
    let (name, control) = ("a".parse().unwrap(), "/run/weir/c.sock".parse().unwrap());
    let settings: [Setting; 1] = ["network=blue".parse().unwrap()];
    let mut vif = VifConfig::from_settings(&name, &settings, &control).unwrap();
    let networks = parse(&with_blue("")).unwrap().networks;
    networks.settle(&mut vif);
    assert_eq!(vif.mtu.map(Mtu::get), Some(1450));
    let json = serde_json::to_string(&vif).unwrap();
    assert_eq!(serde_json::from_str::<VifConfig>(&json).unwrap(), vif);
    assert_eq!(vif.vlan.to_string(), "network blue");

    let settings: [Setting; 1] = ["network=none".parse().unwrap()];
    networks.unsettle(&mut vif);
    assert_eq!(vif.mtu, None, "it was the network's");
    VifChanges::from_settings(&name, &settings).unwrap().apply(&mut vif);
    assert_eq!(vif.vlan, VlanMode::Unset);
    let settings: [Setting; 1] = ["network=nosuch".parse().unwrap()];
    VifChanges::from_settings(&name, &settings).unwrap().apply(&mut vif);
    let error = networks.check_vif(&vif).unwrap_err();
    assert_eq!(
        (error.to_string(), error.help()),
        ("there is no network `nosuch`".into(), "there are: blue".into())
    );
    // A port in a network that does not exist is a member of no VLAN.
    let nowhere = vif.port_config(&networks).vlan;
    assert!(!(1..4095).any(|vid| nowhere.is_member(FabricVid::new(vid).unwrap())));
}

#[test]
fn an_address_is_used_once_in_each_network() {
    let vif = |name: &str, network: &str| {
        format!("[vif.{name}]\nnetwork = \"{network}\"\nmac = \"52:54:00:00:00:01\"\n")
    };
    let red = "[network.red]\nvni = 200\npeers = [\"192.0.2.2\"]\n";
    let both = with_blue(&format!("{red}{}{}", vif("a", "blue"), vif("b", "red")));
    let config = parse(&both).unwrap();
    assert!(!config.vifs[0].shares_with(&config.vifs[1], &config.networks));
    let twice = with_blue(&format!("{}{}", vif("a", "blue"), vif("b", "blue")));
    let message = "the MAC address 52:54:00:00:00:01 is used 2 times";
    assert_eq!(messages(&twice), [message]);
    // VLANs are such networks, whether a port names one by table or by number, and a trunk is in
    // several.
    let mac = "mac = \"52:54:00:00:00:01\"\n";
    for (one, two, shares) in [
        ("vlan = 1", "vlan = 5", false),
        ("vlan = 5", "vlan = 5", true),
        ("", "vlan = 1", true),
        ("", "network = \"two\"", false),
        ("vlan = 2", "network = \"two\"", true),
        ("trunk = [2, 3]", "network = \"two\"", true),
        ("trunk = [2, 3]", "trunk = [4, 5]", false),
        ("trunk = [2, 3]", "trunk = \"all\"", true),
    ] {
        let text = format!("[network.two]\nvlan = 2\n[vif.a]\n{one}\n{mac}[vif.b]\n{two}\n{mac}");
        let found = parse(&text).err().map(|_| messages(&text));
        assert_eq!(found, shares.then(|| vec![message.to_owned()]), "{one}, {two}");
    }
}

#[test]
fn a_network_isolates_its_interfaces_unless_theirs_say_otherwise() {
    let text = "[network.guests]\nvlan = 10\nisolated = true\n[network.staff]\nvlan = 20\n\
                [vif.a]\nnetwork = \"guests\"\n[vif.b]\nnetwork = \"guests\"\nisolated = false\n\
                [vif.c]\nnetwork = \"staff\"\n[vif.d]\nnetwork = \"staff\"\nisolated = true\n\
                [vif.e]\nvlan = 10\n[vif.f]\nisolated = true\n";
    let config = parse(&format!("{text}[xen]\nnetwork = \"guests\"\n")).unwrap();
    let of = |vif: &VifConfig| vif.port_config(&config.networks).isolated;
    let isolated: Vec<_> = config.vifs.iter().map(of).collect();
    assert_eq!(isolated, [true, false, false, true, true, true]);
    assert!(of(&config.xen.as_ref().unwrap().vif));
    let own = "[network.all]\naddress = \"192.168.77.1/24\"\nisolated = true\n[vif.a]\n[vif.b]\nvlan = 2\n";
    let own = parse(own).unwrap();
    let isolated: Vec<_> = own.vifs.iter().map(|vif| vif.is_isolated(&own.networks)).collect();
    assert_eq!(isolated, [true, false], "a network of interfaces that name none");
    let mut vif = config.vifs[0].clone();
    for (setting, expected) in [("false", false), ("none", true), ("true", true)] {
        let setting = format!("isolated={setting}").parse().unwrap();
        crate::VifChanges::from_settings(&vif.name.clone(), &[setting]).unwrap().apply(&mut vif);
        assert_eq!(of(&vif), expected);
    }
    let message = |text: &str| format!("{:?}", miette::Report::new(parse(text).unwrap_err()));
    for (text, says) in [
        ("[vif.a]\nisolated = \"yes\"\n", "true or false"),
        ("[network.a]\nvlan = 1\nisolated = 1\n", "true or false"),
        ("[uplink.a]\nkind = \"tap\"\nname = \"t\"\nisolated = true\n", "unknown key"),
        ("[vif.a]\n[vif.b]\nmirror = \"a\"\nisolated = true\n", "does not hold for copies"),
    ] {
        assert!(message(text).contains(says), "{text}: {}", message(text));
    }
}
