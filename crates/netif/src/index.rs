//! Free-running 32-bit indices (`RING_IDX` of `public/io/ring.h`). They wrap at 2^32, positions in
//! a ring at its size.

/// Length of `struct ..._sring` before its entries (bytes): four indices, 4 private bytes, 44 of
/// padding.
pub(crate) const HEADER_BYTES: usize = 64;

/// Returns how far `to` is ahead of `from`.
#[inline]
pub(crate) fn distance(from: u32, to: u32) -> u32 {
    to.wrapping_sub(from)
}

/// Returns the offset of an index's entry in a ring of `size` (a power of two) entries of
/// `slot_bytes`.
#[inline]
pub(crate) fn entry(index: u32, size: u32, slot_bytes: usize) -> usize {
    HEADER_BYTES + (index & (size - 1)) as usize * slot_bytes
}

/// Returns whether the producer reached `event` on its way from `old` to `new`
/// (`RING_PUSH_*_AND_CHECK_NOTIFY`). An event is the producer's index after the awaited message,
/// one more than in virtio.
#[inline]
pub(crate) fn reached(event: u32, old: u32, new: u32) -> bool {
    distance(event, new) < distance(old, new)
}

/// Returns the number of entries of a ring in `bytes`: as many as fit, rounded down to a power of
/// two (`__RING_SIZE`). Returns `None` if not one fits.
pub(crate) fn ring_size(bytes: usize, slot_bytes: usize) -> Option<u32> {
    let fit = bytes.checked_sub(HEADER_BYTES)? / slot_bytes;
    u32::try_from(1usize << fit.checked_ilog2()?).ok()
}

/// Returns whether a producer at `to` is plausible: at most `size` ahead of `answered`, and not behind `seen`. An
/// index that went back counts as one that jumped far ahead.
#[inline]
pub(crate) fn plausible(answered: u32, seen: u32, to: u32, size: u32) -> bool {
    let ahead = distance(answered, to);
    ahead <= size && ahead >= distance(answered, seen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rings_are_as_large_as_those_of_linux() {
        // NET_TX_RING_SIZE and NET_RX_RING_SIZE of xen-netfront, and the control ring's.
        assert_eq!(ring_size(4096, 12), Some(256));
        assert_eq!(ring_size(4096, 8), Some(256));
        assert_eq!(ring_size(4096, 16), Some(128));
        assert_eq!(ring_size(4 * 4096, 8), Some(1024));
        assert_eq!(ring_size(64 + 8, 8), Some(1));
        assert_eq!(ring_size(64 + 7, 8), None);
        assert_eq!(ring_size(63, 8), None);
    }

    proptest! {
        /// Compares the formula with the sentence: some index in `old + 1 ..= new` is the event.
        #[test]
        fn an_event_is_reached_when_it_is_one_of_the_new_indices(
            old in any::<u32>(), step in 0u32..600, offset in -700i32..700,
        ) {
            let new = old.wrapping_add(step);
            let event = old.wrapping_add_signed(offset);
            let among = (1..=step).any(|nth| old.wrapping_add(nth) == event);
            prop_assert_eq!(reached(event, old, new), among);
        }

        #[test]
        fn a_producer_is_believed_between_what_was_seen_and_a_full_ring(
            answered in any::<u32>(), taken in 0u32..=256, to in -600i64..600,
        ) {
            let seen = answered.wrapping_add(taken);
            let index = (i64::from(answered) + to) as u32;
            let believed = plausible(answered, seen, index, 256);
            prop_assert_eq!(believed, (i64::from(taken)..=256).contains(&to));
        }
    }
}
