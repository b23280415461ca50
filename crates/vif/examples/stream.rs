//! Two user-space guests at two sockets of a running weir, and a TCP-like stream from the first to the second. The
//! optional fourth number is the bytes of a receive buffer (default 2048); all buffers together have 2 MiB:
//!
//! ```sh
//! cargo run --release -p weir-vif --example stream -- /run/weir/web0.sock /run/weir/db0.sock 5
//! ```

mod support;

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use weir_vif::Options;
use weir_vif::load::{End, LoadStats, bulk};

/// Bytes of all receive buffers.
const RX_BYTES: u32 = 2 << 20;
const RX_BUFFER_BYTES: u32 = 2 << 10;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let (from, to, seconds, rx_buffer_bytes) = match args.as_slice() {
        [from, to, seconds] => (from, to, seconds, RX_BUFFER_BYTES),
        [from, to, seconds, bytes] => (from, to, seconds, bytes.parse()?),
        _ => return Err("usage: stream FROM.sock TO.sock SECONDS [BUFFER_BYTES]".into()),
    };
    let seconds: u32 = seconds.parse()?;
    let flow = support::flow();
    let mut sender = support::join(from, flow.local)?;
    let queue_size = u16::try_from(RX_BYTES / rx_buffer_bytes.max(1))?;
    let options = Options { rx_buffer_bytes, queue_size, ..support::options(flow.remote) };
    let mut receiver = support::join_with(to, &options)?;
    let (mut tx, mut rx) = (sender.queue_pairs().remove(0), receiver.queue_pairs().remove(0));

    let (sent, got, stop) = (LoadStats::default(), LoadStats::default(), AtomicBool::new(false));
    let options = bulk::Options::default();
    thread::scope(|scope| {
        let back = flow.reversed();
        let receiving = scope.spawn({
            let (got, stop, options) = (&got, &stop, &options);
            move || bulk::receive(End { pair: &mut rx, flow: &back, stats: got, stop }, options)
        });
        thread::sleep(Duration::from_millis(100)); // the receiver announces itself
        let sending = scope.spawn(|| {
            bulk::send(End { pair: &mut tx, flow: &flow, stats: &sent, stop: &stop }, &options)
        });
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
