//! Two user-space guests at two sockets of a running weir, and a TCP-like stream from the first to
//! the second:
//!
//! ```sh
//! cargo run --release -p weir-vif --example stream -- /run/weir/web0.sock /run/weir/db0.sock 5
//! ```

mod support;

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use weir_vif::load::{LoadStats, bulk};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let [from, to, seconds] = args.as_slice() else {
        return Err("usage: stream FROM.sock TO.sock SECONDS".into());
    };
    let seconds: u32 = seconds.parse()?;
    let flow = support::flow();
    let mut sender = support::join(from, flow.local)?;
    let mut receiver = support::join(to, flow.remote)?;
    let (mut tx, mut rx) = (sender.queue_pairs().remove(0), receiver.queue_pairs().remove(0));

    let (sent, got, stop) = (LoadStats::default(), LoadStats::default(), AtomicBool::new(false));
    let options = bulk::Options::default();
    thread::scope(|scope| {
        let back = flow.reversed();
        let receiving = scope.spawn({
            let (got, stop, options) = (&got, &stop, &options);
            move || bulk::receive(&mut rx, &back, options, got, stop)
        });
        thread::sleep(Duration::from_millis(100)); // the receiver announces itself
        let sending = scope.spawn(|| bulk::send(&mut tx, &flow, &options, &sent, &stop));
        for second in 1..=seconds {
            let before = got.snapshot().rx_bytes;
            thread::sleep(Duration::from_secs(1));
            let bits = (got.snapshot().rx_bytes - before) * 8;
            println!("{second:3} s  {:7.2} Gbit/s", bits as f64 / 1e9);
        }
        stop.store(true, Ordering::Relaxed);
        sending.join().map_err(|_| "the sender panicked")??;
        receiving.join().map_err(|_| "the receiver panicked")??;
        Ok(())
    })
}
