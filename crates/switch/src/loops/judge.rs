//! The rules for loops: when one is suspected, which port is blocked, and when it is tried again. Pure.

use weir_fabric::PortId;
use weir_limits::{LOOP_MOVES_MIN, LOOP_MOVES_PER_S, LOOP_RETRY_NS_MAX};

/// The facts about a port that decide which of two ports is blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Party {
    pub(super) id: PortId,
    /// A number that grows with each added port, and so is unique: a port with a greater number is younger.
    pub(super) serial: u64,
    /// True for an uplink, false for a guest's port.
    pub(super) uplink: bool,
}

/// True if addresses that moved between two ports this often, each way, within `elapsed_ns` indicate a loop. A
/// station that moves does so once, or a few times a second.
pub(super) fn is_suspicious(times: [u64; 2], elapsed_ns: u64) -> bool {
    const NS_PER_S: u128 = 1_000_000_000;
    let at_rate = u128::from(elapsed_ns) * u128::from(LOOP_MOVES_PER_S) / NS_PER_S;
    times.iter().all(|&times| times >= LOOP_MOVES_MIN && u128::from(times) >= at_rate)
}

/// The port to block, of two that are joined outside: a guest's port rather than an uplink, and the younger of two
/// ports of the same kind. No guest can cause an uplink to be blocked.
pub(super) fn culprit(a: Party, b: Party) -> Party {
    match (a.uplink, b.uplink) {
        (true, false) => b,
        (false, true) => a,
        _ if a.serial > b.serial => a,
        _ => b,
    }
}

/// The time until the next try (ns), after a wait of `before_ns`, for a port that stays blocked or is blocked again
/// soon.
pub(super) fn retry_after_ns(before_ns: u64) -> u64 {
    before_ns.saturating_mul(2).min(LOOP_RETRY_NS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK_NS: u64 = 100_000_000;

    fn party(number: u16, serial: u64, uplink: bool) -> Party {
        Party { id: PortId::new(number).unwrap(), serial, uplink }
    }

    #[test]
    fn a_loop_moves_addresses_back_and_forth_and_a_station_that_moves_does_not() {
        assert!(is_suspicious([1500, 1499], LOOK_NS), "31,000 frames a second");
        assert!(is_suspicious([2, 2], LOOK_NS), "one frame that takes 25 ms each way");
        assert!(!is_suspicious([1, 0], LOOK_NS), "a migration");
        assert!(!is_suspicious([1, 1], LOOK_NS), "a station that roams");
        assert!(
            !is_suspicious([200, 0], LOOK_NS),
            "all stations of a switch whose cable was moved"
        );
        assert!(
            !is_suspicious([8, 8], 10 * LOOK_NS),
            "sixteen times in a second that nobody looked"
        );
        assert!(is_suspicious([600, 600], 10 * LOOK_NS), "a look that was late");
        assert!(is_suspicious([u64::MAX; 2], u64::MAX));
    }

    #[test]
    fn a_guest_is_blocked_before_an_uplink_and_the_younger_of_two_of_a_kind() {
        let (first, second) = (party(9, 1, true), party(2, 2, true));
        let (web, db) = (party(5, 0, false), party(3, 7, false));
        for (a, b, blocked) in
            [(first, second, second), (first, web, web), (second, web, web), (web, db, db)]
        {
            assert_eq!(culprit(a, b), blocked);
            assert_eq!(culprit(b, a), blocked, "in either order");
        }
        assert_eq!(culprit(web, web), web, "one that sends back what it gets");
    }

    #[test]
    fn each_try_comes_later_up_to_ten_minutes() {
        let mut waits = vec![weir_limits::LOOP_RETRY_NS];
        for _ in 0..7 {
            waits.push(retry_after_ns(waits[waits.len() - 1]));
        }
        let seconds: Vec<_> = waits.iter().map(|ns| ns / 1_000_000_000).collect();
        assert_eq!(seconds, [10, 20, 40, 80, 160, 320, 600, 600]);
    }
}
