use super::super::tests::{messages, parse, refused};
use super::super::{Setting, VifChanges, VifConfig};
use super::*;

fn vif(lines: &str) -> VifConfig {
    parse(&format!("[vif.web0]\n{lines}\n")).unwrap().vifs.remove(0)
}

#[test]
fn addresses_and_prefixes_are_read_and_written_back() {
    let lines = "source_guard = \"configured\"\naddresses = [\"10.0.0.5\", \"fd00::5/128\", \"10.9.0.0/24\"]\nrouter = true";
    let vif = vif(lines);
    assert_eq!(vif.guarding.mode, GuardMode::Configured);
    assert_eq!(vif.guarding.addresses.to_string(), "10.0.0.5, fd00::5, 10.9.0.0/24");
    assert!(vif.guarding.router && vif.guarding.guard(None).is_some());
    let json = serde_json::to_string(&vif).unwrap();
    assert_eq!(serde_json::from_str::<VifConfig>(&json).unwrap(), vif);
    assert!(VifConfig::default_guarding().guard(None).is_none());
}

impl VifConfig {
    fn default_guarding() -> Guarding {
        vif("").guarding
    }
}

#[test]
fn what_no_guest_has_is_refused() {
    let configured = |addresses: &str| {
        let lines = format!("[vif.web0]\nsource_guard = \"configured\"\naddresses = {addresses}\n");
        refused(&lines)
    };
    for (addresses, words) in [
        ("[]", "must be 1 to 32, not 0 addresses"),
        ("[\"10.0.0.5/24\"]", "`10.0.0.5/24` is an address within 10.0.0.0/24"),
        ("[\"224.0.0.1\"]", "`224.0.0.1` cannot be a guest's address"),
        ("[\"ff02::1\"]", "`ff02::1` cannot be a guest's address"),
        ("[\"255.255.255.255\"]", "cannot be a guest's address"),
        ("[\"0.0.0.0\"]", "cannot be a guest's address"),
        ("[\"::\"]", "cannot be a guest's address"),
        ("[\"web0\"]", "`web0` is not an address or a prefix"),
        ("[5]", "expected addresses in brackets"),
        ("5", "expected addresses in brackets"),
    ] {
        let shown = configured(addresses);
        assert!(shown.contains(words), "{addresses}: {shown}");
    }
    let many = vec!["\"10.0.0.1\""; SOURCE_ADDRESSES_MAX + 1].join(", ");
    assert!(configured(&format!("[{many}]")).contains("must be 1 to 32"));
    assert_eq!(
        vif("source_guard = \"configured\"\naddresses = \"0.0.0.0/0, ::/0\"")
            .guarding
            .addresses
            .0
            .len(),
        2
    );
}

#[test]
fn keys_that_do_not_go_together_are_refused() {
    const NO_ADDRESSES: &str = "`source_guard = \"configured\"` without `addresses`";
    const UNGUARDED: &str = "`addresses` has no effect without `source_guard`";
    const MAC_UNCHECKED: &str = "`source_guard` with `mac_check = false`";
    let message = |lines: &str| messages(&format!("[vif.web0]\n{lines}\n"));
    let guarded = "source_guard = \"configured\"";
    let addresses = "addresses = \"10.0.0.5\"";
    assert_eq!(message(guarded), [format!("`vif.web0`: {NO_ADDRESSES}")]);
    assert_eq!(message(addresses), [format!("`vif.web0`: {UNGUARDED}")]);
    let unchecked = format!("{guarded}\n{addresses}\nmac_check = false");
    assert_eq!(message(&unchecked), [format!("`vif.web0`: {MAC_UNCHECKED}")]);
    assert!(vif("source_guard = \"snooped\"").guarding.guard(None).unwrap().snoops());
    let unchecked = message("source_guard = \"snooped\"\nmac_check = false");
    assert_eq!(unchecked, [format!("`vif.web0`: {MAC_UNCHECKED}")]);
    // A bad value gives one problem, without a second one about the other key.
    assert_eq!(message(&format!("{guarded}\naddresses = 7")).len(), 1);
    assert_eq!(message(&format!("source_guard = \"on\"\n{addresses}")).len(), 1);
}

#[test]
fn a_guard_changes_and_goes() {
    let change = |vif: &mut VifConfig, settings: &[&str]| {
        let settings: Vec<Setting> = settings.iter().map(|text| text.parse().unwrap()).collect();
        let changes = VifChanges::from_settings(&vif.name, &settings).unwrap();
        let json = serde_json::to_string(&changes).unwrap();
        assert_eq!(serde_json::from_str::<VifChanges>(&json).unwrap(), changes);
        changes.apply(vif);
    };
    let mut vif = vif("");
    change(&mut vif, &["source_guard=configured", "addresses=10.0.0.5,fd00::5", "router=true"]);
    assert_eq!(vif.guarding.addresses.to_string(), "10.0.0.5, fd00::5");
    assert!(vif.guarding.router);
    change(&mut vif, &["addresses=[\"10.0.0.6\"]"]);
    assert_eq!(vif.guarding.addresses.to_string(), "10.0.0.6");
    assert_eq!(vif.guarding.mode, GuardMode::Configured);
    change(&mut vif, &["addresses=none"]);
    assert_eq!(vif.guarding.faults(true)[0].keys, ["source_guard", "addresses"]);
    change(&mut vif, &["addresses=10.0.0.7"]);
    change(&mut vif, &["source_guard=off", "router=false"]);
    assert_eq!(vif.guarding, Guarding::default());
}
