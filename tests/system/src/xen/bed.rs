//! The machine: QEMU, Xen, a dom0 with a shell, and guests with shells that dom0 reaches.
//!
//! The guests: paravirtualised, each with one interface.
//!
//! The back end of the guests' interfaces: the kernel's with a bridge, or weir.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use weir_bed::{
    address,
    error::{Error, Result},
    qemu::{Guest, QEMU},
    workspace::Workspace,
};

use super::{
    grants::{Grants, REPORT_KEY},
    images::{self, WEIR_CONFIG},
    parts::Parts,
};

/// The guests whose configurations dom0 has.
const DOMAINS: [Domain; 3] = [Domain(0), Domain(1), WITH_CHANNEL];

/// With `-cpu max`, Linux crashes as dom0, because Xen shows it SMAP. `rdrand` is needed as in all guests of the test
/// bed.
const CPU: &str = "qemu64,+rdrand";

/// Memory of dom0, two guests, and Xen.
const MEMORY: &str = "2048";
const DOM0_MEMORY: &str = "dom0_mem=1024M,max:1024M";

/// Longest time for `xl`: it waits 10 s for a back end, and twice as long for a script.
const XL_PATIENCE: Duration = Duration::from_secs(40);

/// Interfaces that are attached and detached at the same time, so that their waits overlap.
const ATTACHED_TOGETHER: u32 = 4;

/// Limit of interfaces that a guest can have had. Linux 6.1 leaks the 256 posted buffers of each under any back end,
/// and a guest of this memory dies at the 169th.
const ATTACHED_TO_A_GUEST: u32 = 100;

/// Longest time for one interface on a busy machine.
const ATTACHMENT_PATIENCE: Duration = Duration::from_secs(20);

/// Longest time for any other command that does not move packets.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Longest time for dom0 to print its logs after a failure, if its shell is free.
const LOGS_PATIENCE: Duration = Duration::from_secs(10);

/// Longest time to save or to restore a guest with all of its memory.
const SAVE_PATIENCE: Duration = Duration::from_secs(240);

/// Longest time for a guest to boot. An idle machine takes 6 s.
const GUEST_PATIENCE: Duration = Duration::from_secs(120);

/// The clock of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The host's clock. The virtual CPUs run in parallel.
    Host,
    /// A count of the instructions that the virtual CPUs run, one CPU after the other, 125 million a second. Other
    /// load of this machine changes no figure.
    Instructions,
}

impl Clock {
    /// QEMU's options for the clock.
    fn argv(self) -> &'static [&'static str] {
        match self {
            Self::Host => &["-accel", "tcg,thread=multi"],
            // An instruction takes 2^shift ns.
            Self::Instructions => &["-accel", "tcg,thread=single", "-icount", "shift=3,sleep=on"],
        }
    }
}

/// The ingredients of dom0.
#[derive(Clone, Debug)]
pub struct Kit {
    /// The workspace, for the logs.
    pub workspace: Workspace,
    /// Xen, the tools, the kernel.
    pub parts: Parts,
    /// Further programs in dom0's `/bin`, by name.
    pub programs: Vec<(&'static str, PathBuf)>,
    /// `weir-agent`, for the guests.
    pub agent: PathBuf,
    /// Number of times that an interface is attached and detached before no grant may be left.
    pub attachments: u32,
    /// The clock.
    pub clock: Clock,
}

/// A Xen with its dom0. It is ended when it is dropped.
pub struct Bed {
    dom0: Guest,
    /// Running guests.
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
        // QEMU has read the file, which is large.
        fs::remove_file(&initrd).map_err(Error::io("remove", &initrd))?;
        Ok(Self { dom0: dom0?, created: Vec::new(), attachments: kit.attachments })
    }

    /// Runs `command` in dom0, as [`Guest::run`] does.
    pub fn run(&mut self, command: &str, patience: Duration) -> Result<String> {
        self.dom0.run(command, patience)
    }

    /// Runs `command` in a guest, as [`Guest::run`] does.
    pub fn run_in(&mut self, domain: Domain, command: &str, patience: Duration) -> Result<String> {
        self.run(&format!("guest {} {}", domain.name(), quoted(command)), patience)
    }

    /// Gives a guest its interface: boots the guest if it does not run, or else uses `xl network-attach`. A back end
    /// must run.
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

    /// Attaches interfaces to a running guest that has none, waits until the driver is connected, and detaches them,
    /// as often as the kit says.
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

    /// Ends a guest as a power failure would.
    pub fn destroy(&mut self, domain: Domain) -> Result<()> {
        self.run(&format!("xl destroy {}", domain.name()), XL_PATIENCE)?;
        self.created.retain(|created| *created != domain);
        Ok(())
    }

    /// Saves a guest to a file, and restores it as another domain.
    pub fn save_and_restore(&mut self, domain: Domain) -> Result<()> {
        // dom0's own file system has half of its memory, and programs take most of that.
        const DIR: &str = "/run/saved";
        let name = domain.name();
        let saves = format!(
            "mkdir -p {DIR} && mount -t tmpfs -o size=75% saved {DIR} && xl save {name} {DIR}/{name}"
        );
        self.run(&saves, SAVE_PATIENCE)?;
        let restores = format!("! xl domid {name} 2>/dev/null && xl restore {DIR}/{name}");
        self.run(&restores, SAVE_PATIENCE)?;
        self.run(&format!("umount {DIR}; guest {name} ''"), PATIENCE).map(drop)
    }

    /// The name of a guest's interface in weir.
    pub fn vif(&mut self, domain: Domain) -> Result<String> {
        let id = self.run(&format!("xl domid {}", domain.name()), PATIENCE)?;
        Ok(format!("vif{}.0", id.trim()))
    }

    /// The output of a `weir` command for the control socket.
    pub fn weir(&mut self, command: &str) -> Result<String> {
        self.run(&weir_command(command), PATIENCE)
    }

    fn attach_and_detach_times(&mut self, domain: Domain, attachments: u32) -> Result<()> {
        let cycles = format!("vif-cycles {} {attachments} {ATTACHED_TOGETHER}", domain.name());
        self.run(&cycles, PATIENCE + ATTACHMENT_PATIENCE * attachments)?;
        // The guest removes the last interfaces with a delay, and the next one must become its `eth0`.
        let gone = "i=0; while ls /sys/class/net | grep -q eth; do \
                    [ $((i+=1)) -lt 300 ] || exit 1; sleep 0.1; done";
        self.run_in(domain, gone, PATIENCE).map(drop)
    }

    /// Gives a running guest its interface (`xl network-attach`).
    fn attach(&mut self, domain: Domain) -> Result<()> {
        self.network_attach(&domain.name(), &domain.vif())
    }

    /// Removes a guest's interface (`xl network-detach`).
    pub fn detach(&mut self, domain: Domain) -> Result<()> {
        self.network_detach(&domain.name())
    }

    /// Gives dom0 itself an interface. dom0's kernel has no front end for it.
    pub fn attach_to_dom0(&mut self, mac: &str) -> Result<()> {
        self.network_attach("0", &interface(mac))
    }

    /// Removes dom0's interface.
    pub fn detach_from_dom0(&mut self) -> Result<()> {
        self.network_detach("0")
    }

    /// Gives a running guest a second interface.
    pub fn attach_another(&mut self, domain: Domain, vif: &str) -> Result<()> {
        self.network_attach(&domain.name(), vif)?;
        let is_there = "i=0; until [ -e /sys/class/net/eth1 ]; do [ $((i+=1)) -lt 300 ] || exit 1; sleep 0.1; done";
        self.run_in(domain, is_there, PATIENCE).map(drop)
    }

    /// Removes a guest's second interface.
    pub fn detach_another(&mut self, domain: Domain) -> Result<()> {
        self.run(&format!("xl network-detach {} 1", domain.name()), XL_PATIENCE).map(drop)
    }

    fn network_attach(&mut self, domain: &str, vif: &str) -> Result<()> {
        let words = vif.replace(',', " ");
        self.run(&format!("xl network-attach {domain} {words}"), XL_PATIENCE).map(drop)
    }

    fn network_detach(&mut self, domain: &str) -> Result<()> {
        self.run(&format!("xl network-detach {domain} 0"), XL_PATIENCE).map(drop)
    }

    /// Waits until a guest has its interface, and sets its address.
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

    /// Sends `signal` (a name for kill(1)) and waits for the daemon's end.
    pub fn end(&mut self, daemon: &Daemon, signal: &str) -> Result<()> {
        let Daemon { pid, log } = daemon;
        let gone = format!("[ ! -e /proc/{pid} ]");
        self.run(&format!("kill -{signal} {pid}"), PATIENCE)?;
        self.until(&gone, &format!("cat {log}"))
    }

    /// Waits until `count` lines of the daemon's output match `pattern`. The error has the whole output.
    pub fn await_lines(&mut self, daemon: &Daemon, pattern: &str, count: u32) -> Result<()> {
        let log = &daemon.log;
        let seen = format!("[ $(grep -c {} {log}) -ge {count} ]", quoted(pattern));
        let tell = format!("echo no {count} lines {}:; cat {log}", quoted(pattern));
        self.until(&seen, &tell)
    }

    /// Waits up to 100 s until a command succeeds in dom0. The error has the output of `tell`.
    /// After a request, weir makes the session rest for twenty times the processor time of the
    /// request. An emulated machine that waits for a processor counts the wait as processor time.
    pub fn until(&mut self, condition: &str, tell: &str) -> Result<()> {
        let wait = format!(
            "end=$(($(date +%s) + 100)); until {condition}; do \
             [ $(date +%s) -lt $end ] || {{ {tell}; exit 1; }}; sleep 0.1; done"
        );
        self.run(&wait, 2 * PATIENCE).map(drop)
    }

    /// The last lines of the logs of dom0's programs, for error messages.
    pub fn logs(&mut self) -> Result<String> {
        self.run("tail -n 15 /run/*.log", LOGS_PATIENCE)
    }

    /// The grants of guests that are mapped now, as Xen reports them.
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

/// A command of the program `weir`, for the control socket in `weir.toml`.
pub fn weir_command(command: &str) -> String {
    format!("weir {command} --control /run/weir.sock")
}

/// `text` as one word for a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// A guest, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Domain(pub u8);

/// The guest with a channel for its agent. It has a device model in dom0.
pub const WITH_CHANNEL: Domain = Domain(4);

impl Domain {
    /// The guest's name for `xl`.
    pub fn name(self) -> String {
        format!("u{}", self.0)
    }

    /// The address of the guest's interface.
    pub fn ip(self) -> String {
        address::ip(self.0)
    }

    /// The address of the guest's interface with its prefix length.
    pub fn cidr(self) -> String {
        address::cidr(self.0)
    }

    /// The guest's interface, as [`interface`] writes it.
    pub fn vif(self) -> String {
        interface(&address::mac(self.0))
    }

    /// The path of the guest's configuration in dom0.
    pub fn config_path(self) -> String {
        format!("etc/xen/{}.cfg", self.name())
    }

    /// The guest's channels, as in xl.cfg(5). `xl` of Xen 4.17 mistakes the first for the console that every guest
    /// has, and omits it.
    fn channels(self) -> Vec<String> {
        if self != WITH_CHANNEL {
            return Vec::new();
        }
        let path = format!("/run/weir/{}.agent", self.name());
        let agent = format!("name=weir.agent,connection=socket,path={path}");
        vec!["name=unused,connection=pty".to_owned(), agent]
    }

    /// The guest's configuration, as in xl.cfg(5).
    pub fn config(self) -> String {
        format!(
            "name = \"{}\"\nkernel = \"/boot/vmlinuz\"\nramdisk = \"/boot/domu.img\"\n\
             extra = \"console=hvc0 quiet weir.shell=hvc0 ipv6.disable=1\"\nmemory = 256\nvif = [\"{}\"]\nchannel = {:?}\n",
            self.name(),
            self.vif(),
            self.channels()
        )
    }
}

/// An interface with the address `mac`, as in xl-network-configuration(5).
pub fn interface(mac: &str) -> String {
    format!("mac={mac},bridge=br0,script=vif-test")
}

/// A back end that runs in dom0.
#[derive(Debug)]
pub enum BackEnd {
    /// `xen-netback`, its interfaces on a bridge.
    Netback,
    /// `weir run`.
    Weir(Daemon),
}

impl BackEnd {
    /// Loads the kernel's back end.
    pub fn netback(bed: &mut Bed) -> Result<Self> {
        bed.run(
            "for module in /modules/netback/*.ko; do insmod $module 2>/dev/null; done; \
             grep -q ^xen_netback /proc/modules && \
             { [ -e /sys/class/net/br0 ] || ip link add br0 type bridge; } && ip link set br0 up",
            PATIENCE,
        )?;
        Ok(Self::Netback)
    }

    /// Starts weir and waits for its control socket.
    pub fn weir(bed: &mut Bed) -> Result<Self> {
        Self::weir_as(bed, &format!("/{WEIR_CONFIG}"))
    }

    /// Starts weir with `queues` queues for each interface whose front end asks for them. The guests have one CPU and
    /// do not ask.
    pub fn weir_with_queues(bed: &mut Bed, queues: usize) -> Result<Self> {
        const CONFIG: &str = "/run/weir-queues.toml";
        let config = format!("sed 's/^\\[xen\\]$/&\\nqueues = {queues}/' /{WEIR_CONFIG} >{CONFIG}");
        bed.run(&config, PATIENCE)?;
        Self::weir_as(bed, CONFIG)
    }

    fn weir_as(bed: &mut Bed, config: &str) -> Result<Self> {
        let weir = bed.spawn("weir", &format!("weir run {config}"))?;
        let answers = format!("{} >/dev/null 2>&1", weir_command("stats"));
        bed.until(&answers, "cat /run/weir.log")?;
        Ok(Self::Weir(weir))
    }

    /// Ends the back end in order, once no guest has an interface.
    pub fn stop(self, bed: &mut Bed) -> Result<()> {
        match self {
            Self::Netback => bed.run("rmmod xen_netback", PATIENCE).map(drop),
            Self::Weir(weir) => bed.end(&weir, "TERM"),
        }
    }

    /// Sends SIGKILL to weir and starts another one. `between` runs in the time between.
    pub fn crash_and_restart(
        self,
        bed: &mut Bed,
        between: impl FnOnce(&mut Bed) -> Result<()>,
    ) -> Result<Self> {
        if let Self::Weir(weir) = &self {
            bed.end(weir, "KILL")?;
        }
        between(bed)?;
        Self::weir(bed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_stays_one_word_whatever_it_holds() {
        assert_eq!(quoted("echo 'a b' $c"), r"'echo '\''a b'\'' $c'");
    }
}
