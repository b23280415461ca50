use weir_limits::PORTS_MAX;

use super::super::tests::parse;
use super::*;
use crate::UplinkKind;
use crate::uplink::examples;

/// A running switch with the configuration it was started with, and interfaces that were added while it runs.
struct Started {
    config: Config,
    by_hand: Vec<VifConfig>,
    xen_guests: Vec<VifConfig>,
    confined: bool,
}

impl Started {
    fn with(text: &str) -> Self {
        let config = parse(text).unwrap();
        Self { config, by_hand: Vec::new(), xen_guests: Vec::new(), confined: false }
    }

    fn running<T>(&self, look: impl FnOnce(&Running<'_>) -> T) -> T {
        let beside = |path: &SocketPath, _| {
            !self.confined || path.as_path().parent() == Some("/run/weir".as_ref())
        };
        let of_file = |config| RunningVif { config, from_file: true, xen: false };
        let by_hand = |config| RunningVif { config, from_file: false, xen: false };
        let xen = |config| RunningVif { config, from_file: false, xen: true };
        let vifs = self.config.vifs.iter().map(of_file);
        let vifs = vifs.chain(self.by_hand.iter().map(by_hand));
        look(&Running {
            switch: &self.config.switch,
            networks: &self.config.networks,
            groups: &self.config.groups,
            templates: &self.config.templates,
            uplinks: self.config.uplinks.iter().collect(),
            vifs: vifs.chain(self.xen_guests.iter().map(xen)).collect(),
            xen: self.config.xen.as_ref(),
            able: Able { sockets: &beside, uplinks: !self.confined, pin_vcpus: !self.confined },
        })
    }

    fn compare(&self, text: &str) -> (Difference, Steps) {
        self.running(|running| running.compare(&parse(text).unwrap()))
    }

    fn check(&self, text: &str) -> Result<(), String> {
        self.running(|running| running.check(&running.compare(&parse(text).unwrap()).1))
    }
}

fn vif(name: &str) -> VifConfig {
    let socket = format!("/run/weir/{name}.sock").parse().unwrap();
    VifConfig::new(name.parse().unwrap(), socket)
}

/// A line for each table and key: `vif.web0 changed`, `vif.web0.queues 1 -> 2`.
fn lines(difference: &Difference) -> Vec<String> {
    let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "default".into());
    let mut lines = Vec::new();
    for table in &difference.tables {
        let alive = |alive| if alive { "" } else { " (not alive)" };
        lines.push(format!("{} {:?}{}", table.table, table.kind, alive(table.alive)));
        for key in &table.keys {
            let change = format!("{} -> {}", value(&key.from), value(&key.to));
            lines.push(format!("{}.{} {change}{}", table.table, key.key, alive(key.alive)));
        }
    }
    lines
}

/// Each key of `[vif.NAME]`, lines of the file that it needs from the start, the line that sets it, and whether it can
/// change while weir runs.
const VIF_KEYS: &[(&str, &str, &str, bool)] = &[
    ("socket", "", "socket = \"/run/weir/other.sock\"", false),
    ("template", "", "template = \"t\"", true),
    ("mode", "", "mode = \"client\"", false),
    ("socket_mode", "", "socket_mode = \"0660\"", false),
    ("socket_user", "", "socket_user = \"alice\"", false),
    ("socket_group", "", "socket_group = \"kvm\"", false),
    ("queues", "", "queues = 4", true),
    ("rx_ring", "", "rx_ring = 512", true),
    ("tx_ring", "", "tx_ring = 256", true),
    ("latency_budget", "", "latency_budget = \"1ms\"", true),
    ("moderation", "", "moderation = \"immediate\"", true),
    ("rx_usecs", "moderation = \"backend\"", "rx_usecs = 20", true),
    ("rx_frames", "moderation = \"backend\"", "rx_frames = 20", true),
    ("container_bytes", "moderation = \"aggregate\"", "container_bytes = 4096", true),
    ("agent", "", "agent = \"/run/weir/web0.agent\"", false),
    ("mac", "", "mac = \"52:54:00:00:00:01\"", true),
    ("mac_check", "", "mac_check = false", true),
    ("isolated", "", "isolated = true", true),
    ("multicast_router", "", "multicast_router = true", true),
    ("rss_rebalance", "", "rss_rebalance = false", true),
    ("vlan", "", "vlan = 10", true),
    ("vlan", "", "trunk = [10, 20]\nnative = 1", true),
    ("vlan", "", "mirror = [\"b\"]", true),
    ("tag_protocol", "", "tag_protocol = \"802.1ad\"", true),
    ("mtu", "", "mtu = 9000", true),
    ("access_platform", "", "access_platform = true", true),
    ("memory_max", "", "memory_max = \"1GiB\"", true),
    (
        "filter",
        "",
        "[[vif.web0.filter]]\ndirection = \"tx\"\naction = \"drop\"\nmatch = \"tcp port 25\"",
        true,
    ),
    ("groups", "", "groups = [\"web\"]", true),
    ("broadcasts_per_second", "", "broadcasts_per_second = 10", true),
    ("multicasts_per_second", "", "multicasts_per_second = 10", true),
    ("unknown_per_second", "", "unknown_per_second = 10", true),
    ("source_guard", "", "source_guard = \"snooped\"", true),
    ("addresses", "source_guard = \"snooped\"", "addresses = [\"10.0.0.5\"]", true),
    ("router", "", "router = true", true),
    ("weight", "", "weight = 2", true),
    ("window", "period = \"1ms\"", "window = \"1/2\"", true),
    ("period", "window = \"1/2\"", "period = \"2ms\"", true),
    ("rate", "", "rate = \"1Gbit\"", true),
    ("burst", "rate = \"1Gbit\"", "burst = \"1MiB\"", true),
    ("packets_per_second", "", "packets_per_second = 1000", true),
    ("packet_burst", "packets_per_second = 1000", "packet_burst = 500", true),
    ("rx_rate", "", "rx_rate = \"1Gbit\"", true),
    ("rx_burst", "rx_rate = \"1Gbit\"", "rx_burst = \"1MiB\"", true),
    ("rx_packets_per_second", "", "rx_packets_per_second = 1000", true),
    ("rx_packet_burst", "rx_packets_per_second = 1000", "rx_packet_burst = 500", true),
];

/// The same for each key of `[uplink.NAME]`.
const UPLINK_KEYS: &[(&str, &str, &str, bool)] = &[
    ("kind", "name = \"w0\"", "kind = \"af_packet\"", false),
    ("name", "kind = \"tap\"", "name = \"other\"", false),
    ("path", "kind = \"stream\"", "path = \"/run/weir/out.sock\"", false),
    (
        "host_access",
        "kind = \"stream\"\npath = \"/run/weir/out.sock\"",
        "host_access = true",
        false,
    ),
    (
        "agent_port",
        "kind = \"af_packet\"\nname = \"eth0\"",
        "agent_port = \"/dev/vport0p1\"",
        false,
    ),
    ("bridge", "kind = \"tap\"\nname = \"w0\"", "bridge = \"br0\"", false),
    ("address", "kind = \"tap\"\nname = \"w0\"", "address = \"10.9.0.1/24\"", false),
    ("on_up", "kind = \"tap\"\nname = \"w0\"", "on_up = [\"/etc/weir/up\"]", false),
    ("on_down", "kind = \"tap\"\nname = \"w0\"", "on_down = [\"/etc/weir/down\"]", false),
    ("queues", "kind = \"tap\"\nname = \"w0\"", "queues = 2", false),
    ("vlan", "kind = \"tap\"\nname = \"w0\"", "vlan = 10", true),
    ("tag_protocol", "kind = \"tap\"\nname = \"w0\"", "tag_protocol = \"802.1ad\"", true),
    ("mtu", "kind = \"tap\"\nname = \"w0\"", "mtu = 9000", false),
    (
        "filter",
        "kind = \"tap\"\nname = \"w0\"",
        "[[uplink.lan.filter]]\ndirection = \"tx\"\naction = \"drop\"",
        true,
    ),
    ("rss_rebalance", "kind = \"tap\"\nname = \"w0\"", "rss_rebalance = false", true),
    ("weight", "kind = \"tap\"\nname = \"w0\"", "weight = 2", true),
];

/// The same for the keys that only `[bond.NAME]` has.
const BOND_KEYS: &[(&str, &str, &str, bool)] = &[
    ("uplinks", "", "uplinks = [\"eth1\", \"eth0\"]", false),
    ("mode", "uplinks = [\"eth0\", \"eth1\"]", "mode = \"balance\"", true),
    ("lacp_rate", "uplinks = [\"eth0\", \"eth1\"]\nmode = \"lacp\"", "lacp_rate = \"fast\"", true),
];

/// The same for each key of `[switch]`.
const SWITCH_KEYS: &[(&str, &str, &str, bool)] = &[
    ("execution", "", "execution = \"threads\"", false),
    ("realization", "", "realization = \"shared\"", false),
    ("workers", "", "workers = 2", false),
    ("latency_budget", "", "latency_budget = \"1ms\"", true),
    ("schedule", "", "schedule = \"dwcs\"", true),
    ("fdb_entries", "", "fdb_entries = 100000", false),
    ("control", "", "control = \"/run/weir/other.sock\"", false),
    ("placement", "", "placement = \"dynamic\"", true),
    ("pin_vcpus", "placement = \"dynamic\"", "pin_vcpus = true", true),
    ("move_irqs", "placement = \"dynamic\"", "move_irqs = false", true),
    ("user", "", "user = \"weir\"", false),
    ("keeper", "", "keeper = \"/run/weir/keeper.sock\"", false),
    ("allow_symlinks", "", "allow_symlinks = true", false),
    ("client_dir", "", "client_dir = \"/var/lib/kubelet/pods\"", false),
    ("socket_group", "", "socket_group = \"kvm\"", false),
    ("on_up", "", "on_up = [\"/etc/weir/up\"]", false),
    ("on_down", "", "on_down = [\"/etc/weir/down\", \"-v\"]", false),
    ("group", "", "group = \"kvm\"", false),
    ("admin", "group = \"kvm\"", "admin = [\"alice\", \"7\"]", false),
    ("api_listen", "api_token_file = \"/t\"", "api_listen = \"[::1]:1\"", false),
    ("api_token_file", "api_listen = \"[::1]:1\"", "api_token_file = \"/t\"", false),
];

/// The same for `[group.NAME]`.
const GROUP_KEYS: &[(&str, &str, &str, bool)] = &[
    ("default_in", "", "default_in = \"allow\"", true),
    ("default_out", "", "default_out = \"deny\"", true),
    ("log", "", "log = true", true),
    ("rules", "", "rules = [{ direction = \"in\", protocol = \"tcp\" }]", true),
];

/// The same for `[xen]`. Of the keys that an interface has as well, one stands for all.
const XEN_KEYS: &[(&str, &str, &str, bool)] = &[
    ("bridges", "", "bridges = [\"br0\"]", false),
    ("agent_channel", "", "agent_channel = \"weir.agent\"", false),
    ("split_event_channels", "", "split_event_channels = true", false),
    ("queues", "", "queues = 4", false),
];

/// A change of each key is found, with the value before and after. It is a step only if the key can change while weir
/// runs.
fn each_key_is_found(table: &str, cases: &[(&str, &str, &str, bool)]) {
    for (key, needs, line, alive) in cases {
        // These keys need each other: the key is there before, with another value.
        let (before, after) = match *key {
            "kind" => (format!("{needs}\nkind = \"tap\""), format!("{needs}\n{line}")),
            "name" => (format!("{needs}\nname = \"w0\""), format!("{needs}\n{line}")),
            "path" => {
                (format!("{needs}\npath = \"/run/weir/old.sock\""), format!("{needs}\n{line}"))
            }
            "uplinks" => {
                (format!("{needs}\nuplinks = [\"eth0\", \"eth1\"]"), format!("{needs}\n{line}"))
            }
            "window" => (format!("{needs}\nwindow = \"1/4\""), format!("{needs}\n{line}")),
            "api_listen" => {
                (format!("{needs}\napi_listen = \"[::1]:2\""), format!("{needs}\n{line}"))
            }
            "api_token_file" => {
                (format!("{needs}\napi_token_file = \"/u\""), format!("{needs}\n{line}"))
            }
            "period" => (format!("{needs}\nperiod = \"1ms\""), format!("{needs}\n{line}")),
            _ => ((*needs).to_owned(), format!("{needs}\n{line}")),
        };
        let schedule = match *key {
            "window" | "period" => "[switch]\nschedule = \"dwcs\"\n",
            "groups" => "[group.web]\n",
            "template" => "[template.t]\n",
            _ if table == "bond.lan" => {
                "[uplink]\neth0 = { kind = \"tap\", name = \"eth0\" }\n\
                 eth1 = { kind = \"tap\", name = \"eth1\" }\n"
            }
            _ => "",
        };
        let file = |keys: &str| format!("{schedule}[{table}]\n{keys}\n");
        let (difference, steps) = Started::with(&file(&before)).compare(&file(&after));
        let [found] = difference.tables.as_slice() else { panic!("{key}: {difference:?}") };
        assert_eq!((found.table.as_str(), found.kind), (table, DifferenceKind::Changed));
        let [changed] = found.keys.as_slice() else { panic!("{key}: {difference:?}") };
        assert_eq!((changed.key.as_str(), changed.alive), (*key, *alive), "{changed:?}");
        assert_ne!(changed.from, changed.to);
        assert_eq!(steps != Steps::default(), *alive, "{key}: {steps:?}");
        assert_eq!(difference.fixed().count(), usize::from(!alive), "{key}");
        assert!(difference.fixed().all(|(_, why)| !why.is_empty()), "{key}");
        // The same file gives no difference.
        let (none, nothing) = Started::with(&file(&after)).compare(&file(&after));
        assert!(none.is_empty() && none.tables.is_empty() && nothing == Steps::default(), "{key}");
    }
}

#[test]
fn each_key_of_each_table_is_compared() {
    let all = |keys: Rows, cases: &[(&str, &str, &str, bool)]| {
        for (key, _) in keys {
            // No file has `by`, the owner of an interface.
            let has = key.name == "by" || cases.iter().any(|case| case.0 == key.name);
            assert!(has, "no case for {}", key.name);
        }
    };
    let config = parse("[uplink.lan]\nkind = \"tap\"\nname = \"w0\"\n").unwrap();
    all(config.switch.rows(), SWITCH_KEYS);
    all(config.uplinks[0].rows(), &[UPLINK_KEYS, BOND_KEYS].concat());
    all(vif("web0").rows(), VIF_KEYS);
    let groups = parse("[group.web]\n").unwrap().groups;
    all(groups.all[0].rows(), GROUP_KEYS);
    each_key_is_found("group.web", GROUP_KEYS);
    each_key_is_found("switch", SWITCH_KEYS);
    each_key_is_found("uplink.lan", UPLINK_KEYS);
    each_key_is_found("bond.lan", BOND_KEYS);
    each_key_is_found("vif.web0", VIF_KEYS);
    each_key_is_found("xen", XEN_KEYS);
}

#[test]
fn tables_come_and_go_with_the_file() {
    let started = Started::with(
        "[uplink.lan]\nkind = \"tap\"\nname = \"w0\"\n[vif.a]\n[vif.b]\nqueues = 2\n",
    );
    let (difference, steps) = started.compare(
        "[uplink.wan]\nkind = \"tap\"\nname = \"w1\"\n[vif.b]\nqueues = 4\n[vif.c]\nmtu = 9000\n",
    );
    assert_eq!(
        lines(&difference),
        [
            "uplink.lan Removed",
            "uplink.wan Added",
            "uplink.wan.kind default -> tap",
            "uplink.wan.name default -> w1",
            "vif.a Removed",
            "vif.b Changed",
            "vif.b.queues 2 -> 4",
            "vif.c Added",
            "vif.c.socket default -> /run/weir/c.sock",
            "vif.c.mtu default -> 9000",
        ]
    );
    let names = |vifs: &[VifConfig]| vifs.iter().map(|it| it.name.to_string()).collect::<Vec<_>>();
    assert_eq!(names(&steps.vifs_added), ["c"]);
    assert_eq!(names(&steps.vifs_changed), ["b"]);
    assert_eq!(steps.vifs_removed, ["a".parse().unwrap()]);
    assert_eq!(steps.uplinks_removed, ["lan".parse().unwrap()]);
    assert_eq!(steps.uplinks_added.len(), 1);
    for (kind, count) in
        [(DifferenceKind::Added, 2), (DifferenceKind::Removed, 2), (DifferenceKind::Changed, 1)]
    {
        assert_eq!(difference.count(kind), count);
    }
}

#[test]
fn what_came_by_hand_stays_until_the_file_names_it() {
    let mut started = Started::with("[vif.a]\n");
    started.by_hand.push(vif("tmp0"));
    let (difference, steps) = started.compare("[vif.a]\n");
    assert_eq!(lines(&difference), ["vif.tmp0 Unlisted"]);
    assert!(difference.is_empty() && steps == Steps::default());
    let (difference, _) = started.compare("[vif.a]\n[vif.tmp0]\nvlan = 5\n");
    assert_eq!(lines(&difference), ["vif.tmp0 Changed", "vif.tmp0.vlan default -> 5"]);
}

#[test]
fn xen_guests_interfaces_are_not_the_files() {
    let mut started = Started::with("[xen]\n");
    started.xen_guests.push(vif("vif3.0"));
    let (difference, steps) = started.compare("[xen]\n");
    assert!(difference.tables.is_empty() && steps == Steps::default());
    let (difference, steps) = started.compare("[xen]\n[vif.\"vif3.0\"]\n");
    assert_eq!(lines(&difference)[0], "vif.vif3.0 Added (not alive)");
    assert_eq!(steps, Steps::default());
    let own = "[xen]\n[xen-vif.\"web.0\"]\nqueues = 2\n";
    let (same, _) = Started::with(own).compare(own);
    assert!(same.is_empty());
    for (before, after, what) in [
        ("[xen]\n", own.to_owned(), "xen-vif.web.0"),
        (own, "[xen]\n".to_owned(), "xen-vif.web.0"),
        (own, own.replace('2', "4"), "xen-vif.web.0.queues"),
    ] {
        let (difference, steps) = Started::with(before).compare(&after);
        assert_eq!(steps, Steps::default());
        assert_eq!(difference.fixed().map(|(what, _)| what).collect::<Vec<_>>(), [what]);
    }
    for (before, after) in [("", "[xen]\n"), ("[xen]\n", "")] {
        let (difference, _) = Started::with(before).compare(after);
        assert_eq!(difference.fixed().map(|(what, _)| what).collect::<Vec<_>>(), ["xen"]);
    }
}

#[test]
fn a_confined_weir_is_asked_for_nothing_that_it_cannot_have() {
    let mut started = Started::with("[switch]\nplacement = \"dynamic\"\n[vif.a]\n");
    started.confined = true;
    let (difference, steps) = started.compare(
        "[switch]\nplacement = \"static\"\npin_vcpus = true\n\
         [uplink.lan]\nkind = \"tap\"\nname = \"w0\"\n\
         [vif.a]\n[vif.b]\nsocket = \"/elsewhere/b.sock\"\n[vif.c]\nagent = \"/elsewhere/c\"\n[vif.d]\n",
    );
    let fixed: Vec<_> = difference.fixed().map(|(what, _)| what).collect();
    assert_eq!(fixed, ["switch.pin_vcpus", "uplink.lan", "vif.b", "vif.c"]);
    // The steps that can be taken are taken.
    assert_eq!(steps.vifs_added.len(), 1);
    assert!(!steps.placement.unwrap().pin_vcpus);
    assert!(steps.uplinks_added.is_empty());
}

#[test]
fn of_a_table_with_both_what_can_change_does_and_the_rest_stays() {
    let started = Started::with("[vif.a]\n");
    let (difference, steps) = started.compare("[vif.a]\nsocket = \"/run/weir/x.sock\"\nvlan = 7\n");
    assert_eq!(difference.fixed().count(), 1);
    let [changed] = steps.vifs_changed.as_slice() else { panic!("{steps:?}") };
    assert_eq!(changed.socket, started.config.vifs[0].socket);
    assert_eq!(changed.vlan.to_string(), "7");
}

#[test]
fn a_name_or_an_interface_of_the_host_is_free_after_the_next_reload() {
    let started = Started::with("[uplink.lan]\nkind = \"tap\"\nname = \"w0\"\n");
    let (difference, steps) = started.compare("[vif.lan]\n");
    assert_eq!(lines(&difference)[..2], ["uplink.lan Removed", "vif.lan Added (not alive)"]);
    assert!(steps.vifs_added.is_empty());
    let (difference, steps) = started.compare("[uplink.wan]\nkind = \"tap\"\nname = \"w0\"\n");
    assert_eq!(difference.fixed().next().unwrap().0, "uplink.wan");
    assert!(steps.uplinks_added.is_empty());
}

#[test]
fn what_does_not_go_together_with_what_came_by_hand_is_refused() {
    let mut started = Started::with("[vif.a]\n");
    let mut by_hand = vif("tmp0");
    by_hand.mac = Some("52:54:00:00:00:01".parse().unwrap());
    started.by_hand.push(by_hand);
    assert_eq!(started.check("[vif.a]\n[vif.b]\n"), Ok(()));
    let error = started.check("[vif.a]\nmac = \"52:54:00:00:00:01\"\n").unwrap_err();
    assert_eq!(error, "vif.a: the MAC address 52:54:00:00:00:01 is already used by tmp0");
    let socket = "[vif.a]\n[vif.b]\nsocket = \"/run/weir/tmp0.sock\"\n";
    assert!(started.check(socket).unwrap_err().contains("already used by tmp0"));
    // The switch's budget also holds for an interface that was added while weir runs.
    let mut held = vif("tmp1");
    held.moderation = "backend".parse().unwrap();
    held.rx_usecs = Some(200.try_into().unwrap());
    started.by_hand = vec![held];
    assert_eq!(started.check("[vif.a]\n"), Ok(()));
    let error = started.check("[switch]\nlatency_budget = \"100us\"\n[vif.a]\n").unwrap_err();
    assert!(error.starts_with("vif.tmp1: `rx_usecs` of"), "{error}");
}

#[test]
fn addresses_may_change_hands_in_one_step() {
    let file = |first: u8, second: u8| {
        let mac = |last| format!("mac = \"52:54:00:00:00:0{last}\"\n");
        format!("[vif.a]\n{}[vif.b]\n{}", mac(first), mac(second))
    };
    let started = Started::with(&file(1, 2));
    assert_eq!(started.check(&file(2, 1)), Ok(()));
}

#[test]
fn the_control_socket_is_no_interfaces_and_there_is_no_room_beyond_the_bound() {
    let started = Started::with("[vif.a]\n");
    // The file alone is good: it names another control socket.
    let file =
        "[switch]\ncontrol = \"/run/weir/c2.sock\"\n[vif.b]\nsocket = \"/run/weir/control.sock\"\n";
    assert!(started.check(file).unwrap_err().contains("is the control socket"));
    let mut full = Started::with("");
    full.by_hand = (0..PORTS_MAX).map(|n| vif(&format!("v{n}"))).collect();
    assert!(full.check("[vif.a]\n").unwrap_err().contains("ports are more than"));
}

#[test]
fn networks_change_with_a_restart_and_interfaces_wait_for_them() {
    let blue =
        "[overlay]\nlocal = \"192.0.2.1\"\n[network.blue]\nvni = 100\npeers = [\"192.0.2.2\"]\n";
    let switch = Started::with(&format!("{blue}[vif.web0]\nnetwork = \"blue\"\n"));
    let more = blue.replace("192.0.2.2\"", "192.0.2.2\", \"192.0.2.3\"");
    let red = "[network.red]\nvni = 200\npeers = [\"192.0.2.2\"]\n";
    let (difference, steps) =
        switch.compare(&format!("{more}{red}[vif.web0]\nnetwork = \"blue\"\n"));
    let fixed: Vec<_> = difference.fixed().map(|(what, _)| what).collect();
    assert_eq!(fixed, ["network.blue.peers", "network.red"]);
    assert_eq!(steps, Steps::default());
    assert!(switch.compare(&format!("{blue}[vif.web0]\nnetwork = \"blue\"\n")).0.is_empty());
    let moved = switch.check(&format!("{blue}{red}[vif.web0]\nnetwork = \"red\"\n"));
    assert_eq!(moved, Err("vif.web0: there is no network `red` before a restart".into()));
}

fn settings(texts: &[&str]) -> Vec<crate::Setting> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn an_interface_with_no_other_settings_is_the_same_whatever_it_has() {
    for (key, needs, line, _) in VIF_KEYS {
        let switch = match *key {
            "window" | "period" => "[switch]\nschedule = \"dwcs\"\n",
            "groups" => "[group.web]\n",
            "template" => "[template.t]\n",
            _ => "",
        };
        let text = format!("{switch}[vif.b]\n[vif.web0]\n{needs}\n{line}\n");
        let vif = parse(&text).unwrap().vifs.pop().unwrap();
        assert_eq!(vif.with_settings(&[]).unwrap(), vif, "{key}");
    }
}

#[test]
fn settings_that_are_named_take_the_place_of_the_interfaces_own_and_others_stay() {
    let text = "[vif.web0]\ntrunk = [10, 20]\nnative = 1\nmoderation = \"backend\"\nrx_usecs = 20\n\
                rate = \"1Gbit\"\nsource_guard = \"configured\"\naddresses = [\"10.0.0.5\", \"fd00::5\"]\n\
                [[vif.web0.filter]]\ndirection = \"tx\"\naction = \"drop\"\nmatch = \"tcp port 25\"\n";
    let vif = parse(text).unwrap().vifs.pop().unwrap();
    let vlan = vif.with_settings(&settings(&["vlan=7"])).unwrap();
    assert_eq!(VifConfig { vlan: vif.vlan.clone(), ..vlan.clone() }, vif, "nothing else");
    assert_eq!(vlan.vlan.to_string(), "7");
    let immediate = vif.with_settings(&settings(&["moderation=immediate"])).unwrap();
    assert_eq!((immediate.rx_usecs, &immediate.filter), (None, &vif.filter));
    let by = vif.with_settings(&settings(&["by=libvirt:7"])).unwrap();
    assert_eq!(by.by.unwrap().as_str(), "libvirt:7");
    let error = vif.with_settings(&settings(&["rate=fast"])).unwrap_err();
    assert!(format!("{:?}", miette::Report::new(error)).contains("rate"));
    let too_long = format!("by={}", "x".repeat(weir_limits::OWNER_LEN_MAX + 1));
    for bad in ["by=", "by=a b", "colour=red", &too_long] {
        assert!(vif.with_settings(&settings(&[bad])).is_err(), "{bad}");
    }
}

#[test]
fn what_somebody_else_keeps_is_left_alone_whatever_the_file_says() {
    let mut started = Started::with("[vif.a]\n");
    started.by_hand = ["b", "c"]
        .map(|name| VifConfig { by: Some("libvirt:7".parse().unwrap()), ..vif(name) })
        .into();
    let text = "[vif.a]\n[vif.b]\nvlan = 10\n";
    let (difference, steps) = started.compare(text);
    assert_eq!(lines(&difference), ["vif.b Unlisted", "vif.c Unlisted"]);
    assert_eq!(difference.tables[0].note.as_deref(), Some("kept by libvirt:7; stays"));
    assert_eq!(steps, Steps::default());
    let file = parse(text).unwrap();
    assert_eq!(started.running(|running| running.saved(text, &file)).unwrap(), text);
    let refused = parse("[vif.a]\nby = \"me\"\n").unwrap_err();
    assert!(format!("{:?}", miette::Report::new(refused)).contains("no file names"));
}

#[test]
fn each_setting_is_shown_with_where_it_is_from() {
    let text = "[overlay]\nlocal = \"192.0.2.1\"\n[network.blue]\nvni = 100\npeers = [\"192.0.2.2\"]\n\
                isolated = true\n[vif.web0]\nnetwork = \"blue\"\nqueues = 2\n[vif.db0]\nmtu = 9000\n";
    let config = parse(text).unwrap();
    let budget = config.switch.latency_budget;
    let shown = |vif: &VifConfig, file| {
        let shown = shown_vif(vif, file, &config.templates, &config.networks, budget).into_iter();
        let shown = shown.filter(|it| it.from != SettingFrom::Default && it.key != "socket");
        shown.map(|it| format!("{} {} {}", it.key, it.value.unwrap(), it.from)).collect::<Vec<_>>()
    };
    let [web0, db0] = [&config.vifs[0], &config.vifs[1]];
    let inherits = "latency_budget 250us switch";
    let of_network = ["isolated true network", "vlan network blue", "mtu 1450 network"];
    let file = shown(web0, Some(web0));
    assert_eq!(
        file,
        ["queues 2 file", inherits, of_network[0], "vlan network blue file", of_network[2]]
    );
    assert_eq!(shown(db0, Some(db0)), [inherits, "mtu 9000 file"]);
    let changed = web0.with_settings(&settings(&["isolated=false", "queues=1"])).unwrap();
    assert_eq!(
        shown(&changed, Some(web0)),
        [
            "queues 1 command",
            inherits,
            "isolated false command",
            "vlan network blue file",
            of_network[2]
        ]
    );
    let added = VifConfig { rss_rebalance: false, ..vif("late") };
    assert_eq!(shown(&added, None), [inherits, "rss_rebalance false command"]);
    let of_all = shown_vif(web0, None, &config.templates, &config.networks, budget);
    for (key, value) in [
        ("socket_mode", "0600"),
        ("vlan", "1"),
        ("isolated", "false"),
        ("mtu", "1500"),
        ("weight", "1"),
    ] {
        let plain = shown_vif(&vif("late"), None, &config.templates, &config.networks, budget);
        let it = plain.iter().find(|it| it.key == key).unwrap();
        assert_eq!((it.value.as_deref(), it.from), (Some(value), SettingFrom::Default), "{key}");
    }
    let keys: Vec<_> = of_all.iter().map(|it| it.key.as_str()).collect();
    for (key, ..) in VIF_KEYS {
        assert!(keys.contains(key), "{key}");
    }
}

#[test]
fn groups_change_alive_with_who_is_in_them() {
    let started =
        Started::with("[group.web]\n[group.old]\n[vif.web0]\ngroups = [\"web\", \"old\"]\n");
    let rule = "rules = [{ direction = \"in\", protocol = \"tcp\", ports = \"80,443\" }]";
    let text =
        format!("[group.web]\nlog = true\n{rule}\n[group.new]\n[vif.web0]\ngroups = [\"new\"]\n");
    let (difference, steps) = started.compare(&text);
    assert_eq!(
        lines(&difference),
        [
            "group.web Changed",
            "group.web.log default -> true",
            "group.web.rules default -> in tcp 80,443 from any",
            "group.old Removed",
            "group.new Added",
            "group.new.default_in default -> deny",
            "group.new.default_out default -> allow",
            "vif.web0 Changed",
            "vif.web0.groups web, old -> new",
        ]
    );
    let groups = steps.groups.unwrap();
    assert_eq!(groups.all.len(), 2);
    assert_eq!(started.check(&text), Ok(()));
    // An interface that was added by hand is in no file, and keeps its groups.
    let mut by_hand = vif("hand");
    by_hand.groups = started.config.vifs[0].groups.clone();
    let started = Started { by_hand: vec![by_hand], ..started };
    assert_eq!(started.check(&text), Err("vif.hand: there is no group old".into()));
    // The running groups are written. Tables that did not change keep their text.
    let file = "# all groups\n[group.web]  # the web\n[group.gone]\n";
    let saved = started.running(|running| running.saved(file, &parse(file).unwrap())).unwrap();
    assert!(saved.starts_with("# all groups\n[group.web]  # the web\n"), "{saved}");
    assert!(!saved.contains("gone") && saved.contains("[group.old]"), "{saved}");
    assert_eq!(parse(&saved).unwrap().groups.all.len(), 2);
    let other = Started::with(&text);
    let saved = other.running(|running| running.saved(file, &parse(file).unwrap())).unwrap();
    assert_eq!(parse(&saved).unwrap().groups, other.config.groups, "{saved}");
}

#[test]
fn ids_of_groups_change_alive() {
    let groups = "[group.web]\n[group.ssh]\n[group-ids]\n";
    let started = Started::with(&format!("{groups}1 = [\"web\"]\n2 = [\"ssh\"]\n"));
    let text = format!("{groups}1 = [\"web\"]\n2 = [\"web\", \"ssh\"]\n3 = [\"ssh\"]\n");
    let (difference, steps) = started.compare(&text);
    assert_eq!(
        lines(&difference),
        ["group-ids Changed", "group-ids.2 ssh -> web, ssh", "group-ids.3 default -> ssh"]
    );
    assert!(steps.groups.is_some() && difference.fixed().count() == 0);
    let (same, steps) = Started::with(&text).compare(&text);
    assert!(same.is_empty() && steps.groups.is_none());
    let file = "[group.web]\n[group.ssh]\n[group-ids]\n1 = [\"ssh\"]\n9 = [\"web\"]  # old\n";
    let other = Started::with(&text);
    let saved = other.running(|running| running.saved(file, &parse(file).unwrap())).unwrap();
    assert_eq!(parse(&saved).unwrap().groups, other.config.groups, "{saved}");
}

#[test]
fn a_bond_changes_its_mode_alive_and_its_uplinks_with_a_restart() {
    let two = "[uplink.eth0]\nkind = \"af_packet\"\nname = \"eth0\"\n\
         [uplink.eth1]\nkind = \"af_packet\"\nname = \"eth1\"\n";
    let bond = "[bond.lan]\nuplinks = [\"eth0\", \"eth1\"]\n";
    let started = Started::with(&format!("{two}{bond}"));
    let (difference, steps) = started.compare(&format!("{two}{bond}mode = \"balance\"\n"));
    assert_eq!(lines(&difference), ["bond.lan Changed", "bond.lan.mode default -> balance"]);
    assert_eq!(steps.uplinks_changed.len(), 1);
    // Without the bond its uplinks would be a loop.
    let (difference, steps) = started.compare(two);
    assert_eq!(lines(&difference)[0], "bond.lan Removed (not alive)");
    assert!(steps.uplinks_removed.is_empty());
    let (_, steps) = started.compare("");
    assert!(steps.uplinks_removed.is_empty());
    let (_, steps) = Started::with("").compare(&format!("{two}{bond}"));
    assert!(steps.uplinks_added.is_empty());
    let (_, steps) = Started::with("").compare(two);
    assert_eq!(steps.uplinks_added.len(), 2);
}

#[test]
fn an_uplink_of_each_kind_is_saved_and_read_back_the_same_whatever_the_file_had() {
    let kinds = UplinkKind::WORDS.iter().map(|kind| kind.parse().unwrap());
    let kinds: Vec<_> = kinds.chain([UplinkKind::Bond]).map(examples::of).collect();
    let filter = "filter = [{ direction = \"tx\", match = \"port 25\", action = \"drop\" }]\n";
    for (table, beside) in &kinds {
        let started = Started::with(&format!("{beside}{table}{filter}"));
        let olds = kinds.iter().map(|(table, beside)| format!("{beside}{table}"));
        for old in [String::new()].into_iter().chain(olds) {
            let saved = started.running(|it| it.saved(&old, &parse(&old).unwrap())).unwrap();
            let again = parse(&saved).unwrap_or_else(|error| panic!("{error:?}\n{saved}"));
            let sorted = |config: &Config| {
                let mut uplinks = config.uplinks.clone();
                uplinks.sort_by_key(UplinkConfig::table);
                uplinks
            };
            assert_eq!(sorted(&again), sorted(&started.config), "{saved}");
            assert!(!saved.contains("none"), "{saved}");
            let difference = Started::with("").compare(&saved).0;
            let told: Vec<_> = difference.tables.iter().flat_map(|it| &it.keys).collect();
            assert!(told.iter().all(|it| it.to.as_deref() != Some("none")), "{told:?}");
            let default = saved.lines().filter(|line| line.contains("rss_rebalance = true"));
            assert_eq!(default.count(), 0, "a default is not written: {saved}");
        }
    }
}

fn common(config: &Config) -> Common<'_> {
    Common { switch: &config.switch, groups: &config.groups, templates: &config.templates }
}

/// The configuration of the next weir, which reads `file` and takes over the settings of `now`.
fn next(before: &Config, now: &Config, file: &Config) -> Config {
    let beside = Beside::between(common(before), common(now));
    let text = serde_json::to_string(&beside).unwrap();
    serde_json::from_str::<Beside>(&text).unwrap().onto(file).unwrap()
}

#[test]
fn settings_that_are_no_ports_are_left_to_the_next_weir_key_by_key() {
    let few = parse("").unwrap();
    let many = "[switch]\nschedule = \"dwcs\"\nlatency_budget = \"3ms\"\nplacement = \"dynamic\"\n\
                pin_vcpus = true\nmove_irqs = false\n\
                [group.a]\nlog = true\ndefault_out = \"deny\"\n\
                rules = [{ direction = \"in\", protocol = \"tcp\", ports = \"80\", \
                from = \"group:b\" }, { direction = \"out\", to = \"10.0.0.0/8\" }]\n\
                [group.b]\ndefault_in = \"allow\"\ndefault_out = \"deny\"\n\
                [group-ids]\n7 = [\"a\", \"b\"]\n8 = [\"b\"]\n\
                [template.t]\nrate = \"1Gbit\"\ntrunk = [3, 4]\nnative = 5\ngroups = [\"a\"]\n\
                filter = [{ direction = \"tx\", action = \"drop\", match = \"ip6\" }]\n\
                [vif-on-demand.\"vm-*\"]\ndirectory = \"/run/weir/vms\"\n\
                template = \"t\"\nmax = 7\nforget_s = 8\n";
    let many = parse(many).unwrap();
    // No key that can change is left out.
    let (defaults, rows) = (few.switch.rows(), many.switch.rows());
    for ((key, default), (_, value)) in defaults.iter().zip(&rows).filter(|((key, _), _)| key.alive)
    {
        assert_ne!(default, value, "{}: give it a value above", key.name);
    }
    for (before, now) in [(&few, &many), (&many, &few)] {
        assert_eq!(next(before, now, before), *now);
        assert!(Beside::between(common(now), common(now)).is_empty());
    }
    let text = |web: &str, budget: &str| {
        parse(&format!("[switch]\nlatency_budget = \"{budget}\"\n[group.web]\n{web}")).unwrap()
    };
    let (before, now) = (text("", "1ms"), text("default_out = \"deny\"\n", "1ms"));
    let file = text("log = true\n", "2ms");
    let both = text("log = true\ndefault_out = \"deny\"\n", "2ms");
    assert_eq!(next(&before, &now, &file), both, "other keys are the file's");
    assert_eq!(next(&before, &now, &few), few, "a table that is gone takes its keys along");
    let beside = Beside::between(common(&before), common(&now));
    assert_eq!(beside.names().collect::<Vec<_>>(), ["group.web.default_out"]);
    assert!(beside.has_groups());
}
