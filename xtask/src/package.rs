//! Tests that the files of the Debian package match the workspace.

use std::{fs, path::Path};

fn read(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn the_package_has_the_version_of_the_workspace() {
    let changelog = read("debian/changelog");
    let version = changelog.strip_prefix("weir (").and_then(|rest| rest.split_once(')'));
    assert_eq!(version.map(|(version, _)| version), Some(env!("CARGO_PKG_VERSION")));
}

/// FRR's daemons run with `--vty_group frrvty`: their sockets are of that group, and of nobody else but FRR.
#[test]
fn the_package_lets_weir_connect_to_the_sockets_on_which_it_sees_frr_end() {
    let source = read("crates/switch/src/helper/wire.rs");
    let strings = source.split('"').skip(1).step_by(2);
    let mut sockets: Vec<_> = strings.filter(|it| it.starts_with("/run/frr/")).collect();
    sockets.sort();
    assert_eq!(sockets, ["/run/frr/bgpd.vty", "/run/frr/zebra.vty"]);
    let has = |file: &str, line: &str| {
        assert!(read(file).lines().any(|it| it.trim() == line), "{file}: no {line}");
    };
    has("debian/weir.service", "SupplementaryGroups=frrvty");
    has("debian/weir.sysusers", "g frrvty -");
    has("debian/apparmor/weir", "/run/frr/{bgpd,zebra}.vty rw,");
}

#[test]
fn the_unit_and_the_profile_have_the_same_capabilities() {
    let unit = read("debian/weir.service");
    let list = |key: &str| {
        let line = unit.lines().find_map(|line| line.strip_prefix(key)).expect(key);
        line.split_whitespace().map(str::to_ascii_lowercase).collect::<Vec<_>>()
    };
    let mut ambient = list("AmbientCapabilities=");
    assert_eq!(ambient, list("CapabilityBoundingSet="));
    let profile = read("debian/apparmor/weir");
    let allowed = profile.lines().filter_map(|line| line.strip_prefix("  capability "));
    let mut allowed: Vec<_> =
        allowed.map(|name| format!("cap_{}", name.trim_end_matches(','))).collect();
    allowed.sort();
    ambient.sort();
    assert_eq!(ambient, allowed);
}
