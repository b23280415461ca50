//! Translates a frame's offloads between netif and virtio-net ([`weir_wire::Offload`]). Netif says
//! only that a checksum is blank. Both sides find its position in the headers.

use weir_wire::vnet::{F_NEEDS_CSUM, GSO_TCPV4, GSO_TCPV6};
use weir_wire::{
    GsoKind, Layers, Offload, OffloadCaps, OffloadError, ParseError, VnetHdr, transport_csum,
};

use crate::ctrl::FlowHash;
use crate::message::{self, Extra, rx_flags};
use crate::tx::TxPacket;

/// Error: a guest's flags contradict its packet, which must be dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TxOffloadError {
    /// The checksum is blank, but the packet is neither TCP nor UDP, or a fragment.
    #[error("a blank checksum in a packet that is neither TCP nor UDP")]
    NoChecksum,
    /// The packet contradicts its headers.
    #[error(transparent)]
    Offload(#[from] OffloadError),
}

impl From<ParseError> for TxOffloadError {
    fn from(error: ParseError) -> Self {
        Self::Offload(error.into())
    }
}

impl TxPacket {
    /// Returns the packet's offloads, checked against the copy of its front. weir ignores a
    /// sender's claim that the data are valid, as it does with a virtio driver.
    ///
    /// # Errors
    /// [`TxOffloadError`] names the contradiction. One of them is a GSO packet whose checksum is
    /// not blank ([`OffloadError::GsoWithoutCsum`]); netback fills in the pseudo-header for such
    /// peers.
    pub fn offload(&self, head: &[u8]) -> Result<Offload, TxOffloadError> {
        if !self.csum_blank && self.gso.is_none() {
            return Ok(Offload::NONE);
        }
        Ok(Offload::from_vnet(&self.vnet_hdr(head)?, head, self.len)?)
    }

    /// Returns the header that a virtio driver would have put in front.
    ///
    /// # Errors
    /// As [`offload`](Self::offload), for the checksum.
    pub fn vnet_hdr(&self, head: &[u8]) -> Result<VnetHdr, TxOffloadError> {
        let mut hdr = VnetHdr::default();
        if self.csum_blank {
            let csum = transport_csum(&Layers::parse(head)?).ok_or(TxOffloadError::NoChecksum)?;
            hdr.flags = F_NEEDS_CSUM;
            hdr.csum_start = csum.start;
            hdr.csum_offset = csum.offset;
        }
        if let Some(gso) = self.gso {
            hdr.gso_type = if gso.kind == GsoKind::Tcp4 { GSO_TCPV4 } else { GSO_TCPV6 };
            hdr.gso_size = gso.size;
        }
        Ok(hdr)
    }
}

/// A front end's features, from xenstore.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FrontFeatures {
    /// Absence of `feature-no-csum-offload`.
    pub csum_v4: bool,
    /// `feature-ipv6-csum-offload`.
    pub csum_v6: bool,
    /// `feature-sg`: packets of several slots, which GSO needs.
    pub sg: bool,
    /// `feature-gso-tcpv4`.
    pub gso_tcpv4: bool,
    /// `feature-gso-tcpv6`.
    pub gso_tcpv6: bool,
}

impl FrontFeatures {
    /// Returns the features in virtio's terms, which have one flag for the checksums of IPv4 and
    /// IPv6. ECN and UDP GSO have no netif name.
    pub fn caps(self) -> OffloadCaps {
        if !(self.csum_v4 && self.csum_v6) {
            return OffloadCaps::NONE;
        }
        let with = |has: bool, cap| if has && self.sg { cap } else { OffloadCaps::NONE };
        OffloadCaps::CSUM
            | with(self.gso_tcpv4, OffloadCaps::TSO4)
            | with(self.gso_tcpv6, OffloadCaps::TSO6)
    }
}

/// A frame's metadata for a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RxMeta {
    /// [`rx_flags`] of the first response, without the flags of slots and extra infos.
    flags: u16,
    gso: Option<Extra>,
    hash: Option<Extra>,
}

impl RxMeta {
    /// Returns the metadata of the frame that begins with `head`. Returns `None` if netif cannot
    /// express its offloads: GSO of UDP or with ECN, or a checksum other than that of TCP or UDP in
    /// the outer headers. A port that obeyed [`caps`](FrontFeatures::caps) meets only the last
    /// case, where [`weir_wire::fill_checksum`] helps.
    pub fn new(offload: &Offload, head: &[u8]) -> Option<Self> {
        let mut meta = Self::default();
        if offload.data_valid() {
            meta.flags = rx_flags::DATA_VALIDATED;
        }
        if let Some(csum) = offload.csum() {
            let found = transport_csum(&Layers::parse(head).ok()?)?;
            if found != csum {
                return None;
            }
            meta.flags = rx_flags::CSUM_BLANK | rx_flags::DATA_VALIDATED;
        }
        if let Some(gso) = offload.gso() {
            let kind = match (gso.kind, gso.ecn) {
                (GsoKind::Tcp4, false) => message::GSO_TCPV4,
                (GsoKind::Tcp6, false) => message::GSO_TCPV6,
                _ => return None,
            };
            meta.gso = Some(Extra::Gso { size: gso.size, kind });
        }
        Some(meta)
    }

    /// Adds the flow's hash, for a front end that has set one up.
    #[must_use]
    pub fn with_hash(self, hash: FlowHash) -> Self {
        Self { hash: Some(hash.extra()), ..self }
    }

    pub(crate) fn flags(&self) -> u16 {
        self.flags
    }

    /// Iterates over the extra infos in the order of their types, as netback sends them.
    pub(crate) fn extras(&self) -> impl Iterator<Item = Extra> + use<> {
        [self.gso, self.hash].into_iter().flatten()
    }
}
