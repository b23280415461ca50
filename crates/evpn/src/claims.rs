//! The IP addresses of this host's stations: the configured ones, and those that stations claim in ARP and neighbour
//! discovery. Pure: times are passed in, and nothing is read.
//!
//! Any guest can claim any address. So the first station that claims an address has it, and an address that is
//! configured for one station belongs to no other. An address that two stations claim is announced for neither:
//! requests for it go to everybody, as without EVPN. The first station has the address again once it claims the address
//! again and the other one is silent. The other station gets the address if the first one was removed, or has not
//! claimed it for long.

use std::collections::{BTreeMap, HashMap};

use weir_limits::{EVPN_CLAIM_AGE_NS, EVPN_CLAIMS_PER_MAC, EVPN_CONTEST_NS};
use weir_wire::Mac;

use crate::announce::{Owned, Place};

#[derive(Clone, Copy, Debug)]
struct Claim {
    mac: Mac,
    seen_ns: u64,
    /// The time of another station's last claim of the address.
    contested_ns: Option<u64>,
    /// True if the other station had the address before.
    is_second: bool,
}

impl Claim {
    fn is_contested(&self, now_ns: u64) -> bool {
        match (self.contested_ns, self.is_second) {
            (None, _) => false,
            (Some(at), true) => now_ns < at.saturating_add(EVPN_CLAIM_AGE_NS),
            // The contest lasts until the station claims the address again: it may have given the address away.
            (Some(_), false) => true,
        }
    }
}

/// The judgement of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judged {
    /// The claim is new, or valid again.
    New,
    /// The claim was known.
    Known,
    /// Another station has the address, or the address is configured for another station.
    Contested,
    /// The station, its network, or all networks together have too many addresses.
    Full,
}

/// The stations at this host that have addresses.
#[derive(Debug)]
pub struct Claims {
    configured: BTreeMap<Owned, Mac>,
    claims: BTreeMap<Owned, Claim>,
    of_station: HashMap<Place, usize>,
    of_network: BTreeMap<u16, usize>,
    max: usize,
    network_max: usize,
    contested: u64,
    refused: u64,
}

impl Claims {
    /// No claims, with room for `max` that are learned, and for `network_max` of one network.
    pub fn new(max: usize, network_max: usize) -> Self {
        let (configured, claims, of_station, of_network) = Default::default();
        let (contested, refused) = (0, 0);
        Self { configured, claims, of_station, of_network, max, network_max, contested, refused }
    }

    /// Replaces the configured addresses; `true` if they differ from the earlier ones.
    pub fn configure(&mut self, configured: BTreeMap<Owned, Mac>) -> bool {
        let is_new = self.configured != configured;
        self.configured = configured;
        is_new
    }

    /// Judges a station's claim of an address; the station is here or behind another host.
    pub fn saw(&mut self, of: Owned, mac: Mac, is_remote: bool, now_ns: u64) -> Judged {
        let judged = self.judge(of, mac, is_remote, now_ns);
        match judged {
            Judged::Contested => self.contested += 1,
            Judged::Full => self.refused += 1,
            Judged::New | Judged::Known => {}
        }
        judged
    }

    fn judge(&mut self, of: Owned, mac: Mac, is_remote: bool, now_ns: u64) -> Judged {
        let (network, _) = of;
        if let Some(owner) = self.configured.get(&of) {
            return if *owner == mac && !is_remote { Judged::Known } else { Judged::Contested };
        }
        match self.claims.get_mut(&of) {
            Some(claim) if claim.mac == mac => {
                if is_remote {
                    return Judged::Known;
                }
                claim.seen_ns = now_ns;
                let is_silent = |at: u64| now_ns >= at.saturating_add(EVPN_CONTEST_NS);
                let ends = !claim.is_second && claim.contested_ns.is_some_and(is_silent);
                if ends {
                    claim.contested_ns = None;
                }
                return if ends { Judged::New } else { Judged::Known };
            }
            Some(claim) => {
                claim.contested_ns = Some(now_ns);
                return Judged::Contested;
            }
            // A station at another host has the address as long as none at this host claims it.
            None if is_remote => return Judged::Known,
            None => {}
        }
        let of_station = self.of_station.get(&(network, mac)).copied().unwrap_or(0);
        let of_network = self.of_network.get(&network).copied().unwrap_or(0);
        if self.claims.len() >= self.max
            || of_network >= self.network_max
            || of_station >= EVPN_CLAIMS_PER_MAC
        {
            return Judged::Full;
        }
        self.claims
            .insert(of, Claim { mac, seen_ns: now_ns, contested_ns: None, is_second: false });
        *self.of_station.entry((network, mac)).or_default() += 1;
        *self.of_network.entry(network).or_default() += 1;
        Judged::New
    }

    /// The addresses of this host's stations that are to be announced. `elsewhere` gives the owner of an address behind
    /// another host. Forgets the claims of stations that were removed, and claims that were not repeated for long.
    pub fn here(
        &mut self,
        is_here: impl Fn(Place) -> bool,
        elsewhere: impl Fn(Owned) -> Option<Mac>,
        now_ns: u64,
    ) -> BTreeMap<Owned, Mac> {
        let old = self.claims.iter().filter(|((network, _), claim)| {
            now_ns >= claim.seen_ns.saturating_add(EVPN_CLAIM_AGE_NS)
                || !is_here((*network, claim.mac))
        });
        for of in old.map(|(of, _)| *of).collect::<Vec<_>>() {
            self.forget(of);
        }
        for (of, claim) in &mut self.claims {
            if elsewhere(*of).is_some_and(|mac| mac != claim.mac) {
                (claim.contested_ns, claim.is_second) = (Some(now_ns), true);
            }
        }
        let claims = self
            .claims
            .iter()
            .filter(|(of, claim)| !self.configured.contains_key(of) && !claim.is_contested(now_ns));
        let configured =
            self.configured.iter().filter(|((network, _), mac)| is_here((*network, **mac)));
        let configured = configured.map(|(of, mac)| (*of, *mac));
        claims.map(|(of, claim)| (*of, claim.mac)).chain(configured).collect()
    }

    fn forget(&mut self, of: Owned) {
        let Some(Claim { mac, .. }) = self.claims.remove(&of) else { return };
        let lessen = |count: &mut usize| {
            *count = count.saturating_sub(1);
            *count == 0
        };
        if self.of_station.get_mut(&(of.0, mac)).is_some_and(lessen) {
            self.of_station.remove(&(of.0, mac));
        }
        if self.of_network.get_mut(&of.0).is_some_and(lessen) {
            self.of_network.remove(&of.0);
        }
    }

    /// The time (ns) after which a claim or a contest ends by itself, if there is one.
    pub fn ends_ns(&self, now_ns: u64) -> Option<u64> {
        let ends = self.claims.values().map(|claim| {
            let contest_ns = claim.contested_ns.filter(|_| claim.is_second);
            contest_ns.unwrap_or(claim.seen_ns).min(claim.seen_ns).saturating_add(EVPN_CLAIM_AGE_NS)
        });
        ends.min().map(|at| at.saturating_sub(now_ns))
    }

    /// The number of held claims, and since the start the numbers of contested claims and of claims without room.
    pub fn counts(&self) -> (usize, u64, u64) {
        (self.claims.len(), self.contested, self.refused)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    const A: Mac = Mac([2, 0, 0, 0, 0, 0xa]);
    const B: Mac = Mac([2, 0, 0, 0, 0, 0xb]);

    fn ip(number: u32) -> IpAddr {
        IpAddr::from((0x0a00_0000 + number).to_be_bytes())
    }

    fn says(claims: &mut Claims, mac: Mac, number: u32, now_ns: u64) -> Judged {
        claims.saw((0, ip(number)), mac, false, now_ns)
    }

    fn announced(claims: &mut Claims, now_ns: u64) -> Vec<(IpAddr, Mac)> {
        let here = claims.here(|_| true, |_| None, now_ns);
        here.into_iter().map(|((_, ip), mac)| (ip, mac)).collect()
    }

    fn all() -> Claims {
        Claims::new(1000, 500)
    }

    #[test]
    fn who_says_so_first_has_an_address_until_it_is_gone_or_silent() {
        let mut claims = all();
        assert_eq!(says(&mut claims, A, 1, 0), Judged::New);
        assert_eq!(announced(&mut claims, 1), [(ip(1), A)]);
        assert_eq!(says(&mut claims, A, 1, 5), Judged::Known);
        assert_eq!(claims.ends_ns(5), Some(EVPN_CLAIM_AGE_NS));
        assert_eq!(announced(&mut claims, EVPN_CLAIM_AGE_NS), [(ip(1), A)]);
        assert!(announced(&mut claims, 5 + EVPN_CLAIM_AGE_NS).is_empty());
        says(&mut claims, A, 1, 7);
        assert!(claims.here(|_| false, |_| None, 8).is_empty(), "its station is gone");
        assert_eq!(claims.counts().0, 0);
        assert_eq!(says(&mut claims, B, 1, 9), Judged::New);
    }

    #[test]
    fn nobody_takes_the_address_of_one_who_is_here_and_two_that_claim_it_are_announced_neither() {
        for is_remote in [false, true] {
            let mut claims = all();
            says(&mut claims, A, 1, 0);
            let mut now_ns = 1;
            // The dispute lasts as long as the owner is there, however often the other station claims the address.
            while now_ns < 2 * EVPN_CLAIM_AGE_NS {
                says(&mut claims, A, 1, now_ns);
                let judged = claims.saw((0, ip(1)), B, is_remote, now_ns);
                assert_eq!(judged, Judged::Contested);
                assert!(announced(&mut claims, now_ns + 1).is_empty());
                now_ns += EVPN_CONTEST_NS - 1;
            }
            // A station that has given its address away does not claim the address again.
            now_ns += 1;
            assert!(announced(&mut claims, now_ns).is_empty());
            assert_eq!(says(&mut claims, A, 1, now_ns), Judged::New);
            assert_eq!(announced(&mut claims, now_ns), [(ip(1), A)], "the other has given up");
            claims.saw((0, ip(1)), B, is_remote, now_ns);
            now_ns += EVPN_CLAIM_AGE_NS;
            assert!(announced(&mut claims, now_ns).is_empty());
            says(&mut claims, B, 1, now_ns);
            assert_eq!(
                announced(&mut claims, now_ns),
                [(ip(1), B)],
                "the first was silent for long"
            );
        }
    }

    #[test]
    fn who_claims_what_another_hosts_station_has_does_not_get_it_when_that_is_withdrawn() {
        let mut claims = all();
        says(&mut claims, A, 1, 0);
        assert!(claims.here(|_| true, |_| Some(B), 1).is_empty());
        // The other host has heard of the claim, and no longer announces the address.
        let mut now_ns = 2;
        while now_ns < EVPN_CLAIM_AGE_NS {
            says(&mut claims, A, 1, now_ns);
            assert!(announced(&mut claims, now_ns).is_empty());
            now_ns += EVPN_CONTEST_NS;
        }
        claims.saw((0, ip(1)), B, true, now_ns);
        says(&mut claims, A, 1, now_ns + EVPN_CLAIM_AGE_NS - 1);
        assert!(announced(&mut claims, now_ns + EVPN_CLAIM_AGE_NS - 1).is_empty());
        assert_eq!(announced(&mut claims, now_ns + EVPN_CLAIM_AGE_NS), [(ip(1), A)]);
    }

    #[test]
    fn what_is_configured_is_nobody_elses() {
        let mut claims = all();
        says(&mut claims, B, 1, 0);
        let configured = || BTreeMap::from([((0, ip(1)), A)]);
        assert!(claims.configure(configured()) && !claims.configure(configured()));
        assert_eq!(announced(&mut claims, 1), [(ip(1), A)], "not the one who came before");
        assert_eq!(says(&mut claims, B, 1, 2), Judged::Contested);
        assert_eq!(says(&mut claims, A, 1, 2), Judged::Known);
        assert_eq!(announced(&mut claims, 3), [(ip(1), A)]);
        assert_eq!(claims.here(|(_, mac)| mac != A, |_| None, 4), BTreeMap::new());
    }

    #[test]
    fn an_address_of_another_host_is_announced_if_its_station_has_come_here_only() {
        let mut claims = all();
        says(&mut claims, A, 1, 0);
        assert_eq!(claims.here(|_| true, |_| Some(A), 1).len(), 1);
        assert!(claims.here(|_| true, |_| Some(B), 1).is_empty());
        assert_eq!(claims.saw((0, ip(2)), B, true, 1), Judged::Known);
        assert_eq!(claims.counts().0, 1, "what others have is theirs to announce");
    }

    #[test]
    fn a_flood_of_claims_takes_no_more_than_its_room() {
        let mut claims = all();
        for it in 0..100_000 {
            says(&mut claims, A, it, 0);
        }
        assert_eq!(claims.counts(), (EVPN_CLAIMS_PER_MAC, 0, 100_000 - EVPN_CLAIMS_PER_MAC as u64));
        for it in 0..100_000_u32 {
            let [_, b, c, d] = it.to_be_bytes();
            says(&mut claims, Mac([2, 0, 1, b, c, d]), 1 << 20 | it, 0);
        }
        assert_eq!(claims.counts().0, 500, "of its network");
        assert_eq!(claims.saw((1, ip(1)), B, false, 0), Judged::New);
        // There is room again once the stations are removed.
        claims.here(|_| false, |_| None, 1);
        assert_eq!((claims.of_station.len(), claims.of_network.len()), (0, 0));
        assert_eq!(says(&mut claims, A, 1, 2), Judged::New);
    }
}
