//! ARP and neighbour discovery go to everybody, which is often unnecessary. If the owner of an
//! address is known behind another host, the guest's question is answered here, and no other host
//! gets it. Guests' claims of their own addresses are noted, to be announced to other hosts.

use std::ops::Bound;
use std::os::fd::AsFd;
use std::sync::PoisonError;

use weir_engine::burst::{Burst, Frame};
use weir_engine::{DropReason, clock};
use weir_fabric::Vid;
use weir_limits::READ_AT_ONCE;
use weir_wire::{Answer, Mac, Neighbour, Offload, Owner};

use crate::networks::Network;
use crate::port::VxlanPort;
use crate::sightings::{Owned, Sighting, Sightings};
use crate::tx::Token;

/// The index of claims by stations of this host.
const HERE: usize = 0;
/// The index of claims by stations of other hosts.
const AWAY: usize = 1;

impl VxlanPort {
    /// Sets the owners of these addresses behind other hosts, or removes them. Guests' questions
    /// wait while at most [`READ_AT_ONCE`] owners are set.
    pub fn set_owners(&self, owners: impl IntoIterator<Item = (Owned, Option<Owner>)>) {
        let mut owners = owners.into_iter().peekable();
        while owners.peek().is_some() {
            let mut all = self.suppress.owners.write().unwrap_or_else(PoisonError::into_inner);
            for (of, owner) in owners.by_ref().take(READ_AT_ONCE) {
                match owner {
                    Some(owner) => all.insert(of, owner),
                    None => all.remove(&of),
                };
            }
        }
    }

    /// Shows IP addresses of stations behind other hosts in order, and the owner of each. Guests'
    /// questions wait while at most [`READ_AT_ONCE`] addresses are read.
    pub fn each_owner(&self, mut look: impl FnMut(Owned, Mac)) {
        let mut after = Bound::Unbounded;
        loop {
            let page = self.owners_after(after);
            let Some((last, _)) = page.last() else { return };
            after = Bound::Excluded(*last);
            page.into_iter().for_each(|(of, mac)| look(of, mac));
        }
    }

    /// The next owners, at most [`READ_AT_ONCE`].
    pub(crate) fn owners_after(&self, after: Bound<Owned>) -> Vec<(Owned, Mac)> {
        let mut page = Vec::with_capacity(READ_AT_ONCE);
        let all = self.suppress.owners.read().unwrap_or_else(PoisonError::into_inner);
        let next = all.range((after, Bound::Unbounded)).take(READ_AT_ONCE);
        page.extend(next.map(|(of, owner)| (*of, owner.mac)));
        page
    }

    /// Registers `bell`, which is called on any thread when a station has claimed an address. Only
    /// the first bell counts.
    pub fn on_sighting(&self, bell: impl Fn() + Send + Sync + 'static) {
        let _ = self.suppress.bell.set(Box::new(bell));
    }

    /// The claims since the last call.
    pub fn take_sightings(&self) -> Vec<Sighting> {
        let mut all = Vec::new();
        self.networks().sightings().for_each(|sightings| sightings.take(&mut all));
        all
    }

    /// Looks at a guest's frame that is about to go to other hosts, and notes its claim of an address; `true` if it
    /// asks for a known address, and was answered.
    #[cold]
    pub(crate) fn suppresses(
        &self,
        (number, network): (u16, &Network),
        frame: &Frame,
        now_ns: u64,
    ) -> bool {
        let Some(sightings) = &network.sightings else { return false };
        let head = frame.head.as_slice();
        // Bytes that are still to be filled in would make another message.
        let Some(said) = Neighbour::read(head).filter(|_| frame.offload == Offload::NONE) else {
            return false;
        };
        if let Some(ip) = said.claims {
            self.saw(
                &sightings[HERE],
                Sighting { network: number, ip, mac: said.mac, is_remote: false },
            );
        }
        let Some(owner) = self.owner_of(number, &said, now_ns) else { return false };
        let is_arp = said.asks.is_some_and(|ip| ip.is_ipv4());
        let answer = Answer::to(head, owner);
        if answer.is_some_and(|answer| self.answer((number, network), answer.as_slice(), now_ns)) {
            let counters = &self.counters;
            (if is_arp { &counters.arp_answered } else { &counters.nd_answered }).add(1);
        }
        true
    }

    /// The owner of the address that is asked for, if it is a station behind another host and not the asking one.
    fn owner_of(&self, number: u16, said: &Neighbour, now_ns: u64) -> Option<Owner> {
        let of = (number, said.asks?);
        let owners = self.suppress.owners.read().unwrap_or_else(PoisonError::into_inner);
        let owner = *owners.get(&of)?;
        drop(owners);
        let vid = Vid::of_network(number)?;
        let is_away = || self.fdb.lookup(vid, owner.mac, clock::secs(now_ns)) == Some(self.id);
        (owner.mac != said.mac && is_away()).then_some(owner)
    }

    /// Sends a frame of weir's own in a network, or counts the reason why not; `true` if it is sent.
    pub(crate) fn answer(
        &self,
        (number, network): (u16, &Network),
        frame: &[u8],
        now_ns: u64,
    ) -> bool {
        let may = network.answers.pass(now_ns, 1, [1].into_iter()).frames != 0;
        let done = may && self.answers.push(number, frame, self.sockets.bell.as_fd());
        if !done {
            self.service.counters().dropped(DropReason::AnswerBudget, 1);
        }
        done
    }

    /// Notes claims in frames of other hosts: an address that a guest here claims as well is no longer announced.
    pub(crate) fn overhear(&self, burst: &Burst<'_>) {
        let networks = self.networks();
        for frame in burst.frames().iter().filter(|it| Neighbour::may_be(it.head.as_slice())) {
            let network = Token::unpack(frame.token).network;
            let of = networks.network(network).filter(|_| frame.offload == Offload::NONE);
            let Some(sightings) = of.and_then(|of| of.sightings.as_ref()) else { continue };
            let said = Neighbour::read(frame.head.as_slice());
            if let Some(Neighbour { mac, claims: Some(ip), .. }) = said {
                self.saw(&sightings[AWAY], Sighting { network, ip, mac, is_remote: true });
            }
        }
    }

    fn saw(&self, sightings: &Sightings, sighting: Sighting) {
        if !sightings.push(sighting, clock::now_ns()) {
            self.counters.sightings_lost.add(1);
        } else if let Some(bell) = self.suppress.bell.get() {
            bell();
        }
    }

    /// The station for which weir would answer, as the owner of the address that a frame asks for.
    pub(crate) fn would_answer(&self, head: &[u8], number: u16) -> Option<Mac> {
        let networks = self.networks();
        networks.network(number)?.sightings.as_ref()?;
        Some(self.owner_of(number, &Neighbour::read(head)?, clock::now_ns())?.mac)
    }
}
