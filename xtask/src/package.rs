//! Tests that the files of the Debian package match the workspace.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

fn path_of(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file)
}

fn read(file: &str) -> String {
    let path = path_of(file);
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

/// On Debian 12 debhelper puts units into `/lib`, which is a link on Debian 13, where no package may have a file.
#[test]
fn units_of_a_package_are_below_usr_wherever_it_is_built() {
    let dir = std::env::temp_dir().join(format!("weir-package-{}", std::process::id()));
    let units = |root: &str| dir.join("debian/weir").join(root).join("systemd/system");
    for (root, unit) in [("lib", "weir.service"), ("usr/lib", "other.service")] {
        fs::create_dir_all(units(root)).unwrap();
        fs::write(units(root).join(unit), "").unwrap();
    }
    let rules = fs::canonicalize(path_of("debian/rules")).unwrap();
    let mut make = Command::new("make");
    make.arg("-C").arg(&dir).arg("-f").arg(rules).arg("execute_after_dh_installsystemd");
    let made = make.output().unwrap();
    let found = ["weir.service", "other.service"].map(|unit| units("usr/lib").join(unit).exists());
    let is_left = units("lib").exists();
    fs::remove_dir_all(&dir).unwrap();
    assert!(made.status.success(), "{made:?}");
    assert_eq!((found, is_left), ([true, true], false));
}

#[test]
fn where_there_is_no_apt_set_up_names_what_other_systems_call_the_package() {
    let mut make = Command::new("make");
    let made = make.arg("-C").arg(path_of(".")).args(["set-up", "PATH=/nonexistent"]).output();
    let made = made.unwrap();
    let said = String::from_utf8_lossy(&made.stderr);
    assert!(!made.status.success() && said.contains("libpcap-devel"), "{said}");
    assert!(!said.contains("apt-get"), "{said}");
}
