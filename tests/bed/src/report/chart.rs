//! Horizontal bars as SVG: medians, whiskers from smallest to largest, and a mark at each goal; and lines over a load.
//! Light or dark by the reader's system.

use std::fmt::Write as _;

use super::Goal;

/// A ratio in the chart.
#[derive(Clone, Copy, Debug)]
pub struct Bar<'a> {
    /// The label.
    pub name: &'a str,
    /// The length.
    pub median: f64,
    /// The start of the whisker.
    pub min: f64,
    /// The end of the whisker.
    pub max: f64,
    /// The position of the mark.
    pub goal: Goal,
}

/// Lengths, in the SVG's units.
const WIDTH: f64 = 860.0;
const LEFT: f64 = 240.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 64.0;
const ROW: f64 = 38.0;
const BAR: f64 = 18.0;
const BOTTOM: f64 = 48.0;

/// Largest number of lines of the scale.
const TICKS_MAX: f64 = 8.0;

/// The style sheet at the start of every chart, after its size.
const STYLE: &str = "<style>
  .page { fill: #fbfaf7; stroke: #d8d4ca; } text { fill: #23262b; font-size: 14px; }
  .title { font-size: 16px; font-weight: 600; } .small { font-size: 12px; fill: #4c515a; }
  .grid { stroke: #e3dfd5; } .reached { fill: #2f6f9f; } .missed { fill: #c0763a; }
  .whisker { stroke: #23262b; stroke-width: 1.5; fill: none; } .goal { stroke: #7a1f5c; stroke-width: 3; }
  .line { fill: none; stroke-width: 2; } @media (prefers-color-scheme: dark) {
  .page { fill: #15191e; stroke: #333a44; } text { fill: #e4e7eb; } .small { fill: #b3bac4; }
  .grid { stroke: #2b323b; } .reached { fill: #5aa5db; } .missed { fill: #d9924f; }
  .whisker { stroke: #e4e7eb; } .goal { stroke: #f08cc8; } }
</style>
";

/// The chart as a file's text.
pub fn draw(bars: &[Bar<'_>]) -> String {
    let longest = bars.iter().flat_map(|bar| [bar.max, bar.goal.bound()]).fold(1.0, f64::max);
    let step = step_for(longest);
    let end = (longest / step).ceil() * step;
    let x = |value: f64| LEFT + (WIDTH - LEFT - RIGHT) * value / end;
    let rows_end = TOP + ROW * bars.len() as f64;
    let height = rows_end + BOTTOM;

    let mut svg = begin(
        height,
        [
            "weir against its peers and its goals",
            "weir as a multiple of each peer or limit",
            "bar: median; whisker: smallest to largest round; upright mark: goal; brown: missed",
        ],
    );
    let mut tick = 0.0;
    while tick <= end + step / 2.0 {
        let at = x(tick);
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{rows_end}\"/>\
             <text class=\"small\" x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{}x</text>",
            rows_end + 20.0,
            (tick * 100.0).round() / 100.0,
        );
        tick += step;
    }
    for (row, bar) in bars.iter().enumerate() {
        draw_bar(&mut svg, bar, TOP + ROW * (row as f64 + 0.5), x);
    }
    svg.push_str("</svg>\n");
    svg
}

/// The beginning of a chart with a name, a heading and an explanation.
fn begin(height: f64, [name, heading, explained]: [&str; 3]) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         aria-labelledby=\"title\" font-family=\"system-ui, 'Segoe UI', Helvetica, Arial, \
         sans-serif\">\n<title id=\"title\">{name}</title>\n{STYLE}\
         <rect class=\"page\" x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{}\" rx=\"8\"/>\n\
         <text class=\"title\" x=\"20\" y=\"30\">{heading}</text>\n\
         <text class=\"small\" x=\"20\" y=\"49\">{explained}</text>\n",
        WIDTH - 1.0,
        height - 1.0,
    )
}

/// A value over a load, for several series by name; both axes are logarithmic.
pub struct Panel<'a> {
    /// The heading.
    pub name: &'a str,
    /// Points of each series: load, value.
    pub series: Vec<(&'a str, Vec<(f64, f64)>)>,
}

const PANEL: f64 = 300.0;
const AXIS: f64 = 90.0;
/// Room for the names of the series.
const NAMES: f64 = 190.0;

/// Panels below each other as a file's text. A series has the same colour in each panel.
pub fn draw_lines(texts: [&str; 3], panels: &[Panel<'_>]) -> String {
    let mut svg = begin(TOP + PANEL * panels.len() as f64 + 12.0, texts);
    for (number, panel) in panels.iter().enumerate() {
        draw_panel(&mut svg, panel, TOP + PANEL * number as f64);
    }
    svg.push_str("</svg>\n");
    svg
}

fn draw_panel(svg: &mut String, Panel { name, series }: &Panel<'_>, top: f64) {
    let points = || series.iter().flat_map(|(_, points)| points.iter().copied());
    // The next powers of ten at both ends.
    let powers = |of: fn((f64, f64)) -> f64| {
        let least = points().map(of).fold(f64::INFINITY, f64::min);
        let most = points().map(of).fold(0.0, f64::max);
        (least.log10().floor(), most.log10().ceil())
    };
    let (loads, values) = (powers(|point| point.0), powers(|point| point.1));
    let place = |value: f64, (from, to): (f64, f64)| (value.log10() - from) / (to - from).max(1.0);
    let (right, above, below) = (WIDTH - NAMES, top + 24.0, top + PANEL - 34.0);
    let x = |load: f64| AXIS + (right - AXIS) * place(load, loads);
    let y = |value: f64| below - (below - above) * place(value, values);
    let _ = write!(svg, "<text class=\"small\" x=\"20\" y=\"{:.1}\">{name}</text>", top + 12.0);
    for power in loads.0 as i32..=loads.1 as i32 {
        let at = x(10_f64.powi(power));
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{above}\" y2=\"{below}\"/>\
             <text class=\"small\" x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}/s</text>",
            below + 18.0,
            10_f64.powi(power),
        );
    }
    for power in values.0 as i32..=values.1 as i32 {
        let at = y(10_f64.powi(power));
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{AXIS}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text class=\"small\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            AXIS - 8.0,
            at + 4.0,
            10_f64.powi(power),
        );
    }
    for (number, (name, points)) in series.iter().enumerate() {
        let color = format!("hsl({:.0}, 60%, 48%)", 360.0 * number as f64 / series.len() as f64);
        let places: Vec<_> = points
            .iter()
            .map(|(load, value)| format!("{:.1},{:.1}", x(*load), y(*value)))
            .collect();
        let at = above + 14.0 + 26.0 * number as f64;
        let _ = write!(
            svg,
            "<polyline class=\"line\" stroke=\"{color}\" points=\"{}\"/><path class=\"line\" \
             stroke=\"{color}\" d=\"M{:.1} {at:.1}h18\"/><text class=\"small\" x=\"{:.1}\" y=\"{:.1}\">{name}</text>",
            places.join(" "),
            right + 12.0,
            right + 36.0,
            at + 4.0,
        );
    }
    svg.push('\n');
}

/// Draws one row whose middle is at `y`. `x` maps a value to its position.
fn draw_bar(svg: &mut String, bar: &Bar<'_>, y: f64, x: impl Fn(f64) -> f64) {
    let Bar { name, median, min, max, goal } = *bar;
    let class = if goal.reached_by(median) { "reached" } else { "missed" };
    let _ = write!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{name}</text>\
         <rect class=\"{class}\" x=\"{LEFT}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{BAR}\"/>",
        LEFT - 12.0,
        y + 5.0,
        y - BAR / 2.0,
        x(median) - LEFT,
    );
    let (from, to, high, low) = (x(min), x(max), y - 4.0, y + 4.0);
    let _ = write!(
        svg,
        "<path class=\"whisker\" d=\"M{from:.1} {high:.1}V{low:.1}M{from:.1} {y:.1}H{to:.1}\
         M{to:.1} {high:.1}V{low:.1}\"/>"
    );
    let at = x(goal.bound());
    let _ = writeln!(
        svg,
        "<line class=\"goal\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{:.1}\" y2=\"{:.1}\"/>\
         <text x=\"{:.1}\" y=\"{:.1}\">{median:.2}x <tspan class=\"small\">goal {}</tspan>\
         </text>",
        y - ROW / 2.0 + 5.0,
        y + ROW / 2.0 - 5.0,
        WIDTH - RIGHT + 16.0,
        y + 5.0,
        goal.bound(),
    );
}

/// The distance between the scale's lines: 1, 2 or 5 times a power of ten, so that there are few lines.
fn step_for(longest: f64) -> f64 {
    let mut power = 0.1;
    loop {
        for factor in [1.0, 2.0, 5.0] {
            if longest / (power * factor) <= TICKS_MAX {
                return power * factor;
            }
        }
        power *= 10.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_medians_and_marked_at_their_goals() {
        let one = Bar { name: "one", median: 1.0, min: 0.5, max: 2.0, goal: Goal::AtLeast(1.5) };
        let svg = draw(&[one, Bar { name: "other", goal: Goal::AtLeast(1.0), ..one }]);
        // The scale ends at 2, and is 470 long.
        assert!(svg.contains("class=\"missed\" x=\"240\" y=\"74.0\" width=\"235.0\""), "{svg}");
        assert!(svg.contains("class=\"reached\""), "{svg}");
        assert!(svg.contains("class=\"goal\" x1=\"592.5\""), "{svg}");
        assert!(svg.contains("M357.5 "), "{svg}");
    }

    #[test]
    fn lines_have_their_points_between_powers_of_ten() {
        let series =
            vec![("one", vec![(10.0, 1.0), (1000.0, 100.0)]), ("other", vec![(100.0, 10.0)])];
        let svg = draw_lines(["a", "b", "c"], &[Panel { name: "p", series }]);
        // Both scales have two powers of ten: 90 to 670, and 330 to 88.
        assert!(svg.contains("points=\"90.0,330.0 670.0,88.0\""), "{svg}");
        assert!(svg.contains("points=\"380.0,209.0\"") && svg.contains(">1000/s<"), "{svg}");
    }

    #[test]
    fn a_scale_has_few_lines() {
        assert_eq!(step_for(2.0), 0.5);
        assert_eq!(step_for(6.2), 1.0);
        assert_eq!(step_for(75.0), 10.0);
    }

    #[test]
    fn a_chart_of_nothing_is_a_chart() {
        assert!(draw(&[]).ends_with("</svg>\n"));
    }
}
