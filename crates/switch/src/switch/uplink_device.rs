//! The devices that a switch opens at its start, and the open device behind an uplink. Opening one needs a privilege that weir has only at its start.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use weir_agent::{Below, Interface, Port, Text};
use weir_config::{Config, Networks, PortName, SocketPath, UplinkConfig, UplinkKind};
use weir_evpn::Links;
use weir_fabric::VlanMode;
use weir_foreign::Party;
use weir_port_packet::{PacketOptions, PacketSocket};
use weir_port_stream::{Keep, StreamDevice, StreamOptions, leads_to};
use weir_port_tap::{FrameDevice, FramePort, Tap, TapOptions};
use weir_port_vhost::Dial;
use weir_port_vxlan::OverlaySockets;
use weir_port_xdp::{XdpInterface, XdpOptions, XdpPort};
use weir_wire::Mac;

use super::evpn::EvpnDevices;
use super::gateways::{self, HostTaps, LeaseFiles};
use super::{Keeping, Switch, SwitchError, overlay, tap_mac};
use crate::nat::{HostInterface, addresses_of, check_host_side};

/// The devices of uplinks, by the uplinks' names.
pub type Uplinks = BTreeMap<PortName, UplinkDevice>;

/// Devices that a switch opens before it gives up its privileges.
#[derive(Default)]
pub struct Devices {
    /// The devices of all uplinks.
    pub uplinks: Uplinks,
    /// The overlay's sockets, if there is one.
    pub overlay: Option<OverlaySockets>,
    /// The devices that FRR watches, if FRR provides the members of networks.
    pub evpn: Option<EvpnDevices>,
    /// Lease files.
    pub(super) leases: LeaseFiles,
    /// TAPs of ways out through the host.
    pub(super) taps: HostTaps,
}

impl Devices {
    /// Opens the devices that `config` names, and takes over devices that another weir has left.
    ///
    /// # Errors
    /// [`SwitchError::Uplink`], [`SwitchError::Overlay`], [`SwitchError::Evpn`], [`SwitchError::Leases`] or
    /// [`SwitchError::WayOut`]; devices that were opened are closed then.
    pub fn open(config: &Config, keeping: &Keeping) -> Result<Self, SwitchError> {
        let overlay = config.networks.overlay.as_ref();
        Ok(Self {
            uplinks: uplinks(config, keeping)?,
            overlay: overlay.map(|overlay| overlay::open(overlay, keeping)).transpose()?,
            evpn: EvpnDevices::open(&config.networks, keeping)?,
            leases: gateways::open_leases(config)?,
            taps: gateways::open_taps(&config.networks, keeping)?,
        })
    }
}

/// Opens the devices of all uplinks. An uplink that the file does not name is left out if it cannot be opened.
fn uplinks(config: &Config, keeping: &Keeping) -> Result<Uplinks, SwitchError> {
    let all = keeping.uplinks_of(config)?;
    let open = |uplink: &UplinkConfig| match UplinkDevice::open_among(&all, uplink, keeping) {
        Err(error) if config.uplinks.iter().all(|it| it.name != uplink.name) => {
            tracing::error!(uplink = %uplink.name, %error, "an uplink that was added is not taken up");
            None
        }
        opened => Some(opened.map(|device| (uplink.name.clone(), device))),
    };
    all.iter().filter_map(open).collect()
}

type PlugIn = dyn FnOnce(&Switch, &UplinkConfig) -> Result<(), SwitchError> + Send;

/// An open device of an uplink: the function that makes it a port of a switch.
pub struct UplinkDevice(Box<PlugIn>);

impl UplinkDevice {
    fn new(
        plug_in: impl FnOnce(&Switch, &UplinkConfig) -> Result<(), SwitchError> + Send + 'static,
    ) -> Self {
        Self(Box::new(plug_in))
    }

    /// A device that moves whole frames, and whose descriptors the keeper keeps for the next weir.
    fn of_frames(device: impl FrameDevice + 'static) -> Self {
        Self::new(move |switch, config| {
            let kept = switch.keeper.keep_queues(&config.name, device.queues());
            switch.plug(config, kept, |counters| FramePort::new(device, counters)).map(drop)
        })
    }

    fn of_bond(links: Links) -> Self {
        Self::new(move |switch, config| switch.plug_in_bond(config, links))
    }

    /// Makes it a port of the switch.
    pub(super) fn plug_in(self, switch: &Switch, config: &UplinkConfig) -> Result<(), SwitchError> {
        self.0(switch, config)
    }

    /// Opens the device of an uplink; the members of a bond are among `all`.
    ///
    /// # Errors
    /// The error of [`UplinkDevice::open`].
    pub(super) fn open_among(
        all: &[UplinkConfig],
        uplink: &UplinkConfig,
        keeping: &Keeping,
    ) -> Result<Self, SwitchError> {
        if !uplink.is_bond() {
            return Self::open(uplink, keeping);
        }
        let members = uplink.members().iter();
        let members = members.filter_map(|name| all.iter().find(|it| it.name == *name));
        let links = Links::open(members.map(|it| it.interface.to_string()));
        links.map(Self::of_bond).map_err(SwitchError::Start)
    }

    /// Opens a device, or takes over the one that another weir has left.
    ///
    /// # Errors
    /// [`SwitchError::Uplink`]
    pub fn open(config: &UplinkConfig, keeping: &Keeping) -> Result<Self, SwitchError> {
        let device = Self::open_device(config, keeping)?;
        let Some(path) = &config.agent_port else { return Ok(device) };
        let below = below_of(config, path, keeping);
        Ok(Self::new(move |switch, config| {
            device.plug_in(switch, config)?;
            let kept =
                below.device().and_then(|it| switch.keeper.keep_agent_port(&config.name, it));
            switch.manager.set_below(&config.name, below, kept);
            Ok(())
        }))
    }

    fn open_device(config: &UplinkConfig, keeping: &Keeping) -> Result<Self, SwitchError> {
        let refused = |help, source: Box<dyn Error + Send + Sync>| SwitchError::Uplink {
            name: config.name.clone(),
            source,
            help,
        };
        let name = config.interface.to_string();
        let queues = config.queues.get().into();
        let mtu = config.mtu.map(|mtu| mtu.get());
        match config.kind {
            UplinkKind::Tap => {
                let left = keeping.queues(&config.name);
                let mac = tap_mac::of(&config.interface);
                let tap = Tap::go_on(&TapOptions { name, queues, mtu, mac }, left)
                    .map_err(|error| refused(error.help(), error.into()))?;
                set_up(config, &tap).map_err(|(help, error)| refused(help, error.into()))?;
                Ok(Self::of_frames(tap))
            }
            UplinkKind::AfPacket => {
                let left = keeping.queues(&config.name);
                PacketSocket::go_on(&PacketOptions { name, queues, mtu }, left)
                    .map(Self::of_frames)
                    .map_err(|error| refused(error.help(), error.into()))
            }
            UplinkKind::Bond => Links::open([]).map(Self::of_bond).map_err(SwitchError::Start),
            UplinkKind::Stream => {
                let left = keeping.queues(&config.name).into_iter().next();
                let is_its = |socket: &OwnedFd| {
                    config.path.as_ref().is_some_and(|path| leads_to(socket, path.as_path()))
                };
                let left = left.filter(is_its);
                // Without a socket that another weir has left, weir connects once it runs.
                Ok(Self::new(move |switch, config| {
                    let (kept, keep) = switch.keeper.keep_line(&config.name);
                    let (networks, dial) = (&switch.networks, switch.hands.dial());
                    let device = stream_of(config, left, keep, networks, dial)?;
                    switch.plug(config, kept, |counters| FramePort::new(device, counters)).map(drop)
                }))
            }
            UplinkKind::AfXdp => {
                let device = XdpInterface::open(&XdpOptions { name, queues, mtu })
                    .map_err(|error| refused(error.help(), error.into()))?;
                let info = device.info();
                let zero_copy = info.zero_copy;
                tracing::info!(interface = info.name, mode = %info.mode, zero_copy, "XDP attached");
                Ok(Self::new(move |switch, config| {
                    switch.plug(config, None, |counters| XdpPort::new(device, counters)).map(drop)
                }))
            }
        }
    }
}

/// The conversation with the weir below about the layers behind an uplink's interface.
fn below_of(config: &UplinkConfig, path: &SocketPath, keeping: &Keeping) -> Below {
    let name = Text::new(config.interface.as_str());
    // Without an address, the weir below knows of no interface here, and leaves nothing.
    let mac = fs::read_to_string(format!("/sys/class/net/{name}/address")).ok();
    let mac = mac.and_then(|mac| mac.trim().parse().ok()).unwrap_or(Mac([0; 6]));
    let port = Port::Path(path.as_path().into());
    let interface = Interface { mac, name, can_defer: true };
    let below = Below::open(port, interface, keeping.agent_port(&config.name));
    if let Some(error) = below.error() {
        tracing::warn!(uplink = %config.name, error, "the weir below leaves no latency budget");
    }
    below
}

/// Gives the host's side of a TAP its bridge or its addresses. They disappear with the TAP when
/// weir ends.
fn set_up(config: &UplinkConfig, tap: &Tap) -> Result<(), (Option<String>, io::Error)> {
    let (name, addresses) = (&config.interface, addresses_of(config));
    if config.bridge.is_none() && addresses.is_empty() {
        return Ok(());
    }
    if tap.info().is_persistent {
        let what = "the TAP stays when weir ends, so its bridge and its addresses are not weir's";
        let help = format!(
            "leave `bridge` and `address` out, or have weir make the TAP: `ip tuntap del {name} mode tap`"
        );
        return Err((Some(help), io::Error::other(what)));
    }
    check_host_side(config, false)?;
    let host =
        HostInterface { name, mac: None, addresses: &addresses, bridge: config.bridge.as_ref() };
    host.set_up().map_err(|error| (None, error))
}

/// The device of a stream uplink, which connects by itself, through `dial`.
fn stream_of(
    config: &UplinkConfig,
    left: Option<OwnedFd>,
    keep: Keep,
    networks: &Networks,
    dial: Dial,
) -> Result<StreamDevice, SwitchError> {
    // Only the port of an untagged network reaches gvproxy, which looks into no tags.
    let untagged = match config.port_config(networks).vlan {
        VlanMode::Access(vid) => Some(vid),
        VlanMode::Trunk { native, .. } => native,
        VlanMode::Networks => None,
    };
    let mut gateways = networks.with_gateway();
    let has_own = gateways.any(|(vid, _, own)| own.dhcp.is_some() && Some(vid) == untagged);
    let options = StreamOptions {
        name: config.name.to_string(),
        peer: config.device(),
        mtu: config.mtu().get(),
        host_access: config.host_access.unwrap_or_default(),
        asks_dhcp: !has_own,
    };
    let path = PathBuf::from(config.device());
    let dial = Box::new(move |party: &Party| Ok(dial(&path, party)?.map(OwnedFd::from)));
    StreamDevice::start(options, left, dial, keep).map_err(SwitchError::Start)
}
