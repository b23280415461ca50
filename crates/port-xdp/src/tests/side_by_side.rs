//! Several workers that take from the one queue of an interface.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// Frames under way at a time: fewer than any queue on their way can hold.
const WINDOW: u32 = 48;

#[test]
fn root_an_interface_with_one_queue_is_helped_and_keeps_its_order() {
    let engine = Engine::start(2).unwrap();
    let side = || (plug(&engine), Host::open());
    let (Some((_here, from)), Some((there, to))) =
        (in_new_network(1, side), in_new_network(1, side))
    else {
        return;
    };
    let from_id = PortId::new(0).unwrap();
    let bursts = || engine.workers().iter().map(|worker| worker.bursts).min().unwrap();
    let before = bursts();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                assert!(engine.set_helper(from_id, 0, [Some(1), Some(0), None, Some(1)][n % 4]));
                engine.assign(from_id, 0, n / 8 % 2).unwrap();
                std::thread::sleep(Duration::from_micros(n as u64 % 7 * 50));
            }
        });
        let _stops = weir_testing::SetAtEnd(&stop);
        let mut number = 0;
        // The frames are so many that each chunk is used again and again.
        while number < 8 * XDP_FRAMES || (number < 80 * XDP_FRAMES && bursts() < before + 20) {
            let window: Vec<_> = (number..number + WINDOW).map(|it| frame(it, 1000)).collect();
            for frame in &window {
                from.send(frame);
            }
            for frame in &window {
                assert_eq!(to.receive_soon(), *frame);
            }
            number += WINDOW;
        }
    });
    assert!(bursts() >= before + 20, "both workers have their part");
    assert_eq!(there.counters.drops().collect::<Vec<_>>(), []);
}
