//! The kernel's bridge between two TAPs, libvirt's default for a VM.
//!
//! QEMU itself moves packets between the guest and its TAP (no vhost-net), with all offloads of
//! virtio-net.

use weir_bed::{
    address, error::Result, netns::Netns, process::Placement, qemu::Plug, switch::Switch,
};

const BRIDGE: &str = "br0";

/// A bridge with TAPs `tap0`, `tap1`, ... in a network namespace of its own.
pub struct TapBridge {
    netns: Netns,
}

impl TapBridge {
    /// Makes a bridge with `ports` TAPs.
    pub fn start(ports: u8) -> Result<Self> {
        let netns = Netns::new()?;
        netns.add_bridge(BRIDGE)?;
        for index in 0..ports {
            netns.add_tap(&tap(index), BRIDGE)?;
        }
        Ok(Self { netns })
    }

    /// Returns the TAPs' placement.
    pub fn placement(&self) -> Placement {
        self.netns.placement()
    }
}

impl Switch for TapBridge {
    fn plug(&self, index: u8) -> Result<Plug> {
        let netdev = format!("tap,id=net0,ifname={},script=no,downscript=no", tap(index));
        // Ring sizes are weir's, except TX: QEMU gives a TAP at most 256 entries.
        let mac = address::mac(index);
        let device = format!("virtio-net-pci,netdev=net0,mac={mac},rx_queue_size=1024");
        let qemu_args = vec![String::from("-netdev"), netdev, String::from("-device"), device];
        Ok(Plug { qemu_args, placement: self.netns.placement() })
    }
}

/// Returns the name of TAP `index`.
pub fn tap(index: u8) -> String {
    format!("tap{index}")
}
