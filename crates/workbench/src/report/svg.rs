//! A [`Chart`] as SVG: lines if x is a number, bars if its points have names. The paper's numbers and measurements
//! are drawn over them. Colours and lines are classes of `plot.css`. Text, colours and styles, light and dark, are the
//! same for plots and pages.

use std::fmt;
use std::fmt::{Display, Write as _};

use super::axis::{self, Key, Legend, Scale, short};
use super::chart::{Chart, MarkKind};
use crate::runs::Measured;

/// Width, in the SVG's units as all lengths.
pub const WIDTH: f64 = 480.0;
/// Margin on all sides.
pub const MARGIN: f64 = 14.0;
/// Height of the area of the values.
const AREA: f64 = 216.0;
/// Text size of points' names.
const SMALL: f64 = 11.0;
const LINE: f64 = 13.0;
/// Most lines below a point before the names are rotated.
const LINES_MAX: usize = 3;
/// Most letters of a rotated name.
const TURNED_MAX: usize = 26;
/// Angle of rotated names (degrees), and the share of their length that becomes height.
const TURN: (f64, f64) = (35.0, 0.58);
/// Widest bar.
const BAR_MAX: f64 = 34.0;
/// Share of a point's width for its bars.
const BARS: f64 = 0.8;
/// Half of a marker's height.
const DOT: f64 = 4.0;
/// Distance of a paper's number from its point in line plots (to the right), so that both are visible if they agree.
const ASIDE: f64 = 10.0;

/// Class of elements that belong to all series.
const NEUTRAL: &str = "any";

/// A plot under construction.
struct Drawing {
    svg: String,
    left: f64,
    top: f64,
    /// Middle of each point along x.
    middles: Vec<f64>,
    bar: Option<f64>,
    scale: Scale,
}

/// Returns the plot as an element of a page.
pub fn inline(chart: &Chart) -> String {
    draw(chart, "", "")
}

/// Returns the plot as a file's text.
pub fn file(chart: &Chart) -> String {
    draw(chart, " xmlns=\"http://www.w3.org/2000/svg\"", &standalone())
}

/// Describes a plot, for readers who cannot see it.
pub fn described(chart: &Chart) -> String {
    let names: Vec<_> = chart.series.iter().map(|series| series.name.as_str()).collect();
    let mut text = format!("By {} ({}): {}.", chart.x_name, chart.x.join(", "), names.join(", "));
    for mark in &chart.marks {
        let _ = write!(text, " Paper, {}.", chart.says(mark));
    }
    text
}

fn draw(chart: &Chart, attributes: &str, style: &str) -> String {
    let legend = Legend::of(chart, WIDTH - 2.0 * MARGIN);
    let head = if chart.at.is_empty() { 30.0 } else { 46.0 };
    let positions = axis::numeric(&chart.x);
    let values = all_values(chart);
    let scale = Scale::holding(values.iter().copied());
    let ticks = scale.ticks().map(|tick| width(&tick.1, SMALL)).fold(0.0, f64::max);
    let left = MARGIN + ticks + 6.0;
    let top = head + legend.height() + 8.0;
    let room = WIDTH - MARGIN - left;
    let middles: Vec<f64> = match &positions {
        Some(shares) => {
            // Keeps the first and the last point away from the edges.
            let inset = 16.0;
            shares.iter().map(|share| left + inset + (room - 2.0 * inset) * share).collect()
        }
        None => {
            let step = room / chart.x.len().max(1) as f64;
            (0..chart.x.len()).map(|number| left + step * (number as f64 + 0.5)).collect()
        }
    };
    let bar = positions.is_none().then(|| {
        let each = BARS * room / (chart.x.len() * chart.series.len()).max(1) as f64;
        each.min(BAR_MAX)
    });
    let mut drawing = Drawing { svg: String::new(), left, top, middles, bar, scale };
    let names_end = drawing.axes(chart);
    for (number, series) in chart.series.iter().enumerate() {
        drawing.series(chart, number, &series.simulated);
    }
    for (number, series) in chart.series.iter().enumerate() {
        drawing.measured(chart, number, &series.measured);
    }
    drawing.marks(chart);

    let height = names_end + 26.0;
    let (heading, described) = (chart.heading(), described(chart));
    let names = [&chart.id, &heading, &chart.title, &described].map(String::as_str);
    let mut svg = begin([attributes, style], height, names);
    if !chart.at.is_empty() {
        let _ = writeln!(
            svg,
            "<text class=\"small\" x=\"{MARGIN}\" y=\"39\">{}</text>",
            Escaped(&chart.at)
        );
    }
    legend.draw(&mut svg, head);
    let _ = write!(
        svg,
        "{}{}\n</svg>\n",
        drawing.svg,
        small(left + room / 2.0, names_end + 15.0, "middle", Escaped(&chart.x_name)),
    );
    svg
}

/// Returns the start of a plot of that height, up to its title. `names` are its ID, its accessible name, its title,
/// and its description.
pub fn begin([attributes, style]: [&str; 2], height: f64, names: [&str; 4]) -> String {
    let [id, heading, title, described] = names.map(Escaped);
    format!(
        "<svg{attributes} class=\"plot\" viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" \
         aria-labelledby=\"{id}-title {id}-desc\">\n<title id=\"{id}-title\">{heading}</title>\n\
         <desc id=\"{id}-desc\">{described}</desc>\n{style}\
         <rect class=\"page\" width=\"{WIDTH}\" height=\"{height:.0}\" rx=\"8\"/>\n\
         <text class=\"title\" x=\"{MARGIN}\" y=\"22\">{title}</text>\n",
    )
}

/// Returns small text with `anchor` (`start`, `middle` or `end`) at x.
pub fn small(x: f64, y: f64, anchor: &str, words: impl Display) -> String {
    format!(
        "<text class=\"small\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{words}</text>"
    )
}

/// Returns all values on the scale of y.
fn all_values(chart: &Chart) -> Vec<f64> {
    let each = |it: &Measured| [it.mean, it.min, it.max];
    let series = chart.series.iter();
    let points = series.flat_map(|series| series.simulated.iter().chain(&series.measured));
    let stated = chart.marks.iter().filter_map(|mark| match mark.kind {
        MarkKind::Value(value) | MarkKind::FromOurs(value) => Some(value),
        MarkKind::Up | MarkKind::Down | MarkKind::Least(_) => None,
    });
    points.flatten().flat_map(each).chain(stated).collect()
}

/// Returns the class of a series' colour.
pub fn colour(series: usize) -> String {
    format!("s{}", series % COLOURS)
}

/// Returns a series' marker. Markers differ in shape, for readers who cannot see their colours.
pub fn dot(series: usize, x: f64, y: f64) -> String {
    let class = format!("class=\"dot {}\"", colour(series));
    let r = DOT;
    match series % 4 {
        0 => format!("<circle {class} cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{r}\"/>"),
        1 => format!(
            "<path {class} d=\"M{:.1} {:.1}h{}v{}h-{}z\"/>",
            x - r,
            y - r,
            2.0 * r,
            2.0 * r,
            2.0 * r
        ),
        2 => format!(
            "<path {class} d=\"M{x:.1} {:.1}l{} {}h-{}z\"/>",
            y - 5.0,
            r + 1.0,
            2.0 * r,
            2.0 * r + 2.0
        ),
        _ => format!(
            "<path {class} d=\"M{x:.1} {:.1}l-{} -{}h{}z\"/>",
            y + 5.0,
            r + 1.0,
            2.0 * r,
            2.0 * r + 2.0
        ),
    }
}

/// Returns a mark of a paper's statement, with the class of a colour.
pub fn mark(kind: MarkKind, colour: &str, x: f64, y: f64) -> String {
    match kind {
        MarkKind::Value(_) | MarkKind::FromOurs(_) => {
            let class = if matches!(kind, MarkKind::Value(_)) { "stated" } else { "derived" };
            let path = format!("d=\"M{x:.1} {:.1}l6.5 6.5l-6.5 6.5l-6.5 -6.5z\"", y - 6.5);
            format!("<path class=\"halo\" {path}/><path class=\"{class} {colour}\" {path}/>")
        }
        MarkKind::Up => {
            format!("<path class=\"arrow\" d=\"M{x:.1} {:.1}l5 6h-3v7h-4v-7h-3z\"/>", y - 24.0)
        }
        MarkKind::Down => {
            format!("<path class=\"arrow\" d=\"M{x:.1} {:.1}l5 -6h-3v-7h-4v7h-3z\"/>", y - 11.0)
        }
        MarkKind::Least(rank) => {
            let class = if rank == 1 { "ring" } else { "ring next" };
            let circle = format!("cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"7.5\"");
            format!("<circle class=\"{class}\" {circle}/>")
        }
    }
}

/// Returns the mark of a measurement.
pub fn cross(x: f64, y: f64) -> String {
    let path = format!("d=\"M{:.1} {:.1}l9 9m0 -9l-9 9\"", x - 4.5, y - 4.5);
    format!("<path class=\"halo\" {path}/><path class=\"measured\" {path}/>")
}

/// Returns a line from the least to the largest value of several runs.
pub fn whisker(class: &str, x: f64, low: f64, high: f64) -> String {
    format!(
        "<path class=\"{class}\" d=\"M{:.1} {high:.1}h6M{x:.1} {high:.1}V{low:.1}M{:.1} {low:.1}h6\"/>",
        x - 3.0,
        x - 3.0
    )
}

impl Drawing {
    fn y(&self, value: f64) -> f64 {
        self.top + AREA * (1.0 - self.scale.share(value))
    }

    fn x(&self, chart: &Chart, series: usize, point: usize) -> f64 {
        let middle = self.middles.get(point).copied().unwrap_or(self.left);
        let offset = series as f64 + 0.5 - chart.series.len() as f64 / 2.0;
        middle + self.bar.map_or(0.0, |bar| bar * offset)
    }

    /// Draws the grid, the ticks, and the names of the points along x. Returns their lower end.
    fn axes(&mut self, chart: &Chart) -> f64 {
        let right = WIDTH - MARGIN;
        for (tick, words) in self.scale.ticks() {
            let y = self.y(tick);
            let _ = writeln!(
                self.svg,
                "<path class=\"grid\" d=\"M{:.1} {y:.1}H{right}\"/>{}",
                self.left,
                small(self.left - 6.0, y + 4.0, "end", words),
            );
        }
        let bottom = self.top + AREA;
        let axis = self.y(self.scale.from.max(0.0));
        let _ =
            writeln!(self.svg, "<path class=\"axis\" d=\"M{:.1} {axis:.1}H{right}\"/>", self.left);
        let gap = self.middles.windows(2).map(|pair| pair[1] - pair[0]);
        let gap = gap.fold(right - self.left, f64::min) - 4.0;
        let names: Vec<_> = chart.x.iter().map(|name| lines(name, SMALL, gap)).collect();
        let fits = |lines: &Vec<String>| {
            lines.len() <= LINES_MAX && lines.iter().all(|line| width(line, SMALL) <= gap)
        };
        if names.iter().all(fits) {
            for (name, x) in names.iter().zip(&self.middles) {
                for (number, line) in name.iter().enumerate() {
                    let y = bottom + 16.0 + LINE * number as f64;
                    let _ = writeln!(self.svg, "{}", small(*x, y, "middle", Escaped(line)));
                }
            }
            let most = names.iter().map(Vec::len).max().unwrap_or(0);
            return bottom + 5.0 + LINE * most as f64;
        }
        // A rotated name that would begin left of the plot is cut.
        let mut depth: f64 = 0.0;
        for (name, x) in chart.x.iter().zip(&self.middles) {
            let letters = ((x - 4.0) / (0.6 * SMALL * TURN.0.to_radians().cos())) as usize;
            let name = cut(name, letters.min(TURNED_MAX));
            depth = depth.max(width(&name, SMALL) * TURN.1);
            let _ = writeln!(
                self.svg,
                "<text class=\"small\" transform=\"translate({:.1} {:.1}) rotate(-{})\" \
                 text-anchor=\"end\">{}</text>",
                x + 4.0,
                bottom + 14.0,
                TURN.0,
                Escaped(&name),
            );
        }
        bottom + 14.0 + depth
    }

    /// Draws the results of a series: a line with markers, or bars.
    fn series(&mut self, chart: &Chart, number: usize, values: &[Option<Measured>]) {
        let class = colour(number);
        let at: Vec<(usize, f64, Measured)> = values
            .iter()
            .enumerate()
            .filter_map(|(point, value)| Some((point, self.x(chart, number, point), (*value)?)))
            .collect();
        if self.bar.is_none() {
            let path: Vec<_> =
                at.iter().map(|(_, x, it)| format!("{x:.1} {:.1}", self.y(it.mean))).collect();
            let _ = writeln!(self.svg, "<path class=\"line {class}\" d=\"M{}\"/>", path.join("L"));
        }
        for (point, x, it) in at {
            let y = self.y(it.mean);
            if let Some(bar) = self.bar {
                let zero = self.y(0.0);
                let (high, low) = (y.min(zero), y.max(zero));
                let wide = (bar - 1.5).max(1.0);
                let _ = writeln!(
                    self.svg,
                    "<rect class=\"bar {class}\" x=\"{:.1}\" y=\"{high:.1}\" width=\"{wide:.1}\" height=\"{:.1}\"/>",
                    x - wide / 2.0,
                    (low - high).max(1.0),
                );
                if !chart.marks.iter().any(|mark| {
                    (mark.series, mark.x) == (number, point) && self.covers(mark.kind, y)
                }) {
                    self.value(bar, x, it);
                }
            }
            if it.max > it.min {
                let whisker = whisker("whisker", x, self.y(it.min), self.y(it.max));
                let _ = writeln!(self.svg, "{whisker}");
            }
            if self.bar.is_none() {
                let _ = writeln!(self.svg, "{}", dot(number, x, y));
            }
        }
    }

    /// Returns true if a mark covers the position of the value above a bar that ends at `y`.
    fn covers(&self, kind: MarkKind, y: f64) -> bool {
        match kind {
            MarkKind::Value(value) | MarkKind::FromOurs(value) => {
                (y - 22.0..y + 6.0).contains(&self.y(value))
            }
            MarkKind::Least(_) => true,
            MarkKind::Up | MarkKind::Down => false,
        }
    }

    /// Writes a bar's value above the bar, if there is space.
    fn value(&mut self, bar: f64, x: f64, it: Measured) {
        let text = short(it.mean);
        if width(&text, SMALL) <= bar {
            let _ = writeln!(self.svg, "{}", small(x, self.y(it.max) - 4.0, "middle", text));
        }
    }

    fn measured(&mut self, chart: &Chart, number: usize, values: &[Option<Measured>]) {
        for (point, value) in values.iter().enumerate() {
            let Some(it) = value else { continue };
            let x = self.x(chart, number, point);
            if it.max > it.min {
                let whisker = whisker("measured", x, self.y(it.min), self.y(it.max));
                let _ = writeln!(self.svg, "{whisker}");
            }
            let _ = writeln!(self.svg, "{}", cross(x, self.y(it.mean)));
        }
    }

    /// Draws the paper's statements, each with a tooltip.
    fn marks(&mut self, chart: &Chart) {
        for (number, it) in chart.marks.iter().enumerate() {
            let ours =
                chart.series.get(it.series).and_then(|series| *series.simulated.get(it.x)?);
            let ours = ours.unwrap_or(Measured { mean: 0.0, min: 0.0, max: 0.0 });
            let x = self.x(chart, it.series, it.x);
            let (x, y, link) = match it.kind {
                MarkKind::Value(value) | MarkKind::FromOurs(value) if self.bar.is_none() => {
                    let (from, to) = (self.y(ours.mean), self.y(value));
                    let class = colour(it.series);
                    let link = format!(
                        "<path class=\"link {class}\" d=\"M{x:.1} {from:.1}L{:.1} {to:.1}\"/>",
                        x + ASIDE
                    );
                    (x + ASIDE, to, link)
                }
                MarkKind::Value(value) | MarkKind::FromOurs(value) => {
                    (x, self.y(value), String::new())
                }
                MarkKind::Least(_) => (x, self.y(ours.mean), String::new()),
                MarkKind::Up | MarkKind::Down => {
                    // An arrow is above a bar's value, and beside other arrows at the same place.
                    let before = chart.marks.iter().take(number).filter(|other| {
                        (other.series, other.x) == (it.series, it.x)
                            && matches!(other.kind, MarkKind::Up | MarkKind::Down)
                    });
                    let above = if self.bar.is_some() { 5.0 } else { 0.0 };
                    (x + 11.0 * before.count() as f64, self.y(ours.max) - above, String::new())
                }
            };
            let mark = mark(it.kind, &colour(it.series), x, y);
            let _ = writeln!(self.svg, "<g><title>{}</title>{link}{mark}</g>", Escaped(&it.says));
        }
    }
}

/// Draws a key of the legend as `chart` draws the element. The legend adds the text.
pub fn key(key: Key, x: f64, y: f64, lines: bool) -> String {
    match key {
        Key::Series(series) if lines => {
            let class = colour(series);
            format!(
                "<path class=\"line {class}\" d=\"M{:.1} {y:.1}h32\"/>{}",
                x - 16.0,
                dot(series, x, y)
            )
        }
        Key::Series(series) => format!(
            "<rect class=\"bar {}\" x=\"{:.1}\" y=\"{:.1}\" width=\"11\" height=\"11\"/>",
            colour(series),
            x - 5.5,
            y - 5.5
        ),
        Key::Mark(kind @ (MarkKind::Up | MarkKind::Down)) => mark(kind, NEUTRAL, x, y + 17.5),
        Key::Mark(kind) => mark(kind, NEUTRAL, x, y),
        Key::Measured => cross(x, y),
        Key::Whisker => whisker("whisker", x, y + 6.0, y - 6.0),
    }
}

/// Text escaped for an element or a quoted attribute.
pub struct Escaped<'t>(pub &'t str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for letter in self.0.chars() {
            match letter {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                // XML has no form for control characters.
                _ if letter.is_control() => f.write_str(" ")?,
                _ => write!(f, "{letter}")?,
            }
        }
        Ok(())
    }
}

/// Returns the approximate width of text in a usual sans-serif font, which is seldom exceeded.
pub fn width(text: &str, size: f64) -> f64 {
    let of = |letter: char| match letter {
        'i' | 'j' | 'l' | 't' | 'f' | 'r' | 'I' | ' ' | '.' | ',' | ':' | ';' | '\'' | '|' => 0.36,
        'm' | 'w' | 'M' | 'W' | '%' => 0.95,
        'A'..='Z' => 0.72,
        _ => 0.6,
    };
    size * text.chars().map(of).sum::<f64>()
}

/// Splits text at spaces into lines of at most `width_max`. A longer word gets its own line.
pub fn lines(text: &str, size: f64, width_max: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if width(&format!("{line} {word}"), size) <= width_max => {
                *line = format!("{line} {word}");
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Cuts text to `letters_max` letters.
pub fn cut(text: &str, letters_max: usize) -> String {
    if text.chars().count() <= letters_max {
        return text.to_owned();
    }
    let kept: String = text.chars().take(letters_max.saturating_sub(1)).collect();
    format!("{}…", kept.trim_end())
}

/// Colours on a light background. The series have the colours of Okabe and Ito, which colour-blind readers can
/// distinguish, darkened where they would be faint: each has a contrast of 3:1 or more with the page, as WCAG 2.2
/// (1.4.11) requires.
pub const LIGHT: &str = "--page:#fff;--ground:#f4f5f7;--ink:#1d2126;--soft:#59616b;--line:#dfe2e6;\
    --link:#0b5cad;--good:#1b7f4b;--part:#8a5a00;--bad:#b3372f;--measured:#a0116e;\
    --s0:#0072b2;--s1:#d55e00;--s2:#00855f;--s3:#b0508a;--s4:#8f6b00;--s5:#2f8fc8;--s6:#6b6f75;--s7:#7a4a1e;";

/// Colours on a dark background.
pub const DARK: &str = "--page:#191d23;--ground:#101317;--ink:#e7eaee;--soft:#a9b2bd;--line:#333a44;\
    --link:#7db8f5;--good:#4cc38a;--part:#e3b341;--bad:#ff8a80;--measured:#ff8ad8;\
    --s0:#56b4e9;--s1:#ff8f4d;--s2:#35cf9f;--s3:#e79ac7;--s4:#e8c04a;--s5:#a9dcff;--s6:#b6bcc4;--s7:#d0a27c;";

/// Number of colours for series. Further series repeat the colours.
pub const COLOURS: usize = 8;

/// Returns the style of a plot that is in a separate file.
pub fn standalone() -> String {
    format!(
        "<style>\nsvg {{ {LIGHT} }}\n@media (prefers-color-scheme: dark) {{ svg {{ {DARK} }} }}\n\
         {PLOT}</style>\n"
    )
}

/// Styles of plots.
pub const PLOT: &str = include_str!("plot.css");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_in_a_text_stays_a_text() {
        let text = Escaped("<script>\"1\" & 2\u{1}</script>").to_string();
        assert_eq!(text, "&lt;script&gt;&quot;1&quot; &amp; 2 &lt;/script&gt;");
    }

    #[test]
    fn lines_are_cut_at_spaces() {
        assert_eq!(lines("a guest of its own", 10.0, 50.0), ["a guest", "of its", "own"]);
        assert_eq!(lines("uninterruptible", 10.0, 20.0), ["uninterruptible"]);
        assert_eq!(lines(" ", 10.0, 20.0), [""; 0]);
        assert_eq!(cut("uninterruptible", 6), "unint…");
        assert_eq!(cut("short", 6), "short");
    }
}
