//! Memory that is rewritten while weir reads it: a second read would differ from the checked one.

use std::time::Duration;

use crate::{
    attack,
    attack::{Attack, Field},
    front::{
        Strike,
        frame::{BROADCAST, EXPERIMENTAL, Header, frame, tcp},
        guest::{GUEST, Guest, PACKED, Plan},
        link::request,
        ring::{AVAIL, INDIRECT, USED, WRITE, descriptor},
    },
    random::Random,
};

/// The attacks of the class.
pub const ALL: &[Attack] = &[
    attack!(addresses_rewritten, "moves buffers in and out of memory while they are sent"),
    attack!(lengths_rewritten, "changes lengths from 72 to 4 GiB and back while frames are sent"),
    attack!(
        flags_rewritten,
        "makes chains longer, writable, indirect and short again while they are walked"
    ),
    attack!(heads_rewritten, "changes the available ring while it is read"),
    attack!(indices_rewritten, "changes the available index by one and by thousands"),
    attack!(tables_rewritten, "changes an indirect table while it is walked"),
    attack!(headers_rewritten, "changes virtio headers while they are checked"),
    attack!(
        frames_rewritten,
        "changes addresses, tags and lengths in frames while they are switched"
    ),
    attack!(
        receive_descriptors_rewritten,
        "changes receive buffers while frames are copied into them"
    ),
    attack!(
        packed_descriptors_rewritten,
        "changes descriptors of a packed ring while they are read"
    ),
    attack!(used_elements_rewritten, "writes into the used ring and its index, which are weir's"),
];

/// Writer threads beside the sending thread.
const WRITERS: usize = 2;

/// Sends while `rewrite` writes. When weir stops the port, a new guest starts.
fn race(field: &Field, plan: Plan, rewrite: impl Fn(&Guest, &mut Random) + Sync) -> Strike {
    let guest = field.guest(plan)?;
    let over = std::sync::atomic::AtomicBool::new(false);
    let over = &over;
    std::thread::scope(|scope| {
        for _ in 0..WRITERS {
            scope.spawn(|| {
                let mut random = Random::new();
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    (0..100).for_each(|_| rewrite(&guest, &mut random));
                    // The measuring machine has two CPUs only.
                    std::thread::sleep(Duration::from_micros(20));
                }
            });
        }
        for _ in 0..200 {
            send_all(&guest, plan);
            std::thread::sleep(Duration::from_micros(100));
            field.struck();
        }
        over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    let _ = guest.link.ask(request::GET_FEATURES);
    Ok(())
}

/// Fills a ring with honest frames, and makes it available.
fn send_all(guest: &Guest, plan: Plan) {
    let sent = frame(BROADCAST, Guest::mac(0), EXPERIMENTAL, 60);
    let ring = guest.ring(1);
    if plan.features & PACKED == 0 {
        guest.load(1, |_| (Header::default(), sent.clone()));
        guest.repost(0);
    } else {
        let flags = if Random::new().below(2) == 0 { AVAIL } else { USED };
        for slot in 0..ring.size {
            ring.set_packed(slot, guest.buffer_address(1, slot), 72, slot, flags);
        }
    }
    guest.pump(1);
    guest.kick(1);
    guest.kick(0);
}

fn slot(guest: &Guest, ring: u32, random: &mut Random) -> usize {
    guest.ring(ring).slot(random.below(guest.ring(ring).size.into()) as u16)
}

fn addresses_rewritten(field: &Field) -> Strike {
    race(field, Plan::default(), |guest, random| {
        let bad = [0, u64::MAX - 10, GUEST + guest.memory.len() as u64 - 1, GUEST];
        guest.memory.set_u64(slot(guest, 1, random), bad[random.below(4) as usize]);
    })
}

fn lengths_rewritten(field: &Field) -> Strike {
    race(field, Plan::default(), |guest, random| {
        let bad = [0, 1, 11, 72, 70_000, u32::MAX];
        guest.memory.set_u32(slot(guest, 1, random) + 8, bad[random.below(6) as usize]);
    })
}

fn flags_rewritten(field: &Field) -> Strike {
    race(field, Plan::default(), |guest, random| {
        let at = slot(guest, 1, random);
        guest.memory.set_u16(at + 12, random.below(8) as u16);
        guest.memory.set_u16(at + 14, random.below(300) as u16);
    })
}

fn heads_rewritten(field: &Field) -> Strike {
    race(field, Plan::default(), |guest, random| {
        guest.ring(1).set_available(random.next() as u16, random.below(258) as u16);
    })
}

fn indices_rewritten(field: &Field) -> Strike {
    race(field, Plan::default(), |guest, random| {
        let ring = guest.ring(1);
        let by = [1, 2, 64, 30_000][random.below(4) as usize];
        ring.set_index(ring.used().wrapping_add(by));
    })
}

fn tables_rewritten(field: &Field) -> Strike {
    race(field, Plan::default(), |guest, random| {
        let table = guest.buffer(1, 300);
        let at = slot(guest, 1, random);
        guest.memory.set_u64(at, GUEST + table as u64);
        guest.memory.set_u32(at + 8, 64);
        guest.memory.set_u16(at + 12, INDIRECT);
        let flags = [0, 1, WRITE, INDIRECT][random.below(4) as usize];
        let entry = descriptor(guest.buffer_address(1, 0), random.below(100) as u32, flags, 1);
        guest.memory.set(table + 16 * random.below(4) as usize, &entry);
    })
}

fn headers_rewritten(field: &Field) -> Strike {
    race(field, Plan::default(), |guest, random| {
        let header = Header {
            flags: random.below(4) as u8,
            gso: [0, 1, 3, 4, 5, 0x81][random.below(6) as usize],
            header_len: random.below(128) as u16,
            gso_size: random.below(1500) as u16,
            csum_start: random.below(80) as u16,
            csum_offset: random.below(80) as u16,
        };
        guest.memory.set(guest.buffer(1, random.below(256) as u16), &header.bytes());
    })
}

fn frames_rewritten(field: &Field) -> Strike {
    race(field, Plan::default(), |guest, random| {
        let at = guest.buffer(1, random.below(256) as u16) + 12;
        let tag = [0x8100, 0x88a8, 0x0800, 0x86dd][random.below(4) as usize];
        let other = match random.below(3) {
            0 => frame([random.next() as u8; 6], [random.next() as u8; 6], tag, 20),
            1 => tcp(BROADCAST, Guest::mac(random.below(4) as u8), 60),
            _ => frame(BROADCAST, Guest::mac(0), EXPERIMENTAL, 20),
        };
        guest.memory.set(at, &other);
    })
}

fn receive_descriptors_rewritten(field: &Field) -> Strike {
    // Another guest of the attacker answers its broadcasts.
    let other = Guest::attach(&field.evil(1), Plan::default())?;
    race(field, Plan::default(), |guest, random| {
        let at = slot(guest, 0, random);
        match random.below(4) {
            0 => guest.memory.set_u64(at, [GUEST, 0, u64::MAX][random.below(3) as usize]),
            1 => guest.memory.set_u32(at + 8, [0, 1, 12, u32::MAX][random.below(4) as usize]),
            2 => guest.memory.set_u16(at + 12, random.below(8) as u16),
            _ => guest.ring(0).set(random.below(256) as u16, GUEST + (1 << 20), 4096, WRITE, 0),
        }
        if random.below(50) == 0 {
            other.send(
                1,
                Header::default(),
                &frame(Guest::mac(0), Guest::mac(1), EXPERIMENTAL, 400),
            );
        }
    })
}

fn packed_descriptors_rewritten(field: &Field) -> Strike {
    let plan = Plan::packed();
    race(field, plan, |guest, random| {
        let at = slot(guest, 1, random);
        match random.below(4) {
            0 => guest.memory.set_u64(at, [GUEST, 0, u64::MAX][random.below(3) as usize]),
            1 => guest.memory.set_u32(at + 8, [0, 1, 72, u32::MAX][random.below(4) as usize]),
            2 => guest.memory.set_u16(at + 12, random.next() as u16),
            _ => guest.memory.set_u16(at + 14, random.next() as u16),
        }
    })
}

fn used_elements_rewritten(field: &Field) -> Strike {
    race(field, Plan::default(), |guest, random| {
        for ring in 0..2 {
            let at = guest.ring(ring).device_at();
            guest.memory.set_u16(at + 2, random.next() as u16);
            guest.memory.set_u64((at + 8) & !7, random.next());
        }
    })
}
