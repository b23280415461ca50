//! Rings written by an attacker. Every case ends in a named error; none in a panic, an endless walk or a read outside
//! the memory.

use proptest::prelude::*;
use weir_limits::CHAIN_LEN_MAX;

use super::*;
use crate::layout::*;

const NEXT: u16 = DESC_F_NEXT;
const WRITE: u16 = DESC_F_WRITE;
const INDIRECT: u16 = DESC_F_INDIRECT;

#[test]
fn available_index_that_jumps_is_refused() {
    let mut hostile = Hostile::new(config(16));
    hostile.raw.store(AT.driver as usize + 2, 17);
    let jump = RingError::AvailIndexJump { from: 0, to: 17, size: 16 };
    assert_eq!(hostile.transmit(), Err(jump));
    hostile.raw.store(AT.driver as usize + 2, 16);
    assert_eq!(hostile.device.refill(), Ok(16), "a full ring is no jump");
    hostile.raw.store(AT.driver as usize + 2, u16::MAX);
    assert!(hostile.transmit().is_err(), "backwards is a jump");
}

#[test]
fn head_out_of_range_is_refused() {
    let mut hostile = Hostile::new(config(16));
    hostile.avail(&[16]);
    assert_eq!(hostile.transmit(), Err(RingError::DescriptorOutOfRange { index: 16, size: 16 }));
}

#[test]
fn next_out_of_range_is_refused() {
    let mut hostile = Hostile::new(config(16));
    hostile.descriptor(0, BUFFERS, 1, NEXT, 0xffff);
    hostile.avail(&[0]);
    assert_eq!(
        hostile.transmit(),
        Err(RingError::DescriptorOutOfRange { index: 0xffff, size: 16 })
    );
}

#[test]
fn a_chain_that_loops_is_refused() {
    let mut hostile = Hostile::new(config(16));
    hostile.descriptor(0, BUFFERS, 1, NEXT, 1);
    hostile.descriptor(16, BUFFERS, 1, NEXT, 0);
    hostile.avail(&[0]);
    assert_eq!(hostile.transmit(), Err(RingError::ChainTooLong { head: 0 }));
}

#[test]
fn a_chain_of_64_ki_descriptors_is_refused() {
    let mut hostile = Hostile::new(config(16));
    let count = 0x2000u32; // as many as fit behind BUFFERS, far beyond the bound
    for i in 0..count {
        hostile.descriptor(BUFFERS + u64::from(i) * 16, 0, 1, NEXT, (i + 1) as u16);
    }
    hostile.descriptor(0, BUFFERS, count * 16, INDIRECT, 0);
    hostile.avail(&[0]);
    assert_eq!(hostile.transmit(), Err(RingError::ChainTooLong { head: 0 }));
}

#[test]
fn the_longest_chain_that_is_allowed_passes() {
    let mut hostile = Hostile::new(config(16));
    let last = CHAIN_LEN_MAX as u16 - 2; // the descriptor of the table counts too
    for i in 0..=last {
        let flags = if i == last { 0 } else { NEXT };
        hostile.descriptor(BUFFERS + u64::from(i) * 16, 0, 1, flags, i + 1);
    }
    hostile.descriptor(0, BUFFERS, CHAIN_LEN_MAX as u32 * 16, INDIRECT, 0);
    hostile.avail(&[0]);
    let chain = Chain { token: Token::split(0), len: u32::from(last) + 1 };
    assert_eq!(hostile.transmit(), Ok(Some(chain)));
}

#[test]
fn chains_without_a_byte_are_refused() {
    for writable in [0, WRITE] {
        let mut hostile = Hostile::new(config(16));
        hostile.descriptor(0, BUFFERS, 0, NEXT | writable, 1);
        hostile.descriptor(16, BUFFERS, 0, writable, 0);
        hostile.avail(&[0]);
        let taken = if writable == 0 { hostile.transmit() } else { hostile.receive() };
        assert_eq!(taken, Err(RingError::ZeroLength { head: 0 }));
    }
}

/// Linux's vhost also accepts such chains. The address of an empty buffer has no meaning.
#[test]
fn empty_buffers_in_a_chain_add_nothing() {
    for is_indirect in [false, true] {
        for lens in [[0, 12, 0, 60], [12, 0, 60, 0], [0, 0, 72, 0]] {
            let mut hostile = Hostile::new(config(16));
            let table = if is_indirect { BUFFERS } else { 0 };
            for (nth, len) in (0..).zip(lens) {
                let address = if len == 0 { u64::MAX } else { 0x100 };
                let flags = if nth < 3 { NEXT } else { 0 };
                hostile.descriptor(table + u64::from(nth) * 16, address, len, flags, nth + 1);
            }
            if is_indirect {
                hostile.descriptor(0, BUFFERS, 64, INDIRECT, 0);
            }
            hostile.avail(&[0]);
            let mut pieces = Vec::new();
            hostile.device.refill().unwrap();
            let taken = hostile.device.take(Direction::Readable, &hostile.memory, &mut pieces);
            assert_eq!(taken, Ok(Some(Chain { token: Token::split(0), len: 72 })));
            let filled = lens.into_iter().filter(|len| *len > 0).count();
            assert_eq!(pieces.len(), filled);
            assert!(pieces.iter().all(|piece| !piece.is_empty()));
        }
    }
}

#[test]
fn lengths_that_add_up_beyond_32_bits_are_refused() {
    // Two buffers of 2 GiB each need a region that is that large; it is sparse.
    let fd = memfd_create("sparse", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, 1 << 31).unwrap();
    let size = 1 << 31;
    let spec = RegionSpec { guest_address: 0, size, user_address: 0, mmap_offset: 0 };
    let memory = Arc::new(GuestMemory::map(&[(spec, File::from(fd))]).unwrap());
    let device = DeviceRing::new(&memory, config(16), &AT, 0).unwrap();
    let raw = memory.window(0, MEMORY as usize).unwrap();
    let mut hostile = Hostile { memory, device, raw };
    hostile.descriptor(0, 0, 1 << 31, NEXT, 1);
    hostile.descriptor(16, 0, 1 << 31, 0, 0);
    hostile.avail(&[0]);
    assert_eq!(hostile.transmit(), Err(RingError::LengthOverflow { head: 0 }));
}

#[test]
fn buffers_outside_shared_memory_are_refused() {
    for (address, len) in
        [(MEMORY, 1), (MEMORY - 1, 2), (u64::MAX, 1), (u64::MAX - 1, 4), (0, u32::MAX)]
    {
        let mut hostile = Hostile::new(config(16));
        hostile.descriptor(0, address, len, 0, 0);
        hostile.avail(&[0]);
        assert_eq!(hostile.transmit(), Err(RingError::BadAddress { address, len }));
    }
}

#[test]
fn device_writable_buffers_in_a_transmit_queue_are_refused() {
    let mut hostile = Hostile::new(config(16));
    hostile.descriptor(0, BUFFERS, 1, WRITE, 0);
    hostile.avail(&[0]);
    assert_eq!(hostile.transmit(), Err(RingError::WritableInTransmit { head: 0 }));
}

#[test]
fn device_readable_buffers_in_a_receive_queue_are_refused() {
    let mut hostile = Hostile::new(config(16));
    hostile.descriptor(0, BUFFERS, 1, 0, 0);
    hostile.avail(&[0]);
    assert_eq!(hostile.receive(), Err(RingError::ReadOnlyInReceive { head: 0 }));
}

#[test]
fn spec_2_7_5_3_1_indirect_in_indirect_is_refused() {
    let mut hostile = Hostile::new(config(16));
    hostile.descriptor(0, BUFFERS, 16, INDIRECT, 0);
    hostile.descriptor(BUFFERS, BUFFERS, 16, INDIRECT, 0);
    hostile.avail(&[0]);
    assert_eq!(hostile.transmit(), Err(RingError::IndirectMisused { head: 0 }));
}

#[test]
fn spec_2_7_5_3_1_indirect_with_next_is_refused() {
    let mut hostile = Hostile::new(config(16));
    hostile.descriptor(0, BUFFERS, 16, INDIRECT | NEXT, 1);
    hostile.avail(&[0]);
    assert_eq!(hostile.transmit(), Err(RingError::IndirectMisused { head: 0 }));
}

#[test]
fn indirect_without_the_feature_is_refused() {
    let mut hostile = Hostile::new(RingConfig { indirect: false, ..config(16) });
    hostile.descriptor(0, BUFFERS, 16, INDIRECT, 0);
    hostile.avail(&[0]);
    assert_eq!(hostile.transmit(), Err(RingError::IndirectNotNegotiated { head: 0 }));
}

#[test]
fn indirect_tables_of_odd_length_or_outside_memory_are_refused() {
    for len in [0, 1, 15, 17] {
        let mut hostile = Hostile::new(config(16));
        hostile.descriptor(0, BUFFERS, len, INDIRECT, 0);
        hostile.avail(&[0]);
        assert_eq!(hostile.transmit(), Err(RingError::IndirectLength { head: 0, len }));
    }
    let mut hostile = Hostile::new(config(16));
    hostile.descriptor(0, MEMORY - 16, 32, INDIRECT, 0);
    hostile.avail(&[0]);
    let error = RingError::BadAddress { address: MEMORY - 16, len: 32 };
    assert_eq!(hostile.transmit(), Err(error));
}

#[test]
fn spec_2_7_5_3_2_write_flag_of_an_indirect_descriptor_is_ignored() {
    let mut hostile = Hostile::new(config(16));
    hostile.descriptor(0, BUFFERS, 16, INDIRECT | WRITE, 0);
    hostile.descriptor(BUFFERS, BUFFERS + 64, 9, 0, 0);
    hostile.avail(&[0]);
    assert_eq!(hostile.transmit(), Ok(Some(Chain { token: Token::split(0), len: 9 })));
}

#[test]
fn spec_2_7_5_3_2_direct_buffers_before_an_indirect_table_are_taken() {
    let mut hostile = Hostile::new(config(16));
    hostile.descriptor(0, BUFFERS, 3, NEXT, 1);
    hostile.descriptor(16, BUFFERS, 16, INDIRECT, 0);
    hostile.descriptor(BUFFERS, BUFFERS + 64, 9, 0, 0);
    hostile.avail(&[0]);
    assert_eq!(hostile.transmit(), Ok(Some(Chain { token: Token::split(0), len: 12 })));
}

#[test]
fn rings_that_cannot_be_set_up_say_why() {
    let memory = memory();
    let new = |size, at: Addresses| DeviceRing::new(&memory, config(size), &at, 0).unwrap_err();
    assert_eq!(new(0, AT), SetupError::Size(0));
    assert_eq!(new(48, AT), SetupError::Size(48));
    assert_eq!(new(0xffff, AT), SetupError::Size(0xffff));
    let far = Addresses { device: MEMORY - 8, ..AT };
    assert!(matches!(new(16, far), SetupError::NotShared { area: "device", .. }));
    let odd = Addresses { driver: AT.driver + 1, ..AT };
    assert!(matches!(new(16, odd), SetupError::Misaligned { area: "driver", align: 2, .. }));
    let odd = Addresses { descriptor: 8, ..AT };
    assert!(matches!(new(16, odd), SetupError::Misaligned { area: "descriptor", .. }));
}

proptest! {
    /// Garbage in the whole ring and its tables: the work is bounded, and slices lie in memory.
    #[test]
    fn garbage_in_a_ring_ends_in_chains_or_an_error(
        words in proptest::collection::vec(any::<u64>(), 1..400),
        small in any::<bool>(),
        idx in any::<u16>(),
        writable in any::<bool>(),
    ) {
        let mut hostile = Hostile::new(config(64));
        for (i, word) in words.iter().enumerate() {
            // Half the cases use values in range, so that walks get deeper.
            let word = if small { word & 0x0007_0007_0000_ffff | 0x0010 << 32 } else { *word };
            let at = if i % 3 == 2 { AT.driver as usize + 4 + 8 * i } else { 8 * i };
            hostile.raw.write(at, word.to_le_bytes());
        }
        hostile.raw.store(AT.driver as usize + 2, if small { idx % 65 } else { idx });
        let mut pieces = Vec::new();
        let direction = if writable { Direction::Writable } else { Direction::Readable };
        if hostile.device.refill().is_ok() {
            for _ in 0..64 {
                match hostile.device.take(direction, &hostile.memory, &mut pieces) {
                    Ok(Some(chain)) => hostile.device.complete(chain.token, 0),
                    Ok(None) | Err(_) => break,
                }
            }
            prop_assert!(pieces.len() <= 64 * CHAIN_LEN_MAX);
            hostile.device.publish();
            hostile.device.needs_call();
            let _ = hostile.device.enable_kicks();
        }
    }
}
