//! A position in a ring.
//!
//! A split ring has free-running 16-bit indices: they wrap at 2^16, positions in the ring at its size, a power of two.
//! A packed ring may have any number of slots. Slot and wrap counter (virtio 1.2 §2.8.1) are one number, a *place*: it
//! wraps at twice the size, and in its first lap the wrap counter is 1. Everything in flight is within one lap.

/// The distance from `from` ahead to `to`.
#[inline]
pub(crate) fn distance(from: u16, to: u16) -> u16 {
    to.wrapping_sub(from)
}

/// Position of a free-running index in a ring of `size` (a power of two) entries.
#[inline]
pub(crate) fn position(index: u16, size: u16) -> usize {
    usize::from(index & (size - 1))
}

/// True if the index passed `event` on its way from `old` to `new` (virtio 1.2 §2.7.10).
#[inline]
pub(crate) fn passed(event: u16, old: u16, new: u16) -> bool {
    distance(event, new).wrapping_sub(1) < distance(old, new)
}

#[inline]
pub(crate) fn slot(place: u16, size: u16) -> u16 {
    if place < size { place } else { place.wrapping_sub(size) }
}

/// The wrap counter of a place (§2.8.1).
#[inline]
pub(crate) fn wrap(place: u16, size: u16) -> bool {
    place < size
}

/// The place `count` slots ahead, at most a lap.
#[inline]
pub(crate) fn ahead(place: u16, count: u16, size: u16) -> u16 {
    let (next, laps) = (u32::from(place) + u32::from(count), 2 * u32::from(size));
    (if next < laps { next } else { next - laps }) as u16
}

/// The place `count` slots back, at most a lap.
#[inline]
pub(crate) fn back(place: u16, count: u16, size: u16) -> u16 {
    let back = place.wrapping_sub(count);
    if place < count { back.wrapping_add(size.wrapping_mul(2)) } else { back }
}

/// The number of slots from `from` ahead to `to`, two places in a packed ring.
#[inline]
pub(crate) fn lap_distance(from: u16, to: u16, size: u16) -> u16 {
    back(to, from, size)
}

/// Slot in bits 0 to 14, wrap counter in bit 15: the form of event suppression (§2.8.14) and of vhost-user's ring
/// bases.
#[inline]
pub(crate) fn to_off_wrap(place: u16, size: u16) -> u16 {
    slot(place, size) | u16::from(wrap(place, size)) << 15
}

/// The reverse of [`to_off_wrap`]. For a slot beyond the ring it returns a number that is not a place.
#[inline]
pub(crate) fn from_off_wrap(off_wrap: u16, size: u16) -> u16 {
    let slot = off_wrap & !(1 << 15);
    if off_wrap & 1 << 15 == 0 { slot.wrapping_add(size) } else { slot }
}

/// Does the same as [`passed`], for the last `count` slots before `new`, and for an event that a packed ring's driver
/// or device wrote as `off_wrap` (§2.8.14).
#[inline]
pub(crate) fn passed_off_wrap(off_wrap: u16, count: u16, new: u16, size: u16) -> bool {
    lap_distance(from_off_wrap(off_wrap, size), new, size).wrapping_sub(1) < count
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The places of a ring, one after the other, compared with a count that never wraps.
    #[test]
    fn places_of_a_packed_ring_of_any_size_go_around_in_two_laps() {
        for size in [1, 2, 3, 5, 7, 48, 255, 1000, 32_767, 32_768] {
            let steps = 2 * u32::from(size);
            let mut place = 0;
            for step in 0..2 * steps {
                let (lap, expected) = (step / u32::from(size), step % u32::from(size));
                assert_eq!(
                    (u32::from(slot(place, size)), wrap(place, size)),
                    (expected, lap % 2 == 0)
                );
                assert_eq!(from_off_wrap(to_off_wrap(place, size), size), place);
                for count in [0, 1, size / 2, size - 1, size] {
                    let next = ahead(place, count, size);
                    assert_eq!(back(next, count, size), place);
                    assert_eq!(lap_distance(place, next, size), count, "{place} in {size}");
                    let event = to_off_wrap(place, size);
                    assert_eq!(passed_off_wrap(event, count, next, size), count > 0);
                    assert!(
                        !passed_off_wrap(event, count.saturating_sub(1), next, size) || count == 0
                    );
                }
                place = ahead(place, 1, size);
            }
            assert_eq!(place, 0);
        }
    }
}
