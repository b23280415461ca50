//! A frame's offloads, translated between netif and virtio-net ([`weir_wire::Offload`]). Netif says that a checksum
//! is blank, but not where; both sides find its place in the headers.

use weir_wire::vnet::{F_NEEDS_CSUM, GSO_TCPV4, GSO_TCPV6};
use weir_wire::{
    GsoKind, Layers, Offload, OffloadCaps, OffloadError, ParseError, VnetHdr, transport_csum,
};

use crate::hash::FlowHash;
use crate::message::{self, Extra, rx_flags};
use crate::tx::TxPacket;

/// What a guest says of a packet is not so. The packet is to be dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TxOffloadError {
    /// A blank checksum in what is neither TCP nor UDP, or a fragment.
    #[error("a blank checksum in a packet that is neither TCP nor UDP")]
    NoChecksum,
    /// The packet does not agree with its headers.
    #[error(transparent)]
    Offload(#[from] OffloadError),
}

impl From<ParseError> for TxOffloadError {
    fn from(error: ParseError) -> Self {
        Self::Offload(error.into())
    }
}

impl TxPacket {
    /// What the packet asks, checked against the copy of its front. A sender's word that the data are
    /// right is not taken: weir forgets it, as it does of a virtio driver.
    ///
    /// # Errors
    /// [`TxOffloadError`] says what is not so. That a GSO packet's checksum is not blank is one of them
    /// ([`OffloadError::GsoWithoutCsum`]); netback fills the pseudo-header in for such peers.
    pub fn offload(&self, head: &[u8]) -> Result<Offload, TxOffloadError> {
        if !self.csum_blank && self.gso.is_none() {
            return Ok(Offload::NONE);
        }
        Ok(Offload::from_vnet(&self.vnet_hdr(head)?, head, self.len)?)
    }

    /// The header that a virtio driver would have put in front.
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

/// What a front end said in xenstore that it can receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FrontFeatures {
    /// Not `feature-no-csum-offload`.
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
    /// The same in virtio's words, which know one flag for the checksums of IPv4 and IPv6. ECN and UDP
    /// GSO have no netif name.
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

/// What is said of a frame toward a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RxMeta {
    /// [`rx_flags`] of the first response, without those of slots and extra infos.
    flags: u16,
    gso: Option<Extra>,
    hash: Option<Extra>,
}

impl RxMeta {
    /// Says what the frame beginning with `head` asks. `None` when netif has no words for it: GSO of UDP
    /// or with ECN, or a checksum that is not the one of TCP or UDP in the outer headers. A port whose
    /// [`caps`](FrontFeatures::caps) were heeded is left with the last of these, for which
    /// [`weir_wire::fill_checksum`] helps.
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

    /// With the flow's hash, for a front end that has set one up.
    #[must_use]
    pub fn with_hash(self, hash: FlowHash) -> Self {
        Self { hash: Some(hash.extra()), ..self }
    }

    pub(crate) fn flags(&self) -> u16 {
        self.flags
    }

    /// Extra infos, in the order of their types, as netback sends them.
    pub(crate) fn extras(&self) -> impl Iterator<Item = Extra> + use<> {
        [self.gso, self.hash].into_iter().flatten()
    }
}
