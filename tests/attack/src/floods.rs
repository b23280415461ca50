//! Too many of the permitted operations.

use std::{os::fd::AsFd, time::Duration};

use crate::{
    attack,
    attack::{Attack, Field},
    front::{
        Strike,
        frame::{EXPERIMENTAL, Header, Mac, frame, tcp},
        guest::{Guest, Plan},
        link::{Link, VERSION, message, readable, request},
        ring::{AVAIL, USED},
    },
    measure::switch::EVILS,
};

/// The attacks of the class.
pub const ALL: &[Attack] = &[
    attack!(set_owner_without_pause, "sends SET_OWNER as fast as the socket takes it"),
    attack!(questions_without_pause, "asks for features and reads each answer, without a pause"),
    attack!(set_owner_by_20_front_ends, "the same flood by 20 front ends at once"),
    attack!(kicks_without_pause, "kicks a ring in which nothing is"),
    attack!(kicks_of_sixteen_rings, "kicks 16 rings in which nothing is, four threads at once"),
    attack!(connects_without_pause, "connects and hangs up as fast as it can"),
    attack!(connects_of_20_sockets, "the same at 20 sockets at once"),
    attack!(
        connections_that_wait,
        "opens as many connections to one socket as its queue takes, and is silent"
    ),
    attack!(sessions_that_end_badly, "has 20 sockets end sessions by bad messages, for the log"),
    attack!(
        rings_that_break_again_and_again,
        "breaks a ring, resets the device, and again, for the log"
    ),
    attack!(small_packets_without_pause, "sends 60-byte frames to a guest of its own as fast as they are taken",
        own_share: "what it sends is charged to it, and by weight it may have half of a worker"),
    attack!(small_packets_by_eight_queues, "the same from eight queues",
        own_share: "queues of one interface share one weight"),
    attack!(large_packets_without_pause, "sends 60,000-byte TCP packets to a guest that must have them cut",
        own_share: "cutting is charged to who sends"),
    attack!(packets_into_the_void, "sends frames that are dropped because a guest's ring is never refilled",
        own_share: "what it sends is charged to it, dropped or not"),
    attack!(packed_packets_without_pause, "sends frames of a packed ring as fast as they are taken",
        own_share: "what it sends is charged to it, and by weight it may have half of a worker"),
    attack!(packets_at_a_victim, "sends frames to one of the two guests as fast as they are taken",
        own_share: "its frames share the victim's receive ring; what the victim may receive is for its `rx_rate`"),
];

/// A flood from one ring that keeps the rules: the load of an honest guest that sends as much as an
/// attacker.
pub const WELL_BEHAVED: Attack = attack!(
    small_packets_without_pause,
    "",
    own_share: "it is no attack"
);

fn set_owner_without_pause(field: &Field) -> Strike {
    let link = field.link()?;
    let many = message(request::SET_OWNER, VERSION, &[]).repeat(64);
    loop {
        // If weir does not read, the write waits as long as weir likes.
        while link.raw(&many, &[]).is_err() {}
        field.struck();
    }
}

fn questions_without_pause(field: &Field) -> Strike {
    let link = field.link()?;
    loop {
        link.ask(request::GET_FEATURES)?;
        field.struck();
    }
}

fn set_owner_by_20_front_ends(field: &Field) -> Strike {
    let links = (0..EVILS).map(|number| Link::connect(&field.evil(number)));
    let links = links.collect::<Strike<Vec<_>>>()?;
    let many = message(request::SET_OWNER, VERSION, &[]).repeat(64);
    std::thread::scope(|scope| {
        for link in &links {
            scope.spawn(|| {
                loop {
                    while link.raw(&many, &[]).is_err() {}
                    field.struck();
                }
            });
        }
    });
    Ok(())
}

fn kicks_without_pause(field: &Field) -> Strike {
    let guest = field.plain()?;
    loop {
        for _ in 0..64 {
            guest.kick(1);
        }
        field.struck();
    }
}

fn kicks_of_sixteen_rings(field: &Field) -> Strike {
    let guest = field.guest(Plan { pairs: 8, size: 64, ..Plan::default() })?;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    (0..guest.rings()).for_each(|ring| guest.kick(ring));
                    field.struck();
                }
            });
        }
    });
    Ok(())
}

fn connects_without_pause(field: &Field) -> Strike {
    drop(field.link()?);
    Ok(())
}

fn connects_of_20_sockets(field: &Field) -> Strike {
    for number in 0..EVILS {
        drop(Link::connect(&field.evil(number))?);
        field.struck();
    }
    Ok(())
}

fn connections_that_wait(field: &Field) -> Strike {
    let mut links = vec![field.link()?];
    // The last connection waits for room in the queue or fails.
    while links.len() < 200 {
        match field.link() {
            Ok(link) => links.push(link),
            Err(_) => break,
        }
        field.struck();
    }
    Ok(())
}

fn sessions_that_end_badly(field: &Field) -> Strike {
    for number in 0..EVILS {
        let link = Link::connect(&field.evil(number))?;
        link.tell_u64(request::SET_FEATURES, u64::MAX)?;
        field.struck();
    }
    Ok(())
}

fn rings_that_break_again_and_again(field: &Field) -> Strike {
    let guest = field.plain()?;
    loop {
        guest.ring(1).set_index(30_000);
        guest.kick(1);
        guest.stopped("an index that jumps")?;
        let _ = rustix::io::read(guest.errs[1].as_fd(), &mut [0; 8]);
        guest.link.tell_u64(request::SET_STATUS, 0)?;
        guest.ring(1).set_index(0);
        guest.link.tell_ring(request::SET_VRING_BASE, 1, 0)?;
        guest.link.tell_fd(request::SET_VRING_KICK, 1, Some(guest.kicks[1].as_fd()))?;
        guest.link.ask(request::GET_FEATURES)?;
        field.struck();
    }
}

/// A sending and a receiving guest of the attacker. The sender's frames are addressed to the receiver.
pub fn couple(field: &Field, sender: Plan, receiver: Plan) -> Strike<(Guest, Guest)> {
    let (from, to) =
        (Guest::attach(&field.evil(0), sender)?, Guest::attach(&field.evil(1), receiver)?);
    // The switch learns the receiver's address from its first frame.
    to.send(1, Header::default(), &frame(Guest::mac(0), Guest::mac(1), EXPERIMENTAL, 60));
    to.taken(1, "the receiver's first frame")?;
    Ok((from, to))
}

/// Sends on all rings of `from` without a pause. Reposts the buffers of the receiver `to`, if there is one.
pub fn pour(field: &Field, from: &Guest, to: Option<&Guest>) -> Strike {
    loop {
        let mut sent = 0;
        for ring in (1..from.rings()).step_by(2) {
            sent += u32::from(from.pump(ring));
        }
        if let Some(to) = to {
            for ring in (0..to.rings()).step_by(2) {
                to.repost(ring);
            }
        }
        if sent > 0 {
            field.struck();
        } else {
            let call = from.calls[1].as_fd();
            if readable(call, Duration::from_millis(1))? {
                let _ = rustix::io::read(call, &mut [0; 8]);
            }
        }
    }
}

/// Fills all transmit rings with the frames of `make`.
pub fn loaded(guest: &Guest, make: impl Fn() -> (Header, Vec<u8>)) {
    for ring in (1..guest.rings()).step_by(2) {
        guest.load(ring, |_| make());
    }
}

/// A frame of 60 bytes.
pub fn small(to: Mac) -> (Header, Vec<u8>) {
    (Header::default(), frame(to, Guest::mac(0), EXPERIMENTAL, 60))
}

fn small_packets_without_pause(field: &Field) -> Strike {
    let (from, to) = couple(field, Plan::default(), Plan::default())?;
    loaded(&from, || small(Guest::mac(1)));
    pour(field, &from, Some(&to))
}

fn small_packets_by_eight_queues(field: &Field) -> Strike {
    let plan = Plan { pairs: 8, size: 64, ..Plan::default() };
    let (from, to) = couple(field, plan, Plan::default())?;
    loaded(&from, || small(Guest::mac(1)));
    pour(field, &from, Some(&to))
}

fn large_packets_without_pause(field: &Field) -> Strike {
    let (from, to) =
        couple(field, Plan { memory: 32 << 20, size: 64, ..Plan::default() }, Plan::default())?;
    load_large(&from, Guest::mac(1));
    pour(field, &from, Some(&to))
}

/// Fills the transmit ring with packets of 60,000 bytes that must be segmented.
pub fn load_large(from: &Guest, to: Mac) {
    let header = Header::tso(1460);
    // Buffers are contiguous: a buffer of 60,000 bytes covers many of them, and all descriptors use the same bytes.
    let packet = tcp(to, Guest::mac(0), 60_000);
    let at = from.buffer(1, 0);
    from.memory.set(at, &header.bytes());
    from.memory.set(at + header.bytes().len(), &packet);
    let ring = from.ring(1);
    for slot in 0..ring.size {
        ring.set(slot, from.buffer_address(1, 0), 12 + packet.len() as u32, 0, 0);
        ring.set_available(slot, slot);
    }
}

fn packets_into_the_void(field: &Field) -> Strike {
    let (from, _to) = couple(field, Plan::default(), Plan::default())?;
    loaded(&from, || small(Guest::mac(1)));
    pour(field, &from, None)
}

fn packed_packets_without_pause(field: &Field) -> Strike {
    let (from, to) = couple(field, Plan::packed(), Plan::default())?;
    let (header, bytes) = small(Guest::mac(1));
    let ring = from.ring(1);
    for slot in 0..ring.size {
        let at = from.buffer(1, slot);
        from.memory.set(at, &header.bytes());
        from.memory.set(at + header.bytes().len(), &bytes);
    }
    let mut wrap = true;
    loop {
        let (mine, theirs) = if wrap { (AVAIL, AVAIL | USED) } else { (USED, 0) };
        for slot in 0..ring.size {
            ring.set_packed(slot, from.buffer_address(1, slot), 72, slot, mine);
        }
        from.kick(1);
        // A used descriptor has the same wrap counter.
        let last = ring.slot(ring.size - 1) + 14;
        while from.memory.u16_at(last) & (AVAIL | USED) != theirs {
            to.repost(0);
            std::thread::sleep(Duration::from_micros(20));
        }
        wrap = !wrap;
        field.struck();
    }
}

fn packets_at_a_victim(field: &Field) -> Strike {
    let guest = field.plain()?;
    let [victim, ..] = crate::measure::switch::ADDRESSES;
    loaded(&guest, || small(victim));
    pour(field, &guest, None)
}
