//! A [`Sensitivity`] as SVG: the changes of each claim's number and verdict while one fitted cost is varied.

use std::fmt::Write as _;

use super::axis::short;
use super::svg::standalone;
use super::svg::{Escaped, cut, lines};
use super::svg::{MARGIN, WIDTH, begin, small};
use crate::sensitivity::{AtPercent, PERCENTS, Sensitivity, Varied};
use crate::verdict::{TOLERANCE, Verdict};

/// Height of a claim's text and drawing.
const ROW: f64 = 44.0;
/// Middle of the drawing, from the top of its row.
const MIDDLE: f64 = 29.0;
/// End of the area of the numbers, and start of the verdicts.
const AREA_END: f64 = 316.0;
const VERDICTS: f64 = 336.0;
/// Size of a verdict's square, and distance between two squares.
const SQUARE: f64 = 15.0;
const SQUARES: f64 = 18.5;
/// Limits of the ratio of our number to the paper's in the area. Numbers beyond are drawn at the edge.
const RATIOS: (f64, f64) = (-1.0, 3.0);
/// Most letters of a claim.
const LETTERS_MAX: usize = 70;

/// Returns a name for links and file names. `number` is the index among all plots.
pub fn id(number: usize, it: &Sensitivity) -> String {
    format!("sensitivity-{}-{}", number + 1, it.cost)
}

/// Returns the plot as an element of a page.
pub fn inline(id: &str, it: &Sensitivity) -> String {
    draw(id, it, "", "")
}

/// Returns the plot as a file's text.
pub fn file(id: &str, it: &Sensitivity) -> String {
    draw(id, it, " xmlns=\"http://www.w3.org/2000/svg\"", &standalone())
}

/// Returns the plot's heading.
pub fn heading(it: &Sensitivity) -> String {
    format!("{} = {}, varied", it.cost, it.value)
}

fn draw(id: &str, it: &Sensitivity, attributes: &str, style: &str) -> String {
    let width_max = WIDTH - 2.0 * MARGIN;
    let fitted = lines(&format!("fitted to {}", it.fitted), 11.0, width_max);
    let legend = 30.0 + 14.0 * fitted.len() as f64;
    let top = legend + 44.0;
    let bottom = top + ROW * it.claims.len() as f64;
    let height = bottom + 34.0;
    let described = "Of each claim, the number here over the paper's, and the verdict, with this cost from half to one \
                     and a half times what was fitted. The table below has the numbers.";
    let heading = heading(it);
    let mut svg = begin([attributes, style], height, [id, &heading, &heading, described]);
    for (number, line) in fitted.iter().enumerate() {
        let y = 38.0 + 14.0 * number as f64;
        let line = Escaped(line);
        let _ = writeln!(svg, "<text class=\"small\" x=\"{MARGIN}\" y=\"{y:.1}\">{line}</text>");
    }
    draw_legend(&mut svg, legend + 10.0);
    let (from, to) = range(it);
    let x = |ratio: f64| {
        let share = ((ratio - from) / (to - from)).clamp(0.0, 1.0);
        MARGIN + 8.0 + (AREA_END - MARGIN - 8.0) * share
    };
    let halves = ((to - from) * 2.0).round() as usize;
    let ticks: Vec<f64> = (0..=halves).map(|half| from + half as f64 / 2.0).collect();
    for tick in &ticks {
        let _ = writeln!(svg, "{}", small(x(*tick), bottom + 14.0, "middle", short(*tick)));
    }
    for number in 0..it.claims.len() {
        grid(&mut svg, &ticks, top + ROW * number as f64 + MIDDLE, x);
    }
    for (number, claim) in it.claims.iter().enumerate() {
        row(&mut svg, claim, top + ROW * number as f64, x);
    }
    let _ = writeln!(
        svg,
        "{}\n</svg>",
        small((MARGIN + AREA_END) / 2.0, bottom + 28.0, "middle", "here over paper"),
    );
    svg
}

/// Returns the range of the area, in steps of a half.
fn range(it: &Sensitivity) -> (f64, f64) {
    let ratios = || it.claims.iter().flat_map(|claim| &claim.at).filter_map(|at| at.ratio);
    let least = ratios().fold(0.0, f64::min).max(RATIOS.0);
    let most = ratios().fold(2.0, f64::max).min(RATIOS.1);
    ((least * 2.0).floor() / 2.0, (most * 2.0).ceil() / 2.0)
}

fn draw_legend(svg: &mut String, y: f64) {
    let middle = y + 4.0;
    let entries = [(MARGIN + 8.0, -50, "-50 %"), (96.0, 0, "as fitted"), (196.0, 50, "+50 %")];
    for (x, percent, words) in entries {
        let _ = writeln!(
            svg,
            "{}<text x=\"{:.1}\" y=\"{middle:.1}\">{words}</text>",
            dot(percent, x, y),
            x + 12.0
        );
    }
    for (number, (percent, _)) in PERCENTS.iter().enumerate() {
        if [-50, 0, 50].contains(percent) {
            let x = VERDICTS + SQUARES * number as f64 + SQUARE / 2.0;
            let words = if *percent == 0 { "0".to_owned() } else { format!("{percent:+}") };
            let _ = writeln!(svg, "{}", small(x, y + 28.0, "middle", words));
        }
    }
    let _ = writeln!(
        svg,
        "<text class=\"small\" x=\"{MARGIN}\" y=\"{:.1}\">green: within {:.0} % of the paper</text>\
         <text class=\"small\" x=\"{VERDICTS}\" y=\"{middle:.1}\">verdict, cost at ... %</text>",
        y + 26.0,
        100.0 * TOLERANCE,
    );
}

fn dot(percent: i64, x: f64, y: f64) -> String {
    match percent {
        ..0 => format!("<circle class=\"less\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.5\"/>"),
        0 => format!("<path class=\"as-is\" d=\"M{x:.1} {:.1}v14\"/>", y - 7.0),
        1.. => format!("<circle class=\"more\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5\"/>"),
    }
}

/// Draws the lines behind a claim's numbers, and the range of reproduced numbers.
fn grid(svg: &mut String, ticks: &[f64], middle: f64, x: impl Fn(f64) -> f64) {
    let (high, low) = (middle - 10.0, middle + 10.0);
    let (from, to) = (x(1.0 - TOLERANCE), x(1.0 + TOLERANCE));
    let _ = writeln!(
        svg,
        "<rect class=\"band\" x=\"{from:.1}\" y=\"{high:.1}\" width=\"{:.1}\" height=\"20\"/>",
        to - from
    );
    for tick in ticks {
        let class = if *tick == 1.0 { "exact" } else { "grid" };
        let _ =
            writeln!(svg, "<path class=\"{class}\" d=\"M{:.1} {high:.1}V{low:.1}\"/>", x(*tick));
    }
}

/// Draws a claim: its text, its numbers, and its verdicts.
fn row(svg: &mut String, claim: &Varied, top: f64, x: impl Fn(f64) -> f64) {
    let words = format!("{}: {} ({})", claim.figure, claim.says, claim.used.as_str());
    let y = top + MIDDLE;
    let _ = writeln!(
        svg,
        "<text class=\"small\" x=\"{MARGIN}\" y=\"{:.1}\">{}</text>",
        top + 14.0,
        Escaped(&cut(&words, LETTERS_MAX)),
    );
    let places: Vec<(i64, f64)> =
        claim.at.iter().filter_map(|at| Some((at.percent, x(at.ratio?)))).collect();
    // A number beyond the edge is written as text, if there is space.
    let as_is = claim.at.iter().find(|at| at.percent == 0).and_then(|at| at.ratio);
    let beyond = as_is.filter(|ratio| *ratio < RATIOS.0 || *ratio > RATIOS.1);
    let still = places.windows(2).all(|pair| pair[0].1 == pair[1].1);
    if let Some(ratio) = beyond.filter(|_| still) {
        let (left, anchor) = if ratio < 0.0 { (12.0, "start") } else { (-12.0, "end") };
        let _ = writeln!(svg, "{}", small(x(ratio) + left, y + 4.0, anchor, short(ratio)));
    }
    if let (Some((_, first)), Some((_, last))) = (places.first(), places.last()) {
        let low = places.iter().map(|place| place.1).fold(first.min(*last), f64::min);
        let high = places.iter().map(|place| place.1).fold(first.max(*last), f64::max);
        let _ = writeln!(svg, "<path class=\"span\" d=\"M{low:.1} {y:.1}H{high:.1}\"/>");
    }
    for (percent, x) in places.iter().filter(|place| [-50, 0, 50].contains(&place.0)) {
        let _ = writeln!(svg, "{}", dot(*percent, *x, y));
    }
    for (number, AtPercent { verdict, .. }) in claim.at.iter().enumerate() {
        let class = match verdict {
            Verdict::Reproduced => "good",
            Verdict::DirectionOnly => "part",
            Verdict::Not => "bad",
        };
        let x = VERDICTS + SQUARES * number as f64;
        let _ = writeln!(
            svg,
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{:.1}\" width=\"{SQUARE}\" height=\"{SQUARE}\" rx=\"3\"/>\
             <text class=\"on\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            y - SQUARE / 2.0,
            x + SQUARE / 2.0,
            y + 4.0,
            verdict.sign(),
        );
    }
}
