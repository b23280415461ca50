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

/// How long weir may take to open its sockets.
const START_PATIENCE: Duration = Duration::from_secs(10);

const KEEPER_SOCKET: &str = "keeper.sock";
const TOKEN: &str = "api.token";

/// One interface in weir's configuration.
#[derive(Clone, Debug, Default)]
pub struct Vif {
    /// Queue pairs; one where nothing is said.
    pub queues: Option<u8>,
    /// The VLAN it is an access port of.
    pub vlan: Option<u16>,
    /// The network of [`Overlay`] that it is in.
    pub network: Option<&'static str>,
    /// Its Ethernet address; [`address::mac`] of its index where nothing is said.
    pub mac: Option<&'static str>,
    /// Its moderation policy; the default where nothing is said.
    pub moderation: Option<&'static str>,
    /// Its latency budget; the default where nothing is said.
    pub latency_budget: Option<&'static str>,
    /// Whether its guest has a port for an agent.
    pub agent: bool,
    /// Whether weir connects to the front end's socket, instead of the other way round.
    pub client: bool,
    /// Whether other users may connect.
    pub for_all_users: bool,
}

/// Networks that reach other hosts; FRR says who is where.
#[derive(Clone, Debug)]
pub struct Overlay {
    /// This host's address in the underlay.
    pub local: Ipv4Addr,
    /// Names and VNIs.
    pub networks: Vec<(&'static str, u32)>,
    /// The TAP by which the host itself takes part in the first of them.
    pub probe: &'static str,
}

/// What weir is started with. Interfaces are named `vif0`, `vif1`, ...
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// The interfaces, by index.
    pub vifs: Vec<Vif>,
    /// Networks over hosts, if there are any.
    pub overlay: Option<Overlay>,
    /// The uplink, if there is one.
    pub uplink: Option<Uplink>,
    /// The VLAN that the uplink is an access port of; a trunk of all of them where nothing is said.
    pub uplink_vlan: Option<u16>,
    /// The CPU weir is held on; any where there is none.
    pub cpu: Option<usize>,
    /// Whether a keeper has what a weir that is killed leaves behind.
    pub keeper: bool,
    /// Workers; one where nothing is said.
    pub workers: Option<u8>,
    /// Whether workers poll for good.
    pub dedicated: bool,
    /// Where the API listens for TCP, if it does; the token is in `api.token`.
    pub api: Option<SocketAddrV4>,
}

impl Setup {
    /// `count` interfaces with every default.
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
        if let Some(uplink) = self.uplink {
            let (kind, name) = (uplink.kind(), uplink.interface());
            let _ =
                write!(toml, "\n[uplink.lan]\nkind = \"{kind}\"\nname = \"{name}\"\nqueues = 1\n");
            if let Some(vlan) = self.uplink_vlan {
                let _ = writeln!(toml, "vlan = {vlan}");
            }
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
            if vif.client {
                toml.push_str("mode = \"client\"\n");
            }
            if vif.for_all_users {
                toml.push_str("socket_mode = \"0666\"\n");
            }
            if vif.agent {
                let _ = writeln!(toml, "agent = {:?}", socket_path(dir, &agent_socket(index))?);
            }
        }
        Ok(toml)
    }
}

/// A running weir, killed when dropped.
pub struct Weir {
    process: Process,
    keeper: Option<Process>,
    placement: Placement,
    /// Where the uplink leads, if there is one.
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

    /// The same in `dir`, where another one may have been before.
    pub fn start_in(dir: PathBuf, lab: &Lab, setup: &Setup) -> Result<Self> {
        Self::begin(dir, lab, setup, Placement::default())
    }

    /// The same on a host of a fabric, in its directory.
    pub fn start_on(host: &Host, lab: &Lab, setup: &Setup) -> Result<Self> {
        Self::begin(host.dir.clone(), lab, setup, host.placement())
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

    /// SIGKILL, and the same again: returns when every interface has its guest back.
    pub fn crash_and_restart(&mut self) -> Result<()> {
        self.crash();
        self.restart()
    }

    /// SIGKILL. Guests go on, and wait for it.
    pub fn crash(&mut self) {
        self.process.end_now();
    }

    /// The same again after [`Weir::crash`]: returns when every interface has its guest back.
    pub fn restart(&mut self) -> Result<()> {
        self.launch_again()?;
        self.await_stats("the guests to be back", START_PATIENCE, Stats::all_running)
    }

    /// The same again after [`Weir::crash`], without waiting for anybody.
    pub fn launch_again(&mut self) -> Result<()> {
        self.process = launch(&self.program, &self.dir, &self.placement)?;
        Ok(())
    }

    /// Has weirs that are launched from now on live in another time.
    pub fn set_clock(&mut self, clock: Option<PathBuf>) {
        self.placement.clock = clock;
    }

    /// Its program, for signals and `/proc`.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// The program that has what a weir that is killed leaves behind, if there is one.
    pub fn keeper(&self) -> Option<&Process> {
        self.keeper.as_ref()
    }

    /// SIGKILL to the keeper, and the next one.
    pub fn replace_keeper(&mut self) -> Result<()> {
        if let Some(mut keeper) = self.keeper.take() {
            keeper.end_now();
            let _ = fs::remove_file(socket_path(&self.dir, KEEPER_SOCKET)?);
            self.keeper = Some(launch_keeper(&self.program, &self.dir)?);
        }
        Ok(())
    }

    /// `weir reload` with a file that says `setup`; what it printed.
    pub fn reload(&self, setup: &Setup) -> Result<String> {
        let config = self.dir.join("weir.toml");
        fs::write(&config, setup.to_toml(&self.dir)?).map_err(Error::io("write", &config))?;
        self.control(&["reload"])
    }

    /// `weir upgrade`: another process takes over. It ends when this is dropped, and not when this process is killed.
    pub fn upgrade(&mut self) -> Result<()> {
        let said = self.control(&["upgrade"])?;
        let pid = said.split_once("process ").and_then(|(_, rest)| rest.split_once(' '));
        let pid = pid.and_then(|(pid, _)| pid.parse().ok());
        self.process.succeeded_by(pid.ok_or_else(|| Error::parse("the next weir's process", said))?)
    }

    /// Waits until its statistics are as wanted.
    pub fn await_stats(
        &mut self,
        what: &str,
        patience: Duration,
        wanted: impl Fn(&Stats) -> bool,
    ) -> Result<()> {
        wait_until(what, patience, || {
            self.process.check_alive()?;
            // Until it listens again, its old control socket answers nobody.
            Ok(self.stats().is_ok_and(|stats| wanted(&stats)))
        })
        .map_err(|error| self.with_log(&error))
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.join("weir.log")).unwrap_or_default()
    }

    /// Where its uplink leads.
    pub fn uplink(&self) -> Result<&UplinkSite> {
        self.uplink.as_ref().ok_or_else(|| Error::Check("this weir has no uplink".into()))
    }

    /// Where its log, and those of its guests, are.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Fails, with the end of weir's log, if weir has ended.
    pub fn check_alive(&mut self) -> Result<()> {
        self.process.check_alive().map_err(|error| self.with_log(&error))
    }

    /// What weir says it has done.
    pub fn stats(&self) -> Result<Stats> {
        Stats::parse(&self.control(&["stats", "--json"])?)
    }

    /// `weir vif set`: changes a setting (`KEY=VALUE`) of interface `index`.
    pub fn set(&self, index: impl Into<u16>, setting: &str) -> Result<()> {
        self.control(&["vif", "set", &name(index), setting]).map(drop)
    }

    /// What `weir explain` says of interface `index`.
    pub fn explain(&self, index: impl Into<u16>) -> Result<String> {
        self.control(&["explain", &name(index)])
    }

    /// Whether the agent of the guest of interface `index` is there.
    pub fn hears_agent(&self, index: impl Into<u16>) -> Result<bool> {
        Ok(self.explain(index)?.contains("guest polls by"))
    }

    /// Runs one of weir's commands against this one.
    pub fn control(&self, command: &[&str]) -> Result<String> {
        let control = socket_path(&self.dir, "control.sock")?;
        let mut argv = vec![self.program.as_str()];
        argv.extend(command);
        let control = control.to_string_lossy();
        argv.extend(["--control", &control]);
        run(&argv)
    }

    /// What weir uses of the machine.
    pub fn usage(&self) -> Usage {
        Usage::of(self.process.pid())
    }

    /// SIGTERM; an error unless weir ends with success, as a service manager would want.
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
    /// How a guest of interface `index` is plugged in under `qemu`.
    pub fn plug_into(&self, qemu: Qemu, index: u8) -> Result<Plug> {
        plug(&self.program, qemu, &name(index), &self.dir.join("weir.toml"))
    }

    /// What `weir qemu-args` prints for interface `index` with `options`.
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

/// The program beside weir's. Returns when it listens.
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

/// What `weir qemu-args` says for interface `name` of a configuration.
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

/// The words a shell would make of `text`: quotes, backslashes and joined lines, nothing more.
fn shell_words(text: &str) -> Vec<String> {
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
