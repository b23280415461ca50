//! What stands behind an uplink, opened: that takes a privilege, which weir has at its start only.

use weir_config::{UplinkConfig, UplinkKind};
use weir_port_packet::{PacketOptions, PacketSocket};
use weir_port_tap::{Tap, TapOptions};
use weir_port_xdp::{XdpInterface, XdpOptions};

use super::SwitchError;

/// An open device of an uplink.
pub enum UplinkDevice {
    /// A TAP.
    Tap(Tap),
    /// Packet sockets on an interface.
    Packet(PacketSocket),
    /// AF_XDP sockets on an interface.
    Xdp(XdpInterface),
}

impl UplinkDevice {
    /// Those of all uplinks, in their order.
    ///
    /// # Errors
    /// As of [`UplinkDevice::open`]; those that were opened are closed.
    pub fn open_all(uplinks: &[UplinkConfig]) -> Result<Vec<Self>, SwitchError> {
        uplinks.iter().map(Self::open).collect()
    }

    /// Opens it.
    ///
    /// # Errors
    /// [`SwitchError::Tap`], [`SwitchError::Packet`], [`SwitchError::Xdp`]
    pub fn open(config: &UplinkConfig) -> Result<Self, SwitchError> {
        let name = config.name.clone();
        let interface = config.interface.to_string();
        let queues = config.queues.get().into();
        let mtu = config.mtu.map(|mtu| mtu.get());
        match config.kind {
            UplinkKind::Tap => {
                let options = TapOptions { name: interface, queues, mtu };
                Tap::open(&options).map(Self::Tap).map_err(|source| SwitchError::Tap {
                    name,
                    help: source.help(),
                    source,
                })
            }
            UplinkKind::AfPacket => {
                let options = PacketOptions { name: interface, queues, mtu };
                PacketSocket::open(&options)
                    .map(Self::Packet)
                    .map_err(|source| SwitchError::Packet { name, help: source.help(), source })
            }
            UplinkKind::AfXdp => {
                let options = XdpOptions { name: interface, queues, mtu };
                let device = XdpInterface::open(&options).map_err(|source| SwitchError::Xdp {
                    name,
                    help: source.help(),
                    source,
                })?;
                let info = device.info();
                let zero_copy = info.zero_copy;
                tracing::info!(interface = info.name, mode = %info.mode, zero_copy, "XDP attached");
                Ok(Self::Xdp(device))
            }
        }
    }
}
