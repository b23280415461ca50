//! Decides when zebra must learn everything again: zebra was restarted, and bgpd was not. Pure.
//!
//! bgpd notifies zebra of other hosts when it learns of a VNI, and never twice for the same VNI. So a new zebra knows
//! of no other host. It leaves the former zebra's entries in the kernel, and withdraws none. For both daemons, a VXLAN
//! device that goes down and comes up is a VNI that is removed and added again.

use weir_limits::EVPN_RESYNC_LOOKS;

/// The question on zebra's vty socket, as `vtysh` asks it: the daemons that have connected to it.
pub const QUESTION: &[u8] = b"enable\0show zebra client summary\0";

/// States if bgpd and zebra agree about the other hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resync {
    /// `Some` if bgpd and zebra disagree: the number of times in a row that bgpd was seen connected since.
    seen: Option<u32>,
}

impl Resync {
    /// Notes if zebra has ended by now, and if bgpd is there.
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
    /// VNIs: it asks as soon as it has connected, and it was seen a few times.
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
