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

/// Which host is next: Numerical Recipes' generator, whose high bits choose.
fn next(state: &mut u32, hosts: u32) -> u32 {
    *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    ((u64::from(*state) * u64::from(hosts)) >> 32) as u32
}

/// Nanoseconds for one read of memory for each of `hosts`, as a table would take that finds each at once.
fn read_ns(memory: &[u8], hosts: u32) -> f64 {
    let (mut state, begin) = (1_u32, Instant::now());
    let apart = memory.len() / hosts as usize;
    for _ in 0..LOOKUPS {
        black_box(memory.get(next(&mut state, hosts) as usize * apart).copied());
    }
    begin.elapsed().as_secs_f64() * 1e9 / f64::from(LOOKUPS)
}

/// Nanoseconds for a lookup among `hosts` known addresses, each as likely as any other.
fn lookup_ns(fdb: &Fdb, hosts: u32) -> f64 {
    let mut state = 1_u32;
    let begin = Instant::now();
    for _ in 0..LOOKUPS {
        black_box(fdb.lookup(Vid::DEFAULT, mac(next(&mut state, hosts)), 0));
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
        let memory = vec![1; many.capacity() * ENTRY_BYTES];
        let round = |_| {
            let [few, many] = [(&few, FEW), (&many, MANY)].map(|(table, n)| lookup_ns(table, n));
            [few, many, read_ns(&memory, FEW), read_ns(&memory, MANY)]
        };
        let rounds: Vec<[f64; 4]> = (0..rounds).map(round).collect();
        Ok((rounds, memory.len() as f64 / many.len() as f64))
    });
    let panicked = |_| Error::Check("the measuring thread panicked".into());
    let (rounds, bytes): (Vec<[f64; 4]>, f64) = measuring.join().map_err(panicked)??;
    let of = |which: usize| rounds.iter().map(|round| round[which]).collect::<Samples>();
    let [few, many, few_reads, many_reads] = [0, 1, 2, 3].map(of);
    let what = "a lookup in the forwarding table with 100,000 addresses, over one with 100";
    let ratio = many.ratio_to(&few);
    report.add(Figure::ratio("fdb_lookup_100k_vs_100", what, ratio).goal(Some(Goal::AtMost(1.5))));
    report.add(Figure::new("fdb_lookup_100k_ns", "ns", "the same: the lookup itself", many));
    let what = "one read for each address of memory as large as the table, 100,000 over 100";
    report.add(Figure::ratio("fdb_lookup_limit", what, many_reads.ratio_to(&few_reads)));
    let what = "a forwarding table of 262,144 entries, for each of 100,000 addresses in it";
    let figure = Figure::new("fdb_100k_bytes_per_entry", "B", what, Samples::one(bytes));
    report.add(figure.goal(Some(Goal::AtMost(128.0))));
    Ok(())
}
