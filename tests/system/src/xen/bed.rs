//! The machine: QEMU, Xen, a dom0 that takes commands, and guests that take them from there.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use weir_bed::{
    error::{Error, Result},
    qemu::{Guest, QEMU},
    workspace::Workspace,
};

use super::{
    domain::{Domain, WITH_CHANNEL, interface},
    grants::{Grants, REPORT_KEY},
    images,
    parts::Parts,
};

/// The guests that a dom0 has the configuration of.
const DOMAINS: [Domain; 3] = [Domain(0), Domain(1), WITH_CHANNEL];

/// With `-cpu max` Linux's dom0 ends at once: Xen shows it SMAP. `rdrand` as every guest here has it.
const CPU: &str = "qemu64,+rdrand";

/// dom0, twice a guest, and Xen itself.
const MEMORY: &str = "2048";
const DOM0_MEMORY: &str = "dom0_mem=1024M,max:1024M";

/// What `xl` may take: it waits for 10 s for a back end, and twice that for a script.
const XL_PATIENCE: Duration = Duration::from_secs(40);

/// Interfaces that come and go at a time: the waits of one pass during those of the others.
const ATTACHED_TOGETHER: u32 = 4;

/// Interfaces that a guest can have had. Linux 6.1 keeps the 256 buffers of each that it had posted, whoever the back end is, and
/// a guest here ends with the 169th.
const ATTACHED_TO_A_GUEST: u32 = 100;

/// What one of them may take on a machine with much else to do.
const ATTACHMENT_PATIENCE: Duration = Duration::from_secs(20);

/// What anything else may take that does not move packets.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// What dom0 may take to show its logs after a failure, if its shell is free.
const LOGS_PATIENCE: Duration = Duration::from_secs(10);

/// What a guest may take to boot: 6 s on an idle machine.
const GUEST_PATIENCE: Duration = Duration::from_secs(120);

/// By what time passes in the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// As outside; its processors run side by side.
    Host,
    /// By the instructions that its processors run, one after the other, 125 million a second: what else this
    /// machine does changes no figure.
    Instructions,
}

impl Clock {
    /// QEMU's words for it.
    fn argv(self) -> &'static [&'static str] {
        match self {
            Self::Host => &["-accel", "tcg,thread=multi"],
            // An instruction takes 2^shift ns.
            Self::Instructions => &["-accel", "tcg,thread=single", "-icount", "shift=3,sleep=on"],
        }
    }
}

/// What dom0 is made from.
#[derive(Clone, Debug)]
pub struct Kit {
    /// Where the logs go.
    pub workspace: Workspace,
    /// Xen, the tools, the kernel.
    pub parts: Parts,
    /// What dom0 has in its `/bin` beyond the tools, by name.
    pub programs: Vec<(&'static str, PathBuf)>,
    /// `weir-agent`, for the guests.
    pub agent: PathBuf,
    /// How often an interface comes and goes before nothing may be left of it.
    pub attachments: u32,
    /// By what time passes.
    pub clock: Clock,
}

/// A Xen with its dom0, ended when dropped.
pub struct Bed {
    dom0: Guest,
    /// Guests that run.
    created: Vec<Domain>,
    attachments: u32,
}

/// A program that runs in dom0.
#[derive(Clone, Debug)]
pub struct Daemon {
    pid: u32,
    log: String,
}

impl Bed {
    /// Boots Xen and dom0, without any back end and without a guest.
    pub fn boot(kit: &Kit) -> Result<Self> {
        let dir = kit.workspace.run_dir("xen")?;
        let initrd = dir.join("dom0.img");
        images::write_dom0(&kit.parts, &kit.programs, &kit.agent, &DOMAINS, &initrd)?;
        let dom0 = launch(&kit.parts, kit.clock, &initrd, &dir);
        // QEMU has read it, and it is large.
        fs::remove_file(&initrd).map_err(Error::io("remove", &initrd))?;
        Ok(Self { dom0: dom0?, created: Vec::new(), attachments: kit.attachments })
    }

    /// Runs `command` in dom0; as [`Guest::run`].
    pub fn run(&mut self, command: &str, patience: Duration) -> Result<String> {
        self.dom0.run(command, patience)
    }

    /// Runs `command` in a guest; as [`Guest::run`].
    pub fn run_in(&mut self, domain: Domain, command: &str, patience: Duration) -> Result<String> {
        self.run(&format!("guest {} {}", domain.name(), quoted(command)), patience)
    }

    /// Gives a guest its interface: by booting it if it does not run, by `xl network-attach` if it does. Some
    /// back end must answer.
    pub fn connect(&mut self, domain: Domain) -> Result<()> {
        if self.created.contains(&domain) {
            self.attach(domain)?;
        } else {
            let name = domain.name();
            let create = format!("xl create -q /{} && guest {name}", domain.config_path());
            self.run(&create, GUEST_PATIENCE)?;
            self.created.push(domain);
        }
        self.configure(domain)
    }

    /// Gives a running guest without one interfaces, waits until its driver is connected, and takes them away again, as
    /// often as the kit says.
    pub fn attach_and_detach(&mut self, domain: Domain) -> Result<()> {
        let mut left = self.attachments;
        loop {
            let now = left.min(ATTACHED_TO_A_GUEST);
            self.attach_and_detach_times(domain, now)?;
            left -= now;
            if left == 0 {
                return Ok(());
            }
            self.boot_again(domain)?;
            self.detach(domain)?;
        }
    }

    /// Destroys a guest, and boots it with its interface.
    fn boot_again(&mut self, domain: Domain) -> Result<()> {
        self.destroy(domain)?;
        self.connect(domain)
    }

    /// Ends a guest as the loss of its power does.
    pub fn destroy(&mut self, domain: Domain) -> Result<()> {
        self.run(&format!("xl destroy {}", domain.name()), XL_PATIENCE)?;
        self.created.retain(|created| *created != domain);
        Ok(())
    }

    /// The name of a guest's interface in weir.
    pub fn vif(&mut self, domain: Domain) -> Result<String> {
        let id = self.run(&format!("xl domid {}", domain.name()), PATIENCE)?;
        Ok(format!("vif{}.0", id.trim()))
    }

    /// What weir's program says, given a command for its control socket.
    pub fn weir(&mut self, command: &str) -> Result<String> {
        self.run(&weir_command(command), PATIENCE)
    }

    fn attach_and_detach_times(&mut self, domain: Domain, attachments: u32) -> Result<()> {
        let cycles = format!("vif-cycles {} {attachments} {ATTACHED_TOGETHER}", domain.name());
        self.run(&cycles, PATIENCE + ATTACHMENT_PATIENCE * attachments)?;
        // The guest takes leave of the last ones by and by, and the next one is to be its `eth0`.
        let gone = "i=0; while ls /sys/class/net | grep -q eth; do \
                    [ $((i+=1)) -lt 300 ] || exit 1; sleep 0.1; done";
        self.run_in(domain, gone, PATIENCE).map(drop)
    }

    /// `xl network-attach`: gives a running guest its interface.
    fn attach(&mut self, domain: Domain) -> Result<()> {
        self.network_attach(&domain.name(), &domain.vif())
    }

    /// `xl network-detach`: takes it away.
    pub fn detach(&mut self, domain: Domain) -> Result<()> {
        self.network_detach(&domain.name())
    }

    /// Gives dom0 itself an interface. Its kernel has no front end that would answer.
    pub fn attach_to_dom0(&mut self, mac: &str) -> Result<()> {
        self.network_attach("0", &interface(mac))
    }

    /// Takes it away.
    pub fn detach_from_dom0(&mut self) -> Result<()> {
        self.network_detach("0")
    }

    fn network_attach(&mut self, domain: &str, vif: &str) -> Result<()> {
        let words = vif.replace(',', " ");
        self.run(&format!("xl network-attach {domain} {words}"), XL_PATIENCE).map(drop)
    }

    fn network_detach(&mut self, domain: &str) -> Result<()> {
        self.run(&format!("xl network-detach {domain} 0"), XL_PATIENCE).map(drop)
    }

    /// Waits until a guest has its interface, and gives it its address.
    pub fn configure(&mut self, domain: Domain) -> Result<()> {
        let command = format!(
            "i=0; until [ -e /sys/class/net/eth0 ]; do [ $((i+=1)) -lt 100 ] || exit 1; sleep 0.1; done; \
             ip link set eth0 up; ip address replace {} dev eth0",
            domain.cidr()
        );
        self.run_in(domain, &command, PATIENCE).map(drop)
    }

    /// Starts `command` in dom0's background.
    pub fn spawn(&mut self, name: &str, command: &str) -> Result<Daemon> {
        let log = format!("/run/{name}.log");
        let printed = self.run(&format!("{command} >>{log} 2>&1 & echo $!"), PATIENCE)?;
        let pid = printed.trim().parse().map_err(|_| Error::parse("a process id", printed))?;
        Ok(Daemon { pid, log })
    }

    /// Sends `signal` (as of kill(1)) and waits for the daemon's end.
    pub fn end(&mut self, daemon: &Daemon, signal: &str) -> Result<()> {
        let Daemon { pid, log } = daemon;
        let gone = format!("[ ! -e /proc/{pid} ]");
        self.run(&format!("kill -{signal} {pid}"), PATIENCE)?;
        self.until(&gone, &format!("cat {log}"))
    }

    /// Waits until `count` lines of what the daemon printed match `pattern`; all it printed, if they don't
    /// come.
    pub fn await_lines(&mut self, daemon: &Daemon, pattern: &str, count: u32) -> Result<()> {
        let log = &daemon.log;
        let seen = format!("[ $(grep -c {} {log}) -ge {count} ]", quoted(pattern));
        let tell = format!("echo no {count} lines {}:; cat {log}", quoted(pattern));
        self.until(&seen, &tell)
    }

    /// Waits until a command succeeds in dom0, for 30 s; `tell` then says how things are.
    pub fn until(&mut self, condition: &str, tell: &str) -> Result<()> {
        let wait = format!(
            "end=$(($(date +%s) + 30)); until {condition}; do \
             [ $(date +%s) -lt $end ] || {{ {tell}; exit 1; }}; sleep 0.1; done"
        );
        self.run(&wait, PATIENCE).map(drop)
    }

    /// The last lines of what dom0's programs printed, for error messages.
    pub fn logs(&mut self) -> Result<String> {
        self.run("tail -n 15 /run/*.log", LOGS_PATIENCE)
    }

    /// Which grants of guests are mapped now, as Xen says.
    pub fn grants(&mut self) -> Result<Grants> {
        let command =
            format!("xl dmesg -c >/dev/null; xl debug-keys {REPORT_KEY}; sleep 0.2; xl dmesg");
        Grants::parse(&self.run(&command, PATIENCE)?)
    }
}

fn launch(parts: &Parts, clock: Clock, initrd: &Path, dir: &Path) -> Result<Guest> {
    let console = dir.join("xen.console");
    let xen = parts.xen().display().to_string();
    let modules =
        format!("{} console=hvc0 quiet panic=-1,{}", parts.kernel().display(), initrd.display());
    let append = format!("com1=115200,8n1 console=com1 {DOM0_MEMORY} loglvl=warning");
    let console_arg = format!("file:{}", console.display());
    let machine = [
        "-cpu",
        CPU,
        "-smp",
        "2",
        "-m",
        MEMORY,
        "-nodefaults",
        "-display",
        "none",
        "-no-reboot",
        "-kernel",
        &xen,
        "-append",
        &append,
        "-initrd",
        &modules,
        "-serial",
        &console_arg,
        "-serial",
        "stdio",
    ];
    let argv: Vec<&str> = [QEMU].iter().chain(clock.argv()).chain(&machine).copied().collect();
    Guest::boot_machine("dom0", &argv, console)
}

/// A command of weir's program, for the control socket that `weir.toml` names.
pub fn weir_command(command: &str) -> String {
    format!("weir {command} --control /run/weir.sock")
}

/// `text` as one word of a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_stays_one_word_whatever_it_holds() {
        assert_eq!(quoted("echo 'a b' $c"), r"'echo '\''a b'\'' $c'");
    }
}
