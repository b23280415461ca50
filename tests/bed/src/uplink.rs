//! The far end of an uplink: interfaces in their own network namespaces, with weir on one side and the host's network
//! stack on the other.

use std::{fmt, time::Duration};

use crate::{
    error::{Error, Result},
    netns::Netns,
    process::{Placement, wait_until},
};

/// The kind of an uplink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uplink {
    /// A TAP that weir makes. Its other side is the host's stack.
    Tap,
    /// An AF_XDP socket on one end of a veth pair, whose other end is in another namespace.
    AfXdp,
}

/// The interface that weir opens.
const WEIR_SIDE: &str = "weir0";
/// The other end of a veth pair.
const FAR_END: &str = "host0";

/// Longest time for weir to make or open the interface.
const PATIENCE: Duration = Duration::from_secs(10);

impl Uplink {
    /// The uplink's `kind` in weir's configuration.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Tap => "tap",
            Self::AfXdp => "af_xdp",
        }
    }

    /// The interface that weir opens.
    pub fn interface(self) -> &'static str {
        WEIR_SIDE
    }
}

impl fmt::Display for Uplink {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.kind())
    }
}

/// The namespaces of an uplink. Processes in them must end first.
#[derive(Debug)]
pub struct UplinkSite {
    /// weir's namespace, unless weir is in the host's.
    weir: Option<Netns>,
    host: Netns,
    /// The host's interface.
    interface: &'static str,
}

impl UplinkSite {
    /// Makes the namespaces for `uplink`.
    pub fn new(uplink: Uplink) -> Result<Self> {
        let host = Netns::new()?;
        match uplink {
            Uplink::Tap => Ok(Self { weir: None, host, interface: WEIR_SIDE }),
            Uplink::AfXdp => {
                let weir = Netns::new()?;
                let far = host.name();
                weir.ip(&[
                    "link", "add", WEIR_SIDE, "type", "veth", "peer", "name", FAR_END, "netns", far,
                ])?;
                // A veth leaves checksums to its other end, but AF_XDP computes none.
                host.exec(&["ethtool", "-K", FAR_END, "tx", "off"])?;
                host.ip(&["link", "set", FAR_END, "up"])?;
                Ok(Self { weir: Some(weir), host, interface: FAR_END })
            }
        }
    }

    /// weir's placement.
    pub fn placement(&self) -> Placement {
        self.weir.as_ref().unwrap_or(&self.host).placement()
    }

    /// The namespace of the host's side.
    pub fn host(&self) -> &Netns {
        &self.host
    }

    /// The host's interface.
    pub fn interface(&self) -> &'static str {
        self.interface
    }

    /// Packets that the host's interface has received from weir.
    pub fn received(&self) -> Result<u64> {
        let path = format!("/sys/class/net/{}/statistics/rx_packets", self.interface);
        let text = self.host.exec(&["cat", &path])?;
        text.trim().parse().map_err(|_| Error::parse("a number of packets", text))
    }

    /// Waits until the host's interface is up, and sends from address `mac`, so that the switch learns the address.
    /// The interface then gets another address, so that the host drops frames for `mac` at once.
    pub fn announce(&self, mac: &str) -> Result<()> {
        self.host.configure(self.interface, "10.0.1.100/24")?;
        self.host.ip(&["link", "set", self.interface, "address", mac])?;
        wait_until("the uplink to be up", PATIENCE, || {
            Ok(self.host.ip(&["link", "show", "dev", self.interface])?.contains("LOWER_UP"))
        })?;
        // No station answers. The ARP request is enough.
        let _ = self.host.exec(&["ping", "-c", "1", "-W", "1", "10.0.1.1"]);
        self.host.ip(&["link", "set", self.interface, "address", "52:54:00:00:01:99"])?;
        Ok(())
    }
}
