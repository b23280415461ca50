//! Free-running 16-bit indices: they wrap at 2^16, positions in a ring wrap at its size.
//!
//! A packed ring's slot and wrap counter (virtio 1.2 §2.8.1) are one such index too: the slot is
//! its position, and the wrap counter, which begins at 1, is 1 where the bit above that is 0.

/// How far `to` is ahead of `from`.
#[inline]
pub(crate) fn distance(from: u16, to: u16) -> u16 {
    to.wrapping_sub(from)
}

/// Position of a free-running index in a ring of `size` (a power of two) entries.
#[inline]
pub(crate) fn position(index: u16, size: u16) -> usize {
    usize::from(index & (size - 1))
}

/// Did the index pass `event` on its way from `old` to `new` (virtio 1.2 §2.7.10)?
#[inline]
pub(crate) fn passed(event: u16, old: u16, new: u16) -> bool {
    distance(event, new).wrapping_sub(1) < distance(old, new)
}

/// The wrap counter of a free-running index in a packed ring of `size` slots (§2.8.1).
#[inline]
pub(crate) fn wrap(index: u16, size: u16) -> bool {
    index & size == 0
}

/// Slot in bits 0 to 14, wrap counter in bit 15: as event suppression (§2.8.14) and vhost-user's
/// ring bases say it.
#[inline]
pub(crate) fn to_off_wrap(index: u16, size: u16) -> u16 {
    position(index, size) as u16 | u16::from(wrap(index, size)) << 15
}

/// The reverse of [`to_off_wrap`]; equal to the index only modulo twice `size`.
#[inline]
pub(crate) fn from_off_wrap(off_wrap: u16, size: u16) -> u16 {
    let slot = off_wrap & (size - 1);
    if off_wrap & 1 << 15 == 0 { slot.wrapping_add(size) } else { slot }
}

/// How far `to` is ahead of `from`, where both are known modulo twice `size` only.
#[inline]
pub(crate) fn lap_distance(from: u16, to: u16, size: u16) -> u16 {
    // For 2^15 slots the two laps are all of the index space: the mask is 0xffff.
    distance(from, to) & (size << 1).wrapping_sub(1)
}

/// As [`passed`], for an event that a packed ring's driver or device gave as `off_wrap` (§2.8.14).
#[inline]
pub(crate) fn passed_off_wrap(off_wrap: u16, old: u16, new: u16, size: u16) -> bool {
    lap_distance(old, from_off_wrap(off_wrap, size), size) < distance(old, new)
}
