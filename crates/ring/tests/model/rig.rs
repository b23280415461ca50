//! The common part of the models: rings over memory that `loom` watches, an eventfd, and a way to show that a model can
//! fail.

use std::fs::File;
use std::sync::{Arc, LazyLock};

use loom::sync::{Condvar, Mutex};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use weir_guestmem::{GuestMemory, RegionSpec, Slice, Weakness, weaken};
use weir_ring::{Addresses, Buffer, Chain, DeviceRing, Direction, DriverRing, RingConfig, Used};

const MEMORY: u64 = 0x1_0000;
const AT: Addresses = Addresses { descriptor: 0, driver: 0x1000, device: 0x2000 };
/// A second ring.
const ALSO_AT: Addresses = Addresses { descriptor: 0x3000, driver: 0x4000, device: 0x5000 };
/// Guest address of the buffers. They are never accessed: the models check which side learns of them, and when.
const BUFFERS: u64 = 0x8000;

/// The memory is mapped once: only the rings belong to a model, and each execution has its own.
static GUEST: LazyLock<Arc<GuestMemory>> = LazyLock::new(|| {
    let fd = memfd_create("ring-model", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, MEMORY).unwrap();
    let spec = RegionSpec { guest_address: 0, size: MEMORY, user_address: 0, mmap_offset: 0 };
    Arc::new(GuestMemory::map(&[(spec, File::from(fd))]).unwrap())
});

/// Both formats, each with `VIRTIO_F_EVENT_IDX` and without.
pub fn formats() -> impl Iterator<Item = RingConfig> {
    [(false, false), (false, true), (true, false), (true, true)].into_iter().map(
        |(packed, event_idx)| RingConfig { size: 2, packed, event_idx, ..RingConfig::default() },
    )
}

/// The weakness of each side.
#[derive(Debug, Clone, Copy)]
pub struct Sides {
    pub driver: Weakness,
    pub device: Weakness,
}

/// Neither side has a weakness.
pub const SOUND: Sides = Sides { driver: Weakness::None, device: Weakness::None };

/// One side has a weakness; first the driver, then the device.
pub fn each_side(weakness: Weakness) -> [Sides; 2] {
    [Sides { driver: weakness, ..SOUND }, Sides { device: weakness, ..SOUND }]
}

/// The `nth` offered chain: its length distinguishes it from the others.
pub fn buffer(nth: u16, writable: bool) -> Buffer {
    Buffer { address: BUFFERS + 0x100 * u64::from(nth), len: 0x10 + u32::from(nth), writable }
}

/// A driver and a device that have passed `before` transmit chains to and fro.
pub fn rings(config: RingConfig, before: u16) -> (DriverRing, Device) {
    let (mut driver, mut device) = rings_at(config, &AT);
    for nth in 0..before {
        let head = driver.offer(&[buffer(nth, false)]).unwrap();
        driver.publish();
        device.ring.refill().unwrap();
        let chain = device.take_readable().unwrap();
        device.ring.complete(chain.token, 0);
        device.ring.publish();
        device.ring.needs_call();
        assert_eq!(driver.take(), Some(Used { head, written: 0 }));
    }
    (driver, device)
}

/// A driver and a device of another ring, fresh.
pub fn more_rings(config: RingConfig) -> (DriverRing, Device) {
    rings_at(config, &ALSO_AT)
}

fn rings_at(config: RingConfig, at: &Addresses) -> (DriverRing, Device) {
    let driver = DriverRing::new(&GUEST, config, at).unwrap();
    let ring = DeviceRing::new(&GUEST, config, at, config.fresh_base()).unwrap();
    (driver, Device { ring })
}

/// The device side, with the memory that its chains lie in.
pub struct Device {
    pub ring: DeviceRing,
}

impl Device {
    /// Takes the next chain that is known to be available.
    pub fn take_readable(&mut self) -> Option<Chain> {
        self.ring.take(Direction::Readable, &GUEST, &mut Vec::<Slice<'_>>::new()).unwrap()
    }

    /// Takes the next chain that is known to be available.
    pub fn take_writable(&mut self) -> Option<Chain> {
        self.ring.take(Direction::Writable, &GUEST, &mut Vec::<Slice<'_>>::new()).unwrap()
    }
}

/// An eventfd: a signal before the wait counts.
#[derive(Debug)]
pub struct Event {
    given: Mutex<bool>,
    changed: Condvar,
}

impl Event {
    pub fn new() -> Arc<Self> {
        Arc::new(Self { given: Mutex::new(false), changed: Condvar::new() })
    }

    pub fn give(&self) {
        *self.given.lock().unwrap() = true;
        self.changed.notify_one();
    }

    /// `loom` reports a deadlock if it is never given again.
    pub fn wait(&self) {
        let mut given = self.given.lock().unwrap();
        while !*given {
            given = self.changed.wait(given).unwrap();
        }
        *given = false;
    }
}

/// Tries every interleaving of `driver` and `device`, each with its part of `set_up`'s result, with at most
/// `preemptions_max` switches away from a runnable thread (`LOOM_MAX_PREEMPTIONS` takes precedence).
pub fn interleave<S: 'static, T: 'static>(
    preemptions_max: usize,
    weak: Sides,
    set_up: impl Fn() -> (S, T) + Send + Sync + 'static,
    driver: impl Fn(S) + Send + Sync + Clone + 'static,
    device: impl Fn(T) + Send + Sync + 'static,
) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = model.preemption_bound.or(Some(preemptions_max));
    model.check(move || {
        let (driver_state, device_state) = set_up();
        let driver = driver.clone();
        let driver = loom::thread::spawn(move || {
            weaken(weak.driver);
            driver(driver_state);
        });
        weaken(weak.device);
        device(device_state);
        driver.join().unwrap();
    });
}

/// The message of an execution of the model that failed; `None` if all passed.
pub fn failure(model: impl FnOnce() + Send + 'static) -> Option<String> {
    // The model runs in its own thread, because `loom` leaves a failed model's state behind.
    let panic = std::thread::spawn(model).join().err()?;
    let text = panic.downcast_ref::<String>().cloned();
    Some(text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default())
}

/// True if a side sleeps for ever.
pub fn is_lost_wakeup(failure: &Option<String>) -> bool {
    failure.as_ref().is_some_and(|text| text.starts_with("deadlock"))
}

/// True if a side read a value that was not written yet.
pub fn is_wrong_value(failure: &Option<String>) -> bool {
    failure.is_some() && !is_lost_wakeup(failure)
}
