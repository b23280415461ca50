//! Demos with machines: `make demo-vm`, two Linux guests on weir, and the output of any such demo. On a terminal, the
//! remaining time is below the output, which is also written as a report.

use std::{
    fmt::Write as _,
    fs,
    io::IsTerminal as _,
    path::PathBuf,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};
use weir_bed::{
    address,
    error::{Error, Result},
    iperf::{self, Tcp},
    lab::Lab,
    qemu::{Guest, GuestSpec},
    switch::Switch,
    weir::{self, Setup, Weir},
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

const PATIENCE: Duration = Duration::from_secs(30);

/// Time for which iperf3 sends, in each direction.
const SECONDS: u64 = 5;

const STEPS: &[Step] = &[
    Step { title: "weir starts with two interfaces", seconds: 1 },
    Step { title: "Two guests boot Debian's kernel, under QEMU without KVM", seconds: 4 },
    Step { title: "One pings the other", seconds: 4 },
    Step { title: "TCP each way", seconds: 2 * SECONDS + 2 },
];

/// Boots two guests, pings, runs iperf3 in both directions and prints the results.
pub fn vm(lab: &Lab) -> Result<()> {
    let mut shown = Shown::new(STEPS);
    shown.step();
    let weir = Weir::start(lab, &Setup::vifs(2))?;
    let mut specs = Vec::new();
    for index in 0..2 {
        let plug = weir.plug(index)?;
        let command = format!("qemu-system-x86_64 ... {}", plug.qemu_args.join(" "));
        shown.show(&command, "");
        let name = weir::name(index);
        specs.push(GuestSpec { name, cidr: address::cidr(index), vcpus: 1, plug });
    }
    shown.step();
    let mut guests = Guest::boot_all(&lab.image, &specs, weir.dir())?;
    let [first, second] = guests.as_mut_slice() else { unreachable!("two specs, two guests") };
    shown.show("uname -sr   # guest 1", &first.run("uname -sr", PATIENCE)?);
    shown.step();
    let ping = format!("ping -c 4 {}", address::ip(1));
    shown.show(&format!("{ping}   # guest 1"), &first.run(&ping, PATIENCE)?);

    shown.step();
    iperf::serve(first, iperf::PORT)?;
    iperf::serve(second, iperf::PORT)?;
    let forth = Tcp::to(address::ip(1), SECONDS).run(first)?;
    shown.say(&format!("iperf3, guest 1 to guest 2: {:6.2} Gbit/s", forth.gbit_per_second()));
    let back = Tcp::to(address::ip(0), SECONDS).run(second)?;
    shown.say(&format!("iperf3, guest 2 to guest 1: {:6.2} Gbit/s", back.gbit_per_second()));
    shown.end();
    weir.stop()
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
