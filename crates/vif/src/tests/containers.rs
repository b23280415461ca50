//! Containers from a device that may lie.

use proptest::prelude::*;
use weir_limits::BURST_MAX;
use weir_wire::CsumPartial;
use weir_wire::container::{Builder, RECORD_LEN};

use super::*;

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
            // This is the other buffer that the header names.
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
    let room = options.rx_buffer_bytes_for(features, true) as usize;
    let mut builder = Builder::new(room);
    assert!((0..BURST_MAX).all(|_| builder.add(64, true).is_some()));
    assert_eq!(options.rx_buffer_bytes_for(features, false), options.rx_buffer_bytes);
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
