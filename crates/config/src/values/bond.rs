//! The uplinks of a bond.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use weir_limits::BOND_UPLINKS_MAX;

use super::{PortName, ValueError, schema_as};

/// The uplinks of a bond, the preferred one first: 2 to [`BOND_UPLINKS_MAX`], each once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<PortName>", into = "Vec<PortName>")]
pub struct BondUplinks(Vec<PortName>);

schema_as!(BondUplinks, Vec<String>);

impl BondUplinks {
    /// The names of the uplinks.
    pub fn as_slice(&self) -> &[PortName] {
        &self.0
    }
}

impl TryFrom<Vec<PortName>> for BondUplinks {
    type Error = ValueError;
    fn try_from(uplinks: Vec<PortName>) -> Result<Self, ValueError> {
        let different = uplinks.iter().collect::<BTreeSet<_>>().len();
        if different < uplinks.len() || !(2..=BOND_UPLINKS_MAX).contains(&different) {
            let (max, value) = (BOND_UPLINKS_MAX as u64, format!("{different} different uplinks"));
            return Err(ValueError::OutOfRange { min: 2, max, value });
        }
        Ok(Self(uplinks))
    }
}

impl From<BondUplinks> for Vec<PortName> {
    fn from(BondUplinks(uplinks): BondUplinks) -> Self {
        uplinks
    }
}

impl FromStr for BondUplinks {
    type Err = ValueError;
    /// Reads names with commas between them.
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let uplinks = text.split(',').map(|name| name.trim().parse());
        uplinks.collect::<Result<Vec<_>, _>>()?.try_into()
    }
}

impl fmt::Display for BondUplinks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.0.iter().map(PortName::as_str).collect();
        f.write_str(&names.join(","))
    }
}
