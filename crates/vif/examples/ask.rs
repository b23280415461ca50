//! Two user-space guests at two sockets of a running switch that speaks vhost-user: the first sends
//! 64 B requests at a steady rate, the second answers. Both sleep until they are called, as VMs do.
//! Prints the round-trip times after the first second:
//!
//! ```sh
//! cargo run --release -p weir-vif --example ask -- /run/weir/web0.sock /run/weir/db0.sock 10000 5
//! ```

mod support;

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use weir_vif::load::{End, LoadStats, pingpong};

const WARM_UP: Duration = Duration::from_secs(1);

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let [from, to, rate, seconds] = args.as_slice() else {
        return Err("usage: ask FROM.sock TO.sock REQUESTS_PER_SECOND SECONDS".into());
    };
    let (rate, seconds): (u64, u64) = (rate.parse()?, seconds.parse()?);
    let flow = support::flow();
    let mut asking = support::join(from, flow.local)?;
    let mut answering = support::join(to, flow.remote)?;
    let (mut here, mut there) = (asking.queue_pairs().remove(0), answering.queue_pairs().remove(0));

    let (asked, answered) = (LoadStats::default(), LoadStats::default());
    let stop = AtomicBool::new(false);
    let options = pingpong::Options::default();
    thread::scope(|scope| {
        let back = flow.reversed();
        let answering = scope.spawn({
            let (answered, stop) = (&answered, &stop);
            move || pingpong::respond(End { pair: &mut there, flow: &back, stats: answered, stop })
        });
        thread::sleep(Duration::from_millis(100)); // the answering guest announces itself
        let asking = scope.spawn(|| {
            let end = End { pair: &mut here, flow: &flow, stats: &asked, stop: &stop };
            pingpong::request_at(end, &options, rate)
        });
        thread::sleep(WARM_UP);
        println!("warm");
        let (before, times_before) = (asked.snapshot(), asked.latency());
        thread::sleep(Duration::from_secs(seconds));
        let (now, mut times) = (asked.snapshot(), asked.latency());
        times.subtract(&times_before)?;
        let us = |quantile| times.value_at_quantile(quantile) as f64 / 1_000.0;
        println!(
            "{} asked  {} answered  p50 {:.1} us  p99 {:.1} us  p99.9 {:.1} us",
            now.tx_frames - before.tx_frames,
            now.rx_frames - before.rx_frames,
            us(0.5),
            us(0.99),
            us(0.999)
        );
        stop.store(true, Ordering::Relaxed);
        asking.join().map_err(|_| "the one who asks panicked")??;
        answering.join().map_err(|_| "the one who answers panicked")??;
        Ok(())
    })
}
