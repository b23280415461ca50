use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::thread;

use proptest::prelude::*;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::SeedableRng as _;
use weir_limits::FDB_ENTRIES_DEFAULT;

use super::*;

const SEED: u64 = 0x0123_4567_89ab_cdef;

fn port(number: u16) -> PortId {
    PortId::new(number).unwrap()
}

fn mac(host: u32) -> Mac {
    let [a, b, c, d] = host.to_be_bytes();
    Mac([0x52, 0x54, a, b, c, d])
}

fn dynamic(number: u16) -> Learner {
    Learner { port: port(number), claim: Claim::Dynamic, learn_max: u32::MAX }
}

fn claimed(number: u16, claim: Claim) -> Learner {
    Learner { claim, ..dynamic(number) }
}

const VLAN: Vid = Vid::DEFAULT;

/// Addresses that all belong to one bucket.
fn colliding(count: usize) -> Vec<Mac> {
    let in_bucket = |&mac: &Mac| Slot::of(VLAN, mac, SEED, FDB_ENTRIES_DEFAULT / WAYS).bucket == 0;
    (0..).map(mac).filter(in_bucket).take(count).collect()
}

fn sweep_all(fdb: &Fdb, now_secs: u32) -> usize {
    (0..AGE_CALLS).map(|_| fdb.age(now_secs)).sum()
}

#[test]
fn learned_address_is_found_in_its_vlan_only() {
    let fdb = Fdb::new(SEED, Capacity::default());
    assert!(fdb.is_empty());
    assert_eq!(fdb.learn(VLAN, mac(1), dynamic(7), 0), Learned::New);
    assert_eq!(fdb.lookup(VLAN, mac(1), 0), Some(port(7)));
    assert_eq!(fdb.lookup(Vid::new(2).unwrap(), mac(1), 0), None);
    assert_eq!(fdb.lookup(VLAN, mac(2), 0), None);
    assert_eq!(fdb.len(), 1);
}

#[test]
fn moved_address_is_found_at_its_new_port() {
    let fdb = Fdb::new(SEED, Capacity::default());
    fdb.learn(VLAN, mac(1), dynamic(7), 0);
    let learned = fdb.learn(VLAN, mac(1), dynamic(8), 0);
    assert_eq!(learned, Learned::Moved { from: port(7) });
    assert_eq!(fdb.lookup(VLAN, mac(1), 0), Some(port(8)));
    assert_eq!((fdb.learned_by(port(7)), fdb.learned_by(port(8))), (0, 1));
    assert_eq!(fdb.stats().moved, 1);
}

#[test]
fn multicast_source_is_never_learned() {
    let fdb = Fdb::new(SEED, Capacity::default());
    for group in [Mac::BROADCAST, Mac([1, 0, 0x5e, 0, 0, 1])] {
        assert_eq!(fdb.learn(VLAN, group, dynamic(1), 0), Learned::Multicast);
        assert_eq!(fdb.lookup(VLAN, group, 0), None);
    }
}

#[test]
fn silent_address_is_forgotten_after_its_age_and_not_before() {
    let fdb = Fdb::new(SEED, Capacity::default());
    fdb.learn(VLAN, mac(1), dynamic(1), 10);
    assert_eq!(fdb.lookup(VLAN, mac(1), 10 + FDB_AGE_SECS), Some(port(1)));
    assert_eq!(fdb.lookup(VLAN, mac(1), 11 + FDB_AGE_SECS), None);
    assert_eq!(sweep_all(&fdb, 10 + FDB_AGE_SECS), 0);
    assert_eq!(sweep_all(&fdb, 11 + FDB_AGE_SECS), 1);
    assert!(fdb.is_empty());
}

#[test]
fn traffic_keeps_an_address() {
    let fdb = Fdb::new(SEED, Capacity::default());
    for now_secs in (0..10 * FDB_AGE_SECS).step_by(FDB_AGE_SECS as usize) {
        fdb.learn(VLAN, mac(1), dynamic(1), now_secs);
        assert_eq!(fdb.lookup(VLAN, mac(1), now_secs + FDB_AGE_SECS), Some(port(1)));
    }
}

#[test]
fn clock_a_second_behind_does_not_age() {
    let fdb = Fdb::new(SEED, Capacity::default());
    fdb.learn(VLAN, mac(1), dynamic(1), 10);
    assert_eq!(fdb.lookup(VLAN, mac(1), 9), Some(port(1)));
    assert_eq!(sweep_all(&fdb, 9), 0);
}

#[test]
fn flush_removes_the_ports_addresses_and_no_others() {
    let fdb = Fdb::new(SEED, Capacity::default());
    for host in 0..1000 {
        fdb.learn(VLAN, mac(host), dynamic((host % 2) as u16), 0);
    }
    assert_eq!(fdb.flush_port(port(0)), 500);
    for host in 0..1000 {
        let expected = (host % 2 == 1).then_some(port(1));
        assert_eq!(fdb.lookup(VLAN, mac(host), 0), expected);
    }
    assert_eq!((fdb.learned_by(port(0)), fdb.len()), (0, 500));
}

#[test]
fn full_bucket_evicts_the_oldest_entry() {
    let fdb = Fdb::new(SEED, Capacity::default());
    let macs = colliding(WAYS + 1);
    for (now_secs, &mac) in (0..).zip(&macs) {
        fdb.learn(VLAN, mac, dynamic(1), now_secs);
    }
    let now_secs = WAYS as u32;
    assert_eq!(fdb.lookup(VLAN, macs[0], now_secs), None);
    assert!(macs[1..].iter().all(|&mac| fdb.lookup(VLAN, mac, now_secs) == Some(port(1))));
    assert_eq!((fdb.len(), fdb.stats().evicted), (WAYS, 1));
}

#[test]
fn full_bucket_gives_up_an_expired_entry_first() {
    let fdb = Fdb::new(SEED, Capacity::default());
    let macs = colliding(WAYS + 1);
    let now_secs = 1 + FDB_AGE_SECS;
    fdb.learn(VLAN, macs[0], dynamic(2), 0);
    for &mac in &macs[1..] {
        fdb.learn(VLAN, mac, dynamic(1), now_secs);
    }
    assert!(macs[1..].iter().all(|&mac| fdb.lookup(VLAN, mac, now_secs) == Some(port(1))));
    assert_eq!(fdb.stats().evicted, 0);
}

#[test]
fn port_with_many_addresses_can_not_evict_the_only_one_of_another() {
    let fdb = Fdb::new(SEED, Capacity::default());
    let macs = colliding(200);
    fdb.learn(VLAN, macs[0], dynamic(1), 0);
    for (now_secs, &mac) in (1..).zip(&macs[1..]) {
        fdb.learn(VLAN, mac, dynamic(2), now_secs);
        assert_eq!(fdb.lookup(VLAN, mac, now_secs), Some(port(2)));
        assert_eq!(fdb.lookup(VLAN, macs[0], now_secs), Some(port(1)));
    }
}

#[test]
fn full_bucket_evicts_from_the_port_that_holds_the_most() {
    let fdb = Fdb::new(SEED, Capacity::default());
    let macs = colliding(WAYS + 1);
    fdb.learn(VLAN, macs[0], dynamic(1), 0);
    for &mac in &macs[1..WAYS] {
        fdb.learn(VLAN, mac, dynamic(2), 1);
    }
    fdb.learn(VLAN, macs[WAYS], dynamic(3), 2);
    assert_eq!(fdb.lookup(VLAN, macs[0], 2), Some(port(1)), "the oldest, but its port's only one");
    assert_eq!(fdb.lookup(VLAN, macs[WAYS], 2), Some(port(3)));
    assert_eq!(fdb.learned_by(port(2)), WAYS as u32 - 2);
}

#[test]
fn port_at_its_limit_learns_no_more_and_keeps_what_it_has() {
    let fdb = Fdb::new(SEED, Capacity::default());
    let learner = Learner { learn_max: 2, ..dynamic(1) };
    fdb.learn(VLAN, mac(3), dynamic(2), 0);
    for host in 0..2 {
        assert_eq!(fdb.learn(VLAN, mac(host), learner, 0), Learned::New);
    }
    assert_eq!(fdb.learn(VLAN, mac(2), learner, 0), Learned::PortLimit);
    assert_eq!(fdb.learn(VLAN, mac(3), learner, 0), Learned::PortLimit);
    assert_eq!(fdb.learn(VLAN, mac(0), learner, 0), Learned::Known);
    assert_eq!(fdb.lookup(VLAN, mac(2), 0), None);
    assert_eq!(fdb.lookup(VLAN, mac(3), 0), Some(port(2)));
    assert_eq!(fdb.stats().refused_port_limit, 2);
    fdb.flush_port(port(1));
    assert_eq!(fdb.learn(VLAN, mac(2), learner, 0), Learned::New);
}

/// A second version of the table of who may take an address from whom.
fn may_take(held: Claim, taker: Claim) -> bool {
    use Claim::{Dynamic, First, Pinned, Uplink};
    matches!((held, taker), (Dynamic, _) | (Uplink, Dynamic | Uplink | Pinned) | (First, Pinned))
}

#[test]
fn claimed_address_moves_to_a_stronger_claim_only() {
    use Claim::{Dynamic, First, Pinned, Uplink};
    for (held, taken, moves) in [
        (Dynamic, Dynamic, true),
        (Dynamic, First, true),
        (First, Dynamic, false),
        (First, First, false),
        (First, Pinned, true),
        (Pinned, First, false),
        (Pinned, Pinned, false),
        (Uplink, Uplink, true),
        (Uplink, Dynamic, true),
        (Uplink, Pinned, true),
        (Uplink, First, false),
        (First, Uplink, false),
        (Pinned, Uplink, false),
        (Dynamic, Uplink, true),
    ] {
        let fdb = Fdb::new(SEED, Capacity::default());
        fdb.learn(VLAN, mac(1), claimed(1, held), 0);
        let expected = match moves {
            true => Learned::Moved { from: port(1) },
            false => Learned::Owned { by: port(1) },
        };
        assert_eq!(fdb.learn(VLAN, mac(1), claimed(2, taken), 0), expected, "{held:?} {taken:?}");
        assert_eq!(fdb.lookup(VLAN, mac(1), 0), Some(port(if moves { 2 } else { 1 })));
    }
}

#[test]
fn claimed_address_is_neither_aged_nor_evicted_but_flushed() {
    let fdb = Fdb::new(SEED, Capacity::default());
    let macs = colliding(WAYS + 1);
    for (number, &mac) in (0..).zip(&macs[..WAYS]) {
        fdb.learn(VLAN, mac, claimed(number, Claim::First), 0);
    }
    assert_eq!(fdb.learn(VLAN, macs[WAYS], dynamic(99), 0), Learned::BucketFull);
    assert_eq!(fdb.stats().refused_bucket_full, 1);
    assert_eq!(sweep_all(&fdb, u32::MAX), 0);
    assert_eq!(fdb.lookup(VLAN, macs[0], u32::MAX), Some(port(0)));
    assert_eq!(fdb.flush_port(port(0)), 1);
    assert_eq!(fdb.learn(VLAN, macs[WAYS], dynamic(99), 0), Learned::New);
}

#[test]
fn claim_of_a_port_follows_its_check() {
    let fdb = Fdb::new(SEED, Capacity::default());
    fdb.learn(VLAN, mac(1), claimed(1, Claim::First), 0);
    fdb.learn(VLAN, mac(1), dynamic(1), 0);
    assert_eq!(fdb.entries(0)[0].claim, Claim::Dynamic);
    assert_eq!(fdb.len(), 1);
}

#[test]
fn forget_removes_the_address_from_that_port_only() {
    let fdb = Fdb::new(SEED, Capacity::default());
    fdb.learn(VLAN, mac(1), claimed(1, Claim::Pinned), 0);
    assert!(!fdb.forget(VLAN, mac(1), port(2)));
    assert!(fdb.forget(VLAN, mac(1), port(1)));
    assert!(!fdb.forget(VLAN, mac(1), port(1)));
    assert!(fdb.is_empty());
}

#[test]
fn entries_show_what_was_learned() {
    let fdb = Fdb::new(SEED, Capacity::default());
    let vid = Vid::new(4094).unwrap();
    fdb.learn(vid, mac(1), claimed(3, Claim::Pinned), 5);
    fdb.learn(VLAN, mac(2), dynamic(4), 0);
    let entry = FdbEntry { vid, mac: mac(1), port: port(3), claim: Claim::Pinned, age_secs: 296 };
    assert_eq!(fdb.entries(301), [entry]);
    assert_eq!(fdb.behind(port(3), 301).collect::<Vec<_>>(), [entry]);
    assert_eq!(fdb.behind(port(4), 301).count() + fdb.behind(port(5), 301).count(), 0);
    assert_eq!(fdb.behind(port(4), 300).count(), 1);
}

#[derive(Clone, Debug)]
enum Op {
    Learn { host: u32, port: u16, claim: Claim },
    Advance { secs: u32 },
    Sweep,
    Flush { port: u16 },
    Forget { host: u32, port: u16 },
}

fn op(hosts: u32, ports: u16) -> impl Strategy<Value = Op> {
    let claim = prop_oneof![
        6 => Just(Claim::Dynamic),
        2 => Just(Claim::Uplink),
        1 => Just(Claim::First),
        1 => Just(Claim::Pinned)
    ];
    prop_oneof![
        12 => (0..hosts, 0..ports, claim)
            .prop_map(|(host, port, claim)| Op::Learn { host, port, claim }),
        2 => prop_oneof![0..3u32, 250..310u32].prop_map(|secs| Op::Advance { secs }),
        1 => Just(Op::Sweep),
        1 => (0..ports).prop_map(|port| Op::Flush { port }),
        1 => (0..hosts, 0..ports).prop_map(|(host, port)| Op::Forget { host, port }),
    ]
}

/// The rules without buckets: the table follows them as long as no bucket is full.
#[derive(Default)]
struct Model {
    entries: HashMap<u32, (u16, Claim, u32)>,
}

impl Model {
    fn learn(&mut self, host: u32, learner: Learner, now_secs: u32) -> Learned {
        let number = learner.port.get();
        let behind = self.entries.values().filter(|entry| entry.0 == number).count();
        let learned = match self.entries.get(&host) {
            Some(&(at, claim, _)) if at == number => match claim == learner.claim {
                true => Learned::Known,
                false => Learned::New,
            },
            Some(&(at, claim, _)) if !may_take(claim, learner.claim) => {
                return Learned::Owned { by: port(at) };
            }
            _ if behind >= learner.learn_max as usize => return Learned::PortLimit,
            Some(&(at, ..)) => Learned::Moved { from: port(at) },
            None => Learned::New,
        };
        self.entries.insert(host, (number, learner.claim, now_secs));
        learned
    }

    fn live(claim: Claim, seen_secs: u32, now_secs: u32) -> bool {
        !matches!(claim, Claim::Dynamic | Claim::Uplink) || now_secs - seen_secs <= FDB_AGE_SECS
    }

    fn lookup(&self, host: u32, now_secs: u32) -> Option<PortId> {
        let &(at, claim, seen_secs) = self.entries.get(&host)?;
        Self::live(claim, seen_secs, now_secs).then(|| port(at))
    }
}

proptest! {
    // A case sweeps whole tables many times over; these keep an unoptimized run within seconds.
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn table_agrees_with_a_hash_map_while_no_bucket_is_full(
        ops in prop::collection::vec(op(WAYS as u32, 4), 1..200),
        learn_max in 1..6u32,
        collide: bool,
    ) {
        let hosts = if collide { colliding(WAYS) } else { (0..WAYS as u32).map(mac).collect() };
        let (fdb, mut model, mut now_secs) = (Fdb::new(SEED, Capacity::default()), Model::default(), 0);
        for op in ops {
            match op {
                Op::Learn { host, port, claim } => {
                    let learner = Learner { learn_max, ..claimed(port, claim) };
                    let learned = fdb.learn(VLAN, hosts[host as usize], learner, now_secs);
                    prop_assert_eq!(learned, model.learn(host, learner, now_secs));
                }
                Op::Advance { secs } => now_secs += secs,
                Op::Sweep => {
                    sweep_all(&fdb, now_secs);
                    model.entries.retain(|_, &mut (_, claim, seen)| Model::live(claim, seen, now_secs));
                }
                Op::Flush { port: number } => {
                    fdb.flush_port(port(number));
                    model.entries.retain(|_, entry| entry.0 != number);
                }
                Op::Forget { host, port: number } => {
                    fdb.forget(VLAN, hosts[host as usize], port(number));
                    model.entries.retain(|&key, entry| (key, entry.0) != (host, number));
                }
            }
            for (host, &mac) in (0..).zip(&hosts) {
                prop_assert_eq!(fdb.lookup(VLAN, mac, now_secs), model.lookup(host, now_secs));
            }
            prop_assert_eq!(fdb.len(), model.entries.len());
        }
    }

    #[test]
    fn overfull_bucket_never_lies_and_always_has_the_latest(
        ops in prop::collection::vec(op(40, 6), 1..300),
    ) {
        let hosts = colliding(40);
        let (fdb, mut model, mut now_secs) = (Fdb::new(SEED, Capacity::default()), Model::default(), 0);
        for op in ops {
            match op {
                Op::Learn { host, port: number, claim } => {
                    let mac = hosts[host as usize];
                    let learned = fdb.learn(VLAN, mac, claimed(number, claim), now_secs);
                    if matches!(learned, Learned::Known | Learned::New | Learned::Moved { .. }) {
                        prop_assert_eq!(fdb.lookup(VLAN, mac, now_secs), Some(port(number)));
                        model.entries.insert(host, (number, claim, now_secs));
                    }
                }
                Op::Advance { secs } => now_secs += secs,
                Op::Sweep => { sweep_all(&fdb, now_secs); }
                Op::Flush { port: number } => {
                    fdb.flush_port(port(number));
                    model.entries.retain(|_, entry| entry.0 != number);
                }
                Op::Forget { host, port: number } => {
                    fdb.forget(VLAN, hosts[host as usize], port(number));
                    model.entries.retain(|&key, entry| (key, entry.0) != (host, number));
                }
            }
            for (host, &mac) in (0..).zip(&hosts) {
                let found = fdb.lookup(VLAN, mac, now_secs);
                prop_assert!(found.is_none() || found == model.lookup(host, now_secs));
            }
            prop_assert!(fdb.len() <= WAYS);
            let counted: u32 = (0..6).map(|number| fdb.learned_by(port(number))).sum();
            prop_assert_eq!(fdb.len(), counted as usize);
        }
    }
}

/// Writers keep address `i` behind port `2i` or `2i + 1`, in overfull buckets, so that every slot
/// changes hands all the time; a torn read would pair an address with another's port.
#[test]
fn concurrent_lookup_never_returns_a_port_that_never_held_the_address() {
    const HOSTS: u16 = 48;
    const ROUNDS: u32 = 100_000;
    let fdb = &Fdb::new(SEED, Capacity::default());
    let hosts = &colliding(HOSTS.into());
    let done = &AtomicBool::new(false);
    let found: u64 = thread::scope(|scope| {
        let learners: Vec<_> = (0..3)
            .map(|worker| {
                scope.spawn(move || {
                    let mut generator = SplitMix64::seed_from_u64(worker);
                    for round in 0..ROUNDS {
                        let random = generator.next_u32();
                        let host = (random >> 8) as u16 % HOSTS;
                        let at = host * 2 + (random & 1) as u16;
                        fdb.learn(VLAN, hosts[usize::from(host)], dynamic(at), round / 64);
                        match random >> 24 {
                            0 => drop(fdb.flush_port(port(at))),
                            1..8 => drop(fdb.age(round / 64)),
                            8..16 => drop(fdb.forget(VLAN, hosts[usize::from(host)], port(at))),
                            _ => {}
                        }
                    }
                })
            })
            .collect();
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(move || {
                    let mut found = 0;
                    while !done.load(Ordering::Relaxed) {
                        for (host, &mac) in (0..).zip(hosts) {
                            if let Some(at) = fdb.lookup(VLAN, mac, 0) {
                                assert_eq!(at.get() / 2, host, "{mac} found at port {at}");
                                found += 1;
                            }
                        }
                    }
                    found
                })
            })
            .collect();
        let learned: Vec<_> = learners.into_iter().map(|learner| learner.join()).collect();
        done.store(true, Ordering::Relaxed);
        assert!(learned.iter().all(Result::is_ok), "a learner panicked");
        readers.into_iter().map(|reader| reader.join().unwrap()).sum()
    });
    assert!(found > 0, "no lookup ever hit");
    let entries = fdb.entries(0);
    assert_eq!(entries.len(), fdb.len(), "the counts have drifted from the entries");
    let distinct: HashMap<_, _> = entries.iter().map(|entry| (entry.mac, entry.port)).collect();
    assert_eq!(distinct.len(), entries.len(), "an address is in the table twice");
}

#[test]
fn pages_of_any_length_have_each_address_once_while_others_come_and_go() {
    let fdb = Fdb::new(SEED, Capacity::default());
    // So few that no bucket is full.
    let stays: Vec<_> = (0..300).map(mac).collect();
    for &mac in &stays {
        fdb.learn(VLAN, mac, dynamic(1), 0);
    }
    for most in [1, 7, 4096] {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let page = fdb.page(0, after, most);
            assert!(page.len() <= most);
            let Some(last) = page.last() else { break };
            after = Some((last.vid, last.mac));
            found.extend(page.iter().map(|entry| entry.mac));
            // The place of an entry that is gone is known, too.
            let other = mac(10_000 + found.len() as u32);
            fdb.learn(VLAN, other, dynamic(2), 0);
            if found.len() % 2 == 1 {
                fdb.forget(VLAN, other, port(2));
            }
        }
        for mac in &stays {
            assert_eq!(found.iter().filter(|it| *it == mac).count(), 1, "{mac}, by {most}");
        }
    }
    assert_eq!(fdb.page(FDB_AGE_SECS + 1, None, 9), []);
}

fn behind_uplink(number: u16) -> Learner {
    claimed(number, Claim::Uplink)
}

#[test]
fn a_remote_is_of_its_address_behind_its_port_until_that_moves() {
    let (fdb, blue) = (Fdb::new(SEED, Capacity::default()), Vid::of_network(1).unwrap());
    fdb.set_remote(blue, mac(1), port(7), 5);
    assert_eq!(fdb.remote(blue, mac(1), port(7), 0), None, "the address is not known");
    fdb.learn(blue, mac(1), behind_uplink(7), 0);
    assert_eq!(fdb.remote(blue, mac(1), port(7), 0), None, "nobody has said where");
    fdb.set_remote(blue, mac(1), port(8), 5);
    assert_eq!(fdb.remote(blue, mac(1), port(7), 0), None, "it is not port 8's to say");
    fdb.set_remote(blue, mac(1), port(7), 0);
    assert_eq!(fdb.remote(blue, mac(1), port(7), 0), Some(0));
    fdb.set_remote(blue, mac(1), port(7), 5);
    assert_eq!(fdb.remote(blue, mac(1), port(7), 0), Some(5));
    assert_eq!(fdb.remote(Vid::of_network(2).unwrap(), mac(1), port(7), 0), None);
    assert_eq!(fdb.remote(blue, mac(1), port(7), FDB_AGE_SECS + 1), None, "it was silent for long");
    fdb.learn(blue, mac(1), behind_uplink(8), 0);
    assert_eq!(fdb.remote(blue, mac(1), port(8), 0), None, "where it was is not where it is");
    assert_eq!(fdb.lookup(blue, mac(1), 0), Some(port(8)));
}

#[test]
fn an_entry_that_takes_anothers_place_does_not_take_its_remote() {
    let fdb = Fdb::new(SEED, Capacity::default());
    let macs = colliding(WAYS + 1);
    for (mac, remote) in macs.iter().zip(0..) {
        fdb.learn(VLAN, *mac, behind_uplink(7), remote);
        fdb.set_remote(VLAN, *mac, port(7), remote);
    }
    let known: Vec<_> = macs.iter().filter_map(|mac| fdb.remote(VLAN, *mac, port(7), 0)).collect();
    assert_eq!(known, (1..=WAYS as u32).collect::<Vec<_>>());
}

#[test]
fn nobody_reads_a_remote_of_another_address_while_entries_are_replaced() {
    let fdb = Fdb::new(SEED, Capacity::default());
    let macs = colliding(2 * WAYS);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let _stops = weir_testing::SetAtEnd(&done);
            for round in 0..20_000 {
                let which = round % macs.len();
                fdb.learn(VLAN, macs[which], behind_uplink(7), 0);
                fdb.set_remote(VLAN, macs[which], port(7), which as u32);
            }
        });
        while !done.load(Ordering::Relaxed) {
            for (mac, which) in macs.iter().zip(0..) {
                let remote = fdb.remote(VLAN, *mac, port(7), 0);
                assert!(remote.is_none_or(|remote| remote == which), "{remote:?} is not {which}");
            }
        }
    });
}

#[test]
fn one_network_leaves_the_others_room() {
    let (fdb, blue, red) = (
        Fdb::new(SEED, Capacity::default()),
        Vid::of_network(1).unwrap(),
        Vid::of_network(2).unwrap(),
    );
    let max = fdb.per_network_max();
    for host in 0..2 * max {
        fdb.learn(blue, mac(host), behind_uplink(7), 0);
    }
    // A few buckets were full of this network's addresses alone.
    let learned = fdb.learned_in(blue);
    assert!((max - 64..=max).contains(&learned), "{learned}");
    assert!(fdb.stats().refused_network_limit >= u64::from(max) - 64);
    assert_eq!(fdb.learn(red, mac(1), behind_uplink(7), 0), Learned::New);
    assert_eq!(fdb.learn(VLAN, mac(1), behind_uplink(7), 0), Learned::New, "a VLAN has no limit");
    assert_eq!(fdb.learn(blue, mac(u32::MAX), claimed(3, Claim::First), 0), Learned::New);
    fdb.flush_port(port(7));
    assert_eq!((fdb.learned_in(blue), fdb.learned_in(red), fdb.len()), (0, 0, 1));
}

#[test]
fn a_table_has_room_for_as_many_as_it_was_made_for() {
    for asked in [1, 16_384, 16_385, 100_000, 1 << 20, usize::MAX] {
        let capacity = Capacity::at_least(asked);
        assert!(capacity.get() >= asked.min(1 << 20), "{asked}");
        assert_eq!(Fdb::new(SEED, capacity).capacity(), capacity.get());
    }
    let fdb = Fdb::new(SEED, Capacity::at_least(1 << 18));
    for host in 0..100_000 {
        fdb.learn(VLAN, mac(host), dynamic(7), 0);
    }
    let known = |host: &u32| fdb.lookup(VLAN, mac(*host), 0) == Some(port(7));
    let lost = 100_000 - (0..100_000).filter(known).count();
    // Three in a bucket on average: as a Poisson variable it exceeds eight in 0.4 % of the buckets.
    assert!(lost < 1_000, "{lost} evicted");
    assert_eq!(fdb.len() + lost, 100_000);
    assert_eq!(fdb.entries(0).len(), fdb.len());
    assert_eq!(sweep_all(&fdb, FDB_AGE_SECS + 1), 100_000 - lost);
    assert!(fdb.is_empty());
}

#[test]
fn what_is_told_stays_until_it_is_taken_back_and_frames_change_nothing_of_it() {
    let (fdb, blue, red) = (
        Fdb::new(SEED, Capacity::default()),
        Vid::of_network(1).unwrap(),
        Vid::of_network(2).unwrap(),
    );
    fdb.told_behind(blue, port(7));
    let teller = claimed(7, Claim::Told);
    assert_eq!(fdb.learn(blue, mac(1), behind_uplink(7), 0), Learned::Told);
    assert_eq!(fdb.learn(red, mac(1), behind_uplink(7), 0), Learned::New, "another network");
    assert_eq!(fdb.learn(blue, mac(9), behind_uplink(8), 0), Learned::New, "another port");
    assert_eq!(fdb.tell(blue, mac(1), teller, 5), Learned::New);
    assert_eq!(fdb.learn(blue, mac(1), behind_uplink(7), 1), Learned::Known);
    let late = 2 * FDB_AGE_SECS;
    sweep_all(&fdb, late);
    assert_eq!(fdb.remote(blue, mac(1), port(7), late), Some(5));
    assert_eq!(fdb.tell(blue, mac(1), teller, 6), Learned::Known);
    assert_eq!(fdb.remote(blue, mac(1), port(7), late), Some(6));
    // A frame from outside does not take a guest's address; a control plane's statement does.
    fdb.learn(blue, mac(2), dynamic(1), late);
    assert_eq!(fdb.learn(blue, mac(2), behind_uplink(7), late), Learned::Told);
    assert_eq!(fdb.lookup(blue, mac(2), late), Some(port(1)));
    assert_eq!(fdb.tell(blue, mac(2), teller, 5), Learned::Moved { from: port(1) });
    assert!(fdb.forget(blue, mac(2), port(7)));
    assert_eq!((fdb.lookup(blue, mac(2), late), fdb.learned_in(blue)), (None, 1));
}

#[test]
fn what_is_told_to_be_sticky_yields_to_a_configured_address_only() {
    use Claim::*;
    let blue = Vid::of_network(1).unwrap();
    for (told, by, moves) in [
        (Told, Dynamic, true),
        (Told, Uplink, true),
        (Told, First, false),
        (Told, Pinned, true),
        (ToldSticky, Dynamic, false),
        (ToldSticky, Uplink, false),
        (ToldSticky, First, false),
        (ToldSticky, Pinned, true),
    ] {
        let fdb = Fdb::new(SEED, Capacity::default());
        fdb.told_behind(blue, port(7));
        fdb.tell(blue, mac(1), claimed(7, told), 5);
        let expected = match moves {
            true => Learned::Moved { from: port(7) },
            false => Learned::Owned { by: port(7) },
        };
        assert_eq!(fdb.learn(blue, mac(1), claimed(1, by), 0), expected, "{by:?} of {told:?}");
        assert_eq!(fdb.remote(blue, mac(1), port(7), 0).is_some(), !moves);
    }
}

#[test]
fn the_bell_rings_for_changes_in_networks() {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;
    let (fdb, blue) = (Fdb::new(SEED, Capacity::default()), Vid::of_network(1).unwrap());
    let rung = Arc::new(AtomicU32::new(0));
    let bell = Arc::clone(&rung);
    fdb.on_change(move || {
        bell.fetch_add(1, Ordering::Relaxed);
    });
    let rings = || rung.swap(0, Ordering::Relaxed);
    fdb.learn(VLAN, mac(1), dynamic(1), 0);
    assert_eq!(rings(), 0, "a VLAN");
    fdb.learn(blue, mac(1), dynamic(1), 0);
    assert_eq!(rings(), 1);
    fdb.learn(blue, mac(1), dynamic(1), 1);
    assert_eq!(rings(), 0, "nothing has changed");
    fdb.learn(blue, mac(1), dynamic(2), 1);
    assert_eq!(rings(), 1);
    fdb.flush_port(port(2));
    assert_eq!(rings(), 1);
    fdb.learn(blue, mac(1), dynamic(2), 1);
    fdb.forget(blue, mac(1), port(2));
    fdb.learn(blue, mac(1), dynamic(2), 1);
    assert_eq!(rings(), 3);
    sweep_all(&fdb, 2 + FDB_AGE_SECS);
    assert!(rings() > 0);
}

#[test]
fn moves_between_two_ports_are_counted_each_way_until_they_are_read() {
    let fdb = Fdb::new(SEED, Capacity::default());
    for round in 0..3 {
        fdb.learn(VLAN, mac(1), dynamic(7), round);
        fdb.learn(VLAN, mac(1), dynamic(8), round);
    }
    fdb.learn(VLAN, mac(1), dynamic(8), 9);
    fdb.learn(Vid::new(2).unwrap(), mac(1), dynamic(8), 9);
    let moves = Moves { vid: VLAN, ports: [port(7), port(8)], times: [3, 2] };
    assert_eq!(fdb.take_moves(), [moves]);
    assert_eq!(fdb.take_moves(), []);
    fdb.learn(VLAN, mac(1), dynamic(7), 9);
    assert_eq!(fdb.take_moves(), [Moves { times: [0, 1], ..moves }]);
}

#[test]
fn moves_of_guests_hide_none_between_uplinks() {
    let fdb = Fdb::new(SEED, Capacity::default());
    for host in 0..200 {
        fdb.learn(VLAN, mac(host), dynamic(1), 0);
        fdb.learn(VLAN, mac(host), dynamic(100 + host as u16), 0);
    }
    for number in [1, 2, 1] {
        fdb.learn(VLAN, mac(5000), claimed(number, Claim::Uplink), 0);
    }
    let moves = fdb.take_moves();
    assert_eq!(moves[0], Moves { vid: VLAN, ports: [port(1), port(2)], times: [1, 1] });
    assert!(moves.len() < 100, "{} pairs are kept", moves.len());
}

#[test]
fn an_address_that_is_refused_has_not_moved() {
    let fdb = Fdb::new(SEED, Capacity::default());
    fdb.learn(VLAN, mac(1), claimed(1, Claim::First), 0);
    fdb.learn(VLAN, mac(1), claimed(2, Claim::Uplink), 0);
    fdb.learn(VLAN, mac(2), dynamic(1), 0);
    fdb.learn(VLAN, mac(2), Learner { learn_max: 0, ..dynamic(2) }, 0);
    // The port's check has changed, and the address has not moved.
    fdb.learn(VLAN, mac(2), claimed(1, Claim::Pinned), 0);
    assert_eq!(fdb.take_moves(), []);
}
