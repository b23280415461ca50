use std::ffi::OsStr;

use miette::{GraphicalReportHandler, GraphicalTheme};
use weir_policy::moderation::Kind;

use super::*;

fn defaults() -> Defaults {
    Defaults {
        control: "/run/weir/control.sock".parse().unwrap(),
        control_named: false,
        keeper: None,
    }
}

pub(super) fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::from_toml("weir.toml", text, &defaults())
}

/// The report that a user sees, without colours.
fn shown(error: &ConfigError) -> String {
    let mut text = String::new();
    GraphicalReportHandler::new_themed(GraphicalTheme::unicode_nocolor())
        .with_width(100)
        .render_report(&mut text, error)
        .unwrap();
    text.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

pub(super) fn refused(text: &str) -> String {
    shown(&parse(text).unwrap_err())
}

/// The messages without their places and help.
pub(super) fn messages(text: &str) -> Vec<String> {
    let error = parse(text).unwrap_err();
    error.problems().iter().map(|problem| problem.message.clone()).collect()
}

fn vif_with(line: &str) -> Result<VifConfig, ConfigError> {
    parse(&format!("[vif.web0]\n{line}\n")).map(|mut config| config.vifs.remove(0))
}

// ---- good configurations ----

#[test]
fn how_the_work_is_done_is_read_and_what_means_nothing_is_refused() {
    let switch = |text: &str| parse(text).unwrap().switch;
    let default = switch("");
    let found = (default.execution, default.realization);
    assert_eq!(found, (Execution::Tasklet, Realization::Adaptive));
    let dedicated = switch("[switch]\nrealization = \"dedicated\"\nworkers = 2\n");
    assert_eq!(dedicated.realization, Realization::Dedicated);
    assert_eq!(switch("[switch]\nexecution = \"threads\"\n").execution, Execution::Threads);
    let refused = refused("[switch]\nexecution = \"rt-threads\"\nworkers = 2\n");
    assert!(refused.contains("`workers` means nothing to execution \"rt-threads\""), "{refused}");
}

#[test]
fn empty_file_is_a_switch_with_defaults() {
    let config = parse("").unwrap();
    assert_eq!(config.switch.workers, Workers::Auto);
    assert_eq!(config.switch.latency_budget.ns(), limits::LATENCY_BUDGET_NS_DEFAULT);
    assert_eq!(config.switch.control, defaults().control);
    assert!(config.vifs.is_empty() && config.uplinks.is_empty());
}

#[test]
fn every_key_is_read() {
    let config = parse(
        r#"
        [switch]
        workers = 2
        latency_budget = "500us"
        control = "/tmp/w/c.sock"

        [uplink.lan]
        kind = "tap"
        name = "weir0"
        queues = 4
        trunk = "all"
        native = 1
        mtu = 9000
        weight = 4
        rss_rebalance = false
        tag_protocol = "802.1ad"

        [[uplink.lan.filter]]
        direction = "rx"
        match = "stp"
        action = "drop"

        [group.web]
        [group.ssh]

        [vif.web0]
        socket = "/run/vms/web0.sock"
        mode = "client"
        socket_mode = "0660"
        socket_user = "alice"
        socket_group = "kvm"
        queues = 2
        rx_ring = 512
        tx_ring = 256
        latency_budget = "1ms"
        moderation = "aggregate"
        rx_usecs = 200
        rx_frames = 32
        container_bytes = 8192
        agent = "/run/vms/web.agent"
        mac = "52:54:00:AB:cd:ef"
        mac_check = false
        groups = ["web", "ssh"]
        isolated = true
        multicast_router = true
        rss_rebalance = false
        vlan = 10
        tag_protocol = "802.1ad"
        mtu = 68
        access_platform = true
        memory_max = "2TiB"
        broadcasts_per_second = 100
        multicasts_per_second = 200
        unknown_per_second = 300
        router = true

        [[vif.web0.filter]]
        direction = "tx"
        match = "tcp  dst port 25"
        action = "drop"

        [[vif.web0.filter]]
        direction = "tx"
        action = "accept"
        "#,
    )
    .unwrap();
    assert_eq!(config.switch.workers, Workers::Count(2.try_into().unwrap()));
    assert_eq!(config.switch.latency_budget.ns(), 500_000);
    assert_eq!(config.switch.control.as_str(), "/tmp/w/c.sock");
    let lan = UplinkConfig {
        name: "lan".parse().unwrap(),
        kind: UplinkKind::Tap,
        interface: "weir0".parse().unwrap(),
        bridge: None,
        on_up: None,
        on_down: None,
        address: None,
        path: None,
        host_access: None,
        agent_port: None,
        queues: 4.try_into().unwrap(),
        vlan: VlanMode::Trunk { allowed: TrunkVids::All, native: Some(1.try_into().unwrap()) },
        tag_protocol: TagProtocol::Dot1ad,
        mtu: Some(9000.try_into().unwrap()),
        filter: vec!["rx drop stp".parse().unwrap()],
        rss_rebalance: false,
        weight: Some(4.try_into().unwrap()),
        uplinks: None,
        mode: None,
        lacp_rate: None,
    };
    assert_eq!(config.uplinks, [lan]);
    let web0 = VifConfig {
        name: "web0".parse().unwrap(),
        socket: "/run/vms/web0.sock".parse().unwrap(),
        template: None,
        mode: SocketRole::Client,
        socket_mode: Some("0660".parse().unwrap()),
        socket_user: Some("alice".parse().unwrap()),
        socket_group: Some("kvm".parse().unwrap()),
        queues: 2.try_into().unwrap(),
        rx_ring: Some(512.try_into().unwrap()),
        tx_ring: Some(256.try_into().unwrap()),
        latency_budget: Some("1ms".parse().unwrap()),
        moderation: Moderation(Kind::Aggregate),
        rx_usecs: Some(200.try_into().unwrap()),
        rx_frames: Some(32.try_into().unwrap()),
        container_bytes: Some(8192.try_into().unwrap()),
        agent: Some("/run/vms/web.agent".parse().unwrap()),
        mac: Some("52:54:00:ab:cd:ef".parse().unwrap()),
        by: None,
        mac_check: false,
        isolated: Some(true),
        multicast_router: true,
        rss_rebalance: false,
        vlan: VlanMode::Access(10.try_into().unwrap()),
        tag_protocol: TagProtocol::Dot1ad,
        mtu: Some(68.try_into().unwrap()),
        access_platform: true,
        memory_max: "2TiB".parse().unwrap(),
        storm: StormControl {
            broadcasts_per_second: Some(100.try_into().unwrap()),
            multicasts_per_second: Some(200.try_into().unwrap()),
            unknown_per_second: Some(300.try_into().unwrap()),
        },
        guarding: Guarding { router: true, ..Guarding::default() },
        groups: vec!["web".to_owned(), "ssh".to_owned()].try_into().unwrap(),
        filter: ["tx drop tcp dst port 25", "tx accept"].map(|rule| rule.parse().unwrap()).into(),
        sharing: Sharing::default(),
    };
    assert_eq!(config.vifs, [web0]);
}

#[test]
fn placement_is_off_unless_it_is_chosen() {
    let placement = |text: &str| parse(text).map(|config| config.switch.placement);
    assert_eq!(placement("").unwrap(), PlacementConfig::default());
    assert_eq!(PlacementMode::default(), PlacementMode::Off);
    for mode in PlacementMode::WORDS {
        let text = format!("[switch]\nplacement = \"{mode}\"\npin_vcpus = false\n");
        assert_eq!(placement(&text).unwrap().mode, mode.parse().unwrap());
    }
    let both = placement("[switch]\nplacement = \"static\"\npin_vcpus = true\n").unwrap();
    assert!(both.pin_vcpus);
}

#[test]
fn links_of_others_are_allowed_by_name_only() {
    assert!(!parse("").unwrap().switch.allow_symlinks);
    assert!(parse("[switch]\nallow_symlinks = true\n").unwrap().switch.allow_symlinks);
    assert!(refused("[switch]\nallow_symlinks = \"yes\"\n").contains("true or false"));
}

#[test]
fn interface_without_keys_has_the_documented_defaults() {
    let config = parse("[switch]\ncontrol = \"/tmp/w/c.sock\"\n[vif.web0]\n").unwrap();
    let vif = &config.vifs[0];
    assert_eq!(*vif, VifConfig::new("web0".parse().unwrap(), "/tmp/w/web0.sock".parse().unwrap()));
    assert!(vif.mac_check && vif.rss_rebalance);
    assert_eq!((vif.mtu, vif.mtu().get()), (None, 1500));
    assert_eq!(config.latency_budget(vif), config.switch.latency_budget);
}

#[test]
fn control_socket_of_the_command_line_holds_against_the_file() {
    let named =
        Defaults { control: "/tmp/cmd/c.sock".parse().unwrap(), control_named: true, keeper: None };
    let text = "[switch]\ncontrol = \"/tmp/file/c.sock\"\n[vif.a]\n";
    let config = Config::from_toml("weir.toml", text, &named).unwrap();
    assert_eq!(config.switch.control.as_str(), "/tmp/cmd/c.sock");
    assert_eq!(config.vifs[0].socket.as_str(), "/tmp/cmd/a.sock");
}

#[test]
fn ports_keep_the_order_of_the_file() {
    let config = parse("[vif.b]\n[vif.c]\n[vif.a]\n").unwrap();
    let names: Vec<_> = config.vifs.iter().map(|vif| vif.name.as_str()).collect();
    assert_eq!(names, ["b", "c", "a"]);
}

#[test]
fn trunk_is_a_set_of_vlans() {
    let vif = vif_with("trunk = [20, 10, 20]").unwrap();
    assert_eq!(vif.vlan.to_string(), "trunk 10,20");
}

#[test]
fn default_sockets_follow_the_user() {
    let at = |root, xdg: Option<&str>| {
        Defaults::of_user(root, xdg.map(OsStr::new)).unwrap().control.to_string()
    };
    assert_eq!(at(true, Some("/run/user/0")), "/run/weir/control.sock");
    assert_eq!(at(false, Some("/run/user/7")), "/run/user/7/weir/control.sock");
    assert_eq!(at(false, None), "/run/weir/control.sock");
    assert_eq!(at(false, Some("")), "/run/weir/control.sock");
}

#[test]
fn latency_budgets_are_written_in_four_units() {
    for (text, ns) in [
        ("0us", 0),
        ("7ns", 7),
        ("250us", 250_000),
        ("1500us", 1_500_000),
        ("1ms", 1_000_000),
        ("1s", limits::LATENCY_BUDGET_NS_MAX),
    ] {
        let budget: LatencyBudget = text.parse().unwrap();
        assert_eq!(budget.ns(), ns, "{text}");
        assert_eq!(budget.to_string(), text, "written back as it was");
    }
}

#[test]
fn derived_mac_is_stable_local_and_differs_by_name() {
    let mac = |name: &str| MacAddress::derived_from(&name.parse().unwrap());
    // FNV-1a (32 bits) of "a" is e40c292c.
    assert_eq!(mac("a").to_string(), "52:54:00:0c:29:2c");
    assert_ne!(mac("web0"), mac("web1"));
    assert_eq!(
        weir_wire::Mac::from(mac("web0")).0[0] & 0b11,
        0b10,
        "unicast, locally administered"
    );
}

#[test]
fn vif_config_survives_json_and_json_is_checked_as_toml_is() {
    let vif =
        vif_with("trunk = [10, 20]\nnative = 1\nlatency_budget = \"1ms\"\nmtu = 1400").unwrap();
    let json = serde_json::to_value(&vif).unwrap();
    assert_eq!(serde_json::from_value::<VifConfig>(json.clone()).unwrap(), vif);
    for (key, bad) in [
        ("name", serde_json::json!("../etc")),
        ("socket", serde_json::json!("relative")),
        ("queues", serde_json::json!(9)),
        ("mtu", serde_json::json!(67)),
        ("latency_budget", serde_json::json!("2s")),
        ("mac", serde_json::json!("01:00:00:00:00:00")),
        ("vlan", serde_json::json!({"access": 4095})),
        ("unknown", serde_json::json!(1)),
    ] {
        let mut json = json.clone();
        json[key] = bad;
        assert!(serde_json::from_value::<VifConfig>(json).is_err(), "{key}");
    }
}

// ---- diagnostics, as a user sees them ----

#[test]
fn diagnostic_unknown_key_with_suggestion() {
    insta::assert_snapshot!(refused("[vif.web0]\nlatency_budgt = \"1ms\"\n"), @r#"
      × weir.toml: 1 problem

    Error:
      × unknown key `latency_budgt` in `vif.web0`
       ╭─[weir.toml:2:1]
     1 │ [vif.web0]
     2 │ latency_budgt = "1ms"
       · ──────┬──────
       ·       ╰── unknown key
       ╰────
      help: did you mean `latency_budget`?
    "#);
}

#[test]
fn diagnostic_unknown_key_without_suggestion() {
    insta::assert_snapshot!(refused("[switch]\ncolour = \"red\"\n"), @r#"
      × weir.toml: 1 problem

    Error:
      × unknown key `colour` in `switch`
       ╭─[weir.toml:2:1]
     1 │ [switch]
     2 │ colour = "red"
       · ───┬──
       ·    ╰── unknown key
       ╰────
      help: `switch` can have: execution, realization, workers, latency_budget, schedule, fdb_entries,
            control, placement, pin_vcpus, move_irqs, user, keeper, allow_symlinks, client_dir,
            socket_group, on_up, on_down, group, admin, api_listen, api_token_file
    "#);
}

#[test]
fn diagnostic_virtual_processors_that_nobody_places() {
    insta::assert_snapshot!(refused("[switch]\npin_vcpus = true\n"), @r#"
      × weir.toml: 1 problem

    Error:
      × `switch.pin_vcpus` does nothing without `placement`
       ╭─[weir.toml:2:13]
     1 │ [switch]
     2 │ pin_vcpus = true
       ·             ──┬─
       ·               ╰── nobody places virtual processors
       ╰────
      help: add `placement = "dynamic"` or `placement = "static"`
    "#);
    // A wrong value is reported once.
    let text = "[switch]\nplacement = \"fast\"\npin_vcpus = true\n";
    assert!(refused(text).contains("1 problem"));
}

#[test]
fn diagnostic_hold_longer_than_the_budget() {
    let text = "[vif.web0]\nlatency_budget = \"1ms\"\nmoderation = \"backend\"\nrx_usecs = 2000\n";
    insta::assert_snapshot!(refused(text), @r#"
      × weir.toml: 1 problem

    Error:
      × `vif.web0`: `rx_usecs` of 2000 exceeds the latency budget of 1ms: calls would be held for 980
      │ us
       ╭─[weir.toml:4:12]
     3 │ moderation = "backend"
     4 │ rx_usecs = 2000
       ·            ──┬─
       ·              ╰── refused
       ╰────
      help: make it shorter, or `latency_budget` longer
    "#);
}

#[test]
fn diagnostic_setting_that_the_policy_ignores() {
    let text = "[vif.web0]\nmoderation = \"bakend\"\n[vif.web1]\nmoderation = \"two-layer\"\nrx_usecs = 8\n";
    insta::assert_snapshot!(refused(text), @r#"
      × weir.toml: 2 problems

    Error:
      × bad value for `vif.web0.moderation`
       ╭─[weir.toml:2:14]
     1 │ [vif.web0]
     2 │ moderation = "bakend"
       ·              ────┬───
       ·                  ╰── `bakend` is not one of `auto`, `immediate`, `backend`, `frontend`, `two-layer`, `aggregate`, `aggregate-adaptive`
     3 │ [vif.web1]
       ╰────
      help: did you mean `backend`?

    Error:
      × `vif.web1`: `rx_usecs` has no effect with moderation "two-layer"
       ╭─[weir.toml:5:12]
     4 │ moderation = "two-layer"
     5 │ rx_usecs = 8
       ·            ┬
       ·            ╰── refused
       ╰────
      help: leave it out, or choose a policy that takes it: backend, aggregate, aggregate-adaptive
    "#);
}

#[test]
fn every_policy_can_be_configured_and_takes_the_settings_that_it_uses() {
    use weir_policy::moderation::Settings;
    for &kind in Kind::ALL {
        let moderation = Moderation(kind);
        let vif = vif_with(&format!("moderation = \"{kind}\"")).unwrap();
        assert_eq!(vif.moderation, moderation);
        let hold_ns = |rx_ns| {
            let settings = Settings { rx_ns, ..Settings::within(1_000_000) };
            kind.build(settings).decision().hold_ns
        };
        if hold_ns(Some(7_000)) != hold_ns(None) {
            assert!(moderation.takes_rx_usecs(), "{kind}");
        }
        let vif = VifConfig { rx_usecs: Some(7.try_into().unwrap()), ..vif };
        assert_eq!(vif.call_faults(LatencyBudget::DEFAULT).is_empty(), moderation.takes_rx_usecs());
    }
}

#[test]
fn a_budget_that_cannot_be_kept_as_written_gets_a_note() {
    let note = |moderation: &str, budget: &str| {
        let text = format!("moderation = \"{moderation}\"\nlatency_budget = \"{budget}\"");
        let vif = vif_with(&text).unwrap();
        vif.calls_note(vif.latency_budget.unwrap())
    };
    assert_eq!(note("backend", "21us"), None);
    assert_eq!(note("immediate", "0us"), None, "which holds nothing anyway");
    assert_eq!(
        note("backend", "0us").unwrap(),
        "vif.web0: with a latency budget of 0 moderation \"backend\" holds no call"
    );
    assert_eq!(
        note("backend", "20us").unwrap(),
        "vif.web0: a latency budget of 20us is finer than timers are: moderation \"backend\" holds no call"
    );
}

#[test]
fn diagnostic_duration_without_unit() {
    insta::assert_snapshot!(refused("[vif.web0]\nlatency_budget = \"250\"\n"), @r#"
      × weir.toml: 1 problem

    Error:
      × bad value for `vif.web0.latency_budget`
       ╭─[weir.toml:2:18]
     1 │ [vif.web0]
     2 │ latency_budget = "250"
       ·                  ──┬──
       ·                    ╰── `250` is not a duration
       ╰────
      help: write a whole number and a unit (ns, us, ms or s), for example "250us"
    "#);
}

#[test]
fn diagnostic_duration_as_number() {
    insta::assert_snapshot!(refused("[switch]\nlatency_budget = 250\n"), @r#"
      × weir.toml: 1 problem

    Error:
      × bad value for `switch.latency_budget`
       ╭─[weir.toml:2:18]
     1 │ [switch]
     2 │ latency_budget = 250
       ·                  ─┬─
       ·                   ╰── expected a duration in quotes, such as "250us", found integer
       ╰────
    "#);
}

#[test]
fn diagnostic_unknown_uplink_kind() {
    insta::assert_snapshot!(refused("[uplink.lan]\nkind = \"afxdp\"\nname = \"eth0\"\n"), @r#"
      × weir.toml: 1 problem

    Error:
      × bad value for `uplink.lan.kind`
       ╭─[weir.toml:2:8]
     1 │ [uplink.lan]
     2 │ kind = "afxdp"
       ·        ───┬───
       ·           ╰── `afxdp` is not one of `tap`, `af_packet`, `af_xdp`, `stream`
     3 │ name = "eth0"
       ╰────
      help: did you mean `af_xdp`?
    "#);
}

#[test]
fn a_trunk_that_is_no_list_is_told_how_one_is_written() {
    for trunk in ["20", "\"every\""] {
        let error = refused(&format!("[vif.web0]\ntrunk = {trunk}\n"));
        assert!(error.contains("VLAN ids in brackets, such as [10, 20], or \"all\""), "{error}");
    }
}

#[test]
fn diagnostic_vlan_together_with_trunk() {
    insta::assert_snapshot!(refused("[vif.web0]\nvlan = 10\ntrunk = [10, 20]\n"), @r#"
      × weir.toml: 1 problem

    Error:
      × `vif.web0` has both `vlan` and `trunk`
       ╭─[weir.toml:2:8]
     1 │ [vif.web0]
     2 │ vlan = 10
       ·        ─┬
       ·         ╰── makes it an access port
     3 │ trunk = [10, 20]
       ·         ────┬───
       ·             ╰── makes it a trunk
       ╰────
      help: keep one; the VLAN of a trunk's untagged frames is `native`
    "#);
}

#[test]
fn diagnostic_two_interfaces_on_one_socket() {
    insta::assert_snapshot!(refused(
        "[vif.a]\nsocket = \"/run/x.sock\"\n\n[vif.b]\nsocket = \"/run/x.sock\"\n"
    ), @r#"
      × weir.toml: 1 problem

    Error:
      × the socket /run/x.sock is used 2 times
       ╭─[weir.toml:2:10]
     1 │ [vif.a]
     2 │ socket = "/run/x.sock"
       ·          ──────┬──────
       ·                ╰── first used here
     3 │
     4 │ [vif.b]
     5 │ socket = "/run/x.sock"
       ·          ──────┬──────
       ·                ╰── and here
       ╰────
      help: choose another socket
    "#);
}

#[test]
fn diagnostic_every_problem_is_shown_in_the_order_of_the_file() {
    insta::assert_snapshot!(refused(
        "[switch]\nworkers = 65\n\n[uplink.lan]\nkind = \"tap\"\n\n[vif.Web]\nqueues = 0\ntrunk = [1, 4095]\n"
    ), @r#"
      × weir.toml: 5 problems

    Error:
      × bad value for `switch.workers`
       ╭─[weir.toml:2:11]
     1 │ [switch]
     2 │ workers = 65
       ·           ─┬
       ·            ╰── must be 1 to 64, not 65
     3 │
       ╰────

    Error:
      × `uplink.lan` has no `name`
       ╭─[weir.toml:4:9]
     3 │
     4 │ [uplink.lan]
       ·         ─┬─
       ·          ╰── needs `name`
     5 │ kind = "tap"
       ╰────
      help: name the interface, such as `name = "weir0"`

    Error:
      × bad name of a port
       ╭─[weir.toml:7:6]
     6 │
     7 │ [vif.Web]
       ·      ─┬─
       ·       ╰── `Web` cannot be the name of a port
     8 │ queues = 0
       ╰────
      help: 1 to 32 characters out of a-z, 0-9, `-`, `_` and `.`, the first a letter or digit

    Error:
      × bad value for `vif.Web.queues`
       ╭─[weir.toml:8:10]
     7 │ [vif.Web]
     8 │ queues = 0
       ·          ┬
       ·          ╰── must be 1 to 8, not 0
     9 │ trunk = [1, 4095]
       ╰────

    Error:
      × bad value for `vif.Web.trunk`
       ╭─[weir.toml:9:13]
     8 │ queues = 0
     9 │ trunk = [1, 4095]
       ·             ──┬─
       ·               ╰── must be 1 to 4094, not 4095
       ╰────
    "#);
}

#[test]
fn diagnostic_syntax_error() {
    insta::assert_snapshot!(refused("[switch\nworkers = 1\n"), @r#"
      × weir.toml: 1 problem

    Error:
      × not valid TOML
       ╭─[weir.toml:1:8]
     1 │ [switch
       ·        ▲
       ·        ╰── unclosed table, expected `]`
     2 │ workers = 1
       ╰────
    "#);
}

#[test]
fn a_table_or_key_that_stands_twice_is_shown_in_both_places() {
    for (text, first) in [
        ("[vif.web0]\n[vif.web1]\nmtu = 1400\n[vif.web0]\n", "1 │ [vif.web0]"),
        (
            "[vif.web1]\nmtu = 1400\n[vif.web0]\n mtu = 1400\nqueues = 2\nmtu=1300\n",
            "4 │  mtu = 1400",
        ),
    ] {
        let said = refused(text);
        assert!(said.contains(first) && said.contains("stands here already"), "{said}");
        assert!(said.contains("duplicate key") && said.contains("help: join the two"), "{said}");
    }
}

#[test]
fn diagnostic_interface_without_name() {
    insta::assert_snapshot!(refused("[vif]\nqueues = 2\n"), @r#"
      × weir.toml: 1 problem

    Error:
      × `vif.queues` is not a table
       ╭─[weir.toml:2:1]
     1 │ [vif]
     2 │ queues = 2
       · ───┬──
       ·    ╰── belongs into a table with a name
       ╰────
      help: write a header with a name, such as [vif.name0]
    "#);
}

#[test]
fn diagnostic_missing_file() {
    let error = Config::load(Path::new("/nonexistent/weir.toml"), &defaults()).unwrap_err();
    insta::assert_snapshot!(shown(&error), @r#"
    × cannot read /nonexistent/weir.toml
    ╰─▶ No such file or directory (os error 2)
    help: name a file that is there: `weir check FILE`, `weir run FILE`, `weir qemu-args --config
          FILE`
    "#);
}

#[test]
fn diagnostic_setting_of_the_command_line() {
    let settings: Vec<Setting> =
        ["queues=9", "latency_budget=1ms"].into_iter().map(|text| text.parse().unwrap()).collect();
    let error = VifConfig::from_settings(&"web0".parse().unwrap(), &settings, &defaults().control)
        .unwrap_err();
    insta::assert_snapshot!(shown(&error), @r#"
      × settings: 1 problem

    Error:
      × bad value for `vif.web0.queues`
       ╭─[settings:2:10]
     1 │ [vif.web0]
     2 │ queues = 9
       ·          ┬
       ·          ╰── must be 1 to 8, not 9
     3 │ latency_budget = "1ms"
       ╰────
    "#);
}

// ---- refused configurations ----

#[test]
fn bad_values_are_refused() {
    for line in [
        "socket = \"relative.sock\"",
        "socket = \"/run/quo\\\"te.sock\"",
        "socket = 3",
        "mode = \"both\"",
        "socket_mode = \"0888\"",
        "socket_mode = \"1777\"",
        "socket_mode = 432",
        "queues = 0",
        "queues = 9",
        "queues = -1",
        "queues = 99999999999999999999999999",
        "queues = 1.5",
        "rx_ring = 300",
        "tx_ring = 128",
        "tx_ring = 2048",
        "rx_ring = \"512\"",
        "latency_budget = \"1001ms\"",
        "latency_budget = \"99999999999999999999s\"",
        "latency_budget = \"18446744073709551615s\"",
        "latency_budget = \"-1us\"",
        "latency_budget = \"1 ms\"",
        "latency_budget = \"ms\"",
        "latency_budget = \"1min\"",
        "moderation = \"eager\"",
        "moderation = \"backend\"\nrx_usecs = -1",
        "moderation = \"backend\"\nrx_usecs = 1000001",
        "moderation = \"backend\"\nrx_usecs = \"200us\"",
        "moderation = \"backend\"\nrx_frames = 0",
        "moderation = \"backend\"\nrx_frames = 40000",
        "moderation = \"eager\"\nrx_frames = 8",
        "moderation = \"aggregate\"\ncontainer_bytes = 13",
        "moderation = \"aggregate\"\ncontainer_bytes = 262145",
        "mac = \"52:54:00:12:34\"",
        "mac = \"52:54:00:12:34:56:78\"",
        "mac = \"52-54-00-12-34-56\"",
        "mac = \"52:54:00:12:34:+6\"",
        "mac = \"01:54:00:12:34:56\"",
        "mac = \"00:00:00:00:00:00\"",
        "mac_check = \"yes\"",
        "vlan = 0",
        "vlan = 4095",
        "trunk = []",
        "mirror = []",
        "mirror = [1]",
        "mirror = [\"a b\"]",
        "trunk = \"some\"",
        "trunk = [1, \"2\"]",
        "trunk = 10",
        "mtu = 67",
        "mtu = 65536",
    ] {
        let error = vif_with(line).expect_err(line);
        assert_eq!(error.problems().len(), 1, "{line}: {error:?}");
        assert!(error.problems()[0].message.starts_with("bad value for `vif.web0."), "{line}");
    }
}

#[test]
fn a_mirror_takes_no_part_and_mirrors_no_mirror() {
    let vif = vif_with("mirror = [\"lan\", \"db0\"]").unwrap();
    assert_eq!(vif.vlan.to_string(), "mirror lan,db0");
    assert_eq!(
        vif.port_config(&Networks::default()).vlan,
        weir_fabric::VlanMode::Trunk {
            native: None,
            allowed: weir_fabric::VlanSet::Only([].into_iter().collect()),
        }
    );
    for other in ["vlan = 7", "trunk = [7]", "native = 1\ntrunk = \"all\""] {
        let text = format!("[vif.web0]\nmirror = [\"a\"]\n{other}\n");
        assert_eq!(messages(&text), ["`vif.web0` has `mirror` and takes part"], "{other}");
    }
    let uplink = "[uplink.ids]\nkind = \"tap\"\nname = \"w0\"\nmirror = [\"a\"]\n[vif.a]\n";
    assert!(parse(uplink).is_ok());
    let chain = format!("{uplink}[vif.b]\nmirror = [\"ids\"]\n");
    assert_eq!(messages(&chain), ["b mirrors ids, which is a mirror"]);
    assert_eq!(messages("[vif.a]\nmirror = [\"a\"]\n"), ["a mirrors itself"]);
}

#[test]
fn a_mirror_has_no_key_that_holds_for_no_copy() {
    let filter = "[[vif.web0.filter]]\ndirection = \"rx\"\naction = \"drop\"";
    let rates = "rx_rate = \"1Gbit\"\nrx_burst = \"1MiB\"";
    let packets = "rx_packets_per_second = 9\nrx_packet_burst = 9";
    let cases: [(&str, &[&str]); 4] = [
        (filter, &["filter"]),
        ("mtu = 9000", &["mtu"]),
        (rates, &["rx_rate", "rx_burst"]),
        (packets, &["rx_packets_per_second", "rx_packet_burst"]),
    ];
    for (text, keys) in cases {
        let expected: Vec<_> =
            keys.iter().map(|key| format!("`vif.web0` has `mirror` and `{key}`")).collect();
        assert_eq!(messages(&format!("[vif.web0]\nmirror = [\"a\"]\n{text}\n")), expected);
        assert!(vif_with(text).is_ok(), "{text}");
    }
    let uplink = "[uplink.ids]\nkind = \"tap\"\nname = \"w0\"\nmirror = [\"a\"]\nmtu = 9000\n";
    assert_eq!(messages(uplink), ["`uplink.ids` has `mirror` and `mtu`"]);
    // `rate` bounds the frames that a mirror sends: they cost time before they are dropped.
    assert!(vif_with("mirror = [\"a\"]\nrate = \"1Gbit\"").is_ok());
}

#[test]
fn a_socket_that_is_listened_on_fits_sockaddr_un_exactly() {
    let path = |len: usize| format!("\"/{}\"", "x".repeat(len - 1));
    let max = limits::SOCKET_PATH_LEN_MAX;
    assert!(vif_with(&format!("socket = {}", path(max))).is_ok());
    for key in ["socket", "agent"] {
        let text = format!("[vif.web0]\n{key} = {}\n", path(max + 1));
        let [message] = &messages(&text)[..] else { panic!("{:?}", messages(&text)) };
        assert!(message.contains("`vif.web0`"), "{message}");
    }
    for key in ["control", "keeper"] {
        let text = format!("[switch]\n{key} = {}\n", path(max + 1));
        assert_eq!(messages(&text).len(), 1, "{text}");
    }
    // weir connects to this socket by a descriptor.
    let dialed = |len| vif_with(&format!("mode = \"client\"\nsocket = {}", path(len)));
    assert!(dialed(limits::DIALED_PATH_LEN_MAX).is_ok());
    assert!(dialed(limits::DIALED_PATH_LEN_MAX + 1).is_err());
}

#[test]
fn default_socket_that_would_be_too_long_is_reported() {
    let control = format!("/{}/c.sock", "x".repeat(limits::SOCKET_PATH_LEN_MAX - 8));
    let text = format!("[switch]\ncontrol = \"{control}\"\n[vif.a-longer-name]\n");
    assert_eq!(messages(&text), ["`vif.a-longer-name` has no socket"]);
    let named = text + "socket = \"/run/short.sock\"\n";
    assert!(parse(&named).is_ok());
}

#[test]
fn port_names_are_plain_words() {
    let long = "x".repeat(limits::PORT_NAME_LEN_MAX);
    for good in ["a", "0", "web-0_1.x", &long] {
        assert!(good.parse::<PortName>().is_ok(), "{good}");
    }
    let longer = "x".repeat(limits::PORT_NAME_LEN_MAX + 1);
    for bad in ["", "-a", ".", "..", "Web", "a/b", "a b", "ä", "a\n", "$(x)", &longer] {
        assert!(bad.parse::<PortName>().is_err(), "{bad}");
    }
}

#[test]
fn interface_names_are_those_linux_accepts() {
    for good in ["weir0", "a", "tap-15-letters-"] {
        assert!(good.parse::<InterfaceName>().is_ok(), "{good}");
    }
    for bad in ["", ".", "..", "sixteen-letters-", "a b", "a/b", "a:b", "tap%d"] {
        assert!(bad.parse::<InterfaceName>().is_err(), "{bad}");
    }
}

#[test]
fn an_uplink_can_be_an_interface_of_the_host() {
    let kind = |kind| {
        let text = format!("[uplink.lan]\nkind = \"{kind}\"\nname = \"eth0\"\nqueues = 2\n");
        let uplink = parse(&text).unwrap().uplinks.remove(0);
        assert_eq!((uplink.interface.as_str(), uplink.queues.get()), ("eth0", 2));
        uplink.kind
    };
    assert_eq!(kind("af_packet"), UplinkKind::AfPacket);
    assert_eq!(kind("af_xdp"), UplinkKind::AfXdp);
    assert_eq!(
        messages("[uplink.lan]\nkind = \"bridge\"\nname = \"br0\"\n"),
        ["bad value for `uplink.lan.kind`"]
    );
}

#[test]
fn a_stream_has_a_socket_and_what_is_of_an_interface_does_not_fit_it() {
    let stream = "[uplink.out]\nkind = \"stream\"\n";
    let good = format!("{stream}path = \"/run/weir/out.sock\"\nhost_access = true\n");
    let uplink = parse(&good).unwrap().uplinks.remove(0);
    assert_eq!((uplink.device().as_str(), uplink.host_access), ("/run/weir/out.sock", Some(true)));
    assert_eq!(uplink.mtu_held().map(|mtu| mtu.get()), Some(1500));
    let reasons = |text: &str| messages(text).join("; ");
    assert!(reasons(stream).contains("a stream needs a `path`"), "{}", reasons(stream));
    for (line, reason) in [
        ("name = \"eth0\"", "no interface"),
        ("queues = 2", "one queue"),
        ("mtu = 16001", "an MTU up to 16000"),
    ] {
        let said = reasons(&format!("{good}{line}\n"));
        assert!(said.contains(reason), "{line}: {said}");
    }
    let tap = "[uplink.lan]\nkind = \"tap\"\nname = \"w0\"\n";
    for line in ["path = \"/run/a\"", "host_access = true"] {
        let said = reasons(&format!("{tap}{line}\n"));
        assert!(said.contains("only a stream"), "{line}: {said}");
    }
    let said = reasons(&format!("{tap}agent_port = \"/dev/vport0p1\"\n"));
    assert!(said.contains("only an uplink with a card"), "{said}");
    let twice = good.clone() + &good.replace("uplink.out", "uplink.two");
    assert!(reasons(&twice).contains("socket /run/weir/out.sock"), "{}", reasons(&twice));
    let other = good.replace("uplink.out", "uplink.two").replace("out.sock", "two.sock");
    assert!(parse(&(good + &other)).is_ok(), "streams have no interface to share");
}

#[test]
fn what_must_differ_from_port_to_port_is_checked() {
    let cases = [
        (
            "[vif.lan]\n[uplink.lan]\nkind=\"tap\"\nname=\"t0\"\n",
            "the port name lan is used 2 times",
        ),
        (
            "[vif.a]\nmac=\"52:54:00:00:00:0a\"\n[vif.b]\nmac=\"52:54:00:00:00:0A\"\n",
            "the MAC address 52:54:00:00:00:0a is used 2 times",
        ),
        (
            "[vif.a]\n[vif.b]\nsocket=\"/run/weir/a.sock\"\n",
            "the socket /run/weir/a.sock is used 2 times",
        ),
        (
            "[uplink.a]\nkind=\"tap\"\nname=\"t0\"\n[uplink.b]\nkind=\"af_packet\"\nname=\"t0\"\n",
            "the interface t0 is used 2 times",
        ),
        ("[vif.control]\n", "`vif.control` uses the control socket"),
        (
            "[switch]\nkeeper=\"/run/weir/control.sock\"\n",
            "`switch.keeper` is no socket of a keeper",
        ),
        (
            "[switch]\nkeeper=\"/run/weir/a.sock\"\n[vif.a]\n",
            "`switch.keeper` is no socket of a keeper",
        ),
        (
            "[switch]\nkeeper=\"/run/weir/a.agent\"\n[vif.a]\nagent=\"/run/weir/a.agent\"\n",
            "`switch.keeper` is no socket of a keeper",
        ),
        ("[vif.a]\nagent=\"/run/weir/control.sock\"\n", "`vif.a` has no socket for its agent"),
        ("[vif.a]\nagent=\"/run/weir/a.sock\"\n", "`vif.a` has no socket for its agent"),
        ("[vif.a]\nagent=\"/run/weir/b.sock\"\n[vif.b]\n", "`vif.a` has no socket for its agent"),
        ("[vif.a]\nnative = 1\n", "`vif.a` has `native` without `trunk`"),
        ("[uplink.a]\nname=\"t0\"\n", "`uplink.a` has no `kind`"),
        ("[uplink.a]\nkind=\"tap\"\n", "`uplink.a` has no `name`"),
        ("vif = 3\n", "`vif` is not a table"),
        ("[[switch]]\n", "`switch` is not a table"),
        ("[vifs.a]\n", "unknown key `vifs` in the file"),
    ];
    for (text, message) in cases {
        assert_eq!(messages(text), [message], "{text}");
    }
}

#[test]
fn more_ports_than_a_switch_has_are_refused() {
    let ports = |number: usize| (0..number).map(|n| format!("[vif.v{n}]\n")).collect::<String>();
    assert!(parse(&ports(limits::PORTS_MAX)).is_ok());
    let message = format!("{} ports are too many", limits::PORTS_MAX + 1);
    assert_eq!(messages(&ports(limits::PORTS_MAX + 1)), [message]);
}

#[test]
fn file_larger_than_any_configuration_is_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("weir.toml");
    let fits = "#".repeat(limits::CONFIG_BYTES_MAX as usize);
    std::fs::write(&path, &fits).unwrap();
    assert!(Config::load(&path, &defaults()).is_ok());
    std::fs::write(&path, fits + "#").unwrap();
    assert!(matches!(Config::load(&path, &defaults()), Err(ConfigError::TooLarge { .. })));
}

// ---- settings of the command line ----

pub(super) fn settings(texts: &[&str]) -> Vec<Setting> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn settings_mean_what_the_file_means() {
    let from_settings = VifConfig::from_settings(
        &"web.0".parse().unwrap(),
        &settings(&[
            "queues=2",
            "latency_budget=1ms",
            "mac=52:54:00:12:34:56",
            "mac_check=false",
            "trunk=[10, 20]",
            "native=1",
            "socket_mode=0660",
            "socket_user=alice",
            "socket_group=kvm",
            "socket=/run/a b.sock",
        ]),
        &defaults().control,
    )
    .unwrap();
    let from_file = parse(
        "[vif.\"web.0\"]\nqueues=2\nlatency_budget=\"1ms\"\nmac=\"52:54:00:12:34:56\"\n\
         mac_check=false\ntrunk=[10,20]\nnative=1\nsocket_mode=\"0660\"\nsocket=\"/run/a b.sock\"\n\
         socket_user=\"alice\"\nsocket_group=\"kvm\"\n",
    )
    .unwrap();
    assert_eq!(from_settings, from_file.vifs[0]);
}

#[test]
fn setting_cannot_smuggle_in_another_key() {
    for text in ["queues", "=2", "a]\n[switch=1", "a b=1", "queues \n=1"] {
        assert!(text.parse::<Setting>().is_err(), "{text}");
    }
    let smuggled = settings(&["moderation=immediate\"\nqueues = 8\nx = \""]);
    let name = "web0".parse().unwrap();
    assert!(VifConfig::from_settings(&name, &smuggled, &defaults().control).is_err());
    let smuggled = settings(&["queues=1\n[vif.other]"]);
    assert!(VifConfig::from_settings(&name, &smuggled, &defaults().control).is_err());
}

#[test]
fn a_guard_that_is_on_is_one_of_two_and_never_off() {
    let text = refused("[vif.web0]\nsource_guard = \"on\"\n");
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("`on` is not one of `off`, `configured`, `snooped`"), "{text}");
    assert!(
        text.contains("configured")
            && text.contains("with snooped")
            && !text.contains("did you mean"),
        "{text}"
    );
}

#[test]
fn changes_apply_to_an_interface_in_use() {
    let name = "web0".parse().unwrap();
    let changes = VifChanges::from_settings(
        &name,
        &settings(&["latency_budget=2ms", "mac=none", "trunk=all", "native=5"]),
    )
    .unwrap();
    let json = serde_json::to_string(&changes).unwrap();
    assert_eq!(serde_json::from_str::<VifChanges>(&json).unwrap(), changes);

    let before = vif_with("mac = \"52:54:00:12:34:56\"\nvlan = 7\nqueues = 4").unwrap();
    let mut after = before.clone();
    changes.apply(&mut after);
    assert_eq!(after.latency_budget.unwrap().ns(), 2_000_000);
    assert_eq!(after.mac, None);
    assert_eq!(after.vlan.to_string(), "trunk all native 5");
    assert_eq!(after.queues, before.queues);
    VifChanges::from_settings(&name, &settings(&["queues=8"])).unwrap().apply(&mut after);
    assert_eq!(after.queues.get(), 8);

    let set = |texts: &[&str], vif: &mut VifConfig| {
        VifChanges::from_settings(&name, &settings(texts)).unwrap().apply(vif);
    };
    set(&["moderation=backend", "rx_usecs=200", "rx_frames=16"], &mut after);
    assert_eq!(after.rx_usecs.map(|usecs| usecs.ns()), Some(200_000));
    set(&["moderation=two-layer"], &mut after);
    assert_eq!(after.rx_usecs, None, "which means nothing to it");
    assert_eq!(after.rx_frames.map(|frames| frames.get()), Some(16));
    set(&["rx_frames=none"], &mut after);
    assert_eq!(after.rx_frames, None);
    set(&["moderation=aggregate", "container_bytes=2048"], &mut after);
    assert_eq!(after.container_bytes.map(|bytes| bytes.get()), Some(2048));
    set(&["moderation=immediate"], &mut after);
    assert_eq!(after.container_bytes, None);
    VifChanges::from_settings(&name, &settings(&["vlan=none"])).unwrap().apply(&mut after);
    assert_eq!(after.vlan, VlanMode::Unset);
    // `none` of one mode and another mode are one change, in either order.
    for (texts, expected) in [
        (&["trunk=[10,20]", "native=10", "vlan=none"][..], "trunk 10,20 native 10"),
        (&["trunk=all", "native=none"], "trunk all"),
        (&["trunk=none", "native=none", "network=lan2"], "network lan2"),
        (&["network=none", "vlan=7"], "7"),
        (&["vlan=none", "mirror=web1"], "mirror web1"),
        (&["mirror=none", "trunk=none", "native=none"], "-"),
    ] {
        set(texts, &mut after);
        assert_eq!(after.vlan.to_string(), expected, "{texts:?}");
    }
    for bad in [&["native=none"][..], &["trunk=none", "native=5"], &["vlan=none", "trunk=no"]] {
        assert!(VifChanges::from_settings(&name, &settings(bad)).is_err(), "{bad:?}");
    }
    let unchanged = after.clone();
    VifChanges::default().apply(&mut after);
    assert_eq!(after, unchanged);
}

#[test]
fn what_the_guest_has_negotiated_cannot_change() {
    let name = "web0".parse().unwrap();
    for setting in ["agent=/run/x.agent", "socket=/run/x.sock", "mode=client", "socket_mode=0660"] {
        let error = VifChanges::from_settings(&name, &settings(&[setting])).unwrap_err();
        let key = setting.split('=').next().unwrap();
        let message = format!("`{key}` cannot change while the interface exists");
        assert_eq!(error.problems()[0].message, message);
    }
}

#[test]
fn queue_pairs_out_of_bounds_are_refused_with_the_bounds() {
    for value in ["0", "9", "none", "-1"] {
        let changes = settings(&[&format!("queues={value}")]);
        let error = VifChanges::from_settings(&"web0".parse().unwrap(), &changes).unwrap_err();
        assert_eq!(error.problems()[0].message, "bad value for `vif.web0.queues`", "{value}");
    }
    let json = |queues: u64| serde_json::json!({ "queues": queues });
    assert!(serde_json::from_value::<VifChanges>(json(8)).is_ok());
    for queues in [0, 9] {
        assert!(serde_json::from_value::<VifChanges>(json(queues)).is_err(), "{queues}");
    }
}

#[test]
fn conflicts_with_an_interface_in_use_are_named() {
    let config = parse("").unwrap();
    let name = |text: &str| text.parse::<PortName>().unwrap();
    let mut a = VifConfig::new(name("a"), "/run/a.sock".parse().unwrap());
    let mut b = VifConfig::new(name("b"), "/run/b.sock".parse().unwrap());
    let said = |a: &VifConfig, b: &VifConfig| {
        let whole = Whole { vifs: vec![a], ..config.whole() };
        let faults: Vec<_> = whole.faults_with(b).iter().map(|it| it.reason("vif.b")).collect();
        assert_eq!(b.shares_with(a, &config.networks), !faults.is_empty());
        faults.join("; ")
    };
    assert_eq!(said(&a, &b), "");
    let mac = "52:54:00:12:34:56".parse().unwrap();
    (a.mac, b.mac) = (Some(mac), Some(mac));
    let taken = "the MAC address 52:54:00:12:34:56 is already used by a";
    assert_eq!(said(&a, &b), taken);
    b.socket = a.socket.clone();
    let socket = "the socket /run/a.sock is already used by a";
    assert_eq!(said(&a, &b), format!("{socket}; {taken}"), "all faults");
    b.name = name("a");
    assert!(said(&a, &b).contains("a port called a exists already"));
}

#[test]
fn interfaces_of_one_guest_share_an_agent_and_nobody_elses_socket() {
    let networks = Networks::default();
    let shared = |text: &str| parse(text).unwrap().vifs;
    let shared = shared("[vif.a]\nagent=\"/run/m.agent\"\n[vif.b]\nagent=\"/run/m.agent\"\n");
    assert!(!shared[0].shares_with(&shared[1], &networks));
    let mut thief = shared[0].clone();
    thief.name = "c".parse().unwrap();
    thief.socket = "/run/c.sock".parse().unwrap();
    thief.agent = Some(shared[1].socket.clone());
    assert!(thief.shares_with(&shared[1], &networks));
    assert!(shared[1].shares_with(&thief, &networks));
}

/// The output of `weir check` for a file, without a terminal.
fn printed(text: &str) -> String {
    let error = Config::from_toml("weir.toml", text, &defaults()).unwrap_err();
    weir_text::plain::report(&format!("{:?}", miette::Report::new(error)))
}

#[test]
fn of_a_file_full_of_mistakes_the_first_are_shown_and_the_rest_is_counted() {
    let many: String = (0..60_000).map(|i| format!("kye{i} = 1\n")).collect();
    let text = format!("[switch]\n{many}");
    assert!(text.len() < limits::CONFIG_BYTES_MAX as usize);
    let shown = printed(&text);
    assert!(shown.len() < 100_000, "{} bytes", shown.len());
    assert!(shown.contains("… and 950 more"), "{shown}");
    assert!(shown.contains("at least 1000 problems"), "{shown}");
    assert!(shown.contains("unknown key `kye0`"), "{shown}");
}

#[test]
fn a_line_of_a_megabyte_is_named_and_not_shown() {
    let text = format!("[switch]\nworkers = \"{}\"\n", "x".repeat(900_000));
    let shown = printed(&text);
    assert!(shown.len() < 10_000, "{} bytes", shown.len());
    assert!(shown.contains("line 2, byte 11"), "{shown}");
    let vifs: String = (0..30_000).map(|i| format!("[vif.v{i}]\nagent='/a'\n")).collect();
    let error = Config::from_toml("weir.toml", &vifs, &defaults()).unwrap_err();
    assert!(error.problems().iter().any(|it| it.message.contains("30000 ports are too many")));
}

#[test]
fn control_characters_of_a_file_are_not_printed() {
    for text in [
        "[switch]\nworkers = \"\\u001b]0;owned\\u0007\"\n",
        "[switch]\n\"\\u001b[2J\" = 1\n",
        "[switch]\nworkers = \"\u{9b}2J\u{202e}\"\n",
        "[switch]\nworkers = \"\x1b[2J\x08\"\n",
        "[vif.\"a\\u0007\"]\n",
        "[vif.a]\nsocket = \"/run/\\u001b[2J\"\n[[vif.a.filter]]\nrx = \"drop\"\nmatch = \"\\u001b[2J\"\n",
    ] {
        let shown = printed(text);
        let bad = |c: char| weir_text::plain::is_unprintable(c) && c != '\n' && c != '\x1b';
        assert!(!shown.contains(bad), "{shown:?}");
        assert!(!shown.contains("\x1b[2J") && !shown.contains("\x1b]"), "{shown:?}");
    }
}

#[test]
fn a_pipe_or_a_device_is_no_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for path in [pipe.as_path(), std::path::Path::new("/dev/zero"), dir.path()] {
        let error = Config::load(path, &defaults()).unwrap_err();
        assert!(matches!(error, ConfigError::NotAFile { .. }), "{error:?}");
    }
}

#[test]
fn users_have_names_or_numbers_and_xens_devices_are_roots() {
    let user = |text: &str| parse(&format!("[switch]\nuser = {text}\n")).unwrap().switch.user;
    for name in ["weir", "64055", "a-b_c.d$"] {
        assert_eq!(user(&format!("{name:?}")).unwrap().as_str(), name);
    }
    for (text, says) in [
        ("[switch]\nuser = \"\"\n", "cannot be the name of a user"),
        ("[switch]\nuser = \"a:b\"\n", "cannot be the name of a user"),
        ("[switch]\nuser = \"a b\"\n", "cannot be the name of a user"),
        ("[switch]\nuser = 7\n", "a user in quotes"),
        ("[switch]\nuser = \"root\"\n", "as another user than root"),
        ("[switch]\nuser = \"0\"\n", "as another user than root"),
        ("[switch]\nuser = \"weir\"\n[xen]\n", "means nothing with `[xen]`"),
    ] {
        assert!(refused(text).contains(says), "{text}: {}", refused(text));
    }
}

#[test]
fn each_wrong_element_of_a_list_is_shown() {
    let lan = "[network.lan]\nvlan = 5\naddress = \"192.168.77.1/24\"\ndhcp = true\nnat = true\n";
    for text in [
        &format!("{lan}forward = [\"tcp 70000 web0:22\", \"2222:22\"]\n"),
        &format!("{lan}fixed = [\"web0\", \"192.168.77.9\"]\n"),
        "[vif.a]\ntrunk = [0, 10, 5000]\n",
        "[vif.a]\nmirror = [\"B!\", \"C!\"]\n",
        "[vif.a]\ngroups = [\"B!\", \"C!\"]\n",
        "[xen]\nbridges = [\"a b\", \"c d\"]\n",
        "[switch]\ngroup = \"weir\"\nadmin = [\"a:b\", \"c:d\"]\n",
        "[overlay]\nlocal = \"192.0.2.1\"\n[network.b]\nvni = 1\npeers = [\"x\", \"y\"]\n",
    ] {
        let error = refused(text);
        assert_eq!(error.matches("bad value for").count(), 2, "{error}");
    }
    let many = format!("[vif.a]\ntrunk = [{}]\n", vec!["0"; 100_000].join(","));
    assert!(refused(&many).len() < 100_000);
}

#[test]
fn a_command_line_has_commas_and_hints_without_quotes_or_brackets() {
    let vif = |setting: &str| {
        let control = "/run/weir/control.sock".parse().unwrap();
        let settings = [setting.parse().unwrap()];
        VifConfig::from_settings(&"a".parse().unwrap(), &settings, &control)
    };
    let trunk = vif("trunk=10,20").unwrap().vlan;
    assert_eq!(trunk, vif("trunk=[10,20]").unwrap().vlan);
    assert_eq!(trunk.to_string(), "trunk 10,20");
    for (setting, says) in [
        ("latency_budget=1", "expected a duration, such as 250us, found integer"),
        ("trunk=10", "expected VLAN ids, such as 10, 20, or all, found integer"),
        ("trunk=10,5000", "must be 1 to 4094, not 5000"),
        ("groups=1", "expected groups, such as web, ssh, found integer"),
    ] {
        let error = format!("{:?}", miette::Report::new(vif(setting).unwrap_err()));
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn networks_that_give_too_few_addresses_or_none_are_noted() {
    let notes = |text: &str| {
        let config = parse(text).unwrap();
        config.networks.notes(&config.vifs)
    };
    let lan = |more: &str| {
        let dhcp = "vlan = 5\naddress = \"192.168.77.1/30\"\ndhcp = true\n";
        format!("[network.lan]\n{dhcp}{more}[vif.web0]\nnetwork = \"lan\"\n[vif.web1]\n")
    };
    assert_eq!(notes(&lan("")), Vec::<String>::new());
    let more = format!("{}network = \"lan\"\n", lan(""));
    assert_eq!(notes(&more), ["DHCP of network.lan has 1 address for 2 interfaces"]);
    let nobody = notes(&lan("fixed = \"nobody 192.168.77.2\"\n"));
    let says =
        "`fixed` of network.lan has 192.168.77.2 for nobody, and there is no interface nobody yet";
    assert_eq!(nobody, [says]);
    let none = notes(&lan("").replace("network = \"lan\"", ""));
    assert!(none.len() == 1 && none[0].contains("no interface is in network.lan"), "{none:?}");
}

#[test]
fn rules_to_a_group_are_noted_where_there_are_other_hosts() {
    let note = |text: &str| {
        let config = parse(text).unwrap();
        config.note_of_groups()
    };
    let group = |rule: &str| {
        format!("[group.lb]\n[group.web]\ndefault_out = \"deny\"\nrules = [{{ {rule} }}]\n")
    };
    let overlay =
        "[overlay]\nlocal = \"192.0.2.1\"\n[network.blue]\nvni = 1\npeers = [\"192.0.2.2\"]\n";
    let to = group("direction = \"out\", to = \"group:lb\"");
    assert_eq!(note(&to), None);
    let said = note(&(to + overlay)).unwrap();
    assert!(
        said.starts_with("rules `to` a group, of web: they mean interfaces of this switch"),
        "{said}"
    );
    for others in
        ["direction = \"out\", to = \"10.0.0.0/8\"", "direction = \"in\", from = \"group:lb\""]
    {
        assert_eq!(note(&(group(others) + overlay)), None);
    }
}

const TWO_UPLINKS: &str = "[uplink.eth0]\nkind = \"af_packet\"\nname = \"eth0\"\n\
     [uplink.eth1]\nkind = \"af_packet\"\nname = \"eth1\"\nqueues = 7\n";

#[test]
fn a_bond_is_a_port_after_its_uplinks() {
    let bond = "[bond.lan]\nuplinks = [\"eth0\", \"eth1\"]\nmode = \"balance\"\nvlan = 7\n";
    let config = parse(&format!("{bond}{TWO_UPLINKS}")).unwrap();
    let tables: Vec<_> = config.uplinks.iter().map(UplinkConfig::table).collect();
    assert_eq!(tables, ["uplink.eth0", "uplink.eth1", "bond.lan"]);
    let lan = &config.uplinks[2];
    assert_eq!((lan.mode, lan.members().len()), (Some(BondMode::Balance), 2));
    let unbonded: Vec<_> = config.unbonded().map(|it| it.name.as_str()).collect();
    assert_eq!(unbonded, ["eth0", "lan"]);
}

#[test]
fn a_bond_that_cannot_be_is_refused() {
    let with = |more: &str| messages(&format!("{TWO_UPLINKS}{more}"));
    let both = "uplinks = [\"eth0\", \"eth1\"]\n";
    for (text, part) in [
        ("[bond.lan]\n".to_owned(), "needs its `uplinks`"),
        ("[bond.lan]\nuplinks = [\"eth0\"]\n".to_owned(), "uplinks"),
        ("[bond.lan]\nuplinks = [\"eth0\", \"eth0\"]\n".to_owned(), "uplinks"),
        ("[bond.lan]\nuplinks = [\"eth0\", \"eth2\"]\n".to_owned(), "no uplink eth2"),
        ("[bond.lan]\nuplinks = [\"eth0\", \"lan\"]\n".to_owned(), "lan is a bond"),
        (format!("[bond.lan]\n{both}mode = \"mode4\"\n"), "mode"),
        (format!("[bond.lan]\n{both}lacp_rate = \"fast\"\n"), "only `mode = \"lacp\"`"),
        (format!("[bond.lan]\n{both}queues = 2\n"), "unknown key `queues`"),
        (format!("[bond.lan]\n{both}[bond.b]\n{both}"), "in bond.lan already"),
        (format!("[bond.eth0]\n{both}"), "eth0"),
        (
            "[bond.lan]\nuplinks = [\"eth0\", \"eth1\", \"w\"]\n[uplink.w]\nkind = \"tap\"\nname = \"w\"\n".to_owned(),
            "9 queues in all",
        ),
        (
            "[bond.lan]\nuplinks = [\"eth0\", \"w\"]\n[uplink.w]\nkind = \"tap\"\nname = \"w\"\nvlan = 3\n".to_owned(),
            "w is in bond.lan",
        ),
        ("[uplink.w]\nkind = \"bond\"\nname = \"w\"\n".to_owned(), "is a bond"),
        (
            "[uplink.w]\nkind = \"tap\"\nname = \"w\"\nmode = \"balance\"\n".to_owned(),
            "unknown key",
        ),
    ] {
        let messages = with(&text);
        assert!(messages.iter().any(|it| it.contains(part)), "{text}: {messages:?}");
    }
}

#[test]
fn a_bridge_or_addresses_belong_to_a_tap_and_not_both() {
    let tap = "[uplink.lan]\nkind = \"tap\"\nname = \"weir0\"\n";
    let config = parse(&format!("{tap}address = [\"10.9.0.1/24\", \"fd00:9::1/64\"]\n")).unwrap();
    let of = &config.uplinks[0];
    assert_eq!(of.address.as_ref().unwrap().to_string(), "10.9.0.1/24, fd00:9::1/64");
    assert_eq!(parse(&format!("{tap}bridge = \"br0\"\n")).unwrap().uplinks[0].address, None);
    let card = tap.replace("\"tap\"", "\"af_packet\"");
    let both = "bridge = \"br0\"\naddress = \"10.9.0.1/24\"\n";
    for (text, says) in [
        (format!("{card}bridge = \"br0\"\n"), "only a TAP has a `bridge`"),
        (format!("{card}address = \"10.9.0.1/24\"\n"), "only a TAP has an `address`"),
        (format!("{tap}{both}"), "the port of a bridge has no address of its own"),
        (format!("{tap}address = \"10.9.0.0/24\"\n"), "is not a station's address"),
        (format!("{tap}address = []\n"), "0 different addresses"),
        (format!("{tap}address = [\"10.9.0.1/24\", \"10.9.0.1/24\"]\n"), "1 different addresses"),
    ] {
        assert!(refused(&text).contains(says), "{}", refused(&text));
    }
    let wrong = refused(&format!("{tap}address = [\"a\", \"10.9.0.1/24\", \"b\"]\n"));
    assert_eq!(wrong.matches("bad value for").count(), 2, "{wrong}");
}

#[test]
fn no_port_is_called_as_a_word_of_a_command() {
    for table in ["[vif.placement]\n", "[uplink.placement]\nkind = \"tap\"\nname = \"t0\"\n"] {
        assert_eq!(messages(table), ["no port is called `placement`"]);
    }
    assert!(parse("[vif.placement0]\n").is_ok());
}
