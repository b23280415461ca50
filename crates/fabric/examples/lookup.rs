//! The cost of a lookup in a forwarding table, with few addresses in it and with many, each as likely as any other, and
//! for comparison one read of memory as large as the table:
//!
//! ```sh
//! cargo run --release -p weir-fabric --example lookup
//! ```

use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

use weir_fabric::fdb::{Capacity, Claim, Fdb, Learner};
use weir_fabric::{PortId, Vid};
use weir_wire::Mac;

const MANY: u32 = 100_000;
const FEW: u32 = 100;

/// Room for [`MANY`] addresses with fewer than one in a hundred evicted from a full bucket (a test checks this).
const ENTRIES: usize = 1 << 18;

/// Bytes of an entry.
const ENTRY_BYTES: usize = 16;

const LOOKUPS: u32 = 2_000_000;

fn main() -> Result<(), Box<dyn Error>> {
    let [few, many] = [table(FEW)?, table(MANY)?];
    // The memory is written: the kernel may map all pages that were never written to one zero page.
    let memory = vec![1; many.capacity() * ENTRY_BYTES / size_of::<u32>()];
    let measured = |table: &Fdb, hosts| {
        lookup_ns(table, hosts); // to warm up
        let [lookup, read] = [lookup_ns(table, hosts), read_ns(&memory, hosts)];
        format!("{hosts} addresses: {lookup:.2} ns a lookup, {read:.2} ns a read")
    };
    println!("{}", measured(&few, FEW));
    let bytes = (many.capacity() * ENTRY_BYTES) as f64 / many.len() as f64;
    println!("{}, {bytes:.1} bytes each", measured(&many, MANY));
    Ok(())
}

fn mac(host: u32) -> Mac {
    let [a, b, c, d] = host.to_be_bytes();
    Mac([0x52, 0x54, a, b, c, d])
}

/// A table that knows `hosts` addresses.
fn table(hosts: u32) -> Result<Fdb, Box<dyn Error>> {
    let fdb = Fdb::new(0x9e37_79b9_7f4a_7c15, Capacity::at_least(ENTRIES));
    let port = PortId::new(7).ok_or("no port 7")?;
    let learner = Learner { port, claim: Claim::Dynamic, learn_max: u32::MAX };
    for host in 0..hosts {
        fdb.learn(Vid::DEFAULT, mac(host), learner, 0);
    }
    Ok(fdb)
}

/// The next host: Numerical Recipes' generator, whose high bits choose.
fn next(state: &mut u32, hosts: u32) -> u32 {
    *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    ((u64::from(*state) * u64::from(hosts)) >> 32) as u32
}

/// Nanoseconds for a lookup among `hosts` known addresses.
fn lookup_ns(fdb: &Fdb, hosts: u32) -> f64 {
    let mut state = 1_u32;
    let begin = Instant::now();
    for _ in 0..LOOKUPS {
        black_box(fdb.lookup(Vid::DEFAULT, mac(next(&mut state, hosts)), 0));
    }
    begin.elapsed().as_secs_f64() * 1e9 / f64::from(LOOKUPS)
}

/// Nanoseconds for one read of memory for each of `hosts`. Each read waits for the one before: a lookup ends in a
/// branch that waits for its bucket.
fn read_ns(memory: &[u32], hosts: u32) -> f64 {
    let (mut state, begin) = (1_u32, Instant::now());
    let apart = memory.len() / hosts as usize;
    for _ in 0..LOOKUPS {
        let read = black_box(memory[next(&mut state, hosts) as usize * apart]);
        // The value is 1, for which the processor has to wait.
        state = state.wrapping_add(read - 1);
    }
    begin.elapsed().as_secs_f64() * 1e9 / f64::from(LOOKUPS)
}
