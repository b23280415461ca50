//! Sessions that end without a word: the records that they leave, and the next session's use of them. See
//! `docs/design/restarts.md#0028`.

use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use weir_engine::guest::GuestPort;

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};
use vhost::VhostBackend;
use vhost::vhost_user::message::VhostUserInflight;
use vhost::vhost_user::{Frontend, VhostUserFrontend, VhostUserProtocolFeatures};
use weir_vhost_user::Inflight;

use super::*;
use crate::Records;

/// The place of a guest's records.
enum Kept {
    /// Records in weir's file.
    File(tempfile::TempDir),
    /// Records with the front end.
    Region(Inflight, File),
}

impl Kept {
    fn path(&self) -> Option<PathBuf> {
        match self {
            Self::File(dir) => Some(dir.path().join("a.rings")),
            Self::Region(..) => None,
        }
    }

    fn file(&self) -> File {
        match self {
            Self::File(_) => {
                File::options().read(true).write(true).open(self.path().unwrap()).unwrap()
            }
            Self::Region(_, file) => file.try_clone().unwrap(),
        }
    }
}

fn port(switch: &Switch, path: Option<&Path>) -> (Arc<VhostPort>, UnixStream) {
    switch.port_with(|port| match path {
        Some(path) => port.with_records(Records::open(path).unwrap()),
        None => port,
    })
}

/// A guest whose records are kept, in one way or the other.
fn recorded_guest(switch: &Switch, features: u64, in_file: bool) -> (Guest, Kept) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.rings");
    let (port, stream) = port(switch, in_file.then_some(path.as_path()));
    let mut guest = Guest::new(port, stream, 1, features);
    let kept = if in_file {
        Kept::File(dir)
    } else {
        let wanted = Inflight { mmap_size: 0, mmap_offset: 0, num_queues: 2, queue_size: SIZE };
        let (told, fd) = guest.front.get_inflight_fd(wanted).unwrap();
        Kept::Region(told, File::from(fd))
    };
    guest.set_up().unwrap();
    guest.start();
    (guest, kept)
}

/// Connects the guest's front end to another weir, as QEMU does: a split ring continues at its used index, and for a
/// packed one the front end states the base that it stated first.
fn come_back(guest: &mut Guest, switch: &Switch, kept: &Kept) {
    set_up_again(guest, switch, kept);
    enable(guest);
}

fn enable(guest: &mut Guest) {
    for index in 0..2 {
        guest.front.set_vring_enable(index, true).unwrap();
    }
    let port = Arc::clone(&guest.port);
    eventually("the rings start", || port.info().state == State::Running);
}

/// Does everything but enable the rings.
fn set_up_again(guest: &mut Guest, switch: &Switch, kept: &Kept) {
    try_to_set_up_again(guest, switch, kept).unwrap();
}

fn try_to_set_up_again(
    guest: &mut Guest,
    switch: &Switch,
    kept: &Kept,
) -> Result<(), FrontEndError> {
    let (port, stream) = port(switch, kept.path().as_deref());
    guest.port = port;
    guest.front = FrontEnd::new(stream);
    guest.front.set_timeout(PATIENCE);
    if let Kept::Region(told, file) = kept {
        guest.front.set_inflight_fd(*told, file.as_fd()).unwrap();
    }
    guest.negotiate().unwrap();
    guest.front.set_mem_table(&[(Guest::region(), guest.memfd.as_fd())]).unwrap();
    for index in 0..2 {
        guest.vring(index).unwrap();
        if guest.features & RING_PACKED == 0 {
            let used = guest.memory.window(ring_at(index.into()).device, 4).unwrap().load(2);
            guest.front.set_vring_base(index, used.into()).unwrap();
        }
        guest.front.set_vring_call(index, Some(guest.calls[index as usize].as_fd())).unwrap();
        guest.front.set_vring_kick(index, Some(guest.kicks[index as usize].as_fd()))?;
    }
    Ok(())
}

fn image(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

#[test]
fn frames_that_wait_when_weir_is_killed_arrive_once_under_the_next() {
    for (features, in_file) in formats().into_iter().flat_map(|f| [(f, true), (f, false)]) {
        // On a busy machine frames may wait too long before this thread sees them.
        until_none_is_late(|| waiting_frames_arrive_once(features, in_file));
    }
}

/// `false`: the frames waited too long.
fn waiting_frames_arrive_once(features: u64, in_file: bool) -> bool {
    let switch = Switch::new();
    let (mut a, kept) = recorded_guest(&switch, features, in_file);
    let mut b = switch.guest_with_rings(2, modern(), 8);
    let mut c = switch.guest(3, modern());
    introduce(&mut a, &mut b);
    introduce(&mut a, &mut c);
    while b.received().is_some() {}
    // The receiver runs out of buffers.
    let full = 8 - 3;
    let mut number = 0;
    let mut offer = |a: &mut Guest, to: &Guest| {
        number += 1;
        let sent = frame(a, Some(to), 60, number);
        a.offer(number.into(), &VnetHdr::default(), &sent);
    };
    for _ in 0..full {
        offer(&mut a, &b);
    }
    a.send_now();
    a.reap();
    // Some frames wait, others go past them.
    let waiting: Vec<u8> = (0..4).map(|nth| full + 1 + 2 * nth).collect();
    for _ in &waiting {
        offer(&mut a, &b);
        offer(&mut a, &c);
    }
    a.send_now();
    for number in &waiting {
        while c.wait_received().1[14] != number + 1 {}
    }
    let counters = Arc::clone(&a.port);
    let parked = || counters.counters().parked.get() == waiting.len() as u64;
    eventually("they wait", || parked() || lost([&counters, &b.port]) > 0);
    // A SIGKILL would leave the present state.
    std::thread::sleep(Duration::from_millis(5));
    let left = [image(&a.memfd), image(&kept.file())];
    if lost([&a.port, &b.port]) > 0 {
        return false;
    }
    drop(std::mem::replace(&mut a.front, FrontEnd::new(UnixStream::pair().unwrap().0)));
    eventually("the session ends", || counters.info().state == State::Waiting);
    drop((switch, b, c));
    a.memfd.write_all_at(&left[0], 0).unwrap();
    kept.file().write_all_at(&left[1], 0).unwrap();

    let switch = Switch::new();
    let mut b = switch.guest(2, modern());
    let hello = |guest: &mut Guest| {
        let hello = frame(guest, None, 60, 0);
        guest.send(&hello);
    };
    hello(&mut b);
    come_back(&mut a, &switch, &kept);
    let mut came = Vec::new();
    eventually("what waited arrives", || {
        came.extend(b.received().map(|(_, frame)| frame[14]));
        came.len() == waiting.len()
    });
    assert_eq!(came, waiting, "{features:#x}, in a file: {in_file}");
    a.reap();
    let last = frame(&a, Some(&b), 60, 99);
    a.send(&last);
    assert_eq!(b.wait_received().1, last, "and nothing else");
    let back = frame(&b, Some(&a), 60, 98);
    b.send(&back);
    while a.wait_received().1 != back {}
    assert_eq!((a.tx.skipped(), a.rx.skipped()), (0, 0));
    true
}

#[test]
fn a_session_that_ends_without_a_word_is_gone_on_with_by_the_next() {
    for (features, in_file) in formats().into_iter().flat_map(|f| [(f, true), (f, false)]) {
        let switch = Switch::new();
        let (mut a, kept) = recorded_guest(&switch, features, in_file);
        let mut b = switch.guest(2, modern());
        introduce(&mut a, &mut b);
        for number in 0..200 {
            let sent = frame(&a, Some(&b), 60, number);
            a.send(&sent);
            assert_eq!(b.wait_received().1, sent);
            b.post(1);
        }
        for _ in 0..3 {
            let before = Arc::clone(&a.port);
            drop(std::mem::replace(&mut a.front, FrontEnd::new(UnixStream::pair().unwrap().0)));
            eventually("the session ends", || before.info().state == State::Waiting);
            switch.engine.remove_port(before.id());
            come_back(&mut a, &switch, &kept);
            assert!(a.calls(0) > 0, "it may have missed one");
            let there = frame(&a, Some(&b), 60, 1);
            a.send(&there);
            assert_eq!(b.wait_received().1, there);
            let back = frame(&b, Some(&a), 60, 2);
            b.send(&back);
            while a.wait_received().1 != back {}
            b.post(1);
        }
    }
}

#[test]
fn what_waits_in_a_ring_that_comes_back_is_not_dropped_before_it_is_enabled() {
    for features in formats() {
        let switch = Switch::new();
        let (mut a, kept) = recorded_guest(&switch, features, true);
        let mut b = switch.guest(2, modern());
        introduce(&mut a, &mut b);
        let before = Arc::clone(&a.port);
        drop(std::mem::replace(&mut a.front, FrontEnd::new(UnixStream::pair().unwrap().0)));
        eventually("the session ends", || before.info().state == State::Waiting);
        switch.engine.remove_port(before.id());
        let sent = frame(&a, Some(&b), 60, 5);
        a.offer(1, &VnetHdr::default(), &sent);
        a.send_now();
        set_up_again(&mut a, &switch, &kept);
        // A worker is notified of the ring, and its guest kicks.
        a.front.get_features().unwrap();
        a.kick(1);
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!((a.tx.take(), lost([&a.port, &b.port])), (None, 0), "{features:#x}");
        enable(&mut a);
        assert_eq!(b.wait_received().1, sent);
        a.reap();
    }
}

#[test]
fn what_a_front_end_writes_into_its_records_is_its_own_loss() {
    let switch = Switch::new();
    let mut b = switch.guest(2, modern());
    let mut c = switch.guest(3, modern());
    introduce(&mut b, &mut c);
    let mut random = SplitMix64::seed_from_u64(1);
    for round in 0..24 {
        let (mut a, kept) = recorded_guest(&switch, formats()[round % 4], false);
        let hello = frame(&a, Some(&b), 60, 1);
        a.send(&hello);
        b.wait_received();
        b.post(1);
        let before = Arc::clone(&a.port);
        drop(std::mem::replace(&mut a.front, FrontEnd::new(UnixStream::pair().unwrap().0)));
        eventually("the session ends", || before.info().state == State::Waiting);
        let file = kept.file();
        let mut record = image(&file);
        // The head stays valid, so that the rest is accepted.
        for at in 64..record.len() {
            let of_ring = at % (record.len() / 2);
            let bits = random.next_u64();
            if of_ring >= 64 && (round.is_multiple_of(3) || bits.is_multiple_of(5)) {
                record[at] = (bits >> 8) as u8;
            }
            if of_ring == 80 {
                record[at] = (round % 4) as u8;
            }
        }
        file.write_all_at(&record, 0).unwrap();
        switch.engine.remove_port(before.id());
        // For a packed ring without a record there is only the front end's base, and the ring contradicts it.
        if try_to_set_up_again(&mut a, &switch, &kept).is_ok() {
            enable(&mut a);
            let frame_of = frame(&a, Some(&b), 60, 2);
            a.offer(1, &VnetHdr::default(), &frame_of);
            a.send_now();
        } else {
            let reason = || a.port.info().stop_reason.unwrap_or_default();
            eventually("it is said why", || reason().contains("said to go on at slot"));
            assert_ne!(a.features & RING_PACKED, 0);
        }
        let there = frame(&b, Some(&c), 60, 7);
        b.send(&there);
        while c.wait_received().1 != there {}
        c.post(1);
        while b.received().is_some() {
            b.post(1);
        }
        let before = Arc::clone(&a.port);
        drop(a);
        eventually("the session ends", || before.info().state == State::Waiting);
        switch.engine.remove_port(before.id());
    }
}

#[test]
fn the_vhost_crates_frontend_gets_an_area_for_its_records_and_hands_it_back() {
    let switch = Switch::new();
    let mut area = None;
    for _ in 0..2 {
        let (port, stream) = switch.port();
        let mut frontend = Frontend::from_stream(stream, 4);
        frontend.set_owner().unwrap();
        frontend.get_features().unwrap();
        frontend.set_features(modern()).unwrap();
        let protocol = frontend.get_protocol_features().unwrap();
        let wanted =
            VhostUserProtocolFeatures::INFLIGHT_SHMFD | VhostUserProtocolFeatures::REPLY_ACK;
        assert!(protocol.contains(wanted), "{protocol:?}");
        frontend.set_protocol_features(wanted).unwrap();
        let (told, file) = area.take().unwrap_or_else(|| {
            let wanted = VhostUserInflight::new(0, 0, 4, SIZE);
            frontend.get_inflight_fd(&wanted).unwrap()
        });
        assert_eq!((told.num_queues, told.queue_size, told.mmap_offset), (4, SIZE, 0));
        assert_eq!(file.metadata().unwrap().len(), told.mmap_size);
        assert!(file.set_len(0).is_err(), "nobody can make it shorter");
        frontend.set_inflight_fd(&told, file.as_raw_fd()).unwrap();
        area = Some((told, file));
        assert_eq!(port.info().stop_reason, None);
    }
}

#[test]
fn an_area_that_cannot_be_ends_its_session_with_a_named_reason() {
    let senseless = [(0, SIZE), (5, SIZE), (u16::MAX, SIZE), (2, 0), (2, 32769)];
    for (num_queues, queue_size) in senseless {
        let switch = Switch::new();
        let (port, stream) = switch.port();
        let mut front = FrontEnd::new(stream);
        front.set_timeout(PATIENCE);
        let wanted = Inflight { mmap_size: 0, mmap_offset: 0, num_queues, queue_size };
        assert!(front.get_inflight_fd(wanted).is_err());
        eventually("the session ends", || port.info().failed == 1);
        let reason = port.info().stop_reason.unwrap();
        assert!(
            reason.contains(&format!("does not fit {num_queues} rings of {queue_size}")),
            "{reason}"
        );
    }
    let good = Inflight { mmap_size: 1 << 20, mmap_offset: 0, num_queues: 2, queue_size: SIZE };
    let short = memfd_create("short", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&short, 4096).unwrap();
    let mut pipe = tempfile::tempfile().unwrap();
    pipe.write_all(b"no memory").unwrap();
    let lies = [
        (Inflight { mmap_size: 100, ..good }, "100 bytes does not fit 2 rings"),
        (good, "needs"),
        (Inflight { mmap_offset: u64::MAX - 7, ..good }, "ends beyond"),
    ];
    for (told, expected) in lies {
        let switch = Switch::new();
        let (port, stream) = switch.port();
        let mut front = FrontEnd::new(stream);
        front.set_timeout(PATIENCE);
        let _ = front.set_inflight_fd(told, short.as_fd());
        eventually("the session ends", || port.info().failed == 1);
        let reason = port.info().stop_reason.unwrap();
        assert!(reason.contains(expected), "{reason}");
    }
}

#[test]
fn a_file_of_records_is_for_this_user_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.rings");
    drop(Records::open(&path).unwrap());
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    Records::open(&path).unwrap();
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert!(Records::open(&link).is_err(), "a link leads anywhere");
    std::fs::hard_link(&path, dir.path().join("second")).unwrap();
    assert!(Records::open(&path).is_err(), "somebody has another name for it");
    std::fs::remove_file(dir.path().join("second")).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o660)).unwrap();
    assert!(Records::open(&path).is_err(), "others may write");
    assert!(Records::open(dir.path()).is_err(), "a directory");
}
