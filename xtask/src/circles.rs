//! Circles of files: files of one crate that need one another, so that a reader of one has to read them all.
//!
//! A file needs each file that defines a name of its paths. A path is followed through `use` in the files on its way:
//! a file that only hands a name on is not needed.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use weir_bed::error::{Error, Result};

use crate::lines::{shipped, sources};

/// Most files in a circle.
const CIRCLE_MAX: usize = 3;

/// The modules of a crate, by their paths: `a::b` is `["a", "b"]`, and the crate's root is `[]`.
#[derive(Debug, Default)]
struct Modules(BTreeMap<Vec<String>, Module>);

#[derive(Debug, Default)]
struct Module {
    file: String,
    /// The names that `use` brings in, each with its path.
    names: BTreeMap<String, Vec<String>>,
    /// Paths of code, and of `use` that is not `pub`.
    paths: BTreeSet<Vec<String>>,
}

/// The modules that each module needs.
type Needs<'m> = BTreeMap<&'m [String], BTreeSet<Vec<String>>>;

impl Modules {
    /// The modules below `src`.
    fn read(src: &Path) -> Result<Self> {
        let mut modules = Self::default();
        for path in sources(src)? {
            let text = fs::read_to_string(&path).map_err(Error::io("read", &path))?;
            let file = path.strip_prefix(src).unwrap_or(&path).to_string_lossy().into_owned();
            modules.add(file, &text);
        }
        Ok(modules)
    }

    fn add(&mut self, file: String, text: &str) {
        let mut at: Vec<_> = file.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
        if at.last().is_some_and(|last| ["lib", "main", "mod"].contains(&last.as_str())) {
            at.pop();
        }
        let mut module = Module { file, ..Module::default() };
        for statement in statements(text) {
            let Some((head, tree)) = as_use(&statement) else {
                module.paths.extend(inline_paths(&statement));
                continue;
            };
            for (name, path) in leaves(tree) {
                if !head.starts_with("pub") {
                    module.paths.insert(path.clone());
                }
                module.names.insert(name, path);
            }
        }
        self.0.insert(at, module);
    }

    /// The module that defines what `path` names in module `from`; `None` for another crate's.
    fn definer(&self, from: &[String], path: &[String], follow: usize) -> Option<Vec<String>> {
        let mut at = from.to_vec();
        let mut rest = path;
        let mut is_own = false;
        while let Some((first, others)) = rest.split_first() {
            match first.as_str() {
                "crate" => at.clear(),
                "self" => (),
                "super" => _ = at.pop(),
                _ => break,
            }
            (rest, is_own) = (others, true);
        }
        while let Some((first, others)) = rest.split_first() {
            let mut child = at.clone();
            child.push(first.clone());
            if !self.0.contains_key(&child) {
                break;
            }
            (at, rest, is_own) = (child, others, true);
        }
        if !is_own {
            return None;
        }
        let onward = rest.split_first().and_then(|(first, others)| {
            let onward = self.0.get(&at)?.names.get(first)?;
            Some(onward.iter().chain(others).cloned().collect::<Vec<_>>())
        });
        match onward {
            Some(onward) if at != from && follow > 0 => self.definer(&at, &onward, follow - 1),
            _ => self.0.contains_key(&at).then_some(at),
        }
    }

    /// The modules that each module needs.
    fn needs(&self) -> Needs<'_> {
        let needed = self.0.iter().map(|(at, module)| {
            let definers = module.paths.iter().filter_map(|path| self.definer(at, path, 8));
            (at.as_slice(), definers.filter(|definer| definer != at).collect())
        });
        needed.collect()
    }

    /// The files of the largest circle.
    fn largest_circle(&self) -> Vec<&str> {
        let circle = largest_circle(&self.needs());
        circle.iter().map(|at| self.0[at].file.as_str()).collect()
    }

    /// The folders and files beside the crate's root that are in a circle.
    fn rooms_in_a_circle(&self) -> Vec<String> {
        let mut rooms: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for (at, needed) in self.needs().into_iter().filter(|(at, _)| !at.is_empty()) {
            let others = needed.into_iter().filter(|to| !to.is_empty() && to[0] != at[0]);
            rooms
                .entry(&at[..1])
                .or_default()
                .extend(others.map(|to| to.into_iter().take(1).collect()));
        }
        largest_circle(&rooms).concat()
    }
}

/// The largest circle of `needs`.
fn largest_circle(needs: &Needs<'_>) -> Vec<Vec<String>> {
    let reached: BTreeMap<_, _> = needs.keys().map(|at| (*at, reached(needs, at))).collect();
    let circles = reached.iter().map(|(at, from_here)| {
        let back = |there: &&Vec<String>| reached[there.as_slice()].contains(*at);
        from_here.iter().filter(back).cloned().collect()
    });
    circles.max_by_key(Vec::len).unwrap_or_default()
}

/// The modules to which paths lead from `at`, directly or by way of other modules.
fn reached(
    needs: &BTreeMap<&[String], BTreeSet<Vec<String>>>,
    at: &[String],
) -> BTreeSet<Vec<String>> {
    let mut reached = BTreeSet::new();
    let mut next = vec![at.to_vec()];
    while let Some(at) = next.pop() {
        for needed in &needs[at.as_slice()] {
            if reached.insert(needed.clone()) {
                next.push(needed.clone());
            }
        }
    }
    reached
}

/// A source's statements without tests and comments, each `use` as a whole.
fn statements(text: &str) -> Vec<String> {
    let code = shipped(text).into_iter().map(|line| line.split("//").next().unwrap_or_default());
    let code = code.collect::<Vec<_>>().join("\n");
    let mut statements: Vec<String> = Vec::new();
    for part in code.split_inclusive([';', '{', '}']) {
        match statements.last_mut() {
            Some(last) if as_use(last).is_some() && !last.ends_with(';') => last.push_str(part),
            _ => statements.push(part.to_owned()),
        }
    }
    statements
}

/// The words before `use`, and its tree; `None` for another statement.
fn as_use(statement: &str) -> Option<(&str, &str)> {
    let mut lines = statement.trim_start();
    while let Some((_, behind)) = lines.strip_prefix("#[").and_then(|rest| rest.split_once('\n')) {
        lines = behind.trim_start();
    }
    let at = if lines.starts_with("use ") { 0 } else { lines.find(" use ")? + 1 };
    let (head, tree) = lines.split_at(at);
    let is_head =
        head.is_empty() || head.starts_with("pub") && head.split_whitespace().count() == 1;
    is_head.then(|| (head, tree["use ".len()..].trim_end_matches(';')))
}

/// The names that the tree of a `use` brings in, each with its path.
fn leaves(tree: &str) -> Vec<(String, Vec<String>)> {
    let tree = tree.trim();
    let Some((stem, branches)) = tree.split_once('{') else {
        let (path, name) = tree.split_once(" as ").unwrap_or((tree, ""));
        let mut path: Vec<_> = path.split("::").map(|part| part.trim().to_owned()).collect();
        if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
            path.pop();
        }
        let last = path.last().cloned().unwrap_or_default();
        return vec![(if name.is_empty() { last } else { name.trim().to_owned() }, path)];
    };
    let branches = branches.trim_end().strip_suffix('}').unwrap_or(branches);
    let mut depth = 0;
    let apart = branches.split(|c| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    });
    let apart = apart.filter(|branch| !branch.trim().is_empty());
    apart.flat_map(|branch| leaves(&format!("{}{}", stem.trim(), branch.trim()))).collect()
}

/// The paths in code that is no `use`. The path of `pub(in path)` only says who sees a name.
fn inline_paths(code: &str) -> Vec<Vec<String>> {
    let after = |seen: &str| seen.split_once(')').map_or("", |(_, after)| after).to_owned();
    let (before, seen) = code.split_once("pub(in ").unwrap_or((code, ""));
    let code = before.to_owned() + &seen.split("pub(in ").map(after).collect::<String>();
    let words = code.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
    let paths = words.filter(|word| word.contains("::"));
    let parts = |path: &str| path.split("::").map(str::to_owned).collect::<Vec<_>>();
    paths.map(parts).filter(|path| !path[0].is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use weir_bed::workspace::Workspace;

    use super::*;

    fn circle(files: &[(&str, &str)]) -> Vec<String> {
        let mut modules = Modules::default();
        files.iter().for_each(|(file, text)| modules.add((*file).to_owned(), text));
        modules.largest_circle().into_iter().map(str::to_owned).collect()
    }

    #[test]
    fn no_crate_has_a_larger_circle_of_files_than_it_may() {
        let crates = Workspace::find().unwrap().root.join("crates");
        let mut read = 0;
        let mut larger = Vec::new();
        for path in fs::read_dir(crates).unwrap().flatten().map(|entry| entry.path()) {
            let Ok(modules) = Modules::read(&path.join("src")) else { continue };
            read += modules.0.len();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let circle = modules.largest_circle();
            if circle.len() > CIRCLE_MAX {
                larger.push(format!("{name}: {} files: {circle:?}", circle.len()));
            }
        }
        assert!(read > 500, "{read} files");
        larger.sort();
        assert_eq!(larger, [""; 0]);
    }

    #[test]
    fn a_room_of_the_engine_uses_rooms_of_lower_floors_only() {
        let engine = Workspace::find().unwrap().root.join("crates/engine/src");
        let engine = Modules::read(&engine).unwrap();
        assert!(engine.0.len() > 70, "{} files", engine.0.len());
        assert_eq!(engine.rooms_in_a_circle(), [""; 0]);
        let mut rooms = Modules::default();
        for (file, text) in [
            ("lib.rs", ""),
            ("a/b.rs", "use crate::c::d;"),
            ("a/mod.rs", ""),
            ("c/mod.rs", ""),
            ("c/d.rs", ""),
            ("c/e.rs", "use crate::a::b;"),
        ] {
            rooms.add(file.to_owned(), text);
        }
        assert_eq!(rooms.largest_circle(), [""; 0]);
        assert_eq!(rooms.rooms_in_a_circle(), ["a", "c"]);
    }

    #[test]
    fn each_kind_of_path_closes_a_circle() {
        let to_b = [
            "use crate::b::B;",
            "use super::b;",
            "pub(crate) fn a() -> crate::b::B {}",
            "use crate::B;",
            "use crate::{\n    c::C,\n    b::{self, B},\n};",
            "use crate::b::B as Other;",
            "#[cfg(unix)]\nuse crate::{\n    b::B,\n    c,\n};",
        ];
        for to_b in to_b {
            let files = [
                ("lib.rs", "mod a;\nmod b;\npub use b::B;\n"),
                ("a.rs", to_b),
                ("b.rs", "use crate::a;\nfn b() {}"),
            ];
            assert_eq!(circle(&files), ["a.rs", "b.rs"], "{to_b}");
        }
    }

    #[test]
    fn tests_comments_other_crates_and_names_handed_on_close_none() {
        let files = |a| {
            [
                ("lib.rs", "mod a;\nmod b;\npub use b::B;\n"),
                ("a.rs", a),
                ("b.rs", "use crate::a;\nuse super::c::C;"),
                ("c/mod.rs", "mod d;\npub use d::C;\nfn c() { d::c() }"),
                ("c/d.rs", "pub struct C;"),
            ]
        };
        for a in [
            "// crate::b::B\n",
            "use b::B;",
            "pub(in crate::b) struct A;",
            "#[cfg(test)]\nmod tests {\n    use crate::b;\n}\n",
            "#[cfg(test)]\npub(super) mod tests {\n    use crate::b;\n}\n",
        ] {
            assert_eq!(circle(&files(a)), [""; 0], "{a}");
        }
        assert_eq!(circle(&files("use crate::b;")), ["a.rs", "b.rs"]);
    }
}
