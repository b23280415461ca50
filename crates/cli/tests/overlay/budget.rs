//! A latency budget over two hosts with weirs.

use std::fs;
use std::thread;
use std::time::Duration;

use serde_json::Value;
use weir_testing::eventually;

use crate::bed::{Guest, Host, Underlay, mac, vif};

/// Two hosts, each with a guest of this budget that knows the other's location.
fn two_hosts(budget: &str) -> (Underlay, [Guest; 2]) {
    let mut underlay = Underlay::new(2);
    for (n, other) in [(1, 2), (2, 1)] {
        let budget = format!("moderation = \"backend\"\nlatency_budget = \"{budget}\"\n");
        let port = vif(&underlay.hosts[n - 1], "web0", "blue", Some(mac(n as u8))) + &budget;
        let config = Underlay::config(n, &[("blue", 100, &[other])], &port);
        underlay.hosts[n - 1].start_weir(&config);
    }
    let mut guests = [1, 2].map(|n| underlay.hosts[n - 1].guest("web0", mac(n as u8)));
    let [one, two] = &mut guests;
    two.say(mac(1), "where I am");
    one.must_hear();
    (underlay, guests)
}

/// Sends a frame each way.
fn talk([one, two]: &mut [Guest; 2]) {
    one.say(mac(2), "question");
    assert_eq!(two.must_hear(), (mac(1), "question".into()));
    two.say(mac(1), "answer");
    assert_eq!(one.must_hear(), (mac(2), "answer".into()));
}

/// The explanation of the host's guest.
fn explain(host: &Host) -> Value {
    serde_json::from_str(&host.run("weir explain web0 --json")).unwrap()
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

#[test]
fn root_holds_of_both_hosts_stay_in_a_budget_and_late_frames_count_at_both() {
    if !weir_testing::is_root("network namespaces") {
        return;
    }
    const BUDGET_NS: u64 = 2_000_000;
    let (underlay, mut guests) = two_hosts("2ms");
    let hosts = [&underlay.hosts[0], &underlay.hosts[1]];
    let [[to, from], [back_to, back_from]] = eventually("each host has a share", || {
        talk(&mut guests);
        let shown = hosts.map(|host| explain(host)["hosts"][0].clone());
        let [one, two] = shown.each_ref();
        let ways = [[one, two], [two, one]].map(|[sender, receiver]| {
            Some([sender["to_ns"].as_u64()?, receiver["from_ns"].as_u64()?])
        });
        ways[0]
            .zip(ways[1])
            .map(|(way, back)| [way, back])
            .filter(|it| it.iter().all(|it| it[0] > 0))
    });
    for (share_ns, counted_ns) in [(to, from), (back_to, back_from)] {
        assert!(share_ns <= counted_ns && counted_ns < BUDGET_NS, "{share_ns} of {counted_ns}");
    }
    // The policy holds for the whole remaining budget. Without a split that would be almost the whole budget.
    let mut last = Value::Null;
    let mut holds = |host: &&Host| {
        last = explain(host);
        let left_ns = BUDGET_NS - count(&last["hosts"][0]["from_ns"]);
        let held_ns = count(&last["queues"][0]["held_ns"]["p50"]);
        left_ns < BUDGET_NS * 3 / 4 && (left_ns / 2..left_ns + left_ns / 8).contains(&held_ns)
    };
    // Where other programs have the CPUs, holds end late for a while.
    let kept = (0..10).any(|_| {
        (0..200).for_each(|_| talk(&mut guests));
        hosts.iter().all(&mut holds)
    });
    assert!(kept, "{last:#}");

    // The budget is shorter than the time of any frame, so each frame is late on both hosts.
    for host in hosts {
        host.run("weir vif set web0 latency_budget=1us");
    }
    let before = hosts.map(explain);
    eventually("both hosts tell of breaches at both", || {
        talk(&mut guests);
        let more = |now: &Value, before: &Value, name: &str| {
            count(&now["hosts"][0][name]) > count(&before["hosts"][0][name])
        };
        let names = ["left_late_here", "left_late_there", "told_late_there"];
        let told = |(host, before): (&Host, &Value)| {
            let now = explain(host);
            names.iter().all(|name| more(&now, before, name))
                && count(&now["hosts"][0]["budget_there_ns"]) == 1_000
                && now["budget_breaches"] != before["budget_breaches"]
                && host.run("weir stats --json").contains("forwarded_late")
        };
        hosts.into_iter().zip(&before).all(told).then_some(())
    });
    let text = hosts[1].run("weir explain web0");
    assert!(text.contains("host 192.0.2.1: ") && text.contains("told too late: "), "{text}");
}

#[test]
fn root_two_hosts_without_traffic_leave_each_other_asleep() {
    if !weir_testing::is_root("network namespaces") {
        return;
    }
    let (underlay, mut guests) = two_hosts("250us");
    let hosts = [&underlay.hosts[0], &underlay.hosts[1]];
    eventually("each host has a share", || {
        talk(&mut guests);
        hosts.iter().all(|host| explain(host)["hosts"][0]["to_ns"].is_u64()).then_some(())
    });
    // The number of wake-ups of a host's worker and manager threads.
    let wakeups = |host: &Host| -> u64 {
        let tasks = format!("/proc/{}/task", host.weir.as_ref().unwrap().pid());
        let threads = fs::read_dir(tasks).unwrap().map(|it| it.unwrap().path());
        let of_weir = threads.filter(|it| {
            let name = fs::read_to_string(it.join("comm")).unwrap_or_default();
            name.starts_with("weir-worker") || name.starts_with("weir-manager")
        });
        let slept = of_weir.map(|it| {
            let status = fs::read_to_string(it.join("status")).unwrap();
            let line = status.lines().find_map(|it| it.strip_prefix("voluntary_ctxt_switches:"));
            line.unwrap().trim().parse::<u64>().unwrap()
        });
        slept.sum()
    };
    assert!(hosts.map(wakeups).iter().all(|it| *it > 0));
    eventually("nobody wakes up for three seconds", || {
        let before = hosts.map(wakeups);
        thread::sleep(Duration::from_secs(3));
        (hosts.map(wakeups) == before).then_some(())
    });
}
