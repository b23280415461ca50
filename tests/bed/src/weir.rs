//! weir as its user runs it: `weir run`, `weir qemu-args`, `weir stats`.

use std::{
    fmt::Write as _,
    fs,
    net::{Ipv4Addr, SocketAddrV4},
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    address,
    error::{Error, Result},
    fabric::{self, Host},
    lab::Lab,
    process::{Placement, Process, run, wait_until},
    qemu::{MEMORY, Plug, Qemu},
    switch::{Switch, Work},
    testpmd::Link,
    uplink::{Uplink, UplinkSite},
    usage::Usage,
    weir_stats::Stats,
    workspace::socket_path,
};

/// Longest time until weir has opened its sockets.
const START_PATIENCE: Duration = Duration::from_secs(10);

const KEEPER_SOCKET: &str = "keeper.sock";
const TOKEN: &str = "api.token";

/// One interface in weir's configuration.
#[derive(Clone, Debug, Default)]
pub struct Vif {
    /// Queue pairs. `None` is one.
    pub queues: Option<u8>,
    /// The VLAN of which the interface is an access port.
    pub vlan: Option<u16>,
    /// The interface's network, one of [`Overlay`].
    pub network: Option<&'static str>,
    /// The Ethernet address. `None` is [`address::mac`] of the index.
    pub mac: Option<&'static str>,
    /// The moderation policy. `None` is the default.
    pub moderation: Option<&'static str>,
    /// The latency budget. `None` is the default.
    pub latency_budget: Option<&'static str>,
    /// True if the guest has a port for an agent.
    pub agent: bool,
    /// True if weir connects to the front end's socket and not the front end to weir's.
    pub client: bool,
    /// True if other users may connect.
    pub for_all_users: bool,
    /// True if the guest's driver may ask its platform for addresses, such as a virtual IOMMU.
    pub access_platform: bool,
}

/// Networks that span hosts, with FRR as the EVPN control plane.
#[derive(Clone, Debug)]
pub struct Overlay {
    /// This host's address in the underlay.
    pub local: Ipv4Addr,
    /// Names and VNIs.
    pub networks: Vec<(&'static str, u32)>,
    /// The TAP by which the host itself takes part in the first network.
    pub probe: &'static str,
}

/// The configuration of a weir. Interfaces are named `vif0`, `vif1`, ...
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// The interfaces, by index.
    pub vifs: Vec<Vif>,
    /// Networks that span hosts, if any.
    pub overlay: Option<Overlay>,
    /// The keys of the network of interfaces that name no network, if these interfaces have a
    /// network.
    pub network: Option<String>,
    /// The uplink, if any.
    pub uplink: Option<Uplink>,
    /// Further sections.
    pub more: String,
    /// The VLAN of which the uplink is an access port. `None` is a trunk of all VLANs.
    pub uplink_vlan: Option<u16>,
    /// weir's only CPU. `None` is any CPU.
    pub cpu: Option<usize>,
    /// True if a keeper holds the descriptors of a weir that is killed.
    pub keeper: bool,
    /// Workers. `None` is one.
    pub workers: Option<u8>,
    /// True if workers poll all the time.
    pub dedicated: bool,
    /// The rules of a security group that all interfaces are in, if there is one.
    pub group: Option<&'static str>,
    /// The API's TCP address, if it listens for TCP. The token is in `api.token`.
    pub api: Option<SocketAddrV4>,
    /// True if weir makes an interface on demand for each monitor that listens in [`MONITORS`].
    pub on_demand: bool,
}

/// The directory of listening monitors, below weir's directory. weir forgets a monitor that is away
/// for a second.
pub const MONITORS: &str = "vms";

impl Setup {
    /// `count` interfaces with default settings.
    pub fn vifs(count: usize) -> Self {
        Self { vifs: vec![Vif::default(); count], ..Self::default() }
    }

    fn to_toml(&self, dir: &Path) -> Result<String> {
        let control = socket_path(dir, "control.sock")?;
        let workers = self.workers.unwrap_or(1);
        let mut toml = format!("[switch]\nworkers = {workers}\ncontrol = {control:?}\n");
        if self.dedicated {
            toml.push_str("realization = \"dedicated\"\n");
        }
        if self.keeper {
            let _ = writeln!(toml, "keeper = {:?}", socket_path(dir, KEEPER_SOCKET)?);
        }
        if let Some(api) = self.api {
            let _ =
                writeln!(toml, "api_listen = \"{api}\"\napi_token_file = {:?}", dir.join(TOKEN));
        }
        if let Some(Overlay { local, networks, probe }) = &self.overlay {
            let _ = writeln!(
                toml,
                "\n[overlay]\nlocal = \"{local}\"\ninterface = \"{}\"\nevpn = true",
                fabric::INTERFACE
            );
            for (name, vni) in networks {
                let _ = writeln!(toml, "\n[network.{name}]\nvni = {vni}");
            }
            if let Some((name, _)) = networks.first() {
                let _ = write!(
                    toml,
                    "\n[uplink.probe]\nkind = \"tap\"\nname = \"{probe}\"\nnetwork = \"{name}\"\nmtu = {}\n",
                    fabric::MTU
                );
            }
        }
        if let Some(keys) = &self.network {
            let _ = write!(toml, "\n[network.lan]\n{keys}\n");
        }
        if let Some(rules) = self.group {
            let _ = write!(toml, "\n[group.all]\nrules = {rules}\n");
        }
        if let Some(uplink) = self.uplink {
            let (kind, name) = (uplink.kind(), uplink.interface());
            let _ =
                write!(toml, "\n[uplink.lan]\nkind = \"{kind}\"\nname = \"{name}\"\nqueues = 1\n");
            if let Some(vlan) = self.uplink_vlan {
                let _ = writeln!(toml, "vlan = {vlan}");
            }
        }
        toml.push_str(&self.more);
        if self.on_demand {
            let monitors = dir.join(MONITORS);
            let _ = write!(
                toml,
                "\n[vif-on-demand.\"vm-*\"]\ndirectory = {monitors:?}\nforget_s = 1\n"
            );
        }
        for (index, vif) in (0_u16..).zip(&self.vifs) {
            let socket = socket_in(dir, index)?;
            let mac = vif.mac.map_or_else(|| address::mac(index), str::to_owned);
            let _ = write!(toml, "\n[vif.{}]\nsocket = {socket:?}\nmac = \"{mac}\"\n", name(index));
            if let Some(queues) = vif.queues {
                let _ = writeln!(toml, "queues = {queues}");
            }
            if let Some(vlan) = vif.vlan {
                let _ = writeln!(toml, "vlan = {vlan}");
            }
            let words = [
                ("network", vif.network),
                ("moderation", vif.moderation),
                ("latency_budget", vif.latency_budget),
            ];
            for (key, value) in words {
                if let Some(value) = value {
                    let _ = writeln!(toml, "{key} = \"{value}\"");
                }
            }
            if self.group.is_some() {
                toml.push_str("groups = [\"all\"]\n");
            }
            if vif.client {
                toml.push_str("mode = \"client\"\n");
            }
            if vif.for_all_users {
                toml.push_str("socket_mode = \"0666\"\n");
            }
            if vif.access_platform {
                toml.push_str("access_platform = true\n");
            }
            if vif.agent {
                let _ = writeln!(toml, "agent = {:?}", socket_path(dir, &agent_socket(index))?);
            }
        }
        Ok(toml)
    }
}

/// A running weir. It is killed when it is dropped.
pub struct Weir {
    process: Process,
    keeper: Option<Process>,
    placement: Placement,
    /// The far end of the uplink, if there is one.
    uplink: Option<UplinkSite>,
    program: String,
    dir: PathBuf,
    qemu: Qemu,
}

impl Weir {
    /// Starts weir and waits until every interface's socket exists.
    pub fn start(lab: &Lab, setup: &Setup) -> Result<Self> {
        Self::start_in(lab.workspace.run_dir("weir")?, lab, setup)
    }

    /// Starts weir in `dir`, which an earlier weir may have used.
    pub fn start_in(dir: PathBuf, lab: &Lab, setup: &Setup) -> Result<Self> {
        Self::begin(dir, lab, setup, Placement::default())
    }

    /// Starts weir on a host of a fabric, in the host's directory.
    pub fn start_on(host: &Host, lab: &Lab, setup: &Setup) -> Result<Self> {
        Self::begin(host.dir.clone(), lab, setup, host.placement())
    }

    /// Starts weir at `placement`.
    pub fn start_at(placement: Placement, lab: &Lab, setup: &Setup) -> Result<Self> {
        Self::begin(lab.workspace.run_dir("weir")?, lab, setup, placement)
    }

    fn begin(dir: PathBuf, lab: &Lab, setup: &Setup, placement: Placement) -> Result<Self> {
        let config = dir.join("weir.toml");
        fs::write(&config, setup.to_toml(&dir)?).map_err(Error::io("write", &config))?;

        if setup.api.is_some() {
            let token = dir.join(TOKEN);
            fs::write(&token, "0123456789abcdef0123456789abcdef\n")
                .map_err(Error::io("write", &token))?;
        }
        let uplink = setup.uplink.map(UplinkSite::new).transpose()?;
        let netns = uplink.as_ref().and_then(|site| site.placement().netns);
        let netns = netns.or(placement.netns.clone());
        let placement = Placement { netns, cpu: setup.cpu, ..placement };
        let program = lab.weir.to_string_lossy().into_owned();
        let keeper = setup.keeper.then(|| launch_keeper(&program, &dir)).transpose()?;
        let process = launch(&program, &dir, &placement)?;
        let mut weir = Self { process, keeper, placement, uplink, program, dir, qemu: lab.qemu };

        let sockets: Vec<_> = (0_u16..)
            .zip(&setup.vifs)
            .filter(|(_, vif)| !vif.client)
            .map(|(index, _)| weir.socket(index))
            .chain([socket_path(&weir.dir, "control.sock")])
            .collect::<Result<_>>()?;
        wait_until("weir's sockets", START_PATIENCE, || {
            weir.process.check_alive()?;
            Ok(sockets.iter().all(|socket| socket.exists()))
        })
        .map_err(|error| weir.with_log(&error))?;
        Ok(weir)
    }

    /// Sends SIGKILL and starts weir again. Returns when every interface has its guest back.
    pub fn crash_and_restart(&mut self) -> Result<()> {
        self.crash();
        self.restart()
    }

    /// Sends SIGKILL. Guests continue and wait for weir.
    pub fn crash(&mut self) {
        self.process.end_now();
    }

    /// Starts weir again after [`Weir::crash`]. Returns when every interface has its guest back.
    pub fn restart(&mut self) -> Result<()> {
        self.launch_again()?;
        self.await_stats("the guests to be back", START_PATIENCE, Stats::all_running)
    }

    /// Starts weir again after [`Weir::crash`], without a wait for guests.
    pub fn launch_again(&mut self) -> Result<()> {
        self.process = launch(&self.program, &self.dir, &self.placement)?;
        Ok(())
    }

    /// Sets the time namespace of weirs that are started from now on.
    pub fn set_clock(&mut self, clock: Option<PathBuf>) {
        self.placement.clock = clock;
    }

    /// weir's process, for signals and `/proc`.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// The keeper's process, if there is a keeper.
    pub fn keeper(&self) -> Option<&Process> {
        self.keeper.as_ref()
    }

    /// Sends SIGKILL to the keeper and starts another one.
    pub fn replace_keeper(&mut self) -> Result<()> {
        if let Some(mut keeper) = self.keeper.take() {
            keeper.end_now();
            let _ = fs::remove_file(socket_path(&self.dir, KEEPER_SOCKET)?);
            self.keeper = Some(launch_keeper(&self.program, &self.dir)?);
        }
        Ok(())
    }

    /// Runs `weir reload` with a file of `setup`. Returns the output.
    pub fn reload(&self, setup: &Setup) -> Result<String> {
        let config = self.dir.join("weir.toml");
        fs::write(&config, setup.to_toml(&self.dir)?).map_err(Error::io("write", &config))?;
        self.control(&["reload"])
    }

    /// Runs `weir upgrade`: another process takes over. That process ends when the value is dropped, but not when this
    /// process is killed.
    pub fn upgrade(&mut self) -> Result<()> {
        let said = self.control(&["upgrade"])?;
        let pid = said.split_once("process ").and_then(|(_, rest)| rest.split_once(' '));
        let pid = pid.and_then(|(pid, _)| pid.parse().ok());
        self.process.succeeded_by(pid.ok_or_else(|| Error::parse("the next weir's process", said))?)
    }

    /// Waits until weir's statistics satisfy `wanted`.
    pub fn await_stats(
        &mut self,
        what: &str,
        patience: Duration,
        wanted: impl Fn(&Stats) -> bool,
    ) -> Result<()> {
        wait_until(what, patience, || {
            self.process.check_alive()?;
            // Until weir listens again, its old control socket does not answer.
            Ok(self.stats().is_ok_and(|stats| wanted(&stats)))
        })
        .map_err(|error| self.with_log(&error))
    }

    /// weir's log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.join("weir.log")).unwrap_or_default()
    }

    /// The far end of the uplink.
    pub fn uplink(&self) -> Result<&UplinkSite> {
        self.uplink.as_ref().ok_or_else(|| Error::Check("this weir has no uplink".into()))
    }

    /// The directory of weir's log and of its guests' logs.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Fails, with the end of weir's log, if weir has ended.
    pub fn check_alive(&mut self) -> Result<()> {
        self.process.check_alive().map_err(|error| self.with_log(&error))
    }

    /// weir's statistics.
    pub fn stats(&self) -> Result<Stats> {
        Stats::parse(&self.control(&["stats", "--json"])?)
    }

    /// Runs `weir vif set`: changes a setting (`KEY=VALUE`) of interface `index`.
    pub fn set(&self, index: impl Into<u16>, setting: &str) -> Result<()> {
        self.control(&["vif", "set", &name(index), setting]).map(drop)
    }

    /// The output of `weir explain` for interface `index`.
    pub fn explain(&self, index: impl Into<u16>) -> Result<String> {
        self.control(&["explain", &name(index)])
    }

    /// True if the agent in the guest of interface `index` is connected.
    pub fn hears_agent(&self, index: impl Into<u16>) -> Result<bool> {
        Ok(self.explain(index)?.contains("guest polls by"))
    }

    /// Runs a command of `weir` against this weir.
    pub fn control(&self, command: &[&str]) -> Result<String> {
        let control = socket_path(&self.dir, "control.sock")?;
        let mut argv = vec![self.program.as_str()];
        argv.extend(command);
        let control = control.to_string_lossy();
        argv.extend(["--control", &control]);
        run(&argv)
    }

    /// weir's use of the machine.
    pub fn usage(&self) -> Usage {
        Usage::of(self.process.pid())
    }

    /// Sends SIGTERM; an error unless weir ends with success, as a service manager expects.
    pub fn stop(self) -> Result<()> {
        let Self { process, dir, .. } = self;
        let status = process.terminate()?;
        if status.success() {
            return Ok(());
        }
        let log = dir.join("weir.log");
        Err(Error::Check(format!("weir ended with {status} after SIGTERM; see {}", log.display())))
    }

    /// The vhost-user socket of interface `index`.
    pub fn socket(&self, index: impl Into<u16>) -> Result<PathBuf> {
        socket_in(&self.dir, index)
    }

    fn with_log(&self, error: &Error) -> Error {
        Error::Check(format!("{error}\nweir's log:\n{}", self.log()))
    }
}

impl Weir {
    /// The QEMU arguments and the placement for a guest of interface `index` under `qemu`.
    pub fn plug_into(&self, qemu: Qemu, index: u8) -> Result<Plug> {
        plug(&self.program, qemu, &name(index), &self.dir.join("weir.toml"))
    }

    /// The output of `weir qemu-args` for interface `index` with `options`.
    pub fn monitor_args(&self, index: u8, options: &[&str]) -> Result<String> {
        let (name, config) = (name(index), self.dir.join("weir.toml"));
        let config = config.to_string_lossy();
        let argv = [self.program.as_str(), "qemu-args", &name, "--config", &config];
        run(&[&argv, options].concat())
    }
}

impl Switch for Weir {
    fn plug(&self, index: u8) -> Result<Plug> {
        self.plug_into(self.qemu, index)
    }

    fn link(&self, index: u8) -> Result<Link> {
        Ok(Link { socket: self.socket(index)?, mac: address::mac(index) })
    }

    fn cpu_time(&self) -> Result<Duration> {
        self.usage().cpu_time()
    }

    fn work(&self) -> Result<Option<Work>> {
        self.stats()?.work().map(Some)
    }
}

fn launch(program: &str, dir: &Path, placement: &Placement) -> Result<Process> {
    let config = dir.join("weir.toml");
    let argv = [program, "run", &config.to_string_lossy()];
    Process::start_logged(&argv, placement, &dir.join("weir.log"))
}

/// Starts the keeper in the directory of `weir`. Returns when it listens.
fn launch_keeper(weir: &str, dir: &Path) -> Result<Process> {
    let socket = socket_path(dir, KEEPER_SOCKET)?;
    let program = Path::new(weir).with_file_name("weir-keeper");
    let argv = [&*program.to_string_lossy(), &*socket.to_string_lossy()];
    let mut keeper = Process::start_logged(&argv, &Placement::default(), &dir.join("keeper.log"))?;
    wait_until("the keeper's socket", START_PATIENCE, || {
        keeper.check_alive()?;
        Ok(socket.exists())
    })?;
    Ok(keeper)
}

/// The output of `weir qemu-args` for interface `name` of a configuration, as a [`Plug`].
pub fn plug(program: &str, qemu: Qemu, name: &str, config: &Path) -> Result<Plug> {
    let config = config.to_string_lossy();
    let version = qemu.to_string();
    let mut argv = vec![program, "qemu-args", name, "--config", &config, "--memory", MEMORY];
    argv.extend(["--qemu-version", &version]);
    if !qemu.has_msix() {
        argv.extend(["--vectors", "0"]);
    }
    Ok(Plug { qemu_args: shell_words(&run(&argv)?), placement: Placement::default() })
}

/// The vhost-user socket of interface `index` of a weir in `dir`.
pub fn socket_in(dir: &Path, index: impl Into<u16>) -> Result<PathBuf> {
    socket_path(dir, &format!("{}.sock", name(index)))
}

/// The name of interface `index` in the configuration.
pub fn name(index: impl Into<u16>) -> String {
    format!("vif{}", index.into())
}

fn agent_socket(index: u16) -> String {
    format!("{}.agent", name(index))
}

/// Splits `text` into words as a shell does: quotes, backslashes and joined lines only.
pub fn shell_words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (c, quote) {
            ('\\', None | Some('"')) => match chars.next() {
                Some('\n') | None => {}
                Some(escaped) => word.get_or_insert_default().push(escaped),
            },
            ('\'' | '"', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (c, Some(open)) if c == open => quote = None,
            (c, None) if c.is_whitespace() => words.extend(word.take()),
            (c, _) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_split_as_a_shell_does() {
        let text = "-object 'memory-backend-memfd,id=a b' \\\n  -netdev \"x\\\"y\" '' z\n";
        let words = shell_words(text);
        assert_eq!(words, ["-object", "memory-backend-memfd,id=a b", "-netdev", "x\"y", "", "z"]);
    }

    #[test]
    fn configuration_names_every_interface_with_its_address() {
        let vifs = vec![Vif::default(), Vif { queues: Some(2), vlan: Some(7), ..Vif::default() }];
        let setup = Setup { vifs, uplink: Some(Uplink::Tap), ..Setup::default() };
        let toml = setup.to_toml(Path::new("/t")).unwrap();
        assert_eq!(
            toml,
            "[switch]\nworkers = 1\ncontrol = \"/t/control.sock\"\n\n\
             [uplink.lan]\nkind = \"tap\"\nname = \"weir0\"\nqueues = 1\n\n\
             [vif.vif0]\nsocket = \"/t/vif0.sock\"\nmac = \"52:54:00:77:00:01\"\n\n\
             [vif.vif1]\nsocket = \"/t/vif1.sock\"\nmac = \"52:54:00:77:00:02\"\n\
             queues = 2\nvlan = 7\n"
        );
    }
}
