//! Guests that are migrated: weir's writes to their memory are in their log. See `docs/design/restarts.md#0034`.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use weir_guestmem::{DirtyLog, LOG_PAGE_BYTES};
use weir_vhost_user::{DirtyLog as LogPlace, VHOST_VRING_F_LOG};

use super::session::stopped_with;
use super::*;

const LOG_BYTES: u64 = MEMORY / LOG_PAGE_BYTES / 8;

/// A front end's log.
struct Log {
    file: File,
    log: DirtyLog,
}

impl Log {
    fn new(bytes: u64) -> Self {
        let file = memfd_create("log", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, bytes).unwrap();
        let file = File::from(file);
        let log = DirtyLog::map(bytes, 0, &file, &Arc::default()).unwrap();
        Self { file, log }
    }

    fn taken(&self) -> BTreeSet<u64> {
        let mut pages = BTreeSet::new();
        self.log.take(|number| {
            pages.insert(number);
        });
        pages
    }
}

impl Guest {
    fn set_log(&mut self, log: &Log, size: u64) -> Result<(), FrontEndError> {
        self.front.set_log_base(LogPlace { size, offset: 0 }, log.file.as_fd())
    }

    fn addresses(&mut self, index: u32, log: Option<u64>) -> Result<(), FrontEndError> {
        let at = self.stated(index);
        self.front.set_vring_addr(VringAddr {
            index,
            flags: log.map_or(0, |_| VHOST_VRING_F_LOG),
            descriptor: at.descriptor,
            used: at.device,
            available: at.driver,
            log: log.unwrap_or(0),
        })
    }

    /// Begins to log while the rings run, as QEMU does when a migration begins.
    fn begin_to_log(&mut self, log: &Log) {
        self.set_log(log, LOG_BYTES).unwrap();
        self.front.set_features(self.features | LOG_ALL).unwrap();
        for index in 0..2 {
            self.addresses(
                index,
                Some(ring_at(index.into()).device - USER + self.shift.unwrap_or(0)),
            )
            .unwrap();
        }
    }

    /// Ends the log, as QEMU does when a migration fails.
    fn end_to_log(&mut self) {
        self.front.set_features(self.features).unwrap();
        for index in 0..2 {
            self.addresses(index, None).unwrap();
        }
    }

    fn contents(&self) -> Vec<u8> {
        let mut bytes = vec![0; MEMORY as usize];
        self.memory.slice(0, MEMORY as u32).unwrap().read(&mut bytes);
        bytes
    }
}

fn changed(before: &[u8], after: &[u8]) -> BTreeSet<u64> {
    let page = LOG_PAGE_BYTES as usize;
    let pages = before.chunks(page).zip(after.chunks(page)).enumerate();
    pages.filter(|(_, (before, after))| before != after).map(|(number, _)| number as u64).collect()
}

/// Features that a driver may acknowledge, over every format of rings.
fn drivers() -> impl Iterator<Item = u64> {
    const MERGEABLE: u64 = 1 << 15;
    const EVENT_IDX: u64 = 1 << 29;
    formats().into_iter().flat_map(|features| [features, features & !MERGEABLE & !EVENT_IDX])
}

#[test]
fn every_page_that_weir_writes_has_its_bit() {
    /// Whether a virtual IOMMU is there, and rings behind it are in pieces.
    #[derive(Clone, Copy, PartialEq)]
    enum Behind {
        Nothing,
        Iommu,
        Pieces,
    }
    let behind = [Behind::Nothing, Behind::Iommu, Behind::Pieces];
    for (features, behind) in drivers().flat_map(|it| behind.map(|behind| (it, behind))) {
        let switch = Switch::new();
        let mut b = match behind {
            Behind::Pieces => super::iommu::in_pieces(&switch, 2, features),
            Behind::Iommu => super::iommu::translated(&switch, 2, features),
            Behind::Nothing => switch.guest(2, features),
        };
        let mut a = switch.guest(1, modern());
        introduce(&mut a, &mut b);
        b.post(1);
        // Behind the first page of each area.
        for number in 0..if behind == Behind::Pieces { 600_u16 } else { 0 } {
            a.send(&frame(&a, Some(&b), 60, number as u8));
            let (vnet, _) = b.wait_received();
            b.post(vnet.num_buffers);
        }
        let log = Log::new(LOG_BYTES);
        b.begin_to_log(&log);
        let lengths =
            if features & 1 << 15 == 0 { [60, 140, 1514, 2036] } else { [60, 140, 2037, 65_549] };
        for (number, len) in lengths.into_iter().enumerate() {
            // Marks come after writes, and the ring's last ones may be late: so the marks are read
            // before the contents.
            log.taken();
            let before = b.contents();
            let sent = frame(&a, Some(&b), len, number as u8);
            a.send(&sent);
            let (vnet, arrived) = b.wait_received();
            assert!(arrived == sent, "{len} bytes");
            // The ring's own bytes may be marked after the guest has seen them.
            let mut marked = BTreeSet::new();
            eventually("all that has changed is marked", || {
                marked.extend(log.taken());
                changed(&before, &b.contents()).is_subset(&marked)
            });
            // Three kinds of pages: the rings', a frame's, and one more for a front that ends in the next page.
            let most = 6 + 2 * usize::from(vnet.num_buffers) + 1;
            assert!(marked.len() <= most, "{len} bytes are not {marked:?}");
            b.post(vnet.num_buffers);
        }
        // A frame that the guest sends changes only its ring.
        log.taken();
        let before = b.contents();
        let sent = frame(&b, Some(&a), 1514, 9);
        b.send(&sent);
        let Addresses { descriptor, driver, .. } = ring_at(1);
        let other = if behind == Behind::Pieces { 1 } else { 0 };
        let by_driver = [descriptor, driver].map(|at| ((at - USER) / LOG_PAGE_BYTES) ^ other);
        let by_driver = by_driver.into_iter().chain([TX_BUFFERS / LOG_PAGE_BYTES]);
        let mut known: BTreeSet<u64> = by_driver.collect();
        eventually("all that has changed is marked", || {
            known.extend(log.taken());
            changed(&before, &b.contents()).is_subset(&known)
        });
    }
}

/// A monitor copies while frames go both ways, and once more when the rings have stopped.
#[test]
fn a_guest_arrives_whole_although_frames_come_all_the_time() {
    for (workers, features) in formats().into_iter().flat_map(|f| [(1, f), (2, f)]) {
        let switch = Switch::with_workers(workers);
        let (mut a, mut b) = (switch.guest(1, modern()), switch.guest(2, features));
        introduce(&mut a, &mut b);
        b.post(1);
        let log = Log::new(LOG_BYTES);
        let mut copy = Vec::new();
        let (memory, stop) = (Arc::clone(&b.memory), AtomicBool::new(false));
        let bring = |copy: &mut Vec<u8>| {
            log.log.take(|number| {
                let at = (number * LOG_PAGE_BYTES) as usize;
                let page = memory.slice(at as u64, LOG_PAGE_BYTES as u32).unwrap();
                page.read(&mut copy[at..at + LOG_PAGE_BYTES as usize]);
            });
        };
        let (log, stop, bring) = (&log, &stop, &bring);
        std::thread::scope(|scope| {
            let stops = weir_testing::SetAtEnd(stop);
            let mut monitor = None;
            for number in 0..600_u16 {
                let sent = frame(
                    &a,
                    Some(&b),
                    [60, 700, 1514, 4000][usize::from(number % 4)],
                    number as u8,
                );
                a.send(&sent);
                if number % 3 == 0 {
                    let back = frame(&b, Some(&a), 700, number as u8);
                    b.send(&back);
                    while let Some((vnet, _)) = a.received() {
                        a.post(vnet.num_buffers);
                    }
                }
                while let Some((vnet, _)) = b.received() {
                    b.post(vnet.num_buffers);
                }
                if number == 200 {
                    b.begin_to_log(log);
                    let mut first = b.contents();
                    monitor = Some(scope.spawn(move || {
                        while !stop.load(Ordering::Relaxed) {
                            bring(&mut first);
                        }
                        first
                    }));
                }
            }
            for index in 0..2 {
                b.front.get_vring_base(index).unwrap();
            }
            drop(stops);
            copy = monitor.unwrap().join().unwrap();
        });
        bring(&mut copy);
        // weir alone writes to receive buffers and device areas, and for split rings it writes nothing else.
        let receive = (1 << 20) / LOG_PAGE_BYTES..(2 << 20) / LOG_PAGE_BYTES;
        let missing = changed(&copy, &b.contents());
        let by_weir = |page: &u64| receive.contains(page) || *page == 2 || *page == 6;
        let missing: Vec<_> = missing.into_iter().filter(by_weir).collect();
        assert!(missing.is_empty(), "{features:#x}: {missing:?}");
        assert!(!log.log.is_overrun());
    }
}

#[test]
fn a_log_comes_and_goes_while_frames_wait() {
    let switch = Switch::new();
    let (mut a, mut b) = (switch.guest(1, modern()), switch.guest(2, modern()));
    introduce(&mut a, &mut b);
    let mapped = a.port.memory().mapped();
    let log = Log::new(LOG_BYTES);
    until_none_is_late(|| {
        // The receiver has no buffers: the last frame waits in its sender's ring.
        let frames: Vec<_> = (0..64).map(|number| frame(&a, Some(&b), 60, number)).collect();
        for (slot, frame) in frames.iter().enumerate().take(60) {
            a.offer(slot as u64, &VnetHdr::default(), frame);
        }
        a.send_now();
        a.begin_to_log(&log);
        assert!(a.port.memory().mapped().regions > mapped.regions);
        a.end_to_log();
        let before = lost([&a.port, &b.port]);
        let mut arrived = 0;
        eventually("all frames arrive, or one is lost", || {
            while let Some((vnet, _)) = b.received() {
                arrived += 1;
                b.post(vnet.num_buffers);
            }
            arrived == 60 || lost([&a.port, &b.port]) > before
        });
        a.reap();
        lost([&a.port, &b.port]) == before
    });
    assert_eq!(a.port.memory().mapped(), mapped, "the log is unmapped");
    log.taken();
    let sent = frame(&b, Some(&a), 60, 9);
    b.send(&sent);
    a.wait_received();
    assert!(log.taken().is_empty(), "nothing is marked any more");
}

#[test]
fn after_the_answer_nothing_goes_to_the_log_before() {
    let switch = Switch::new();
    let (mut a, mut b) = (switch.guest(1, modern()), switch.guest(2, modern()));
    introduce(&mut a, &mut b);
    b.post(1);
    let [old, new] = [Log::new(LOG_BYTES), Log::new(LOG_BYTES)];
    b.begin_to_log(&old);
    b.set_log(&new, LOG_BYTES).unwrap();
    old.taken();
    let sent = frame(&a, Some(&b), 1514, 1);
    a.send(&sent);
    b.wait_received();
    assert!(old.taken().is_empty());
    assert!(new.taken().range((1 << 20) / LOG_PAGE_BYTES..).next().is_some());
}

#[test]
fn a_front_end_is_told_of_new_marks_where_it_asks() {
    let switch = Switch::new();
    let (mut a, mut b) = (switch.guest(1, modern()), switch.guest(2, modern()));
    introduce(&mut a, &mut b);
    b.post(1);
    let log = Log::new(LOG_BYTES);
    b.begin_to_log(&log);
    let told = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
    b.front.set_log_fd(told.as_fd()).unwrap();
    log.taken();
    let sent = frame(&a, Some(&b), 1514, 1);
    a.send(&sent);
    b.wait_received();
    eventually("the front end is told", || rustix::io::read(&told, &mut [0; 8]).is_ok());
}

#[test]
fn a_log_that_cannot_be_ends_its_session_with_a_named_reason() {
    type Wrong = fn(&mut Guest) -> Result<(), FrontEndError>;
    let cases: [(&str, Wrong); 8] = [
        ("the dirty log of 8 bytes has no bit for guest address 0x7fffff", |g| {
            g.set_log(&Log::new(8), 8)
        }),
        ("needs 0x100 bytes of its file, which has 0x8", |g| g.set_log(&Log::new(8), 256)),
        ("the dirty log begins at 0x4 of its file", |g| {
            let log = Log::new(LOG_BYTES + 4);
            g.front.set_log_base(LogPlace { size: LOG_BYTES, offset: 4 }, log.file.as_fd())
        }),
        ("`memory_max`", |g| {
            let log = Log::new(8);
            ftruncate(&log.file, 1 << 40).unwrap();
            g.set_log(&log, 1 << 40)
        }),
        ("is on a file system that is not allowed", |g| {
            g.front.set_log_base(LogPlace { size: 64, offset: 0 }, g.kicks[0].as_fd())
        }),
        ("the dirty log of 256 bytes has no bit for guest address 0x", |g| {
            g.begin_to_log(&Log::new(LOG_BYTES));
            g.addresses(0, Some(MEMORY))
        }),
        ("the dirty log of 256 bytes has no bit for guest address 0x", |g| {
            g.begin_to_log(&Log::new(LOG_BYTES));
            g.addresses(1, Some(u64::MAX))
        }),
        ("the dirty log of 256 bytes has no bit for guest address 0x", |g| {
            g.begin_to_log(&Log::new(LOG_BYTES));
            let more = memfd_create("more", MemfdFlags::CLOEXEC).unwrap();
            ftruncate(&more, 0x1000).unwrap();
            let region = MemoryRegion {
                guest_address: MEMORY,
                size: 0x1000,
                user_address: USER + MEMORY,
                mmap_offset: 0,
            };
            g.front.add_mem_reg(region, more.as_fd())
        }),
    ];
    let switch = Switch::new();
    let (mut a, mut b) = (switch.guest(1, modern()), switch.guest(2, modern()));
    introduce(&mut a, &mut b);
    for (number, (reason, request)) in cases.into_iter().enumerate() {
        let mut guest = switch.guest(3, modern());
        let answer = request(&mut guest);
        assert!(answer.is_err(), "{reason}");
        stopped_with(&guest.port, reason);
        let sent = frame(&a, Some(&b), 60, number as u8);
        a.send(&sent);
        assert_eq!(b.wait_received().1, sent, "the neighbours do not notice");
        b.post(1);
    }
}

#[test]
fn a_log_that_is_truncated_stops_its_port_only() {
    let switch = Switch::new();
    let (mut a, mut b) = (switch.guest(1, modern()), switch.guest(2, modern()));
    let mut c = switch.guest(3, modern());
    introduce(&mut a, &mut b);
    let log = Log::new(LOG_BYTES);
    c.begin_to_log(&log);
    ftruncate(&log.file, 0).unwrap();
    let sent = frame(&a, None, 60, 1);
    a.send(&sent);
    stopped_with(&c.port, "the dirty log was truncated while in use");
    assert_eq!(b.wait_received().1, sent);
    c.kick(1);
    let sent = frame(&a, Some(&b), 60, 2);
    a.send(&sent);
    assert_eq!(b.wait_received().1, sent);
}
