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
