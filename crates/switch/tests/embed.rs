//! The program of `examples/embed.rs`, with two guests.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use weir_vif::{Options, QueuePair, Vif};
use weir_wire::{Mac, Offload};

#[allow(dead_code)]
#[path = "../examples/embed.rs"]
mod embed;

const A: [u8; 6] = [0x52, 0x54, 0, 0, 0, 1];
const B: [u8; 6] = [0x52, 0x54, 0, 0, 0, 2];
/// The time limit, which only ends a failing test.
const PATIENCE: Duration = Duration::from_secs(60);

/// Ends the program when the test ends, even if it fails.
struct EndOf<'a>(&'a AtomicBool);

impl Drop for EndOf<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn send(pair: &mut QueuePair, to: [u8; 6], payload: u8) {
    let frame = [&to[..], &pair.mac().0, &[0x88, 0xb5], &[payload; 50]].concat();
    pair.send(&frame, &Offload::NONE).unwrap();
    pair.flush();
}

fn receive(pair: &mut QueuePair) -> Vec<u8> {
    let (begin, mut frame) = (Instant::now(), Vec::new());
    while pair.recv_into(&mut frame).is_none() {
        assert!(begin.elapsed() < PATIENCE, "no frame came");
        thread::sleep(Duration::from_micros(200));
    }
    frame
}

#[test]
fn an_embedded_switch_counts_the_frames_of_two_guests() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (end, last) = (AtomicBool::new(false), std::sync::Mutex::new(String::new()));
    thread::scope(|scope| {
        let end_of = EndOf(&end);
        scope.spawn(|| {
            embed::serve(dir, |line| {
                line.clone_into(&mut last.lock().unwrap());
                thread::sleep(Duration::from_millis(1));
                !end.load(Ordering::Relaxed)
            })
            .unwrap();
        });
        let shown = |text: &str| {
            let begin = Instant::now();
            while !last.lock().unwrap().contains(text) {
                assert!(begin.elapsed() < PATIENCE, "{text}: {}", last.lock().unwrap());
                thread::sleep(Duration::from_millis(1));
            }
        };
        shown("b: waiting");
        let join = |name, mac| Vif::connect(dir.join(name), &Options::new(Mac(mac))).unwrap();
        let (mut a, mut b) = (join("a.sock", A), join("b.sock", B));
        let (mut a, mut b) = (a.queue_pairs().remove(0), b.queue_pairs().remove(0));
        shown("a: running");
        shown("b: running");
        send(&mut a, B, 1);
        assert_eq!(receive(&mut b)[14..], [1; 50]);
        for payload in 2..=3 {
            send(&mut b, A, payload);
            assert_eq!(receive(&mut a)[14..], [payload; 50]);
        }
        shown("a: running, 1 frames sent, 2 received; b: running, 2 frames sent, 1 received");
        drop(end_of);
    });
}
