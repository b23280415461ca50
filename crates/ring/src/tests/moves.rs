//! A guest migrates: its monitor copies the memory, and then again the pages that a log marks as written. At whatever
//! time it copies, between any two of the device's writes, its copy is complete in the end. See
//! `docs/design/restarts.md#0034`.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

use proptest::prelude::*;
use weir_guestmem::watch::between_writes;
use weir_guestmem::{DirtyLog, LOG_PAGE_BYTES, LogError, Piece, Slice};

use super::pair::{buffer, formats, pair};
use super::*;

/// The end of a ring's last area.
const END: u64 = 0x2_8000;
const LOG_BYTES: u64 = MEMORY / LOG_PAGE_BYTES / 8;

fn log() -> Arc<DirtyLog> {
    let fd = memfd_create("log", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, LOG_BYTES).unwrap();
    Arc::new(DirtyLog::map(LOG_BYTES, 0, &File::from(fd), &Arc::default()).unwrap())
}

fn ring_log(log: &Arc<DirtyLog>, memory: &GuestMemory, config: &RingConfig) -> Box<RingLog> {
    Box::new(try_log(log, memory, config, AT.device).unwrap())
}

/// A log for the ring at `AT`, whose device area the front end says to be at `device`.
fn try_log(
    log: &Arc<DirtyLog>,
    memory: &GuestMemory,
    config: &RingConfig,
    device: u64,
) -> Result<RingLog, LogError> {
    let [descriptors, _, devices] = config.area_sizes().map(|len| len as u64);
    let descriptors = memory.guest_pieces(&[Piece { address: AT.descriptor, len: descriptors }]);
    let device = Piece { address: device, len: devices };
    RingLog::new(Arc::clone(log), config, descriptors, vec![device])
}

/// The migration, as the destination sees it.
struct Move {
    memory: Arc<GuestMemory>,
    log: Arc<DirtyLog>,
    copy: Vec<u8>,
    /// Pages that the driver has written.
    by_driver: BTreeSet<u64>,
    /// The number of the device's writes, and the writes at which the monitor copies.
    writes: usize,
    looks: Vec<u8>,
}

fn page(memory: &GuestMemory, number: u64) -> Slice<'_> {
    memory.slice(number * LOG_PAGE_BYTES, LOG_PAGE_BYTES as u32).unwrap()
}

fn all(memory: &GuestMemory) -> Vec<u8> {
    let mut bytes = vec![0; END as usize];
    memory.slice(0, END as u32).unwrap().read(&mut bytes);
    bytes
}

impl Move {
    fn look(&mut self) {
        let mut pages = std::mem::take(&mut self.by_driver);
        self.log.take(|number| {
            pages.insert(number);
        });
        for number in pages {
            let at = (number * LOG_PAGE_BYTES) as usize;
            page(&self.memory, number).read(&mut self.copy[at..at + LOG_PAGE_BYTES as usize]);
        }
    }

    fn about_to_write(&mut self) {
        self.writes += 1;
        if self.looks[self.writes % self.looks.len()] == 0 {
            self.look();
        }
    }

    fn missing(&self) -> Vec<u64> {
        let pages = 0..END / LOG_PAGE_BYTES;
        let there = all(&self.memory);
        let bytes = |number: u64| {
            let at = (number * LOG_PAGE_BYTES) as usize;
            at..at + LOG_PAGE_BYTES as usize
        };
        pages.filter(|&number| there[bytes(number)] != self.copy[bytes(number)]).collect()
    }
}

proptest! {
    #[test]
    fn a_ring_arrives_whole_whenever_its_log_is_taken(
        event_idx: bool,
        packed: bool,
        in_order: bool,
        size in prop_oneof![Just(8u16), Just(1024)],
        odd_size in prop_oneof![1..=9u16, 900..=1100u16],
        begins in 0..40usize,
        looks in prop::collection::vec(0..4u8, 1..20),
        steps in prop::collection::vec((0..8u8, 0..64u16), 1..200),
    ) {
        let size = if packed { odd_size } else { size };
        let config = RingConfig { event_idx, packed, in_order, ..config(size) };
        let (memory, mut driver, mut device) = pair(config);
        let moves = Rc::new(RefCell::new(Move {
            memory: Arc::clone(&memory),
            log: log(),
            copy: Vec::new(),
            by_driver: BTreeSet::new(),
            writes: 0,
            looks,
        }));
        let mut kept: VecDeque<Token> = VecDeque::new();
        for (nth, (step, n)) in steps.into_iter().enumerate() {
            if nth == begins {
                let of_ring = ring_log(&moves.borrow().log, &memory, &config);
                prop_assert!(device.set_log(Some(of_ring)).is_none());
                let mut moves = moves.borrow_mut();
                moves.copy = all(&memory);
            }
            let began = nth >= begins;
            let watch = Rc::clone(&moves);
            let look = move || if began { watch.borrow_mut().about_to_write() };
            match step {
                0..=2 => {
                    let before = all(&memory);
                    if step < 2 {
                        for i in 0..n {
                            let buffers = [buffer(0, 9, false), buffer(1, 9, false)];
                            driver.offer(&buffers[..1 + usize::from(i % 2)]);
                        }
                        driver.publish();
                    } else {
                        while driver.take().is_some() {}
                        driver.enable_calls();
                    }
                    let after = all(&memory);
                    let pages = before.chunks(LOG_PAGE_BYTES as usize).zip(after.chunks(LOG_PAGE_BYTES as usize));
                    let changed = pages.enumerate().filter(|(_, (before, after))| before != after);
                    moves.borrow_mut().by_driver.extend(changed.map(|(number, _)| number as u64));
                }
                3 | 4 => between_writes(look, || {
                    device.suppress_kicks();
                    device.refill().unwrap();
                    for i in 0..n {
                        match device.take(Direction::Readable, &memory, &mut Vec::new()).unwrap() {
                            Some(chain) if i % 5 == 4 => {
                                device.keep(chain.token);
                                kept.push_back(chain.token);
                            }
                            Some(chain) => device.complete(chain.token, (i % 3).into()),
                            None => break,
                        }
                    }
                    // Buffers of some later chains are still being written.
                    device.publish_first(n / 2);
                }),
                5 => between_writes(look, || {
                    if let Some(token) = kept.pop_front() {
                        device.complete_kept(token, 0);
                    }
                    device.publish();
                    device.needs_call();
                }),
                6 => between_writes(look, || {
                    device.enable_kicks().unwrap();
                }),
                _ => between_writes(look, || device.suppress_kicks()),
            }
        }
        // The ring stops, and the monitor copies for the last time.
        for token in kept {
            device.complete_kept(token, 0);
        }
        device.publish();
        let mut moves = moves.borrow_mut();
        if !moves.copy.is_empty() {
            moves.look();
            prop_assert_eq!(moves.missing(), Vec::<u64>::new());
            prop_assert!(!moves.log.is_overrun());
        }
    }
}

#[test]
fn a_ring_without_a_bit_for_each_of_its_bytes_gets_no_log() {
    for config in formats(256) {
        let (memory, ..) = pair(config);
        let log = log();
        let refused =
            |memory: &GuestMemory, device| try_log(&log, memory, &config, device).is_err();
        assert!(!refused(&memory, MEMORY - 0x1000));
        assert!(refused(&memory, MEMORY - 1), "{config:?}");
        assert!(refused(&memory, u64::MAX - 1), "{config:?}");
        assert_eq!(refused(&GuestMemory::default(), 0), config.packed, "descriptors are nowhere");
    }
}

#[test]
fn the_device_area_is_marked_where_the_front_end_says() {
    for config in formats(8) {
        let (memory, mut driver, mut device) = pair(config);
        let log = log();
        let of_ring = try_log(&log, &memory, &config, 0x7_0000).unwrap();
        device.set_log(Some(Box::new(of_ring)));
        let taken = || {
            let mut pages = BTreeSet::new();
            log.take(|number| {
                pages.insert(number);
            });
            pages
        };
        let descriptors = config.packed.then_some(0);
        let expected: BTreeSet<u64> = descriptors.into_iter().chain([0x70]).collect();
        assert_eq!(taken(), expected, "all that may have been written before");
        driver.offer(&[buffer(0, 1, false)]).unwrap();
        driver.publish();
        device.refill().unwrap();
        let chain = device.take(Direction::Readable, &memory, &mut Vec::new()).unwrap().unwrap();
        device.complete(chain.token, 0);
        device.publish();
        assert_eq!(taken(), [if config.packed { 0 } else { 0x70 }].into());
        device.enable_kicks().unwrap();
        assert_eq!(taken(), [0x70].into());
        assert!(device.set_log(None).is_some());
        device.suppress_kicks();
        assert!(taken().is_empty());
    }
}
