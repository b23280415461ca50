use weir_lab::scenarios::{EXPERIMENTS, PROFILES};

use super::axis::numeric;
use super::chart::{Chart, Mark, MarkKind, Series};
use super::*;
use crate::error::Source;
use crate::output::{Outcome, Point};
use crate::papers::Standings;
use crate::profile::{self, Machine};
use crate::runs::{Measured, parse};
use crate::sensitivity::Sensitivity;
use crate::tests::small_host;
use crate::verdict::Verdict;

/// Two sweeps, one of them with numbers; markup in every text; each kind of claim; a measurement.
const SMALL: &str = concat!(
    r#"title = "Streams & <b>guests</b>"
paper = "Nobody | 2099"
profile = "dong-2011"
seeds = [1, 2]
"#,
    small_host!("immediate"),
    r#"[[sweep]]
name = "guests"
points = ["1", "2", "3"]
sweep = { "guests.count" = [1, 2, 3] }

[[sweep]]
name = "calls"
points = ["at <once>", "held"]
sweep = { "guests.moderation" = ["immediate", "backend"] }

[plot]
x = "guests"
series = "calls"
y = ["cpu_percent", "calls_per_s"]

[[measured]]
at = { guests = "3", calls = "held" }
y = "cpu_percent"
mean = 30.0
min = 25.0
max = 40.0
source = "two cores & a <watch>"

[[claim]]
figure = "Fig. 1"
source = "page \"1\""
says = "1 guest <held>"
used = "fit"
y = "cpu_percent"
is = { value = { at = { guests = "1", calls = "held" }, value = 20.0 } }
reason = "it is <not>"

[[claim]]
figure = "Fig. 1"
source = "page 1"
says = "3 guests gain a tenth"
used = "predict"
y = "cpu_percent"
is = { ratio = { from = { guests = "3", calls = "at <once>" }, to = { guests = "3", calls = "held" }, value = 0.9 } }
reason = "so it is"

[[claim]]
figure = "Fig. 2"
source = "page 1"
says = "least at 1, then 2"
used = "predict"
y = "cpu_percent"
is = { least = { at = { calls = "held" }, points = ["1", "2"] } }
reason = "so it is"

[[claim]]
figure = "Fig. 3"
source = "page 1"
says = "fewer calls"
used = "predict"
y = "calls_per_s"
is = { change = { from = { guests = "3", calls = "at <once>" }, to = { guests = "3", calls = "held" }, sign = "down" } }
reason = "so it is"
"#
);

fn experiment() -> Experiment {
    let source = Source { name: "a/small.toml", text: SMALL };
    Experiment::parse(source, None, |_| Ok(Some(machine()))).unwrap()
}

/// Returns a machine with one fitted cost, independent of the profile of Dong 2011.
fn machine() -> Machine {
    let (name, text) = PROFILES[0];
    let text = text.replace("fitted = ", "assumed = ");
    let line = text.lines().find(|line| line.starts_with("interrupt = ")).unwrap();
    let fitted = "interrupt = { value = \"30us\", fitted = \"Fig. 1 <there>\" }";
    let text = text.replace(line, fitted);
    let machine = Machine::parse(Source { name, text: &text }).unwrap();
    Machine { title: "a <host>".into(), ..machine }
}

/// Returns the outcome of an experiment whose figures at point n are 10 (n + 1), plus or minus 1.
fn outcome(experiment: &Experiment) -> Outcome {
    let points = experiment.points.iter().enumerate().map(|(number, (at, _))| {
        let mean = 10.0 * (number as f64 + 1.0);
        let value = Measured { mean, min: mean - 1.0, max: mean + 1.0 };
        let figures = super::super::output::figures(&experiment.file).into_iter();
        let seeds = figures.map(|it| (it.as_str(), vec![value.min, value.max])).collect();
        Point::new(at.clone(), seeds, 1)
    });
    Outcome::new(experiment, points.collect(), 7)
}

fn varied(experiments: &[Experiment]) -> Vec<Sensitivity> {
    sensitivity::of(experiments, &indicatif::ProgressBar::hidden()).unwrap()
}

/// Asserts that all elements are closed in order, and that attributes are quoted.
fn assert_well_formed(text: &str) {
    const VOID: [&str; 4] = ["meta", "input", "br", "!doctype"];
    let mut open: Vec<&str> = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('<') {
        let end = at + rest[at..].find('>').expect("a tag that ends");
        let tag = &rest[at + 1..end];
        rest = &rest[end + 1..];
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap();
        assert_eq!(tag.matches('"').count() % 2, 0, "<{tag}>");
        if VOID.contains(&name) || tag.ends_with('/') {
            continue;
        }
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "before {rest:.80}");
        } else {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?}");
    assert!(!text.contains("NaN") && !text.contains("inf,"), "a number that is none");
}

#[test]
fn a_plot_shows_what_the_paper_says_what_came_out_and_what_was_measured() {
    let experiment = experiment();
    let charts = chart::all(&experiment, &outcome(&experiment));
    let [cpu, calls] = &charts[..] else { panic!("{charts:?}") };
    assert_eq!((cpu.id.as_str(), cpu.title.as_str()), ("small-cpu_percent", "CPU (%)"));
    // The first sweep is the innermost.
    let means =
        |series: &Series| series.simulated.iter().map(|it| it.unwrap().mean).collect::<Vec<_>>();
    assert_eq!(means(&cpu.series[0]), [10.0, 20.0, 30.0]);
    assert_eq!(means(&cpu.series[1]), [40.0, 50.0, 60.0]);
    assert_eq!(cpu.series[1].measured[2].unwrap().max, 40.0);
    let marks = |chart: &Chart| {
        chart.marks.iter().map(|mark| (mark.series, mark.x, mark.kind)).collect::<Vec<_>>()
    };
    assert_eq!(
        marks(cpu),
        [
            (1, 0, MarkKind::Value(20.0)),
            (1, 2, MarkKind::FromOurs(27.0)),
            (1, 0, MarkKind::Least(1)),
            (1, 1, MarkKind::Least(2)),
        ]
    );
    assert_eq!(marks(calls), [(1, 2, MarkKind::Down)]);
}

#[test]
fn what_is_neither_x_nor_series_has_plots_of_its_own() {
    let text = SMALL.replace("series = \"calls\"\n", "");
    let experiment = parse(Source { name: "small.toml", text: &text }, None, None).unwrap();
    let charts = chart::all(&experiment, &outcome(&experiment));
    let ids: Vec<_> = charts.iter().map(|chart| (chart.id.as_str(), chart.at.as_str())).collect();
    assert_eq!(ids[0], ("small-cpu_percent-1", "calls at <once>"));
    assert_eq!(ids[1], ("small-cpu_percent-2", "calls held"));
    assert_eq!(charts[0].marks.len(), 0, "claims are about what is held");
    assert_eq!(charts[1].marks.len(), 4);
}

#[test]
fn a_plot_as_svg() {
    let experiment = experiment();
    let charts = chart::all(&experiment, &outcome(&experiment));
    insta::assert_snapshot!(svg::inline(&charts[0]), @r#"
    <svg class="plot" viewBox="0 0 480 358" role="img" aria-labelledby="small-cpu_percent-title small-cpu_percent-desc">
    <title id="small-cpu_percent-title">CPU (%)</title>
    <desc id="small-cpu_percent-desc">By guests (1, 2, 3): at &lt;once&gt;, held. Paper, held: 20.0 (Fig. 1: 1 guest &lt;held&gt;). Paper, held: 27.0 from ours (Fig. 1: 3 guests gain a tenth). Paper, held: least (Fig. 2: least at 1, then 2). Paper, held: number 2 from the least (Fig. 2: least at 1, then 2).</desc>
    <rect class="page" width="480" height="358" rx="8"/>
    <text class="title" x="14" y="22">CPU (%)</text>
    <path class="line s0" d="M14.0 40.0h32"/><circle class="dot s0" cx="30.0" cy="40.0" r="4"/><text x="52.0" y="44.0">at &lt;once&gt;</text>
    <path class="line s1" d="M123.0 40.0h32"/><path class="dot s1" d="M135.0 36.0h8v8h-8z"/><text x="161.0" y="44.0">held</text>
    <path class="whisker" d="M212.0 34.0h6M215.0 34.0V46.0M212.0 46.0h6"/><text x="237.0" y="44.0">least to most of 2 seeds</text>
    <path class="halo" d="M25.5 55.5l9 9m0 -9l-9 9"/><path class="measured" d="M25.5 55.5l9 9m0 -9l-9 9"/><text x="52.0" y="64.0">measured</text>
    <path class="halo" d="M138.9 53.5l6.5 6.5l-6.5 6.5l-6.5 -6.5z"/><path class="stated any" d="M138.9 53.5l6.5 6.5l-6.5 6.5l-6.5 -6.5z"/><text x="160.9" y="64.0">paper</text>
    <path class="halo" d="M222.0 53.5l6.5 6.5l-6.5 6.5l-6.5 -6.5z"/><path class="derived any" d="M222.0 53.5l6.5 6.5l-6.5 6.5l-6.5 -6.5z"/><text x="244.0" y="64.0">paper's change, from our start</text>
    <circle class="ring" cx="30.0" cy="80.0" r="7.5"/><text x="52.0" y="84.0">paper: least</text>
    <circle class="ring next" cx="152.0" cy="80.0" r="7.5"/><text x="174.0" y="84.0">paper: next least</text>
    <path class="grid" d="M33.2 314.0H466"/><text class="small" x="27.2" y="318.0" text-anchor="end">0</text>
    <path class="grid" d="M33.2 252.4H466"/><text class="small" x="27.2" y="256.4" text-anchor="end">20</text>
    <path class="grid" d="M33.2 190.8H466"/><text class="small" x="27.2" y="194.8" text-anchor="end">40</text>
    <path class="grid" d="M33.2 129.3H466"/><text class="small" x="27.2" y="133.3" text-anchor="end">60</text>
    <path class="axis" d="M33.2 314.0H466"/>
    <text class="small" x="49.2" y="330.0" text-anchor="middle">1</text>
    <text class="small" x="249.6" y="330.0" text-anchor="middle">2</text>
    <text class="small" x="450.0" y="330.0" text-anchor="middle">3</text>
    <path class="line s0" d="M49.2 283.2L249.6 252.4L450.0 221.6"/>
    <path class="whisker" d="M46.2 280.1h6M49.2 280.1V286.3M46.2 286.3h6"/>
    <circle class="dot s0" cx="49.2" cy="283.2" r="4"/>
    <path class="whisker" d="M246.6 249.3h6M249.6 249.3V255.5M246.6 255.5h6"/>
    <circle class="dot s0" cx="249.6" cy="252.4" r="4"/>
    <path class="whisker" d="M447.0 218.5h6M450.0 218.5V224.7M447.0 224.7h6"/>
    <circle class="dot s0" cx="450.0" cy="221.6" r="4"/>
    <path class="line s1" d="M49.2 190.8L249.6 160.0L450.0 129.3"/>
    <path class="whisker" d="M46.2 187.8h6M49.2 187.8V193.9M46.2 193.9h6"/>
    <path class="dot s1" d="M45.2 186.8h8v8h-8z"/>
    <path class="whisker" d="M246.6 157.0h6M249.6 157.0V163.1M246.6 163.1h6"/>
    <path class="dot s1" d="M245.6 156.0h8v8h-8z"/>
    <path class="whisker" d="M447.0 126.2h6M450.0 126.2V132.3M447.0 132.3h6"/>
    <path class="dot s1" d="M446.0 125.3h8v8h-8z"/>
    <path class="measured" d="M447.0 190.8h6M450.0 190.8V237.0M447.0 237.0h6"/>
    <path class="halo" d="M445.5 217.1l9 9m0 -9l-9 9"/><path class="measured" d="M445.5 217.1l9 9m0 -9l-9 9"/>
    <g><title>Fig. 1: 1 guest &lt;held&gt;</title><path class="link s1" d="M49.2 190.8L59.2 252.4"/><path class="halo" d="M59.2 245.9l6.5 6.5l-6.5 6.5l-6.5 -6.5z"/><path class="stated s1" d="M59.2 245.9l6.5 6.5l-6.5 6.5l-6.5 -6.5z"/></g>
    <g><title>Fig. 1: 3 guests gain a tenth</title><path class="link s1" d="M450.0 129.3L460.0 230.9"/><path class="halo" d="M460.0 224.4l6.5 6.5l-6.5 6.5l-6.5 -6.5z"/><path class="derived s1" d="M460.0 224.4l6.5 6.5l-6.5 6.5l-6.5 -6.5z"/></g>
    <g><title>Fig. 2: least at 1, then 2</title><circle class="ring" cx="49.2" cy="190.8" r="7.5"/></g>
    <g><title>Fig. 2: least at 1, then 2</title><circle class="ring next" cx="249.6" cy="160.0" r="7.5"/></g>
    <text class="small" x="249.6" y="347.0" text-anchor="middle">guests</text>
    </svg>
    "#);
}

#[test]
fn a_page_is_well_formed_and_asks_for_nothing() {
    let experiments = [experiment()];
    let outcomes = [outcome(&experiments[0])];
    let varied = varied(&experiments);
    let report = Report::new(&experiments, &outcomes, &varied);
    let page = html::page(&report);
    assert_well_formed(
        &page[..page.find("<style>").unwrap()].replace("<html lang=\"en\">\n<head>", ""),
    );
    assert_well_formed(&page[page.find("<body>").unwrap()..].replace("</html>", ""));
    assert!(page.contains("fitted to Fig. 1 &lt;there&gt;"));
    for outside in ["http:", "https:", "url(", "@import", "<script", "<link", "<img", "src="] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(page.contains("Streams &amp; &lt;b&gt;guests&lt;/b&gt;"));
    assert!(page.contains("two cores &amp; a &lt;watch&gt;") && page.contains("it is &lt;not&gt;"));
    let ids: Vec<_> = page.split(" id=\"").skip(1).filter_map(|it| it.split('"').next()).collect();
    for (number, id) in ids.iter().enumerate() {
        assert!(!ids[..number].contains(id), "two elements are called {id}");
    }
    for (name, text) in markdown::files(&report) {
        if name.ends_with(".svg") {
            assert_well_formed(&text);
        }
    }
}

#[test]
fn the_same_as_markdown() {
    let experiments = [experiment()];
    let outcomes = [outcome(&experiments[0])];
    let files = markdown::files(&Report::new(&experiments, &outcomes, &[]));
    let names: Vec<_> = files.iter().map(|file| file.0.as_str()).collect();
    assert_eq!(names, ["README.md", "small-cpu_percent.svg", "small-calls_per_s.svg", "small.md"]);
    let verdicts = markdown::verdicts(&Report::new(&experiments, &outcomes, &[]), &[7]);
    let (same, rest) = verdicts.split_once("What the verdicts mean").unwrap();
    let (_, digests) = rest.split_once("## Digests").unwrap();
    assert!(files[0].1.replace("[small](small.md)", "small").starts_with(same), "{same}");
    assert!(digests.contains("| 0000000000000007 | "), "{digests}");
    let page = files[3].1.split("## What things cost").next().unwrap();
    insta::assert_snapshot!(format!("{}\n----\n{page}", files[0].1), @r#"
    # What the papers say, and what comes out here

    Written by `weir lab report`, in virtual time.

    ## Figures

    - Nobody \| 2099: of 3 figures 1 reproduced, 1 direction only, 1 not
    - **All: of 3 figures 1 reproduced, 1 direction only, 1 not**

    | paper | figure | verdict | claims reproduced | why not |
    |---|---|---|---|---|
    | Nobody \| 2099 | Fig. 1 | ≈ direction only | 0 of 2 | 1 guest \<held\>: it is \<not\>. 3 guests gain a tenth: so it is |
    | Nobody \| 2099 | Fig. 2 | ✓ reproduced | 1 of 1 |  |
    | Nobody \| 2099 | Fig. 3 | ✗ not | 0 of 1 | fewer calls: so it is |

    ## Claims

    Of 4 claims: **1 reproduced, 2 direction only, 1 not**.

    | experiment | figure | says | used to | paper | here | verdict | why not |
    |---|---|---|---|---|---|---|---|
    | [small](small.md) | Fig. 1 | 1 guest \<held\> | fit | 20.0 | 40.0 | ≈ direction only | it is \<not\> |
    | [small](small.md) | Fig. 1 | 3 guests gain a tenth | predict | x 0.90 | x 2.00 | ≈ direction only | so it is |
    | [small](small.md) | Fig. 2 | least at 1, then 2 | predict | 1 \< 2 | 1 \< 2 | ✓ reproduced |  |
    | [small](small.md) | Fig. 3 | fewer calls | predict | down | +100.0 % | ✗ not | so it is |

    - [Streams \& \<b\>guests\</b\>](small.md)

    ----
    # Streams \& \<b\>guests\</b\>

    Nobody \| 2099. `a/small.toml`, on a \<host\>; seeds 1, 2; 7 events. Written by `weir lab report`.

    | figure | says | where | used to | paper | here | verdict | why not |
    |---|---|---|---|---|---|---|---|
    | Fig. 1 | 1 guest \<held\> | page "1" | fit | 20.0 | 40.0 | ≈ direction only | it is \<not\> |
    | Fig. 1 | 3 guests gain a tenth | page 1 | predict | x 0.90 | x 2.00 | ≈ direction only | so it is |
    | Fig. 2 | least at 1, then 2 | page 1 | predict | 1 \< 2 | 1 \< 2 | ✓ reproduced |  |
    | Fig. 3 | fewer calls | page 1 | predict | down | +100.0 % | ✗ not | so it is |

    ## CPU (%)

    ![CPU (%)](small-cpu_percent.svg)

    <details><summary>Numbers</summary>

    | guests | at \<once\> | held | held, measured | paper |
    |---|---|---|---|---|
    | 1 | 10.0 (9.0 to 11.0) | 40.0 (39.0 to 41.0) | - | held: 20.0 (Fig. 1: 1 guest \<held\>); held: least (Fig. 2: least at 1, then 2) |
    | 2 | 20.0 (19.0 to 21.0) | 50.0 (49.0 to 51.0) | - | held: number 2 from the least (Fig. 2: least at 1, then 2) |
    | 3 | 30.0 (29.0 to 31.0) | 60.0 (59.0 to 61.0) | 30.0 (25.0 to 40.0) | held: 27.0 from ours (Fig. 1: 3 guests gain a tenth) |

    </details>

    ## Calls/s

    ![Calls/s](small-calls_per_s.svg)

    <details><summary>Numbers</summary>

    | guests | at \<once\> | held | paper |
    |---|---|---|---|
    | 1 | 10.0 (9.0 to 11.0) | 40.0 (39.0 to 41.0) |  |
    | 2 | 20.0 (19.0 to 21.0) | 50.0 (49.0 to 51.0) |  |
    | 3 | 30.0 (29.0 to 31.0) | 60.0 (59.0 to 61.0) | held: down (Fig. 3: fewer calls) |

    </details>

    Measured: two cores \& a \<watch\>
    "#);
}

#[test]
fn each_fitted_cost_is_varied_and_the_claims_judged_again() {
    let experiments = [experiment()];
    let runs = sensitivity::runs(&experiments).unwrap();
    assert_eq!(
        runs,
        7 * 4,
        "seven values, the first seed, and of six points those that claims are about"
    );
    let varied = varied(&experiments);
    let [interrupt] = &varied[..] else { panic!("{varied:?}") };
    assert_eq!((interrupt.cost.as_str(), interrupt.value.as_str()), ("interrupt", "30us"));
    let ratios: Vec<_> = interrupt.claims[0].at.iter().map(|at| at.ratio.unwrap()).collect();
    assert_eq!(ratios.len(), 7);
    assert!(ratios.windows(2).all(|pair| pair[0] < pair[1]), "more CPU each: {ratios:?}");
    assert_eq!(interrupt.claims[2].at[0].ratio, None, "an order has no size");
    let said = interrupt.to_string();
    assert!(said.starts_with("interrupt = 30us, fitted to Fig. 1 <there>\nmachine: "), "{said}");
    assert_eq!(said.lines().filter(|line| line.starts_with("Fig.")).count(), 4, "{said}");
}

#[test]
fn what_takes_too_long_with_costs_varied_is_refused_before_it_starts() {
    let text = SMALL.replace("\"5ms\"", "\"60s\"");
    let mut machine = machine();
    for cost in &mut machine.costs {
        cost.origin = profile::Origin::Fitted;
    }
    let source = Source { name: "small.toml", text: &text };
    let experiment = Experiment::parse(source, None, |_| Ok(Some(machine.clone()))).unwrap();
    let error = sensitivity::runs(&[experiment]).unwrap_err().to_string();
    assert!(error.starts_with("small.toml would take about "), "{error}");
    assert!(
        error.ends_with("events with each fitted number varied; at most 10000000000 may be run")
    );
}

/// Every experiment of weir has a page. Its plots are not empty, and show all of the papers' statements.
#[test]
fn every_experiment_has_plots_with_all_its_claims() {
    for (name, text) in EXPERIMENTS.iter() {
        let experiment = parse(Source { name, text }, None, None).unwrap();
        let outcome = outcome(&experiment);
        let charts = chart::all(&experiment, &outcome);
        for claim in &experiment.file.claims {
            let says = format!("{}: {}", claim.figure, claim.says);
            let marks = charts.iter().flat_map(|chart| &chart.marks);
            assert!(marks.into_iter().any(|mark| mark.says == says), "{name}: {says}");
        }
        for chart in &charts {
            let drawn = chart.series.iter().flat_map(|series| series.simulated.iter().flatten());
            assert_eq!(drawn.count(), chart.series.len() * chart.x.len(), "{}", chart.id);
            assert_well_formed(&svg::file(chart));
        }
    }
}

#[test]
fn what_is_not_a_number_is_not_drawn() {
    let experiment = experiment();
    let mut chart = chart::all(&experiment, &outcome(&experiment)).remove(0);
    assert!(numeric(&chart.x).is_some());
    chart.series[0].simulated = vec![None, None, None];
    chart.series.truncate(1);
    chart.marks = vec![Mark { series: 0, x: 0, kind: MarkKind::Up, says: "<up>".into() }];
    assert_well_formed(&svg::inline(&chart));
    chart.x = vec!["a name".into(), "another".into(), "and one more".into()];
    assert_well_formed(&svg::inline(&chart));
}

#[test]
fn measured_numbers_are_in_order_and_at_points_that_there_are() {
    let problem = |from: &str, to: &str| {
        assert!(SMALL.contains(from), "{from}");
        let text = SMALL.replacen(from, to, 1);
        parse(Source { name: "small.toml", text: &text }, None, None).unwrap_err().to_string()
    };
    let order = "small.toml: expected numbers with `min` <= `mean` <= `max`";
    assert_eq!(problem("mean = 30.0", "mean = 50.0"), order);
    assert_eq!(problem("mean = 30.0", "mean = nan"), order);
    assert_eq!(
        problem("at = { guests = \"3\"", "at = { guests = \"4\""),
        "small.toml: there is no point `calls held, guests 4`, expected a point of each of: guests, calls"
    );
}

fn report(names: &[&str], folder: &Path) -> Result<String, LabError> {
    let args = LabReportArgs {
        names: names.iter().map(|name| (*name).to_owned()).collect(),
        all: false,
        html: Some(folder.join("page.html")),
        markdown: Some(folder.join("pages/of/it")),
        verdicts: Some(folder.join("verdicts.md")),
        measured: false,
        sensitivity: false,
        seed: None,
        profile: None,
    };
    let mut out = Vec::new();
    run(&args, &mut out).map(|()| String::from_utf8(out).unwrap())
}

#[test]
fn files_are_the_same_to_the_byte_again() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("small.toml");
    fs::write(&source, SMALL).unwrap();
    let written = || {
        let said = report(&[source.to_str().unwrap()], folder.path()).unwrap();
        assert_eq!(said.lines().count(), 3, "{said}");
        let mut files = Vec::new();
        for path in [folder.path().to_owned(), folder.path().join("pages/of/it")] {
            let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
            files.extend(entries.filter(|it| it.is_file()).map(|it| (fs::read(&it).unwrap(), it)));
        }
        files.sort();
        files
    };
    let first = written();
    assert_eq!(first.len(), 7, "source, page, verdicts, index, experiment and two plots");
    assert_eq!(first, written());
}

#[test]
fn a_report_that_cannot_be_written_or_run_leaves_what_there_was() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    fs::write(&page, "before").unwrap();
    let error = report(&["dong-fig11", "nothing-such"], folder.path()).unwrap_err();
    assert_eq!(error.to_string(), "there is no experiment called `nothing-such`");
    let error = report(&["dong-fig11", "dong-fig11"], folder.path()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "two experiments are called `dong-fig11`, so one's files would overwrite the other's"
    );
    assert_eq!(fs::read_to_string(&page).unwrap(), "before");
    let nowhere = folder.path().join("no-such-folder");
    let error = report(&["dong-fig11"], &nowhere).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot write {}", nowhere.join("page.html").display()));
}

/// The page of verdicts in the repository.
fn committed() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/lab.md");
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

const AGAIN: &str = "docs/lab.md is not of today: `make lab-report` writes it again";

/// Compares all experiments by their beginnings, and fast ones also by their pages and plots.
#[test]
fn the_report_in_the_repository_is_the_one_that_comes_out() {
    const SHORT: [&str; 4] = ["raj-fig4", "raj-fig8", "raj-fig9", "thakur-table1"];
    let all = selected(&[], None, None).unwrap();
    let page = committed();
    let (_, digests) = page.split_once("\n## Digests\n").unwrap();
    let begins = |row: &&str, name: &str| row.starts_with(&format!("| {name} | "));
    let beginnings = content::beginnings(&all).unwrap();
    for (experiment, beginning) in all.iter().zip(&beginnings) {
        let row = digests.lines().find(|row| begins(row, &experiment.name));
        let found = row.is_some_and(|row| row.contains(&format!(" | {beginning:016x} | ")));
        assert!(found, "{}: {AGAIN}", experiment.name);
    }
    assert_eq!(digests.matches("\n| ").count(), all.len() + 1, "a head and a row each: {AGAIN}");
    let (short, beginnings): (Vec<_>, Vec<_>) =
        all.into_iter().zip(beginnings).filter(|(it, _)| SHORT.contains(&&*it.name)).unzip();
    assert_eq!(short.len(), SHORT.len());
    let outcomes = run_each(&short, &indicatif::ProgressBar::hidden()).unwrap();
    let text = markdown::verdicts(&Report::new(&short, &outcomes, &[]), &beginnings);
    let rows: Vec<_> =
        text.lines().filter(|row| SHORT.iter().any(|name| begins(row, name))).collect();
    assert!(rows.len() > 20, "{text}");
    rows.iter().for_each(|row| assert!(page.lines().any(|it| it == *row), "{AGAIN}: {row}"));
    for (experiment, outcome) in short.iter().zip(&outcomes) {
        let expected = experiment.events_expected();
        assert!(outcome.events <= expected, "{}: {} events", experiment.name, outcome.events);
    }
}

/// All figures that the project aims to reproduce.
const FIGURES: &[(&str, &[&str])] = &[
    (
        "Dong 2011",
        &[
            "Fig. 2", "Fig. 6", "Fig. 7", "Fig. 8", "Fig. 9", "Fig. 10", "Fig. 11", "Fig. 12",
            "Fig. 13", "Fig. 14", "Fig. 15", "Fig. 16", "Abstract",
        ],
    ),
    ("Raj 2006", &["Fig. 4", "Fig. 5", "Fig. 6", "Fig. 6b", "Fig. 8", "Fig. 9"]),
    (
        "Thakur 2014",
        &["Table 1", "Section III, low rate", "Section III, high rate", "Section III, peak"],
    ),
    ("Zhang 2010", &["Ladder"]),
    ("Guo 2009", &["iperf", "SPECweb2005"]),
];

#[test]
fn every_figure_that_was_set_out_for_has_a_verdict_and_a_reason() {
    let experiments = selected(&[], None, None).unwrap();
    let outcomes: Vec<_> = experiments.iter().map(outcome).collect();
    let judged = Standings::of(&outcomes);
    let page = committed();
    for (paper, figures) in FIGURES {
        for figure in *figures {
            let there = judged.0.iter().any(|it| it.paper == *paper && it.figure == *figure);
            assert!(there, "no claim is about {paper}, {figure}");
            let row = format!("| {paper} | {figure} | ");
            let row = page.lines().find_map(|line| line.strip_prefix(&row));
            let row = row.unwrap_or_else(|| panic!("{paper}, {figure}: {AGAIN}"));
            let good = row.starts_with(Verdict::Reproduced.sign());
            assert_eq!(good, row.ends_with("|  |"), "{paper}, {figure} needs a reason: {row}");
        }
    }
    assert!(!page.contains("| not known |"), "a claim without a reason");
}

/// WCAG 2.2, 1.4.11 and 1.4.3: a contrast of 3:1 for graphics and of 4.5:1 for text.
#[test]
fn colours_can_be_told_from_the_page() {
    let luminance = |colour: &str| {
        let digits: String = match colour.len() {
            4 => colour[1..].chars().flat_map(|digit| [digit, digit]).collect(),
            _ => colour[1..].to_owned(),
        };
        let part = |at: usize| {
            let share = f64::from(u8::from_str_radix(&digits[at..at + 2], 16).unwrap()) / 255.0;
            if share <= 0.04045 { share / 12.92 } else { ((share + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * part(0) + 0.7152 * part(2) + 0.0722 * part(4)
    };
    for palette in [svg::LIGHT, svg::DARK] {
        let colours: Vec<_> =
            palette.split(';').filter_map(|it| it.trim().split_once(':')).collect();
        let of = |name| luminance(colours.iter().find(|it| it.0 == name).unwrap().1);
        for (name, colour) in &colours {
            let least = match *name {
                "--page" | "--ground" | "--line" => continue,
                "--ink" | "--soft" | "--link" | "--good" | "--part" | "--bad" => 4.5,
                _ => 3.0,
            };
            for ground in ["--page", "--ground"] {
                let (a, b) = (luminance(colour), of(ground));
                let contrast = (a.max(b) + 0.05) / (a.min(b) + 0.05);
                assert!(contrast >= least, "{name} {colour} on {ground}: {contrast:.2}");
            }
        }
    }
}
