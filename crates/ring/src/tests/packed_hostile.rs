//! Packed rings written by an attacker. Every case ends in a named error.

use proptest::prelude::*;
use weir_limits::CHAIN_LEN_MAX;

use super::*;
use crate::index::position;
use crate::layout::*;

const NEXT: u16 = DESC_F_NEXT;
const WRITE: u16 = DESC_F_WRITE;
const INDIRECT: u16 = DESC_F_INDIRECT;
/// The flags of a descriptor that is available in the first lap.
const AVAIL: u16 = PACKED_F_AVAIL;

fn packed(size: u16) -> RingConfig {
    RingConfig { packed: true, ..config(size) }
}

struct Guest {
    memory: Arc<GuestMemory>,
    device: DeviceRing,
    raw: Window,
}

impl Guest {
    fn new(config: RingConfig) -> Self {
        let memory = memory();
        let device = DeviceRing::new(&memory, config, &AT, config.fresh_base()).unwrap();
        let raw = memory.window(0, MEMORY as usize).unwrap();
        Self { memory, device, raw }
    }

    fn descriptor(&self, at: u64, address: u64, len: u32, id: u16, flags: u16) {
        let at = at as usize;
        self.raw.write(at, address.to_le_bytes());
        self.raw.write(at + 8, len.to_le_bytes());
        self.raw.write(at + 12, id.to_le_bytes());
        self.raw.write(at + PACKED_FLAGS, flags.to_le_bytes());
    }

    fn transmit(&mut self) -> Result<Option<Chain>, RingError> {
        self.device.refill()?;
        self.device.take(Direction::Readable, &self.memory, &mut Vec::new())
    }

    fn receive(&mut self) -> Result<Option<Chain>, RingError> {
        self.device.refill()?;
        self.device.take(Direction::Writable, &self.memory, &mut Vec::new())
    }
}

/// The result of a transmit queue for one descriptor.
fn one(address: u64, len: u32, flags: u16) -> Result<Option<Chain>, RingError> {
    let mut guest = Guest::new(packed(16));
    guest.descriptor(0, address, len, 0, flags | AVAIL);
    guest.transmit()
}

#[test]
fn each_senseless_descriptor_is_refused() {
    assert_eq!(one(BUFFERS, 0, 0), Err(RingError::ZeroLength { head: 0 }));
    assert_eq!(one(BUFFERS, 1, WRITE), Err(RingError::WritableInTransmit { head: 0 }));
    for (address, len) in [(MEMORY, 1), (MEMORY - 1, 2), (u64::MAX, 1), (0, u32::MAX)] {
        assert_eq!(one(address, len, 0), Err(RingError::BadAddress { address, len }));
    }
    let mut guest = Guest::new(packed(16));
    guest.descriptor(0, BUFFERS, 1, 0, AVAIL);
    assert_eq!(guest.receive(), Err(RingError::ReadOnlyInReceive { head: 0 }));
}

#[test]
fn empty_buffers_in_a_list_add_nothing() {
    for is_indirect in [false, true] {
        for lens in [[0, 12, 0, 60], [12, 0, 60, 0], [0, 0, 72, 0]] {
            let mut guest = Guest::new(packed(16));
            for (nth, len) in (0..).zip(lens) {
                let address = if len == 0 { u64::MAX } else { 0x100 };
                let next = if nth < 3 { NEXT } else { 0 };
                let (table, flags) = if is_indirect { (BUFFERS, 0) } else { (0, AVAIL | next) };
                guest.descriptor(table + nth * 16, address, len, 7, flags);
            }
            if is_indirect {
                guest.descriptor(0, BUFFERS, 64, 7, INDIRECT | AVAIL);
            }
            let mut pieces = Vec::new();
            guest.device.refill().unwrap();
            let taken = guest.device.take(Direction::Readable, &guest.memory, &mut pieces);
            let Ok(Some(Chain { len, .. })) = taken else { panic!("{taken:?}") };
            let filled = lens.into_iter().filter(|len| *len > 0).count();
            assert_eq!((len, pieces.len()), (72, filled));
        }
    }
}

#[test]
fn spec_2_8_6_a_list_around_the_whole_ring_is_refused() {
    let mut guest = Guest::new(packed(16));
    for slot in 0..16 {
        guest.descriptor(slot * 16, BUFFERS, 1, 0, AVAIL | NEXT);
    }
    let overrun = RingError::AvailableOverrun { slot: 0, size: 16 };
    assert_eq!(guest.transmit(), Err(overrun));
    let mut guest = Guest::new(packed(1024));
    for slot in 0..=CHAIN_LEN_MAX as u64 {
        guest.descriptor(slot * 16, BUFFERS, 1, 0, AVAIL | NEXT);
    }
    assert_eq!(guest.transmit(), Err(RingError::ChainTooLong { head: 0 }));
}

#[test]
fn spec_2_8_21_a_slot_made_available_before_it_was_used_is_refused() {
    let mut guest = Guest::new(packed(2));
    for slot in 0..2 {
        guest.descriptor(slot * 16, BUFFERS, 1, 0, AVAIL);
        assert!(guest.transmit().unwrap().is_some());
    }
    guest.descriptor(0, BUFFERS, 1, 0, PACKED_F_USED); // available in the second lap
    assert_eq!(guest.transmit(), Err(RingError::AvailableOverrun { slot: 0, size: 2 }));
}

#[test]
fn a_slot_that_was_available_and_is_not_any_more_is_refused() {
    let mut guest = Guest::new(packed(16));
    guest.descriptor(0, BUFFERS, 1, 0, AVAIL);
    assert_eq!(guest.device.refill(), Ok(1));
    guest.descriptor(0, BUFFERS, 1, 0, 0);
    assert_eq!(guest.transmit(), Err(RingError::AvailableRetracted { slot: 0 }));
}

#[test]
fn indirect_without_the_feature_is_refused() {
    let mut guest = Guest::new(RingConfig { indirect: false, ..packed(16) });
    guest.descriptor(0, BUFFERS, 16, 0, INDIRECT | AVAIL);
    assert_eq!(guest.transmit(), Err(RingError::IndirectNotNegotiated { head: 0 }));
}

#[test]
fn spec_2_8_19_indirect_tables_are_neither_nested_nor_in_a_list() {
    let misused = Err(RingError::IndirectMisused { head: 0 });
    assert_eq!(one(BUFFERS, 16, INDIRECT | NEXT), misused);
    let mut guest = Guest::new(packed(16));
    guest.descriptor(0, BUFFERS, 1, 0, NEXT | AVAIL);
    guest.descriptor(16, BUFFERS, 16, 0, INDIRECT | AVAIL);
    assert_eq!(guest.transmit(), misused);
    let mut guest = Guest::new(packed(16));
    guest.descriptor(0, BUFFERS, 16, 0, INDIRECT | AVAIL);
    guest.descriptor(BUFFERS, BUFFERS, 16, 0, INDIRECT);
    assert_eq!(guest.transmit(), misused);
}

#[test]
fn indirect_tables_of_odd_length_or_outside_memory_or_too_long_are_refused() {
    for len in [0, 1, 15, 17] {
        let refused = Err(RingError::IndirectLength { head: 0, len });
        assert_eq!(one(BUFFERS, len, INDIRECT), refused);
    }
    let (address, len) = (MEMORY - 16, 32);
    assert_eq!(one(address, len, INDIRECT), Err(RingError::BadAddress { address, len }));
    let long = (CHAIN_LEN_MAX as u32 + 1) * 16;
    assert_eq!(one(BUFFERS, long, INDIRECT), Err(RingError::ChainTooLong { head: 0 }));
}

#[test]
fn lengths_that_add_up_beyond_32_bits_are_refused() {
    let fd = memfd_create("sparse", MemfdFlags::CLOEXEC).unwrap();
    let size = 1 << 31;
    ftruncate(&fd, size).unwrap();
    let spec = RegionSpec { guest_address: 0, size, user_address: 0, mmap_offset: 0 };
    let memory = Arc::new(GuestMemory::map(&[(spec, File::from(fd))]).unwrap());
    let config = packed(16);
    let device = DeviceRing::new(&memory, config, &AT, config.fresh_base()).unwrap();
    let raw = memory.window(0, MEMORY as usize).unwrap();
    let mut guest = Guest { memory, device, raw };
    guest.descriptor(0, 0, 1 << 31, 0, NEXT | AVAIL);
    guest.descriptor(16, 0, 1 << 31, 0, AVAIL);
    assert_eq!(guest.transmit(), Err(RingError::LengthOverflow { head: 0 }));
}

#[test]
fn the_same_buffer_id_twice_only_confuses_its_guest() {
    let mut guest = Guest::new(packed(16));
    guest.descriptor(0, BUFFERS, 1, 0xffff, AVAIL);
    guest.descriptor(16, BUFFERS, 2, 0xffff, AVAIL);
    let chains = [guest.transmit(), guest.transmit()].map(|taken| taken.unwrap().unwrap());
    assert_eq!(chains.map(|chain| chain.len), [1, 2]);
    assert_ne!(chains[0].token, chains[1].token);
    for chain in chains {
        guest.device.complete(chain.token, 0);
    }
    assert_eq!(guest.device.publish(), 2);
    assert_eq!(guest.raw.read::<2>(16 + 12), [0xff, 0xff]);
}

#[test]
fn in_order_chains_beyond_the_ring_are_refused() {
    // A split ring's driver that offers chains without end while the first waits.
    let mut guest = Guest::new(RingConfig { in_order: true, ..config(2) });
    for head in [0, 1] {
        guest.descriptor(16 * head, BUFFERS, 1, 0, 0);
    }
    for idx in 1..=4 {
        let entry = avail_entry(position(idx - 1, 2));
        guest.raw.store(AT.driver as usize + entry, u16::from(idx > 1));
        guest.raw.store_release(AT.driver as usize + 2, idx);
        let taken = guest.transmit();
        match (idx, taken) {
            (1, Ok(Some(chain))) => guest.device.keep(chain.token),
            (2 | 3, Ok(Some(chain))) => guest.device.complete(chain.token, 0),
            (_, taken) => {
                assert_eq!((idx, taken), (4, Err(RingError::TooManyInFlight { size: 2 })))
            }
        }
    }
}

#[test]
fn rings_that_cannot_be_set_up_say_why() {
    let memory = memory();
    let new =
        |size, at: Addresses, base| DeviceRing::new(&memory, packed(size), &at, base).unwrap_err();
    let fresh = 0x8000_8000;
    assert_eq!(new(0, AT, fresh), SetupError::PackedSize(0));
    assert_eq!(new(32_769, AT, fresh), SetupError::PackedSize(32_769));
    let far = Addresses { device: MEMORY - 2, ..AT };
    assert!(matches!(new(16, far, fresh), SetupError::NotShared { area: "device", .. }));
    let odd = Addresses { driver: AT.driver + 2, ..AT };
    assert!(matches!(new(16, odd, fresh), SetupError::Misaligned { area: "driver", align: 4, .. }));
    // A slot beyond the ring, and a used index ahead of the available one.
    for base in [0x8000_8010, 0x8010_8000, 0x8002_8001] {
        assert_eq!(new(16, AT, base), SetupError::Base(base));
    }
    for base in [0x8000_8007, 0x8007_8000, 0x0007_0000] {
        assert_eq!(new(7, AT, base), SetupError::Base(base));
    }
    let split = DeviceRing::new(&memory, config(16), &AT, 1 << 16);
    assert_eq!(split.unwrap_err(), SetupError::Base(1 << 16));
}

proptest! {
    /// Garbage in the whole ring and its tables: the work is bounded, and slices lie in memory.
    #[test]
    fn garbage_in_a_packed_ring_ends_in_chains_or_an_error(
        size in prop_oneof![Just(64u16), 1..=64u16],
        words in proptest::collection::vec(any::<u64>(), 1..400),
        small in any::<bool>(),
        writable in any::<bool>(),
        in_order in any::<bool>(),
        base in prop_oneof![Just(0x8000_8000u32), any::<u32>()],
    ) {
        let memory = memory();
        let config = RingConfig { in_order, ..packed(size) };
        let Ok(mut device) = DeviceRing::new(&memory, config, &AT, base) else { return Ok(()) };
        let raw = memory.window(0, MEMORY as usize).unwrap();
        for (i, word) in words.iter().enumerate() {
            // Half the cases use values in range, so that walks get deeper.
            let low = if i % 2 == 0 { 0x0007_ffff } else { 0x8087_00ff_0000_0fff };
            raw.write(8 * i, (if small { word & low } else { *word }).to_le_bytes());
        }
        raw.write(AT.driver as usize, (words[0] as u32).to_le_bytes());
        let mut pieces = Vec::new();
        let mut parked = Vec::new();
        let direction = if writable { Direction::Writable } else { Direction::Readable };
        for step in 0..200 {
            if device.refill().is_err() { break }
            match device.take(direction, &memory, &mut pieces) {
                Ok(Some(chain)) if step % 3 == 0 => {
                    device.keep(chain.token);
                    parked.push(chain.token);
                }
                Ok(Some(chain)) => device.complete(chain.token, step % 2),
                Ok(None) | Err(_) => break,
            }
            device.publish();
            device.needs_call();
        }
        prop_assert!(pieces.len() <= 200 * CHAIN_LEN_MAX);
        for head in parked {
            let _ = device.retake_readable(head, &memory, &mut pieces);
            device.complete_kept(head, 0);
        }
        device.publish();
        device.needs_call();
        let _ = device.enable_kicks();
        device.base();
    }
}
