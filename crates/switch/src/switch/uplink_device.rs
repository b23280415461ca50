//! The open device behind an uplink. Opening it needs a privilege that weir has only at its start.

use std::error::Error;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use ipnet::IpNet;
use weir_config::{Networks, UplinkConfig, UplinkKind};
use weir_evpn::Links;
use weir_fabric::VlanMode;
use weir_foreign::Party;
use weir_port_packet::{PacketOptions, PacketSocket};
use weir_port_stream::{Keep, StreamDevice, StreamOptions, leads_to};
use weir_port_tap::{Tap, TapOptions};
use weir_port_vhost::Dial;
use weir_port_xdp::{XdpInterface, XdpOptions};

use super::{Keeping, SwitchError, tap_mac};
use crate::nat::{HostInterface, check_bridge, check_others};

/// An open device of an uplink.
pub enum UplinkDevice {
    /// A TAP.
    Tap(Tap),
    /// Packet sockets on an interface.
    Packet(PacketSocket),
    /// AF_XDP sockets on an interface.
    Xdp(XdpInterface),
    /// The carriers of a bond's uplinks.
    Bond(Links),
    /// A stream's socket that another weir has left. Without such a socket, weir connects once it runs.
    Stream(Option<OwnedFd>),
}

impl UplinkDevice {
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
        links.map(Self::Bond).map_err(SwitchError::Start)
    }

    /// Opens a device, or takes over the one that another weir has left.
    ///
    /// # Errors
    /// [`SwitchError::Uplink`]
    pub fn open(config: &UplinkConfig, keeping: &Keeping) -> Result<Self, SwitchError> {
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
                Ok(Self::Tap(tap))
            }
            UplinkKind::AfPacket => {
                let left = keeping.queues(&config.name);
                PacketSocket::go_on(&PacketOptions { name, queues, mtu }, left)
                    .map(Self::Packet)
                    .map_err(|error| refused(error.help(), error.into()))
            }
            UplinkKind::Bond => Links::open([]).map(Self::Bond).map_err(SwitchError::Start),
            UplinkKind::Stream => {
                let left = keeping.queues(&config.name).into_iter().next();
                let is_its = |socket: &OwnedFd| {
                    config.path.as_ref().is_some_and(|path| leads_to(socket, path.as_path()))
                };
                Ok(Self::Stream(left.filter(is_its)))
            }
            UplinkKind::AfXdp => {
                let device = XdpInterface::open(&XdpOptions { name, queues, mtu })
                    .map_err(|error| refused(error.help(), error.into()))?;
                let info = device.info();
                let zero_copy = info.zero_copy;
                tracing::info!(interface = info.name, mode = %info.mode, zero_copy, "XDP attached");
                Ok(Self::Xdp(device))
            }
        }
    }
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

/// Checks that the host has the bridge of a TAP, and no other way to its subnets.
///
/// # Errors
/// The fault, with the remedy where it is known.
pub(crate) fn check_host_side(
    config: &UplinkConfig,
    wider_counts: bool,
) -> Result<(), (Option<String>, io::Error)> {
    config.bridge.as_ref().map_or(Ok(()), check_bridge)?;
    let addresses = addresses_of(config);
    match addresses.is_empty() {
        true => Ok(()),
        false => check_others(&config.interface, &addresses, wider_counts),
    }
}

pub(crate) fn addresses_of(config: &UplinkConfig) -> Vec<IpNet> {
    let all = config.address.iter().flat_map(|all| all.as_slice());
    all.map(|address| address.get()).collect()
}

/// The device of a stream uplink, which connects by itself, through `dial`.
pub(super) fn stream_of(
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
