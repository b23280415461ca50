//! Errors about names in requests that are not the name of a port.

use miette::Diagnostic;
use weir_config::{NetworkName, PortName};

/// The reason why a name is not the name of an interface or uplink.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Diagnostic)]
pub enum NoSuchPort {
    /// Nothing has the name.
    #[error("there is no interface or uplink called {name}")]
    #[diagnostic(help("{there}"))]
    Absent {
        /// The name.
        name: PortName,
        /// The names of ports, or the kind of thing that has this name.
        there: String,
    },
    /// It is the name of weir's own port in a network.
    #[error("{name} is weir itself in network `{network}`")]
    #[diagnostic(help(
        "its table is [network.{network}]; `weir stats {name}` shows what it answers"
    ))]
    Own {
        /// The name.
        name: PortName,
        /// The network.
        network: NetworkName,
    },
    /// The name is that of the overlay's port.
    #[error("{0} is weir's port to the other hosts of its networks")]
    #[diagnostic(help("its table is [overlay]; `weir explain {0}` shows what passes"))]
    Overlay(PortName),
}
