//! The place of a mapping, and marks of a dirty log, under the model checker `loom`, which tries every interleaving of
//! the threads, and every stale value that the memory model permits: `docs/design/proofs.md#0008`.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p weir-guestmem --test model --profile model --target-dir target/loom
//! ```
#![cfg(loom)]

use std::fs::File;
use std::sync::atomic::Ordering;

use loom::sync::Arc;
use loom::thread;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use weir_guestmem::model::Place;
use weir_guestmem::{GuestMemory, RegionSpec, Weakness, Window, fence, weaken};

/// A mapping is replaced by another one at its place while the handler looks for a third.
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

/// Returns two shared words.
fn window() -> Arc<Window> {
    let file = File::from(memfd_create("page and log", MemfdFlags::CLOEXEC).unwrap());
    ftruncate(&file, 4).unwrap();
    let spec = RegionSpec { guest_address: 0, size: 4, user_address: 0, mmap_offset: 0 };
    let memory = std::sync::Arc::new(GuestMemory::map(&[(spec, file)]).unwrap());
    Arc::new(memory.window(0, 4).unwrap())
}

/// A page is written twice while another thread takes its bit and copies it: the last copy has the
/// last write.
fn a_page_is_written_while_it_is_copied(weakness: Weakness) {
    loom::model(move || {
        let words = window();
        let (page, log) = (0, 2);
        let writer = {
            let words = words.clone();
            thread::spawn(move || {
                weaken(weakness);
                for value in 1..=2 {
                    words.store(page, value);
                    fence(Ordering::SeqCst);
                    words.set_bits(log, 1);
                }
            })
        };
        let mut copy = 0;
        let mut take = || {
            if words.take_bits(log) != 0 {
                fence(Ordering::SeqCst);
                copy = words.load(page);
            }
        };
        take();
        writer.join().unwrap();
        take();
        assert_eq!(copy, 2, "a write was missed");
    });
}

#[test]
fn no_write_is_missed_by_who_takes_its_bit() {
    a_page_is_written_while_it_is_copied(Weakness::None);
}

#[test]
#[should_panic(expected = "a write was missed")]
fn without_a_fence_a_bit_that_is_set_already_misses_a_write() {
    a_page_is_written_while_it_is_copied(Weakness::NoFence);
}
