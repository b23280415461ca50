//! Everything that others send or connect is received by code that closes it on a thread for which nothing else waits
//! (docs/design/front-ends.md#0051).

use std::{fs, path::Path};

/// Calls that receive a descriptor from another process.
const ARRIVES: [&str; 6] =
    [".accept(", "accept_with(", "accept4(", "recvmsg(", "recvmmsg(", ".incoming("];

/// Files with such a call, and the reason for which none of them can delay others by a close.
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

/// Files that take a descriptor out of its `Foreign`, or have a listener without one, each with the reason for which a
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
