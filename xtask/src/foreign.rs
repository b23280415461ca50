//! Everything that others send or connect is received by code that closes it on a thread for which nothing else waits
//! (docs/design/front-ends.md#0051).

use std::{fs, path::Path};

/// Calls that receive a descriptor from another process.
const ARRIVES: [&str; 4] = [".accept(", "accept_with(", "recvmsg(", ".incoming("];

/// Files with such a call, and the reason for which none of them can delay others by a close.
#[rustfmt::skip]
const MAY: [(&str, &str); 10] = [
    ("api/src/server.rs", "wraps what it accepts in `Foreign`"),
    ("foreign/src/lib.rs", "the place"),
    ("keeper/src/serve.rs", "serves weir's own user and root only"),
    ("keeper/src/wire.rs", "hears weir, which is trusted with what it keeps"),
    ("port-vhost/src/manager.rs", "wraps what it accepts in `Foreign`"),
    ("switch/src/helper/wire.rs", "hears weir, or its helper"),
    ("switch/src/manager/agents.rs", "wraps what it accepts in `Foreign`"),
    ("vhost-user/src/frame.rs", "runs in a front end's own thread"),
    ("vif/src/vif.rs", "is the guest's side"),
    ("testing/src/slow.rs", "is what tests send"),
];

fn sources(dir: &Path, found: &mut Vec<(String, String)>) {
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
            let code =
                text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default().to_owned();
            found.push((path.display().to_string(), code));
        }
    }
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
    let has = |code: &str| {
        let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
        lines.into_iter().any(|line| ARRIVES.iter().any(|call| line.contains(call)))
    };
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
