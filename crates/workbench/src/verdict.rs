//! Whether what came out is what a paper says.

use serde::Serialize;

use super::file::{At, ClaimFile, Figure, Sign, Statement, Use};

/// A size is reproduced within this share of the paper's.
pub const TOLERANCE: f64 = 0.15;
/// A point with a smaller share of the most packets a second is not the best of a `within`, as in `weir bench
/// --policies`.
const PACKETS_SHARE_MIN: f64 = 0.98;
/// A smaller change (percent) has no direction, being noise on a real host; [`Judged::within_spread`] finds larger
/// ones that come and go with the seed.
const NO_CHANGE_PERCENT: f64 = 1.0;

/// What came of a claim, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Direction, order of the alternatives, and size within 15 %, as far as the paper gives them.
    Reproduced,
    /// The direction, or the best alternative, and no more.
    DirectionOnly,
    /// Neither.
    Not,
}

impl Verdict {
    /// In words.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reproduced => "reproduced",
            Self::DirectionOnly => "direction only",
            Self::Not => "not",
        }
    }

    /// In a letter.
    pub const fn sign(self) -> &'static str {
        match self {
            Self::Reproduced => "✓",
            Self::DirectionOnly => "≈",
            Self::Not => "✗",
        }
    }
}

/// A claim with what came out.
#[derive(Clone, Debug, Serialize)]
pub struct Judged {
    /// Which figure or table.
    pub figure: String,
    /// Where in the paper.
    pub source: String,
    /// What it says.
    pub says: String,
    /// Whether the profile was fitted to it.
    pub used: Use,
    /// The paper's number or order.
    pub paper: String,
    /// Ours.
    pub ours: String,
    /// Ours over the paper's, where it gives a number.
    pub ratio: Option<f64>,
    /// Which of them agree, by the means of the seeds.
    pub verdict: Verdict,
    /// At least one of the seeds alone has another verdict.
    pub within_spread: bool,
    /// Why it is not reproduced, if it is not.
    pub reason: Option<String>,
}

impl Judged {
    /// The verdict in words, and whether it hangs on the seed.
    pub fn words(&self) -> String {
        words(self.verdict, self.within_spread)
    }
}

/// A verdict in words, and whether it hangs on the seed.
pub fn words(verdict: Verdict, within_spread: bool) -> String {
    let spread = if within_spread { ", within the seeds' spread" } else { "" };
    format!("{}{spread}", verdict.as_str())
}

/// Judges a claim. `value` gives a figure at a point, and `x` is the name and points of the plot's x.
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
            // Of nothing, no change is no change, and any other is beyond all percentages.
            let relative = if change == 0.0 { 0.0 } else { 100.0 * change / from };
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

/// A point of x, with what a `within` compares.
pub struct Setting<'t> {
    name: &'t str,
    /// A second.
    packets: f64,
    /// What the claim is about.
    pub y: f64,
}

/// All points of x, elsewhere `at`.
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

/// The best of all settings but the one called `name`.
pub fn best_but<'s, 't>(name: &str, all: &'s [Setting<'t>]) -> Option<&'s Setting<'t>> {
    let others = all.iter().filter(|it| it.name != name);
    let most = others.clone().map(|it| it.packets).fold(0.0, f64::max);
    let enough = others.filter(|it| it.packets >= PACKETS_SHARE_MIN * most);
    enough.min_by(|a, b| a.y.total_cmp(&b.y))
}

/// The least share of the best's packets that still counts as within `percent`; y may exceed the best's by the same
/// share.
pub fn share_within(percent: f64) -> f64 {
    1.0 - percent / 100.0
}

/// What the setting called `name` loses to the best of the others, in packets and in y.
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

/// Of a change of which the paper gives no number, though it may say that it is small.
fn direction(up: bool, percent: f64, percent_max: Option<f64>) -> Verdict {
    if percent.is_nan() || percent.abs() < NO_CHANGE_PERCENT || (percent > 0.0) != up {
        Verdict::Not
    } else if percent_max.is_some_and(|max| percent.abs() > max) {
        Verdict::DirectionOnly
    } else {
        Verdict::Reproduced
    }
}

/// A verdict on a change, of which one of hardly a percent has not even the direction.
fn moved(percent: f64, verdict: Verdict) -> Verdict {
    match verdict {
        Verdict::DirectionOnly if percent.abs() < NO_CHANGE_PERCENT => Verdict::Not,
        verdict => verdict,
    }
}

/// Of numbers that the paper gives.
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
