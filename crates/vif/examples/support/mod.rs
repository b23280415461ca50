//! The common part of the examples: the two guests, and joining a switch.

use std::error::Error;
use std::net::Ipv4Addr;

use weir_vif::load::{Flow, Station};
use weir_vif::{Options, Vif};
use weir_wire::Mac;

/// Returns the flow from the first guest to the second.
pub fn flow() -> Flow {
    let station =
        |n| Station { mac: Mac([0x52, 0x54, 0, 0, 1, n]), ip: Ipv4Addr::new(10, 0, 1, n) };
    Flow { local: station(1), remote: station(2), local_port: 40_000, remote_port: 5201 }
}

/// Connects the guest `station` to the switch's socket at `path`.
///
/// # Errors
/// As [`Vif::connect`].
pub fn join(path: &str, station: Station) -> Result<Vif, Box<dyn Error>> {
    join_with(path, &options(station))
}

/// Connects like [`join`], with `options`.
///
/// # Errors
/// As [`Vif::connect`].
pub fn join_with(path: &str, options: &Options) -> Result<Vif, Box<dyn Error>> {
    Ok(Vif::connect(path, options)?)
}

/// Returns the options of the guest `station`.
pub fn options(station: Station) -> Options {
    Options { queue_size: 1024, ..Options::new(station.mac) }
}
