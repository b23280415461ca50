//! Agreement of two hosts about IDs of groups: each weir tells its peers what its IDs mean.
//!
//! An ID that means other groups at another host counts as no group of frames from there, and is shown.

use std::sync::Mutex;

use weir_engine::lock;
use weir_guestmem::{HostBuffer, Slice};
use weir_limits::GROUP_IDS_MAX;

/// The mark takes the place of a VXLAN header, and names no network. Other words between weirs have
/// marks of the same form. The last two bytes are the kind of the word and its version.
const MARK: u64 = u64::from_be_bytes([0, b'w', b'e', b'i', b'r', 0, 1, 1]);
const MARK_LEN: usize = size_of::<u64>();
/// The bits of the check in an entry: an ID in the upper 16 bits, and the check of its set in the others.
const CHECK: u64 = (1 << 48) - 1;

/// The entry by which the other host learns the meaning of an ID.
fn entry(id: u16, check: u64) -> u64 {
    u64::from(id) << 48 | check & CHECK
}

/// The meaning of another host's IDs, as that host has stated it.
#[derive(Debug, Default)]
pub(crate) struct Said(Mutex<Box<[u64]>>);

impl Said {
    /// Processes a word; returns `false` for any other datagram. A worker does not wait for the lock: the other host
    /// repeats itself.
    pub(crate) fn hear(&self, place: Slice<'_>) -> bool {
        let number = |at: usize| place.skip(at).read_array().map(u64::from_be_bytes);
        let entries = place.len().saturating_sub(MARK_LEN) / size_of::<u64>();
        let is_word = place.len() % size_of::<u64>() == 0 && entries <= GROUP_IDS_MAX;
        if !is_word || number(0) != Some(MARK) {
            return false;
        }
        if let Ok(mut said) = self.0.try_lock() {
            *said = (1..=entries).filter_map(|n| number(n * size_of::<u64>())).collect();
        }
        true
    }

    /// The IDs that mean another set at the other host than here, in ascending order. `here` gives the check of an ID's
    /// set.
    pub(crate) fn disputed(&self, here: impl Fn(u16) -> Option<u64>) -> Vec<u16> {
        let is_disputed = |there: &u64| {
            let id = (there >> 48) as u16;
            here(id).is_some_and(|check| entry(id, check) != *there).then_some(id)
        };
        let mut ids: Vec<_> = lock(&self.0).iter().filter_map(is_disputed).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// True if the ID means another set at the other host than the one with this check.
    pub(crate) fn disputes(&self, id: u16, check: u64) -> bool {
        let here = entry(id, check);
        lock(&self.0).iter().any(|there| there >> 48 == here >> 48 && *there != here)
    }
}

/// The word about these IDs, each with the check of its set.
pub(crate) fn word(sets: impl Iterator<Item = (u16, u64)>) -> HostBuffer {
    let entries = sets.take(GROUP_IDS_MAX).map(|(id, check)| entry(id, check));
    let bytes: Vec<u8> = std::iter::once(MARK).chain(entries).flat_map(u64::to_be_bytes).collect();
    let word = HostBuffer::new(bytes.len());
    if let Some(place) = word.slice(0, bytes.len()) {
        place.write(&bytes);
    }
    word
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hear(said: &Said, bytes: &[u8]) -> bool {
        let buffer = HostBuffer::new(bytes.len().max(1));
        buffer.slice(0, bytes.len()).unwrap().write(bytes);
        said.hear(buffer.slice(0, bytes.len()).unwrap())
    }

    fn bytes(sets: &[(u16, u64)]) -> Vec<u8> {
        let word = word(sets.iter().copied());
        let mut bytes = vec![0; word.len()];
        word.slice(0, word.len()).unwrap().read(&mut bytes);
        bytes
    }

    #[test]
    fn an_id_is_disputed_if_it_means_another_set_there() {
        let said = Said::default();
        assert!(!said.disputes(17, 1), "nothing was said");
        assert!(hear(&said, &bytes(&[(17, 1), (18, 2)])));
        assert!(!said.disputes(17, 1) && said.disputes(17, 2) && said.disputes(18, 1));
        assert!(!said.disputes(19, 1), "it is known here only");
        assert!(hear(&said, &bytes(&[])));
        assert!(!said.disputes(17, 2), "the last word counts");
    }

    #[test]
    fn what_is_no_word_of_this_version_is_none() {
        let said = Said::default();
        let good = bytes(&[(17, 1)]);
        let most: Vec<_> = (0..=GROUP_IDS_MAX as u16).map(|id| (id, 1)).collect();
        assert_eq!(bytes(&most).len(), 8 * (1 + GROUP_IDS_MAX), "one word has the most");
        let longer = [&bytes(&most)[..], &[0; 8]].concat();
        let mut newer = good.clone();
        newer[7] += 1;
        for bad in [&good[1..], &good[..good.len() - 1], &[], &newer, &longer, &[0; 16]] {
            assert!(!hear(&said, bad), "{bad:?}");
        }
        assert!(!said.disputes(17, 2));
    }

    proptest! {
        #[test]
        fn two_hosts_dispute_what_differs_alike(
            here in proptest::collection::btree_map(0..9_u16, 0..3_u64, 0..9),
            there in proptest::collection::btree_map(0..9_u16, 0..3_u64, 0..9),
        ) {
            let [heard_here, heard_there] = [&there, &here].map(|sets| {
                let (said, sets) = (Said::default(), sets.iter().map(|(id, check)| (*id, *check)));
                assert!(hear(&said, &bytes(&sets.collect::<Vec<_>>())));
                said
            });
            for id in 0..9 {
                let differs = matches!((here.get(&id), there.get(&id)), (Some(a), Some(b)) if a != b);
                let listed = heard_here.disputed(|id| here.get(&id).copied()).contains(&id);
                prop_assert_eq!(listed, differs);
                if let Some(check) = here.get(&id) {
                    prop_assert_eq!(heard_here.disputes(id, *check), differs);
                }
                if let Some(check) = there.get(&id) {
                    prop_assert_eq!(heard_there.disputes(id, *check), differs);
                }
            }
        }

        #[test]
        fn any_bytes_harm_nobody(bytes: Vec<u8>) {
            let said = Said::default();
            hear(&said, &[&MARK.to_be_bytes()[..], &bytes].concat());
            said.disputes(17, 1);
        }
    }
}
