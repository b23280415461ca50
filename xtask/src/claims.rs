//! Claims in SECURITY.md and ARCHITECTURE.md name the tests that show them. These tests check that the named tests
//! exist. The table of docs/design/control-law.md must match `crates/policy/src/law.rs`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// Least number of words of a test's name in running text. Names of settings, counters and functions have fewer.
const WORDS_MIN: usize = 4;

/// Text of a claim that needs no test.
const BY_CONSTRUCTION: &str = "by construction";

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Names of all functions below `dir` that are marked as tests, and of the tests in lists.
fn tests_below(dir: &Path, names: &mut BTreeSet<String>) {
    for entry in fs::read_dir(dir).expect("a directory of the workspace").flatten() {
        let path = entry.path();
        if path.is_dir() {
            tests_below(&path, names);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            tests_in(&fs::read_to_string(&path).expect("a source file"), names);
        }
    }
}

/// Items of the lists of tests that no test harness runs: the system tests', and those on a real Xen.
const LISTED: [&str; 2] = ["SystemTest {", "Scenario {"];

fn tests_in(source: &str, names: &mut BTreeSet<String>) {
    let (mut marked, mut listed) = (false, false);
    for line in source.lines().map(str::trim) {
        marked |= line == "#[test]";
        listed |= LISTED.iter().any(|item| line.starts_with(item));
        if let Some((_, rest)) = line.split_once("name: \"")
            && std::mem::take(&mut listed)
        {
            names.extend(rest.split('"').next().map(str::to_owned));
        }
        if let Some((_, rest)) = line.split_once("fn ") {
            let name = rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_');
            if std::mem::take(&mut marked) {
                names.insert(name.collect());
            }
        }
    }
}

/// Names of all tests of the workspace.
pub(crate) fn all_tests() -> BTreeSet<String> {
    let mut tests = BTreeSet::new();
    for dir in ["crates", "xtask", "tests", "benches"] {
        tests_below(&root().join(dir), &mut tests);
    }
    tests
}

/// True if `tests` has a test called `name`; with a `*` at the end of `name`, a test whose name
/// begins so.
pub(crate) fn exists(tests: &BTreeSet<String>, name: &str) -> bool {
    match name.strip_suffix('*') {
        Some(front) => tests.iter().any(|test| test.starts_with(front)),
        None => tests.contains(name),
    }
}

/// The parts of `text` in backticks.
pub(crate) fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// True if `text` has the form of a test's name, or of a prefix with `*`.
pub(crate) fn is_name(text: &str) -> bool {
    let stem = text.strip_suffix('*').unwrap_or(text);
    let snake = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    stem.contains('_') && stem.chars().all(snake)
}

/// True if `text` in running text is the name of a test.
fn is_test(text: &str) -> bool {
    is_name(text) && (text.ends_with('*') || text.split('_').count() >= WORDS_MIN)
}

/// The claims of a document.
#[derive(Debug, Default)]
struct Claims<'d> {
    named: Vec<&'d str>,
    /// Rows of a table with a column of tests, and points of the list of claims, that name no test.
    bare: Vec<&'d str>,
}

/// Reads the claims of a document. `holds` is the heading of the list in which each point is a claim.
fn claims<'d>(document: &'d str, holds: &str) -> Claims<'d> {
    let mut claims = Claims::default();
    let mut column = None;
    for line in document.lines() {
        let cells: Vec<_> = line.trim().trim_matches('|').split('|').map(str::trim).collect();
        if !line.starts_with('|') {
            column = None;
            claims.named.extend(quoted(line).filter(|text| is_test(text)));
            continue;
        }
        let Some(column) = column else {
            column = cells.iter().position(|cell| *cell == "test").or(Some(usize::MAX));
            continue;
        };
        if column == usize::MAX || line.starts_with("|---") {
            continue;
        }
        let before = claims.named.len();
        let shown = cells.get(column).copied().unwrap_or_default();
        claims.named.extend(quoted(shown).filter(|text| is_name(text)));
        if claims.named.len() == before && shown != BY_CONSTRUCTION {
            claims.bare.push(line);
        }
    }
    let list = document.split_once(holds).map_or("", |(_, rest)| rest);
    let list = list.split_once("\n## ").map_or(list, |(list, _)| list);
    for point in list.split("\n- ").skip(1) {
        let elsewhere = ["ARCHITECTURE.md#", BY_CONSTRUCTION].iter().any(|it| point.contains(it));
        if !quoted(point).any(is_test) && !elsewhere {
            claims.bare.push(point.lines().next().unwrap_or_default());
        }
    }
    claims
}

#[test]
fn each_claim_of_the_documents_names_a_test_that_exists() {
    let tests = all_tests();
    let lists = [
        ("SECURITY.md", "## What stands in the way"),
        ("ARCHITECTURE.md", "## What a guest can do wrong"),
    ];
    for (file, holds) in lists {
        let document = fs::read_to_string(root().join(file)).expect("a document");
        let Claims { named, bare } = claims(&document, holds);
        assert!(named.len() > 10, "{file} names {} tests", named.len());
        let missing: Vec<_> = named.into_iter().filter(|name| !exists(&tests, name)).collect();
        assert!(missing.is_empty(), "{file} names tests that do not exist: {missing:#?}");
        assert!(bare.is_empty(), "{file} claims without a test: {bare:#?}");
    }
}

#[test]
fn tests_and_claims_are_told_from_what_looks_like_them() {
    let source =
        "#[test]\nfn spec_1_holds() {}\n#[test]\n#[ignore]\n    fn b_c() {}\nfn helper_of_it() {}";
    let mut tests = BTreeSet::new();
    tests_in(source, &mut tests);
    assert_eq!(tests.iter().map(String::as_str).collect::<Vec<_>>(), ["b_c", "spec_1_holds"]);
    let document = "## Holds\n\n- **A.** `memory_max` (`what_is_too_long_is_refused`).\n- **B.** `no_cpu`.\n\n## Next\n\n- C.\n\
        | of | test |\n|---|---|\n| `x_y` | `lying_*`, `b_c` |\n| z | by construction |\n| w | |\n";
    let found = claims(document, "## Holds");
    assert_eq!(found.named, ["what_is_too_long_is_refused", "lying_*", "b_c"]);
    assert_eq!(found.bare, ["| w | |", "**B.** `no_cpu`."]);
}

/// A constant of control from either file.
#[derive(Debug, PartialEq, Eq)]
struct Constant {
    value: u64,
    unit: String,
    /// `5,000 to 50,000`.
    range: String,
}

fn number(text: &str) -> Option<u64> {
    text.replace([',', '_'], "").parse().ok()
}

/// The constants by name, from rows `| NAME | value | unit | range | trades |` with names in backticks.
fn of_page(page: &str) -> BTreeMap<String, Constant> {
    let rows = page.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| `")?.split('|').map(str::trim);
        let name = cells.next()?.strip_suffix('`')?;
        let value = number(cells.next()?)?;
        let mut text = || cells.next().map(str::to_owned);
        Some((name.to_owned(), Constant { value, unit: text()?, range: text()? }))
    });
    rows.collect()
}

/// The constants by name, from a field's comment, which ends with `In UNIT: RANGE.`, and from its value in `LAW`.
fn of_source(source: &str) -> BTreeMap<String, Constant> {
    let block = |start: &str| {
        let rest = source.split_once(start).map_or("", |(_, rest)| rest);
        rest.split_once("\n}").map_or("", |(block, _)| block)
    };
    let values: BTreeMap<_, _> = block("pub const LAW: Law = Law {")
        .lines()
        .filter_map(|line| line.trim().trim_end_matches(',').split_once(": "))
        .collect();
    let mut constants = BTreeMap::new();
    let mut comment = String::new();
    for line in block("pub struct Law {").lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("///") {
            comment.push_str(text);
        } else if let Some((name, _)) = line.strip_prefix("pub ").and_then(|l| l.split_once(':')) {
            let end = comment.rsplit_once(" In ").map_or("", |(_, end)| end).trim_end_matches('.');
            let (unit, range) = end.split_once(": ").unwrap_or_default();
            let value = values.get(name).and_then(|value| number(value));
            let value = value.unwrap_or_else(|| panic!("`{name}` has no value in LAW"));
            let constant = Constant { value, unit: unit.to_owned(), range: range.to_owned() };
            constants.insert(name.to_owned(), constant);
            comment.clear();
        }
    }
    constants
}

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    fs::read_to_string(path).expect("a file of the repository")
}

#[test]
fn the_table_of_the_law_is_the_code() {
    let page = of_page(&read("docs/design/control-law.md"));
    let source = of_source(&read("crates/policy/src/law.rs"));
    assert_eq!(page, source, "left: docs/design/control-law.md, right: crates/policy/src/law.rs");
    assert!((1..=20).contains(&source.len()), "{} constants; at most 20", source.len());
    for (name, Constant { value, unit, range }) in &source {
        let (least, most) = range.split_once(" to ").unwrap_or_default();
        let within = number(least).zip(number(most));
        let holds = within.is_some_and(|(least, most)| (least..=most).contains(value));
        assert!(holds && !unit.is_empty(), "`{name}` is {value} {unit}, in a range of `{range}`");
    }
}

#[test]
fn a_constant_is_read_from_both_files() {
    let of = |value| Constant { value, unit: "ns of CPU".into(), range: "1,000 to 9,000".into() };
    let both = BTreeMap::from([("a_ns".to_owned(), of(4_000))]);
    let page = "| constant | value |\n|---|---|\n\
        | `a_ns` | 4,000 | ns of CPU | 1,000 to 9,000 | this against that |\n";
    assert_eq!(of_page(page), both);
    let source = "pub struct Law {\n    /// What it is. In\n    /// two words. In ns of CPU: 1,000 to\n\
        \x20   /// 9,000.\n    pub a_ns: u64,\n}\npub const LAW: Law = Law {\n    a_ns: 4_000,\n};\n";
    assert_eq!(of_source(source), both);
    assert_ne!(of_source(&source.replace("4_000", "4_001")), both);
}
