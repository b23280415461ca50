//! The program of `examples/embed.rs`, with two guests, and a switch with a program in an interface's way.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use weir_config::{Config, SocketPath, SwitchConfig, VifConfig, VlanMode};
use weir_switch::Switch;
use weir_vif::{Options, QueuePair, Vif};
use weir_wire::{Mac, Offload};

#[allow(dead_code)]
#[path = "../examples/embed.rs"]
mod embed;

const A: [u8; 6] = [0x52, 0x54, 0, 0, 0, 1];
const B: [u8; 6] = [0x52, 0x54, 0, 0, 0, 2];
/// The time limit, which only ends a failing test.
const PATIENCE: Duration = Duration::from_secs(60);

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
        let end_of = weir_testing::SetAtEnd(&end);
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

/// The lines of a stream, whose frames may cut them anywhere.
#[derive(Default)]
struct Lines(Vec<u8>);

impl Lines {
    /// The lines that are whole with this part of the stream.
    fn whole(&mut self, part: &[u8]) -> Vec<Vec<u8>> {
        self.0.extend_from_slice(part);
        let end = self.0.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let whole: Vec<u8> = self.0.drain(..end).collect();
        whole.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect()
    }
}

/// Two VLANs, and a program with an interface in each: what guest `a` sends reaches guest `b` through the program only.
#[test]
fn a_program_in_an_interfaces_way_filters_and_changes_messages_of_a_stream() {
    let dir = tempfile::tempdir().unwrap();
    let socket = |name: &str| SocketPath::try_from(dir.path().join(name).as_path()).unwrap();
    let vif = |(name, vid): (&str, u64)| VifConfig {
        vlan: VlanMode::Access(vid.try_into().unwrap()),
        ..VifConfig::new(name.parse().unwrap(), socket(name))
    };
    let vifs = [("a", 1), ("inside", 1), ("outside", 2), ("b", 2)].map(vif).into();
    let config = Config::of_vifs(SwitchConfig::new(socket("control.sock")), vifs);
    let _switch = Switch::start(&config).unwrap();
    let join =
        |name: &str, mac| Vif::connect(dir.path().join(name), &Options::new(Mac(mac))).unwrap();
    // The program forwards the messages with the guests' own addresses.
    let (mut a, mut inside) = (join("a", A), join("inside", B));
    let (mut outside, mut b) = (join("outside", A), join("b", B));
    let [mut a, mut inside, mut outside, mut b] =
        [&mut a, &mut inside, &mut outside, &mut b].map(|vif| vif.queue_pairs().remove(0));

    let mut lines = Lines::default();
    for part in ["buy 1\nsec", "ret 2\nse", "ll 3\n"] {
        let frame = [&B[..], &A, &[0x88, 0xb5], part.as_bytes()].concat();
        a.send(&frame, &Offload::NONE).unwrap();
        a.flush();
        let received = receive(&mut inside);
        assert_eq!(received[14..], *part.as_bytes());
        for line in lines.whole(&received[14..]) {
            if !line.starts_with(b"secret") {
                let frame = [&received[..14], &line.to_ascii_uppercase()].concat();
                outside.send(&frame, &Offload::NONE).unwrap();
            }
        }
        outside.flush();
    }
    for line in ["BUY 1\n", "SELL 3\n"] {
        let received = receive(&mut b);
        assert_eq!((&received[..12], &received[14..]), (&[B, A].concat()[..], line.as_bytes()));
    }
}
