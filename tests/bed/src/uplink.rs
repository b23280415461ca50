//! Where an uplink leads: interfaces in network namespaces of their own, with weir on one side and the
//! host's network stack on the other.

use std::{fmt, time::Duration};

use crate::{
    error::{Error, Result},
    netns::Netns,
    process::{Placement, wait_until},
};

/// What an uplink is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uplink {
    /// A TAP that weir makes: its other side is the host's stack.
    Tap,
    /// An AF_XDP socket on one end of a veth pair, whose other end is in another namespace.
    AfXdp,
}

/// The interface that weir opens.
const WEIR_SIDE: &str = "weir0";
/// The other end of a veth pair.
const FAR_END: &str = "host0";

/// How long weir may take to make or open the interface.
const PATIENCE: Duration = Duration::from_secs(10);

impl Uplink {
    /// Its `kind` in weir's configuration.
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

/// The namespaces of an uplink. Its processes must end before it does.
#[derive(Debug)]
pub struct UplinkSite {
    /// Where weir is, if it is not where the host is.
    weir: Option<Netns>,
    host: Netns,
    /// The host's interface.
    interface: &'static str,
}

impl UplinkSite {
    /// For `uplink`.
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
                // A veth leaves checksums to its other end, where AF_XDP has nobody to do them.
                host.exec(&["ethtool", "-K", FAR_END, "tx", "off"])?;
                host.ip(&["link", "set", FAR_END, "up"])?;
                Ok(Self { weir: Some(weir), host, interface: FAR_END })
            }
        }
    }

    /// Where weir is to run.
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

    /// Waits until the host's interface is up, and sends from address `mac`, so that a switch learns where it is.
    /// Afterwards the interface has another address, so the host drops frames for `mac` at once.
    pub fn announce(&self, mac: &str) -> Result<()> {
        self.host.configure(self.interface, "10.0.1.100/24")?;
        self.host.ip(&["link", "set", self.interface, "address", mac])?;
        wait_until("the uplink to be up", PATIENCE, || {
            Ok(self.host.ip(&["link", "show", "dev", self.interface])?.contains("LOWER_UP"))
        })?;
        // Nobody answers; the question is the announcement.
        let _ = self.host.exec(&["ping", "-c", "1", "-W", "1", "10.0.1.1"]);
        self.host.ip(&["link", "set", self.interface, "address", "52:54:00:00:01:99"])?;
        Ok(())
    }
}
