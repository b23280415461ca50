//! Commands against a simulated control socket.

use std::sync::Arc;

use clap::Parser;
use weir_api::ApiServer;
use weir_switch::control::{ControlHandler, Request, Response};
use weir_switch::stats::PortState;

use super::*;
use crate::args::{Cli, Command};

/// A weir with the interface of a vhost-user guest, and one of a Xen guest.
struct TwoKinds;

impl ControlHandler for TwoKinds {
    fn handle(&self, request: Request) -> Response {
        assert!(matches!(request, Request::VifList(_)));
        let vif = |name: &str, xen| VifStatus {
            config: VifConfig::new(name.parse().unwrap(), "/run/weir/a.sock".parse().unwrap()),
            state: PortState::Running,
            stopped_reason: None,
            front_end: None,
            xen,
            origin: weir_switch::control::VifOrigin::File,
            unsaved: Vec::new(),
        };
        Response::Vifs { vifs: vec![vif("web0", false), vif("vif3.0", true)], total: 2 }
    }
}

#[test]
fn a_directory_of_sockets_that_is_not_there_is_noted() {
    let control = "/run/weir/control.sock".parse().unwrap();
    let defaults = Defaults { control, control_named: true, keeper: None };
    let text = "[vif.a]\n[vif.b]\nsocket = \"/nowhere/weir/b.sock\"\n[vif.c]\nsocket = \"/tmp/c.sock\"\n\
                [vif.d]\nsocket = \"/elsewhere/d.sock\"\nmode = \"client\"\n";
    let config = Config::from_toml("weir.toml", text, &defaults).unwrap();
    assert_eq!(missing_directories(&config), [Path::new("/nowhere/weir")].into());
}

#[test]
fn an_interface_that_weir_cannot_make_is_noted_where_it_is_missing() {
    let control = "/run/weir/control.sock".parse().unwrap();
    let defaults = Defaults { control, control_named: true, keeper: None };
    let uplink = |port: &str, kind: &str, name: &str| {
        format!("[uplink.{port}]\nkind = \"{kind}\"\nname = \"{name}\"\n")
    };
    let text = [
        uplink("a", "af_packet", "nosuch0"),
        uplink("b", "af_packet", "lo"),
        uplink("c", "tap", "nosuch1"),
        uplink("d", "af_xdp", "nosuch2"),
        "[bond.e]\nuplinks = [\"a\", \"b\"]\n".into(),
    ];
    let config = Config::from_toml("weir.toml", &text.concat(), &defaults).unwrap();
    let notes: Vec<_> = missing_interfaces(&config).collect();
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert!(notes[0].starts_with("`uplink.a`: there is no interface nosuch0"), "{notes:?}");
    assert!(notes[1].contains("nosuch2"), "{notes:?}");
}

#[test]
fn no_qemu_is_told_of_a_xen_guests_interface() {
    let dir = tempfile::tempdir().unwrap();
    let control = dir.path().join("control.sock");
    let _served = ApiServer::start(&control, Arc::new(TwoKinds)).unwrap();
    let control = SocketPath::try_from(control.as_path()).unwrap();
    let defaults = Defaults { control, control_named: true, keeper: None };
    let print = |name: &str| {
        let Command::QemuArgs(args) = Cli::parse_from(["weir", "qemu-args", name]).command else {
            panic!("another command");
        };
        qemu_args(&args, &defaults, &mut Vec::new(), false)
    };
    let refused = print("vif3.0").unwrap_err();
    assert!(matches!(&refused, CommandError::XenVif { name } if name.as_str() == "vif3.0"));
    assert!(format!("{:?}", miette::Report::new(refused)).contains("xen.md"));
    print("web0").unwrap();
}

#[test]
fn memberships_that_an_answer_leaves_out_are_counted_in_the_table() {
    let member = |last: u8| MemberStats {
        group: [239, 0, 0, last].into(),
        port: "web0".parse().unwrap(),
        left_s: 60,
    };
    let standing = |members, unshown| MulticastStats {
        vlan: 20,
        ip: 4,
        querier: None,
        querier_port: None,
        members,
        over: Vec::new(),
        unshown,
    };
    let text = |standing| multicast_table(&[standing]).to_string();
    let some = text(standing(vec![member(1), member(2)], 98));
    assert!(some.contains("239.0.0.2") && some.contains("98 more of IPv4"), "{some}");
    let all = text(standing(vec![member(1)], 0));
    assert!(!all.contains("more of") && !all.contains("none of"), "{all}");
    assert!(text(standing(Vec::new(), 0)).contains("none of IPv4"));
}
