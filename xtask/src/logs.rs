//! Each message that a guest, a front end, a peer or a reader can cause again and again has a limit
//! (`weir_engine::logs`).

use std::{fs, path::Path};

use crate::foreign::sources;

/// Calls that write a line with the default `WEIR_LOG`.
const LINES: [&str; 3] = ["tracing::error!(", "tracing::warn!(", "tracing::info!("];

/// Packages that run in no switch.
const NO_SWITCH: [&str; 6] = ["agent", "bench", "doctor", "lab", "testing", "workbench"];

/// Files with messages that have no limit: their number, and who causes them, or why they are few.
#[rustfmt::skip]
const UNLIMITED: [(&str, usize, &str); 43] = [
    ("api/src/serving.rs", 2, "the start"),
    ("cli/src/ending.rs", 2, "signals, and the end"),
    ("cli/src/run.rs", 11, "the start and the end"),
    ("engine/src/capture/mirror.rs", 1, "the end of a mirror"),
    ("engine/src/engine.rs", 1, "the start of a worker"),
    ("engine/src/threads/supervise.rs", 2, "panics have a limit of their own"),
    ("engine/src/working/dispatcher.rs", 1, "errors of the kernel"),
    ("engine/src/working/worker.rs", 2, "panics have a limit of their own"),
    ("foreign/src/party.rs", 1, "has a limit of its own for each party"),
    ("keeper/src/client.rs", 6, "the keeper, which is weir's own"),
    ("port-gateway/src/service.rs", 1, "errors of the file of leases"),
    ("port-tap/src/uplink.rs", 1, "the end of an uplink's port"),
    ("port-vhost/src/front_end.rs", 1, "once for each session that an earlier weir has left"),
    ("port-vhost/src/keep.rs", 2, "the start"),
    ("port-vhost/src/manager.rs", 2, "the kernel's refusal of a watch, and the end"),
    ("port-xen/src/manager.rs", 2, "the xenstore service of the host, with a pause"),
    ("switch/src/helper/mod.rs", 1, "once"),
    ("switch/src/loops/mod.rs", 3, "each block of a port doubles the pause before the next"),
    ("switch/src/manager/placement/mod.rs", 4, "weir's own decisions"),
    ("switch/src/manager/thread.rs", 1, "the kernel's refusal of a descriptor"),
    ("switch/src/manager/uplink.rs", 8, "the network cards of the host"),
    ("switch/src/manager/uplink/found.rs", 1, "the start"),
    ("switch/src/nat.rs", 1, "the start"),
    ("switch/src/programs.rs", 1, "the start"),
    ("switch/src/sandbox.rs", 6, "the start"),
    ("switch/src/switch.rs", 4, "commands; not interfaces on demand"),
    ("switch/src/switch/bond/mod.rs", 1, "the kernel's refusal, once until it is over"),
    ("switch/src/switch/evpn.rs", 7, "FRR on the host"),
    ("switch/src/switch/gateways.rs", 1, "the start"),
    ("switch/src/switch/keeping.rs", 1, "the kernel's refusal of a descriptor"),
    ("switch/src/switch/leaving.rs", 6, "upgrades and the end"),
    ("switch/src/switch/noting.rs", 2, "the kernel's refusal, and the start"),
    ("switch/src/switch/on_demand.rs", 1, "the start"),
    ("switch/src/switch/overlay.rs", 1, "the start"),
    ("switch/src/switch/plugging.rs", 3, "the start and reloads"),
    ("switch/src/switch/reload.rs", 10, "reloads"),
    ("switch/src/switch/settings.rs", 2, "the start"),
    ("switch/src/switch/starting.rs", 1, "the start"),
    ("switch/src/switch/tap_mac.rs", 1, "the start"),
    ("switch/src/switch/uplink_device.rs", 1, "the start"),
    ("switch/src/switch/xen.rs", 3, "the start, and the toolstack, which adds and removes interfaces"),
    ("switch/src/watchdog.rs", 2, "each needs a thread that stands still for seconds"),
    ("switch/src/watchdog/service.rs", 1, "the start"),
];

/// Messages with a limit say how many were left out.
fn unlimited(code: &str) -> usize {
    let statements = LINES.iter().flat_map(|call| code.split(call).skip(1));
    statements
        .filter(|rest| !rest.split(");").next().unwrap_or_default().contains("unsaid"))
        .count()
}

#[test]
fn each_message_that_others_can_cause_has_a_limit() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    let mut all = Vec::new();
    for entry in fs::read_dir(&crates).expect("the crates").flatten() {
        let (src, name) = (entry.path().join("src"), entry.file_name());
        if src.is_dir() && !NO_SWITCH.iter().any(|other| name == *other) {
            sources(&src, &mut all);
        }
    }
    let mut wrong = Vec::new();
    for (path, code) in &all {
        let found = unlimited(code);
        let known = UNLIMITED.iter().find(|(file, ..)| path.ends_with(&format!("crates/{file}")));
        let listed = known.map_or(0, |(_, number, _)| *number);
        if found != listed {
            wrong.push(format!("{path}: {found} messages without a limit, and {listed} here"));
        }
    }
    for (file, ..) in UNLIMITED {
        if !all.iter().any(|(path, _)| path.ends_with(file)) {
            wrong.push(format!("{file} is not there"));
        }
    }
    assert!(
        wrong.is_empty(),
        "use `Logs::say`, or say here who causes them:\n{}",
        wrong.join("\n")
    );
    assert_eq!(unlimited("tracing::warn!(a, \"b\"); tracing::info!(unsaid, \"c\");"), 1);
}
