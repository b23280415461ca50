//! Tests of handwritten documents: their width and their links, and that the way of one packet and the page of the
//! papers' items match the code. That page names places, tests, verdicts and counts.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use crate::claims::{all_tests, exists, is_name, quoted, root};

/// Longest line (columns), tables and code included.
const COLUMNS_MAX: usize = 120;

/// Most lines of the README, which take five minutes to read.
const README_LINES_MAX: usize = 199;

/// The documents that a program writes with texts of any width.
const GENERATED: [&str; 2] = ["docs/lab.md", "docs/compatibility.md"];

/// Every `.md` of the root and below `docs`, with its path relative to the root, without those that programs write.
fn documents() -> Vec<(PathBuf, String)> {
    let root = root();
    let mut files = files_of(&root);
    let mut dirs = vec![root.join("docs")];
    while let Some(dir) = dirs.pop() {
        files.extend(files_of(&dir));
        let entries = fs::read_dir(&dir).expect("a directory").flatten().map(|entry| entry.path());
        dirs.extend(entries.filter(|path| path.is_dir()));
    }
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("a document");
        (path.strip_prefix(&root).expect("below the root").to_owned(), text)
    };
    files.retain(|path| GENERATED.iter().all(|it| *path != root.join(it)));
    files.into_iter().map(read).collect()
}

fn files_of(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).expect("a directory").flatten().map(|entry| entry.path());
    entries.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect()
}

/// Lines that are too wide, each as `NUMBER: COLUMNS columns`.
fn wide_lines(text: &str) -> Vec<String> {
    let columns = text.lines().map(|line| line.chars().count()).zip(1..);
    let wide = columns.filter(|(columns, _)| *columns > COLUMNS_MAX);
    wide.map(|(columns, number)| format!("{number}: {columns} columns")).collect()
}

#[test]
fn no_line_of_a_document_has_more_than_120_columns() {
    let documents = documents();
    assert!(documents.len() > 30, "{} documents", documents.len());
    let mut wide = Vec::new();
    for (path, text) in &documents {
        wide.extend(wide_lines(text).into_iter().map(|line| format!("{}:{line}", path.display())));
    }
    assert!(wide.is_empty(), "lines with more than {COLUMNS_MAX} columns: {wide:#?}");
}

#[test]
fn the_readme_is_short() {
    let documents = documents();
    let readme = documents.iter().find(|(path, _)| path == Path::new("README.md"));
    let lines = readme.expect("a README").1.lines().count();
    assert!(lines <= README_LINES_MAX, "README.md: {lines} lines, at most {README_LINES_MAX}");
}

/// The lines of a document outside blocks of code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut in_block = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        in_block ^= is_fence;
        !in_block && !is_fence
    })
}

/// The targets of links to files and headings of the repository.
fn links(text: &str) -> Vec<&str> {
    let of_line = |line| {
        let inline = str::split(line, "](").skip(1).filter_map(|rest| rest.split_once(')'));
        let below = line.strip_prefix('[').and_then(|rest| rest.split_once("]: "));
        inline.map(|(target, _)| target).chain(below.map(|(_, target)| target.trim()))
    };
    prose(text).flat_map(of_line).filter(|target| !target.contains("://")).collect()
}

/// The places in a document that links can lead to: its headings, named as GitHub does, and `<a id="NAME"></a>`.
fn anchors(text: &str) -> BTreeSet<String> {
    let heading = |line: &str| {
        let title = line.strip_prefix('#')?.trim_start_matches('#').strip_prefix(' ')?;
        let kept = |c: &char| c.is_alphanumeric() || [' ', '-', '_'].contains(c);
        Some(title.to_lowercase().chars().filter(kept).collect::<String>().replace(' ', "-"))
    };
    let set = |line: &str| Some(line.strip_prefix("<a id=\"")?.split_once('"')?.0.to_owned());
    prose(text).filter_map(|line| heading(line).or_else(|| set(line))).collect()
}

/// The links of the document at `path` that lead nowhere.
fn dead_links(documents: &BTreeMap<PathBuf, String>, path: &Path, text: &str) -> Vec<String> {
    let is_dead = |link: &&str| {
        let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
        let mut to = path.parent().unwrap_or(Path::new("")).to_owned();
        for part in file.split('/') {
            match part {
                ".." => drop(to.pop()),
                _ => to.push(part),
            }
        }
        let to = if file.is_empty() { path.to_owned() } else { to };
        let has_anchor = |text: &String| anchor.is_empty() || anchors(text).contains(anchor);
        !documents.get(&to).map_or_else(|| root().join(&to).exists(), has_anchor)
    };
    let dead = links(text).into_iter().filter(is_dead);
    dead.map(|link| format!("{}: {link}", path.display())).collect()
}

#[test]
fn each_link_of_a_document_leads_to_a_file_and_a_heading() {
    let documents: BTreeMap<_, _> = documents().into_iter().collect();
    let count: usize = documents.values().map(|text| links(text).len()).sum();
    assert!(count > 400, "{count} links");
    let dead: Vec<_> =
        documents.iter().flat_map(|(path, text)| dead_links(&documents, path, text)).collect();
    assert!(dead.is_empty(), "links that lead nowhere: {dead:#?}");
}

#[test]
fn a_link_that_leads_nowhere_is_found() {
    let page = "# A `page`\n\n<a id=\"7\"></a>\n\n[a](#a-page), [7](../b/c.md#7), [8](#8)\n[x](no.md)\n\
        ```\n[y](no.md)\n```\n[z]: https://example.org\n[w]: c.md#w\n";
    let path = PathBuf::from("b/c.md");
    let documents = BTreeMap::from([(path.clone(), page.to_owned())]);
    assert_eq!(links(page), ["#a-page", "../b/c.md#7", "#8", "no.md", "c.md#w"]);
    let dead = ["b/c.md: #8", "b/c.md: no.md", "b/c.md: c.md#w"];
    assert_eq!(dead_links(&documents, &path, page), dead);
}

/// A step of the way of one packet: a file by its crate, and a function or a type in it.
#[derive(Debug, PartialEq, Eq)]
struct Step<'d> {
    /// `engine/working/worker.rs` for `crates/engine/src/working/worker.rs`.
    file: &'d str,
    /// `Worker::take`, or the name alone.
    name: &'d str,
}

/// The steps of the block below `## The way of one packet`. Columns are two spaces apart: an optional number, the
/// file (if it is not the one above), the name, and a description.
fn steps(document: &str) -> Vec<Step<'_>> {
    let section = document.split_once("## The way of one packet").map_or("", |(_, rest)| rest);
    let block = section.split("```").nth(1).unwrap_or_default();
    let mut steps = Vec::new();
    let mut file = None;
    for line in block.lines() {
        let mut columns = line.split("  ").map(str::trim).filter(|column| !column.is_empty());
        let is_number = |column: &&str| column.bytes().all(|byte| byte.is_ascii_digit());
        let Some(mut first) = columns.find(|column| !is_number(column)) else { continue };
        if first.ends_with(".rs") {
            file = Some(first);
            first = columns.next().unwrap_or_default();
        }
        if let Some(file) = file {
            steps.push(Step { file, name: first });
        }
    }
    steps
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_')
}

/// True if `source` has the function or type `name`. `Type::function` and `Type::Variant` need both parts.
fn defines(source: &str, name: &str) -> bool {
    let has_type = |name| {
        source.lines().map(words).any(|mut words| {
            words.any(|word| ["struct", "enum", "trait", "impl"].contains(&word))
                && words.any(|word| word == name)
        })
    };
    let has_function = |name| {
        source
            .lines()
            .map(words)
            .any(|mut words| words.any(|word| word == "fn") && words.next() == Some(name))
    };
    match name.split_once("::") {
        Some((type_name, variant)) if variant.starts_with(char::is_uppercase) => {
            has_type(type_name)
                && source.lines().any(|line| words(line.trim_start()).next() == Some(variant))
        }
        Some((type_name, function)) => has_type(type_name) && has_function(function),
        None if name.starts_with(char::is_uppercase) => has_type(name),
        None => has_function(name),
    }
}

#[test]
fn the_way_of_one_packet_names_files_and_functions_that_exist() {
    let document = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let steps = steps(&document);
    assert!(steps.len() > 30, "{} steps", steps.len());
    let is_there = |step: &&Step<'_>| {
        let (of_crate, file) = step.file.split_once('/').expect("a crate and a file");
        let path = root().join("crates").join(of_crate).join("src").join(file);
        fs::read_to_string(path).is_ok_and(|source| defines(&source, step.name))
    };
    let missing: Vec<_> = steps.iter().filter(|step| !is_there(step)).collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md names what is not there: {missing:#?}");
}

/// Appends all sources below `dir`.
fn sources_below(dir: &Path, sources: &mut String) {
    for path in fs::read_dir(dir).expect("a directory").flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            sources_below(&path, sources);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            sources.push_str(&fs::read_to_string(path).expect("a source"));
        }
    }
}

#[test]
fn how_to_add_a_kind_of_port_and_a_key_names_what_exists() {
    let document = fs::read_to_string(root().join("CONTRIBUTING.md")).expect("CONTRIBUTING.md");
    let section = document.split_once("\n## How to add a kind of port").expect("the section").1;
    let section = section.split_once("\n## How to measure").expect("the next section").0;
    let mut sources = String::new();
    sources_below(&root().join("crates"), &mut sources);
    let mut missing = Vec::new();
    let mut found = 0;
    for quoted in section.split('`').skip(1).step_by(2) {
        let is_path = quoted.contains('/') || quoted.ends_with(".md");
        let is_name = quoted.starts_with(char::is_uppercase) && !quoted.contains('.');
        let exists = match (is_path, is_name) {
            (true, _) => root().join(quoted.trim_end_matches('*')).exists(),
            (_, true) => defines(&sources, quoted),
            _ => continue,
        };
        found += 1;
        if !exists {
            missing.push(quoted);
        }
    }
    assert!(found > 40, "{found} files and names");
    let rows = |table: &str| {
        let rest = section.split_once(table).map_or("", |(_, rest)| rest);
        let rest = rest.split_once("|---|---|\n").map_or("", |(_, rest)| rest);
        rest.lines().take_while(|line| line.starts_with("| ")).count()
    };
    assert_eq!([rows("touches six files:"), rows("## A key in seven places")], [6, 7]);
    assert!(missing.is_empty(), "CONTRIBUTING.md names what is not there: {missing:#?}");
}

#[test]
fn steps_are_read_and_names_are_looked_for_whole() {
    let document = "# A\n## The way of one packet\n\n```\n     A guest kicks.\n\n  1  a/b.rs   T::f   once\n\
        \x20             T::g   twice\n 10  a/c.rs   h\n```\n";
    let step = |file, name| Step { file, name };
    assert_eq!(
        steps(document),
        [step("a/b.rs", "T::f"), step("a/b.rs", "T::g"), step("a/c.rs", "h")]
    );
    let source =
        "impl<'a> Tall {}\nstruct T;\nimpl Of for T {\n    fn f2() {}\n    fn g<A>() {}\n}\n";
    assert!(defines(source, "T::g") && defines(source, "T") && defines(source, "g"));
    assert!(defines("enum E {\n    V,\n}", "E::V") && !defines("enum E {\n    V2,\n}", "E::V"));
    assert!(!defines(source, "T::f") && !defines(source, "f") && !defines(source, "U::g"));
    assert_eq!(
        wide_lines(&format!("{}\n{}", "é".repeat(120), "x".repeat(121))),
        ["2: 121 columns"]
    );
}

const PAGE: &str = "docs/papers.md";

/// The items that the papers have. None is left out.
const ITEMS: u32 = 119;

/// The states of an item, in the order of the sentence that counts them.
const STATES: [&str; 4] = ["works", "partly", "lab", "no"];

/// A row of a table: an item of the switch, or a figure of the lab.
#[derive(Debug)]
struct Item<'d> {
    number: u32,
    /// The name of a method or a figure in the paper. A figure also names its rows of the lab's report.
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

/// The faults of the places and tests that `item` names.
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
        "Of {ITEMS} items {works} work, {partly} are there in part, {no} are not there, in the lab only: {lab}."
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
        let mut verdicts = BTreeSet::new();
        for name in names.split("; ") {
            if let Some(verdict) = figures.get(&(paper, name)) {
                verdicts.insert(*verdict);
                judged.insert((paper, name));
            }
        }
        // A figure without a verdict of the lab counts as missing, and one with different verdicts as partly
        // reproduced.
        let state = match verdicts.len() {
            0 => "no",
            1 => verdicts.pop_first().expect("a verdict"),
            _ => "partly",
        };
        assert_eq!(item.state, state, "{paper}, {names}");
    }
    // The stages of a message are an item of the switch.
    judged.extend([("Raj 2006", "Fig. 6"), ("Raj 2006", "Fig. 6b")]);
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
