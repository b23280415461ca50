//! The page. It loads nothing and runs no script: CSS selects colours, and a policy in its head forbids everything
//! else.

use std::fmt::{self, Write as _};

use super::content::{Entry, Report, Tally, moves, numbers};
use super::moves as drawn;
use super::svg;
use super::svg::Escaped;
use super::svg::{DARK, LIGHT, PLOT};
use crate::file::Use;
use crate::papers::Standings;
use crate::profile::{Machine, Origin};
use crate::verdict::{Judged, Verdict};

/// Styles of everything except plots.
const PAGE: &str = include_str!("page.css");

const COLOURS: &str = "<fieldset><legend>Colours</legend>\
    <label><input type=\"radio\" name=\"colours\" checked> system</label>\
    <label><input type=\"radio\" name=\"colours\" id=\"light\"> light</label>\
    <label><input type=\"radio\" name=\"colours\" id=\"dark\"> dark</label></fieldset>\n";

/// Returns the page's text.
pub fn page(report: &Report<'_>) -> String {
    let mut page = String::new();
    // Writing to a string cannot fail.
    let _ = write(&mut page, report);
    page
}

fn write(page: &mut String, report: &Report<'_>) -> fmt::Result {
    let tally = Tally::of(report.claims());
    writeln!(
        page,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>weir lab: {}</title>\n<style>\n:root {{ color-scheme: light; {LIGHT} }}\n\
         @media (prefers-color-scheme: dark) {{ :root {{ color-scheme: dark; {DARK} }} }}\n\
         :root:has(#light:checked) {{ color-scheme: light; {LIGHT} }}\n\
         :root:has(#dark:checked) {{ color-scheme: dark; {DARK} }}\n{PLOT}{PAGE}</style>\n</head>\n<body>",
        match report.figures.0.is_empty() {
            true => tally.words(),
            false => Standings::tally(&report.figures.0),
        },
    )?;
    summary(page, report, tally)?;
    page.push_str("<main>\n");
    for entry in &report.entries {
        section(page, entry)?;
    }
    sensitivity(page, report)?;
    page.push_str(
        "</main>\n<section id=\"machines\">\n<h2>What things cost on the machines</h2>\n",
    );
    let mut titles: Vec<&str> = Vec::new();
    for machine in report.entries.iter().flat_map(|entry| &entry.experiment.machines) {
        if !titles.contains(&machine.title.as_str()) {
            titles.push(&machine.title);
            costs(page, machine)?;
        }
    }
    writeln!(
        page,
        "</section>\n<footer>weir {}, <code>weir lab report</code>. Computed in virtual time; the same \
         experiments and seeds give the same page.</footer>\n</body>\n</html>",
        env!("CARGO_PKG_VERSION")
    )
}

/// Writes all verdicts.
fn summary(page: &mut String, report: &Report<'_>, tally: Tally) -> fmt::Result {
    writeln!(
        page,
        "<header>\n{COLOURS}<h1>What the papers say, and what comes out here</h1>\n<p class=\"soft\">The \
         papers' experiments, run by weir's own policies in virtual time</p>"
    )?;
    let of_figures = |verdict| report.figures.0.iter().filter(|it| it.verdict == verdict).count();
    let figures = Tally {
        reproduced: of_figures(Verdict::Reproduced),
        direction_only: of_figures(Verdict::DirectionOnly),
        not: of_figures(Verdict::Not),
    };
    headline(page, figures, "figures")?;
    headline(page, tally, "claims")?;
    for (used, what) in [(Use::Predict, "predicted"), (Use::Fit, "fitted to")] {
        let part = Tally::of(report.claims().filter(|claim| claim.used == used));
        if part.all() > 0 {
            writeln!(page, "<p class=\"soft\">{what} ({}): {}</p>", part.all(), part.words())?;
        }
    }
    page.push_str("</header>\n");
    figure_verdicts(page, &report.figures)?;
    page.push_str("<section id=\"verdicts\">\n<h2>All claims</h2>\n");
    page.push_str(
        "<p class=\"soft\">reproduced: direction, order of the alternatives, and size within 15 %, as far \
         as the paper gives them. direction only: no more than that. Only what was predicted says something \
         about the model; a cost of the machine was fitted to the rest.</p>\n",
    );
    table_head(page, "", &["Verdict", "Experiment", "Figure", "Says", "Paper", "Here", "Used to"])?;
    for entry in &report.entries {
        for claim in &entry.outcome.claims {
            page.push_str("<tr>");
            verdict(page, claim)?;
            let id = Escaped(&entry.id);
            write!(page, "<td data-name=\"Experiment\"><a href=\"#{id}\">{id}</a></td>")?;
            said(page, claim)?;
            page.push_str("</tr>\n");
        }
    }
    page.push_str("</tbody></table>\n</section>\n");
    Ok(())
}

/// Writes the number of each verdict in words and as a bar.
fn headline(page: &mut String, tally: Tally, of_what: &str) -> fmt::Result {
    if tally.all() == 0 {
        return Ok(());
    }
    writeln!(
        page,
        "<p class=\"headline\"><b>{}</b> of {} {of_what} reproduced, {} direction only, {} not</p>",
        tally.reproduced,
        tally.all(),
        tally.direction_only,
        tally.not
    )?;
    page.push_str("<div class=\"share\" aria-hidden=\"true\">");
    let parts = [("good", tally.reproduced), ("part", tally.direction_only), ("bad", tally.not)];
    for (class, count) in parts.into_iter().filter(|part| part.1 > 0) {
        write!(page, "<span class=\"{class}\" style=\"flex:{count}\"></span>")?;
    }
    page.push_str("</div>\n");
    Ok(())
}

fn figure_verdicts(page: &mut String, figures: &Standings) -> fmt::Result {
    if figures.0.is_empty() {
        return Ok(());
    }
    page.push_str(
        "<section id=\"figures\">\n<h2>Figures</h2>\n<p class=\"soft\">A figure is as good as the worst \
         claim about it. fitted: none of its claims was predicted.</p>\n<ul class=\"soft\">\n",
    );
    for (paper, all) in figures.by_paper() {
        writeln!(page, "<li>{}: {}</li>", Escaped(paper), Standings::tally(all))?;
    }
    page.push_str("</ul>\n");
    table_head(page, "", &["Verdict", "Paper", "Figure", "Claims", "Why not"])?;
    for it in &figures.0 {
        page.push_str("<tr>");
        badge(page, it.verdict, &it.words())?;
        writeln!(
            page,
            "<td class=\"name\" data-name=\"Experiment\">{}</td><td data-name=\"Figure\">{}</td>\
             <td class=\"number\" data-name=\"Claims\">{}</td><td data-name=\"Why not\">{}</td></tr>",
            Escaped(&it.paper),
            Escaped(&it.figure),
            it.share(),
            Escaped(it.reason.as_deref().unwrap_or_default()),
        )?;
    }
    page.push_str("</tbody></table>\n</section>\n");
    Ok(())
}

/// Writes the head of a table that turns into cards on narrow screens.
fn table_head(page: &mut String, caption: &str, names: &[&str]) -> fmt::Result {
    page.push_str("<table class=\"cards\">");
    if !caption.is_empty() {
        write!(page, "<caption>{}</caption>", Escaped(caption))?;
    }
    page.push_str("<thead><tr>");
    for name in names {
        write!(page, "<th scope=\"col\">{name}</th>")?;
    }
    page.push_str("</tr></thead>\n<tbody>\n");
    Ok(())
}

fn verdict(page: &mut String, claim: &Judged) -> fmt::Result {
    badge(page, claim.verdict, &claim.words())
}

/// Writes a verdict with `words` below it.
fn badge(page: &mut String, verdict: Verdict, words: &str) -> fmt::Result {
    let class = match verdict {
        Verdict::Reproduced => "good",
        Verdict::DirectionOnly => "part",
        Verdict::Not => "bad",
    };
    let sign = verdict.sign();
    let (first, rest) = words.split_once(", ").unwrap_or((words, ""));
    write!(page, "<td><span class=\"verdict {class}\">{sign} {}</span>", Escaped(first))?;
    if !rest.is_empty() {
        write!(page, " <small class=\"soft\">{}</small>", Escaped(rest))?;
    }
    page.push_str("</td>");
    Ok(())
}

/// Writes a claim with its result.
fn said(page: &mut String, claim: &Judged) -> fmt::Result {
    write!(
        page,
        "<td data-name=\"Figure\">{}</td><td data-name=\"Says\">{}</td>\
         <td class=\"number\" data-name=\"Paper\">{}</td><td class=\"number\" data-name=\"Here\">{}</td>\
         <td data-name=\"Used to\">{}</td>",
        Escaped(&claim.figure),
        Escaped(&claim.says),
        Escaped(&claim.paper),
        Escaped(&claim.ours),
        claim.used.as_str(),
    )
}

fn section(page: &mut String, entry: &Entry<'_>) -> fmt::Result {
    let Entry { experiment, outcome, id, charts } = entry;
    writeln!(
        page,
        "<section id=\"{id}\">\n<h2>{}</h2>\n<p class=\"soft\">{} <code>{}</code>, on <a \
         href=\"#machines\">{}</a>; seeds {}; {} events</p>",
        Escaped(&outcome.title),
        Escaped(&outcome.paper.as_ref().map(|paper| format!("{paper}.")).unwrap_or_default()),
        Escaped(&outcome.name),
        Escaped(&experiment.machine()),
        outcome.seeds_in_words(),
        outcome.events,
    )?;
    if !outcome.claims.is_empty() {
        table_head(
            page,
            "",
            &["Verdict", "Figure", "Says", "Paper", "Here", "Used to", "Where, and why not"],
        )?;
        for claim in &outcome.claims {
            page.push_str("<tr>");
            verdict(page, claim)?;
            said(page, claim)?;
            write!(page, "<td data-name=\"Where\">{}", Escaped(&claim.source))?;
            if let Some(reason) = &claim.reason {
                write!(page, "<br><strong>Why not:</strong> {}", Escaped(reason))?;
            }
            page.push_str("</td></tr>\n");
        }
        page.push_str("</tbody></table>\n");
    }
    page.push_str("<div class=\"plots\">\n");
    for chart in charts {
        figure(page, &svg::inline(chart), &chart.heading(), numbers(chart))?;
    }
    page.push_str("</div>\n");
    measured(page, entry)?;
    page.push_str("</section>\n");
    Ok(())
}

/// Writes a plot, and a table with the same numbers below it.
fn figure(
    page: &mut String,
    svg: &str,
    caption: &str,
    (head, rows): (Vec<String>, Vec<Vec<String>>),
) -> fmt::Result {
    write!(
        page,
        "<figure>\n{svg}<details><summary>Numbers</summary><div class=\"wide\" tabindex=\"0\"><table>\
         <caption>{}</caption><thead><tr>",
        Escaped(caption),
    )?;
    for name in head {
        write!(page, "<th scope=\"col\">{}</th>", Escaped(&name))?;
    }
    page.push_str("</tr></thead><tbody>\n");
    for row in rows {
        page.push_str("<tr>");
        for (number, cell) in row.iter().enumerate() {
            let cell = Escaped(cell);
            if number == 0 {
                write!(page, "<th scope=\"row\">{cell}</th>")?;
            } else {
                write!(page, "<td class=\"number\">{cell}</td>")?;
            }
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody></table></div></details>\n</figure>\n");
    Ok(())
}

/// Writes the effects of fitted costs.
fn sensitivity(page: &mut String, report: &Report<'_>) -> fmt::Result {
    if report.varied.is_empty() {
        return Ok(());
    }
    page.push_str(
        "<section id=\"sensitivity\">\n<h2>What hangs on the fitted numbers</h2>\n<p class=\"soft\">Each \
         fitted cost is varied alone, and the claims of all experiments on that machine are judged \
         again, by their first seed.</p>\n<div class=\"plots\">\n",
    );
    for (number, it) in report.varied.iter().enumerate() {
        let svg = drawn::inline(&drawn::id(number, it), it);
        figure(page, &svg, &drawn::heading(it), moves(it))?;
    }
    page.push_str("</div>\n</section>\n");
    Ok(())
}

/// Writes the sources of measured figures.
fn measured(page: &mut String, entry: &Entry<'_>) -> fmt::Result {
    for source in entry.measured() {
        writeln!(page, "<p class=\"soft\">Measured: {}</p>", Escaped(source))?;
    }
    Ok(())
}

/// Writes a machine's costs, each with its origin.
fn costs(page: &mut String, machine: &Machine) -> fmt::Result {
    let count = |origin| machine.costs.iter().filter(|cost| cost.origin == origin).count();
    writeln!(
        page,
        "<h3>{}</h3>\n<details><summary>{} costs: {} from a source, {} fitted, {} assumed</summary>",
        Escaped(&machine.title),
        machine.costs.len(),
        count(Origin::Source),
        count(Origin::Fitted),
        count(Origin::Assumed),
    )?;
    table_head(page, "", &["Cost", "Value", "Is", "From"])?;
    for cost in &machine.costs {
        writeln!(
            page,
            "<tr><td><code>{}</code></td><td class=\"number\" data-name=\"Value\">{}</td>\
             <td data-name=\"Is\">{}</td><td data-name=\"From\">{}</td></tr>",
            cost.name,
            Escaped(&cost.value),
            cost.origin.as_str(),
            Escaped(&cost.text),
        )?;
    }
    page.push_str("</tbody></table></details>\n");
    Ok(())
}
