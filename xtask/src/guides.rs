//! Lines of the guides that put load on this machine, from the lab and the benchmark, run as a reader would type
//! them.
//!
//! Blocks whose comment names this file run in a directory with the files that the guide shows.
//! `crates/cli/tests/documented` and `tests/deb` run the guides' other lines. The former also checks that no line is
//! left out.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use weir_bed::{
    error::{Error, Result, Tally},
    process::run_in,
    workspace::{Programs, Workspace},
};
use weir_testing::document::{Block, blocks};

use crate::{
    examples,
    steps::{Selection, checked},
};

/// The comment of the blocks that run here.
const HERE: &str = "xtask/src/guides.rs";

/// The first words of lines that take more than some seconds. `make guides` runs them, too.
const LONG: &[&str] = &[
    "weir bench --reorder",
    "weir lab ablation",
    "weir lab report",
    "weir lab run --all",
    "weir lab run dong-fig11 --sensitivity",
    "weir lab run reality --measured",
    "weir lab soak --seconds",
    "weir lab validate",
];

/// A command that runs until Ctrl-C.
const ENDLESS: &str = "weir lab soak";
const CTRL_C_AFTER: Duration = Duration::from_secs(3);

/// Commands that may also end with status 1, because they judge this machine, which may have other load.
const JUDGE: &[&str] = &["weir lab validate", "weir lab plan host.toml --profile"];

/// Text of a measurement that other load has disturbed, and the number of attempts.
const BUSY: &str = "machine may be busy";
const ATTEMPTS: u32 = 5;

/// Files that lines use, and the text by which the guide's block of each file is found.
const FILES: &[(&str, &[&str])] =
    &[("mine.toml", &["[[sweep]]", "[[measured]]"]), ("host.toml", &["[group.web]"])];

/// Runs all lines, or only the short ones without `long`.
pub fn check(workspace: &Workspace, selection: &Selection, long: bool) -> Result<Tally> {
    let weir = match &selection.weir {
        Some(weir) => weir.clone(),
        None => Programs::build(workspace)?.weir(),
    };
    let path = std::env::var("PATH").unwrap_or_default();
    let beside = weir.parent().unwrap_or(Path::new("/"));
    let path = format!("{}:{path}", beside.display());
    let dir = workspace.target("guides")?;
    let (mut tally, mut known) = (Tally::default(), Vec::new());
    if long {
        tally += examples::go_client(workspace, &weir)?;
    }
    for document in documents(workspace)? {
        let here = |block: &Block<'_>| block.run_by == Some(HERE);
        let blocks: Vec<_> = blocks(&document).into_iter().filter(here).collect();
        write_files(&blocks, &dir)?;
        let commands = blocks.iter().flat_map(Block::commands).map(|(_, line)| line);
        for line in commands.filter(|line| long || !is_long(line)) {
            let typed = typed(&line);
            if known.contains(&typed) {
                continue;
            }
            let run = || run_in(&["bash", "-c", &typed], &dir, &[("PATH", path.as_ref())]);
            let was_busy =
                |ran: &Result<_>| ran.as_ref().is_err_and(|error| error.to_string().contains(BUSY));
            let mut ran = run();
            for _ in 1..ATTEMPTS {
                if was_busy(&ran) {
                    ran = run();
                }
            }
            if let Err(error) = &ran {
                println!("{error}");
            }
            tally += checked(&typed, ran.is_ok());
            known.push(typed);
        }
    }
    Ok(tally)
}

fn is_long(line: &str) -> bool {
    LONG.iter().any(|begin| line.starts_with(begin))
}

/// The line without its comment, with an end by Ctrl-C if it would not end.
fn typed(line: &str) -> String {
    let line = line.split_once("  #").map_or(line, |(line, _)| line).trim_end();
    if line == ENDLESS {
        format!("timeout --preserve-status --signal=INT {} {line}", CTRL_C_AFTER.as_secs())
    } else if JUDGE.iter().any(|begin| line.starts_with(begin)) {
        format!("{line} || [ $? = 1 ]")
    } else {
        line.to_owned()
    }
}

fn documents(workspace: &Workspace) -> Result<Vec<String>> {
    let guide = workspace.root.join("docs/guide");
    let entries = fs::read_dir(&guide).map_err(Error::io("list", &guide))?;
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let read = |path: &PathBuf| fs::read_to_string(path).map_err(Error::io("read", path));
    paths.iter().map(read).collect()
}

/// Writes the files that the blocks show. A file may consist of several blocks.
fn write_files(blocks: &[Block<'_>], dir: &Path) -> Result<()> {
    for (name, parts) in FILES {
        let has = |block: &&Block<'_>, part| block.lines.iter().any(|line| line.starts_with(part));
        let shown = parts.iter().filter_map(|part| blocks.iter().find(|block| has(block, *part)));
        let text: Vec<_> = shown.map(|block| block.lines.join("\n")).collect();
        if !text.is_empty() {
            let path = dir.join(name);
            fs::write(&path, text.join("\n\n") + "\n").map_err(Error::io("write", &path))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_take_long_are_some_of_the_guides() {
        let documents = documents(&Workspace::find().unwrap()).unwrap();
        let blocks: Vec<_> = documents.iter().flat_map(|document| blocks(document)).collect();
        let here = blocks.iter().filter(|block| block.run_by == Some(HERE));
        let lines: Vec<_> = here.flat_map(Block::commands).map(|(_, line)| line).collect();
        assert!(lines.iter().filter(|line| !is_long(line)).count() > 8, "{lines:#?}");
        for begin in LONG.iter().chain(JUDGE).chain(&[ENDLESS]) {
            assert!(lines.iter().any(|line| line.starts_with(begin)), "{begin}");
        }
    }

    #[test]
    fn a_line_is_typed_without_its_comment_and_ends() {
        assert_eq!(typed("weir lab list          # the experiments"), "weir lab list");
        assert!(typed("weir lab soak   # for ever").starts_with("timeout"));
        assert_eq!(typed("weir lab soak --seed 3"), "weir lab soak --seed 3");
    }
}
