//! Guests with a stock Linux kernel under QEMU without KVM, and a shell in each.

use std::{
    collections::BTreeMap,
    fmt, fs,
    io::Write,
    path::PathBuf,
    sync::mpsc::{Receiver, RecvTimeoutError},
    time::{Duration, Instant},
};

pub mod moves;

use crate::{
    error::{Error, Result},
    guest_image::GuestImage,
    process::{Dialogue, Placement, Process, run},
    usage::Usage,
};

/// The agent's log in a guest.
pub const AGENT_LOG: &str = "/tmp/agent.log";

/// Guests have no udev, which would make the ports' names. Without it, ports are known by number.
const START_AGENT: &str = "mkdir -p /dev/virtio-ports; \
    for name in /sys/class/virtio-ports/*/name; do \
    port=${name%/name}; ln -sf /dev/${port##*/} /dev/virtio-ports/$(cat $name); done; weir-agent";

/// Longest time for a guest to start the agent.
const AGENT_PATIENCE: Duration = Duration::from_secs(10);

/// The QEMU program in `PATH`.
pub const QEMU: &str = "qemu-system-x86_64";

/// The prefix of the names of QEMU's vCPU threads (`debug-threads=on`).
const VCPU_THREADS: &str = "CPU ";

/// The guests' CPU model, with `rdrand`. Without a source of randomness, Linux computes random
/// numbers for each packet until enough interrupts have come, which takes minutes in a guest with
/// few interrupts.
const CPU: &str = "qemu64,+rdrand";

/// A guest's memory.
pub const MEMORY: &str = "256M";

/// The first version of QEMU that runs vhost-user with MSI-X without KVM. Debian 12's 7.2 crashes, so that guests get
/// legacy interrupts there (`vectors=0`).
const MSIX_WORKS_FROM: u32 = 10;

/// Longest time for a guest to boot. An idle machine takes 3 s.
pub const BOOT_PATIENCE: Duration = Duration::from_secs(90);

/// A longer wait consists of waits of this length.
const WAIT: Duration = Duration::from_millis(100);

/// Line from a guest that is ready for commands; see `guest_init.sh`.
const READY: &str = "@@ready";

/// The installed QEMU.
#[derive(Clone, Copy, Debug)]
pub struct Qemu {
    major: u32,
    minor: u32,
}

impl Qemu {
    /// Asks the installed QEMU for its version.
    pub fn installed() -> Result<Self> {
        Self::at(QEMU)
    }

    /// Asks `program` for its version.
    pub fn at(program: &str) -> Result<Self> {
        let text = run(&[program, "--version"])?;
        version(&text).ok_or_else(|| Error::parse("QEMU's version", &*text))
    }

    /// True if guests with a vhost-user device can have an interrupt per queue.
    pub fn has_msix(self) -> bool {
        self.major >= MSIX_WORKS_FROM
    }
}

impl fmt::Display for Qemu {
    /// Formatted for `weir qemu-args --qemu-version`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

fn version(text: &str) -> Option<Qemu> {
    let mut numbers = text.split("version ").nth(1)?.split('.').map(str::parse);
    Some(Qemu { major: numbers.next()?.ok()?, minor: numbers.next()?.ok()? })
}

/// A guest's connection to a switch.
#[derive(Clone, Debug)]
pub struct Plug {
    /// QEMU arguments: memory (shared if needed), back end and device.
    pub qemu_args: Vec<String>,
    /// The place from which QEMU can reach the switch.
    pub placement: Placement,
}

/// A guest to be booted.
#[derive(Clone, Debug)]
pub struct GuestSpec {
    /// The guest's name in logs and errors.
    pub name: String,
    /// Address of `eth0` with prefix length.
    pub cidr: String,
    /// Number of virtual CPUs.
    pub vcpus: u8,
    /// The guest's connection to the switch.
    pub plug: Plug,
}

/// A running guest. It is killed when it is dropped.
pub struct Guest {
    name: String,
    process: Process,
    dialogue: Dialogue,
    next_id: u32,
    console: PathBuf,
}

/// A command that a guest runs and whose end has not been awaited.
#[derive(Debug)]
#[must_use]
pub struct Started {
    id: u32,
    command: String,
}

impl Guest {
    /// Boots all of `specs` at the same time and waits for their shells.
    ///
    /// The kernels' consoles are written to `NAME.console` in `log_dir`.
    pub fn boot_all(
        image: &GuestImage,
        specs: &[GuestSpec],
        log_dir: &std::path::Path,
    ) -> Result<Vec<Self>> {
        let mut guests = Vec::new();
        for spec in specs {
            guests.push(Self::launch(image, spec, log_dir)?);
        }
        for guest in &mut guests {
            guest.await_ready(BOOT_PATIENCE)?;
        }
        Ok(guests)
    }

    /// Boots one guest and waits for its shell.
    pub fn boot(image: &GuestImage, spec: &GuestSpec, log_dir: &std::path::Path) -> Result<Self> {
        let mut guest = Self::launch(image, spec, log_dir)?;
        guest.await_ready(BOOT_PATIENCE)?;
        Ok(guest)
    }

    /// Boots one guest under `program` in place of the installed QEMU.
    pub fn boot_under(
        program: &str,
        image: &GuestImage,
        spec: &GuestSpec,
        log_dir: &std::path::Path,
    ) -> Result<Self> {
        let mut guest = Self::launch_under(program, image, spec, log_dir)?;
        guest.await_ready(BOOT_PATIENCE)?;
        Ok(guest)
    }

    fn launch(image: &GuestImage, spec: &GuestSpec, log_dir: &std::path::Path) -> Result<Self> {
        Self::launch_under(QEMU, image, spec, log_dir)
    }

    fn launch_under(
        program: &str,
        image: &GuestImage,
        spec: &GuestSpec,
        log_dir: &std::path::Path,
    ) -> Result<Self> {
        let console = log_dir.join(format!("{}.console", spec.name));
        let kernel = image.kernel.to_string_lossy();
        let initrd = image.initrd.to_string_lossy();
        // For a machine with at most one CPU, QEMU before 8.1 without KVM omits memory barriers. The guest and the
        // switch then miss each other's last write, and a kick is lost.
        let vcpus = format!("{},maxcpus={}", spec.vcpus, spec.vcpus.max(2));
        let microvm = spec.plug.qemu_args.iter().any(|arg| arg.starts_with("microvm"));
        let own = if microvm { microvm_arguments()? } else { String::from("console=ttyS0") };
        let append = format!("{own} quiet panic=-1 ipv6.disable=1 weir.address={}", spec.cidr);
        let console_arg = format!("file:{}", console.display());
        let mut argv = vec![
            program,
            "-accel",
            "tcg,thread=multi",
            "-cpu",
            CPU,
            "-smp",
            &vcpus,
            "-name",
            "guest,debug-threads=on",
            "-nodefaults",
            "-display",
            "none",
            "-no-reboot",
            "-kernel",
            &kernel,
            "-initrd",
            &initrd,
            "-append",
            &append,
        ];
        if !microvm {
            argv.extend(["-serial", &console_arg]);
        }
        argv.extend(["-serial", "stdio"]);
        if !spec.plug.qemu_args.iter().any(|arg| arg == "-m") {
            argv.extend(["-m", MEMORY]);
        }
        argv.extend(spec.plug.qemu_args.iter().map(String::as_str));
        Self::start_machine(&spec.name, &argv, &spec.plug.placement, console)
    }

    /// Boots a machine whose first program is `guest_init.sh`, and waits for its shell.
    ///
    /// `argv` is a QEMU command. Its standard streams are the shell's serial port, and it writes the console to the
    /// file `console`.
    pub fn boot_machine(name: &str, argv: &[&str], console: PathBuf) -> Result<Self> {
        let mut guest = Self::start_machine(name, argv, &Placement::default(), console)?;
        guest.await_ready(BOOT_PATIENCE)?;
        Ok(guest)
    }

    /// A machine that runs already. `dialogue` is its shell's serial port, and it ends with `process`. It may take
    /// `patience` to boot.
    pub fn over(
        name: &str,
        process: Process,
        dialogue: Dialogue,
        console: PathBuf,
        patience: Duration,
    ) -> Result<Self> {
        let mut guest = Self { name: name.to_owned(), process, dialogue, next_id: 0, console };
        guest.await_ready(patience)?;
        Ok(guest)
    }

    fn start_machine(
        name: &str,
        argv: &[&str],
        placement: &Placement,
        console: PathBuf,
    ) -> Result<Self> {
        let (process, dialogue) = Process::start_dialogue(argv, placement)?;
        Ok(Self { name: name.to_owned(), process, dialogue, next_id: 0, console })
    }

    fn await_ready(&mut self, mut patience: Duration) -> Result<()> {
        // Before the guest's shell is ready, all output is QEMU's own.
        let mut printed = String::new();
        loop {
            let line = self.next_line("to boot", &mut patience, &printed)?;
            // A firmware's last line may have no end.
            if line.ends_with(READY) {
                return Ok(());
            }
            printed.push_str(&line);
            printed.push('\n');
        }
    }

    /// Runs `command` in the guest's shell and returns what it printed on both streams; an error
    /// unless it ends with status 0 within `patience`.
    pub fn run(&mut self, command: &str, patience: Duration) -> Result<String> {
        let started = self.start(command)?;
        self.finish(started, patience)
    }

    /// Starts the agent in the guest. The agent writes to [`AGENT_LOG`].
    pub fn start_agent(&mut self) -> Result<()> {
        self.run(&format!("{START_AGENT} >{AGENT_LOG} 2>&1 &"), AGENT_PATIENCE).map(drop)
    }

    /// Ends the agent.
    pub fn end_agent(&mut self) -> Result<()> {
        self.run("killall weir-agent", AGENT_PATIENCE).map(drop)
    }

    /// Gives the guest `command` without waiting for it. Commands run one after the other.
    pub fn start(&mut self, command: &str) -> Result<Started> {
        self.next_id += 1;
        let id = self.next_id;
        writeln!(self.dialogue.stdin, "{id} {command}").map_err(|source| Error::Io {
            what: format!("write to guest {}", self.name),
            source,
        })?;
        Ok(Started { id, command: command.to_owned() })
    }

    /// Waits for the end of a command, as [`Guest::run`] does.
    pub fn finish(&mut self, started: Started, mut patience: Duration) -> Result<String> {
        let marker = format!("@@{} ", started.id);
        let mut output = String::new();
        loop {
            let line = self.next_line(&started.command, &mut patience, &output)?;
            // The marker follows the output on the same line if the output ends without a line end.
            if let Some((rest, status)) = line.split_once(&marker) {
                output.push_str(rest);
                if status == "0" {
                    return Ok(output);
                }
                return Err(Error::Command {
                    command: format!("{}: {}", self.name, started.command),
                    status: format!("status {status}"),
                    output,
                });
            }
            output.push_str(&line);
            output.push('\n');
        }
    }

    /// The next line within `patience`, from which the wait is subtracted.
    fn next_line(
        &mut self,
        awaited: &str,
        patience: &mut Duration,
        so_far: &str,
    ) -> Result<String> {
        let after = *patience;
        next_within(&self.dialogue.lines, patience).map_err(|error| {
            let what = format!("guest {}: {awaited}\n{so_far}{}", self.name, self.console_tail());
            match error {
                RecvTimeoutError::Timeout => Error::Timeout { what, after },
                RecvTimeoutError::Disconnected => {
                    Error::Check(format!("QEMU ended while it ran {what}"))
                }
            }
        })
    }

    /// The last lines of the kernel's console, for error messages.
    fn console_tail(&self) -> String {
        const LINES: usize = 5;
        let text = fs::read(&self.console).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().collect();
        lines
            .iter()
            .skip(lines.len().saturating_sub(LINES))
            .map(|line| format!("{line}\n"))
            .collect()
    }

    /// Interrupts so far by the name the driver gave them (`virtio0-input.0`), over all CPUs.
    pub fn interrupts(&mut self) -> Result<BTreeMap<String, u64>> {
        let text = self.run("cat /proc/interrupts", Duration::from_secs(10))?;
        Ok(parse_interrupts(&text))
    }

    /// QEMU's use of the machine: all work of the guest and QEMU's own.
    pub fn usage(&self) -> Usage {
        Usage::of(self.process.pid())
    }

    /// CPU time of the virtual CPUs alone. The rest of [`Guest::usage`] is QEMU's own work: it injects interrupts
    /// and, without vhost, moves packets.
    pub fn vcpu_time(&self) -> Result<Duration> {
        self.usage().cpu_time_of(VCPU_THREADS)
    }

    /// SIGKILL to the guest's QEMU.
    pub fn kill(self) {
        self.process.kill();
    }
}

/// The kernel command line of a microvm. The one serial port is the shell's, so that there is no console. Without KVM
/// the kernel has no clock to calibrate against: the processor's counter runs at this machine's rate, and a delay
/// loop of any length will do.
fn microvm_arguments() -> Result<String> {
    let cpus = std::path::Path::new("/proc/cpuinfo");
    let text = fs::read_to_string(cpus).map_err(Error::io("read", cpus))?;
    let khz = counter_khz(&text).ok_or_else(|| Error::parse("bogomips", text))?;
    Ok(format!("weir.shell=ttyS0 tsc_early_khz={khz:.0} lpj=4000000"))
}

/// The rate of the processor's time stamp counter. Linux derives `bogomips` from it: twice the rate in MHz.
fn counter_khz(cpuinfo: &str) -> Option<f64> {
    let line = cpuinfo.lines().find(|line| line.starts_with("bogomips"))?;
    let bogomips: f64 = line.split(':').nth(1)?.trim().parse().ok()?;
    Some(bogomips * 500.0)
}

/// The next item within `patience`, from which the wait is subtracted.
///
/// The wait consists of short waits, and each counts for its planned length at most: while this machine is suspended,
/// so is its guest.
fn next_within<T>(
    from: &Receiver<T>,
    patience: &mut Duration,
) -> std::result::Result<T, RecvTimeoutError> {
    loop {
        let (wait, start) = (WAIT.min(*patience), Instant::now());
        let received = from.recv_timeout(wait);
        *patience -= start.elapsed().min(wait);
        if patience.is_zero() || !matches!(received, Err(RecvTimeoutError::Timeout)) {
            return received;
        }
    }
}

/// The counts of `/proc/interrupts` over all CPUs, by the last word of each line.
pub fn parse_interrupts(text: &str) -> BTreeMap<String, u64> {
    let cpus = text.lines().next().map_or(0, |header| header.split_whitespace().count());
    let line = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let counts: Vec<u64> =
            words.by_ref().take(cpus).map(|word| word.parse().unwrap_or(0)).collect();
        let name = words.last()?.to_owned();
        Some((name, counts.iter().sum()))
    };
    text.lines().skip(1).filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_is_for_all_lines_together() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let mut patience = 2 * WAIT;
        sender.send("line").unwrap();
        assert_eq!(next_within(&receiver, &mut patience), Ok("line"));
        assert!(!patience.is_zero());
        assert_eq!(next_within(&receiver, &mut patience), Err(RecvTimeoutError::Timeout));
        assert!(patience.is_zero());
        drop(sender);
        assert_eq!(next_within(&receiver, &mut WAIT.clone()), Err(RecvTimeoutError::Disconnected));
    }

    #[test]
    fn interrupts_are_summed_over_cpus_and_named_by_the_driver() {
        let text = "           CPU0       CPU1\n  0:        118          2   IO-APIC   2-edge      timer\n \
            25:       5834         10   PCI-MSI 32769-edge      virtio0-input.0\nERR:          0\n";
        let counts = parse_interrupts(text);
        assert_eq!(counts.get("virtio0-input.0"), Some(&5844));
        assert_eq!(counts.get("timer"), Some(&120));
    }

    #[test]
    fn the_counters_rate_is_read() {
        assert_eq!(counter_khz("processor: 0\nbogomips\t: 5192.27\n"), Some(2_596_135.0));
        assert_eq!(counter_khz("processor: 0\n"), None);
    }

    #[test]
    fn qemu_version_is_read_from_debians_words() {
        let text = "QEMU emulator version 7.2.15 (Debian 1:7.2+dfsg-7)\nCopyright";
        let written = |text| version(text).map(|it| it.to_string());
        assert_eq!(written(text).as_deref(), Some("7.2"));
        assert_eq!(written("QEMU emulator version 10.0.2 (Debian)").as_deref(), Some("10.0"));
        assert_eq!(written("something else"), None);
    }
}
