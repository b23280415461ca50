//! The place of a mapping under the model checker `loom`, which tries every interleaving of the mapping and the
//! reading thread, and every stale value that the memory model permits: `docs/design/0008-model-checks.md`.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p weir-guestmem --test model --profile model --target-dir target/loom
//! ```
#![cfg(loom)]

use loom::sync::Arc;
use loom::thread;
use weir_guestmem::model::Place;
use weir_guestmem::{Weakness, weaken};

/// One mapping goes and another comes to its place while the handler looks for a third.
fn a_place_is_reused(weakness: Weakness) {
    loom::model(move || {
        let place = Arc::new(Place::default());
        place.set(0x1000, 0x1000);
        let owner = {
            let place = Arc::clone(&place);
            thread::spawn(move || {
                weaken(weakness);
                place.set(0, 0);
                place.set(0x9000, 0x100);
            })
        };
        if let Some(range) = place.get() {
            assert!(matches!(range, (0x1000, 0x1000) | (0, 0) | (0x9000, 0x100)), "{range:x?}");
        }
        owner.join().unwrap();
        assert_eq!(place.get(), Some((0x9000, 0x100)));
    });
}

#[test]
fn the_handler_sees_a_base_and_its_own_length() {
    a_place_is_reused(Weakness::None);
}

#[test]
#[should_panic(expected = "(")]
fn without_a_fence_it_sees_one_mapping_with_the_length_of_another() {
    a_place_is_reused(Weakness::NoFence);
}
