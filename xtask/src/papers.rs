//! The page of the papers' items against the code: its places, tests, verdicts and counts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::claims::{all_tests, exists, is_name, quoted, root};

const PAGE: &str = "docs/papers.md";

/// The items that the papers have. None is left out.
const ITEMS: u32 = 119;

/// The states of an item, in the order of the sentence that counts them.
const STATES: [&str; 4] = ["works", "partly", "lab", "no"];

/// A row of a table: an item of the switch, or a figure of the lab.
#[derive(Debug)]
struct Item<'d> {
    number: u32,
    /// What the paper has. Of a figure: its paper and rows of the lab's report.
    name: &'d str,
    /// `None` for a figure.
    shown: Option<Shown<'d>>,
    state: &'d str,
}

#[derive(Debug)]
struct Shown<'d> {
    place: &'d str,
    test: &'d str,
}

fn cells(line: &str) -> Vec<&str> {
    line.trim().trim_matches('|').split('|').map(str::trim).collect()
}

fn items<'d>(page: &'d str) -> Vec<Item<'d>> {
    let rows = page.lines().filter(|line| line.starts_with('|')).map(cells);
    let item = |cells: Vec<&'d str>| {
        let number = cells.first()?.parse().ok()?;
        match cells[..] {
            [_, name, state] => Some(Item { number, name, shown: None, state }),
            [_, name, place, state, test] => {
                Some(Item { number, name, shown: Some(Shown { place, test }), state })
            }
            _ => panic!("a row of {} cells: {cells:?}", cells.len()),
        }
    };
    rows.filter_map(item).collect()
}

/// True if `place` is a file: `CRATE/FILE` below the crate's `src`, or a path from the root.
fn is_place(root: &Path, place: &str) -> bool {
    let (of, file) = place.split_once('/').unwrap_or_default();
    root.join(place).is_file() || root.join("crates").join(of).join("src").join(file).is_file()
}

/// What is wrong with what `item` names.
fn faults(
    item: &Item,
    is_place: impl Fn(&str) -> bool,
    is_test: impl Fn(&str) -> bool,
) -> Vec<String> {
    let Item { number, state, shown, .. } = item;
    let mut faults = Vec::new();
    if !STATES.contains(state) {
        faults.push(format!("{number}: {state:?} is no state"));
    }
    let Some(Shown { place, test }) = shown else { return faults };
    let places: Vec<_> = quoted(place).collect();
    let tests: Vec<_> = quoted(test).collect();
    if *state == "works" && (places.is_empty() || tests.is_empty()) {
        faults.push(format!("{number} works, and names no place or no test"));
    }
    let gone = places.into_iter().filter(|place| !is_place(place));
    faults.extend(gone.map(|place| format!("{number}: no file {place}")));
    let gone = tests.into_iter().filter(|test| !is_name(test) || !is_test(test));
    faults.extend(gone.map(|test| format!("{number}: no test {test}")));
    faults
}

/// The numbers for which `reasons` has a point, as in `- **15, 24**: ...`.
fn reasons(reasons: &str) -> BTreeSet<u32> {
    let heads = reasons.lines().filter_map(|line| line.strip_prefix("- **")?.split_once("**"));
    heads
        .flat_map(|(numbers, _)| numbers.split(", ").map(|it| it.parse().expect("a number")))
        .collect()
}

/// The state of each figure in the lab's report, by paper and figure.
fn figures<'d>(report: &'d str) -> BTreeMap<(&'d str, &'d str), &'static str> {
    let table = report.split_once("## Claims").map_or(report, |(figures, _)| figures);
    let rows = table.lines().filter(|line| line.starts_with('|')).map(cells);
    let figure = |cells: Vec<&'d str>| {
        let [paper, figure, verdict, claims, ..] = cells[..] else { return None };
        let state = match verdict.chars().next()? {
            '✓' => "works",
            '✗' if claims.starts_with("0 of") => "no",
            '✗' | '≈' => "partly",
            _ => return None,
        };
        Some(((paper, figure), state))
    };
    rows.filter_map(figure).collect()
}

#[test]
fn each_item_of_the_papers_has_its_place_and_test_or_a_reason() {
    let root = root();
    let read = |file: &str| std::fs::read_to_string(root.join(file)).expect("a document");
    let (page, measured) = (read(PAGE), read("docs/figures.md"));
    let tests = all_tests();
    let is_test = |name: &str| exists(&tests, name) || measured.contains(&format!("| `{name}` |"));
    let items = items(&page);
    let mut numbers: Vec<_> = items.iter().map(|item| item.number).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=ITEMS).collect::<Vec<_>>());
    let wrong: Vec<_> = items
        .iter()
        .flat_map(|item| faults(item, |place| is_place(&root, place), is_test))
        .collect();
    assert!(wrong.is_empty(), "{PAGE}: {wrong:#?}");

    let missing = page.split_once("\n## What is missing").expect("the reasons").1;
    let short = items.iter().filter(|item| item.state != "works").map(|item| item.number);
    let (short, reasons) = (short.collect::<BTreeSet<_>>(), reasons(missing));
    let bare: Vec<_> = short.difference(&reasons).collect();
    assert!(bare.is_empty(), "{PAGE}: no reason for {bare:?}");
    let count = |state| items.iter().filter(|item| item.state == state).count();
    let [works, partly, lab, no] = STATES.map(count);
    let counted = format!(
        "Of {ITEMS} items {works} work, {partly} are there in part, {lab} are in the lab only, {no} are not there."
    );
    assert!(page.contains(&counted), "{PAGE} lacks: {counted}");
}

#[test]
fn figures_of_the_papers_have_the_verdict_of_the_labs_report() {
    let read = |file: &str| std::fs::read_to_string(root().join(file)).expect("a document");
    let (page, report) = (read(PAGE), read("docs/lab.md"));
    let figures = figures(&report);
    let mut judged = BTreeSet::new();
    for item in items(&page).iter().filter(|item| item.shown.is_none()) {
        let Some((paper, names)) = item.name.split_once(": ") else { panic!("{item:?}") };
        for name in names.split("; ") {
            let Some(verdict) = figures.get(&(paper, name)) else {
                assert_eq!(item.state, "no", "the lab judges no {paper}, {name}");
                continue;
            };
            assert_eq!(item.state, *verdict, "{paper}, {name}");
            judged.insert((paper, name));
        }
    }
    // The stages of a message are an item of the switch.
    judged.insert(("Raj 2006", "Fig. 6"));
    assert_eq!(judged, figures.keys().copied().collect());
}

#[test]
fn what_an_item_names_and_is_not_there_is_found() {
    let page = "| # | item | place | state | test |\n|---|---|---|---|---|\n| 1 | a | `x/a.rs` | works | `a_b*` |\n\
        | 2 | b | `x/b.rs` | works | |\n| 3 | c | | partly | `c_d` |\n| 4 | P: F | maybe |\n";
    let found: Vec<_> = items(page)
        .iter()
        .flat_map(|item| faults(item, |place| place == "x/a.rs", |test| test == "a_b*"))
        .collect();
    let expected = [
        "2 works, and names no place or no test",
        "2: no file x/b.rs",
        "3: no test c_d",
        "4: \"maybe\" is no state",
    ];
    assert_eq!(found, expected);
    assert_eq!(reasons("- **3, 15**: x\n  y\n- **7**: z\n"), [3, 7, 15].into());
}
