//! Containers from a device that may lie.

use std::net::Ipv4Addr;
use std::time::Duration;

use proptest::prelude::*;
use weir_limits::BURST_MAX;
use weir_wire::checksum::{ipv4_header_checksum, pseudo_header_v4};
use weir_wire::container::{Builder, RECORD_LEN};
use weir_wire::vnet::{F_NEEDS_CSUM, GSO_TCPV4};
use weir_wire::{CsumPartial, Head, Segmenter, Sum, VnetHdr, ethertype, fill_checksum};

use super::*;
use crate::WaitFor;

/// Builds a bench that negotiated containers.
fn unpacking() -> Bench {
    Bench::with(Features::VERSION_1 | Features::MRG_RXBUF, true)
}

/// Builds the device's bytes for these frames, each with its own virtio header if it has one.
fn container(frames: &[(Vec<u8>, Option<VnetHdr>)]) -> Vec<u8> {
    let mut bytes = vec![0xee; BUFFER_BYTES as usize];
    let mut builder = Builder::new(bytes.len());
    for (frame, vnet) in frames {
        let place = builder.add(frame.len(), vnet.is_some()).unwrap();
        bytes[place.record..][..RECORD_LEN].copy_from_slice(&place.header);
        if let Some(vnet) = vnet {
            bytes[place.record + RECORD_LEN..place.frame].copy_from_slice(&vnet.to_bytes());
        }
        bytes[place.frame..][..frame.len()].copy_from_slice(frame);
    }
    bytes.truncate(builder.len());
    bytes[..VnetHdr::LEN].copy_from_slice(&builder.vnet().to_bytes());
    bytes
}

/// Builds frames of these lengths, each filled with its number.
fn plain(lengths: impl IntoIterator<Item = usize>) -> Vec<(Vec<u8>, Option<VnetHdr>)> {
    lengths.into_iter().enumerate().map(|(i, len)| (vec![i as u8; len], None)).collect()
}

impl Bench {
    /// Uses one receive buffer for these bytes.
    pub(super) fn receive_bytes(&mut self, bytes: &[u8]) {
        self.rx.refill().unwrap();
        let mut pieces = Vec::new();
        let chain = self.rx.take(Direction::Writable, &self.memory.memory, &mut pieces).unwrap();
        pieces[0].write(bytes);
        self.rx.complete(chain.unwrap().token, bytes.len() as u32);
        self.rx.publish();
    }

    /// Returns the number of buffers that the device can have now.
    pub(super) fn offered(&mut self) -> u16 {
        self.pair.wait(crate::WaitFor::Receive, std::time::Duration::ZERO).unwrap();
        self.rx.refill().unwrap();
        self.rx.available()
    }
}

#[test]
fn frames_come_out_in_order_and_where_they_lie() {
    let mut bench = unpacking();
    let csum = Offload::with_csum(CsumPartial { start: 34, offset: 16 }).to_vnet(1);
    let frames = [(vec![1; 60], None), (vec![2; 61], Some(csum)), (vec![3; 14], None)];
    bench.receive_bytes(&container(&frames));
    for (bytes, vnet) in &frames {
        let mut seen = Vec::new();
        let received = bench.pair.recv_into(&mut seen).unwrap();
        let none = VnetHdr { num_buffers: 1, ..VnetHdr::default() };
        assert_eq!((&seen, received.header), (bytes, vnet.unwrap_or(none)));
    }
    assert_eq!(bench.seen(), (vec![], 0));
    let stats = bench.pair.stats();
    assert_eq!((stats.rx_frames, stats.rx_bytes, stats.rx_containers), (3, 135, 1));
    bench.still_works();
}

#[test]
fn containers_and_frames_keep_their_order() {
    let mut bench = unpacking();
    bench.receive(&[first(1, 12 + 20)]);
    bench.receive_bytes(&container(&plain([30, 31])));
    bench.receive(&[first(2, 1024), next(10)]);
    bench.receive_bytes(&container(&plain([40])));
    assert_eq!(bench.seen(), (vec![20, 30, 31, 1022, 40], 0));
    bench.still_works();
}

#[test]
fn the_buffer_of_a_container_stays_here_until_its_last_frame() {
    let mut bench = unpacking();
    bench.receive_bytes(&container(&plain([60, 60, 60])));
    for left in [2, 1, 0] {
        assert_eq!(bench.pair.recv(|frame| frame.len), Some(60));
        // A driver that stops in between still learns that more frames are there.
        let zero = std::time::Duration::ZERO;
        assert_eq!(bench.pair.wait(crate::WaitFor::Receive, zero).unwrap(), left > 0);
        assert_eq!(bench.offered(), if left > 0 { SIZE - 1 } else { SIZE });
    }
    bench.still_works();
}

#[test]
fn a_damaged_container_is_dropped_whole() {
    let good = container(&plain([60, 60, 60]));
    let damage: [fn(&mut Vec<u8>); 5] = [
        |bytes| bytes.truncate(bytes.len() - 1),
        |bytes| bytes.push(0),
        // One header counts one record too many, and one last record ends beyond the container.
        |bytes| bytes[2] += 1,
        |bytes| bytes[12 + 2 * 64] += 4,
        // More than one buffer.
        |bytes| bytes[10] = 2,
    ];
    for (number, damage) in damage.into_iter().enumerate() {
        let mut bench = unpacking();
        let mut bytes = good.clone();
        damage(&mut bytes);
        bench.receive_bytes(&bytes);
        let missing = number == 4;
        if missing {
            // `next(0)` is the other buffer that the header names.
            bench.receive(&[next(0)]);
        }
        bench.receive(&[first(1, 12 + 70)]);
        assert_eq!(bench.seen(), (vec![70], 1), "{number}");
        assert_eq!(bench.pair.stats().rx_containers, 0);
        bench.still_works();
    }
}

#[test]
fn a_container_that_was_not_negotiated_is_a_frame() {
    let mut bench = mergeable();
    let bytes = container(&plain([60, 60]));
    bench.receive_bytes(&bytes);
    assert_eq!(bench.seen(), (vec![bytes.len() - VnetHdr::LEN], 0));
}

#[test]
fn a_container_of_a_burst_fits_in_a_buffer() {
    let options = crate::Options::new(Mac::default());
    let features = options.features;
    let room = options.rx_buffer_bytes_for(features, true)[0] as usize;
    let mut builder = Builder::new(room);
    assert!((0..BURST_MAX).all(|_| builder.add(64, true).is_some()));
    assert_eq!(options.rx_buffer_bytes_for(features, false), [options.rx_buffer_bytes; 2]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_container_costs_itself_at_most(
        bytes in prop::collection::vec(prop_oneof![0..24u8, any::<u8>()], 12..200),
        records in 0..12u16,
        right_length: bool,
    ) {
        let mut bench = unpacking();
        let mut bytes = bytes;
        let gso_size = (bytes.len() - VnetHdr::LEN) as u16;
        let vnet = VnetHdr { hdr_len: records, gso_size, ..Builder::new(0).vnet() };
        if right_length {
            bytes[..VnetHdr::LEN].copy_from_slice(&vnet.to_bytes());
        }
        bench.receive_bytes(&bytes);
        bench.seen();
        bench.still_works();
    }
}

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
