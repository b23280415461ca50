//! The output of a demo with machines. On a terminal, the remaining time is below it. It is also written as a report.

use std::{
    fmt::Write as _,
    fs,
    io::IsTerminal as _,
    path::PathBuf,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};
use weir_bed::{
    error::{Error, Result},
    workspace::Workspace,
};

/// A step and its duration on two idle CPUs (s).
pub struct Step {
    /// The step's title.
    pub title: &'static str,
    /// The duration.
    pub seconds: u64,
}

/// Prints the output and records it for the report.
pub struct Shown {
    bar: Option<ProgressBar>,
    begun: Instant,
    steps: &'static [Step],
    next: usize,
    report: String,
}

impl Shown {
    /// The output of these steps.
    pub fn new(steps: &'static [Step]) -> Self {
        let style = ProgressStyle::with_template("{bar:30} {elapsed} gone, {msg}");
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(steps.iter().map(|step| step.seconds).sum());
            bar.enable_steady_tick(Duration::from_millis(500));
            style.map_or(bar.clone(), |style| bar.with_style(style))
        });
        Self { bar, begun: Instant::now(), steps, next: 0, report: String::new() }
    }

    /// Begins the next step.
    pub fn step(&mut self) {
        let Some(step) = self.steps.get(self.next) else { return };
        self.next += 1;
        let before: u64 = self.steps.iter().take(self.next - 1).map(|step| step.seconds).sum();
        let left: u64 = self.steps.iter().skip(self.next - 1).map(|step| step.seconds).sum();
        let elapsed = self.begun.elapsed().as_secs();
        let _ = write!(self.report, "\n## {}\n\n", step.title);
        match &self.bar {
            Some(bar) => {
                bar.suspend(|| println!("\n== {}", step.title));
                bar.set_position(before);
                bar.set_message(format!("about {left} s left: {}", step.title));
            }
            None => println!("\n[{elapsed:3} s, about {left} s left] {}", step.title),
        }
    }

    /// Prints a line of text.
    pub fn say(&mut self, line: &str) {
        self.print(line);
        let _ = writeln!(self.report, "{line}\n");
    }

    /// Prints a command and its output, or a title and a table.
    pub fn show(&mut self, command: &str, text: &str) {
        let text: String = text.lines().map(|line| format!("  {}\n", line.trim_end())).collect();
        self.print(&format!("$ {command}\n{}", text.trim_end()));
        let _ = write!(self.report, "```\n$ {command}\n{text}```\n\n");
    }

    fn print(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| println!("{text}")),
            None => println!("{text}"),
        }
    }

    /// Ends the output.
    pub fn end(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    /// Adds files to the report and writes it. Returns its path.
    pub fn write(mut self, workspace: &Workspace, files: &[PathBuf]) -> Result<PathBuf> {
        self.end();
        self.report.push_str("\n## Files\n\n");
        for file in files {
            let text = fs::read_to_string(file).map_err(Error::io("read", file))?;
            let name = file.file_name().unwrap_or_default().display();
            let _ = write!(self.report, "`{name}` of host 1:\n\n```\n{}\n```\n\n", text.trim());
        }
        let path = workspace.target("demo-fabric")?.join("report.md");
        let text = format!("# A fabric of three hosts\n\nBy `make demo-fabric`.\n{}", self.report);
        fs::write(&path, text).map_err(Error::io("write", &path))?;
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_each_step_with_what_was_said_and_shown() {
        const STEPS: &[Step] =
            &[Step { title: "one", seconds: 1 }, Step { title: "two", seconds: 2 }];
        let mut shown = Shown { bar: None, ..Shown::new(STEPS) };
        shown.step();
        shown.say("words");
        shown.step();
        shown.show("ls", "a \nb\n");
        shown.step();
        assert_eq!(shown.report, "\n## one\n\nwords\n\n\n## two\n\n```\n$ ls\n  a\n  b\n```\n\n");
    }
}
