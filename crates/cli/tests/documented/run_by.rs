//! The test that runs each line to type: it is [`super::documented_commands_for_a_running_switch_work_twice`], or the
//! test that a comment before the line's block names. A line that no test runs is listed here with the reason.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::{Typed, blocks, documents, root};

/// The language of blocks with output and explained formats, which nobody types.
const SHOWN: &str = "text";
/// The language of weir's configurations, each of which is checked.
const TOML: &str = "toml";

/// The beginnings of lines that no test runs, by document, with reasons.
const NOT_RUN: &[(&str, &str, &str)] = &[
    ("README.md", "make demo", "`make fresh` runs it on a new Debian"),
    ("docs/guide/agent.md", "strip ", "it makes a program smaller"),
    ("README.md", "make test", "it is what runs all others"),
    ("README.md", "sudo weir run", "the lines of keeper.md start the switch of this test"),
    (
        "docs/guide/benchmarks.md",
        "cargo run --release -p xtask -- bench",
        "`make bench` is all of it",
    ),
    (
        "docs/guide/configuration.md",
        "ssh -L",
        "it takes another host; the page's test opens the socket",
    ),
    (
        "docs/guide/migration.md",
        "qemu-system-x86_64 ...",
        "guest_moves_to_another_weir_and_back does it",
    ),
    ("docs/guide/kubevirt.md", "", "the domain is virt-launcher's, in a cluster"),
    (
        "docs/guide/libvirt.md",
        "",
        "it takes a libvirtd; cli/tests/libvirt.rs installs this hook and does as the page says",
    ),
    (
        "docs/guide/proxmox.md",
        "",
        "it takes Proxmox VE; cli/tests/plugged calls this hook as Proxmox VE does",
    ),
    ("docs/guide/migration.md", "migrate -d", "the same, by QEMU's other monitor"),
    (
        "docs/guide/without-root.md",
        "",
        "it takes Go and a user's systemd; cli/tests/runs/stream.rs runs gvproxy with these arguments",
    ),
    ("docs/guide/xen.md", "", "they are for dom0; tests/system/src/xen does as they do"),
    ("docs/install.md", "apt-get install -y make", "the job `package` of the workflow does it"),
    ("docs/install.md", "make deb", "tests/deb/run.sh tries what it makes"),
    ("docs/guide/first-vm.md", "cloud-hypervisor ", "it takes KVM; what weir prints for it is run"),
];

/// Sources that run blocks without naming the documents: they look for the comment in all documents.
const READS_ALL: &[&str] = &["tests/deb/steps.sh", "xtask/src/guides.rs", "xtask/src/examples.rs"];

fn is_there(by: &str, document: &str) -> bool {
    let name = Path::new(document).file_name().unwrap().to_str().unwrap();
    let source = fs::read_to_string(root().join(by));
    source.is_ok_and(|source| READS_ALL.contains(&by) || source.contains(name))
}

#[test]
fn each_line_that_a_reader_types_is_run_by_a_test() {
    let documents = documents();
    let blocks: Vec<_> = documents
        .iter()
        .flat_map(|(path, text)| blocks(text).into_iter().map(move |block| (path.as_str(), block)))
        .collect();
    let marked = blocks.iter().filter(|(_, block)| block.run_by.is_some());
    let run_elsewhere: BTreeSet<_> =
        marked.flat_map(|(_, block)| block.commands()).map(|(_, line)| line).collect();
    let (mut wrong, mut used) = (Vec::new(), BTreeSet::new());
    for (path, block) in &blocks {
        let place = |number: usize| format!("{path}:{number}");
        if let Some(by) = block.run_by {
            if !is_there(by, path) {
                wrong.push(format!("{}: {by} does not read it", place(block.first)));
            }
            continue;
        }
        let commands = block.commands();
        let not_run = |line: &str| {
            let mut reasons = NOT_RUN
                .iter()
                .filter(|(document, begin, _)| document == path && line.starts_with(begin));
            reasons.next()
        };
        if commands.is_empty() && ![SHOWN, TOML].contains(&block.language) {
            match not_run("") {
                Some(reason) => _ = used.insert(reason),
                None => wrong.push(format!(
                    "{}: a block of `{}` without a test: {:?}",
                    place(block.first),
                    block.language,
                    block.lines.first()
                )),
            }
        }
        for (number, line) in commands {
            let typed = Typed { place: place(number), line, in_block: true, elsewhere: false };
            if let Some(reason) = not_run(&typed.line) {
                used.insert(reason);
            } else if !typed.runs_here() && !run_elsewhere.contains(&typed.line) {
                wrong.push(format!("{}: no test runs it: {}", typed.place, typed.line));
            }
        }
    }
    let stale = NOT_RUN.iter().filter(|reason| !used.contains(reason));
    wrong.extend(stale.map(|(document, line, _)| format!("{document} has no line `{line}`")));
    assert!(wrong.is_empty(), "{wrong:#?}");
}
