//! A short frame that weir writes itself, piece by piece.

use crate::checksum::Sum;
use crate::ethernet::ethertype;
use crate::layers::protocol;

/// A frame of up to `N` bytes. Bytes without room are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Own<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Own<N> {
    /// An empty frame.
    pub(crate) fn new() -> Self {
        Self { bytes: [0; N], len: 0 }
    }

    pub(crate) fn push(&mut self, part: &[u8]) {
        let end = self.len + part.len();
        if let Some(place) = self.bytes.get_mut(self.len..end) {
            place.copy_from_slice(part);
            self.len = end;
        }
    }

    /// Appends zeros up to this length.
    pub(crate) fn pad(&mut self, len: usize) {
        self.len = self.len.max(len.min(N));
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Appends the ethertype and the IPv6 header of an ICMPv6 message of `len` bytes from one address to another.
    /// Returns the sum of its pseudo-header (RFC 8200 section 8.1).
    pub(crate) fn ipv6_of_icmp(
        &mut self,
        len: u16,
        hops: u8,
        (from, to): ([u8; 16], [u8; 16]),
    ) -> Sum {
        self.push(&ethertype::IPV6.to_be_bytes());
        self.push(&[0x60, 0, 0, 0]);
        self.push(&len.to_be_bytes());
        self.push(&[protocol::ICMPV6, hops]);
        self.push(&from);
        self.push(&to);
        let mut sum = Sum::new();
        sum.add(&from);
        sum.add(&to);
        sum.add_u32(len.into());
        sum.add_u32(protocol::ICMPV6.into());
        sum
    }

    /// Fills in the checksum of the message that begins at `at`; `sum` is added to it.
    pub(crate) fn fill_sum(&mut self, at: usize, field: usize, mut sum: Sum) {
        sum.add(self.bytes.get(at..self.len).unwrap_or_default());
        if let Some(place) = self.bytes.get_mut(field..field + 2) {
            place.copy_from_slice(&sum.finish().to_be_bytes());
        }
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}
