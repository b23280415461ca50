//! The traffic class of an IP packet: DSCP (RFC 2474) and ECN (RFC 3168), and their values after the end of a tunnel
//! (RFC 6040, RFC 2983).

use crate::bytes::{be16_at, put};
use crate::checksum::IPV4_CSUM_OFFSET;
use crate::ethernet::{ETHERTYPE_OFFSET, ethertype};
use crate::head::Head;
use crate::vlan::TAG_LEN;

/// Values of the two low bits of a traffic class (RFC 3168 §5).
pub mod ecn {
    /// The bits.
    pub const MASK: u8 = 0b11;
    /// The sender ignores marks.
    pub const NOT_ECT: u8 = 0b00;
    /// The sender respects marks, in a protocol that defines this value.
    pub const ECT_1: u8 = 0b01;
    /// The sender respects marks.
    pub const ECT_0: u8 = 0b10;
    /// There was congestion on the way.
    pub const CE: u8 = 0b11;
}

/// Bits of a traffic class below the DSCP.
pub const DSCP_SHIFT: u32 = 2;

/// A packet left a tunnel in which there was congestion, and its sender ignores marks: only the loss signals the
/// congestion (RFC 6040 §4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("congestion was marked on the way of a packet whose sender heeds no mark")]
pub struct MarkedNotEct;

/// An IP header in a frame.
#[derive(Clone, Copy)]
struct Header {
    at: usize,
    first: u16,
    v6: bool,
}

impl Header {
    /// Finds the header behind any tags; `None` if there is no IP packet.
    fn find(frame: &[u8]) -> Option<Self> {
        let mut at = ETHERTYPE_OFFSET + 2;
        loop {
            let kind = be16_at(frame, at - 2)?;
            let v6 = match kind {
                ethertype::IPV4 => false,
                ethertype::IPV6 => true,
                ethertype::VLAN | ethertype::QINQ => {
                    at += TAG_LEN;
                    continue;
                }
                _ => return None,
            };
            let first = be16_at(frame, at)?;
            let version = if v6 { 6 } else { 4 };
            return (first >> 12 == version).then_some(Self { at, first, v6 });
        }
    }

    /// The distance of the traffic class from the low end of the first two bytes.
    fn shift(self) -> u32 {
        if self.v6 { 4 } else { 0 }
    }

    fn class(self) -> u8 {
        (self.first >> self.shift()) as u8
    }

    /// `None`, and no change, if the header is truncated.
    fn set_ecn(self, frame: &mut [u8], value: u8) -> Option<()> {
        let first =
            self.first & !(u16::from(ecn::MASK) << self.shift()) | u16::from(value) << self.shift();
        if !self.v6 {
            let checksum = be16_at(frame, self.at + IPV4_CSUM_OFFSET)?;
            let checksum = updated(checksum, self.first, first);
            put(frame, self.at + IPV4_CSUM_OFFSET, checksum.to_be_bytes())?;
        }
        put(frame, self.at, first.to_be_bytes())
    }
}

/// A checksum after one word of the header has changed (RFC 1624 Eq. 3). A wrong one stays wrong.
fn updated(checksum: u16, old: u16, new: u16) -> u16 {
    let sum = u32::from(!checksum) + u32::from(!old) + u32::from(new);
    let sum = (sum >> 16) + (sum & 0xffff);
    !((sum >> 16) + (sum & 0xffff)) as u16
}

/// The traffic class of the IP packet in a frame, or in the front of one, behind any VLAN tags; `None` if there is no
/// IP packet.
pub fn traffic_class(frame: &[u8]) -> Option<u8> {
    Header::find(frame).map(Header::class)
}

impl Head {
    /// The traffic class of the frame's IP packet; 0 if there is none.
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        const L3: usize = ETHERTYPE_OFFSET + 2;
        let front = self.front();
        let first = u16::from_be_bytes([front[L3], front[L3 + 1]]);
        match self.ethertype() {
            _ if self.len() < L3 + 2 => 0,
            ethertype::IPV4 if first >> 12 == 4 => first as u8,
            ethertype::IPV6 if first >> 12 == 6 => (first >> 4) as u8,
            ethertype::VLAN | ethertype::QINQ => behind_tags(self.as_slice()),
            _ => 0,
        }
    }
}

#[cold]
#[inline(never)]
fn behind_tags(frame: &[u8]) -> u8 {
    traffic_class(frame).unwrap_or(0)
}

/// Marks a frame that leaves a tunnel with the congestion in the tunnel: `outer` is the traffic class of the packet
/// that carried it. `frame` may be only the front. Returns true if it was changed.
///
/// The DSCP stays the sender's (RFC 2983's pipe model); frames without an IP packet stay as they are.
///
/// # Errors
/// [`MarkedNotEct`]: the frame must be dropped.
pub fn leave_tunnel(frame: &mut [u8], outer: u8) -> Result<bool, MarkedNotEct> {
    let Some(header) = Header::find(frame) else { return Ok(false) };
    // RFC 6040 figure 4, for the cases in which the result differs from the inner value.
    let value = match (header.class() & ecn::MASK, outer & ecn::MASK) {
        (ecn::NOT_ECT, ecn::CE) => return Err(MarkedNotEct),
        (ecn::ECT_0 | ecn::ECT_1, ecn::CE) => ecn::CE,
        (ecn::ECT_0, ecn::ECT_1) => ecn::ECT_1,
        _ => return Ok(false),
    };
    Ok(header.set_ecn(frame, value).is_some())
}

#[cfg(test)]
mod tests;
