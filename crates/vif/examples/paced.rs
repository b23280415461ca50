//! Two user-space guests at two sockets of a running weir, and UDP packets at a steady rate from
//! the first to the second. 82345 frames of 1514 bytes (1518 with their check sequence) a second
//! are 1 Gbit/s:
//!
//! ```sh
//! cargo run --release -p weir-vif --example paced -- \
//!     /run/weir/web0.sock /run/weir/db0.sock 82345 1514 5
//! ```

mod support;

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use weir_vif::load::{End, LoadStats, small};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let [from, to, rate, frame_bytes, seconds] = args.as_slice() else {
        return Err("usage: paced FROM.sock TO.sock FRAMES_PER_SECOND FRAME_BYTES SECONDS".into());
    };
    let options = small::Options {
        frame_bytes: frame_bytes.parse()?,
        rate: small::Rate::PerSecond(rate.parse()?),
        ..small::Options::default()
    };
    let seconds: u32 = seconds.parse()?;
    let flow = support::flow();
    let mut sender = support::join(from, flow.local)?;
    let mut receiver = support::join(to, flow.remote)?;
    let (mut tx, mut rx) = (sender.queue_pairs().remove(0), receiver.queue_pairs().remove(0));

    let (sent, got, stop) = (LoadStats::default(), LoadStats::default(), AtomicBool::new(false));
    thread::scope(|scope| {
        let back = flow.reversed();
        let receiving = scope.spawn({
            let (got, stop, options) = (&got, &stop, &options);
            move || small::receive(End { pair: &mut rx, flow: &back, stats: got, stop }, options)
        });
        thread::sleep(Duration::from_millis(100)); // the receiver announces itself
        let sending = scope.spawn(|| {
            small::send(End { pair: &mut tx, flow: &flow, stats: &sent, stop: &stop }, &options)
        });
        for second in 1..=seconds {
            let before = got.snapshot().rx_frames;
            thread::sleep(Duration::from_secs(1));
            let now = got.snapshot();
            let frames = now.rx_frames - before;
            println!("{second:3} s  {frames:9} frames/s  {} lost in all", now.lost);
        }
        stop.store(true, Ordering::Relaxed);
        sending.join().map_err(|_| "the sender panicked")??;
        receiving.join().map_err(|_| "the receiver panicked")??;
        Ok(())
    })
}
