//! Packed rings that break virtio's rules (virtio 1.2 §2.8).

use crate::{
    attack,
    attack::{Attack, Field},
    front::{
        Strike,
        guest::{EVENT_IDX, GUEST, Guest, IN_ORDER, Plan},
        link::request,
        ring::{AVAIL, INDIRECT, NEXT, USED, WRITE, descriptor},
    },
    random::Random,
    rings::wrecked,
};

/// The attacks of the class.
pub const ALL: &[Attack] = &[
    attack!(
        packed_ring_full_of_one_chain,
        "makes the whole ring one chain that goes on from its end"
    ),
    attack!(packed_identifiers_out_of_range, "names buffers by identifiers that there are not"),
    attack!(packed_identifiers_that_are_all_the_same, "names all its buffers alike"),
    attack!(packed_flags_by_chance, "writes flags of all descriptors by chance while weir works"),
    attack!(
        packed_available_again_at_once,
        "makes descriptors available again before they were used"
    ),
    attack!(packed_buffers_outside_memory, "sends and receives in buffers outside memory"),
    attack!(
        packed_writable_buffers_to_be_sent,
        "makes buffers to be written available where they are to be read"
    ),
    attack!(
        packed_tables_of_every_kind,
        "sends indirect tables that are odd, nested, continued, outside memory"
    ),
    attack!(packed_wrap_counters_that_lie, "begins with other wrap counters than it says"),
    attack!(
        packed_event_areas_by_chance,
        "writes nonsense where it says when it wants to be called"
    ),
    attack!(packed_in_order_out_of_order, "agrees on order and names buffers in another one"),
];

/// Runs a guest on whose rings `make` acts. weir may or may not stop the port.
fn odd(field: &Field, plan: Plan, mut make: impl FnMut(&Guest)) -> Strike {
    let guest = field.guest(plan)?;
    make(&guest);
    let _ = guest.link.ask(request::GET_FEATURES);
    Ok(())
}

fn packed_ring_full_of_one_chain(field: &Field) -> Strike {
    wrecked(field, Plan::packed(), "a chain that has no end", |guest| {
        for slot in 0..256 {
            guest.ring(1).set_packed(slot, guest.buffer_address(1, slot), 60, 0, AVAIL | NEXT);
        }
    })
}

fn packed_identifiers_out_of_range(field: &Field) -> Strike {
    for id in [256, 32_768, u16::MAX] {
        odd(field, Plan::packed(), |guest| {
            guest.ring(1).set_packed(0, guest.buffer_address(1, 0), 72, id, AVAIL);
            guest.kick(1);
        })?;
        field.struck();
    }
    Ok(())
}

fn packed_identifiers_that_are_all_the_same(field: &Field) -> Strike {
    odd(field, Plan::packed(), |guest| {
        for slot in 0..256 {
            guest.ring(1).set_packed(slot, guest.buffer_address(1, slot), 72, 7, AVAIL);
            guest.kick(1);
        }
    })
}

fn packed_flags_by_chance(field: &Field) -> Strike {
    let mut random = Random::new();
    odd(field, Plan::packed(), |guest| {
        for _ in 0..20_000 {
            let at = guest.ring(1).slot(random.below(256) as u16);
            guest.memory.set_u16(at + 14, random.next() as u16);
            if random.below(64) == 0 {
                guest.kick(1);
            }
        }
    })
}

fn packed_available_again_at_once(field: &Field) -> Strike {
    odd(field, Plan::packed(), |guest| {
        for turn in 0..2000_u16 {
            let flags = if turn / 256 % 2 == 0 { AVAIL } else { USED };
            guest.ring(1).set_packed(turn % 256, guest.buffer_address(1, 0), 72, turn % 256, flags);
            if turn % 32 == 0 {
                guest.kick(1);
            }
        }
    })
}

fn packed_buffers_outside_memory(field: &Field) -> Strike {
    for address in [0, u64::MAX - 60, GUEST + (8 << 20)] {
        wrecked(field, Plan::packed(), "a buffer outside memory", |guest| {
            guest.ring(1).set_packed(0, address, 72, 0, AVAIL);
        })?;
    }
    Ok(())
}

fn packed_writable_buffers_to_be_sent(field: &Field) -> Strike {
    wrecked(field, Plan::packed(), "a buffer to be written", |guest| {
        guest.ring(1).set_packed(0, guest.buffer_address(1, 0), 72, 0, AVAIL | WRITE);
    })
}

fn packed_tables_of_every_kind(field: &Field) -> Strike {
    let cases = [
        (None, 17, 0, 0),
        (None, 0, 0, 0),
        (None, 16, INDIRECT, 0),
        (None, 16, 0, NEXT),
        (Some(0), 16, 0, 0),
        (Some(u64::MAX - 15), 16, 0, 0),
        (None, 16 << 16, 0, 0),
    ];
    for (address, len, inner, outer) in cases {
        wrecked(field, Plan::packed(), "a bad indirect table", |guest| {
            let at = guest.buffer_address(1, 8);
            guest.memory.set((at - GUEST) as usize, &descriptor(at + 64, 60, 0, inner));
            let at = address.unwrap_or(at);
            guest.ring(1).set_packed(0, at, len, 0, AVAIL | INDIRECT | outer);
        })?;
    }
    Ok(())
}

fn packed_wrap_counters_that_lie(field: &Field) -> Strike {
    for base in [0, 0x8000, 0x8000_0000, 0x80ff_8000, 0xffff_ffff, 0x0100_0100] {
        let guest = Guest::negotiate(&field.evil(0), Plan::packed())?;
        guest.share()?;
        let _ = guest.serve_at(1, Guest::places(1), base);
        for slot in 0..256 {
            guest.ring(1).set_packed(slot, guest.buffer_address(1, slot), 72, slot, AVAIL);
        }
        guest.kick(1);
        let _ = guest.link.ask(request::GET_FEATURES);
        field.struck();
    }
    Ok(())
}

fn packed_event_areas_by_chance(field: &Field) -> Strike {
    let plan = Plan { features: Plan::packed().features | EVENT_IDX, ..Plan::packed() };
    let mut random = Random::new();
    odd(field, plan, |guest| {
        for turn in 0..2000_u16 {
            for ring in 0..2 {
                guest.memory.set_u32(guest.ring(ring).driver_at(), random.next() as u32);
            }
            let flags = if turn / 256 % 2 == 0 { AVAIL } else { USED };
            let slot = turn % 256;
            guest.ring(1).set_packed(slot, guest.buffer_address(1, slot), 72, slot, flags);
            guest.kick(1);
        }
    })
}

fn packed_in_order_out_of_order(field: &Field) -> Strike {
    let plan = Plan { features: Plan::packed().features | IN_ORDER, ..Plan::packed() };
    odd(field, plan, |guest| {
        for slot in 0..256_u16 {
            let id = 255 - slot;
            guest.ring(1).set_packed(slot, guest.buffer_address(1, slot), 72, id, AVAIL);
            guest.kick(1);
        }
    })
}
