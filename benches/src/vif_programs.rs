//! Examples of the `vif` crate, of the uplinks and of the forwarding table: user-space guests that load a switch or
//! are silent.

use std::{
    io::Write,
    path::{Path, PathBuf},
    sync::mpsc::Receiver,
    time::Duration,
};

use weir_bed::{
    error::{Error, Result},
    process::{Dialogue, Placement, Process},
    uplink::Uplink,
    usage::Usage,
    workspace::{Programs, Workspace},
};

/// Longest silence of a program: it prints a line every second, and a line once all of a thousand guests are
/// attached.
const PATIENCE: Duration = Duration::from_secs(30);

/// Ethernet addresses of the two guests of `stream` and `paced`, the only ones that weir accepts at
/// their ports.
pub const MACS: [&str; 2] = ["52:54:00:00:01:01", "52:54:00:00:01:02"];

/// The example of the `vif` crate, with a command for each load.
const GUESTS: &str = "guests";

/// The built programs.
#[derive(Clone, Debug)]
pub struct VifPrograms {
    built: Programs,
}

impl VifPrograms {
    /// Builds the programs with optimisation.
    pub fn build(workspace: &Workspace) -> Result<Self> {
        Ok(Self { built: Programs::build_to_measure(workspace)? })
    }

    /// Streams 64 KiB segments for `seconds` from the guest at the first socket to the guest at the second, whose
    /// receive buffers have `buffer_bytes`. Both are on CPU `cpu`. Prints Gbit/s of payload every second.
    pub fn stream(
        &self,
        sockets: &[PathBuf; 2],
        seconds: u32,
        buffer_bytes: u32,
        cpu: usize,
    ) -> Result<EverySecond> {
        self.every_second("stream", sockets, &[seconds, buffer_bytes], cpu)
    }

    /// Sends `rate` UDP frames of `frame_bytes` a second in the same direction. Prints the frames that arrived every
    /// second.
    pub fn paced(
        &self,
        sockets: &[PathBuf; 2],
        rate: u32,
        frame_bytes: u32,
        seconds: u32,
        cpu: usize,
    ) -> Result<EverySecond> {
        self.every_second("paced", sockets, &[rate, frame_bytes, seconds], cpu)
    }

    /// Sends UDP frames of `frame_bytes` from the guest at `socket` to an outside address, as fast as possible.
    /// Prints the frames sent every second.
    pub fn outward(
        &self,
        socket: &Path,
        frame_bytes: u32,
        seconds: u32,
        cpu: usize,
    ) -> Result<EverySecond> {
        let numbers = [frame_bytes, seconds].map(|number| number.to_string());
        let argv = [socket.to_string_lossy().into_owned()].into_iter().chain(numbers);
        self.run(GUESTS, ["outward".to_owned()].into_iter().chain(argv).collect(), &on(cpu))
    }

    /// Sends frames without a guest: from an uplink's port, opened at `placement`, directly into its interface.
    pub fn uplink_limit(
        &self,
        uplink: Uplink,
        frame_bytes: u32,
        seconds: u32,
        placement: &Placement,
    ) -> Result<EverySecond> {
        let numbers = [frame_bytes, seconds].map(|number| number.to_string());
        let names = [uplink.kind(), uplink.interface()].map(str::to_owned);
        self.run("uplink_limit", names.into_iter().chain(numbers).collect(), placement)
    }

    /// Sends `rate` requests a second for `seconds`, after a second to warm up, from the guest at the first socket to
    /// the guest at the second, which answers. Prints a line after the warm-up and a line at the end.
    pub fn ask(
        &self,
        sockets: &[PathBuf; 2],
        rate: u32,
        seconds: u32,
        cpu: usize,
    ) -> Result<EverySecond> {
        self.every_second("ask", sockets, &[rate, seconds], cpu)
    }

    /// Does the same as [`Self::ask`] for two guests that read and write `taps`, at `placement`.
    pub fn ask_taps(
        &self,
        taps: [String; 2],
        rate: u32,
        seconds: u32,
        placement: &Placement,
    ) -> Result<EverySecond> {
        let numbers = [rate, seconds].map(|number| number.to_string());
        let arguments = ["ask".to_owned()].into_iter().chain(taps).chain(numbers).collect();
        self.run("uplink_limit", arguments, placement)
    }

    /// Measures look-ups in a forwarding table. Prints a line for few addresses and a line for many.
    pub fn lookup(&self, cpu: usize) -> Result<EverySecond> {
        self.run("lookup", Vec::new(), &on(cpu))
    }

    /// Attaches a silent guest at each of `sockets`, until the process is dropped.
    pub fn attach(&self, sockets: &[PathBuf]) -> Result<Process> {
        let program = self.example(GUESTS);
        let (process, Dialogue { mut stdin, lines }) =
            Process::start_dialogue(&[&program, "attach"], &Placement::default())?;
        for socket in sockets {
            writeln!(stdin, "{}", socket.display())
                .map_err(|source| Error::Io { what: format!("write to {program}"), source })?;
        }
        // The program waits for the end of the list of sockets.
        drop(stdin);
        let line = next_line(&lines, &program)?;
        if line != format!("{} attached", sockets.len()) {
            return Err(Error::parse("that all guests are attached", line));
        }
        Ok(process)
    }

    /// Runs a command of [`GUESTS`] for two guests.
    fn every_second(
        &self,
        command: &str,
        sockets: &[PathBuf; 2],
        numbers: &[u32],
        cpu: usize,
    ) -> Result<EverySecond> {
        let sockets = sockets.iter().map(|path| path.to_string_lossy().into_owned());
        let numbers = numbers.iter().map(u32::to_string);
        let arguments = [command.to_owned()].into_iter().chain(sockets).chain(numbers).collect();
        self.run(GUESTS, arguments, &on(cpu))
    }

    fn run(
        &self,
        name: &'static str,
        arguments: Vec<String>,
        placement: &Placement,
    ) -> Result<EverySecond> {
        let program = self.example(name);
        let arguments = arguments.iter().map(String::as_str);
        let argv: Vec<_> = std::iter::once(program.as_str()).chain(arguments).collect();
        let (process, dialogue) = Process::start_dialogue(&argv, placement)?;
        Ok(EverySecond { process, dialogue, name })
    }

    /// Returns the path of an example's program.
    pub fn example(&self, name: &str) -> String {
        self.built.example(name).to_string_lossy().into_owned()
    }
}

/// A running program that prints its results every second.
pub struct EverySecond {
    process: Process,
    dialogue: Dialogue,
    name: &'static str,
}

impl EverySecond {
    /// Returns the program's use of the machine.
    pub fn usage(&self) -> Usage {
        Usage::of(self.process.pid())
    }

    /// Waits for the program's next line.
    pub fn line(&mut self) -> Result<String> {
        next_line(&self.dialogue.lines, self.name)
    }

    /// Waits for the end of the present second. Returns its figure.
    pub fn next(&mut self) -> Result<f64> {
        let line = self.line()?;
        figure(&line).ok_or_else(|| Error::parse("a second's figure", line))
    }
}

fn next_line(lines: &Receiver<String>, name: &str) -> Result<String> {
    lines.recv_timeout(PATIENCE).map_err(|error| Error::Check(format!("{name}: {error}")))
}

/// Parses the third word of `  1 s    82345 frames/s  0 lost in all`.
fn figure(line: &str) -> Option<f64> {
    let mut words = line.split_whitespace();
    let (_number, unit, figure) = (words.next()?, words.next()?, words.next()?);
    if unit == "s" { figure.parse().ok() } else { None }
}

fn on(cpu: usize) -> Placement {
    Placement { cpu: Some(cpu), ..Placement::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figure_of_a_second_is_read() {
        assert_eq!(figure("  1 s     82345 frames/s  0 lost in all"), Some(82_345.0));
        assert_eq!(figure(" 10 s   101.50 Gbit/s"), Some(101.5));
        assert_eq!(figure("Error: no such file"), None);
    }
}
