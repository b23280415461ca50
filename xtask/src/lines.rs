//! Numbers of the repository: lines of its own code without tests, files in git, and lines in git that programs
//! have written.
//!
//! All `*.rs` of a crate's `src` are counted, without tests: `tests.rs`, files below a directory `tests` or
//! `testing`, `testing.rs`, and modules with `#[cfg(test)]`. The crate `testing`, examples, xtask, tests/, benches and
//! fuzz are not counted.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use weir_bed::{
    error::{Error, Result},
    process::run_in,
    workspace::Workspace,
};

/// Most lines of code, and of all of it in one crate in percent; most lines of code of the command `weir`.
const CODE_MAX: usize = 119_650;
const SHARE_MAX_PERCENT: usize = 16;
const COMMAND_MAX: usize = 5_480;
/// The crate of the command.
const COMMAND: &str = "cli";

/// Most files in git, and most lines of them that programs have written.
const FILES_MAX: usize = 1_300;
const WRITTEN_MAX: usize = 2_000;
/// Documents that programs write, and the folder whose JSON they write.
const WRITTEN: [&str; 8] = [
    "docs/lab.md",
    "docs/compatibility.md",
    "docs/front.svg",
    "docs/openapi.json",
    "docs/figures.md",
    "docs/bench.svg",
    "docs/instructions.toml",
    "examples/python/weir.py",
];
const WRITTEN_BELOW: &str = "docs/figures/";

/// Lines without tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Lines {
    all: usize,
    /// Lines that are neither blank nor a comment.
    code: usize,
}

impl std::ops::AddAssign for Lines {
    fn add_assign(&mut self, other: Self) {
        self.all += other.all;
        self.code += other.code;
    }
}

/// A table of the crates, largest first, with the violated bounds below it.
pub fn table(workspace: &Workspace) -> Result<String> {
    let crates = count(&workspace.root.join("crates"))?;
    let total = total(&crates);
    let mut rows: Vec<_> = crates.iter().collect();
    rows.sort_by_key(|(_, lines)| std::cmp::Reverse(lines.code));
    let mut text = format!("{:<14}{:>8}{:>8}{:>8}\n", "crate", "all", "code", "share");
    let share = |lines: &Lines| 100.0 * lines.code as f64 / total.code.max(1) as f64;
    for (name, lines) in rows.into_iter().chain([(&String::from("together"), &total)]) {
        let share = share(lines);
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:<14}{:>8}{:>8}{share:>7.1}%", lines.all, lines.code);
    }
    let tree = Tree::count(&workspace.root)?;
    let Tree { files, written } = tree;
    let _ = writeln!(text, "git has {files} files; programs have written {written} lines of them");
    text.extend(broken(&crates).into_iter().chain(tree.broken()).map(|rule| rule + "\n"));
    Ok(text)
}

/// The number of files in git.
#[derive(Clone, Copy, Debug)]
struct Tree {
    files: usize,
    /// The lines that programs have written.
    written: usize,
}

impl Tree {
    /// Counts a new file before it is committed, too.
    fn count(root: &Path) -> Result<Self> {
        let argv = ["git", "ls-files", "--cached", "--others", "--exclude-standard"];
        let list = run_in(&argv, root, &[])?;
        let mut tree = Self { files: 0, written: 0 };
        for name in list.lines() {
            let path = root.join(name);
            // Git names files that were removed and not committed yet.
            if !path.exists() {
                continue;
            }
            tree.files += 1;
            if is_written(name) {
                let text = fs::read_to_string(&path).map_err(Error::io("read", &path))?;
                tree.written += text.lines().count();
            }
        }
        Ok(tree)
    }

    fn broken(self) -> Vec<String> {
        let Self { files, written } = self;
        let mut broken = Vec::new();
        if files > FILES_MAX {
            broken.push(format!("{files} files in git; at most {FILES_MAX}"));
        }
        if written > WRITTEN_MAX {
            broken
                .push(format!("{written} lines in git that programs wrote; at most {WRITTEN_MAX}"));
        }
        broken
    }
}

fn is_written(name: &str) -> bool {
    WRITTEN.contains(&name) || name.starts_with(WRITTEN_BELOW) && name.ends_with(".json")
}

/// The violated bounds.
fn broken(crates: &BTreeMap<String, Lines>) -> Vec<String> {
    let total = total(crates).code;
    let mut broken = Vec::new();
    if total > CODE_MAX {
        broken.push(format!("{total} lines of code; at most {CODE_MAX}"));
    }
    for (name, Lines { code, .. }) in crates {
        if 100 * code > SHARE_MAX_PERCENT * total {
            broken.push(format!("{name}: more than {SHARE_MAX_PERCENT} % of the lines of code"));
        }
        if name == COMMAND && *code > COMMAND_MAX {
            broken.push(format!("{name}: {code} lines of code; at most {COMMAND_MAX}"));
        }
    }
    broken
}

fn total(crates: &BTreeMap<String, Lines>) -> Lines {
    let mut total = Lines::default();
    crates.values().for_each(|lines| total += *lines);
    total
}

/// The lines of each crate below `dir`.
fn count(dir: &Path) -> Result<BTreeMap<String, Lines>> {
    let mut crates = BTreeMap::new();
    for path in entries(dir)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let src = path.join("src");
        if src.is_dir() && name != "testing" {
            crates.insert(name, below(&src)?);
        }
    }
    Ok(crates)
}

fn below(dir: &Path) -> Result<Lines> {
    let mut lines = Lines::default();
    for path in sources(dir)? {
        lines += of(&fs::read_to_string(&path).map_err(Error::io("read", &path))?);
    }
    Ok(lines)
}

/// The sources below `dir`, without tests.
pub fn sources(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in entries(dir)? {
        let stem = path.file_stem().unwrap_or_default();
        if stem == "tests" || stem == "testing" {
            continue;
        }
        if path.is_dir() {
            files.extend(sources(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(files)
}

fn entries(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(dir).map_err(Error::io("read", dir))?;
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}

fn of(source: &str) -> Lines {
    let mut lines = Lines::default();
    for line in shipped(source) {
        let line = line.trim();
        lines.all += 1;
        lines.code += usize::from(!line.is_empty() && !line.starts_with("//"));
    }
    lines
}

/// The lines of a source, without tests. A module of tests ends with a brace in the first column, as rustfmt writes it.
pub fn shipped(source: &str) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut rest = source.lines();
    while let Some(line) = rest.next() {
        if line == "#[cfg(test)]" {
            let mut item = rest.by_ref().skip_while(|line| line.starts_with("#["));
            let first = item.next().unwrap_or_default();
            if first.trim_start_matches("pub(super) ").starts_with("mod ") {
                if first.ends_with('{') {
                    item.find(|line| *line == "}");
                }
            } else {
                lines.extend([line, first]);
            }
            continue;
        }
        lines.push(line);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_crate_and_not_all_of_them_are_larger_than_they_may_be() {
        let crates = count(&Workspace::find().unwrap().root.join("crates")).unwrap();
        assert!(crates.len() > 25 && crates[COMMAND].code > 1_000, "{crates:?}");
        assert_eq!(broken(&crates), [""; 0]);
    }

    #[test]
    fn git_has_no_more_files_and_generated_lines_than_it_may() {
        let root = Workspace::find().unwrap().root;
        if !root.join(".git").exists() {
            return weir_testing::skipped("these are no files of git");
        }
        for path in WRITTEN.map(|path| root.join(path)) {
            assert!(path.exists(), "{}", path.display());
        }
        let tree = Tree::count(&root).unwrap();
        assert!(tree.files > 1_000 && tree.written > 1_000, "{tree:?}");
        assert_eq!(tree.broken(), [""; 0]);
    }

    #[test]
    fn each_bound_is_found_broken() {
        let tree = |files, written| Tree { files, written }.broken();
        assert_eq!(tree(FILES_MAX, WRITTEN_MAX), [""; 0]);
        let files = format!("files in git; at most {FILES_MAX}");
        assert!(tree(FILES_MAX + 1, 0)[0].ends_with(&files));
        let written = format!("{} lines in git that programs wrote", WRITTEN_MAX + 1);
        assert!(tree(0, WRITTEN_MAX + 1)[0].starts_with(&written));
        assert!(is_written("docs/figures/epyc.json") && !is_written("docs/figures/page.md.in"));
        let of = |code: [usize; 2]| {
            let lines = code.map(|code| Lines { all: code, code });
            let mut crates = BTreeMap::from([(COMMAND.to_owned(), lines[0])]);
            crates.extend((0..10).map(|nth| (format!("crate{nth}"), lines[1])));
            broken(&crates)
        };
        assert_eq!(of([5_000, 7_000]), [""; 0]);
        let larger = of([COMMAND_MAX + 1, 7_000]);
        assert!(larger[0].starts_with(&format!("cli: {} lines", COMMAND_MAX + 1)));
        let share = format!("cli: more than {SHARE_MAX_PERCENT} %");
        assert!(of([2_000, 1_000])[0].starts_with(&share));
        let rest = CODE_MAX / 10 - COMMAND_MAX / 10 + 1;
        assert!(of([COMMAND_MAX, rest])[0].contains(&format!("at most {CODE_MAX}")));
    }

    #[test]
    fn tests_comments_and_blank_lines_are_no_code() {
        let source = "//! A file.\n\nfn f() {\n    // Why.\n    g();\n}\n\n#[cfg(test)]\nmod tests;\n\
            #[cfg(test)]\n#[allow(x)]\nmod more {\n    fn t() {}\n}\nfn h() {}\n";
        assert_eq!(of(source), Lines { all: 8, code: 4 });
        assert_eq!(of("#[cfg(test)]\nfn f() {}\n"), Lines { all: 2, code: 2 });
    }
}
