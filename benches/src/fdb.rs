//! What a lookup in a forwarding table with many addresses costs, compared to one with few.

use std::{hint::black_box, time::Instant};

use weir_bed::{
    error::{Error, Result},
    report::{Figure, Goal, Report, Samples},
};
use weir_fabric::{
    Vid,
    fdb::{Capacity, Claim, Fdb, Learner},
};
use weir_wire::Mac;

use super::{Bench, SWITCH_CPU, pin};

const MANY: u32 = 100_000;
const FEW: u32 = 100;

/// Room for [`MANY`] addresses with fewer than one in a hundred evicted from a full bucket (a test of the table says so).
const ENTRIES: usize = 1 << 18;

/// Bytes of an entry.
const ENTRY_BYTES: usize = 16;

const LOOKUPS: u32 = 2_000_000;

fn mac(host: u32) -> Mac {
    let [a, b, c, d] = host.to_be_bytes();
    Mac([0x52, 0x54, a, b, c, d])
}

/// A table that knows `hosts` addresses.
fn table(hosts: u32) -> Result<Fdb> {
    let fdb = Fdb::new(0x9e37_79b9_7f4a_7c15, Capacity::at_least(ENTRIES));
    let port = weir_fabric::PortId::new(7).ok_or_else(|| Error::Check("no port 7".into()))?;
    let learner = Learner { port, claim: Claim::Dynamic, learn_max: u32::MAX };
    for host in 0..hosts {
        fdb.learn(Vid::DEFAULT, mac(host), learner, 0);
    }
    Ok(fdb)
}

/// Nanoseconds for a lookup among `hosts` known addresses, each as likely as any other.
fn lookup_ns(fdb: &Fdb, hosts: u32) -> f64 {
    let mut state = 1_u32;
    let begin = Instant::now();
    for _ in 0..LOOKUPS {
        // Numerical Recipes' generator: its high bits choose.
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let host = (u64::from(state) * u64::from(hosts)) >> 32;
        black_box(fdb.lookup(Vid::DEFAULT, mac(host as u32), 0));
    }
    begin.elapsed().as_secs_f64() * 1e9 / f64::from(LOOKUPS)
}

/// By turns, on one CPU.
pub(super) fn lookups(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let rounds = bench.rounds;
    let measuring = std::thread::spawn(move || {
        pin(SWITCH_CPU)?;
        let (few, many) = (table(FEW)?, table(MANY)?);
        lookup_ns(&few, FEW);
        lookup_ns(&many, MANY);
        let round = |_| (lookup_ns(&few, FEW), lookup_ns(&many, MANY));
        let (few, many_ns): (Vec<f64>, Vec<f64>) = (0..rounds).map(round).unzip();
        Ok((few, many_ns, (many.capacity() * ENTRY_BYTES) as f64 / many.len() as f64))
    });
    let panicked = |_| Error::Check("the measuring thread panicked".into());
    let (few, many, bytes): (Vec<f64>, Vec<f64>, f64) = measuring.join().map_err(panicked)??;
    let (few, many) = (Samples::from_iter(few), Samples::from_iter(many));
    let what = "a lookup in the forwarding table with 100,000 addresses, over one with 100";
    let ratio = many.ratio_to(&few);
    report.add(Figure::ratio("fdb_lookup_100k_vs_100", what, ratio).goal(Some(Goal::AtMost(1.5))));
    report.add(Figure::new("fdb_lookup_100k_ns", "ns", "the same: the lookup itself", many));
    let what = "a forwarding table of 262,144 entries, for each of 100,000 addresses in it";
    let figure = Figure::new("fdb_100k_bytes_per_entry", "B", what, Samples::one(bytes));
    report.add(figure.goal(Some(Goal::AtMost(128.0))));
    Ok(())
}
