//! Settings changed and restored in a simulated guest.

use std::fs;

use super::*;
use crate::fake_guest::FakeGuest;

const MAC: Mac = Mac([0x52, 0x54, 0, 0, 0, 1]);
const OTHER: Mac = Mac([0x52, 0x54, 0, 0, 0, 2]);

fn deferral(fake: &FakeGuest) -> Deferral {
    let state = StateFile::lock(&fake.path("agent.state")).unwrap();
    Deferral::recover(Guest::new(fake.root()), state).unwrap()
}

fn polls_at(poll_ns: u64) -> (String, String) {
    (empty_polls(poll_ns).to_string(), poll_ns.to_string())
}

#[test]
fn a_poll_interval_is_written_and_what_was_found_comes_back() {
    let fake = FakeGuest::new();
    let mut deferral = deferral(&fake);
    deferral.apply(MAC, Some(250_000)).unwrap();
    assert_eq!(fake.settings("eth0"), polls_at(250_000));
    deferral.apply(MAC, Some(1_000_000)).unwrap();
    assert_eq!(fake.settings("eth0"), polls_at(1_000_000));
    assert!(fake.path("agent.state").exists());
    deferral.apply(MAC, None).unwrap();
    assert!(fake.is_as_found("eth0") && !deferral.is_changed());
    assert!(!fake.path("agent.state").exists());
    deferral.apply(MAC, None).unwrap();
}

#[test]
fn a_xen_guests_interface_is_set_like_any_other() {
    let fake = FakeGuest::new();
    fake.add("eth1", "52:54:00:00:00:02", "vif-0", "vif");
    let mut deferral = deferral(&fake);
    deferral.apply(OTHER, Some(250_000)).unwrap();
    assert_eq!(fake.settings("eth1"), polls_at(250_000));
    deferral.apply(OTHER, None).unwrap();
    assert!(fake.is_as_found("eth1"));
}

#[test]
fn an_agent_after_a_crash_restores_what_the_first_one_found() {
    let fake = FakeGuest::new();
    let mut first = deferral(&fake);
    first.apply(MAC, Some(250_000)).unwrap();
    drop(first);
    assert_eq!(fake.settings("eth0"), polls_at(250_000));
    drop(deferral(&fake));
    assert!(fake.is_as_found("eth0") && !fake.path("agent.state").exists());
}

#[test]
fn nothing_is_changed_unless_what_was_found_is_kept() {
    let fake = FakeGuest::new();
    let mut deferral = deferral(&fake);
    fs::create_dir(fake.path("agent.new")).unwrap();
    let error = deferral.apply(MAC, Some(250_000)).unwrap_err();
    assert!(matches!(error, DeferralError::State(_)), "{error}");
    assert!(fake.is_as_found("eth0") && !deferral.is_changed());
}

#[test]
fn what_cannot_be_done_is_named() {
    let fake = FakeGuest::new();
    fake.add("eth1", "52:54:00:00:00:02", "virtio3", "virtio_net");
    fs::remove_file(fake.path("sys/class/net/eth1/napi_defer_hard_irqs")).unwrap();
    let mut deferral = deferral(&fake);
    let nobody = Mac([2, 0, 0, 0, 0, 9]);
    // An interface of another driver.
    let e1000 = Mac([0x52, 0x54, 0, 0, 0, 0x99]);
    for mac in [nobody, e1000] {
        let error = deferral.apply(mac, Some(250_000)).unwrap_err();
        assert!(matches!(error, DeferralError::NoInterface { .. }), "{error}");
    }
    let error = deferral.apply(OTHER, Some(250_000)).unwrap_err();
    assert_eq!(error.to_string(), "eth1 cannot poll on a timer, which takes Linux 5.8 or later");
    for poll_ns in [0, AGENT_POLL_NS_MIN - 1, AGENT_POLL_NS_MAX + 1, u64::MAX] {
        let error = deferral.apply(MAC, Some(poll_ns)).unwrap_err();
        assert!(matches!(error, DeferralError::Range { .. }), "{error}");
    }
    assert!(fake.is_as_found("eth0") && !deferral.is_changed());
}

#[test]
fn a_refused_interval_leaves_the_interface_as_it_was_found() {
    let fake = FakeGuest::new();
    let mut deferral = deferral(&fake);
    deferral.apply(MAC, Some(250_000)).unwrap();
    deferral.apply(MAC, Some(1)).unwrap_err();
    assert!(fake.is_as_found("eth0") && !deferral.is_changed());
}

#[test]
fn an_interface_that_is_gone_keeps_nobody_from_being_restored() {
    let fake = FakeGuest::new();
    fake.add("eth1", "52:54:00:00:00:02", "virtio3", "virtio_net");
    let mut deferral = deferral(&fake);
    deferral.apply(MAC, Some(250_000)).unwrap();
    deferral.apply(OTHER, Some(250_000)).unwrap();
    fs::remove_dir_all(fake.path("sys/class/net/eth0")).unwrap();
    deferral.restore_all().unwrap();
    assert!(fake.is_as_found("eth1") && !deferral.is_changed());
}

#[test]
fn an_interface_that_fails_keeps_nobody_else_from_being_restored() {
    let fake = FakeGuest::new();
    fake.add("eth1", "52:54:00:00:00:02", "virtio3", "virtio_net");
    let mut deferral = deferral(&fake);
    deferral.apply(MAC, Some(250_000)).unwrap();
    deferral.apply(OTHER, Some(250_000)).unwrap();
    let setting = fake.path("sys/class/net/eth0/napi_defer_hard_irqs");
    fs::remove_file(&setting).unwrap();
    fs::create_dir(&setting).unwrap();
    assert!(matches!(deferral.restore_all(), Err(DeferralError::File(_))));
    assert!(fake.is_as_found("eth1") && deferral.is_changed());
    fs::remove_dir(&setting).unwrap();
    fs::write(&setting, "").unwrap();
    deferral.restore_all().unwrap();
    assert!(fake.is_as_found("eth0") && !fake.path("agent.state").exists());
}

#[test]
fn a_renamed_interface_is_found_by_its_address() {
    let fake = FakeGuest::new();
    let mut deferral = deferral(&fake);
    deferral.apply(MAC, Some(250_000)).unwrap();
    fs::rename(fake.path("sys/class/net/eth0"), fake.path("sys/class/net/wan")).unwrap();
    deferral.restore_all().unwrap();
    assert!(fake.is_as_found("wan"));
}

#[test]
fn short_intervals_bridge_a_pause_and_long_ones_end_soon() {
    assert_eq!(empty_polls(AGENT_POLL_NS_MIN), 12);
    assert_eq!(empty_polls(100_000), 3);
    assert_eq!(empty_polls(1_000_000), 3);
    for poll_ns in [AGENT_POLL_NS_MIN, 37_000, 250_000, AGENT_POLL_NS_MAX] {
        assert!(empty_polls(poll_ns) * poll_ns > AGENT_POLL_PAUSE_NS);
        assert!(empty_polls(poll_ns) <= 12);
    }
}
