//! Free-running 16-bit indices: they wrap at 2^16, positions in a ring wrap at its size.

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
