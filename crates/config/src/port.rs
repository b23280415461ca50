//! The part of a port's configuration that the fabric enforces (VLANs and source addresses), and the guest's device.

use weir_engine::guest::GuestDevice;
use weir_fabric::{MacCheck, PortConfig, VlanSet};

use super::values::{TrunkVids, VlanMode};
use super::{GbpPeers, Networks, UplinkConfig, VifConfig};

impl VifConfig {
    /// The fabric's settings of the interface's port. Where no MAC address is configured, the first
    /// one the guest sends from is the only one it may use.
    pub fn port_config(&self, networks: &Networks) -> PortConfig {
        let default = PortConfig::vif();
        PortConfig {
            vlan: self.vlan.or_default(default.vlan, networks),
            tags: self.tag_protocol.into(),
            mac_check: match (self.mac_check, self.mac) {
                (false, _) => MacCheck::Off,
                (true, Some(mac)) => MacCheck::Pinned(mac.into()),
                (true, None) => MacCheck::First,
            },
            learn_max: default.learn_max,
            uplink: default.uplink,
            isolated: self.is_isolated(networks),
            multicast_router: self.multicast_router,
        }
    }

    /// The interface's device, for front ends that ask for it.
    pub fn device(&self) -> GuestDevice {
        GuestDevice {
            mac: weir_wire::Mac::from(self.mac_or_derived()).0,
            mtu: self.mtu().get(),
            access_platform: self.access_platform,
        }
    }
}

impl VifConfig {
    /// True if the interface cannot reach other isolated interfaces. The default is the network's.
    pub fn is_isolated(&self, networks: &Networks) -> bool {
        self.isolated.unwrap_or_else(|| networks.isolates(&self.vlan))
    }

    /// True if isolated interfaces of some other hosts are among those that the interface cannot reach.
    pub fn is_isolated_over_hosts(&self, networks: &Networks) -> bool {
        let tells = networks.overlay.as_ref().is_some_and(|it| it.gbp != GbpPeers::None);
        tells && self.is_isolated(networks)
    }
}

impl UplinkConfig {
    /// The fabric's settings of the uplink's port.
    pub fn port_config(&self, networks: &Networks) -> PortConfig {
        let default = PortConfig::uplink();
        PortConfig {
            vlan: self.vlan.or_default(default.vlan.clone(), networks),
            tags: self.tag_protocol.into(),
            ..default
        }
    }
}

impl VlanMode {
    /// The fabric's VLAN mode, or `default` if no mode is configured. A port of a network that does not exist is a
    /// member of no VLAN.
    fn or_default(
        &self,
        default: weir_fabric::VlanMode,
        networks: &Networks,
    ) -> weir_fabric::VlanMode {
        let nothing = || weir_fabric::VlanMode::Trunk {
            native: None,
            allowed: VlanSet::Only([].into_iter().collect()),
        };
        match self {
            Self::Unset => default,
            // A mirror gets copies without the fabric, and the fabric takes no frames from a mirror.
            Self::Mirror(_) => nothing(),
            Self::Network(name) => {
                networks.vid(name).map_or_else(nothing, weir_fabric::VlanMode::Access)
            }
            Self::Access(vid) => weir_fabric::VlanMode::Access((*vid).into()),
            Self::Trunk { allowed, native } => weir_fabric::VlanMode::Trunk {
                native: native.map(Into::into),
                allowed: match allowed {
                    TrunkVids::All => VlanSet::All,
                    TrunkVids::Only(vids) => {
                        VlanSet::Only(vids.iter().copied().map(Into::into).collect())
                    }
                },
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vif() -> VifConfig {
        VifConfig::new("web0".parse().unwrap(), "/run/web0.sock".parse().unwrap())
    }

    fn fabric_vid(vid: u16) -> weir_fabric::Vid {
        weir_fabric::Vid::new(vid).unwrap()
    }

    #[test]
    fn nothing_configured_is_the_fabrics_default() {
        assert_eq!(vif().port_config(&Networks::default()), PortConfig::vif());
    }

    #[test]
    fn mac_is_pinned_when_configured_and_free_when_unchecked() {
        let mut vif = vif();
        vif.mac = Some("52:54:00:12:34:56".parse().unwrap());
        let pinned = MacCheck::Pinned("52:54:00:12:34:56".parse().unwrap());
        assert_eq!(vif.port_config(&Networks::default()).mac_check, pinned);
        vif.mac_check = false;
        assert_eq!(vif.port_config(&Networks::default()).mac_check, MacCheck::Off);
    }

    #[test]
    fn vlans_keep_their_meaning() {
        let mut vif = vif();
        vif.vlan = VlanMode::Access(10.try_into().unwrap());
        assert_eq!(
            vif.port_config(&Networks::default()).vlan,
            weir_fabric::VlanMode::Access(fabric_vid(10))
        );
        let vids = [10, 20].map(|vid| vid.try_into().unwrap());
        vif.vlan = VlanMode::Trunk {
            allowed: TrunkVids::Only(vids.into()),
            native: Some(5.try_into().unwrap()),
        };
        let expected = weir_fabric::VlanMode::Trunk {
            native: Some(fabric_vid(5)),
            allowed: VlanSet::Only([10, 20].map(fabric_vid).into_iter().collect()),
        };
        assert_eq!(vif.port_config(&Networks::default()).vlan, expected);
        assert_eq!(vif.port_config(&Networks::default()).tags, weir_fabric::TagProtocol::Dot1q);
        vif.tag_protocol = "802.1ad".parse().unwrap();
        assert_eq!(vif.port_config(&Networks::default()).tags, weir_fabric::TagProtocol::Dot1ad);
    }
}
