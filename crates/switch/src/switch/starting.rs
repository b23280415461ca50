//! How a switch comes up: alone, or beside another one until that has stopped.

use std::io;
use std::sync::Arc;

use weir_config::Config;
use weir_engine::Options;

use super::{Devices, Keeping, Meeting, Switch, SwitchError, engine_options};
use crate::helper::Hands;
use crate::manager;

impl Switch {
    /// Starts everything in `config`, or nothing.
    pub fn start(config: &Config) -> Result<Arc<Self>, SwitchError> {
        let keeping = Keeping::take(config, &Hands::Own)?;
        let devices = Devices::open(config, &keeping)?;
        Self::start_with(config, devices, Hands::Own, keeping)
    }

    /// The same with open devices, `hands` for privileged work, and what another weir has left.
    pub fn start_with(
        config: &Config,
        devices: Devices,
        hands: Hands,
        keeping: Keeping,
    ) -> Result<Arc<Self>, SwitchError> {
        hands.restore_left_over(&config.switch.control);
        let switch = Self::without_ports(config, hands, keeping)?;
        switch.filled(config, devices)
    }

    /// The same beside another weir, which is there until `wait` returns. Until then nothing of its is touched.
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
        switch.filled(config, devices)
    }

    /// All but ports.
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
        let host = manager::Host { hands, ..manager::Host::default() };
        switch.manager.place(config.switch.placement, host);
        Ok(switch)
    }

    /// With all of its ports; one that cannot have them leaves what is kept as it is.
    fn filled(
        self: Arc<Self>,
        config: &Config,
        devices: Devices,
    ) -> Result<Arc<Self>, SwitchError> {
        match self.fill(config, devices) {
            Ok(()) => Ok(self),
            Err(error) => {
                self.leave_for_good();
                Err(error)
            }
        }
    }

    fn fill(self: &Arc<Self>, config: &Config, devices: Devices) -> Result<(), SwitchError> {
        self.keeper.start()?;
        for (uplink, device) in config.uplinks.iter().zip(devices.uplinks) {
            self.plug_in(uplink, device)?;
        }
        if let Some(sockets) = devices.overlay {
            self.plug_in_overlay(sockets, devices.evpn)?;
        }
        for vif in &config.vifs {
            self.add_vif(vif.clone(), Meeting::Configured)?;
        }
        self.add_noted(self.keeper.noted());
        self.keeper.end_taking();
        self.engine.open();
        self.comes_from(config);
        match &config.xen {
            Some(xen) => self.start_xen(xen),
            None => Ok(()),
        }
    }
}
