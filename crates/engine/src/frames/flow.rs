//! The flow hash for queue steering: the same in both directions.

use weir_policy::steering::{Receiver, Steering};
use weir_wire::{Layers, Network, Transport};

use crate::frames::burst::Burst;

/// A 32-bit hash of addresses and ports that is the same in both directions, so that a guest's replies and requests
/// match (`weir_policy::steering`). Frames that are not IP have one flow per pair of MAC addresses.
pub fn symmetric_hash(head: &[u8]) -> u32 {
    let Ok(layers) = Layers::parse(head) else {
        return 0;
    };
    let addresses = match layers.network {
        Network::Ipv4(ip) => u64::from(ip.src.to_bits() ^ ip.dst.to_bits()),
        Network::Ipv6(ip) => {
            let both = ip.src.to_bits() ^ ip.dst.to_bits();
            (both >> 64) as u64 ^ both as u64
        }
        Network::Other => layers.ethernet.src.to_u64() ^ layers.ethernet.dst.to_u64(),
    };
    let ports = match layers.transport {
        Transport::Tcp { ports, .. } | Transport::Udp { ports, .. } => {
            u64::from(ports.src ^ ports.dst) << 16 | u64::from(ports.src.wrapping_add(ports.dst))
        }
        Transport::Other => 0,
    };
    // Two rounds of multiply and fold (the finalizer of splitmix64) spread near neighbours.
    let mut mixed = addresses ^ ports.rotate_left(32);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed >> 32) as u32
}

/// Steers the replies of a burst's flows to `queue`, on which `receiver` sent the burst.
pub fn record_flows(
    steering: &Steering,
    queue: usize,
    burst: &Burst<'_>,
    now_secs: u32,
    receiver: &dyn Receiver,
) {
    for frame in burst.frames() {
        steering.record(symmetric_hash(frame.head.as_slice()), queue, now_secs, receiver);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn udp(src: [u8; 4], dst: [u8; 4], ports: (u16, u16)) -> Vec<u8> {
        let builder = etherparse::PacketBuilder::ethernet2([2; 6], [4; 6])
            .ipv4(src, dst, 64)
            .udp(ports.0, ports.1);
        let mut frame = Vec::new();
        builder.write(&mut frame, &[0; 16]).unwrap();
        frame
    }

    #[test]
    fn both_directions_have_one_hash_and_neighbours_differ() {
        let there = symmetric_hash(&udp([10, 0, 0, 1], [10, 0, 0, 2], (1000, 53)));
        let back = symmetric_hash(&udp([10, 0, 0, 2], [10, 0, 0, 1], (53, 1000)));
        assert_eq!(there, back);
        let mut low_bits: Vec<u32> = (0..64)
            .map(|i| symmetric_hash(&udp([10, 0, 0, 1], [10, 0, 0, 2], (1000 + i, 53))) % 128)
            .collect();
        low_bits.sort_unstable();
        low_bits.dedup();
        assert!(low_bits.len() > 32, "64 flows on {} of 128 entries", low_bits.len());
    }
}
