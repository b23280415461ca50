//! Sizes of an interface's rings.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_config::{RingSize, VifConfig};

/// Sizes of an interface's rings: as configured, and as the guest has them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RingSizes {
    /// `rx_ring` of the interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rx_ring: Option<RingSize>,
    /// `tx_ring` of the interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tx_ring: Option<RingSize>,
    /// The entries of each ring in service on which the guest receives.
    pub rx_in_use: Vec<u32>,
    /// The entries of each ring in service from which the guest sends.
    pub tx_in_use: Vec<u32>,
}

impl RingSizes {
    pub(crate) fn of(vif: &VifConfig, in_use: &[[u32; 2]]) -> Self {
        let side = |side: usize| {
            in_use.iter().map(|sizes| sizes[side]).filter(|size| *size > 0).collect::<Vec<_>>()
        };
        let VifConfig { rx_ring, tx_ring, .. } = *vif;
        Self { rx_ring, tx_ring, rx_in_use: side(0), tx_in_use: side(1) }
    }

    /// The name of each side, its configured size, and the sizes in use.
    #[must_use]
    pub fn sides(&self) -> [(&'static str, Option<RingSize>, &[u32]); 2] {
        [("rx", self.rx_ring, &self.rx_in_use), ("tx", self.tx_ring, &self.tx_in_use)]
    }

    /// A note if a ring in use has another size than is configured.
    #[must_use]
    pub fn note(&self) -> Option<String> {
        let differs = |(side, asked, in_use): (&str, Option<RingSize>, &[u32])| {
            let asked = asked.filter(|asked| in_use.iter().any(|it| *it != u32::from(asked.get())));
            Some(format!("`{side}_ring` is {}", asked?))
        };
        let differ: Vec<_> = self.sides().into_iter().filter_map(differs).collect();
        let arguments = "the VM has other arguments, see `weir qemu-args`";
        (!differ.is_empty()).then(|| format!("{}: {arguments}", differ.join(" and ")))
    }
}
