//! A forwarding entry in one word, so that readers and writers handle it whole.
//!
//! A bijection on 61 bits mixes an address (13 bits of VLAN or network, and 48-bit MAC). The low bits of the result choose the
//! bucket, so the entry holds only the rest, the *tag*; tag and bucket give the address back. A larger table than the
//! smallest takes some bits of the tag as well to choose the bucket. Claim and port fill the word:
//!
//! ```text
//!   63             14 13   11 10        0
//!  │ tag (50 bits)  │ claim │ port + 1  │      zero: empty
//! ```

use weir_limits::{FDB_ENTRIES_DEFAULT, NETWORKS_MAX, PORTS_MAX};
use weir_wire::Mac;

use super::WAYS;
use super::claim::Claim;
use crate::port::PortId;
use crate::vlan::Vid;

const ADDRESS_BITS: u32 = 13 + 48;
const ADDRESS_MASK: u64 = (1 << ADDRESS_BITS) - 1;
const MAC_BITS: u32 = 48;
/// Buckets of the smallest table.
const BUCKETS_MIN: usize = FDB_ENTRIES_DEFAULT / WAYS;
const BUCKET_BITS: u32 = BUCKETS_MIN.trailing_zeros();
const PORT_BITS: u32 = 11;
const PORT_MASK: u64 = (1 << PORT_BITS) - 1;
const CLAIM_BITS: u32 = 3;
const CLAIM_MASK: u64 = (1 << CLAIM_BITS) - 1;
const TAG_SHIFT: u32 = PORT_BITS + CLAIM_BITS;

const _: () = {
    assert!(BUCKETS_MIN.is_power_of_two());
    // A smaller table would leave too many bits of the address to the tag.
    assert!(ADDRESS_BITS - BUCKET_BITS + TAG_SHIFT <= u64::BITS);
    assert!(PORTS_MAX < PORT_MASK as usize);
    assert!(4096 + NETWORKS_MAX <= 1 << (ADDRESS_BITS - MAC_BITS));
};

/// The place of an address: a bucket, and the tag that tells it from others there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    pub bucket: usize,
    pub tag: u64,
}

impl Slot {
    /// The slot in a table of `buckets` buckets, a power of two. `seed` is the table's own and unknown outside, so that
    /// a station can't easily choose addresses that share a bucket.
    #[inline]
    pub(super) fn of(vid: Vid, mac: Mac, seed: u64, buckets: usize) -> Self {
        let mixed = mix((u64::from(vid.get()) << MAC_BITS | mac.to_u64()) ^ (seed & ADDRESS_MASK));
        Self { bucket: mixed as usize & (buckets - 1), tag: mixed >> BUCKET_BITS }
    }

    /// The address; `None` for a slot that [`Self::of`] never returns.
    pub(super) fn address(self, seed: u64) -> Option<(Vid, Mac)> {
        let low = (self.bucket % BUCKETS_MIN) as u64;
        let address = unmix(self.tag << BUCKET_BITS | low) ^ (seed & ADDRESS_MASK);
        let [v1, v0, mac @ ..] = address.to_be_bytes();
        Some((Vid::from_bits(u16::from_be_bytes([v1, v0]))?, Mac(mac)))
    }
}

/// Odd, so that multiplication modulo 2^61 can be undone; from splitmix64.
const MULTIPLIERS: [u64; 2] = [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb];
/// Half of the bits at least, so that the shift-xor undoes itself.
const SHIFT: u32 = ADDRESS_BITS.div_ceil(2);

fn mix(address: u64) -> u64 {
    MULTIPLIERS.iter().fold(address, |bits, &multiplier| {
        let bits = bits.wrapping_mul(multiplier) & ADDRESS_MASK;
        bits ^ bits >> SHIFT
    })
}

fn unmix(mixed: u64) -> u64 {
    MULTIPLIERS.iter().rev().fold(mixed, |bits, &multiplier| {
        let bits = bits ^ bits >> SHIFT;
        bits.wrapping_mul(inverse(multiplier)) & ADDRESS_MASK
    })
}

/// The inverse of an odd number modulo 2^64 by Newton's iteration: 3 bits are right to begin with and
/// each step doubles them.
const fn inverse(odd: u64) -> u64 {
    let mut inverse = odd;
    let mut right_bits = 3;
    while right_bits < u64::BITS {
        inverse = inverse.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(inverse)));
        right_bits *= 2;
    }
    inverse
}

/// An entry, unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub tag: u64,
    pub claim: Claim,
    pub port: PortId,
}

impl Entry {
    pub(super) fn pack(self) -> u64 {
        let claim = (self.claim as u64) << PORT_BITS;
        self.tag << TAG_SHIFT | claim | (u64::from(self.port.get()) + 1)
    }

    pub(super) fn unpack(word: u64) -> Option<Self> {
        let number = u16::try_from((word & PORT_MASK).checked_sub(1)?).ok()?;
        let claim = match word >> PORT_BITS & CLAIM_MASK {
            0 => Claim::Dynamic,
            1 => Claim::First,
            2 => Claim::Pinned,
            3 => Claim::Uplink,
            4 => Claim::Told,
            _ => Claim::ToldSticky,
        };
        Some(Self { tag: word >> TAG_SHIFT, claim, port: PortId::new(number)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weir_limits::FDB_ENTRIES_MAX;

    const ALL: [Claim; 6] = [
        Claim::Dynamic,
        Claim::First,
        Claim::Pinned,
        Claim::Uplink,
        Claim::Told,
        Claim::ToldSticky,
    ];

    proptest! {
        #[test]
        fn slot_gives_a_networks_address_back(network in 0..NETWORKS_MAX as u16, mac: [u8; 6], seed: u64, larger in 0..7) {
            let address = (Vid::of_network(network).unwrap(), Mac(mac));
            let slot = Slot::of(address.0, address.1, seed, BUCKETS_MIN << larger);
            prop_assert_eq!(slot.address(seed), Some(address));
        }

        #[test]
        fn slot_gives_its_address_back(vid in 1..=4094u16, mac: [u8; 6], seed: u64, larger in 0..7) {
            let address = (Vid::new(vid).unwrap(), Mac(mac));
            let slot = Slot::of(address.0, address.1, seed, BUCKETS_MIN << larger);
            prop_assert!(slot.bucket < BUCKETS_MIN << larger);
            prop_assert_eq!(slot.address(seed), Some(address));
        }

        #[test]
        fn entry_survives_its_word(tag in 0..1u64 << 50, claim in 0..6, port in 0..PORTS_MAX as u16) {
            let claim = ALL[claim as usize];
            let entry = Entry { tag, claim, port: PortId::new(port).unwrap() };
            prop_assert_eq!(Entry::unpack(entry.pack()), Some(entry));
        }
    }

    #[test]
    fn zero_is_empty() {
        assert_eq!(Entry::unpack(0), None);
    }

    #[test]
    fn consecutive_addresses_spread_over_the_buckets() {
        for buckets in [BUCKETS_MIN, FDB_ENTRIES_MAX / WAYS] {
            let mut per_bucket = vec![0; buckets];
            for host in 0..buckets as u32 * 4 {
                let [a, b, c, d] = host.to_be_bytes();
                let slot = Slot::of(Vid::DEFAULT, Mac([0x52, 0x54, a, b, c, d]), 0, buckets);
                per_bucket[slot.bucket] += 1;
            }
            // Four per bucket on average: as a Poisson variable it exceeds 18 once in 50 million.
            assert!(per_bucket.iter().all(|&count| count <= 18));
        }
    }
}
