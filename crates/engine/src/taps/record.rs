//! A captured frame in a ring of bytes: a header of fixed length, then the kept bytes.

use weir_wire::VnetHdr;

use crate::frames::drop_reason::DropReason;

/// Bytes of a [`Header`] in a ring.
pub(crate) const HEADER_LEN: usize = 24 + VNET_LEN;
const VNET_LEN: usize = VnetHdr::LEN;

const RX: u16 = 1;
const CSUM_PENDING: u16 = 1 << 1;
const GSO: u16 = 1 << 2;
const NOT_DROPPED: u16 = u16::MAX;

/// The direction of a frame, as its port's guest sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The port sent the frame into the switch.
    Tx,
    /// The switch delivered the frame to the port.
    Rx,
}

/// The data of a captured frame beside its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The time at which the frame's burst was taken or delivered (ns, [`clock`](crate::threads::clock)).
    pub at_ns: u64,
    /// The frame's length, with its VLAN tag.
    pub len: u32,
    /// The number of kept bytes.
    pub kept: u32,
    /// The number of the frame's port in the capture.
    pub port: u16,
    /// The frame's direction. For a dropped frame, it is the direction in which the frame was counted.
    pub direction: Direction,
    /// True if the checksum is left to the receiver: the field holds a part of the sum.
    pub csum_pending: bool,
    /// True if the frame stands for several frames on a wire.
    pub gso: bool,
    /// The reason of the drop, if the frame was dropped.
    pub dropped: Option<DropReason>,
    /// The offloads that are left to do, for the frame with its tag.
    pub vnet: [u8; VNET_LEN],
}

impl Header {
    pub(crate) fn to_bytes(self) -> [u8; HEADER_LEN] {
        let mut flags = 0;
        for (flag, is_set) in [
            (RX, self.direction == Direction::Rx),
            (CSUM_PENDING, self.csum_pending),
            (GSO, self.gso),
        ] {
            flags |= if is_set { flag } else { 0 };
        }
        let reason = self.dropped.map_or(NOT_DROPPED, |reason| reason.index() as u16); // some tens
        let mut bytes = [0; HEADER_LEN];
        bytes[..8].copy_from_slice(&self.at_ns.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.len.to_ne_bytes());
        bytes[12..16].copy_from_slice(&self.kept.to_ne_bytes());
        bytes[16..18].copy_from_slice(&self.port.to_ne_bytes());
        bytes[18..20].copy_from_slice(&flags.to_ne_bytes());
        bytes[20..22].copy_from_slice(&reason.to_ne_bytes());
        bytes[24..].copy_from_slice(&self.vnet);
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8; HEADER_LEN]) -> Self {
        let flags = u16::from_ne_bytes(part(bytes, 18));
        Self {
            at_ns: u64::from_ne_bytes(part(bytes, 0)),
            len: u32::from_ne_bytes(part(bytes, 8)),
            kept: u32::from_ne_bytes(part(bytes, 12)),
            port: u16::from_ne_bytes(part(bytes, 16)),
            direction: if flags & RX != 0 { Direction::Rx } else { Direction::Tx },
            csum_pending: flags & CSUM_PENDING != 0,
            gso: flags & GSO != 0,
            dropped: DropReason::all().nth(u16::from_ne_bytes(part(bytes, 20)).into()),
            vnet: part(bytes, 24),
        }
    }
}

fn part<const N: usize>(bytes: &[u8; HEADER_LEN], at: usize) -> [u8; N] {
    let mut part = [0; N];
    part.copy_from_slice(&bytes[at..at + N]);
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_comes_out_of_a_ring_as_it_went_in() {
        let plain = Header {
            at_ns: 0x0123_4567_89ab_cdef,
            len: 65_549,
            kept: 128,
            port: 3,
            direction: Direction::Tx,
            csum_pending: false,
            gso: false,
            dropped: None,
            vnet: [7; VNET_LEN],
        };
        let marked = Header { direction: Direction::Rx, csum_pending: true, gso: true, ..plain };
        let dropped = DropReason::all().map(|reason| {
            let mut header = plain;
            header.dropped = Some(reason);
            header
        });
        for header in [plain, marked].into_iter().chain(dropped) {
            assert_eq!(Header::from_bytes(&header.to_bytes()), header);
        }
    }
}
