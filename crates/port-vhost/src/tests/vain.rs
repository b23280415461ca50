//! Kicks that bring nothing.

use super::*;
use weir_limits::VAIN_KICKS_MAX;

#[test]
fn a_guest_that_kicks_in_vain_is_ignored_for_a_while_and_then_served() {
    for format in formats() {
        let switch = Switch::new();
        let (mut a, mut b) = (switch.guest(1, format), switch.guest(2, format));
        introduce(&mut a, &mut b);
        let pauses = || b.port.counters().kick_pauses.get();
        for ring in [0, 1] {
            let before = pauses();
            eventually("its kicks are ignored", || {
                b.kick(ring);
                pauses() > before
            });
            // Each pause ends with one poll of the rings, which is in vain, too.
            let kicks = b.port.counters().rx[0].kicks.get() + b.port.counters().tx[0].kicks.get();
            let paused = pauses();
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(50) {
                b.kick(ring);
            }
            let seen =
                b.port.counters().rx[0].kicks.get() + b.port.counters().tx[0].kicks.get() - kicks;
            let looks = pauses() - paused + 1;
            assert!(seen <= looks + u64::from(VAIN_KICKS_MAX), "{seen} kicks, {looks} pauses");
        }
        let sent = frame(&b, Some(&a), 60, 7);
        a.post(1);
        b.send(&sent);
        assert_eq!(a.wait_received().1, sent);
        let sent = frame(&a, Some(&b), 60, 8);
        b.post(1);
        a.send(&sent);
        assert_eq!(b.wait_received().1, sent);
        assert_eq!(a.port.counters().kick_pauses.get(), 0, "it kicks for what it sends");
    }
}

/// The drivers of OVMF and SLOF poll, and kick their receive ring 900 times a second for nothing.
#[test]
fn firmware_that_kicks_its_receive_ring_for_nothing_is_ignored_for_a_while_and_gets_all_frames() {
    for format in formats() {
        let switch = Switch::new();
        let (mut a, mut b) = (switch.guest(1, format), switch.guest(2, format));
        introduce(&mut a, &mut b);
        let pauses = || b.port.counters().kick_pauses.get();
        assert_eq!(pauses(), 0);
        for kick in 0..4 * u64::from(VAIN_KICKS_MAX) {
            std::thread::sleep(Duration::from_micros(1100));
            b.kick(0);
            if kick % 16 == 0 {
                let sent = frame(&a, Some(&b), 60, kick as u8);
                a.send(&sent);
                assert_eq!(b.wait_received().1, sent, "{format:#x}");
                b.post(1);
            }
        }
        assert!(b.port.counters().kick_pauses.get() > 0, "{format:#x}");
        assert_eq!((lost([&a.port, &b.port]), b.port.info().stop_reason), (0, None));
    }
}
