//! A forwarding entry in one word, so that readers and writers handle it whole; the strength with which a port holds an
//! address; and ports between which addresses have moved lately: a loop moves them thousands of times a second.
//!
//! A bijection on 61 bits mixes an address (13 bits of VLAN or network, and 48-bit MAC). The low bits of the result choose
//! the bucket, so the entry holds only the rest, the *tag*; tag and bucket give the address back. A larger table than the
//! smallest takes some bits of the tag as well to choose the bucket. Claim and port fill the word:
//!
//! ```text
//!   63             14 13   11 10        0
//!  │ tag (50 bits)  │ claim │ port + 1  │      zero: empty
//! ```

use weir_limits::{FDB_ENTRIES_DEFAULT, NETWORKS_MAX, PORTS_MAX};
use weir_wire::Mac;

use super::WAYS;
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

/// The strength with which a port holds an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// An address learned from traffic. Any port that uses the address takes it over. It ages, and can be evicted.
    Dynamic = 0,
    /// The first address of a checked port ([`crate::MacCheck::First`]). It stays until the port is flushed.
    First = 1,
    /// The configured address of a checked port ([`crate::MacCheck::Pinned`]). It stays until the port is flushed.
    Pinned = 2,
    /// An address learned from an uplink's traffic: as [`Self::Dynamic`], but fewer ports can take it over.
    Uplink = 3,
    /// An address stated by a control plane ([`Fdb::tell`](super::Fdb::tell)): as [`Self::Uplink`], but it stays until
    /// it is withdrawn.
    Told = 4,
    /// An address that a control plane states as not moving: only a port on which the address is configured takes it
    /// over.
    ToldSticky = 5,
}

impl Claim {
    /// True if the address ages, and may be evicted.
    pub(super) fn is_learned(self) -> bool {
        matches!(self, Self::Dynamic | Self::Uplink)
    }

    /// True if the address is behind an uplink and so counts against its network's limit.
    pub(super) fn is_outside(self) -> bool {
        matches!(self, Self::Uplink | Self::Told | Self::ToldSticky)
    }

    /// True if a port with the claim `by` takes over an address that another port holds with this claim. A guest cannot
    /// simply take an address behind an uplink, above all the gateway's. Nor can a station outside take a guest's
    /// address.
    pub(super) fn yields_to(self, by: Self) -> bool {
        match self {
            Self::Dynamic => true,
            Self::Uplink | Self::Told => by != Self::First,
            Self::First | Self::ToldSticky => by == Self::Pinned,
            Self::Pinned => false,
        }
    }
}

/// Pairs of each kind that are kept. They are read and cleared ten times a second.
const PAIRS_MAX: usize = 32;

/// Addresses that moved between two ports in a VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moves {
    /// The VLAN.
    pub vid: Vid,
    /// The two ports, the lower number first.
    pub ports: [PortId; 2],
    /// The number of moves to the second port, and to the first.
    pub times: [u64; 2],
}

/// Pairs since the last reading. Pairs with guests cannot take the places of pairs of uplinks.
#[derive(Debug, Default)]
pub(super) struct Noted {
    outside: Vec<Moves>,
    others: Vec<Moves>,
}

impl Noted {
    /// Notes a move; `outside` if both ports hold the address as uplinks do.
    pub(super) fn note(&mut self, vid: Vid, from: PortId, to: PortId, outside: bool) {
        let pairs = if outside { &mut self.outside } else { &mut self.others };
        let ports = [from.min(to), from.max(to)];
        let back = usize::from(to < from);
        if let Some(pair) = pairs.iter_mut().find(|it| (it.vid, it.ports) == (vid, ports)) {
            pair.times[back] += 1;
        } else if pairs.len() < PAIRS_MAX {
            let mut times = [0; 2];
            times[back] = 1;
            pairs.push(Moves { vid, ports, times });
        }
    }

    /// Returns the pairs, those of uplinks first, and clears them.
    pub(super) fn take(&mut self) -> Vec<Moves> {
        let Self { outside, others } = self;
        outside.drain(..).chain(others.drain(..)).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use weir_limits::FDB_ENTRIES_MAX;

    use super::*;

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
