use std::io::Read;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use weir_testing::slow::{lingering, send_with};

use crate::{Foreign, Party, stuck};

const MINUTE: Duration = Duration::from_secs(60);

fn eventually(holds: impl Fn() -> bool) {
    let until = Instant::now() + MINUTE;
    while !holds() {
        assert!(Instant::now() < until, "not within a minute");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_socket_with_a_slow_descriptor_ends_at_its_partys_expense_and_in_bounded_time() {
    let began = Instant::now();
    let party = Party::new("slow");
    let mut readers = Vec::new();
    for way in 0..4 {
        let (socket, reader) = lingering();
        readers.push(reader);
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut ours = Foreign::new(ours, &party);
        match way {
            // The descriptor was read.
            0 => {
                send_with(&theirs, b"x", socket).unwrap();
                assert_eq!(ours.read(&mut [0; 9]).unwrap(), 1);
            }
            // The descriptor is unread.
            1 => send_with(&theirs, b"x", socket).unwrap(),
            // The descriptor is in a socket in a socket.
            2 => {
                let (inner, other) = UnixStream::pair().unwrap();
                send_with(&other, b"x", socket).unwrap();
                send_with(&theirs, b"x", inner).unwrap();
            }
            // The descriptor is in a listener's queue.
            _ => {
                let dir = tempfile::tempdir().unwrap();
                let path = dir.path().join("s.sock");
                let listener = Foreign::new(UnixListener::bind(&path).unwrap(), &party);
                let client = UnixStream::connect(&path).unwrap();
                send_with(&client, b"x", socket).unwrap();
                drop((client, listener));
            }
        }
        drop((ours, theirs));
    }
    // Another party's descriptors are closed meanwhile, and then these, long before they would close by themselves.
    let quick = Party::new("quick");
    drop(Foreign::new(UnixStream::pair().unwrap().0, &quick));
    eventually(|| quick.open() == 0);
    eventually(|| party.open() == 0);
    assert!(began.elapsed() < MINUTE, "cut short: a close would take ten minutes");
}

#[test]
fn a_party_whose_descriptor_no_signal_closes_is_named_while_it_does_not() {
    struct Waits(mpsc::Receiver<()>);
    impl Drop for Waits {
        fn drop(&mut self) {
            let _ = self.0.recv();
        }
    }
    let party = Party::new("whose server is gone");
    let named = || stuck().into_iter().find(|it| it.party == "whose server is gone");
    let (end, waits) = mpsc::channel();
    party.close(Waits(waits));
    party.close(());
    eventually(|| named().is_some());
    assert_eq!(named().unwrap().open, 2);
    drop(end);
    eventually(|| named().is_none() && party.open() == 0);
}
