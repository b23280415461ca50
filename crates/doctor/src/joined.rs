//! Uplinks that are connected to each other outside weir.

use std::collections::BTreeMap;
use std::fmt;

use weir_config::PortName;

/// Two uplinks whose interfaces are ports of one bridge of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined<'u> {
    /// The uplink that is named first, and its interface.
    pub first: (&'u PortName, &'u str),
    /// The other uplink, and its interface.
    pub second: (&'u PortName, &'u str),
    /// The bridge.
    pub bridge: String,
}

impl fmt::Display for Joined<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first: (first, a), second: (second, b), bridge } = self;
        write!(f, "{a} of {first} and {b} of {second} are ports of the bridge {bridge}")?;
        f.write_str(": a loop in each VLAN that both uplinks have; weir blocks the second when it finds one")
    }
}

/// The pairs among `uplinks`, by their names and interfaces. `bridges` gives the bridge of which an interface is a
/// port.
pub(crate) fn joined<'u>(
    uplinks: impl IntoIterator<Item = (&'u PortName, &'u str)>,
    bridges: &BTreeMap<String, String>,
) -> Vec<Joined<'u>> {
    let mut first_of: BTreeMap<&str, (&PortName, &str)> = BTreeMap::new();
    let mut all = Vec::new();
    for second in uplinks {
        let Some(bridge) = bridges.get(second.1) else { continue };
        match first_of.get(bridge.as_str()) {
            Some(&first) => all.push(Joined { first, second, bridge: bridge.clone() }),
            None => _ = first_of.insert(bridge, second),
        }
    }
    all
}
