//! Xen guests: the toolstack adds and removes their vifs by writing into xenstore.

use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, PoisonError, Weak};

use weir_config::{Mtu, NetworkError, SocketPath, ValueError, VifConfig, XenConfig};
use weir_engine::guest::GuestPort;
use weir_engine::logs::Logs;
use weir_limits::PORTS_MAX;
use weir_port_xen::{Board, Manager, Services, XenOptions, XenPort};
use weir_wire::Mac;
use weir_xen::store::{Client, StoreError};
use weir_xen::vif::{Credit, KeyError, VifId, VifKeys, channel_socket, domain_name};
use weir_xen::{Hypervisor, Xen};

use super::settings::{closed, passes_nothing};
use super::{Link, Seen, Switch, SwitchError, Vif, port_rules};
use crate::control::Response;
use crate::manager::{AgentSocket, NewVif};

/// This path exists while the kernel's back end is loaded.
const KERNEL_BACK_END: &str = "/sys/bus/xen-backend/drivers/vif";

/// The reason why a vif cannot be served.
#[derive(Debug, thiserror::Error)]
enum AttachError {
    #[error(transparent)]
    Value(#[from] ValueError),
    #[error("its limit is not understood: {0}")]
    Limit(#[from] KeyError),
    #[error("its limit cannot be kept: rate: {0}")]
    Rate(ValueError),
    #[error("its `mtu` cannot be kept: {0}")]
    Mtu(ValueError),
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error("weir cannot read the name of its domain, which [xen-vif] needs")]
    NoName,
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("a port called {0} exists already")]
    Name(VifId),
    #[error("the switch already has {PORTS_MAX} ports, the maximum")]
    Full,
    #[error(transparent)]
    Switch(#[from] SwitchError),
}

/// Messages about a vif that is not served: weir looks for it again whenever any vif's keys change, and a guest changes
/// them as often as it likes.
#[derive(Clone, Copy)]
enum Said {
    Ignored,
    Refused,
    NoChannel,
    Channel,
    Mtu,
}

/// The switch's side of the thread that follows xenstore.
struct Plug<S> {
    switch: Weak<Switch>,
    config: XenConfig,
    /// A client that finds the channels of guests.
    client: Client<S>,
    logs: Logs<5>,
}

impl<S: Read + Write> Plug<S> {
    /// The name of a vif's domain, with the vif's number in it. `None` if no domain has settings of its own.
    fn guest(&mut self, vif: VifId) -> Result<Option<String>, AttachError> {
        if self.config.own.is_empty() {
            return Ok(None);
        }
        let name = domain_name(&mut self.client, vif.domain)?.ok_or(AttachError::NoName)?;
        Ok(Some(format!("{name}.{}", vif.handle)))
    }

    /// Tells the guest the MTU of its configuration (`xen/include/public/io/netif.h`), in place of a hotplug script.
    fn tell_mtu(&mut self, vif: VifId, keys: &VifKeys) {
        let Some(mtu) = keys.mtu else { return };
        let path = format!("{}/mtu", keys.frontend);
        if let Err(error) = self.client.write(&path, mtu.to_string().as_bytes()) {
            self.logs.say(Said::Mtu as usize, |unsaid| {
                tracing::warn!(%vif, %error, unsaid, "the guest is not told its MTU");
            });
        }
    }

    /// The socket for the agent in a guest. The toolstack makes channels before vifs.
    fn agent(&mut self, vif: VifId) -> Option<AgentSocket> {
        let name = self.config.agent_channel.as_ref()?.as_str();
        let socket = match channel_socket(&mut self.client, vif.domain, name) {
            Ok(Some(socket)) => socket,
            Ok(None) => {
                self.logs.say(Said::NoChannel as usize, |unsaid| {
                    tracing::info!(%vif, name, unsaid, "no agent: the guest has no channel with a socket");
                });
                return None;
            }
            Err(error) => {
                self.logs.say(Said::Channel as usize, |unsaid| {
                    tracing::error!(%vif, %error, unsaid, "no agent: cannot look for its channel");
                });
                return None;
            }
        };
        match socket.parse() {
            Ok(path) => Some(AgentSocket { path, _kept: None, bound: None }),
            Err(error) => {
                self.logs.say(Said::Channel as usize, |unsaid| {
                    let said = "no agent: its channel's socket path is invalid";
                    tracing::error!(%vif, socket, %error, unsaid, "{said}");
                });
                None
            }
        }
    }
}

impl<S: Read + Write + Send> Board for Plug<S> {
    fn attach(&mut self, vif: VifId, keys: &VifKeys, services: &Services) -> Option<Arc<XenPort>> {
        if !self.config.takes(keys.bridge.as_deref()) {
            self.logs.say(Said::Ignored as usize, |unsaid| {
                let said = "ignored: the interface is for another bridge";
                tracing::info!(%vif, bridge = keys.bridge, unsaid, "{said}");
            });
            return None;
        }
        // A switch that is ending accepts no more vifs.
        let switch = self.switch.upgrade()?;
        let agent = self.agent(vif);
        let guest = self.guest(vif);
        let attached = guest.and_then(|guest| {
            switch.attach(vif, guest.as_deref(), keys, &self.config, agent, services)
        });
        match attached {
            Ok(port) => {
                self.tell_mtu(vif, keys);
                Some(port)
            }
            Err(error) => {
                self.logs.say(Said::Refused as usize, |unsaid| {
                    tracing::error!(%vif, %error, unsaid, "cannot serve the interface");
                });
                None
            }
        }
    }

    fn detach(&mut self, vif: VifId, port: &XenPort) {
        if let Some(switch) = self.switch.upgrade() {
            switch.ports().vifs.retain(|there| there.port.id() != port.id());
            if let Some(source) = &mut *switch.source() {
                source.listed.xen.retain(|it| it.name.as_str() != vif.to_string());
            }
            switch.manager.remove_vif(port.id());
            switch.loops.remove(port.id());
            switch.owners.remove(port.id());
            switch.served.remove(port.id());
            switch.engine.remove_port(port.id());
            tracing::info!(%vif, "interface removed");
        }
    }
}

impl Switch {
    /// Begins to serve the vifs of this domain.
    ///
    /// # Errors
    /// [`SwitchError::Xen`] if this machine does not run Xen, or weir may not use it.
    pub(super) fn start_xen(self: &Arc<Self>, config: &XenConfig) -> Result<(), SwitchError> {
        let failed = |device: &'static str| {
            move |source: io::Error| SwitchError::Xen {
                device,
                help: help(&source),
                source: Box::new(source),
            }
        };
        let open = || Client::open().map_err(failed("/dev/xen/xenbus"));
        let channels = open()?;
        // Each connection opens this file, so an error is found now.
        drop(open()?);
        let hypervisor = Xen::open().map_err(failed("/dev/xen/gntdev"))?;
        // Each channel opens this file, so an error is found now.
        let evtchn = OpenOptions::new().read(true).write(true).open("/dev/xen/evtchn");
        evtchn.map_err(failed("/dev/xen/evtchn"))?;
        if Path::new(KERNEL_BACK_END).exists() {
            tracing::warn!(
                "the kernel's xen-netback is loaded and serves the same vifs: unload it"
            );
        }
        self.start_xen_on(config, Arc::new(hypervisor), Client::open, channels)
    }

    /// As [`start_xen`](Self::start_xen), on any hypervisor: `connect` makes clients that follow vifs, one after the
    /// other, and `channels` finds channels.
    pub(crate) fn start_xen_on<S>(
        self: &Arc<Self>,
        config: &XenConfig,
        hypervisor: Arc<dyn Hypervisor>,
        connect: impl Fn() -> io::Result<Client<S>> + Send + 'static,
        channels: Client<S>,
    ) -> Result<(), SwitchError>
    where
        S: Read + Write + AsFd + Send + 'static,
    {
        let plug = Plug {
            switch: Arc::downgrade(self),
            config: config.clone(),
            client: channels,
            logs: Logs::default(),
        };
        let engine = Arc::clone(&self.engine);
        let split = config.split_event_channels;
        let manager =
            Manager::start(engine, hypervisor, connect, plug, split).map_err(|source| {
                SwitchError::Xen { device: "xenstore", help: None, source: Box::new(source) }
            })?;
        *self.xen.lock().unwrap_or_else(PoisonError::into_inner) = Some(manager);
        Ok(())
    }

    /// Adds a vif that the toolstack has attached.
    fn attach(
        &self,
        vif: VifId,
        guest: Option<&str>,
        keys: &VifKeys,
        xen: &XenConfig,
        agent: Option<AgentSocket>,
        services: &Services,
    ) -> Result<Arc<XenPort>, AttachError> {
        let frontend: SocketPath = keys.frontend.parse()?;
        let mac = Mac(keys.mac).to_string().parse()?;
        let mut config = xen.vif(guest, vif.to_string().parse()?, frontend, mac);
        if let Some(Credit { bytes, interval_us }) = keys.credit()? {
            let limited = config.sharing.with_credit(bytes, interval_us);
            config.sharing = limited.map_err(AttachError::Rate)?;
        }
        if let Some(mtu) = keys.mtu {
            config.mtu = Some(Mtu::try_from(u64::from(mtu)).map_err(AttachError::Mtu)?);
        }
        self.networks.check_vif(&config)?;
        self.networks.settle(&mut config);
        {
            let ports = self.ports();
            if ports.len() >= PORTS_MAX {
                return Err(AttachError::Full);
            }
            let mut names = ports.vifs.iter().map(|vif| &vif.config.name);
            if names.any(|name| *name == config.name) || ports.is_outward(&config.name) {
                return Err(AttachError::Name(vif));
            }
        }
        let config = self.with_settings(config);
        Ok(self.plug_vif(vif, config, agent, services)?)
    }

    /// Applies the run-time settings that a vif had under another weir. If that fails, the vif passes no frames.
    fn with_settings(&self, config: VifConfig) -> VifConfig {
        let left = {
            let mut source = self.source();
            let Some(source) = &mut *source else { return config };
            source.listed.xen.push(config.clone());
            source.listed.left.remove(config.name.as_str())
        };
        let Some(settings) = left else { return config };
        let refused = match settings.onto(&config) {
            Err(error) => error.to_string(),
            Ok(mut set) => {
                self.networks.settle(&mut set);
                let keeper = self.keeper_socket();
                let refusal = self.refusal(&self.ports(), keeper.as_ref(), None, &set);
                match refusal {
                    Some(Response::Error { message, .. }) => message,
                    _ => return set,
                }
            }
        };
        passes_nothing(config.name.as_str(), &refused);
        closed(&config)
    }

    fn plug_vif(
        &self,
        vif: VifId,
        config: VifConfig,
        agent: Option<AgentSocket>,
        services: &Services,
    ) -> Result<Arc<XenPort>, SwitchError> {
        let name = config.name.clone();
        let rules = port_rules(&name, &config.filter)?;
        let options =
            XenOptions { vif, queue_pairs: config.queues.get().into(), calls: self.calls(&config) };
        let guard = config.guarding.guard(None);
        let begins = self.port_settings(&config, &rules, guard.as_ref());
        let (id, port) = self
            .engine
            .add_port_with(config.port_config(&self.networks), begins, |id, counters| {
                services.port(id, counters, &options)
            })
            .map_err(|source| SwitchError::Port { name: name.clone(), source })?;
        self.note_station(id, &config);
        tracing::info!(vif = %name, port = %id, frontend = %config.socket, "interface added");
        self.loops.add(id, &name, false, self.is_open(&config));
        self.manager.add_vifs([NewVif {
            name,
            port: Arc::clone(&port) as _,
            agent: agent.clone(),
            settings: self.vif_settings(&config),
        }]);
        let (link, from_file) = (Link::Xen, false);
        let seen = Seen { config: config.into(), port: Arc::clone(&port) as _, rules, guard };
        self.ports().vifs.push(Vif { seen, agent, link, from_file, set: Default::default() });
        self.settle_mirrors();
        Ok(port)
    }
}

/// Advice for the case that Xen's devices cannot be used.
fn help(error: &io::Error) -> Option<String> {
    let text = match error.kind() {
        io::ErrorKind::NotFound => {
            "weir serves Xen guests in dom0, or in a driver domain: load xen-gntdev and xen-evtchn there, and \
             mount xenfs; or take [xen] out of the configuration"
        }
        io::ErrorKind::PermissionDenied => "Xen's devices are root's: run weir as root",
        _ => return None,
    };
    Some(text.into())
}

/// The refusal of `weir vif add --may-exist` for a vif that the toolstack has attached.
pub(super) fn not_ours_to_put(vif: &VifConfig) -> Response {
    let message = format!("{} is a Xen guest's interface", vif.name);
    Response::refused(message, format!("`weir vif set {} KEY=VALUE` changes it", vif.name))
}

/// Checks that a vif that the toolstack has attached can change from `now` to `wanted`.
pub(super) fn may_become(now: &VifConfig, wanted: &VifConfig) -> Result<(), Box<Response>> {
    let name = &now.name;
    if now.queues != wanted.queues {
        let message = format!(
            "{name} is a Xen guest's interface: its queues were offered when it was attached"
        );
        let help = "set `queues` in [xen] for those that are attached later".to_owned();
        return Err(Response::refused(message, help).into());
    }
    match now.keys_not_of_xen(wanted).as_slice() {
        [] => Ok(()),
        [(key, instead), ..] => {
            let message =
                format!("{name} is a Xen guest's interface, which has no `{key}` of weir's");
            Err(Response::refused(message, (*instead).to_owned()).into())
        }
    }
}

#[cfg(test)]
mod tests;
