use super::*;

fn running() -> TrafficExplanation {
    TrafficExplanation {
        state: PortState::Running,
        vlan: "VLAN 7".into(),
        reaches: 2,
        addresses: 1,
        heard_s: Some(3),
        ..TrafficExplanation::default()
    }
}

fn of(it: &TrafficExplanation) -> (Passes, String) {
    let Verdict { passes, because } = it.verdict("web0", true, &[], &[], None);
    (passes, because.join("; "))
}

fn rules(texts: &[(&str, u64)]) -> Vec<RuleStats> {
    let rule = |(text, packets): &(&str, u64)| RuleStats {
        rule: text.parse().unwrap(),
        packets: *packets,
        bytes: 0,
    };
    texts.iter().map(rule).collect()
}

#[test]
fn each_reason_why_nothing_passes_is_said() {
    let (passes, says) = of(&running());
    assert_eq!((passes, says.contains("was heard 3 s ago")), (Passes::Idle, true), "{says}");
    let mute = TrafficExplanation { addresses: 0, heard_s: None, ..running() };
    assert!(of(&mute).1.contains("its guest has not sent a frame"), "{:?}", of(&mute));
    let busy = TrafficExplanation { rx_frames: 7, tx_frames: 9, ..running() };
    assert_eq!(of(&busy).0, Passes::Yes);
    let failed = Some("ring 4 does not exist".to_owned());
    let dropped = [("src_mac_owned".to_owned(), 9)].into();
    for (it, says) in [
        (
            TrafficExplanation {
                state: PortState::Waiting,
                last_error: failed.clone(),
                ..running()
            },
            "ring 4",
        ),
        (TrafficExplanation { state: PortState::Waiting, ..running() }, "weir qemu-args web0"),
        (TrafficExplanation { state: PortState::Connected, ..running() }, "boots still"),
        (TrafficExplanation { state: PortState::Halted, ..running() }, "paused"),
        (
            TrafficExplanation { state: PortState::Stopped, last_error: failed, ..running() },
            "stopped it: ring 4",
        ),
        (TrafficExplanation { reaches: 0, ..running() }, "no other port is in VLAN 7"),
        (TrafficExplanation { reaches: 0, silent: 2, ..running() }, "none of them runs"),
        (TrafficExplanation { reaches: 0, silent: 1, isolated: 2, ..running() }, "it is isolated"),
        (TrafficExplanation { tx_frames: 9, drops: dropped, ..running() }, "src_mac_owned 9"),
    ] {
        let (passes, said) = of(&it);
        assert!(passes == Passes::No && said.contains(says), "{says}: {said}");
    }
    let usual = [("reserved_group_address".to_owned(), 1)].into();
    let lldp = TrafficExplanation { tx_frames: 1, drops: usual, ..running() };
    assert_eq!(of(&lldp).0, Passes::Yes);
    let few = [("rx_ring_full".to_owned(), 1)].into();
    let some = TrafficExplanation { rx_frames: 100, drops: few, ..running() };
    assert_eq!(of(&some).0, Passes::Yes);
    let ring = SilentRing { ring: 1, why: Silence::BuffersWithoutKick };
    let verdict = running().verdict("web0", true, &[], &[ring], None);
    assert!(verdict.because[0].contains("ring 1 serves nobody"), "{verdict:?}");
    let filtered = busy.verdict("web0", true, &rules(&[("tx drop", 3)]), &[], None);
    assert!(filtered.because[0].contains("all that it sends"), "{filtered:?}");
    let block =
        BlockStats { with: "db0".parse().unwrap(), vlan: 7, seconds: 2.0, retry_s: 8.0, tries: 0 };
    let blocked = busy.verdict("web0", true, &[], &[], Some(&block));
    assert!(blocked.passes == Passes::No && blocked.because[0].contains("a loop with db0"));
    let mirror = TrafficExplanation { is_mirror: true, reaches: 0, ..running() };
    assert_eq!(of(&mirror).0, Passes::Idle);
}

#[test]
fn rules_drop_all_where_one_drops_the_rest_and_none_has_let_a_frame_through() {
    let all = |texts: &[(&str, u64)]| drops_all(&rules(texts)).collect::<Vec<_>>();
    assert_eq!(all(&[("tx drop", 1)]), [Direction::Tx]);
    assert_eq!(all(&[("rx accept arp", 0), ("rx drop", 4)]), [Direction::Rx]);
    assert_eq!(
        all(&[("tx drop ip", 2), ("tx drop", 0), ("rx drop", 1)]),
        [Direction::Tx, Direction::Rx]
    );
    for passes in
        [&[("rx accept arp", 1), ("rx drop", 4)][..], &[("tx drop tcp", 9)], &[("tx drop", 0)], &[]]
    {
        assert_eq!(all(passes), [], "{passes:?}");
    }
}

#[test]
fn what_never_passed_is_said_when_nothing_is_sent_any_more() {
    let of_all = |reason: &str, drops, rx_frames, tx_frames| {
        let drops = [(reason.to_owned(), drops)].into();
        let then = TrafficExplanation { rx_frames, tx_frames, drops, ..running() };
        let mut now = then.clone();
        now.since(&then);
        of(&now)
    };
    // Broadcasts of others still come.
    for (reason, rx, tx, says) in [
        ("src_mac_spoofed", 900, 5, "it has sent since it was added has passed: src_mac_spoofed 5"),
        ("vlan_untagged_on_trunk", 900, 5, "it has sent"),
        ("filtered_rx", 0, 7, "has come for it"),
        ("group_in", 0, 0, "has come for it"),
    ] {
        let (passes, said) = of_all(reason, 5, rx, tx);
        assert!(passes == Passes::No && said.contains(says), "{says}: {said}");
    }
    for (reason, drops, rx, tx) in [
        ("src_mac_spoofed", 5, 0, 6),
        ("src_mac_spoofed", 2, 0, 2),
        ("filtered_rx", 5, 1, 0),
        ("unknown_unicast", 5, 0, 5),
        ("rx_not_ready", 5, 0, 0),
        ("frame_too_short", 5, 0, 5),
    ] {
        assert_eq!(of_all(reason, drops, rx, tx).0, Passes::Idle, "{reason}");
    }
}
