//! Horizontal bars as SVG: medians, whiskers from smallest to largest, and a mark at each goal. Light or dark by the
//! reader's system.

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
  .page { fill: #fbfaf7; stroke: #d8d4ca; }
  text { fill: #23262b; font-size: 14px; }
  .title { font-size: 16px; font-weight: 600; }
  .small { font-size: 12px; fill: #4c515a; }
  .grid { stroke: #e3dfd5; }
  .reached { fill: #2f6f9f; }
  .missed { fill: #c0763a; }
  .whisker { stroke: #23262b; stroke-width: 1.5; fill: none; }
  .goal { stroke: #7a1f5c; stroke-width: 3; }
  @media (prefers-color-scheme: dark) {
    .page { fill: #15191e; stroke: #333a44; }
    text { fill: #e4e7eb; }
    .small { fill: #b3bac4; }
    .grid { stroke: #2b323b; }
    .reached { fill: #5aa5db; }
    .missed { fill: #d9924f; }
    .whisker { stroke: #e4e7eb; }
    .goal { stroke: #f08cc8; }
  }
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

    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         aria-labelledby=\"title\" font-family=\"system-ui, 'Segoe UI', Helvetica, Arial, \
         sans-serif\">\n<title id=\"title\">weir against its peers and its goals</title>\n{STYLE}\
         <rect class=\"page\" x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{}\" rx=\"8\"/>\n\
         <text class=\"title\" x=\"20\" y=\"30\">weir as a multiple of each peer or limit</text>\n\
         <text class=\"small\" x=\"20\" y=\"49\">bar: median; whisker: smallest to largest round; \
         upright mark: goal; brown: missed</text>\n",
        WIDTH - 1.0,
        height - 1.0,
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

/// Draws one row whose middle is at `y`. `x` maps a value to its position.
fn draw_bar(svg: &mut String, bar: &Bar<'_>, y: f64, x: impl Fn(f64) -> f64) {
    let Bar { name, median, min, max, goal } = *bar;
    let class = if goal.reached_by(median) { "reached" } else { "missed" };
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{name}</text>\
         <rect class=\"{class}\" x=\"{LEFT}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{BAR}\"/>",
        LEFT - 12.0,
        y + 5.0,
        y - BAR / 2.0,
        x(median) - LEFT,
    );
    let (from, to, high, low) = (x(min), x(max), y - 4.0, y + 4.0);
    let _ = writeln!(
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
