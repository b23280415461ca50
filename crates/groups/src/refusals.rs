//! Refused frames of one interface: how many for each reason, and the latest ones by their ends.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use weir_limits::GROUP_REFUSALS;

use crate::packet::{Carried, Flow};
use crate::rules::{Direction, Why};

/// Refused frames that are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The direction of the frames.
    pub direction: Direction,
    /// The reason.
    pub why: Why,
    /// The VLAN as the interface sees it; 0 without a tag.
    pub vid: u16,
    /// The ends; `None` if the frames have no IP header that can be read.
    pub ends: Option<Ends>,
}

/// The ends of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// The IP protocol.
    pub protocol: u8,
    /// The sender.
    pub src: IpAddr,
    /// The receiver.
    pub dst: IpAddr,
    /// The destination port, or the type of an ICMP message.
    pub value: Option<u16>,
}

impl Ends {
    pub(crate) fn of(carried: &Carried) -> Option<Self> {
        let Carried::Ip(packet) = carried else { return None };
        let Flow { v6, protocol, src, dst, value, .. } = packet.flow;
        let address = |bits: u128| match v6 {
            true => IpAddr::from(Ipv6Addr::from_bits(bits)),
            false => Ipv4Addr::from_bits(bits as u32).into(),
        };
        Some(Self { protocol, src: address(src), dst: address(dst), value })
    }
}

/// A refusal with its frames.
#[derive(Clone, Copy, Debug)]
pub struct Refused {
    /// The refusal.
    pub refusal: Refusal,
    /// The frames since the refusal was noted.
    pub times: u64,
    /// The time of the last frame.
    pub last_ns: u64,
    /// The frames that were [taken](Refusals::take).
    taken: u64,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Refusals {
    /// Frames by direction and by place in [`Why::REFUSES`].
    counts: [[u64; Why::REFUSES.len()]; 2],
    latest: [Option<Refused>; GROUP_REFUSALS],
    /// Refused frames that later ones displaced before a reader took them.
    missed: u64,
}

impl Refusals {
    pub(crate) fn note(&mut self, refusal: Refusal, now_ns: u64) {
        if let Some(place) = Why::REFUSES.iter().position(|why| *why == refusal.why) {
            self.counts[refusal.direction as usize][place] += 1;
        }
        let is_it = |it: &&mut Refused| it.refusal == refusal;
        if let Some(known) = self.latest.iter_mut().flatten().find(is_it) {
            known.times += 1;
            known.last_ns = now_ns;
            return;
        }
        // An empty place is older than all others.
        let oldest = self.latest.iter_mut().min_by_key(|it| it.map(|it| it.last_ns));
        let new = Refused { refusal, times: 1, last_ns: now_ns, taken: 0 };
        let displaced = oldest.and_then(|oldest| oldest.replace(new));
        self.missed += displaced.map_or(0, |it| it.times - it.taken);
    }

    /// Refused frames of a direction by reason.
    pub fn counts(&self, direction: Direction) -> impl Iterator<Item = (Why, u64)> + '_ {
        Why::REFUSES.into_iter().zip(self.counts[direction as usize])
    }

    /// The latest refusals, in no particular order.
    pub fn latest(&self) -> impl Iterator<Item = Refused> + '_ {
        self.latest.iter().flatten().copied()
    }

    /// Calls `each` with every refusal that has new frames since the last call, and their number. Returns the number of
    /// frames whose refusal was displaced meanwhile.
    pub fn take(&mut self, mut each: impl FnMut(Refusal, u64)) -> u64 {
        for it in self.latest.iter_mut().flatten() {
            let since = it.times - std::mem::replace(&mut it.taken, it.times);
            if since > 0 {
                each(it.refusal, since);
            }
        }
        std::mem::take(&mut self.missed)
    }
}
