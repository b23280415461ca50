//! The figures of one run: printed as they are measured, and set in `target/bench/report.json`.

use weir_bed::{
    error::Result,
    report::{self, Goal},
    workspace::Workspace,
};

/// The figures, in order.
#[derive(Debug, Default)]
pub struct Bars {
    figures: Vec<(&'static str, f64)>,
    missed: u32,
}

impl Bars {
    /// Adds a figure, and prints it with its goal.
    pub fn add(&mut self, name: &'static str, value: f64, goal: Option<Goal>) {
        let verdict = goal.map_or(String::new(), |goal| {
            let reached = goal.reached_by(value);
            self.missed += u32::from(!reached);
            format!("  (goal {goal}: {})", if reached { "reached" } else { "missed" })
        });
        println!("figure {name} {value:.4}{verdict}");
        self.figures.push((name, value));
    }

    /// Sets the figures in the report beside those of other programs.
    pub fn write(&self, workspace: &Workspace) -> Result<()> {
        let path = report::merge(workspace, &self.figures)?;
        println!("written: {}", path.display());
        Ok(())
    }

    /// Returns how many have missed their goals.
    pub fn missed(&self) -> u32 {
        self.missed
    }
}

/// Returns the value that a share of all do not exceed.
pub fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let rank = (values.len() as f64 * share).ceil().max(1.0) as usize;
    values.get(rank - 1).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_one_of_the_values() {
        let mut values: Vec<_> = (1..=20).rev().map(f64::from).collect();
        assert_eq!((quantile(&mut values, 0.95), quantile(&mut values, 0.5)), (19.0, 10.0));
        assert_eq!((quantile(&mut [], 0.95), quantile(&mut [3.0], 0.95)), (0.0, 3.0));
    }
}
