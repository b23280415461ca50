//! The privileges that a program of weir gives up before it serves guests, and its log lines about them.

use std::io;
use std::path::Path;
use std::sync::Arc;

use miette::Diagnostic;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use thiserror::Error;
use weir_config::{Config, Execution, GroupName, SocketPath, UserName};
use weir_sandbox::{Enforcement, Identity, IdentityError, Landlocked, Plan, Profile, SandboxError};

use crate::helper::{Hands, Helper, Tasks};
use crate::host::{Lack, no_right};
use crate::resolver;
use crate::switch::gateways::nat_tasks;
use crate::unix_socket::{self, Access, Accounts};

/// The default user that weir becomes, if it exists.
const USER: &str = "weir";
/// Files that are read while weir runs: threads and their CPU time, the machine's CPUs, and libc's names of time
/// zones.
const READABLE: [&str; 3] = ["/proc", "/sys/devices/system", "/etc/localtime"];
/// Files of Xen that are read while weir runs.
const XEN_DEVICES: &str = "/dev/xen";
const XEN_READABLE: &str = "/sys/bus";

/// The choice whether weir gives up the privileges that it does not need to serve guests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SandboxMode {
    /// A forbidden system call ends weir.
    #[default]
    On,
    /// The kernel logs forbidden system calls, and files are not restricted. The log helps to find out why weir ends.
    Log,
    /// weir keeps every privilege with which it was started.
    Off,
}

impl SandboxMode {
    /// The mode's name between weir's processes.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Log => "log",
            Self::Off => "off",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        [Self::On, Self::Log, Self::Off].into_iter().find(|mode| mode.as_str() == name)
    }
}

/// The reason why weir refuses to serve guests.
#[derive(Debug, Error, Diagnostic)]
pub enum ConfineError {
    /// The user does not exist.
    #[error("cannot run as another user")]
    #[diagnostic(help(
        "name a user in `user` of [switch], or make one: useradd --system --no-create-home weir"
    ))]
    Identity(#[from] IdentityError),
    /// The user or the group that is to own a socket does not exist.
    #[error("the sockets of {table} cannot be given away")]
    Owner {
        /// The table that names it.
        table: String,
        /// The reason.
        source: io::Error,
    },
    /// The user has no right to make a way out through the host.
    #[error("{what}")]
    WayOut {
        /// The problem.
        what: String,
        /// Advice on how to resolve it.
        #[help]
        help: Option<String>,
    },
    /// The helper, which does privileged work, cannot be started.
    #[error("cannot start the helper")]
    Helper(#[source] io::Error),
    /// A privilege cannot be given up.
    #[error("cannot confine weir")]
    #[diagnostic(help(
        "if the kernel lacks a feature that this needs, run weir with --no-sandbox"
    ))]
    Sandbox(#[from] SandboxError),
}

/// The facts about a switch that its confinement depends on.
#[derive(Debug, Default)]
pub struct Needs {
    tasks: Tasks,
    /// Sockets outside the control socket's directory.
    sockets: Vec<SocketPath>,
    user: Option<UserName>,
    socket_group: Option<GroupName>,
    /// The access to sockets of interfaces, by their tables.
    owned: Vec<(String, Access)>,
    xen: bool,
    real_time: bool,
}

impl Needs {
    /// The needs of a configuration.
    pub fn of(config: &Config) -> Self {
        let control = &config.switch.control;
        let beside = |path: &&SocketPath| path.as_path().parent() == control.as_path().parent();
        let patterns = config.templates.on_demand.iter();
        let set = config.uplinks.iter().filter(|uplink| uplink.kind.has_card());
        let sockets = config.vifs.iter().flat_map(|vif| [Some(&vif.socket), vif.agent.as_ref()]);
        let sockets = sockets.chain([config.switch.keeper.as_ref()]);
        let sockets = sockets.chain(config.uplinks.iter().map(|uplink| uplink.path.as_ref()));
        Self {
            tasks: Tasks {
                control: Some(control.clone()),
                interfaces: set.map(|uplink| uplink.interface.clone()).collect(),
                pin_vcpus: config.switch.placement.pin_vcpus,
                config: None,
                group: None,
                accounts: Accounts::default(),
                beside: false,
                allow_links: config.switch.allow_symlinks,
                client_dir: config.switch.client_dir.clone(),
                on_demand: patterns.map(|it| it.keys.directory.clone()).collect(),
                vnis: config.networks.by_evpn().map(|(_, vni)| vni).collect(),
                nat: nat_tasks(&config.networks),
                resolver: resolver::task(&config.networks),
            },
            sockets: sockets.flatten().filter(|path| !beside(path)).cloned().collect(),
            user: config.switch.user.clone(),
            socket_group: config.switch.socket_group.clone(),
            owned: owned(config).collect(),
            xen: config.xen.is_some(),
            real_time: config.switch.execution == Execution::RtThreads,
        }
    }

    /// Adds the configuration file, which can be read again.
    pub fn with_file(mut self, path: &Path) -> Self {
        // Messages to the helper are text.
        self.tasks.config = path.to_str().map(Into::into);
        self
    }

    /// Adds the group that has access to the control socket.
    pub fn with_group(mut self, group: Option<u32>) -> Self {
        self.tasks.group = group;
        self
    }

    /// Records whether another weir still runs in this one's place.
    pub fn beside(mut self, beside: bool) -> Self {
        self.tasks.beside = beside;
        self
    }

    /// The needs of a program that has only this socket.
    pub fn of_socket(socket: Option<&SocketPath>) -> Self {
        Self { sockets: socket.into_iter().cloned().collect(), ..Self::default() }
    }
}

/// The tables of interfaces and templates whose sockets have owners of their own, with the access to these.
fn owned(config: &Config) -> impl Iterator<Item = (String, Access)> {
    let vifs = config.vifs.iter().map(|vif| (format!("[vif.{}]", vif.name), Access::of(vif)));
    let templates = config.templates.all.iter();
    let all =
        vifs.chain(templates.map(|it| (format!("[template.{}]", it.name), Access::of(it.keys()))));
    all.filter(|(_, access)| access.user.is_some() || access.group.is_some())
}

/// The numbers of the accounts to which sockets are given.
fn accounts(needs: &Needs, group: Option<u32>) -> Result<Accounts, ConfineError> {
    let mut accounts = Accounts { group, ..Accounts::default() };
    accounts.groups.extend(needs.socket_group.clone().zip(group));
    for (table, access) in &needs.owned {
        let add = accounts.add(access);
        add.map_err(|source| ConfineError::Owner { table: table.clone(), source })?;
    }
    Ok(accounts)
}

/// A note about a configured user or group that this host does not have, or a user that is root.
pub fn user_note(config: &Config) -> Option<String> {
    let (user, group) = (&config.switch.user, &config.switch.socket_group);
    let user = user.as_ref().and_then(|user| Some(("user", Identity::named(user.as_str()).err()?)));
    let group = || {
        let name = group.as_ref()?.as_str();
        Some(("socket_group", weir_sandbox::group(name).err()?))
    };
    let of_switch = user.or_else(group);
    let of_switch = of_switch.map(|(key, error)| format!("`{key}` of [switch]: {error}"));
    let of_table = || {
        owned(config).find_map(|(table, access)| {
            Some(format!("{table}: {}", Accounts::default().add(&access).err()?))
        })
    };
    Some(format!("{}, and `weir run` takes one", of_switch.or_else(of_table)?))
}

/// Starts the helper of a weir that is about to be confined. The helper has this process's present privileges.
pub fn start_helper(mode: SandboxMode, needs: &Needs) -> Result<Hands, ConfineError> {
    let named = needs.socket_group.as_ref().map(|group| weir_sandbox::group(group.as_str()));
    let socket_group = named.transpose()?;
    socket_group.into_iter().for_each(unix_socket::sockets_are_for);
    if mode == SandboxMode::Off {
        return Ok(Hands::Own);
    }
    if !needs.tasks.nat.is_empty()
        && let Some(Lack { what, help }) = no_right()
    {
        return Err(ConfineError::WayOut { what, help });
    }
    let tasks = Tasks { accounts: accounts(needs, socket_group)?, ..needs.tasks.clone() };
    let helper = Helper::start(tasks, needs.sockets.iter().cloned());
    Ok(Hands::Helper(Arc::new(helper.map_err(ConfineError::Helper)?)))
}

/// Gives up unneeded privileges. This thread is still the only one, and privileged descriptors are open.
pub fn confine(mode: SandboxMode, needs: &Needs) -> Result<(), ConfineError> {
    let enforcement = match mode {
        SandboxMode::On => Enforcement::Kill,
        SandboxMode::Log => Enforcement::Log,
        SandboxMode::Off => {
            tracing::warn!(
                "no sandbox: weir keeps its user, its capabilities and access to every file and system call, and so \
                 does a guest that exploits a bug in it"
            );
            return Ok(());
        }
    };
    if needs.real_time {
        allow_real_time();
    }
    let identity = identity(needs)?;
    let mut readable: Vec<&Path> = READABLE.iter().map(Path::new).collect();
    let mut writable: Vec<&Path> = Vec::new();
    let profile = if needs.xen { Profile::Xen } else { Profile::Switch };
    if needs.xen {
        readable.push(Path::new(XEN_READABLE));
        writable.push(Path::new(XEN_DEVICES));
    }
    let (readable, writable) = (&readable, &writable);
    let plan = Plan { identity, readable, writable, profile, enforcement };
    let files = weir_sandbox::confine(&plan)?;
    let user = identity.map(|identity| identity.uid);
    match (enforcement, files) {
        (Enforcement::Log, _) => {
            tracing::warn!(
                user,
                "sandbox in log mode: the kernel logs each violation and does not end weir"
            );
        }
        (Enforcement::Kill, Landlocked::Whole) => tracing::info!(user, "confined"),
        (Enforcement::Kill, files) => {
            tracing::info!(user, landlock = %files, "confined as far as this kernel supports");
        }
    }
    Ok(())
}

/// The user that this process becomes; `None` if it keeps its user.
fn identity(needs: &Needs) -> Result<Option<Identity>, ConfineError> {
    if !rustix::process::geteuid().is_root() {
        if let Some(user) = &needs.user {
            tracing::info!(%user, "weir was not started as root and keeps its user");
        }
        return Ok(None);
    }
    if needs.xen {
        // Xen's devices belong to root, and each event channel opens one.
        tracing::info!("with [xen] weir stays root, without capabilities");
        return Ok(None);
    }
    let identity = match &needs.user {
        Some(user) => Identity::named(user.as_str())?,
        None => match Identity::named(USER) {
            Err(IdentityError::Unknown(_)) => Identity::nobodys()?,
            found => found?,
        },
    };
    Ok(Some(identity))
}

/// Lets weir's user make real-time threads later, by a resource limit. If that fails, the switch refuses them with an
/// error.
fn allow_real_time() {
    let limit = getrlimit(Resource::Rtprio);
    let one = Rlimit { current: Some(1), maximum: limit.maximum.map(|most| most.max(1)) };
    let _ = setrlimit(Resource::Rtprio, one);
}
