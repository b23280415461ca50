//! The presence of FRR, its consequences for withdrawn entries, and when zebra must learn
//! everything again: zebra was restarted, and bgpd was not. Times are passed in.

use weir_limits::{EVPN_BACK_NS, EVPN_HOLD_NS, EVPN_RESYNC_LOOKS, EVPN_WITHDRAWN_NS};

/// The presence of FRR.
///
/// An FRR that is absent for longer than its entries hold has been given up, perhaps for another program. Entries that
/// leave the kernel after that were withdrawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Presence {
    /// FRR was not seen, or was not absent for long: its entries hold.
    #[default]
    Unknown,
    /// FRR has been there since this time (ns).
    Here(u64),
    /// FRR ended at this time (ns).
    Gone(u64),
}

impl Presence {
    /// Notes that FRR is there at this moment (`true`) or not.
    pub fn saw(&mut self, is_here: bool, now_ns: u64) {
        *self = match (*self, is_here) {
            (Self::Unknown, false) => Self::Unknown,
            // Entries that are stale at this time were withdrawn, and are removed without a wait.
            (Self::Unknown, true) => Self::Here(0),
            (Self::Gone(_), true) => Self::Here(now_ns),
            (Self::Here(_), false) => Self::Gone(now_ns),
            (Self::Gone(since_ns), false)
                if now_ns.saturating_sub(since_ns) >= EVPN_HOLD_NS + EVPN_WITHDRAWN_NS =>
            {
                Self::Unknown
            }
            (same, _) => same,
        };
    }

    /// Notes that FRR is about to withdraw everything, and to announce it again within `takes_ns`.
    pub fn says_anew(&mut self, now_ns: u64, takes_ns: u64) {
        *self = Self::Here(now_ns.saturating_add(takes_ns));
    }

    /// True if an entry that is stale since `since_ns` must be removed now.
    pub fn is_due(self, since_ns: u64, now_ns: u64) -> bool {
        let stale_for = now_ns.saturating_sub(since_ns);
        match self {
            Self::Gone(_) => stale_for >= EVPN_HOLD_NS,
            // FRR has not withdrawn the entry: FRR ended.
            Self::Here(back_ns) if since_ns <= back_ns && back_ns > 0 => {
                now_ns >= back_ns.saturating_add(EVPN_BACK_NS) || stale_for >= EVPN_HOLD_NS
            }
            Self::Here(_) | Self::Unknown => stale_for >= EVPN_WITHDRAWN_NS,
        }
    }
}

/// The question on zebra's vty socket, as `vtysh` asks it: the daemons that have connected to it.
pub const QUESTION: &[u8] = b"enable\0show zebra client summary\0";

/// States whether bgpd and zebra agree about the other hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resync {
    /// `Some` if bgpd and zebra disagree: the number of times in a row that bgpd was seen connected since.
    seen: Option<u32>,
}

impl Resync {
    /// Notes whether zebra has ended by now, and whether bgpd is there.
    pub fn saw(&mut self, zebra_ended: bool, bgpd_is_here: bool) {
        match (zebra_ended, bgpd_is_here) {
            // bgpd announces everything when it starts.
            (_, false) => self.seen = None,
            (true, true) => self.seen = Some(0),
            (false, true) => {}
        }
    }

    /// True if VNIs are to be removed and added again once bgpd has connected.
    pub fn is_wanted(self) -> bool {
        self.seen.is_some()
    }

    /// Handles zebra's answer to [`QUESTION`]; `true` if it is time to remove and add VNIs. By then bgpd has asked for
    /// VNIs: it asks as soon as it has connected, and several answers in a row have shown its connection.
    pub fn heard(&mut self, answer: &[u8]) -> bool {
        let Some(seen) = &mut self.seen else { return false };
        let mut lines = answer.split(|byte| matches!(byte, b'\n' | 0));
        let is_connected = lines.any(|line| line.starts_with(b"bgp "));
        *seen = if is_connected { *seen + 1 } else { 0 };
        let is_due = *seen >= EVPN_RESYNC_LOOKS;
        if is_due {
            self.seen = None;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn what_is_withdrawn_goes_soon_while_frr_is_there() {
        let mut presence = Presence::default();
        for seen in [None, Some(false), Some(true)] {
            if let Some(is_here) = seen {
                presence.saw(is_here, 100 * S);
            }
            assert!(!presence.is_due(200 * S, 200 * S + EVPN_WITHDRAWN_NS - 1));
            assert!(presence.is_due(200 * S, 200 * S + EVPN_WITHDRAWN_NS), "{presence:?}");
        }
    }

    #[test]
    fn what_goes_with_frr_stays_until_frr_had_time_to_say_it_anew() {
        let mut presence = Presence::default();
        presence.saw(true, S);
        presence.saw(false, 10 * S);
        assert!(!presence.is_due(10 * S, 10 * S + EVPN_HOLD_NS - 1));
        assert!(presence.is_due(10 * S, 10 * S + EVPN_HOLD_NS));
        presence.saw(true, 20 * S);
        presence.saw(true, 25 * S);
        assert!(!presence.is_due(10 * S, 20 * S + EVPN_BACK_NS - 1));
        assert!(presence.is_due(10 * S, 20 * S + EVPN_BACK_NS));
        assert!(presence.is_due(21 * S, 22 * S), "what FRR withdraws now goes soon");
    }

    #[test]
    fn what_frr_is_about_to_say_anew_stays_until_it_had_time_to() {
        let mut presence = Presence::default();
        presence.saw(true, S);
        presence.says_anew(10 * S, 2 * S);
        presence.saw(true, 11 * S);
        assert!(!presence.is_due(11 * S, 12 * S + EVPN_BACK_NS - 1));
        assert!(presence.is_due(11 * S, 12 * S + EVPN_BACK_NS));
        assert!(presence.is_due(13 * S, 14 * S));
    }

    #[test]
    fn where_frr_does_not_come_back_what_is_withdrawn_goes_soon_again() {
        let mut presence = Presence::default();
        presence.saw(true, S);
        presence.saw(false, 10 * S);
        let end_ns = 10 * S + EVPN_HOLD_NS + EVPN_WITHDRAWN_NS;
        presence.saw(false, end_ns - 1);
        assert_eq!(presence, Presence::Gone(10 * S));
        assert!(presence.is_due(10 * S, end_ns - 1), "nothing that went with FRR is left");
        presence.saw(false, end_ns);
        assert_eq!(presence, Presence::Unknown);
        assert!(presence.is_due(end_ns + S, end_ns + S + EVPN_WITHDRAWN_NS));
        presence.saw(true, end_ns + S);
        assert_eq!(presence, Presence::Here(0));
    }

    const NOBODY: &[u8] =
        b"\0\0\0\0Name      Connect Time\n-----\nvnc   00:00:01\nRoutes column\n\0\0\0\0";
    const BGPD: &[u8] =
        b"\0\0\0\0Name      Connect Time\n-----\nvnc   00:00:01\nbgp   00:00:01\n\0\0\0\0";

    #[test]
    fn zebra_that_was_restarted_alone_is_told_anew_once_bgpd_has_been_with_it_for_a_while() {
        let mut resync = Resync::default();
        assert!(!resync.is_wanted() && !resync.heard(BGPD));
        resync.saw(true, true);
        resync.saw(false, true);
        for answer in [NOBODY, b"", BGPD, NOBODY] {
            assert!(resync.is_wanted() && !resync.heard(answer));
        }
        for _ in 1..EVPN_RESYNC_LOOKS {
            assert!(!resync.heard(BGPD));
        }
        assert!(resync.heard(BGPD));
        assert!(!resync.is_wanted() && !resync.heard(BGPD), "once");
    }

    #[test]
    fn a_bgpd_that_ends_as_well_tells_all_by_itself() {
        let mut resync = Resync::default();
        resync.saw(true, true);
        resync.saw(false, false);
        assert!(!resync.is_wanted());
        resync.saw(true, false);
        assert!(!resync.is_wanted());
    }
}
