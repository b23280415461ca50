//! The verdict on each figure, table and section of the papers: the worst of the verdicts on its claims.
//!
//! A further claim can therefore make a figure's verdict worse, but never make up for a failed claim.

use std::fmt;

use serde::Serialize;
use weir_text::{Table, count};

use super::file::Use;
use super::output::Outcome;
use super::verdict::{Judged, Verdict, words};

/// A figure of a paper, and the results of its claims.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Standing {
    /// Short name of the paper: `Dong 2011`.
    pub paper: String,
    /// Name of the figure: `Fig. 2`.
    pub figure: String,
    /// The worst verdict among the paper's claims.
    pub verdict: Verdict,
    /// True if the verdict may depend on the seed, because a claim's does.
    pub within_spread: bool,
    /// Number of reproduced claims.
    pub reproduced: usize,
    /// Number of claims.
    pub claims: usize,
    /// Number of predicted claims.
    pub predicted: usize,
    /// The reason for a failure: the worst claims with their reasons.
    pub reason: Option<String>,
}

impl Standing {
    fn of(paper: &str, figure: String, claims: &[&Judged]) -> Self {
        let all = || claims.iter();
        let worst = all().map(|claim| claim.verdict).max().unwrap_or(Verdict::Not);
        let at_worst = || all().filter(|claim| claim.verdict == worst);
        let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
        for claim in at_worst() {
            let reason = claim.reason.as_deref().unwrap_or_default();
            match reasons.iter_mut().find(|it| it.0 == reason) {
                Some((_, says)) => says.push(&claim.says),
                None => reasons.push((reason, vec![&claim.says])),
            }
        }
        let reasons: Vec<_> =
            reasons.iter().map(|(why, says)| format!("{}: {why}", says.join("; "))).collect();
        Self {
            paper: paper.to_owned(),
            figure,
            verdict: worst,
            within_spread: match worst {
                // No verdict is worse. It depends on the seed only if all such claims do.
                Verdict::Not => at_worst().all(|claim| claim.within_spread),
                Verdict::Reproduced | Verdict::DirectionOnly => {
                    all().any(|claim| claim.within_spread)
                }
            },
            reproduced: all().filter(|claim| claim.verdict == Verdict::Reproduced).count(),
            claims: claims.len(),
            predicted: all().filter(|claim| claim.used == Use::Predict).count(),
            reason: (worst != Verdict::Reproduced).then(|| reasons.join(". ")),
        }
    }

    /// True if all claims were used to fit costs.
    fn is_fitted(&self) -> bool {
        self.predicted == 0
    }

    /// Returns the verdict in words, with notes on seeds and on missing predictions.
    pub fn words(&self) -> String {
        let fitted = if self.is_fitted() { ", fitted" } else { "" };
        format!("{}{fitted}", words(self.verdict, self.within_spread))
    }

    /// Returns the share of reproduced claims in words.
    pub fn share(&self) -> String {
        format!("{} of {}", self.reproduced, self.claims)
    }
}

/// All figures by paper, then by number.
#[derive(Clone, Debug, Serialize)]
#[serde(transparent)]
pub struct Standings(pub Vec<Standing>);

impl Standings {
    /// Judges the outcomes. An experiment without a `paper` belongs to no figure.
    pub fn of<'o>(outcomes: impl IntoIterator<Item = &'o Outcome>) -> Self {
        let mut figures: Vec<(&str, String, Vec<&Judged>)> = Vec::new();
        for outcome in outcomes {
            let Some(paper) = outcome.paper.as_deref().map(paper) else { continue };
            for claim in &outcome.claims {
                for figure in figures_of(&claim.figure) {
                    match figures.iter_mut().find(|it| (it.0, &it.1) == (paper, &figure)) {
                        Some((.., claims)) => claims.push(claim),
                        None => figures.push((paper, figure, vec![claim])),
                    }
                }
            }
        }
        let papers: Vec<&str> = figures.iter().map(|it| it.0).collect();
        figures.sort_by_key(|(paper, figure, _)| {
            (papers.iter().position(|it| it == paper), in_order(figure))
        });
        Self(
            figures.into_iter().map(|(paper, name, all)| Standing::of(paper, name, &all)).collect(),
        )
    }

    /// Iterates over the papers with their figures.
    pub fn by_paper(&self) -> impl Iterator<Item = (&str, &[Standing])> {
        self.0.chunk_by(|a, b| a.paper == b.paper).filter_map(|all| {
            let first = all.first()?;
            Some((first.paper.as_str(), all))
        })
    }

    /// Returns the number of figures and of each verdict, in words. Reproduced figures that costs were fitted to are
    /// counted apart.
    pub fn tally(all: &[Standing]) -> String {
        let of = |verdict| all.iter().filter(|it| it.verdict == verdict).count();
        let of_fits =
            all.iter().filter(|it| it.verdict == Verdict::Reproduced && it.is_fitted()).count();
        let fitted = if of_fits == 0 { String::new() } else { format!(" ({of_fits} fitted)") };
        format!(
            "of {} {} reproduced{fitted}, {} direction only, {} not",
            count(all.len(), "figure"),
            of(Verdict::Reproduced),
            of(Verdict::DirectionOnly),
            of(Verdict::Not)
        )
    }
}

impl fmt::Display for Standings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(&["<PAPER", "<FIGURE", "<VERDICT", "CLAIMS"]);
        for it in &self.0 {
            table.row(vec![it.paper.clone(), it.figure.clone(), it.words(), it.share()]);
        }
        writeln!(f, "{table}")?;
        for it in &self.0 {
            if let Some(reason) = &it.reason {
                let (verdict, why) = (it.verdict.as_str(), reason);
                writeln!(f, "{}, {}: {verdict}. {why}", it.paper, it.figure)?;
            }
        }
        writeln!(f)?;
        for (paper, all) in self.by_paper() {
            writeln!(f, "{paper}: {}", Self::tally(all))?;
        }
        writeln!(f, "all: {}", Self::tally(&self.0))
    }
}

/// Returns the short name of a paper: the part before the figures in `Dong 2011, Figs. 12 to 15`.
fn paper(text: &str) -> &str {
    text.split(',').next().unwrap_or(text).trim()
}

/// Returns the figures of a claim: two for `Figs. 10, 11`, and one for `Fig. 6 (a)`.
fn figures_of(text: &str) -> Vec<String> {
    let whole = text.split(" (").next().unwrap_or(text);
    match whole.strip_prefix("Figs. ") {
        Some(numbers) => numbers.split(", ").map(|number| format!("Fig. {number}")).collect(),
        None => vec![whole.to_owned()],
    }
}

/// Returns a sort key that puts Fig. 2 before Fig. 10, and Fig. 6b behind Fig. 6. Figures without a number are sorted by
/// name.
fn in_order(figure: &str) -> (String, u32, String) {
    let digits = figure.find(|letter: char| letter.is_ascii_digit()).unwrap_or(figure.len());
    let (name, number) = figure.split_at(digits);
    let first = number.trim_end_matches(|letter: char| letter.is_ascii_lowercase());
    (name.to_owned(), first.parse().unwrap_or(u32::MAX), number.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(verdict: Verdict, used: Use, says: &str, reason: &str) -> Judged {
        Judged {
            figure: "Fig. 1".into(),
            source: String::new(),
            says: says.into(),
            used,
            paper: String::new(),
            ours: String::new(),
            ratio: None,
            verdict,
            within_spread: false,
            reason: (verdict != Verdict::Reproduced).then(|| reason.to_owned()),
        }
    }

    #[test]
    fn a_figure_is_as_good_as_its_worst_claim_and_says_why() {
        let good = judged(Verdict::Reproduced, Use::Predict, "a", "");
        let part = judged(Verdict::DirectionOnly, Use::Fit, "b", "too small");
        let bad = judged(Verdict::Not, Use::Predict, "c", "no cache");
        let other = judged(Verdict::Not, Use::Predict, "d", "no cache");
        let of = |claims: &[&Judged]| Standing::of("Who 2099", "Fig. 1".into(), claims);
        assert_eq!(of(&[&good]).words(), "reproduced");
        assert_eq!(of(&[&good]).reason, None);
        let two = of(&[&good, &part]);
        assert_eq!((two.verdict, two.share()), (Verdict::DirectionOnly, "1 of 2".into()));
        assert_eq!(two.reason.as_deref(), Some("b: too small"));
        let all = of(&[&bad, &good, &part, &other]);
        assert_eq!(all.reason.as_deref(), Some("c; d: no cache"));
        assert_eq!((all.verdict, all.predicted, all.claims), (Verdict::Not, 3, 4));
        assert_eq!(of(&[&part]).words(), "direction only, fitted");
        let loose = Judged { within_spread: true, ..good.clone() };
        assert_eq!(of(&[&good, &loose]).words(), "reproduced, within the seeds' spread");
        assert_eq!(of(&[&bad, &loose]).words(), "not", "whatever comes of the other");
        let loose = Judged { within_spread: true, ..bad.clone() };
        assert_eq!(of(&[&good, &loose]).words(), "not, within the seeds' spread");
    }

    #[test]
    fn the_table_ends_with_how_many_figures_of_each_paper_there_are() {
        let good = judged(Verdict::Reproduced, Use::Predict, "a", "");
        let bad = judged(Verdict::Not, Use::Predict, "c", "no cache");
        let all = Standings(vec![
            Standing::of("Who 2099", "Fig. 1".into(), &[&good]),
            Standing::of("Who 2099", "Fig. 2".into(), &[&good, &bad]),
            Standing::of("Me 2100", "Table 1".into(), &[&good]),
        ]);
        let expected = "\
PAPER     FIGURE   VERDICT     CLAIMS
Who 2099  Fig. 1   reproduced  1 of 1
Who 2099  Fig. 2   not         1 of 2
Me 2100   Table 1  reproduced  1 of 1

Who 2099, Fig. 2: not. c: no cache

Who 2099: of 2 figures 1 reproduced, 0 direction only, 1 not
Me 2100: of 1 figure 1 reproduced, 0 direction only, 0 not
all: of 3 figures 2 reproduced, 0 direction only, 1 not
";
        assert_eq!(all.to_string(), expected);
    }

    #[test]
    fn a_claim_may_be_about_two_figures_or_a_part_of_one() {
        assert_eq!(figures_of("Figs. 10, 11"), ["Fig. 10", "Fig. 11"]);
        assert_eq!(figures_of("Fig. 6 (a)"), ["Fig. 6"]);
        assert_eq!(figures_of("Section III, low rate"), ["Section III, low rate"]);
        assert_eq!(paper("Dong 2011, Figs. 12 to 15"), "Dong 2011");
        assert_eq!(paper("Zhang 2010"), "Zhang 2010");
    }

    #[test]
    fn figures_are_in_the_order_of_their_numbers() {
        let mut all = ["Table 1", "Fig. 10", "Fig. 2", "Section III, low rate", "Fig. 9"];
        all.sort_by_key(|figure| in_order(figure));
        assert_eq!(all, ["Fig. 2", "Fig. 9", "Fig. 10", "Section III, low rate", "Table 1"]);
    }
}
