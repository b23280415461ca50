//! The driver against a back end in the same process.

mod backend;
mod handshake;
mod load;
mod traffic;

use std::time::Duration;

use weir_vif::Options;
use weir_wire::Mac;

/// Time that exceeds anything here: a test that takes as long is stuck.
pub const STUCK: Duration = Duration::from_secs(60);

/// Addresses of two interfaces.
pub const MACS: [Mac; 2] = [Mac([0x52, 0x54, 0, 0, 0, 1]), Mac([0x52, 0x54, 0, 0, 0, 2])];

/// Returns the options of one interface.
pub fn options() -> Options {
    Options::new(MACS[0])
}
