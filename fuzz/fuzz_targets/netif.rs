//! The rings of a hostile Xen guest. The input is the content of a transmit, a receive and a control ring, and a
//! script of weir's actions meanwhile. Every request must end in bytes inside one page, in one answer, or in a named
//! error.
#![cfg_attr(fuzzing, no_main)]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use weir_guestmem::{GuestMemory, RegionSpec};
use weir_netif::{CtrlBack, HashState, RxBack, RxMeta, Segment, Status, Step, Taken, TxBack};
use weir_wire::Layers;

const PAGE: usize = 4096;
const MEMORY: u64 = 3 * PAGE as u64;
const QUEUES: usize = 4;

fn inside(segment: &Segment) {
    assert!(usize::from(segment.offset) + usize::from(segment.len) <= PAGE);
}

weir_fuzz::target!(|input: &[u8]| {
    let (script, image) = input.split_at(input.len().min(16));
    let file = File::from(memfd_create("fuzz", MemfdFlags::CLOEXEC).expect("a memfd"));
    ftruncate(&file, MEMORY).expect("ftruncate");
    let image = &image[..image.len().min(MEMORY as usize)];
    // The three rings share the input, so that a short input reaches each.
    for (nth, part) in image.chunks(image.len().div_ceil(3).clamp(1, PAGE)).take(3).enumerate() {
        file.write_all_at(part, (nth * PAGE) as u64).expect("the memory image");
    }
    // Response producers are those of a new ring.
    for ring in 0..3 {
        file.write_all_at(&[0; 4], ring * PAGE as u64 + 8).expect("an index");
    }
    let spec = RegionSpec { guest_address: 0, size: MEMORY, user_address: 0, mmap_offset: 0 };
    let memory = Arc::new(GuestMemory::map(&[(spec, file)]).expect("one good region"));
    let page = |nth: usize| memory.window((nth * PAGE) as u64, PAGE).expect("a page");

    if let Ok(mut tx) = TxBack::attach(page(0)) {
        for step in script {
            if tx.ring().refill().is_err() {
                break;
            }
            let (mut slots, mut packets) = (Vec::new(), Vec::new());
            let mut failed = false;
            for _ in 0..=*step {
                match tx.take(&mut slots) {
                    Ok(Some(Taken::Packet(packet))) => packets.push(packet),
                    Ok(Some(Taken::Multicast(multicast))) => {
                        tx.complete(&multicast.packet, &slots, Status::Okay);
                    }
                    Ok(Some(Taken::Refused(packet, _))) => {
                        tx.complete(&packet, &slots, Status::Error);
                    }
                    Ok(None) => break,
                    Err(_) => {
                        failed = true;
                        break;
                    }
                }
            }
            for packet in packets.iter().rev() {
                let (from, count) = packet.slots;
                let parts = &slots[from..from + count];
                parts.iter().for_each(|slot| inside(&slot.segment));
                let sum: u32 = parts.iter().map(|slot| u32::from(slot.segment.len)).sum();
                assert_eq!(sum, packet.len);
                if let Ok(offload) = packet.offload(image) {
                    let _ = RxMeta::new(&offload, image);
                }
                tx.complete(packet, &slots, Status::Okay);
            }
            tx.ring().push();
            tx.ring().needs_notify();
            if failed || tx.ring().final_check().is_err() {
                break;
            }
            assert_eq!(tx.ring().unanswered(), 0);
        }
    }

    if let Ok(mut rx) = RxBack::attach(page(1)) {
        for step in script {
            if rx.ring().refill().is_err() {
                break;
            }
            let mut segments = Vec::new();
            let len = 14 + 257 * u32::from(*step);
            if rx.place(len, &RxMeta::default(), &mut segments) {
                segments.iter().for_each(|rx| inside(&rx.segment));
                let sum: u32 = segments.iter().map(|rx| u32::from(rx.segment.len)).sum();
                assert_eq!(sum, len);
                rx.copy_failed(&segments[0]);
            }
            if step & 1 != 0 {
                rx.ring().push();
            }
        }
    }

    if let Ok(mut ctrl) = CtrlBack::attach(page(2)) {
        let mut state = HashState::new(QUEUES);
        while let Ok(Some(request)) = ctrl.take() {
            let answer = match state.apply(request) {
                Step::Answer(answer) => answer,
                Step::Copy(pending) => {
                    inside(&pending.segment);
                    state.copied(pending, image.get(..pending.segment.len.into()))
                }
            };
            ctrl.answer(answer);
            if let Ok(layers) = Layers::parse(image)
                && let Some(hash) = state.hash(&layers)
            {
                assert!(state.queue(hash) < QUEUES);
            }
        }
    }
});
