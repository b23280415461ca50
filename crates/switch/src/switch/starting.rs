//! The start of a switch, alone or beside another one that is about to stop.

use std::io;
use std::sync::{Arc, PoisonError, mpsc};
use std::thread;

use weir_config::{Config, PortName, SwitchConfig, VifConfig};
use weir_engine::Options;
use weir_limits::HELPER_SOCKETS_TOGETHER_MAX;

use super::settings::{Wanted, not_set, passes_nothing};
use super::{Devices, Keeping, Meeting, Plugged, Switch, SwitchError, bond, engine_options};
use crate::helper::Hands;
use crate::manager;
use crate::unix_socket;
use crate::upgrade::with_causes;

impl Switch {
    /// Starts everything in `config`, or nothing.
    pub fn start(config: &Config) -> Result<Arc<Self>, SwitchError> {
        let keeping = Keeping::take(config, &Hands::Own)?;
        let devices = Devices::open(config, &keeping)?;
        Self::start_with(config, devices, Hands::Own, keeping)
    }

    /// As [`start`](Self::start), with open devices, `hands` for privileged work, and the state that another weir has
    /// left.
    pub fn start_with(
        config: &Config,
        devices: Devices,
        hands: Hands,
        keeping: Keeping,
    ) -> Result<Arc<Self>, SwitchError> {
        hands.restore_left_over(&config.switch.control);
        let switch = Self::without_ports(config, hands, keeping)?;
        switch.filled(config, devices, false)
    }

    /// As [`start_with`](Self::start_with), beside another weir that runs until `wait` returns. Until then its state
    /// is not touched.
    pub fn start_beside(
        config: &Config,
        devices: Devices,
        hands: Hands,
        keeping: Keeping,
        wait: impl FnOnce() -> io::Result<()>,
    ) -> Result<Arc<Self>, SwitchError> {
        let switch = Self::without_ports(config, hands, keeping)?;
        wait().map_err(SwitchError::Start)?;
        switch.keeper.take_over()?;
        switch.hands.take_place(&config.switch.control);
        switch.filled(config, devices, true)
    }

    /// Starts everything except the ports.
    fn without_ports(
        config: &Config,
        hands: Hands,
        keeping: Keeping,
    ) -> Result<Arc<Self>, SwitchError> {
        let switch = Self::kept_with(
            Options { held: keeping.has_taken(), ..engine_options(&config.switch) },
            config.switch.latency_budget,
            config.switch.control.clone(),
            hands.clone(),
            keeping,
            config.networks.clone(),
        )?;
        switch.replace_groups(Arc::new(config.groups.clone()));
        switch.replace_templates(Arc::new(config.templates.clone()));
        unix_socket::allow_links(config.switch.allow_symlinks);
        let host = manager::Host { hands, ..manager::Host::default() };
        switch.manager.place(config.switch.placement, host);
        Ok(switch)
    }

    /// As [`start_with`](Self::start_with), for a simulated Xen.
    #[cfg(test)]
    pub(super) fn start_without_xen(
        config: &Config,
        devices: Devices,
        keeping: Keeping,
    ) -> Result<Arc<Self>, SwitchError> {
        let switch = Self::without_ports(config, Hands::Own, keeping)?;
        switch.fill(config, devices, false)?;
        Ok(switch)
    }

    /// Adds all ports. If that fails, the state at the keeper stays as it is.
    ///
    /// A switch that takes another one's place (`takes_over`) leaves out an interface whose socket cannot be made: the
    /// other weir has stopped, and the program of before would meet the same socket. Any switch does so where another
    /// weir has left the socket: whoever owns its directory could keep all interfaces out.
    fn filled(
        self: Arc<Self>,
        config: &Config,
        devices: Devices,
        takes_over: bool,
    ) -> Result<Arc<Self>, SwitchError> {
        let xen = || config.xen.as_ref().map_or(Ok(()), |xen| self.start_xen(xen));
        match self.fill(config, devices, takes_over).and_then(|()| xen()) {
            Ok(()) => {
                self.on_demand.is_for(&self);
                self.look_on_demand();
                Ok(self)
            }
            Err(error) => {
                self.leave_for_good();
                Err(error)
            }
        }
    }

    fn fill(
        self: &Arc<Self>,
        config: &Config,
        mut devices: Devices,
        takes_over: bool,
    ) -> Result<(), SwitchError> {
        let noted = self.keeper.read_noted()?;
        let wanted = Wanted::of(config, noted);
        let switch = match wanted.config {
            Some(config) => self.takes_settings(*config),
            None => config.switch.clone(),
        };
        self.keeper.start()?;
        // A switch is filled once.
        let _ = self.bonded.set(bond::bonded(&wanted.uplinks));
        for uplink in &wanted.uplinks {
            // The device of an uplink that the file does not name may be gone.
            if let Some(device) = devices.uplinks.remove(&uplink.name) {
                self.plug_in(uplink, device)?;
            }
        }
        if let Some(sockets) = devices.overlay {
            self.plug_in_overlay(sockets, devices.evpn)?;
        }
        self.plug_in_gateways(devices.leases, devices.taps)?;
        let (plugged, left_out) = self.plug_all(&wanted.vifs, takes_over)?;
        self.begin(plugged)?;
        self.settle_mirrors();
        let added: Vec<_> = wanted.added.iter().map(|vif| vif.name.clone()).collect();
        self.add_noted(noted, wanted.added);
        self.keeper.end_taking();
        self.engine.open();
        self.comes_from(config, switch, &added);
        // No command has removed them.
        if let Some(source) = &mut *self.source() {
            source.listed.vifs.retain(|vif| !left_out.contains(&vif.name));
        }
        wanted.held.iter().for_each(|held| passes_nothing(&held.port, &held.why));
        wanted.not_set.iter().for_each(|why| not_set(why));
        let unsaved = self.unsaved();
        if !unsaved.is_empty() {
            tracing::info!(unsaved = unsaved.join(", "), "holds beside what the file says");
        }
        self.note();
        Ok(())
    }

    /// Takes up the settings that belong to no port, before any port exists. Returns the switch's own.
    fn takes_settings(&self, config: Config) -> SwitchConfig {
        let Config { switch, groups, templates, .. } = config;
        self.replace_groups(Arc::new(groups));
        self.replace_templates(Arc::new(templates));
        self.engine.set_schedule(switch.schedule.0);
        self.place(switch.placement);
        *self.latency_budget.lock().unwrap_or_else(PoisonError::into_inner) = switch.latency_budget;
        switch
    }

    /// Makes ports of all interfaces. Sockets of later interfaces are made while earlier interfaces become ports.
    /// The names of interfaces that are left out come beside the ports.
    fn plug_all(
        &self,
        vifs: &[VifConfig],
        takes_over: bool,
    ) -> Result<(Vec<Plugged>, Vec<PortName>), SwitchError> {
        let mut left_out = Vec::new();
        let together = || vifs.chunks(HELPER_SOCKETS_TOGETHER_MAX);
        thread::scope(|scope| {
            let (give, ahead) = mpsc::sync_channel(1);
            let make = move || together().all(|vifs| give.send(self.bind_ahead(vifs)).is_ok());
            // Without the thread, each interface asks for its own socket.
            let _ = thread::Builder::new().name("weir-ahead".into()).spawn_scoped(scope, make);
            let mut plugged = Vec::with_capacity(vifs.len());
            for vifs in together() {
                let mut ahead = ahead.recv().unwrap_or_default();
                for vif in vifs {
                    let ahead = ahead.remove(&vif.socket);
                    let may_miss = takes_over || self.keeper.has_listener(&vif.name);
                    match self.prepare(vif.clone(), Meeting::Configured, &[], ahead) {
                        Err(error @ SwitchError::Socket { .. }) if may_miss => {
                            let (vif, why) = (&vif.name, with_causes(&error));
                            tracing::error!(%vif, why, "not taken up: `weir reload` adds it as the file says");
                            left_out.push(vif.clone());
                        }
                        prepared => plugged.push(self.plug_prepared(prepared?)?),
                    }
                }
            }
            Ok((plugged, left_out))
        })
    }
}
