//! The devices that zebra watches: for each network a bridge with a VXLAN device and a TAP. No frame ever passes them.
//!
//! | device | for VNI 100 | purpose for zebra |
//! |---|---|---|
//! | bridge | `weirb100` | has the network's entries |
//! | VXLAN | `weirv100` | shows the VNI and this host's address, and gets the entries of addresses behind other hosts |
//! | TAP | `weirt100` | gets the entries of stations here; when weir dies it goes, with all its entries |
//!
//! The kernel's VXLAN device opens its own UDP port. Its port differs from the overlay's, and its
//! bridge port is disabled: a datagram to that port reaches nobody.

use std::io;
use std::net::IpAddr;

use netlink_packet_core::{DefaultNla, NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoBridgePort, InfoData, InfoKind, InfoPortData,
    InfoPortKind, InfoVxlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage, LinkProtoInfoBridge,
};
use rustix::io::Errno;
use weir_limits::{EVPN_DEVICE_PORT, EVPN_DEVICE_PORTS};

use crate::error::EvpnError;
use crate::links::{Message, Socket};

/// `IFLA_BRPORT_STATE` of `linux/if_link.h`; 0 is `BR_STATE_DISABLED`.
const PORT_STATE: u16 = 1;

/// The numbers of a network's devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Devices {
    /// The bridge.
    pub bridge: u32,
    /// The VXLAN device.
    pub vxlan: u32,
    /// The TAP.
    pub tap: u32,
}

/// The name of a network's bridge.
pub fn bridge_name(vni: u32) -> String {
    format!("weirb{vni}")
}

/// The name of the network's VXLAN device.
pub fn vxlan_name(vni: u32) -> String {
    format!("weirv{vni}")
}

/// The name of the network's TAP, which is open as long as weir runs.
pub fn tap_name(vni: u32) -> String {
    format!("weirt{vni}")
}

/// Makes devices in the calling thread's network namespace, and removes them. The work needs
/// `CAP_NET_ADMIN`.
#[derive(Debug)]
pub struct Objects {
    socket: Socket,
    /// The UDP port of VXLAN devices, once one was free.
    port: Option<u16>,
    /// The VNI and the name of each VXLAN device that was there at the first network.
    there: Option<Vec<(u32, String)>>,
}

impl Objects {
    /// Opens a socket to the kernel.
    ///
    /// # Errors
    /// There is no socket.
    pub fn open() -> Result<Self, EvpnError> {
        let socket = Socket::open(0).map_err(EvpnError::Socket)?;
        Ok(Self { socket, port: None, there: None })
    }

    /// Makes the devices of a network whose TAP is open, or continues with those that another weir has left. `local` is
    /// this host's address in the underlay.
    ///
    /// # Errors
    /// [`EvpnError`]; then no device is left but the TAP.
    pub fn make(&mut self, vni: u32, local: IpAddr) -> Result<Devices, EvpnError> {
        if let Some(name) = self.other_with(vni).map_err(EvpnError::Read)? {
            return Err(EvpnError::Taken { vni, name });
        }
        let made = self.try_make(vni, local).or_else(|_| {
            // The helper of a weir that has just died may have removed them meanwhile.
            self.remove(vni);
            self.try_make(vni, local)
        });
        if made.is_err() {
            self.remove(vni);
        }
        made
    }

    fn try_make(&mut self, vni: u32, local: IpAddr) -> Result<Devices, EvpnError> {
        let (bridge, vxlan, tap) = (bridge_name(vni), vxlan_name(vni), tap_name(vni));
        let failed = |name: &str, step| {
            let name = name.to_owned();
            move |source| EvpnError::Device { name, step, source }
        };
        let bridge_index = match self.find(&bridge).map_err(failed(&bridge, "look for it"))? {
            Some(link) if link.kind() == Some(InfoKind::Bridge) => link.index(),
            found => self
                .make_anew(found, &bridge, vec![LinkInfo::Kind(InfoKind::Bridge)])
                .map_err(failed(&bridge, "make it"))?,
        };
        self.set(bridge_index, Vec::new()).map_err(failed(&bridge, "bring it up"))?;
        let vxlan_index = match self.find(&vxlan).map_err(failed(&vxlan, "look for it"))? {
            Some(link) if link.carries(vni, local) => link.index(),
            found => self.make_vxlan(found, vni, local).map_err(failed(&vxlan, "make it"))?,
        };
        let tap_index = self.find(&tap).map_err(failed(&tap, "look for it"))?;
        let tap_index = tap_index.map(|link| link.index()).ok_or_else(|| EvpnError::Device {
            name: tap.clone(),
            step: "look for it",
            source: Errno::NODEV.into(),
        })?;
        for (name, index, port) in [
            (&vxlan, vxlan_index, InfoBridgePort::NeighSupress(true)),
            (&tap, tap_index, InfoBridgePort::UnicastFlood(false)),
        ] {
            self.set(index, vec![LinkAttribute::Controller(bridge_index)])
                .map_err(failed(name, "put it into its bridge"))?;
            // Entries there are made by zebra and weir, and never learned from frames.
            self.set(index, vec![as_port(vec![InfoBridgePort::Learning(false), port])])
                .map_err(failed(name, "set up its port of the bridge"))?;
        }
        self.disable(vxlan_index).map_err(failed(&vxlan, "keep frames from its bridge"))?;
        Ok(Devices { bridge: bridge_index, vxlan: vxlan_index, tap: tap_index })
    }

    /// Takes a network's VXLAN device down and up: for zebra and bgpd its VNI disappears and comes
    /// back.
    ///
    /// # Errors
    /// `ENODEV`: there is no such device.
    pub fn renew(&mut self, vni: u32) -> io::Result<()> {
        let link = self.find(&vxlan_name(vni))?.ok_or(Errno::NODEV)?;
        let mut down = LinkMessage::default();
        down.header.index = link.index();
        down.header.change_mask = LinkFlags::Up;
        self.socket.request(Message::NewLink(down), 0)?;
        self.set(link.index(), Vec::new())?;
        self.disable(link.index())
    }

    /// Removes a network's devices except the TAP, which goes by itself.
    pub fn remove(&mut self, vni: u32) {
        for name in [vxlan_name(vni), bridge_name(vni)] {
            if let Ok(Some(link)) = self.find(&name) {
                let _ = self.delete(link.index());
            }
        }
    }

    /// Removes a network's devices if no weir has its TAP open; `true` if so.
    pub fn remove_left_over(&mut self, vni: u32) -> bool {
        let is_left = matches!(self.find(&tap_name(vni)), Ok(None));
        if is_left {
            self.remove(vni);
        }
        is_left
    }

    /// The number of a network's TAP.
    pub fn tap(&mut self, vni: u32) -> io::Result<Option<u32>> {
        Ok(self.find(&tap_name(vni))?.map(|link| link.index()))
    }

    /// The number of a network's bridge.
    pub fn bridge(&mut self, vni: u32) -> io::Result<Option<u32>> {
        Ok(self.find(&bridge_name(vni))?.map(|link| link.index()))
    }

    fn find(&mut self, name: &str) -> io::Result<Option<Link>> {
        let mut question = LinkMessage::default();
        question.attributes.push(LinkAttribute::IfName(name.into()));
        let mut found = None;
        let asked = self.socket.ask(Message::GetLink(question), |answer| {
            if let Message::NewLink(link) = answer {
                found = Some(Link(link));
            }
        });
        match asked {
            Ok(()) => Ok(found),
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NODEV) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The name of another VXLAN device with this VNI. All devices are read once: there can be thousands of networks.
    fn other_with(&mut self, vni: u32) -> io::Result<Option<String>> {
        let there = match self.there.take() {
            Some(there) => there,
            None => self.vxlan_devices()?,
        };
        let own = vxlan_name(vni);
        let other = there.iter().find(|(of, name)| *of == vni && *name != own);
        let other = other.map(|(_, name)| name.clone());
        self.there = Some(there);
        Ok(other)
    }

    fn vxlan_devices(&mut self) -> io::Result<Vec<(u32, String)>> {
        let mut found = Vec::new();
        let question = Message::GetLink(LinkMessage::default());
        self.socket.dump(question, |answer| {
            let Message::NewLink(link) = answer else { return };
            let name = link.attributes.iter().find_map(|attribute| match attribute {
                LinkAttribute::IfName(name) => Some(name.clone()),
                _ => None,
            });
            let link = Link(link);
            let vni = link.vxlan().iter().find_map(|info| match info {
                InfoVxlan::Id(vni) => Some(*vni),
                _ => None,
            });
            found.extend(vni.zip(name));
        })?;
        Ok(found)
    }

    /// Makes a device, in place of another one that may have its name, and returns its number.
    fn make_anew(
        &mut self,
        found: Option<Link>,
        name: &str,
        info: Vec<LinkInfo>,
    ) -> io::Result<u32> {
        if let Some(link) = found {
            self.delete(link.index())?;
        }
        let mut link = LinkMessage::default();
        link.attributes = vec![LinkAttribute::IfName(name.into()), LinkAttribute::LinkInfo(info)];
        self.socket.request(Message::NewLink(link), NLM_F_CREATE | NLM_F_EXCL)?;
        self.find(name)?.map(|link| link.index()).ok_or_else(|| Errno::NODEV.into())
    }

    /// Makes the VXLAN device, on the first port that is free; the next devices get the same port.
    fn make_vxlan(&mut self, mut found: Option<Link>, vni: u32, local: IpAddr) -> io::Result<u32> {
        let ports = match self.port {
            Some(port) => port..=port,
            None => EVPN_DEVICE_PORT..=EVPN_DEVICE_PORT + (EVPN_DEVICE_PORTS - 1),
        };
        let mut refused = io::Error::from(Errno::ADDRINUSE);
        for port in ports {
            let data = InfoData::Vxlan(vec![
                InfoVxlan::Id(vni),
                at(local),
                InfoVxlan::Port(port),
                InfoVxlan::Learning(false),
            ]);
            let info = vec![LinkInfo::Kind(InfoKind::Vxlan), LinkInfo::Data(data)];
            let index = self.make_anew(found.take(), &vxlan_name(vni), info)?;
            // The port is opened when the device comes up.
            match self.set(index, Vec::new()) {
                Ok(()) => {
                    self.port = Some(port);
                    return Ok(index);
                }
                Err(error) if Errno::from_io_error(&error) == Some(Errno::ADDRINUSE) => {
                    self.delete(index)?;
                    refused = error;
                }
                Err(error) => return Err(error),
            }
        }
        Err(refused)
    }

    /// Sets up a device, and brings it up. The host gets no address there: it does not belong in a tenant's network.
    fn set(&mut self, index: u32, attributes: Vec<LinkAttribute>) -> io::Result<()> {
        let mut link = LinkMessage::default();
        link.header.index = index;
        let no_address = AfSpecInet6::AddrGenMode(In6AddrGenMode::None);
        let no_address = LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet6(vec![no_address])]);
        link.attributes = vec![no_address];
        // The address mode has its own request, since a device gets its address as it comes up. A
        // host may be without IPv6.
        let _ = self.socket.request(Message::NewLink(link.clone()), 0);
        link.attributes = attributes;
        link.header.flags = LinkFlags::Up;
        link.header.change_mask = LinkFlags::Up;
        self.socket.request(Message::NewLink(link), 0)
    }

    /// Disables a device's bridge port. Disabling is the last step: other settings by `RTM_NEWLINK` enable a port again
    /// (`br_port_carrier_check`).
    fn disable(&mut self, index: u32) -> io::Result<()> {
        let mut link = LinkMessage::default();
        link.header.interface_family = AddressFamily::Bridge;
        link.header.index = index;
        let disabled = LinkProtoInfoBridge::Other(DefaultNla::new(PORT_STATE, vec![0]));
        link.attributes.push(LinkAttribute::ProtoInfoBridge(vec![disabled]));
        self.socket.request(Message::SetLink(link), 0)
    }

    fn delete(&mut self, index: u32) -> io::Result<()> {
        let mut link = LinkMessage::default();
        link.header.index = index;
        self.socket.request(Message::DelLink(link), 0)
    }
}

fn at(local: IpAddr) -> InfoVxlan {
    match local {
        IpAddr::V4(ip) => InfoVxlan::Local(ip),
        IpAddr::V6(ip) => InfoVxlan::Local6(ip),
    }
}

fn as_port(port: Vec<InfoBridgePort>) -> LinkAttribute {
    LinkAttribute::LinkInfo(vec![
        LinkInfo::PortKind(InfoPortKind::Bridge),
        LinkInfo::PortData(InfoPortData::BridgePort(port)),
    ])
}

/// A device that exists.
struct Link(LinkMessage);

impl Link {
    fn index(&self) -> u32 {
        self.0.header.index
    }

    fn info(&self) -> impl Iterator<Item = &LinkInfo> {
        let infos = self.0.attributes.iter().filter_map(|attribute| match attribute {
            LinkAttribute::LinkInfo(info) => Some(info),
            _ => None,
        });
        infos.flatten()
    }

    fn kind(&self) -> Option<InfoKind> {
        self.info().find_map(|info| match info {
            LinkInfo::Kind(kind) => Some(kind.clone()),
            _ => None,
        })
    }

    /// True if the device is a VXLAN device with this VNI and address.
    fn carries(&self, vni: u32, local: IpAddr) -> bool {
        let has = self.vxlan();
        has.contains(&InfoVxlan::Id(vni)) && has.contains(&at(local))
    }

    /// The settings of a VXLAN device.
    fn vxlan(&self) -> &[InfoVxlan] {
        let mut all = self.info().filter_map(|info| match info {
            LinkInfo::Data(InfoData::Vxlan(data)) => Some(data.as_slice()),
            _ => None,
        });
        all.next().unwrap_or_default()
    }
}
