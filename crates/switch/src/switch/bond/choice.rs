//! Which uplinks of a bond carry frames, and which flows go to which of their queues; pure.

use weir_config::BondMode;
use weir_limits::INDIRECTION_LEN;

/// Uplinks of a bond, by their places in it: bit i is the uplink i.
pub(super) type Places = u8;

/// The uplinks that carry frames, of those that are `up`, without LACP. A single carrier keeps carrying until it is
/// down, because each change loses frames.
pub(super) fn carriers(mode: BondMode, up: Places, before: Places) -> Places {
    match mode {
        // Until LACP has decided, no uplink carries frames.
        BondMode::Lacp => 0,
        BondMode::Balance => up,
        BondMode::ActiveBackup => one(up, before),
    }
}

/// One of `up`, if there is any.
pub(super) fn one(up: Places, before: Places) -> Places {
    if up & before != 0 { lowest(up & before) } else { lowest(up) }
}

fn lowest(places: Places) -> Places {
    places & places.wrapping_neg()
}

/// True if the uplink at `place` is one of `places`.
pub(super) fn has(places: Places, place: u8) -> bool {
    places.checked_shr(place.into()).unwrap_or(0) & 1 != 0
}

/// The queue of each entry of the indirection table. `uplinks` has the uplink of each queue. Each
/// entry has its own queue, and goes to another one only while the uplink of that queue does not
/// carry frames: the flows of the other uplinks stay where they are.
pub(super) fn table(uplinks: &[u8], carriers: Places) -> [u8; INDIRECTION_LEN] {
    let queues = (0..).zip(uplinks);
    let carrying: Vec<u8> =
        queues.filter(|(_, uplink)| has(carriers, **uplink)).map(|(queue, _)| queue).collect();
    let all = uplinks.len().max(1);
    std::array::from_fn(|entry| {
        let own = entry % all;
        match uplinks.get(own) {
            Some(uplink) if !has(carriers, *uplink) && !carrying.is_empty() => {
                carrying[entry / all % carrying.len()]
            }
            _ => own as u8, // a bond has few queues
        }
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_first_that_is_up_goes_on_until_it_is_down() {
        let next = |up, before| carriers(BondMode::ActiveBackup, up, before);
        assert_eq!(next(0b11, 0), 0b01);
        assert_eq!(next(0b10, 0b01), 0b10, "it takes over");
        assert_eq!(next(0b11, 0b10), 0b10, "and keeps on when the first comes back");
        assert_eq!(next(0b01, 0b10), 0b01);
        assert_eq!(next(0, 0b01), 0);
        assert_eq!(next(0b110, 0b110), 0b010, "of a bond that balanced until now");
        assert_eq!(carriers(BondMode::Balance, 0b101, 0b010), 0b101);
    }

    #[test]
    fn flows_are_spread_evenly_and_those_of_a_lost_uplink_over_the_rest() {
        let uplinks = [0, 0, 1, 2];
        let count = |table: [u8; INDIRECTION_LEN]| {
            let mut count = [0; 4];
            table.iter().for_each(|queue| count[usize::from(*queue)] += 1);
            count
        };
        assert_eq!(count(table(&uplinks, 0b111)), [32; 4]);
        let without = count(table(&uplinks, 0b101));
        assert_eq!(without[2], 0);
        assert!(without.iter().all(|n| *n == 0 || (42..=43).contains(n)), "{without:?}");
    }

    proptest! {
        /// The properties hold for any sequence of ups and downs.
        #[test]
        fn one_carries_or_all_that_are_up_and_no_flow_moves_without_need(
            uplinks in proptest::collection::vec(0..4_u8, 2..=8),
            balance: bool,
            ups in proptest::collection::vec(0..16_u8, 1..32),
        ) {
            let mode = if balance { BondMode::Balance } else { BondMode::ActiveBackup };
            let mut before: Option<(Places, [u8; INDIRECTION_LEN])> = None;
            for up in ups {
                let now = carriers(mode, up, before.map_or(0, |it| it.0));
                prop_assert_eq!(now & !up, 0);
                prop_assert_eq!(now == 0, up == 0);
                prop_assert!(balance || now.count_ones() <= 1);
                let entries = table(&uplinks, now);
                for (entry, queue) in entries.iter().enumerate() {
                    let uplink = uplinks[usize::from(*queue)];
                    let any = uplinks.iter().any(|uplink| has(now, *uplink));
                    prop_assert!(has(now, uplink) || !any);
                    // An entry moves only if it loses its uplink, or gets its own queue back.
                    if let Some((carried, old)) = before
                        && old[entry] != *queue
                    {
                        let from = uplinks[usize::from(old[entry])];
                        let own = uplinks[entry % uplinks.len()];
                        let is_back = !has(carried, own) && has(now, own);
                        let had_no_own = !has(carried, own) && !has(now, own);
                        prop_assert!(!has(now, from) || is_back || had_no_own);
                    }
                }
                before = Some((now, entries));
            }
        }
    }
}
