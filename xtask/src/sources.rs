//! Rules that hold for each source. Everything that others send or connect is received by code that closes it on a
//! thread for which nothing else waits (docs/design/front-ends.md#0051). Each message that a guest, a front end, a peer
//! or a reader can cause again and again has a limit (`weir_engine::logs`).

use std::{fs, path::Path};

/// Calls that receive a descriptor from another process.
const ARRIVES: [&str; 6] =
    [".accept(", "accept_with(", "accept4(", "recvmsg(", "recvmmsg(", ".incoming("];

/// Files with such a call, and the reason why none of them can delay others by a close.
#[rustfmt::skip]
const MAY: [(&str, &str); 11] = [
    ("api/src/server.rs", "wraps what it accepts in `Foreign`"),
    ("foreign/src/lib.rs", "the place"),
    ("guestmem/src/datagrams.rs", "reads datagrams without room for descriptors, of sockets of weir's own"),
    ("keeper/src/serve.rs", "serves weir's own user and root only"),
    ("keeper/src/wire.rs", "hears weir, which is trusted with what it keeps"),
    ("port-vhost/src/manager.rs", "wraps what it accepts in `Foreign`"),
    ("switch/src/helper/wire.rs", "hears weir, or its helper"),
    ("switch/src/manager/agents.rs", "wraps what it accepts in `Foreign`"),
    ("vhost-user/src/frame.rs", "runs in a front end's own thread"),
    ("vif/src/vif.rs", "is the guest's side"),
    ("testing/src/slow.rs", "is what tests send"),
];

/// Files that take a descriptor out of its `Foreign`, or have a listener without one, each with the reason why a
/// close there keeps nobody waiting.
#[rustfmt::skip]
const BARE: [(&str, &str); 12] = [
    ("api/src/server.rs", "hands its own listener to the runtime, which ends with the process"),
    ("cli/src/run.rs", "hands its own listener to the switch, which wraps it"),
    ("cli/src/vhost_user_net.rs", "has a listener until the switch wraps it"),
    ("foreign/src/lib.rs", "the place"),
    ("port-vhost/src/front_end.rs", "runs in a front end's own thread"),
    ("port-vhost/src/keep.rs", "what an earlier weir has left goes to a session, whose own thread closes it"),
    ("switch/src/helper/mod.rs", "has a listener until `BoundListener` wraps it"),
    ("switch/src/helper/serve.rs", "gives a descriptor on in an answer"),
    ("switch/src/switch.rs", "has a listener until `BoundListener` wraps it"),
    ("switch/src/switch/keeping.rs", "takes up what an earlier weir has left, at the start"),
    ("switch/src/unix_socket.rs", "makes listeners, and wraps them"),
    ("agent/src/port.rs", "runs in a guest"),
];

/// True if a line takes a descriptor out of its `Foreign`, or has a listener without one.
fn is_bare(line: &str) -> bool {
    let wrapped = line.replace("Foreign<UnixListener>", "");
    let is_use = wrapped.trim_start().starts_with("use ");
    line.contains(".release()") || (!is_use && wrapped.contains("UnixListener"))
}

/// The code of each file below `dir`, without tests.
pub(crate) fn sources(dir: &Path, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(dir).expect("a directory").flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if path.is_dir()
            && name != "tests"
            && name != "double"
            && name != "testing"
            && name != "examples"
        {
            sources(&path, found);
        } else if name.ends_with(".rs") && name != "tests.rs" && name != "testing.rs" {
            let text = fs::read_to_string(&path).expect("a source");
            let tests = ["\nmod tests {", "\npub(crate) mod tests {"];
            let ends = tests.iter().filter_map(|begins| text.find(begins));
            let code = text[..ends.min().unwrap_or(text.len())].to_owned();
            found.push((path.display().to_string(), code));
        }
    }
}

fn has(code: &str, is_one: impl Fn(&str) -> bool) -> bool {
    code.lines().filter(|line| !line.trim_start().starts_with("//")).any(is_one)
}

#[test]
fn descriptors_of_others_arrive_in_known_places_only() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    let mut all = Vec::new();
    for entry in fs::read_dir(&crates).expect("the crates").flatten() {
        let src = entry.path().join("src");
        if src.is_dir() {
            sources(&src, &mut all);
        }
    }
    let has = |code: &str| has(code, |line| ARRIVES.iter().any(|call| line.contains(call)));
    let found: Vec<_> = all.iter().filter(|(_, code)| has(code)).map(|(path, _)| path).collect();
    for path in &found {
        let known = MAY.iter().any(|(file, _)| path.ends_with(file));
        assert!(known, "{path} accepts or receives: use `weir_foreign::Foreign`, and list it here");
    }
    for (file, why) in MAY {
        assert!(
            found.iter().any(|path| path.ends_with(file)),
            "{file} ({why}) has none: drop its line"
        );
    }
}

#[test]
fn descriptors_of_others_are_taken_out_of_their_type_in_known_places_only() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    let mut all = Vec::new();
    for entry in fs::read_dir(&crates).expect("the crates").flatten() {
        let manifest = fs::read_to_string(entry.path().join("Cargo.toml")).unwrap_or_default();
        // Other packages have no such type.
        if manifest.contains("weir-foreign") {
            sources(&entry.path().join("src"), &mut all);
        }
    }
    assert!(all.iter().filter(|(_, code)| has(code, is_bare)).count() >= 8);
    for (path, code) in all {
        let known = BARE.iter().any(|(file, _)| path.ends_with(file));
        assert!(
            known || !has(&code, is_bare),
            "{path} takes a descriptor out of `Foreign`, or has a listener without: list it here"
        );
    }
    assert!(is_bare("drop(it.release());") && is_bare("let it: Option<UnixListener> = None;"));
    assert!(!is_bare("    listener: Foreign<UnixListener>,"));
}

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
    ("engine/src/engine.rs", 2, "the start of a worker, and commands"),
    ("engine/src/threads/beat.rs", 2, "panics have a limit of their own"),
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
    ("switch/src/host.rs", 1, "a program that ends then"),
    ("switch/src/loops/mod.rs", 3, "each block of a port doubles the pause before the next"),
    ("switch/src/manager/placement/mod.rs", 4, "weir's own decisions"),
    ("switch/src/manager/thread.rs", 1, "the kernel's refusal of a descriptor"),
    ("switch/src/manager/uplink.rs", 8, "the network cards of the host"),
    ("switch/src/manager/uplink/found.rs", 1, "the start"),
    ("switch/src/nat.rs", 1, "the start"),
    ("switch/src/programs.rs", 1, "the start"),
    ("switch/src/sandbox.rs", 6, "the start"),
    ("switch/src/switch.rs", 6, "commands and the start; not interfaces on demand"),
    ("switch/src/switch/bond/mod.rs", 1, "the kernel's refusal, once until it is over"),
    ("switch/src/switch/evpn.rs", 7, "FRR on the host"),
    ("switch/src/switch/gateways.rs", 1, "the start"),
    ("switch/src/switch/keeping.rs", 1, "the kernel's refusal of a descriptor"),
    ("switch/src/switch/leaving.rs", 6, "upgrades and the end"),
    ("switch/src/switch/noting.rs", 2, "the kernel's refusal, and the start"),
    ("switch/src/switch/on_demand.rs", 1, "the start"),
    ("switch/src/switch/plugging.rs", 3, "the start and reloads"),
    ("switch/src/switch/reload.rs", 10, "reloads"),
    ("switch/src/switch/settings.rs", 2, "the start"),
    ("switch/src/switch/starting.rs", 2, "the start"),
    ("switch/src/switch/tap_mac.rs", 1, "the start"),
    ("switch/src/switch/uplink_device.rs", 3, "the start"),
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
