//! Compares results with a paper's statements.

use serde::Serialize;

use super::file::{At, ClaimFile, Figure, Sign, Statement, Use};

/// Largest relative difference from the paper's number at which a size counts as reproduced.
pub const TOLERANCE: f64 = 0.15;
/// Least share of the most packets a second for the best setting of a `within`, as in `weir bench --policies`.
const PACKETS_SHARE_MIN: f64 = 0.98;
/// Smallest change that has a direction (percent). Smaller ones are noise on an actual host.
/// [`Judged::within_spread`] finds larger ones that depend on the seed.
const NO_CHANGE_PERCENT: f64 = 1.0;
/// Standard errors between a number and a border at which the number's side is known.
const ERRORS: f64 = 2.0;

/// The verdict on a claim, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The direction, the order of the alternatives, and the size within 15 %, as far as the paper gives them.
    Reproduced,
    /// Only the direction or the best alternative.
    DirectionOnly,
    /// Neither the direction nor the best alternative.
    Not,
}

impl Verdict {
    /// Returns the verdict in words.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reproduced => "reproduced",
            Self::DirectionOnly => "direction only",
            Self::Not => "not",
        }
    }

    /// Returns the verdict as a single sign.
    pub const fn sign(self) -> &'static str {
        match self {
            Self::Reproduced => "✓",
            Self::DirectionOnly => "≈",
            Self::Not => "✗",
        }
    }
}

/// A claim with its result.
#[derive(Clone, Debug, Serialize)]
pub struct Judged {
    /// Name of the figure or table.
    pub figure: String,
    /// The place in the paper.
    pub source: String,
    /// Text of the claim.
    pub says: String,
    /// The use of the claim: fitted to it or not.
    pub used: Use,
    /// The paper's number or order.
    pub paper: String,
    /// Our result.
    pub ours: String,
    /// The ratio of our result to the paper's, if the paper gives a number.
    pub ratio: Option<f64>,
    /// The verdict by the means over the seeds.
    pub verdict: Verdict,
    /// True if it is not known whether the claim is reproduced: [`unknown`].
    pub within_spread: bool,
    /// The reason for a failure.
    pub reason: Option<String>,
}

impl Judged {
    /// Returns the verdict in words, with a note if it depends on the seed.
    pub fn words(&self) -> String {
        words(self.verdict, self.within_spread)
    }
}

/// Describes a verdict in words, with a note if it depends on the seed.
pub fn words(verdict: Verdict, within_spread: bool) -> String {
    let spread = if within_spread { ", within the seeds' spread" } else { "" };
    format!("{}{spread}", verdict.as_str())
}

/// Judges a claim. `value` returns a figure at a point. `x` is the name of the plot's x with its points.
pub fn judge(
    claim: &ClaimFile,
    x: (&str, &[String]),
    value: impl Fn(Figure, &At) -> f64,
) -> Judged {
    let y = |at: &At| value(claim.y, at);
    let mut of_paper = None;
    let mut size = |paper: f64, ours: f64| {
        of_paper = Some(ours / paper);
        size(paper, ours)
    };
    let (paper, ours, verdict) = match &claim.is {
        Statement::Value { at, value } => {
            (format!("{value:.1}"), format!("{:.1}", y(at)), size(*value, y(at)))
        }
        Statement::Ratio { from, to, value } => {
            let ratio = y(to) / y(from);
            (format!("x {value:.2}"), format!("x {ratio:.2}"), size(*value, ratio))
        }
        Statement::Change { from, to, by, percent, sign, percent_max } => {
            let (from, to) = (y(from), y(to));
            let change = to - from;
            let relative = relative(from, to);
            let words = match relative.is_finite() {
                true => format!("{relative:+.1} %"),
                false => format!("{change:+.1} from {from:.1}"),
            };
            if let Some(by) = by {
                (format!("{by:+.1}"), format!("{change:+.1}"), moved(relative, size(*by, change)))
            } else if let Some(percent) = percent {
                let verdict = moved(relative, size(*percent, relative));
                (format!("{percent:+.1} %"), words, verdict)
            } else {
                let up = *sign == Some(Sign::Up);
                let paper = if up { "up" } else { "down" };
                (paper.into(), words, direction(up, relative, *percent_max))
            }
        }
        Statement::More { from, to, than } => {
            let (change, other) = (y(to) - y(from), y(&than.to) - y(&than.from));
            let verdict = match change * other > 0.0 && change.abs() > other.abs() {
                true => Verdict::Reproduced,
                false => Verdict::Not,
            };
            (format!("more than {other:+.1}"), format!("{change:+.1}"), verdict)
        }
        Statement::Least { at, points } => {
            let mut order: Vec<(&String, f64)> =
                x.1.iter()
                    .map(|point| {
                        let mut at = at.clone();
                        at.insert(x.0.to_owned(), point.clone());
                        (point, y(&at))
                    })
                    .collect();
            order.sort_by(|a, b| a.1.total_cmp(&b.1));
            let ours: Vec<String> =
                order.iter().take(points.len()).map(|(point, _)| (*point).clone()).collect();
            let verdict = if ours == *points {
                Verdict::Reproduced
            } else if ours.first() == points.first() {
                Verdict::DirectionOnly
            } else {
                Verdict::Not
            };
            (points.join(" < "), ours.join(" < "), verdict)
        }
        Statement::Within { at, point, percent } => {
            within(point, *percent, &settings(claim.y, at, x, &value))
        }
    };
    let reason = (verdict != Verdict::Reproduced)
        .then(|| claim.reason.clone().unwrap_or_else(|| "not known".into()));
    Judged {
        figure: claim.figure.clone(),
        source: claim.source.clone(),
        says: claim.says.clone(),
        used: claim.used,
        paper,
        ours,
        ratio: of_paper,
        verdict,
        within_spread: false,
        reason,
    }
}

/// Values of a figure at a point, one for each start.
pub type Starts<'s> = &'s dyn Fn(Figure, &At) -> &'s [f64];
type Value<'v> = &'v dyn Fn(Figure, &At) -> f64;

/// A part of a verdict: a number is within bounds. It is computed from figures at `points`.
struct Condition<'c> {
    points: Vec<At>,
    number: Box<dyn Fn(Value<'_>) -> f64 + 'c>,
    bounds: (f64, f64),
}

impl Condition<'_> {
    /// Returns whether the condition holds, if that is known: the number is [`ERRORS`] from both bounds. Its error is the
    /// jackknife's over the starts, which all points share.
    fn holds(&self, figure: Figure, starts: Starts<'_>) -> Option<bool> {
        let count = self.points.iter().map(|at| starts(figure, at).len()).min().unwrap_or(0);
        let without = |left_out: Option<usize>| {
            (self.number)(&|figure, at| {
                let all = starts(figure, at).iter().take(count).enumerate();
                let taken = all.filter(|(number, _)| Some(*number) != left_out).map(|it| it.1);
                taken.sum::<f64>() / (count - usize::from(left_out.is_some())) as f64
            })
        };
        let (number, (low, high)) = (without(None), self.bounds);
        let holds = (low..=high).contains(&number);
        if count < 2 || !number.is_finite() {
            return Some(holds);
        }
        let each: Vec<f64> = (0..count).map(|start| without(Some(start))).collect();
        let mean = each.iter().sum::<f64>() / count as f64;
        let squares = each.iter().map(|it| (it - mean).powi(2)).sum::<f64>();
        let error = (squares * (count - 1) as f64 / count as f64).sqrt();
        let near = [low, high].iter().any(|border| (number - border).abs() < ERRORS * error);
        (!near).then_some(holds)
    }
}

/// Returns the conditions under which a claim is reproduced.
fn conditions<'c>(
    claim: &'c ClaimFile,
    x: (&'c str, &'c [String]),
    starts: Starts<'_>,
) -> Vec<Condition<'c>> {
    const ANY: f64 = f64::INFINITY;
    let y = claim.y;
    let near = |paper: f64| {
        let range = TOLERANCE * paper.abs();
        (paper - range, paper + range)
    };
    let with = |x_point: &String, at: &At| {
        let mut at = at.clone();
        at.insert(x.0.to_owned(), x_point.clone());
        at
    };
    match &claim.is {
        Statement::Value { at, value } => {
            let number = Box::new(move |of: Value<'_>| of(y, at));
            vec![Condition { points: vec![at.clone()], number, bounds: near(*value) }]
        }
        Statement::Ratio { from, to, value } => {
            let number = Box::new(move |of: Value<'_>| of(y, to) / of(y, from));
            let points = vec![from.clone(), to.clone()];
            vec![Condition { points, number, bounds: near(*value) }]
        }
        Statement::Change { from, to, by, percent, sign, percent_max } => {
            let points = vec![from.clone(), to.clone()];
            let most = percent_max.unwrap_or(ANY);
            let bounds = match (by.or(*percent), sign) {
                (Some(paper), _) => near(paper),
                (None, Some(Sign::Up)) => (NO_CHANGE_PERCENT, most),
                (None, _) => (-most, -NO_CHANGE_PERCENT),
            };
            let number = Box::new(move |of: Value<'_>| {
                let (from, to) = (of(y, from), of(y, to));
                if by.is_some() { to - from } else { relative(from, to) }
            });
            vec![Condition { points, number, bounds }]
        }
        Statement::More { from, to, than } => {
            let points = [from, to, &than.from, &than.to].map(At::clone).to_vec();
            let number = Box::new(move |of: Value<'_>| {
                let other = of(y, &than.to) - of(y, &than.from);
                (of(y, to) - of(y, from) - other) * other.signum()
            });
            vec![Condition { points, number, bounds: (0.0, ANY) }]
        }
        Statement::Least { at, points } => {
            let next = points.windows(2).map(|it| (&it[0], &it[1]));
            let others = x.1.iter().filter(|it| !points.contains(it));
            let others = others.filter_map(|it| Some((points.last()?, it)));
            let pair = |(lower, higher)| {
                let (lower, higher) = (with(lower, at), with(higher, at));
                let points = vec![lower.clone(), higher.clone()];
                let number = Box::new(move |of: Value<'_>| of(y, &higher) - of(y, &lower));
                Condition { points, number, bounds: (0.0, ANY) }
            };
            next.chain(others).map(pair).collect()
        }
        Statement::Within { at, point, percent } => {
            let mean = |figure, at: &At| {
                let all = starts(figure, at);
                all.iter().sum::<f64>() / all.len() as f64
            };
            let all = settings(y, at, x, mean);
            let Some(best) = best_but(point, &all) else { return Vec::new() };
            let [ours, best] = [point, &best.name.to_owned()].map(|it| with(it, at));
            let least = share_within(*percent);
            [(Figure::PacketsPerS, (least, ANY)), (y, (-ANY, 1.0 / least))]
                .map(|(figure, bounds)| {
                    let (ours, best) = (ours.clone(), best.clone());
                    let points = vec![ours.clone(), best.clone()];
                    let number =
                        Box::new(move |of: Value<'_>| of(figure, &ours) / of(figure, &best));
                    Condition { points, number, bounds }
                })
                .into()
        }
    }
}

/// Returns the points that need more starts before it is known whether a claim is reproduced.
pub fn unknown(claim: &ClaimFile, x: (&str, &[String]), starts: Starts<'_>) -> Vec<At> {
    let all = conditions(claim, x, starts);
    let each: Vec<_> = all.iter().map(|it| (it, it.holds(claim.y, starts))).collect();
    // A condition that does not hold decides, whatever the others are.
    let open =
        |it: &&(_, Option<bool>)| it.1.is_none() && each.iter().all(|it| it.1 != Some(false));
    each.iter().filter(open).flat_map(|it| it.0.points.clone()).collect()
}

/// Returns a change in percent. Relative to zero, no change is zero, and every other change is infinite.
fn relative(from: f64, to: f64) -> f64 {
    if to == from { 0.0 } else { 100.0 * (to - from) / from }
}

/// A point of x with the values for a `within`.
pub struct Setting<'t> {
    name: &'t str,
    /// Packets a second.
    packets: f64,
    /// Value of the claim's figure.
    pub y: f64,
}

/// Returns the settings at all points of x. All other sweeps are as in `at`.
pub fn settings<'t>(
    figure: Figure,
    at: &At,
    x: (&str, &'t [String]),
    value: impl Fn(Figure, &At) -> f64,
) -> Vec<Setting<'t>> {
    let setting = |point: &'t String| {
        let mut at = at.clone();
        at.insert(x.0.to_owned(), point.clone());
        Setting { name: point, packets: value(Figure::PacketsPerS, &at), y: value(figure, &at) }
    };
    x.1.iter().map(setting).collect()
}

/// Returns the best setting except `name`.
pub fn best_but<'s, 't>(name: &str, all: &'s [Setting<'t>]) -> Option<&'s Setting<'t>> {
    let others = all.iter().filter(|it| it.name != name);
    let most = others.clone().map(|it| it.packets).fold(0.0, f64::max);
    let enough = others.filter(|it| it.packets >= PACKETS_SHARE_MIN * most);
    enough.min_by(|a, b| a.y.total_cmp(&b.y))
}

/// Returns the least share of the best setting's packets that counts as within `percent`. The figure y may exceed the
/// best's by the same share.
pub fn share_within(percent: f64) -> f64 {
    1.0 - percent / 100.0
}

/// Compares the setting `name` with the best of the others, in packets and in the figure on the y axis.
fn within(name: &str, percent: f64, all: &[Setting<'_>]) -> (String, String, Verdict) {
    let ours = all.iter().find(|it| it.name == name);
    let (Some(ours), Some(best)) = (ours, best_but(name, all)) else {
        return ("the best".into(), "none".into(), Verdict::Not);
    };
    let (packets, cost) = (ours.packets / best.packets, ours.y / best.y);
    let least = share_within(percent);
    let verdict = match packets >= least && cost * least <= 1.0 {
        true => Verdict::Reproduced,
        false => Verdict::Not,
    };
    let ours = format!("x {packets:.2} packets, x {cost:.2}");
    (format!("{} within {percent} %", best.name), ours, verdict)
}

/// Judges a change without a number in the paper. The paper may call it slight.
fn direction(up: bool, percent: f64, percent_max: Option<f64>) -> Verdict {
    if percent.is_nan() || percent.abs() < NO_CHANGE_PERCENT || (percent > 0.0) != up {
        Verdict::Not
    } else if percent_max.is_some_and(|max| percent.abs() > max) {
        Verdict::DirectionOnly
    } else {
        Verdict::Reproduced
    }
}

/// Returns a verdict on a change. A change below one percent has no direction.
fn moved(percent: f64, verdict: Verdict) -> Verdict {
    match verdict {
        Verdict::DirectionOnly if percent.abs() < NO_CHANGE_PERCENT => Verdict::Not,
        verdict => verdict,
    }
}

/// Judges a number that the paper gives.
fn size(paper: f64, ours: f64) -> Verdict {
    if (ours - paper).abs() <= TOLERANCE * paper.abs() {
        Verdict::Reproduced
    } else if ours * paper > 0.0 {
        Verdict::DirectionOnly
    } else {
        Verdict::Not
    }
}

#[cfg(test)]
mod tests {
    use super::super::file::Span;
    use super::*;

    #[test]
    fn a_size_is_reproduced_within_15_percent_and_its_sign_is_a_direction() {
        assert_eq!(size(-71.0, -80.0), Verdict::Reproduced);
        assert_eq!(size(-71.0, -60.0), Verdict::DirectionOnly);
        assert_eq!(size(-71.0, 1.0), Verdict::Not);
        assert_eq!(size(3.0, 0.0), Verdict::Not);
    }

    #[test]
    fn a_larger_change_goes_the_same_way_and_further() {
        let verdict = |values: [f64; 4]| {
            let at = |point: &str| At::from([("x".to_owned(), point.to_owned())]);
            let more = Statement::More {
                from: at("0"),
                to: at("1"),
                than: Span { from: at("2"), to: at("3") },
            };
            let claim = ClaimFile {
                figure: String::new(),
                source: String::new(),
                says: String::new(),
                used: Use::Predict,
                y: Figure::CpuPercent,
                is: more,
                reason: None,
            };
            let y = |_, at: &At| values[at["x"].parse::<usize>().unwrap()];
            judge(&claim, ("x", &[]), y).verdict
        };
        assert_eq!(verdict([100.0, 40.0, 100.0, 90.0]), Verdict::Reproduced);
        assert_eq!(verdict([100.0, 95.0, 100.0, 90.0]), Verdict::Not);
        assert_eq!(verdict([100.0, 140.0, 100.0, 90.0]), Verdict::Not);
    }

    #[test]
    fn a_setting_is_held_against_the_cheapest_of_those_with_nearly_the_most_packets() {
        let judged = |ours: (f64, f64)| {
            let all = [
                ("auto", ours),
                ("slow", (50.0, 1.0)),
                ("dear", (100.0, 9.0)),
                ("good", (99.0, 4.0)),
            ];
            within("auto", 5.0, &all.map(|(name, (packets, y))| Setting { name, packets, y }))
        };
        let (there, here, verdict) = judged((98.0, 4.2));
        assert_eq!((there.as_str(), verdict), ("good within 5 %", Verdict::Reproduced));
        assert_eq!(here, "x 0.99 packets, x 1.05");
        assert_eq!(judged((94.0, 1.0)).2, Verdict::Not, "too few packets");
        assert_eq!(judged((100.0, 4.3)).2, Verdict::Not, "too much CPU");
        assert_eq!(judged((f64::NAN, f64::NAN)).2, Verdict::Not);
    }

    /// Starts that differ by half leave no doubt where both points differ alike in each, and points that differ as
    /// chance has it need more, but no others do.
    #[test]
    fn a_verdict_is_known_two_errors_from_its_border() {
        let claim = |y, is| ClaimFile {
            figure: String::new(),
            source: String::new(),
            says: String::new(),
            used: Use::Predict,
            y,
            is,
            reason: None,
        };
        let at = |point: &str| At::from([("x".to_owned(), point.to_owned())]);
        let points = ["first", "apart", "mixed"].map(str::to_owned);
        let of = |_, at: &At| -> &[f64] {
            match at["x"].as_str() {
                "first" => &[100.0, 150.0, 120.0, 140.0],
                "apart" => &[101.0, 151.5, 121.0, 141.0],
                _ => &[97.0, 156.0, 117.0, 146.0],
            }
        };
        let x = ("x", &points[..]);
        let least = |all: &[&str]| {
            let points = all.iter().map(|it| (*it).to_owned()).collect();
            claim(Figure::CpuPercent, Statement::Least { at: At::new(), points })
        };
        assert_eq!(unknown(&least(&["first"]), x, &of), [at("first"), at("mixed")]);
        assert!(!unknown(&least(&["first"]), x, &of).is_empty());
        assert!(unknown(&least(&["apart"]), x, &of).is_empty(), "another is less in any case");
        let first_two = ("x", &points[..2]);
        assert!(unknown(&least(&["first"]), first_two, &of).is_empty());
        // A mean of 127.5, whose error is 11.
        let value = |value| claim(Figure::CpuPercent, Statement::Value { at: at("first"), value });
        assert!(unknown(&value(127.5 / 1.4), x, &of).is_empty(), "out of reach");
        assert!(!unknown(&value(127.5), x, &of).is_empty(), "the borders are 19 away");
        let one = |_, _: &At| -> &[f64] { &[127.5] };
        assert!(unknown(&value(127.5 / 1.15), x, &one).is_empty(), "one start says all");
        let change = |sign, percent_max| {
            let (from, to) = (at("first"), at("apart"));
            let (by, percent) = (None, None);
            let is = Statement::Change { from, to, by, percent, sign: Some(sign), percent_max };
            claim(Figure::CpuPercent, is)
        };
        assert!(
            unknown(&change(Sign::Down, None), x, &of).is_empty(),
            "0.9 %, and no start has less"
        );
        assert!(!unknown(&change(Sign::Up, None), x, &of).is_empty(), "the border is 1 %");
    }

    #[test]
    fn a_change_of_nothing_is_told_without_percent() {
        let at = |point: &str| At::from([("x".to_owned(), point.to_owned())]);
        let (sign, by) = (Some(Sign::Up), None);
        let (from, to) = (at("0"), at("1"));
        let claim = ClaimFile {
            figure: String::new(),
            source: String::new(),
            says: String::new(),
            used: Use::Predict,
            y: Figure::JitterUs,
            is: Statement::Change { from, to, by, percent: None, sign, percent_max: None },
            reason: None,
        };
        let judged = |values: [f64; 2]| {
            judge(&claim, ("x", &[]), |_, at| values[at["x"].parse::<usize>().unwrap()])
        };
        let (none, some) = (judged([0.0, 0.0]), judged([0.0, 5.0]));
        assert_eq!((none.ours.as_str(), none.verdict), ("+0.0 %", Verdict::Not));
        assert_eq!((some.ours.as_str(), some.verdict), ("+5.0 from 0.0", Verdict::Reproduced));
    }

    #[test]
    fn a_change_without_a_number_has_a_direction_and_may_have_to_be_small() {
        assert_eq!(direction(false, -40.0, None), Verdict::Reproduced);
        assert_eq!(direction(false, -40.0, Some(15.0)), Verdict::DirectionOnly);
        assert_eq!(direction(true, -40.0, None), Verdict::Not);
        assert_eq!(direction(false, 0.0, None), Verdict::Not);
        assert_eq!(direction(false, -0.9, None), Verdict::Not, "less than a percent");
        assert_eq!(moved(-0.9, size(-16.5, -0.9)), Verdict::Not);
        assert_eq!(moved(-0.9, size(-1.0, -0.9)), Verdict::Reproduced);
        assert_eq!(direction(false, f64::NAN, None), Verdict::Not);
    }
}
