//! The table of docs/design/control-law.md must match `crates/policy/src/law.rs`.

use std::{collections::BTreeMap, fs, path::Path};

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
