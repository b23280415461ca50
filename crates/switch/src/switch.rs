//! A whole switch: the engine, sessions, interfaces and uplinks, and the operations of the control socket on them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use miette::Diagnostic;
use weir_config::descriptors::{of_interface, worker_count};
use weir_config::{
    self as config, FilterRule, Groups, LatencyBudget, Networks, PortName, SocketPath, SocketRole,
    SwitchConfig, Templates, UplinkConfig, VifConfig, Whole, filter,
};
use weir_engine::filter::PortRules;
use weir_engine::guest::{CallPolicy, GuestPort, State};
use weir_engine::{Engine, Execution, Options, PortSettings, Realization};
use weir_fabric::{Capacity, MacCheck, PortId, Snooping, SourceGuard};
use weir_foreign::{Foreign, Party};
use weir_guestmem::Account;
use weir_port_tap::UplinkPort;
use weir_port_vhost::{Endpoint, Manager, Records, VhostOptions, VhostPort};
use weir_sandbox::descriptors;

use crate::control::{Part, Response, VifOrigin, VifStatus};
use crate::helper::{Ahead, Hands, WantedSocket};
use crate::loops::Loops;
use crate::manager::{self, AgentSocket, NewVif, VifSettings};
use crate::named::NoSuchPort;
use crate::nat::Nat;
use crate::programs::Programs;
use crate::unix_socket::{Access, BoundListener, Left, ListenError};
use crate::upgrade::{Upgrades, with_causes};

mod bond;
mod error;
mod evpn;
pub(crate) mod gateways;
mod groups;
mod keeping;
mod leaving;
mod mirrors;
mod noted;
mod noting;
mod on_demand;
mod overlay;
mod plugging;
mod put;
mod reload;
mod requests;
mod settings;
mod shown;
mod starting;
mod tap_mac;
mod traffic;
mod uplink_device;
mod xen;

pub use error::SwitchError;
use gateways::{Gateway, Served};
pub use keeping::Keeping;
pub(crate) use keeping::Kept;
use mirrors::{Candidate, Mirrors};
use noted::Noted;
use on_demand::{OnDemand, is_on_demand};
use overlay::Overlay;
use settings::Source;
pub use uplink_device::{Devices, UplinkDevice};

/// The most names of ports that an answer to a wrong name lists.
const NAMES_SHOWN: usize = 10;

/// An interface in use.
struct Vif {
    seen: Seen,
    agent: Option<AgentSocket>,
    link: Link,
    /// True if the configuration file named the interface when it was last read.
    from_file: bool,
    /// If the interface has an owner: keys that commands have set and the owner has not.
    set: BTreeSet<String>,
}

/// The part of an interface that reports show. Reports are made from copies, so a change of ports
/// never waits for a report.
#[derive(Clone)]
struct Seen {
    config: Arc<VifConfig>,
    port: Arc<dyn GuestPort>,
    rules: PortRules,
    guard: Option<Arc<SourceGuard>>,
}

impl Vif {
    /// The sockets that nobody else has. The keeper lets go of them first.
    fn into_listeners(self) -> impl Iterator<Item = BoundListener> {
        let own = match self.link {
            Link::Socket { listens, .. } => listens.map(|it| it.bound),
            Link::Xen => None,
        };
        own.into_iter().chain(self.agent.and_then(|it| Arc::into_inner(it.bound?)))
    }
}

impl std::ops::Deref for Vif {
    type Target = Seen;

    fn deref(&self) -> &Seen {
        &self.seen
    }
}

/// An interface whose sockets are open, before it is a port.
struct Prepared {
    config: VifConfig,
    /// True if the interface uses the sockets of its configuration.
    in_place: bool,
    endpoint: Endpoint,
    listens: Option<Listens>,
    agent: Option<AgentSocket>,
    records: Option<Records>,
    rules: PortRules,
}

/// An interface that is a port, before anybody serves its front end.
struct Plugged {
    port: Arc<VhostPort>,
    endpoint: Endpoint,
    managed: NewVif,
}

/// The way in which an interface meets its front end.
enum Link {
    /// A vhost-user socket. If weir has made its file, `listens` keeps the file and removes it.
    Socket { listens: Option<Listens>, has_records: bool },
    /// xenstore: the toolstack attached the interface.
    Xen,
}

/// A socket on which weir listens. The keeper lets go of the socket before its file is removed.
struct Listens {
    _kept: Option<Kept>,
    bound: BoundListener,
}

struct Uplink {
    config: UplinkConfig,
    id: PortId,
    port: Arc<dyn UplinkPort>,
    rules: PortRules,
    _kept: Option<Kept>,
    /// The choice among the uplinks of a bond; `None` for another uplink.
    bond: Option<bond::Bond>,
}

#[derive(Default)]
struct Ports {
    vifs: Vec<Vif>,
    uplinks: Vec<Uplink>,
    overlay: Option<Overlay>,
    /// weir's own ports.
    gateways: Vec<Gateway>,
    /// Rules of ways out, if no helper has made them.
    nat: Vec<Nat>,
}

impl Ports {
    /// All ports that are not interfaces of guests.
    fn outward(&self) -> impl Iterator<Item = (PortId, &PortName)> {
        let uplinks = self.uplinks.iter().map(|uplink| (uplink.id, &uplink.config.name));
        let overlay = self.overlay.iter().map(|overlay| (overlay.id, &overlay.name));
        let own = self.gateways.iter().map(|gateway| (gateway.id, &gateway.name));
        uplinks.chain(overlay).chain(own)
    }

    /// All ports with their names.
    fn named(&self) -> impl Iterator<Item = (PortId, &PortName)> {
        self.vifs.iter().map(|vif| (vif.port.id(), &vif.config.name)).chain(self.outward())
    }

    /// True if a port that is no interface has the name.
    fn is_outward(&self, name: &PortName) -> bool {
        self.outward().any(|(_, other)| other == name)
    }

    /// The error for a name that is neither an interface's nor an uplink's.
    fn no_such_port(&self, name: &PortName) -> NoSuchPort {
        let own = self.gateways.iter().find(|gateway| gateway.name == *name);
        let overlay = self.overlay.as_ref().filter(|overlay| overlay.name == *name);
        match (own, overlay) {
            (Some(own), _) => NoSuchPort::Own { name: name.clone(), network: own.network.clone() },
            (None, Some(_)) => NoSuchPort::Overlay(name.clone()),
            (None, None) => NoSuchPort::Absent { name: name.clone(), there: self.there(name) },
        }
    }

    /// The names that exist, for a user who has asked for `name`, which does not exist.
    fn there(&self, name: &PortName) -> String {
        let mut own = self.gateways.iter().filter(|it| it.network.as_str() == name.as_str());
        if let Some(own) = own.next() {
            return format!(
                "{name} is a network, and weir's port in it is {}; `weir stats`",
                own.name
            );
        }
        let names: Vec<_> = self.named().map(|(_, name)| name.as_str()).take(NAMES_SHOWN).collect();
        match self.len().saturating_sub(names.len()) {
            0 if names.is_empty() => "there are none: `weir vif add NAME`".to_owned(),
            0 => format!("there are: {}", names.join(", ")),
            more => format!("there are: {}, and {more} more: `weir stats`", names.join(", ")),
        }
    }

    /// The answer to a request for an interface where none has this name.
    fn no_such_vif(&self, name: &PortName) -> Response {
        if self.uplinks.iter().any(|uplink| uplink.config.name == *name) {
            let message = format!("{name} is an uplink, which stays as it is while weir runs");
            let help = format!(
                "change its table in the configuration and start weir again; its filters can change: `weir filter set {name}`"
            );
            return Response::refused(message, help);
        }
        match self.no_such_port(name) {
            NoSuchPort::Absent { there, .. } => {
                Response::not_found(format!("there is no interface called {name}"), there)
            }
            other => Response::from(&other),
        }
    }

    fn len(&self) -> usize {
        self.named().count()
    }

    /// The ports that mirrors may copy, and those that may be mirrors. A Xen guest's interface is
    /// no mirror, and the overlay is none either.
    fn candidates(&self) -> Vec<Candidate<'_>> {
        let vifs = self.vifs.iter().map(|vif| Candidate {
            name: &vif.config.name,
            id: vif.port.id(),
            vlan: &vif.config.vlan,
            may_mirror: !matches!(vif.link, Link::Xen),
        });
        let uplinks = self.uplinks.iter().map(|uplink| Candidate {
            name: &uplink.config.name,
            id: uplink.id,
            vlan: &uplink.config.vlan,
            may_mirror: true,
        });
        let overlay = self.overlay.iter().map(|overlay| Candidate {
            name: &overlay.name,
            id: overlay.id,
            vlan: &config::VlanMode::Unset,
            may_mirror: false,
        });
        vifs.chain(uplinks).chain(overlay).collect()
    }
}

/// A running switch. Dropping it ends every session.
pub struct Switch {
    // Fields are dropped in this order: mirrors, the manager's settings, sessions, uplinks, workers. The vifs of Xen
    // guests are released before all of these.
    mirrors: Mutex<Mirrors>,
    manager: manager::Manager,
    loops: Arc<Loops>,
    sessions: Manager,
    ports: Mutex<Ports>,
    /// Serialises requests that change the switch, so that a check of a request still holds when its change is made.
    changing: Mutex<()>,
    engine: Arc<Engine>,
    networks: Networks,
    /// The bond of each uplink that is in one. It is known before the first of them is added.
    bonded: OnceLock<BTreeMap<PortName, PortName>>,
    /// Security groups, as they are now.
    groups: Mutex<Arc<Groups>>,
    /// Templates, as they are now.
    templates: Mutex<Arc<Templates>>,
    on_demand: OnDemand,
    /// IP addresses that are configured for a station.
    owners: Arc<evpn::ConfiguredOwners>,
    /// Guests that weir itself serves in their networks.
    served: Served,
    latency_budget: Mutex<LatencyBudget>,
    source: Mutex<Option<Source>>,
    control: SocketPath,
    started: Instant,
    started_unix_ms: u64,
    xen: Mutex<Option<weir_port_xen::Manager>>,
    hands: Hands,
    keeper: Keeping,
    /// True while another weir takes this one's place.
    left: Mutex<bool>,
    upgrades: OnceLock<Upgrades>,
    programs: OnceLock<Arc<Programs>>,
    /// The run-time settings as the keeper has them.
    noted: Mutex<Noted>,
    looks: Mutex<shown::Looks>,
}

/// The way in which an interface meets its front end.
pub enum Meeting {
    /// The interface listens as the configuration says.
    Configured,
    /// The interface uses this listening socket.
    Listener(std::os::unix::net::UnixListener),
    /// The interface uses this connection, and no later one.
    Connected(UnixStream),
}

impl Switch {
    /// A switch without ports.
    pub fn empty(
        options: Options,
        latency_budget: LatencyBudget,
        control: SocketPath,
    ) -> Result<Arc<Self>, SwitchError> {
        Self::empty_with(options, latency_budget, control, Hands::Own)
    }

    /// A switch without ports, whose privileged work is done by `hands`.
    pub fn empty_with(
        options: Options,
        latency_budget: LatencyBudget,
        control: SocketPath,
        hands: Hands,
    ) -> Result<Arc<Self>, SwitchError> {
        let (keeping, networks) = Default::default();
        Self::kept_with(options, latency_budget, control, hands, keeping, networks)
    }

    fn kept_with(
        options: Options,
        latency_budget: LatencyBudget,
        control: SocketPath,
        hands: Hands,
        keeper: Keeping,
        networks: Networks,
    ) -> Result<Arc<Self>, SwitchError> {
        let engine = Engine::start_with(options).map_err(|source| match source.kind() {
            io::ErrorKind::PermissionDenied if options.execution == Execution::RtThreads => {
                SwitchError::RealTime(source)
            }
            _ => SwitchError::Start(source),
        })?;
        if let Some(snooping) = Snooping::new(networks.snooped()) {
            engine.fabric().snoop(snooping);
        }
        let sessions = Manager::start(Arc::clone(&engine)).map_err(SwitchError::Start)?;
        let loops = Loops::new(&engine);
        let manager = manager::Manager::start(Arc::clone(&engine), Arc::clone(&loops));
        let manager = manager.map_err(SwitchError::Start)?;
        let started = Instant::now();
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let started_unix_ms = u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX);
        let ports = Mutex::default();
        Ok(Arc::new(Self {
            mirrors: Mutex::default(),
            manager,
            loops,
            sessions,
            ports,
            changing: Mutex::default(),
            engine,
            networks,
            bonded: OnceLock::new(),
            groups: Mutex::default(),
            templates: Mutex::default(),
            on_demand: OnDemand::default(),
            owners: Arc::default(),
            served: Served::default(),
            latency_budget: Mutex::new(latency_budget),
            source: Mutex::default(),
            control,
            started,
            started_unix_ms,
            xen: Mutex::default(),
            hands,
            keeper,
            left: Mutex::default(),
            upgrades: OnceLock::new(),
            programs: OnceLock::new(),
            noted: Mutex::default(),
            looks: Mutex::default(),
        }))
    }

    /// The engine, which forwards the packets.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The port of the interface with this name, if there is one.
    pub fn vif(&self, name: &PortName) -> Option<Arc<dyn GuestPort>> {
        let ports = self.ports();
        let vif = ports.vifs.iter().find(|vif| vif.config.name == *name)?;
        Some(Arc::clone(&vif.port))
    }

    /// Adjusts the mirrors to the configuration of the existing ports.
    fn settle_mirrors(&self) {
        let mut mirrors = self.mirrors.lock().unwrap_or_else(|e| e.into_inner());
        let wanted = mirrors::wanted(&self.ports().candidates());
        mirrors.settle(&self.engine, wanted);
    }

    fn ports(&self) -> MutexGuard<'_, Ports> {
        self.ports.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Adds an interface.
    ///
    /// # Errors
    /// [`SwitchError`]; nothing has changed then.
    pub fn add_vif(&self, config: VifConfig, meeting: Meeting) -> Result<(), SwitchError> {
        let prepared = self.prepare(config, meeting, &[], None)?;
        self.begin([self.plug_prepared(prepared)?])?;
        self.settle_mirrors();
        Ok(())
    }

    /// Makes the sockets of interfaces for which there is none yet, all at once.
    fn bind_ahead(&self, vifs: &[VifConfig]) -> BTreeMap<SocketPath, Ahead> {
        if self.keeper.has_taken() {
            // Sockets of another weir are taken over, each by itself.
            return BTreeMap::new();
        }
        let listening = vifs.iter().filter(|vif| vif.mode == SocketRole::Server);
        let wanted =
            listening.map(|vif| WantedSocket { path: vif.socket.clone(), access: Access::of(vif) });
        self.hands.bind_all(wanted.collect())
    }

    /// Opens the sockets of an interface, except for those that are made `ahead`; `others` are prepared already.
    fn prepare(
        &self,
        config: VifConfig,
        meeting: Meeting,
        others: &[Prepared],
        ahead: Option<Ahead>,
    ) -> Result<Prepared, SwitchError> {
        let name = config.name.clone();
        let rules = port_rules(&name, &config.filter)?;
        let not_listening = |source| SwitchError::Socket { name: name.clone(), source };
        let no_descriptor = |source| SwitchError::Descriptors { name: name.clone(), source };
        descriptors::room_for_guest().map_err(no_descriptor)?;
        let in_place = matches!(meeting, Meeting::Configured);
        let (bound, records) = ahead.map(|it| (it.bound, it.records)).unzip();
        let (endpoint, listens) = self.meet(&config, meeting, bound).map_err(not_listening)?;
        let agent = self.agent_socket(&config, others).map_err(not_listening)?;
        let records = self.records(&config, in_place, records);
        Ok(Prepared { config, in_place, endpoint, listens, agent, records, rules })
    }

    /// Makes a port of a prepared interface. Nobody serves its front end before it [begins](Self::begin).
    fn plug_prepared(&self, prepared: Prepared) -> Result<Plugged, SwitchError> {
        let Prepared { config, in_place, endpoint, listens, agent, records, rules } = prepared;
        let name = config.name.clone();
        let keep = self.keeper.place(&name).filter(|_| in_place);
        let has_records = records.is_some();
        let options = VhostOptions {
            name: name.to_string(),
            queue_pairs: config.queues.get().into(),
            calls: self.calls(&config),
            device: config.device(),
        };
        let guard = config.guarding.guard(None);
        let begins = self.port_settings(&config, &rules, guard.as_ref());
        let (id, port) = self
            .engine
            .add_port_with(config.port_config(&self.networks), begins, |id, counters| {
                let memory = Account::new(config.memory_max.get(), &[]);
                let port = VhostPort::new(id, counters, &options).with_memory(memory);
                let port = port.with_own_descriptors(of_interface(&config, keep.is_some()));
                let port = match records {
                    Some(records) => port.with_records(records),
                    None => port,
                };
                Arc::new(match keep {
                    Some(keep) => port.with_keep(keep),
                    None => port,
                })
            })
            .map_err(|source| SwitchError::Port { name: name.clone(), source })?;
        self.note_station(id, &config);
        self.recall_leases(self.keeper.noted(), name.as_str(), guard.as_deref());
        // Other programs make interfaces on demand come and go, so their messages have a limit.
        if !is_on_demand(&config) {
            tracing::info!(vif = %name, port = %id, socket = %config.socket, "interface added");
        }
        self.loops.add(id, &name, false, self.is_open(&config));
        let managed = NewVif {
            name,
            port: Arc::clone(&port) as _,
            agent: agent.clone(),
            settings: self.vif_settings(&config),
        };
        let link = Link::Socket { listens, has_records };
        let seen = Seen { config: config.into(), port: Arc::clone(&port) as _, rules, guard };
        let vif = Vif { seen, agent, link, from_file: false, set: BTreeSet::new() };
        self.ports().vifs.push(vif);
        Ok(Plugged { port, endpoint, managed })
    }

    /// Starts the service of the front ends of new ports. The threads that look after all
    /// interfaces learn of these at once.
    ///
    /// # Errors
    /// Nobody serves front ends any more; the ports are removed.
    fn begin(&self, plugged: impl IntoIterator<Item = Plugged>) -> Result<(), SwitchError> {
        let (mut ids, mut served, mut managed) = (Vec::new(), Vec::new(), Vec::new());
        for Plugged { port, endpoint, managed: vif } in plugged {
            ids.push(vif.port.id());
            served.push((port, endpoint));
            managed.push(vif);
        }
        if let Err(gone) = self.sessions.add_all(served) {
            self.ports().vifs.retain(|vif| !ids.contains(&vif.port.id()));
            for id in ids {
                self.loops.remove(id);
                self.owners.remove(id);
                self.served.remove(id);
                self.engine.remove_port(id);
            }
            return Err(gone.into());
        }
        self.manager.add_vifs(managed);
        Ok(())
    }

    /// The engine's settings of an interface with these filters and this source guard of its own.
    fn port_settings(
        &self,
        config: &VifConfig,
        rules: &PortRules,
        guard: Option<&Arc<SourceGuard>>,
    ) -> PortSettings {
        // An interface without a guard of its own has the one that its network imposes on all guests.
        let guard = guard.cloned().or_else(|| self.served.roles(config, &self.networks));
        PortSettings {
            rules: rules.clone(),
            groups: self.groups().policy(&config.groups),
            share: config.sharing.share(),
            send_limit: config.sharing.limit(),
            receive_limit: config.sharing.receive.limit(),
            storm_limit: config.storm.limit(),
            mtu: config.mtu.map(|mtu| mtu.get()),
            guard,
            gives_leases: config.guarding.router,
            served_by: self.served.port_for(config, &self.networks),
            isolated_over_hosts: config.is_isolated_over_hosts(&self.networks),
        }
    }

    /// Notes the station that is configured behind a port.
    fn note_station(&self, id: PortId, config: &VifConfig) {
        self.owners.set(id, config, &self.networks);
        self.served.set(id, config, &self.networks);
    }

    fn meet(
        &self,
        config: &VifConfig,
        meeting: Meeting,
        ahead: Option<Result<BoundListener, ListenError>>,
    ) -> Result<(Endpoint, Option<Listens>), ListenError> {
        Ok(match (meeting, config.mode) {
            (Meeting::Listener(listener), _) => {
                let listener = Foreign::new(listener, &Party::new(config.name.as_str()));
                (Endpoint::Listener(Arc::new(listener)), None)
            }
            (Meeting::Connected(stream), _) => (Endpoint::Connected(stream), None),
            (Meeting::Configured, SocketRole::Client) => {
                self.hands.check_connect(&config.socket)?;
                let (path, dial) = (config.socket.as_path().into(), self.hands.dial());
                (Endpoint::Connect { path, dial }, None)
            }
            (Meeting::Configured, SocketRole::Server) => {
                let (path, access) = (config.socket.as_path(), Access::of(config));
                let left = self.keeper.listener(&config.name);
                let left = left.map(|(socket, file)| self.hands.adopt(socket, path, file, &access));
                let bind = || ahead.unwrap_or_else(|| self.hands.bind(path, access));
                let bound = match left {
                    Some(Left::Adopted(bound)) => bound,
                    None | Some(Left::Closed) => bind()?,
                    Some(Left::AsItWas { bound, why }) => {
                        let new = || bind().map_err(|error| with_causes(&error));
                        why.map_or_else(new, Err).unwrap_or_else(|why| {
                            let vif = &config.name;
                            tracing::error!(%vif, why, "goes on with the socket of an earlier weir, as it was");
                            bound
                        })
                    }
                };
                let listener = Arc::clone(bound.listener());
                let kept = self.keeper.keep_listener(&config.name, &bound);
                (Endpoint::Listener(listener), Some(Listens { _kept: kept, bound }))
            }
        })
    }

    /// The ring records that outlive weir. An interface works without them.
    fn records(
        &self,
        config: &VifConfig,
        in_place: bool,
        ahead: Option<io::Result<Records>>,
    ) -> Option<Records> {
        let open = || self.hands.open_records(&config.socket);
        match in_place.then(|| ahead.unwrap_or_else(open))? {
            Ok(records) => Some(records),
            Err(error) => {
                let (vif, socket) = (&config.name, &config.socket);
                tracing::warn!(%vif, %socket, %error, "this guest may need a reset after a SIGKILL of weir");
                None
            }
        }
    }

    /// The socket for the agent of this interface's guest. Interfaces of one virtual machine share it.
    fn agent_socket(
        &self,
        config: &VifConfig,
        others: &[Prepared],
    ) -> Result<Option<AgentSocket>, ListenError> {
        let Some(path) = &config.agent else {
            return Ok(None);
        };
        let ports = self.ports();
        let agents = ports.vifs.iter().map(|vif| &vif.agent);
        let mut agents = agents.chain(others.iter().map(|vif| &vif.agent)).flatten();
        if let Some(shared) = agents.find(|agent| agent.path == *path) {
            return Ok(Some(shared.clone()));
        }
        let (access, place) = (Access::of(config), path.as_path());
        let left = self.keeper.agents(|socket, file| {
            match self.hands.adopt(socket, place, file, &access) {
                Left::Adopted(bound) => Some(bound),
                Left::Closed | Left::AsItWas { .. } => None,
            }
        });
        let bound = match left.map_or_else(|| self.hands.bind(place, access), Ok) {
            // The guest goes on without an agent, as it may at any time.
            Err(error) if self.keeper.has_taken() => {
                let (vif, why) = (&config.name, with_causes(&error));
                tracing::error!(%vif, why, "goes on without a socket for agents until weir is restarted");
                return Ok(None);
            }
            bound => bound?,
        };
        let kept = self.keeper.keep_agents(&bound).map(Arc::new);
        Ok(Some(AgentSocket { path: path.clone(), _kept: kept, bound: Some(Arc::new(bound)) }))
    }

    fn vif_settings(&self, config: &VifConfig) -> VifSettings {
        let calls = self.calls(config);
        let network = self.networks.number_of(&config.vlan);
        VifSettings {
            kind: config.moderation.0,
            hold_ns_max: calls.hold_ns_max(),
            budget_ns: calls.latency_budget_ns,
            share: config.sharing.share(),
            overlay_budget_ns: network.map(|_| calls.latency_budget_ns),
            mac: config.mac_or_derived().into(),
            rss_rebalance: config.rss_rebalance,
        }
    }

    /// True if any station may be behind the interface.
    fn is_open(&self, config: &VifConfig) -> bool {
        config.port_config(&self.networks).mac_check == MacCheck::Off
    }

    fn budget(&self, vif: &VifConfig) -> LatencyBudget {
        let default = self.latency_budget.lock().unwrap_or_else(|e| e.into_inner());
        vif.latency_budget.unwrap_or(*default)
    }

    /// The call policy of an interface's guest on this engine.
    fn calls(&self, vif: &VifConfig) -> CallPolicy {
        let polled = self.engine.options().realization == Realization::Dedicated;
        CallPolicy { polled, ..vif.call_policy(self.budget(vif)) }
    }

    /// Refuses an interface that does not go together with the present ports, except for the one that it replaces
    /// (`in_place_of`).
    fn refusal(
        &self,
        ports: &Ports,
        keeper: Option<&SocketPath>,
        in_place_of: Option<usize>,
        config: &VifConfig,
    ) -> Option<Response> {
        let others = ports.vifs.iter().enumerate().filter(|(index, _)| Some(*index) != in_place_of);
        let (groups, templates) = (self.groups(), self.templates());
        let whole = Whole {
            control: &self.control,
            keeper,
            latency_budget: *self.latency_budget.lock().unwrap_or_else(|e| e.into_inner()),
            schedule: config::Schedule(self.engine.schedule()),
            groups: &groups,
            templates: &templates,
            networks: &self.networks,
            uplinks: ports.uplinks.iter().map(|uplink| &uplink.config).collect(),
            vifs: others.map(|(_, vif)| &*vif.config).collect(),
            xen: None,
        };
        let (table, faults) = (format!("vif.{}", config.name), whole.faults_with(config));
        let reasons: Vec<_> = faults.iter().map(|it| it.reason(&table)).collect();
        let helps: Vec<_> = faults.iter().map(|it| it.fault.help.as_str()).collect();
        (!faults.is_empty()).then(|| Response::refused(reasons.join("; "), helps.join("; ")))
    }

    /// Adds an interface while the switch runs, if it does not conflict with the others.
    fn vif_add(&self, mut config: VifConfig) -> Response {
        self.networks.settle(&mut config);
        let keeper = self.keeper_socket();
        let name = &config.name;
        if self.ports().vifs.iter().any(|vif| vif.config.name == *name) {
            let message = format!("an interface called {name} exists already");
            let help = format!(
                "`weir vif set {name}` changes it, and `--may-exist` of `weir vif add` too"
            );
            return Response::refused(message, help);
        }
        let refusal = self.refusal(&self.ports(), keeper.as_ref(), None, &config);
        if let Some(refusal) = refusal {
            return refusal;
        }
        match self.add_vif(config, Meeting::Configured) {
            Ok(()) => Response::Ok,
            Err(error) => failed(&error),
        }
    }

    /// The number of settings that decide what passes and that differ between `old` and `new`: the
    /// place in the fabric, and the rules. Workers may see their changes at different moments.
    fn steps_between(&self, old: &VifConfig, new: &VifConfig) -> usize {
        let is_there = old.port_config(&self.networks) == new.port_config(&self.networks);
        let has_rules = (&old.filter, &old.guarding, &old.groups);
        let keeps_rules = has_rules == (&new.filter, &new.guarding, &new.groups);
        usize::from(!is_there) + usize::from(!keeps_rules)
    }

    /// Makes ports pass nothing until they are [opened](Self::open). Otherwise a frame that only
    /// several settings together keep out could pass between two changes.
    fn shut(&self, ids: &[PortId]) {
        for id in ids {
            self.engine.change_settings(*id, |now| now.rules = settings::nothing_passes());
        }
        if !ids.is_empty() {
            self.engine.fence();
        }
    }

    /// Makes ports pass what their settings allow. By now every worker sees these settings.
    fn open(&self, ports: &Ports, ids: &[PortId]) {
        if ids.is_empty() {
            return;
        }
        self.engine.fence();
        let vifs = ports.vifs.iter().map(|vif| (vif.port.id(), &vif.rules));
        let all = vifs.chain(ports.uplinks.iter().map(|uplink| (uplink.id, &uplink.rules)));
        for (id, rules) in all.filter(|(id, _)| ids.contains(id)) {
            self.engine.change_settings(id, |now| now.rules = rules.clone());
        }
    }

    /// Changes an interface to `config`, except for its sockets. A port in `shut` stays shut. `before` is the policy of
    /// calls to its guest until now.
    fn change(
        &self,
        vif: &mut Vif,
        config: VifConfig,
        before: &CallPolicy,
        shut: &[PortId],
    ) -> Result<(), SwitchError> {
        let (id, old) = (vif.port.id(), &vif.config);
        let failed = |source| SwitchError::Port { name: config.name.clone(), source };
        let refiltered = config.filter != old.filter;
        let rules = refiltered.then(|| port_rules(&config.name, &config.filter)).transpose()?;
        // Learned addresses stay if the port's configuration does not change.
        let port_config = config.port_config(&self.networks);
        if port_config != old.port_config(&self.networks) {
            self.engine.fabric().update_port(id, port_config).map_err(failed)?;
        }
        let calls = self.calls(&config);
        // An unchanged policy keeps its state.
        if calls != *before {
            vif.port.interface().set_moderation(&calls);
        }
        if config.queues != old.queues {
            vif.port.set_queue_pairs(config.queues.get().into(), &calls);
        }
        vif.port.set_device(config.device());
        if config.memory_max != old.memory_max {
            vif.port.set_memory_max(config.memory_max.get());
        }
        if config.guarding != old.guarding {
            vif.seen.guard = config.guarding.guard(vif.guard.as_deref());
        }
        if let Some(rules) = rules {
            vif.seen.rules = rules;
        }
        let mut settings = self.port_settings(&config, &vif.rules, vif.guard.as_ref());
        if shut.contains(&id) {
            settings.rules = settings::nothing_passes();
        }
        self.engine.change_settings(id, |now| *now = settings);
        vif.seen.config = config.into();
        self.note_station(id, &vif.config);
        self.loops.change(id, self.is_open(&vif.config));
        self.manager.change_vif(id, self.vif_settings(&vif.config));
        Ok(())
    }

    /// Replaces the filters of an interface or an uplink.
    fn filter_set(&self, name: &PortName, filter: Vec<FilterRule>) -> Response {
        let rules = match filter::port_rules(&filter) {
            Ok(rules) => rules,
            Err(error) => return Response::error(error.to_string()),
        };
        let mut ports = self.ports();
        let Ports { vifs, uplinks, .. } = &mut *ports;
        let vif = vifs.iter_mut().find(|vif| vif.config.name == *name);
        let vif = vif.map(|Vif { seen: Seen { port, config, rules, .. }, set, .. }| {
            let config = Arc::make_mut(config);
            let set = config.by.is_some().then_some(set);
            (port.id(), &config.vlan, &mut config.filter, rules, set)
        });
        let uplink = uplinks.iter_mut().find(|it| it.config.name == *name);
        let uplink = uplink.map(|Uplink { id, config, rules, .. }| {
            (*id, &config.vlan, &mut config.filter, rules, None)
        });
        let Some((id, vlan, old_filter, old_rules, set)) = vif.or(uplink) else {
            return Response::from(&ports.no_such_port(name));
        };
        if !vlan.mirrored().is_empty() && !filter.is_empty() {
            let error = config::MirrorError::Ignores(name.clone(), "filter");
            return refused(&error, "a mirror gets all frames: take its `mirror` away first");
        }
        // An unchanged filter keeps its rules' counters.
        if *old_filter == filter {
            return Response::Ok;
        }
        self.engine.change_settings(id, |settings| settings.rules = rules.clone());
        if let Some(set) = set {
            // Without rules no rule can be lost.
            match filter.is_empty() {
                true => set.remove("filter"),
                false => set.insert("filter".into()),
            };
        }
        (*old_filter, *old_rules) = (filter, rules);
        Response::Ok
    }

    fn vif_del(&self, name: &PortName) -> Response {
        let mut ports = self.ports();
        let Some(index) = ports.vifs.iter().position(|vif| vif.config.name == *name) else {
            return ports.no_such_vif(name);
        };
        if matches!(ports.vifs[index].link, Link::Xen) {
            return not_ours_to_remove(&ports.vifs[index].config);
        }
        let vif = ports.vifs.remove(index);
        drop(ports);
        self.mirrors.lock().unwrap_or_else(|e| e.into_inner()).end_of(name);
        self.manager.remove_vif(vif.port.id());
        self.loops.remove(vif.port.id());
        self.owners.remove(vif.port.id());
        self.served.remove(vif.port.id());
        if let Err(busy) = self.sessions.remove(vif.port.id()) {
            // The session's thread may still return and use the port's number.
            vif.port.retire(&busy.to_string());
            let _ = self.engine.fabric().set_active(vif.port.id(), false);
            tracing::error!(vif = %name, %busy, "interface removed, but its port number stays taken");
            return Response::error(format!(
                "{name} is out of service, but {busy}: its port number stays taken until weir ends"
            ));
        }
        self.engine.remove_port(vif.port.id());
        if let Link::Socket { has_records: true, .. } = &vif.link {
            self.hands.remove_records(&vif.config.socket);
        }
        self.keeper.forget(name);
        if !is_on_demand(&vif.config) {
            tracing::info!(vif = %name, "interface removed");
        }
        Response::Ok
    }

    fn vif_list(&self, part: &Part) -> Response {
        let all = self.ports().vifs.iter().map(|vif| (vif.seen.clone(), vif.origin())).collect();
        let (part, total) = part.of(all, |(vif, _): &(Seen, _)| &vif.config.name);
        let names: BTreeSet<_> = part.iter().map(|(vif, _)| &vif.config.name).collect();
        let noted = self.set_since(|name, is_added| !is_added && names.contains(name));
        let noted = noted.unwrap_or_default();
        let status = |(vif, origin): (Seen, VifOrigin)| {
            let info = vif.port.info();
            VifStatus {
                unsaved: noted.unsaved_of(vif.config.name.as_str()),
                config: (*vif.config).clone(),
                state: info.state.into(),
                stopped_reason: info.stop_reason.filter(|_| info.state == State::Stopped),
                front_end: vif
                    .port
                    .front_end()
                    .map(|pid| pid.as_raw_nonzero().get().unsigned_abs()),
                xen: origin == VifOrigin::Xen,
                origin,
            }
        };
        Response::Vifs { vifs: part.into_iter().map(status).collect(), total }
    }
}

fn engine_options(config: &SwitchConfig) -> Options {
    let execution = match config.execution {
        config::Execution::Tasklet => Execution::Tasklet,
        config::Execution::Threads => Execution::Threads,
        config::Execution::RtThreads => Execution::RtThreads,
    };
    let realization = match config.realization {
        config::Realization::Adaptive => Realization::Adaptive,
        config::Realization::Shared => Realization::Shared,
        config::Realization::Dedicated => Realization::Dedicated,
    };
    let (schedule, workers) = (config.schedule.0, worker_count(config.workers));
    let fdb = Capacity::at_least(config.fdb_entries.get() as usize);
    Options { execution, realization, schedule, workers, fdb, ..Options::default() }
}

fn port_rules(name: &PortName, filter: &[FilterRule]) -> Result<PortRules, SwitchError> {
    let refused = |source| SwitchError::Filter { name: name.clone(), source };
    filter::port_rules(filter).map_err(refused)
}

fn refused(error: &impl std::fmt::Display, help: impl Into<String>) -> Response {
    Response::refused(error.to_string(), help.into())
}

/// The refusal of `weir vif del` for a vif that the toolstack has attached.
fn not_ours_to_remove(vif: &VifConfig) -> Response {
    let message = format!("{} is a Xen guest's interface", vif.name);
    Response::refused(message, "`xl network-detach DOMAIN DEVID` removes it".to_owned())
}

/// An error with its causes on one line, and its help.
fn failed(error: &SwitchError) -> Response {
    Response::refused(with_causes(error), error.help().map(|help| help.to_string()))
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.on_demand.end();
        self.loops.end();
        let xen = self.xen.get_mut().unwrap_or_else(|e| e.into_inner()).take();
        drop(xen);
        let mut ports = std::mem::take(&mut *self.ports());
        if let Some(overlay) = ports.overlay.take() {
            self.unplug_overlay(overlay);
        }
        self.unplug_gateways(std::mem::take(&mut ports.gateways));
        for uplink in &ports.uplinks {
            uplink.port.stop(&self.engine, uplink.id);
            self.engine.remove_port(uplink.id);
        }
        // A session that does not end is left behind, because the process is about to exit.
        self.sessions.end();
        self.manager.end();
        self.hands.remove_together(ports.vifs.drain(..).flat_map(Vif::into_listeners));
        if weir_foreign::is_left_to_exit() {
            // A port has cells that look at each thread there has been when they are dropped.
            self.engine.halt();
            std::mem::forget(Arc::clone(&self.engine));
        }
    }
}

#[cfg(test)]
mod tests;
