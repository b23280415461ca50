//! The proof of a loop: a frame that leaves by one port and comes back by another.
//!
//! A probe is a broadcast whose source address is a random number. The forwarding table learns the port where the
//! probe comes in, as for any frame, so the data path has no code for probes. Nobody can forge an address that they
//! have not seen.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use weir_engine::{Engine, beat, clock};
use weir_fabric::{PortId, Vid};
use weir_limits::{
    FRAME_LEN_MIN, LOOP_PROBE_COPIES, LOOP_PROBE_LOOK_NS, LOOP_PROBE_LOOKS, LOOP_PROBES,
};
use weir_wire::Mac;

use super::Known;

/// IEEE 802 Local Experimental Ethertype 1 (IEEE 802-2014 table 9-1).
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];
/// A text for the reader of a capture.
const TEXT: &[u8] = b"weir: does this come back? (loop detection)";
/// The length of the shortest Ethernet frame, without the checksum (IEEE 802.3 clause 4A.4.2).
const LEN: usize = 60;

const _: () = assert!(LEN >= FRAME_LEN_MIN as usize && 14 + TEXT.len() <= LEN);

/// Source addresses that nobody can predict.
pub(super) struct Addresses {
    keys: RandomState,
    count: AtomicU64,
}

impl Addresses {
    pub(super) fn new() -> Self {
        Self { keys: RandomState::new(), count: AtomicU64::new(0) }
    }

    /// Two addresses that differ in the last bit: 45 random bits, locally administered, unicast.
    fn pair(&self) -> [Mac; 2] {
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        let [_, _, first, middle @ .., last] = self.keys.hash_one(count).to_be_bytes();
        let [b, c, d, e] = middle;
        let first = first & !1 | 2;
        [last & !1, last | 1].map(|last| Mac([first, b, c, d, e, last]))
    }
}

/// The probe with this source address.
fn frame(src: Mac) -> [u8; LEN] {
    let head = Mac::BROADCAST.0.into_iter().chain(src.0).chain(ETHERTYPE);
    let mut bytes = head.chain(TEXT.iter().copied());
    std::array::from_fn(|_| bytes.next().unwrap_or(0))
}

/// The result of the probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// A probe that left by the first port came in by the second. On a guest's port both can be the same port.
    Back([PortId; 2]),
    /// No probe came back.
    Nothing,
    /// No port accepted a probe.
    NotSent,
}

/// Sends probes out of both ports, and looks for the ports where they come in, for as long as `goes_on` is true.
pub(super) fn probe(
    engine: &Engine,
    addresses: &Addresses,
    ports: [&Known; 2],
    vid: Vid,
    goes_on: impl Fn() -> bool,
) -> Seen {
    let fabric = engine.fabric();
    let macs = addresses.pair();
    for port in ports {
        fabric.seek(port.party.id, vid, macs[0]);
    }
    let back = || came_back(engine, ports, macs, vid);
    // A guest can block this thread, so the uplink is probed first.
    let mut order = [0, 1];
    order.sort_by_key(|&at| !ports[at].party.uplink);
    let mut seen = Seen::NotSent;
    'all: for _ in 0..LOOP_PROBES {
        for at in order {
            let (port, frame) = (ports[at], frame(macs[at]));
            let party = || format!("{}, a loop's probe for it", port.name);
            let send = |_: &usize| engine.send_out_of(port.party.id, vid, &frame);
            let sent = beat::serving(party, || (0..LOOP_PROBE_COPIES).filter(send).count());
            if sent > 0 {
                seen = Seen::Nothing;
            }
            for _ in 0..LOOP_PROBE_LOOKS {
                if let Some(back) = back() {
                    seen = Seen::Back(back);
                    break 'all;
                }
                if !goes_on() {
                    break 'all;
                }
                super::pause(LOOP_PROBE_LOOK_NS);
            }
        }
    }
    for mac in macs {
        // The address is forgotten wherever it was learned last, because no station has it.
        if let Some(port) = fabric.fdb().lookup(vid, mac, clock::secs(clock::now_ns())) {
            fabric.fdb().forget(vid, mac, port);
        }
    }
    seen
}

/// The ports by which a probe left and came in.
fn came_back(engine: &Engine, ports: [&Known; 2], macs: [Mac; 2], vid: Vid) -> Option<[PortId; 2]> {
    let fabric = engine.fabric();
    let now_secs = clock::secs(clock::now_ns());
    for (at, mac) in macs.into_iter().enumerate() {
        let sent = &ports[at].party;
        let unlearned = ports.iter().filter(|port| fabric.seen(port.party.id)[at]);
        let learned = fabric.fdb().lookup(vid, mac, now_secs);
        let mut came = learned.into_iter().chain(unlearned.map(|port| port.party.id));
        // An uplink whose network sends its frames back is no loop by itself: the switch does not send them there
        // again.
        let is_loop = |by: &PortId| *by != sent.id || !sent.uplink;
        if let Some(by) = came.find(is_loop) {
            return Some([sent.id, by]);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_probes_are_stations_of_nobody_and_never_the_same() {
        let addresses = Addresses::new();
        let mut all = std::collections::HashSet::new();
        for _ in 0..1000 {
            let pair = addresses.pair();
            for mac in pair {
                assert!(!mac.is_multicast() && mac.0[0] & 2 != 0, "{mac}");
                assert!(all.insert(mac));
            }
            assert_eq!(pair[0].to_u64() ^ pair[1].to_u64(), 1);
            assert_eq!(pair[0].to_u64() & 1, 0);
        }
        assert_ne!(addresses.pair(), Addresses::new().pair(), "another weir has others");
    }

    #[test]
    fn a_probe_is_a_broadcast_that_says_what_it_is() {
        let src = Mac([2, 3, 4, 5, 6, 8]);
        let frame = frame(src);
        assert_eq!(frame[..6], Mac::BROADCAST.0);
        assert_eq!(frame[6..12], src.0);
        assert_eq!(frame[12..14], ETHERTYPE);
        assert!(String::from_utf8_lossy(&frame[14..]).contains("weir"));
    }
}
