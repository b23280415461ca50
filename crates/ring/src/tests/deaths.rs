//! A device that dies between any two of its writes, and its successor: `docs/design/restarts.md#0028`.

use std::cell::Cell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

use proptest::prelude::*;
use weir_guestmem::watch::between_writes;

use super::pair::formats;
use super::*;

const RECORD: u64 = 1 << 20;
const ORIGIN: Origin = Origin { memory: [7, 8], at: AT };
const SIZE: u16 = 8;

fn memfd(bytes: u64) -> File {
    let fd = memfd_create("deaths", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, bytes).unwrap();
    File::from(fd)
}

/// Memory that outlives the device.
struct Outlives {
    memory: Arc<GuestMemory>,
    record: Arc<GuestMemory>,
    config: RingConfig,
    /// Chains that the front end took without a device, and did not give back.
    took: Cell<u16>,
}

impl Outlives {
    fn new(config: RingConfig) -> Self {
        let spec = RegionSpec { guest_address: 0, size: RECORD, user_address: 0, mmap_offset: 0 };
        let record = Arc::new(GuestMemory::map(&[(spec, memfd(RECORD))]).unwrap());
        Self { memory: memory(), record, config, took: Cell::default() }
    }

    fn driver(&self) -> DriverRing {
        DriverRing::new(&self.memory, self.config, &AT).unwrap()
    }

    fn record(&self) -> Record {
        let window = self.record.window(0, RECORD as usize).unwrap();
        Record::new(window, 0, self.config.size).unwrap()
    }

    /// The base that QEMU sends when a back end returns: a split ring's used index, or the former base of a packed
    /// ring; in both cases plus the chains that it [took](Self::take_away).
    fn base(&self) -> u32 {
        if self.config.packed {
            return self.config.fresh_base() + u32::from(self.took.get());
        }
        self.indices().1.wrapping_add(self.took.get()).into()
    }

    fn device(&self) -> DeviceRing {
        self.device_at(self.base())
    }

    fn device_at(&self, base: u32) -> DeviceRing {
        self.device_by(base).unwrap()
    }

    fn device_by(&self, base: u32) -> Result<DeviceRing, SetupError> {
        let (memory, config) = (&self.memory, self.config);
        DeviceRing::recorded(memory, config, &AT, base, base, self.record(), &ORIGIN)
    }

    /// A split ring's indices: available, used.
    fn indices(&self) -> (u16, u16) {
        let index = |at| self.memory.window(at, 4).unwrap().load(2);
        (index(AT.driver), index(AT.device))
    }

    /// The front end's part while its back end is away, as QEMU does it: it takes up to `max`
    /// chains. With `VIRTIO_F_IN_ORDER` it gives none back, otherwise it gives back all. Returns
    /// their heads.
    fn take_away(&self, max: u16) -> Vec<u16> {
        let RingConfig { size, packed, in_order, .. } = self.config;
        if packed {
            // An arbitrary old position.
            self.took.set(if in_order { max % size } else { 0 });
            return Vec::new();
        }
        let (available, used) = self.indices();
        let taken = max.min(available.wrapping_sub(used));
        if in_order {
            self.took.set(taken);
            return Vec::new();
        }
        let raw = self.memory.window(0, MEMORY as usize).unwrap();
        let given_back = (0..taken).map(|nth| {
            let place = usize::from(used.wrapping_add(nth) % size);
            let head = raw.load(AT.driver as usize + 4 + 2 * place);
            let element = u64::from(head).to_le_bytes();
            raw.write(AT.device as usize + 4 + 8 * place, element);
            head
        });
        let given_back = given_back.collect();
        raw.store_release(AT.device as usize + 2, used.wrapping_add(taken));
        given_back
    }

    /// Zeroes the ring, as a driver that starts again does.
    fn zero_ring(&self) {
        let raw = self.memory.window(0, BUFFERS as usize).unwrap();
        for at in (0..BUFFERS as usize).step_by(8) {
            raw.write(at, [0; 8]);
        }
    }
}

/// A step of a test.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// The driver offers a chain of this number of buffers.
    Offer(u8),
    /// The device takes this number of chains, and keeps those whose bit is set.
    Send { chains: u8, kept: u8 },
    /// The device retries the kept chains, and continues to keep those whose bit is set.
    Retry { kept: u8 },
    /// The driver takes back completed chains.
    Reap,
    /// The device dies between two bursts, and the front end takes this number of chains before the next device comes.
    Away(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (1..4u8).prop_map(Step::Offer),
        3 => (1..6u8, any::<u8>(), any::<bool>())
            .prop_map(|(chains, kept, some)| Step::Send { chains, kept: if some { kept } else { 0 } }),
        1 => any::<u8>().prop_map(|kept| Step::Retry { kept }),
        2 => Just(Step::Reap),
        1 => any::<u8>().prop_map(|takes| Step::Away(takes % 20)),
    ];
    prop::collection::vec(step, 1..120)
}

/// Kills the device after this number of further writes.
#[derive(Clone, Default)]
struct Fate(Rc<Cell<Option<u32>>>);

struct Killed;

impl Fate {
    /// Runs `work` as long as the device lives; `None` if it died.
    fn live<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        let left = Rc::clone(&self.0);
        let look = move || match left.get() {
            Some(0) => {
                left.set(None);
                resume_unwind(Box::new(Killed));
            }
            Some(writes) => left.set(Some(writes - 1)),
            None => {}
        };
        let done = catch_unwind(AssertUnwindSafe(|| between_writes(look, work)));
        done.map_err(|panic| {
            if !panic.is::<Killed>() {
                resume_unwind(panic)
            }
        })
        .ok()
    }
}

/// A guest that sends, and its device. The length of a chain is its name.
struct Sender {
    outlives: Outlives,
    driver: DriverRing,
    device: Option<DeviceRing>,
    fate: Fate,
    /// The chains that the device keeps, in order.
    waiting: VecDeque<Token>,
    /// The number of times that each chain was sent, in all lives.
    sent: HashMap<u32, u32>,
    /// Chains sent since the last publication; a split ring's publication of index 0 does not count, since it is no
    /// record.
    since: Vec<u32>,
    /// Chains of the burst in which the device died.
    under_way: HashSet<u32>,
    /// Offered chains by the driver's name.
    offered: HashMap<u16, u32>,
    offers: u32,
    deaths: u32,
    /// The number of deaths between two bursts.
    absences: u32,
}

impl Sender {
    fn new(config: RingConfig, fate: Fate) -> Self {
        let outlives = Outlives::new(config);
        let driver = outlives.driver();
        let mut sender = Self {
            outlives,
            driver,
            device: None,
            fate,
            waiting: VecDeque::new(),
            sent: HashMap::new(),
            since: Vec::new(),
            under_way: HashSet::new(),
            offered: HashMap::new(),
            offers: 0,
            deaths: 0,
            absences: 0,
        };
        sender.come();
        sender
    }

    /// Starts a device, again after each death.
    fn come(&mut self) {
        self.device = None;
        let device = loop {
            match self.fate.live(|| self.outlives.device()) {
                Some(device) => break device,
                None => self.deaths += 1,
            }
        };
        self.waiting = device.left_behind().into();
        self.device = Some(device);
        // Kept chains are sent, or kept again, before any other chain is sent.
        if !self.waiting.is_empty() {
            self.step(Step::Retry { kept: 0b10 });
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Offer(buffers) => {
                let buffer = |nth| Buffer {
                    address: BUFFERS,
                    len: if nth == 0 { 10 * (self.offers + 1) } else { 1 },
                    writable: false,
                };
                let buffers: Vec<_> = (0..buffers).map(buffer).collect();
                let len = buffers.iter().map(|buffer| buffer.len).sum();
                if let Some(head) = self.driver.offer(&buffers) {
                    self.offers += 1;
                    assert_eq!(self.offered.insert(head, len), None);
                }
                self.driver.publish();
            }
            Step::Send { chains, kept } => self.burst(|device, memory, waiting| {
                device.refill().unwrap();
                let mut taken = Vec::new();
                for _ in 0..chains {
                    taken
                        .extend(device.take(Direction::Readable, memory, &mut Vec::new()).unwrap());
                }
                let room = 4usize.saturating_sub(waiting.len());
                let stays = |nth: usize| kept >> (nth % 8) & 1 == 1;
                let kept: Vec<_> = (0..taken.len()).filter(|nth| stays(*nth)).take(room).collect();
                if kept.is_empty() {
                    return taken.iter().map(|chain| (chain.len, chain.token)).unzip();
                }
                for (nth, chain) in taken.iter().enumerate() {
                    if kept.contains(&nth) {
                        device.keep(chain.token);
                        waiting.push_back(chain.token);
                    } else {
                        device.complete(chain.token, 0);
                    }
                }
                let sent = taken.iter().enumerate().filter(|(nth, _)| !kept.contains(nth));
                (sent.map(|(_, chain)| chain.len).collect(), Vec::new())
            }),
            Step::Retry { kept } => self.burst(|device, memory, waiting| {
                let mut sent = Vec::new();
                for (nth, token) in std::mem::take(waiting).into_iter().enumerate() {
                    let chain =
                        device.retake_readable(token, memory, &mut Vec::new()).unwrap().chain;
                    if kept >> (nth % 8) & 1 == 1 {
                        device.keep(token);
                        waiting.push_back(token);
                    } else {
                        device.complete_kept(token, 0);
                        sent.push(chain.len);
                    }
                }
                (sent, Vec::new())
            }),
            Step::Reap => self.reap(),
            Step::Away(takes) => self.away(takes.into()),
        }
    }

    fn away(&mut self, takes: u16) {
        self.device = None;
        self.absences += 1;
        self.under_way.extend(self.since.drain(..));
        // With waiting chains, a ring without order would give back chains that the device gave back out of order.
        if self.waiting.is_empty() || self.outlives.config.in_order {
            for head in self.outlives.take_away(takes) {
                *self.sent.entry(self.offered[&head]).or_default() += 1;
            }
        }
        self.come();
    }

    /// Sends chains, and gives them back unless the device dies before. `work` completes all but those that it names
    /// again.
    fn burst(
        &mut self,
        work: impl FnOnce(&mut DeviceRing, &GuestMemory, &mut VecDeque<Token>) -> (Vec<u32>, Vec<Token>),
    ) {
        let memory = Arc::clone(&self.outlives.memory);
        let Some(mut device) = self.device.take() else { return };
        let (sent, left) = work(&mut device, &memory, &mut self.waiting);
        // Each way to give chains back at once.
        let give_back = |device: &mut DeviceRing| {
            if left.len() % 2 == 0 {
                device.return_all(&left, |token| *token);
            } else if !device.show_all(&left, |token| (*token, 1)) {
                device.complete_all(left.iter().map(|token| (*token, 1)));
                device.publish();
            }
        };
        for chain in &sent {
            *self.sent.entry(*chain).or_default() += 1;
        }
        self.since.extend(sent);
        match self.fate.live(|| give_back(&mut device)) {
            Some(_) => {
                self.device = Some(device);
                if self.outlives.config.packed || self.outlives.indices().1 != 0 {
                    self.since.clear();
                }
            }
            None => {
                self.deaths += 1;
                self.under_way.extend(self.since.drain(..));
                self.come();
            }
        }
    }

    fn reap(&mut self) {
        while let Some(used) = self.driver.take() {
            let chain = self.offered.remove(&used.head).expect("it is in flight");
            assert!(self.sent.contains_key(&chain), "chain {chain} came back and was never sent");
        }
        assert_eq!(self.driver.skipped(), 0);
    }

    /// Sends and takes back everything, and checks that each chain was sent once.
    fn finish(&mut self) {
        self.fate.0.set(None);
        for _ in 0..3 {
            for step in
                [Step::Retry { kept: 0 }, Step::Send { chains: u8::MAX, kept: 0 }, Step::Reap]
            {
                self.step(step);
            }
        }
        assert_eq!(self.driver.in_flight(), 0, "{:?} never came back", self.offered);
        assert_eq!(self.sent.len() as u32, self.offers);
        for (chain, times) in &self.sent {
            let under_way = self.under_way.contains(chain);
            assert!(*times == 1 || under_way, "chain {chain} was sent {times} times");
            assert!(*times <= 1 + self.deaths + self.absences);
        }
    }
}

/// All kinds of steps, several times around the ring.
fn a_little_of_everything() -> Vec<Step> {
    let offer = |n| std::iter::repeat_n(Step::Offer(1), n);
    let mut steps: Vec<Step> = offer(5).collect();
    steps.push(Step::Send { chains: 5, kept: 0b01010 });
    for round in 0..6 {
        steps.push(Step::Reap);
        steps.extend(offer(3));
        steps.extend([
            Step::Send { chains: 3, kept: 0 },
            Step::Reap,
            Step::Offer(2),
            Step::Offer(1),
        ]);
        steps.extend([
            Step::Send { chains: 1, kept: 1 },
            Step::Away(round),
            Step::Send { chains: 4, kept: 0 },
            Step::Retry { kept: if round % 2 == 0 { 0b110 } else { 0 } },
            Step::Reap,
        ]);
    }
    steps
}

fn play(config: RingConfig, steps: &[Step], deaths: &[u32]) -> u32 {
    let fate = Fate::default();
    let mut deaths = deaths.iter().copied();
    fate.0.set(deaths.next());
    let mut sender = Sender::new(config, fate);
    for step in steps {
        if sender.fate.0.get().is_none() {
            sender.fate.0.set(deaths.next());
        }
        sender.step(*step);
    }
    sender.finish();
    sender.deaths
}

#[test]
fn a_sender_that_dies_at_any_write_gives_each_chain_back_once() {
    for config in formats(SIZE) {
        let steps = a_little_of_everything();
        let mut writes = 0;
        while play(config, &steps, &[writes]) > 0 {
            // The device dies again at the next write, while it comes back.
            play(config, &steps, &[writes, 0]);
            play(config, &steps, &[writes, 3]);
            writes += 1;
        }
        assert!(writes > 50, "{config:?}: {writes} places to die at");
    }
}

proptest! {
    #[test]
    fn senders_that_die_by_chance_give_each_chain_back_once(
        steps in steps(),
        deaths in prop::collection::vec(0..60u32, 0..12),
        format in 0..4usize,
        size in prop_oneof![Just(4u16), Just(8), Just(16)],
        odd in any::<bool>(),
    ) {
        let config = formats(size)[format];
        // A packed ring may have any size (virtio 1.2 §2.8.10.1).
        let size = if odd && config.packed { size + 3 } else { size };
        play(RingConfig { size, ..config }, &steps, &deaths);
    }
}

/// A guest that receives: each chain is filled with its own length, published in parts, and some
/// are put back.
fn receive(config: RingConfig, chains: &[u8], die_after: u32) -> bool {
    let outlives = Outlives::new(config);
    let fate = Fate(Rc::new(Cell::new(Some(die_after))));
    let mut driver = outlives.driver();
    let mut died = false;
    let mut come = || loop {
        match fate.live(|| outlives.device()) {
            Some(device) => {
                assert_eq!(device.left_behind(), [], "of a receive ring nothing stays");
                return device;
            }
            None => died = true,
        }
    };
    let mut device = come();
    let (mut number, mut filled) = (0, HashMap::new());
    let (mut offered, mut came_back) = (0, 0);
    for &count in chains {
        for nth in 0..count {
            let buffer = Buffer { address: BUFFERS, len: 1000, writable: true };
            let buffers = [buffer, buffer];
            let buffers = if nth % 5 == 4 { &buffers[..] } else { &buffers[..1] };
            offered += u32::from(driver.offer(buffers).is_some());
        }
        driver.publish();
        device.refill().unwrap();
        let mut taken = Vec::new();
        while let Some(chain) =
            device.take(Direction::Writable, &outlives.memory, &mut Vec::new()).unwrap()
        {
            taken.push(chain.token);
            device.refill().unwrap();
        }
        let given_back = taken.split_off(taken.len() - usize::from(taken.len() > 3));
        device.give_back(given_back.into_iter());
        let first = taken.len() as u16 / 2;
        for token in &taken {
            number += 1;
            // If a buffer was filled twice, the driver gets the last length, or an earlier one.
            filled.insert(number, ());
            device.complete(*token, number);
        }
        // Every other time all chains are one packet.
        let whole = count % 2 == 0;
        if whole {
            device.join();
        }
        let published = fate.live(|| {
            if !whole {
                device.publish_first(first);
            }
            device.publish();
        });
        if published.is_none() {
            died = true;
            drop(device);
            device = loop {
                if let Some(device) = fate.live(|| outlives.device()) {
                    break device;
                }
            };
        }
        let (mut last, before) = (0, came_back);
        while let Some(used) = driver.take() {
            assert!(filled.remove(&used.written).is_some(), "{} is no frame's", used.written);
            assert!(used.written > last, "in the order in which they were filled");
            last = used.written;
            came_back += 1;
        }
        let parts = came_back - before;
        assert!(!whole || parts == 0 || parts == taken.len() as u32, "{parts} of {}", taken.len());
        assert_eq!(driver.skipped(), 0);
    }
    device.refill().unwrap();
    while let Some(chain) =
        device.take(Direction::Writable, &outlives.memory, &mut Vec::new()).unwrap()
    {
        device.complete(chain.token, 1);
        device.refill().unwrap();
    }
    device.publish();
    came_back += std::iter::from_fn(|| driver.take()).count() as u32;
    assert_eq!((came_back, driver.in_flight()), (offered, 0));
    died
}

#[test]
fn a_receiver_that_dies_at_any_write_loses_and_repeats_no_buffer() {
    for config in formats(SIZE) {
        let chains = [1, 3, 4, 2, 6, 6, 6, 1, 1, 8, 8];
        let places = (0..).take_while(|at| receive(config, &chains, *at)).count();
        assert!(places > 20, "{config:?}: {places} places to die at");
    }
}

/// Leaves a ring with kept chains, after later ones were completed.
fn left_ring(config: RingConfig) -> (Outlives, DriverRing) {
    let mut sender = Sender::new(config, Fate::default());
    sender.step(Step::Offer(1));
    sender.step(Step::Send { chains: 1, kept: 0 });
    for _ in 0..4 {
        sender.step(Step::Offer(1));
    }
    sender.step(Step::Send { chains: 4, kept: 0b101 });
    let Sender { outlives, driver, .. } = sender;
    (outlives, driver)
}

#[test]
fn a_ring_that_its_driver_began_anew_is_a_new_one() {
    for config in formats(SIZE) {
        let (outlives, _) = left_ring(config);
        outlives.zero_ring();
        let mut driver = outlives.driver();
        let head = driver.offer(&[Buffer { address: BUFFERS, len: 5, writable: false }]).unwrap();
        driver.publish();
        let mut device = outlives.device();
        assert_eq!((device.is_resumed(), device.left_behind()), (false, vec![]));
        device.refill().unwrap();
        let chain =
            device.take(Direction::Readable, &outlives.memory, &mut Vec::new()).unwrap().unwrap();
        device.complete(chain.token, 0);
        device.publish();
        assert_eq!(driver.take(), Some(Used { head, written: 0 }));
    }
}

#[test]
fn a_record_is_found_by_a_front_end_that_says_0_and_cannot_mean_it() {
    for config in formats(SIZE).into_iter().filter(|config| !config.packed) {
        let mut sender = Sender::new(config, Fate::default());
        for _ in 0..2 * SIZE {
            sender.step(Step::Offer(1));
            sender.step(Step::Send { chains: 1, kept: 0 });
            sender.step(Step::Reap);
        }
        for _ in 0..4 {
            sender.step(Step::Offer(1));
        }
        sender.step(Step::Send { chains: 4, kept: 0b101 });
        let device = sender.outlives.device_at(0);
        assert!(device.is_resumed(), "{config:?}");
        assert_eq!(device.left_behind().len(), 2, "{config:?}");
    }
}

#[test]
fn a_record_of_another_ring_says_nothing() {
    for config in formats(SIZE) {
        let (outlives, _) = left_ring(config);
        let with = |origin: Origin, config: RingConfig| {
            let (memory, base) = (&outlives.memory, outlives.base());
            let record = outlives.record();
            DeviceRing::recorded(memory, config, &origin.at, base, base, record, &origin)
                .map(|ring| ring.left_behind().len())
        };
        // QEMU's base of a packed ring is an old position.
        let unknown = if config.packed { Err(SetupError::UsedAlready { slot: 0 }) } else { Ok(0) };
        let at = Addresses { driver: AT.driver + 64, ..AT };
        let others = [Origin { memory: [7, 9], ..ORIGIN }, Origin { at, ..ORIGIN }];
        let copy: Vec<u8> = bytes(&outlives);
        for other in others {
            assert_eq!(with(other, config), unknown);
            set_bytes(&outlives, &copy);
        }
        assert_eq!(with(ORIGIN, RingConfig { size: 4, ..config }), unknown);
        set_bytes(&outlives, &copy);
        assert_eq!(with(ORIGIN, config), Ok(2), "{config:?}");
    }
}

#[test]
fn a_base_that_nobody_said_before_is_right() {
    let config = RingConfig { packed: true, ..config(SIZE) };
    let (outlives, _) = left_ring(config);
    let device = outlives.device_at(0x8006_8006);
    assert_eq!((device.base(), device.is_resumed()), (0x8006_8006, false));
}

#[test]
fn chains_that_a_front_end_gave_back_meanwhile_are_not_given_back_again() {
    let config = formats(SIZE)[0];
    assert!(!config.packed && !config.in_order);
    let mut sender = Sender::new(config, Fate::default());
    sender.step(Step::Offer(1));
    sender.step(Step::Send { chains: 1, kept: 0 });
    for _ in 0..4 {
        sender.step(Step::Offer(1));
    }
    // The first two of these are completed, the last two kept: in order, these two and a new one come back.
    sender.step(Step::Send { chains: 4, kept: 0b1100 });
    sender.step(Step::Offer(1));
    let Sender { outlives, mut driver, device, .. } = sender;
    drop(device);
    assert_eq!(outlives.take_away(3).len(), 3);
    let mut device = outlives.device();
    assert_eq!((device.left_behind(), device.refill()), (vec![], Ok(0)));
    device.publish();
    assert_eq!(std::iter::from_fn(|| driver.take()).count(), 6);
    assert_eq!((driver.skipped(), driver.in_flight()), (0, 0));
}

#[test]
fn while_chains_stay_index_0_is_not_published() {
    // Only a driver that was reset has a used index of 0.
    let config = formats(SIZE)[0];
    let outlives = Outlives::new(config);
    let mut driver = outlives.driver();
    let mut device = outlives.device();
    let offer = |driver: &mut DriverRing, device: &mut DeviceRing| {
        driver.offer(&[Buffer { address: BUFFERS, len: 5, writable: false }]).unwrap();
        driver.publish();
        device.refill().unwrap();
        device.take(Direction::Readable, &outlives.memory, &mut Vec::new()).unwrap().unwrap().token
    };
    for _ in 0..u16::MAX {
        let token = offer(&mut driver, &mut device);
        device.complete(token, 0);
        device.publish();
        driver.take().unwrap();
    }
    let stays = offer(&mut driver, &mut device);
    device.keep(stays);
    let token = offer(&mut driver, &mut device);
    device.complete(token, 0);
    assert_eq!((device.publish(), outlives.base()), (0, 0xffff));
    let token = offer(&mut driver, &mut device);
    device.complete(token, 0);
    assert_eq!((device.publish(), outlives.base()), (2, 1));
    drop(device);
    let mut device = outlives.device();
    assert_eq!(device.left_behind(), [stays]);
    device.complete_kept(stays, 0);
    device.publish();
    assert_eq!(std::iter::from_fn(|| driver.take()).count(), 3);
    assert_eq!(driver.in_flight(), 0);
}

#[test]
fn a_call_that_was_asked_for_long_before_the_death_is_made_up_for() {
    for config in formats(SIZE) {
        let outlives = Outlives::new(config);
        let mut driver = outlives.driver();
        let mut device = outlives.device();
        driver.enable_calls();
        for _ in 0..5 {
            driver.offer(&[Buffer { address: BUFFERS, len: 5, writable: false }]).unwrap();
        }
        driver.publish();
        device.refill().unwrap();
        while let Some(chain) =
            device.take(Direction::Readable, &outlives.memory, &mut Vec::new()).unwrap()
        {
            device.complete(chain.token, 0);
            device.refill().unwrap();
        }
        device.publish();
        drop(device);
        assert!(outlives.device().needs_call(), "{config:?}");
    }
}

fn bytes(outlives: &Outlives) -> Vec<u8> {
    let mut bytes = vec![0; Record::bytes(SIZE)];
    outlives.record.slice(0, bytes.len() as u32).unwrap().read(&mut bytes);
    bytes
}

fn set_bytes(outlives: &Outlives, bytes: &[u8]) {
    outlives.record.slice(0, bytes.len() as u32).unwrap().write(bytes);
}

proptest! {
    /// A front end that has the record can write anything there.
    #[test]
    fn lies_in_a_record_end_in_chains_or_an_error(
        lies in prop::collection::vec((0..Record::bytes(SIZE), any::<u8>()), 1..40),
        format in 0..4usize,
        head_too in any::<bool>(),
    ) {
        let config = formats(SIZE)[format];
        let (outlives, _) = left_ring(config);
        let mut record = bytes(&outlives);
        for (at, byte) in lies {
            if head_too || at >= 64 { record[at] = byte }
        }
        set_bytes(&outlives, &record);
        let Ok(mut device) = outlives.device_by(outlives.base()) else { return Ok(()) };
        let left = device.left_behind();
        prop_assert!(left.len() <= usize::from(SIZE));
        for token in left {
            let _ = device.retake_readable(token, &outlives.memory, &mut Vec::new());
            device.complete_kept(token, 0);
            device.publish();
        }
        for _ in 0..20 {
            if device.refill().is_err() { break }
            match device.take(Direction::Readable, &outlives.memory, &mut Vec::new()) {
                Ok(Some(chain)) => device.complete(chain.token, 0),
                _ => break,
            }
            device.publish();
            device.needs_call();
        }
        device.base();
    }
}
