//! A frame's front, copied once out of foreign memory, with room for one more VLAN tag.

use std::fmt;

use weir_limits::HEAD_LEN;

use crate::ethernet::{ETHERTYPE_OFFSET, Ethernet, HEADER_LEN};
use crate::vlan::{TAG_LEN, TagProtocol, Tci};

/// Most bytes a [`Head`] holds: a full front and one tag more.
pub const HEAD_CAPACITY: usize = HEAD_LEN + TAG_LEN;

const _: () = assert!(HEAD_CAPACITY <= u8::MAX as usize);

/// The offset of a tag's control information: behind the tag's ethertype.
const TCI_OFFSET: usize = ETHERTYPE_OFFSET + 2;

/// The first bytes of a frame, at most [`HEAD_CAPACITY`]; the frame may continue behind them.
#[derive(Clone, Copy)]
pub struct Head {
    bytes: [u8; HEAD_CAPACITY],
    len: u8,
}

/// The reason why a tag cannot be inserted into a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TagError {
    /// The head ends inside its Ethernet header.
    #[error("a head of {len} bytes is too short for an Ethernet header")]
    Short {
        /// Bytes in the head.
        len: usize,
    },
    /// The room for one tag has been used.
    #[error("a head of {len} bytes has no room for a tag")]
    Full {
        /// Bytes in the head.
        len: usize,
    },
}

impl Head {
    /// No bytes.
    pub const EMPTY: Head = Head { bytes: [0; HEAD_CAPACITY], len: 0 };

    /// A copy of the first [`HEAD_LEN`] bytes of `front`, or of all of it if it is shorter. The rest of the frame
    /// starts at [`Head::len`].
    pub fn copy_of(front: &[u8]) -> Head {
        let mut head = Head::zeroed(front.len());
        let len = head.len();
        head.as_mut_slice().copy_from_slice(&front[..len]);
        head
    }

    /// `len` zero bytes, or [`HEAD_LEN`] if `len` is more; for a caller that fills [`Head::as_mut_slice`] from memory
    /// that it cannot borrow.
    pub fn zeroed(len: usize) -> Head {
        // HEAD_LEN is below 256, as asserted above.
        Head { bytes: [0; HEAD_CAPACITY], len: len.min(HEAD_LEN) as u8 }
    }

    /// Makes room for `len` bytes, or [`HEAD_LEN`] if `len` is more, that the caller must fill at once; until then they
    /// have old values. It costs less than a new head.
    #[inline]
    pub fn refill(&mut self, len: usize) -> &mut [u8] {
        let len = len.min(HEAD_LEN);
        self.len = len as u8; // HEAD_LEN is below 256, as asserted above
        &mut self.bytes[..len]
    }

    /// The bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len()]
    }

    /// The bytes, mutable.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        let len = self.len();
        &mut self.bytes[..len]
    }

    /// Destination and source address in two words, for comparison with another frame; old values if the head is
    /// shorter.
    #[inline]
    pub fn addresses(&self) -> (u64, u32) {
        let (mut low, mut high) = ([0; 8], [0; 4]);
        low.copy_from_slice(&self.bytes[..8]);
        high.copy_from_slice(&self.bytes[8..ETHERTYPE_OFFSET]);
        (u64::from_ne_bytes(low), u32::from_ne_bytes(high))
    }

    /// All bytes of the longest front; old values behind the head if it is shorter.
    #[inline]
    pub fn front(&self) -> &[u8; HEAD_LEN] {
        self.bytes.first_chunk().unwrap_or(&[0; HEAD_LEN])
    }

    /// The ethertype of the frame, or of its outer tag, behind the addresses; old values if the head is shorter.
    #[inline]
    pub fn ethertype(&self) -> u16 {
        u16::from_be_bytes([self.bytes[ETHERTYPE_OFFSET], self.bytes[ETHERTYPE_OFFSET + 1]])
    }

    /// True if the ethertype is that of a tag, of either kind. The bytes are compared as they lie there.
    #[inline(always)]
    pub fn is_tagged(&self) -> bool {
        const TAGS: [[u8; 2]; 2] = [
            TagProtocol::Dot1q.ethertype().to_be_bytes(),
            TagProtocol::Dot1ad.ethertype().to_be_bytes(),
        ];
        let found = [self.bytes[ETHERTYPE_OFFSET], self.bytes[ETHERTYPE_OFFSET + 1]];
        found == TAGS[0] || found == TAGS[1]
    }

    /// The number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// True if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Drops all but the first `len` bytes; no change if there are no more than that.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(u8::try_from(len).unwrap_or(u8::MAX));
    }

    /// Appends bytes; `false`, and no change, if they do not fit.
    pub fn append(&mut self, bytes: &[u8]) -> bool {
        let start = self.len();
        let end = start + bytes.len();
        if end > HEAD_LEN {
            return false;
        }
        self.bytes[start..end].copy_from_slice(bytes);
        self.len = end as u8; // at most HEAD_LEN, which is below 256
        true
    }

    /// Removes the outer tag and returns it; `None`, and no change, if there is none. The caller must adjust its
    /// [`Offload`](crate::Offload) by [`tag_stripped`](crate::Offload::tag_stripped).
    pub fn strip_vlan(&mut self) -> Option<Tci> {
        let tag = Ethernet::parse(self.as_slice()).ok()?.tag?;
        let len = self.len();
        self.bytes.copy_within(ETHERTYPE_OFFSET + TAG_LEN..len, ETHERTYPE_OFFSET);
        self.len -= TAG_LEN as u8;
        Some(tag)
    }

    /// Inserts a tag behind the source address, in front of any other tag. The caller must adjust its
    /// [`Offload`](crate::Offload) by [`tag_inserted`](crate::Offload::tag_inserted).
    ///
    /// # Errors
    /// [`TagError`], with no change, if there is no Ethernet header or no room.
    pub fn insert_vlan(&mut self, tag: Tci) -> Result<(), TagError> {
        let len = self.len();
        if len < HEADER_LEN {
            return Err(TagError::Short { len });
        }
        if len + TAG_LEN > HEAD_CAPACITY {
            return Err(TagError::Full { len });
        }
        self.bytes.copy_within(ETHERTYPE_OFFSET..len, ETHERTYPE_OFFSET + TAG_LEN);
        self.bytes[ETHERTYPE_OFFSET..TCI_OFFSET]
            .copy_from_slice(&tag.protocol().ethertype().to_be_bytes());
        self.bytes[TCI_OFFSET..TCI_OFFSET + 2].copy_from_slice(&tag.bits().to_be_bytes());
        self.len += TAG_LEN as u8;
        Ok(())
    }
}

impl AsRef<[u8]> for Head {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl PartialEq for Head {
    fn eq(&self, other: &Head) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for Head {}

impl fmt::Debug for Head {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("Head").field(&self.as_slice()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ethernet::ethertype;
    use crate::vlan::TagProtocol;

    fn untagged(len: usize) -> Vec<u8> {
        let mut frame: Vec<u8> = (0..len).map(|n| n as u8).collect();
        frame[12..14].copy_from_slice(&ethertype::IPV4.to_be_bytes());
        frame
    }

    #[test]
    fn insert_then_strip_gives_the_same_bytes_at_every_length() {
        let tag = Tci::new(100, 3, false).unwrap();
        let tags = [tag, tag.of(TagProtocol::Dot1ad)];
        for (len, tag) in (HEADER_LEN..=HEAD_LEN).flat_map(|len| tags.map(|tag| (len, tag))) {
            let original = Head::copy_of(&untagged(len));
            let mut head = original;
            head.insert_vlan(tag).unwrap();
            assert_eq!(head.len(), len + 4);
            assert_eq!(head.as_slice()[..12], original.as_slice()[..12]);
            let kind = if tag == tags[0] { [0x81, 0x00] } else { [0x88, 0xa8] };
            assert_eq!(head.as_slice()[12..16], [kind, [0x60, 0x64]].concat());
            assert_eq!(head.as_slice()[16..], original.as_slice()[12..]);
            assert_eq!(head.strip_vlan(), Some(tag));
            assert_eq!(head, original);
        }
    }

    #[test]
    fn tag_needs_a_header_and_room() {
        let tag = Tci::default();
        let mut short = Head::copy_of(&[0; 13]);
        assert_eq!(short.insert_vlan(tag), Err(TagError::Short { len: 13 }));
        let mut full = Head::copy_of(&untagged(HEAD_LEN));
        full.insert_vlan(tag).unwrap();
        assert_eq!(full.insert_vlan(tag), Err(TagError::Full { len: HEAD_CAPACITY }));
        assert_eq!(Head::copy_of(&untagged(60)).strip_vlan(), None);
    }

    #[test]
    fn cut_tag_is_not_stripped() {
        let mut frame = untagged(17);
        frame[12..14].copy_from_slice(&ethertype::VLAN.to_be_bytes());
        let mut head = Head::copy_of(&frame);
        assert_eq!(head.strip_vlan(), None);
        assert_eq!(head.as_slice(), frame);
    }

    #[test]
    fn appending_stops_at_head_len() {
        let mut head = Head::copy_of(&untagged(20));
        assert!(head.append(&[7; HEAD_LEN - 20]));
        assert_eq!(head.as_slice()[19..22], [19, 7, 7]);
        assert!(!head.append(&[8]));
        assert_eq!(head.len(), HEAD_LEN);
    }

    #[test]
    fn refilling_keeps_nothing_but_room() {
        let mut head = Head::copy_of(&untagged(60));
        head.refill(20).fill(9);
        assert_eq!(head.as_slice(), [9; 20]);
        assert_eq!(head.refill(1000).len(), HEAD_LEN);
    }

    #[test]
    fn copy_stops_at_head_len() {
        let long = untagged(1500);
        assert_eq!(Head::copy_of(&long).as_slice(), &long[..HEAD_LEN]);
        assert_eq!(Head::zeroed(1500).len(), HEAD_LEN);
        assert!(Head::copy_of(&[]).is_empty());
    }
}
