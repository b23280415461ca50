//! Merging of segments.

use std::net::Ipv4Addr;
use std::time::Duration;

use weir_wire::checksum::{ipv4_header_checksum, pseudo_header_v4};
use weir_wire::container::{Builder, RECORD_LEN};
use weir_wire::vnet::{F_NEEDS_CSUM, GSO_TCPV4};
use weir_wire::{Head, Segmenter, Sum, VnetHdr, ethertype, fill_checksum};

use super::*;
use crate::WaitFor;

const HEADERS_LEN: usize = 14 + 20 + 20;
const MSS: u16 = 500;

fn merging(containers: bool) -> Bench {
    let mut bench = Bench::with(Features::VERSION_1 | Features::MRG_RXBUF, containers);
    bench.pair.merge_segments(SIZE);
    bench
}

/// Builds a large packet of a flow from `port`, like a sender with TSO.
fn large(port: u16, seq: u32, payload_len: usize) -> Vec<u8> {
    let (from, to) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
    let ip_len = (HEADERS_LEN - 14 + payload_len) as u16;
    let mut ip = [
        &[0x45, 0][..],
        &ip_len.to_be_bytes(),
        &[0, 7, 0x40, 0, 64, 6, 0, 0],
        &from.octets(),
        &to.octets(),
    ]
    .concat();
    let sum = ipv4_header_checksum(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let partial = pseudo_header_v4(from, to, 6, ip_len - 20).folded();
    let payload: Vec<u8> = (0..payload_len).map(|i| (i / 3) as u8 ^ port as u8).collect();
    [
        &[2; 12][..],
        &ethertype::IPV4.to_be_bytes(),
        &ip,
        &port.to_be_bytes(),
        &[0, 80],
        &seq.to_be_bytes(),
        &[0, 0, 0, 9, 0x50, 0x10, 1, 0],
        &partial.to_be_bytes(),
        &[0, 0],
        &payload,
    ]
    .concat()
}

/// Returns the virtio header of a large packet.
fn gso() -> VnetHdr {
    VnetHdr {
        flags: F_NEEDS_CSUM,
        gso_type: GSO_TCPV4,
        hdr_len: HEADERS_LEN as u16,
        gso_size: MSS,
        csum_start: 34,
        csum_offset: 16,
        num_buffers: 1,
    }
}

/// Cuts a large packet into segments with complete checksums.
fn cut(packet: &[u8]) -> Vec<Vec<u8>> {
    let head = Head::copy_of(packet);
    let len = packet.len() as u32;
    let offload = Offload::from_vnet(&gso(), head.as_slice(), len).unwrap();
    let segmenter = Segmenter::new(&head, &offload, len).unwrap();
    segmenter
        .map(|mut segment| {
            let at = HEADERS_LEN + segment.payload_offset as usize;
            let payload = &packet[at..at + segment.payload_len as usize];
            let mut rest = Sum::new();
            rest.add(payload);
            fill_checksum(&mut segment.head, segment.csum, rest).unwrap();
            [segment.head.as_slice(), payload].concat()
        })
        .collect()
}

impl Bench {
    /// Uses one buffer for each frame.
    fn receive_frames(&mut self, frames: &[Vec<u8>]) {
        let header = VnetHdr { num_buffers: 1, ..VnetHdr::default() };
        for frame in frames {
            self.receive_bytes(&[&header.to_bytes(), &frame[..]].concat());
        }
    }

    /// Returns the application's packets.
    fn packets(&mut self) -> Vec<(VnetHdr, Vec<u8>)> {
        let mut packets = Vec::new();
        let mut bytes = Vec::new();
        while let Some(received) = self.pair.recv_into(&mut bytes) {
            assert_eq!(received.len, bytes.len());
            packets.push((received.header, bytes.clone()));
        }
        packets
    }
}

fn alone(frame: &[u8]) -> (VnetHdr, Vec<u8>) {
    (VnetHdr { num_buffers: 1, ..VnetHdr::default() }, frame.to_vec())
}

#[test]
fn segments_of_one_poll_are_the_packet_that_they_were_cut_from() {
    for payload_len in [1000, 1001, 1300, 1999] {
        let mut bench = merging(false);
        let packet = large(1000, 5, payload_len);
        bench.receive_frames(&cut(&packet));
        assert_eq!(bench.packets(), [(gso(), packet)]);
        let stats = bench.pair.stats();
        assert_eq!(stats.rx_frames, payload_len.div_ceil(MSS.into()) as u64);
        assert_eq!((stats.rx_merged, stats.device_errors), (1, 0));
        bench.still_works();
    }
}

#[test]
fn what_is_no_next_segment_ends_a_packet_and_comes_after_it() {
    let packet = large(1000, 5, 1000);
    let other = large(2000, 5, 500);
    let gap = large(1000, 5 + 1000 + 1, 500);
    for follower in [vec![0xff; 60], cut(&other).remove(0), cut(&gap).remove(0)] {
        let mut bench = merging(false);
        let mut frames = cut(&packet);
        frames.push(follower.clone());
        bench.receive_frames(&frames);
        let expected = [(gso(), packet.clone()), alone(&follower)];
        assert_eq!(bench.packets(), expected);
        bench.still_works();
    }
}

#[test]
fn a_segment_with_a_wrong_checksum_is_not_merged() {
    for (wrong, merged) in [(0, 0), (1, 0), (2, 1)] {
        let mut bench = merging(false);
        let mut frames = cut(&large(1000, 5, 1500));
        frames[wrong][HEADERS_LEN + 300] ^= 1;
        bench.receive_frames(&frames);
        let packets = bench.packets();
        assert!(packets.contains(&alone(&frames[wrong])), "as it came, to be found out");
        assert_eq!(packets.len(), if wrong == 1 { 3 } else { 2 });
        let expected = if wrong == 0 { 1 } else { merged };
        assert_eq!(bench.pair.stats().rx_merged, expected);
        bench.still_works();
    }
}

#[test]
fn a_packet_holds_half_of_the_ring_at_most() {
    let mut bench = merging(false);
    let frames = cut(&large(1000, 5, usize::from(SIZE) * 500));
    bench.receive_frames(&frames);
    let lengths: Vec<usize> = bench.packets().iter().map(|(_, bytes)| bytes.len()).collect();
    assert_eq!(lengths, [HEADERS_LEN + 2000; 2]);
    bench.still_works();
}

#[test]
fn a_frame_that_was_looked_at_is_not_forgotten_by_a_wait() {
    let mut bench = merging(false);
    bench.receive_frames(&[cut(&large(1000, 5, 600)).remove(0), vec![0xff; 60]]);
    assert!(bench.pair.recv(|frame| frame.len).is_some());
    // The packet's buffer is not the device's meanwhile.
    assert_eq!(bench.offered(), SIZE - 1);
    assert!(bench.pair.wait(WaitFor::Receive, Duration::ZERO).unwrap());
    assert_eq!(bench.packets(), [alone(&[0xff; 60])]);
    assert!(!bench.pair.wait(WaitFor::Receive, Duration::ZERO).unwrap());
    bench.still_works();
}

#[test]
fn segments_in_a_container_and_behind_it_are_merged() {
    let mut bench = merging(true);
    let packet = large(1000, 5, 1400);
    let frames = cut(&packet);
    let mut bytes = vec![0; BUFFER_BYTES as usize];
    let mut builder = Builder::new(bytes.len());
    let place = builder.add(frames[0].len(), false).unwrap();
    bytes[place.record..][..RECORD_LEN].copy_from_slice(&place.header);
    bytes[place.frame..][..frames[0].len()].copy_from_slice(&frames[0]);
    bytes[..VnetHdr::LEN].copy_from_slice(&builder.vnet().to_bytes());
    bench.receive_bytes(&bytes[..builder.len()]);
    bench.receive_frames(&frames[1..]);
    assert_eq!(bench.packets(), [(gso(), packet)]);
    bench.still_works();
}
