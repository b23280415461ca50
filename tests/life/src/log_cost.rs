//! Cost of a dirty log: time of weir's worker per packet with both guests' writes logged, relative
//! to none.

use std::{
    net::Ipv4Addr,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use weir_bed::{
    error::{Error, Result, check},
    lab::Lab,
    report::{Goal, Samples},
    weir::{self, Setup, Weir},
    weir_stats::Way,
};
use weir_vif::{
    Options, Vif, VifError,
    load::{End, Flow, LoadStats, Station, small},
};

use crate::{bars::Bars, traffic::mac};

/// Duration of each turn, and interval at which a monitor would read the log meanwhile.
const TURN: Duration = Duration::from_millis(500);
const READ: Duration = Duration::from_millis(100);
/// Time left out after a change.
const SETTLE: Duration = Duration::from_millis(100);

/// Takes turns with the log and without, `rounds` times.
pub fn run(lab: &Lab, rounds: u32, _: u64, bars: &mut Bars) -> Result<()> {
    for (name, frame_bytes, packed) in [
        ("dirty_log_cost", 64, false),
        ("dirty_log_cost_packed", 64, true),
        ("dirty_log_cost_1500", 1514, false),
    ] {
        let ratios = measure(lab, frame_bytes, packed, rounds)?;
        bars.add(name, ratios.median(), Some(Goal::AtMost(1.15)));
    }
    Ok(())
}

fn measure(lab: &Lab, frame_bytes: usize, packed: bool, rounds: u32) -> Result<Samples> {
    let weir = Weir::start(lab, &Setup::vifs(2))?;
    let station =
        |index: usize| Station { mac: mac(index), ip: Ipv4Addr::new(10, 78, 0, index as u8 + 1) };
    let flow = Flow { local: station(0), remote: station(1), local_port: 1000, remote_port: 9 };
    let join = |index: usize| {
        let plain = Options::new(mac(index));
        let format =
            if packed { weir_vif::Features::RING_PACKED } else { weir_vif::Features::NONE };
        let options = Options {
            features: plain.features | format,
            required: plain.required | format,
            ..plain
        };
        Vif::connect(weir.socket(index as u16)?, &options).map_err(failed)
    };
    let mut vifs = [join(0)?, join(1)?];
    let [mut tx, mut rx] = vifs.each_mut().map(|vif| vif.queue_pairs().remove(0));
    let options = small::Options { frame_bytes, verify: false, ..small::Options::default() };
    let (sent, got, stop) = (LoadStats::default(), LoadStats::default(), AtomicBool::default());
    thread::scope(|scope| {
        let back = flow.reversed();
        let (sent, got, stop, options, flow) = (&sent, &got, &stop, &options, &flow);
        let receiving = scope.spawn(move || {
            small::receive(End { pair: &mut rx, flow: &back, stats: got, stop }, options)
        });
        thread::sleep(SETTLE);
        let sending = scope
            .spawn(move || small::send(End { pair: &mut tx, flow, stats: sent, stop }, options));
        let ratios = by_turns(&weir, &mut vifs, rounds);
        stop.store(true, Relaxed);
        for end in [sending, receiving] {
            let ended =
                end.join().map_err(|_| Error::Check("an end of the load panicked".into()))?;
            ended.map_err(|error| Error::Check(error.to_string()))?;
        }
        ratios
    })
}

fn failed(error: VifError) -> Error {
    Error::Check(error.to_string())
}

fn by_turns(weir: &Weir, vifs: &mut [Vif; 2], rounds: u32) -> Result<Samples> {
    let mut ratios = Samples::new();
    for round in 0..rounds {
        let mut times = [0.0; 2];
        // The order alternates.
        for turn in 0..2 {
            let logged = (round + turn) % 2 == 1;
            vifs.iter_mut().try_for_each(|vif| vif.log_writes(logged)).map_err(failed)?;
            times[usize::from(logged)] = packet_ns(weir, vifs, logged)?;
        }
        println!("round {}: {:.1} ns a packet, {:.1} with a log", round + 1, times[0], times[1]);
        ratios.push(times[1] / times[0]);
    }
    Ok(ratios)
}

/// Returns the worker's time per packet.
fn packet_ns(weir: &Weir, vifs: &[Vif; 2], logged: bool) -> Result<f64> {
    thread::sleep(SETTLE);
    let look = || -> Result<[u64; 2]> {
        let stats = weir.stats()?;
        let frames = stats.frames_by_queue(&weir::name(1_u16), Way::Rx)?.iter().sum();
        Ok([stats.work()?.busy, frames])
    };
    let (before, begun) = (look()?, Instant::now());
    let mut pages = 0;
    while begun.elapsed() < TURN {
        thread::sleep(READ);
        for vif in vifs {
            let cleared = vif.clear_log();
            pages += cleared.map_err(|source| Error::Io { what: "read a log".into(), source })?;
        }
    }
    let now = look()?;
    // The log was cleared before, so that its content is new.
    check(!logged || pages > 0, || "a log stays empty".into())?;
    let [busy, frames] = [0, 1].map(|at: usize| now[at] - before[at]);
    check(frames > 0, || "no packets flow".into())?;
    Ok(busy as f64 / frames as f64)
}
