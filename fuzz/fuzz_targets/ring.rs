//! The ring of a hostile guest. The input is the guest's memory, and a script of the device's actions meanwhile.
//! Every chain must end in frames inside the memory or in a named error.
#![cfg_attr(fuzzing, no_main)]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use weir_engine::burst::{Pieces, Scratch, TakenChain};
use weir_guestmem::{GuestMemory, RegionSpec};
use weir_ring::{Addresses, DeviceRing, Direction, RingConfig, SetupError, Token};

const MEMORY: u64 = 64 << 10;
/// Ring size, and the size of a packed ring that is no power of two.
const SIZE: u16 = 16;
const ODD_SIZE: u16 = 11;
const AT: Addresses = Addresses { descriptor: 0, driver: 0x400, device: 0x800 };

weir_fuzz::target!(|input: &[u8]| {
    let [options, base, script @ ..] = input else { return };
    let (script, image) = script.split_at(script.len().min(16));
    let file = File::from(memfd_create("fuzz", MemfdFlags::CLOEXEC).expect("a memfd"));
    ftruncate(&file, MEMORY).expect("ftruncate");
    let image = &image[..image.len().min(MEMORY as usize)];
    file.write_all_at(image, 0).expect("the memory image");
    let spec = RegionSpec { guest_address: 0, size: MEMORY, user_address: 0, mmap_offset: 0 };
    let memory = Arc::new(GuestMemory::map(&[(spec, file)]).expect("one good region"));
    let bit = |n: u8| options & 1 << n != 0;
    let config = RingConfig {
        size: if bit(3) && bit(5) { ODD_SIZE } else { SIZE },
        event_idx: bit(0),
        indirect: bit(1),
        packed: bit(3),
        in_order: bit(4),
    };
    // Both wrap counters are those of a new ring, so that the image's first lap is available.
    let base = u32::from(*base) % u32::from(config.size);
    let base = if config.packed { base | base << 16 | config.fresh_base() } else { base };
    // The image may contradict the base of a packed ring.
    let device = DeviceRing::new(&memory, config, &AT, base);
    let mut device = match device {
        Err(SetupError::UsedAlready { .. }) => return,
        device => device.expect("a good ring"),
    };

    let mut scratch = Scratch::default();
    let mut parked = Vec::new();
    for step in script {
        let mut burst = scratch.lend();
        if device.refill().is_err() {
            return;
        }
        for _ in 0..=step % 20 {
            if burst.is_full() {
                break;
            }
            let first = burst.pieces.len() as u32;
            let direction = if bit(2) { Direction::Writable } else { Direction::Readable };
            match device.take(direction, &memory, &mut burst.pieces) {
                Ok(Some(chain)) => {
                    // As in a transmit queue, the header is read and checked.
                    let pieces = Pieces::Among(first, burst.pieces.len() as u32);
                    let chain = TakenChain { token: chain.token.into(), len: chain.len, pieces };
                    let _ = burst.add(chain, 12, 0);
                    // Some chains wait, like frames for a full receiver.
                    if step & 0x80 != 0 && !bit(2) {
                        device.keep(chain.token.into());
                        parked.push(chain.token);
                    } else {
                        device.complete(chain.token.into(), (step & 1).into());
                    }
                }
                Ok(None) => break,
                Err(_) => return,
            }
        }
        let mut sink = [0; 256];
        for slice in burst.pieces.iter() {
            slice.read(&mut sink);
        }
        if step & 0x40 != 0 {
            for token in parked.drain(..).map(Token::from) {
                let _ = device.retake_readable(token, &memory, &mut burst.pieces);
                device.complete(token, 0);
            }
        }
        device.publish();
        device.needs_call();
        if device.enable_kicks().is_err() {
            return;
        }
        device.suppress_kicks();
    }
});
