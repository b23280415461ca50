//! Split rings that break virtio's rules (virtio 1.2 §2.7).

use crate::{
    attack,
    attack::{Attack, Field},
    front::{
        Strike,
        frame::{BROADCAST, EXPERIMENTAL, Header, frame},
        guest::{EVENT_IDX, GUEST, Guest, INDIRECT_DESC, Plan, USER},
        link::request,
        ring::{DEVICE, INDIRECT, NEXT, RING_LEN, WRITE, descriptor},
    },
};

/// The attacks of the class.
pub const ALL: &[Attack] = &[
    attack!(available_index_that_jumps, "publishes more than the ring holds"),
    attack!(available_index_that_goes_back, "takes back what it has published"),
    attack!(heads_out_of_range, "makes descriptors available that there are not"),
    attack!(next_out_of_range, "continues a chain at a descriptor that there is not"),
    attack!(chains_that_loop, "continues a chain at its own beginning"),
    attack!(
        chains_that_share_their_tails,
        "makes 256 chains available that all end in the same descriptors",
        own_share: "a frame of 64 pieces is one that any guest may send, and is charged to it"
    ),
    attack!(the_same_head_in_the_whole_ring, "makes one descriptor available 256 times"),
    attack!(chains_of_the_whole_ring, "sends chains of 1,024 descriptors"),
    attack!(buffers_of_no_bytes, "sends buffers of length 0"),
    attack!(lengths_beyond_32_bits, "sends chains whose lengths add up beyond 4 GiB"),
    attack!(
        buffers_outside_memory,
        "sends buffers at 0, at the end of all addresses, and beside memory"
    ),
    attack!(buffers_across_the_end_of_memory, "sends buffers that begin in memory and end outside"),
    attack!(
        writable_buffers_to_be_sent,
        "makes buffers to be written available where they are to be read"
    ),
    attack!(readable_buffers_to_receive_into, "the reverse, and has a frame come"),
    attack!(
        receive_buffers_of_one_byte,
        "posts 256 receive buffers of a byte each, and has frames come"
    ),
    attack!(
        receive_buffers_outside_memory,
        "posts receive buffers outside memory, and has a frame come"
    ),
    attack!(
        receive_buffers_over_the_rings,
        "has frames written over the descriptors and indices of its own rings"
    ),
    attack!(receive_buffers_that_are_all_the_same, "posts the same bytes 256 times"),
    attack!(a_table_in_a_table, "has an indirect table name another one"),
    attack!(a_table_in_itself, "has an indirect table name itself"),
    attack!(tables_of_odd_length, "sends indirect tables of 0, 1, 15 and 17 bytes"),
    attack!(tables_outside_memory, "sends indirect tables that are not in memory"),
    attack!(tables_of_64_ki_descriptors, "sends indirect tables of 65,536 descriptors"),
    attack!(tables_that_are_not_the_end, "continues a chain behind an indirect table"),
    attack!(tables_that_were_not_agreed_on, "sends indirect tables without the feature"),
    attack!(a_used_ring_over_everything, "puts the used ring over descriptors and available ring"),
    attack!(all_rings_in_one_place, "puts all rings at the same addresses"),
    attack!(event_indices_by_chance, "writes nonsense as the index at which it wants to be called"),
];

/// weir must stop the port after `wreck` has changed the transmit ring.
pub fn wrecked(field: &Field, plan: Plan, why: &str, wreck: impl FnOnce(&Guest)) -> Strike {
    let guest = field.guest(plan)?;
    wreck(&guest);
    guest.kick(1);
    guest.stopped(why)?;
    field.struck();
    Ok(())
}

fn offer(field: &Field, why: &str, set: impl Fn(&Guest)) -> Strike {
    wrecked(field, Plan::default(), why, |guest| {
        set(guest);
        guest.ring(1).offer(0);
    })
}

fn available_index_that_jumps(field: &Field) -> Strike {
    wrecked(field, Plan::default(), "an index that jumps", |guest| guest.ring(1).set_index(30_000))
}

fn available_index_that_goes_back(field: &Field) -> Strike {
    let guest = field.plain()?;
    guest.send(1, Header::default(), &frame(BROADCAST, Guest::mac(0), EXPERIMENTAL, 60));
    guest.taken(1, "a frame")?;
    guest.ring(1).set_index(0);
    guest.kick(1);
    guest.stopped("an index that went back")
}

fn heads_out_of_range(field: &Field) -> Strike {
    for head in [256, 32_768, u16::MAX] {
        wrecked(field, Plan::default(), "a head out of range", |guest| guest.ring(1).offer(head))?;
    }
    Ok(())
}

fn next_out_of_range(field: &Field) -> Strike {
    for next in [256, u16::MAX] {
        let set = |guest: &Guest| guest.ring(1).set(0, guest.buffer_address(1, 0), 60, NEXT, next);
        offer(field, "a chain that leaves the table", set)?;
    }
    Ok(())
}

fn chains_that_loop(field: &Field) -> Strike {
    offer(field, "a chain that loops", |guest| {
        guest.ring(1).set(0, guest.buffer_address(1, 0), 60, NEXT, 1);
        guest.ring(1).set(1, guest.buffer_address(1, 1), 60, NEXT, 0);
    })
}

fn chains_that_share_their_tails(field: &Field) -> Strike {
    let guest = field.plain()?;
    let ring = guest.ring(1);
    for slot in 0..ring.size {
        let flags = if slot % 64 == 63 { 0 } else { NEXT };
        ring.set(slot, guest.buffer_address(1, slot), 100, flags, (slot + 1) % ring.size);
    }
    for _ in 0..50 {
        guest.pump(1);
        guest.taken(1, "chains that share their tails")?;
    }
    Ok(())
}

fn the_same_head_in_the_whole_ring(field: &Field) -> Strike {
    let guest = field.plain()?;
    let sent = frame(Guest::mac(9), Guest::mac(0), EXPERIMENTAL, 60);
    guest.put(1, 0, Header::default(), &sent);
    (0..256).for_each(|at| guest.ring(1).set_available(at, 0));
    for _ in 0..50 {
        guest.pump(1);
        guest.taken(1, "one head, 256 times")?;
    }
    Ok(())
}

fn chains_of_the_whole_ring(field: &Field) -> Strike {
    let plan = Plan { size: 1024, memory: 16 << 20, ..Plan::default() };
    wrecked(field, plan, "a chain of 1,024 descriptors", |guest| {
        let ring = guest.ring(1);
        for slot in 0..ring.size {
            let flags = if slot + 1 == ring.size { 0 } else { NEXT };
            ring.set(slot, guest.buffer_address(1, slot), 1, flags, slot + 1);
        }
        ring.offer(0);
    })
}

fn buffers_of_no_bytes(field: &Field) -> Strike {
    offer(field, "an empty buffer", |guest| {
        guest.ring(1).set(0, guest.buffer_address(1, 0), 0, 0, 0);
    })
}

fn lengths_beyond_32_bits(field: &Field) -> Strike {
    offer(field, "lengths that add up beyond 32 bits", |guest| {
        for slot in 0..3 {
            let flags = if slot == 2 { 0 } else { NEXT };
            guest.ring(1).set(slot, guest.buffer_address(1, 0), 0x7fff_ffff, flags, slot + 1);
        }
    })
}

fn buffers_outside_memory(field: &Field) -> Strike {
    for address in [0, GUEST - 60, GUEST + (8 << 20), u64::MAX - 30, USER] {
        let set = |guest: &Guest| guest.ring(1).set(0, address, 60, 0, 0);
        offer(field, "a buffer outside memory", set)?;
    }
    Ok(())
}

fn buffers_across_the_end_of_memory(field: &Field) -> Strike {
    offer(field, "a buffer that ends outside memory", |guest| {
        guest.ring(1).set(0, GUEST + guest.memory.len() as u64 - 30, 60, 0, 0);
    })
}

fn writable_buffers_to_be_sent(field: &Field) -> Strike {
    offer(field, "a buffer to be written", |guest| {
        guest.ring(1).set(0, guest.buffer_address(1, 0), 60, WRITE, 0);
    })
}

/// A guest with wrecked receive buffers, and another guest of the attacker that sends to it.
fn received_into(field: &Field, wreck: impl Fn(&Guest, u16)) -> Strike<(Guest, Guest)> {
    let (guest, other) = (field.plain()?, Guest::attach(&field.evil(1), Plan::default())?);
    guest.send(1, Header::default(), &frame(BROADCAST, Guest::mac(0), EXPERIMENTAL, 60));
    guest.taken(1, "a frame")?;
    (0..guest.ring(0).size).for_each(|slot| wreck(&guest, slot));
    other.send(1, Header::default(), &frame(Guest::mac(0), Guest::mac(1), EXPERIMENTAL, 1400));
    Ok((guest, other))
}

fn readable_buffers_to_receive_into(field: &Field) -> Strike {
    let wreck = |guest: &Guest, slot| {
        guest.ring(0).set(slot, guest.buffer_address(0, slot), 4096, 0, 0);
    };
    let (guest, _other) = received_into(field, wreck)?;
    guest.stopped("a receive buffer that may not be written")
}

fn receive_buffers_of_one_byte(field: &Field) -> Strike {
    let wreck = |guest: &Guest, slot| {
        guest.ring(0).set(slot, guest.buffer_address(0, slot), 1, WRITE, 0);
    };
    let (guest, other) = received_into(field, wreck)?;
    let sent = frame(Guest::mac(0), Guest::mac(1), EXPERIMENTAL, 60);
    for _ in 0..20 {
        other.send(1, Header::default(), &sent);
        guest.repost(0);
    }
    other.link.still_served("receive buffers of a byte")
}

fn receive_buffers_outside_memory(field: &Field) -> Strike {
    let wreck = |guest: &Guest, slot| {
        guest.ring(0).set(slot, GUEST + guest.memory.len() as u64 - 1, 4096, WRITE, 0);
    };
    let (guest, _other) = received_into(field, wreck)?;
    guest.stopped("a receive buffer outside memory")
}

fn receive_buffers_over_the_rings(field: &Field) -> Strike {
    let wreck = |guest: &Guest, slot: u16| {
        guest.ring(0).set(slot, GUEST + 64 * u64::from(slot), 4096, WRITE, 0);
    };
    let (guest, other) = received_into(field, wreck)?;
    let sent = frame(Guest::mac(0), Guest::mac(1), EXPERIMENTAL, 60);
    for _ in 0..50 {
        other.send(1, Header::default(), &sent);
        guest.repost(0);
        guest.kick(0);
        guest.kick(1);
    }
    other.link.still_served("frames over rings")
}

fn receive_buffers_that_are_all_the_same(field: &Field) -> Strike {
    let wreck = |guest: &Guest, slot| {
        guest.ring(0).set(slot, guest.buffer_address(0, 0), 4096, WRITE, 0);
    };
    let (_guest, other) = received_into(field, wreck)?;
    let sent = frame(Guest::mac(0), Guest::mac(1), EXPERIMENTAL, 1400);
    (0..100).for_each(|_| other.send(1, Header::default(), &sent));
    other.link.still_served("receive buffers that are all the same")
}

/// Makes an indirect table of `len` bytes at `address` available.
fn table(field: &Field, address: Option<u64>, len: u32, set: impl Fn(&Guest, u64)) -> Strike {
    offer(field, "a bad indirect table", |guest| {
        let own = guest.buffer_address(1, 8);
        set(guest, own);
        guest.ring(1).set(0, address.unwrap_or(own), len, INDIRECT, 0);
    })
}

/// Writes a descriptor at a guest address of the guest's own memory.
fn set_at(guest: &Guest, at: u64, bytes: &[u8]) {
    guest.memory.set((at - GUEST) as usize, bytes);
}

fn a_table_in_a_table(field: &Field) -> Strike {
    table(field, None, 16, |guest, at| {
        set_at(guest, at, &descriptor(at + 64, 16, INDIRECT, 0));
        set_at(guest, at + 64, &descriptor(at + 128, 60, 0, 0));
    })
}

fn a_table_in_itself(field: &Field) -> Strike {
    table(field, None, 16, |guest, at| set_at(guest, at, &descriptor(at, 16, INDIRECT | NEXT, 0)))
}

fn tables_of_odd_length(field: &Field) -> Strike {
    for len in [0, 1, 15, 17] {
        table(field, None, len, |guest, at| set_at(guest, at, &descriptor(at + 64, 60, 0, 0)))?;
    }
    Ok(())
}

fn tables_outside_memory(field: &Field) -> Strike {
    for address in [0, u64::MAX - 15, GUEST + (8 << 20)] {
        table(field, Some(address), 16, |_, _| ())?;
    }
    Ok(())
}

fn tables_of_64_ki_descriptors(field: &Field) -> Strike {
    table(field, None, 16 << 16, |guest, at| {
        for slot in 0..512_u16 {
            let place = at + 16 * u64::from(slot);
            set_at(guest, place, &descriptor(at + (1 << 14), 1, NEXT, slot + 1));
        }
    })
}

fn tables_that_are_not_the_end(field: &Field) -> Strike {
    offer(field, "a chain behind an indirect table", |guest| {
        let at = guest.buffer_address(1, 8);
        set_at(guest, at, &descriptor(at + 64, 60, 0, 0));
        guest.ring(1).set(0, at, 16, INDIRECT | NEXT, 1);
        guest.ring(1).set(1, at + 64, 60, 0, 0);
    })
}

fn tables_that_were_not_agreed_on(field: &Field) -> Strike {
    let plan = Plan { features: Plan::default().features & !INDIRECT_DESC, ..Plan::default() };
    wrecked(field, plan, "an indirect table without the feature", |guest| {
        let at = guest.buffer_address(1, 8);
        set_at(guest, at, &descriptor(at + 64, 72, 0, 0));
        guest.ring(1).set(0, at, 16, INDIRECT, 0);
        guest.ring(1).offer(0);
    })
}

/// A guest whose rings are at `places`, with traffic in them.
fn moved(field: &Field, places: impl Fn(u32) -> [u64; 3]) -> Strike {
    let guest = Guest::negotiate(&field.evil(0), Plan::default())?;
    guest.share()?;
    for ring in 0..guest.rings() {
        let _ = guest.serve_at(ring, places(ring), 0);
    }
    let sent = frame(BROADCAST, Guest::mac(0), EXPERIMENTAL, 60);
    guest.load(1, |_| (Header::default(), sent.clone()));
    for index in 0..300 {
        guest.ring(1).set_index(index);
        guest.kick(0);
        guest.kick(1);
    }
    let _ = guest.link.ask(request::GET_FEATURES);
    Ok(())
}

fn a_used_ring_over_everything(field: &Field) -> Strike {
    for over in [0, 16, DEVICE as u64 / 2, DEVICE as u64 - 4096] {
        moved(field, |ring| {
            let [descriptors, driver, _] = Guest::places(ring);
            [descriptors, driver, descriptors + over]
        })?;
        field.struck();
    }
    Ok(())
}

fn all_rings_in_one_place(field: &Field) -> Strike {
    moved(field, |_| [USER, USER, USER])?;
    moved(field, |_| Guest::places(1))?;
    moved(field, |_| [USER + RING_LEN as u64; 3])
}

fn event_indices_by_chance(field: &Field) -> Strike {
    let plan = Plan { features: Plan::default().features | EVENT_IDX, ..Plan::default() };
    let guest = field.guest(plan)?;
    let sent = frame(BROADCAST, Guest::mac(0), EXPERIMENTAL, 60);
    let mut random = crate::random::Random::new();
    for _ in 0..200 {
        for ring in 0..2 {
            let at = guest.ring(ring).driver_at() + 4 + 2 * usize::from(guest.ring(ring).size);
            guest.memory.set_u16(at, random.next() as u16);
        }
        guest.send(1, Header::default(), &sent);
        guest.repost(0);
        guest.taken(1, "a frame")?;
    }
    Ok(())
}
