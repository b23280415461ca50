//! A frame as the guard sees it, and the addresses that a guest got by DHCP in answers that weir saw, to questions of
//! the guest's own.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use weir_limits::{DHCP_ANSWER_SECS, DHCP_QUESTIONS_MAX, SNOOPED_LEASES_MAX};
use weir_wire::ethernet::HEADER_LEN;
use weir_wire::{Mac, Tci};

use super::dhcp::{Answer, Transaction};
use crate::PortId;

/// The way by which an answer has come. It tells to which of a switch's networks an address belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The server's port.
    pub port: PortId,
    /// The VLAN id with which the answer came; 0 without a tag.
    pub vid: u16,
}

impl Origin {
    /// The origin of a frame that came in by `port`.
    pub fn new(port: PortId, tag: Option<Tci>) -> Self {
        Self { port, vid: tag.map_or(0, Tci::vid) }
    }
}

/// An address that is a guest's for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The address.
    pub address: IpAddr,
    /// The end (s), on the clock of the guard's callers.
    pub until_secs: u32,
    /// The origin of the answer.
    pub origin: Origin,
}

/// A question that a guest has asked.
#[derive(Clone, Copy, Debug)]
struct Question {
    transaction: Transaction,
    mac: Mac,
    asked_secs: u32,
}

/// The lock is held while any guest's address is learned.
static LEARNING: Mutex<()> = Mutex::new(());

/// The guest's latest questions, and its addresses. Both lists are short, so that the check of a frame is cheap, and
/// are allocated once.
#[derive(Debug, Default)]
pub(super) struct Leases(RwLock<State>);

#[derive(Debug, Default)]
struct State {
    questions: [Option<Question>; DHCP_QUESTIONS_MAX],
    leases: [Option<Lease>; SNOOPED_LEASES_MAX],
}

impl Leases {
    pub(super) fn has(&self, address: IpAddr, now_secs: u32) -> bool {
        self.any(now_secs, |lease| lease.address == address)
    }

    /// True if one of the leases that hold now matches.
    pub(super) fn any(&self, now_secs: u32, is: impl Fn(&Lease) -> bool) -> bool {
        let state = self.read();
        state.leases.iter().flatten().any(|lease| lease.until_secs > now_secs && is(lease))
    }

    /// The leases that hold now.
    pub(super) fn held(&self, now_secs: u32) -> impl Iterator<Item = Lease> {
        let leases = self.read().leases;
        leases.into_iter().flatten().filter(move |lease| lease.until_secs > now_secs)
    }

    /// Notes a question of the guest's, in place of the oldest one.
    pub(super) fn asked(&self, transaction: Transaction, mac: Mac, now_secs: u32) {
        let mut state = self.write();
        let same = |it: &Option<Question>| it.is_some_and(|it| it.transaction == transaction);
        let place = state.questions.iter().position(same);
        let oldest = || {
            let age = |(_, it): &(usize, &Option<Question>)| it.map(|it| it.asked_secs);
            state.questions.iter().enumerate().min_by_key(age).map_or(0, |(place, _)| place)
        };
        let place = place.unwrap_or_else(oldest);
        state.questions[place] = Some(Question { transaction, mac, asked_secs: now_secs });
    }

    /// Notes an answer on its way to the guest, in a frame for `dst`. An address that is new to the guest becomes its
    /// own only if it `is_free`.
    pub(super) fn answered(
        &self,
        answer: &Answer<'_>,
        dst: Mac,
        origin: Origin,
        now_secs: u32,
        mut is_free: impl FnMut(IpAddr) -> bool,
    ) {
        let is_for = |it: &Question| {
            let lately = now_secs.saturating_sub(it.asked_secs) <= DHCP_ANSWER_SECS;
            it.transaction == answer.transaction && it.mac == answer.client.unwrap_or(dst) && lately
        };
        if !self.read().questions.iter().flatten().any(is_for) {
            return;
        }
        // If two guests get the same address at once, one of them has it. No guest's lock is held meanwhile.
        let _one = LEARNING.lock().unwrap_or_else(PoisonError::into_inner);
        // A guest keeps no more leases, and each answer can lead to a look at all guests.
        let mut left = SNOOPED_LEASES_MAX;
        answer.each(|address, secs| {
            let Some(rest) = left.checked_sub(1) else { return };
            left = rest;
            if address.is_unspecified() || address.is_multicast() {
                return;
            }
            if self.has(address, now_secs) || secs > 0 && is_free(address) {
                let until_secs = now_secs.saturating_add(secs);
                self.write().put(Lease { address, until_secs, origin });
            }
        });
    }

    /// Adds a lease that the guest had before.
    pub(super) fn recall(&self, lease: Lease) {
        self.write().put(lease);
    }

    /// Removes an address that the guest gives back.
    pub(super) fn released(&self, address: IpAddr) {
        for lease in &mut self.write().leases {
            lease.take_if(|lease| lease.address == address);
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        // A panic under the lock leaves whole entries.
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Puts a lease in, in place of one of the same address, or else of the one that ends first.
    fn put(&mut self, lease: Lease) {
        let same = |it: &Option<Lease>| it.is_some_and(|it| it.address == lease.address);
        let known = self.leases.iter().position(same);
        let first = || {
            let end = |(_, it): &(usize, &Option<Lease>)| it.map(|it| it.until_secs);
            self.leases.iter().enumerate().min_by_key(end).map_or(0, |(place, _)| place)
        };
        let place = known.unwrap_or_else(first);
        self.leases[place] = Some(lease);
    }
}

/// The offset of the checksum in a UDP header, and the length of the header.
pub(super) const UDP_CSUM: usize = 6;
/// See [`UDP_CSUM`].
pub(super) const UDP_LEN: usize = 8;

/// A frame as the guard sees it.
#[derive(Clone, Copy)]
pub(super) struct Seen<'f> {
    /// The front, without a tag.
    pub(super) head: &'f [u8],
    /// Bytes of the frame.
    pub(super) len: usize,
    /// The Ethernet source.
    pub(super) src: Mac,
    /// The offset of two bytes that are filled in before the frame is delivered.
    pub(super) csum_at: Option<usize>,
    pub(super) now_secs: u32,
}

impl<'f> Seen<'f> {
    pub(super) fn array<const N: usize>(self, at: usize) -> Option<[u8; N]> {
        self.head.get(at..)?.first_chunk().copied()
    }

    pub(super) fn be16(self, at: usize) -> Option<u16> {
        self.array(at).map(u16::from_be_bytes)
    }

    /// True if the bytes before `at` are delivered as they are.
    pub(super) fn stays_up_to(self, at: usize) -> bool {
        self.csum_at.is_none_or(|csum_at| csum_at >= at)
    }

    /// The source and destination port of the UDP header at `at`.
    pub(super) fn ports(self, at: usize) -> Option<(u16, u16)> {
        Some((self.be16(at)?, self.be16(at + 2)?))
    }
}

/// An ARP packet of IPv4 over Ethernet.
pub(super) struct Arp {
    pub(super) operation: u16,
    pub(super) sender: (Mac, Ipv4Addr),
    pub(super) target: (Mac, Ipv4Addr),
}

impl Arp {
    pub(super) const REQUEST: u16 = 1;
    pub(super) const REPLY: u16 = 2;
    pub(super) const REVERSE_REQUEST: u16 = 3;
    /// Hardware and protocol, and the length of each one's addresses.
    pub(super) const ETHERNET_IPV4: [u8; 6] = [0, 1, 8, 0, 6, 4];

    pub(super) fn read(seen: Seen<'_>) -> Option<Self> {
        let at = HEADER_LEN;
        // ARP has no checksum: bytes that are filled in later would make another address.
        if seen.array(at)? != Self::ETHERNET_IPV4 || seen.csum_at.is_some() {
            return None;
        }
        let party = |at| Some((Mac(seen.array(at)?), Ipv4Addr::from(seen.array::<4>(at + 6)?)));
        Some(Self {
            operation: seen.be16(at + 6)?,
            sender: party(at + 8)?,
            target: party(at + 18)?,
        })
    }
}
