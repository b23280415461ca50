//! What the examples have in common: who the two guests are, and how a guest joins.

use std::error::Error;
use std::net::Ipv4Addr;

use weir_vif::load::{Flow, Station};
use weir_vif::{Options, Vif};
use weir_wire::Mac;

/// From the first guest to the second.
pub fn flow() -> Flow {
    let station =
        |n| Station { mac: Mac([0x52, 0x54, 0, 0, 1, n]), ip: Ipv4Addr::new(10, 0, 1, n) };
    Flow { local: station(1), remote: station(2), local_port: 40_000, remote_port: 5201 }
}

/// The guest `station`, plugged into the switch's socket at `path`.
///
/// # Errors
/// What [`Vif::connect`] says.
pub fn join(path: &str, station: Station) -> Result<Vif, Box<dyn Error>> {
    join_with(path, &options(station))
}

/// The same with `options`.
///
/// # Errors
/// What [`Vif::connect`] says.
pub fn join_with(path: &str, options: &Options) -> Result<Vif, Box<dyn Error>> {
    Ok(Vif::connect(path, options)?)
}

/// Those of the guest `station`.
pub fn options(station: Station) -> Options {
    Options { queue_size: 1024, ..Options::new(station.mac) }
}
